//! Points for a chart: buckets of equal width up to now.

use super::quantized_series::QuantizedSeries;
use super::{BACKFILL_SECONDS, History, MEAN_SECONDS, MEANS, RAW_POINTS, SeriesKey};
use crate::fleet::Moment;
use std::time::Duration;

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
    pub(super) fn newest(&self) -> Option<f64> {
        self.time(self.points.checked_sub(1)? % RAW_POINTS)
    }

    fn time(&self, slot: usize) -> Option<f64> {
        self.times.get(slot).map(|hundredths| f64::from(*hundredths) / 100.0)
    }
}
