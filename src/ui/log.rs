//! What was done to reach one host, the newest at the bottom.

use super::canvas::Canvas;
use super::format::{clock, columns, short, shorten_host_name, wrap};
use super::host_state;
use super::segments::Segments;
use crate::app::App;
use crate::fleet::{HostId, LogLine, Moment};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Columns of the time.
const TIME_COLUMNS: u16 = 10;

/// Draws the log of a host.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, id: HostId, now: Moment) {
    let Some((host, summary)) = app.fleet().host(id).and_then(|host| Some((host, app.host_summary(host)?))) else {
        return;
    };
    canvas.outline(body, &canvas.theme.glyphs.heavy, canvas.theme.focus);
    let mut title = Segments::default();
    title.add(9, 0, short!(" ssh log of {} ", shorten_host_name(host.name()).as_str()), canvas.theme.focus);
    match host_state::status_text(app, host, summary, now) {
        Some((word, style)) => title.add(5, 1, word, style),
        None => title.add(5, 1, short!("live"), canvas.theme.dim),
    }
    title.add(9, 0, short!(" "), Style::new());
    title.fit(body.width.saturating_sub(4));
    title.draw(canvas, body.x + 2, body.y, body.width.saturating_sub(4));
    let inner = Rect {
        x: body.x + 2,
        y: body.y + 1,
        width: body.width.saturating_sub(4),
        height: body.height.saturating_sub(2),
    };
    let available = usize::from(inner.width.saturating_sub(TIME_COLUMNS));
    let lines: Vec<(&LogLine, Vec<String>)> = host.log().lines().map(|line| (line, wrapped(line, available))).collect();
    let all: usize = lines.iter().map(|(_, parts)| parts.len()).sum();
    let shown = usize::from(inner.height);
    // Scrolled so many rows back from the newest.
    let back = app.screen().log_scroll.min(all.saturating_sub(shown));
    let first = all.saturating_sub(shown + back);
    let rows =
        lines.iter().flat_map(|(line, parts)| parts.iter().enumerate().map(move |(part, text)| (line, part, text)));
    for (row, (line, part, text)) in rows.skip(first).take(shown).enumerate() {
        let y = inner.y + row as u16;
        if part == 0 {
            let time = clock(line.at, app.settings.utc_offset_seconds);
            canvas.text(inner.x, y, TIME_COLUMNS, &time, canvas.theme.dim);
        }
        let style = if line.is_failure { canvas.theme.warn } else { canvas.theme.plain };
        canvas.text(inner.x + TIME_COLUMNS, y, inner.width.saturating_sub(TIME_COLUMNS), text, style);
    }
    if all == 0 {
        canvas.fit(inner.x, inner.y, inner.width, "nothing was tried yet", canvas.theme.dim);
    }
    if back > 0 {
        let words = short!(" {} {back} more rows ", canvas.theme.glyphs.down);
        let width = columns(&words) as u16;
        canvas.text(body.x + 2, body.bottom() - 1, width.min(body.width.saturating_sub(4)), &words, canvas.theme.plain);
    }
}

fn wrapped(line: &LogLine, width: usize) -> Vec<String> {
    let text = if line.times > 1 { format!("{} ({} times)", line.text, line.times) } else { line.text.to_string() };
    wrap(&text, width).into_iter().map(str::to_owned).collect()
}
