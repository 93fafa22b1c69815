//! Findings and transitions as text and as JSON. docs/findings-json.md and docs/recording.md describe the JSON.
//!
//! ```text
//! crit  gpu-03  stuck-spin, likely, for 14 min
//!       GPUs 0-7 read 100 % busy for 14 min but draw 104 W of 700 W (was 560 W) and access no memory: ...
//!       next:   py-spy dump --pid 4312
//!       unless: a barrier while one rank saves or evaluates
//! watching
//! warn  gpu-02  idle-hog, likely, starts in 3 min
//!       ...
//! not judged: 7 MIG instances without a utilization
//! 24 rules need longer: --for 600 is enough for 15 of them, --for 7200 for all
//! no answer from gpu-05: nothing listens on port 22
//! 1 finding, 1 pending; 6 hosts watched for 30 s
//! ```

use super::json::{JsonError, JsonFinding, JsonFindingVerdict, rfc3339, rounded};
use super::paint::{Paint, Tone};
use super::report::{has_reported, no_answer_text};
use crate::diagnosis::{Finding, FindingPhase, FindingVerdict, NotJudged, RuleId, Severity, SnoozeEnd, Transition};
use crate::fleet::{Fleet, Host, Misbehavior, Moment};
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// The result of `gpufleet findings`.
pub struct FindingsReport<'a> {
    /// The hosts and their readings.
    pub fleet: &'a Fleet,
    /// The findings in the order of the engine: firing, pending, resolving.
    pub findings: &'a [&'a Finding],
    /// GPUs and hosts that could not be evaluated.
    pub not_judged: &'a [NotJudged],
    /// Rules that need a longer observation than there was, with its length.
    pub too_little_history: &'a [(RuleId, Duration)],
    /// The length of the observation on the fleet's clock.
    pub observed: Duration,
    /// The moment of the report, for ages.
    pub now: Moment,
}

/// Whether a finding is severe enough to be listed.
pub fn is_shown(finding: &Finding, least: Severity) -> bool {
    finding.severity >= least
}

/// The findings as text.
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
        let not_judged: Vec<String> = report.not_judged.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "not judged: {}", not_judged.join(", "));
    }
    if !report.too_little_history.is_empty() {
        text += &too_little_history(report.too_little_history);
        text += "\n";
    }
    for host in report.fleet.hosts().iter().filter(|host| !has_reported(host)) {
        let why = match host.link.error() {
            Some(error) => format!("no answer from {}: {}", host.name(), error.message),
            None => format!("{}: {}", host.name(), no_answer_text(host, report.now)),
        };
        text += &paint.paint(Tone::Warn, &why);
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

/// `24 rules need longer: --for 600 is enough for 15 of them, --for 7200 for all`
fn too_little_history(rules: &[(RuleId, Duration)]) -> String {
    const FIRST_STEP: u64 = 600;
    let seconds = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let all = rules.iter().map(|(_, time)| seconds(*time)).max().unwrap_or(0);
    let soon = rules.iter().filter(|(_, time)| seconds(*time) <= FIRST_STEP).count();
    match (rules, soon) {
        ([(rule, _)], _) => format!("1 rule needs longer: --for {all} ({})", rule.word()),
        (_, 0) => format!("{} rules need longer: --for {all}", rules.len()),
        (_, soon) if soon == rules.len() => format!("{soon} rules need longer: --for {all}"),
        (_, soon) => {
            format!(
                "{} rules need longer: --for {FIRST_STEP} is enough for {soon} of them, --for {all} for all",
                rules.len()
            )
        }
    }
}

fn block(finding: &Finding, now: Moment, paint: Paint) -> String {
    let is_pending = finding.phase == FindingPhase::Pending;
    let hosts = match &finding.hosts[..] {
        [] | [_] => finding.hosts.first().map_or("?", |(_, name)| name.as_str()).to_owned(),
        [(_, first), rest @ ..] => format!("{first} and {} more", rest.len()),
    };
    let bound = if finding.at_least { "at least " } else { "" };
    let mut details = format!("{}, {}", finding.rule.word(), finding.confidence.word());
    match (is_pending, finding.due) {
        (true, Some(due)) => {
            let _ = write!(details, ", starts in {}", duration(now.until(due), DurationStyle::OneUnit));
        }
        (true, None) => details += ", not started yet",
        (false, _) => {
            let _ = write!(details, ", for {bound}{}", duration(finding.lasted(now), DurationStyle::OneUnit));
        }
    }
    for (is_so, words) in [
        (finding.phase == FindingPhase::Resolving, ", seems ended"),
        (finding.is_preexisting, ", already present at the first sample"),
        (finding.is_flapping, ", comes and goes"),
        (finding.is_frozen, ", as last seen"),
    ] {
        if is_so {
            details += words;
        }
    }
    match finding.snoozed {
        Some(SnoozeEnd::At(until)) => {
            let _ = write!(details, ", snoozed for {}", duration(now.until(until), DurationStyle::OneUnit));
        }
        Some(SnoozeEnd::OnChange) => details += ", snoozed until it changes",
        None => {}
    }
    let is_dim = is_pending || finding.snoozed.is_some();
    let tone = if is_dim { Tone::Dim } else { severity_tone(finding.severity) };
    let mut text = format!("{}  {hosts}  {details}\n", paint.paint(tone, finding.severity.word()));
    let mut line = |label: &str, words: &str| {
        if !words.is_empty() {
            let words = format!("      {label}{words}");
            text += &if is_dim { paint.paint(Tone::Dim, &words) } else { words };
            text += "\n";
        }
    };
    line("", &finding.sentence);
    line("why:    ", &finding.verdict.as_deref().and_then(FindingVerdict::text).unwrap_or_default());
    line("next:   ", &finding.next_check);
    line("unless: ", finding.not);
    text
}

/// A transition in one line: time, severity, host, rule, phases and evidence.
pub fn transition(transition: &Transition, start: Moment, paint: Paint) -> String {
    let (from, to) = (transition.from.word(), transition.to.word());
    let change = match (from == to, transition.is_reminder) {
        (true, true) => format!("still {to}"),
        (true, false) if transition.is_milder => format!("{to} milder"),
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
        if transition.notify { " (notified)" } else { "" },
        transition.sentence
    )
}

/// A host that misbehaved in a recording, with the first and the last time.
pub fn misbehavior(name: &SafeText, misbehavior: Misbehavior, first: Moment, last: Moment) -> String {
    let (first, last) = (clock(first.since_start()), clock(last.since_start()));
    format!("{name} {} (from {first} to {last})", misbehavior.text())
}

/// The tone of a severity.
pub fn severity_tone(severity: Severity) -> Tone {
    match severity {
        Severity::Info => Tone::Plain,
        Severity::Warn => Tone::Warn,
        Severity::Crit => Tone::Critical,
    }
}

/// The time since the start as `1:02:03`.
fn clock(since: Duration) -> String {
    let seconds = since.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The version of these schemas. It rises when a field is removed or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// The JSON of a [`FindingsReport`].
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonFindings {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When the report was written, RFC 3339 in UTC.
    pub time: Option<String>,
    /// Whether the data comes from the simulator (`--demo`).
    pub simulated: bool,
    /// The length of the observation in seconds of the hosts' clock.
    pub observed_seconds: f64,
    /// Number of requested hosts.
    pub hosts: usize,
    /// Hosts that did not report.
    pub silent: Vec<JsonSilent>,
    /// The findings, most important first.
    pub findings: Vec<JsonFinding>,
    /// GPUs and hosts that could not be evaluated, with the reason.
    pub not_judged: Vec<JsonNotJudged>,
    /// Rules that need a longer observation before they can fire.
    pub too_little_history: Vec<JsonNeedsHistory>,
}

/// A rule that needs a longer observation.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonNeedsHistory {
    /// The id of the rule.
    pub rule: &'static str,
    /// The length of the observation that the rule needs, in seconds.
    pub needs_seconds: f64,
}

/// A host that did not report.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonSilent {
    /// The name of the host.
    pub host: SafeText,
    /// `connecting`, `live`, `stale`, `down` or `needs_user`.
    pub state: &'static str,
    /// The cause.
    pub error: Option<JsonError>,
}

/// A number of GPUs or hosts that could not be evaluated.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonNotJudged {
    /// The number.
    pub count: u32,
    /// The kind: GPUs, MIG instances or hosts.
    pub what: SafeText,
    /// The reason.
    pub why: SafeText,
}

/// A change of a finding.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonTransition {
    /// Seconds since the start of the recording or of the observation.
    pub t: f64,
    /// The wall-clock time of the change, RFC 3339.
    pub time: Option<String>,
    /// The id of the finding.
    pub id: SafeText,
    /// The id of the rule.
    pub rule: &'static str,
    /// The host of the finding.
    pub host: SafeText,
    /// The phase before: `clear`, `pending`, `firing` or `resolving`.
    pub from: &'static str,
    /// The phase now.
    pub to: &'static str,
    /// `info`, `warn` or `crit`.
    pub severity: &'static str,
    /// `suspected`, `likely` or `certain`; `null` once the finding is gone.
    pub confidence: Option<&'static str>,
    /// Whether the change sends a notification.
    pub notify: bool,
    /// Whether the only change is the end of a snooze.
    pub reminder: bool,
    /// The indexes of the finding's GPUs; empty once the finding is gone.
    pub gpus: Vec<u32>,
    /// The pids of the finding's processes.
    pub pids: Vec<u32>,
    /// The owner of the processes.
    pub user: Option<SafeText>,
    /// The evidence in one sentence, after the verdict of an examination if there is one.
    pub sentence: SafeText,
    /// The verdict of the last examination of the job; `null` without one.
    pub verdict: Option<JsonFindingVerdict>,
}

impl JsonFindings {
    /// Builds the JSON of a report.
    pub fn new(report: &FindingsReport<'_>) -> Self {
        let silent = report.fleet.hosts().iter().filter(|host| !has_reported(host));
        Self {
            schema: SCHEMA,
            time: rfc3339(report.now),
            simulated: report.fleet.simulated,
            observed_seconds: rounded(report.observed),
            hosts: report.fleet.hosts().len(),
            silent: silent.map(|host| JsonSilent::new(host, report.now)).collect(),
            findings: report.findings.iter().map(|it| JsonFinding::new(it, report.fleet, report.now)).collect(),
            not_judged: report.not_judged.iter().map(JsonNotJudged::new).collect(),
            too_little_history: report.too_little_history.iter().map(JsonNeedsHistory::new).collect(),
        }
    }
}

impl JsonNeedsHistory {
    fn new((rule, time): &(RuleId, Duration)) -> Self {
        Self { rule: rule.word(), needs_seconds: rounded(*time) }
    }
}

impl JsonSilent {
    fn new(host: &Host, now: Moment) -> Self {
        Self { host: host.name().clone(), state: host.link.word(), error: JsonError::of_host(host, now) }
    }
}

impl JsonNotJudged {
    fn new(not_judged: &NotJudged) -> Self {
        Self { count: not_judged.count, what: not_judged.what.clone(), why: not_judged.why.clone() }
    }
}

impl JsonTransition {
    /// Builds the JSON of a transition. `finding` is its finding if it still exists; `t` counts from `start`.
    pub fn new(transition: &Transition, finding: Option<&Finding>, start: Moment) -> Self {
        Self {
            t: rounded(transition.at.since(start)),
            // A recording that does not say when it began has no wall-clock time: its clock begins in 1970.
            time: rfc3339(transition.at).filter(|_| transition.at.elapsed != Some(transition.at.unix)),
            id: transition.id.clone(),
            rule: transition.rule.word(),
            host: transition.host_name.clone(),
            from: transition.from.word(),
            to: transition.to.word(),
            severity: transition.severity.word(),
            confidence: finding.map(|finding| finding.confidence.word()),
            notify: transition.notify,
            reminder: transition.is_reminder,
            gpus: finding
                .iter()
                .flat_map(|finding| finding.gpus.iter().filter(|gpu| gpu.host == finding.host))
                .map(|gpu| gpu.index)
                .collect(),
            pids: finding.iter().flat_map(|finding| &finding.processes).map(|process| process.key.pid).collect(),
            user: finding.and_then(|finding| finding.user.clone()),
            sentence: transition.sentence.clone(),
            verdict: finding.and_then(JsonFindingVerdict::of),
        }
    }
}

/// The report as one line of JSON, with its newline.
pub fn line(report: &FindingsReport<'_>) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&JsonFindings::new(report))? + "\n")
}

/// The transition as one line of JSON, with its newline.
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
