//! Memory that runs out: gpu-mem-pressure, gpu-mem-leak.

use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::track::GpuTrack;
use crate::diagnosis::view::{View, duration, gibibytes, process_in_words};
use crate::diagnosis::watch::{Grade, Ladder, Target, Watches};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::hosts::thresholds::GpuMemLeak;

pub(in crate::diagnosis) const PRESSURE: RuleInfo = RuleInfo {
    word: "gpu-mem-pressure",
    title: "GPU memory is nearly full and still grows",
    fires: "Free memory below 1 GiB or 2 %, and use grew by 256 MiB within 30 min and still grows, or would be full in \
            under 15 min.",
    means: "The next large tensor will not fit: an out-of-memory error is near.",
    next: "A smaller batch, `torch.cuda.empty_cache()` at the right place, or `expandable_segments:True`.",
    not: "a program that took nearly all memory at its start and stays there (JAX, TensorFlow, vLLM)",
    limits: "What an allocator keeps in reserve inside the process cannot be seen.",
    source: "gpufleet",
};

pub(in crate::diagnosis) const LEAK: RuleInfo = RuleInfo {
    word: "gpu-mem-leak",
    title: "a process whose GPU memory grows for hours",
    fires: "Over two hours: growth of 1 GiB and 2 % or more, a steady trend (Mann-Kendall z of 3.3), in every third, the \
            last at least 0.6 of the first, in 8 steps or more with no single jump above 40 % of it and falls of at most \
            10 %; and at that pace (Theil-Sen) the memory is full within 24 h.",
    means: "Tensors are kept that should not be: losses with their graphs, a list of outputs, a cache without a bound.",
    next: "`torch.cuda.memory_summary()`, or a memory snapshot (`torch.cuda.memory._record_memory_history`).",
    not: "warm-up, a sawtooth, a random walk, one jump, a curriculum that steps up a few times",
    limits: "Needs two hours of watching, and a driver that tells memory by process.",
    source: "Mann (1945), Kendall (1975), Theil (1950), Sen (1968)",
};

pub(in crate::diagnosis) fn evaluate(view: &View, watches: &mut Watches) {
    for (position, gpu) in view.gpus.iter().enumerate() {
        pressure(view, watches, position, gpu);
    }
    for process in view.processes.iter().filter(|process| !process.is_held) {
        let Some(leak) = process.leak else { continue };
        let target = Target::Process(process.key.clone());
        let grade = Grade::new(Ladder::one(Severity::Warn, 0.0), Confidence::Likely, 600.0);
        watches.holds(RuleId::GpuMemLeak, &target, grade, |_, _| {
            let sentence = format!(
                "{} grew by {} in two hours, steadily: full in {} at this pace",
                process_in_words(process, 1, Some(&process.about.job)),
                gibibytes(leak.growth as u64),
                duration(leak.full_in),
            );
            let mut words = view.gpu_words(
                process.positions.first().copied().unwrap_or(0),
                sentence,
                "torch.cuda.memory_summary()".to_owned(),
            );
            words.gpus = view.finding_gpus(process.positions.iter().copied());
            words.processes = vec![view.finding_process(process)];
            words.job = Some(process.about.job.clone());
            words.user = Some(process.about.who.clone());
            words
        });
    }
}

fn pressure(view: &View, watches: &mut Watches, position: usize, gpu: &GpuTrack) {
    let limits = &view.limits.gpu_mem_pressure;
    let (Some(used), Some(total)) = (gpu.used_bytes, gpu.total_bytes) else { return };
    let free = total.saturating_sub(used).saturating_sub(gpu.reserved_bytes.unwrap_or(0)) as f64;
    let bound = (limits.free * 1_048_576.0).max(limits.free_share / 100.0 * total as f64);
    if free >= bound || gpu.is_unified || gpu.is_mig_parent {
        return;
    }
    let target = Target::Gpu(gpu.identity.clone());
    let t = view.beat.t;
    let now = (used >> 20) as f64;
    let points = || gpu.memory.iter().map(|(at, mib)| (f64::from(*at), f64::from(*mib)));
    let since = |seconds: f64| points().filter(move |(at, _)| t - at <= seconds + 30.0);
    // A job that has only just begun to fill its memory is loading.
    let is_settled = view.jobs.iter().filter(|job| job.gpus.iter().any(|gpu| gpu.position == position)).all(|job| {
        let age = view.members(job).filter_map(|process| process.age).fold(0.0, f64::max);
        age.max(t - job.first_seen) >= 900.0
    });
    let is_known = points().next().is_some_and(|(at, _)| t - at >= 540.0);
    if !is_settled || !is_known {
        return;
    }
    let growth = now - since(limits.window).next().map_or(now, |(_, mib)| mib);
    let recent = now - since(600.0).next().map_or(now, |(_, mib)| mib);
    let never_fell = |seconds: f64| {
        let mut before = 0.0_f64;
        since(seconds).all(|(_, mib)| {
            let is_up = mib + 16.0 >= before;
            before = before.max(mib);
            is_up
        })
    };
    let (begin, first) = since(300.0).next().unwrap_or((t, now));
    let slope = if t - begin >= 200.0 { (now - first) / (t - begin) } else { 0.0 };
    let full_in = if slope > 0.0 { free / 1_048_576.0 / slope } else { f64::INFINITY };
    let grows = growth >= limits.growth && recent >= limits.growth / 4.0;
    if !never_fell(600.0) || !(grows || (full_in < limits.full_in && recent >= 32.0)) {
        return;
    }
    let grade = Grade::new(Ladder::one(Severity::Warn, 20.0), Confidence::Likely, 300.0);
    watches.holds(RuleId::GpuMemPressure, &target, grade, |_, _| {
        let soon = if full_in < 86_400.0 { format!(", full in {}", duration(full_in)) } else { String::new() };
        let sentence = format!(
            "{}: {} of {} are free after {} of growth in the last {}{soon}",
            view.gpus_in_words([position]),
            gibibytes(free as u64),
            gibibytes(total),
            gibibytes((growth.max(0.0) * 1_048_576.0) as u64),
            duration(since(limits.window).next().map_or(0.0, |(at, _)| t - at)),
        );
        view.gpu_words(position, sentence, "a smaller batch, before it fails".to_owned())
    });
}

/// A leak that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::diagnosis) struct Leak {
    /// Bytes in two hours.
    pub(in crate::diagnosis) growth: f64,
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
    Some(Leak { growth, full_in })
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
