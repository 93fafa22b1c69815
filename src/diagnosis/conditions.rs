//! The machinery: from conditions that hold or not to findings that are pending, fire, resolve and are told once.
//!
//! Rules say at every sample whether their condition [holds](Conditions::holds) for a target, lies
//! [between](Conditions::between) firing and clearing, or [cannot be told](Conditions::hold). A target that a rule does not
//! mention is clear. Everything that lasts is here, the same for all rules.

use super::condition::{Condition, seconds};
use super::evaluation::{Evaluation, FindingDetails, FindingTarget, Run, SampleTime, fingerprint};
use super::notification_state::{NotificationState, RENOTIFY_AFTER};
use super::{Confidence, Finding, FindingPhase, RuleId, Severity, Transition};
use crate::fleet::{Host, HostId, Moment};
use crate::wire::SafeText;

/// Sentences are written anew this often while nothing else changes, in seconds.
const TEXT_REFRESH_SECONDS: f64 = 10.0;
/// The most conditions a host; a host on which more is wrong has one cause.
const MAX_CONDITIONS: usize = 256;

/// All that is watched on one host.
#[derive(Debug, Clone, Default)]
pub(super) struct Conditions {
    all: Vec<Condition>,
    /// Counts samples.
    sample: u64,
    sample_time: Option<SampleTime>,
    is_first: bool,
    disabled_rules: u64,
    host: Option<(HostId, SafeText)>,
}

impl Conditions {
    /// A sample begins. `is_first` says that this is the first look at the host.
    pub(super) fn begin_sample(&mut self, host: &Host, sample_time: SampleTime, is_first: bool, disabled_rules: u64) {
        self.begin_sample_for(host.id, host.name(), sample_time, is_first, disabled_rules);
    }

    pub(super) fn begin_sample_for(
        &mut self,
        id: HostId,
        name: &SafeText,
        sample_time: SampleTime,
        is_first: bool,
        disabled_rules: u64,
    ) {
        self.sample += 1;
        self.sample_time = Some(sample_time);
        self.is_first = is_first;
        self.disabled_rules = disabled_rules;
        if self.host.as_ref().is_none_or(|(host, _)| *host != id) {
            self.host = Some((id, name.clone()));
        }
    }

    /// The condition of a rule holds for a target. `words` is called when what is said of it has to be written anew: it
    /// gets how many seconds the condition has held, and the severity.
    pub(super) fn met(
        &mut self,
        rule: RuleId,
        target: &FindingTarget,
        evaluation: Evaluation,
        words: impl FnOnce(f64, Severity) -> FindingDetails,
    ) {
        let (Some(sample_time), false) = (self.sample_time, self.is_disabled(rule)) else { return };
        let begun = Run { since: sample_time.t, covered: 0.0 };
        let Some(place) = self.find_or_insert(rule, target, begun) else { return };
        let (sample, is_first) = (self.sample, self.is_first);
        let condition = &mut self.all[place];
        let is_new = condition.phase == FindingPhase::Clear;
        if is_new {
            condition.enter(FindingPhase::Pending, sample_time.t);
            condition.run = begun;
            condition.initial_severity = None;
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
        if is_new && is_first && evaluation.may_be_preexisting {
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
        condition.touch(sample_time);
        if is_new
            || condition.severity != before
            || sample_time.t - condition.text_updated_at >= TEXT_REFRESH_SECONDS
            || condition.fires_now()
        {
            condition.set_details(
                words((sample_time.t - condition.run.since).max(0.0), condition.severity),
                sample_time,
                self.host.as_ref(),
            );
        }
    }

    /// Something happened: it is told at once and stands for `stay` seconds.
    pub(super) fn event(
        &mut self,
        rule: RuleId,
        target: &FindingTarget,
        severity: Severity,
        stay: f64,
        words: impl FnOnce() -> FindingDetails,
    ) {
        let (Some(sample_time), false) = (self.sample_time, self.is_disabled(rule)) else { return };
        let begun = Run { since: sample_time.t, covered: 0.0 };
        let Some(place) = self.find_or_insert(rule, target, begun) else { return };
        let sample = self.sample;
        let condition = &mut self.all[place];
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
        condition.set_details(words(), sample_time, self.host.as_ref());
    }

    /// The condition is neither met nor gone: what fires goes on, what is pending begins anew.
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

    /// Nothing can be said: it stays as it is.
    pub(super) fn unknown(&mut self, rule: RuleId, target: &FindingTarget) {
        let sample = self.sample;
        if let Some(condition) = self.find(rule, target) {
            condition.last_sample = sample;
        }
    }

    /// Nothing can be said of what `is_stale` picks: it stays as it is.
    pub(super) fn unknown_where(&mut self, is_stale: impl Fn(RuleId, &FindingTarget) -> bool) {
        for condition in self.all.iter_mut().filter(|condition| is_stale(condition.finding.rule, &condition.target)) {
            condition.last_sample = self.sample;
        }
    }

    /// The sample is over: what no rule mentioned is clear. `exists` says whether a target is still there: what is not
    /// needs no time to clear.
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
        if self.all.capacity() > 2 * self.all.len() + 4 {
            self.all.shrink_to_fit();
        }
    }

    /// What is not clear, silenced or not.
    pub(super) fn active(&self) -> Vec<(RuleId, FindingTarget, FindingPhase)> {
        let active = self.all.iter().filter(|condition| condition.phase != FindingPhase::Clear);
        active.map(|condition| (condition.finding.rule, condition.target.clone(), condition.phase)).collect()
    }

    /// Silences findings that another one explains. `is_inhibited` is asked for each that is not clear.
    pub(super) fn inhibit(&mut self, is_inhibited: impl Fn(RuleId, &FindingTarget) -> bool) {
        for condition in self.all.iter_mut().filter(|condition| condition.phase != FindingPhase::Clear) {
            condition.is_inhibited = is_inhibited(condition.finding.rule, &condition.target);
        }
    }

    /// Publishes what has changed.
    pub(super) fn publish(&mut self, transitions: &mut Vec<Transition>) {
        let Some(sample_time) = self.sample_time else { return };
        for condition in &mut self.all {
            if let Some(transition) = condition.publish(sample_time) {
                transitions.push(transition);
            }
        }
    }

    /// What is published, with what it is about.
    pub(super) fn findings(&self) -> impl Iterator<Item = (&FindingTarget, &Finding)> {
        let shown = self.all.iter().filter(|condition| condition.finding.phase != FindingPhase::Clear);
        shown.map(|condition| (&condition.target, &condition.finding))
    }

    /// What a rule is published for.
    pub(super) fn published_targets(&self, rule: RuleId) -> impl Iterator<Item = &FindingTarget> {
        let of_rule = self.all.iter().filter(move |condition| condition.finding.rule == rule);
        of_rule.filter(|condition| condition.finding.phase != FindingPhase::Clear).map(|condition| &condition.target)
    }

    /// Whether a rule is published for a target.
    pub(super) fn is_published(&self, rule: RuleId, target: &FindingTarget) -> bool {
        self.published_targets(rule).any(|other| other == target)
    }

    /// The phase of a rule for a target, whether it is published or silenced.
    pub(super) fn phase(&self, rule: RuleId, target: &FindingTarget) -> FindingPhase {
        let same = |condition: &&Condition| condition.finding.rule == rule && condition.target == *target;
        self.all.iter().find(same).map_or(FindingPhase::Clear, |condition| condition.phase)
    }

    /// What is pending is so no longer.
    pub(super) fn restart_pending(&mut self) {
        for condition in self.all.iter_mut().filter(|condition| condition.phase == FindingPhase::Pending) {
            condition.phase = FindingPhase::Clear;
        }
    }

    /// Whether anything is watched at all.
    pub(super) fn is_tracking_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// The host can, or cannot, be seen: its findings stand as they were.
    pub(super) fn freeze(&mut self, is_frozen: bool) {
        for condition in &mut self.all {
            condition.finding.is_frozen = is_frozen && condition.finding.rule != RuleId::HostUnreachable;
        }
    }

    /// Fingerprints of what somebody was told of, with the severity, and since when it is over, if it is.
    pub(super) fn notified(&self) -> impl Iterator<Item = (&SafeText, Severity, Option<f64>)> {
        self.all.iter().filter_map(|condition| {
            let cleared = (condition.phase == FindingPhase::Clear).then_some(condition.changed_at);
            Some((&condition.finding.id, condition.notified_severity?, cleared))
        })
    }

    /// Whether a finding is not clear, silenced or not.
    pub(super) fn is_active(&self, id: &SafeText) -> bool {
        self.all.iter().any(|condition| condition.finding.id == *id && condition.phase != FindingPhase::Clear)
    }

    /// Before it is settled: what an earlier run has told, and what shall be silent.
    pub(super) fn apply_notification_state(&mut self, notification_state: &NotificationState) {
        if let Some(sample_time) = self.sample_time {
            self.apply_notification_state_at(notification_state, sample_time.now);
        }
    }

    /// The same at any moment.
    pub(super) fn apply_notification_state_at(&mut self, notification_state: &NotificationState, now: Moment) {
        if notification_state.is_empty() && self.all.iter().all(|condition| condition.finding.snoozed.is_none()) {
            return;
        }
        for condition in &mut self.all {
            if condition.notified_severity.is_none() {
                condition.notified_severity = notification_state.notified_severity(&condition.finding.id, now);
            }
            let snoozed = notification_state.snoozed(&condition.finding.id, condition.severity, now);
            let was_snoozed = condition.finding.snoozed.is_some();
            condition.finding.snoozed = snoozed;
            // It was to be silent for a while: who asked for that wants to hear of it again.
            condition.is_reminder |= was_snoozed && snoozed.is_none() && condition.phase == FindingPhase::Firing;
        }
    }

    /// Somebody has ended a snooze, looking at it: they need not be told.
    pub(super) fn snooze_ended(&mut self, id: &SafeText) {
        for condition in self.all.iter_mut().filter(|condition| condition.finding.id == *id) {
            condition.finding.snoozed = None;
            if condition.finding.phase == FindingPhase::Firing {
                condition.notified_severity = condition.notified_severity.max(Some(condition.severity));
            }
        }
    }

    /// Bytes that it takes, about.
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
        if let Some(place) = self.all.iter().position(same) {
            return Some(place);
        }
        if self.all.len() >= MAX_CONDITIONS {
            return None;
        }
        let ((host, name), sample_time) = (self.host.clone()?, self.sample_time?);
        let mut finding = Finding::blank(rule, host, sample_time.now);
        finding.id = fingerprint(rule, &name, target);
        finding.phase = FindingPhase::Clear;
        finding.not = rule.info().not;
        finding.hosts = vec![(host, name)];
        self.all.push(Condition::new(target.clone(), finding, run, sample_time));
        Some(self.all.len() - 1)
    }
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
