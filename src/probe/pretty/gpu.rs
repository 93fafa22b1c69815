//! One GPU, or one MIG instance: its facts, readings and health.

use super::report_writer::{ReportWriter, bytes, or_dash, rate, time, used_of, with_affixes};
use crate::wire::{
    Availability, ClocksEventReasons, ComputeMode, GpuHealth, GpuInfo, GpuReading, RecentPast, RecoveryAction,
};

pub(super) fn write(
    report: &mut ReportWriter,
    info: &GpuInfo,
    reading: &GpuReading,
    health: &GpuHealth,
    samples: Option<&RecentPast>,
) {
    report.line("");
    let instance = info.mig_parent_uuid.is_some();
    let mut title = format!("{} {}", if instance { "MIG" } else { "GPU" }, info.index);
    for part in [&info.name, &info.uuid, &info.pci_bus_id].into_iter().flatten() {
        title.push_str("  ");
        title.push_str(part);
    }
    report.line(title);
    if let Some(error) = &reading.error {
        report.line(format!("  {}", error.message));
        return;
    }
    if let Some(seconds) = reading.blocked_seconds {
        report.line(format!("  a call has not come back for {seconds} s"));
        return;
    }
    if info.unified_memory == Some(true) {
        report.optional_field(Some("shared with the host".to_owned()));
    } else {
        let used = reading.memory_used_bytes.map(bytes);
        report.field("memory", used_of("", used, info.memory_total_bytes.map(bytes), ""));
        report.optional_field(with_affixes("reserved ", reading.memory_reserved_bytes.map(bytes), ""));
    }
    report.optional_field(used_of("BAR1 ", health.bar1_used_bytes.map(bytes), info.bar1_total_bytes.map(bytes), ""));
    report.end_line("memory");
    activity(report, info, reading);
    if instance {
        report.optional_field(with_affixes("GPU instance ", info.gpu_instance_id, ""));
        report.optional_field(with_affixes("compute instance ", info.compute_instance_id, ""));
        report.end_line("numbers");
        // An instance has no sensors of its own.
        report.end_section();
        return;
    }
    sensors(report, info, reading);
    links(report, info, reading, health);
    faults(report, health);
    settings(report, info, health);
    recent_past(report, samples);
    report.end_section();
}

fn activity(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading) {
    // The shares of a divided GPU are its instances', and those have none but GPM's.
    if info.mig_enabled != Some(true) && info.mig_parent_uuid.is_none() {
        report.field("use", with_affixes("", reading.utilization_percent, " %"));
        report.field("memory bus", with_affixes("memory bus ", reading.memory_utilization_percent, " %"));
        report.field("encoder", with_affixes("encoder ", reading.encoder_percent, " %"));
        report.field("decoder", with_affixes("decoder ", reading.decoder_percent, " %"));
        report.end_line("use");
    }
    report.optional_field(with_affixes("active ", reading.sm_activity_percent, " %"));
    report.optional_field(with_affixes("occupied ", reading.sm_occupancy_percent, " %"));
    report.optional_field(with_affixes("tensor cores ", reading.tensor_activity_percent, " %"));
    report.optional_field(with_affixes("DRAM bandwidth ", reading.dram_bandwidth_percent, " %"));
    report.optional_field(unavailable("GPM", info.gpm));
    report.end_line("SMs");
}

fn sensors(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading) {
    let limit = |limit: Option<i32>, label: &str| limit.map_or_else(String::new, |limit| format!(", {label} {limit}"));
    report.field(
        "temperature",
        reading.temperature_celsius.map(|degrees| {
            let slowdown = limit(info.temperature_slowdown_celsius, "slows down at");
            let shutdown = limit(info.temperature_shutdown_celsius, "shuts down at");
            format!("{degrees} °C{slowdown}{shutdown}")
        }),
    );
    report.field(
        "memory temperature",
        reading.memory_temperature_celsius.map(|degrees| {
            format!("memory {degrees} °C{}", limit(info.memory_temperature_max_celsius, "slows down at"))
        }),
    );
    report.field("fan", with_affixes("fan ", reading.fan_percent, " %"));
    report.end_line("heat");
    let enforced = reading.power_limit_watts.or(info.power_limit_watts);
    report.field("power", used_of("", reading.power_watts, enforced, " W"));
    report.optional_field(with_affixes(
        "could be set to ",
        info.power_limit_max_watts.filter(|&most| Some(most) != enforced),
        " W",
    ));
    report.field("mean power", with_affixes("mean ", reading.power_mean_watts, " W"));
    report
        .field("energy", with_affixes("", reading.energy_joules.map(|joules| (joules / 3600.0) as u64), " Wh so far"));
    report.end_line("power");
    report.field("clocks", used_of("graphics ", reading.clock_graphics_mhz, info.clock_graphics_max_mhz, " MHz"));
    report.optional_field(used_of("SM ", reading.clock_sm_mhz, info.clock_sm_max_mhz, " MHz"));
    report.optional_field(used_of("memory ", reading.clock_memory_mhz, info.clock_memory_max_mhz, " MHz"));
    report.field("performance state", with_affixes("P", reading.performance_state, ""));
    report.end_line("clocks");
    report.field("what holds it back", reading.clocks_event_reasons.map(reasons));
    let total = |label, seconds: Option<f64>| with_affixes(label, seconds.map(time), "");
    report.optional_field(total("so far by power cap ", reading.power_violation_seconds));
    report.optional_field(total("by heat ", reading.thermal_violation_seconds));
    report.optional_field(total("by power brake ", reading.power_brake_seconds));
    report.end_line("held back");
}

fn links(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading, health: &GpuHealth) {
    if info.unified_memory != Some(true) {
        report.field("PCIe link", used_of("generation ", reading.pcie_generation, info.pcie_generation_max, ""));
        report.optional_field(used_of("lanes ", reading.pcie_width, info.pcie_width_max, ""));
        report.field("PCIe traffic", with_affixes("in ", reading.pcie_receive_bytes_per_second.map(rate), ""));
        report.optional_field(with_affixes("out ", reading.pcie_transmit_bytes_per_second.map(rate), ""));
        report.end_line("PCIe");
    }
    report.optional_field(health.nvlinks_active.map(|active| {
        let down: Vec<_> = (0..info.nvlink_count.unwrap_or(0)).filter(|&link| active >> link & 1 == 0).collect();
        let names: Vec<_> = down.iter().map(ToString::to_string).collect();
        let down_list = if down.is_empty() { String::new() } else { format!(" (down: {})", names.join(" ")) };
        format!("{} of {} up{down_list}", active.count_ones(), or_dash(info.nvlink_count))
    }));
    report.optional_field(with_affixes("in ", reading.nvlink_receive_bytes_per_second.map(rate), ""));
    report.optional_field(with_affixes("out ", reading.nvlink_transmit_bytes_per_second.map(rate), ""));
    report.end_line("NVLink");
}

fn faults(report: &mut ReportWriter, health: &GpuHealth) {
    let errors = |label, now: Option<u64>, ever: Option<u64>| {
        let ever = ever.map_or_else(String::new, |ever| format!(" ({ever} in its life)"));
        with_affixes(label, now, &ever)
    };
    report.field("ECC", errors("corrected ", health.ecc_corrected_volatile, health.ecc_corrected_aggregate));
    report.optional_field(errors(
        "uncorrectable ",
        health.ecc_uncorrectable_volatile,
        health.ecc_uncorrectable_aggregate,
    ));
    report.end_line("ECC errors");
    report.optional_field(with_affixes("remapped for corrected errors ", health.remapped_rows_correctable, ""));
    report.optional_field(with_affixes("for uncorrectable ones ", health.remapped_rows_uncorrectable, ""));
    report.optional_field(message_if(health.row_remap_pending, "one waits for a reset"));
    report.optional_field(message_if(health.row_remap_failed, "one could not be: the board has to go"));
    report.end_line("rows");
    report.optional_field(with_affixes("retired for single-bit errors ", health.retired_pages_single_bit, ""));
    report.optional_field(with_affixes("for double-bit errors ", health.retired_pages_double_bit, ""));
    report.optional_field(message_if(health.retired_pages_pending, "some wait for a reboot"));
    report.end_line("pages");
    let action = health.recovery_action.filter(|&action| action != RecoveryAction::None);
    report.optional_field(action.map(|action| action.description().to_owned()));
    report.end_line("to be done");
}

fn settings(report: &mut ReportWriter, info: &GpuInfo, health: &GpuHealth) {
    let on = |on: bool| if on { "on" } else { "off" };
    report.field("persistence mode", with_affixes("persistence mode ", health.persistence_mode.map(on), ""));
    report.field("compute mode", with_affixes("compute mode ", health.compute_mode.map(compute_mode), ""));
    report.optional_field(with_affixes("MIG ", info.mig_enabled.map(on), ""));
    report.optional_field(with_affixes("power smoothing ", health.power_smoothing.map(on), ""));
    report.optional_field(with_affixes("/dev/nvidia", info.minor_number, ""));
    report.end_line("settings");
    report.field(
        "Xid events",
        info.xid_events.map(|availability| match availability {
            Availability::Available => "told as they happen".to_owned(),
            _ => unavailable("Xid events", Some(availability)).unwrap_or_default(),
        }),
    );
    report.end_line("Xids");
}

fn recent_past(report: &mut ReportWriter, samples: Option<&RecentPast>) {
    let Some(samples) = samples else { return };
    let seconds = samples.utilization_percent.len().max(samples.power_watts.len());
    let mean = |sum: f64, count: usize| (count > 0).then(|| format!("{:.0}", sum / count as f64));
    let mean_of = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
        mean(sum, count)
    };
    let shares = mean_of(&mut samples.utilization_percent.iter().flatten().map(|&share| f64::from(share)));
    let watts = mean_of(&mut samples.power_watts.iter().flatten().map(|&watts| f64::from(watts)));
    report.optional_field(Some(format!("{seconds} s kept by the driver")));
    report.optional_field(with_affixes("mean use ", shares, " %"));
    report.optional_field(with_affixes("mean power ", watts, " W"));
    report.end_line("before");
}

fn reasons(mask: u64) -> String {
    let names: Vec<_> = ClocksEventReasons(mask).names().collect();
    let names = if names.is_empty() { "nothing".to_owned() } else { names.join(" and ") };
    if mask == 0 { names } else { format!("{names} (mask {mask:#x})") }
}

fn message_if(state: Option<bool>, label: &str) -> Option<String> {
    state.filter(|&state| state).map(|_| label.to_owned())
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
fn unavailable(what: &str, availability: Option<Availability>) -> Option<String> {
    match availability {
        Some(Availability::NotPermitted) => Some(format!("this account may not read {what}")),
        Some(Availability::Refused) => Some(format!("the driver refuses {what}")),
        Some(Availability::Available) | None => None,
    }
}
