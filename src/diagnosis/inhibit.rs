//! Inhibition: suppresses a finding that another finding explains. A distributed job has one finding for all its hosts.

use super::conditions::Conditions;
use super::finding::FindingTarget;
use super::rule_context::RuleContext;
use super::rules::is_reported_by_peer_host;
use super::{FindingPhase, RuleId, Severity};
use crate::fleet::JobKey;

use RuleId::{
    ClockStuck, DriverMismatch, DstateHang, GhostMemory, GpuImbalance, GpuLost, HostThrashing, IdleHog, InputStall,
    JobStalled, LogSilent, LowPowerHighUtil, MissingRank, NfsHang, OrphanHoldingGpu, ProbeBlocked, RendezvousStuck,
    StoppedHoldingGpu, StuckSpin, StuckSpinSuspect, Temperature, ThermalThrottle, ZombieHoldingGpu,
};

/// Inhibits the conditions of one host that another condition explains, or that another host already reports.
pub(super) fn inhibit(context: &RuleContext, conditions: &mut Conditions) {
    let active = conditions.active();
    let states: Vec<_> = active
        .iter()
        .filter_map(|(rule, target, _)| {
            let (since, severity) = conditions.state(*rule, target)?;
            Some((*rule, target.clone(), since, severity))
        })
        .collect();
    // A mount that this host reports already stays with this host.
    let published_mounts: Vec<FindingTarget> = conditions.published_targets(NfsHang).cloned().collect();
    let is_reported_elsewhere = |rule: RuleId, target: &FindingTarget| match target {
        FindingTarget::Mount(mount) => {
            rule == NfsHang && !published_mounts.contains(target) && is_reported_by_peer_host(context, mount)
        }
        FindingTarget::Job(key) => is_reported_by_peer(context, &states, rule, key),
        _ => false,
    };
    let severity = |rule: RuleId, target: &FindingTarget| {
        states.iter().find(|(known, other, ..)| *known == rule && other == target).map(|(.., severity)| *severity)
    };
    conditions.inhibit(|rule, target| {
        let explains = |cause: RuleId, other: &FindingTarget, phase: FindingPhase| {
            // A pending condition inhibits only pending ones.
            let is_ripe = phase != FindingPhase::Pending
                || active.iter().all(|(r, t, p)| (*r, t) != (rule, target) || *p == FindingPhase::Pending);
            // A process that sleeps now and then, or goes on, is a note at most, while its job may wait for data all the time.
            let is_note = (cause, rule) == (DstateHang, InputStall)
                && (phase == FindingPhase::Pending || severity(cause, other) < severity(rule, target));
            is_ripe && !is_note && is_inhibited_by(context, rule, target, cause, other)
        };
        active.iter().any(|(cause, other, phase)| (*cause, other) != (rule, target) && explains(*cause, other, *phase))
            || is_reported_elsewhere(rule, target)
    });
}

/// The parts of one job begin to hang within this time of each other, in seconds.
const SAME_BEGIN: f64 = 120.0;

/// Whether a host with a lower id reports the same rule for its part of this job: one finding per job. A part that is only
/// likely to belong to the job must have begun at the same time and be as severe.
fn is_reported_by_peer(
    context: &RuleContext,
    conditions: &[(RuleId, FindingTarget, f64, Severity)],
    rule: RuleId,
    key: &JobKey,
) -> bool {
    let Some(job) = context.jobs.iter().find(|job| job.key == *key) else { return false };
    let is_likely = context.peers.is_likely(job);
    let own = conditions.iter().find(|(r, target, ..)| *r == rule && *target == FindingTarget::Job(key.clone()));
    context.peers.parts(job, context.host.id).filter(|part| part.host < context.host.id).any(|part| {
        let theirs = part.diagnosis.conditions.state(rule, &FindingTarget::Job(part.job.key.clone()));
        theirs.is_some_and(|(began, severity)| {
            let is_same = |(.., since, own): &(RuleId, FindingTarget, f64, Severity)| {
                severity >= *own && (began - since).abs() <= SAME_BEGIN
            };
            !is_likely || own.is_some_and(is_same)
        })
    })
}

/// Adds the other hosts of a distributed job to the findings about its part on this host: those whose own finding is
/// inhibited because of this one, and for a hang all that certainly belong to the job, as every rank waits.
pub(super) fn add_peer_hosts(context: &RuleContext, conditions: &mut Conditions) {
    for (key, finding) in conditions.job_findings_mut() {
        let Some(job) = context.jobs.iter().find(|job| job.key == *key && job.group.is_some()) else { continue };
        for part in context.peers.parts(job, context.host.id) {
            let target = FindingTarget::Job(part.job.key.clone());
            let own = part.diagnosis.conditions.active_finding(finding.rule, &target);
            let waits = finding.rule.is_hang_at_low_power() && (own.is_some() || !context.peers.is_likely(job));
            if own.is_some() && part.host > context.host.id || waits {
                let gpus = own.map_or(&[][..], |own| own.gpus.as_slice());
                finding.add_peer(part.host, part.name, &part.job.key, gpus);
            }
        }
    }
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
        (DriverMismatch, ProbeBlocked | GpuLost) | (NfsHang | HostThrashing, DstateHang) => true,
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
            JobStalled | IdleHog | InputStall | GpuImbalance | LogSilent | RendezvousStuck,
        )
        | (JobStalled | RendezvousStuck, IdleHog | InputStall)
        | (RendezvousStuck, JobStalled)
        | (ThermalThrottle, Temperature) => target == other,
        (ZombieHoldingGpu, GhostMemory)
        | (ThermalThrottle | ClockStuck, LowPowerHighUtil | GpuImbalance)
        | (ClockStuck, StuckSpin | StuckSpinSuspect) => share_gpu(context, target, other),
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
