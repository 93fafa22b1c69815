//! Calls that read one GPU: sensors, memory, clocks, links, health, MIG and field values.

use super::driver::{
    Driver, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, SUCCESS, device_call, gpu_and_slot, handle, monotonic, now,
    put, put_structure, put_text,
};
use super::scenario::{Device, Quirk, Value};
use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::mem::MaybeUninit;

const ALL_LINKS: c_uint = c_uint::MAX;
const NANOSECONDS: f64 = 1e9;

/// Declares exported functions that write one number of a device.
macro_rules! numbers {
    ($($function:ident($($kind:ident)?) -> $type:ty = |$device:ident| $value:expr;)*) => {
        $(#[unsafe(no_mangle)]
        pub(crate) extern "C" fn $function(device: nvmlDevice_t, $($kind: c_uint,)? out: *mut $type) -> nvmlReturn_t {
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
    // In KB per second. A real driver blocks for 20 ms to measure. The probe never makes this call, nvtop does.
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
pub(crate) extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    let index = gpu_and_slot(device).map(|(gpu, slot)| slot.unwrap_or(gpu) as c_uint);
    device_call("nvmlDeviceGetIndex", device, |_, _| put(out, index.ok_or(INVALID_ARGUMENT)?))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    let index = gpu_and_slot(device).map(|(gpu, _)| gpu as c_uint);
    device_call("nvmlDeviceGetMinorNumber", device, |driver, device| {
        put_structure(driver, out, device.minor_number.or(index).ok_or(INVALID_ARGUMENT)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    device_call("nvmlDeviceGetName", device, |driver, device| put_text(driver, out, length, device.name.as_deref()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    device_call("nvmlDeviceGetUUID", device, |driver, device| put_text(driver, out, length, device.uuid.as_deref()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, out: *mut sys::nvmlPciInfo_t) -> nvmlReturn_t {
    device_call("nvmlDeviceGetPciInfo_v3", device, |driver, device| {
        // SAFETY: the structure contains only integers and arrays of integers, for which zero is valid.
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
pub(crate) extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, out: *mut sys::nvmlMemory_t) -> nvmlReturn_t {
    device_call("nvmlDeviceGetMemoryInfo", device, |driver, device| {
        // Version 1 counts reserved memory as used.
        let (total, used, reserved) = memory(device)?;
        let used = used.saturating_add(reserved);
        put_structure(driver, out, sys::nvmlMemory_t { total, free: total.saturating_sub(used), used })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    out: *mut sys::nvmlMemory_v2_t,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetMemoryInfo_v2", device, |driver, device| {
        const VERSION: c_uint = 0x0200_0028;
        // SAFETY: the structure of the caller, which has set the version.
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
pub(crate) extern "C" fn nvmlDeviceGetUtilizationRates(
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
pub(crate) extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: nvmlDevice_t,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetTotalEnergyConsumption", device, |driver, device| {
        put_structure(driver, out, (driver.energy(device).ok_or(NOT_SUPPORTED)? * 1000.0) as c_ulonglong)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
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
pub(crate) extern "C" fn nvmlDeviceGetEncoderUtilization(
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
pub(crate) extern "C" fn nvmlDeviceGetDecoderUtilization(
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
pub(crate) extern "C" fn nvmlDeviceGetMigMode(
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
pub(crate) extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
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
pub(crate) extern "C" fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    let is_instance = gpu_and_slot(device).is_some_and(|(_, slot)| slot.is_some());
    device_call("nvmlDeviceIsMigDeviceHandle", device, |_, _| put(out, c_uint::from(is_instance)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    device: nvmlDevice_t,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let parent = gpu_and_slot(device).and_then(|(gpu, slot)| slot.map(|_| handle(gpu, None)));
    device_call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, |_, _| {
        put(out, parent.ok_or(INVALID_ARGUMENT)?)
    })
}

/// Declares exported functions that write one number of a device.
macro_rules! states {
    ($($function:ident = |$device:ident| $value:expr;)*) => {
        $(#[unsafe(no_mangle)]
        pub(crate) extern "C" fn $function(device: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
            device_call(stringify!($function), device, |driver, $device: &Device| {
                let value: Option<c_uint> = $value;
                put_structure(driver, out, value.ok_or(NOT_SUPPORTED)?)
            })
        })*
    };
}

states! {
    nvmlDeviceGetPersistenceMode = |device| device.persistence_mode.map(c_uint::from);
    nvmlDeviceGetComputeMode = |device| device.compute_mode;
    nvmlDeviceGetRetiredPagesPendingStatus = |device| device.retired_pages.map(|pages| c_uint::from(pages.pending));
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    kind: c_uint,
    period: c_uint,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetTotalEccErrors", device, |driver, device| {
        let corrected = kind == sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED;
        let count = match (corrected, period) {
            (true, sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC) => device.ecc_corrected_volatile,
            (false, sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC) => device.ecc_uncorrectable_volatile,
            (true, sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC) => device.ecc_corrected_aggregate,
            (false, sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC) => device.ecc_uncorrectable_aggregate,
            _ => return Err(INVALID_ARGUMENT),
        };
        put_structure(driver, out, count.ok_or(NOT_SUPPORTED)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetRetiredPages(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    _addresses: *mut c_ulonglong,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetRetiredPages", device, |driver, device| {
        let pages = device.retired_pages.ok_or(NOT_SUPPORTED)?;
        let single = sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS;
        let number = if cause == single { pages.single_bit } else { pages.double_bit };
        put_structure(driver, count, number)?;
        // The caller passes no buffer, so any address exceeds its size.
        if number == 0 { Ok(()) } else { Err(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE) }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corrected: *mut c_uint,
    uncorrectable: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetRemappedRows", device, |driver, device| {
        let rows = device.remapped_rows.ok_or(NOT_SUPPORTED)?;
        put_structure(driver, corrected, rows.correctable)?;
        put_structure(driver, uncorrectable, rows.uncorrectable)?;
        put_structure(driver, pending, c_uint::from(rows.pending))?;
        put_structure(driver, failed, c_uint::from(rows.failed))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetBAR1MemoryInfo(
    device: nvmlDevice_t,
    out: *mut sys::nvmlBAR1Memory_t,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetBAR1MemoryInfo", device, |driver, device| {
        let total = device.bar1_total_bytes.ok_or(NOT_SUPPORTED)?;
        let used = device.bar1_used_bytes.unwrap_or(0);
        let bar1 = sys::nvmlBAR1Memory_t { bar1Total: total, bar1Free: total.saturating_sub(used), bar1Used: used };
        put_structure(driver, out, bar1)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    link: c_uint,
    out: *mut c_uint,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetNvLinkState", device, |driver, device| {
        if device.nvlinks.is_empty() {
            return Err(NOT_SUPPORTED);
        }
        // A broken driver reports every link as active.
        let out_of_range = driver.has(Quirk::GarbageNumbers).then_some(&true);
        let is_up = device.nvlinks.get(link as usize).or(out_of_range).ok_or(INVALID_ARGUMENT)?;
        put(out, c_uint::from(*is_up))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut sys::nvmlFieldValue_t,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetFieldValues", device, |driver, device| {
        for index in 0..count as usize {
            // SAFETY: the array of the caller has `count` entries.
            let value = unsafe { &mut *values.add(index) };
            match field(driver, device, value.fieldId, value.scopeId) {
                Ok((kind, number)) => {
                    value.nvmlReturn = SUCCESS;
                    value.valueType = kind;
                    value.value.ullVal = number;
                }
                Err(code) => value.nvmlReturn = code,
            }
            if driver.has(Quirk::GarbageNumbers) {
                value.value.ullVal = u64::MAX;
            }
            if driver.has(Quirk::GarbageTypes) {
                value.nvmlReturn = SUCCESS;
                value.valueType = 77 + index as c_uint;
            }
        }
        Ok(())
    })
}

/// The type and the bits of a field.
fn field(driver: &Driver, device: &Device, id: c_uint, scope: c_uint) -> Result<(c_uint, u64), nvmlReturn_t> {
    let int = |number: Option<u64>| number.map(|number| (sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT, number));
    let long =
        |number: Option<u64>| number.map(|number| (sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, number));
    let nanoseconds = |seconds: Option<f64>| long(seconds.map(|seconds| (seconds * NANOSECONDS) as u64));
    let all_links =
        |rate: Option<Value>| long(counter_value(rate).filter(|_| scope == ALL_LINKS).map(|bytes| bytes / 1024));
    let (smoothing, brake) = field_ids(&driver.scenario().driver_version);
    match id {
        82 => int(now(device.memory_temperature_celsius).ok().map(|degrees| degrees as u64)),
        138 => all_links(device.nvlink_transmit_bytes_per_second),
        139 => all_links(device.nvlink_receive_bytes_per_second),
        197 => long(counter_value(device.pcie_transmit_bytes_per_second)),
        198 => long(counter_value(device.pcie_receive_bytes_per_second)),
        94 => int(device.pcie_replays),
        38 => long(device.nvlink_crc_errors),
        52 => long(device.nvlink_replays),
        59 => long(device.nvlink_recoveries),
        74 => nanoseconds(device.power_violation_seconds),
        75 => nanoseconds(device.thermal_violation_seconds),
        77 if brake.is_none() => nanoseconds(device.power_brake_seconds),
        230 => int(device.recovery_action.map(u64::from)),
        _ if Some(id) == brake => nanoseconds(device.power_brake_seconds),
        _ if Some(id) == smoothing => int(device.power_smoothing.map(u64::from)),
        // Other ids in the renumbered range return a value that no test can mistake for a reading.
        251..=273 => int(Some(0x00DE_FACE)),
        _ => None,
    }
    .ok_or(NOT_SUPPORTED)
}

/// Returns the field ids of power smoothing and of the power brake, which differ between driver versions.
fn field_ids(version: &str) -> (Option<c_uint>, Option<c_uint>) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    match (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) {
        (major, _) if major < 570 => (None, None),
        (570, _) => (Some(251), None),
        (575, _) => (Some(256), Some(253)),
        (580, minor) if minor < 82 => (Some(256), Some(253)),
        _ => (Some(251), Some(271)),
    }
}

/// Returns the integral of a rate since boot.
fn counter_value(rate: Option<Value>) -> Option<u64> {
    rate.map(|rate| rate.integral(monotonic()) as u64)
}
