//! What explains what: a finding whose cause is told already is not told beside it.

use super::grade::Target;
use super::view::View;
use super::watches::Watches;
use super::{Phase, RuleId};

use RuleId::{
    DriverMismatch, DstateHang, GhostMemory, GpuImbalance, GpuLost, IdleHog, InputStall, JobStalled, LogSilent,
    LowPowerHighUtil, MissingRank, NfsHang, OrphanHoldingGpu, ProbeBlocked, StoppedHoldingGpu, StuckSpin,
    StuckSpinSuspect, Temperature, ThermalThrottle, ZombieHoldingGpu,
};

/// Silences what something else explains. `is_told` says whether another host tells the same of the same job.
pub(super) fn silence(view: &View, watches: &mut Watches, is_told: impl Fn(RuleId, &Target) -> bool) {
    let active = watches.active();
    watches.silence(|rule, target| {
        let explains = |cause: RuleId, other: &Target, phase: Phase| {
            // What is only pending explains what is only pending.
            let is_ripe = phase != Phase::Pending
                || active.iter().all(|(r, t, p)| (*r, t) != (rule, target) || *p == Phase::Pending);
            is_ripe && is_explained(view, rule, target, cause, other)
        };
        active.iter().any(|(cause, other, phase)| (*cause, other) != (rule, target) && explains(*cause, other, *phase))
            || is_told(rule, target)
    });
}

/// Whether `cause` on `other` explains `rule` on `target`.
fn is_explained(view: &View, rule: RuleId, target: &Target, cause: RuleId, other: &Target) -> bool {
    match (cause, rule) {
        (DriverMismatch, ProbeBlocked | GpuLost) | (NfsHang, DstateHang) => true,
        (DriverMismatch | ProbeBlocked, _) => matches!(target, Target::Gpu(_) | Target::Job(_)) && rule != GpuLost,
        (GpuLost, _) => rule != GpuLost && concerns_gpu(view, target, other),
        (MissingRank, StuckSpin | StuckSpinSuspect)
        | (StuckSpin, StuckSpinSuspect)
        | (
            StuckSpin | StuckSpinSuspect | MissingRank,
            LowPowerHighUtil | IdleHog | GpuImbalance | InputStall | JobStalled | LogSilent,
        )
        | (
            DstateHang | StoppedHoldingGpu | ZombieHoldingGpu | OrphanHoldingGpu,
            JobStalled | IdleHog | InputStall | GpuImbalance | LogSilent,
        )
        | (JobStalled, IdleHog | InputStall)
        | (ThermalThrottle, Temperature) => target == other,
        (ZombieHoldingGpu, GhostMemory) | (ThermalThrottle, LowPowerHighUtil | GpuImbalance) => {
            share_gpu(view, target, other)
        }
        _ => false,
    }
}

fn concerns_gpu(view: &View, target: &Target, gpu: &Target) -> bool {
    let Target::Gpu(identity) = gpu else { return false };
    match target {
        Target::Gpu(other) => other == identity,
        Target::Job(key) => {
            view.jobs.iter().any(|job| job.key == *key && job.gpus.iter().any(|gpu| gpu.identity == *identity))
        }
        _ => false,
    }
}

fn share_gpu(view: &View, one: &Target, other: &Target) -> bool {
    view.gpus.iter().any(|gpu| {
        let target = Target::Gpu(gpu.identity.clone());
        concerns_gpu(view, one, &target) && concerns_gpu(view, other, &target)
    })
}
