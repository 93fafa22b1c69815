//! One quantized series of readings: one or two bytes per point.

/// Raw points per series.
pub(super) const RAW_POINTS: usize = 600;
/// Means per series.
pub(super) const MEANS: usize = 720;

/// How a reading is quantized. Code 0 means an unknown value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// Percent, 0 to 100 in steps of 0.5; one byte.
    Percent,
    /// Degrees Celsius, -50 to 204 in steps of 1; one byte.
    Celsius,
    /// CPU utilization, 100 = one CPU, up to 256 CPUs; one byte. The steps are 4 % of the value, so that small shares
    /// and many CPUs both have enough resolution.
    Cpu,
    /// Watts, up to 16 kW in steps of 0.25; two bytes.
    Watts,
    /// Memory in steps of `unit` MiB; two bytes. The unit doubles when a value is too large.
    Memory {
        /// MiB per step.
        unit: u32,
    },
}

const MIB: f32 = 1024.0 * 1024.0;
const WIDE_MAX: f32 = 65_534.0;
const NARROW_MAX: f32 = 254.0;
/// Steps per factor of e.
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

/// The raw points and the ten-second means of one series. The memory grows with the points, because most runs of the
/// program and most processes are short.
#[derive(Debug, Clone)]
pub(super) struct QuantizedSeries {
    scale: Scale,
    raw: CodeRing,
    means: CodeRing,
    /// Sum and number of readings in the current period.
    sum: f32,
    count: u32,
}

/// Codes in a ring; 0 is an unknown value.
#[derive(Debug, Clone)]
enum CodeRing {
    Narrow(Ring<u8>),
    Wide(Ring<u16>),
}

/// A ring that is allocated from the first used slot on.
#[derive(Debug, Clone)]
struct Ring<C> {
    /// Number of slots.
    capacity: u16,
    /// The slot of the first code.
    first: u16,
    /// The codes so far; the slots beyond are unknown.
    codes: Vec<C>,
}

/// Number of codes by which a ring grows.
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

    /// The index of a slot in `codes`.
    fn index(&self, slot: usize) -> usize {
        let (first, capacity) = (usize::from(self.first), usize::from(self.capacity));
        if slot >= first { slot - first } else { slot + capacity - first }
    }

    fn get(&self, slot: usize) -> C {
        self.codes.get(self.index(slot)).copied().unwrap_or_default()
    }

    fn set(&mut self, slot: usize, code: C) {
        let index = self.index(slot);
        if let Some(existing) = self.codes.get_mut(index) {
            *existing = code;
            return;
        }
        // A missing slot reads as unknown anyway.
        let capacity = usize::from(self.capacity);
        if code == C::default() || slot >= capacity {
            return;
        }
        if self.codes.is_empty() {
            self.first = slot as u16;
        }
        let index = self.index(slot);
        if index >= self.codes.capacity() {
            // The second half comes at once: memory stops growing within the first hour although the means cover two.
            let wanted = if index + GROWTH < capacity / 2 { (index / GROWTH + 1) * GROWTH } else { capacity };
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

    /// The raw point in a slot.
    pub(super) fn raw(&self, slot: usize) -> Option<f32> {
        self.value(self.raw.get(slot))
    }

    /// The mean in a slot.
    pub(super) fn mean(&self, slot: usize) -> Option<f32> {
        self.value(self.means.get(slot))
    }

    pub(super) fn clear_raw(&mut self, slot: usize) {
        self.raw.set(slot, None);
    }

    pub(super) fn clear_mean(&mut self, slot: usize) {
        self.means.set(slot, None);
    }

    /// Writes a mean to `slot`, if that is empty.
    pub(super) fn fill_mean(&mut self, slot: usize, value: f32) {
        if value.is_finite() && self.means.get(slot) == 0.0 {
            let step = self.step(value);
            self.means.set(slot, Some(step));
        }
    }

    /// Adds a reading to the raw point in `slot`, if that is empty, and to the mean of the period.
    pub(super) fn push(&mut self, slot: usize, value: Option<f32>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        if self.raw.get(slot) == 0.0 {
            let step = self.step(value);
            self.raw.set(slot, Some(step));
        }
        self.sum += value;
        self.count += 1;
    }

    /// Ends the period and writes its mean to `slot`.
    pub(super) fn close_mean(&mut self, slot: usize) {
        let mean = (self.count > 0).then(|| self.sum / self.count as f32);
        let step = mean.map(|mean| self.step(mean));
        self.means.set(slot, step);
        self.sum = 0.0;
        self.count = 0;
    }

    /// The size of the points in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.raw.bytes() + self.means.bytes()
    }

    fn value(&self, code: f32) -> Option<f32> {
        (code > 0.0).then(|| self.scale.value(code - 1.0))
    }

    /// The code of a value, in a unit in which it fits.
    fn step(&mut self, value: f32) -> f32 {
        self.widen(value);
        self.scale.to_step(value).round()
    }

    /// Doubles the unit of memory until `value` fits. Earlier values keep their precision to within a step.
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

    fn round_trip(scale: Scale, value: f32) -> f32 {
        let mut series = QuantizedSeries::new(scale);
        series.push(0, Some(value));
        series.raw(0).expect("a point")
    }

    #[test]
    fn values_come_back_within_a_step() {
        for percent in 0..=100_u8 {
            assert!((round_trip(Scale::Percent, f32::from(percent)) - f32::from(percent)).abs() < 0.01);
        }
        for celsius in [-50.0, -1.0, 0.0, 45.0, 110.0, 204.0] {
            assert!((round_trip(Scale::Celsius, celsius) - celsius).abs() < 0.01);
        }
        for watts in [0.0, 44.25, 104.5, 700.0, 10_000.0] {
            assert!((round_trip(Scale::Watts, watts) - watts).abs() < 0.13);
        }
        for cpu in [0.0, 2.0, 5.0, 99.0, 768.0, 25_600.0_f32] {
            assert!((round_trip(Scale::Cpu, cpu) - cpu).abs() <= 0.03 * cpu.max(1.0), "{cpu}");
        }
    }

    #[test]
    fn the_memory_unit_grows_with_the_values() {
        const GIB: f32 = 1024.0 * MIB;
        let mut series = QuantizedSeries::new(Scale::Memory { unit: 1 });
        series.push(0, Some(40.0 * GIB));
        series.push(1, Some(640.0 * GIB));
        assert!((series.raw(0).expect("a point") - 40.0 * GIB).abs() < 0.02 * GIB);
        assert!((series.raw(1).expect("a point") - 640.0 * GIB).abs() < 0.02 * GIB);
        assert_eq!(series.scale, Scale::Memory { unit: 16 });
    }

    #[test]
    fn a_ring_is_allocated_from_the_first_used_slot_on() {
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
    fn a_ring_grows_with_its_points_up_to_its_capacity() {
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
    fn unknown_values_differ_from_zero() {
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
