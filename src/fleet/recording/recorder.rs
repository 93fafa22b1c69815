//! From what the hosts report to the lines of a recording.

use super::{HostLine, Line, RecordedError, RecordedEvent, RecordedLinkState, Redactor};
use crate::fleet::{HostId, HostUpdate, LinkError, Moment};
use crate::wire::{Message, SafeText};
use std::collections::HashMap;

/// Turns the updates of a fleet into lines.
///
/// Left out is what a replay has no use for: how long heartbeats take, and the replies to requests, which may hold an
/// environment or a log.
#[derive(Debug)]
pub struct Recorder {
    start: Moment,
    links: HashMap<HostId, (RecordedLinkState, Option<RecordedError>)>,
    redactor: Option<Redactor>,
}

impl Recorder {
    /// A recording that begins now, and that has neither user names nor arguments where a redactor is given.
    pub fn new(start: Moment, redactor: Option<Redactor>) -> Self {
        Self { start, links: HashMap::new(), redactor }
    }

    /// Takes one update of a host and gives the lines that tell it: none, one, or the link's and the message's.
    pub fn take(&mut self, id: HostId, host: &SafeText, update: HostUpdate, now: Moment) -> Vec<Line> {
        let before = self.links.get(&id).map(|(word, _)| *word);
        let (link, message) = match update {
            HostUpdate::Connecting { .. } => (Some((RecordedLinkState::Connecting, None)), None),
            HostUpdate::Hello(hello) => (None, Some(Message::Hello(*hello))),
            HostUpdate::Inventory(inventory) => (None, Some(Message::Inventory(*inventory))),
            HostUpdate::Snapshot(snapshot) => {
                (Some((RecordedLinkState::Live, None)), Some(Message::Snapshot(snapshot)))
            }
            HostUpdate::RoundTrip(_) if before == Some(RecordedLinkState::Stale) => {
                (Some((RecordedLinkState::Live, None)), None)
            }
            HostUpdate::Silent => (Some((RecordedLinkState::Stale, None)), None),
            HostUpdate::Down { error, .. } | HostUpdate::NeedsUser(error) => {
                (Some((RecordedLinkState::Down, Some(self.error(&error)))), None)
            }
            HostUpdate::RoundTrip(_) | HostUpdate::Reply(_) => (None, None),
        };
        let mut lines = Vec::new();
        // To the millisecond: it says when a line arrived, and that is not known better.
        let t = (now.since(self.start).as_secs_f64() * 1e3).round() / 1e3;
        let mut line = |event| lines.push(Line::Host(HostLine { t, host: host.clone(), event }));
        if let Some(link) = link
            && self.links.get(&id) != Some(&link)
        {
            line(RecordedEvent::Link(link.0, link.1.clone()));
            self.links.insert(id, link);
        }
        if let Some(mut message) = message {
            if let Some(redactor) = &mut self.redactor {
                redactor.redact(&mut message);
            }
            line(RecordedEvent::Wire(message));
        }
        lines
    }

    fn error(&self, error: &LinkError) -> RecordedError {
        match self.redactor {
            // Sentences of servers name accounts; the kind says what there is to know.
            Some(_) => RecordedError { kind: error.kind.word().into(), message: error.kind.word().into(), hint: None },
            None => RecordedError::from(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;
    use crate::fleet::{ConnectPhase, LinkErrorKind};
    use crate::wire::{Reply, ReplyOutcome, Snapshot};
    use std::time::Duration;

    fn at(seconds: f64) -> Moment {
        Moment::new(Duration::from_secs_f64(seconds), Duration::ZERO)
    }

    fn text(recorder: &mut Recorder, seconds: f64, update: HostUpdate) -> String {
        let lines = recorder.take(HostId(0), &"a".into(), update, at(seconds));
        let bytes: Vec<u8> = lines.iter().flat_map(|line| encode(line).expect("encodes")).collect();
        String::from_utf8(bytes).expect("UTF-8")
    }

    fn down(kind: LinkErrorKind) -> HostUpdate {
        let error = LinkError::new(kind, "no answer from bob@a").with_hint("ssh bob@a");
        HostUpdate::Down { error, retry_at: None, attempt: 1 }
    }

    #[test]
    fn a_link_is_told_when_it_changes() {
        let mut recorder = Recorder::new(at(100.0), None);
        let connecting = |attempt, phase| HostUpdate::Connecting { attempt, phase };
        let mut take = |seconds, update| text(&mut recorder, seconds, update);
        assert_eq!(
            take(100.0, connecting(1, ConnectPhase::Queued)),
            "{\"t\":0.0,\"host\":\"a\",\"link\":\"connecting\"}\n"
        );
        assert_eq!(take(100.1, connecting(1, ConnectPhase::Login)), "");
        let snapshot = HostUpdate::Snapshot(Box::<Snapshot>::default());
        let lines = take(100.25, snapshot.clone());
        assert_eq!(lines.lines().next(), Some("{\"t\":0.25,\"host\":\"a\",\"link\":\"live\"}"));
        assert!(
            lines
                .lines()
                .nth(1)
                .is_some_and(|line| line.starts_with("{\"t\":0.25,\"host\":\"a\",\"wire\":{\"snapshot\":"))
        );
        assert_eq!(take(102.0, snapshot).lines().count(), 1);
        assert_eq!(take(102.1, HostUpdate::RoundTrip(Duration::ZERO)), "");
        assert_eq!(take(105.0, HostUpdate::Silent), "{\"t\":5.0,\"host\":\"a\",\"link\":\"stale\"}\n");
        assert_eq!(
            take(105.5, HostUpdate::RoundTrip(Duration::ZERO)),
            "{\"t\":5.5,\"host\":\"a\",\"link\":\"live\"}\n"
        );
        assert!(take(110.0, down(LinkErrorKind::Silent)).contains("\"hint\":\"ssh bob@a\""));
        assert_eq!(take(110.1, down(LinkErrorKind::Silent)), "", "nothing new");
        assert!(take(111.0, down(LinkErrorKind::Timeout)).contains("\"kind\":\"timeout\""));
    }

    #[test]
    fn replies_are_never_written() {
        let mut recorder = Recorder::new(at(0.0), None);
        let reply = Reply { id: 1, outcome: ReplyOutcome::Environment(vec!["TOKEN=x".into()]) };
        assert_eq!(text(&mut recorder, 1.0, HostUpdate::Reply(reply)), "");
    }

    #[test]
    fn a_redacted_error_has_its_kind_only() {
        let mut recorder = Recorder::new(at(0.0), Some(Redactor::default()));
        let line = text(&mut recorder, 1.0, down(LinkErrorKind::Timeout));
        let error = "{\"kind\":\"timeout\",\"message\":\"timeout\",\"hint\":null}";
        assert_eq!(line, format!("{{\"t\":1.0,\"host\":\"a\",\"link\":\"down\",\"error\":{error}}}\n"));
    }
}
