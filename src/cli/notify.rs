//! All ways of telling, as hosts.toml says them.

use super::notification_hook::Hook;
use crate::config::{MinSeverity, Notifications, Rate};
use crate::diagnosis::{FindingNotification, Severity};
use crate::fleet::{Fleet, Moment};
use crate::output::notification::{Notification, line, osc9, summary};
use crate::wire::SafeText;
use std::collections::VecDeque;

/// Who is told of findings, and how.
#[derive(Debug)]
pub(super) struct Notifier {
    terminal: Option<Terminal>,
    hook: Option<(NotificationQueue, Hook)>,
}

/// The terminal's own ways.
#[derive(Debug)]
struct Terminal {
    queue: NotificationQueue,
    bell: bool,
    desktop: bool,
    is_tmux: bool,
}

impl Notifier {
    /// As `settings` say. `has_screen` says that there is a terminal to ring, `is_tmux` that it is one of tmux.
    pub(super) fn new(settings: &Notifications, has_screen: bool, is_tmux: bool) -> Self {
        let queue = || NotificationQueue::new(settings.min_severity, settings.rate);
        let (bell, desktop) = (settings.bell, settings.desktop);
        let terminal = (has_screen && (bell || desktop)).then(|| Terminal { queue: queue(), bell, desktop, is_tmux });
        let hook = (!settings.on_finding.is_empty()).then(|| (queue(), Hook::new(settings.on_finding.clone())));
        Self { terminal, hook }
    }

    /// Takes in what is to be told with the next [`Notifier::tick`].
    pub(super) fn take(&mut self, news: &[FindingNotification]) {
        if let Some(terminal) = &mut self.terminal {
            terminal.queue.take(news);
        }
        if let Some((queue, _)) = &mut self.hook {
            queue.take(news);
        }
    }

    /// Tells what is due: starts the hook, and returns what is to be written to the terminal. To be called once a second,
    /// so that what comes together is told together.
    pub(super) fn tick(&mut self, fleet: &Fleet, now: Moment) -> Option<String> {
        if let Some((queue, hook)) = self.hook.as_mut().filter(|(_, hook)| hook.is_free())
            && let Some(notification) = queue.next(now)
            // Plain data always encodes.
            && let Ok(input) = line(&notification, fleet, now)
        {
            hook.start(input);
        }
        let terminal = self.terminal.as_mut()?;
        let text = summary(&terminal.queue.next(now)?);
        let desktop = if terminal.desktop { osc9(&text, terminal.is_tmux) } else { String::new() };
        Some(if terminal.bell { desktop + "\x07" } else { desktop })
    }

    /// Waits until a hook has failed, and says why; for ever where none does. May be dropped at any time.
    pub(super) async fn failure(&mut self) -> SafeText {
        match &mut self.hook {
            Some((_, hook)) => SafeText::from(hook.failure().await.to_string()),
            None => std::future::pending().await,
        }
    }

    /// The program ends: the hook gets what still waits, and a little time. Returns why it failed, if it did.
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

/// Findings that wait to be told; a fleet in which more is wrong at once is told so by a number.
const MAX_WAITING: usize = 100;

/// What is to be told by one way of telling, and when its rate allows it. What comes while it does not is told together
/// later: a finding fires once, so nothing may be dropped.
#[derive(Debug)]
struct NotificationQueue {
    min_severity: Severity,
    rate: Rate,
    waiting: Vec<FindingNotification>,
    left_out: u32,
    /// When the last ones were told, at most `rate.count` of them.
    sent_at: VecDeque<Moment>,
}

impl NotificationQueue {
    pub(super) fn new(min_severity: MinSeverity, rate: Rate) -> Self {
        let min_severity = match min_severity {
            MinSeverity::Warn => Severity::Warn,
            MinSeverity::Crit => Severity::Crit,
        };
        Self { min_severity, rate, waiting: Vec::new(), left_out: 0, sent_at: VecDeque::new() }
    }

    /// Takes in what is to be told. What became worse while it waited is told as it is now.
    pub(super) fn take(&mut self, news: &[FindingNotification]) {
        for one in news.iter().filter(|news| news.transition.severity >= self.min_severity) {
            self.waiting.retain(|other| other.transition.id != one.transition.id);
            if self.waiting.len() < MAX_WAITING {
                self.waiting.push(one.clone());
            } else {
                self.left_out += 1;
            }
        }
    }

    /// What is to be told now, if anything.
    pub(super) fn next(&mut self, now: Moment) -> Option<Notification> {
        self.sent_at.retain(|sent_at| now.since(*sent_at) < self.rate.span);
        if self.waiting.is_empty() || self.sent_at.len() >= self.rate.count as usize {
            return None;
        }
        self.sent_at.push_back(now);
        self.drain()
    }

    /// All that waits, whatever the rate: nobody can be told later.
    pub(super) fn drain(&mut self) -> Option<Notification> {
        let news = std::mem::take(&mut self.waiting);
        let left_out = std::mem::take(&mut self.left_out);
        (!news.is_empty()).then_some(Notification { news, left_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::notification;
    use std::time::Duration;

    fn told(settings: &Notifications, has_screen: bool) -> Option<String> {
        let mut notifier = Notifier::new(settings, has_screen, false);
        notifier.take(&[notification("gpu-lost/hgx-01", Severity::Crit)]);
        let told = notifier.tick(&Fleet::default(), Moment::default());
        assert_eq!(notifier.tick(&Fleet::default(), Moment::default()), None, "once");
        told
    }

    #[test]
    fn the_terminal_is_told_as_it_was_asked_for() {
        let settings = |bell, desktop| Notifications { bell, desktop, ..Notifications::default() };
        assert_eq!(told(&settings(false, false), true), None);
        assert_eq!(told(&settings(true, true), false), None, "without a screen there is nothing to ring");
        assert_eq!(told(&settings(true, false), true).as_deref(), Some("\x07"));
        let sequence = "\x1b]9;gpufleet: crit hgx-01: a sentence\x1b\\";
        assert_eq!(told(&settings(false, true), true).as_deref(), Some(sequence));
        assert_eq!(told(&settings(true, true), true), Some(format!("{sequence}\x07")));
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
    fn what_comes_together_is_told_together_and_once() {
        let mut queue = queue(20, 3600);
        assert_eq!(queue.next(at(0)), None);
        queue.take(&[notification("a", Severity::Warn)]);
        queue.take(&[notification("b", Severity::Crit)]);
        assert_eq!(ids(queue.next(at(1))), ["a", "b"]);
        assert_eq!(queue.next(at(2)), None);
    }

    #[test]
    fn what_matters_less_calls_nobody() {
        let mut queue = NotificationQueue::new(MinSeverity::Crit, Rate::default());
        queue.take(&[notification("a", Severity::Warn), notification("b", Severity::Crit)]);
        assert_eq!(ids(queue.next(at(0))), ["b"]);
    }

    #[test]
    fn what_the_rate_does_not_allow_waits_and_is_told_together_later() {
        let mut queue = queue(2, 60);
        let mut sent_at = Vec::new();
        for second in 0..130 {
            queue.take(&[notification(&format!("f{second}"), Severity::Warn)]);
            let now = ids(queue.next(at(second)));
            if !now.is_empty() {
                sent_at.push((second, now.len()));
            }
        }
        assert_eq!(sent_at, [(0, 1), (1, 1), (60, 59), (61, 1), (120, 59), (121, 1)]);
    }

    #[test]
    fn what_grew_worse_while_it_waited_is_told_once_as_it_is_now() {
        let mut queue = queue(20, 3600);
        queue.take(&[
            notification("a", Severity::Warn),
            notification("b", Severity::Warn),
            notification("a", Severity::Crit),
        ]);
        let notification = queue.next(at(0)).expect("is told");
        let sent_at: Vec<_> =
            notification.news.iter().map(|news| (&*news.transition.id, news.transition.severity)).collect();
        assert_eq!(sent_at, [("b", Severity::Warn), ("a", Severity::Crit)]);
    }

    #[test]
    fn what_waits_is_bounded_and_the_rest_is_counted() {
        let mut queue = queue(1, 3600);
        for number in 0..250 {
            queue.take(&[notification(&format!("f{number}"), Severity::Warn)]);
        }
        let notification = queue.next(at(0)).expect("is told");
        assert_eq!((notification.news.len(), notification.left_out), (MAX_WAITING, 150));
        assert_eq!(queue.next(at(10_000)), None);
    }
}
