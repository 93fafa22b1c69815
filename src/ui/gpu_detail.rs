//! Every reading of one GPU, in words.

use super::flow::Flow;
use super::format::{Short, or_dash, short};
use super::pen::Pen;
use super::segments::Segments;
use super::{gpu_line, gpu_table};
use crate::app::GpuFigures;
use crate::fleet::Host;
use crate::wire::GpuInfo;
use ratatui::layout::Rect;

/// Draws the GPU at a position of the inventory.
pub(super) fn draw(pen: &mut Pen<'_>, area: Rect, host: &Host, gpu: &GpuFigures, position: usize) {
    let Some(info) = host.gpu_info(position).filter(|_| area.height > 0) else { return };
    let theme = pen.theme;
    pen.repeat(area.x, area.y, area.width, theme.glyphs.light.horizontal, theme.dim);
    let mut title = Segments::default();
    title.add(9, 0, short!(" GPU {}", gpu.index), theme.plain);
    for (keep, text) in [(8, &info.name), (6, &info.uuid), (7, &info.pci_bus_id)] {
        if let Some(text) = text {
            title.add(keep, 2, short!("{text}"), theme.plain);
        }
    }
    title.add(99, 0, short!(" "), theme.plain);
    title.fit(area.width.saturating_sub(4));
    title.draw(pen, area.x + 1, area.y, area.width.saturating_sub(2));
    let inside = Rect { x: area.x + 1, y: area.y + 1, width: area.width.saturating_sub(2), height: area.height - 1 };
    let lines = [heat(pen, info, gpu), clocks(pen, info, gpu), reasons(pen, gpu), other(pen, info, gpu)];
    let mut flow = Flow::new(pen, inside);
    for line in lines {
        flow.segments(line);
    }
}

fn labelled(line: &mut Segments, pen: &Pen<'_>, keep: u8, label: &str, value: Short) {
    line.add(keep, 3, short!("{label}"), pen.theme.dim);
    line.add(keep, 1, value, pen.theme.plain);
}

fn heat(pen: &Pen<'_>, info: &GpuInfo, gpu: &GpuFigures) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    labelled(&mut line, pen, 9, "temperature", gpu_line::temperature(pen.theme, gpu));
    if let (Some(slowdown), Some(shutdown)) = (info.temperature_slowdown_celsius, info.temperature_shutdown_celsius) {
        line.add(5, 1, short!("slows down at {slowdown}, shuts down at {shutdown}"), pen.theme.dim);
    }
    if let Some(memory) = reading.memory_temperature_celsius {
        labelled(&mut line, pen, 6, "memory", short!("{memory}{}", pen.theme.glyphs.degree));
    }
    labelled(&mut line, pen, 9, "power", gpu_line::power(gpu, true));
    if let Some(mean) = reading.power_mean_watts {
        labelled(&mut line, pen, 6, "mean", short!("{mean:.0}W"));
    }
    if let Some(most) = info.power_limit_max_watts {
        labelled(&mut line, pen, 4, "can be set to", short!("{most:.0}W"));
    }
    if let Some(joules) = reading.energy_joules {
        labelled(&mut line, pen, 5, "energy since driver start", short!("{:.1} kWh", joules / 3.6e6));
    }
    line
}

fn clocks(pen: &Pen<'_>, info: &GpuInfo, gpu: &GpuFigures) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    for (keep, name, now, most) in [
        (9, "SM clock", reading.clock_sm_mhz, info.clock_sm_max_mhz),
        (5, "graphics", reading.clock_graphics_mhz, info.clock_graphics_max_mhz),
        (7, "memory", reading.clock_memory_mhz, info.clock_memory_max_mhz),
    ] {
        let figure = match most {
            Some(most) => short!("{}/{most} MHz", or_dash(now).as_str()),
            None => short!("{} MHz", or_dash(now).as_str()),
        };
        labelled(&mut line, pen, keep, name, figure);
    }
    let state = reading.performance_state.map(|state| short!("P{state}"));
    labelled(&mut line, pen, 8, "performance state", or_dash(state.as_deref()));
    line
}

fn reasons(pen: &Pen<'_>, gpu: &GpuFigures) -> Segments {
    let mut line = Segments::default();
    let (words, style) = gpu_table::reasons(pen.theme, gpu);
    line.add(8, 0, short!("clocks held down by"), pen.theme.dim);
    line.add(9, 1, if words.is_empty() { short!("nothing") } else { short!("{words}") }, style);
    line
}

fn other(pen: &Pen<'_>, info: &GpuInfo, gpu: &GpuFigures) -> Segments {
    let mut line = Segments::default();
    let reading = &gpu.reading;
    let percent = |value: Option<u8>| or_dash(value.map(|value| short!("{value}%")).as_deref());
    labelled(&mut line, pen, 9, "mem-busy", percent(reading.memory_utilization_percent));
    let fan = reading.fan_percent.map(|value| short!("{value}%"));
    labelled(&mut line, pen, 7, "fan", or_dash(fan.as_deref()));
    if let (Some(generation), Some(width)) = (reading.pcie_generation, reading.pcie_width) {
        labelled(&mut line, pen, 8, "PCIe", short!("gen {generation} x{width}"));
    }
    if let Some(errors) = gpu.ecc_uncorrectable {
        labelled(&mut line, pen, 8, "uncorrectable ECC errors", short!("{errors}"));
    }
    labelled(&mut line, pen, 3, "encoder", percent(reading.encoder_percent));
    labelled(&mut line, pen, 3, "decoder", percent(reading.decoder_percent));
    if info.mig_enabled == Some(true) {
        line.add(8, 3, short!("MIG on"), pen.theme.plain);
    }
    if info.unified_memory == Some(true) {
        line.add(8, 3, short!("memory shared with the host"), pen.theme.plain);
    }
    line
}
