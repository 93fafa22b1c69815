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

/// A ring that is allocated from the first used slot on. While all its codes are equal, only one is kept: the memory of most
/// processes and the utilization of idle GPUs stay as they are for hours.
#[derive(Debug, Clone)]
struct Ring<C> {
    /// Number of slots.
    capacity: u16,
    /// The slot of the first code.
    first: u16,
    /// Number of codes that are all `equal`, if `codes` is empty.
    count: u16,
    equal: C,
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

    /// The code that all known slots have, or 0 if none is known. `None` if they differ, or may differ.
    fn equal(&self) -> Option<u16> {
        match self {
            Self::Narrow(ring) => ring.equal().map(u16::from),
            Self::Wide(ring) => ring.equal(),
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
        Self { capacity: capacity as u16, first: 0, count: 0, equal: C::default(), codes: Vec::new() }
    }

    /// The index of a slot, counted from the first code.
    fn index(&self, slot: usize) -> usize {
        let (first, capacity) = (usize::from(self.first), usize::from(self.capacity));
        if slot >= first { slot - first } else { slot + capacity - first }
    }

    fn get(&self, slot: usize) -> C {
        let index = self.index(slot);
        if index < usize::from(self.count) {
            return self.equal;
        }
        self.codes.get(index).copied().unwrap_or_default()
    }

    fn equal(&self) -> Option<C> {
        let equal = if self.count > 0 { self.equal } else { C::default() };
        self.codes.is_empty().then_some(equal)
    }

    fn set(&mut self, slot: usize, code: C) {
        if slot >= usize::from(self.capacity) || (self.codes.is_empty() && self.set_equal(slot, code)) {
            return;
        }
        self.spread();
        let index = self.index(slot);
        match self.codes.get_mut(index) {
            Some(existing) => *existing = code,
            // A missing slot reads as unknown anyway.
            None if code == C::default() => return,
            None => {
                self.reserve(index);
                self.codes.resize(index, C::default());
                self.codes.push(code);
            }
        }
        // Looks once in each turn, which costs little.
        let is_full = index + 1 == usize::from(self.capacity);
        if is_full && self.codes.iter().all(|other| *other == code) {
            self.count = if code == C::default() { 0 } else { self.capacity };
            (self.equal, self.codes) = (code, Vec::new());
        }
    }

    /// Sets a slot while no code differs from the others. Returns whether that is still so.
    fn set_equal(&mut self, slot: usize, code: C) -> bool {
        let (index, count) = (self.index(slot), usize::from(self.count));
        let is_unknown = code == C::default();
        if count == 0 && !is_unknown {
            (self.first, self.count, self.equal) = (slot as u16, 1, code);
        } else if index == 0 && is_unknown && count > 0 {
            // The oldest code makes room for the newest.
            self.first = (self.first + 1) % self.capacity;
            self.count -= 1;
        } else if index == count && code == self.equal && !is_unknown {
            self.count += 1;
        } else {
            return if index < count { code == self.equal } else { is_unknown };
        }
        true
    }

    /// Writes the equal codes into `codes`.
    fn spread(&mut self) {
        let count = usize::from(std::mem::take(&mut self.count));
        if count > 0 {
            self.reserve(count - 1);
            self.codes.resize(count, self.equal);
        }
    }

    /// Makes room for a code at `index`.
    fn reserve(&mut self, index: usize) {
        if index >= self.codes.capacity() {
            let capacity = usize::from(self.capacity);
            // The second half comes at once: memory stops growing within the first hour although the means cover two.
            let wanted = if index + GROWTH < capacity / 2 { (index / GROWTH + 1) * GROWTH } else { capacity };
            self.codes.reserve_exact(wanted.min(capacity) - self.codes.len());
        }
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

    /// Whether all readings are known to be equal, to within a step.
    pub(super) fn is_constant(&self) -> bool {
        let (raw, means) = (self.raw.equal(), self.means.equal());
        raw.zip(means).is_some_and(|(raw, mean)| raw == mean || raw == 0 || mean == 0)
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
                let codes = ring.codes.iter_mut().chain([&mut ring.equal]);
                codes.filter(|code| **code > 0).for_each(|code| *code = (*code - 1) / 2 + 1);
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
        series.push(1, Some(101.0));
        assert_eq!(series.bytes(), 2 * GROWTH);
        series.push(100, Some(100.0));
        assert_eq!(series.bytes(), 2 * 120);
        assert_eq!((series.raw(99), series.raw(100)), (None, Some(100.0)));
        (0..RAW_POINTS).for_each(|slot| series.push(slot, Some(1.0)));
        (0..MEANS).for_each(|slot| {
            series.push(0, Some(slot as f32));
            series.close_mean(slot);
        });
        assert_eq!(series.bytes(), 2 * (RAW_POINTS + MEANS));
        series.push(RAW_POINTS, Some(5.0));
        assert_eq!(series.raw(RAW_POINTS), None);
    }

    #[test]
    fn equal_readings_need_no_memory() {
        let mut series = QuantizedSeries::new(Scale::Percent);
        let mut time = 0;
        let mut push = |series: &mut QuantizedSeries, value: f32| {
            series.clear_raw(time % RAW_POINTS);
            series.push(time % RAW_POINTS, Some(value));
            time += 1;
            (series.bytes(), series.raw((time - 1) % RAW_POINTS), series.raw(time % RAW_POINTS))
        };
        for _ in 0..RAW_POINTS - 1 {
            assert_eq!(push(&mut series, 40.0), (0, Some(40.0), None));
        }
        for _ in 0..RAW_POINTS {
            assert_eq!(push(&mut series, 40.0), (0, Some(40.0), Some(40.0)));
        }
        assert_eq!(push(&mut series, 41.0), (RAW_POINTS, Some(41.0), Some(40.0)));
        // Until each slot was written again, and the last one of a turn, too.
        for _ in 0..2 * RAW_POINTS {
            push(&mut series, 40.0);
        }
        assert_eq!(push(&mut series, 40.0), (0, Some(40.0), Some(40.0)));
        assert!(series.is_constant());
        push(&mut series, 41.0);
        assert!(!series.is_constant());
        let mut memory = QuantizedSeries::new(Scale::Memory { unit: 1 });
        memory.push(0, Some(40_000.0 * MIB));
        memory.push(1, Some(90_000.0 * MIB));
        assert_eq!([memory.raw(0), memory.raw(1)], [Some(40_000.0 * MIB), Some(90_000.0 * MIB)], "in a larger unit");
    }

    /// Sets slots of a ring as a history does, and at random, and compares it with a plain list.
    #[test]
    fn a_ring_reads_as_a_plain_list() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let capacity = rng.usize(1..70);
            let (mut ring, mut list) = (Ring::<u8>::new(capacity), vec![0_u8; capacity]);
            let (variety, jumps) = (rng.u8(1..4), rng.u8(0..3));
            let mut slot = rng.usize(0..capacity);
            for _ in 0..rng.usize(0..400) {
                slot = if rng.u8(0..40) < jumps { rng.usize(0..capacity) } else { (slot + 1) % capacity };
                let code = if rng.u8(0..20) == 0 { rng.u8(0..4) } else { variety };
                for code in [0, code] {
                    ring.set(slot, code);
                    list[slot] = code;
                }
                let read: Vec<u8> = (0..capacity).map(|slot| ring.get(slot)).collect();
                assert_eq!(read, list, "{ring:?}");
            }
        }
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
