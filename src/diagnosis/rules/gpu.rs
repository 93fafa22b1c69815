//! The health of a GPU: thermal-throttle, power-brake, temperature, ecc-uncorrectable, ecc-corrected, row-remap,
//! power-limit-low, clock-stuck, pcie-degraded, pcie-errors, nvlink-down, nvlink-errors, persistence-off.

use crate::diagnosis::condition::{Escalation, Evaluation, MIN_COVERAGE};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingTarget};
use crate::diagnosis::rule_context::{RuleContext, counted, duration, host_details};
use crate::diagnosis::track::GpuTrack;
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::Host;
use crate::wire::{GpuHealth, GpuInfo, GpuReading, SafeText};

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let unknown = GpuHealth::default();
    for (position, ((info, reading), gpu)) in context.host.gpus().zip(context.gpus).enumerate() {
        if gpu.is_instance {
            continue;
        }
        let target = FindingTarget::Gpu(gpu.identity.clone());
        let health = context.host.gpu_health(position).unwrap_or(&unknown);
        if gpu.is_readable {
            slowdowns(context, conditions, &target, position, (reading, gpu));
            temperature(context, conditions, &target, position, (info, reading));
            pcie(context, conditions, &target, position, (info, reading, gpu));
            power_limit(context, conditions, &target, position, (info, gpu));
            clock(context, conditions, &target, position, (info, reading, gpu));
        }
        errors(context, conditions, &target, position, gpu, health);
        corrected_errors(context, conditions, &target, position, gpu);
        nvlink(context, conditions, &target, position, gpu, health);
        link_errors(context, conditions, &target, position, gpu);
    }
    persistence(context, conditions);
}

fn slowdowns(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    (reading, gpu): (&GpuReading, &GpuTrack),
) {
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
                    "{} was thermally throttled for {percent:.0} % of the last {}{celsius}",
                    context.format_gpus([position]),
                    duration(limits.window),
                );
                context
                    .gpu_details(position, sentence, "nvidia-smi -q -d TEMPERATURE,PERFORMANCE".to_owned())
                    .with_figures(format!("{percent:.0} % of the time"))
            });
        } else {
            conditions.unknown(RuleId::ThermalThrottle, target);
        }
    } else if reading.clocks_event_reasons.is_some_and(|reasons| reasons & SOFTWARE_THERMAL_SLOWDOWN != 0) {
        // The driver always trims the clock a little when a board is warm. Half of the clock is a loss that people feel. Where several
        // boards, or all, lose a third of it, the cooling of the host has failed. If an equal board runs at a much higher clock, only that of this
        // board has.
        let is_hot = |other: &GpuReading| {
            other.clocks_event_reasons.is_some_and(|reasons| reasons & SOFTWARE_THERMAL_SLOWDOWN != 0)
        };
        let hot = context.host.gpus().filter(|(_, other)| is_hot(other)).count();
        let are_all_hot = hot >= 2 && hot == context.gpus.len();
        let low_clock = if hot >= HOT_BOARDS || are_all_hot { LOW_CLOCK } else { HALF_CLOCK };
        let is_slow =
            gpu.clock_share.is_some_and(|share| share <= low_clock || has_fast_equal(context, position, share));
        let escalation = if is_slow {
            Escalation::one(Severity::Warn, limits.software_after)
        } else if slows_its_job(context, position, gpu) {
            let after = limits.software_after;
            Escalation::two((Severity::Info, after), (Severity::Warn, after.max(SLOWED_JOB_AFTER)))
        } else {
            Escalation::one(Severity::Info, limits.software_after)
        };
        let evaluation = Evaluation::new(escalation, Confidence::Certain, 120.0);
        conditions.met(RuleId::ThermalThrottle, target, evaluation, |lasted, _| {
            let celsius =
                reading.temperature_celsius.map_or_else(String::new, |celsius| format!(", at {celsius} C now"));
            let sentence = format!(
                "the driver has reduced the clocks of {} because of heat for {}{celsius}",
                context.format_gpus([position]),
                duration(lasted),
            );
            let figures = reading.temperature_celsius.map(|celsius| format!("{celsius} C")).unwrap_or_default();
            context
                .gpu_details(position, sentence, "nvidia-smi -q -d TEMPERATURE,PERFORMANCE".to_owned())
                .with_figures(figures)
        });
    }
    let limits = &context.limits.power_brake;
    if stats.brake_seconds <= 0.0 {
        return;
    }
    let stats = gpu.window.stats(context.sample_time.t - limits.window);
    let percent = share_of(stats.brake_seconds, limits.window);
    if percent > limits.info && stats.covered >= MIN_COVERAGE * limits.window - 30.0 {
        // The firmware of a server that tests its power supplies in turn brakes for some seconds at once.
        let since = |share: f64| gpu.window.stats(context.sample_time.t - share * limits.window).brake_seconds;
        let parts =
            [since(0.25), since(0.5) - since(0.25), since(0.75) - since(0.5), stats.brake_seconds - since(0.75)];
        let is_frequent = parts.iter().filter(|seconds| **seconds > 0.0).count() >= 3;
        let severity = if percent > limits.crit || is_frequent { Severity::Crit } else { Severity::Info };
        let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 60.0);
        conditions.met(RuleId::PowerBrake, target, evaluation, |_, _| {
            let sentence = format!(
                "{} was slowed down by the power brake for {percent:.0} % of the last {}",
                context.format_gpus([position]),
                duration(limits.window),
            );
            context
                .gpu_details(position, sentence, "ipmitool sdr type \"Power Supply\"".to_owned())
                .with_figures(format!("{percent:.0} % of the time"))
        });
    }
}

/// nvml.h, `nvmlClocksEventReasonSwThermalSlowdown`.
const SOFTWARE_THERMAL_SLOWDOWN: u64 = 0x20;
/// The share of the maximum clock at which a software thermal slowdown warns, and that on a host with at least this many hot GPUs.
const HALF_CLOCK: f64 = 0.5;
const LOW_CLOCK: f64 = 0.66;
const HOT_BOARDS: usize = 3;
/// nvml.h, `nvmlClocksEventReasonGpuIdle`: no reason for a low clock under load.
const GPU_IDLE: u64 = 0x1;
/// nvml.h, `nvmlClocksEventReasonHwSlowdown`.
const HARDWARE_SLOWDOWN: u64 = 0x8;
/// The performance states that no GPU uses under load.
const SLEEPING_STATE: u8 = 5;
/// The utilisation from which a GPU beside a slow one counts as working, in percent.
const WORKING_PERCENT: u8 = 50;

/// The clock of a hot GPU, divided by that of an equal one under load, at most: the cooling of this one has failed.
const FAR_SLOWER_CLOCK: f64 = 0.7;

/// Whether a GPU of the same model works beside this one at a clock that is far higher than `own`, a share of the highest one.
fn has_fast_equal(context: &RuleContext, position: usize, own: f64) -> bool {
    let model = context.host.gpu_info(position).map(|info| &info.name);
    let is_fast = |gpu: &GpuTrack| {
        gpu.utilization >= Some(WORKING_PERCENT) && gpu.clock_share.is_some_and(|share| own <= FAR_SLOWER_CLOCK * share)
    };
    context.gpus.iter().enumerate().any(|(other, gpu)| {
        other != position && is_fast(gpu) && context.host.gpu_info(other).map(|info| &info.name) == model
    })
}

/// The percentage of a window; its buckets may reach a little beyond it.
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
        let side = if margin < 0.0 { "above" } else { "below" };
        let sentence = format!(
            "{} has been at {celsius} C for {}, {:.0} C {side} its slowdown temperature",
            context.format_gpus([position]),
            duration(lasted),
            margin.abs(),
        );
        context
            .gpu_details(position, sentence, "nvidia-smi -q -d TEMPERATURE".to_owned())
            .with_figures(format!("{celsius} of {slowdown} C"))
    });
}

/// The share of its capacity that the traffic of a PCIe link takes, from which the link limits the work. Traffic beyond the capacity
/// is that of another moment, in which the link was faster.
const SATURATED_LINK: std::ops::RangeInclusive<f64> = 0.6..=1.05;
/// Bytes per second of one lane of the first generation in one direction; each generation has twice as many.
const LANE_BYTES_PER_SECOND: f64 = 250e6;

/// Whether the traffic of a PCIe link takes most of what it can carry now.
fn is_link_saturated(reading: &GpuReading) -> bool {
    let (Some(generation), Some(lanes)) = (reading.pcie_generation, reading.pcie_width) else { return false };
    let capacity = LANE_BYTES_PER_SECOND * 2.0_f64.powi(i32::from(generation) - 1) * f64::from(lanes);
    let rates = [reading.pcie_receive_bytes_per_second, reading.pcie_transmit_bytes_per_second];
    rates.into_iter().flatten().any(|rate| SATURATED_LINK.contains(&(rate / capacity)))
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
    let is_saturated = is_link_saturated(reading);
    if gpu.utilization.is_none_or(|percent| f64::from(percent) < limits.utilization) && !is_saturated {
        // An idle link drops to a lower speed, so it is not evaluated: the finding keeps its phase between two kernels.
        conditions.unknown(RuleId::PcieDegraded, target);
        return;
    }
    // Many boards share their lanes by design. A link that was faster before, or beside faster ones of its model, is at fault.
    let was_faster = is_below(reading.pcie_width, gpu.best_link.map(|link| link.0))
        || is_below(reading.pcie_generation, gpu.best_link.map(|link| link.1));
    let siblings =
        context.host.gpus().enumerate().filter(|(other, (there, _))| *other != position && there.name == info.name);
    let is_full = |there: &GpuTrack| {
        there.best_link.is_some_and(|link| {
            is_below(reading.pcie_width, Some(link.0)) || is_below(reading.pcie_generation, Some(link.1))
        })
    };
    // The two slots of a workstation are often different.
    let is_odd = siblings.filter_map(|(other, _)| context.gpus.get(other)).filter(|there| is_full(there)).count() >= 2;
    let severity = if was_faster || is_odd || is_saturated { Severity::Warn } else { Severity::Info };
    // Slots of one host can differ by design.
    let confidence = if was_faster { Confidence::Certain } else { Confidence::Likely };
    let evaluation = Evaluation::new(Escalation::one(severity, limits.after), confidence, 30.0);
    conditions.met(RuleId::PcieDegraded, target, evaluation, |_, _| {
        let link = |generation: Option<u8>, width: Option<u8>| {
            let known = |value: Option<u8>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
            format!("gen {} x{}", known(generation), known(width))
        };
        let sentence = format!(
            "{} runs at PCIe {} but both ends support {}",
            context.format_gpus([position]),
            link(reading.pcie_generation, reading.pcie_width),
            link(info.pcie_generation_max, info.pcie_width_max),
        );
        let figures = format!(
            "{} of {}",
            link(reading.pcie_generation, reading.pcie_width),
            link(info.pcie_generation_max, info.pcie_width_max),
        );
        context
            .gpu_details(position, sentence, "sudo lspci -vv -d 10de: | grep LnkSta".to_owned())
            .with_figures(figures)
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
                "{} had {} since gpufleet started: results since then may be wrong",
                context.format_gpus([position]),
                counted(now - baseline, "uncorrectable memory error"),
            );
            context
                .gpu_details(position, sentence, "nvidia-smi -q -d ECC,ROW_REMAPPER".to_owned())
                .with_figures((now - baseline).to_string())
        });
    }
    let is_retiring = health.retired_pages_pending == Some(true);
    let severity = match (health.row_remap_failed, health.row_remap_pending) {
        (Some(true), _) => Severity::Crit,
        (_, Some(true)) => Severity::Info,
        _ if is_retiring => Severity::Info,
        _ => return,
    };
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 0.0);
    conditions.met(RuleId::RowRemap, target, Evaluation { at_least: true, ..evaluation }, |_, severity| {
        let gpu = context.format_gpus([position]);
        let (sentence, next) = if severity == Severity::Crit {
            (format!("{gpu} could not remap a failed memory row: replace the GPU"), "ask the vendor for a replacement")
        } else if is_retiring {
            (format!("{gpu} waits for a reboot to retire failed memory pages"), "reboot the host when it is free")
        } else {
            (format!("{gpu} waits for a reset to remap a failed memory row"), "nvidia-smi -r when it is free")
        };
        context.gpu_details(position, sentence, next.to_owned()).with_figures(next)
    });
}

fn corrected_errors(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    gpu: &GpuTrack,
) {
    let limits = &context.limits.ecc_corrected;
    let counter = gpu.error_counters.as_ref().map(|counters| &counters.ecc_corrected);
    let Some((rise, seconds)) = counter.and_then(|counter| counter.rise(context.sample_time.t, limits.window)) else {
        return;
    };
    let count = rise as f64;
    if count < limits.info {
        return;
    }
    let severity = if count >= limits.warn { Severity::Warn } else { Severity::Info };
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 600.0);
    conditions.met(RuleId::EccCorrected, target, evaluation, |_, _| {
        let sentence = format!(
            "{} corrected {} in the last {}",
            context.format_gpus([position]),
            counted(rise, "memory error"),
            duration(seconds),
        );
        context
            .gpu_details(position, sentence, "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT".to_owned())
            .with_figures(format!("{rise} in {}", duration(seconds)))
    });
}

fn power_limit(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    (info, gpu): (&GpuInfo, &GpuTrack),
) {
    let limits = &context.limits.power_limit_low;
    let Some(limit) = gpu.limit else { return };
    let siblings = context.host.gpus().zip(context.gpus).enumerate().filter(|(place, ((other, _), track))| {
        *place != position && other.name == info.name && other.name.is_some() && !track.is_instance
    });
    let mut others: Vec<f32> = siblings.filter_map(|(_, (_, track))| track.limit).collect();
    if others.len() < 2 {
        return;
    }
    others.sort_by(f32::total_cmp);
    let median = others[others.len() / 2];
    let is_low = |limit: f32| f64::from(limit) < limits.share * f64::from(median);
    let low = 1 + others.iter().filter(|other| is_low(**other)).count();
    if !is_low(limit) || low * 2 > others.len() {
        return;
    }
    // The other GPUs of a job wait for one that runs into its limit.
    let is_at_limit =
        gpu.utilization >= Some(BUSY_PERCENT) && gpu.power.is_some_and(|power| power >= AT_LIMIT_SHARE * limit);
    let escalation = if is_at_limit && has_peers_in_its_job(context, position) {
        Escalation::two((Severity::Info, limits.after), (Severity::Warn, limits.after.max(SLOWED_JOB_AFTER)))
    } else {
        Escalation::one(Severity::Info, limits.after)
    };
    let evaluation = Evaluation::new(escalation, Confidence::Certain, 60.0);
    let evaluation = Evaluation { at_least: true, is_preexisting: context.is_first_sample(), ..evaluation };
    conditions.met(RuleId::PowerLimitLow, target, evaluation, |_, _| {
        let sentence = format!(
            "{} has a power limit of {limit:.0} W, the others of its model {median:.0} W",
            context.format_gpus([position]),
        );
        context
            .gpu_details(position, sentence, format!("nvidia-smi -q -d POWER -i {}", info.index))
            .with_figures(format!("{limit:.0} W, others {median:.0} W"))
    });
}

/// Whether a job uses this GPU together with others.
fn has_peers_in_its_job(context: &RuleContext, position: usize) -> bool {
    context.jobs_on(position).any(|job| job.gpus.len() > 1)
}

/// Whether the other GPUs of its job run at far higher clocks: they wait for this one.
fn slows_its_job(context: &RuleContext, position: usize, gpu: &GpuTrack) -> bool {
    let is_faster = |other: usize| {
        let share = context.gpus.get(other).and_then(|track| track.clock_share);
        other != position && share.zip(gpu.clock_share).is_some_and(|(other, own)| own <= SLOWER_CLOCK * other)
    };
    context.jobs_on(position).any(|job| job.positions().any(is_faster))
}

/// The memory clock of a busy GPU, and that of another one, as shares of the maximum: one of them was locked, or was left out when
/// others were (`nvidia-smi --lock-memory-clocks`).
const LOW_MEMORY_CLOCK: f64 = 0.7;
const FULL_MEMORY_CLOCK: f64 = 0.9;

/// A busy GPU whose memory runs at a lower clock than that of another busy one of its kind.
fn memory_clock(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    (info, reading): (&GpuInfo, &GpuReading),
) {
    let share = |info: &GpuInfo, reading: &GpuReading| {
        let most = info.clock_memory_max_mhz.filter(|most| *most > 0)?;
        Some(f64::from(reading.clock_memory_mhz?) / f64::from(most))
    };
    if share(info, reading).is_none_or(|share| share > LOW_MEMORY_CLOCK) {
        return;
    }
    let is_faster = context.host.gpus().zip(context.gpus).any(|((other, reading), track)| {
        other.name == info.name
            && track.utilization >= Some(WORKING_PERCENT)
            && share(other, reading).is_some_and(|share| share >= FULL_MEMORY_CLOCK)
    });
    let (Some(now), Some(most), true) = (reading.clock_memory_mhz, info.clock_memory_max_mhz, is_faster) else {
        return;
    };
    let evaluation =
        Evaluation::new(Escalation::one(Severity::Warn, context.limits.clock_stuck.after), Confidence::Likely, 60.0);
    conditions.met(RuleId::ClockStuck, target, evaluation, |lasted, _| {
        let sentence = format!(
            "{} has been busy for {} with its memory at {now} of {most} MHz, and others of its kind run faster",
            context.format_gpus([position]),
            duration(lasted),
        );
        context
            .gpu_details(position, sentence, format!("nvidia-smi -q -d CLOCK,PERFORMANCE -i {}", info.index))
            .with_figures(format!("memory {now} of {most} MHz"))
    });
}

/// The utilisation of a GPU at work in percent, and the share of its limit from which it runs into it.
const BUSY_PERCENT: u8 = 90;
const AT_LIMIT_SHARE: f32 = 0.95;
/// The clock of a GPU that slows down the others of its job, divided by theirs, at most; and how long before it warns, in seconds.
const SLOWER_CLOCK: f64 = 0.75;
const SLOWED_JOB_AFTER: f64 = 1200.0;
/// The clock of a GPU that has fallen, divided by the highest one it had under load, at most; and how long before it warns, in
/// seconds.
const FALLEN_CLOCK: f64 = 0.5;
const FALLEN_CLOCK_AFTER: f64 = 900.0;

fn clock(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    (info, reading, gpu): (&GpuInfo, &GpuReading, &GpuTrack),
) {
    let limits = &context.limits.clock_stuck;
    let share = |info: &GpuInfo, reading: &GpuReading| {
        let most = info.clock_sm_max_mhz.filter(|most| *most > 0)?;
        Some((reading.clock_sm_mhz?, most))
    };
    let Some((now, most)) = share(info, reading) else { return };
    let ratio = |now: u32, most: u32| f64::from(now) / f64::from(most);
    let is_busy = gpu.utilization.is_some_and(|percent| f64::from(percent) >= limits.utilization);
    if is_busy && ratio(now, most) <= CAPPED_CLOCK {
        capped_by_the_server(context, conditions, target, position, (reading, gpu, now, most));
    }
    if ratio(now, most) > limits.share {
        if is_busy {
            memory_clock(context, conditions, target, position, (info, reading));
        }
        return;
    }
    if !is_busy {
        // Between two kernels the clock falls anyway: the finding keeps its phase.
        conditions.unknown(RuleId::ClockStuck, target);
        return;
    }
    // The hardware slowdown alone is no explanation: heat and the power brake set a second bit.
    if reading.clocks_event_reasons.is_none_or(|reasons| reasons & !(GPU_IDLE | HARDWARE_SLOWDOWN) != 0) {
        return;
    }
    let works = |gpu: &GpuTrack| gpu.utilization.is_some_and(|percent| percent >= WORKING_PERCENT);
    let is_faster = |((other, reading), track): &((&GpuInfo, &GpuReading), &GpuTrack)| {
        other.name == info.name
            && works(track)
            && share(other, reading).is_some_and(|(now, most)| ratio(now, most) >= limits.sibling)
    };
    let has_faster_sibling = context.host.gpus().zip(context.gpus).any(|pair| is_faster(&pair));
    let is_asleep = gpu.performance_state.is_some_and(|state| state >= SLEEPING_STATE);
    let (severity, confidence) = if has_faster_sibling || is_asleep {
        (Severity::Warn, Confidence::Likely)
    } else {
        (Severity::Info, Confidence::Suspected)
    };
    let has_fallen = ratio(now, most) <= FALLEN_CLOCK * f64::from(gpu.best_clock_share);
    let escalation = if has_fallen && severity == Severity::Info {
        Escalation::two((severity, limits.after), (Severity::Warn, limits.after.max(FALLEN_CLOCK_AFTER)))
    } else {
        Escalation::one(severity, limits.after)
    };
    let evaluation = Evaluation::new(escalation, confidence, 60.0);
    conditions.met(RuleId::ClockStuck, target, evaluation, |lasted, _| {
        let sentence = format!(
            "{} has been busy for {} at {now} of {most} MHz, and the driver gives no reason for the low clock",
            context.format_gpus([position]),
            duration(lasted),
        );
        context
            .gpu_details(position, sentence, format!("nvidia-smi -q -d CLOCK,PERFORMANCE -i {}", info.index))
            .with_figures(format!("{now} of {most} MHz"))
    });
}

/// nvml.h, `nvmlClocksEventReasonSwPowerCap`.
const SOFTWARE_POWER_CAP: u64 = 0x4;
/// A GPU may be capped by its server if its power is at most this share of its power limit, and its clock at most this share of the
/// maximum. It is listed after this time, in seconds.
const CAPPED_POWER: f32 = 0.75;
const CAPPED_CLOCK: f64 = 0.75;
const CAPPED_AFTER: f64 = 900.0;

/// A busy GPU that the driver holds at a low clock (`now` of `most` MHz) because of its power, although it draws far less than its
/// limit: the firmware of the server, or the limit of a whole module, is lower.
fn capped_by_the_server(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    (reading, gpu, now, most): (&GpuReading, &GpuTrack, u32, u32),
) {
    let (Some(watts), Some(limit)) = (gpu.power, gpu.limit) else { return };
    let is_capped =
        reading.clocks_event_reasons.is_some_and(|reasons| reasons & !HARDWARE_SLOWDOWN == SOFTWARE_POWER_CAP);
    if !is_capped || watts > CAPPED_POWER * limit {
        return;
    }
    let evaluation = Evaluation::new(Escalation::one(Severity::Info, CAPPED_AFTER), Confidence::Suspected, 60.0);
    conditions.met(RuleId::ClockStuck, target, evaluation, |lasted, _| {
        let sentence = format!(
            "{} has been held at {now} of {most} MHz for {} because of its power, although it draws {watts:.0} W and may draw \
             {limit:.0} W: the server caps it",
            context.format_gpus([position]),
            duration(lasted),
        );
        context
            .gpu_details(position, sentence, "look for a power cap in the settings of the server's BMC".to_owned())
            .with_figures(format!("{now} of {most} MHz, {watts:.0} of {limit:.0} W"))
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
        fewer_nvlinks(context, conditions, target, position, (gpu, active));
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
        context
            .gpu_details(position, sentence, "nvidia-smi nvlink -s".to_owned())
            .with_figures(format!("link {}", links.join(",")))
    });
}

/// The window in which CRC errors are counted, in seconds.
const CRC_WINDOW: f64 = 600.0;
/// A rate needs at least this much of its window, as a share.
const LEAST_OBSERVED: f64 = 0.5;

/// Errors of the links that rise: replays on PCIe; replays, recoveries and CRC errors on NVLink.
fn link_errors(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    gpu: &GpuTrack,
) {
    let Some(counters) = &gpu.error_counters else { return };
    let t = context.sample_time.t;
    let certain = |severity| Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 600.0);
    let rate = |rise: Option<(u64, f64)>, window: f64| {
        let (rise, seconds) = rise.filter(|(_, seconds)| *seconds >= LEAST_OBSERVED * window)?;
        Some((rise, seconds, rise as f64 / seconds))
    };
    let limits = &context.limits.pcie_errors;
    if let Some((rise, seconds, per_second)) = rate(counters.pcie_replays.rise(t, limits.window), limits.window)
        && 60.0 * per_second >= limits.info
    {
        let severity = if 60.0 * per_second >= limits.warn { Severity::Warn } else { Severity::Info };
        conditions.met(RuleId::PcieErrors, target, certain(severity), |_, _| {
            let sentence = format!(
                "{} sent {} again over PCIe in the last {}",
                context.format_gpus([position]),
                counted(rise, "packet"),
                duration(seconds),
            );
            context
                .gpu_details(position, sentence, "sudo dmesg | grep -i aer".to_owned())
                .with_figures(format!("{:.0} per min", 60.0 * per_second))
        });
    }
    let limits = &context.limits.nvlink_errors;
    let faults = counters.nvlink_faults.rise(t, limits.window).filter(|(rise, _)| *rise as f64 >= limits.info);
    let crc =
        rate(counters.nvlink_crc_errors.rise(t, CRC_WINDOW), CRC_WINDOW).filter(|(_, _, rate)| *rate >= limits.crc);
    if faults.is_none() && crc.is_none() {
        return;
    }
    let is_frequent = faults.is_some_and(|(rise, _)| rise as f64 >= limits.warn) || crc.is_some();
    let severity = if is_frequent { Severity::Warn } else { Severity::Info };
    conditions.met(RuleId::NvlinkErrors, target, certain(severity), |_, _| {
        let repeated = faults.map(|(rise, seconds)| {
            let noun = if rise == 1 { "replay or recovery" } else { "replays and recoveries" };
            format!("{rise} {noun} in the last {}", duration(seconds))
        });
        let crc = crc.map(|(_, _, rate)| format!("{rate:.0} CRC errors per second"));
        let figures = [repeated, crc].into_iter().flatten().collect::<Vec<_>>().join(" and ");
        let sentence = format!("{}: its NVLinks had {figures}", context.format_gpus([position]));
        context.gpu_details(position, sentence, "nvidia-smi nvlink -e".to_owned()).with_figures(figures)
    });
}

/// How long a GPU must have fewer links than its siblings until it warns, in seconds.
const FEWER_LINKS_WARN_AFTER: f64 = 1200.0;

/// A GPU that has fewer active NVLinks than before a reboot, or has had fewer than the others of its model since it was first seen.
fn fewer_nvlinks(
    context: &RuleContext,
    conditions: &mut Conditions,
    target: &FindingTarget,
    position: usize,
    (gpu, active): (&GpuTrack, u64),
) {
    let count = active.count_ones();
    let after = context.limits.nvlink_down.after;
    let before = gpu.links_before_reboot.count_ones();
    // A GPU without any link may have no bridge, or none any more. One whose links are active in part has a fault.
    let has_lost_some = count != 0 && count < before;
    let mut other_host = None;
    let (usual, escalation) = if has_lost_some {
        (before, Escalation::one(Severity::Warn, after))
    } else {
        let siblings = links_of_siblings(context, position).filter(|usual| count < *usual);
        other_host = if siblings.is_none() { links_of_other_host(context, position, count) } else { None };
        let Some(usual) = siblings.or(other_host.map(|(_, links)| links)) else { return };
        let escalation = match active {
            0 => Escalation::one(Severity::Info, after),
            _ => Escalation::two((Severity::Info, after), (Severity::Warn, FEWER_LINKS_WARN_AFTER.max(after))),
        };
        (usual, escalation)
    };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 30.0);
    let evaluation =
        Evaluation { at_least: true, is_preexisting: !has_lost_some && context.is_first_sample(), ..evaluation };
    conditions.met(RuleId::NvlinkDown, target, evaluation, |_, _| {
        let gpu = context.format_gpus([position]);
        let links = counted(u64::from(count), "active NVLink");
        let sentence = match other_host {
            _ if has_lost_some => format!("{gpu} has {links}, and had {usual} before the reboot"),
            Some((host, _)) => {
                let all = context.format_gpus(0..context.gpus.len());
                format!("{all} have {links} each, those of the same model on {host} {usual}")
            }
            None => format!("{gpu} has {links}, the others of its model {usual}"),
        };
        let next = "nvidia-smi nvlink -s".to_owned();
        let details = if other_host.is_some() {
            FindingDetails { gpus: context.finding_gpus(0..context.gpus.len()), ..host_details(sentence, next) }
        } else {
            context.gpu_details(position, sentence, next)
        };
        details.with_figures(format!("{count} of {usual} links"))
    });
}

/// The least number of GPUs of a host that are compared with those of another host.
const COMPARED_GPUS: usize = 4;

/// The host with as many GPUs of the same model of which each has more active NVLinks than each one here, and their number: a switch
/// is missing here. Reported for the first GPU only.
fn links_of_other_host<'a>(context: &RuleContext<'a>, position: usize, count: u32) -> Option<(&'a SafeText, u32)> {
    let size = context.gpus.len();
    if position != 0 || count == 0 || size < COMPARED_GPUS || context.gpus.iter().any(|gpu| gpu.is_instance) {
        return None;
    }
    let links = |host: &Host, position: usize| host.gpu_health(position)?.nvlinks_active.map(u64::count_ones);
    let model = |host: &'a Host, position: usize| host.gpu_info(position)?.name.as_ref();
    let has_everywhere = |host: &'a Host, number: u32| {
        (0..size).all(|gpu| links(host, gpu) == Some(number) && model(host, gpu) == model(context.host, 0))
    };
    let mut others = context.peers.fleet.hosts().iter().filter(|other| other.id != context.host.id);
    others.find_map(|other| {
        let number = links(other, 0).filter(|number| *number > count)?;
        let is_alike = other.gpu_info(size - 1).is_some() && other.gpu_info(size).is_none();
        (is_alike && has_everywhere(other, number) && has_everywhere(context.host, count))
            .then(|| (other.name(), number))
    })
}

/// The median number of active NVLinks of the other GPUs of a model; `None` if there are fewer than two.
fn links_of_siblings(context: &RuleContext, position: usize) -> Option<u32> {
    let name = |position: usize| context.host.gpu_info(position).and_then(|info| info.name.clone());
    let links = |position: usize| context.host.gpu_health(position).and_then(|health| health.nvlinks_active);
    let siblings = (0..context.gpus.len()).filter(|other| *other != position && name(*other) == name(position));
    let mut counts: Vec<u32> = siblings.filter_map(links).map(u64::count_ones).collect();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().filter(|_| counts.len() >= 2)
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
    let evaluation = Evaluation { at_least: true, is_preexisting: context.is_first_sample(), ..evaluation };
    conditions.met(RuleId::PersistenceOff, &FindingTarget::Host, evaluation, |_, _| {
        let sentence = format!("persistence mode is off on {}", context.format_gpus(off.iter().copied()));
        let mut details = host_details(sentence, "sudo nvidia-smi -pm 1".to_owned());
        details.gpus = context.finding_gpus(off.iter().copied());
        details
    });
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
