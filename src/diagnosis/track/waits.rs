//! How long the GPUs of a job spun until they worked again: a job that waited may wait as long again.

/// Shorter waits are not counted, in seconds.
const MIN_WAIT: f64 = 60.0;

/// The waits of a job, and the one that goes on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits {
    /// When the present wait began. An `f32` is precise enough, and keeps the state of a job small.
    since: Option<f32>,
    /// The longest part of the present wait without a rank at work, in seconds.
    unworked: f32,
    /// The longest wait, in seconds.
    pub(crate) longest: f32,
    /// The longest part of a wait without a rank at work, in seconds.
    pub(crate) longest_unworked: f32,
    /// How many waits have ended.
    pub(crate) count: u8,
}

impl Waits {
    /// Notes at `t` that a GPU has spun since `since`. `worked_at`: when a rank last worked.
    pub(super) fn go_on(&mut self, since: f64, worked_at: Option<f64>, t: f64) {
        let since = self.since.map_or(since, |earlier| f64::from(earlier).min(since));
        self.since = Some(since as f32);
        self.unworked = self.unworked.max((t - worked_at.map_or(since, |at| at.max(since))) as f32);
    }

    /// Notes at `t` that the GPUs work again.
    pub(super) fn end(&mut self, t: f64) {
        let unworked = std::mem::take(&mut self.unworked);
        if let Some(since) = self.since.take().map(f64::from).filter(|since| t - since >= MIN_WAIT) {
            self.longest = self.longest.max((t - since) as f32);
            self.longest_unworked = self.longest_unworked.max(unworked);
            self.count = self.count.saturating_add(1);
        }
    }

    /// Forgets the present wait: after a gap in the data nobody knows how long it lasted.
    pub(crate) fn drop_present(&mut self) {
        (self.since, self.unworked) = (None, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait begins at 1000 s, is observed at these times with the last work of a rank, and ends at 2000 s.
    fn after(observed: &[(f64, Option<f64>)]) -> Waits {
        let mut waits = Waits::default();
        for (t, worked_at) in observed {
            waits.go_on(1000.0, *worked_at, *t);
        }
        waits.end(2000.0);
        waits
    }

    #[test]
    fn the_longest_part_without_work_counts() {
        let waits = after(&[(1900.0, Some(900.0)), (1990.0, Some(1990.0))]);
        assert_eq!((waits.longest, waits.longest_unworked, waits.count), (1000.0, 900.0, 1), "a rank goes first");
        let unworked = |observed: &[(f64, Option<f64>)]| after(observed).longest_unworked.to_string();
        assert_eq!(unworked(&[(1500.0, Some(1490.0)), (1990.0, Some(1970.0))]), "20");
        assert_eq!(unworked(&[(1990.0, None)]), "990");
    }

    #[test]
    fn a_short_wait_and_one_across_a_gap_in_the_data_do_not_count() {
        let mut waits = Waits::default();
        waits.go_on(1000.0, None, 1030.0);
        waits.end(1040.0);
        assert_eq!((waits.longest, waits.count), (0.0, 0));
        waits.go_on(2000.0, None, 2100.0);
        waits.drop_present();
        waits.end(20_000.0);
        assert_eq!((waits.longest, waits.count), (0.0, 0), "nobody has seen it wait for five hours");
    }
}
