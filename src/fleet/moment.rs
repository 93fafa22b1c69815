//! Time as an argument: a moment, and the clock that gives the present one.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// An instant on the controller's clock. Ages are differences of `elapsed`; `unix` is for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Monotonic time since the controller started; `None` for an earlier moment.
    pub elapsed: Option<Duration>,
    /// Wall-clock time since 1970.
    pub unix: Duration,
}

impl Default for Moment {
    /// The start of the controller, with a wall clock of 1970.
    fn default() -> Self {
        Self::new(Duration::ZERO, Duration::ZERO)
    }
}

impl Moment {
    /// The moment `elapsed` after the controller started.
    pub fn new(elapsed: Duration, unix: Duration) -> Self {
        Self { elapsed: Some(elapsed), unix }
    }

    /// Time since the controller started; zero for an earlier moment.
    pub fn since_start(self) -> Duration {
        self.elapsed.unwrap_or_default()
    }

    /// The time from `earlier` to this moment; zero if `earlier` is in the future. If `earlier` is before the start of
    /// the controller, the wall clock gives the time, which is at least the time since the start.
    pub fn since(self, earlier: Moment) -> Duration {
        match earlier.elapsed {
            Some(earlier) => self.since_start().saturating_sub(earlier),
            None => self.since_start().max(self.unix.saturating_sub(earlier.unix)),
        }
    }

    /// The time until `later`; zero if it has passed.
    pub fn until(self, later: Moment) -> Duration {
        later.since_start().saturating_sub(self.since_start())
    }

    /// The moment `duration` after this one, or the last possible one: durations may come from thresholds and hosts.
    pub fn plus(self, duration: Duration) -> Self {
        Self {
            elapsed: self.elapsed.map(|elapsed| elapsed.saturating_add(duration)),
            unix: self.unix.saturating_add(duration),
        }
    }

    /// The moment `duration` before this one.
    pub fn minus(self, duration: Duration) -> Self {
        Self {
            elapsed: self.elapsed.and_then(|elapsed| elapsed.checked_sub(duration)),
            unix: self.unix.saturating_sub(duration),
        }
    }
}

/// The controller's clock. Only the event loop and the host tasks own one.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix: Duration,
    speed: f64,
}

impl Clock {
    /// Starts a clock that runs `speed` times as fast as real time. Only simulations use a speed other than 1.0.
    pub fn start(speed: f64) -> Self {
        let start_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_unix, speed }
    }

    /// Seconds of this clock per real second.
    pub fn speed(&self) -> f64 {
        self.speed
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        let elapsed = self.start.elapsed().mul_f64(self.speed);
        // At real speed the wall clock is read again, so that changes to it are visible; a simulation computes its own.
        let unix = if (self.speed - 1.0).abs() < f64::EPSILON {
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
        } else {
            self.start_unix + elapsed
        };
        Moment::new(elapsed, unix)
    }

    /// The moment after `duration` of real time.
    pub fn after(&self, duration: Duration) -> Moment {
        self.now().plus(duration.mul_f64(self.speed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_moment_is_the_end_of_time() {
        let moment = Moment::new(Duration::from_secs(5), Duration::from_secs(7));
        assert_eq!(moment.plus(Duration::MAX), Moment::new(Duration::MAX, Duration::MAX));
    }

    #[test]
    fn the_wall_clock_gives_the_time_since_a_moment_before_the_start() {
        let moment =
            |elapsed: u64, unix: u64| Moment::new(Duration::from_secs(elapsed), Duration::from_secs(1_000_000 + unix));
        let now = moment(100, 100);
        assert_eq!(now.since(moment(40, 40)), Duration::from_secs(60));
        assert_eq!(
            now.since(moment(40, 9000)),
            Duration::from_secs(60),
            "a change of the wall clock does not change ages"
        );
        let before = |unix: u64| Moment { elapsed: None, unix: Duration::from_secs(unix) };
        assert_eq!(now.since(before(500_000)), Duration::from_secs(500_100));
        assert_eq!(now.since(before(1_005_000)), Duration::from_secs(100), "a clock that was set back");
        assert_eq!(now.since(moment(0, 0)), Duration::from_secs(100));
        assert_eq!(now.since(moment(0, 5000)), Duration::from_secs(100), "the start itself uses the monotonic clock");
        assert_eq!(now.since(moment(200, 200)), Duration::ZERO);
        assert_eq!(now.minus(Duration::from_secs(100)), moment(0, 0));
        assert_eq!(now.minus(Duration::from_secs(101)), before(999_999));
        assert!(before(999_999) < moment(0, 0));
    }
}
