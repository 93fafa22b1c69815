//! Rounding, so that lines stay short. Through integers: `f32::round` would need libm.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_the_nearest() {
        assert_eq!([tenths(104.55), tenths(-3.26), tenths(0.04)], [104.6, -3.3, 0.0]);
        assert_eq!((hundredths(1.005_1), thousandths(12.250_4)), (1.01, 12.25));
        assert_eq!(serde_json::to_string(&tenths_f32(61.500_01)).expect("encodes"), "61.5");
    }
}
