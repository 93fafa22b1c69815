//! The GPUs of one host as cards: what each is doing beside its history.
//!
//! ```text
//! ━ ▸GPU 0 ━━━━━━━━━━━━━━━━━━━━━━ erika 22h torchrun ━  ─ GPU 1 ───────────────────────── bob z idle 42m ─
//!  GPU   97%  mem 41% 100%│⠉⠉⠉⠉⠉⠉⠉⡆⢸⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⡆   GPU    0%  mem  0% 100%│⠒⠒⠒⠒⠒⠒⠒⠒⠒⡄
//!  MEM  74/80G            │       ⡇⢸           ⡇   MEM  44/80G            │         ⡇
//!  PWR  640/700W          │       ⡇⢸           ⡇   PWR  88/700W           │         ⡇
//!  TMP  71°              0│       ⠧⠜           ⠧   TMP  38°              0│         ⣇⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
//!  GPU                    -10m        -5m    now
//! ```

use super::canvas::Canvas;
use super::chart::{self, AXIS_COLUMNS, Scale};
use super::format::{ShortString, age, brief_span, or_dash, rate, short, wrap};
use super::segments::Segments;
use super::{gpu_line, gpu_table};
use crate::app::host_layout::Cards;
use crate::app::{App, Focus, GpuSummary, HostSummary, Metric};
use crate::fleet::{GpuState, Host, HostId, Moment, SeriesKey, program_name};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Columns of the readings left of a chart.
const READING_COLUMNS: u16 = 20;

/// Draws the cards with the times below them.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    area: Rect,
    app: &App,
    host: &Host,
    summary: &HostSummary,
    cards: Cards,
    now: Moment,
) {
    for (position, gpu) in summary.gpus.iter().enumerate() {
        let (row, column) = (position as u16 / cards.per_row, position as u16 % cards.per_row);
        let cell = Rect {
            x: area.x + column * cards.columns,
            y: area.y + row * cards.rows,
            width: cards.columns - u16::from(cards.per_row > 1),
            height: cards.rows,
        };
        card(canvas, cell.intersection(area), app, host, position, gpu, now);
    }
    let y = area.bottom().saturating_sub(1);
    for column in 0..cards.per_row.min(summary.gpus.len() as u16) {
        let x = area.x + column * cards.columns;
        let width = cards.columns - u16::from(cards.per_row > 1);
        let words = short!("{} over {}", app.screen().metric.word(), app.screen().span.word());
        canvas.fit(x + 1, y, READING_COLUMNS, &words, canvas.theme.dim);
        let left = READING_COLUMNS + AXIS_COLUMNS + 1;
        chart::time_axis(canvas, x + left, y, width.saturating_sub(left), app.screen().span);
    }
}

fn card(canvas: &mut Canvas<'_>, area: Rect, app: &App, host: &Host, position: usize, gpu: &GpuSummary, now: Moment) {
    let theme = canvas.theme;
    let is_selected = app.screen().gpu == position;
    let is_focused = is_selected && app.screen().focus() == Focus::Panes;
    let glyphs = if is_focused { &theme.glyphs.heavy } else { &theme.glyphs.light };
    let rule = if is_focused { theme.focus } else { theme.dim };
    canvas.repeat(area.x, area.y, area.width, glyphs.horizontal, rule);
    let pointer = if is_focused { theme.glyphs.pointer } else { "" };
    let name = short!(" {pointer}{} ", gpu_line::name(gpu).as_str());
    let used = canvas.text(
        area.x + 1,
        area.y,
        area.width.saturating_sub(2),
        &name,
        if is_focused { rule } else { theme.plain },
    );
    let mut right = Segments::default();
    right.add(9, 0, short!(" "), theme.plain);
    add_occupancy(canvas, app, host.id, gpu, now, &mut right);
    right.add(9, 0, short!(" "), theme.plain);
    let available = area.width.saturating_sub(used + 3);
    right.fit(available);
    right.draw_right(canvas, area.x + used + 2, area.y, available);

    let inner = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if let Some(error) = &gpu.reading.error {
        for (row, line) in wrap(&error.message, usize::from(area.width.saturating_sub(2))).iter().enumerate() {
            if row < usize::from(inner.height) {
                canvas.text(area.x + 1, inner.y + row as u16, area.width.saturating_sub(1), line, theme.crit);
            }
        }
        return;
    }
    readings(canvas, Rect { x: inner.x + 1, width: READING_COLUMNS, ..inner }, gpu, app.screen().metric);
    let left = READING_COLUMNS + 1;
    let chart_area = Rect { x: inner.x + left, width: inner.width.saturating_sub(left), ..inner };
    let metric = app.screen().metric;
    let columns = chart_area.width.saturating_sub(AXIS_COLUMNS);
    let series = SeriesKey::Gpu(position, metric.series());
    let points = chart::read_points(canvas, host.history(), series, columns, app.screen().span, now);
    let scale = Scale::for_gpu(canvas, metric, gpu, &points);
    chart::draw(canvas, chart_area, &points, &scale, theme.busy);
}

/// Who holds it, for how long, with what: `erika 22h torchrun`; or the state where it is more than being in use.
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
    if gpu.state == GpuState::InUse && !gpu.shows_low_power() {
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
    let (words, style) = state_text(canvas, gpu, now);
    line.add(8, gap, words, style);
}

/// `? hung? 18m`, `z idle 42m`, `· free`, `low power 104W`.
pub(super) fn state_text(canvas: &Canvas<'_>, gpu: &GpuSummary, now: Moment) -> (ShortString, Style) {
    let theme = canvas.theme;
    if gpu.shows_low_power() {
        return (short!("low power {}", gpu_line::power(gpu, false).as_str()), theme.warn);
    }
    let glyph = gpu_line::state_glyph(theme, gpu.state);
    let since = match (gpu.state, gpu.since) {
        (GpuState::Hung | GpuState::Idle | GpuState::Waiting, Some(since)) => {
            short!(" {}", brief_span(now.since(since)).as_str())
        }
        _ => ShortString::new(),
    };
    (short!("{glyph} {}{}", gpu.state.word(), since.as_str()), gpu_line::state_style(theme, gpu.state))
}

/// As many readings as there are rows, those that matter most first; the one in the chart is bold.
fn readings(canvas: &mut Canvas<'_>, area: Rect, gpu: &GpuSummary, metric: Metric) {
    let theme = canvas.theme;
    let reading = &gpu.reading;
    let percent = |value: Option<u8>| or_dash(value.map(|value| short!("{value}%")).as_deref());
    let mut lines: Vec<(&str, ShortString, Style, bool)> = vec![
        (
            "GPU",
            short!(
                "{:>4}  mem {:>4}",
                percent(reading.utilization_percent).as_str(),
                percent(reading.memory_utilization_percent).as_str()
            ),
            theme.plain,
            matches!(metric, Metric::Utilization | Metric::MemoryBusy),
        ),
        ("MEM", gpu_line::memory_text(gpu), theme.plain, metric == Metric::Memory),
        ("PWR", gpu_line::power(gpu, true), theme.plain, metric == Metric::Power),
        (
            "TMP",
            temperatures(canvas, gpu),
            if gpu.is_hot { theme.warn } else { theme.plain },
            metric == Metric::Temperature,
        ),
    ];
    let (slowed, style) = gpu_table::reasons(theme, gpu);
    let clock = reading.clock_sm_mhz.map(|mhz| short!("{mhz} MHz"));
    let is_slowed = style == theme.warn;
    lines.push((
        "CLK",
        if is_slowed { short!("{slowed}") } else { or_dash(clock.as_deref()) },
        choose_style(is_slowed, theme.warn, theme.plain),
        false,
    ));
    if let (Some(received), Some(sent)) =
        (reading.nvlink_receive_bytes_per_second, reading.nvlink_transmit_bytes_per_second)
    {
        lines.push(("NVL", short!("{} {}", rate(received).as_str(), rate(sent).as_str()), theme.plain, false));
    }
    if let (Some(received), Some(sent)) =
        (reading.pcie_receive_bytes_per_second, reading.pcie_transmit_bytes_per_second)
    {
        lines.push(("PCI", short!("{} {}", rate(received).as_str(), rate(sent).as_str()), theme.plain, false));
    }
    if let Some(errors) = gpu.ecc_uncorrectable {
        lines.push(("ECC", short!("{errors}"), choose_style(errors > 0, theme.warn, theme.plain), false));
    }
    for (row, (label, words, style, is_charted)) in lines.into_iter().enumerate().take(usize::from(area.height)) {
        let y = area.y + row as u16;
        canvas.text(area.x, y, 3, label, if is_charted { theme.focus } else { theme.dim });
        canvas.fit(area.x + 4, y, area.width.saturating_sub(4), &words, style);
    }
}

fn choose_style(is_worse: bool, worse: Style, plain: Style) -> Style {
    if is_worse { worse } else { plain }
}

/// `71°`, with the memory's where it is told: `71° mem 78°`.
fn temperatures(canvas: &Canvas<'_>, gpu: &GpuSummary) -> ShortString {
    let core = gpu_line::temperature(canvas.theme, gpu);
    match gpu.reading.memory_temperature_celsius {
        Some(memory) => short!("{} mem {memory}{}", core.as_str(), canvas.theme.glyphs.degree),
        None => core,
    }
}
