//! What has happened in this run: findings that changed, and what went wrong beside the fleet.

use super::Action;
use super::screen::move_index;
use crate::diagnosis::{FindingPhase, Transition};
use crate::fleet::Moment;
use crate::wire::SafeText;
use std::collections::VecDeque;

/// The most entries; the oldest go first.
const MAX_ENTRIES: usize = 1000;

/// What has happened, the newest first, and the place in it.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    entries: VecDeque<EventLogEntry>,
    top: usize,
}

/// One line of it.
#[derive(Debug, Clone)]
pub struct EventLogEntry {
    /// When.
    pub at: Moment,
    /// What.
    pub kind: EventKind,
}

/// Something that has happened.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// A finding changed.
    FindingChanged(Transition),
    /// Something was said in the last line.
    Message(SafeText),
}

impl EventLog {
    /// Findings have changed. What was only watched and let go again is not worth a line.
    pub(super) fn record_transitions(&mut self, transitions: &[Transition]) {
        let is_idle = |transition: &Transition| {
            matches!(
                (transition.from, transition.to),
                (FindingPhase::Clear, FindingPhase::Pending) | (FindingPhase::Pending, FindingPhase::Clear)
            )
        };
        for transition in transitions.iter().filter(|transition| !is_idle(transition)) {
            self.add(EventLogEntry { at: transition.at, kind: EventKind::FindingChanged(transition.clone()) });
        }
    }

    /// Something was said.
    pub(super) fn record_message(&mut self, text: SafeText, at: Moment) {
        self.add(EventLogEntry { at, kind: EventKind::Message(text) });
    }

    fn add(&mut self, entry: EventLogEntry) {
        self.entries.push_front(entry);
        self.entries.truncate(MAX_ENTRIES);
        // Whoever has scrolled down goes on reading what they read.
        if self.top > 0 {
            self.top = (self.top + 1).min(self.entries.len() - 1);
        }
    }

    /// Scrolls, where `shown` entries fit on the screen.
    pub(super) fn navigate(&mut self, action: Action, shown: usize) {
        let places = self.entries.len().saturating_sub(shown) + 1;
        self.top = move_index(self.top, action, places, shown);
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// What is on the screen where `shown` entries fit, and how many lie above it.
    pub fn visible(&self, shown: usize) -> (usize, impl Iterator<Item = &EventLogEntry>) {
        let top = self.top.min(self.entries.len().saturating_sub(shown));
        (top, self.entries.iter().skip(top).take(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;
    use crate::diagnosis::testing::notification;

    fn changed(from: FindingPhase, to: FindingPhase) -> Transition {
        Transition { from, to, ..notification("a", Severity::Warn).transition }
    }

    #[test]
    fn the_newest_comes_first_and_what_came_to_nothing_is_left_out() {
        let mut event_log = EventLog::default();
        event_log.record_transitions(&[
            changed(FindingPhase::Clear, FindingPhase::Pending),
            changed(FindingPhase::Pending, FindingPhase::Firing),
        ]);
        event_log.record_transitions(&[changed(FindingPhase::Pending, FindingPhase::Clear)]);
        event_log.record_message("a hook failed".into(), Moment::default());
        let (above, entries) = event_log.visible(10);
        let entries: Vec<&EventLogEntry> = entries.collect();
        assert_eq!((above, entries.len()), (0, 2));
        assert!(matches!(entries[0].kind, EventKind::Message(_)));
        assert!(matches!(&entries[1].kind, EventKind::FindingChanged(one) if one.to == FindingPhase::Firing));
    }

    #[test]
    fn it_is_bounded_and_whoever_reads_stays_where_they_are() {
        let mut event_log = EventLog::default();
        for number in 0..MAX_ENTRIES + 50 {
            event_log.record_message(format!("{number}").into(), Moment::default());
        }
        assert_eq!(event_log.count(), MAX_ENTRIES);
        event_log.navigate(Action::PageDown, 10);
        let first = |event_log: &EventLog| match event_log.visible(10).1.next().map(|entry| entry.kind.clone()) {
            Some(EventKind::Message(text)) => text.to_string(),
            other => panic!("{other:?}"),
        };
        let before = first(&event_log);
        event_log.record_message("new".into(), Moment::default());
        assert_eq!((first(&event_log), event_log.visible(10).0), (before, 11));
        event_log.navigate(Action::Last, 10);
        assert_eq!(event_log.visible(10).0, MAX_ENTRIES - 10);
        event_log.navigate(Action::First, 10);
        assert_eq!(first(&event_log), "new");
        assert_eq!(EventLog::default().visible(0).0, 0);
    }
}
