//! The fixed facts of a GPU or of an instance.

use super::valid_range::{bytes, celsius, link, megahertz, watts};
use crate::probe::nvml::call_timer::CallTimer;
use crate::probe::nvml::ffi::{DriverAnomaly, Handle, Library, ReturnCode};
use crate::wire::{GpuInfo, SafeText};
use nvml_wrapper_sys::bindings as sys;

/// More links than any GPU has (nvml.h knows 36); they are a bit each in what is sent.
const MAX_LINKS: u8 = 64;

/// A GPU's memory, in bytes, from whichever version of the call the library has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) used: u64,
    pub(super) reserved: Option<u64>,
}

impl Memory {
    /// No GPU has a petabyte, and none has far more in use than it has; some count the reserved part twice.
    fn is_in_range(self) -> bool {
        bytes(self.total).is_some() && self.used / 2 <= self.total && self.reserved.unwrap_or(0) <= self.total
    }
}

/// What the driver says of a GPU's memory. Nonsense is an unknown error, so that it is not taken for unified memory.
pub(super) fn memory(library: &Library, timer: &CallTimer, handle: Handle) -> Result<Memory, ReturnCode> {
    let memory = match library.memory_v2(timer, handle) {
        Ok(memory) => Memory { total: memory.total, used: memory.used, reserved: Some(memory.reserved) },
        Err(code @ (ReturnCode::GPU_IS_LOST | ReturnCode::RESET_REQUIRED)) => return Err(code),
        Err(_) => {
            let memory = library.memory_v1(timer, handle)?;
            Memory { total: memory.total, used: memory.used, reserved: None }
        }
    };
    if memory.is_in_range() {
        return Ok(memory);
    }
    library.anomalies().add(DriverAnomaly::ImplausibleReading);
    Err(ReturnCode::UNKNOWN)
}

/// A whole GPU, divided or not.
pub(super) fn gpu_info(library: &Library, timer: &CallTimer, handle: Handle, index: u32) -> GpuInfo {
    let memory = memory(library, timer, handle);
    // Parts that share the host's memory refuse this one call, or give nothing; any other error is only an error.
    let unified = matches!(memory, Err(ReturnCode::NOT_SUPPORTED)) || memory.is_ok_and(|memory| memory.total == 0);
    let clock = |kind| library.max_clock(timer, handle, kind).ok().and_then(megahertz);
    let threshold = |kind| library.temperature_threshold(timer, handle, kind).ok().and_then(celsius);
    // Their PCIe readings are of no link that is there.
    let pcie = |value: Result<u32, ReturnCode>| value.ok().and_then(link).filter(|_| !unified);
    GpuInfo {
        index,
        uuid: text(library.uuid(timer, handle)),
        name: text(library.name(timer, handle)),
        pci_bus_id: text(library.pci_bus_id(timer, handle)),
        memory_total_bytes: memory.ok().map(|memory| memory.total).filter(|&total| total > 0),
        power_limit_watts: library.enforced_power_limit(timer, handle).ok().and_then(watts),
        power_limit_max_watts: library.max_power_limit(timer, handle).ok().and_then(watts),
        clock_graphics_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS),
        clock_sm_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_SM),
        clock_memory_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_MEM),
        temperature_slowdown_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        ),
        temperature_shutdown_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        ),
        memory_temperature_max_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
        ),
        mig_enabled: library.mig_mode(timer, handle).ok(),
        bar1_total_bytes: library
            .bar1(timer, handle)
            .ok()
            .and_then(|bar1| bytes(bar1.bar1Total).filter(|&total| total > 0)),
        pcie_generation_max: pcie(library.pcie_generation_max(timer, handle)),
        pcie_width_max: pcie(library.pcie_width_max(timer, handle)),
        // The kernel has 20 bits for it.
        minor_number: library.minor_number(timer, handle).ok().filter(|&number| number < 1 << 20),
        nvlink_count: nvlink_count(library, timer, handle),
        unified_memory: unified.then_some(true),
        ..GpuInfo::default()
    }
}

/// A MIG instance of `parent`.
pub(super) fn mig_instance_info(
    library: &Library,
    timer: &CallTimer,
    handle: Handle,
    index: u32,
    parent: &GpuInfo,
) -> GpuInfo {
    let total = memory(library, timer, handle).ok().map(|memory| memory.total).filter(|&total| total > 0);
    let id = |id: Result<u32, ReturnCode>| id.ok().filter(|&id| id != u32::MAX);
    GpuInfo {
        index,
        uuid: text(library.uuid(timer, handle)),
        name: text(library.name(timer, handle)),
        memory_total_bytes: total,
        mig_parent_uuid: parent.uuid.clone(),
        gpu_instance_id: id(library.gpu_instance_id(timer, handle)),
        compute_instance_id: id(library.compute_instance_id(timer, handle)),
        ..GpuInfo::default()
    }
}

/// Links are numbered from 0; the first that does not answer is not there.
fn nvlink_count(library: &Library, timer: &CallTimer, handle: Handle) -> Option<u8> {
    let answers = |link: &u8| library.nvlink_state(timer, handle, u32::from(*link)).is_ok();
    let count = (0..MAX_LINKS).take_while(answers).count() as u8;
    (count > 0).then_some(count)
}

pub(super) fn text(bytes: Result<Vec<u8>, ReturnCode>) -> Option<SafeText> {
    bytes.ok().filter(|bytes| !bytes.is_empty()).map(|bytes| SafeText::from_bytes(&bytes))
}
