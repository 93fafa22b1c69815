//! Time as an argument.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One moment on the controller's clock. Ages and windows are differences of `elapsed`; `unix` is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Time since the controller started, monotonic; `None` for a moment before that.
    pub elapsed: Option<Duration>,
    /// Time since 1970 on the wall clock.
    pub unix: Duration,
}

impl Default for Moment {
    /// The start of the controller, in 1970.
    fn default() -> Self {
        Self::new(Duration::ZERO, Duration::ZERO)
    }
}

impl Moment {
    /// A moment `elapsed` after the controller started.
    pub fn new(elapsed: Duration, unix: Duration) -> Self {
        Self { elapsed: Some(elapsed), unix }
    }

    /// Time since the controller started; zero for a moment before that.
    pub fn since_start(self) -> Duration {
        self.elapsed.unwrap_or_default()
    }

    /// The time from `earlier` to this moment; zero if `earlier` lies ahead. The wall clock measures from a moment
    /// before the controller started: at least the time since then.
    pub fn since(self, earlier: Moment) -> Duration {
        match earlier.elapsed {
            Some(earlier) => self.since_start().saturating_sub(earlier),
            None => self.since_start().max(self.unix.saturating_sub(earlier.unix)),
        }
    }

    /// How far ahead `later` is; zero when it has passed.
    pub fn until(self, later: Moment) -> Duration {
        later.since_start().saturating_sub(self.since_start())
    }

    /// The moment `duration` from this one.
    pub fn plus(self, duration: Duration) -> Self {
        Self { elapsed: self.elapsed.map(|elapsed| elapsed + duration), unix: self.unix + duration }
    }

    /// The moment `duration` before this one.
    pub fn minus(self, duration: Duration) -> Self {
        Self {
            elapsed: self.elapsed.and_then(|elapsed| elapsed.checked_sub(duration)),
            unix: self.unix.saturating_sub(duration),
        }
    }
}

/// The controller's clock. Only the event loop and the host tasks hold one.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix: Duration,
    speed: f64,
}

impl Clock {
    /// A clock that begins now and runs `speed` times as fast as the wall's; other than 1.0 only for simulations.
    pub fn start(speed: f64) -> Self {
        let start_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_unix, speed }
    }

    /// How many seconds of this clock pass in one second.
    pub fn speed(&self) -> f64 {
        self.speed
    }

    /// This moment.
    pub fn now(&self) -> Moment {
        let elapsed = self.start.elapsed().mul_f64(self.speed);
        // The wall clock is read anew at true speed, so that a step of it shows; a simulation has its own.
        let unix = if (self.speed - 1.0).abs() < f64::EPSILON {
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
        } else {
            self.start_unix + elapsed
        };
        Moment::new(elapsed, unix)
    }

    /// The moment that lies `duration` of real time ahead.
    pub fn after(&self, duration: Duration) -> Moment {
        self.now().plus(duration.mul_f64(self.speed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_measures_from_before_the_start() {
        let moment =
            |elapsed: u64, unix: u64| Moment::new(Duration::from_secs(elapsed), Duration::from_secs(1_000_000 + unix));
        let now = moment(100, 100);
        assert_eq!(now.since(moment(40, 40)), Duration::from_secs(60));
        assert_eq!(now.since(moment(40, 9000)), Duration::from_secs(60), "a step of the wall clock changes no age");
        let before = |unix: u64| Moment { elapsed: None, unix: Duration::from_secs(unix) };
        assert_eq!(now.since(before(500_000)), Duration::from_secs(500_100));
        assert_eq!(now.since(before(1_005_000)), Duration::from_secs(100), "a clock that was set back");
        assert_eq!(now.since(moment(0, 0)), Duration::from_secs(100));
        assert_eq!(now.since(moment(0, 5000)), Duration::from_secs(100), "the start is not before the start");
        assert_eq!(now.since(moment(200, 200)), Duration::ZERO);
        assert_eq!(now.minus(Duration::from_secs(100)), moment(0, 0));
        assert_eq!(now.minus(Duration::from_secs(101)), before(999_999));
        assert!(before(999_999) < moment(0, 0));
    }
}
