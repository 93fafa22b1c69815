//! Findings and transitions for people.
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

use super::FindingsReport;
use super::json::has_reported;
use crate::diagnosis::{Finding, FindingPhase, Severity, SnoozeEnd, Transition};
use crate::fleet::{Link, Moment};
use crate::output::paint::{Paint, Tone};
use crate::wire::format::{DurationStyle, duration};
use std::fmt::Write as _;
use std::time::Duration;

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
