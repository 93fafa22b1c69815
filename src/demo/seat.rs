//! A seat: some GPUs of a host and what runs on them, one job after the other.

use super::cast::{Kind, Model};
use super::{dice, load};
use std::collections::BTreeMap;
use std::ops::Range;

/// How long a job takes to load before it computes.
const LOADING_SECONDS: f64 = 38.0;
/// When the job that hangs later does so, after the start of the demo.
pub(super) const HANGS_AFTER_SECONDS: f64 = 390.0;
/// How far one rank of a job is behind another.
const MOST_BEHIND_SECONDS: f64 = 0.9;
/// How far power swings at full load.
const SWING_SHARE: f64 = 0.05;

/// Some GPUs of a host, and what runs there.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    /// Its number on the host.
    pub(super) number: u64,
    /// Positions of its GPUs.
    pub(super) gpus: Range<usize>,
    pub(super) kind: Kind,
    /// Whose it is, by index into [`super::cast::PEOPLE`].
    pub(super) person: usize,
    /// How long before the start of the demo it began.
    pub(super) began_seconds: f64,
    /// How long a job runs and how long the seat is then free; `None` for what never ends.
    pub(super) turns: Option<Turns>,
    /// Makes this seat differ from others of its kind.
    pub(super) seed: u64,
}

/// One job after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turns {
    pub(super) run_seconds: f64,
    pub(super) gap_seconds: f64,
}

/// A job that runs now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Job {
    /// Which one on this seat, from 0.
    pub(super) turn: u64,
    pub(super) age_seconds: f64,
}

/// Jobs that were ended by a signal: how old they were, by seat and turn.
pub(super) type Ended = BTreeMap<(u64, u64), f64>;

/// How much of its memory a job has taken by this age.
pub(super) fn loaded(age: f64) -> f64 {
    (age / LOADING_SECONDS).clamp(0.02, 1.0)
}

impl Seat {
    /// The job that runs `elapsed` seconds after the start of the demo.
    pub(super) fn job(&self, elapsed: f64, ended: &Ended) -> Option<Job> {
        if self.kind == Kind::Free {
            return None;
        }
        let (turn, age_seconds) = self.turn(elapsed);
        let lasts = self.turns.map_or(f64::INFINITY, |turns| turns.run_seconds);
        let lasts = ended.get(&(self.number, turn)).map_or(lasts, |age| age.min(lasts));
        (age_seconds < lasts).then_some(Job { turn, age_seconds })
    }

    /// Whether its job is hung by now.
    pub(super) fn is_hung(&self, elapsed: f64) -> bool {
        self.kind == Kind::Hung || self.kind == Kind::HangsLater && elapsed >= HANGS_AFTER_SECONDS
    }

    /// Energy that one of its GPUs has taken since the seat began, in joules.
    pub(super) fn energy(&self, model: &Model, gpu: usize, elapsed: f64, ended: &Ended) -> f64 {
        let idle = model.idle_watts * self.idle_variety(gpu);
        if self.kind == Kind::Free {
            return idle * (self.began_seconds + elapsed);
        }
        let (turn, age) = self.turn(elapsed);
        let run = self.turns.map_or(f64::INFINITY, |turns| turns.run_seconds);
        let gap = self.turns.map_or(0.0, |turns| turns.gap_seconds);
        let job = |age: f64, lasts: f64| self.run_energy(model, gpu, age.min(lasts)) + idle * (age - lasts).max(0.0);
        let before = if turn == 0 { 0.0 } else { turn as f64 * (job(run, run) + idle * gap) };
        // What jobs that a signal ended have not taken.
        let spared: f64 = ended
            .range((self.number, 0)..(self.number, turn))
            .map(|(_, lasted)| job(run, run) - job(run, *lasted))
            .sum();
        let lasts = ended.get(&(self.number, turn)).map_or(run, |lasted| lasted.min(run));
        before - spared + job(age, lasts)
    }

    /// Seconds of kernel time on one of its GPUs in its job's first `age` seconds.
    pub(super) fn work(&self, gpu: usize, age: f64) -> f64 {
        let figures = self.kind.figures();
        // The ranks of a job are not quite in step.
        let behind = dice::between(0.0, MOST_BEHIND_SECONDS, &[self.seed, gpu as u64, 4]);
        let healthy = (age.min(self.hangs_at()) - LOADING_SECONDS - behind).max(0.0);
        figures.load.work(healthy) + (age - self.hangs_at()).max(0.0)
    }

    fn run_energy(&self, model: &Model, gpu: usize, age: f64) -> f64 {
        let figures = self.kind.figures();
        if self.kind == Kind::Hung {
            return age * self.spin_watts(model, gpu);
        }
        let healthy = age.min(self.hangs_at());
        let variety = dice::between(0.965, 1.03, &[self.seed, gpu as u64, 1]);
        let full = (model.power_limit_watts - model.context_watts) * figures.power_share * variety;
        let until = self.turns.map_or(f64::INFINITY, |turns| turns.run_seconds).min(self.hangs_at());
        let swing = load::wobble(healthy, until, self.seed ^ gpu as u64) * full * SWING_SHARE;
        let hung = (age - self.hangs_at()).max(0.0) * self.spin_watts(model, gpu);
        model.context_watts * healthy + full * self.work(gpu, healthy) + swing + hung
    }

    fn spin_watts(&self, model: &Model, gpu: usize) -> f64 {
        model.spin_watts * dice::between(1.0, 1.15, &[self.seed, gpu as u64, 2])
    }

    fn idle_variety(&self, gpu: usize) -> f64 {
        dice::between(0.94, 1.06, &[self.seed, gpu as u64, 3])
    }

    fn hangs_at(&self) -> f64 {
        if self.kind == Kind::HangsLater { self.began_seconds + HANGS_AFTER_SECONDS } else { f64::INFINITY }
    }

    fn turn(&self, elapsed: f64) -> (u64, f64) {
        let since = self.began_seconds + elapsed;
        match self.turns {
            None => (0, since),
            Some(Turns { run_seconds, gap_seconds }) => {
                let turn = (since / (run_seconds + gap_seconds)).floor();
                (turn as u64, since - turn * (run_seconds + gap_seconds))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cast::H100;
    use super::*;

    fn seat(kind: Kind, turns: Option<Turns>) -> Seat {
        Seat { number: 3, gpus: 0..2, kind, person: 0, began_seconds: 100.0, turns, seed: 9 }
    }

    const TURNS: Turns = Turns { run_seconds: 300.0, gap_seconds: 60.0 };

    #[test]
    fn jobs_follow_one_another_and_a_signal_ends_one() {
        let seat = seat(Kind::Evaluation, Some(TURNS));
        let job = |elapsed| seat.job(elapsed, &Ended::new()).map(|job| (job.turn, job.age_seconds));
        assert_eq!(job(0.0), Some((0, 100.0)));
        assert_eq!((job(199.0), job(201.0)), (Some((0, 299.0)), None));
        assert_eq!(job(261.0), Some((1, 1.0)));
        let ended = Ended::from([((3, 1), 20.0)]);
        assert_eq!(seat.job(285.0, &ended), None);
        assert!(seat.job(640.0, &ended).is_some(), "the next one is another job");
    }

    #[test]
    fn energy_only_rises_and_never_faster_than_the_limit() {
        for (kind, turns) in [
            (Kind::Pretrain, None),
            (Kind::Evaluation, Some(TURNS)),
            (Kind::Hung, None),
            (Kind::HangsLater, None),
            (Kind::Notebook, None),
            (Kind::Free, None),
        ] {
            let seat = seat(kind, turns);
            let ended = Ended::from([((3, 1), 20.0), ((3, 2), 200.0)]);
            for ended in [Ended::new(), ended] {
                for step in 0..6000 {
                    let at = f64::from(step) * 0.5;
                    let watts = (seat.energy(&H100, 1, at + 0.5, &ended) - seat.energy(&H100, 1, at, &ended)) / 0.5;
                    assert!((50.0..=H100.power_limit_watts).contains(&watts), "{kind:?} at {at}: {watts}");
                }
            }
        }
    }

    #[test]
    fn a_job_that_hangs_later_draws_little_from_then_on() {
        let seat = seat(Kind::HangsLater, None);
        let watts = |at: f64| {
            (seat.energy(&H100, 0, at + 60.0, &Ended::new()) - seat.energy(&H100, 0, at, &Ended::new())) / 60.0
        };
        assert!(watts(HANGS_AFTER_SECONDS - 120.0) > 400.0);
        assert!(watts(HANGS_AFTER_SECONDS + 1.0) < 125.0);
        assert!(!seat.is_hung(HANGS_AFTER_SECONDS - 1.0) && seat.is_hung(HANGS_AFTER_SECONDS));
        let busy = seat.work(0, 100.0 + HANGS_AFTER_SECONDS + 11.0) - seat.work(0, 100.0 + HANGS_AFTER_SECONDS + 10.0);
        assert!((busy - 1.0).abs() < 1e-9);
    }
}
