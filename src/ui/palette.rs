//! The command palette.
//!
//! ```text
//! ┏━ Command ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
//! ┃: sort_                                                ┃
//! ┃▸sort by the next column                             . ┃
//! ┃ sort by a column: its letter                     o F6 ┃
//! ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛
//! ```

use super::format::{columns, short};
use super::layout::centered;
use super::pen::Pen;
use crate::app::App;
use ratatui::layout::Rect;

const WIDTH: u16 = 64;
/// As many entries as are read at a glance.
const MOST_ROWS: u16 = 16;

/// Draws the palette over the body, while it is open.
pub(super) fn draw(pen: &mut Pen<'_>, body: Rect, app: &App) {
    let Some(palette) = app.palette() else { return };
    let entries = app.palette_entries();
    let theme = pen.theme;
    // As high as with nothing typed, so that it does not jump while one types.
    let area = centered(body, WIDTH, MOST_ROWS + 3);
    pen.clear(area);
    pen.outline(area, &theme.glyphs.heavy, theme.focus);
    pen.text(area.x + 2, area.y, area.width.saturating_sub(4), " Command ", theme.focus);
    let (x, width) = (area.x + 2, area.width.saturating_sub(4));
    pen.text(area.x + 1, area.y + 1, 1, ":", theme.focus);
    let used = pen.fit(x + 1, area.y + 1, width.saturating_sub(2), palette.text(), theme.plain);
    pen.text(x + 1 + used, area.y + 1, 1, theme.glyphs.caret, theme.focus);
    let shown = usize::from(area.height.saturating_sub(3));
    let selected = palette.index().min(entries.len().saturating_sub(1));
    let top = (selected + 1).saturating_sub(shown);
    if entries.is_empty() {
        pen.fit(x, area.y + 2, width, "no action is called so", theme.dim);
    }
    for (row, (place, line)) in entries.iter().enumerate().skip(top).take(shown).enumerate() {
        let y = area.y + 2 + row as u16;
        let style = if place == selected { theme.focus } else { theme.plain };
        if place == selected {
            pen.text(area.x + 1, y, 1, theme.glyphs.pointer, theme.focus);
        }
        let keys = app.keymap().shown(line);
        let keys_columns = (columns(keys) as u16).min(width / 3);
        pen.fit(x, y, width.saturating_sub(keys_columns + 2), line.words, style);
        pen.right(x + width - keys_columns, y, keys_columns, keys, theme.dim);
    }
    let below = entries.len().saturating_sub(top + shown);
    if below > 0 {
        let more = short!(" {} {below} more ", theme.glyphs.down);
        pen.text(area.x + 2, area.bottom().saturating_sub(1), width, &more, theme.plain);
    }
}
