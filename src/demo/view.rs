//! One simulated host at one moment: what is read of its GPUs and processes.

use super::cast::{PEOPLE, VIEWER};
use super::dice;
use super::fate::{Mode, What};
use super::incident::Event;
use super::inventory::PCIE_WIDTH;
use super::jobs::{self, Worker};
use super::lab::Driver;
use super::plan::{MINUTE, Plan};
use super::scenario::{Sight, hundredths, percent};
use super::seat::{Ended, Job, Seat, loaded};
use super::work::Kind;
use crate::wire::{
    DeviceError, DriverErrorKind, Filesystem, GpuHealth, GpuProcessKind, GpuProcessReading, GpuReading, Presence,
    ProcessReading, ProcessState, RecentPast, RecoveryAction,
};

const POWER_CAP: u64 = 0x4;
const SOFTWARE_THERMAL: u64 = 0x20;
/// Hardware slowdown, by heat.
const HARDWARE_THERMAL: u64 = 0x48;
const POWER_BRAKE: u64 = 0x80;
/// Part of the time for which heat, and the power brake, hold a GPU down.
const THROTTLED: f64 = 0.24;
const BRAKED: f64 = 0.07;
/// What the driver remembers from before the first snapshot, in seconds.
const PAST_SECONDS: u32 = 60;
/// Its filesystems, each with its kind, size in GiB and how full it is, in percent.
const MOUNTS: [(&str, &str, u64, f64); 3] =
    [("/", "ext4", 880, 41.0), ("/home", "nfs4", 36_000, 63.0), ("/scratch", "xfs", 14_000, 52.0)];

/// One host at one moment.
pub(super) struct View<'a> {
    plan: &'a Plan,
    pub(super) elapsed: f64,
    /// The moment of the snapshot before.
    pub(super) before: Option<f64>,
    looked: f64,
    ended: &'a Ended,
}

impl<'a> View<'a> {
    pub(super) fn new(plan: &'a Plan, sight: Sight, ended: &'a Ended) -> Self {
        Self {
            plan,
            elapsed: sight.now.since_start().as_secs_f64(),
            before: sight.before.map(|before| before.since_start().as_secs_f64()),
            looked: sight.looked.since_start().as_secs_f64(),
            ended,
        }
    }

    /// Whether this GPU fell off the bus.
    pub(super) fn is_lost(&self, gpu: usize) -> bool {
        self.plan.now(self.elapsed).any(|incident| incident.what == Event::Lost { gpu })
    }

    /// The readings of one GPU, of which processes use so many bytes.
    pub(super) fn gpu(&self, gpu: usize, used: u64) -> GpuReading {
        let model = self.plan.model;
        if self.is_lost(gpu) {
            let message = "GPU is lost: it has fallen off the bus".into();
            let error = DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message };
            return GpuReading { error: Some(error), ..GpuReading::default() };
        }
        let seat = self.plan.seat_on(gpu, self.elapsed, self.ended);
        let energy = |at: f64| self.energy(gpu, at);
        let mean_watts = |seconds: f64| (energy(self.elapsed) - energy(self.elapsed - seconds)) / seconds;
        let busy = self.busy(gpu, self.elapsed);
        let watts = mean_watts(0.1);
        let reasons = self.reasons(seat, gpu, watts);
        let sm_mhz = match reasons {
            0x1 => 345,
            reasons if reasons & (SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE) != 0 => {
                model.sm_max_mhz * 68 / 100 + self.chance(gpu, 61, 5) * 15
            }
            POWER_CAP => model.sm_max_mhz - 15 * (3 + self.chance(gpu, 61, 6)),
            _ => model.sm_max_mhz,
        };
        let heat = self.celsius(seat, gpu, busy, mean_watts(60.0));
        let slow_link = self.plan.now(self.elapsed).find_map(|incident| match incident.what {
            Event::SlowLink { gpu: slow, generation } if slow == gpu => Some(generation),
            _ => None,
        });
        GpuReading {
            error: None,
            utilization_percent: Some(percent(busy)),
            memory_utilization_percent: Some(percent(busy * memory_activity(seat, gpu, self.elapsed))),
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
            // An HGX board has no fans of its own.
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

    /// Energy since the driver was loaded, in joules.
    fn energy(&self, gpu: usize, at: f64) -> f64 {
        let before = dice::between(2e8, 3e9, &[self.plan.seed, gpu as u64, 65]);
        let variety = dice::between(0.94, 1.06, &[self.plan.seed, gpu as u64, 66]);
        let here = self.plan.seats.iter().filter(|seat| seat.gpus.contains(&gpu));
        let jobs: f64 = here.map(|seat| seat.energy(self.plan.model, gpu, at, self.ended)).sum();
        before + self.plan.model.idle_watts * variety * at + jobs
    }

    /// Share of the last second in which a kernel ran.
    fn busy(&self, gpu: usize, at: f64) -> f64 {
        let job = self.plan.seat_on(gpu, at, self.ended).and_then(|seat| Some((seat, seat.job(at, self.ended)?)));
        job.map_or(0.0, |(seat, job)| {
            seat.work(gpu, job.age_seconds) - seat.work(gpu, (job.age_seconds - 1.0).max(0.0))
        })
        .clamp(0.0, 1.0)
    }

    fn reasons(&self, seat: Option<&Seat>, gpu: usize, watts: f64) -> u64 {
        let brakes = |what: Event| matches!(what, Event::Brake { first, last } if (first..=last).contains(&gpu));
        match seat {
            None => 0x1,
            Some(seat) if seat.befallen(What::Overheats, self.elapsed).is_some() => {
                if self.chance(gpu, 67, 100) < (THROTTLED * 100.0) as u32 {
                    HARDWARE_THERMAL | SOFTWARE_THERMAL
                } else {
                    SOFTWARE_THERMAL
                }
            }
            Some(seat) if seat.kind == Kind::Hot => SOFTWARE_THERMAL,
            _ if self.plan.now(self.elapsed).any(|incident| brakes(incident.what)) => POWER_BRAKE,
            _ if watts > 0.9 * self.plan.model.power_limit_watts => POWER_CAP,
            _ => 0,
        }
    }

    fn celsius(&self, seat: Option<&Seat>, gpu: usize, busy: f64, mean_watts: f64) -> f64 {
        let model = self.plan.model;
        // Forty-odd degrees above the air at full power, after about a minute.
        let air = 25.5 + dice::between(0.0, 4.0, &[self.plan.seed, gpu as u64, 60]);
        match seat {
            Some(seat) if seat.kind == Kind::Hot => {
                let margin = if seat.befallen(What::Overheats, self.elapsed).is_some() { 0.0 } else { 1.0 };
                f64::from(model.slowdown_celsius) - margin - 0.6 * (1.0 - busy)
            }
            _ => air + 44.0 * mean_watts / model.power_limit_watts,
        }
    }

    /// Counters begin with what was before the demo.
    fn throttled_seconds(&self, gpu: usize) -> f64 {
        let here = self.plan.seats.iter().filter(|seat| seat.gpus.contains(&gpu));
        let fates = here.flat_map(|seat| seat.fates.iter().map(|fate| (fate, seat.left_seconds)));
        let heated = fates.filter(|(fate, _)| fate.what == What::Overheats);
        let seconds = heated.map(|(fate, left)| (self.elapsed.min(fate.until).min(left) - fate.from).max(0.0));
        dice::between(0.0, 90.0, &[self.plan.seed, gpu as u64, 68]) + THROTTLED * seconds.sum::<f64>()
    }

    fn braked_seconds(&self, gpu: usize) -> f64 {
        let brakes = |what: Event| matches!(what, Event::Brake { first, last } if (first..=last).contains(&gpu));
        let all = self.plan.incidents.iter().filter(|incident| brakes(incident.what));
        BRAKED * all.map(|incident| incident.seconds(self.elapsed)).sum::<f64>()
    }

    /// What rarely changes about one GPU.
    pub(super) fn health(&self, gpu: usize) -> GpuHealth {
        let links = (1_u64 << self.plan.model.nvlinks) - 1;
        let mut health = GpuHealth {
            ecc_corrected_volatile: Some(0),
            ecc_uncorrectable_volatile: Some(0),
            ecc_corrected_aggregate: Some(dice::hash(&[self.plan.seed, gpu as u64, 69]) % 7),
            ecc_uncorrectable_aggregate: Some(0),
            remapped_rows_correctable: Some(0),
            remapped_rows_uncorrectable: Some(0),
            row_remap_pending: Some(false),
            row_remap_failed: Some(false),
            recovery_action: Some(RecoveryAction::None),
            persistence_mode: Some(self.plan.driver != Driver::Forgotten),
            nvlinks_active: Some(links),
            ..GpuHealth::default()
        };
        for incident in self.plan.now(self.elapsed) {
            match incident.what {
                Event::BadRow { gpu: bad, errors } if bad == gpu => {
                    health.ecc_uncorrectable_volatile = Some(errors);
                    health.ecc_uncorrectable_aggregate = Some(errors);
                    health.row_remap_pending = Some(true);
                }
                Event::Asks { gpu: asks, action } if asks == gpu => health.recovery_action = Some(action),
                Event::LinkDown { gpu: down, link } if down == gpu => {
                    health.nvlinks_active = Some(links & !(1 << link));
                }
                _ => {}
            }
        }
        health
    }

    /// What the driver remembers from before the first snapshot: a value a second.
    pub(super) fn recent_past(&self) -> Vec<RecentPast> {
        const AGE: f64 = 0.4;
        let end = self.elapsed - AGE;
        let seconds = || (0..PAST_SECONDS).rev().map(|back| end - f64::from(back));
        let of_gpu = |gpu: usize| {
            let memory = |at| memory_activity(self.plan.seat_on(gpu, at, self.ended), gpu, at);
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

    /// Memory that a worker holds on its GPU.
    pub(super) fn memory(&self, seat: &Seat, worker: &Worker) -> u64 {
        let total = self.plan.model.memory_total_bytes as f64;
        let variety = dice::between(0.97, 1.03, &[seat.seed, worker.rank as u64, 62]);
        let share = (seat.kind.figures().memory_share * variety).min(0.97) * worker.share;
        let leaked = seat.leak_bytes_per_hour * self.elapsed / 3600.0;
        // What leaks for long began with less in it.
        let share = if seat.leak_bytes_per_hour > 0.0 { 0.75 } else { share };
        // Handed out in pages of 2 MiB.
        ((total * share * loaded(worker.age_seconds) + leaked) as u64) >> 21 << 21
    }

    /// What a worker does on its GPU.
    pub(super) fn gpu_process(&self, seat: &Seat, worker: &Worker, held: u64) -> GpuProcessReading {
        let busy = self.busy(worker.gpu, self.elapsed) * worker.share;
        let fresh = self.before.is_some();
        let memory = busy * memory_activity(Some(seat), worker.gpu, self.elapsed);
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

    /// What a worker does on the host.
    pub(super) fn process(&self, seat: &Seat, job: Job, worker: &Worker) -> ProcessReading {
        let elapsed = self.elapsed;
        if seat.befallen(What::LeavesMemory, elapsed).is_some() {
            // /proc no longer shows it.
            return ProcessReading {
                pid: Some(worker.pid),
                presence: Some(Presence::Gone),
                ..ProcessReading::default()
            };
        }
        let figures = seat.kind.figures();
        let (own, helpers) = seat.cpus(worker.gpu, elapsed);
        let cpus = own * worker.share;
        let jitter = dice::between(0.97, 1.03, &[seat.seed, worker.rank as u64, elapsed.to_bits()]);
        let waits = self.waits_since(seat);
        let is_dead = seat.befallen(What::Lingers, elapsed).is_some();
        let state = match () {
            () if is_dead => ProcessState::Zombie,
            () if seat.befallen(What::Stops, elapsed).is_some() => ProcessState::Stopped,
            () if waits.is_some() => ProcessState::DiskSleep,
            // A hung collective spins in user space: running, not waiting.
            () if cpus > 0.5 => ProcessState::Running,
            () => ProcessState::Sleeping,
        };
        let rss = (figures.rss_bytes as f64 * worker.share * loaded(worker.age_seconds)) as u64 >> 12 << 12;
        let threads = 28 + self.chance(worker.rank, 63, 1) + (figures.helper_cpus * 8.0) as u32;
        let used = seat.cpu_seconds(worker.gpu, worker.age_seconds) * worker.share;
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
            parent_pid: Some(jobs::parent(seat, job, elapsed)),
            threads_live: is_dead.then_some(1),
            blocked_thread: waits.map(|_| worker.pid),
            blocked_seconds: waits.map(|since| (elapsed - since) as f32),
            threads_blocked: Some(u32::from(waits.is_some())),
            descendants: Some(if is_dead { 0 } else { figures.helpers }),
            descendants_cpu_percent: self.before.map(|_| ((helpers * jitter * 1000.0).round() / 10.0) as f32),
            descendants_blocked: Some(0),
            ..ProcessReading::default()
        };
        if PEOPLE[seat.person].uid == VIEWER.uid {
            self.own_files(seat, worker, &mut reading);
        }
        reading
    }

    /// Since when its threads wait in the kernel: of themselves, or because the file server is away.
    fn waits_since(&self, seat: &Seat) -> Option<f64> {
        let away = self.plan.now(self.elapsed).find(|incident| matches!(incident.what, Event::Silent { .. }));
        let away = away.filter(|_| seat.kind == Kind::Notebook).map(|incident| incident.from);
        seat.befallen(What::Waits, self.elapsed).or(away)
    }

    /// What only its owner may read of a process; a probe looks at it in every tenth sample.
    fn own_files(&self, seat: &Seat, worker: &Worker, reading: &mut ProcessReading) {
        const WRITES_EVERY: f64 = 7.3;
        let looked = self.looked;
        let age = worker.age_seconds - (self.elapsed - looked);
        let worked = seat.work(worker.gpu, age.max(0.0));
        let stopped = seat.fates.iter().filter(|fate| matches!(fate.what, What::FallsSilent | What::Hangs));
        let stopped = stopped.map(|fate| fate.from).find(|from| *from <= looked);
        reading.read_characters = Some((3e8 * worked) as u64);
        reading.write_bytes = Some((900.0 * worked) as u64);
        reading.log_age_seconds = Some(stopped.map_or(looked.rem_euclid(WRITES_EVERY), |since| looked - since).trunc());
    }

    /// The filesystems, asked once a minute; one that does not answer is told in each sample.
    pub(super) fn filesystems(&self) -> Vec<Filesystem> {
        let silent = |mount: &str| {
            let mut now = self.plan.now(self.elapsed);
            let since = now.find(|incident| matches!(incident.what, Event::Silent { mount: other } if other == mount));
            since.map(|incident| self.elapsed - incident.from)
        };
        let minute = |at: f64| (at / MINUTE).floor();
        let is_due = self.before.is_none_or(|before| minute(before) < minute(self.elapsed));
        if !is_due && !MOUNTS.iter().any(|(mount, ..)| silent(mount).is_some()) {
            return Vec::new();
        }
        let filesystem = |(mount, kind, gib, full): (&'static str, &str, u64, f64)| {
            let filled = self.plan.incidents.iter().find_map(|incident| match incident.what {
                Event::Fills { mount: other, from, to } if other == mount => {
                    Some(from + (to - from) * incident.share(self.elapsed))
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

    /// A number below `below` that changes every two seconds.
    fn chance(&self, which: usize, what: u64, below: u32) -> u32 {
        dice::hash(&[self.plan.seed, which as u64, what, (self.elapsed / 2.0) as u64]) as u32 % below
    }
}

/// Memory utilisation as a share of utilisation: a kernel that waits reaches no memory.
fn memory_activity(seat: Option<&Seat>, gpu: usize, at: f64) -> f64 {
    let works = |seat: &&Seat| matches!(seat.mode(gpu, at), Mode::Works | Mode::Less(_));
    seat.filter(works).map_or(0.0, |seat| seat.kind.figures().memory_activity)
}
