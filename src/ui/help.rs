//! The help, generated from the keymap.

use super::areas::centered;
use super::canvas::Canvas;
use crate::app::App;
use crate::app::help::{HelpLine, help_lines};
use crate::app::screen::HELP_WIDE_COLUMNS;
use ratatui::layout::Rect;

/// Draws the help over the body.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, top: usize) {
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
    canvas.clear(area);
    canvas.outline(area, &canvas.theme.glyphs.heavy, canvas.theme.focus);
    let version = env!("CARGO_PKG_VERSION");
    canvas.text(area.x + 2, area.y, area.width.saturating_sub(4), " Keys ", canvas.theme.focus);
    let about = format!(" gpufleet {version} ");
    let width = (about.len() as u16).min(area.width.saturating_sub(12));
    canvas.right(area.right().saturating_sub(2 + width), area.y, width, &about, canvas.theme.dim);

    let shown = usize::from(area.height.saturating_sub(2));
    let top = top.min(lines.len().saturating_sub(shown * columns));
    let below = lines.len().saturating_sub(top + shown * columns);
    if below > 0 {
        let more = format!(" {} {below} more lines ", canvas.theme.glyphs.down);
        canvas.text(area.x + 2, area.bottom() - 1, area.width.saturating_sub(4), &more, canvas.theme.plain);
    }
    let width = (area.width.saturating_sub(3) / columns as u16).saturating_sub(1);
    for (index, line) in lines.iter().skip(top).take(shown * columns).enumerate() {
        let x = area.x + 2 + (index / shown) as u16 * (width + 1);
        let y = area.y + 1 + (index % shown) as u16;
        match line {
            HelpLine::Empty => {}
            HelpLine::Title(title) => {
                canvas.fit(x, y, width, title, canvas.theme.focus);
            }
            HelpLine::Keys(binding) => {
                canvas.fit(x + 1, y, 10, app.keymap().keys_label(binding), canvas.theme.plain);
                canvas.fit(x + 12, y, width.saturating_sub(12), binding.description, canvas.theme.dim);
            }
            HelpLine::Example(example, meaning) => {
                let used = canvas.fit(x + 1, y, width.saturating_sub(1), example, canvas.theme.plain).max(10) + 2;
                canvas.fit(x + 1 + used, y, width.saturating_sub(1 + used), meaning, canvas.theme.dim);
            }
        }
    }
}
