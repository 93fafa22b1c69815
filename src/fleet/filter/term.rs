//! A filter, and whether it holds.

use super::FilterInput;
use super::input::RowFacts;
use regex_lite::Regex;

/// A filter that was understood: what `Filter::parse` makes.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// It holds where all terms of any of these do.
    pub(super) alternatives: Vec<Vec<Term>>,
}

/// One predicate, or its opposite.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) is_negated: bool,
    pub(super) predicate: Predicate,
}

#[derive(Debug, Clone)]
pub(super) enum Predicate {
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
pub(super) enum TextField {
    Host,
    Tag,
    Model,
    User,
    Command,
    Job,
}

/// A figure of a host or a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumericField {
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
pub(super) enum Flag {
    Stuck,
    Mine,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
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
