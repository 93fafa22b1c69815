//! Jobs that never began, stopped working or went silent: rendezvous-stuck, job-stalled, idle-hog, log-silent.

use super::clients::{self, SINGLE_WARN_AFTER};
use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::gpu_state::HELD_MIB;
use crate::diagnosis::process_kind::{is_model_server, is_ray_worker, is_supervised, runs_ray_task};
use crate::diagnosis::rule_context::{LONGEST_EVALUATION, RuleContext, duration, gibibytes};
use crate::diagnosis::track::{JobGpu, JobTrack, LOOP_CORES, LogTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::JobKey;
use crate::wire::shell::absolute_path;
use crate::wire::{Owner, ProcessState, SafeText};

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable) {
        let target = FindingTarget::Job(job.key.clone());
        stalled(context, conditions, job, &target);
        rendezvous(context, conditions, job, &target);
        idle(context, conditions, job, &target);
    }
    log_silent(context, conditions);
}

fn stalled(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.job_stalled;
    if clients::unanswered(context, conditions, job, target) {
        return;
    }
    if job.cores.is_none() {
        conditions.unknown(RuleId::JobStalled, target);
        return;
    }
    let was_active = job.gpus.iter().any(|gpu| f64::from(gpu.baseline.active_seconds) >= limits.active_for);
    let holds = job.memory_bytes().is_none_or(|bytes| bytes >= HELD_MIB << 20);
    // The user who stopped or debugs a job knows that it does nothing.
    let is_halted =
        |process: &ProcessTrack| matches!(process.state, Some(ProcessState::Stopped | ProcessState::Traced));
    let is_idle_batch = !was_active && had_worked_before(context, job);
    let never_began = !was_active && !is_idle_batch && stopped_before_it_began(context, job);
    // Ranks that have loaded nothing are those of rendezvous-stuck.
    let is_in_task = is_in_ray_task(context, job) && !never_loaded(context, job);
    let is_judged = (was_active || is_idle_batch || never_began || is_in_task)
        && (holds || (never_began && job.gpus.iter().all(holds_only_a_context)))
        && !job.is_notebook
        && !context.members(job).any(is_halted);
    // The main process may wait in a loop. Then its workers tell whether it goes on.
    let is_unclear = job.is_blind || job.gpus.iter().any(|gpu| !gpu.is_exclusive);
    let unfed = job.unfed_run.filter(|_| is_unclear && job.stalled_run.is_none());
    // A single process of Slurm has no rank to wait for, see rendezvous-stuck: it hangs in a loop.
    let is_alone_in_batch = is_batch(context, job) && !has_ranks(context, job);
    // Ranks that computed and logged before may have become caught in a loop: MPI waits so.
    let least = if job.members.len() > 1 { SEVERAL_BRIEFLY_ACTIVE_SECONDS } else { BRIEFLY_ACTIVE_SECONDS };
    let was_briefly_active = job.gpus.iter().any(|gpu| gpu.baseline.active_seconds >= least);
    let is_caught = was_briefly_active
        && is_batch(context, job)
        && !job.is_server
        && context.is_log_silent(job)
        && context.has_log_stopped(job, SINGLE_WARN_AFTER);
    let is_caught_alone = was_active && stopped_in_its_stride(context, job);
    let may_loop = (never_began && is_alone_in_batch) || is_caught || is_caught_alone;
    let looping = job.loop_run().filter(|_| may_loop && job.stalled_run.is_none());
    let (Some(run), true) = (job.stalled_run.or(unfed).or(looping), is_judged) else { return };
    // A job that paused and resumed without help may pause as long again.
    let pause = f64::from(job.longest_pause.max(job.longest_quiet));
    // A single process may wait for an upload at its end.
    let least = if is_batch(context, job) { limits.warn_after } else { limits.warn_after.max(SINGLE_WARN_AFTER) };
    // A service that rested before waits for new data, perhaps for an hour.
    let is_service = |process: &ProcessTrack| {
        process.info.facts.as_ref().is_some_and(|facts| matches!(facts.owner, Some(Owner::Service(_))))
    };
    let waits_for_data = pause >= SERVICE_PAUSE && context.members(job).all(is_service);
    let least = if waits_for_data { least.max(SERVICE_WARN_AFTER) } else { least };
    let (warn_after, crit_after) = (least.max(1.5 * pause), limits.crit_after.max(3.0 * pause).max(least));
    let is_unseen = job.is_blind || unfed.is_some();
    let tells = context.is_log_silent(job) || (unfed.is_none() && is_batch(context, job));
    let grows_slowly = |process: &ProcessTrack| {
        process.log.as_ref().is_some_and(|log| log.grows_slowly(run.since, context.sample_time.t))
    };
    // Somebody waits for a batch job and for a training run. Any other process may wait for requests.
    let escalation = match (is_batch(context, job), job.was_training(run.since)) {
        // The GPUs do not tell whether the job works. Its log does, and the CPU of a batch job.
        _ if is_unseen && !job.is_server && !job.is_debugged && job.was_training(run.since) && tells => {
            let is_told_twice = job.workers_rest_since.is_some() && context.is_log_silent(job);
            let after = if is_told_twice { LONGEST_EVALUATION } else { UNSEEN_WARN_AFTER };
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(after)))
        }
        // Its CPU and its log tell that it stopped while it started.
        _ if job.is_blind && never_began && !job.is_server && !job.is_debugged && tells && unfed.is_none() => {
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(IDLE_BATCH_WARN_AFTER)))
        }
        _ if is_unseen || job.is_debugged => Escalation::one(Severity::Info, warn_after),
        // A server whose start hangs does not listen yet.
        _ if job.is_server && never_began => {
            let after = limits.crit_after;
            Escalation::two((Severity::Info, after), (Severity::Warn, after.max(GROWING_LOG_WARN_AFTER)))
        }
        // No worker of Ray waits for a task.
        _ if is_in_task => {
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(RAY_TASK_WARN_AFTER)))
        }
        // Workers of a scheduler may have no task. Ranks that computed and logged without a break until now hang.
        (_, true) if job.is_server && !job.is_model_server && are_ranks(context, job) && context.is_log_silent(job) => {
            Escalation::two((Severity::Info, crit_after), (Severity::Warn, crit_after.max(GROWING_LOG_WARN_AFTER)))
        }
        // Its trainers wait in a task for engines that rest, too.
        _ if !is_in_task && trains_with_engines(context, job) && context.is_log_silent(job) => {
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(RESTING_ENGINES_WARN_AFTER)))
        }
        // The engines of a training by reinforcement learning are gone, and its ranks have nothing to learn from.
        _ if job.had_engines && !job.is_model_server && are_ranks(context, job) => {
            Escalation::two((Severity::Info, crit_after), (Severity::Warn, crit_after.max(GROWING_LOG_WARN_AFTER)))
        }
        // A server that was busy may have no requests now.
        (_, was_busy) if job.is_server => {
            if !was_busy {
                return;
            }
            Escalation::one(Severity::Info, crit_after)
        }
        _ if looping.is_some() && is_caught_alone => {
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(CAUGHT_ALONE_WARN_AFTER)))
        }
        _ if looping.is_some() && is_caught => {
            // One host may evaluate while the others wait, but not all of them at once.
            let t = context.sample_time.t;
            let mut parts = context.peers.certain_parts(job, context.host.id).peekable();
            let do_all_loop = parts.peek().is_some()
                && parts.all(|part| part.diagnosis.is_recent(t) && part.job.loop_run().is_some());
            // A single process may prepare data or write results on one core.
            let after = match (do_all_loop, is_alone_in_batch) {
                (true, _) => CAUGHT_ALONE_WARN_AFTER,
                (false, true) => SINGLE_CAUGHT_WARN_AFTER,
                (false, false) => UNSEEN_WARN_AFTER,
            };
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(after)))
        }
        _ if is_idle_batch || never_began => {
            let has_loaded = !job.gpus.iter().all(holds_only_a_context);
            let after = if never_began && !has_loaded { CONTEXT_WARN_AFTER } else { IDLE_BATCH_WARN_AFTER };
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(after)))
        }
        // It may wait for a slow service. Some jobs write heartbeats while they hang.
        _ if context.is_log_growing(job) || context.members(job).any(grows_slowly) => {
            let after = if is_batch(context, job) { GROWING_LOG_WARN_AFTER } else { ALONE_WITH_LOG_WARN_AFTER };
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(after)))
        }
        (_, true) => Escalation::two((Severity::Warn, warn_after), (Severity::Crit, crit_after)),
        (true, false) => Escalation::one(Severity::Warn, warn_after),
        // A log that it wrote also while it waited for work, or workers that fed it, tell the end of its work.
        (false, false) if have_its_workers_stopped(context, job) => {
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(WORKERS_REST_WARN_AFTER)))
        }
        (false, false) if has_lost_its_heartbeat(context, job) => {
            Escalation::two((Severity::Info, warn_after), (Severity::Warn, warn_after.max(UNSEEN_WARN_AFTER)))
        }
        (false, false) => Escalation::one(Severity::Info, warn_after),
    };
    let confidence = if is_idle_batch || never_began { Confidence::Suspected } else { Confidence::Likely };
    let evaluation = Evaluation::new(escalation, confidence, 60.0).delayed_from(limits.warn_after).since(run);
    conditions.met(RuleId::JobStalled, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(job.positions());
        let before = match (is_idle_batch, never_began) {
            (true, _) => "used the CPU before",
            (_, true) => "wrote a log before",
            _ => "worked before",
        };
        let readings = job.positions().filter_map(|position| context.host.gpus().nth(position));
        let most = readings.filter_map(|(_, reading)| reading.utilization_percent).max();
        let idle = match most {
            _ if job.is_blind => "whose utilisation is unknown".to_owned(),
            Some(percent) if percent > 1 => format!("at {percent} %, for a desktop"),
            _ => "at 0 to 1 %".to_owned(),
        };
        let cpu = match (unfed, looping) {
            (Some(_), _) => "its workers rest",
            (None, Some(_)) => "one busy CPU core",
            (None, None) => "no CPU time",
        };
        let sentence = format!(
            "{} {before} and has done nothing for {}: {gpus} {idle}, {cpu}, no reads or writes, {} still held{}",
            context.format_job(job),
            duration(lasted),
            job.memory_bytes().map_or_else(|| "memory".to_owned(), gibibytes),
            odd_wait_channel(context, job).unwrap_or_default(),
        );
        let held = job.memory_bytes().map(|bytes| format!("{} held", gibibytes(bytes))).unwrap_or_default();
        context.job_details(job, sentence, context.examine(context.first_pid(job))).with_figures(held)
    });
}

/// Whether the log of a job that pauses between tasks grew during these pauses, and does not any more.
fn has_lost_its_heartbeat(context: &RuleContext, job: &JobTrack) -> bool {
    let mut logs = context.members(job).filter_map(|process| process.log.as_deref());
    let pause = job.longest_quiet.max(job.longest_pause);
    pause >= 120.0
        && job.served_port.is_none()
        && context.is_log_silent(job)
        && logs.any(|log| log.longest_gap <= 0.5 * pause)
}

/// Whether the log of a job is silent and the workers that fed its GPUs rest, although nobody can ask it for work.
fn have_its_workers_stopped(context: &RuleContext, job: &JobTrack) -> bool {
    job.workers_rest_since.is_some() && job.served_port.is_none() && context.is_log_silent(job)
}

/// The process that waits in another kernel function than all others of the job: `; pid 4313 waits in hrtimer_nanosleep, the
/// others in futex_do_wait`. Ranks that wait for a collective operation wait in the same function (recorded with gloo in
/// `tests/gloo_hangs`). `None` with fewer than three processes, or if the functions are not known.
fn odd_wait_channel(context: &RuleContext, job: &JobTrack) -> Option<String> {
    let channels: Option<Vec<(u32, &SafeText)>> =
        context.members(job).map(|process| Some((process.key.pid, context.wait_channel(process)?))).collect();
    let channels = channels.filter(|channels| channels.len() >= 3)?;
    let count = |channel: &SafeText| channels.iter().filter(|(_, other)| *other == channel).count();
    let (pid, own) = channels.iter().find(|(_, channel)| count(channel) == 1)?;
    let (_, common) = channels.iter().find(|(_, channel)| count(channel) == channels.len() - 1)?;
    Some(format!("; pid {pid} waits in {own}, the others in {common}"))
}

/// A job whose ranks wait for each other warns this many times later than it is listed: PyTorch gives up after half an hour.
const WARN_SHARE: f64 = 1.25;

/// Ranks that wait for each other since their start.
fn rendezvous(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.rendezvous_stuck;
    let is_new = job.age_at_first.is_some_and(|age| age <= limits.young);
    let has_begun = job.gpus.iter().any(|gpu| gpu.baseline.active_seconds > 30.0);
    // A thread in disk sleep waits for a file server.
    let is_blocked = context.members(job).any(|process| process.blocked.is_some());
    // Ranks that hold nothing but a context wait for each other, whatever started them: a server would load its model.
    let are_ranks = job.members.len() >= 2 && job.gpus.len() >= 2 && job.gpus.iter().all(holds_only_a_context);
    // The ranks of a model server load their shares together, before the first request.
    let are_shards = job.is_model_server
        && context.members(job).all(|process| process.info.launcher.is_some())
        && (are_ranks || never_opens(context, job));
    let waits_for_tasks = job.is_server && !is_in_ray_task(context, job) && !are_shards;
    let is_waiter = waits_for_tasks || job.is_notebook || job.is_debugged || job.is_blind || is_blocked;
    let has_peers = are_ranks || (is_batch(context, job) && has_ranks(context, job)) || has_twin(context, job);
    let is_judged = is_new && !has_begun && !is_waiter && has_peers;
    let (Some(run), true) = (job.stalled_run.or(job.loop_run()), is_judged) else { return };
    let is_recent = |at: Option<f64>| at.is_some_and(|at| context.sample_time.t - at <= LOADING_SECONDS);
    // The first rank may load or download for all others, on another host.
    let is_fed = is_recent(job.host_work_at)
        || context.peers.parts(job, context.host.id).any(|part| {
            let mut members = part.job.members(&part.diagnosis.processes);
            is_recent(part.job.host_work_at) || members.any(|process| is_recent(process.last_io_at))
        });
    if is_fed || context.members(job).any(|process| is_recent(process.memory_grew_at)) {
        conditions.unknown(RuleId::RendezvousStuck, target);
        return;
    }
    // Ranks that use a core may compile or prepare data. Their reads, writes and logs tell, where they can be seen.
    let is_seen = context.members(job).all(ProcessTrack::shows_io);
    let escalation = match job.stalled_run {
        // A host may still pull its image: the stores of PyTorch wait for half an hour, too.
        // A process without a GPU may copy the data, or load it into memory, for ranks that wait in a loop.
        None if !is_seen || is_recent(context.host_track.copied_at) || fills_memory(context) => {
            Escalation::one(Severity::Info, limits.info_after)
        }
        _ => Escalation::two((Severity::Info, limits.info_after), (Severity::Warn, WARN_SHARE * limits.info_after)),
    };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 60.0).since(run);
    conditions.met(RuleId::RendezvousStuck, target, evaluation, |lasted, _| {
        let sentence = format!(
            "{} has never used {} and has done nothing for {}: its ranks may wait for each other",
            context.format_job(job),
            context.format_gpus(job.positions()),
            duration(lasted),
        );
        context.job_details(job, sentence, context.examine(context.first_pid(job)))
    });
}

/// The least share of the host's memory that a program fills when it loads data for its ranks.
const LOADED_SHARE: f64 = 0.2;

/// Whether much of the host's memory has been filled lately.
fn fills_memory(context: &RuleContext) -> bool {
    context
        .share_of_memory(LOADED_SHARE)
        .is_some_and(|bytes| context.host_track.available_memory.has_fallen_lately(bytes))
}

/// Pods of one job start within this time, in seconds.
const TWIN_SECONDS: f64 = 120.0;

/// Whether another pod or container has run the command of this one since about the same time, and neither has loaded anything.
fn has_twin(context: &RuleContext, job: &JobTrack) -> bool {
    let is_contained = |job: &JobTrack| matches!(job.key, JobKey::Container { .. });
    let is_empty = |job: &JobTrack| job.gpus.iter().all(holds_only_a_context);
    let command = |job: &JobTrack| context.members(job).next().map(|process| process.info.command.clone());
    let is_twin = |other: &JobTrack| {
        let apart = context.age(other).zip(context.age(job)).map(|(other, own)| (other - own).abs());
        other.key != job.key
            && is_contained(other)
            && is_empty(other)
            && command(other) == command(job)
            && apart.is_some_and(|apart| apart <= TWIN_SECONDS)
    };
    // A server waits for requests.
    let listens = context.members(job).any(ProcessTrack::listens);
    is_contained(job) && is_empty(job) && !listens && context.jobs.iter().any(is_twin)
}

/// How long a job whose GPUs do not tell whether it works must have done nothing before it warns, in seconds.
const UNSEEN_WARN_AFTER: f64 = 2400.0;
/// How long a job whose log grows must have done nothing before it warns, in seconds.
const GROWING_LOG_WARN_AFTER: f64 = 2700.0;
/// As [`GROWING_LOG_WARN_AFTER`], for a single process: an archive may take an hour to answer.
const ALONE_WITH_LOG_WARN_AFTER: f64 = 4500.0;
/// How long a job whose log and workers have stopped must have done nothing before it warns, in seconds.
const WORKERS_REST_WARN_AFTER: f64 = 2100.0;
/// How long workers of Ray in the middle of a task must have done nothing before they warn, in seconds.
const RAY_TASK_WARN_AFTER: f64 = 2100.0;
/// The memory of a rank that has created its context and no more, at most.
const CONTEXT_BYTES: u64 = 2 << 30;

/// How long a batch job that was never seen at work must have done nothing before it warns, in seconds.
const IDLE_BATCH_WARN_AFTER: f64 = 2400.0;
/// As [`IDLE_BATCH_WARN_AFTER`], for a job that has loaded nothing and whose log has stopped.
const CONTEXT_WARN_AFTER: f64 = 2100.0;
/// A single process that never paused for this long, in seconds, and wrote its log as often, stops only if it hangs.
const SHORT_PAUSE: f32 = 60.0;
/// How long a job that a service manager started, and that rested for at least the second value before, must have done nothing before
/// it warns, in seconds.
const SERVICE_WARN_AFTER: f64 = 3600.0;
const SERVICE_PAUSE: f64 = 300.0;
/// How long it must have waited in a loop before it warns, in seconds.
const CAUGHT_ALONE_WARN_AFTER: f64 = 1800.0;
/// As [`UNSEEN_WARN_AFTER`], for a single process of Slurm.
const SINGLE_CAUGHT_WARN_AFTER: f64 = 4200.0;
/// Ranks that computed for this many seconds may have become caught in a loop.
const BRIEFLY_ACTIVE_SECONDS: f32 = 120.0;
/// As [`BRIEFLY_ACTIVE_SECONDS`], for several ranks, of which one may fail in the first step.
const SEVERAL_BRIEFLY_ACTIVE_SECONDS: f32 = 30.0;
/// How long a training by reinforcement learning whose trainers are in a task and whose engines rest must have done nothing before
/// it warns, in seconds.
const RESTING_ENGINES_WARN_AFTER: f64 = 1800.0;
/// Ranks whose GPU memory grew within this time load something, in seconds.
const LOADING_SECONDS: f64 = 300.0;
/// A process that used this share of a core over its life, and lived for this many seconds before it was first seen, had
/// worked.
const LIFE_CORES: f64 = 0.3;
const LIFE_SECONDS: f64 = 1800.0;

/// Whether the job runs under Slurm, has a launcher with several ranks, or ranks on several hosts.
fn is_batch(context: &RuleContext, job: &JobTrack) -> bool {
    let has_launcher = |process: &ProcessTrack| process.info.launcher.is_some() || process.info.is_for_several_hosts;
    matches!(job.key, JobKey::Slurm { .. }) || (has_ranks(context, job) && context.members(job).all(has_launcher))
}

/// Whether the job has several ranks, here or on other hosts. A single process of Slurm has none to wait for.
fn has_ranks(context: &RuleContext, job: &JobTrack) -> bool {
    job.members.len() > 1
        || context.peers.parts(job, context.host.id).next().is_some()
        || context.members(job).any(|process| process.info.is_for_several_hosts)
}

/// Whether the workers of a scheduler are ranks of one job: at least two, all of Ray. A worker alone, and those of Dask and
/// Celery, may have finished their tasks.
fn are_ranks(context: &RuleContext, job: &JobTrack) -> bool {
    let is_rank = |process: &ProcessTrack| process.info.facts.as_ref().is_some_and(is_ray_worker);
    let has_peers = job.members.len() >= 2 || context.peers.certain_parts(job, context.host.id).next().is_some();
    has_peers && context.members(job).all(is_rank)
}

/// Whether every process of the job is a worker of Ray in the middle of a task.
fn is_in_ray_task(context: &RuleContext, job: &JobTrack) -> bool {
    context.members(job).all(|process| process.info.facts.as_ref().is_some_and(runs_ray_task))
}

/// Whether a single process that computed without a pause and wrote its log all the while has stopped to do both.
fn stopped_in_its_stride(context: &RuleContext, job: &JobTrack) -> bool {
    let is_single = job.members.len() == 1 && !has_ranks(context, job) && !job.is_server && !job.is_debugged;
    let wrote_often = |process: &ProcessTrack| {
        process.log.as_ref().is_some_and(|log| log.longest_gap <= SHORT_PAUSE && log.writes >= 60)
    };
    is_single
        && job.longest_quiet <= SHORT_PAUSE
        && job.loop_run().is_some_and(|run| job.was_training(run.since))
        && context.members(job).all(|process| wrote_often(process) && !process.is_connected)
        && context.has_log_stopped(job, SINGLE_WARN_AFTER)
}

/// Whether a job has trainers of Ray in the middle of a task, and engines of a model server that workers of Ray run.
fn trains_with_engines(context: &RuleContext, job: &JobTrack) -> bool {
    let facts = || context.members(job).filter_map(|process| process.info.facts.as_ref());
    facts().any(runs_ray_task) && facts().any(|facts| is_model_server(facts) && is_ray_worker(facts))
}

/// Whether a batch job that was first seen idle had worked before: its CPU time tells, and it holds more than a context.
fn had_worked_before(context: &RuleContext, job: &JobTrack) -> bool {
    let had_worked = |process: &ProcessTrack| {
        let (Some(age), Some(used)) = (process.age, process.cpu_seconds) else { return false };
        let lived = age - (context.sample_time.t - process.first_seen);
        lived >= LIFE_SECONDS && used >= LIFE_CORES * lived
    };
    let holds = |gpu: &JobGpu| {
        let total = context.gpus.get(gpu.position).and_then(|track| track.total_bytes);
        total.zip(gpu.memory_bytes).is_some_and(|(total, bytes)| bytes >= total / 5)
    };
    !job.is_server && is_batch(context, job) && context.members(job).all(had_worked) && job.gpus.iter().all(holds)
}

/// Whether a job that never used its GPUs wrote a log, and now nothing can wake it but itself: no connection, no port, no
/// child at work. A lock that a fork left locked looks like this (huggingface/tokenizers#258).
fn stopped_before_it_began(context: &RuleContext, job: &JobTrack) -> bool {
    let t = context.sample_time.t;
    let ages = || context.members(job).filter_map(|process| process.log.as_ref()?.age(t));
    let is_isolated = |process: &ProcessTrack| process.shows_io() && !process.is_connected && !process.listens();
    (!job.is_server || never_loaded(context, job))
        && !job.is_debugged
        && ages().next().is_some()
        && ages().all(|age| age >= SINGLE_WARN_AFTER)
        && context.members(job).all(is_isolated)
}

/// Whether the job has created its context on a GPU and loaded nothing.
pub(super) fn holds_only_a_context(gpu: &JobGpu) -> bool {
    gpu.memory_bytes.is_some_and(|bytes| bytes <= CONTEXT_BYTES)
}

/// Whether it is seen that neither the ranks of a server nor their front end listen for requests. The router of TGI is no
/// ancestor of its shards, so that its port is not known.
fn never_opens(context: &RuleContext, job: &JobTrack) -> bool {
    let is_closed = |process: &ProcessTrack| {
        process.info.facts.as_ref().is_some_and(|facts| {
            facts.listening_ports.is_empty()
                && !facts.ancestors.iter().any(|parent| parent.name == *"text-generation-launcher")
        })
    };
    context.members(job).all(|process| process.shows_io() && is_closed(process))
}

/// Whether a job was seen from its start and holds nothing but its contexts.
fn never_loaded(context: &RuleContext, job: &JobTrack) -> bool {
    let is_new = job.age_at_first.is_some_and(|age| age <= context.limits.rendezvous_stuck.young);
    is_new && job.gpus.iter().all(holds_only_a_context)
}

/// Whether somebody waits for the job: it computes, or a person left it open. A service waits for requests.
fn is_expected_to_work(context: &RuleContext, job: &JobTrack) -> bool {
    let is_service = |process: &ProcessTrack| process.info.facts.as_ref().is_some_and(is_supervised);
    let was_training = job.idle_start().is_some_and(|since| job.was_training(since));
    job.is_notebook
        || job.is_debugged
        || was_training
        || (is_batch(context, job) && !context.members(job).any(is_service))
}

/// The port of a process that listens, works alone and was never seen training until `end`: it may wait for requests.
fn serves_on(context: &RuleContext, job: &JobTrack, end: f64) -> Option<u16> {
    let is_alone = || job.members.len() == 1 && context.peers.certain_parts(job, context.host.id).next().is_none();
    job.served_port.filter(|_| is_alone() && !is_batch(context, job) && !job.was_training(end))
}

/// The share of the memory of a GPU that leaves no room for another job.
const FULL_SHARE: f64 = 0.85;

/// Whether a job holds so much of this GPU that no other job finds room there.
pub(super) fn fills(context: &RuleContext, gpu: &JobGpu) -> bool {
    let total = context.gpus.get(gpu.position).and_then(|track| track.total_bytes);
    gpu.memory_bytes.zip(total).is_some_and(|(held, total)| held as f64 >= FULL_SHARE * total as f64)
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
    if !holds {
        return;
    }
    let Some(observed) = job.idle_run else {
        polling(context, conditions, job, target);
        return;
    };
    // The time proven by CPU time counts after the job was observed idle for two minutes.
    let proven =
        job.idle_since.filter(|since| *since < observed.since && context.sample_time.t - observed.since >= 120.0);
    let run = proven.map_or(observed, |since| Run { since, covered: context.sample_time.t - since });
    let port = serves_on(context, job, run.since);
    let escalation = if job.is_server || job.is_blind || port.is_some() {
        Escalation::one(Severity::Info, limits.info_after)
    } else if is_expected_to_work(context, job) {
        // A notebook that fills a GPU keeps everybody else away from it.
        let warn_after = if job.is_notebook && job.gpus.iter().any(|gpu| fills(context, gpu)) { 0.5 } else { 1.0 }
            * limits.warn_after;
        Escalation::three(
            (Severity::Info, limits.info_after),
            (Severity::Warn, warn_after),
            (Severity::Crit, limits.crit_after),
        )
    } else {
        // Nothing tells a program that waits for requests from a forgotten one but time.
        Escalation::two((Severity::Info, limits.info_after), (Severity::Warn, limits.crit_after))
    };
    let at_least = proven.is_some() || observed.since <= job.first_seen;
    // That it is idle is certain. Whether somebody still needs it is not.
    let evaluation = Evaluation { at_least, ..Evaluation::new(escalation, Confidence::Likely, 60.0).since(run) };
    conditions.met(RuleId::IdleHog, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(job.positions());
        let basis = match (proven, at_least) {
            (Some(_), _) => "at least, according to its CPU time",
            (None, true) => "at least, since it was first seen",
            (None, false) => "observed",
        };
        let server = match port {
            _ if job.is_model_server => ", a model server".to_owned(),
            _ if job.is_server => ", waits for tasks".to_owned(),
            Some(port) => format!(", listens on port {port}"),
            None => String::new(),
        };
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

/// A job that holds memory while its processes poll: an inference engine without requests, or a job that waits for one. Only
/// time tells them apart.
fn polling(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    // A process that uses several cores may compute.
    let is_single = |process: &ProcessTrack| process.smoothed_cores.is_some_and(|cores| cores <= *LOOP_CORES.end());
    let polls = !job.is_blind && context.members(job).all(is_single);
    let Some(run) = job.poll_run.filter(|_| polls) else { return };
    let after = context.limits.idle_hog.info_after;
    let evaluation = Evaluation::new(Escalation::one(Severity::Info, after), Confidence::Suspected, 60.0).since(run);
    conditions.met(RuleId::IdleHog, target, evaluation, |lasted, _| {
        let held = gibibytes(job.memory_bytes().unwrap_or(0));
        let sentence = format!(
            "{} holds {held} of {} and has not used it for {}: its processes rest, or poll without reads or writes",
            context.format_job(job),
            context.format_gpus(job.positions()),
            duration(lasted),
        );
        let next = format!("gpufleet why {}:{}", context.host.name(), context.first_pid(job));
        context.job_details(job, sentence, next).with_figures(held)
    });
}

/// A program may write the last lines of its start this long after its GPUs began to work, in seconds.
const FIRST_WORK_SECONDS: f64 = 60.0;

fn log_silent(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.log_silent;
    // The probe sees the logs of the login user, and of everybody if that is root.
    for job in context.jobs.iter().filter(|job| job.is_readable) {
        // The most recently written log counts for the job.
        let logs = context.members(job).filter_map(|process| Some((process, process.log.as_deref()?)));
        let known = logs.filter_map(|(process, log)| Some((process, log, log.age(context.sample_time.t)?)));
        let Some((process, log, age)) = known.min_by(|a, b| a.2.total_cmp(&b.2)) else {
            continue;
        };
        let gap = log.median_gap().filter(|_| f64::from(log.writes) >= limits.writes);
        let busy = f64::from(job.gpus.iter().filter_map(|gpu| gpu.activity).max().unwrap_or(0));
        // Without a reading of the GPU, the CPU tells whether a server has requests. A health check uses it for a moment.
        let is_judged_by_cpu = job.is_blind && job.is_server && busy < limits.utilization;
        let uses_cpu = job.cores.is_some() && job.idle_run.is_none();
        let is_busy = if is_judged_by_cpu { uses_cpu } else { busy >= limits.utilization || job.is_blind };
        let needed = if is_judged_by_cpu { SERVER_CPU_SECONDS } else { 0.0 };
        let (after, lasts) = match gap {
            Some(gap) if is_busy => (limits.after.max(limits.gaps * gap), needed),
            None if is_busy_server(context, job, process, age) => (limits.after, limits.after),
            _ => continue,
        };
        if age < after {
            continue;
        }
        // A log that did not grow since the GPUs began to work belongs to the start of the program.
        let worked = job.gpus.iter().map(|gpu| f64::from(gpu.baseline.active_seconds)).fold(0.0, f64::max);
        let has_logged_its_work = is_judged_by_cpu || job.is_blind || age + FIRST_WORK_SECONDS < worked;
        let is_flat = has_logged_its_work && is_flat_since(context, job, log, age);
        let severity = if is_flat { Severity::Warn } else { Severity::Info };
        let evaluation = Evaluation::new(Escalation::one(severity, lasts), Confidence::Suspected, 60.0);
        conditions.met(RuleId::LogSilent, &FindingTarget::Job(job.key.clone()), evaluation, |_, _| {
            let next = match process.log_path().as_deref().and_then(absolute_path) {
                Some(path) => format!("tail {path}"),
                None => context.examine(process.key.pid),
            };
            let path = process.log_path().map_or_else(|| "its log".to_owned(), |path| path.to_string());
            let usually = gap.map_or_else(
                || ", although clients are connected".to_owned(),
                |gap| format!(" (usually every {})", duration(gap)),
            );
            let sentence = format!(
                "{} is busy but has not written {path} for {}{usually}",
                context.format_job(job),
                duration(age),
            );
            context.job_details(job, sentence, next).with_figures(format!("for {}", duration(age)))
        });
    }
}

/// Whether the GPUs of a job have been busy at one level since its log stopped, for far longer than it ever paused before: a
/// loop that makes no progress.
fn is_flat_since(context: &RuleContext, job: &JobTrack, log: &LogTrack, age: f64) -> bool {
    let is_flat = |gpu: &JobGpu| {
        let level = context.gpus.get(gpu.position).and_then(|track| track.level_run);
        gpu.is_exclusive
            && level.is_some_and(|(run, percent)| {
                percent >= FLAT_PERCENT && run.reaches(context.sample_time.t, FLAT_SHARE * age)
            })
    };
    // It may write its results to another file.
    let t = context.sample_time.t;
    let writes = |process: &ProcessTrack| {
        let wrote_at = process.log.as_ref().and_then(|log| log.process_wrote_at);
        wrote_at.into_iter().chain(process.last_io_at).any(|at| t - at <= 0.5 * FLAT_AFTER)
    };
    !context.members(job).any(writes)
        && age >= FLAT_AFTER
        && age >= FLAT_GAPS * f64::from(log.longest_gap)
        && job.gpus.iter().all(is_flat)
}

/// How long a log must have been silent before it warns, in seconds and as a multiple of its longest gap; the utilisation of
/// the GPUs since then, in percent, and the share of that time.
const FLAT_AFTER: f64 = 2400.0;
const FLAT_GAPS: f64 = 5.0;
const FLAT_PERCENT: f32 = 97.0;
const FLAT_SHARE: f64 = 0.9;

/// Whether a model server computes for connected clients and is one that logs: a server writes a line per request, or every few
/// seconds. It may have written the last one before gpufleet started.
/// Where the first age is at most one interval, the file system shows no times, and the age begins with the probe.
fn is_busy_server(context: &RuleContext, job: &JobTrack, process: &ProcessTrack, log_age: f64) -> bool {
    let interval = context.host.interval().as_secs_f64();
    let log_lived = process.age.map_or(0.0, |age| age - log_age);
    let is_busy = |gpu: &JobGpu| gpu.activity.is_some_and(|activity| f64::from(activity) >= SERVER_BUSY_PERCENT);
    job.is_model_server
        && process.log.as_ref().is_some_and(|log| log.writes == 0 && log.first_age > Some(interval))
        && log_lived >= context.limits.log_silent.after
        && job.gpus.iter().any(is_busy)
        && context.members(job).any(|process| process.is_connected)
}

/// How long a server whose GPU is not read must use the CPU before it counts as busy, in seconds.
const SERVER_CPU_SECONDS: f64 = 300.0;
/// The utilisation from which a server is busy all the time, in percent.
const SERVER_BUSY_PERCENT: f64 = 90.0;

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "job_start_tests.rs"]
mod start_tests;
