//! Writes text, boxes and lines into a ratatui buffer, never outside it.
//!
//! [`Canvas`] writes single texts, [`Segments`] a line of texts with priorities, [`LineWriter`] fills an area line by line.
//! ratatui's `Span` and `Paragraph` neither drop the least important text nor mark a cut.
//!
//! Text from hosts is [`crate::wire::SafeText`] already, but typed and pasted text is not. The canvas replaces characters
//! that control the terminal, and characters whose width differs between terminals.

use super::format::{ShortString, columns, grapheme_columns, short, truncate, truncate_start, wrap};
use super::theme::{BoxGlyphs, Theme};
use crate::app::Action;
use crate::wire::safe_text::is_safe;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Clear, Widget as _};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Replaces a character that cannot be drawn.
const MARK: &str = "\u{FFFD}";
/// The maximum number of characters in one grapheme: a Hangul syllable has three, as has a letter with two accents.
const MAX_CHARACTERS: usize = 3;

/// A buffer and the theme to draw with.
pub(super) struct Canvas<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) theme: &'a Theme,
    /// The texts that act when they are clicked, in the order in which they are drawn.
    pub(super) clickable: Vec<(Rect, Action)>,
}

impl<'a> Canvas<'a> {
    pub(super) fn new(buffer: &'a mut Buffer, theme: &'a Theme) -> Self {
        Self { buffer, theme, clickable: Vec::new() }
    }

    /// Makes `width` cells act when they are clicked.
    pub(super) fn click(&mut self, x: u16, y: u16, width: u16, action: Action) {
        self.clickable.push((Rect { x, y, width, height: 1 }, action));
    }

    /// Marks a row of the screen as selected. Only warnings keep their colour.
    pub(super) fn highlight(&mut self, area: Rect) {
        let theme = self.theme;
        for cell in self.cells(area.x, area.y, area.width) {
            let is_warning = [theme.warn.fg, theme.crit.fg].contains(&Some(cell.fg));
            let color = if is_warning { cell.fg } else { Color::Reset };
            restyle(cell, theme.selected.fg(color));
        }
    }

    /// Writes `text` into at most `width` columns, cuts off the rest and returns the number of columns used.
    pub(super) fn text(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        let ascii = self.theme.ascii;
        let cells = self.cells(x, y, width);
        if text.is_ascii() {
            let taken = text.len().min(cells.len());
            for (cell, &byte) in cells.iter_mut().zip(text.as_bytes()) {
                restyle(cell.set_char(char::from(byte)), style);
            }
            return taken as u16;
        }
        // Most non-ASCII texts are a single glyph of the theme, which needs no segmentation.
        let mut characters = text.chars();
        if let (Some(character), None) = (characters.next(), characters.next())
            && character.width() == Some(1)
            && !ascii
            && is_drawn(character)
        {
            let Some(cell) = cells.first_mut() else { return 0 };
            restyle(cell.set_symbol(text), style);
            return 1;
        }
        let mut at = 0;
        for grapheme in text.graphemes(true) {
            let taken = grapheme_columns(grapheme);
            if taken == 0 {
                continue;
            }
            let Some(target) = cells.get_mut(at..at + taken) else { break };
            // All glyphs of the ASCII theme are ASCII, so this text comes from a host.
            let symbol = if ascii && !grapheme.is_ascii() { "?" } else { drawn(grapheme, taken) };
            restyle(target[0].set_symbol(symbol), style);
            for covered in &mut target[1..] {
                covered.reset();
                if ascii {
                    restyle(covered.set_symbol(symbol), style);
                }
            }
            at += taken;
        }
        at as u16
    }

    /// Returns the cells of a row from `x` on that lie inside the buffer.
    fn cells(&mut self, x: u16, y: u16, width: u16) -> &mut [Cell] {
        let area = self.buffer.area;
        let end = x.saturating_add(width).min(area.right());
        if y < area.y || y >= area.bottom() || x < area.x || x >= end {
            return &mut [];
        }
        let start = self.buffer.index_of(x, y);
        &mut self.buffer.content[start..start + usize::from(end - x)]
    }

    /// Like [`Canvas::text`], with an ellipsis if the text is cut.
    pub(super) fn fit(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        if width == 0 || columns(text) <= usize::from(width) {
            return self.text(x, y, width, text, style);
        }
        let used = self.text(x, y, width, truncate(text, usize::from(width) - 1), style);
        used + self.text(x + used, y, width - used, self.theme.glyphs.ellipsis, style)
    }

    /// Like [`Canvas::fit`], but cut in the middle: host names often differ only at the end.
    pub(super) fn fit_middle(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        if width < 5 || columns(text) <= usize::from(width) {
            return self.fit(x, y, width, text, style);
        }
        let tail = truncate_start(text, usize::from(width - 1) / 2);
        let head = truncate(text, usize::from(width) - 1 - columns(tail));
        let mut used = self.text(x, y, width, head, style);
        used += self.text(x + used, y, width - used, self.theme.glyphs.ellipsis, style);
        used + self.text(x + used, y, width - used, tail, style)
    }

    /// Like [`Canvas::fit`], aligned to the right.
    pub(super) fn right(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let taken = columns(text).min(usize::from(width)) as u16;
        self.fit(x + width - taken, y, taken, text, style);
    }

    /// Fills `width` columns with one glyph.
    pub(super) fn repeat(&mut self, x: u16, y: u16, width: u16, glyph: &str, style: Style) {
        for cell in self.cells(x, y, width) {
            restyle(cell.set_symbol(glyph), style);
        }
    }

    /// Draws the outline of a box. ratatui's `Block` also restyles every cell inside, which costs time in each frame.
    pub(super) fn outline(&mut self, area: Rect, glyphs: &BoxGlyphs, style: Style) {
        if area.width < 2 || area.height < 2 {
            return;
        }
        let (right, bottom) = (area.right() - 1, area.bottom() - 1);
        self.repeat(area.x + 1, area.y, area.width - 2, glyphs.horizontal, style);
        self.repeat(area.x + 1, bottom, area.width - 2, glyphs.horizontal, style);
        for y in area.y + 1..bottom {
            self.text(area.x, y, 1, glyphs.vertical, style);
            self.text(right, y, 1, glyphs.vertical, style);
        }
        let corners = [(area.x, area.y), (right, area.y), (area.x, bottom), (right, bottom)];
        for ((x, y), corner) in corners.into_iter().zip(glyphs.corners) {
            self.text(x, y, 1, corner, style);
        }
    }

    /// Draws an empty box with a title over the current content, for a dialog.
    pub(super) fn dialog(&mut self, area: Rect, title: &str, style: Style) {
        Clear.render(area, self.buffer);
        self.outline(area, &self.theme.glyphs.heavy, style);
        self.title(area, title, self.theme.focus);
    }

    /// Writes on the upper edge of a box.
    pub(super) fn title(&mut self, area: Rect, text: &str, style: Style) {
        self.fit(area.x + 2, area.y, area.width.saturating_sub(4), text, style);
    }

    /// Writes on the lower edge of a box how many lines follow: `▼ 12 more lines`.
    pub(super) fn more_below(&mut self, area: Rect, count: usize, unit: &str) {
        if count > 0 {
            let text = short!(" {} {count} more{unit} ", self.theme.glyphs.down);
            let y = area.bottom().saturating_sub(1);
            self.text(area.x + 2, y, area.width.saturating_sub(4), &text, self.theme.plain);
        }
    }

    /// Writes on an edge of a box, left and right, with a space around each text.
    pub(super) fn edge(&mut self, area: Rect, y: u16, left: &Segments, right: &Segments) {
        for (segments, x) in [(left, area.x + 3), (right, area.right().saturating_sub(3 + right.width()))] {
            let width = segments.width();
            if width > 0 {
                self.text(x - 1, y, 1, " ", Style::new());
                segments.draw(self, x, y, width);
                self.text(x + width, y, 1, " ", Style::new());
            }
        }
    }

    /// Draws all cells of an area in the dim style, for old values.
    pub(super) fn dim(&mut self, area: Rect) {
        let area = area.intersection(self.buffer.area);
        let (dim, track) = (self.theme.dim, self.theme.track.fg);
        let (bar, thin) = (self.theme.glyphs.bar_track, self.theme.glyphs.light.horizontal);
        for y in area.y..area.bottom() {
            for cell in self.cells(area.x, y, area.width) {
                // Without its colour, the unfilled part of a bar needs another glyph.
                if track == Some(cell.fg) && cell.symbol() == bar {
                    cell.set_symbol(thin);
                }
                restyle(cell, dim);
            }
        }
    }
}

/// Returns the part of a grapheme that is drawn into this many columns, or [`MARK`].
fn drawn(grapheme: &str, columns: usize) -> &str {
    let characters = grapheme.char_indices().take(MAX_CHARACTERS);
    let end = characters
        .take_while(|(at, character)| is_drawn(*character) && (*at == 0 || !is_skin_tone(*character)))
        .last()
        .map_or(0, |(at, character)| at + character.len_utf8());
    let symbol = &grapheme[..end];
    if symbol.is_empty() || symbol.width() > columns { MARK } else { symbol }
}

/// Whether terminals agree on the width of a character. Some draw a flag (two regional indicators) in two columns, some in
/// four. ratatui counts the voiced marks of halfwidth katakana twice.
fn is_drawn(character: char) -> bool {
    is_safe(character) && !matches!(character, '\u{1F1E6}'..='\u{1F1FF}' | '\u{FF9E}' | '\u{FF9F}')
}

fn is_skin_tone(character: char) -> bool {
    matches!(character, '\u{1F3FB}'..='\u{1F3FF}')
}

/// Replaces the style of a cell. `Cell::set_style` alone would keep the colour of the frame below a text.
fn restyle(cell: &mut Cell, style: Style) {
    cell.fg = Color::Reset;
    cell.modifier = Modifier::empty();
    cell.set_style(style);
}

/// A text in a line.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    text: ShortString,
    style: Style,
    /// Segments with the lowest priority are dropped first.
    priority: u8,
    /// Empty columns before the text.
    gap: u16,
    /// Whether the segment is dropped together with the one before it: a label without its value is useless.
    is_tied: bool,
    /// The action of a click on the text.
    action: Option<Action>,
}

/// A line of styled texts. If it is too narrow, the texts with the lowest priority are dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments {
    segments: Vec<Segment>,
}

impl Segments {
    /// Adds a text. Of texts with equal priority the last is dropped first.
    pub(super) fn add(&mut self, priority: u8, gap: u16, text: ShortString, style: Style) {
        if !text.is_empty() {
            self.segments.push(Segment { text, style, priority, gap, is_tied: false, action: None });
        }
    }

    /// Adds a text that is dropped together with the one before it.
    pub(super) fn add_tied(&mut self, gap: u16, text: ShortString, style: Style) {
        if let (Some(priority), false) = (self.segments.last().map(|last| last.priority), text.is_empty()) {
            self.segments.push(Segment { text, style, priority, gap, is_tied: true, action: None });
        }
    }

    /// Makes the last `count` texts act when they are clicked.
    pub(super) fn click(&mut self, count: usize, action: Action) {
        self.segments.iter_mut().rev().take(count).for_each(|segment| segment.action = Some(action));
    }

    /// Adds all segments of another line after `gap` empty columns.
    pub(super) fn append(&mut self, gap: u16, other: Self) {
        let before = self.segments.len();
        self.segments.extend(other.segments);
        if let (Some(first), true) = (self.segments.get_mut(before), before > 0) {
            first.gap = gap;
        }
    }

    /// Returns the number of columns. The gap before the first segment does not count.
    pub(super) fn width(&self) -> u16 {
        let gap = self.segments.first().map_or(0, |first| first.gap);
        self.segments.iter().map(|segment| segment.gap + columns(&segment.text) as u16).sum::<u16>() - gap
    }

    /// Drops segments until the rest fits into `width`.
    pub(super) fn fit(&mut self, width: u16) {
        while self.width() > width {
            let least = self.segments.iter().enumerate().rev().min_by_key(|(_, segment)| segment.priority);
            let Some((lowest, _)) = least else { return };
            let begin = self.segments[..=lowest].iter().rposition(|segment| !segment.is_tied).unwrap_or(0);
            let tied = self.segments[begin + 1..].iter().take_while(|segment| segment.is_tied).count();
            self.segments.drain(begin..=begin + tied);
        }
    }

    /// Returns the columns of the segments with at least this priority.
    pub(super) fn width_from_priority(&self, least: u8) -> u16 {
        let kept = self.segments.iter().filter(|segment| segment.priority >= least);
        Self { segments: kept.cloned().collect() }.width()
    }

    /// Drops all segments with a lower priority.
    pub(super) fn drop_below_priority(&mut self, least: u8) {
        self.segments.retain(|segment| segment.priority >= least);
    }

    /// Draws from the left and returns the number of columns used.
    pub(super) fn draw(&self, canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16) -> u16 {
        let mut used = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if index > 0 {
                let gap = segment.gap.min(width.saturating_sub(used));
                canvas.repeat(x + used, y, gap, " ", Style::new());
                used += gap;
            }
            let taken = canvas.text(x + used, y, width.saturating_sub(used), &segment.text, segment.style);
            used += taken;
            if let Some(action) = segment.action {
                // The gap between a key and its text belongs to both.
                let is_same = index > 0 && self.segments[index - 1].action == segment.action;
                let taken = taken + if is_same { segment.gap.min(used - taken) } else { 0 };
                canvas.click(x + used - taken, y, taken, action);
            }
        }
        used
    }

    /// Draws at the right end of the columns.
    pub(super) fn draw_right(&self, canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16) {
        let taken = self.width().min(width);
        self.draw(canvas, x + width - taken, y, taken);
    }
}

/// Fills an area with lines from top to bottom. Lines that do not fit are dropped.
pub(super) struct LineWriter<'p, 'a> {
    pub(super) canvas: &'p mut Canvas<'a>,
    area: Rect,
    y: u16,
    /// Whether [`LineWriter::gap`] leaves an empty line.
    has_gaps: bool,
}

/// Lower areas have no empty lines.
const MIN_ROWS_FOR_GAPS: u16 = 7;

impl<'p, 'a> LineWriter<'p, 'a> {
    pub(super) fn new(canvas: &'p mut Canvas<'a>, area: Rect) -> Self {
        Self { canvas, area, y: area.y, has_gaps: area.height >= MIN_ROWS_FOR_GAPS }
    }

    /// Returns the number of rows that are still free.
    pub(super) fn rows_left(&self) -> u16 {
        self.area.bottom().saturating_sub(self.y)
    }

    /// Leaves an empty line if the area is high enough.
    pub(super) fn gap(&mut self) {
        if self.has_gaps && self.y > self.area.y {
            self.y += 1;
        }
    }

    /// Writes one line and marks a cut.
    pub(super) fn line(&mut self, text: &str, style: Style) {
        if self.rows_left() > 0 {
            self.canvas.fit(self.area.x, self.y, self.area.width, text, style);
            self.y += 1;
        }
    }

    /// Writes a text in as many lines as it needs.
    pub(super) fn wrapped(&mut self, text: &str, style: Style) {
        for line in wrap(text, usize::from(self.area.width)) {
            self.line(line, style);
        }
    }

    /// Writes a glyph and, beside it, a text in as many lines as it needs.
    pub(super) fn marked(&mut self, glyph: &str, text: &str, style: Style) {
        let y = self.y;
        self.indented(text, style);
        if y < self.area.bottom() {
            self.canvas.text(self.area.x, y, self.area.width.min(1), glyph, style);
        }
    }

    /// Writes a text, indented by two columns, in as many lines as it needs.
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

    /// Writes a label and, beside it, a text in as many lines as it needs.
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

    /// Reserves the last line for a left and a right text. The right text is dropped first. Does nothing in an area of one
    /// line.
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

    /// Reserves the last line for segments. Does nothing in an area of one line.
    pub(super) fn pin_segments_to_bottom(&mut self, mut segments: Segments) {
        if self.area.height < 2 {
            return;
        }
        self.area.height -= 1;
        segments.fit(self.area.width);
        segments.draw(self.canvas, self.area.x, self.area.bottom(), self.area.width);
    }

    /// Writes a line of segments.
    pub(super) fn segments(&mut self, mut segments: Segments) {
        if self.rows_left() > 0 {
            segments.fit(self.area.width);
            segments.draw(self.canvas, self.area.x, self.y, self.area.width);
            self.y += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::DisplaySettings;
    use crate::ui::format::short;

    /// Drops the number of columns used, which most tests do not need.
    fn ignore(_columns: u16) {}

    fn row(width: u16, ascii: bool, draw: impl FnOnce(&mut Canvas<'_>)) -> String {
        let theme = Theme::new(DisplaySettings { ascii, ..DisplaySettings::default() });
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, 1));
        draw(&mut Canvas::new(&mut buffer, &theme));
        buffer.content().iter().map(Cell::symbol).collect()
    }

    #[test]
    fn cut_texts_have_an_ellipsis_at_the_end_or_in_the_middle() {
        let style = Style::new();
        assert_eq!(row(8, false, |canvas| ignore(canvas.fit(0, 0, 6, "abcdefgh", style))), "abcde…  ");
        assert_eq!(row(8, false, |canvas| ignore(canvas.fit_middle(0, 0, 7, "gpu-node-0417", style))), "gpu…417 ");
        assert_eq!(row(8, false, |canvas| canvas.right(0, 0, 8, "abc", style)), "     abc");
        assert_eq!(row(4, true, |canvas| ignore(canvas.fit(0, 0, 4, "abcdefgh", style))), "abc~");
    }

    #[test]
    fn wide_and_combining_graphemes_keep_the_columns() {
        let style = Style::new();
        let wide = row(8, false, |canvas| {
            let used = canvas.fit(0, 0, 5, "大きい", style);
            assert_eq!(used, 5);
            canvas.text(6, 0, 2, "|x", style);
        });
        assert_eq!(wide, "大 き …  |x".replace("…  ", "… "));
        assert_eq!(row(3, false, |canvas| ignore(canvas.text(0, 0, 3, "e\u{301}b", style))), "e\u{301}b ");
        assert_eq!(row(5, true, |canvas| ignore(canvas.text(0, 0, 5, "大x", style))), "??x  ");
    }

    #[test]
    fn unsafe_characters_and_those_of_unclear_width_are_replaced() {
        let style = Style::new();
        let drawn = |text: &str| row(6, false, |canvas| ignore(canvas.text(0, 0, 6, text, style)));
        // The override has no width of its own; the tag and the joiner extend the character before them.
        assert_eq!(drawn("a\u{202e}b"), "ab    ");
        assert_eq!(drawn("a\u{e0041}b\u{200d}c"), "abc   ");
        assert_eq!(drawn("\u{e000}x"), "\u{fffd}x    ");
        assert_eq!(drawn("x\u{301}\u{302}\u{303}\u{304}"), "x\u{301}\u{302}     ");
        assert_eq!(drawn("\u{1f44d}\u{1f3fd}x"), "\u{1f44d} x   ");
        assert_eq!(drawn("\u{1f1e9}\u{1f1ea}x"), "\u{fffd} x   ");
        assert_eq!(drawn("\u{1f1e9}"), "\u{fffd}     ");
        assert_eq!(drawn("ｶ\u{ff9e}x"), "ｶ x   ");
        assert_eq!(drawn("\u{1112}\u{1161}\u{11ab}x"), "\u{1112}\u{1161}\u{11ab} x   ");
    }

    #[test]
    fn nothing_is_drawn_outside_the_buffer() {
        let style = Style::new();
        let text = row(3, false, |canvas| {
            canvas.text(9, 0, 5, "x", style);
            canvas.text(0, 5, 5, "x", style);
            canvas.repeat(1, 0, 50, "-", style);
            canvas.outline(Rect::new(0, 0, 9, 9), &canvas.theme.glyphs.light, style);
            canvas.dialog(Rect::new(0, 0, 1, 9), "", style);
        });
        assert_eq!(text, " ──");
    }

    #[test]
    fn a_value_is_dropped_with_its_label() {
        let mut line = Segments::default();
        line.add(5, 0, short!("name"), Style::new());
        line.add(3, 2, short!("energy"), Style::new());
        line.add_tied(1, short!("1166 kWh"), Style::new());
        line.add(4, 2, short!("fan"), Style::new());
        line.fit(14);
        let texts: Vec<_> = line.segments.iter().map(|segment| segment.text.to_string()).collect();
        assert_eq!(texts, ["name", "fan"]);
    }

    #[test]
    fn segments_with_the_lowest_priority_are_dropped_first() {
        let mut line = Segments::default();
        for (priority, text) in [(9, "hgx"), (1, "free"), (5, "busy"), (1, "idle")] {
            line.add(priority, 1, short!("{text}"), Style::new());
        }
        assert_eq!(line.width(), 3 + 5 + 5 + 5);
        assert_eq!((line.width_from_priority(9), line.width_from_priority(5), line.width_from_priority(10)), (3, 8, 0));
        let texts = |line: &Segments| line.segments.iter().map(|segment| segment.text.to_string()).collect::<Vec<_>>();
        line.fit(17);
        assert_eq!(texts(&line), ["hgx", "free", "busy"]);
        line.fit(8);
        assert_eq!(texts(&line), ["hgx", "busy"]);
        line.fit(0);
        assert!(texts(&line).is_empty());
        assert_eq!(line.width(), 0);
    }
}
