//! The first row: what there is in all, and what is wrong.
//!
//! ```text
//!  gpufleet  6 hosts 48 GPUs   37 busy  4 idle  2 hung?  5 free    mem 2126/3840G    power 21.4 kW   every 2s   14:02:31
//! ```

use super::canvas::Canvas;
use super::findings::severity_style;
use super::format::{clock, gib, interval, short, watts};
use super::segments::Segments;
use crate::app::App;
use crate::fleet::{GpuState, Moment, Totals};
use ratatui::layout::Rect;

/// How long the interval and the clock are kept; on the left, what is kept longer than the clock.
const INTERVAL: u8 = 1;
const CLOCK: u8 = 5;
const NEEDED: u8 = 11;

/// Draws the header.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    if area.width < 4 {
        return;
    }
    let (x, width) = (area.x + 1, area.width - 2);
    let mut right = right_side(canvas, app, now);
    right.fit(width);
    let mut left = left_side(canvas, app);
    if left.width() + right.width() + 2 > width {
        // The interval is the first to go, before anything on the left.
        right.drop_below_priority(INTERVAL + 1);
    }
    if left.width_from_priority(NEEDED) + right.width() + 2 > width {
        // Then the clock, before how many hosts there are and what is wrong with them.
        right.drop_below_priority(CLOCK + 1);
    }
    right.draw_right(canvas, x, area.y, width);
    let available = width.saturating_sub(right.width() + 2);
    left.fit(available);
    left.draw(canvas, x, area.y, available);
}

fn left_side(canvas: &Canvas<'_>, app: &App) -> Segments {
    let theme = canvas.theme;
    let (totals, links) = (app.totals(), app.links());
    let mut line = Segments::default();
    line.add(4, 0, short!("gpufleet"), theme.focus);
    let hosts = app.fleet().hosts().len();
    let gpus = totals.gpus;
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    if totals.hosts_covered as usize == hosts {
        line.add(12, 2, short!("{hosts} host{} {gpus} GPU{}", plural(hosts), plural(gpus as usize)), theme.plain);
    } else {
        let covered = totals.hosts_covered;
        line.add(12, 2, short!("{gpus} GPU{} on {covered} of {hosts} hosts", plural(gpus as usize)), theme.plain);
    }
    let (hidden, ruled_out) = app.hidden_host_counts();
    if ruled_out > 0 {
        line.add(12, 2, short!("{} of {hosts} hosts shown", hosts - hidden - ruled_out), theme.warn);
    }
    if hidden > 0 {
        line.add(12, 2, short!("{hidden} hidden"), theme.plain);
    }
    for (priority, count, word, style) in [
        (5, links.connecting, "connecting", theme.dim),
        (10, links.down, "down", theme.warn),
        (9, links.stale, "stale", theme.warn),
        (11, links.needs_user, "need you", theme.warn),
    ] {
        if count > 0 {
            line.add(priority, 2, short!("{count} {word}"), style);
        }
    }
    add_counts(&mut line, canvas, totals, 2);
    let findings = app.findings().is_alerting();
    if findings.firing > 0 {
        let style = findings.worst.map_or(theme.warn, |worst| severity_style(theme, worst));
        let plural = if findings.firing == 1 { "" } else { "s" };
        line.add(13, 3, short!("{} finding{plural}", findings.firing), style);
        if findings.mine > 0 {
            line.add(6, 0, short!(", {} yours", findings.mine), style);
        }
    }
    if findings.pending > 0 {
        line.add(4, 2, short!("{} watched", findings.pending), theme.dim);
    }
    let low_power: usize = app
        .fleet()
        .hosts()
        .iter()
        .filter_map(|host| app.host_summary(host))
        .filter(|summary| summary.is_fresh)
        .map(crate::app::HostSummary::low_power_count)
        .sum();
    if low_power > 0 {
        line.add(7, 2, short!("{low_power} low power"), theme.plain);
    }
    if totals.memory_total_bytes.is_some() {
        let (used, total) = (totals.memory_used_bytes.unwrap_or(0), totals.memory_total_bytes.unwrap_or(0));
        line.add(3, 4, short!("mem {}/{}G", gib(used), gib(total)), theme.plain);
    }
    if let Some(power) = totals.power_watts {
        line.add(2, 3, short!("power {}", watts(power).as_str()), theme.plain);
    }
    line
}

/// Adds how many GPUs are in each state: `37 busy  4 idle  2 hung?  5 free`.
pub(super) fn add_counts(line: &mut Segments, canvas: &Canvas<'_>, totals: &Totals, gap: u16) {
    let theme = canvas.theme;
    for (priority, state, word, style) in [
        (8, GpuState::InUse, "busy", theme.plain),
        (7, GpuState::Idle, "idle", theme.plain),
        (5, GpuState::Waiting, "waiting", theme.plain),
        (14, GpuState::Hung, "hung?", theme.crit),
        (14, GpuState::Fault, "faulty", theme.crit),
        (6, GpuState::Free, "free", theme.plain),
        (1, GpuState::Unused, "unused", theme.dim),
        (4, GpuState::Unknown, "unknown", theme.dim),
    ] {
        let count = totals.in_state(state);
        if count > 0 {
            line.add(priority, gap, short!("{count} {word}"), style);
        }
    }
}

fn right_side(canvas: &Canvas<'_>, app: &App, now: Moment) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    if app.fleet().simulated {
        line.add(9, 0, short!("SIMULATED"), theme.warn);
    }
    if app.frozen_since().is_some() {
        line.add(10, 3, short!("FROZEN (Z)"), theme.warn);
    }
    match app.prompts().count() {
        0 => {}
        1 => line.add(8, 3, short!("1 prompt (P)"), theme.warn),
        count => line.add(8, 3, short!("{count} prompts (P)"), theme.warn),
    }
    line.add(INTERVAL, 3, short!("every {}", interval(app.interval()).as_str()), theme.dim);
    line.add(CLOCK, 3, clock(now, app.settings.utc_offset_seconds), theme.plain);
    line
}
