//! One condition that is watched: its phases, and what others are told of it.

use super::evaluation::{FindingDetails, FindingTarget, Run, SampleTime};
use super::{Finding, FindingPhase, Severity, Transition};
use crate::fleet::HostId;
use crate::wire::SafeText;
use std::time::Duration;

/// Changes within [`FLAP_WINDOW`] that make a finding flap.
const FLAP_CHANGES: usize = 4;
/// In seconds; a flapping finding must also be steady for this long.
const FLAP_WINDOW: f64 = 1800.0;

/// One condition of one target, and the finding that is made of it.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    pub(super) target: FindingTarget,
    /// What is shown; its phase is what was published last.
    pub(super) finding: Finding,
    pub(super) phase: FindingPhase,
    pub(super) severity: Severity,
    pub(super) run: Run,
    /// Since when the condition is gone.
    pub(super) clear_run: Option<Run>,
    pub(super) clear_after: f64,
    /// Of an event: it fires until then.
    pub(super) until: Option<f64>,
    /// Its severity at the first look.
    pub(super) initial_severity: Option<Severity>,
    pub(super) notified_severity: Option<Severity>,
    pub(super) changes: [f64; FLAP_CHANGES],
    pub(super) is_flapping: bool,
    /// The last time at which it changed its phase.
    pub(super) changed_at: f64,
    pub(super) text_updated_at: f64,
    pub(super) is_inhibited: bool,
    /// Its snooze has just ended.
    pub(super) is_reminder: bool,
    /// The sample that last said something of it.
    pub(super) last_sample: u64,
}

impl Condition {
    /// Nothing has been said of it yet.
    pub(super) fn new(target: FindingTarget, finding: Finding, run: Run, sample_time: SampleTime) -> Self {
        Self {
            target,
            finding,
            phase: FindingPhase::Clear,
            severity: Severity::Info,
            run,
            clear_run: None,
            clear_after: 0.0,
            until: None,
            initial_severity: None,
            notified_severity: None,
            changes: [f64::NEG_INFINITY; FLAP_CHANGES],
            is_flapping: false,
            changed_at: sample_time.t,
            text_updated_at: f64::NEG_INFINITY,
            is_inhibited: false,
            is_reminder: false,
            last_sample: 0,
        }
    }

    pub(super) fn enter(&mut self, phase: FindingPhase, t: f64) {
        let is_change = matches!(
            (self.phase, phase),
            (FindingPhase::Pending | FindingPhase::Resolving | FindingPhase::Clear, FindingPhase::Firing)
                | (FindingPhase::Firing, FindingPhase::Resolving)
        );
        if is_change {
            self.changes.rotate_left(1);
            self.changes[FLAP_CHANGES - 1] = t;
            self.is_flapping |= t - self.changes[0] <= FLAP_WINDOW;
        }
        self.phase = phase;
        self.changed_at = t;
    }

    pub(super) fn touch(&mut self, sample_time: SampleTime) {
        self.is_flapping &= sample_time.t - self.changes[FLAP_CHANGES - 1] <= FLAP_WINDOW;
        self.finding.since = sample_time.moment(self.run.since);
        self.finding.lasted = seconds(sample_time.t - self.run.since);
        self.finding.updated = sample_time.now;
    }

    pub(super) fn fires_now(&self) -> bool {
        self.phase == FindingPhase::Firing && self.finding.phase != FindingPhase::Firing
    }

    pub(super) fn set_details(
        &mut self,
        words: FindingDetails,
        sample_time: SampleTime,
        host: Option<&(HostId, SafeText)>,
    ) {
        self.text_updated_at = sample_time.t;
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
    pub(super) fn clear(&mut self, sample_time: SampleTime, exists: bool) {
        if self.until.is_some_and(|until| sample_time.t < until) {
            return;
        }
        match self.phase {
            FindingPhase::Clear => {}
            FindingPhase::Pending => self.enter(FindingPhase::Clear, sample_time.t),
            FindingPhase::Firing | FindingPhase::Resolving => {
                let needed = match (exists, self.until, self.is_flapping) {
                    (false, ..) | (true, Some(_), _) => 0.0,
                    (true, None, true) => FLAP_WINDOW,
                    (true, None, false) => self.clear_after,
                };
                Run::extend(&mut self.clear_run, sample_time.t, sample_time.dt);
                if self.phase == FindingPhase::Firing {
                    self.enter(FindingPhase::Resolving, sample_time.t);
                }
                if needed <= 0.0 || self.clear_run.is_some_and(|gone| gone.reaches(sample_time.t, needed)) {
                    self.enter(FindingPhase::Clear, sample_time.t);
                    self.clear_run = None;
                    self.is_flapping = false;
                    self.until = None;
                }
            }
        }
        self.finding.updated = sample_time.now;
    }

    /// What others see of it.
    fn published_phase(&self) -> FindingPhase {
        match self.phase {
            _ if self.is_inhibited => FindingPhase::Clear,
            FindingPhase::Resolving if self.is_flapping => FindingPhase::Firing,
            phase => phase,
        }
    }

    pub(super) fn publish(&mut self, sample_time: SampleTime) -> Option<Transition> {
        let (from, to) = (self.finding.phase, self.published_phase());
        let has_changed = from != to || (self.severity != self.finding.severity && to != FindingPhase::Clear);
        self.finding.severity = self.severity;
        self.finding.is_flapping = self.is_flapping;
        self.finding.is_preexisting =
            self.initial_severity.is_some_and(|initial_severity| self.severity <= initial_severity);
        if self.phase == FindingPhase::Clear {
            self.is_inhibited = false;
        }
        let is_reminder = std::mem::take(&mut self.is_reminder) && !has_changed && self.finding.is_alerting();
        if !has_changed && !is_reminder {
            return None;
        }
        self.finding.phase = to;
        let notify = to == FindingPhase::Firing
            && self.finding.is_alerting()
            && (is_reminder || self.notified_severity.is_none_or(|told| told < self.severity));
        if notify {
            self.notified_severity = Some(self.severity);
        }
        Some(Transition {
            at: sample_time.now,
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
