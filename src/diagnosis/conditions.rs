//! Turns conditions into findings that are pending, fire, resolve and are notified once.
//!
//! For each sample a rule reports that its condition is [met](Conditions::met) for a target, lies
//! [between](Conditions::in_hysteresis) the firing and the clearing threshold, or is [unknown](Conditions::unknown). A
//! target that a rule does not mention is clear. The rules keep no phases; all of that is here.

use super::condition::{Condition, Evaluation, Run, SampleTime, seconds};
use super::finding::{FindingDetails, FindingTarget, fingerprint};
use super::notification_state::{NotificationState, RENOTIFY_AFTER};
use super::{Confidence, Finding, FindingPhase, FindingVerdict, RuleId, Severity, Transition};
use crate::fleet::{Host, HostId, JobKey, Moment};
use crate::wire::SafeText;
use std::time::Duration;

/// How often the sentence is rewritten while only its figures change, in seconds.
const TEXT_REFRESH_SECONDS: f64 = 10.0;
/// The maximum number of conditions per host. If more hold, they have one cause.
const MAX_CONDITIONS: usize = 256;
/// The maximum number of cleared conditions per host that are remembered, so that they do not notify again. A host that
/// made hundreds of findings would otherwise have no room for new ones for hours.
const MAX_CLEARED: usize = 64;
/// How long verdicts stay valid at least after a gap: the job is examined again within this time.
const VERDICT_AFTER_GAP: Duration = Duration::from_secs(300);

/// The conditions of one host, or of the fleet.
#[derive(Debug, Clone, Default)]
pub(super) struct Conditions {
    all: Vec<Condition>,
    /// The number of samples.
    sample: u64,
    sample_time: Option<SampleTime>,
    disabled_rules: u64,
    host: Option<(HostId, SafeText)>,
}

impl Conditions {
    /// Begins a sample. `disabled_rules` has one bit per rule.
    pub(super) fn begin_sample(&mut self, host: &Host, sample_time: SampleTime, disabled_rules: u64) {
        self.begin_sample_for(host.id, host.name(), sample_time, disabled_rules);
    }

    pub(super) fn begin_sample_for(
        &mut self,
        id: HostId,
        name: &SafeText,
        sample_time: SampleTime,
        disabled_rules: u64,
    ) {
        self.sample += 1;
        self.sample_time = Some(sample_time);
        self.disabled_rules = disabled_rules;
        if self.host.as_ref().is_none_or(|(host, _)| *host != id) {
            self.host = Some((id, name.clone()));
        }
    }

    /// Reports that the condition of a rule holds for a target. `details` is called when the text is due to be
    /// rewritten, with the seconds that the condition has held and the severity.
    pub(super) fn met(
        &mut self,
        rule: RuleId,
        target: &FindingTarget,
        evaluation: Evaluation,
        details: impl FnOnce(f64, Severity) -> FindingDetails,
    ) {
        let (Some(sample_time), false) = (self.sample_time, self.is_disabled(rule)) else { return };
        let begun = Run { since: sample_time.t, covered: 0.0 };
        let Some(index) = self.find_or_insert(rule, target, begun) else { return };
        let sample = self.sample;
        let condition = &mut self.all[index];
        let is_new = condition.phase == FindingPhase::Clear;
        if is_new {
            condition.enter(FindingPhase::Pending, sample_time.t);
            condition.run = begun;
            condition.initial_severity = None;
            condition.finding.verdict = None;
        } else if condition.last_sample != sample {
            condition.run.covered += sample_time.dt;
        }
        if let Some(run) = evaluation.run {
            condition.run = run;
        }
        condition.last_sample = sample;
        condition.clear_run = None;
        condition.until = None;
        condition.clear_after = evaluation.clear_after;
        condition.finding.confidence = evaluation.confidence;
        condition.finding.at_least = evaluation.at_least;
        let reached = evaluation.escalation.reached(&condition.run, sample_time.t);
        let before = condition.severity;
        condition.severity = reached.unwrap_or(if condition.phase == FindingPhase::Pending {
            evaluation.escalation.first().0
        } else {
            before
        });
        if is_new && evaluation.is_preexisting {
            condition.initial_severity = Some(condition.severity);
        }
        match (reached, condition.phase) {
            (Some(_), FindingPhase::Pending) => {
                condition.finding.fired_at = Some(sample_time.now);
                condition.enter(FindingPhase::Firing, sample_time.t);
            }
            (_, FindingPhase::Resolving) => condition.enter(FindingPhase::Firing, sample_time.t),
            _ => {}
        }
        condition.finding.due = (condition.phase == FindingPhase::Pending).then(|| {
            sample_time.now.plus(seconds(evaluation.escalation.first().1 - (sample_time.t - condition.run.since)))
        });
        let is_warning = reached.is_some_and(|reached| reached >= Severity::Warn);
        condition.finding.warns_after = evaluation.escalation.warns_after().filter(|_| !is_warning).map(seconds);
        condition.finding.may_warn_after = evaluation.may_warn_after.filter(|_| !is_warning).map(seconds);
        condition.touch(sample_time);
        if is_new
            || condition.severity != before
            || sample_time.t - condition.text_updated_at >= TEXT_REFRESH_SECONDS
            || condition.fires_now()
        {
            condition.set_details(
                details((sample_time.t - condition.run.since).max(0.0), condition.severity),
                sample_time,
                self.host.as_ref(),
            );
        }
    }

    /// Reports an event: it fires at once and stays for `stay` seconds.
    pub(super) fn event(
        &mut self,
        rule: RuleId,
        target: &FindingTarget,
        severity: Severity,
        stay: f64,
        details: impl FnOnce() -> FindingDetails,
    ) {
        let (Some(sample_time), false) = (self.sample_time, self.is_disabled(rule)) else { return };
        let begun = Run { since: sample_time.t, covered: 0.0 };
        let Some(index) = self.find_or_insert(rule, target, begun) else { return };
        let sample = self.sample;
        let condition = &mut self.all[index];
        if condition.phase == FindingPhase::Firing {
            condition.severity = condition.severity.max(severity);
        } else {
            condition.severity = severity;
            condition.run = begun;
            condition.finding.fired_at = Some(sample_time.now);
            condition.enter(FindingPhase::Firing, sample_time.t);
        }
        condition.last_sample = sample;
        condition.until = Some(sample_time.t + stay);
        condition.clear_run = None;
        condition.finding.confidence = Confidence::Certain;
        condition.finding.due = None;
        condition.touch(sample_time);
        condition.set_details(details(), sample_time, self.host.as_ref());
    }

    /// Reports that the condition is neither met nor gone: a firing finding stays, a pending one starts again.
    pub(super) fn in_hysteresis(&mut self, rule: RuleId, target: &FindingTarget) {
        let (Some(sample_time), sample) = (self.sample_time, self.sample) else { return };
        let Some(condition) = self.find(rule, target) else { return };
        condition.last_sample = sample;
        match condition.phase {
            FindingPhase::Pending => condition.enter(FindingPhase::Clear, sample_time.t),
            FindingPhase::Resolving => {
                condition.clear_run = None;
                condition.enter(FindingPhase::Firing, sample_time.t);
            }
            FindingPhase::Firing | FindingPhase::Clear => {}
        }
        condition.touch(sample_time);
    }

    /// Reports that the condition cannot be evaluated: it keeps its phase.
    pub(super) fn unknown(&mut self, rule: RuleId, target: &FindingTarget) {
        let sample = self.sample;
        if let Some(condition) = self.find(rule, target) {
            condition.last_sample = sample;
        }
    }

    /// Reports that the conditions selected by `is_unknown` cannot be evaluated: they keep their phase.
    pub(super) fn unknown_where(&mut self, is_unknown: impl Fn(RuleId, &FindingTarget) -> bool) {
        for condition in self.all.iter_mut().filter(|condition| is_unknown(condition.finding.rule, &condition.target)) {
            condition.last_sample = self.sample;
        }
    }

    /// Ends a sample: conditions that no rule mentioned are clear. Conditions whose target does not exist any more
    /// clear without delay.
    pub(super) fn finish_sample(&mut self, exists: impl Fn(&FindingTarget) -> bool) {
        let Some(sample_time) = self.sample_time else { return };
        for condition in self.all.iter_mut().filter(|condition| condition.last_sample != self.sample) {
            condition.clear(sample_time, exists(&condition.target));
        }
        self.all.retain(|condition| {
            condition.phase != FindingPhase::Clear
                || condition.finding.phase != FindingPhase::Clear
                || (condition.notified_severity.is_some() && sample_time.t - condition.changed_at < RENOTIFY_AFTER)
        });
        self.limit_cleared();
        if self.all.capacity() > 2 * self.all.len() + 4 {
            self.all.shrink_to_fit();
        }
    }

    /// Keeps of the conditions that have cleared only what later notifications depend on, and only the newest.
    fn limit_cleared(&mut self) {
        let mut cleared_at: Vec<f64> = Vec::new();
        for condition in self.all.iter_mut().filter(|condition| condition.is_cleared()) {
            condition.drop_details();
            cleared_at.push(condition.changed_at);
        }
        if cleared_at.len() > MAX_CLEARED {
            cleared_at.sort_by(|one, other| other.total_cmp(one));
            let mut room = MAX_CLEARED;
            let oldest = cleared_at[MAX_CLEARED - 1];
            self.all.retain(|condition| {
                let is_kept = !condition.is_cleared() || (condition.changed_at >= oldest && room > 0);
                room -= usize::from(is_kept && condition.is_cleared());
                is_kept
            });
        }
    }

    /// All conditions that are not clear, inhibited or not.
    pub(super) fn active(&self) -> Vec<(RuleId, FindingTarget, FindingPhase)> {
        let active = self.all.iter().filter(|condition| condition.phase != FindingPhase::Clear);
        active.map(|condition| (condition.finding.rule, condition.target.clone(), condition.phase)).collect()
    }

    /// Inhibits the conditions for which `is_inhibited` returns true. Called once for each that is not clear.
    pub(super) fn inhibit(&mut self, is_inhibited: impl Fn(RuleId, &FindingTarget) -> bool) {
        for condition in self.all.iter_mut().filter(|condition| condition.phase != FindingPhase::Clear) {
            condition.is_inhibited = is_inhibited(condition.finding.rule, &condition.target);
        }
    }

    /// The findings of all jobs whose conditions are not clear, to be completed with the other hosts of the job.
    pub(super) fn job_findings_mut(&mut self) -> impl Iterator<Item = (&JobKey, &mut Finding)> {
        self.all.iter_mut().filter(|condition| condition.phase != FindingPhase::Clear).filter_map(|condition| {
            match &condition.target {
                FindingTarget::Job(key) => Some((key, &mut condition.finding)),
                _ => None,
            }
        })
    }

    /// The finding of a rule for a target, inhibited or not; `None` if its condition is clear.
    pub(super) fn active_finding(&self, rule: RuleId, target: &FindingTarget) -> Option<&Finding> {
        let same = |condition: &&Condition| condition.finding.rule == rule && condition.target == *target;
        let active = self.all.iter().find(same).filter(|condition| condition.phase != FindingPhase::Clear);
        active.map(|condition| &condition.finding)
    }

    /// Appends a transition for each finding that changed.
    pub(super) fn publish(&mut self, transitions: &mut Vec<Transition>) {
        let Some(sample_time) = self.sample_time else { return };
        for condition in &mut self.all {
            if let Some(transition) = condition.publish(sample_time) {
                transitions.push(transition);
            }
        }
    }

    /// The published findings with their targets.
    pub(super) fn findings(&self) -> impl Iterator<Item = (&FindingTarget, &Finding)> {
        let shown = self.all.iter().filter(|condition| condition.finding.phase != FindingPhase::Clear);
        shown.map(|condition| (&condition.target, &condition.finding))
    }

    /// The targets of the published findings of a rule.
    pub(super) fn published_targets(&self, rule: RuleId) -> impl Iterator<Item = &FindingTarget> {
        let of_rule = self.all.iter().filter(move |condition| condition.finding.rule == rule);
        of_rule.filter(|condition| condition.finding.phase != FindingPhase::Clear).map(|condition| &condition.target)
    }

    /// Whether a rule has a published finding for a target.
    pub(super) fn is_published(&self, rule: RuleId, target: &FindingTarget) -> bool {
        self.published_targets(rule).any(|other| other == target)
    }

    /// Since when the condition of a rule has held for a target, and its severity; `None` if it is clear.
    pub(super) fn state(&self, rule: RuleId, target: &FindingTarget) -> Option<(f64, Severity)> {
        let same = |condition: &&Condition| condition.finding.rule == rule && condition.target == *target;
        let active = self.all.iter().find(same).filter(|condition| condition.phase != FindingPhase::Clear);
        active.map(|condition| (condition.run.since, condition.severity))
    }

    /// Clears pending conditions without a transition.
    pub(super) fn restart_pending(&mut self) {
        for condition in self.all.iter_mut().filter(|condition| condition.phase == FindingPhase::Pending) {
            condition.phase = FindingPhase::Clear;
        }
    }

    /// Whether there is any condition, also one that cleared recently.
    pub(super) fn is_tracking_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Freezes or unfreezes the findings of a host that cannot, or can, be reached.
    pub(super) fn freeze(&mut self, is_frozen: bool) {
        for condition in &mut self.all {
            condition.finding.is_frozen = is_frozen && condition.finding.rule != RuleId::HostUnreachable;
        }
    }

    /// The notified conditions: fingerprint, notified severity, and when the condition cleared, if it did.
    pub(super) fn notified(&self) -> impl Iterator<Item = (&SafeText, Severity, Option<f64>)> {
        self.all.iter().filter_map(|condition| {
            let cleared = (condition.phase == FindingPhase::Clear).then_some(condition.changed_at);
            Some((&condition.finding.id, condition.notified_severity?, cleared))
        })
    }

    /// Adds the verdict of an examination to the findings about hangs that `is_about` selects, inhibited or not, or removes
    /// it. It changes what is published with the next sample.
    pub(super) fn set_verdict(&mut self, is_about: impl Fn(&Finding) -> bool, verdict: Option<&FindingVerdict>) {
        let hangs = self.all.iter_mut().filter(|condition| {
            condition.phase != FindingPhase::Clear && condition.finding.rule.is_hang() && is_about(&condition.finding)
        });
        hangs.for_each(|condition| condition.finding.verdict = verdict.cloned().map(Box::new));
    }

    /// Keeps the verdicts of examinations for some minutes after a gap in which none could be made, each one once.
    pub(super) fn keep_verdicts(&mut self, now: Moment) {
        for verdict in self.all.iter_mut().filter_map(|condition| condition.finding.verdict.as_mut()) {
            if verdict.until.unix <= verdict.at.unix.saturating_add(FindingVerdict::VALID) {
                verdict.until = verdict.until.max(now.plus(VERDICT_AFTER_GAP));
            }
        }
    }

    /// Whether the condition with this fingerprint is not clear, inhibited or not.
    pub(super) fn is_active(&self, id: &SafeText) -> bool {
        self.all.iter().any(|condition| condition.finding.id == *id && condition.phase != FindingPhase::Clear)
    }

    /// Applies notifications of earlier runs, and snoozes, at the time of the sample. To be called before `publish`.
    pub(super) fn apply_notification_state(&mut self, notification_state: &NotificationState) {
        if let Some(sample_time) = self.sample_time {
            self.apply_notification_state_at(notification_state, sample_time.now);
        }
    }

    /// As [`Self::apply_notification_state`], at any time.
    pub(super) fn apply_notification_state_at(&mut self, notification_state: &NotificationState, now: Moment) {
        if notification_state.is_empty() && self.all.iter().all(|condition| condition.finding.snoozed.is_none()) {
            return;
        }
        for condition in &mut self.all {
            if condition.notified_severity.is_none() {
                condition.notified_severity = notification_state.notified_severity(&condition.finding.id, now);
            }
            let snoozed = notification_state.snoozed(&condition.finding.id, condition.published_severity(), now);
            let was_snoozed = condition.finding.snoozed.is_some();
            condition.finding.snoozed = snoozed;
            // A snooze that ran out is followed by a reminder.
            condition.is_reminder |= was_snoozed && snoozed.is_none() && condition.phase == FindingPhase::Firing;
        }
    }

    /// Ends the snooze of a finding. The user who ends it has seen the finding, so no notification follows.
    pub(super) fn snooze_ended(&mut self, id: &SafeText) {
        for condition in self.all.iter_mut().filter(|condition| condition.finding.id == *id) {
            condition.finding.snoozed = None;
            if condition.finding.phase == FindingPhase::Firing {
                condition.notified_severity = condition.notified_severity.max(Some(condition.published_severity()));
            }
        }
    }

    /// The approximate size in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * std::mem::size_of::<Condition>()
    }

    fn is_disabled(&self, rule: RuleId) -> bool {
        self.disabled_rules & (1 << rule as u64) != 0
    }

    fn find(&mut self, rule: RuleId, target: &FindingTarget) -> Option<&mut Condition> {
        self.all.iter_mut().find(|condition| condition.finding.rule == rule && condition.target == *target)
    }

    fn find_or_insert(&mut self, rule: RuleId, target: &FindingTarget, run: Run) -> Option<usize> {
        let same = |condition: &Condition| condition.finding.rule == rule && condition.target == *target;
        if let Some(index) = self.all.iter().position(same) {
            return Some(index);
        }
        if self.all.len() >= MAX_CONDITIONS {
            return None;
        }
        let ((host, name), sample_time) = (self.host.clone()?, self.sample_time?);
        let mut finding = Finding::blank(rule, host, sample_time.now);
        finding.id = fingerprint(rule, &name, target);
        finding.phase = FindingPhase::Clear;
        finding.not = rule.info().not;
        if !target.is_fleet() {
            finding.hosts = vec![(host, name)];
        }
        self.all.push(Condition::new(target.clone(), finding, run, sample_time));
        Some(self.all.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::condition::Escalation;
    use super::*;
    use crate::fleet::fixture::at;

    /// The conditions of one host, with one condition that is reported every ten seconds.
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
        TargetGone,
    }

    use TestCondition::{Between, Gone, Holds, TargetGone, Unknown};

    impl ConditionsTester {
        fn new() -> Self {
            Self { conditions: Conditions::default(), t: 100.0, transitions: Vec::new() }
        }

        fn sample(&mut self, times: u32, state: &TestCondition) -> FindingPhase {
            for _ in 0..times {
                self.t += 10.0;
                let sample_time = SampleTime::new(at(self.t), 10.0);
                self.conditions.begin_sample_for(HostId(0), &"hgx-00".into(), sample_time, 0);
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
                    Gone | TargetGone => {}
                }
                self.conditions.finish_sample(|_| !matches!(state, TargetGone));
                self.conditions.publish(&mut self.transitions);
            }
            let of_memory = |condition: &&Condition| condition.finding.rule == RuleId::HostRamLow;
            self.conditions.all.iter().find(of_memory).map_or(FindingPhase::Clear, |condition| condition.phase)
        }

        fn path(&self) -> Vec<(&'static str, &'static str, bool)> {
            let step = |transition: &Transition| (transition.to.word(), transition.severity.word(), transition.notify);
            self.transitions.iter().map(step).collect()
        }
    }

    #[test]
    fn a_finding_passes_through_all_phases() {
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
    fn hysteresis_restarts_pending_and_holds_firing_conditions() {
        let mut tester = ConditionsTester::new();
        tester.sample(5, &Holds);
        assert_eq!(tester.sample(1, &Between), FindingPhase::Clear);
        assert_eq!(tester.sample(6, &Holds), FindingPhase::Pending);
        assert_eq!(tester.sample(1, &Holds), FindingPhase::Firing);
        assert_eq!(tester.sample(2, &Gone), FindingPhase::Resolving);
        assert_eq!(tester.sample(20, &Between), FindingPhase::Firing);
    }

    #[test]
    fn unknown_samples_neither_fire_nor_resolve() {
        let mut tester = ConditionsTester::new();
        tester.sample(3, &Holds);
        assert_eq!(tester.sample(50, &Unknown), FindingPhase::Pending);
        assert_eq!(tester.sample(1, &Holds), FindingPhase::Pending, "a run must be observed for 80 % of its time");
        assert_eq!(tester.sample(3, &Holds), FindingPhase::Firing);
        assert_eq!(tester.sample(50, &Unknown), FindingPhase::Firing);
    }

    #[test]
    fn a_condition_whose_target_is_gone_clears_at_once() {
        let mut tester = ConditionsTester::new();
        tester.sample(10, &Holds);
        assert_eq!(tester.sample(1, &TargetGone), FindingPhase::Clear);
    }

    #[test]
    fn a_finding_notifies_again_only_after_six_hours() {
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
    fn a_disabled_rule_reports_nothing() {
        let mut conditions = Conditions::default();
        let sample_time = SampleTime::new(at(10.0), 10.0);
        conditions.begin_sample_for(HostId(0), &"hgx-00".into(), sample_time, 1 << RuleId::HostRamLow as u64);
        let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Likely, 0.0);
        conditions.met(RuleId::HostRamLow, &FindingTarget::Host, evaluation, |_, _| FindingDetails::default());
        let mut transitions = Vec::new();
        conditions.publish(&mut transitions);
        assert!(transitions.is_empty() && !conditions.is_tracking_any());
    }

    #[test]
    fn a_finding_about_the_fleet_belongs_to_no_host() {
        let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Likely, 0.0);
        let transition = |lead: Option<(HostId, SafeText)>| {
            let (mut conditions, mut transitions) = (Conditions::default(), Vec::new());
            conditions.begin_sample_for(HostId(0), &"fleet".into(), SampleTime::new(at(10.0), 10.0), 0);
            let target = FindingTarget::Named("hgx-03".into());
            conditions.met(RuleId::HostUnreachable, &target, evaluation, |_, _| FindingDetails {
                lead,
                ..FindingDetails::default()
            });
            conditions.publish(&mut transitions);
            let hosts = conditions.findings().next().map(|(_, finding)| finding.hosts.clone()).expect("a finding");
            let transition = transitions.pop().expect("a transition");
            (transition.id.to_string(), transition.host, transition.host_name.to_string(), hosts)
        };
        let id = "host-unreachable/fleet/hgx-03".to_owned();
        assert_eq!(transition(None), (id.clone(), None, "fleet".to_owned(), vec![]));
        let lead = (HostId(3), SafeText::from("hgx-03"));
        assert_eq!(transition(Some(lead.clone())), (id, None, "hgx-03".to_owned(), vec![lead]));
    }

    #[test]
    fn the_number_of_conditions_is_bounded() {
        let mut conditions = Conditions::default();
        conditions.begin_sample_for(HostId(0), &"hgx-00".into(), SampleTime::new(at(10.0), 10.0), 0);
        let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Likely, 0.0);
        for number in 0..10_000 {
            let target = FindingTarget::Xid("GPU-0".into(), number);
            conditions.met(RuleId::XidSeen, &target, evaluation, |_, _| FindingDetails::default());
        }
        assert_eq!(conditions.all.len(), MAX_CONDITIONS);
    }

    #[test]
    fn findings_that_have_cleared_leave_room_for_new_ones_and_keep_no_details() {
        let mut conditions = Conditions::default();
        let mut transitions = Vec::new();
        let mut sample = |conditions: &mut Conditions, t: f64, numbers: std::ops::Range<u64>| {
            conditions.begin_sample_for(HostId(0), &"hgx-00".into(), SampleTime::new(at(t), 10.0), 0);
            for number in numbers {
                let target = FindingTarget::Xid("GPU-0".into(), number);
                let details = || FindingDetails { sentence: "an Xid".to_owned(), ..FindingDetails::default() };
                conditions.event(RuleId::XidSeen, &target, Severity::Crit, 1.0, details);
            }
            conditions.finish_sample(|_| true);
            conditions.publish(&mut transitions);
        };
        sample(&mut conditions, 10.0, 0..300);
        assert_eq!(conditions.findings().count(), MAX_CONDITIONS);
        for t in [20.0, 30.0, 40.0] {
            sample(&mut conditions, t, 0..0);
        }
        assert_eq!((conditions.findings().count(), conditions.all.len()), (0, MAX_CLEARED));
        assert!(conditions.all.iter().all(|condition| condition.finding.sentence.is_empty()));
        sample(&mut conditions, 50.0, 1000..1100);
        let (_, newest) = conditions.findings().last().expect("findings");
        assert_eq!((conditions.findings().count(), newest.sentence.as_str()), (100, "an Xid"));
    }
}
