//! One host of a case: its GPUs, processes and events, and the messages that its probe would send.

use super::case_file::{Case, Step, positions};
use super::gpu_model::{GpuModel, Load, model};
use super::process::{GIB, PROBE_USER, Process, uid};
use super::rng::{CorrelatedNoise, Rng};
use gpufleet::wire::{
    DeviceError, DriverError, DriverErrorKind, Filesystem, GpuColumns, GpuHealth, GpuHealthColumns, GpuInfo,
    GpuProcessColumns, GpuReading, Hello, HostReading, Inventory, PROTOCOL, ProcessColumns, ProcessReading,
    RecoveryAction, SafeText, Scope, Snapshot, XidEvent,
};
use std::collections::{BTreeSet, HashSet};

/// Bytes of memory of each host.
const HOST_MEMORY: f64 = 1007.0 * GIB;
/// Bytes that the driver reserves on each GPU.
const RESERVED: u64 = 551 << 20;
/// Wall clock at the beginning of each case: 2026-03-02T00:00:00Z.
pub(crate) const START_UNIX: f64 = 1_772_409_600.0;

/// A simulated host.
pub(crate) struct SimHost {
    pub(crate) name: SafeText,
    model: GpuModel,
    gpu_states: Vec<SimGpu>,
    processes: Vec<Process>,
    events: Vec<Step>,
    rng: Rng,
    interval: f64,
    time: f64,
    /// Uptime at the beginning of the case, in seconds.
    up: f64,
    driver: String,
    /// Number of GPUs that the driver shows.
    shown: usize,
    generation: u32,
    xids: Vec<XidEvent>,
    /// Number of Xids generated so far, per event.
    xid_counts: Vec<u64>,
    connection: ProbeConnection,
}

/// State of the probe, reset by each connection.
#[derive(Default)]
struct ProbeConnection {
    started: f64,
    sequence: u64,
    sent_facts: HashSet<(u32, u64, bool)>,
    /// Generation of the last inventory sent.
    generation: Option<u32>,
}

/// A simulated GPU.
struct SimGpu {
    noise: CorrelatedNoise,
    offset: f64,
    joules: f64,
    mean_watts: f64,
    celsius: f64,
    thermal_seconds: f64,
    brake_seconds: f64,
    load: Option<Load>,
    used: u64,
    /// Enforced power limit in watts.
    limit: f64,
}

impl SimHost {
    /// Creates the host with this position in the case.
    pub(crate) fn new(case: &Case, index: usize, seed: u64) -> Self {
        let mut rng = Rng::new(&[seed, index as u64, 1]);
        let up = rng.between(20.0, 90.0) * 86_400.0;
        let gpu_state = |rng: &mut Rng| SimGpu {
            noise: CorrelatedNoise::new(60.0, rng),
            offset: 0.02 * rng.normal().clamp(-2.0, 2.0),
            joules: rng.between(1e8, 9e8),
            mean_watts: 0.0,
            celsius: 40.0,
            thermal_seconds: rng.between(0.0, 500.0),
            brake_seconds: rng.between(0.0, 3.0),
            load: None,
            used: 0,
            limit: model(&case.gpu).limit,
        };
        let mut gpu_states: Vec<SimGpu> = (0..case.gpus).map(|_| gpu_state(&mut rng)).collect();
        let is_here = |hosts: &str| positions(hosts, case.hosts).contains(&index);
        let jobs = case.jobs.iter().enumerate().filter(|(_, job)| is_here(&job.hosts));
        let processes = jobs.flat_map(|(number, job)| {
            // The ranks of a job share their random numbers across hosts, so that their checkpoints coincide.
            let mut job_rng = Rng::new(&[seed, number as u64, 2]);
            Process::of_job(job, number, &positions(&job.gpus, case.gpus), up, &mut job_rng)
        });
        let processes = processes.collect();
        let events = case.events.iter().map(|event| Step::parse(event));
        let events: Vec<Step> = events.filter(|event| is_here(event.text("hosts").unwrap_or(""))).collect();
        for event in events.iter().filter(|event| event.word == "limit") {
            for gpu in positions(event.text("gpu").unwrap_or(""), case.gpus) {
                gpu_states[gpu].limit = event.number("watts").unwrap_or(model(&case.gpu).limit);
            }
        }
        let driver = events.iter().find(|event| event.word == "driver").and_then(|event| event.text("version"));
        Self {
            name: SafeText::new(&format!("gpu-{:02}", index + 1)),
            model: model(&case.gpu),
            gpu_states,
            processes,
            driver: driver.unwrap_or("570.86.15").to_owned(),
            xid_counts: vec![0; events.len()],
            events,
            rng,
            interval: case.interval,
            time: 0.0,
            up,
            shown: case.gpus,
            generation: 1,
            xids: Vec::new(),
            connection: ProbeConnection::default(),
        }
    }

    /// All events of one kind.
    pub(crate) fn events<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a Step> {
        self.events.iter().filter(move |event| event.word == word)
    }

    /// The events of one kind that are active at a time.
    pub(crate) fn active<'a>(&'a self, word: &'a str, time: f64) -> impl Iterator<Item = &'a Step> {
        self.events.iter().filter(move |event| event.word == word && is_active(event, time))
    }

    /// Advances to a time.
    pub(crate) fn advance(&mut self, time: f64) {
        let step = (time - self.time).max(0.0);
        self.time = time;
        let mut loads: Vec<Option<Load>> = vec![None; self.gpu_states.len()];
        let noises: Vec<(f64, f64)> = self
            .gpu_states
            .iter_mut()
            .map(|gpu_state| (gpu_state.noise.step(step, &mut self.rng), gpu_state.offset))
            .collect();
        self.gpu_states.iter_mut().for_each(|gpu_state| gpu_state.used = 20 << 20);
        for process in &mut self.processes {
            let Some(first) = process.gpus.first().copied() else { continue };
            let Some(load) = process.advance(time, step, self.up, &self.model, noises[first], &mut self.rng) else {
                continue;
            };
            for gpu in &process.gpus {
                self.gpu_states[*gpu].used += process.gpu_memory_bytes();
                loads[*gpu] = Some(combine(loads[*gpu], load, &self.model));
            }
        }
        for event in self.events.iter().filter(|event| is_active(event, time)) {
            let of_gpus = |default: &str| positions(event.text("gpu").unwrap_or(default), self.gpu_states.len());
            match event.word.as_str() {
                "ghost" => {
                    for gpu in of_gpus("0") {
                        self.gpu_states[gpu].used += (event.number("gib").unwrap_or(10.0) * GIB) as u64;
                        loads[gpu] = Some(event_load(event, &self.model));
                    }
                }
                "busy" => of_gpus("0").into_iter().for_each(|gpu| loads[gpu] = Some(event_load(event, &self.model))),
                "thermal" => of_gpus("0").into_iter().for_each(|gpu| {
                    self.gpu_states[gpu].thermal_seconds += event.number("share").unwrap_or(0.2) * step;
                }),
                "brake" => of_gpus("0").into_iter().for_each(|gpu| {
                    self.gpu_states[gpu].brake_seconds += event.number("share").unwrap_or(0.05) * step;
                }),
                "vanish" => self.shown = self.gpu_states.len() - of_gpus("0").len(),
                _ => {}
            }
        }
        for (gpu_state, load) in self.gpu_states.iter_mut().zip(&loads) {
            let watts = load.map_or(self.model.bare * (1.0 + gpu_state.offset), |load| load.watts).max(2.0);
            let watts = watts.min(gpu_state.limit * 1.03);
            gpu_state.joules += watts * step;
            gpu_state.mean_watts = watts;
            let target = 28.0 + 48.0 * watts / self.model.limit;
            gpu_state.celsius += (target - gpu_state.celsius) * (1.0 - (-step / 40.0).exp());
            gpu_state.load = *load;
        }
        self.generate_xids(time);
    }

    fn generate_xids(&mut self, time: f64) {
        for (place, event) in self.events.iter().enumerate() {
            if event.word != "xid" || event.at > time {
                continue;
            }
            let times = event.number("times").unwrap_or(1.0);
            let over = event.time("over").unwrap_or(0.0);
            let happened = if over > 0.0 { (times * ((time - event.at) / over).min(1.0)).ceil() } else { times };
            let number = event.number("number").unwrap_or(31.0) as u64;
            let gpu = event.number("gpu").map(|gpu| gpu as u16);
            for _ in self.xid_counts[place]..happened as u64 {
                let monotonic_seconds = (time - self.connection.started - 0.5).max(0.0);
                self.xids.push(XidEvent { gpu, xid: number, monotonic_seconds });
            }
            self.xid_counts[place] = happened as u64;
        }
    }

    /// Starts a new probe and returns its hello.
    pub(crate) fn connect(&mut self) -> Hello {
        self.connection = ProbeConnection { started: self.time, ..ProbeConnection::default() };
        // A probe does not report Xids from before its start.
        self.xids.clear();
        Hello {
            protocol: PROTOCOL,
            probe_version: "0.1.0".into(),
            boot_id: Some(self.boot_id()),
            host_name: Some(self.name.clone()),
            login_user: Some(PROBE_USER.into()),
            login_uid: Some(uid(PROBE_USER)),
            kernel: Some("6.8.0-60-generic".into()),
            arch: Some("x86_64".into()),
            cpu_count: Some(112),
            memory_total_bytes: Some(HOST_MEMORY as u64),
            scope: Some(Scope::Host),
            source: Some(gpufleet::wire::ReadingSource::Probe),
            probe_pid: Some(1900),
        }
    }

    fn boot_id(&self) -> SafeText {
        let boots = self.events.iter().filter(|event| event.word == "reboot" && event.at <= self.time).count();
        SafeText::new(&format!("5d4e0000-0000-4000-a000-{:08}{:04}", (self.up as u64) % 100_000_000, boots))
    }

    /// Returns the inventory if it has changed since it was last sent.
    pub(crate) fn inventory(&mut self) -> Option<Inventory> {
        let mismatch = self.active("mismatch", self.time).next().is_some();
        let generation = 1 + u32::from(self.shown < self.gpu_states.len()) + 2 * u32::from(mismatch);
        self.generation = generation;
        if self.connection.generation == Some(generation) {
            return None;
        }
        self.connection.generation = Some(generation);
        if mismatch {
            let error = DriverError {
                kind: DriverErrorKind::VersionMismatch,
                code: Some(18),
                message: "driver and library versions differ: the driver was updated without a reboot".into(),
            };
            return Some(Inventory { generation, error: Some(error), ..Inventory::default() });
        }
        Some(Inventory {
            generation,
            driver_version: Some(SafeText::new(&self.driver)),
            cuda_version: Some("12.8".into()),
            nvml_path: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into()),
            gpus: (0..self.shown).map(|gpu| self.info(gpu)).collect(),
            error: None,
        })
    }

    /// Returns the snapshot of this time. `is_blind` omits the GPUs, as before the first answer of the driver.
    pub(crate) fn snapshot(&mut self, is_blind: bool) -> Snapshot {
        self.connection.sequence += 1;
        let sequence = self.connection.sequence;
        let has_rates = sequence > 1;
        let time = self.time;
        let driver_error = self.driver_error();
        let without_gpus = is_blind || driver_error.is_some();
        let gpus: Vec<GpuReading> =
            if without_gpus { Vec::new() } else { (0..self.shown).map(|gpu| self.reading(gpu, has_rates)).collect() };
        let (mut usages, mut rows, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        if !without_gpus {
            let is_readable = |gpu: &usize| gpus.get(*gpu).is_some_and(|reading| reading.error.is_none());
            // The probe refreshes readings that only the owner may see in every tenth sample.
            let is_slow_due = sequence % 10 == 1;
            for process in &mut self.processes {
                process.refresh_slow_readings(is_slow_due);
                if !process.is_listed() || !process.gpus.iter().all(is_readable) {
                    continue;
                }
                usages.extend(process.on_gpus());
                rows.push(process.on_host(self.up, has_rates));
                if self.connection.sent_facts.insert(process.facts_identity()) {
                    facts.extend(process.facts(START_UNIX - self.up));
                }
            }
        }
        // The probe sends health with the first snapshot and every tenth one after it.
        let has_health = !without_gpus && sequence % 10 == 1;
        let health = if has_health { (0..self.shown).map(|gpu| self.health(gpu)).collect() } else { Vec::new() };
        Snapshot {
            sequence,
            generation: if is_blind { 0 } else { self.generation },
            monotonic_seconds: time - self.connection.started,
            wall_unix_ms: ((START_UNIX + time) * 1e3) as i64,
            interval_seconds: Some(self.interval as f32),
            host: self.host(&rows, has_rates),
            gpus: GpuColumns::from_rows(&gpus),
            health: GpuHealthColumns::from_rows(&health),
            xid_events: std::mem::take(&mut self.xids),
            gpu_processes: GpuProcessColumns::from_rows(&usages),
            processes: ProcessColumns::from_rows(&rows),
            facts,
            driver_error,
            ..Snapshot::default()
        }
    }

    fn driver_error(&self) -> Option<DriverError> {
        let since = self.active("hang", self.time).map(|event| self.time - event.at).next()?;
        (since >= 5.0).then(|| DriverError {
            kind: DriverErrorKind::Blocked,
            code: None,
            message: SafeText::new(&format!("the NVIDIA driver has not answered for {since:.0} s")),
        })
    }
}

impl SimHost {
    fn info(&self, gpu: usize) -> GpuInfo {
        let model = self.model;
        let uuid = |gpu: usize| SafeText::new(&format!("GPU-{}-{gpu:04}", &self.boot_id()[..13]));
        if self.is_instance(gpu) {
            // A MIG instance of GPU 0, which reports only its memory.
            return GpuInfo {
                index: gpu as u32,
                uuid: Some(SafeText::new(&format!("MIG-{}-{gpu:04}", &self.boot_id()[..13]))),
                name: Some("NVIDIA H100 80GB HBM3 MIG 1g.10gb".into()),
                memory_total_bytes: Some((10.0 * GIB) as u64),
                mig_parent_uuid: Some(uuid(0)),
                ..GpuInfo::default()
            };
        }
        let is_divided = (0..self.gpu_states.len()).any(|other| self.is_instance(other)) && gpu == 0;
        GpuInfo {
            index: gpu as u32,
            uuid: Some(uuid(gpu)),
            name: Some(model.name.into()),
            pci_bus_id: Some(SafeText::new(&format!("00000000:{:02X}:00.0", 0x1B + 0x10 * gpu))),
            memory_total_bytes: model.memory.map(|gib| (gib * GIB) as u64),
            power_limit_watts: Some(self.gpu_states[gpu].limit as f32),
            power_limit_max_watts: Some(model.limit as f32),
            clock_graphics_max_mhz: Some(1980),
            clock_sm_max_mhz: Some(1980),
            clock_memory_max_mhz: Some(2619),
            temperature_slowdown_celsius: Some(model.slowdown),
            temperature_shutdown_celsius: Some(model.slowdown + 5),
            mig_enabled: Some(is_divided),
            pcie_generation_max: Some(model.generation),
            pcie_width_max: Some(16),
            minor_number: Some(gpu as u32),
            nvlink_count: (model.links > 0).then_some(model.links),
            unified_memory: model.memory.is_none().then_some(true),
            ..GpuInfo::default()
        }
    }

    fn is_instance(&self, gpu: usize) -> bool {
        self.on_gpu("mig", gpu).is_some()
    }

    fn on_gpu<'a>(&'a self, word: &'a str, gpu: usize) -> Option<&'a Step> {
        self.active(word, self.time)
            .find(|event| positions(event.text("gpu").unwrap_or("0"), self.gpu_states.len()).contains(&gpu))
    }

    fn reading(&mut self, gpu: usize, has_rates: bool) -> GpuReading {
        let broken = |kind, code, message: &str| GpuReading {
            error: Some(DeviceError { kind, code, message: message.into() }),
            ..GpuReading::default()
        };
        if self.on_gpu("lost", gpu).is_some() {
            return broken(DriverErrorKind::GpuLost, Some(15), "the GPU has fallen off the bus");
        }
        if self.on_gpu("reset", gpu).is_some() {
            return broken(DriverErrorKind::ResetRequired, Some(16), "the GPU must be reset");
        }
        if self.on_gpu("unknown", gpu).is_some() {
            return broken(DriverErrorKind::Unknown, Some(999), "the driver gives an unknown error for this GPU");
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
            let used = self.gpu_states[gpu].used.min((9.5 * GIB) as u64);
            return GpuReading { memory_used_bytes: Some(used), ..GpuReading::default() };
        }
        let absurd = self.on_gpu("absurd", gpu).and_then(|event| event.number("share")).unwrap_or(0.0);
        if absurd > 0.0 && self.rng.chance(absurd) {
            return self.garbage_reading();
        }
        let counts_energy = self.on_gpu("no_energy", gpu).is_none();
        let noise = self.rng.normal();
        let load = self.gpu_states[gpu].load;
        let busy = load.is_some_and(|load| load.utilization >= 5.0);
        let has_context = load.is_some();
        let mut reasons = u64::from(!busy);
        let gpu_state = &self.gpu_states[gpu];
        if gpu_state.mean_watts > 0.78 * self.model.limit || self.on_gpu("capped", gpu).is_some() {
            reasons |= 0x4;
        }
        let mut celsius = gpu_state.celsius;
        if let Some(event) = self.on_gpu("hot", gpu) {
            celsius = f64::from(self.model.slowdown) - event.number("margin").unwrap_or(2.0);
        }
        let share = |event: &Step| event.number("share").unwrap_or(0.2);
        let flags = [("thermal", 0x48), ("brake", 0x80), ("blips", 0x8)];
        let shares: Vec<(f64, u64)> =
            flags.iter().filter_map(|(word, bits)| Some((share(self.on_gpu(word, gpu)?), *bits))).collect();
        for (share, bits) in shares {
            if self.rng.chance(share) {
                reasons |= bits;
            }
        }
        let link = self.on_gpu("pcie", gpu).cloned();
        let link = |key| link.as_ref().and_then(|event| event.number(key)).map(|value| value as u8);
        let is_loaded = load.is_some_and(|load| load.utilization >= 30.0);
        let gpu_state = &self.gpu_states[gpu];
        let is_unified = self.model.memory.is_none();
        GpuReading {
            utilization_percent: Some(load.map_or(0.0, |load| load.utilization).clamp(0.0, 100.0).round() as u8),
            memory_utilization_percent: Some(
                load.map_or(0.0, |load| load.memory_activity).clamp(0.0, 100.0).round() as u8
            ),
            memory_used_bytes: (!is_unified).then_some(gpu_state.used),
            memory_reserved_bytes: (!is_unified).then_some(RESERVED),
            temperature_celsius: Some((celsius + 0.4 * noise).round() as i32),
            power_watts: Some((gpu_state.mean_watts * (1.0 + 0.012 * noise)) as f32),
            power_mean_watts: (has_rates && counts_energy).then_some(gpu_state.mean_watts as f32),
            energy_joules: counts_energy.then_some(gpu_state.joules),
            clock_graphics_mhz: Some(if has_context { 1980 } else { 345 }),
            clock_sm_mhz: Some(if has_context { 1980 } else { 345 }),
            clock_memory_mhz: Some(2619),
            performance_state: Some(if has_context { 0 } else { 8 }),
            clocks_event_reasons: Some(reasons),
            pcie_generation: Some(link("generation").unwrap_or(if is_loaded { self.model.generation } else { 1 })),
            pcie_width: Some(link("width").unwrap_or(16)),
            thermal_violation_seconds: Some(gpu_state.thermal_seconds),
            power_violation_seconds: Some(self.time * 0.3),
            power_brake_seconds: Some(gpu_state.brake_seconds),
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
            nvlinks_active: (links > 0).then_some(u64::from(all & !down)),
            power_smoothing: event("smoothing").map(|_| true),
            ..GpuHealth::default()
        }
    }
}

impl SimHost {
    fn host(&mut self, rows: &[ProcessReading], has_rates: bool) -> HostReading {
        let time = self.time;
        let percent = |rows: &[ProcessReading]| {
            let own = rows.iter().filter_map(|row| row.cpu_percent);
            let helpers = rows.iter().filter_map(|row| row.descendants_cpu_percent);
            own.chain(helpers).sum::<f32>()
        };
        let cpu = (percent(rows) / 112.0 + 1.5).min(100.0);
        let active = |word: &'static str, key: &'static str| {
            self.active(word, time).filter_map(|event| event.number(key)).last()
        };
        let memory = active("ram", "percent").unwrap_or(38.0);
        let pressure = active("pressure", "io").unwrap_or(0.4);
        let kills: f64 = self
            .events
            .iter()
            .filter(|event| event.word == "oom" && event.at <= time)
            .map(|event| event.number("kills").unwrap_or(1.0))
            .sum();
        let waits = rows.iter().filter(|row| row.blocked_thread.is_some()).count() as u32;
        // MIG instances are not PCI devices.
        let gpus = (0..self.gpu_states.len()).filter(|gpu| self.on_gpu("mig", *gpu).is_none()).count() as u32;
        let filesystems = self.filesystems();
        HostReading {
            cpu_percent: has_rates.then_some(cpu),
            io_wait_percent: has_rates.then_some(pressure as f32 * 0.1),
            load_1: Some(cpu * 1.12),
            load_5: Some(cpu * 1.12),
            load_15: Some(cpu * 1.12),
            memory_total_bytes: Some(HOST_MEMORY as u64),
            memory_available_bytes: Some((HOST_MEMORY * (1.0 - memory / 100.0)) as u64),
            swap_total_bytes: Some(8 << 30),
            swap_free_bytes: Some(8 << 30),
            uptime_seconds: Some(self.up + time),
            pressure_io_percent: Some(pressure as f32),
            pressure_memory_percent: Some(0.0),
            pressure_cpu_percent: Some(1.0),
            oom_kills: Some(3 + kills as u64),
            tasks_blocked: Some(waits),
            nvidia_pci_devices: Some(gpus),
            filesystems,
            ..HostReading::default()
        }
    }

    /// The probe queries file systems once a minute and reports one that does not answer in each sample.
    fn filesystems(&self) -> Vec<Filesystem> {
        let silent: Vec<&Step> = self.active("nfs", self.time).collect();
        let every = (60.0 / self.interval).max(1.0) as u64;
        if silent.is_empty() && self.connection.sequence % every != 1 % every {
            return Vec::new();
        }
        let mounts: BTreeSet<&str> = ["/", "/home", "/data"].into_iter().collect();
        let filesystem = |mount: &str| {
            let is_here = |event: &&Step| event.text("mount").unwrap_or("/data") == mount;
            let percent =
                self.active("disk", self.time).filter(is_here).filter_map(|event| event.number("percent")).last();
            let total = 40_u64 << 40;
            let hang =
                silent.iter().copied().find(is_here).map(|event| self.time - event.at).filter(|since| *since >= 1.0);
            let available = (total as f64 * (1.0 - percent.unwrap_or(55.0) / 100.0)) as u64;
            Filesystem {
                mount_point: mount.into(),
                kind: if mount == "/" { "ext4".into() } else { "nfs4".into() },
                total_bytes: hang.is_none().then_some(total),
                available_bytes: hang.is_none().then_some(available),
                silent_seconds: hang.map(|since| since as f32),
                timeouts: hang.map(|since| (since / 5.0) as u32),
            }
        };
        mounts.into_iter().map(filesystem).collect()
    }
}

fn is_active(event: &Step, time: f64) -> bool {
    let into = time - event.at;
    // An event with `every` repeats.
    let into = if into >= 0.0 { event.time("every").map_or(into, |every| into % every) } else { into };
    into >= 0.0 && event.time("for").is_none_or(|lasts| into < lasts)
}

/// Combines the loads of two processes on one GPU.
fn combine(one: Option<Load>, other: Load, model: &GpuModel) -> Load {
    let Some(one) = one else { return other };
    Load {
        utilization: one.utilization.max(other.utilization),
        memory_activity: one.memory_activity.max(other.memory_activity),
        watts: one.watts + other.watts - model.context,
        ..other
    }
}

/// The load of an event: the driver lists no process for it.
fn event_load(event: &Step, model: &GpuModel) -> Load {
    Load {
        utilization: event.number("u").unwrap_or(0.0),
        memory_activity: event.number("m").unwrap_or(0.0),
        watts: event.number("watts").unwrap_or(model.context),
        cpus: 0.0,
        waits: 0.0,
        writes: 0.0,
        reads: 0.0,
        helpers: 0.0,
        helper_cpus: 0.0,
        helpers_waiting: 0.0,
    }
}
