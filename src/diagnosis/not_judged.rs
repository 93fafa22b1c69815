//! What could not be judged, and why.

use super::engine::HostDiagnosis;
use super::{NotJudged, RuleId};
use crate::config::Thresholds;
use crate::fleet::Moment;
use std::time::Duration;

/// Rules over windows need this much history, in seconds.
const MIN_HISTORY_SECONDS: f64 = 300.0;

/// Counts over all hosts, the largest first.
pub(super) fn list(hosts: &[HostDiagnosis], now: Option<Moment>) -> Vec<NotJudged> {
    let Some(t) = now.map(|now| now.since_start().as_secs_f64()) else { return Vec::new() };
    let mut instances = 0;
    let mut without_limit = 0;
    let mut without_power = 0;
    let mut without_memory_use = 0;
    let mut smoothed = 0;
    let mut unread = 0;
    let mut short = 0;
    let mut shared = 0;
    let mut never = 0;
    for host in hosts {
        match host.host_track.first_at {
            None => never += 1,
            Some(first) if t - first < MIN_HISTORY_SECONDS => short += 1,
            Some(_) => {}
        }
        for gpu in &host.gpus {
            let counter = match gpu {
                gpu if gpu.is_instance => &mut instances,
                gpu if gpu.is_mig_parent => continue,
                gpu if !gpu.is_readable => &mut unread,
                gpu if gpu.has_power_smoothing => &mut smoothed,
                gpu if gpu.limit.is_none() => &mut without_limit,
                gpu if gpu.power.is_none() => &mut without_power,
                gpu if gpu.memory_utilization.is_none() => &mut without_memory_use,
                _ => continue,
            };
            *counter += 1;
        }
        shared += host
            .jobs
            .iter()
            .filter(|job| job.gpus.iter().any(|gpu| gpu.activity.is_none() && !gpu.is_exclusive))
            .count() as u32;
    }
    let all = [
        (never, "host", "without any data"),
        (short, "host", "with a history under 5 min"),
        (instances, "MIG instance", "without a utilisation of its own"),
        (smoothed, "GPU", "with power smoothing: rules about power are off"),
        (without_limit, "GPU", "without a power limit"),
        (without_power, "GPU", "without a power reading"),
        (without_memory_use, "GPU", "without a memory utilisation"),
        (unread, "GPU", "that could not be read"),
        (shared, "job", "on a shared GPU that does not tell shares"),
    ];
    let known = all.into_iter().filter(|(count, ..)| *count > 0);
    let mut list: Vec<NotJudged> = known.map(|(count, what, why)| NotJudged { count, what, why }).collect();
    list.sort_by_key(|entry| std::cmp::Reverse(entry.count));
    list
}

/// For how long a rule conditions before it fires for the first time, in seconds; 0 where one sample is enough. What the
/// driver, `/proc` or an earlier run remember can make that shorter.
pub(super) fn observation_seconds(rule: RuleId, thresholds: &Thresholds) -> f64 {
    let it = thresholds;
    match rule {
        RuleId::StuckSpin | RuleId::MissingRank => it.stuck_spin.history + it.stuck_spin.warn_after,
        RuleId::StuckSpinSuspect => it.stuck_spin_suspect.warn_after,
        RuleId::JobStalled => it.job_stalled.active_for + it.job_stalled.warn_after,
        RuleId::InputStall => it.input_stall.young + it.input_stall.warn_after,
        RuleId::DstateHang => it.dstate_hang.warn_after,
        RuleId::StoppedHoldingGpu => it.stopped_holding_gpu.warn_after,
        RuleId::ZombieHoldingGpu => it.zombie_holding_gpu.warn_after,
        RuleId::OrphanHoldingGpu => it.orphan_holding_gpu.warn_after,
        RuleId::GhostMemory => it.ghost_memory.after,
        RuleId::IdleHog => it.idle_hog.info_after,
        RuleId::JobEnded => it.job_ended.held_for,
        RuleId::LogSilent => it.log_silent.after,
        RuleId::LowPowerHighUtil => it.low_power_high_util.info_after,
        RuleId::GpuImbalance => it.gpu_imbalance.info_after,
        RuleId::GpuMemPressure => it.gpu_mem_pressure.window,
        // 120 points, one a minute.
        RuleId::GpuMemLeak => 7200.0,
        RuleId::ProbeBlocked => it.probe_blocked.warn_after,
        RuleId::ThermalThrottle => it.thermal_throttle.window,
        RuleId::PowerBrake => it.power_brake.window,
        RuleId::Temperature => it.temperature.after,
        RuleId::PcieDegraded => it.pcie_degraded.after,
        RuleId::NvlinkDown => it.nvlink_down.after,
        RuleId::HostUnreachable => it.host_unreachable.warn_after,
        RuleId::HostRamLow => it.host_ram_low.after,
        RuleId::NfsHang => it.nfs_hang.warn_after,
        RuleId::GpuLost
        | RuleId::GpuNeedsAction
        | RuleId::XidSeen
        | RuleId::DriverMismatch
        | RuleId::DriverSkew
        | RuleId::EccUncorrectable
        | RuleId::RowRemap
        | RuleId::PersistenceOff
        | RuleId::OomKill
        | RuleId::DiskFull => 0.0,
    }
}

/// The rules that on some host watch for longer than it has been looked at, each with that time, the shortest first.
pub(super) fn rules_short_of_history<'a>(
    hosts: &[HostDiagnosis],
    now: Option<Moment>,
    thresholds_of: impl Fn(usize) -> Option<&'a Thresholds>,
) -> Vec<(RuleId, Duration)> {
    let Some(t) = now.map(|now| now.since_start().as_secs_f64()) else { return Vec::new() };
    let mut needed = vec![0.0_f64; RuleId::ALL.len()];
    for (index, host) in hosts.iter().enumerate() {
        let (Some(first), Some(thresholds)) = (host.host_track.first_at, thresholds_of(index)) else { continue };
        for (place, rule) in RuleId::ALL.iter().enumerate() {
            let time = observation_seconds(*rule, thresholds);
            if time > t - first && !thresholds.is_off(place) {
                needed[place] = needed[place].max(time);
            }
        }
    }
    let mut list: Vec<(RuleId, Duration)> = RuleId::ALL
        .iter()
        .zip(needed)
        .filter(|(_, time)| *time > 0.0)
        .map(|(rule, time)| (*rule, Duration::try_from_secs_f64(time).unwrap_or_default()))
        .collect();
    list.sort_by_key(|(_, time)| *time);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PARAMETERS;

    /// A new rule with a threshold in time has to say for how long it conditions.
    #[test]
    fn rules_that_last_say_for_how_long_they_watch() {
        let built_in = Thresholds::default();
        for rule in RuleId::ALL {
            let lasts = |key: &str| key == "after" || key == "window" || key == "info_after" || key == "warn_after";
            let shortest = PARAMETERS
                .iter()
                .filter(|parameter| parameter.rule == rule.word() && lasts(parameter.key))
                .map(|parameter| parameter.default)
                .fold(f64::INFINITY, f64::min);
            let time = observation_seconds(*rule, &built_in);
            assert!(shortest.is_infinite() || time >= shortest, "{}: {time} < {shortest}", rule.word());
        }
    }
}
