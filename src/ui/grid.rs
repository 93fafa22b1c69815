//! The grid of host panes, and how many hosts it does not show.

use super::format::{columns, short};
use super::gpu_columns::FigureWidths;
use super::pane::{self, Shared};
use super::pen::Pen;
use super::{host_state, layout};
use crate::app::arrange::{Arrangement, GridShape};
use crate::app::{App, Focus};
use crate::fleet::{Host, Moment};
use ratatui::layout::Rect;

/// Draws the panes that are on the screen.
pub(super) fn draw(pen: &mut Pen<'_>, area: Rect, app: &App, arrangement: &Arrangement, now: Moment) {
    let Some(shape) = arrangement.grid else { return };
    let hosts = shown_hosts(app);
    if hosts.is_empty() {
        let words = if app.fleet().hosts().is_empty() { "no hosts" } else { "no host fits the filter; Esc shows all" };
        pen.fit(area.x + 1, area.y, area.width.saturating_sub(2), words, pen.theme.dim);
        return;
    }
    let top = app.screen().grid_top.min(shape.total_rows.saturating_sub(shape.visible_rows));
    let first = usize::from(top) * usize::from(shape.across);
    let shown = &hosts[first.min(hosts.len())..(first + shape.panes_shown()).min(hosts.len())];
    let widths = FigureWidths::of(hosts.iter().copied().filter_map(|host| app.figures(host)));
    let name_columns = hosts.iter().map(|host| columns(host.name())).max().unwrap_or(0) as u16;
    let shared = Shared { app, shape, widths, name_columns, now };
    for (place, host) in shown.iter().enumerate() {
        let area = layout::pane(area, &shape, place);
        let focused = app.screen().focus() == Focus::Panes && app.screen().host == host.id.0 as usize;
        if let Some(figures) = app.figures(host) {
            pane::draw(pen, area, &shared, host, figures, focused);
        }
    }
    if shape.is_cut() {
        let y = area.y + shape.visible_rows * shape.pane_rows;
        let hidden = Hidden { before: first, after: hosts.len() - first - shown.len() };
        more_hosts(pen, Rect { y, height: 1, ..area }, app, &shape, &hidden, now);
    }
}

/// The hosts that are neither hidden nor ruled out, in their order.
fn shown_hosts(app: &App) -> Vec<&Host> {
    let all = app.fleet().hosts();
    app.shown_hosts().iter().filter_map(|index| all.get(*index)).collect()
}

/// How many hosts lie outside the screen.
struct Hidden {
    before: usize,
    after: usize,
}

/// `3 more hosts above, 40 below, 2 of them not well`: no host is lost silently.
fn more_hosts(pen: &mut Pen<'_>, line: Rect, app: &App, shape: &GridShape, hidden: &Hidden, now: Moment) {
    let hosts = shown_hosts(app);
    let shown = shape.panes_shown().min(hosts.len() - hidden.before);
    let unwell = hosts
        .iter()
        .enumerate()
        .filter(|(index, _)| *index < hidden.before || *index >= hidden.before + shown)
        .filter(|(_, host)| {
            app.figures(host).is_some_and(|figures| host_state::word(app, host, figures, now).is_some())
        })
        .count();
    let places = match (hidden.before, hidden.after) {
        (0, after) => short!("{} {after} more host{}", pen.theme.glyphs.down, plural(after)),
        (before, 0) => short!("{} {before} more host{} above", pen.theme.glyphs.up, plural(before)),
        (before, after) => {
            short!(
                "{} {before} more host{} above, {} {after} below",
                pen.theme.glyphs.up,
                plural(before),
                pen.theme.glyphs.down
            )
        }
    };
    let used = pen.fit(line.x + 1, line.y, line.width.saturating_sub(1), &places, pen.theme.dim);
    if unwell > 0 {
        let room = line.width.saturating_sub(used + 1);
        pen.fit(line.x + 1 + used, line.y, room, &short!(", {unwell} without data"), pen.theme.warn);
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
