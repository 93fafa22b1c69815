//! All GPUs of one host, a line each, with as many readings as there is room for.

use super::format::{Short, or_dash, short, used_of_total};
use super::gpu_line;
use super::pen::Pen;
use super::theme::Theme;
use crate::app::{Focus, GpuFigures, HostFigures, Screen};
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
    Trend,
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
    (Column::Trend, "5 MIN", 30, 7),
    (Column::Reasons, "SLOWED BY", 24, 11),
];

/// Draws title, heads and the GPUs that are on the screen.
pub(super) fn draw(pen: &mut Pen<'_>, area: Rect, screen: &Screen, figures: &HostFigures, shown: usize, now: Moment) {
    let focused = screen.focus() == Focus::Panes;
    let theme = pen.theme;
    let glyphs = if focused { &theme.glyphs.heavy } else { &theme.glyphs.light };
    let style = if focused { theme.focus } else { theme.dim };
    pen.repeat(area.x, area.y, area.width, glyphs.horizontal, style);
    let count = figures.gpus.len();
    let pointer = if focused { theme.glyphs.pointer } else { "" };
    let top = if screen.gpu >= shown { screen.gpu + 1 - shown } else { 0 };
    let title = if shown < count {
        short!(" {pointer}GPUs {}-{} of {count} ", top + 1, (top + shown).min(count))
    } else {
        short!(" {pointer}GPUs {count} ")
    };
    pen.text(area.x + 1, area.y, area.width.saturating_sub(2), &title, if focused { style } else { theme.plain });

    let index_width = 4;
    let columns = fitting(area.width.saturating_sub(index_width + 2));
    let mut x = area.x + 1;
    pen.right(x, area.y + 1, index_width - 1, "GPU", theme.dim);
    x += index_width;
    for &(column, head, width, _) in &columns {
        match column {
            Column::Bar | Column::User | Column::Reasons | Column::Trend => {
                pen.text(x, area.y + 1, width, head, theme.dim);
            }
            _ => pen.right(x, area.y + 1, width, head, theme.dim),
        }
        x += width + 1;
    }
    for (row, (position, gpu)) in figures.gpus.iter().enumerate().skip(top).take(shown).enumerate() {
        let line = Rect { x: area.x, y: area.y + 2 + row as u16, width: area.width, height: 1 };
        let selected = focused && position == screen.gpu;
        if selected {
            pen.text(line.x, line.y, 1, theme.glyphs.pointer, theme.focus);
        }
        draw_gpu(pen, line, &columns, gpu, now, if selected { theme.focus } else { theme.plain });
    }
}

fn draw_gpu(
    pen: &mut Pen<'_>,
    line: Rect,
    columns: &[(Column, &str, u16, u8)],
    gpu: &GpuFigures,
    now: Moment,
    style: Style,
) {
    let (theme, y) = (pen.theme, line.y);
    let index = match gpu.instance {
        Some(instance) => short!("{}{instance}", theme.glyphs.last_child),
        None => short!("{}", gpu.index),
    };
    pen.right(line.x + 1, y, 3, &index, style);
    let mut x = line.x + 5;
    for &(column, _, width, _) in columns {
        match column {
            Column::Bar => gpu_line::state(pen, x, y, width, gpu, now),
            Column::User => {
                gpu_line::user(pen, x, y, width, gpu);
            }
            Column::Trend => gpu_line::sparkline(pen, x, y, width, &gpu.trend),
            Column::Reasons if gpu.reading.error.is_some() => {
                let message = gpu.reading.error.as_ref().map_or("", |error| error.message.as_str());
                pen.fit(x, y, width, message, theme.crit);
            }
            Column::Reasons => {
                let (words, style) = reasons(theme, gpu);
                pen.fit(x, y, width, &words, style);
            }
            Column::Temperature => {
                let style = if gpu.is_hot { theme.warn } else { style };
                pen.right(x, y, width, &gpu_line::temperature(theme, gpu), style);
            }
            _ => pen.right(x, y, width, &figure(column, gpu), style),
        }
        x += width + 1;
    }
}

fn figure(column: Column, gpu: &GpuFigures) -> Short {
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
        Column::Bar | Column::User | Column::Trend | Column::Reasons | Column::Temperature => Short::new(),
    }
}

/// What keeps the clocks down. Being idle and the power cap are how a GPU works, and not worth a colour.
pub(super) fn reasons(theme: &Theme, gpu: &GpuFigures) -> (String, Style) {
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
        let least = columns.iter().map(|(_, _, _, keep)| *keep).min();
        columns.retain(|(_, _, _, keep)| Some(*keep) != least);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_fit_are_those_kept_longest() {
        let heads = |width| fitting(width).iter().map(|(_, head, _, _)| *head).collect::<Vec<_>>().join(" ");
        assert_eq!(heads(34), " GPU% MEMORY TEMP");
        assert_eq!(heads(74), " GPU% MEM-BUSY MEMORY TEMP POWER SM MHz USER");
        assert_eq!(fitting(200).len(), COLUMNS.len());
    }
}
