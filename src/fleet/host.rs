//! One host: what it said last, and how it is reached.

use super::{Link, LinkError, Moment, Phase};
use crate::hosts::HostConfig;
use crate::wire::{Hello, Inventory, ProcessFacts, Reply, SafeText, Snapshot};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A host's place in the fleet. It never changes while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// What a host task tells the fleet.
#[derive(Debug, Clone, PartialEq)]
pub enum HostUpdate {
    /// A try has begun, or has come this far.
    Connecting {
        /// Which try, from 1.
        attempt: u32,
        /// How far.
        phase: Phase,
    },
    /// The probe introduced itself: the link is live.
    Hello(Box<Hello>),
    /// The GPUs, or why there are none.
    Inventory(Box<Inventory>),
    /// Readings.
    Snapshot(Box<Snapshot>),
    /// A heartbeat came back after this long.
    RoundTrip(Duration),
    /// No line for 3 s.
    Silent,
    /// The connection is gone, or could not be made.
    Down {
        /// Why.
        error: LinkError,
        /// When the next try begins; `None` when it waits for the user.
        retry_at: Option<Moment>,
        /// How many tries have failed in a row.
        attempt: u32,
    },
    /// A person is needed before it can go on.
    NeedsUser(LinkError),
    /// The answer to a request.
    Reply(Reply),
}

/// The identity of a process across pid reuse and reboots.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    /// The host's boot id.
    pub boot_id: Option<SafeText>,
    /// Process id.
    pub pid: u32,
    /// Start time in ticks after boot; `None` where /proc does not show the process.
    pub start_ticks: Option<u64>,
}

/// What [`Host::apply`] changed, so that only what depends on it is computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Only the link changed.
    Link,
    /// Hello, inventory or readings changed.
    Data,
    /// The first readings of this connection arrived.
    FirstData,
    /// Nothing that is shown changed.
    Nothing,
}

/// One host. The last values stay whatever happens to the link.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its place in the fleet.
    pub id: HostId,
    /// What the configuration says of it.
    pub config: Arc<HostConfig>,
    /// How it is reached.
    pub link: Link,
    /// Who answers there.
    pub hello: Option<Hello>,
    /// Its GPUs and driver.
    pub inventory: Option<Inventory>,
    /// The last readings, columns in the order of `inventory`.
    pub snapshot: Option<Snapshot>,
    /// When the last readings arrived.
    pub received_at: Option<Moment>,
    /// How many snapshots arrived on this connection.
    pub snapshots_seen: u32,
    /// How long a heartbeat takes.
    pub round_trip: Option<Duration>,
    /// Facts of the processes of the last snapshot, by pid.
    pub facts: HashMap<u32, ProcessFacts>,
}

impl Host {
    /// A host that has not been reached yet.
    pub fn new(id: HostId, config: Arc<HostConfig>, now: Moment) -> Self {
        Self {
            id,
            config,
            link: Link::Connecting { attempt: 1, phase: Phase::Queued, since: now },
            hello: None,
            inventory: None,
            snapshot: None,
            received_at: None,
            snapshots_seen: 0,
            round_trip: None,
            facts: HashMap::new(),
        }
    }

    /// The name it is shown by.
    pub fn name(&self) -> &SafeText {
        &self.config.name
    }

    /// How old the last readings are.
    pub fn age(&self, now: Moment) -> Option<Duration> {
        self.received_at.map(|at| now.since(at))
    }

    /// Whether the readings may be shown as current: the link is live and no reading is 3 intervals old.
    pub fn is_fresh(&self, now: Moment) -> bool {
        let limit = self.config.interval.max(Duration::from_secs(1)) * 3;
        matches!(self.link, Link::Live) && self.age(now).is_some_and(|age| age <= limit)
    }

    /// Takes one update.
    pub fn apply(&mut self, update: HostUpdate, now: Moment) -> Applied {
        match update {
            HostUpdate::Connecting { attempt, phase } => {
                let since = match self.link {
                    Link::Connecting { attempt: current, since, .. } if current == attempt => since,
                    _ => now,
                };
                if phase == Phase::Queued || phase == Phase::Name {
                    self.snapshots_seen = 0;
                }
                self.link = Link::Connecting { attempt, phase, since };
                Applied::Link
            }
            HostUpdate::Hello(hello) => {
                if self.hello.as_ref().and_then(|old| old.boot_id.as_ref()) != hello.boot_id.as_ref() {
                    self.facts.clear();
                }
                self.hello = Some(*hello);
                self.snapshots_seen = 0;
                Applied::Data
            }
            HostUpdate::Inventory(inventory) => {
                self.inventory = Some(*inventory);
                Applied::Data
            }
            HostUpdate::Snapshot(snapshot) => self.apply_snapshot(*snapshot, now),
            HostUpdate::RoundTrip(round_trip) => {
                self.round_trip = Some(round_trip);
                if matches!(self.link, Link::Stale { .. }) {
                    self.link = Link::Live;
                    return Applied::Link;
                }
                Applied::Nothing
            }
            HostUpdate::Silent => {
                self.link = Link::Stale { since: self.received_at.unwrap_or(now) };
                Applied::Link
            }
            HostUpdate::Down { error, retry_at, attempt } => {
                let since = match self.link {
                    Link::Down { since, .. } => since,
                    _ => now,
                };
                self.link = Link::Down { error, since, retry_at, attempt };
                Applied::Link
            }
            HostUpdate::NeedsUser(error) => {
                self.link = Link::NeedsUser { error, since: now };
                Applied::Link
            }
            HostUpdate::Reply(_) => Applied::Nothing,
        }
    }

    fn apply_snapshot(&mut self, mut snapshot: Snapshot, now: Moment) -> Applied {
        // A snapshot of another generation than the inventory has columns in an order that is not known here.
        if self.inventory.as_ref().map(|inventory| inventory.generation) != Some(snapshot.generation) {
            snapshot.gpus = crate::wire::GpuColumns::default();
            snapshot.gpu_processes = crate::wire::GpuProcessColumns::default();
        }
        for facts in snapshot.facts.drain(..) {
            self.facts.insert(facts.pid, facts);
        }
        let alive: std::collections::HashSet<u32> = snapshot.gpu_processes.pid.iter().flatten().copied().collect();
        self.facts.retain(|pid, _| alive.contains(pid));
        self.link = Link::Live;
        self.snapshots_seen = self.snapshots_seen.saturating_add(1);
        let first = self.snapshots_seen == 1;
        self.snapshot = Some(snapshot);
        self.received_at = Some(now);
        if first { Applied::FirstData } else { Applied::Data }
    }
}
