//! When to sample: at once, a quarter of a second later, then every interval, and never far ahead of the controller.

use std::time::{Duration, Instant};

/// The shortest interval.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// The longest interval.
pub(crate) const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Built in, as the controller's.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
/// How many snapshots are sent beyond the last that the controller has acknowledged.
const MAX_AHEAD: u64 = 2;
/// From the first sample to the second, so that shares of CPU and SM exist soon.
const SECOND_AFTER: Duration = Duration::from_millis(250);

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Take a sample.
    Sample,
    /// Nothing before then.
    WaitUntil(Instant),
    /// Nothing before the controller has acknowledged more.
    WaitForAcknowledgement,
}

/// The rhythm of the samples. It skips what it cannot send; nothing queues.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    due: Instant,
    taken: u64,
}

impl Pace {
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, due: now, taken: 0 }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Another interval, counted from the last sample.
    pub(crate) fn set_interval(&mut self, interval: Duration, now: Instant) {
        if self.taken >= 2 {
            let last = self.due.checked_sub(self.interval).unwrap_or(now);
            self.due = last + interval;
        }
        self.interval = interval;
    }

    /// The next sample is due at once.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.due = now;
    }

    /// What to do at `now`; `acknowledged` is the last sequence that the controller has seen, once it has said so.
    pub(crate) fn step(&self, now: Instant, acknowledged: Option<u64>) -> Step {
        if now < self.due {
            Step::WaitUntil(self.due)
        } else if acknowledged.is_some_and(|seen| self.taken >= seen.saturating_add(MAX_AHEAD)) {
            Step::WaitForAcknowledgement
        } else {
            Step::Sample
        }
    }

    /// A sample is being taken at `now`.
    pub(crate) fn taken(&mut self, now: Instant) {
        self.taken += 1;
        let step = if self.taken == 1 { SECOND_AFTER } else { self.interval };
        self.due += step;
        // Late by more than one interval: what was missed is skipped, not made up for.
        if self.due <= now {
            self.due = now + step;
        }
    }
}

/// The interval nearest to what was asked for, and whether that is another. `None` for what is no number of seconds.
pub(crate) fn clamped(seconds: f32) -> Option<(Duration, bool)> {
    if !seconds.is_finite() || seconds <= 0.0 {
        return None;
    }
    let asked = Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX);
    let interval = asked.clamp(MIN_INTERVAL, MAX_INTERVAL);
    Some((interval, interval != asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn at_once_then_soon_then_every_interval() {
        let start = Instant::now();
        let mut pace = Pace::new(ms(2000), start);
        for at in [0, 250, 2250, 4250] {
            assert_eq!(pace.step(start + ms(at), None), Step::Sample);
            pace.taken(start + ms(at + 3));
            assert!(matches!(pace.step(start + ms(at + 4), None), Step::WaitUntil(_)));
        }
        assert_eq!(pace.step(start, None), Step::WaitUntil(start + ms(6250)));
    }

    #[test]
    fn what_was_missed_is_skipped() {
        let start = Instant::now();
        let mut pace = Pace::new(ms(1000), start);
        pace.taken(start);
        pace.taken(start + ms(9000));
        assert_eq!(pace.step(start + ms(9001), None), Step::WaitUntil(start + ms(10_000)));
    }

    #[test]
    fn two_samples_ahead_are_enough() {
        let start = Instant::now();
        let mut pace = Pace::new(ms(250), start);
        for sample in 0..2 {
            pace.taken(start + ms(250 * sample));
        }
        let later = start + ms(60_000);
        assert_eq!(pace.step(later, Some(0)), Step::WaitForAcknowledgement);
        assert_eq!(pace.step(later, Some(1)), Step::Sample);
        assert_eq!(pace.step(later, Some(u64::MAX)), Step::Sample);
        assert_eq!(pace.step(later, None), Step::Sample);
    }

    #[test]
    fn a_new_interval_counts_from_the_last_sample() {
        let start = Instant::now();
        let mut pace = Pace::new(ms(60_000), start);
        pace.taken(start);
        pace.set_interval(ms(10_000), start);
        assert_eq!(pace.step(start, None), Step::WaitUntil(start + ms(250)));
        pace.taken(start + ms(250));
        pace.set_interval(ms(1000), start + ms(300));
        assert_eq!(pace.step(start, None), Step::WaitUntil(start + ms(1250)));
        pace.hurry(start + ms(500));
        assert_eq!(pace.step(start + ms(500), None), Step::Sample);
    }

    #[test]
    fn intervals_have_limits() {
        assert_eq!(clamped(2.0), Some((ms(2000), false)));
        assert_eq!(clamped(0.01), Some((MIN_INTERVAL, true)));
        assert_eq!(clamped(1e30), Some((MAX_INTERVAL, true)));
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(clamped(bad), None);
        }
    }
}
