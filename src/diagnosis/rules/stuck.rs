//! Jobs that hang while their GPUs read as busy: stuck-spin, stuck-spin-suspect, missing-rank.
//!
//! A rank that waits in a collective runs one small kernel that spins: the driver reports 100 % busy, the power falls
//! to slightly more than that of an idle context, and the memory is not accessed.

use crate::config::thresholds::StuckSpin;
use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingGpu, FindingTarget};
use crate::diagnosis::rule_context::{JobPart, RuleContext, duration, examine, finding_gpu, gibibytes};
use crate::diagnosis::track::{
    Baseline, COMPUTES_ABOVE, GpuTrack, JobGpu, JobTrack, ProcessTrack, STILL_CORES_UNKNOWN, WindowStats,
};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{GpuListStyle, ProcessInfo, format_gpu_list, program_name};
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
/// The smallest share of healthy power, above that of an idle context, that is compared; less is noise.
const MIN_HEALTHY_WATTS: f32 = 5.0;
/// Without a known memory utilisation at healthy work, a frozen GPU may access its memory this much, in percent.
const FROZEN_MEMORY_PERCENT: f32 = 1.0;
/// The standard deviation of a constant power, in watts.
const FROZEN_WATTS: f64 = 1.0;
/// A board that draws little varies by more than a share of it: this standard deviation is steady, in watts and as a share
/// of the limit.
const STEADY_WATTS: f64 = 2.0;
const STEADY_SHARE_OF_LIMIT: f64 = 0.008;
/// On a board without memory utilisation, the current power of a frozen GPU divided by its earlier median, at most.
const FROZEN_POWER_ALONE: f64 = 0.75;
/// On a board without power: the mean memory utilisation at healthy work in percent, at least, and that of now, at most.
const FROZEN_MEMORY_ALONE: (f32, f32) = (8.0, 1.0);
/// How long a GPU must be frozen below the utilisation of a waiting collective, in seconds.
const LEVEL_AFTER: f64 = 900.0;
/// How long a GPU must be busy at a constant, low power if its job lost its launcher, and if its log is silent or its workers rest, in
/// seconds; the shortest healthy work before; and how far apart the GPU and the workers may have stopped. Evaluations of up to 25
/// min were reported.
const QUIET_DROP_AFTER: (f64, f64) = (600.0, 1560.0);
const QUIET_DROP_HISTORY: f64 = 120.0;
const QUIET_DROP_LEAD: f64 = 180.0;
/// A GPU that was never seen at work and whose log has stopped: its power as a share of the limit, at most.
const SILENT_POWER_SHARE: f32 = 0.65;
/// A GPU that was never seen at work and accesses no memory at all counts as spinning up to this share of the range from the
/// power of an idle context to the limit, if its power is constant.
const NEVER_AT_WORK_SHARE: f32 = 0.25;
const NEVER_AT_WORK_VARIATION: f64 = 0.015;
/// The largest share of SMs at work while a kernel only waits, in percent: NCCL launches at most one block per channel, and
/// at most 64 channels (NCCL user guide, NCCL_MAX_CTAS).
const WAITING_SM_PERCENT: f32 = 50.0;
/// Without a power limit, the current power of a waiting GPU divided by its median at work, at most. GB10: 15 to 27 W
/// against 45 W (vllm#46097).
const UNLIMITED_POWER: f64 = 0.5;
/// The utilisation of a hint differs from the one at work by at most this, in percent points. The one at work is known in
/// steps of 10.
const LEVEL_TOLERANCE: f32 = 5.0;
/// While the log of a job grows, its work may go on: how long it is observed before it warns, and before it is critical, in
/// seconds. Some jobs write heartbeats while they hang.
const GROWING_LOG_AFTER: (f64, f64) = (1200.0, 2400.0);
/// How long a job on a single GPU must look hung before it warns, and before it is critical, if nothing but the GPU tells, in
/// seconds.
const ALONE_AFTER: (f64, f64) = (660.0, 1200.0);
/// How long the others wait for a resting rank 0 before it warns, and before it is critical, in seconds: it saves, evaluates and
/// uploads for all, and may show neither CPU time nor writes meanwhile.
const RANK_0_AFTER: (f64, f64) = (600.0, 1200.0);
/// The ranks of a server all spin for this long before it warns, in seconds: a first request can compile kernels.
const SERVER_AFTER: f64 = 720.0;
/// How long a job that was never seen at work may wait beside a server of its user that computes, in seconds. Rollouts of
/// half an hour were reported.
const SERVED_AFTER: f64 = 3600.0;
/// A server that was seen in another state for this long, in seconds, began to spin by itself.
const SERVER_SEEN_BEFORE: f64 = 120.0;

/// Ranks of one job on several hosts begin to wait within this many seconds of each other.
const IN_STEP_SECONDS: f64 = 60.0;

/// One GPU that spins.
struct SpinningGpu {
    position: usize,
    run: Run,
    /// `None` if the board reports no power.
    watts: Option<f32>,
    /// `None` if the board reports no power limit.
    limit: Option<f32>,
    utilization: f32,
    /// Healthy work was observed before, and its median power if the board reports one.
    has_worked: bool,
    earlier: Option<f32>,
    /// Busy at a level below that of a collective that waits.
    is_partial: bool,
    /// Only the power tells: the memory may be in use.
    is_hint: bool,
}

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
    // While one rank worked, the others waited for it: the hang began after that.
    let worked = (last_work(context, job) - run.since).max(0.0);
    // A job that waited before and went on by itself may wait as long again. While a rank worked, the wait had a reason, and
    // what such a rank does last may show nowhere.
    let wait = f64::from(job.longest_unworked_wait);
    let rest = if worked > 0.0 { wait.max(limits.waiting_after / 1.5) } else { wait };
    // Some jobs write heartbeats while they hang: work that took much longer than any before does not count.
    let believed = worked.min(CPU_WORK_LIMIT.max(1.5 * f64::from(job.longest_wait)));
    let longer = |factor: f64| if job.waits > 0 { believed + factor * rest } else { 0.0 };
    let growing = if is_log_growing(context, job) { GROWING_LOG_AFTER } else { (0.0, 0.0) };
    let is_partial = stuck.iter().all(|spinning| spinning.is_partial);
    // One GPU alone may do other work for a while.
    let is_alone = job.gpus.len() == 1 && context.peers.certain_parts(job, context.host.id).next().is_none();
    let is_untold = is_alone && quiet_drop_after(context, job, run.since).is_none();
    let alone = if is_untold { ALONE_AFTER } else { (0.0, 0.0) };
    let missing = missing_ranks(context, job);
    let rank_0 = if missing.is_rank_0(job) { RANK_0_AFTER } else { (0.0, 0.0) };
    let escalation = |grace: f64| match waits_for {
        // A rank that works is the reason: the others are not hung.
        Some(_) => Escalation::one(Severity::Info, limits.waiting_after + grace),
        // The person who debugs a rank knows that the others wait. A lost GPU is the cause, which has its own finding.
        None if is_explained(context, job) => Escalation::one(Severity::Info, limits.waiting_after + grace),
        None if is_partial => Escalation::one(Severity::Info, LEVEL_AFTER),
        None => Escalation::two(
            (
                Severity::Warn,
                (limits.warn_after + worked)
                    .min(limits.waiting_after)
                    .max(longer(1.5))
                    .max(growing.0)
                    .max(alone.0)
                    .max(rank_0.0)
                    + grace,
            ),
            (Severity::Crit, (limits.crit_after + worked).max(longer(3.0)).max(growing.1).max(alone.1).max(rank_0.1)),
        ),
    };
    // Power, memory and utilisation of every GPU and the log say the same.
    let all_spin = stuck.len() >= 2 && stuck.len() == job.gpus.len();
    let is_certain = all_spin
        && !stuck.iter().any(|spinning| spinning.is_hint)
        && waits_for.is_none()
        && !is_explained(context, job)
        && is_log_silent(context, job);
    let confidence = match is_partial {
        true => Confidence::Suspected,
        false if is_certain => Confidence::Certain,
        false => Confidence::Likely,
    };
    let evaluation = Evaluation::new(escalation(0.0), confidence, limits.clear_after);
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

/// Returns the GPU if it spins: below the spin power, or with a constant power below the one that it drew at work.
fn spinning(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let (t, window) = (context.sample_time.t, context.limits.stuck_spin.warn_after);
    if track.counted_work_at.is_some_and(|at| t - at < window) {
        return None;
    }
    below_spin_power(context, job, gpu, track)
        .or_else(|| frozen(context, job, gpu, track))
        .or_else(|| quiet_drop(context, job, gpu, track))
        .or_else(|| counters_at_rest(context, gpu, track))
        .or_else(|| never_at_work(context, job, gpu, track))
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

/// Whether the log of the job grew before and does not any more.
pub(super) fn is_log_silent(context: &RuleContext, job: &JobTrack) -> bool {
    let t = context.sample_time.t;
    let states = || context.members(job).filter_map(|process| process.log.as_ref()?.is_growing(t));
    states().next().is_some() && !states().any(|grows| grows)
}

/// Whether the log of a process grows at its usual pace.
pub(super) fn is_log_growing(context: &RuleContext, job: &JobTrack) -> bool {
    let t = context.sample_time.t;
    let grows = |process: &ProcessTrack| process.log.as_ref().is_some_and(|log| log.is_growing(t) == Some(true));
    // Rank 0 may be on another host.
    context.members(job).any(grows)
        || context
            .peers
            .certain_parts(job, context.host.id)
            .any(|part| part.job.members(&part.diagnosis.processes).any(grows))
}

/// Whether the power of a GPU is far below the one that it drew at work (`earlier`). An idle context draws power, too: only the
/// power above it is work.
fn has_dropped((watts, earlier): (f32, f32), track: &GpuTrack, limits: &StuckSpin) -> bool {
    let idle = track.context_watts().unwrap_or(0.0).min(watts);
    earlier - idle >= MIN_HEALTHY_WATTS && f64::from(watts - idle) <= limits.power_drop * f64::from(earlier - idle)
}

/// Whether the power is as steady as that of a kernel that waits.
fn is_flat(track: &GpuTrack, stats: &WindowStats, limits: &StuckSpin) -> bool {
    let (Some(variation), Some(watts)) = (stats.power_variation, stats.mean_power) else { return true };
    let steady = track.limit.map_or(STEADY_WATTS, |limit| STEADY_WATTS.max(STEADY_SHARE_OF_LIMIT * f64::from(limit)));
    f64::from(variation) <= limits.power_variation || f64::from(variation * watts) <= steady
}

/// Returns the GPU if it is below the spin power according to its whole window.
fn below_spin_power(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let run = track.spin_run?;
    let stats = track.window.stats(run.since.max(context.sample_time.t - limits.warn_after));
    let watts = stats.mean_power?;
    let is_memory_low = stats.is_memory_median_low || !track.reports_memory_use;
    if !(stats.is_median_high && is_memory_low && is_flat(track, &stats, limits)) {
        return None;
    }
    let has_history = |past: &Baseline| past.power_seconds() >= limits.history;
    let own = Some(&gpu.baseline).filter(|past| has_history(past)).and_then(Baseline::median_power);
    let earlier = own.or_else(|| {
        let others = job.gpus.iter().map(|other| &other.baseline).filter(|past| has_history(past));
        others.filter_map(Baseline::median_power).reduce(f32::max)
    });
    // Otherwise the GPU drew about this power while it worked.
    if earlier.is_some_and(|earlier| !has_dropped((watts, earlier), track, limits)) {
        return None;
    }
    Some(SpinningGpu {
        position: gpu.position,
        run,
        watts: Some(watts),
        limit: track.limit,
        utilization: stats.mean_utilization?,
        has_worked: earlier.is_some(),
        earlier,
        is_partial: false,
        is_hint: false,
    })
}

/// How long a GPU has been busy at one level since the job last computed, and the mean utilisation: it may have been at the same
/// level while it worked. The power tells when that ended, unless it is high now.
fn level_after_work(context: &RuleContext, job: &JobTrack, track: &GpuTrack) -> Option<(Run, f32)> {
    let (level, percent) = track.level_run?;
    let t = context.sample_time.t;
    let computed_at = job.computed_at.filter(|at| t - at > 2.0 * context.sample_time.dt).unwrap_or(level.since);
    let since = level.since.max(computed_at);
    Some((Run { since, covered: level.covered.min(t - since) }, percent))
}

/// Returns the GPU if it is busy at a constant power below the power that the job drew at work, with far fewer memory
/// accesses than at work. This finds kernels that spin on every SM, hangs on boards without a power limit, and waits that
/// read as partly busy.
fn frozen(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let t = context.sample_time.t;
    let level_run = level_after_work(context, job, track);
    let level = level_run.map(|(run, _)| run).filter(|run| run.reaches(t, LEVEL_AFTER));
    let busy =
        level_run.filter(|(run, mean)| f64::from(*mean) >= limits.utilization && run.reaches(t, limits.warn_after));
    let still = track.still_run.filter(|run| run.reaches(t, limits.warn_after));
    let (run, is_partial) = match still.or(busy.map(|(run, _)| run)) {
        Some(run) => (run, false),
        None => (level?, true),
    };
    if track.has_power_smoothing || !gpu.is_exclusive {
        return None;
    }
    let window = if is_partial { LEVEL_AFTER } else { limits.warn_after };
    let stats = track.window.stats(run.since.max(t - window));
    let memory = stats.mean_memory_utilization;
    let healthy_memory = gpu.baseline.mean_memory_utilization();
    let found = SpinningGpu {
        position: gpu.position,
        run,
        watts: stats.mean_power,
        limit: track.limit,
        utilization: stats.mean_utilization?,
        has_worked: true,
        earlier: None,
        is_partial,
        is_hint: false,
    };
    let Some(watts) = stats.mean_power else {
        let is_still = stats.least_utilization >= Some(95)
            && memory? <= FROZEN_MEMORY_ALONE.1
            && healthy_memory? >= FROZEN_MEMORY_ALONE.0;
        let has_worked = f64::from(gpu.baseline.active_seconds) >= limits.history;
        return (is_still && has_worked && !is_partial).then_some(found);
    };
    let earlier = Some(&gpu.baseline).filter(|past| past.power_seconds() >= limits.history)?.median_power()?;
    let is_memory_low =
        memory.map(|memory| memory <= healthy_memory.map_or(FROZEN_MEMORY_PERCENT, |healthy| healthy / 4.0));
    // Without a memory utilisation that fell, the drop must be larger, or the log must have stopped.
    let (is_memory_at_rest, share) = match is_memory_low {
        Some(true) => (true, limits.frozen_power),
        None if !track.reports_memory_use && !is_partial => (true, FROZEN_POWER_ALONE),
        _ => (is_log_silent(context, job) && !is_partial, FROZEN_POWER_ALONE),
    };
    // On a board that draws little, the sensor's last digit exceeds the share.
    let variation = f64::from(stats.power_variation?);
    // Far below the power at work, a board without a limit may vary as much as one below its spin power.
    let is_far_below = track.limit.is_none() && f64::from(watts) <= UNLIMITED_POWER * f64::from(earlier);
    let (share_of_watts, steady_watts) =
        if is_far_below { (limits.power_variation, STEADY_WATTS) } else { (limits.frozen_variation, FROZEN_WATTS) };
    let is_constant = variation <= share_of_watts || variation * f64::from(watts) <= steady_watts;
    if is_constant && f64::from(watts) <= share * f64::from(earlier) && is_memory_at_rest {
        let is_hint = track.reports_memory_use && is_memory_low != Some(true);
        return Some(SpinningGpu { earlier: Some(earlier), is_hint, ..found });
    }
    // Nothing but the power tells, for example because the log belongs to another user. A slow state of the board looks alike.
    let level = level.filter(|_| is_far_below && !is_log_growing(context, job))?;
    // A phase of other work has another utilisation.
    let percent = track.level_run.map(|(_, mean)| mean)?;
    let at_work = gpu.baseline.median_utilization();
    let is_as_at_work =
        at_work.is_some_and(|least| (least - LEVEL_TOLERANCE..=least + 10.0 + LEVEL_TOLERANCE).contains(&percent));
    if f64::from(percent) < limits.utilization && !is_as_at_work {
        return None;
    }
    let stats = track.window.stats(level.since.max(t - LEVEL_AFTER));
    let (watts, variation) = (f64::from(stats.mean_power?), f64::from(stats.power_variation?));
    let is_constant = variation <= share_of_watts || variation * watts <= steady_watts;
    let is_hint = is_constant && watts <= UNLIMITED_POWER * f64::from(earlier);
    is_hint.then_some(SpinningGpu { run: level, earlier: Some(earlier), is_partial: true, is_hint: true, ..found })
}

/// How long a GPU must be busy at low power until something on the host tells that the job stopped at about `since`, in seconds;
/// `None` if nothing does. An evaluation, too, rests the workers that feed the training and may write no log.
fn quiet_drop_after(context: &RuleContext, job: &JobTrack, since: f64) -> Option<f64> {
    let workers_rest = job.workers_rest_since.is_some_and(|rest| (rest - since).abs() <= QUIET_DROP_LEAD);
    if context.members(job).any(|process| process.lost_parent) {
        Some(QUIET_DROP_AFTER.0)
    } else {
        (workers_rest || is_log_silent(context, job)).then_some(QUIET_DROP_AFTER.1)
    }
}

/// Returns the GPU if it is busy at a steady power far below the one that the job drew at work, while something else tells that
/// the job has stopped. Its memory may read as in use: some drivers report that for a waiting kernel, too.
fn quiet_drop(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let t = context.sample_time.t;
    let (run, percent) = level_after_work(context, job, track).filter(|(run, _)| run.reaches(t, QUIET_DROP_AFTER.0))?;
    if f64::from(percent) < limits.median_utilization
        || track.has_power_smoothing
        || !gpu.is_exclusive
        || is_log_growing(context, job)
    {
        return None;
    }
    let stats = track.window.stats(run.since.max(t - QUIET_DROP_AFTER.0));
    let watts = stats.mean_power?;
    let earlier = Some(&gpu.baseline).filter(|past| past.power_seconds() >= QUIET_DROP_HISTORY)?.median_power()?;
    let is_far_below =
        has_dropped((watts, earlier), track, limits) && f64::from(watts) <= FROZEN_POWER_ALONE * f64::from(earlier);
    let is_told = quiet_drop_after(context, job, run.since).is_some_and(|after| run.reaches(t, after));
    if !is_far_below || !is_flat(track, &stats, limits) || !is_told {
        return None;
    }
    Some(SpinningGpu {
        position: gpu.position,
        run,
        watts: Some(watts),
        limit: track.limit,
        utilization: stats.mean_utilization?,
        has_worked: true,
        earlier: Some(earlier),
        is_partial: false,
        is_hint: true,
    })
}

/// Returns the GPU if it is busy while its counters show neither tensor cores nor memory nor links at work, whatever its
/// power. Without earlier work in the counters, the program may never use any of them.
fn counters_at_rest(context: &RuleContext, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let run = track.counter_rest_run.filter(|run| run.reaches(context.sample_time.t, limits.warn_after))?;
    // A kernel that waits occupies few SMs. One that fills them all may compute in registers.
    let fills_gpu = track.resting_sm_percent.is_some_and(|percent| percent > WAITING_SM_PERCENT);
    if !gpu.is_exclusive || fills_gpu {
        return None;
    }
    let has_worked = f64::from(gpu.baseline.counted_seconds) >= limits.history;
    if !has_worked && track.resting_sm_percent.is_none() {
        return None;
    }
    let stats = track.window.stats(run.since.max(context.sample_time.t - limits.warn_after));
    Some(SpinningGpu {
        position: gpu.position,
        run,
        watts: stats.mean_power,
        limit: track.limit,
        utilization: stats.mean_utilization?,
        has_worked,
        earlier: gpu.baseline.median_power().filter(|_| has_worked),
        is_partial: false,
        is_hint: false,
    })
}

/// Returns a GPU that was never seen at work if it is always busy, never accesses its memory and draws a constant, low power.
fn never_at_work(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let after = context.limits.stuck_spin_suspect.warn_after;
    let t = context.sample_time.t;
    // A silent log stands for the memory, which some drivers report as in use.
    let is_silent = is_log_silent(context, job);
    let level = track.level_run.filter(|(_, percent)| is_silent && *percent >= 98.0).map(|(run, _)| run);
    let level = level.filter(|run| run.reaches(t, 2.0 * after));
    let run = track.still_run.or(level).filter(|run| run.reaches(t, after))?;
    let has_worked = |gpu: &JobGpu| gpu.baseline.power_seconds() > run.covered + 60.0;
    if job.gpus.len() < 2 || !gpu.is_exclusive || track.has_power_smoothing || job.gpus.iter().any(has_worked) {
        return None;
    }
    let stats = track.window.stats(run.since.max(t - after));
    let (watts, context_watts, limit) = (stats.mean_power?, track.context_watts()?, track.limit?);
    let is_low = watts <= context_watts + NEVER_AT_WORK_SHARE * (limit - context_watts) && watts <= 0.5 * limit
        || is_silent && watts <= SILENT_POWER_SHARE * limit;
    let variation = f64::from(stats.power_variation?);
    let is_constant = variation <= NEVER_AT_WORK_VARIATION || variation * f64::from(watts) <= FROZEN_WATTS;
    let is_still = stats.least_utilization >= Some(98) && (is_silent || stats.most_memory_utilization == Some(0));
    (is_low && is_constant && is_still).then_some(SpinningGpu {
        position: gpu.position,
        run,
        watts: Some(watts),
        limit: Some(limit),
        utilization: stats.mean_utilization?,
        has_worked: false,
        earlier: None,
        is_partial: false,
        is_hint: stats.most_memory_utilization != Some(0),
    })
}

/// Whether a GPU is between the firing and the clearing thresholds.
fn is_in_hysteresis(context: &RuleContext, track: &GpuTrack) -> bool {
    let limits = &context.limits.stuck_spin;
    match (track.utilization, track.power, track.spin_watts()) {
        (Some(utilization), Some(power), Some(spin)) => {
            f64::from(utilization) >= limits.clear_utilization
                && f64::from(power) <= limits.clear_power * f64::from(spin)
        }
        _ => false,
    }
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
        track.is_some_and(|track| match (track.utilization, track.power, track.spin_watts()) {
            (Some(utilization), Some(power), Some(spin)) => utilization >= 20 && power > COMPUTES_ABOVE * spin,
            _ => false,
        })
    };
    if let Some(gpu) = job.gpus.iter().find(computes) {
        return Some(format!("{}, which is computing", context.format_gpus([gpu.position])));
    }
    // A resting GPU that is used now and then: its rank saves or evaluates. One without any sign of life may be the culprit.
    let is_alive = |gpu: &&JobGpu| {
        let alive_at =
            context.gpus.get(gpu.position).filter(|track| track.spin_run.is_none()).and_then(|track| track.alive_at);
        rests(gpu) && alive_at.is_some_and(|at| t - at <= ALIVE_GRACE.max(stays))
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
    // An equal command elsewhere may be another run, but two runs do not go from work to a wait in the same minute. Both must have
    // been seen at work: runs that waited before begin together when gpufleet does.
    let reach = IN_STEP_SECONDS + 2.0 * context.sample_time.dt;
    let was_at_work = |job: &JobTrack| job.computed_at.is_some_and(|at| at >= began - reach);
    let is_in_step = |part: &JobPart| {
        let spins = |gpu: &JobGpu| part.diagnosis.gpus.get(gpu.position)?.spin_run;
        let mut runs = part.job.gpus.iter().filter_map(spins);
        was_at_work(job) && was_at_work(part.job) && runs.any(|run| (run.since - began).abs() <= IN_STEP_SECONDS)
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
    let works = |process: &&ProcessTrack| {
        let is_believed = !is_over || (!is_over_with_log && logs(process));
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
    let is_hung_server = is_hung_server(context, job, unseen);
    let is_likely = unseen.len() >= 2 && !is_waiting;
    let confidence = if is_likely { Confidence::Likely } else { Confidence::Suspected };
    // A rank that works on the host gets additional time.
    let patience = if is_waiting { context.limits.stuck_spin.waiting_after } else { 0.0 };
    // A rank on a single GPU has no peer to wait for, and a server waits for requests.
    let is_alone = job.gpus.len() == 1 && context.peers.certain_parts(job, context.host.id).next().is_none();
    let is_server_at_rest = job.is_model_server && !is_hung_server;
    let is_at_work = is_log_growing(context, job) && !is_hung_server;
    let is_explained = is_waiting || is_server_at_rest || is_at_work || is_explained(context, job);
    // The trainer of a reinforcement learning waits for a server that generates, and is not seen at work before it has answered.
    let has_server_at_work = !job.is_model_server && has_server_at_work(context, job);
    // In a hang every rank waits: it spins or rests. A GPU that does something else works.
    let is_mixed = job.gpus.iter().any(|gpu| {
        let is_spinning = unseen.iter().any(|spinning| spinning.position == gpu.position);
        !is_spinning && context.gpus.get(gpu.position).is_some_and(|track| track.idle_run.is_none())
    });
    let is_alone = is_alone && !is_hung_server;
    let severity = if is_alone || is_explained || is_mixed { Severity::Info } else { Severity::Warn };
    let limits = &context.limits.stuck_spin_suspect;
    let least = if is_hung_server { SERVER_AFTER } else { limits.warn_after };
    // Few waits tell little about the next one: if they end at random times, it is longer than this for one job in ten.
    let factor = (1.0 + 4.0 / f64::from(job.waits.max(1))).max(1.5);
    let after = least.max(factor * f64::from(job.longest_wait)) + patience;
    let after = if has_server_at_work { after.max(SERVED_AFTER) } else { after };
    // The longer several GPUs are flat together, the less likely is another explanation.
    let escalation = if severity == Severity::Warn && is_likely {
        Escalation::two((severity, after), (Severity::Crit, limits.crit_after.max(2.0 * after)))
    } else {
        Escalation::one(severity, after)
    };
    let evaluation =
        Evaluation::new(escalation, confidence, context.limits.stuck_spin.clear_after).since(earliest(unseen));
    conditions.met(RuleId::StuckSpinSuspect, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(unseen.iter().map(|spinning| spinning.position));
        let doubt = match (job.is_model_server, unseen.iter().any(|spinning| spinning.has_worked)) {
            (true, _) if is_hung_server => "looks hung: a rank that waits for requests would rest",
            (true, _) => "may be hung, or wait for requests",
            (false, true) => "may be hung",
            (false, false) => "may be hung (seen only after it hung)",
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
    let user = |job: &JobTrack| context.members(job).next().map(|process| process.info.who.clone());
    let own = user(job);
    let computes =
        |other: &&JobTrack| other.computed_at.is_some_and(|at| context.sample_time.t - at <= HOST_WORK_GRACE.0);
    let serves = |other: &&JobTrack| other.is_model_server || other.served_port.is_some();
    own.is_some() && context.jobs.iter().filter(serves).filter(computes).any(|other| user(other) == own)
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
            track.is_some_and(|track| {
                (track.spin_run.is_some() && track.reports_memory_use)
                    || track.counter_rest_run.is_some()
                    || is_log_silent(context, job)
            }) && spinning.iter().all(|one| one.earlier.is_some() && !one.is_partial)
        }
        // A server may work at a partial level.
        _ => (all_spin || job.rested_between) && spinning.iter().all(|one| !one.is_partial),
    };
    job.is_model_server && is_sure && began - job.first_seen >= SERVER_SEEN_BEFORE
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
    let memory = if spinning.iter().any(|one| one.is_partial) { "little memory" } else { "no memory" };
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
