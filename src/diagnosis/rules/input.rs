//! Jobs whose GPUs wait for data: input-stall.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingTarget, MIN_COVERAGE};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::RuleContext;
use crate::diagnosis::track::JobTrack;
use crate::diagnosis::{Confidence, RuleId, Severity};

pub(in crate::diagnosis) const INPUT_STALL: RuleInfo = RuleInfo {
    word: "input-stall",
    title: "GPUs that wait for their data",
    fires: "Mean utilisation under 20 % over 10 min, of a job whose median was 50 % or more before. The cause is named as \
            CPU (its workers use 80 % of a core each), storage (a worker in disk sleep in 30 % of readings, or PSI io \
            some avg60 of 20), or unknown.",
    means: "The data loader cannot keep up: too few workers, slow storage, a cold cache, or another job on the same disks.",
    next: "Look at the workers with `top -p`, at the disks with `iostat -x`; more workers, or a local copy of the data.",
    not: "the first 10 min of a process, dips under 10 min (an evaluation, a checkpoint), a job that does nothing at all (job-stalled)",
    limits: "Needs 5 min of earlier work, and a GPU that the job has for itself.",
    source: "gpufleet; PSI as in Documentation/accounting/psi.rst",
};

/// The condition must hold this long after the mean over the whole window has fallen, in seconds.
const MIN_STALL_SECONDS: f64 = 120.0;

enum Cause {
    Cpu,
    Storage,
    Unknown,
}

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable && !job.is_server && !job.is_notebook) {
        evaluate_job(context, conditions, job);
    }
}

fn evaluate_job(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack) {
    let limits = &context.limits.input_stall;
    let t = context.sample_time.t;
    let target = FindingTarget::Job(job.key.clone());
    let age = context.members(job).filter_map(|process| process.age).reduce(f64::max);
    let age = age.unwrap_or(0.0).max(t - job.first_seen);
    if age < limits.young || t - job.first_seen < limits.warn_after || job.gpus.iter().any(|gpu| !gpu.is_exclusive) {
        return;
    }
    let is_known = |gpu: &&crate::diagnosis::track::JobGpu| gpu.baseline.utilization_seconds() >= 300.0;
    let medians: Vec<f32> =
        job.gpus.iter().filter(is_known).filter_map(|gpu| gpu.baseline.median_utilization()).collect();
    if medians.len() * 2 < job.gpus.len() || medians.is_empty() {
        return;
    }
    let earlier = medians.iter().sum::<f32>() / medians.len() as f32;
    // Most samples do not get further than this short look.
    let Some(now) = mean_utilization(context, job, MIN_STALL_SECONDS) else {
        conditions.unknown(RuleId::InputStall, &target);
        return;
    };
    if f64::from(earlier) < limits.earlier || f64::from(now) >= 1.5 * limits.utilization {
        return;
    }
    let Some(mean) = mean_utilization(context, job, limits.warn_after) else {
        conditions.unknown(RuleId::InputStall, &target);
        return;
    };
    if f64::from(mean) >= limits.utilization {
        conditions.in_hysteresis(RuleId::InputStall, &target);
        return;
    }
    let Some(cause) = cause(context, job, mean) else { return };
    let confidence = if matches!(cause, Cause::Unknown) { Confidence::Suspected } else { Confidence::Likely };
    let evaluation = Evaluation::new(Escalation::one(Severity::Warn, MIN_STALL_SECONDS), confidence, MIN_STALL_SECONDS);
    conditions.met(RuleId::InputStall, &target, evaluation, |_, _| {
        let gpus = context.format_gpus(job.gpus.iter().map(|gpu| gpu.position));
        let (why, next) = match cause {
            Cause::Cpu => {
                let workers: u32 = context.members(job).filter_map(|process| process.descendants).sum();
                (format!("its {workers} workers are at full CPU"), "more data loader workers, or cheaper transforms")
            }
            Cause::Storage => ("its workers wait for storage".to_owned(), "iostat -x 2; nfsiostat 2"),
            Cause::Unknown => ("why cannot be seen".to_owned(), "py-spy dump --pid"),
        };
        let next = match cause {
            Cause::Unknown => format!("{next} {}", context.first_pid(job)),
            _ => next.to_owned(),
        };
        let sentence = format!(
            "{gpus} were busy for {mean:.0} % of the last 10 min (median before: {earlier:.0} %): {} waits for data, {why}",
            context.format_job(job),
        );
        context.job_details(job, sentence, next)
    });
}

/// Mean over the job's GPUs and the last `seconds`; `None` where too little of it was seen.
fn mean_utilization(context: &RuleContext, job: &JobTrack, seconds: f64) -> Option<f32> {
    let mut sum = 0.0;
    for gpu in &job.gpus {
        // Windows begin at whole buckets: one more, so that a full window lies within.
        let stats = context.gpus.get(gpu.position)?.window.stats(context.sample_time.t - seconds - 15.0);
        if stats.covered < MIN_COVERAGE * seconds {
            return None;
        }
        sum += stats.mean_utilization?;
    }
    Some(sum / job.gpus.len().max(1) as f32)
}

/// What the job waits for; `None` where it does nothing at all, or something else.
fn cause(context: &RuleContext, job: &JobTrack, mean: f32) -> Option<Cause> {
    let limits = &context.limits.input_stall;
    let is_blocked = context.members(job).any(|process| process.helper_blocked * 100.0 >= limits.blocked);
    // A job that writes, or whose GPUs do nothing at all, saves or evaluates: it does not wait for its input.
    let saves = job.host_work_at.is_some_and(|at| context.sample_time.t - at <= MIN_STALL_SECONDS) || mean < 2.0;
    let pressure = context.host.snapshot.as_ref().and_then(|snapshot| snapshot.host.pressure_io_percent);
    if is_blocked || (!saves && pressure.is_some_and(|percent| f64::from(percent) >= limits.pressure)) {
        return Some(Cause::Storage);
    }
    let (workers, percent) = context.members(job).fold((0_u32, 0.0_f32), |(workers, percent), process| {
        (workers + process.descendants.unwrap_or(0), percent + process.descendants_cpu.unwrap_or(0.0))
    });
    if workers > 0 && f64::from(percent) >= limits.worker_cpu * f64::from(workers) {
        return Some(Cause::Cpu);
    }
    job.cores.filter(|cores| !saves && *cores > context.limits.idle_hog.cpu).map(|_| Cause::Unknown)
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
