//! GPUs that spin: busy while a kernel waits for something. Several signs tell it, from the power to the counters of GPM.

use super::clients;
use crate::config::thresholds::StuckSpin;
use crate::diagnosis::condition::Run;
use crate::diagnosis::rule_context::{LONGEST_EVALUATION, RuleContext};
use crate::diagnosis::track::{
    Baseline, GpuTrack, JobGpu, JobTrack, ProcessTrack, REACH_SECONDS, WaitingClients, WindowStats,
};

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
pub(super) const LEVEL_AFTER: f64 = 900.0;
/// How long a GPU must be busy at a constant, low power if its job lost its launcher, and if its log is silent or its workers rest, in
/// seconds; the shortest healthy work before; and how far apart the GPU and the workers may have stopped. Evaluations of up to 25
/// min were reported.
const QUIET_DROP_AFTER: (f64, f64) = (600.0, LONGEST_EVALUATION);
const QUIET_DROP_HISTORY: f64 = 120.0;
/// The longest window of readings that is kept whole, in seconds.
const LONGEST_WINDOW: f64 = 1170.0;
const QUIET_DROP_LEAD: f64 = 180.0;
/// A GPU that was never seen at work and whose log has stopped: its power as a share of the limit, at most.
const SILENT_POWER_SHARE: f32 = 0.65;
/// A GPU that was never seen at work and accesses no memory at all counts as spinning up to this share of the range from the
/// power of an idle context to the limit, if its power is constant.
const NEVER_AT_WORK_SHARE: f32 = 0.25;
const NEVER_AT_WORK_VARIATION: f64 = 0.02;
/// As [`NEVER_AT_WORK_VARIATION`], for a server, whose ranks may spin while they wait for requests.
const SERVER_VARIATION: f64 = 0.015;
/// The age of a log that has stopped, in seconds, whatever its pace was.
const STOPPED_LOG_SECONDS: f64 = 900.0;
/// The largest share of SMs at work while a kernel only waits, in percent: NCCL launches at most one block per channel, and
/// at most 64 channels (NCCL user guide, NCCL_MAX_CTAS).
const WAITING_SM_PERCENT: f32 = 50.0;
/// How long a job must have accessed the memory of its GPU before that counts as at rest while clients wait, in seconds.
const ACCESSED_SECONDS: f32 = 60.0;
/// How long counters must show rest until the GPU counts as spinning, as a share of the time after which the job warns. Its finding
/// is then pending soon enough for an examination before the warning.
const COUNTED_REST_SHARE: f64 = 0.6;
/// How long a kernel on all SMs must leave tensor cores, memory and links alone, in seconds, if the job always used them before.
const FULL_REST_AFTER: f64 = 1200.0;
/// Without a power limit, the current power of a waiting GPU divided by its median at work, at most. GB10: 15 to 27 W
/// against 45 W (vllm#46097).
const UNLIMITED_POWER: f64 = 0.5;
/// The utilisation of a hint differs from the one at work by at most this, in percent points.
const LEVEL_TOLERANCE: f32 = 10.0;

/// One GPU that spins.
pub(super) struct SpinningGpu {
    pub(super) position: usize,
    pub(super) run: Run,
    /// `None` if the board reports no power.
    pub(super) watts: Option<f32>,
    /// `None` if the board reports no power limit.
    pub(super) limit: Option<f32>,
    pub(super) utilization: f32,
    /// Healthy work was observed before, and its median power if the board reports one.
    pub(super) has_worked: bool,
    pub(super) earlier: Option<f32>,
    /// Busy at a level below that of a collective that waits.
    pub(super) is_partial: bool,
    /// The mean memory utilisation, if it may be above that of a GPU that waits: it is far below the one at work.
    pub(super) memory_percent: Option<f32>,
    /// Only the power tells: the memory may be in use.
    pub(super) is_hint: bool,
}

impl SpinningGpu {
    /// A GPU that has spun for `run` with these readings; `None` if it reports no utilisation. Nothing is known of earlier work.
    fn new(gpu: &JobGpu, track: &GpuTrack, run: Run, stats: &WindowStats) -> Option<Self> {
        Some(Self {
            position: gpu.position,
            run,
            watts: stats.mean_power,
            limit: track.limit,
            utilization: stats.mean_utilization?,
            has_worked: false,
            earlier: None,
            is_partial: false,
            memory_percent: None,
            is_hint: false,
        })
    }
}

/// Returns the GPU if it spins: below the spin power, or with a constant power below the one that it drew at work. If its counters
/// show work, the spin begins after the last of that work.
pub(super) fn spinning(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let found = below_spin_power(context, job, gpu, track)
        .or_else(|| frozen(context, job, gpu, track))
        .or_else(|| quiet_drop(context, job, gpu, track))
        .or_else(|| counters_at_rest(context, gpu, track))
        .or_else(|| unanswered(context, job, gpu, track))
        .or_else(|| never_at_work(context, job, gpu, track))?;
    let t = context.sample_time.t;
    // The GPU was spinning before this job began, because of another one.
    let began_later = |process: &ProcessTrack| process.age.is_some_and(|age| t - age > found.run.since);
    let mut on_it = context.members(job).filter(|process| process.positions.contains(&gpu.position));
    if !gpu.is_exclusive && on_it.all(began_later) {
        return None;
    }
    let Some(worked_at) = track.counted_work_at.filter(|at| t - at < context.limits.stuck_spin.warn_after) else {
        return Some(found);
    };
    let (since, covered) = (found.run.since.max(worked_at), found.run.covered.min(t - worked_at));
    (t > worked_at).then_some(SpinningGpu { run: Run { since, covered }, ..found })
}

/// The median power of a GPU at work in watts, if that was observed for this many seconds.
fn healthy_watts(past: &Baseline, seconds: f64) -> Option<f32> {
    Some(past).filter(|past| past.power_seconds() >= seconds)?.median_power()
}

/// Whether a GPU draws far less than at work, or spins: it may wait for another rank.
pub(super) fn may_wait(context: &RuleContext, gpu: &JobGpu, track: &GpuTrack) -> bool {
    let limits = &context.limits.stuck_spin;
    let earlier = healthy_watts(&gpu.baseline, limits.history);
    let has_dropped = track.power.zip(earlier).is_some_and(|watts| has_dropped(watts, track, limits));
    track.spin_run.is_some()
        || (has_dropped && track.utilization.is_some_and(|percent| f64::from(percent) >= limits.utilization))
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
    let healthy = |gpu: &JobGpu| healthy_watts(&gpu.baseline, limits.history);
    let earlier = healthy(gpu).or_else(|| job.gpus.iter().filter_map(healthy).reduce(f32::max));
    // Otherwise the GPU drew about this power while it worked.
    if earlier.is_some_and(|earlier| !has_dropped((watts, earlier), track, limits)) {
        return None;
    }
    Some(SpinningGpu { has_worked: earlier.is_some(), earlier, ..SpinningGpu::new(gpu, track, run, &stats)? })
}

/// How long a GPU has been busy at one level since the job last computed, and the mean utilisation: it may have been at the same
/// level while it worked. The power tells when that ended, unless it is high now. `None` for less than `least` seconds.
fn level_after_work(context: &RuleContext, job: &JobTrack, track: &GpuTrack, least: f64) -> Option<(Run, f32)> {
    let (level, percent) = track.level_run?;
    let t = context.sample_time.t;
    let computed_at = job.computed_at.filter(|at| t - at > 2.0 * context.sample_time.dt).unwrap_or(level.since);
    let since = level.since.max(computed_at);
    // Most jobs computed a moment ago: the statistics, which take long, are not needed.
    let run = Some(Run { since, covered: level.covered }).filter(|run| run.reaches(t, least))?;
    // Only the window shows gaps in the data.
    let observed = if t - since <= REACH_SECONDS { track.window.stats(since).covered } else { t - since };
    let run = Run { covered: run.covered.min(observed), ..run };
    run.reaches(t, least).then_some((run, percent))
}

/// Whether the power of a GPU tells what its job does.
fn does_power_tell(gpu: &JobGpu, track: &GpuTrack) -> bool {
    gpu.is_exclusive && !track.has_power_smoothing
}

/// Returns the GPU if it is busy at a constant power below the power that the job drew at work, with far fewer memory
/// accesses than at work. This finds kernels that spin on every SM, hangs on boards without a power limit, and waits that
/// read as partly busy.
fn frozen(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let t = context.sample_time.t;
    if !does_power_tell(gpu, track) {
        return None;
    }
    let level_run = level_after_work(context, job, track, LEVEL_AFTER.min(limits.warn_after));
    let level = level_run.map(|(run, _)| run).filter(|run| run.reaches(t, LEVEL_AFTER));
    let busy =
        level_run.filter(|(run, mean)| f64::from(*mean) >= limits.utilization && run.reaches(t, limits.warn_after));
    let still = track.still_run.filter(|run| run.reaches(t, limits.warn_after));
    let (run, is_partial) = match still.or(busy.map(|(run, _)| run)) {
        Some(run) => (run, false),
        None => (level?, true),
    };
    // A program that is alone may do other work for a while. Without a limit the drop must be larger anyway.
    let may_do_other_work = job.gpus.len() == 1 && track.limit.is_some();
    let window = if is_partial || may_do_other_work { LEVEL_AFTER } else { limits.warn_after };
    let stats = track.window.stats(run.since.max(t - window));
    let memory = stats.mean_memory_utilization;
    let healthy_memory = gpu.baseline.mean_memory_utilization();
    let found = SpinningGpu::new(gpu, track, run, &stats)?;
    let found = SpinningGpu { has_worked: true, is_partial, memory_percent: memory, ..found };
    let Some(watts) = stats.mean_power else {
        let is_still = stats.least_utilization >= Some(95)
            && memory? <= FROZEN_MEMORY_ALONE.1
            && healthy_memory? >= FROZEN_MEMORY_ALONE.0;
        let has_worked = f64::from(gpu.baseline.active_seconds) >= limits.history;
        return (is_still && has_worked && !is_partial).then_some(found);
    };
    let earlier = healthy_watts(&gpu.baseline, limits.history)?;
    let is_memory_low =
        memory.map(|memory| memory <= healthy_memory.map_or(FROZEN_MEMORY_PERCENT, |healthy| healthy / 4.0));
    // Without a memory utilisation that fell, the drop must be larger, or the log must have stopped.
    let (is_memory_at_rest, share) = match is_memory_low {
        Some(true) => (true, limits.frozen_power),
        None if !track.reports_memory_use && !is_partial => (true, FROZEN_POWER_ALONE),
        // A server whose clients have waited for so long does nothing for them.
        None if !track.reports_memory_use && clients::of_spinning_server(context, job, run).is_some() => {
            (true, FROZEN_POWER_ALONE)
        }
        _ => (context.is_log_silent(job) && !is_partial, FROZEN_POWER_ALONE),
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
    let level = level.filter(|_| is_far_below && !context.is_log_growing(job))?;
    // A phase of other work has another utilisation.
    let percent = track.level_run.map(|(_, mean)| mean)?;
    let at_work = gpu.baseline.median_utilization();
    let is_as_at_work = at_work.is_some_and(|at_work| (percent - at_work).abs() <= LEVEL_TOLERANCE);
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
pub(super) fn quiet_drop_after(context: &RuleContext, job: &JobTrack, since: f64) -> Option<f64> {
    let workers_rest = job.workers_rest_since.is_some_and(|rest| (rest - since).abs() <= QUIET_DROP_LEAD);
    if context.members(job).any(ProcessTrack::lost_parent) {
        Some(QUIET_DROP_AFTER.0)
    } else {
        (workers_rest || context.is_log_silent(job)).then_some(QUIET_DROP_AFTER.1)
    }
}

/// Returns the GPU if it is busy at a steady power far below the one that the job drew at work, while something else tells that
/// the job has stopped. Its memory may read as in use: some drivers report that for a waiting kernel, too.
fn quiet_drop(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let t = context.sample_time.t;
    if !does_power_tell(gpu, track) {
        return None;
    }
    let (run, percent) = level_after_work(context, job, track, QUIET_DROP_AFTER.0)?;
    if f64::from(percent) < limits.median_utilization || context.is_log_growing(job) {
        return None;
    }
    let after = quiet_drop_after(context, job, run.since).filter(|after| run.reaches(t, *after))?;
    // The GPU may have been as busy before its power fell.
    let stats = track.window.stats(run.since.max(t - after.min(LONGEST_WINDOW)));
    let watts = stats.mean_power?;
    let earlier = healthy_watts(&gpu.baseline, QUIET_DROP_HISTORY)?;
    let is_far_below =
        has_dropped((watts, earlier), track, limits) && f64::from(watts) <= FROZEN_POWER_ALONE * f64::from(earlier);
    if !is_far_below || !is_flat(track, &stats, limits) {
        return None;
    }
    let found = SpinningGpu::new(gpu, track, run, &stats)?;
    Some(SpinningGpu { has_worked: true, earlier: Some(earlier), is_hint: true, ..found })
}

/// Returns the GPU if it is busy while its counters show neither tensor cores nor memory nor links at work, whatever its
/// power. Without earlier work in the counters, the program may never use any of them.
fn counters_at_rest(context: &RuleContext, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    // A sample can fall into a pause between two operations.
    let least = COUNTED_REST_SHARE * limits.warn_after;
    let run = track.counter_rest_run.filter(|run| run.reaches(context.sample_time.t, least))?;
    let t = context.sample_time.t;
    let has_worked = f64::from(gpu.baseline.counted_seconds) >= limits.history;
    let stats = track.window.stats(run.since.max(t - limits.warn_after));
    // A kernel that waits occupies few SMs. One that fills them all may compute in registers, but not for long if the job used more.
    let fills_gpu = track.resting_sm_percent.is_some_and(|percent| percent > WAITING_SM_PERCENT);
    let is_persistent = || has_worked && run.reaches(t, FULL_REST_AFTER) && is_flat(track, &stats, limits);
    if !gpu.is_exclusive || (fills_gpu && !is_persistent()) || (!has_worked && track.resting_sm_percent.is_none()) {
        return None;
    }
    let earlier = gpu.baseline.median_power().filter(|_| has_worked);
    Some(SpinningGpu { has_worked, earlier, ..SpinningGpu::new(gpu, track, run, &stats)? })
}

/// The clients of a server that wait while its GPU is busy without an access to its memory, which it accessed before: threads that
/// spin on a lock may draw as much as work in short bursts. Some of them came since, so that they are no subscribers to events.
pub(super) fn clients_of_still_gpu<'a>(
    context: &RuleContext<'a>,
    job: &'a JobTrack,
    gpu: &JobGpu,
    track: &GpuTrack,
) -> Option<&'a WaitingClients> {
    let t = context.sample_time.t;
    let run = track.still_run.filter(|run| run.reaches(t, clients::SERVER_AFTER))?;
    let is_still = !track.has_power_smoothing && gpu.baseline.accessed_seconds >= ACCESSED_SECONDS;
    let waits = |clients: &&WaitingClients| {
        let have_all_waited =
            clients.run.is_some_and(|waited| t - waited.since.max(run.since) >= clients::SERVER_AFTER);
        clients.count >= 2 && have_all_waited && clients.new_since(run.since, t) >= 2
    };
    context.waiting_clients(job).filter(|clients| is_still && waits(clients))
}

/// Returns the GPU if nobody is served by it, whatever its power.
fn unanswered(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let run = track.still_run.filter(|_| gpu.is_exclusive)?;
    clients_of_still_gpu(context, job, gpu, track)?;
    SpinningGpu::new(gpu, track, run, &track.window.stats(run.since))
}

/// Returns a GPU that was never seen at work if it is always busy, never accesses its memory and draws a constant, low power.
fn never_at_work(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let after = context.limits.stuck_spin_suspect.warn_after;
    let t = context.sample_time.t;
    // A silent log stands for the memory, which some drivers report as in use.
    // The first collective takes long over a slow network, but not within one host.
    let is_on_one_host = || job.gpus.len() > 1 && context.peers.parts(job, context.host.id).next().is_none();
    let is_silent = context.is_log_silent(job) || (context.has_log_stopped(job, after) && is_on_one_host());
    // A program that is alone has no rank to wait for: its log must have stopped long ago, and its memory must be at rest.
    let is_stopped = context.has_log_stopped(job, STOPPED_LOG_SECONDS);
    let level = track.level_run.filter(|(_, percent)| is_silent && *percent >= 98.0).map(|(run, _)| run);
    let level = level.filter(|run| run.reaches(t, 2.0 * after));
    let run = track.still_run.or(level).filter(|run| run.reaches(t, after))?;
    let has_worked = |gpu: &JobGpu| gpu.baseline.power_seconds() > run.covered + 60.0;
    if (job.gpus.len() < 2 && !is_stopped)
        || !gpu.is_exclusive
        || track.has_power_smoothing
        || job.gpus.iter().any(has_worked)
    {
        return None;
    }
    let stats = track.window.stats(run.since.max(t - after));
    let (watts, context_watts, limit) = (stats.mean_power?, track.context_watts()?, track.limit?);
    let is_low = watts <= context_watts + NEVER_AT_WORK_SHARE * (limit - context_watts) && watts <= 0.5 * limit
        || (is_silent || is_stopped) && watts <= SILENT_POWER_SHARE * limit;
    let variation = f64::from(stats.power_variation?);
    let steady = if job.is_server { SERVER_VARIATION } else { NEVER_AT_WORK_VARIATION };
    let is_constant = variation <= steady || variation * f64::from(watts) <= FROZEN_WATTS;
    let is_still = stats.least_utilization >= Some(98) && (is_silent || stats.most_memory_utilization == Some(0));
    let found = SpinningGpu::new(gpu, track, run, &stats)?;
    let is_hint = stats.most_memory_utilization != Some(0);
    (is_low && is_constant && is_still).then_some(SpinningGpu { is_hint, ..found })
}

/// Whether a GPU is between the firing and the clearing thresholds.
pub(super) fn is_in_hysteresis(context: &RuleContext, track: &GpuTrack) -> bool {
    let limits = &context.limits.stuck_spin;
    match (track.utilization, track.power, track.spin_watts()) {
        (Some(utilization), Some(power), Some(spin)) => {
            f64::from(utilization) >= limits.clear_utilization
                && f64::from(power) <= limits.clear_power * f64::from(spin)
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "spinning_tests.rs"]
mod tests;
