//! One GPU.

use super::super::report::GpuView;
use super::{JsonGpuError, rfc3339};
use crate::wire::{DeviceError, SafeText};
use serde::Serialize;

/// One GPU: its facts, its state and its last readings.
#[derive(Debug, Serialize)]
pub struct JsonGpu {
    /// NVML's device index, as `nvidia-smi` shows it. The UUID is the identity.
    pub index: u32,
    /// The UUID.
    pub uuid: Option<SafeText>,
    /// The name of the part.
    pub name: Option<SafeText>,
    /// PCI bus id.
    pub pci_bus_id: Option<SafeText>,
    /// For a MIG instance, the UUID of its parent.
    pub mig_parent_uuid: Option<SafeText>,
    /// Whether multi-instance mode is on.
    pub mig_enabled: Option<bool>,
    /// `free`, `unused`, `idle`, `waiting`, `in_use`, `hung`, `fault` or `unknown`.
    pub state: &'static str,
    /// Since when it is known to be in this state, RFC 3339.
    pub state_since: Option<String>,
    /// Why this GPU cannot be read; its readings are then `null`.
    pub error: Option<JsonGpuError>,
    /// Share of time in which a kernel ran, percent.
    pub utilization_percent: Option<u8>,
    /// Share of time in which memory was read or written, percent.
    pub memory_utilization_percent: Option<u8>,
    /// Memory handed out, bytes.
    pub memory_used_bytes: Option<u64>,
    /// Memory the driver keeps for itself, bytes.
    pub memory_reserved_bytes: Option<u64>,
    /// Memory, bytes.
    pub memory_total_bytes: Option<u64>,
    /// Temperature of the core, degrees Celsius.
    pub temperature_celsius: Option<i32>,
    /// Temperature of the memory, degrees Celsius.
    pub memory_temperature_celsius: Option<i32>,
    /// Power now, watts.
    pub power_watts: Option<f32>,
    /// Mean power since the previous reading, watts.
    pub power_mean_watts: Option<f32>,
    /// The limit the driver enforces, watts.
    pub power_limit_watts: Option<f32>,
    /// Energy since the driver was loaded, joules.
    pub energy_joules: Option<f64>,
    /// Graphics clock, MHz.
    pub clock_graphics_mhz: Option<u32>,
    /// SM clock, MHz.
    pub clock_sm_mhz: Option<u32>,
    /// Memory clock, MHz.
    pub clock_memory_mhz: Option<u32>,
    /// Why the clocks are below their maximum: NVML's mask.
    pub clocks_event_reasons: Option<u64>,
    /// Fan speed, percent.
    pub fan_percent: Option<u16>,
    /// Performance state, 0 (fastest) to 15.
    pub performance_state: Option<u8>,
    /// Encoder use, percent.
    pub encoder_percent: Option<u8>,
    /// Decoder use, percent.
    pub decoder_percent: Option<u8>,
    /// PCIe generation now.
    pub pcie_generation: Option<u8>,
    /// PCIe lanes now.
    pub pcie_width: Option<u8>,
    /// Uncorrectable ECC errors since the driver was loaded.
    pub ecc_uncorrectable_volatile: Option<u64>,
}

impl JsonGpu {
    pub(super) fn new(gpu: &GpuView<'_>) -> Self {
        let (info, reading) = (gpu.info, &gpu.reading);
        Self {
            index: info.index,
            uuid: info.uuid.clone(),
            name: info.name.clone(),
            pci_bus_id: info.pci_bus_id.clone(),
            mig_parent_uuid: info.mig_parent_uuid.clone(),
            mig_enabled: info.mig_enabled,
            state: gpu.state.json_word(),
            state_since: gpu.since.and_then(rfc3339),
            error: reading.error.as_ref().map(device_error),
            utilization_percent: reading.utilization_percent,
            memory_utilization_percent: reading.memory_utilization_percent,
            memory_used_bytes: reading.memory_used_bytes,
            memory_reserved_bytes: reading.memory_reserved_bytes,
            memory_total_bytes: info.memory_total_bytes,
            temperature_celsius: reading.temperature_celsius,
            memory_temperature_celsius: reading.memory_temperature_celsius,
            power_watts: reading.power_watts,
            power_mean_watts: reading.power_mean_watts,
            power_limit_watts: reading.power_limit_watts.or(info.power_limit_watts),
            energy_joules: reading.energy_joules,
            clock_graphics_mhz: reading.clock_graphics_mhz,
            clock_sm_mhz: reading.clock_sm_mhz,
            clock_memory_mhz: reading.clock_memory_mhz,
            clocks_event_reasons: reading.clocks_event_reasons,
            fan_percent: reading.fan_percent,
            performance_state: reading.performance_state,
            encoder_percent: reading.encoder_percent,
            decoder_percent: reading.decoder_percent,
            pcie_generation: reading.pcie_generation,
            pcie_width: reading.pcie_width,
            ecc_uncorrectable_volatile: gpu.health.and_then(|health| health.ecc_uncorrectable_volatile),
        }
    }
}

fn device_error(error: &DeviceError) -> JsonGpuError {
    JsonGpuError { kind: error.kind, code: error.code, message: error.message.clone() }
}
