//! Numbers as a GPU can have them. A driver that writes nonsense gets `None`, never a row that looks real.

use crate::probe::decimal::{round_to_tenth, round_to_tenth_f32};

/// A whole rack draws no more, milliwatts.
const MAX_MILLIWATTS: u32 = 100_000_000;
/// No link of today moves more in a second: ten terabytes.
const MAX_BYTES_PER_SECOND: f64 = 1e13;

/// A share from 0 to 100.
pub(super) fn percent(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|&percent| percent <= 100)
}

/// A share from 0 to 100 with decimals; measurements overshoot by a little.
pub(super) fn share(value: f64) -> Option<f32> {
    (-0.5..=105.0).contains(&value).then(|| round_to_tenth_f32(value.clamp(0.0, 100.0)))
}

/// The driver's number is unsigned, its meaning is not.
pub(super) fn celsius(degrees: u32) -> Option<i32> {
    Some(degrees as i32).filter(|degrees| (-100..=250).contains(degrees))
}

pub(super) fn watts(milliwatts: u32) -> Option<f32> {
    (milliwatts <= MAX_MILLIWATTS).then(|| round_to_tenth_f32(f64::from(milliwatts) / 1000.0))
}

pub(super) fn megahertz(clock: u32) -> Option<u32> {
    (clock <= 100_000).then_some(clock)
}

/// Fans may be asked for more than their rated speed.
pub(super) fn fan_percent(value: u32) -> Option<u16> {
    u16::try_from(value).ok().filter(|&percent| percent <= 300)
}

/// A PCIe generation or a number of lanes.
pub(super) fn link(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|&value| (1..=64).contains(&value))
}

/// An amount of memory; no GPU has a petabyte.
pub(super) fn bytes(value: u64) -> Option<u64> {
    (value < 1 << 50).then_some(value)
}

/// How often something happened in the life of a GPU.
pub(super) fn count(value: u64) -> Option<u64> {
    (value < 1 << 48).then_some(value)
}

/// A rate in whole bytes.
pub(super) fn bytes_per_second(rate: f64) -> Option<f64> {
    (0.0..=MAX_BYTES_PER_SECOND).contains(&rate).then_some(rate as u64 as f64)
}

/// Nanoseconds since the driver was loaded, in seconds; a century is none.
pub(super) fn seconds(nanoseconds: u64) -> Option<f64> {
    (nanoseconds < 3_000_000_000_000_000_000).then(|| round_to_tenth(nanoseconds as f64 / 1e9))
}

/// Millijoules since the driver was loaded, in joules; what a megawatt draws in ten years is none.
pub(super) fn joules(millijoules: u64) -> Option<f64> {
    (millijoules < 300_000_000_000_000_000).then(|| round_to_tenth(millijoules as f64 / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_none() {
        assert_eq!((percent(100), percent(101), percent(u32::MAX)), (Some(100), None, None));
        assert_eq!((celsius(u32::MAX), celsius(70), celsius(4000)), (Some(-1), Some(70), None));
        assert_eq!((watts(123_456), watts(u32::MAX)), (Some(123.5), None));
        assert_eq!((megahertz(1980), megahertz(u32::MAX)), (Some(1980), None));
        assert_eq!((link(5), link(0), link(255), link(u32::MAX)), (Some(5), None, None, None));
        assert_eq!((fan_percent(130), fan_percent(70_000)), (Some(130), None));
        assert_eq!((share(100.4), share(-0.01), share(f64::NAN), share(1e300)), (Some(100.0), Some(0.0), None, None));
        assert_eq!((bytes_per_second(12.7), bytes_per_second(-1.0), bytes_per_second(1e18)), (Some(12.0), None, None));
        assert_eq!((seconds(1_500_000_000), seconds(u64::MAX)), (Some(1.5), None));
        assert_eq!((joules(1500), joules(u64::MAX)), (Some(1.5), None));
    }
}
