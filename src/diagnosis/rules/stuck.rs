//! Jobs that hang while their GPUs read as busy: stuck-spin, stuck-spin-suspect, missing-rank.
//!
//! A rank that waits in a collective runs one small kernel that spins: the driver reports 100 % busy, the power falls
//! to slightly more than that of an idle context, and the memory is not accessed.

use super::clients::{self, SERVER_AFTER};
use super::job::holds_only_a_context;
use super::spinning::{
    LEVEL_AFTER, SpinningGpu, clients_of_still_gpu, is_in_hysteresis, may_wait, quiet_drop_after, spinning,
};
use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingGpu, FindingTarget};
use crate::diagnosis::rule_context::{JobPart, RuleContext, duration, examine, finding_gpu, gibibytes};
use crate::diagnosis::track::{GpuTrack, JobGpu, JobTrack, ProcessTrack, STILL_CORES_UNKNOWN};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{GpuListStyle, Process, ProcessInfo, format_gpu_list, program_name};
use crate::wire::ProcessState;

/// How long after work on the host the other ranks count as waiting for it, in seconds: minimum and maximum. The probe
/// checks the bytes written by a process in every tenth sample.
const HOST_WORK_GRACE: (f64, f64) = (90.0, 720.0);
/// How long after a sign of life on a resting GPU the other ranks count as waiting for it, in seconds. In telemetry of 29
/// real saves by one rank, the longest time without a sign was 200 s.
const ALIVE_GRACE: f64 = 240.0;
/// How long a resting rank that uses the CPU is believed to work, in seconds: without more evidence, and while its log grows.
/// Evaluations of up to 25 min were reported, and ranks that wait in a loop forever.
const CPU_WORK_LIMIT: f64 = 1320.0;
const LOGGED_WORK_LIMIT: f64 = 2700.0;
/// The least share of the host's memory that a rank fills with results while the others wait.
const COLLECTED_SHARE: f64 = 0.03;
/// A rank that waits in a loop uses one core for each of its GPUs and its other threads little. One that uses more computes, in
/// cores.
const MORE_THAN_A_LOOP: f64 = 1.1;
/// While the log of a job grows, its work may go on: how long it is observed before it warns, and before it is critical, in
/// seconds. Some jobs write heartbeats while they hang.
const GROWING_LOG_AFTER: (f64, f64) = (1200.0, 2400.0);
/// How long a job on a single GPU must look hung before it warns, and before it is critical, if nothing but the GPU tells, in
/// seconds.
const ALONE_AFTER: (f64, f64) = (660.0, 1200.0);
/// How long ranks must wait for an idle rank 0 until the job warns, and until it is critical, in seconds. Rank 0 saves, evaluates and
/// uploads for the others, sometimes with neither CPU time nor writes.
const RANK_0_AFTER: (f64, f64) = (600.0, 1200.0);
/// How long a job must look hung until it warns, in seconds, if it was never seen at work and a server of the same user is busy on
/// the host: it may wait for rollouts, of which some were reported to take half an hour.
const SERVED_AFTER: f64 = 3600.0;
/// A server that was seen in another state for this long, in seconds, began to spin by itself.
const SERVER_SEEN_BEFORE: f64 = 120.0;
/// How long a server that was never seen at work must spin on its only GPU with a silent log, in seconds.
const SILENT_START_AFTER: f64 = 1200.0;

/// How long a job on a single GPU that was never seen at work must spin, and its log be silent, until it warns, in seconds.
const STOPPED_AFTER: f64 = 1800.0;
/// A server that never listened hangs in its start if its log has been silent for so long, in seconds.
const CLOSED_PORT_AFTER: f64 = 900.0;

/// Ranks of one job on several hosts begin to wait within this many seconds of each other.
const IN_STEP_SECONDS: f64 = 60.0;

/// How much longer stuck-spin waits for missing-rank, in seconds: it covers a short gap in the data of one host.
const MISSING_RANK_GRACE: f64 = 90.0;

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable && !job.gpus.is_empty()) {
        evaluate_job(context, conditions, job);
    }
}

fn evaluate_job(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack) {
    let limits = &context.limits.stuck_spin;
    let target = FindingTarget::Job(job.key.clone());
    let candidates = job.gpus.iter().filter_map(|gpu| Some((gpu, context.gpus.get(gpu.position)?)));
    let spinning: Vec<SpinningGpu> =
        candidates.clone().filter_map(|(gpu, track)| spinning(context, job, gpu, track)).collect();
    if spinning.is_empty() {
        // Busy and near the spin power.
        if candidates.clone().any(|(_, track)| is_in_hysteresis(context, track)) {
            for rule in [RuleId::StuckSpin, RuleId::StuckSpinSuspect, RuleId::MissingRank] {
                conditions.in_hysteresis(rule, &target);
            }
        }
        return;
    }
    let stuck: Vec<&SpinningGpu> = spinning.iter().filter(|spinning| spinning.has_worked).collect();
    let waits_for = describe_host_work(context, job, &spinning);
    if stuck.is_empty() || job.is_model_server {
        let suspects: Vec<&SpinningGpu> = spinning.iter().collect();
        suspect(context, conditions, job, &target, (&suspects, waits_for.is_some()));
        return;
    }
    let run = earliest(&stuck);
    let is_partial = stuck.iter().all(|spinning| spinning.is_partial);
    let missing = missing_ranks(context, job);
    let (warn_after, crit_after) = patience(context, job, run, &missing);
    let escalation = |grace: f64| match waits_for {
        // A rank that works is the reason: the others are not hung.
        Some(_) => Escalation::one(Severity::Info, limits.waiting_after + grace),
        // The person who debugs a rank knows that the others wait. A lost GPU is the cause, which has its own finding.
        None if is_explained(context, job) => Escalation::one(Severity::Info, limits.waiting_after + grace),
        None if is_partial => Escalation::one(Severity::Info, LEVEL_AFTER),
        None => Escalation::two((Severity::Warn, warn_after + grace), (Severity::Crit, crit_after)),
    };
    // Power, memory and utilisation of every GPU and the log say the same.
    let all_spin = stuck.len() >= 2 && stuck.len() == job.gpus.len();
    let is_certain = all_spin
        && !stuck.iter().any(|spinning| spinning.is_hint)
        && waits_for.is_none()
        && !is_explained(context, job)
        && context.is_log_silent(job);
    let confidence = match is_partial {
        true => Confidence::Suspected,
        false if is_certain => Confidence::Certain,
        false => Confidence::Likely,
    };
    // A growing log delays the warning, and a rank that seems to work makes it a note. Both may end at any moment.
    let may_warn_after = (!is_partial && !is_explained(context, job)).then_some(limits.warn_after);
    let evaluation = Evaluation { may_warn_after, ..Evaluation::new(escalation(0.0), confidence, limits.clear_after) };
    // missing-rank says more than stuck-spin, so it gets the time to fire first.
    let grace = if missing.idle_run.is_some() || missing.has_outdated_part { MISSING_RANK_GRACE } else { 0.0 };
    conditions.met(
        RuleId::StuckSpin,
        &target,
        Evaluation { escalation: escalation(grace), ..evaluation }.since(run),
        |lasted, _| stuck_details(context, job, &stuck, waits_for.as_deref(), lasted),
    );
    if missing.has_outdated_part {
        conditions.unknown(RuleId::MissingRank, &target);
    }
    // An idle rank that saves or evaluates has not gone missing.
    if let (Some(idle), true, None) = (missing.idle_run, spinning.len() + missing.count() >= 2, &waits_for) {
        let since = run.since.max(idle.since);
        let run = Run { since, covered: run.covered.min(idle.covered) };
        conditions.met(RuleId::MissingRank, &target, evaluation.since(run), |lasted, _| {
            missing_rank_details(context, job, &stuck, &missing, lasted)
        });
    }
}

/// How long the GPUs of a job must spin until it warns, and until it is critical, in seconds, if nothing explains it.
fn patience(context: &RuleContext, job: &JobTrack, run: Run, missing: &MissingRanks) -> (f64, f64) {
    let limits = &context.limits.stuck_spin;
    // While one rank worked, the others waited for it: the hang began after that.
    let worked = (last_work(context, job) - run.since).max(0.0);
    // A job that waited before and went on by itself may wait as long again. A wait for a rank at work had a reason, and such a
    // rank may end its work without a sign.
    let wait = f64::from(job.waits.longest_unworked);
    let rest = if worked > 0.0 { wait.max(limits.waiting_after / 1.5) } else { wait };
    // Some jobs write heartbeats while they hang: work that took much longer than any before does not count.
    let believed = worked.min(CPU_WORK_LIMIT.max(1.5 * f64::from(job.waits.longest)));
    // One GPU alone may do other work for a while.
    let is_alone = job.gpus.len() == 1 && context.peers.certain_parts(job, context.host.id).next().is_none();
    let is_untold = is_alone && quiet_drop_after(context, job, run.since).is_none();
    let delays = [
        (job.waits.count > 0).then_some((believed + 1.5 * rest, believed + 3.0 * rest)),
        context.is_log_growing(job).then_some(GROWING_LOG_AFTER),
        is_untold.then_some(ALONE_AFTER),
        missing.is_rank_0(job).then_some(RANK_0_AFTER),
    ];
    let least = ((limits.warn_after + worked).min(limits.waiting_after), limits.crit_after + worked);
    delays.into_iter().flatten().fold(least, |least, delay| (least.0.max(delay.0), least.1.max(delay.1)))
}

/// Whether something else than a hang is known to stop the job.
fn is_explained(context: &RuleContext, job: &JobTrack) -> bool {
    let is_lost = |position: &usize| context.gpus.get(*position).is_some_and(|track| track.lost_samples > 0);
    let has_lost = context.members(job).any(|process| process.positions.iter().any(is_lost));
    has_lost || job.is_debugged || has_debugged_peer(context, job)
}

/// Whether somebody debugs or has stopped another process of the same user and program on this host. Ranks that were started
/// one by one in a shell are jobs of their own, which wait for each other all the same. A suspended program of another name
/// is no rank.
fn has_debugged_peer(context: &RuleContext, job: &JobTrack) -> bool {
    let name = |job: &JobTrack| {
        let info = &context.members(job).next()?.info;
        Some((info.who.clone(), script(info).to_owned()))
    };
    let Some(own) = name(job) else { return false };
    let is_debugged = |other: &JobTrack| {
        other.is_debugged
            || context
                .members(other)
                .any(|process| matches!(process.state, Some(ProcessState::Stopped | ProcessState::Traced)))
    };
    context.jobs.iter().filter(|other| name(other).is_some_and(|name| name == own)).any(is_debugged)
}

/// The script that a process runs, also below a debugger, or else its program.
fn script(info: &ProcessInfo) -> &str {
    let argv = info.facts.as_ref().map_or(&[][..], |facts| facts.argv.as_slice());
    let script = argv.iter().find(|argument| argument.ends_with(".py") && !argument.starts_with('-'));
    let path = script.map_or_else(|| program_name(&info.command), |script| script.as_str());
    path.rsplit('/').next().unwrap_or(path)
}

fn earliest(spinning: &[&SpinningGpu]) -> Run {
    let first = spinning.iter().map(|spinning| spinning.run).min_by(|a, b| a.since.total_cmp(&b.since));
    first.unwrap_or(Run { since: 0.0, covered: 0.0 })
}

/// When a rank of the job last did work that the others may have waited for.
fn last_work(context: &RuleContext, job: &JobTrack) -> f64 {
    let parts = context
        .peers
        .certain_parts(job, context.host.id)
        .flat_map(|part| [part.job.host_work_at, part.job.computed_at]);
    [job.host_work_at, job.computed_at].into_iter().chain(parts).flatten().fold(f64::NEG_INFINITY, f64::max)
}

/// Whether the driver tells that the job's processes on a GPU use nothing of it and that another one, such as that of a desktop, does.
fn is_used_by_others(context: &RuleContext, job: &JobTrack, position: usize) -> bool {
    let used = |process: &Process| process.usage_on(position).and_then(|usage| usage.sm_percent);
    let (own, others): (Vec<&Process>, Vec<&Process>) = context
        .host
        .processes()
        .filter(|process| !process.is_stale && process.usage_on(position).is_some())
        .partition(|process| process.info.job == job.key);
    !own.is_empty()
        && own.iter().all(|process| used(process) == Some(0))
        && others.iter().any(|process| used(process) > Some(0))
}

/// Describes a rank that works while the others may be waiting for it.
fn describe_host_work(context: &RuleContext, job: &JobTrack, spinning: &[SpinningGpu]) -> Option<String> {
    let t = context.sample_time.t;
    let stays = (12.0 * context.sample_time.dt).clamp(HOST_WORK_GRACE.0, HOST_WORK_GRACE.1);
    let is_recent = |at: Option<f64>| at.is_some_and(|at| t - at <= stays);
    // The GPU of a rank for which the others wait rests. Where all of them spin, heartbeats write and the log grows.
    let counters_rest =
        |gpu: &JobGpu| context.gpus.get(gpu.position).is_some_and(|track| track.counter_rest_run.is_some());
    let all_rest_by_counters = spinning.len() == job.gpus.len() && job.gpus.iter().all(counters_rest);
    if is_recent(job.host_work_at) && !all_rest_by_counters {
        return Some("a rank that is working on the host".to_owned());
    }
    let rests = |gpu: &JobGpu| !spinning.iter().any(|spinning| spinning.position == gpu.position);
    // A GPU that does real work.
    let computes = |gpu: &&JobGpu| {
        let track = context.gpus.get(gpu.position).filter(|_| rests(gpu));
        track.is_some_and(|track| track.utilization >= Some(20) && track.draws_power_of_work())
    };
    if let Some(gpu) = job.gpus.iter().find(computes) {
        return Some(format!("{}, which is computing", context.format_gpus([gpu.position])));
    }
    // A resting GPU that is used now and then: its rank saves or evaluates. One without any sign of life may be the culprit.
    let is_alive = |gpu: &&JobGpu| {
        let alive_at =
            context.gpus.get(gpu.position).filter(|track| track.spin_run.is_none()).and_then(|track| track.alive_at);
        rests(gpu)
            && alive_at.is_some_and(|at| t - at <= ALIVE_GRACE.max(stays))
            && !is_used_by_others(context, job, gpu.position)
    };
    if let Some(gpu) = job.gpus.iter().find(is_alive) {
        return Some(format!("the rank on {}, which shows signs of life", context.format_gpus([gpu.position])));
    }
    if let Some(position) = rank_on_the_cpu(context, job, spinning) {
        return Some(format!("the rank on {}, which uses the CPU", context.format_gpus([position])));
    }
    let works = |part: &JobPart| {
        let rests = |gpu: &&JobGpu| {
            let track = part.diagnosis.gpus.get(gpu.position);
            track.is_some_and(|track| {
                track.spin_run.is_none() && track.still_run.is_none() && !track.is_flat_at_low_power(t)
            })
        };
        let alive_at = |gpu: &JobGpu| part.diagnosis.gpus.get(gpu.position).and_then(|track| track.alive_at);
        let is_alive = |gpu: &JobGpu| alive_at(gpu).is_some_and(|at| t - at <= ALIVE_GRACE.max(stays));
        let is_over = spinning.iter().any(|spinning| t - spinning.run.since > CPU_WORK_LIMIT);
        let on_cpu = |gpu: &JobGpu| {
            let mut members = part.job.members(&part.diagnosis.processes);
            members.any(|process| {
                process.positions.contains(&gpu.position)
                    && (process.last_io_at.is_some_and(|at| t - at <= ALIVE_GRACE)
                        || (!is_over && process.smoothed_cores >= Some(STILL_CORES_UNKNOWN)))
            })
        };
        is_recent(part.job.host_work_at)
            || is_recent(part.job.computed_at)
            || part.job.gpus.iter().filter(rests).any(|gpu| is_alive(gpu) || on_cpu(gpu))
    };
    let began = spinning.iter().map(|spinning| spinning.run.since).fold(f64::INFINITY, f64::min);
    let is_likely = context.peers.is_likely(job);
    // The same command on another host may be another run. Two runs rarely stop working and begin to wait in the same minute. Both
    // must have been seen at work before, because every wait seems to begin when gpufleet starts.
    let reach = IN_STEP_SECONDS + 2.0 * context.sample_time.dt;
    let was_at_work = |job: &JobTrack| job.computed_at.is_some_and(|at| at >= began - reach);
    let is_in_step = |part: &JobPart| {
        let spins = |gpu: &JobGpu| part.diagnosis.gpus.get(gpu.position)?.spin_run;
        // The GPUs of ranks that save have rested since then.
        let idles = |gpu: &JobGpu| part.diagnosis.gpus.get(gpu.position)?.idle_run;
        let mut runs = part.job.gpus.iter().filter_map(|gpu| spins(gpu).or_else(|| idles(gpu)));
        // Where one GPU of the other host works and the others draw little power, they wait for it as well.
        let waits =
            |gpu: &JobGpu| part.diagnosis.gpus.get(gpu.position).is_some_and(|track| may_wait(context, gpu, track));
        let waits_there = || is_recent(part.job.computed_at) && part.job.gpus.iter().any(waits);
        was_at_work(job)
            && was_at_work(part.job)
            && (runs.any(|run| (run.since - began).abs() <= IN_STEP_SECONDS) || waits_there())
    };
    let mut parts = context.peers.parts(job, context.host.id).filter(|part| part.diagnosis.is_recent(t));
    let part = parts.find(|part| (!is_likely || is_in_step(part)) && works(part))?;
    Some(format!("a rank that is working on host {}", part.name))
}

/// A rank whose GPU rests while it uses the CPU or reads: it saves, evaluates, prepares data or talks to a server. CPU usage
/// is believed for a while only, since a rank that waits in a loop uses a core, too. A watchdog thread uses less.
fn rank_on_the_cpu(context: &RuleContext, job: &JobTrack, spinning: &[SpinningGpu]) -> Option<usize> {
    let t = context.sample_time.t;
    let is_longer = |limit: f64| spinning.iter().any(|spinning| t - spinning.run.since > limit);
    let (is_over, is_over_with_log) = (is_longer(CPU_WORK_LIMIT), is_longer(LOGGED_WORK_LIMIT));
    let rests = |position: &usize| {
        let track = context.gpus.get(*position);
        !spinning.iter().any(|spinning| spinning.position == *position)
            && track.is_some_and(|track| track.spin_run.is_none() && track.idle_run.is_some())
    };
    let reads = |process: &&ProcessTrack| process.last_io_at.is_some_and(|at| t - at <= ALIVE_GRACE);
    let logs = |process: &ProcessTrack| process.log.as_ref().is_some_and(|log| log.is_growing(t) == Some(true));
    let computes = |process: &ProcessTrack| {
        let loops = MORE_THAN_A_LOOP * process.positions.len().max(1) as f64;
        process.own_cores().is_some_and(|cores| cores >= loops)
    };
    let waited = spinning.iter().map(|spinning| t - spinning.run.since).fold(0.0, f64::max);
    let collects = || {
        let memory = &context.host_track.available_memory;
        context.share_of_memory(COLLECTED_SHARE).is_some_and(|bytes| memory.falls((waited / 60.0) as usize, bytes))
    };
    let works = |process: &&ProcessTrack| {
        let is_believed = !is_over || (!is_over_with_log && (logs(process) || computes(process) || collects()));
        is_believed && process.smoothed_cores >= Some(STILL_CORES_UNKNOWN)
    };
    let mut working = context.members(job).filter(|process| reads(process) || works(process));
    working.find_map(|process| process.positions.iter().copied().find(rests))
}

fn suspect(
    context: &RuleContext,
    conditions: &mut Conditions,
    job: &JobTrack,
    target: &FindingTarget,
    (unseen, is_waiting): (&[&SpinningGpu], bool),
) {
    let of_still_gpu = || {
        let mut spinning = job.gpus.iter().filter(|gpu| unseen.iter().any(|one| one.position == gpu.position));
        spinning.find_map(|gpu| clients_of_still_gpu(context, job, gpu, context.gpus.get(gpu.position)?))
    };
    let unanswered = clients::of_spinning_server(context, job, earliest(unseen)).or_else(of_still_gpu);
    let is_hung_server = unanswered.is_some() || is_hung_server(context, job, unseen);
    let is_likely = unseen.len() >= 2 && !is_waiting;
    let confidence = if is_likely { Confidence::Likely } else { Confidence::Suspected };
    // A rank on a single GPU has no peer to wait for, and a server waits for requests.
    let is_alone = job.gpus.len() == 1 && context.peers.certain_parts(job, context.host.id).next().is_none();
    let is_server_at_rest = job.is_model_server && !is_hung_server;
    let is_at_work = context.is_log_growing(job) && !is_hung_server;
    // A server that answers none of its clients for so long does not work for them on the CPU.
    let waits_for_a_rank = is_waiting && unanswered.is_none();
    // A rank that works on the host gets additional time.
    let patience = if waits_for_a_rank { context.limits.stuck_spin.waiting_after } else { 0.0 };
    let is_explained = waits_for_a_rank || is_server_at_rest || is_at_work || is_explained(context, job);
    // In reinforcement learning, the trainer waits for the answers of a model server before its first step.
    let has_server_at_work = !job.is_model_server && unanswered.is_none() && has_server_at_work(context, job);
    // In a hang every rank waits: it spins or rests. A GPU that does something else works.
    let is_mixed = job.gpus.iter().any(|gpu| {
        let is_spinning = unseen.iter().any(|spinning| spinning.position == gpu.position);
        !is_spinning && context.gpus.get(gpu.position).is_some_and(|track| track.idle_run.is_none())
    });
    // Its log stopped long ago as well, and its memory has rested since.
    let t = context.sample_time.t;
    let has_stopped = context.has_log_stopped(job, STOPPED_AFTER)
        && unseen.iter().all(|one| !one.is_hint && !one.is_partial && one.memory_percent.is_none())
        && t - earliest(unseen).since >= STOPPED_AFTER;
    let is_alone = is_alone && !is_hung_server && !has_stopped;
    let severity = if is_alone || is_explained || is_mixed { Severity::Info } else { Severity::Warn };
    let limits = &context.limits.stuck_spin_suspect;
    let least = if is_hung_server { SERVER_AFTER } else { limits.warn_after };
    // A few waits tell little about the next one. If they end at random times, one in ten lasts longer than this.
    let factor = (1.0 + 4.0 / f64::from(job.waits.count.max(1))).max(1.5);
    let after = least.max(factor * f64::from(job.waits.longest)) + patience;
    let after = if has_server_at_work { after.max(SERVED_AFTER) } else { after };
    // The longer several GPUs are flat together, the less likely is another explanation.
    let escalation = if severity == Severity::Warn && is_likely {
        Escalation::two((severity, after), (Severity::Crit, limits.crit_after.max(2.0 * after)))
    } else {
        Escalation::one(severity, after)
    };
    let evaluation = Evaluation::new(escalation, confidence, context.limits.stuck_spin.clear_after)
        .delayed_from(limits.warn_after)
        .since(earliest(unseen));
    conditions.met(RuleId::StuckSpinSuspect, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(unseen.iter().map(|spinning| spinning.position));
        let doubt = match (job.is_model_server, unseen.iter().any(|spinning| spinning.has_worked)) {
            _ if let Some(clients) = unanswered => {
                &format!("looks hung: {} clients wait, for up to {}", clients.count, duration(clients.longest))
            }
            (true, _) if is_hung_server => "looks hung: a rank that waits for requests would rest",
            (true, _) => "may be hung, or wait for requests",
            (false, true) => "may be hung",
            (false, false) => "may be hung (no heavier work was seen before)",
        };
        let sentence =
            format!("{gpus} {}: {} {doubt}", describe_readings(context, unseen, lasted), context.format_job(job));
        let pid = context.first_pid(job);
        let next_check = context.examine(pid);
        // The other GPUs of the job may work.
        let gpus = context.finding_gpus(unseen.iter().map(|spinning| spinning.position));
        FindingDetails { gpus, ..context.job_details(job, sentence, next_check) }.with_figures(watts_text(unseen))
    });
}

/// Whether a server of the same user computes on this host.
fn has_server_at_work(context: &RuleContext, job: &JobTrack) -> bool {
    let own = context.user(job);
    let computes =
        |other: &&JobTrack| other.computed_at.is_some_and(|at| context.sample_time.t - at <= HOST_WORK_GRACE.0);
    let serves = |other: &&JobTrack| other.is_model_server || other.served_port.is_some();
    own.is_some() && context.jobs.iter().filter(serves).filter(computes).any(|other| context.user(other) == own)
}

/// Whether a server hangs. While ranks wait for requests in a collective, at least one rests, and the next wait looks as the
/// one before: a server whose GPUs all rested between requests does not begin to spin.
fn is_hung_server(context: &RuleContext, job: &JobTrack, spinning: &[&SpinningGpu]) -> bool {
    let began = earliest(spinning).since;
    let mut parts = context.peers.certain_parts(job, context.host.id);
    let rests_elsewhere = parts.any(|part| {
        let tracks = part.job.gpus.iter().filter_map(|gpu| part.diagnosis.gpus.get(gpu.position));
        tracks.clone().count() == 0 || tracks.into_iter().any(|track| track.still_run.is_none())
    });
    let all_spin = spinning.len() == job.gpus.len() && !rests_elsewhere;
    // One GPU alone may also work for small requests: it must have been seen at work, at a higher power.
    let is_sure = match job.gpus.as_slice() {
        [gpu] => {
            // Its counters, its silent log or a power far below the one at work tell.
            let track = context.gpus.get(gpu.position);
            let is_told = track.is_some_and(|track| {
                (track.spin_run.is_some() && track.reports_memory_use)
                    || track.counter_rest_run.is_some()
                    || context.is_log_silent(job)
            });
            // Its start may hang.
            let is_silent = track.is_some_and(|track| track.spin_run.is_some() && track.reports_memory_use)
                && context.is_log_silent(job)
                && context.sample_time.t - began >= SILENT_START_AFTER;
            is_told && spinning.iter().all(|one| (one.earlier.is_some() || is_silent) && !one.is_partial)
        }
        // A server may work at a partial level.
        _ => (all_spin || job.rested_between) && spinning.iter().all(|one| !one.is_partial),
    };
    // Nobody can ask ranks for anything that have loaded no model yet: they hang in their first collective.
    let has_loaded_nothing = all_spin && job.gpus.len() >= 2 && job.gpus.iter().all(holds_only_a_context);
    // It has loaded the model and is silent since then, but nobody can ask it for anything before it opens its port.
    let is_port_closed = all_spin
        && job.gpus.len() >= 2
        && spinning.iter().all(|one| !one.has_worked)
        && context.has_log_stopped(job, CLOSED_PORT_AFTER)
        && !context.members(job).any(ProcessTrack::listens);
    let is_told = is_sure && began - job.first_seen >= SERVER_SEEN_BEFORE && !clients::does_nobody_wait(context, job);
    job.is_model_server && (has_loaded_nothing || is_port_closed || is_told)
}

/// "reads 100 % busy for 10 min but draws 104 W of 700 W (was 560 W) and accesses no memory". A hint does not mention the
/// memory.
fn describe_readings(context: &RuleContext, spinning: &[&SpinningGpu], lasted: f64) -> String {
    let (reads, draws, accesses) = if context.is_one_gpu(spinning.iter().map(|one| one.position)) {
        ("reads", "draws", "accesses")
    } else {
        ("read", "draw", "access")
    };
    let utilization = spinning.iter().map(|one| one.utilization).sum::<f32>() / spinning.len().max(1) as f32;
    let busy = format!("{reads} {utilization:.0} % busy for {}", duration(lasted));
    let earlier = mean(spinning, |one| one.earlier).map_or_else(String::new, |watts| format!(" (was {watts:.0} W)"));
    let most = context.limits.stuck_spin.memory_max;
    let uses_memory =
        |one: &&SpinningGpu| one.is_partial || one.memory_percent.is_some_and(|percent| f64::from(percent) > most);
    let memory = if spinning.iter().any(uses_memory) { "little memory" } else { "no memory" };
    match format_power(spinning) {
        Some(power) if spinning.iter().any(|one| one.is_hint) => format!("{busy} but {draws} {power}{earlier}"),
        Some(power) => format!("{busy} but {draws} {power}{earlier} and {accesses} {memory}"),
        None => format!("{busy} but {accesses} {memory}"),
    }
}

/// The mean of the GPUs that have the value.
fn mean(spinning: &[&SpinningGpu], value: fn(&SpinningGpu) -> Option<f32>) -> Option<f32> {
    let known: Vec<f32> = spinning.iter().filter_map(|one| value(one)).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32)
}

/// "104 W of 700 W", without the limit if it is unknown.
fn format_power(spinning: &[&SpinningGpu]) -> Option<String> {
    let watts = mean(spinning, |one| one.watts)?;
    let limit = mean(spinning, |one| one.limit).map_or_else(String::new, |limit| format!(" of {limit:.0} W"));
    Some(format!("{watts:.0} W{limit}"))
}

/// `112 of 700 W`: the mean power and limit. Empty if no power is known.
fn watts_text(spinning: &[&SpinningGpu]) -> String {
    match (mean(spinning, |one| one.watts), mean(spinning, |one| one.limit)) {
        (Some(watts), Some(limit)) => format!("{watts:.0} of {limit:.0} W"),
        (Some(watts), None) => format!("{watts:.0} W"),
        (None, _) => String::new(),
    }
}

fn stuck_details(
    context: &RuleContext,
    job: &JobTrack,
    stuck: &[&SpinningGpu],
    waits_for: Option<&str>,
    lasted: f64,
) -> FindingDetails {
    let gpus = context.format_gpus(stuck.iter().map(|spinning| spinning.position));
    let verdict = match waits_for {
        Some(who) => format!("may be waiting for {who}"),
        None if stuck.iter().all(|spinning| spinning.is_partial) => "may be hung".to_owned(),
        None => "looks hung".to_owned(),
    };
    let sentence =
        format!("{gpus} {}: {} {verdict}", describe_readings(context, stuck, lasted), context.format_job(job));
    let pid = context.first_pid(job);
    let details = context.job_details(job, sentence, context.examine(pid));
    let mut details = details.with_figures(watts_text(stuck));
    details.gpus = context.finding_gpus(stuck.iter().map(|spinning| spinning.position));
    details
}

/// Idle ranks on another host.
struct MissingPart {
    host_name: String,
    gpus: Vec<FindingGpu>,
    /// The command that shows the stack of a process.
    next_check: String,
}

/// Idle ranks that other ranks wait for.
#[derive(Default)]
struct MissingRanks {
    /// The positions of their GPUs on this host.
    here: Vec<usize>,
    there: Vec<MissingPart>,
    /// The largest amount of memory held.
    memory_bytes: u64,
    /// The time for which all of them have been idle.
    idle_run: Option<Run>,
    /// A part of the job is on a host without recent data.
    has_outdated_part: bool,
}

impl MissingRanks {
    /// Whether only the first GPU of the job is idle: that of rank 0, as launchers assign them.
    fn is_rank_0(&self, job: &JobTrack) -> bool {
        let first = job.gpus.iter().map(|gpu| gpu.position).min();
        self.there.is_empty() && matches!(self.here[..], [only] if Some(only) == first)
    }

    fn count(&self) -> usize {
        self.here.len() + self.there.iter().map(|part| part.gpus.len()).sum::<usize>()
    }

    fn add(&mut self, run: Run, memory: u64) {
        self.memory_bytes = self.memory_bytes.max(memory);
        let (since, covered) = self.idle_run.map_or((run.since, run.covered), |earlier| {
            (earlier.since.max(run.since), earlier.covered.min(run.covered))
        });
        self.idle_run = Some(Run { since, covered });
    }
}

fn missing_ranks(context: &RuleContext, job: &JobTrack) -> MissingRanks {
    let mut missing = MissingRanks::default();
    // A part that is only likely to belong to the job may have been left behind only if it does nothing at all.
    let is_likely = context.peers.is_likely(job);
    let is_part = |part: &JobPart| !is_likely || part.job.stalled_run.is_some();
    let parts: Vec<JobPart> = context.peers.parts(job, context.host.id).filter(is_part).collect();
    missing.has_outdated_part = !is_likely && parts.iter().any(|part| !part.diagnosis.is_recent(context.sample_time.t));
    let all = job.gpus.iter().chain(parts.iter().flat_map(|part| &part.job.gpus));
    let mut memories: Vec<u64> = all.filter_map(|gpu| gpu.memory_bytes).collect();
    memories.sort_unstable();
    let median = memories.get(memories.len() / 2).copied().unwrap_or(0);
    let enough = (context.limits.missing_rank.memory * median as f64) as u64;
    let idle = |gpu: &JobGpu, track: Option<&GpuTrack>| {
        let memory = gpu.memory_bytes.filter(|memory| *memory >= enough && *memory > 0)?;
        let run = track.filter(|track| track.is_readable).and_then(|track| track.idle_run)?;
        (gpu.is_exclusive && gpu.baseline.active_seconds >= 60.0).then_some((run, memory))
    };
    for gpu in &job.gpus {
        if let Some((run, memory)) = idle(gpu, context.gpus.get(gpu.position)) {
            missing.here.push(gpu.position);
            missing.add(run, memory);
        }
    }
    for part in parts.iter().filter(|part| part.diagnosis.is_recent(context.sample_time.t)) {
        let host = context.peers.fleet.host(part.host);
        let mut gpus = Vec::new();
        for gpu in &part.job.gpus {
            let track = part.diagnosis.gpus.get(gpu.position);
            if let Some((run, memory)) = idle(gpu, track) {
                gpus.extend(host.and_then(|host| finding_gpu(host, gpu.position)));
                missing.add(run, memory);
            }
        }
        if !gpus.is_empty() {
            let pid = part.job.members.first().and_then(|first| part.diagnosis.processes.get(*first));
            let next_check = examine(part.name, pid.map_or(0, |process| process.key.pid));
            missing.there.push(MissingPart { host_name: part.name.to_string(), gpus, next_check });
        }
    }
    missing
}

fn missing_rank_details(
    context: &RuleContext,
    job: &JobTrack,
    stuck: &[&SpinningGpu],
    missing: &MissingRanks,
    lasted: f64,
) -> FindingDetails {
    let at = format_power(stuck).map_or_else(String::new, |power| format!(" at {power}"));
    let waiting = context.format_gpus(stuck.iter().map(|spinning| spinning.position));
    let mut places: Vec<String> = Vec::new();
    if !missing.here.is_empty() {
        places.push(format!("{} on {}", context.format_gpus(missing.here.iter().copied()), context.host.name()));
    }
    places.extend(missing.there.iter().map(|part| {
        let indexes: Vec<u32> = part.gpus.iter().map(|gpu| gpu.index).collect();
        format!("{} on {}", format_gpu_list(&indexes, GpuListStyle::Ranges), part.host_name)
    }));
    let likely = if context.peers.is_likely(job) && !missing.there.is_empty() { " (likely the same job)" } else { "" };
    let sentence = format!(
        "the {} on {} never arrived{likely}: idle for {} while holding up to {}, and {waiting} {}{at} in {}",
        if missing.count() == 1 { "rank" } else { "ranks" },
        places.join(" and "),
        duration(lasted),
        gibibytes(missing.memory_bytes),
        if context.is_one_gpu(stuck.iter().map(|spinning| spinning.position)) { "waits" } else { "wait" },
        context.format_job(job),
    );
    let is_missing = |process: &&ProcessTrack| process.positions.iter().any(|position| missing.here.contains(position));
    let next = match (context.members(job).find(is_missing), missing.there.first()) {
        (Some(process), _) => context.examine(process.key.pid),
        (None, Some(part)) => part.next_check.clone(),
        (None, None) => context.examine(context.first_pid(job)),
    };
    let figures = format!("{}, {} held", places.join(" and "), gibibytes(missing.memory_bytes));
    let mut details = context.job_details(job, sentence, next).with_figures(figures);
    details.gpus =
        context.finding_gpus(missing.here.iter().copied().chain(stuck.iter().map(|spinning| spinning.position)));
    details.gpus.extend(missing.there.iter().flat_map(|part| part.gpus.iter().cloned()));
    details
}

#[cfg(test)]
#[path = "stuck_tests.rs"]
mod tests;
