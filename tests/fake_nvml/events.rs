//! Xid events. An event set receives the events that the scenario adds after its creation.

use super::driver::{
    INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, TIMEOUT, UNINITIALIZED, device_call, gpu_and_slot, handle, put,
    system_call, wait_for_change,
};
use super::scenario::Quirk;
use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

const XID_CRITICAL_ERROR: c_ulonglong = 8;

/// The target of an `nvmlEventSet_t`.
struct EventSet {
    gpus: Vec<usize>,
    /// Index of the next event in `xids` of the scenario.
    next_xid: usize,
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetCreate(out: *mut sys::nvmlEventSet_t) -> nvmlReturn_t {
    system_call("nvmlEventSetCreate", |driver| {
        let set = EventSet { gpus: Vec::new(), next_xid: driver.scenario().xids.len() };
        put(out, Box::into_raw(Box::new(set)).cast()).err().unwrap_or(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetFree(set: sys::nvmlEventSet_t) -> nvmlReturn_t {
    if set.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the set comes from `nvmlEventSetCreate` and is freed once.
    drop(unsafe { Box::from_raw(set.cast::<EventSet>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, out: *mut c_ulonglong) -> nvmlReturn_t {
    device_call("nvmlDeviceGetSupportedEventTypes", device, |_, device| {
        put(out, if device.xid_events { XID_CRITICAL_ERROR } else { 0 })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: c_ulonglong,
    set: sys::nvmlEventSet_t,
) -> nvmlReturn_t {
    let gpu = gpu_and_slot(device).map_or(0, |(gpu, _)| gpu);
    device_call("nvmlDeviceRegisterEvents", device, |_, device| {
        if set.is_null() || types == 0 {
            return Err(INVALID_ARGUMENT);
        }
        if !device.xid_events || types & XID_CRITICAL_ERROR == 0 {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: the set comes from `nvmlEventSetCreate`, and no thread waits on it yet.
        unsafe { (*set.cast::<EventSet>()).gpus.push(gpu) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait_v2(
    set: sys::nvmlEventSet_t,
    out: *mut sys::nvmlEventData_t,
    milliseconds: c_uint,
) -> nvmlReturn_t {
    wait(set, out, milliseconds)
}

/// Shared by both versions of the call: a test may remove either name from the symbol table.
fn wait(set: sys::nvmlEventSet_t, out: *mut sys::nvmlEventData_t, milliseconds: c_uint) -> nvmlReturn_t {
    if set.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the set comes from `nvmlEventSetCreate`, and only one thread waits on it.
    let set = unsafe { &mut *set.cast::<EventSet>() };
    let deadline = Instant::now() + Duration::from_millis(u64::from(milliseconds));
    loop {
        let (mut found, mut version) = (None, None);
        let code = system_call("nvmlEventSetWait_v2", |driver| {
            if !driver.initialized {
                return UNINITIALIZED;
            }
            version = driver.scenario_version();
            while let Some(xid) = driver.scenario().xids.get(set.next_xid) {
                set.next_xid += 1;
                if set.gpus.contains(&xid.gpu) {
                    let stray_device =
                        driver.has(Quirk::StrayEvents).then(|| std::ptr::without_provenance_mut(usize::MAX));
                    found = Some(sys::nvmlEventData_t {
                        device: stray_device.unwrap_or(handle(xid.gpu, None)),
                        eventType: XID_CRITICAL_ERROR,
                        eventData: xid.xid,
                        gpuInstanceId: xid.gpu_instance_id.unwrap_or(c_uint::MAX),
                        computeInstanceId: c_uint::MAX,
                    });
                    break;
                }
            }
            SUCCESS
        });
        match found {
            _ if code != SUCCESS => return code,
            Some(event) => return put(out, event).err().unwrap_or(SUCCESS),
            None if Instant::now() >= deadline => return TIMEOUT,
            None => wait_for_change(version, deadline.saturating_duration_since(Instant::now())),
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlEventSetWait(
    set: sys::nvmlEventSet_t,
    out: *mut sys::nvmlEventData_t,
    milliseconds: c_uint,
) -> nvmlReturn_t {
    wait(set, out, milliseconds)
}
