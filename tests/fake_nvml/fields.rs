//! `nvmlDeviceGetFieldValues`, with ids numbered as the driver's version has them.

use super::driver::{Driver, NOT_SUPPORTED, SUCCESS, device_call, monotonic};
use super::now;
use crate::scenario::{Device, Quirk, Value};
use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_int, c_uint};

const ALL_LINKS: c_uint = c_uint::MAX;
const NANOSECONDS: f64 = 1e9;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut sys::nvmlFieldValue_t,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetFieldValues", device, |driver, device| {
        for index in 0..count as usize {
            // SAFETY: the caller's array has `count` entries.
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
        74 => nanoseconds(device.power_violation_seconds),
        75 => nanoseconds(device.thermal_violation_seconds),
        77 if brake.is_none() => nanoseconds(device.power_brake_seconds),
        230 => int(device.recovery_action.map(u64::from)),
        _ if Some(id) == brake => nanoseconds(device.power_brake_seconds),
        _ if Some(id) == smoothing => int(device.power_smoothing.map(u64::from)),
        // What else stands among the renumbered ones is no zero that could be taken for a reading.
        251..=273 => int(Some(0x00DE_FACE)),
        _ => None,
    }
    .ok_or(NOT_SUPPORTED)
}

/// The ids of power smoothing and of the power brake.
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

/// A counter that has followed this rate since boot.
fn counter_value(rate: Option<Value>) -> Option<u64> {
    rate.map(|rate| rate.integral(monotonic()) as u64)
}
