//! The grid of host panes. A pane shows the GPUs of one host, or the reason why it has no data ([`host_state`]). On a small
//! screen each host has one line.
//!
//! ```text
//! ┏━ ▸hgx-04 ━━ 5 busy  2 hung?  1 free   590/640G ━┓
//! ┃0 ━━━━━━━━━━╸  95% 74/80G 76° 656/700W erika     ┃
//! ┗━ cpu 3%  ram 201/1007G ━━━━━━━━━━━ load 2/112 ━┛
//!
//! ▸hgx-03! ? ? ▇ ▇ ▇ ▄ z ·  2 stuck?  1 free  dmitri fumi hana bob
//!  hgx-02  ▇ ▇ ▇ ▇ ▇ ▇ ▇ ▇  8 busy            erika
//! ```

use super::canvas::{Canvas, Segments};
use super::format::{ShortString, columns, gib, plural, rounded, short};
use super::gpu_line::{GpuColumns, ValueWidths};
use super::{areas, gpu_line, host_state};
use crate::app::layout::{GridLayout, NAME_MAX_COLUMNS, PaneFrame, ScreenLayout};
use crate::app::{App, Focus, GpuSummary, HostSummary};
use crate::diagnosis::Severity;
use crate::fleet::{GpuState, Host, HostUsage, Link, Moment, Totals};
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
    let line_columns = LineColumns::of(app, shown, &layout, name_columns);
    let context = PaneContext { app, layout, widths, line_columns, now };
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

/// Adds the number of GPUs per state: `37 busy  4 idle  2 hung?  1 stuck?  5 free`. A suspected GPU counts only as such.
/// `hung` is the severity of the worst hang.
pub(super) fn add_counts(
    line: &mut Segments,
    canvas: &Canvas<'_>,
    totals: &Totals,
    hung: Option<Severity>,
    suspected: u32,
    gap: u16,
) {
    let theme = canvas.theme;
    let count = |state| totals.in_state(state);
    for (priority, count, word, style) in [
        (8, count(GpuState::InUse).saturating_sub(suspected), "busy", theme.plain),
        (7, count(GpuState::Idle), "idle", theme.plain),
        (5, count(GpuState::Waiting), "waiting", theme.plain),
        (14, count(GpuState::Hung), "hung?", theme.state_style(GpuState::Hung, hung)),
        (13, suspected, "stuck?", theme.warn),
        (14, count(GpuState::Fault), "faulty", theme.crit),
        (6, count(GpuState::Free), "free", theme.plain),
        (1, count(GpuState::Unused), "unused", theme.dim),
        (4, count(GpuState::Unknown), "unknown", theme.dim),
    ] {
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
    /// The columns of hosts with one line each.
    pub(super) line_columns: LineColumns,
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
    let mut inner = areas::inner(area, layout.frame);
    if !host_state::shows_gpus(host, summary) {
        host_state::draw(canvas, inner, app, host, summary, now);
        return;
    }
    let footer = (layout.frame == PaneFrame::Boxed).then(|| Rect { y: area.bottom() - 1, height: 1, ..area });
    let is_connected = host_state::is_connected(app, host);
    if is_connected {
        if let Some(footer) = footer {
            draw_pane_footer(canvas, footer, app, host, summary.is_fresh);
        }
    } else {
        // The last values stay below the reason.
        inner = host_state::draw_reason(canvas, inner, footer, app, host, summary, now);
    }
    draw_gpus(canvas, inner, context, summary, if summary.is_fresh { now } else { host.received_at.unwrap_or(now) });
    if !summary.is_fresh {
        canvas.dim(inner);
    }
    if is_connected {
        host_state::draw_stale_notice(canvas, inner, layout, summary, host, now);
    }
}

/// Draws one GPU per cell. GPUs that do not fit share the last one: `3 more ▇ ▇ z`.
fn draw_gpus(canvas: &mut Canvas<'_>, inner: Rect, context: &PaneContext<'_>, summary: &HostSummary, now: Moment) {
    let layout = &context.layout;
    let columns = GpuColumns::of(layout.cell_columns, context.widths);
    let capacity = usize::from(inner.height) * usize::from(layout.inner_columns);
    let count = summary.gpus.len();
    let shown = if count > capacity { capacity.saturating_sub(1) } else { count };
    for (position, gpu) in summary.gpus.iter().enumerate().take(shown) {
        if let Some(cell) = areas::gpu_cell(inner, layout, position) {
            gpu_line::draw(canvas, cell, &columns, gpu, now);
        }
    }
    if let (true, Some(cell)) = (shown < count, areas::gpu_cell(inner, layout, shown)) {
        let more = if capacity > 1 { short!("{} more", count - shown) } else { short!("{count} GPUs") };
        let used = canvas.fit(cell.x, cell.y, cell.width, &more, canvas.theme.dim) + 1;
        draw_cells(canvas, cell.x + used, cell.y, cell.width.saturating_sub(used), &summary.gpus[shown..], 2);
    }
}

/// Draws one glyph per GPU, `step` columns apart, and the number of those that do not fit: `▇ ▇ z +8`. Returns the number
/// of columns used.
fn draw_cells(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, gpus: &[GpuSummary], step: u16) -> u16 {
    let room = |width: u16| usize::from(width.div_ceil(step));
    let shown = if gpus.len() > room(width) { room(width.saturating_sub(4)) } else { gpus.len() };
    let mut used = 0;
    for gpu in &gpus[..shown] {
        let (glyph, style) = gpu_line::cell(canvas.theme, gpu);
        canvas.text(x + used, y, 1, glyph, style);
        used += step;
    }
    if shown < gpus.len() {
        used +=
            canvas.text(x + used, y, width.saturating_sub(used), &short!("+{}", gpus.len() - shown), canvas.theme.dim);
    }
    used
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
    let mark = app.findings().worst_severity_of_host(host.id);
    let mark_room = u16::from(app.is_pinned(host.name())) + if mark.is_some() { 2 } else { 0 };
    // The name is whole; memory and counts get the rest.
    let name_wanted = columns(host.name()) as u16 + u16::from(focused) + mark_room;
    right.fit(available.saturating_sub(name_wanted + 1));
    let name_style = if focused { canvas.theme.focus } else { canvas.theme.plain };
    let name_room = available.saturating_sub(right.width() + 1 + u16::from(focused));
    let start = area.x + 2;
    canvas.text(start, area.y, 1, " ", Style::new());
    let mut x = start + 1;
    if focused {
        x += canvas.text(x, area.y, 1, canvas.theme.glyphs.pointer, name_style);
    }
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
fn draw_pane_footer(canvas: &mut Canvas<'_>, line: Rect, app: &App, host: &Host, is_fresh: bool) {
    let Some(snapshot) = host.snapshot.as_ref().filter(|_| line.width >= 16) else { return };
    let reading = &snapshot.host;
    let style = if is_fresh { canvas.theme.plain } else { canvas.theme.dim };
    let mut left = Segments::default();
    // Without a probe some values are missing: name the source.
    let source = host.hello.as_ref().and_then(|hello| hello.source.as_ref());
    if let Some(source) = source.filter(|source| **source != ReadingSource::Probe) {
        left.add(4, 0, short!("via {}", source.as_str()), canvas.theme.warn);
    }
    if host.config.is_simulated && !app.fleet().simulated {
        left.add(4, 1, short!("SIMULATED"), canvas.theme.warn);
    }
    // The header names a collector that relays all hosts.
    if let Some(collector) = host.config.relayed_by.as_ref().filter(|_| app.relaying_collector().is_none()) {
        left.add(0, 1, short!("via {collector}"), canvas.theme.dim);
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

/// The columns of hosts with one line each, the same for all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineColumns {
    name: u16,
    /// The highest number of GPUs of a host.
    gpus: u16,
    /// Columns from one cell to the next: 2 with a gap.
    step: u16,
    /// Columns of the counts of GPUs per state.
    counts: u16,
}

/// The most columns of the counts of a host: more would leave no room for its users.
const COUNTS_MAX_COLUMNS: u16 = 18;
/// The fewest columns of the list of users.
const USERS_MIN_COLUMNS: u16 = 6;

impl LineColumns {
    /// `hosts` are the visible ones.
    fn of(app: &App, hosts: &[&Host], layout: &GridLayout, longest_name: u16) -> Self {
        let width = layout.cell_columns;
        let summaries = || hosts.iter().filter_map(|host| app.host_summary(host));
        let gpus = summaries().map(|summary| summary.gpus.len()).max().unwrap_or(0) as u16;
        let name = longest_name.clamp(4, NAME_MAX_COLUMNS).min(width.saturating_sub(4));
        let rest = width.saturating_sub(name + 3);
        let step = if rest >= (2 * gpus).saturating_add(COUNTS_MAX_COLUMNS) { 2 } else { 1 };
        let wanted = if layout.frame == PaneFrame::Bare {
            summaries().map(|summary| line_counts(summary).iter().map(|(_, text)| text.len() as u16 + 2).sum()).max()
        } else {
            None
        };
        let counts = wanted.unwrap_or(0).saturating_sub(2).min(COUNTS_MAX_COLUMNS);
        Self { name, gpus, step, counts }
    }

    /// Columns of the cells with the gap after them.
    fn cells(self) -> u16 {
        self.gpus.saturating_mul(self.step).saturating_sub(self.step - 1).saturating_add(2)
    }
}

/// The counts in the line of a host, what needs attention first.
fn line_counts(summary: &HostSummary) -> Vec<(LineCount, ShortString)> {
    let (totals, suspected) = (&summary.totals, summary.suspected_count());
    let in_state = |state| totals.in_state(state);
    let counts = [
        (LineCount::Critical, in_state(GpuState::Fault), "faulty"),
        (LineCount::Critical, in_state(GpuState::Hung), "hung?"),
        (LineCount::Suspected, suspected, "stuck?"),
        (LineCount::Free, in_state(GpuState::Free), "free"),
        (LineCount::Other, in_state(GpuState::InUse).saturating_sub(suspected), "busy"),
        (LineCount::Other, in_state(GpuState::Idle), "idle"),
        (LineCount::Other, in_state(GpuState::Waiting), "waiting"),
        (LineCount::Other, in_state(GpuState::Unused), "unused"),
    ];
    counts
        .into_iter()
        .filter(|(_, count, _)| *count > 0)
        .map(|(kind, count, word)| (kind, short!("{count} {word}")))
        .collect()
}

/// The kinds of counts in the line of a host, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LineCount {
    Critical,
    Suspected,
    Free,
    Other,
}

/// Draws a host in one line: `▸hgx-03! ? ? ▇ ▇ ▇ ▄ z ·  2 stuck?  1 free  dmitri fumi hana bob`.
fn draw_host_line(
    canvas: &mut Canvas<'_>,
    line: Rect,
    context: &PaneContext<'_>,
    host: &Host,
    summary: &HostSummary,
    focused: bool,
) {
    let (theme, columns, end) = (canvas.theme, context.line_columns, line.right());
    let style = if focused { theme.focus } else { theme.plain };
    if focused {
        canvas.text(line.x, line.y, 1, theme.glyphs.pointer, style);
    }
    canvas.fit_middle(line.x + 1, line.y, columns.name, host.name(), style);
    let status = host_state::status_text(context.app, host, summary, context.now);
    if let (Some((_, style)), false) = (&status, host_state::is_connected(context.app, host)) {
        let glyph = if matches!(host.link, Link::Down { .. }) { "x" } else { "~" };
        canvas.text(line.x + 1 + columns.name, line.y, 1, glyph, *style);
    } else if let Some(severity) = context.app.findings().worst_severity_of_host(host.id) {
        canvas.text(line.x + 1 + columns.name, line.y, 1, "!", theme.severity_style(severity));
    } else if context.app.is_pinned(host.name()) {
        canvas.text(line.x + 1 + columns.name, line.y, 1, "*", theme.dim);
    }
    let mut x = line.x + 3 + columns.name;
    if host_state::shows_gpus(host, summary) {
        // The state of the host is more important than its last GPUs.
        let state = status.as_ref().map_or(0, |(word, _)| super::format::columns(word) as u16 + 2);
        let used = draw_cells(canvas, x, line.y, end.saturating_sub(x + state), &summary.gpus, columns.step);
        if !summary.is_fresh {
            canvas.dim(Rect { x, width: used, ..line });
        }
        let wanted = columns.cells().max(used + 1);
        x += if x + wanted + state > end { used + 1 } else { wanted };
    }
    if let Some((word, style)) = status {
        x += canvas.text(x, line.y, end.saturating_sub(x), &word, style) + 2;
        let driver_error = || host_state::driver_error(host).map(|error| &error.message);
        if let Some(reason) = host.link.error().map(|error| &error.message).or_else(driver_error) {
            x += canvas.fit(x, line.y, end.saturating_sub(x), reason, theme.dim) + 2;
        }
        if host_state::is_connected(context.app, host) {
            return;
        }
        let mut next = Segments::default();
        host_state::add_next_attempt(&mut next, canvas, context.app, host, context.now);
        next.fit(end.saturating_sub(x));
        next.draw_right(canvas, x, line.y, end.saturating_sub(x));
        return;
    }
    let mut counts = Segments::default();
    for (kind, text) in line_counts(summary) {
        let (priority, style) = match kind {
            LineCount::Critical => (9, theme.crit),
            LineCount::Suspected => (8, theme.warn),
            LineCount::Free => (6, theme.plain),
            LineCount::Other => (5, theme.plain),
        };
        counts.add(priority, 2, text, style);
    }
    let room = end.saturating_sub(x);
    counts.fit(if room >= columns.counts + 2 + USERS_MIN_COLUMNS { columns.counts } else { room });
    counts.draw(canvas, x, line.y, room);
    x += columns.counts + 2;
    if end >= x + USERS_MIN_COLUMNS {
        draw_users(canvas, Rect { x, width: end - x, ..line }, summary);
    }
}

/// Draws the users of a host, those with the most GPUs first: `erika dmitri +2`.
fn draw_users(canvas: &mut Canvas<'_>, area: Rect, summary: &HostSummary) {
    let mut users: Vec<&HostUsage> = summary.users.users.iter().collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.gpus));
    let mut x = area.x;
    for (index, user) in users.iter().enumerate() {
        let others = short!("+{}", users.len() - index);
        // The last name needs no room for the number of others.
        let reserve = if index + 1 < users.len() { others.len() as u16 + 1 } else { 0 };
        if index > 0 && columns(&user.who) + usize::from(reserve) > usize::from(area.right().saturating_sub(x)) {
            canvas.text(x, area.y, area.right().saturating_sub(x), &others, canvas.theme.dim);
            return;
        }
        x += canvas.fit(x, area.y, area.right().saturating_sub(x + reserve), &user.who, canvas.theme.plain) + 1;
    }
}

/// Adds the totals of a host: `6 busy 2 free  330/640G`. A mean utilisation would make a hung host look best. Memory is
/// dropped first.
fn add_totals(line: &mut Segments, canvas: &Canvas<'_>, summary: &HostSummary) {
    let totals = &summary.totals;
    let hung = summary.severity_in_state(GpuState::Hung);
    add_counts(line, canvas, totals, hung, summary.suspected_count(), 1);
    if let (Some(used), Some(total)) = (totals.memory_used_bytes, totals.memory_total_bytes) {
        line.add(0, 2, short!("{}/{}G", gib(used), gib(total)), canvas.theme.plain);
    } else if let Some(gpu) = summary.gpus.iter().find(|gpu| gpu.is_unified) {
        line.add(0, 2, gpu_line::memory_text(gpu), canvas.theme.plain);
    }
}
