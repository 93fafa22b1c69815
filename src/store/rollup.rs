//! Rollups: the samples of a GPU or host as one row per minute, and rows as quarter-hours and days. Pure.

use serde::Serialize;

/// The state of a GPU in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryState {
    /// It is held and computes.
    Busy,
    /// A process or an allocation holds it, and it computes nothing.
    IdleHeld,
    /// Nobody holds it.
    Free,
    /// The driver reports an error, or its job hangs.
    Faulty,
    /// There are no current readings.
    Unknown,
}

/// Seconds in each state. Unknown seconds are those of the period that no sample covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StateSeconds {
    /// Held and computing.
    pub busy: u64,
    /// Held without computing.
    pub idle_held: u64,
    /// Free.
    pub free: u64,
    /// Faulty or hung.
    pub faulty: u64,
    /// Without readings.
    pub unknown: u64,
}

impl StateSeconds {
    /// The seconds with a known state.
    pub fn known(self) -> u64 {
        self.busy + self.idle_held + self.free + self.faulty
    }
}

/// The readings of a GPU that hold for a part of a minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuSample {
    /// The state.
    pub state: HistoryState,
    /// Percent of the time in which a kernel ran.
    pub utilization_percent: Option<f64>,
    /// Memory in use in bytes.
    pub memory_bytes: Option<u64>,
    /// Power in watts.
    pub power_watts: Option<f64>,
    /// Temperature in degrees Celsius.
    pub temperature_celsius: Option<i64>,
    /// Percent of the time in which SMs were active (GPM).
    pub sm_activity_percent: Option<f64>,
    /// The clocks are reduced because of heat, power brake or a hardware slowdown.
    pub is_throttled: bool,
}

/// One row of the history of a GPU: a minute, a quarter-hour or a day.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuRow {
    /// The number of samples.
    pub samples: u64,
    /// Mean utilization in tenths of a percent.
    pub utilization_permille: Option<u64>,
    /// Highest utilization in percent.
    pub utilization_max_percent: Option<u64>,
    /// Mean memory in use in MiB.
    pub memory_mib: Option<u64>,
    /// Highest memory in use in MiB.
    pub memory_max_mib: Option<u64>,
    /// Energy in joules. Divided by the known seconds, it is the mean power in watts.
    pub energy_joules: Option<u64>,
    /// Highest temperature in degrees Celsius.
    pub temperature_max_celsius: Option<i64>,
    /// Mean SM activity in tenths of a percent.
    pub sm_activity_permille: Option<u64>,
    /// Seconds in each state.
    pub states: StateSeconds,
    /// Seconds with reduced clocks.
    pub throttled_seconds: u64,
}

/// A mean weighted by time.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    seconds: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, seconds: f64) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.sum += value * seconds;
            self.seconds += seconds;
        }
    }

    fn value(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.sum / self.seconds)
    }

    fn rounded(self, factor: f64) -> Option<u64> {
        self.value().map(|value| (value * factor).round().max(0.0) as u64)
    }
}

/// Collects the samples of one GPU in one minute.
#[derive(Debug, Clone, Default)]
pub struct GpuAccumulator {
    samples: u64,
    utilization: Mean,
    utilization_max: Option<f64>,
    memory: Mean,
    memory_max: Option<u64>,
    power: Mean,
    temperature_max: Option<i64>,
    sm_activity: Mean,
    /// Seconds in busy, idle-held, free and faulty.
    states: [f64; 4],
    throttled: f64,
}

impl GpuAccumulator {
    /// Adds readings that held for this many seconds of the minute.
    pub fn add(&mut self, sample: &GpuSample, seconds: f64) {
        let index = match sample.state {
            HistoryState::Busy => 0,
            HistoryState::IdleHeld => 1,
            HistoryState::Free => 2,
            HistoryState::Faulty => 3,
            HistoryState::Unknown => return,
        };
        self.samples += 1;
        self.states[index] += seconds;
        self.utilization.add(sample.utilization_percent, seconds);
        self.utilization_max = larger(self.utilization_max, sample.utilization_percent);
        self.memory.add(sample.memory_bytes.map(|bytes| bytes as f64), seconds);
        self.memory_max = self.memory_max.max(sample.memory_bytes);
        self.power.add(sample.power_watts, seconds);
        self.temperature_max = self.temperature_max.max(sample.temperature_celsius);
        self.sm_activity.add(sample.sm_activity_percent, seconds);
        if sample.is_throttled {
            self.throttled += seconds;
        }
    }

    /// Returns the row of a period of this many seconds. Seconds that no sample covers are unknown.
    pub fn row(&self, period_seconds: u64) -> GpuRow {
        // Rounding must not make the parts larger than the period.
        let mut left = period_seconds;
        let mut part = |seconds: f64| {
            let seconds = (seconds.round().max(0.0) as u64).min(left);
            left -= seconds;
            seconds
        };
        let [busy, idle_held, free, faulty] = self.states.map(&mut part);
        let states = StateSeconds { busy, idle_held, free, faulty, unknown: left };
        GpuRow {
            samples: self.samples,
            utilization_permille: self.utilization.rounded(10.0),
            utilization_max_percent: self.utilization_max.map(|percent| percent.round().max(0.0) as u64),
            memory_mib: self.memory.rounded(1.0 / MIB),
            memory_max_mib: self.memory_max.map(|bytes| (bytes as f64 / MIB).round() as u64),
            energy_joules: self.power.value().map(|watts| (watts * states.known() as f64).round().max(0.0) as u64),
            temperature_max_celsius: self.temperature_max,
            sm_activity_permille: self.sm_activity.rounded(10.0),
            states,
            throttled_seconds: (self.throttled.round() as u64).min(states.known()),
        }
    }
}

const MIB: f64 = 1_048_576.0;

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

/// Joins rows into the row of a longer period. Seconds without a row are unknown.
pub fn merge_gpu_rows<'a>(rows: impl IntoIterator<Item = &'a GpuRow>, period_seconds: u64) -> GpuRow {
    let mut merger = GpuRowMerger::default();
    rows.into_iter().for_each(|row| merger.add(row));
    merger.row(period_seconds)
}

/// Joins rows one after the other: the rows of a day of many GPUs need not be in memory.
#[derive(Debug, Default)]
pub(super) struct GpuRowMerger {
    merged: GpuRow,
    utilization: Mean,
    memory: Mean,
    sm_activity: Mean,
}

impl GpuRowMerger {
    pub(super) fn add(&mut self, row: &GpuRow) {
        let (merged, seconds) = (&mut self.merged, row.states.known() as f64);
        merged.samples += row.samples;
        self.utilization.add(row.utilization_permille.map(|value| value as f64), seconds);
        self.memory.add(row.memory_mib.map(|value| value as f64), seconds);
        self.sm_activity.add(row.sm_activity_permille.map(|value| value as f64), seconds);
        merged.utilization_max_percent = merged.utilization_max_percent.max(row.utilization_max_percent);
        merged.memory_max_mib = merged.memory_max_mib.max(row.memory_max_mib);
        merged.temperature_max_celsius = merged.temperature_max_celsius.max(row.temperature_max_celsius);
        if let Some(energy) = row.energy_joules {
            merged.energy_joules = Some(merged.energy_joules.unwrap_or(0) + energy);
        }
        merged.states.busy += row.states.busy;
        merged.states.idle_held += row.states.idle_held;
        merged.states.free += row.states.free;
        merged.states.faulty += row.states.faulty;
        merged.throttled_seconds += row.throttled_seconds;
    }

    /// The row of the period.
    pub(super) fn row(&self, period_seconds: u64) -> GpuRow {
        let mut merged = self.merged.clone();
        merged.states.unknown = period_seconds.saturating_sub(merged.states.known());
        merged.utilization_permille = self.utilization.rounded(1.0);
        merged.memory_mib = self.memory.rounded(1.0);
        merged.sm_activity_permille = self.sm_activity.rounded(1.0);
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(state: HistoryState, utilization: f64, watts: f64) -> GpuSample {
        GpuSample {
            state,
            utilization_percent: Some(utilization),
            memory_bytes: Some(40 << 30),
            power_watts: Some(watts),
            temperature_celsius: Some(60),
            sm_activity_percent: None,
            is_throttled: utilization > 90.0,
        }
    }

    #[test]
    fn means_are_weighted_by_time_and_a_gap_is_unknown() {
        let mut minute = GpuAccumulator::default();
        minute.add(&sample(HistoryState::Busy, 100.0, 600.0), 10.0);
        minute.add(&sample(HistoryState::IdleHeld, 0.0, 100.0), 30.0);
        let row = minute.row(60);
        assert_eq!(row.states, StateSeconds { busy: 10, idle_held: 30, free: 0, faulty: 0, unknown: 20 });
        assert_eq!((row.samples, row.utilization_permille, row.utilization_max_percent), (2, Some(250), Some(100)));
        assert_eq!(row.energy_joules, Some(9000), "225 W for the 40 seconds that were seen");
        assert_eq!((row.memory_mib, row.sm_activity_permille, row.throttled_seconds), (Some(40 << 10), None, 10));
    }

    #[test]
    fn without_samples_everything_is_unknown() {
        let row = GpuAccumulator::default().row(60);
        assert_eq!(
            row,
            GpuRow { states: StateSeconds { unknown: 60, ..StateSeconds::default() }, ..GpuRow::default() }
        );
        let mut lost = GpuAccumulator::default();
        lost.add(&sample(HistoryState::Unknown, 100.0, 600.0), 60.0);
        assert_eq!(lost.row(60), row);
    }

    #[test]
    fn parts_never_exceed_the_period() {
        let mut minute = GpuAccumulator::default();
        for _ in 0..3 {
            minute.add(&sample(HistoryState::Busy, 50.0, f64::NAN), 20.6);
            minute.add(&sample(HistoryState::Free, 50.0, f64::INFINITY), 0.5);
        }
        let row = minute.row(60);
        assert_eq!((row.states.known(), row.states.unknown, row.energy_joules), (60, 0, None));
    }

    #[test]
    fn minutes_become_a_quarter_hour() {
        let mut busy = GpuAccumulator::default();
        busy.add(&sample(HistoryState::Busy, 80.0, 500.0), 60.0);
        let mut idle = GpuAccumulator::default();
        idle.add(&sample(HistoryState::IdleHeld, 0.0, 100.0), 30.0);
        let quarter = merge_gpu_rows([&busy.row(60), &idle.row(60)], 900);
        assert_eq!(quarter.states, StateSeconds { busy: 60, idle_held: 30, free: 0, faulty: 0, unknown: 810 });
        assert_eq!(quarter.utilization_permille, Some(533), "weighted by the seconds that were seen");
        assert_eq!(quarter.energy_joules, Some(33_000));
        assert_eq!(merge_gpu_rows([], 900).states.unknown, 900);
    }
}
