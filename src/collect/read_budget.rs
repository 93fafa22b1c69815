//! Limits how much a session reads from its host, so that one host cannot occupy the controller.
//!
//! Each line costs time: a snapshot more than an echo, a large one more than a small one. Time comes back as time passes. A
//! session without credit reads nothing, so SSH flow control stops the host. A probe then skips samples, because its
//! snapshots are not acknowledged; no Xid event and no process facts get lost.

use crate::fleet::{MAX_BYTES_PER_SECOND, MAX_GPUS_PER_SECOND, MAX_PROCESSES_PER_SECOND, MAX_SNAPSHOTS_PER_SECOND};
use crate::wire::Message;
use std::time::Duration;
use tokio::time::Instant;

/// Other lines per second that a session reads. At the shortest interval there are four echoes.
const OTHER_LINES_PER_SECOND: u32 = 40;
/// The cost of this much time may be read at once, for example the lines that waited while the network was down.
const BURST: Duration = Duration::from_secs(4);

/// How much a session may read now.
#[derive(Debug)]
pub(super) struct ReadBudget {
    /// When all lines read so far are paid for.
    paid_at: Instant,
    /// Speed of the host's clock relative to real time; more than 1 for simulated hosts only.
    speed: f64,
}

impl ReadBudget {
    /// Starts with the full burst.
    pub(super) fn new(now: Instant, speed: f64) -> Self {
        Self { paid_at: now, speed: speed.max(1.0) }
    }

    /// Records that a line with this message was read.
    pub(super) fn charge(&mut self, message: &Message, line_bytes: usize, now: Instant) {
        self.paid_at = self.paid_at.max(now) + cost(message, line_bytes).div_f64(self.speed);
    }

    /// When the next line may be read, or `None` if it may be read now.
    pub(super) fn wait_until(&self, now: Instant) -> Option<Instant> {
        (self.paid_at > now + BURST).then(|| self.paid_at - BURST)
    }
}

/// Returns how much time a line uses up.
fn cost(message: &Message, line_bytes: usize) -> Duration {
    let per_second = |count: usize, limit: u32| Duration::from_secs(count as u64) / limit;
    // A process has an entry on each of its GPUs.
    let (processes, gpus) = match message {
        Message::Snapshot(snapshot) => {
            (snapshot.processes.len().max(snapshot.gpu_processes.len()), snapshot.gpus.len().max(snapshot.health.len()))
        }
        Message::Inventory(inventory) => (0, inventory.gpus.len()),
        _ => (0, 0),
    };
    let line = match message {
        Message::Snapshot(_) | Message::Inventory(_) => per_second(1, MAX_SNAPSHOTS_PER_SECOND),
        _ => per_second(1, OTHER_LINES_PER_SECOND),
    };
    line.max(per_second(line_bytes, MAX_BYTES_PER_SECOND))
        .max(per_second(processes, MAX_PROCESSES_PER_SECOND))
        .max(per_second(gpus, MAX_GPUS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{GpuInfo, GpuProcessColumns, GpuProcessReading, Inventory, Snapshot};

    fn snapshot(rows: usize) -> Message {
        let row = GpuProcessReading { pid: Some(1), ..GpuProcessReading::default() };
        let gpu_processes = GpuProcessColumns::from_rows(&vec![row; rows]);
        Message::Snapshot(Box::new(Snapshot { gpu_processes, ..Snapshot::default() }))
    }

    /// Returns the number of such lines that are read within a minute after the burst.
    fn lines_per_minute(message: &Message, line_bytes: usize, speed: f64) -> u32 {
        let mut now = Instant::now();
        let mut budget = ReadBudget::new(now, speed);
        while budget.wait_until(now).is_none() {
            budget.charge(message, line_bytes, now);
        }
        let end = now + Duration::from_secs(60);
        let mut lines = 0;
        while now < end {
            now = budget.wait_until(now).unwrap_or(now);
            budget.charge(message, line_bytes, now);
            lines += 1;
        }
        lines
    }

    #[test]
    fn lines_bytes_processes_and_gpus_are_limited() {
        assert_eq!(lines_per_minute(&snapshot(0), 0, 1.0), 60 * 8);
        assert_eq!(lines_per_minute(&snapshot(64), 6000, 1.0), 60 * 8, "a usual host");
        assert_eq!(lines_per_minute(&Message::Unknown, 10, 1.0), 60 * 40);
        assert_eq!(lines_per_minute(&Message::Unknown, 1 << 20, 1.0), 60);
        assert_eq!(lines_per_minute(&snapshot(1), 1 << 20, 1.0), 60);
        assert_eq!(lines_per_minute(&snapshot(8192), 1000, 1.0), 60 * 2);
        let gpus = Inventory { gpus: vec![GpuInfo::default(); 512], ..Inventory::default() };
        assert_eq!(lines_per_minute(&Message::Inventory(gpus), 1000, 1.0), 60 * 2);
        assert_eq!(lines_per_minute(&snapshot(64), 6000, 100.0), 60 * 800, "a fast simulation");
    }

    #[test]
    fn a_busy_host_at_the_shortest_interval_is_never_limited() {
        let mut now = Instant::now();
        let mut budget = ReadBudget::new(now, 1.0);
        for _ in 0..1000 {
            budget.charge(&snapshot(1024), 120_000, now);
            budget.charge(&Message::Echo { id: 1 }, 20, now);
            now += Duration::from_millis(250);
            assert_eq!(budget.wait_until(now), None);
        }
    }

    #[test]
    fn lines_that_waited_for_the_network_are_read_at_once() {
        let now = Instant::now();
        let mut budget = ReadBudget::new(now, 1.0);
        for _ in 0..32 {
            assert_eq!(budget.wait_until(now), None);
            budget.charge(&snapshot(64), 6000, now);
        }
    }
}
