//! Jobs that could be faster: input-stall, low-power-high-util, gpu-imbalance.

use crate::diagnosis::condition::{Escalation, Evaluation, MIN_COVERAGE};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::rule_context::{RuleContext, counted, duration};
use crate::diagnosis::track::{GpuTrack, JobGpu, JobTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::Host;
use crate::wire::HostReading;

/// How long the condition must hold after the mean over the whole window has fallen, in seconds.
const MIN_STALL_SECONDS: f64 = 120.0;

/// The share of the earlier utilisation below which a job counts as slow if its workers or its storage are the reason.
const HALF_SPEED: f64 = 0.5;
/// As [`HALF_SPEED`], for a job on a host where far more tasks than CPUs want to run.
const CROWDED_SPEED: f32 = 0.75;
/// If tasks wait for storage this much of the time, in percent, a job that has less than this share of its speed left warns after
/// this time in seconds.
const SLOW_STORAGE: [(f32, f64); 2] = [(35.0, 0.4), (60.0, HALF_SPEED)];
const SLOW_STORAGE_WARN_AFTER: f64 = 600.0;
/// From this PSI value `memory some avg60`, tasks wait for memory and not for their input.
const MEMORY_PRESSURE_PERCENT: f32 = 10.0;
/// The share of the memory of a host that is available, at most, if it is nearly full.
const FULL_MEMORY_SHARE: f64 = 0.05;
/// The utilisation of a job that waits for data from the start: it works, but rarely.
const STARVED_PERCENT: (f32, f32) = (3.0, 35.0);
/// The least utilisation of such a job if its storage is the reason, in percent.
const STARVED_BY_STORAGE_PERCENT: f32 = 1.0;
/// A job that was never seen at full speed warns below this mean utilisation in percent, at this PSI value `io some avg60`, after
/// this time in seconds.
const RARELY_BUSY_PERCENT: f32 = 10.0;
/// As [`RARELY_BUSY_PERCENT`], for workers that share too few cores: the others are free, so that it is a mistake.
const FEW_CORES_BUSY_PERCENT: f32 = 25.0;
/// The share of the CPUs of a host that a job takes if it takes all of them.
const ALL_CPUS_SHARE: f64 = 0.8;
/// A rest of the GPUs from which it is a phase of work on the CPUs, in seconds.
const PHASE_SECONDS: f64 = 300.0;
const SEVERE_PRESSURE_PERCENT: f32 = 60.0;
const STARVED_WARN_AFTER: f64 = 1800.0;
/// Below this mean utilisation, in percent, workers that are all saturated limit the job.
const LIMITED_PERCENT: f32 = 65.0;
/// The CPU usage per worker from which a worker is saturated, in percent, and the cores at most of a main process that waits
/// for its workers.
const SATURATED_PERCENT: f32 = 95.0;
const WAITING_CORES: f64 = 0.9;
/// The CPU usage per worker from which workers are busy, in percent.
const BUSY_WORKER_PERCENT: f32 = 60.0;
/// The window in which a job must have been slow at half speed, in seconds.
const HALF_SPEED_WINDOW: f64 = 1200.0;
/// How long a job is slow for an unknown reason before it is listed, in seconds.
const UNKNOWN_AFTER: f64 = 900.0;
/// A job that waits for data between bursts of work reaches at least this utilisation, in percent.
const BURST_PERCENT: u8 = 50;
/// As [`BURST_PERCENT`], if the job takes all CPUs of its host and keeps its GPUs busy for less than the second value.
const SMALL_BURST_PERCENT: u8 = 20;
const VERY_RARELY_BUSY_PERCENT: f32 = 7.0;
/// The CPU utilisation of a host from which its CPUs are the reason, in percent.
const HOST_CPU_PERCENT: f32 = 90.0;
/// How long a stopped job is observed before anybody is notified, in seconds.
const STOPPED_WARN_AFTER: f64 = 1200.0;

/// How long a job whose workers compute while its log does not grow is observed before anybody is notified, in seconds: it may
/// evaluate. A job that waits for data continues to write to its log.
const SILENT_WARN_AFTER: f64 = 2400.0;
/// The CPU cores of a job whose workers compute, at least.
const COMPUTING_CORES: f64 = 1.5;

/// The load average divided by the number of CPUs from which a host is overloaded. Its own finding warns.
const OVERLOADED_TASKS: f64 = 2.0;

/// The CPU usage of workers that do something, in percent of a core.
const WORKING_PERCENT: f32 = 25.0;
/// The CPU cores of a main process that prepares the data itself.
const SINGLE_CORES: std::ops::RangeInclusive<f64> = 0.85..=1.5;

/// A process that prepares its batches itself uses this many cores, and keeps its GPU busy for this share of the time, at least.
const BATCH_CORES: f64 = 0.5;
const RARE_BURSTS_PERCENT: f32 = 0.5;

enum Cause {
    Cpu,
    /// Many workers share this many cores of a host that has more.
    FewCores(f64),
    Storage,
    Unknown,
}

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable && job.gpus.iter().all(|gpu| gpu.is_exclusive)) {
        let target = FindingTarget::Job(job.key.clone());
        if !job.is_server && !job.is_notebook {
            input_stall(context, conditions, job, &target);
        }
        low_power(context, conditions, job, &target);
        imbalance(context, conditions, job, &target);
    }
}

fn input_stall(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.input_stall;
    let t = context.sample_time.t;
    let observed = t - job.first_seen;
    // A launcher may have started all of its ranks again.
    let age = context.age(job).unwrap_or(observed);
    if age < limits.young || observed < limits.warn_after {
        return;
    }
    let Some(earlier) = job.earlier_utilization().filter(|earlier| f64::from(*earlier) >= limits.earlier) else {
        starved_from_the_start(context, conditions, job, target);
        return;
    };
    // The short window first: it rejects most samples.
    let Some(now) = mean_utilization(context, job, MIN_STALL_SECONDS) else {
        conditions.unknown(RuleId::InputStall, target);
        return;
    };
    // At half of the earlier utilisation the input may be too slow, too.
    let cause = cause(context, job);
    let half = f64::from(earlier) * HALF_SPEED;
    if f64::from(now) >= (1.5 * limits.utilization).max(half) {
        if now < LIMITED_PERCENT && are_workers_saturated(context, job) {
            starved_from_the_start(context, conditions, job, target);
        } else if matches!(cause, Some(Cause::Storage))
            && mean_utilization(context, job, HALF_SPEED_WINDOW).is_some_and(|mean| f64::from(mean) < half)
        {
            // One busier minute does not show that the storage is faster.
            conditions.in_hysteresis(RuleId::InputStall, target);
        }
        return;
    }
    let Some(mean) = mean_utilization(context, job, limits.warn_after) else {
        conditions.unknown(RuleId::InputStall, target);
        return;
    };
    let is_slow = f64::from(mean) < limits.utilization;
    let is_half = || mean_utilization(context, job, HALF_SPEED_WINDOW).is_some_and(|mean| f64::from(mean) < half);
    if !is_slow && !is_half() {
        conditions.in_hysteresis(RuleId::InputStall, target);
        return;
    }
    let Some(cause) = cause else { return };
    let confidence = if matches!(cause, Cause::Unknown) { Confidence::Suspected } else { Confidence::Likely };
    let lacks_memory = lacks_memory(context);
    let is_held_up_by_storage = || {
        matches!(cause, Cause::Storage)
            && !lacks_memory
            && SLOW_STORAGE.iter().any(|(pressure, speed)| {
                reading(context, |host| host.pressure_io_percent) >= Some(*pressure)
                    && mean_utilization(context, job, HALF_SPEED_WINDOW)
                        .is_some_and(|mean| f64::from(mean) < speed * f64::from(earlier))
            })
    };
    // A job at 0 % may evaluate or prepare data. One that paused before and went on by itself may pause as long again.
    let is_stopped = job.was_quiet(t, limits.warn_after);
    let patience = (1.5 * f64::from(job.longest_quiet) - limits.warn_after).max(STOPPED_WARN_AFTER);
    let lacks_cpus = || !is_stopped && matches!(cause, Cause::Cpu) && is_overloaded(context);
    let escalation = match (is_slow, is_stopped) {
        (false, _) if matches!(cause, Cause::Unknown) => Escalation::one(Severity::Info, UNKNOWN_AFTER),
        (false, _) if is_held_up_by_storage() => {
            Escalation::two((Severity::Info, 0.0), (Severity::Warn, SLOW_STORAGE_WARN_AFTER))
        }
        (false, _) => Escalation::one(Severity::Info, 0.0),
        // The finding about the memory or the CPUs of the host tells it, or it does something that needs no GPU.
        (true, _)
            if lacks_memory || lacks_cpus() || works_without_the_gpu(context, job) || keeps_its_pace(context, job) =>
        {
            Escalation::one(Severity::Info, MIN_STALL_SECONDS)
        }
        (true, _) if computes_without_the_gpu(context, job, &cause) => {
            Escalation::two((Severity::Info, MIN_STALL_SECONDS), (Severity::Warn, SILENT_WARN_AFTER.max(patience)))
        }
        (true, false) if evaluates(context, job) || job.works_in_phases() => {
            Escalation::two((Severity::Info, MIN_STALL_SECONDS), (Severity::Warn, STOPPED_WARN_AFTER))
        }
        (true, false) => Escalation::one(Severity::Warn, MIN_STALL_SECONDS),
        (true, true) => Escalation::two((Severity::Info, MIN_STALL_SECONDS), (Severity::Warn, patience)),
    };
    let evaluation = Evaluation::new(escalation, confidence, MIN_STALL_SECONDS);
    conditions.met(RuleId::InputStall, target, evaluation, |_, _| {
        let gpus = context.format_gpus(job.positions());
        let were = if context.is_one_gpu(job.positions()) { "was" } else { "were" };
        let (why, next) = match cause {
            Cause::Cpu => {
                let workers = context.members(job).filter_map(|process| process.descendants);
                let workers = workers.fold(0, u32::saturating_add);
                let next = "use more data loader workers, or cheaper transforms".to_owned();
                let why = if workers == 0 {
                    "the CPUs of the host are busy".to_owned()
                } else {
                    describe_busy_workers(workers)
                };
                (why, next)
            }
            Cause::FewCores(cores) => describe_few_cores(context, job, cores),
            Cause::Storage => ("its workers wait for storage".to_owned(), "iostat -x 2; nfsiostat 2".to_owned()),
            Cause::Unknown => {
                ("for an unknown reason".to_owned(), format!("py-spy dump --pid {}", context.first_pid(job)))
            }
        };
        let sentence = format!(
            "{gpus} {were} busy for {mean:.0} % of the last 10 min (before: {earlier:.0} %): {} waits for data, {why}",
            context.format_job(job),
        );
        context.job_details(job, sentence, next).with_figures(format!("{mean:.0} % busy, was {earlier:.0} %"))
    });
}

/// Whether the GPUs of a job did nothing at all in the last ten minutes while its workers used the CPU, or its only process a whole
/// core: a job that waits for data gets some now and then. Metrics and exports may take hours on one core. Ranks that wait for
/// each other may poll.
fn works_without_the_gpu(context: &RuleContext, job: &JobTrack) -> bool {
    let begin = context.sample_time.t - context.limits.input_stall.warn_after;
    let rests = |gpu: &JobGpu| {
        let stats = context.gpus.get(gpu.position).map(|track| track.window.stats(begin));
        stats.and_then(|stats| stats.most_utilization).is_some_and(|most| most <= 2)
    };
    let workers: f32 = context.members(job).filter_map(|process| process.descendants_cpu).sum();
    let computes = |process: &ProcessTrack| process.own_cores().is_some_and(|cores| cores >= *SINGLE_CORES.start());
    let is_alone = job.members.len() == 1 && context.peers.parts(job, context.host.id).next().is_none();
    let works = workers >= WORKING_PERCENT || (is_alone && context.members(job).any(computes));
    works && job.gpus.iter().all(rests)
}

/// Whether the workers of a job compute while its log does not grow.
fn computes_without_the_gpu(context: &RuleContext, job: &JobTrack, cause: &Cause) -> bool {
    let has_workers = context.members(job).any(|process| process.descendants > Some(0));
    let cores: f64 = context.members(job).filter_map(|process| process.smoothed_cores).sum();
    let t = context.sample_time.t;
    let mut logs = context.members(job).filter_map(|process| process.log.as_ref()).peekable();
    let is_silent = logs.peek().is_some() && logs.all(|log| log.pauses(MIN_STALL_SECONDS, t));
    !matches!(cause, Cause::Storage) && has_workers && cores >= COMPUTING_CORES && is_silent
}

/// Whether a single process uses a whole core while its workers rest and its log grows: it plays episodes or predicts one by one.
fn evaluates(context: &RuleContext, job: &JobTrack) -> bool {
    let plays = |process: &ProcessTrack| {
        let rest = process.descendants > Some(0) && process.descendants_cpu.is_some_and(|percent| percent < 10.0);
        rest && process.own_cores().is_some_and(|cores| SINGLE_CORES.contains(&cores))
    };
    job.members.len() == 1 && context.members(job).all(plays) && context.is_log_growing(job)
}

/// Whether the job writes its log as often as before: a job that waits for data writes less often, and one that validates or goes
/// through a list of models works as it is meant to.
fn keeps_its_pace(context: &RuleContext, job: &JobTrack) -> bool {
    let t = context.sample_time.t;
    context.members(job).any(|process| process.log.as_ref().is_some_and(|log| log.keeps_its_pace(t)))
}

/// A job that became slower on a host where far more tasks want the CPUs than there are, with its present and its earlier mean
/// utilisation in percent.
pub(super) fn slowed_by_the_cpus<'a>(context: &RuleContext<'a>) -> Option<(&'a JobTrack, f32, f32)> {
    if !is_overloaded(context) {
        return None;
    }
    // A server without clients has less to do.
    let is_wanted =
        |job: &JobTrack| !job.is_server || context.waiting_clients(job).is_some_and(|clients| clients.run.is_some());
    context.jobs.iter().filter(|job| job.is_readable && is_wanted(job) && !job.is_notebook).find_map(|job| {
        let known = |gpu: &JobGpu| gpu.baseline.known_utilization().filter(|_| gpu.is_exclusive);
        let medians: Vec<f32> = job.gpus.iter().map(known).collect::<Option<_>>()?;
        let earlier = medians.iter().sum::<f32>() / medians.len().max(1) as f32;
        let mean = mean_utilization(context, job, HALF_SPEED_WINDOW)?;
        let is_slowed = f64::from(earlier) >= context.limits.input_stall.earlier && mean < CROWDED_SPEED * earlier;
        is_slowed.then_some((job, mean, earlier))
    })
}

/// A reading of the host, from its last snapshot.
fn reading(context: &RuleContext, field: impl Fn(&HostReading) -> Option<f32>) -> Option<f32> {
    context.host.snapshot.as_ref().and_then(|snapshot| field(&snapshot.host))
}

/// Whether tasks wait for memory, or the memory of the host is nearly full.
fn lacks_memory(context: &RuleContext) -> bool {
    let is_full = context.host.snapshot.as_ref().is_some_and(|snapshot| {
        let known = snapshot.host.memory_total_bytes.zip(snapshot.host.memory_available_bytes);
        known.is_some_and(|(total, available)| (available as f64) < FULL_MEMORY_SHARE * total as f64)
    });
    is_full || reading(context, |host| host.pressure_memory_percent) >= Some(MEMORY_PRESSURE_PERCENT)
}

/// Whether far more tasks want the CPUs of the host than there are.
fn is_overloaded(context: &RuleContext) -> bool {
    let cpus = context.host.hello.as_ref().and_then(|hello| hello.cpu_count);
    let load = reading(context, |host| host.load_1);
    load.zip(cpus).is_some_and(|(load, cpus)| f64::from(load) >= OVERLOADED_TASKS * f64::from(cpus))
}

/// A job that was this busy over the last minutes does not wait for data any more, in percent.
const RECOVERED_PERCENT: f32 = 60.0;

/// A job that was never seen at full speed, and waits for its workers or its storage, or works in short bursts.
fn starved_from_the_start(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    // Ignore utilisation from before the job began.
    let window = context.age(job).map_or(HALF_SPEED_WINDOW, |age| age.clamp(MIN_STALL_SECONDS, HALF_SPEED_WINDOW));
    let Some(mean) = mean_utilization(context, job, window) else { return };
    if mean_utilization(context, job, MIN_STALL_SECONDS).is_some_and(|now| now >= RECOVERED_PERCENT) {
        // A busy moment between long waits does not end the finding.
        conditions.unknown(RuleId::InputStall, target);
        return;
    }
    let cause = cause(context, job);
    let waits_for_storage = matches!(cause, Some(Cause::Storage));
    let pressure = reading(context, |host| host.pressure_io_percent);
    let is_pressed = waits_for_storage && pressure >= Some(SEVERE_PRESSURE_PERCENT);
    // A worker that reads with next to no CPU is not a phase of work on the CPUs.
    let workers_rest = || {
        let mut workers = context.members(job).filter(|process| process.descendants > Some(0)).peekable();
        let rest = |process: &ProcessTrack| process.descendants_cpu.is_some_and(|percent| percent <= WORKING_PERCENT);
        workers.peek().is_some() && workers.all(rest)
    };
    let has_bursts_of = |least: u8| {
        let begin = context.sample_time.t - window;
        job.gpus.iter().all(|gpu| {
            let stats = context.gpus.get(gpu.position).map(|track| track.window.stats(begin));
            stats.is_some_and(|stats| stats.least_utilization <= Some(5) && stats.most_utilization >= Some(least))
        })
    };
    let has_bursts = || has_bursts_of(BURST_PERCENT);
    // It prepares each batch itself, on one core.
    let is_one_process = || {
        job.members.len() == 1
            && context.members(job).all(|process| process.own_cores().is_some_and(|cores| cores >= BATCH_CORES))
    };
    let least = match waits_for_storage {
        true if is_pressed && workers_rest() => 0.0,
        true => STARVED_BY_STORAGE_PERCENT,
        false if is_one_process() && has_bursts() => RARE_BURSTS_PERCENT,
        false => STARVED_PERCENT.0,
    };
    let is_slow = (least..STARVED_PERCENT.1).contains(&mean);
    let is_limited = || mean < LIMITED_PERCENT && are_workers_saturated(context, job);
    let Some(cause) = cause.filter(|_| is_slow || is_limited()) else { return };
    let prepares_data = |process: &ProcessTrack| {
        process.descendants_cpu.unwrap_or(0.0) < 10.0
            && process.smoothed_cores.is_some_and(|cores| SINGLE_CORES.contains(&cores))
    };
    let is_single = is_slow && job.gpus.len() == job.members.len() && context.members(job).all(prepares_data);
    let are_workers_busy = is_slow && are_workers_busy(context, job);
    if matches!(cause, Cause::Unknown) && !has_bursts() && !is_single && !are_workers_busy {
        return;
    }
    let after = if matches!(cause, Cause::Unknown) || !is_slow { UNKNOWN_AFTER } else { 300.0 };
    // The GPUs do next to nothing, because tasks wait for storage most of the time or because the job itself takes all CPUs.
    let cpus = context.host.hello.as_ref().and_then(|hello| hello.cpu_count).map(f64::from);
    let takes_all_cpus = || job.cores.zip(cpus).is_some_and(|(cores, cpus)| cores >= ALL_CPUS_SHARE * cpus);
    // A program with long phases of work on the CPUs is meant to be so.
    let takes_turns = job.workers_rested_at.is_some_and(|at| context.sample_time.t - at <= HALF_SPEED_WINDOW);
    let has_no_phases = f64::from(job.longest_quiet) < PHASE_SECONDS;
    let is_bursty = has_bursts() || (mean < VERY_RARELY_BUSY_PERCENT && has_bursts_of(SMALL_BURST_PERCENT));
    let is_limited_by_cpus =
        matches!(cause, Cause::Cpu) && is_bursty && takes_all_cpus() && has_no_phases && !takes_turns;
    let rarely = if matches!(cause, Cause::FewCores(_)) { FEW_CORES_BUSY_PERCENT } else { RARELY_BUSY_PERCENT };
    let is_severe = (is_pressed || is_limited_by_cpus || matches!(cause, Cause::FewCores(_)))
        && is_slow
        && mean < rarely
        && !lacks_memory(context);
    let escalation = if is_severe {
        Escalation::two((Severity::Info, after), (Severity::Warn, STARVED_WARN_AFTER))
    } else {
        Escalation::one(Severity::Info, after)
    };
    let evaluation = Evaluation::new(escalation, Confidence::Suspected, MIN_STALL_SECONDS);
    conditions.met(RuleId::InputStall, target, evaluation, |_, _| {
        let gpus = context.format_gpus(job.positions());
        let were = if context.is_one_gpu(job.positions()) { "was" } else { "were" };
        let workers = context.members(job).filter_map(|process| process.descendants).fold(0, u32::saturating_add);
        let (why, next) = match cause {
            Cause::Cpu if workers > 0 => {
                (describe_busy_workers(workers), "use more data loader workers, or cheaper transforms".to_owned())
            }
            Cause::Cpu => ("the CPUs of the host are busy".to_owned(), "top -b -n 1 | head -20".to_owned()),
            Cause::FewCores(cores) => describe_few_cores(context, job, cores),
            Cause::Storage => ("its workers wait for storage".to_owned(), "iostat -x 2; nfsiostat 2".to_owned()),
            Cause::Unknown if are_workers_busy => {
                let why = if workers == 1 {
                    "its worker is busy".to_owned()
                } else {
                    format!("its {workers} workers are busy")
                };
                (why, "use more data loader workers, or cheaper transforms".to_owned())
            }
            Cause::Unknown if is_single => (
                "its main process uses a whole CPU core".to_owned(),
                "use data loader workers, or prepare the data beforehand".to_owned(),
            ),
            Cause::Unknown => {
                ("for an unknown reason".to_owned(), format!("py-spy dump --pid {}", context.first_pid(job)))
            }
        };
        let sentence = format!(
            "{gpus} {were} busy for {mean:.0} % of the last {:.0} min: {} waits for data, {why}",
            window / 60.0,
            context.format_job(job),
        );
        context.job_details(job, sentence, next).with_figures(format!("{mean:.0} % busy"))
    });
}

/// Whether every worker of the job uses a whole core while the main process waits for them part of the time.
fn are_workers_saturated(context: &RuleContext, job: &JobTrack) -> bool {
    let waits = |process: &ProcessTrack| {
        workers_use(process, SATURATED_PERCENT) && process.own_cores().is_some_and(|cores| cores <= WAITING_CORES)
    };
    context.members(job).all(waits)
}

/// Whether the workers of the job use most of a core each, as those that share too few cores do.
fn are_workers_busy(context: &RuleContext, job: &JobTrack) -> bool {
    context.members(job).all(|process| workers_use(process, BUSY_WORKER_PERCENT))
}

/// Whether a process has workers that use at least this much of a core each, on average, in percent.
fn workers_use(process: &ProcessTrack, percent: f32) -> bool {
    let workers = process.descendants.filter(|count| *count > 0).zip(process.descendants_cpu);
    workers.is_some_and(|(count, used)| used >= percent * count as f32)
}

fn describe_busy_workers(count: u32) -> String {
    if count == 1 {
        return "its worker uses all of its CPU".to_owned();
    }
    format!("its {count} workers use all of their CPU")
}

/// The mean utilisation of the job's GPUs over the last `seconds`; `None` if too little of it was observed.
fn mean_utilization(context: &RuleContext, job: &JobTrack, seconds: f64) -> Option<f32> {
    let mut sum = 0.0;
    for gpu in &job.gpus {
        // Windows begin at whole buckets: half a bucket more contains a full window.
        let stats = context.gpus.get(gpu.position)?.window.stats(context.sample_time.t - seconds - 15.0);
        if stats.covered < MIN_COVERAGE * seconds {
            return None;
        }
        sum += stats.mean_utilization?;
    }
    Some(sum / job.gpus.len().max(1) as f32)
}

/// The resource that the job waits for; `None` if it is idle or does other work.
fn cause(context: &RuleContext, job: &JobTrack) -> Option<Cause> {
    let limits = &context.limits.input_stall;
    let is_blocked = context.members(job).any(|process| process.descendants_blocked_share * 100.0 >= limits.blocked);
    // A job that writes saves or evaluates. It does not wait for input. Where its writes are seen, disk sleep means that it reads.
    let is_recent = |at: Option<f64>| at.is_some_and(|at| context.sample_time.t - at <= MIN_STALL_SECONDS);
    let are_writes_seen = context.members(job).all(ProcessTrack::shows_io);
    let wrote = || context.members(job).any(|process| is_recent(process.wrote_at));
    let may_write = !are_writes_seen || wrote();
    let is_busier = is_recent(job.busier_at);
    let works_on_the_host = is_recent(job.host_work_at) && may_write;
    let saves = is_busier || works_on_the_host;
    let writes = (is_busier && may_write) || works_on_the_host;
    let pressure = reading(context, |host| host.pressure_io_percent);
    if is_blocked || (!writes && pressure.is_some_and(|percent| f64::from(percent) >= limits.pressure)) {
        return Some(Cause::Storage);
    }
    let (workers, percent) = context.members(job).fold((0_u32, 0.0_f32), |(workers, percent), process| {
        (workers.saturating_add(process.descendants.unwrap_or(0)), percent + process.descendants_cpu.unwrap_or(0.0))
    });
    let host_cpu = reading(context, |host| host.cpu_percent);
    if (workers > 0 && f64::from(percent) >= limits.worker_cpu * f64::from(workers))
        || host_cpu >= Some(HOST_CPU_PERCENT)
    {
        return Some(Cause::Cpu);
    }
    if let Some(cores) = shared_cores(context, job, workers) {
        return Some(Cause::FewCores(cores));
    }
    job.cores.filter(|cores| !saves && *cores > context.limits.idle_hog.cpu).map(|_| Cause::Unknown)
}

/// The least number of workers that share too few cores, and the cores for each of them, at most.
const SHARING_WORKERS: u32 = 4;
const CORES_PER_SHARING_WORKER: f64 = 0.3;
/// Tasks wait for a CPU in this share of the time, while less than the other share of all CPUs is in use, in percent.
const CPU_PRESSURE_PERCENT: f32 = 50.0;
const RESTING_CPU_PERCENT: f32 = 50.0;

/// The cores that all workers of a job share, if tasks wait for CPUs although the host has free ones: an affinity mask
/// (pytorch/pytorch#101850) or the CPU limit of a container keeps them from the others.
fn shared_cores(context: &RuleContext, job: &JobTrack, workers: u32) -> Option<f64> {
    let are_waiting = reading(context, |host| host.pressure_cpu_percent) >= Some(CPU_PRESSURE_PERCENT);
    let are_free = reading(context, |host| host.cpu_percent).is_some_and(|percent| percent <= RESTING_CPU_PERCENT);
    let may_use = CORES_PER_SHARING_WORKER * f64::from(workers);
    job.cores.filter(|cores| workers >= SHARING_WORKERS && are_waiting && are_free && (0.5..=may_use).contains(cores))
}

/// Says how many cores the workers of a job share, and what to check.
fn describe_few_cores(context: &RuleContext, job: &JobTrack, cores: f64) -> (String, String) {
    let cores = cores.round().max(1.0);
    let noun = if cores > 1.0 { "cores" } else { "core" };
    let why = format!("its workers share {cores:.0} CPU {noun} of a host with free ones");
    (why, format!("taskset -acp {}", context.first_pid(job)))
}

/// The window of the means for low-power-high-util, in seconds.
const WINDOW: f64 = 300.0;

fn low_power(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let limits = &context.limits.low_power_high_util;
    // The current samples first: most jobs that are not busy stop here.
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
            // Hysteresis near the thresholds.
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
        let gpus = context.format_gpus(job.positions());
        let sentence = format!(
            "{gpus}: {utilization:.0} % busy for {} at {watts:.0} W of {limit:.0} W: {} could be faster",
            duration(lasted),
            context.format_job(job),
        );
        let next = "nsys profile, or try a larger batch".to_owned();
        context.job_details(job, sentence, next).with_figures(format!("{watts:.0} of {limit:.0} W"))
    });
}

/// A clock at most this share of that of the other GPUs warns.
const FAR_BELOW: f64 = 0.7;
/// How long the means need to show a straggler, in seconds.
const FOUND_AFTER: f64 = 90.0;

fn imbalance(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let Some(straggler) = &job.imbalance else {
        if !slow_host(context, conditions, job, target) {
            starved_host(context, conditions, job, target);
        }
        return;
    };
    // A clock far below the others names the slow GPU with certainty, and the whole job runs at its speed.
    let is_slow = straggler.clocks.is_some_and(|(slow, others)| slow <= FAR_BELOW * others);
    let severity = if is_slow || straggler.others_before.is_some() { Severity::Warn } else { Severity::Info };
    let evaluation = Evaluation::new(
        Escalation::one(severity, context.limits.gpu_imbalance.info_after - FOUND_AFTER),
        Confidence::Suspected,
        300.0,
    );
    conditions.met(RuleId::GpuImbalance, target, evaluation, |_, _| {
        let next = "nvidia-smi -q -d PERFORMANCE,CLOCK on that GPU; read the log of that rank";
        if let Some((slow, others)) = straggler.clocks {
            let sentence = format!(
                "{} runs at {:.0} % of its maximum clock and the other GPUs of {} at {:.0} %: they wait for it; they were \
                 balanced before",
                context.format_gpus([straggler.position]),
                100.0 * slow,
                context.format_job(job),
                100.0 * others,
            ) + &describe_link(context, job, straggler.position);
            let figures = format!("clock {:.0} %, others {:.0} %", 100.0 * slow, 100.0 * others);
            return context.job_details(job, sentence, next.to_owned()).with_figures(figures);
        }
        let sentence = format!(
            "{} does less than the other GPUs of {}: {:.0} % at {:.0} W for 10 min, the others {:.0} % at {:.0} W{}; they \
             were balanced before",
            context.format_gpus([straggler.position]),
            context.format_job(job),
            straggler.utilization,
            straggler.watts,
            straggler.others_utilization,
            straggler.others_watts,
            straggler.others_before.map_or_else(String::new, |watts| format!(" (was {watts:.0} W)")),
        ) + &describe_link(context, job, straggler.position);
        let figures = format!("{:.0} %, others {:.0} %", straggler.utilization, straggler.others_utilization);
        context.job_details(job, sentence, next.to_owned()).with_figures(figures)
    });
}

/// A clock of the GPUs of one host at most this share of that of the other hosts is slow; the others differ by less.
const SLOW_HOST_CLOCK: f64 = 0.85;
const ALIKE_HOSTS_CLOCK: f64 = 0.93;
/// The utilisation of a host that starves, at least, and that of the hosts that wait for it, in percent. At work before, its
/// own was as high.
const STARVED_LEAST_PERCENT: f32 = 10.0;
const WAITING_PERCENT: f32 = 95.0;
const STARVED_BEFORE_PERCENT: f32 = 80.0;
/// How long it must starve until that warns, in seconds.
const STARVED_HOST_WARN_AFTER: f64 = 1500.0;
/// The power of a host that waits for another one, divided by its median at work, at most.
const LESS_POWER: f32 = 0.85;
/// The window in which repeated packets are compared, in seconds.
const LINK_WINDOW: f64 = 3600.0;
/// How busy the GPUs of all hosts must be, in percent.
const BUSY_HOSTS_PERCENT: u8 = 80;

/// A host whose GPUs run at a lower clock than those of the other hosts of a job. All of them wait for it, so that power and
/// utilisation can be alike everywhere.
fn slow_host(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) -> bool {
    let parts = context.peers.certain_parts(job, context.host.id);
    let mut others: Vec<f64> = Vec::new();
    let model = |host: &Host, job: &JobTrack| host.gpu_info(job.positions().next()?)?.name.clone();
    for part in parts {
        let there = context.peers.fleet.host(part.host);
        if there.and_then(|there| model(there, part.job)) != model(context.host, job) {
            return false;
        }
        let clock =
            part.diagnosis.is_recent(context.sample_time.t).then(|| median_clock(part.job, &part.diagnosis.gpus));
        let Some(clock) = clock.flatten() else { return false };
        others.push(clock);
    }
    others.sort_by(f64::total_cmp);
    let (Some(own), Some(least), Some(most)) = (median_clock(job, context.gpus), others.first(), others.last()) else {
        return false;
    };
    let median = others[others.len() / 2];
    if own > SLOW_HOST_CLOCK * median || *least < ALIKE_HOSTS_CLOCK * most {
        return false;
    }
    let severity = if own <= FAR_BELOW * median { Severity::Warn } else { Severity::Info };
    let after = context.limits.gpu_imbalance.info_after;
    let evaluation = Evaluation::new(Escalation::one(severity, after), Confidence::Suspected, 300.0);
    conditions.met(RuleId::GpuImbalance, target, evaluation, |_, _| {
        let slow_link =
            job.positions().map(|position| describe_link(context, job, position)).find(|text| !text.is_empty());
        let sentence = format!(
            "{} on {} run at {:.0} % of their maximum clock, those on {} of {} at {:.0} %: they wait for this host{}",
            context.format_gpus(job.positions()),
            context.host.name(),
            100.0 * own,
            counted(others.len() as u64, "other host"),
            context.format_job(job),
            100.0 * median,
            slow_link.unwrap_or_default(),
        );
        let figures = format!("clock {:.0} %, other hosts {:.0} %", 100.0 * own, 100.0 * median);
        let next = "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE on that host".to_owned();
        context.job_details(job, sentence, next).with_figures(figures)
    });
    true
}

/// A host whose GPUs became less busy while those of the other hosts of the job wait for it at full utilisation.
fn starved_host(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, target: &FindingTarget) {
    let t = context.sample_time.t;
    let mut parts = context.peers.parts(job, context.host.id).peekable();
    // Another run of the same command does not draw less power while this host starves.
    let must_draw_less = context.peers.is_likely(job);
    let was_busy = |gpu: &JobGpu| gpu.baseline.median_utilization() >= Some(STARVED_BEFORE_PERCENT);
    if parts.peek().is_none() || !job.gpus.iter().all(was_busy) {
        return;
    }
    let Some(own) = busy_mean(job, context.gpus, t).filter(|own| *own >= STARVED_LEAST_PERCENT) else { return };
    let mut least = f32::INFINITY;
    let mut all_draw_less = true;
    for part in parts {
        let mean = busy_mean(part.job, &part.diagnosis.gpus, t).filter(|_| part.diagnosis.is_recent(t));
        let Some(mean) = mean else { return };
        all_draw_less &= draws_less(part.job, &part.diagnosis.gpus, t);
        if must_draw_less && !all_draw_less {
            return;
        }
        least = least.min(mean);
    }
    if f64::from(least - own) < context.limits.gpu_imbalance.utilization {
        return;
    }
    // A checkpoint in between interrupts their wait.
    if least < WAITING_PERCENT {
        conditions.in_hysteresis(RuleId::GpuImbalance, target);
        return;
    }
    let after = context.limits.gpu_imbalance.info_after - FOUND_AFTER;
    // Hosts that draw less than at work certainly wait for this one.
    let escalation = if all_draw_less && !must_draw_less {
        Escalation::two((Severity::Info, after), (Severity::Warn, STARVED_HOST_WARN_AFTER))
    } else {
        Escalation::one(Severity::Info, after)
    };
    let evaluation = Evaluation::new(escalation, Confidence::Suspected, 300.0);
    conditions.met(RuleId::GpuImbalance, target, evaluation, |_, _| {
        let sentence = format!(
            "{} on {} are {own:.0} % busy, those on the other hosts of {} at least {least:.0} %: they may wait for this host",
            context.format_gpus(job.positions()),
            context.host.name(),
            context.format_job(job),
        );
        let next = "top and iostat -x 5 on that host; read the log of its ranks".to_owned();
        context.job_details(job, sentence, next).with_figures(format!("{own:.0} %, other hosts {least:.0} %"))
    });
}

/// Whether the GPUs of a job draw less power than they did at work.
fn draws_less(job: &JobTrack, tracks: &[GpuTrack], t: f64) -> bool {
    job.gpus.iter().all(|gpu| {
        let now = tracks.get(gpu.position).and_then(|track| track.window.stats(t - WINDOW).mean_power);
        now.zip(gpu.baseline.median_power()).is_some_and(|(now, earlier)| now <= LESS_POWER * earlier)
    })
}

/// The mean utilisation of the GPUs of a job over the last minutes, in percent; `None` if it is unknown or other jobs use
/// them.
fn busy_mean(job: &JobTrack, tracks: &[GpuTrack], t: f64) -> Option<f32> {
    let mean = |gpu: &JobGpu| {
        let stats = tracks.get(gpu.position).filter(|_| gpu.is_exclusive)?.window.stats(t - WINDOW);
        stats.mean_utilization.filter(|_| stats.covered >= MIN_COVERAGE * WINDOW - 30.0)
    };
    let means: Vec<f32> = job.gpus.iter().map(mean).collect::<Option<_>>()?;
    (!means.is_empty()).then(|| means.iter().sum::<f32>() / means.len() as f32)
}

/// The median SM clock of the GPUs of a job, as a share of the maximum; `None` if one is unknown or not busy, or if other
/// jobs use the GPUs.
fn median_clock(job: &JobTrack, tracks: &[GpuTrack]) -> Option<f64> {
    let clock = |gpu: &JobGpu| {
        let track = tracks.get(gpu.position).filter(|track| gpu.is_exclusive && track.is_readable)?;
        track.clock_share.filter(|_| track.utilization >= Some(BUSY_HOSTS_PERCENT))
    };
    let mut clocks: Vec<f64> = job.gpus.iter().map(clock).collect::<Option<_>>()?;
    clocks.sort_by(f64::total_cmp);
    clocks.get(clocks.len() / 2).copied()
}

/// `; its PCIe link runs at gen 1 x4, the others reach gen 4 x16`. Empty if the links of the GPU equal those of the others.
fn describe_link(context: &RuleContext, job: &JobTrack, position: usize) -> String {
    let others = || job.positions().filter(move |other| *other != position);
    let mut parts = Vec::new();
    let reading = context.host.gpus().nth(position).map(|(_, reading)| reading);
    let own = reading.and_then(|reading| Some((reading.pcie_width?, reading.pcie_generation?)));
    let best = others().filter_map(|other| context.gpus.get(other)?.best_link).max();
    if let (Some(own), Some(best)) = (own, best)
        && (own.0 < best.0 || own.1 < best.1)
    {
        parts.push(format!(
            "its PCIe link runs at gen {} x{}, the others reach gen {} x{}",
            own.1, own.0, best.1, best.0
        ));
    }
    let links = |position: usize| Some(context.host.gpu_health(position)?.nvlinks_active?.count_ones());
    let most = others().filter_map(links).max();
    if let (Some(own), Some(most)) = (links(position), most)
        && own < most
    {
        parts.push(format!("it has {}, the others {most}", counted(u64::from(own), "active NVLink")));
    }
    let t = context.sample_time.t;
    let repeated = |position: usize| {
        let counters = context.gpus.get(position).and_then(|track| track.error_counters.as_ref());
        let rises = counters.map(|counters| [&counters.pcie_replays, &counters.nvlink_faults]);
        let rises = rises.into_iter().flatten().filter_map(|history| history.rise(t, LINK_WINDOW));
        rises.fold(0_u64, |sum, (rise, _)| sum.saturating_add(rise))
    };
    let own = repeated(position);
    if own > others().map(repeated).fold(0, u64::saturating_add) {
        parts.push(format!("its links repeated {} within an hour", counted(own, "packet")));
    }
    parts.iter().map(|part| format!("; {part}")).collect()
}

#[cfg(test)]
#[path = "efficiency_tests.rs"]
mod tests;
