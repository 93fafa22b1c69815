//! When the snapshots of each host should arrive, so that those of one interval arrive within a short window: the rows on
//! the screen then belong to one moment, and one frame shows them all.
//!
//! Only the controller's clock counts. A snapshot that arrives too early or too late is not delayed here; the controller asks
//! the probe to move its schedule. A host without a probe (`nvidia-smi`) samples when it can.

use std::time::Duration;
use tokio::time::Instant;

/// The part of the window that each host adds: 50 ms for 16 hosts. Snapshots that arrive all at once would make the
/// controller, and a jump host on the way, busy for a moment and idle for the rest of the interval.
const WINDOW_PER_HOST: Duration = Duration::from_micros(3125);
/// Smaller deviations are not corrected: they are the variation of the sampling time and of the network.
const TOLERANCE_SECONDS: f64 = 0.01;
/// The number of snapshots between two corrections. Their median leaves out the few that the network or the driver delayed.
const SNAPSHOTS_PER_CORRECTION: usize = 8;
/// After this many corrections in a row that changed nothing, no more are sent on this connection: the probe is an older one.
const MAX_FUTILE_CORRECTIONS: u32 = 3;

/// Returns the time within which the snapshots of one interval should arrive.
pub(crate) fn arrival_window(hosts: usize, interval: Duration) -> Duration {
    WINDOW_PER_HOST.saturating_mul(u32::try_from(hosts).unwrap_or(u32::MAX)).min(interval)
}

/// The place of one host in the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// A moment at which a window begins; the same for all hosts.
    pub(super) origin: Instant,
    /// The number of this host, from 0.
    pub(super) index: usize,
    /// The number of hosts.
    pub(super) hosts: usize,
}

impl Slot {
    /// Returns how much later than planned a snapshot arrived, in seconds from minus to plus half an interval.
    fn deviation_seconds(self, arrived: Instant, interval: Duration) -> f64 {
        let hosts = self.hosts.max(self.index + 1);
        let offset = arrival_window(hosts, interval).mul_f64(self.index as f64 / hosts as f64);
        let since = arrived.saturating_duration_since(self.origin).as_secs_f64() - offset.as_secs_f64();
        let interval = interval.as_secs_f64();
        since - (since / interval).round() * interval
    }
}

/// Compares the arrivals on one connection with the slot of the host, and computes the corrections of the probe's schedule.
#[derive(Debug)]
pub(super) struct Alignment {
    slot: Slot,
    interval: Duration,
    deviations: Vec<f64>,
    /// The last deviation that was judged, in seconds.
    last_deviation: Option<f64>,
    futile_corrections: u32,
}

impl Alignment {
    pub(super) fn new(slot: Slot) -> Self {
        Self { slot, interval: Duration::ZERO, deviations: Vec::new(), last_deviation: None, futile_corrections: 0 }
    }

    /// Records the arrival of a snapshot of the regular schedule. Returns by how many seconds the probe should move its
    /// schedule, if it should. The first snapshot at an interval is enough for that; later corrections need several.
    pub(super) fn record(&mut self, arrived: Instant, interval: Duration) -> Option<f64> {
        // A single host has nothing to be aligned with.
        if self.slot.hosts < 2 || interval.is_zero() {
            return None;
        }
        if interval != self.interval {
            *self = Self { interval, ..Self::new(self.slot) };
        } else if self.futile_corrections >= MAX_FUTILE_CORRECTIONS {
            return None;
        }
        self.deviations.push(self.slot.deviation_seconds(arrived, interval));
        let needed = if self.last_deviation.is_some() { SNAPSHOTS_PER_CORRECTION } else { 1 };
        if self.deviations.len() < needed {
            return None;
        }
        let deviation = median(&mut self.deviations);
        self.deviations.clear();
        let last = self.last_deviation.replace(deviation);
        if deviation.abs() <= TOLERANCE_SECONDS {
            self.futile_corrections = 0;
            return None;
        }
        let Some(last) = last else {
            // The next snapshot comes earlier, not later: half of a long interval would be a long time.
            return Some(-deviation.rem_euclid(interval.as_secs_f64()));
        };
        let is_futile = last.abs() > TOLERANCE_SECONDS && (deviation - last).abs() < last.abs() / 4.0;
        self.futile_corrections = if is_futile { self.futile_corrections + 1 } else { 0 };
        Some(-deviation)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn slot(index: usize, hosts: usize) -> Slot {
        Slot { origin: Instant::now(), index, hosts }
    }

    /// Returns the corrections, in milliseconds, for arrivals at these milliseconds.
    fn corrections(alignment: &mut Alignment, arrivals: impl IntoIterator<Item = u64>) -> Vec<Option<i64>> {
        let origin = alignment.slot.origin;
        let correction =
            |at| alignment.record(origin + ms(at), SECOND).map(|seconds| (seconds * 1000.0).round() as i64);
        arrivals.into_iter().map(correction).collect()
    }

    #[test]
    fn the_window_grows_with_the_hosts_up_to_the_interval() {
        assert_eq!(arrival_window(16, SECOND), ms(50));
        assert_eq!(arrival_window(64, 2 * SECOND), ms(200));
        assert_eq!(arrival_window(1000, SECOND), SECOND);
        assert_eq!(arrival_window(16, ms(250)), ms(50));
        assert_eq!(arrival_window(usize::MAX, SECOND), SECOND);
    }

    #[test]
    fn the_first_snapshot_moves_the_schedule_to_the_slot_before_it() {
        // The slot of host 8 of 16 begins 25 ms after the origin.
        for (arrival, correction) in
            [(25, None), (3325, Some(-300)), (3825, Some(-800)), (7034, None), (7036, Some(-11))]
        {
            assert_eq!(corrections(&mut Alignment::new(slot(8, 16)), [arrival]), [correction], "{arrival}");
        }
    }

    #[test]
    fn later_corrections_follow_the_median_of_eight() {
        let mut alignment = Alignment::new(slot(0, 2));
        assert_eq!(corrections(&mut alignment, [1300]), [Some(-300)]);
        // Two of eight snapshots are late, and the clock of the host drifts.
        let drifting = [2000, 3000, 4900, 5001, 6002, 7400, 8003, 9004];
        assert_eq!(corrections(&mut alignment, drifting), [None; 8]);
        let drifted = [10_020, 11_020, 12_021, 13_021, 14_021, 15_022, 16_022, 17_022];
        assert_eq!(corrections(&mut alignment, drifted).last(), Some(&Some(-21)));
    }

    #[test]
    fn a_probe_that_ignores_corrections_gets_no_more_of_them() {
        let mut alignment = Alignment::new(slot(0, 2));
        let corrections = corrections(&mut alignment, (1..100).map(|second| second * 1000 + 300));
        assert_eq!(corrections.iter().flatten().count(), 4);
        let last = corrections.iter().rposition(Option::is_some);
        assert_eq!(last, Some(3 * SNAPSHOTS_PER_CORRECTION));
    }

    #[test]
    fn an_unsteady_network_does_not_end_the_corrections() {
        let mut alignment = Alignment::new(slot(0, 2));
        let unsteady = (1..400).map(|second| second * 1000 + 20 + 25 * (second / 8 % 2));
        let corrections = corrections(&mut alignment, unsteady);
        assert!(corrections.iter().rposition(Option::is_some) > Some(380), "{corrections:?}");
    }

    #[test]
    fn a_new_interval_is_aligned_at_once() {
        let mut alignment = Alignment::new(slot(0, 2));
        let origin = alignment.slot.origin;
        assert!(alignment.record(origin + ms(1300), SECOND).is_some());
        assert_eq!(alignment.record(origin + ms(2000), SECOND), None);
        let seconds = alignment.record(origin + ms(2250), 2 * SECOND).expect("a correction");
        assert!((seconds + 0.25).abs() < 1e-6, "{seconds}");
    }

    #[test]
    fn a_single_host_and_an_unknown_interval_are_left_alone() {
        let mut alignment = Alignment::new(slot(0, 1));
        assert_eq!(alignment.record(alignment.slot.origin + ms(300), SECOND), None);
        let mut alignment = Alignment::new(slot(1, 2));
        assert_eq!(alignment.record(alignment.slot.origin + ms(300), Duration::ZERO), None);
    }
}
