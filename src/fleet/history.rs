//! The readings of the last two hours of one host, for charts and for diagnosis.
//!
//! Each series holds its last `RAW_POINTS` readings, at most one per second, and `MEANS` means of ten seconds (two
//! hours). Points are quantized to one or two bytes, so that a host with 8 GPUs and 40 processes takes less than 350
//! kB. Gaps stay gaps. The time of a point is the time of its sample on the controller's clock, however late it
//! arrived.

use super::quantized_series::{MEANS, QuantizedSeries, RAW_POINTS, Scale};
use super::{Moment, Process, ProcessKey};
use crate::wire::{GpuReading, RecentPast, SafeText};
use std::time::Duration;

/// Seconds per mean.
pub const MEAN_SECONDS: u64 = 10;
/// Maximum number of processes with a history. Later ones get theirs when others have ended.
pub const MAX_PROCESSES: usize = 128;
/// Seconds before the start of the controller that a history can hold: the driver's own samples, and the minutes that a
/// collector has stored. Times in this file count from there.
const BACKFILL_SECONDS: f64 = (MEANS as u64 * MEAN_SECONDS) as f64;
/// Maximum number of GPUs outside of the inventory that keep their history: a lost GPU or a restarted driver may
/// return.
const MAX_ABSENT_GPUS: usize = 16;

/// The recorded metrics of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuMetric {
    /// `utilization_percent`.
    Utilization,
    /// `memory_utilization_percent`: the share of time in which memory was read or written.
    MemoryUtilization,
    /// `memory_used_bytes`.
    MemoryUsed,
    /// `power_mean_watts`, else `power_watts`.
    Power,
    /// `temperature_celsius`.
    Temperature,
}

/// The recorded metrics of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessMetric {
    /// The highest SM utilization over its GPUs, in percent.
    Sm,
    /// Memory on all its GPUs in bytes.
    GpuMemory,
    /// CPU utilization in percent; 100 is one CPU.
    Cpu,
}

/// One series of a host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SeriesKey<'a> {
    /// A GPU by its inventory position.
    Gpu(usize, GpuMetric),
    /// A process.
    Process(&'a ProcessKey, ProcessMetric),
}

/// The history of one host.
#[derive(Debug, Clone, Default)]
pub struct History {
    clock: ProbeClock,
    /// The last known interval between readings in seconds.
    interval: f64,
    /// The time of each raw point in hundredths of a second, as a ring. See [`BACKFILL_SECONDS`].
    times: Vec<u32>,
    /// Number of raw points ever added. The last one is at `(points - 1) % RAW_POINTS`.
    points: usize,
    /// The time of the first raw point ever added.
    first_at: f64,
    /// The earliest time of the next raw point, in seconds.
    next_raw_at: f64,
    /// The number of the current period of ten seconds.
    mean_period: u64,
    /// In inventory order, then the absent ones.
    gpus: Vec<GpuSeries>,
    /// By ascending pid, as the processes of a host, so that both are walked in step.
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
    /// Follows a new connection: the probe's clock may have restarted.
    pub fn connected(&mut self) {
        self.clock.reset();
    }

    /// Orders the GPUs as in a new inventory. `identities` identify them across inventories.
    pub fn set_gpus(&mut self, identities: &[SafeText]) {
        let mut old = std::mem::take(&mut self.gpus);
        for identity in identities {
            let entry = match old.iter().position(|entry| entry.identity == *identity) {
                Some(position) => old.remove(position),
                None => GpuSeries { identity: identity.clone(), series: new_gpu_series() },
            };
            self.gpus.push(entry);
        }
        old.truncate(MAX_ABSENT_GPUS);
        self.gpus.append(&mut old);
        self.gpus.shrink_to_fit();
    }

    /// Adds the readings of one snapshot: the GPUs in inventory order, and the processes. Processes that are not listed
    /// lose their history. Returns the delay of the snapshot compared with the fastest one.
    pub fn record(
        &mut self,
        monotonic_seconds: f64,
        interval: Duration,
        now: Moment,
        gpus: &[GpuReading],
        processes: &[Process],
    ) -> Duration {
        self.interval = interval.as_secs_f64();
        let at = self.sample_time(monotonic_seconds, now);
        self.align_processes(processes);
        self.close_means((at / MEAN_SECONDS as f64) as u64);
        let slot = self.slot(at);
        for (entry, reading) in self.gpus.iter_mut().zip(gpus) {
            for (series, value) in entry.series.iter_mut().zip(gpu_values(reading)) {
                series.push(slot, value);
            }
        }
        let mut rest = processes.iter();
        for entry in &mut self.processes {
            let Some(process) = rest.find(|process| process.key == entry.key) else { break };
            if !process.is_stale {
                for (series, value) in entry.series.iter_mut().zip(process_values(process)) {
                    series.push(slot, value);
                }
            }
        }
        Duration::try_from_secs_f64(now.since_start().as_secs_f64() + BACKFILL_SECONDS - at).unwrap_or_default()
    }

    /// Bytes of all series, without the overhead of the allocator.
    pub fn memory_bytes(&self) -> usize {
        let entries = std::mem::size_of::<GpuSeries>() * self.gpus.capacity()
            + std::mem::size_of::<ProcessSeries>() * self.processes.capacity();
        self.all_series().map(QuantizedSeries::bytes).sum::<usize>() + self.times.capacity() * 4 + entries
    }

    /// The time of a sample that arrives now, in seconds.
    fn sample_time(&mut self, monotonic_seconds: f64, now: Moment) -> f64 {
        self.clock.sample_time(monotonic_seconds, now) + BACKFILL_SECONDS
    }

    /// Keeps one entry per listed process, up to [`MAX_PROCESSES`].
    fn align_processes(&mut self, processes: &[Process]) {
        let is_unchanged = processes.len() == self.processes.len()
            && processes.iter().zip(&self.processes).all(|(process, entry)| process.key == entry.key);
        if is_unchanged {
            return;
        }
        let index_of = |key: &ProcessKey| processes.binary_search_by_key(&key.pid, |process| process.key.pid);
        self.processes.retain(|entry| index_of(&entry.key).is_ok_and(|index| processes[index].key == entry.key));
        let free_entries = MAX_PROCESSES.saturating_sub(self.processes.len());
        let entries = &self.processes;
        let is_new =
            |process: &&Process| entries.binary_search_by_key(&process.key.pid, |entry| entry.key.pid).is_err();
        let new = processes.iter().filter(is_new).take(free_entries);
        let new: Vec<ProcessSeries> =
            new.map(|process| ProcessSeries { key: process.key.clone(), series: new_process_series() }).collect();
        self.processes.shrink_to(self.processes.len() + new.len());
        self.processes.reserve_exact(new.len());
        self.processes.extend(new);
        self.processes.sort_by_key(|entry| entry.key.pid);
    }

    /// Ends the current period: writes its mean, and gaps for skipped periods.
    fn close_means(&mut self, mean_period: u64) {
        if mean_period <= self.mean_period {
            return;
        }
        if self.points == 0 {
            // There is nothing to close.
            self.mean_period = mean_period;
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

    /// The slot of a reading: a new raw point, or the last one if it is less than a second old.
    fn slot(&mut self, at: f64) -> usize {
        // One per second on average; a reading may be a little early.
        if self.points > 0 && at < self.next_raw_at - 0.3 {
            return (self.points - 1) % RAW_POINTS;
        }
        if self.points == 0 {
            self.first_at = at;
        }
        self.next_raw_at = (self.next_raw_at + 1.0).max(at + 0.7);
        let slot = self.points % RAW_POINTS;
        self.points += 1;
        let time = (at * 100.0) as u32;
        match self.times.get_mut(slot) {
            Some(old) => *old = time,
            None => self.times.push(time),
        }
        for series in self.all_series_mut() {
            series.clear_raw(slot);
        }
        slot
    }

    fn all_series(&self) -> impl Iterator<Item = &QuantizedSeries> {
        self.gpus.iter().flat_map(|entry| &entry.series).chain(self.processes.iter().flat_map(|entry| &entry.series))
    }

    fn all_series_mut(&mut self) -> impl Iterator<Item = &mut QuantizedSeries> {
        self.gpus
            .iter_mut()
            .flat_map(|entry| &mut entry.series)
            .chain(self.processes.iter_mut().flat_map(|entry| &mut entry.series))
    }

    fn series(&self, series: SeriesKey) -> Option<&QuantizedSeries> {
        match series {
            SeriesKey::Gpu(position, metric) => Some(&self.gpus.get(position)?.series[metric as usize]),
            SeriesKey::Process(key, metric) => {
                let slot = self.processes.binary_search_by_key(&key.pid, |entry| entry.key.pid).ok()?;
                let entry = self.processes.get(slot).filter(|entry| entry.key == *key)?;
                Some(&entry.series[metric as usize])
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

/// Time-weighted means over buckets of `width` seconds from `start`.
pub(super) struct Buckets {
    start: f64,
    width: f64,
    /// The sum of value times seconds, and the seconds.
    sums: Vec<(f64, f64)>,
}

impl Buckets {
    pub(super) fn new(start: f64, width: f64, count: usize) -> Self {
        Self { start, width, sums: vec![(0.0, 0.0); count] }
    }

    /// The means; `None` for a bucket without readings.
    pub(super) fn means(&self) -> Vec<Option<f32>> {
        self.sums.iter().map(|(sum, seconds)| (*seconds > 0.0).then(|| (sum / seconds) as f32)).collect()
    }

    /// Adds a reading that is valid from `from` to `to`.
    pub(super) fn add(&mut self, from: f64, to: f64, value: Option<f32>) {
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
    /// Returns the last `span` of a series as `count` buckets, oldest first; `None` for a bucket without readings.
    ///
    /// Buckets are aligned to multiples of their width, so that a chart moves by whole columns and its past does not
    /// change. A reading is valid since the previous one; the newest also until the next is due. After a gap it is
    /// valid for one interval.
    pub fn points(&self, series: SeriesKey, now: Moment, span: Duration, count: usize) -> Vec<Option<f32>> {
        let (Some(series), true) = (self.series(series), count > 0 && !span.is_zero()) else {
            return vec![None; count];
        };
        let width = span.as_secs_f64() / count as f64;
        let end = (now.since_start().as_secs_f64() / width).ceil() * width + BACKFILL_SECONDS;
        let start = end - width * count as f64;
        let mut buckets = Buckets::new(start, width, count);
        let raw_begins = self.add_raw(series, &mut buckets);
        self.add_means(series, &mut buckets, raw_begins);
        buckets.means()
    }

    /// Whether all readings of a series are known to be equal, to within a step.
    pub fn is_constant(&self, series: SeriesKey) -> bool {
        self.series(series).is_none_or(QuantizedSeries::is_constant)
    }

    /// Adds raw points from the newest back to the start of the chart. Returns the start of the time that they cover.
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

    /// The time of the newest raw point.
    fn newest(&self) -> Option<f64> {
        self.time(self.points.checked_sub(1)? % RAW_POINTS)
    }

    fn time(&self, slot: usize) -> Option<f64> {
        self.times.get(slot).map(|hundredths| f64::from(*hundredths) / 100.0)
    }
}

/// Means of one metric, such as the minutes of a collector.
#[derive(Debug, Clone, Copy)]
pub struct EarlierMeans<'a> {
    /// Seconds from the start of the first mean until now.
    pub age_seconds: f64,
    /// Seconds per mean.
    pub step_seconds: f64,
    /// The means, the oldest first.
    pub values: &'a [Option<f32>],
}

impl History {
    /// Fills the time before the first reading of a GPU. Means that are known stay.
    pub fn fill(&mut self, position: usize, metric: GpuMetric, means: EarlierMeans<'_>, now: Moment) {
        let Some(entry) = self.gpus.get_mut(position).filter(|_| self.points > 0) else { return };
        let begins = now.since_start().as_secs_f64() + BACKFILL_SECONDS - means.age_seconds;
        let first = (self.first_at / MEAN_SECONDS as f64) as u64;
        let oldest = self.mean_period.saturating_sub(MEANS as u64 - 1);
        for (index, value) in means.values.iter().enumerate() {
            let Some(value) = *value else { continue };
            let from = begins + index as f64 * means.step_seconds;
            // A period of ten seconds belongs to the mean in which it begins.
            let period = |time: f64| (time / MEAN_SECONDS as f64).ceil() as u64;
            for mean_period in period(from).max(oldest)..period(from + means.step_seconds).min(first) {
                entry.series[metric as usize].fill_mean((mean_period % MEANS as u64) as usize, value);
            }
        }
    }
}

/// The metrics that the driver keeps samples of.
const METRICS: [GpuMetric; 3] = [GpuMetric::Utilization, GpuMetric::MemoryUtilization, GpuMetric::Power];

impl History {
    /// Adds the samples that the driver kept from before the snapshot of this time. Call this before
    /// [`History::record`].
    ///
    /// Only samples that are newer than the last point are added, so that a new connection fills the gap and adds
    /// nothing twice.
    pub fn backfill(&mut self, monotonic_seconds: f64, now: Moment, pasts: &[RecentPast]) {
        if pasts.is_empty() {
            return;
        }
        let at = self.sample_time(monotonic_seconds, now);
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
                let Some(entry) = self.gpus.get_mut(samples.position) else { continue };
                for (metric, value) in METRICS.into_iter().zip(samples.values(seconds_ago)) {
                    entry.series[metric as usize].push(slot, value);
                }
            }
        }
    }
}

/// The samples of one GPU. All lists end at the same time.
struct DriverSamples<'a> {
    position: usize,
    /// Seconds from the last sample to the snapshot, at least 1: the snapshot has the readings of its own second.
    age: usize,
    past: &'a RecentPast,
}

impl<'a> DriverSamples<'a> {
    /// Returns `None` if the end of the samples is unknown or too long ago.
    fn new(past: &'a RecentPast, monotonic_seconds: f64) -> Option<Self> {
        let age = monotonic_seconds - past.end_monotonic_seconds;
        let age = (age >= 0.0 && age < RAW_POINTS as f64).then(|| (age.round() as usize).max(1))?;
        Some(Self { position: usize::from(past.gpu), age, past })
    }

    /// The age of the oldest sample in seconds before the snapshot.
    fn oldest_seconds_ago(&self) -> usize {
        let past = self.past;
        let lengths = [past.utilization_percent.len(), past.memory_utilization_percent.len(), past.power_watts.len()];
        // The last sample is `age` seconds old.
        lengths.into_iter().max().filter(|length| *length > 0).map_or(0, |length| length - 1 + self.age)
    }

    /// The samples of the second `seconds_ago` before the snapshot, in the order of [`METRICS`].
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

/// Assumed drift between two clocks (200 ppm; quartz clocks are specified for 100), so that an old minimum expires.
const DRIFT: f64 = 0.0002;

/// Maximum delay of a line: connections are dropped after 10 s of silence. A larger difference means that a clock
/// stopped or was set, for example by a suspend or a restart of the probe.
const MAX_DELAY_SECONDS: f64 = 30.0;

/// Maps the probe's monotonic clock to the controller's by the smallest receive offset of the connection, so that the
/// delay of a line does not move its sample.
#[derive(Debug, Clone, Copy, Default)]
struct ProbeClock {
    /// The smallest difference of controller and probe clock, in seconds.
    offset: Option<f64>,
    last_monotonic: f64,
    /// The last result. Results never decrease.
    last: f64,
}

impl ProbeClock {
    /// Forgets the offset: the clock of a new probe may have restarted.
    fn reset(&mut self) {
        self.offset = None;
    }

    /// The time of a sample that arrives now, in seconds since the controller started.
    fn sample_time(&mut self, monotonic_seconds: f64, now: Moment) -> f64 {
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
