//! Slurm: the GPUs that it has allocated on this host, and job ids.
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
//! other, each with a timeout. After the timeout of one query no further job of a list is queried, because slurmctld may hang.
//! A minute later the next list begins with another job.
//!
//! When the last process of a job leaves the GPUs, or a job is no longer in the list, `scontrol show job` tells how it ended:
//! slurmctld knows an ended job for `MinJobAge`, 300 s by default. `sacct` would know it longer, and needs slurmdbd.
//!
//! [`SlurmJobs`] finds the id of a job whose cgroup contains only its SLUID (Slurm 26.05 and newer), if neither the
//! title of its slurmstepd nor the environment of its process contains the id: from `scontrol pidinfo`, else from the
//! files that a prolog writes for each GPU.

use super::child::{ChildProcess, ChildStatus, ProgramPath, find_program};
use crate::probe::blocking::BlockingPool;
use crate::wire::{SafeText, SlurmJob, SlurmJobEnd};
use std::path::{Path, PathBuf};

/// Query period.
const QUERY_SECONDS: f64 = 60.0;
/// Query period after a failure: slurmctld is down, or this host is not a node.
const RETRY_SECONDS: f64 = 600.0;
/// Timeout of a query. slurmctld answers within seconds under load.
const TIMEOUT_SECONDS: f64 = 10.0;
/// Directories searched after `PATH`.
const SCONTROL_DIRECTORIES: [&str; 4] = ["/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"];
/// Period of the list of jobs while the allocated GPUs stay the same, and after a failure.
const JOBS_SECONDS: f64 = 600.0;
/// Maximum number of jobs of a node, most of which may hold no GPU.
const MAX_NODE_JOBS: usize = 1024;
/// Maximum number of jobs with GPUs.
const MAX_GPU_JOBS: usize = 64;
/// Maximum number of GPUs of a node.
const MAX_GPUS: u32 = 512;
/// Maximum number of jobs whose end is known or queried.
const MAX_ENDS: usize = 32;
/// The end of a job is queried this long after its last process, and again while its epilog runs.
const END_SECONDS: f64 = 5.0;
/// A job that left the GPUs and runs on is not queried again for this long: its next step may use them for seconds only.
const RUNS_ON_SECONDS: f64 = 60.0;
/// How often the end of a job is queried while its epilog runs, or while no query can start. Each time takes twice as long.
const MAX_END_QUERIES: u32 = 5;
/// States of a job that has not ended (slurm, src/common/slurm_protocol_defs.c, `job_state_string`).
const HAS_NOT_ENDED: [&str; 6] = ["RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"];

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
    /// How many queries of a job have timed out.
    timeouts: usize,
    /// The jobs that have ended, or may have, the oldest first.
    ends: Vec<JobEnd>,
}

/// A job that has ended, or may have.
#[derive(Debug)]
struct JobEnd {
    job: SafeText,
    /// How many times it was queried.
    queries: u32,
    state: EndState,
}

#[derive(Debug, PartialEq)]
enum EndState {
    /// To be queried at this time.
    Due(f64),
    /// It runs on, or slurmctld does not know it. It may leave the GPUs again after this time.
    Unknown(f64),
    /// It has ended. `is_sent`: the controller knows it.
    Known { end: SlurmJobEnd, is_sent: bool },
}

#[derive(Debug)]
enum State {
    /// Waits until the next query.
    Idle { due: f64 },
    /// Runs a program.
    Querying { child: ChildProcess, query: Query },
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
    Job { waiting: Vec<ListedJob>, known: Vec<SlurmJob>, timed_out: bool },
    /// The end of a job. The node is queried at `node_due`.
    End { job: SafeText, node_due: f64 },
}

impl Query {
    /// This query after its timeout.
    fn timed_out(self) -> Self {
        match self {
            Self::Job { waiting, known, .. } => Self::Job { waiting, known, timed_out: true },
            other => other,
        }
    }
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
    /// Creates the query for this host.
    pub(crate) fn new(pool: BlockingPool) -> Self {
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
            timeouts: 0,
            ends: Vec::new(),
        }
    }

    /// Notes that the last process of a job has left the GPUs: it may have ended.
    pub(crate) fn note_left(&mut self, job: &SafeText, now: f64) {
        self.note_end(job, false, now);
    }

    /// Notes the jobs that have processes on the GPUs. One whose end is known runs again under its id.
    pub(crate) fn note_on_gpus<'a>(&mut self, jobs: impl Iterator<Item = &'a SafeText>) {
        for job in jobs {
            self.ends.retain(|end| end.job != *job || !matches!(end.state, EndState::Known { .. }));
        }
    }

    /// Notes that a job may have ended. `is_unlisted`: it does not run any more.
    fn note_end(&mut self, job: &SafeText, is_unlisted: bool, now: f64) {
        // It becomes an argument of `scontrol`.
        if !is_number(job) {
            return;
        }
        if let Some(known) = self.ends.iter().position(|end| end.job == *job) {
            let is_over = match &self.ends[known].state {
                EndState::Due(_) => false,
                EndState::Unknown(until) => is_unlisted || now >= *until,
                // A job that was put back into the queue runs again under its id.
                EndState::Known { end, .. } => end.state == "PENDING",
            };
            if !is_over {
                return;
            }
            self.ends.remove(known);
        }
        if self.ends.len() == MAX_ENDS {
            self.ends.remove(0);
        }
        self.ends.push(JobEnd { job: job.clone(), queries: 0, state: EndState::Due(now + END_SECONDS) });
    }

    /// Returns the first job whose end is due.
    fn due_end(&self, now: f64) -> Option<&JobEnd> {
        self.ends.iter().find(|end| matches!(end.state, EndState::Due(due) if now >= due))
    }

    /// Takes the output of `scontrol show job`, or `None` if it failed or could not start. A timeout is final: slurmctld may
    /// hang, or print more tasks of an array than a pipe holds.
    fn take_end(&mut self, job: &SafeText, text: Option<&str>, has_started: bool, now: f64) {
        let Some(known) = self.ends.iter_mut().find(|end| end.job == *job) else { return };
        known.queries += 1;
        let end = text.and_then(|text| job_end(text, job));
        let is_completing = end.as_ref().is_some_and(|end| matches!(&*end.state, "COMPLETING" | "STAGE_OUT"));
        known.state = match end {
            _ if (is_completing || !has_started) && known.queries < MAX_END_QUERIES => {
                EndState::Due(now + END_SECONDS * f64::from(1 << known.queries))
            }
            Some(end) if !is_completing && !HAS_NOT_ENDED.contains(&&*end.state) => {
                EndState::Known { end, is_sent: false }
            }
            _ => EndState::Unknown(now + RUNS_ON_SECONDS),
        };
    }

    /// Returns the ends that the controller does not know, or all of them if `resend`.
    fn take_ends(&mut self, resend: bool) -> Vec<SlurmJobEnd> {
        let mut ends = Vec::new();
        for known in &mut self.ends {
            if let EndState::Known { end, is_sent } = &mut known.state
                && (resend || !*is_sent)
            {
                *is_sent = true;
                ends.push(end.clone());
            }
        }
        ends
    }

    /// Polls and starts queries. Returns the values that have changed, or all of them if `resend`.
    pub(crate) fn advance(&mut self, now: f64, resend: bool) -> SlurmUpdate {
        let previous = (self.cluster.clone(), self.allocated.clone(), self.jobs.clone());
        self.state = match std::mem::replace(&mut self.state, State::Idle { due: now }) {
            State::Idle { due } if now >= due => {
                self.start_query(if self.cluster.is_none() { Query::Config } else { Query::Node }, now)
            }
            State::Idle { due } => match self.due_end(now).map(|end| end.job.clone()) {
                Some(job) => {
                    let state = self.start_query(Query::End { job: job.clone(), node_due: due }, now);
                    if matches!(state, State::Idle { .. }) {
                        self.take_end(&job, None, false, now);
                    }
                    state
                }
                None => State::Idle { due },
            },
            State::Querying { mut child, query } => match child.poll(now) {
                ChildStatus::Running => State::Querying { child, query },
                ChildStatus::TimedOut => State::Querying { child, query: query.timed_out() },
                ChildStatus::Finished(text) => self.take_answer(query, &text, now),
                ChildStatus::Failed => self.take_failure(query, now),
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
            ends: self.take_ends(resend),
        }
    }

    /// Notes the jobs with GPUs of the previous list that are not in this one. Without a list nothing is known to have ended.
    fn note_unlisted(&mut self, previous: Option<&[SlurmJob]>, now: f64) {
        let (Some(previous), Some(jobs)) = (previous, &self.jobs) else { return };
        let is_gone = |job: &&SlurmJob| !job.gpus.is_empty() && !jobs.iter().any(|one| one.job == job.job);
        let gone: Vec<SafeText> = previous.iter().filter(is_gone).map(|job| job.job.clone()).collect();
        for job in gone {
            self.note_end(&job, true, now);
        }
    }

    /// The known jobs that hold GPUs here. The others are remembered so that they are queried once.
    fn jobs_with_gpus(&self) -> Option<Vec<SlurmJob>> {
        Some(self.jobs.as_ref()?.iter().filter(|job| !job.gpus.is_empty()).take(MAX_GPU_JOBS).cloned().collect())
    }

    fn take_answer(&mut self, query: Query, text: &str, now: f64) -> State {
        match query {
            Query::Config => {
                self.cluster = cluster_name(text);
                self.start_query(Query::Node, now)
            }
            Query::Node => {
                let allocated = allocated_gpus(text);
                let has_changed = std::mem::replace(&mut self.allocated, allocated) != self.allocated;
                if !has_changed && now < self.jobs_due {
                    return State::Idle { due: now + QUERY_SECONDS };
                }
                self.jobs_due = now + JOBS_SECONDS;
                if self.allocated.as_ref().is_some_and(|gpus| !gpus.is_empty()) {
                    return self.start_query(Query::Jobs, now);
                }
                self.jobs = self.allocated.as_ref().map(|_| Vec::new());
                State::Idle { due: now + QUERY_SECONDS }
            }
            Query::Jobs => {
                let (mut waiting, mut known) = (Vec::new(), Vec::new());
                for listed in running_jobs(text) {
                    let earlier = self.jobs.iter().flatten().find(|earlier| earlier.job == listed.job.job);
                    earlier.map_or_else(|| waiting.push(listed), |earlier| known.push(earlier.clone()));
                }
                // A job whose query never ends must not keep the others from being queried.
                let timeouts = self.timeouts % waiting.len().max(1);
                waiting.rotate_left(timeouts);
                self.next_job(waiting, known, now)
            }
            Query::Job { mut waiting, mut known, .. } => {
                if !waiting.is_empty() {
                    let job = waiting.remove(0).job;
                    known.push(SlurmJob { gpus: job_gpus(text, &job.job, self.node_name()), ..job });
                }
                self.next_job(waiting, known, now)
            }
            Query::End { job, node_due, .. } => {
                self.take_end(&job, Some(text), true, now);
                State::Idle { due: node_due }
            }
        }
    }

    fn take_failure(&mut self, query: Query, now: f64) -> State {
        match query {
            // Slurm may know the node by another name.
            Query::Node if self.node_name_index + 1 < self.node_names.len() => {
                self.node_name_index += 1;
                self.start_query(Query::Node, now)
            }
            Query::Config | Query::Node => {
                self.node_name_index = 0;
                (self.allocated, self.jobs) = (None, None);
                State::Idle { due: now + RETRY_SECONDS }
            }
            Query::Jobs => {
                self.jobs = None;
                State::Idle { due: now + QUERY_SECONDS }
            }
            // The job was forgotten, or may not be seen.
            Query::End { job, node_due } => {
                self.take_end(&job, None, true, now);
                State::Idle { due: node_due }
            }
            // The job has ended meanwhile, or may not be seen.
            Query::Job { mut waiting, known, timed_out: false } => {
                if !waiting.is_empty() {
                    waiting.remove(0);
                }
                self.next_job(waiting, known, now)
            }
            // slurmctld may hang: the others are queried a minute later.
            Query::Job { known, timed_out: true, .. } => {
                self.timeouts = self.timeouts.wrapping_add(1);
                self.jobs_due = now;
                self.jobs = Some(known);
                State::Idle { due: now + QUERY_SECONDS }
            }
        }
    }

    /// Queries the next job if the job of an allocated GPU is unknown. Slurm allocates a GPU to one job at a time.
    fn next_job(&mut self, waiting: Vec<ListedJob>, known: Vec<SlurmJob>, now: f64) -> State {
        let is_known = |gpu| known.iter().any(|job| job.gpus.contains(gpu));
        if !waiting.is_empty() && !self.allocated.iter().flatten().all(is_known) {
            return self.start_query(Query::Job { waiting, known, timed_out: false }, now);
        }
        self.jobs = Some(known);
        State::Idle { due: now + QUERY_SECONDS }
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

    fn start_query(&self, query: Query, now: f64) -> State {
        let node = self.node_name();
        let (program, arguments): (_, &[&str]) = match &query {
            Query::Config => (&self.program, &["show", "config"]),
            Query::Node => (&self.program, &["-d", "-o", "show", "node", node]),
            Query::Jobs => (&self.squeue, &["-h", "-t", "RUNNING", "-o", "%A %i %u", "-w", node]),
            Query::Job { waiting, .. } => {
                (&self.program, &["-d", "-o", "show", "job", waiting.first().map_or("", |job| &job.id)])
            }
            // Several lines: a name of a job, which users write, cannot look like the line of its state.
            Query::End { job, .. } => (&self.program, &["show", "job", job]),
        };
        match ChildProcess::start(&self.pool, program, arguments, now, TIMEOUT_SECONDS) {
            Some(child) => State::Querying { child, query },
            // Without `squeue` the node is queried as before.
            None if matches!(query, Query::Jobs) => State::Idle { due: now + QUERY_SECONDS },
            // The node was queried and is queried again as before.
            None => State::Idle {
                due: if let Query::End { node_due, .. } = query { node_due } else { now + RETRY_SECONDS },
            },
        }
    }
}

pub(super) fn find_scontrol() -> Option<PathBuf> {
    find_program("scontrol", &SCONTROL_DIRECTORIES)
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
        if !is_number(job) || !id.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let job = SlurmJob { job: job.into(), user: Some(SafeText::new(user.trim())), gpus: Vec::new() };
        Some(ListedJob { job, id: SafeText::new(id) })
    };
    text.lines().filter_map(job).take(MAX_NODE_JOBS).collect()
}

/// Parses the GPUs of one node in the output of `scontrol -d -o show job`: `Nodes=hgx-[01-02] CPU_IDs=0-31 Mem=512000
/// GRES=gpu:h100:2(IDX:0-1)`, for each group of nodes. For one task of an array, Slurm may print a line for each.
fn job_gpus(text: &str, job: &str, node: &str) -> Vec<u32> {
    let is_asked =
        |line: &&str| line.split_whitespace().next().and_then(|word| word.strip_prefix("JobId=")) == Some(job);
    let mut is_node = false;
    let mut gpus: Vec<u32> = Vec::new();
    let mut words = text.lines().find(is_asked).unwrap_or_default().split_whitespace().peekable();
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

/// Parses the state of a job in the output of `scontrol show job`, which begins with `JobId=3385 JobName=train`. Lines of
/// interest are `JobState=FAILED Reason=NonZeroExitCode Dependency=(null)` and `Requeue=1 Restarts=0 ExitCode=1:0`, the exit
/// status and the signal of the batch script.
fn job_end(text: &str, job: &str) -> Option<SlurmJobEnd> {
    let is_asked = |line: &&str| line.split(' ').next().and_then(|word| word.strip_prefix("JobId=")) == Some(job);
    let mut lines = text.lines().skip_while(|line| !is_asked(line)).skip(1).map(str::trim_start);
    let state = lines.find_map(|line| line.strip_prefix("JobState="))?.split(' ').next()?;
    let code = lines.find_map(|line| line.split(' ').find_map(|word| word.strip_prefix("ExitCode=")));
    let (status, signal) = code.and_then(|code| code.split_once(':')).unwrap_or_default();
    Some(SlurmJobEnd {
        job: job.into(),
        state: SafeText::new(state),
        exit_status: status.parse().ok(),
        signal: signal.parse().ok().filter(|signal| *signal > 0),
    })
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

/// Retry period for a job whose id no source knew.
const JOB_RETRY_SECONDS: f64 = 600.0;
/// Maximum number of jobs kept, and of jobs in the queue.
const MAX_JOBS: usize = 256;
/// The prolog of Princeton's jobstats writes a file `JOB UID` for each GPU that a job holds.
const PROLOG_DIRECTORY: &str = "/run/gpustat";
/// Maximum number of those files, and of bytes in each.
const MAX_PROLOG_FILES: usize = 256;
const MAX_PROLOG_FILE_BYTES: usize = 64;

/// Known job ids and the queries for others.
#[derive(Debug)]
pub(crate) struct SlurmJobs {
    pool: BlockingPool,
    /// `scontrol`.
    program: ProgramPath,
    prolog_directory: PathBuf,
    running: Option<(JobQuery, ChildProcess)>,
    queued: Vec<JobQuery>,
    resolved: Vec<ResolvedJob>,
}

/// A job, identified by one of its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JobQuery {
    sluid: SafeText,
    pid: u32,
    uid: Option<u32>,
}

#[derive(Debug)]
struct ResolvedJob {
    sluid: SafeText,
    job_id: Option<SafeText>,
    /// Time of the query, by the clock of [`SlurmJobs::advance`].
    queried_at: f64,
}

impl SlurmJobs {
    pub(crate) fn new(pool: BlockingPool) -> Self {
        let program = ProgramPath::new(find_scontrol);
        Self {
            pool,
            program,
            prolog_directory: PROLOG_DIRECTORY.into(),
            running: None,
            queued: Vec::new(),
            resolved: Vec::new(),
        }
    }

    /// Knows one job and cannot query others.
    #[cfg(test)]
    pub(super) fn with_job(sluid: &str, job_id: &str) -> Self {
        let resolved = ResolvedJob { sluid: sluid.into(), job_id: Some(job_id.into()), queried_at: 0.0 };
        Self {
            program: ProgramPath::at(None),
            prolog_directory: PathBuf::new(),
            resolved: vec![resolved],
            ..Self::new(BlockingPool::new())
        }
    }

    /// Returns the id of the job of this process if it is known, else queues a query.
    pub(crate) fn job_id(&mut self, sluid: &SafeText, pid: u32, uid: Option<u32>) -> Option<SafeText> {
        if let Some(resolved) = self.resolved.iter().find(|resolved| resolved.sluid == *sluid) {
            return resolved.job_id.clone();
        }
        let is_running = self.running.as_ref().is_some_and(|(job, _)| job.sluid == *sluid);
        if !is_running && self.queued.len() < MAX_JOBS && self.queued.iter().all(|job| job.sluid != *sluid) {
            self.queued.push(JobQuery { sluid: sluid.clone(), pid, uid });
        }
        None
    }

    /// Polls and starts queries, one job at a time.
    pub(crate) fn advance(&mut self, now: f64) {
        self.resolved.retain(|resolved| resolved.job_id.is_some() || now - resolved.queried_at < JOB_RETRY_SECONDS);
        if let Some((job, mut child)) = self.running.take() {
            match child.poll(now) {
                ChildStatus::Running | ChildStatus::TimedOut => self.running = Some((job, child)),
                ChildStatus::Finished(text) => self.record_job(job, parse_job_id(&text), now),
                ChildStatus::Failed => self.record_job(job, None, now),
            }
        }
        while self.running.is_none() && !self.queued.is_empty() {
            let job = self.queued.remove(0);
            let pid = job.pid.to_string();
            match ChildProcess::start(&self.pool, &self.program, &["pidinfo", &pid], now, TIMEOUT_SECONDS) {
                Some(child) => self.running = Some((job, child)),
                None => self.record_job(job, None, now),
            }
        }
    }

    /// Returns the query in progress.
    pub(super) fn child(&self) -> Option<&ChildProcess> {
        self.running.as_ref().map(|(_, child)| child)
    }

    fn record_job(&mut self, job: JobQuery, job_id: Option<SafeText>, queried_at: f64) {
        let job_id = job_id.or_else(|| job_in_prolog_files(&self.prolog_directory, job.uid?));
        // The oldest job has most likely ended.
        if self.resolved.len() >= MAX_JOBS {
            self.resolved.remove(0);
        }
        self.resolved.push(ResolvedJob { sluid: job.sluid, job_id, queried_at });
    }
}

/// Parses `Slurm job id 3385 ends at Mon Nov 24 10:00:00 2025`.
fn parse_job_id(text: &str) -> Option<SafeText> {
    let job_id = text.strip_prefix("Slurm job id ")?.split_ascii_whitespace().next()?;
    is_number(job_id).then(|| SafeText::new(job_id))
}

/// Returns the job of this user if the prolog files name exactly one.
fn job_in_prolog_files(folder: &Path, uid: u32) -> Option<SafeText> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().take(MAX_PROLOG_FILES);
    let mut jobs = entries.filter_map(|entry| {
        let bytes = std::fs::read(entry.path()).ok().filter(|bytes| bytes.len() <= MAX_PROLOG_FILE_BYTES)?;
        let text = String::from_utf8(bytes).ok()?;
        let (job, owner) = text.trim().split_once(' ')?;
        (is_number(job) && owner.parse() == Ok(uid)).then(|| job.to_owned())
    });
    let first = jobs.next()?;
    jobs.all(|job| job == first).then(|| first.into())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::child::write_script;
    use super::*;
    use crate::probe::blocking::{MAX_THREADS, block};
    use std::time::{Duration, Instant};

    /// Output of Slurm 23.11 for a node with eight H100, shortened (scontrol(1), https://slurm.schedmd.com/gres.html).
    const NODE: &str = "NodeName=hgx-01 Arch=x86_64 CoresPerSocket=56 CPUAlloc=32 CPUTot=224 Gres=gpu:h100:8(S:0-1) \
        GresDrain=N/A GresUsed=gpu:h100:3(IDX:0-1,5),mps:0 NodeAddr=hgx-01 State=MIXED\n";

    #[test]
    fn allocated_gpu_indices_are_parsed() {
        assert_eq!(allocated_gpus(NODE), Some(vec![0, 1, 5]));
        for (gres_used, expected) in [
            ("gpu:h100:0(IDX:N/A)", vec![]),
            ("gpu:2(IDX:0,3)", vec![0, 3]),
            ("gpu:a100:1(IDX:0),gpu:v100:2(IDX:2-3),shard:a100:4(IDX:1)", vec![0, 2, 3]),
            ("gpu:h100:8(IDX:0-4294967295)", vec![]),
            ("gpu:h100:8(IDX:3-", vec![]),
            ("gpu:h100:8", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(
                allocated_gpus(&format!("NodeName=x GresUsed={gres_used} State=IDLE")),
                Some(expected),
                "{gres_used}"
            );
        }
        assert_eq!(allocated_gpus("NodeName=x State=IDLE"), None);
    }

    /// Output of Slurm 23.11 for a job on three nodes, shortened (slurm, src/api/job_info.c).
    const JOB: &str = "JobId=3385 JobName=train UserId=ann(1000) GroupId=ann(1000) JobState=RUNNING NodeList=hgx-[01-03] \
        JOB_GRES=gpu:h100:7 Nodes=hgx-[01-02] CPU_IDs=0-31 Mem=512000 GRES=gpu:h100:3(IDX:0-1,5) \
        Nodes=hgx-03 CPU_IDs=0-15 Mem=256000 GRES=gpu:h100:1(IDX:7) MinCPUsNode=16 Features=(null)\n";

    #[test]
    fn the_gpus_of_a_job_on_this_node_are_parsed() {
        for (node, expected) in [
            ("hgx-01", &[0, 1, 5][..]),
            ("hgx-02", &[0, 1, 5]),
            ("hgx-03", &[7]),
            ("hgx-04", &[]),
            ("hgx-0", &[]),
            ("", &[]),
        ] {
            assert_eq!(job_gpus(JOB, "3385", node), expected, "{node}");
        }
        let none = Vec::<u32>::new();
        let line = "JobId=7 Nodes=a CPU_IDs=0 Mem=0 GRES= Nodes=b CPU_IDs=1 GRES=gpu:1(IDX:4)";
        assert_eq!(job_gpus(line, "7", "a"), none);
        let name = "JobId=7 JobName=x Nodes=a GRES=gpu:1(IDX:4)";
        assert_eq!(job_gpus(name, "7", "a"), none, "a job whose name looks like a group of nodes");
        let tasks = "JobId=7 Nodes=a CPU_IDs=0 GRES=gpu:1(IDX:0)\nJobId=8 Nodes=a CPU_IDs=1 GRES=gpu:1(IDX:1)";
        assert_eq!(job_gpus(tasks, "7", "a"), [0], "another task of the array");
        let endless = format!("n{}z", "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]".repeat(12));
        assert!(!hostlist_contains(&endless, "n000000000000"), "it ends");
    }

    #[test]
    fn host_lists_are_matched() {
        for (list, inside, outside) in [
            ("hgx-01", "hgx-01", "hgx-1"),
            ("a,b[1,3-4],c", "b3", "b2"),
            ("a,b[1,3-4],c", "c", "d"),
            ("n[9-11]", "n10", "n010"),
            ("n[009-011]", "n010", "n10"),
            ("rack[1-2]node[01-04]", "rack2node03", "rack3node03"),
            ("n[1-2]-ib", "n2-ib", "n2"),
        ] {
            assert!(hostlist_contains(list, inside), "{list} {inside}");
            assert!(!hostlist_contains(list, outside), "{list} {outside}");
        }
        for broken in ["n[1-2", "n]1[", "[", "n[-]", "n[1-]", "ñ[1-2]", ""] {
            assert!(!hostlist_contains(broken, "n1"), "{broken}");
        }
    }

    #[test]
    fn running_jobs_are_parsed_and_limited() {
        let text = "3385 3385 ann\n x\nCLUSTER: lab\n3386  3380_5  bob \n7 \n8 ann\n9 --all ann\n10 10+0 ann\n";
        let jobs = running_jobs(text);
        let names: Vec<_> =
            jobs.iter().map(|listed| (&*listed.job.job, &*listed.id, listed.job.user.as_deref())).collect();
        assert_eq!(
            names,
            [("3385", "3385", Some("ann")), ("3386", "3380_5", Some("bob")), ("10", "10+0", Some("ann"))]
        );
        assert_eq!(running_jobs(&"7 7 ann\n".repeat(2000)).len(), MAX_NODE_JOBS);
    }

    #[test]
    fn the_cluster_name_is_parsed() {
        let config =
            "Configuration data as of 2025-01-01\nAccountingStorageHost   = db\nClusterName             = lab\n";
        assert_eq!(cluster_name(config).as_deref(), Some("lab"));
        assert_eq!(cluster_name("ClusterName = (null)\n"), None);
    }

    /// Prints the file `jobs` beside it, and fails without one.
    const SQUEUE: &str = "case $* in '-h -t RUNNING -o %A %i %u -w hgx-01') cat \"${0%/*}/jobs\" ;; *) exit 1 ;; esac";

    /// Uses this script as `scontrol`.
    fn with_scontrol(text: &str, node_names: &[&str]) -> (Slurm, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = write_script(folder.path(), "scontrol", text);
        let node_names = node_names.iter().map(|name| (*name).to_owned()).collect();
        let squeue = ProgramPath::at(Some(write_script(folder.path(), "squeue", SQUEUE)));
        let program = ProgramPath::at(Some(program));
        let slurm = Slurm { program, node_names, squeue, ..Slurm::new(BlockingPool::new()) };
        (slurm, folder)
    }

    /// Advances until the next query is not due. Returns all updates.
    fn run_until_idle(slurm: &mut Slurm, now: f64) -> SlurmUpdate {
        let (deadline, mut all) = (Instant::now() + Duration::from_secs(30), SlurmUpdate::default());
        while Instant::now() < deadline {
            let update = slurm.advance(now, false);
            all.cluster = update.cluster.or(all.cluster);
            all.allocated = update.allocated.or(all.allocated);
            all.jobs = update.jobs.or(all.jobs);
            all.ends.extend(update.ends);
            if matches!(&slurm.state, State::Idle { due } if *due > now) {
                return all;
            }
            std::thread::yield_now();
        }
        panic!("the query does not end: {slurm:?}")
    }

    #[test]
    fn the_node_is_queried_every_minute_and_the_cluster_once() {
        let script = format!(
            "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') echo '{NODE}' ;; \
             *) exit 1 ;; esac; echo \"$*\" >>\"$0.calls\""
        );
        let (mut slurm, folder) = with_scontrol(&script, &["elsewhere", "hgx-01"]);
        let update = run_until_idle(&mut slurm, 1.0);
        assert_eq!((update.cluster.as_deref(), update.allocated), (Some("lab"), Some(vec![0, 1, 5])));
        assert_eq!(slurm.advance(60.0, false), SlurmUpdate::default());
        assert_eq!(slurm.advance(60.0, true).allocated, Some(vec![0, 1, 5]));
        assert_eq!(run_until_idle(&mut slurm, 61.0), SlurmUpdate::default(), "nothing has changed");
        let arguments = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
        assert_eq!(arguments, "show config\n-d -o show node hgx-01\n-d -o show node hgx-01\n");
    }

    #[test]
    fn jobs_are_listed_when_the_allocation_changes_and_each_is_queried_once() {
        let script = format!(
            "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') cat \"$0.node\" ;; \
             '-d -o show job 3385') echo '{JOB}' ;; \
             '-d -o show job 3390') echo 'JobId=3390 Nodes=hgx-01 CPU_IDs=32 Mem=1 GRES=gpu:h100:1(IDX:2)' ;; \
             *) exit 1 ;; esac; echo \"$*\" >>\"$0.calls\""
        );
        let (mut slurm, folder) = with_scontrol(&script, &["hgx-01"]);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let calls = || {
            let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap_or_default();
            calls.lines().filter(|line| line.contains("job")).count()
        };
        let job = |job: &str, user: &str, gpus: &[u32]| SlurmJob {
            job: job.into(),
            user: Some(user.into()),
            gpus: gpus.to_vec(),
        };
        write("scontrol.node", "GresUsed=gpu:h100:3(IDX:0-1,5)");
        // The first job has ended when it is queried.
        write("jobs", "3386 3386 bob\n3385 3385 ann\n");
        let ann = job("3385", "ann", &[0, 1, 5]);
        assert_eq!(run_until_idle(&mut slurm, 1.0).jobs, Some(vec![ann.clone()]));
        assert_eq!(run_until_idle(&mut slurm, 61.0), SlurmUpdate::default());
        assert_eq!(calls(), 1, "an unchanged node is not listed again");
        write("scontrol.node", "GresUsed=gpu:h100:4(IDX:0-2,5)");
        write("jobs", "3385 3385 ann\n3390 3390 bob\n");
        let both = vec![ann, job("3390", "bob", &[2])];
        assert_eq!(run_until_idle(&mut slurm, 121.0).jobs, Some(both.clone()));
        assert_eq!(calls(), 2, "the known job is not queried again");
        assert_eq!(slurm.advance(122.0, true).jobs, Some(both));
        // Ten minutes later they are listed again.
        write("jobs", "3390 3390 bob\n");
        assert_eq!(run_until_idle(&mut slurm, 721.0).jobs, Some(vec![job("3390", "bob", &[2])]));
        // A node without allocated GPUs has no jobs with GPUs, and no query is needed to know it.
        write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
        std::fs::remove_file(folder.path().join("jobs")).unwrap();
        assert_eq!(run_until_idle(&mut slurm, 781.0).jobs, Some(vec![]));
        // If squeue fails, the jobs are unknown and the allocation is not.
        write("scontrol.node", "GresUsed=gpu:h100:1(IDX:4)");
        assert_eq!(run_until_idle(&mut slurm, 841.0).allocated, Some(vec![4]));
        assert_eq!((slurm.jobs, slurm.allocated), (None, Some(vec![4])));
    }

    #[test]
    fn jobs_are_queried_until_the_job_of_each_allocated_gpu_is_known() {
        // Many jobs without GPUs, then a task of an array with one, then a job that nobody needs to query.
        let script = "case $* in 'show config') echo 'ClusterName = lab' ;; \
             '-d -o show node hgx-01') echo 'GresUsed=gpu:h100:1(IDX:4)' ;; \
             '-d -o show job 100_7') echo 'JobId=507 ArrayJobId=100 Nodes=hgx-01 CPU_IDs=1 Mem=1 GRES=gpu:h100:1(IDX:4)' ;; \
             '-d -o show job '*) echo \"JobId=${5} Nodes=hgx-01 CPU_IDs=0 Mem=1 GRES=\" ;; esac; echo \"$*\" >>\"$0.calls\"";
        let (mut slurm, folder) = with_scontrol(script, &["hgx-01"]);
        let without_gpus: String = (1..=70).map(|job| format!("{job} {job} bob\n")).collect();
        std::fs::write(folder.path().join("jobs"), without_gpus + "507 100_7 ann\n508 508 bob\n").unwrap();
        let task = SlurmJob { job: "507".into(), user: Some("ann".into()), gpus: vec![4] };
        assert_eq!(run_until_idle(&mut slurm, 1.0).jobs, Some(vec![task]));
        let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
        assert_eq!(calls.lines().filter(|line| line.contains("job")).count(), 71);
        // Ten minutes later, the list is the same.
        assert_eq!(run_until_idle(&mut slurm, 601.0), SlurmUpdate::default());
        let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
        assert_eq!(calls.lines().filter(|line| line.contains("job")).count(), 71);
    }

    #[test]
    fn all_jobs_are_queried_at_a_long_interval() {
        let script = "case $* in 'show config') echo 'ClusterName = lab' ;; \
             '-d -o show node hgx-01') echo 'GresUsed=gpu:h100:8(IDX:0-7)' ;; \
             '-d -o show job '*) echo \"JobId=${5} Nodes=hgx-01 CPU_IDs=0 Mem=1 GRES=gpu:h100:1(IDX:${5})\" ;; esac";
        let (mut slurm, folder) = with_scontrol(script, &["hgx-01"]);
        std::fs::write(folder.path().join("jobs"), (0..8).map(|job| format!("{job} {job} bob\n")).collect::<String>())
            .unwrap();
        let query = |slurm: &Slurm| match &slurm.state {
            State::Querying { query, .. } => format!("{query:?}"),
            State::Idle { .. } => String::new(),
        };
        let (deadline, mut jobs) = (Instant::now() + Duration::from_secs(30), None);
        for sample in 0..40 {
            let before = query(&slurm);
            // Each program ends between two samples.
            while query(&slurm) == before && Instant::now() < deadline {
                jobs = slurm.advance(f64::from(sample) * 5.0, false).jobs.or(jobs);
                if matches!(slurm.state, State::Idle { .. }) {
                    break;
                }
                std::thread::yield_now();
            }
        }
        assert_eq!(jobs.map(|jobs| jobs.len()), Some(8), "{slurm:?}");
    }

    #[test]
    fn a_slurmctld_that_hangs_ends_the_queries_of_a_list_until_the_next_minute() {
        let script = format!(
            "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') echo '{NODE}' ;; \
             *) [ -e \"$0.hangs\" ] && exec sleep 600; echo '{JOB}' ;; esac"
        );
        let (mut slurm, folder) = with_scontrol(&script, &["hgx-01"]);
        std::fs::write(folder.path().join("jobs"), "3385 3385 ann\n3386 3386 bob\n").unwrap();
        let hangs = folder.path().join("scontrol.hangs");
        std::fs::write(&hangs, "").unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !matches!(slurm.state, State::Querying { query: Query::Job { .. }, .. }) && Instant::now() < deadline {
            slurm.advance(1.0, false);
            std::thread::yield_now();
        }
        slurm.pool.wait_until_idle(deadline);
        assert_eq!(run_until_idle(&mut slurm, 12.0).jobs, Some(vec![]), "neither job is known");
        assert!(matches!(slurm.state, State::Idle { due } if (71.5..72.5).contains(&due)), "{slurm:?}");
        std::fs::remove_file(hangs).unwrap();
        let job = SlurmJob { job: "3385".into(), user: Some("ann".into()), gpus: vec![0, 1, 5] };
        assert_eq!(run_until_idle(&mut slurm, 72.0).jobs, Some(vec![job]));
    }

    /// The output of `scontrol show job` (slurm, src/api/job_info.c): its name contains the line of a state.
    fn shown(state: &str, exit_code: &str) -> String {
        format!(
            "JobId=3385 JobName=JobState=COMPLETED Reason=None\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n   \
             Priority=4294901757 Nice=0 Account=lab QOS=normal\n   JobState={state} Dependency=(null)\n   \
             Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={exit_code}\n   RunTime=00:12:01 TimeLimit=1-00:00:00 \
             TimeMin=N/A\n   WorkDir=/home/ann/ExitCode=9:9\n"
        )
    }

    #[test]
    fn states_and_exit_codes_of_jobs_are_parsed() {
        let end = |state: &str, exit_status, signal| {
            Some(SlurmJobEnd { job: "3385".into(), state: state.into(), exit_status, signal })
        };
        for (state, exit_code, expected) in [
            ("COMPLETED Reason=None", "0:0", end("COMPLETED", Some(0), None)),
            ("FAILED Reason=NonZeroExitCode", "1:0", end("FAILED", Some(1), None)),
            ("FAILED Reason=RaisedSignal:9(Killed)", "0:9", end("FAILED", Some(0), Some(9))),
            ("OUT_OF_MEMORY Reason=OutOfMemory", "0:125", end("OUT_OF_MEMORY", Some(0), Some(125))),
            ("CANCELLED Reason=None", "0:15", end("CANCELLED", Some(0), Some(15))),
            ("TIMEOUT Reason=TimeLimit", "x", end("TIMEOUT", None, None)),
        ] {
            assert_eq!(job_end(&shown(state, exit_code), "3385"), expected, "{state}");
        }
        assert_eq!(job_end(&shown("COMPLETED Reason=None", "0:0"), "338"), None);
        for text in ["", "JobId=3385 JobName=x", "slurm_load_jobs error: Invalid job id specified"] {
            assert_eq!(job_end(text, "3385"), None, "{text}");
        }
    }

    /// Answers about the end of job 3385 with the file `end` beside it.
    const END_SCRIPT: &str = "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') cat \"$0.node\" ;; \
         '-d -o show job 3385') echo 'JobId=3385 Nodes=hgx-01 CPU_IDs=32 Mem=1 GRES=gpu:h100:1(IDX:2)' ;; \
         'show job 3385') echo x >>\"$0.calls\"; cat \"$0.end\" ;; *) exit 1 ;; esac";

    #[test]
    fn a_job_that_left_the_gpus_is_queried_until_its_epilog_has_run() {
        let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let calls =
            || std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap_or_default().lines().count();
        write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
        run_until_idle(&mut slurm, 1.0);
        // The query of the node may come first.
        let ends =
            |slurm: &mut Slurm, now: f64| [run_until_idle(slurm, now).ends, run_until_idle(slurm, now).ends].concat();
        // It left the GPUs and runs on. Its next step may leave them a minute later.
        write("scontrol.end", &shown("RUNNING Reason=None", "0:0"));
        for (now, queries) in [(2.0, 1), (9.0, 1), (100.0, 2)] {
            slurm.note_left(&"3385".into(), now);
            assert_eq!((ends(&mut slurm, now + 6.0), calls()), (vec![], queries));
        }
        write("scontrol.end", &shown("COMPLETING Reason=NonZeroExitCode", "1:0"));
        slurm.note_left(&"3385".into(), 200.0);
        assert_eq!((ends(&mut slurm, 205.0), calls()), (vec![], 3));
        assert_eq!((ends(&mut slurm, 214.0), calls()), (vec![], 3), "ten seconds later");
        write("scontrol.end", &shown("FAILED Reason=NonZeroExitCode", "1:0"));
        let end = SlurmJobEnd { job: "3385".into(), state: "FAILED".into(), exit_status: Some(1), signal: None };
        assert_eq!(ends(&mut slurm, 215.0), std::slice::from_ref(&end));
        slurm.note_left(&"3385".into(), 300.0);
        assert_eq!((slurm.advance(310.0, false).ends, calls()), (vec![], 4), "it is sent and queried once");
        run_until_idle(&mut slurm, 310.0);
        assert_eq!(slurm.advance(311.0, true).ends, [end]);
        // It was put back into the queue, runs and ends again.
        slurm.note_on_gpus([SafeText::from("3386")].iter());
        assert_eq!(slurm.ends.len(), 1, "another job");
        slurm.note_on_gpus([SafeText::from("3385")].iter());
        write("scontrol.end", &shown("COMPLETED Reason=None", "0:0"));
        slurm.note_left(&"3385".into(), 320.0);
        let states: Vec<_> = ends(&mut slurm, 326.0).into_iter().map(|end| end.state.to_string()).collect();
        assert_eq!((states, calls()), (vec!["COMPLETED".to_owned()], 5));
    }

    #[test]
    fn a_job_that_is_no_longer_listed_has_ended() {
        let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("scontrol.node", "GresUsed=gpu:h100:1(IDX:2)");
        write("jobs", "3385 3385 ann\n");
        assert_eq!(run_until_idle(&mut slurm, 1.0).jobs.map(|jobs| jobs.len()), Some(1));
        write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
        write("scontrol.end", &shown("PREEMPTED Reason=None", "0:15"));
        assert_eq!(run_until_idle(&mut slurm, 61.0).ends, []);
        let ends = run_until_idle(&mut slurm, 66.0).ends;
        assert_eq!(ends.iter().map(|end| &*end.state).collect::<Vec<_>>(), ["PREEMPTED"]);
    }

    #[test]
    fn a_job_whose_script_goes_on_after_its_process_is_queried_when_it_is_no_longer_listed() {
        let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("scontrol.node", "GresUsed=gpu:h100:1(IDX:2)");
        write("jobs", "3385 3385 ann\n");
        run_until_idle(&mut slurm, 1.0);
        write("scontrol.end", &shown("RUNNING Reason=None", "0:0"));
        slurm.note_left(&"3385".into(), 40.0);
        assert_eq!(run_until_idle(&mut slurm, 45.0).ends, []);
        write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
        write("scontrol.end", &shown("FAILED Reason=NonZeroExitCode", "1:0"));
        assert_eq!(run_until_idle(&mut slurm, 61.0).ends, []);
        assert_eq!(slurm.ends[0].state, EndState::Due(66.0));
    }

    #[test]
    fn a_query_of_an_end_that_cannot_start_delays_only_that_end() {
        let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
        std::fs::write(folder.path().join("scontrol.node"), "GresUsed=gpu:h100:0(IDX:N/A)").unwrap();
        run_until_idle(&mut slurm, 1.0);
        slurm.note_left(&"3385".into(), 1.0);
        let release = block(&slurm.pool, MAX_THREADS);
        // Fills the queue, too.
        while slurm.pool.run(|| ()).is_some() {}
        slurm.advance(7.0, false);
        assert!(matches!(slurm.state, State::Idle { due } if (60.5..61.5).contains(&due)), "{slurm:?}");
        assert_eq!(slurm.ends[0].state, EndState::Due(17.0));
        drop(release);
    }

    #[test]
    fn a_timeout_of_the_query_of_an_end_is_final() {
        let (mut slurm, _folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
        slurm.note_left(&"3385".into(), 1.0);
        let query = Query::End { job: "3385".into(), node_due: 61.0 }.timed_out();
        assert!(matches!(slurm.take_failure(query, 20.0), State::Idle { due } if (60.9..61.1).contains(&due)));
        assert_eq!(slurm.ends[0].state, EndState::Unknown(20.0 + RUNS_ON_SECONDS));
    }

    #[test]
    fn a_job_that_slurmctld_has_forgotten_is_queried_once() {
        let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
        std::fs::write(folder.path().join("scontrol.node"), "GresUsed=gpu:h100:0(IDX:N/A)").unwrap();
        run_until_idle(&mut slurm, 1.0);
        for job in ["3385", "s5K1KKYAYG5D00", "-a"] {
            slurm.note_left(&job.into(), 1.0);
        }
        assert_eq!(slurm.ends.len(), 1, "others are no job ids");
        for now in [7.0, 20.0, 50.0] {
            assert_eq!(run_until_idle(&mut slurm, now).ends, []);
        }
        let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
        assert_eq!(calls.lines().count(), 1);
        for job in 0..40 {
            slurm.note_left(&job.to_string().into(), 1.0);
        }
        assert_eq!(slurm.ends.len(), MAX_ENDS);
    }

    #[test]
    fn a_failing_slurmctld_is_retried_later() {
        let (mut slurm, _folder) = with_scontrol("exit 1", &["hgx-01"]);
        assert_eq!(run_until_idle(&mut slurm, 1.0), SlurmUpdate::default());
        assert!(matches!(slurm.state, State::Idle { due } if due >= 601.0));
        let (mut slurm, _folder) = with_scontrol("exec sleep 600", &["hgx-01"]);
        slurm.advance(1.0, false);
        slurm.pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
        assert!(matches!(slurm.state, State::Querying { .. }));
        assert_eq!(run_until_idle(&mut slurm, 12.0), SlurmUpdate::default());
    }

    #[test]
    fn a_scontrol_that_cannot_start_is_queried_once() {
        let (mut slurm, folder) = with_scontrol("echo x >>\"$0.calls\"; exit 1", &["hgx-01"]);
        let release = block(&slurm.pool, MAX_THREADS);
        for now in 0..10_000 {
            assert_eq!(slurm.advance(f64::from(now) / 1e4, true), SlurmUpdate::default());
        }
        drop(release);
        run_until_idle(&mut slurm, 1.0);
        let arguments = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
        assert_eq!(arguments.lines().count(), 1);
    }

    const SLUID: &str = "s5K1KKYAYG5D00";

    /// Uses this script as `scontrol`, and a prolog directory beside it.
    fn jobs_with_scontrol(text: &str) -> (SlurmJobs, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = write_script(folder.path(), "scontrol", text);
        let prolog_directory = folder.path().join("gpustat");
        std::fs::create_dir(&prolog_directory).unwrap();
        (
            SlurmJobs {
                program: ProgramPath::at(Some(program)),
                prolog_directory,
                ..SlurmJobs::new(BlockingPool::new())
            },
            folder,
        )
    }

    fn run_jobs_until_idle(jobs: &mut SlurmJobs, now: f64) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while (jobs.running.is_some() || !jobs.queued.is_empty()) && Instant::now() < deadline {
            jobs.advance(now);
            std::thread::yield_now();
        }
    }

    #[test]
    fn scontrol_is_run_once_per_job() {
        // Output of scontrol (slurm, src/scontrol/info_job.c).
        let script = "echo \"$*\" >>\"$0.calls\"; echo 'Slurm job id 3385 ends at Mon Nov 24 10:00:00 2025'; \
                      echo 'slurm_get_rem_time is 3600'";
        let (mut jobs, folder) = jobs_with_scontrol(script);
        let sluid = SafeText::new(SLUID);
        assert_eq!((jobs.job_id(&sluid, 77, None), jobs.job_id(&sluid, 78, None)), (None, None));
        run_jobs_until_idle(&mut jobs, 1.0);
        assert_eq!(jobs.job_id(&sluid, 78, None).as_deref(), Some("3385"));
        jobs.advance(10_000.0);
        assert_eq!(jobs.job_id(&sluid, 78, None).as_deref(), Some("3385"), "a known id is kept");
        assert_eq!(std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap(), "pidinfo 77\n");
    }

    #[test]
    fn prolog_files_give_the_job_of_a_user_with_one_job() {
        let (mut jobs, folder) = jobs_with_scontrol("exit 1");
        let write_prolog_file =
            |name: &str, text: &str| std::fs::write(folder.path().join("gpustat").join(name), text).unwrap();
        write_prolog_file("0", "45916256 1000\n");
        write_prolog_file("GPU-00000000-0000-4000-8000-000000000000", "45916256 1000\n");
        write_prolog_file("1", "77 1001\n");
        write_prolog_file("2", "78 1001\n");
        write_prolog_file("3", "no note");
        write_prolog_file("4", &"9".repeat(500));
        for (sluid, uid, expected) in [
            ("s00000000000A1", Some(1000), Some("45916256")),
            ("s00000000000A2", Some(1001), None),
            ("s00000000000A3", Some(1002), None),
            ("s00000000000A4", None, None),
        ] {
            let sluid = SafeText::new(sluid);
            assert_eq!(jobs.job_id(&sluid, 77, uid), None);
            run_jobs_until_idle(&mut jobs, 1.0);
            assert_eq!(jobs.job_id(&sluid, 77, uid).as_deref(), expected, "{sluid}");
        }
        assert!(jobs.queued.is_empty(), "no retry before the retry period");
        jobs.advance(601.0);
        jobs.job_id(&"s00000000000A2".into(), 77, None);
        assert_eq!(jobs.queued.len(), 1);
    }

    #[test]
    fn without_scontrol_and_prolog_files_no_job_is_resolved() {
        let mut jobs = SlurmJobs {
            program: ProgramPath::at(None),
            prolog_directory: "/nonexistent".into(),
            ..SlurmJobs::new(BlockingPool::new())
        };
        let sluid = SafeText::new(SLUID);
        assert_eq!(jobs.job_id(&sluid, 77, Some(0)), None);
        jobs.advance(1.0);
        assert_eq!((jobs.job_id(&sluid, 77, Some(0)), jobs.queued.len()), (None, 0));
        for text in ["", "Slurm job id ", "Slurm job id x ends", "slurm_pid2jobid error: Invalid job id specified"] {
            assert_eq!(parse_job_id(text), None, "{text:?}");
        }
    }
}
