//! The Slurm jobs of one host across its connections.
//!
//! A probe queries how a job ended when the job leaves the GPUs. If that happens while no probe runs, because the connection was
//! lost, the next probe does not know of the job. [`EarlierSlurmJobs`] remembers the jobs, and the next connection begins with those
//! whose end is not known. slurmctld knows an ended job for `MinJobAge`, 300 s by default.

use crate::wire::{Owner, SafeText, Snapshot, is_slurm_job_id, limits};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A job is remembered for this long after it was on the GPUs.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Maximum number of jobs. The probe queries the ends of as many.
const MAX_JOBS: usize = 32;

/// The Slurm jobs of one host.
#[derive(Debug, Default)]
pub(super) struct EarlierSlurmJobs {
    /// The jobs of the processes on the GPUs, by pid, as this connection has told them.
    by_pid: BTreeMap<u32, SafeText>,
    /// The jobs that hold GPUs, as this connection has told them.
    holding: Vec<SafeText>,
    /// The jobs whose end is not known, with the time at which they were last on the GPUs. The latest is the last.
    recent: Vec<(SafeText, Instant)>,
}

impl EarlierSlurmJobs {
    /// Begins a connection. Returns the jobs of earlier connections whose end may still be known to Slurm.
    pub(super) fn begin_connection(&mut self, now: Instant) -> Vec<SafeText> {
        self.by_pid.clear();
        self.holding.clear();
        self.recent.retain(|(_, at)| now.duration_since(*at) < REMEMBERED);
        self.recent.iter().map(|(job, _)| job.clone()).collect()
    }

    /// Records the jobs of a snapshot.
    pub(super) fn record(&mut self, snapshot: &Snapshot, now: Instant) {
        for facts in &snapshot.facts {
            match &facts.owner {
                Some(Owner::Slurm { job, .. }) if is_slurm_job_id(job) && self.by_pid.len() < limits::MAX_PROCESSES => {
                    self.by_pid.insert(facts.pid, job.clone());
                }
                _ => drop(self.by_pid.remove(&facts.pid)),
            }
        }
        if let Some(jobs) = &snapshot.host.slurm_jobs {
            let holding = jobs.iter().filter(|job| !job.gpus.is_empty() && is_slurm_job_id(&job.job)).take(MAX_JOBS);
            self.holding = holding.map(|job| job.job.clone()).collect();
        }
        // A driver that cannot be read lists no process.
        if !self.by_pid.is_empty() && snapshot.driver_error.is_none() {
            let pids: BTreeSet<u32> = snapshot.gpu_processes.pid.iter().flatten().copied().collect();
            self.by_pid.retain(|pid, _| pids.contains(pid));
        }
        let jobs: BTreeSet<&SafeText> = self.by_pid.values().chain(&self.holding).collect();
        if !jobs.is_empty() {
            self.recent.retain(|(job, _)| !jobs.contains(job));
            self.recent.extend(jobs.into_iter().map(|job| (job.clone(), now)));
            let surplus = self.recent.len().saturating_sub(MAX_JOBS);
            self.recent.drain(..surplus);
        }
        for end in &snapshot.host.slurm_ends {
            self.recent.retain(|(job, _)| *job != end.job);
            // The list may name it for another minute.
            self.holding.retain(|job| *job != end.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        DriverError, DriverErrorKind, GpuProcessColumns, GpuProcessReading, ProcessFacts, SlurmJob, SlurmJobEnd,
    };

    /// A snapshot with these pids on the GPUs and the facts of the jobs of some.
    fn snapshot(pids: &[u32], owners: &[(u32, &str)]) -> Snapshot {
        let rows: Vec<_> =
            pids.iter().map(|pid| GpuProcessReading { pid: Some(*pid), ..GpuProcessReading::default() }).collect();
        let facts = owners.iter().map(|(pid, job)| ProcessFacts {
            pid: *pid,
            owner: Some(Owner::Slurm { job: (*job).into(), step: None }),
            ..ProcessFacts::default()
        });
        Snapshot { gpu_processes: GpuProcessColumns::from_rows(&rows), facts: facts.collect(), ..Snapshot::default() }
    }

    #[test]
    fn jobs_on_the_gpus_are_remembered_for_five_minutes_or_until_their_end_is_known() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut jobs = EarlierSlurmJobs::default();
        assert_eq!(jobs.begin_connection(start), Vec::<SafeText>::new());
        // A SLUID is no job id.
        jobs.record(&snapshot(&[1, 2, 3], &[(1, "3385"), (2, "3386"), (3, "s5K1KKYAYG5D00")]), start);
        jobs.record(&snapshot(&[1], &[]), after(100));
        assert_eq!(
            jobs.begin_connection(after(200)),
            ["3386", "3385"],
            "also a job that has left, whose end is not known"
        );
        jobs.record(&snapshot(&[1], &[(1, "3385")]), after(210));
        let mut ended = snapshot(&[1], &[]);
        ended.host.slurm_ends = vec![SlurmJobEnd { job: "3386".into(), ..SlurmJobEnd::default() }];
        jobs.record(&ended, after(220));
        assert_eq!(jobs.begin_connection(after(519)), ["3385"]);
        assert_eq!(jobs.begin_connection(after(520)), Vec::<SafeText>::new());
    }

    #[test]
    fn a_job_that_holds_gpus_without_a_process_is_remembered() {
        let (start, mut jobs) = (Instant::now(), EarlierSlurmJobs::default());
        let mut holding = Snapshot::default();
        let job = |job: &str, gpus: &[u32]| SlurmJob { job: job.into(), user: None, gpus: gpus.to_vec() };
        holding.host.slurm_jobs = Some(vec![job("3385", &[0]), job("3386", &[])]);
        jobs.record(&holding, start);
        jobs.record(&Snapshot::default(), start + Duration::from_secs(250));
        assert_eq!(
            jobs.begin_connection(start + Duration::from_secs(400)),
            ["3385"],
            "the list applies until the next one"
        );
    }

    #[test]
    fn a_driver_that_cannot_be_read_ends_no_job() {
        let (start, mut jobs) = (Instant::now(), EarlierSlurmJobs::default());
        jobs.record(&snapshot(&[1], &[(1, "3385")]), start);
        let error = DriverError { kind: DriverErrorKind::Blocked, code: None, message: "hangs".into() };
        let unread = Snapshot { driver_error: Some(error), ..Snapshot::default() };
        jobs.record(&unread, start + Duration::from_secs(250));
        assert_eq!(jobs.begin_connection(start + Duration::from_secs(400)), ["3385"]);
    }

    #[test]
    fn the_number_of_jobs_is_limited() {
        let (start, mut jobs) = (Instant::now(), EarlierSlurmJobs::default());
        for pid in 0..100 {
            jobs.record(&snapshot(&[pid], &[(pid, &pid.to_string())]), start);
        }
        let earlier = jobs.begin_connection(start);
        assert_eq!((earlier.len(), earlier.last().map(|job| &**job)), (MAX_JOBS, Some("99")));
    }
}
