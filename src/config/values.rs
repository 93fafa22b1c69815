//! Values of TOML documents: typed reading with positions, and values written as text (durations, GPU indexes, paths).

use super::diagnostic::{Diagnostic, did_you_mean, nearest};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::DeValue;

/// The highest GPU index in `reserved`.
const MAX_GPU_INDEX: u32 = 1023;

/// The shortest interval between snapshots.
pub(super) const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// The longest interval between snapshots.
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(60);

const INTERVAL_HINT: &str = "write a number and a unit, \"250ms\" to \"60s\", as in interval = \"2s\"";

/// A text is not a duration with a unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DurationError {
    /// The number has no unit.
    MissingUnit(f64),
    /// The text is not a number with a known unit.
    Malformed,
}

/// Parses a duration in seconds: a decimal number and a unit, `ms`, `s`, `m` or `min`, `h`, `d`, `w`. Spaces between
/// them are allowed.
pub fn parse_seconds(text: &str) -> Result<f64, DurationError> {
    let text = text.trim();
    let split = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.parse::<f64>().map_err(|_| DurationError::Malformed)?;
    match unit.trim_start() {
        "ms" => Ok(number * 0.001),
        "s" => Ok(number),
        "m" | "min" => Ok(number * 60.0),
        "h" => Ok(number * 3600.0),
        "d" => Ok(number * 86_400.0),
        "w" => Ok(number * 604_800.0),
        "" => Err(DurationError::MissingUnit(number)),
        _ => Err(DurationError::Malformed),
    }
}

/// Parses an interval from 0.25 s to 60 s: `250ms`, `2s`, `1.5s`, `1m`.
pub fn parse_interval(text: &str, at: Range<usize>) -> Result<Duration, Diagnostic> {
    let text = text.trim();
    let seconds = match parse_seconds(text) {
        Ok(seconds) => seconds,
        Err(DurationError::MissingUnit(_)) => {
            return Err(Diagnostic::at(at, format!("the interval `{text}` has no unit"), INTERVAL_HINT));
        }
        Err(DurationError::Malformed) => {
            return Err(Diagnostic::at(at, format!("`{text}` is not an interval"), INTERVAL_HINT));
        }
    };
    let interval = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    if interval < MIN_INTERVAL {
        let hint = "the minimum is 250ms: the driver updates its readings no faster";
        return Err(Diagnostic::at(at, format!("the interval `{text}` is too short"), hint));
    }
    if interval > MAX_INTERVAL {
        return Err(Diagnostic::at(at, format!("the interval `{text}` is too long"), "the maximum is 60s"));
    }
    Ok(interval)
}

/// Parses GPU indexes, `0-3` or `0,2`, and returns them sorted without duplicates.
pub(crate) fn parse_indexes(text: &str, at: Range<usize>) -> Result<Vec<u32>, Diagnostic> {
    let hint = "write GPU indexes as in reserved = \"0-3\" or \"0,2\"";
    let number = |word: &str| {
        let word = word.trim();
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        match word.parse::<u32>() {
            Ok(index) if is_number && index <= MAX_GPU_INDEX => Ok(index),
            Ok(index) if is_number => Err(Diagnostic::at(
                at.clone(),
                format!("the GPU index {index} is too large"),
                format!("the limit is {MAX_GPU_INDEX}"),
            )),
            _ => Err(Diagnostic::at(at.clone(), format!("`{word}` is not a GPU index"), hint)),
        }
    };
    let mut indexes = Vec::new();
    if text.trim().is_empty() {
        return Ok(indexes);
    }
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(Diagnostic::at(at, format!("the range `{}` runs backwards", item.trim()), hint));
        }
        indexes.extend(first..=last);
    }
    indexes.sort_unstable();
    indexes.dedup();
    Ok(indexes)
}

/// Parses a local path. `~/` is the home directory; a relative path begins at `base`.
pub(super) fn parse_path(
    text: &str,
    at: Range<usize>,
    base: &Path,
    home: Option<&Path>,
) -> Result<PathBuf, Diagnostic> {
    if text.is_empty() {
        return Err(Diagnostic::at(at, "an empty path", "remove the key to use the default"));
    }
    let Some(after) = text.strip_prefix('~') else {
        return Ok(base.join(text));
    };
    let Some(home) = home else {
        return Err(Diagnostic::at(
            at,
            "`~` cannot be expanded: the home directory is unknown",
            "set HOME, or write an absolute path",
        ));
    };
    match after.strip_prefix('/') {
        Some(rest) => Ok(home.join(rest)),
        None if after.is_empty() => Ok(home.to_owned()),
        None => Err(Diagnostic::at(at, format!("`{text}`: only `~/` is expanded"), "write an absolute path")),
    }
}

/// A value and its byte range in the file.
#[derive(Debug, Clone)]
pub(super) struct SpannedValue<T> {
    pub(super) value: T,
    pub(super) at: Range<usize>,
    /// The offset of the text if the value is a quoted string without escapes, so that a range within the text can be
    /// shown.
    pub(super) text_start: Option<usize>,
}

impl SpannedValue<String> {
    /// Moves a diagnostic about this text to its place in the file.
    pub(super) fn relocate(&self, diagnostic: Diagnostic) -> Diagnostic {
        match self.text_start {
            Some(offset) => diagnostic.offset_by(offset),
            None => Diagnostic { at: self.at.clone(), ..diagnostic },
        }
    }
}

/// The input for reading a table besides the table itself.
pub(super) struct ParseContext<'a> {
    /// The content of the file.
    pub(super) text: &'a str,
    /// The directory at which relative paths begin.
    pub(super) base: &'a Path,
    /// The directory that `~` stands for.
    pub(super) home: Option<&'a Path>,
}

/// The diagnostic for an unknown key, with the nearest known one as a hint.
pub(crate) fn unknown_key(
    key: &str,
    at: Range<usize>,
    known: impl IntoIterator<Item = &'static str> + Clone,
) -> Diagnostic {
    let hint = did_you_mean(key, known.clone())
        .unwrap_or_else(|| format!("the keys are {}", known.into_iter().collect::<Vec<_>>().join(", ")));
    Diagnostic::at(at, format!("unknown key `{key}`"), hint)
}

/// Reads an integer or a float.
pub(super) fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(number) => number.as_str().replace('_', "").parse().ok(),
        DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
        _ => None,
    }
}

/// Returns the TOML type of a value, for messages.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

pub(crate) fn mismatch(key: &str, wanted: &str, value: &Spanned<DeValue<'_>>, example: &str) -> Diagnostic {
    Diagnostic::at(
        value.span(),
        format!("`{key}` must be {wanted}, not {}", kind(value.get_ref())),
        format!("as in {example}"),
    )
}

pub(super) fn text<'a>(key: &str, value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, Diagnostic> {
    let example = match key {
        "reserved" => "reserved = \"0-3\"".to_owned(),
        "name" => "name = \"hgx-[01-04]\"".to_owned(),
        _ => format!("{key} = \"...\""),
    };
    value.get_ref().as_str().ok_or_else(|| mismatch(key, "a string", value, &example))
}

pub(super) fn spanned(
    key: &str,
    value: &Spanned<DeValue<'_>>,
    source: &str,
) -> Result<SpannedValue<String>, Diagnostic> {
    let text = text(key, value)?.to_owned();
    let at = value.span();
    // In a string with escapes, offsets differ from those in the file.
    let is_plain = source.get(at.start + 1..at.end.saturating_sub(1)) == Some(text.as_str());
    Ok(SpannedValue { text_start: is_plain.then_some(at.start + 1), at, value: text })
}

pub(crate) fn boolean(key: &str, value: &Spanned<DeValue<'_>>) -> Result<bool, Diagnostic> {
    value.get_ref().as_bool().ok_or_else(|| mismatch(key, "true or false", value, &format!("{key} = true")))
}

pub(crate) fn not_among(key: &str, word: &str, at: Range<usize>, words: &[&str]) -> Diagnostic {
    let hint = match nearest(word, words.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("one of {}", words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")),
    };
    Diagnostic::at(at, format!("`{key}` cannot be \"{word}\""), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_need_a_unit() {
        let times = ["250ms", " 1.5 s", "2m", "2 min", "1h", "1d", "1w"].map(parse_seconds);
        assert_eq!(times, [0.25, 1.5, 120.0, 120.0, 3600.0, 86_400.0, 604_800.0].map(Ok));
        assert_eq!(parse_seconds("90"), Err(DurationError::MissingUnit(90.0)));
        for text in ["", "s", "-1s", "1.2.3s", "infs", "1e3s", "5 weeks"] {
            assert_eq!(parse_seconds(text), Err(DurationError::Malformed), "{text}");
        }
    }

    #[test]
    fn intervals_need_a_unit_and_have_limits() {
        let read = |text: &str| parse_interval(text, 0..0).map_err(|diagnostic| diagnostic.message);
        assert_eq!(read("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(read("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(read("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(read("0.5 s"), Ok(Duration::from_millis(500)));
        assert_eq!(read("2"), Err("the interval `2` has no unit".to_owned()));
        assert_eq!(read("100ms"), Err("the interval `100ms` is too short".to_owned()));
        assert_eq!(read("0s"), Err("the interval `0s` is too short".to_owned()));
        assert_eq!(read("61s"), Err("the interval `61s` is too long".to_owned()));
        assert_eq!(
            read("99999999999999999999999m"),
            Err("the interval `99999999999999999999999m` is too long".to_owned())
        );
        for text in ["", "s", "two", "2 h", "-2s", "1.2.3s", "NaNs", "2ss"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn gpu_indexes_are_sorted() {
        let read = |text: &str| parse_indexes(text, 0..0).map_err(|diagnostic| diagnostic.message);
        assert_eq!(read("0-3"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(read("2, 0,2"), Ok(vec![0, 2]));
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("3-0"), Err("the range `3-0` runs backwards".to_owned()));
        assert_eq!(read("0-4000000000"), Err("the GPU index 4000000000 is too large".to_owned()));
        assert_eq!(read("all"), Err("`all` is not a GPU index".to_owned()));
        assert_eq!(read("1,"), Err("`` is not a GPU index".to_owned()));
    }

    #[test]
    fn paths_are_relative_to_home_or_to_the_file() {
        let read = |text: &str, home: Option<&str>| {
            parse_path(text, 0..0, Path::new("/etc/lab"), home.map(Path::new)).map_err(|diagnostic| diagnostic.message)
        };
        assert_eq!(read("~/.ssh/id", Some("/home/a")), Ok(PathBuf::from("/home/a/.ssh/id")));
        assert_eq!(read("/k", None), Ok(PathBuf::from("/k")));
        assert_eq!(read("keys/k", None), Ok(PathBuf::from("/etc/lab/keys/k")));
        assert!(read("~/k", None).is_err());
        assert!(read("~bob/k", Some("/home/a")).is_err());
        assert!(read("", Some("/home/a")).is_err());
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_intervals_are_in_range(text in "\\PC{0,12}") {
            if let Ok(interval) = parse_interval(&text, 0..0) {
                prop_assert!((MIN_INTERVAL..=MAX_INTERVAL).contains(&interval));
            }
            let _ = parse_indexes(&text, 0..0);
        }
    }
}
