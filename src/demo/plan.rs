//! Which host has which GPUs, who sits on them, and what is wrong there.

use super::cast::{A100, ALICE, BOB, CAROL, H100, HANA, Model, PEOPLE};
use super::dice;
use super::fate::{Fate, What};
use super::incident::{Event, Incident};
use super::lab::{self, Driver, Place, Role, Run};
use super::seat::{Seat, Turns};
use super::work::Kind;
use crate::hosts::HostConfig;

/// In seconds, as all times.
pub(super) const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
const GIB: f64 = (1_u64 << 30) as f64;

/// One simulated server.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) model: &'static Model,
    pub(super) gpu_count: usize,
    pub(super) seats: Vec<Seat>,
    pub(super) incidents: Vec<Incident>,
    pub(super) driver: Driver,
    /// How long it had been up when the demo began.
    pub(super) up_seconds: f64,
    /// Its jobs come through Slurm. Elsewhere people log in, and a GPU that nobody holds is free for anybody.
    pub(super) uses_slurm: bool,
    /// The number of its last Slurm job before the demo.
    pub(super) slurm_base: u64,
}

impl Plan {
    /// The host with this number in a fleet of `hosts`.
    pub(super) fn new(seed: u64, index: u32, hosts: u32, gpu_count: usize) -> Self {
        let seed = dice::hash(&[seed, u64::from(index)]);
        let role = lab::role(index).unwrap_or_else(|| further(seed, gpu_count));
        let digits = hosts.to_string().len().max(2);
        Self {
            name: format!("hgx-{:0digits$}", index + 1),
            seed,
            model: role.model,
            gpu_count,
            seats: seats(&role.places, seed, gpu_count),
            incidents: role.incidents.into_iter().filter(|incident| incident.fits(gpu_count)).collect(),
            driver: role.driver,
            // Longer than anything runs.
            up_seconds: dice::between(20.0 * DAY, 90.0 * DAY, &[seed, 20]),
            uses_slurm: index % 4 < 2,
            // Two neighbours share the numbers of their long jobs: those run across both.
            slurm_base: 3300 + u64::from(index / 2) * 17,
        }
    }

    /// Whether it can be reached `elapsed` seconds after the start.
    pub(super) fn is_reachable(&self, elapsed: f64) -> bool {
        !self.now(elapsed).any(|incident| incident.what == Event::Away)
    }

    /// What befalls it at this moment.
    pub(super) fn now(&self, elapsed: f64) -> impl Iterator<Item = &Incident> {
        self.incidents.iter().filter(move |incident| incident.is_at(elapsed))
    }

    /// What hosts.toml would say of it.
    pub(super) fn config(&self) -> HostConfig {
        HostConfig { tags: vec![self.model.tag.into()], ..HostConfig::named(self.name.as_str()) }
    }
}

/// A host beyond those of [`lab`]: most are like others, a few have something.
fn further(seed: u64, gpu_count: usize) -> Role {
    let anybody = dice::hash(&[seed, 30]) as usize % PEOPLE.len();
    let model = if dice::unit(&[seed, 31]) < 0.12 { &A100 } else { &H100 };
    let old = |gpus, kind, person, seconds| Place { gpus, runs: vec![Run::old(kind, person, seconds)] };
    let free = |gpus| old(gpus, Kind::Free, 0, 0.0);
    let places = match dice::hash(&[seed, 34]) % 20 {
        0..6 => vec![old(8, Kind::Pretrain, anybody, 26.0 * HOUR)],
        6..9 => vec![old(4, Kind::Inference, anybody, 3.0 * DAY), old(2, Kind::Inference, BOB, DAY), free(2)],
        9..12 => vec![old(2, Kind::Evaluation, anybody, 0.2 * HOUR), free(6)],
        12 => {
            let mut hung = old(2, Kind::Training, anybody, 5.0 * HOUR);
            hung.runs[0].fates = vec![Fate::new(-240.0, f64::INFINITY, What::Hangs)];
            vec![hung, old(4, Kind::Training, ALICE, 6.0 * HOUR)]
        }
        13 => {
            vec![
                old(4, Kind::Training, anybody, 9.0 * HOUR),
                old(1, Kind::Hot, HANA, HOUR),
                old(3, Kind::Video, BOB, HOUR),
            ]
        }
        14 => vec![old(6, Kind::Training, anybody, 14.0 * HOUR), old(2, Kind::Notebook, CAROL, 2.2 * DAY)],
        _ => lab::ordinary().places,
    };
    let lost = |gpu: usize| vec![Incident::since(-600.0, Event::Lost { gpu })];
    let (incidents, driver) = match dice::hash(&[seed, 32]) % 100 {
        0..2 => ((0..20).map(|time| lab::away(1.25 + 6.0 * f64::from(time), 40.0)).collect(), Driver::Usual),
        2 => (Vec::new(), Driver::Mismatched),
        3 => (lost(dice::hash(&[seed, 33]) as usize % gpu_count.max(1)), Driver::Usual),
        _ => (Vec::new(), Driver::Usual),
    };
    Role { model, places, incidents, driver }
}

/// Fits the places to the GPUs that there are: repeated on larger hosts, cut off on smaller ones.
fn seats(places: &[Place], seed: u64, gpu_count: usize) -> Vec<Seat> {
    let mut seats: Vec<Seat> = Vec::new();
    let mut taken = 0;
    for (number, place) in places.iter().cycle().enumerate() {
        let is_whole = place.runs.iter().any(|run| run.kind == Kind::Pretrain);
        let count = if is_whole { gpu_count - taken } else { place.gpus.min(gpu_count - taken) };
        if count == 0 {
            break;
        }
        let round = number / places.len();
        for run in &place.runs {
            let number = seats.len() as u64;
            seats.push(seat(run, number, round, taken..taken + count, dice::hash(&[seed, 40, number])));
        }
        taken += count;
    }
    seats
}

fn seat(run: &Run, number: u64, round: usize, gpus: std::ops::Range<usize>, seed: u64) -> Seat {
    let takes_turns = run.kind == Kind::Evaluation && run.script.is_none();
    let turns = takes_turns.then(|| Turns {
        run_seconds: dice::between(420.0, 1500.0, &[seed, 1]),
        gap_seconds: dice::between(25.0, 160.0, &[seed, 2]),
    });
    Seat {
        number,
        gpus,
        kind: run.kind,
        script: run.script,
        person: (run.person + round) % PEOPLE.len(),
        began_seconds: match run.begins {
            Ok(minute) => -minute * MINUTE,
            Err(seconds) => seconds + dice::between(70.0, 600.0, &[seed, 3]),
        },
        left_seconds: run.ends * MINUTE,
        turns,
        fates: run.fates.clone(),
        leak_bytes_per_hour: run.leak_gib_per_hour * GIB,
        seed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_gpu_has_one_seat_at_a_time_on_hosts_of_any_size() {
        for gpus in [1, 2, 7, 8, 16, 30] {
            for index in 0..200 {
                let plan = Plan::new(1, index, 200, gpus);
                for elapsed in [0.0, 1900.0, 3000.0, 4400.0, 7000.0] {
                    let at = |seat: &&Seat| seat.began_seconds + elapsed >= 0.0 && elapsed < seat.left_seconds;
                    let seated: Vec<usize> = plan.seats.iter().filter(at).flat_map(|seat| seat.gpus.clone()).collect();
                    let mut once = seated.clone();
                    once.dedup();
                    assert_eq!(seated, once, "host {index}: two jobs on one GPU");
                }
                let all: BTreeSet<usize> = plan.seats.iter().flat_map(|seat| seat.gpus.clone()).collect();
                assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..gpus).collect::<Vec<_>>(), "host {index}");
                assert!(plan.seats.iter().all(|seat| seat.began_seconds < plan.up_seconds));
                assert!(plan.incidents.iter().all(|incident| incident.fits(gpus)));
            }
        }
    }

    #[test]
    fn a_fleet_of_any_size_has_sorted_names() {
        let name = |index, hosts| Plan::new(1, index, hosts, 8).name;
        assert_eq!((name(0, 6), name(5, 6)), ("hgx-01".to_owned(), "hgx-06".to_owned()));
        assert_eq!((name(0, 1000), name(999, 1000)), ("hgx-0001".to_owned(), "hgx-1000".to_owned()));
    }

    #[test]
    fn outages_come_and_go_on_their_host_only() {
        let plan = Plan::new(1, 4, 6, 8);
        let seen = [0.0, 74.0, 76.0, 114.0, 116.0, 2999.0, 3001.0, 3419.0, 3421.0].map(|at| plan.is_reachable(at));
        assert_eq!(seen, [true, true, false, false, true, true, false, false, true]);
        assert!((0..500).all(|second| Plan::new(1, 0, 6, 8).is_reachable(f64::from(second))));
    }
}
