//! Notifies the user of findings as `[notifications]` of hosts.toml says: bell, desktop notification, hook.

use super::notification_hook::Hook;
use crate::config::{MinSeverity, Notifications, Rate};
use crate::diagnosis::{FindingNotification, Severity};
use crate::fleet::{Fleet, HostId, Moment};
use crate::output::notification::{Notification, line, osc9, summary};
use crate::wire::SafeText;
use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};

/// Sends notifications to the terminal and to the hook.
#[derive(Debug)]
pub(super) struct Notifier {
    terminal: Option<Terminal>,
    hook: Option<(NotificationQueue, Hook)>,
}

/// Notifications through the terminal.
#[derive(Debug)]
struct Terminal {
    queue: NotificationQueue,
    bell: bool,
    desktop: bool,
    is_tmux: bool,
}

impl Notifier {
    /// Creates a notifier. Without a screen (`has_screen`) the terminal gets no notifications. `is_tmux` wraps
    /// sequences for tmux.
    pub(super) fn new(settings: &Notifications, has_screen: bool, is_tmux: bool) -> Self {
        let queue = || NotificationQueue::new(settings.min_severity, settings.rate);
        let (bell, desktop) = (settings.bell, settings.desktop);
        let terminal = (has_screen && (bell || desktop)).then(|| Terminal { queue: queue(), bell, desktop, is_tmux });
        let hook = (!settings.on_finding.is_empty()).then(|| (queue(), Hook::new(settings.on_finding.clone())));
        Self { terminal, hook }
    }

    /// Queues notifications for the next [`Notifier::tick`].
    pub(super) fn take(&mut self, news: &[FindingNotification]) {
        if let Some(terminal) = &mut self.terminal {
            terminal.queue.take(news);
        }
        if let Some((queue, _)) = &mut self.hook {
            queue.take(news);
        }
    }

    /// Sends the notifications that are due: starts the hook, and returns the bytes for the terminal. Call it once per
    /// second, so that simultaneous findings are sent together.
    pub(super) fn tick(&mut self, fleet: &Fleet, now: Moment) -> Option<String> {
        if let Some((queue, hook)) = self.hook.as_mut().filter(|(_, hook)| hook.is_free())
            && let Some(notification) = queue.next(fleet.hosts().len(), now)
            // Plain data always encodes.
            && let Ok(input) = line(&notification, fleet, now)
        {
            hook.start(input);
        }
        let terminal = self.terminal.as_mut()?;
        let text = summary(&terminal.queue.next(fleet.hosts().len(), now)?);
        let desktop = if terminal.desktop { osc9(&text, terminal.is_tmux) } else { String::new() };
        Some(if terminal.bell { desktop + "\x07" } else { desktop })
    }

    /// Waits until a hook fails and returns the message; forever without a hook. Cancel safe.
    pub(super) async fn failure(&mut self) -> SafeText {
        match &mut self.hook {
            Some((_, hook)) => SafeText::from(hook.failure().await.to_string()),
            None => std::future::pending().await,
        }
    }

    /// Sends everything that is queued to the hook, waits for a short time, and returns the errors.
    pub(super) async fn finish(self, fleet: &Fleet, now: Moment) -> Vec<SafeText> {
        let Some((mut queue, mut hook)) = self.hook else { return Vec::new() };
        if let Some(notification) = queue.drain()
            && let Ok(input) = line(&notification, fleet, now)
        {
            hook.start(input);
        }
        hook.finish().await.iter().map(|error| SafeText::from(error.to_string())).collect()
    }
}

/// The maximum number of queued findings; further ones are only counted.
const MAX_WAITING: usize = 100;

/// A host causes at most this part of the notifications of a period, unless the fleet has fewer hosts.
const HOST_PART: u32 = 4;
/// This part of the notifications of a period is kept for critical findings.
const RESERVED_PART: u32 = 4;

/// The queued notifications of one destination. Findings that exceed the rate are sent together later: a finding fires
/// only once, so it must not be dropped.
///
/// A notification carries everything that waits, but not everything may cause one. A host whose findings come and go has
/// its share of the rate, and warnings leave a part of it to critical findings. The fleet as a whole has a share like a host,
/// so that a host that has used its own cannot hold back an outage that is listed under it.
#[derive(Debug)]
struct NotificationQueue {
    min_severity: Severity,
    rate: Rate,
    waiting: Vec<FindingNotification>,
    left_out: u32,
    /// The last notifications, at most `rate.count`.
    sent: VecDeque<SentNotification>,
}

/// A notification within the period of the rate.
#[derive(Debug)]
struct SentNotification {
    at: Moment,
    /// The hosts that caused it; `None` is the fleet as a whole.
    hosts: HashSet<Option<HostId>>,
}

impl NotificationQueue {
    pub(super) fn new(min_severity: MinSeverity, rate: Rate) -> Self {
        let min_severity = match min_severity {
            MinSeverity::Warn => Severity::Warn,
            MinSeverity::Crit => Severity::Crit,
        };
        Self { min_severity, rate, waiting: Vec::new(), left_out: 0, sent: VecDeque::new() }
    }

    /// Queues notifications. A finding that is already queued is replaced.
    pub(super) fn take(&mut self, news: &[FindingNotification]) {
        let min_severity = self.min_severity;
        for one in news.iter().filter(|news| news.transition.severity >= min_severity) {
            self.waiting.retain(|other| other.transition.id != one.transition.id);
            self.waiting.push(one.clone());
            if self.waiting.len() > MAX_WAITING {
                self.leave_one_out();
            }
        }
    }

    /// Drops the least important finding: of the lowest severity, then of the host with the most findings, then the newest.
    fn leave_one_out(&mut self) {
        let of_host = |host| self.waiting.iter().filter(|news| news.transition.host == host).count();
        let importance =
            |news: &FindingNotification| (news.transition.severity, Reverse(of_host(news.transition.host)));
        let least =
            self.waiting.iter().enumerate().rev().min_by_key(|(_, news)| importance(news)).map(|(index, _)| index);
        if let Some(index) = least {
            self.waiting.remove(index);
            self.left_out += 1;
        }
    }

    /// Returns the next notification if the rate allows one now in a fleet of this many hosts.
    pub(super) fn next(&mut self, hosts: usize, now: Moment) -> Option<Notification> {
        self.sent.retain(|sent| now.since(sent.at) < self.rate.span);
        let count = self.rate.count;
        let parts = HOST_PART.min(u32::try_from(hosts).unwrap_or(HOST_PART)).max(1);
        let host_share = count.div_ceil(parts) as usize;
        let sent = self.sent.len();
        let may_cause = |news: &&FindingNotification| {
            let limit = if news.transition.severity >= Severity::Crit { count } else { count - count / RESERVED_PART };
            let of_host = self.sent.iter().filter(|sent| sent.hosts.contains(&news.transition.host)).count();
            sent < limit as usize && of_host < host_share
        };
        let causes: HashSet<Option<HostId>> =
            self.waiting.iter().filter(may_cause).map(|news| news.transition.host).collect();
        if causes.is_empty() {
            return None;
        }
        self.sent.push_back(SentNotification { at: now, hosts: causes });
        self.drain()
    }

    /// Returns everything that is queued, regardless of the rate, critical findings first.
    pub(super) fn drain(&mut self) -> Option<Notification> {
        let mut news = std::mem::take(&mut self.waiting);
        news.sort_by_key(|news| Reverse(news.transition.severity));
        let left_out = std::mem::take(&mut self.left_out);
        (!news.is_empty()).then_some(Notification { news, left_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::notification;
    use std::time::Duration;

    fn sequence_of_one_finding(settings: &Notifications, has_screen: bool) -> Option<String> {
        let mut notifier = Notifier::new(settings, has_screen, false);
        notifier.take(&[notification("gpu-lost/hgx-01", Severity::Crit)]);
        let sequence_of_one_finding = notifier.tick(&Fleet::default(), Moment::default());
        assert_eq!(notifier.tick(&Fleet::default(), Moment::default()), None, "once");
        sequence_of_one_finding
    }

    #[test]
    fn the_terminal_gets_the_configured_sequences() {
        let settings = |bell, desktop| Notifications { bell, desktop, ..Notifications::default() };
        assert_eq!(sequence_of_one_finding(&settings(false, false), true), None);
        assert_eq!(
            sequence_of_one_finding(&settings(true, true), false),
            None,
            "without a screen there is nothing to ring"
        );
        assert_eq!(sequence_of_one_finding(&settings(true, false), true).as_deref(), Some("\x07"));
        let sequence = "\x1b]9;gpufleet: crit hgx-01: a sentence\x1b\\";
        assert_eq!(sequence_of_one_finding(&settings(false, true), true).as_deref(), Some(sequence));
        assert_eq!(sequence_of_one_finding(&settings(true, true), true), Some(format!("{sequence}\x07")));
    }

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds), Duration::from_secs(1_700_000_000 + seconds))
    }

    fn queue(count: u32, seconds: u64) -> NotificationQueue {
        NotificationQueue::new(MinSeverity::Warn, Rate { count, span: Duration::from_secs(seconds) })
    }

    fn ids(notification: Option<Notification>) -> Vec<String> {
        let news = notification.map(|notification| notification.news).unwrap_or_default();
        news.iter().map(|news| news.transition.id.to_string()).collect()
    }

    #[test]
    fn simultaneous_findings_are_sent_together_once() {
        let mut queue = queue(20, 3600);
        assert_eq!(queue.next(1, at(0)), None);
        queue.take(&[notification("a", Severity::Warn)]);
        queue.take(&[notification("b", Severity::Crit)]);
        assert_eq!(ids(queue.next(1, at(1))), ["b", "a"]);
        assert_eq!(queue.next(1, at(2)), None);
    }

    #[test]
    fn findings_below_the_minimum_severity_are_dropped() {
        let mut queue = NotificationQueue::new(MinSeverity::Crit, Rate::default());
        queue.take(&[notification("a", Severity::Warn), notification("b", Severity::Crit)]);
        assert_eq!(ids(queue.next(1, at(0))), ["b"]);
    }

    #[test]
    fn findings_above_the_rate_are_sent_together_later() {
        let mut queue = queue(2, 60);
        let mut sent_at = Vec::new();
        for second in 0..130 {
            queue.take(&[notification(&format!("f{second}"), Severity::Warn)]);
            let now = ids(queue.next(1, at(second)));
            if !now.is_empty() {
                sent_at.push((second, now.len()));
            }
        }
        assert_eq!(sent_at, [(0, 1), (1, 1), (60, 59), (61, 1), (120, 59), (121, 1)]);
    }

    #[test]
    fn a_queued_finding_is_replaced_by_its_escalation() {
        let mut queue = queue(20, 3600);
        queue.take(&[
            notification("a", Severity::Warn),
            notification("b", Severity::Warn),
            notification("a", Severity::Crit),
        ]);
        let notification = queue.next(1, at(0)).expect("a notification");
        let sent_at: Vec<_> =
            notification.news.iter().map(|news| (&*news.transition.id, news.transition.severity)).collect();
        assert_eq!(sent_at, [("a", Severity::Crit), ("b", Severity::Warn)]);
    }

    #[test]
    fn the_queue_is_bounded_and_counts_the_rest() {
        let mut queue = queue(1, 3600);
        for number in 0..250 {
            queue.take(&[notification(&format!("f{number}"), Severity::Warn)]);
        }
        let notification = queue.next(1, at(0)).expect("a notification");
        assert_eq!((notification.news.len(), notification.left_out), (MAX_WAITING, 150));
        assert_eq!(queue.next(1, at(10_000)), None);
    }

    fn notification_of(host: u32, id: &str, severity: Severity) -> FindingNotification {
        let mut news = notification(id, severity);
        news.transition.host = Some(HostId(host));
        news
    }

    #[test]
    fn a_host_that_flaps_leaves_the_rate_to_the_others() {
        let mut queue = queue(20, 3600);
        let mut sent = Vec::new();
        for second in 0..600 {
            queue.take(&[notification_of(0, &format!("f{second}"), Severity::Crit)]);
            if second == 300 {
                queue.take(&[notification_of(1, "gpu-lost", Severity::Crit)]);
            }
            sent.extend(queue.next(8, at(second)).map(|notification| (second, notification)));
        }
        let times: Vec<u64> = sent.iter().map(|(second, _)| *second).collect();
        assert_eq!(times, [0, 1, 2, 3, 4, 300], "5 of 20 for the host that flaps");
        assert!(sent[5].1.news.iter().any(|news| &*news.transition.id == "gpu-lost"));
        assert_eq!(
            (sent[5].1.news.len(), sent[5].1.left_out),
            (MAX_WAITING, 197),
            "the findings that waited come along"
        );
    }

    #[test]
    fn an_outage_is_notified_although_its_first_host_has_used_its_share() {
        let mut queue = queue(20, 3600);
        for second in 0..10 {
            queue.take(&[notification_of(0, &format!("f{second}"), Severity::Crit)]);
            assert_eq!(queue.next(8, at(second)).is_some(), second < 5, "{second}");
        }
        let mut outage = notification("host-unreachable/fleet/hgx-00", Severity::Crit);
        outage.transition.host = None;
        outage.finding.hosts = vec![(HostId(0), "hgx-00".into()), (HostId(1), "hgx-01".into())];
        queue.take(&[outage]);
        assert!(queue.next(8, at(10)).is_some());
    }

    #[test]
    fn warnings_leave_a_part_of_the_rate_to_critical_findings() {
        let mut queue = queue(20, 3600);
        for host in 0..40 {
            queue.take(&[notification_of(host, &format!("w{host}"), Severity::Warn)]);
            assert_eq!(queue.next(40, at(u64::from(host))).is_some(), host < 15, "{host}");
        }
        for host in 40..50 {
            queue.take(&[notification_of(host, &format!("c{host}"), Severity::Crit)]);
            assert_eq!(queue.next(50, at(u64::from(host))).is_some(), host < 45, "{host}");
        }
    }

    #[test]
    fn a_full_queue_drops_warnings_of_the_host_with_the_most_findings() {
        let mut queue = queue(20, 3600);
        queue.take(&[notification_of(1, "w1", Severity::Warn)]);
        for number in 0..MAX_WAITING {
            queue.take(&[notification_of(0, &format!("w0-{number}"), Severity::Warn)]);
        }
        queue.take(&[notification_of(2, "c2", Severity::Crit)]);
        let notification = queue.next(3, at(0)).expect("a notification");
        assert_eq!((notification.news.len(), notification.left_out), (MAX_WAITING, 2));
        let ids = ids(Some(notification));
        assert_eq!((&*ids[0], ids.contains(&"w1".to_owned())), ("c2", true));
        assert!(!ids.contains(&format!("w0-{}", MAX_WAITING - 1)), "the newest");
    }
}
