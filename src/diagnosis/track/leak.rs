//! Detects memory that grows for hours, or fast until it is full: that of one process on its GPUs, and that of a host.

use crate::config::thresholds::GpuMemLeak;
use std::collections::VecDeque;

/// A memory leak of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Leak {
    /// In bytes.
    pub(crate) growth: f64,
    /// The seconds in which the memory grew: two hours, the time since the process was first seen, the minutes of [`FAST`],
    /// [`EVEN`], [`LONG`] or [`STEEP`], or those of equal steps.
    pub(crate) span: f64,
    /// The seconds until the memory of its GPUs is full.
    pub(crate) full_in: f64,
    /// The growth is too small or too slow to matter within hours.
    pub(crate) is_slow: bool,
    /// It grew in each minute of a quarter of an hour, or evenly for half an hour or an hour.
    pub(crate) is_fast: bool,
    /// It grew for half an hour or more: longer than a server needs to load its models.
    pub(crate) is_steep: bool,
}

impl Leak {
    /// A leak that takes the free memory of the GPUs as fast as this.
    fn of(free: Shrinkage) -> Self {
        let Shrinkage { loss: growth, span, ends_in: full_in } = free;
        Self { growth, span, full_in, is_slow: false, is_fast: false, is_steep: false }
    }
}

/// The number of points needed, of 120.
const MIN_POINTS: usize = 96;
/// Memory that did not grow any more in the last minutes was loaded: the number of these points, and the share of the mean growth that
/// they must have.
const LAST_POINTS: usize = 10;
const LAST_SHARE: f64 = 0.25;
/// A steady growth of this share of the threshold is a slow leak.
const SLOW_SHARE: f64 = 0.5;

/// Memory that grows all the time and is full soon.
pub(crate) struct Growth {
    /// The minutes of growth.
    pub(crate) points: usize,
    /// The length in minutes of the parts in each of which it grows.
    part: usize,
    /// The least growth of all of them, as a share of the memory of the GPUs.
    share: f64,
    /// The memory is full within this time, in seconds.
    full_in: f64,
}

/// A quarter of an hour in each minute of which the memory grows, half an hour or an hour with growth in each three minutes, and three
/// quarters with growth in each five.
pub(crate) const FAST: Growth = Growth { points: 15, part: 1, share: 0.1, full_in: 1200.0 };
const EVEN: Growth = Growth { points: 30, part: 3, share: 0.08, full_in: 900.0 };
const STEEP: Growth = Growth { points: 45, part: 5, share: 0.3, full_in: 2400.0 };
const LONG: Growth = Growth { points: 60, part: 3, share: 0.25, full_in: 2700.0 };
/// The least growth of each part, as a share of the mean one.
const FAST_STEP_SHARE: f64 = 0.25;
/// The growth in the second half as a share of that in the first: what slows down comes to an end.
const FAST_SECOND_HALF: f64 = 0.85;

/// Looks for a leak in the memory of a process: one point per minute in bytes, oldest first. `total` is the memory of
/// its GPUs and `free` the free part, in bytes.
pub(crate) fn detect_leak(points: &[Option<f32>], total: f64, free: f64, limits: &GpuMemLeak) -> Option<Leak> {
    let series: Vec<(f64, f64)> =
        points.iter().enumerate().filter_map(|(minute, bytes)| Some((minute as f64, f64::from((*bytes)?)))).collect();
    let by_steps = || staircase(&series, total, free, LEVEL_CHANGE, STEPS_LEFT).map(Leak::of);
    long_leak(&series, total, free, limits).or_else(by_steps).or_else(|| {
        let steep = growth_without_a_pause(&series, total, free, &STEEP);
        let even = growth_without_a_pause(&series, total, free, &EVEN);
        let even = even.or_else(|| growth_without_a_pause(&series, total, free, &LONG));
        let fast = growth_without_a_pause(&series, total, free, &FAST);
        let found = fast.or(even).or(steep)?;
        let is_fast = fast.is_some() || even.is_some();
        Some(Leak { is_fast, is_steep: steep.is_some() || even.is_some(), ..found })
    })
}

/// Memory that rises by equal steps: the number of steps that are compared, their least height as a share of the memory, the height of
/// the highest step divided by that of the lowest, and the longest time between two steps divided by the shortest.
const STEPS: usize = 3;
const STEP_SHARE: f64 = 0.04;
const STEP_HEIGHTS: f64 = 1.3;
const STEP_TIMES: f64 = 1.5;
/// The least minutes between two steps, and the largest change from one of these minutes to the next, as a share of the memory of a GPU
/// and of a host, on which other programs run.
const LEVEL_MINUTES: usize = 5;
const LEVEL_CHANGE: f64 = 0.005;
const HOST_LEVEL_CHANGE: f64 = 0.015;
/// The most steps that still fit: the next one or the one after it fails. On a filesystem the second one may just fit.
const STEPS_LEFT: f64 = 1.5;
const FILE_STEPS_LEFT: f64 = 2.05;

/// Memory of which each run of a program keeps an equal part, and that is soon too little for the next run.
fn staircase(series: &[(f64, f64)], total: f64, free: f64, level_change: f64, steps_left: f64) -> Option<Shrinkage> {
    let is_level = |before: &(f64, f64), after: &(f64, f64)| (after.1 - before.1).abs() <= level_change * total;
    let levels = series.chunk_by(is_level).filter(|part| part.len() > LEVEL_MINUTES);
    let levels: Vec<(f64, f64)> = levels.filter_map(|part| Some((part.first()?.0, part.last()?.1))).collect();
    let last = levels.get(levels.len().checked_sub(STEPS + 1)?..)?;
    let heights = || last.windows(2).map(|pair| pair[1].1 - pair[0].1);
    let (lowest, highest) = (heights().fold(f64::INFINITY, f64::min), heights().fold(0.0, f64::max));
    // The first of these levels may have begun before the series.
    let times = || last.windows(2).skip(1).map(|pair| pair[1].0 - pair[0].0);
    let (shortest, longest) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let is_even = highest <= STEP_HEIGHTS * lowest && longest <= STEP_TIMES * shortest;
    let (first, end) = (last.first()?, last.last()?);
    let growth = end.1 - first.1;
    let mean = growth / STEPS as f64;
    let now = series.last()?.0;
    let passed = now - end.0;
    // An overdue step will not come.
    let is_current = passed <= STEP_TIMES * longest;
    // The next step may have begun.
    let free = free + series.last()?.1 - end.1;
    let is_found = lowest >= STEP_SHARE * total && is_even && is_current && free <= steps_left * mean;
    let ends_in = 60.0 * (longest * ((free / mean).floor() + 1.0) - passed).max(1.0);
    is_found.then_some(Shrinkage { loss: growth, span: 60.0 * (now - first.0), ends_in })
}

/// Memory that grows without a pause and will be full before anybody has seen it grow for hours.
fn growth_without_a_pause(series: &[(f64, f64)], total: f64, free: f64, least: &Growth) -> Option<Leak> {
    let Growth { points, part, .. } = *least;
    let last = series.get(series.len().checked_sub(points + 1)?..)?;
    let half = points / 2;
    let (first, end) = (last.first()?, last.last()?);
    let (before, after) = (last.get(half)?.1 - first.1, end.1 - last.get(points - half)?.1);
    let growth = end.1 - first.1;
    if growth < least.share * total || end.0 - first.0 > points as f64 {
        return None;
    }
    let mean = growth / points as f64;
    let ends: Vec<f64> = last.iter().step_by(part).map(|point| point.1).collect();
    let is_steady = ends.windows(2).all(|pair| pair[1] - pair[0] >= FAST_STEP_SHARE * mean * part as f64);
    let goes_on = after >= FAST_SECOND_HALF * before;
    let full_in = free / (mean / 60.0);
    let is_fast = is_steady && goes_on && full_in <= least.full_in && !falls_back(series, growth, total);
    is_fast.then_some(Leak::of(Shrinkage { loss: growth, span: 60.0 * points as f64, ends_in: full_in }))
}

/// Memory that fell back this often from its present level, or from one that is lower by at most this share of all memory, will fall
/// back again: a garbage collector frees it.
const FALLS_BACK: usize = 2;
const FALLS_BACK_LEVEL: f64 = 0.05;

fn falls_back(series: &[(f64, f64)], growth: f64, total: f64) -> bool {
    let now = series.last().map_or(0.0, |point| point.1);
    let mut falls = 0;
    let mut from = 0;
    // The mean of the minute of the fall lies in between.
    for end in 2..series.len() {
        let (before, after) = (series[end - 2].1, series[end].1);
        if end - 2 >= from && before - after >= growth / 2.0 && before + FALLS_BACK_LEVEL * total >= now {
            falls += 1;
            from = end + 1;
        }
    }
    falls >= FALLS_BACK
}

fn long_leak(series: &[(f64, f64)], total: f64, free: f64, limits: &GpuMemLeak) -> Option<Leak> {
    if series.len() < MIN_POINTS {
        return None;
    }
    let smooth: Vec<(f64, f64)> = (0..series.len())
        .map(|place| {
            let from = place.saturating_sub(2).min(series.len() - 5);
            let mut five: Vec<f64> = series[from..from + 5].iter().map(|point| point.1).collect();
            five.sort_by(f64::total_cmp);
            (series[place].0, five[2])
        })
        .collect();
    let third = smooth.len() / 3;
    let value = |place: usize| smooth[place.min(smooth.len() - 1)].1;
    let growth = value(smooth.len() - 1) - value(0);
    let least = (limits.growth * 1_048_576.0).max(limits.share / 100.0 * total);
    // The cheap check first: it rejects nearly every process.
    if growth < SLOW_SHARE * least {
        return None;
    }
    let thirds = [value(third) - value(0), value(2 * third) - value(third), value(smooth.len() - 1) - value(2 * third)];
    if thirds.iter().any(|third| *third <= 0.0) || thirds[2] < limits.last_third * thirds[0] {
        return None;
    }
    let last = value(smooth.len() - 1) - value(smooth.len() - 1 - LAST_POINTS);
    if last < LAST_SHARE * growth * LAST_POINTS as f64 / smooth.len() as f64 {
        return None;
    }
    let steps = || smooth.windows(2).map(|pair| pair[1].1 - pair[0].1);
    let falls: f64 = steps().filter(|step| *step < 0.0).map(f64::abs).sum();
    // A rise counts if it exceeds the noise. A jump may be spread over the means of two minutes, and counts once.
    let mut level = value(0);
    let (mut rises, mut was_counted) = (0_u32, false);
    for point in &smooth {
        let is_rise = point.1 >= level + growth / 60.0;
        if is_rise {
            level = point.1;
            rises += u32::from(!was_counted);
        }
        was_counted = is_rise && !was_counted;
    }
    let jump = smooth.windows(4).map(|four| four[3].1 - four[0].1).fold(0.0, f64::max);
    if falls > limits.falls / 100.0 * growth || f64::from(rises) < limits.rises || jump > limits.jump * growth {
        return None;
    }
    let slope = theil_sen(&smooth)?;
    let full_in = if slope > 0.0 { free / (slope / 60.0) } else { f64::INFINITY };
    if mann_kendall(&smooth) < limits.trend {
        return None;
    }
    let span = 60.0 * (smooth.last()?.0 - smooth.first()?.0);
    let is_slow = growth < least || full_in >= limits.full_in;
    Some(Leak { is_slow, ..Leak::of(Shrinkage { loss: growth, span, ends_in: full_in }) })
}

/// The Mann-Kendall z of the trend, corrected for ties.
fn mann_kendall(series: &[(f64, f64)]) -> f64 {
    let count = series.len() as f64;
    let mut score = 0.0;
    for (place, one) in series.iter().enumerate() {
        for other in &series[place + 1..] {
            score += (other.1 - one.1).partial_cmp(&0.0).map_or(0.0, |order| f64::from(order as i8));
        }
    }
    let mut sorted: Vec<f64> = series.iter().map(|point| point.1).collect();
    sorted.sort_by(f64::total_cmp);
    let ties: f64 = sorted
        .chunk_by(|a, b| (a - b).abs() < 0.5)
        .map(|group| {
            let size = group.len() as f64;
            size * (size - 1.0) * (2.0 * size + 5.0)
        })
        .sum();
    let variance = (count * (count - 1.0) * (2.0 * count + 5.0) - ties) / 18.0;
    if variance <= 0.0 { 0.0 } else { (score - f64::signum(score)) / variance.sqrt() }
}

/// The Theil-Sen slope per minute: the median of the slopes between all pairs.
fn theil_sen(series: &[(f64, f64)]) -> Option<f64> {
    let mut slopes: Vec<f64> = Vec::with_capacity(series.len() * series.len() / 2);
    for (place, one) in series.iter().enumerate() {
        slopes.extend(series[place + 1..].iter().map(|other| (other.1 - one.1) / (other.0 - one.0)));
    }
    let middle = slopes.len() / 2;
    (!slopes.is_empty()).then(|| *slopes.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// The memory of a host, or the space of a filesystem, that is available, in bytes, once a minute.
#[derive(Debug, Clone, Default)]
pub(crate) struct AvailableMemory {
    minutes: VecDeque<f32>,
    next_at: f64,
}

/// Memory that has become less, and ends soon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shrinkage {
    /// In bytes.
    pub(crate) loss: f64,
    /// In which it became less, in seconds.
    pub(crate) span: f64,
    /// The seconds until nothing is available.
    pub(crate) ends_in: f64,
}

/// The minutes in which the available memory becomes less, and the parts in each of which it does.
const SHRINKS_FOR: usize = 90;
const SHRINKS_PARTS: usize = 6;
/// The least loss, as a share of the memory of the host, and that of each part, as a share of the mean one.
const SHRINKS_BY: f64 = 0.3;
const SHRINKS_STEP: f64 = 0.4;
/// The minutes at the end in which it must go on.
const SHRINKS_LAST: usize = 5;
/// The memory ends within this time, in seconds.
const SHRINKS_ENDS_IN: f64 = 6600.0;
/// A filesystem fills for this many minutes, in each of these parts, by this share of its size, and is full within this time in
/// seconds.
const FILLS_FOR: usize = 60;
const FILLS_PARTS: usize = 4;
const FILLS_BY: f64 = 0.1;
const FILLS_ENDS_IN: f64 = 3600.0;
/// The rate at which a copy fills a filesystem, in bytes per second, at least.
const COPY_FILLS_BYTES_PER_SECOND: f64 = 80e6;
/// A gap between two minutes, in seconds, after which the trend begins anew.
const SHRINKS_GAP: f64 = 300.0;

impl AvailableMemory {
    pub(crate) fn add(&mut self, bytes: Option<u64>, t: f64) {
        let Some(bytes) = bytes.filter(|_| t >= self.next_at) else { return };
        if t > self.next_at + SHRINKS_GAP {
            self.minutes.clear();
        }
        self.next_at = t + 60.0;
        if self.minutes.len() > SHRINKS_FOR {
            self.minutes.pop_front();
        }
        self.minutes.push_back(bytes as f32);
    }

    /// Whether more was available before, by more than this.
    pub(crate) fn has_fallen(&self, bytes: f64, by: f64) -> bool {
        self.minutes.iter().any(|before| f64::from(*before) - bytes > by)
    }

    /// Whether it has fallen by more than this within `minutes`, and still falls.
    pub(crate) fn falls(&self, minutes: usize, by: f64) -> bool {
        let before = |minutes: usize| {
            let place = self.minutes.len().checked_sub(minutes + 1)?;
            Some(f64::from(*self.minutes.get(place)?) - f64::from(*self.minutes.back()?))
        };
        let (Some(all), Some(last)) = (before(minutes), before(SHRINKS_LAST.min(minutes))) else { return false };
        all > by && last >= SHRINKS_STEP * all * SHRINKS_LAST.min(minutes) as f64 / minutes.max(1) as f64
    }

    /// As [`Self::has_fallen`], compared with the least value of the last minutes.
    pub(crate) fn has_fallen_lately(&self, by: f64) -> bool {
        let lately = self.minutes.iter().rev().take(SHRINKS_LAST);
        lately.copied().reduce(f32::min).is_some_and(|least| self.has_fallen(f64::from(least), by))
    }

    /// The loss of a filesystem that something fills step by step, and that is full soon. A single copy or download writes more, and
    /// ends earlier.
    pub(crate) fn filling(&self, total: f64) -> Option<Shrinkage> {
        let steady = self.steady_loss(FILLS_FOR, FILLS_PARTS, FILLS_BY * total);
        let is_copy = |found: &Shrinkage| found.loss / found.span >= COPY_FILLS_BYTES_PER_SECOND;
        steady
            .filter(|found| found.ends_in <= FILLS_ENDS_IN && !is_copy(found))
            .or_else(|| self.descends_by_steps(total, FILE_STEPS_LEFT))
    }

    /// The steady loss of the last hour and a half. A program that loads its data takes less, or comes to an end sooner.
    pub(crate) fn shrinkage(&self, total: f64) -> Option<Shrinkage> {
        let found = self.steady_loss(SHRINKS_FOR, SHRINKS_PARTS, SHRINKS_BY * total)?;
        let last = f64::from(*self.minutes.back()?);
        let before = self.minutes.get(SHRINKS_FOR - SHRINKS_LAST).map_or(last, |bytes| f64::from(*bytes));
        let is_over = before - last < SHRINKS_STEP * found.loss * SHRINKS_LAST as f64 / SHRINKS_FOR as f64;
        (!is_over && found.ends_in <= SHRINKS_ENDS_IN).then_some(found)
    }

    /// The loss by a program that takes an equal part with each of its runs or checkpoints, if the next one or the one after it does not
    /// fit.
    pub(crate) fn descends(&self, total: f64) -> Option<Shrinkage> {
        self.descends_by_steps(total, STEPS_LEFT)
    }

    /// The loss by equal steps, of which at most so many fit.
    fn descends_by_steps(&self, total: f64, steps_left: f64) -> Option<Shrinkage> {
        let series: Vec<(f64, f64)> =
            self.minutes.iter().enumerate().map(|(minute, bytes)| (minute as f64, total - f64::from(*bytes))).collect();
        staircase(&series, total, f64::from(*self.minutes.back()?), HOST_LEVEL_CHANGE, steps_left)
    }

    /// The loss of the last `minutes`, if it is at least `least` bytes and each of the parts has its share of it.
    fn steady_loss(&self, minutes: usize, parts: usize, least: f64) -> Option<Shrinkage> {
        let begin = self.minutes.len().checked_sub(minutes + 1)?;
        let (first, last) = (f64::from(*self.minutes.get(begin)?), f64::from(*self.minutes.back()?));
        let loss = first - last;
        if loss < least {
            return None;
        }
        let span = 60.0 * minutes as f64;
        let ends: Vec<f64> =
            self.minutes.iter().skip(begin).step_by(minutes / parts).map(|bytes| f64::from(*bytes)).collect();
        let is_steady = ends.windows(2).all(|pair| pair[0] - pair[1] >= SHRINKS_STEP * loss / parts as f64);
        is_steady.then_some(Shrinkage { loss, span, ends_in: last / (loss / span) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1_u64 << 30) as f64;

    /// Whether 120 minutes of memory in GiB are a leak.
    fn is_leak(gib: impl Fn(f64) -> f64) -> bool {
        let points: Vec<Option<f32>> = (0..120).map(|minute| Some((gib(f64::from(minute)) * GIB) as f32)).collect();
        let leak = detect_leak(&points, 80.0 * GIB, 40.0 * GIB, &GpuMemLeak::default());
        leak.is_some_and(|leak| !leak.is_slow)
    }

    /// The leak, after this many minutes, of a process alone on a GPU of `total` GiB. `gib` is its memory at a minute.
    fn leak_after(minutes: u32, total: f64, gib: &dyn Fn(f64) -> f64) -> Option<Leak> {
        let points: Vec<Option<f32>> = (0..minutes).map(|minute| Some((gib(f64::from(minute)) * GIB) as f32)).collect();
        let free = total - gib(f64::from(minutes - 1));
        detect_leak(&points, total * GIB, free * GIB, &GpuMemLeak::default())
    }

    /// A pseudo-random number around zero for a minute.
    fn noise(minute: f64) -> f64 {
        ((minute * 12.9898).sin() * 43_758.545).fract() - 0.5
    }

    #[test]
    fn steady_growth_is_a_leak() {
        assert!(is_leak(|minute| 20.0 + minute * 0.1), "6 GB an hour");
        assert!(is_leak(|minute| 20.0 + minute * 0.1 + 0.08 * noise(minute)), "with noise");
        assert!(is_leak(|minute| 20.0 + (minute / 6.0).floor() * 0.6), "stairs");
        assert!(is_leak(|minute| 20.0 + minute * 0.05), "there is room for 13 hours");
        assert!(!is_leak(|minute| 20.0 + minute * 0.04), "there is room for 17 hours");
    }

    #[test]
    fn other_patterns_are_not_leaks() {
        assert!(!is_leak(|minute| 20.0 + 8.0 * (1.0 - (-minute / 25.0).exp())), "saturating");
        assert!(!is_leak(|minute| 20.0 + (minute % 20.0) * 0.3), "sawtooth");
        assert!(!is_leak(|minute| if minute < 60.0 { 20.0 } else { 26.0 }), "one jump");
        assert!(!is_leak(|minute| 20.0 + minute.min(107.0) * 0.1), "weights that have been loaded");
        assert!(!is_leak(|minute| 20.0 + (minute / 40.0).floor() * 3.0), "a curriculum that steps up");
        assert!(!is_leak(|_| 72.0), "flat at 90 %");
        for seed in 0..50 {
            let mut level = 20.0;
            let walk: Vec<f64> = (0..120)
                .map(|minute| {
                    level += 0.6 * noise(f64::from(minute + seed * 131));
                    level
                })
                .collect();
            assert!(!is_leak(|minute| walk[minute as usize]), "random walk {seed}");
        }
    }

    #[test]
    fn memory_that_grows_every_minute_and_is_full_soon_is_a_leak_after_a_quarter_of_an_hour() {
        let leak =
            |minutes: u32, gib: &dyn Fn(f64) -> f64| leak_after(minutes, 80.0, gib).map(|leak| leak.full_in.round());
        let grows = |minute: f64| 50.0 + minute;
        assert_eq!((leak(15, &grows), leak(16, &grows)), (None, Some(900.0)));
        assert_eq!(leak(16, &|minute| 40.0 + minute), None, "full in 25 min");
        assert_eq!(leak(16, &|minute| 50.0 + minute.min(9.0) + 0.7 * (minute - 9.0).max(0.0)), None, "it slows down");
        assert_eq!(leak(30, &|minute| 70.0 - 25.0 * (-minute / 8.0).exp()), None, "an allocator that fills the GPU");
        assert_eq!(leak(30, &|minute| 40.0 + minute.min(27.0)), None, "weights that are loaded");
        assert_eq!(leak(30, &|minute| 40.0 + (minute / 5.0).floor() * 5.0), None, "steps");
        let creeps = |minute: f64| 61.4 + 0.3 * minute + 0.2 * (minute % 2.0);
        assert_eq!((leak(47, &creeps), leak(48, &creeps)), (None, Some(860.0)), "evenly, full in 15 min");
        let teeth = |minute: f64| 50.0 + minute % 20.0;
        assert!(leak(37, &teeth).is_some(), "it fell once");
        assert_eq!(leak(57, &teeth), None, "it fell twice");
        assert!(
            leak(57, &|minute| teeth(minute) + if minute >= 40.0 { 9.0 } else { 0.0 }).is_some(),
            "higher than before"
        );
        let fall = |minute: f64| match minute {
            ..30.0 => 70.0,
            ..31.0 => 50.0,
            _ => 30.0 + 0.9 * (minute - 31.0),
        };
        assert!(leak(53, &|minute| fall(minute) + 22.0).is_some(), "one fall, over two minutes");
        let mean = |minute: f64| if minute % 20.0 < 1.0 { 60.0 } else { teeth(minute) };
        assert_eq!(leak(57, &mean), None, "a fall within a minute");
    }

    #[test]
    fn memory_that_rises_by_equal_steps_is_a_leak_before_the_step_that_does_not_fit() {
        let leak = |minutes: u32, gib: &dyn Fn(f64) -> f64| {
            leak_after(minutes, 48.0, gib).map(|leak| (leak.full_in / 60.0).round())
        };
        let stairs = |minute: f64| 31.0 + 4.0 * (minute / 15.0).floor();
        assert_eq!((leak(50, &stairs), leak(52, &stairs)), (None, Some(24.0)), "one more step fits");
        assert_eq!(leak(52, &|minute| stairs(minute) - 10.0), None, "several more fit");
        assert_eq!(leak(75, &|minute| stairs(minute.min(45.0))), None, "there are no more steps");
        let uneven = |minute: f64| if minute < 30.0 { stairs(minute) } else { stairs(minute) + 2.0 };
        assert_eq!(leak(52, &uneven), None, "the second step is higher");
        assert_eq!(
            leak(52, &|minute| stairs(minute) - if minute >= 30.0 { 4.0 } else { 0.0 }),
            None,
            "it did not rise once"
        );
    }

    #[test]
    fn memory_that_grows_for_three_quarters_of_an_hour_and_is_full_soon_is_steep() {
        let leak = |minutes: u32, gib: &dyn Fn(f64) -> f64| {
            leak_after(minutes, 80.0, gib).map(|leak| (leak.is_fast, leak.is_steep))
        };
        let grows = |minute: f64| 10.0 + minute;
        assert_eq!((leak(45, &grows), leak(46, &grows)), (None, Some((false, true))), "full in 25 min");
        assert_eq!(leak(52, &grows), Some((true, true)), "full in 19 min");
        assert_eq!(leak(46, &|minute| 10.0 + (minute / 5.0).floor() * 5.0), Some((false, true)), "in steps");
        assert_eq!(leak(46, &|minute| 10.0 + 0.6 * minute), None, "full in an hour");
        assert_eq!(leak(46, &|minute| 10.0 + minute.min(38.0)), None, "it came to an end");
    }

    #[test]
    fn memory_that_grows_evenly_for_an_hour_and_is_full_in_three_quarters_of_one_is_a_leak() {
        let leak = |minutes: u32, step: f64| {
            leak_after(minutes, 48.0, &|minute| 10.0 + step * minute).map(|leak| leak.is_fast)
        };
        assert_eq!((leak(61, 0.38), leak(60, 0.38)), (Some(true), None), "full in 40 min");
        assert_eq!(leak(61, 0.3), None, "full in 67 min");
    }

    #[test]
    fn memory_of_a_host_that_shrinks_steadily_for_an_hour_and_a_half_ends_soon() {
        let ends_in = |minutes: u32, share: &dyn Fn(f64) -> f64| {
            let mut memory = AvailableMemory::default();
            for second in (0..60 * minutes).step_by(20) {
                memory.add(Some((100.0 * GIB * share(f64::from(second) / 60.0)) as u64), f64::from(second));
            }
            memory.shrinkage(100.0 * GIB).map(|shrinkage| (shrinkage.ends_in / 60.0).round())
        };
        let shrinks = |minute: f64| 0.9 - 0.005 * minute;
        assert_eq!((ends_in(90, &shrinks), ends_in(91, &shrinks)), (None, Some(90.0)));
        assert_eq!(ends_in(120, &|minute| 0.9 - 0.003 * minute), None, "too slow to tell");
        assert_eq!(ends_in(91, &|minute| 0.95 - 0.0075 * minute.min(84.0)), None, "weights that have been loaded");
        assert_eq!(ends_in(91, &|minute| if minute < 40.0 { 0.9 } else { 0.4 }), None, "one program has started");
        let mut memory = AvailableMemory::default();
        for minute in 0..100_u32 {
            let gap = if minute < 50 { 0.0 } else { 1000.0 };
            memory.add(Some((100.0 * GIB * shrinks(f64::from(minute))) as u64), 60.0 * f64::from(minute) + gap);
        }
        assert_eq!(memory.shrinkage(100.0 * GIB), None, "the trend begins anew after a gap");
    }

    #[test]
    fn too_few_points_and_slow_growth_are_not_leaks() {
        let points: Vec<Option<f32>> = (0..120)
            .map(|minute| (minute % 4 != 0).then_some(((20.0 + f64::from(minute) * 0.05) * GIB) as f32))
            .collect();
        assert_eq!(detect_leak(&points, 80.0 * GIB, 40.0 * GIB, &GpuMemLeak::default()), None);
        let slow: Vec<Option<f32>> =
            (0..120).map(|minute| Some(((20.0 + f64::from(minute) * 0.016) * GIB) as f32)).collect();
        let leak = detect_leak(&slow, 80.0 * GIB, 60.0 * GIB, &GpuMemLeak::default());
        assert!(leak.is_some_and(|leak| leak.is_slow), "full in two days");
        let flat: Vec<Option<f32>> = (0..120).map(|_| Some((20.0 * GIB) as f32)).collect();
        assert_eq!(detect_leak(&flat, 80.0 * GIB, 60.0 * GIB, &GpuMemLeak::default()), None);
    }
}
