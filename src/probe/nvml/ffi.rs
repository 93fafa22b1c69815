//! The one module that is unsafe: libnvidia-ml by `dlopen`, and the three calls of libc that nothing safe wraps.
//!
//! Types and constants are those of `nvml-wrapper-sys`. Its own loader is not used: it resolves 400 names and adds
//! 110 kB, has no second versions of old calls, and trusts the driver's counts and terminators. Here each function is
//! optional, a count is clamped to the buffer that was handed over, and a text ends where its buffer ends.
#![allow(
    unsafe_code,
    reason = "foreign functions; every call hands over buffers that outlive it, with their true size"
)]

mod driver_anomaly;
mod events;
pub(crate) mod fields;
mod gpm;
mod libc_calls;
mod lists;
mod loader;
mod symbol_table;

pub(crate) use driver_anomaly::{DriverAnomalies, DriverAnomaly};
pub(crate) use events::{Event, EventSet};
pub(crate) use gpm::GpmSample;
pub(crate) use libc_calls::{PasswdEntry, exit_now, page_size, passwd_entry, process_cpu_nanoseconds};
pub(crate) use lists::{Entries, ProcessList};
pub(crate) use loader::LoadError;

use self::symbol_table::{GetStruct, GetText, GetTwoU32, SymbolTable};
use super::call_timer::CallTimer;
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// An `nvmlReturn_t` other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReturnCode(pub(crate) u32);

impl ReturnCode {
    pub(crate) const UNINITIALIZED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    pub(crate) const INVALID_ARGUMENT: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    pub(crate) const TIMEOUT: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT);
    pub(crate) const NOT_SUPPORTED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    pub(crate) const NO_PERMISSION: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION);
    pub(crate) const NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
    pub(crate) const LIBRARY_NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND);
    pub(crate) const FUNCTION_NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND);
    pub(crate) const GPU_IS_LOST: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    pub(crate) const RESET_REQUIRED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED);
    pub(crate) const VERSION_MISMATCH: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH);
    pub(crate) const UNKNOWN: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN);
}

/// An `nvmlDevice_t` that is not null. NVML allows its use from any thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(NonNull<sys::nvmlDevice_st>);

// SAFETY: the pointer is a token of the library's, never dereferenced here, and NVML is thread-safe (nvml.h).
unsafe impl Send for Handle {}

impl Handle {
    /// A number that is the same for the same device, to compare with what an event names.
    pub(crate) fn number(self) -> usize {
        self.0.addr().get()
    }
}

/// An NVML library. It stays loaded until the process ends: a call that hangs must not lose its code.
pub(crate) struct Library {
    table: SymbolTable,
    path: String,
    early_r535: bool,
    anomalies: DriverAnomalies,
}

/// Declares getters of one number.
macro_rules! getters {
    ($($(#[$doc:meta])* $method:ident($($argument:ident)?) -> $type:ty;)*) => {
        $($(#[$doc])* pub(crate) fn $method(&self, timer: &CallTimer, device: Handle $(, $argument: u32)?) -> Result<$type, ReturnCode> {
            let mut value: $type = 0;
            // SAFETY: `value` is the out parameter that nvml.h declares for this function.
            call(timer, self.table.$method, |function| unsafe { function(device.0.as_ptr() $(, $argument)?, &raw mut value) })?;
            Ok(value)
        })*
    };
}

impl Library {
    pub(crate) fn init(&self, timer: &CallTimer) -> Result<(), ReturnCode> {
        // SAFETY: no arguments.
        call(timer, self.table.init, |function| unsafe { function() })
    }

    pub(crate) fn shutdown(&self, timer: &CallTimer) -> Result<(), ReturnCode> {
        // SAFETY: no arguments.
        call(timer, self.table.shutdown, |function| unsafe { function() })
    }

    pub(crate) fn driver_version(&self, timer: &CallTimer) -> Result<Vec<u8>, ReturnCode> {
        let mut text = [0_u8; 80];
        call(timer, self.table.driver_version, |function| {
            // SAFETY: the buffer and its length.
            unsafe { function(text.as_mut_ptr().cast(), text.len() as c_uint) }
        })?;
        Ok(self.until_nul(&text))
    }

    /// 1000 times the major plus 10 times the minor version.
    pub(crate) fn cuda_version(&self, timer: &CallTimer) -> Result<i32, ReturnCode> {
        let mut version: c_int = 0;
        // SAFETY: `version` is the out parameter of both.
        call(timer, self.table.cuda_version_v2.or(self.table.cuda_version), |function| unsafe {
            function(&raw mut version)
        })?;
        Ok(version)
    }

    pub(crate) fn device_count(&self, timer: &CallTimer) -> Result<u32, ReturnCode> {
        let mut count: c_uint = 0;
        // SAFETY: `count` is the out parameter.
        call(timer, self.table.count, |function| unsafe { function(&raw mut count) })?;
        Ok(count)
    }

    pub(crate) fn device(&self, timer: &CallTimer, index: u32) -> Result<Handle, ReturnCode> {
        let mut device: sys::nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: `device` is the out parameter.
        call(timer, self.table.handle, |function| unsafe { function(index, &raw mut device) })?;
        NonNull::new(device).map(Handle).ok_or(ReturnCode::UNKNOWN)
    }

    pub(crate) fn mig_device(&self, timer: &CallTimer, parent: Handle, index: u32) -> Result<Handle, ReturnCode> {
        let mut device: sys::nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: `device` is the out parameter.
        call(timer, self.table.mig_handle, |function| unsafe { function(parent.0.as_ptr(), index, &raw mut device) })?;
        NonNull::new(device).map(Handle).ok_or(ReturnCode::NOT_FOUND)
    }

    pub(crate) fn uuid(&self, timer: &CallTimer, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        self.text(timer, self.table.uuid, device)
    }

    pub(crate) fn name(&self, timer: &CallTimer, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        self.text(timer, self.table.name, device)
    }

    pub(crate) fn pci_bus_id(&self, timer: &CallTimer, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        let info: sys::nvmlPciInfo_t = structure(timer, self.table.pci_info, device, |_| {})?;
        Ok(self.until_nul(&info.busId.map(|character| character as u8)))
    }

    pub(crate) fn memory_v2(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlMemory_v2_t, ReturnCode> {
        // The version word is the structure's size and its number (nvml.h, NVML_STRUCT_VERSION).
        let version = size_of::<sys::nvmlMemory_v2_t>() as c_uint | 2 << 24;
        structure(timer, self.table.memory_v2, device, |memory| memory.version = version)
    }

    pub(crate) fn memory_v1(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlMemory_t, ReturnCode> {
        structure(timer, self.table.memory_v1, device, |_| {})
    }

    pub(crate) fn utilization(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlUtilization_t, ReturnCode> {
        structure(timer, self.table.utilization, device, |_| {})
    }

    getters! {
        /// By `nvmlTemperatureSensors_t`, in degrees Celsius.
        temperature(sensor) -> u32;
        /// By `nvmlTemperatureThresholds_t`, in degrees Celsius.
        temperature_threshold(kind) -> u32;
        /// In milliwatts.
        power_usage() -> u32;
        /// In millijoules.
        total_energy() -> u64;
        /// In milliwatts.
        enforced_power_limit() -> u32;
        /// By `nvmlClockType_t`, in MHz.
        clock(kind) -> u32;
        /// By `nvmlClockType_t`, in MHz.
        max_clock(kind) -> u32;
        fan_count() -> u32;
        /// One fan, in percent.
        fan_speed_v2(fan) -> u32;
        /// The only or first fan, in percent.
        fan_speed() -> u32;
        performance_state() -> u32;
        event_reasons() -> u64;
        /// The name of `event_reasons` before R535.
        throttle_reasons() -> u64;
        pcie_generation() -> u32;
        pcie_width() -> u32;
        pcie_generation_max() -> u32;
        pcie_width_max() -> u32;
        /// The N of `/dev/nvidiaN`.
        minor_number() -> u32;
        /// Whether one NVLink is up: 0 or 1.
        nvlink_state(link) -> u32;
        persistence_mode() -> u32;
        /// `nvmlComputeMode_t`.
        compute_mode() -> u32;
        retired_pages_pending() -> u32;
        gpu_instance_id() -> u32;
        compute_instance_id() -> u32;
        /// How many instances the GPU could hold at most.
        mig_count() -> u32;
    }

    /// The highest power limit that can be set, in milliwatts.
    pub(crate) fn max_power_limit(&self, timer: &CallTimer, device: Handle) -> Result<u32, ReturnCode> {
        pair(timer, self.table.power_limit_constraints, device).map(|(_, max)| max)
    }

    /// In percent.
    pub(crate) fn encoder(&self, timer: &CallTimer, device: Handle) -> Result<u32, ReturnCode> {
        pair(timer, self.table.encoder, device).map(|(percent, _)| percent)
    }

    /// In percent.
    pub(crate) fn decoder(&self, timer: &CallTimer, device: Handle) -> Result<u32, ReturnCode> {
        pair(timer, self.table.decoder, device).map(|(percent, _)| percent)
    }

    /// Whether multi-instance mode is on now.
    pub(crate) fn mig_mode(&self, timer: &CallTimer, device: Handle) -> Result<bool, ReturnCode> {
        pair(timer, self.table.mig_mode, device).map(|(current, _)| current == sys::NVML_DEVICE_MIG_ENABLE)
    }

    /// The window through which the CPU sees device memory, in bytes.
    pub(crate) fn bar1(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlBAR1Memory_t, ReturnCode> {
        structure(timer, self.table.bar1, device, |_| {})
    }

    /// ECC errors, by `nvmlMemoryErrorType_t` and `nvmlEccCounterType_t`.
    pub(crate) fn ecc_errors(
        &self,
        timer: &CallTimer,
        device: Handle,
        kind: u32,
        period: u32,
    ) -> Result<u64, ReturnCode> {
        let mut count: c_ulonglong = 0;
        // SAFETY: `count` is the out parameter.
        call(timer, self.table.ecc_errors, |function| unsafe {
            function(device.0.as_ptr(), kind, period, &raw mut count)
        })?;
        Ok(count)
    }

    /// How many pages were retired, by `nvmlPageRetirementCause_t`.
    pub(crate) fn retired_pages(&self, timer: &CallTimer, device: Handle, cause: u32) -> Result<u32, ReturnCode> {
        let (mut count, mut address): (c_uint, c_ulonglong) = (0, 0);
        // SAFETY: a count of 0 asks for the count alone; the address is there for drivers that refuse a null pointer.
        let result = call(timer, self.table.retired_pages, |function| unsafe {
            function(device.0.as_ptr(), cause, &raw mut count, &raw mut address)
        });
        match result {
            Ok(()) | Err(ReturnCode::INSUFFICIENT_SIZE) => Ok(count),
            Err(code) => Err(code),
        }
    }

    /// Remapped rows: for corrected errors, for uncorrectable ones, whether one is pending, whether one failed.
    pub(crate) fn remapped_rows(&self, timer: &CallTimer, device: Handle) -> Result<[u32; 4], ReturnCode> {
        let mut rows: [c_uint; 4] = [0; 4];
        let [corrected, uncorrectable, pending, failed] = &mut rows;
        // SAFETY: four out parameters.
        call(timer, self.table.remapped_rows, |function| unsafe {
            function(device.0.as_ptr(), corrected, uncorrectable, pending, failed)
        })?;
        Ok(rows)
    }

    fn text(&self, timer: &CallTimer, function: Option<GetText>, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        let mut text = [0_u8; 96];
        // SAFETY: the buffer and its length.
        call(timer, function, |function| unsafe {
            function(device.0.as_ptr(), text.as_mut_ptr().cast(), text.len() as c_uint)
        })?;
        Ok(self.until_nul(&text))
    }

    fn until_nul(&self, bytes: &[u8]) -> Vec<u8> {
        let end = bytes.iter().position(|&byte| byte == 0);
        if end.is_none() {
            self.anomalies.add(DriverAnomaly::UnterminatedText);
        }
        bytes[..end.unwrap_or(bytes.len())].to_vec()
    }
}

/// Calls one function, marked as in flight while it runs.
fn call<F>(
    timer: &CallTimer,
    function: Option<F>,
    invoke: impl FnOnce(F) -> sys::nvmlReturn_t,
) -> Result<(), ReturnCode> {
    let function = function.ok_or(ReturnCode::FUNCTION_NOT_FOUND)?;
    timer.begin();
    let code = invoke(function);
    timer.end();
    if code == sys::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(ReturnCode(code)) }
}

fn pair(timer: &CallTimer, function: Option<GetTwoU32>, device: Handle) -> Result<(u32, u32), ReturnCode> {
    let (mut first, mut second) = (0, 0);
    // SAFETY: two out parameters.
    call(timer, function, |function| unsafe { function(device.0.as_ptr(), &raw mut first, &raw mut second) })?;
    Ok((first, second))
}

/// Reads a structure of plain numbers, zeroed but for what `prepare` sets.
fn structure<T: Copy>(
    timer: &CallTimer,
    function: Option<GetStruct<T>>,
    device: Handle,
    prepare: impl FnOnce(&mut T),
) -> Result<T, ReturnCode> {
    // SAFETY: every `T` used here is a C structure of integers, for which all zeroes is a value.
    let mut value: T = unsafe { MaybeUninit::zeroed().assume_init() };
    prepare(&mut value);
    // SAFETY: `value` is the out parameter that nvml.h declares for this function.
    call(timer, function, |function| unsafe { function(device.0.as_ptr(), &raw mut value) })?;
    Ok(value)
}
