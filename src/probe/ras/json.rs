//! Reads the JSON report of NCCL 2.28.7 and newer as it arrives, without a tree.
//!
//! nccl:src/ras/client_support.cc, `rasDumpCommsToJSON`, prints one field a line. Versions 2.28.7 and 2.28.9 print no comma
//! after `nvml_dev` of a missing rank, so commas are ignored here.

use super::reduction::{
    IN_PROGRESS, MAX_TEXT_BYTES, Reduced, Reduction, add_rank, is_error, name_rank, operation, short_text,
};
use crate::wire::examination::{Communicator, NamedRank, RankAbsence};
use crate::wire::limits::MAX_OPERATIONS;

/// Maximum depth of brackets. NCCL uses six.
const MAX_DEPTH: usize = 16;

/// The part of a token that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Outside,
    /// A number or a word such as `true`.
    Bare,
    /// Between quotation marks.
    Quoted,
    /// After a backslash between quotation marks. NCCL prints none.
    Escaped,
}

/// An object or array of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The object around everything.
    Report,
    Communicators,
    Communicator,
    Ranks,
    Rank,
    MissingRanks,
    MissingRank,
    Status,
    Counts,
    /// The object `ras` at the end.
    Collection,
    OtherObject,
    OtherArray,
}

impl Place {
    fn is_object(self) -> bool {
        !matches!(self, Self::Communicators | Self::Ranks | Self::MissingRanks | Self::OtherArray)
    }
}

/// The fields of a rank, or of a missing rank.
#[derive(Debug, Default)]
struct Rank {
    named: NamedRank,
    cuda_device: Option<u32>,
    init_state: i64,
    async_error: i64,
    is_finalising: bool,
    is_unresponsive: Option<bool>,
    is_dead: bool,
    /// Index of the operation in the communicator, and count.
    counts: Vec<(usize, u64)>,
}

/// Reads a report.
#[derive(Debug)]
pub(super) struct JsonReader {
    token: Token,
    /// The bytes of the token, cut to [`MAX_TEXT_BYTES`].
    text: Vec<u8>,
    /// The key of the next value in an object.
    key: Vec<u8>,
    has_key: bool,
    /// The brackets around the next byte.
    places: Vec<Place>,
    communicator: Communicator,
    rank: Rank,
    reduction: Reduction,
    is_complete: bool,
    is_malformed: bool,
}

impl JsonReader {
    pub(super) fn new(wanted_pid: u32) -> Self {
        Self {
            token: Token::Outside,
            text: Vec::new(),
            key: Vec::new(),
            has_key: false,
            places: Vec::new(),
            communicator: Communicator::default(),
            rank: Rank::default(),
            reduction: Reduction::new(wanted_pid, true),
            is_complete: false,
            is_malformed: false,
        }
    }

    /// Reads the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.push_byte(byte);
        }
    }

    /// Returns whether the bytes so far cannot be a report.
    pub(super) fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    /// Returns the report, or `None` if it is not complete.
    pub(super) fn finish(self) -> Option<Reduced> {
        (self.is_complete && !self.is_malformed).then(|| self.reduction.finish(None))
    }

    fn push_byte(&mut self, byte: u8) {
        match (self.token, byte) {
            _ if self.is_malformed => {}
            (Token::Quoted, b'\\') => self.token = Token::Escaped,
            (Token::Quoted, b'"') => {
                self.token = Token::Outside;
                self.end_text();
            }
            (Token::Quoted | Token::Escaped, _) => {
                self.token = Token::Quoted;
                self.push_text(byte);
            }
            (Token::Bare, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'+' | b'-') => self.push_text(byte),
            (Token::Bare, _) => {
                self.token = Token::Outside;
                self.end_value();
                self.push_outside(byte);
            }
            (Token::Outside, _) => self.push_outside(byte),
        }
    }

    fn push_text(&mut self, byte: u8) {
        if self.text.len() < MAX_TEXT_BYTES {
            self.text.push(byte);
        }
    }

    fn push_outside(&mut self, byte: u8) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b',' | b':' => {}
            _ if self.is_complete => self.is_malformed = true,
            b'"' => self.start(Token::Quoted),
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => self.close(byte == b'}'),
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' => {
                self.start(Token::Bare);
                self.text.push(byte);
            }
            _ => self.is_malformed = true,
        }
    }

    fn start(&mut self, token: Token) {
        self.token = token;
        self.text.clear();
    }

    fn open(&mut self, is_object: bool) {
        let key = if self.has_key { &self.key[..] } else { b"" };
        let place = match (self.places.last(), key, is_object) {
            (None, _, true) => Place::Report,
            (Some(Place::Report), b"communicators", false) => Place::Communicators,
            (Some(Place::Report), b"ras", true) => Place::Collection,
            (Some(Place::Communicators), _, true) => Place::Communicator,
            (Some(Place::Communicator), b"ranks", false) => Place::Ranks,
            (Some(Place::Communicator), b"missing_ranks", false) => Place::MissingRanks,
            (Some(Place::Ranks), _, true) => Place::Rank,
            (Some(Place::MissingRanks), _, true) => Place::MissingRank,
            (Some(Place::Rank | Place::MissingRank), b"status", true) => Place::Status,
            (Some(Place::Rank), b"collective_counts", true) => Place::Counts,
            (_, _, true) => Place::OtherObject,
            (_, _, false) => Place::OtherArray,
        };
        let needs_key = self.places.last().is_some_and(|place| place.is_object());
        let is_first = self.places.is_empty();
        if needs_key != self.has_key || (is_first && !is_object) || self.places.len() >= MAX_DEPTH {
            self.is_malformed = true;
        }
        match place {
            Place::Communicator => self.communicator = Communicator::default(),
            Place::Rank | Place::MissingRank => self.rank = Rank::default(),
            _ => {}
        }
        self.has_key = false;
        self.places.push(place);
    }

    fn close(&mut self, is_object: bool) {
        let Some(place) = self.places.pop().filter(|place| place.is_object() == is_object && !self.has_key) else {
            self.is_malformed = true;
            return;
        };
        match place {
            Place::Rank => self.end_rank(),
            Place::MissingRank => self.end_missing_rank(),
            Place::Communicator => self.reduction.add(std::mem::take(&mut self.communicator)),
            Place::Report => self.is_complete = true,
            _ => {}
        }
    }

    /// A text between quotation marks has ended: a key, or a value.
    fn end_text(&mut self) {
        let is_key = self.places.last().is_some_and(|place| place.is_object()) && !self.has_key;
        if is_key {
            std::mem::swap(&mut self.key, &mut self.text);
            self.has_key = true;
        } else {
            self.end_value();
        }
    }

    fn end_value(&mut self) {
        let Some(&place) = self.places.last() else {
            self.is_malformed = true;
            return;
        };
        if place.is_object() != self.has_key {
            self.is_malformed = true;
            return;
        }
        self.has_key = false;
        let text = &self.text[..];
        let (communicator, rank, report) = (&mut self.communicator, &mut self.rank, &mut self.reduction.report);
        match (place, &self.key[..]) {
            (Place::Report, b"nccl_version") => report.nccl_version = Some(short_text(text)),
            (Place::Collection, b"timeouts_count") => report.timeouts = number(text).unwrap_or(0),
            (Place::Communicator, b"hash") => communicator.hash = short_text(text),
            (Place::Communicator, b"secondary_hash") => communicator.secondary_hash = short_text(text),
            (Place::Communicator, b"size") => communicator.size = number(text).unwrap_or(0),
            (Place::Rank | Place::MissingRank, key) => match key {
                b"rank" => rank.named.rank = number(text).unwrap_or(0),
                // An unknown process has the host "unknown" and the pid -1.
                b"host" if text != b"unknown" => rank.named.host = Some(short_text(text)),
                b"pid" => rank.named.pid = number(text),
                b"cuda_dev" => rank.cuda_device = number(text),
                b"nvml_dev" => rank.named.gpu = number(text),
                _ => {}
            },
            (Place::Status, key) => {
                let is_true = text == b"true";
                match key {
                    b"init_state" => rank.init_state = number(text).map_or(0, i64::from),
                    b"async_error" => rank.async_error = number(text).map_or(0, i64::from),
                    b"finalize_called" | b"destroy_flag" | b"abort_flag" => rank.is_finalising |= is_true,
                    b"unresponsive" => rank.is_unresponsive = Some(is_true),
                    b"considered_dead" => rank.is_dead = is_true,
                    _ => {}
                }
            }
            (Place::Counts, name) => {
                let count = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
                let index = operation(&mut communicator.operations, name);
                if let (Some(count), Some(index)) = (count, index)
                    && rank.counts.len() < MAX_OPERATIONS
                {
                    rank.counts.push((index, count));
                }
            }
            _ => {}
        }
    }

    fn end_rank(&mut self) {
        let rank = std::mem::take(&mut self.rank);
        let communicator = &mut self.communicator;
        let mut named = rank.named;
        named.gpu = named.gpu.or(rank.cuda_device);
        self.reduction.see_process(named.pid);
        communicator.ranks = communicator.ranks.saturating_add(1);
        if rank.is_finalising {
            communicator.finalising = communicator.finalising.saturating_add(1);
        } else if rank.init_state == IN_PROGRESS {
            communicator.initialising = communicator.initialising.saturating_add(1);
        }
        for (index, count) in rank.counts {
            if let Some(operation) = communicator.operations.get_mut(index) {
                add_rank(operation, named.clone(), count);
            }
        }
        if let Some(error) = [rank.async_error, rank.init_state].into_iter().find(|&result| is_error(result)) {
            named.async_error = Some(error);
            name_rank(&mut communicator.failed_ranks, &mut communicator.failed_left_out, named);
        }
    }

    fn end_missing_rank(&mut self) {
        let rank = std::mem::take(&mut self.rank);
        let mut named = rank.named;
        named.gpu = named.gpu.or(rank.cuda_device);
        named.absence = Some(match rank.is_unresponsive {
            _ if rank.is_dead => RankAbsence::Dead,
            Some(true) => RankAbsence::Unresponsive,
            Some(false) => RankAbsence::Left,
            None => RankAbsence::Unknown,
        });
        self.reduction.see_process(named.pid);
        name_rank(&mut self.communicator.missing_ranks, &mut self.communicator.missing_left_out, named);
    }
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
