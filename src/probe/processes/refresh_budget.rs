//! Whose turn it is with what is not looked at in every sample.

/// The most processes that one sample looks at again, and the most lines that it reads of those that run; the others
/// follow with the next sample.
pub(super) const MAX_REFRESHES: usize = 64;

/// Who is looked at in one sample. Whoever was looked at half a period ago or earlier is taken along with another whose
/// turn it is: four processes in each sample cost more than forty in one of ten, since the processor has forgotten by
/// then how it is done.
#[derive(Debug)]
pub(super) struct RefreshBudget {
    /// Whoever was looked at then or earlier.
    due_before: f64,
    remaining: usize,
}

impl RefreshBudget {
    /// Among those who were looked at then, once in so many seconds.
    pub(super) fn new(period: f64, now: f64, read_at: impl Iterator<Item = f64>) -> Self {
        let is_due = read_at.min_by(f64::total_cmp).is_some_and(|oldest| now - oldest >= period);
        Self { due_before: now - if is_due { period / 2.0 } else { period }, remaining: MAX_REFRESHES }
    }

    /// Whether the one that was last looked at then is looked at now.
    pub(super) fn try_take(&mut self, read_at: f64) -> bool {
        let try_take = self.remaining > 0 && read_at <= self.due_before;
        self.remaining -= usize::from(try_take);
        try_take
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_due_by_the_clock() {
        for (interval, expected) in [(0.25, 79.0 * 0.25), (1.0, 20.0), (2.0, 20.0), (5.0, 20.0), (30.0, 30.0)] {
            let due = (1..100).map(|sample| f64::from(sample) * interval).find(|&now| {
                // A sample may come some milliseconds early.
                RefreshBudget::new(19.5, now - 0.005, [0.0].into_iter()).try_take(0.0)
            });
            assert_eq!(due, Some(expected), "every {interval} s");
        }
        let mut budget = RefreshBudget::new(10.0, 10.0, [0.0, 5.0, 5.1].into_iter());
        assert_eq!([0.0, 5.0, 5.1].map(|read_at| budget.try_take(read_at)), [true, true, false]);
    }
}
