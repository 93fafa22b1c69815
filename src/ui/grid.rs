//! The grid of host panes. A pane shows the GPUs of one host, or the reason why it has no data ([`host_state`]).
//!
//!
//! ```text
//! ┏━ ▸hgx-04 ━━ 5 busy  2 hung?  1 free   590/640G ━┓
//! ┃0 ━━━━━━━━━━╸  95% 74/80G 76° 656/700W erika     ┃
//! ┗━ cpu 3%  ram 201/1007G ━━━━━━━━━━━ load 2/112 ━┛
//! ```

use super::canvas::{Canvas, Segments};
use super::format::{columns, gib, plural, rounded, short};
use super::gpu_line::{GpuColumns, ValueWidths};
use super::{areas, gpu_line, host_state};
use crate::app::layout::{GridLayout, PaneFrame, ScreenLayout};
use crate::app::{App, Focus, HostSummary};
use crate::diagnosis::Severity;
use crate::fleet::{GpuState, Host, Link, Moment, Totals};
use crate::wire::ReadingSource;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Draws the visible panes.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &App, screen_layout: &ScreenLayout, now: Moment) {
    let Some(layout) = screen_layout.grid else { return };
    let hosts = visible_hosts(app);
    if hosts.is_empty() {
        let text =
            if app.fleet().hosts().is_empty() { "no hosts" } else { "no host matches the filter; Esc shows all" };
        canvas.fit(area.x + 1, area.y, area.width.saturating_sub(2), text, canvas.theme.dim);
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
            draw_pane(canvas, area, &context, host, summary, focused);
        }
    }
    if layout.overflows() {
        let y = area.y + layout.visible_rows * layout.pane_rows;
        let hidden = HiddenCounts { before: first, after: hosts.len() - first - shown.len() };
        draw_more_hosts(canvas, Rect { y, height: 1, ..area }, app, &layout, &hidden, now);
    }
}

/// Returns the hosts that are neither hidden nor filtered out.
fn visible_hosts(app: &App) -> Vec<&Host> {
    let all = app.fleet().hosts();
    app.visible_hosts().iter().filter_map(|index| all.get(*index)).collect()
}

/// The number of hosts above and below the visible panes.
struct HiddenCounts {
    before: usize,
    after: usize,
}

/// `▲ 3 more hosts above, ▼ 40 below, 2 without data`
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

/// Adds the number of GPUs per state: `37 busy  4 idle  2 hung?  5 free`. `hung` is the severity of the worst hang.
pub(super) fn add_counts(line: &mut Segments, canvas: &Canvas<'_>, totals: &Totals, hung: Option<Severity>, gap: u16) {
    let theme = canvas.theme;
    for (priority, state, word, style) in [
        (8, GpuState::InUse, "busy", theme.plain),
        (7, GpuState::Idle, "idle", theme.plain),
        (5, GpuState::Waiting, "waiting", theme.plain),
        (14, GpuState::Hung, "hung?", theme.state_style(GpuState::Hung, hung)),
        (14, GpuState::Fault, "faulty", theme.crit),
        (6, GpuState::Free, "free", theme.plain),
        (1, GpuState::Unused, "unused", theme.dim),
        (4, GpuState::Unknown, "unknown", theme.dim),
    ] {
        let count = totals.in_state(state);
        if count > 0 {
            line.add(priority, gap, short!("{count} {word}"), style);
        }
    }
}

/// Values that all panes of a grid share.
pub(super) struct PaneContext<'a> {
    pub(super) app: &'a App,
    pub(super) layout: GridLayout,
    pub(super) widths: ValueWidths,
    /// Columns of the longest host name.
    pub(super) name_columns: u16,
    /// The time that the frame shows.
    pub(super) now: Moment,
}

/// Draws the pane of a host.
pub(super) fn draw_pane(
    canvas: &mut Canvas<'_>,
    area: Rect,
    context: &PaneContext<'_>,
    host: &Host,
    summary: &HostSummary,
    focused: bool,
) {
    let (app, layout, now) = (context.app, &context.layout, context.now);
    let frame_style = if focused { canvas.theme.focus } else { canvas.theme.dim };
    let glyphs = if focused { &canvas.theme.glyphs.heavy } else { &canvas.theme.glyphs.light };
    match layout.frame {
        PaneFrame::Boxed => canvas.outline(area, glyphs, frame_style),
        PaneFrame::Rule => canvas.repeat(area.x, area.y, area.width, glyphs.horizontal, frame_style),
        PaneFrame::Bare => {
            draw_host_line(canvas, area, context, host, summary, focused);
            return;
        }
    }
    draw_pane_title(canvas, area, app, host, summary, now, focused);
    if layout.frame == PaneFrame::Boxed && matches!(host.link, Link::Live | Link::Stale { .. }) {
        draw_pane_footer(canvas, Rect { y: area.bottom() - 1, height: 1, ..area }, host, summary.is_fresh);
    }
    let inner = areas::inner(area, layout.frame);
    if !host_state::shows_gpus(app, host, summary) {
        host_state::draw(canvas, inner, app, host, summary, now);
        return;
    }
    let columns = GpuColumns::of(layout.cell_columns, context.widths);
    let capacity = usize::from(inner.height) * usize::from(layout.inner_columns);
    let shown = if summary.gpus.len() > capacity { capacity.saturating_sub(1) } else { summary.gpus.len() };
    for (position, gpu) in summary.gpus.iter().enumerate().take(shown) {
        if let Some(cell) = areas::gpu_cell(inner, layout, position) {
            gpu_line::draw(canvas, cell, &columns, gpu, now);
        }
    }
    if let (true, Some(cell)) = (shown < summary.gpus.len(), areas::gpu_cell(inner, layout, shown)) {
        let more = short!("{} more GPUs", summary.gpus.len() - shown);
        canvas.fit(cell.x, cell.y, cell.width, &more, canvas.theme.dim);
    }
    if !summary.is_fresh {
        canvas.dim(inner);
    }
    host_state::draw_stale_notice(canvas, inner, layout, summary, host, now);
}

/// Draws the host name on the left, and totals or the connection state on the right.
pub(super) fn draw_pane_title(
    canvas: &mut Canvas<'_>,
    area: Rect,
    app: &App,
    host: &Host,
    summary: &HostSummary,
    now: Moment,
    focused: bool,
) {
    if area.width < 12 {
        canvas.fit_middle(area.x, area.y, area.width, host.name(), canvas.theme.plain);
        return;
    }
    let mut right = Segments::default();
    if let Some((word, style)) = host_state::status_text(app, host, summary, now) {
        right.add(9, 0, word, style);
    } else {
        add_totals(&mut right, canvas, summary);
    }
    let available = area.width - 6;
    let name_wanted = columns(host.name()).min(12) as u16 + u16::from(focused);
    right.fit(available.saturating_sub(name_wanted + 1));
    let name_style = if focused { canvas.theme.focus } else { canvas.theme.plain };
    let name_room = available.saturating_sub(right.width() + 1 + u16::from(focused));
    let start = area.x + 2;
    canvas.text(start, area.y, 1, " ", Style::new());
    let mut x = start + 1;
    if focused {
        x += canvas.text(x, area.y, 1, canvas.theme.glyphs.pointer, name_style);
    }
    let mark = app.findings().worst_severity_of_host(host.id);
    let mark_room = u16::from(app.is_pinned(host.name())) + if mark.is_some() { 2 } else { 0 };
    x += canvas.fit_middle(x, area.y, name_room.saturating_sub(mark_room), host.name(), name_style);
    if app.is_pinned(host.name()) {
        x += canvas.text(x, area.y, 1, "*", canvas.theme.dim);
    }
    if let Some(severity) = mark {
        canvas.text(x, area.y, 1, " ", Style::new());
        x += 1 + canvas.text(x + 1, area.y, 1, "!", canvas.theme.severity_style(severity));
    }
    canvas.text(x, area.y, 1, " ", Style::new());
    canvas.edge(area, area.y, &Segments::default(), &right);
}

/// Draws CPU and memory on the left and the load on the right.
fn draw_pane_footer(canvas: &mut Canvas<'_>, line: Rect, host: &Host, is_fresh: bool) {
    let Some(snapshot) = host.snapshot.as_ref().filter(|_| line.width >= 16) else { return };
    let reading = &snapshot.host;
    let style = if is_fresh { canvas.theme.plain } else { canvas.theme.dim };
    let mut left = Segments::default();
    // Without a probe some values are missing: name the source.
    let source = host.hello.as_ref().and_then(|hello| hello.source.as_ref());
    if let Some(source) = source.filter(|source| **source != ReadingSource::Probe) {
        left.add(4, 0, short!("via {}", source.as_str()), canvas.theme.warn);
    }
    if let Some(cpu) = reading.cpu_percent {
        left.add(3, 1, short!("cpu {}%", rounded(cpu)), style);
    }
    if let (Some(used), Some(total)) = (reading.memory_used_bytes(), reading.memory_total_bytes) {
        left.add(2, 1, short!("ram {}/{}G", gib(used), gib(total)), style);
    }
    let mut right = Segments::default();
    let cpus = host.hello.as_ref().and_then(|hello| hello.cpu_count);
    match (reading.load_1, cpus) {
        (Some(load), Some(cpus)) => right.add(1, 0, short!("load {}/{cpus}", rounded(load)), style),
        (Some(load), None) => right.add(1, 0, short!("load {}", rounded(load)), style),
        (None, _) => {}
    }
    let available = line.width - 6;
    left.fit(available);
    right.fit(available.saturating_sub(left.width() + 2));
    canvas.edge(line, line.y, &left, &right);
}

/// Draws a host in one line: `▸hgx-04  ▇▇▇▇??▇▇  6 busy 2 hung?   590/640G`.
fn draw_host_line(
    canvas: &mut Canvas<'_>,
    line: Rect,
    context: &PaneContext<'_>,
    host: &Host,
    summary: &HostSummary,
    focused: bool,
) {
    let theme = canvas.theme;
    let style = if focused { theme.focus } else { theme.plain };
    if focused {
        canvas.text(line.x, line.y, 1, theme.glyphs.pointer, style);
    }
    let name_width = context.name_columns.clamp(6, 12).min(line.width.saturating_sub(2));
    canvas.fit_middle(line.x + 1, line.y, name_width, host.name(), style);
    if let Some(severity) = context.app.findings().worst_severity_of_host(host.id) {
        canvas.text(line.x + 1 + name_width, line.y, 1, "!", theme.severity_style(severity));
    }
    let mut x = line.x + 2 + name_width;
    let word = host_state::status_text(context.app, host, summary, context.now);
    if !summary.gpus.is_empty() && matches!(host.link, Link::Live | Link::Stale { .. }) {
        // `+8` stands for the GPUs that do not fit.
        let available = usize::from(line.right().saturating_sub(x));
        let shown = if summary.gpus.len() > available { available.saturating_sub(4) } else { summary.gpus.len() };
        for gpu in summary.gpus.iter().take(shown) {
            let (glyph, style) = match gpu.state {
                _ if gpu.reading.error.is_some() => ("!", theme.crit),
                GpuState::InUse => {
                    (theme.level_glyph(f32::from(gpu.reading.utilization_percent.unwrap_or(0))), theme.busy)
                }
                state => (theme.state_glyph(state), theme.state_style(state, gpu.severity)),
            };
            x += canvas.text(x, line.y, 1, glyph, style);
        }
        if shown < summary.gpus.len() {
            x += canvas.text(x, line.y, 4, &short!("+{}", summary.gpus.len() - shown), theme.dim);
        }
        if !summary.is_fresh {
            canvas.dim(Rect { x: line.x + 2 + name_width, width: x.saturating_sub(line.x + 2 + name_width), ..line });
        }
        x += 2;
    }
    let mut right = Segments::default();
    if let Some((word, style)) = word {
        right.add(9, 0, word, style);
        if let Some(error) = host.link.error() {
            let available = line.right().saturating_sub(x + right.width() + 2);
            right.draw(canvas, x, line.y, line.right().saturating_sub(x));
            canvas.fit(x + right.width() + 2, line.y, available, &error.message, theme.dim);
            return;
        }
    } else {
        add_totals(&mut right, canvas, summary);
    }
    let available = line.right().saturating_sub(x);
    right.fit(available);
    right.draw(canvas, x, line.y, available);
}

/// Adds the totals of a host: `6 busy 2 free  330/640G`. A mean utilisation would make a hung host look best.
fn add_totals(line: &mut Segments, canvas: &Canvas<'_>, summary: &HostSummary) {
    let totals = &summary.totals;
    add_counts(line, canvas, totals, summary.severity_in_state(GpuState::Hung), 1);
    if let (Some(used), Some(total)) = (totals.memory_used_bytes, totals.memory_total_bytes) {
        line.add(7, 2, short!("{}/{}G", gib(used), gib(total)), canvas.theme.plain);
    } else if let Some(gpu) = summary.gpus.iter().find(|gpu| gpu.is_unified) {
        line.add(7, 2, gpu_line::memory_text(gpu), canvas.theme.plain);
    }
}
