//! Jobs that never began, stopped working, ended or went silent: rendezvous-stuck, job-stalled, idle-hog, job-ended,
//! log-silent.

use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingTarget};
use crate::diagnosis::gpu_state::HELD_MIB;
use crate::diagnosis::host_diagnosis::EndedJob;
use crate::diagnosis::rule_context::{RuleContext, duration, gibibytes};
use crate::diagnosis::track::{JobTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::JobKey;
use crate::wire::shell::absolute_path;
use crate::wire::{ProcessState, SafeText};

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable) {
        let target = FindingTarget::Job(job.key.clone());
        stalled(context, conditions, job, &target);
        rendezvous(context, conditions, job, &target);
        idle(context, conditions, job, &target);
    }
    let t = context.sample_time.t;
    let recently = context.limits.job_ended.coincidence;
    for ended in context.host_track.ended.iter().rev().take_while(|ended| t - ended.missed_at <= recently) {
        job_ended(context, conditions, ended);
    }
    log_silent(context, conditions);
}

fn stalled(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.job_stalled;
    if job.cores.is_none() {
        conditions.unknown(RuleId::JobStalled, target);
        return;
    }
    let was_active = job.gpus.iter().any(|gpu| f64::from(gpu.baseline.active_seconds) >= limits.active_for);
    let holds = job.memory_bytes().is_none_or(|bytes| bytes >= HELD_MIB << 20);
    // The user who stopped or debugs a job knows that it does nothing.
    let is_halted =
        |process: &ProcessTrack| matches!(process.state, Some(ProcessState::Stopped | ProcessState::Traced));
    let is_judged = was_active && holds && !job.is_server && !job.is_notebook && !context.members(job).any(is_halted);
    let (Some(run), true) = (job.stalled_run, is_judged) else { return };
    // A job that paused and resumed without help may pause as long again.
    let pause = f64::from(job.longest_pause.max(job.longest_quiet));
    // A single process may wait for an upload at its end.
    let least = if is_batch(context, job) { limits.warn_after } else { limits.warn_after.max(SINGLE_WARN_AFTER) };
    let (warn_after, crit_after) = (least.max(1.5 * pause), limits.crit_after.max(3.0 * pause));
    // Somebody waits for a batch job and for a training run. Any other process may wait for requests.
    let escalation = match (is_batch(context, job), job.was_training(run.since)) {
        _ if job.is_blind || job.is_debugged => Escalation::one(Severity::Info, warn_after),
        (_, true) => Escalation::two((Severity::Warn, warn_after), (Severity::Crit, crit_after)),
        (true, false) => Escalation::one(Severity::Warn, warn_after),
        (false, false) => Escalation::one(Severity::Info, warn_after),
    };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 60.0).since(run);
    conditions.met(RuleId::JobStalled, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(job.positions());
        let sentence = format!(
            "{} worked before and has done nothing for {}: {gpus} at 0 to 1 %, no CPU time, no reads or writes, {} still held",
            context.format_job(job),
            duration(lasted),
            job.memory_bytes().map_or_else(|| "memory".to_owned(), gibibytes),
        );
        let held = job.memory_bytes().map(|bytes| format!("{} held", gibibytes(bytes))).unwrap_or_default();
        context
            .job_details(job, sentence, format!("py-spy dump --pid {}", context.first_pid(job)))
            .with_figures(held)
    });
}

/// Ranks that wait for each other since their start.
fn rendezvous(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.rendezvous_stuck;
    let is_new = job.age_at_first.is_some_and(|age| age <= limits.young);
    let has_begun = job.gpus.iter().any(|gpu| gpu.baseline.active_seconds > 30.0);
    let is_waiter = job.is_server || job.is_notebook || job.is_debugged || job.is_blind;
    let (Some(run), true) = (job.stalled_run, is_new && !has_begun && !is_waiter && is_batch(context, job)) else {
        return;
    };
    let escalation = Escalation::one(Severity::Warn, limits.warn_after);
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 60.0).since(run);
    conditions.met(RuleId::RendezvousStuck, target, evaluation, |lasted, _| {
        let sentence = format!(
            "{} has never used {} and has done nothing for {}: its ranks may wait for each other",
            context.format_job(job),
            context.format_gpus(job.positions()),
            duration(lasted),
        );
        context.job_details(job, sentence, format!("py-spy dump --pid {}", context.first_pid(job)))
    });
}

/// How long a job of one process must have done nothing before it warns, in seconds.
const SINGLE_WARN_AFTER: f64 = 1200.0;

/// Whether the job runs under Slurm, or has a launcher with several ranks.
fn is_batch(context: &RuleContext, job: &JobTrack) -> bool {
    let has_launcher = |process: &ProcessTrack| process.info.launcher.is_some();
    matches!(job.key, JobKey::Slurm { .. }) || (job.members.len() > 1 && context.members(job).all(has_launcher))
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
    let (Some(observed), true) = (job.idle_run, holds) else { return };
    // The time proven by CPU time counts after the job was observed idle for two minutes.
    let proven =
        job.idle_since.filter(|since| *since < observed.since && context.sample_time.t - observed.since >= 120.0);
    let run = proven.map_or(observed, |since| Run { since, covered: context.sample_time.t - since });
    let escalation = if job.is_server || job.is_blind {
        Escalation::one(Severity::Info, limits.info_after)
    } else {
        Escalation::three(
            (Severity::Info, limits.info_after),
            (Severity::Warn, limits.warn_after),
            (Severity::Crit, limits.crit_after),
        )
    };
    let at_least = proven.is_some() || observed.since <= job.first_seen;
    let evaluation = Evaluation { at_least, ..Evaluation::new(escalation, Confidence::Certain, 60.0).since(run) };
    conditions.met(RuleId::IdleHog, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(job.positions());
        let basis = match (proven, at_least) {
            (Some(_), _) => "at least, according to its CPU time",
            (None, true) => "at least, since it was first seen",
            (None, false) => "observed",
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
        let held = gibibytes(job.memory_bytes().unwrap_or(0));
        context.job_details(job, sentence, next).with_figures(held)
    });
}

/// How long an ended job is listed, in seconds.
const ENDED_RETENTION: f64 = 600.0;

fn job_ended(context: &RuleContext, conditions: &mut Conditions, ended: &EndedJob) {
    let coincidence = coincidence(context, ended);
    let severity = if coincidence.is_some() && ended.is_mine { Severity::Warn } else { Severity::Info };
    let stay = ENDED_RETENTION - (context.sample_time.t - ended.missed_at);
    conditions.event(RuleId::JobEnded, &FindingTarget::Job(ended.job.clone()), severity, stay, || {
        let gap = ended.missed_at - ended.last_seen;
        let when = if gap > 60.0 { format!(" within the last {} without data", duration(gap)) } else { String::new() };
        let ran = ended.age.map_or_else(String::new, |age| format!(" after {}", duration(age)));
        let why = coincidence.as_ref().map_or_else(String::new, |event| format!("; {event}"));
        let sentence = format!(
            "{} ended{when}{ran}: it left {} and released {}{why}",
            ended.label,
            if ended.positions.is_empty() {
                "its GPUs".to_owned()
            } else {
                context.format_gpus(ended.positions.iter().copied())
            },
            gibibytes(ended.most_memory),
        );
        let next = match ended.log_path.as_deref().and_then(absolute_path) {
            Some(path) => format!("tail {path}"),
            None => "read the end of its log".to_owned(),
        };
        FindingDetails {
            sentence,
            next_check: next,
            gpus: context.finding_gpus(ended.positions.iter().copied()),
            job: Some(ended.job.clone()),
            user: ended.user.clone(),
            is_mine: ended.is_mine,
            figures: ended.age.map_or_else(String::new, |age| format!("after {}", duration(age))),
            ..FindingDetails::default()
        }
    });
}

/// Describes an event near the end of a job that may have caused it.
fn coincidence(context: &RuleContext, ended: &EndedJob) -> Option<String> {
    let near = context.limits.job_ended.coincidence;
    let is_near = |at: f64| at >= ended.last_seen - near && at <= ended.missed_at + near;
    if ended.by_reboot {
        return Some("the host was rebooted".to_owned());
    }
    if context.host_track.oom_events.iter().any(|(at, _)| is_near(*at)) {
        return Some("at that time the kernel killed a process because memory ran out".to_owned());
    }
    let on_its_gpus = |identity: &SafeText| {
        let gpus = || ended.positions.iter().filter_map(|position| context.gpus.get(*position));
        *identity == *"?" || gpus().any(|gpu| gpu.identity == *identity)
    };
    let xid = context.host_track.xids.iter().find(|(at, identity, _)| is_near(*at) && on_its_gpus(identity));
    xid.map(|(_, _, xid)| format!("at that time one of its GPUs reported Xid {xid}"))
}

fn log_silent(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.log_silent;
    for job in context.jobs.iter().filter(|job| job.is_readable && job.is_mine) {
        // The most recently written log counts for the job.
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
            let dump = format!("py-spy dump --pid {}", process.key.pid);
            let next = match process.log_path().as_deref().and_then(absolute_path) {
                Some(path) => format!("tail {path}; {dump}"),
                None => dump,
            };
            let path = process.log_path().map_or_else(|| "its log".to_owned(), |path| path.to_string());
            let sentence = format!(
                "{} is busy but has not written {path} for {} (usually every {})",
                context.format_job(job),
                duration(age),
                duration(gap),
            );
            context.job_details(job, sentence, next).with_figures(format!("for {}", duration(age)))
        });
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
