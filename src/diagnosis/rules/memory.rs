//! Memory that runs out: gpu-mem-pressure, gpu-mem-leak.

use crate::config::thresholds::GpuMemLeak;
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingDetails, FindingTarget};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, format_process, gibibytes};
use crate::diagnosis::track::{GpuTrack, JobTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};

pub(in crate::diagnosis) const PRESSURE: RuleInfo = RuleInfo {
    word: "gpu-mem-pressure",
    title: "GPU memory is nearly full and still grows",
    fires: "Free memory below 1 GiB or 2 %, and use grew by 256 MiB within 30 min and still grows, or would be full in \
            under 15 min. What a process takes in its first 10 min does not count. One finding a job.",
    means: "The next large tensor will not fit: an out-of-memory error is near.",
    next: "A smaller batch, `torch.cuda.empty_cache()` at the right place, or `expandable_segments:True`.",
    not: "a program that took nearly all memory at its start and stays there (JAX, TensorFlow, vLLM)",
    limits: "What an allocator keeps in reserve inside the process cannot be seen.",
    source: "gpufleet",
};

pub(in crate::diagnosis) const LEAK: RuleInfo = RuleInfo {
    word: "gpu-mem-leak",
    title: "a process whose GPU memory grows for hours",
    fires: "Over two hours, 96 min of them at least: growth of 1 GiB and 2 % or more, a steady trend (Mann-Kendall z of 3.3), in every third, the \
            last at least 0.6 of the first, in 8 steps or more with no single jump above 40 % of it and falls of at most \
            10 %; and at that pace (Theil-Sen) the memory is full within 24 h.",
    means: "Tensors are kept that should not be: losses with their graphs, a list of outputs, a cache without a bound.",
    next: "`torch.cuda.memory_summary()`, or a memory snapshot (`torch.cuda.memory._record_memory_history`).",
    not: "warm-up, a sawtooth, a random walk, one jump, a curriculum that steps up a few times",
    limits: "Needs 96 min of watching, and a driver that tells memory by process.",
    source: "Mann (1945), Kendall (1975), Theil (1950), Sen (1968)",
};

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    pressure(context, conditions);
    for process in context.processes.iter().filter(|process| !process.is_stale) {
        let Some(leak) = process.leak else { continue };
        let target = FindingTarget::Process(process.key.clone());
        let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Likely, 600.0);
        conditions.met(RuleId::GpuMemLeak, &target, evaluation, |_, _| {
            let sentence = format!(
                "{} grew by {} in {}, steadily: full in {} at this pace",
                format_process(process, 1, Some(&process.info.job)),
                gibibytes(leak.growth as u64),
                duration(leak.span),
                duration(leak.full_in),
            );
            let mut words = context.gpu_details(
                process.positions.first().copied().unwrap_or(0),
                sentence,
                "torch.cuda.memory_summary()".to_owned(),
            );
            words.gpus = context.finding_gpus(process.positions.iter().copied());
            words.processes = vec![context.finding_process(process)];
            words.job = Some(process.info.job.clone());
            words.user = Some(process.info.who.clone());
            words
        });
    }
}

/// A GPU whose memory runs out.
struct Pressure {
    position: usize,
    free: f64,
    total: u64,
    /// MiB, and in how many seconds.
    growth: f64,
    span: f64,
    full_in: f64,
}

/// What a job takes in its first minutes, in seconds, is its loading and no growth.
const LOADING: f64 = 600.0;

/// One finding a job, whatever the number of its GPUs.
fn pressure(context: &RuleContext, conditions: &mut Conditions) {
    let mut by_target: Vec<(FindingTarget, Option<&JobTrack>, Vec<Pressure>)> = Vec::new();
    for (position, gpu) in context.gpus.iter().enumerate() {
        let holder = || largest_holder(context, position);
        let Some(pressure) = pressure_of(context, position, gpu, holder) else { continue };
        let job = holder().and_then(|process| context.jobs.iter().find(|job| job.key == process.info.job));
        let target =
            job.map_or_else(|| FindingTarget::Gpu(gpu.identity.clone()), |job| FindingTarget::Job(job.key.clone()));
        match by_target.iter_mut().find(|(other, ..)| *other == target) {
            Some((.., all)) => all.push(pressure),
            None => by_target.push((target, job, vec![pressure])),
        }
    }
    let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 20.0), Confidence::Likely, 300.0);
    for (target, job, all) in by_target {
        conditions.met(RuleId::GpuMemPressure, &target, evaluation, |_, _| pressure_details(context, job, &all));
    }
}

fn pressure_details(context: &RuleContext, job: Option<&JobTrack>, all: &[Pressure]) -> FindingDetails {
    let positions = || all.iter().map(|pressure| pressure.position);
    let Some(worst) = all.iter().min_by(|a, b| a.full_in.total_cmp(&b.full_in).then(a.free.total_cmp(&b.free))) else {
        return FindingDetails::default();
    };
    let soon = if worst.full_in < 86_400.0 { format!(", full in {}", duration(worst.full_in)) } else { String::new() };
    let on = if all.len() > 1 { format!(" on {}", context.format_gpus([worst.position])) } else { String::new() };
    let whose = job.map_or_else(String::new, |job| format!(": {}", context.format_job(job)));
    let sentence = format!(
        "{}: {} of {} are free{on} after {} of growth in the last {}{soon}{whose}",
        context.format_gpus(positions()),
        gibibytes(worst.free as u64),
        gibibytes(worst.total),
        gibibytes((worst.growth.max(0.0) * 1_048_576.0) as u64),
        duration(worst.span),
    );
    let next = "a smaller batch, before it fails".to_owned();
    let mut words = match job {
        Some(job) => context.job_details(job, sentence, next),
        None => context.gpu_details(worst.position, sentence, next),
    };
    words.gpus = context.finding_gpus(positions());
    words
}

/// The process that holds the most memory of those on a GPU.
fn largest_holder<'a>(context: &RuleContext<'a>, position: usize) -> Option<&'a ProcessTrack> {
    let on_it = context.processes.iter().filter(|process| process.positions.contains(&position));
    on_it.max_by_key(|process| process.memory_bytes)
}

fn pressure_of<'a>(
    context: &RuleContext,
    position: usize,
    gpu: &GpuTrack,
    holder: impl Fn() -> Option<&'a ProcessTrack>,
) -> Option<Pressure> {
    let limits = &context.limits.gpu_mem_pressure;
    let (used, total) = (gpu.used_bytes?, gpu.total_bytes?);
    let free = total.saturating_sub(used).saturating_sub(gpu.reserved_bytes.unwrap_or(0)) as f64;
    let bound = (limits.free * 1_048_576.0).max(limits.free_share / 100.0 * total as f64);
    if free >= bound || gpu.is_unified || gpu.is_mig_parent {
        return None;
    }
    let t = context.sample_time.t;
    let now = (used >> 20) as f64;
    let began = holder().map(|process| process.age.map_or(process.first_seen, |age| process.first_seen.min(t - age)));
    let loaded = began.map_or(f64::NEG_INFINITY, |began| began + LOADING);
    let points = || {
        let all = gpu.memory.iter().map(|(at, mib)| (f64::from(*at), f64::from(*mib)));
        all.skip_while(move |(at, _)| *at < loaded)
    };
    let since = |seconds: f64| points().filter(move |(at, _)| t - at <= seconds + 30.0);
    // Too little was seen since.
    points().next().filter(|(at, _)| t - at >= 540.0)?;
    let (span, growth) = since(limits.window).next().map_or((0.0, 0.0), |(at, mib)| (t - at, now - mib));
    let recent = now - since(600.0).next().map_or(now, |(_, mib)| mib);
    let mut before = 0.0_f64;
    let never_fell = since(600.0).all(|(_, mib)| {
        let is_up = mib + 16.0 >= before;
        before = before.max(mib);
        is_up
    });
    let (begin, first) = since(300.0).next().unwrap_or((t, now));
    let slope = if t - begin >= 200.0 { (now - first) / (t - begin) } else { 0.0 };
    let full_in = if slope > 0.0 { free / 1_048_576.0 / slope } else { f64::INFINITY };
    let grows = growth >= limits.growth && recent >= limits.growth / 4.0 && slope > 0.0;
    let is_soon = full_in < limits.full_in && recent >= 32.0;
    (never_fell && (grows || is_soon)).then_some(Pressure { position, free, total, growth, span, full_in })
}

/// A leak that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::diagnosis) struct Leak {
    /// Bytes.
    pub(in crate::diagnosis) growth: f64,
    /// Seconds in which it grew: two hours, or as long as it was watched.
    pub(in crate::diagnosis) span: f64,
    /// Seconds until its GPUs are full.
    pub(in crate::diagnosis) full_in: f64,
}

/// Points that must be there, of the 120.
const ENOUGH: usize = 96;

/// Judges one-minute points of a process's memory in bytes, the oldest first. `total` is the memory of its GPUs, `free`
/// what is left there.
pub(in crate::diagnosis) fn leak(points: &[Option<f32>], total: f64, free: f64, limits: &GpuMemLeak) -> Option<Leak> {
    let series: Vec<(f64, f64)> =
        points.iter().enumerate().filter_map(|(minute, bytes)| Some((minute as f64, f64::from((*bytes)?)))).collect();
    if series.len() < ENOUGH {
        return None;
    }
    let smooth: Vec<(f64, f64)> = (0..series.len())
        .map(|place| {
            let from = place.saturating_sub(2).min(series.len() - 5);
            let mut five: Vec<f64> = series[from..from + 5].iter().map(|point| point.1).collect();
            five.sort_by(f64::total_cmp);
            (series[place].0, five[2])
        })
        .collect();
    let third = smooth.len() / 3;
    let value = |place: usize| smooth[place.min(smooth.len() - 1)].1;
    let growth = value(smooth.len() - 1) - value(0);
    let least = (limits.growth * 1_048_576.0).max(limits.share / 100.0 * total);
    // Cheap bounds first: nearly every process ends here.
    if growth < least {
        return None;
    }
    let thirds = [value(third) - value(0), value(2 * third) - value(third), value(smooth.len() - 1) - value(2 * third)];
    if thirds.iter().any(|third| *third <= 0.0) || thirds[2] < limits.last_third * thirds[0] {
        return None;
    }
    let steps = || smooth.windows(2).map(|pair| pair[1].1 - pair[0].1);
    let falls: f64 = steps().filter(|step| *step < 0.0).map(f64::abs).sum();
    // A level counts when it stands out of the noise; a jump may be spread over the means of two minutes.
    let mut level = value(0);
    let mut rises = 0_u32;
    for point in &smooth {
        if point.1 >= level + growth / 60.0 {
            level = point.1;
            rises += 1;
        }
    }
    let jump = smooth.windows(4).map(|four| four[3].1 - four[0].1).fold(0.0, f64::max);
    if falls > limits.falls / 100.0 * growth || f64::from(rises) < limits.rises || jump > limits.jump * growth {
        return None;
    }
    let slope = theil_sen(&smooth)?;
    let full_in = if slope > 0.0 { free / (slope / 60.0) } else { f64::INFINITY };
    if full_in >= limits.full_in || mann_kendall(&smooth) < limits.trend {
        return None;
    }
    let span = 60.0 * (smooth.last()?.0 - smooth.first()?.0);
    Some(Leak { growth, span, full_in })
}

/// The trend's z: how many standard deviations more pairs rise than fall, ties corrected.
fn mann_kendall(series: &[(f64, f64)]) -> f64 {
    let count = series.len() as f64;
    let mut score = 0.0;
    for (place, one) in series.iter().enumerate() {
        for other in &series[place + 1..] {
            score += (other.1 - one.1).partial_cmp(&0.0).map_or(0.0, |order| f64::from(order as i8));
        }
    }
    let mut sorted: Vec<f64> = series.iter().map(|point| point.1).collect();
    sorted.sort_by(f64::total_cmp);
    let ties: f64 = sorted
        .chunk_by(|a, b| (a - b).abs() < 0.5)
        .map(|group| {
            let size = group.len() as f64;
            size * (size - 1.0) * (2.0 * size + 5.0)
        })
        .sum();
    let variance = (count * (count - 1.0) * (2.0 * count + 5.0) - ties) / 18.0;
    if variance <= 0.0 { 0.0 } else { (score - f64::signum(score)) / variance.sqrt() }
}

/// The median of the slopes between all pairs, per minute.
fn theil_sen(series: &[(f64, f64)]) -> Option<f64> {
    let mut slopes: Vec<f64> = Vec::with_capacity(series.len() * series.len() / 2);
    for (place, one) in series.iter().enumerate() {
        slopes.extend(series[place + 1..].iter().map(|other| (other.1 - one.1) / (other.0 - one.0)));
    }
    let middle = slopes.len() / 2;
    (!slopes.is_empty()).then(|| *slopes.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
