//! Rounding, so that lines stay short, and reading of decimal numbers. Through integers: `f32::round` would need libm,
//! and the parser of floats in std is a fiftieth of the whole probe.

/// To one decimal.
pub(crate) fn tenths(value: f64) -> f64 {
    rounded(value, 10.0)
}

/// To one decimal, as the narrower type that most readings have.
pub(crate) fn tenths_f32(value: f64) -> f32 {
    tenths(value) as f32
}

/// To two decimals.
pub(crate) fn hundredths(value: f64) -> f64 {
    rounded(value, 100.0)
}

/// To three decimals.
pub(crate) fn thousandths(value: f64) -> f64 {
    rounded(value, 1000.0)
}

fn rounded(value: f64, scale: f64) -> f64 {
    let half = if value < 0.0 { -0.5 } else { 0.5 };
    (value * scale + half) as i64 as f64 / scale
}

/// A number such as `12.34`, as the kernel and people write it: no sign, no exponent, at most nine decimals.
pub(crate) fn decimal(text: &str) -> Option<f64> {
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
        assert_eq!([decimal("12.34"), decimal("7"), decimal("0.05")], [Some(12.34), Some(7.0), Some(0.05)]);
        for bad in ["", ".", "1.", ".5", "-1", "1e3", "nan", "1.1234567890", "99999999999999999999"] {
            assert_eq!(decimal(bad), None, "{bad}");
        }
    }

    #[test]
    fn rounds_to_the_nearest() {
        let rounded = [tenths(104.56), tenths(-3.26), tenths(0.04), hundredths(1.005_1), thousandths(12.250_4)];
        assert_eq!(rounded.map(|value| value.to_string()), ["104.6", "-3.3", "0", "1.01", "12.25"]);
        assert_eq!(serde_json::to_string(&tenths_f32(61.500_01)).expect("encodes"), "61.5");
    }
}
