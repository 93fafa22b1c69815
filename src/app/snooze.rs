//! What a person says of findings, and what they are told at the start: snoozing, and the line about the time since
//! gpufleet last looked.

use super::findings::is_hang_rule;
use super::{App, Effect};
use crate::diagnosis::{Finding, FindingNotification, SavedJobEnd, SnoozeEnd, Transition};
use crate::fleet::{Host, HostId, Link, Moment, gpu_list};
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};
use std::time::Duration;

/// How long `x` silences a finding.
const SNOOZE: Duration = Duration::from_secs(3600);
/// How long hosts are waited for before the line at the start is said.
const STARTUP_SUMMARY_TIMEOUT: Duration = Duration::from_secs(15);
/// Samples after which a host that was hung before is seen to be so again.
const STARTUP_SUMMARY_SAMPLES: u32 = 3;
/// Of what there is several of, so many are named.
const MAX_NAMED: usize = 2;

/// The line at the start: whether it is still to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartupSummary {
    /// At this moment at the latest.
    Due(Moment),
    Shown,
}

impl StartupSummary {
    /// To be said soon after `now`, where there is something to compare with.
    pub(super) fn new(ran_before: bool, now: Moment) -> Self {
        if ran_before { Self::Due(now.plus(STARTUP_SUMMARY_TIMEOUT)) } else { Self::Shown }
    }
}

impl App {
    /// Silences the selected finding, or lets it speak again where it was silenced in the same way.
    pub(super) fn snooze(&mut self, until_it_changes: bool, now: Moment) -> Vec<Effect> {
        let Some(finding) = self.findings.selected().cloned() else {
            self.notify("no finding to snooze", now);
            return Vec::new();
        };
        let host = finding.hosts.first().map(|(_, name)| name.as_str()).unwrap_or_default();
        let what = format!("{} on {host}", finding.rule.word());
        let is_undone = match finding.snoozed {
            Some(SnoozeEnd::At(_)) => !until_it_changes,
            Some(SnoozeEnd::OnChange) => until_it_changes,
            None => false,
        };
        if is_undone {
            self.engine.end_snooze(&finding.id, now);
            self.notify(format!("{what} is no longer snoozed"), now);
        } else if self.engine.snooze(&finding.id, (!until_it_changes).then_some(SNOOZE), now) {
            let (span, key) = if until_it_changes { ("until it changes", 'X') } else { ("for 1 hour", 'x') };
            self.notify(format!("{what} is snoozed {span}; {key} undoes it"), now);
        } else {
            self.notify(format!("{what} is over"), now);
        }
        self.findings.select_id(finding.id);
        let shown = self.visible_finding_count();
        self.findings.refresh(&self.engine, shown);
        self.refresh_rows();
        vec![Effect::SaveDiagnosisState]
    }

    /// Findings have changed: they go into the history, and what somebody should be told of is told.
    pub(super) fn handle_transitions(&mut self, transitions: &[Transition]) -> Vec<Effect> {
        self.event_log.record_transitions(transitions);
        let news: Vec<FindingNotification> = self.engine.notifications(transitions);
        if news.is_empty() { Vec::new() } else { vec![Effect::Notify(news)] }
    }

    /// Something went wrong beside the fleet: it stays in the last line for a while, and in the history.
    pub(super) fn notify_and_log(&mut self, text: SafeText, now: Moment) {
        self.notify_for_a_minute(text.to_string(), now);
        self.event_log.record_message(text, now);
    }

    /// Says once, when the hosts have been heard, what ended and what looks hung since gpufleet last looked.
    pub(super) fn show_startup_summary(&mut self, now: Moment) -> Vec<Effect> {
        let StartupSummary::Due(latest) = self.startup_summary else { return Vec::new() };
        let has_reported = |host: &Host| {
            host.snapshots_seen >= STARTUP_SUMMARY_SAMPLES
                || matches!(host.link, Link::Down { .. } | Link::NeedsUser { .. })
        };
        if now < latest && !self.fleet.hosts().iter().all(has_reported) {
            return Vec::new();
        }
        self.startup_summary = StartupSummary::Shown;
        let Some(looked) = self.engine.last_run_at() else { return Vec::new() };
        let ended = self.engine.unreported_job_ends(&self.fleet, now);
        let text = SafeText::from(self.startup_summary_text(looked, &ended, now));
        self.engine.mark_job_ends_reported(now);
        self.notify_for_a_minute(text.to_string(), now);
        self.event_log.record_message(text, now);
        vec![Effect::SaveDiagnosisState]
    }

    fn startup_summary_text(&self, looked: Duration, ended: &[SavedJobEnd], now: Moment) -> String {
        let ago = now.unix.saturating_sub(looked);
        let ends = ended.iter().map(|end| format!("{} on {}", end.label, end.host));
        let mut parts = vec![match ended.len() {
            0 => "no job ended".to_owned(),
            1 => format!("1 job ended: {}", join_names(ends)),
            count => format!("{count} jobs ended: {}", join_names(ends)),
        }];
        let hung = || self.engine.findings().filter(|one| is_hang_rule(one.rule) && one.snoozed.is_none());
        let verb = |count: usize| if count == 1 { "looks" } else { "look" };
        let (as_then, now_only): (Vec<&Finding>, Vec<&Finding>) =
            hung().partition(|one| self.engine.was_active_before(&one.id));
        // Nobody has seen what was in between.
        for (findings, when) in [(as_then, "hung as it did then"), (now_only, "hung now")] {
            if !findings.is_empty() {
                let count = findings.len();
                let when = if count == 1 { when.to_owned() } else { when.replace("it did", "they did") };
                parts.push(format!(
                    "{count} {} {when}: {}",
                    verb(count),
                    join_names(findings.into_iter().map(finding_location))
                ));
            }
        }
        if parts.len() == 1 {
            let is_snoozed = |one: &Finding| is_hang_rule(one.rule) && one.snoozed.is_some();
            let but = if self.engine.findings().any(is_snoozed) { " but what is snoozed" } else { "" };
            parts.push(format!("nothing looks hung{but}"));
        }
        let not_heard = self.fleet.hosts().iter().filter(|host| host.snapshot.is_none()).count();
        match not_heard {
            0 => {}
            1 => parts.push("1 host not heard yet".to_owned()),
            count => parts.push(format!("{count} hosts not heard yet")),
        }
        format!("since {}: {}", self.format_when(looked, ago), parts.join("; "))
    }

    /// `22:14 (9 h 40 min ago)`; further back the hour says nothing: `3 d ago`.
    fn format_when(&self, unix: Duration, ago: Duration) -> String {
        let local =
            (unix.as_secs() as i64).saturating_add(i64::from(self.settings.utc_offset_seconds)).rem_euclid(86_400);
        if ago >= Duration::from_secs(86_400) {
            return format!("{} ago", duration(ago, DurationStyle::Words));
        }
        format!("{:02}:{:02} ({} ago)", local / 3600, local / 60 % 60, duration(ago, DurationStyle::Words))
    }
}

/// The first few, and how many more.
fn join_names(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(MAX_NAMED);
    let first = all.into_iter().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// `hgx-04 GPU 4,5 (dmitri)`.
fn finding_location(finding: &Finding) -> String {
    let host = finding.hosts.first().map(|(_, name)| name.to_string()).unwrap_or_default();
    let of_host = |id: HostId| finding.gpus.iter().filter(move |gpu| gpu.host == id).map(|gpu| gpu.index);
    let mut indexes: Vec<u32> = of_host(finding.host).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let gpus = if indexes.is_empty() { String::new() } else { format!(" GPU {}", gpu_list(&indexes)) };
    let user = finding.user.as_ref().map(|user| format!(" ({user})")).unwrap_or_default();
    format!("{host}{gpus}{user}")
}

#[cfg(test)]
#[path = "snooze_tests.rs"]
mod tests;
