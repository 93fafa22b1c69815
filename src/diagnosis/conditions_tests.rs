use super::super::evaluation::Escalation;
use super::*;
use crate::fleet::fixture::at;

/// Conditions of one host, and one condition that is told every ten seconds.
struct ConditionsTester {
    conditions: Conditions,
    t: f64,
    transitions: Vec<Transition>,
}

enum TestCondition {
    Holds,
    Between,
    Unknown,
    Gone,
    NotThere,
}

use TestCondition::{Between, Gone, Holds, NotThere, Unknown};

impl ConditionsTester {
    fn new() -> Self {
        Self { conditions: Conditions::default(), t: 100.0, transitions: Vec::new() }
    }

    fn sample(&mut self, times: u32, state: &TestCondition) -> FindingPhase {
        for _ in 0..times {
            self.t += 10.0;
            let sample_time = SampleTime::new(at(self.t), 10.0);
            self.conditions.begin_sample_for(HostId(0), &"hgx-00".into(), sample_time, false, 0);
            let evaluation = Evaluation::new(
                Escalation::two((Severity::Warn, 60.0), (Severity::Crit, 180.0)),
                Confidence::Likely,
                30.0,
            );
            match state {
                Holds => self.conditions.met(RuleId::HostRamLow, &FindingTarget::Host, evaluation, |lasted, _| {
                    FindingDetails { sentence: format!("{lasted:.0} s"), ..FindingDetails::default() }
                }),
                Between => self.conditions.in_hysteresis(RuleId::HostRamLow, &FindingTarget::Host),
                Unknown => self.conditions.unknown(RuleId::HostRamLow, &FindingTarget::Host),
                Gone | NotThere => {}
            }
            self.conditions.finish_sample(|_| !matches!(state, NotThere));
            self.conditions.publish(&mut self.transitions);
        }
        self.conditions.phase(RuleId::HostRamLow, &FindingTarget::Host)
    }

    fn path(&self) -> Vec<(&'static str, &'static str, bool)> {
        let step = |transition: &Transition| (transition.to.word(), transition.severity.word(), transition.notify);
        self.transitions.iter().map(step).collect()
    }
}

#[test]
fn a_finding_goes_through_its_phases() {
    let mut tester = ConditionsTester::new();
    assert_eq!(tester.sample(6, &Holds), FindingPhase::Pending);
    assert_eq!(tester.sample(1, &Holds), FindingPhase::Firing);
    assert_eq!(tester.sample(12, &Holds), FindingPhase::Firing);
    assert_eq!(tester.sample(1, &Gone), FindingPhase::Resolving);
    assert_eq!(tester.sample(3, &Gone), FindingPhase::Clear);
    assert_eq!(
        tester.path(),
        [
            ("pending", "warn", false),
            ("firing", "warn", true),
            ("firing", "crit", true),
            ("resolving", "crit", false),
            ("clear", "crit", false)
        ]
    );
    assert_eq!(tester.transitions[1].sentence, "60 s");
    assert_eq!(tester.transitions[1].id, "host-ram-low/hgx-00");
}

#[test]
fn what_is_between_begins_anew_while_pending_and_holds_while_firing() {
    let mut tester = ConditionsTester::new();
    tester.sample(5, &Holds);
    assert_eq!(tester.sample(1, &Between), FindingPhase::Clear);
    assert_eq!(tester.sample(6, &Holds), FindingPhase::Pending);
    assert_eq!(tester.sample(1, &Holds), FindingPhase::Firing);
    assert_eq!(tester.sample(2, &Gone), FindingPhase::Resolving);
    assert_eq!(tester.sample(20, &Between), FindingPhase::Firing);
}

#[test]
fn missing_data_neither_fires_nor_resolves() {
    let mut tester = ConditionsTester::new();
    tester.sample(3, &Holds);
    assert_eq!(tester.sample(50, &Unknown), FindingPhase::Pending);
    assert_eq!(tester.sample(1, &Holds), FindingPhase::Pending, "a window needs most of its samples");
    assert_eq!(tester.sample(3, &Holds), FindingPhase::Firing);
    assert_eq!(tester.sample(50, &Unknown), FindingPhase::Firing);
}

#[test]
fn what_no_longer_exists_needs_no_time_to_clear() {
    let mut tester = ConditionsTester::new();
    tester.sample(10, &Holds);
    assert_eq!(tester.sample(1, &NotThere), FindingPhase::Clear);
}

#[test]
fn it_is_told_again_only_after_hours() {
    let mut tester = ConditionsTester::new();
    for _ in 0..2 {
        tester.sample(8, &Holds);
        tester.sample(200, &Gone);
    }
    assert_eq!(tester.path().iter().filter(|(.., notify)| *notify).count(), 1);
    tester.sample(2200, &Gone);
    tester.sample(8, &Holds);
    assert_eq!(tester.path().iter().filter(|(.., notify)| *notify).count(), 2);
}

#[test]
fn a_rule_that_is_off_says_nothing() {
    let mut conditions = Conditions::default();
    let sample_time = SampleTime::new(at(10.0), 10.0);
    conditions.begin_sample_for(HostId(0), &"hgx-00".into(), sample_time, false, 1 << RuleId::HostRamLow as u64);
    let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Likely, 0.0);
    conditions.met(RuleId::HostRamLow, &FindingTarget::Host, evaluation, |_, _| FindingDetails::default());
    let mut transitions = Vec::new();
    conditions.publish(&mut transitions);
    assert!(transitions.is_empty() && !conditions.is_tracking_any());
}

#[test]
fn there_is_an_end_to_what_is_watched() {
    let mut conditions = Conditions::default();
    conditions.begin_sample_for(HostId(0), &"hgx-00".into(), SampleTime::new(at(10.0), 10.0), false, 0);
    let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Likely, 0.0);
    for number in 0..10_000 {
        let target = FindingTarget::Xid("GPU-0".into(), number);
        conditions.met(RuleId::XidSeen, &target, evaluation, |_, _| FindingDetails::default());
    }
    assert_eq!(conditions.all.len(), MAX_CONDITIONS);
}
