//! Snapshots of a simulated host, as a function of seed, host and time.

use super::fault::{GpuUse, HostFaultKind, JobFaultKind, MINUTE};
use super::host_plan::{CPU_COUNT, HOST_MEMORY_BYTES, HostPlan, PCIE_WIDTH};
use super::job_processes::{self, Worker};
use super::rng;
use super::scenario::{DriverState, PEOPLE, VIEWER};
use super::workload::{Ended, GpuSlot, Job, Workload, loaded};
use crate::fleet::Moment;
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, Filesystem, GpuColumns, GpuHealth, GpuHealthColumns, GpuProcessColumns,
    GpuProcessKind, GpuProcessReading, GpuReading, HostReading, Presence, ProbeCost, ProcessColumns, ProcessReading,
    ProcessState, RecentPast, RecoveryAction, SafeText, Snapshot, XidEvent,
};
use std::collections::{BTreeMap, HashSet};

/// Memory used by the system itself.
const SYSTEM_MEMORY_BYTES: u64 = 38 << 30;
/// Time until an unresponsive driver is reported, in seconds.
const DRIVER_TIMEOUT_SECONDS: f64 = 5.0;

/// The processes whose facts are sent on a connection: pid, start ticks and parent.
pub(super) type SentFacts = HashSet<(u32, u64, u32)>;

/// Time and history of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleContext {
    pub(super) now: Moment,
    /// Time of the previous snapshot of this connection. Without it, rates are unknown, as on a real host.
    pub(super) before: Option<Moment>,
    /// Sequence number on this connection, from 1.
    pub(super) sequence: u64,
    /// Time of the last sample with slow readings, which are part of every tenth snapshot.
    pub(super) slow_sample_at: Moment,
}

/// A process that receives a signal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FoundProcess {
    pub(super) start_ticks: u64,
    pub(super) uid: u32,
    /// Slot, run index and age of its job, as in [`Ended`].
    pub(super) job: ((u64, u64), f64),
}

impl HostPlan {
    /// Returns the snapshot, with the facts of processes that are not in `sent`, and adds these to it.
    pub(super) fn snapshot(&self, context: SampleContext, ended: &Ended, sent_facts: &mut SentFacts) -> Snapshot {
        let sample = HostSample::new(self, context, ended);
        let elapsed = sample.elapsed;
        let mute = self
            .now(elapsed)
            .find(|host_fault| host_fault.kind == HostFaultKind::Mute)
            .map(|event| elapsed - event.from);
        let is_blind = self.driver == DriverState::Mismatched || mute.is_some();
        let (mut gpu_rows, mut rows, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        let mut gpus = vec![GpuReading::default(); self.gpu_count];
        let mut used = BTreeMap::new();
        let mut listed = SentFacts::new();
        let mut needs = Needs { cpus: 1.4, memory: SYSTEM_MEMORY_BYTES };
        for slot in &self.slots {
            let Some(job) = slot.job(elapsed, ended) else { continue };
            let profile = slot.kind.profile();
            for worker in job_processes::workers(self, slot, job, elapsed) {
                let held = sample.memory(slot, &worker);
                *used.entry(worker.gpu).or_insert(0) += held;
                let (own, helpers) = slot.cpus(worker.gpu, elapsed);
                needs.cpus += own * worker.share + helpers;
                needs.memory += profile.rss_bytes;
                // Without a driver, GPU processes are unknown.
                if is_blind || sample.is_lost(worker.gpu) {
                    continue;
                }
                rows.push(sample.process(slot, job, &worker));
                gpu_rows.push(sample.gpu_process(slot, &worker, held));
                let mark = (worker.pid, worker.start_ticks, job_processes::parent(slot, job, elapsed));
                listed.insert(mark);
                if !sent_facts.contains(&mark) {
                    facts.push(job_processes::facts(self, slot, job, &worker, elapsed, context.now.unix.as_secs_f64()));
                }
            }
        }
        *sent_facts = listed;
        for (gpu, reading) in gpus.iter_mut().enumerate() {
            *reading = sample.gpu(gpu, used.get(&gpu).copied().unwrap_or_default());
        }
        let tells_health = !is_blind && context.sequence % 10 == 1;
        let health =
            if tells_health { (0..self.gpu_count).map(|gpu| sample.health(gpu)).collect() } else { Vec::new() };
        Snapshot {
            sequence: context.sequence,
            generation: 1,
            monotonic_seconds: elapsed,
            wall_unix_ms: context.now.unix.as_millis() as i64,
            host: self.host(&sample, needs),
            gpus: if is_blind { GpuColumns::default() } else { GpuColumns::from_rows(&gpus) },
            health: GpuHealthColumns::from_rows(&health),
            xid_events: self.xids(&sample),
            recent_past: if sample.before.is_some() || is_blind { Vec::new() } else { sample.recent_past() },
            gpu_processes: GpuProcessColumns::from_rows(&gpu_rows),
            processes: ProcessColumns::from_rows(&rows),
            facts,
            driver_error: mute.filter(|since| *since >= DRIVER_TIMEOUT_SECONDS).map(|since| DriverError {
                kind: DriverErrorKind::Blocked,
                code: None,
                message: SafeText::from(format!("the NVIDIA driver has not answered for {since:.0} s")),
            }),
            cost: Some(ProbeCost { cpu_seconds: 0.02 + 0.0007 * context.sequence as f64, ..ProbeCost::default() }),
            ..Snapshot::default()
        }
    }

    /// Returns the process with this pid, if it runs.
    pub(super) fn find(&self, pid: u32, now: Moment, ended: &Ended) -> Option<FoundProcess> {
        let elapsed = now.since_start().as_secs_f64();
        self.slots.iter().find_map(|slot| {
            let job = slot.job(elapsed, ended)?;
            let workers = job_processes::workers(self, slot, job, elapsed);
            let first = workers.first()?;
            let facts = job_processes::facts(self, slot, job, first, elapsed, now.unix.as_secs_f64());
            let parents = facts.ancestors.iter().map(|parent| (parent.pid, parent.start_ticks));
            let all = workers.iter().map(|worker| (worker.pid, worker.start_ticks)).chain(parents);
            let (_, start_ticks) = all.into_iter().find(|(number, _)| *number == pid)?;
            Some(FoundProcess { start_ticks, uid: facts.uid?, job: ((slot.number, job.run_index), job.age_seconds) })
        })
    }

    /// Returns the slot whose job uses a GPU.
    pub(super) fn slot_on(&self, gpu: usize, elapsed: f64, ended: &Ended) -> Option<&GpuSlot> {
        let mut here = self.slots.iter().filter(|slot| slot.gpus.contains(&gpu));
        here.find(|slot| slot.job(elapsed, ended).is_some())
    }

    fn xids(&self, sample: &HostSample) -> Vec<XidEvent> {
        let Some(before) = sample.before else { return Vec::new() };
        let happened =
            self.host_faults.iter().filter(|host_fault| before < host_fault.from && host_fault.from <= sample.elapsed);
        let xid = |(what, at): (HostFaultKind, f64)| match what {
            HostFaultKind::Xid { gpu, number } => {
                Some(XidEvent { gpu: Some(gpu as u16), xid: number, monotonic_seconds: at })
            }
            _ => None,
        };
        happened.map(|host_fault| (host_fault.kind, host_fault.from)).filter_map(xid).collect()
    }

    fn host(&self, sample: &HostSample, needs: Needs) -> HostReading {
        let elapsed = sample.elapsed;
        let Needs { cpus, memory } = needs;
        // Slow, so that a load average does not jump.
        let swell = (elapsed / 47.0 + super::rng::unit(&[self.seed, 64])).sin();
        let load = cpus * (1.04 + 0.05 * swell);
        let reads = self.slots.iter().any(|slot| slot.kind == super::workload::Workload::Video);
        let kills =
            self.host_faults.iter().filter(|event| event.kind == HostFaultKind::Kill && event.from <= elapsed).count();
        let mut reading = HostReading {
            load_1: Some(hundredths(load)),
            load_5: Some(hundredths(cpus * 1.03)),
            load_15: Some(hundredths(cpus * 1.01)),
            memory_total_bytes: Some(HOST_MEMORY_BYTES),
            memory_available_bytes: Some(HOST_MEMORY_BYTES.saturating_sub(self.filled_memory(memory, elapsed))),
            swap_total_bytes: Some(0),
            swap_free_bytes: Some(0),
            uptime_seconds: Some(((self.up_seconds + elapsed) * 100.0).round() / 100.0),
            pressure_io_percent: Some(if reads { 3.2 } else { 0.1 }),
            pressure_memory_percent: Some(0.0),
            oom_kills: Some(kills as u64),
            nvidia_pci_devices: Some(self.gpu_count as u32),
            filesystems: sample.filesystems(),
            ..HostReading::default()
        };
        if sample.before.is_some() {
            let busy = (cpus * (1.0 + 0.04 * swell) / f64::from(CPU_COUNT)).min(1.0);
            reading.cpu_percent = Some(hundredths(100.0 * busy));
            reading.io_wait_percent = Some(if reads { 1.4 } else { 0.1 });
        }
        reading
    }

    /// Returns the memory in use if a fault fills it up.
    fn filled_memory(&self, memory: u64, elapsed: f64) -> u64 {
        let growth = |event: HostFaultKind, share: f64| match event {
            HostFaultKind::Swells { to } => {
                let end = to / 100.0 * HOST_MEMORY_BYTES as f64;
                Some((memory as f64 + share * (end - memory as f64)) as u64)
            }
            _ => None,
        };
        self.now(elapsed).find_map(|host_fault| growth(host_fault.kind, host_fault.share(elapsed))).unwrap_or(memory)
    }
}

/// The load of all jobs on a host.
#[derive(Clone, Copy)]
struct Needs {
    cpus: f64,
    memory: u64,
}

pub(super) fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

pub(super) fn hundredths(value: f64) -> f32 {
    ((value * 100.0).round() / 100.0) as f32
}

const POWER_CAP: u64 = 0x4;
const SOFTWARE_THERMAL: u64 = 0x20;
/// NVML's reason for hardware thermal slowdown.
const HARDWARE_THERMAL: u64 = 0x48;
const POWER_BRAKE: u64 = 0x80;
/// Fraction of the time in which heat or the power brake slows a GPU down.
const THROTTLED: f64 = 0.24;
const BRAKED: f64 = 0.07;
/// Length of the buffered samples from before the first snapshot, in seconds.
const PAST_SECONDS: u32 = 60;
/// File systems with type, size in GiB and usage in percent.
const MOUNTS: [(&str, &str, u64, f64); 3] =
    [("/", "ext4", 880, 41.0), ("/home", "nfs4", 36_000, 63.0), ("/scratch", "xfs", 14_000, 52.0)];

/// One host at one time.
pub(super) struct HostSample<'a> {
    plan: &'a HostPlan,
    pub(super) elapsed: f64,
    /// Time of the previous snapshot.
    pub(super) before: Option<f64>,
    slow_sample_at: f64,
    ended: &'a Ended,
}

impl<'a> HostSample<'a> {
    pub(super) fn new(plan: &'a HostPlan, context: SampleContext, ended: &'a Ended) -> Self {
        Self {
            plan,
            elapsed: context.now.since_start().as_secs_f64(),
            before: context.before.map(|before| before.since_start().as_secs_f64()),
            slow_sample_at: context.slow_sample_at.since_start().as_secs_f64(),
            ended,
        }
    }

    /// Returns whether this GPU fell off the bus.
    pub(super) fn is_lost(&self, gpu: usize) -> bool {
        self.plan.now(self.elapsed).any(|host_fault| host_fault.kind == HostFaultKind::Lost { gpu })
    }

    /// Returns the readings of a GPU whose processes use this much memory.
    pub(super) fn gpu(&self, gpu: usize, used: u64) -> GpuReading {
        let model = self.plan.model;
        if self.is_lost(gpu) {
            let message = "GPU is lost: it has fallen off the bus".into();
            let error = DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message };
            return GpuReading { error: Some(error), ..GpuReading::default() };
        }
        let slot = self.plan.slot_on(gpu, self.elapsed, self.ended);
        let energy = |at: f64| self.energy(gpu, at);
        let mean_watts = |seconds: f64| (energy(self.elapsed) - energy(self.elapsed - seconds)) / seconds;
        let busy = self.busy(gpu, self.elapsed);
        let watts = mean_watts(0.1);
        let reasons = self.reasons(slot, gpu, watts);
        let sm_mhz = match reasons {
            0x1 => 345,
            reasons if reasons & (SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE) != 0 => {
                model.sm_max_mhz * 68 / 100 + self.random_below(gpu, 61, 5) * 15
            }
            POWER_CAP => model.sm_max_mhz - 15 * (3 + self.random_below(gpu, 61, 6)),
            _ => model.sm_max_mhz,
        };
        let heat = self.celsius(slot, gpu, busy, mean_watts(60.0));
        let slow_link = self.plan.now(self.elapsed).find_map(|host_fault| match host_fault.kind {
            HostFaultKind::SlowLink { gpu: slow, generation } if slow == gpu => Some(generation),
            _ => None,
        });
        GpuReading {
            error: None,
            utilization_percent: Some(percent(busy)),
            memory_utilization_percent: Some(percent(busy * memory_activity(slot, gpu, self.elapsed))),
            memory_used_bytes: Some(used + (4 << 20)),
            memory_reserved_bytes: Some(model.memory_reserved_bytes),
            temperature_celsius: Some(heat.round() as i32),
            memory_temperature_celsius: Some((heat + 5.0 + 3.0 * busy).round() as i32),
            power_watts: Some(hundredths(watts)),
            power_mean_watts: self
                .before
                .map(|before| hundredths((energy(self.elapsed) - energy(before)) / (self.elapsed - before).max(0.001))),
            energy_joules: Some((energy(self.elapsed) * 1000.0).round() / 1000.0),
            clock_graphics_mhz: Some(sm_mhz),
            clock_sm_mhz: Some(sm_mhz),
            clock_memory_mhz: Some(model.memory_mhz),
            // The GPUs of an HGX board have no fans.
            fan_percent: None,
            performance_state: Some(0),
            clocks_event_reasons: Some(reasons),
            pcie_generation: Some(slow_link.unwrap_or(model.pcie_generation)),
            pcie_width: Some(PCIE_WIDTH),
            thermal_violation_seconds: Some(self.throttled_seconds(gpu)),
            power_brake_seconds: Some(self.braked_seconds(gpu)),
            ..GpuReading::default()
        }
    }

    /// Returns the energy since the driver was loaded, in joules.
    fn energy(&self, gpu: usize, at: f64) -> f64 {
        let before = rng::between(2e8, 3e9, &[self.plan.seed, gpu as u64, 65]);
        let variety = rng::between(0.94, 1.06, &[self.plan.seed, gpu as u64, 66]);
        let here = self.plan.slots.iter().filter(|slot| slot.gpus.contains(&gpu));
        let jobs: f64 = here.map(|slot| slot.energy(self.plan.model, gpu, at, self.ended)).sum();
        before + self.plan.model.idle_watts * variety * at + jobs
    }

    /// Returns the fraction of the last second in which a kernel ran.
    fn busy(&self, gpu: usize, at: f64) -> f64 {
        let job = self.plan.slot_on(gpu, at, self.ended).and_then(|slot| Some((slot, slot.job(at, self.ended)?)));
        job.map_or(0.0, |(slot, job)| {
            slot.work(gpu, job.age_seconds) - slot.work(gpu, (job.age_seconds - 1.0).max(0.0))
        })
        .clamp(0.0, 1.0)
    }

    fn reasons(&self, slot: Option<&GpuSlot>, gpu: usize, watts: f64) -> u64 {
        let brakes =
            |kind: HostFaultKind| matches!(kind, HostFaultKind::Brake { first, last } if (first..=last).contains(&gpu));
        match slot {
            None => 0x1,
            Some(slot) if slot.fault_since(JobFaultKind::Overheats, self.elapsed).is_some() => {
                if self.random_below(gpu, 67, 100) < (THROTTLED * 100.0) as u32 {
                    HARDWARE_THERMAL | SOFTWARE_THERMAL
                } else {
                    SOFTWARE_THERMAL
                }
            }
            Some(slot) if slot.kind == Workload::Hot => SOFTWARE_THERMAL,
            _ if self.plan.now(self.elapsed).any(|host_fault| brakes(host_fault.kind)) => POWER_BRAKE,
            _ if watts > 0.9 * self.plan.model.power_limit_watts => POWER_CAP,
            _ => 0,
        }
    }

    fn celsius(&self, slot: Option<&GpuSlot>, gpu: usize, busy: f64, mean_watts: f64) -> f64 {
        let model = self.plan.model;
        // About 40 degrees above the air at full power, with a time constant of a minute.
        let air = 25.5 + rng::between(0.0, 4.0, &[self.plan.seed, gpu as u64, 60]);
        match slot {
            Some(slot) if slot.kind == Workload::Hot => {
                let margin = if slot.fault_since(JobFaultKind::Overheats, self.elapsed).is_some() { 0.0 } else { 1.0 };
                f64::from(model.slowdown_celsius) - margin - 0.6 * (1.0 - busy)
            }
            _ => air + 44.0 * mean_watts / model.power_limit_watts,
        }
    }

    /// Returns the violation counters, which begin before the simulation.
    fn throttled_seconds(&self, gpu: usize) -> f64 {
        let here = self.plan.slots.iter().filter(|slot| slot.gpus.contains(&gpu));
        let job_faults = here.flat_map(|slot| slot.job_faults.iter().map(|job_fault| (job_fault, slot.left_seconds)));
        let heated = job_faults.filter(|(job_fault, _)| job_fault.kind == JobFaultKind::Overheats);
        let seconds =
            heated.map(|(job_fault, left)| (self.elapsed.min(job_fault.until).min(left) - job_fault.from).max(0.0));
        rng::between(0.0, 90.0, &[self.plan.seed, gpu as u64, 68]) + THROTTLED * seconds.sum::<f64>()
    }

    fn braked_seconds(&self, gpu: usize) -> f64 {
        let brakes =
            |kind: HostFaultKind| matches!(kind, HostFaultKind::Brake { first, last } if (first..=last).contains(&gpu));
        let all = self.plan.host_faults.iter().filter(|host_fault| brakes(host_fault.kind));
        BRAKED * all.map(|host_fault| host_fault.seconds(self.elapsed)).sum::<f64>()
    }

    /// Returns the slow readings of a GPU.
    pub(super) fn health(&self, gpu: usize) -> GpuHealth {
        let links = (1_u64 << self.plan.model.nvlinks) - 1;
        let mut health = GpuHealth {
            ecc_corrected_volatile: Some(0),
            ecc_uncorrectable_volatile: Some(0),
            ecc_corrected_aggregate: Some(rng::hash(&[self.plan.seed, gpu as u64, 69]) % 7),
            ecc_uncorrectable_aggregate: Some(0),
            remapped_rows_correctable: Some(0),
            remapped_rows_uncorrectable: Some(0),
            row_remap_pending: Some(false),
            row_remap_failed: Some(false),
            recovery_action: Some(RecoveryAction::None),
            persistence_mode: Some(self.plan.driver != DriverState::Outdated),
            nvlinks_active: Some(links),
            ..GpuHealth::default()
        };
        for host_fault in self.plan.now(self.elapsed) {
            match host_fault.kind {
                HostFaultKind::BadRow { gpu: bad, errors } if bad == gpu => {
                    health.ecc_uncorrectable_volatile = Some(errors);
                    health.ecc_uncorrectable_aggregate = Some(errors);
                    health.row_remap_pending = Some(true);
                }
                HostFaultKind::Asks { gpu: asks, action } if asks == gpu => health.recovery_action = Some(action),
                HostFaultKind::LinkDown { gpu: down, link } if down == gpu => {
                    health.nvlinks_active = Some(links & !(1 << link));
                }
                _ => {}
            }
        }
        health
    }

    /// Returns the buffered samples from before the first snapshot, one per second.
    pub(super) fn recent_past(&self) -> Vec<RecentPast> {
        const AGE: f64 = 0.4;
        let end = self.elapsed - AGE;
        let seconds = || (0..PAST_SECONDS).rev().map(|back| end - f64::from(back));
        let of_gpu = |gpu: usize| {
            let memory = |at| memory_activity(self.plan.slot_on(gpu, at, self.ended), gpu, at);
            RecentPast {
                gpu: gpu as u16,
                end_monotonic_seconds: end,
                utilization_percent: seconds().map(|at| Some(percent(self.busy(gpu, at)))).collect(),
                memory_utilization_percent: seconds()
                    .map(|at| Some(percent(self.busy(gpu, at) * memory(at))))
                    .collect(),
                power_watts: seconds()
                    .map(|at| Some(hundredths((self.energy(gpu, at) - self.energy(gpu, at - 0.1)) / 0.1)))
                    .collect(),
            }
        };
        (0..self.plan.gpu_count).filter(|gpu| !self.is_lost(*gpu)).map(of_gpu).collect()
    }

    /// Returns the memory a worker holds on its GPU.
    pub(super) fn memory(&self, slot: &GpuSlot, worker: &Worker) -> u64 {
        let total = self.plan.model.memory_total_bytes as f64;
        let variety = rng::between(0.97, 1.03, &[slot.seed, worker.rank as u64, 62]);
        let share = (slot.kind.profile().memory_share * variety).min(0.97) * worker.share;
        let leaked = slot.leak_bytes_per_hour * self.elapsed / 3600.0;
        // A job that leaks for a long time starts with less memory.
        let share = if slot.leak_bytes_per_hour > 0.0 { 0.75 } else { share };
        // Allocated in pages of 2 MiB.
        ((total * share * loaded(worker.age_seconds) + leaked) as u64) >> 21 << 21
    }

    /// Returns the readings of a worker on its GPU.
    pub(super) fn gpu_process(&self, slot: &GpuSlot, worker: &Worker, held: u64) -> GpuProcessReading {
        let busy = self.busy(worker.gpu, self.elapsed) * worker.share;
        let fresh = self.before.is_some();
        let memory = busy * memory_activity(Some(slot), worker.gpu, self.elapsed);
        GpuProcessReading {
            pid: Some(worker.pid),
            gpu: Some(worker.gpu as u16),
            kind: Some(GpuProcessKind::Compute),
            gpu_memory_bytes: Some(held),
            sm_percent: fresh.then(|| percent(busy)),
            memory_percent: fresh.then(|| percent(memory)),
            ..GpuProcessReading::default()
        }
    }

    /// Returns the readings of a worker on the host.
    pub(super) fn process(&self, slot: &GpuSlot, job: Job, worker: &Worker) -> ProcessReading {
        let elapsed = self.elapsed;
        if slot.fault_since(JobFaultKind::LeavesMemory, elapsed).is_some() {
            // The process is gone from /proc.
            return ProcessReading {
                pid: Some(worker.pid),
                presence: Some(Presence::Gone),
                ..ProcessReading::default()
            };
        }
        let profile = slot.kind.profile();
        let (own, helpers) = slot.cpus(worker.gpu, elapsed);
        let cpus = own * worker.share;
        let jitter = rng::between(0.97, 1.03, &[slot.seed, worker.rank as u64, elapsed.to_bits()]);
        let waits = self.waits_since(slot);
        let is_dead = slot.fault_since(JobFaultKind::Lingers, elapsed).is_some();
        let state = match () {
            () if is_dead => ProcessState::Zombie,
            () if slot.fault_since(JobFaultKind::Stops, elapsed).is_some() => ProcessState::Stopped,
            () if waits.is_some() => ProcessState::DiskSleep,
            // A hung collective spins in user space, so the process is running.
            () if cpus > 0.5 => ProcessState::Running,
            () => ProcessState::Sleeping,
        };
        let rss = (profile.rss_bytes as f64 * worker.share * loaded(worker.age_seconds)) as u64 >> 12 << 12;
        let threads = 28 + self.random_below(worker.rank, 63, 1) + (profile.helper_cpus * 8.0) as u32;
        let used = slot.cpu_seconds(worker.gpu, worker.age_seconds) * worker.share;
        let mut reading = ProcessReading {
            pid: Some(worker.pid),
            start_ticks: Some(worker.start_ticks),
            presence: Some(Presence::Visible),
            state: Some(state),
            cpu_percent: self.before.map(|_| ((cpus * jitter * 1000.0).round() / 10.0) as f32),
            cpu_seconds: Some((used * 100.0).round() / 100.0),
            rss_bytes: Some(if is_dead { 0 } else { rss }),
            threads: Some(if is_dead { 2 } else { threads }),
            age_seconds: Some((worker.age_seconds * 100.0).round() / 100.0),
            parent_pid: Some(job_processes::parent(slot, job, elapsed)),
            threads_live: is_dead.then_some(1),
            blocked_thread: waits.map(|_| worker.pid),
            blocked_seconds: waits.map(|since| (elapsed - since) as f32),
            threads_blocked: Some(u32::from(waits.is_some())),
            descendants: Some(if is_dead { 0 } else { profile.helpers }),
            descendants_cpu_percent: self.before.map(|_| ((helpers * jitter * 1000.0).round() / 10.0) as f32),
            descendants_blocked: Some(0),
            ..ProcessReading::default()
        };
        if PEOPLE[slot.person].uid == VIEWER.uid {
            self.add_own_process_readings(slot, worker, &mut reading);
        }
        reading
    }

    /// Returns since when its threads wait in the kernel, because of a fault or because the file server hangs.
    fn waits_since(&self, slot: &GpuSlot) -> Option<f64> {
        let away =
            self.plan.now(self.elapsed).find(|host_fault| matches!(host_fault.kind, HostFaultKind::Silent { .. }));
        let away = away.filter(|_| slot.kind == Workload::Notebook).map(|host_fault| host_fault.from);
        slot.fault_since(JobFaultKind::Waits, self.elapsed).or(away)
    }

    /// Adds readings that only the owner may read; a probe updates them in every tenth sample.
    fn add_own_process_readings(&self, slot: &GpuSlot, worker: &Worker, reading: &mut ProcessReading) {
        const WRITES_EVERY: f64 = 7.3;
        let slow_sample_at = self.slow_sample_at;
        let age = worker.age_seconds - (self.elapsed - slow_sample_at);
        let worked = slot.work(worker.gpu, age.max(0.0));
        let stopped = slot
            .job_faults
            .iter()
            .filter(|job_fault| matches!(job_fault.kind, JobFaultKind::FallsSilent | JobFaultKind::Hangs));
        let stopped = stopped.map(|job_fault| job_fault.from).find(|from| *from <= slow_sample_at);
        reading.read_characters = Some((3e8 * worked) as u64);
        reading.write_bytes = Some((900.0 * worked) as u64);
        reading.log_age_seconds =
            Some(stopped.map_or(slow_sample_at.rem_euclid(WRITES_EVERY), |since| slow_sample_at - since).trunc());
    }

    /// Returns the file systems: once a minute, and in every sample if one hangs.
    pub(super) fn filesystems(&self) -> Vec<Filesystem> {
        let silent = |mount: &str| {
            let mut now = self.plan.now(self.elapsed);
            let since = now
                .find(|host_fault| matches!(host_fault.kind, HostFaultKind::Silent { mount: other } if other == mount));
            since.map(|host_fault| self.elapsed - host_fault.from)
        };
        let minute = |at: f64| (at / MINUTE).floor();
        let is_due = self.before.is_none_or(|before| minute(before) < minute(self.elapsed));
        if !is_due && !MOUNTS.iter().any(|(mount, ..)| silent(mount).is_some()) {
            return Vec::new();
        }
        let filesystem = |(mount, kind, gib, full): (&'static str, &str, u64, f64)| {
            let filled = self.plan.host_faults.iter().find_map(|host_fault| match host_fault.kind {
                HostFaultKind::Fills { mount: other, from, to } if other == mount => {
                    Some(from + (to - from) * host_fault.share(self.elapsed))
                }
                _ => None,
            });
            let (total, full) = (gib << 30, filled.unwrap_or(full));
            let silent = silent(mount);
            Filesystem {
                mount_point: mount.into(),
                kind: kind.into(),
                total_bytes: silent.is_none().then_some(total),
                available_bytes: silent.is_none().then_some((total as f64 * (1.0 - full / 100.0)) as u64),
                silent_seconds: silent.map(|since| since as f32),
                timeouts: silent.map(|since| (since / 5.0) as u32),
            }
        };
        MOUNTS.into_iter().map(filesystem).collect()
    }

    /// Returns a number below `below` that changes every two seconds.
    fn random_below(&self, which: usize, what: u64, below: u32) -> u32 {
        rng::hash(&[self.plan.seed, which as u64, what, (self.elapsed / 2.0) as u64]) as u32 % below
    }
}

/// Returns memory utilisation as a fraction of utilisation; a waiting kernel accesses no memory.
fn memory_activity(slot: Option<&GpuSlot>, gpu: usize, at: f64) -> f64 {
    let works = |slot: &&GpuSlot| matches!(slot.mode(gpu, at), GpuUse::Works | GpuUse::Less(_));
    slot.filter(works).map_or(0.0, |slot| slot.kind.profile().memory_activity)
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
