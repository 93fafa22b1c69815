//! What has happened in this run, the newest first.
//!
//! ```text
//! ╭─ History  12 ──────────────────────────────────────────────────────────────────────────────╮
//! │14:02:31 crit hgx-04 stuck-spin    worse      GPUs 4,5 say 100 % busy for 18 min but draw   │
//! │13:57:31 warn hgx-04 stuck-spin    fires      GPUs 4,5 say 100 % busy for 13 min but draw   │
//! │13:44:02 on_finding `notify-lab` failed: exit status 7, no route to chat; docs/notificat... │
//! ╰─ ▼ 9 more ─────────────────────────────────────────────────────────────────────────────────╯
//! ```

use super::canvas::Canvas;
use super::findings::severity_style;
use super::format::{clock, columns, short};
use crate::app::{App, EventKind, EventLogEntry};
use crate::diagnosis::{FindingPhase, Transition};
use ratatui::layout::Rect;

/// Columns of the time of day with the gap after it, and of what became of a finding.
const CLOCK: u16 = 9;
const CHANGE: u16 = 12;

/// Draws the view into the body of the screen.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App) {
    let theme = canvas.theme;
    let (event_log, inner) = (app.event_log(), body.width.saturating_sub(2));
    canvas.outline(body, &theme.glyphs.heavy, theme.focus);
    let title = short!(" History  {} ", event_log.count());
    canvas.text(body.x + 2, body.y, body.width.saturating_sub(4), &title, theme.focus);
    let rows = body.height.saturating_sub(2);
    let (above, entries) = event_log.visible(usize::from(rows));
    let entries: Vec<&EventLogEntry> = entries.collect();
    if entries.is_empty() {
        let words = "Nothing has changed since gpufleet was started.";
        canvas.fit(body.x + 2, body.y + 1, inner.saturating_sub(1), words, theme.plain);
        return;
    }
    let changes = || {
        entries
            .iter()
            .filter_map(|entry| if let EventKind::FindingChanged(one) = &entry.kind { Some(one) } else { None })
    };
    let widest = |words: &mut dyn Iterator<Item = usize>, most: usize| words.max().unwrap_or(0).min(most) as u16;
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
                let style = if is_over { theme.dim } else { severity_style(theme, one.severity) };
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
    if below > 0 {
        let words = short!(" {} {below} more ", theme.glyphs.down);
        canvas.text(body.x + 2, body.bottom() - 1, body.width.saturating_sub(4), &words, theme.plain);
    }
}

/// What became of a finding, in a word or two.
fn change(transition: &Transition) -> &'static str {
    match (transition.from, transition.to) {
        (FindingPhase::Firing, FindingPhase::Firing) if transition.is_reminder => "still fires",
        (FindingPhase::Firing, FindingPhase::Firing) => "worse",
        (FindingPhase::Resolving, FindingPhase::Firing) => "fires again",
        (_, FindingPhase::Firing) => "fires",
        (_, FindingPhase::Resolving) => "seems over",
        (_, FindingPhase::Clear) => "over",
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
    fn the_history_tells_what_became_of_findings_and_what_went_wrong() {
        let mut app = app_with_hung_jobs(4, (120, 40));
        app.update(Event::ProblemReported("on_finding `notify-lab` failed: exit status 7".into()), at(LATER));
        press(&mut app, "5H");
        for size in [(120, 40), (200, 60), (80, 24)] {
            insta::assert_snapshot!(format!("history_{}x{}", size.0, size.1), shown(&app, size).join("\n"));
        }
        for size in [(40, 10), (1, 1), (300, 5)] {
            shown(&app, size);
        }
        press(&mut app, "H");
        assert!(shown(&app, (120, 40))[1].contains("Findings"), "the same key leads back");
    }

    #[test]
    fn a_history_without_entries_says_so() {
        let mut app = app(1, 1, (80, 24));
        press(&mut app, "5H");
        let text = lines(&cells_at(&app, (80, 24), NOW)).join("\n");
        assert!(text.contains("Nothing has changed since gpufleet was started."), "{text}");
    }
}
