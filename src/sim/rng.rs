//! Random numbers from a seed, equal on every machine and in every version.
//!
//! `fastrand` does not promise its sequence across versions, and the expectations of the cases depend on it.

/// A stream of random numbers: SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a separate stream for each list of seed parts.
    pub fn new(parts: &[u64]) -> Self {
        let mut rng = Self { state: 0x5851_F42D_4C95_7F2D };
        for part in parts {
            rng.state ^= part.wrapping_mul(0xD6E8_FEB8_6659_FD93);
            rng.state = rng.bits();
        }
        rng
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in [`low`, `high`).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with this probability.
    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Returns one of the choices, each with the same probability.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.bits() % choices.len() as u64) as usize]
    }

    /// Standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().max(1e-300).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Correlated noise: a first-order autoregressive process with mean 0 and standard deviation 1.
#[derive(Debug, Clone)]
pub struct CorrelatedNoise {
    value: f64,
}

impl CorrelatedNoise {
    /// Starts at a random value.
    pub fn new(rng: &mut Rng) -> Self {
        Self { value: rng.normal() }
    }

    /// Advances by one step, in which a deviation shrinks to the fraction `kept`.
    pub fn step(&mut self, kept: f64, rng: &mut Rng) {
        self.value = kept * self.value + (1.0 - kept * kept).sqrt() * rng.normal();
    }

    /// Returns the current value.
    pub fn value(&self) -> f64 {
        self.value
    }
}
