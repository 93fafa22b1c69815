//! All GPUs of one host, a line each, with as many readings as there is room for.

use super::canvas::Canvas;
use super::format::{ShortString, or_dash, short, used_of_total};
use super::gpu_line;
use super::theme::Theme;
use crate::app::{Focus, GpuSummary, HostSummary, Screen};
use crate::fleet::Moment;
use crate::wire::ClocksEventReasons;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Bar,
    Utilization,
    MemoryBusy,
    Memory,
    Temperature,
    Power,
    SmClock,
    MemoryClock,
    Fan,
    PerformanceState,
    User,
    Sparkline,
    Reasons,
}

/// Columns in order: head, width, and how long each is kept.
const COLUMNS: [(Column, &str, u16, u8); 13] = [
    (Column::Bar, "", 14, 20),
    (Column::Utilization, "GPU%", 4, 19),
    (Column::MemoryBusy, "MEM-BUSY", 8, 13),
    (Column::Memory, "MEMORY", 9, 18),
    (Column::Temperature, "TEMP", 4, 17),
    (Column::Power, "POWER", 9, 16),
    (Column::SmClock, "SM MHz", 9, 12),
    (Column::MemoryClock, "MEM MHz", 9, 8),
    (Column::Fan, "FAN", 4, 9),
    (Column::PerformanceState, "P", 2, 10),
    (Column::User, "USER", 8, 15),
    (Column::Sparkline, "5 MIN", 30, 7),
    (Column::Reasons, "SLOWED BY", 24, 11),
];

/// Draws title, headers and the GPUs that are on the screen.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    area: Rect,
    screen: &Screen,
    summary: &HostSummary,
    shown: usize,
    now: Moment,
) {
    let focused = screen.focus() == Focus::Panes;
    let theme = canvas.theme;
    let glyphs = if focused { &theme.glyphs.heavy } else { &theme.glyphs.light };
    let style = if focused { theme.focus } else { theme.dim };
    canvas.repeat(area.x, area.y, area.width, glyphs.horizontal, style);
    let count = summary.gpus.len();
    let pointer = if focused { theme.glyphs.pointer } else { "" };
    let top = if screen.gpu >= shown { screen.gpu + 1 - shown } else { 0 };
    let title = if shown < count {
        short!(" {pointer}GPUs {}-{} of {count} ", top + 1, (top + shown).min(count))
    } else {
        short!(" {pointer}GPUs {count} ")
    };
    canvas.text(area.x + 1, area.y, area.width.saturating_sub(2), &title, if focused { style } else { theme.plain });

    let index_width = 4;
    let columns = fitting(area.width.saturating_sub(index_width + 2));
    let mut x = area.x + 1;
    canvas.right(x, area.y + 1, index_width - 1, "GPU", theme.dim);
    x += index_width;
    for &(column, head, width, _) in &columns {
        match column {
            Column::Bar | Column::User | Column::Reasons | Column::Sparkline => {
                canvas.text(x, area.y + 1, width, head, theme.dim);
            }
            _ => canvas.right(x, area.y + 1, width, head, theme.dim),
        }
        x += width + 1;
    }
    for (row, (position, gpu)) in summary.gpus.iter().enumerate().skip(top).take(shown).enumerate() {
        let line = Rect { x: area.x, y: area.y + 2 + row as u16, width: area.width, height: 1 };
        let selected = focused && position == screen.gpu;
        if selected {
            canvas.text(line.x, line.y, 1, theme.glyphs.pointer, theme.focus);
        }
        draw_gpu(canvas, line, &columns, gpu, now, if selected { theme.focus } else { theme.plain });
    }
}

fn draw_gpu(
    canvas: &mut Canvas<'_>,
    line: Rect,
    columns: &[(Column, &str, u16, u8)],
    gpu: &GpuSummary,
    now: Moment,
    style: Style,
) {
    let (theme, y) = (canvas.theme, line.y);
    let index = match gpu.instance {
        Some(instance) => short!("{}{instance}", theme.glyphs.last_child),
        None => short!("{}", gpu.index),
    };
    canvas.right(line.x + 1, y, 3, &index, style);
    let mut x = line.x + 5;
    for &(column, _, width, _) in columns {
        match column {
            Column::Bar => gpu_line::state(canvas, x, y, width, gpu, now),
            Column::User => {
                gpu_line::user(canvas, x, y, width, gpu);
            }
            Column::Sparkline => gpu_line::sparkline(canvas, x, y, width, &gpu.sparkline),
            Column::Reasons if gpu.reading.error.is_some() => {
                let message = gpu.reading.error.as_ref().map_or("", |error| error.message.as_str());
                canvas.fit(x, y, width, message, theme.crit);
            }
            Column::Reasons => {
                let (words, style) = reasons(theme, gpu);
                canvas.fit(x, y, width, &words, style);
            }
            Column::Temperature => {
                let style = if gpu.is_hot { theme.warn } else { style };
                canvas.right(x, y, width, &gpu_line::temperature(theme, gpu), style);
            }
            _ => canvas.right(x, y, width, &figure(column, gpu), style),
        }
        x += width + 1;
    }
}

fn figure(column: Column, gpu: &GpuSummary) -> ShortString {
    let reading = &gpu.reading;
    let percent = |value: Option<u8>| or_dash(value.map(|value| short!("{value}%")).as_deref());
    match column {
        Column::Utilization => percent(reading.utilization_percent),
        Column::MemoryBusy => percent(reading.memory_utilization_percent),
        Column::Memory => used_of_total(reading.memory_used_bytes, gpu.memory_total_bytes),
        Column::Power => gpu_line::power(gpu, true),
        Column::SmClock => or_dash(reading.clock_sm_mhz),
        Column::MemoryClock => or_dash(reading.clock_memory_mhz),
        Column::Fan => or_dash(reading.fan_percent.map(|value| short!("{value}%")).as_deref()),
        Column::PerformanceState => or_dash(reading.performance_state.map(|state| short!("P{state}")).as_deref()),
        Column::Bar | Column::User | Column::Sparkline | Column::Reasons | Column::Temperature => ShortString::new(),
    }
}

/// What keeps the clocks down. Being idle and the power cap are how a GPU works, and not worth a colour.
pub(super) fn reasons(theme: &Theme, gpu: &GpuSummary) -> (String, Style) {
    let Some(mask) = gpu.reading.clocks_event_reasons else { return ("-".to_owned(), theme.dim) };
    let reasons = ClocksEventReasons(mask);
    let words = reasons.names().collect::<Vec<_>>().join(", ");
    let style = if reasons.is_hardware_slowdown() || reasons.is_thermal() { theme.warn } else { theme.dim };
    (words, style)
}

/// The columns that fit, the least important left out.
fn fitting(width: u16) -> Vec<(Column, &'static str, u16, u8)> {
    let mut columns = COLUMNS.to_vec();
    let used = |columns: &[(Column, &str, u16, u8)]| columns.iter().map(|(_, _, width, _)| width + 1).sum::<u16>();
    while used(&columns) > width + 1 && columns.len() > 1 {
        let least = columns.iter().map(|(_, _, _, priority)| *priority).min();
        columns.retain(|(_, _, _, priority)| Some(*priority) != least);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_fit_are_those_kept_longest() {
        let headers = |width| fitting(width).iter().map(|(_, head, _, _)| *head).collect::<Vec<_>>().join(" ");
        assert_eq!(headers(34), " GPU% MEMORY TEMP");
        assert_eq!(headers(74), " GPU% MEM-BUSY MEMORY TEMP POWER SM MHz USER");
        assert_eq!(fitting(200).len(), COLUMNS.len());
    }
}
