//! Every reading of one GPU, in words.

use super::canvas::Canvas;
use super::format::{ShortString, age, memory, or_dash, rate, short};
use super::line_writer::LineWriter;
use super::segments::Segments;
use super::{gpu_line, gpu_table};
use crate::app::GpuSummary;
use crate::fleet::Host;
use crate::wire::{Availability, ComputeMode, GpuHealth, GpuInfo, RecoveryAction};
use ratatui::layout::Rect;

/// Draws the GPU at a position of the inventory.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, host: &Host, gpu: &GpuSummary, position: usize) {
    let Some(info) = host.gpu_info(position).filter(|_| area.height > 0) else { return };
    let theme = canvas.theme;
    canvas.repeat(area.x, area.y, area.width, theme.glyphs.light.horizontal, theme.dim);
    let mut title = Segments::default();
    title.add(9, 0, short!(" GPU {}", gpu.index), theme.plain);
    for (priority, text) in [(8, &info.name), (6, &info.uuid), (7, &info.pci_bus_id)] {
        if let Some(text) = text {
            title.add(priority, 2, short!("{text}"), theme.plain);
        }
    }
    title.add(99, 0, short!(" "), theme.plain);
    title.fit(area.width.saturating_sub(4));
    title.draw(canvas, area.x + 1, area.y, area.width.saturating_sub(2));
    let inner = Rect { x: area.x + 1, y: area.y + 1, width: area.width.saturating_sub(2), height: area.height - 1 };
    let lines = lines(canvas, host, gpu, position);
    let mut writer = LineWriter::new(canvas, inner);
    for line in lines {
        writer.segments(line);
    }
}

/// Every reading of the GPU at a position of the inventory, what matters most first.
pub(super) fn lines(canvas: &Canvas<'_>, host: &Host, gpu: &GpuSummary, position: usize) -> Vec<Segments> {
    let Some(info) = host.gpu_info(position) else { return Vec::new() };
    let health = host.gpu_health(position).cloned().unwrap_or_default();
    let mut lines = vec![
        heat(canvas, info, gpu),
        clocks(canvas, info, gpu),
        links(canvas, info, gpu, &health),
        errors(canvas, &health),
        other(canvas, info, gpu),
        activity(canvas, info, gpu),
        settings(canvas, info, gpu, &health),
    ];
    lines.retain(|line| line.width() > 0);
    lines
}

fn labelled(line: &mut Segments, canvas: &Canvas<'_>, priority: u8, label: &str, value: ShortString) {
    line.add(priority, 3, short!("{label}"), canvas.theme.dim);
    line.add_tied(1, value, canvas.theme.plain);
}

fn heat(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    labelled(&mut line, canvas, 9, "temperature", gpu_line::temperature(canvas.theme, gpu));
    if let (Some(slowdown), Some(shutdown)) = (info.temperature_slowdown_celsius, info.temperature_shutdown_celsius) {
        line.add(5, 1, short!("slows down at {slowdown}, shuts down at {shutdown}"), canvas.theme.dim);
    }
    if let Some(memory) = reading.memory_temperature_celsius {
        labelled(&mut line, canvas, 6, "memory", short!("{memory}{}", canvas.theme.glyphs.degree));
    }
    labelled(&mut line, canvas, 9, "power", gpu_line::power(gpu, true));
    if let Some(mean) = reading.power_mean_watts {
        labelled(&mut line, canvas, 6, "mean", short!("{mean:.0}W"));
    }
    if let Some(most) = info.power_limit_max_watts {
        labelled(&mut line, canvas, 4, "can be set to", short!("{most:.0}W"));
    }
    if let Some(joules) = reading.energy_joules {
        labelled(&mut line, canvas, 5, "energy since driver start", short!("{:.1} kWh", joules / 3.6e6));
    }
    line
}

fn clocks(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    for (priority, name, now, most) in [
        (9, "SM clock", reading.clock_sm_mhz, info.clock_sm_max_mhz),
        (5, "graphics", reading.clock_graphics_mhz, info.clock_graphics_max_mhz),
        (7, "memory", reading.clock_memory_mhz, info.clock_memory_max_mhz),
    ] {
        let figure = match most {
            Some(most) => short!("{}/{most} MHz", or_dash(now).as_str()),
            None => short!("{} MHz", or_dash(now).as_str()),
        };
        labelled(&mut line, canvas, priority, name, figure);
    }
    let state = reading.performance_state.map(|state| short!("P{state}"));
    labelled(&mut line, canvas, 8, "performance state", or_dash(state.as_deref()));
    let (words, style) = gpu_table::reasons(canvas.theme, gpu);
    line.add(9, 3, short!("held down by"), canvas.theme.dim);
    line.add_tied(1, if words.is_empty() { short!("nothing") } else { short!("{words}") }, style);
    line
}

/// PCIe and `NVLink`: what they are, what they could be, what goes over them.
fn links(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary, health: &GpuHealth) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    if let (Some(generation), Some(width)) = (reading.pcie_generation, reading.pcie_width) {
        labelled(&mut line, canvas, 8, "PCIe", short!("gen {generation} x{width}"));
        if let (Some(generation), Some(width)) = (info.pcie_generation_max, info.pcie_width_max) {
            line.add(5, 1, short!("of gen {generation} x{width}"), canvas.theme.dim);
        }
    }
    for (priority, name, received, sent) in [
        (7, "PCIe", reading.pcie_receive_bytes_per_second, reading.pcie_transmit_bytes_per_second),
        (7, "NVLink", reading.nvlink_receive_bytes_per_second, reading.nvlink_transmit_bytes_per_second),
    ] {
        if let (Some(received), Some(sent)) = (received, sent) {
            labelled(
                &mut line,
                canvas,
                priority,
                name,
                short!("in {} out {}", rate(received).as_str(), rate(sent).as_str()),
            );
        }
    }
    if let (Some(count), Some(mask)) = (info.nvlink_count.filter(|count| *count > 0), health.nvlinks_active) {
        labelled(&mut line, canvas, 8, "NVLinks up", short!("{} of {count}", mask.count_ones()));
    }
    line
}

/// ECC, retired pages, remapped rows, what the driver asks for.
fn errors(canvas: &Canvas<'_>, health: &GpuHealth) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    let pair = |corrected: Option<u64>, uncorrectable: Option<u64>| {
        let is_known = corrected.is_some() || uncorrectable.is_some();
        is_known.then(|| short!("{}/{}", or_dash(corrected).as_str(), or_dash(uncorrectable).as_str()))
    };
    let worse = |is_bad: bool| if is_bad { theme.warn } else { theme.plain };
    if let Some(words) = pair(health.ecc_corrected_volatile, health.ecc_uncorrectable_volatile) {
        line.add(9, 3, short!("ECC corrected/uncorrectable"), theme.dim);
        line.add_tied(1, words, worse(health.ecc_uncorrectable_volatile.is_some_and(|errors| errors > 0)));
    }
    if let Some(words) = pair(health.ecc_corrected_aggregate, health.ecc_uncorrectable_aggregate) {
        labelled(&mut line, canvas, 5, "in its life", words);
    }
    let remapped = (health.remapped_rows_correctable, health.remapped_rows_uncorrectable);
    if let Some(words) = pair(remapped.0.map(u64::from), remapped.1.map(u64::from)) {
        labelled(&mut line, canvas, 6, "remapped rows", words);
    }
    let retired = (health.retired_pages_single_bit, health.retired_pages_double_bit);
    if let Some(words) = pair(retired.0.map(u64::from), retired.1.map(u64::from)) {
        labelled(&mut line, canvas, 6, "retired pages", words);
    }
    for (is_so, words) in [
        (health.row_remap_pending, "a row waits for a reset to be remapped"),
        (health.row_remap_failed, "a row could not be remapped"),
        (health.retired_pages_pending, "pages wait for a reboot to be retired"),
    ] {
        if is_so == Some(true) {
            line.add(12, 3, short!("{words}"), theme.crit);
        }
    }
    if let Some(action) = health.recovery_action.filter(|action| *action != RecoveryAction::None) {
        line.add(13, 3, short!("the driver asks: {}", action.description()), theme.crit);
    }
    line
}

/// What GPM tells beyond utilisation, or why it does not.
fn activity(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    for (name, share) in [
        ("SM act", reading.sm_activity_percent),
        ("SM occupancy", reading.sm_occupancy_percent),
        ("tensor cores", reading.tensor_activity_percent),
        ("DRAM bw", reading.dram_bandwidth_percent),
    ] {
        if let Some(share) = share {
            labelled(&mut line, canvas, 8, name, short!("{share:.0}%"));
        }
    }
    if line.width() == 0 {
        match info.gpm {
            Some(Availability::NotPermitted) => {
                labelled(&mut line, canvas, 8, "SM act", short!("N/A: not permitted to this account"));
            }
            Some(Availability::Refused) => labelled(&mut line, canvas, 8, "SM act", short!("N/A: the driver refused")),
            Some(Availability::Available) | None => {}
        }
    }
    for (name, seconds) in [
        ("slowed by heat", reading.thermal_violation_seconds),
        ("by the power cap", reading.power_violation_seconds),
        ("by the power brake", reading.power_brake_seconds),
    ] {
        if let Some(seconds) = seconds {
            labelled(&mut line, canvas, 5, name, age(seconds));
        }
    }
    line
}

/// How it is set up.
fn settings(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary, health: &GpuHealth) -> Segments {
    let mut line = Segments::default();
    if let Some(is_on) = health.persistence_mode {
        labelled(&mut line, canvas, 6, "persistence", short!("{}", if is_on { "on" } else { "off" }));
    }
    let mode = health.compute_mode.map(|mode| match mode {
        ComputeMode::Default => "several processes",
        ComputeMode::ExclusiveProcess => "one process at a time",
        ComputeMode::Prohibited => "nobody",
        ComputeMode::Unknown => "unknown",
    });
    if let Some(mode) = mode {
        labelled(&mut line, canvas, 5, "open to", short!("{mode}"));
    }
    if let (Some(used), Some(total)) = (health.bar1_used_bytes, info.bar1_total_bytes) {
        labelled(&mut line, canvas, 3, "BAR1", short!("{}/{}", memory(used).as_str(), memory(total).as_str()));
    }
    if let Some(bytes) = gpu.reading.memory_reserved_bytes {
        labelled(&mut line, canvas, 4, "kept by the driver", memory(bytes));
    }
    if health.power_smoothing == Some(true) {
        line.add(9, 3, short!("power smoothing holds the power up"), canvas.theme.plain);
    }
    if info.xid_events == Some(Availability::NotPermitted) {
        labelled(&mut line, canvas, 7, "Xids", short!("N/A: not permitted to this account"));
    }
    line
}

fn other(canvas: &Canvas<'_>, info: &GpuInfo, gpu: &GpuSummary) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    let percent = |value: Option<u8>| or_dash(value.map(|value| short!("{value}%")).as_deref());
    labelled(&mut line, canvas, 9, "mem-busy", percent(reading.memory_utilization_percent));
    let fan = reading.fan_percent.map(|value| short!("{value}%"));
    labelled(&mut line, canvas, 7, "fan", or_dash(fan.as_deref()));
    labelled(&mut line, canvas, 3, "encoder", percent(reading.encoder_percent));
    labelled(&mut line, canvas, 3, "decoder", percent(reading.decoder_percent));
    if info.mig_enabled == Some(true) {
        line.add(8, 3, short!("MIG on"), canvas.theme.plain);
    }
    if info.unified_memory == Some(true) {
        line.add(8, 3, short!("memory shared with the host"), canvas.theme.plain);
    }
    line
}
