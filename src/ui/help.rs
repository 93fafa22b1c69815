//! The help, generated from the keymap.

use super::layout::centered;
use super::pen::Pen;
use crate::app::App;
use crate::app::help::{HelpLine, help_lines};
use crate::app::screen::HELP_WIDE_COLUMNS;
use ratatui::layout::Rect;

/// Draws the help over the body.
pub(super) fn draw(pen: &mut Pen<'_>, body: Rect, app: &App, top: usize) {
    let columns = if body.width >= HELP_WIDE_COLUMNS { 2 } else { 1 };
    let lines = help_lines(app.settings.is_readonly);
    let rows = lines.len().div_ceil(columns) as u16 + 2;
    // From the third width on no line is cut.
    let width = match body.width {
        140.. => 140,
        HELP_WIDE_COLUMNS.. => 104,
        _ => 62,
    };
    let area = centered(body, width, rows);
    pen.clear(area);
    pen.outline(area, &pen.theme.glyphs.heavy, pen.theme.focus);
    let version = env!("CARGO_PKG_VERSION");
    pen.text(area.x + 2, area.y, area.width.saturating_sub(4), " Keys ", pen.theme.focus);
    let about = format!(" gpufleet {version} ");
    let width = (about.len() as u16).min(area.width.saturating_sub(12));
    pen.right(area.right().saturating_sub(2 + width), area.y, width, &about, pen.theme.dim);

    let shown = usize::from(area.height.saturating_sub(2));
    let top = top.min(lines.len().saturating_sub(shown * columns));
    let below = lines.len().saturating_sub(top + shown * columns);
    if below > 0 {
        let more = format!(" {} {below} more lines ", pen.theme.glyphs.down);
        pen.text(area.x + 2, area.bottom() - 1, area.width.saturating_sub(4), &more, pen.theme.plain);
    }
    let width = (area.width.saturating_sub(3) / columns as u16).saturating_sub(1);
    for (place, line) in lines.iter().skip(top).take(shown * columns).enumerate() {
        let x = area.x + 2 + (place / shown) as u16 * (width + 1);
        let y = area.y + 1 + (place % shown) as u16;
        match line {
            HelpLine::Empty => {}
            HelpLine::Title(title) => {
                pen.fit(x, y, width, title, pen.theme.focus);
            }
            HelpLine::Keys(binding) => {
                pen.fit(x + 1, y, 10, app.keymap().shown(binding), pen.theme.plain);
                pen.fit(x + 12, y, width.saturating_sub(12), binding.words, pen.theme.dim);
            }
            HelpLine::Words(example, meaning) => {
                let used = pen.fit(x + 1, y, width.saturating_sub(1), example, pen.theme.plain).max(10) + 2;
                pen.fit(x + 1 + used, y, width.saturating_sub(1 + used), meaning, pen.theme.dim);
            }
        }
    }
}
