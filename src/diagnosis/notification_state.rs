//! What people want to hear: who was told of what, and which findings shall be silent. It outlives a run of the program.

use super::{Finding, Severity};
use crate::fleet::Moment;
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Somebody who was told is told again when the same has been gone for this long, in seconds.
pub(super) const RENOTIFY_AFTER: f64 = 6.0 * 3600.0;
/// What was not seen for this long is forgotten, in seconds.
const UNSEEN_RETENTION: f64 = 30.0 * 86_400.0;
/// The most findings that somebody was told of, and the most that are snoozed.
const MAX_ENTRIES: usize = 4096;

/// A finding that somebody was told of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notified {
    /// How much it mattered then.
    pub severity: Severity,
    /// When it was last there, in seconds since 1970.
    pub seen_unix_seconds: f64,
    /// It was over then. Absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_unix_seconds: Option<f64>,
}

impl Notified {
    /// Whether it is still to be kept, `unix` seconds after 1970: it is not over for long, and was seen lately.
    pub(super) fn is_retained(&self, unix: f64) -> bool {
        self.cleared_unix_seconds.is_none_or(|at| unix - at <= RENOTIFY_AFTER)
            && unix - self.seen_unix_seconds <= UNSEEN_RETENTION
    }
}

/// A finding that shall be silent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Snooze {
    /// Until then, in seconds since 1970; absent for until it changes: until it grows worse, or is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_seconds: Option<f64>,
    /// How much it mattered when this was said.
    pub severity: Severity,
    /// When it was last there, in seconds since 1970.
    pub seen_unix_seconds: f64,
}

/// For how long a finding is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnoozeEnd {
    /// Until this moment.
    At(Moment),
    /// Until it grows worse, or is over.
    OnChange,
}

/// What is remembered of all findings, by fingerprint.
#[derive(Debug, Clone, Default)]
pub(super) struct NotificationState {
    /// By an earlier run of the program.
    told: BTreeMap<SafeText, Notified>,
    snoozes: BTreeMap<SafeText, Snooze>,
    /// Snoozes that this run has set or ended: of the others another run may know better.
    touched: BTreeSet<SafeText>,
}

impl NotificationState {
    /// What an earlier run has kept.
    pub(super) fn restored(told: BTreeMap<SafeText, Notified>, snoozes: BTreeMap<SafeText, Snooze>) -> Self {
        Self { told, snoozes, touched: BTreeSet::new() }
    }

    /// The severity that an earlier run has told of a finding.
    pub(super) fn notified_severity(&self, id: &SafeText, now: Moment) -> Option<Severity> {
        let told = self.told.get(id)?;
        let is_old = told.cleared_unix_seconds.is_some_and(|at| now.unix.as_secs_f64() - at > RENOTIFY_AFTER);
        (!is_old).then_some(told.severity)
    }

    /// Whether an earlier run told of a finding and left it as it stood.
    pub(super) fn was_active_before(&self, id: &SafeText) -> bool {
        self.told.get(id).is_some_and(|told| told.cleared_unix_seconds.is_none())
    }

    /// Whether a finding of this severity is to be silent now.
    pub(super) fn snoozed(&self, id: &SafeText, severity: Severity, now: Moment) -> Option<SnoozeEnd> {
        let snooze = self.snoozes.get(id)?;
        let Some(until) = snooze.until_unix_seconds else {
            return (severity <= snooze.severity).then_some(SnoozeEnd::OnChange);
        };
        let until = Duration::try_from_secs_f64(until).ok()?;
        let left = until.checked_sub(now.unix).filter(|left| !left.is_zero())?;
        Some(SnoozeEnd::At(now.plus(left)))
    }

    /// Silences a finding for a span, or until it changes.
    pub(super) fn snooze(&mut self, finding: &Finding, span: Option<Duration>, now: Moment) {
        let unix = now.unix.as_secs_f64();
        let until_unix_seconds = span.map(|span| unix + span.as_secs_f64());
        if self.snoozes.len() < MAX_ENTRIES || self.snoozes.contains_key(&finding.id) {
            let snooze = Snooze { until_unix_seconds, severity: finding.severity, seen_unix_seconds: unix };
            self.snoozes.insert(finding.id.clone(), snooze);
            self.touched.insert(finding.id.clone());
        }
    }

    /// Ends a snooze.
    pub(super) fn end_snooze(&mut self, id: &SafeText) {
        if self.snoozes.remove(id).is_some() {
            self.touched.insert(id.clone());
        }
    }

    /// A finding has changed: it is over, or has this severity now. Ends a snooze that lasts until then.
    pub(super) fn changed(&mut self, id: &SafeText, severity: Option<Severity>) {
        let ends = |snooze: &Snooze| {
            snooze.until_unix_seconds.is_none() && severity.is_none_or(|severity| severity > snooze.severity)
        };
        if self.snoozes.get(id).is_some_and(ends) {
            self.end_snooze(id);
        }
    }

    /// Whether it has nothing to say of any finding, which saves looking.
    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty() && self.snoozes.is_empty()
    }

    /// What is to be kept of what was told: `now_told` are the findings of this run, each with its severity and when it
    /// was over, if it is. `is_seen` says of a fingerprint that this run would have seen it, and since when it has looked.
    pub(super) fn retain_notified<'a>(
        &self,
        now_told: impl Iterator<Item = (&'a SafeText, Severity, Option<f64>)>,
        seen_since: impl Fn(&SafeText) -> Option<f64>,
        unix: f64,
    ) -> BTreeMap<SafeText, Notified> {
        let mut kept: BTreeMap<SafeText, Notified> = BTreeMap::new();
        for (id, severity, cleared) in now_told.take(MAX_ENTRIES) {
            let seen_unix_seconds = cleared.unwrap_or(unix);
            kept.insert(id.clone(), Notified { severity, seen_unix_seconds, cleared_unix_seconds: cleared });
        }
        for (id, told) in &self.told {
            if kept.len() >= MAX_ENTRIES || kept.contains_key(id) {
                continue;
            }
            let mut told = told.clone();
            // It did not come back since this run has looked there.
            told.cleared_unix_seconds = told.cleared_unix_seconds.or_else(|| seen_since(id));
            if told.is_retained(unix) {
                kept.insert(id.clone(), told);
            }
        }
        kept
    }

    /// What is to be kept of the snoozes, and which of them this run has touched. `is_there` says that a finding is.
    pub(super) fn retain_snoozes(
        &self,
        is_there: impl Fn(&SafeText) -> bool,
        unix: f64,
    ) -> (BTreeMap<SafeText, Snooze>, BTreeSet<SafeText>) {
        let kept = self.snoozes.iter().filter_map(|(id, snooze)| {
            let seen_unix_seconds = if is_there(id) { unix } else { snooze.seen_unix_seconds };
            let is_over = match snooze.until_unix_seconds {
                Some(until) => until <= unix,
                None => unix - seen_unix_seconds > UNSEEN_RETENTION,
            };
            (!is_over).then(|| (id.clone(), Snooze { seen_unix_seconds, ..*snooze }))
        });
        (kept.collect(), self.touched.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::notification;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds), Duration::from_secs(1_700_000_000 + seconds))
    }

    fn finding(severity: Severity) -> Finding {
        notification("a", severity).finding
    }

    #[test]
    fn a_snooze_lasts_for_its_span() {
        let mut notification_state = NotificationState::default();
        notification_state.snooze(&finding(Severity::Warn), Some(Duration::from_secs(3600)), at(0));
        let id = "a".into();
        assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(10)), Some(SnoozeEnd::At(at(3600))));
        assert!(notification_state.snoozed(&id, Severity::Crit, at(3599)).is_some(), "whatever becomes of it");
        notification_state.changed(&id, None);
        assert!(notification_state.snoozed(&id, Severity::Warn, at(3599)).is_some());
        assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(3600)), None);
        assert_eq!(notification_state.retain_snoozes(|_| true, at(3600).unix.as_secs_f64()).0, BTreeMap::new());
    }

    #[test]
    fn one_until_it_changes_ends_when_it_grows_worse_or_is_over() {
        let id: SafeText = "a".into();
        for change in [Some(Severity::Crit), None] {
            let mut notification_state = NotificationState::default();
            notification_state.snooze(&finding(Severity::Warn), None, at(0));
            notification_state.changed(&id, Some(Severity::Warn));
            assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(1_000_000)), Some(SnoozeEnd::OnChange));
            assert_eq!(notification_state.snoozed(&id, Severity::Crit, at(1)), None);
            notification_state.changed(&id, change);
            assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(2)), None, "{change:?}");
            assert!(
                notification_state.retain_snoozes(|_| true, 0.0).1.contains(&id),
                "another run is to know that it is over"
            );
        }
    }

    #[test]
    fn what_was_told_is_forgotten_once_it_has_been_gone_for_long() {
        let unix = |seconds: u64| at(seconds).unix.as_secs_f64();
        let id: SafeText = "a".into();
        let told = Notified { severity: Severity::Warn, seen_unix_seconds: unix(0), cleared_unix_seconds: None };
        let notification_state = NotificationState::restored([(id.clone(), told.clone())].into(), BTreeMap::new());
        assert_eq!(
            notification_state.notified_severity(&id, at(86_400)),
            Some(Severity::Warn),
            "it may have stood all the time"
        );
        // This run has looked for an hour and it was not there.
        let kept = notification_state.retain_notified(std::iter::empty(), |_| Some(unix(100)), unix(3700));
        assert_eq!(kept[&id].cleared_unix_seconds, Some(unix(100)));
        let later = NotificationState::restored(kept, BTreeMap::new());
        assert_eq!(later.notified_severity(&id, at(100 + 6 * 3600)), Some(Severity::Warn));
        assert_eq!(later.notified_severity(&id, at(101 + 6 * 3600)), None);
        assert!(later.retain_notified(std::iter::empty(), |_| None, unix(101 + 6 * 3600)).is_empty());
        // On a host that was not looked at it stays, for a month.
        assert!(notification_state.retain_notified(std::iter::empty(), |_| None, unix(29 * 86_400)).contains_key(&id));
        assert!(notification_state.retain_notified(std::iter::empty(), |_| None, unix(31 * 86_400)).is_empty());
    }
}
