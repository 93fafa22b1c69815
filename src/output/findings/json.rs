//! Findings and transitions as JSON, one line each time.

use super::FindingsReport;
use crate::diagnosis::{Finding, NotJudged, RuleId, SnoozeEnd, Transition};
use crate::fleet::{Fleet, Host, HostId, Link, Moment};
use crate::output::json::{JsonError, rfc3339};
use crate::wire::SafeText;
use serde::Serialize;
use std::time::Duration;

/// The version of these schemas. It rises when a field goes or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// What was found.
#[derive(Debug, Serialize)]
pub struct JsonFindings {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was put out, RFC 3339 in UTC.
    pub time: Option<String>,
    /// The data comes from the simulator (`--demo`), not from machines.
    pub simulated: bool,
    /// For how long the hosts were watched, in seconds of their own clock.
    pub observed_seconds: f64,
    /// Hosts that were asked for.
    pub hosts: usize,
    /// Hosts that did not report.
    pub silent: Vec<JsonSilent>,
    /// What was found, the most important first.
    pub findings: Vec<JsonFinding>,
    /// What could not be judged, and why.
    pub not_judged: Vec<JsonNotJudged>,
    /// Rules that watch for longer than was watched, before they fire for the first time.
    pub too_little_history: Vec<JsonNeedsHistory>,
}

/// A rule that needs a longer look.
#[derive(Debug, Serialize)]
pub struct JsonNeedsHistory {
    /// Its word.
    pub rule: &'static str,
    /// For how long it watches before it fires, in seconds.
    pub needs_seconds: f64,
}

/// A host that did not report.
#[derive(Debug, Serialize)]
pub struct JsonSilent {
    /// Its name.
    pub host: SafeText,
    /// `connecting`, `live`, `stale`, `down` or `needs_user`.
    pub state: &'static str,
    /// Why.
    pub error: Option<JsonError>,
}

/// One finding.
#[derive(Debug, Serialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own in the schema")]
pub struct JsonFinding {
    /// What it is recognised by, also by another run.
    pub id: SafeText,
    /// The rule's word, for example `stuck-spin`.
    pub rule: &'static str,
    /// `info`, `warn` or `crit`; of a pending one, how much it will matter.
    pub severity: &'static str,
    /// `suspected`, `likely` or `certain`.
    pub confidence: &'static str,
    /// `pending`, `firing` or `resolving`.
    pub phase: &'static str,
    /// Since when its condition has held, RFC 3339.
    pub since: Option<String>,
    /// For how long it has held.
    pub lasted_seconds: f64,
    /// That is a lower bound.
    pub at_least: bool,
    /// When it fired.
    pub fired_at: Option<String>,
    /// When a pending one will fire if it goes on.
    pub due_at: Option<String>,
    /// The host that it is shown under.
    pub host: SafeText,
    /// All hosts that it is about.
    pub hosts: Vec<SafeText>,
    /// The GPUs that it is about.
    pub gpus: Vec<JsonFindingGpu>,
    /// The job that it is about, as `status --json` writes it.
    pub job: Option<String>,
    /// The processes that it is about.
    pub processes: Vec<JsonFindingProcess>,
    /// Whose they are.
    pub user: Option<SafeText>,
    /// They belong to the user that gpufleet logs in as.
    pub mine: bool,
    /// The evidence with its figures.
    pub sentence: SafeText,
    /// What to look at next.
    pub next_check: SafeText,
    /// What it is not.
    pub not: &'static str,
    /// It held at the first look, so nobody is called for it.
    pub note: bool,
    /// It comes and goes.
    pub flapping: bool,
    /// Its host cannot be seen now.
    pub frozen: bool,
    /// Somebody wants to hear nothing of it for now.
    pub snoozed: bool,
    /// Until then, RFC 3339; `null` for until it changes, and where it is not snoozed.
    pub snoozed_until: Option<String>,
}

/// A GPU of a finding.
#[derive(Debug, Serialize)]
pub struct JsonFindingGpu {
    /// Its host.
    pub host: Option<SafeText>,
    /// Its index.
    pub index: u32,
    /// Its UUID.
    pub uuid: Option<SafeText>,
}

/// A process of a finding.
#[derive(Debug, Serialize)]
pub struct JsonFindingProcess {
    /// Its host.
    pub host: Option<SafeText>,
    /// Its pid.
    pub pid: u32,
    /// Its start in ticks after boot.
    pub start_ticks: Option<u64>,
    /// Its command in one line.
    pub command: SafeText,
}

/// Something that could not be judged.
#[derive(Debug, Serialize)]
pub struct JsonNotJudged {
    /// How many.
    pub count: u32,
    /// Of what.
    pub what: &'static str,
    /// Why.
    pub why: &'static str,
}

/// A finding that changed.
#[derive(Debug, Serialize)]
pub struct JsonTransition {
    /// Seconds since the recording, or the look, began.
    pub t: f64,
    /// The same on the wall clock, RFC 3339.
    pub time: Option<String>,
    /// Which finding.
    pub id: SafeText,
    /// The rule's word.
    pub rule: &'static str,
    /// The host that it is shown under.
    pub host: SafeText,
    /// The phase before: `clear`, `pending`, `firing` or `resolving`.
    pub from: &'static str,
    /// The phase now.
    pub to: &'static str,
    /// `info`, `warn` or `crit`.
    pub severity: &'static str,
    /// How sure it is; `null` once the finding is gone.
    pub confidence: Option<&'static str>,
    /// Somebody would have been told.
    pub notify: bool,
    /// Nothing has changed but that its snooze is over.
    pub reminder: bool,
    /// Indexes of its GPUs; empty once the finding is gone.
    pub gpus: Vec<u32>,
    /// Pids of its processes.
    pub pids: Vec<u32>,
    /// Whose they are.
    pub user: Option<SafeText>,
    /// The evidence with its figures.
    pub sentence: SafeText,
}

impl JsonFindings {
    /// What a report holds.
    pub fn new(report: &FindingsReport<'_>) -> Self {
        let silent = report.fleet.hosts().iter().filter(|host| !has_reported(host));
        Self {
            schema: SCHEMA,
            time: rfc3339(report.now),
            simulated: report.fleet.simulated,
            observed_seconds: rounded(report.observed),
            hosts: report.fleet.hosts().len(),
            silent: silent.map(JsonSilent::new).collect(),
            findings: report.findings.iter().map(|it| JsonFinding::new(it, report.fleet, report.now)).collect(),
            not_judged: report.not_judged.iter().map(JsonNotJudged::new).collect(),
            too_little_history: report.too_little_history.iter().map(JsonNeedsHistory::new).collect(),
        }
    }
}

/// Whether a host's readings are there, and the last thing known of it is not that it is gone.
pub(super) fn has_reported(host: &Host) -> bool {
    host.snapshot.is_some() && matches!(host.link, Link::Live | Link::Stale { .. })
}

impl JsonNeedsHistory {
    fn new((rule, time): &(RuleId, Duration)) -> Self {
        Self { rule: rule.word(), needs_seconds: rounded(*time) }
    }
}

impl JsonSilent {
    fn new(host: &Host) -> Self {
        Self { host: host.name().clone(), state: host.link.word(), error: host.link.error().map(JsonError::new) }
    }
}

impl JsonFinding {
    /// One finding of a fleet.
    pub fn new(finding: &Finding, fleet: &Fleet, now: Moment) -> Self {
        let name = |id: HostId| fleet.host(id).map(|host| host.name().clone());
        let gpus = finding.gpus.iter();
        let processes = finding.processes.iter();
        Self {
            id: finding.id.clone(),
            rule: finding.rule.word(),
            severity: finding.severity.word(),
            confidence: finding.confidence.word(),
            phase: finding.phase.word(),
            since: rfc3339(finding.since),
            lasted_seconds: rounded(finding.lasted(now)),
            at_least: finding.at_least,
            fired_at: finding.fired_at.and_then(rfc3339),
            due_at: finding.due.and_then(rfc3339),
            host: name(finding.host).unwrap_or_default(),
            hosts: finding.hosts.iter().map(|(_, name)| name.clone()).collect(),
            gpus: gpus
                .map(|gpu| JsonFindingGpu { host: name(gpu.host), index: gpu.index, uuid: gpu.uuid.clone() })
                .collect(),
            job: finding.job.as_ref().map(ToString::to_string),
            processes: processes
                .map(|process| JsonFindingProcess {
                    host: name(process.host),
                    pid: process.key.pid,
                    start_ticks: process.key.start_ticks,
                    command: process.command.clone(),
                })
                .collect(),
            user: finding.user.clone(),
            mine: finding.is_mine,
            sentence: finding.sentence.clone(),
            next_check: finding.next_check.clone(),
            not: finding.not,
            note: finding.is_preexisting,
            flapping: finding.is_flapping,
            frozen: finding.is_frozen,
            snoozed: finding.snoozed.is_some(),
            snoozed_until: match finding.snoozed {
                Some(SnoozeEnd::At(until)) => rfc3339(until),
                Some(SnoozeEnd::OnChange) | None => None,
            },
        }
    }
}

impl JsonNotJudged {
    fn new(missing: &NotJudged) -> Self {
        Self { count: missing.count, what: missing.what, why: missing.why }
    }
}

impl JsonTransition {
    /// A change; `finding` is what it concerns, while it is still there, and `start` the moment that `t` is counted from.
    pub fn new(transition: &Transition, finding: Option<&Finding>, start: Moment) -> Self {
        Self {
            t: rounded(transition.at.since(start)),
            time: rfc3339(transition.at),
            id: transition.id.clone(),
            rule: transition.rule.word(),
            host: transition.host_name.clone(),
            from: transition.from.word(),
            to: transition.to.word(),
            severity: transition.severity.word(),
            confidence: finding.map(|finding| finding.confidence.word()),
            notify: transition.notify,
            reminder: transition.is_reminder,
            gpus: finding.iter().flat_map(|finding| &finding.gpus).map(|gpu| gpu.index).collect(),
            pids: finding.iter().flat_map(|finding| &finding.processes).map(|process| process.key.pid).collect(),
            user: finding.and_then(|finding| finding.user.clone()),
            sentence: transition.sentence.clone(),
        }
    }
}

/// The report as one line of JSON.
pub fn line(report: &FindingsReport<'_>) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&JsonFindings::new(report))? + "\n")
}

/// A change as one line of JSON.
pub fn transition_line(
    transition: &Transition,
    finding: Option<&Finding>,
    start: Moment,
) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&JsonTransition::new(transition, finding, start))? + "\n")
}

/// To the millisecond.
fn rounded(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e3).round() / 1e3
}
