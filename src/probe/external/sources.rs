//! All who are asked, as one.

use super::child::ChildProcess;
use super::containers::Containers;
use super::filesystems::Filesystems;
use super::slurm::{Slurm, SlurmJobs};
use crate::probe::blocking::BlockingPool;
use crate::wire::{Filesystem, HostReading, Owner, SafeText};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};

/// What other programs tell.
#[derive(Debug)]
pub(crate) struct ExternalSources {
    pool: BlockingPool,
    containers: Containers,
    jobs: SlurmJobs,
    filesystems: Filesystems,
    slurm: Slurm,
}

impl ExternalSources {
    pub(crate) fn new() -> Self {
        let pool = BlockingPool::new();
        Self {
            containers: Containers::new(pool.clone()),
            jobs: SlurmJobs::new(pool.clone()),
            filesystems: Filesystems::new(pool.clone()),
            slurm: Slurm::new(pool.clone()),
            pool,
        }
    }

    /// Somebody has told the number of one job.
    #[cfg(test)]
    pub(crate) fn with_job(sluid: &str, number: &str) -> Self {
        Self { jobs: SlurmJobs::with_job(sluid, number), ..Self::new() }
    }

    /// Goes on asking, and writes what is new into the host's readings, or all that is known when `resend` asks for it.
    /// The directories are those of processes, each with a process that works there.
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
        let filesystems: Vec<Filesystem> = self.filesystems.advance(now, resend, directories);
        host.filesystems = filesystems;
        let slurm = self.slurm.advance(now, resend);
        (host.slurm_cluster, host.slurm_allocated_gpus) = (slurm.cluster, slurm.allocated);
    }

    /// The name of what a process runs in, where it is known. `is_own`: the process belongs to the login user.
    pub(crate) fn container_name(&mut self, owner: &Owner, is_own: bool) -> Option<SafeText> {
        self.containers.name(owner, is_own)
    }

    /// The number of a Slurm job that is known by its SLUID, by a process of it and its user, where it is known.
    pub(crate) fn job_id(&mut self, sluid: &SafeText, pid: u32, uid: Option<u32>) -> Option<SafeText> {
        self.jobs.job_id(sluid, pid, uid)
    }

    /// Waits until everybody has answered who is asked now, at most until `deadline`. `clock` tells the time that
    /// [`ExternalSources::step`] is given. What comes is told by the next step that is to tell all.
    pub(crate) fn wait_until_idle(&mut self, deadline: Instant, clock: impl Fn() -> f64) {
        loop {
            self.advance(clock(), false, std::iter::empty(), &mut HostReading::default());
            if self.pool.wait_until_idle(deadline) && Instant::now() < deadline {
                continue;
            }
            let children = [self.containers.child(), self.jobs.child(), self.slurm.child()];
            let pipes =
                children.into_iter().flatten().chain(self.filesystems.children()).filter_map(ChildProcess::pipe);
            // A pipe hangs up when its child ends.
            let mut fds: Vec<_> = pipes.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::empty())).collect();
            let rest = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
            if fds.is_empty() || rest.is_zero() {
                return;
            }
            let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
            // Whatever came of it, the next look tells.
            let _ended_or_not = poll(&mut fds, Some(&timeout));
        }
    }
}
