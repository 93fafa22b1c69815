//! One host of a case: its GPUs, its processes and what befalls it; it speaks as the probe would.

mod gpus;
mod host;

use super::case_file::{Case, Step, positions};
use super::gpu_model::{GpuModel, Load, model};
use super::process::{GIB, Process, VIEWER, uid};
use super::rng::{CorrelatedNoise, Rng};
use gpufleet::wire::{
    DriverError, DriverErrorKind, GpuColumns, GpuHealthColumns, GpuProcessColumns, GpuReading, Hello, Inventory,
    PROTOCOL, ProcessColumns, SafeText, Scope, Snapshot, XidEvent,
};
use gpus::{forced, join};
use std::collections::HashSet;

/// Memory of each host.
const HOST_MEMORY: f64 = 1007.0 * GIB;
/// Memory that the driver keeps for itself on each GPU.
const RESERVED: u64 = 551 << 20;
/// 2026-03-02T00:00:00Z.
pub(crate) const START_UNIX: f64 = 1_772_409_600.0;

/// One host.
pub(crate) struct SimHost {
    pub(crate) name: SafeText,
    model: GpuModel,
    gpu_states: Vec<SimGpu>,
    processes: Vec<Process>,
    events: Vec<Step>,
    rng: Rng,
    interval: f64,
    time: f64,
    /// For how long it had been up when the case began.
    up: f64,
    driver: String,
    /// How many GPUs the driver shows.
    shown: usize,
    generation: u32,
    xids: Vec<XidEvent>,
    /// Xids that were told, of each event.
    xids_sent: Vec<u64>,
    connection: ProbeConnection,
}

/// What a probe remembers of its connection.
#[derive(Default)]
struct ProbeConnection {
    began: f64,
    sequence: u64,
    sent_facts: HashSet<(u32, u64, bool)>,
    /// The inventory that was sent last.
    generation: Option<u32>,
}

/// One GPU.
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
    /// Enforced power limit, watts.
    limit: f64,
}

impl SimHost {
    /// The host number `index` of a case.
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
            // Ranks of one job keep time together, on whichever host they are.
            let mut together = Rng::new(&[seed, number as u64, 2]);
            Process::of_job(job, number, &positions(&job.gpus, case.gpus), up, &mut together)
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
            xids_sent: vec![0; events.len()],
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

    /// All that befalls it under a word.
    pub(crate) fn events<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a Step> {
        self.events.iter().filter(move |event| event.word == word)
    }

    /// What befalls it at this moment under a word.
    pub(crate) fn active<'a>(&'a self, word: &'a str, time: f64) -> impl Iterator<Item = &'a Step> {
        self.events.iter().filter(move |event| event.word == word && is_active(event, time))
    }

    /// Goes on to a moment.
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
                self.gpu_states[*gpu].used += process.held();
                loads[*gpu] = Some(join(loads[*gpu], load, &self.model));
            }
        }
        for event in self.events.iter().filter(|event| is_active(event, time)) {
            let of_gpus = |default: &str| positions(event.text("gpu").unwrap_or(default), self.gpu_states.len());
            match event.word.as_str() {
                "ghost" => {
                    for gpu in of_gpus("0") {
                        self.gpu_states[gpu].used += (event.number("gib").unwrap_or(10.0) * GIB) as u64;
                        loads[gpu] = Some(forced(event, &self.model));
                    }
                }
                "busy" => of_gpus("0").into_iter().for_each(|gpu| loads[gpu] = Some(forced(event, &self.model))),
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
        self.take_xids(time);
    }

    fn take_xids(&mut self, time: f64) {
        for (place, event) in self.events.iter().enumerate() {
            if event.word != "xid" || event.at > time {
                continue;
            }
            let times = event.number("times").unwrap_or(1.0);
            let over = event.time("over").unwrap_or(0.0);
            let happened = if over > 0.0 { (times * ((time - event.at) / over).min(1.0)).ceil() } else { times };
            let number = event.number("number").unwrap_or(31.0) as u64;
            let gpu = event.number("gpu").map(|gpu| gpu as u16);
            for _ in self.xids_sent[place]..happened as u64 {
                let monotonic_seconds = (time - self.connection.began - 0.5).max(0.0);
                self.xids.push(XidEvent { gpu, xid: number, monotonic_seconds });
            }
            self.xids_sent[place] = happened as u64;
        }
    }

    /// A probe begins.
    pub(crate) fn connect(&mut self) -> Hello {
        self.connection = ProbeConnection { began: self.time, ..ProbeConnection::default() };
        // Xids from before are not told.
        self.xids.clear();
        Hello {
            protocol: PROTOCOL,
            probe_version: "0.1.0".into(),
            boot_id: Some(self.boot_id()),
            host_name: Some(self.name.clone()),
            login_user: Some(VIEWER.into()),
            login_uid: Some(uid(VIEWER)),
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

    /// The inventory, where it has to be told (again).
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

    /// All readings of this moment. `is_blind` leaves the GPUs out, as before the driver has answered.
    pub(crate) fn snapshot(&mut self, is_blind: bool) -> Snapshot {
        self.connection.sequence += 1;
        let sequence = self.connection.sequence;
        let has_rates = sequence > 1;
        let time = self.time;
        let whole = self.driver_error();
        let is_mute = is_blind || whole.is_some();
        let gpus: Vec<GpuReading> =
            if is_mute { Vec::new() } else { (0..self.shown).map(|gpu| self.reading(gpu, has_rates)).collect() };
        let (mut usages, mut rows, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        if !is_mute {
            let is_readable = |gpu: &usize| gpus.get(*gpu).is_some_and(|reading| reading.error.is_none());
            // What only an owner may read is looked at in every tenth sample.
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
        // Health is told with the first snapshot and every tenth after it.
        let tells_health = !is_mute && sequence % 10 == 1;
        let health = if tells_health { (0..self.shown).map(|gpu| self.health(gpu)).collect() } else { Vec::new() };
        Snapshot {
            sequence,
            generation: if is_blind { 0 } else { self.generation },
            monotonic_seconds: time - self.connection.began,
            wall_unix_ms: ((START_UNIX + time) * 1e3) as i64,
            interval_seconds: Some(self.interval as f32),
            host: self.host(&rows, has_rates),
            gpus: GpuColumns::from_rows(&gpus),
            health: GpuHealthColumns::from_rows(&health),
            xid_events: std::mem::take(&mut self.xids),
            gpu_processes: GpuProcessColumns::from_rows(&usages),
            processes: ProcessColumns::from_rows(&rows),
            facts,
            driver_error: whole,
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

fn is_active(event: &Step, time: f64) -> bool {
    let into = time - event.at;
    // With `every` it comes again and again.
    let into = if into >= 0.0 { event.time("every").map_or(into, |every| into % every) } else { into };
    into >= 0.0 && event.time("for").is_none_or(|lasts| into < lasts)
}
