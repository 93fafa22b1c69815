//! The command palette.
//!
//! ```text
//! ┏━ Command ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
//! ┃: sort_                                                ┃
//! ┃▸sort by the next column                             . ┃
//! ┃ sort by a column: its letter                     o F6 ┃
//! ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛
//! ```

use super::areas::centered;
use super::canvas::Canvas;
use super::format::{columns, short};
use crate::app::App;
use ratatui::layout::Rect;

const WIDTH: u16 = 64;
/// As many entries as are read at a glance.
const MAX_ROWS: u16 = 16;

/// Draws the palette over the body, while it is open.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App) {
    let Some(palette) = app.palette() else { return };
    let entries = app.palette_entries();
    let theme = canvas.theme;
    // As high as with nothing typed, so that it does not jump while one types.
    let area = centered(body, WIDTH, MAX_ROWS + 3);
    canvas.clear(area);
    canvas.outline(area, &theme.glyphs.heavy, theme.focus);
    canvas.text(area.x + 2, area.y, area.width.saturating_sub(4), " Command ", theme.focus);
    let (x, width) = (area.x + 2, area.width.saturating_sub(4));
    canvas.text(area.x + 1, area.y + 1, 1, ":", theme.focus);
    let used = canvas.fit(x + 1, area.y + 1, width.saturating_sub(2), palette.text(), theme.plain);
    canvas.text(x + 1 + used, area.y + 1, 1, theme.glyphs.caret, theme.focus);
    let shown = usize::from(area.height.saturating_sub(3));
    let selected = palette.index().min(entries.len().saturating_sub(1));
    let top = (selected + 1).saturating_sub(shown);
    if entries.is_empty() {
        canvas.fit(x, area.y + 2, width, "no action is called so", theme.dim);
    }
    for (row, (index, line)) in entries.iter().enumerate().skip(top).take(shown).enumerate() {
        let y = area.y + 2 + row as u16;
        let style = if index == selected { theme.focus } else { theme.plain };
        if index == selected {
            canvas.text(area.x + 1, y, 1, theme.glyphs.pointer, theme.focus);
        }
        let keys = app.keymap().keys_label(line);
        let keys_columns = (columns(keys) as u16).min(width / 3);
        canvas.fit(x, y, width.saturating_sub(keys_columns + 2), line.description, style);
        canvas.right(x + width - keys_columns, y, keys_columns, keys, theme.dim);
    }
    let below = entries.len().saturating_sub(top + shown);
    if below > 0 {
        let more = short!(" {} {below} more ", theme.glyphs.down);
        canvas.text(area.x + 2, area.bottom().saturating_sub(1), width, &more, theme.plain);
    }
}
