//! What the driver remembers from before the first sample, thinned to one value a second.

use super::ask::Asker;
use super::plausible::{percent, watts};
use crate::probe::nvml::raw::{Entries, fields::sample_value};
use nvml_wrapper_sys::bindings as sys;
use std::time::{SystemTime, UNIX_EPOCH};

/// History is filled for a minute.
const SECONDS: usize = 60;
const MICROS: u64 = 1_000_000;
/// A buffer whose newest sample is older than this, or from the future, is no recent past.
const OLDEST_MICROS: u64 = 120 * MICROS;
/// Clocks may differ by so much.
const FUTURE_MICROS: u64 = 2 * MICROS;

/// One value a second for each of the driver's buffers, the oldest first; all end at the same moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Past {
    /// How long before the sample the last of each list was taken.
    pub(crate) age_seconds: f64,
    pub(crate) utilization_percent: Vec<Option<u8>>,
    pub(crate) memory_utilization_percent: Vec<Option<u8>>,
    pub(crate) power_watts: Vec<Option<f32>>,
}

/// A list as the driver has it: stamps in microseconds, and values.
type Samples = Vec<(u64, u32)>;

/// Reads all three buffers. `None` where there is nothing in them.
pub(super) fn read(ask: &mut Asker<'_>, words: &mut Vec<u64>, is_divided: bool) -> Option<Past> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_micros() as u64;
    let mut list = |kind| {
        let words = &mut *words;
        let read = ask.get(move |library, watch, handle| library.samples(watch, handle, kind, words));
        read.map_or_else(Vec::new, |(entries, value_type)| plausible(entries, value_type, now))
    };
    let power = list(sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES);
    // The driver refuses the shares of a divided GPU.
    let [utilization, memory] = if is_divided {
        [Vec::new(), Vec::new()]
    } else {
        [
            list(sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES),
            list(sys::nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES),
        ]
    };
    thinned(&power, &utilization, &memory, now)
}

fn plausible(entries: Entries<'_>, value_type: u32, now: u64) -> Samples {
    let pairs = entries.iter().filter_map(|entry| Some((*entry.first()?, *entry.get(1)?)));
    let recent = pairs
        .filter(|&(stamp, _)| stamp <= now.saturating_add(FUTURE_MICROS) && stamp >= now.saturating_sub(OLDEST_MICROS));
    recent.filter_map(|(stamp, word)| Some((stamp, u32::try_from(sample_value(value_type, word)?).ok()?))).collect()
}

fn thinned(power: &Samples, utilization: &Samples, memory: &Samples, now: u64) -> Option<Past> {
    let end = [power, utilization, memory].into_iter().flatten().map(|&(stamp, _)| stamp).max()?;
    Some(Past {
        age_seconds: now.saturating_sub(end) as f64 / MICROS as f64,
        utilization_percent: seconds(utilization, end, percent),
        memory_utilization_percent: seconds(memory, end, percent),
        power_watts: seconds(power, end, watts),
    })
}

/// The newest sample of each second before `end`, the oldest second first. Drivers do not promise an order.
fn seconds<T: Copy>(samples: &Samples, end: u64, value: impl Fn(u32) -> Option<T>) -> Vec<Option<T>> {
    let mut newest: Vec<Option<(u64, T)>> = Vec::new();
    for &(stamp, number) in samples {
        let back = ((end - stamp) / MICROS) as usize;
        let Some(value) = value(number).filter(|_| back < SECONDS) else { continue };
        if newest.len() <= back {
            newest.resize(back + 1, None);
        }
        if newest[back].is_none_or(|(known, _)| known < stamp) {
            newest[back] = Some((stamp, value));
        }
    }
    newest.into_iter().rev().map(|sample| sample.map(|(_, value)| value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    #[test]
    fn a_second_keeps_its_newest_sample() {
        let at = |seconds: f64| NOW - (seconds * 1e6) as u64;
        let power = vec![(at(0.5), 300_000), (at(0.9), 200_000), (at(1.7), 100_000), (at(3.6), 50_000)];
        let utilization = vec![(at(1.0), 97), (at(1.1), 101)];
        let past = thinned(&power, &utilization, &Vec::new(), NOW).expect("a past");
        assert_eq!(past.power_watts, [Some(50.0), None, Some(100.0), Some(300.0)]);
        assert_eq!(past.utilization_percent, [Some(97)]);
        assert_eq!((past.memory_utilization_percent.len(), past.age_seconds), (0, 0.5));
    }

    #[test]
    fn a_minute_is_enough_and_nonsense_is_left_out() {
        let minutes: Samples = (0..300).map(|second| (NOW - second * MICROS, 7)).collect();
        assert_eq!(seconds(&minutes, NOW, percent).len(), SECONDS);
        let words = [u64::MAX, 5, NOW - 1, 5, 0, 5, NOW + 60 * MICROS, 5, NOW, u64::from(u32::MAX)];
        assert_eq!(plausible(Entries { words: &words, stride: 2 }, 1, NOW), [(NOW - 1, 5), (NOW, u32::MAX)]);
        assert_eq!(plausible(Entries { words: &words, stride: 2 }, 99, NOW), []);
        assert_eq!(thinned(&Vec::new(), &Vec::new(), &Vec::new(), NOW), None);
    }
}
