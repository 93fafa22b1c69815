//! The state kept for one GPU, and its spin power.

use super::window::{Window, WindowPoint};
use crate::diagnosis::condition::Run;
use crate::wire::{DriverErrorKind, GpuHealth, GpuInfo, GpuReading, RecentPast, SafeText};
use std::collections::VecDeque;

/// How far above its context-idle power, as a share of the range from that to the limit, a GPU may draw and still count
/// as spinning. Fitted to reported hangs: H100 104 to 152 of 700 W, V100 44 of 250 W, A100-PCIe 69 of 300 W
/// (NVIDIA-NeMo/Speech#9291, NVIDIA/nccl#1550, #199, #968). Healthy work on the same H100 draws 500 to 690 W.
const SPIN_SHARE: f32 = 0.12;
/// The context-idle power as a share of the limit, until it is learned for this GPU. Boards of up to 350 W need more of it:
/// an idle context draws 57 of 150 W on an A10, 76 of 300 W on an A40, 84 of 350 W on an L40S.
const UNLEARNED_IDLE_SHARE: f32 = 0.20;
const UNLEARNED_IDLE_SHARE_OF_MEDIUM_BOARDS: f32 = 0.26;
const MEDIUM_BOARD_WATTS: f32 = 350.0;
/// The seconds at 0 % from which the context-idle power is learned.
const LEARN_SECONDS: f64 = 60.0;
/// The range of the learned power, as shares of the limit. A broken sensor must not move the spin power out of the range
/// of the reports.
const LEARNED_SHARES: std::ops::RangeInclusive<f32> = 0.12..=0.40;
/// Small boards need more of their limit for the context than for the work: a T4 hangs at 40 of 70 W. The smallest
/// context-idle power until it is learned, the highest that can be learned on any board, and the smallest margin of the
/// spin power above it, in watts.
const SMALL_BOARD_WATTS: (f32, f32, f32) = (25.0, 35.0, 20.0);
/// The highest spin power, as a share of the limit.
const MAX_SPIN_SHARE: f32 = 0.65;
/// A GPU does real work above this many times its spin power.
const COMPUTES_ABOVE: f32 = 1.15;
/// A limit below this share of the highest one that can be set is a cap by the administrator. The context-idle power of
/// a board does not depend on its cap.
const CAPPED_SHARE: f32 = 0.7;
/// The context-idle power is learned only in the performance states of a GPU at work: in P8 it draws less than a waiting
/// kernel does.
const WORKING_STATES: std::ops::RangeInclusive<u8> = 0..=3;
/// The utilisation in percent that drawing a desktop causes at most. In the performance states P4 to P15 the GPU runs no program
/// of CUDA.
const DESKTOP_PERCENT: u8 = 10;
/// Without a performance state, the SM clock as a share of its maximum from which the GPU counts as at work.
const WORKING_CLOCK_SHARE: f64 = 0.4;
/// The distance from its mean, in percentage points, within which the utilisation counts as level.
const LEVEL_POINTS: f32 = 5.0;
/// A kernel that waits moves no data and uses no tensor core: above these values a GPU works. NVLink and PCIe in bytes per
/// second, reads of the memory and use of the tensor cores in percent.
const WORKING_NVLINK: f64 = 200e6;
const WORKING_PCIE: f64 = 500e6;
const WORKING_DRAM_PERCENT: f32 = 5.0;
const WORKING_TENSOR_PERCENT: f32 = 2.0;
/// The counters of a GPU that only waits stay at or below these values: tensor cores and memory in percent, NVLink and PCIe
/// together in bytes per second. NCCL's waiting kernel occupies few SMs and polls its own memory.
const RESTING_TENSOR_PERCENT: f32 = 1.0;
const RESTING_DRAM_PERCENT: f32 = 2.0;
const RESTING_TRAFFIC: f64 = 100e6;
/// The utilisation of a kernel that waits, in percent, and how long it must be level, in seconds.
const FLAT_PERCENT: f32 = 95.0;
const FLAT_SECONDS: f64 = 600.0;
/// The change of used memory that shows that a process does something, in bytes.
const ALIVE_MEMORY_BYTES: u64 = 200 << 20;
/// The time constant for smoothing the clock under load, in seconds.
const CLOCK_SECONDS: f64 = 60.0;
/// The number of minutes of used memory that are kept.
const MEMORY_MINUTES: usize = 31;

/// The allocation of a GPU to a Slurm job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allocation {
    /// Its start; `None` if gpufleet did not see it.
    pub(crate) since: Option<f64>,
    /// The mean CPU utilisation of the host at its start, in percent.
    pub(crate) cpu_before: Option<f64>,
    /// The job, where it is known.
    job: Option<SafeText>,
    /// A process has held data on the GPU since the start.
    pub(crate) was_used: bool,
}

impl Allocation {
    /// Whether two GPUs were allocated together, as those of one job are.
    pub(crate) fn began_with(&self, other: &Self) -> bool {
        self.since.is_some() && (self.since, &self.job) == (other.since, &other.job)
    }

    /// Forgets the start: after a gap in the data nobody knows whether it is another allocation.
    pub(crate) fn forget_start(&mut self) {
        *self = Self { job: self.job.take(), ..Self::default() };
    }
}

/// The state kept for one GPU, and its current readings.
#[allow(clippy::struct_excessive_bools, reason = "independent properties")]
#[derive(Debug, Clone, Default)]
pub(crate) struct GpuTrack {
    /// See [`gpu_identity`].
    pub(crate) identity: SafeText,
    pub(crate) index: u32,
    pub(crate) is_instance: bool,
    pub(crate) is_mig_parent: bool,
    pub(crate) is_unified: bool,
    pub(crate) error: Option<DriverErrorKind>,
    /// The readings are current: there is no error and no blocked call.
    pub(crate) is_readable: bool,
    /// A process that held much memory on it has ended, alone or with its job.
    pub(crate) lost_process: bool,
    /// The memory in use while the driver listed no process, as that of a desktop. It is not updated once a process with much memory has
    /// ended.
    pub(crate) used_alone_bytes: Option<u64>,
    pub(crate) utilization: Option<u8>,
    pub(crate) memory_utilization: Option<u8>,
    pub(crate) power: Option<f32>,
    pub(crate) limit: Option<f32>,
    /// The highest power limit that can be set.
    max_limit: Option<f32>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) reserved_bytes: Option<u64>,
    pub(crate) total_bytes: Option<u64>,
    pub(crate) has_power_smoothing: bool,
    /// When its counters of data moved or of tensor cores last showed work.
    pub(crate) counted_work_at: Option<f64>,
    /// Whether a memory utilisation was ever reported.
    pub(crate) reports_memory_use: bool,
    pub(crate) window: Window,
    /// Busy below the spin power and without memory accesses.
    pub(crate) spin_run: Option<Run>,
    /// Busy below the spin power at any memory utilisation: an observation, not a finding.
    pub(crate) is_low_power: bool,
    /// At least 95 % busy and without memory accesses, at any power.
    pub(crate) still_run: Option<Run>,
    /// At least 90 % busy while its counters (GPM) show no tensor core, memory or link at work, at any power.
    pub(crate) counter_rest_run: Option<Run>,
    /// The share of SMs at work during that run, in percent; `None` if unknown.
    pub(crate) resting_sm_percent: Option<f32>,
    /// At work, at any level that does not change. The second value is the mean utilisation.
    pub(crate) level_run: Option<(Run, f32)>,
    /// Idle or nearly idle.
    pub(crate) idle_run: Option<Run>,
    /// When the GPU last showed activity other than spinning: more than 1 % busy, or a change of the used memory.
    pub(crate) alive_at: Option<f64>,
    /// The used memory at that time.
    alive_bytes: u64,
    /// The smoothed SM clock under load, as a share of its maximum.
    pub(crate) clock_share: Option<f64>,
    /// The highest smoothed clock under load, as a share of its maximum; 0 until it is known.
    pub(crate) best_clock_share: f32,
    /// The most lanes and the highest generation of the PCIe link under load.
    pub(crate) best_link: Option<(u8, u8)>,
    /// The learned context-idle power, in watts.
    pub(crate) idle_watts: Option<f32>,
    /// The seconds and joules of the current run at 0 % with a context.
    learning: (f64, f64),
    /// The used memory in MiB, one point per minute.
    pub(crate) memory: VecDeque<(f32, u32)>,
    thermal_counter: Option<f64>,
    brake_counter: Option<f64>,
    /// The number of uncorrectable errors at the first sample.
    pub(crate) ecc_baseline: Option<u64>,
    /// Its counters of errors; `None` if the driver has none.
    pub(crate) error_counters: Option<Box<ErrorCounters>>,
    /// The NVLinks that have been up, as a bit mask.
    pub(crate) links_seen: u64,
    /// Those that had been up before the last reboot.
    pub(crate) links_before_reboot: u64,
    /// Its allocation by Slurm; `None` if it is not allocated, or if that is unknown.
    pub(crate) allocation: Option<Allocation>,
    /// Since when Slurm has allocated it although nothing uses it.
    pub(crate) unused_since: Option<f64>,
    /// The performance state; 0 is the fastest.
    pub(crate) performance_state: Option<u8>,
    /// The number of samples in a row in which the GPU was lost or needed a reset.
    pub(crate) lost_samples: u32,
    /// Since when the driver answers questions about it with an unknown error (`NVML_ERROR_UNKNOWN`, `ERR!` in nvidia-smi).
    pub(crate) failing_since: Option<f64>,
}

/// The thresholds, in percent, of the conditions that a track evaluates per sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpinThresholds {
    pub(crate) utilization: f64,
    pub(crate) memory: f64,
    pub(crate) idle: f64,
}

impl GpuTrack {
    /// Records that Slurm has allocated the GPU, to `job` if that is known. `start` is the time and the mean CPU utilisation of the
    /// host in percent; `None` if an allocation that is new here may be older.
    pub(crate) fn follow_allocation(
        &mut self,
        job: Option<SafeText>,
        start: Option<(f64, Option<f64>)>,
        is_used: bool,
    ) {
        // Slurm may hand the GPU to the next job between two samples.
        let is_next = |allocation: &Allocation| job.is_some() && allocation.job.is_some() && allocation.job != job;
        if self.allocation.as_ref().is_some_and(is_next) {
            (self.allocation, self.unused_since) = (None, None);
        }
        let allocation = self.allocation.get_or_insert_with(|| {
            let (since, cpu_before) = start.map_or((None, None), |(t, cpu)| (Some(t), cpu));
            Allocation { since, cpu_before, ..Allocation::default() }
        });
        allocation.job = job.or(allocation.job.take());
        allocation.was_used |= is_used;
    }

    /// A new GPU. `idle_watts` is the context-idle power that an earlier run learned.
    pub(crate) fn new(identity: SafeText, idle_watts: Option<f32>) -> Self {
        Self { identity, idle_watts, ..Self::default() }
    }

    /// The spin power in watts; `None` without a power limit.
    pub(crate) fn spin_watts(&self) -> Option<f32> {
        Some(spin_power_watts(self.board_limit()?, self.learned_watts()).min(MAX_SPIN_SHARE * self.limit?))
    }

    /// Whether the GPU now draws clearly more than its spin power.
    pub(crate) fn draws_power_of_work(&self) -> bool {
        self.power.zip(self.spin_watts()).is_some_and(|(power, spin)| power > COMPUTES_ABOVE * spin)
    }

    /// The learned context-idle power in watts, limited to a plausible range.
    pub(crate) fn learned_watts(&self) -> Option<f32> {
        let limit = self.board_limit()?;
        let most = (LEARNED_SHARES.end() * limit).max(SMALL_BOARD_WATTS.1);
        self.idle_watts.map(|watts| watts.clamp(LEARNED_SHARES.start() * limit, most))
    }

    /// The context-idle power in watts, learned or assumed; `None` without a power limit.
    pub(crate) fn context_watts(&self) -> Option<f32> {
        self.learned_watts().or_else(|| self.board_limit().map(unlearned_idle_watts))
    }

    /// The power limit without a cap.
    fn board_limit(&self) -> Option<f32> {
        let limit = self.limit?;
        Some(self.max_limit.filter(|most| limit < CAPPED_SHARE * most).unwrap_or(limit))
    }

    /// Whether the GPU does no work now: it spins at low power or is idle.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.spin_run.is_some() || self.still_run.is_some() || self.idle_run.is_some()
    }

    /// Whether the GPU has been busy at one level and below the spin power for ten minutes, at any memory utilisation.
    pub(crate) fn is_flat_at_low_power(&self, t: f64) -> bool {
        self.is_low_power
            && self.level_run.is_some_and(|(run, percent)| percent >= FLAT_PERCENT && run.reaches(t, FLAT_SECONDS))
    }

    /// Updates the track with one sample.
    pub(crate) fn update(
        &mut self,
        info: &GpuInfo,
        reading: &GpuReading,
        health: Option<&GpuHealth>,
        has_context: bool,
        bounds: SpinThresholds,
        (t, dt): (f64, f64),
    ) {
        self.index = info.index;
        self.is_instance = info.mig_parent_uuid.is_some();
        self.is_mig_parent = info.mig_enabled == Some(true) && !self.is_instance;
        self.is_unified = info.unified_memory == Some(true);
        self.error = reading.error.as_ref().map(|error| error.kind);
        let is_lost = matches!(self.error, Some(DriverErrorKind::GpuLost | DriverErrorKind::ResetRequired));
        self.lost_samples = if is_lost { self.lost_samples.saturating_add(1) } else { 0 };
        let is_failing = self.error == Some(DriverErrorKind::Unknown) && !self.is_instance;
        self.failing_since = is_failing.then(|| self.failing_since.unwrap_or(t));
        self.is_readable = self.error.is_none() && reading.blocked_seconds.is_none();
        self.performance_state = reading.performance_state;
        self.utilization = computing_percent(reading);
        self.memory_utilization = reading.memory_utilization_percent;
        self.power = reading.power_mean_watts.or(reading.power_watts);
        self.limit = reading.power_limit_watts.or(info.power_limit_watts);
        self.max_limit = info.power_limit_max_watts;
        self.used_bytes = reading.memory_used_bytes;
        self.reserved_bytes = reading.memory_reserved_bytes;
        self.total_bytes = info.memory_total_bytes;
        if let Some(health) = health {
            self.update_health(health, t);
        }
        if !self.is_readable {
            return;
        }
        let thermal = slowdown_seconds(
            &mut self.thermal_counter,
            reading.thermal_violation_seconds,
            reading.clocks_event_reasons.map(|reasons| reasons & 0x40 != 0),
            dt,
        );
        let brake = slowdown_seconds(
            &mut self.brake_counter,
            reading.power_brake_seconds,
            reading.clocks_event_reasons.map(|reasons| reasons & 0x80 != 0),
            dt,
        );
        let point = WindowPoint {
            utilization: self.utilization,
            memory_utilization: self.memory_utilization,
            power: self.power,
            thermal,
            brake,
        };
        let counters = Counters::of(reading);
        if counters == Counters::Work {
            self.counted_work_at = Some(t);
        }
        let is_busy = self.utilization.map(|percent| f64::from(percent) >= bounds.utilization);
        match (is_busy, counters) {
            (Some(true), Counters::Rest) => {
                Run::extend(&mut self.counter_rest_run, t, dt);
                self.resting_sm_percent = reading.sm_activity_percent;
            }
            (Some(false), _) | (_, Counters::Work) => self.counter_rest_run = None,
            _ => {}
        }
        self.add_point(t, dt, point, bounds);
        let clock = clock_share(info, reading);
        if let (Some(share), true) = (clock, self.utilization >= Some(50)) {
            let weight = (dt / CLOCK_SECONDS).min(1.0);
            let smoothed = self.clock_share.map_or(share, |slow| slow + weight * (share - slow));
            self.clock_share = Some(smoothed);
            self.best_clock_share = self.best_clock_share.max(smoothed as f32);
        }
        if let (Some(width), Some(generation), true) =
            (reading.pcie_width, reading.pcie_generation, self.utilization >= Some(50))
        {
            let (lanes, speed) = self.best_link.unwrap_or((0, 0));
            self.best_link = Some((lanes.max(width), speed.max(generation)));
        }
        let is_at_work = match (reading.performance_state, clock) {
            (Some(state), _) => WORKING_STATES.contains(&state),
            (None, Some(share)) => share >= WORKING_CLOCK_SHARE,
            (None, None) => true,
        };
        self.learn_idle_power(has_context && is_at_work, dt);
        self.update_alive(t);
        self.record_memory(t);
    }

    /// Fills the window with the history that the driver kept before the first sample. `end` is the time of its last
    /// entry.
    pub(crate) fn backfill(&mut self, past: &RecentPast, end: f64, bounds: SpinThresholds) {
        let length = [past.utilization_percent.len(), past.memory_utilization_percent.len(), past.power_watts.len()];
        let length = length.into_iter().max().unwrap_or(0).min(600);
        // The lists end at the same time: a shorter one begins later.
        let at = |list_length: usize, back: usize| list_length.checked_sub(back);
        for back in (1..=length).rev() {
            let utilization = at(past.utilization_percent.len(), back).and_then(|i| past.utilization_percent[i]);
            let memory = at(past.memory_utilization_percent.len(), back);
            let power = at(past.power_watts.len(), back).and_then(|i| past.power_watts[i]);
            let memory_utilization = memory.and_then(|i| past.memory_utilization_percent[i]);
            let point = WindowPoint { utilization, memory_utilization, power, ..WindowPoint::default() };
            self.add_point(end - (back - 1) as f64, 1.0, point, bounds);
        }
    }

    fn add_point(&mut self, t: f64, dt: f64, point: WindowPoint, bounds: SpinThresholds) {
        let is_low = match (point.utilization, point.power, self.spin_watts()) {
            (Some(utilization), Some(power), Some(spin)) if !self.has_power_smoothing => {
                Some(f64::from(utilization) >= bounds.utilization && power < spin)
            }
            (Some(_), _, _) if self.has_power_smoothing => Some(false),
            _ => None,
        };
        self.is_low_power = is_low == Some(true);
        // A board that never reports memory utilisation is judged by its power alone.
        self.reports_memory_use |= point.memory_utilization.is_some();
        let is_memory_still = match point.memory_utilization {
            _ if self.counted_work_at == Some(t) => Some(false),
            Some(memory) => Some(f64::from(memory) <= bounds.memory),
            None if self.reports_memory_use => None,
            None => Some(true),
        };
        match point.utilization.zip(is_memory_still).map(|(percent, is_still)| percent >= 95 && is_still) {
            Some(true) => Run::extend(&mut self.still_run, t, dt),
            Some(false) => self.still_run = None,
            None => {}
        }
        if let Some(percent) = point.utilization.map(f32::from) {
            self.update_level(percent, bounds.idle, t, dt);
        }
        match (is_low, is_memory_still) {
            (Some(true), Some(true)) => {
                if self.spin_run.is_none() {
                    self.window.start_bucket(t);
                }
                Run::extend(&mut self.spin_run, t, dt);
            }
            (Some(false), _) | (_, Some(false)) => self.spin_run = None,
            _ => {}
        }
        match point.utilization.map(|percent| f64::from(percent) <= bounds.idle) {
            Some(true) => Run::extend(&mut self.idle_run, t, dt),
            Some(false) => self.idle_run = None,
            None => {}
        }
        self.window.push(t, dt, point);
    }

    fn update_level(&mut self, percent: f32, idle: f64, t: f64, dt: f64) {
        match &mut self.level_run {
            Some((run, mean)) if (percent - *mean).abs() <= LEVEL_POINTS => {
                run.covered += dt;
                // The mean settles within the first samples.
                *mean += (percent - *mean) * (dt / (run.covered + dt).clamp(dt, 300.0)) as f32;
            }
            _ => {
                self.level_run = (f64::from(percent) > idle).then_some((Run { since: t, covered: 0.0 }, percent));
            }
        }
    }

    fn learn_idle_power(&mut self, has_context: bool, dt: f64) {
        let (Some(0), Some(power), true) = (self.utilization, self.power, has_context && !self.has_power_smoothing)
        else {
            self.learning = (0.0, 0.0);
            return;
        };
        self.learning.0 += dt;
        self.learning.1 += f64::from(power) * dt;
        if self.learning.0 >= LEARN_SECONDS {
            let mean = (self.learning.1 / self.learning.0) as f32;
            self.idle_watts = Some(self.idle_watts.map_or(mean, |known| known.min(mean)));
            self.learning = (0.0, 0.0);
        }
    }

    fn update_alive(&mut self, t: f64) {
        let used = self.used_bytes.unwrap_or(0);
        let is_active = self.utilization.is_some_and(|percent| percent > 1) && self.spin_run.is_none();
        if is_active || self.alive_at.is_none() || used.abs_diff(self.alive_bytes) >= ALIVE_MEMORY_BYTES {
            // The first sample is not a sign of life, but the value to compare with.
            if is_active || self.alive_at.is_some() {
                self.alive_at = Some(t);
            } else {
                self.alive_at = Some(f64::NEG_INFINITY);
            }
            self.alive_bytes = used;
        }
    }

    fn record_memory(&mut self, t: f64) {
        let Some(used) = self.used_bytes else { return };
        if self.memory.back().is_none_or(|(last, _)| t - f64::from(*last) >= 59.5) {
            if self.memory.capacity() == 0 {
                self.memory.reserve_exact(MEMORY_MINUTES);
            }
            if self.memory.len() >= MEMORY_MINUTES {
                self.memory.pop_front();
            }
            self.memory.push_back((t as f32, (used >> 20) as u32));
        }
    }

    fn update_health(&mut self, health: &GpuHealth, t: f64) {
        self.has_power_smoothing = health.power_smoothing == Some(true);
        if let Some(total) = health.ecc_uncorrectable_volatile {
            // A counter that fell was reset with the driver.
            self.ecc_baseline = Some(self.ecc_baseline.map_or(total, |baseline| baseline.min(total)));
        }
        let faults =
            [health.nvlink_replays, health.nvlink_recoveries].into_iter().flatten().reduce(u64::saturating_add);
        let totals = [health.ecc_corrected_volatile, health.pcie_replays, health.nvlink_crc_errors, faults];
        if totals.iter().any(Option::is_some) {
            let counters = self.error_counters.get_or_insert_default();
            let histories = [
                &mut counters.ecc_corrected,
                &mut counters.pcie_replays,
                &mut counters.nvlink_crc_errors,
                &mut counters.nvlink_faults,
            ];
            for (history, total) in histories.into_iter().zip(totals) {
                if let Some(total) = total {
                    history.push(t, total);
                }
            }
        }
        if let Some(active) = health.nvlinks_active {
            self.links_seen |= active;
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.window.memory_bytes()
            + self.memory.capacity() * std::mem::size_of::<(f32, u32)>()
            + self.error_counters.as_ref().map_or(0, |counters| {
                let histories = [
                    &counters.ecc_corrected,
                    &counters.pcie_replays,
                    &counters.nvlink_crc_errors,
                    &counters.nvlink_faults,
                ];
                std::mem::size_of::<ErrorCounters>() + histories.map(CounterHistory::memory_bytes).iter().sum::<usize>()
            })
    }
}

/// Counters of errors of one GPU and its links.
#[derive(Debug, Clone, Default)]
pub(crate) struct ErrorCounters {
    /// The corrected memory errors since the driver was loaded.
    pub(crate) ecc_corrected: CounterHistory,
    /// The PCIe packets that were sent again.
    pub(crate) pcie_replays: CounterHistory,
    /// The packets with a CRC error on NVLink.
    pub(crate) nvlink_crc_errors: CounterHistory,
    /// The replays and recoveries of NVLinks.
    pub(crate) nvlink_faults: CounterHistory,
}

/// The last reading of a counter.
#[derive(Debug, Clone, Copy)]
struct LastCount {
    read_at: f32,
    /// Since when it has this value.
    since: f32,
    value: u64,
}

/// The rises of a slow counter over the last hour, to within a minute. Most counters never rise and need one value.
#[derive(Debug, Clone, Default)]
pub(crate) struct CounterHistory {
    /// The first value, and those that differ from the one before, with the time at which the counter was first seen there.
    values: VecDeque<(f32, u64)>,
    last: Option<LastCount>,
}

impl CounterHistory {
    /// The least seconds between two stored values, unless the counter rests after the second one.
    const STEP: f64 = 60.0;
    /// The number of stored values: more than an hour holds.
    const LENGTH: usize = 128;
    /// The counter is believed to have its last value for this long without a reading, in seconds.
    const READING_AGE: f64 = 300.0;

    fn push(&mut self, t: f64, value: u64) {
        // A counter that fell was reset with the driver. Nobody knows when it rose within a gap in the data.
        let starts_anew = |last: LastCount| value < last.value || t - f64::from(last.read_at) > Self::READING_AGE;
        if self.last.is_some_and(starts_anew) {
            self.values.clear();
        }
        // The counter may be read less often than this is called.
        let since = self.last.filter(|last| last.value == value).map_or(t as f32, |last| last.since);
        self.last = Some(LastCount { read_at: t as f32, since, value });
        let is_new = |&(stored_at, stored): &(f32, u64)| {
            let is_due = f64::from(since - stored_at) > Self::STEP - 1.0 || t - f64::from(since) >= Self::STEP;
            value != stored && is_due
        };
        if self.values.back().is_none_or(is_new) {
            if self.values.len() >= Self::LENGTH {
                self.values.pop_front();
            }
            self.values.push_back((since, value));
        }
    }

    fn memory_bytes(&self) -> usize {
        self.values.capacity() * std::mem::size_of::<(f32, u64)>()
    }

    /// Returns the rise within the `window` seconds before the last reading, or before `t` if that is far later, and the seconds in
    /// which it was observed; `None` before the first reading.
    pub(crate) fn rise(&self, t: f64, window: f64) -> Option<(u64, f64)> {
        let LastCount { read_at, value: last, .. } = self.last?;
        let began_at = f64::from(self.values.front()?.0);
        let begin = (f64::from(read_at).max(t - Self::READING_AGE) - window).max(began_at);
        let next = self.values.iter().position(|(at, _)| f64::from(*at) > begin).unwrap_or(self.values.len());
        let (before_at, before) = self.values.get(next.saturating_sub(1))?;
        // The counter rose to the next value since the one before, or, after a longer rest, within the last minute.
        let (next_at, next) = self.values.get(next).copied().unwrap_or((read_at, last));
        let between = f64::from(next_at - before_at);
        let rising = if between > 2.0 * Self::STEP { Self::STEP } else { between.max(1.0) };
        let share = (1.0 + (begin - f64::from(next_at)) / rising).clamp(0.0, 1.0);
        let at_begin = before.saturating_add((share * next.saturating_sub(*before) as f64).round() as u64);
        Some((last.saturating_sub(at_begin), (f64::from(read_at) - begin).max(0.0)))
    }
}

/// The rise of a counter within the last `dt` seconds. Without a counter, all of `dt` if the clocks event reason is
/// set.
fn slowdown_seconds(counter: &mut Option<f64>, now: Option<f64>, is_set: Option<bool>, dt: f64) -> Option<f32> {
    if let Some(now) = now {
        let before = counter.replace(now);
        // A counter that fell was reset, and the first value has nothing to compare with.
        let rise = before.map(|before| (now - before).clamp(0.0, dt));
        return rise.map(|rise| rise as f32);
    }
    is_set.map(|is_set| if is_set { dt as f32 } else { 0.0 })
}

/// The activity according to the counters of data moved and of tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counters {
    /// Data over NVLink or PCIe, reads of the memory, or use of the tensor cores.
    Work,
    /// None of these. Needs GPM.
    Rest,
    /// Values in between, or too few counters.
    Unclear,
}

impl Counters {
    fn of(reading: &GpuReading) -> Self {
        let rates = [
            (reading.nvlink_receive_bytes_per_second, WORKING_NVLINK),
            (reading.nvlink_transmit_bytes_per_second, WORKING_NVLINK),
            (reading.pcie_receive_bytes_per_second, WORKING_PCIE),
            (reading.pcie_transmit_bytes_per_second, WORKING_PCIE),
        ];
        let (dram, tensor) = (reading.dram_bandwidth_percent, reading.tensor_activity_percent);
        let moves = rates.into_iter().any(|(rate, least)| rate.is_some_and(|rate| rate >= least));
        if moves || dram >= Some(WORKING_DRAM_PERCENT) || tensor >= Some(WORKING_TENSOR_PERCENT) {
            return Self::Work;
        }
        let traffic: f64 = rates.into_iter().filter_map(|(rate, _)| rate).sum();
        let is_low = |value: Option<f32>, most: f32| value.is_some_and(|value| value <= most);
        if is_low(dram, RESTING_DRAM_PERCENT) && is_low(tensor, RESTING_TENSOR_PERCENT) && traffic <= RESTING_TRAFFIC {
            Self::Rest
        } else {
            Self::Unclear
        }
    }
}

/// The utilisation in percent, without that of a desktop.
fn computing_percent(reading: &GpuReading) -> Option<u8> {
    let draws_only = reading.performance_state.is_some_and(|state| !WORKING_STATES.contains(&state));
    reading.utilization_percent.map(|percent| if draws_only && percent <= DESKTOP_PERCENT { 0 } else { percent })
}

/// The SM clock as a share of its maximum.
fn clock_share(info: &GpuInfo, reading: &GpuReading) -> Option<f64> {
    let most = info.clock_sm_max_mhz.filter(|most| *most > 0)?;
    Some(f64::from(reading.clock_sm_mhz?) / f64::from(most))
}

/// The spin power in watts: `Pspin = I + max(0.12 (L - I), 20 W)`, with the power limit L and the context-idle power I. A
/// GPU that reads busy below it does almost no work.
fn spin_power_watts(limit_watts: f32, idle_watts: Option<f32>) -> f32 {
    let idle = idle_watts.unwrap_or_else(|| unlearned_idle_watts(limit_watts));
    idle + (SPIN_SHARE * (limit_watts - idle)).max(SMALL_BOARD_WATTS.2)
}

fn unlearned_idle_watts(limit_watts: f32) -> f32 {
    let share =
        if limit_watts <= MEDIUM_BOARD_WATTS { UNLEARNED_IDLE_SHARE_OF_MEDIUM_BOARDS } else { UNLEARNED_IDLE_SHARE };
    (share * limit_watts).max(SMALL_BOARD_WATTS.0)
}

/// The identity of a GPU across samples: its UUID, otherwise its index.
pub(crate) fn gpu_identity(info: &GpuInfo) -> SafeText {
    info.uuid.clone().unwrap_or_else(|| SafeText::from(format!("index {}", info.index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_hangs_are_below_the_spin_power_and_healthy_work_is_above() {
        for (model, watts, limit) in
            [("H100", 104.0, 700.0), ("H100", 152.0, 700.0), ("V100-PCIe", 44.0, 250.0), ("A100-PCIe", 69.0, 300.0)]
        {
            assert!(watts < spin_power_watts(limit, None), "{model}");
        }
        assert!(560.0 > spin_power_watts(700.0, None), "H100 at work");
        assert!(250.0 > spin_power_watts(700.0, None), "FSDP, bound by communication");
    }

    #[test]
    fn hangs_of_small_and_capped_boards_are_below_the_spin_power() {
        assert!(40.0 < spin_power_watts(70.0, None) && 62.0 > spin_power_watts(70.0, None), "T4");
        let track = |limit, most| GpuTrack { limit: Some(limit), max_limit: Some(most), ..GpuTrack::default() };
        assert!(152.0 < track(350.0, 700.0).spin_watts().unwrap(), "an H100 that is capped at half of its power");
        assert!(210.0 > track(350.0, 700.0).spin_watts().unwrap());
        let rtx_4090 = track(450.0, 600.0).spin_watts().unwrap();
        assert!((rtx_4090 - 133.2).abs() < 0.1, "the default limit is below the maximum: {rtx_4090}");
    }

    #[test]
    fn idle_power_is_learned_only_in_working_performance_states() {
        let info = GpuInfo { power_limit_watts: Some(300.0), clock_sm_max_mhz: Some(2000), ..GpuInfo::default() };
        let bounds = SpinThresholds { utilization: 90.0, memory: 3.0, idle: 5.0 };
        let learned = |state, mhz| {
            let reading = GpuReading {
                utilization_percent: Some(0),
                power_watts: Some(52.0),
                performance_state: state,
                clock_sm_mhz: mhz,
                ..GpuReading::default()
            };
            let mut track = GpuTrack::new("GPU-0".into(), None);
            for second in 0..100 {
                track.update(&info, &reading, None, true, bounds, (f64::from(second), 1.0));
            }
            track.learned_watts()
        };
        assert_eq!(learned(Some(2), None), Some(52.0));
        assert_eq!(learned(Some(8), None), None);
        assert_eq!((learned(None, Some(210)), learned(None, Some(1800))), (None, Some(52.0)));
        assert_eq!(learned(None, None), Some(52.0), "old drivers report neither");
    }

    #[test]
    fn activity_and_changes_of_memory_are_signs_of_life() {
        let info = GpuInfo { power_limit_watts: Some(300.0), ..GpuInfo::default() };
        let bounds = SpinThresholds { utilization: 90.0, memory: 3.0, idle: 5.0 };
        let mut track = GpuTrack::new("GPU-0".into(), None);
        let mut alive_at = |t, utilization, mib: u64| {
            let reading = GpuReading {
                utilization_percent: Some(utilization),
                memory_used_bytes: Some(mib << 20),
                ..GpuReading::default()
            };
            track.update(&info, &reading, None, true, bounds, (t, 1.0));
            track.alive_at.filter(|at| at.is_finite())
        };
        assert_eq!(alive_at(1.0, 0, 10_000), None);
        assert_eq!(alive_at(2.0, 1, 10_100), None);
        assert_eq!(alive_at(3.0, 0, 10_200), Some(3.0));
        assert_eq!(alive_at(4.0, 0, 10_100), Some(3.0));
        assert_eq!(alive_at(5.0, 4, 10_100), Some(5.0));
    }

    #[test]
    fn a_desktop_on_a_gpu_at_low_clocks_is_no_work() {
        let rests = |percent: u8, state: Option<u8>| {
            let reading =
                GpuReading { utilization_percent: Some(percent), performance_state: state, ..GpuReading::default() };
            updated(&reading, None).utilization == Some(0)
        };
        assert_eq!([Some(8), Some(5), Some(3), None].map(|state| rests(7, state)), [true, true, false, false]);
        assert_eq!([10, 11].map(|percent| rests(percent, Some(8))), [true, false]);
    }

    #[test]
    fn the_spin_power_follows_the_learned_idle_power() {
        assert!((spin_power_watts(700.0, None) - 207.2).abs() < 0.01);
        assert!((spin_power_watts(700.0, Some(122.0)) - 191.36).abs() < 0.01);
    }

    fn updated(reading: &GpuReading, idle_watts: Option<f32>) -> GpuTrack {
        let mut track = GpuTrack::new("GPU-0".into(), idle_watts);
        let info = GpuInfo { power_limit_watts: Some(700.0), ..GpuInfo::default() };
        let bounds = SpinThresholds { utilization: 90.0, memory: 3.0, idle: 5.0 };
        track.update(&info, reading, None, true, bounds, (10.0, 10.0));
        track
    }

    #[test]
    fn a_counter_history_gives_the_rise_within_an_hour() {
        let mut history = CounterHistory::default();
        assert_eq!(history.rise(0.0, 3600.0), None);
        for minute in 0..180 {
            history.push(f64::from(minute) * 60.0, 1000 + u64::from(minute as u32));
        }
        let (rise, seconds) = history.rise(179.0 * 60.0, 3600.0).unwrap();
        assert_eq!((rise, seconds), (60, 3600.0));
        assert!(history.values.len() <= CounterHistory::LENGTH);
        assert_eq!(
            history.rise(190.0 * 60.0, 3600.0).map(|(rise, _)| rise),
            Some(54),
            "without readings for eleven minutes"
        );
        history.push(180.0 * 60.0, 3);
        assert_eq!(history.rise(180.0 * 60.0, 3600.0), Some((0, 0.0)));
    }

    #[test]
    fn a_rise_within_a_gap_of_the_data_does_not_count() {
        let mut history = CounterHistory::default();
        (0..60).for_each(|minute| history.push(f64::from(minute) * 60.0, 7));
        history.push(40_000.0, 507);
        assert_eq!(history.rise(40_000.0, 600.0), Some((0, 0.0)));
        history.push(40_600.0, 508);
        assert_eq!(history.rise(40_600.0, 600.0), Some((0, 0.0)), "ten minutes are a gap, too");
    }

    #[test]
    fn the_rise_of_a_steady_counter_does_not_depend_on_the_moment() {
        // The counter is read every ten samples, and pushed with each of them or with its readings.
        for every in [1, 10] {
            let mut history = CounterHistory::default();
            for step in 0..800 {
                let t = 3.0 * f64::from(step) + 0.06;
                let read_at = f64::from(step / 10 * 30);
                if step % every == 0 {
                    history.push(t, 12 + (7.6 / 60.0 * (read_at - 600.0).max(0.0)) as u64);
                }
                if t > 1300.0 {
                    let (rise, seconds) = history.rise(t, 600.0).unwrap();
                    assert!((70..=78).contains(&rise) && (seconds - 600.0).abs() < 0.1, "{rise} in {seconds} s at {t}");
                }
            }
        }
    }

    #[test]
    fn an_implausible_learned_power_is_limited() {
        let reading = GpuReading::default();
        assert_eq!(updated(&reading, Some(900.0)).learned_watts(), Some(280.0));
        assert_eq!(updated(&reading, Some(1.0)).learned_watts(), Some(84.0));
    }

    #[test]
    fn low_power_prefers_mean_power_and_the_current_limit() {
        let reading = GpuReading {
            utilization_percent: Some(100),
            power_watts: Some(104.0),
            power_mean_watts: Some(500.0),
            ..GpuReading::default()
        };
        assert!(!updated(&reading, None).is_low_power);
        let lowered = GpuReading { power_mean_watts: Some(110.0), power_limit_watts: Some(300.0), ..reading };
        assert!(!updated(&lowered, None).is_low_power);
        assert!(updated(&lowered, Some(95.0)).is_low_power);
    }

    #[test]
    fn low_power_needs_a_busy_gpu_and_all_readings() {
        let reading =
            |utilization_percent, power_watts| GpuReading { utilization_percent, power_watts, ..GpuReading::default() };
        assert!(updated(&reading(Some(90), Some(104.0)), None).is_low_power);
        assert!(!updated(&reading(Some(89), Some(104.0)), None).is_low_power);
        assert!(!updated(&reading(Some(100), None), None).is_low_power, "no power");
        assert!(!updated(&reading(None, Some(50.0)), None).is_low_power, "a MIG parent");
    }
}
