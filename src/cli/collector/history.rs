//! Follows the fleet and writes its history: a row per GPU and host for each minute, jobs, and findings.

use super::state::{Applied, CollectorState, EndFuture, Observer};
use crate::cli::exit::warn;
use crate::diagnosis::{FindingPhase, Transition};
use crate::fleet::{
    Fleet, GpuListStyle, GpuState, Host, HostChange, JobKey, Moment, Process, format_gpu_list, slurm_end_text,
};
use crate::store::history::{Batch, FindingRow, GpuName, HostRow, JobRow, MINUTE};
use crate::store::rollup::{GpuAccumulator, GpuSample, HistoryState};
use crate::store::{History, HistoryError, HistoryWriter};
use crate::wire::{ClocksEventReasons, GpuInfo, GpuReading, SafeText, SlurmJob};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A sample stands for at most this many intervals before it. The rest of a longer gap is unknown.
const MAX_INTERVALS: u32 = 3;
/// A busy computer delays the samples of a simulation by up to this much real time, which is many intervals of a fast one.
const HICCUP: Duration = Duration::from_secs(1);
/// How long after its end a minute waits for samples that cover a part of it, besides the interval of the hosts.
const GRACE: Duration = Duration::from_secs(2);
/// How long Slurm may take to tell how a job ended: its node is queried once a minute, and its epilog may run for minutes.
const SLURM_END_SECONDS: u64 = 300;
/// More open minutes than this mean that the clock jumps; the oldest is written.
const MAX_OPEN_MINUTES: usize = 8;

/// See [`HICCUP`]; zero unless the fleet is simulated.
fn hiccup(fleet: &Fleet) -> Duration {
    if fleet.simulated { HICCUP.mul_f64(fleet.clock_speed()) } else { Duration::ZERO }
}

/// Turns updates into batches of one minute.
pub(in crate::cli) struct HistoryRecorder {
    sink: Sink,
    /// The minutes that are not written yet, by their start.
    minutes: BTreeMap<u64, Minute>,
    /// The last sample of each host.
    samples: HashMap<SafeText, Moment>,
    /// The jobs that were on GPUs in the last sample of their host, by the name of the host.
    jobs: HashMap<SafeText, HashMap<JobKey, Job>>,
    /// Jobs and findings that wait for the next batch.
    ended_jobs: Vec<JobRow>,
    /// Ended jobs of Slurm, of which Slurm may still tell how they ended, until this time in seconds since 1970.
    awaited_ends: Vec<(u64, JobRow)>,
    findings: Vec<FindingRow>,
}

/// The known values of one minute.
#[derive(Default)]
struct Minute {
    gpus: HashMap<GpuName, GpuAccumulator>,
    hosts: BTreeMap<SafeText, HostMinute>,
}

#[derive(Default)]
struct HostMinute {
    /// Sums and numbers of the values in the order of [`HostRow`].
    values: [(f64, u32); 5],
    reachable_seconds: f64,
}

impl HostMinute {
    fn row(&self) -> HostRow {
        let mean = |index: usize| {
            let (sum, count) = self.values[index];
            (count > 0).then(|| (sum / f64::from(count)).round().max(0.0) as u64)
        };
        HostRow {
            cpu_permille: mean(0),
            memory_mib: mean(1),
            load_hundredths: mean(2),
            disk_kib_per_second: mean(3),
            network_kib_per_second: mean(4),
            reachable_seconds: (self.reachable_seconds.round() as u64).min(MINUTE),
        }
    }
}

/// A job on a host, with the use that is not written yet.
struct Job {
    row: JobRow,
    /// Whether the row has the name of the user and the command. The probe reads them after the first sample of a process.
    is_named: bool,
    /// The indexes of the GPUs that the row lists.
    gpu_indexes: Vec<u32>,
    held: f64,
    used: f64,
    joules: f64,
    /// GPU seconds that Slurm has allocated and no process used; `None` if Slurm does not tell.
    unused: Option<f64>,
}

impl Job {
    fn new(row: JobRow) -> Self {
        Self { row, is_named: false, gpu_indexes: Vec::new(), held: 0.0, used: 0.0, joules: 0.0, unused: None }
    }

    /// Lists the GPUs at these ascending positions in the row.
    fn set_gpus(&mut self, host: &Host, positions: impl Iterator<Item = usize> + Clone) {
        let indexes = positions.filter_map(|position| host.gpu_info(position).map(|info| info.index));
        if !indexes.clone().eq(self.gpu_indexes.iter().copied()) {
            self.gpu_indexes = indexes.collect();
            self.row.gpus = format_gpu_list(&self.gpu_indexes, GpuListStyle::Ranges);
        }
    }

    /// Takes the name of the user and the command from the first processes of which they are known.
    fn name(&mut self, processes: &[&Process]) {
        let named = processes.iter().find(|process| process.facts().is_some_and(|facts| facts.user.is_some()));
        if let Some(process) = named {
            self.row.user = process.info.who.clone();
        }
        let with_command = processes.iter().find(|process| process.facts().is_some_and(|facts| !facts.argv.is_empty()));
        if let Some(process) = with_command {
            self.row.command = command(process).clone();
        }
        self.is_named = named.is_some() && with_command.is_some();
    }

    /// Takes the whole units that are not written yet.
    fn take_row(&mut self) -> JobRow {
        let take = |value: &mut f64| {
            let whole = value.floor().max(0.0);
            *value -= whole;
            whole as u64
        };
        JobRow {
            held_seconds: take(&mut self.held),
            used_seconds: take(&mut self.used),
            energy_joules: take(&mut self.joules),
            unused_seconds: self.unused.as_mut().map(take),
            ..self.row.clone()
        }
    }
}

/// Where batches go.
enum Sink {
    /// To the thread that writes, without waiting.
    Thread(HistoryWriter),
    /// Into the file at once, for an import.
    File(Box<History>, ImportResult),
}

/// The result of an import: the number of minutes, or the first error.
#[derive(Clone, Default)]
pub(in crate::cli) struct ImportResult(Arc<Mutex<(usize, Option<HistoryError>)>>);

impl ImportResult {
    /// Returns the number of minutes that were written.
    ///
    /// # Errors
    /// A minute could not be written.
    pub(in crate::cli) fn result(&self) -> Result<usize, HistoryError> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        guard.1.take().map_or(Ok(guard.0), Err)
    }

    fn note(&self, written: Result<(), HistoryError>) {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match written {
            Ok(()) => guard.0 += 1,
            Err(error) => guard.1 = guard.1.take().or(Some(error)),
        }
    }
}

impl HistoryRecorder {
    /// Creates a recorder that hands its batches to a thread.
    pub(in crate::cli) fn new(writer: HistoryWriter) -> Self {
        Self::with_sink(Sink::Thread(writer))
    }

    /// Creates a recorder that writes at once.
    pub(in crate::cli) fn importing(mut history: History) -> (Self, ImportResult) {
        history.keep_existing_minutes();
        let result = ImportResult::default();
        (Self::with_sink(Sink::File(Box::new(history), result.clone())), result)
    }

    fn with_sink(sink: Sink) -> Self {
        Self {
            sink,
            minutes: BTreeMap::new(),
            samples: HashMap::new(),
            jobs: HashMap::new(),
            ended_jobs: Vec::new(),
            awaited_ends: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// Adds a sample of a host to the minutes that it stands for.
    fn sample(&mut self, state: &CollectorState, host: &Host, now: Moment) {
        let interval = host.interval().max(Duration::from_secs(1));
        let step = self.samples.insert(host.name().clone(), now).map_or(interval, |before| now.since(before));
        // After a gap the sample stands for one interval, and the gap stays unknown.
        let longest = (interval * MAX_INTERVALS).max(hiccup(&state.fleet));
        let span = if step > longest { interval } else { step };
        let states = state.engine.states(host.id);
        let gpus: Vec<(GpuName, GpuSample, Option<f64>)> = host
            .gpus()
            .enumerate()
            .filter(|(_, (info, _))| info.mig_parent_uuid.is_none())
            .map(|(position, (info, reading))| {
                let state = states.get(position).map_or(GpuState::Unknown, |(state, _)| *state);
                let is_allocated = host.slurm_allocated_gpus().is_some_and(|gpus| gpus.contains(&info.index));
                let sample = gpu_sample(reading, state, is_allocated);
                (gpu_name(host, info), sample, sample.power_watts)
            })
            .collect();
        for (start, seconds) in minutes_of(now, span) {
            let minute = self.minutes.entry(start).or_default();
            for (name, sample, _) in &gpus {
                match minute.gpus.get_mut(name) {
                    Some(gpu) => gpu.add(sample, seconds),
                    None => minute.gpus.entry(name.clone()).or_default().add(sample, seconds),
                }
            }
            add_host_sample(minute.hosts.entry(host.name().clone()).or_default(), host, seconds);
        }
        self.sample_jobs(host, states, span.as_secs_f64(), now);
    }

    /// Adds the use of GPUs by the jobs of a host.
    fn sample_jobs(&mut self, host: &Host, states: &[(GpuState, Option<Moment>)], seconds: f64, now: Moment) {
        let mut found: HashMap<&JobKey, (Vec<&Process>, Vec<usize>)> = HashMap::new();
        for process in host.processes() {
            let positions = process.gpu_positions().filter(|&position| process.computes_on(position));
            let (processes, held) = found.entry(&process.info.job).or_default();
            processes.push(process);
            held.extend(positions.map(|position| physical_position(host, position)));
        }
        found.retain(|_, (_, held)| {
            held.sort_unstable();
            held.dedup();
            !held.is_empty()
        });
        let mut holders: HashMap<usize, f64> = HashMap::new();
        for position in found.values().flat_map(|(_, held)| held) {
            *holders.entry(*position).or_default() += 1.0;
        }
        let unix = now.unix.as_secs();
        let jobs = self.jobs.entry(host.name().clone()).or_default();
        for (&key, (processes, held)) in &found {
            if !jobs.contains_key(key) {
                jobs.insert(key.clone(), Job::new(new_job(host, key, processes, unix)));
            }
            let Some(job) = jobs.get_mut(key) else { continue };
            if !job.is_named {
                job.name(processes);
            }
            job.set_gpus(host, held.iter().copied());
            let row = &mut job.row;
            row.last_seen = unix;
            let bytes: u64 =
                processes.iter().filter_map(|process| process.gpu_memory_bytes()).fold(0, u64::saturating_add);
            row.memory_max_mib = row.memory_max_mib.max((bytes > 0).then_some(bytes >> 20));
            for position in held {
                job.held += seconds;
                if states.get(*position).is_some_and(|(state, _)| *state == GpuState::InUse) {
                    job.used += seconds;
                }
                // GPUs that several jobs share divide their energy.
                let power = host.gpus().nth(*position).and_then(|(_, reading)| watts(reading));
                let share = holders.get(position).copied().unwrap_or(1.0);
                job.joules += power.unwrap_or(0.0) * seconds / share;
            }
        }
        let mut allocated: HashSet<JobKey> = HashSet::new();
        for slurm_job in host.slurm_jobs().unwrap_or_default() {
            let key = JobKey::Slurm { cluster: None, job: slurm_job.job.clone() };
            let held: BTreeSet<usize> = host
                .gpus()
                .enumerate()
                .filter(|(_, (info, _))| info.mig_parent_uuid.is_none() && slurm_job.gpus.contains(&info.index))
                .map(|(position, _)| position)
                .collect();
            if held.is_empty() {
                continue;
            }
            let in_use = found.get(&key).map(|(_, in_use)| in_use);
            // The list of jobs is up to ten minutes old: a GPU on which another job computes is not allocated to this one.
            let unused = held.iter().filter(|position| !holders.contains_key(position)).count();
            if unused == 0 && in_use.is_none() {
                continue;
            }
            let job = jobs.entry(key.clone());
            let job = job.or_insert_with(|| Job::new(allocated_job(host, &key, slurm_job, unix)));
            job.row.last_seen = unix;
            let all: BTreeSet<usize> = held.iter().chain(in_use.into_iter().flatten()).copied().collect();
            job.set_gpus(host, all.iter().copied());
            job.held += seconds * unused as f64;
            *job.unused.get_or_insert(0.0) += seconds * unused as f64;
            allocated.insert(key);
        }
        let has_rebooted = host.rebooted_at.is_some_and(|at| now.since(at) < Duration::from_secs(MINUTE));
        for (_, mut job) in jobs.extract_if(|key, _| !found.contains_key(key) && !allocated.contains(key)) {
            let how_ended = has_rebooted.then(|| "the host rebooted".to_owned());
            let how_ended = how_ended.or_else(|| how_slurm_job_ended(host, &job.row.key));
            let row = JobRow { ended: Some(unix), how_ended, ..job.take_row() };
            if row.how_ended.is_none() && slurm_job(&row.key).is_some() {
                // The use is counted once.
                let late = JobRow { held_seconds: 0, used_seconds: 0, energy_joules: 0, ..row.clone() };
                self.awaited_ends.push((unix + SLURM_END_SECONDS, JobRow { unused_seconds: None, ..late }));
            }
            self.ended_jobs.push(row);
        }
        let ended_jobs = &mut self.ended_jobs;
        self.awaited_ends.retain_mut(|(until, row)| {
            if row.host != *host.name() {
                return unix < *until;
            }
            // The job runs again.
            if jobs.values().any(|job| job.row.key == row.key) {
                return false;
            }
            row.how_ended = how_slurm_job_ended(host, &row.key);
            if row.how_ended.is_some() {
                ended_jobs.push(row.clone());
            }
            row.how_ended.is_none() && unix < *until
        });
    }

    fn take_transitions(&mut self, state: &CollectorState, transitions: &[Transition]) {
        for transition in transitions {
            let has_ended = match transition.to {
                FindingPhase::Firing => false,
                FindingPhase::Clear if transition.from != FindingPhase::Pending => true,
                _ => continue,
            };
            self.findings.push(FindingRow {
                fingerprint: transition.id.clone(),
                rule: transition.rule.word(),
                host: transition.host_name.clone(),
                severity: transition.severity.word(),
                user: state.engine.finding_of(transition).and_then(|finding| finding.user.clone()),
                at: transition.at.unix.as_secs(),
                has_ended,
                evidence: transition.sentence.clone(),
                notified: transition.notify,
            });
        }
    }

    /// Writes the minutes that are over.
    fn write_complete(&mut self, fleet: &Fleet, now: Moment) {
        let intervals = fleet.hosts().iter().map(Host::interval);
        let grace = intervals.max().unwrap_or_default() + GRACE;
        let current = now.unix.saturating_sub(grace).as_secs() / MINUTE * MINUTE;
        // A minute without a sample still says that its hosts were watched.
        self.minutes.entry(now.unix.as_secs() / MINUTE * MINUTE).or_default();
        while let Some((start, _)) = self.minutes.first_key_value() {
            let is_ahead = *start > now.unix.as_secs();
            if *start >= current && !is_ahead && self.minutes.len() <= MAX_OPEN_MINUTES {
                break;
            }
            self.write_first(fleet);
        }
        if let Sink::Thread(writer) = &mut self.sink {
            while let Some(message) = writer.message() {
                warn(&message);
            }
        }
    }

    fn write_first(&mut self, fleet: &Fleet) {
        let Some((start, mut minute)) = self.minutes.pop_first() else { return };
        for host in fleet.hosts() {
            minute.hosts.entry(host.name().clone()).or_default();
        }
        let mut jobs = std::mem::take(&mut self.ended_jobs);
        jobs.extend(self.jobs.values_mut().flat_map(HashMap::values_mut).map(Job::take_row));
        let batch = Batch {
            start,
            gpus: minute.gpus.into_iter().map(|(name, gpu)| (name, gpu.row(MINUTE))).collect(),
            hosts: minute.hosts.into_iter().map(|(name, host)| (name, host.row())).collect(),
            jobs,
            findings: std::mem::take(&mut self.findings),
        };
        match &mut self.sink {
            Sink::Thread(writer) => writer.write(batch),
            Sink::File(history, result) => result.note(history.write(&batch)),
        }
    }

    /// Writes everything and waits for the disk. Blocking.
    fn write_all(mut self, fleet: &Fleet) -> Vec<String> {
        let last_minute = self.minutes.last_key_value().map(|(start, _)| *start);
        while !self.minutes.is_empty() {
            self.write_first(fleet);
        }
        match self.sink {
            Sink::Thread(writer) => writer.finish(),
            Sink::File(mut history, result) => {
                if let Some(Err(error)) = last_minute.map(|start| history.finish(start)) {
                    result.note(Err(error));
                }
                Vec::new()
            }
        }
    }
}

impl Observer for HistoryRecorder {
    fn applied(&mut self, state: &CollectorState, applied: &Applied<'_>) {
        self.take_transitions(state, applied.transitions);
        let is_data = matches!(applied.change, HostChange::Data | HostChange::FirstData);
        let Some(host) = state.fleet.host(applied.host).filter(|_| is_data) else { return };
        // The hello and the inventory are data as well.
        let latest = (host.interval() * 2).max(hiccup(&state.fleet));
        if host.snapshots_seen > 0 && host.received_at.is_some_and(|at| applied.now.since(at) < latest) {
            self.sample(state, host, applied.now);
        }
    }

    fn tick(&mut self, state: &CollectorState, transitions: &[Transition], now: Moment) {
        self.take_transitions(state, transitions);
        self.write_complete(&state.fleet, now);
    }

    fn hosts_changed(&mut self, state: &CollectorState, _: Moment) {
        let names: BTreeSet<&SafeText> = state.fleet.hosts().iter().map(Host::name).collect();
        self.samples.retain(|name, _| names.contains(name));
        self.jobs.retain(|name, _| names.contains(name));
    }

    fn finish(self: Box<Self>, state: &CollectorState, _now: Moment) -> EndFuture {
        if let Sink::File(..) = self.sink {
            self.write_all(&state.fleet);
            return Box::pin(std::future::ready(Vec::new()));
        }
        let hosts = state.fleet.clone();
        Box::pin(async move {
            let written = tokio::task::spawn_blocking(move || self.write_all(&hosts)).await;
            written.unwrap_or_else(|error| vec![format!("the history was not written to its end: {error}")])
        })
    }
}

/// Divides the time before `now` into minutes: their starts and the seconds in them.
fn minutes_of(now: Moment, span: Duration) -> Vec<(u64, f64)> {
    let end = now.unix.as_secs_f64();
    let mut from = (end - span.as_secs_f64()).max(0.0);
    let mut parts = Vec::new();
    while from < end {
        let start = (from / MINUTE as f64).floor() as u64 * MINUTE;
        let until = ((start + MINUTE) as f64).min(end);
        parts.push((start, until - from));
        from = until;
    }
    parts
}

fn gpu_name(host: &Host, info: &GpuInfo) -> GpuName {
    GpuName {
        host: host.name().clone(),
        uuid: info.uuid.clone().unwrap_or_else(|| SafeText::new(&format!("index-{}", info.index))),
        index: info.index,
        model: info.name.clone(),
        memory_mib: info.memory_total_bytes.map(|bytes| bytes >> 20),
    }
}

/// The mean power since the last sample, else the power of the moment.
fn watts(reading: &GpuReading) -> Option<f64> {
    reading.power_mean_watts.or(reading.power_watts).map(f64::from)
}

/// Slurm allocates GPUs that nobody may use; a reservation of hosts.toml alone holds none.
fn gpu_sample(reading: &GpuReading, state: GpuState, is_allocated: bool) -> GpuSample {
    let state = match state {
        GpuState::InUse => HistoryState::Busy,
        GpuState::Waiting | GpuState::Idle => HistoryState::IdleHeld,
        GpuState::Unused if is_allocated => HistoryState::IdleHeld,
        GpuState::Free | GpuState::Unused => HistoryState::Free,
        GpuState::Fault | GpuState::Hung => HistoryState::Faulty,
        GpuState::Unknown => HistoryState::Unknown,
    };
    GpuSample {
        state,
        utilization_percent: reading.utilization_percent.map(f64::from),
        memory_bytes: reading.memory_used_bytes,
        power_watts: watts(reading),
        temperature_celsius: reading.temperature_celsius.map(i64::from),
        sm_activity_percent: reading.sm_activity_percent.map(f64::from),
        is_throttled: reading
            .clocks_event_reasons
            .map(ClocksEventReasons)
            .is_some_and(|reasons| reasons.is_thermal() || reasons.is_hardware_slowdown()),
    }
}

fn add_host_sample(minute: &mut HostMinute, host: &Host, seconds: f64) {
    minute.reachable_seconds += seconds;
    let Some(reading) = host.snapshot.as_ref().map(|snapshot| &snapshot.host) else { return };
    let sum = |a: Option<f64>, b: Option<f64>| Some((a? + b?) / 1024.0);
    let values = [
        reading.cpu_percent.map(|percent| f64::from(percent) * 10.0),
        reading.memory_used_bytes().map(|bytes| (bytes >> 20) as f64),
        reading.load_1.map(|load| f64::from(load) * 100.0),
        sum(reading.disk_read_bytes_per_second, reading.disk_write_bytes_per_second),
        sum(reading.network_receive_bytes_per_second, reading.network_transmit_bytes_per_second),
    ];
    for ((total, count), value) in minute.values.iter_mut().zip(values) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            *total += value;
            *count += 1;
        }
    }
}

/// The position of the GPU: its own, or that of the parent for a MIG instance.
fn physical_position(host: &Host, position: usize) -> usize {
    let parent = host.gpu_info(position).and_then(|info| info.mig_parent_uuid.as_ref());
    let find = |parent: &SafeText| host.gpus().position(|(info, _)| info.uuid.as_ref() == Some(parent));
    parent.and_then(find).unwrap_or(position)
}

/// Returns the id of a Slurm job of its key: `slurm:3385` or `slurm:CLUSTER/3385`.
fn slurm_job(key: &SafeText) -> Option<&str> {
    key.strip_prefix("slurm:")?.rsplit('/').next()
}

/// Returns how Slurm says that a job ended.
fn how_slurm_job_ended(host: &Host, key: &SafeText) -> Option<String> {
    let job = slurm_job(key)?;
    host.slurm_ends().find(|end| *end.job == *job).map(slurm_end_text)
}

/// A key that names one job of a host for ever: a pid alone is used again.
fn job_key(job: &JobKey) -> SafeText {
    match job {
        JobKey::Launcher(process) => {
            let boot = process.boot_id.as_ref().map_or("-", SafeText::as_str);
            let ticks = process.start_ticks.map_or_else(|| "-".to_owned(), |ticks| ticks.to_string());
            SafeText::new(&format!("launcher:{}:{ticks}:{boot}", process.pid))
        }
        JobKey::Session { boot_id, session } => {
            SafeText::new(&format!("session:{session}:{}", boot_id.as_ref().map_or("-", SafeText::as_str)))
        }
        JobKey::Slurm { .. } | JobKey::Container { .. } => SafeText::from(job.to_string()),
    }
}

/// A job of Slurm that has no process on a GPU yet.
fn allocated_job(host: &Host, key: &JobKey, slurm_job: &SlurmJob, unix: u64) -> JobRow {
    JobRow {
        label: SafeText::from(key.to_string()),
        user: slurm_job.user.clone().unwrap_or_default(),
        start: unix,
        ..new_job(host, key, &[], unix)
    }
}

/// The command of the launcher of a process, or its own.
fn command(process: &Process) -> &SafeText {
    process.info.launcher.as_ref().map_or(&process.info.command, |launcher| &launcher.command)
}

fn new_job(host: &Host, key: &JobKey, processes: &[&Process], unix: u64) -> JobRow {
    let info = processes.first().map(|process| &process.info);
    let oldest = processes.iter().filter_map(|process| process.reading.age_seconds).fold(0.0, f64::max);
    JobRow {
        host: host.name().clone(),
        key: job_key(key),
        label: info.map(|info| SafeText::from(info.job.to_string())).unwrap_or_default(),
        user: info.map(|info| info.who.clone()).unwrap_or_default(),
        command: processes.first().map(|process| command(process).clone()).unwrap_or_default(),
        gpus: String::new(),
        start: unix.saturating_sub(oldest.clamp(0.0, unix as f64) as u64),
        last_seen: unix,
        ended: None,
        how_ended: None,
        memory_max_mib: None,
        held_seconds: 0,
        used_seconds: 0,
        energy_joules: 0,
        unused_seconds: None,
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
