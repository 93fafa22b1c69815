//! The processes of one GPU: decodes the process lists and utilization samples of the driver.

use super::lists::{Entries, ProcessList};
use crate::wire::GpuProcessKind;
use std::collections::BTreeMap;

/// A process on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuProcess {
    /// `None` if the driver does not know it.
    pub(crate) pid: Option<u32>,
    pub(crate) kind: GpuProcessKind,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) utilization: ProcessUtilization,
}

/// Utilization of the engines of a GPU by one process, in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProcessUtilization {
    pub(crate) sm: Option<u8>,
    pub(crate) memory: Option<u8>,
    pub(crate) encoder: Option<u8>,
    pub(crate) decoder: Option<u8>,
}

/// The processes of one GPU, one row per pid, with an index by pid so that lookups stay cheap on GPUs with thousands of
/// processes.
#[derive(Debug, Default)]
pub(crate) struct ProcessRows {
    pub(crate) rows: Vec<GpuProcess>,
    row_by_pid: BTreeMap<u32, usize>,
}

impl ProcessRows {
    /// Adds the entries of one list. A process in several lists gets one row: compute and graphics become C+G, and an
    /// MPS client stays an MPS client.
    ///
    /// The words of an entry are the pid (the upper half is padding), the used memory and, from version 2 on, the two
    /// instance ids, which are not used.
    pub(crate) fn merge_list(&mut self, list: ProcessList, entries: Entries<'_>) {
        let kind = match list {
            ProcessList::Compute => GpuProcessKind::Compute,
            ProcessList::Graphics => GpuProcessKind::Graphics,
            ProcessList::Mps => GpuProcessKind::Mps,
        };
        for entry in entries.iter() {
            let (pid, memory_bytes) = (known_pid(entry[0] as u32), (entry[1] != u64::MAX).then_some(entry[1]));
            let next = self.rows.len();
            let row = pid.map_or(next, |pid| *self.row_by_pid.entry(pid).or_insert(next));
            match self.rows.get_mut(row) {
                Some(known) => {
                    known.kind = merge_kinds(known.kind, kind);
                    known.memory_bytes = known.memory_bytes.max(memory_bytes);
                }
                None => {
                    self.rows.push(GpuProcess { pid, kind, memory_bytes, utilization: ProcessUtilization::default() });
                }
            }
        }
    }
}

/// 0 and 2^32-1 stand for a process that the driver cannot identify, for example in a container.
fn known_pid(pid: u32) -> Option<u32> {
    (pid != 0 && pid != u32::MAX).then_some(pid)
}

fn merge_kinds(one: GpuProcessKind, other: GpuProcessKind) -> GpuProcessKind {
    match (one, other) {
        (GpuProcessKind::Mps, _) | (_, GpuProcessKind::Mps) => GpuProcessKind::Mps,
        (one, other) if one == other => one,
        _ => GpuProcessKind::ComputeAndGraphics,
    }
}

/// Samples that are older than the newest one by more than this, in microseconds, are stale.
const OVERLAP_MICROS: u64 = 1_000_000;
/// If the newest sample is older than this, all are stale. Drivers sample about six times a second.
const MAX_STALE_SECONDS: f64 = 2.0;

/// The position up to which the utilization samples of a GPU were read, in the clock of the driver.
#[derive(Debug, Default)]
pub(crate) struct UtilizationWindow {
    newest: u64,
    advanced_at: f64,
}

impl UtilizationWindow {
    /// The timestamp from which samples are requested. It is before the newest one, so that a process whose last sample
    /// is slightly older keeps its utilization.
    pub(crate) fn query_start(&self) -> u64 {
        self.newest.saturating_sub(OVERLAP_MICROS)
    }

    /// Writes the newest sample of each process into its row. Drops invalid samples: values above 100, unknown pids,
    /// and timestamps before the window. `now` is monotonic, in seconds.
    pub(crate) fn merge(&mut self, processes: &mut ProcessRows, entries: Entries<'_>, now: f64) {
        let ProcessRows { rows, row_by_pid } = processes;
        let known = || samples(entries).filter_map(|sample| Some((*row_by_pid.get(&sample.pid)?, sample)));
        let newest = known().map(|(_, sample)| sample.timestamp).max().unwrap_or(0);
        if newest > self.newest {
            *self = Self { newest, advanced_at: now };
        }
        if now - self.advanced_at > MAX_STALE_SECONDS {
            return;
        }
        let mut timestamps = vec![0; rows.len()];
        for (row, sample) in
            known().filter(|(_, sample)| sample.timestamp.saturating_add(OVERLAP_MICROS) >= self.newest)
        {
            if sample.timestamp >= timestamps[row] {
                timestamps[row] = sample.timestamp;
                rows[row].utilization = sample.utilization();
            }
        }
    }
}

/// One `nvmlProcessUtilizationSample_t`.
struct Sample {
    pid: u32,
    timestamp: u64,
    percents: [u32; 4],
}

impl Sample {
    fn utilization(&self) -> ProcessUtilization {
        let [sm, memory, encoder, decoder] = self.percents.map(|percent| Some(percent as u8));
        ProcessUtilization { sm, memory, encoder, decoder }
    }
}

/// Returns the samples with valid percentages.
fn samples(entries: Entries<'_>) -> impl Iterator<Item = Sample> {
    entries.iter().filter_map(|entry| {
        let [pid, timestamp, compute, video, ..] = *entry else { return None };
        let percents = [compute as u32, (compute >> 32) as u32, video as u32, (video >> 32) as u32];
        let is_valid = percents.iter().all(|&percent| percent <= 100);
        is_valid.then_some(Sample { pid: pid as u32, timestamp, percents })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(pids: &[u64]) -> ProcessRows {
        let mut processes = ProcessRows::default();
        let buffer: Vec<u64> = pids.iter().flat_map(|&pid| [pid, u64::MAX]).collect();
        processes.merge_list(ProcessList::Compute, entries_of_two(&buffer));
        processes
    }

    fn entries_of_two(buffer: &[u64]) -> Entries<'_> {
        Entries { buffer, stride: 2 }
    }

    fn sample(pid: u64, timestamp: u64, sm: u64, memory: u64) -> [u64; 4] {
        [pid, timestamp, sm | memory << 32, 0]
    }

    #[test]
    fn all_struct_versions_are_parsed() {
        for (stride, buffer) in [
            (2, vec![7, 1024, 8, 2048]),
            (3, vec![7, 1024, u64::MAX, 8, 2048, u64::MAX]),
            (4, vec![7, 1024, u64::MAX, 0, 8, 2048, u64::MAX, 0]),
        ] {
            let mut processes = ProcessRows::default();
            processes.merge_list(ProcessList::Compute, Entries { buffer: &buffer, stride });
            let seen: Vec<_> = processes.rows.iter().map(|process| (process.pid, process.memory_bytes)).collect();
            assert_eq!(seen, [(Some(7), Some(1024)), (Some(8), Some(2048))], "{stride} words");
        }
    }

    #[test]
    fn unknown_memory_and_unknown_pids_are_none() {
        let mut processes = ProcessRows::default();
        let buffer = [7, u64::MAX, 0, 10, u64::from(u32::MAX), 20, 0, 30];
        processes.merge_list(ProcessList::Compute, Entries { buffer: &buffer, stride: 2 });
        let seen: Vec<_> = processes.rows.iter().map(|process| (process.pid, process.memory_bytes)).collect();
        assert_eq!(seen, [(Some(7), None), (None, Some(10)), (None, Some(20)), (None, Some(30))]);
    }

    #[test]
    fn a_process_in_two_lists_is_one_row() {
        let mut processes = ProcessRows::default();
        processes.merge_list(ProcessList::Compute, entries_of_two(&[7, 10, 8, 10, 9, u64::MAX]));
        processes.merge_list(ProcessList::Graphics, entries_of_two(&[7, 20, 6, 5, 9, 5]));
        processes.merge_list(ProcessList::Mps, entries_of_two(&[8, 10]));
        let seen: Vec<_> = processes.rows.iter().map(|p| (p.pid, p.kind.as_str(), p.memory_bytes)).collect();
        assert_eq!(
            seen,
            [(Some(7), "C+G", Some(20)), (Some(8), "M", Some(10)), (Some(9), "C+G", Some(5)), (Some(6), "G", Some(5))]
        );
    }

    #[test]
    fn the_newest_valid_sample_of_a_listed_process_is_used() {
        let mut window = UtilizationWindow::default();
        let mut processes = rows(&[7, 8]);
        let buffer = [
            sample(7, 5_000_000, 10, 1),
            sample(7, 5_100_000, 97, 40),
            sample(8, 5_100_000, 1_000_000, 0),
            sample(9, 9_000_000, 5, 5),
        ]
        .concat();
        window.merge(&mut processes, Entries { buffer: &buffer, stride: 4 }, 0.0);
        assert_eq!((processes.rows[0].utilization.sm, processes.rows[0].utilization.memory), (Some(97), Some(40)));
        assert_eq!(processes.rows[1].utilization, ProcessUtilization::default());
        assert_eq!(window.query_start(), 4_100_000);
    }

    #[test]
    fn stale_samples_are_dropped() {
        let mut window = UtilizationWindow::default();
        let buffer = sample(7, 5_000_000, 97, 40);
        for (now, shown) in [(0.0, Some(97)), (1.9, Some(97)), (2.1, None)] {
            let mut processes = rows(&[7]);
            window.merge(&mut processes, Entries { buffer: &buffer, stride: 4 }, now);
            assert_eq!(processes.rows[0].utilization.sm, shown, "at {now}");
        }
        let mut processes = rows(&[7]);
        window.merge(&mut processes, Entries { buffer: &sample(7, 5_000_001, 3, 0), stride: 4 }, 9.0);
        assert_eq!(processes.rows[0].utilization.sm, Some(3));
    }
}
