//! Reduces the ranks and communicators of a report to a [`RasReport`] of bounded size.

use crate::wire::examination::{Communicator, NamedRank, OperationCounts, RanksAtCount, RasReport};
use crate::wire::limits::{MAX_COMMUNICATORS, MAX_COUNTS, MAX_NAMED_RANKS};
use crate::wire::{SafeText, limits};

/// `ncclSuccess` and `ncclInProgress` of `ncclResult_t` (nccl:src/nccl.h.in). All other values are errors.
const SUCCESS: i64 = 0;
/// An operation, such as the initialization, goes on.
pub(super) const IN_PROGRESS: i64 = 7;

/// Maximum length of a text in a report, in bytes. Hosts are IP addresses, hashes 16 to 37 characters.
pub(super) const MAX_TEXT_BYTES: usize = 64;

/// Maximum number of named ranks in the lists of a whole report, so that it stays below 64 kB.
const MAX_NAMED_IN_REPORT: usize = 256;

/// A report that has been read to its end.
#[derive(Debug)]
pub(super) struct Reduced {
    pub(super) report: RasReport,
    /// It names the wanted process.
    pub(super) has_process: bool,
    /// It contradicts itself: NCCL 2.26.2 to 2.28.9 may read beyond the end of a buffer for a report of several communicators of which
    /// one lacks a rank. Text then has invented communicators without ranks, and leaves others out (NVIDIA/nccl#1762).
    pub(super) is_damaged: bool,
    /// Number of processes of the job on each of its hosts, if the report says so. Only text reports do.
    pub(super) processes_per_host: Option<u32>,
}

/// Collects communicators.
#[derive(Debug)]
pub(super) struct Reduction {
    pub(super) report: RasReport,
    wanted_pid: u32,
    has_process: bool,
    pub(super) is_damaged: bool,
}

impl Reduction {
    pub(super) fn new(wanted_pid: u32, is_json: bool) -> Self {
        let report = RasReport { is_json, ..RasReport::default() };
        Self { report, wanted_pid, has_process: false, is_damaged: false }
    }

    /// Notes a process that the report names.
    pub(super) fn see_process(&mut self, pid: Option<u32>) {
        self.has_process |= pid == Some(self.wanted_pid);
    }

    /// Adds a communicator: those with a fault come first, then the largest.
    pub(super) fn add(&mut self, mut communicator: Communicator) {
        let missing = communicator.missing_left_out as usize + communicator.missing_ranks.len();
        // The size that a text report gives may belong to a row of its table that was left out.
        self.is_damaged |= self.report.is_json && (communicator.size == 0 || missing > communicator.size as usize);
        for operation in &mut communicator.operations {
            if operation.counts.len() < 2 {
                operation.named = Vec::new();
                operation.named_left_out = 0;
            }
        }
        let key = |communicator: &Communicator| (has_fault(communicator), communicator.size);
        let list = &mut self.report.communicators;
        let place = list.iter().position(|other| key(other) < key(&communicator)).unwrap_or(list.len());
        list.insert(place, communicator);
        if list.len() > MAX_COMMUNICATORS {
            list.pop();
            self.leave_out(1);
        }
    }

    /// Counts communicators that are not in the report.
    pub(super) fn leave_out(&mut self, communicators: u32) {
        let left_out = &mut self.report.communicators_left_out;
        *left_out = left_out.saturating_add(communicators);
    }

    /// Cuts the lists of named ranks to their limit for the whole report.
    pub(super) fn finish(mut self, processes_per_host: Option<u32>) -> Reduced {
        let mut rest = MAX_NAMED_IN_REPORT;
        let mut cut = |list: &mut Vec<NamedRank>, left_out: &mut u32| {
            *left_out = left_out.saturating_add(list.len().saturating_sub(rest) as u32);
            list.truncate(rest);
            rest -= list.len();
        };
        for communicator in &mut self.report.communicators {
            cut(&mut communicator.failed_ranks, &mut communicator.failed_left_out);
            cut(&mut communicator.missing_ranks, &mut communicator.missing_left_out);
            for operation in &mut communicator.operations {
                cut(&mut operation.named, &mut operation.named_left_out);
            }
        }
        let Self { report, has_process, is_damaged, .. } = self;
        Reduced { report, has_process, is_damaged, processes_per_host }
    }
}

fn has_fault(communicator: &Communicator) -> bool {
    !communicator.missing_ranks.is_empty()
        || !communicator.failed_ranks.is_empty()
        || communicator.missing_left_out + communicator.failed_left_out > 0
        || communicator.initialising > 0
        || communicator.finalising > 0
        || communicator.operations.iter().any(|operation| operation.counts.len() > 1)
}

/// A text of the report, cut to [`MAX_TEXT_BYTES`].
pub(super) fn short_text(text: &[u8]) -> SafeText {
    SafeText::from_bytes(&text[..text.len().min(MAX_TEXT_BYTES)])
}

/// Whether a value of `ncclResult_t` is an error.
pub(super) fn is_error(result: i64) -> bool {
    result != SUCCESS && result != IN_PROGRESS
}

/// Adds a rank to a list, or counts it if the list is full.
pub(super) fn name_rank(list: &mut Vec<NamedRank>, left_out: &mut u32, rank: NamedRank) {
    if list.len() < MAX_NAMED_RANKS {
        list.push(rank);
    } else {
        *left_out = left_out.saturating_add(1);
    }
}

/// Returns the operation with this name, as an index. `None` if the list is full.
pub(super) fn operation(operations: &mut Vec<OperationCounts>, name: &[u8]) -> Option<usize> {
    let name = short_text(name);
    let found = operations.iter().position(|operation| operation.name == name);
    if found.is_none() && operations.len() < limits::MAX_OPERATIONS {
        operations.push(OperationCounts { name, ..OperationCounts::default() });
        return Some(operations.len() - 1);
    }
    found
}

/// Adds ranks that have launched `count` operations.
///
/// The list keeps the highest and the lowest counts. A count that falls out has half of the list on either side, and would
/// fall out again, so the numbers of ranks of those that stay are exact.
pub(super) fn add_count(operation: &mut OperationCounts, count: u64, ranks: u32) {
    let counts = &mut operation.counts;
    let place = counts.iter().position(|other| other.count <= count).unwrap_or(counts.len());
    match counts.get_mut(place) {
        Some(other) if other.count == count => other.ranks = other.ranks.saturating_add(ranks),
        _ => counts.insert(place, RanksAtCount { count, ranks }),
    }
    if counts.len() > MAX_COUNTS {
        let removed = counts.remove(MAX_COUNTS / 2);
        operation.left_out = operation.left_out.saturating_add(removed.ranks);
    }
}

/// Adds a rank with its count, and names it if no rank has a lower one.
pub(super) fn add_rank(operation: &mut OperationCounts, rank: NamedRank, count: u64) {
    let lowest = operation.counts.last().map_or(u64::MAX, |lowest| lowest.count);
    if count < lowest {
        operation.named.clear();
        operation.named_left_out = 0;
    }
    add_count(operation, count, 1);
    let fingerprint = operation.fingerprint.unwrap_or_default();
    operation.fingerprint = Some(fingerprint.wrapping_add(hash(rank.rank, count)));
    if count <= lowest {
        let rank = NamedRank { count: Some(count), ..rank };
        name_rank(&mut operation.named, &mut operation.named_left_out, rank);
    }
}

/// Hashes a rank and its count with the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). The sum over all
/// ranks does not depend on their order, and is the same in every probe.
fn hash(rank: u32, count: u64) -> u64 {
    let mut value = count;
    for seed in [u64::from(rank) + 1, 0x9e37_79b9_7f4a_7c15] {
        value = value.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32) -> NamedRank {
        NamedRank { rank, ..NamedRank::default() }
    }

    #[test]
    fn the_highest_and_the_lowest_counts_are_exact() {
        let mut counted = OperationCounts::default();
        // 5 ranks at each of 40 counts, in an order that visits them again and again.
        for index in 0..200_u32 {
            add_rank(&mut counted, rank(index), u64::from(index * 7 % 40));
        }
        let counts: Vec<(u64, u32)> = counted.counts.iter().map(|entry| (entry.count, entry.ranks)).collect();
        assert_eq!(counts, [39, 38, 37, 36, 3, 2, 1, 0].map(|count| (count, 5)));
        assert_eq!(counted.left_out, 160);
        let named: Vec<u32> = counted.named.iter().map(|rank| rank.rank).collect();
        assert_eq!(named, [0, 40, 80, 120, 160]);
        assert!(counted.named.iter().all(|rank| rank.count == Some(0)));
    }

    #[test]
    fn a_fingerprint_depends_on_each_rank_but_not_on_the_order() {
        let fingerprint = |ranks: &[(u32, u64)]| {
            let mut counted = OperationCounts::default();
            for &(number, count) in ranks {
                add_rank(&mut counted, rank(number), count);
            }
            counted.fingerprint
        };
        let first = fingerprint(&[(0, 64), (1, 64), (2, 60)]);
        assert_eq!(first, fingerprint(&[(2, 60), (0, 64), (1, 64)]));
        for other in [[(0, 64), (1, 60), (2, 64)], [(0, 65), (1, 64), (2, 59)], [(0, 64), (1, 64), (2, 61)]] {
            assert_ne!(first, fingerprint(&other));
        }
        // It is compared with that of a probe of another version, so it never changes.
        assert_eq!(hash(7, 60), 0x31A7_008F_E720_F921);
    }

    #[test]
    fn communicators_with_a_fault_come_first_and_then_the_largest() {
        let mut reduction = Reduction::new(1, true);
        for size in 0..100 {
            let initialising = u32::from(size == 5);
            reduction.add(Communicator { size, initialising, ..Communicator::default() });
        }
        let report = reduction.finish(None).report;
        let sizes: Vec<u32> = report.communicators.iter().map(|communicator| communicator.size).collect();
        assert_eq!((sizes.len(), &sizes[..3], sizes[63]), (64, &[5, 99, 98][..], 37));
        assert_eq!(report.communicators_left_out, 36);
    }

    #[test]
    fn the_named_ranks_of_a_report_are_limited() {
        let mut reduction = Reduction::new(1, true);
        for size in 0..32 {
            let mut communicator = Communicator { size, ..Communicator::default() };
            for number in 0..20 {
                name_rank(&mut communicator.missing_ranks, &mut communicator.missing_left_out, rank(number));
            }
            reduction.add(communicator);
        }
        let communicators = reduction.finish(None).report.communicators;
        assert_eq!(communicators.iter().map(|one| one.missing_ranks.len()).sum::<usize>(), MAX_NAMED_IN_REPORT);
        assert!(communicators.iter().all(|one| one.missing_ranks.len() as u32 + one.missing_left_out == 20));
    }
}
