//! What charts show: which reading, and how far back.

use super::GpuSummary;
use crate::fleet::GpuMetric;
use std::time::Duration;

/// A reading of a GPU that is drawn over time, or as a ramp where there is one cell a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Metric {
    /// Share of time in which a kernel ran.
    #[default]
    Utilization,
    /// Share of time in which memory was read or written.
    MemoryBusy,
    /// Memory used.
    Memory,
    /// Power drawn.
    Power,
    /// Temperature of the core.
    Temperature,
}

/// The coolest that a temperature is drawn, in degrees.
pub const CHART_MIN_CELSIUS: f32 = 20.0;
/// The hottest where the GPU does not tell at which temperature it slows down.
pub const CHART_MAX_CELSIUS: f32 = 100.0;

impl Metric {
    /// Every metric, in the order of the key that steps through them.
    pub const ALL: [Self; 5] = [Self::Utilization, Self::MemoryBusy, Self::Memory, Self::Power, Self::Temperature];

    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    /// Its name on the screen.
    pub fn word(self) -> &'static str {
        match self {
            Self::Utilization => "GPU",
            Self::MemoryBusy => "mem-busy",
            Self::Memory => "memory",
            Self::Power => "power",
            Self::Temperature => "temperature",
        }
    }

    /// Where its history is kept.
    pub fn series(self) -> GpuMetric {
        match self {
            Self::Utilization => GpuMetric::Utilization,
            Self::MemoryBusy => GpuMetric::MemoryUtilization,
            Self::Memory => GpuMetric::MemoryUsed,
            Self::Power => GpuMetric::Power,
            Self::Temperature => GpuMetric::Temperature,
        }
    }

    /// The reading now as a share of what is possible, 0 to 100; `None` where it, or what is possible, is not known.
    pub fn share_of(self, gpu: &GpuSummary) -> Option<f32> {
        let reading = &gpu.reading;
        let share = match self {
            Self::Utilization => f32::from(reading.utilization_percent?),
            Self::MemoryBusy => f32::from(reading.memory_utilization_percent?),
            Self::Memory => {
                let total = gpu.memory_total_bytes.filter(|total| *total > 0)?;
                (reading.memory_used_bytes? as f64 / total as f64 * 100.0) as f32
            }
            Self::Power => gpu.power_watts()? / gpu.power_limit_watts.filter(|limit| *limit > 0.0)? * 100.0,
            Self::Temperature => {
                (reading.temperature_celsius? as f32 - CHART_MIN_CELSIUS)
                    / (gpu.chart_max_celsius() - CHART_MIN_CELSIUS).max(1.0)
                    * 100.0
            }
        };
        Some(share.clamp(0.0, 100.0))
    }
}

/// How far back a chart goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChartSpan {
    /// Two minutes: every reading has a place of its own.
    TwoMinutes,
    /// Ten minutes.
    #[default]
    TenMinutes,
    /// One hour, ten-second means for what is older than the readings that are kept.
    Hour,
    /// Two hours, all that is kept.
    TwoHours,
}

impl ChartSpan {
    /// Every span, in the order of the key that steps through them.
    pub const ALL: [Self; 4] = [Self::TwoMinutes, Self::TenMinutes, Self::Hour, Self::TwoHours];

    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    /// As a time.
    pub fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Self::TwoMinutes => 120,
            Self::TenMinutes => 600,
            Self::Hour => 3600,
            Self::TwoHours => 7200,
        })
    }

    /// As it is written: `10m`.
    pub fn word(self) -> &'static str {
        match self {
            Self::TwoMinutes => "2m",
            Self::TenMinutes => "10m",
            Self::Hour => "1h",
            Self::TwoHours => "2h",
        }
    }

    /// Half of it, for the middle of the axis.
    pub fn half_word(self) -> &'static str {
        match self {
            Self::TwoMinutes => "1m",
            Self::TenMinutes => "5m",
            Self::Hour => "30m",
            Self::TwoHours => "1h",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::GpuState;
    use crate::wire::GpuReading;

    fn gpu() -> GpuSummary {
        GpuSummary {
            memory_total_bytes: Some(80 << 30),
            power_limit_watts: Some(700.0),
            slowdown_celsius: Some(90),
            reading: GpuReading {
                utilization_percent: Some(97),
                memory_used_bytes: Some(60 << 30),
                power_watts: Some(350.0),
                temperature_celsius: Some(55),
                ..GpuReading::default()
            },
            ..GpuSummary::blank(0, GpuState::InUse)
        }
    }

    #[test]
    fn a_share_rests_on_what_is_known_alone() {
        let gpu = gpu();
        let shares = Metric::ALL.map(|metric| metric.share_of(&gpu));
        assert_eq!(shares, [Some(97.0), None, Some(75.0), Some(50.0), Some(50.0)]);
        let unknown = GpuSummary { memory_total_bytes: None, power_limit_watts: None, ..gpu };
        assert_eq!((Metric::Memory.share_of(&unknown), Metric::Power.share_of(&unknown)), (None, None));
    }

    #[test]
    fn the_keys_come_around() {
        let mut metric = Metric::default();
        let mut span = ChartSpan::default();
        for _ in 0..Metric::ALL.len() {
            metric = metric.next();
        }
        for _ in 0..ChartSpan::ALL.len() {
            span = span.next();
        }
        assert_eq!((metric, span), (Metric::default(), ChartSpan::default()));
    }
}
