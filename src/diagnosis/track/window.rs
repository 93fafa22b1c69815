//! The last twenty minutes of one GPU in short buckets, for statistics over the windows of the rules.

use std::collections::VecDeque;

/// The seconds that a bucket covers.
const BUCKET_SECONDS: f64 = 30.0;
/// The precision of `f32` times in buckets after months of uptime, in seconds.
const ROUNDING: f64 = 0.2;
/// The window reaches back at least this far, in seconds.
pub(crate) const REACH_SECONDS: f64 = 1200.0;
/// The window, and a few shorter buckets.
const BUCKETS: usize = 43;
/// The number of buckets to allocate at a time: most runs of the program are short.
const GROWTH: usize = 11;

/// One sample.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WindowPoint {
    pub(crate) utilization: Option<u8>,
    pub(crate) memory_utilization: Option<u8>,
    pub(crate) power: Option<f32>,
    /// The seconds since the previous sample for which heat slowed the GPU down.
    pub(crate) thermal: Option<f32>,
    /// The seconds since the previous sample for which the power brake was active.
    pub(crate) brake: Option<f32>,
}

/// The counts fit a byte because a bucket has at most 120 readings.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    begin: f32,
    /// The seconds that the readings stand for.
    covered: f32,
    readings: u8,
    least: u8,
    most: u8,
    /// The number of readings of 95 % or more.
    high: u8,
    memory_readings: u8,
    memory_most: u8,
    /// The number of readings of 1 % or less.
    memory_low: u8,
    power_readings: u8,
    sum: u16,
    memory_sum: u16,
    power_most: f32,
    power_sum: f32,
    power_squares: f32,
    thermal: f32,
    brake: f32,
}

/// Statistics over a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct WindowStats {
    /// The seconds that the readings stand for.
    pub(crate) covered: f64,
    pub(crate) readings: u32,
    pub(crate) least_utilization: Option<u8>,
    pub(crate) most_utilization: Option<u8>,
    pub(crate) mean_utilization: Option<f32>,
    /// At least half of the readings are 95 % or more.
    pub(crate) is_median_high: bool,
    pub(crate) most_memory_utilization: Option<u8>,
    pub(crate) mean_memory_utilization: Option<f32>,
    /// At least half of the readings are 1 % or less.
    pub(crate) is_memory_median_low: bool,
    pub(crate) mean_power: Option<f32>,
    pub(crate) most_power: Option<f32>,
    /// Standard deviation divided by mean.
    pub(crate) power_variation: Option<f32>,
    pub(crate) thermal_seconds: f64,
    pub(crate) brake_seconds: f64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    buckets: VecDeque<Bucket>,
}

impl Window {
    /// Adds a reading at `t` that stands for `dt` seconds.
    pub(crate) fn push(&mut self, t: f64, dt: f64, point: WindowPoint) {
        let is_over =
            |last: &Bucket| t - f64::from(last.begin) >= BUCKET_SECONDS || t < f64::from(last.begin) - ROUNDING;
        if self.buckets.back().is_none_or(is_over) {
            self.start_bucket(t);
        }
        let Some(bucket) = self.buckets.back_mut() else { return };
        let is_known = point.utilization.is_some() || point.power.is_some();
        bucket.covered += if is_known { dt as f32 } else { 0.0 };
        if let (Some(percent), true) = (point.utilization, bucket.readings < u8::MAX) {
            bucket.least = if bucket.readings == 0 { percent } else { bucket.least.min(percent) };
            bucket.most = bucket.most.max(percent);
            bucket.readings += 1;
            bucket.high += u8::from(percent >= 95);
            bucket.sum += u16::from(percent);
        }
        if let (Some(percent), true) = (point.memory_utilization, bucket.memory_readings < u8::MAX) {
            bucket.memory_readings += 1;
            bucket.memory_most = bucket.memory_most.max(percent);
            bucket.memory_low += u8::from(percent <= 1);
            bucket.memory_sum += u16::from(percent);
        }
        if let (Some(watts), true) = (point.power, bucket.power_readings < u8::MAX) {
            bucket.power_readings += 1;
            bucket.power_most = bucket.power_most.max(watts);
            bucket.power_sum += watts;
            bucket.power_squares += watts * watts;
        }
        bucket.thermal += point.thermal.unwrap_or(0.0);
        bucket.brake += point.brake.unwrap_or(0.0);
    }

    /// Begins a new bucket, so that a window can begin exactly at `t`.
    pub(crate) fn start_bucket(&mut self, t: f64) {
        if self.buckets.back().is_some_and(|last| last.readings == 0 && last.covered <= 0.0) {
            self.buckets.pop_back();
        }
        let count = self.buckets.len();
        if count == self.buckets.capacity() {
            self.buckets.reserve_exact(GROWTH.min(BUCKETS.saturating_sub(count)));
        }
        if self.buckets.len() >= BUCKETS {
            self.buckets.pop_front();
        }
        self.buckets.push_back(Bucket { begin: t as f32, ..Bucket::default() });
    }

    /// Statistics from `begin` on, to within a bucket, but never from before a bucket that starts at `begin`.
    pub(crate) fn stats(&self, begin: f64) -> WindowStats {
        self.stats_between(begin, f64::INFINITY)
    }

    /// Statistics from `begin` to `end`, to within a bucket.
    pub(crate) fn stats_between(&self, begin: f64, end: f64) -> WindowStats {
        let (mut least, mut most) = (u8::MAX, 0);
        let mut stats = WindowStats::default();
        let (mut high, mut sum) = (0_u32, 0_u32);
        let (mut memory_readings, mut memory_low, mut memory_sum, mut memory_most) = (0_u32, 0_u32, 0_u32, 0);
        let (mut power_readings, mut power_sum, mut squares, mut power_most) = (0_u32, 0.0_f64, 0.0_f64, 0.0_f32);
        for bucket in self.buckets.iter().rev().skip_while(|bucket| f64::from(bucket.begin) >= end) {
            if f64::from(bucket.begin) < begin - ROUNDING {
                break;
            }
            stats.covered += f64::from(bucket.covered);
            if bucket.readings > 0 {
                least = least.min(bucket.least);
                most = most.max(bucket.most);
            }
            stats.readings += u32::from(bucket.readings);
            high += u32::from(bucket.high);
            sum += u32::from(bucket.sum);
            memory_readings += u32::from(bucket.memory_readings);
            memory_most = memory_most.max(bucket.memory_most);
            memory_low += u32::from(bucket.memory_low);
            memory_sum += u32::from(bucket.memory_sum);
            power_readings += u32::from(bucket.power_readings);
            power_most = power_most.max(bucket.power_most);
            power_sum += f64::from(bucket.power_sum);
            squares += f64::from(bucket.power_squares);
            stats.thermal_seconds += f64::from(bucket.thermal);
            stats.brake_seconds += f64::from(bucket.brake);
        }
        let mean = |sum: f64, count: u32| (count > 0).then(|| (sum / f64::from(count)) as f32);
        let variation = (power_readings > 0 && power_sum > 0.0).then(|| {
            let mean = power_sum / f64::from(power_readings);
            ((squares / f64::from(power_readings) - mean * mean).max(0.0).sqrt() / mean) as f32
        });
        WindowStats {
            least_utilization: (stats.readings > 0).then_some(least),
            most_utilization: (stats.readings > 0).then_some(most),
            mean_utilization: mean(f64::from(sum), stats.readings),
            is_median_high: stats.readings > 0 && high * 2 >= stats.readings,
            most_memory_utilization: (memory_readings > 0).then_some(memory_most),
            mean_memory_utilization: mean(f64::from(memory_sum), memory_readings),
            is_memory_median_low: memory_readings > 0 && memory_low * 2 >= memory_readings,
            mean_power: mean(power_sum, power_readings),
            most_power: (power_readings > 0).then_some(power_most),
            power_variation: variation,
            ..stats
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * std::mem::size_of::<Bucket>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(utilization: u8, memory: u8, power: f32) -> WindowPoint {
        WindowPoint {
            utilization: Some(utilization),
            memory_utilization: Some(memory),
            power: Some(power),
            ..WindowPoint::default()
        }
    }

    #[test]
    fn a_window_does_not_reach_before_a_started_bucket() {
        let mut window = Window::default();
        for second in 0..100 {
            window.push(f64::from(second), 1.0, point(50, 40, 500.0));
        }
        window.start_bucket(100.0);
        for second in 100..400 {
            window.push(f64::from(second), 1.0, point(100, 0, if second % 2 == 0 { 103.0 } else { 105.0 }));
        }
        let stats = window.stats(100.0);
        assert_eq!((stats.least_utilization, stats.most_memory_utilization), (Some(100), Some(0)));
        assert!(stats.is_median_high && stats.is_memory_median_low);
        assert!((stats.mean_power.unwrap() - 104.0).abs() < 0.01 && stats.power_variation.unwrap() < 0.02);
        assert!((stats.covered - 300.0).abs() < 0.1);
        assert_eq!(window.stats(60.0).least_utilization, Some(50));
        let before = window.stats_between(0.0, 100.0);
        assert_eq!((before.readings, before.mean_utilization), (100, Some(50.0)));
    }

    #[test]
    fn unknown_readings_cover_no_time() {
        let mut window = Window::default();
        window.push(0.0, 10.0, WindowPoint::default());
        assert_eq!(window.stats(0.0), WindowStats::default());
    }

    #[test]
    fn a_window_is_bounded() {
        let mut window = Window::default();
        for second in 0..100_000 {
            window.push(f64::from(second), 1.0, point(50, 40, 500.0));
        }
        assert!(window.memory_bytes() <= BUCKETS * std::mem::size_of::<Bucket>());
        assert!(window.memory_bytes() <= 2_816, "{}", window.memory_bytes());
        assert!(window.stats(0.0).covered >= 1200.0);
    }
}
