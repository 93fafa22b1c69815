//! Findings and their transitions.

use super::RuleId;
use super::proof::{CulpritRank, Outcome, Verdict};
use crate::fleet::{HostId, JobKey, Moment, ProcessKey};
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::time::Duration;

/// The severity of a finding. Only `Warn` and `Crit` notify and count in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Needs attention.
    Warn,
    /// Work is lost or about to be lost.
    Crit,
}

impl Severity {
    /// The word for the screen and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Crit => "crit",
        }
    }
}

/// The confidence of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The readings have another explanation that cannot be ruled out.
    Suspected,
    /// The readings have no other known explanation.
    Likely,
    /// The driver or the kernel reports it, or an examination of the job proves it.
    Certain,
}

impl Confidence {
    /// The word for the screen and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Suspected => "suspected",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}

/// The phase of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingPhase {
    /// The condition does not hold. Appears only in transitions.
    Clear,
    /// The condition holds, but not yet long enough to fire.
    Pending,
    /// The condition has held long enough.
    Firing,
    /// The finding fired and its condition is gone, but not yet long enough to clear.
    Resolving,
}

impl FindingPhase {
    /// The word for the screen and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Pending => "pending",
            Self::Firing => "firing",
            Self::Resolving => "resolving",
        }
    }
}

/// How long a job must look stuck before it is suspected. The ranks of every job wait for each other for some seconds, for
/// example at the end of an epoch. Ten seconds without a healthy reading are at least two readings: a condition that a
/// single reading meets has lasted for no time.
const SUSPECTED_AFTER: Duration = Duration::from_secs(10);

/// The verdict of an examination, for a finding about the job.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingVerdict {
    /// The outcome.
    pub outcome: Outcome,
    /// The verdict in one sentence without a full stop.
    pub sentence: SafeText,
    /// The ranks that hold the job up, the first few; empty if they are not known.
    pub culprits: Vec<CulpritRank>,
    /// When the last reading for it was made.
    pub at: Moment,
    /// How long it is valid. It is renewed every ten minutes.
    pub until: Moment,
    /// The hosts of the examined processes, which it may quote; empty for the verdict of a collector.
    pub hosts: Vec<HostId>,
}

impl FindingVerdict {
    /// How long a verdict is valid if it is not renewed.
    pub(crate) const VALID: Duration = Duration::from_secs(1500);

    /// The verdict of an examination of processes on `hosts` that ended now.
    pub fn new(verdict: &Verdict, hosts: Vec<HostId>, now: Moment) -> Self {
        let culprits = verdict.culprit.iter().flat_map(|culprit| &culprit.ranks);
        Self {
            outcome: verdict.outcome,
            sentence: verdict.sentence.clone(),
            culprits: culprits.take(MAX_VERDICT_CULPRITS).cloned().collect(),
            at: now,
            until: now.plus(Self::VALID),
            hosts,
        }
    }

    /// The verdict for people, with its strength, if it says more than the finding does: `rank 3 (pid 71 on gpu-01, GPU 3) is
    /// stopped (likely)`.
    pub fn text(&self) -> Option<SafeText> {
        match self.outcome {
            Outcome::Proven | Outcome::Likely => Some(format!("{} ({})", self.sentence, self.outcome.word()).into()),
            Outcome::WaitsForRank | Outcome::NotHung => Some(self.sentence.clone()),
            Outcome::Suspected | Outcome::NothingKnown => None,
        }
    }

    /// The severity that a finding has with this verdict: a job that moves is slow at most, and one that waits for a rank at
    /// work may go on by itself.
    pub(super) fn limit(&self, severity: Severity) -> Severity {
        match self.outcome {
            Outcome::NotHung => severity.min(Severity::Info),
            Outcome::WaitsForRank => severity.min(Severity::Warn),
            Outcome::Proven | Outcome::Likely | Outcome::Suspected | Outcome::NothingKnown => severity,
        }
    }

    /// The confidence that a finding has with this verdict.
    pub(super) fn raise(&self, confidence: Confidence) -> Confidence {
        match self.outcome {
            Outcome::Proven => Confidence::Certain,
            Outcome::Likely => confidence.max(Confidence::Likely),
            Outcome::WaitsForRank | Outcome::NotHung | Outcome::Suspected | Outcome::NothingKnown => confidence,
        }
    }
}

/// The number of culprits that a finding names.
const MAX_VERDICT_CULPRITS: usize = 4;

/// One GPU of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingGpu {
    /// The host.
    pub host: HostId,
    /// The position in the inventory of that host when the details were written.
    pub position: usize,
    /// The GPU index, for display.
    pub index: u32,
    /// The UUID.
    pub uuid: Option<SafeText>,
}

/// One process of a finding.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingProcess {
    /// The host.
    pub host: HostId,
    /// The identity of the process.
    pub key: ProcessKey,
    /// The command in one line.
    pub command: SafeText,
}

/// A problem that a rule detected, with its evidence.
#[allow(clippy::struct_excessive_bools, reason = "independent properties")]
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The fingerprint: rule, host, and GPU, job or mount. It is the same in every run of the program.
    pub id: SafeText,
    /// The rule.
    pub rule: RuleId,
    /// The severity; the first one that will be reached while pending.
    pub severity: Severity,
    /// The confidence.
    pub confidence: Confidence,
    /// Pending, firing or resolving.
    pub phase: FindingPhase,
    /// When the condition began to hold; see [`Finding::lasted`].
    pub since: Moment,
    /// How long the condition had held at `updated`.
    pub(super) lasted: Duration,
    /// When the finding was last evaluated.
    pub updated: Moment,
    /// When the finding fired.
    pub fired_at: Option<Moment>,
    /// When a pending finding will fire if the condition continues to hold.
    pub due: Option<Moment>,
    /// How long the condition must hold until the finding is a warning or worse. `None` if it is one already, or is a note for now.
    pub warns_after: Option<Duration>,
    /// How long at the earliest: a log that grows delays the warning, or a rank that seems to work makes the finding a note, and
    /// both may end at any moment.
    pub may_warn_after: Option<Duration>,
    /// The verdict of the last examination of the job. Only findings about jobs that hang have one.
    pub verdict: Option<Box<FindingVerdict>>,
    /// The host that the finding is listed under. It means nothing if `hosts` is empty.
    pub host: HostId,
    /// All hosts concerned, with their names; the first is `host`. Empty if a finding about the fleet as a whole names no
    /// host.
    pub hosts: Vec<(HostId, SafeText)>,
    /// The GPUs concerned.
    pub gpus: Vec<FindingGpu>,
    /// The job concerned.
    pub job: Option<JobKey>,
    /// The parts of a distributed job on other hosts, which have no finding of their own for this rule.
    pub peer_jobs: Vec<(HostId, JobKey)>,
    /// The processes concerned.
    pub processes: Vec<FindingProcess>,
    /// The owner of the processes.
    pub user: Option<SafeText>,
    /// The processes belong to the login user of the host.
    pub is_mine: bool,
    /// The evidence, with its figures.
    pub sentence: SafeText,
    /// The most telling figures, for lists: `112 of 700 W`. Empty if there are none.
    pub figures: SafeText,
    /// The next check: a command if there is one.
    pub next_check: SafeText,
    /// [`RuleInfo::not`](super::RuleInfo): similar but harmless situations.
    pub not: &'static str,
    /// The duration is a lower bound: the condition already held when it was first observed.
    pub at_least: bool,
    /// The condition already held at the first sample: the finding is listed but sends no notification.
    pub is_preexisting: bool,
    /// The finding fires and clears repeatedly: it stays firing until it has been steady for 30 minutes.
    pub is_flapping: bool,
    /// The host is unreachable: the finding keeps its last state.
    pub is_frozen: bool,
    /// Set while the user has snoozed the finding.
    pub snoozed: Option<SnoozeEnd>,
}

impl Finding {
    /// How long the condition has held; stands still while the finding is frozen.
    pub fn lasted(&self, now: Moment) -> Duration {
        if self.is_frozen { self.lasted } else { self.lasted.saturating_add(now.since(self.updated)) }
    }

    /// Whether the finding notifies and counts in the header: `Warn` or `Crit`, not pending, not preexisting and not
    /// snoozed.
    pub fn is_alerting(&self) -> bool {
        self.phase != FindingPhase::Pending
            && self.severity >= Severity::Warn
            && !self.is_preexisting
            && self.snoozed.is_none()
    }

    /// Whether the finding is a suspicion: a job that looks stuck, but not for long enough to be sure. It is shown on the
    /// screen, never notified, and ends with the first healthy reading.
    ///
    /// A condition that would end as a note is no suspicion: a rank is seen to work on the host, or the job looked like
    /// this from the start, as tiny kernels do.
    pub fn is_suspicion(&self) -> bool {
        self.phase == FindingPhase::Pending
            && self.rule.is_hang_at_low_power()
            && self.severity >= Severity::Warn
            && self.lasted >= SUSPECTED_AFTER
            && self.snoozed.is_none()
            && !self.is_frozen
    }

    /// Whether an examination has shown that the job moves.
    pub fn moves(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.outcome == Outcome::NotHung)
    }

    /// The evidence, after the verdict of an examination if that says more.
    pub fn sentence_with_verdict(&self) -> SafeText {
        match self.verdict.as_deref().and_then(FindingVerdict::text) {
            Some(verdict) => format!("{verdict}; {}", self.sentence).into(),
            None => self.sentence.clone(),
        }
    }

    /// The severity by which findings are sorted. Nobody waits for memory that lies idle, however long: a critical
    /// idle-hog ranks as a warning, after the jobs that hang.
    pub fn rank_severity(&self) -> Severity {
        if self.rule == RuleId::IdleHog { self.severity.min(Severity::Warn) } else { self.severity }
    }

    /// Whether the condition began after this moment.
    pub fn began_after(&self, moment: Moment) -> bool {
        moment.unix < self.since.unix
    }

    /// Whether the finding is about this job, or about a distributed job with this part.
    pub fn concerns_job(&self, host: HostId, job: &JobKey) -> bool {
        (self.hosts.iter().any(|(id, _)| *id == host) && self.job.as_ref() == Some(job))
            || self.peer_jobs.iter().any(|(id, peer)| *id == host && peer == job)
    }

    /// Adds the part of a distributed job on another host: its name, its job and the GPUs concerned.
    pub(super) fn add_peer(&mut self, host: HostId, name: &SafeText, job: &JobKey, gpus: &[FindingGpu]) {
        if !self.hosts.iter().any(|(id, _)| *id == host) {
            self.hosts.push((host, name.clone()));
        }
        if !self.peer_jobs.iter().any(|(id, _)| *id == host) {
            self.peer_jobs.push((host, job.clone()));
        }
        for gpu in gpus.iter().filter(|gpu| gpu.host == host) {
            if !self.gpus.iter().any(|known| (known.host, known.position) == (host, gpu.position)) {
                self.gpus.push(gpu.clone());
            }
        }
    }

    /// Sets how long the condition has held.
    pub(crate) fn set_lasted(&mut self, lasted: Duration) {
        self.lasted = lasted;
    }

    /// A pending finding without details.
    pub(crate) fn blank(rule: RuleId, host: HostId, now: Moment) -> Self {
        Self {
            id: SafeText::default(),
            rule,
            severity: Severity::Info,
            confidence: Confidence::Suspected,
            phase: FindingPhase::Pending,
            since: now,
            lasted: Duration::ZERO,
            updated: now,
            fired_at: None,
            due: None,
            warns_after: None,
            may_warn_after: None,
            verdict: None,
            host,
            hosts: Vec::new(),
            gpus: Vec::new(),
            job: None,
            peer_jobs: Vec::new(),
            processes: Vec::new(),
            user: None,
            is_mine: false,
            sentence: SafeText::default(),
            figures: SafeText::default(),
            next_check: SafeText::default(),
            not: "",
            at_least: false,
            is_preexisting: false,
            is_flapping: false,
            is_frozen: false,
            snoozed: None,
        }
    }
}

/// A change of the phase or the severity of a finding.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// When it happened.
    pub at: Moment,
    /// The fingerprint; see [`Finding::id`].
    pub id: SafeText,
    /// The rule.
    pub rule: RuleId,
    /// The host that the finding is listed under; `None` if it is about the fleet as a whole.
    pub host: Option<HostId>,
    /// The name of that host, or `fleet`.
    pub host_name: SafeText,
    /// The phase before.
    pub from: FindingPhase,
    /// The phase after.
    pub to: FindingPhase,
    /// The severity after.
    pub severity: Severity,
    /// The finding is less severe than before: an examination has shown that the job moves.
    pub is_milder: bool,
    /// A notification should be sent: the finding fires for the first time, or is worse than when it was notified.
    pub notify: bool,
    /// The finding still fires after its snooze ended.
    pub is_reminder: bool,
    /// [`Finding::sentence_with_verdict`] at that time.
    pub sentence: SafeText,
}

/// A notification: a transition and the finding after it.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingNotification {
    /// The transition.
    pub transition: Transition,
    /// The finding after the transition.
    pub finding: Finding,
}

/// When a snooze ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnoozeEnd {
    /// At this moment.
    At(Moment),
    /// When the finding gets worse or clears.
    OnChange,
}

/// The name in place of a host for findings about the fleet as a whole, also in their fingerprints.
pub(super) const FLEET: &str = "fleet";

/// The subject of a finding within its host and rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FindingTarget {
    Host,
    /// By UUID; see `gpu_identity`.
    Gpu(SafeText),
    Job(JobKey),
    /// By mount point.
    Mount(SafeText),
    /// A GPU and an Xid number.
    Xid(SafeText, u64),
    /// A GPU model or an outage, for findings about the whole fleet.
    Named(SafeText),
}

impl FindingTarget {
    /// Whether the finding is about the fleet as a whole. It may be listed under one of the hosts.
    pub(super) fn is_fleet(&self) -> bool {
        matches!(self, Self::Named(_))
    }
}

/// The part of a finding that the rule writes.
#[derive(Debug, Clone, Default)]
pub(super) struct FindingDetails {
    pub(super) sentence: String,
    pub(super) figures: String,
    pub(super) next_check: String,
    pub(super) gpus: Vec<FindingGpu>,
    pub(super) processes: Vec<FindingProcess>,
    pub(super) job: Option<JobKey>,
    pub(super) user: Option<SafeText>,
    pub(super) is_mine: bool,
    /// The host to list the finding under, if it is not the evaluated host.
    pub(super) lead: Option<(HostId, SafeText)>,
    /// Other hosts concerned.
    pub(super) hosts: Vec<(HostId, SafeText)>,
}

impl FindingDetails {
    /// Adds the most telling figures.
    pub(super) fn with_figures(self, figures: impl Into<String>) -> Self {
        Self { figures: figures.into(), ..self }
    }
}

/// The fingerprint of a finding: `RULE/HOST` and the target. It is the same in every run of the program.
pub(super) fn fingerprint(rule: RuleId, host: &SafeText, target: &FindingTarget) -> SafeText {
    let mut id = format!("{}/{host}", rule.word());
    // Writing to a string cannot fail.
    let _ = match target {
        FindingTarget::Host => Ok(()),
        FindingTarget::Gpu(uuid) => write!(id, "/{uuid}"),
        FindingTarget::Job(JobKey::Launcher(key)) => {
            let boot_id = key.boot_id.as_deref().unwrap_or("-");
            write!(id, "/{}.{}.{boot_id}", key.pid, key.start_ticks.unwrap_or(0))
        }
        FindingTarget::Job(job) => write!(id, "/{job}"),
        FindingTarget::Mount(name) | FindingTarget::Named(name) => write!(id, "/{name}"),
        FindingTarget::Xid(uuid, xid) => write!(id, "/{uuid}/{xid}"),
    };
    SafeText::from(id)
}
