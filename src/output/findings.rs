//! What diagnosis says, as text and as JSON; docs/recording.md and docs/findings-json.md describe the JSON.
//!
//! ```text
//! crit  gpu-03  stuck-spin, likely, for 14 min
//!       GPUs 0-7 say 100 % busy for 14 min but draw 104 W of 700 W (was 560 W) and move no memory: ...
//!       next: py-spy dump --pid 4312
//!       not:  a barrier while one rank saves or evaluates
//! watching
//! warn  gpu-02  idle-hog, likely, fires in 3 min
//!       ...
//! not judged: 7 MIG instances without a utilization
//! too little history for: stuck-spin (10 min), idle-hog (60 min)
//! no answer from gpu-05: nothing listens on port 22
//! 1 finding, 1 pending; 6 hosts watched for 30 s
//! ```

use super::json::{JsonError, JsonFinding, rfc3339, rounded};
use super::paint::{Paint, Tone};
use crate::diagnosis::{Finding, FindingPhase, NotJudged, RuleId, Severity, SnoozeEnd, Transition};
use crate::fleet::{Fleet, Host, Link, Moment};
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// What there is to say at the end of a look.
pub struct FindingsReport<'a> {
    /// The fleet.
    pub fleet: &'a Fleet,
    /// The findings in the engine's order: firing, pending, resolving.
    pub findings: &'a [&'a Finding],
    /// What could not be judged.
    pub not_judged: &'a [NotJudged],
    /// Rules that watch for longer than was watched, with how long they do.
    pub too_little_history: &'a [(RuleId, Duration)],
    /// For how long it was watched, on the fleet's clock.
    pub observed: Duration,
    /// The moment for which ages are told.
    pub now: Moment,
}

/// Whether a finding is to be shown.
pub fn is_shown(finding: &Finding, least: Severity) -> bool {
    finding.severity >= least
}

/// The whole list.
pub fn list(report: &FindingsReport<'_>, paint: Paint) -> String {
    let mut text = String::new();
    if report.fleet.simulated {
        text += &paint.paint(Tone::Warn, "simulated fleet (--demo)");
        text += "\n";
    }
    let (pending, firing): (Vec<&Finding>, Vec<&Finding>) =
        report.findings.iter().copied().partition(|finding| finding.phase == FindingPhase::Pending);
    for finding in &firing {
        text += &block(finding, report.now, paint);
    }
    if !pending.is_empty() {
        text += &paint.paint(Tone::Strong, "watching");
        text += "\n";
    }
    for finding in &pending {
        text += &block(finding, report.now, paint);
    }
    if !report.not_judged.is_empty() {
        let missing: Vec<String> = report.not_judged.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "not judged: {}", missing.join(", "));
    }
    if !report.too_little_history.is_empty() {
        let rules = report.too_little_history.iter();
        let rules: Vec<String> = rules
            .map(|(rule, time)| format!("{} ({})", rule.word(), duration(*time, DurationStyle::OneUnit)))
            .collect();
        let _ = writeln!(text, "too little history for: {}", rules.join(", "));
    }
    for host in report.fleet.hosts().iter().filter(|host| !has_reported(host)) {
        let why = match (&host.link, host.link.error()) {
            (_, Some(error)) => error.message.to_string(),
            (Link::Connecting { phase, .. }, None) => format!("it has come to: {}", phase.description()),
            _ => "no readings yet".to_owned(),
        };
        text += &paint.paint(Tone::Warn, &format!("no answer from {}: {why}", host.name()));
        text += "\n";
    }
    let count = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let _ = writeln!(
        text,
        "{}, {} pending; {} watched for {}",
        count(firing.len(), "finding"),
        pending.len(),
        count(report.fleet.hosts().len(), "host"),
        duration(report.observed, DurationStyle::OneUnit)
    );
    text
}

fn block(finding: &Finding, now: Moment, paint: Paint) -> String {
    let is_pending = finding.phase == FindingPhase::Pending;
    let hosts = match &finding.hosts[..] {
        [] | [_] => finding.hosts.first().map_or("?", |(_, name)| name.as_str()).to_owned(),
        [(_, first), rest @ ..] => format!("{first} and {} more", rest.len()),
    };
    let bound = if finding.at_least { "at least " } else { "" };
    let mut head = format!("{}, {}", finding.rule.word(), finding.confidence.word());
    match (is_pending, finding.due) {
        (true, Some(due)) => {
            let _ = write!(head, ", fires in {}", duration(now.until(due), DurationStyle::OneUnit));
        }
        (true, None) => head += ", not for long enough yet",
        (false, _) => {
            let _ = write!(head, ", for {bound}{}", duration(finding.lasted(now), DurationStyle::OneUnit));
        }
    }
    for (is_so, words) in [
        (finding.phase == FindingPhase::Resolving, ", seems over"),
        (finding.is_preexisting, ", was so at the first look"),
        (finding.is_flapping, ", comes and goes"),
        (finding.is_frozen, ", as last seen"),
    ] {
        if is_so {
            head += words;
        }
    }
    match finding.snoozed {
        Some(SnoozeEnd::At(until)) => {
            let _ = write!(head, ", snoozed for {}", duration(now.until(until), DurationStyle::OneUnit));
        }
        Some(SnoozeEnd::OnChange) => head += ", snoozed until it changes",
        None => {}
    }
    let is_dim = is_pending || finding.snoozed.is_some();
    let tone = if is_dim { Tone::Dim } else { severity_tone(finding.severity) };
    let mut text = format!("{}  {hosts}  {head}\n", paint.paint(tone, finding.severity.word()));
    let mut line = |label: &str, words: &str| {
        if !words.is_empty() {
            let words = format!("      {label}{words}");
            text += &if is_dim { paint.paint(Tone::Dim, &words) } else { words };
            text += "\n";
        }
    };
    line("", &finding.sentence);
    line("next: ", &finding.next_check);
    line("not:  ", finding.not);
    text
}

/// One line for a change: when, where, which rule, from what to what, and the evidence.
pub fn transition(transition: &Transition, start: Moment, paint: Paint) -> String {
    let (from, to) = (transition.from.word(), transition.to.word());
    let change = match (from == to, transition.is_reminder) {
        (true, true) => format!("still {to}"),
        (true, false) => format!("{to} worse"),
        (false, _) => format!("{from} -> {to}"),
    };
    let tone = match transition.to {
        FindingPhase::Firing => severity_tone(transition.severity),
        _ => Tone::Dim,
    };
    format!(
        "{:>10}  {}  {}  {}  {}{}  {}\n",
        clock(transition.at.since(start)),
        paint.paint(tone, transition.severity.word()),
        transition.host_name,
        transition.rule.word(),
        paint.paint(tone, &change),
        if transition.notify { " (told)" } else { "" },
        transition.sentence
    )
}

/// How much it matters, as a colour.
pub fn severity_tone(severity: Severity) -> Tone {
    match severity {
        Severity::Info => Tone::Plain,
        Severity::Warn => Tone::Warn,
        Severity::Crit => Tone::Critical,
    }
}

/// Seconds since the beginning as `1:02:03`.
fn clock(since: Duration) -> String {
    let seconds = since.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

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
fn has_reported(host: &Host) -> bool {
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

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
