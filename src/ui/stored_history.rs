//! The history of a host or of one GPU from the store of a collector, over hours, days or weeks.
//!
//! ```text
//! ━ hgx-02  history of 7d ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
//!  8 GPUs  util 41%  busy 48%  idle 21%  free 29%  faulty 2%   no readings 3%
//!  ▸GPU 0  util 61%  busy 63%  idle 19%  free 18%   no readings 3%
//!  100%│        ▄▅▅▄▇▇▇▇▇▇▇▇▇▇▇▇▇▇▂▂   ▇▇▇▇▇▇▇▇▇▇▇▇▇▇
//!     0│▁▁▁▁▁▁▁▁███████████████████▇   ██████████████
//!       │Wed 18  │Thu 19  │Fri 20  │Sat 21       now
//! ```

use super::canvas::{Canvas, LineWriter, Segments};
use super::chart::{self, AXIS_COLUMNS, Scale};
use super::format::{ShortString, columns, gib, rounded, short, shorten_host_name};
use super::{gpu, host_state};
use crate::app::{App, CHART_MAX_CELSIUS, CHART_MIN_CELSIUS, ChartSpan, HistoryGpu, Metric, StoredChart};
use crate::fleet::{DatedHistory, Host, Moment, StoredGpu, StoredMetric};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Columns of the texts left of a chart.
const LABEL_COLUMNS: u16 = 20;
/// The maximum rows of the chart of one GPU in the view of a host.
const MAX_CHART_ROWS: u16 = 8;
/// From this width on, the charts of a host are in two columns if they have few rows in one.
const TWO_COLUMNS_WIDTH: u16 = 150;
/// See [`TWO_COLUMNS_WIDTH`].
const FEW_ROWS: u16 = 5;

/// Draws the history of a host, or of the GPU at a position.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, host: &Host, position: Option<usize>, now: Moment) {
    let span = app.screen().span;
    let gpus = app.stored_charts().gpus(host, span);
    draw_title(canvas, body, app, host, &gpus, position, now);
    let inner = Rect { x: body.x + 1, y: body.y + 1, width: body.width.saturating_sub(2), height: body.height - 1 };
    let history = match app.stored_charts().chart(host.id, span) {
        StoredChart::Read(history) => history,
        StoredChart::Reading => {
            canvas.fit(inner.x, inner.y, inner.width, "reading the history ...", canvas.theme.dim);
            return;
        }
        StoredChart::Failed(cause) => {
            let style = canvas.theme.warn;
            LineWriter::new(canvas, inner).wrapped(cause, style);
            return;
        }
    };
    if history.history.gpus.is_empty() {
        let text = short!("the history has nothing about {} in this time", shorten_host_name(host.name()).as_str());
        canvas.fit(inner.x, inner.y, inner.width, &text, canvas.theme.plain);
        return;
    }
    let view = HistoryView { app, history, now, span };
    match position {
        None => view.draw_host(canvas, inner, &gpus),
        Some(position) => {
            let gpu = gpus.get(position);
            if let Some(stored) = gpu.and_then(|gpu| gpu.stored) {
                view.draw_gpu(canvas, inner, stored);
                return;
            }
            let index = gpu.map_or(position, |gpu| gpu.index as usize);
            let text = short!("the history has nothing about GPU {index} in this time");
            canvas.fit(inner.x, inner.y, inner.width, &text, canvas.theme.plain);
        }
    }
}

fn draw_title(
    canvas: &mut Canvas<'_>,
    body: Rect,
    app: &App,
    host: &Host,
    gpus: &[HistoryGpu<'_>],
    position: Option<usize>,
    now: Moment,
) {
    let theme = canvas.theme;
    canvas.repeat(body.x, body.y, body.width, theme.glyphs.heavy.horizontal, theme.focus);
    let mut left = Segments::default();
    left.add(20, 0, short!(" {}", shorten_host_name(host.name()).as_str()), theme.focus);
    let gpu = position.and_then(|position| gpus.get(position));
    if let Some(position) = position {
        let index = gpu.map_or(position, |gpu| gpu.index as usize);
        left.add(19, 2, short!("GPU {index}"), theme.focus);
    }
    left.add(18, 2, short!("history of {}", app.screen().span.word()), theme.focus);
    left.add(21, 0, short!(" "), theme.plain);
    let mut right = Segments::default();
    right.add(20, 0, short!(" "), theme.plain);
    if let Some(gpu) = gpu {
        let model = gpu.info.and_then(|info| info.name.as_ref()).or(gpu.stored.and_then(|gpu| gpu.model.as_ref()));
        if let Some(model) = model {
            right.add(5, 0, short!("{model}"), theme.plain);
        }
        if gpu.info.is_none() && host.inventory.is_some() {
            right.add(8, 2, short!("no longer on this host"), theme.warn);
        }
    }
    if let Some((text, style)) = app.host_summary(host).and_then(|one| host_state::status_text(app, host, one, now)) {
        right.add(9, 2, text, style);
    }
    right.add(20, 0, short!(" "), theme.plain);
    let available = body.width.saturating_sub(4);
    left.fit(available);
    right.fit(available.saturating_sub(left.width() + 2));
    left.draw(canvas, body.x + 1, body.y, available);
    if right.width() > 2 {
        right.draw_right(canvas, body.x + 1, body.y, body.width.saturating_sub(2));
    }
}

/// The inputs of all charts of a history.
struct HistoryView<'a> {
    app: &'a App,
    history: &'a DatedHistory,
    now: Moment,
    span: ChartSpan,
}

impl HistoryView<'_> {
    /// Draws the sums of all GPUs and a chart for each of them. If there are more than fit, the selected one is visible.
    fn draw_host(&self, canvas: &mut Canvas<'_>, area: Rect, gpus: &[HistoryGpu<'_>]) {
        summary(canvas, &self.history.history.gpus, area.width).draw(canvas, area.x, area.y, area.width);
        let charts = Rect { y: area.y + 1, height: area.height.saturating_sub(2), ..area };
        let is_low = charts.height / (gpus.len() as u16).max(1) < FEW_ROWS;
        let per_row = if area.width >= TWO_COLUMNS_WIDTH && gpus.len() > 1 && is_low { 2 } else { 1 };
        let lines = gpus.len().div_ceil(per_row) as u16;
        let rows = (charts.height / lines.max(1)).clamp(1, MAX_CHART_ROWS);
        let visible = charts.height / rows;
        let line = (self.app.screen().gpu / per_row) as u16;
        let top = if lines > visible { (line + 1).saturating_sub(visible) } else { 0 };
        let width = area.width / per_row as u16;
        let gap = u16::from(per_row > 1);
        for (position, gpu) in gpus.iter().enumerate().skip(usize::from(top) * per_row) {
            let line = (position / per_row) as u16 - top;
            if line >= visible {
                break;
            }
            let x = area.x + (position % per_row) as u16 * width;
            let cell = Rect { x, y: charts.y + line * rows, width: width - gap, height: rows };
            self.draw_row(canvas, cell, gpu, position);
        }
        let y = charts.y + rows * visible.min(lines);
        let left = AXIS_COLUMNS + if rows == 1 { LABEL_COLUMNS } else { 0 };
        for column in 0..(per_row as u16).min(gpus.len() as u16) {
            let x = area.x + column * width;
            self.time_axis(canvas, x + left, y, width.saturating_sub(left + gap));
        }
    }

    /// Draws one GPU: its figures above the chart of the chosen metric, or beside it if there is only one row.
    fn draw_row(&self, canvas: &mut Canvas<'_>, cell: Rect, gpu: &HistoryGpu<'_>, position: usize) {
        let theme = canvas.theme;
        let is_selected = self.app.screen().gpu == position;
        let pointer = if is_selected { theme.glyphs.pointer } else { " " };
        let mut line = Segments::default();
        let style = if is_selected { theme.focus } else { theme.plain };
        line.add(20, 0, short!("{pointer}GPU {}", gpu.index), style);
        let chart = if cell.height == 1 {
            Rect { x: cell.x + LABEL_COLUMNS, width: cell.width.saturating_sub(LABEL_COLUMNS), ..cell }
        } else {
            Rect { y: cell.y + 1, height: cell.height - 1, ..cell }
        };
        let label_width = if cell.height == 1 { LABEL_COLUMNS } else { cell.width };
        if let Some(stored) = gpu.stored {
            let metric = self.app.screen().metric;
            let points = self.points(stored, metric, chart.width.saturating_sub(AXIS_COLUMNS));
            if let Some(mean) = mean(canvas, stored, metric, &points) {
                let word = if metric == Metric::Temperature { "max " } else { "" };
                line.add(19, 2, short!("{} {word}{}", metric.stored_word(), mean.as_str()), theme.plain);
            }
            add_shares(canvas, &mut line, std::slice::from_ref(stored), theme.dim);
            let mut scale = scale(canvas, metric, stored, &points);
            if cell.height == 1 {
                // Full columns of consecutive rows would merge.
                scale.high += (scale.high - scale.low) * 0.6;
            }
            self.draw_points(canvas, chart, stored, metric, points, &scale);
        } else {
            line.add(19, 2, short!("no readings in this time"), theme.dim);
        }
        line.fit(label_width);
        line.draw(canvas, cell.x, cell.y, label_width);
    }

    /// Draws the figures of one GPU and a chart for each metric.
    fn draw_gpu(&self, canvas: &mut Canvas<'_>, area: Rect, stored: &StoredGpu) {
        summary(canvas, std::slice::from_ref(stored), area.width).draw(canvas, area.x, area.y, area.width);
        let charts =
            Rect { x: area.x - 1, y: area.y + 1, width: area.width + 2, height: area.height.saturating_sub(1) };
        let cells = gpu::chart_cells(charts, Metric::ALL.len() as u16);
        let metrics = gpu::metric_order(self.app.screen().metric);
        for (cell, metric) in cells.iter().zip(&metrics) {
            let inner = Rect {
                y: cell.y + 1,
                height: cell.height.saturating_sub(1),
                width: cell.width.saturating_sub(1),
                ..*cell
            };
            let points = self.points(stored, *metric, inner.width.saturating_sub(AXIS_COLUMNS));
            let scale = scale(canvas, *metric, stored, &points);
            let theme = canvas.theme;
            let mut heading = Segments::default();
            heading.add(9, 0, short!("{}", metric.stored_word()), theme.focus);
            if let Some(mean) = mean(canvas, stored, *metric, &points) {
                let word = if *metric == Metric::Temperature { "max" } else { "mean" };
                heading.add(9, 1, short!("{word} {}", mean.as_str()), theme.plain);
            }
            if let Some((least, most)) = chart::range(&points) {
                heading.add(3, 3, gpu::range_text(canvas, *metric, least, most), theme.dim);
            }
            heading.fit(cell.width.saturating_sub(2));
            heading.draw(canvas, cell.x + 1, cell.y, cell.width.saturating_sub(2));
            self.draw_points(canvas, inner, stored, *metric, points, &scale);
        }
        // Below the last chart of each column.
        let lowest = |x: u16| cells.iter().filter(|cell| cell.x == x).map(|cell| cell.bottom()).max();
        for cell in cells.iter().filter(|cell| lowest(cell.x) == Some(cell.bottom())) {
            let x = cell.x + AXIS_COLUMNS;
            self.time_axis(canvas, x, cell.bottom(), cell.width.saturating_sub(AXIS_COLUMNS + 1));
        }
    }

    /// Draws a chart. The utilization of a GPU that is faulty, or whose job hangs, is no work and has another colour.
    fn draw_points(
        &self,
        canvas: &mut Canvas<'_>,
        area: Rect,
        stored: &StoredGpu,
        metric: Metric,
        mut points: Vec<Option<f32>>,
        scale: &Scale,
    ) {
        let theme = canvas.theme;
        if metric == Metric::Utilization {
            let (span, count) = (self.span.duration(), points.len());
            let faulty = self.history.points(stored, StoredMetric::Faulty, self.now, span, count);
            let is_faulty = |share: &Option<f32>| share.is_some_and(|percent| percent >= 50.0);
            let no_work: Vec<Option<f32>> =
                points.iter().zip(&faulty).map(|(point, share)| point.filter(|_| is_faulty(share))).collect();
            chart::draw(canvas, area, &no_work, scale, theme.utilization_style(true));
            for (point, share) in points.iter_mut().zip(&faulty) {
                point.take_if(|_| is_faulty(share));
            }
        }
        chart::draw(canvas, area, &points, scale, theme.busy);
    }

    fn points(&self, stored: &StoredGpu, metric: Metric, columns: u16) -> Vec<Option<f32>> {
        self.history.points(stored, metric.stored(), self.now, self.span.duration(), usize::from(columns))
    }

    /// Draws times of day or dates below a chart, and `now` at its end.
    fn time_axis(&self, canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16) {
        let dim = canvas.theme.dim;
        let end = self.now.unix.as_secs_f64();
        let span = self.span.duration().as_secs_f64();
        let offset = f64::from(self.app.settings.utc_offset_seconds);
        let bar = canvas.theme.glyphs.light.vertical;
        let mut free = 0;
        for (at, label) in ticks(end - span + offset, end + offset, width) {
            let column = ((at - (end - span + offset)) / span * f64::from(width)) as u16;
            let text = short!("{bar}{}", label.as_str());
            let used = columns(&text) as u16;
            if column >= free && column + used + 4 <= width {
                canvas.text(x + column, y, used, &text, dim);
                free = column + used + 1;
            }
        }
        if width >= 4 {
            canvas.right(x, y, width, "now", dim);
        }
    }
}

/// Adds the shares of the states of these GPUs: `busy 48%  idle 21%  free 29%  faulty 2%   no readings 3%`
fn add_shares(canvas: &Canvas<'_>, line: &mut Segments, gpus: &[StoredGpu], style: Style) {
    let sum = |seconds: fn(&StoredGpu) -> u64| gpus.iter().map(seconds).fold(0, u64::saturating_add);
    let known = sum(StoredGpu::known_seconds);
    let add = |line: &mut Segments, priority, word: &str, seconds, style| {
        line.add(priority, 2, short!("{word} {}", share(seconds, known).as_str()), style);
    };
    add(line, 8, "busy", sum(|gpu| gpu.busy_seconds), style);
    add(line, 7, "idle", sum(|gpu| gpu.idle_held_seconds), style);
    add(line, 6, "free", sum(|gpu| gpu.free_seconds), style);
    let faulty = sum(|gpu| gpu.faulty_seconds);
    if faulty > 0 {
        add(line, 9, "faulty", faulty, canvas.theme.warn);
    }
    let unknown = sum(|gpu| gpu.unknown_seconds);
    let all = known.saturating_add(unknown);
    // A minute that is not over is no gap.
    if unknown.saturating_mul(200) >= all.max(1) {
        line.add(5, 3, short!("no readings {}", share(unknown, all).as_str()), canvas.theme.dim);
    }
}

/// The mean of the span, and of the temperature the highest one.
fn mean(canvas: &Canvas<'_>, stored: &StoredGpu, metric: Metric, points: &[Option<f32>]) -> Option<ShortString> {
    let value = match metric {
        Metric::Utilization => stored.mean_utilization_permille? as f32 / 10.0,
        Metric::Temperature => chart::range(points)?.1,
        Metric::MemoryBusy | Metric::Memory | Metric::Power => {
            let known = || points.iter().flatten();
            let count = known().count();
            (count > 0).then(|| known().sum::<f32>() / count as f32)?
        }
    };
    Some(gpu::metric_value(canvas, metric, value))
}

/// `8 GPUs  util 41%  busy 48%  idle 21%  free 29%  faulty 2%   no readings 3%`
fn summary(canvas: &Canvas<'_>, gpus: &[StoredGpu], width: u16) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    if gpus.len() > 1 {
        line.add(10, 0, short!("{} GPUs", gpus.len()), theme.plain);
    }
    let means = || gpus.iter().filter_map(|gpu| Some((gpu.mean_utilization_permille?, gpu.known_seconds())));
    let known: u128 = means().map(|(_, seconds)| u128::from(seconds)).sum();
    if known > 0 {
        let weighted: u128 = means().map(|(mean, seconds)| u128::from(mean) * u128::from(seconds)).sum();
        line.add(9, 2, short!("util {}%", rounded(weighted as f64 / known as f64 / 10.0)), theme.plain);
    }
    add_shares(canvas, &mut line, gpus, theme.plain);
    line.fit(width);
    line
}

/// `61%`, or `-` without readings. A share above zero is at least `<1%`.
fn share(seconds: u64, all: u64) -> ShortString {
    if all == 0 {
        return short!("-");
    }
    let percent = seconds as f64 / all as f64 * 100.0;
    if seconds > 0 && percent < 0.5 { short!("<1%") } else { short!("{}%", rounded(percent)) }
}

/// The range of a chart: up to the size of the memory, or the highest point.
fn scale(canvas: &Canvas<'_>, metric: Metric, stored: &StoredGpu, points: &[Option<f32>]) -> Scale {
    match metric {
        Metric::Utilization | Metric::MemoryBusy => Scale::percent(),
        Metric::Memory => match stored.memory_total_mib {
            Some(total) => {
                let bytes = total.saturating_mul(1 << 20);
                Scale::up_to(bytes as f32, short!("{}G", gib(bytes)))
            }
            None => Scale::bytes(points),
        },
        Metric::Power => {
            let most = chart::range(points).map_or(0.0, |(_, most)| most);
            // The limit is not stored. A round end keeps the scale while the chart moves.
            let high = (most / 100.0).ceil().max(1.0) * 100.0;
            Scale::up_to(high, short!("{high:.0}W"))
        }
        Metric::Temperature => {
            let (low, high, degree) = (CHART_MIN_CELSIUS, CHART_MAX_CELSIUS, canvas.theme.glyphs.degree);
            Scale { low, high, bottom: short!("{low:.0}{degree}"), top: short!("{high:.0}{degree}") }
        }
    }
}

const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;
/// The distances of times on an axis in seconds. Longer ones are months.
const UNITS: [f64; 9] = [HOUR, 2.0 * HOUR, 3.0 * HOUR, 6.0 * HOUR, 12.0 * HOUR, DAY, 2.0 * DAY, 7.0 * DAY, 14.0 * DAY];
/// The least columns between two times on an axis.
const TICK_COLUMNS: f64 = 9.0;
/// A Monday in seconds since 1970: weeks on an axis begin with it.
const MONDAY: f64 = 4.0 * DAY;

/// The times on an axis with their labels, in seconds since 1970 in local time.
fn ticks(begin: f64, end: f64, width: u16) -> Vec<(f64, ShortString)> {
    let span = end - begin;
    let most = f64::from(width) / TICK_COLUMNS;
    let date = |at: f64| Timestamp::from_second(at as i64).ok().map(|time| time.to_zoned(TimeZone::UTC));
    let label = |at: f64, unit: f64| {
        let time = date(at)?;
        if at % DAY != 0.0 {
            return Some(short!("{:02}:00", time.hour()));
        }
        // `Tue 24` beside times of day and in a week, else `Nov 24`.
        let format = if unit <= DAY { "%a %d" } else { "%b %d" };
        Some(short!("{}", time.strftime(format)))
    };
    if let Some(unit) = UNITS.into_iter().find(|unit| span / unit <= most) {
        let first = ((begin - MONDAY) / unit).ceil();
        let count = (span / unit) as usize + 1;
        return (0..count)
            .map(|index| MONDAY + (first + index as f64) * unit)
            .filter(|at| *at < end)
            .filter_map(|at| Some((at, label(at, unit)?)))
            .collect();
    }
    let days = (begin / DAY).ceil() as i64..(end / DAY).ceil() as i64;
    days.filter_map(|day| {
        let at = day as f64 * DAY;
        let time = date(at).filter(|time| time.day() == 1)?;
        Some((at, short!("{}", time.strftime("%b"))))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{cells, lines, show_cells, text};
    use super::*;
    use crate::app::testing::{NOW, app, at, connecting, press, report, update};
    use crate::app::{Effect, Event};
    use crate::fleet::{HistoryQuery, HistoryReply, HostUpdate, LinkError, LinkErrorKind, StoredHistory};

    /// The history of two GPUs: the first is busy except in a gap, the second is free.
    fn reply(query: &HistoryQuery, gpus: u32) -> HistoryReply {
        let points = (query.span_seconds / query.step_seconds) as usize + 1;
        let gpu = |index: u32| StoredGpu {
            index,
            uuid: format!("GPU-8f3a1c2e-{index:04}").into(),
            model: Some("NVIDIA H100".into()),
            memory_total_mib: Some(81_920),
            utilization_permille: (0..points)
                .map(|point| {
                    (point < points / 2 || point > points / 2 + points / 8).then_some(if index == 0 { 800 } else { 0 })
                })
                .collect(),
            faulty_permille: (0..points).map(|point| Some(if point < points / 4 { 1000 } else { 0 })).collect(),
            mean_utilization_permille: Some(if index == 0 { 800 } else { 0 }),
            busy_seconds: if index == 0 { 70_000 } else { 0 },
            free_seconds: if index == 0 { 0 } else { 70_000 },
            faulty_seconds: 700,
            unknown_seconds: 10_000,
            ..StoredGpu::default()
        };
        let gpus = (0..gpus).map(gpu).collect();
        let history = StoredHistory { step_seconds: query.step_seconds, age_seconds: query.span_seconds as f64, gpus };
        HistoryReply { id: query.id, result: Ok(history) }
    }

    /// Answers the requests among these effects. Returns the queries.
    fn answer(app: &mut App, effects: Vec<Effect>, gpus: u32) -> Vec<HistoryQuery> {
        let mut open = effects;
        let mut queries = Vec::new();
        while let Some(effect) = open.pop() {
            if let Effect::ReadHistory(query) = effect {
                let event = Event::HistoryRead(reply(&query, gpus));
                open.extend(app.update(event, at(NOW)));
                queries.push(query);
            }
        }
        queries
    }

    #[test]
    fn long_spans_show_the_store_with_gaps_and_dates() {
        let mut app = app(2, 2, (80, 24));
        app.offer_history();
        press(&mut app, "\n");
        assert_eq!(press(&mut app, "ww").len(), 0, "up to two hours nothing is read");
        let effects = press(&mut app, "w");
        assert!(text(&app, (80, 24)).contains("reading the history ..."));
        let queries = answer(&mut app, effects, 2);
        let [query] = &queries[..] else { panic!("{queries:?}") };
        assert_eq!((query.host.as_str(), query.span_seconds, query.step_seconds), ("hgx-01", 21_600, 120));
        let effects = press(&mut app, "w");
        assert_eq!(answer(&mut app, effects, 2).len(), 1);
        show_cells("history", &cells(&app, (80, 24)));
        let shown = lines(&cells(&app, (80, 24)));
        assert!(shown[1].contains("hgx-01  history of 1d"), "{shown:#?}");
        assert_eq!(shown[2], " 2 GPUs  util 40%  busy 50%  idle 0%  free 50%  faulty 1%   no readings 12%");
        assert_eq!(shown[3], " ▸GPU 0  util 80%  busy 99%  idle 0%  free 0%  faulty 1%   no readings 12%");
        let chart: Vec<char> = shown[8].chars().skip(6).collect();
        let blank = chart.iter().filter(|character| **character == ' ').count();
        assert!((7..=11).contains(&blank), "an eighth of 73 columns: {shown:#?}");
        let buffer = cells(&app, (80, 24));
        assert_ne!(buffer[(10, 8)].fg, buffer[(70, 8)].fg, "time in which a job hangs has another colour");
        assert!(shown.iter().any(|line| line.starts_with("  GPU 1  util 0%  busy 0%")), "{shown:#?}");
        let is_axis = |line: &&String| line.contains("│18:00") && line.contains("│Thu 13") && line.ends_with("now");
        assert_eq!(shown.iter().filter(is_axis).count(), 1, "{shown:#?}");
        assert_eq!(press(&mut app, "").len(), 0);

        press(&mut app, "\n");
        let shown = text(&app, (120, 40));
        for heading in ["util mean 80%", "held", "memory", "power", "temperature", "GPU 0  history of 1d"] {
            assert!(shown.contains(heading), "{heading}: {shown}");
        }
        press(&mut app, "→");
        assert!(text(&app, (80, 24)).contains("GPU 1  history of 1d"));
        press(&mut app, "\u{1b}\u{1b}\n");
        assert!(text(&app, (80, 24)).contains("Processes"), "other views end long spans");
    }

    #[test]
    fn without_a_store_the_spans_end_at_two_hours() {
        let mut app = app(1, 2, (80, 24));
        press(&mut app, "\nwwwwww");
        assert!(!text(&app, (80, 24)).contains("history of"));
        app.offer_history();
        let shown = (0..9).any(|_| {
            press(&mut app, "w");
            text(&app, (80, 24)).contains("history of")
        });
        assert!(shown);
    }

    #[test]
    fn a_host_that_is_down_shows_its_history_and_a_failure_its_cause() {
        let mut app = connecting(&["hgx-01".to_owned()], (80, 24));
        app.offer_history();
        app.open_history(crate::fleet::HostId(0), Some(1));
        let error = LinkError::new(LinkErrorKind::Network, "no route to host (tcp 22)");
        update(&mut app, 0, HostUpdate::Down { error, retry_at: None, attempt: 3 }, 10);
        let effects = app.update(Event::Ticked, at(11));
        assert!(effects.is_empty(), "the request of the first event is open: {effects:?}");
        let failed =
            HistoryReply { id: 1, result: Err("the history history.db is damaged: it is not a database".into()) };
        app.update(Event::HistoryRead(failed), at(12));
        let shown = text(&app, (80, 24));
        assert!(shown.contains("the history history.db is damaged: it is not a database"), "{shown}");
        assert!(shown.contains("GPU 1  history of 1d"), "{shown}");
        assert!(app.update(Event::Ticked, at(13)).is_empty());
        let effects = app.update(Event::Ticked, at(40));
        assert_eq!(answer(&mut app, effects, 2).len(), 1, "it is tried again");
        let shown = text(&app, (80, 24));
        assert!(shown.contains("GPU 1  history of 1d") && shown.contains("util mean 0%"), "{shown}");
        assert!(shown.contains("DOWN"), "{shown}");
        press(&mut app, "\u{1b}");
        assert!(text(&app, (80, 24)).contains("  GPU 0  util 80%"));
        let effects = press(&mut app, "w");
        answer(&mut app, effects, 0);
        assert!(text(&app, (80, 24)).contains("the history has nothing about hgx-01 in this time"));
    }

    #[test]
    fn charts_of_a_new_host_begin_with_the_stored_minutes() {
        let mut app = connecting(&["hgx-01".to_owned()], (120, 40));
        app.offer_history();
        let id = crate::fleet::HostId(0);
        report(&mut app, 0, 2, NOW - 10);
        let before = app.fleet().host(id).expect("a host").history().clone();
        let series = crate::fleet::SeriesKey::Gpu(0, crate::fleet::GpuMetric::Utilization);
        let known = |history: &crate::fleet::History| {
            let points = history.points(series, at(NOW), std::time::Duration::from_secs(7200), 60);
            points.iter().flatten().count()
        };
        assert!(known(&before) <= 1);
        // The request was an effect of the first snapshot, which `report` drops; it has the number 1.
        let query = HistoryQuery { id: 1, host: "hgx-01".into(), span_seconds: 7200, step_seconds: 60 };
        let mut answer = reply(&query, 2);
        let uuid = app.fleet().host(id).and_then(|host| host.gpu_info(0)?.uuid.clone()).expect("a uuid");
        if let Ok(history) = &mut answer.result {
            history.gpus[0].uuid = uuid;
        }
        app.update(Event::HistoryRead(answer), at(NOW));
        let after = known(app.fleet().host(id).expect("a host").history());
        assert!((50..=54).contains(&after), "two hours without the gap: {after}");
    }
}
