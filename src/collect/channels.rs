//! The channels of a host task: commands in, updates out.

use crate::fleet::{HostId, HostUpdate};
use crate::wire::{Reply, ReplyOutcome, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

/// Limit of large updates of one host that wait in the channel: snapshots, inventories and replies. Further ones wait in the
/// host task, which then reads nothing more from its host. No update is dropped: each snapshot may carry Xid events and
/// process facts that are sent only once.
const MAX_WAITING_LARGE: usize = 4;

/// Returns the channel of all hosts for this many updates.
pub(super) fn update_channel(capacity: usize) -> (mpsc::Sender<QueuedUpdate>, HostUpdates) {
    let (sender, receiver) = mpsc::channel(capacity);
    (sender, HostUpdates(receiver))
}

/// Sends the updates of one host to the fleet. The channel is bounded, so a slow consumer slows the hosts down.
#[derive(Debug, Clone)]
pub(super) struct UpdateSender {
    id: HostId,
    updates: mpsc::Sender<QueuedUpdate>,
    large: Arc<Semaphore>,
}

/// An update that waits in the channel.
#[derive(Debug)]
pub(super) struct QueuedUpdate {
    id: HostId,
    update: HostUpdate,
    /// Held by a large update until it is received.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Receives the updates of all hosts.
#[derive(Debug)]
pub struct HostUpdates(mpsc::Receiver<QueuedUpdate>);

impl HostUpdates {
    /// Waits for the next update; `None` if all host tasks have ended. Cancel safe.
    pub async fn recv(&mut self) -> Option<(HostId, HostUpdate)> {
        self.0.recv().await.map(|queued| (queued.id, queued.update))
    }

    /// Returns the next update if one waits.
    pub fn try_recv(&mut self) -> Option<(HostId, HostUpdate)> {
        self.0.try_recv().ok().map(|queued| (queued.id, queued.update))
    }
}

/// The receiver of the updates is gone, so the host task must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceiverDropped;

impl UpdateSender {
    pub(super) fn new(id: HostId, updates: mpsc::Sender<QueuedUpdate>) -> Self {
        Self { id, updates, large: Arc::new(Semaphore::new(MAX_WAITING_LARGE)) }
    }

    pub(super) fn id(&self) -> HostId {
        self.id
    }

    pub(super) async fn send(&self, update: HostUpdate) -> Result<(), ReceiverDropped> {
        let is_large = matches!(update, HostUpdate::Snapshot(_) | HostUpdate::Inventory(_) | HostUpdate::Reply(_));
        let permit = if is_large {
            tokio::select! {
                permit = Arc::clone(&self.large).acquire_owned() => permit.ok(),
                // The updates in the channel are dropped with the receiver, but only after it is closed.
                () = self.updates.closed() => return Err(ReceiverDropped),
            }
        } else {
            None
        };
        let queued = QueuedUpdate { id: self.id, update, _permit: permit };
        self.updates.send(queued).await.map_err(|_| ReceiverDropped)
    }

    /// Completes when the receiver is gone.
    pub(super) async fn closed(&self) {
        self.updates.closed().await;
    }
}

/// A person counts as present for this long after the last key.
const PRESENCE_DURATION: Duration = Duration::from_secs(5 * 60);
/// Keys within this time of the last one are not passed on.
const PRESENCE_RESOLUTION: Duration = Duration::from_secs(1);

/// Returns both ends of the channel that tells the host tasks when a person used the screen.
pub(super) fn presence_channel() -> (PresenceSender, Presence) {
    let (sender, receiver) = watch::channel(None);
    (PresenceSender(sender), Presence(receiver))
}

/// Tells the host tasks that a person uses the screen.
#[derive(Debug)]
pub(super) struct PresenceSender(watch::Sender<Option<Instant>>);

impl PresenceSender {
    pub(super) fn record_input(&self, now: Instant) {
        self.0.send_if_modified(|last| {
            let is_new = last.is_none_or(|last| now.saturating_duration_since(last) >= PRESENCE_RESOLUTION);
            if is_new {
                *last = Some(now);
            }
            is_new
        });
    }
}

/// Whether a person watches the screen.
#[derive(Debug, Clone)]
pub(super) struct Presence(watch::Receiver<Option<Instant>>);

impl Presence {
    pub(super) fn is_present(&self, now: Instant) -> bool {
        self.0.borrow().is_some_and(|last| now.saturating_duration_since(last) < PRESENCE_DURATION)
    }

    /// Waits until a person is present. Cancel safe.
    pub(super) async fn wait_for_input(&mut self) {
        while !self.is_present(Instant::now()) {
            // Without a screen the sender never sends; if it is gone, the host task ends.
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
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
    let id = request.reply_id()?;
    Some(HostUpdate::Reply(Reply { id, outcome: ReplyOutcome::Refused(why.into()) }))
}
