//! The connection log of a host, newest last, and the history of this run, newest first.
//!
//! ```text
//! ╭─ History  12 ──────────────────────────────────────────────────────────────────────────────╮
//! │14:02:31 crit hgx-04 stuck-spin    worse      GPUs 4,5 read 100 % busy for 18 min but draw   │
//! │13:57:31 warn hgx-04 stuck-spin    started    GPUs 4,5 read 100 % busy for 13 min but draw   │
//! │13:44:02 on_finding `notify-lab` failed: exit status 7, no route to chat; docs/notificat... │
//! ╰─ ▼ 9 more ─────────────────────────────────────────────────────────────────────────────────╯
//! ```

use super::canvas::{Canvas, Segments};
use super::format::{clock, columns, short, shorten_host_name, wrap};
use super::host_state;
use crate::app::{App, EventKind, EventLogEntry};
use crate::diagnosis::{FindingPhase, Transition};
use crate::fleet::{HostId, LogLine, Moment};
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;

/// Columns of the time.
const TIME_COLUMNS: u16 = 10;

/// Draws the connection log of a host.
pub(super) fn draw_log(canvas: &mut Canvas<'_>, body: Rect, app: &App, id: HostId, now: Moment) {
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
    let inner = body.inner(Margin::new(2, 1));
    let available = usize::from(inner.width.saturating_sub(TIME_COLUMNS));
    let lines: Vec<(&LogLine, Vec<String>)> = host.log().lines().map(|line| (line, wrapped(line, available))).collect();
    let all: usize = lines.iter().map(|(_, parts)| parts.len()).sum();
    let shown = usize::from(inner.height);
    // The scroll position counts rows from the newest.
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
        canvas.fit(inner.x, inner.y, inner.width, "no connection attempt yet", canvas.theme.dim);
    }
    canvas.more_below(body, back, " rows");
}

fn wrapped(line: &LogLine, width: usize) -> Vec<String> {
    let text = if line.times > 1 { format!("{} ({} times)", line.text, line.times) } else { line.text.to_string() };
    wrap(&text, width).into_iter().map(str::to_owned).collect()
}

/// Columns of the time and of the transition.
const CLOCK: u16 = 9;
const CHANGE: u16 = 12;

/// Draws the history.
pub(super) fn draw_history(canvas: &mut Canvas<'_>, body: Rect, app: &App) {
    let theme = canvas.theme;
    let (event_log, inner) = (app.event_log(), body.width.saturating_sub(2));
    canvas.outline(body, &theme.glyphs.heavy, theme.focus);
    let title = short!(" History  {} ", event_log.count());
    canvas.text(body.x + 2, body.y, body.width.saturating_sub(4), &title, theme.focus);
    let rows = body.height.saturating_sub(2);
    let (above, entries) = event_log.visible(usize::from(rows));
    let entries: Vec<&EventLogEntry> = entries.collect();
    if entries.is_empty() {
        let text = "No changes since the start of gpufleet.";
        canvas.fit(body.x + 2, body.y + 1, inner.saturating_sub(1), text, theme.plain);
        return;
    }
    let changes = || {
        entries
            .iter()
            .filter_map(|entry| if let EventKind::FindingChanged(one) = &entry.kind { Some(one) } else { None })
    };
    let widest = |lengths: &mut dyn Iterator<Item = usize>, most: usize| lengths.max().unwrap_or(0).min(most) as u16;
    let host = widest(&mut changes().map(|one| columns(&one.host_name)), 14);
    let rule = widest(&mut changes().map(|one| one.rule.word().len()), 22);
    for (line, entry) in entries.iter().enumerate() {
        let mut at = Rect { x: body.x + 1, y: body.y + 1 + line as u16, width: inner, height: 1 };
        let time = clock(entry.at, app.settings.utc_offset_seconds);
        canvas.fit(at.x, at.y, at.width, &time, theme.dim);
        let skip = |at: &mut Rect, width: u16| {
            let width = width.min(at.width);
            *at = Rect { x: at.x + width, width: at.width - width, ..*at };
        };
        skip(&mut at, CLOCK);
        match &entry.kind {
            EventKind::Message(text) => {
                canvas.fit(at.x, at.y, at.width, text, theme.plain);
            }
            EventKind::FindingChanged(one) => {
                let is_over = matches!(one.to, FindingPhase::Clear | FindingPhase::Resolving);
                let style = if is_over { theme.dim } else { theme.severity_style(one.severity) };
                canvas.fit(at.x, at.y, at.width, one.severity.word(), style);
                skip(&mut at, 5);
                canvas.fit_middle(at.x, at.y, host.min(at.width), &one.host_name, theme.plain);
                skip(&mut at, host + 1);
                canvas.fit(at.x, at.y, rule.min(at.width), one.rule.word(), theme.plain);
                skip(&mut at, rule + 1);
                canvas.fit(at.x, at.y, at.width, change(one), style);
                skip(&mut at, CHANGE);
                canvas.fit(at.x, at.y, at.width, &one.sentence, if is_over { theme.dim } else { theme.plain });
            }
        }
    }
    let below = event_log.count().saturating_sub(above + entries.len());
    canvas.more_below(body, below, "");
}

/// The transition of a finding in one or two words.
fn change(transition: &Transition) -> &'static str {
    match (transition.from, transition.to) {
        (FindingPhase::Firing, FindingPhase::Firing) if transition.is_reminder => "continues",
        (FindingPhase::Firing, FindingPhase::Firing) => "worse",
        (FindingPhase::Resolving, FindingPhase::Firing) => "restarted",
        (_, FindingPhase::Firing) => "started",
        (_, FindingPhase::Resolving) => "seems ended",
        (_, FindingPhase::Clear) => "ended",
        (_, FindingPhase::Pending) => "watched",
    }
}

#[cfg(test)]
mod tests {
    use crate::app::testing::{LATER, NOW, app, app_with_hung_jobs, at, press};
    use crate::app::{App, Event};
    use crate::ui::testing::{cells_at, lines, show_cells};

    fn shown(app: &App, size: (u16, u16)) -> Vec<String> {
        let cells = cells_at(app, size, LATER);
        show_cells("history", &cells);
        lines(&cells)
    }

    #[test]
    fn the_history_lists_transitions_and_messages() {
        let mut app = app_with_hung_jobs(4, (120, 40));
        app.update(Event::ProblemReported("on_finding `notify-lab` failed: exit status 7".into()), at(LATER));
        press(&mut app, "5H");
        for size in [(120, 40), (200, 60), (80, 24)] {
            let screen = shown(&app, size);
            let entries = app.event_log().count();
            assert!(screen[1].contains(&format!("History  {entries} ")), "{}", screen[1]);
            assert!(screen[2].contains("on_finding `notify-lab` failed: exit status 7"), "{}", screen[2]);
            assert!(screen[3..].iter().any(|line| line.contains("started")), "{}", screen.join("\n"));
        }
        for size in [(40, 10), (1, 1), (300, 5)] {
            shown(&app, size);
        }
        press(&mut app, "H");
        assert!(shown(&app, (120, 40))[1].contains("Findings"), "the same key leads back");
    }

    #[test]
    fn an_empty_history_says_so() {
        let mut app = app(1, 1, (80, 24));
        press(&mut app, "5H");
        let text = lines(&cells_at(&app, (80, 24), NOW)).join("\n");
        assert!(text.contains("No changes since the start of gpufleet."), "{text}");
    }
}
