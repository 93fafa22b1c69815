//! When the next try begins: a pure function of how many failed, with the randomness passed in.

use crate::fleet::RetryPolicy;
use std::time::Duration;

/// The most that the first try after a failure waits; it doubles with each further failure.
const FIRST: Duration = Duration::from_secs(1);
/// The most that any try waits.
const LONGEST: Duration = Duration::from_secs(60);
/// The least that any try waits, so that luck cannot make a busy loop.
const SHORTEST: Duration = Duration::from_millis(250);
/// A wait that a server asked for is prolonged by up to this share, so that many hosts do not come back at once.
const SPREAD: f64 = 0.1;

/// How long a connection must have lived for the failures before it to be forgotten. Shorter-lived ones count as
/// failures: a probe that is killed right after its first sample must not be started twice a second for ever.
pub(super) const STABLE_CONNECTION: Duration = Duration::from_secs(60);

/// How long to wait after `failures` tries have failed in a row (1 after the first), or `None` when only the user may
/// ask for another try. `random` is uniform in 0..1.
///
/// Full jitter: uniform between nothing and a ceiling that doubles from 1 s to 60 s. See "Exponential Backoff And
/// Jitter", AWS Architecture Blog, 2015.
pub(super) fn delay(retry: RetryPolicy, failures: u32, random: f64) -> Option<Duration> {
    let random = random.clamp(0.0, 1.0);
    match retry {
        RetryPolicy::OnRequest => None,
        RetryPolicy::After(least) => Some(least + least.mul_f64(SPREAD * random)),
        RetryPolicy::Backoff => Some(ceiling(failures).mul_f64(random).max(SHORTEST)),
    }
}

fn ceiling(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (FIRST * 2_u32.pow(doublings)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_doubles_and_stops_at_a_minute() {
        let ceilings: Vec<u64> = (0..10).map(|failures| ceiling(failures).as_secs()).collect();
        assert_eq!(ceilings, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(ceiling(u32::MAX), LONGEST);
    }

    #[test]
    fn the_wait_is_spread_over_the_whole_range_and_never_nothing() {
        assert_eq!(delay(RetryPolicy::Backoff, 5, 0.0), Some(SHORTEST));
        assert_eq!(delay(RetryPolicy::Backoff, 5, 0.5), Some(Duration::from_secs(8)));
        assert_eq!(delay(RetryPolicy::Backoff, u32::MAX, 1.0), Some(LONGEST));
        assert_eq!(delay(RetryPolicy::Backoff, 3, f64::NAN.max(0.0)), Some(SHORTEST));
    }

    #[test]
    fn a_wait_that_was_asked_for_is_kept() {
        let five_minutes = Duration::from_secs(300);
        assert_eq!(delay(RetryPolicy::After(five_minutes), 1, 0.0), Some(five_minutes));
        assert_eq!(delay(RetryPolicy::After(five_minutes), 9, 1.0), Some(Duration::from_secs(330)));
        assert_eq!(delay(RetryPolicy::OnRequest, 1, 0.5), None);
    }
}
