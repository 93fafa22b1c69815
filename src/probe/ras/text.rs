//! Reads the text report, which every version of NCCL with RAS prints, as it arrives.
//!
//! nccl:src/ras/client_support.cc, `rasClientRunInit`, `rasClientRunComms` and `rasClientBreakDownErrors`. The text names a
//! communicator only if something is wrong with it; the others are rows of a table, as groups of the same size and status.

use super::reduction::{Reduced, Reduction, add_count, name_rank, operation, short_text};
use crate::wire::SafeText;
use crate::wire::examination::{Communicator, NamedRank, RankAbsence};
use crate::wire::limits::MAX_COMMUNICATORS;

/// Maximum length of a line; the rest is ignored. The longest lists missing ranks in at most 1 kB.
const MAX_LINE_BYTES: usize = 2048;
/// Maximum number of rows of the table of groups that are kept.
const MAX_GROUPS: usize = 256;
/// Maximum number of dead processes that are kept.
const MAX_DEAD: usize = 64;

/// A line of the report.
#[derive(Debug, Clone, Copy)]
enum Line {
    Version,
    Table,
    TableEnd,
    LastSection,
    Processes,
    DeadProcesses,
    Timeouts,
    Process,
    Communicator,
    Missing,
    RankNumbers,
    DifferentStatus,
    DifferentCounts,
    Count,
    NoOperations,
    Status,
    Error,
    Rank,
}

/// The lines, as words. `%` stands for any word, `...` for any number of words at the end.
///
/// A fact about several ranks is followed by lines that name the ranks; one about a single rank names it in the same line.
const LINES: [(&str, Line); 25] = [
    ("NCCL version % ...", Line::Version),
    ("Group Comms ...", Line::Table),
    ("Errors", Line::TableEnd),
    ("Warnings", Line::LastSection),
    ("INCOMPLETE", Line::Processes),
    ("TIMEOUT", Line::Processes),
    ("DEAD", Line::DeadProcesses),
    ("Encountered % communication ...", Line::Timeouts),
    ("Process % on node % ...", Line::Process),
    ("% % INCOMPLETE", Line::Communicator),
    ("% % ERROR", Line::Communicator),
    ("% % MISMATCH", Line::Communicator),
    ("Missing communicator data from % ...", Line::Missing),
    // Up to NCCL 2.25: "The missing ranks: 3,4", "The unknown ranks: 3,4".
    ("The % % %", Line::RankNumbers),
    ("Communicator ranks have different status", Line::DifferentStatus),
    ("Communicator ranks have different % operation counts", Line::DifferentCounts),
    ("% ranks have launched up to operation %", Line::Count),
    ("Rank % has launched up to operation % ...", Line::Count),
    ("% ranks have not launched any operations", Line::NoOperations),
    ("Rank % has not launched any operations ...", Line::NoOperations),
    ("% ranks have status %", Line::Status),
    ("Rank % has status % ...", Line::Status),
    ("% ranks reported ...", Line::Error),
    ("Rank % reported ...", Line::Error),
    ("Rank % ...", Line::Rank),
];

/// Finds the line with these words, and the words at `%`.
fn parse_line<'a>(words: &[&'a str]) -> Option<(Line, [&'a str; 3])> {
    LINES.iter().find_map(|&(template, line)| {
        let (mut found, mut count, mut at) = ([""; 3], 0, 0);
        for expected in template.split(' ') {
            if expected == "..." {
                return Some((line, found));
            }
            let word = *words.get(at)?;
            at += 1;
            if expected == "%" {
                *found.get_mut(count)? = word;
                count += 1;
            } else if expected != word {
                return None;
            }
        }
        (at == words.len()).then_some((line, found))
    })
}

/// The status of a communicator or of a rank. `statusStr` in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// `NOCOMM`: the rank has left. Up to NCCL 2.25 `UNKNOWN`: it has left or does not answer.
    Left,
    /// `INIT`.
    Initialising,
    /// `RUNNING`, or a status that this version does not know.
    Running,
    /// `FINALIZE` or `ABORT`.
    Finalising,
}

impl Status {
    fn parse(word: &str) -> Self {
        match word {
            "NOCOMM" | "UNKNOWN" => Self::Left,
            "INIT" => Self::Initialising,
            "FINALIZE" | "ABORT" => Self::Finalising,
            _ => Self::Running,
        }
    }
}

/// A row of the table of groups.
#[derive(Debug)]
struct Group {
    number: u32,
    communicators: u32,
    size: u32,
    status: Status,
    /// Number of its communicators that are named further down.
    named: u32,
}

/// A communicator that the report names, because something is wrong with it.
#[derive(Debug)]
struct NamedCommunicator {
    /// Group and number in the group: `#0-1`.
    id: SafeText,
    group: u32,
    /// Number of ranks that sent no data.
    missing: u32,
    /// The report lists the status of its ranks.
    has_status: bool,
    communicator: Communicator,
}

/// The subject of the lines that name ranks or processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Nothing,
    DeadProcesses,
    /// Ranks without data.
    Missing,
    /// Ranks with this `ncclResult_t`.
    Error(i64),
    /// Ranks with this status.
    Status(Status),
    /// Ranks with this count of the operation with this index.
    Operation(usize, u64),
}

/// Reads a report.
#[derive(Debug)]
pub(super) struct TextReader {
    line: Vec<u8>,
    reduction: Reduction,
    groups: Vec<Group>,
    communicators: Vec<NamedCommunicator>,
    /// Index of the communicator that the lines are about.
    current: Option<usize>,
    subject: Subject,
    dead: Vec<(Option<u32>, Option<SafeText>)>,
    processes_per_host: Option<u32>,
    is_table: bool,
    /// The last section, `Warnings`, has begun.
    is_last_section: bool,
}

impl TextReader {
    pub(super) fn new(wanted_pid: u32) -> Self {
        Self {
            line: Vec::new(),
            reduction: Reduction::new(wanted_pid, false),
            groups: Vec::new(),
            communicators: Vec::new(),
            current: None,
            subject: Subject::Nothing,
            dead: Vec::new(),
            processes_per_host: None,
            is_table: false,
            is_last_section: false,
        }
    }

    /// Reads the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.read_line(&String::from_utf8_lossy(&line));
                self.line = line;
                self.line.clear();
            } else if self.line.len() < MAX_LINE_BYTES {
                self.line.push(byte);
            }
        }
    }

    /// Returns the report, or `None` if it is not complete.
    pub(super) fn finish(mut self) -> Option<Reduced> {
        if !self.is_last_section || !self.line.is_empty() {
            return None;
        }
        for named in self.communicators {
            let group = self.groups.iter_mut().find(|group| group.number == named.group);
            let mut communicator = named.communicator;
            let mut status = Status::Running;
            if let Some(group) = group {
                group.named += 1;
                communicator.size = group.size;
                status = group.status;
            }
            communicator.ranks = communicator.size.saturating_sub(named.missing);
            communicator.missing_left_out =
                named.missing.saturating_sub(u32::try_from(communicator.missing_ranks.len()).unwrap_or(u32::MAX));
            if !named.has_status {
                add_status(&mut communicator, status);
            }
            self.reduction.add(communicator);
        }
        for group in self.groups {
            // One entry stands for all communicators of a group that are not named.
            let unnamed = group.communicators.saturating_sub(group.named);
            if unnamed > 0 {
                let mut communicator = Communicator { size: group.size, ranks: group.size, ..Communicator::default() };
                add_status(&mut communicator, group.status);
                self.reduction.add(communicator);
                self.reduction.leave_out(unnamed - 1);
            }
        }
        Some(self.reduction.finish(self.processes_per_host))
    }

    fn read_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let report = &mut self.reduction.report;
        match parse_line(&words) {
            Some((Line::Version, [version, ..])) => report.nccl_version = Some(short_text(version.as_bytes())),
            Some((Line::Table, _)) => self.is_table = true,
            Some((Line::TableEnd, _)) => self.is_table = false,
            Some((Line::LastSection, _)) => {
                self.is_last_section = true;
                self.leave();
            }
            Some((Line::Processes, _)) => self.leave(),
            Some((Line::DeadProcesses, _)) => {
                self.leave();
                self.subject = Subject::DeadProcesses;
            }
            Some((Line::Timeouts, [count, ..])) => report.timeouts = number(count).unwrap_or(0),
            Some((Line::Process, [pid, host, _])) => {
                let process = (number(pid), Some(short_text(host.as_bytes())));
                self.reduction.see_process(process.0);
                if self.subject == Subject::DeadProcesses && self.dead.len() < MAX_DEAD {
                    self.dead.push(process);
                }
            }
            Some((Line::Communicator, [id, hash, _])) if id.starts_with('#') => self.enter(id, hash),
            Some((line, found)) => self.read_detail(line, found, &words),
            None => self.read_numbers(&words),
        }
    }

    /// Reads a row of a table.
    fn read_numbers(&mut self, words: &[&str]) {
        if let (true, [group, communicators, _, _, size, _, status, _]) = (self.is_table, words) {
            let (Some(group), Some(communicators), Some(size)) = (number(group), number(communicators), number(size))
            else {
                return;
            };
            self.reduction.is_damaged |= size == 0;
            if self.groups.len() < MAX_GROUPS {
                let status = Status::parse(status);
                self.groups.push(Group { number: group, communicators, size, status, named: 0 });
            } else {
                self.reduction.leave_out(communicators);
            }
        }
        // The summary of a job with as many processes on each host: hosts, processes on each, GPUs of each process,
        // processes, GPUs.
        if words.len() == 5 && words.iter().all(|word| number(word).is_some()) {
            self.processes_per_host = number(words[1]);
        }
    }

    /// Ends the lines about a communicator.
    fn leave(&mut self) {
        self.current = None;
        self.subject = Subject::Nothing;
    }

    /// Begins the lines about a communicator: `#0-1 (78db921d1c117b4a) MISMATCH`. It may have been named before.
    fn enter(&mut self, id: &str, hash: &str) {
        self.leave();
        let id = short_text(id.as_bytes());
        let hash = hash.strip_prefix('(').and_then(|hash| hash.strip_suffix(')')).unwrap_or(hash);
        let hash = short_text(hash.as_bytes());
        let found = self.communicators.iter().position(|named| named.id == id && named.communicator.hash == hash);
        if found.is_none() && self.communicators.len() < MAX_COMMUNICATORS {
            let group = id.strip_prefix('#').and_then(|id| number(id.split_once('-')?.0));
            self.communicators.push(NamedCommunicator {
                id,
                group: group.unwrap_or(u32::MAX),
                missing: 0,
                has_status: false,
                communicator: Communicator { hash, ..Communicator::default() },
            });
            self.current = Some(self.communicators.len() - 1);
        } else {
            self.current = found;
        }
    }

    /// Reads a line about the current communicator.
    fn read_detail(&mut self, line: Line, found: [&str; 3], words: &[&str]) {
        let Some(named) = self.current.and_then(|current| self.communicators.get_mut(current)) else { return };
        let communicator = &mut named.communicator;
        let is_one = words[0] == "Rank";
        let ranks = if is_one { 1 } else { number(found[0]).unwrap_or(0) };
        match line {
            Line::Missing => {
                named.missing = named.missing.saturating_add(ranks);
                self.subject = Subject::Missing;
            }
            Line::RankNumbers => {
                for rank in found[2].split(',').filter_map(number) {
                    let absence = Some(RankAbsence::Unknown);
                    add_missing(communicator, NamedRank { rank, absence, ..NamedRank::default() });
                }
            }
            Line::DifferentStatus => named.has_status = true,
            Line::DifferentCounts => {
                self.subject = operation(&mut communicator.operations, found[0].as_bytes())
                    .map_or(Subject::Nothing, |index| Subject::Operation(index, 0));
            }
            Line::Count | Line::NoOperations => {
                let count = if matches!(line, Line::Count) { found[1].parse().ok() } else { Some(0) };
                if let (Some(count), Subject::Operation(index, _)) = (count, self.subject)
                    && let Some(operation) = communicator.operations.get_mut(index)
                {
                    self.subject = Subject::Operation(index, count);
                    add_count(operation, count, ranks);
                }
            }
            Line::Status => {
                let status = Status::parse(found[1]);
                self.subject = Subject::Status(status);
                let number = match status {
                    Status::Left => Some(&mut named.missing),
                    Status::Initialising => Some(&mut communicator.initialising),
                    Status::Finalising => Some(&mut communicator.finalising),
                    Status::Running => None,
                };
                if let Some(number) = number {
                    *number = number.saturating_add(ranks);
                }
            }
            Line::Error => {
                self.subject = Subject::Error(error_number(words));
                communicator.failed_left_out = communicator.failed_left_out.saturating_add(ranks);
            }
            _ => {}
        }
        if is_one && let Some(rank) = number(found[0]) {
            let rank = named_rank(rank, words);
            self.reduction.see_process(rank.pid);
            self.add_named_rank(rank);
        }
    }

    /// Adds a rank that a line names to the list of the current subject.
    fn add_named_rank(&mut self, mut rank: NamedRank) {
        let Some(named) = self.current.and_then(|current| self.communicators.get_mut(current)) else { return };
        let communicator = &mut named.communicator;
        match self.subject {
            Subject::Missing => {
                let is_dead = self.dead.iter().any(|(pid, host)| *pid == rank.pid && *host == rank.host);
                rank.absence = Some(if is_dead { RankAbsence::Dead } else { RankAbsence::Unresponsive });
                add_missing(communicator, rank);
            }
            Subject::Status(Status::Left) => {
                rank.absence = Some(RankAbsence::Left);
                add_missing(communicator, rank);
            }
            Subject::Error(error) => {
                let failed = &mut communicator.failed_ranks;
                let left_out = communicator.failed_left_out;
                // It was counted by the line before it, and may have had another error already.
                let is_known = failed.iter().any(|other| other.rank == rank.rank);
                if !is_known {
                    rank.async_error = Some(error);
                    name_rank(failed, &mut communicator.failed_left_out, rank);
                }
                if is_known || communicator.failed_left_out == left_out {
                    communicator.failed_left_out = left_out.saturating_sub(1);
                } else {
                    communicator.failed_left_out = left_out;
                }
            }
            Subject::Operation(index, count) => {
                if let Some(operation) = communicator.operations.get_mut(index) {
                    rank.count = Some(count);
                    name_rank(&mut operation.named, &mut operation.named_left_out, rank);
                }
            }
            Subject::Status(_) | Subject::DeadProcesses | Subject::Nothing => {}
        }
    }
}

/// Adds a missing rank. Their number is in the report, so those that are left out are not counted here.
fn add_missing(communicator: &mut Communicator, rank: NamedRank) {
    if communicator.missing_ranks.iter().all(|other| other.rank != rank.rank) {
        name_rank(&mut communicator.missing_ranks, &mut communicator.missing_left_out, rank);
    }
}

/// Counts all ranks of a communicator as having this status.
fn add_status(communicator: &mut Communicator, status: Status) {
    match status {
        Status::Initialising => communicator.initialising = communicator.ranks,
        Status::Finalising => communicator.finalising = communicator.ranks,
        Status::Left | Status::Running => {}
    }
}

/// Parses `... -- GPU 3 (NVML 5) managed by process 1650386 on node 10.0.0.2`, or `... -- [process information not found]`.
fn named_rank(rank: u32, words: &[&str]) -> NamedRank {
    let after = |word: &str| words.iter().position(|other| *other == word).and_then(|at| words.get(at + 1).copied());
    let nvml = after("(NVML").and_then(|word| word.strip_suffix(')'));
    NamedRank {
        rank,
        host: after("node").map(|host| short_text(host.as_bytes())),
        pid: after("process").and_then(number),
        gpu: nvml.or(after("GPU")).and_then(number),
        ..NamedRank::default()
    }
}

/// The `ncclResult_t` behind the words of `ncclErrorToString` after `reported`. 0 for words that this version does not know.
fn error_number(words: &[&str]) -> i64 {
    // "Unhandled CUDA error", "System error", "Internal error", "Invalid argument", "Invalid usage", "Remote process error".
    const NAMES: &str = "Unhandled System Internal argument usage Remote";
    let error = words.iter().skip(3).take(2);
    let place = NAMES.split(' ').position(|name| error.clone().any(|word| *word == name));
    place.map_or(0, |place| place as i64 + 1)
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
