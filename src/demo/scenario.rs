//! What a simulated server would send: a function of the seed, the host and the moment, and of nothing else.

use super::cast::{Kind, VIEWER};
use super::dice;
use super::jobs::{self, Worker};
use super::plan::{Plan, Trouble};
use super::seat::{Ended, Seat, loaded};
use crate::fleet::Moment;
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, GpuColumns, GpuHealth, GpuHealthColumns, GpuInfo, GpuProcessColumns,
    GpuProcessKind, GpuProcessReading, GpuReading, Hello, HostReading, Inventory, PROTOCOL, Presence, ProcessColumns,
    ProcessReading, ProcessState, SafeText, Scope, Snapshot,
};
use std::collections::{BTreeMap, HashSet};

/// CPUs of each server.
const CPU_COUNT: u32 = 112;
/// Memory of each server.
const HOST_MEMORY_BYTES: u64 = 1007 << 30;
/// Memory of the system itself.
const SYSTEM_MEMORY_BYTES: u64 = 38 << 30;
const DRIVER: &str = "570.86.15";
const THERMAL_AND_POWER: u64 = 0x20;

/// The processes, by pid and start ticks, whose facts were sent on a connection.
pub(super) type Told = HashSet<(u32, u64)>;

/// A process, as a signal finds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Found {
    pub(super) start_ticks: u64,
    pub(super) uid: u32,
    /// Seat, turn, and the job's age: what [`Ended`] holds.
    pub(super) job: ((u64, u64), f64),
}

impl Plan {
    /// Who speaks.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            probe_version: env!("CARGO_PKG_VERSION").into(),
            boot_id: Some(self.boot_id()),
            host_name: Some(self.name.as_str().into()),
            login_user: Some(VIEWER.login.into()),
            login_uid: Some(VIEWER.uid),
            kernel: Some("6.8.0-60-generic".into()),
            arch: Some("x86_64".into()),
            cpu_count: Some(CPU_COUNT),
            memory_total_bytes: Some(HOST_MEMORY_BYTES),
            scope: Some(Scope::Host),
            source: Some("simulated".into()),
            probe_pid: Some(1900),
        }
    }

    /// The id that names its boot.
    pub(super) fn boot_id(&self) -> SafeText {
        let (high, low) = (self.seed, dice::hash(&[self.seed, 50]));
        SafeText::new(&format!(
            "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xFFFF,
            high & 0xFFF,
            low >> 52,
            low & 0xFFFF_FFFF_FFFF
        ))
    }

    /// Its GPUs, or why there are none.
    pub(super) fn inventory(&self) -> Inventory {
        if self.trouble == Trouble::VersionMismatch {
            let error = DriverError {
                kind: DriverErrorKind::VersionMismatch,
                code: Some(18),
                message: "driver and library versions differ: the driver was updated without a reboot".into(),
            };
            return Inventory { generation: 1, error: Some(error), ..Inventory::default() };
        }
        let model = self.model;
        let info = |gpu: usize| {
            let id = dice::hash(&[self.seed, 51, gpu as u64]);
            GpuInfo {
                index: gpu as u32,
                uuid: Some(SafeText::new(&format!(
                    "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    id >> 32,
                    id >> 16 & 0xFFFF,
                    id & 0xFFFF,
                    self.seed >> 48,
                    self.seed & 0xFFFF_FFFF_FFFF
                ))),
                name: Some(model.name.into()),
                pci_bus_id: Some(SafeText::new(&format!("00000000:{:02X}:00.0", 0x1B + 0x14 * gpu % 0xE0))),
                memory_total_bytes: Some(model.memory_total_bytes),
                power_limit_watts: Some(model.power_limit_watts as f32),
                power_limit_max_watts: Some(model.power_limit_watts as f32),
                clock_graphics_max_mhz: Some(model.sm_max_mhz),
                clock_sm_max_mhz: Some(model.sm_max_mhz),
                clock_memory_max_mhz: Some(model.memory_mhz),
                temperature_slowdown_celsius: Some(model.slowdown_celsius),
                temperature_shutdown_celsius: Some(model.slowdown_celsius + 3),
                mig_enabled: Some(false),
                ..GpuInfo::default()
            }
        };
        Inventory {
            generation: 1,
            driver_version: Some(DRIVER.into()),
            cuda_version: Some("12.8".into()),
            nvml_path: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into()),
            gpus: (0..self.gpu_count).map(info).collect(),
            error: None,
        }
    }

    /// All readings of one moment, with the facts of the processes that are not in `told`. `before` is the moment of the
    /// snapshot before it on this connection; without one, what is a difference is not known, as on a real server.
    pub(super) fn snapshot(&self, now: Moment, before: Option<Moment>, ended: &Ended, told: &Told) -> Snapshot {
        let elapsed = now.elapsed.as_secs_f64();
        let before = before.map(|before| before.elapsed.as_secs_f64());
        let view = View { plan: self, elapsed, before, ended };
        let (mut gpu_rows, mut rows, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        let mut gpus = vec![GpuReading::default(); self.gpu_count];
        let mut used = BTreeMap::new();
        let mut cpus = 1.4;
        let mut memory = SYSTEM_MEMORY_BYTES;
        for seat in &self.seats {
            let job = seat.job(elapsed, ended);
            if let Some(job) = job {
                let figures = seat.kind.figures();
                for worker in jobs::workers(self, seat, job, elapsed) {
                    let held = view.memory(seat, &worker);
                    *used.entry(worker.gpu).or_insert(0) += held;
                    cpus += figures.cpus * worker.share + figures.helper_cpus;
                    memory += figures.rss_bytes;
                    rows.push(view.process(seat, &worker));
                    if self.trouble == Trouble::VersionMismatch || self.is_lost(worker.gpu) {
                        continue;
                    }
                    gpu_rows.push(view.gpu_process(seat, &worker, held));
                    if !told.contains(&(worker.pid, worker.start_ticks)) {
                        facts.push(jobs::facts(self, seat, job, &worker, elapsed, now.unix.as_secs_f64()));
                    }
                }
            }
            for gpu in seat.gpus.clone() {
                gpus[gpu] = view.gpu(seat, gpu, job.is_some(), used.get(&gpu).copied().unwrap_or_default());
            }
        }
        let blind = self.trouble == Trouble::VersionMismatch;
        // Without a driver nothing says which processes are on a GPU.
        let known: Vec<u32> = gpu_rows.iter().filter_map(|row: &GpuProcessReading| row.pid).collect();
        rows.retain(|row: &ProcessReading| row.pid.is_some_and(|pid| known.contains(&pid)));
        let health = GpuHealth { ecc_uncorrectable_volatile: Some(0), ..GpuHealth::default() };
        Snapshot {
            health: if blind {
                GpuHealthColumns::default()
            } else {
                GpuHealthColumns::from_rows(&vec![health; self.gpu_count])
            },
            generation: 1,
            monotonic_seconds: elapsed,
            wall_unix_ms: now.unix.as_millis() as i64,
            host: view.host(cpus, memory),
            gpus: if blind { GpuColumns::default() } else { GpuColumns::from_rows(&gpus) },
            gpu_processes: GpuProcessColumns::from_rows(&gpu_rows),
            processes: ProcessColumns::from_rows(&rows),
            facts,
            ..Snapshot::default()
        }
    }

    /// The process with this number, if it runs now.
    pub(super) fn find(&self, pid: u32, now: Moment, ended: &Ended) -> Option<Found> {
        let elapsed = now.elapsed.as_secs_f64();
        self.seats.iter().find_map(|seat| {
            let job = seat.job(elapsed, ended)?;
            let workers = jobs::workers(self, seat, job, elapsed);
            let first = workers.first()?;
            let facts = jobs::facts(self, seat, job, first, elapsed, now.unix.as_secs_f64());
            let parents = facts.ancestors.iter().map(|parent| (parent.pid, parent.start_ticks));
            let all = workers.iter().map(|worker| (worker.pid, worker.start_ticks)).chain(parents);
            let (_, start_ticks) = all.into_iter().find(|(number, _)| *number == pid)?;
            Some(Found { start_ticks, uid: facts.uid?, job: ((seat.number, job.turn), job.age_seconds) })
        })
    }

    fn is_lost(&self, gpu: usize) -> bool {
        self.trouble == Trouble::GpuLost(gpu)
    }
}

/// A host at one moment.
struct View<'a> {
    plan: &'a Plan,
    elapsed: f64,
    before: Option<f64>,
    ended: &'a Ended,
}

impl View<'_> {
    fn gpu(&self, seat: &Seat, gpu: usize, is_held: bool, used: u64) -> GpuReading {
        let model = self.plan.model;
        if self.plan.is_lost(gpu) {
            let message = "GPU is lost: it has fallen off the bus".into();
            let error = DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message };
            return GpuReading { error: Some(error), ..GpuReading::default() };
        }
        let energy = |at: f64| seat.energy(model, gpu, at, self.ended);
        let mean_watts = |seconds: f64| (energy(self.elapsed) - energy(self.elapsed - seconds)) / seconds;
        let busy = self.busy(seat, gpu);
        let watts = mean_watts(0.1);
        let is_hot = seat.kind == Kind::Hot && is_held;
        // Forty-odd degrees above the air at full power, after about a minute.
        let warmth = 44.0 * mean_watts(60.0) / model.power_limit_watts;
        let air = 25.5 + dice::between(0.0, 4.0, &[self.plan.seed, gpu as u64, 60]);
        let heat = if is_hot { f64::from(model.slowdown_celsius - 1) - 0.6 * (1.0 - busy) } else { air + warmth };
        let capped = watts > 0.9 * model.power_limit_watts;
        let sm_mhz = match (is_held, is_hot, capped) {
            (false, ..) => 345,
            (_, true, _) => model.sm_max_mhz * 68 / 100 + self.chance(gpu, 61, 5) * 15,
            (_, _, true) => model.sm_max_mhz - 15 * (3 + self.chance(gpu, 61, 6)),
            _ => model.sm_max_mhz,
        };
        GpuReading {
            error: None,
            utilization_percent: Some(percent(busy)),
            memory_utilization_percent: Some(percent(busy * self.memory_activity(seat))),
            memory_used_bytes: Some(used + (4 << 20)),
            memory_reserved_bytes: Some(model.memory_reserved_bytes),
            temperature_celsius: Some(heat.round() as i32),
            memory_temperature_celsius: Some((heat + 5.0 + 3.0 * busy).round() as i32),
            power_watts: Some(hundredths(watts)),
            power_mean_watts: self
                .before
                .map(|before| hundredths((energy(self.elapsed) - energy(before)) / (self.elapsed - before).max(0.001))),
            energy_joules: Some(((self.energy_before(gpu) + energy(self.elapsed)) * 1000.0).round() / 1000.0),
            clock_graphics_mhz: Some(sm_mhz),
            clock_sm_mhz: Some(sm_mhz),
            clock_memory_mhz: Some(model.memory_mhz),
            // An HGX board has no fans of its own.
            fan_percent: None,
            performance_state: Some(0),
            clocks_event_reasons: Some(match (is_held, is_hot, capped) {
                (false, ..) => 0x1,
                (_, true, _) => THERMAL_AND_POWER,
                (_, _, true) => 0x4,
                _ => 0,
            }),
            pcie_generation: Some(model.pcie_generation),
            pcie_width: Some(16),
            ..GpuReading::default()
        }
    }

    /// Share of the last second in which a kernel ran.
    fn busy(&self, seat: &Seat, gpu: usize) -> f64 {
        seat.job(self.elapsed, self.ended)
            .map_or(0.0, |job| seat.work(gpu, job.age_seconds) - seat.work(gpu, (job.age_seconds - 1.0).max(0.0)))
            .clamp(0.0, 1.0)
    }

    fn memory_activity(&self, seat: &Seat) -> f64 {
        if seat.is_hung(self.elapsed) { 0.0 } else { seat.kind.figures().memory_activity }
    }

    fn memory(&self, seat: &Seat, worker: &Worker) -> u64 {
        let total = self.plan.model.memory_total_bytes as f64;
        let variety = dice::between(0.97, 1.03, &[seat.seed, worker.rank as u64, 62]);
        let share = (seat.kind.figures().memory_share * variety).min(0.97) * worker.share;
        // Handed out in pages of 2 MiB.
        ((total * share * loaded(worker.age_seconds)) as u64) >> 21 << 21
    }

    fn gpu_process(&self, seat: &Seat, worker: &Worker, held: u64) -> GpuProcessReading {
        let busy = self.busy(seat, worker.gpu) * worker.share;
        let fresh = self.before.is_some();
        GpuProcessReading {
            pid: Some(worker.pid),
            gpu: Some(worker.gpu as u16),
            kind: Some(GpuProcessKind::Compute),
            gpu_memory_bytes: Some(held),
            sm_percent: fresh.then(|| percent(busy)),
            memory_percent: fresh.then(|| percent(busy * self.memory_activity(seat))),
            ..GpuProcessReading::default()
        }
    }

    fn process(&self, seat: &Seat, worker: &Worker) -> ProcessReading {
        let figures = seat.kind.figures();
        let cpus = figures.cpus * worker.share;
        let jitter = dice::between(0.97, 1.03, &[seat.seed, worker.rank as u64, self.elapsed.to_bits()]);
        ProcessReading {
            pid: Some(worker.pid),
            start_ticks: Some(worker.start_ticks),
            presence: Some(Presence::Visible),
            // A hung collective spins in user space: running, not waiting.
            state: Some(if cpus > 0.5 { ProcessState::Running } else { ProcessState::Sleeping }),
            cpu_percent: self.before.map(|_| ((cpus * jitter * 1000.0).round() / 10.0) as f32),
            cpu_seconds: Some((cpus * worker.age_seconds * 100.0).round() / 100.0),
            rss_bytes: Some((figures.rss_bytes as f64 * worker.share * loaded(worker.age_seconds)) as u64 >> 12 << 12),
            threads: Some(28 + self.chance(worker.rank, 63, 1) + (figures.helper_cpus * 8.0) as u32),
            age_seconds: Some((worker.age_seconds * 100.0).round() / 100.0),
            ..ProcessReading::default()
        }
    }

    fn host(&self, cpus: f64, memory: u64) -> HostReading {
        // Slow, so that a load average does not jump.
        let swell = (self.elapsed / 47.0 + dice::unit(&[self.plan.seed, 64])).sin();
        let load = cpus * (1.04 + 0.05 * swell);
        let starved = self.plan.seats.iter().any(|seat| seat.kind == Kind::Starved);
        let mut reading = HostReading {
            load_1: Some(hundredths(load)),
            load_5: Some(hundredths(cpus * 1.03)),
            load_15: Some(hundredths(cpus * 1.01)),
            memory_total_bytes: Some(HOST_MEMORY_BYTES),
            memory_available_bytes: Some(HOST_MEMORY_BYTES.saturating_sub(memory)),
            swap_total_bytes: Some(0),
            swap_free_bytes: Some(0),
            uptime_seconds: Some(((self.plan.up_seconds + self.elapsed) * 100.0).round() / 100.0),
            pressure_io_percent: Some(if starved { 3.2 } else { 0.1 }),
            pressure_memory_percent: Some(0.0),
            oom_kills: Some(0),
            ..HostReading::default()
        };
        if self.before.is_some() {
            let busy = (cpus * (1.0 + 0.04 * swell) / f64::from(CPU_COUNT)).min(1.0);
            reading.cpu_percent = Some(hundredths(100.0 * busy));
            reading.io_wait_percent = Some(if starved { 1.4 } else { 0.1 });
        }
        reading
    }

    fn energy_before(&self, gpu: usize) -> f64 {
        dice::between(2e8, 3e9, &[self.plan.seed, gpu as u64, 65])
    }

    /// A number below `below` that changes every two seconds.
    fn chance(&self, which: usize, what: u64, below: u32) -> u32 {
        dice::hash(&[self.plan.seed, which as u64, what, (self.elapsed / 2.0) as u64]) as u32 % below
    }
}

fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

fn hundredths(value: f64) -> f32 {
    ((value * 100.0).round() / 100.0) as f32
}

#[cfg(test)]
#[path = "scenario_tests.rs"]
mod tests;
