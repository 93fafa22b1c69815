//! Text of durations and IO errors, for all layers of the controller.

use std::fmt;
use std::io;
use std::time::Duration;

/// Styles of [`duration`]. Every style rounds down, except for sentences and where it shows a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurationStyle {
    /// At most five columns: `45s`, `18m`, `3h12m`, `11h`, `1d07h`, `41d`.
    Column,
    /// At most six columns, with seconds below an hour: `45s`, `4m12s`, `3h12m`.
    Ticking,
    /// At most three columns up to 100 days: `45s`, `18m`, `3h`, `2d`.
    Brief,
    /// Tenths below ten seconds: `0.3 s`, `12 s`, from two minutes as [`Self::Column`].
    Precise,
    /// For sentences, rounded to the nearest: `45 s`, `14 min`, `3 h 20 min`, `6 d 4 h`.
    Words,
    /// One unit: `45 s`, `14 min`, `3.5 h`, `6 d`.
    OneUnit,
    /// Exact seconds: `10 s`, `1.5 s`.
    Seconds,
}

/// A duration with a style; see [`duration`].
#[derive(Debug, Clone, Copy)]
pub struct FormattedDuration {
    duration: Duration,
    style: DurationStyle,
}

/// Formats a duration in a style.
pub fn duration(duration: Duration, style: DurationStyle) -> FormattedDuration {
    FormattedDuration { duration, style }
}

impl fmt::Display for FormattedDuration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, exact) = (self.duration.as_secs(), self.duration.as_secs_f64());
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        let column = duration(self.duration, DurationStyle::Column);
        let (nearest_minutes, nearest_hours) = ((exact / 60.0).round() as u64, (exact / 3600.0).round() as u64);
        match (self.style, seconds) {
            (DurationStyle::Seconds, _) => write!(out, "{exact} s"),
            (DurationStyle::Precise, _) if exact < 9.95 => write!(out, "{exact:.1} s"),
            (DurationStyle::Precise | DurationStyle::OneUnit | DurationStyle::Words, ..120) => {
                write!(out, "{exact:.0} s")
            }
            (DurationStyle::Ticking, 60..3600) => write!(out, "{minutes}m{:02}s", seconds % 60),
            (DurationStyle::Precise | DurationStyle::Ticking, _) => column.fmt(out),

            (DurationStyle::Column | DurationStyle::Brief, ..60) => write!(out, "{seconds}s"),
            (DurationStyle::Column | DurationStyle::Brief, ..3600) => write!(out, "{minutes}m"),
            (DurationStyle::Column, ..36_000) => write!(out, "{hours}h{:02}m", minutes % 60),
            (DurationStyle::Column | DurationStyle::Brief, ..86_400) => write!(out, "{hours}h"),
            (DurationStyle::Column, ..864_000) => write!(out, "{days}d{:02}h", hours % 24),
            (DurationStyle::Column | DurationStyle::Brief, _) => write!(out, "{days}d"),

            (DurationStyle::Words, _) if nearest_minutes < 90 => write!(out, "{nearest_minutes} min"),
            (DurationStyle::Words, _) if nearest_hours < 48 => {
                with_rest(out, (nearest_minutes / 60, "h"), (nearest_minutes % 60, "min"))
            }
            (DurationStyle::Words, _) => with_rest(out, (nearest_hours / 24, "d"), (nearest_hours % 24, "h")),
            (DurationStyle::OneUnit, ..7200) => write!(out, "{minutes} min"),

            (DurationStyle::OneUnit, ..172_800) => write!(out, "{:.1} h", (exact / 360.0).floor() / 10.0),
            (DurationStyle::OneUnit, _) => write!(out, "{days} d"),
        }
    }
}

/// Writes `3 h 20 min`, or `3 h` if the rest is 0.
fn with_rest(out: &mut fmt::Formatter<'_>, (large, unit): (u64, &str), rest: (u64, &str)) -> fmt::Result {
    match rest {
        (0, _) => write!(out, "{large} {unit}"),
        (small, small_unit) => write!(out, "{large} {unit} {small} {small_unit}"),
    }
}

/// Returns the system's text of an IO error, without the error number and the prefix that Rust adds.
pub fn io_cause(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    text.split(" (os error").next().unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(style: DurationStyle, milliseconds: &[u64]) -> Vec<String> {
        milliseconds.iter().map(|time| duration(Duration::from_millis(*time), style).to_string()).collect()
    }

    #[test]
    fn columns_are_narrow() {
        let times = [0, 59_999, 1_080_000, 11_520_000, 39_600_000, 111_600_000, 3_600_000_000];
        assert_eq!(texts(DurationStyle::Column, &times), ["0s", "59s", "18m", "3h12m", "11h", "1d07h", "41d"]);
        assert_eq!(texts(DurationStyle::Brief, &times), ["0s", "59s", "18m", "3h", "11h", "1d", "41d"]);
        assert_eq!(texts(DurationStyle::Ticking, &[59_000, 252_000, 11_520_000]), ["59s", "4m12s", "3h12m"]);
        let times = [300, 9_960, 119_000, 120_000, 34_800_000];
        assert_eq!(texts(DurationStyle::Precise, &times), ["0.3 s", "10 s", "119 s", "2m", "9h40m"]);
    }

    #[test]
    fn sentences_are_as_exact_as_people_speak() {
        let times = [
            0,
            89_900,
            119_400,
            120_000,
            299_100,
            5_369_000,
            5_370_000,
            7_190_000,
            90_000_000,
            200_000_000,
            518_000_000,
        ];
        let words = ["0 s", "90 s", "119 s", "2 min", "5 min", "89 min", "1 h 30 min", "2 h", "25 h", "2 d 8 h", "6 d"];
        assert_eq!(texts(DurationStyle::Words, &times), words);
        let times = [0, 119_000, 120_000, 7_199_000, 7_200_000, 12_600_000, 200_000_000];
        let words = ["0 s", "119 s", "2 min", "119 min", "2.0 h", "3.5 h", "2 d"];
        assert_eq!(texts(DurationStyle::OneUnit, &times), words);
        assert_eq!(texts(DurationStyle::Seconds, &[10_000, 300, 1_500]), ["10 s", "0.3 s", "1.5 s"]);
    }

    #[test]
    fn causes_have_no_error_number() {
        assert_eq!(io_cause(&io::Error::from_raw_os_error(2)), "No such file or directory");
        let lookup = io::Error::other("failed to lookup address information: Name or service not known");
        assert_eq!(io_cause(&lookup), "Name or service not known");
    }
}
