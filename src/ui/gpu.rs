//! The view of one GPU: charts, processes, findings and all readings. Also texts about a GPU that other views share.
//!
//! ```text
//! ━ hgx-02  GPU 3  NVIDIA H100 80GB HBM3  GPU-8f3a1c2e  0000:9B:00.0 ━━━━━━━━━━━━━━━━━━━ dmitri ? hung? 18m ━
//! GPU 100%  89% to 100% in 10m                     bandwidth 0%  0% to 44% in 10m
//! 100%│▇▇▇▇▇▇▇▇▇▇▇████████████             100%│▃▃▃▃▃▃▃▃▃▃
//!    0│███████████████████████                0│██████████▁▁▁▁▁▁▁▁▁▁▁
//! ```

use super::canvas::{Canvas, LineWriter, Segments};
use super::chart::{self, AXIS_COLUMNS, Scale};
use super::format::{
    ShortString, age, brief_span, columns, gib, memory, or_dash, percent, rate, short, shorten_host_name,
    strip_directories, watts,
};
use super::gpu_line;
use super::theme::Theme;
use crate::app::{App, GpuSummary, Metric};
use crate::diagnosis::UnusedReason;
use crate::fleet::{GpuState, Host, HostId, Moment, Process, SeriesKey, program_name};
use crate::wire::{Availability, ClocksEventReasons, ComputeMode, GpuHealth, GpuInfo, RecoveryAction};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// The minimum width of a chart.
const CHART_MIN_COLUMNS: u16 = 38;
/// The minimum height of a chart with its heading.
const CHART_MIN_ROWS: u16 = 4;

/// Draws the GPU at a position of the host's inventory.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, id: HostId, position: usize, now: Moment) {
    let host = app.fleet().host(id);
    let summary = host.and_then(|host| app.host_summary(host));
    let gpu = summary.and_then(|summary| summary.gpus.get(position));
    let (Some(host), Some(summary), Some(gpu)) = (host, summary, gpu) else {
        canvas.fit(
            body.x + 1,
            body.y,
            body.width.saturating_sub(2),
            "The host no longer reports this GPU.",
            canvas.theme.plain,
        );
        return;
    };
    draw_title(canvas, body, app, host, gpu, position, now);
    let inner = Rect { y: body.y + 1, height: body.height.saturating_sub(1), ..body };
    let mut lines = reading_lines(canvas, host, gpu, position);
    if let Some(reason) = app.unused_reason(host, position) {
        let mut line = Segments::default();
        line.add(9, 0, short!("not free: {}", unused_text(reason)), canvas.theme.plain);
        lines.insert(0, line);
    }
    let findings = app
        .findings()
        .of_host(id)
        .filter(|finding| finding.gpus.iter().any(|one| one.host == id && one.position == position));
    let findings: Vec<_> = findings.take(3).collect();
    // Text gets up to two fifths of the rows and leaves at least one row of charts.
    let wanted = (lines.len() + findings.len()) as u16;
    let text = wanted.min(inner.height * 2 / 5).min(inner.height.saturating_sub(CHART_MIN_ROWS + 1));
    let charts = Rect { height: inner.height - text, ..inner };
    let cells = chart_cells(charts, Metric::ALL.len() as u16 + 1);
    for (slot, cell) in cells.iter().enumerate() {
        match metric_order(app.screen().metric).get(slot) {
            Some(metric) => draw_history(canvas, *cell, app, host, position, gpu, *metric, now),
            None => draw_holders(canvas, *cell, host, position, summary.is_fresh),
        }
    }
    if let Some(last) = cells.last() {
        for cell in cells.iter().filter(|cell| cell.bottom() == last.bottom() || cell.y == last.y) {
            let x = cell.x + AXIS_COLUMNS;
            let width = cell.width.saturating_sub(AXIS_COLUMNS + 1);
            chart::time_axis(canvas, x, charts.bottom().saturating_sub(1), width, app.screen().span);
        }
    }
    let mut y = charts.bottom();
    for finding in &findings {
        if y < body.bottom() {
            let style = canvas.theme.severity_style(finding.severity);
            let used = canvas.text(body.x + 1, y, 5, finding.severity.word(), style);
            canvas.fit(
                body.x + 2 + used,
                y,
                body.width.saturating_sub(used + 3),
                &finding.sentence,
                canvas.theme.plain,
            );
            y += 1;
        }
    }
    for mut line in lines {
        if y < body.bottom() {
            line.fit(body.width.saturating_sub(2));
            line.draw(canvas, body.x + 1, y, body.width.saturating_sub(2));
            y += 1;
        }
    }
    if !summary.is_fresh {
        canvas.dim(inner);
    }
}

fn unused_text(reason: UnusedReason) -> &'static str {
    match reason {
        UnusedReason::Reserved => "reserved in hosts.toml",
        UnusedReason::Allocated => "Slurm has allocated it to a job",
        UnusedReason::AllocationUnknown => "Slurm may have allocated it to a job",
        UnusedReason::Mig => "in MIG mode, only its instances run work",
        UnusedReason::Held => "a process holds a little memory on it",
    }
}

fn draw_title(
    canvas: &mut Canvas<'_>,
    body: Rect,
    app: &App,
    host: &Host,
    gpu: &GpuSummary,
    position: usize,
    now: Moment,
) {
    let theme = canvas.theme;
    canvas.repeat(body.x, body.y, body.width, theme.glyphs.heavy.horizontal, theme.focus);
    let mut left = Segments::default();
    left.add(20, 0, short!(" {}", shorten_host_name(host.name()).as_str()), theme.focus);
    left.add(19, 2, gpu_line::name(gpu), theme.focus);
    if let Some(info) = host.gpu_info(position) {
        for (priority, text) in [(8, &info.name), (6, &info.uuid), (5, &info.pci_bus_id)] {
            if let Some(text) = text {
                left.add(priority, 2, short!("{text}"), theme.plain);
            }
        }
    }
    left.add(21, 0, short!(" "), theme.plain);
    let mut right = Segments::default();
    right.add(20, 0, short!(" "), theme.plain);
    add_occupancy(canvas, app, host.id, gpu, now, &mut right);
    right.add(20, 0, short!(" "), theme.plain);
    let available = body.width.saturating_sub(4);
    left.fit(available);
    right.fit(available.saturating_sub(left.width() + 2));
    left.draw(canvas, body.x + 1, body.y, available);
    right.draw_right(canvas, body.x + 1, body.y, body.width.saturating_sub(2));
}

/// Divides an area into up to `wanted` chart cells: as many side by side and below each other as are large enough.
pub(super) fn chart_cells(area: Rect, wanted: u16) -> Vec<Rect> {
    let height = area.height.saturating_sub(1);
    let per_row = (area.width / CHART_MIN_COLUMNS).clamp(1, 3);
    let down = (height / CHART_MIN_ROWS).min(wanted.div_ceil(per_row)).max(1);
    let (columns, rows) = (area.width / per_row, height / down);
    (0..down * per_row)
        .map(|slot| Rect {
            x: area.x + slot % per_row * columns,
            y: area.y + slot / per_row * rows,
            width: columns,
            height: rows,
        })
        .take(usize::from(wanted))
        .collect()
}

/// Returns all metrics with the selected one first: small screens show only few.
pub(super) fn metric_order(first: Metric) -> Vec<Metric> {
    let mut metrics = vec![first];
    metrics.extend(Metric::ALL.into_iter().filter(|metric| *metric != first));
    metrics
}

#[allow(clippy::too_many_arguments, reason = "a chart has this many inputs")]
fn draw_history(
    canvas: &mut Canvas<'_>,
    cell: Rect,
    app: &App,
    host: &Host,
    position: usize,
    gpu: &GpuSummary,
    metric: Metric,
    now: Moment,
) {
    let theme = canvas.theme;
    let inner =
        Rect { y: cell.y + 1, height: cell.height.saturating_sub(1), width: cell.width.saturating_sub(1), ..cell };
    let series = SeriesKey::Gpu(position, metric.series());
    let columns = inner.width.saturating_sub(AXIS_COLUMNS);
    let points = chart::read_points(host.history(), series, columns, app.screen().span, now);
    let scale = Scale::for_gpu(canvas, metric, gpu, &points);
    let mut heading = Segments::default();
    heading.add(9, 0, short!("{}", metric.word()), theme.focus);
    heading.add(9, 1, current_value(canvas, gpu, metric), theme.plain);
    if let Some((least, most)) = chart::range(&points) {
        heading.add(3, 3, range_text(canvas, metric, least, most), theme.dim);
    } else {
        heading.add(3, 3, short!("no data"), theme.dim);
    }
    heading.fit(cell.width.saturating_sub(2));
    heading.draw(canvas, cell.x + 1, cell.y, cell.width.saturating_sub(2));
    chart::draw(canvas, inner, &points, &scale, theme.busy);
}

fn current_value(canvas: &Canvas<'_>, gpu: &GpuSummary, metric: Metric) -> ShortString {
    let reading = &gpu.reading;
    match metric {
        Metric::Utilization => percent(reading.utilization_percent),
        Metric::MemoryBusy => percent(reading.memory_utilization_percent),
        Metric::Memory => super::gpu_line::memory_text(gpu),
        Metric::Power => super::gpu_line::power(gpu, true),
        Metric::Temperature => super::gpu_line::temperature(canvas.theme, gpu),
    }
}

/// `89% to 100%`, or `steady 99%`
pub(super) fn range_text(canvas: &Canvas<'_>, metric: Metric, least: f32, most: f32) -> ShortString {
    let (least, most) = (metric_value(canvas, metric, least), metric_value(canvas, metric, most));
    if least.as_str() == most.as_str() {
        short!("steady {}", least.as_str())
    } else {
        short!("{} to {}", least.as_str(), most.as_str())
    }
}

pub(super) fn metric_value(canvas: &Canvas<'_>, metric: Metric, value: f32) -> ShortString {
    match metric {
        Metric::Utilization | Metric::MemoryBusy => short!("{value:.0}%"),
        Metric::Memory => short!("{}G", gib(value.max(0.0) as u64)),
        Metric::Power => watts(f64::from(value)),
        Metric::Temperature => short!("{value:.0}{}", canvas.theme.glyphs.degree),
    }
}

/// Draws the processes on a GPU with the memory that each holds there; a job may hold more on other GPUs.
fn draw_holders(canvas: &mut Canvas<'_>, cell: Rect, host: &Host, position: usize, is_fresh: bool) {
    let theme = canvas.theme;
    let on_gpu = |process: &&Process| process.usage_on(position).is_some();
    let bytes = |process: &Process| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
    let mut holders: Vec<&Process> = host.processes().filter(on_gpu).collect();
    holders.sort_by_key(|process| std::cmp::Reverse(bytes(process)));
    canvas.fit(cell.x + 1, cell.y, cell.width.saturating_sub(2), "held by", theme.focus);
    if holders.is_empty() {
        let text = if is_fresh { "nobody" } else { "not known: no current data" };
        canvas.fit(cell.x + 1, cell.y + 1, cell.width.saturating_sub(2), text, theme.dim);
    }
    let available = usize::from(cell.height.saturating_sub(1));
    let shown = if holders.len() > available { available.saturating_sub(1) } else { holders.len() };
    for (index, process) in holders.iter().take(shown).enumerate() {
        let y = cell.y + 1 + index as u16;
        let mut line = Segments::default();
        line.add(9, 0, short!("{}", process.info.who.as_str()), theme.plain);
        line.add(8, 1, or_dash(bytes(process).map(memory).as_deref()), theme.plain);
        line.add(7, 1, process.reading.age_seconds.map_or_else(ShortString::new, age), theme.plain);
        line.fit(cell.width.saturating_sub(2));
        let used = line.draw(canvas, cell.x + 1, y, cell.width.saturating_sub(2));
        let command = strip_directories(&process.info.command);
        let available = cell.width.saturating_sub(used + 3);
        canvas.fit(cell.x + 2 + used, y, available.min(columns(&command) as u16 + 1), &command, theme.dim);
    }
    if shown < holders.len() {
        let text = short!("{} more", holders.len() - shown);
        canvas.fit(cell.x + 1, cell.bottom().saturating_sub(1), cell.width.saturating_sub(2), &text, theme.dim);
    }
}

/// Adds user, duration and program of the job on a GPU (`erika 22h torchrun`), or the state if the GPU is not busy.
pub(super) fn add_occupancy(
    canvas: &Canvas<'_>,
    app: &App,
    id: HostId,
    gpu: &GpuSummary,
    now: Moment,
    line: &mut Segments,
) {
    let theme = canvas.theme;
    if let Some(user) = &gpu.main_user {
        line.add(6, 0, short!("{user}"), theme.plain);
        if gpu.other_users > 0 {
            line.add(6, 0, short!("+{}", gpu.other_users), theme.dim);
        }
    }
    let gap = u16::from(gpu.main_user.is_some());
    if gpu.state == GpuState::InUse && gpu.suspected().is_none() && !gpu.shows_low_power() {
        let rows = app.jobs(id).iter().map(|job| &*job.row);
        let rows = rows.filter(|row| row.ended_at.is_none() && row.gpu_indexes.contains(&gpu.index));
        let held = |row: &&crate::fleet::Row| (Some(&row.who) == gpu.main_user.as_ref(), row.gpu_memory_bytes);
        if let Some(row) = rows.max_by_key(held) {
            if let Some(seconds) = row.age_seconds {
                line.add(4, gap, age(seconds), theme.plain);
            }
            line.add(3, gap, short!("{}", program_name(&row.command)), theme.plain);
        }
        return;
    }
    let (text, style) = state_text(canvas, gpu, now);
    line.add(8, gap, text, style);
}

/// `? hung? 18m`, `? stuck? 1m 113W`, `z idle 42m`, `· free`, `low power 104W`
pub(super) fn state_text(canvas: &Canvas<'_>, gpu: &GpuSummary, now: Moment) -> (ShortString, Style) {
    let theme = canvas.theme;
    if gpu.shows_low_power() {
        return (short!("low power {}", gpu_line::power(gpu, false).as_str()), theme.warn);
    }
    if let Some(since) = gpu.suspected() {
        let (since, power) = (brief_span(now.since(since)), gpu_line::power(gpu, false));
        return (short!("? stuck? {} {}", since.as_str(), power.as_str()), theme.warn);
    }
    let (state, since) = gpu_line::shown_state(gpu);
    let glyph = theme.state_glyph(state);
    let since = match (state, since) {
        (GpuState::Hung | GpuState::Idle | GpuState::Waiting, Some(since)) => {
            short!(" {}", brief_span(now.since(since)).as_str())
        }
        _ => ShortString::new(),
    };
    (short!("{glyph} {}{}", state.word(), since.as_str()), theme.state_style(state, gpu.severity))
}

/// The reasons that limit the clocks. Only hardware and thermal reasons are coloured: idle and power cap are ordinary.
pub(super) fn clock_reasons(theme: &Theme, gpu: &GpuSummary) -> (String, Style) {
    let Some(mask) = gpu.reading.clocks_event_reasons else { return ("-".to_owned(), theme.dim) };
    let reasons = ClocksEventReasons(mask);
    let text = reasons.names().collect::<Vec<_>>().join(", ");
    let style = if reasons.is_hardware_slowdown() || reasons.is_thermal() { theme.warn } else { theme.dim };
    (text, style)
}

/// Draws the panel with all readings of a GPU.
pub(super) fn draw_detail(canvas: &mut Canvas<'_>, area: Rect, host: &Host, gpu: &GpuSummary, position: usize) {
    let Some(info) = host.gpu_info(position).filter(|_| area.height > 0) else { return };
    let theme = canvas.theme;
    canvas.repeat(area.x, area.y, area.width, theme.glyphs.light.horizontal, theme.dim);
    let mut title = Segments::default();
    title.add(9, 0, short!(" GPU {}", gpu.index), theme.plain);
    for (priority, text) in [(8, &info.name), (6, &info.uuid), (7, &info.pci_bus_id)] {
        if let Some(text) = text {
            title.add(priority, 2, short!("{text}"), theme.plain);
        }
    }
    title.add(99, 0, short!(" "), theme.plain);
    title.fit(area.width.saturating_sub(4));
    title.draw(canvas, area.x + 1, area.y, area.width.saturating_sub(2));
    let inner = Rect { x: area.x + 1, y: area.y + 1, width: area.width.saturating_sub(2), height: area.height - 1 };
    let lines = reading_lines(canvas, host, gpu, position);
    let mut writer = LineWriter::new(canvas, inner);
    for line in lines {
        writer.segments(line);
    }
}

/// Returns all readings of a GPU as lines, the most important first.
pub(super) fn reading_lines(canvas: &Canvas<'_>, host: &Host, gpu: &GpuSummary, position: usize) -> Vec<Segments> {
    let Some(info) = host.gpu_info(position) else { return Vec::new() };
    let health = host.gpu_health(position).cloned().unwrap_or_default();
    let mut lines = vec![
        temperature_and_power_line(canvas, info, gpu, host.is_energy_counter_ignored(position)),
        clocks_line(canvas, info, gpu),
        links_line(canvas, info, gpu, &health),
        errors_line(canvas, &health),
        other_line(canvas, info, gpu),
        activity_line(canvas, info, gpu),
        settings_line(canvas, info, gpu, &health),
    ];
    lines.retain(|line| line.width() > 0);
    lines
}

fn add_labelled(line: &mut Segments, canvas: &Canvas<'_>, priority: u8, label: &str, value: ShortString) {
    line.add(priority, 3, short!("{label}"), canvas.theme.dim);
    line.add_tied(1, value, canvas.theme.plain);
}

fn temperature_and_power_line(
    canvas: &Canvas<'_>,
    info: &GpuInfo,
    gpu: &GpuSummary,
    is_energy_counter_ignored: bool,
) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    add_labelled(&mut line, canvas, 9, "temperature", gpu_line::temperature(canvas.theme, gpu));
    if let (Some(slowdown), Some(shutdown)) = (info.temperature_slowdown_celsius, info.temperature_shutdown_celsius) {
        line.add(5, 1, short!("slows down at {slowdown}, shuts down at {shutdown}"), canvas.theme.dim);
    }
    if let Some(memory) = reading.memory_temperature_celsius {
        add_labelled(&mut line, canvas, 6, "memory", short!("{memory}{}", canvas.theme.glyphs.degree));
    }
    add_labelled(&mut line, canvas, 9, "power", gpu_line::power(gpu, true));
    if let (Some(_), Some(sensor)) = (reading.power_mean_watts, reading.power_watts) {
        add_labelled(&mut line, canvas, 6, "sensor", short!("{sensor:.0}W"));
    }
    if is_energy_counter_ignored {
        line.add(8, 3, short!("energy counter ignored: contradicts the sensor"), canvas.theme.warn);
    }
    if let Some(most) = info.power_limit_max_watts {
        add_labelled(&mut line, canvas, 4, "maximum limit", short!("{most:.0}W"));
    }
    if let Some(joules) = reading.energy_joules.filter(|_| !is_energy_counter_ignored) {
        add_labelled(&mut line, canvas, 5, "energy since driver start", short!("{:.1} kWh", joules / 3.6e6));
    }
    line
}

fn clocks_line(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    for (priority, name, now, most) in [
        (9, "SM clock", reading.clock_sm_mhz, info.clock_sm_max_mhz),
        (5, "graphics", reading.clock_graphics_mhz, info.clock_graphics_max_mhz),
        (7, "memory", reading.clock_memory_mhz, info.clock_memory_max_mhz),
    ] {
        let value = match most {
            Some(most) => short!("{}/{most} MHz", or_dash(now).as_str()),
            None => short!("{} MHz", or_dash(now).as_str()),
        };
        add_labelled(&mut line, canvas, priority, name, value);
    }
    let state = reading.performance_state.map(|state| short!("P{state}"));
    add_labelled(&mut line, canvas, 8, "performance state", or_dash(state.as_deref()));
    let (text, style) = clock_reasons(canvas.theme, gpu);
    line.add(9, 3, short!("clocks limited by"), canvas.theme.dim);
    line.add_tied(1, if text.is_empty() { short!("nothing") } else { short!("{text}") }, style);
    line
}

/// PCIe and `NVLink`: current and maximum link, throughput.
fn links_line(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary, health: &GpuHealth) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    if let (Some(generation), Some(width)) = (reading.pcie_generation, reading.pcie_width) {
        add_labelled(&mut line, canvas, 8, "PCIe", short!("gen {generation} x{width}"));
        if let (Some(generation), Some(width)) = (info.pcie_generation_max, info.pcie_width_max) {
            line.add(5, 1, short!("of gen {generation} x{width}"), canvas.theme.dim);
        }
    }
    for (priority, name, received, sent) in [
        (7, "PCIe", reading.pcie_receive_bytes_per_second, reading.pcie_transmit_bytes_per_second),
        (7, "NVLink", reading.nvlink_receive_bytes_per_second, reading.nvlink_transmit_bytes_per_second),
    ] {
        if let (Some(received), Some(sent)) = (received, sent) {
            add_labelled(
                &mut line,
                canvas,
                priority,
                name,
                short!("in {} out {}", rate(received).as_str(), rate(sent).as_str()),
            );
        }
    }
    if let (Some(count), Some(mask)) = (info.nvlink_count.filter(|count| *count > 0), health.nvlinks_active) {
        add_labelled(&mut line, canvas, 8, "NVLinks up", short!("{} of {count}", mask.count_ones()));
    }
    line
}

/// ECC errors, retired pages, remapped rows, and the recovery action.
fn errors_line(canvas: &Canvas<'_>, health: &GpuHealth) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    let pair = |corrected: Option<u64>, uncorrectable: Option<u64>| {
        let is_known = corrected.is_some() || uncorrectable.is_some();
        is_known.then(|| short!("{}/{}", or_dash(corrected).as_str(), or_dash(uncorrectable).as_str()))
    };
    let worse = |is_bad: bool| if is_bad { theme.warn } else { theme.plain };
    if let Some(text) = pair(health.ecc_corrected_volatile, health.ecc_uncorrectable_volatile) {
        line.add(9, 3, short!("ECC corrected/uncorrectable"), theme.dim);
        line.add_tied(1, text, worse(health.ecc_uncorrectable_volatile.is_some_and(|errors| errors > 0)));
    }
    if let Some(text) = pair(health.ecc_corrected_aggregate, health.ecc_uncorrectable_aggregate) {
        add_labelled(&mut line, canvas, 5, "lifetime", text);
    }
    let remapped = (health.remapped_rows_correctable, health.remapped_rows_uncorrectable);
    if let Some(text) = pair(remapped.0.map(u64::from), remapped.1.map(u64::from)) {
        add_labelled(&mut line, canvas, 6, "remapped rows", text);
    }
    let retired = (health.retired_pages_single_bit, health.retired_pages_double_bit);
    if let Some(text) = pair(retired.0.map(u64::from), retired.1.map(u64::from)) {
        add_labelled(&mut line, canvas, 6, "retired pages", text);
    }
    // Most links never count one.
    for (name, count) in [
        ("PCIe replays", health.pcie_replays),
        ("NVLink CRC errors", health.nvlink_crc_errors),
        ("NVLink replays", health.nvlink_replays),
        ("NVLink recoveries", health.nvlink_recoveries),
    ] {
        if let Some(count) = count.filter(|count| *count > 0) {
            add_labelled(&mut line, canvas, 6, name, short!("{count}"));
        }
    }
    for (is_so, text) in [
        (health.row_remap_pending, "row remapping pending: reset the GPU"),
        (health.row_remap_failed, "row remapping failed"),
        (health.retired_pages_pending, "page retirement pending: reboot"),
    ] {
        if is_so == Some(true) {
            line.add(12, 3, short!("{text}"), theme.crit);
        }
    }
    if let Some(action) = health.recovery_action.filter(|action| *action != RecoveryAction::None) {
        line.add(13, 3, short!("recovery action: {}", action.description()), theme.crit);
    }
    line
}

/// GPM metrics, or the reason why there are none, and the throttling times.
fn activity_line(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    for (name, share) in [
        ("SM act", reading.sm_activity_percent),
        ("SM occupancy", reading.sm_occupancy_percent),
        ("tensor cores", reading.tensor_activity_percent),
        ("DRAM bw", reading.dram_bandwidth_percent),
    ] {
        if let Some(share) = share {
            add_labelled(&mut line, canvas, 8, name, short!("{share:.0}%"));
        }
    }
    if line.width() == 0 {
        match info.gpm {
            Some(Availability::NotPermitted) => {
                add_labelled(&mut line, canvas, 8, "SM act", short!("N/A: not permitted to this account"));
            }
            Some(Availability::Refused) => {
                add_labelled(&mut line, canvas, 8, "SM act", short!("N/A: refused by the driver"));
            }
            Some(Availability::Available) | None => {}
        }
    }
    for (name, seconds) in [
        ("slowed down by heat", reading.thermal_violation_seconds),
        ("by the power cap", reading.power_violation_seconds),
        ("by the power brake", reading.power_brake_seconds),
    ] {
        if let Some(seconds) = seconds {
            add_labelled(&mut line, canvas, 5, name, age(seconds));
        }
    }
    line
}

fn settings_line(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary, health: &GpuHealth) -> Segments {
    let mut line = Segments::default();
    if let Some(is_on) = health.persistence_mode {
        add_labelled(&mut line, canvas, 6, "persistence", short!("{}", if is_on { "on" } else { "off" }));
    }
    let mode = health.compute_mode.map(|mode| match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveProcess => "exclusive process",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::Unknown => "unknown",
    });
    if let Some(mode) = mode {
        add_labelled(&mut line, canvas, 5, "compute mode", short!("{mode}"));
    }
    if let (Some(used), Some(total)) = (health.bar1_used_bytes, info.bar1_total_bytes) {
        add_labelled(&mut line, canvas, 3, "BAR1", short!("{}/{}", memory(used).as_str(), memory(total).as_str()));
    }
    if let Some(bytes) = gpu.reading.memory_reserved_bytes {
        add_labelled(&mut line, canvas, 4, "reserved by driver", memory(bytes));
    }
    if health.power_smoothing == Some(true) {
        line.add(9, 3, short!("power smoothing on"), canvas.theme.plain);
    }
    if info.xid_events == Some(Availability::NotPermitted) {
        add_labelled(&mut line, canvas, 7, "Xids", short!("N/A: not permitted to this account"));
    }
    line
}

fn other_line(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    add_labelled(&mut line, canvas, 9, "bandwidth", percent(reading.memory_utilization_percent));
    add_labelled(&mut line, canvas, 7, "fan", percent(reading.fan_percent));
    add_labelled(&mut line, canvas, 3, "encoder", percent(reading.encoder_percent));
    add_labelled(&mut line, canvas, 3, "decoder", percent(reading.decoder_percent));
    if info.mig_enabled == Some(true) {
        line.add(8, 3, short!("MIG on"), canvas.theme.plain);
    }
    if info.unified_memory == Some(true) {
        line.add(8, 3, short!("memory shared with the host"), canvas.theme.plain);
    }
    line
}
