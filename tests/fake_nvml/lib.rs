//! A fake `libnvidia-ml.so.1`: an NVIDIA driver that says what a script tells it to.
//!
//! ```sh
//! tests/fake_nvml/install DIR [SCENARIO.json]    # builds it and puts it and the script into DIR
//! gpufleet-probe --once --pretty --nvml-library DIR/libnvidia-ml.so.1
//! LD_LIBRARY_PATH=DIR nvitop -1                  # other tools understand it as well
//! ```
//!
//! The script ([`scenario::Scenario`]) is the file named by `GPUFLEET_FAKE_NVML`, or `fake_nvml.json` beside the
//! library (sshd clears the environment). It is read again when it changes, so a test can change values while they are
//! watched. What a script leaves out is not supported. An old driver is made by taking names out of a copy's symbol
//! table (`tests/it/fake_driver.rs`).
#![allow(unsafe_code, non_snake_case, reason = "the C interface of nvml.h, whose callers hand over valid pointers")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "every exported function is documented in nvml.h")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::not_unsafe_ptr_arg_deref, reason = "a test's driver")]

mod buffered_samples;
mod driver;
mod events;
mod fields;
mod gpm;
mod health;
mod processes;
mod scenario;
mod system;

use driver::{
    Driver, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, device_call, gpu_and_slot, handle, monotonic,
};
use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use scenario::{Device, Quirk, Value};
use std::ffi::{CStr, c_char, c_uint, c_ulonglong, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;

/// `GPUFLEET_FAKE_NVML`, else `fake_nvml.json` beside this library.
fn script_path() -> PathBuf {
    if let Some(path) = std::env::var_os("GPUFLEET_FAKE_NVML") {
        return path.into();
    }
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address of a function of this library, and an out parameter.
    let library = unsafe {
        libc::dladdr(system::nvmlShutdown as *const c_void, info.as_mut_ptr());
        CStr::from_ptr(info.assume_init().dli_fname)
    };
    PathBuf::from(library.to_str().unwrap()).with_file_name("fake_nvml.json")
}

/// Writes an out parameter.
fn put<T>(out: *mut T, value: T) -> Result<(), nvmlReturn_t> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's out parameter, as nvml.h has it.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a structure of integers, or nothing but ones where the script wants that.
fn put_structure<T>(driver: &Driver, out: *mut T, value: T) -> Result<(), nvmlReturn_t> {
    put(out, value)?;
    if driver.has(Quirk::GarbageNumbers) {
        // SAFETY: the caller's structure, all of it.
        unsafe { out.cast::<u8>().write_bytes(0xFF, size_of::<T>()) };
    }
    Ok(())
}

/// Writes a text that ends in NUL, or fills the buffer where the script wants that.
fn put_text(driver: &Driver, out: *mut c_char, length: c_uint, text: Option<&str>) -> Result<(), nvmlReturn_t> {
    let bytes = text.ok_or(NOT_SUPPORTED)?.as_bytes();
    let length = length as usize;
    if bytes.len() + 1 > length {
        return Err(INSUFFICIENT_SIZE);
    }
    let filler = if driver.has(Quirk::UnterminatedTexts) { b'x' } else { 0 };
    for index in 0..length {
        let byte = bytes.get(index).copied().unwrap_or(filler);
        // SAFETY: `index` is below the buffer's length, which the caller gave.
        unsafe { out.add(index).write(byte as c_char) };
    }
    Ok(())
}

fn now(value: Option<Value>) -> Result<f64, nvmlReturn_t> {
    value.map(|value| value.at(monotonic())).ok_or(NOT_SUPPORTED)
}

/// Declares exported functions that write one number of a device.
macro_rules! numbers {
    ($($function:ident($($kind:ident)?) -> $type:ty = |$device:ident| $value:expr;)*) => {
        $(#[unsafe(no_mangle)]
        pub extern "C" fn $function(device: nvmlDevice_t, $($kind: c_uint,)? out: *mut $type) -> nvmlReturn_t {
            device_call(stringify!($function), device, |driver, $device: &Device| {
                let value: Result<$type, nvmlReturn_t> = $value;
                put_structure(driver, out, value?)
            })
        })*
    };
}

fn by_clock<T>(kind: c_uint, graphics: T, sm: T, memory: T) -> Result<T, nvmlReturn_t> {
    match kind {
        sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS => Ok(graphics),
        sys::nvmlClockType_enum_NVML_CLOCK_SM => Ok(sm),
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(memory),
        _ => Err(NOT_SUPPORTED),
    }
}

fn milli(value: Option<f64>) -> Result<c_uint, nvmlReturn_t> {
    value.map(|value| (value * 1000.0).round() as c_uint).ok_or(NOT_SUPPORTED)
}

numbers! {
    // In KB a second. A real one measures for 20 ms and blocks for so long; the probe never asks, nvtop does.
    nvmlDeviceGetPcieThroughput(kind) -> c_uint = |device| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let rate = match kind {
            sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_TX_BYTES => device.pcie_transmit_bytes_per_second,
            sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_RX_BYTES => device.pcie_receive_bytes_per_second,
            _ => None,
        };
        now(rate).map(|rate| (rate / 1000.0) as c_uint)
    };
    nvmlDeviceGetTemperature(_sensor) -> c_uint = |device| now(device.temperature_celsius).map(|value| value as c_uint);
    nvmlDeviceGetTemperatureThreshold(kind) -> c_uint = |device| match kind {
        sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => device.temperature_slowdown_celsius,
        sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => device.temperature_shutdown_celsius,
        sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX => device.memory_temperature_max_celsius,
        _ => None,
    }.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetPowerUsage() -> c_uint = |device| milli(now(device.power_watts).ok());
    nvmlDeviceGetEnforcedPowerLimit() -> c_uint = |device| milli(device.power_limit_watts);
    nvmlDeviceGetPowerManagementLimit() -> c_uint = |device| milli(device.power_limit_watts);
    nvmlDeviceGetClockInfo(kind) -> c_uint = |device| {
        by_clock(kind, device.clock_graphics_mhz, device.clock_sm_mhz, device.clock_memory_mhz)
            .and_then(now).map(|value| value as c_uint)
    };
    nvmlDeviceGetMaxClockInfo(kind) -> c_uint = |device| {
        by_clock(kind, device.clock_graphics_max_mhz, device.clock_sm_max_mhz, device.clock_memory_max_mhz)?
            .ok_or(NOT_SUPPORTED)
    };
    nvmlDeviceGetNumFans() -> c_uint = |device| Ok(c_uint::from(device.fan_percent.is_some()));
    nvmlDeviceGetFanSpeed() -> c_uint = |device| now(device.fan_percent).map(|value| value as c_uint);
    nvmlDeviceGetFanSpeed_v2(_fan) -> c_uint = |device| now(device.fan_percent).map(|value| value as c_uint);
    nvmlDeviceGetPerformanceState() -> c_uint = |device| device.performance_state.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetCurrentClocksEventReasons() -> c_ulonglong = |device| device.clocks_event_reasons.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetCurrentClocksThrottleReasons() -> c_ulonglong = |device| device.clocks_event_reasons.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetCurrPcieLinkGeneration() -> c_uint = |device| device.pcie_generation.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetCurrPcieLinkWidth() -> c_uint = |device| device.pcie_width.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetMaxPcieLinkGeneration() -> c_uint = |device| {
        device.pcie_generation_max.or(device.pcie_generation).ok_or(NOT_SUPPORTED)
    };
    nvmlDeviceGetMaxPcieLinkWidth() -> c_uint = |device| {
        device.pcie_width_max.or(device.pcie_width).ok_or(NOT_SUPPORTED)
    };
    nvmlDeviceGetGpuInstanceId() -> c_uint = |device| device.gpu_instance_id.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetComputeInstanceId() -> c_uint = |device| device.compute_instance_id.ok_or(NOT_SUPPORTED);
    nvmlDeviceGetMaxMigDeviceCount() -> c_uint = |device| {
        device.mig_enabled.map(|_| device.mig.len() as c_uint).ok_or(NOT_SUPPORTED)
    };
    nvmlDeviceGetDriverModel(_pending) -> c_uint = |_device| Err(NOT_SUPPORTED);
    nvmlDeviceGetDisplayActive() -> c_uint = |_device| Ok(0);
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    let index = gpu_and_slot(device).map(|(gpu, slot)| slot.unwrap_or(gpu) as c_uint);
    device_call("nvmlDeviceGetIndex", device, |_, _| put(out, index.ok_or(INVALID_ARGUMENT)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    let index = gpu_and_slot(device).map(|(gpu, _)| gpu as c_uint);
    device_call("nvmlDeviceGetMinorNumber", device, |driver, device| {
        put_structure(driver, out, device.minor_number.or(index).ok_or(INVALID_ARGUMENT)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    device_call("nvmlDeviceGetName", device, |driver, device| put_text(driver, out, length, device.name.as_deref()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    device_call("nvmlDeviceGetUUID", device, |driver, device| put_text(driver, out, length, device.uuid.as_deref()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, out: *mut sys::nvmlPciInfo_t) -> nvmlReturn_t {
    device_call("nvmlDeviceGetPciInfo_v3", device, |driver, device| {
        // SAFETY: integers and arrays of them; all zeroes is a value.
        let mut info: sys::nvmlPciInfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        let length = info.busId.len() as c_uint;
        put_text(driver, info.busId.as_mut_ptr(), length, device.pci_bus_id.as_deref())?;
        put(out, info)
    })
}

fn memory(device: &Device) -> Result<(u64, u64, u64), nvmlReturn_t> {
    let total = device.memory_total_bytes.ok_or(NOT_SUPPORTED)?;
    Ok((total, now(device.memory_used_bytes)? as u64, device.memory_reserved_bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, out: *mut sys::nvmlMemory_t) -> nvmlReturn_t {
    device_call("nvmlDeviceGetMemoryInfo", device, |driver, device| {
        // Version 1 counts the reserved part as used.
        let (total, used, reserved) = memory(device)?;
        let used = used.saturating_add(reserved);
        put_structure(driver, out, sys::nvmlMemory_t { total, free: total.saturating_sub(used), used })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, out: *mut sys::nvmlMemory_v2_t) -> nvmlReturn_t {
    device_call("nvmlDeviceGetMemoryInfo_v2", device, |driver, device| {
        const VERSION: c_uint = 0x0200_0028;
        // SAFETY: the caller's structure, whose version it has set.
        let version = unsafe { (*out).version };
        if version != VERSION {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let (total, used, reserved) = memory(device)?;
        let free = total.saturating_sub(used.saturating_add(reserved));
        put_structure(driver, out, sys::nvmlMemory_v2_t { version, total, reserved, free, used })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    out: *mut sys::nvmlUtilization_t,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetUtilizationRates", device, |driver, device| {
        let gpu = now(device.utilization_percent)? as c_uint;
        let memory = now(device.memory_utilization_percent).unwrap_or(0.0) as c_uint;
        put_structure(driver, out, sys::nvmlUtilization_t { gpu, memory })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, out: *mut c_ulonglong) -> nvmlReturn_t {
    device_call("nvmlDeviceGetTotalEnergyConsumption", device, |driver, device| {
        put_structure(driver, out, (driver.energy(device).ok_or(NOT_SUPPORTED)? * 1000.0) as c_ulonglong)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: nvmlDevice_t,
    least: *mut c_uint,
    most: *mut c_uint,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetPowerManagementLimitConstraints", device, |driver, device| {
        let limit = milli(device.power_limit_max_watts)?;
        put_structure(driver, least, limit / 4)?;
        put_structure(driver, most, limit)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEncoderUtilization(
    device: nvmlDevice_t,
    percent: *mut c_uint,
    period: *mut c_uint,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetEncoderUtilization", device, |driver, device| {
        put_structure(driver, percent, now(device.encoder_percent)? as c_uint)?;
        put(period, 167_000)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetDecoderUtilization(
    device: nvmlDevice_t,
    percent: *mut c_uint,
    period: *mut c_uint,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetDecoderUtilization", device, |driver, device| {
        put_structure(driver, percent, now(device.decoder_percent)? as c_uint)?;
        put(period, 167_000)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetMigMode", device, |_, device| {
        let mode = c_uint::from(device.mig_enabled.ok_or(NOT_SUPPORTED)?);
        put(current, mode)?;
        put(pending, mode)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    slot: c_uint,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let gpu = gpu_and_slot(device).map_or(0, |(gpu, _)| gpu);
    device_call("nvmlDeviceGetMigDeviceHandleByIndex", device, |_, device| match device.mig.get(slot as usize) {
        Some(Some(_)) => put(out, handle(gpu, Some(slot as usize))),
        Some(None) => Err(NOT_FOUND),
        None => Err(INVALID_ARGUMENT),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    let is_instance = gpu_and_slot(device).is_some_and(|(_, slot)| slot.is_some());
    device_call("nvmlDeviceIsMigDeviceHandle", device, |_, _| put(out, c_uint::from(is_instance)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    device: nvmlDevice_t,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let parent = gpu_and_slot(device).and_then(|(gpu, slot)| slot.map(|_| handle(gpu, None)));
    device_call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, |_, _| {
        put(out, parent.ok_or(INVALID_ARGUMENT)?)
    })
}
