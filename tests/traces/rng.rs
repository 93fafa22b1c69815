//! Random numbers from a seed, equal on every machine and in every version.
//!
//! `fastrand` does not promise its sequence across versions, and the expectations of the cases depend on it.

/// A stream of random numbers: SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// A separate stream for each list of seed parts.
    pub(crate) fn new(parts: &[u64]) -> Self {
        let mut rng = Self { state: 0x5851_F42D_4C95_7F2D };
        for part in parts {
            rng.state ^= part.wrapping_mul(0xD6E8_FEB8_6659_FD93);
            rng.state = rng.next();
        }
        rng
    }

    /// Returns 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in [`low`, `high`).
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Returns one of the choices, each with the same probability.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }

    /// Standard normal distribution (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().max(1e-300).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Correlated noise: a first-order autoregressive process with mean 0 and standard deviation 1.
#[derive(Debug, Clone)]
pub(crate) struct CorrelatedNoise {
    value: f64,
    /// Time constant: a deviation shrinks to 1/e in this time.
    time_constant_seconds: f64,
}

impl CorrelatedNoise {
    /// Starts at a random value.
    pub(crate) fn new(time_constant_seconds: f64, rng: &mut Rng) -> Self {
        Self { value: rng.normal(), time_constant_seconds }
    }

    /// Returns the value `seconds` later.
    pub(crate) fn step(&mut self, seconds: f64, rng: &mut Rng) -> f64 {
        let kept = (-seconds / self.time_constant_seconds).exp();
        self.value = kept * self.value + (1.0 - kept * kept).sqrt() * rng.normal();
        self.value
    }
}
