//! Whose processes to show: everybody's, or one user's.
//!
//! ```text
//! ┏━ Whose processes ━━━━━━━━━━━┓
//! ┃▸everybody                   ┃
//! ┃ erika        990G  3 jobs   ┃
//! ┃ dmitri       140G  1 job    ┃
//! ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛
//! ```

use super::areas::centered;
use super::canvas::Canvas;
use super::format::{memory, short};
use crate::app::App;
use ratatui::layout::Rect;

const WIDTH: u16 = 44;

/// Draws the list of users over the body, while it is open.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App) {
    let Some(selected) = app.screen().user_picker else { return };
    let users = app.user_totals();
    let lines = users.len() + 1;
    let area = centered(body, WIDTH, (lines as u16).saturating_add(2));
    canvas.clear(area);
    let theme = canvas.theme;
    canvas.outline(area, &theme.glyphs.heavy, theme.focus);
    canvas.text(area.x + 2, area.y, area.width.saturating_sub(4), " Whose processes ", theme.focus);
    let shown = usize::from(area.height.saturating_sub(2));
    let selected = selected.min(lines - 1);
    let top = (selected + 1).saturating_sub(shown);
    let below = lines.saturating_sub(top + shown);
    if below > 0 {
        let more = short!(" {} {below} more ", theme.glyphs.down);
        canvas.text(area.x + 2, area.bottom().saturating_sub(1), area.width.saturating_sub(4), &more, theme.plain);
    }
    for (index, line) in (top..lines).take(shown).enumerate() {
        let y = area.y + 1 + index as u16;
        let style = if line == selected { theme.focus } else { theme.plain };
        if line == selected {
            canvas.text(area.x + 1, y, 1, theme.glyphs.pointer, theme.focus);
        }
        let Some((user, bytes, jobs)) = line.checked_sub(1).and_then(|position| users.get(position)) else {
            canvas.text(area.x + 2, y, area.width.saturating_sub(4), "everybody", style);
            continue;
        };
        let right = area.width.saturating_sub(3);
        let figures = 16.min(right);
        canvas.fit(area.x + 2, y, right.saturating_sub(figures + 1), user, style);
        let plural = if *jobs == 1 { " " } else { "s" };
        let words = short!("{}  {jobs:>3} job{plural}", memory(*bytes).as_str());
        canvas.right(area.x + 2 + right - figures - 1, y, figures, &words, style);
    }
}
