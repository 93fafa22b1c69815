//! One host: its connection, last readings, processes and history; and the fleet of all hosts.

use super::history::EarlierMeans;
use super::process_table::{ProcessTable, SnapshotContext};
use super::{
    ConnectPhase, ConnectionLog, DatedHistory, EndedProcess, GpuMetric, History, HostUpdate, JobKey, Link, Misbehavior,
    Moment, Process, StoredMetric, sanitize,
};
use crate::config::HostConfig;
use crate::wire::{
    Filesystem, GpuColumns, GpuHealth, GpuHealthColumns, GpuInfo, GpuReading, Hello, Inventory, SafeText, SlurmJob,
    SlurmJobEnd, Snapshot,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A host's index in the fleet. It never changes while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// The part of a host that [`Host::apply`] changed, so that only dependent state is recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostChange {
    /// Only the connection changed.
    Link,
    /// The hello, the inventory or readings changed.
    Data,
    /// The first readings of this connection arrived.
    FirstData,
    /// Nothing visible changed.
    Nothing,
}

/// A smaller difference between two clocks is not reported: it includes the network delay and normal drift.
const CLOCK_ERROR_SECONDS: u64 = 60;

/// How long a host counts as misbehaving after [`HostUpdate::Misbehaves`], which is repeated every 10 s.
const MISBEHAVIOR_DURATION: Duration = Duration::from_secs(15);

/// Maximum number of ended Slurm jobs that are remembered.
const MAX_SLURM_ENDS: usize = 64;

/// One host. The last values remain whatever the state of the connection.
#[derive(Debug, Clone)]
pub struct Host {
    /// The index in the fleet.
    pub id: HostId,
    /// The position in lists of hosts, see [`Fleet::set_order`].
    pub place: u32,
    /// The configuration.
    pub config: Arc<HostConfig>,
    /// The state of the connection.
    pub link: Link,
    /// The hello of the last connection.
    pub hello: Option<Hello>,
    /// The GPUs and the driver.
    pub inventory: Option<Inventory>,
    /// The last snapshot: the readings of the host itself and the state of the probe. The columns of GPUs and processes
    /// are moved out of it; [`Host::gpus`] and [`Host::processes`] return them joined and sanitized.
    pub snapshot: Option<Snapshot>,
    /// When the last readings arrived, corrected for the delay compared with earlier snapshots.
    pub received_at: Option<Moment>,
    /// Number of snapshots on this connection.
    pub snapshots_seen: u32,
    /// The round-trip time of the last heartbeat.
    pub round_trip: Option<Duration>,
    /// When the host answered with a new boot id; `None` if it has not rebooted since the first connection.
    pub rebooted_at: Option<Moment>,
    /// When the host was lost: its last data, or the first failure if it never sent any. `None` while it is connected.
    lost_at: Option<Moment>,
    /// Seconds of the fleet's clock in one real second; see [`Fleet::with_clock_speed`].
    clock_speed: f64,
    /// When the host last misbehaved, by the position in [`Misbehavior::ALL`].
    misbehaved_at: [Option<Moment>; Misbehavior::ALL.len()],
    /// Seconds by which the host's wall clock is ahead of this computer's; negative if it is behind. Includes the
    /// network delay: [`Host::clock_error_seconds`] leaves that out.
    clock_ahead_seconds: i64,
    /// One reading per GPU, in the order of `inventory`.
    readings: Vec<GpuReading>,
    /// The slow readings per GPU, as last sent.
    health: Vec<GpuHealth>,
    /// Per GPU, in the order of `inventory`.
    power_checks: Vec<sanitize::PowerCheck>,
    filesystems: Vec<Filesystem>,
    slurm_allocated_gpus: Option<Vec<u32>>,
    slurm_jobs: Option<Vec<SlurmJob>>,
    /// How Slurm jobs ended, the oldest first.
    slurm_ends: VecDeque<SlurmJobEnd>,
    processes: ProcessTable,
    history: History,
    /// Whether readings become points of charts.
    keeps_history: bool,
    log: ConnectionLog,
}

impl Host {
    /// Creates a host that has not been contacted yet.
    pub fn new(id: HostId, config: Arc<HostConfig>, now: Moment) -> Self {
        Self {
            id,
            place: id.0,
            config,
            link: Link::Connecting { attempt: 1, phase: ConnectPhase::Queued, since: now },
            hello: None,
            inventory: None,
            snapshot: None,
            received_at: None,
            snapshots_seen: 0,
            round_trip: None,
            rebooted_at: None,
            lost_at: None,
            clock_speed: 1.0,
            misbehaved_at: [None; Misbehavior::ALL.len()],
            clock_ahead_seconds: 0,
            readings: Vec::new(),
            health: Vec::new(),
            power_checks: Vec::new(),
            filesystems: Vec::new(),
            slurm_allocated_gpus: None,
            slurm_jobs: None,
            slurm_ends: VecDeque::new(),
            processes: ProcessTable::default(),
            history: History::default(),
            keeps_history: true,
            log: ConnectionLog::default(),
        }
    }

    /// The display name.
    pub fn name(&self) -> &SafeText {
        &self.config.name
    }

    /// The age of the last readings.
    pub fn age(&self, now: Moment) -> Option<Duration> {
        self.received_at.map(|at| now.since(at))
    }

    /// The interval between snapshots that the probe reports; before that, the configured one.
    pub fn interval(&self) -> Duration {
        let reported = self.snapshot.as_ref().and_then(|snapshot| snapshot.interval_seconds);
        reported.map_or(self.config.interval, Duration::from_secs_f32).min(HostConfig::MAX_INTERVAL)
    }

    /// The first of the ways in which the host misbehaves now.
    pub fn misbehavior(&self, now: Moment) -> Option<Misbehavior> {
        let misbehaves = |at: &Option<Moment>| at.is_some_and(|at| now.since(at) < MISBEHAVIOR_DURATION);
        self.misbehaved_at.iter().position(misbehaves).map(|position| Misbehavior::ALL[position])
    }

    /// The seconds by which the host's wall clock is ahead (negative: behind), or `None` if the difference is below a
    /// minute. Ages do not depend on that clock; dates that the host wrote are off by this much.
    pub fn clock_error_seconds(&self) -> Option<i64> {
        Some(self.clock_ahead_seconds).filter(|seconds| seconds.unsigned_abs() >= CLOCK_ERROR_SECONDS)
    }

    /// Whether the readings are current: the connection is live and the readings are at most 3 intervals old. Less than
    /// 3 s of real time are never too old: in a fast simulation, 3 intervals may pass before a busy computer reads them.
    pub fn is_fresh(&self, now: Moment) -> bool {
        let limit = self.interval().max(Duration::from_secs(1).mul_f64(self.clock_speed)) * 3;
        matches!(self.link, Link::Live) && self.age(now).is_some_and(|age| age <= limit)
    }

    /// The GPUs in inventory order with their last readings; all values are `None` before the first snapshot.
    pub fn gpus(&self) -> impl ExactSizeIterator<Item = (&GpuInfo, &GpuReading)> {
        self.gpu_infos().iter().zip(&self.readings)
    }

    /// The facts of the GPU at this inventory position.
    pub fn gpu_info(&self, position: usize) -> Option<&GpuInfo> {
        self.gpu_infos().get(position)
    }

    /// The slow readings of the GPU at this inventory position, as last sent.
    pub fn gpu_health(&self, position: usize) -> Option<&GpuHealth> {
        self.health.get(position)
    }

    /// Whether the energy counter of the GPU at this inventory position contradicts its power sensor. Its mean power is then
    /// `None`.
    pub fn is_energy_counter_ignored(&self, position: usize) -> bool {
        self.power_checks.get(position).is_some_and(sanitize::PowerCheck::is_counter_ignored)
    }

    /// The monitored file systems, as last sent.
    pub fn filesystems(&self) -> &[Filesystem] {
        &self.filesystems
    }

    /// The indexes of the GPUs that Slurm has allocated, as last sent; `None` if they are unknown.
    pub fn slurm_allocated_gpus(&self) -> Option<&[u32]> {
        self.slurm_allocated_gpus.as_deref()
    }

    /// The running Slurm jobs that hold GPUs, as last sent; `None` if they are unknown.
    pub fn slurm_jobs(&self) -> Option<&[SlurmJob]> {
        self.slurm_jobs.as_deref()
    }

    /// Returns how the last Slurm jobs of this host ended, the oldest first.
    pub fn slurm_ends(&self) -> impl Iterator<Item = &SlurmJobEnd> {
        self.slurm_ends.iter()
    }

    /// Returns how a job ended, if Slurm has told it.
    pub fn slurm_end(&self, job: &JobKey) -> Option<&SlurmJobEnd> {
        let JobKey::Slurm { job, .. } = job else { return None };
        self.slurm_ends.iter().find(|end| end.job == *job)
    }

    /// The processes on the host's GPUs by ascending pid.
    pub fn processes(&self) -> impl ExactSizeIterator<Item = &Process> {
        self.processes.live().iter()
    }

    /// New runs of programs that left the GPUs, which are on no GPU, by ascending pid.
    pub fn reruns(&self) -> &[Process] {
        self.processes.reruns()
    }

    /// The processes that ended while the host was watched, the latest last. The number is bounded.
    pub fn ended(&self) -> impl Iterator<Item = &EndedProcess> {
        self.processes.ended()
    }

    /// Whether the process runs as the login user; `false` if either user is unknown. Without a uid the names decide: of a
    /// relayed host only the name of the viewer's account is known.
    pub fn belongs_to_login_user(&self, process: &Process) -> bool {
        let (Some(hello), Some(facts)) = (&self.hello, process.facts()) else { return false };
        match hello.login_uid {
            Some(uid) => facts.uid == Some(uid),
            None => hello.login_user.is_some() && facts.user == hello.login_user,
        }
    }

    /// The readings of the last two hours.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The connection log.
    pub fn log(&self) -> &ConnectionLog {
        &self.log
    }

    fn gpu_infos(&self) -> &[GpuInfo] {
        self.inventory.as_ref().map_or(&[], |inventory| &inventory.gpus)
    }

    /// Applies one update.
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
                    // A host without a boot id may have been read by another source, such as nvidia-smi.
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
            HostUpdate::ReadingsAge(age) => {
                if self.snapshot.is_some() {
                    self.received_at = Some(now.minus(age));
                }
                HostChange::Data
            }
            HostUpdate::RoundTrip(round_trip) => {
                self.round_trip = Some(round_trip);
                if matches!(self.link, Link::Stale { .. }) {
                    self.link = Link::Live;
                    return HostChange::Link;
                }
                HostChange::Nothing
            }
            HostUpdate::Misbehaves(misbehavior) => {
                self.misbehaved_at[misbehavior as usize] = Some(now);
                HostChange::Nothing
            }
            HostUpdate::Silent => {
                self.link = Link::Stale { since: self.received_at.unwrap_or(now) };
                HostChange::Link
            }
            HostUpdate::Down { error, retry_at, attempt } => {
                // Further attempts do not shorten the time without data.
                let since = *self.lost_at.get_or_insert(self.received_at.unwrap_or(now));
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

    /// Drops everything that a reboot ends. The history of the GPUs remains.
    fn reset_after_reboot(&mut self) {
        self.processes = ProcessTable::default();
        self.readings.fill(GpuReading::default());
        self.health.fill(GpuHealth::default());
        self.filesystems.clear();
        self.slurm_allocated_gpus = None;
        self.slurm_jobs = None;
        self.snapshot = None;
        self.received_at = None;
    }

    /// Replaces the list of GPUs. Each GPU keeps its last readings at its new position until the next snapshot.
    fn apply_inventory(&mut self, mut inventory: Inventory) {
        inventory.gpus.iter_mut().for_each(sanitize::sanitize_gpu_info);
        let old: Vec<SafeText> = self.gpu_infos().iter().map(gpu_identity).collect();
        let new: Vec<SafeText> = inventory.gpus.iter().map(gpu_identity).collect();
        let new_positions: Vec<Option<usize>> =
            old.iter().map(|identity| new.iter().position(|other| other == identity)).collect();
        reorder_rows(&mut self.readings, &new_positions, new.len());
        reorder_rows(&mut self.health, &new_positions, new.len());
        reorder_rows(&mut self.power_checks, &new_positions, new.len());
        self.processes.move_gpus(&new_positions);
        self.history.set_gpus(&new);
        self.inventory = Some(inventory);
    }

    fn apply_snapshot(&mut self, mut snapshot: Snapshot, now: Moment) -> HostChange {
        sanitize::sanitize_snapshot(&mut snapshot);
        // A time of 1970 or earlier means that the host's clock is not set.
        if snapshot.wall_unix_ms > 0 {
            let now_unix_ms = i64::try_from(now.unix.as_millis()).unwrap_or(i64::MAX);
            self.clock_ahead_seconds = snapshot.wall_unix_ms.saturating_sub(now_unix_ms) / 1000;
        }
        self.snapshots_seen = self.snapshots_seen.saturating_add(1);
        let is_first = self.snapshots_seen == 1;
        // The columns of another generation are in an unknown order.
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
        if let Some(jobs) = snapshot.host.slurm_jobs.take() {
            self.slurm_jobs = Some(jobs);
        }
        for end in snapshot.host.slurm_ends.drain(..) {
            // A job that was put back into the queue ends more than once.
            self.slurm_ends.retain(|known| known.job != end.job);
            self.slurm_ends.push_back(end);
            if self.slurm_ends.len() > MAX_SLURM_ENDS {
                self.slurm_ends.pop_front();
            }
        }
        let is_listed = generation == Some(snapshot.generation) && snapshot.driver_error.is_none();
        let boot_id = self.hello.as_ref().and_then(|hello| hello.boot_id.as_ref());
        let infos = self.inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
        let context = SnapshotContext { boot_id, infos, readings: &self.readings, is_listed, is_first, now };
        self.processes.apply(&mut snapshot, &context);
        // A job that was put back into the queue runs again under its id: its earlier end is not that of this run.
        if is_listed {
            let live = self.processes.live();
            let is_job =
                |process: &Process, end: &str| matches!(&process.info.job, JobKey::Slurm { job, .. } if **job == *end);
            self.slurm_ends.retain(|end| !live.iter().any(|process| is_job(process, &end.job)));
        }
        self.link = Link::Live;
        self.lost_at = None;
        self.snapshot = Some(snapshot);
        self.record(now);
        if is_first { HostChange::FirstData } else { HostChange::Data }
    }

    fn apply_gpu_readings(&mut self, columns: &GpuColumns) {
        let seconds = self.interval().as_secs_f64();
        let infos = self.inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
        self.readings.clear();
        self.power_checks.resize_with(infos.len(), sanitize::PowerCheck::default);
        self.readings.extend(infos.iter().zip(&mut self.power_checks).enumerate().map(|(position, (info, check))| {
            let mut reading = columns.row(position);
            sanitize::sanitize_gpu_reading(&mut reading, info);
            check.check(&mut reading, seconds);
            reading
        }));
    }

    /// Not every snapshot carries health columns; the last ones remain valid.
    fn apply_health(&mut self, columns: &GpuHealthColumns) {
        if !columns.is_empty() {
            self.health = (0..self.gpu_infos().len()).map(|position| columns.row(position)).collect();
        }
    }

    /// Fills the charts of the time before the first snapshot from the store of a collector.
    fn fill_history(&mut self, earlier: &DatedHistory, now: Moment) {
        let infos = self.inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
        for (position, info) in infos.iter().enumerate() {
            let Some(gpu) = earlier.history.gpu(info) else { continue };
            for (metric, stored) in [
                (GpuMetric::Utilization, StoredMetric::Utilization),
                (GpuMetric::MemoryUsed, StoredMetric::Memory),
                (GpuMetric::Power, StoredMetric::Power),
                (GpuMetric::Temperature, StoredMetric::Temperature),
            ] {
                let values: Vec<Option<f32>> = gpu.values(stored).collect();
                let means = EarlierMeans {
                    age_seconds: earlier.age(now).as_secs_f64(),
                    step_seconds: earlier.history.step_seconds as f64,
                    values: &values,
                };
                self.history.fill(position, metric, means, now);
            }
        }
    }

    fn record(&mut self, now: Moment) {
        let interval = self.interval();
        let Some(snapshot) = &self.snapshot else { return };
        self.history.backfill(snapshot.monotonic_seconds, now, &snapshot.recent_past);
        let (readings, processes) =
            if self.keeps_history { (self.readings.as_slice(), self.processes.live()) } else { (&[][..], &[][..]) };
        let late = self.history.record(snapshot.monotonic_seconds, interval, now, readings, processes);
        // On a slow link readings are old when they arrive and must not look fresh.
        self.received_at = Some(now.minus(late));
    }
}

/// Moves each row to the new position of its GPU. New GPUs get an empty row.
fn reorder_rows<R: Clone + Default>(rows: &mut Vec<R>, new_positions: &[Option<usize>], count: usize) {
    let mut moved = vec![R::default(); count];
    for (position, row) in new_positions.iter().zip(rows.drain(..)) {
        if let Some(new_row) = position.and_then(|position| moved.get_mut(position)) {
            *new_row = row;
        }
    }
    *rows = moved;
}

/// Identifies a GPU across inventories: by UUID, else by PCI bus id, else by index.
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
    /// Whether the data of all hosts comes from the simulator. See [`Fleet::is_simulated`] for one host.
    pub simulated: bool,
    /// See [`Fleet::clock_speed`].
    clock_speed: f64,
}

impl Fleet {
    /// Creates a fleet in which no host has been contacted yet.
    pub fn new(configs: &[Arc<HostConfig>], simulated: bool, now: Moment) -> Self {
        let hosts = (0..).zip(configs).map(|(id, config)| Host::new(HostId(id), Arc::clone(config), now)).collect();
        Self { hosts, simulated, clock_speed: 1.0 }
    }

    /// Sets the speed of the clock whose moments the fleet gets, in seconds per real second. Only a simulation differs
    /// from 1.
    #[must_use]
    pub fn with_clock_speed(mut self, speed: f64) -> Self {
        // A slow simulation delivers its data as promptly as a real host.
        let speed = speed.max(1.0);
        self.clock_speed = speed;
        self.hosts.iter_mut().for_each(|host| host.clock_speed = speed);
        self
    }

    /// The seconds of the fleet's clock in one real second, at least 1.
    pub fn clock_speed(&self) -> f64 {
        // The default is 0 for an empty fleet.
        self.clock_speed.max(1.0)
    }

    /// Adds a host that is not in the configuration, as a replay does.
    pub fn join(&mut self, config: Arc<HostConfig>, now: Moment) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        self.hosts.push(Host::new(id, config, now));
        id
    }

    /// Adds a host with the next free id, or puts a new one in the place of the host with this id.
    pub fn set_host(&mut self, id: HostId, config: Arc<HostConfig>, now: Moment) {
        let mut host = Host::new(id, config, now);
        host.clock_speed = self.clock_speed();
        let index = id.0 as usize;
        if let Some(old) = self.hosts.get_mut(index) {
            host.place = old.place;
            *old = host;
        } else if index == self.hosts.len() {
            self.hosts.push(host);
        }
    }

    /// Replaces the list of hosts by these, in this order. A host of the same name keeps its state and takes the new
    /// configuration; the others are new. Returns the new id of each host by its old one, `None` for a host that is gone.
    pub fn rearrange(&mut self, configs: &[Arc<HostConfig>], now: Moment) -> Vec<Option<HostId>> {
        let mut old: Vec<Option<Host>> = std::mem::take(&mut self.hosts).into_iter().map(Some).collect();
        let mut ids = vec![None; old.len()];
        for (id, config) in (0..).map(HostId).zip(configs) {
            let index = old.iter().position(|host| host.as_ref().is_some_and(|host| host.config.name == config.name));
            let kept = index.and_then(|index| {
                ids[index] = Some(id);
                old[index].take()
            });
            let mut host = kept.unwrap_or_else(|| Host::new(id, Arc::clone(config), now));
            (host.id, host.place, host.config, host.clock_speed) = (id, id.0, Arc::clone(config), self.clock_speed());
            self.hosts.push(host);
        }
        ids
    }

    /// Keeps no history of these hosts, for a fleet of which one picture is printed.
    #[must_use]
    pub fn without_history(mut self) -> Self {
        self.hosts.iter_mut().for_each(|host| host.keeps_history = false);
        self
    }

    /// Sets the order in which lists show the hosts. Ids stay. Without it, and for hosts that it does not name, the order is
    /// that of the ids.
    pub fn set_order(&mut self, order: &[HostId]) {
        for (place, id) in (0..).zip(order) {
            if let Some(host) = self.hosts.get_mut(id.0 as usize) {
                host.place = place;
            }
        }
    }

    /// The hosts in the order in which lists show them.
    pub fn hosts_in_order(&self) -> Vec<&Host> {
        let mut hosts: Vec<&Host> = self.hosts.iter().collect();
        hosts.sort_by_key(|host| host.place);
        hosts
    }

    /// The hosts by id: in the order of the configuration, unless a collector listed some later.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts, for tests that change them.
    #[cfg(test)]
    pub(crate) fn hosts_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    /// Whether the data of this host comes from the simulator.
    pub fn is_simulated(&self, id: HostId) -> bool {
        self.simulated || self.host(id).is_some_and(|host| host.config.is_simulated)
    }

    /// The number of hosts whose data comes from the simulator.
    pub fn simulated_hosts(&self) -> usize {
        self.hosts.iter().filter(|host| self.simulated || host.config.is_simulated).count()
    }

    /// Returns one host.
    pub fn host(&self, id: HostId) -> Option<&Host> {
        self.hosts.get(id.0 as usize)
    }

    /// Fills the charts of a host of the time before its first snapshot. A host without a snapshot stays as it is.
    pub fn fill_history(&mut self, id: HostId, earlier: &DatedHistory, now: Moment) {
        if let Some(host) = self.hosts.get_mut(id.0 as usize) {
            host.fill_history(earlier, now);
        }
    }

    /// Applies an update to one host. An unknown id changes nothing.
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
