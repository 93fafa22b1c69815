//! Jobs that hang while their GPUs say busy: stuck-spin, stuck-spin-suspect, missing-rank.
//!
//! A rank that waits in a collective runs one small kernel that spins: the driver reads 100 % busy, the power falls to
//! little more than that of an idle context, and memory stands still.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingDetails, FindingTarget, Run};
use crate::diagnosis::peer_hosts::JobPart;
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, gibibytes};
use crate::diagnosis::track::{Baseline, COMPUTES_ABOVE, GpuTrack, JobGpu, JobTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{GpuListStyle, format_gpu_list};

pub(in crate::diagnosis) const STUCK_SPIN: RuleInfo = RuleInfo {
    word: "stuck-spin",
    title: "GPUs say busy, draw little and move no memory",
    fires: "Every GPU concerned reads 90 % busy or more (median 95), draws less than its spin power, leaves its memory \
            alone (1 % or less, never above 3) and keeps its power steady (5 %), after at least 5 min of healthy work \
            at twice that power. Warns after 5 min, critical after 10. Where a rank works on the host meanwhile \
            (saving, evaluating) the others may be waiting for it: then it warns after 10 min and goes no further, and \
            when that is over the times count anew.",
    means: "A collective (NCCL) or a kernel waits for something that does not come: a rank died, hangs in its data \
            loader, or took another path. The driver counts the waiting kernel as 100 % busy.",
    next: "Run `py-spy dump --pid PID` for every rank and compare: the one with another stack is the cause. Look into \
           `dmesg` for Xids. PyTorch's own NCCL timeout ends the job after 10 min, where it is set.",
    not: "an ordinary long step, a checkpoint (memory and power move), launch-bound small kernels (no healthy phase), an idle context (0 % busy)",
    limits: "Needs the power limit, power and memory utilisation; says nothing for MIG instances, nor while power \
             smoothing holds the power up. A kernel that waits at more than the spin power (300 W on an H200), or on a GPU \
             capped so far that healthy work draws less than twice what waiting does, looks like work. A job seen only \
             while it hangs is stuck-spin-suspect.",
    source: "NVIDIA-NeMo/Speech#9291, NVIDIA/nccl#1550, #199, #968 (H100 104 to 152 of 700 W, V100 44 of 250 W, \
             A100-PCIe 69 of 300 W); arXiv 2605.23918",
};

pub(in crate::diagnosis) const STUCK_SPIN_SUSPECT: RuleInfo = RuleInfo {
    word: "stuck-spin-suspect",
    title: "looks stuck, but its healthy work was not seen",
    fires: "As stuck-spin, for a job that gpufleet has not seen at work. Warns after 10 min (20 while a rank works on the \
            host), never critical by itself. Two or more GPUs that are flat together make it likely.",
    means: "Most of the time the same as stuck-spin. A job made of tiny kernels looks the same from the start.",
    next: "Run `py-spy dump --pid PID` twice, a minute apart: a job that works has moved on.",
    not: "batch-1 decoding and communication-heavy work (memory is busier or power varies)",
    limits: "Without a healthy phase to compare with, launch-bound work cannot be told from a hang.",
    source: "as stuck-spin; launch-bound look-alike: 96 % at 16 of 140 W on a GB10 (prismaquant#283)",
};

pub(in crate::diagnosis) const MISSING_RANK: RuleInfo = RuleInfo {
    word: "missing-rank",
    title: "some ranks wait, and others never arrived",
    fires: "Within one job, for 5 min, one or more GPUs spin as in stuck-spin and one or more are at 5 % or less while \
            they hold at least half of the job's median memory. All of them worked before. Critical after 10 min.",
    means: "The ranks that spin wait in a collective that the ranks at rest did not enter: those are where the cause is.",
    next: "Run `py-spy dump --pid PID` for a process on a GPU that is named as missing.",
    not: "a pipeline whose stages take turns (all of them move), a job that is starting (not all ranks were active before)",
    limits: "Across hosts, ranks are known to belong together by their Slurm job, else only by likeness.",
    source: "NVIDIA/nccl#1550",
};

/// For how long after work on the host the others are taken to wait for it, in seconds: at least, and at most. What a
/// process writes is looked at in every tenth sample.
const HOST_WORK_GRACE: (f64, f64) = (90.0, 720.0);

/// One GPU that spins.
struct SpinningGpu {
    position: usize,
    run: Run,
    watts: f32,
    limit: f32,
    utilization: f32,
    /// Median power of healthy work; `None` when too little of it was seen.
    earlier: Option<f32>,
}

/// How much longer a hang is watched while it may yet be seen who is missing, in seconds: a short gap in one host's data.
const MISSING_RANK_GRACE: f64 = 90.0;

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
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
        // Not released yet: near the spin power, and busy.
        let is_between = candidates.clone().any(|(_, track)| is_between(context, track));
        if is_between {
            for rule in [RuleId::StuckSpin, RuleId::StuckSpinSuspect, RuleId::MissingRank] {
                conditions.in_hysteresis(rule, &target);
            }
        }
        return;
    }
    let (stuck, unseen): (Vec<&SpinningGpu>, Vec<&SpinningGpu>) =
        spinning.iter().partition(|spinning| spinning.earlier.is_some());
    let waits_for = describe_host_work(context, job);
    if stuck.is_empty() {
        suspect(context, conditions, job, &target, (&unseen, waits_for.is_some()));
        return;
    }
    let run = earliest(&stuck);
    // As long as one of them worked the others waited: what hangs has hung since then.
    let worked = (last_work(context, job) - run.since).max(0.0);
    let escalation = |grace: f64| match waits_for {
        Some(_) => Escalation::one(Severity::Warn, limits.waiting_after + grace),
        None => Escalation::two(
            (Severity::Warn, (limits.warn_after + worked).min(limits.waiting_after) + grace),
            (Severity::Crit, limits.crit_after + worked),
        ),
    };
    let evaluation = Evaluation::new(escalation(0.0), Confidence::Likely, limits.clear_after);
    let missing = missing_ranks(context, job);
    // Who is missing says more than that the others wait: it goes first, also when it was seen less.
    let grace = if missing.since.is_some() || missing.is_blind { MISSING_RANK_GRACE } else { 0.0 };
    conditions.met(
        RuleId::StuckSpin,
        &target,
        Evaluation { escalation: escalation(grace), ..evaluation }.since(run),
        |lasted, _| stuck_details(context, job, &stuck, waits_for.as_deref(), lasted),
    );
    if missing.is_blind {
        conditions.unknown(RuleId::MissingRank, &target);
    }
    if let (Some(resting), true) = (missing.since, spinning.len() + missing.count() >= 2) {
        let since = run.since.max(resting.since);
        let run = Run { since, covered: run.covered.min(resting.covered) };
        conditions.met(RuleId::MissingRank, &target, evaluation.since(run), |lasted, _| {
            missing_rank_details(context, job, &stuck, &missing, lasted)
        });
    }
}

/// Whether this GPU spins, by its whole window.
fn spinning(context: &RuleContext, job: &JobTrack, gpu: &JobGpu, track: &GpuTrack) -> Option<SpinningGpu> {
    let limits = &context.limits.stuck_spin;
    let run = track.spin_run?;
    let stats = track.window.stats(run.since.max(context.sample_time.t - limits.warn_after));
    let watts = stats.mean_power?;
    let is_flat = stats.power_variation.is_none_or(|variation| f64::from(variation) <= limits.power_variation);
    if !(stats.is_median_high && stats.is_memory_median_low && is_flat) {
        return None;
    }
    let has_history = |past: &Baseline| past.power_seconds() >= limits.history;
    let own = Some(&gpu.baseline).filter(|past| has_history(past)).and_then(Baseline::median_power);
    let earlier = own.or_else(|| {
        let others = job.gpus.iter().map(|other| &other.baseline).filter(|past| has_history(past));
        others.filter_map(Baseline::median_power).reduce(f32::max)
    });
    // It worked at about this power before: this is how it works.
    if earlier.is_some_and(|earlier| f64::from(watts) > limits.power_drop * f64::from(earlier)) {
        return None;
    }
    Some(SpinningGpu {
        position: gpu.position,
        run,
        watts,
        limit: track.limit?,
        utilization: stats.mean_utilization?,
        earlier,
    })
}

fn is_between(context: &RuleContext, track: &GpuTrack) -> bool {
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

/// When a rank of the job last did something that the others may have waited for.
fn last_work(context: &RuleContext, job: &JobTrack) -> f64 {
    let parts =
        context.peers.parts(job, context.host.id).flat_map(|part| [part.job.host_work_at, part.job.computed_at]);
    [job.host_work_at, job.computed_at].into_iter().chain(parts).flatten().fold(f64::NEG_INFINITY, f64::max)
}

/// Who does something that the others may be waiting for, in words.
fn describe_host_work(context: &RuleContext, job: &JobTrack) -> Option<String> {
    let t = context.sample_time.t;
    let stays = (12.0 * context.sample_time.dt).clamp(HOST_WORK_GRACE.0, HOST_WORK_GRACE.1);
    let is_recent = |at: Option<f64>| at.is_some_and(|at| t - at <= stays);
    if is_recent(job.host_work_at) {
        return Some("a rank that works on the host".to_owned());
    }
    // One that computes in earnest while the others wait.
    let computes = |gpu: &&JobGpu| {
        let track = context.gpus.get(gpu.position);
        track.is_some_and(|track| match (track.utilization, track.power, track.spin_watts()) {
            (Some(utilization), Some(power), Some(spin)) => utilization >= 20 && power > COMPUTES_ABOVE * spin,
            _ => false,
        })
    };
    if let Some(gpu) = job.gpus.iter().find(computes) {
        return Some(format!("{}, which computes", context.format_gpus([gpu.position])));
    }
    let mut parts = context.peers.parts(job, context.host.id);
    parts
        .find(|part| is_recent(part.job.host_work_at))
        .map(|part| format!("a rank on {} that works on the host", part.name))
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
    // A rank that works on the host is given as long again.
    let patience = if is_waiting { context.limits.stuck_spin.waiting_after } else { 0.0 };
    let escalation = Escalation::one(Severity::Warn, context.limits.stuck_spin_suspect.warn_after + patience);
    let evaluation =
        Evaluation::new(escalation, confidence, context.limits.stuck_spin.clear_after).since(earliest(unseen));
    conditions.met(RuleId::StuckSpinSuspect, target, evaluation, |lasted, _| {
        let gpus = context.format_gpus(unseen.iter().map(|spinning| spinning.position));
        let (watts, limit, utilization) = means(unseen);
        let (says, draws) = verbs(unseen.len());
        let sentence = format!(
            "{gpus} {says} {utilization:.0} % busy for {} but {draws} {watts:.0} W of {limit:.0} W and {} no memory: {} \
             may be hung (its healthy work was not seen)",
            duration(lasted),
            if unseen.len() == 1 { "moves" } else { "move" },
            context.format_job(job),
        );
        let pid = context.first_pid(job);
        context.job_details(job, sentence, format!("py-spy dump --pid {pid}, twice, a minute apart"))
    });
}

fn verbs(count: usize) -> (&'static str, &'static str) {
    if count == 1 { ("says", "draws") } else { ("say", "draw") }
}

fn means(spinning: &[&SpinningGpu]) -> (f32, f32, f32) {
    let count = spinning.len().max(1) as f32;
    let mean = |value: fn(&SpinningGpu) -> f32| spinning.iter().map(|spinning| value(spinning)).sum::<f32>() / count;
    (mean(|one| one.watts), mean(|one| one.limit), mean(|one| one.utilization))
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
    let (says, draws) = verbs(stuck.len());
    let moves = if stuck.len() == 1 { "moves" } else { "move" };
    let verdict = match waits_for {
        Some(who) => format!("waits, perhaps for {who}"),
        None => "looks hung".to_owned(),
    };
    let sentence = format!(
        "{gpus} {says} {utilization:.0} % busy for {} but {draws} {watts:.0} W of {limit:.0} W (was {earlier:.0} W) and \
         {moves} no memory: {} {verdict}",
        duration(lasted),
        context.format_job(job),
    );
    let pid = context.first_pid(job);
    let mut words = context.job_details(job, sentence, format!("py-spy dump --pid {pid}"));
    words.gpus = context.finding_gpus(stuck.iter().map(|spinning| spinning.position));
    words.hosts = context.peers.parts(job, context.host.id).map(|part| (part.host, part.name.clone())).collect();
    words
}

/// Ranks that rest while others wait.
#[derive(Default)]
struct MissingRanks {
    /// Positions on this host.
    here: Vec<usize>,
    /// By host: its name, the indexes of its GPUs, and a pid.
    there: Vec<(String, Vec<u32>, u32)>,
    memory_bytes: u64,
    since: Option<Run>,
    /// A part of the job is on a host of which there is nothing new.
    is_blind: bool,
}

impl MissingRanks {
    fn count(&self) -> usize {
        self.here.len() + self.there.iter().map(|(_, gpus, _)| gpus.len()).sum::<usize>()
    }

    fn add(&mut self, run: Run, memory: u64) {
        self.memory_bytes = self.memory_bytes.max(memory);
        let (since, covered) = self.since.map_or((run.since, run.covered), |earlier| {
            (earlier.since.max(run.since), earlier.covered.min(run.covered))
        });
        self.since = Some(Run { since, covered });
    }
}

fn missing_ranks(context: &RuleContext, job: &JobTrack) -> MissingRanks {
    let mut missing = MissingRanks::default();
    let parts: Vec<JobPart> = context.peers.parts(job, context.host.id).collect();
    missing.is_blind = parts.iter().any(|part| !part.memory.is_recent(context.sample_time.t));
    let all = job.gpus.iter().chain(parts.iter().flat_map(|part| &part.job.gpus));
    let mut memories: Vec<u64> = all.filter_map(|gpu| gpu.memory_bytes).collect();
    memories.sort_unstable();
    let median = memories.get(memories.len() / 2).copied().unwrap_or(0);
    let enough = (context.limits.missing_rank.memory * median as f64) as u64;
    let rests = |gpu: &JobGpu, track: Option<&GpuTrack>| {
        let memory = gpu.memory_bytes.filter(|memory| *memory >= enough && *memory > 0)?;
        let run = track.filter(|track| track.is_readable).and_then(|track| track.idle_run)?;
        (gpu.is_exclusive && gpu.baseline.active_seconds >= 60.0).then_some((run, memory))
    };
    for gpu in &job.gpus {
        if let Some((run, memory)) = rests(gpu, context.gpus.get(gpu.position)) {
            missing.here.push(gpu.position);
            missing.add(run, memory);
        }
    }
    for part in parts.iter().filter(|part| part.memory.is_recent(context.sample_time.t)) {
        let mut indexes = Vec::new();
        for gpu in &part.job.gpus {
            let track = part.memory.gpus.get(gpu.position);
            if let Some((run, memory)) = rests(gpu, track) {
                indexes.extend(track.map(|track| track.index));
                missing.add(run, memory);
            }
        }
        if !indexes.is_empty() {
            let pid = part.job.members.first().and_then(|first| part.memory.processes.get(*first));
            missing.there.push((part.name.to_string(), indexes, pid.map_or(0, |process| process.key.pid)));
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
        "the rank on {} never arrived{likely}: at rest for {} with up to {} held, while {waiting} {} at {watts:.0} W of \
         {limit:.0} W in {}",
        places.join(" and "),
        duration(lasted),
        gibibytes(missing.memory_bytes),
        if stuck.len() == 1 { "waits" } else { "wait" },
        context.format_job(job),
    );
    let on_resting = |process: &&crate::diagnosis::track::ProcessTrack| {
        process.positions.iter().any(|position| missing.here.contains(position))
    };
    let next = match (context.members(job).find(on_resting), missing.there.first()) {
        (Some(process), _) => format!("py-spy dump --pid {}", process.key.pid),
        (None, Some((host, _, pid))) => format!("ssh {host} py-spy dump --pid {pid}"),
        (None, None) => format!("py-spy dump --pid {}", context.first_pid(job)),
    };
    let mut words = context.job_details(job, sentence, next);
    words.gpus =
        context.finding_gpus(missing.here.iter().copied().chain(stuck.iter().map(|spinning| spinning.position)));
    words.hosts = context.peers.parts(job, context.host.id).map(|part| (part.host, part.name.clone())).collect();
    words
}

#[cfg(test)]
#[path = "stuck_tests.rs"]
mod tests;
