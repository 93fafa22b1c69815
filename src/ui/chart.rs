//! Charts of a time series: one column per point, filled from the bottom. Missing points leave gaps.
//!
//! ```text
//! 100%│████▅ ▅███▇▇██▅ ▅████
//!     │█████▁███████████████
//!    0│█████▄███████████████
//!     -10m      -5m    now
//! ```

use super::canvas::Canvas;
use super::format::{ShortString, columns, gib, memory, short};
use crate::app::{CHART_MIN_CELSIUS, ChartSpan, GpuSummary, Metric};
use crate::fleet::{History, Moment, SeriesKey};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Columns of the labels left of the axis.
pub(super) const LABEL_COLUMNS: u16 = 4;
/// Columns of the labels and the axis.
pub(super) const AXIS_COLUMNS: u16 = LABEL_COLUMNS + 1;

/// The values at the bottom and at the top of a chart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) low: f32,
    pub(super) high: f32,
    /// The label at the bottom.
    pub(super) bottom: ShortString,
    /// The label at the top.
    pub(super) top: ShortString,
}

impl Scale {
    /// 0 to 100 percent.
    pub(super) fn percent() -> Self {
        Self { low: 0.0, high: 100.0, bottom: short!("0"), top: short!("100%") }
    }

    /// 0 to `high`, with the label `top`.
    pub(super) fn up_to(high: f32, top: ShortString) -> Self {
        Self { low: 0.0, high: high.max(f32::MIN_POSITIVE), bottom: short!("0"), top }
    }

    /// Bytes, from 0 to the highest point, at least 1 GiB.
    pub(super) fn bytes(points: &[Option<f32>]) -> Self {
        let most = max_value(points).max((1u32 << 30) as f32);
        Self::up_to(most, memory(most as u64))
    }

    /// CPU percent, from 0 to the next multiple of 100 above the highest point.
    pub(super) fn cpus(points: &[Option<f32>]) -> Self {
        let most = (max_value(points) / 100.0).ceil().max(1.0) * 100.0;
        Self::up_to(most, short!("{most:.0}%"))
    }

    /// The range of a GPU metric: up to its limit if that is known, otherwise up to the highest point.
    pub(super) fn for_gpu(canvas: &Canvas<'_>, metric: Metric, gpu: &GpuSummary, points: &[Option<f32>]) -> Self {
        match metric {
            Metric::Utilization | Metric::MemoryBusy => Self::percent(),
            Metric::Memory => match gpu.memory_total_bytes {
                Some(total) => Self::up_to(total as f32, short!("{}G", gib(total))),
                None => Self::bytes(points),
            },
            Metric::Power => {
                let limit = gpu.power_limit_watts.unwrap_or_else(|| max_value(points).max(1.0));
                Self::up_to(limit, short!("{limit:.0}W"))
            }
            Metric::Temperature => {
                let (low, high, degree) = (CHART_MIN_CELSIUS, gpu.chart_max_celsius(), canvas.theme.glyphs.degree);
                Self { low, high, bottom: short!("{low:.0}{degree}"), top: short!("{high:.0}{degree}") }
            }
        }
    }
}

fn max_value(points: &[Option<f32>]) -> f32 {
    range(points).map_or(0.0, |(_, high)| high.max(0.0))
}

/// Returns the lowest and the highest point, or `None` without any.
pub(super) fn range(points: &[Option<f32>]) -> Option<(f32, f32)> {
    points.iter().flatten().fold(None, |range, &point| {
        let (low, high) = range.unwrap_or((point, point));
        Some((f32::min(low, point), f32::max(high, point)))
    })
}

/// Reads the points of a series for a chart of this many columns. Reading happens while drawing because the number of
/// points depends on the screen.
pub(super) fn read_points(
    history: &History,
    series: SeriesKey<'_>,
    columns: u16,
    span: ChartSpan,
    now: Moment,
) -> Vec<Option<f32>> {
    history.points(series, now, span.duration(), usize::from(columns))
}

/// Draws labels, axis and columns into `area`.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, points: &[Option<f32>], scale: &Scale, style: Style) {
    if area.width <= AXIS_COLUMNS || area.height == 0 {
        return;
    }
    let (dim, vertical) = (canvas.theme.dim, canvas.theme.glyphs.light.vertical);
    canvas.right(area.x, area.y, LABEL_COLUMNS, &scale.top, dim);
    if area.height > 1 {
        canvas.right(area.x, area.bottom() - 1, LABEL_COLUMNS, &scale.bottom, dim);
    }
    for y in area.y..area.bottom() {
        canvas.text(area.x + LABEL_COLUMNS, y, 1, vertical, dim);
    }
    let inner = Rect { x: area.x + AXIS_COLUMNS, width: area.width - AXIS_COLUMNS, ..area };
    fill(canvas, inner, points, scale, style);
}

/// Draws the times below a chart: its start, its middle and `now`.
pub(super) fn time_axis(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, span: ChartSpan) {
    let dim = canvas.theme.dim;
    let begin = short!("-{}", span.word());
    let middle = short!("-{}", span.half_word());
    let text = columns(&begin) + columns(&middle) + 3;
    canvas.fit(x, y, width, &begin, dim);
    if usize::from(width) >= text + 6 {
        canvas.text(x + width / 2 - columns(&middle) as u16 / 2, y, width, &middle, dim);
    }
    if usize::from(width) >= columns(&begin) + 4 {
        canvas.right(x, y, width, "now", dim);
    }
}

/// Draws each point as a column that is filled from the bottom, the newest at the right end. The lowest value still fills
/// the lowest step, to differ from a missing one.
fn fill(canvas: &mut Canvas<'_>, area: Rect, points: &[Option<f32>], scale: &Scale, style: Style) {
    let glyphs = &canvas.theme.glyphs.columns;
    let steps = glyphs.len();
    let most = usize::from(area.height) * steps;
    let shown = points.len().min(usize::from(area.width));
    let start = area.right() - shown as u16;
    for (x, point) in (start..).zip(&points[points.len() - shown..]) {
        let Some(value) = *point else { continue };
        let share = ((value - scale.low) / (scale.high - scale.low)).clamp(0.0, 1.0);
        let mut left = ((share * most as f32).round() as usize).max(1);
        for y in (area.y..area.bottom()).rev() {
            let filled = left.min(steps);
            canvas.text(x, y, 1, glyphs[filled - 1], style);
            left -= filled;
            if left == 0 {
                break;
            }
        }
    }
}

/// Draws the last points of a series into one row, two per column, the newest at the right. The highest column leaves a gap
/// of three eighths to the row above: the rows of a list of busy jobs would merge into one block.
pub(super) fn sparkline(canvas: &mut Canvas<'_>, area: Rect, points: &[Option<f32>], style: Style) {
    let theme = canvas.theme;
    let shown = points.len().min(usize::from(area.width) * 2) / 2 * 2;
    let start = area.right() - (shown / 2) as u16;
    for (at, pair) in (start..).zip(points[points.len() - shown..].chunks(2)) {
        let known = || pair.iter().flatten();
        let count = known().count();
        if count > 0 {
            let mean = known().sum::<f32>() / count as f32;
            let steps = theme.glyphs.sparkline;
            let step = (mean / 100.0 * steps.len() as f32) as usize;
            canvas.text(at, area.y, 1, steps[step.min(steps.len() - 1)], style);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::super::theme::Theme;
    use super::*;
    use crate::app::DisplaySettings;
    use ratatui::buffer::Buffer;

    fn chart(size: (u16, u16), ascii: bool, points: &[Option<f32>]) -> Vec<String> {
        let theme = Theme::new(DisplaySettings { ascii, ..DisplaySettings::default() });
        let mut buffer = Buffer::empty(Rect::new(0, 0, size.0, size.1));
        let mut canvas = Canvas::new(&mut buffer, &theme);
        draw(&mut canvas, Rect::new(0, 0, size.0, size.1), points, &Scale::percent(), Style::new());
        lines(&buffer)
    }

    #[test]
    fn columns_are_filled_from_the_bottom_and_gaps_stay_empty() {
        let points = [0.0, 25.0, 50.0, 100.0].map(Some);
        assert_eq!(chart((9, 2), false, &points), ["100%│   █", "   0│▁▄██"]);
        assert_eq!(chart((9, 2), true, &points), ["100%|   #", "   0|_.##"]);
        let gap = [Some(100.0), None, Some(0.0)];
        assert_eq!(chart((8, 1), false, &gap), ["100%│█ ▁"]);
        assert_eq!(chart((8, 1), true, &gap), ["100%|# _"]);
    }

    #[test]
    fn the_newest_point_is_at_the_right_and_values_are_clamped() {
        assert_eq!(chart((8, 1), false, &[Some(250.0), Some(-9.0)]), ["100%│ █▁"]);
        assert_eq!(chart((6, 1), false, &[Some(0.0), Some(0.0), Some(100.0)]), ["100%│█"]);
    }

    #[test]
    fn a_sparkline_leaves_air_above_its_highest_column() {
        for (ascii, expected) in [(false, "▁▁▂▃▄▅▅ ▅"), (true, "__.--\"\" \"")] {
            let theme = Theme::new(DisplaySettings { ascii, ..DisplaySettings::default() });
            let mut buffer = Buffer::empty(Rect::new(0, 0, 9, 1));
            let points: Vec<Option<f32>> = [Some(0.0), Some(19.0), Some(25.0), Some(50.0), Some(70.0), Some(97.0)]
                .into_iter()
                .chain([Some(100.0), None, Some(250.0)])
                .flat_map(|point| [point; 2])
                .collect();
            sparkline(&mut Canvas::new(&mut buffer, &theme), Rect::new(0, 0, 9, 1), &points, theme.busy);
            assert_eq!(lines(&buffer), [expected]);
        }
    }

    #[test]
    fn an_area_that_is_too_small_stays_empty() {
        assert_eq!(chart((5, 1), false, &[Some(1.0)]), [""]);
    }
}
