//! From what was typed to a filter, or to what is wrong with it and where.

use super::Filter;
use super::term::{Comparison, Flag, NumericField, Predicate, Term, TextField};
use crate::config::nearest::did_you_mean;
use crate::config::values::parse_seconds;
use regex_lite::RegexBuilder;
use std::fmt;
use std::ops::Range;

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
