//! One GPU, or one MIG instance: its facts, readings and health.

use super::lines::{Lines, around, bytes, of, or_dash, rate, time};
use crate::wire::{ClocksEventReasons, ComputeMode, GpuHealth, GpuInfo, GpuReading, Offer, RecentPast, RecoveryAction};

pub(super) fn write(
    lines: &mut Lines,
    info: &GpuInfo,
    reading: &GpuReading,
    health: &GpuHealth,
    past: Option<&RecentPast>,
) {
    lines.line("");
    let instance = info.mig_parent_uuid.is_some();
    let mut title = format!("{} {}", if instance { "MIG" } else { "GPU" }, info.index);
    for part in [&info.name, &info.uuid, &info.pci_bus_id].into_iter().flatten() {
        title.push_str("  ");
        title.push_str(part);
    }
    lines.line(title);
    if let Some(error) = &reading.error {
        lines.line(format!("  {}", error.message));
        return;
    }
    if let Some(seconds) = reading.blocked_seconds {
        lines.line(format!("  a call has not come back for {seconds} s"));
        return;
    }
    if info.unified_memory == Some(true) {
        lines.rare_piece(Some("shared with the host".to_owned()));
    } else {
        let used = reading.memory_used_bytes.map(bytes);
        lines.piece("memory", of("", used, info.memory_total_bytes.map(bytes), ""));
        lines.rare_piece(around("reserved ", reading.memory_reserved_bytes.map(bytes), ""));
    }
    lines.rare_piece(of("BAR1 ", health.bar1_used_bytes.map(bytes), info.bar1_total_bytes.map(bytes), ""));
    lines.end("memory");
    activity(lines, info, reading);
    if instance {
        lines.rare_piece(around("GPU instance ", info.gpu_instance_id, ""));
        lines.rare_piece(around("compute instance ", info.compute_instance_id, ""));
        lines.end("numbers");
        // An instance has no sensors of its own.
        lines.end_block();
        return;
    }
    sensors(lines, info, reading);
    links(lines, info, reading, health);
    faults(lines, health);
    settings(lines, info, health);
    recent_past(lines, past);
    lines.end_block();
}

fn activity(lines: &mut Lines, info: &GpuInfo, reading: &GpuReading) {
    // The shares of a divided GPU are its instances', and those have none but GPM's.
    if info.mig_enabled != Some(true) && info.mig_parent_uuid.is_none() {
        lines.piece("use", around("", reading.utilization_percent, " %"));
        lines.piece("memory bus", around("memory bus ", reading.memory_utilization_percent, " %"));
        lines.piece("encoder", around("encoder ", reading.encoder_percent, " %"));
        lines.piece("decoder", around("decoder ", reading.decoder_percent, " %"));
        lines.end("use");
    }
    lines.rare_piece(around("active ", reading.sm_activity_percent, " %"));
    lines.rare_piece(around("occupied ", reading.sm_occupancy_percent, " %"));
    lines.rare_piece(around("tensor cores ", reading.tensor_activity_percent, " %"));
    lines.rare_piece(around("DRAM bandwidth ", reading.dram_bandwidth_percent, " %"));
    lines.rare_piece(refused("GPM", info.gpm));
    lines.end("SMs");
}

fn sensors(lines: &mut Lines, info: &GpuInfo, reading: &GpuReading) {
    let limit = |limit: Option<i32>, words: &str| limit.map_or_else(String::new, |limit| format!(", {words} {limit}"));
    lines.piece(
        "temperature",
        reading.temperature_celsius.map(|degrees| {
            let slowdown = limit(info.temperature_slowdown_celsius, "slows down at");
            let shutdown = limit(info.temperature_shutdown_celsius, "shuts down at");
            format!("{degrees} °C{slowdown}{shutdown}")
        }),
    );
    lines.piece(
        "memory temperature",
        reading.memory_temperature_celsius.map(|degrees| {
            format!("memory {degrees} °C{}", limit(info.memory_temperature_max_celsius, "slows down at"))
        }),
    );
    lines.piece("fan", around("fan ", reading.fan_percent, " %"));
    lines.end("heat");
    let enforced = reading.power_limit_watts.or(info.power_limit_watts);
    lines.piece("power", of("", reading.power_watts, enforced, " W"));
    lines.rare_piece(around(
        "could be set to ",
        info.power_limit_max_watts.filter(|&most| Some(most) != enforced),
        " W",
    ));
    lines.piece("mean power", around("mean ", reading.power_mean_watts, " W"));
    lines.piece("energy", around("", reading.energy_joules.map(|joules| (joules / 3600.0) as u64), " Wh so far"));
    lines.end("power");
    lines.piece("clocks", of("graphics ", reading.clock_graphics_mhz, info.clock_graphics_max_mhz, " MHz"));
    lines.rare_piece(of("SM ", reading.clock_sm_mhz, info.clock_sm_max_mhz, " MHz"));
    lines.rare_piece(of("memory ", reading.clock_memory_mhz, info.clock_memory_max_mhz, " MHz"));
    lines.piece("performance state", around("P", reading.performance_state, ""));
    lines.end("clocks");
    lines.piece("what holds it back", reading.clocks_event_reasons.map(reasons));
    let so_far = |words, seconds: Option<f64>| around(words, seconds.map(time), "");
    lines.rare_piece(so_far("so far by power cap ", reading.power_violation_seconds));
    lines.rare_piece(so_far("by heat ", reading.thermal_violation_seconds));
    lines.rare_piece(so_far("by power brake ", reading.power_brake_seconds));
    lines.end("held back");
}

fn links(lines: &mut Lines, info: &GpuInfo, reading: &GpuReading, health: &GpuHealth) {
    if info.unified_memory != Some(true) {
        lines.piece("PCIe link", of("generation ", reading.pcie_generation, info.pcie_generation_max, ""));
        lines.rare_piece(of("lanes ", reading.pcie_width, info.pcie_width_max, ""));
        lines.piece("PCIe traffic", around("in ", reading.pcie_receive_bytes_per_second.map(rate), ""));
        lines.rare_piece(around("out ", reading.pcie_transmit_bytes_per_second.map(rate), ""));
        lines.end("PCIe");
    }
    lines.rare_piece(health.nvlinks_active.map(|active| {
        let down: Vec<_> = (0..info.nvlink_count.unwrap_or(0)).filter(|&link| active >> link & 1 == 0).collect();
        let names: Vec<_> = down.iter().map(ToString::to_string).collect();
        let which = if down.is_empty() { String::new() } else { format!(" (down: {})", names.join(" ")) };
        format!("{} of {} up{which}", active.count_ones(), or_dash(info.nvlink_count))
    }));
    lines.rare_piece(around("in ", reading.nvlink_receive_bytes_per_second.map(rate), ""));
    lines.rare_piece(around("out ", reading.nvlink_transmit_bytes_per_second.map(rate), ""));
    lines.end("NVLink");
}

fn faults(lines: &mut Lines, health: &GpuHealth) {
    let errors = |words, now: Option<u64>, ever: Option<u64>| {
        let ever = ever.map_or_else(String::new, |ever| format!(" ({ever} in its life)"));
        around(words, now, &ever)
    };
    lines.piece("ECC", errors("corrected ", health.ecc_corrected_volatile, health.ecc_corrected_aggregate));
    lines.rare_piece(errors("uncorrectable ", health.ecc_uncorrectable_volatile, health.ecc_uncorrectable_aggregate));
    lines.end("ECC errors");
    lines.rare_piece(around("remapped for corrected errors ", health.remapped_rows_correctable, ""));
    lines.rare_piece(around("for uncorrectable ones ", health.remapped_rows_uncorrectable, ""));
    lines.rare_piece(when(health.row_remap_pending, "one waits for a reset"));
    lines.rare_piece(when(health.row_remap_failed, "one could not be: the board has to go"));
    lines.end("rows");
    lines.rare_piece(around("retired for single-bit errors ", health.retired_pages_single_bit, ""));
    lines.rare_piece(around("for double-bit errors ", health.retired_pages_double_bit, ""));
    lines.rare_piece(when(health.retired_pages_pending, "some wait for a reboot"));
    lines.end("pages");
    let action = health.recovery_action.filter(|&action| action != RecoveryAction::None);
    lines.rare_piece(action.map(|action| action.words().to_owned()));
    lines.end("to be done");
}

fn settings(lines: &mut Lines, info: &GpuInfo, health: &GpuHealth) {
    let on = |on: bool| if on { "on" } else { "off" };
    lines.piece("persistence mode", around("persistence mode ", health.persistence_mode.map(on), ""));
    lines.piece("compute mode", around("compute mode ", health.compute_mode.map(compute_mode), ""));
    lines.rare_piece(around("MIG ", info.mig_enabled.map(on), ""));
    lines.rare_piece(around("power smoothing ", health.power_smoothing.map(on), ""));
    lines.rare_piece(around("/dev/nvidia", info.minor_number, ""));
    lines.end("settings");
    lines.piece(
        "Xid events",
        info.xid_events.map(|offer| match offer {
            Offer::Available => "told as they happen".to_owned(),
            _ => refused("Xid events", Some(offer)).unwrap_or_default(),
        }),
    );
    lines.end("Xids");
}

fn recent_past(lines: &mut Lines, past: Option<&RecentPast>) {
    let Some(past) = past else { return };
    let seconds = past.utilization_percent.len().max(past.power_watts.len());
    let mean = |sum: f64, count: usize| (count > 0).then(|| format!("{:.0}", sum / count as f64));
    let mean_of = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
        mean(sum, count)
    };
    let shares = mean_of(&mut past.utilization_percent.iter().flatten().map(|&share| f64::from(share)));
    let watts = mean_of(&mut past.power_watts.iter().flatten().map(|&watts| f64::from(watts)));
    lines.rare_piece(Some(format!("{seconds} s kept by the driver")));
    lines.rare_piece(around("mean use ", shares, " %"));
    lines.rare_piece(around("mean power ", watts, " W"));
    lines.end("before");
}

fn reasons(mask: u64) -> String {
    let names: Vec<_> = ClocksEventReasons(mask).names().collect();
    let names = if names.is_empty() { "nothing".to_owned() } else { names.join(" and ") };
    if mask == 0 { names } else { format!("{names} (mask {mask:#x})") }
}

fn when(state: Option<bool>, words: &str) -> Option<String> {
    state.filter(|&state| state).map(|_| words.to_owned())
}

fn compute_mode(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveProcess => "exclusive process",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::Unknown => "unknown",
    }
}

/// Why a reading is not to be had, where the driver has it.
fn refused(what: &str, offer: Option<Offer>) -> Option<String> {
    match offer {
        Some(Offer::NotPermitted) => Some(format!("this account may not read {what}")),
        Some(Offer::Refused) => Some(format!("the driver refuses {what}")),
        Some(Offer::Available) | None => None,
    }
}
