//! The diagnosis state of one host: its tracks and conditions, and how a sample updates them.

use super::condition::SampleTime;
use super::conditions::Conditions;
use super::job_ends::{JobEnds, LastState, is_restart};
use super::process_kind::{is_debugged, is_notebook, served_port, serves_models, waits_for_tasks};
use super::track::{
    AvailableMemory, GpuTrack, IdleThresholds, JobGpu, JobTrack, MAX_EVENTS, ProcessTrack, Shrinkage, SpinThresholds,
    detect_leak, gpu_identity, push_bounded,
};
use crate::config::Thresholds;
use crate::fleet::{Host, JobKey, LinkErrorKind, Moment, Process, ProcessKey, ProcessMetric, SeriesKey, program_name};
use crate::wire::{GpuInfo, GpuReading, Presence, SafeText};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of GPUs that left the inventory and keep their track in case they come back.
const MAX_ABSENT: usize = 16;
/// The maximum number of processes tracked on a host.
const MAX_PROCESSES: usize = 256;

/// The CPU time that an idle process may use between two observations: this many seconds plus this share of the time.
const IDLE_CPU_SECONDS: f64 = 1.0;
const IDLE_CPU_SHARE: f64 = 0.002;

/// The memory of a process that has created a context and loaded the libraries of its framework, and no more, at most.
const CONTEXT_BYTES: u64 = 3 << 29;

/// The time constant of the mean CPU utilisation of a host in seconds, and the mean below which nothing computes there, in percent.
const MEAN_CPU_SECONDS: f64 = 300.0;
const RESTING_CPU_PERCENT: f64 = 5.0;

/// The number of samples in a row after which a lost GPU no longer belongs to its job.
const LOST_FOR_GOOD_SAMPLES: u32 = 3;

/// A job that computed within this time of the last sample, in seconds, was at work when the host was rebooted.
const RECENT_WORK_SECONDS: f64 = 300.0;

/// The uptime after a reboot may exceed the time without samples by this many seconds: samples are late.
const BOOT_TOLERANCE: f64 = 60.0;

/// The CPU cores from which a job that does not compute on GPUs works.
const WORKING_CORES: f64 = 0.5;

/// The rate at which something copies data to the disks of a host, in bytes per second, at least.
const HEAVY_WRITE_BYTES_PER_SECOND: f64 = 50e6;

/// A reboot of the host.
#[derive(Debug, Clone)]
pub(crate) struct Reboot {
    /// The time of the first sample after it.
    pub(crate) at: f64,
    /// The time without samples before it, in seconds.
    pub(crate) gap: f64,
    /// The processes that held a GPU before.
    pub(crate) ended: usize,
    /// A job computed shortly before.
    pub(crate) has_ended_work: bool,
}

/// A program that has run for this long worked before its error, in seconds.
const WORKED_SECONDS: f64 = 60.0;

/// An error that the driver reported.
#[derive(Debug, Clone)]
pub(crate) struct SeenXid {
    pub(crate) at: f64,
    /// The GPU; `?` if the driver did not name it.
    pub(crate) gpu: SafeText,
    pub(crate) number: u64,
    /// The user and the program that were on the GPU, if there was one that had run for a while. A program that fails at once is
    /// probably still in development.
    pub(crate) program: Option<(SafeText, String)>,
}

/// The state kept for a filesystem of a host.
#[derive(Debug, Clone)]
struct FilesystemTrack {
    mount_point: SafeText,
    /// The time of the first sample that reported its size.
    first_at: Option<f64>,
    /// The available space, minute by minute.
    space: AvailableMemory,
}

/// How long after its first sample a host may report filesystems that were there before, in seconds: five samples at the longest
/// interval.
const FIRST_REPORTS_SECONDS: f64 = 300.0;

/// The state kept for a host apart from its GPUs, processes and jobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostTrack {
    pub(crate) boot_id: Option<SafeText>,
    /// The number of samples.
    pub(crate) samples: u64,
    /// The time of the last sample.
    pub(crate) sampled_at: Option<f64>,
    /// The time of the first sample.
    pub(crate) first_at: Option<f64>,
    pub(crate) oom_kills: Option<u64>,
    /// OOM kills: the time and the number of processes.
    pub(crate) oom_events: VecDeque<(f64, u64)>,
    pub(crate) xids: VecDeque<SeenXid>,
    pub(crate) job_ends: JobEnds,
    /// The GPUs, without MIG instances, seen since boot.
    pub(crate) known_gpus: Vec<SafeText>,
    /// The number of samples in a row with fewer GPUs than expected.
    pub(crate) missing_gpu_samples: u32,
    /// The expected number of GPUs.
    pub(crate) expected_gpus: usize,
    /// When a process was last on a GPU.
    pub(crate) used_at: Option<f64>,
    /// The available memory of the host, minute by minute.
    pub(crate) available_memory: AvailableMemory,
    filesystems: Vec<FilesystemTrack>,
    /// The mean CPU utilisation of the last minutes, in percent.
    pub(crate) mean_cpu: Option<f64>,
    /// Since when it has been so low that no program computes on the CPUs.
    pub(crate) cpus_rest_since: Option<f64>,
    /// The last reboot that was noticed.
    pub(crate) reboot: Option<Reboot>,
    /// The allocations of Slurm were known in the previous sample.
    pub(crate) knows_allocations: bool,
    /// When something last wrote much to the disks, as a copy of data does.
    pub(crate) copied_at: Option<f64>,
    /// When each job of Slurm here last computed or used the CPU.
    pub(crate) slurm_work: VecDeque<(SafeText, f64)>,
    /// Since when the driver has not answered, on a host without an inventory.
    pub(crate) waiting_since: Option<f64>,
}

impl HostTrack {
    /// The loss of a filesystem of this size that fills without a pause and is full soon.
    pub(crate) fn filling(&self, mount_point: &SafeText, total: f64) -> Option<Shrinkage> {
        self.filesystem(mount_point)?.space.filling(total)
    }

    fn filesystem(&self, mount_point: &SafeText) -> Option<&FilesystemTrack> {
        self.filesystems.iter().find(|known| known.mount_point == *mount_point)
    }

    /// Whether the host reports the size of this filesystem for the first time at `t`, and has not reported others for long. The
    /// probe asks for the sizes after its first sample, and a file server may take seconds to answer.
    pub(crate) fn is_first_report(&self, mount_point: &SafeText, t: f64) -> bool {
        let is_new_host = self.first_at.is_some_and(|first_at| t - first_at <= FIRST_REPORTS_SECONDS);
        is_new_host && self.filesystem(mount_point).is_some_and(|known| known.first_at >= Some(t))
    }
}

/// The tracks and conditions of one host.
#[derive(Debug, Clone, Default)]
pub(super) struct HostDiagnosis {
    pub(super) gpus: Vec<GpuTrack>,
    /// GPUs that left the inventory.
    absent: Vec<GpuTrack>,
    pub(super) processes: Vec<ProcessTrack>,
    /// New runs of programs that left the GPUs, which are on no GPU, in the order of [`Host::reruns`].
    pub(super) reruns: Vec<ProcessTrack>,
    pub(super) jobs: Vec<JobTrack>,
    pub(super) host_track: HostTrack,
    pub(super) conditions: Conditions,
    /// `host-unreachable`: separate, because it is evaluated on the tick and not with samples.
    pub(super) link_conditions: Conditions,
    /// The context-idle power that an earlier run learned, in watts, by GPU UUID.
    pub(super) restored_idle_watts: HashMap<SafeText, f32>,
    /// When the last evaluated snapshot was received, and its sequence number.
    last_sample: Option<(Moment, u64)>,
    /// The current sample is the first one of another probe.
    is_new_probe: bool,
    /// The sample interval in seconds.
    interval: f64,
    /// Since when the host has had no link.
    pub(super) link_lost_at: Option<f64>,
    /// The first known cause of that, or a preliminary one.
    pub(super) link_failure: Option<LinkErrorKind>,
}

impl HostDiagnosis {
    /// Returns the job to which a process belongs.
    pub(super) fn job_of(&self, process: &ProcessKey) -> Option<&JobTrack> {
        let index = self.processes.iter().position(|track| track.key == *process)?;
        self.jobs.iter().find(|job| job.members.contains(&index))
    }

    /// Whether the last sample is at most three intervals old.
    pub(super) fn is_recent(&self, t: f64) -> bool {
        self.host_track.sampled_at.is_some_and(|at| t - at <= 3.0 * self.interval.max(1.0))
    }

    /// The sample interval in seconds.
    pub(super) fn interval(&self) -> f64 {
        self.interval
    }

    /// The time of the current sample, or `None` if it was already evaluated.
    pub(super) fn new_sample(&mut self, host: &Host) -> Option<SampleTime> {
        let sample = (host.received_at?, host.snapshot.as_ref()?.sequence);
        if self.last_sample == Some(sample) {
            return None;
        }
        self.is_new_probe = self.last_sample.is_some_and(|(_, sequence)| sequence >= sample.1);
        self.last_sample = Some(sample);
        self.interval = host.interval().as_secs_f64().max(0.25);
        let t = sample.0.since_start().as_secs_f64();
        let since = self.host_track.sampled_at.map_or(self.interval, |at| t - at);
        Some(SampleTime::new(sample.0, since.clamp(0.0, 3.0 * self.interval.max(1.0))))
    }

    /// Updates the tracks with the current sample. Returns whether the processes or their jobs changed.
    pub(super) fn update(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) -> bool {
        let boot_id = host.hello.as_ref().and_then(|hello| hello.boot_id.clone());
        let has_new_boot_id =
            self.host_track.boot_id.is_some() && boot_id.is_some() && self.host_track.boot_id != boot_id;
        if has_new_boot_id {
            self.reboot(host, limits, sample_time.t);
        }
        self.host_track.boot_id = boot_id.or(self.host_track.boot_id.take());
        let before: Vec<SafeText> = self.gpus.iter().map(|gpu| gpu.identity.clone()).collect();
        let has_moved = self.align_gpus(host);
        self.update_gpus(host, limits, sample_time);
        let has_changed = self.update_processes(host, limits, &before, sample_time);
        self.update_reruns(host, limits, sample_time);
        self.note_memory_without_processes(host);
        if has_changed || has_moved {
            self.group_into_jobs(host, limits, sample_time.t);
        }
        self.update_jobs(host, limits, sample_time);
        self.check_leaks(host, limits, sample_time);
        self.update_host(host, sample_time.t);
        has_changed || has_moved
    }

    /// Notes the memory of GPUs on which the driver lists no process.
    fn note_memory_without_processes(&mut self, host: &Host) {
        let is_cut = host.snapshot.as_ref().is_none_or(|snapshot| snapshot.processes_left_out > 0);
        let has_list = |(_, reading): (&GpuInfo, &GpuReading)| reading.processes_unknown != Some(true);
        for (position, gpu) in self.gpus.iter_mut().enumerate() {
            let is_listed = !is_cut && host.gpus().nth(position).is_some_and(has_list);
            let is_alone = || !self.processes.iter().any(|process| process.positions.contains(&position));
            if gpu.is_readable && !gpu.lost_process && is_listed && is_alone() {
                gpu.used_alone_bytes = gpu.used_bytes.or(gpu.used_alone_bytes);
            }
        }
    }

    /// Resets the tracks after a reboot, which has ended all processes, or when the name of the host leads to another machine.
    fn reboot(&mut self, host: &Host, limits: &Thresholds, t: f64) {
        let known = std::mem::take(&mut self.processes);
        self.reruns.clear();
        let jobs = std::mem::take(&mut self.jobs);
        let gap = self.host_track.sampled_at.map(|at| t - at);
        // A machine that booted before the last sample of the other one is another machine: nothing is known to have ended.
        let uptime = host.snapshot.as_ref().and_then(|snapshot| snapshot.host.uptime_seconds);
        let is_other_machine = uptime.zip(gap).is_some_and(|(uptime, gap)| uptime > gap + BOOT_TOLERANCE);
        if !is_other_machine {
            let last = self.host_track.sampled_at.unwrap_or(t);
            let (shut_down, has_shut_down_work) =
                self.host_track.job_ends.note_shutdown(last - limits.job_ended.coincidence, t);
            let ended = jobs.iter().map(|job| job.members.len()).sum::<usize>() + shut_down;
            let computed = |job: &JobTrack| job.computed_at.is_some_and(|at| last - at <= RECENT_WORK_SECONDS);
            let has_ended_work = has_shut_down_work || jobs.iter().any(computed);
            self.host_track.reboot = Some(Reboot { at: t, gap: gap.unwrap_or(0.0), ended, has_ended_work });
            self.host_track.job_ends.record(known.iter(), host, limits, t, true, &|_| LastState::default());
        }
        self.host_track.known_gpus.clear();
        self.host_track.oom_kills = None;
        self.host_track.knows_allocations = false;
        for gpu in &mut self.gpus {
            gpu.ecc_baseline = None;
            gpu.best_clock_share = 0.0;
            // A reboot ends all jobs and their allocations.
            (gpu.allocation, gpu.unused_since) = (None, None);
            (gpu.lost_process, gpu.used_alone_bytes) = (false, None);
            let links = std::mem::take(&mut gpu.links_seen);
            gpu.links_before_reboot = if is_other_machine { 0 } else { links.max(gpu.links_before_reboot) };
        }
    }

    /// Brings the GPU tracks into the order of the inventory. Returns whether they changed.
    fn align_gpus(&mut self, host: &Host) -> bool {
        let same = |track: &GpuTrack, info: &GpuInfo| match &info.uuid {
            Some(uuid) => track.identity == *uuid,
            None => track.identity == gpu_identity(info),
        };
        let is_aligned = self.gpus.len() == host.gpus().len()
            && self.gpus.iter().zip(host.gpus()).all(|(track, (info, _))| same(track, info));
        if is_aligned {
            return false;
        }
        let mut old = std::mem::take(&mut self.gpus);
        old.append(&mut self.absent);
        for (info, _) in host.gpus() {
            let track = if let Some(index) = old.iter().position(|track| same(track, info)) {
                old.swap_remove(index)
            } else {
                let identity = gpu_identity(info);
                let learned = self.restored_idle_watts.get(&identity).copied();
                GpuTrack::new(identity, learned)
            };
            self.gpus.push(track);
        }
        old.truncate(MAX_ABSENT);
        old.shrink_to_fit();
        self.absent = old;
        true
    }

    fn update_gpus(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) {
        let bounds = SpinThresholds {
            utilization: limits.stuck_spin.utilization,
            memory: limits.stuck_spin.memory_max,
            idle: limits.missing_rank.utilization,
        };
        // The start of the allocations in a first list is unknown.
        let has_known_allocations =
            std::mem::replace(&mut self.host_track.knows_allocations, host.slurm_allocated_gpus().is_some());
        let mut has_context = vec![false; self.gpus.len()];
        for process in host.processes().filter(|process| !process.is_stale) {
            for position in process.gpu_positions().filter(|position| process.computes_on(*position)) {
                if let Some(has_context) = has_context.get_mut(position) {
                    *has_context = true;
                }
            }
        }
        let past = host.snapshot.as_ref().map(|snapshot| (snapshot.monotonic_seconds, &snapshot.recent_past));
        for (position, (track, (info, reading))) in self.gpus.iter_mut().zip(host.gpus()).enumerate() {
            // The driver's history counts only before the first sample; later it would be counted twice.
            if let (Some((monotonic, past)), true) = (past, self.host_track.samples == 0) {
                track.limit = reading.power_limit_watts.or(info.power_limit_watts);
                for past in past.iter().filter(|past| usize::from(past.gpu) == position) {
                    let back = (monotonic - past.end_monotonic_seconds).clamp(0.0, 3600.0);
                    track.backfill(past, sample_time.t - back.max(0.5), bounds);
                }
            }
            track.update(
                info,
                reading,
                host.gpu_health(position),
                has_context[position],
                bounds,
                (sample_time.t, sample_time.dt),
            );
            let is_allocated = host.slurm_allocated_gpus().is_some_and(|gpus| gpus.contains(&info.index));
            // A context without data is not a use.
            let holds = |process: &Process| {
                let usage = process.usage_on(position);
                usage.is_some_and(|usage| usage.gpu_memory_bytes.is_none_or(|bytes| bytes > CONTEXT_BYTES))
            };
            let is_used = track.utilization.is_none_or(|percent| percent > 1) || host.processes().any(holds);
            let is_judged = !track.is_instance && !track.is_mig_parent && track.is_readable;
            if is_allocated {
                let mut jobs = host.slurm_jobs().unwrap_or_default().iter();
                let job = jobs.find(|job| job.gpus.contains(&info.index)).map(|job| job.job.clone());
                let start = has_known_allocations.then_some((sample_time.t, self.host_track.mean_cpu));
                track.follow_allocation(job, start, host.processes().any(holds));
            } else {
                track.allocation = None;
            }
            track.unused_since =
                (is_allocated && !is_used && is_judged).then(|| track.unused_since.unwrap_or(sample_time.t));
        }
    }

    /// Updates the process tracks. Returns whether the processes or their facts changed.
    fn update_processes(
        &mut self,
        host: &Host,
        limits: &Thresholds,
        before: &[SafeText],
        sample_time: SampleTime,
    ) -> bool {
        let count = host.processes().len().min(MAX_PROCESSES);
        let same = |(track, process): (&ProcessTrack, &Process)| is_same_process(track, process);
        // Both lists are ordered by pid and usually equal.
        let has_moved = self.processes.len() != count || !self.processes.iter().zip(host.processes()).all(same);
        let held_bytes = (limits.job_ended.memory * 1_048_576.0) as u64;
        if has_moved {
            self.align_processes(host, limits, before, held_bytes, sample_time);
        }
        let mut has_changed = has_moved;
        for (track, process) in self.processes.iter_mut().zip(host.processes()) {
            has_changed |= !Arc::ptr_eq(&track.info, &process.info) || track.is_stale != process.is_stale;
            has_changed |= !track.positions.iter().copied().eq(process.gpu_positions());
            track.key = process.key.clone();
            track.update(process, held_bytes, (sample_time.t, sample_time.dt));
        }
        has_changed
    }

    /// Updates the tracks of programs that left the GPUs and run again without one, and records the runs that ended.
    fn update_reruns(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) {
        let SampleTime { t, dt, .. } = sample_time;
        let mut old = std::mem::take(&mut self.reruns);
        let tracks = host.reruns().iter().map(|process| {
            let known =
                old.iter().position(|track| is_same_process(track, process)).map(|index| old.swap_remove(index));
            let mut track = known.unwrap_or_else(|| ProcessTrack::new(process, t));
            track.update(process, u64::MAX, (t, dt));
            track
        });
        self.reruns = tracks.collect();
        // The others have ended, unless they use a GPU now, or another probe does not know them. While another run of the program is
        // on a GPU, they are its workers or work beside it.
        let job_ends = &mut self.host_track.job_ends;
        old.retain(|track| {
            let left = job_ends.left_by(track).filter(|_| !self.is_new_probe);
            left.is_some_and(|left| {
                !self.processes.iter().any(|process| process.key == track.key || left.is_run(process))
            })
        });
        job_ends.record(old.iter(), host, limits, t, false, &|_| LastState::default());
    }

    /// Brings the process tracks into the order of the host, adds new ones, and records jobs whose last process ended.
    fn align_processes(
        &mut self,
        host: &Host,
        limits: &Thresholds,
        before: &[SafeText],
        held_bytes: u64,
        sample_time: SampleTime,
    ) {
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
        for position in
            ended.iter().filter(|track| track.memory_bytes >= Some(held_bytes)).flat_map(|track| &track.positions)
        {
            if let Some(gpu) = self.gpus.get_mut(*position) {
                gpu.lost_process = true;
            }
        }
        // A job ends with its last process. A container that restarts at once already has a new one.
        let goes_on = |track: &ProcessTrack, process: &ProcessTrack| {
            process.info.job == track.info.job && !is_restart(track, process, sample_time.t)
        };
        let is_job_over = |track: &&ProcessTrack| !aligned.iter().any(|process| goes_on(track, process));
        let all = || aligned.iter().chain(&ended);
        let last_state = |process: &ProcessTrack| LastState::of(process, all(), &self.gpus, sample_time.t);
        let over = ended.iter().filter(is_job_over);
        self.host_track.job_ends.record(over, host, limits, sample_time.t, false, &last_state);
        self.processes = aligned;
    }

    /// Groups the processes into jobs. A job that continues keeps its track.
    fn group_into_jobs(&mut self, host: &Host, limits: &Thresholds, t: f64) {
        let mut old = std::mem::take(&mut self.jobs);
        let mut jobs: Vec<JobTrack> = Vec::new();
        for (index, process) in host.processes().take(MAX_PROCESSES).enumerate() {
            let is_gone = process.reading.presence == Some(Presence::Gone) || process.key.pid == 0;
            let positions: Vec<usize> =
                process.gpu_positions().filter(|position| process.computes_on(*position)).collect();
            if is_gone || positions.is_empty() {
                continue;
            }
            let key = &process.info.job;
            let at = jobs.iter().position(|job| job.key == *key).unwrap_or_else(|| {
                let former = self.processes.get(index).and_then(|track| track.grouped_as.as_ref());
                jobs.push(match old.iter().position(|job| job.key == *key) {
                    Some(index) => old.swap_remove(index).without_members(),
                    // The launcher has ended, so the process has another job key: its history continues.
                    None => match old.iter().find(|job| Some(&job.key) == former) {
                        Some(job) => job.renamed(key.clone()),
                        None => JobTrack::new(key.clone(), t),
                    },
                });
                jobs.len() - 1
            });
            let job = &mut jobs[at];
            job.members.push(index);
            job.is_server |= serves_models(process, limits) || waits_for_tasks(process);
            job.is_model_server |= serves_models(process, limits);
            job.is_debugged |= is_debugged(process);
            job.is_notebook |= is_notebook(process);
            job.is_mine |= host.belongs_to_login_user(process);
            job.served_port = job.served_port.or_else(|| served_port(process));
            for position in positions {
                let Some(track) = self.gpus.get(position) else { continue };
                if !job.gpus.iter().any(|gpu| gpu.position == position) {
                    let gpu = job.take_gpu(position, &track.identity);
                    job.gpus.push(gpu);
                }
            }
        }
        for process in &mut self.processes {
            process.grouped_as = Some(process.info.job.clone());
        }
        let computing: Vec<usize> = jobs.iter().flat_map(|job| job.gpus.iter().map(|gpu| gpu.position)).collect();
        for job in &mut jobs {
            job.drop_removed_gpus();
            // Most jobs have one process on one GPU, and a vector that grows allocates room for four.
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
            // A GPU that stays lost is no part of the job any more: the others are judged without it.
            let is_present = |gpu: &JobGpu| {
                self.gpus.get(gpu.position).is_none_or(|track| track.lost_samples < LOST_FOR_GOOD_SAMPLES)
            };
            if job.gpus.iter().any(is_present) {
                job.gpus.retain(is_present);
            }
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
            if let JobKey::Slurm { job: id, .. } = &job.key
                && (job.computed_at == Some(sample_time.t) || job.cores >= Some(WORKING_CORES))
            {
                let work = &mut self.host_track.slurm_work;
                match work.iter_mut().find(|(known, _)| known == id) {
                    Some((_, at)) => *at = sample_time.t,
                    None => push_bounded(work, (id.clone(), sample_time.t)),
                }
            }
        }
    }

    /// Checks the last two hours of one process for a leak. Each process is checked about once a minute.
    fn check_leaks(&mut self, host: &Host, limits: &Thresholds, sample_time: SampleTime) {
        let due = self.processes.iter_mut().filter(|process| !process.is_stale && process.leak_due <= sample_time.t);
        let Some(process) = due.min_by(|a, b| a.leak_due.total_cmp(&b.leak_due)) else { return };
        process.leak_due = sample_time.t + 60.0;
        let series = SeriesKey::Process(&process.key, ProcessMetric::GpuMemory);
        if host.history().is_constant(series) {
            process.leak = None;
            return;
        }
        let points = host.history().points(series, sample_time.now, Duration::from_secs(7200), 120);
        let gpus = || process.positions.iter().filter_map(|position| self.gpus.get(*position));
        let sum = |bytes: fn(&GpuTrack) -> Option<u64>| {
            gpus().map(bytes).try_fold(0, |sum: u64, bytes| Some(sum.saturating_add(bytes?)))
        };
        let (Some(total), Some(used)) = (sum(|gpu| gpu.total_bytes), sum(|gpu| gpu.used_bytes)) else { return };
        // NVML's `used` does not contain the memory that the driver reserves.
        let reserved = sum(|gpu| Some(gpu.reserved_bytes.unwrap_or(0))).unwrap_or(0);
        let free = total.saturating_sub(used).saturating_sub(reserved) as f64;
        process.leak = detect_leak(&points, total as f64, free, &limits.gpu_mem_leak);
    }

    fn update_host(&mut self, host: &Host, t: f64) {
        let track = &mut self.host_track;
        track.samples += 1;
        track.first_at.get_or_insert(t);
        let step = track.sampled_at.map_or(0.0, |at| t - at);
        track.sampled_at = Some(t);
        let Some(snapshot) = &host.snapshot else { return };
        if snapshot.host.disk_write_bytes_per_second >= Some(HEAVY_WRITE_BYTES_PER_SECOND) {
            track.copied_at = Some(t);
        }
        if let Some(percent) = snapshot.host.cpu_percent.map(f64::from) {
            let before = track.mean_cpu.unwrap_or(percent);
            let mean = before + (percent - before) * (step / MEAN_CPU_SECONDS).clamp(0.0, 1.0);
            track.mean_cpu = Some(mean);
            track.cpus_rest_since = (mean < RESTING_CPU_PERCENT).then(|| track.cpus_rest_since.unwrap_or(t));
        }
        track.available_memory.add(snapshot.host.memory_available_bytes, t);
        let known = &mut track.filesystems;
        known.retain(|known| host.filesystems().iter().any(|other| other.mount_point == known.mount_point));
        for filesystem in host.filesystems().iter().take(MAX_EVENTS) {
            let place = known.iter().position(|known| known.mount_point == filesystem.mount_point);
            let place = place.unwrap_or_else(|| {
                let mount_point = filesystem.mount_point.clone();
                known.push(FilesystemTrack { mount_point, first_at: None, space: AvailableMemory::default() });
                known.len() - 1
            });
            let first_at = &mut known[place].first_at;
            *first_at = first_at.or(filesystem.available_bytes.map(|_| t));
            known[place].space.add(filesystem.available_bytes, t);
        }
        if !self.processes.is_empty() {
            track.used_at = Some(t);
        }
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
            let position = event.gpu.map(usize::from);
            let user =
                self.processes.iter().find(|process| position.is_some_and(|gpu| process.positions.contains(&gpu)));
            let user = user.filter(|process| process.age >= Some(WORKED_SECONDS));
            let program =
                user.map(|process| (process.info.who.clone(), program_name(&process.info.command).to_owned()));
            push_bounded(&mut track.xids, SeenXid { at: t, gpu: identity, number: event.xid, program });
        }
        if host.inventory.is_some() {
            track.waiting_since = None;
        } else {
            track.waiting_since.get_or_insert(t);
        }
        let is_listed = host.inventory.as_ref().is_some_and(|inventory| inventory.error.is_none());
        let present = self.gpus.iter().filter(|gpu| !gpu.is_instance).count();
        let on_bus = snapshot.host.nvidia_pci_devices.map(|count| count as usize);
        // A GPU that an administrator detached from the driver is not counted among these devices either.
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

    /// Reruns pending conditions and runs after a long gap. Firing conditions continue.
    pub(super) fn restart_pending(&mut self) {
        self.conditions.restart_pending();
        self.host_track.knows_allocations = false;
        for gpu in &mut self.gpus {
            (gpu.spin_run, gpu.still_run, gpu.counter_rest_run) = (None, None, None);
            // A GPU that was at this level at work, and is at it again, may have worked meanwhile.
            gpu.level_run = None;
            gpu.idle_run = None;
            if let Some(allocation) = &mut gpu.allocation {
                allocation.forget_start();
            }
        }
        for process in &mut self.processes {
            process.blocked = None;
        }
        for job in &mut self.jobs {
            job.waits.drop_present();
            (job.stalled_run, job.unfed_run, job.poll_run) = (None, None, None);
            job.before_gap = job.idle_start().zip(job.cpu_seconds(&self.processes));
            job.idle_run = None;
        }
    }

    /// Continues the idle time from before a gap if CPU time proves that nothing ran in between.
    pub(super) fn bridge_idle_gap(&mut self, gap: f64) {
        for job in self.jobs.iter_mut().filter(|job| job.before_gap.is_some()) {
            let cpu = job.cpu_seconds(&self.processes);
            let Some((since, before)) = job.before_gap.take() else { continue };
            let is_idle = cpu.is_some_and(|cpu| is_idle_cpu_growth(cpu - before, gap));
            if is_idle && job.idle_run.is_some() {
                job.idle_since = Some(since);
            }
        }
    }
}

/// Whether a process that used `seconds` of CPU time within `gap` seconds was idle.
pub(super) fn is_idle_cpu_growth(seconds: f64, gap: f64) -> bool {
    (0.0..=IDLE_CPU_SECONDS + IDLE_CPU_SHARE * gap).contains(&seconds)
}

/// Whether the track belongs to this process. A start time that becomes known later does not make it another process.
fn is_same_process(track: &ProcessTrack, process: &Process) -> bool {
    track.key == process.key
        || (track.key.pid == process.key.pid
            && track.key.start_ticks.is_none()
            && track.key.boot_id == process.key.boot_id)
}

/// The utilisation of a job on a shared GPU: its own share, or 0 if the driver reports only shares of other jobs.
fn shared_activity(own: Option<u8>, processes: &[&Process], position: usize) -> Option<u8> {
    let is_reported =
        || processes.iter().filter_map(|process| process.usage_on(position)).any(|usage| usage.sm_percent.is_some());
    own.or_else(|| is_reported().then_some(0))
}
