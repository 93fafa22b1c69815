//! What has happened in this run: findings that changed, and what went wrong beside the fleet.

use super::Action;
use super::screen::moved;
use crate::diagnosis::{Phase, Transition};
use crate::fleet::Moment;
use crate::wire::SafeText;
use std::collections::VecDeque;

/// The most entries; the oldest go first.
const MAX_ENTRIES: usize = 1000;

/// What has happened, the newest first, and the place in it.
#[derive(Debug, Clone, Default)]
pub struct Chronicle {
    entries: VecDeque<Entry>,
    top: usize,
}

/// One line of it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// When.
    pub at: Moment,
    /// What.
    pub what: Happening,
}

/// Something that has happened.
#[derive(Debug, Clone)]
pub enum Happening {
    /// A finding changed.
    Changed(Transition),
    /// Something was said in the last line.
    Said(SafeText),
}

impl Chronicle {
    /// Findings have changed. What was only watched and let go again is not worth a line.
    pub(super) fn changed(&mut self, transitions: &[Transition]) {
        let is_idle = |transition: &Transition| {
            matches!((transition.from, transition.to), (Phase::Clear, Phase::Pending) | (Phase::Pending, Phase::Clear))
        };
        for transition in transitions.iter().filter(|transition| !is_idle(transition)) {
            self.add(Entry { at: transition.at, what: Happening::Changed(transition.clone()) });
        }
    }

    /// Something was said.
    pub(super) fn said(&mut self, text: SafeText, at: Moment) {
        self.add(Entry { at, what: Happening::Said(text) });
    }

    fn add(&mut self, entry: Entry) {
        self.entries.push_front(entry);
        self.entries.truncate(MAX_ENTRIES);
        // Whoever has scrolled down goes on reading what they read.
        if self.top > 0 {
            self.top = (self.top + 1).min(self.entries.len() - 1);
        }
    }

    /// Scrolls, where `shown` entries fit on the screen.
    pub(super) fn go(&mut self, action: Action, shown: usize) {
        let places = self.entries.len().saturating_sub(shown) + 1;
        self.top = moved(self.top, action, places, shown);
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// What is on the screen where `shown` entries fit, and how many lie above it.
    pub fn visible(&self, shown: usize) -> (usize, impl Iterator<Item = &Entry>) {
        let top = self.top.min(self.entries.len().saturating_sub(shown));
        (top, self.entries.iter().skip(top).take(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;
    use crate::diagnosis::testing::news;

    fn changed(from: Phase, to: Phase) -> Transition {
        Transition { from, to, ..news("a", Severity::Warn).transition }
    }

    #[test]
    fn the_newest_comes_first_and_what_came_to_nothing_is_left_out() {
        let mut chronicle = Chronicle::default();
        chronicle.changed(&[changed(Phase::Clear, Phase::Pending), changed(Phase::Pending, Phase::Firing)]);
        chronicle.changed(&[changed(Phase::Pending, Phase::Clear)]);
        chronicle.said("a hook failed".into(), Moment::default());
        let (above, entries) = chronicle.visible(10);
        let entries: Vec<&Entry> = entries.collect();
        assert_eq!((above, entries.len()), (0, 2));
        assert!(matches!(entries[0].what, Happening::Said(_)));
        assert!(matches!(&entries[1].what, Happening::Changed(one) if one.to == Phase::Firing));
    }

    #[test]
    fn it_is_bounded_and_whoever_reads_stays_where_they_are() {
        let mut chronicle = Chronicle::default();
        for number in 0..MAX_ENTRIES + 50 {
            chronicle.said(format!("{number}").into(), Moment::default());
        }
        assert_eq!(chronicle.count(), MAX_ENTRIES);
        chronicle.go(Action::PageDown, 10);
        let first = |chronicle: &Chronicle| match chronicle.visible(10).1.next().map(|entry| entry.what.clone()) {
            Some(Happening::Said(text)) => text.to_string(),
            other => panic!("{other:?}"),
        };
        let before = first(&chronicle);
        chronicle.said("new".into(), Moment::default());
        assert_eq!((first(&chronicle), chronicle.visible(10).0), (before, 11));
        chronicle.go(Action::Last, 10);
        assert_eq!(chronicle.visible(10).0, MAX_ENTRIES - 10);
        chronicle.go(Action::First, 10);
        assert_eq!(first(&chronicle), "new");
        assert_eq!(Chronicle::default().visible(0).0, 0);
    }
}
