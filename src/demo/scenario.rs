//! What a simulated server would send: a function of the seed, the host and the moment, and of nothing else.

use super::cast::{Kind, VIEWER};
use super::dice;
use super::jobs::{self, Worker};
use super::plan::{Plan, Trouble};
use super::seat::{Ended, Seat, loaded};
use crate::fleet::Moment;
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessKind,
    GpuProcessReading, GpuReading, Hello, HostReading, Inventory, PROTOCOL, Presence, ProcessColumns, ProcessReading,
    ProcessState, SafeText, Scope, Snapshot,
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
        Snapshot {
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
        let busy = self.busy(seat);
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
            energy_joules: Some(self.energy_before(gpu) + (energy(self.elapsed) * 1000.0).round() / 1000.0),
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
            ecc_uncorrectable_volatile: Some(0),
            ..GpuReading::default()
        }
    }

    /// Share of the last second in which a kernel ran.
    fn busy(&self, seat: &Seat) -> f64 {
        seat.job(self.elapsed, self.ended)
            .map_or(0.0, |job| seat.work(job.age_seconds) - seat.work((job.age_seconds - 1.0).max(0.0)))
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
        let busy = self.busy(seat) * worker.share;
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
        (dice::between(2e8, 3e9, &[self.plan.seed, gpu as u64, 65]) * 10.0).round() / 10.0
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
mod tests {
    use super::*;
    use crate::wire::codec::{decode, encode};
    use crate::wire::{ClocksEventReasons, Message};
    use std::time::Duration;

    fn at(seconds: f64) -> Moment {
        Moment::default().plus(Duration::from_secs_f64(seconds))
    }

    fn plan(index: u32) -> Plan {
        Plan::new(20_251_114, index, 6, 8)
    }

    fn snapshot(plan: &Plan, seconds: f64) -> Snapshot {
        plan.snapshot(at(seconds), Some(at((seconds - 2.0).max(0.0))), &Ended::new(), &Told::new())
    }

    /// The position of the first GPU of this kind.
    fn gpu_of(plan: &Plan, kind: Kind) -> usize {
        plan.seats.iter().find(|seat| seat.kind == kind).expect("is there").gpus.start
    }

    #[test]
    fn the_same_moment_gives_the_same_readings() {
        assert_eq!(snapshot(&plan(0), 100.0), snapshot(&plan(0), 100.0));
        assert_ne!(snapshot(&plan(0), 100.0).gpus, snapshot(&plan(0), 102.0).gpus);
        assert_ne!(plan(0).boot_id(), plan(1).boot_id());
    }

    #[test]
    fn every_moment_of_every_host_is_possible() {
        for index in 0..16 {
            let plan = Plan::new(20_251_114, index, 40, 8);
            let mut energy = [0.0; 8];
            for step in 0..80 {
                let seconds = 3.0 + f64::from(step) * 27.3;
                let snapshot = snapshot(&plan, seconds);
                let message = Message::Snapshot(Box::new(snapshot.clone()));
                let line = encode(&message).expect("encodes");
                assert!(decode(line.trim_ascii_end()).is_ok());
                for (gpu, energy) in energy.iter_mut().enumerate().take(snapshot.gpus.len()) {
                    let reading = snapshot.gpus.row(gpu);
                    if reading.error.is_some() {
                        continue;
                    }
                    let of = |wanted: &GpuProcessReading| wanted.gpu == Some(gpu as u16);
                    let held: u64 = (0..snapshot.gpu_processes.len())
                        .map(|row| snapshot.gpu_processes.row(row))
                        .filter(of)
                        .filter_map(|row| row.gpu_memory_bytes)
                        .sum();
                    let used = reading.memory_used_bytes.expect("known");
                    assert!(used >= held && used - held < 500 << 20, "memory that nobody holds");
                    assert!(used + plan.model.memory_reserved_bytes <= plan.model.memory_total_bytes);
                    let watts = f64::from(reading.power_watts.expect("known"));
                    assert!((40.0..=plan.model.power_limit_watts).contains(&watts), "{watts} W");
                    assert!((25..=91).contains(&reading.temperature_celsius.expect("known")));
                    let joules = reading.energy_joules.expect("known");
                    if *energy > 0.0 {
                        let mean = (joules - *energy) / 27.3;
                        assert!((40.0..=plan.model.power_limit_watts).contains(&mean), "mean {mean} W");
                    }
                    *energy = joules;
                }
                assert!(snapshot.host.memory_available_bytes > Some(0));
                assert!(snapshot.host.cpu_percent.is_some_and(|percent| percent <= 100.0));
                assert_eq!(snapshot.facts.len(), snapshot.processes.len());
            }
        }
    }

    #[test]
    fn mean_power_is_the_energy_over_the_time() {
        let plan = plan(1);
        let (first, second) = (snapshot(&plan, 50.0), snapshot(&plan, 52.0));
        for gpu in 0..8 {
            let joules = second.gpus.row(gpu).energy_joules.unwrap() - first.gpus.row(gpu).energy_joules.unwrap();
            let mean = f64::from(second.gpus.row(gpu).power_mean_watts.unwrap());
            assert!((joules / 2.0 - mean).abs() < 0.02, "{joules} J, {mean} W");
        }
    }

    #[test]
    fn a_training_run_looks_like_one() {
        let plan = plan(1);
        let rows: Vec<GpuReading> = (2..402).map(|second| snapshot(&plan, f64::from(second)).gpus.row(3)).collect();
        let count = |of: &dyn Fn(&GpuReading) -> bool| rows.iter().filter(|row| of(row)).count();
        assert!(count(&|row| row.utilization_percent >= Some(85)) > 280);
        assert!(count(&|row| row.utilization_percent < Some(60)) > 8, "dips");
        assert!(count(&|row| row.power_watts > Some(500.0)) > 260);
    }

    #[test]
    fn a_hung_job_reads_full_and_draws_little() {
        let plan = plan(2);
        for seconds in [5.0, 500.0, 5000.0] {
            let reading = snapshot(&plan, seconds).gpus.row(gpu_of(&plan, Kind::Hung));
            assert_eq!((reading.utilization_percent, reading.memory_utilization_percent), (Some(100), Some(0)));
            assert!((100.0..=125.0).contains(&reading.power_watts.unwrap()));
            assert_eq!(reading.clock_sm_mhz, Some(1980));
        }
    }

    #[test]
    fn one_job_works_at_first_and_hangs_later() {
        let plan = plan(2);
        let gpu = gpu_of(&plan, Kind::HangsLater);
        let watts = |seconds| snapshot(&plan, seconds).gpus.row(gpu).power_mean_watts.unwrap();
        let healthy: f32 = (0..30).map(|step| watts(100.0 + 2.0 * step as f64)).sum::<f32>() / 30.0;
        assert!(healthy > 400.0, "{healthy}");
        let reading = snapshot(&plan, 700.0).gpus.row(gpu);
        assert_eq!((reading.utilization_percent, reading.memory_utilization_percent), (Some(100), Some(0)));
        assert!(reading.power_watts.unwrap() < 125.0);
    }

    #[test]
    fn a_hot_gpu_says_why_it_is_slow_and_an_idle_notebook_does_nothing() {
        let plan = plan(2);
        let hot = snapshot(&plan, 30.0).gpus.row(gpu_of(&plan, Kind::Hot));
        assert_eq!(hot.temperature_celsius, Some(88));
        assert!(ClocksEventReasons(hot.clocks_event_reasons.unwrap()).is_thermal());
        assert!(hot.clock_sm_mhz < Some(1500));
        let plan = super::Plan::new(20_251_114, 0, 6, 8);
        let notebook = gpu_of(&plan, Kind::Notebook);
        let snapshot = snapshot(&plan, 30.0);
        assert_eq!(snapshot.gpus.row(notebook).utilization_percent, Some(0));
        assert!(snapshot.gpus.row(notebook).memory_used_bytes > Some(25 << 30));
        let free = snapshot.gpus.row(gpu_of(&plan, Kind::Free));
        assert!(free.memory_used_bytes < Some(500 << 20) && free.power_watts < Some(80.0));
    }

    #[test]
    fn broken_drivers_and_lost_gpus_have_errors_and_no_values() {
        let mismatch = plan(5);
        let error = mismatch.inventory().error.expect("an error");
        assert_eq!((error.kind, error.code), (DriverErrorKind::VersionMismatch, Some(18)));
        let blind = snapshot(&mismatch, 30.0);
        assert!(blind.gpus.is_empty() && blind.gpu_processes.is_empty() && blind.processes.is_empty());
        assert!(blind.host.load_1.is_some());

        let plan = Plan::new(20_251_114, 7, 40, 8);
        let snapshot = snapshot(&plan, 30.0);
        let lost = snapshot.gpus.row(6);
        assert_eq!(lost.error.map(|error| error.kind), Some(DriverErrorKind::GpuLost));
        assert_eq!((lost.power_watts, snapshot.gpus.len()), (None, 8));
        assert!(!snapshot.gpu_processes.gpu.contains(&Some(6)));
    }

    #[test]
    fn the_first_snapshot_of_a_connection_knows_no_rates() {
        let first = plan(0).snapshot(at(9.0), None, &Ended::new(), &Told::new());
        assert!(first.host.cpu_percent.is_none() && first.processes.cpu_percent.is_empty());
        assert!(first.gpus.power_mean_watts.is_empty() && first.gpu_processes.sm_percent.is_empty());
    }

    #[test]
    fn processes_come_and_go() {
        let plan = plan(0);
        let pids = |seconds| snapshot(&plan, seconds).processes.pid;
        assert_eq!(pids(10.0), pids(12.0));
        assert_ne!(pids(10.0), pids(4000.0));
    }

    #[test]
    fn a_signal_finds_workers_and_launchers_and_what_it_ended_is_gone() {
        let plan = plan(2);
        let now = at(60.0);
        let snapshot = snapshot(&plan, 60.0);
        let facts = &snapshot.facts[0];
        assert_eq!(facts.user.as_deref(), Some("dmitri"));
        let launcher = &facts.ancestors[0];
        for (pid, start_ticks) in [(facts.pid, facts.start_ticks.unwrap()), (launcher.pid, launcher.start_ticks)] {
            let found = plan.find(pid, now, &Ended::new()).expect("runs");
            assert_eq!((found.start_ticks, found.uid), (start_ticks, VIEWER.uid));
            let ended = Ended::from([found.job]);
            assert_eq!(plan.find(pid, now, &ended), None);
            let after = plan.snapshot(at(62.0), Some(now), &ended, &Told::new());
            assert!(!after.processes.pid.contains(&Some(facts.pid)));
            let gpu = after.gpus.row(0);
            assert_eq!(gpu.utilization_percent, Some(0));
            assert!(gpu.power_mean_watts < Some(90.0) && gpu.power_mean_watts > Some(50.0));
        }
        assert_eq!(plan.find(4_000_000, now, &Ended::new()), None);
    }
}
