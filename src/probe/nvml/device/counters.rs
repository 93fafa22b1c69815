//! Counters that only rise, and the rates between two readings of them.

use super::valid_range::bytes_per_second;
use crate::probe::decimal::round_to_tenth_f32;

/// Two readings that lie closer together than this give no rate.
const MIN_RATE_SECONDS: f64 = 0.05;

/// A counter's last reading, and when it was read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counter(Option<(u64, f64)>);

impl Counter {
    /// The mean rate since the reading before. None at first, and when the counter fell: the driver was loaded again,
    /// or the counter wrapped.
    pub(super) fn rate(&mut self, value: Option<u64>, now: f64) -> Option<f64> {
        // All ones is no count, but how drivers say "not available".
        let value = value.filter(|&value| value != u64::MAX);
        let previous = std::mem::replace(&mut self.0, value.map(|value| (value, now)));
        let ((value, _), (previous_value, previous_time)) = self.0.zip(previous)?;
        let seconds = now - previous_time;
        (seconds > MIN_RATE_SECONDS).then_some(())?;
        Some(value.checked_sub(previous_value)? as f64 / seconds)
    }
}

/// The counters of one GPU.
#[derive(Debug, Default)]
pub(super) struct Counters {
    energy_millijoules: Counter,
    pcie_receive: Counter,
    pcie_transmit: Counter,
    nvlink_receive: Counter,
    nvlink_transmit: Counter,
}

/// NVLink is counted in KiB (nvml.h).
const KIB: f64 = 1024.0;

impl Counters {
    /// Mean power since the reading before, in watts.
    pub(super) fn mean_watts(&mut self, millijoules: Option<u64>, now: f64) -> Option<f32> {
        let watts = self.energy_millijoules.rate(millijoules, now)? / 1000.0;
        (watts <= 100_000.0).then(|| round_to_tenth_f32(watts))
    }

    /// Bytes a second over PCIe, from the counters of bytes received and transmitted.
    pub(super) fn pcie(&mut self, receive: Option<u64>, transmit: Option<u64>, now: f64) -> [Option<f64>; 2] {
        [self.pcie_receive.rate(receive, now), self.pcie_transmit.rate(transmit, now)]
            .map(|rate| rate.and_then(bytes_per_second))
    }

    /// Bytes a second over all NVLinks, from the counters of KiB received and transmitted.
    pub(super) fn nvlink(&mut self, receive: Option<u64>, transmit: Option<u64>, now: f64) -> [Option<f64>; 2] {
        [self.nvlink_receive.rate(receive, now), self.nvlink_transmit.rate(transmit, now)]
            .map(|rate| rate.and_then(|rate| bytes_per_second(rate * KIB)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_growth_over_time() {
        let mut counter = Counter::default();
        assert_eq!(counter.rate(Some(1000), 1.0), None);
        assert_eq!(counter.rate(Some(5000), 3.0), Some(2000.0));
        assert_eq!(counter.rate(Some(5001), 3.01), None, "too soon");
        assert_eq!(counter.rate(Some(10), 5.0), None, "it fell");
        assert_eq!(counter.rate(Some(12), 6.0), Some(2.0));
        assert_eq!(counter.rate(None, 7.0), None);
        assert_eq!(counter.rate(Some(99), 8.0), None, "nothing to compare with");
        counter.rate(Some(u64::MAX), 9.0);
        assert_eq!(counter.rate(Some(u64::MAX), 10.0), None, "no count");
    }

    #[test]
    fn rates_have_their_units() {
        let mut counters = Counters::default();
        counters.mean_watts(Some(1000), 1.0);
        assert_eq!(counters.mean_watts(Some(701_000), 3.0), Some(350.0));
        assert_eq!(counters.mean_watts(Some(u64::MAX), 5.0), None);
        counters.nvlink(Some(1), Some(10), 1.0);
        assert_eq!(counters.nvlink(Some(3), Some(10), 2.0), [Some(2048.0), Some(0.0)]);
        counters.pcie(Some(1), None, 1.0);
        assert_eq!(counters.pcie(Some(2001), None, 2.0), [Some(2000.0), None]);
    }
}
