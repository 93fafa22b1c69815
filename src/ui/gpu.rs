//! One GPU in full: the history of every reading, its processes, and every reading in words.
//!
//! ```text
//! ━ hgx-02  GPU 3  NVIDIA H100 80GB HBM3  GPU-8f3a1c2e  0000:9B:00.0 ━━━━━━━━━━━━━━━━━━━ dmitri ? hung? 18m ━
//! GPU 100%  89% to 100% in 10m                     mem-busy 0%  0% to 44% in 10m
//! 100%│⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉            100%│⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⡄
//!    0│                                                 0│          ⣇⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
//! ```

use super::canvas::Canvas;
use super::chart::{self, AXIS_COLUMNS, Scale};
use super::findings::severity_style;
use super::format::{
    ShortString, age, columns, gib, memory, or_dash, short, shorten_host_name, strip_directories, watts,
};
use super::gpu_detail;
use super::host_cards::add_occupancy;
use super::segments::Segments;
use crate::app::{App, GpuSummary, Metric};
use crate::fleet::{Host, HostId, Moment, SeriesKey};
use ratatui::layout::Rect;

/// The fewest columns of a chart beside another.
const CHART_MIN_COLUMNS: u16 = 38;
/// The fewest rows of a chart, its title included.
const CHART_MIN_ROWS: u16 = 4;

/// Draws the GPU at a position of a host, or says that it is gone.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, id: HostId, position: usize, now: Moment) {
    let host = app.fleet().host(id);
    let summary = host.and_then(|host| app.host_summary(host));
    let gpu = summary.and_then(|summary| summary.gpus.get(position));
    let (Some(host), Some(summary), Some(gpu)) = (host, summary, gpu) else {
        canvas.fit(
            body.x + 1,
            body.y,
            body.width.saturating_sub(2),
            "This GPU is no longer there.",
            canvas.theme.plain,
        );
        return;
    };
    title(canvas, body, app, host, gpu, position, now);
    let inner = Rect { y: body.y + 1, height: body.height.saturating_sub(1), ..body };
    let lines = gpu_detail::lines(canvas, host, gpu, position);
    let findings = app
        .findings()
        .of_host(id)
        .filter(|finding| finding.gpus.iter().any(|one| one.host == id && one.position == position));
    let findings: Vec<_> = findings.take(3).collect();
    // Words have up to two fifths, and leave at least one row of charts.
    let wanted = (lines.len() + findings.len()) as u16;
    let words = wanted.min(inner.height * 2 / 5).min(inner.height.saturating_sub(CHART_MIN_ROWS + 1));
    let charts = Rect { height: inner.height - words, ..inner };
    let cells = cells(charts);
    for (slot, cell) in cells.iter().enumerate() {
        match order(app.screen().metric).get(slot) {
            Some(metric) => history(canvas, *cell, app, host, position, gpu, *metric, now),
            None => processes(canvas, *cell, app, id, gpu),
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
            let style = severity_style(canvas.theme, finding.severity);
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

fn title(canvas: &mut Canvas<'_>, body: Rect, app: &App, host: &Host, gpu: &GpuSummary, position: usize, now: Moment) {
    let theme = canvas.theme;
    canvas.repeat(body.x, body.y, body.width, theme.glyphs.heavy.horizontal, theme.focus);
    let mut left = Segments::default();
    left.add(20, 0, short!(" {}", shorten_host_name(host.name()).as_str()), theme.focus);
    left.add(19, 2, super::gpu_line::name(gpu), theme.focus);
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

/// The places of charts: as many side by side as are wide enough, and as many rows as are high enough.
fn cells(area: Rect) -> Vec<Rect> {
    let height = area.height.saturating_sub(1);
    let wanted = Metric::ALL.len() as u16 + 1;
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

/// Every metric, the one that is chosen first: on a small screen there is room for few.
fn order(first: Metric) -> Vec<Metric> {
    let mut metrics = vec![first];
    metrics.extend(Metric::ALL.into_iter().filter(|metric| *metric != first));
    metrics
}

#[allow(clippy::too_many_arguments, reason = "they are what a chart is made of")]
fn history(
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
    let points = chart::read_points(canvas, host.history(), series, columns, app.screen().span, now);
    let scale = Scale::for_gpu(canvas, metric, gpu, &points);
    let mut heading = Segments::default();
    heading.add(9, 0, short!("{}", metric.word()), theme.focus);
    heading.add(9, 1, value_now(canvas, gpu, metric), theme.plain);
    let known = || points.iter().flatten().copied();
    let (least, most) = (known().fold(f32::INFINITY, f32::min), known().fold(f32::NEG_INFINITY, f32::max));
    if least <= most {
        let words = short!("{} to {}", value(canvas, metric, least).as_str(), value(canvas, metric, most).as_str());
        heading.add(3, 3, words, theme.dim);
    } else {
        heading.add(3, 3, short!("not told"), theme.dim);
    }
    heading.fit(cell.width.saturating_sub(2));
    heading.draw(canvas, cell.x + 1, cell.y, cell.width.saturating_sub(2));
    chart::draw(canvas, inner, &points, &scale, theme.busy);
}

fn value_now(canvas: &Canvas<'_>, gpu: &GpuSummary, metric: Metric) -> ShortString {
    let reading = &gpu.reading;
    let percent = |value: Option<u8>| or_dash(value.map(|value| short!("{value}%")).as_deref());
    match metric {
        Metric::Utilization => percent(reading.utilization_percent),
        Metric::MemoryBusy => percent(reading.memory_utilization_percent),
        Metric::Memory => super::gpu_line::memory_text(gpu),
        Metric::Power => super::gpu_line::power(gpu, true),
        Metric::Temperature => super::gpu_line::temperature(canvas.theme, gpu),
    }
}

fn value(canvas: &Canvas<'_>, metric: Metric, value: f32) -> ShortString {
    match metric {
        Metric::Utilization | Metric::MemoryBusy => short!("{value:.0}%"),
        Metric::Memory => short!("{}G", gib(value.max(0.0) as u64)),
        Metric::Power => watts(f64::from(value)),
        Metric::Temperature => short!("{value:.0}{}", canvas.theme.glyphs.degree),
    }
}

/// Who holds it, with how much.
fn processes(canvas: &mut Canvas<'_>, cell: Rect, app: &App, id: HostId, gpu: &GpuSummary) {
    let theme = canvas.theme;
    let rows: Vec<_> = app
        .jobs(id)
        .iter()
        .map(|job| &job.row)
        .filter(|row| row.ended_at.is_none() && row.gpu_indexes.contains(&gpu.index))
        .collect();
    canvas.fit(cell.x + 1, cell.y, cell.width.saturating_sub(2), "held by", theme.focus);
    if rows.is_empty() {
        canvas.fit(cell.x + 1, cell.y + 1, cell.width.saturating_sub(2), "nobody", theme.dim);
    }
    let available = usize::from(cell.height.saturating_sub(1));
    let shown = if rows.len() > available { available.saturating_sub(1) } else { rows.len() };
    for (index, row) in rows.iter().take(shown).enumerate() {
        let y = cell.y + 1 + index as u16;
        let mut line = Segments::default();
        line.add(9, 0, short!("{}", row.who.as_str()), theme.plain);
        line.add(8, 1, or_dash(row.gpu_memory_bytes.map(memory).as_deref()), theme.plain);
        line.add(7, 1, row.age_seconds.map_or_else(ShortString::new, age), theme.plain);
        line.fit(cell.width.saturating_sub(2));
        let used = line.draw(canvas, cell.x + 1, y, cell.width.saturating_sub(2));
        let command = strip_directories(&row.command);
        let available = cell.width.saturating_sub(used + 3);
        canvas.fit(cell.x + 2 + used, y, available.min(columns(&command) as u16 + 1), &command, theme.dim);
    }
    if shown < rows.len() {
        let words = short!("{} more", rows.len() - shown);
        canvas.fit(cell.x + 1, cell.bottom().saturating_sub(1), cell.width.saturating_sub(2), &words, theme.dim);
    }
}
