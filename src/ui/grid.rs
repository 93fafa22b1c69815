//! The grid of host panes, and how many hosts it does not show.

use super::canvas::Canvas;
use super::format::{columns, short};
use super::gpu_columns::ValueWidths;
use super::pane::{self, PaneContext};
use super::{areas, host_state};
use crate::app::layout::{GridLayout, ScreenLayout};
use crate::app::{App, Focus};
use crate::fleet::{Host, Moment};
use ratatui::layout::Rect;

/// Draws the panes that are on the screen.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &App, screen_layout: &ScreenLayout, now: Moment) {
    let Some(layout) = screen_layout.grid else { return };
    let hosts = visible_hosts(app);
    if hosts.is_empty() {
        let words = if app.fleet().hosts().is_empty() { "no hosts" } else { "no host fits the filter; Esc shows all" };
        canvas.fit(area.x + 1, area.y, area.width.saturating_sub(2), words, canvas.theme.dim);
        return;
    }
    let top = app.screen().grid_top.min(layout.total_rows.saturating_sub(layout.visible_rows));
    let first = usize::from(top) * usize::from(layout.per_row);
    let shown = &hosts[first.min(hosts.len())..(first + layout.visible_panes()).min(hosts.len())];
    let widths = ValueWidths::of(hosts.iter().copied().filter_map(|host| app.host_summary(host)));
    let name_columns = hosts.iter().map(|host| columns(host.name())).max().unwrap_or(0) as u16;
    let context = PaneContext { app, layout, widths, name_columns, now };
    for (index, host) in shown.iter().enumerate() {
        let area = areas::pane(area, &layout, index);
        let focused = app.screen().focus() == Focus::Panes && app.screen().host == host.id.0 as usize;
        if let Some(summary) = app.host_summary(host) {
            pane::draw(canvas, area, &context, host, summary, focused);
        }
    }
    if layout.overflows() {
        let y = area.y + layout.visible_rows * layout.pane_rows;
        let hidden = HiddenCounts { before: first, after: hosts.len() - first - shown.len() };
        draw_more_hosts(canvas, Rect { y, height: 1, ..area }, app, &layout, &hidden, now);
    }
}

/// The hosts that are neither hidden nor ruled out, in their order.
fn visible_hosts(app: &App) -> Vec<&Host> {
    let all = app.fleet().hosts();
    app.visible_hosts().iter().filter_map(|index| all.get(*index)).collect()
}

/// How many hosts lie outside the screen.
struct HiddenCounts {
    before: usize,
    after: usize,
}

/// `3 more hosts above, 40 below, 2 of them not well`: no host is lost silently.
fn draw_more_hosts(
    canvas: &mut Canvas<'_>,
    line: Rect,
    app: &App,
    layout: &GridLayout,
    hidden: &HiddenCounts,
    now: Moment,
) {
    let hosts = visible_hosts(app);
    let shown = layout.visible_panes().min(hosts.len() - hidden.before);
    let without_data = hosts
        .iter()
        .enumerate()
        .filter(|(index, _)| *index < hidden.before || *index >= hidden.before + shown)
        .filter(|(_, host)| {
            app.host_summary(host).is_some_and(|summary| host_state::status_text(app, host, summary, now).is_some())
        })
        .count();
    let counts_text = match (hidden.before, hidden.after) {
        (0, after) => short!("{} {after} more host{}", canvas.theme.glyphs.down, plural(after)),
        (before, 0) => short!("{} {before} more host{} above", canvas.theme.glyphs.up, plural(before)),
        (before, after) => {
            short!(
                "{} {before} more host{} above, {} {after} below",
                canvas.theme.glyphs.up,
                plural(before),
                canvas.theme.glyphs.down
            )
        }
    };
    let used = canvas.fit(line.x + 1, line.y, line.width.saturating_sub(1), &counts_text, canvas.theme.dim);
    if without_data > 0 {
        let available = line.width.saturating_sub(used + 1);
        canvas.fit(line.x + 1 + used, line.y, available, &short!(", {without_data} without data"), canvas.theme.warn);
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
