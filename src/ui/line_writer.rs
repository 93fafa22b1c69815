//! Lines of text from the top of an area to its bottom; what does not fit is left out.

use super::canvas::Canvas;
use super::format::{columns, wrap};
use super::segments::Segments;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// An area that is filled line by line.
pub(super) struct LineWriter<'p, 'a> {
    /// What it is drawn with.
    pub(super) canvas: &'p mut Canvas<'a>,
    area: Rect,
    y: u16,
    /// Empty lines are left only where there is room for what is to be said.
    has_gaps: bool,
}

/// Areas with fewer rows have no empty lines.
const MIN_ROWS_FOR_GAPS: u16 = 7;

impl<'p, 'a> LineWriter<'p, 'a> {
    /// Begins at the top of `area`.
    pub(super) fn new(canvas: &'p mut Canvas<'a>, area: Rect) -> Self {
        Self { canvas, area, y: area.y, has_gaps: area.height >= MIN_ROWS_FOR_GAPS }
    }

    /// Rows that are still empty.
    pub(super) fn rows_left(&self) -> u16 {
        self.area.bottom().saturating_sub(self.y)
    }

    /// An empty line, where there is room.
    pub(super) fn gap(&mut self) {
        if self.has_gaps && self.y > self.area.y {
            self.y += 1;
        }
    }

    /// One line, cut at the end.
    pub(super) fn line(&mut self, text: &str, style: Style) {
        if self.rows_left() > 0 {
            self.canvas.fit(self.area.x, self.y, self.area.width, text, style);
            self.y += 1;
        }
    }

    /// As many lines as the text needs.
    pub(super) fn wrapped(&mut self, text: &str, style: Style) {
        for line in wrap(text, usize::from(self.area.width)) {
            self.line(line, style);
        }
    }

    /// A glyph and text beside it, in as many lines as it needs.
    pub(super) fn marked(&mut self, glyph: &str, text: &str, style: Style) {
        let y = self.y;
        self.indented(text, style);
        if y < self.area.bottom() {
            self.canvas.text(self.area.x, y, self.area.width.min(1), glyph, style);
        }
    }

    /// Text two columns in, in as many lines as it needs.
    pub(super) fn indented(&mut self, text: &str, style: Style) {
        let width = self.area.width.saturating_sub(2);
        let lines = wrap(text, usize::from(width));
        let rows = usize::from(self.rows_left());
        for (index, line) in lines.iter().enumerate().take(rows) {
            self.canvas.text(self.area.x + 2, self.y, width, line, style);
            if index + 1 == rows && lines.len() > rows {
                let end = self.area.right() - 1;
                self.canvas.text(end, self.y, 1, self.canvas.theme.glyphs.ellipsis, style);
            }
            self.y += 1;
        }
    }

    /// A label and, beside it, text in as many lines as it needs.
    pub(super) fn labelled(&mut self, label: &str, label_width: u16, text: &str) {
        let (x, width) = (self.area.x, self.area.width);
        let y = self.y;
        let text_width = width.saturating_sub(label_width);
        for line in wrap(text, usize::from(text_width)) {
            if self.rows_left() > 0 {
                self.canvas.text(x + label_width, self.y, text_width, line, self.canvas.theme.plain);
                self.y += 1;
            }
        }
        if self.y > y {
            self.canvas.fit(x, y, label_width.min(width), label, self.canvas.theme.dim);
        }
    }

    /// Words at the left and at the right end of the last line, which is then no longer free; the right ones go
    /// first. In an area of one line there is no room for them.
    pub(super) fn pin_to_bottom(&mut self, left: &str, right: &str) {
        if self.area.height < 2 {
            return;
        }
        let y = self.area.bottom() - 1;
        self.area.height -= 1;
        self.canvas.fit(self.area.x, y, self.area.width, left, self.canvas.theme.plain);
        if columns(left) + columns(right) + 2 <= usize::from(self.area.width) {
            self.canvas.right(self.area.x, y, self.area.width, right, self.canvas.theme.dim);
        }
    }

    /// Words of which the least important go first.
    pub(super) fn segments(&mut self, mut segments: Segments) {
        if self.rows_left() > 0 {
            segments.fit(self.area.width);
            segments.draw(self.canvas, self.area.x, self.y, self.area.width);
            self.y += 1;
        }
    }
}
