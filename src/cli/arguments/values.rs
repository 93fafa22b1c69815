//! Values of arguments.

use crate::config::values::{NotATime, parse_interval, parse_seconds};
use std::time::Duration;

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    parse_interval(text, 0..text.len()).map_err(|diagnostic| match diagnostic.hint {
        Some(hint) => format!("{} ({hint})", diagnostic.message),
        None => diagnostic.message,
    })
}

/// Memory: `40G`, `512M`, `1.5T`; a bare number is GiB, as nearly everybody means it.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.find(|character: char| character.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "G"),
    };
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("write a size with M, G or T, for example 40G".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1_000_000.0 => Ok((number * (1_u64 << shift) as f64) as u64),
        _ => Err("write a size, for example 40G".to_owned()),
    }
}

pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    seconds_up_to(3600, text)
}

/// A time to observe on the fleet's clock: up to 30 days.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    seconds_up_to(2_592_000, text)
}

/// A time with a unit, or seconds without one.
fn seconds_up_to(most: u32, text: &str) -> Result<Duration, String> {
    let seconds = match parse_seconds(text) {
        Ok(seconds) | Err(NotATime::NoUnit(seconds)) => Some(seconds),
        Err(NotATime::Malformed) => None,
    };
    match seconds.filter(|seconds| (0.1..=f64::from(most)).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err(format!("write seconds, from 0.1 to {most}")),
    }
}

pub(super) fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if (0.1..=1000.0).contains(&speed) => Ok(speed),
        _ => Err("write a number from 0.1 to 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_stand_alone() {
        let half_a_minute = Ok(Duration::from_secs(30));
        for text in ["30", "30s", "0.5m"] {
            assert_eq!(timeout(text), half_a_minute, "{text}");
        }
        for text in ["", "s", "0", "-1", "nan", "2h", "3601"] {
            assert_eq!(timeout(text), Err("write seconds, from 0.1 to 3600".to_owned()), "{text}");
        }
    }

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in
            [("40G", 40 << 30), ("40", 40 << 30), ("512MiB", 512 << 20), ("1.5t", 3 << 39), ("40gb", 40 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1G", "40K", "nanG", "40G5", "1e99G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
