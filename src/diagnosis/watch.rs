//! The machinery: from conditions that hold or not to findings that are pending, fire, resolve and are told once.
//!
//! Rules say at every sample whether their condition [holds](Watches::holds) for a target, lies
//! [between](Watches::between) firing and clearing, or [cannot be told](Watches::hold). A target that a rule does not
//! mention is clear. Everything that lasts is here, the same for all rules.

use super::attention::{Attention, FORGET_TOLD};
use super::{Confidence, Finding, FindingGpu, FindingProcess, Phase, RuleId, Severity, Transition};
use crate::fleet::{Host, HostId, JobKey, Moment, ProcessKey};
use crate::wire::SafeText;
use std::fmt::Write as _;
use std::time::Duration;

/// Changes within [`FLAP_WINDOW`] that make a finding flap.
const FLAP_CHANGES: usize = 4;
/// In seconds; a flapping finding must also be steady for this long.
const FLAP_WINDOW: f64 = 1800.0;
/// Sentences are written anew this often while nothing else changes, in seconds.
const WORDS_STAY: f64 = 10.0;
/// Part of its duration for which a condition must have been seen to hold.
pub(super) const COVERAGE: f64 = 0.8;
/// The most watches a host; a host on which more is wrong has one cause.
const MAX_WATCHES: usize = 256;

/// What a finding is about, within its host and rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Host,
    /// By UUID.
    Gpu(SafeText),
    Job(JobKey),
    Process(ProcessKey),
    /// A filesystem.
    Mount(SafeText),
    /// A GPU and an Xid.
    Xid(SafeText, u64),
    /// A GPU model or a cause, of findings about the whole fleet.
    Named(SafeText),
}

/// The time of one sample. Times are seconds since the controller began; what was before is negative.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beat {
    pub(super) now: Moment,
    pub(super) t: f64,
    /// Seconds that this sample stands for: since the one before it, three intervals at most.
    pub(super) dt: f64,
}

impl Beat {
    pub(super) fn new(now: Moment, dt: f64) -> Self {
        Self { now, t: now.elapsed.as_secs_f64(), dt }
    }

    /// The moment of another time.
    pub(super) fn moment(self, t: f64) -> Moment {
        let back = Duration::try_from_secs_f64((self.t - t).max(0.0)).unwrap_or_default();
        Moment { elapsed: self.now.elapsed.saturating_sub(back), unix: self.now.unix.saturating_sub(back) }
    }
}

/// For how long something has held, and how much of that time was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    pub(super) since: f64,
    pub(super) covered: f64,
}

impl Run {
    /// Extends a run by one sample, or begins it.
    pub(super) fn extend(run: &mut Option<Self>, t: f64, dt: f64) {
        match run {
            Some(run) => run.covered += dt,
            None => *run = Some(Self { since: t, covered: 0.0 }),
        }
    }

    /// Whether it has held for `seconds`, and was seen for most of that.
    pub(super) fn reaches(&self, t: f64, seconds: f64) -> bool {
        // Half a percent early, so that a sample that came a little early counts.
        t - self.since >= seconds * 0.995 && self.covered >= seconds * COVERAGE
    }
}

/// The severities of a finding by how long it has held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ladder([Option<(Severity, f64)>; 3]);

impl Ladder {
    pub(super) fn one(severity: Severity, after: f64) -> Self {
        Self([Some((severity, after)), None, None])
    }

    pub(super) fn two(first: (Severity, f64), second: (Severity, f64)) -> Self {
        Self([Some(first), Some(second), None])
    }

    pub(super) fn three(first: (Severity, f64), second: (Severity, f64), third: (Severity, f64)) -> Self {
        Self([Some(first), Some(second), Some(third)])
    }

    fn first(&self) -> (Severity, f64) {
        self.0[0].unwrap_or((Severity::Info, 0.0))
    }

    fn reached(&self, run: &Run, t: f64) -> Option<Severity> {
        self.0.iter().flatten().filter(|(_, after)| run.reaches(t, *after)).map(|(severity, _)| *severity).max()
    }
}

/// How a condition that holds is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grade {
    pub(super) ladder: Ladder,
    pub(super) confidence: Confidence,
    /// Since when, where that is known better than since the rule first said so.
    pub(super) run: Option<Run>,
    /// Seconds for which the condition must be gone.
    pub(super) clear_after: f64,
    /// It was so when it was first seen.
    pub(super) at_least: bool,
    /// At the first look it is a note.
    pub(super) may_be_note: bool,
}

impl Grade {
    pub(super) fn new(ladder: Ladder, confidence: Confidence, clear_after: f64) -> Self {
        Self { ladder, confidence, run: None, clear_after, at_least: false, may_be_note: false }
    }

    pub(super) fn since(self, run: Run) -> Self {
        Self { run: Some(run), ..self }
    }
}

/// What is said of a finding.
#[derive(Debug, Clone, Default)]
pub(super) struct Words {
    pub(super) sentence: String,
    pub(super) next_check: String,
    pub(super) gpus: Vec<FindingGpu>,
    pub(super) processes: Vec<FindingProcess>,
    pub(super) job: Option<JobKey>,
    pub(super) user: Option<SafeText>,
    pub(super) is_mine: bool,
    /// The host that it is shown under, where that is not the one that is looked at.
    pub(super) lead: Option<(HostId, SafeText)>,
    /// Further hosts that it is about.
    pub(super) hosts: Vec<(HostId, SafeText)>,
}

#[derive(Debug, Clone)]
struct Watch {
    target: Target,
    /// What is shown; its phase is what was published last.
    finding: Finding,
    phase: Phase,
    severity: Severity,
    run: Run,
    /// Since when the condition is gone.
    gone: Option<Run>,
    clear_after: f64,
    /// Of an event: it fires until then.
    until: Option<f64>,
    /// Its severity at the first look.
    noted: Option<Severity>,
    told: Option<Severity>,
    changes: [f64; FLAP_CHANGES],
    is_flapping: bool,
    /// The last time at which it changed its phase.
    changed_at: f64,
    words_at: f64,
    is_silenced: bool,
    /// Its snooze has just ended.
    is_reminder: bool,
    /// The sample that last said something of it.
    seen: u64,
}

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
        self.all.push(Watch {
            target: target.clone(),
            finding,
            phase: Phase::Clear,
            severity: Severity::Info,
            run,
            gone: None,
            clear_after: 0.0,
            until: None,
            noted: None,
            told: None,
            changes: [f64::NEG_INFINITY; FLAP_CHANGES],
            is_flapping: false,
            changed_at: beat.t,
            words_at: f64::NEG_INFINITY,
            is_silenced: false,
            is_reminder: false,
            seen: 0,
        });
        Some(self.all.len() - 1)
    }
}

impl Watch {
    fn enter(&mut self, phase: Phase, t: f64) {
        let is_change = matches!(
            (self.phase, phase),
            (Phase::Pending | Phase::Resolving | Phase::Clear, Phase::Firing) | (Phase::Firing, Phase::Resolving)
        );
        if is_change {
            self.changes.rotate_left(1);
            self.changes[FLAP_CHANGES - 1] = t;
            self.is_flapping |= t - self.changes[0] <= FLAP_WINDOW;
        }
        self.phase = phase;
        self.changed_at = t;
    }

    fn touch(&mut self, beat: Beat) {
        self.is_flapping &= beat.t - self.changes[FLAP_CHANGES - 1] <= FLAP_WINDOW;
        self.finding.since = beat.moment(self.run.since);
        self.finding.lasted = seconds(beat.t - self.run.since);
        self.finding.updated = beat.now;
    }

    fn fires_now(&self) -> bool {
        self.phase == Phase::Firing && self.finding.phase != Phase::Firing
    }

    fn say(&mut self, words: Words, beat: Beat, host: Option<&(HostId, SafeText)>) {
        self.words_at = beat.t;
        let finding = &mut self.finding;
        finding.sentence = SafeText::from(words.sentence);
        finding.next_check = SafeText::from(words.next_check);
        finding.gpus = words.gpus;
        finding.processes = words.processes;
        finding.job = words.job;
        finding.user = words.user;
        finding.is_mine = words.is_mine;
        finding.hosts.clear();
        finding.hosts.extend(words.lead.as_ref().or(host).cloned());
        if let Some((host, _)) = finding.hosts.first() {
            finding.host = *host;
        }
        finding.hosts.extend(words.hosts);
    }

    /// The condition was not mentioned: one sample without it.
    fn clear(&mut self, beat: Beat, exists: bool) {
        if self.until.is_some_and(|until| beat.t < until) {
            return;
        }
        match self.phase {
            Phase::Clear => {}
            Phase::Pending => self.enter(Phase::Clear, beat.t),
            Phase::Firing | Phase::Resolving => {
                let needed = match (exists, self.until, self.is_flapping) {
                    (false, ..) | (true, Some(_), _) => 0.0,
                    (true, None, true) => FLAP_WINDOW,
                    (true, None, false) => self.clear_after,
                };
                Run::extend(&mut self.gone, beat.t, beat.dt);
                if self.phase == Phase::Firing {
                    self.enter(Phase::Resolving, beat.t);
                }
                if needed <= 0.0 || self.gone.is_some_and(|gone| gone.reaches(beat.t, needed)) {
                    self.enter(Phase::Clear, beat.t);
                    self.gone = None;
                    self.is_flapping = false;
                    self.until = None;
                }
            }
        }
        self.finding.updated = beat.now;
    }

    /// What others see of it.
    fn outward(&self) -> Phase {
        match self.phase {
            _ if self.is_silenced => Phase::Clear,
            Phase::Resolving if self.is_flapping => Phase::Firing,
            phase => phase,
        }
    }

    fn publish(&mut self, beat: Beat) -> Option<Transition> {
        let (from, to) = (self.finding.phase, self.outward());
        let has_changed = from != to || (self.severity != self.finding.severity && to != Phase::Clear);
        self.finding.severity = self.severity;
        self.finding.is_flapping = self.is_flapping;
        self.finding.is_note = self.noted.is_some_and(|noted| self.severity <= noted);
        if self.phase == Phase::Clear {
            self.is_silenced = false;
        }
        let is_reminder = std::mem::take(&mut self.is_reminder) && !has_changed && self.finding.counts();
        if !has_changed && !is_reminder {
            return None;
        }
        self.finding.phase = to;
        let notify = to == Phase::Firing
            && self.finding.counts()
            && (is_reminder || self.told.is_none_or(|told| told < self.severity));
        if notify {
            self.told = Some(self.severity);
        }
        Some(Transition {
            at: beat.now,
            id: self.finding.id.clone(),
            rule: self.finding.rule,
            host: self.finding.host,
            host_name: self.finding.hosts.first().map(|(_, name)| name.clone()).unwrap_or_default(),
            from,
            to,
            severity: self.severity,
            notify,
            is_reminder,
            sentence: self.finding.sentence.clone(),
        })
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

/// What a finding is recognised by, also by another run of the program.
fn fingerprint(rule: RuleId, host: &SafeText, target: &Target) -> SafeText {
    let mut id = format!("{}/{host}", rule.word());
    let process = |id: &mut String, key: &ProcessKey| {
        let start = key.start_ticks.unwrap_or(0);
        let _ = write!(id, "/{}.{start}.{}", key.pid, key.boot_id.as_deref().unwrap_or("-"));
    };
    // Writing to a string cannot fail.
    let _ = match target {
        Target::Host => Ok(()),
        Target::Gpu(uuid) => write!(id, "/{uuid}"),
        Target::Job(JobKey::Launcher(key)) | Target::Process(key) => {
            process(&mut id, key);
            Ok(())
        }
        Target::Job(job) => write!(id, "/{job}"),
        Target::Mount(name) | Target::Named(name) => write!(id, "/{name}"),
        Target::Xid(uuid, xid) => write!(id, "/{uuid}/{xid}"),
    };
    SafeText::from(id)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
