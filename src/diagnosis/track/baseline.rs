//! How a job used one GPU before the present windows: small histograms, for medians.

use crate::diagnosis::saved_state::SavedGpuUsage;
use crate::wire::SafeText;

/// Bins of the power, each a fortieth of the limit; the last holds what is above.
const POWER_BINS: usize = 42;
const POWER_STEP: f32 = 1.0 / 40.0;
/// Bins of the utilisation, ten points each.
const USE_BINS: usize = 11;

/// Seconds of an earlier run that count.
const MAX_RESTORED_SECONDS: f64 = 3600.0;

/// Seconds by power and by utilisation. Counts are halved when one is full, so that long jobs follow what they do.
#[derive(Debug, Clone)]
pub(in crate::diagnosis) struct Baseline {
    power: [u16; POWER_BINS],
    utilization: [u16; USE_BINS],
    /// Seconds with a utilisation of 20 % or more.
    pub(in crate::diagnosis) active_seconds: f32,
    /// When it was last at 20 % or more.
    pub(in crate::diagnosis) active_at: Option<f64>,
    /// The limit that the powers are shares of, in watts.
    limit: f32,
}

impl Default for Baseline {
    fn default() -> Self {
        Self { power: [0; POWER_BINS], utilization: [0; USE_BINS], active_seconds: 0.0, active_at: None, limit: 0.0 }
    }
}

impl Baseline {
    /// Healthy work at this power for some seconds.
    pub(in crate::diagnosis) fn add_power(&mut self, watts: f32, limit: f32, seconds: f32) {
        if limit <= 0.0 || !watts.is_finite() {
            return;
        }
        self.limit = limit;
        let bin = ((watts / limit / POWER_STEP) as usize).min(POWER_BINS - 1);
        add(&mut self.power, bin, seconds);
    }

    /// A mean utilisation over some seconds.
    pub(in crate::diagnosis) fn add_utilization(&mut self, percent: f32, seconds: f32) {
        add(&mut self.utilization, (percent.max(0.0) as usize / 10).min(USE_BINS - 1), seconds);
    }

    /// What is to be kept of it for another run of the program; `None` where the job did nothing yet.
    pub(in crate::diagnosis) fn to_saved(&self, gpu: &SafeText) -> Option<SavedGpuUsage> {
        let work = SavedGpuUsage {
            gpu: gpu.clone(),
            healthy_watts: self.median_power(),
            limit_watts: self.limit,
            healthy_seconds: self.power_seconds(),
            utilization_percent: self.median_utilization(),
            utilization_seconds: self.utilization_seconds(),
            active_seconds: self.active_seconds,
        };
        (work.active_seconds > 0.0 || work.utilization_seconds > 0.0).then_some(work)
    }

    /// Takes what an earlier run has kept: of the histograms only the medians, so they weigh no more than an hour.
    pub(in crate::diagnosis) fn restore(&mut self, work: &SavedGpuUsage) {
        let seconds =
            |seconds: f64| if seconds.is_finite() { seconds.clamp(0.0, MAX_RESTORED_SECONDS) as f32 } else { 0.0 };
        if let Some(watts) = work.healthy_watts.filter(|watts| (0.0..1e6).contains(watts)) {
            self.add_power(watts, work.limit_watts, seconds(work.healthy_seconds));
        }
        if let Some(percent) = work.utilization_percent.filter(|percent| (0.0..=100.0).contains(percent)) {
            self.add_utilization(percent, seconds(work.utilization_seconds));
        }
        self.active_seconds += seconds(f64::from(work.active_seconds));
    }

    /// Seconds of healthy work seen.
    pub(in crate::diagnosis) fn power_seconds(&self) -> f64 {
        self.power.iter().map(|count| f64::from(*count)).sum()
    }

    /// The median power of healthy work, in watts, to within a fortieth of the limit.
    pub(in crate::diagnosis) fn median_power(&self) -> Option<f32> {
        median(&self.power).map(|bin| (bin as f32 + 0.5) * POWER_STEP * self.limit)
    }

    /// The median utilisation, in percent.
    pub(in crate::diagnosis) fn median_utilization(&self) -> Option<f32> {
        median(&self.utilization).map(|bin| (bin * 10) as f32)
    }

    /// Seconds for which the utilisation is known.
    pub(in crate::diagnosis) fn utilization_seconds(&self) -> f64 {
        self.utilization.iter().map(|count| f64::from(*count)).sum()
    }
}

fn add(bins: &mut [u16], bin: usize, seconds: f32) {
    let count = f32::from(bins[bin]) + seconds.max(0.0);
    if count >= f32::from(u16::MAX) {
        for count in bins.iter_mut() {
            *count /= 2;
        }
    }
    bins[bin] = bins[bin].saturating_add(seconds.max(0.0).round() as u16);
}

fn median(bins: &[u16]) -> Option<usize> {
    let total: u32 = bins.iter().map(|count| u32::from(*count)).sum();
    let mut seen = 0;
    bins.iter().position(|count| {
        seen += u32::from(*count);
        total > 0 && seen * 2 >= total
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_healthy_work_survives_pauses_and_long_runs() {
        let mut past = Baseline::default();
        assert_eq!((past.median_power(), past.median_utilization()), (None, None));
        for _ in 0..100_000 {
            past.add_power(560.0, 700.0, 10.0);
            past.add_power(200.0, 700.0, 2.0);
            past.add_utilization(97.0, 10.0);
            past.add_utilization(0.0, 2.0);
        }
        assert!((past.median_power().unwrap() - 560.0).abs() < 700.0 / 40.0);
        assert_eq!(past.median_utilization(), Some(90.0));
        assert!(past.power_seconds() > 30_000.0);
    }

    #[test]
    fn the_medians_survive_a_restart_and_absurd_ones_do_not() {
        let mut past = Baseline::default();
        assert_eq!(past.to_saved(&"GPU-0".into()), None);
        for _ in 0..2000 {
            past.add_power(560.0, 700.0, 10.0);
            past.add_utilization(97.0, 10.0);
            past.active_seconds += 10.0;
        }
        let kept = past.to_saved(&"GPU-0".into()).expect("it has worked");
        let mut next = Baseline::default();
        next.restore(&kept);
        assert_eq!((next.median_power(), next.median_utilization()), (past.median_power(), past.median_utilization()));
        assert!((next.power_seconds() - MAX_RESTORED_SECONDS).abs() < 1.0 && next.active_seconds >= 3600.0);
        let mut absurd = Baseline::default();
        for watts in [f32::NAN, f32::INFINITY, -1.0] {
            let seconds = f64::from(watts);
            absurd.restore(&SavedGpuUsage {
                healthy_watts: Some(watts),
                limit_watts: watts,
                healthy_seconds: seconds,
                utilization_percent: Some(watts),
                utilization_seconds: seconds,
                active_seconds: watts,
                ..kept.clone()
            });
        }
        assert_eq!((absurd.median_power(), absurd.median_utilization()), (None, None));
    }

    #[test]
    fn absurd_values_change_nothing() {
        let mut past = Baseline::default();
        past.add_power(f32::NAN, 700.0, 10.0);
        past.add_power(5.0, 0.0, 10.0);
        past.add_power(1e30, 700.0, 10.0);
        assert!((past.power_seconds() - 10.0).abs() < 1e-9);
        past.add_utilization(f32::NAN, 1.0);
        assert_eq!(past.median_utilization(), Some(0.0));
    }
}
