//! From the lines of a recording back to what a host task would have told the fleet.

use super::{RecordedError, RecordedEvent};
use crate::fleet::recording::RecordedLinkState;
use crate::fleet::{ConnectPhase, Host, HostUpdate, Link, LinkError, LinkErrorKind, RetryPolicy};
use crate::wire::Message;
use std::time::Duration;

/// What has to be remembered of one host while its lines are played.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostReplay {
    /// Tries that failed since the last readings.
    failures: u32,
}

impl HostReplay {
    /// The update that a line stands for; `None` where it changes nothing that the fleet knows.
    pub fn update(&mut self, host: &Host, event: RecordedEvent) -> Option<HostUpdate> {
        match event {
            RecordedEvent::Wire(message) => self.message(host, message),
            RecordedEvent::Link(word, error) => self.link(host, word, error),
        }
    }

    fn message(&mut self, host: &Host, message: Message) -> Option<HostUpdate> {
        match message {
            Message::Hello(hello) => Some(HostUpdate::Hello(Box::new(hello))),
            Message::Inventory(inventory) => Some(HostUpdate::Inventory(Box::new(inventory))),
            Message::Snapshot(snapshot) => {
                self.failures = 0;
                Some(HostUpdate::Snapshot(snapshot))
            }
            Message::Echo { .. } => end_silence(host),
            Message::Reply(_) | Message::Farewell { .. } | Message::Unknown => None,
        }
    }

    fn link(&mut self, host: &Host, word: RecordedLinkState, error: Option<RecordedError>) -> Option<HostUpdate> {
        let attempt = self.failures.saturating_add(1);
        match (word, &host.link) {
            (RecordedLinkState::Connecting, _) => Some(HostUpdate::Connecting { attempt, phase: ConnectPhase::Queued }),
            (RecordedLinkState::Live, Link::Live | Link::Connecting { .. }) => None,
            (RecordedLinkState::Live, Link::Stale { .. }) => end_silence(host),
            // The readings that are about to come make it live.
            (RecordedLinkState::Live, Link::Down { .. } | Link::NeedsUser { .. }) => {
                Some(HostUpdate::Connecting { attempt, phase: ConnectPhase::FirstSample })
            }
            (RecordedLinkState::Stale, _) => Some(HostUpdate::Silent),
            (RecordedLinkState::Down, _) => {
                let error = error.map_or_else(unspecified_error, LinkError::from);
                if error.kind.concerns_credentials() {
                    return Some(HostUpdate::NeedsUser(error.with_retry(RetryPolicy::OnRequest)));
                }
                self.failures = attempt;
                Some(HostUpdate::Down { error, retry_at: None, attempt })
            }
        }
    }
}

/// A line that is no reading ends a silence. How long the heartbeat took is not recorded.
fn end_silence(host: &Host) -> Option<HostUpdate> {
    let is_stale = matches!(host.link, Link::Stale { .. });
    is_stale.then(|| HostUpdate::RoundTrip(host.round_trip.unwrap_or(Duration::ZERO)))
}

fn unspecified_error() -> LinkError {
    LinkError::new(LinkErrorKind::Closed, "the connection was closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::fleet::{HostId, Moment};
    use crate::wire::Snapshot;
    use std::sync::Arc;

    /// Plays lines on one host and tells how its link stands after each.
    fn words(lines: Vec<RecordedEvent>) -> Vec<&'static str> {
        let config = Arc::new(HostConfig::named("a"));
        let mut host = Host::new(HostId(0), config, Moment::default());
        let mut player = HostReplay::default();
        let play = lines.into_iter().map(|line| {
            if let Some(update) = player.update(&host, line) {
                host.apply(update, Moment::default());
            }
            host.link.word()
        });
        play.collect()
    }

    fn down(kind: LinkErrorKind) -> RecordedEvent {
        RecordedEvent::Link(RecordedLinkState::Down, Some(RecordedError::from(&LinkError::new(kind, "no"))))
    }

    #[test]
    fn links_stand_as_the_lines_say() {
        let snapshot = || RecordedEvent::Wire(Message::Snapshot(Box::<Snapshot>::default()));
        let link = |word| RecordedEvent::Link(word, None);
        let lines = vec![
            link(RecordedLinkState::Connecting),
            link(RecordedLinkState::Live),
            snapshot(),
            link(RecordedLinkState::Stale),
            RecordedEvent::Wire(Message::Echo { id: 1 }),
            link(RecordedLinkState::Stale),
            link(RecordedLinkState::Live),
            link(RecordedLinkState::Down),
            link(RecordedLinkState::Live),
            snapshot(),
            down(LinkErrorKind::Authentication),
        ];
        assert_eq!(
            words(lines),
            [
                "connecting",
                "connecting",
                "live",
                "stale",
                "live",
                "stale",
                "live",
                "down",
                "connecting",
                "live",
                "needs_user"
            ]
        );
    }

    #[test]
    fn tries_are_counted_until_readings_come() {
        let config = Arc::new(HostConfig::named("a"));
        let mut host = Host::new(HostId(0), config, Moment::default());
        let mut player = HostReplay::default();
        let mut attempt = |line| match player.update(&host, line) {
            Some(update) => {
                host.apply(update, Moment::default());
                match &host.link {
                    Link::Down { attempt, .. } | Link::Connecting { attempt, .. } => Some(*attempt),
                    _ => None,
                }
            }
            None => None,
        };
        assert_eq!(attempt(down(LinkErrorKind::Timeout)), Some(1));
        assert_eq!(attempt(RecordedEvent::Link(RecordedLinkState::Connecting, None)), Some(2));
        assert_eq!(attempt(down(LinkErrorKind::Timeout)), Some(2));
        assert_eq!(attempt(RecordedEvent::Wire(Message::Snapshot(Box::default()))), None);
        assert_eq!(attempt(down(LinkErrorKind::Timeout)), Some(1));
    }
}
