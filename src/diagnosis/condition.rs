//! One condition of one target: how a rule evaluates it, and the phases of the finding made of it.

use super::finding::{FLEET, FindingDetails, FindingTarget};
use super::{Confidence, Finding, FindingPhase, Severity, Transition};
use crate::fleet::{HostId, Moment};
use crate::wire::SafeText;
use std::time::Duration;

/// The share of its duration that a condition must have been observed to hold.
pub(super) const MIN_COVERAGE: f64 = 0.8;

/// The time of one sample. Times are seconds since the controller started; earlier times are negative.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleTime {
    pub(super) now: Moment,
    pub(super) t: f64,
    /// The seconds that this sample stands for: since the previous one, at most three intervals.
    pub(super) dt: f64,
}

impl SampleTime {
    pub(super) fn new(now: Moment, dt: f64) -> Self {
        Self { now, t: now.since_start().as_secs_f64(), dt }
    }

    /// The moment of the time `t`, which is not later than this sample.
    pub(super) fn moment(self, t: f64) -> Moment {
        let back = Duration::try_from_secs_f64((self.t - t).max(0.0)).unwrap_or_default();
        self.now.minus(back)
    }
}

/// How long a condition has held without a break, and how many seconds of that were observed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    pub(super) since: f64,
    pub(super) covered: f64,
}

impl Run {
    /// Extends a run by one sample, or starts it.
    pub(super) fn extend(run: &mut Option<Self>, t: f64, dt: f64) {
        match run {
            Some(run) => run.covered += dt,
            None => *run = Some(Self { since: t, covered: 0.0 }),
        }
    }

    /// Whether the run lasted for `seconds` and was observed for most of them.
    pub(super) fn reaches(&self, t: f64, seconds: f64) -> bool {
        // Half a percent of tolerance, 5 s at most, for a sample that arrives a little early.
        t - self.since >= seconds - (seconds * 0.005).min(5.0) && self.covered >= seconds * MIN_COVERAGE
    }
}

/// The severities of a finding, each with the seconds after which it is reached.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Escalation([Option<(Severity, f64)>; 3]);

impl Escalation {
    pub(super) fn one(severity: Severity, after: f64) -> Self {
        Self([Some((severity, after)), None, None])
    }

    pub(super) fn two(first: (Severity, f64), second: (Severity, f64)) -> Self {
        Self([Some(first), Some(second), None])
    }

    pub(super) fn three(first: (Severity, f64), second: (Severity, f64), third: (Severity, f64)) -> Self {
        Self([Some(first), Some(second), Some(third)])
    }

    pub(super) fn first(&self) -> (Severity, f64) {
        self.0[0].unwrap_or((Severity::Info, 0.0))
    }

    /// The seconds after which a warning or worse is first reached.
    pub(super) fn warns_after(&self) -> Option<f64> {
        self.0
            .iter()
            .flatten()
            .filter(|(severity, _)| *severity >= Severity::Warn)
            .map(|(_, after)| *after)
            .reduce(f64::min)
    }

    pub(super) fn reached(&self, run: &Run, t: f64) -> Option<Severity> {
        self.0.iter().flatten().filter(|(_, after)| run.reaches(t, *after)).map(|(severity, _)| *severity).max()
    }
}

/// The report of a rule about a condition that holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evaluation {
    pub(super) escalation: Escalation,
    pub(super) confidence: Confidence,
    /// The run of the condition, if the rule knows it better than from the first sample that reported it.
    pub(super) run: Option<Run>,
    /// The seconds for which the condition must be gone before the finding clears.
    pub(super) clear_after: f64,
    /// The seconds after which it may warn. Earlier than in `escalation` if something delays the warning that may end at any
    /// moment, or makes it a note meanwhile.
    pub(super) may_warn_after: Option<f64>,
    /// Copied to [`Finding::at_least`].
    pub(super) at_least: bool,
    /// If the condition begins with this sample, it held already before the host was observed.
    pub(super) is_preexisting: bool,
}

impl Evaluation {
    pub(super) fn new(escalation: Escalation, confidence: Confidence, clear_after: f64) -> Self {
        let may_warn_after = escalation.warns_after();
        Self { escalation, confidence, run: None, clear_after, may_warn_after, at_least: false, is_preexisting: false }
    }

    pub(super) fn since(self, run: Run) -> Self {
        Self { run: Some(run), ..self }
    }

    /// If it warns at all, it may warn after these seconds already.
    pub(super) fn delayed_from(self, seconds: f64) -> Self {
        Self { may_warn_after: self.may_warn_after.map(|after| after.min(seconds)), ..self }
    }
}

/// The number of phase changes within [`FLAP_WINDOW`] that makes a finding flap.
const FLAP_CHANGES: usize = 4;
/// In seconds. A flapping finding clears after it was steady for this long.
const FLAP_WINDOW: f64 = 1800.0;

/// One condition of one target and its finding.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    pub(super) target: FindingTarget,
    /// The published finding; its phase is the one that was published last.
    pub(super) finding: Finding,
    pub(super) phase: FindingPhase,
    pub(super) severity: Severity,
    pub(super) run: Run,
    /// How long the condition has been gone.
    pub(super) clear_run: Option<Run>,
    pub(super) clear_after: f64,
    /// An event fires until this time.
    pub(super) until: Option<f64>,
    /// The severity at its first sample, if the condition is preexisting.
    pub(super) initial_severity: Option<Severity>,
    pub(super) notified_severity: Option<Severity>,
    pub(super) changes: [f64; FLAP_CHANGES],
    pub(super) is_flapping: bool,
    /// When the phase last changed.
    pub(super) changed_at: f64,
    pub(super) text_updated_at: f64,
    pub(super) is_inhibited: bool,
    /// The snooze has just ended.
    pub(super) is_reminder: bool,
    /// The number of the last sample whose rules mentioned this condition.
    pub(super) last_sample: u64,
}

impl Condition {
    /// A condition in phase `Clear`.
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
        // A finding that resolves keeps it: if the job hangs again, it is examined again within about a minute.
        if phase == FindingPhase::Clear {
            self.finding.verdict = None;
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
        details: FindingDetails,
        sample_time: SampleTime,
        host: Option<&(HostId, SafeText)>,
    ) {
        self.text_updated_at = sample_time.t;
        let finding = &mut self.finding;
        finding.sentence = SafeText::from(details.sentence);
        finding.figures = SafeText::from(details.figures);
        finding.next_check = SafeText::from(details.next_check);
        finding.gpus = details.gpus;
        finding.processes = details.processes;
        finding.job = details.job;
        finding.peer_jobs.clear();
        finding.user = details.user;
        finding.is_mine = details.is_mine;
        finding.hosts.clear();
        // A finding about the fleet as a whole belongs to no host unless the rule names one.
        let host = host.filter(|_| !self.target.is_fleet());
        finding.hosts.extend(details.lead.as_ref().or(host).cloned());
        if let Some((host, _)) = finding.hosts.first() {
            finding.host = *host;
        }
        finding.hosts.extend(details.hosts);
    }

    /// Whether the condition has cleared and this was published.
    pub(super) fn is_cleared(&self) -> bool {
        self.phase == FindingPhase::Clear && self.finding.phase == FindingPhase::Clear
    }

    /// Frees the details of a finding that nobody sees any more. They are written again when the condition holds again.
    pub(super) fn drop_details(&mut self) {
        let finding = &mut self.finding;
        if finding.sentence.is_empty() {
            return;
        }
        (finding.sentence, finding.figures, finding.next_check) = <(SafeText, SafeText, SafeText)>::default();
        (finding.gpus, finding.processes) = (Vec::new(), Vec::new());
        (finding.job, finding.user, finding.verdict) = (None, None, None);
    }

    /// Whether a flapping finding stays until it was steady for long. A job that works is not hung, however often it
    /// waited before: findings about progress clear at once.
    fn is_held(&self) -> bool {
        self.is_flapping && !self.finding.rule.is_about_progress()
    }

    /// Takes in a sample that did not mention the condition. `exists` is false if its target is gone.
    pub(super) fn clear(&mut self, sample_time: SampleTime, exists: bool) {
        if self.until.is_some_and(|until| sample_time.t < until) {
            return;
        }
        match self.phase {
            FindingPhase::Clear => {}
            FindingPhase::Pending => self.enter(FindingPhase::Clear, sample_time.t),
            FindingPhase::Firing | FindingPhase::Resolving => {
                let needed = match (exists, self.until, self.is_held()) {
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

    /// The phase as seen from outside.
    fn published_phase(&self) -> FindingPhase {
        match self.phase {
            _ if self.is_inhibited => FindingPhase::Clear,
            // Another finding inhibited it for as long as its condition held.
            FindingPhase::Resolving if self.finding.phase == FindingPhase::Clear => FindingPhase::Clear,
            FindingPhase::Resolving if self.is_held() => FindingPhase::Firing,
            phase => phase,
        }
    }

    /// The severity as seen from outside.
    pub(super) fn published_severity(&self) -> Severity {
        self.finding.verdict.as_ref().map_or(self.severity, |verdict| verdict.limit(self.severity))
    }

    pub(super) fn publish(&mut self, sample_time: SampleTime) -> Option<Transition> {
        let (from, to) = (self.finding.phase, self.published_phase());
        self.finding.verdict.take_if(|verdict| verdict.until < sample_time.now);
        let severity = self.published_severity();
        let has_changed = from != to || (severity != self.finding.severity && to != FindingPhase::Clear);
        let is_milder = from == to && severity < self.finding.severity;
        self.finding.severity = severity;
        if let Some(verdict) = &self.finding.verdict {
            self.finding.confidence = verdict.raise(self.finding.confidence);
        }
        self.finding.is_flapping = self.is_flapping;
        self.finding.is_preexisting =
            self.initial_severity.is_some_and(|initial_severity| severity <= initial_severity);
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
            && (is_reminder || self.notified_severity.is_none_or(|notified| notified < severity));
        if notify {
            self.notified_severity = Some(severity);
        }
        Some(Transition {
            at: sample_time.now,
            id: self.finding.id.clone(),
            rule: self.finding.rule,
            host: (!self.target.is_fleet()).then_some(self.finding.host),
            host_name: self.finding.hosts.first().map_or_else(|| FLEET.into(), |(_, name)| name.clone()),
            from,
            to,
            severity,
            is_milder,
            notify,
            is_reminder,
            sentence: self.finding.sentence_with_verdict(),
        })
    }
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
