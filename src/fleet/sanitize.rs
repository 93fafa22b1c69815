//! Replaces readings outside their possible range by `None`.
//!
//! Drivers return absurd values (a temperature of 2^31, a utilization above 100 next to zombies), and a broken or
//! hostile host may send any value that the wire types allow. Readings are checked before any other code sees them.

use crate::wire::{GpuInfo, GpuProcessReading, GpuReading, HostReading, ProcessReading, RecentPast, Snapshot};

/// Above the power of any board or slot.
const MAX_POWER_WATTS: f32 = 10_000.0;
/// Above the memory of any GPU or host.
const MAX_MEMORY_BYTES: u64 = 1 << 50;
/// Above any GPU clock.
const MAX_CLOCK_MHZ: u32 = 100_000;
/// PCIe 5 is the newest generation in use; this leaves room.
const MAX_PCIE_GENERATION: u8 = 9;
/// The widest slot.
const MAX_PCIE_LANES: u8 = 32;
/// A petabyte per second, above any link.
const MAX_BYTES_PER_SECOND: f64 = 1e15;
/// One CPU is 100, and no host has more than 65,536 CPUs.
const MAX_CPU_PERCENT: f32 = 6_553_600.0;
/// A century, longer than any uptime.
const MAX_SECONDS: f64 = 100.0 * 366.0 * 86_400.0;

/// Sets `value` to `None` if it is out of range.
fn drop_unless<T>(value: &mut Option<T>, is_possible: impl FnOnce(&T) -> bool) {
    if value.as_ref().is_some_and(|value| !is_possible(value)) {
        *value = None;
    }
}

fn drop_invalid_percent(value: &mut Option<u8>) {
    drop_unless(value, |percent| *percent <= 100);
}

/// NaN and infinities are outside of every range.
fn drop_invalid_watts(value: &mut Option<f32>) {
    drop_unless(value, |watts| (0.0..=MAX_POWER_WATTS).contains(watts));
}

fn drop_invalid_celsius(value: &mut Option<i32>) {
    drop_unless(value, |celsius| (-100..=300).contains(celsius));
}

fn drop_invalid_bytes(value: &mut Option<u64>) {
    drop_unless(value, |bytes| *bytes <= MAX_MEMORY_BYTES);
}

fn clamp_share(value: &mut Option<f32>) {
    // The two counters of a share are not read at the same instant, so it may exceed 100 slightly.
    drop_unless(value, |percent| (0.0..=101.0).contains(percent));
    *value = value.map(|percent| percent.min(100.0));
}

/// Checks the facts of a GPU. Drivers report an unknown total as 0.
pub(super) fn sanitize_gpu_info(info: &mut GpuInfo) {
    drop_unless(&mut info.memory_total_bytes, |bytes| (1..=MAX_MEMORY_BYTES).contains(bytes));
    for limit in [&mut info.power_limit_watts, &mut info.power_limit_max_watts] {
        drop_unless(limit, |watts| *watts > 0.0 && *watts <= MAX_POWER_WATTS);
    }
    for clock in [&mut info.clock_graphics_max_mhz, &mut info.clock_sm_max_mhz, &mut info.clock_memory_max_mhz] {
        drop_unless(clock, |mhz| *mhz <= MAX_CLOCK_MHZ);
    }
    drop_invalid_celsius(&mut info.temperature_slowdown_celsius);
    drop_invalid_celsius(&mut info.temperature_shutdown_celsius);
    drop_invalid_celsius(&mut info.memory_temperature_max_celsius);
    drop_unless(&mut info.bar1_total_bytes, |bytes| (1..=MAX_MEMORY_BYTES).contains(bytes));
    drop_unless(&mut info.pcie_generation_max, |generation| (1..=MAX_PCIE_GENERATION).contains(generation));
    drop_unless(&mut info.pcie_width_max, |lanes| (1..=MAX_PCIE_LANES).contains(lanes));
    drop_unless(&mut info.nvlink_count, |count| *count <= 64);
}

/// Checks the readings of a GPU. Some drivers include reserved memory, so memory in use may exceed the total, but not
/// twice the total.
pub(super) fn sanitize_gpu_reading(reading: &mut GpuReading, info: &GpuInfo) {
    for percent in [
        &mut reading.utilization_percent,
        &mut reading.memory_utilization_percent,
        &mut reading.encoder_percent,
        &mut reading.decoder_percent,
    ] {
        drop_invalid_percent(percent);
    }
    let limit = max_gpu_memory(info);
    drop_unless(&mut reading.memory_used_bytes, |bytes| *bytes <= limit);
    drop_unless(&mut reading.memory_reserved_bytes, |bytes| *bytes <= limit);
    drop_invalid_celsius(&mut reading.temperature_celsius);
    drop_invalid_celsius(&mut reading.memory_temperature_celsius);
    drop_invalid_watts(&mut reading.power_watts);
    drop_invalid_watts(&mut reading.power_mean_watts);
    drop_unless(&mut reading.power_limit_watts, |watts| *watts > 0.0 && *watts <= MAX_POWER_WATTS);
    drop_unless(&mut reading.energy_joules, |joules| joules.is_finite() && *joules >= 0.0);
    for clock in [&mut reading.clock_graphics_mhz, &mut reading.clock_sm_mhz, &mut reading.clock_memory_mhz] {
        drop_unless(clock, |mhz| *mhz <= MAX_CLOCK_MHZ);
    }
    // nvml.h: the fan's speed "may exceed 100% in certain cases".
    drop_unless(&mut reading.fan_percent, |percent| *percent <= 200);
    drop_unless(&mut reading.performance_state, |state| *state <= 15);
    drop_unless(&mut reading.blocked_seconds, |seconds| seconds.is_finite() && *seconds >= 0.0);
    drop_unless(&mut reading.pcie_generation, |generation| (1..=MAX_PCIE_GENERATION).contains(generation));
    drop_unless(&mut reading.pcie_width, |lanes| (1..=MAX_PCIE_LANES).contains(lanes));
    for rate in [
        &mut reading.pcie_receive_bytes_per_second,
        &mut reading.pcie_transmit_bytes_per_second,
        &mut reading.nvlink_receive_bytes_per_second,
        &mut reading.nvlink_transmit_bytes_per_second,
    ] {
        drop_unless(rate, |rate| (0.0..=MAX_BYTES_PER_SECOND).contains(rate));
    }
    for share in [
        &mut reading.sm_activity_percent,
        &mut reading.sm_occupancy_percent,
        &mut reading.tensor_activity_percent,
        &mut reading.dram_bandwidth_percent,
    ] {
        clamp_share(share);
    }
    for counter in
        [&mut reading.thermal_violation_seconds, &mut reading.power_violation_seconds, &mut reading.power_brake_seconds]
    {
        drop_unless(counter, |seconds| (0.0..=MAX_SECONDS).contains(seconds));
    }
}

/// Compares the mean power of the energy counter with the power sensor. Some energy counters stand still or count in another
/// unit; their mean power would make every busy GPU look hung.
#[derive(Debug, Clone, Default)]
pub(super) struct PowerCheck {
    /// The smoothed readings of both, in watts.
    mean: f64,
    sensor: f64,
    /// The length of the comparison, in seconds.
    seconds: f64,
    is_counter_ignored: bool,
}

impl PowerCheck {
    /// The time over which both are smoothed, in seconds. The sensor of some boards samples only a quarter of the time, so
    /// single readings may differ.
    const SPAN: f64 = 60.0;
    /// Smoothed readings that differ by this factor, and by this many watts, contradict each other.
    const FACTOR: f64 = 3.0;
    const LEAST_WATTS: f64 = 20.0;
    /// No board that is read draws less than this.
    const STANDSTILL_WATTS: f32 = 1.0;

    /// Whether the energy counter contradicts the sensor.
    pub(super) fn is_counter_ignored(&self) -> bool {
        self.is_counter_ignored
    }

    /// Compares a reading that stands for `seconds`, and drops its mean power if that contradicts the sensor.
    pub(super) fn check(&mut self, reading: &mut GpuReading, seconds: f64) {
        let (Some(mean), Some(sensor)) = (reading.power_mean_watts, reading.power_watts) else { return };
        let weight = if self.seconds > 0.0 { (seconds / Self::SPAN).min(1.0) } else { 1.0 };
        self.mean += weight * (f64::from(mean) - self.mean);
        self.sensor += weight * (f64::from(sensor) - self.sensor);
        self.seconds += seconds;
        let (low, high) = (self.mean.min(self.sensor), self.mean.max(self.sensor));
        let differs = high > Self::FACTOR * low && high - low >= Self::LEAST_WATTS;
        let stands_still = mean < Self::STANDSTILL_WATTS && sensor >= 5.0 * Self::STANDSTILL_WATTS;
        self.is_counter_ignored = stands_still || differs && self.seconds >= Self::SPAN;
        if self.is_counter_ignored {
            reading.power_mean_watts = None;
        }
    }
}

/// Checks the readings of a process on a GPU.
pub(super) fn sanitize_gpu_process(usage: &mut GpuProcessReading, info: &GpuInfo) {
    for percent in
        [&mut usage.sm_percent, &mut usage.memory_percent, &mut usage.encoder_percent, &mut usage.decoder_percent]
    {
        drop_invalid_percent(percent);
    }
    drop_unless(&mut usage.gpu_memory_bytes, |bytes| *bytes <= max_gpu_memory(info));
}

/// The highest plausible memory in use on a GPU.
fn max_gpu_memory(info: &GpuInfo) -> u64 {
    info.memory_total_bytes.map_or(MAX_MEMORY_BYTES, |total| total.saturating_mul(2))
}

/// Checks the readings of a process on the host.
pub(super) fn sanitize_process(reading: &mut ProcessReading) {
    drop_unless(&mut reading.cpu_percent, |percent| (0.0..=MAX_CPU_PERCENT).contains(percent));
    drop_unless(&mut reading.cpu_seconds, |seconds| seconds.is_finite() && *seconds >= 0.0);
    drop_unless(&mut reading.age_seconds, |seconds| (0.0..=MAX_SECONDS).contains(seconds));
    drop_invalid_bytes(&mut reading.rss_bytes);
    drop_unless(&mut reading.descendants_cpu_percent, |percent| (0.0..=MAX_CPU_PERCENT).contains(percent));
    drop_unless(&mut reading.blocked_seconds, |seconds| (0.0..=MAX_SECONDS as f32).contains(seconds));
    drop_unless(&mut reading.log_age_seconds, |seconds| (0.0..=MAX_SECONDS).contains(seconds));
    drop_unless(&mut reading.longest_wait_seconds, |seconds| (0.0..=MAX_SECONDS).contains(seconds));
}

/// Checks the readings of the host and the other fields of a snapshot.
pub(super) fn sanitize_snapshot(snapshot: &mut Snapshot) {
    let host: &mut HostReading = &mut snapshot.host;
    for share in [
        &mut host.cpu_percent,
        &mut host.io_wait_percent,
        &mut host.pressure_io_percent,
        &mut host.pressure_memory_percent,
        &mut host.pressure_cpu_percent,
    ] {
        clamp_share(share);
    }
    for load in [&mut host.load_1, &mut host.load_5, &mut host.load_15] {
        drop_unless(load, |load| load.is_finite() && *load >= 0.0);
    }
    for bytes in [
        &mut host.memory_total_bytes,
        &mut host.memory_available_bytes,
        &mut host.swap_total_bytes,
        &mut host.swap_free_bytes,
    ] {
        drop_invalid_bytes(bytes);
    }
    drop_unless(&mut host.uptime_seconds, |seconds| (0.0..=MAX_SECONDS).contains(seconds));
    drop_unless(&mut snapshot.interval_seconds, |seconds| (0.1..=3600.0).contains(seconds));
    snapshot.recent_past.iter_mut().for_each(sanitize_recent_past);
}

/// Checks the samples that the driver kept.
fn sanitize_recent_past(past: &mut RecentPast) {
    past.utilization_percent.iter_mut().for_each(drop_invalid_percent);
    past.memory_utilization_percent.iter_mut().for_each(drop_invalid_percent);
    past.power_watts.iter_mut().for_each(drop_invalid_watts);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_readings_become_none() {
        let info = GpuInfo { memory_total_bytes: Some(80 << 30), ..GpuInfo::default() };
        let mut reading = GpuReading {
            utilization_percent: Some(101),
            memory_utilization_percent: Some(255),
            memory_used_bytes: Some((160 << 30) + 1),
            memory_reserved_bytes: Some(u64::MAX),
            temperature_celsius: Some(i32::MIN),
            memory_temperature_celsius: Some(301),
            power_watts: Some(-1.0),
            power_mean_watts: Some(f32::NAN),
            power_limit_watts: Some(0.0),
            energy_joules: Some(f64::INFINITY),
            clock_sm_mhz: Some(u32::MAX),
            fan_percent: Some(u16::MAX),
            performance_state: Some(32),
            blocked_seconds: Some(f32::NEG_INFINITY),
            ..GpuReading::default()
        };
        sanitize_gpu_reading(&mut reading, &info);
        assert_eq!(reading, GpuReading::default());
    }

    #[test]
    fn an_energy_counter_that_contradicts_the_sensor_is_ignored() {
        let reading = |mean, sensor| GpuReading {
            power_mean_watts: Some(mean),
            power_watts: Some(sensor),
            ..GpuReading::default()
        };
        let last_mean = |means: &[f32], sensor| {
            let mut check = PowerCheck::default();
            let mut last = None;
            for mean in means {
                let mut reading = reading(*mean, sensor);
                check.check(&mut reading, 2.0);
                last = reading.power_mean_watts;
            }
            assert_eq!(check.is_counter_ignored(), last.is_none());
            last
        };
        assert_eq!(last_mean(&[0.0], 668.0), None, "a counter that stands still, from the first reading on");
        assert_eq!(last_mean(&[650.0], 668.0), Some(650.0));
        assert_eq!(last_mean(&[0.67; 40], 668.0), None);
        assert_eq!(last_mean(&[120.0; 20], 668.0), Some(120.0), "the sensor may lag behind");
        assert_eq!(last_mean(&[120.0; 40], 668.0), None);
        assert_eq!(last_mean(&[104.0; 40], 118.0), Some(104.0), "a hung GPU");
        assert_eq!(last_mean(&[9.0; 40], 14.0), Some(9.0), "an idle board");
        let mut unknown = GpuReading { power_watts: None, ..reading(0.0, 0.0) };
        PowerCheck::default().check(&mut unknown, 2.0);
        assert_eq!(unknown.power_mean_watts, Some(0.0), "nothing to compare with");
    }

    #[test]
    fn possible_readings_stay() {
        let info = GpuInfo { memory_total_bytes: Some(80 << 30), ..GpuInfo::default() };
        let reading = GpuReading {
            utilization_percent: Some(100),
            memory_used_bytes: Some(81 << 30),
            temperature_celsius: Some(-40),
            power_watts: Some(0.0),
            power_limit_watts: Some(1400.0),
            fan_percent: Some(120),
            ..GpuReading::default()
        };
        let mut cleaned = reading.clone();
        sanitize_gpu_reading(&mut cleaned, &info);
        assert_eq!(cleaned, reading);
    }

    #[test]
    fn a_total_of_zero_becomes_none_and_sets_no_limit() {
        let mut info =
            GpuInfo { memory_total_bytes: Some(0), power_limit_watts: Some(f32::INFINITY), ..GpuInfo::default() };
        sanitize_gpu_info(&mut info);
        assert_eq!(info, GpuInfo::default());
        let mut reading = GpuReading { memory_used_bytes: Some(1 << 40), ..GpuReading::default() };
        sanitize_gpu_reading(&mut reading, &info);
        assert_eq!(reading.memory_used_bytes, Some(1 << 40));
    }

    #[test]
    fn host_and_process_readings_are_checked() {
        let mut snapshot = Snapshot {
            host: HostReading {
                cpu_percent: Some(100.4),
                io_wait_percent: Some(250.0),
                load_1: Some(f32::NAN),
                memory_total_bytes: Some(u64::MAX),
                uptime_seconds: Some(-5.0),
                ..HostReading::default()
            },
            interval_seconds: Some(f32::INFINITY),
            recent_past: vec![RecentPast {
                utilization_percent: vec![Some(101), Some(100)],
                power_watts: vec![Some(f32::NAN), Some(500.0)],
                ..RecentPast::default()
            }],
            ..Snapshot::default()
        };
        sanitize_snapshot(&mut snapshot);
        assert_eq!(snapshot.host, HostReading { cpu_percent: Some(100.0), ..HostReading::default() });
        assert_eq!(snapshot.interval_seconds, None);
        let past = &snapshot.recent_past[0];
        assert_eq!(
            (past.utilization_percent.as_slice(), past.power_watts.as_slice()),
            (&[None, Some(100)][..], &[None, Some(500.0)][..])
        );
        let mut process = ProcessReading {
            cpu_percent: Some(-3.0),
            cpu_seconds: Some(f64::NAN),
            age_seconds: Some(1e18),
            rss_bytes: Some(u64::MAX),
            ..ProcessReading::default()
        };
        sanitize_process(&mut process);
        assert_eq!(process, ProcessReading::default());
    }
}
