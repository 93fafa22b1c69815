//! The wall: one cell per GPU, and below it the selected GPU, the free GPUs and the findings.
//!
//! ```text
//! ─ rack A ────────────── 9 free ─ ─ rack B ────────────────────────
//! ▸n001   ▇ ▇ ? ? · z ▇ ▆  2 hung?  n017  x DOWN 4m
//!  n002 ! ▇ ▇ ▇ ▇ ▇ ▇ ▇ ▇           n018  k NEEDS YOU  P
//!  GPU ▁ ▂ ▃ ▄ ▅ ▆ ▇  · free  z idle  ? hung?  ! fault  ~ no data  x down  k p need you
//! ╭─ n001 GPU 2 ─────────── rack A ─╮╭─ Free now ───────────── 12 GPUs on 5 hosts ─╮
//! ```

use super::canvas::{Canvas, LineWriter, Segments};
use super::findings::{glyph, title_text};
use super::format::{brief_span, columns, gib, memory, or_dash, plural, rounded, short, shorten_host_name};
use super::gpu::add_occupancy;
use super::gpu_line::{GpuColumns, ValueWidths};
use super::{gpu, gpu_line, host_state};
use crate::app::wall::{LEGEND_ROWS, WallLayout, WallLine};
use crate::app::{App, GpuSummary, HostSummary, Metric};
use crate::diagnosis::Severity;
use crate::fleet::{FreeHost, GpuState, Host, HostId, Link, Moment, gpu_list};
use crate::ssh::prompt::PromptKind;
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;

/// From this width on the panels are side by side.
const TWO_PANELS_COLUMNS: u16 = 76;

/// Draws the view.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let (lines, layout) = (app.wall_lines(), app.wall_layout((body.width, body.height + 2)));
    let mut cursor = app.screen().wall;
    // The frame may already have another size than the last resize event.
    cursor.show(&lines, &layout);
    if lines.is_empty() {
        canvas.fit(body.x + 1, body.y, body.width.saturating_sub(2), "no hosts", canvas.theme.dim);
        return;
    }
    let shown = &lines[cursor.top.min(lines.len())..(cursor.top + layout.capacity()).min(lines.len())];
    for (index, line) in shown.iter().enumerate() {
        let (column, row) = ((index / usize::from(layout.rows)) as u16, (index % usize::from(layout.rows)) as u16);
        let area = Rect { x: body.x + column * layout.columns, y: body.y + row, width: layout.columns - 1, height: 1 };
        match *line {
            WallLine::Heading(host) => heading(canvas, area, app, host),
            WallLine::Host(host) => draw_host_line(canvas, area, app, host, &layout, cursor.host == host, now),
        }
    }
    let y = body.y + layout.rows;
    let hosts = |lines: &[WallLine]| lines.iter().filter(|line| matches!(line, WallLine::Host(_))).count();
    let (before, after) = (hosts(&lines[..cursor.top]), hosts(&lines[(cursor.top + shown.len()).min(lines.len())..]));
    draw_legend(canvas, Rect { y, height: LEGEND_ROWS, ..body }, app, before, after);
    if layout.panel_rows > 0 {
        let panels = Rect { y: y + LEGEND_ROWS, height: layout.panel_rows, ..body };
        let left = if body.width >= TWO_PANELS_COLUMNS { body.width / 2 } else { body.width };
        draw_selected(canvas, Rect { width: left, ..panels }, app, now);
        if left < body.width {
            draw_free_and_findings(canvas, Rect { x: panels.x + left, width: body.width - left, ..panels }, app, now);
        }
    }
}

/// Draws the name of a host group with its numbers of free and of faulty or hung GPUs.
fn heading(canvas: &mut Canvas<'_>, area: Rect, app: &App, host: usize) {
    let theme = canvas.theme;
    let hosts = app.fleet().hosts();
    let group = hosts.get(host).and_then(|host| host.config.group.as_ref());
    canvas.repeat(area.x, area.y, area.width, theme.glyphs.light.horizontal, theme.dim);
    let members = hosts.iter().filter(|host| host.config.group.as_ref() == group);
    let mut right = Segments::default();
    let (mut free, mut bad, mut worst) = (0, 0, None);
    for summary in members.filter_map(|host| app.host_summary(host)).filter(|summary| summary.totals.hosts_covered > 0)
    {
        free += summary.totals.in_state(GpuState::Free);
        for state in [GpuState::Hung, GpuState::Fault].into_iter().filter(|state| summary.totals.in_state(*state) > 0) {
            bad += summary.totals.in_state(state);
            worst = worst.max(Some(state_severity(summary, state)));
        }
    }
    right.add(9, 0, short!(" "), theme.plain);
    if bad > 0 {
        right.add(8, 0, short!("{bad} bad "), worst.map_or(theme.plain, |worst| theme.severity_style(worst)));
    }
    right.add(7, 0, short!("{free} free "), theme.plain);
    let name = group.map_or_else(|| short!(" no group "), |group| short!(" {group} "));
    let used = canvas.fit(area.x + 1, area.y, area.width.saturating_sub(2), &name, theme.plain);
    let available = area.width.saturating_sub(used + 3);
    right.fit(available);
    if right.width() > 2 {
        right.draw_right(canvas, area.x + used + 2, area.y, available);
    }
}

fn draw_host_line(
    canvas: &mut Canvas<'_>,
    area: Rect,
    app: &App,
    index: usize,
    layout: &WallLayout,
    is_current: bool,
    now: Moment,
) {
    let theme = canvas.theme;
    let hosts = app.fleet().hosts();
    let Some((host, summary)) = hosts.get(index).and_then(|host| Some((host, app.host_summary(host)?))) else { return };
    let style = if is_current { theme.focus } else { theme.plain };
    if is_current {
        canvas.text(area.x, area.y, 1, theme.glyphs.pointer, theme.focus);
    }
    canvas.fit_middle(area.x + 1, area.y, layout.name, host.name(), style);
    let shows_gpus = host_state::shows_gpus(host, summary);
    if shows_gpus && !host_state::is_connected(app, host) {
        // The cells show the last values, and the status may have no room.
        let (glyph, style) = link_glyph(canvas, app, host);
        canvas.text(area.x + 1 + layout.name, area.y, 1, glyph, style);
    } else if let Some(severity) = app.findings().worst_severity_of_host(host.id) {
        canvas.text(area.x + 1 + layout.name, area.y, 1, "!", theme.severity_style(severity));
    }
    let x = area.x + 3 + layout.name;
    let available = area.right().saturating_sub(x);
    if !shows_gpus {
        let (glyph, style) = link_glyph(canvas, app, host);
        canvas.text(x, area.y, available.min(1), glyph, style);
        let word = host_state::status_text(app, host, summary, now).map(|(word, _)| word).unwrap_or_default();
        canvas.fit(x + 2, area.y, available.saturating_sub(2), &word, style);
        return;
    }
    let step = if layout.is_spaced { 2 } else { 1 };
    let shown = summary.gpus.len().min(usize::from(layout.cells));
    for (position, gpu) in summary.gpus.iter().enumerate().take(shown) {
        let (glyph, style) = cell(canvas, gpu, app.screen().metric);
        let at = x + position as u16 * step;
        let is_selected = is_current && position == app.screen().wall.gpu;
        canvas.text(
            at,
            area.y,
            1,
            glyph,
            if is_selected && !layout.is_spaced { style.patch(theme.selected) } else { style },
        );
        if is_selected && layout.is_spaced {
            canvas.text(at - 1, area.y, 1, "[", theme.focus);
            canvas.text(at + 1, area.y, 1, "]", theme.focus);
        }
    }
    if !summary.is_fresh {
        canvas.dim(Rect { x, width: shown as u16 * step, ..area });
    }
    let after = x + (shown as u16 * step).saturating_sub(step - 1) + 1;
    let mut note = Segments::default();
    if shown < summary.gpus.len() {
        note.add(9, 0, short!("+{}", summary.gpus.len() - shown), theme.dim);
    }
    if layout.status_columns > 0 {
        add_status(canvas, app, host, summary, now, &mut note);
    }
    note.fit(area.right().saturating_sub(after));
    note.draw(canvas, after, area.y, area.right().saturating_sub(after));
}

/// Returns the severity of the faulty or hung GPUs of a host.
fn state_severity(summary: &HostSummary, state: GpuState) -> Severity {
    let default = if state == GpuState::Fault { Severity::Crit } else { Severity::Warn };
    summary.severity_in_state(state).unwrap_or(default)
}

/// Adds the state of a host: its connection if it is not healthy, else faulty, hung or free GPUs.
fn add_status(canvas: &Canvas<'_>, app: &App, host: &Host, summary: &HostSummary, now: Moment, line: &mut Segments) {
    let theme = canvas.theme;
    if let Some((word, style)) = host_state::status_text(app, host, summary, now) {
        line.add(8, 1, word, style);
        return;
    }
    let style = |state| theme.severity_style(state_severity(summary, state));
    let count = |state| summary.totals.in_state(state);
    for (count, word, style) in [
        (count(GpuState::Fault), "faulty", style(GpuState::Fault)),
        (count(GpuState::Hung), "hung?", style(GpuState::Hung)),
        (summary.suspected_count(), "stuck?", theme.warn),
        (count(GpuState::Free), "free", theme.dim),
    ] {
        if count > 0 {
            line.add(7, 1, short!("{count} {word}"), style);
            return;
        }
    }
}

/// Returns glyph and style of a GPU: a height and a colour for work, else the glyph of its state.
fn cell(canvas: &Canvas<'_>, gpu: &GpuSummary, metric: Metric) -> (&'static str, Style) {
    let theme = canvas.theme;
    let (state, _) = gpu_line::shown_state(gpu);
    let is_ramp = match state {
        _ if gpu.reading.error.is_some() => return ("!", theme.crit),
        _ if gpu.suspected().is_some() => return ("?", theme.warn),
        // A stale GPU still shows its last reading, dim.
        GpuState::InUse | GpuState::Unknown => true,
        GpuState::Idle | GpuState::Waiting | GpuState::Unused => metric != Metric::Utilization,
        GpuState::Fault | GpuState::Hung | GpuState::Free => false,
    };
    match metric.share_of(gpu).filter(|_| is_ramp) {
        Some(share) => (theme.level_glyph(share), theme.ramp[((share / 20.0) as usize).min(4)]),
        None => (theme.state_glyph(state), theme.state_style(state, gpu.severity)),
    }
}

/// Returns the glyph of a host without GPU data.
fn link_glyph(canvas: &Canvas<'_>, app: &App, host: &Host) -> (&'static str, Style) {
    let theme = canvas.theme;
    if let Some(prompt) = app.prompts().of_host(host.name()) {
        return (if matches!(prompt.kind, PromptKind::HostKey { .. }) { "k" } else { "p" }, theme.warn);
    }
    match host.link {
        Link::Down { .. } if host.link.is_refused() => ("-", theme.dim),
        Link::Down { .. } => ("x", theme.warn),
        Link::NeedsUser { .. } => ("p", theme.warn),
        Link::Live if host_state::driver_error(host).is_some() => ("!", theme.warn),
        Link::Connecting { .. } | Link::Stale { .. } | Link::Live => ("~", theme.dim),
    }
}

fn draw_legend(canvas: &mut Canvas<'_>, line: Rect, app: &App, before: usize, after: usize) {
    let theme = canvas.theme;
    let mut segments = Segments::default();
    let plural = plural(before + after);
    match (before, after) {
        (0, 0) => {}
        (0, after) => segments.add(20, 0, short!("{} {after} more host{plural}", theme.glyphs.down), theme.plain),
        (before, 0) => segments.add(20, 0, short!("{} {before} more host{plural}", theme.glyphs.up), theme.plain),
        (before, after) => segments.add(
            20,
            0,
            short!("{} {before} {} {after} more hosts", theme.glyphs.up, theme.glyphs.down),
            theme.plain,
        ),
    }
    segments.add(15, 3, short!("{}", app.screen().metric.word()), theme.focus);
    for (index, glyph) in [0, 2, 4, 6, 7].into_iter().map(|level| theme.glyphs.levels[level]).enumerate() {
        segments.add(14, u16::from(index == 0), short!("{glyph}"), theme.ramp[index]);
    }
    for (priority, glyph, word, style) in [
        (9, theme.glyphs.free, "free", theme.dim),
        (9, "z", "idle", theme.dim),
        (4, "w", "waiting", theme.dim),
        (3, "-", "unused", theme.dim),
        (12, "?", "hung?", theme.state_style(GpuState::Hung, None)),
        (5, "?", "stuck?", theme.warn),
        (12, "!", "fault", theme.crit),
        (6, "~", "no data", theme.dim),
        (8, "x", "down", theme.warn),
        (8, "k p", "need you", theme.warn),
    ] {
        segments.add(priority, 2, short!("{glyph}"), style);
        segments.add(priority, 1, short!("{word}"), theme.dim);
    }
    segments.fit(line.width.saturating_sub(2));
    segments.draw(canvas, line.x + 1, line.y, line.width.saturating_sub(2));
}

/// Draws the panel of the selected host and GPU.
fn draw_selected(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    let theme = canvas.theme;
    let cursor = app.screen().wall;
    let host = app.fleet().host(HostId(cursor.host as u32));
    let Some((host, summary)) = host.and_then(|host| Some((host, app.host_summary(host)?))) else { return };
    canvas.outline(area, &theme.glyphs.light, theme.dim);
    let gpu = summary.gpus.get(cursor.gpu).filter(|_| host_state::shows_gpus(host, summary));
    let mut title = Segments::default();
    title.add(9, 0, short!(" {}{}", theme.glyphs.pointer, shorten_host_name(host.name()).as_str()), theme.focus);
    if let Some(gpu) = gpu {
        title.add(8, 1, gpu_line::name(gpu), theme.focus);
    }
    title.add(10, 0, short!(" "), theme.plain);
    title.fit(area.width.saturating_sub(4));
    title.draw(canvas, area.x + 1, area.y, area.width.saturating_sub(4));
    let group = host.config.group.as_ref().map(|group| short!(" {group} "));
    if let Some(group) = group.filter(|group| columns(group) + usize::from(title.width()) + 6 < usize::from(area.width))
    {
        canvas.right(area.x + 2, area.y, area.width - 4, &group, theme.plain);
    }
    let inner = area.inner(Margin::new(1, 1));
    let Some(gpu) = gpu else {
        host_state::draw(canvas, inner, app, host, summary, now);
        return;
    };
    let mut text = about(canvas, app, host, gpu, cursor.gpu, now);
    let least = text.len() as u16;
    text.extend(gpu::reading_lines(canvas, host, gpu, cursor.gpu));
    // The GPUs come first, then a summary of the selected one, and all its readings if they fit.
    let shown = summary.gpus.len().min(usize::from(inner.height.saturating_sub(least).max(1)));
    let widths = ValueWidths::of(std::iter::once(summary));
    let columns = GpuColumns::of(inner.width.saturating_sub(1), widths);
    let top = (cursor.gpu + 1).saturating_sub(shown);
    let now = if summary.is_fresh { now } else { host.received_at.unwrap_or(now) };
    for (row, (position, gpu)) in summary.gpus.iter().enumerate().skip(top).take(shown).enumerate() {
        let line = Rect { x: inner.x + 1, y: inner.y + row as u16, width: inner.width.saturating_sub(1), height: 1 };
        gpu_line::draw(canvas, line, &columns, gpu, now);
        if position == cursor.gpu {
            canvas.text(inner.x, line.y, 1, theme.glyphs.pointer, theme.focus);
        }
    }
    if !summary.is_fresh {
        canvas.dim(Rect { height: shown as u16, ..inner });
    }
    let rest = inner.height - shown as u16;
    let gap = u16::from(rest > least);
    let below = Rect { y: inner.y + shown as u16 + gap, height: rest - gap, width: inner.width - 1, x: inner.x + 1 };
    let mut writer = LineWriter::new(canvas, below);
    for line in text {
        writer.segments(line);
    }
}

/// Summarizes the selected GPU and its host, the most important first: holder, finding, host readings, note.
fn about(canvas: &Canvas<'_>, app: &App, host: &Host, gpu: &GpuSummary, position: usize, now: Moment) -> Vec<Segments> {
    let theme = canvas.theme;
    let mut lines = Vec::new();
    let mut line = Segments::default();
    add_occupancy(canvas, app, host.id, gpu, now, &mut line);
    let mut findings = app.findings().of_host(host.id);
    let about = |finding: &&crate::diagnosis::Finding| {
        finding.gpus.iter().any(|gpu| gpu.host == host.id && gpu.position == position)
    };
    if let Some(finding) = findings.find(about) {
        line.add(5, 2, short!("{}", finding.rule.word()), theme.severity_style(finding.severity));
    }
    lines.push(line);
    let mut line = Segments::default();
    if let Some(snapshot) = &host.snapshot {
        let reading = &snapshot.host;
        if let Some(cpu) = reading.cpu_percent {
            line.add(5, 0, short!("cpu {}%", rounded(cpu)), theme.dim);
        }
        if let (Some(used), Some(total)) = (reading.memory_used_bytes(), reading.memory_total_bytes) {
            line.add(4, 2, short!("ram {}/{}G", gib(used), gib(total)), theme.dim);
        }
        if let Some(load) = reading.load_1 {
            line.add(3, 2, short!("load {}", rounded(load)), theme.dim);
        }
    }
    if let Some(note) = &host.config.note {
        line.add(6, 2, short!("note: {note}"), theme.plain);
    }
    lines.push(line);
    if let Some(info) = host.gpu_info(position) {
        let mut line = Segments::default();
        for (priority, text) in [(8, &info.name), (5, &info.uuid), (4, &info.pci_bus_id)] {
            if let Some(text) = text {
                line.add(priority, 2, short!("{text}"), theme.dim);
            }
        }
        lines.push(line);
    }
    lines
}

/// Draws the free GPUs by host, and the findings below them.
fn draw_free_and_findings(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    let theme = canvas.theme;
    canvas.outline(area, &theme.glyphs.light, theme.dim);
    let mut free: Vec<(&Host, &FreeHost)> = Vec::new();
    for host in app.fleet().hosts_in_order() {
        free.extend(app.host_summary(host).and_then(|summary| Some((host, summary.free.as_ref()?))));
    }
    free.sort_by_key(|(host, free)| (std::cmp::Reverse(free.gpus.len()), host.place));
    canvas.text(area.x + 1, area.y, area.width.saturating_sub(2), " Free now ", theme.plain);
    let count = app.totals().in_state(GpuState::Free);
    let sum = short!(" {count} GPU{} on {} host{} ", plural(count as usize), free.len(), plural(free.len()));
    if usize::from(area.width) > columns(&sum) + 16 {
        canvas.right(area.x + 2, area.y, area.width - 4, &sum, theme.plain);
    }
    let inner = area.inner(Margin::new(2, 1));
    let findings: Vec<_> = app.findings().list().iter().filter(|one| one.is_alerting()).collect();
    // Findings get up to half of the rows, with their heading.
    let wanted = if findings.is_empty() { 0 } else { findings.len() as u16 + 1 };
    let finding_rows = wanted.min(inner.height / 2);
    let table = Rect { height: inner.height - finding_rows, ..inner };
    draw_free_table(canvas, table, &free);
    if finding_rows > 0 {
        let y = table.bottom();
        canvas.fit(inner.x, y, inner.width, "FINDINGS", theme.dim);
        canvas.right(inner.x, y, inner.width, &short!("5 opens all {}", findings.len()), theme.dim);
        for (row, finding) in findings.iter().take(usize::from(finding_rows) - 1).enumerate() {
            let y = y + 1 + row as u16;
            let name = finding.hosts.first().map(|(_, name)| name.as_str()).unwrap_or_default();
            let lasted = brief_span(finding.lasted(now));
            let mut x =
                inner.x + canvas.text(inner.x, y, 1, glyph(finding), theme.severity_style(finding.severity)) + 1;
            x += canvas.fit_middle(x, y, 10, name, theme.plain) + 1;
            let available = inner.right().saturating_sub(x + 5);
            canvas.fit(x, y, available, &title_text(finding), theme.plain);
            canvas.right(inner.right().saturating_sub(4), y, 4, &lasted, theme.dim);
        }
    }
}

fn draw_free_table(canvas: &mut Canvas<'_>, area: Rect, free: &[(&Host, &FreeHost)]) {
    let theme = canvas.theme;
    if area.height == 0 {
        return;
    }
    if free.is_empty() {
        canvas.fit(area.x, area.y, area.width, "no GPU is free", theme.dim);
        return;
    }
    let name = free.iter().map(|(host, _)| columns(host.name())).max().unwrap_or(0).clamp(6, 12) as u16;
    let is_wide = area.width >= 50;
    let model = if is_wide { 16 } else { 0 };
    let list = |free: &FreeHost| gpu_list(&free.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>());
    let gpus = free.iter().map(|(_, free)| columns(&list(free))).max().unwrap_or(0).clamp(3, 12) as u16;
    let has_notes = is_wide && free.iter().any(|(host, _)| host.config.note.is_some());
    let headers = [
        (name, "HOST"),
        (5, "FREE"),
        (gpus, "GPU"),
        (4, " MEM"),
        (model, "MODEL"),
        (4, " CPU"),
        (u16::from(has_notes), "NOTE"),
    ];
    let mut x = area.x;
    for (width, head) in headers.into_iter().filter(|(width, _)| *width > 0) {
        canvas.fit(x, area.y, area.right().saturating_sub(x), head, theme.dim);
        x += width + 1;
    }
    let available = usize::from(area.height - 1);
    let shown = if free.len() > available { available.saturating_sub(1) } else { free.len() };
    for (row, (host, free)) in free.iter().take(shown).enumerate() {
        let y = area.y + 1 + row as u16;
        let mut x = area.x;
        canvas.fit_middle(x, y, name, host.name(), theme.plain);
        x += name + 1;
        let all = host.gpus().filter(|(info, _)| info.mig_parent_uuid.is_none()).count();
        canvas.fit(x, y, 5, &short!("{}/{all}", free.gpus.len()), theme.plain);
        x += 6;
        canvas.fit(x, y, gpus, &list(free), theme.plain);
        x += gpus + 1;
        // Each of the GPUs has at least this much unused memory.
        let least = free.gpus.iter().map(|gpu| gpu.memory_free_bytes).min().flatten();
        canvas.right(x, y, 4.min(area.right().saturating_sub(x)), &or_dash(least.map(memory).as_deref()), theme.plain);
        x += 5;
        if is_wide {
            let name = free.gpus.first().and_then(|gpu| gpu.name.as_deref()).unwrap_or("-");
            canvas.fit(x, y, model, short_model(name), theme.plain);
            x += model + 1;
        }
        let cpu = host.snapshot.as_ref().and_then(|snapshot| snapshot.host.cpu_percent);
        let cpu = cpu.map(|cpu| short!("{}%", rounded(cpu)));
        canvas.right(x, y, 4.min(area.right().saturating_sub(x)), &or_dash(cpu.as_deref()), theme.plain);
        x += 5;
        if let (Some(note), true) = (&host.config.note, is_wide) {
            canvas.fit(x, y, area.right().saturating_sub(x), note, theme.dim);
        }
    }
    if shown < free.len() {
        let text = short!("{} more hosts with a free GPU", free.len() - shown);
        canvas.fit(area.x, area.bottom() - 1, area.width, &text, theme.dim);
    }
}

/// Shortens `NVIDIA H100 80GB HBM3` to `H100 80GB HBM3`.
fn short_model(name: &str) -> &str {
    name.trim_start_matches("NVIDIA ").trim_start_matches("GeForce ")
}
