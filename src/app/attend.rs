//! What a person says of findings, and what they are told at the start: snoozing, and the line about the time since
//! gpufleet last looked.

use super::findings::is_about_hanging;
use super::{App, Effect};
use crate::diagnosis::{Finding, News, RememberedEnd, Snoozed, Transition};
use crate::fleet::{Host, HostId, Link, Moment, gpu_list};
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};
use std::time::Duration;

/// How long `x` silences a finding.
const SNOOZE: Duration = Duration::from_secs(3600);
/// How long hosts are waited for before the line at the start is said.
const GREETING_WAITS: Duration = Duration::from_secs(15);
/// Samples after which a host that was hung before is seen to be so again.
const GREETING_SAMPLES: u32 = 3;
/// Of what there is several of, so many are named.
const MAX_NAMED: usize = 2;

/// The line at the start: whether it is still to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Greeting {
    /// At this moment at the latest.
    Due(Moment),
    Said,
}

impl Greeting {
    /// To be said soon after `now`, where there is something to compare with.
    pub(super) fn new(looked_before: bool, now: Moment) -> Self {
        if looked_before { Self::Due(now.plus(GREETING_WAITS)) } else { Self::Said }
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
            Some(Snoozed::Until(_)) => !until_it_changes,
            Some(Snoozed::UntilItChanges) => until_it_changes,
            None => false,
        };
        if is_undone {
            self.engine.wake(&finding.id, now);
            self.notify(format!("{what} is no longer snoozed"), now);
        } else if self.engine.snooze(&finding.id, (!until_it_changes).then_some(SNOOZE), now) {
            let (span, key) = if until_it_changes { ("until it changes", 'X') } else { ("for 1 hour", 'x') };
            self.notify(format!("{what} is snoozed {span}; {key} undoes it"), now);
        } else {
            self.notify(format!("{what} is over"), now);
        }
        self.findings.choose(finding.id);
        let shown = self.findings_shown();
        self.findings.refresh(&self.engine, shown);
        self.refresh_rows();
        vec![Effect::Remember]
    }

    /// Findings have changed: they go into the history, and what somebody should be told of is told.
    pub(super) fn tell(&mut self, transitions: &[Transition]) -> Vec<Effect> {
        self.chronicle.changed(transitions);
        let news: Vec<News> = self.engine.news(transitions);
        if news.is_empty() { Vec::new() } else { vec![Effect::Tell(news)] }
    }

    /// Something went wrong beside the fleet: it stays in the last line for a while, and in the history.
    pub(super) fn trouble(&mut self, text: SafeText, now: Moment) {
        self.notify_long(text.to_string(), now);
        self.chronicle.said(text, now);
    }

    /// Says once, when the hosts have been heard, what ended and what looks hung since gpufleet last looked.
    pub(super) fn greet(&mut self, now: Moment) -> Vec<Effect> {
        let Greeting::Due(latest) = self.greeting else { return Vec::new() };
        let has_spoken = |host: &Host| {
            host.snapshots_seen >= GREETING_SAMPLES || matches!(host.link, Link::Down { .. } | Link::NeedsUser { .. })
        };
        if now < latest && !self.fleet.hosts().iter().all(has_spoken) {
            return Vec::new();
        }
        self.greeting = Greeting::Said;
        let Some(looked) = self.engine.looked_last() else { return Vec::new() };
        let ended = self.engine.ended_untold(&self.fleet, now);
        let text = SafeText::from(self.greeting_words(looked, &ended, now));
        self.engine.told_ended(now);
        self.notify_long(text.to_string(), now);
        self.chronicle.said(text, now);
        vec![Effect::Remember]
    }

    fn greeting_words(&self, looked: Duration, ended: &[RememberedEnd], now: Moment) -> String {
        let ago = now.unix.saturating_sub(looked);
        let ends = ended.iter().map(|end| format!("{} on {}", end.label, end.host));
        let mut parts = vec![match ended.len() {
            0 => "no job ended".to_owned(),
            1 => format!("1 job ended: {}", named(ends)),
            count => format!("{count} jobs ended: {}", named(ends)),
        }];
        let hung = || self.engine.findings().filter(|one| is_about_hanging(one.rule) && one.snoozed.is_none());
        let looks = |count: usize| if count == 1 { "looks" } else { "look" };
        let (as_then, now_only): (Vec<&Finding>, Vec<&Finding>) =
            hung().partition(|one| self.engine.was_there(&one.id));
        // Nobody has seen what was in between.
        for (findings, when) in [(as_then, "hung as it did then"), (now_only, "hung now")] {
            if !findings.is_empty() {
                let count = findings.len();
                let when = if count == 1 { when.to_owned() } else { when.replace("it did", "they did") };
                parts.push(format!(
                    "{count} {} {when}: {}",
                    looks(count),
                    named(findings.into_iter().map(whereabouts))
                ));
            }
        }
        if parts.len() == 1 {
            let is_snoozed = |one: &Finding| is_about_hanging(one.rule) && one.snoozed.is_some();
            let but = if self.engine.findings().any(is_snoozed) { " but what is snoozed" } else { "" };
            parts.push(format!("nothing looks hung{but}"));
        }
        let unheard = self.fleet.hosts().iter().filter(|host| host.snapshot.is_none()).count();
        match unheard {
            0 => {}
            1 => parts.push("1 host not heard yet".to_owned()),
            count => parts.push(format!("{count} hosts not heard yet")),
        }
        format!("since {}: {}", self.when(looked, ago), parts.join("; "))
    }

    /// `22:14 (9 h 40 min ago)`; further back the hour says nothing: `3 d ago`.
    fn when(&self, unix: Duration, ago: Duration) -> String {
        let local =
            (unix.as_secs() as i64).saturating_add(i64::from(self.settings.utc_offset_seconds)).rem_euclid(86_400);
        if ago >= Duration::from_secs(86_400) {
            return format!("{} ago", duration(ago, DurationStyle::Words));
        }
        format!("{:02}:{:02} ({} ago)", local / 3600, local / 60 % 60, duration(ago, DurationStyle::Words))
    }
}

/// The first few, and how many more.
fn named(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(MAX_NAMED);
    let first = all.into_iter().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// `hgx-04 GPU 4,5 (dmitri)`.
fn whereabouts(finding: &Finding) -> String {
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
#[path = "attend_tests.rs"]
mod tests;
