//! Every rule fires on the default simulated fleet within two hours of simulated time, which is two minutes at
//! `--demo-speed 60`.

use crate::config::Thresholds;
use crate::diagnosis::{Engine, FindingPhase, RuleId, Transition};
use crate::fleet::{Clock, Fleet, HostId, HostUpdate, LinkError, LinkErrorKind, Moment};
use crate::sim::{SimulatedFleet, SimulatedProbe};
use crate::wire::{Message, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SPEED: f64 = 60.0;
/// Two minutes of real time.
const SECONDS: u64 = 120 * 60;
/// Seconds of silence until a connection is stale, and until it is dropped; both in real time.
const STALE: f64 = 3.0 * SPEED;
const DROPPED: f64 = 10.0 * SPEED;

/// One host and its connection, as `collect` keeps it.
struct Line {
    probe: Option<SimulatedProbe>,
    heard: f64,
    is_stale: bool,
}

impl Line {
    /// Returns the updates that reach the fleet at `now`.
    fn updates(&mut self, demo: &SimulatedFleet, id: HostId, now: Moment, interval: Duration) -> Vec<HostUpdate> {
        let t = now.since_start().as_secs_f64();
        let Some(probe) = &mut self.probe else {
            let Some(mut probe) = demo.probe(id).filter(|probe| probe.is_reachable(now)) else {
                return Vec::new();
            };
            assert_eq!(
                probe.take(
                    &Request::Interval {
                        seconds: interval.as_secs_f32(),
                        shift_seconds: None,
                        earlier_slurm_jobs: vec![]
                    },
                    now
                ),
                None
            );
            let mut updates: Vec<HostUpdate> = update(probe.hello(now)).into_iter().collect();
            updates.extend(probe.sample(now).into_iter().filter_map(update));
            *self = Self { probe: Some(probe), heard: t, is_stale: false };
            return updates;
        };
        if probe.is_reachable(now) {
            (self.heard, self.is_stale) = (t, false);
            return probe.sample(now).into_iter().filter_map(update).collect();
        }
        if t - self.heard >= DROPPED {
            self.probe = None;
            let error = LinkError::new(LinkErrorKind::Silent, "no data received for 10 s");
            return vec![HostUpdate::Down { error, retry_at: None, attempt: 1 }];
        }
        if t - self.heard >= STALE && !std::mem::replace(&mut self.is_stale, true) {
            return vec![HostUpdate::Silent];
        }
        Vec::new()
    }
}

fn update(message: Message) -> Option<HostUpdate> {
    Some(match message {
        Message::Hello(hello) => HostUpdate::Hello(Box::new(hello)),
        Message::Inventory(inventory) => HostUpdate::Inventory(Box::new(inventory)),
        Message::Snapshot(snapshot) => HostUpdate::Snapshot(snapshot),
        _ => return None,
    })
}

/// Runs a simulated fleet for `seconds` of simulated time.
fn watch(hosts: u32, gpus: u32, seconds: u64) -> Vec<Transition> {
    let demo = SimulatedFleet::new(hosts, gpus, Clock::start(SPEED));
    let configs = demo.configs();
    let mut fleet = Fleet::new(&configs, true, Moment::default());
    let mut engine = Engine::new(Arc::new(Thresholds::default()));
    let mut lines: Vec<Line> = configs.iter().map(|_| Line { probe: None, heard: 0.0, is_stale: false }).collect();
    let mut transitions = Vec::new();
    for second in 0..seconds {
        let now = Moment::default().plus(Duration::from_secs(second));
        for (place, line) in lines.iter_mut().enumerate() {
            let (id, interval) = (HostId(place as u32), configs[place].interval);
            if (second + place as u64).is_multiple_of(interval.as_secs()) {
                for update in line.updates(&demo, id, now, interval) {
                    fleet.apply(id, update, now);
                    transitions.extend(engine.evaluate_host(&fleet, id, now));
                }
            }
        }
        transitions.extend(engine.tick(&fleet, now));
    }
    transitions
}

/// Returns the minute in which each rule fired first.
fn fired(transitions: &[Transition]) -> BTreeMap<&'static str, u64> {
    let mut fired = BTreeMap::new();
    for transition in transitions.iter().filter(|transition| transition.to == FindingPhase::Firing) {
        fired.entry(transition.rule.word()).or_insert(transition.at.since_start().as_secs() / 60);
    }
    fired
}

#[test]
fn each_rule_fires_within_two_minutes_at_sixty_times_the_speed() {
    let fired = fired(&watch(6, 8, SECONDS));
    let all: BTreeSet<&str> = RuleId::ALL.iter().map(|rule| rule.word()).collect();
    let silent: Vec<&&str> = all.iter().filter(|rule| !fired.contains_key(**rule)).collect();
    assert!(silent.is_empty(), "never fired: {silent:?}; fired, by minute: {fired:?}");
}

#[test]
fn the_first_minutes_show_only_driver_findings() {
    let transitions = watch(6, 8, 70);
    let fired = fired(&transitions);
    let known = ["driver-mismatch", "driver-skew", "persistence-off"];
    assert!(fired.keys().all(|rule| known.contains(rule)), "{fired:?}");
}

#[test]
fn a_small_fleet_has_findings_too() {
    let fired = fired(&watch(3, 2, 1000));
    assert!(fired.contains_key("stuck-spin-suspect"), "{fired:?}");
}
