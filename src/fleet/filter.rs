//! The filter language of the combined list.
//!
//! Plain words match host, user and command. Other terms: `user:bob host:hgx gpu:3 mem>10G sm<5 idle>30m state:D
//! stuck`, `/regex/`, `!not`. A space means "and", `|` means "or".

use super::{GpuState, Host, Moment, ProcessTrouble, Row};
use crate::config::did_you_mean;
use crate::config::parse_seconds;
use regex_lite::{Regex, RegexBuilder};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// The subject of a filter: a host, or a row on that host. A term on an unknown value neither matches nor fails.
#[derive(Debug, Clone, Copy)]
pub struct FilterInput<'a> {
    /// The host.
    pub host: &'a Host,
    /// Number of free GPUs; `None` if the readings are not current.
    pub free_gpus: Option<u32>,
    /// The row; `None` to match the host alone.
    pub row: Option<RowFacts<'a>>,
}

/// A row with values that are known elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct RowFacts<'a> {
    /// The row.
    pub row: &'a Row,
    /// The lowest and the highest power draw of its GPUs in watts.
    pub power_watts: Option<(f32, f32)>,
    /// The text of diagnosis in the STATE column.
    pub finding: Option<&'static str>,
    /// Whether a rule about hanging work fires.
    pub is_stuck: bool,
    /// The present moment.
    pub now: Moment,
}

impl RowFacts<'_> {
    /// How long the GPUs have been held without work.
    fn idle(&self) -> Option<Duration> {
        match self.row.state {
            Some((GpuState::Idle | GpuState::Waiting, since)) => since.map(|since| self.now.since(since)),
            // A GPU in use is not idle, whatever its start.
            Some((GpuState::InUse, _)) => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// Whether one of the state names begins with `word`, case-insensitive. A single capital letter is the state letter
    /// of the process.
    fn is_in_state(&self, word: &str) -> Option<bool> {
        let row = self.row;
        if let ([letter], Some(state)) = (word.as_bytes(), row.process_state)
            && letter.is_ascii_uppercase()
        {
            return Some(state.letter() == char::from(*letter));
        }
        let begins = |name: &str| name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        let state = row.state.map(|(state, _)| state.word());
        let ended = row.ended_at.map(|_| "ended");
        let names = [state, row.trouble.map(ProcessTrouble::word), self.finding, ended];
        let is_known = names.iter().any(Option::is_some);
        is_known.then(|| names.into_iter().flatten().any(begins))
    }
}

/// A parsed filter.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The filter matches if all terms of one alternative match.
    alternatives: Vec<Vec<Term>>,
}

/// A predicate, possibly negated.
#[derive(Debug, Clone)]
struct Term {
    is_negated: bool,
    predicate: Predicate,
}

#[derive(Debug, Clone)]
enum Predicate {
    /// A part of host, user or command, or the pid. Lower case.
    Word(String),
    /// A regular expression for the same texts.
    Regex(Regex),
    /// A part of one text. Lower case.
    Text(TextField, String),
    /// A comparison of one number.
    Number(NumericField, Comparison, f64),
    /// Any of these GPU indexes.
    Gpu(Vec<u32>),
    /// The beginning of a state name, or the state letter of the process.
    State(String),
    /// A property of the work.
    Flag(Flag),
}

/// A text of a host or row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextField {
    Host,
    Tag,
    Model,
    User,
    Command,
    Job,
}

/// A number of a host or row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumericField {
    Free,
    Pid,
    Gpus,
    Memory,
    Rss,
    Sm,
    Cpu,
    Power,
    Idle,
    Age,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    Stuck,
    Mine,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Below,
    AtMost,
    Equal,
    AtLeast,
    Above,
}

impl Comparison {
    fn matches(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Below => value < limit,
            Self::AtMost => value <= limit,
            Self::Equal => (value - limit).abs() < f64::EPSILON,
            Self::AtLeast => value >= limit,
            Self::Above => value > limit,
        }
    }

    /// Whether the comparison holds for any value of the range.
    fn matches_range(self, (least, most): (f64, f64), limit: f64) -> bool {
        match self {
            Self::Below | Self::AtMost => self.matches(least, limit),
            Self::AtLeast | Self::Above => self.matches(most, limit),
            Self::Equal => least <= limit && limit <= most,
        }
    }
}

impl Filter {
    /// Whether the filter matches everything.
    pub fn is_empty(&self) -> bool {
        self.alternatives.is_empty()
    }

    /// Whether the filter matches; `None` if that is unknown because a reading is missing, or because the filter needs
    /// a row and the input is a host.
    pub fn matches(&self, input: &FilterInput<'_>) -> Option<bool> {
        self.matches_terms(input, |_| true)
    }

    /// Whether a host is shown: it matches, or one of its rows does.
    ///
    /// Terms on readings, such as `sm<5`, count as unknown here. They select rows, and hosts that come and go with each
    /// reading would make the screen jump.
    pub fn narrows_to<'a>(&self, host: &FilterInput<'a>, mut rows: impl Iterator<Item = RowFacts<'a>>) -> bool {
        let is_about_rows = |term: &Term| term.predicate.is_constant() && !term.predicate.is_about_host();
        let of_row = |row| self.matches_terms(&FilterInput { row: Some(row), ..*host }, Predicate::is_constant);
        match self.matches_terms(host, Predicate::is_constant) {
            Some(is_match) => is_match,
            None if !self.alternatives.iter().flatten().any(is_about_rows) => true,
            None => rows.any(|row| of_row(row) != Some(false)),
        }
    }

    /// As [`Self::matches`], where the terms that do not count are unknown.
    fn matches_terms(&self, input: &FilterInput<'_>, counts: impl Fn(&Predicate) -> bool) -> Option<bool> {
        if self.alternatives.is_empty() {
            return Some(true);
        }
        let of_term = |term: &Term| if counts(&term.predicate) { term.matches(input) } else { None };
        any(self.alternatives.iter().map(|terms| all(terms.iter().map(of_term))))
    }
}

impl Term {
    fn matches(&self, input: &FilterInput<'_>) -> Option<bool> {
        self.predicate.matches(input).map(|holds| holds != self.is_negated)
    }
}

impl Predicate {
    /// Whether the predicate depends on names and not on readings that change while a job runs.
    fn is_constant(&self) -> bool {
        match self {
            Self::Word(_) | Self::Regex(_) | Self::Text(..) | Self::Gpu(_) | Self::Flag(Flag::Mine) => true,
            Self::Number(number, ..) => matches!(number, NumericField::Free | NumericField::Pid | NumericField::Gpus),
            Self::State(_) | Self::Flag(Flag::Stuck | Flag::Ended) => false,
        }
    }

    /// Whether the predicate is about the host alone.
    fn is_about_host(&self) -> bool {
        matches!(self, Self::Text(TextField::Host | TextField::Tag | TextField::Model, _))
            || matches!(self, Self::Number(NumericField::Free, ..))
    }

    fn matches(&self, input: &FilterInput<'_>) -> Option<bool> {
        match self {
            Self::Word(word) => matches_any_text(input, |text| contains(text, word), Some(word)),
            Self::Regex(regex) => matches_any_text(input, |text| regex.is_match(text), None),
            Self::Text(text, part) => text.matches(input, part),
            Self::Number(number, comparison, limit) => {
                number.range(input).map(|range| comparison.matches_range(range, *limit))
            }
            Self::Gpu(indexes) => {
                input.row.map(|facts| facts.row.gpu_indexes.iter().any(|index| indexes.contains(index)))
            }
            Self::State(word) => input.row.and_then(|facts| facts.is_in_state(word)),
            Self::Flag(kind) => input.row.map(|facts| match kind {
                Flag::Stuck => facts.is_stuck,
                Flag::Mine => facts.row.is_mine,
                Flag::Ended => facts.row.ended_at.is_some(),
            }),
        }
    }
}

impl TextField {
    fn matches(self, input: &FilterInput<'_>, part: &str) -> Option<bool> {
        let host = input.host;
        let row = input.row.map(|facts| facts.row);
        match self {
            Self::Host => Some(contains(host.name(), part)),
            Self::Tag => Some(host.config.tags.iter().any(|tag| contains(tag, part))),
            Self::Model => {
                let models = host.gpus().filter_map(|(info, _)| info.name.as_ref());
                let known: Vec<bool> = models.map(|name| contains(name, part)).collect();
                (!known.is_empty()).then(|| known.contains(&true))
            }
            Self::User => row.map(|row| contains(&row.who, part)),
            Self::Command => row.map(|row| contains(&row.command, part)),
            Self::Job => row.map(|row| contains(&row.job.to_string(), part)),
        }
    }
}

impl NumericField {
    /// The range of the number. Some numbers exist per GPU; a comparison matches if it holds for any GPU.
    fn range(self, input: &FilterInput<'_>) -> Option<(f64, f64)> {
        let one = |value: f64| (value, value);
        if self == Self::Free {
            return input.free_gpus.map(|count| one(f64::from(count)));
        }
        let facts: RowFacts<'_> = input.row?;
        let row = facts.row;
        Some(match self {
            Self::Free => return None,
            Self::Pid => one(f64::from(row.pid?)),
            Self::Gpus => one(row.gpu_indexes.len() as f64),
            Self::Memory => one(row.gpu_memory_bytes? as f64),
            Self::Rss => one(row.rss_bytes? as f64),
            Self::Sm => row.sm_percent.map(|(least, most)| (f64::from(least), f64::from(most)))?,
            Self::Cpu => one(f64::from(row.cpu_percent?)),
            Self::Power => facts.power_watts.map(|(least, most)| (f64::from(least), f64::from(most)))?,
            Self::Idle => one(facts.idle()?.as_secs_f64()),
            Self::Age => one(row.age_seconds?),
        })
    }
}

/// Matches host, user and command. A host alone can only match by its name, not fail.
fn matches_any_text(input: &FilterInput<'_>, is_match: impl Fn(&str) -> bool, pid: Option<&str>) -> Option<bool> {
    let is_host = is_match(input.host.name());
    let Some(facts) = input.row else { return is_host.then_some(true) };
    let row = facts.row;
    // Digits alone may be a pid.
    let is_pid = || pid.and_then(|word| word.parse::<u32>().ok()).is_some_and(|word| row.pid == Some(word));
    Some(is_host || is_match(&row.who) || is_match(&row.command) || is_pid())
}

/// Whether `text` contains `part`, case-insensitive. `part` is in lower case.
fn contains(text: &str, part: &str) -> bool {
    if !text.is_ascii() {
        return text.to_lowercase().contains(part);
    }
    let (text, part) = (text.as_bytes(), part.as_bytes());
    part.is_empty() || text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}

/// `Some(false)` if any term fails, `Some(true)` if all match, else `None`.
fn all(terms: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut is_known = true;
    for term in terms {
        match term {
            Some(false) => return Some(false),
            Some(true) => {}
            None => is_known = false,
        }
    }
    is_known.then_some(true)
}

/// `Some(true)` if any term matches, `Some(false)` if all fail, else `None`.
fn any(terms: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(terms.map(|term| term.map(|holds| !holds))).map(|none| !none)
}

/// Maximum length of a filter in bytes.
const MAX_BYTES: usize = 1024;
/// Maximum memory of a compiled regular expression in bytes.
const MAX_REGEX_BYTES: usize = 256 * 1024;

/// The syntax with its meaning, for the help. ASCII only.
pub const SYNTAX: [(&str, &str); 14] = [
    ("word", "part of host, user or command; a pid"),
    ("\"two words\"", "the same, with spaces or special characters"),
    ("/regex/", "the same, as a regular expression"),
    ("user:bob host:hgx cmd:vllm", "part of one of them"),
    ("tag:h100 model:a100 job:1234", "tag of the host, model of its GPUs, job"),
    ("gpu:3 gpu:0-3 pid:4471", "on one of these GPUs; this process"),
    ("gpus>=8 mem>10G rss>64G", "number of GPUs, GPU memory, host memory"),
    ("sm<5 cpu>200 power<100", "percent or watts, on any of its GPUs"),
    ("idle>30m age>1d", "time without work; time since the start"),
    ("state:D state:idle", "process state letter; word in the STATE column"),
    ("stuck mine ended", "may be hung; own; ended in the last 10 min"),
    ("free>=4", "on hosts with at least 4 free GPUs"),
    ("!word", "not"),
    ("a b | c", "a and b, or c"),
];

/// An error in a filter, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// The byte range of the error; empty if it is at the end.
    pub at: Range<usize>,
    /// The error and the correct form.
    pub message: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for FilterError {}

impl Filter {
    /// Parses a filter. An empty text matches everything.
    ///
    /// # Errors
    /// Returns the first error and its position.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        if text.len() > MAX_BYTES {
            let start = (0..=MAX_BYTES).rfind(|at| text.is_char_boundary(*at)).unwrap_or_default();
            return Err(FilterError { at: start..text.len(), message: "the filter is too long".to_owned() });
        }
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut parser = Parser { text, at: 0 };
        let mut alternatives = vec![Vec::new()];
        loop {
            parser.skip_spaces();
            let start = parser.at;
            match parser.peek() {
                None | Some('|') if alternatives.last().is_some_and(Vec::is_empty) => {
                    let side = if parser.peek().is_some() { "before" } else { "after" };
                    let at = if parser.peek().is_some() { start..start + 1 } else { start..start };
                    return Err(FilterError { at, message: format!("a term is missing {side} `|`") });
                }
                None => return Ok(Self { alternatives }),
                Some('|') => {
                    parser.at += 1;
                    alternatives.push(Vec::new());
                }
                Some(_) => {
                    let term = parser.term()?;
                    if let Some(terms) = alternatives.last_mut() {
                        terms.push(term);
                    }
                }
            }
        }
    }
}

/// A cursor over the text of a filter.
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn term(&mut self) -> Result<Term, FilterError> {
        let start = self.at;
        let mut is_negated = false;
        while self.peek() == Some('!') {
            is_negated = !is_negated;
            self.at += 1;
        }
        let predicate = match self.peek() {
            None | Some('|') => return Err(error(start..self.at, "`!` needs a word after it, as in !idle")),
            Some(character) if character.is_whitespace() => {
                return Err(error(start..self.at, "`!` must not be followed by a space: !idle"));
            }
            Some('/') => self.regex()?,
            Some('"') => Predicate::Word(self.quoted()?.to_lowercase()),
            Some(_) => self.atom()?,
        };
        Ok(Term { is_negated, predicate })
    }

    fn regex(&mut self) -> Result<Predicate, FilterError> {
        let start = self.at;
        let body = &self.rest()[1..];
        let mut is_escaped = false;
        let end = body.char_indices().find(|(_, character)| {
            let is_end = *character == '/' && !is_escaped;
            is_escaped = *character == '\\' && !is_escaped;
            is_end
        });
        let Some((length, _)) = end else {
            return Err(error(start..self.text.len(), "the regular expression has no closing `/`"));
        };
        self.at = start + length + 2;
        let at = start..self.at;
        self.expect_end("expected a space after the closing `/`; write a path in quotes")?;
        if length == 0 {
            return Err(error(at, "the regular expression is empty"));
        }
        let pattern = body[..length].replace("\\/", "/");
        match RegexBuilder::new(&pattern).case_insensitive(true).size_limit(MAX_REGEX_BYTES).build() {
            Ok(regex) => Ok(Predicate::Regex(regex)),
            Err(cause) => Err(FilterError { at, message: format!("invalid regular expression: {cause}") }),
        }
    }

    /// Reads a quoted text and returns it without the quotes.
    fn quoted(&mut self) -> Result<&'a str, FilterError> {
        let start = self.at;
        let body = &self.rest()[1..];
        let Some(length) = body.find('"') else {
            return Err(error(start..self.text.len(), "the closing quote is missing"));
        };
        self.at = start + length + 2;
        self.expect_end("expected a space after the closing quote")?;
        Ok(&body[..length])
    }

    /// Checks that a space, `|` or the end follows.
    fn expect_end(&self, message: &str) -> Result<(), FilterError> {
        match self.peek() {
            Some(character) if !character.is_whitespace() && character != '|' => {
                Err(error(self.at..self.at + character.len_utf8(), message))
            }
            _ => Ok(()),
        }
    }

    /// Reads a word, or a key with a value.
    fn atom(&mut self) -> Result<Predicate, FilterError> {
        let start = self.at;
        let rest = self.rest();
        let length = rest.find(|character: char| character.is_whitespace() || character == '|').unwrap_or(rest.len());
        let atom = &rest[..length];
        let key_length = atom.find([':', '<', '>', '=']).unwrap_or(atom.len());
        let key = &atom[..key_length];
        // `--lr=3` and `8:00` are words, and so is a word without an operator.
        if key_length == atom.len() || key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            self.at = start + length;
            return Ok(word(atom));
        }
        let (comparison, mark_length) = comparison(&atom[key_length..]);
        let value_at = start + key_length + mark_length;
        self.at = value_at;
        let value = if self.peek() == Some('"') { self.quoted()? } else { &atom[key_length + mark_length..] };
        self.at = self.at.max(start + length);
        let at = start..self.at;
        let operator = &atom[key_length..key_length + mark_length];
        key_and_value(&KeyValue { key, operator, comparison, value, at, value_at })
    }
}

struct KeyValue<'a> {
    key: &'a str,
    operator: &'a str,
    comparison: Comparison,
    value: &'a str,
    at: Range<usize>,
    value_at: usize,
}

fn comparison(text: &str) -> (Comparison, usize) {
    match text.as_bytes() {
        [b'<', b'=', ..] => (Comparison::AtMost, 2),
        [b'>', b'=', ..] => (Comparison::AtLeast, 2),
        [b'<', ..] => (Comparison::Below, 1),
        [b'>', ..] => (Comparison::Above, 1),
        _ => (Comparison::Equal, 1),
    }
}

fn word(atom: &str) -> Predicate {
    match atom {
        "stuck" => Predicate::Flag(Flag::Stuck),
        "mine" => Predicate::Flag(Flag::Mine),
        "ended" => Predicate::Flag(Flag::Ended),
        _ => Predicate::Word(atom.to_lowercase()),
    }
}

/// The type of a key.
enum Key {
    Text(TextField),
    Number(NumericField, Unit),
    Gpu,
    State,
}

#[derive(Clone, Copy)]
enum Unit {
    Count,
    Bytes,
    Percent,
    Watts,
    Time,
}

/// Every key with an example.
const KEYS: [(&str, Key, &str); 19] = [
    ("user", Key::Text(TextField::User), "user:bob"),
    ("host", Key::Text(TextField::Host), "host:hgx"),
    ("cmd", Key::Text(TextField::Command), "cmd:vllm"),
    ("command", Key::Text(TextField::Command), "cmd:vllm"),
    ("tag", Key::Text(TextField::Tag), "tag:h100"),
    ("model", Key::Text(TextField::Model), "model:a100"),
    ("job", Key::Text(TextField::Job), "job:1234"),
    ("gpu", Key::Gpu, "gpu:3"),
    ("state", Key::State, "state:D"),
    ("gpus", Key::Number(NumericField::Gpus, Unit::Count), "gpus>=8"),
    ("free", Key::Number(NumericField::Free, Unit::Count), "free>=4"),
    ("pid", Key::Number(NumericField::Pid, Unit::Count), "pid:4471"),
    ("mem", Key::Number(NumericField::Memory, Unit::Bytes), "mem>10G"),
    ("rss", Key::Number(NumericField::Rss, Unit::Bytes), "rss>64G"),
    ("sm", Key::Number(NumericField::Sm, Unit::Percent), "sm<5"),
    ("cpu", Key::Number(NumericField::Cpu, Unit::Percent), "cpu>200"),
    ("power", Key::Number(NumericField::Power, Unit::Watts), "power<100"),
    ("idle", Key::Number(NumericField::Idle, Unit::Time), "idle>30m"),
    ("age", Key::Number(NumericField::Age, Unit::Time), "age>1d"),
];

fn key_and_value(pair: &KeyValue<'_>) -> Result<Predicate, FilterError> {
    let KeyValue { key, operator, comparison, value, .. } = *pair;
    let Some((_, kind, example)) = KEYS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(key)) else {
        let hint = did_you_mean(key, KEYS.iter().map(|(name, ..)| *name))
            .unwrap_or_else(|| "write a word that contains `:`, `<`, `>` or `=` in quotes".to_owned());
        let at = pair.at.start..pair.at.start + key.len();
        return Err(FilterError { at, message: format!("unknown key `{key}`: {hint}") });
    };
    if value.is_empty() {
        return Err(FilterError {
            at: pair.at.clone(),
            message: format!("`{key}{operator}` needs a value, as in {example}"),
        });
    }
    let at = pair.value_at..pair.at.end;
    let takes_colon = || match comparison {
        Comparison::Equal => Ok(()),
        _ => Err(FilterError { at: pair.at.clone(), message: format!("`{key}` cannot be compared: write {example}") }),
    };
    match kind {
        Key::Text(text) => {
            takes_colon()?;
            Ok(Predicate::Text(*text, value.to_lowercase()))
        }
        Key::State => {
            takes_colon()?;
            Ok(Predicate::State(value.to_owned()))
        }
        Key::Gpu => {
            takes_colon()?;
            let indexes = gpu_indexes(value);
            let message = || format!("`{value}` is not a list of GPUs: write gpu:3, gpu:0-3 or gpu:2,3");
            indexes.map(Predicate::Gpu).ok_or_else(|| FilterError { at, message: message() })
        }
        Key::Number(number, unit) => match unit.parse(value) {
            Some(limit) => Ok(Predicate::Number(*number, comparison, limit)),
            None => Err(FilterError { at, message: format!("`{value}` is {}: write {example}", unit.error_message()) }),
        },
    }
}

impl Unit {
    fn parse(self, text: &str) -> Option<f64> {
        if matches!(self, Self::Time) {
            return parse_seconds(&text.to_ascii_lowercase()).ok();
        }
        let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().ok()?;
        let factor = match (self, unit.to_ascii_lowercase().as_str()) {
            (Self::Count | Self::Percent | Self::Watts, "") | (Self::Percent, "%") | (Self::Watts, "w") => 1.0,
            (Self::Watts, "kw") => 1000.0,
            (Self::Bytes, "k" | "kb" | "kib") => f64::from(1u32 << 10),
            (Self::Bytes, "m" | "mb" | "mib") => f64::from(1u32 << 20),
            (Self::Bytes, "g" | "gb" | "gib") => f64::from(1u32 << 30),
            (Self::Bytes, "t" | "tb" | "tib") => (1u64 << 40) as f64,
            _ => return None,
        };
        Some(number * factor)
    }

    fn error_message(self) -> &'static str {
        match self {
            Self::Count => "not a number",
            Self::Bytes => "not a size with a unit K, M, G or T",
            Self::Percent => "not a percentage",
            Self::Watts => "not a power in watts",
            Self::Time => "not a duration with a unit s, m, h, d or w",
        }
    }
}

/// Parses `3`, `0-3` or `2,3`.
fn gpu_indexes(text: &str) -> Option<Vec<u32>> {
    const MAX_INDEX: u32 = 4096;
    let mut indexes = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MAX_INDEX {
            return None;
        }
        indexes.extend(first..=last);
    }
    Some(indexes)
}

fn error(at: Range<usize>, message: &str) -> FilterError {
    FilterError { at, message: message.to_owned() }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
