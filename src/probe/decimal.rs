//! Rounding of readings, to keep lines short, and formatting and parsing of decimal numbers. All of it uses integers:
//! `f32::round` needs libm, std's float parser is a fiftieth of the probe's size, and its float formatter a thirtieth. A single
//! `{}` with a float brings the formatter back.

/// Rounds to one decimal.
pub(crate) fn round_to_tenth(value: f64) -> f64 {
    round_to(value, 10.0)
}

/// Rounds to one decimal, as `f32`.
pub(crate) fn round_to_tenth_f32(value: f64) -> f32 {
    round_to_tenth(value) as f32
}

/// Rounds to two decimals.
pub(crate) fn round_to_hundredth(value: f64) -> f64 {
    round_to(value, 100.0)
}

/// Rounds to three decimals.
pub(crate) fn round_to_thousandth(value: f64) -> f64 {
    round_to(value, 1000.0)
}

fn round_to(value: f64, scale: f64) -> f64 {
    let half = if value < 0.0 { -0.5 } else { 0.5 };
    (value * scale + half) as i64 as f64 / scale
}

/// Formats with this many decimals.
pub(crate) fn with_decimals(value: f64, decimals: u32) -> String {
    let scale = 10_u64.pow(decimals);
    let sign = if value < 0.0 { "-" } else { "" };
    let scaled = (value.abs() * scale as f64 + 0.5) as u64;
    let width = decimals as usize;
    format!("{sign}{}.{:0width$}", scaled / scale, scaled % scale)
}

/// Formats with at most three decimals, and without zeros at the end.
pub(crate) fn thousandths(value: f64) -> String {
    with_decimals(value, 3).trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Parses a number such as `12.34`, without sign or exponent and with at most nine decimals.
pub(crate) fn parse_decimal(text: &str) -> Option<f64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let only_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !only_digits(whole) || !only_digits(decimals) || decimals.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(decimals.len() as u32);
    let (whole, decimals): (u64, u64) = (whole.parse().ok()?, decimals.parse().ok()?);
    Some(whole as f64 + decimals as f64 / scale as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read() {
        assert_eq!(
            [parse_decimal("12.34"), parse_decimal("7"), parse_decimal("0.05")],
            [Some(12.34), Some(7.0), Some(0.05)]
        );
        for bad in ["", ".", "1.", ".5", "-1", "1e3", "nan", "1.1234567890", "99999999999999999999"] {
            assert_eq!(parse_decimal(bad), None, "{bad}");
        }
    }

    #[test]
    fn decimals_are_formatted() {
        for (value, one, at_most_three) in [
            (0.0, "0.0", "0"),
            (0.05, "0.1", "0.05"),
            (12.25, "12.3", "12.25"),
            (99.96, "100.0", "99.96"),
            (-3.2, "-3.2", "-3.2"),
            (f64::from(71.1_f32), "71.1", "71.1"),
            (0.0004, "0.0", "0"),
            (1e300, "1844674407370955161.5", "18446744073709551.615"),
            (f64::NAN, "0.0", "0"),
        ] {
            assert_eq!((with_decimals(value, 1), thousandths(value)), (one.into(), at_most_three.into()), "{value}");
        }
    }

    #[test]
    fn rounds_to_the_nearest() {
        let values = [
            round_to_tenth(104.56),
            round_to_tenth(-3.26),
            round_to_tenth(0.04),
            round_to_hundredth(1.005_1),
            round_to_thousandth(12.250_4),
        ];
        assert_eq!(values.map(|value| value.to_string()), ["104.6", "-3.3", "0", "1.01", "12.25"]);
        assert_eq!(serde_json::to_string(&round_to_tenth_f32(61.500_01)).expect("encodes"), "61.5");
    }
}
