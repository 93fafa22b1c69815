//! The verdict table: each function is one row, or rows that share their conditions.

use super::activity::{
    GpuActivity, HostWork, StackChange, StackClass, Twice, frame_text, latest_stack, log_moves, moves, stack_change,
    stack_class, stacks, twice,
};
use super::evidence::{JobEvidence, RankEvidence, RankReading};
use super::evidence_lines::{lines, missing};
use super::facts::{Absence, Basis, Conclusion, Facts, Sign};
use super::flight_recorder::{DumpAge, RecordedDifference, operation_text, sides_text};
use super::log_lines::LogSign;
use super::ranks::number_list;
use super::ras::{CountChange, Mismatch, RasReports};
use super::verdict::{Culprit, CulpritRank, CulpritReason, MAX_CULPRIT_RANKS, Outcome, Verdict};
use crate::wire::{ProcessState, SafeText};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Judges a job. The result does not depend on the order of the ranks.
pub fn judge(evidence: &JobEvidence) -> Verdict {
    let facts = Facts::new(evidence);
    let conclusion = conclude(&facts);
    Verdict {
        outcome: conclusion.outcome,
        evidence: lines(&facts, &conclusion),
        missing: missing(&facts),
        sentence: SafeText::from(conclusion.sentence),
        culprit: conclusion.culprit,
    }
}

fn conclude(facts: &Facts<'_>) -> Conclusion {
    if let Some(error) = nccl_error(facts) {
        return error;
    }
    if facts.counts_moved() {
        return not_hung("ranks launch operations", Basis::Ras);
    }
    let mut found: Vec<Conclusion> = Vec::new();
    for row in [absent_rank, watchdog, recorded_difference, counts_differ] {
        match row(facts) {
            Some(conclusion) if matches!(conclusion.outcome, Outcome::Proven | Outcome::WaitsForRank) => {
                return conclusion;
            }
            Some(conclusion) => found.push(conclusion),
            None => {}
        }
    }
    if let Some(conclusion) = host_moves(facts) {
        return conclusion;
    }
    for row in [stopped_rank, odd_stack, lossy_network, nothing_moves, log_hint, odd_wait_channel] {
        match row(facts) {
            Some(conclusion) if conclusion.outcome == Outcome::WaitsForRank => return conclusion,
            Some(conclusion) => found.push(conclusion),
            None => {}
        }
    }
    found.push(suspicion(facts));
    // The first of the strongest: the rows are in the order of their evidence for a name.
    let strength = |outcome: Outcome| match outcome {
        Outcome::Proven => 0,
        Outcome::Likely => 1,
        Outcome::Suspected => 2,
        _ => 3,
    };
    let best = found.into_iter().min_by_key(|conclusion| (strength(conclusion.outcome), conclusion.culprit.is_none()));
    best.unwrap_or_else(|| weak(Outcome::NothingKnown, "nothing could be read that says more"))
}

/// A rank has an asynchronous NCCL error: its communicator has failed. One report proves that. It is only likely if a second one
/// shows that ranks still launch operations, perhaps in communicators that work.
fn nccl_error(facts: &Facts<'_>) -> Option<Conclusion> {
    let ras = facts.ras.as_ref()?;
    let failed = ras.failed();
    let (_, _, error) = failed.first()?;
    let text = format!("has NCCL error {error} ({})", nccl_error_name(*error));
    let ranks =
        failed.iter().map(|(communicator, named, _)| facts.ranks.culprit_of(named, communicator, ras.largest()));
    let culprit = facts.culprit(unique(ranks.collect()), CulpritReason::AsyncError, &text, None);
    let outcome = if facts.counts_moved() { Outcome::Likely } else { Outcome::Proven };
    let sentence = format!("{} {text}", described(&culprit));
    Some(named(facts, outcome, culprit, sentence, Basis::Ras))
}

/// `ncclResult_t` of nccl.h.
fn nccl_error_name(error: i64) -> &'static str {
    match error {
        1 => "unhandled CUDA error",
        2 => "system error",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "remote process exited or network error",
        _ => "unknown",
    }
}

/// A rank is dead or stopped, or answered in neither report, and the others spin.
fn absent_rank(facts: &Facts<'_>) -> Option<Conclusion> {
    let ras = facts.ras.as_ref()?;
    let mut absent = facts.absent();
    absent.retain(|(_, _, absence)| *absence != Absence::Runs);
    if absent.iter().any(|(_, _, absence)| *absence == Absence::Dead) {
        absent.retain(|(_, _, absence)| *absence == Absence::Dead);
    }
    let (_, _, absence) = absent.first()?;
    let is_stopped_now = absent.iter().any(|(_, _, absence)| *absence == Absence::Stopped);
    let ranks =
        absent.iter().map(|(communicator, named, _)| facts.ranks.culprit_of(named, communicator, ras.largest()));
    let ranks = unique(ranks.collect());
    let others = facts.others(&positions_of(facts, &ranks));
    let (reason, text) = match absence {
        Absence::Dead => (CulpritReason::Dead, "is dead"),
        _ if is_stopped_now || ranks.iter().any(|rank| is_stopped(facts, rank)) => {
            (CulpritReason::Unresponsive, "is stopped")
        }
        _ => (CulpritReason::Unresponsive, "does not answer"),
    };
    let is_proven = facts.some_spin(&others) && !facts.some_progress(&others);
    let outcome = if is_proven { Outcome::Proven } else { Outcome::Likely };
    let culprit = facts.culprit(ranks, reason, text, None);
    let waiting = if is_proven { ", and the others wait for it" } else { "" };
    let sentence = format!("{} {text}{waiting}", described(&culprit));
    Some(named(facts, outcome, culprit, sentence, Basis::Ras))
}

fn is_stopped(facts: &Facts<'_>, culprit: &CulpritRank) -> bool {
    positions_of(facts, std::slice::from_ref(culprit)).iter().any(|position| state_is_stopped(facts.rank(*position)))
}

fn state_is_stopped(rank: &RankEvidence) -> bool {
    let state = |reading: &RankReading| {
        reading.examination.process.as_deref().and_then(|process| process.main_thread.as_ref()?.state)
    };
    let is_stopped = |state| matches!(state, ProcessState::Stopped | ProcessState::Traced | ProcessState::Zombie);
    twice(rank, state).is_some_and(|it| is_stopped(it.first) && is_stopped(it.last))
}

/// PyTorch's watchdog gave up on an operation. It names the ranks of a desynchronisation, else the culprit is the rank that
/// enqueued the fewest operations.
fn watchdog(facts: &Facts<'_>) -> Option<Conclusion> {
    let everyone = facts.others(&[]);
    let computes = everyone.iter().any(|position| facts.gpus[*position] == GpuActivity::Works);
    if computes || !facts.signs.iter().any(Sign::is_timeout) {
        return None;
    }
    // The lines may be those of an earlier run in the same file.
    if everyone.iter().any(|position| moves(facts.rank(*position)).is_some()) {
        return None;
    }
    let operation = facts.signs.iter().find_map(|sign| match &sign.found.sign {
        LogSign::WatchdogTimeout { operation, .. } if !operation.is_empty() => Some(operation.as_str()),
        _ => None,
    });
    let gave_up = match operation {
        Some(operation) => format!("PyTorch's watchdog gave up on {operation}"),
        None => "PyTorch's watchdog gave up on an operation".to_owned(),
    };
    let (ranks, text) = desync_ranks(facts).or_else(|| lowest_enqueued(facts)).unwrap_or_default();
    if ranks.is_empty() {
        let sentence = format!("{gave_up}; the log does not name the culprit");
        return Some(Conclusion {
            outcome: Outcome::Proven,
            culprit: None,
            positions: Vec::new(),
            sentence,
            basis: Basis::Log,
        });
    }
    let ranks: Vec<CulpritRank> = ranks
        .iter()
        .map(|rank| match facts.ranks.with_world_rank(*rank) {
            Some(position) => facts.ranks.culprit_at(position),
            None => CulpritRank { world_rank: Some(*rank), ..CulpritRank::default() },
        })
        .collect();
    let culprit = facts.culprit(ranks, CulpritReason::Log, &text, operation);
    let sentence = format!("{gave_up}: {} {text}", described(&culprit));
    Some(named(facts, Outcome::Proven, culprit, sentence, Basis::Log))
}

fn desync_ranks(facts: &Facts<'_>) -> Option<(Vec<u32>, String)> {
    let desyncs = facts.signs.iter().filter_map(|sign| match &sign.found.sign {
        LogSign::Desync { ranks, text } => Some((ranks, text)),
        _ => None,
    });
    let ranks: BTreeSet<u32> = desyncs.clone().flat_map(|(ranks, _)| ranks.iter().copied()).collect();
    let (_, text) = desyncs.min_by_key(|(ranks, text)| (ranks.as_slice(), text.as_str()))?;
    Some((ranks.into_iter().collect(), text.to_string()))
}

/// The last operation that a rank enqueued, and the last one that ended.
type Work = (u64, Option<u64>);

/// The ranks that enqueued the fewest operations of a process group, if the others have completed as many. Ranks that wait for one
/// that wrote no line have enqueued different numbers, too.
fn lowest_enqueued(facts: &Facts<'_>) -> Option<(Vec<u32>, String)> {
    let statuses: Vec<(&str, Work, u32)> = facts
        .signs
        .iter()
        .filter_map(|sign| match &sign.found.sign {
            LogSign::WorkStatus { group, last_enqueued, last_completed } => {
                let rank = sign.found.rank.or_else(|| facts.ranks.list[sign.about?].world_rank)?;
                Some((group.as_str(), (*last_enqueued, *last_completed), rank))
            }
            _ => None,
        })
        .collect();
    let groups: BTreeSet<&str> = statuses.iter().map(|(group, _, _)| *group).collect();
    groups.into_iter().find_map(|group| {
        // A rank may write its status more than once: its last work counts.
        let mut latest = BTreeMap::<u32, Work>::new();
        for (_, work, rank) in statuses.iter().filter(|(one, _, _)| *one == group) {
            let known = latest.entry(*rank).or_default();
            *known = (*known).max(*work);
        }
        let enqueued = || latest.values().map(|(enqueued, _)| *enqueued);
        let (lowest, highest) = (enqueued().min()?, enqueued().max()?);
        let others = || latest.values().filter(|(enqueued, _)| *enqueued > lowest);
        let is_behind = others().all(|(_, completed)| completed.is_some_and(|completed| lowest <= completed));
        let behind = latest.iter().filter(|(_, (enqueued, _))| *enqueued == lowest).map(|(rank, _)| *rank);
        (lowest < highest && is_behind)
            .then(|| (behind.collect(), format!("enqueued {lowest} operations, while others enqueued {highest}")))
    })
}

/// Dumps of the Flight Recorder show an operation in which some ranks wait and that others never scheduled.
fn recorded_difference(facts: &Facts<'_>) -> Option<Conclusion> {
    let dumps = facts.dumps.as_ref().filter(|dumps| dumps.of != DumpAge::Older)?;
    let difference = dumps.difference()?;
    let everyone = facts.others(&[]);
    if everyone.iter().any(|position| facts.gpus[*position] == GpuActivity::Works) {
        return None;
    }
    let (positions, is_certain) = match &difference {
        RecordedDifference::NeverScheduled { behind, .. } => (behind.clone(), true),
        RecordedDifference::WaitsElsewhere { behind, .. } => (behind.clone(), false),
        RecordedDifference::OtherOperation { sides, .. } => {
            // A minority took another path than the others; else both sides may be right.
            let is_minority = sides.len() == 2 && sides[0].1.len() < sides[1].1.len();
            let shown = if is_minority { &sides[..1] } else { &sides[..] };
            (shown.iter().flat_map(|(_, positions)| positions.iter().copied()).collect(), true)
        }
    };
    if let Some(working) = working(facts, &positions) {
        return Some(working);
    }
    if facts.others(&positions).iter().any(|other| moves(facts.rank(*other)).is_some()) || any_log_moves(facts) {
        return None;
    }
    let (reason, text, operation) = match &difference {
        RecordedDifference::NeverScheduled { wait, .. } => {
            let operation = operation_text(wait.operation);
            let ranks = facts.ranks.names(&wait.waiting);
            let verb = if wait.waiting.len() == 1 { "waits" } else { "wait" };
            (CulpritReason::Behind, format!("never scheduled {operation}, in which {ranks} {verb}"), operation)
        }
        RecordedDifference::WaitsElsewhere { wait, .. } => {
            let operation = operation_text(wait.operation);
            let verb = if positions.len() == 1 { "waits" } else { "wait" };
            let text = format!("never scheduled {operation} of {}, and {verb} in another process group", wait.group);
            (CulpritReason::OtherPath, text, operation)
        }
        RecordedDifference::OtherOperation { sides, .. } => {
            let text = format!("took different paths: {}", sides_text(&facts.ranks, sides));
            (CulpritReason::OtherPath, text, operation_text(sides[0].0))
        }
    };
    let ranks = positions.iter().map(|position| facts.ranks.culprit_at(*position)).collect();
    let outcome = if is_certain && dumps.of == DumpAge::OfThisHang { Outcome::Proven } else { Outcome::Likely };
    let culprit = facts.culprit(ranks, reason, &text, Some(&operation));
    let sentence = format!("{} {text}", described(&culprit));
    Some(named(facts, outcome, culprit, sentence, Basis::FlightRecorder))
}

/// The counts of a communicator differ and none moved.
fn counts_differ(facts: &Facts<'_>) -> Option<Conclusion> {
    let ras = facts.ras.as_ref().filter(|ras| !ras.is_changing())?;
    let mut mismatches = ras.mismatches();
    let is_frozen = |mismatch: &Mismatch<'_>| ras.is_twice() && mismatch.change == CountChange::Frozen;
    if mismatches.iter().any(is_frozen) {
        mismatches.retain(is_frozen);
    }
    let mismatch = primary(facts, &mismatches)?.clone();
    let is_twice = is_frozen(&mismatch);
    if mismatch.behind.is_empty() {
        return Some(unnamed_behind(facts, ras, &mismatch, is_twice));
    }
    let other_path = mismatches.iter().find(|other| takes_other_path(&mismatch, other));
    let sides: Vec<&Mismatch<'_>> = std::iter::once(&mismatch).chain(other_path).collect();
    let mut ranks = Vec::new();
    for side in &sides {
        for named in &side.behind {
            let mut culprit = facts.ranks.culprit_of(named, side.communicator, ras.largest());
            culprit.operation = other_path.is_some().then(|| SafeText::from(side.operation_text()));
            ranks.push(culprit);
        }
    }
    let ranks = unique(ranks);
    let positions = positions_of(facts, &ranks);
    let others = if other_path.is_some() { facts.others(&[]) } else { facts.others(&positions) };
    if let Some(working) = working(facts, &positions) {
        return Some(working);
    }
    // Progress of a rank that is not behind, or of the log, is for `host_moves`.
    if facts.others(&positions).iter().any(|other| moves(facts.rank(*other)).is_some()) || any_log_moves(facts) {
        return None;
    }
    let is_known = positions.len() == ranks.len() && sides.iter().all(|side| side.names_all_behind());
    let is_idle = positions.iter().all(|position| facts.work[*position] == HostWork::Idle);
    let spins = if ras.is_cut() { facts.all_spin(&others) } else { facts.some_spin(&others) };
    // A model server at rest: rank 0 waits for requests, and the others wait for it in a broadcast.
    let classes = || positions.iter().map(|position| facts.class(*position));
    let may_rest =
        facts.evidence.serves_models && classes().any(|class| class.is_none_or(|it| it == StackClass::Requests));
    let rests = facts.evidence.serves_models && classes().any(|class| class == Some(StackClass::Requests));
    let are_all_seen = positions.len() == ranks.len();
    if other_path.is_none() && !rests && is_majority_behind(facts, &mismatch, &positions, are_all_seen) {
        return Some(few_ahead(&mismatch, is_twice || spins));
    }
    let outcome = if rests || (!is_twice && !spins) {
        Outcome::Suspected
    } else if is_twice && is_known && is_idle && spins && !may_rest && !facts.some_progress(&others) {
        Outcome::Proven
    } else {
        Outcome::Likely
    };
    let (reason, text) = match other_path {
        Some(other) => {
            let text = format!(
                "took different paths: {} without {}, the others without {}",
                rank_numbers(&mismatch),
                mismatch.operation_text(),
                other.operation_text()
            );
            (CulpritReason::OtherPath, text)
        }
        None => (CulpritReason::Behind, format!("never launched {}", mismatch.operation_text())),
    };
    let culprit = facts.culprit(ranks, reason, &text, Some(&mismatch.operation_text()));
    let mut sentence = format!("{} {text}", described(&culprit));
    if reason == CulpritReason::Behind {
        let ahead = mismatch.communicator.ranks.saturating_sub(mismatch.behind_count);
        let _ = write!(sentence, ", which {ahead} other {} did", if ahead == 1 { "rank" } else { "ranks" });
    }
    if rests {
        sentence += "; it waits for requests";
    }
    Some(named(facts, outcome, culprit, sentence, Basis::Ras))
}

/// Whether most ranks of a communicator are behind, and they may wait for other ranks: a rank that skips the creation of another
/// communicator goes on alone, while the others wait for it where RAS sees nothing. Their stacks may show that they do something else.
fn is_majority_behind(facts: &Facts<'_>, mismatch: &Mismatch<'_>, positions: &[usize], are_all_seen: bool) -> bool {
    let may_wait =
        |position: &usize| matches!(facts.class(*position), None | Some(StackClass::Collective | StackClass::Other));
    2 * u64::from(mismatch.behind_count) > u64::from(mismatch.communicator.ranks)
        && (!are_all_seen || positions.iter().any(may_wait))
}

/// Most ranks are behind: either side may be the cause. The ranks ahead are named if the report leaves no doubt who they are.
fn few_ahead(mismatch: &Mismatch<'_>, is_firm: bool) -> Conclusion {
    let communicator = mismatch.communicator;
    let (operation, count) = (mismatch.operation_text(), mismatch.behind_count);
    let named = mismatch.behind.len() + communicator.missing_ranks.len();
    let ahead_count = u64::from(communicator.size).saturating_sub(named as u64);
    let counts = mismatch.operation.counts.iter().filter(|it| it.ranks > 0).count();
    let is_known = mismatch.names_all_behind()
        && counts == 2
        && mismatch.operation.left_out == 0
        && communicator.missing_left_out == 0
        && (1..=MAX_CULPRIT_RANKS as u64).contains(&ahead_count);
    let sentence = if is_known {
        let elsewhere = || mismatch.behind.iter().copied().chain(&communicator.missing_ranks).map(|named| named.rank);
        let ahead: Vec<u32> = (0..communicator.size).filter(|rank| elsewhere().all(|other| other != *rank)).collect();
        let word = if ahead.len() == 1 { "rank" } else { "ranks" };
        let who = number_list(&ahead);
        format!("ranks took different paths: {word} {who} launched {operation}, which the other {count} never did")
    } else {
        format!("ranks took different paths: {count} of {} never launched {operation}", communicator.size)
    };
    Conclusion {
        outcome: if is_firm { Outcome::Likely } else { Outcome::Suspected },
        culprit: None,
        positions: Vec::new(),
        sentence,
        basis: Basis::Ras,
    }
}

/// A text report names the minority: the ranks ahead, not those behind.
fn unnamed_behind(facts: &Facts<'_>, ras: &RasReports<'_>, mismatch: &Mismatch<'_>, is_twice: bool) -> Conclusion {
    let spins = facts.some_spin(&facts.others(&[]));
    let outcome = if is_twice || spins { Outcome::Likely } else { Outcome::Suspected };
    let ahead: Vec<u32> = mismatch.operation.named.iter().map(|named| named.rank).collect();
    let largest = ras.largest() == mismatch.communicator.size;
    let of = if largest { "" } else { " of their communicator" };
    let did = match ahead[..] {
        [] => String::new(),
        [_] => format!(", which rank {}{of} did", number_list(&ahead)),
        _ => format!(", which ranks {}{of} did", number_list(&ahead)),
    };
    Conclusion {
        outcome,
        culprit: None,
        positions: Vec::new(),
        sentence: format!(
            "{} of {} ranks never launched {}{did}; the report does not name them",
            mismatch.behind_count,
            mismatch.communicator.size,
            mismatch.operation_text()
        ),
        basis: Basis::Ras,
    }
}

/// The mismatch that names the cause. A rank that waits in one communicator is behind in its others, so that the first choice
/// is a rank whose GPU does not spin.
fn primary<'m, 'a>(facts: &Facts<'_>, mismatches: &'m [Mismatch<'a>]) -> Option<&'m Mismatch<'a>> {
    mismatches.iter().min_by_key(|mismatch| {
        let positions = mismatch.behind.iter().map(|named| facts.ranks.find(named, mismatch.communicator));
        let victim = |position: Option<usize>| match position.map(|position| facts.gpus[position]) {
            Some(GpuActivity::Idle | GpuActivity::Works) => 0,
            Some(GpuActivity::Unknown) | None => 1,
            Some(GpuActivity::Spins) => 2,
        };
        (
            mismatch.behind.is_empty(),
            positions.map(victim).min(),
            Reverse(mismatch.communicator.size),
            mismatch.behind_count,
            mismatch.communicator.hash.clone(),
            mismatch.operation.name.clone(),
        )
    })
}

/// Whether other ranks of the same communicator are behind in another operation.
fn takes_other_path(mismatch: &Mismatch<'_>, other: &Mismatch<'_>) -> bool {
    std::ptr::eq(mismatch.communicator, other.communicator)
        && mismatch.operation.name != other.operation.name
        && !other.behind.is_empty()
        && !other.behind.iter().any(|named| mismatch.behind.iter().any(|one| one.rank == named.rank))
}

fn rank_numbers(mismatch: &Mismatch<'_>) -> String {
    let ranks: Vec<u32> = mismatch.behind.iter().map(|named| named.rank).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", number_list(&ranks))
}

/// The others wait for the ranks among these that work. If all ranks work, nobody waits.
fn working(facts: &Facts<'_>, positions: &[usize]) -> Option<Conclusion> {
    let works = |position: &&usize| matches!(facts.work[**position], HostWork::Works(_));
    let positions: Vec<usize> = positions.iter().filter(works).copied().collect();
    if positions.len() == facts.ranks.list.len() {
        return None;
    }
    let HostWork::Works(text) = &facts.work[*positions.first()?] else { return None };
    let ranks = positions.iter().map(|position| facts.ranks.culprit_at(*position)).collect();
    let culprit = facts.culprit(ranks, CulpritReason::Works, &format!("works: {text}"), None);
    let class = facts.class(positions[0]).filter(|class| {
        matches!(class, StackClass::Data | StackClass::Checkpoint | StackClass::Compile | StackClass::Compute)
    });
    let doing = class.map_or(String::new(), |class| format!(", which {}", class.words()));
    let sentence = format!("the job waits for {}{doing}: {text}", described(&culprit));
    Some(named(facts, Outcome::WaitsForRank, culprit, sentence, Basis::Process))
}

fn any_log_moves(facts: &Facts<'_>) -> bool {
    facts.ranks.list.iter().any(|rank| log_moves(rank.evidence))
}

/// Bytes, a stack or a log moved. If all ranks that do not move stand still or spin, they wait for the others.
fn host_moves(facts: &Facts<'_>) -> Option<Conclusion> {
    let everyone = facts.others(&[]);
    let movers: Vec<usize> =
        everyone.iter().copied().filter(|position| moves(facts.rank(*position)).is_some()).collect();
    if any_log_moves(facts) {
        return Some(not_hung("its log grows", Basis::Log));
    }
    let first = *movers.first()?;
    let others = facts.others(&movers);
    let stands = |position: &usize| {
        let rank = facts.rank(*position);
        let is_still =
            stacks(rank).is_some_and(|it| it.is_far_apart() && stack_change(it.first, it.last) == StackChange::Same);
        facts.gpus[*position] == GpuActivity::Spins || is_still
    };
    if movers.len() <= others.len() && others.iter().all(stands) {
        return working(facts, &movers);
    }
    let text = moves(facts.rank(first)).unwrap_or_default();
    Some(not_hung(&format!("{}: {text}", facts.ranks.names(&movers)), Basis::Process))
}

/// A process is stopped by a signal or a debugger, or is a zombie.
fn stopped_rank(facts: &Facts<'_>) -> Option<Conclusion> {
    let everyone = facts.others(&[]);
    let stopped: Vec<usize> = everyone.iter().copied().filter(|it| state_is_stopped(facts.rank(*it))).collect();
    if stopped.is_empty() || stopped.len() == everyone.len() {
        return None;
    }
    let ranks = stopped.iter().map(|position| facts.ranks.culprit_at(*position)).collect();
    let culprit = facts.culprit(ranks, CulpritReason::Unresponsive, "is stopped", None);
    let sentence = format!("{} is stopped", described(&culprit));
    Some(named(facts, Outcome::Likely, culprit, sentence, Basis::Process))
}

/// One rank runs another kind of Python code than the others, twice.
fn odd_stack(facts: &Facts<'_>) -> Option<Conclusion> {
    let with_stacks: Vec<usize> = facts.others(&[]).into_iter().filter(|it| facts.class(*it).is_some()).collect();
    let odd_at = |class: &dyn Fn(usize) -> Option<StackClass>| -> Option<usize> {
        let classes: Vec<(usize, StackClass)> =
            with_stacks.iter().filter_map(|position| Some((*position, class(*position)?))).collect();
        let waits = |class: StackClass| matches!(class, StackClass::Collective | StackClass::Compute);
        let mut odd = classes.iter().filter(|(_, class)| !waits(*class));
        let (position, class) = *odd.next()?;
        let is_alone = odd.next().is_none() && classes.len() >= 2;
        // Where the launch queue is full each rank stands at its next launch, which may be in any code of the model.
        let others_wait = class != StackClass::Other
            || classes.iter().all(|(other, class)| *other == position || *class == StackClass::Collective);
        (is_alone && others_wait).then_some(position)
    };
    let position = odd_at(&|position| facts.class(position))?;
    let before =
        |position: usize| stacks(facts.rank(position)).filter(Twice::is_far_apart).map(|it| stack_class(it.first));
    let with_two = with_stacks.iter().all(|position| before(*position).is_some());
    let is_twice = with_two && odd_at(&before) == Some(position) && before(position) == facts.class(position);
    if let Some(working) = working(facts, &[position]) {
        return Some(working);
    }
    let class = facts.class(position)?;
    let rests = facts.evidence.serves_models && class == StackClass::Requests;
    let outcome = if is_twice && !rests { Outcome::Likely } else { Outcome::Suspected };
    let frame = latest_stack(facts.rank(position)).and_then(|stack| stack.frames.first()).map(frame_text)?;
    let text = format!("{}, in {frame}, while the others wait", class.words());
    let culprit = facts.culprit(vec![facts.ranks.culprit_at(position)], CulpritReason::Stack, &text, None);
    let sentence = format!("{} {text}", described(&culprit));
    Some(named(facts, outcome, culprit, sentence, Basis::Stacks))
}

/// The main thread of one rank waits in another kernel function than those of the others, twice, and its GPU does nothing.
fn odd_wait_channel(facts: &Facts<'_>) -> Option<Conclusion> {
    let channels = |position: usize| {
        let read = |reading: &RankReading| {
            let thread = reading.examination.process.as_deref()?.main_thread.as_ref()?;
            Some(thread.wait_channel.as_deref().unwrap_or_default().to_owned())
        };
        twice(facts.rank(position), read).filter(Twice::is_far_apart)
    };
    let known: Vec<(usize, [String; 2])> = facts
        .others(&[])
        .into_iter()
        .filter_map(|position| channels(position).map(|it| (position, [it.first, it.last])))
        .collect();
    if known.len() < 2 || known.len() != facts.ranks.list.len() {
        return None;
    }
    let (position, [_, channel]) = known.iter().find(|(position, own)| {
        let mut others = known.iter().filter(|(other, _)| other != position);
        let Some((_, first)) = others.next() else { return false };
        let others_agree = others.all(|(_, channels)| channels == first);
        let is_only_idle = facts.gpus[*position] == GpuActivity::Idle
            && !facts.others(&[*position]).iter().any(|other| facts.gpus[*other] == GpuActivity::Idle);
        is_only_idle && others_agree && own[0] == own[1] && own[0] != first[0] && own[1] != first[1]
    })?;
    if let Some(working) = working(facts, &[*position]) {
        return Some(working);
    }
    // A model server at rest looks like this, unless the stack says otherwise.
    let may_rest =
        facts.evidence.serves_models && facts.class(*position).is_none_or(|class| class == StackClass::Requests);
    let outcome = if may_rest { Outcome::Suspected } else { Outcome::Likely };
    let waits =
        if channel.is_empty() { "does not wait in the kernel".to_owned() } else { format!("waits in {channel}") };
    let text = format!("{waits} while its GPU does nothing, unlike the others");
    let culprit = facts.culprit(vec![facts.ranks.culprit_at(*position)], CulpritReason::WaitChannel, &text, None);
    let sentence = format!("{} {text}", described(&culprit));
    Some(named(facts, outcome, culprit, sentence, Basis::Process))
}

/// All ranks wait for each other, and a port of their hosts loses packets or its link. The other end may be at fault: a port
/// counts the packets that were not acknowledged to it.
fn lossy_network(facts: &Facts<'_>) -> Option<Conclusion> {
    let everyone = facts.others(&[]);
    if !facts.is_distributed() || !facts.all_spin(&everyone) || facts.some_progress(&everyone) {
        return None;
    }
    let losses = facts.links().losses();
    let (first, others) = losses.split_first()?;
    let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    let sentence = format!(
        "every rank waits, and the network loses packets at {first}{more}: its link, or the host at the other end"
    );
    Some(Conclusion { basis: Basis::Links, ..weak(Outcome::Likely, &sentence) })
}

/// All counts are equal and frozen, and every GPU spins. Only stacks that stand still too show that nothing moves, because
/// NCCL does not count the operations of a CUDA graph.
fn nothing_moves(facts: &Facts<'_>) -> Option<Conclusion> {
    let ras = facts.ras.as_ref().filter(|ras| ras.is_twice() && !ras.is_changing() && !ras.is_cut())?;
    let changes: Vec<_> = ras.changes().into_iter().filter(|(communicator, _)| communicator.size > 1).collect();
    let is_frozen = !changes.is_empty()
        && changes.iter().all(|(communicator, change)| {
            *change == CountChange::Frozen
                && communicator.ranks == communicator.size
                && communicator.missing_ranks.is_empty()
        });
    let everyone = facts.others(&[]);
    if !is_frozen || !ras.mismatches().is_empty() || !facts.all_spin(&everyone) || facts.some_progress(&everyone) {
        return None;
    }
    let counted = changes.iter().flat_map(|(communicator, _)| &communicator.operations).flat_map(|it| &it.counts);
    let has_launched = counted.into_iter().any(|it| it.count > 0);
    let stands = |position: &usize| {
        stacks(facts.rank(*position))
            .is_some_and(|it| it.is_far_apart() && stack_change(it.first, it.last) == StackChange::Same)
    };
    let is_whole = everyone.len() as u64 == u64::from(ras.largest());
    let stacks_stand = is_whole && everyone.iter().all(stands);
    if !stacks_stand || !has_launched || facts.evidence.serves_models {
        let sentence = "all ranks have launched the same operations and launch no more, \
                        which a healthy job that replays CUDA graphs shows too";
        return Some(Conclusion { basis: Basis::Ras, ..weak(Outcome::Suspected, sentence) });
    }
    let links_are_flat = !facts.is_distributed() || facts.links().is_flat == Some(true);
    let (outcome, sentence) = if links_are_flat {
        (
            Outcome::Proven,
            "nothing moves: every rank waits in the same operation; the culprit is not known, probably the network, the \
             driver or NCCL",
        )
    } else {
        (Outcome::Likely, "every rank waits in the same operation; the culprit is not known, probably the network")
    };
    Some(Conclusion { basis: Basis::Ras, ..weak(outcome, sentence) })
}

/// A line of a log that is no proof of a hang, but a probable cause: memory ran out, a process died, a GPU failed.
fn log_hint(facts: &Facts<'_>) -> Option<Conclusion> {
    let words = |sign: &LogSign| match sign {
        LogSign::WatchdogStuck => Some("PyTorch's watchdog thread is stuck, in a CUDA call or the interpreter lock"),
        LogSign::OutOfMemory => Some("ran out of memory"),
        LogSign::Xid => Some("has a GPU with an error of the driver (Xid)"),
        LogSign::ProcessDied => Some("a process of the job died"),
        LogSign::EngineDead => Some("the inference engine gave up"),
        LogSign::TakenDown => Some("PyTorch ends the process after a failed operation"),
        _ => None,
    };
    let order = |sign: &LogSign| match sign {
        LogSign::OutOfMemory => 0,
        LogSign::Xid => 1,
        LogSign::ProcessDied => 2,
        LogSign::WatchdogStuck => 3,
        LogSign::TakenDown => 4,
        _ => 5,
    };
    let hints = facts.signs.iter().filter_map(|sign| words(&sign.found.sign).map(|words| (sign, words)));
    let (sign, words) = hints.min_by_key(|(sign, _)| {
        (order(&sign.found.sign), sign.about.is_none(), sign.about, sign.found.rank, sign.found.line.clone())
    })?;
    // A program may go on after an error that it catches, so that the GPUs decide.
    let others = facts.others(&sign.about.into_iter().collect::<Vec<_>>());
    let computes = others.iter().any(|position| facts.gpus[*position] == GpuActivity::Works);
    let outcome = if facts.some_spin(&others) && !computes { Outcome::Likely } else { Outcome::Suspected };
    let is_of_rank = matches!(sign.found.sign, LogSign::OutOfMemory | LogSign::Xid | LogSign::WatchdogStuck);
    let Some(position) = sign.about.filter(|_| is_of_rank) else {
        let subject = match sign.found.sign {
            LogSign::OutOfMemory | LogSign::Xid => "a rank ",
            _ => "",
        };
        let sentence = format!("the log says: {subject}{words}");
        return Some(Conclusion { basis: Basis::Log, ..weak(outcome, &sentence) });
    };
    let culprit = facts.culprit(vec![facts.ranks.culprit_at(position)], CulpritReason::Log, words, None);
    let sentence = match sign.found.sign {
        LogSign::WatchdogStuck => format!("{}: {words}", described(&culprit)),
        _ => format!("{} {words}", described(&culprit)),
    };
    Some(named(facts, outcome, culprit, sentence, Basis::Log))
}

fn suspicion(facts: &Facts<'_>) -> Conclusion {
    let everyone = facts.others(&[]);
    let is_examined = |position: &usize| {
        facts.rank(*position).readings.iter().any(|reading| {
            let examination = &reading.examination;
            examination.process.is_some() || examination.stacks.is_some() || examination.ras.is_some()
        })
    };
    if facts.some_spin(&everyone) || everyone.iter().any(is_examined) {
        weak(Outcome::Suspected, "the readings fit a hang and also a healthy job")
    } else {
        weak(Outcome::NothingKnown, "nothing could be read that says more")
    }
}

fn weak(outcome: Outcome, sentence: &str) -> Conclusion {
    Conclusion { outcome, culprit: None, positions: Vec::new(), sentence: sentence.to_owned(), basis: Basis::Weak }
}

fn not_hung(text: &str, basis: Basis) -> Conclusion {
    Conclusion { basis, ..weak(Outcome::NotHung, &format!("the job moves: {text}")) }
}

fn named(facts: &Facts<'_>, outcome: Outcome, culprit: Culprit, sentence: String, basis: Basis) -> Conclusion {
    let positions = positions_of(facts, &culprit.ranks);
    Conclusion { outcome, culprit: Some(culprit), positions, sentence, basis }
}

/// The positions of the culprits that are watched.
fn positions_of(facts: &Facts<'_>, ranks: &[CulpritRank]) -> Vec<usize> {
    let position = |culprit: &CulpritRank| {
        facts.ranks.list.iter().position(|rank| {
            Some(rank.evidence.host) == culprit.host_id && Some(&rank.evidence.key) == culprit.key.as_ref()
        })
    };
    ranks.iter().filter_map(position).collect()
}

/// Each process once: it may be named in several communicators.
fn unique(ranks: Vec<CulpritRank>) -> Vec<CulpritRank> {
    let mut unique: Vec<CulpritRank> = Vec::new();
    for rank in ranks {
        let is_known = |known: &CulpritRank| {
            let is_same = known.pid == rank.pid && known.host == rank.host;
            is_same && (rank.pid.is_some() || known.rank == rank.rank)
        };
        if !unique.iter().any(is_known) {
            unique.push(rank);
        }
    }
    unique
}

/// The culprits in a sentence: `rank 7 (pid 1650386 on node2, GPU 3)`.
fn described(culprit: &Culprit) -> String {
    let Some(first) = culprit.ranks.first() else { return "a rank".to_owned() };
    if culprit.ranks.len() == 1 {
        let place = first.place();
        return if place.is_empty() { first.name() } else { format!("{} ({place})", first.name()) };
    }
    let numbers: Option<Vec<u32>> = culprit.ranks.iter().map(|rank| rank.world_rank.or(rank.rank)).collect();
    let mut hosts: Vec<&SafeText> = culprit.ranks.iter().filter_map(|rank| rank.host.as_ref()).collect();
    hosts.dedup();
    let on = match hosts[..] {
        [only] => format!(" on {only}"),
        _ => String::new(),
    };
    let more = if culprit.left_out > 0 { format!(" and {} more", culprit.left_out) } else { String::new() };
    match numbers {
        Some(numbers) => format!("ranks {}{more}{on}", number_list(&numbers)),
        None => format!("{} processes{more}{on}", culprit.ranks.len()),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "judge_property_tests.rs"]
mod property_tests;
