//! A simulated host: its GPUs, processes and events, advanced from one time to the next.

use super::gpu_model::{GpuModel, Load};
use super::process::{GIB, Process};
use super::rng::{CorrelatedNoise, Rng};
use super::script::{Job, Step};
use crate::wire::{ReplyOutcome, SafeText, XidEvent};
use std::sync::Arc;

/// Time constant of the noise of a GPU's power: a deviation shrinks to 1/e in this time.
const NOISE_SECONDS: f64 = 60.0;
/// Time constant of a GPU's temperature.
const HEAT_SECONDS: f64 = 40.0;

/// A simulated host at the beginning of its script.
#[derive(Debug, Clone)]
pub struct HostScript {
    /// Name of the host.
    pub name: String,
    /// Seed of the random numbers of the host and its jobs.
    pub seed: u64,
    /// Distinguishes hosts with one seed.
    pub index: u64,
    /// Login name of the probe. Readings that only the owner may see exist for processes of this user.
    pub login: String,
    /// Model of all GPUs.
    pub model: &'static GpuModel,
    /// Number of GPUs.
    pub gpu_count: usize,
    /// Seconds between samples.
    pub interval: f64,
    /// The jobs, each with a number that distinguishes its random numbers and pids.
    pub jobs: Vec<(usize, Arc<Job>)>,
    /// The events.
    pub events: Vec<Step>,
}

/// A simulated host.
#[derive(Debug)]
pub struct SimulatedHost {
    pub(super) name: SafeText,
    pub(super) login: String,
    pub(super) model: &'static GpuModel,
    pub(super) gpus: Vec<SimulatedGpu>,
    pub(super) processes: Vec<Process>,
    events: Vec<Step>,
    /// Positions of the events that go on now.
    now: Vec<usize>,
    pub(super) rng: Rng,
    /// Seconds between samples.
    pub(super) interval: f64,
    /// Seconds since the script began.
    pub(super) time: f64,
    /// Uptime at the beginning of the script, in seconds.
    pub(super) up: f64,
    /// Wall clock at the beginning of the script, in seconds since 1970.
    pub(super) start_unix: f64,
    /// Distinguishes the boot id and the UUIDs of the host.
    pub(super) id: u64,
    /// Number of GPUs that the driver shows.
    pub(super) shown: usize,
    /// All Xids so far. Their time is that of the script.
    pub(super) xids: Vec<XidEvent>,
    /// Number of Xids generated so far, per event.
    xid_counts: Vec<u64>,
}

/// A simulated GPU.
#[derive(Debug)]
pub(super) struct SimulatedGpu {
    noise: CorrelatedNoise,
    offset: f64,
    pub(super) joules: f64,
    pub(super) mean_watts: f64,
    pub(super) celsius: f64,
    pub(super) thermal_seconds: f64,
    pub(super) brake_seconds: f64,
    pub(super) load: Option<Load>,
    /// Bytes of memory in use.
    pub(super) used: u64,
    /// Enforced power limit in watts.
    pub(super) limit: f64,
}

impl SimulatedHost {
    /// Creates the host at a time relative to the beginning of its script, which is at `start_unix`.
    pub fn new(script: &HostScript, time: f64, start_unix: f64) -> Self {
        let mut rng = Rng::new(&[script.seed, script.index, 1]);
        let up = rng.between(20.0, 90.0) * 86_400.0;
        let gpu = |rng: &mut Rng| SimulatedGpu {
            noise: CorrelatedNoise::new(rng),
            offset: 0.02 * rng.normal().clamp(-2.0, 2.0),
            joules: rng.between(1e8, 9e8),
            mean_watts: 0.0,
            celsius: 40.0,
            thermal_seconds: rng.between(0.0, 500.0),
            brake_seconds: rng.between(0.0, 3.0),
            load: None,
            used: 0,
            limit: script.model.limit,
        };
        let mut gpus: Vec<SimulatedGpu> = (0..script.gpu_count).map(|_| gpu(&mut rng)).collect();
        let processes = script.jobs.iter().flat_map(|(number, job)| {
            // The ranks of a job share their random numbers across hosts, so that their checkpoints coincide.
            let mut job_rng = Rng::new(&[script.seed, *number as u64, 2]);
            Process::of_job(job, *number, script.gpu_count, &script.login, up, &mut job_rng)
        });
        let events = script.events.clone();
        for event in events.iter().filter(|event| event.word == "limit") {
            for (_, gpu) in gpus.iter_mut().enumerate().filter(|(gpu, _)| event.gpus.is_none() || event.is_on(*gpu)) {
                gpu.limit = event.number("watts").unwrap_or(gpu.limit);
            }
        }
        Self {
            name: SafeText::new(&script.name),
            login: script.login.clone(),
            model: script.model,
            gpus,
            processes: processes.collect(),
            xid_counts: vec![0; events.len()],
            events,
            now: Vec::new(),
            rng,
            interval: script.interval,
            time,
            up,
            start_unix,
            id: Rng::new(&[script.seed, script.index, 4]).bits(),
            shown: script.gpu_count,
            xids: Vec::new(),
        }
    }

    /// Returns the name.
    pub fn name(&self) -> SafeText {
        self.name.clone()
    }

    /// Sets the wall clock at the beginning of the script, in seconds since 1970, and the seconds between samples.
    pub fn set_clock(&mut self, start_unix: f64, interval: f64) {
        (self.start_unix, self.interval) = (start_unix, interval);
    }

    /// Returns all events of one kind.
    pub fn events(&self, word: &str) -> impl Iterator<Item = &Step> {
        self.events.iter().filter(move |event| event.word == word)
    }

    /// Returns the events of one kind that go on now.
    pub fn active(&self, word: &str) -> impl Iterator<Item = &Step> {
        self.now.iter().map(|place| &self.events[*place]).filter(move |event| event.word == word)
    }

    /// Returns the event of one kind that goes on now on a GPU.
    pub(super) fn on_gpu(&self, word: &str, gpu: usize) -> Option<&Step> {
        self.active(word).find(|event| event.is_on(gpu))
    }

    /// Advances to a time, unless it is past.
    pub fn advance(&mut self, time: f64) {
        let time = time.max(self.time);
        let step = time - self.time;
        self.time = time;
        let event_time = time.max(0.0);
        self.now.clear();
        self.now.extend((0..self.events.len()).filter(|place| self.events[*place].is_at(event_time)));
        let mut loads: Vec<Option<Load>> = vec![None; self.gpus.len()];
        let kept = (-step / NOISE_SECONDS).exp();
        for gpu in &mut self.gpus {
            gpu.noise.step(kept, &mut self.rng);
            gpu.used = 20 << 20;
        }
        for process in &mut self.processes {
            let Some(first) = process.gpus.first().map(|gpu| &self.gpus[*gpu]) else { continue };
            let noise = (first.noise.value(), first.offset);
            let Some(load) = process.advance(time, step, self.up, self.model, noise, &mut self.rng) else {
                continue;
            };
            let used = process.used_gpus();
            for (place, gpu) in process.gpus.iter().enumerate() {
                self.gpus[*gpu].used += process.gpu_memory_bytes();
                if place >= used {
                    continue;
                }
                loads[*gpu] = Some(loads[*gpu].map_or(load, |other| other.with(load, self.model)));
            }
        }
        for event in self.now.iter().map(|place| &self.events[*place]) {
            let share = |default| event.number("share").unwrap_or(default) * step;
            for (gpu, load) in loads.iter_mut().enumerate().filter(|(gpu, _)| event.is_on(*gpu)) {
                match event.word.as_str() {
                    "ghost" => {
                        self.gpus[gpu].used += (event.number("gib").unwrap_or(10.0) * GIB) as u64;
                        *load = Some(Load::of_event(event, self.model));
                    }
                    "busy" => *load = Some(Load::of_event(event, self.model)),
                    "thermal" => self.gpus[gpu].thermal_seconds += share(0.2),
                    "brake" => self.gpus[gpu].brake_seconds += share(0.05),
                    "vanish" => self.shown = self.shown.min(gpu),
                    _ => {}
                }
            }
        }
        let warmed = 1.0 - (-step / HEAT_SECONDS).exp();
        for (gpu, load) in self.gpus.iter_mut().zip(&loads) {
            let watts = load.map_or(self.model.bare * (1.0 + gpu.offset), |load| load.watts).max(2.0);
            let watts = watts.min(gpu.limit * 1.03);
            gpu.joules += watts * step;
            gpu.mean_watts = watts;
            let target = 28.0 + 48.0 * watts / self.model.limit;
            gpu.celsius += (target - gpu.celsius) * warmed;
            gpu.load = *load;
        }
        self.generate_xids(event_time);
    }

    fn generate_xids(&mut self, time: f64) {
        for (place, event) in self.events.iter().enumerate() {
            if event.word != "xid" || event.at > time {
                continue;
            }
            let times = event.number("times").unwrap_or(1.0);
            let over = event.number("over").unwrap_or(0.0);
            let happened = if over > 0.0 { (times * ((time - event.at) / over).min(1.0)).ceil() } else { times };
            let xid = event.number("number").unwrap_or(31.0) as u64;
            let gpu = event.gpus.as_ref().and_then(|gpus| gpus.0.first()).map(|(gpu, _)| *gpu as u16);
            for _ in self.xid_counts[place]..happened as u64 {
                self.xids.push(XidEvent { gpu, xid, monotonic_seconds: time - 0.5 });
            }
            self.xid_counts[place] = happened as u64;
        }
    }

    /// Ends the job of a process of the probe's user, as torchrun ends all ranks when one is gone.
    pub(super) fn signal(&mut self, pid: u32, start_ticks: u64) -> ReplyOutcome {
        let found = self.processes.iter().find_map(|process| Some((process.start_of(pid)?, process)));
        let number = match found {
            None => return ReplyOutcome::Gone,
            Some((start, _)) if start != start_ticks => return ReplyOutcome::Reused,
            Some((_, process)) if !process.is_own => return ReplyOutcome::NotPermitted,
            Some((_, process)) => process.number,
        };
        self.processes.iter_mut().filter(|process| process.number == number).for_each(Process::end);
        ReplyOutcome::Sent
    }
}
