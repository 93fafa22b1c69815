//! Ids of Slurm jobs.
//!
//! [`SlurmJobs`] finds the id of a job whose cgroup contains only its SLUID (Slurm 26.05 and newer), if neither the
//! title of its slurmstepd nor the environment of its process contains the id: from `scontrol pidinfo`, else from the
//! files that a prolog writes for each GPU.

use super::child::{ChildProcess, ChildStatus, ProgramPath, find_program};
use crate::probe::blocking::BlockingPool;
use crate::wire::{SafeText, is_slurm_job_id};
use std::path::{Path, PathBuf};

/// Timeout of a query. slurmctld answers within seconds under load.
pub(super) const TIMEOUT_SECONDS: f64 = 10.0;
/// Directories searched after `PATH`.
pub(super) const SCONTROL_DIRECTORIES: [&str; 4] =
    ["/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"];
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
    is_slurm_job_id(job_id).then(|| SafeText::new(job_id))
}

/// Returns the job of this user if the prolog files name exactly one.
fn job_in_prolog_files(folder: &Path, uid: u32) -> Option<SafeText> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().take(MAX_PROLOG_FILES);
    let mut jobs = entries.filter_map(|entry| {
        let bytes = std::fs::read(entry.path()).ok().filter(|bytes| bytes.len() <= MAX_PROLOG_FILE_BYTES)?;
        let text = String::from_utf8(bytes).ok()?;
        let (job, owner) = text.trim().split_once(' ')?;
        (is_slurm_job_id(job) && owner.parse() == Ok(uid)).then(|| job.to_owned())
    });
    let first = jobs.next()?;
    jobs.all(|job| job == first).then(|| first.into())
}

/// Finds `scontrol`. May block.
pub(super) fn find_scontrol() -> Option<PathBuf> {
    find_program("scontrol", &SCONTROL_DIRECTORIES)
}

#[cfg(test)]
mod tests {
    use super::super::child::write_script;
    use super::*;
    use std::time::{Duration, Instant};

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
