//! The script of a simulated host: its jobs, and the events that happen to it. TOML files hold the scripts of the demo and of
//! the labelled cases (tests/traces/README.md describes them).

use serde::Deserialize;
use std::collections::BTreeMap;

/// Processes that belong together: one per GPU, or a single one.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Job {
    /// Login name.
    pub user: String,
    /// The command line of each process. A `|` separates the arguments if they contain spaces; `{rank}` is the rank.
    pub command: String,
    /// The GPUs.
    pub gpus: Positions,
    /// The hosts.
    pub hosts: Positions,
    /// One process for all GPUs.
    pub single: bool,
    /// `slurm 3385`, `docker 0123456789ab`, `service NAME`, `session 12`, `tmux`, `nohup`, `shell`.
    pub under: String,
    /// Command line of the parent that started the processes; empty if there is no such parent.
    pub launcher: String,
    /// GPU memory of each process, in GiB per GPU.
    pub memory: f64,
    /// Age of the processes when the script begins.
    pub age: Seconds,
    /// CPU time of each process when the script begins; by default 70 % of its age.
    pub cpu_time: Option<Seconds>,
    /// The phases begin again after this time, with new processes.
    pub every: Option<Seconds>,
    /// Phases of each process: `"20m spin watts=104"`.
    pub work: Vec<Step>,
    /// Phases of single ranks, instead of `work`.
    pub ranks: BTreeMap<String, Vec<Step>>,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            user: "alice".to_owned(),
            command: "python -u train.py --config configs/llama-8b.yaml".to_owned(),
            gpus: Positions::default(),
            hosts: Positions(vec![(0, 0)]),
            single: false,
            under: "shell".to_owned(),
            launcher: String::new(),
            memory: 60.0,
            age: Seconds(3.0 * 3600.0),
            cpu_time: None,
            every: None,
            work: Vec::new(),
            ranks: BTreeMap::new(),
        }
    }
}

/// Kinds of work that a process does in a phase.
const WORK: &str = "train spin idle wait load starve decode fsdp comm tiny serve barrier gone";
/// Events of hosts, GPUs and connections.
const EVENTS: &str = "absurd blips blocked brake busy capped clock cpu disk down driver ecc ghost hang hot ib limit link_errors lost mig \
    mismatch nfs no_energy nvlink oom pcie persistence_off pressure ram reboot recovery remap reset skip sleep slow_start \
    slurm smoothing swap thermal unknown vanish xid";
/// Arguments whose value is a word, not a number or a time.
const WORDS: [&str; 9] = ["action", "counter", "error", "log", "mount", "presence", "state", "style", "version"];

/// A time, a word and arguments: a phase of work, or an event.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Step {
    /// Seconds after the beginning of the script.
    pub at: f64,
    /// The kind of work or event.
    pub word: String,
    /// The GPUs that an event happens to.
    pub gpus: Option<Positions>,
    /// The hosts that an event happens to.
    pub hosts: Positions,
    /// Key, text and value of each argument.
    arguments: Vec<(String, String, f64)>,
}

impl Step {
    /// Parses `"20m spin watts=104"`.
    ///
    /// # Errors
    /// If the time, the word or the value of an argument is not valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let at = words.next().and_then(seconds).ok_or_else(|| format!("`{text}` does not begin with a time"))?;
        let known = |word: &&str| WORK.split(' ').chain(EVENTS.split_whitespace()).any(|known| known == *word);
        let word = words.next().filter(known).ok_or_else(|| format!("`{text}` has no known kind of work or event"))?;
        let mut step =
            Self { at, word: word.to_owned(), gpus: None, hosts: Positions::default(), arguments: Vec::new() };
        for (key, value) in arguments(words) {
            match key.as_str() {
                "gpu" => step.gpus = Some(Positions::try_from(value)?),
                "hosts" => step.hosts = Positions::try_from(value)?,
                _ => {
                    let number = if value.is_empty() || WORDS.contains(&key.as_str()) {
                        0.0
                    } else {
                        seconds(&value).ok_or_else(|| format!("`{key}={value}` is neither a number nor a time"))?
                    };
                    step.arguments.push((key, value, number));
                }
            }
        }
        Ok(step)
    }

    /// Returns the number of a key; times are in seconds.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.arguments.iter().find(|(known, ..)| known == key).map(|(.., number)| *number)
    }

    /// Returns the text of a key.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.arguments.iter().find(|(known, ..)| known == key).map(|(_, text, _)| text.as_str())
    }

    /// Returns whether the key is present.
    pub fn has(&self, key: &str) -> bool {
        self.text(key).is_some()
    }

    /// Returns whether the event happens to this GPU; without `gpu=` it happens to the first one.
    pub fn is_on(&self, gpu: usize) -> bool {
        self.gpus.as_ref().map_or(gpu == 0, |gpus| gpus.contains(gpu))
    }

    /// Returns whether the event goes on at a time. With `every` it repeats.
    pub fn is_at(&self, time: f64) -> bool {
        let since = time - self.at;
        let since = if since >= 0.0 { self.number("every").map_or(since, |every| since % every) } else { since };
        since >= 0.0 && self.number("for").is_none_or(|lasts| since < lasts)
    }

    /// Returns the number of a key at a time: it changes evenly to that of `to` while the event lasts.
    pub fn ramp(&self, key: &str, time: f64) -> Option<f64> {
        let from = self.number(key)?;
        let share = self.number("for").map_or(1.0, |lasts| ((time - self.at) / lasts).clamp(0.0, 1.0));
        Some(self.number("to").map_or(from, |to| from + (to - from) * share))
    }
}

impl TryFrom<String> for Step {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

/// Splits `key=value` words; a `+` in a value stands for a space.
pub fn arguments<'a>(words: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (String, String)> {
    let pairs = words.map(|word| word.split_once('=').unwrap_or((word, "")));
    pairs.map(|(key, value)| (key.to_owned(), value.replace('+', " ")))
}

/// Parses `90`, `90s`, `5m`, `2h30m`, `-1d` as seconds. A number without a unit may have an exponent.
pub fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    if let Some(text) = text.strip_prefix('-') {
        return seconds(text).map(|seconds| -seconds);
    }
    let mut total = 0.0;
    for part in text.split_inclusive(|character: char| character.is_ascii_alphabetic()) {
        let (number, unit) = part.split_at(part.len() - 1);
        let unit = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
    }
    (!text.is_empty()).then_some(total)
}

/// A time in seconds, written as for [`seconds`].
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Deserialize)]
#[serde(try_from = "String")]
pub struct Seconds(pub f64);

impl TryFrom<String> for Seconds {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        seconds(&text).map(Self).ok_or_else(|| format!("`{text}` is not a time"))
    }
}

/// Positions of GPUs or hosts: `0-3,7`. An empty text means all.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Positions(pub Vec<(usize, usize)>);

impl Positions {
    /// Returns whether a position is among them.
    pub fn contains(&self, position: usize) -> bool {
        self.0.is_empty() || self.0.iter().any(|(first, last)| (*first..=*last).contains(&position))
    }

    /// Returns those below `count`.
    pub fn below(&self, count: usize) -> Vec<usize> {
        (0..count).filter(|position| self.contains(*position)).collect()
    }
}

impl TryFrom<String> for Positions {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ranges: Option<Vec<_>> = text.split(',').filter(|part| !part.is_empty()).map(range).collect();
        ranges.map(Self).ok_or_else(|| format!("`{text}` are no positions"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let texts = ["90", "90s", "5m", "2h30m", "-1d", "2e8", "0.5", "", "5x", "m", "1h5"];
        let expected =
            [90.0, 90.0, 300.0, 9000.0, -86_400.0, 2e8, 0.5].map(Some).into_iter().chain([None; 4]).collect::<Vec<_>>();
        assert_eq!(texts.map(seconds).to_vec(), expected);
    }

    #[test]
    fn a_step_has_a_time_a_known_word_and_checked_arguments() {
        let step = Step::parse("20m disk mount=/home gpu=0-1,3 percent=83 to=93 for=10m").unwrap();
        assert_eq!((step.at, step.word.as_str(), step.text("mount")), (1200.0, "disk", Some("/home")));
        assert_eq!([1, 2, 3].map(|gpu| step.is_on(gpu)), [true, false, true]);
        assert_eq!([1199.0, 1200.0, 1799.0, 1800.0].map(|time| step.is_at(time)), [false, true, true, false]);
        assert_eq!(step.ramp("percent", 1500.0), Some(88.0));
        for (text, error) in [
            ("disk", "`disk` does not begin with a time"),
            ("0 dance", "`0 dance` has no known kind of work or event"),
            ("0 spin watts=1o4", "`watts=1o4` is neither a number nor a time"),
            ("0 lost gpu=a", "`a` are no positions"),
        ] {
            assert_eq!(Step::parse(text), Err(error.to_owned()));
        }
    }

    #[test]
    fn an_event_may_repeat() {
        let step = Step::parse("10 down for=5 every=60").unwrap();
        assert_eq!([9.0, 12.0, 16.0, 71.0, 76.0].map(|time| step.is_at(time)), [false, true, false, true, false]);
    }
}
