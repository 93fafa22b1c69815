//! Two reports of NCCL RAS about one job, compared.

use super::evidence::MIN_APART;
use super::ranks::Ranks;
use crate::fleet::Moment;
use crate::wire::{Communicator, NamedRank, OperationCounts, RankAbsence, RasReport};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// `ncclInProgress` of `ncclResult_t`: the communicator is being made, which is no error.
const NCCL_IN_PROGRESS: i64 = 7;
/// `ncclRemoteError`: another process exited or the network failed.
const NCCL_REMOTE_ERROR: i64 = 6;

/// The latest report and an earlier one.
pub(super) struct RasReports<'a> {
    /// The latest report with communicators.
    pub last: &'a RasReport,
    /// The latest report at least [`MIN_APART`] before it, else the one before it.
    pub first: Option<&'a RasReport>,
    /// The time between them; zero with one report.
    pub apart: Duration,
}

/// The comparison of a communicator in two reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountChange {
    /// Every rank has the same counts.
    Frozen,
    /// A rank has launched an operation.
    Moved,
    /// Other ranks sent data, or the reports do not name the counts.
    Unknown,
}

/// Ranks of a communicator with different counts of an operation.
#[derive(Debug, Clone)]
pub(super) struct Mismatch<'a> {
    /// The communicator in the latest report.
    pub communicator: &'a Communicator,
    /// The operation.
    pub operation: &'a OperationCounts,
    /// The highest count.
    pub highest: u64,
    /// The lowest count.
    pub lowest: u64,
    /// The ranks with the lowest count that the report names. Text reports may name only those ahead; then it is empty.
    pub behind: Vec<&'a NamedRank>,
    /// Number of ranks with the lowest count.
    pub behind_count: u32,
    /// Whether no count has changed since the earlier report.
    pub change: CountChange,
}

impl<'a> RasReports<'a> {
    /// The reports of all ranks: any rank answers for the whole job. `None` without a report that names a communicator.
    pub(super) fn new(ranks: &Ranks<'a>) -> Option<Self> {
        let mut reports: Vec<(Moment, &RasReport)> = Vec::new();
        for rank in &ranks.list {
            for reading in &rank.evidence.readings {
                if let Some(report) = reading.examination.ras.as_deref()
                    && !report.communicators.is_empty()
                {
                    reports.push((reading.at, report));
                }
            }
        }
        reports.sort_by_key(|(at, _)| *at);
        let (last_at, last) = reports.pop()?;
        let far = reports.iter().rposition(|(at, _)| last_at.since(*at) >= MIN_APART);
        let first = far.or(reports.len().checked_sub(1)).and_then(|position| reports.get(position));
        Some(Self {
            last,
            first: first.map(|(_, report)| *report),
            apart: first.map_or(Duration::ZERO, |(at, _)| last_at.since(*at)),
        })
    }

    /// Whether there are two reports that are far enough apart.
    pub(super) fn is_twice(&self) -> bool {
        self.first.is_some() && self.apart >= MIN_APART
    }

    /// The source for a line of evidence.
    pub(super) fn source(&self) -> String {
        match self.first {
            Some(_) => format!("NCCL RAS, twice, {} s apart", self.apart.as_secs()),
            None => "NCCL RAS, once".to_owned(),
        }
    }

    /// The size of the largest communicator.
    pub(super) fn largest(&self) -> u32 {
        self.last.communicators.iter().map(|one| one.size).max().unwrap_or(0)
    }

    /// Whether a communicator is being made or torn down in either report. Counts prove nothing then.
    pub(super) fn is_changing(&self) -> bool {
        let communicators = self.last.communicators.iter().chain(self.first.iter().flat_map(|it| &it.communicators));
        communicators.into_iter().any(|one| one.initialising > 0 || one.finalising > 0)
    }

    /// Whether a report left communicators out.
    pub(super) fn is_cut(&self) -> bool {
        self.last.communicators_left_out > 0 || self.first.is_some_and(|first| first.communicators_left_out > 0)
    }

    /// Every communicator of the latest report, compared with the earlier one.
    pub(super) fn changes(&self) -> Vec<(&'a Communicator, CountChange)> {
        let earlier = self.first.map(|first| by_identity(first)).unwrap_or_default();
        let unique = by_identity(self.last);
        let communicators = self.last.communicators.iter();
        communicators
            .map(|one| {
                let identity = (one.hash.as_str(), one.secondary_hash.as_str());
                let is_unique = unique.get(&identity).is_some_and(Option::is_some);
                let before = earlier.get(&identity).copied().flatten().filter(|_| is_unique);
                let change = match (self.first, before) {
                    (Some(first), Some(before)) => change(before, one, first.is_json && self.last.is_json),
                    _ => CountChange::Unknown,
                };
                (one, change)
            })
            .collect()
    }

    /// The mismatches of the latest report.
    pub(super) fn mismatches(&self) -> Vec<Mismatch<'a>> {
        let mut found = Vec::new();
        for (communicator, change) in self.changes() {
            for operation in &communicator.operations {
                let values = operation.counts.iter().filter(|it| it.ranks > 0);
                let highest = values.clone().map(|it| it.count).max();
                // With many different counts the list of counts is cut, and only the names have the lowest one.
                let named_counts = operation.named.iter().filter_map(|named| named.count);
                let lowest = values.clone().map(|it| it.count).chain(named_counts).min();
                let Some((highest, lowest)) = highest.zip(lowest) else { continue };
                if highest <= lowest {
                    continue;
                }
                let behind = operation.named.iter().filter(|named| match named.count {
                    Some(count) => count == lowest,
                    // JSON reports are reduced to the ranks with the lowest count; text reports name any minority.
                    None => self.last.is_json,
                });
                let behind: Vec<&NamedRank> = behind.collect();
                let counted = values.filter(|it| it.count == lowest).map(|it| it.ranks).fold(0, u32::saturating_add);
                let named = (behind.len() as u32).saturating_add(operation.named_left_out);
                let behind_count = if counted > 0 { counted } else { named };
                found.push(Mismatch { communicator, operation, highest, lowest, behind, behind_count, change });
            }
        }
        found
    }

    /// Ranks that NCCL considers dead, and those that answered in neither report, with their communicators.
    pub(super) fn absent(&self) -> Vec<(&'a Communicator, &'a NamedRank, RankAbsence)> {
        let earlier = self.first.map(|first| by_identity(first)).unwrap_or_default();
        let mut found = Vec::new();
        for communicator in &self.last.communicators {
            let identity = (communicator.hash.as_str(), communicator.secondary_hash.as_str());
            let before = earlier.get(&identity).copied().flatten();
            for named in &communicator.missing_ranks {
                let was_absent = || {
                    before.is_some_and(|before| {
                        before.missing_ranks.iter().any(|one| {
                            one.rank == named.rank
                                && matches!(one.absence, Some(RankAbsence::Unresponsive | RankAbsence::Dead))
                        })
                    })
                };
                match named.absence {
                    Some(RankAbsence::Dead) => found.push((communicator, named, RankAbsence::Dead)),
                    Some(RankAbsence::Unresponsive) if self.is_twice() && was_absent() => {
                        found.push((communicator, named, RankAbsence::Unresponsive));
                    }
                    _ => {}
                }
            }
        }
        // One process is missing in each of its communicators: the largest one names it.
        found.sort_by_key(|(communicator, named, _)| {
            (std::cmp::Reverse(communicator.size), communicator.hash.clone(), named.rank)
        });
        let mut seen = BTreeSet::new();
        found.retain(|(communicator, named, _)| {
            let process = match (&named.host, named.pid) {
                (Some(host), Some(pid)) => (host.to_string(), pid),
                _ => (communicator.hash.to_string(), named.rank),
            };
            seen.insert(process)
        });
        found
    }

    /// Ranks with an asynchronous error. A rank that only saw the error of another one is left out if the other is known.
    pub(super) fn failed(&self) -> Vec<(&'a Communicator, &'a NamedRank, i64)> {
        let mut found: Vec<_> = self
            .last
            .communicators
            .iter()
            .flat_map(|communicator| communicator.failed_ranks.iter().map(move |named| (communicator, named)))
            .filter_map(|(communicator, named)| named.async_error.map(|error| (communicator, named, error)))
            .filter(|(_, _, error)| *error != 0 && *error != NCCL_IN_PROGRESS)
            .collect();
        if found.iter().any(|(_, _, error)| *error != NCCL_REMOTE_ERROR) {
            found.retain(|(_, _, error)| *error != NCCL_REMOTE_ERROR);
        }
        found.sort_by_key(|(communicator, named, _)| {
            (std::cmp::Reverse(communicator.size), communicator.hash.clone(), named.rank)
        });
        found
    }
}

/// The communicators by (hash, secondary hash); `None` for an identity that several of them have.
fn by_identity(report: &RasReport) -> HashMap<(&str, &str), Option<&Communicator>> {
    let mut communicators: HashMap<(&str, &str), Option<&Communicator>> = HashMap::new();
    for one in &report.communicators {
        let identity = (one.hash.as_str(), one.secondary_hash.as_str());
        communicators.entry(identity).and_modify(|known| *known = None).or_insert(Some(one));
    }
    communicators
}

fn change(before: &Communicator, now: &Communicator, is_json: bool) -> CountChange {
    let missing = |one: &Communicator| one.missing_ranks.iter().map(|named| named.rank).collect::<BTreeSet<_>>();
    if before.size != now.size
        || before.ranks != now.ranks
        || before.missing_left_out != now.missing_left_out
        || missing(before) != missing(now)
    {
        return CountChange::Unknown;
    }
    let of = |one: &'_ Communicator, name: &str| one.operations.iter().position(|it| it.name == *name);
    let mut change = CountChange::Frozen;
    for operation in &now.operations {
        let earlier = of(before, &operation.name).and_then(|position| before.operations.get(position));
        match earlier.map(|earlier| operation_change(earlier, operation, is_json)) {
            Some(CountChange::Frozen) => {}
            // A text report names an operation only while its counts differ, a JSON report once it was launched.
            Some(CountChange::Moved) | None => return CountChange::Moved,
            Some(CountChange::Unknown) => change = CountChange::Unknown,
        }
    }
    if before.operations.iter().any(|earlier| of(now, &earlier.name).is_none()) {
        return if is_json { CountChange::Unknown } else { CountChange::Moved };
    }
    // A text report without a mismatch names no count.
    if now.operations.is_empty() && !is_json { CountChange::Unknown } else { change }
}

fn operation_change(before: &OperationCounts, now: &OperationCounts, is_json: bool) -> CountChange {
    let highest = |one: &OperationCounts| one.counts.iter().map(|it| it.count).max();
    if highest(now) < highest(before) {
        return CountChange::Unknown;
    }
    let sorted = |one: &OperationCounts| {
        let mut counts: Vec<(u64, u32)> = one.counts.iter().map(|it| (it.count, it.ranks)).collect();
        counts.sort_unstable();
        counts
    };
    let same_counts = sorted(before) == sorted(now) && before.left_out == now.left_out;
    let same_fingerprint = match (before.fingerprint, now.fingerprint) {
        (Some(before), Some(now)) => Some(before == now),
        _ => None,
    };
    let named = |one: &OperationCounts| one.named.iter().map(|it| (it.rank, it.count)).collect::<BTreeSet<_>>();
    match (same_counts, same_fingerprint) {
        (false, Some(true)) => CountChange::Unknown,
        (false, _) | (true, Some(false)) => CountChange::Moved,
        (true, Some(true)) => CountChange::Frozen,
        (true, None) if is_json => CountChange::Unknown,
        (true, None) if named(before) == named(now) => CountChange::Frozen,
        (true, None) => CountChange::Unknown,
    }
}

impl Mismatch<'_> {
    /// The operations that the ranks behind have not launched: `AllReduce 61 to 64`.
    pub(super) fn operation_text(&self) -> String {
        let (name, first) = (&self.operation.name, self.lowest.saturating_add(1));
        if first >= self.highest {
            format!("{name} {}", self.highest)
        } else {
            format!("{name} {first} to {}", self.highest)
        }
    }

    /// Whether the report names every rank with the lowest count.
    pub(super) fn names_all_behind(&self) -> bool {
        self.operation.named_left_out == 0 && self.behind.len() as u64 == u64::from(self.behind_count)
    }
}
