//! The machinery: from conditions that hold or not to findings that are pending, fire, resolve and are told once.
//!
//! Rules say at every sample whether their condition [holds](Watches::holds) for a target, lies
//! [between](Watches::between) firing and clearing, or [cannot be told](Watches::hold). A target that a rule does not
//! mention is clear. Everything that lasts is here, the same for all rules.

use super::attention::{Attention, FORGET_TOLD};
use super::grade::{Beat, Grade, Run, Target, Words, fingerprint};
use super::watch::{Watch, seconds};
use super::{Confidence, Finding, Phase, RuleId, Severity, Transition};
use crate::fleet::{Host, HostId, Moment};
use crate::wire::SafeText;

/// Sentences are written anew this often while nothing else changes, in seconds.
const WORDS_STAY: f64 = 10.0;
/// The most watches a host; a host on which more is wrong has one cause.
const MAX_WATCHES: usize = 256;

/// All that is watched on one host.
#[derive(Debug, Clone, Default)]
pub(super) struct Watches {
    all: Vec<Watch>,
    /// Counts samples.
    sample: u64,
    beat: Option<Beat>,
    is_first: bool,
    off: u64,
    host: Option<(HostId, SafeText)>,
}

impl Watches {
    /// A sample begins. `is_first` says that this is the first look at the host.
    pub(super) fn begin(&mut self, host: &Host, beat: Beat, is_first: bool, off: u64) {
        self.begin_named(host.id, host.name(), beat, is_first, off);
    }

    pub(super) fn begin_named(&mut self, id: HostId, name: &SafeText, beat: Beat, is_first: bool, off: u64) {
        self.sample += 1;
        self.beat = Some(beat);
        self.is_first = is_first;
        self.off = off;
        if self.host.as_ref().is_none_or(|(host, _)| *host != id) {
            self.host = Some((id, name.clone()));
        }
    }

    /// The condition of a rule holds for a target. `words` is called when what is said of it has to be written anew: it
    /// gets how many seconds the condition has held, and the severity.
    pub(super) fn holds(
        &mut self,
        rule: RuleId,
        target: &Target,
        grade: Grade,
        words: impl FnOnce(f64, Severity) -> Words,
    ) {
        let (Some(beat), false) = (self.beat, self.is_off(rule)) else { return };
        let begun = Run { since: beat.t, covered: 0.0 };
        let Some(place) = self.place_or_new(rule, target, begun) else { return };
        let (sample, is_first) = (self.sample, self.is_first);
        let watch = &mut self.all[place];
        let is_new = watch.phase == Phase::Clear;
        if is_new {
            watch.enter(Phase::Pending, beat.t);
            watch.run = begun;
            watch.noted = None;
        } else if watch.seen != sample {
            watch.run.covered += beat.dt;
        }
        if let Some(run) = grade.run {
            watch.run = run;
        }
        watch.seen = sample;
        watch.gone = None;
        watch.until = None;
        watch.clear_after = grade.clear_after;
        watch.finding.confidence = grade.confidence;
        watch.finding.at_least = grade.at_least;
        let reached = grade.ladder.reached(&watch.run, beat.t);
        let before = watch.severity;
        watch.severity = reached.unwrap_or(if watch.phase == Phase::Pending { grade.ladder.first().0 } else { before });
        if is_new && is_first && grade.may_be_note {
            watch.noted = Some(watch.severity);
        }
        match (reached, watch.phase) {
            (Some(_), Phase::Pending) => {
                watch.finding.fired_at = Some(beat.now);
                watch.enter(Phase::Firing, beat.t);
            }
            (_, Phase::Resolving) => watch.enter(Phase::Firing, beat.t),
            _ => {}
        }
        watch.finding.due = (watch.phase == Phase::Pending)
            .then(|| beat.now.plus(seconds(grade.ladder.first().1 - (beat.t - watch.run.since))));
        watch.touch(beat);
        if is_new || watch.severity != before || beat.t - watch.words_at >= WORDS_STAY || watch.fires_now() {
            watch.say(words((beat.t - watch.run.since).max(0.0), watch.severity), beat, self.host.as_ref());
        }
    }

    /// Something happened: it is told at once and stands for `stay` seconds.
    pub(super) fn event(
        &mut self,
        rule: RuleId,
        target: &Target,
        severity: Severity,
        stay: f64,
        words: impl FnOnce() -> Words,
    ) {
        let (Some(beat), false) = (self.beat, self.is_off(rule)) else { return };
        let begun = Run { since: beat.t, covered: 0.0 };
        let Some(place) = self.place_or_new(rule, target, begun) else { return };
        let sample = self.sample;
        let watch = &mut self.all[place];
        if watch.phase == Phase::Firing {
            watch.severity = watch.severity.max(severity);
        } else {
            watch.severity = severity;
            watch.run = begun;
            watch.finding.fired_at = Some(beat.now);
            watch.enter(Phase::Firing, beat.t);
        }
        watch.seen = sample;
        watch.until = Some(beat.t + stay);
        watch.gone = None;
        watch.finding.confidence = Confidence::Certain;
        watch.finding.due = None;
        watch.touch(beat);
        watch.say(words(), beat, self.host.as_ref());
    }

    /// The condition is neither met nor gone: what fires goes on, what is pending begins anew.
    pub(super) fn between(&mut self, rule: RuleId, target: &Target) {
        let (Some(beat), sample) = (self.beat, self.sample) else { return };
        let Some(watch) = self.find(rule, target) else { return };
        watch.seen = sample;
        match watch.phase {
            Phase::Pending => watch.enter(Phase::Clear, beat.t),
            Phase::Resolving => {
                watch.gone = None;
                watch.enter(Phase::Firing, beat.t);
            }
            Phase::Firing | Phase::Clear => {}
        }
        watch.touch(beat);
    }

    /// Nothing can be said: it stays as it is.
    pub(super) fn hold(&mut self, rule: RuleId, target: &Target) {
        let sample = self.sample;
        if let Some(watch) = self.find(rule, target) {
            watch.seen = sample;
        }
    }

    /// Nothing can be said of what `is_held` picks: it stays as it is.
    pub(super) fn hold_where(&mut self, is_held: impl Fn(RuleId, &Target) -> bool) {
        for watch in self.all.iter_mut().filter(|watch| is_held(watch.finding.rule, &watch.target)) {
            watch.seen = self.sample;
        }
    }

    /// The sample is over: what no rule mentioned is clear. `exists` says whether a target is still there: what is not
    /// needs no time to clear.
    pub(super) fn finish(&mut self, exists: impl Fn(&Target) -> bool) {
        let Some(beat) = self.beat else { return };
        for watch in self.all.iter_mut().filter(|watch| watch.seen != self.sample) {
            watch.clear(beat, exists(&watch.target));
        }
        self.all.retain(|watch| {
            watch.phase != Phase::Clear
                || watch.finding.phase != Phase::Clear
                || (watch.told.is_some() && beat.t - watch.changed_at < FORGET_TOLD)
        });
        if self.all.capacity() > 2 * self.all.len() + 4 {
            self.all.shrink_to_fit();
        }
    }

    /// What is not clear, silenced or not.
    pub(super) fn active(&self) -> Vec<(RuleId, Target, Phase)> {
        let active = self.all.iter().filter(|watch| watch.phase != Phase::Clear);
        active.map(|watch| (watch.finding.rule, watch.target.clone(), watch.phase)).collect()
    }

    /// Silences findings that another one explains. `is_silenced` is asked for each that is not clear.
    pub(super) fn silence(&mut self, is_silenced: impl Fn(RuleId, &Target) -> bool) {
        for watch in self.all.iter_mut().filter(|watch| watch.phase != Phase::Clear) {
            watch.is_silenced = is_silenced(watch.finding.rule, &watch.target);
        }
    }

    /// Publishes what has changed.
    pub(super) fn settle(&mut self, transitions: &mut Vec<Transition>) {
        let Some(beat) = self.beat else { return };
        for watch in &mut self.all {
            if let Some(transition) = watch.publish(beat) {
                transitions.push(transition);
            }
        }
    }

    /// What is published, with what it is about.
    pub(super) fn findings(&self) -> impl Iterator<Item = (&Target, &Finding)> {
        let shown = self.all.iter().filter(|watch| watch.finding.phase != Phase::Clear);
        shown.map(|watch| (&watch.target, &watch.finding))
    }

    /// What a rule is published for.
    pub(super) fn shown(&self, rule: RuleId) -> impl Iterator<Item = &Target> {
        let of_rule = self.all.iter().filter(move |watch| watch.finding.rule == rule);
        of_rule.filter(|watch| watch.finding.phase != Phase::Clear).map(|watch| &watch.target)
    }

    /// Whether a rule is published for a target.
    pub(super) fn is_shown(&self, rule: RuleId, target: &Target) -> bool {
        self.shown(rule).any(|other| other == target)
    }

    /// The phase of a rule for a target, whether it is published or silenced.
    pub(super) fn phase(&self, rule: RuleId, target: &Target) -> Phase {
        let same = |watch: &&Watch| watch.finding.rule == rule && watch.target == *target;
        self.all.iter().find(same).map_or(Phase::Clear, |watch| watch.phase)
    }

    /// What is pending is so no longer.
    pub(super) fn begin_anew(&mut self) {
        for watch in self.all.iter_mut().filter(|watch| watch.phase == Phase::Pending) {
            watch.phase = Phase::Clear;
        }
    }

    /// Whether anything is watched at all.
    pub(super) fn has_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// The host can, or cannot, be seen: its findings stand as they were.
    pub(super) fn freeze(&mut self, is_frozen: bool) {
        for watch in &mut self.all {
            watch.finding.is_frozen = is_frozen && watch.finding.rule != RuleId::HostUnreachable;
        }
    }

    /// Fingerprints of what somebody was told of, with the severity, and since when it is over, if it is.
    pub(super) fn told(&self) -> impl Iterator<Item = (&SafeText, Severity, Option<f64>)> {
        self.all.iter().filter_map(|watch| {
            let cleared = (watch.phase == Phase::Clear).then_some(watch.changed_at);
            Some((&watch.finding.id, watch.told?, cleared))
        })
    }

    /// Whether a finding is not clear, silenced or not.
    pub(super) fn is_active(&self, id: &SafeText) -> bool {
        self.all.iter().any(|watch| watch.finding.id == *id && watch.phase != Phase::Clear)
    }

    /// Before it is settled: what an earlier run has told, and what shall be silent.
    pub(super) fn heed(&mut self, attention: &Attention) {
        if let Some(beat) = self.beat {
            self.heed_at(attention, beat.now);
        }
    }

    /// The same at any moment.
    pub(super) fn heed_at(&mut self, attention: &Attention, now: Moment) {
        if attention.is_empty() && self.all.iter().all(|watch| watch.finding.snoozed.is_none()) {
            return;
        }
        for watch in &mut self.all {
            if watch.told.is_none() {
                watch.told = attention.told(&watch.finding.id, now);
            }
            let snoozed = attention.snoozed(&watch.finding.id, watch.severity, now);
            let was_snoozed = watch.finding.snoozed.is_some();
            watch.finding.snoozed = snoozed;
            // It was to be silent for a while: who asked for that wants to hear of it again.
            watch.is_reminder |= was_snoozed && snoozed.is_none() && watch.phase == Phase::Firing;
        }
    }

    /// Somebody has ended a snooze, looking at it: they need not be told.
    pub(super) fn woken(&mut self, id: &SafeText) {
        for watch in self.all.iter_mut().filter(|watch| watch.finding.id == *id) {
            watch.finding.snoozed = None;
            if watch.finding.phase == Phase::Firing {
                watch.told = watch.told.max(Some(watch.severity));
            }
        }
    }

    /// Bytes that it takes, about.
    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * std::mem::size_of::<Watch>()
    }

    fn is_off(&self, rule: RuleId) -> bool {
        self.off & (1 << rule as u64) != 0
    }

    fn find(&mut self, rule: RuleId, target: &Target) -> Option<&mut Watch> {
        self.all.iter_mut().find(|watch| watch.finding.rule == rule && watch.target == *target)
    }

    fn place_or_new(&mut self, rule: RuleId, target: &Target, run: Run) -> Option<usize> {
        let same = |watch: &Watch| watch.finding.rule == rule && watch.target == *target;
        if let Some(place) = self.all.iter().position(same) {
            return Some(place);
        }
        if self.all.len() >= MAX_WATCHES {
            return None;
        }
        let ((host, name), beat) = (self.host.clone()?, self.beat?);
        let mut finding = Finding::blank(rule, host, beat.now);
        finding.id = fingerprint(rule, &name, target);
        finding.phase = Phase::Clear;
        finding.not = rule.info().not;
        finding.hosts = vec![(host, name)];
        self.all.push(Watch::new(target.clone(), finding, run, beat));
        Some(self.all.len() - 1)
    }
}

#[cfg(test)]
#[path = "watches_tests.rs"]
mod tests;
