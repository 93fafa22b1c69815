//! Saves the processes and jobs of a host, and restores the saved state of an earlier run.

use super::condition::SampleTime;
use super::host_diagnosis::{HostDiagnosis, is_idle_cpu_growth};
use super::job_ends::{EndedJob, Runs};
use super::saved_state::{SavedGpuUsage, SavedProcess, SavedState};
use super::track::push_bounded;
use super::track::{JobTrack, ProcessTrack};
use crate::config::Thresholds;
use crate::fleet::{Host, JobKey, ProcessKey};
use crate::wire::SafeText;

/// How long after its first sample a job is compared with the saved state, in seconds.
const NEW_JOB_SECONDS: f64 = 90.0;

impl HostDiagnosis {
    /// The processes of all jobs, to be saved. `unix` and `t` are the current time in seconds since 1970 and since the
    /// start.
    pub(super) fn saved_processes<'a>(
        &'a self,
        host: &'a Host,
        unix: f64,
        t: f64,
    ) -> impl Iterator<Item = SavedProcess> + 'a {
        let wall = move |at: f64| unix - (t - at);
        let jobs = self
            .jobs
            .iter()
            .flat_map(|job| job.members.iter().enumerate().map(move |(number, member)| (job, number, *member)));
        jobs.filter_map(move |(job, number, member)| {
            let process = self.processes.get(member)?;
            Some(SavedProcess {
                host: host.name().clone(),
                boot_id: process.key.boot_id.clone(),
                pid: process.key.pid,
                start_ticks: process.key.start_ticks,
                job: SafeText::from(job.key.to_string()),
                seen_unix_seconds: wall(process.last_seen),
                idle_since_unix_seconds: job.idle_start().map(wall),
                cpu_seconds: process.cpu_seconds,
                label: SafeText::from(process.describe(1, Some(&job.key))),
                user: process.info.who.clone(),
                is_mine: job.is_mine,
                age_seconds: process.age,
                memory_bytes: process.most_memory,
                held_since_unix_seconds: process.held_since.map(wall),
                gpus: process.positions.iter().filter_map(|position| u16::try_from(*position).ok()).collect(),
                log_path: process.log_path(),
                gpu_usage: if number == 0 { gpu_usage(job) } else { Vec::new() },
            })
        })
    }

    /// Restores the learned idle power, and records the jobs that ended since they were last seen. Called with the
    /// first sample.
    pub(super) fn restore(&mut self, host: &Host, saved: &SavedState, limits: &Thresholds, sample_time: SampleTime) {
        let uuids = host.gpus().filter_map(|(info, _)| info.uuid.as_ref());
        self.restored_idle_watts =
            uuids.filter_map(|uuid| Some((uuid.clone(), *saved.idle_watts.get(uuid)?))).collect();
        let boot_id = host.hello.as_ref().and_then(|hello| hello.boot_id.as_ref());
        let is_read = host.inventory.as_ref().is_some_and(|inventory| inventory.error.is_none())
            && host.snapshot.as_ref().is_some_and(|snapshot| snapshot.driver_error.is_none());
        if !is_read || boot_id.is_none() {
            return;
        }
        let mut jobs: Vec<Vec<&SavedProcess>> = Vec::new();
        for process in saved.processes.iter().filter(|process| process.host == *host.name()) {
            let same = |job: &&mut Vec<&SavedProcess>| {
                job.first().is_some_and(|first| first.job == process.job && first.boot_id == process.boot_id)
            };
            match jobs.iter_mut().find(same) {
                Some(job) if !process.job.is_empty() => job.push(process),
                _ => jobs.push(vec![process]),
            }
        }
        for job in jobs {
            let Some(first) = job.first() else { continue };
            let is_present = |process: &&SavedProcess| {
                let key = process_key(process);
                host.processes().any(|other| other.key == key)
            };
            let held = job.iter().map(|process| {
                let observed = process.held_since_unix_seconds.map_or(0.0, |since| process.seen_unix_seconds - since);
                observed.max(process.age_seconds.unwrap_or(0.0))
            });
            let most_memory: u64 = job.iter().map(|process| process.memory_bytes).fold(0, u64::saturating_add);
            let is_small = (most_memory as f64) < limits.job_ended.memory * 1_048_576.0;
            if is_small || held.fold(0.0, f64::max) < limits.job_ended.held_for || job.iter().any(is_present) {
                continue;
            }
            let seen = job.iter().map(|process| process.seen_unix_seconds).fold(f64::NEG_INFINITY, f64::max);
            let mut positions: Vec<usize> =
                job.iter().flat_map(|process| &process.gpus).map(|gpu| usize::from(*gpu)).collect();
            positions.sort_unstable();
            positions.dedup();
            let label = match job.len() {
                1 => first.label.to_string(),
                count => {
                    let pid = format!("pid {}", first.pid);
                    first.label.replacen(&pid, &format!("{pid} and {} more", count - 1), 1)
                }
            };
            let ended = EndedJob {
                repeats: 0,
                runs: Runs::Unknown,
                job: JobKey::Launcher(process_key(first)),
                last_seen: sample_time.t - (sample_time.now.unix.as_secs_f64() - seen).max(0.0),
                missed_at: sample_time.t,
                label,
                user: Some(first.user.clone()),
                is_mine: first.is_mine,
                age: job.iter().filter_map(|process| process.age_seconds).reduce(f64::max),
                most_memory,
                positions,
                log_path: first.log_path.clone(),
                by_reboot: first.boot_id.as_ref() != boot_id,
                noticed_at: sample_time.t,
                processes: job.len(),
                has_worked: false,
            };
            push_bounded(&mut self.host_track.job_ends.ended, ended);
        }
    }

    /// Restores how new jobs used their GPUs in an earlier run: the power of healthy work and the utilisation.
    pub(super) fn restore_gpu_usage(
        &mut self,
        host: &Host,
        saved: &SavedState,
        sample_time: SampleTime,
        is_first: bool,
    ) {
        for job in self.jobs.iter_mut().filter(|job| is_first || job.first_seen >= sample_time.t - 1e-6) {
            let of_host = saved.processes.iter().filter(|old| old.host == *host.name() && !old.gpu_usage.is_empty());
            let Some(old) = of_host
                .into_iter()
                .find(|old| job.members(&self.processes).any(|member| process_key(old) == member.key))
            else {
                continue;
            };
            for gpu in &mut job.gpus {
                if let Some(usage) = old.gpu_usage.iter().find(|usage| usage.gpu == gpu.identity) {
                    gpu.baseline.restore(usage);
                }
            }
        }
    }

    /// Restores how long new jobs have been idle: CPU time that did not grow since an earlier run proves that nothing
    /// ran in between. Without an earlier run, CPU time that is tiny for the age of the process proves it.
    pub(super) fn restore_idle_time(
        &mut self,
        host: &Host,
        saved: &SavedState,
        sample_time: SampleTime,
        is_first: bool,
    ) {
        let unix = sample_time.now.unix.as_secs_f64();
        for job in self.jobs.iter_mut().filter(|job| job.idle_run.is_some()) {
            // Rates need two samples, so the idle run of a new job begins after its first sample.
            let is_new = sample_time.t - job.first_seen <= NEW_JOB_SECONDS || is_first;
            if !is_new || job.idle_since.is_some() {
                continue;
            }
            let since = |process: &ProcessTrack| {
                let cpu = process.cpu_seconds?;
                let seen =
                    saved.processes.iter().find(|old| old.host == *host.name() && process_key(old) == process.key);
                if let Some(old) = seen {
                    let gap = (unix - old.seen_unix_seconds).max(0.0);
                    let grown = cpu - old.cpu_seconds?;
                    return is_idle_cpu_growth(grown, gap).then(|| {
                        sample_time.t - (unix - old.idle_since_unix_seconds.unwrap_or(old.seen_unix_seconds)).max(0.0)
                    });
                }
                // Times with at least a twentieth of a core add up to at most 20 times the CPU time. The rest of
                // its age was idle.
                let age = process.age?;
                let is_certain = (1.0..=60.0 + 0.001 * age).contains(&cpu);
                is_certain.then(|| sample_time.t - (age - 20.0 * cpu).max(0.0))
            };
            let all: Option<Vec<f64>> = job.members(&self.processes).map(since).collect();
            job.idle_since =
                all.and_then(|all| all.into_iter().reduce(f64::max)).filter(|since| *since < sample_time.t);
        }
    }
}

fn gpu_usage(job: &JobTrack) -> Vec<SavedGpuUsage> {
    job.gpus.iter().filter_map(|gpu| gpu.baseline.to_saved(&gpu.identity)).collect()
}

fn process_key(process: &SavedProcess) -> ProcessKey {
    ProcessKey { boot_id: process.boot_id.clone(), pid: process.pid, start_ticks: process.start_ticks }
}
