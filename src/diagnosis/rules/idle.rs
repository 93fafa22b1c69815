//! Memory held without work: job-stalled, idle-hog.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingTarget, Run};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, gibibytes};
use crate::diagnosis::track::{JobTrack, ProcessTrack};
use crate::diagnosis::{Confidence, HELD_MIB, RuleId, Severity};
use crate::wire::ProcessState;

pub(in crate::diagnosis) const JOB_STALLED: RuleInfo = RuleInfo {
    word: "job-stalled",
    title: "a job that worked and now does nothing at all",
    fires: "The job was at 20 % or more for at least 5 min; now every GPU of it is at 1 % or less, it uses at most 0.02 \
            of a CPU core, starts no helper, writes and reads nothing, and still holds its memory. Warns after 15 min, \
            critical after 30; of a job that rested before and went on by itself, after one and a half times and three \
            times that rest.",
    means: "It waits for something that does not come: a lock, a socket, a rank of another host, a finished process pool, \
            or a prompt that nobody sees.",
    next: "Run `py-spy dump --pid PID`, and look at the end of its log.",
    not: "a notebook (idle-hog), a model server that waits for requests, a job that uses the CPU meanwhile, one that somebody stopped or holds in a debugger",
    limits: "Reads and writes are seen for one's own processes only. A job seen only while it stands still is idle-hog.",
    source: "gpufleet; the times are twice and three times the usual barrier timeouts",
};

pub(in crate::diagnosis) const IDLE_HOG: RuleInfo = RuleInfo {
    word: "idle-hog",
    title: "memory held for hours without work",
    fires: "The job holds 1 GiB and 5 % of a GPU or more, every GPU of it is at 1 % or less and it uses at most 0.05 of a \
            CPU core: mentioned after 1 h, warns after 2 h, critical after 12 h. A known model server is only mentioned.",
    means: "A forgotten notebook, a debugger, a job that has ended in all but its process.",
    next: "Ask whose it is; the memory comes back when the process ends.",
    not: "a model server that waits (`model_servers`, or `role = \"serving\"` in hosts.toml), a notebook between two cells",
    limits: "How long it was idle before gpufleet looked is only claimed (as \"at least\") where CPU time that did not \
             grow proves it.",
    source: "gpufleet",
};

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable) {
        let target = FindingTarget::Job(job.key.clone());
        stalled(context, conditions, job, &target);
        idle(context, conditions, job, &target);
    }
}

fn stalled(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.job_stalled;
    if job.cores.is_none() {
        conditions.unknown(RuleId::JobStalled, target);
        return;
    }
    let was_active = job.gpus.iter().any(|gpu| f64::from(gpu.baseline.active_seconds) >= limits.active_for);
    let holds = job.memory_bytes().is_none_or(|bytes| bytes >= HELD_MIB << 20);
    // Somebody who stopped it, or looks into it with a debugger, knows that it does nothing.
    let is_kept = |process: &ProcessTrack| matches!(process.state, Some(ProcessState::Stopped | ProcessState::Traced));
    let is_judged = was_active && holds && !job.is_server && !job.is_notebook && !context.members(job).any(is_kept);
    let (Some(run), true) = (job.stalled_run, is_judged) else { return };
    // One that has rested and gone on by itself may rest as long again.
    let rests = f64::from(job.longest_pause);
    let escalation = Escalation::two(
        (Severity::Warn, limits.warn_after.max(1.5 * rests)),
        (Severity::Crit, limits.crit_after.max(3.0 * rests)),
    );
    conditions.met(RuleId::JobStalled, target, Evaluation::new(escalation, Confidence::Likely, 60.0).since(run), |lasted, _| {
        let gpus = context.format_gpus(job.gpus.iter().map(|gpu| gpu.position));
        let sentence = format!(
            "{} worked and has done nothing for {}: {gpus} at 0 to 1 %, no CPU time, nothing read or written, {} still held",
            context.format_job(job),
            duration(lasted),
            job.memory_bytes().map_or_else(|| "memory".to_owned(), gibibytes),
        );
        context.job_details(job, sentence, format!("py-spy dump --pid {}", context.first_pid(job)))
    });
}

fn idle(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.idle_hog;
    if job.cores.is_none() || job.gpus.iter().all(|gpu| gpu.memory_bytes.is_none()) {
        conditions.unknown(RuleId::IdleHog, target);
        return;
    }
    let holds = job.gpus.iter().any(|gpu| {
        let total = context.gpus.get(gpu.position).and_then(|track| track.total_bytes).unwrap_or(0) as f64;
        let least = (limits.memory * 1_048_576.0).max(limits.share / 100.0 * total);
        gpu.memory_bytes.is_some_and(|bytes| bytes as f64 >= least)
    });
    let (Some(watched), true) = (job.idle_run, holds) else { return };
    // What CPU time says of the time before counts once the job was seen at rest for a while.
    let proven =
        job.idle_since.filter(|since| *since < watched.since && context.sample_time.t - watched.since >= 120.0);
    let run = proven.map_or(watched, |since| Run { since, covered: context.sample_time.t - since });
    let escalation = if job.is_server {
        Escalation::one(Severity::Info, limits.info_after)
    } else {
        Escalation::three(
            (Severity::Info, limits.info_after),
            (Severity::Warn, limits.warn_after),
            (Severity::Crit, limits.crit_after),
        )
    };
    let at_least = proven.is_some() || watched.since <= job.first_seen;
    let evaluation = Evaluation { at_least, ..Evaluation::new(escalation, Confidence::Certain, 60.0).since(run) };
    conditions.met(RuleId::IdleHog, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(job.gpus.iter().map(|gpu| gpu.position));
        let basis = match (proven, at_least) {
            (Some(_), _) => "at least, by its CPU time",
            (None, true) => "at least: watched for as long",
            (None, false) => "watched",
        };
        let server = if job.is_server { ", a model server" } else { "" };
        let sentence = format!(
            "{} holds {} of {gpus} and has done nothing for {} ({basis}){server}",
            context.format_job(job),
            gibibytes(job.memory_bytes().unwrap_or(0)),
            duration(lasted),
        );
        let who = context.members(job).next().map_or_else(String::new, |process| process.info.who.to_string());
        let next = if job.is_mine { format!("kill {}", context.first_pid(job)) } else { format!("ask {who}") };
        context.job_details(job, sentence, next)
    });
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
