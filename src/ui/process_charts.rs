//! The history of a process, or of a job: SM share, GPU memory, CPU share.

use super::canvas::Canvas;
use super::chart::{self, AXIS_COLUMNS, Scale};
use super::format::{memory, short};
use super::segments::Segments;
use crate::app::ChartSpan;
use crate::fleet::{Host, Moment, Process, ProcessMetric, SeriesKey};
use ratatui::layout::Rect;

/// The history of a job is that of so many of its processes at most.
const MAX_PROCESSES: usize = 32;
/// The fewest columns of a chart.
const MIN_COLUMNS: u16 = 24;

/// How several processes make one line.
#[derive(Clone, Copy)]
enum Aggregation {
    Mean,
    Sum,
}

/// Draws as many of the three charts as there is room for: below each other in a tall area, else side by side.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    area: Rect,
    host: &Host,
    processes: &[&Process],
    span: ChartSpan,
    now: Moment,
) {
    let metrics = [
        ("SM", ProcessMetric::Sm, Aggregation::Mean),
        ("GPU memory", ProcessMetric::GpuMemory, Aggregation::Sum),
        ("CPU", ProcessMetric::Cpu, Aggregation::Sum),
    ];
    let is_tall = area.height >= 12;
    let per_row = if is_tall { 1 } else { (area.width / MIN_COLUMNS).clamp(1, 3) };
    let down = if is_tall { 3 } else { 1 };
    let (columns, rows) = (area.width / per_row, area.height.saturating_sub(1) / down);
    for (slot, (name, metric, aggregation)) in metrics.into_iter().enumerate().take(usize::from(per_row * down)) {
        let slot = slot as u16;
        let cell = Rect {
            x: area.x + slot % per_row * columns,
            y: area.y + slot / per_row * rows,
            width: columns.saturating_sub(u16::from(per_row > 1)),
            height: rows,
        };
        let width = cell.width.saturating_sub(AXIS_COLUMNS);
        let points = aggregate_points(canvas, host, processes, metric, aggregation, width, span, now);
        let scale = match metric {
            ProcessMetric::Sm => Scale::percent(),
            ProcessMetric::GpuMemory => Scale::bytes(&points),
            ProcessMetric::Cpu => Scale::cpus(&points),
        };
        let mut heading = Segments::default();
        heading.add(9, 0, short!("{name}"), canvas.theme.focus);
        let value = |value: f32| match metric {
            ProcessMetric::GpuMemory => memory(value.max(0.0) as u64),
            ProcessMetric::Sm | ProcessMetric::Cpu => short!("{value:.0}%"),
        };
        let known = || points.iter().flatten().copied();
        let (least, most) = (known().fold(f32::INFINITY, f32::min), known().fold(f32::NEG_INFINITY, f32::max));
        if least <= most {
            heading.add(5, 2, short!("{} to {}", value(least).as_str(), value(most).as_str()), canvas.theme.dim);
        } else {
            heading.add(5, 2, short!("not told"), canvas.theme.dim);
        }
        heading.fit(cell.width);
        heading.draw(canvas, cell.x, cell.y, cell.width);
        let inner = Rect { y: cell.y + 1, height: cell.height.saturating_sub(1), ..cell };
        chart::draw(canvas, inner, &points, &scale, canvas.theme.busy);
        if slot / per_row + 1 == down {
            let width = cell.width.saturating_sub(AXIS_COLUMNS);
            chart::time_axis(canvas, cell.x + AXIS_COLUMNS, cell.bottom(), width, span);
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "they are what a line is made of")]
fn aggregate_points(
    canvas: &Canvas<'_>,
    host: &Host,
    processes: &[&Process],
    metric: ProcessMetric,
    aggregation: Aggregation,
    columns: u16,
    span: ChartSpan,
    now: Moment,
) -> Vec<Option<f32>> {
    let mut sums = vec![(0.0_f32, 0_u32); chart::point_count(canvas, columns)];
    for process in processes.iter().take(MAX_PROCESSES) {
        let points =
            chart::read_points(canvas, host.history(), SeriesKey::Process(&process.key, metric), columns, span, now);
        for (sum, point) in sums.iter_mut().zip(points) {
            if let Some(point) = point {
                *sum = (sum.0 + point, sum.1 + 1);
            }
        }
    }
    let value = |(sum, count): &(f32, u32)| match aggregation {
        _ if *count == 0 => None,
        Aggregation::Mean => Some(sum / *count as f32),
        Aggregation::Sum => Some(*sum),
    };
    sums.iter().map(value).collect()
}
