//! A seat: some GPUs of a host and what runs on them, one job after the other.

use super::cast::Model;
use super::fate::{Fate, Mode, What};
use super::work::Kind;
use super::{dice, load};
use std::collections::BTreeMap;
use std::ops::Range;

/// How long a job takes to load before it computes.
const LOADING_SECONDS: f64 = 38.0;
/// How far one rank of a job is behind another.
const MOST_BEHIND_SECONDS: f64 = 0.9;
/// How far power swings at full load.
const SWING_SHARE: f64 = 0.05;

/// Some GPUs of a host, and what runs there.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    /// Its number on the host.
    pub(super) number: u64,
    /// Positions of its GPUs. Another seat may have the same, for another time.
    pub(super) gpus: Range<usize>,
    pub(super) kind: Kind,
    /// What is run, where the kind does not say it.
    pub(super) script: Option<&'static str>,
    /// Whose it is, by index into [`super::cast::PEOPLE`].
    pub(super) person: usize,
    /// How long before the start of the demo it began; below 0 it begins after the start.
    pub(super) began_seconds: f64,
    /// How long after the start of the demo the seat is left.
    pub(super) left_seconds: f64,
    /// How long a job runs and how long the seat is then free; `None` for what never ends.
    pub(super) turns: Option<Turns>,
    /// What befalls its job, one after the other.
    pub(super) fates: Vec<Fate>,
    /// Memory that it takes more of from the start of the demo on, bytes an hour.
    pub(super) leak_bytes_per_hour: f64,
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
        if self.kind == Kind::Free || elapsed < -self.began_seconds || elapsed >= self.left_seconds {
            return None;
        }
        let (turn, age_seconds) = self.turn(elapsed);
        let lasts = self.turns.map_or(f64::INFINITY, |turns| turns.run_seconds);
        let lasts = ended.get(&(self.number, turn)).map_or(lasts, |age| age.min(lasts));
        (age_seconds < lasts).then_some(Job { turn, age_seconds })
    }

    /// Since when something has befallen its job, in seconds after the start of the demo.
    pub(super) fn befallen(&self, what: What, elapsed: f64) -> Option<f64> {
        self.fates.iter().find(|fate| fate.what == what && fate.is_at(elapsed)).map(|fate| fate.from)
    }

    /// How the rank on one of its GPUs uses it.
    pub(super) fn mode(&self, gpu: usize, elapsed: f64) -> Mode {
        let now = self.fates.iter().filter(|fate| fate.is_at(elapsed));
        now.map(|fate| fate.what.mode(self.rank(gpu))).find(|mode| *mode != Mode::Works).unwrap_or(Mode::Works)
    }

    /// Energy that its jobs have taken of one of its GPUs beyond what the GPU takes without a context, in joules.
    pub(super) fn energy(&self, model: &Model, gpu: usize, elapsed: f64, ended: &Ended) -> f64 {
        if self.kind == Kind::Free || elapsed < -self.began_seconds {
            return 0.0;
        }
        let (turn, age) = self.turn(elapsed.min(self.left_seconds));
        let run = self.turns.map_or(f64::INFINITY, |turns| turns.run_seconds);
        let job = |age: f64| self.run_energy(model, gpu, age);
        let before = if turn == 0 { 0.0 } else { turn as f64 * job(run) };
        // What jobs that a signal ended have not taken.
        let spared: f64 =
            ended.range((self.number, 0)..(self.number, turn)).map(|(_, lasted)| job(run) - job(lasted.min(run))).sum();
        let lasts = ended.get(&(self.number, turn)).map_or(run, |lasted| lasted.min(run));
        before - spared + job(age.min(lasts))
    }

    /// Seconds of kernel time on one of its GPUs in its job's first `age` seconds.
    pub(super) fn work(&self, gpu: usize, age: f64) -> f64 {
        self.sum(gpu, age, |mode, from, to| match mode {
            Mode::Works => self.healthy_work(gpu, to) - self.healthy_work(gpu, from),
            Mode::Less(share) => share * (self.healthy_work(gpu, to) - self.healthy_work(gpu, from)),
            Mode::Spins => to - from,
            Mode::Rests => 0.0,
        })
    }

    /// CPU time of the rank on one of its GPUs in its first `age` seconds.
    pub(super) fn cpu_seconds(&self, gpu: usize, age: f64) -> f64 {
        let cpus = self.kind.figures().cpus;
        let used = self.sum(gpu, age, |mode, from, to| (to - from) * cpus_of(mode, cpus));
        self.kind.early_cpu_seconds() + used
    }

    /// CPUs that the rank on one of its GPUs keeps busy, and those that its helpers do.
    pub(super) fn cpus(&self, gpu: usize, elapsed: f64) -> (f64, f64) {
        let (mode, figures) = (self.mode(gpu, elapsed), self.kind.figures());
        let helpers = if matches!(mode, Mode::Works | Mode::Less(_)) { figures.helper_cpus } else { 0.0 };
        (cpus_of(mode, figures.cpus), helpers)
    }

    fn rank(&self, gpu: usize) -> usize {
        gpu - self.gpus.start
    }

    fn healthy_work(&self, gpu: usize, age: f64) -> f64 {
        // The ranks of a job are not quite in step.
        let behind = dice::between(0.0, MOST_BEHIND_SECONDS, &[self.seed, gpu as u64, 4]);
        self.kind.figures().load.work((age - LOADING_SECONDS - behind).max(0.0))
    }

    fn run_energy(&self, model: &Model, gpu: usize, age: f64) -> f64 {
        let figures = self.kind.figures();
        let variety = dice::between(0.965, 1.03, &[self.seed, gpu as u64, 1]);
        let full = (model.power_limit_watts - model.context_watts) * figures.power_share * variety;
        let until = self.turns.map_or(f64::INFINITY, |turns| turns.run_seconds);
        let context = model.context_watts - model.idle_watts;
        let spin = model.spin_watts * dice::between(1.0, 1.15, &[self.seed, gpu as u64, 2]) - model.idle_watts;
        let swing = |age| load::wobble(age, until, self.seed ^ gpu as u64) * full * SWING_SHARE;
        let computing = |from, to, share: f64| {
            let work = self.healthy_work(gpu, to) - self.healthy_work(gpu, from);
            context * (to - from) + share * (full * work + swing(to) - swing(from))
        };
        self.sum(gpu, age, |mode, from, to| match mode {
            Mode::Works => computing(from, to, 1.0),
            Mode::Less(share) => computing(from, to, share),
            Mode::Spins => spin * (to - from),
            Mode::Rests => context * (to - from),
        })
    }

    /// Adds up over the times of a job's first `age` seconds in which a rank used its GPU in one way.
    fn sum(&self, gpu: usize, age: f64, of: impl Fn(Mode, f64, f64) -> f64) -> f64 {
        let (mut at, mut total) = (0.0, 0.0);
        for fate in &self.fates {
            let mode = fate.what.mode(self.rank(gpu));
            let from = (fate.from + self.began_seconds).clamp(at, age);
            let until = (fate.until + self.began_seconds).clamp(from, age);
            if mode == Mode::Works {
                continue;
            }
            total += of(Mode::Works, at, from) + of(mode, from, until);
            at = until;
        }
        total + of(Mode::Works, at, age)
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

/// A rank that waits in a collective keeps one CPU busy; one that rests, none.
fn cpus_of(mode: Mode, cpus: f64) -> f64 {
    match mode {
        Mode::Works | Mode::Less(_) => cpus,
        Mode::Spins => 1.0,
        Mode::Rests => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::cast::H100;
    use super::*;

    fn seat(kind: Kind, turns: Option<Turns>, fates: &[Fate]) -> Seat {
        Seat {
            number: 3,
            gpus: 0..2,
            kind,
            script: None,
            person: 0,
            began_seconds: 100.0,
            left_seconds: f64::INFINITY,
            turns,
            fates: fates.to_vec(),
            leak_bytes_per_hour: 0.0,
            seed: 9,
        }
    }

    const TURNS: Turns = Turns { run_seconds: 300.0, gap_seconds: 60.0 };

    #[test]
    fn jobs_follow_one_another_and_a_signal_ends_one() {
        let seat = seat(Kind::Evaluation, Some(TURNS), &[]);
        let job = |elapsed| seat.job(elapsed, &Ended::new()).map(|job| (job.turn, job.age_seconds));
        assert_eq!(job(0.0), Some((0, 100.0)));
        assert_eq!((job(199.0), job(201.0)), (Some((0, 299.0)), None));
        assert_eq!(job(261.0), Some((1, 1.0)));
        let ended = Ended::from([((3, 1), 20.0)]);
        assert_eq!(seat.job(285.0, &ended), None);
        assert!(seat.job(640.0, &ended).is_some(), "the next one is another job");
    }

    #[test]
    fn a_seat_is_taken_for_its_time_only() {
        let seat = Seat { began_seconds: -50.0, left_seconds: 400.0, ..seat(Kind::Training, None, &[]) };
        let runs = [49.0, 50.0, 399.0, 400.0].map(|elapsed| seat.job(elapsed, &Ended::new()).is_some());
        assert_eq!(runs, [false, true, true, false]);
        let energy = |elapsed| seat.energy(&H100, 0, elapsed, &Ended::new());
        assert!(energy(49.0) == 0.0 && energy(399.0) > 10_000.0);
        assert!((energy(400.0) - energy(900.0)).abs() < 1e-9, "nothing more after its end");
    }

    #[test]
    fn energy_only_rises_and_never_faster_than_the_limit() {
        let befalls = [Fate::new(5.0, 9.0, What::LosesRank(1)), Fate::new(11.0, 13.0, What::Straggles(1))];
        let turns = [
            (Kind::Pretrain, None),
            (Kind::Evaluation, Some(TURNS)),
            (Kind::Training, None),
            (Kind::Notebook, None),
            (Kind::Free, None),
        ];
        for (kind, turns) in turns {
            let fates = if kind == Kind::Training { &befalls[..] } else { &[] };
            let seat = seat(kind, turns, fates);
            let ended = Ended::from([((3, 1), 20.0), ((3, 2), 200.0)]);
            for ended in [Ended::new(), ended] {
                for step in 0..6000 {
                    let at = f64::from(step) * 0.5;
                    let watts = (seat.energy(&H100, 1, at + 0.5, &ended) - seat.energy(&H100, 1, at, &ended)) / 0.5;
                    let watts = H100.idle_watts + watts;
                    assert!((50.0..=H100.power_limit_watts).contains(&watts), "{kind:?} at {at}: {watts}");
                }
            }
        }
    }

    #[test]
    fn a_job_that_hangs_draws_little_from_then_on() {
        let seat = seat(Kind::Training, None, &[Fate::new(6.5, f64::INFINITY, What::Hangs)]);
        let watts = |at: f64| {
            H100.idle_watts
                + (seat.energy(&H100, 0, at + 60.0, &Ended::new()) - seat.energy(&H100, 0, at, &Ended::new())) / 60.0
        };
        assert!(watts(270.0) > 400.0);
        assert!(watts(391.0) < 125.0);
        assert_eq!((seat.befallen(What::Hangs, 389.0), seat.befallen(What::Hangs, 390.0)), (None, Some(390.0)));
        assert_eq!(seat.mode(0, 390.0), Mode::Spins);
        let busy = seat.work(0, 100.0 + 390.0 + 11.0) - seat.work(0, 100.0 + 390.0 + 10.0);
        assert!((busy - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_lost_rank_rests_while_the_others_spin_and_its_cpu_time_stands_still() {
        let seat = seat(Kind::Training, None, &[Fate::new(10.0, 20.0, What::LosesRank(1))]);
        assert_eq!(
            (seat.mode(0, 900.0), seat.mode(1, 900.0), seat.mode(1, 1300.0)),
            (Mode::Spins, Mode::Rests, Mode::Works)
        );
        let used = |gpu, age: f64| seat.cpu_seconds(gpu, age);
        assert!((used(1, 1000.0) - used(1, 800.0)).abs() < 1e-9);
        assert!((used(0, 1000.0) - used(0, 800.0) - 200.0).abs() < 1e-9);
        assert!((seat.work(1, 1000.0) - seat.work(1, 800.0)).abs() < 1e-9);
    }
}
