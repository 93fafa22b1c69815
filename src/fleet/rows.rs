//! The rows of one host in the combined process list.

use super::process::{Launcher, sum};
use super::{
    ENDED_ROW_RETENTION, EndedProcess, GpuState, Host, HostId, JobKey, Moment, Process, ProcessKey, ProcessTrouble,
};
use crate::wire::{ProcessState, SafeText};
use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What stays the same about a row from one snapshot to the next: the selection and the tags hold on to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// The host.
    pub host: HostId,
    /// The process; for a job, its launcher or its first worker.
    pub process: ProcessKey,
    /// Whether the row stands for a whole job.
    pub is_job: bool,
    /// What the row heads, where it stands above the jobs of a group.
    pub group: Option<GroupKey>,
}

/// What a row heads that stands above several jobs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKey {
    /// The parts of one job on several hosts.
    DistributedJob,
    /// The jobs of one user, or of whatever stands for one.
    User(SafeText),
    /// The jobs of one host.
    Host,
}

/// What a row says beyond a job's that stands above several jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSummary {
    /// Jobs below it; the parts of one job count one each.
    pub jobs: u32,
    /// Hosts they are on.
    pub hosts: u32,
    /// GPUs they are on; a shared one counts once.
    pub gpus: u32,
    /// It is a guess that its parts are one job: the same user and command, about the same start.
    pub is_likely: bool,
    /// The process with the least SM share, where they differ.
    pub least_busy: Option<BusyRank>,
    /// The process with the most.
    pub most_busy: Option<BusyRank>,
}

/// A process of a job, by how busy it is.
#[derive(Debug, Clone, PartialEq)]
pub struct BusyRank {
    /// Its host.
    pub host_name: SafeText,
    /// Its first GPU.
    pub gpu_index: Option<u32>,
    /// Its SM share.
    pub sm_percent: u8,
}

/// What a row of the combined list says: a job on a host, or a process. Every figure that is not known is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its identity.
    pub key: RowKey,
    /// What it is grouped by.
    pub job: JobKey,
    /// The host's name.
    pub host_name: SafeText,
    /// Indexes of the GPUs it uses, ascending.
    pub gpu_indexes: Vec<u32>,
    /// The process shown: a job's launcher where one is known.
    pub pid: Option<u32>,
    /// Who it belongs to: the user; for root or a shared account the Slurm job, pod or container.
    pub who: SafeText,
    /// Memory on all its GPUs together.
    pub gpu_memory_bytes: Option<u64>,
    /// That memory as a share of those GPUs' memory.
    pub gpu_memory_percent: Option<f32>,
    /// Least and most SM share over its GPUs.
    pub sm_percent: Option<(u8, u8)>,
    /// CPU share of all its processes, 100 = one CPU.
    pub cpu_percent: Option<f32>,
    /// Resident memory of all its processes.
    pub rss_bytes: Option<u64>,
    /// State of the leader.
    pub process_state: Option<ProcessState>,
    /// Age in seconds of the oldest process.
    pub age_seconds: Option<f64>,
    /// The worst state of its GPUs, and since when, where that is known.
    pub state: Option<(GpuState, Option<Moment>)>,
    /// The condition of the process itself, or the worst one of its processes.
    pub trouble: Option<ProcessTrouble>,
    /// Since when that has been seen.
    pub trouble_since: Option<Moment>,
    /// Command line of the process, or of the launcher.
    pub command: SafeText,
    /// How many processes it stands for.
    pub workers: u32,
    /// Runs as the user that logged in there.
    pub is_mine: bool,
    /// The readings are not fresh: the host's, or those of the GPUs it uses.
    pub is_stale: bool,
    /// When it ended, for a row that is kept dim for ten minutes.
    pub ended_at: Option<Moment>,
    /// Set where it stands above several jobs.
    pub group_summary: Option<Box<GroupSummary>>,
}

impl Row {
    /// How much it needs a person by what it says itself, the least first; `None` where nothing is wrong.
    pub fn trouble_rank(&self) -> Option<u8> {
        let state = match self.state {
            Some((GpuState::Hung, _)) => Some(0),
            Some((GpuState::Fault, _)) => Some(1),
            _ => None,
        };
        state.or(self.trouble.and_then(ProcessTrouble::rank))
    }
}

/// One job on one host: its own row, and those of its processes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRows {
    /// The job's row.
    pub row: Arc<Row>,
    members: ProcessRows,
}

/// The rows of a job's processes.
#[derive(Debug, Clone, PartialEq)]
enum ProcessRows {
    /// A process that is the whole job says the same as the job: its row is made when somebody asks. Most jobs are of
    /// this kind, and rows are what a host's update writes most of.
    Single(ProcessKey),
    /// By pid, those that have ended last.
    Multiple(Vec<Arc<Row>>),
}

impl JobRows {
    /// Whether there is more below it than itself.
    pub fn is_expandable(&self) -> bool {
        self.process_count() > 1
    }

    /// How many processes it has, with those that have ended.
    pub fn process_count(&self) -> usize {
        match &self.members {
            ProcessRows::Single(_) => 1,
            ProcessRows::Multiple(rows) => rows.len(),
        }
    }

    /// The rows of its processes by pid, those that have ended last.
    pub fn processes(&self) -> Cow<'_, [Arc<Row>]> {
        match &self.members {
            ProcessRows::Single(process) => {
                let key = RowKey { process: process.clone(), is_job: false, ..self.row.key.clone() };
                Cow::Owned(vec![Arc::new(Row { key, ..Row::clone(&self.row) })])
            }
            ProcessRows::Multiple(rows) => Cow::Borrowed(rows),
        }
    }

    /// What its processes are known by, in the same order.
    pub fn process_keys(&self) -> impl Iterator<Item = &ProcessKey> {
        let (alone, several) = match &self.members {
            ProcessRows::Single(key) => (Some(key), &[][..]),
            ProcessRows::Multiple(rows) => (None, rows.as_slice()),
        };
        alone.into_iter().chain(several.iter().map(|row| &row.key.process))
    }
}

/// The rows of one host, jobs in the order of their first process. `states` are its GPUs' states in inventory order.
pub fn host_rows(host: &Host, states: &[(GpuState, Option<Moment>)], now: Moment) -> Vec<JobRows> {
    let context = RowBuilder { host, states, now, is_stale: !host.is_fresh(now) };
    let count = host.processes().len();
    let mut jobs: Vec<Members> = Vec::with_capacity(count);
    let mut places: HashMap<&JobKey, usize> = HashMap::with_capacity(count);
    let live = host.processes().map(|process| (process, None));
    let ended = host.ended().filter(|ended| now.since(ended.ended_at) < ENDED_ROW_RETENTION);
    for member in live.chain(ended.map(|EndedProcess { process, ended_at }| (process, Some(*ended_at)))) {
        match places.entry(&member.0.info.job) {
            Entry::Occupied(place) => jobs[*place.get()].others.push(member),
            Entry::Vacant(place) => {
                place.insert(jobs.len());
                jobs.push(Members { first: member, others: Vec::new() });
            }
        }
    }
    jobs.iter().filter_map(|members| context.job(members)).collect()
}

/// A process, and when it ended.
type Member<'a> = (&'a Process, Option<Moment>);

/// The processes of one job, those that have ended last. Most jobs are of one.
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
            ((alone, ended_at), []) => Some(self.single_process_job(alone, ended_at)),
            (first, others) => {
                let members: Vec<Member> = [&[first], others].concat();
                self.multi_process_job(&members)
            }
        }
    }

    fn single_process_job(&self, alone: &Process, ended_at: Option<Moment>) -> JobRows {
        let mut row = self.process(alone, ended_at);
        row.key.is_job = true;
        // One process says more of itself than what launched it does: a kernel's notebook, a service's command.
        let process = std::mem::replace(&mut row.key.process, leader(alone, &[alone]).key);
        JobRows { row: Arc::new(row), members: ProcessRows::Single(process) }
    }

    fn multi_process_job(&self, members: &[Member]) -> Option<JobRows> {
        let rows = members.iter().map(|(process, ended_at)| Arc::new(self.process(process, *ended_at)));
        let processes: Vec<Arc<Row>> = rows.collect();
        // What has ended no longer counts, unless nothing else is left of the job.
        let live = members.iter().filter(|(_, ended_at)| ended_at.is_none()).count();
        let counted = &members[..if live == 0 { members.len() } else { live }];
        let counted: Vec<&Process> = counted.iter().map(|(process, _)| *process).collect();
        let first = counted.iter().min_by_key(|process| (process.key.start_ticks, process.key.pid))?;
        let mut row = self.sum(&counted, &processes)?;
        let leader = leader(first, &counted);
        row.pid = Some(leader.key.pid).filter(|pid| *pid != 0);
        row.command = leader.command;
        row.key = RowKey { host: self.host.id, process: leader.key, is_job: true, group: None };
        row.ended_at = if live == 0 { members.iter().filter_map(|(_, ended_at)| *ended_at).max() } else { None };
        Some(JobRows { row: Arc::new(row), members: ProcessRows::Multiple(processes) })
    }

    fn process(&self, process: &Process, ended_at: Option<Moment>) -> Row {
        let trouble = if ended_at.is_some() { None } else { process.trouble(self.now) };
        Row {
            key: RowKey { host: self.host.id, process: process.key.clone(), is_job: false, group: None },
            job: process.info.job.clone(),
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
        }
    }

    /// A row for several processes: figures are added, or taken from the worst, or from the oldest.
    fn sum(&self, processes: &[&Process], rows: &[Arc<Row>]) -> Option<Row> {
        let rows = rows.get(..processes.len())?;
        let mut row = Row::clone(rows.first()?);
        row.gpu_indexes = self.gpu_indexes(processes);
        row.gpu_memory_bytes = sum(rows.iter().map(|row| row.gpu_memory_bytes));
        row.gpu_memory_percent = self.memory_percent(processes);
        row.sm_percent = rows.iter().filter_map(|row| row.sm_percent).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        row.cpu_percent = sum(rows.iter().map(|row| row.cpu_percent));
        row.rss_bytes = sum(rows.iter().map(|row| row.rss_bytes));
        row.age_seconds = rows.iter().filter_map(|row| row.age_seconds).reduce(f64::max);
        row.state = rows.iter().filter_map(|row| row.state).min();
        if let Some(worst) = worst_trouble(rows.iter().map(|row| &**row)) {
            row.trouble = worst.trouble;
            row.trouble_since = worst.trouble_since;
            row.process_state = worst.process_state;
        }
        row.workers = processes.len() as u32;
        row.is_mine = rows.iter().any(|row| row.is_mine);
        row.is_stale = rows.iter().any(|row| row.is_stale);
        Some(row)
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

    /// Memory held as a share of the memory of all GPUs that the processes are on.
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

/// The process that stands for a job.
struct Leader {
    key: ProcessKey,
    command: SafeText,
}

impl Leader {
    fn of(process: &Process) -> Self {
        Self { key: process.key.clone(), command: process.info.command.clone() }
    }
}

/// The launcher common to all processes, else the process that began first.
fn leader(first: &Process, processes: &[&Process]) -> Leader {
    match common_launcher(processes) {
        Some(launcher) if launcher.key.pid != first.key.pid => {
            Leader { key: launcher.key.clone(), command: launcher.command.clone() }
        }
        _ => Leader::of(first),
    }
}

/// The launcher that every process stands below, or is.
fn common_launcher<'a>(processes: &[&'a Process]) -> Option<&'a Launcher> {
    let found = processes.iter().find_map(|process| process.info.launcher.as_ref())?;
    let is_below = |process: &&Process| match &process.info.launcher {
        Some(other) => other.key == found.key,
        None => process.key.pid == found.key.pid,
    };
    processes.iter().all(is_below).then_some(found)
}

/// The row whose process has the most urgent trouble. A hidden process is no fault, so it counts only if nothing else is
/// wrong.
pub(super) fn worst_trouble<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.filter(|row| row.trouble.is_some())
        .min_by_key(|row| row.trouble.and_then(ProcessTrouble::rank).unwrap_or(u8::MAX))
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
