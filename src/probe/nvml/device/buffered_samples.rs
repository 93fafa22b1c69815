//! What the driver remembers from before the first sample, thinned to one value a second.

use super::query::DeviceQuery;
use super::valid_range::{percent, watts};
use crate::probe::nvml::ffi::{Entries, fields::sample_value};
use nvml_wrapper_sys::bindings as sys;
use std::time::{SystemTime, UNIX_EPOCH};

/// History is filled for a minute.
const MAX_SECONDS: usize = 60;
const MICROS: u64 = 1_000_000;
/// A buffer whose newest sample is older than this, or from the future, is no recent past.
const MAX_AGE_MICROS: u64 = 120 * MICROS;
/// Clocks may differ by so much.
const MAX_FUTURE_MICROS: u64 = 2 * MICROS;

/// One value a second for each of the driver's buffers, the oldest first; all end at the same moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BufferedSamples {
    /// How long before the sample the last of each list was taken.
    pub(crate) age_seconds: f64,
    pub(crate) utilization_percent: Vec<Option<u8>>,
    pub(crate) memory_utilization_percent: Vec<Option<u8>>,
    pub(crate) power_watts: Vec<Option<f32>>,
}

/// A list as the driver has it: stamps in microseconds, and values.
type Samples = Vec<(u64, u32)>;

/// Reads all three buffers. `None` where there is nothing in them.
pub(super) fn read(query: &mut DeviceQuery<'_>, buffer: &mut Vec<u64>, is_mig_parent: bool) -> Option<BufferedSamples> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_micros() as u64;
    let mut list = |kind| {
        let buffer = &mut *buffer;
        let read = query.get(move |library, timer, handle| library.samples(timer, handle, kind, buffer));
        read.map_or_else(Vec::new, |(entries, value_type)| valid_samples(entries, value_type, now))
    };
    let power = list(sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES);
    // The driver refuses the shares of a divided GPU.
    let [utilization, memory] = if is_mig_parent {
        [Vec::new(), Vec::new()]
    } else {
        [
            list(sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES),
            list(sys::nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES),
        ]
    };
    downsample(&power, &utilization, &memory, now)
}

fn valid_samples(entries: Entries<'_>, value_type: u32, now: u64) -> Samples {
    let pairs = entries.iter().filter_map(|entry| Some((*entry.first()?, *entry.get(1)?)));
    let recent = pairs.filter(|&(timestamp, _)| {
        timestamp <= now.saturating_add(MAX_FUTURE_MICROS) && timestamp >= now.saturating_sub(MAX_AGE_MICROS)
    });
    recent
        .filter_map(|(timestamp, word)| Some((timestamp, u32::try_from(sample_value(value_type, word)?).ok()?)))
        .collect()
}

fn downsample(power: &Samples, utilization: &Samples, memory: &Samples, now: u64) -> Option<BufferedSamples> {
    let end = [power, utilization, memory].into_iter().flatten().map(|&(timestamp, _)| timestamp).max()?;
    Some(BufferedSamples {
        age_seconds: now.saturating_sub(end) as f64 / MICROS as f64,
        utilization_percent: newest_per_second(utilization, end, percent),
        memory_utilization_percent: newest_per_second(memory, end, percent),
        power_watts: newest_per_second(power, end, watts),
    })
}

/// The newest sample of each second before `end`, the oldest second first. Drivers do not promise an order.
fn newest_per_second<T: Copy>(samples: &Samples, end: u64, value: impl Fn(u32) -> Option<T>) -> Vec<Option<T>> {
    let mut newest: Vec<Option<(u64, T)>> = Vec::new();
    for &(timestamp, number) in samples {
        let age_seconds = ((end - timestamp) / MICROS) as usize;
        let Some(value) = value(number).filter(|_| age_seconds < MAX_SECONDS) else { continue };
        if newest.len() <= age_seconds {
            newest.resize(age_seconds + 1, None);
        }
        if newest[age_seconds].is_none_or(|(known, _)| known < timestamp) {
            newest[age_seconds] = Some((timestamp, value));
        }
    }
    newest.into_iter().rev().map(|sample| sample.map(|(_, value)| value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    #[test]
    fn each_second_keeps_its_newest_sample() {
        let at = |seconds: f64| NOW - (seconds * 1e6) as u64;
        let power = vec![(at(0.5), 300_000), (at(0.9), 200_000), (at(1.7), 100_000), (at(3.6), 50_000)];
        let utilization = vec![(at(1.0), 97), (at(1.1), 101)];
        let buffered = downsample(&power, &utilization, &Vec::new(), NOW).expect("a past");
        assert_eq!(buffered.power_watts, [Some(50.0), None, Some(100.0), Some(300.0)]);
        assert_eq!(buffered.utilization_percent, [Some(97)]);
        assert_eq!((buffered.memory_utilization_percent.len(), buffered.age_seconds), (0, 0.5));
    }

    #[test]
    fn a_minute_is_kept_and_invalid_samples_are_dropped() {
        let minutes: Samples = (0..300).map(|second| (NOW - second * MICROS, 7)).collect();
        assert_eq!(newest_per_second(&minutes, NOW, percent).len(), MAX_SECONDS);
        let buffer = [u64::MAX, 5, NOW - 1, 5, 0, 5, NOW + 60 * MICROS, 5, NOW, u64::from(u32::MAX)];
        assert_eq!(valid_samples(Entries { buffer: &buffer, stride: 2 }, 1, NOW), [(NOW - 1, 5), (NOW, u32::MAX)]);
        assert_eq!(valid_samples(Entries { buffer: &buffer, stride: 2 }, 99, NOW), []);
        assert_eq!(downsample(&Vec::new(), &Vec::new(), &Vec::new(), NOW), None);
    }
}
