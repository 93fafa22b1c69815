//! Notifications of findings: one line of text, and the JSON for a hook.

use super::json::{JsonFinding, rfc3339};
use crate::diagnosis::{Finding, FindingNotification};
use crate::fleet::{Fleet, Moment};
use crate::wire::SafeText;
use serde::Serialize;

/// The version of [`JsonNotification`]. It rises when a field is removed or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// Maximum number of findings with their rule in the text; the others are only counted.
const MAX_NAMED: usize = 3;
/// Maximum length of the text in characters. Desktops truncate or drop longer texts.
const MAX_CHARACTERS: usize = 240;

/// The findings of one notification.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// The findings, critical ones first, then the oldest first; never empty.
    pub news: Vec<FindingNotification>,
    /// Number of further findings beyond the limit.
    pub left_out: u32,
}

/// The JSON on the standard input of a hook, described in docs/notifications.md.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonNotification {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When the notification was sent, RFC 3339 in UTC.
    pub time: Option<String>,
    /// Whether all findings come from the simulator.
    pub simulated: bool,
    /// The notification in one line.
    pub text: SafeText,
    /// The findings, described in docs/findings-json.md.
    pub findings: Vec<JsonFinding>,
    /// Number of further findings beyond the limit.
    pub left_out: u32,
}

/// The notification in one line: `crit hgx-04: GPUs 4,5 read 100 % busy ...`, or `3 findings: crit gpu-lost on hgx-01,
/// ...`.
pub fn summary(notification: &Notification) -> SafeText {
    let host = |news: &FindingNotification| match &news.finding.hosts[..] {
        [_, rest @ ..] if !rest.is_empty() => format!("{} and {} more", news.transition.host_name, rest.len()),
        _ => news.transition.host_name.to_string(),
    };
    let text = match &notification.news[..] {
        [one] if notification.left_out == 0 => {
            format!("{} {}: {}", one.transition.severity.word(), host(one), one.finding.sentence_with_verdict())
        }
        many => {
            let count = many.len() + notification.left_out as usize;
            let named: Vec<String> = many
                .iter()
                .take(MAX_NAMED)
                .map(|news| {
                    format!("{} {} on {}", news.transition.severity.word(), news.transition.rule.word(), host(news))
                })
                .collect();
            let more = count - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{count} findings: {}{more}", named.join(", "))
        }
    };
    SafeText::from(shortened(&text))
}

/// The OSC 9 sequence, with which a terminal shows a desktop notification. It ends with ST, because a terminal that
/// does not know OSC 9 would ring at BEL. In tmux the sequence is passed through, if `allow-passthrough` is on.
///
/// The text is safe text, so it cannot end the sequence. It begins with a word, because some terminals take a digit and
/// a semicolon as a command.
pub fn osc9(text: &SafeText, is_tmux: bool) -> String {
    if is_tmux {
        format!("\x1bPtmux;\x1b\x1b]9;gpufleet: {text}\x1b\x1b\\\x1b\\")
    } else {
        format!("\x1b]9;gpufleet: {text}\x1b\\")
    }
}

/// The JSON of a notification in one line. `fleet` gives the names of the hosts.
pub fn line(notification: &Notification, fleet: &Fleet, now: Moment) -> Result<String, serde_json::Error> {
    let findings = notification.news.iter().map(|news| JsonFinding::new(&news.finding, fleet, now));
    let json = JsonNotification {
        schema: SCHEMA,
        time: rfc3339(now),
        simulated: notification.news.iter().all(|news| is_simulated(&news.finding, fleet)),
        text: summary(notification),
        findings: findings.collect(),
        left_out: notification.left_out,
    };
    Ok(serde_json::to_string(&json)? + "\n")
}

/// Whether all hosts of a finding are simulated: those of the fleet if the finding names none.
fn is_simulated(finding: &Finding, fleet: &Fleet) -> bool {
    match &finding.hosts[..] {
        [] => fleet.hosts().iter().all(|host| fleet.is_simulated(host.id)),
        hosts => hosts.iter().all(|(id, _)| fleet.is_simulated(*id)),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{hang, moment, transitions};
    use super::*;
    use crate::config::HostConfig;
    use serde_json::Value;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn notification(sentence: &str) -> FindingNotification {
        let mut finding = hang();
        (finding.sentence, finding.verdict) = (sentence.into(), None);
        FindingNotification { transition: transitions()[2].clone(), finding }
    }

    fn of(news: Vec<FindingNotification>, left_out: u32) -> Notification {
        Notification { news, left_out }
    }

    #[test]
    fn the_summary_has_the_sentence_of_one_finding_or_the_rules_of_several() {
        assert_eq!(summary(&of(vec![notification("it hangs")], 0)), "crit hgx-01: it hangs");
        let mut with_verdict = notification("it hangs");
        with_verdict.finding.verdict = hang().verdict;
        let verdict = "rank 1 (pid 4313 on hgx-01, GPU 1) never launched AllReduce 61 to 64 (proven)";
        assert_eq!(summary(&of(vec![with_verdict], 0)).to_string(), format!("crit hgx-01: {verdict}; it hangs"));
        let two = of(vec![notification("a"), notification("b")], 0);
        assert_eq!(summary(&two), "2 findings: crit stuck-spin on hgx-01, crit stuck-spin on hgx-01");
        let many = of((0..5).map(|_| notification("a")).collect(), 7);
        assert!(summary(&many).starts_with("12 findings: crit ") && summary(&many).ends_with(" and 9 more"));
        let long = summary(&of(vec![notification(&"grö".repeat(500))], 0));
        assert_eq!((long.chars().count(), long.ends_with("...")), (MAX_CHARACTERS + 3, true));
    }

    #[test]
    fn host_text_cannot_end_or_begin_a_terminal_sequence() {
        let evil = notification("\x1b]0;owned\x07 \u{9c}\u{202e}4;3;\x1b\\");
        let text = summary(&of(vec![evil], 0));
        for sequence in [osc9(&text, false), osc9(&text, true)] {
            assert_eq!(sequence.matches("\x1b]").count(), 1, "{sequence:?}");
            let body = sequence.replace("\x1bPtmux;\x1b\x1b]9;", "").replace("\x1b]9;", "");
            let body = body.strip_suffix("\x1b\x1b\\\x1b\\").or(body.strip_suffix("\x1b\\")).expect("ends with ST");
            assert!(body.starts_with("gpufleet: crit ") && !body.chars().any(char::is_control), "{body:?}");
        }
    }

    #[test]
    fn a_finding_is_simulated_if_all_its_hosts_are() {
        let configs = [true, false].map(|is_simulated| {
            Arc::new(HostConfig { is_simulated, ..HostConfig::named(if is_simulated { "sim" } else { "real" }) })
        });
        let fleet = Fleet::new(&configs, false, moment(0.0));
        let mut finding = hang();
        let (sim, real) = ((crate::fleet::HostId(0), "sim".into()), (crate::fleet::HostId(1), "real".into()));
        finding.hosts = vec![sim.clone()];
        assert!(is_simulated(&finding, &fleet));
        finding.hosts = vec![sim, real];
        assert!(!is_simulated(&finding, &fleet));
        finding.hosts = Vec::new();
        assert!(!is_simulated(&finding, &fleet), "it is about the fleet, and one of its hosts is real");
        assert!(is_simulated(&finding, &Fleet::new(&configs[..1], false, moment(0.0))));
    }

    #[test]
    fn the_document_names_every_json_field() {
        let fleet = Fleet::new(&[Arc::new(HostConfig::named("hgx-01"))], false, moment(0.0));
        let text = line(&of(vec![notification("it hangs")], 2), &fleet, moment(0.0)).expect("encodes");
        assert_eq!(text.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["findings"][0]["sentence"], "it hangs");
        let written: BTreeSet<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        let document = include_str!("../../docs/notifications.md");
        let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        let documented: BTreeSet<&str> = rows.map(|(name, _)| name).collect();
        assert_eq!(written, documented);
    }
}
