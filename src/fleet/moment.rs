//! Time as an argument.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One moment on the controller's clock. Ages and windows are differences of `elapsed`; `unix` is for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Time since the controller began, monotonic.
    pub elapsed: Duration,
    /// Time since 1970 on the wall clock.
    pub unix: Duration,
}

impl Moment {
    /// How long ago `earlier` was; zero when it lies ahead. Of what was before the controller began, which has no
    /// `elapsed`, the wall clock tells.
    pub fn since(self, earlier: Moment) -> Duration {
        if earlier.elapsed.is_zero() {
            return self.elapsed.max(self.unix.saturating_sub(earlier.unix));
        }
        self.elapsed.saturating_sub(earlier.elapsed)
    }

    /// How far ahead `later` is; zero when it has passed.
    pub fn until(self, later: Moment) -> Duration {
        later.elapsed.saturating_sub(self.elapsed)
    }

    /// The moment `duration` from this one.
    pub fn plus(self, duration: Duration) -> Self {
        Self { elapsed: self.elapsed + duration, unix: self.unix + duration }
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
        Moment { elapsed, unix }
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
    fn what_was_before_the_beginning_is_as_old_as_the_wall_clock_says() {
        let moment = |elapsed: u64, unix: u64| Moment {
            elapsed: Duration::from_secs(elapsed),
            unix: Duration::from_secs(1_000_000 + unix),
        };
        let now = moment(100, 100);
        assert_eq!(now.since(moment(40, 40)), Duration::from_secs(60));
        assert_eq!(now.since(moment(40, 9000)), Duration::from_secs(60), "a step of the wall clock changes no age");
        assert_eq!(
            now.since(Moment { unix: Duration::from_secs(500_000), ..moment(0, 0) }),
            Duration::from_secs(500_100)
        );
        assert_eq!(now.since(moment(0, 0)), Duration::from_secs(100));
        assert_eq!(now.since(moment(0, 5000)), Duration::from_secs(100), "a clock that was set back");
        assert_eq!(now.since(moment(200, 200)), Duration::ZERO);
    }
}
