//! The case files: what happens on which hosts, and the expected findings. README.md describes the format.

use serde::Deserialize;
use std::collections::BTreeMap;

/// One case file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    case: Vec<Case>,
}

/// One labelled case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Unique among all cases.
    pub(crate) name: String,
    /// Number of the trace in the design's list; 0 if it is not in the list.
    pub(crate) trace: u32,
    /// The GPU model, a word of `gpu_model.rs`.
    #[serde(default = "h100")]
    pub(crate) gpu: String,
    /// GPUs per host.
    #[serde(default = "eight")]
    pub(crate) gpus: usize,
    /// Number of hosts.
    #[serde(default = "one")]
    pub(crate) hosts: usize,
    /// Seconds between samples.
    #[serde(default = "ten")]
    pub(crate) interval: f64,
    /// Length of the trace.
    pub(crate) length: String,
    /// The jobs.
    #[serde(default)]
    pub(crate) jobs: Vec<Job>,
    /// Events: `"20m lost gpu=3 for=10s"`.
    #[serde(default)]
    pub(crate) events: Vec<String>,
    /// Findings that the case must produce: `"stuck-spin warn from=20m at=5m says=train.py"`.
    #[serde(default)]
    pub(crate) must: Vec<String>,
    /// Findings that the case may also produce: `"idle-hog info"`. Any other one at warn or above is false.
    #[serde(default)]
    pub(crate) may: Vec<String>,
    /// Rules that must not fire at all, or not at this severity: `"idle-hog"`, `"stuck-spin crit"`.
    #[serde(default)]
    pub(crate) must_not: Vec<String>,
    /// Maximum number of notifications.
    #[serde(default)]
    pub(crate) notifications: Option<usize>,
    /// Words that must occur, at the end, in what diagnosis reports as not judged.
    #[serde(default)]
    pub(crate) not_judged: Vec<String>,
    /// Rules that must have no open finding at the end.
    #[serde(default)]
    pub(crate) over: Vec<String>,
    /// When the monitor starts in the variant `late`. The default is half-way for cases without `must`.
    #[serde(default)]
    pub(crate) late: Option<String>,
    /// Replaces `must` in the variant `late`.
    #[serde(default)]
    pub(crate) late_must: Vec<String>,
    /// Added to `may` in the variant `late`.
    #[serde(default)]
    pub(crate) late_may: Vec<String>,
    /// Variants in which the case does not run, each with the reason: `"gaps: the whole event is shorter than a gap"`.
    #[serde(default)]
    pub(crate) except: Vec<String>,
}

/// Processes that belong together: one per GPU, or a single one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Job {
    /// Login name.
    #[serde(default = "alice")]
    pub(crate) user: String,
    /// The command line of each process. A `|` separates the arguments if they contain spaces.
    #[serde(default = "train_py")]
    pub(crate) command: String,
    /// Positions of the GPUs: `"0-7"`, `"0,2"`.
    #[serde(default = "all")]
    pub(crate) gpus: String,
    /// The hosts: `"0"`, `"0-1"`.
    #[serde(default = "zero")]
    pub(crate) hosts: String,
    /// One process for all GPUs.
    #[serde(default)]
    pub(crate) single: bool,
    /// `slurm 3385`, `docker 0123456789ab`, `service name`, `tmux`, `nohup`, `shell`.
    #[serde(default = "shell")]
    pub(crate) under: String,
    /// Command line of the parent that started the processes; empty if there is no such parent.
    #[serde(default)]
    pub(crate) launcher: String,
    /// GPU memory of each process, in GiB per GPU.
    #[serde(default = "sixty")]
    pub(crate) memory: f64,
    /// Age of the processes when the case begins.
    #[serde(default = "three_hours")]
    pub(crate) age: String,
    /// Work phases of each process: `"20m spin watts=104"`.
    pub(crate) work: Vec<String>,
    /// Work phases of single ranks, instead of `work`.
    #[serde(default)]
    pub(crate) ranks: BTreeMap<String, Vec<String>>,
}

fn h100() -> String {
    "h100".to_owned()
}
fn eight() -> usize {
    8
}
fn one() -> usize {
    1
}
fn ten() -> f64 {
    10.0
}
fn alice() -> String {
    "alice".to_owned()
}
fn train_py() -> String {
    "python -u train.py --config configs/llama-8b.yaml".to_owned()
}
fn all() -> String {
    String::new()
}
fn zero() -> String {
    "0".to_owned()
}
fn shell() -> String {
    "shell".to_owned()
}
fn sixty() -> f64 {
    60.0
}
fn three_hours() -> String {
    "3h".to_owned()
}

/// A time, a word and arguments: a phase of work, or an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// Seconds after the beginning of the case.
    pub(crate) at: f64,
    /// The kind of work or event.
    pub(crate) word: String,
    /// `key=value` pairs; a key alone has an empty value.
    pub(crate) arguments: BTreeMap<String, String>,
}

impl Step {
    /// Parses `"20m spin watts=104"`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let at = seconds(words.next().unwrap_or_else(|| panic!("`{text}` has no time")));
        let word = words.next().unwrap_or_else(|| panic!("`{text}` has no word")).to_owned();
        Self { at, word, arguments: arguments(words) }
    }

    /// The number of a key.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        let text = self.arguments.get(key)?;
        Some(text.parse().unwrap_or_else(|_| panic!("`{key}={text}` is not a number")))
    }

    /// The time of a key, in seconds.
    pub(crate) fn time(&self, key: &str) -> Option<f64> {
        self.arguments.get(key).map(|text| seconds(text))
    }

    /// The text of a key.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.arguments.get(key).map(String::as_str)
    }

    /// Whether the key is present.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.arguments.contains_key(key)
    }
}

/// Parses `key=value` words; a `+` in a value stands for a space.
pub(crate) fn arguments<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let pairs = words.map(|word| word.split_once('=').unwrap_or((word, "")));
    pairs.map(|(key, value)| (key.to_owned(), value.replace('+', " "))).collect()
}

/// Parses `90`, `90s`, `5m`, `2h`, `1d`, `2h30m`.
pub(crate) fn seconds(text: &str) -> f64 {
    let mut total = 0.0;
    let mut number = String::new();
    for character in text.chars() {
        let unit = match character {
            '0'..='9' | '.' => {
                number.push(character);
                continue;
            }
            's' => 1.0,
            'm' => 60.0,
            'h' => 3600.0,
            'd' => 86_400.0,
            _ => panic!("`{text}` is not a time"),
        };
        total += number.parse::<f64>().unwrap_or_else(|_| panic!("`{text}` is not a time")) * unit;
        number.clear();
    }
    if number.is_empty() { total } else { total + number.parse::<f64>().unwrap_or_else(|_| panic!("`{text}`")) }
}

/// Parses `0-3,7`; an empty text means all of `count`.
pub(crate) fn positions(text: &str, count: usize) -> Vec<usize> {
    if text.is_empty() {
        return (0..count).collect();
    }
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("`{text}` is not a position"));
        number(first)..=number(last)
    };
    text.split(',').flat_map(part).collect()
}

/// Names and contents of the case files.
pub(crate) const FILES: [(&str, &str); 7] = [
    ("spin", include_str!("cases/spin.toml")),
    ("waste", include_str!("cases/waste.toml")),
    ("processes", include_str!("cases/processes.toml")),
    ("memory", include_str!("cases/memory.toml")),
    ("driver", include_str!("cases/driver.toml")),
    ("host", include_str!("cases/host.toml")),
    ("lookalikes", include_str!("cases/lookalikes.toml")),
];

/// Parses the cases of one file.
pub(crate) fn cases_of(file: &str) -> Vec<Case> {
    let (_, text) = FILES.iter().find(|(name, _)| *name == file).unwrap_or_else(|| panic!("no file `{file}`"));
    let parsed: CaseFile = toml::from_str(text).unwrap_or_else(|error| panic!("cases/{file}.toml: {error}"));
    parsed.case
}

/// Parses all cases.
pub(crate) fn cases() -> Vec<Case> {
    FILES.iter().flat_map(|(name, _)| cases_of(name)).collect()
}
