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
//! [`SlurmJobs`] finds the id of a job whose cgroup contains only its SLUID (Slurm 26.05 and newer), if neither the
//! title of its slurmstepd nor the environment of its process contains the id: from `scontrol pidinfo`, else from the
//! files that a prolog writes for each GPU.

use super::child::{ChildProcess, ChildStatus, ProgramPath, find_program};
use crate::probe::blocking::BlockingPool;
use crate::wire::SafeText;
use std::path::{Path, PathBuf};

/// Query period.
const QUERY_SECONDS: f64 = 60.0;
/// Query period after a failure: slurmctld is down, or this host is not a node.
const RETRY_SECONDS: f64 = 600.0;
/// Timeout of a query. slurmctld answers within seconds under load.
const TIMEOUT_SECONDS: f64 = 10.0;
/// Directories searched after `PATH`.
const SCONTROL_DIRECTORIES: [&str; 4] = ["/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"];
/// Maximum number of GPUs of a node.
const MAX_GPUS: u32 = 512;

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
}

#[derive(Debug)]
enum State {
    /// Waits until the next query.
    Idle { due: f64 },
    /// Runs `scontrol`, first for the cluster name and then for the node.
    Querying { child: ChildProcess, is_config: bool },
}

/// The values that are new or are sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlurmUpdate {
    pub(crate) cluster: Option<SafeText>,
    pub(crate) allocated: Option<Vec<u32>>,
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
        }
    }

    /// Polls and starts queries. Returns the values that have changed, or all of them if `resend`.
    pub(crate) fn advance(&mut self, now: f64, resend: bool) -> SlurmUpdate {
        let previous = (self.cluster.clone(), self.allocated.clone());
        self.state = match std::mem::replace(&mut self.state, State::Idle { due: now }) {
            State::Idle { due } if now >= due => self.start_query(self.cluster.is_none(), now),
            idle @ State::Idle { .. } => idle,
            State::Querying { mut child, is_config } => match child.poll(now) {
                ChildStatus::Running | ChildStatus::TimedOut => State::Querying { child, is_config },
                ChildStatus::Finished(text) if is_config => {
                    self.cluster = cluster_name(&text);
                    self.start_query(false, now)
                }
                ChildStatus::Finished(text) => {
                    self.allocated = allocated_gpus(&text);
                    State::Idle { due: now + QUERY_SECONDS }
                }
                // Slurm may know the node by another name.
                ChildStatus::Failed if !is_config && self.node_name_index + 1 < self.node_names.len() => {
                    self.node_name_index += 1;
                    self.start_query(false, now)
                }
                ChildStatus::Failed => {
                    self.node_name_index = 0;
                    self.allocated = None;
                    State::Idle { due: now + RETRY_SECONDS }
                }
            },
        };
        let new = |is_new: bool| is_new || resend;
        SlurmUpdate {
            cluster: self.cluster.clone().filter(|_| new(self.cluster != previous.0)),
            allocated: self.allocated.clone().filter(|_| new(self.allocated != previous.1)),
        }
    }

    /// Returns the query in progress.
    pub(super) fn child(&self) -> Option<&ChildProcess> {
        match &self.state {
            State::Querying { child, .. } => Some(child),
            State::Idle { .. } => None,
        }
    }

    fn start_query(&self, is_config: bool, now: f64) -> State {
        let node = self.node_names.get(self.node_name_index).map_or("", String::as_str);
        let arguments: &[&str] = if is_config { &["show", "config"] } else { &["-d", "-o", "show", "node", node] };
        match ChildProcess::start(&self.pool, &self.program, arguments, now, TIMEOUT_SECONDS) {
            Some(child) => State::Querying { child, is_config },
            None => State::Idle { due: now + RETRY_SECONDS },
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

/// Parses the indices in `GresUsed=gpu:h100:3(IDX:0-1,5)` in the output of `scontrol -d -o show node`. There may be
/// several GPU types, with other resources between them. Returns `None` without `GresUsed`.
fn allocated_gpus(text: &str) -> Option<Vec<u32>> {
    let gres_used = text.split_whitespace().find_map(|word| word.strip_prefix("GresUsed="))?;
    let mut gpus = Vec::new();
    let mut remaining = gres_used;
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
    Some(gpus)
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

    #[test]
    fn the_cluster_name_is_parsed() {
        let config =
            "Configuration data as of 2025-01-01\nAccountingStorageHost   = db\nClusterName             = lab\n";
        assert_eq!(cluster_name(config).as_deref(), Some("lab"));
        assert_eq!(cluster_name("ClusterName = (null)\n"), None);
    }

    /// Uses this script as `scontrol`.
    fn with_scontrol(text: &str, node_names: &[&str]) -> (Slurm, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = write_script(folder.path(), "scontrol", text);
        let node_names = node_names.iter().map(|name| (*name).to_owned()).collect();
        let program = ProgramPath::at(Some(program));
        let slurm = Slurm { program, node_names, ..Slurm::new(BlockingPool::new()) };
        (slurm, folder)
    }

    /// Advances until the next query is not due. Returns all updates.
    fn run_until_idle(slurm: &mut Slurm, now: f64) -> SlurmUpdate {
        let (deadline, mut all) = (Instant::now() + Duration::from_secs(30), SlurmUpdate::default());
        while Instant::now() < deadline {
            let update = slurm.advance(now, false);
            all.cluster = update.cluster.or(all.cluster);
            all.allocated = update.allocated.or(all.allocated);
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
