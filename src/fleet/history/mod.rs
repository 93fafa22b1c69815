//! What was read in the last hours: one store a host, for charts and for diagnosis.
//!
//! Each series has its last [`RAW_POINTS`] readings, at most one a second, and [`MEANS`] means of ten seconds (two
//! hours). Points are quantised to a byte or two, so that a host of 8 GPUs and 40 processes takes under 350 kB. Gaps
//! stay gaps. A point lies where it was taken on the controller's clock, however late it arrived.

mod backfill;
mod probe_clock;
mod quantized_series;
mod resample;

use super::{Moment, Process, ProcessKey};
use crate::wire::{GpuReading, SafeText};
use probe_clock::ProbeClock;
use quantized_series::{QuantizedSeries, Scale};
use std::time::Duration;

/// Raw points a series.
pub const RAW_POINTS: usize = 600;
/// Means a series.
pub const MEANS: usize = 720;
/// Seconds that one mean covers.
pub const MEAN_SECONDS: u64 = 10;
/// The most processes of a host that have a history; later ones get one when others have ended.
pub const MAX_PROCESSES: usize = 128;
/// Points may lie this many seconds before the controller began: what the driver remembers of that time, at most
/// [`RAW_POINTS`] of a second. Times are kept from there on.
const BACKFILL_SECONDS: f64 = RAW_POINTS as f64;
/// GPUs that left the inventory and may return (a lost GPU, a driver that restarts) keep their history, up to this many.
const MAX_ABSENT_GPUS: usize = 16;

/// What is kept of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuMetric {
    /// `utilization_percent`.
    Utilization,
    /// `memory_utilization_percent`: how busy the memory is.
    MemoryUtilization,
    /// `memory_used_bytes`.
    MemoryUsed,
    /// `power_mean_watts`, else `power_watts`.
    Power,
    /// `temperature_celsius`.
    Temperature,
}

/// What is kept of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessMetric {
    /// The most SM share over its GPUs, in percent.
    Sm,
    /// Memory on all its GPUs together, in bytes.
    GpuMemory,
    /// CPU share, 100 = one CPU.
    Cpu,
}

/// One series of a host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SeriesKey<'a> {
    /// Of the GPU at this position of the inventory.
    Gpu(usize, GpuMetric),
    /// Of a process.
    Process(&'a ProcessKey, ProcessMetric),
}

/// The history of one host.
#[derive(Debug, Clone, Default)]
pub struct History {
    clock: ProbeClock,
    /// Seconds between readings, as last heard.
    interval: f64,
    /// When each raw point was taken, in hundredths of a second since [`BACKFILL_SECONDS`] the controller began; a ring.
    times: Vec<u32>,
    /// Raw points so far; the last is at `(points - 1) % RAW_POINTS`.
    points: usize,
    /// When the next raw point may be taken, in seconds on the same clock.
    next_raw_at: f64,
    /// Which ten seconds are not over yet, counted on the same clock.
    mean_period: u64,
    /// In inventory order; then those that are absent.
    gpus: Vec<GpuSeries>,
    /// By ascending pid, as a host's processes are: most of the time the two are the same, and are walked side by side.
    processes: Vec<ProcessSeries>,
}

#[derive(Debug, Clone)]
struct ProcessSeries {
    key: ProcessKey,
    series: [QuantizedSeries; 3],
}

#[derive(Debug, Clone)]
struct GpuSeries {
    identity: SafeText,
    series: [QuantizedSeries; 5],
}

impl History {
    /// A new connection stands: the probe's clock may have begun anew.
    pub fn connected(&mut self) {
        self.clock.reset();
    }

    /// Orders the GPUs as a new inventory does. `identities` are what each is recognised by.
    pub fn set_gpus(&mut self, identities: &[SafeText]) {
        let mut old = std::mem::take(&mut self.gpus);
        for identity in identities {
            let track = match old.iter().position(|track| track.identity == *identity) {
                Some(position) => old.remove(position),
                None => GpuSeries { identity: identity.clone(), series: new_gpu_series() },
            };
            self.gpus.push(track);
        }
        old.truncate(MAX_ABSENT_GPUS);
        self.gpus.append(&mut old);
    }

    /// Takes the readings of one snapshot: GPUs in inventory order, and the processes. ProcessTable that are no longer
    /// among them lose their history. Returns for how long the snapshot was under way, beyond the fastest one.
    pub fn record(
        &mut self,
        monotonic_seconds: f64,
        interval: Duration,
        now: Moment,
        gpus: &[GpuReading],
        processes: &[Process],
    ) -> Duration {
        self.interval = interval.as_secs_f64();
        let at = self.map(monotonic_seconds, now);
        self.align_processes(processes);
        self.close_means((at / MEAN_SECONDS as f64) as u64);
        let slot = self.slot(at);
        for (track, reading) in self.gpus.iter_mut().zip(gpus) {
            for (series, value) in track.series.iter_mut().zip(gpu_values(reading)) {
                series.push(slot, value);
            }
        }
        let mut rest = processes.iter();
        for track in &mut self.processes {
            let Some(process) = rest.find(|process| process.key == track.key) else { break };
            if !process.is_stale {
                for (series, value) in track.series.iter_mut().zip(process_values(process)) {
                    series.push(slot, value);
                }
            }
        }
        Duration::try_from_secs_f64(now.since_start().as_secs_f64() + BACKFILL_SECONDS - at).unwrap_or_default()
    }

    /// Bytes that the points take, the allocator's own share aside.
    pub fn memory_bytes(&self) -> usize {
        let tracks = std::mem::size_of::<GpuSeries>() * self.gpus.capacity()
            + std::mem::size_of::<ProcessSeries>() * self.processes.capacity();
        self.all_series().map(QuantizedSeries::bytes).sum::<usize>() + self.times.capacity() * 4 + tracks
    }

    /// When a sample was taken that arrives now, in seconds since [`BACKFILL_SECONDS`] the controller began.
    fn map(&mut self, monotonic_seconds: f64, now: Moment) -> f64 {
        self.clock.map(monotonic_seconds, now) + BACKFILL_SECONDS
    }

    /// Has a track for each process, as far as there is room; those that are no longer there lose theirs.
    fn align_processes(&mut self, processes: &[Process]) {
        let is_unchanged = processes.len() == self.processes.len()
            && processes.iter().zip(&self.processes).all(|(process, track)| process.key == track.key);
        if is_unchanged {
            return;
        }
        let of = |key: &ProcessKey| processes.binary_search_by_key(&key.pid, |process| process.key.pid);
        self.processes.retain(|track| of(&track.key).is_ok_and(|at| processes[at].key == track.key));
        let room = MAX_PROCESSES.saturating_sub(self.processes.len());
        let tracks = &self.processes;
        let is_new = |process: &&Process| tracks.binary_search_by_key(&process.key.pid, |track| track.key.pid).is_err();
        let new = processes.iter().filter(is_new).take(room);
        let new: Vec<ProcessSeries> =
            new.map(|process| ProcessSeries { key: process.key.clone(), series: new_process_series() }).collect();
        self.processes.reserve_exact(new.len());
        self.processes.extend(new);
        self.processes.sort_by_key(|track| track.key.pid);
    }

    /// Writes the mean of the ten seconds that are over and leaves gaps where there were none.
    fn close_means(&mut self, mean_period: u64) {
        if mean_period <= self.mean_period {
            return;
        }
        let closed = self.mean_period;
        let gaps = (closed + 1..=mean_period).rev().take(MEANS);
        let gaps: Vec<usize> = gaps.map(|mean_period| (mean_period % MEANS as u64) as usize).collect();
        self.mean_period = mean_period;
        for series in self.all_series_mut() {
            series.close_mean((closed % MEANS as u64) as usize);
            for gap in &gaps {
                series.clear_mean(*gap);
            }
        }
    }

    /// The raw point that a reading taken now belongs to: a new one, or the last where that is under a second old.
    fn slot(&mut self, at: f64) -> usize {
        // One a second on the average; a reading may come a little early.
        if self.points > 0 && at < self.next_raw_at - 0.3 {
            return (self.points - 1) % RAW_POINTS;
        }
        self.next_raw_at = (self.next_raw_at + 1.0).max(at + 0.7);
        let slot = self.points % RAW_POINTS;
        self.points += 1;
        let time = (at * 100.0) as u32;
        match self.times.get_mut(slot) {
            Some(mean_period) => *mean_period = time,
            None => self.times.push(time),
        }
        for series in self.all_series_mut() {
            series.clear_raw(slot);
        }
        slot
    }

    fn all_series(&self) -> impl Iterator<Item = &QuantizedSeries> {
        self.gpus.iter().flat_map(|track| &track.series).chain(self.processes.iter().flat_map(|track| &track.series))
    }

    fn all_series_mut(&mut self) -> impl Iterator<Item = &mut QuantizedSeries> {
        self.gpus
            .iter_mut()
            .flat_map(|track| &mut track.series)
            .chain(self.processes.iter_mut().flat_map(|track| &mut track.series))
    }

    fn series(&self, series: SeriesKey) -> Option<&QuantizedSeries> {
        match series {
            SeriesKey::Gpu(position, metric) => Some(&self.gpus.get(position)?.series[metric as usize]),
            SeriesKey::Process(key, metric) => {
                let slot = self.processes.binary_search_by_key(&key.pid, |track| track.key.pid).ok()?;
                let track = self.processes.get(slot).filter(|track| track.key == *key)?;
                Some(&track.series[metric as usize])
            }
        }
    }
}

/// In the order of [`GpuMetric`].
fn new_gpu_series() -> [QuantizedSeries; 5] {
    [Scale::Percent, Scale::Percent, Scale::Memory { unit: 1 }, Scale::Watts, Scale::Celsius].map(QuantizedSeries::new)
}

fn gpu_values(reading: &GpuReading) -> [Option<f32>; 5] {
    [
        reading.utilization_percent.map(f32::from),
        reading.memory_utilization_percent.map(f32::from),
        reading.memory_used_bytes.map(|bytes| bytes as f32),
        reading.power_mean_watts.or(reading.power_watts),
        reading.temperature_celsius.map(|celsius| celsius as f32),
    ]
}

/// In the order of [`ProcessMetric`].
fn new_process_series() -> [QuantizedSeries; 3] {
    [Scale::Percent, Scale::Memory { unit: 1 }, Scale::Cpu].map(QuantizedSeries::new)
}

fn process_values(process: &Process) -> [Option<f32>; 3] {
    [
        process.sm_percent().map(|(_, most)| f32::from(most)),
        process.gpu_memory_bytes().map(|bytes| bytes as f32),
        process.reading.cpu_percent,
    ]
}

#[cfg(test)]
mod tests;
