//! One GPU in one line, for panes, the wall and the GPU table.
//!
//! ```text
//! 0 ━━━━━━━━━━╸  97% 74/80G 71° 656/700W erika    ▅▆▇▇▇▇▇▇
//! 1 low power╌╌ 100% 70/80G 45° 118/700W dmitri   ▇▇▇▇▇▇▇▇
//! 2 ? stuck? 1m 100% 70/80G 45° 118/700W dmitri   ▇▇▇▇▇▇▇▇
//! 3 ? hung? 18m 100% 70/80G 45° 118/700W dmitri   ▇▇▇▇▇▇▇▇
//! 4 z idle 42m    0% 44/80G 38°  88/700W bob
//! 5 · free        0%  0/80G 31°  64/700W
//! 6 ! lost  Unable to determine the device handle
//! ```
//!
//! [`GpuColumns`] decides which values fit and how wide they are.

use super::canvas::Canvas;
use super::chart::sparkline;
use super::format::{ShortString, brief_span, columns, gib, or_dash, rounded, short, used_of_total};
use super::theme::Theme;
use crate::app::{GpuSummary, HostSummary};
use crate::fleet::{GpuState, Moment};
use crate::wire::{DeviceError, DriverErrorKind};
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
    if let Some(error) = &gpu.reading.error {
        // No value is known, so the reason has the whole line.
        x += canvas.fit(x, y, line.right().saturating_sub(x), &fault_text(error), theme.crit) + 2;
        canvas.fit(x, y, line.right().saturating_sub(x), &error.message, theme.crit);
        return;
    }
    state(canvas, x, y, columns.bar, gpu, now);
    x += columns.bar;
    let mut draw_value = |canvas: &mut Canvas<'_>, gap: u16, width: u16, text: &str, style: Style| {
        if width > 0 {
            canvas.right(x + gap, y, width, text, style);
            x += width + gap;
        }
    };
    let reading = &gpu.reading;
    let percent = reading.utilization_percent.map(|percent| short!("{percent}%"));
    let is_stuck = gpu.looks_stuck();
    // The utilisation of a stuck job says nothing, its power does.
    let percent = percent.filter(|_| !is_stuck || columns.power > 0).or_else(|| is_stuck.then(|| power(gpu, false)));
    draw_value(canvas, 1, columns.percent, &or_dash(percent.as_deref()), theme.plain);
    let memory = memory_used_text(gpu, columns.with_total);
    draw_value(canvas, columns.gap, columns.memory, &memory, theme.plain);
    let heat = if gpu.is_hot { theme.warn } else { theme.plain };
    let degrees = temperature(theme, gpu);
    draw_value(canvas, columns.gap, columns.temperature, &degrees, heat);
    draw_value(canvas, columns.gap, columns.power, &power(gpu, columns.with_limit), theme.plain);
    if columns.user > 0 {
        user(canvas, x + columns.gap, y, columns.user, gpu);
        x += columns.user + columns.gap;
    }
    if columns.temperature == 0 && gpu.is_hot && columns.user > 4 {
        // A temperature that warns is shown even without a temperature column: over the end of the user name.
        canvas.right(x - 4, y, 4, &short!(" {}", degrees.as_str()), heat);
    }
    if columns.sparkline > 0 {
        let area = Rect { x: line.right() - columns.sparkline, width: columns.sparkline, ..line };
        sparkline(canvas, area, &gpu.sparkline, theme.utilization_style(is_stuck));
    }
}

/// `71°`, or `71C` in ASCII.
pub(super) fn temperature(theme: &Theme, gpu: &GpuSummary) -> ShortString {
    match gpu.reading.temperature_celsius {
        Some(celsius) => short!("{celsius}{}", theme.glyphs.degree),
        None => short!("-"),
    }
}

/// `GPU 0`, or `GPU 0 MIG 2` for an instance.
pub(super) fn name(gpu: &GpuSummary) -> ShortString {
    match gpu.instance {
        Some(instance) => short!("GPU {} MIG {instance}", gpu.index),
        None => short!("GPU {}", gpu.index),
    }
}

/// Used and total memory, `41/119G shared` if the GPU shares the memory of the host.
pub(super) fn memory_text(gpu: &GpuSummary) -> ShortString {
    let text = memory_used_text(gpu, true);
    if gpu.is_unified { short!("{} shared", text.as_str()) } else { text }
}

/// Used memory, with the total on request.
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

/// Draws the main user, `fumi+1` if one other user holds memory on the GPU.
pub(super) fn user(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, gpu: &GpuSummary) -> u16 {
    let Some(name) = &gpu.main_user else { return 0 };
    let mut others = ShortString::new();
    if gpu.other_users > 0 {
        // Writing to this buffer cannot fail.
        let _ = write!(others, "+{}", gpu.other_users);
    }
    let others_width = (others.len() as u16).min(width);
    let used = canvas.fit(x, y, width - others_width, name, canvas.theme.plain);
    used + canvas.text(x + used, y, others_width, &others, canvas.theme.dim)
}

/// `! lost`: why a GPU cannot be read, in a word or two.
pub(super) fn fault_text(error: &DeviceError) -> ShortString {
    let reason = match error.kind {
        DriverErrorKind::GpuLost => "lost",
        DriverErrorKind::ResetRequired => "needs reset",
        DriverErrorKind::Blocked => "no answer",
        DriverErrorKind::NoPermission => "no access",
        _ => "fault",
    };
    short!("! {reason}")
}

/// The state of a GPU as one glyph: a height for work, else the glyph of its state.
pub(super) fn cell(theme: &Theme, gpu: &GpuSummary) -> (&'static str, Style) {
    let (state, _) = shown_state(gpu);
    match (state, gpu.reading.utilization_percent) {
        _ if gpu.reading.error.is_some() => ("!", theme.crit),
        _ if gpu.suspected().is_some() => ("?", theme.warn),
        (GpuState::InUse, Some(percent)) => (theme.level_glyph(f32::from(percent)), theme.busy),
        _ => (theme.state_glyph(state), theme.state_style(state, gpu.severity)),
    }
}

/// The state, or the last known one if there is no fresh data; the caller dims it.
pub(super) fn shown_state(gpu: &GpuSummary) -> (GpuState, Option<Moment>) {
    if gpu.state == GpuState::Unknown { gpu.last_state } else { (gpu.state, gpu.since) }
}

/// Draws the utilisation bar, or the state if it is not ordinary work.
pub(super) fn state(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, gpu: &GpuSummary, now: Moment) {
    let theme = canvas.theme;
    if let Some(error) = &gpu.reading.error {
        draw_longest_fitting(canvas, x, y, width, &[fault_text(error), short!("!")], theme.crit);
        return;
    }
    if let Some(since) = gpu.suspected() {
        let (since, power) = (brief_span(now.since(since)), power(gpu, false));
        let texts = [
            short!("? stuck? {} {}", since.as_str(), power.as_str()),
            short!("stuck? {} {}", since.as_str(), power.as_str()),
            short!("? stuck? {}", since.as_str()),
            short!("stuck? {}", since.as_str()),
            short!("? {}", since.as_str()),
            short!("?"),
        ];
        draw_longest_fitting(canvas, x, y, width, &texts, theme.warn);
        return;
    }
    let (state, since) = shown_state(gpu);
    let style = theme.state_style(state, gpu.severity);
    let since = since.map(|since| brief_span(now.since(since)));
    let texts = match (state, since) {
        (GpuState::InUse, _) if gpu.shows_low_power() => {
            let power = power(gpu, false);
            let texts = [short!("low power {}", power.as_str()), short!("low {}", power.as_str()), short!("low")];
            let used = draw_longest_fitting(canvas, x, y, width, &texts, theme.plain);
            let gap = u16::from(used > 0 && used < width);
            let rest = width - used - gap;
            canvas.repeat(x + used + gap, y, rest, theme.glyphs.bar_hollow, theme.busy);
            return;
        }
        // Stale readings stay visible, dim, until there are new ones.
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
            let glyph = theme.state_glyph(state);
            let word = if state == GpuState::Unknown { "no data" } else { state.word() };
            [short!("{glyph} {word}"), short!("{glyph}"), ShortString::new(), ShortString::new()]
        }
    };
    draw_longest_fitting(canvas, x, y, width, &texts, style);
}

/// Draws the longest of the texts that fits.
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

/// Draws a horizontal bar in steps of half a cell. Full blocks in consecutive rows would merge, so it is a heavy line.
pub(super) fn bar(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, percent: Option<u8>) {
    let theme = canvas.theme;
    canvas.repeat(x, y, width, theme.track_glyph(), theme.track);
    let percent = u32::from(percent.unwrap_or(0).min(100));
    let halves = ((percent * 2 * u32::from(width) + 50) / 100) as u16;
    // A small value is still visible.
    let halves = if percent > 0 { halves.max(1) } else { 0 };
    canvas.repeat(x, y, halves / 2, theme.glyphs.bar_full, theme.busy);
    if halves % 2 == 1 {
        canvas.text(x + halves / 2, y, 1, theme.glyphs.bar_half, theme.busy);
    }
}

/// The widths of values in a fleet, the same for all panes so that columns align.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ValueWidths {
    /// Columns of the GPU index.
    pub(super) index: u16,
    /// Digits of gibibytes.
    pub(super) memory: u16,
    /// Digits of watts.
    pub(super) power: u16,
}

impl ValueWidths {
    /// The widths of the widest values of these hosts.
    pub(super) fn of<'a>(hosts: impl Iterator<Item = &'a HostSummary>) -> Self {
        let mut widths = Self { index: 1, memory: 2, power: 3 };
        for gpu in hosts.flat_map(|host| &host.gpus) {
            let memory = gpu.memory_total_bytes.unwrap_or(0) >> 30;
            let power = gpu.power_limit_watts.unwrap_or(0.0).max(0.0) as u64;
            widths.index = widths.index.max(digits(u64::from(gpu.index)).min(3));
            widths.memory = widths.memory.max(digits(memory).min(4));
            widths.power = widths.power.max(digits(power).min(4));
        }
        widths
    }
}

fn digits(number: u64) -> u16 {
    number.checked_ilog10().unwrap_or(0) as u16 + 1
}

/// The width of each column of a GPU line, 0 if it is not shown. One empty column precedes each value but the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GpuColumns {
    pub(super) index: u16,
    /// The bar, or the text of a state instead.
    pub(super) bar: u16,
    /// Utilisation.
    pub(super) percent: u16,
    /// Used memory, with the total if `with_total`.
    pub(super) memory: u16,
    pub(super) with_total: bool,
    pub(super) temperature: u16,
    /// Power, with its limit if `with_limit`.
    pub(super) power: u16,
    pub(super) with_limit: bool,
    pub(super) user: u16,
    /// Utilisation in the last minutes.
    pub(super) sparkline: u16,
    /// Empty columns before memory, temperature, power and user: 1, or 2 on wide lines.
    pub(super) gap: u16,
}

impl GpuColumns {
    /// Chooses the columns for a line of `width`. Columns added last are dropped first: sparkline, power limit, power, memory
    /// total, temperature, user, a longer bar, used memory, percent. The index and one column of state always stay.
    pub(super) fn of(width: u16, widths: ValueWidths) -> Self {
        let mut columns = Self { index: widths.index.min(width), gap: 1, ..Self::default() };
        let mut rest = width.saturating_sub(columns.index + 1);
        let mut take = |wanted: u16, least: u16| {
            let taken = if rest >= least { wanted.min(rest) } else { 0 };
            rest -= taken;
            taken
        };
        columns.bar = take(1, 1);
        columns.percent = take(5, 5).saturating_sub(1);
        columns.memory = take(widths.memory + 2, widths.memory + 2).saturating_sub(1);
        columns.bar += take(5, 1);
        columns.user = take(9, 9).saturating_sub(1);
        columns.bar += take(3, 1);
        columns.temperature = take(4, 4).saturating_sub(1);
        let total = take(widths.memory + 1, widths.memory + 1);
        columns.with_total = total > 0;
        columns.memory += total;
        columns.bar += take(2, 1);
        columns.power = take(widths.power + 2, widths.power + 2).saturating_sub(1);
        // The power limit is equal on nearly all lines: wider gaps are worth more until a sparkline fits, too.
        let limit = if columns.power > 0 { take(widths.power + 1, widths.power + 7) } else { 0 };
        columns.with_limit = limit > 0;
        columns.power += limit;
        columns.sparkline = take(25, 6).saturating_sub(1);
        columns.gap += if columns.power > 0 { take(4, 4) / 4 } else { 0 };
        columns.bar += take(9, 1);
        columns.user += take(8, 1);
        if columns.sparkline > 0 {
            columns.sparkline += take(6, 1);
        }
        columns.bar += take(20, 1);
        columns
    }

    /// The sum of all columns.
    #[cfg(test)]
    fn width(&self) -> u16 {
        let widths = [self.percent, self.memory, self.temperature, self.power, self.user, self.sparkline];
        let shown = widths.into_iter().filter(|width| *width > 0);
        let airy = if self.gap == 2 { 4 } else { 0 };
        self.index + 1 + self.bar + shown.map(|width| width + 1).sum::<u16>() + airy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H100: ValueWidths = ValueWidths { index: 1, memory: 2, power: 3 };

    #[test]
    fn values_appear_in_order_of_importance() {
        let shown = |width| {
            let columns = GpuColumns::of(width, H100);
            (columns.bar, columns.user, columns.temperature, columns.with_total, columns.power, columns.sparkline)
        };
        assert_eq!(shown(18), (7, 0, 0, false, 0, 0));
        assert_eq!(shown(27), (7, 8, 0, false, 0, 0));
        assert_eq!(shown(36), (9, 8, 3, true, 0, 0));
        assert_eq!(shown(38), (11, 8, 3, true, 0, 0));
        assert_eq!(shown(48), (12, 8, 3, true, 4, 0));
        assert_eq!(GpuColumns::of(48, H100).gap, 2);
        assert_eq!(shown(58), (11, 8, 3, true, 8, 10));
    }

    #[test]
    fn the_power_limit_needs_the_power() {
        let columns = GpuColumns::of(42, H100);
        assert!(!columns.with_limit || columns.power > 4);
    }

    proptest! {
        #[test]
        fn columns_never_exceed_the_line(width in 0u16..200, index in 1u16..4, memory in 1u16..5, power in 1u16..5) {
            let columns = GpuColumns::of(width, ValueWidths { index, memory, power });
            prop_assert!(columns.width() <= width.max(columns.index + 1), "{:?}", columns);
        }
    }
}
