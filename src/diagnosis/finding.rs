//! What diagnosis says: findings, and how they change.

use super::{RuleId, SnoozeEnd};
use crate::fleet::{HostId, JobKey, Moment, ProcessKey};
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How much it matters. Only a warning and above notifies and counts in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Somebody should look.
    Warn,
    /// Work is lost, or will be.
    Crit,
}

impl Severity {
    /// The word for people and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Crit => "crit",
        }
    }
}

/// How sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Confidence {
    /// There is another explanation that the readings do not rule out.
    Suspected,
    /// The readings fit nothing else that is known.
    Likely,
    /// The driver or the kernel says so.
    Certain,
}

impl Confidence {
    /// The word for people and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Suspected => "suspected",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}

/// How far a finding has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingPhase {
    /// The condition does not hold. Only transitions carry it.
    Clear,
    /// The condition holds, not yet for as long as it takes.
    Pending,
    /// It has held for long enough.
    Firing,
    /// It fired, and the condition is gone, not yet for as long as it takes.
    Resolving,
}

impl FindingPhase {
    /// The word for people and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Pending => "pending",
            Self::Firing => "firing",
            Self::Resolving => "resolving",
        }
    }
}

/// One GPU of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingGpu {
    /// Its host.
    pub host: HostId,
    /// Its position in that host's inventory when this was said.
    pub position: usize,
    /// Its index, for people.
    pub index: u32,
    /// What it is recognised by.
    pub uuid: Option<SafeText>,
}

/// One process of a finding.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingProcess {
    /// Its host.
    pub host: HostId,
    /// Its identity.
    pub key: ProcessKey,
    /// Its command in one line.
    pub command: SafeText,
}

/// Something that a rule has found.
#[allow(clippy::struct_excessive_bools, reason = "each is a property of its own, and any of them may go together")]
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What it is recognised by, also by another run of the program: rule, host, and GPU, job or mount.
    pub id: SafeText,
    /// Which rule said so.
    pub rule: RuleId,
    /// How much it matters; of a pending one, how much it will.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    /// Pending, firing or resolving.
    pub phase: FindingPhase,
    /// Since when the condition has held; see [`Finding::lasted`].
    pub since: Moment,
    /// Its length up to `updated`.
    pub(super) lasted: Duration,
    /// When it was looked at last.
    pub updated: Moment,
    /// When it fired.
    pub fired_at: Option<Moment>,
    /// When it will fire if it goes on, of a pending one.
    pub due: Option<Moment>,
    /// The host that it is shown under.
    pub host: HostId,
    /// All hosts that it is about, by name; the first is `host`.
    pub hosts: Vec<(HostId, SafeText)>,
    /// The GPUs that it is about.
    pub gpus: Vec<FindingGpu>,
    /// The job that it is about.
    pub job: Option<JobKey>,
    /// The processes that it is about.
    pub processes: Vec<FindingProcess>,
    /// Whose they are.
    pub user: Option<SafeText>,
    /// They belong to the user that gpufleet logs in as there.
    pub is_mine: bool,
    /// The evidence, with its figures.
    pub sentence: SafeText,
    /// What to look at next, a command where there is one.
    pub next_check: SafeText,
    /// What it is not.
    pub not: &'static str,
    /// How long it has lasted is a lower bound: it was so when it was first seen.
    pub at_least: bool,
    /// It held at the first look: told, and nobody is called for it.
    pub is_preexisting: bool,
    /// It comes and goes: held until it has been steady for half an hour.
    pub is_flapping: bool,
    /// Its host cannot be seen: it stands as it was seen last.
    pub is_frozen: bool,
    /// Somebody wants to hear nothing of it for now.
    pub snoozed: Option<SnoozeEnd>,
}

impl Finding {
    /// How long the condition has held.
    pub fn lasted(&self, now: Moment) -> Duration {
        if self.is_frozen { self.lasted } else { self.lasted + now.since(self.updated) }
    }

    /// Whether it counts in the header, and calls somebody: a warning or worse that was not there from the start, and
    /// that nobody has snoozed.
    pub fn is_alerting(&self) -> bool {
        self.phase != FindingPhase::Pending
            && self.severity >= Severity::Warn
            && !self.is_preexisting
            && self.snoozed.is_none()
    }
}

impl Finding {
    /// An empty finding to be filled in.
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
            host,
            hosts: Vec::new(),
            gpus: Vec::new(),
            job: None,
            processes: Vec::new(),
            user: None,
            is_mine: false,
            sentence: SafeText::default(),
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

/// A finding that changed its phase or its severity.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// When.
    pub at: Moment,
    /// Which: see [`Finding::id`].
    pub id: SafeText,
    /// Which rule.
    pub rule: RuleId,
    /// The host that it is shown under.
    pub host: HostId,
    /// Its name.
    pub host_name: SafeText,
    /// From this phase.
    pub from: FindingPhase,
    /// To this one.
    pub to: FindingPhase,
    /// The severity now.
    pub severity: Severity,
    /// Somebody should be told: it fires for the first time, or is worse than when they were told.
    pub notify: bool,
    /// Nothing has changed but that its snooze is over, and it still fires.
    pub is_reminder: bool,
    /// The evidence as of now.
    pub sentence: SafeText,
}

/// A finding that somebody should be told of: how it changed, and what it says then.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingNotification {
    /// The change.
    pub transition: Transition,
    /// The finding as it stood.
    pub finding: Finding,
}

/// What could not be judged, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotJudged {
    /// How many.
    pub count: u32,
    /// Of what, as a word in the singular: `GPU`, `MIG instance`, `host`.
    pub what: &'static str,
    /// Why, as it follows on the count: `without a power limit`.
    pub why: &'static str,
}

impl std::fmt::Display for NotJudged {
    /// As in "1 GPU without a power limit".
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = match (self.count, self.what) {
            (1, _) => "",
            (_, what) if what.ends_with('s') => "es",
            _ => "s",
        };
        write!(formatter, "{} {}{plural} {}", self.count, self.what, self.why)
    }
}
