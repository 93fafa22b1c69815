//! The history of one host from the store of a collector: what charts show beyond the two hours that this program
//! remembers.
//!
//! A viewer sends a [`HistoryQuery`], and whoever has the store answers with a [`HistoryReply`]. Ages instead of times
//! cross the machines, because their clocks may differ.

use super::Moment;
use super::history::Buckets;
use crate::wire::limits::{self, MAX_GPUS};
use crate::wire::{GpuInfo, SafeText};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The maximum number of points of a series.
pub const MAX_POINTS: usize = 400;
/// Seconds of the shortest point: the store has a row per minute.
const MINUTE: u64 = 60;
/// Longer points consist of whole quarter-hours.
const QUARTER: u64 = 900;

/// The longest step and the longest span of a valid query, in seconds. They bound the time of a read.
const MAX_STEP: u64 = 31 * 86_400;
const MAX_SPAN: u64 = 3 * 366 * 86_400;

/// A request for the history of one host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryQuery {
    /// The number of the request, which the reply repeats.
    pub id: u64,
    /// The name of the host.
    pub host: SafeText,
    /// How far the history goes back, in seconds.
    pub span_seconds: u64,
    /// Seconds per point: whole minutes below a quarter-hour, else whole quarter-hours.
    pub step_seconds: u64,
}

impl HistoryQuery {
    /// Returns whether the points have a length that the store can serve, are not too many, and reach not too far back.
    pub fn is_valid(&self) -> bool {
        let unit = if self.step_seconds < QUARTER { MINUTE } else { QUARTER };
        self.step_seconds > 0
            && self.step_seconds.is_multiple_of(unit)
            && self.step_seconds <= MAX_STEP
            && (1..=MAX_SPAN).contains(&self.span_seconds)
            && self.span_seconds.div_ceil(self.step_seconds) < MAX_POINTS as u64
    }

    /// Returns the start of the first point and the end of the last one, in seconds since 1970. Both are multiples of the
    /// step, so that the past of a chart does not change.
    pub fn period(&self, unix_seconds: u64) -> (u64, u64) {
        let step = self.step_seconds.max(1);
        let until = unix_seconds.div_ceil(step) * step;
        let points = self.span_seconds.div_ceil(step) + 1;
        (until.saturating_sub(points * step), until)
    }
}

/// The answer to a [`HistoryQuery`].
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryReply {
    /// The number of the request.
    pub id: u64,
    /// The history, or the cause and the way out.
    pub result: Result<StoredHistory, SafeText>,
}

/// The history of one host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredHistory {
    /// Seconds per point.
    pub step_seconds: u64,
    /// Seconds from the start of the first point to the moment of the answer.
    pub age_seconds: f64,
    /// The GPUs by index. Empty if the store has nothing about the host.
    #[serde(deserialize_with = "limits::at_most::<MAX_GPUS, _, _>")]
    pub gpus: Vec<StoredGpu>,
}

impl StoredHistory {
    /// Returns the history of a GPU of an inventory.
    pub fn gpu(&self, info: &GpuInfo) -> Option<&StoredGpu> {
        match &info.uuid {
            Some(uuid) => self.gpus.iter().find(|gpu| gpu.uuid == *uuid),
            None => self.gpus.iter().find(|gpu| gpu.index == info.index),
        }
    }
}

/// The history of one GPU. Each list has one value per point, the oldest first; `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredGpu {
    /// The index on its host.
    pub index: u32,
    /// The UUID; `index-N` if the driver does not tell it.
    pub uuid: SafeText,
    /// The model.
    pub model: Option<SafeText>,
    /// The size of its memory in MiB.
    pub memory_total_mib: Option<u64>,
    /// Mean utilization in tenths of a percent.
    #[serde(deserialize_with = "limits::at_most::<MAX_POINTS, _, _>")]
    pub utilization_permille: Vec<Option<i32>>,
    /// The share of the known time in which a process or an allocation held it, in tenths of a percent.
    #[serde(deserialize_with = "limits::at_most::<MAX_POINTS, _, _>")]
    pub held_permille: Vec<Option<i32>>,
    /// The share of the known time in which it was faulty or its job hung, in tenths of a percent.
    #[serde(deserialize_with = "limits::at_most::<MAX_POINTS, _, _>")]
    pub faulty_permille: Vec<Option<i32>>,
    /// Mean memory in use in MiB.
    #[serde(deserialize_with = "limits::at_most::<MAX_POINTS, _, _>")]
    pub memory_mib: Vec<Option<i32>>,
    /// Mean power in watts.
    #[serde(deserialize_with = "limits::at_most::<MAX_POINTS, _, _>")]
    pub power_watts: Vec<Option<i32>>,
    /// Highest temperature in degrees Celsius.
    #[serde(deserialize_with = "limits::at_most::<MAX_POINTS, _, _>")]
    pub temperature_celsius: Vec<Option<i32>>,
    /// Mean utilization of the whole span in tenths of a percent.
    pub mean_utilization_permille: Option<u64>,
    /// Seconds of the whole span in which it was busy.
    pub busy_seconds: u64,
    /// Seconds in which it was held and computed nothing.
    pub idle_held_seconds: u64,
    /// Seconds in which it was free.
    pub free_seconds: u64,
    /// Seconds in which it was faulty, or its job hung.
    pub faulty_seconds: u64,
    /// Seconds without readings.
    pub unknown_seconds: u64,
}

/// A metric of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredMetric {
    /// Mean utilization in percent.
    Utilization,
    /// The share of the time in which the GPU was held, in percent.
    Held,
    /// The share of the time in which the GPU was faulty or its job hung, in percent.
    Faulty,
    /// Mean memory in use in bytes.
    Memory,
    /// Mean power in watts.
    Power,
    /// Highest temperature in degrees Celsius.
    Temperature,
}

impl StoredGpu {
    /// The points of a metric, and the factor that turns them into its unit.
    fn series(&self, metric: StoredMetric) -> (&[Option<i32>], f32) {
        match metric {
            StoredMetric::Utilization => (&self.utilization_permille, 0.1),
            StoredMetric::Held => (&self.held_permille, 0.1),
            StoredMetric::Faulty => (&self.faulty_permille, 0.1),
            StoredMetric::Memory => (&self.memory_mib, 1_048_576.0),
            StoredMetric::Power => (&self.power_watts, 1.0),
            StoredMetric::Temperature => (&self.temperature_celsius, 1.0),
        }
    }

    /// Seconds with readings.
    pub fn known_seconds(&self) -> u64 {
        [self.busy_seconds, self.idle_held_seconds, self.free_seconds, self.faulty_seconds]
            .iter()
            .fold(0, |sum, seconds| sum.saturating_add(*seconds))
    }

    /// The values of a metric in its unit, the oldest first.
    pub fn values(&self, metric: StoredMetric) -> impl Iterator<Item = Option<f32>> {
        let (points, factor) = self.series(metric);
        points.iter().map(move |point| point.map(|value| value as f32 * factor))
    }
}

/// A history with the time of its first point on this program's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DatedHistory {
    /// The history.
    pub history: StoredHistory,
    /// The start of the first point, since 1970.
    begins: Duration,
}

impl DatedHistory {
    /// Dates a history that has just arrived.
    pub fn new(history: StoredHistory, now: Moment) -> Self {
        let age = Duration::try_from_secs_f64(history.age_seconds).unwrap_or_default();
        Self { history, begins: now.unix.saturating_sub(age) }
    }

    /// The age of the first point.
    pub fn age(&self, now: Moment) -> Duration {
        now.unix.saturating_sub(self.begins)
    }

    /// Returns the last `span` of a metric as `count` buckets, the oldest first; `None` for a bucket without readings.
    pub fn points(
        &self,
        gpu: &StoredGpu,
        metric: StoredMetric,
        now: Moment,
        span: Duration,
        count: usize,
    ) -> Vec<Option<f32>> {
        if count == 0 || span.is_zero() {
            return vec![None; count];
        }
        let (span, end) = (span.as_secs_f64(), self.age(now).as_secs_f64());
        let mut buckets = Buckets::new(end - span, span / count as f64, count);
        let step = self.history.step_seconds as f64;
        for (index, value) in gpu.values(metric).enumerate() {
            let from = index as f64 * step;
            buckets.add(from, (from + step).min(end), value);
        }
        buckets.means()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(span_seconds: u64, step_seconds: u64) -> HistoryQuery {
        HistoryQuery { id: 1, host: "hgx-01".into(), span_seconds, step_seconds }
    }

    #[test]
    fn the_store_can_serve_a_valid_query() {
        assert!(query(7200, 60).is_valid() && query(86_400, 900).is_valid() && query(21_600, 120).is_valid());
        for (span, step) in
            [(7200, 0), (7200, 61), (86_400, 960), (0, 60), (86_400, 60), (u64::MAX, 900), (1, 900 * 10_u64.pow(15))]
        {
            assert!(!query(span, step).is_valid(), "{span} {step}");
        }
    }

    #[test]
    fn points_begin_at_multiples_of_the_step() {
        assert_eq!(query(7200, 900).period(1_000_000), (1_000_800 - 8100, 1_000_800));
        assert_eq!(query(7200, 900).period(900_000), (900_000 - 8100, 900_000));
        assert_eq!(query(7200, 900).period(10), (0, 900), "not before 1970");
    }

    #[test]
    fn a_gap_is_unknown_and_longer_points_become_several_columns() {
        let gpu =
            StoredGpu { utilization_permille: vec![Some(1000), None, Some(0), Some(500)], ..StoredGpu::default() };
        let history = StoredHistory { step_seconds: 900, age_seconds: 3000.0, gpus: vec![gpu] };
        let now = Moment::new(Duration::from_secs(10), Duration::from_secs(1_000_000));
        let dated = DatedHistory::new(history, now);
        let points = |now, span, count| {
            dated.points(&dated.history.gpus[0], StoredMetric::Utilization, now, Duration::from_secs(span), count)
        };
        assert_eq!(
            points(now, 3000, 10),
            [100.0, 100.0, 100.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 50.0].map(|value| (value >= 0.0).then_some(value)),
            "the last point has only begun"
        );
        assert_eq!(points(now, 6000, 2)[0], None, "nothing is known before the first point");
        let later = now.plus(Duration::from_secs(3600));
        assert_eq!(points(later, 3600, 4), [Some(50.0), None, None, None], "nor after the last one");
        assert_eq!(points(now, 3000, 0), []);
    }
}
