//! Which host has which GPUs, who sits on them, and what is wrong there.

use super::cast::{A100, ALICE, BOB, CAROL, DMITRI, ERIKA, FUMI, GUSTAV, H100, HANA, Kind, Model, PEOPLE};
use super::dice;
use super::seat::{Seat, Turns};
use crate::hosts::HostConfig;

/// One simulated server.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) model: &'static Model,
    pub(super) gpu_count: usize,
    pub(super) seats: Vec<Seat>,
    pub(super) trouble: Trouble,
    /// How long it had been up when the demo began.
    pub(super) up_seconds: f64,
    /// Its jobs come through Slurm. Elsewhere people log in, and a GPU that nobody holds is free for anybody.
    pub(super) uses_slurm: bool,
    /// The number of its last Slurm job before the demo.
    pub(super) slurm_base: u64,
}

/// What is wrong with a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Nothing,
    /// Its network goes away now and then.
    Outages,
    /// The driver was updated and the host not rebooted.
    VersionMismatch,
    /// This GPU fell off the bus.
    GpuLost(usize),
}

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// How long a host's network is away, and how long from one time to the next.
pub(super) const OUTAGE_SECONDS: f64 = 40.0;
const OUTAGE_EVERY_SECONDS: f64 = 260.0;
/// When the first one begins on the default fleet: after one has looked around, before one has left.
const FIRST_OUTAGE_SECONDS: f64 = 75.0;

impl Plan {
    /// The host with this number in a fleet of `hosts`.
    pub(super) fn new(seed: u64, index: u32, hosts: u32, gpu_count: usize) -> Self {
        let seed = dice::hash(&[seed, u64::from(index)]);
        let (cast, trouble, model) = role(index, seed, gpu_count);
        let digits = hosts.to_string().len().max(2);
        Self {
            name: format!("hgx-{:0digits$}", index + 1),
            seed,
            model,
            gpu_count,
            seats: seats(&cast, seed, gpu_count),
            trouble,
            // Longer than anything runs.
            up_seconds: dice::between(20.0 * DAY, 90.0 * DAY, &[seed, 20]),
            uses_slurm: index % 4 < 2,
            // Two neighbours share the numbers of their long jobs: those run across both.
            slurm_base: 3300 + u64::from(index / 2) * 17,
        }
    }

    /// Whether it can be reached `elapsed` seconds after the start.
    pub(super) fn is_reachable(&self, elapsed: f64) -> bool {
        if self.trouble != Trouble::Outages {
            return true;
        }
        let since = elapsed - FIRST_OUTAGE_SECONDS;
        since < 0.0 || since % OUTAGE_EVERY_SECONDS >= OUTAGE_SECONDS
    }

    /// What hosts.toml would say of it.
    pub(super) fn config(&self) -> HostConfig {
        HostConfig { tags: vec![self.model.tag.into()], ..HostConfig::named(self.name.as_str()) }
    }
}

/// A seat before its GPUs are known: how many, what, whose, and since when.
#[derive(Clone, Copy)]
struct Part(usize, Kind, usize, f64);

fn role(index: u32, seed: u64, gpu_count: usize) -> (Vec<Part>, Trouble, &'static Model) {
    use Kind::{Evaluation, Free, HangsLater, Hot, Hung, Inference, Notebook, Pretrain, Shared, Starved, Training};
    let anybody = dice::hash(&[seed, 30]) as usize % PEOPLE.len();
    let mixed = vec![
        Part(4, Training, ALICE, 3.2 * HOUR),
        Part(1, Evaluation, GUSTAV, 0.2 * HOUR),
        Part(1, Shared, BOB, 5.0 * HOUR),
        Part(1, Notebook, CAROL, 6.1 * DAY),
        Part(1, Free, 0, 0.0),
    ];
    match index {
        0 => (mixed, Trouble::Nothing, &H100),
        1 => (vec![Part(8, Pretrain, ERIKA, 19.4 * HOUR)], Trouble::Nothing, &H100),
        2 => {
            let parts = vec![
                Part(2, Hung, DMITRI, 9.7 * HOUR),
                Part(2, HangsLater, FUMI, 1.9 * HOUR),
                Part(1, Hot, HANA, 12.0 * 60.0),
                Part(1, Starved, BOB, 2.6 * HOUR),
                Part(1, Evaluation, ALICE, 0.1 * HOUR),
                Part(1, Free, 0, 0.0),
            ];
            (parts, Trouble::Nothing, &H100)
        }
        3 => {
            let parts = vec![
                Part(2, Inference, ALICE, 2.4 * DAY),
                Part(1, Evaluation, CAROL, 0.3 * HOUR),
                Part(1, Evaluation, CAROL, 0.1 * HOUR),
                Part(2, Training, DMITRI, 7.5 * HOUR),
                Part(1, Notebook, GUSTAV, 1.3 * DAY),
                Part(1, Free, 0, 0.0),
            ];
            (parts, Trouble::Nothing, &A100)
        }
        4 => {
            let parts = vec![
                Part(4, Inference, BOB, 11.0 * DAY),
                Part(1, Evaluation, HANA, 0.4 * HOUR),
                Part(1, Evaluation, FUMI, 0.2 * HOUR),
                Part(2, Free, 0, 0.0),
            ];
            (parts, Trouble::Outages, &H100)
        }
        5 => (mixed, Trouble::VersionMismatch, &H100),
        6 => (vec![Part(8, Pretrain, ERIKA, 30.0 * HOUR)], Trouble::Nothing, &H100),
        7 => (mixed, Trouble::GpuLost(gpu_count.saturating_sub(2)), &H100),
        _ => {
            let model = if dice::unit(&[seed, 31]) < 0.12 { &A100 } else { &H100 };
            let trouble = match dice::hash(&[seed, 32]) % 100 {
                0..2 => Trouble::Outages,
                2 => Trouble::VersionMismatch,
                3 => Trouble::GpuLost(dice::hash(&[seed, 33]) as usize % gpu_count.max(1)),
                _ => Trouble::Nothing,
            };
            let parts = match dice::hash(&[seed, 34]) % 20 {
                0..6 => vec![Part(8, Pretrain, anybody, 26.0 * HOUR)],
                6..9 => {
                    vec![Part(4, Inference, anybody, 3.0 * DAY), Part(2, Inference, BOB, DAY), Part(2, Free, 0, 0.0)]
                }
                9..12 => vec![Part(2, Evaluation, anybody, 0.2 * HOUR), Part(6, Free, 0, 0.0)],
                12 => vec![Part(2, Hung, anybody, 5.0 * HOUR), Part(4, Training, ALICE, 6.0 * HOUR)],
                13 => {
                    vec![Part(4, Training, anybody, 9.0 * HOUR), Part(1, Hot, HANA, HOUR), Part(3, Starved, BOB, HOUR)]
                }
                14 => vec![Part(6, Training, anybody, 14.0 * HOUR), Part(2, Notebook, CAROL, 2.2 * DAY)],
                _ => mixed,
            };
            (parts, trouble, model)
        }
    }
}

/// Fits the parts to the GPUs that there are: repeated on larger hosts, cut off on smaller ones.
fn seats(parts: &[Part], seed: u64, gpu_count: usize) -> Vec<Seat> {
    let mut seats = Vec::new();
    let mut taken = 0;
    for (number, Part(count, kind, person, began)) in (0_u64..).zip(parts.iter().cycle()) {
        let count = match kind {
            Kind::Pretrain => gpu_count - taken,
            _ => (*count).min(gpu_count - taken),
        };
        if count == 0 {
            break;
        }
        let seat_seed = dice::hash(&[seed, 40, number]);
        let round = number as usize / parts.len();
        let turns = (*kind == Kind::Evaluation).then(|| Turns {
            run_seconds: dice::between(420.0, 1500.0, &[seat_seed, 1]),
            gap_seconds: dice::between(25.0, 160.0, &[seat_seed, 2]),
        });
        seats.push(Seat {
            number,
            gpus: taken..taken + count,
            kind: *kind,
            person: (person + round) % PEOPLE.len(),
            began_seconds: began + dice::between(70.0, 600.0, &[seat_seed, 3]),
            turns,
            seed: seat_seed,
        });
        taken += count;
    }
    seats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_has_one_seat_on_hosts_of_any_size() {
        for gpus in [1, 2, 7, 8, 16, 30] {
            for index in 0..200 {
                let plan = Plan::new(1, index, 200, gpus);
                let seated: Vec<usize> = plan.seats.iter().flat_map(|seat| seat.gpus.clone()).collect();
                assert_eq!(seated, (0..gpus).collect::<Vec<_>>(), "host {index}");
                assert!(plan.seats.iter().all(|seat| seat.began_seconds < plan.up_seconds));
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
        assert!(plan.is_reachable(0.0) && plan.is_reachable(FIRST_OUTAGE_SECONDS - 1.0));
        assert!(!plan.is_reachable(FIRST_OUTAGE_SECONDS + 1.0));
        assert!(plan.is_reachable(FIRST_OUTAGE_SECONDS + OUTAGE_SECONDS + 1.0));
        assert!(!plan.is_reachable(FIRST_OUTAGE_SECONDS + OUTAGE_EVERY_SECONDS + 1.0));
        assert!((0..500).all(|second| Plan::new(1, 0, 6, 8).is_reachable(f64::from(second))));
    }
}
