//! What a rule says of a target: how long its condition must hold, how severe that is, and the words.

use super::{Confidence, FindingGpu, FindingProcess, RuleId, Severity};
use crate::fleet::{HostId, JobKey, Moment, ProcessKey};
use crate::wire::SafeText;
use std::fmt::Write as _;
use std::time::Duration;

/// JobPart of its duration for which a condition must have been seen to hold.
pub(super) const MIN_COVERAGE: f64 = 0.8;

/// What a finding is about, within its host and rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FindingTarget {
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
pub(super) struct SampleTime {
    pub(super) now: Moment,
    pub(super) t: f64,
    /// Seconds that this sample stands for: since the one before it, three intervals at most.
    pub(super) dt: f64,
}

impl SampleTime {
    pub(super) fn new(now: Moment, dt: f64) -> Self {
        Self { now, t: now.since_start().as_secs_f64(), dt }
    }

    /// The moment of another time.
    pub(super) fn moment(self, t: f64) -> Moment {
        let back = Duration::try_from_secs_f64((self.t - t).max(0.0)).unwrap_or_default();
        self.now.minus(back)
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
        t - self.since >= seconds * 0.995 && self.covered >= seconds * MIN_COVERAGE
    }
}

/// The severities of a finding by how long it has held.
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

    pub(super) fn reached(&self, run: &Run, t: f64) -> Option<Severity> {
        self.0.iter().flatten().filter(|(_, after)| run.reaches(t, *after)).map(|(severity, _)| *severity).max()
    }
}

/// How a condition that holds is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evaluation {
    pub(super) escalation: Escalation,
    pub(super) confidence: Confidence,
    /// Since when, where that is known better than since the rule first said so.
    pub(super) run: Option<Run>,
    /// Seconds for which the condition must be gone.
    pub(super) clear_after: f64,
    /// It was so when it was first seen.
    pub(super) at_least: bool,
    /// At the first look it is a note.
    pub(super) may_be_preexisting: bool,
}

impl Evaluation {
    pub(super) fn new(escalation: Escalation, confidence: Confidence, clear_after: f64) -> Self {
        Self { escalation, confidence, run: None, clear_after, at_least: false, may_be_preexisting: false }
    }

    pub(super) fn since(self, run: Run) -> Self {
        Self { run: Some(run), ..self }
    }
}

/// What is said of a finding.
#[derive(Debug, Clone, Default)]
pub(super) struct FindingDetails {
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

/// What a finding is recognised by, also by another run of the program.
pub(super) fn fingerprint(rule: RuleId, host: &SafeText, target: &FindingTarget) -> SafeText {
    let mut id = format!("{}/{host}", rule.word());
    let process = |id: &mut String, key: &ProcessKey| {
        let start = key.start_ticks.unwrap_or(0);
        let _ = write!(id, "/{}.{start}.{}", key.pid, key.boot_id.as_deref().unwrap_or("-"));
    };
    // Writing to a string cannot fail.
    let _ = match target {
        FindingTarget::Host => Ok(()),
        FindingTarget::Gpu(uuid) => write!(id, "/{uuid}"),
        FindingTarget::Job(JobKey::Launcher(key)) | FindingTarget::Process(key) => {
            process(&mut id, key);
            Ok(())
        }
        FindingTarget::Job(job) => write!(id, "/{job}"),
        FindingTarget::Mount(name) | FindingTarget::Named(name) => write!(id, "/{name}"),
        FindingTarget::Xid(uuid, xid) => write!(id, "/{uuid}/{xid}"),
    };
    SafeText::from(id)
}
