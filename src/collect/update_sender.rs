//! The way from a host task to the fleet.

use crate::fleet::{HostId, HostUpdate};
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
