//! Randomness from the operating system.

/// A fresh number of 128 bits, hexadecimal.
pub(super) fn nonce() -> String {
    bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Uniform in 0..1.
pub(super) fn unit() -> f64 {
    // The 53 bits that a double holds exactly.
    (u64::from_le_bytes(bytes::<8>()) >> 11) as f64 / (1_u64 << 53) as f64
}

fn bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    if getrandom::fill(&mut bytes).is_err() {
        // Without the system's source a hash seed of the standard library still differs from call to call.
        use std::hash::{BuildHasher, RandomState};
        for chunk in bytes.chunks_mut(8) {
            let word = RandomState::new().hash_one(0_u8).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_128_bits_and_another_each_time() {
        let (first, second) = (nonce(), nonce());
        assert_eq!(first.len(), 32);
        assert!(first.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(first, second);
        assert!((0.0..1.0).contains(&unit()));
    }
}
