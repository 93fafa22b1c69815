//! All ways of telling, as hosts.toml says them.

use super::hook::Hook;
use super::queue::NotificationQueue;
use crate::config::Notifications;
use crate::diagnosis::FindingNotification;
use crate::fleet::{Fleet, Moment};
use crate::output::notification::{line, osc9, summary};
use crate::wire::SafeText;

/// Who is told of findings, and how.
#[derive(Debug)]
pub(in crate::cli) struct Notifier {
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
    pub(in crate::cli) fn new(settings: &Notifications, has_screen: bool, is_tmux: bool) -> Self {
        let queue = || NotificationQueue::new(settings.min_severity, settings.rate);
        let (bell, desktop) = (settings.bell, settings.desktop);
        let terminal = (has_screen && (bell || desktop)).then(|| Terminal { queue: queue(), bell, desktop, is_tmux });
        let hook = (!settings.on_finding.is_empty()).then(|| (queue(), Hook::new(settings.on_finding.clone())));
        Self { terminal, hook }
    }

    /// Takes in what is to be told with the next [`Notifier::tick`].
    pub(in crate::cli) fn take(&mut self, news: &[FindingNotification]) {
        if let Some(terminal) = &mut self.terminal {
            terminal.queue.take(news);
        }
        if let Some((queue, _)) = &mut self.hook {
            queue.take(news);
        }
    }

    /// Tells what is due: starts the hook, and returns what is to be written to the terminal. To be called once a second,
    /// so that what comes together is told together.
    pub(in crate::cli) fn tick(&mut self, fleet: &Fleet, now: Moment) -> Option<String> {
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
    pub(in crate::cli) async fn failure(&mut self) -> SafeText {
        match &mut self.hook {
            Some((_, hook)) => SafeText::from(hook.failure().await.to_string()),
            None => std::future::pending().await,
        }
    }

    /// The program ends: the hook gets what still waits, and a little time. Returns why it failed, if it did.
    pub(in crate::cli) async fn finish(self, fleet: &Fleet, now: Moment) -> Vec<SafeText> {
        let Some((mut queue, mut hook)) = self.hook else { return Vec::new() };
        if let Some(notification) = queue.drain()
            && let Ok(input) = line(&notification, fleet, now)
        {
            hook.start(input);
        }
        hook.finish().await.iter().map(|error| SafeText::from(error.to_string())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;
    use crate::diagnosis::testing::notification;

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
}
