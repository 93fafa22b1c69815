//! The last row: the keys that do something here, read from the keymap, or what the last key came to.

use super::format::{columns, short};
use super::pen::Pen;
use super::segments::Segments;
use crate::app::{Action, App, View, keymap};
use crate::fleet::{Link, Moment};
use ratatui::layout::Rect;

/// Draws the hint bar.
pub(super) fn draw(pen: &mut Pen<'_>, area: Rect, app: &App, now: Moment) {
    if area.width < 4 || area.height == 0 {
        return;
    }
    let (x, width) = (area.x + 1, area.width - 2);
    if let Some(notice) = app.notice(now) {
        pen.fit(x, area.y, width, notice, pen.theme.focus);
        return;
    }
    // The last hints, help and quit, are what a newcomer needs most: those before them go first.
    let hints: Vec<_> = keymap::hints(app.mode())
        .filter(|(action, ..)| is_useful(*action, app))
        .map(|(_, keys, words)| (keys, words))
        .collect();
    let mut line = Segments::default();
    let lead = if app.screen().sort_menu { "sort by" } else { "" };
    line.add(u8::MAX, 0, short!("{lead}"), pen.theme.dim);
    let mut pairs = Vec::new();
    let last = hints.len();
    let mut used = columns(lead);
    let tail: usize = hints.iter().rev().take(2).map(|hint| hint_columns(*hint)).sum();
    for (index, hint) in hints.into_iter().enumerate() {
        let is_tail = index + 2 >= last;
        let needed = used + hint_columns(hint) + if is_tail { 0 } else { tail };
        if needed <= usize::from(width) + 2 {
            used += hint_columns(hint);
            pairs.push(hint);
        }
    }
    for (keys, words) in pairs {
        line.add(1, 2, short!("{keys}"), pen.theme.plain);
        line.add(1, 1, short!("{words}"), pen.theme.dim);
    }
    line.draw(pen, x, area.y, width);
}

/// Whether a key would do something now.
fn is_useful(action: Action, app: &App) -> bool {
    match action {
        Action::Prompts => app.prompts().count() > 0,
        Action::Findings => app.screen().view() != &View::Findings,
        Action::RetryHost => {
            let host = app.fleet().hosts().get(app.screen().host);
            host.is_some_and(|host| !matches!(host.link, Link::Live))
        }
        _ => true,
    }
}

fn hint_columns((keys, words): (&str, &str)) -> usize {
    columns(keys) + 1 + columns(words) + 2
}
