//! How busy a GPU is over time, with the integral in closed form.
//!
//! Utilisation is a mean over the last second, power a mean over a tenth, temperature follows the last minute, and the
//! energy counter is the integral of it all: since each of these is a difference of the same integral, they agree with
//! each other at every moment and at every sampling interval.

use super::rng;
use std::f64::consts::TAU;

/// Work that repeats: steps with a dip between them, and now and then a pause (a checkpoint, a lull).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Steps and one pause, in seconds.
    pub(super) cycle_seconds: f64,
    /// The pause at the end of a cycle.
    pub(super) pause_seconds: f64,
    /// One step, its dip included.
    pub(super) step_seconds: f64,
    /// The dip at the end of a step.
    pub(super) dip_seconds: f64,
    /// Share of time with a kernel running, within a step.
    pub(super) high: f64,
    /// The same within a dip.
    pub(super) low: f64,
    /// The same within a pause.
    pub(super) pause: f64,
}

impl Load {
    /// The same share all the time.
    pub(super) const fn steady(level: f64) -> Self {
        Self {
            cycle_seconds: 60.0,
            pause_seconds: 0.0,
            step_seconds: 60.0,
            dip_seconds: 0.0,
            high: level,
            low: level,
            pause: level,
        }
    }

    /// Seconds of work done in the first `seconds`.
    pub(super) fn work(&self, seconds: f64) -> f64 {
        let seconds = seconds.max(0.0);
        let busy = self.cycle_seconds - self.pause_seconds;
        let cycles = (seconds / self.cycle_seconds).floor();
        let rest = seconds - cycles * self.cycle_seconds;
        let whole = self.steps(busy) + self.pause * self.pause_seconds;
        cycles * whole + self.steps(rest.min(busy)) + self.pause * (rest - busy).max(0.0)
    }

    fn steps(&self, seconds: f64) -> f64 {
        let up = self.step_seconds - self.dip_seconds;
        let steps = (seconds / self.step_seconds).floor();
        let rest = seconds - steps * self.step_seconds;
        let whole = self.high * up + self.low * self.dip_seconds;
        steps * whole + self.high * rest.min(up) + self.low * (rest - up).max(0.0)
    }
}

/// Length of one swing of [`noise_integral`].
const SWING_SECONDS: f64 = 3.7;

/// The integral, up to `seconds`, of an irregular swing between -1 and 1 that sums to nothing over each of its cells.
/// Cells that do not end before `until` are flat, so that nothing is left over there.
pub(super) fn noise_integral(seconds: f64, until: f64, seed: u64) -> f64 {
    let cell = (seconds / SWING_SECONDS).floor();
    if seconds < 0.0 || (cell + 1.0) * SWING_SECONDS > until {
        return 0.0;
    }
    let amplitude = rng::between(-1.0, 1.0, &[seed, cell as u64]);
    let within = seconds / SWING_SECONDS - cell;
    amplitude * SWING_SECONDS / TAU * (1.0 - (TAU * within).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINING: Load = Load {
        cycle_seconds: 100.0,
        pause_seconds: 10.0,
        step_seconds: 7.0,
        dip_seconds: 1.0,
        high: 0.9,
        low: 0.3,
        pause: 0.05,
    };

    #[test]
    fn the_integral_has_the_slopes_of_its_levels() {
        let slope = |at: f64| (TRAINING.work(at + 0.01) - TRAINING.work(at)) / 0.01;
        for (at, level) in [(1.0, 0.9), (6.5, 0.3), (8.0, 0.9), (95.0, 0.05), (101.0, 0.9), (1006.5, 0.3)] {
            assert!((slope(at) - level).abs() < 1e-6, "{at}: {}", slope(at));
        }
    }

    #[test]
    fn the_integrals_are_continuous() {
        for tenth in 0..5000 {
            let at = f64::from(tenth) / 10.0;
            assert!((0.0..=0.1).contains(&(TRAINING.work(at + 0.1) - TRAINING.work(at) + 1e-12)));
            assert!((noise_integral(at + 0.1, 480.0, 3) - noise_integral(at, 480.0, 3)).abs() <= 0.1 + 1e-9, "{at}");
        }
        assert!(noise_integral(481.0, 480.0, 3).abs() < 1e-12);
    }
}
