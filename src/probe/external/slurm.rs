//! x

use super::child::{ChildProcess, ChildStatus, ProgramPath, find_program};
use crate::probe::blocking::BlockingPool;
use crate::wire::SafeText;
use std::path::{Path, PathBuf};

/// From one question to the next.
const QUERY_SECONDS: f64 = 60.0;
/// The same after a question that had no answer: the controller is down, or this host is no node.
const RETRY_SECONDS: f64 = 600.0;
/// A controller under load answers within seconds.
const TIMEOUT_SECONDS: f64 = 10.0;
/// Where installations by hand keep it.
const SCONTROL_DIRECTORIES: [&str; 4] = ["/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"];
/// The most GPUs of a node that are taken in.
const MAX_GPUS: u32 = 512;

/// Where the asking stands.
#[derive(Debug)]
pub(crate) struct Slurm {
    pool: BlockingPool,
    program: ProgramPath,
    state: State,
    /// The names by which the node may be known, most likely first.
    node_names: Vec<String>,
    /// Which of them is asked by.
    node_name_index: usize,
    cluster: Option<SafeText>,
    allocated: Option<Vec<u32>>,
}

#[derive(Debug)]
enum State {
    /// Until the next question.
    Idle { due: f64 },
    /// A child is asked: for the cluster's name first, then for the node.
    Querying { child: ChildProcess, is_config: bool },
}

/// What is known, where something is new or to be said again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlurmUpdate {
    pub(crate) cluster: Option<SafeText>,
    pub(crate) allocated: Option<Vec<u32>>,
}

impl Slurm {
    /// For the node of this name.
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

    /// Goes on asking; what is new, or all that is known when `resend` asks for it.
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
                // Perhaps it is known by another name.
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

    /// The child that is asked.
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

/// Where `scontrol` is.
pub(super) fn find_scontrol() -> Option<PathBuf> {
    find_program("scontrol", &SCONTROL_DIRECTORIES)
}

/// `ClusterName             = lab` in what `scontrol show config` says.
fn cluster_name(text: &str) -> Option<SafeText> {
    let line = text.lines().find(|line| line.starts_with("ClusterName"))?;
    let name = line.split_once('=')?.1.trim();
    (!name.is_empty() && name != "(null)").then(|| SafeText::new(name))
}

/// The indices in `GresUsed=gpu:h100:3(IDX:0-1,5)` of what `scontrol -d -o show node` says; there may be several kinds
/// of GPU, and other resources between them. `None` where the node says nothing of the sort.
fn allocated_gpus(text: &str) -> Option<Vec<u32>> {
    let gres_used = text.split_whitespace().find_map(|word| word.strip_prefix("GresUsed="))?;
    let mut gpus = Vec::new();
    let mut remaining = gres_used;
    while let Some(start) = remaining.find("gpu:") {
        // `mps:gpu:` and the like are none; a kind stands at the beginning or behind a comma.
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

/// The numbers in `0-1,5`; none in `N/A`.
fn indices(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (last < MAX_GPUS).then_some(first..=last)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// A job of which nobody knew the number is asked about again after so long.
const JOB_RETRY_SECONDS: f64 = 600.0;
/// The most jobs that are remembered, and that wait.
const MAX_JOBS: usize = 256;
/// Where the prolog of Princeton's jobstats writes a file for each GPU that a job holds, `JOB UID`.
const PROLOG_DIRECTORY: &str = "/run/gpustat";
/// The most of those that are read, and of each.
const MAX_PROLOG_FILES: usize = 256;
const MAX_PROLOG_FILE_BYTES: usize = 64;

/// What is known, and who is asked.
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

/// A job by one of its processes.
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
    /// When it was asked about, by the clock of [`SlurmJobs::step`].
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

    /// One job is known, and nobody can be asked about others.
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

    /// The number of the job to which this process of this user belongs, where it is known by now.
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

    /// Goes on asking, one job at a time.
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

    /// The child that is asked.
    pub(super) fn child(&self) -> Option<&ChildProcess> {
        self.running.as_ref().map(|(_, child)| child)
    }

    fn record_job(&mut self, job: JobQuery, job_id: Option<SafeText>, queried_at: f64) {
        let job_id = job_id.or_else(|| job_in_prolog_files(&self.prolog_directory, job.uid?));
        // What came first has most likely ended first.
        if self.resolved.len() >= MAX_JOBS {
            self.resolved.remove(0);
        }
        self.resolved.push(ResolvedJob { sluid: job.sluid, job_id, queried_at });
    }
}

/// `Slurm job id 3385 ends at Mon Nov 24 10:00:00 2025`.
fn parse_job_id(text: &str) -> Option<SafeText> {
    let job_id = text.strip_prefix("Slurm job id ")?.split_ascii_whitespace().next()?;
    is_number(job_id).then(|| SafeText::new(job_id))
}

/// The only job of this user among the notes; of two it could be either.
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

    /// As Slurm 23.11 prints it on a node with eight H100, shortened (man page of scontrol, and schedmd's gres.html).
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

    /// With a `scontrol` that is this script.
    fn with_scontrol(text: &str, node_names: &[&str]) -> (Slurm, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = write_script(folder.path(), "scontrol", text);
        let node_names = node_names.iter().map(|name| (*name).to_owned()).collect();
        let program = ProgramPath::at(Some(program));
        let slurm = Slurm { program, node_names, ..Slurm::new(BlockingPool::new()) };
        (slurm, folder)
    }

    /// Steps until it rests; everything that was said on the way.
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
        panic!("it never rests: {slurm:?}")
    }

    #[test]
    fn the_node_is_queried_every_minute_and_the_cluster_once() {
        let script = format!(
            "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') echo '{NODE}' ;; \
             *) exit 1 ;; esac; echo \"$*\" >>\"$0.asked\""
        );
        let (mut slurm, folder) = with_scontrol(&script, &["elsewhere", "hgx-01"]);
        let update = run_until_idle(&mut slurm, 1.0);
        assert_eq!((update.cluster.as_deref(), update.allocated), (Some("lab"), Some(vec![0, 1, 5])));
        assert_eq!(slurm.advance(60.0, false), SlurmUpdate::default());
        assert_eq!(slurm.advance(60.0, true).allocated, Some(vec![0, 1, 5]));
        assert_eq!(run_until_idle(&mut slurm, 61.0), SlurmUpdate::default(), "nothing has changed");
        let arguments = std::fs::read_to_string(folder.path().join("scontrol.asked")).unwrap();
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
        let (mut slurm, folder) = with_scontrol("echo x >>\"$0.asked\"; exit 1", &["hgx-01"]);
        let release = block(&slurm.pool, MAX_THREADS);
        for now in 0..10_000 {
            assert_eq!(slurm.advance(f64::from(now) / 1e4, true), SlurmUpdate::default());
        }
        drop(release);
        run_until_idle(&mut slurm, 1.0);
        let arguments = std::fs::read_to_string(folder.path().join("scontrol.asked")).unwrap();
        assert_eq!(arguments.lines().count(), 1);
    }

    const SLUID: &str = "s5K1KKYAYG5D00";

    /// With a `scontrol` that is this script, and notes in the same folder.
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
        // What scontrol prints (slurm, src/scontrol/info_job.c).
        let script = "echo \"$*\" >>\"$0.asked\"; echo 'Slurm job id 3385 ends at Mon Nov 24 10:00:00 2025'; \
                      echo 'slurm_get_rem_time is 3600'";
        let (mut jobs, folder) = jobs_with_scontrol(script);
        let sluid = SafeText::new(SLUID);
        assert_eq!((jobs.job_id(&sluid, 77, None), jobs.job_id(&sluid, 78, None)), (None, None));
        run_jobs_until_idle(&mut jobs, 1.0);
        assert_eq!(jobs.job_id(&sluid, 78, None).as_deref(), Some("3385"));
        jobs.advance(10_000.0);
        assert_eq!(jobs.job_id(&sluid, 78, None).as_deref(), Some("3385"), "what is known stays");
        assert_eq!(std::fs::read_to_string(folder.path().join("scontrol.asked")).unwrap(), "pidinfo 77\n");
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
        assert!(jobs.queued.is_empty(), "what nobody knows is not asked about again at once");
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
