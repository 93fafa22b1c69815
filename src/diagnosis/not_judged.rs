//! GPUs and hosts that the rules could not evaluate, and rules that need a longer history.

use super::RuleId;
use super::host_diagnosis::HostDiagnosis;
use crate::config::Thresholds;
use crate::fleet::Moment;
use crate::wire::SafeText;
use std::time::Duration;

/// A number of GPUs, jobs or hosts that could not be evaluated, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotJudged {
    /// The number.
    pub count: u32,
    /// The noun in the singular: `GPU`, `MIG instance`, `job`, `host`.
    pub what: SafeText,
    /// The reason, as it follows the noun: `without a power limit`.
    pub why: SafeText,
}

impl std::fmt::Display for NotJudged {
    /// For example "1 GPU without a power limit".
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = match (self.count, self.what.as_str()) {
            (1, _) => "",
            (_, what) if what.ends_with('s') => "es",
            _ => "s",
        };
        write!(formatter, "{} {}{plural} {}", self.count, self.what, self.why)
    }
}

/// The history that rules over windows need, in seconds.
const MIN_HISTORY_SECONDS: f64 = 300.0;

/// Counts per reason over all hosts, largest first.
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
        (short, "host", "with less than 5 min of history"),
        (instances, "MIG instance", "without utilisation readings"),
        (smoothed, "GPU", "with power smoothing (power rules do not apply)"),
        (without_limit, "GPU", "without a power limit"),
        (without_power, "GPU", "without a power reading"),
        (without_memory_use, "GPU", "without a memory utilisation reading"),
        (unread, "GPU", "that could not be read"),
        (shared, "job", "on a shared GPU without per-process utilisation"),
    ];
    let known = all.into_iter().filter(|(count, ..)| *count > 0);
    let mut list: Vec<NotJudged> =
        known.map(|(count, what, why)| NotJudged { count, what: what.into(), why: why.into() }).collect();
    list.sort_by_key(|entry| std::cmp::Reverse(entry.count));
    list
}

/// How long a rule observes before it can fire, in seconds; 0 if one sample is enough. History from the driver, `/proc`
/// or an earlier run can shorten it.
pub(super) fn observation_seconds(rule: RuleId, thresholds: &Thresholds) -> f64 {
    let limits = thresholds;
    match rule {
        RuleId::StuckSpin | RuleId::MissingRank => limits.stuck_spin.history + limits.stuck_spin.warn_after,
        RuleId::StuckSpinSuspect => limits.stuck_spin_suspect.warn_after,
        RuleId::JobStalled => limits.job_stalled.active_for + limits.job_stalled.warn_after,
        RuleId::InputStall => limits.input_stall.young + limits.input_stall.warn_after,
        RuleId::DstateHang => limits.dstate_hang.warn_after,
        RuleId::StoppedHoldingGpu => limits.stopped_holding_gpu.warn_after,
        RuleId::ZombieHoldingGpu => limits.zombie_holding_gpu.warn_after,
        RuleId::OrphanHoldingGpu => limits.orphan_holding_gpu.warn_after,
        RuleId::GhostMemory => limits.ghost_memory.after,
        RuleId::IdleHog => limits.idle_hog.info_after,
        RuleId::JobEnded => limits.job_ended.held_for,
        RuleId::CpuFallback => limits.cpu_fallback.info_after,
        RuleId::LogSilent => limits.log_silent.after,
        RuleId::LowPowerHighUtil => limits.low_power_high_util.info_after,
        RuleId::GpuImbalance => limits.gpu_imbalance.info_after,
        RuleId::GpuMemPressure => limits.gpu_mem_pressure.window,
        // 120 points, one per minute.
        RuleId::GpuMemLeak => 7200.0,
        RuleId::ProbeBlocked => limits.probe_blocked.warn_after,
        RuleId::ThermalThrottle => limits.thermal_throttle.window,
        RuleId::PowerBrake => limits.power_brake.window,
        RuleId::Temperature => limits.temperature.after,
        RuleId::PcieDegraded => limits.pcie_degraded.after,
        RuleId::NvlinkDown => limits.nvlink_down.after,
        RuleId::PcieErrors => limits.pcie_errors.window,
        RuleId::NvlinkErrors => limits.nvlink_errors.window,
        RuleId::PowerLimitLow => limits.power_limit_low.after,
        RuleId::ClockStuck => limits.clock_stuck.after,
        RuleId::RendezvousStuck => limits.rendezvous_stuck.info_after,
        RuleId::GpuShared => limits.gpu_shared.after,
        RuleId::StrayContexts => limits.stray_contexts.after,
        RuleId::SlurmUnused => limits.slurm_unused.info_after.max(limits.slurm_unused.warn_after),
        RuleId::HostOverloaded => limits.host_overloaded.after,
        RuleId::HostThrashing => limits.host_thrashing.after,
        // The full window; a storm of errors fires earlier.
        RuleId::EccCorrected => limits.ecc_corrected.window,
        RuleId::HostUnreachable => limits.host_unreachable.warn_after,
        RuleId::HostRamLow => limits.host_ram_low.after,
        RuleId::NfsHang => limits.nfs_hang.warn_after,
        RuleId::GpuLost
        | RuleId::GpuNeedsAction
        | RuleId::XidSeen
        | RuleId::DriverMismatch
        | RuleId::DriverSkew
        | RuleId::EccUncorrectable
        | RuleId::RowRemap
        | RuleId::PersistenceOff
        | RuleId::HostRebooted
        | RuleId::OomKill
        | RuleId::DiskFull => 0.0,
    }
}

/// The rules that need a longer history than some host has, each with the time it needs, shortest first.
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

    /// A new rule with a duration threshold needs its line in `observation_seconds`.
    #[test]
    fn observation_times_cover_the_duration_thresholds() {
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
