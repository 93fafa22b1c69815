//! Slurm: the GPUs that it has allocated on this host, the jobs that hold them, and how jobs ended.
//!
//! A GPU that a job holds is not free, used or not. [`Slurm`] queries this node once a minute with `scontrol`, a child
//! process with a timeout.
//!
//! Each host queries for itself, although one host of a cluster could query for all. One record per watched node costs
//! the controller no more than one list of them, while `show node` without a name returns every node of the cluster,
//! watched or not. It also works if that one host is away, is not permitted, or belongs to another cluster than its
//! name suggests.
//!
//! When the allocated GPUs change, and every ten minutes, `squeue` lists the running jobs of this node, and `scontrol -d show
//! job` tells the GPUs of each job that is new, until the jobs of all allocated GPUs are known. A job keeps its GPUs while it
//! runs, so a steady node costs slurmctld one query in ten minutes besides that of the node. All programs run one after the
//! other, each with a timeout. After a query without an answer no further job of a list is queried, because slurmctld hangs or is
//! down. A minute later the next list begins with another job.
//!
//! How a job ended is read between these queries ([`SlurmEnds`]).
//!
//! The probes of a cluster start together, and a job ends on all of its nodes at once. The phase of the host, a fixed number,
//! spreads their queries, so that they do not reach slurmctld in the same second. Only the first query is not delayed, because a
//! person may wait for it.

use super::child::{ChildProcess, ChildStatus, ProgramPath, find_program};
use super::slurm_ends::{Answer, SlurmEnds};
use super::slurm_job_ids::{SCONTROL_DIRECTORIES, TIMEOUT_SECONDS, find_scontrol};
use crate::probe::blocking::BlockingPool;
use crate::wire::{SafeText, SlurmJob, SlurmJobEnd, is_slurm_job_id};

/// Query period.
const QUERY_SECONDS: f64 = 60.0;
/// Query period after a failure: slurmctld is down, or this host is not a node.
const RETRY_SECONDS: f64 = 600.0;
/// Period of the list of jobs while the allocated GPUs stay the same, and after a failure.
const JOBS_SECONDS: f64 = 600.0;
/// Maximum number of jobs of a node, most of which may hold no GPU.
const MAX_NODE_JOBS: usize = 1024;
/// Maximum number of jobs with GPUs.
const MAX_GPU_JOBS: usize = 64;
/// Maximum number of GPUs of a node.
const MAX_GPUS: u32 = 512;

/// Parts of the error messages that tell nothing about a job: slurmctld is down, hangs, is not the active one, or refuses queries
/// that come too often (slurm, src/common/slurm_errno.c), or the system cannot connect to it.
const NO_ANSWER: [&str; 6] = [
    "Unable to contact slurm controller",
    "Connection refused",
    "timed out",
    "Zero Bytes were transmitted",
    "in standby mode",
    "Rate limit exceeded",
];

/// The query of the allocated GPUs.
#[derive(Debug)]
pub(crate) struct Slurm {
    pool: BlockingPool,
    program: ProgramPath,
    state: State,
    /// Names by which Slurm may know the node, most likely first.
    node_names: Vec<String>,
    /// Index of the name in use.
    node_name_index: usize,
    cluster: Option<SafeText>,
    allocated: Option<Vec<u32>>,
    /// `squeue`.
    squeue: ProgramPath,
    /// The jobs with GPUs; `None` if they are unknown.
    jobs: Option<Vec<SlurmJob>>,
    /// When the jobs are listed again, if the allocated GPUs stay the same.
    jobs_due: f64,
    /// The number of queries of a job without an answer.
    unanswered: usize,
    /// From 0 to 1. `None` after the first wait, which determines when this host queries.
    phase: Option<f64>,
    ends: SlurmEnds,
}

#[derive(Debug)]
enum State {
    /// Waits until the next query.
    Idle { due: f64 },
    /// Runs a program. `timed_out`: it was killed, and may not have ended yet.
    Querying { child: ChildProcess, query: Query, timed_out: bool },
}

/// The queries in their order.
#[derive(Debug)]
enum Query {
    /// The name of the cluster.
    Config,
    /// The allocated GPUs.
    Node,
    /// The running jobs.
    Jobs,
    /// The GPUs of the first of these jobs.
    Job { waiting: Vec<ListedJob>, known: Vec<SlurmJob> },
    /// The end of a job. The node is queried at `node_due`.
    End { job: SafeText, node_due: f64 },
}

/// A job of `squeue`.
#[derive(Debug)]
struct ListedJob {
    job: SlurmJob,
    /// `100_7` for the task of an array. For the id of an array, `scontrol` prints all of its tasks, which may be more than a
    /// pipe holds.
    id: SafeText,
}

/// The values that are new or are sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlurmUpdate {
    pub(crate) cluster: Option<SafeText>,
    pub(crate) allocated: Option<Vec<u32>>,
    pub(crate) jobs: Option<Vec<SlurmJob>>,
    pub(crate) ends: Vec<SlurmJobEnd>,
}

impl Slurm {
    /// Creates the query for this host. `phase`, from 0 to 1, should differ between the hosts of a cluster.
    pub(crate) fn new(pool: BlockingPool, phase: f64) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        let mut node_names: Vec<String> = std::env::var("SLURMD_NODENAME").into_iter().chain([short, host]).collect();
        node_names.retain(|name| !name.is_empty() && !name.starts_with('-'));
        node_names.dedup();
        let program = ProgramPath::new(find_scontrol);
        Self {
            pool,
            program,
            state: State::Idle { due: 0.0 },
            node_names,
            node_name_index: 0,
            cluster: None,
            allocated: None,
            squeue: ProgramPath::new(|| find_program("squeue", &SCONTROL_DIRECTORIES)),
            jobs: None,
            jobs_due: 0.0,
            unanswered: 0,
            phase: Some(phase),
            ends: SlurmEnds::new(phase),
        }
    }

    /// The ends of jobs.
    pub(crate) fn ends(&mut self) -> &mut SlurmEnds {
        &mut self.ends
    }

    /// Polls and starts queries. Returns the values that have changed, or all of them if `resend`.
    pub(crate) fn advance(&mut self, now: f64, resend: bool) -> SlurmUpdate {
        let previous = (self.cluster.clone(), self.allocated.clone(), self.jobs.clone());
        self.state = match std::mem::replace(&mut self.state, State::Idle { due: now }) {
            State::Idle { due } => self.next_query(due, now),
            State::Querying { mut child, query, timed_out } => match child.poll(now) {
                ChildStatus::Running => State::Querying { child, query, timed_out },
                ChildStatus::TimedOut => State::Querying { child, query, timed_out: true },
                ChildStatus::Finished(text) => self.take_answer(query, &text, now),
                ChildStatus::Failed => {
                    let has_answered = !timed_out && !tells_no_answer(&child.error_output());
                    self.take_failure(query, has_answered, now)
                }
            },
        };
        let is_new_list = self.jobs != previous.2;
        if is_new_list {
            self.note_unlisted(previous.2.as_deref(), now);
        }
        let new = |is_new: bool| is_new || resend;
        SlurmUpdate {
            cluster: self.cluster.clone().filter(|_| new(self.cluster != previous.0)),
            allocated: self.allocated.clone().filter(|_| new(self.allocated != previous.1)),
            // A list that cannot be read any more is sent as an empty one: nobody must be charged for a job that may have ended.
            jobs: self.jobs_with_gpus().or_else(|| previous.2.map(|_| Vec::new())).filter(|_| new(is_new_list)),
            ends: self.ends.take(resend),
        }
    }

    /// Starts what is due: the query of the node, or that of the end of a job if it has been due for longer.
    fn next_query(&mut self, node_due: f64, now: f64) -> State {
        match self.ends.due(now) {
            Some((due, job)) if now < node_due || due < node_due => {
                let state = self.start_query(Query::End { job: job.clone(), node_due }, now);
                if matches!(state, State::Idle { .. }) {
                    self.ends.take_answer(&job, Answer::NotStarted, now);
                }
                state
            }
            _ if now >= node_due => {
                self.start_query(if self.cluster.is_none() { Query::Config } else { Query::Node }, now)
            }
            _ => State::Idle { due: node_due },
        }
    }

    /// Notes the jobs with GPUs of the previous list that are not in this one. Without a list nothing is known to have ended.
    fn note_unlisted(&mut self, previous: Option<&[SlurmJob]>, now: f64) {
        let (Some(previous), Some(jobs)) = (previous, &self.jobs) else { return };
        let is_gone = |job: &&SlurmJob| !job.gpus.is_empty() && !jobs.iter().any(|one| one.job == job.job);
        let gone: Vec<SafeText> = previous.iter().filter(is_gone).map(|job| job.job.clone()).collect();
        for job in gone {
            self.ends.note_unlisted(&job, now);
        }
    }

    /// The known jobs that hold GPUs here. The others are remembered so that they are queried once.
    fn jobs_with_gpus(&self) -> Option<Vec<SlurmJob>> {
        Some(self.jobs.as_ref()?.iter().filter(|job| !job.gpus.is_empty()).take(MAX_GPU_JOBS).cloned().collect())
    }

    fn take_answer(&mut self, query: Query, text: &str, now: f64) -> State {
        self.ends.note_answer();
        match query {
            Query::Config => {
                self.cluster = cluster_name(text);
                self.start_query(Query::Node, now)
            }
            Query::Node => {
                let allocated = allocated_gpus(text);
                let has_changed = std::mem::replace(&mut self.allocated, allocated) != self.allocated;
                if !has_changed && now < self.jobs_due {
                    return self.wait(QUERY_SECONDS, now);
                }
                self.jobs_due = now + JOBS_SECONDS;
                if self.allocated.as_ref().is_some_and(|gpus| !gpus.is_empty()) {
                    return self.start_query(Query::Jobs, now);
                }
                self.jobs = self.allocated.as_ref().map(|_| Vec::new());
                self.wait(QUERY_SECONDS, now)
            }
            Query::Jobs => {
                let (mut waiting, mut known) = (Vec::new(), Vec::new());
                for listed in running_jobs(text) {
                    let earlier = self.jobs.iter().flatten().find(|earlier| earlier.job == listed.job.job);
                    earlier.map_or_else(|| waiting.push(listed), |earlier| known.push(earlier.clone()));
                }
                // A job whose query never ends must not keep the others from being queried.
                let unanswered = self.unanswered % waiting.len().max(1);
                waiting.rotate_left(unanswered);
                self.next_job(waiting, known, now)
            }
            Query::Job { mut waiting, mut known } => {
                if !waiting.is_empty() {
                    let job = waiting.remove(0).job;
                    known.push(SlurmJob { gpus: job_gpus(text, &job.job, self.node_name()), ..job });
                }
                self.next_job(waiting, known, now)
            }
            Query::End { job, node_due } => {
                self.ends.take_answer(&job, Answer::Text(text), now);
                self.next_query(node_due, now)
            }
        }
    }

    /// Takes the failure of a query. `has_answered`: slurmctld neither hangs nor is down.
    fn take_failure(&mut self, query: Query, has_answered: bool, now: f64) -> State {
        if has_answered {
            self.ends.note_answer();
        } else {
            self.ends.pause(now);
        }
        match query {
            // Slurm may know the node by another name.
            Query::Node if has_answered && self.node_name_index + 1 < self.node_names.len() => {
                self.node_name_index += 1;
                self.start_query(Query::Node, now)
            }
            Query::Config | Query::Node => {
                self.node_name_index = 0;
                (self.allocated, self.jobs) = (None, None);
                self.wait(RETRY_SECONDS, now)
            }
            Query::Jobs => {
                self.jobs = None;
                self.wait(QUERY_SECONDS, now)
            }
            Query::End { job, node_due } => {
                let answer = if has_answered { Answer::Failed } else { Answer::Unanswered };
                self.ends.take_answer(&job, answer, now);
                State::Idle { due: node_due }
            }
            // The job has ended meanwhile, or may not be seen.
            Query::Job { mut waiting, known } if has_answered => {
                if !waiting.is_empty() {
                    waiting.remove(0);
                }
                self.next_job(waiting, known, now)
            }
            // slurmctld hangs or is down: the others are queried a minute later.
            Query::Job { known, .. } => {
                self.unanswered = self.unanswered.wrapping_add(1);
                self.jobs_due = now;
                self.jobs = Some(known);
                self.wait(QUERY_SECONDS, now)
            }
        }
    }

    /// Queries the next job if the job of an allocated GPU is unknown. Slurm allocates a GPU to one job at a time.
    fn next_job(&mut self, waiting: Vec<ListedJob>, known: Vec<SlurmJob>, now: f64) -> State {
        let is_known = |gpu| known.iter().any(|job| job.gpus.contains(gpu));
        if !waiting.is_empty() && !self.allocated.iter().flatten().all(is_known) {
            return self.start_query(Query::Job { waiting, known }, now);
        }
        self.jobs = Some(known);
        self.wait(QUERY_SECONDS, now)
    }

    /// Returns the query in progress.
    pub(super) fn child(&self) -> Option<&ChildProcess> {
        match &self.state {
            State::Querying { child, .. } => Some(child),
            State::Idle { .. } => None,
        }
    }

    fn node_name(&self) -> &str {
        self.node_names.get(self.node_name_index).map_or("", String::as_str)
    }

    /// Waits for the next query of the node. The first wait takes between half the time and one and a half.
    fn wait(&mut self, seconds: f64, now: f64) -> State {
        State::Idle { due: now + seconds * self.phase.take().map_or(1.0, |phase| 0.5 + phase) }
    }

    fn start_query(&mut self, query: Query, now: f64) -> State {
        let node = self.node_name();
        let (program, arguments): (_, &[&str]) = match &query {
            Query::Config => (&self.program, &["show", "config"]),
            Query::Node => (&self.program, &["-d", "-o", "show", "node", node]),
            Query::Jobs => (&self.squeue, &["-h", "-t", "RUNNING", "-o", "%A %i %u", "-w", node]),
            Query::Job { waiting, .. } => {
                (&self.program, &["-d", "-o", "show", "job", waiting.first().map_or("", |job| &job.id)])
            }
            // Several lines: a name of a job, which users write, cannot look like the line of its state, unless it has a line break, and
            // then only for its own job.
            Query::End { job, .. } => (&self.program, &["show", "job", job]),
        };
        if let Some(child) = ChildProcess::start_with_errors(&self.pool, program, arguments, now, TIMEOUT_SECONDS) {
            return State::Querying { child, query, timed_out: false };
        }
        match query {
            // The node is queried as before.
            Query::End { node_due, .. } => State::Idle { due: node_due },
            // Without `squeue` the node is queried as before.
            Query::Jobs => self.wait(QUERY_SECONDS, now),
            _ => self.wait(RETRY_SECONDS, now),
        }
    }
}

/// Whether an error message of `scontrol` or `squeue` tells that slurmctld did not answer. They exit with status 1 then, and also
/// for a job that slurmctld has forgotten ("Invalid job id specified").
fn tells_no_answer(message: &str) -> bool {
    NO_ANSWER.iter().any(|text| message.contains(text))
}

/// Returns the phase of a host: the first digits of its boot id (a random UUID) as a fraction.
pub(crate) fn phase(boot_id: Option<&str>) -> f64 {
    let digits = boot_id.and_then(|id| u32::from_str_radix(id.get(..8)?, 16).ok());
    digits.map_or(0.5, |digits| f64::from(digits) / (f64::from(u32::MAX) + 1.0))
}

/// Parses `ClusterName             = lab` in the output of `scontrol show config`.
fn cluster_name(text: &str) -> Option<SafeText> {
    let line = text.lines().find(|line| line.starts_with("ClusterName"))?;
    let name = line.split_once('=')?.1.trim();
    (!name.is_empty() && name != "(null)").then(|| SafeText::new(name))
}

/// Parses the indices in `GresUsed=gpu:h100:3(IDX:0-1,5)` in the output of `scontrol -d -o show node`. Returns `None` without
/// `GresUsed`.
fn allocated_gpus(text: &str) -> Option<Vec<u32>> {
    text.split_whitespace().find_map(|word| word.strip_prefix("GresUsed=")).map(gres_gpus)
}

/// Parses the indices in `gpu:h100:3(IDX:0-1,5)`. There may be several GPU types, with other resources between them.
fn gres_gpus(gres: &str) -> Vec<u32> {
    let mut gpus = Vec::new();
    let mut remaining = gres;
    while let Some(start) = remaining.find("gpu:") {
        // An entry starts at the beginning or after a comma; `mps:gpu:` is another resource.
        let is_gpu_entry = start == 0 || remaining.as_bytes().get(start - 1) == Some(&b',');
        remaining = &remaining[start + 4..];
        let Some((kind, after)) = remaining.split_once('(') else { break };
        if !is_gpu_entry || kind.contains(',') {
            continue;
        }
        let (list, after) = after.split_once(')').unwrap_or((after, ""));
        if let Some(list) = list.strip_prefix("IDX:") {
            gpus.extend(indices(list));
        }
        remaining = after;
    }
    gpus
}

/// Parses lines `3385 3380_5 ann`: the id of the job, that of the array and the task if it has one, and the user.
fn running_jobs(text: &str) -> Vec<ListedJob> {
    let job = |line: &str| {
        let (job, rest) = line.trim().split_once(' ')?;
        let (id, user) = rest.trim().split_once(' ')?;
        // It becomes an argument of `scontrol`.
        if !is_slurm_job_id(job) || !id.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let job = SlurmJob { job: job.into(), user: Some(SafeText::new(user.trim())), gpus: Vec::new() };
        Some(ListedJob { job, id: SafeText::new(id) })
    };
    text.lines().filter_map(job).take(MAX_NODE_JOBS).collect()
}

/// Parses the GPUs of one node in the output of `scontrol -d -o show job`: `Nodes=hgx-[01-02] CPU_IDs=0-31 Mem=512000
/// GRES=gpu:h100:2(IDX:0-1)`, for each group of nodes. For one task of an array, Slurm may print a job on each line. A line break in
/// the name of a job is printed as one (Slurm 22.05).
fn job_gpus(text: &str, job: &str, node: &str) -> Vec<u32> {
    let is_asked =
        |line: &&str| line.split_whitespace().next().and_then(|word| word.strip_prefix("JobId=")) == Some(job);
    let mut is_node = false;
    let mut gpus: Vec<u32> = Vec::new();
    let lines = text.lines().skip_while(|line| !is_asked(line));
    let of_job = lines.enumerate().take_while(|(number, line)| *number == 0 || !line.starts_with("JobId="));
    let mut words = of_job.flat_map(|(_, line)| line.split_whitespace()).peekable();
    while let Some(word) = words.next() {
        if let Some(nodes) = word.strip_prefix("Nodes=") {
            // The name of a job may look like this, too, but not with what follows.
            let is_group = words.peek().is_some_and(|next| next.starts_with("CPU_IDs="));
            is_node = is_group && hostlist_contains(nodes, node);
        } else if let Some(gres) = word.strip_prefix("GRES=").filter(|_| is_node) {
            // A few indices: sorting takes more code than it saves time.
            for gpu in gres_gpus(gres) {
                if let Err(place) = gpus.binary_search(&gpu) {
                    gpus.insert(place, gpu);
                }
            }
            is_node = false;
        }
    }
    gpus.truncate(MAX_GPUS as usize);
    gpus
}

/// Maximum number of ranges that are compared with a node. Users write parts of the text.
const MAX_RANGES: u32 = 10_000;

/// Whether a host list of Slurm, such as `hgx-[01-02,05],a6k-01`, contains a node.
fn hostlist_contains(list: &str, node: &str) -> bool {
    let (mut depth, mut start) = (0_u32, 0);
    let mut ranges_left = MAX_RANGES;
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                if matches_hosts(&list[start..at], node, &mut ranges_left) {
                    return true;
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    matches_hosts(&list[start..], node, &mut ranges_left)
}

/// Whether `hgx-[01-02,05]` stands for a node. A pattern may have several brackets.
fn matches_hosts(pattern: &str, node: &str, ranges_left: &mut u32) -> bool {
    let Some((prefix, rest)) = pattern.split_once('[') else { return pattern == node };
    let (Some(node), Some((ranges, rest))) = (node.strip_prefix(prefix), rest.split_once(']')) else { return false };
    ranges.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        // Numbers have leading zeros, so the first one has the width of most; 9-10 has two widths.
        (first.len()..=last.len()).any(|width| {
            *ranges_left = ranges_left.saturating_sub(1);
            let Some((digits, after)) = node.split_at_checked(width) else { return false };
            let numbers = (first.parse::<u64>(), digits.parse::<u64>(), last.parse::<u64>());
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            matches!(numbers, (Ok(first), Ok(number), Ok(last)) if is_number && (first..=last).contains(&number))
                && *ranges_left > 0
                && matches_hosts(rest, after, ranges_left)
        })
    })
}

/// Parses `0-1,5`; `N/A` gives no numbers.
fn indices(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (last < MAX_GPUS).then_some(first..=last)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
#[path = "slurm_tests.rs"]
mod tests;
