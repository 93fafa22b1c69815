//! Reproducible random numbers, as a function of a seed and their purpose.

/// Returns a pseudo-random number that depends on all of `parts`, mixed as in SplitMix64 (Steele, Lea, Flood, 2014).
pub(super) fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9E37_79B9_7F4A_7C15, |state, part| {
        let mut word = (state ^ part).wrapping_add(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    })
}

/// Returns a pseudo-random number in 0..1.
pub(super) fn unit(parts: &[u64]) -> f64 {
    (hash(parts) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns a pseudo-random number in `low..high`.
pub(super) fn between(low: f64, high: f64, parts: &[u64]) -> f64 {
    low + (high - low) * unit(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_reproducible_and_uniform() {
        assert_eq!(hash(&[1, 2]), hash(&[1, 2]));
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        let mean = (0..10_000).map(|index| unit(&[7, index])).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((0..1000).all(|index| (3.0..4.0).contains(&between(3.0, 4.0, &[index]))));
    }
}
