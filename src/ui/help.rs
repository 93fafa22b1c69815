//! The hint bar and the help dialog. Both are generated from the keymap.

use super::areas::centered;
use super::canvas::{Canvas, Segments};
use super::format::{clock, columns, short, truncate_start, wrap};
use crate::app::help::{HelpDialog, HelpLine, HelpRow, Sign};
use crate::app::list_filter::{FILTER_MEANING_INDENT, filter_help_area, filter_help_pages, filter_meaning_column};
use crate::app::screen::help_columns;
use crate::app::signals::Confirmation;
use crate::app::{Action, App, FilterLine, Mode, View};
use crate::fleet::{FILTER_SYNTAX, Link, Moment};
use ratatui::layout::Rect;
use unicode_segmentation::UnicodeSegmentation;

/// Draws the hint bar: the filter line, a notice, or the keys that do something in the current mode. A menu takes as many
/// rows as its keys need.
pub(super) fn draw_hints(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    if area.width < 4 || area.height == 0 {
        return;
    }
    let (x, width) = (area.x + 1, area.width - 2);
    if let Some(line) = app.list_filter().line() {
        draw_filter_line(canvas, Rect { x, width, ..area }, app, line);
        return;
    }
    if let Some(notice) = app.notice(now) {
        canvas.fit(x, area.y, width, notice, canvas.theme.focus);
        return;
    }
    if !matches!(app.mode(), Mode::SortMenu | Mode::SignalMenu)
        && let Some((error, since)) = app.silent_collector()
    {
        let since = clock(since, app.settings.utc_offset_seconds);
        let hint = error.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
        let text = format!("{}, no readings since {}{hint}", error.message, since.as_str());
        canvas.fit(x, area.y, width, &text, canvas.theme.warn);
        return;
    }
    // The last two hints, help and quit, matter most to a new user: earlier hints are dropped first.
    let hints: Vec<_> = app
        .keymap()
        .hints(app.mode())
        .filter(|(action, ..)| is_useful(*action, app))
        .map(|(action, keys, text)| (action, shown_keys(action, keys), text))
        .map(|(action, keys, text)| (action, keys, if sends_nothing(app) { "close" } else { text }))
        .collect();
    if matches!(app.mode(), Mode::SortMenu | Mode::SignalMenu) {
        draw_menu(
            canvas,
            Rect { x, width, ..area },
            if app.mode() == Mode::SortMenu { "sort by" } else { "signal" },
            &hints,
        );
        return;
    }
    let mut line = Segments::default();
    let mut pairs = Vec::new();
    let last = hints.len();
    let mut used = 0;
    let tail: usize = hints.iter().rev().take(2).map(|hint| hint_columns(*hint)).sum();
    for (index, hint) in hints.into_iter().enumerate() {
        let is_tail = index + 2 >= last;
        let needed = used + hint_columns(hint) + if is_tail { 0 } else { tail };
        if needed <= usize::from(width) + 2 {
            used += hint_columns(hint);
            pairs.push(hint);
        }
    }
    for (action, keys, text) in pairs {
        line.add(1, 2, short!("{keys}"), canvas.theme.plain);
        line.add(1, 1, short!("{text}"), canvas.theme.dim);
        line.click(2, action);
    }
    line.draw(canvas, x, area.y, width);
}

/// Draws the keys of a menu in as many rows as they need; the last one is `line`. The rows above it are cleared.
fn draw_menu(canvas: &mut Canvas<'_>, line: Rect, lead: &str, hints: &[(Action, &str, &str)]) {
    let mut rows = vec![Segments::default()];
    let indent = columns(lead) as u16;
    let mut used = usize::from(indent);
    for &(action, keys, text) in hints {
        let needed = 2 + columns(keys) + 1 + columns(text);
        if used + needed > usize::from(line.width) && used > usize::from(indent) {
            rows.push(Segments::default());
            used = usize::from(indent);
        }
        used += needed;
        if let Some(row) = rows.last_mut() {
            row.add(1, 2, short!("{keys}"), canvas.theme.plain);
            row.add(1, 1, short!("{text}"), canvas.theme.dim);
            row.click(2, action);
        }
    }
    let top = (line.y + 1).saturating_sub(rows.len() as u16);
    for (y, row) in (top..).zip(&rows) {
        canvas.repeat(line.x - 1, y, line.width + 2, " ", canvas.theme.plain);
        row.draw(canvas, line.x + indent + 2, y, line.width.saturating_sub(indent + 2));
    }
    canvas.text(line.x, top, line.width, lead, canvas.theme.dim);
}

/// Draws a page of the help on the filter syntax above the input line.
pub(super) fn draw_filter_help(canvas: &mut Canvas<'_>, body: Rect, app: &App) {
    let Some(page) = app.list_filter().line().and_then(|line| line.help_page) else { return };
    let (width, rows) = filter_help_area((body.width, body.height + 2));
    let pages = filter_help_pages((width, rows));
    let Some(shown) = pages.get(page).or_else(|| pages.last()) else { return };
    let height = (shown.rows + 2).min(body.height);
    let area = Rect { y: body.bottom() - height, height, ..body };
    let title = match pages.len() {
        1 => " Filter syntax ".to_owned(),
        count => format!(" Filter syntax {}/{count}  F1: next page ", page.min(count - 1) + 1),
    };
    canvas.dialog(area, &title, canvas.theme.focus);
    let inner = Rect { x: area.x + 2, y: area.y + 1, width, height: height.saturating_sub(2) };
    let mut y = inner.y;
    for (example, meaning) in FILTER_SYNTAX.get(shown.examples.clone()).unwrap_or_default() {
        canvas.text(inner.x, y, inner.width, example, canvas.theme.plain);
        let (x, first) = match filter_meaning_column(inner.width) {
            Some(column) => (column, y),
            None => (FILTER_MEANING_INDENT, y + 1),
        };
        y = first;
        for line in wrap(meaning, usize::from(inner.width.saturating_sub(x))) {
            canvas.text(inner.x + x, y, inner.width.saturating_sub(x), line, canvas.theme.dim);
            y += 1;
        }
    }
}

/// Draws the filter line. An error replaces the hints, and its position is marked in the text.
///
/// ```text
///  / stuck mem>10_                              12 of 61 shown   Enter keep  Esc clear  F1 syntax
///  / stuck mem>10_       `10` is not a size with a unit K, M, G or T: write mem>10G
/// ```
fn draw_filter_line(canvas: &mut Canvas<'_>, area: Rect, app: &App, line: &FilterLine) {
    let theme = canvas.theme;
    let typed = columns(line.text()) as u16;
    let left_least = (typed + 3).min(area.width / 2);
    let right_room = area.width.saturating_sub(left_least + 2);
    let right_width = if let Some(error) = &line.error {
        let width = (columns(&error.message) as u16).min(right_room);
        canvas.right(area.right() - width, area.y, width, &error.message, theme.warn);
        width
    } else {
        let right = filter_hints(canvas, app, right_room);
        right.draw_right(canvas, area.x, area.y, area.width);
        right.width()
    };
    canvas.text(area.x, area.y, 2, "/ ", theme.focus);
    let available = area.width.saturating_sub(right_width + 5);
    // A long text scrolls so that the cursor stays visible.
    let cursor = line.text().char_indices().nth(line.cursor()).map_or(line.text().len(), |(at, _)| at);
    let (before, after) = line.text().split_at(cursor);
    let shown_before = truncate_start(before, usize::from(available));
    let begins = before.len() - shown_before.len();
    let style = |at: usize| match &line.error {
        Some(error) if error.at.contains(&at) || error.at.start == at => theme.warn,
        _ => theme.plain,
    };
    let (mut x, end) = (area.x + 2, area.x + 2 + available);
    for (at, grapheme) in shown_before.grapheme_indices(true) {
        x += canvas.text(x, area.y, end.saturating_sub(x), grapheme, style(begins + at));
    }
    x += canvas.text(x, area.y, 1, theme.glyphs.caret, theme.focus);
    for (at, grapheme) in after.grapheme_indices(true) {
        x += canvas.text(x, area.y, end.saturating_sub(x), grapheme, style(cursor + at));
    }
}

fn filter_hints(canvas: &Canvas<'_>, app: &App, available: u16) -> Segments {
    let mut right = Segments::default();
    let (matching, total) = app.row_counts();
    right.add(9, 0, short!("{matching} of {total} shown"), canvas.theme.plain);
    for (action, keys, text) in app.keymap().hints(Mode::FilterLine) {
        right.add(5, 2, short!("{keys}"), canvas.theme.plain);
        right.add(5, 1, short!("{text}"), canvas.theme.dim);
        right.click(2, action);
    }
    right.fit(available);
    right
}

/// Whether an action would do something now.
fn is_useful(action: Action, app: &App) -> bool {
    match action {
        Action::OpenPrompts => app.prompts().count() > 0,
        Action::Submit => !sends_nothing(app),
        Action::Interrupt | Action::Terminate | Action::Kill => !app.settings.is_readonly,
        Action::ShowAll => app.list_filter().is_active(),
        Action::UntagAll => !app.screen().list.tagged().is_empty(),
        Action::Processes => app.screen().view() != &View::Processes,
        Action::Findings => app.screen().view() != &View::Findings,
        Action::Wall => app.screen().view() != &View::Wall,
        Action::Users => app.screen().view() != &View::Users,
        Action::RetryHost | Action::Log => {
            let host = app.fleet().hosts().get(app.screen().host);
            host.is_some_and(|host| !matches!(host.link, Link::Live))
        }
        _ => true,
    }
}

/// Returns whether the signal dialog can only be closed: its signal was sent, or must not be.
fn sends_nothing(app: &App) -> bool {
    let dialog = app.signals().dialog().filter(|_| app.mode() == Mode::SignalDialog);
    dialog.is_some_and(|dialog| dialog.outcomes.is_some() || dialog.confirmation == Confirmation::Impossible)
}

/// Returns the first key of an action. To submit, all keys are pressed in turn: `yes Enter`.
fn shown_keys(action: Action, keys: &str) -> &str {
    if action == Action::Submit { keys } else { keys.split(' ').next().unwrap_or(keys) }
}

fn hint_columns((_, keys, text): (Action, &str, &str)) -> usize {
    columns(keys) + 1 + columns(text) + 2
}

/// Columns of the keys and of the gap behind them.
const KEY_COLUMNS: u16 = 10;

/// Draws the help dialog over the body.
pub(super) fn draw_help(canvas: &mut Canvas<'_>, body: Rect, app: &App, dialog: &HelpDialog) {
    let rows = app.help_rows(dialog, body.width);
    let columns = help_columns(dialog, body.width) as u16;
    // At these widths no line is cut.
    let width = match (columns, dialog.is_all) {
        (2, true) => 140,
        (2, false) => 90,
        _ => 64,
    };
    let area = centered(body, width, (rows.len() as u16).saturating_add(2));
    let title = if dialog.is_all { short!(" All keys ") } else { short!(" Keys: {} ", dialog.mode.location()) };
    canvas.dialog(area, &title, canvas.theme.focus);
    let version = env!("CARGO_PKG_VERSION");
    let about = format!(" gpufleet {version} ");
    let width = (about.len() as u16).min(area.width.saturating_sub(columns_of(&title) + 4));
    canvas.right(area.right().saturating_sub(2 + width), area.y, width, &about, canvas.theme.dim);

    let shown = usize::from(area.height.saturating_sub(2));
    let top = dialog.top.min(rows.len().saturating_sub(shown));
    canvas.more_below(area, rows.len().saturating_sub(top + shown), " lines");
    let left = area.x + 2;
    let inner = area.width.saturating_sub(3);
    for (y, row) in (area.y + 1..).zip(rows.iter().skip(top).take(shown)) {
        match row {
            HelpRow::Empty => {}
            HelpRow::Title(title) => {
                canvas.fit(left, y, inner, title, canvas.theme.focus);
            }
            HelpRow::Lines(lines) => {
                let is_example = matches!(lines.first(), Some(HelpLine::Example(..)));
                let step = inner / if is_example { 1 } else { columns };
                for (line, x) in lines.iter().zip((left..).step_by(usize::from(step.max(1)))) {
                    draw_help_line(canvas, Rect { x, y, width: step.saturating_sub(1), height: 1 }, line);
                }
            }
        }
    }
}

fn columns_of(text: &str) -> u16 {
    columns(text) as u16
}

fn draw_help_line(canvas: &mut Canvas<'_>, area: Rect, line: &HelpLine) {
    let theme = canvas.theme;
    let Rect { x, y, width, .. } = area;
    match line {
        HelpLine::Keys(keys, text) => {
            let used = canvas.fit(x, y, width, keys, theme.plain).max(KEY_COLUMNS) + 1;
            canvas.fit(x + used, y, width.saturating_sub(used), text, theme.dim);
        }
        HelpLine::Sign(sign, meaning) => {
            let (glyph, style) = match sign {
                Sign::State(state) => (theme.state_glyph(*state), theme.state_style(*state, None)),
                Sign::LowPower => (theme.glyphs.bar_hollow, theme.warn),
                Sign::Character(text) => (*text, theme.warn),
            };
            canvas.fit(x, y, width, glyph, style);
            canvas.fit(x + 4, y, width.saturating_sub(4), meaning, theme.dim);
        }
        HelpLine::Example(example, meaning) => {
            let used = canvas.fit(x, y, width, example, theme.plain).max(KEY_COLUMNS) + 2;
            canvas.fit(x + used, y, width.saturating_sub(used), meaning, theme.dim);
        }
    }
}
