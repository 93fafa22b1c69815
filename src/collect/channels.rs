//! The channels of a host task: commands in, updates out.

use crate::fleet::{HostId, HostUpdate};
use crate::wire::{Reply, ReplyOutcome, Request};
use std::time::Duration;
use tokio::sync::mpsc;

/// Sends the updates of one host to the fleet. The channel is bounded, so a slow consumer slows the hosts down.
#[derive(Debug, Clone)]
pub(super) struct UpdateSender {
    id: HostId,
    updates: mpsc::Sender<(HostId, HostUpdate)>,
}

/// The receiver of the updates is gone, so the host task must end.
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

    /// Completes when the receiver is gone.
    pub(super) async fn closed(&self) {
        self.updates.closed().await;
    }
}

/// A command for a host task.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Reconnect now. An established connection must send a line within 4 s, or readings if those are late; a connection
    /// attempt in progress continues.
    Retry,
    /// Sample at this interval from now on, also on later connections.
    Interval(Duration),
    /// Forward a request to the probe. If that is impossible, the host task replies with a refusal.
    Request(Request),
}

/// Returns the refusal for a request that cannot be forwarded, or `None` if the request expects no reply.
pub(super) fn refusal_reply(request: &Request, why: &str) -> Option<HostUpdate> {
    match request {
        Request::Signal { id, .. } | Request::Environment { id, .. } | Request::LogTail { id, .. } => {
            Some(HostUpdate::Reply(Reply { id: *id, outcome: ReplyOutcome::Refused(why.into()) }))
        }
        Request::Heartbeat { .. } | Request::Interval { .. } | Request::Resend => None,
    }
}
