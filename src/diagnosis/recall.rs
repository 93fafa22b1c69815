//! From one run of the program to the next: what the engine gives to be kept, and what it takes from it.

use super::engine::{Engine, HostMemory};
use super::memory::{MAX_ENTRIES, MAX_REMEMBERED, MEMORY_VERSION, Memory, RememberedProcess};
use super::track::{Ended, remember};
use super::view::process_in_words;
use super::watch::Beat;
use crate::fleet::{Fleet, Host, JobKey, Moment, ProcessKey};
use crate::hosts::Thresholds;
use crate::wire::SafeText;

/// CPU time that a process which does nothing may use between two sights: this much, and this share of the time.
const IDLE_CPU_SECONDS: f64 = 1.0;
const IDLE_CPU_SHARE: f64 = 0.002;

/// For how long after its first sight a job is compared with what was known before, in seconds.
const NEW: f64 = 90.0;

impl Engine {
    /// What is to be kept, as of `now`. `fleet` gives the names of the hosts.
    pub fn memory(&self, fleet: &Fleet, now: Moment) -> Memory {
        let unix = now.unix.as_secs_f64();
        let t = now.elapsed.as_secs_f64();
        let mut memory = Memory { version: MEMORY_VERSION, saved_unix_seconds: unix, ..self.recalled.clone() };
        // What was not seen in this run stays as it was.
        let is_seen = |name: &SafeText| {
            let seen = fleet
                .hosts()
                .iter()
                .filter(|host| self.hosts().get(host.id.0 as usize).is_some_and(|memory| memory.track.samples > 0));
            seen.into_iter().any(|host| host.name() == name)
        };
        memory.processes.retain(|process| !is_seen(&process.host));
        for host in fleet.hosts() {
            let Some(known) = self.hosts().get(host.id.0 as usize).filter(|known| known.track.samples > 0) else {
                continue;
            };
            for gpu in &known.gpus {
                if let (Some(watts), true) = (gpu.idle_watts, memory.idle_watts.len() < MAX_ENTRIES) {
                    memory.idle_watts.insert(gpu.identity.clone(), watts);
                }
            }
            for (id, severity) in known.watches.told().chain(known.link_watches.told()) {
                if memory.told.len() < MAX_ENTRIES {
                    memory.told.insert(id.clone(), severity);
                }
            }
            memory.processes.extend(known.remembered(host, unix, t));
        }
        memory.processes.sort_by(|a, b| b.seen_unix_seconds.total_cmp(&a.seen_unix_seconds));
        memory.processes.truncate(MAX_REMEMBERED);
        memory
    }

    /// Takes what an earlier run has kept. To be called before the first step.
    pub fn recall(&mut self, memory: Memory, _now: Moment) {
        self.recalled = memory;
    }
}

impl HostMemory {
    fn remembered<'a>(&'a self, host: &'a Host, unix: f64, t: f64) -> impl Iterator<Item = RememberedProcess> + 'a {
        let wall = move |at: f64| unix - (t - at);
        let jobs = self.jobs.iter().flat_map(|job| job.members.iter().map(move |member| (job, *member)));
        jobs.filter_map(move |(job, member)| {
            let process = self.processes.get(member)?;
            let idle = job.quiet.map(|run| job.idle_since.map_or(run.since, |since| since.min(run.since)));
            Some(RememberedProcess {
                host: host.name().clone(),
                boot_id: process.key.boot_id.clone(),
                pid: process.key.pid,
                start_ticks: process.key.start_ticks,
                seen_unix_seconds: wall(process.last_seen),
                idle_since_unix_seconds: idle.map(wall),
                cpu_seconds: process.cpu_seconds,
                label: SafeText::from(process_in_words(process, 1, Some(&job.key))),
                user: process.about.who.clone(),
                is_mine: job.is_mine,
                age_seconds: process.age,
                memory_bytes: process.most_memory,
                held_since_unix_seconds: process.held_since.map(wall),
                gpus: process.positions.iter().filter_map(|position| u16::try_from(*position).ok()).collect(),
                log_path: process.about.facts.as_ref().and_then(|facts| facts.log_path.clone()),
            })
        })
    }

    /// The first sample: what was learned of its GPUs, and which processes have ended since they were last seen.
    pub(super) fn recall(&mut self, host: &Host, memory: &Memory, limits: &Thresholds, beat: Beat) {
        let uuids = host.gpus().filter_map(|(info, _)| info.uuid.as_ref());
        self.recalled_watts = uuids.filter_map(|uuid| Some((uuid.clone(), *memory.idle_watts.get(uuid)?))).collect();
        let boot_id = host.hello.as_ref().and_then(|hello| hello.boot_id.as_ref());
        let is_read = host.inventory.as_ref().is_some_and(|inventory| inventory.error.is_none())
            && host.snapshot.as_ref().is_some_and(|snapshot| snapshot.driver_error.is_none());
        if !is_read || boot_id.is_none() {
            return;
        }
        for process in memory.processes.iter().filter(|process| process.host == *host.name()) {
            let key = key_of(process);
            let is_there = host.processes().any(|other| other.key == key);
            let held = process.held_since_unix_seconds.map_or(0.0, |since| process.seen_unix_seconds - since);
            let held = held.max(process.age_seconds.unwrap_or(0.0));
            let is_small = (process.memory_bytes as f64) < limits.job_ended.memory * 1_048_576.0;
            if is_there || held < limits.job_ended.held_for || is_small {
                continue;
            }
            let last_seen = beat.t - (beat.now.unix.as_secs_f64() - process.seen_unix_seconds).max(0.0);
            let ended = Ended {
                job: JobKey::Launcher(key),
                last_seen,
                missed_at: beat.t,
                label: process.label.to_string(),
                user: Some(process.user.clone()),
                is_mine: process.is_mine,
                age: process.age_seconds,
                most_memory: process.memory_bytes,
                positions: process.gpus.iter().map(|gpu| usize::from(*gpu)).collect(),
                log_path: process.log_path.clone(),
                by_reboot: process.boot_id.as_ref() != boot_id,
            };
            remember(&mut self.track.ended, ended);
        }
    }

    /// How long jobs have done nothing, from what an earlier run saw: CPU time that did not grow proves that nothing ran
    /// in between; and at the first sight from CPU time that is next to nothing for the process's age.
    pub(super) fn recall_idle(&mut self, host: &Host, memory: &Memory, beat: Beat, is_first: bool) {
        let unix = beat.now.unix.as_secs_f64();
        for job in self.jobs.iter_mut().filter(|job| job.quiet.is_some()) {
            // Rates need two samples: what a job does is known a moment after it is first seen.
            let is_new = beat.t - job.first_seen <= NEW || is_first;
            if !is_new || job.idle_since.is_some() {
                continue;
            }
            let members = || job.members.iter().filter_map(|member| self.processes.get(*member));
            let since = |process: &super::track::ProcessTrack| {
                let cpu = process.cpu_seconds?;
                let seen = memory.processes.iter().find(|old| old.host == *host.name() && key_of(old) == process.key);
                if let Some(old) = seen {
                    let gap = (unix - old.seen_unix_seconds).max(0.0);
                    let grown = cpu - old.cpu_seconds?;
                    let is_idle = (0.0..=IDLE_CPU_SECONDS + IDLE_CPU_SHARE * gap).contains(&grown);
                    return is_idle.then(|| {
                        beat.t - (unix - old.idle_since_unix_seconds.unwrap_or(old.seen_unix_seconds)).max(0.0)
                    });
                }
                // Any time in which it used a twentieth of a core or more adds up to at most this. Only where that is
                // next to nothing can it not have been spread over the whole age.
                let age = process.age?;
                let is_sure = (1.0..=60.0 + 0.001 * age).contains(&cpu);
                is_sure.then(|| beat.t - (age - 20.0 * cpu).max(0.0))
            };
            let all: Option<Vec<f64>> = members().map(since).collect();
            job.idle_since = all.and_then(|all| all.into_iter().reduce(f64::max)).filter(|since| *since < beat.t);
        }
    }
}

impl HostMemory {
    /// A long gap is over: what was beginning begins anew, what fires goes on.
    pub(super) fn begin_anew(&mut self) {
        self.watches.begin_anew();
        for gpu in &mut self.gpus {
            gpu.spin = None;
            gpu.rest = None;
        }
        for process in &mut self.processes {
            process.blocked = None;
        }
        for job in &mut self.jobs {
            job.still = None;
            let cpu: Option<f64> = job
                .members
                .iter()
                .filter_map(|member| self.processes.get(*member))
                .map(|process| process.cpu_seconds)
                .sum();
            let before = job.quiet.take().zip(cpu);
            job.before_gap =
                before.map(|(run, cpu)| (job.idle_since.map_or(run.since, |since| since.min(run.since)), cpu));
        }
    }

    /// Idleness from before a gap goes on where CPU time proves that nothing ran in between.
    pub(super) fn bridge_idle(&mut self, gap: f64) {
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
            if is_idle && job.quiet.is_some() {
                job.idle_since = Some(since);
            }
        }
    }
}

fn key_of(process: &RememberedProcess) -> ProcessKey {
    ProcessKey { boot_id: process.boot_id.clone(), pid: process.pid, start_ticks: process.start_ticks }
}
