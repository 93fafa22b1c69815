//! One host: what it said last, and how it is reached.

use super::process_table::{ProcessTable, SnapshotContext};
use super::{ConnectPhase, ConnectionLog, EndedProcess, History, HostUpdate, Link, Moment, Process, sanitize};
use crate::config::HostConfig;
use crate::wire::{
    Filesystem, GpuColumns, GpuHealth, GpuHealthColumns, GpuInfo, GpuReading, Hello, Inventory, SafeText, Snapshot,
};
use std::sync::Arc;
use std::time::Duration;

/// A host's place in the fleet. It never changes while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// What [`Host::apply`] changed, so that only what depends on it is computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostChange {
    /// Only the link changed.
    Link,
    /// Hello, inventory or readings changed.
    Data,
    /// The first readings of this connection arrived.
    FirstData,
    /// Nothing that is shown changed.
    Nothing,
}

/// Two clocks that differ by less agree: the way of a line through a slow link is in it, and a laptop's own drift.
const CLOCK_ERROR_SECONDS: u64 = 60;

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
    /// The last snapshot: the host's own readings and what the probe says of itself. The columns of GPUs and
    /// processes are taken out of it: [`Host::gpus`] and [`Host::processes`] have them joined and checked.
    pub snapshot: Option<Snapshot>,
    /// When the last readings arrived; where they came later than others before them, when they should have.
    pub received_at: Option<Moment>,
    /// How many snapshots arrived on this connection.
    pub snapshots_seen: u32,
    /// How long a heartbeat takes.
    pub round_trip: Option<Duration>,
    /// When it answered with another boot id than before; `None` while it has run since it was first seen.
    pub rebooted_at: Option<Moment>,
    /// By how many seconds its wall clock is ahead of this machine's, as the last snapshot has it; behind, it is
    /// negative. The way of the line is in it, so only [`Host::clock_error_seconds`] is for people.
    clock_ahead_seconds: i64,
    /// One row a GPU, in the order of `inventory`.
    readings: Vec<GpuReading>,
    /// The same for what rarely changes, as it was sent last.
    health: Vec<GpuHealth>,
    filesystems: Vec<Filesystem>,
    slurm_allocated_gpus: Option<Vec<u32>>,
    processes: ProcessTable,
    history: History,
    log: ConnectionLog,
}

impl Host {
    /// A host that has not been reached yet.
    pub fn new(id: HostId, config: Arc<HostConfig>, now: Moment) -> Self {
        Self {
            id,
            config,
            link: Link::Connecting { attempt: 1, phase: ConnectPhase::Queued, since: now },
            hello: None,
            inventory: None,
            snapshot: None,
            received_at: None,
            snapshots_seen: 0,
            round_trip: None,
            rebooted_at: None,
            clock_ahead_seconds: 0,
            readings: Vec::new(),
            health: Vec::new(),
            filesystems: Vec::new(),
            slurm_allocated_gpus: None,
            processes: ProcessTable::default(),
            history: History::default(),
            log: ConnectionLog::default(),
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

    /// Time between snapshots as the probe says it; the configuration's until it has.
    pub fn interval(&self) -> Duration {
        let told = self.snapshot.as_ref().and_then(|snapshot| snapshot.interval_seconds);
        told.map_or(self.config.interval, Duration::from_secs_f32).min(HostConfig::MAX_INTERVAL)
    }

    /// By how many seconds its wall clock is ahead of this machine's, or behind if negative; `None` while they agree as
    /// well as clocks do that nobody keeps right. No age rests on that clock, but dates that it wrote are off by this.
    pub fn clock_error_seconds(&self) -> Option<i64> {
        Some(self.clock_ahead_seconds).filter(|seconds| seconds.unsigned_abs() >= CLOCK_ERROR_SECONDS)
    }

    /// Whether the readings may be shown as current: the link is live and no reading is 3 intervals old.
    pub fn is_fresh(&self, now: Moment) -> bool {
        let limit = self.interval().max(Duration::from_secs(1)) * 3;
        matches!(self.link, Link::Live) && self.age(now).is_some_and(|age| age <= limit)
    }

    /// The GPUs in inventory order, each with its last readings (all `None` until there are some).
    pub fn gpus(&self) -> impl ExactSizeIterator<Item = (&GpuInfo, &GpuReading)> {
        self.gpu_infos().iter().zip(&self.readings)
    }

    /// The facts of the GPU at a position of the inventory.
    pub fn gpu_info(&self, position: usize) -> Option<&GpuInfo> {
        self.gpu_infos().get(position)
    }

    /// What rarely changes about the GPU at a position of the inventory, as it was sent last.
    pub fn gpu_health(&self, position: usize) -> Option<&GpuHealth> {
        self.health.get(position)
    }

    /// The filesystems that matter there, as they were sent last.
    pub fn filesystems(&self) -> &[Filesystem] {
        &self.filesystems
    }

    /// The indexes of the GPUs that Slurm has given to jobs, as they were sent last; `None` where Slurm does not tell.
    pub fn slurm_allocated_gpus(&self) -> Option<&[u32]> {
        self.slurm_allocated_gpus.as_deref()
    }

    /// The processes on its GPUs by ascending pid, each with its facts, readings and GPUs.
    pub fn processes(&self) -> impl ExactSizeIterator<Item = &Process> {
        self.processes.live().iter()
    }

    /// The processes that have ended while the host was watched, the latest last. There are never many of them.
    pub fn ended(&self) -> impl Iterator<Item = &EndedProcess> {
        self.processes.ended()
    }

    /// Whether a process runs as the user that logged in there; not, where one of the two is not known.
    pub fn belongs_to_login_user(&self, process: &Process) -> bool {
        let login = self.hello.as_ref().and_then(|hello| hello.login_uid);
        login.is_some() && process.facts().and_then(|facts| facts.uid) == login
    }

    /// What was read in the last hours.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What was done to reach it, and what came of it.
    pub fn log(&self) -> &ConnectionLog {
        &self.log
    }

    fn gpu_infos(&self) -> &[GpuInfo] {
        self.inventory.as_ref().map_or(&[], |inventory| &inventory.gpus)
    }

    /// Takes one update.
    pub fn apply(&mut self, update: HostUpdate, now: Moment) -> HostChange {
        self.log.record_update(&update, now);
        match update {
            HostUpdate::Connecting { attempt, phase } => {
                let since = match self.link {
                    Link::Connecting { attempt: current, since, .. } if current == attempt => since,
                    _ => now,
                };
                if phase == ConnectPhase::Queued || phase == ConnectPhase::Name {
                    self.snapshots_seen = 0;
                }
                self.link = Link::Connecting { attempt, phase, since };
                HostChange::Link
            }
            HostUpdate::Hello(hello) => {
                let old = self.hello.as_ref().map(|old| &old.boot_id);
                if old.is_some_and(|old| *old != hello.boot_id) {
                    // Who does not tell it now or did not tell it then may have been another kind of reader.
                    if hello.boot_id.is_some() && old.is_some_and(Option::is_some) {
                        self.rebooted_at = Some(now);
                        self.log.record_reboot(now);
                    }
                    self.reset_after_reboot();
                }
                self.hello = Some(*hello);
                self.snapshots_seen = 0;
                self.history.connected();
                HostChange::Data
            }
            HostUpdate::Inventory(inventory) => {
                self.apply_inventory(*inventory);
                HostChange::Data
            }
            HostUpdate::Snapshot(snapshot) => self.apply_snapshot(*snapshot, now),
            HostUpdate::RoundTrip(round_trip) => {
                self.round_trip = Some(round_trip);
                if matches!(self.link, Link::Stale { .. }) {
                    self.link = Link::Live;
                    return HostChange::Link;
                }
                HostChange::Nothing
            }
            HostUpdate::Silent => {
                self.link = Link::Stale { since: self.received_at.unwrap_or(now) };
                HostChange::Link
            }
            HostUpdate::Down { error, retry_at, attempt } => {
                let since = match self.link {
                    Link::Down { since, .. } => since,
                    _ => now,
                };
                self.link = Link::Down { error, since, retry_at, attempt };
                HostChange::Link
            }
            HostUpdate::NeedsUser(error) => {
                let since = match &self.link {
                    Link::NeedsUser { since, .. } => *since,
                    _ => now,
                };
                self.link = Link::NeedsUser { error, since };
                HostChange::Link
            }
            HostUpdate::Reply(_) => HostChange::Nothing,
        }
    }

    /// After a reboot nothing is left of what ran before; the GPUs' history is of the GPUs, and stays.
    fn reset_after_reboot(&mut self) {
        self.processes = ProcessTable::default();
        self.readings.fill(GpuReading::default());
        self.health.fill(GpuHealth::default());
        self.filesystems.clear();
        self.slurm_allocated_gpus = None;
        self.snapshot = None;
        self.received_at = None;
    }

    /// Takes a new list of GPUs. Until the next snapshot each GPU keeps its last readings, wherever it stands now.
    fn apply_inventory(&mut self, mut inventory: Inventory) {
        inventory.gpus.iter_mut().for_each(sanitize::sanitize_gpu_info);
        let old: Vec<SafeText> = self.gpu_infos().iter().map(gpu_identity).collect();
        let new: Vec<SafeText> = inventory.gpus.iter().map(gpu_identity).collect();
        let moves: Vec<Option<usize>> =
            old.iter().map(|identity| new.iter().position(|other| other == identity)).collect();
        reorder_rows(&mut self.readings, &moves, new.len());
        reorder_rows(&mut self.health, &moves, new.len());
        self.processes.move_gpus(&moves);
        self.history.set_gpus(&new);
        self.inventory = Some(inventory);
    }

    fn apply_snapshot(&mut self, mut snapshot: Snapshot, now: Moment) -> HostChange {
        sanitize::sanitize_snapshot(&mut snapshot);
        // One of 1970 or before is none.
        if snapshot.wall_unix_ms > 0 {
            let ours = i64::try_from(now.unix.as_millis()).unwrap_or(i64::MAX);
            self.clock_ahead_seconds = snapshot.wall_unix_ms.saturating_sub(ours) / 1000;
        }
        self.snapshots_seen = self.snapshots_seen.saturating_add(1);
        let is_first = self.snapshots_seen == 1;
        // The columns of another generation than the inventory's are in an order that is not known here.
        let generation = self.inventory.as_ref().map(|inventory| inventory.generation);
        if generation == Some(snapshot.generation) {
            self.apply_gpu_readings(&std::mem::take(&mut snapshot.gpus));
            self.apply_health(&std::mem::take(&mut snapshot.health));
        } else {
            self.readings.fill(GpuReading::default());
            snapshot.gpus = GpuColumns::default();
            snapshot.health = GpuHealthColumns::default();
            snapshot.gpu_processes = crate::wire::GpuProcessColumns::default();
            snapshot.recent_past.clear();
        }
        if !snapshot.host.filesystems.is_empty() {
            self.filesystems = std::mem::take(&mut snapshot.host.filesystems);
        }
        if let Some(allocated) = snapshot.host.slurm_allocated_gpus.take() {
            self.slurm_allocated_gpus = Some(allocated);
        }
        let is_listed = generation == Some(snapshot.generation) && snapshot.driver_error.is_none();
        let boot_id = self.hello.as_ref().and_then(|hello| hello.boot_id.as_ref());
        let infos = self.inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
        let context = SnapshotContext { boot_id, infos, readings: &self.readings, is_listed, is_first, now };
        self.processes.apply(&mut snapshot, &context);
        self.link = Link::Live;
        self.snapshot = Some(snapshot);
        self.record(now);
        if is_first { HostChange::FirstData } else { HostChange::Data }
    }

    fn apply_gpu_readings(&mut self, columns: &GpuColumns) {
        let infos = self.inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
        self.readings.clear();
        self.readings.extend(infos.iter().enumerate().map(|(position, info)| {
            let mut reading = columns.row(position);
            sanitize::sanitize_gpu_reading(&mut reading, info);
            reading
        }));
    }

    /// Health is not sent with every snapshot: what was sent last holds.
    fn apply_health(&mut self, columns: &GpuHealthColumns) {
        if !columns.is_empty() {
            self.health = (0..self.gpu_infos().len()).map(|position| columns.row(position)).collect();
        }
    }

    fn record(&mut self, now: Moment) {
        let interval = self.interval();
        let Some(snapshot) = &self.snapshot else { return };
        self.history.backfill(snapshot.monotonic_seconds, now, &snapshot.recent_past);
        let late =
            self.history.record(snapshot.monotonic_seconds, interval, now, &self.readings, self.processes.live());
        // On a slow link readings are old when they arrive, and must not look fresh.
        self.received_at = Some(now.minus(late));
    }
}

/// Puts each row where its GPU stands now; a GPU that is new has a row in which nothing is known.
fn reorder_rows<R: Clone + Default>(rows: &mut Vec<R>, moves: &[Option<usize>], count: usize) {
    let mut moved = vec![R::default(); count];
    for (position, row) in moves.iter().zip(rows.drain(..)) {
        if let Some(place) = position.and_then(|position| moved.get_mut(position)) {
            *place = row;
        }
    }
    *rows = moved;
}

/// What a GPU is recognised by when the inventory changes: its UUID, else its place on the bus, else its index.
fn gpu_identity(info: &GpuInfo) -> SafeText {
    match (&info.uuid, &info.pci_bus_id) {
        (Some(uuid), _) => uuid.clone(),
        (None, Some(bus_id)) => bus_id.clone(),
        (None, None) => SafeText::new(&info.index.to_string()),
    }
}

/// All hosts, in the order of the configuration.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    hosts: Vec<Host>,
    /// The data comes from the simulator, not from machines.
    pub simulated: bool,
}

impl Fleet {
    /// A fleet in which no host has been reached yet.
    pub fn new(configs: &[Arc<HostConfig>], simulated: bool, now: Moment) -> Self {
        let hosts = (0..).zip(configs).map(|(id, config)| Host::new(HostId(id), Arc::clone(config), now)).collect();
        Self { hosts, simulated }
    }

    /// Adds a host that is met only now, as in a recording.
    pub fn join(&mut self, config: Arc<HostConfig>, now: Moment) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        self.hosts.push(Host::new(id, config, now));
        id
    }

    /// The hosts, in the order of the configuration.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts, to be changed by tests of what rests on them.
    #[cfg(test)]
    pub(crate) fn hosts_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    /// One host.
    pub fn host(&self, id: HostId) -> Option<&Host> {
        self.hosts.get(id.0 as usize)
    }

    /// Takes one host's update; an id that is not in the fleet changes nothing.
    pub fn apply(&mut self, id: HostId, update: HostUpdate, now: Moment) -> HostChange {
        match self.hosts.get_mut(id.0 as usize) {
            Some(host) => host.apply(update, now),
            None => HostChange::Nothing,
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
