//! One sample is taken in: GPUs, processes, jobs and the host's counters, each beside what is remembered of it.

use super::engine::HostDiagnosis;
use super::evaluation::SampleTime;
use super::model_server::serves_models;
use super::rule_context::{format_process, program};
use super::rules::memory::leak;
use super::track::{EndedJob, GpuTrack, IdleThresholds, JobGpu, JobTrack, ProcessTrack, SpinThresholds, push_bounded};
use crate::config::Thresholds;
use crate::fleet::{Host, JobKey, Process, ProcessMetric, SeriesKey};
use crate::wire::{GpuInfo, Presence, SafeText};
use std::sync::Arc;
use std::time::Duration;

/// GPUs that left the inventory and may come back keep what was learned of them, up to this many.
const MAX_ABSENT: usize = 16;
/// The most processes that are followed on a host.
const MAX_PROCESSES: usize = 256;

const MIB: u64 = 1 << 20;

impl HostDiagnosis {
    /// Takes a sample in. Returns whether the processes or their jobs changed.
    pub(super) fn update(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) -> bool {
        let boot_id = host.hello.as_ref().and_then(|hello| hello.boot_id.clone());
        let is_reboot = self.host_track.boot_id.is_some() && boot_id.is_some() && self.host_track.boot_id != boot_id;
        if is_reboot {
            self.reboot(host, limits, sample_time.t);
        }
        self.host_track.boot_id = boot_id.or(self.host_track.boot_id.take());
        let before: Vec<SafeText> = self.gpus.iter().map(|gpu| gpu.identity.clone()).collect();
        let has_moved = self.align(host);
        self.update_gpus(host, limits, sample_time);
        let has_changed = self.update_processes(host, limits, &before, sample_time);
        if has_changed || has_moved {
            self.group_into_jobs(host, limits, sample_time.t);
        }
        self.update_jobs(host, limits, sample_time);
        self.check_leaks(host, limits, sample_time);
        self.update_host(host, sample_time.t);
        has_changed || has_moved
    }

    /// Nothing that ran before a reboot runs now.
    fn reboot(&mut self, host: &Host, limits: &Thresholds, t: f64) {
        let all: Vec<usize> = (0..self.processes.len()).collect();
        self.record_job_ends(&all, host, limits, t, true);
        self.processes.clear();
        self.jobs.clear();
        self.host_track.known_gpus.clear();
        self.host_track.oom_kills = None;
        for gpu in &mut self.gpus {
            gpu.ecc_baseline = None;
            gpu.links_seen = 0;
        }
    }

    /// Brings what is remembered of GPUs into the order of the inventory. Returns whether that changed.
    fn align(&mut self, host: &Host) -> bool {
        let same = |track: &GpuTrack, info: &GpuInfo| match &info.uuid {
            Some(uuid) => track.identity == *uuid,
            None => track.identity == identity(info),
        };
        let is_aligned = self.gpus.len() == host.gpus().len()
            && self.gpus.iter().zip(host.gpus()).all(|(track, (info, _))| same(track, info));
        if is_aligned {
            return false;
        }
        let mut old = std::mem::take(&mut self.gpus);
        old.append(&mut self.absent);
        for (info, _) in host.gpus() {
            let track = if let Some(place) = old.iter().position(|track| same(track, info)) {
                old.swap_remove(place)
            } else {
                let identity = identity(info);
                let learned = self.restored_idle_watts.get(&identity).copied();
                GpuTrack::new(identity, learned)
            };
            self.gpus.push(track);
        }
        old.truncate(MAX_ABSENT);
        self.absent = old;
        true
    }

    fn update_gpus(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) {
        let bounds = SpinThresholds {
            utilization: limits.stuck_spin.utilization,
            memory: limits.stuck_spin.memory_max,
            rest: limits.missing_rank.utilization,
        };
        let past = host.snapshot.as_ref().map(|snapshot| (snapshot.monotonic_seconds, &snapshot.recent_past));
        for (position, (track, (info, reading))) in self.gpus.iter_mut().zip(host.gpus()).enumerate() {
            // What the driver remembers is from before the first sample; later it would be told twice.
            if let (Some((monotonic, past)), true) = (past, self.host_track.samples == 0) {
                track.limit = reading.power_limit_watts.or(info.power_limit_watts);
                for past in past.iter().filter(|past| usize::from(past.gpu) == position) {
                    let back = (monotonic - past.end_monotonic_seconds).clamp(0.0, 3600.0);
                    track.backfill(past, sample_time.t - back.max(0.5), bounds);
                }
            }
            let has_context = host.processes().any(|process| !process.is_stale && process.computes_on(position));
            track.update(
                info,
                reading,
                host.gpu_health(position),
                has_context,
                bounds,
                (sample_time.t, sample_time.dt),
            );
        }
    }

    /// Returns whether there are other processes than before, or other facts about them.
    fn update_processes(
        &mut self,
        host: &Host,
        limits: &Thresholds,
        before: &[SafeText],
        sample_time: SampleTime,
    ) -> bool {
        let count = host.processes().len().min(MAX_PROCESSES);
        let same = |(track, process): (&ProcessTrack, &Process)| is_same_process(track, process);
        // Both lists are by ascending pid and most of the time the same.
        let has_moved = self.processes.len() != count || !self.processes.iter().zip(host.processes()).all(same);
        if has_moved {
            self.align_processes(host, limits, before, sample_time);
        }
        let held_bytes = (limits.job_ended.memory * MIB as f64) as u64;
        let mut has_changed = has_moved;
        for (track, process) in self.processes.iter_mut().zip(host.processes()) {
            has_changed |= !Arc::ptr_eq(&track.info, &process.info) || track.is_stale != process.is_stale;
            has_changed |= !track.positions.iter().copied().eq(process.gpu_positions());
            track.key = process.key.clone();
            track.update(process, held_bytes, limits.dstate_hang.share, (sample_time.t, sample_time.dt));
        }
        has_changed
    }

    /// Brings what is remembered of processes into the order of the host's, with those that are new; what is missing
    /// has ended.
    fn align_processes(&mut self, host: &Host, limits: &Thresholds, before: &[SafeText], sample_time: SampleTime) {
        let mut old: Vec<Option<ProcessTrack>> = std::mem::take(&mut self.processes).into_iter().map(Some).collect();
        let aligned = host.processes().take(MAX_PROCESSES).map(|process| {
            let found = old.iter_mut().find(|slot| slot.as_ref().is_some_and(|track| is_same_process(track, process)));
            found.and_then(Option::take).unwrap_or_else(|| ProcessTrack::new(process, sample_time.t))
        });
        let aligned: Vec<ProcessTrack> = aligned.collect();
        let is_cut = host.snapshot.as_ref().is_some_and(|snapshot| snapshot.processes_left_out > 0);
        let has_lost_gpu = |track: &ProcessTrack| {
            let identities = track.positions.iter().filter_map(|position| before.get(*position));
            identities.into_iter().any(|identity| !self.gpus.iter().any(|gpu| gpu.identity == *identity))
        };
        let ended: Vec<ProcessTrack> =
            old.into_iter().flatten().filter(|track| !is_cut && !has_lost_gpu(track)).collect();
        if !ended.is_empty() {
            let places: Vec<usize> = (0..ended.len()).collect();
            self.processes = ended;
            self.detect_job_ends(&aligned, &places, host, limits, sample_time.t);
        }
        self.processes = aligned;
    }

    fn detect_job_ends(&mut self, alive: &[ProcessTrack], ended: &[usize], host: &Host, limits: &Thresholds, t: f64) {
        // A job ends with its last process.
        let is_over = |place: &usize| {
            let job = &self.processes[*place].info.job;
            !alive.iter().any(|process| process.info.job == *job)
        };
        let over: Vec<usize> = ended.iter().copied().filter(is_over).collect();
        self.record_job_ends(&over, host, limits, t, false);
    }

    /// Notes the jobs of these processes as ended, when they held enough memory for long enough.
    fn record_job_ends(&mut self, places: &[usize], host: &Host, limits: &Thresholds, t: f64, by_reboot: bool) {
        let login = host.hello.as_ref().and_then(|hello| hello.login_uid);
        let mut jobs: Vec<(&JobKey, Vec<&ProcessTrack>)> = Vec::new();
        for process in places.iter().filter_map(|place| self.processes.get(*place)) {
            match jobs.iter_mut().find(|(job, _)| **job == process.info.job) {
                Some((_, members)) => members.push(process),
                None => jobs.push((&process.info.job, vec![process])),
            }
        }
        let min_held = limits.job_ended.held_for;
        let mut ended = Vec::new();
        for (job, members) in jobs {
            let held = members.iter().filter_map(|process| {
                let watched = process.last_seen - process.held_since?;
                // A process that held its memory when it was first seen has held it for longer than that.
                let age = process.age.filter(|_| process.held_since.is_some_and(|at| at <= process.first_seen));
                Some(age.unwrap_or(0.0).max(watched))
            });
            let Some(first) = members.first() else { continue };
            if held.fold(0.0, f64::max) < min_held {
                continue;
            }
            let mut positions: Vec<usize> = members.iter().flat_map(|process| process.positions.clone()).collect();
            positions.sort_unstable();
            positions.dedup();
            ended.push(EndedJob {
                job: job.clone(),
                last_seen: members.iter().map(|process| process.last_seen).fold(f64::NEG_INFINITY, f64::max),
                missed_at: t,
                label: format_process(first, members.len(), Some(job)),
                user: Some(first.info.who.clone()),
                is_mine: login.is_some() && first.info.facts.as_ref().and_then(|facts| facts.uid) == login,
                age: members.iter().filter_map(|process| process.age).reduce(f64::max),
                most_memory: members.iter().map(|process| process.most_memory).sum(),
                positions,
                log_path: first.info.facts.as_ref().and_then(|facts| facts.log_path.clone()),
                by_reboot,
            });
        }
        for job in ended {
            push_bounded(&mut self.host_track.ended, job);
        }
    }

    /// Sorts the processes into jobs; a job that goes on keeps what is remembered of it.
    fn group_into_jobs(&mut self, host: &Host, limits: &Thresholds, t: f64) {
        let mut old = std::mem::take(&mut self.jobs);
        let mut jobs: Vec<JobTrack> = Vec::new();
        for (place, process) in host.processes().take(MAX_PROCESSES).enumerate() {
            let is_gone = process.reading.presence == Some(Presence::Gone) || process.key.pid == 0;
            let positions: Vec<usize> =
                process.gpu_positions().filter(|position| process.computes_on(*position)).collect();
            if is_gone || positions.is_empty() {
                continue;
            }
            let key = &process.info.job;
            let at = jobs.iter().position(|job| job.key == *key).unwrap_or_else(|| {
                jobs.push(match old.iter().position(|job| job.key == *key) {
                    Some(place) => old.swap_remove(place).without_members(),
                    None => JobTrack::new(key.clone(), t),
                });
                jobs.len() - 1
            });
            let job = &mut jobs[at];
            job.members.push(place);
            job.is_server |= serves_models(process, limits);
            job.is_notebook |= is_notebook(process);
            job.is_mine |= host.belongs_to_login_user(process);
            for position in positions {
                let Some(track) = self.gpus.get(position) else { continue };
                if !job.gpus.iter().any(|gpu| gpu.position == position) {
                    let gpu = job.take_gpu(position, &track.identity);
                    job.gpus.push(gpu);
                }
            }
        }
        let computing: Vec<usize> = jobs.iter().flat_map(|job| job.gpus.iter().map(|gpu| gpu.position)).collect();
        for job in &mut jobs {
            job.drop_removed_gpus();
            // Most jobs are of one process on one GPU, and a list that grows has room for four.
            job.gpus.shrink_to_fit();
            job.members.shrink_to_fit();
            job.gpus.sort_by_key(|gpu| gpu.position);
            for gpu in &mut job.gpus {
                gpu.is_exclusive = computing.iter().filter(|position| **position == gpu.position).count() == 1;
            }
        }
        jobs.shrink_to_fit();
        self.jobs = jobs;
    }

    fn update_jobs(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) {
        let bounds = IdleThresholds {
            idle_utilization: limits.idle_hog.utilization,
            idle_cores: limits.idle_hog.cpu,
            still_utilization: limits.job_stalled.utilization,
            still_cores: limits.job_stalled.cpu,
            active_utilization: limits.job_stalled.active_utilization,
            young: limits.input_stall.young,
            straggler: (limits.gpu_imbalance.utilization, limits.gpu_imbalance.power),
        };
        let processes: Vec<&Process> = host.processes().take(MAX_PROCESSES).collect();
        for job in &mut self.jobs {
            let is_stale = job.members.iter().any(|member| processes[*member].is_stale);
            let is_read = |gpu: &JobGpu| self.gpus.get(gpu.position).is_some_and(|track| track.is_readable);
            job.is_readable = !is_stale && job.gpus.iter().all(is_read);
            for gpu in &mut job.gpus {
                let usages = job.members.iter().filter_map(|member| processes[*member].usage_on(gpu.position));
                gpu.memory_bytes =
                    usages.clone().filter_map(|usage| usage.gpu_memory_bytes).reduce(u64::saturating_add);
                gpu.activity = if gpu.is_exclusive {
                    self.gpus.get(gpu.position).and_then(|track| track.utilization)
                } else {
                    shared_activity(usages.filter_map(|usage| usage.sm_percent).max(), &processes, gpu.position)
                };
            }
            job.update(&self.gpus, &self.processes, bounds, (sample_time.t, sample_time.dt));
        }
    }

    /// Looks at the two hours of one process: each has its turn once a minute or so.
    fn check_leaks(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) {
        let due = self.processes.iter_mut().filter(|process| !process.is_stale && process.leak_due <= sample_time.t);
        let Some(process) = due.min_by(|a, b| a.leak_due.total_cmp(&b.leak_due)) else { return };
        process.leak_due = sample_time.t + 60.0;
        let series = SeriesKey::Process(&process.key, ProcessMetric::GpuMemory);
        let points = host.history().points(series, sample_time.now, Duration::from_secs(7200), 120);
        let gpus = || process.positions.iter().filter_map(|position| self.gpus.get(*position));
        let total: Option<u64> = gpus().map(|gpu| gpu.total_bytes).sum();
        let used: Option<u64> = gpus().map(|gpu| gpu.used_bytes).sum();
        let (Some(total), Some(used)) = (total, used) else { return };
        let free = total.saturating_sub(used) as f64;
        process.leak = leak(&points, total as f64, free, &limits.gpu_mem_leak);
    }

    fn update_host(&mut self, host: &Host, t: f64) {
        let track = &mut self.host_track;
        track.samples += 1;
        track.first_at.get_or_insert(t);
        track.sampled_at = Some(t);
        let Some(snapshot) = &host.snapshot else { return };
        if let Some(kills) = snapshot.host.oom_kills {
            if let Some(before) = track.oom_kills
                && kills > before
            {
                push_bounded(&mut track.oom_events, (t, kills - before));
            }
            track.oom_kills = Some(kills);
        }
        for event in &snapshot.xid_events {
            let gpu = event.gpu.and_then(|position| self.gpus.get(usize::from(position)));
            let identity = gpu.map_or_else(|| SafeText::from("?"), |gpu| gpu.identity.clone());
            push_bounded(&mut track.xids, (t, identity, event.xid));
        }
        if host.inventory.is_some() {
            track.waiting_since = None;
        } else {
            track.waiting_since.get_or_insert(t);
        }
        let is_listed = host.inventory.as_ref().is_some_and(|inventory| inventory.error.is_none());
        let present = self.gpus.iter().filter(|gpu| !gpu.is_instance).count();
        let on_bus = snapshot.host.nvidia_pci_devices.map(|count| count as usize);
        // What an administrator took from the driver is not on the driver's bus either.
        track.expected_gpus = on_bus.unwrap_or(track.known_gpus.len());
        track.missing_gpu_samples = match is_listed && snapshot.driver_error.is_none() {
            true if present < track.expected_gpus => track.missing_gpu_samples.saturating_add(1),
            true => 0,
            false => track.missing_gpu_samples,
        };
        for gpu in self.gpus.iter().filter(|gpu| !gpu.is_instance) {
            if !track.known_gpus.contains(&gpu.identity) && track.known_gpus.len() < 128 {
                track.known_gpus.push(gpu.identity.clone());
            }
        }
    }
}

/// Whether this is what is remembered of a process. A start that is known only now makes no other process of it.
fn is_same_process(track: &ProcessTrack, process: &Process) -> bool {
    track.key == process.key
        || (track.key.pid == process.key.pid
            && track.key.start_ticks.is_none()
            && track.key.boot_id == process.key.boot_id)
}

/// What a job does on a GPU that others use too: its own share, where the driver tells shares at all.
fn shared_activity(own: Option<u8>, processes: &[&Process], position: usize) -> Option<u8> {
    let is_reported =
        || processes.iter().filter_map(|process| process.usage_on(position)).any(|usage| usage.sm_percent.is_some());
    own.or_else(|| is_reported().then_some(0))
}

/// What a GPU is recognised by.
fn identity(info: &GpuInfo) -> SafeText {
    info.uuid.clone().unwrap_or_else(|| SafeText::from(format!("index {}", info.index)))
}

/// Whether a person types into it.
fn is_notebook(process: &Process) -> bool {
    let Some(facts) = process.facts() else { return false };
    let name = program(&process.info.command);
    facts.runs_in.as_ref().is_some_and(|place| *place == "jupyter")
        || facts.argv.iter().any(|argument| argument.contains("ipykernel") || argument.contains("jupyter"))
        || name == "ipython"
        || name == "ipython3"
        || (facts.argv.len() == 1 && name.starts_with("python"))
}
