//! How even the GPUs of a job are.

use super::{GpuTrack, JobGpu};

/// Seconds over which GPUs must have been even.
const LONG: f64 = 600.0;
/// Seconds over which one is found to do less.
const SHORT: f64 = 180.0;
/// GPUs are even within this many points of utilisation, and this share of power.
const EVEN_POINTS: f32 = 10.0;
const EVEN_POWER: f32 = 0.15;

/// A GPU that does less than the others.
#[derive(Debug, Clone, Copy)]
pub(in crate::diagnosis) struct Straggler {
    pub(in crate::diagnosis) position: usize,
    pub(in crate::diagnosis) utilization: f32,
    pub(in crate::diagnosis) watts: f32,
    pub(in crate::diagnosis) others_utilization: f32,
    pub(in crate::diagnosis) others_watts: f32,
}

/// How even the GPUs of a job are; `None` where too little is known.
#[derive(Debug, Clone, Copy)]
pub(in crate::diagnosis) enum Balance {
    Even,
    Straggler(Straggler),
    Uneven,
}

/// Compares the means of the last minutes: of ten to call GPUs even, of three to find one that does less.
pub(in crate::diagnosis) fn compare(
    gpus: &[JobGpu],
    tracks: &[GpuTrack],
    (points, power): (f64, f64),
    t: f64,
) -> Option<Balance> {
    if gpus.len() < 2 || gpus.iter().any(|gpu| !gpu.is_exclusive) {
        return None;
    }
    let mut means: Vec<(usize, f32, f32)> = Vec::with_capacity(gpus.len());
    let mut long: Vec<(usize, f32, f32)> = Vec::with_capacity(gpus.len());
    let mut limit = None;
    for gpu in gpus {
        let track = tracks.get(gpu.position)?;
        if *limit.get_or_insert(track.limit) != track.limit || track.has_power_smoothing {
            return None;
        }
        let stats = track.window.stats(t - LONG);
        let recent = track.window.stats(t - SHORT);
        if stats.covered < 0.8 * LONG || recent.covered < 0.6 * SHORT {
            return None;
        }
        long.push((gpu.position, stats.mean_utilization?, stats.mean_power?));
        means.push((gpu.position, recent.mean_utilization?, recent.mean_power?));
    }
    let spread = |values: &mut dyn Iterator<Item = f32>| {
        values.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
    };
    let is_even = |means: &[(usize, f32, f32)]| {
        let (low, high) = spread(&mut means.iter().map(|mean| mean.1));
        let (weak, strong) = spread(&mut means.iter().map(|mean| mean.2));
        high - low <= EVEN_POINTS && strong - weak <= EVEN_POWER * strong
    };
    if is_even(&long) && is_even(&means) {
        let is_busy = long.iter().all(|mean| mean.1 >= 20.0);
        return Some(if is_busy { Balance::Even } else { Balance::Uneven });
    }
    means.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (position, utilization, watts) = *means.first()?;
    let others = means.get(1..)?;
    let (_, others_utilization, _) = *others.get(others.len() / 2)?;
    let mut powers: Vec<f32> = others.iter().map(|mean| mean.2).collect();
    powers.sort_by(f32::total_cmp);
    let others_watts = *powers.get(powers.len() / 2)?;
    let is_off = f64::from(others_utilization - utilization) >= points
        && f64::from(others_watts - watts) >= power * f64::from(others_watts);
    let straggler = Straggler { position, utilization, watts, others_utilization, others_watts };
    Some(if is_off && is_even(others) { Balance::Straggler(straggler) } else { Balance::Uneven })
}
