//! Formats values for the screen. Unknown values are `-`, never 0.

use crate::fleet::{Moment, program_and_arguments};
use crate::wire::format::{DurationStyle, duration};
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::Duration;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;

/// A text of at most 63 bytes on the stack: a frame formats hundreds of values and must not allocate for each. Longer texts
/// are cut; formatters of numbers stay below the limit.
#[derive(Clone, Copy)]
pub(super) struct ShortString {
    bytes: [u8; Self::CAPACITY],
    length: u8,
}

impl ShortString {
    const CAPACITY: usize = 63;

    pub(super) fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], length: 0 }
    }

    /// Formats `arguments`.
    pub(super) fn of(arguments: fmt::Arguments<'_>) -> Self {
        let mut text = Self::new();
        // Writing to this buffer cannot fail.
        let _ = text.write_fmt(arguments);
        text
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length as usize]).unwrap_or_default()
    }
}

impl Default for ShortString {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for ShortString {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let start = self.length as usize;
        let mut fits = text.len().min(Self::CAPACITY - start);
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        self.bytes[start..start + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits as u8;
        Ok(())
    }
}

impl std::ops::Deref for ShortString {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for ShortString {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

/// Like [`format!`], but into a [`ShortString`].
macro_rules! short {
    ($($arguments:tt)*) => { $crate::ui::format::ShortString::of(format_args!($($arguments)*)) };
}
pub(crate) use short;

/// A value, or `-`.
pub(super) fn or_dash<T: fmt::Display>(value: Option<T>) -> ShortString {
    value.map_or_else(|| short!("-"), |value| short!("{value}"))
}

/// `41%`, or `-`.
pub(super) fn percent<T: fmt::Display>(value: Option<T>) -> ShortString {
    value.map_or_else(|| short!("-"), |value| short!("{value}%"))
}

/// The plural ending after a count: `1 host`, `2 hosts`.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Writes a number rounded to an integer, half to even, as `{:.0}` does. `{:.0}` computes exact decimals of any length and
/// took a seventh of the frame time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounded(f64);

pub(super) fn rounded(value: impl Into<f64>) -> Rounded {
    Rounded(value.into())
}

impl fmt::Display for Rounded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Below 2^53 every integer is exact in both types.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if self.0.abs() < EXACT {
            fmt::Display::fmt(&(self.0.round_ties_even() as i64), formatter)
        } else {
            write!(formatter, "{:.0}", self.0)
        }
    }
}

/// Whole gibibytes without a unit: `74`.
pub(super) fn gib(bytes: u64) -> u64 {
    (bytes as f64 / GIB).round() as u64
}

/// Memory with its unit in at most four columns: `512M`, `74G`, `450G`, `2.1T`.
pub(super) fn memory(bytes: u64) -> ShortString {
    let bytes = bytes as f64;
    if bytes < 0.95 * GIB {
        short!("{}M", rounded(bytes / MIB))
    } else if bytes < 9999.5 * GIB {
        short!("{}G", rounded(bytes / GIB))
    } else {
        short!("{:.1}T", bytes / GIB / 1024.0)
    }
}

/// `74/80G`, or `-/80G` if only the total is known.
pub(super) fn used_of_total(used: Option<u64>, total: Option<u64>) -> ShortString {
    match (used, total) {
        (used, Some(total)) => short!("{}/{}G", or_dash(used.map(gib)).as_str(), gib(total)),
        (Some(used), None) => memory(used),
        (None, None) => short!("-"),
    }
}

/// `656W`, or `12.3 kW` from 10 kW on.
pub(super) fn watts(watts: f64) -> ShortString {
    if watts < 9_999.5 { short!("{}W", rounded(watts)) } else { short!("{:.1} kW", watts / 1000.0) }
}

/// Bytes per second in at most six columns: `80K/s`, `12M/s`, `1.2G/s`.
pub(super) fn rate(bytes_per_second: f64) -> ShortString {
    let (value, unit) = match bytes_per_second {
        rate if rate < MIB => (rate / 1024.0, "K"),
        rate if rate < GIB => (rate / MIB, "M"),
        rate => (rate / GIB, "G"),
    };
    if unit == "G" && value < 99.95 { short!("{value:.1}{unit}/s") } else { short!("{}{unit}/s", rounded(value)) }
}

/// A duration in at most five columns: `45s`, `18m`, `3h12m`, `1d07h`, `41d`.
pub(super) fn span(span: Duration) -> ShortString {
    short!("{}", duration(span, DurationStyle::Column))
}

/// A duration in at most three columns: `45s`, `18m`, `3h`, `2d`.
pub(super) fn brief_span(span: Duration) -> ShortString {
    short!("{}", duration(span, DurationStyle::Brief))
}

/// Seconds in the format of [`span`]. Negative values and values out of range are `-`.
pub(super) fn age(seconds: f64) -> ShortString {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| short!("-"), span)
}

/// The time of day, `14:02:31`.
pub(super) fn clock(moment: Moment, utc_offset_seconds: i32) -> ShortString {
    let local = (moment.unix.as_secs() as i64).saturating_add(i64::from(utc_offset_seconds)).rem_euclid(86_400);
    short!("{:02}:{:02}:{:02}", local / 3600, local / 60 % 60, local % 60)
}

/// The local time of day, `08:30:47`, with the date (`2026-11-15 08:30`) if `age` is 20 hours or more.
pub(super) fn date(moment: Moment, age: Duration, utc_offset_seconds: i32) -> ShortString {
    if age < Duration::from_secs(20 * 3600) {
        return clock(moment, utc_offset_seconds);
    }
    let local = (moment.unix.as_secs() as i64).saturating_add(i64::from(utc_offset_seconds));
    let Ok(time) = jiff::Timestamp::from_second(local) else { return clock(moment, utc_offset_seconds) };
    // `local` already contains the offset.
    let time = time.to_zoned(jiff::tz::TimeZone::UTC);
    short!("{:04}-{:02}-{:02} {:02}:{:02}", time.year(), time.month(), time.day(), time.hour(), time.minute())
}

/// An interval: `2s`, `0.25s`.
pub(super) fn interval(interval: Duration) -> ShortString {
    short!("{}s", interval.as_secs_f64())
}

/// Returns the columns that a text occupies.
pub(super) fn columns(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.graphemes(true).map(grapheme_columns).sum() }
}

/// Returns the columns that a grapheme occupies.
pub(super) fn grapheme_columns(grapheme: &str) -> usize {
    grapheme.width()
}

/// Returns the longest prefix of at most `width` columns, cut between graphemes.
pub(super) fn truncate(text: &str, width: usize) -> &str {
    if text.is_ascii() {
        return &text[..text.len().min(width)];
    }
    let mut used = 0;
    for (start, grapheme) in text.grapheme_indices(true) {
        used += grapheme_columns(grapheme);
        if used > width {
            return &text[..start];
        }
    }
    text
}

/// Returns the longest suffix of at most `width` columns, cut between graphemes.
pub(super) fn truncate_start(text: &str, width: usize) -> &str {
    let mut used = 0;
    for (start, grapheme) in text.grapheme_indices(true).rev() {
        used += grapheme_columns(grapheme);
        if used > width {
            return &text[start + grapheme.len()..];
        }
    }
    text
}

/// Shortens a host name for a title. It is cut in the middle: host names often differ only at the end.
pub(super) fn shorten_host_name(name: &str) -> ShortString {
    if columns(name) <= NAME_COLUMNS {
        return short!("{name}");
    }
    let tail = truncate_start(name, NAME_COLUMNS / 2 - 1);
    short!("{}…{tail}", truncate(name, NAME_COLUMNS - 1 - columns(tail)))
}

/// The maximum columns of a host name in a title.
const NAME_COLUMNS: usize = 24;

/// Breaks `text` into lines of at most `width` columns, between words if possible.
pub(super) fn wrap(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() && width > 0 {
        let fits = truncate(rest, width);
        // A grapheme wider than the line would loop forever.
        if fits.is_empty() {
            break;
        }
        let cut = if fits.len() == rest.len() || rest[fits.len()..].starts_with(' ') {
            fits.len()
        } else {
            fits.rfind(' ').filter(|&space| space > 0).unwrap_or(fits.len())
        };
        lines.push(rest[..cut].trim_end());
        rest = rest[cut..].trim_start();
    }
    lines
}

/// Removes the directories of the program and of the script that an interpreter runs. The first columns of
/// `/opt/conda/bin/python /opt/conda/bin/torchrun train.py` would show nothing else.
pub(super) fn strip_directories(command: &str) -> Cow<'_, str> {
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let name = file_name(program);
    let (script, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
    let is_interpreter = INTERPRETERS.iter().any(|interpreter| name.starts_with(interpreter));
    let script_name = if is_interpreter && script.starts_with('/') { file_name(script) } else { script };
    if name.len() == program.len() && script_name.len() == script.len() {
        return Cow::Borrowed(command);
    }
    let parts = [name, script_name, arguments];
    Cow::Owned(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "))
}

/// The command line for a table: the script and its arguments, without interpreter, launcher and directories. The detail
/// views show the whole command.
pub(super) fn command_text(command: &str) -> Cow<'_, str> {
    let command = program_and_arguments(command);
    let is_path = |word: &str| word.starts_with('/') || (word.starts_with('-') && word.contains("=/"));
    if !command.contains("  ") && !command.ends_with(' ') && !command.split(' ').any(is_path) {
        return Cow::Borrowed(command);
    }
    let words = command.split_whitespace().map(|word| match word.split_once('=') {
        Some((option, path)) if word.starts_with('-') => Cow::Owned(format!("{option}={}", file_name(path))),
        _ if word.starts_with('/') => Cow::Borrowed(file_name(word)),
        _ => Cow::Borrowed(word),
    });
    Cow::Owned(words.collect::<Vec<_>>().join(" "))
}

const INTERPRETERS: [&str; 6] = ["python", "bash", "sh", "perl", "ruby", "node"];

/// Returns the part after the last slash. Directories, settings such as `x=/y` and kernel threads (`[name/0]`) stay whole.
fn file_name(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((_, name)) if !name.is_empty() && !path.contains('=') && !path.starts_with('[') => name,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounded_equals_formatting_without_decimals() {
        for value in [0.0, 0.4, 0.5, 1.5, 2.5, 99.49, 99.5, 1e3, -1.6, 1e15, 1e17, f64::NAN, f64::INFINITY] {
            assert_eq!(rounded(value).to_string(), format!("{value:.0}"));
        }
        assert_eq!((rounded(-0.2).to_string(), rounded(0.5_f32).to_string()), ("0".to_owned(), "0".to_owned()));
    }

    #[test]
    fn a_long_host_name_keeps_both_ends() {
        assert_eq!(shorten_host_name("hgx-01").as_str(), "hgx-01");
        assert_eq!(shorten_host_name("gpu-node-0417.cluster.example").as_str(), "gpu-node-041…ter.example");
        assert_eq!(columns(&shorten_host_name(&"大".repeat(50))), 23);
    }

    #[test]
    fn memory_has_at_most_four_columns_below_ten_tebibytes() {
        for (bytes, shown) in [
            (0, "0M"),
            (512 << 20, "512M"),
            (1 << 30, "1G"),
            (74 << 30, "74G"),
            (9_000 << 30, "9000G"),
            (20 << 40, "20.0T"),
        ] {
            assert_eq!(memory(bytes).as_str(), shown);
        }
        assert_eq!(used_of_total(Some(48 << 30), Some(81_559 << 20)).as_str(), "48/80G");
        assert_eq!(used_of_total(None, Some(80 << 30)).as_str(), "-/80G");
        assert_eq!(used_of_total(None, None).as_str(), "-");
    }

    #[test]
    fn rates_have_a_unit() {
        for (rate_of, shown) in [(0.0, "0K/s"), (80.0 * 1024.0, "80K/s"), (12.4 * MIB, "12M/s"), (1.24 * GIB, "1.2G/s")]
        {
            assert_eq!(rate(rate_of).as_str(), shown);
        }
    }

    #[test]
    fn a_command_begins_with_its_script_and_shows_no_directories() {
        for (command, shown) in [
            (
                "/opt/conda/bin/python -u train.py --model llama-8b --data /data/pile",
                "train.py --model llama-8b --data pile",
            ),
            (
                "torchrun --nproc_per_node 8 jobs/pretrain.py --config configs/moe.yaml",
                "pretrain.py --config configs/moe.yaml",
            ),
            (
                "/home/carol/.venv/bin/python3 -m ipykernel_launcher -f /home/carol/.local/share/jupyter/kernel-8f3a1c.json",
                "ipykernel_launcher -f kernel-8f3a1c.json",
            ),
            ("/usr/bin/python3 /usr/local/bin/vllm serve Qwen/Qwen3-32B", "vllm serve Qwen/Qwen3-32B"),
            ("python sft.py  --out=/scratch/run 1", "sft.py --out=run 1"),
            ("python sft.py --out=a=/b", "sft.py --out=a=/b"),
            ("VLLM::Worker_TP0", "VLLM::Worker_TP0"),
            ("", ""),
        ] {
            assert_eq!(command_text(command), shown);
        }
    }

    #[test]
    fn an_age_out_of_range_is_a_dash() {
        assert_eq!(age(11_520.0).as_str(), "3h12m");
        assert_eq!(age(f64::NAN).as_str(), "-");
        assert_eq!(age(-1.0).as_str(), "-");
    }

    #[test]
    fn times_are_local() {
        let moment = Moment { unix: Duration::from_secs(50_551), ..Moment::default() };
        assert_eq!(clock(moment, 0).as_str(), "14:02:31");
        assert_eq!(clock(moment, -15 * 3600).as_str(), "23:02:31");
        assert_eq!(date(moment, Duration::from_secs(3600), 0).as_str(), "14:02:31");
        assert_eq!(date(moment, Duration::from_secs(90_000), 0).as_str(), "1970-01-01 14:02");
        assert_eq!(date(moment, Duration::from_secs(90_000), -15 * 3600).as_str(), "1969-12-31 23:02");
        assert_eq!(interval(Duration::from_millis(250)).as_str(), "0.25s");
    }

    #[test]
    fn texts_are_cut_between_graphemes() {
        assert_eq!(truncate("größe", 3), "grö");
        assert_eq!(truncate("大きい", 5), "大き");
        assert_eq!(truncate_start("大きい", 5), "きい");
        assert_eq!(truncate("e\u{301}a", 1), "e\u{301}");
        assert_eq!(columns("e\u{301}大"), 3);
    }

    #[test]
    fn directories_of_programs_and_scripts_are_removed() {
        for (command, shown) in [
            ("/opt/conda/bin/python /opt/conda/bin/torchrun --nproc 8 /x/t.py", "python torchrun --nproc 8 /x/t.py"),
            ("/usr/bin/python3.11 -m vllm /models/q", "python3.11 -m vllm /models/q"),
            ("python train.py --data /nfs/c4", "python train.py --data /nfs/c4"),
            ("/usr/bin/cp /a /b", "cp /a /b"),
            ("/usr/sbin/nginx", "nginx"),
            ("[kworker/0:1]", "[kworker/0:1]"),
            ("X=/a/b run", "X=/a/b run"),
            ("", ""),
        ] {
            assert_eq!(strip_directories(command), shown);
        }
    }

    #[test]
    fn text_wraps_between_words() {
        assert_eq!(wrap("no route to host (tcp 22)", 10), ["no route", "to host", "(tcp 22)"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("大", 1), Vec::<&str>::new());
    }

    proptest! {
        #[test]
        fn cut_and_wrapped_texts_fit(text in "\\PC{0,40}", width in 0usize..20) {
            prop_assert!(columns(truncate(&text, width)) <= width);
            prop_assert!(columns(truncate_start(&text, width)) <= width);
            for line in wrap(&text, width) {
                prop_assert!(columns(line) <= width);
            }
        }

        #[test]
        fn no_value_overflows_its_buffer(value: u64, seconds: f64) {
            for text in [memory(value), used_of_total(Some(value), Some(value)), age(seconds), watts(seconds)] {
                prop_assert!(!text.is_empty());
            }
        }
    }
}
