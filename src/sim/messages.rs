//! The messages of the probe of a simulated host, made from the state of the host.

use super::builder::{CPUS, HOST_MEMORY, ProcessSample, gpu_info, hello, snapshot};
use super::host::SimulatedHost;
use super::process::{FactsIdentity, GIB, person};
use super::script::Step;
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, Filesystem, GpuHealth, GpuHealthColumns, GpuInfo, GpuReading, Hello,
    HostReading, Inventory, ProbeCost, RecentPast, RecoveryAction, SafeText, Snapshot, XidEvent,
};
use std::collections::HashSet;

/// Bytes that the driver reserves on each GPU.
const RESERVED: u64 = 551 << 20;
/// Length of the samples that the driver buffers, in seconds.
pub(super) const PAST_SECONDS: f64 = 60.0;
// Bits of `nvmlClocksEventReasons`.
const GPU_IDLE: u64 = 0x1;
const POWER_CAP: u64 = 0x4;
const HARDWARE_SLOWDOWN: u64 = 0x8;
const SOFTWARE_THERMAL: u64 = 0x20;
const HARDWARE_THERMAL: u64 = 0x48;
const POWER_BRAKE: u64 = 0x80;
/// Mount points and types of the file systems.
const MOUNTS: [(&str, &str); 3] = [("/", "ext4"), ("/data", "nfs4"), ("/home", "nfs4")];

/// The probe of one connection.
#[derive(Debug, Default)]
pub struct ProbeConnection {
    /// Start of its monotonic clock, in seconds after the script began.
    started: f64,
    sequence: u64,
    /// Processes whose facts are already sent.
    sent_facts: HashSet<FactsIdentity>,
    /// Generation of the last inventory sent.
    generation: Option<u32>,
    /// Number of Xids already sent, or from before its start.
    xids: usize,
}

impl ProbeConnection {
    /// Starts a probe.
    pub fn new(host: &SimulatedHost) -> Self {
        Self { started: host.time, xids: host.xids.len(), ..Self::default() }
    }

    /// Returns the number of snapshots so far.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Sends inventory and process facts again.
    pub fn resend(&mut self) {
        self.sent_facts.clear();
        self.generation = None;
    }

    /// Returns the inventory if it has changed since it was last sent.
    pub fn inventory(&mut self, host: &SimulatedHost) -> Option<Inventory> {
        let generation = host.generation();
        (self.generation.replace(generation) != Some(generation)).then(|| host.inventory())
    }

    /// Advances a host to the time of the first snapshot and returns the samples that its driver has buffered then.
    pub fn start(&mut self, host: &mut SimulatedHost, time: f64) -> Vec<RecentPast> {
        let past = |(gpu, _)| RecentPast {
            gpu: gpu as u16,
            end_monotonic_seconds: time - self.started,
            ..RecentPast::default()
        };
        let mut all: Vec<RecentPast> = host.gpus.iter().enumerate().map(past).collect();
        for back in (0..PAST_SECONDS as u32).rev() {
            let at = time - f64::from(back);
            if at <= host.time {
                continue;
            }
            host.advance(at);
            for (past, gpu) in all.iter_mut().zip(&host.gpus) {
                past.utilization_percent.push(Some(percent(gpu.load.map_or(0.0, |load| load.utilization))));
                past.memory_utilization_percent.push(Some(percent(gpu.load.map_or(0.0, |load| load.memory_activity))));
                past.power_watts.push(Some(gpu.mean_watts as f32));
            }
        }
        self.xids = host.xids.len();
        all.retain(|past| !past.power_watts.is_empty() && host.device_error(past.gpu as usize).is_none());
        if host.driver_error().is_some() || host.has_mismatch() { Vec::new() } else { all }
    }

    /// Returns the snapshot of this time. `is_blind` omits the GPUs, as before the first answer of the driver.
    pub fn snapshot(&mut self, host: &mut SimulatedHost, is_blind: bool) -> Snapshot {
        self.sequence += 1;
        let sequence = self.sequence;
        let has_rates = sequence > 1;
        let driver_error = host.driver_error();
        let without_gpus = is_blind || driver_error.is_some() || host.has_mismatch();
        let shown = if without_gpus { 0 } else { host.shown };
        let gpus: Vec<GpuReading> = (0..shown).map(|gpu| host.reading(gpu, has_rates)).collect();
        let mut processes = Vec::new();
        let boot_unix = host.start_unix - host.up;
        let is_readable = |gpu: &usize| gpus.get(*gpu).is_some_and(|reading| reading.error.is_none());
        for process in host.processes.iter_mut().filter(|_| !without_gpus) {
            // The probe refreshes readings that only the owner may see in every tenth sample.
            process.refresh_slow_readings(sequence % 10 == 1);
            if process.is_listed() && process.gpus.iter().all(is_readable) {
                let facts =
                    self.sent_facts.insert(process.facts_identity()).then(|| process.facts(boot_unix)).flatten();
                processes.push(ProcessSample {
                    is_known: facts.is_none(),
                    facts: facts.unwrap_or_default(),
                    reading: process.on_host(host.up, has_rates),
                    gpus: process.on_gpus(),
                });
            }
        }
        // The probe sends health with the first snapshot and every tenth one after it.
        let has_health = sequence % 10 == 1;
        let health: Vec<GpuHealth> = (0..shown).filter(|_| has_health).map(|gpu| host.health(gpu)).collect();
        let xid = |event: &XidEvent| XidEvent {
            monotonic_seconds: (event.monotonic_seconds - self.started).max(0.0),
            ..*event
        };
        let xid_events = host.xids[self.xids..].iter().map(xid).collect();
        self.xids = host.xids.len();
        Snapshot {
            sequence,
            generation: if is_blind { 0 } else { host.generation() },
            monotonic_seconds: host.time - self.started,
            wall_unix_ms: ((host.start_unix + host.time) * 1e3) as i64,
            interval_seconds: Some(host.interval as f32),
            host: host.host_reading(&processes, sequence),
            health: GpuHealthColumns::from_rows(&health),
            xid_events,
            driver_error,
            cost: Some(ProbeCost { cpu_seconds: 0.02 + 0.0007 * sequence as f64, ..ProbeCost::default() }),
            ..snapshot(&gpus, &processes)
        }
    }
}

impl SimulatedHost {
    /// Returns the hello message at a time.
    pub fn hello(&self, time: f64) -> Hello {
        let (uid, _) = person(&self.login);
        Hello { host_name: Some(self.name()), ..hello(self.boot_id(time), &self.login, uid) }
    }

    /// Returns the boot id, which is another one after a reboot.
    pub(super) fn boot_id(&self, time: f64) -> SafeText {
        let boots = self.events("reboot").filter(|event| event.at <= time).count();
        SafeText::from(format!("{:08x}-{:04x}-4000-a000-{boots:012}", self.id >> 32, self.id & 0xFFFF))
    }

    /// The seconds since the last boot.
    fn uptime(&self, time: f64) -> f64 {
        let booted_at = self.events("reboot").map(|event| event.at).filter(|at| *at <= time).reduce(f64::max);
        booted_at.map_or(self.up + time, |at| time - at)
    }

    fn has_mismatch(&self) -> bool {
        self.active("mismatch").next().is_some()
    }

    fn generation(&self) -> u32 {
        1 + u32::from(self.shown < self.gpus.len()) + 2 * u32::from(self.has_mismatch())
    }

    fn inventory(&self) -> Inventory {
        let generation = self.generation();
        if self.has_mismatch() {
            let error = DriverError {
                kind: DriverErrorKind::VersionMismatch,
                code: Some(18),
                message: "driver and library versions differ: the driver was updated without a reboot".into(),
            };
            return Inventory { generation, error: Some(error), ..Inventory::default() };
        }
        let driver = self.events("driver").find_map(|event| event.text("version"));
        Inventory {
            generation,
            driver_version: Some(driver.unwrap_or("570.86.15").into()),
            cuda_version: Some("12.8".into()),
            nvml_path: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into()),
            gpus: (0..self.shown).map(|gpu| self.info(gpu)).collect(),
            error: None,
        }
    }

    fn driver_error(&self) -> Option<DriverError> {
        let since = self.active("hang").map(|event| self.time - event.at).next()?;
        (since >= 5.0).then(|| DriverError {
            kind: DriverErrorKind::Blocked,
            code: None,
            message: SafeText::from(format!("the NVIDIA driver has not answered for {since:.0} s")),
        })
    }

    /// Returns the error of a GPU that the driver cannot read.
    fn device_error(&self, gpu: usize) -> Option<DeviceError> {
        let errors = [
            ("lost", DriverErrorKind::GpuLost, 15, "the GPU has fallen off the bus"),
            ("reset", DriverErrorKind::ResetRequired, 16, "the GPU must be reset"),
            ("unknown", DriverErrorKind::Unknown, 999, "the driver gives an unknown error for this GPU"),
        ];
        let (_, kind, code, message) = errors.into_iter().find(|(word, ..)| self.on_gpu(word, gpu).is_some())?;
        Some(DeviceError { kind, code: Some(code), message: message.into() })
    }

    fn info(&self, gpu: usize) -> GpuInfo {
        let uuid = |kind: &str, gpu: usize| SafeText::from(format!("{kind}-{:016x}-{gpu:04}", self.id));
        if self.is_instance(gpu) {
            // A MIG instance of GPU 0, which reports only its memory.
            return GpuInfo {
                index: gpu as u32,
                uuid: Some(uuid("MIG", gpu)),
                name: Some("NVIDIA H100 80GB HBM3 MIG 1g.10gb".into()),
                memory_total_bytes: Some((10.0 * GIB) as u64),
                mig_parent_uuid: Some(uuid("GPU", 0)),
                ..GpuInfo::default()
            };
        }
        let is_divided = (0..self.gpus.len()).any(|other| self.is_instance(other)) && gpu == 0;
        GpuInfo {
            power_limit_watts: Some(self.gpus[gpu].limit as f32),
            mig_enabled: Some(is_divided),
            ..gpu_info(self.model, gpu as u32, uuid("GPU", gpu))
        }
    }

    fn is_instance(&self, gpu: usize) -> bool {
        self.on_gpu("mig", gpu).is_some()
    }

    fn reading(&mut self, gpu: usize, has_rates: bool) -> GpuReading {
        if let Some(error) = self.device_error(gpu) {
            return GpuReading { error: Some(error), ..GpuReading::default() };
        }
        if let Some(since) = self.on_gpu("blocked", gpu).map(|event| self.time - event.at) {
            let mut reading = GpuReading { blocked_seconds: Some(since.max(1.0) as f32), ..GpuReading::default() };
            if since >= 5.0 {
                let message = SafeText::new(&format!("the driver has not answered for this GPU for {since:.0} s"));
                reading.error = Some(DeviceError { kind: DriverErrorKind::Blocked, code: None, message });
            }
            return reading;
        }
        if self.is_instance(gpu) {
            let used = self.gpus[gpu].used.min((9.5 * GIB) as u64);
            return GpuReading { memory_used_bytes: Some(used), ..GpuReading::default() };
        }
        let absurd = self.on_gpu("absurd", gpu).and_then(|event| event.number("share")).unwrap_or(0.0);
        if absurd > 0.0 && self.rng.chance(absurd) {
            return self.garbage_reading();
        }
        let counts_energy = self.on_gpu("no_energy", gpu).is_none();
        let noise = self.rng.normal();
        let load = self.gpus[gpu].load;
        let busy = load.is_some_and(|load| load.utilization >= 5.0);
        let has_context = load.is_some();
        let mut reasons = u64::from(!busy) * GPU_IDLE;
        let state = &self.gpus[gpu];
        if state.mean_watts > 0.78 * self.model.limit || self.on_gpu("capped", gpu).is_some() {
            reasons |= POWER_CAP;
        }
        let mut celsius = state.celsius;
        if let Some(event) = self.on_gpu("hot", gpu) {
            celsius = f64::from(self.model.slowdown) - event.number("margin").unwrap_or(2.0);
            reasons |= if event.has("slows") { SOFTWARE_THERMAL } else { 0 };
        }
        let share = |event: &Step| event.number("share").unwrap_or(0.2);
        let flags = [("thermal", HARDWARE_THERMAL), ("brake", POWER_BRAKE), ("blips", HARDWARE_SLOWDOWN)];
        let shares: Vec<(f64, u64)> =
            flags.iter().filter_map(|(word, bits)| Some((share(self.on_gpu(word, gpu)?), *bits))).collect();
        for (share, bits) in shares {
            if self.rng.chance(share) {
                reasons |= bits;
            }
        }
        let link = |key| self.on_gpu("pcie", gpu).and_then(|event| event.number(key)).map(|value| value as u8);
        let is_loaded = load.is_some_and(|load| load.utilization >= 30.0);
        let state = &self.gpus[gpu];
        let is_unified = self.model.memory.is_none();
        let highest = self.model.sm_mhz;
        let sm_mhz = match reasons {
            _ if !has_context => 345,
            reasons if reasons & (SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE) != 0 => highest * 7 / 10,
            reasons if reasons & POWER_CAP != 0 => highest - 15 * (3 + (state.joules as u64 % 6) as u32),
            _ => highest,
        };
        let sm_mhz = self.on_gpu("clock", gpu).and_then(|event| event.number("mhz")).map_or(sm_mhz, |mhz| mhz as u32);
        GpuReading {
            utilization_percent: Some(percent(load.map_or(0.0, |load| load.utilization))),
            memory_utilization_percent: Some(percent(load.map_or(0.0, |load| load.memory_activity))),
            memory_used_bytes: (!is_unified).then_some(state.used),
            memory_reserved_bytes: (!is_unified).then_some(RESERVED),
            temperature_celsius: Some((celsius + 0.4 * noise).round() as i32),
            memory_temperature_celsius: Some((celsius + if busy { 8.0 } else { 5.0 }).round() as i32),
            power_watts: Some((state.mean_watts * (1.0 + 0.012 * noise)) as f32),
            power_mean_watts: (has_rates && counts_energy).then_some(state.mean_watts as f32),
            energy_joules: counts_energy.then_some(state.joules),
            clock_graphics_mhz: Some(sm_mhz),
            clock_sm_mhz: Some(sm_mhz),
            clock_memory_mhz: Some(self.model.memory_mhz),
            performance_state: Some(if has_context { 0 } else { 8 }),
            clocks_event_reasons: Some(reasons),
            pcie_generation: Some(link("generation").unwrap_or(if is_loaded { self.model.generation } else { 1 })),
            pcie_width: Some(link("width").unwrap_or(16)),
            thermal_violation_seconds: Some(state.thermal_seconds),
            power_violation_seconds: Some(self.time.max(0.0) * 0.3),
            power_brake_seconds: Some(state.brake_seconds),
            ..GpuReading::default()
        }
    }

    /// Out-of-range values of a broken driver, different in each call.
    fn garbage_reading(&mut self) -> GpuReading {
        let watts = self.rng.pick(&[f32::NAN, f32::INFINITY, -40.0, 4e9]);
        GpuReading {
            utilization_percent: self.rng.pick(&[None, Some(255), Some(127)]),
            memory_utilization_percent: Some(240),
            memory_used_bytes: self.rng.pick(&[None, Some(u64::MAX)]),
            temperature_celsius: Some(i32::MAX),
            power_watts: Some(watts),
            power_mean_watts: Some(watts),
            energy_joules: Some(-1.0),
            power_limit_watts: self.rng.pick(&[None, Some(0.0), Some(f32::NAN)]),
            thermal_violation_seconds: Some(1e30),
            power_brake_seconds: Some(f64::NAN),
            ..GpuReading::default()
        }
    }

    fn health(&self, gpu: usize) -> GpuHealth {
        let event = |word: &'static str| self.on_gpu(word, gpu);
        let number = |word: &'static str, key| event(word).and_then(|event| event.number(key)).unwrap_or(0.0) as u64;
        let links = u32::from(self.model.links);
        // Errors per minute since the event began.
        let errors = |key| {
            let event = event("link_errors")?;
            Some((event.number(key)? * (self.time - event.at).max(0.0) / 60.0) as u64)
        };
        let all = if links == 0 { 0 } else { (1_u32 << links) - 1 };
        let down = event("nvlink").map_or(0, |event| 1_u32 << event.number("link").unwrap_or(0.0) as u32);
        let action = event("recovery").map_or(RecoveryAction::None, |event| match event.text("action") {
            Some("reset") => RecoveryAction::GpuReset,
            Some("reboot") => RecoveryAction::NodeReboot,
            _ => RecoveryAction::DrainAndReset,
        });
        GpuHealth {
            ecc_corrected_volatile: Some(number("ecc", "corrected")),
            ecc_uncorrectable_volatile: Some(number("ecc", "volatile")),
            ecc_corrected_aggregate: Some(40 + number("ecc", "corrected")),
            ecc_uncorrectable_aggregate: Some(number("ecc", "aggregate") + number("ecc", "volatile")),
            remapped_rows_correctable: Some(0),
            remapped_rows_uncorrectable: Some(u32::from(event("remap").is_some())),
            row_remap_pending: Some(event("remap").is_some_and(|event| event.has("pending"))),
            row_remap_failed: Some(event("remap").is_some_and(|event| event.has("failed"))),
            recovery_action: Some(action),
            persistence_mode: Some(event("persistence_off").is_none()),
            pcie_replays: Some(errors("pcie").unwrap_or(0)),
            nvlink_replays: (links > 0).then(|| errors("nvlink").unwrap_or(0)),
            nvlink_recoveries: (links > 0).then_some(0),
            nvlink_crc_errors: (links > 0).then(|| errors("nvlink").unwrap_or(0)),
            nvlinks_active: (links > 0).then_some(u64::from(all & !down)),
            power_smoothing: event("smoothing").map(|_| true),
            ..GpuHealth::default()
        }
    }

    fn host_reading(&self, processes: &[ProcessSample], sequence: u64) -> HostReading {
        let (time, has_rates) = (self.time, sequence > 1);
        let rows = || processes.iter().map(|process| &process.reading);
        let own = rows().filter_map(|row| row.cpu_percent);
        let helpers = rows().filter_map(|row| row.descendants_cpu_percent);
        let active = |word: &'static str, key| self.active(word).filter_map(|event| event.ramp(key, time)).last();
        let others = active("cpu", "percent").unwrap_or(1.5) as f32;
        let cpu = (own.chain(helpers).sum::<f32>() / CPUS as f32 + others).min(100.0);
        let load = active("cpu", "tasks").map_or(cpu * 1.12, |tasks| tasks as f32);
        let allocated: Vec<u32> =
            (0..self.gpus.len()).filter(|gpu| self.on_gpu("slurm", *gpu).is_some()).map(|gpu| gpu as u32).collect();
        let memory = active("ram", "percent").unwrap_or(38.0);
        let pressure = active("pressure", "io").unwrap_or(0.4);
        let kills = self.events("oom").filter(|event| event.at <= time);
        let kills: f64 = kills.map(|event| event.number("kills").unwrap_or(1.0)).sum();
        let waits = rows().filter(|row| row.blocked_thread.is_some()).count() as u32;
        // MIG instances are not PCI devices.
        let gpus = (0..self.gpus.len()).filter(|gpu| self.on_gpu("mig", *gpu).is_none()).count() as u32;
        HostReading {
            cpu_percent: has_rates.then_some(cpu),
            io_wait_percent: has_rates.then_some(pressure as f32 * 0.1),
            load_1: Some(load),
            load_5: Some(load),
            load_15: Some(load),
            memory_total_bytes: Some(HOST_MEMORY),
            memory_available_bytes: Some((HOST_MEMORY as f64 * (1.0 - memory / 100.0)) as u64),
            swap_total_bytes: Some(8 << 30),
            swap_free_bytes: Some(
                (8 << 30) - active("swap", "gib").map_or(0, |gib| (gib.clamp(0.0, 8.0) * GIB) as u64),
            ),
            uptime_seconds: Some(self.uptime(time)),
            pressure_io_percent: Some(pressure as f32),
            pressure_memory_percent: Some(active("swap", "pressure").unwrap_or(0.0) as f32),
            pressure_cpu_percent: Some(1.0),
            oom_kills: Some(3 + kills as u64),
            tasks_blocked: Some(waits),
            nvidia_pci_devices: Some(gpus),
            filesystems: self.filesystems(sequence),
            slurm_allocated_gpus: self.events("slurm").next().map(|_| allocated),
            ..HostReading::default()
        }
    }

    /// The probe queries file systems once a minute and reports one that does not answer in each sample.
    fn filesystems(&self, sequence: u64) -> Vec<Filesystem> {
        let every = (60.0 / self.interval).max(1.0) as u64;
        if self.active("nfs").next().is_none() && sequence % every != 1 % every {
            return Vec::new();
        }
        let filesystem = |(mount, kind): (&str, &str)| {
            let here = |word: &'static str| {
                self.active(word).filter(move |event| event.text("mount").unwrap_or("/data") == mount)
            };
            let percent = here("disk").filter_map(|event| event.ramp("percent", self.time)).last().unwrap_or(55.0);
            let total = 40_u64 << 40;
            let hang = here("nfs").next().map(|event| self.time - event.at).filter(|since| *since >= 1.0);
            Filesystem {
                mount_point: mount.into(),
                kind: kind.into(),
                total_bytes: hang.is_none().then_some(total),
                available_bytes: hang.is_none().then_some((total as f64 * (1.0 - percent / 100.0)) as u64),
                silent_seconds: hang.map(|since| since as f32),
                // Attempts have a limit of 5 s and follow each other after 10 s.
                timeouts: hang.filter(|since| *since >= 5.0).map(|since| 1 + ((since - 5.0) / 10.0) as u32),
            }
        };
        MOUNTS.into_iter().map(filesystem).collect()
    }
}

fn percent(value: f64) -> u8 {
    value.clamp(0.0, 100.0).round() as u8
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
