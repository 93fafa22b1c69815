//! What was read in the last hours: one store a host, for charts and for diagnosis.
//!
//! Each series has its last [`RAW_POINTS`] readings, at most one a second, and [`MEANS`] means of ten seconds (two
//! hours). Points are quantised to a byte or two, so that a host of 8 GPUs and 40 processes takes under 350 kB. Gaps
//! stay gaps. A point lies where it was taken on the controller's clock, however late it arrived.

use super::quantized_series::{MEANS, QuantizedSeries, RAW_POINTS, Scale};
use super::{Moment, Process, ProcessKey};
use crate::wire::{GpuReading, RecentPast, SafeText};
use std::time::Duration;

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

/// Time-weighted means over `count` buckets from `start`, each `width` seconds wide.
struct Buckets {
    start: f64,
    width: f64,
    /// Sum of value times seconds, and seconds.
    sums: Vec<(f64, f64)>,
}

impl Buckets {
    /// A reading that stands for the time from `from` to `to`.
    fn add(&mut self, from: f64, to: f64, value: Option<f32>) {
        let Some(value) = value else { return };
        let (from, to) = (from - self.start, to - self.start);
        if to <= 0.0 || to <= from {
            return;
        }
        let first = (from / self.width).max(0.0) as usize;
        let last = (to / self.width) as usize;
        for index in first..=last.min(self.sums.len().saturating_sub(1)) {
            let left = index as f64 * self.width;
            let seconds = to.min(left + self.width) - from.max(left);
            if let Some((sum, total)) = self.sums.get_mut(index)
                && seconds > 0.0
            {
                *sum += f64::from(value) * seconds;
                *total += seconds;
            }
        }
    }
}

impl History {
    /// The last `span` of a series as `count` buckets, the oldest first; a bucket without a reading is `None`.
    ///
    /// Buckets lie at multiples of their width, so that a chart moves by whole columns and its past does not change.
    /// A reading stands for the time since the one before it, the newest also for the time until the next is due; after
    /// a gap it stands for one interval only.
    pub fn points(&self, series: SeriesKey, now: Moment, span: Duration, count: usize) -> Vec<Option<f32>> {
        let (Some(series), true) = (self.series(series), count > 0 && !span.is_zero()) else {
            return vec![None; count];
        };
        let width = span.as_secs_f64() / count as f64;
        let end = (now.since_start().as_secs_f64() / width).ceil() * width + BACKFILL_SECONDS;
        let start = end - width * count as f64;
        let mut buckets = Buckets { start, width, sums: vec![(0.0, 0.0); count] };
        let raw_begins = self.add_raw(series, &mut buckets);
        self.add_means(series, &mut buckets, raw_begins);
        buckets.sums.iter().map(|(sum, seconds)| (*seconds > 0.0).then(|| (sum / seconds) as f32)).collect()
    }

    /// Adds raw points from the newest back to the beginning of the chart. Returns from when on they cover it.
    fn add_raw(&self, series: &QuantizedSeries, buckets: &mut Buckets) -> f64 {
        let mut begins = f64::INFINITY;
        let oldest = self.points.saturating_sub(RAW_POINTS);
        for point in (oldest..self.points).rev() {
            let slot = point % RAW_POINTS;
            let Some(at) = self.time(slot) else { continue };
            let before = if point > oldest { self.time((point - 1) % RAW_POINTS) } else { None };
            let longest = (3.0 * self.interval).max(3.0);
            let from = match before {
                Some(before) if at - before <= longest => before,
                _ => at - self.interval.max(1.0),
            };
            let to = if point + 1 == self.points { at + 1.5 * self.interval.max(1.0) } else { at };
            buckets.add(from, to, series.raw(slot));
            begins = from;
            if from <= buckets.start {
                break;
            }
        }
        begins
    }

    /// Adds means for the time before the raw points.
    fn add_means(&self, series: &QuantizedSeries, buckets: &mut Buckets, until: f64) {
        for mean_period in (self.mean_period.saturating_sub(MEANS as u64 - 1)..self.mean_period).rev() {
            let from = (mean_period * MEAN_SECONDS) as f64;
            let to = from + MEAN_SECONDS as f64;
            if to <= buckets.start {
                break;
            }
            buckets.add(from, to.min(until), series.mean((mean_period % MEANS as u64) as usize));
        }
    }

    /// When the newest raw point was taken.
    fn newest(&self) -> Option<f64> {
        self.time(self.points.checked_sub(1)? % RAW_POINTS)
    }

    fn time(&self, slot: usize) -> Option<f64> {
        self.times.get(slot).map(|hundredths| f64::from(*hundredths) / 100.0)
    }
}

/// Metrics that the driver keeps samples of.
const METRICS: [GpuMetric; 3] = [GpuMetric::Utilization, GpuMetric::MemoryUtilization, GpuMetric::Power];

impl History {
    /// Takes the recent past of GPUs that came with the snapshot of this time. For [`History::record`]'s caller, before
    /// it.
    ///
    /// Only what is newer than the last point counts, so that a new connection fills the gap and tells nothing twice.
    /// Seconds of which the driver knows nothing stay gaps.
    pub fn backfill(&mut self, monotonic_seconds: f64, now: Moment, pasts: &[RecentPast]) {
        if pasts.is_empty() {
            return;
        }
        let at = self.map(monotonic_seconds, now);
        let known_until = self.newest();
        let samples: Vec<DriverSamples> =
            pasts.iter().filter_map(|past| DriverSamples::new(past, monotonic_seconds)).collect();
        let longest = samples.iter().map(DriverSamples::oldest_seconds_ago).max().unwrap_or(0).min(RAW_POINTS);
        for seconds_ago in (1..=longest).rev() {
            let time = at - seconds_ago as f64;
            let is_known = known_until.is_some_and(|known| time <= known + 0.5);
            if time < 0.0 || is_known || samples.iter().all(|samples| samples.is_empty_at(seconds_ago)) {
                continue;
            }
            self.close_means((time / MEAN_SECONDS as f64) as u64);
            let slot = self.slot(time);
            for samples in &samples {
                let Some(track) = self.gpus.get_mut(samples.position) else { continue };
                for (metric, value) in METRICS.into_iter().zip(samples.values(seconds_ago)) {
                    track.series[metric as usize].push(slot, value);
                }
            }
        }
    }
}

/// The samples of one GPU, which end together.
struct DriverSamples<'a> {
    position: usize,
    /// Whole seconds from the last sample to the snapshot, one at least: the snapshot's own second is the snapshot's.
    age: usize,
    past: &'a RecentPast,
}

impl<'a> DriverSamples<'a> {
    /// `None` where it cannot be told when they end, or when that is too long ago.
    fn new(past: &'a RecentPast, monotonic_seconds: f64) -> Option<Self> {
        let age = monotonic_seconds - past.end_monotonic_seconds;
        let age = (age >= 0.0 && age < RAW_POINTS as f64).then(|| (age.round() as usize).max(1))?;
        Some(Self { position: usize::from(past.gpu), age, past })
    }

    /// How many seconds before the snapshot they begin.
    fn oldest_seconds_ago(&self) -> usize {
        let past = self.past;
        let lengths = [past.utilization_percent.len(), past.memory_utilization_percent.len(), past.power_watts.len()];
        // The last sample lies `age` seconds seconds_ago.
        lengths.into_iter().max().filter(|length| *length > 0).map_or(0, |length| length - 1 + self.age)
    }

    /// What was read `seconds_ago` seconds before the snapshot, in the order of [`METRICS`].
    fn values(&self, seconds_ago: usize) -> [Option<f32>; 3] {
        let past = self.past;
        [
            self.value(&past.utilization_percent, seconds_ago).map(f32::from),
            self.value(&past.memory_utilization_percent, seconds_ago).map(f32::from),
            self.value(&past.power_watts, seconds_ago),
        ]
    }

    fn value<T: Copy>(&self, list: &[Option<T>], seconds_ago: usize) -> Option<T> {
        let from_end = seconds_ago.checked_sub(self.age)? + 1;
        *list.get(list.len().checked_sub(from_end)?)?
    }

    fn is_empty_at(&self, seconds_ago: usize) -> bool {
        self.values(seconds_ago).iter().all(Option::is_none)
    }
}

/// Two clocks may drift apart by this much (200 ppm; quartz is specified to 100), so that a minimum found long ago does
/// not hold for ever.
const DRIFT: f64 = 0.0002;

/// A line can be this late and no more: the connection is dropped after 10 s of silence. A larger difference means that
/// one of the clocks was stopped or set: a suspended laptop, a restarted probe.
const MAX_DELAY_SECONDS: f64 = 30.0;

/// Maps the probe's monotonic clock to the controller's by the smallest receive offset since the connection was made:
/// a sample lies where it was taken, however long the line was under way.
#[derive(Debug, Clone, Copy, Default)]
struct ProbeClock {
    /// Controller's seconds less probe's seconds, at their smallest.
    offset: Option<f64>,
    last_monotonic: f64,
    /// The last result; results never fall.
    last: f64,
}

impl ProbeClock {
    /// A new connection, perhaps to a new probe whose clock begins anew.
    fn reset(&mut self) {
        self.offset = None;
    }

    /// Seconds since the controller began at which a sample was taken that arrived now.
    fn map(&mut self, monotonic_seconds: f64, now: Moment) -> f64 {
        let received = now.since_start().as_secs_f64();
        if !monotonic_seconds.is_finite() || monotonic_seconds < 0.0 {
            self.last = self.last.max(received);
            return self.last;
        }
        let seen = received - monotonic_seconds;
        let step = monotonic_seconds - self.last_monotonic;
        let offset = match self.offset {
            Some(offset) if step >= 0.0 && seen - offset <= MAX_DELAY_SECONDS => seen.min(offset + DRIFT * step),
            _ => seen,
        };
        self.offset = Some(offset);
        self.last_monotonic = monotonic_seconds;
        self.last = self.last.max(monotonic_seconds + offset);
        self.last
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
