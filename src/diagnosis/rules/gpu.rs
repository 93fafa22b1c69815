//! The health of a board: heat, power, memory errors, links, settings.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingTarget, MIN_COVERAGE};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, host_details};
use crate::diagnosis::track::GpuTrack;
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::wire::{GpuHealth, GpuInfo, GpuReading};

pub(in crate::diagnosis) const THERMAL: RuleInfo = RuleInfo {
    word: "thermal-throttle",
    title: "heat slows a GPU down",
    fires: "The hardware's thermal slowdown was active for more than 5 % of 5 min (warns), 30 % (critical): by the \
            violation time counter, else by reason bit 0x40.",
    means: "Cooling does not keep up: air flow, a fan, dust, a neighbour that blows hot air, or a hot room.",
    next: "`nvidia-smi -q -d TEMPERATURE,PERFORMANCE`; compare with the other GPUs of the host.",
    not: "the power cap (0x4), which is normal under full load, and short blips of bit 0x8",
    limits: "Software thermal slowdown alone (0x20) is not counted.",
    source: "nvml.h nvmlClocksEventReasonHwThermalSlowdown, NVML_PERF_POLICY_THERMAL",
};

pub(in crate::diagnosis) const POWER_BRAKE: RuleInfo = RuleInfo {
    word: "power-brake",
    title: "the external power brake slows a GPU down",
    fires: "The power brake was pulled for more than 1 % of 2 min.",
    means: "The chassis told the board to draw less: a power supply failed, or the power budget is exceeded.",
    next: "Look at the power supplies (`ipmitool sdr type \"Power Supply\"`).",
    not: "the ordinary power cap (0x4)",
    limits: "Boards without the signal never tell.",
    source: "nvml.h nvmlClocksEventReasonHwPowerBrakeSlowdown (0x80)",
};

pub(in crate::diagnosis) const TEMPERATURE: RuleInfo = RuleInfo {
    word: "temperature",
    title: "a GPU is near its slowdown temperature",
    fires: "Within 3 C of the temperature at which the hardware slows down, for 5 min; over at 6 C.",
    means: "It will slow down soon, or does so already.",
    next: "As for thermal-throttle.",
    not: "a warm GPU: the distance to its own threshold counts, not the figure",
    limits: "Needs the threshold, which not every board tells.",
    source: "nvmlDeviceGetTemperatureThreshold",
};

pub(in crate::diagnosis) const ECC: RuleInfo = RuleInfo {
    word: "ecc-uncorrectable",
    title: "memory errors that could not be corrected",
    fires: "The count of uncorrectable errors since the driver was loaded rises. What was there at the first look is the \
            baseline.",
    means: "Results computed since may be wrong, or the program was ended (Xid 48, 94, 95).",
    next: "`nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU so that the row is replaced.",
    not: "corrected errors, and old ones in the lifetime count",
    limits: "Needs ECC memory.",
    source: "nvmlDeviceGetTotalEccErrors, volatile",
};

pub(in crate::diagnosis) const ROW_REMAP: RuleInfo = RuleInfo {
    word: "row-remap",
    title: "memory rows that wait to be replaced, or cannot be",
    fires: "Mentioned when a row waits for a reset to be replaced, critical when one could not be.",
    means: "Waiting rows are harmless until the next reset. A row that cannot be replaced means that the board has to go.",
    next: "Reset the GPU when nobody uses it; on failure ask the vendor for another board.",
    not: "rows that have been replaced",
    limits: "Ampere and newer; older boards retire pages instead.",
    source: "nvmlDeviceGetRemappedRows",
};

pub(in crate::diagnosis) const PCIE: RuleInfo = RuleInfo {
    word: "pcie-degraded",
    title: "a PCIe link below what both ends can do",
    fires: "Under load (50 % or more), for 2 min, fewer lanes or an older generation than both ends can do.",
    means: "A riser, a slot or a bent contact: copies between host and GPU are slow.",
    next: "`nvidia-smi -q -d PCI`, `lspci -vv`; reseat the board.",
    not: "an idle GPU, whose link rests at generation 1, and parts with unified memory",
    limits: "None worth naming.",
    source: "nvmlDeviceGetCurrPcieLinkWidth, nvmlDeviceGetMaxPcieLinkWidth",
};

pub(in crate::diagnosis) const NVLINK: RuleInfo = RuleInfo {
    word: "nvlink-down",
    title: "an NVLink that was up is down",
    fires: "A link that was active is not, for 60 s.",
    means: "Traffic between GPUs takes another way or none: collectives are slow, or fail with Xid 74.",
    next: "`nvidia-smi nvlink -s`; on NVSwitch systems look at the fabric manager's log.",
    not: "links that were never up (unused on that board)",
    limits: "A link that was down at the first look is not missed.",
    source: "nvmlDeviceGetNvLinkState",
};

pub(in crate::diagnosis) const PERSISTENCE: RuleInfo = RuleInfo {
    word: "persistence-off",
    title: "persistence mode is off",
    fires: "Once a boot, when a GPU's persistence mode is off.",
    means: "The driver is unloaded whenever nothing uses the GPU: starting takes seconds, and settings and error counts \
            are lost.",
    next: "`sudo systemctl enable --now nvidia-persistenced`, or `sudo nvidia-smi -pm 1`.",
    not: "a fault",
    limits: "None worth naming.",
    source: "nvmlDeviceGetPersistenceMode; NVIDIA driver persistence guide",
};

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let unknown = GpuHealth::default();
    for (position, ((info, reading), gpu)) in context.host.gpus().zip(context.gpus).enumerate() {
        if gpu.is_instance {
            continue;
        }
        let target = FindingTarget::Gpu(gpu.identity.clone());
        let health = context.host.gpu_health(position).unwrap_or(&unknown);
        if gpu.is_readable {
            slowdowns(context, conditions, &target, position, gpu);
            temperature(context, conditions, &target, position, (info, reading));
            pcie(context, conditions, &target, position, (info, reading, gpu));
        }
        errors(context, conditions, &target, position, gpu, health);
        nvlink(context, conditions, &target, position, gpu, health);
    }
    persistence(context, conditions);
}

fn slowdowns(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    gpu: &GpuTrack,
) {
    // Nearly every GPU has been slowed down by nothing.
    let limits = &context.limits.thermal_throttle;
    let stats = gpu.window.stats(context.sample_time.t - limits.window);
    let percent = share_of(stats.thermal_seconds, limits.window);
    if percent > 0.5 * limits.warn {
        if percent <= limits.warn {
            conditions.in_hysteresis(RuleId::ThermalThrottle, target);
        } else if stats.covered >= MIN_COVERAGE * limits.window - 30.0 {
            let severity = if percent > limits.crit { Severity::Crit } else { Severity::Warn };
            let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 60.0);
            conditions.met(RuleId::ThermalThrottle, target, evaluation, |_, _| {
                let celsius = context.host.gpus().nth(position).and_then(|(_, reading)| reading.temperature_celsius);
                let celsius = celsius.map_or_else(String::new, |celsius| format!(", at {celsius} C now"));
                let sentence = format!(
                    "{} was slowed down by heat for {percent:.0} % of the last {}{celsius}",
                    context.format_gpus([position]),
                    duration(limits.window),
                );
                context.gpu_details(position, sentence, "nvidia-smi -q -d TEMPERATURE,PERFORMANCE".to_owned())
            });
        } else {
            conditions.unknown(RuleId::ThermalThrottle, target);
        }
    }
    let limits = &context.limits.power_brake;
    if stats.brake_seconds <= 0.0 {
        return;
    }
    let stats = gpu.window.stats(context.sample_time.t - limits.window);
    let percent = share_of(stats.brake_seconds, limits.window);
    if percent > limits.crit && stats.covered >= MIN_COVERAGE * limits.window - 30.0 {
        let evaluation = Evaluation::new(Escalation::one(Severity::Crit, 0.0), Confidence::Certain, 60.0);
        conditions.met(RuleId::PowerBrake, target, evaluation, |_, _| {
            let sentence = format!(
                "{} was held down by the power brake for {percent:.0} % of the last {}",
                context.format_gpus([position]),
                duration(limits.window),
            );
            context.gpu_details(position, sentence, "ipmitool sdr type \"Power Supply\"".to_owned())
        });
    }
}

/// Percent of a window; its buckets may reach a little beyond it.
fn share_of(seconds: f64, window: f64) -> f64 {
    (100.0 * seconds / window).min(100.0)
}

fn temperature(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    now: (&GpuInfo, &GpuReading),
) {
    let limits = &context.limits.temperature;
    let (Some(celsius), Some(slowdown)) = (now.1.temperature_celsius, now.0.temperature_slowdown_celsius) else {
        return;
    };
    let margin = f64::from(slowdown - celsius);
    if margin >= limits.clear_margin || slowdown <= 0 {
        return;
    }
    if margin > limits.margin {
        conditions.in_hysteresis(RuleId::Temperature, target);
        return;
    }
    let evaluation = Evaluation::new(Escalation::one(Severity::Warn, limits.after), Confidence::Certain, 60.0);
    conditions.met(RuleId::Temperature, target, evaluation, |lasted, _| {
        let sentence = format!(
            "{} has been at {celsius} C for {}, {margin:.0} C below the temperature at which it slows down",
            context.format_gpus([position]),
            duration(lasted),
        );
        context.gpu_details(position, sentence, "nvidia-smi -q -d TEMPERATURE".to_owned())
    });
}

fn pcie(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    now: (&GpuInfo, &GpuReading, &GpuTrack),
) {
    let limits = &context.limits.pcie_degraded;
    let (info, reading, gpu) = now;
    let is_below = |now: Option<u8>, most: Option<u8>| matches!((now, most), (Some(now), Some(most)) if now < most);
    let is_degraded = is_below(reading.pcie_width, info.pcie_width_max)
        || is_below(reading.pcie_generation, info.pcie_generation_max);
    if !is_degraded || gpu.is_unified {
        return;
    }
    if gpu.utilization.is_none_or(|percent| f64::from(percent) < limits.utilization) {
        // At rest the link says nothing: what was found under load stays, and a step between two kernels does not
        // begin it anew.
        conditions.unknown(RuleId::PcieDegraded, target);
        return;
    }
    let evaluation = Evaluation::new(Escalation::one(Severity::Warn, limits.after), Confidence::Certain, 30.0);
    conditions.met(RuleId::PcieDegraded, target, evaluation, |_, _| {
        let link = |generation: Option<u8>, width: Option<u8>| {
            let known = |value: Option<u8>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
            format!("gen {} x{}", known(generation), known(width))
        };
        let sentence = format!(
            "{} works over PCIe {} where both ends can do {}",
            context.format_gpus([position]),
            link(reading.pcie_generation, reading.pcie_width),
            link(info.pcie_generation_max, info.pcie_width_max),
        );
        context.gpu_details(position, sentence, "sudo lspci -vv -d 10de: | grep LnkSta".to_owned())
    });
}

fn errors(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    gpu: &GpuTrack,
    health: &GpuHealth,
) {
    if let (Some(now), Some(baseline)) = (health.ecc_uncorrectable_volatile, gpu.ecc_baseline)
        && now > baseline
    {
        let evaluation = Evaluation::new(Escalation::one(Severity::Crit, 0.0), Confidence::Certain, 0.0);
        conditions.met(RuleId::EccUncorrectable, target, evaluation, |_, _| {
            let sentence = format!(
                "{} had {} uncorrectable memory errors while it was watched: results since may be wrong",
                context.format_gpus([position]),
                now - baseline,
            );
            context.gpu_details(position, sentence, "nvidia-smi -q -d ECC,ROW_REMAPPER".to_owned())
        });
    }
    let severity = match (health.row_remap_failed, health.row_remap_pending) {
        (Some(true), _) => Severity::Crit,
        (_, Some(true)) => Severity::Info,
        _ => return,
    };
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 0.0);
    conditions.met(RuleId::RowRemap, target, Evaluation { at_least: true, ..evaluation }, |_, severity| {
        let gpu = context.format_gpus([position]);
        let (sentence, next) = if severity == Severity::Crit {
            (format!("{gpu} could not replace a failed memory row: the board has to go"), "ask the vendor")
        } else {
            (format!("{gpu} waits for a reset to replace a failed memory row"), "nvidia-smi -r when it is free")
        };
        context.gpu_details(position, sentence, next.to_owned())
    });
}

fn nvlink(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    gpu: &GpuTrack,
    health: &GpuHealth,
) {
    let Some(active) = health.nvlinks_active else { return };
    let down = gpu.links_seen & !active;
    if down == 0 {
        return;
    }
    let evaluation =
        Evaluation::new(Escalation::one(Severity::Crit, context.limits.nvlink_down.after), Confidence::Certain, 30.0);
    conditions.met(RuleId::NvlinkDown, target, evaluation, |lasted, _| {
        let links: Vec<String> =
            (0..32).filter(|link| down & (1 << link) != 0).map(|link: u32| link.to_string()).collect();
        let sentence = format!(
            "{}: NVLink {} was up and has been down for {}",
            context.format_gpus([position]),
            links.join(","),
            duration(lasted),
        );
        context.gpu_details(position, sentence, "nvidia-smi nvlink -s".to_owned())
    });
}

fn persistence(context: &RuleContext, conditions: &mut Conditions) {
    let is_off = |position: &usize| {
        let health = context.host.gpu_health(*position);
        health.and_then(|health| health.persistence_mode) == Some(false) && !context.gpus[*position].is_instance
    };
    let off: Vec<usize> = (0..context.gpus.len()).filter(is_off).collect();
    if off.is_empty() {
        return;
    }
    let evaluation = Evaluation::new(Escalation::one(Severity::Info, 0.0), Confidence::Certain, 0.0);
    let evaluation = Evaluation { at_least: true, may_be_preexisting: true, ..evaluation };
    conditions.met(RuleId::PersistenceOff, &FindingTarget::Host, evaluation, |_, _| {
        let sentence = format!("persistence mode is off on {}", context.format_gpus(off.iter().copied()));
        let mut words = host_details(sentence, "sudo nvidia-smi -pm 1".to_owned());
        words.gpus = context.finding_gpus(off.iter().copied());
        words
    });
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
