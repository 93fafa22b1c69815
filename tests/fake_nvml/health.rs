//! The calls that tell what rarely changes about a GPU.

use super::driver::{INVALID_ARGUMENT, NOT_SUPPORTED, device_call};
use super::{put, put_structure};
use crate::scenario::{Device, Quirk};
use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_uint, c_ulonglong};

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
        // The addresses would not fit into the room for none.
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
        // A driver gone wild has links without end.
        let out_of_range = driver.has(Quirk::GarbageNumbers).then_some(&true);
        let is_up = device.nvlinks.get(link as usize).or(out_of_range).ok_or(INVALID_ARGUMENT)?;
        put(out, c_uint::from(*is_up))
    })
}
