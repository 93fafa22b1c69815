//! One series of readings, quantised: a byte or two a point.

/// Raw points a series.
pub(super) const RAW_POINTS: usize = 600;
/// Means a series.
pub(super) const MEANS: usize = 720;

/// How a reading becomes a small number. Zero is kept for "nothing known".
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// 0 to 100 in steps of a half, one byte.
    Percent,
    /// -50 to 204 degrees in steps of one, one byte.
    Celsius,
    /// CPU share, 100 = one CPU, up to 256 CPUs in steps of 4 % of the value, one byte: a twentieth of a CPU and fifty
    /// of them are both told from nothing.
    Cpu,
    /// Up to 16 kW in steps of a quarter watt, two bytes.
    Watts,
    /// Two bytes in steps of `unit` MiB. The unit doubles when a value does not fit.
    Memory {
        /// MiB a step.
        unit: u32,
    },
}

const MIB: f32 = 1024.0 * 1024.0;
const WIDE_MAX: f32 = 65_534.0;
const NARROW_MAX: f32 = 254.0;
/// Steps for each factor of e.
const CPU_STEPS: f32 = 25.0;

impl Scale {
    fn to_step(self, value: f32) -> f32 {
        match self {
            Self::Percent => value * 2.0,
            Self::Celsius => value + 50.0,
            Self::Cpu => CPU_STEPS * value.max(0.0).ln_1p(),
            Self::Watts => value * 4.0,
            Self::Memory { unit } => value / (unit as f32 * MIB),
        }
    }

    fn value(self, step: f32) -> f32 {
        match self {
            Self::Percent => step / 2.0,
            Self::Celsius => step - 50.0,
            Self::Cpu => (step / CPU_STEPS).exp_m1(),
            Self::Watts => step / 4.0,
            Self::Memory { unit } => step * unit as f32 * MIB,
        }
    }
}

/// The raw points and the ten-second means of one series. Their memory grows as they fill: most runs of the program,
/// and most processes, are short.
#[derive(Debug, Clone)]
pub(super) struct QuantizedSeries {
    scale: Scale,
    raw: CodeRing,
    means: CodeRing,
    /// Of the ten seconds that are not over yet.
    sum: f32,
    count: u32,
}

/// CodeRing of a ring; zero is "nothing known".
#[derive(Debug, Clone)]
enum CodeRing {
    Narrow(Ring<u8>),
    Wide(Ring<u16>),
}

/// A ring that is kept from the slot on that was filled first.
#[derive(Debug, Clone)]
struct Ring<C> {
    /// Places of the ring.
    capacity: u16,
    /// The slot of the first code.
    first: u16,
    /// What lies beyond has not been filled yet.
    codes: Vec<C>,
}

/// A ring grows by so many capacity at a time.
const GROWTH: usize = 20;

impl CodeRing {
    fn new(scale: Scale, capacity: usize) -> Self {
        match scale {
            Scale::Percent | Scale::Celsius | Scale::Cpu => Self::Narrow(Ring::new(capacity)),
            Scale::Watts | Scale::Memory { .. } => Self::Wide(Ring::new(capacity)),
        }
    }

    fn get(&self, slot: usize) -> f32 {
        match self {
            Self::Narrow(ring) => f32::from(ring.get(slot)),
            Self::Wide(ring) => f32::from(ring.get(slot)),
        }
    }

    fn set(&mut self, slot: usize, step: Option<f32>) {
        match self {
            Self::Narrow(ring) => ring.set(slot, step.map_or(0, |step| step.clamp(0.0, NARROW_MAX) as u8 + 1)),
            Self::Wide(ring) => ring.set(slot, step.map_or(0, |step| step.clamp(0.0, WIDE_MAX) as u16 + 1)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Narrow(ring) => ring.codes.capacity(),
            Self::Wide(ring) => ring.codes.capacity() * 2,
        }
    }
}

impl<C: Copy + Default + PartialEq> Ring<C> {
    fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u16, first: 0, codes: Vec::new() }
    }

    /// Where a slot of the ring is kept.
    fn index(&self, slot: usize) -> usize {
        let (first, capacity) = (usize::from(self.first), usize::from(self.capacity));
        if slot >= first { slot - first } else { slot + capacity - first }
    }

    fn get(&self, slot: usize) -> C {
        self.codes.get(self.index(slot)).copied().unwrap_or_default()
    }

    fn set(&mut self, slot: usize, code: C) {
        let index = self.index(slot);
        if let Some(kept) = self.codes.get_mut(index) {
            *kept = code;
            return;
        }
        // What is not there reads as "nothing known" anyway.
        let capacity = usize::from(self.capacity);
        if code == C::default() || slot >= capacity {
            return;
        }
        if self.codes.is_empty() {
            self.first = slot as u16;
        }
        let index = self.index(slot);
        if index >= self.codes.capacity() {
            let wanted = (index / GROWTH + 1) * GROWTH;
            self.codes.reserve_exact(wanted.min(capacity) - self.codes.len());
        }
        self.codes.resize(index, C::default());
        self.codes.push(code);
    }
}

impl QuantizedSeries {
    pub(super) fn new(scale: Scale) -> Self {
        Self { scale, raw: CodeRing::new(scale, RAW_POINTS), means: CodeRing::new(scale, MEANS), sum: 0.0, count: 0 }
    }

    /// The raw point at a slot of the ring.
    pub(super) fn raw(&self, slot: usize) -> Option<f32> {
        self.value(self.raw.get(slot))
    }

    /// The mean at a slot of the ring.
    pub(super) fn mean(&self, slot: usize) -> Option<f32> {
        self.value(self.means.get(slot))
    }

    pub(super) fn clear_raw(&mut self, slot: usize) {
        self.raw.set(slot, None);
    }

    pub(super) fn clear_mean(&mut self, slot: usize) {
        self.means.set(slot, None);
    }

    /// Takes a reading: into the raw point at `slot` where that is empty, and into the mean of its ten seconds.
    pub(super) fn push(&mut self, slot: usize, value: Option<f32>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        if self.raw.get(slot) == 0.0 {
            let step = self.step(value);
            self.raw.set(slot, Some(step));
        }
        self.sum += value;
        self.count += 1;
    }

    /// Ten seconds are over: their mean goes to `slot`.
    pub(super) fn close_mean(&mut self, slot: usize) {
        let mean = (self.count > 0).then(|| self.sum / self.count as f32);
        let step = mean.map(|mean| self.step(mean));
        self.means.set(slot, step);
        self.sum = 0.0;
        self.count = 0;
    }

    /// Bytes of its points.
    pub(super) fn bytes(&self) -> usize {
        self.raw.bytes() + self.means.bytes()
    }

    fn value(&self, code: f32) -> Option<f32> {
        (code > 0.0).then(|| self.scale.value(code - 1.0))
    }

    /// The step of a value, in a unit in which it fits.
    fn step(&mut self, value: f32) -> f32 {
        self.widen(value);
        self.scale.to_step(value).round()
    }

    /// Doubles the unit of memory until `value` fits; what is there already keeps its value to within a step.
    fn widen(&mut self, value: f32) {
        while let Scale::Memory { unit } = self.scale
            && self.scale.to_step(value).round() > WIDE_MAX
            && unit < 1 << 30
        {
            for codes in [&mut self.raw, &mut self.means] {
                let CodeRing::Wide(ring) = codes else { continue };
                ring.codes.iter_mut().filter(|code| **code > 0).for_each(|code| *code = (*code - 1) / 2 + 1);
            }
            self.scale = Scale::Memory { unit: unit * 2 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(scale: Scale, value: f32) -> f32 {
        let mut series = QuantizedSeries::new(scale);
        series.push(0, Some(value));
        series.raw(0).expect("a point")
    }

    #[test]
    fn values_come_back_within_a_step() {
        for percent in 0..=100_u8 {
            assert!((kept(Scale::Percent, f32::from(percent)) - f32::from(percent)).abs() < 0.01);
        }
        for celsius in [-50.0, -1.0, 0.0, 45.0, 110.0, 204.0] {
            assert!((kept(Scale::Celsius, celsius) - celsius).abs() < 0.01);
        }
        for watts in [0.0, 44.25, 104.5, 700.0, 10_000.0] {
            assert!((kept(Scale::Watts, watts) - watts).abs() < 0.13);
        }
        for cpu in [0.0, 2.0, 5.0, 99.0, 768.0, 25_600.0_f32] {
            assert!((kept(Scale::Cpu, cpu) - cpu).abs() <= 0.03 * cpu.max(1.0), "{cpu}");
        }
    }

    #[test]
    fn the_unit_of_memory_grows_with_the_values() {
        const GIB: f32 = 1024.0 * MIB;
        let mut series = QuantizedSeries::new(Scale::Memory { unit: 1 });
        series.push(0, Some(40.0 * GIB));
        series.push(1, Some(640.0 * GIB));
        assert!((series.raw(0).expect("kept") - 40.0 * GIB).abs() < 0.02 * GIB);
        assert!((series.raw(1).expect("kept") - 640.0 * GIB).abs() < 0.02 * GIB);
        assert_eq!(series.scale, Scale::Memory { unit: 16 });
    }

    #[test]
    fn a_ring_is_kept_from_the_place_on_that_was_filled_first() {
        let mut series = QuantizedSeries::new(Scale::Percent);
        series.push(RAW_POINTS - 2, Some(10.0));
        series.push(1, Some(20.0));
        assert_eq!(series.bytes(), GROWTH, "across the end of the ring");
        let found = [RAW_POINTS - 3, RAW_POINTS - 2, RAW_POINTS - 1, 0, 1, 2].map(|slot| series.raw(slot));
        assert_eq!(found, [None, Some(10.0), None, None, Some(20.0), None]);
        series.push(RAW_POINTS - 3, Some(30.0));
        assert_eq!(series.bytes(), RAW_POINTS, "before the first: all around");
        let found = [RAW_POINTS - 3, RAW_POINTS - 2, 1, 2].map(|slot| series.raw(slot));
        assert_eq!(found, [Some(30.0), Some(10.0), Some(20.0), None]);
    }

    #[test]
    fn memory_grows_with_the_points_and_not_beyond_the_ring() {
        let mut series = QuantizedSeries::new(Scale::Watts);
        assert_eq!(series.bytes(), 0);
        series.push(0, Some(100.0));
        assert_eq!(series.bytes(), 2 * GROWTH);
        series.push(100, Some(100.0));
        assert_eq!(series.bytes(), 2 * 120);
        assert_eq!((series.raw(99), series.raw(100)), (None, Some(100.0)));
        (0..RAW_POINTS).for_each(|slot| series.push(slot, Some(1.0)));
        (0..MEANS).for_each(|slot| {
            series.push(0, Some(1.0));
            series.close_mean(slot);
        });
        assert_eq!(series.bytes(), 2 * (RAW_POINTS + MEANS));
        series.push(RAW_POINTS, Some(5.0));
        assert_eq!(series.raw(RAW_POINTS), None);
    }

    #[test]
    fn nothing_known_is_not_zero() {
        let mut series = QuantizedSeries::new(Scale::Percent);
        assert_eq!(series.raw(3), None);
        series.push(3, Some(0.0));
        assert_eq!(series.raw(3), Some(0.0));
        series.push(4, Some(f32::NAN));
        series.push(5, None);
        assert_eq!((series.raw(4), series.raw(5)), (None, None));
        series.close_mean(0);
        assert_eq!(series.mean(0), Some(0.0));
        series.close_mean(1);
        assert_eq!(series.mean(1), None);
    }
}
