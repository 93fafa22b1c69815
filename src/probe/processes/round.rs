//! Whose turn it is with what is not looked at in every sample.

/// The most processes that one sample looks at again, and the most lines that it reads of those that run; the others
/// follow with the next sample.
pub(super) const MAX_LOOKS: usize = 64;

/// Who is looked at in one sample. Whoever was looked at half a period ago or earlier is taken along with another whose
/// turn it is: four processes in each sample cost more than forty in one of ten, since the processor has forgotten by
/// then how it is done.
#[derive(Debug)]
pub(super) struct Round {
    /// Whoever was looked at then or earlier.
    until: f64,
    left: usize,
}

impl Round {
    /// Among those who were looked at then, once in so many seconds.
    pub(super) fn new(period: f64, now: f64, looked_at: impl Iterator<Item = f64>) -> Self {
        let is_due = looked_at.min_by(f64::total_cmp).is_some_and(|oldest| now - oldest >= period);
        Self { until: now - if is_due { period / 2.0 } else { period }, left: MAX_LOOKS }
    }

    /// Whether the one that was last looked at then is looked at now.
    pub(super) fn takes(&mut self, looked_at: f64) -> bool {
        let takes = self.left > 0 && looked_at <= self.until;
        self.left -= usize::from(takes);
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_by_the_clock() {
        for (interval, expected) in [(0.25, 79.0 * 0.25), (1.0, 20.0), (2.0, 20.0), (5.0, 20.0), (30.0, 30.0)] {
            let due = (1..100).map(|sample| f64::from(sample) * interval).find(|&now| {
                // A sample may come some milliseconds early.
                Round::new(19.5, now - 0.005, [0.0].into_iter()).takes(0.0)
            });
            assert_eq!(due, Some(expected), "every {interval} s");
        }
        let mut round = Round::new(10.0, 10.0, [0.0, 5.0, 5.1].into_iter());
        assert_eq!([0.0, 5.0, 5.1].map(|then| round.takes(then)), [true, true, false]);
    }
}
