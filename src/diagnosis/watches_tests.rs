use super::super::grade::Ladder;
use super::*;
use crate::fleet::fixture::at;

/// Watches of one host, and one condition that is told every ten seconds.
struct Bench {
    watches: Watches,
    t: f64,
    transitions: Vec<Transition>,
}

enum Told {
    Holds,
    Between,
    Unknown,
    Gone,
    NotThere,
}

use Told::{Between, Gone, Holds, NotThere, Unknown};

impl Bench {
    fn new() -> Self {
        Self { watches: Watches::default(), t: 100.0, transitions: Vec::new() }
    }

    fn tell(&mut self, times: u32, told: &Told) -> Phase {
        for _ in 0..times {
            self.t += 10.0;
            let beat = Beat::new(at(self.t), 10.0);
            self.watches.begin_named(HostId(0), &"hgx-00".into(), beat, false, 0);
            let grade =
                Grade::new(Ladder::two((Severity::Warn, 60.0), (Severity::Crit, 180.0)), Confidence::Likely, 30.0);
            match told {
                Holds => self.watches.holds(RuleId::HostRamLow, &Target::Host, grade, |lasted, _| Words {
                    sentence: format!("{lasted:.0} s"),
                    ..Words::default()
                }),
                Between => self.watches.between(RuleId::HostRamLow, &Target::Host),
                Unknown => self.watches.hold(RuleId::HostRamLow, &Target::Host),
                Gone | NotThere => {}
            }
            self.watches.finish(|_| !matches!(told, NotThere));
            self.watches.settle(&mut self.transitions);
        }
        self.watches.phase(RuleId::HostRamLow, &Target::Host)
    }

    fn path(&self) -> Vec<(&'static str, &'static str, bool)> {
        let step = |transition: &Transition| (transition.to.word(), transition.severity.word(), transition.notify);
        self.transitions.iter().map(step).collect()
    }
}

#[test]
fn a_finding_goes_through_its_phases() {
    let mut bench = Bench::new();
    assert_eq!(bench.tell(6, &Holds), Phase::Pending);
    assert_eq!(bench.tell(1, &Holds), Phase::Firing);
    assert_eq!(bench.tell(12, &Holds), Phase::Firing);
    assert_eq!(bench.tell(1, &Gone), Phase::Resolving);
    assert_eq!(bench.tell(3, &Gone), Phase::Clear);
    assert_eq!(
        bench.path(),
        [
            ("pending", "warn", false),
            ("firing", "warn", true),
            ("firing", "crit", true),
            ("resolving", "crit", false),
            ("clear", "crit", false)
        ]
    );
    assert_eq!(bench.transitions[1].sentence, "60 s");
    assert_eq!(bench.transitions[1].id, "host-ram-low/hgx-00");
}

#[test]
fn what_is_between_begins_anew_while_pending_and_holds_while_firing() {
    let mut bench = Bench::new();
    bench.tell(5, &Holds);
    assert_eq!(bench.tell(1, &Between), Phase::Clear);
    assert_eq!(bench.tell(6, &Holds), Phase::Pending);
    assert_eq!(bench.tell(1, &Holds), Phase::Firing);
    assert_eq!(bench.tell(2, &Gone), Phase::Resolving);
    assert_eq!(bench.tell(20, &Between), Phase::Firing);
}

#[test]
fn missing_data_neither_fires_nor_resolves() {
    let mut bench = Bench::new();
    bench.tell(3, &Holds);
    assert_eq!(bench.tell(50, &Unknown), Phase::Pending);
    assert_eq!(bench.tell(1, &Holds), Phase::Pending, "a window needs most of its samples");
    assert_eq!(bench.tell(3, &Holds), Phase::Firing);
    assert_eq!(bench.tell(50, &Unknown), Phase::Firing);
}

#[test]
fn what_no_longer_exists_needs_no_time_to_clear() {
    let mut bench = Bench::new();
    bench.tell(10, &Holds);
    assert_eq!(bench.tell(1, &NotThere), Phase::Clear);
}

#[test]
fn it_is_told_again_only_after_hours() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        bench.tell(8, &Holds);
        bench.tell(200, &Gone);
    }
    assert_eq!(bench.path().iter().filter(|(.., notify)| *notify).count(), 1);
    bench.tell(2200, &Gone);
    bench.tell(8, &Holds);
    assert_eq!(bench.path().iter().filter(|(.., notify)| *notify).count(), 2);
}

#[test]
fn a_rule_that_is_off_says_nothing() {
    let mut watches = Watches::default();
    let beat = Beat::new(at(10.0), 10.0);
    watches.begin_named(HostId(0), &"hgx-00".into(), beat, false, 1 << RuleId::HostRamLow as u64);
    let grade = Grade::new(Ladder::one(Severity::Warn, 0.0), Confidence::Likely, 0.0);
    watches.holds(RuleId::HostRamLow, &Target::Host, grade, |_, _| Words::default());
    let mut transitions = Vec::new();
    watches.settle(&mut transitions);
    assert!(transitions.is_empty() && !watches.has_any());
}

#[test]
fn there_is_an_end_to_what_is_watched() {
    let mut watches = Watches::default();
    watches.begin_named(HostId(0), &"hgx-00".into(), Beat::new(at(10.0), 10.0), false, 0);
    let grade = Grade::new(Ladder::one(Severity::Warn, 0.0), Confidence::Likely, 0.0);
    for number in 0..10_000 {
        let target = Target::Xid("GPU-0".into(), number);
        watches.holds(RuleId::XidSeen, &target, grade, |_, _| Words::default());
    }
    assert_eq!(watches.all.len(), MAX_WATCHES);
}
