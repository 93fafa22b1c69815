//! When to sample: at once, a quarter of a second later, then every interval, and never far ahead of the controller.

use std::time::{Duration, Instant};

/// The shortest interval.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// The longest interval.
pub(crate) const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Built in, as the controller's.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
/// How many snapshots are sent beyond the last that the controller has acknowledged.
const MAX_UNACKNOWLEDGED: u64 = 2;
/// From the first sample to the second, so that shares of CPU and SM exist soon.
const SECOND_SAMPLE_DELAY: Duration = Duration::from_millis(250);

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Take a sample.
    Sample,
    /// Nothing before then.
    WaitUntil(Instant),
    /// Nothing before the controller has acknowledged more.
    WaitForAcknowledgement,
}

/// The rhythm of the samples. It skips what it cannot send; nothing queues.
#[derive(Debug)]
pub(crate) struct SampleSchedule {
    interval: Duration,
    due: Instant,
    sample_count: u64,
}

impl SampleSchedule {
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, due: now, sample_count: 0 }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Another interval, counted from the last sample.
    pub(crate) fn set_interval(&mut self, interval: Duration, now: Instant) {
        if self.sample_count >= 2 {
            let last = self.due.checked_sub(self.interval).unwrap_or(now);
            self.due = last + interval;
        }
        self.interval = interval;
    }

    /// The next sample is due at once.
    pub(crate) fn sample_now(&mut self, now: Instant) {
        self.due = now;
    }

    /// What to do at `now`; `acknowledged` is the last sequence that the controller has seen, once it has said so.
    pub(crate) fn next_step(&self, now: Instant, acknowledged: Option<u64>) -> NextStep {
        if now < self.due {
            NextStep::WaitUntil(self.due)
        } else if acknowledged.is_some_and(|seen| self.sample_count >= seen.saturating_add(MAX_UNACKNOWLEDGED)) {
            NextStep::WaitForAcknowledgement
        } else {
            NextStep::Sample
        }
    }

    /// A sample is being taken at `now`.
    pub(crate) fn record_sample(&mut self, now: Instant) {
        self.sample_count += 1;
        let delay = if self.sample_count == 1 { SECOND_SAMPLE_DELAY } else { self.interval };
        self.due += delay;
        // Late by more than one interval: what was missed is skipped, not made up for.
        if self.due <= now {
            self.due = now + delay;
        }
    }
}

/// The interval nearest to what was asked for, and whether that is another. `None` for what is no number of seconds.
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
        schedule.sample_now(start + ms(500));
        assert_eq!(schedule.next_step(start + ms(500), None), NextStep::Sample);
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
