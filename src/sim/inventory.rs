//! What a simulated server says of itself: who speaks, and which GPUs there are.

use super::host_plan::HostPlan;
use super::host_templates::DriverState;
use super::people::VIEWER;
use super::rng;
use crate::wire::{DriverError, DriverErrorKind, GpuInfo, Hello, Inventory, PROTOCOL, SafeText, Scope};

/// CPUs of each server.
pub(super) const CPU_COUNT: u32 = 112;
/// Memory of each server.
pub(super) const HOST_MEMORY_BYTES: u64 = 1007 << 30;
/// Lanes of each GPU.
pub(super) const PCIE_WIDTH: u8 = 16;
const DRIVER: &str = "570.86.15";
const OLD_DRIVER: &str = "550.54.15";

impl HostPlan {
    /// Who speaks.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            probe_version: env!("CARGO_PKG_VERSION").into(),
            boot_id: Some(self.boot_id()),
            host_name: Some(self.name.as_str().into()),
            login_user: Some(VIEWER.login.into()),
            login_uid: Some(VIEWER.uid),
            kernel: Some("6.8.0-60-generic".into()),
            arch: Some("x86_64".into()),
            cpu_count: Some(CPU_COUNT),
            memory_total_bytes: Some(HOST_MEMORY_BYTES),
            scope: Some(Scope::Host),
            source: Some(crate::wire::ReadingSource::Probe),
            probe_pid: Some(1900),
        }
    }

    /// The id that names its boot.
    pub(super) fn boot_id(&self) -> SafeText {
        let (high, low) = (self.seed, rng::hash(&[self.seed, 50]));
        SafeText::new(&format!(
            "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xFFFF,
            high & 0xFFF,
            low >> 52,
            low & 0xFFFF_FFFF_FFFF
        ))
    }

    /// Its GPUs, or why there are none.
    pub(super) fn inventory(&self) -> Inventory {
        if self.driver == DriverState::Mismatched {
            let error = DriverError {
                kind: DriverErrorKind::VersionMismatch,
                code: Some(18),
                message: "driver and library versions differ: the driver was updated without a reboot".into(),
            };
            return Inventory { generation: 1, error: Some(error), ..Inventory::default() };
        }
        let model = self.model;
        let info = |gpu: usize| {
            let id = rng::hash(&[self.seed, 51, gpu as u64]);
            GpuInfo {
                index: gpu as u32,
                uuid: Some(SafeText::new(&format!(
                    "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    id >> 32,
                    id >> 16 & 0xFFFF,
                    id & 0xFFFF,
                    self.seed >> 48,
                    self.seed & 0xFFFF_FFFF_FFFF
                ))),
                name: Some(model.name.into()),
                pci_bus_id: Some(SafeText::new(&format!("00000000:{:02X}:00.0", 0x1B + 0x14 * gpu % 0xE0))),
                memory_total_bytes: Some(model.memory_total_bytes),
                power_limit_watts: Some(model.power_limit_watts as f32),
                power_limit_max_watts: Some(model.power_limit_watts as f32),
                clock_graphics_max_mhz: Some(model.sm_max_mhz),
                clock_sm_max_mhz: Some(model.sm_max_mhz),
                clock_memory_max_mhz: Some(model.memory_mhz),
                temperature_slowdown_celsius: Some(model.slowdown_celsius),
                temperature_shutdown_celsius: Some(model.slowdown_celsius + 3),
                mig_enabled: Some(false),
                pcie_generation_max: Some(model.pcie_generation),
                pcie_width_max: Some(PCIE_WIDTH),
                minor_number: Some(gpu as u32),
                nvlink_count: Some(model.nvlinks),
                ..GpuInfo::default()
            }
        };
        Inventory {
            generation: 1,
            driver_version: Some(if self.driver == DriverState::Outdated { OLD_DRIVER } else { DRIVER }.into()),
            cuda_version: Some("12.8".into()),
            nvml_path: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into()),
            gpus: (0..self.gpu_count).map(info).collect(),
            error: None,
        }
    }
}
