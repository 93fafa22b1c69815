//! All external sources behind one interface.

use super::child::ChildProcess;
use super::containers::Containers;
use super::filesystems::Filesystems;
use super::slurm::Slurm;
use super::slurm_job_ids::SlurmJobs;
use crate::probe::blocking::BlockingPool;
use crate::wire::{HostReading, Owner, SafeText};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};

/// The external sources.
#[derive(Debug)]
pub(crate) struct ExternalSources {
    pool: BlockingPool,
    containers: Containers,
    jobs: SlurmJobs,
    filesystems: Filesystems,
    slurm: Slurm,
}

impl ExternalSources {
    /// `phase`, from 0 to 1, spreads queries of a server that many hosts share.
    pub(crate) fn new(phase: f64) -> Self {
        let pool = BlockingPool::new();
        Self {
            containers: Containers::new(pool.clone()),
            jobs: SlurmJobs::new(pool.clone()),
            filesystems: Filesystems::new(pool.clone()),
            slurm: Slurm::new(pool.clone(), phase),
            pool,
        }
    }

    /// Knows the id of one job.
    #[cfg(test)]
    pub(crate) fn with_job(sluid: &str, number: &str) -> Self {
        Self { jobs: SlurmJobs::with_job(sluid, number), ..Self::new(0.5) }
    }

    /// Advances all queries and writes new values into the host reading, or all known values if `resend`. `directories`
    /// are those of processes, each with the pid of its process.
    pub(crate) fn advance<'a>(
        &mut self,
        now: f64,
        resend: bool,
        directories: impl Iterator<Item = (u32, &'a SafeText)>,
        host: &mut HostReading,
    ) {
        self.pool.tend();
        self.containers.advance(now);
        self.jobs.advance(now);
        host.filesystems = self.filesystems.advance(now, resend, directories);
        let slurm = self.slurm.advance(now, resend);
        (host.slurm_cluster, host.slurm_allocated_gpus, host.slurm_jobs) = (slurm.cluster, slurm.allocated, slurm.jobs);
        host.slurm_ends = slurm.ends;
    }

    /// Notes the Slurm jobs that have processes on the GPUs.
    pub(crate) fn slurm_jobs_on_gpus<'a>(&mut self, jobs: impl Iterator<Item = &'a SafeText>) {
        self.slurm.ends().note_on_gpus(jobs);
    }

    /// Notes Slurm jobs whose last process has left the GPUs, here or before the probe started: they may have ended.
    pub(crate) fn slurm_jobs_left(&mut self, jobs: &[SafeText], now: f64) {
        for job in jobs {
            self.slurm.ends().note_left(job, now);
        }
    }

    /// Returns the name of the container or pod if it is known. `is_own`: the process belongs to the login user.
    pub(crate) fn container_name(&mut self, owner: &Owner, is_own: bool) -> Option<SafeText> {
        self.containers.name(owner, is_own)
    }

    /// Returns the id of the Slurm job with this SLUID if it is known. `pid` is one of its processes, `uid` its user.
    pub(crate) fn job_id(&mut self, sluid: &SafeText, pid: u32, uid: Option<u32>) -> Option<SafeText> {
        self.jobs.job_id(sluid, pid, uid)
    }

    /// Waits until all queries have ended, at most until `deadline`. `clock` returns the time that
    /// [`ExternalSources::advance`] takes. The next call of `advance` with `resend` returns the results.
    pub(crate) fn wait_until_idle(&mut self, deadline: Instant, clock: impl Fn() -> f64) {
        loop {
            self.advance(clock(), false, std::iter::empty(), &mut HostReading::default());
            if self.pool.wait_until_idle(deadline) && Instant::now() < deadline {
                continue;
            }
            let children = [self.containers.child(), self.jobs.child(), self.slurm.child()];
            let pipes =
                children.into_iter().flatten().chain(self.filesystems.children()).filter_map(ChildProcess::pipe);
            // The pipe hangs up when its child ends.
            let mut fds: Vec<_> = pipes.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::empty())).collect();
            let rest = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
            if fds.is_empty() || rest.is_zero() {
                return;
            }
            let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
            // The next iteration checks the children, whatever `poll` returns.
            let _ended_or_not = poll(&mut fds, Some(&timeout));
        }
    }
}
