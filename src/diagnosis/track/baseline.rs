//! How a job used one GPU in the past, with which a hang or a stall is compared.

use crate::diagnosis::saved_state::SavedGpuUsage;
use crate::wire::SafeText;

/// How long a utilisation must have been observed before it is compared with the present, in seconds.
const KNOWN_SECONDS: f64 = 300.0;
/// The number of minutes in a row with far less use than before after which they are the new normal.
pub(super) const BASELINE_LOW_MINUTES: u32 = 360;
/// The seconds of healthy work after which a GPU without memory accesses no longer counts as healthy.
pub(super) const STILL_HISTORY_SECONDS: f64 = 300.0;
/// The power below which a board without a limit does no healthy work, divided by its median at work.
const FAR_BELOW_SHARE: f32 = 0.75;
/// Stands for the power limit of a board that reports none (GB10, Jetson), to divide its power into bins, in watts.
pub(super) const UNKNOWN_LIMIT_WATTS: f32 = 200.0;

/// The number of power bins, each a fortieth of the limit wide. The last one holds everything above.
const POWER_BINS: usize = 42;
const POWER_STEP: f32 = 1.0 / 40.0;
/// The number of utilisation bins, and their width in percentage points. The last one holds 100 %.
const UTILIZATION_BINS: usize = 26;
const UTILIZATION_STEP: usize = 4;

/// The least number of phases of low use after which a job counts as one that works in phases, and their share of all minutes.
const LEAST_PHASES: u8 = 3;
const PHASES_SHARE: f32 = 0.2;
/// A longer phase was a stall, in minutes.
const MAX_PHASE_MINUTES: u32 = 15;
/// Older minutes lose weight when so many are counted.
const COUNTED_MINUTES: f32 = 240.0;

/// The maximum number of seconds restored from an earlier run.
const MAX_RESTORED_SECONDS: f64 = 3600.0;

/// The earlier phases of a job with far less use of its GPUs, after each of which it worked as usual again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Phases {
    count: u8,
    /// The minutes of these phases, and those as usual.
    low: f32,
    usual: f32,
    /// The sum over the minutes of these phases of the utilisation divided by its median.
    used: f32,
}

impl Phases {
    /// Adds a minute as usual after a phase.
    pub(super) fn add(&mut self, phase: Phase) {
        if (1..=MAX_PHASE_MINUTES).contains(&phase.minutes) {
            self.count = self.count.saturating_add(1);
            self.low += phase.minutes as f32;
            self.used += phase.used;
        }
        self.usual += 1.0;
        if self.low + self.usual > COUNTED_MINUTES {
            (self.low, self.usual, self.used) = (self.low / 2.0, self.usual / 2.0, self.used / 2.0);
        }
    }

    /// Whether the job works in phases.
    pub(super) fn are_usual(&self) -> bool {
        self.count >= LEAST_PHASES && self.low >= PHASES_SHARE * (self.low + self.usual)
    }

    /// The mean utilisation divided by the median one, which leaves out the minutes of low use; 1 if the job does not work in phases.
    pub(super) fn used_share(&self) -> f32 {
        if self.are_usual() { (self.usual + self.used) / (self.low + self.usual) } else { 1.0 }
    }
}

/// A phase of low use that has not ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Phase {
    pub(super) minutes: u32,
    /// As [`Phases::used`].
    pub(super) used: f32,
}

/// Which findings that compare a job with its past last. Such a finding must not become the past with which it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Comparison {
    None,
    /// Other jobs or an overloaded host may slow the job down: its slow minutes do not enter the baseline.
    Slowed,
    /// A finding is about the job: its phases and, once they are known, the utilisation and the power at work stay as they are.
    Job,
}

/// How a job used one GPU before the present windows: histograms of seconds by power and by utilisation, for medians.
/// The counts are halved when one is full, so that recent behaviour outweighs old behaviour.
#[derive(Debug, Clone)]
pub(crate) struct Baseline {
    power: [u16; POWER_BINS],
    utilization: [u16; UTILIZATION_BINS],
    /// The seconds with the utilisation of `job_stalled.active_utilization` or more.
    pub(crate) active_seconds: f32,
    /// The power limit, in watts.
    limit: f32,
    /// The sum of memory utilisation times seconds at healthy work, and the seconds.
    memory: (f32, f32),
    /// The seconds in which the counters (GPM) of the GPU showed work.
    pub(crate) counted_seconds: f32,
    /// How long it accessed its memory for 5 % of the time or more, in seconds.
    pub(crate) accessed_seconds: f32,
    /// The seconds in a row far below the median power, which do not count as healthy work.
    low_seconds: f32,
}

impl Default for Baseline {
    fn default() -> Self {
        Self {
            power: [0; POWER_BINS],
            utilization: [0; UTILIZATION_BINS],
            active_seconds: 0.0,
            limit: 0.0,
            memory: (0.0, 0.0),
            counted_seconds: 0.0,
            accessed_seconds: 0.0,
            low_seconds: 0.0,
        }
    }
}

impl Baseline {
    /// Adds `seconds` of healthy work at this power.
    pub(crate) fn add_power(&mut self, watts: f32, limit: f32, seconds: f32) {
        if limit <= 0.0 || !watts.is_finite() {
            return;
        }
        self.limit = limit;
        let bin = ((watts / limit / POWER_STEP) as usize).min(POWER_BINS - 1);
        add(&mut self.power, bin, seconds);
    }

    /// Whether `seconds` at this power must not become the past with which a hang is compared: on a board without a limit, a
    /// hang differs from work by its power alone, and on others by that and by a memory at rest. After six hours without
    /// a finding about it, the low power is the new normal.
    pub(super) fn is_far_below(&mut self, watts: f32, seconds: f32) -> bool {
        let median = self.median_power().filter(|_| self.power_seconds() >= STILL_HISTORY_SECONDS);
        let is_low = median.is_some_and(|median| watts < FAR_BELOW_SHARE * median);
        self.low_seconds = if is_low { self.low_seconds + seconds } else { 0.0 };
        is_low && self.low_seconds <= 60.0 * BASELINE_LOW_MINUTES as f32
    }

    /// Adds `seconds` of healthy work at this memory utilisation.
    pub(crate) fn add_memory_utilization(&mut self, percent: Option<u8>, seconds: f64) {
        let Some(percent) = percent else { return };
        if self.memory.1 > MAX_RESTORED_SECONDS as f32 {
            self.memory = (self.memory.0 / 2.0, self.memory.1 / 2.0);
        }
        self.memory.0 += f32::from(percent) * seconds as f32;
        self.memory.1 += seconds as f32;
    }

    /// The mean memory utilisation at healthy work in percent; `None` if it is unknown.
    pub(crate) fn mean_memory_utilization(&self) -> Option<f32> {
        (self.memory.1 >= 60.0).then(|| self.memory.0 / self.memory.1)
    }

    /// Adds `seconds` with this mean utilisation.
    pub(crate) fn add_utilization(&mut self, percent: f32, seconds: f32) {
        add(&mut self.utilization, (percent.max(0.0) as usize / UTILIZATION_STEP).min(UTILIZATION_BINS - 1), seconds);
    }

    /// The values to save for the next run; `None` if the job has not worked yet.
    pub(crate) fn to_saved(&self, gpu: &SafeText) -> Option<SavedGpuUsage> {
        let saved = SavedGpuUsage {
            gpu: gpu.clone(),
            healthy_watts: self.median_power(),
            limit_watts: self.limit,
            healthy_seconds: self.power_seconds(),
            utilization_percent: self.median_utilization(),
            utilization_seconds: self.utilization_seconds(),
            active_seconds: self.active_seconds,
        };
        (saved.active_seconds > 0.0 || saved.utilization_seconds > 0.0).then_some(saved)
    }

    /// Restores the values of an earlier run. Only the medians were saved, so they count for at most an hour.
    pub(crate) fn restore(&mut self, saved: &SavedGpuUsage) {
        let seconds =
            |seconds: f64| if seconds.is_finite() { seconds.clamp(0.0, MAX_RESTORED_SECONDS) as f32 } else { 0.0 };
        // A damaged file may contain any number; an infinite limit could not be saved again.
        let is_plausible = |watts: &f32| (0.0..1e6).contains(watts);
        if let Some(watts) = saved.healthy_watts.filter(is_plausible).filter(|_| is_plausible(&saved.limit_watts)) {
            self.add_power(watts, saved.limit_watts, seconds(saved.healthy_seconds));
        }
        if let Some(percent) = saved.utilization_percent.filter(|percent| (0.0..=100.0).contains(percent)) {
            self.add_utilization(percent, seconds(saved.utilization_seconds));
        }
        self.active_seconds += seconds(f64::from(saved.active_seconds));
    }

    /// The seconds of healthy work.
    pub(crate) fn power_seconds(&self) -> f64 {
        self.power.iter().map(|count| f64::from(*count)).sum()
    }

    /// The median power of healthy work in watts, to within a fortieth of the limit.
    pub(crate) fn median_power(&self) -> Option<f32> {
        median(&self.power).map(|bin| (bin as f32 + 0.5) * POWER_STEP * self.limit)
    }

    /// The median utilisation, in percent.
    pub(crate) fn median_utilization(&self) -> Option<f32> {
        median(&self.utilization).map(|bin| (bin * UTILIZATION_STEP) as f32)
    }

    /// The median utilisation, in percent, if it was observed for long enough to be compared with the present.
    pub(crate) fn known_utilization(&self) -> Option<f32> {
        self.median_utilization().filter(|_| self.utilization_seconds() >= KNOWN_SECONDS)
    }

    /// The seconds with a known utilisation.
    pub(crate) fn utilization_seconds(&self) -> f64 {
        self.utilization.iter().map(|count| f64::from(*count)).sum()
    }
}

fn add(bins: &mut [u16], bin: usize, seconds: f32) {
    let count = f32::from(bins[bin]) + seconds.max(0.0);
    if count >= f32::from(u16::MAX) {
        for count in bins.iter_mut() {
            *count /= 2;
        }
    }
    bins[bin] = bins[bin].saturating_add(seconds.max(0.0).round() as u16);
}

fn median(bins: &[u16]) -> Option<usize> {
    let total: u32 = bins.iter().map(|count| u32::from(*count)).sum();
    let mut seen = 0;
    bins.iter().position(|count| {
        seen += u32::from(*count);
        total > 0 && seen * 2 >= total
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_survive_pauses_and_full_counters() {
        let mut baseline = Baseline::default();
        assert_eq!((baseline.median_power(), baseline.median_utilization()), (None, None));
        for _ in 0..100_000 {
            baseline.add_power(560.0, 700.0, 10.0);
            baseline.add_power(200.0, 700.0, 2.0);
            baseline.add_utilization(97.0, 10.0);
            baseline.add_utilization(0.0, 2.0);
        }
        assert!((baseline.median_power().unwrap() - 560.0).abs() < 700.0 / 40.0);
        assert_eq!(baseline.median_utilization(), Some(96.0));
        assert!(baseline.power_seconds() > 30_000.0);
    }

    #[test]
    fn medians_survive_a_restart_and_absurd_ones_are_dropped() {
        let mut baseline = Baseline::default();
        assert_eq!(baseline.to_saved(&"GPU-0".into()), None);
        for _ in 0..2000 {
            baseline.add_power(560.0, 700.0, 10.0);
            baseline.add_utilization(97.0, 10.0);
            baseline.active_seconds += 10.0;
        }
        let kept = baseline.to_saved(&"GPU-0".into()).expect("the job has worked");
        let mut next = Baseline::default();
        next.restore(&kept);
        assert_eq!(
            (next.median_power(), next.median_utilization()),
            (baseline.median_power(), baseline.median_utilization())
        );
        assert!((next.power_seconds() - MAX_RESTORED_SECONDS).abs() < 1.0 && next.active_seconds >= 3600.0);
        let mut absurd = Baseline::default();
        for watts in [f32::NAN, f32::INFINITY, -1.0] {
            let seconds = f64::from(watts);
            absurd.restore(&SavedGpuUsage {
                healthy_watts: Some(watts),
                limit_watts: watts,
                healthy_seconds: seconds,
                utilization_percent: Some(watts),
                utilization_seconds: seconds,
                active_seconds: watts,
                ..kept.clone()
            });
        }
        assert_eq!((absurd.median_power(), absurd.median_utilization()), (None, None));
    }

    #[test]
    fn absurd_values_are_ignored() {
        let mut baseline = Baseline::default();
        baseline.add_power(f32::NAN, 700.0, 10.0);
        baseline.add_power(5.0, 0.0, 10.0);
        baseline.add_power(1e30, 700.0, 10.0);
        assert!((baseline.power_seconds() - 10.0).abs() < 1e-9);
        baseline.add_utilization(f32::NAN, 1.0);
        assert_eq!(baseline.median_utilization(), Some(0.0));
    }
}
