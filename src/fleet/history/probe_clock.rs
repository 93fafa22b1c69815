//! Where a sample lies on the controller's clock.

use crate::fleet::Moment;

/// Two clocks may drift apart by this much (200 ppm; quartz is specified to 100), so that a minimum found long ago does
/// not hold for ever.
const DRIFT: f64 = 0.0002;

/// A line can be this late and no more: the connection is dropped after 10 s of silence. A larger difference means that
/// one of the clocks was stopped or set: a suspended laptop, a restarted probe.
const MAX_DELAY_SECONDS: f64 = 30.0;

/// Maps the probe's monotonic clock to the controller's by the smallest receive offset since the connection was made:
/// a sample lies where it was taken, however long the line was under way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProbeClock {
    /// Controller's seconds less probe's seconds, at their smallest.
    offset: Option<f64>,
    last_monotonic: f64,
    /// The last result; results never fall.
    last: f64,
}

impl ProbeClock {
    /// A new connection, perhaps to a new probe whose clock begins anew.
    pub(super) fn reset(&mut self) {
        self.offset = None;
    }

    /// Seconds since the controller began at which a sample was taken that arrived now.
    pub(super) fn map(&mut self, monotonic_seconds: f64, now: Moment) -> f64 {
        let received = now.since_start().as_secs_f64();
        if !monotonic_seconds.is_finite() || monotonic_seconds < 0.0 {
            self.last = self.last.max(received);
            return self.last;
        }
        let seen = received - monotonic_seconds;
        let step = monotonic_seconds - self.last_monotonic;
        let offset = match self.offset {
            Some(offset) if step >= 0.0 && seen - offset <= MAX_DELAY_SECONDS => seen.min(offset + DRIFT * step),
            _ => seen,
        };
        self.offset = Some(offset);
        self.last_monotonic = monotonic_seconds;
        self.last = self.last.max(monotonic_seconds + offset);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: f64) -> Moment {
        Moment::new(Duration::from_secs_f64(seconds), Duration::ZERO)
    }

    #[test]
    fn a_late_line_is_placed_where_it_was_taken() {
        let mut clock = ProbeClock::default();
        assert!((clock.map(5.0, at(100.2)) - 100.2).abs() < 0.01);
        assert!((clock.map(7.0, at(102.0)) - 102.0).abs() < 0.01, "a faster line corrects the first");
        assert!((clock.map(9.0, at(106.5)) - 104.0).abs() < 0.01, "2.5 s under way");
    }

    #[test]
    fn a_restarted_probe_begins_anew() {
        let mut clock = ProbeClock::default();
        clock.map(5000.0, at(100.0));
        assert!((clock.map(0.5, at(102.0)) - 102.0).abs() < 0.01, "without a new connection");
        clock.reset();
        assert!((clock.map(90.0, at(104.0)) - 104.0).abs() < 0.01, "with one");
    }

    #[test]
    fn a_stopped_clock_on_either_side_is_noticed() {
        let mut clock = ProbeClock::default();
        clock.map(10.0, at(10.0));
        assert!((clock.map(3610.0, at(12.0)) - 12.0).abs() < 0.01, "this machine slept");
        assert!((clock.map(3612.0, at(3614.0)) - 3614.0).abs() < 0.01, "the host slept");
    }

    #[test]
    fn drift_does_not_pile_up() {
        let mut clock = ProbeClock::default();
        // The probe's clock is 100 ppm slow: after a day it is 8.6 s behind.
        for step in 0..43_200_u32 {
            let real = f64::from(step) * 2.0;
            let mapped = clock.map(real * 0.9999, at(real));
            assert!((mapped - real).abs() < 0.1, "at {real} s");
        }
    }

    #[test]
    fn absurd_clocks_use_the_time_of_arrival_and_never_fall() {
        let mut clock = ProbeClock::default();
        for (monotonic, received) in [(f64::NAN, 10.0), (-4.0, 11.0), (f64::INFINITY, 12.0)] {
            assert!((clock.map(monotonic, at(received)) - received).abs() < 1e-9);
        }
        assert!((clock.map(3.0, at(11.0)) - 12.0).abs() < 1e-9);
    }
}
