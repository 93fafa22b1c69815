//! Calls that initialize the driver, return its versions and find devices.

use super::driver::{INVALID_ARGUMENT, NOT_FOUND, SUCCESS, UNINITIALIZED, handle, put, put_text, system_call};
use super::scenario::{Device, Quirk};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    system_call("nvmlInit_v2", |driver| {
        driver.initialized = driver.scenario().init_error.is_none();
        driver.log("nvmlInit_v2");
        driver.scenario().init_error.unwrap_or(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit() -> nvmlReturn_t {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    system_call("nvmlShutdown", |driver| {
        driver.initialized = false;
        driver.log("nvmlShutdown");
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text = match code {
        0 => c"The operation was successful",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        12 => c"Shared Library Not Found",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    system_call("nvmlSystemGetDriverVersion", |driver| {
        let version = driver.scenario().driver_version.clone();
        put_text(driver, out, length, Some(&version)).err().unwrap_or(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    system_call("nvmlSystemGetNVMLVersion", |driver| {
        let version = format!("12.{}", driver.scenario().driver_version);
        put_text(driver, out, length, Some(&version)).err().unwrap_or(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) -> nvmlReturn_t {
    system_call("nvmlSystemGetCudaDriverVersion_v2", |driver| {
        put(out, driver.scenario().cuda_version).err().unwrap_or(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlSystemGetCudaDriverVersion(out: *mut c_int) -> nvmlReturn_t {
    nvmlSystemGetCudaDriverVersion_v2(out)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> nvmlReturn_t {
    system_call("nvmlDeviceGetCount_v2", |driver| {
        if !driver.initialized {
            return UNINITIALIZED;
        }
        let devices = driver.scenario().devices.len() as c_uint;
        let mut count = driver.scenario().device_count.unwrap_or(devices);
        if driver.has(Quirk::FlickeringCount) {
            static CALLS: AtomicU32 = AtomicU32::new(0);
            let counts = [devices, devices + 5, 1, c_uint::MAX, 0];
            count = counts[CALLS.fetch_add(1, Ordering::Relaxed) as usize % counts.len()];
        }
        put(out, count).err().unwrap_or(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetCount(out: *mut c_uint) -> nvmlReturn_t {
    nvmlDeviceGetCount_v2(out)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut nvmlDevice_t) -> nvmlReturn_t {
    system_call("nvmlDeviceGetHandleByIndex_v2", |driver| match driver.scenario().devices.get(index as usize) {
        None => INVALID_ARGUMENT,
        Some(Device { handle_error: Some(code), .. }) => *code,
        Some(_) => put(out, handle(index as usize, None)).err().unwrap_or(SUCCESS),
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, out: *mut nvmlDevice_t) -> nvmlReturn_t {
    nvmlDeviceGetHandleByIndex_v2(index, out)
}

/// Returns the handle of the GPU whose `text` equals `wanted`.
fn handle_by(
    name: &str,
    wanted: *const c_char,
    out: *mut nvmlDevice_t,
    text: impl Fn(&Device) -> Option<&String>,
) -> nvmlReturn_t {
    // SAFETY: a NUL-terminated string of the caller.
    let wanted = unsafe { CStr::from_ptr(wanted) }.to_string_lossy();
    system_call(name, |driver| {
        let found =
            driver.scenario().devices.iter().position(|device| text(device).is_some_and(|text| **text == *wanted));
        found.map_or(NOT_FOUND, |index| put(out, handle(index, None)).err().unwrap_or(SUCCESS))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut nvmlDevice_t) -> nvmlReturn_t {
    handle_by("nvmlDeviceGetHandleByUUID", uuid, out, |device| device.uuid.as_ref())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: *const c_char,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    handle_by("nvmlDeviceGetHandleByPciBusId_v2", bus_id, out, |device| device.pci_bus_id.as_ref())
}
