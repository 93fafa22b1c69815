//! Jobs that hang while their GPUs read as busy: stuck-spin, stuck-spin-suspect, missing-rank.
//!
//! A rank that waits in a collective runs one small kernel that spins: the driver reports 100 % busy, the power falls
//! to slightly more than that of an idle context, and the memory is not accessed.

use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingTarget};
use crate::diagnosis::rule_context::{JobPart, RuleContext, duration, gibibytes};
use crate::diagnosis::track::{Baseline, COMPUTES_ABOVE, GpuTrack, JobGpu, JobTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{GpuListStyle, format_gpu_list};

/// How long after work on the host the other ranks count as waiting for it, in seconds: minimum and maximum. The probe
/// checks the bytes written by a process in every tenth sample.
const HOST_WORK_GRACE: (f64, f64) = (90.0, 720.0);
/// How long after a sign of life on a resting GPU the other ranks count as waiting for it, in seconds. In telemetry of 29
/// real saves by one rank, the longest time without a sign was 200 s.
const ALIVE_GRACE: f64 = 240.0;
/// The CPU cores of a resting rank that works in one thread, and how long that is believed, in seconds.
const CPU_WORK_CORES: f64 = 0.5;
const CPU_WORK_LIMIT: f64 = 900.0;
/// The smallest share of healthy power, above that of an idle context, that is compared; less is noise.
const MIN_HEALTHY_WATTS: f32 = 5.0;
/// Without a known memory utilisation at healthy work, a frozen GPU may access its memory this much, in percent.
const FROZEN_MEMORY_PERCENT: f32 = 1.0;
/// The standard deviation of a constant power, in watts.
const FROZEN_WATTS: f64 = 1.0;

/// One GPU that spins.
struct SpinningGpu {
    position: usize,
    run: Run,
    watts: f32,
    /// `None` if the board reports no power limit.
    limit: Option<f32>,
    utilization: f32,
    /// The median power of healthy work; `None` if too little of it was observed.
    earlier: Option<f32>,
}

/// How much longer stuck-spin waits for missing-rank, in seconds: it covers a short gap in the data of one host.
const MISSING_RANK_GRACE: f64 = 90.0;

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for job in context.jobs.iter().filter(|job| job.is_readable) {
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
    let stuck: Vec<&SpinningGpu> = spinning.iter().filter(|spinning| spinning.earlier.is_some()).collect();
    let waits_for = describe_host_work(context, job, &spinning);
    // The ranks of a server spin while they wait for requests.
    if stuck.is_empty() || job.is_model_server {
        let suspects: Vec<&SpinningGpu> = spinning.iter().collect();
        suspect(context, conditions, job, &target, (&suspects, waits_for.is_some()));
        return;
    }
    let run = earliest(&stuck);
    // A job that waited before and went on by itself may wait as long again.
    let wait = f64::from(job.longest_wait);
    // While one rank worked, the others waited for it: the hang began after that.
    let worked = (last_work(context, job) - run.since).max(0.0);
    let escalation = |grace: f64| match waits_for {
        // A rank that works is the reason: the others are not hung.
        Some(_) => Escalation::one(Severity::Info, limits.waiting_after + grace),
        // The person who debugs a rank knows that the others wait.
        None if job.is_debugged => Escalation::one(Severity::Info, limits.waiting_after + grace),
        None => Escalation::two(
            (Severity::Warn, (limits.warn_after + worked).min(limits.waiting_after).max(1.5 * wait) + grace),
            (Severity::Crit, (limits.crit_after + worked).max(3.0 * wait)),
        ),
    };
    let evaluation = Evaluation::new(escalation(0.0), Confidence::Likely, limits.clear_after);
    let missing = missing_ranks(context, job);
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

/// Returns the GPU if it spins: below the spin power, or with its power frozen below that of its own earlier work.
fn spinning(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    below_spin_power(context, job, gpu, track).or_else(|| frozen(context, gpu, track))
}

/// Returns the GPU if it is below the spin power according to its whole window.
fn below_spin_power(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let run = track.spin_run?;
    let stats = track.window.stats(run.since.max(context.sample_time.t - limits.warn_after));
    let watts = stats.mean_power?;
    let is_flat = stats.power_variation.is_none_or(|variation| f64::from(variation) <= limits.power_variation);
    let is_memory_low = stats.is_memory_median_low || !track.reports_memory_use;
    if !(stats.is_median_high && is_memory_low && is_flat) {
        return None;
    }
    let has_history = |past: &Baseline| past.power_seconds() >= limits.history;
    let own = Some(&gpu.baseline).filter(|past| has_history(past)).and_then(Baseline::median_power);
    let earlier = own.or_else(|| {
        let others = job.gpus.iter().map(|other| &other.baseline).filter(|past| has_history(past));
        others.filter_map(Baseline::median_power).reduce(f32::max)
    });
    // The GPU drew about this power while it worked. An idle context draws power, too: only what exceeds it is work.
    let idle = track.context_watts().unwrap_or(0.0).min(watts);
    let is_like = |earlier: f32| {
        earlier - idle < MIN_HEALTHY_WATTS || f64::from(watts - idle) > limits.power_drop * f64::from(earlier - idle)
    };
    if earlier.is_some_and(is_like) {
        return None;
    }
    Some(SpinningGpu {
        position: gpu.position,
        run,
        watts,
        limit: track.limit,
        utilization: stats.mean_utilization?,
        earlier,
    })
}

/// Returns the GPU if it is busy without memory accesses at a constant power below that of its own work. This finds hangs
/// whose kernels spin on every SM, and those of boards without a power limit.
fn frozen(context: &RuleContext, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let run = track.still_run?;
    let t = context.sample_time.t;
    if !run.reaches(t, limits.warn_after) || track.has_power_smoothing || !gpu.is_exclusive {
        return None;
    }
    let stats = track.window.stats(run.since.max(t - limits.warn_after));
    let (watts, memory) = (stats.mean_power?, stats.mean_memory_utilization?);
    let earlier = Some(&gpu.baseline).filter(|past| past.power_seconds() >= limits.history)?.median_power()?;
    let most_memory = gpu.baseline.mean_memory_utilization().map_or(FROZEN_MEMORY_PERCENT, |healthy| healthy / 4.0);
    // On a board that draws little, the sensor's last digit exceeds the share.
    let variation = f64::from(stats.power_variation?);
    let is_constant = variation <= limits.frozen_variation || variation * f64::from(watts) <= FROZEN_WATTS;
    let is_frozen =
        is_constant && f64::from(watts) <= limits.frozen_power * f64::from(earlier) && memory <= most_memory;
    is_frozen.then_some(SpinningGpu {
        position: gpu.position,
        run,
        watts,
        limit: track.limit,
        utilization: stats.mean_utilization?,
        earlier: Some(earlier),
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
    let parts =
        context.peers.parts(job, context.host.id).flat_map(|part| [part.job.host_work_at, part.job.computed_at]);
    [job.host_work_at, job.computed_at].into_iter().chain(parts).flatten().fold(f64::NEG_INFINITY, f64::max)
}

/// Describes a rank that works while the others may be waiting for it.
fn describe_host_work(context: &RuleContext, job: &JobTrack, spinning: &[SpinningGpu]) -> Option<String> {
    let t = context.sample_time.t;
    let stays = (12.0 * context.sample_time.dt).clamp(HOST_WORK_GRACE.0, HOST_WORK_GRACE.1);
    let is_recent = |at: Option<f64>| at.is_some_and(|at| t - at <= stays);
    if is_recent(job.host_work_at) {
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
    let mut parts = context.peers.parts(job, context.host.id);
    parts
        .find(|part| is_recent(part.job.host_work_at))
        .map(|part| format!("a rank that is working on host {}", part.name))
}

/// A rank whose GPU rests while it uses one core: it saves, evaluates or prepares data in one thread. That is believed for
/// a quarter of an hour, since a rank that waits in a loop uses a core, too.
fn rank_on_the_cpu(context: &RuleContext, job: &JobTrack, spinning: &[SpinningGpu]) -> Option<usize> {
    let t = context.sample_time.t;
    let is_over = spinning.iter().any(|spinning| t - spinning.run.since > CPU_WORK_LIMIT);
    let rests = |position: &usize| {
        let track = context.gpus.get(*position);
        !spinning.iter().any(|spinning| spinning.position == *position)
            && track.is_some_and(|track| track.spin_run.is_none() && track.idle_run.is_some())
    };
    let mut working = context.members(job).filter(|process| process.smoothed_cores >= Some(CPU_WORK_CORES));
    if is_over { None } else { working.find_map(|process| process.positions.iter().copied().find(rests)) }
}

fn suspect(
    context: &RuleContext,
    conditions: &mut Conditions,
    job: &JobTrack,
    target: &FindingTarget,
    (unseen, is_waiting): (&[&SpinningGpu], bool),
) {
    let is_likely = unseen.len() >= 2 && !is_waiting;
    let confidence = if is_likely { Confidence::Likely } else { Confidence::Suspected };
    // A rank that works on the host gets additional time.
    let patience = if is_waiting { context.limits.stuck_spin.waiting_after } else { 0.0 };
    // A rank on a single GPU has no peer to wait for, and a server waits for requests.
    let is_alone = job.gpus.len() == 1 && context.peers.parts(job, context.host.id).next().is_none();
    let is_explained = is_waiting || job.is_model_server || job.is_debugged;
    let severity = if is_alone || is_explained { Severity::Info } else { Severity::Warn };
    let after = context.limits.stuck_spin_suspect.warn_after.max(1.5 * f64::from(job.longest_wait));
    let escalation = Escalation::one(severity, after + patience);
    let evaluation =
        Evaluation::new(escalation, confidence, context.limits.stuck_spin.clear_after).since(earliest(unseen));
    conditions.met(RuleId::StuckSpinSuspect, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(unseen.iter().map(|spinning| spinning.position));
        let (watts, limit, utilization) = means(unseen);
        let (reads, draws, accesses) = verbs(unseen.len());
        let doubt = match (job.is_model_server, unseen.iter().any(|spinning| spinning.earlier.is_some())) {
            (true, _) => "may be hung, or wait for requests",
            (false, true) => "may be hung",
            (false, false) => "may be hung (seen only after it hung)",
        };
        let sentence = format!(
            "{gpus} {reads} {utilization:.0} % busy for {} but {draws} {watts:.0} W{limit} and {accesses} no memory: {} {doubt}",
            duration(lasted),
            context.format_job(job),
        );
        let pid = context.first_pid(job);
        let next_check = format!("py-spy dump --pid {pid}, twice, a minute apart");
        // The other GPUs of the job may work.
        let gpus = context.finding_gpus(unseen.iter().map(|spinning| spinning.position));
        FindingDetails { gpus, ..context.job_details(job, sentence, next_check) }.with_figures(watts_text(unseen))
    });
}

fn verbs(count: usize) -> (&'static str, &'static str, &'static str) {
    if count == 1 { ("reads", "draws", "accesses") } else { ("read", "draw", "access") }
}

/// The mean power, " of 700 W" if the limit is known, and the mean utilisation.
fn means(spinning: &[&SpinningGpu]) -> (f32, String, f32) {
    let count = spinning.len().max(1) as f32;
    let mean = |value: fn(&SpinningGpu) -> f32| spinning.iter().map(|spinning| value(spinning)).sum::<f32>() / count;
    let limit: Option<f32> = spinning.iter().map(|spinning| spinning.limit).sum();
    let limit = limit.map_or_else(String::new, |limit| format!(" of {:.0} W", limit / count));
    (mean(|one| one.watts), limit, mean(|one| one.utilization))
}

/// `112 of 700 W`: the mean power and limit.
fn watts_text(spinning: &[&SpinningGpu]) -> String {
    let (watts, limit, _) = means(spinning);
    if limit.is_empty() { format!("{watts:.0} W") } else { format!("{watts:.0}{limit}") }
}

fn stuck_details(
    context: &RuleContext,
    job: &JobTrack,
    stuck: &[&SpinningGpu],
    waits_for: Option<&str>,
    lasted: f64,
) -> FindingDetails {
    let gpus = context.format_gpus(stuck.iter().map(|spinning| spinning.position));
    let (watts, limit, utilization) = means(stuck);
    let earlier = stuck.iter().filter_map(|spinning| spinning.earlier).sum::<f32>() / stuck.len().max(1) as f32;
    let (reads, draws, accesses) = verbs(stuck.len());
    let verdict = match waits_for {
        Some(who) => format!("may be waiting for {who}"),
        None => "looks hung".to_owned(),
    };
    let sentence = format!(
        "{gpus} {reads} {utilization:.0} % busy for {} but {draws} {watts:.0} W{limit} (was {earlier:.0} W) and {accesses} no \
         memory: {} {verdict}",
        duration(lasted),
        context.format_job(job),
    );
    let pid = context.first_pid(job);
    let details = context.job_details(job, sentence, format!("py-spy dump --pid {pid}"));
    let mut details = details.with_figures(watts_text(stuck));
    details.gpus = context.finding_gpus(stuck.iter().map(|spinning| spinning.position));
    details.hosts = context.peers.names(job, context.host.id);
    details
}

/// Idle ranks that other ranks wait for.
#[derive(Default)]
struct MissingRanks {
    /// The positions of their GPUs on this host.
    here: Vec<usize>,
    /// The other hosts: name, indexes of the GPUs, and the command that shows the stack of a process.
    there: Vec<(String, Vec<u32>, String)>,
    /// The largest amount of memory held.
    memory_bytes: u64,
    /// The time for which all of them have been idle.
    idle_run: Option<Run>,
    /// A part of the job is on a host without recent data.
    has_outdated_part: bool,
}

impl MissingRanks {
    fn count(&self) -> usize {
        self.here.len() + self.there.iter().map(|(_, gpus, _)| gpus.len()).sum::<usize>()
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
    let parts: Vec<JobPart> = context.peers.parts(job, context.host.id).collect();
    missing.has_outdated_part = parts.iter().any(|part| !part.diagnosis.is_recent(context.sample_time.t));
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
        let mut indexes = Vec::new();
        for gpu in &part.job.gpus {
            let track = part.diagnosis.gpus.get(gpu.position);
            if let Some((run, memory)) = idle(gpu, track) {
                indexes.extend(track.map(|track| track.index));
                missing.add(run, memory);
            }
        }
        if !indexes.is_empty() {
            let pid = part.job.members.first().and_then(|first| part.diagnosis.processes.get(*first));
            let ssh = context.peers.fleet.host(part.host).and_then(|host| host.config.ssh_line());
            let ssh = ssh.map_or_else(String::new, |line| format!("{line} "));
            let dump = format!("{ssh}py-spy dump --pid {}", pid.map_or(0, |process| process.key.pid));
            missing.there.push((part.name.to_string(), indexes, dump));
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
    let (watts, limit, _) = means(stuck);
    let waiting = context.format_gpus(stuck.iter().map(|spinning| spinning.position));
    let mut places: Vec<String> = Vec::new();
    if !missing.here.is_empty() {
        places.push(format!("{} on {}", context.format_gpus(missing.here.iter().copied()), context.host.name()));
    }
    places.extend(
        missing
            .there
            .iter()
            .map(|(host, gpus, _)| format!("{} on {host}", format_gpu_list(gpus, GpuListStyle::Ranges))),
    );
    let likely = if context.peers.is_likely(job) && !missing.there.is_empty() { " (likely the same job)" } else { "" };
    let sentence = format!(
        "the rank on {} never arrived{likely}: idle for {} while holding up to {}, and {waiting} {} at {watts:.0} W{limit} in \
         {}",
        places.join(" and "),
        duration(lasted),
        gibibytes(missing.memory_bytes),
        if stuck.len() == 1 { "waits" } else { "wait" },
        context.format_job(job),
    );
    let is_missing = |process: &&ProcessTrack| process.positions.iter().any(|position| missing.here.contains(position));
    let next = match (context.members(job).find(is_missing), missing.there.first()) {
        (Some(process), _) => format!("py-spy dump --pid {}", process.key.pid),
        (None, Some((_, _, dump))) => dump.clone(),
        (None, None) => format!("py-spy dump --pid {}", context.first_pid(job)),
    };
    let figures = format!("{}, {} held", places.join(" and "), gibibytes(missing.memory_bytes));
    let mut details = context.job_details(job, sentence, next).with_figures(figures);
    details.gpus =
        context.finding_gpus(missing.here.iter().copied().chain(stuck.iter().map(|spinning| spinning.position)));
    details.hosts = context.peers.names(job, context.host.id);
    details
}

#[cfg(test)]
#[path = "stuck_tests.rs"]
mod tests;
