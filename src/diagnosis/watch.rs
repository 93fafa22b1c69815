//! One condition that is watched: its phases, and what others are told of it.

use super::grade::{Beat, Run, Target, Words};
use super::{Finding, Phase, Severity, Transition};
use crate::fleet::HostId;
use crate::wire::SafeText;
use std::time::Duration;

/// Changes within [`FLAP_WINDOW`] that make a finding flap.
const FLAP_CHANGES: usize = 4;
/// In seconds; a flapping finding must also be steady for this long.
const FLAP_WINDOW: f64 = 1800.0;

/// One condition of one target, and the finding that is made of it.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) target: Target,
    /// What is shown; its phase is what was published last.
    pub(super) finding: Finding,
    pub(super) phase: Phase,
    pub(super) severity: Severity,
    pub(super) run: Run,
    /// Since when the condition is gone.
    pub(super) gone: Option<Run>,
    pub(super) clear_after: f64,
    /// Of an event: it fires until then.
    pub(super) until: Option<f64>,
    /// Its severity at the first look.
    pub(super) noted: Option<Severity>,
    pub(super) told: Option<Severity>,
    pub(super) changes: [f64; FLAP_CHANGES],
    pub(super) is_flapping: bool,
    /// The last time at which it changed its phase.
    pub(super) changed_at: f64,
    pub(super) words_at: f64,
    pub(super) is_silenced: bool,
    /// Its snooze has just ended.
    pub(super) is_reminder: bool,
    /// The sample that last said something of it.
    pub(super) seen: u64,
}

impl Watch {
    /// Nothing has been said of it yet.
    pub(super) fn new(target: Target, finding: Finding, run: Run, beat: Beat) -> Self {
        Self {
            target,
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
        }
    }

    pub(super) fn enter(&mut self, phase: Phase, t: f64) {
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

    pub(super) fn touch(&mut self, beat: Beat) {
        self.is_flapping &= beat.t - self.changes[FLAP_CHANGES - 1] <= FLAP_WINDOW;
        self.finding.since = beat.moment(self.run.since);
        self.finding.lasted = seconds(beat.t - self.run.since);
        self.finding.updated = beat.now;
    }

    pub(super) fn fires_now(&self) -> bool {
        self.phase == Phase::Firing && self.finding.phase != Phase::Firing
    }

    pub(super) fn say(&mut self, words: Words, beat: Beat, host: Option<&(HostId, SafeText)>) {
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
    pub(super) fn clear(&mut self, beat: Beat, exists: bool) {
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

    pub(super) fn publish(&mut self, beat: Beat) -> Option<Transition> {
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

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
