//! From one run of the program to the next: what the engine gives to be kept, and what it takes from it.

use super::conditions::Conditions;
use super::engine::{Engine, FLEET, HostDiagnosis};
use super::evaluation::SampleTime;
use super::notification_state::NotificationState;
use super::rule_context::format_process;
use super::saved_state::{MAX_ENTRIES, SAVED_STATE_VERSION, SavedGpuUsage, SavedJobEnd, SavedProcess, SavedState};
use super::track::{EndedJob, JobTrack, push_bounded};
use crate::config::Thresholds;
use crate::fleet::{Fleet, Host, JobKey, Moment, ProcessKey};
use crate::wire::SafeText;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// CPU time that a process which does nothing may use between two sights: this much, and this share of the time.
const IDLE_CPU_SECONDS: f64 = 1.0;
const IDLE_CPU_SHARE: f64 = 0.002;

/// For how long after its first sight a job is compared with what was known before, in seconds.
const NEW_JOB_SECONDS: f64 = 90.0;

impl Engine {
    /// What is to be kept, as of `now`. `fleet` gives the names of the hosts.
    pub fn memory(&self, fleet: &Fleet, now: Moment) -> SavedState {
        let unix = now.unix.as_secs_f64();
        let t = now.since_start().as_secs_f64();
        let wall = |at: f64| unix - (t - at);
        let mut memory =
            SavedState { version: SAVED_STATE_VERSION, saved_unix_seconds: unix, ..(*self.saved_state).clone() };
        let seen = || {
            fleet.hosts().iter().filter_map(|host| {
                let known = self.hosts().get(host.id.0 as usize)?;
                (known.host_track.samples > 0).then_some((host, known))
            })
        };
        // What was not seen in this run stays as it was.
        memory.seen_hosts = seen().map(|(host, _)| host.name().clone()).collect();
        memory.processes.retain(|process| !memory.seen_hosts.contains(&process.host));
        for (host, known) in seen() {
            for gpu in &known.gpus {
                if let (Some(watts), true) = (gpu.idle_watts, memory.idle_watts.len() < MAX_ENTRIES) {
                    memory.idle_watts.insert(gpu.identity.clone(), watts);
                }
            }
            memory.processes.extend(known.saved_processes(host, unix, t));
            memory.ended.extend(known.host_track.ended.iter().map(|ended| SavedJobEnd {
                host: host.name().clone(),
                label: SafeText::new(&ended.label),
                is_mine: ended.is_mine,
                seen_unix_seconds: wall(ended.last_seen),
                missed_unix_seconds: wall(ended.missed_at),
            }));
        }
        let of_hosts = self.hosts().iter().flat_map(|known| [&known.conditions, &known.link_conditions]);
        let told = of_hosts.chain([&self.conditions]).flat_map(Conditions::notified);
        let told = told.map(|(id, severity, cleared)| (id, severity, cleared.map(wall)));
        // A fingerprint begins with the rule and the host.
        let begun = seen().filter_map(|(_, known)| known.host_track.first_at).reduce(f64::min);
        let looked_since = |id: &SafeText| {
            let host = id.split('/').nth(1)?;
            if host == FLEET {
                return begun.map(wall);
            }
            let (_, known) = seen().find(|(seen, _)| seen.name().as_str() == host)?;
            known.host_track.first_at.map(wall)
        };
        memory.told = self.notification_state.retain_notified(told, looked_since, unix);
        let there: HashSet<&SafeText> = self.findings().map(|finding| &finding.id).collect();
        (memory.snoozed, memory.touched) = self.notification_state.retain_snoozes(|id| there.contains(id), unix);
        memory.ended_told_unix_seconds = self.job_ends_reported_unix;
        memory.bound();
        memory
    }

    /// Takes what an earlier run has kept. To be called before the first step.
    pub fn restore(&mut self, mut memory: SavedState, _now: Moment) {
        let (told, snoozes) = (std::mem::take(&mut memory.told), std::mem::take(&mut memory.snoozed));
        self.notification_state = Arc::new(NotificationState::restored(told, snoozes));
        self.job_ends_reported_unix = memory.ended_told_unix_seconds;
        self.saved_state = Arc::new(memory);
    }

    /// When an earlier run has looked last, on the wall clock; `None` where nothing is remembered.
    pub fn last_run_at(&self) -> Option<Duration> {
        let saved = self.saved_state.saved_unix_seconds;
        if saved > 0.0 { Duration::try_from_secs_f64(saved).ok() } else { None }
    }

    /// Jobs that have ended and of which nobody was told yet, the newest first, each with its host.
    pub fn unreported_job_ends(&self, fleet: &Fleet, now: Moment) -> Vec<SavedJobEnd> {
        let mut ended = self.memory(fleet, now).ended;
        ended.retain(|end| end.missed_unix_seconds > self.job_ends_reported_unix);
        ended
    }

    /// Somebody was told of all jobs that have ended so far.
    pub fn mark_job_ends_reported(&mut self, now: Moment) {
        self.job_ends_reported_unix = now.unix.as_secs_f64();
    }

    /// Whether an earlier run told of a finding and left it as it stood.
    pub fn was_active_before(&self, id: &SafeText) -> bool {
        self.notification_state.was_active_before(id)
    }
}

impl HostDiagnosis {
    fn saved_processes<'a>(&'a self, host: &'a Host, unix: f64, t: f64) -> impl Iterator<Item = SavedProcess> + 'a {
        let wall = move |at: f64| unix - (t - at);
        let jobs = self
            .jobs
            .iter()
            .flat_map(|job| job.members.iter().enumerate().map(move |(rank, member)| (job, rank, *member)));
        jobs.filter_map(move |(job, rank, member)| {
            let process = self.processes.get(member)?;
            let idle = job.idle_run.map(|run| job.idle_since.map_or(run.since, |since| since.min(run.since)));
            Some(SavedProcess {
                host: host.name().clone(),
                boot_id: process.key.boot_id.clone(),
                pid: process.key.pid,
                start_ticks: process.key.start_ticks,
                job: SafeText::from(job.key.to_string()),
                seen_unix_seconds: wall(process.last_seen),
                idle_since_unix_seconds: idle.map(wall),
                cpu_seconds: process.cpu_seconds,
                label: SafeText::from(format_process(process, 1, Some(&job.key))),
                user: process.info.who.clone(),
                is_mine: job.is_mine,
                age_seconds: process.age,
                memory_bytes: process.most_memory,
                held_since_unix_seconds: process.held_since.map(wall),
                gpus: process.positions.iter().filter_map(|position| u16::try_from(*position).ok()).collect(),
                log_path: process.info.facts.as_ref().and_then(|facts| facts.log_path.clone()),
                work: if rank == 0 { gpu_usage(job) } else { Vec::new() },
            })
        })
    }

    /// The first sample: what was learned of its GPUs, and which jobs have ended since they were last seen.
    pub(super) fn restore(&mut self, host: &Host, memory: &SavedState, limits: &Thresholds, sample_time: SampleTime) {
        let uuids = host.gpus().filter_map(|(info, _)| info.uuid.as_ref());
        self.restored_idle_watts =
            uuids.filter_map(|uuid| Some((uuid.clone(), *memory.idle_watts.get(uuid)?))).collect();
        let boot_id = host.hello.as_ref().and_then(|hello| hello.boot_id.as_ref());
        let is_read = host.inventory.as_ref().is_some_and(|inventory| inventory.error.is_none())
            && host.snapshot.as_ref().is_some_and(|snapshot| snapshot.driver_error.is_none());
        if !is_read || boot_id.is_none() {
            return;
        }
        let mut jobs: Vec<Vec<&SavedProcess>> = Vec::new();
        for process in memory.processes.iter().filter(|process| process.host == *host.name()) {
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
            let is_there = |process: &&SavedProcess| {
                let key = process_key(process);
                host.processes().any(|other| other.key == key)
            };
            let held = job.iter().map(|process| {
                let watched = process.held_since_unix_seconds.map_or(0.0, |since| process.seen_unix_seconds - since);
                watched.max(process.age_seconds.unwrap_or(0.0))
            });
            let most_memory: u64 = job.iter().map(|process| process.memory_bytes).fold(0, u64::saturating_add);
            let is_small = (most_memory as f64) < limits.job_ended.memory * 1_048_576.0;
            if is_small || held.fold(0.0, f64::max) < limits.job_ended.held_for || job.iter().any(is_there) {
                continue;
            }
            let seen = job.iter().map(|process| process.seen_unix_seconds).fold(f64::NEG_INFINITY, f64::max);
            let mut positions: Vec<usize> = job.iter().flat_map(|it| &it.gpus).map(|gpu| usize::from(*gpu)).collect();
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
            };
            push_bounded(&mut self.host_track.ended, ended);
        }
    }

    /// How a job used its GPUs before, from what an earlier run saw: what it drew while it was healthy, and that it has
    /// worked at all.
    pub(super) fn restore_gpu_usage(
        &mut self,
        host: &Host,
        memory: &SavedState,
        sample_time: SampleTime,
        is_first: bool,
    ) {
        for job in self.jobs.iter_mut().filter(|job| is_first || job.first_seen >= sample_time.t - 1e-6) {
            let members = || job.members.iter().filter_map(|member| self.processes.get(*member));
            let of_host = memory.processes.iter().filter(|old| old.host == *host.name() && !old.work.is_empty());
            let Some(old) = of_host.into_iter().find(|old| members().any(|member| process_key(old) == member.key))
            else {
                continue;
            };
            for gpu in &mut job.gpus {
                if let Some(work) = old.work.iter().find(|work| work.gpu == gpu.identity) {
                    gpu.baseline.restore(work);
                }
            }
        }
    }

    /// How long jobs have done nothing, from what an earlier run saw: CPU time that did not grow proves that nothing ran
    /// in between; and at the first sight from CPU time that is next to nothing for the process's age.
    pub(super) fn restore_idle_time(
        &mut self,
        host: &Host,
        memory: &SavedState,
        sample_time: SampleTime,
        is_first: bool,
    ) {
        let unix = sample_time.now.unix.as_secs_f64();
        for job in self.jobs.iter_mut().filter(|job| job.idle_run.is_some()) {
            // Rates need two samples: what a job does is known a moment after it is first seen.
            let is_new = sample_time.t - job.first_seen <= NEW_JOB_SECONDS || is_first;
            if !is_new || job.idle_since.is_some() {
                continue;
            }
            let members = || job.members.iter().filter_map(|member| self.processes.get(*member));
            let since = |process: &super::track::ProcessTrack| {
                let cpu = process.cpu_seconds?;
                let seen =
                    memory.processes.iter().find(|old| old.host == *host.name() && process_key(old) == process.key);
                if let Some(old) = seen {
                    let gap = (unix - old.seen_unix_seconds).max(0.0);
                    let grown = cpu - old.cpu_seconds?;
                    let is_idle = (0.0..=IDLE_CPU_SECONDS + IDLE_CPU_SHARE * gap).contains(&grown);
                    return is_idle.then(|| {
                        sample_time.t - (unix - old.idle_since_unix_seconds.unwrap_or(old.seen_unix_seconds)).max(0.0)
                    });
                }
                // Any time in which it used a twentieth of a core or more adds up to at most this. Only where that is
                // next to nothing can it not have been spread over the whole age.
                let age = process.age?;
                let is_sure = (1.0..=60.0 + 0.001 * age).contains(&cpu);
                is_sure.then(|| sample_time.t - (age - 20.0 * cpu).max(0.0))
            };
            let all: Option<Vec<f64>> = members().map(since).collect();
            job.idle_since =
                all.and_then(|all| all.into_iter().reduce(f64::max)).filter(|since| *since < sample_time.t);
        }
    }
}

impl HostDiagnosis {
    /// A long gap is over: what was beginning begins anew, what fires goes on.
    pub(super) fn restart_pending(&mut self) {
        self.conditions.restart_pending();
        for gpu in &mut self.gpus {
            gpu.spin_run = None;
            gpu.idle_run = None;
        }
        for process in &mut self.processes {
            process.blocked = None;
        }
        for job in &mut self.jobs {
            job.stalled_run = None;
            let cpu: Option<f64> = job
                .members
                .iter()
                .filter_map(|member| self.processes.get(*member))
                .map(|process| process.cpu_seconds)
                .sum();
            let before = job.idle_run.take().zip(cpu);
            job.before_gap =
                before.map(|(run, cpu)| (job.idle_since.map_or(run.since, |since| since.min(run.since)), cpu));
        }
    }

    /// Idleness from before a gap goes on where CPU time proves that nothing ran in between.
    pub(super) fn bridge_idle_gap(&mut self, gap: f64) {
        for job in self.jobs.iter_mut().filter(|job| job.before_gap.is_some()) {
            let cpu: Option<f64> = job
                .members
                .iter()
                .filter_map(|member| self.processes.get(*member))
                .map(|process| process.cpu_seconds)
                .sum();
            let Some((since, before)) = job.before_gap.take() else { continue };
            let is_idle =
                cpu.is_some_and(|cpu| (0.0..=IDLE_CPU_SECONDS + IDLE_CPU_SHARE * gap).contains(&(cpu - before)));
            if is_idle && job.idle_run.is_some() {
                job.idle_since = Some(since);
            }
        }
    }
}

fn gpu_usage(job: &JobTrack) -> Vec<SavedGpuUsage> {
    job.gpus.iter().filter_map(|gpu| gpu.baseline.to_saved(&gpu.identity)).collect()
}

fn process_key(process: &SavedProcess) -> ProcessKey {
    ProcessKey { boot_id: process.boot_id.clone(), pid: process.pid, start_ticks: process.start_ticks }
}
