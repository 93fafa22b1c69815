//! Takes samples and builds snapshots from them, and schedules the next sample.

use super::decimal::{round_to_tenth_f32, round_to_thousandth};
use super::external::{ExternalSources, phase};
use super::nvml::{BufferedSamples, DeviceSample, Driver, DriverSample, GpuProcess, Xid};
use super::procfs::{FileReader, HostSampler, ProcessSampler, SampleContext, boot_id};
use super::user_names::UserNames;
use crate::wire::codec::MAX_PROCESSES;
use crate::wire::{
    GpuColumns, GpuHealthColumns, GpuProcessColumns, GpuProcessReading, HostReading, Inventory, ProbeCost,
    ProcessColumns, RecentPast, SafeText, Snapshot, XidEvent,
};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Readings that rarely change are read in the first sample and in every tenth one after it.
const SLOW_READINGS_EVERY: u64 = 10;

/// All sources of readings, and the state kept between samples.
pub(crate) struct Sampler {
    driver: Driver,
    host: HostSampler,
    processes: ProcessSampler,
    users: UserNames,
    external: ExternalSources,
    reader: FileReader,
    origin: Instant,
    sequence: u64,
    /// Makes the next sample include readings that rarely change.
    resend: bool,
    page_bytes: u64,
    rss_bytes: Option<u64>,
}

/// A snapshot, and the inventory if it changed.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) inventory: Option<Inventory>,
    pub(crate) snapshot: Snapshot,
}

impl Sampler {
    pub(crate) fn new(driver: Driver) -> Self {
        let mut reader = FileReader::default();
        let external = ExternalSources::new(phase(boot_id(&mut reader).as_deref()));
        Self {
            driver,
            host: HostSampler::new(),
            processes: ProcessSampler::new(),
            users: UserNames::default(),
            external,
            reader,
            origin: Instant::now(),
            sequence: 0,
            resend: false,
            page_bytes: super::nvml::ffi::page_size(),
            rss_bytes: None,
        }
    }

    /// Makes the next sample include the inventory, health and all facts.
    pub(crate) fn resend(&mut self) {
        self.driver.resend();
        self.processes.resend();
        self.resend = true;
    }

    /// Notes the Slurm jobs of an earlier connection, which may have ended since.
    pub(crate) fn note_earlier_slurm_jobs(&mut self, jobs: &[SafeText]) {
        self.external.slurm_jobs_left(jobs, self.monotonic(Instant::now()));
    }

    /// Starts what the first sample of a service left out: sockets, file systems and other programs. The second one has the results.
    pub(crate) fn finish_start(&mut self) {
        if self.sequence == 1 {
            let now = self.monotonic(Instant::now());
            self.processes.start_sockets(now);
            // Nothing has an answer yet.
            self.external.advance(now, false, self.processes.working_directories(), &mut HostReading::default());
        }
    }

    /// Waits for pending user names, at most `limit`.
    pub(crate) fn wait_for_users(&mut self, limit: Duration) {
        self.users.wait_until_resolved(limit);
    }

    /// Waits for the command lines of processes, at most `limit`.
    pub(crate) fn wait_for_commands(&mut self, limit: Duration) {
        self.processes.wait_until_idle(Instant::now() + limit);
    }

    /// Waits for other programs, at most `limit`.
    pub(crate) fn wait_for_external(&mut self, limit: Duration) {
        let origin = self.origin;
        self.external.wait_until_idle(Instant::now() + limit, || origin.elapsed().as_secs_f64());
    }

    /// Takes a sample. A driver that hangs costs its readings and at most a second.
    pub(crate) fn sample(&mut self, interval_seconds: Option<f32>, mut notes: Vec<SafeText>) -> Sample {
        let started = Instant::now();
        let resend = std::mem::take(&mut self.resend);
        let slow = self.sequence.is_multiple_of(SLOW_READINGS_EVERY) || resend;
        self.sequence += 1;
        let DriverSample { generation, inventory, mut devices, error, xids, notes: anomalies } =
            self.driver.refresh(slow);
        notes.extend(anomalies);
        let now = self.monotonic(Instant::now());
        let recent_past = devices.iter_mut().enumerate().filter_map(|(gpu, device)| {
            let samples = device.buffered_samples.take()?;
            Some(recent_past(gpu, samples, now))
        });
        let recent_past = recent_past.collect();
        let mut host = self.host.sample(&mut self.reader, now, slow);
        let (gpu_processes, omitted) = gpu_process_rows(&devices);
        if omitted > 0 {
            notes.push(format!("{omitted} processes with little GPU memory are left out").into());
        }
        let wall_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        let context = SampleContext {
            now,
            uptime_seconds: host.uptime_seconds,
            boot_unix_seconds: self.host.boot_unix_seconds(),
            unix_seconds: wall_unix_ms / 1000,
            forks: self.host.forks(),
            is_starting: self.sequence == 1 && interval_seconds.is_some(),
        };
        let on_gpus = gpu_processes.iter().filter_map(|row| Some((row.pid?, row.sm_percent)));
        self.processes.resolve_owner_names(&mut self.external);
        let (processes, facts) = self.processes.sample(on_gpus, context, &mut self.reader, &mut self.users);
        self.external.slurm_jobs_on_gpus(self.processes.slurm_jobs());
        self.external.slurm_jobs_left(&self.processes.take_ended_slurm_jobs(), now);
        if !context.is_starting {
            self.external.advance(now, resend, self.processes.working_directories(), &mut host);
        }
        let health: Vec<_> = if devices.iter().any(|device| device.health.is_some()) {
            devices.iter().map(|device| device.health.clone().unwrap_or_default()).collect()
        } else {
            Vec::new()
        };
        let gpus: Vec<_> = devices.into_iter().map(|device| device.reading).collect();
        let snapshot = Snapshot {
            sequence: self.sequence,
            generation,
            monotonic_seconds: round_to_thousandth(now),
            wall_unix_ms,
            interval_seconds,
            host,
            gpus: GpuColumns::from_rows(&gpus),
            health: GpuHealthColumns::from_rows(&health),
            xid_events: xids.into_iter().map(|xid| self.xid_event(xid)).collect(),
            recent_past,
            gpu_processes: GpuProcessColumns::from_rows(&gpu_processes),
            processes: ProcessColumns::from_rows(&processes),
            facts,
            processes_left_out: omitted,
            driver_error: error,
            notes,
            cost: Some(self.cost(started, slow)),
        };
        Sample { inventory, snapshot }
    }

    /// Whether an NVML call is in flight. If so, call [`Sampler::update_hang_lock`] about every second.
    pub(crate) fn has_pending_call(&self) -> bool {
        self.driver.has_pending_call()
    }

    /// Updates the peer hang lock.
    pub(crate) fn update_hang_lock(&mut self) {
        self.driver.update_hang_lock();
    }

    fn monotonic(&self, at: Instant) -> f64 {
        at.duration_since(self.origin).as_secs_f64()
    }

    fn xid_event(&self, xid: Xid) -> XidEvent {
        let Xid { gpu, number, at } = xid;
        XidEvent {
            gpu: gpu.map(|gpu| gpu as u16),
            xid: number,
            monotonic_seconds: round_to_thousandth(self.monotonic(at)),
        }
    }

    fn cost(&mut self, started: Instant, slow: bool) -> ProbeCost {
        if slow {
            self.rss_bytes = self.reader.read("/proc/self/statm").ok().and_then(|statm| {
                let resident = std::str::from_utf8(statm).ok()?.split_ascii_whitespace().nth(1)?;
                Some(resident.parse::<u64>().ok()? * self.page_bytes)
            });
        }
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        ProbeCost {
            cpu_seconds: round_to_thousandth(cpu_seconds),
            rss_bytes: self.rss_bytes,
            sample_ms: round_to_tenth_f32(started.elapsed().as_secs_f64() * 1000.0),
            probes_on_host: self.processes.probes_on_host(),
        }
    }
}

fn recent_past(gpu: usize, samples: BufferedSamples, now: f64) -> RecentPast {
    RecentPast {
        gpu: gpu as u16,
        end_monotonic_seconds: round_to_thousandth(now - samples.age_seconds),
        utilization_percent: samples.utilization_percent,
        memory_utilization_percent: samples.memory_utilization_percent,
        power_watts: samples.power_watts,
    }
}

/// Returns the processes of all GPUs, and the number of processes left out because of the wire limit: those with the
/// least memory.
fn gpu_process_rows(devices: &[DeviceSample]) -> (Vec<GpuProcessReading>, u32) {
    let mut rows: Vec<_> = devices
        .iter()
        .enumerate()
        .flat_map(|(gpu, device)| device.processes.iter().map(move |process| row(gpu, process)))
        .collect();
    let omitted = rows.len().saturating_sub(MAX_PROCESSES);
    if omitted > 0 {
        keep_largest(&mut rows, MAX_PROCESSES);
    }
    (rows, omitted as u32)
}

/// Keeps the `count` rows with the most memory, in their order. Uses a heap because its code is a tenth of the size of
/// a sort.
fn keep_largest(rows: &mut Vec<GpuProcessReading>, count: usize) {
    let mut largest = BinaryHeap::with_capacity(count + 1);
    for row in rows.iter() {
        largest.push(Reverse(row.gpu_memory_bytes));
        if largest.len() > count {
            largest.pop();
        }
    }
    // Several rows may have exactly the threshold; keep only as many as fit.
    let threshold = largest.peek().and_then(|Reverse(bytes)| *bytes);
    let mut remaining = largest.iter().filter(|Reverse(bytes)| *bytes == threshold).count();
    rows.retain(|row| {
        let keep = row.gpu_memory_bytes > threshold || row.gpu_memory_bytes == threshold && remaining > 0;
        remaining -= usize::from(keep && row.gpu_memory_bytes == threshold);
        keep
    });
}

fn row(gpu: usize, process: &GpuProcess) -> GpuProcessReading {
    GpuProcessReading {
        pid: process.pid,
        gpu: Some(gpu as u16),
        kind: Some(process.kind),
        gpu_memory_bytes: process.memory_bytes,
        sm_percent: process.utilization.sm,
        memory_percent: process.utilization.memory,
        encoder_percent: process.utilization.encoder,
        decoder_percent: process.utilization.decoder,
    }
}

pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(250);
pub(crate) const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// The default, as in the controller.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
/// The number of snapshots that may be unacknowledged.
const MAX_UNACKNOWLEDGED: u64 = 2;
/// The second sample comes early, so that CPU and SM shares exist soon.
const SECOND_SAMPLE_DELAY: Duration = Duration::from_millis(250);

/// The next step of the sampling loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    Sample,
    WaitUntil(Instant),
    /// The maximum number of snapshots is unacknowledged.
    WaitForAcknowledgement,
}

/// When the next sample is due: immediately, after 250 ms, and then at every interval. Samples that cannot be sent are
/// skipped, not queued.
#[derive(Debug)]
pub(crate) struct SampleSchedule {
    interval: Duration,
    due: Instant,
    sample_count: u64,
    /// A sample is requested beside the schedule.
    is_requested: bool,
}

impl SampleSchedule {
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, due: now, sample_count: 0, is_requested: false }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Changes the interval, counted from the last sample.
    pub(crate) fn set_interval(&mut self, interval: Duration, now: Instant) {
        if self.sample_count >= 2 {
            let last = self.due.checked_sub(self.interval).unwrap_or(now);
            self.due = last + interval;
        }
        self.interval = interval;
    }

    /// Moves the next sample, and with it all later ones, by at most one interval. A move into the past, or to less than the
    /// minimum interval from now, goes on to the sample after that: rates over a shorter time would be inexact.
    pub(crate) fn shift(&mut self, seconds: f32, now: Instant) {
        if seconds == 0.0 || self.sample_count < 2 {
            return;
        }
        let shift = Duration::try_from_secs_f32(seconds.abs()).unwrap_or(self.interval).min(self.interval);
        if seconds > 0.0 {
            self.due += shift;
        } else {
            self.due += self.interval.saturating_sub(shift);
            if self.due >= now + self.interval + MIN_INTERVAL {
                self.due = self.due.checked_sub(self.interval).unwrap_or(now);
            }
        }
    }

    /// Takes a sample now; the schedule stays.
    pub(crate) fn sample_now(&mut self) {
        self.is_requested = true;
    }

    /// Returns the next step at `now`. `acknowledged` is the last sequence number that the controller received, if it
    /// sent one.
    pub(crate) fn next_step(&self, now: Instant, acknowledged: Option<u64>) -> NextStep {
        if now < self.due && !self.is_requested {
            NextStep::WaitUntil(self.due)
        } else if acknowledged.is_some_and(|seen| self.sample_count >= seen.saturating_add(MAX_UNACKNOWLEDGED)) {
            NextStep::WaitForAcknowledgement
        } else {
            NextStep::Sample
        }
    }

    /// Records that a sample is taken at `now`.
    pub(crate) fn record_sample(&mut self, now: Instant) {
        self.sample_count += 1;
        self.is_requested = false;
        if now < self.due {
            return;
        }
        let delay = if self.sample_count == 1 { SECOND_SAMPLE_DELAY } else { self.interval };
        self.due += delay;
        // Skip missed samples instead of catching up.
        if self.due <= now {
            self.due = now + delay;
        }
    }
}

/// Clamps an interval to the allowed range and returns whether that changed it. `None` if `seconds` is not a positive
/// number.
pub(crate) fn clamp_interval(seconds: f32) -> Option<(Duration, bool)> {
    if !seconds.is_finite() || seconds <= 0.0 {
        return None;
    }
    let requested = Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX);
    let interval = requested.clamp(MIN_INTERVAL, MAX_INTERVAL);
    Some((interval, interval != requested))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::GpuProcessKind;

    #[test]
    fn the_largest_processes_are_kept() {
        let processes = (0..MAX_PROCESSES as u64 + 2)
            .map(|number| GpuProcess {
                pid: Some(2 + number as u32),
                kind: GpuProcessKind::Compute,
                memory_bytes: (number > 0).then_some(number),
                utilization: crate::probe::nvml::ProcessUtilization::default(),
            })
            .collect();
        let device = DeviceSample { processes, ..DeviceSample::default() };
        let (rows, omitted) = gpu_process_rows(&[device]);
        assert_eq!((rows.len(), omitted), (MAX_PROCESSES, 2));
        assert_eq!(rows.first().and_then(|row| row.gpu_memory_bytes), Some(2));
    }

    #[test]
    fn ties_keep_the_first_processes() {
        let row = |&gpu_memory_bytes| GpuProcessReading { gpu_memory_bytes, ..GpuProcessReading::default() };
        let mut rows: Vec<_> =
            [Some(3), None, Some(1), Some(2), None, Some(1), Some(9), Some(1)].iter().map(row).collect();
        for (count, expected) in [
            (8, vec![Some(3), None, Some(1), Some(2), None, Some(1), Some(9), Some(1)]),
            (7, vec![Some(3), None, Some(1), Some(2), Some(1), Some(9), Some(1)]),
            (5, vec![Some(3), Some(1), Some(2), Some(1), Some(9)]),
            (1, vec![Some(9)]),
        ] {
            keep_largest(&mut rows, count);
            assert_eq!(rows.iter().map(|row| row.gpu_memory_bytes).collect::<Vec<_>>(), expected);
        }
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_second_sample_comes_early() {
        let start = Instant::now();
        let mut schedule = SampleSchedule::new(ms(2000), start);
        for at in [0, 250, 2250, 4250] {
            assert_eq!(schedule.next_step(start + ms(at), None), NextStep::Sample);
            schedule.record_sample(start + ms(at + 3));
            assert!(matches!(schedule.next_step(start + ms(at + 4), None), NextStep::WaitUntil(_)));
        }
        assert_eq!(schedule.next_step(start, None), NextStep::WaitUntil(start + ms(6250)));
    }

    #[test]
    fn missed_samples_are_skipped() {
        let start = Instant::now();
        let mut schedule = SampleSchedule::new(ms(1000), start);
        schedule.record_sample(start);
        schedule.record_sample(start + ms(9000));
        assert_eq!(schedule.next_step(start + ms(9001), None), NextStep::WaitUntil(start + ms(10_000)));
    }

    #[test]
    fn at_most_two_samples_are_unacknowledged() {
        let start = Instant::now();
        let mut schedule = SampleSchedule::new(ms(250), start);
        for sample in 0..2 {
            schedule.record_sample(start + ms(250 * sample));
        }
        let later = start + ms(60_000);
        assert_eq!(schedule.next_step(later, Some(0)), NextStep::WaitForAcknowledgement);
        assert_eq!(schedule.next_step(later, Some(1)), NextStep::Sample);
        assert_eq!(schedule.next_step(later, Some(u64::MAX)), NextStep::Sample);
        assert_eq!(schedule.next_step(later, None), NextStep::Sample);
    }

    #[test]
    fn a_new_interval_counts_from_the_last_sample() {
        let start = Instant::now();
        let mut schedule = SampleSchedule::new(ms(60_000), start);
        schedule.record_sample(start);
        schedule.set_interval(ms(10_000), start);
        assert_eq!(schedule.next_step(start, None), NextStep::WaitUntil(start + ms(250)));
        schedule.record_sample(start + ms(250));
        schedule.set_interval(ms(1000), start + ms(300));
        assert_eq!(schedule.next_step(start, None), NextStep::WaitUntil(start + ms(1250)));
    }

    #[test]
    fn a_requested_sample_leaves_the_schedule_alone() {
        let start = Instant::now();
        let mut schedule = SampleSchedule::new(ms(1000), start);
        schedule.record_sample(start);
        schedule.record_sample(start + ms(250));
        schedule.sample_now();
        assert_eq!(schedule.next_step(start + ms(500), None), NextStep::Sample);
        schedule.record_sample(start + ms(501));
        assert_eq!(schedule.next_step(start + ms(502), None), NextStep::WaitUntil(start + ms(1250)));
    }

    #[test]
    fn a_shift_moves_all_later_samples() {
        let start = Instant::now();
        // After a sample at 250 ms, the next one is planned at 2250 ms.
        for (seconds, at, due) in [
            (0.0, 300, 2250),
            (0.5, 300, 2750),
            (-0.5, 300, 1750),
            (-1.6, 300, 650),
            // Less than 250 ms from now, and in the past.
            (-1.9, 300, 2350),
            (-1.0, 1500, 3250),
            (9.0, 300, 4250),
            (-9.0, 300, 2250),
            (f32::INFINITY, 300, 4250),
            (f32::NAN, 300, 2250),
        ] {
            let mut schedule = SampleSchedule::new(ms(2000), start);
            schedule.record_sample(start);
            schedule.shift(0.5, start);
            assert_eq!(schedule.next_step(start, None), NextStep::WaitUntil(start + ms(250)), "too early to shift");
            schedule.record_sample(start + ms(250));
            schedule.shift(seconds, start + ms(at));
            let NextStep::WaitUntil(next) = schedule.next_step(start + ms(at), None) else { panic!("{seconds}") };
            assert_eq!((next - start + Duration::from_micros(10)).as_millis(), due, "{seconds}");
            schedule.record_sample(next);
            assert_eq!(schedule.next_step(next, None), NextStep::WaitUntil(next + ms(2000)));
        }
    }

    #[test]
    fn intervals_are_clamped() {
        assert_eq!(clamp_interval(2.0), Some((ms(2000), false)));
        assert_eq!(clamp_interval(0.01), Some((MIN_INTERVAL, true)));
        assert_eq!(clamp_interval(1e30), Some((MAX_INTERVAL, true)));
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(clamp_interval(bad), None);
        }
    }
}
