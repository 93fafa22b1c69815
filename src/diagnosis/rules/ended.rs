//! What became of a job: job-ended, log-silent.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingDetails, FindingTarget};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, gibibytes};
use crate::diagnosis::track::EndedJob;
use crate::diagnosis::{Confidence, RuleId, Severity};

pub(in crate::diagnosis) const JOB_ENDED: RuleInfo = RuleInfo {
    word: "job-ended",
    title: "a job is gone from its GPUs",
    fires: "A job that held 500 MiB or more for 10 min has no process left. A warning if it is yours and the kernel killed \
            for memory, a GPU reported an Xid, or the host was rebooted within 60 s.",
    means: "It is done, or it died.",
    next: "The end of its log.",
    not: "a process that ended while others of its job go on",
    limits: "The exit code cannot be seen. Between two looks only the interval is claimed.",
    source: "gpufleet",
};

pub(in crate::diagnosis) const LOG_SILENT: RuleInfo = RuleInfo {
    word: "log-silent",
    title: "a job works and its log stands still",
    fires: "Of your own processes: the GPU is busy, the file behind stdout or stderr has not been written for 30 min and \
            for ten times its median gap, after 20 writes that were seen.",
    means: "It may have stopped to make progress, or only to report it.",
    next: "`tail` the log; `py-spy dump --pid PID`.",
    not: "a program that never wrote much",
    limits: "Only regular files, and only one's own processes.",
    source: "gpufleet",
};

/// How long an ended job stays in the list, in seconds.
const ENDED_RETENTION: f64 = 600.0;

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    let wait = context.limits.job_ended.coincidence;
    for ended in context.host_track.ended.iter().rev().take_while(|ended| t - ended.missed_at <= wait) {
        job_ended(context, conditions, ended);
    }
    log_silent(context, conditions);
}

fn job_ended(context: &RuleContext, conditions: &mut Conditions, ended: &EndedJob) {
    let coincidence = coincidence(context, ended);
    let severity = if coincidence.is_some() && ended.is_mine { Severity::Warn } else { Severity::Info };
    let stay = ENDED_RETENTION - (context.sample_time.t - ended.missed_at);
    conditions.event(RuleId::JobEnded, &FindingTarget::Job(ended.job.clone()), severity, stay, || {
        let gap = ended.missed_at - ended.last_seen;
        let when = if gap > 60.0 {
            format!(" some time in the {} before it was missed", duration(gap))
        } else {
            String::new()
        };
        let ran = ended.age.map_or_else(String::new, |age| format!(" after {}", duration(age)));
        let why = coincidence.as_ref().map_or_else(String::new, |event| format!("; {event}"));
        let be = if ended.positions.len() == 1 { "is" } else { "are" };
        let sentence = format!(
            "{} ended{when}{ran}: {} {be} free of it, {} were held{why}",
            ended.label,
            if ended.positions.is_empty() {
                "its GPUs".to_owned()
            } else {
                context.format_gpus(ended.positions.iter().copied())
            },
            gibibytes(ended.most_memory),
        );
        let next = match &ended.log_path {
            Some(path) => format!("tail {path}"),
            None => "the end of its log".to_owned(),
        };
        FindingDetails {
            sentence,
            next_check: next,
            gpus: context.finding_gpus(ended.positions.iter().copied()),
            job: Some(ended.job.clone()),
            user: ended.user.clone(),
            is_mine: ended.is_mine,
            ..FindingDetails::default()
        }
    });
}

/// What else happened when it ended, in words.
fn coincidence(context: &RuleContext, ended: &EndedJob) -> Option<String> {
    let near = context.limits.job_ended.coincidence;
    let is_near = |at: f64| at >= ended.last_seen - near && at <= ended.missed_at + near;
    if ended.by_reboot {
        return Some("the host was rebooted".to_owned());
    }
    if context.host_track.oom_events.iter().any(|(at, _)| is_near(*at)) {
        return Some("the kernel killed a process because memory ran out at that time".to_owned());
    }
    let on_its_gpus = |identity: &crate::wire::SafeText| {
        let gpus = || ended.positions.iter().filter_map(|position| context.gpus.get(*position));
        *identity == *"?" || gpus().any(|gpu| gpu.identity == *identity)
    };
    let xid = context.host_track.xids.iter().find(|(at, identity, _)| is_near(*at) && on_its_gpus(identity));
    xid.map(|(_, _, xid)| format!("a GPU of it reported Xid {xid} at that time"))
}

fn log_silent(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.log_silent;
    for job in context.jobs.iter().filter(|job| job.is_readable && job.is_mine) {
        // The member that was written last speaks for the job.
        let logs = context.members(job).filter_map(|process| Some((process, process.log.as_deref()?)));
        let known = logs.filter_map(|(process, log)| Some((process, log, log.age(context.sample_time.t)?)));
        let Some((process, log, age)) = known.min_by(|a, b| a.2.total_cmp(&b.2)) else {
            continue;
        };
        let Some(gap) = log.median_gap() else { continue };
        let busy = job.gpus.iter().filter_map(|gpu| gpu.activity).max().unwrap_or(0);
        if f64::from(log.writes) < limits.writes
            || age < limits.after.max(limits.gaps * gap)
            || f64::from(busy) < limits.utilization
        {
            continue;
        }
        let evaluation = Evaluation::new(Escalation::one(Severity::Info, 0.0), Confidence::Suspected, 0.0);
        conditions.met(RuleId::LogSilent, &FindingTarget::Job(job.key.clone()), evaluation, |_, _| {
            let path = process.info.facts.as_ref().and_then(|facts| facts.log_path.clone());
            let path = path.map_or_else(|| "its log".to_owned(), |path| path.to_string());
            let sentence = format!(
                "{} is busy and has not written {path} for {} (usually every {})",
                context.format_job(job),
                duration(age),
                duration(gap),
            );
            context.job_details(job, sentence, format!("tail {path}; py-spy dump --pid {}", process.key.pid))
        });
    }
}

#[cfg(test)]
#[path = "ended_tests.rs"]
mod tests;
