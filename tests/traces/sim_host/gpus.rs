//! The GPUs of a host, as the driver tells of them.

use super::{RESERVED, SimHost};
use crate::case_file::{Step, positions};
use crate::gpu_model::{GpuModel, Load};
use crate::process::GIB;
use gpufleet::wire::{DeviceError, DriverErrorKind, GpuHealth, GpuInfo, GpuReading, RecoveryAction, SafeText};

impl SimHost {
    pub(super) fn info(&self, gpu: usize) -> GpuInfo {
        let model = self.model;
        let uuid = |gpu: usize| SafeText::new(&format!("GPU-{}-{gpu:04}", &self.boot_id()[..13]));
        if self.is_instance(gpu) {
            // A part of GPU 0, which tells nothing but its memory.
            return GpuInfo {
                index: gpu as u32,
                uuid: Some(SafeText::new(&format!("MIG-{}-{gpu:04}", &self.boot_id()[..13]))),
                name: Some("NVIDIA H100 80GB HBM3 MIG 1g.10gb".into()),
                memory_total_bytes: Some((10.0 * GIB) as u64),
                mig_parent_uuid: Some(uuid(0)),
                ..GpuInfo::default()
            };
        }
        let is_divided = (0..self.gpu_states.len()).any(|other| self.is_instance(other)) && gpu == 0;
        GpuInfo {
            index: gpu as u32,
            uuid: Some(uuid(gpu)),
            name: Some(model.name.into()),
            pci_bus_id: Some(SafeText::new(&format!("00000000:{:02X}:00.0", 0x1B + 0x10 * gpu))),
            memory_total_bytes: model.memory.map(|gib| (gib * GIB) as u64),
            power_limit_watts: Some(self.gpu_states[gpu].limit as f32),
            power_limit_max_watts: Some(model.limit as f32),
            clock_graphics_max_mhz: Some(1980),
            clock_sm_max_mhz: Some(1980),
            clock_memory_max_mhz: Some(2619),
            temperature_slowdown_celsius: Some(model.slowdown),
            temperature_shutdown_celsius: Some(model.slowdown + 5),
            mig_enabled: Some(is_divided),
            pcie_generation_max: Some(model.generation),
            pcie_width_max: Some(16),
            minor_number: Some(gpu as u32),
            nvlink_count: (model.links > 0).then_some(model.links),
            unified_memory: model.memory.is_none().then_some(true),
            ..GpuInfo::default()
        }
    }

    fn is_instance(&self, gpu: usize) -> bool {
        self.on_gpu("mig", gpu).is_some()
    }

    pub(super) fn on_gpu<'a>(&'a self, word: &'a str, gpu: usize) -> Option<&'a Step> {
        self.active(word, self.time)
            .find(|event| positions(event.text("gpu").unwrap_or("0"), self.gpu_states.len()).contains(&gpu))
    }

    pub(super) fn reading(&mut self, gpu: usize, has_rates: bool) -> GpuReading {
        let broken = |kind, code, message: &str| GpuReading {
            error: Some(DeviceError { kind, code, message: message.into() }),
            ..GpuReading::default()
        };
        if self.on_gpu("lost", gpu).is_some() {
            return broken(DriverErrorKind::GpuLost, Some(15), "the GPU has fallen off the bus");
        }
        if self.on_gpu("reset", gpu).is_some() {
            return broken(DriverErrorKind::ResetRequired, Some(16), "the GPU must be reset");
        }
        if self.on_gpu("unknown", gpu).is_some() {
            return broken(DriverErrorKind::Unknown, Some(999), "the driver gives an unknown error for this GPU");
        }
        if let Some(since) = self.on_gpu("blocked", gpu).map(|event| self.time - event.at) {
            let mut reading = GpuReading { blocked_seconds: Some(since.max(1.0) as f32), ..GpuReading::default() };
            if since >= 5.0 {
                let message = SafeText::new(&format!("the driver has not answered for this GPU for {since:.0} s"));
                reading.error = Some(DeviceError { kind: DriverErrorKind::Blocked, code: None, message });
            }
            return reading;
        }
        if self.is_instance(gpu) {
            let used = self.gpu_states[gpu].used.min((9.5 * GIB) as u64);
            return GpuReading { memory_used_bytes: Some(used), ..GpuReading::default() };
        }
        let absurd = self.on_gpu("absurd", gpu).and_then(|event| event.number("share")).unwrap_or(0.0);
        if absurd > 0.0 && self.rng.chance(absurd) {
            return self.nonsense();
        }
        let counts_energy = self.on_gpu("no_energy", gpu).is_none();
        let noise = self.rng.normal();
        let load = self.gpu_states[gpu].load;
        let busy = load.is_some_and(|load| load.utilization >= 5.0);
        let has_context = load.is_some();
        let mut reasons = u64::from(!busy);
        let gpu_state = &self.gpu_states[gpu];
        if gpu_state.mean_watts > 0.78 * self.model.limit || self.on_gpu("capped", gpu).is_some() {
            reasons |= 0x4;
        }
        let mut celsius = gpu_state.celsius;
        if let Some(event) = self.on_gpu("hot", gpu) {
            celsius = f64::from(self.model.slowdown) - event.number("margin").unwrap_or(2.0);
        }
        let share = |event: &Step| event.number("share").unwrap_or(0.2);
        let flags = [("thermal", 0x48), ("brake", 0x80), ("blips", 0x8)];
        let shares: Vec<(f64, u64)> =
            flags.iter().filter_map(|(word, bits)| Some((share(self.on_gpu(word, gpu)?), *bits))).collect();
        for (share, bits) in shares {
            if self.rng.chance(share) {
                reasons |= bits;
            }
        }
        let link = self.on_gpu("pcie", gpu).cloned();
        let link = |key| link.as_ref().and_then(|event| event.number(key)).map(|value| value as u8);
        let is_loaded = load.is_some_and(|load| load.utilization >= 30.0);
        let gpu_state = &self.gpu_states[gpu];
        let is_unified = self.model.memory.is_none();
        GpuReading {
            utilization_percent: Some(load.map_or(0.0, |load| load.utilization).clamp(0.0, 100.0).round() as u8),
            memory_utilization_percent: Some(
                load.map_or(0.0, |load| load.memory_activity).clamp(0.0, 100.0).round() as u8
            ),
            memory_used_bytes: (!is_unified).then_some(gpu_state.used),
            memory_reserved_bytes: (!is_unified).then_some(RESERVED),
            temperature_celsius: Some((celsius + 0.4 * noise).round() as i32),
            power_watts: Some((gpu_state.mean_watts * (1.0 + 0.012 * noise)) as f32),
            power_mean_watts: (has_rates && counts_energy).then_some(gpu_state.mean_watts as f32),
            energy_joules: counts_energy.then_some(gpu_state.joules),
            clock_graphics_mhz: Some(if has_context { 1980 } else { 345 }),
            clock_sm_mhz: Some(if has_context { 1980 } else { 345 }),
            clock_memory_mhz: Some(2619),
            performance_state: Some(if has_context { 0 } else { 8 }),
            clocks_event_reasons: Some(reasons),
            pcie_generation: Some(link("generation").unwrap_or(if is_loaded { self.model.generation } else { 1 })),
            pcie_width: Some(link("width").unwrap_or(16)),
            thermal_violation_seconds: Some(gpu_state.thermal_seconds),
            power_violation_seconds: Some(self.time * 0.3),
            power_brake_seconds: Some(gpu_state.brake_seconds),
            ..GpuReading::default()
        }
    }

    /// What a confused driver says, each time something else.
    fn nonsense(&mut self) -> GpuReading {
        let watts = self.rng.pick(&[f32::NAN, f32::INFINITY, -40.0, 4e9]);
        GpuReading {
            utilization_percent: self.rng.pick(&[None, Some(255), Some(127)]),
            memory_utilization_percent: Some(240),
            memory_used_bytes: self.rng.pick(&[None, Some(u64::MAX)]),
            temperature_celsius: Some(i32::MAX),
            power_watts: Some(watts),
            power_mean_watts: Some(watts),
            energy_joules: Some(-1.0),
            power_limit_watts: self.rng.pick(&[None, Some(0.0), Some(f32::NAN)]),
            thermal_violation_seconds: Some(1e30),
            power_brake_seconds: Some(f64::NAN),
            ..GpuReading::default()
        }
    }

    pub(super) fn health(&self, gpu: usize) -> GpuHealth {
        let event = |word: &'static str| self.on_gpu(word, gpu);
        let number = |word: &'static str, key| event(word).and_then(|event| event.number(key)).unwrap_or(0.0) as u64;
        let links = u32::from(self.model.links);
        let all = if links == 0 { 0 } else { (1_u32 << links) - 1 };
        let down = event("nvlink").map_or(0, |event| 1_u32 << event.number("link").unwrap_or(0.0) as u32);
        let action = event("recovery").map_or(RecoveryAction::None, |event| match event.text("action") {
            Some("reset") => RecoveryAction::GpuReset,
            Some("reboot") => RecoveryAction::NodeReboot,
            _ => RecoveryAction::DrainAndReset,
        });
        GpuHealth {
            ecc_corrected_volatile: Some(number("ecc", "corrected")),
            ecc_uncorrectable_volatile: Some(number("ecc", "volatile")),
            ecc_corrected_aggregate: Some(40 + number("ecc", "corrected")),
            ecc_uncorrectable_aggregate: Some(number("ecc", "aggregate") + number("ecc", "volatile")),
            remapped_rows_correctable: Some(0),
            remapped_rows_uncorrectable: Some(u32::from(event("remap").is_some())),
            row_remap_pending: Some(event("remap").is_some_and(|event| event.has("pending"))),
            row_remap_failed: Some(event("remap").is_some_and(|event| event.has("failed"))),
            recovery_action: Some(action),
            persistence_mode: Some(event("persistence_off").is_none()),
            nvlinks_active: (links > 0).then_some(u64::from(all & !down)),
            power_smoothing: event("smoothing").map(|_| true),
            ..GpuHealth::default()
        }
    }
}

/// Two processes on one GPU.
pub(super) fn join(one: Option<Load>, other: Load, model: &GpuModel) -> Load {
    let Some(one) = one else { return other };
    Load {
        utilization: one.utilization.max(other.utilization),
        memory_activity: one.memory_activity.max(other.memory_activity),
        watts: one.watts + other.watts - model.context,
        ..other
    }
}

/// A GPU that something drives which no process is listed for.
pub(super) fn forced(event: &Step, model: &GpuModel) -> Load {
    Load {
        utilization: event.number("u").unwrap_or(0.0),
        memory_activity: event.number("m").unwrap_or(0.0),
        watts: event.number("watts").unwrap_or(model.context),
        cpus: 0.0,
        waits: 0.0,
        writes: 0.0,
        reads: 0.0,
        helpers: 0.0,
        helper_cpus: 0.0,
        helpers_waiting: 0.0,
    }
}
