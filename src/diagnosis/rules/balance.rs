//! Work that could be faster: low-power-high-util, gpu-imbalance.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingTarget, MIN_COVERAGE};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration};
use crate::diagnosis::track::JobTrack;
use crate::diagnosis::{Confidence, RuleId, Severity};

pub(in crate::diagnosis) const LOW_POWER: RuleInfo = RuleInfo {
    word: "low-power-high-util",
    title: "busy, but far from the power that real work draws",
    fires: "Mean utilisation of 90 % or more with a mean power between the spin power and 40 % of the limit, for 30 min, \
            while memory is busy for less than 40 %.",
    means: "Small kernels, much communication (FSDP over a slow link), or a batch that is too small: the GPU is occupied \
            and not used.",
    next: "Profile a few steps (`nsys profile`); try larger batches, CUDA graphs, or overlap of communication.",
    not: "a hang (power is above the spin power), memory-bound work such as decoding (memory is busy)",
    limits: "An observation about efficiency; nothing is broken.",
    source: "gpufleet; arXiv 2312.02741 on what power readings mean",
};

pub(in crate::diagnosis) const IMBALANCE: RuleInfo = RuleInfo {
    word: "gpu-imbalance",
    title: "one GPU of a job does less than the others",
    fires: "Over 10 min, one GPU of a job is off the median of the others by 25 % in power and 15 points in utilisation, \
            after they had been even.",
    means: "A straggler: a slow data shard, a throttled or degraded board, a rank that does extra work on the host.",
    next: "Compare its clocks, temperature and PCIe link with its neighbours'; look at that rank's log.",
    not: "a pipeline, whose stages were never even",
    limits: "Only GPUs of the same model, on one host, that the job has for itself.",
    source: "gpufleet",
};

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable && job.gpus.iter().all(|gpu| gpu.is_exclusive)) {
        let target = FindingTarget::Job(job.key.clone());
        low_power(context, conditions, job, &target);
        imbalance(context, conditions, job, &target);
    }
}

/// Over which the means are taken, in seconds.
const WINDOW: f64 = 300.0;

fn low_power(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.low_power_high_util;
    // A job most of whose samples are not busy is not looked at any closer.
    let is_busy = |position: usize| context.gpus.get(position).is_some_and(|track| track.utilization >= Some(50));
    if !job.gpus.iter().all(|gpu| is_busy(gpu.position)) {
        if job.gpus.iter().any(|gpu| is_busy(gpu.position)) {
            conditions.unknown(RuleId::LowPowerHighUtil, target);
        }
        return;
    }
    let mut watts = 0.0;
    let mut utilization = 0.0;
    let mut limit_watts = 0.0;
    for gpu in &job.gpus {
        let Some(track) = context.gpus.get(gpu.position).filter(|track| !track.has_power_smoothing) else { return };
        let stats = track.window.stats(context.sample_time.t - WINDOW);
        let (Some(power), Some(spin), Some(limit), Some(mean)) =
            (stats.mean_power, track.spin_watts(), track.limit, stats.mean_utilization)
        else {
            conditions.unknown(RuleId::LowPowerHighUtil, target);
            return;
        };
        if stats.covered < MIN_COVERAGE * WINDOW - 30.0 {
            conditions.unknown(RuleId::LowPowerHighUtil, target);
            return;
        }
        let memory = stats.mean_memory_utilization.map_or(100.0, f64::from);
        let is_low = power >= spin && f64::from(power) < limits.power * f64::from(limit);
        if f64::from(mean) < limits.utilization || !is_low || memory >= limits.memory_utilization {
            // Near the bounds it neither begins nor ends.
            if f64::from(mean) >= 0.9 * limits.utilization
                && f64::from(power) < 1.1 * limits.power * f64::from(limit)
                && power >= spin
            {
                conditions.in_hysteresis(RuleId::LowPowerHighUtil, target);
            }
            return;
        }
        watts += power;
        limit_watts += limit;
        utilization += mean;
    }
    let count = job.gpus.len().max(1) as f32;
    let (watts, limit, utilization) = (watts / count, limit_watts / count, utilization / count);
    let evaluation = Evaluation::new(Escalation::one(Severity::Info, limits.info_after), Confidence::Likely, WINDOW);
    conditions.met(RuleId::LowPowerHighUtil, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(job.gpus.iter().map(|gpu| gpu.position));
        let sentence = format!(
            "{gpus}: {utilization:.0} % busy for {} at {watts:.0} W of {limit:.0} W: {} could be faster",
            duration(lasted),
            context.format_job(job),
        );
        context.job_details(job, sentence, "nsys profile, or a larger batch".to_owned())
    });
}

/// How long after it began the means show it at the earliest, in seconds.
const FOUND_AFTER: f64 = 90.0;

fn imbalance(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let Some(straggler) = &job.imbalance else { return };
    let evaluation = Evaluation::new(
        Escalation::one(Severity::Info, context.limits.gpu_imbalance.info_after - FOUND_AFTER),
        Confidence::Suspected,
        300.0,
    );
    conditions.met(RuleId::GpuImbalance, target, evaluation, |_, _| {
        let sentence = format!(
            "{} does less than the others of {}: {:.0} % at {:.0} W for 10 min, the others {:.0} % at {:.0} W; they were \
             even before",
            context.format_gpus([straggler.position]),
            context.format_job(job),
            straggler.utilization,
            straggler.watts,
            straggler.others_utilization,
            straggler.others_watts,
        );
        context.job_details(job, sentence, "nvidia-smi -q -d PERFORMANCE,CLOCK on that GPU; the log of that rank".to_owned())
    });
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
