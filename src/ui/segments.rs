//! A line of words of which the least important go first when there is no room for all.

use super::canvas::Canvas;
use super::format::{ShortString, columns};
use ratatui::style::Style;

/// Some words of a line.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    text: ShortString,
    style: Style,
    /// How long it is kept: the lowest go first.
    priority: u8,
    /// Empty columns before it.
    gap: u16,
    /// It goes together with the one before it: a label without its figure says nothing.
    is_tied: bool,
}

/// The words of a line, in the order in which they are drawn.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments {
    segments: Vec<Segment>,
}

impl Segments {
    /// Adds words. Of those with the same `keep` the last go first.
    pub(super) fn add(&mut self, priority: u8, gap: u16, text: ShortString, style: Style) {
        if !text.is_empty() {
            self.segments.push(Segment { text, style, priority, gap, is_tied: false });
        }
    }

    /// Adds words that go together with those before them.
    pub(super) fn add_tied(&mut self, gap: u16, text: ShortString, style: Style) {
        if let (Some(priority), false) = (self.segments.last().map(|last| last.priority), text.is_empty()) {
            self.segments.push(Segment { text, style, priority, gap, is_tied: true });
        }
    }

    /// Adds the words of another line, so far from those that are there.
    pub(super) fn append(&mut self, gap: u16, other: Self) {
        let before = self.segments.len();
        self.segments.extend(other.segments);
        if let (Some(first), true) = (self.segments.get_mut(before), before > 0) {
            first.gap = gap;
        }
    }

    /// Columns of all words; the gap before the first does not count.
    pub(super) fn width(&self) -> u16 {
        let gap = self.segments.first().map_or(0, |first| first.gap);
        self.segments.iter().map(|segment| segment.gap + columns(&segment.text) as u16).sum::<u16>() - gap
    }

    /// Leaves out words until the rest fits.
    pub(super) fn fit(&mut self, width: u16) {
        while self.width() > width {
            let least = self.segments.iter().enumerate().rev().min_by_key(|(_, segment)| segment.priority);
            let Some((lowest, _)) = least else { return };
            let begin = self.segments[..=lowest].iter().rposition(|segment| !segment.is_tied).unwrap_or(0);
            let tied = self.segments[begin + 1..].iter().take_while(|segment| segment.is_tied).count();
            self.segments.drain(begin..=begin + tied);
        }
    }

    /// Columns of the words that are kept at least so long.
    pub(super) fn width_from_priority(&self, least: u8) -> u16 {
        let kept = self.segments.iter().filter(|segment| segment.priority >= least);
        Self { segments: kept.cloned().collect() }.width()
    }

    /// Leaves out all words that are kept less long.
    pub(super) fn drop_below_priority(&mut self, least: u8) {
        self.segments.retain(|segment| segment.priority >= least);
    }

    /// Draws from the left and returns the columns used.
    pub(super) fn draw(&self, canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16) -> u16 {
        let mut used = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if index > 0 {
                let gap = segment.gap.min(width.saturating_sub(used));
                canvas.repeat(x + used, y, gap, " ", Style::new());
                used += gap;
            }
            used += canvas.text(x + used, y, width.saturating_sub(used), &segment.text, segment.style);
        }
        used
    }

    /// Draws at the right end of the columns.
    pub(super) fn draw_right(&self, canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16) {
        let taken = self.width().min(width);
        self.draw(canvas, x + width - taken, y, taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::format::short;

    #[test]
    fn a_figure_goes_with_its_label() {
        let mut line = Segments::default();
        line.add(5, 0, short!("name"), Style::new());
        line.add(3, 2, short!("energy"), Style::new());
        line.add_tied(1, short!("1166 kWh"), Style::new());
        line.add(4, 2, short!("fan"), Style::new());
        line.fit(14);
        let words: Vec<_> = line.segments.iter().map(|segment| segment.text.to_string()).collect();
        assert_eq!(words, ["name", "fan"]);
    }

    #[test]
    fn the_least_important_words_go_first() {
        let mut line = Segments::default();
        for (priority, text) in [(9, "hgx"), (1, "free"), (5, "busy"), (1, "idle")] {
            line.add(priority, 1, short!("{text}"), Style::new());
        }
        assert_eq!(line.width(), 3 + 5 + 5 + 5);
        assert_eq!((line.width_from_priority(9), line.width_from_priority(5), line.width_from_priority(10)), (3, 8, 0));
        let words = |line: &Segments| line.segments.iter().map(|segment| segment.text.to_string()).collect::<Vec<_>>();
        line.fit(17);
        assert_eq!(words(&line), ["hgx", "free", "busy"]);
        line.fit(8);
        assert_eq!(words(&line), ["hgx", "busy"]);
        line.fit(0);
        assert!(words(&line).is_empty());
        assert_eq!(line.width(), 0);
    }
}
