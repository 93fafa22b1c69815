//! The rows of one host in the combined process list: one per job and one per process.

use super::process::{Launcher, sum};
use super::{
    ENDED_ROW_RETENTION, EndedProcess, GpuState, Host, HostId, JobKey, Moment, Process, ProcessKey, ProcessTrouble,
};
use crate::wire::{ProcessState, SafeText};
use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The identity of a row across snapshots, for the selection and for tags.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// The host.
    pub host: HostId,
    /// The process; for a job, its launcher or its first worker.
    pub process: ProcessKey,
    /// Whether the row stands for a whole job.
    pub is_job: bool,
    /// The group, if the row is a group row.
    pub group: Option<GroupKey>,
}

/// The kind of a group row.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKey {
    /// The parts of one job on several hosts.
    DistributedJob,
    /// The jobs of one user (see [`Row::who`]).
    User(SafeText),
    /// The jobs of one host.
    Host,
}

/// The additional values of a group row.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSummary {
    /// Number of jobs; each part of a distributed job counts.
    pub jobs: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Number of GPUs; a shared GPU counts once.
    pub gpus: u32,
    /// Whether the parts are only likely to be one job: equal user and command, similar start time.
    pub is_likely: bool,
    /// The process with the lowest SM utilization, if it differs from the highest.
    pub least_busy: Option<BusyRank>,
    /// The process with the highest SM utilization.
    pub most_busy: Option<BusyRank>,
}

/// A process of a job with its SM utilization.
#[derive(Debug, Clone, PartialEq)]
pub struct BusyRank {
    /// The name of its host.
    pub host_name: SafeText,
    /// The index of its first GPU.
    pub gpu_index: Option<u32>,
    /// The SM utilization in percent.
    pub sm_percent: u8,
}

/// The figures that the list sorts by. They follow the readings only once these differ by more than the usual noise, so
/// that rows with nearly equal readings keep their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SortFigures {
    /// GPU memory in bytes.
    pub gpu_memory_bytes: Option<u64>,
    /// GPU memory in percent.
    pub gpu_memory_percent: Option<f32>,
    /// The lowest and the highest SM utilization.
    pub sm_percent: Option<(u8, u8)>,
    /// CPU utilization.
    pub cpu_percent: Option<f32>,
    /// Resident memory in bytes.
    pub rss_bytes: Option<u64>,
}

/// A change of a percentage by at most this many points does not change the order of the list.
const SORT_TOLERANCE_POINTS: f64 = 3.0;
/// A change of any figure by at most this share of its value does not change the order of the list.
const SORT_TOLERANCE_SHARE: f64 = 0.05;
/// A change of memory by at most this many bytes does not change the order of the list.
const SORT_TOLERANCE_BYTES: f64 = (128 << 20) as f64;

impl SortFigures {
    /// The figures of a row that was not listed before.
    fn of(row: &Row) -> Self {
        Self {
            gpu_memory_bytes: row.gpu_memory_bytes,
            gpu_memory_percent: row.gpu_memory_percent,
            sm_percent: row.sm_percent,
            cpu_percent: row.cpu_percent,
            rss_bytes: row.rss_bytes,
        }
    }

    /// Replaces each figure by the one of `before`, unless they differ by more than the tolerance.
    fn hold(&mut self, before: &Self) {
        fn hold<T: Copy>(now: &mut Option<T>, before: Option<T>, least: f64, value: impl Fn(T) -> f64) {
            if let (Some(new), Some(old)) = (*now, before) {
                let (new, known) = (value(new), value(old));
                if (new - known).abs() <= (known.abs() * SORT_TOLERANCE_SHARE).max(least) {
                    *now = before;
                }
            }
        }
        hold(&mut self.gpu_memory_bytes, before.gpu_memory_bytes, SORT_TOLERANCE_BYTES, |bytes| bytes as f64);
        hold(&mut self.rss_bytes, before.rss_bytes, SORT_TOLERANCE_BYTES, |bytes| bytes as f64);
        hold(&mut self.gpu_memory_percent, before.gpu_memory_percent, SORT_TOLERANCE_POINTS, f64::from);
        hold(&mut self.cpu_percent, before.cpu_percent, SORT_TOLERANCE_POINTS, f64::from);
        // The list is sorted by the highest share first.
        let is_near = |one: u8, other: u8| f64::from(one.abs_diff(other)) <= SORT_TOLERANCE_POINTS;
        if let (Some(new), Some(old)) = (self.sm_percent, before.sm_percent)
            && is_near(new.0, old.0)
            && is_near(new.1, old.1)
        {
            self.sm_percent = before.sm_percent;
        }
    }
}

/// Lets the figures that these rows are sorted by follow those of the rows before.
pub(super) fn hold_sort_figures(jobs: &mut [JobRows], before: &[JobRows]) {
    fn hold(row: &mut Arc<Row>, before: &Arc<Row>) {
        if let Some(row) = Arc::get_mut(row) {
            row.sort_figures.hold(&before.sort_figures);
        }
    }
    // The order rarely changes between two snapshots.
    fn find<T>(all: &[T], index: usize, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        all.get(index).filter(|one| is_it(one)).or_else(|| all.iter().find(|one| is_it(one)))
    }
    for (index, job) in jobs.iter_mut().enumerate() {
        let Some(known) = find(before, index, |known| known.row.key == job.row.key) else { continue };
        hold(&mut job.row, &known.row);
        if let (ProcessRows::Multiple(rows), ProcessRows::Multiple(known)) = (&mut job.members, &known.members) {
            for (index, row) in rows.iter_mut().enumerate() {
                if let Some(known) = find(known, index, |known| known.key == row.key) {
                    hold(row, known);
                }
            }
        }
    }
}

/// A row of the combined list. Unknown values are `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The identity.
    pub key: RowKey,
    /// The job of the row.
    pub job: JobKey,
    /// The name of the host.
    pub host_name: SafeText,
    /// [`Host::place`].
    pub host_place: u32,
    /// The indexes of the GPUs, ascending.
    pub gpu_indexes: Vec<u32>,
    /// The pid; for a job, that of its launcher if it is known.
    pub pid: Option<u32>,
    /// The user; for root or an account without a name, the Slurm job, pod or container.
    pub who: SafeText,
    /// Memory on all GPUs, in bytes.
    pub gpu_memory_bytes: Option<u64>,
    /// Memory as a percentage of the memory of these GPUs.
    pub gpu_memory_percent: Option<f32>,
    /// The lowest and the highest SM utilization over the GPUs, in percent.
    pub sm_percent: Option<(u8, u8)>,
    /// CPU utilization of all processes in percent; 100 is one CPU.
    pub cpu_percent: Option<f32>,
    /// Resident memory of all processes, in bytes.
    pub rss_bytes: Option<u64>,
    /// The scheduler state; for a job, that of its first process or of the process with the worst trouble.
    pub process_state: Option<ProcessState>,
    /// The age of the oldest process in seconds.
    pub age_seconds: Option<f64>,
    /// The worst state of the GPUs, and its start if it is known.
    pub state: Option<(GpuState, Option<Moment>)>,
    /// The trouble of the process, or the worst trouble of the processes.
    pub trouble: Option<ProcessTrouble>,
    /// When the trouble was first seen.
    pub trouble_since: Option<Moment>,
    /// The command line of the process or of the launcher.
    pub command: SafeText,
    /// Number of processes.
    pub workers: u32,
    /// Whether a process runs as the login user.
    pub is_mine: bool,
    /// Whether readings of the host or of a GPU are not current.
    pub is_stale: bool,
    /// When the process or job ended. The row remains for [`ENDED_ROW_RETENTION`].
    pub ended_at: Option<Moment>,
    /// Set for a group row.
    pub group_summary: Option<Box<GroupSummary>>,
    /// The figures that the row is sorted by.
    pub sort_figures: SortFigures,
}

impl Row {
    /// The urgency of a warning that a job is stuck: after faulty GPUs and before the troubles of single processes.
    pub const STUCK_WARNING_RANK: u8 = 2;

    /// The urgency of the row, lowest first; `None` if nothing is wrong. A hang has the urgency of its finding, which
    /// `diagnosis` knows.
    pub fn trouble_rank(&self) -> Option<u8> {
        let fault = matches!(self.state, Some((GpuState::Fault, _))).then_some(1);
        fault.or_else(|| self.trouble.and_then(ProcessTrouble::rank))
    }

    /// Combines the figures of `rows`: sums, the range of SM shares, the oldest age, the worst state and trouble. All
    /// other fields are those of `first`.
    pub(super) fn combined(first: &Self, rows: &[&Self]) -> Self {
        // A hidden process is no fault: it counts only if nothing else is wrong.
        let figures = || rows.iter().map(|row| &row.sort_figures);
        let sort_figures = SortFigures {
            gpu_memory_bytes: sum(figures().map(|figures| figures.gpu_memory_bytes)),
            gpu_memory_percent: None,
            sm_percent: figures().filter_map(|one| one.sm_percent).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
            cpu_percent: sum(figures().map(|figures| figures.cpu_percent)),
            rss_bytes: sum(figures().map(|figures| figures.rss_bytes)),
        };
        let urgency = |row: &&&Self| row.trouble.and_then(ProcessTrouble::rank).unwrap_or(u8::MAX);
        let worst = rows.iter().filter(|row| row.trouble.is_some()).min_by_key(urgency);
        Self {
            gpu_memory_bytes: sum(rows.iter().map(|row| row.gpu_memory_bytes)),
            sm_percent: rows.iter().filter_map(|row| row.sm_percent).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
            cpu_percent: sum(rows.iter().map(|row| row.cpu_percent)),
            rss_bytes: sum(rows.iter().map(|row| row.rss_bytes)),
            age_seconds: rows.iter().filter_map(|row| row.age_seconds).reduce(f64::max),
            state: rows.iter().filter_map(|row| row.state).min(),
            process_state: worst.map_or(first.process_state, |row| row.process_state),
            trouble: worst.and_then(|row| row.trouble),
            trouble_since: worst.and_then(|row| row.trouble_since),
            workers: rows.iter().map(|row| row.workers).sum(),
            is_mine: rows.iter().any(|row| row.is_mine),
            is_stale: rows.iter().any(|row| row.is_stale),
            sort_figures,
            ..first.clone()
        }
    }
}

/// One job on one host with the rows of its processes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRows {
    /// The job's row.
    pub row: Arc<Row>,
    members: ProcessRows,
}

/// The rows of the processes of a job.
#[derive(Debug, Clone, PartialEq)]
enum ProcessRows {
    /// The only process of a job has the values of the job's row, so its row is built on demand: most jobs are of this
    /// kind, and building rows is most of the work after an update.
    Single(ProcessKey),
    /// By pid, ended processes last.
    Multiple(Vec<Arc<Row>>),
}

impl JobRows {
    /// Whether the job has more than one process.
    pub fn is_expandable(&self) -> bool {
        self.process_count() > 1
    }

    /// Number of processes, including ended ones.
    pub fn process_count(&self) -> usize {
        match &self.members {
            ProcessRows::Single(_) => 1,
            ProcessRows::Multiple(rows) => rows.len(),
        }
    }

    /// The rows of the processes by pid, ended processes last.
    pub fn processes(&self) -> Cow<'_, [Arc<Row>]> {
        match &self.members {
            ProcessRows::Single(process) => {
                let key = RowKey { process: process.clone(), is_job: false, ..self.row.key.clone() };
                Cow::Owned(vec![Arc::new(Row { key, ..Row::clone(&self.row) })])
            }
            ProcessRows::Multiple(rows) => Cow::Borrowed(rows),
        }
    }

    /// The rows of the processes of a job with several. The only process of a job has the values of the job's row.
    pub fn worker_rows(&self) -> impl Iterator<Item = &Row> {
        let rows = match &self.members {
            ProcessRows::Single(_) => &[][..],
            ProcessRows::Multiple(rows) => rows.as_slice(),
        };
        rows.iter().map(|row| &**row)
    }

    /// The identities of the processes, in the order of [`JobRows::processes`].
    pub fn process_keys(&self) -> impl Iterator<Item = &ProcessKey> {
        let (process, several) = match &self.members {
            ProcessRows::Single(key) => (Some(key), &[][..]),
            ProcessRows::Multiple(rows) => (None, rows.as_slice()),
        };
        process.into_iter().chain(several.iter().map(|row| &row.key.process))
    }
}

/// Builds the rows of one host, jobs in the order of their first process. `states` are the GPU states in inventory
/// order.
pub fn host_rows(host: &Host, states: &[(GpuState, Option<Moment>)], now: Moment) -> Vec<JobRows> {
    let context = RowBuilder { host, states, now, is_stale: !host.is_fresh(now) };
    let count = host.processes().len();
    let mut jobs: Vec<Members> = Vec::with_capacity(count);
    let mut job_indexes: HashMap<&JobKey, usize> = HashMap::with_capacity(count);
    let live = host.processes().map(|process| (process, None));
    let ended = host.ended().filter(|ended| now.since(ended.ended_at) < ENDED_ROW_RETENTION);
    for member in live.chain(ended.map(|EndedProcess { process, ended_at }| (process, Some(*ended_at)))) {
        match job_indexes.entry(&member.0.info.job) {
            Entry::Occupied(entry) => jobs[*entry.get()].others.push(member),
            Entry::Vacant(entry) => {
                entry.insert(jobs.len());
                jobs.push(Members { first: member, others: Vec::new() });
            }
        }
    }
    jobs.iter().filter_map(|members| context.job(members)).collect()
}

/// A process and when it ended.
type Member<'a> = (&'a Process, Option<Moment>);

/// The processes of one job, ended processes last. Most jobs have one.
struct Members<'a> {
    first: Member<'a>,
    others: Vec<Member<'a>>,
}

struct RowBuilder<'a> {
    host: &'a Host,
    states: &'a [(GpuState, Option<Moment>)],
    now: Moment,
    is_stale: bool,
}

impl RowBuilder<'_> {
    fn job(&self, members: &Members) -> Option<JobRows> {
        match (members.first, members.others.as_slice()) {
            ((process, ended_at), []) => Some(self.single_process_job(process, ended_at)),
            (first, others) => {
                let members: Vec<Member> = [&[first], others].concat();
                self.multi_process_job(&members)
            }
        }
    }

    fn single_process_job(&self, process: &Process, ended_at: Option<Moment>) -> JobRows {
        let mut row = self.process(process, ended_at);
        row.key.is_job = true;
        // The command of a single process tells more than its launcher's, for example the kernel of a notebook.
        let key = std::mem::replace(&mut row.key.process, leader(process, &[process]).key);
        JobRows { row: Arc::new(row), members: ProcessRows::Single(key) }
    }

    fn multi_process_job(&self, members: &[Member]) -> Option<JobRows> {
        let rows = members.iter().map(|(process, ended_at)| Arc::new(self.process(process, *ended_at)));
        let rows: Vec<Arc<Row>> = rows.collect();
        // Ended processes count only if all processes of the job have ended.
        let live = members.iter().filter(|(_, ended_at)| ended_at.is_none()).count();
        let counted = if live == 0 { members.len() } else { live };
        let counted_rows: Vec<&Row> = rows.iter().take(counted).map(|row| &**row).collect();
        let counted: Vec<&Process> = members.iter().take(counted).map(|(process, _)| *process).collect();
        let first = counted.iter().min_by_key(|process| (process.key.start_ticks, process.key.pid))?;
        let mut row = Row::combined(rows.first()?, &counted_rows);
        row.gpu_indexes = self.gpu_indexes(&counted);
        row.gpu_memory_percent = self.memory_percent(&counted);
        row.sort_figures.gpu_memory_percent = row.gpu_memory_percent;
        let leader = leader(first, &counted);
        row.pid = Some(leader.key.pid).filter(|pid| *pid != 0);
        row.command = leader.command;
        row.key = RowKey { host: self.host.id, process: leader.key, is_job: true, group: None };
        row.ended_at = if live == 0 { members.iter().filter_map(|(_, ended_at)| *ended_at).max() } else { None };
        Some(JobRows { row: Arc::new(row), members: ProcessRows::Multiple(rows) })
    }

    fn process(&self, process: &Process, ended_at: Option<Moment>) -> Row {
        let trouble = if ended_at.is_some() { None } else { process.trouble(self.now) };
        let mut row = Row {
            key: RowKey { host: self.host.id, process: process.key.clone(), is_job: false, group: None },
            job: process.info.job.clone(),
            host_place: self.host.place,
            host_name: self.host.name().clone(),
            gpu_indexes: self.gpu_indexes(&[process]),
            pid: Some(process.key.pid).filter(|pid| *pid != 0),
            who: process.info.who.clone(),
            gpu_memory_bytes: process.gpu_memory_bytes(),
            gpu_memory_percent: self.memory_percent(&[process]),
            sm_percent: process.sm_percent(),
            cpu_percent: process.reading.cpu_percent,
            rss_bytes: process.reading.rss_bytes,
            process_state: process.reading.state,
            age_seconds: process.reading.age_seconds,
            state: if ended_at.is_some() { None } else { self.worst_state(&[process]) },
            trouble_since: trouble.map(|_| process.state_since),
            trouble,
            command: process.info.command.clone(),
            workers: 1,
            is_mine: self.host.belongs_to_login_user(process),
            is_stale: self.is_stale || process.is_stale,
            ended_at,
            group_summary: None,
            sort_figures: SortFigures::default(),
        };
        row.sort_figures = SortFigures::of(&row);
        row
    }

    fn gpu_indexes(&self, processes: &[&Process]) -> Vec<u32> {
        let mut indexes: Vec<u32> = processes
            .iter()
            .flat_map(|process| process.gpu_positions())
            .filter_map(|position| self.host.gpu_info(position).map(|gpu| gpu.index))
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes
    }

    /// Memory in use as a percentage of the memory of all GPUs of the processes.
    fn memory_percent(&self, processes: &[&Process]) -> Option<f32> {
        let held = sum(processes.iter().map(|process| process.gpu_memory_bytes()))?;
        let total = match processes {
            [one] => self.memory_total_bytes(one.gpu_positions()),
            several => {
                let positions: BTreeSet<usize> = several.iter().flat_map(|process| process.gpu_positions()).collect();
                self.memory_total_bytes(positions.into_iter())
            }
        }?;
        (total > 0).then(|| (held as f64 / total as f64 * 100.0) as f32)
    }

    fn memory_total_bytes(&self, mut positions: impl Iterator<Item = usize>) -> Option<u64> {
        let of = |position| self.host.gpu_info(position).and_then(|info| info.memory_total_bytes);
        positions.try_fold(0u64, |total, position| Some(total.saturating_add(of(position)?)))
    }

    fn worst_state(&self, processes: &[&Process]) -> Option<(GpuState, Option<Moment>)> {
        let positions = processes.iter().flat_map(|process| process.gpu_positions());
        positions.filter_map(|position| self.states.get(position)).min().copied()
    }
}

/// The process that represents a job.
struct Leader {
    key: ProcessKey,
    command: SafeText,
}

impl Leader {
    fn of(process: &Process) -> Self {
        Self { key: process.key.clone(), command: process.info.command.clone() }
    }
}

/// The launcher of all processes, else the first process.
fn leader(first: &Process, processes: &[&Process]) -> Leader {
    match common_launcher(processes) {
        Some(launcher) if launcher.key.pid != first.key.pid => {
            Leader { key: launcher.key.clone(), command: launcher.command.clone() }
        }
        _ => Leader::of(first),
    }
}

/// The launcher that is the parent of every process, or one of them.
fn common_launcher<'a>(processes: &[&'a Process]) -> Option<&'a Launcher> {
    let found = processes.iter().find_map(|process| process.info.launcher.as_ref())?;
    let is_below = |process: &&Process| match &process.info.launcher {
        Some(other) => other.key == found.key,
        None => process.key.pid == found.key.pid,
    };
    processes.iter().all(is_below).then_some(found)
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
