//! The channels of a host task: commands to it, updates from it.

use crate::fleet::{HostId, HostUpdate};
use crate::wire::{Reply, ReplyOutcome, Request};
use std::time::Duration;
use tokio::sync::mpsc;

/// Sends one host's updates. The channel is bounded: a fleet that falls behind slows the hosts down.
#[derive(Debug, Clone)]
pub(super) struct UpdateSender {
    id: HostId,
    updates: mpsc::Sender<(HostId, HostUpdate)>,
}

/// Nobody listens any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceiverDropped;

impl UpdateSender {
    pub(super) fn new(id: HostId, updates: mpsc::Sender<(HostId, HostUpdate)>) -> Self {
        Self { id, updates }
    }

    pub(super) fn id(&self) -> HostId {
        self.id
    }

    pub(super) async fn send(&self, update: HostUpdate) -> Result<(), ReceiverDropped> {
        self.updates.send((self.id, update)).await.map_err(|_| ReceiverDropped)
    }

    /// Completes when nobody listens any more.
    pub(super) async fn closed(&self) {
        self.updates.closed().await;
    }
}

/// What a host task can be told.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Try again now. A connection that stands must prove itself within 4 s, by readings if these
    /// are late; one that is being made goes on.
    Retry,
    /// Sample at this interval, now and on every later connection.
    Interval(Duration),
    /// Pass this on to the probe. A signal that cannot be passed on is answered with a refusal.
    Request(Request),
}

/// The reply to a request that cannot be passed on; `None` for requests that nobody waits for.
pub(super) fn refusal_reply(request: &Request, why: &str) -> Option<HostUpdate> {
    match request {
        Request::Signal { id, .. } | Request::Environment { id, .. } | Request::LogTail { id, .. } => {
            Some(HostUpdate::Reply(Reply { id: *id, outcome: ReplyOutcome::Refused(why.into()) }))
        }
        Request::Heartbeat { .. } | Request::Interval { .. } | Request::Resend => None,
    }
}
