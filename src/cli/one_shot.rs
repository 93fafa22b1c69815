//! The fleet on its way to being complete: when `status` may print, and what it then exits with.

use crate::config::HostConfig;
use crate::fleet::{Fleet, Host, HostChange, HostId, HostUpdate, Link, Moment};
use std::sync::Arc;

/// Snapshots that make a host complete: shares of time exist from the second on.
const SNAPSHOTS: u32 = 2;

/// A fleet that is gathered once. A host counts as done with its second snapshot, or when it has failed: what it
/// tries after that is no longer waited for, and does not hide why it failed.
pub struct OneShotFleet {
    fleet: Fleet,
    failed: Vec<bool>,
}

impl OneShotFleet {
    /// Nothing has been heard yet.
    pub fn new(hosts: &[Arc<HostConfig>], simulated: bool, now: Moment) -> Self {
        Self { fleet: Fleet::new(hosts, simulated, now), failed: vec![false; hosts.len()] }
    }

    /// Takes one host's update.
    pub fn apply(&mut self, id: HostId, update: HostUpdate, now: Moment) -> HostChange {
        let Some(failed) = self.failed.get_mut(id.0 as usize) else { return HostChange::Nothing };
        match update {
            HostUpdate::Connecting { .. } | HostUpdate::Down { .. } if *failed => return HostChange::Nothing,
            HostUpdate::Down { .. } | HostUpdate::NeedsUser(_) => *failed = true,
            HostUpdate::Snapshot(_) => *failed = false,
            _ => {}
        }
        self.fleet.apply(id, update, now)
    }

    /// The fleet so far.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Whether there is nothing left to wait for.
    pub fn is_complete(&self) -> bool {
        let mut hosts = self.fleet.hosts().iter().zip(&self.failed);
        hosts.all(|(host, failed)| *failed || host.snapshots_seen >= SNAPSHOTS)
    }

    /// Whether every host has reported. One whose driver is missing has, and so has one that fell silent after its
    /// readings.
    pub fn all_reported(&self) -> bool {
        let has_reported =
            |host: &Host| host.snapshot.is_some() && matches!(host.link, Link::Live | Link::Stale { .. });
        self.fleet.hosts().iter().all(has_reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{ConnectPhase, LinkError, LinkErrorKind};
    use crate::wire::{DriverError, DriverErrorKind, Inventory, Snapshot};

    fn one_shot(hosts: u32) -> OneShotFleet {
        let configs: Vec<_> = (0..hosts).map(|host| Arc::new(HostConfig::named(format!("h{host}")))).collect();
        OneShotFleet::new(&configs, false, Moment::default())
    }

    fn snapshot(sequence: u64) -> HostUpdate {
        HostUpdate::Snapshot(Box::new(Snapshot { sequence, ..Snapshot::default() }))
    }

    fn down() -> HostUpdate {
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
        HostUpdate::Down { error, retry_at: None, attempt: 1 }
    }

    fn feed(one_shot: &mut OneShotFleet, host: u32, updates: impl IntoIterator<Item = HostUpdate>) {
        for update in updates {
            one_shot.apply(HostId(host), update, Moment::default());
        }
    }

    #[test]
    fn it_is_complete_when_every_host_has_sent_two_snapshots_or_failed() {
        let mut one_shot = one_shot(2);
        feed(&mut one_shot, 0, [snapshot(1)]);
        assert!(!one_shot.is_complete());
        feed(&mut one_shot, 0, [snapshot(2)]);
        assert!(!one_shot.is_complete());
        feed(&mut one_shot, 1, [down()]);
        assert!(one_shot.is_complete());
        assert!(!one_shot.all_reported());
    }

    #[test]
    fn a_host_without_a_driver_has_reported() {
        let mut one_shot = one_shot(1);
        let error = DriverError { kind: DriverErrorKind::NoLibrary, code: None, message: "no driver".into() };
        let inventory = Inventory { error: Some(error), ..Inventory::default() };
        feed(&mut one_shot, 0, [HostUpdate::Inventory(Box::new(inventory)), snapshot(1), snapshot(2)]);
        assert!(one_shot.is_complete() && one_shot.all_reported());
    }

    #[test]
    fn the_next_try_does_not_hide_why_a_host_failed() {
        let mut one_shot = one_shot(1);
        feed(&mut one_shot, 0, [down(), HostUpdate::Connecting { attempt: 2, phase: ConnectPhase::Tcp }]);
        assert!(one_shot.is_complete());
        let link = &one_shot.fleet().hosts()[0].link;
        assert_eq!(link.error().map(|error| error.kind), Some(LinkErrorKind::Refused));
    }

    #[test]
    fn a_host_that_comes_back_meanwhile_is_shown_with_its_readings() {
        let mut one_shot = one_shot(1);
        feed(&mut one_shot, 0, [down(), snapshot(1)]);
        assert!(!one_shot.is_complete());
        assert!(one_shot.all_reported());
    }

    #[test]
    fn what_needs_a_person_is_not_waited_for() {
        let mut one_shot = one_shot(1);
        let error = LinkError::new(LinkErrorKind::HostKeyUnknown, "the host key is not known");
        feed(&mut one_shot, 0, [HostUpdate::NeedsUser(error)]);
        assert!(one_shot.is_complete() && !one_shot.all_reported());
    }
}
