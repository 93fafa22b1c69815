//! The dumps of PyTorch's Flight Recorder of several ranks, compared.
//!
//! Each rank numbers the collective operations of a process group from 1. A rank that waits in operation 6 waits for the ranks
//! of that group that have scheduled 5. Such a rank may itself wait in another group, so that the cause is one that waits nowhere.

use super::activity::frame_text;
use super::evidence::{JobEvidence, MIN_APART};
use super::ranks::Ranks;
use crate::fleet::Moment;
use crate::wire::{FlightRecorderDump, RecordedGroup, RecordedOperation};
use std::collections::BTreeMap;
use std::time::Duration;

/// A sample may show a hang that much later than it began.
const SAMPLING_SLACK: Duration = Duration::from_secs(60);

/// When the dumps were written, compared with the hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DumpAge {
    /// Since the hang began.
    OfThisHang,
    /// When the hang began is not known.
    Unknown,
    /// Before the hang began: they are about something else.
    Older,
}

/// The latest dump of each rank.
pub(super) struct Dumps<'a> {
    /// The position of the rank, its dump, and the age of the dump now.
    list: Vec<(usize, &'a FlightRecorderDump, Duration)>,
    /// Age of the oldest of them.
    pub age: Duration,
    /// That age, compared with the hang.
    pub of: DumpAge,
}

/// An operation that some ranks wait for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordedWait<'a> {
    /// Description of the process group, else its name.
    pub group: &'a str,
    /// The operation, as one of the waiting ranks recorded it.
    pub operation: &'a RecordedOperation,
    /// The positions of the ranks that wait in it.
    pub waiting: Vec<usize>,
}

/// The difference that explains the hang.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RecordedDifference<'a> {
    /// These ranks never scheduled the operation, and wait in no other one.
    NeverScheduled { wait: RecordedWait<'a>, behind: Vec<usize> },
    /// These ranks called another operation with the same number. The list has the positions of each side, the smallest first.
    OtherOperation { wait: RecordedWait<'a>, sides: Vec<(&'a RecordedOperation, Vec<usize>)> },
    /// Each rank that never scheduled the operation waits in another process group.
    WaitsElsewhere { wait: RecordedWait<'a>, behind: Vec<usize> },
}

impl<'a> Dumps<'a> {
    /// The latest dump of each rank. `None` if fewer than two ranks have one.
    pub(super) fn new(ranks: &Ranks<'a>, evidence: &JobEvidence) -> Option<Self> {
        let mut list = Vec::new();
        let mut oldest = Duration::ZERO;
        for (position, rank) in ranks.list.iter().enumerate() {
            let readings = rank.evidence.readings.iter();
            let dumps = readings.filter_map(|one| Some((one.at, one.examination.flight_recorder.as_deref()?)));
            let Some((at, dump)) = dumps.max_by_key(|(at, _)| *at) else { continue };
            let age = age(evidence.at, at, dump);
            oldest = oldest.max(age);
            list.push((position, dump, age));
        }
        // Another job of the account may have written a file at the default path, or at one that the program has changed.
        let is_certain = list.iter().all(|(_, dump, _)| !dump.is_default_path);
        let of = match evidence.lasted {
            Some(lasted) if is_certain && oldest <= lasted.saturating_add(SAMPLING_SLACK) => DumpAge::OfThisHang,
            Some(lasted) if !evidence.lasted_is_at_least && oldest > lasted.saturating_add(SAMPLING_SLACK) => {
                DumpAge::Older
            }
            _ => DumpAge::Unknown,
        };
        (list.len() >= 2).then_some(Self { list, age: oldest, of })
    }

    /// The last operation that a rank has scheduled in a group.
    pub(super) fn last_scheduled(&self, position: usize, wait: &RecordedWait<'_>) -> Option<&'a RecordedGroup> {
        let (_, dump, _) = self.list.iter().find(|(other, ..)| *other == position)?;
        dump.groups.iter().find(|group| label(group) == wait.group)
    }

    /// The difference that explains the hang: ranks that wait nowhere before ranks that took another path.
    pub(super) fn difference(&self) -> Option<RecordedDifference<'a>> {
        let mut groups: BTreeMap<(&str, &str), Vec<Member<'a>>> = BTreeMap::new();
        for (position, dump, age) in &self.list {
            for group in &dump.groups {
                let member = Member { position: *position, group, age: *age, is_overwritten: dump.is_overwritten };
                groups.entry((&group.name, &group.description)).or_default().push(member);
            }
        }
        let mut elsewhere = None;
        let mut other_operation = None;
        for members in groups.values().filter(|members| members.len() >= 2) {
            let waits = || members.iter().filter_map(|member| Some((member, long_wait(member.group)?)));
            let Some((waiter, operation)) = waits().max_by_key(|(_, operation)| operation.sequence) else { continue };
            let at_it = |one: &RecordedOperation| one.sequence == operation.sequence;
            let waiting = waits().filter(|(_, one)| at_it(one)).map(|(member, _)| member.position).collect();
            let wait = RecordedWait { group: label(waiter.group), operation, waiting };
            let began = waiter.age.saturating_add(waited(operation));
            let behind = members.iter().filter(|member| member.is_behind(operation.sequence, began));
            let behind: Vec<usize> = behind.map(|member| member.position).collect();
            let free: Vec<usize> = behind.iter().copied().filter(|position| !self.waits(*position)).collect();
            if !free.is_empty() {
                return Some(RecordedDifference::NeverScheduled { wait, behind: free });
            }
            let mut sides: BTreeMap<&str, (&RecordedOperation, Vec<usize>)> = BTreeMap::new();
            for (member, one) in waits().filter(|(_, one)| at_it(one)) {
                sides.entry(&one.name).or_insert((one, Vec::new())).1.push(member.position);
            }
            if sides.len() > 1 {
                let mut sides: Vec<_> = sides.into_values().collect();
                sides.sort_by_key(|(_, positions)| positions.len());
                let wait = wait.clone();
                other_operation.get_or_insert(RecordedDifference::OtherOperation { wait, sides });
            }
            if !behind.is_empty() {
                elsewhere.get_or_insert(RecordedDifference::WaitsElsewhere { wait, behind });
            }
        }
        other_operation.or(elsewhere)
    }

    /// Whether a rank waits in any operation.
    fn waits(&self, position: usize) -> bool {
        let mut dumps = self.list.iter().filter(|(other, ..)| *other == position);
        dumps.any(|(_, dump, _)| dump.groups.iter().any(|group| !group.waiting.is_empty()))
    }
}

/// A rank in a process group.
struct Member<'a> {
    position: usize,
    group: &'a RecordedGroup,
    /// Age of its dump.
    age: Duration,
    is_overwritten: bool,
}

impl Member<'_> {
    /// Whether the rank had not scheduled an operation that began so long ago when its dump was written, a while later. In an
    /// overwritten dump the operations of a group may all be missing.
    fn is_behind(&self, sequence: u64, began: Duration) -> bool {
        let is_less = match self.group.last_scheduled {
            Some(last) => last < sequence,
            None => !self.is_overwritten,
        };
        is_less && self.age.saturating_add(MIN_APART) <= began
    }
}

/// For how long an operation had waited when its dump was written.
fn waited(operation: &RecordedOperation) -> Duration {
    operation.waited_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// The age of a dump now.
fn age(now: Moment, read_at: Moment, dump: &FlightRecorderDump) -> Duration {
    let at_reading = Duration::try_from_secs_f64(dump.age_seconds).unwrap_or(Duration::MAX);
    at_reading.saturating_add(now.since(read_at))
}

/// The collective operation in which a rank waited for so long when the dump was written that it does not move.
fn long_wait(group: &RecordedGroup) -> Option<&RecordedOperation> {
    let oldest = group.waiting.iter().find(|operation| !operation.is_point_to_point)?;
    (oldest.waited_seconds? >= MIN_APART.as_secs_f64()).then_some(oldest)
}

/// The name of a group for people: the default group has the name `0` and the description `default_pg`.
fn label(group: &RecordedGroup) -> &str {
    if group.description.is_empty() { &group.name } else { &group.description }
}

/// The operation with its number: `all_reduce 6`.
pub(super) fn operation_text(operation: &RecordedOperation) -> String {
    let name = operation.name.rsplit(':').next().unwrap_or_default();
    format!("{name} {}", operation.sequence)
}

/// The line of the program that started an operation, outside of PyTorch: ` at train_step (train.py:41)`. Empty if it is not
/// known.
pub(super) fn at_place(operation: &RecordedOperation) -> String {
    let own = operation.frames.iter().find(|frame| !frame.file.contains("/torch/"));
    let frame = own.or_else(|| operation.frames.first());
    frame.map(|frame| format!(" at {}", frame_text(frame))).unwrap_or_default()
}

/// Ranks with the operations in which they wait: `rank 1 in all_gather 6, ranks 0, 2 in all_reduce 6`.
pub(super) fn sides_text(ranks: &Ranks<'_>, sides: &[(&RecordedOperation, Vec<usize>)]) -> String {
    let side = |(operation, positions): &(&RecordedOperation, Vec<usize>)| {
        format!("{} in {}{}", ranks.names(positions), operation_text(operation), at_place(operation))
    };
    sides.iter().map(side).collect::<Vec<_>>().join(", ")
}
