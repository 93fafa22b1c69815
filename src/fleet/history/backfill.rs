//! What the driver remembers from before the first snapshot: it fills the beginning of the charts.

use super::{GpuMetric, History, MEAN_SECONDS, RAW_POINTS};
use crate::fleet::Moment;
use crate::wire::RecentPast;

/// Metrics that the driver keeps samples of.
const METRICS: [GpuMetric; 3] = [GpuMetric::Utilization, GpuMetric::MemoryUtilization, GpuMetric::Power];

impl History {
    /// Takes the recent past of GPUs that came with the snapshot of this time. For [`History::record`]'s caller, before
    /// it.
    ///
    /// Only what is newer than the last point counts, so that a new connection fills the gap and tells nothing twice.
    /// Seconds of which the driver knows nothing stay gaps.
    pub fn backfill(&mut self, monotonic_seconds: f64, now: Moment, pasts: &[RecentPast]) {
        if pasts.is_empty() {
            return;
        }
        let at = self.map(monotonic_seconds, now);
        let known_until = self.newest();
        let samples: Vec<DriverSamples> =
            pasts.iter().filter_map(|past| DriverSamples::new(past, monotonic_seconds)).collect();
        let longest = samples.iter().map(DriverSamples::oldest_seconds_ago).max().unwrap_or(0).min(RAW_POINTS);
        for seconds_ago in (1..=longest).rev() {
            let time = at - seconds_ago as f64;
            let is_known = known_until.is_some_and(|known| time <= known + 0.5);
            if time < 0.0 || is_known || samples.iter().all(|samples| samples.is_empty_at(seconds_ago)) {
                continue;
            }
            self.close_means((time / MEAN_SECONDS as f64) as u64);
            let slot = self.slot(time);
            for samples in &samples {
                let Some(track) = self.gpus.get_mut(samples.position) else { continue };
                for (metric, value) in METRICS.into_iter().zip(samples.values(seconds_ago)) {
                    track.series[metric as usize].push(slot, value);
                }
            }
        }
    }
}

/// The samples of one GPU, which end together.
struct DriverSamples<'a> {
    position: usize,
    /// Whole seconds from the last sample to the snapshot, one at least: the snapshot's own second is the snapshot's.
    age: usize,
    past: &'a RecentPast,
}

impl<'a> DriverSamples<'a> {
    /// `None` where it cannot be told when they end, or when that is too long ago.
    fn new(past: &'a RecentPast, monotonic_seconds: f64) -> Option<Self> {
        let age = monotonic_seconds - past.end_monotonic_seconds;
        let age = (age >= 0.0 && age < RAW_POINTS as f64).then(|| (age.round() as usize).max(1))?;
        Some(Self { position: usize::from(past.gpu), age, past })
    }

    /// How many seconds before the snapshot they begin.
    fn oldest_seconds_ago(&self) -> usize {
        let past = self.past;
        let lengths = [past.utilization_percent.len(), past.memory_utilization_percent.len(), past.power_watts.len()];
        // The last sample lies `age` seconds seconds_ago.
        lengths.into_iter().max().filter(|length| *length > 0).map_or(0, |length| length - 1 + self.age)
    }

    /// What was read `seconds_ago` seconds before the snapshot, in the order of [`METRICS`].
    fn values(&self, seconds_ago: usize) -> [Option<f32>; 3] {
        let past = self.past;
        [
            self.value(&past.utilization_percent, seconds_ago).map(f32::from),
            self.value(&past.memory_utilization_percent, seconds_ago).map(f32::from),
            self.value(&past.power_watts, seconds_ago),
        ]
    }

    fn value<T: Copy>(&self, list: &[Option<T>], seconds_ago: usize) -> Option<T> {
        let from_end = seconds_ago.checked_sub(self.age)? + 1;
        *list.get(list.len().checked_sub(from_end)?)?
    }

    fn is_empty_at(&self, seconds_ago: usize) -> bool {
        self.values(seconds_ago).iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, one_gpu, points, reading, record};
    use super::*;
    use crate::fleet::history::SeriesKey;
    use std::time::Duration;

    const UTILIZATION: SeriesKey = SeriesKey::Gpu(0, GpuMetric::Utilization);

    fn past(end: f64, utilization: Vec<Option<u8>>, power: Vec<Option<f32>>) -> RecentPast {
        RecentPast {
            gpu: 0,
            end_monotonic_seconds: end,
            utilization_percent: utilization,
            power_watts: power,
            ..RecentPast::default()
        }
    }

    #[test]
    fn a_chart_has_a_past_from_the_first_snapshot_on() {
        let mut history = one_gpu();
        // The program began a second ago; the host's driver remembers ten. The samples end together.
        let utilization = (1..=10).map(|second| Some(second * 10)).collect();
        let pasts = [past(499.8, utilization, vec![Some(500.0); 4])];
        history.backfill(500.0, at(1.0), &pasts);
        history.record(500.0, Duration::from_secs(1), at(1.0), &[reading(5)], &[]);
        let expected = [
            Some(10),
            Some(20),
            Some(30),
            Some(40),
            Some(50),
            Some(60),
            Some(70),
            Some(80),
            Some(90),
            Some(100),
            Some(5),
        ];
        assert_eq!(points(&history, UTILIZATION, 1.0, 11, 11), expected);
        let power = points(&history, SeriesKey::Gpu(0, GpuMetric::Power), 1.0, 11, 11);
        assert_eq!(power[..6], [None; 6], "a list that begins later");
        assert_eq!(power[6..], [Some(500), Some(500), Some(500), Some(500), Some(25)]);
        assert_eq!(points(&history, SeriesKey::Gpu(0, GpuMetric::Temperature), 1.0, 11, 11)[..10], [None; 10]);
    }

    #[test]
    fn it_reaches_into_the_means_and_no_further_than_the_ring() {
        let mut history = one_gpu();
        history.backfill(9000.0, at(2.0), &[past(9000.0, vec![Some(40); 4000], vec![])]);
        assert_eq!(history.points, RAW_POINTS);
        for second in 0..900_u32 {
            record(&mut history, 2.0 + f64::from(second), 1.0, 80);
        }
        let half_an_hour = points(&history, UTILIZATION, 901.0, 1800, 6);
        assert_eq!(half_an_hour, [40, 40, 80, 80, 80, 80].map(Some), "from ten minutes before the program began");
    }

    #[test]
    fn seconds_that_the_driver_does_not_know_stay_gaps() {
        let mut history = one_gpu();
        let mut utilization = vec![Some(50); 20];
        utilization[5..15].fill(None);
        history.backfill(100.0, at(100.0), &[past(99.0, utilization, vec![])]);
        let seconds = points(&history, UTILIZATION, 99.0, 20, 20);
        assert_eq!(seconds[..5], [Some(50); 5]);
        assert_eq!(seconds[5..15], [None; 10]);
        assert_eq!(seconds[15..], [Some(50); 5]);
    }

    #[test]
    fn a_new_connection_fills_the_gap_and_tells_nothing_twice() {
        let mut history = one_gpu();
        for second in 1..=100_u32 {
            record(&mut history, f64::from(second), 1.0, 20);
        }
        history.connected();
        history.backfill(7.0, at(120.0), &[past(7.0, vec![Some(90); 600], vec![])]);
        assert_eq!(history.points, 119, "the seconds from 101 to 119");
        record(&mut history, 120.0, 1.0, 20);
        let minute = points(&history, UTILIZATION, 120.0, 60, 6);
        assert_eq!(minute, [20, 20, 20, 20, 90, 83].map(Some));
    }

    #[test]
    fn absurd_pasts_leave_no_trace() {
        let mut history = one_gpu();
        for end in [f64::NAN, f64::INFINITY, -1e300, 1e300, 60.0] {
            history.backfill(50.0, at(10.0), &[past(end, vec![Some(50); 9], vec![])]);
        }
        let elsewhere = RecentPast { gpu: 700, ..past(50.0, vec![Some(50); 9], vec![]) };
        history.backfill(50.0, at(10.0), &[elsewhere, past(50.0, vec![], vec![])]);
        assert_eq!(points(&history, UTILIZATION, 10.0, 60, 6), [None; 6]);
    }
}
