//! The filter language of the combined list.
//!
//! Words are looked for in host, user and command; `user:bob host:hgx gpu:3 mem>10G sm<5 idle>30m state:D stuck`,
//! `/regex/`, `!not`; a space means and, `|` means or.

use super::{GpuState, Host, Moment, ProcessTrouble, Row};
use crate::config::nearest::did_you_mean;
use crate::config::values::parse_seconds;
use regex_lite::{Regex, RegexBuilder};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// A host, and in it a row. What is not known of them is `None`, and then neither a test nor its opposite holds.
#[derive(Debug, Clone, Copy)]
pub struct FilterInput<'a> {
    /// The host.
    pub host: &'a Host,
    /// How many of its GPUs are free; `None` while its readings are not fresh.
    pub free_gpus: Option<u32>,
    /// The row; `None` asks about the host alone.
    pub row: Option<RowFacts<'a>>,
}

/// A row, with what is known of it elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct RowFacts<'a> {
    /// The row.
    pub row: &'a Row,
    /// The least and the most power of the GPUs it uses, in watts.
    pub power_watts: Option<(f32, f32)>,
    /// What diagnosis says of it in the STATE column.
    pub finding: Option<&'static str>,
    /// Whether a rule about work that hangs fires.
    pub is_stuck: bool,
    /// Now.
    pub now: Moment,
}

impl RowFacts<'_> {
    /// For how long its GPUs have been held without work.
    fn idle(&self) -> Option<Duration> {
        match self.row.state {
            Some((GpuState::Idle | GpuState::Waiting, since)) => since.map(|since| self.now.since(since)),
            // What works is not idle, however long.
            Some((GpuState::InUse, _)) => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// Whether any of its words of state begins with `word`, upper and lower case being the same; a single letter is
    /// that of the process state.
    fn is_in_state(&self, word: &str) -> Option<bool> {
        let row = self.row;
        if let ([letter], Some(state)) = (word.as_bytes(), row.process_state)
            && letter.is_ascii_uppercase()
        {
            return Some(state.letter() == char::from(*letter));
        }
        let begins = |words: &str| {
            let head = words.get(..word.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(word))
        };
        let state = row.state.map(|(state, _)| state.word());
        let ended = row.ended_at.map(|_| "ended");
        let words = [state, row.trouble.map(ProcessTrouble::word), self.finding, ended];
        let is_known = words.iter().any(Option::is_some);
        is_known.then(|| words.into_iter().flatten().any(begins))
    }
}

/// A filter that was understood: what `Filter::parse` makes.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// It holds where all terms of any of these do.
    alternatives: Vec<Vec<Term>>,
}

/// One predicate, or its opposite.
#[derive(Debug, Clone)]
struct Term {
    is_negated: bool,
    predicate: Predicate,
}

#[derive(Debug, Clone)]
enum Predicate {
    /// In host, user or command, or the pid. In lower case.
    Word(String),
    /// Over the same.
    Regex(Regex),
    /// In one text. In lower case.
    Text(TextField, String),
    /// A figure.
    Number(NumericField, Comparison, f64),
    /// On any of these GPUs.
    Gpu(Vec<u32>),
    /// The word of a state, or the letter of the process state.
    State(String),
    /// What the work is.
    Flag(Flag),
}

/// A text of a host or a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextField {
    Host,
    Tag,
    Model,
    User,
    Command,
    Job,
}

/// A figure of a host or a row.
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

    /// Whether it holds for any of several values of which these are the least and the most.
    fn matches_range(self, (least, most): (f64, f64), limit: f64) -> bool {
        match self {
            Self::Below | Self::AtMost => self.matches(least, limit),
            Self::AtLeast | Self::Above => self.matches(most, limit),
            Self::Equal => least <= limit && limit <= most,
        }
    }
}

impl Filter {
    /// Whether it lets everything pass.
    pub fn is_empty(&self) -> bool {
        self.alternatives.is_empty()
    }

    /// Whether it holds; `None` where that is not known, because a reading is missing, or because it asks about a row
    /// and there is only a host.
    pub fn matches(&self, input: &FilterInput<'_>) -> Option<bool> {
        if self.alternatives.is_empty() {
            return Some(true);
        }
        any(self.alternatives.iter().map(|terms| all(terms.iter().map(|term| term.matches(input)))))
    }
}

impl Term {
    fn matches(&self, input: &FilterInput<'_>) -> Option<bool> {
        self.predicate.matches(input).map(|holds| holds != self.is_negated)
    }
}

impl Predicate {
    fn matches(&self, input: &FilterInput<'_>) -> Option<bool> {
        match self {
            Self::Word(word) => words(input, |text| contains(text, word), Some(word)),
            Self::Regex(regex) => words(input, |text| regex.is_match(text), None),
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
    /// The least and the most of it: some figures are one a GPU, and a test holds where it does for any of them.
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

/// Host, user and command; of a host alone only a name that fits says something.
fn words(input: &FilterInput<'_>, fits: impl Fn(&str) -> bool, pid: Option<&str>) -> Option<bool> {
    let is_host = fits(input.host.name());
    let Some(facts) = input.row else { return is_host.then_some(true) };
    let row = facts.row;
    // Whoever types digits alone looks for a process.
    let is_pid = || pid.and_then(|word| word.parse::<u32>().ok()).is_some_and(|word| row.pid == Some(word));
    Some(is_host || fits(&row.who) || fits(&row.command) || is_pid())
}

/// Whether `text` has `part`, which is in lower case, in it; upper and lower case are the same.
fn contains(text: &str, part: &str) -> bool {
    if !text.is_ascii() {
        return text.to_lowercase().contains(part);
    }
    let (text, part) = (text.as_bytes(), part.as_bytes());
    part.is_empty() || text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}

/// One that does not hold decides; else all must be known.
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

/// One that holds decides; else all must be known.
fn any(terms: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(terms.map(|term| term.map(|holds| !holds))).map(|none| !none)
}

/// The longest filter, in bytes: more than anybody types.
const MAX_BYTES: usize = 1024;
/// The most memory that one compiled regex may take.
const MAX_REGEX_BYTES: usize = 256 * 1024;

/// The language in short, for the help: what is typed, and what it means. ASCII.
pub const SYNTAX: [(&str, &str); 14] = [
    ("word", "in host, user or command; a pid"),
    ("\"two words\"", "the same, with spaces or marks in it"),
    ("/regex/", "the same, as a regular expression"),
    ("user:bob host:hgx cmd:vllm", "in one of them"),
    ("tag:h100 model:a100 job:1234", "of the host, of its GPUs, of the job"),
    ("gpu:3 gpu:0-3 pid:4471", "on these GPUs; this process"),
    ("gpus>=8 mem>10G rss>64G", "number of GPUs, GPU memory, host memory"),
    ("sm<5 cpu>200 power<100", "percent and watts; of any of its GPUs"),
    ("idle>30m age>1d", "without work for so long; running for so long"),
    ("state:D state:idle", "letter of the process; word of the STATE column"),
    ("stuck mine ended", "may be hung; one's own; ended in the last 10 min"),
    ("free>=4", "on hosts with so many free GPUs"),
    ("!word", "not"),
    ("a b | c", "a and b, or c"),
];

/// What is wrong with a filter, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// The bytes of the text that are meant; at its end an empty range.
    pub at: Range<usize>,
    /// What is wrong with them, and how to write it.
    pub message: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for FilterError {}

impl Filter {
    /// Understands what was typed. An empty text lets everything pass.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        if text.len() > MAX_BYTES {
            return Err(FilterError { at: MAX_BYTES..text.len(), message: "the filter is too long".to_owned() });
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
                    return Err(FilterError { at, message: format!("nothing stands {side} the `|`") });
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

/// Reads from the beginning to the end.
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
            None | Some('|') => return Err(error(start..self.at, "`!` stands before a word: !idle")),
            Some(character) if character.is_whitespace() => {
                return Err(error(start..self.at, "`!` stands right before a word: !idle"));
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
            return Err(error(start..self.text.len(), "this regex has no closing `/`"));
        };
        self.at = start + length + 2;
        let at = start..self.at;
        self.expect_end("a regex ends with its `/`; a path is written in quotes")?;
        if length == 0 {
            return Err(error(at, "this regex is empty"));
        }
        let pattern = body[..length].replace("\\/", "/");
        match RegexBuilder::new(&pattern).case_insensitive(true).size_limit(MAX_REGEX_BYTES).build() {
            Ok(regex) => Ok(Predicate::Regex(regex)),
            Err(cause) => Err(FilterError { at, message: format!("this regex cannot be used: {cause}") }),
        }
    }

    /// A text between quotes, without them.
    fn quoted(&mut self) -> Result<&'a str, FilterError> {
        let start = self.at;
        let body = &self.rest()[1..];
        let Some(length) = body.find('"') else {
            return Err(error(start..self.text.len(), "this quote is not closed"));
        };
        self.at = start + length + 2;
        self.expect_end("a quote ends the word: leave a space behind it")?;
        Ok(&body[..length])
    }

    /// What was read must be followed by a space, `|` or the end.
    fn expect_end(&self, message: &str) -> Result<(), FilterError> {
        match self.peek() {
            Some(character) if !character.is_whitespace() && character != '|' => {
                Err(error(self.at..self.at + character.len_utf8(), message))
            }
            _ => Ok(()),
        }
    }

    /// A word, or a key with a value.
    fn atom(&mut self) -> Result<Predicate, FilterError> {
        let start = self.at;
        let rest = self.rest();
        let length = rest.find(|character: char| character.is_whitespace() || character == '|').unwrap_or(rest.len());
        let atom = &rest[..length];
        let key_length = atom.find([':', '<', '>', '=']).unwrap_or(atom.len());
        let key = &atom[..key_length];
        // `--lr=3` and `8:00` are words; so is a word without a operator.
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

/// What a key is, and an example of it.
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

/// Every key with its name and an example.
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
            .unwrap_or_else(|| "a word with a mark in it is written in quotes".to_owned());
        let at = pair.at.start..pair.at.start + key.len();
        return Err(FilterError { at, message: format!("there is no key `{key}`: {hint}") });
    };
    if value.is_empty() {
        return Err(FilterError {
            at: pair.at.clone(),
            message: format!("`{key}{operator}` wants a value, as in {example}"),
        });
    }
    let at = pair.value_at..pair.at.end;
    let takes_colon = || match comparison {
        Comparison::Equal => Ok(()),
        _ => Err(FilterError {
            at: pair.at.clone(),
            message: format!("`{key}` cannot be more or less: write {example}"),
        }),
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
            let message = || format!("`{value}` is no GPU: write gpu:3, gpu:0-3 or gpu:2,3");
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
        let (figure, unit) = text.split_at(digits);
        let figure: f64 = figure.parse().ok()?;
        let factor = match (self, unit.to_ascii_lowercase().as_str()) {
            (Self::Count | Self::Percent | Self::Watts, "") | (Self::Percent, "%") | (Self::Watts, "w") => 1.0,
            (Self::Watts, "kw") => 1000.0,
            (Self::Bytes, "k" | "kb" | "kib") => f64::from(1u32 << 10),
            (Self::Bytes, "m" | "mb" | "mib") => f64::from(1u32 << 20),
            (Self::Bytes, "g" | "gb" | "gib") => f64::from(1u32 << 30),
            (Self::Bytes, "t" | "tb" | "tib") => (1u64 << 40) as f64,
            _ => return None,
        };
        Some(figure * factor)
    }

    fn error_message(self) -> &'static str {
        match self {
            Self::Count => "no number",
            Self::Bytes => "no memory with its unit K, M, G or T",
            Self::Percent => "no percentage",
            Self::Watts => "no power in watts",
            Self::Time => "no time with its unit s, m, h, d or w",
        }
    }
}

/// `3`, `0-3`, `2,3`.
fn gpu_indexes(text: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 4096;
    let mut indexes = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MOST {
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
