//! One GPU in one line.
//!
//! ```text
//! 0 ━━━━━━━━━━╸  97% 74/80G 71° 656/700W erika    ▅▆▇▇▇▇▇▇
//! 1 low power╌╌ 100% 70/80G 45° 118/700W dmitri   ▇▇▇▇▇▇▇▇
//! 2 ? hung? 18m 100% 70/80G 45° 118/700W dmitri   ▇▇▇▇▇▇▇▇
//! 3 z idle 42m    0% 44/80G 38°  88/700W bob
//! 4 · free        0%  0/80G 31°  64/700W
//! ```

use super::canvas::Canvas;
use super::format::{ShortString, brief_span, columns, gib, or_dash, rounded, short, used_of_total};
use super::gpu_columns::GpuColumns;
use super::theme::Theme;
use crate::app::GpuSummary;
use crate::fleet::{GpuState, Moment};
use ratatui::layout::Rect;
use ratatui::style::Style;
use std::fmt::Write as _;

/// Draws a GPU into one line.
pub(super) fn draw(canvas: &mut Canvas<'_>, line: Rect, columns: &GpuColumns, gpu: &GpuSummary, now: Moment) {
    let (theme, y) = (canvas.theme, line.y);
    let mut x = line.x;
    let index = if gpu.instance.is_some() { short!("{}", theme.glyphs.last_child) } else { short!("{}", gpu.index) };
    canvas.right(x, y, columns.index, &index, theme.plain);
    x += columns.index + 1;
    state(canvas, x, y, columns.bar, gpu, now);
    x += columns.bar;
    if let Some(error) = &gpu.reading.error {
        canvas.fit(x + 1, y, line.right().saturating_sub(x + 1), &error.message, theme.crit);
        return;
    }
    let mut figure = |canvas: &mut Canvas<'_>, gap: u16, width: u16, text: &str, style: Style| {
        if width > 0 {
            canvas.right(x + gap, y, width, text, style);
            x += width + gap;
        }
    };
    let reading = &gpu.reading;
    let percent = reading.utilization_percent.map(|percent| short!("{percent}%"));
    figure(canvas, 1, columns.percent, &or_dash(percent.as_deref()), theme.plain);
    let memory = memory_used_text(gpu, columns.with_total);
    figure(canvas, columns.gap, columns.memory, &memory, theme.plain);
    let heat = if gpu.is_hot { theme.warn } else { theme.plain };
    let degrees = temperature(theme, gpu);
    figure(canvas, columns.gap, columns.temperature, &degrees, heat);
    figure(canvas, columns.gap, columns.power, &power(gpu, columns.with_limit), theme.plain);
    if columns.user > 0 {
        user(canvas, x + columns.gap, y, columns.user, gpu);
        x += columns.user + columns.gap;
    }
    if columns.temperature == 0 && gpu.is_hot && columns.user > 4 {
        // Where there is no room for temperatures, one that warns takes the end of the name.
        canvas.right(x - 4, y, 4, &short!(" {}", degrees.as_str()), heat);
    }
    if columns.sparkline > 0 {
        sparkline(canvas, line.right() - columns.sparkline, y, columns.sparkline, &gpu.sparkline);
    }
}

/// `71°`, `71C` in ASCII.
pub(super) fn temperature(theme: &Theme, gpu: &GpuSummary) -> ShortString {
    match gpu.reading.temperature_celsius {
        Some(celsius) => short!("{celsius}{}", theme.glyphs.degree),
        None => short!("-"),
    }
}

/// What a GPU is called beside its readings: `GPU 0`, `GPU 0 MIG 2`.
pub(super) fn name(gpu: &GpuSummary) -> ShortString {
    match gpu.instance {
        Some(instance) => short!("GPU {} MIG {instance}", gpu.index),
        None => short!("GPU {}", gpu.index),
    }
}

/// Memory as the readings of one GPU tell it: `41/119G shared` where it is the host's.
pub(super) fn memory_text(gpu: &GpuSummary) -> ShortString {
    let words = memory_used_text(gpu, true);
    if gpu.is_unified { short!("{} shared", words.as_str()) } else { words }
}

/// Memory used, of its total where `with_total`.
pub(super) fn memory_used_text(gpu: &GpuSummary, with_total: bool) -> ShortString {
    let used = gpu.reading.memory_used_bytes;
    if with_total {
        used_of_total(used, gpu.memory_total_bytes)
    } else {
        or_dash(used.map(|bytes| short!("{}G", gib(bytes))).as_deref())
    }
}

/// `656W`, `656/700W`.
pub(super) fn power(gpu: &GpuSummary, with_limit: bool) -> ShortString {
    match (gpu.power_watts(), gpu.power_limit_watts) {
        (Some(watts), Some(limit)) if with_limit => short!("{}/{}W", rounded(watts), rounded(limit)),
        (Some(watts), _) => short!("{}W", rounded(watts)),
        (None, _) => short!("-"),
    }
}

/// `fumi`, `fumi+1` where one other holds memory there as well.
pub(super) fn user(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, gpu: &GpuSummary) -> u16 {
    let Some(name) = &gpu.main_user else { return 0 };
    let mut others = ShortString::new();
    if gpu.other_users > 0 {
        // Writing into this buffer cannot fail.
        let _ = write!(others, "+{}", gpu.other_users);
    }
    let others_width = (others.len() as u16).min(width);
    let used = canvas.fit(x, y, width - others_width, name, canvas.theme.plain);
    used + canvas.text(x + used, y, others_width, &others, canvas.theme.dim)
}

/// The bar, or the words of a state in its place.
pub(super) fn state(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, gpu: &GpuSummary, now: Moment) {
    let theme = canvas.theme;
    let style = state_style(theme, gpu.state);
    if gpu.reading.error.is_some() || gpu.state == GpuState::Fault {
        draw_longest_fitting(canvas, x, y, width, &[short!("! fault"), short!("!")], theme.crit);
        return;
    }
    let since = gpu.since.map(|since| brief_span(now.since(since)));
    let texts = match (gpu.state, since) {
        (GpuState::InUse, _) if gpu.shows_low_power() => {
            let power = power(gpu, false);
            let texts = [short!("low power {}", power.as_str()), short!("low {}", power.as_str()), short!("low")];
            let used = draw_longest_fitting(canvas, x, y, width, &texts, theme.plain);
            let gap = u16::from(used > 0 && used < width);
            let rest = width - used - gap;
            canvas.repeat(x + used + gap, y, rest, theme.glyphs.bar_hollow, theme.busy);
            return;
        }
        // Readings that are no longer fresh stay, dim, for as long as there are no others.
        (GpuState::InUse | GpuState::Unknown, _) if gpu.reading.utilization_percent.is_some() => {
            bar(canvas, x, y, width, gpu.reading.utilization_percent);
            return;
        }
        (GpuState::Hung, Some(since)) => [
            short!("? hung? {}", since.as_str()),
            short!("hung? {}", since.as_str()),
            short!("? {}", since.as_str()),
            short!("?"),
        ],
        (GpuState::Idle, Some(since)) => {
            [short!("z idle {}", since.as_str()), short!("z {}", since.as_str()), short!("z idle"), short!("z")]
        }
        (state, _) => {
            let glyph = state_glyph(theme, state);
            let word = if state == GpuState::Unknown { "no data" } else { state.word() };
            [short!("{glyph} {word}"), short!("{glyph}"), ShortString::new(), ShortString::new()]
        }
    };
    draw_longest_fitting(canvas, x, y, width, &texts, style);
}

/// The glyph of a state, so that nothing depends on colour.
pub(super) fn state_glyph(theme: &Theme, state: GpuState) -> &'static str {
    match state {
        GpuState::Fault => "!",
        GpuState::Hung => "?",
        GpuState::Unknown => "~",
        GpuState::InUse => theme.glyphs.bar_full,
        GpuState::Waiting => "w",
        GpuState::Idle => "z",
        GpuState::Free => theme.glyphs.free,
        GpuState::Unused => "-",
    }
}

/// The style of a state.
pub(super) fn state_style(theme: &Theme, state: GpuState) -> Style {
    match state {
        GpuState::Fault | GpuState::Hung => theme.crit,
        GpuState::InUse => theme.busy,
        GpuState::Unknown | GpuState::Waiting | GpuState::Idle | GpuState::Free | GpuState::Unused => theme.dim,
    }
}

/// The longest of the texts that fits.
fn draw_longest_fitting(
    canvas: &mut Canvas<'_>,
    x: u16,
    y: u16,
    width: u16,
    texts: &[ShortString],
    style: Style,
) -> u16 {
    let fitting = texts.iter().find(|text| !text.is_empty() && columns(text) <= usize::from(width));
    fitting.map_or(0, |text| canvas.text(x, y, width, text, style))
}

/// A heavy line on a track: it leaves air between the rows, which full blocks do not. Halves of cells count.
pub(super) fn bar(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, percent: Option<u8>) {
    let theme = canvas.theme;
    canvas.repeat(x, y, width, theme.track_glyph(), theme.track);
    let percent = u32::from(percent.unwrap_or(0).min(100));
    let halves = ((percent * 2 * u32::from(width) + 50) / 100) as u16;
    // A little is not nothing.
    let halves = if percent > 0 { halves.max(1) } else { 0 };
    canvas.repeat(x, y, halves / 2, theme.glyphs.bar_full, theme.busy);
    if halves % 2 == 1 {
        canvas.text(x + halves / 2, y, 1, theme.glyphs.bar_half, theme.busy);
    }
}

/// The last points of a series as a line, two a column, the newest at the right. A line leaves air where filled columns
/// would melt with those of the GPU below.
pub(super) fn sparkline(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, points: &[Option<f32>]) {
    let theme = canvas.theme;
    let per_column = if theme.ascii { 1 } else { 2 };
    let shown = points.len().min(usize::from(width) * per_column) / per_column * per_column;
    let start = x + width - (shown / per_column) as u16;
    let mut before: Option<usize> = None;
    for (at, pair) in (start..).zip(points[points.len() - shown..].chunks(per_column)) {
        let heights = pair.iter().map(|point| point.map(|percent| ((percent / 25.0) as usize).min(3)));
        if theme.ascii {
            if let Some(height) = heights.flatten().next() {
                canvas.text(at, y, 1, theme.glyphs.sparkline[height], theme.busy);
            }
            continue;
        }
        let mut dots = 0;
        for (height, column) in heights.zip(BRAILLE_DOTS) {
            if let Some(height) = height {
                let from = before.unwrap_or(height);
                dots |= column[from.min(height)..=from.max(height)].iter().sum::<u32>();
            }
            before = height;
        }
        if let Some(glyph) = char::from_u32(0x2800 + dots).filter(|_| dots > 0) {
            canvas.text(at, y, 1, glyph.encode_utf8(&mut [0; 4]), theme.busy);
        }
    }
}

/// Dots of a braille character, left column and right, from the lowest up (Unicode, Braille Patterns).
const BRAILLE_DOTS: [[u32; 4]; 2] = [[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]];

/// The glyph for a percentage.
pub(super) fn level(theme: &Theme, percent: f32) -> &'static str {
    theme.glyphs.levels[eighth(percent)]
}

fn eighth(percent: f32) -> usize {
    ((percent / 12.5) as usize).min(7)
}
