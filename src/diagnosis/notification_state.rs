//! Which findings were notified and which are snoozed. Kept across runs of the program.

use super::{Finding, Severity, SnoozeEnd};
use crate::fleet::Moment;
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A finding notifies again when it comes back after it was clear for this long, in seconds.
pub(super) const RENOTIFY_AFTER: f64 = 6.0 * 3600.0;
/// An entry whose finding was not seen for this long is dropped, in seconds.
const UNSEEN_RETENTION: f64 = 30.0 * 86_400.0;
/// The maximum number of notified findings, and of snoozed ones.
const MAX_ENTRIES: usize = 4096;

/// A finding that was notified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notified {
    /// The severity that was notified.
    pub severity: Severity,
    /// When the finding was last present, in seconds since 1970.
    pub seen_unix_seconds: f64,
    /// When the finding cleared, in seconds since 1970. Absent while it has not cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_unix_seconds: Option<f64>,
}

impl Notified {
    /// Whether the entry is still needed at the time `unix`, in seconds since 1970.
    pub(super) fn is_retained(&self, unix: f64) -> bool {
        self.cleared_unix_seconds.is_none_or(|at| unix - at <= RENOTIFY_AFTER)
            && unix - self.seen_unix_seconds <= UNSEEN_RETENTION
    }
}

/// A snoozed finding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Snooze {
    /// When the snooze ends, in seconds since 1970. Absent if it ends when the finding gets worse or clears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_seconds: Option<f64>,
    /// The severity when the finding was snoozed.
    pub severity: Severity,
    /// When the finding was last present, in seconds since 1970.
    pub seen_unix_seconds: f64,
}

/// Notifications of earlier runs, and snoozes, by fingerprint.
#[derive(Debug, Clone, Default)]
pub(super) struct NotificationState {
    /// Notified by earlier runs of the program.
    notified: BTreeMap<SafeText, Notified>,
    snoozes: BTreeMap<SafeText, Snooze>,
    /// Snoozes that this run has set or ended. The others may be changed by another run.
    changed_here: BTreeSet<SafeText>,
}

impl NotificationState {
    /// The state that an earlier run saved.
    pub(super) fn restored(notified: BTreeMap<SafeText, Notified>, snoozes: BTreeMap<SafeText, Snooze>) -> Self {
        Self { notified, snoozes, changed_here: BTreeSet::new() }
    }

    /// The severity that an earlier run notified for a finding.
    pub(super) fn notified_severity(&self, id: &SafeText, now: Moment) -> Option<Severity> {
        let notified = self.notified.get(id)?;
        let is_old = notified.cleared_unix_seconds.is_some_and(|at| now.unix.as_secs_f64() - at > RENOTIFY_AFTER);
        (!is_old).then_some(notified.severity)
    }

    /// Whether an earlier run notified the finding and it had not cleared by the end of that run.
    pub(super) fn was_active_before(&self, id: &SafeText) -> bool {
        self.notified.get(id).is_some_and(|notified| notified.cleared_unix_seconds.is_none())
    }

    /// The end of the snooze of a finding with this severity, if it is snoozed.
    pub(super) fn snoozed(&self, id: &SafeText, severity: Severity, now: Moment) -> Option<SnoozeEnd> {
        let snooze = self.snoozes.get(id)?;
        let Some(until) = snooze.until_unix_seconds else {
            return (severity <= snooze.severity).then_some(SnoozeEnd::OnChange);
        };
        let until = Duration::try_from_secs_f64(until).ok()?;
        let left = until.checked_sub(now.unix).filter(|left| !left.is_zero())?;
        Some(SnoozeEnd::At(now.plus(left)))
    }

    /// Snoozes a finding for `span`, or until it changes.
    pub(super) fn snooze(&mut self, finding: &Finding, span: Option<Duration>, now: Moment) {
        let unix = now.unix.as_secs_f64();
        let until_unix_seconds = span.map(|span| unix + span.as_secs_f64());
        if self.snoozes.len() < MAX_ENTRIES || self.snoozes.contains_key(&finding.id) {
            let snooze = Snooze { until_unix_seconds, severity: finding.severity, seen_unix_seconds: unix };
            self.snoozes.insert(finding.id.clone(), snooze);
            self.changed_here.insert(finding.id.clone());
        }
    }

    /// Ends a snooze.
    pub(super) fn end_snooze(&mut self, id: &SafeText) {
        if self.snoozes.remove(id).is_some() {
            self.changed_here.insert(id.clone());
        }
    }

    /// Ends a snooze that lasts until the finding changes. `severity` is the new severity; `None` if the finding
    /// cleared.
    pub(super) fn finding_changed(&mut self, id: &SafeText, severity: Option<Severity>) {
        let ends = |snooze: &Snooze| {
            snooze.until_unix_seconds.is_none() && severity.is_none_or(|severity| severity > snooze.severity)
        };
        if self.snoozes.get(id).is_some_and(ends) {
            self.end_snooze(id);
        }
    }

    /// Whether there is neither a notified nor a snoozed finding.
    pub(super) fn is_empty(&self) -> bool {
        self.notified.is_empty() && self.snoozes.is_empty()
    }

    /// The notified findings to save. `current` are those of this run: fingerprint, severity, and when they cleared.
    /// `observed_since` returns since when this run has observed the host of a fingerprint, if it has.
    pub(super) fn retain_notified<'a>(
        &self,
        current: impl Iterator<Item = (&'a SafeText, Severity, Option<f64>)>,
        observed_since: impl Fn(&SafeText) -> Option<f64>,
        unix: f64,
    ) -> BTreeMap<SafeText, Notified> {
        let mut kept: BTreeMap<SafeText, Notified> = BTreeMap::new();
        for (id, severity, cleared) in current.take(MAX_ENTRIES) {
            let seen_unix_seconds = cleared.unwrap_or(unix);
            kept.insert(id.clone(), Notified { severity, seen_unix_seconds, cleared_unix_seconds: cleared });
        }
        for (id, notified) in &self.notified {
            if kept.len() >= MAX_ENTRIES || kept.contains_key(id) {
                continue;
            }
            let mut notified = notified.clone();
            // The finding has not come back since this run observes the host.
            notified.cleared_unix_seconds = notified.cleared_unix_seconds.or_else(|| observed_since(id));
            if notified.is_retained(unix) {
                kept.insert(id.clone(), notified);
            }
        }
        kept
    }

    /// The snoozes to save, and the fingerprints of those that this run changed. `is_present` returns whether a finding
    /// exists now.
    pub(super) fn retain_snoozes(
        &self,
        is_present: impl Fn(&SafeText) -> bool,
        unix: f64,
    ) -> (BTreeMap<SafeText, Snooze>, BTreeSet<SafeText>) {
        let kept = self.snoozes.iter().filter_map(|(id, snooze)| {
            let seen_unix_seconds = if is_present(id) { unix } else { snooze.seen_unix_seconds };
            let is_over = match snooze.until_unix_seconds {
                Some(until) => until <= unix,
                None => unix - seen_unix_seconds > UNSEEN_RETENTION,
            };
            (!is_over).then(|| (id.clone(), Snooze { seen_unix_seconds, ..*snooze }))
        });
        (kept.collect(), self.changed_here.clone())
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
    fn a_snooze_ends_after_its_span() {
        let mut notification_state = NotificationState::default();
        notification_state.snooze(&finding(Severity::Warn), Some(Duration::from_secs(3600)), at(0));
        let id = "a".into();
        assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(10)), Some(SnoozeEnd::At(at(3600))));
        assert!(notification_state.snoozed(&id, Severity::Crit, at(3599)).is_some(), "the severity does not matter");
        notification_state.finding_changed(&id, None);
        assert!(notification_state.snoozed(&id, Severity::Warn, at(3599)).is_some());
        assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(3600)), None);
        assert_eq!(notification_state.retain_snoozes(|_| true, at(3600).unix.as_secs_f64()).0, BTreeMap::new());
    }

    #[test]
    fn a_snooze_on_change_ends_when_the_finding_gets_worse_or_clears() {
        let id: SafeText = "a".into();
        for change in [Some(Severity::Crit), None] {
            let mut notification_state = NotificationState::default();
            notification_state.snooze(&finding(Severity::Warn), None, at(0));
            notification_state.finding_changed(&id, Some(Severity::Warn));
            assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(1_000_000)), Some(SnoozeEnd::OnChange));
            assert_eq!(notification_state.snoozed(&id, Severity::Crit, at(1)), None);
            notification_state.finding_changed(&id, change);
            assert_eq!(notification_state.snoozed(&id, Severity::Warn, at(2)), None, "{change:?}");
            assert!(
                notification_state.retain_snoozes(|_| true, 0.0).1.contains(&id),
                "other runs must learn that the snooze ended"
            );
        }
    }

    #[test]
    fn a_notified_finding_is_dropped_six_hours_after_it_cleared() {
        let unix = |seconds: u64| at(seconds).unix.as_secs_f64();
        let id: SafeText = "a".into();
        let notified = Notified { severity: Severity::Warn, seen_unix_seconds: unix(0), cleared_unix_seconds: None };
        let notification_state = NotificationState::restored([(id.clone(), notified.clone())].into(), BTreeMap::new());
        assert_eq!(
            notification_state.notified_severity(&id, at(86_400)),
            Some(Severity::Warn),
            "it may have been present all the time"
        );
        // This run has observed the host for an hour without the finding.
        let kept = notification_state.retain_notified(std::iter::empty(), |_| Some(unix(100)), unix(3700));
        assert_eq!(kept[&id].cleared_unix_seconds, Some(unix(100)));
        let later = NotificationState::restored(kept, BTreeMap::new());
        assert_eq!(later.notified_severity(&id, at(100 + 6 * 3600)), Some(Severity::Warn));
        assert_eq!(later.notified_severity(&id, at(101 + 6 * 3600)), None);
        assert!(later.retain_notified(std::iter::empty(), |_| None, unix(101 + 6 * 3600)).is_empty());
        // An entry of a host that was not observed is kept for a month.
        assert!(notification_state.retain_notified(std::iter::empty(), |_| None, unix(29 * 86_400)).contains_key(&id));
        assert!(notification_state.retain_notified(std::iter::empty(), |_| None, unix(31 * 86_400)).is_empty());
    }
}
