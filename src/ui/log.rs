//! What was done to reach one host, the newest at the bottom.

use super::format::{clock, columns, named, short, wrap};
use super::host_state;
use super::pen::Pen;
use super::segments::Segments;
use crate::app::App;
use crate::fleet::{HostId, LogLine, Moment};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Columns of the time.
const TIME_COLUMNS: u16 = 10;

/// Draws the log of a host.
pub(super) fn draw(pen: &mut Pen<'_>, body: Rect, app: &App, id: HostId, now: Moment) {
    let Some((host, figures)) = app.fleet().host(id).and_then(|host| Some((host, app.figures(host)?))) else { return };
    pen.outline(body, &pen.theme.glyphs.heavy, pen.theme.focus);
    let mut title = Segments::default();
    title.add(9, 0, short!(" ssh log of {} ", named(host.name()).as_str()), pen.theme.focus);
    match host_state::word(app, host, figures, now) {
        Some((word, style)) => title.add(5, 1, word, style),
        None => title.add(5, 1, short!("live"), pen.theme.dim),
    }
    title.add(9, 0, short!(" "), Style::new());
    title.fit(body.width.saturating_sub(4));
    title.draw(pen, body.x + 2, body.y, body.width.saturating_sub(4));
    let inside = Rect {
        x: body.x + 2,
        y: body.y + 1,
        width: body.width.saturating_sub(4),
        height: body.height.saturating_sub(2),
    };
    let room = usize::from(inside.width.saturating_sub(TIME_COLUMNS));
    let lines: Vec<(&LogLine, Vec<String>)> = host.log().lines().map(|line| (line, wrapped(line, room))).collect();
    let all: usize = lines.iter().map(|(_, parts)| parts.len()).sum();
    let shown = usize::from(inside.height);
    // Scrolled so many rows back from the newest.
    let back = app.screen().log_back.min(all.saturating_sub(shown));
    let first = all.saturating_sub(shown + back);
    let rows =
        lines.iter().flat_map(|(line, parts)| parts.iter().enumerate().map(move |(part, text)| (line, part, text)));
    for (row, (line, part, text)) in rows.skip(first).take(shown).enumerate() {
        let y = inside.y + row as u16;
        if part == 0 {
            let time = clock(line.at, app.settings.utc_offset_seconds);
            pen.text(inside.x, y, TIME_COLUMNS, &time, pen.theme.dim);
        }
        let style = if line.is_failure { pen.theme.warn } else { pen.theme.plain };
        pen.text(inside.x + TIME_COLUMNS, y, inside.width.saturating_sub(TIME_COLUMNS), text, style);
    }
    if all == 0 {
        pen.fit(inside.x, inside.y, inside.width, "nothing was tried yet", pen.theme.dim);
    }
    if back > 0 {
        let words = short!(" {} {back} more rows ", pen.theme.glyphs.down);
        let width = columns(&words) as u16;
        pen.text(body.x + 2, body.bottom() - 1, width.min(body.width.saturating_sub(4)), &words, pen.theme.plain);
    }
}

fn wrapped(line: &LogLine, width: usize) -> Vec<String> {
    let text = if line.times > 1 { format!("{} ({} times)", line.text, line.times) } else { line.text.to_string() };
    wrap(&text, width).into_iter().map(str::to_owned).collect()
}
