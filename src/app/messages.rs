//! Messages to the user: the event log of this run and the summary at its start.

use super::action::Action;
use super::screen::move_index;
use crate::diagnosis::{Engine, Finding, FindingPhase, SavedJobEnd, Transition};
use crate::fleet::{Fleet, Host, Link, Moment, gpu_list};
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};
use std::collections::VecDeque;
use std::time::Duration;

/// The event log drops its oldest entries beyond this number.
const MAX_ENTRIES: usize = 1000;
/// The startup summary waits this long for hosts that have not reported.
const STARTUP_SUMMARY_TIMEOUT: Duration = Duration::from_secs(15);
/// Snapshots after which a hang that lasted through the restart is found again.
const STARTUP_SUMMARY_SAMPLES: u32 = 3;
/// The startup summary names at most this many of several things.
const MAX_NAMED: usize = 2;

/// The findings and messages of this run, the newest first, with a scroll position.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    entries: VecDeque<EventLogEntry>,
    top: usize,
}

/// One entry of the event log.
#[derive(Debug, Clone)]
pub struct EventLogEntry {
    /// When it happened.
    pub at: Moment,
    /// What happened.
    pub kind: EventKind,
}

/// The kind of an entry.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// A finding changed.
    FindingChanged(Transition),
    /// A message was shown in the hint bar.
    Message(SafeText),
}

impl EventLog {
    /// Records findings that changed, except those that were only pending.
    pub(super) fn record_transitions(&mut self, transitions: &[Transition]) {
        let is_only_pending = |transition: &Transition| {
            matches!(
                (transition.from, transition.to),
                (FindingPhase::Clear, FindingPhase::Pending) | (FindingPhase::Pending, FindingPhase::Clear)
            )
        };
        for transition in transitions.iter().filter(|transition| !is_only_pending(transition)) {
            self.add(EventLogEntry { at: transition.at, kind: EventKind::FindingChanged(transition.clone()) });
        }
    }

    /// Records a message.
    pub(super) fn record_message(&mut self, text: SafeText, at: Moment) {
        self.add(EventLogEntry { at, kind: EventKind::Message(text) });
    }

    fn add(&mut self, entry: EventLogEntry) {
        self.entries.push_front(entry);
        self.entries.truncate(MAX_ENTRIES);
        // A view that is scrolled down keeps showing the same entries.
        if self.top > 0 {
            self.top = (self.top + 1).min(self.entries.len() - 1);
        }
    }

    /// Scrolls. The screen shows `capacity` entries.
    pub(super) fn navigate(&mut self, action: Action, capacity: usize) {
        let positions = self.entries.len().saturating_sub(capacity) + 1;
        self.top = move_index(self.top, action, positions, capacity);
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of entries above the screen and the entries on it. The screen shows `capacity` entries.
    pub fn visible(&self, capacity: usize) -> (usize, impl Iterator<Item = &EventLogEntry>) {
        let top = self.top.min(self.entries.len().saturating_sub(capacity));
        (top, self.entries.iter().skip(top).take(capacity))
    }
}

/// One message after the start that lists jobs that ended and jobs that look hung since the last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartupSummary {
    /// Not shown yet. It is shown once all hosts have reported, and at this time at the latest.
    DueAt(Moment),
    Shown,
}

impl StartupSummary {
    /// Without an earlier run there is nothing to compare with, and no summary is shown.
    pub(super) fn new(has_earlier_run: bool, now: Moment) -> Self {
        if has_earlier_run { Self::DueAt(now.plus(STARTUP_SUMMARY_TIMEOUT)) } else { Self::Shown }
    }

    /// Returns the text of the summary when it is due, and `None` before and after that.
    pub(super) fn take_when_due(
        &mut self,
        fleet: &Fleet,
        engine: &Engine,
        utc_offset_seconds: i32,
        now: Moment,
    ) -> Option<SafeText> {
        let Self::DueAt(latest) = *self else { return None };
        let has_reported = |host: &Host| {
            host.snapshots_seen >= STARTUP_SUMMARY_SAMPLES
                || matches!(host.link, Link::Down { .. } | Link::NeedsUser { .. })
        };
        if now < latest && !fleet.hosts().iter().all(has_reported) {
            return None;
        }
        *self = Self::Shown;
        let last_run = engine.last_run_at()?;
        let ended = engine.unreported_job_ends(fleet, now);
        let when = format_last_run(last_run, now.unix.saturating_sub(last_run), utc_offset_seconds);
        Some(SafeText::from(format!("since {when}: {}", summary_parts(fleet, engine, &ended).join("; "))))
    }
}

fn summary_parts(fleet: &Fleet, engine: &Engine, ended: &[SavedJobEnd]) -> Vec<String> {
    let ends = ended.iter().map(|end| format!("{} on {}", end.label, end.host));
    let mut parts = vec![match ended.len() {
        0 => "no job ended".to_owned(),
        1 => format!("1 job ended: {}", join_names(ends)),
        count => format!("{count} jobs ended: {}", join_names(ends)),
    }];
    let is_snoozed = |one: &Finding| one.snoozed.is_some();
    let (snoozed, hung): (Vec<&Finding>, Vec<&Finding>) =
        engine.findings().filter(|one| one.rule.is_hang()).partition(|one| is_snoozed(one));
    // The state between the two runs is unknown: "still" would claim too much.
    let (hung_then_too, hung_now_only): (Vec<&Finding>, Vec<&Finding>) =
        hung.into_iter().partition(|one| engine.was_active_before(&one.id));
    for (findings, when) in [(hung_then_too, "hung, as before"), (hung_now_only, "hung")] {
        if !findings.is_empty() {
            let verb = if findings.len() == 1 { "looks" } else { "look" };
            let places = join_names(findings.iter().map(|finding| finding_location(finding)));
            parts.push(format!("{} {verb} {when}: {places}", findings.len()));
        }
    }
    let (hosts, silent) = (fleet.hosts().len(), fleet.hosts().iter().filter(|host| host.snapshot.is_none()).count());
    if parts.len() == 1 && silent < hosts {
        let except = if snoozed.is_empty() { "" } else { " except snoozed findings" };
        let place = if silent > 0 { format!(" on {} of {hosts} hosts", hosts - silent) } else { String::new() };
        parts.push(format!("nothing looks hung{place}{except}"));
    }
    match silent {
        0 => {}
        1 => parts.push("1 host has not reported yet".to_owned()),
        count => parts.push(format!("{count} hosts have not reported yet")),
    }
    parts
}

/// Formats the time of the last run: `22:14 (9 h 40 min ago)`, or `3 d ago` if it is more than a day ago.
fn format_last_run(unix: Duration, ago: Duration, utc_offset_seconds: i32) -> String {
    let ago_text = duration(ago, DurationStyle::Words);
    if ago >= Duration::from_secs(86_400) {
        return format!("{ago_text} ago");
    }
    let local = (unix.as_secs() as i64).saturating_add(i64::from(utc_offset_seconds)).rem_euclid(86_400);
    format!("{:02}:{:02} ({ago_text} ago)", local / 3600, local / 60 % 60)
}

/// Joins the first names and counts the others.
fn join_names(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(MAX_NAMED);
    let first = all.into_iter().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// Formats host, GPUs and user of a finding: `hgx-04 GPU 4,5 (dmitri)`.
fn finding_location(finding: &Finding) -> String {
    let host = finding.hosts.first().map(|(_, name)| name.to_string()).unwrap_or_default();
    let on_host = finding.gpus.iter().filter(|gpu| gpu.host == finding.host);
    let mut indexes: Vec<u32> = on_host.map(|gpu| gpu.index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let gpus = if indexes.is_empty() { String::new() } else { format!(" GPU {}", gpu_list(&indexes)) };
    let user = finding.user.as_ref().map(|user| format!(" ({user})")).unwrap_or_default();
    format!("{host}{gpus}{user}")
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
