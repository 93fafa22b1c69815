//! What explains what: a finding whose cause is told already is not told beside it.

use super::conditions::Conditions;
use super::evaluation::FindingTarget;
use super::rule_context::RuleContext;
use super::{FindingPhase, RuleId};

use RuleId::{
    DriverMismatch, DstateHang, GhostMemory, GpuImbalance, GpuLost, IdleHog, InputStall, JobStalled, LogSilent,
    LowPowerHighUtil, MissingRank, NfsHang, OrphanHoldingGpu, ProbeBlocked, StoppedHoldingGpu, StuckSpin,
    StuckSpinSuspect, Temperature, ThermalThrottle, ZombieHoldingGpu,
};

/// Silences what something else explains. `is_reported` says whether another host tells the same of the same job.
pub(super) fn inhibit(
    context: &RuleContext,
    conditions: &mut Conditions,
    is_reported: impl Fn(RuleId, &FindingTarget) -> bool,
) {
    let active = conditions.active();
    conditions.inhibit(|rule, target| {
        let explains = |cause: RuleId, other: &FindingTarget, phase: FindingPhase| {
            // What is only pending explains what is only pending.
            let is_ripe = phase != FindingPhase::Pending
                || active.iter().all(|(r, t, p)| (*r, t) != (rule, target) || *p == FindingPhase::Pending);
            is_ripe && is_inhibited_by(context, rule, target, cause, other)
        };
        active.iter().any(|(cause, other, phase)| (*cause, other) != (rule, target) && explains(*cause, other, *phase))
            || is_reported(rule, target)
    });
}

/// Whether `cause` on `other` explains `rule` on `target`.
fn is_inhibited_by(
    context: &RuleContext,
    rule: RuleId,
    target: &FindingTarget,
    cause: RuleId,
    other: &FindingTarget,
) -> bool {
    match (cause, rule) {
        (DriverMismatch, ProbeBlocked | GpuLost) | (NfsHang, DstateHang) => true,
        (DriverMismatch | ProbeBlocked, _) => {
            matches!(target, FindingTarget::Gpu(_) | FindingTarget::Job(_)) && rule != GpuLost
        }
        (GpuLost, _) => rule != GpuLost && concerns_gpu(context, target, other),
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
            share_gpu(context, target, other)
        }
        _ => false,
    }
}

fn concerns_gpu(context: &RuleContext, target: &FindingTarget, gpu: &FindingTarget) -> bool {
    let FindingTarget::Gpu(identity) = gpu else { return false };
    match target {
        FindingTarget::Gpu(other) => other == identity,
        FindingTarget::Job(key) => {
            context.jobs.iter().any(|job| job.key == *key && job.gpus.iter().any(|gpu| gpu.identity == *identity))
        }
        _ => false,
    }
}

fn share_gpu(context: &RuleContext, one: &FindingTarget, other: &FindingTarget) -> bool {
    context.gpus.iter().any(|gpu| {
        let target = FindingTarget::Gpu(gpu.identity.clone());
        concerns_gpu(context, one, &target) && concerns_gpu(context, other, &target)
    })
}
