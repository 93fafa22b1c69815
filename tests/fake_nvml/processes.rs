//! Calls that list processes, in every layout that drivers have used.

use super::driver::{
    Driver, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, device_call, gpu_and_slot, now, put,
};
use super::scenario::{Device, Process, Quirk};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessUtilizationSample_t, nvmlReturn_t};
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

/// A driver samples process utilization about six times per second.
const SAMPLE_MICROS: u64 = 166_667;
/// The id of "no MIG instance".
const NO_INSTANCE: u64 = 0xFFFF_FFFF;

/// The process kinds of each list.
const COMPUTE: &[&str] = &["C", "C+G"];
const GRAPHICS: &[&str] = &["G", "C+G"];
const MPS: &[&str] = &["M"];

/// Writes a process list whose entries have `entry_words` 8-byte words.
fn list(
    name: &str,
    handle: nvmlDevice_t,
    kinds: &[&str],
    entry_words: usize,
    count: *mut c_uint,
    out: *mut c_void,
) -> nvmlReturn_t {
    let slot = gpu_and_slot(handle).and_then(|(_, slot)| slot).map_or(NO_INSTANCE, |slot| slot as u64);
    device_call(name, handle, |driver, device| {
        let entry_words = if entry_words == 4 && !driver.has(Quirk::EarlyR535) { 3 } else { entry_words };
        // A GPU in MIG mode lists the processes of all its instances.
        let instances = device.mig.iter().flatten().flat_map(|instance| &instance.processes);
        let processes: Vec<&Process> =
            device.processes.iter().chain(instances).filter(|process| kinds.contains(&process.kind.as_str())).collect();
        let capacity = capacity(count)?;
        put(count, processes.len() as c_uint)?;
        if processes.len() > capacity {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, process) in processes.iter().enumerate() {
            let entry = [u64::from(process.pid), process.memory_bytes.unwrap_or(u64::MAX), slot | slot << 32, 0];
            for (word, &value) in entry.iter().take(entry_words).enumerate() {
                // SAFETY: the buffer of the caller has room for `capacity` entries of this layout.
                unsafe { out.cast::<u64>().add(index * entry_words + word).write(value) };
            }
        }
        if driver.has(Quirk::OverstatedCounts) {
            put(count, u32::MAX)?;
        }
        Ok(())
    })
}

fn capacity(count: *mut c_uint) -> Result<usize, nvmlReturn_t> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the count of the caller.
    Ok(unsafe { *count } as usize)
}

/// Declares the exported list functions.
macro_rules! lists {
    ($($function:ident = $kinds:ident, $entry_words:literal;)*) => {
        $(#[unsafe(no_mangle)]
        pub(crate) extern "C" fn $function(device: nvmlDevice_t, count: *mut c_uint, out: *mut c_void) -> nvmlReturn_t {
            list(stringify!($function), device, $kinds, $entry_words, count, out)
        })*
    };
}

lists! {
    nvmlDeviceGetComputeRunningProcesses = COMPUTE, 2;
    nvmlDeviceGetComputeRunningProcesses_v2 = COMPUTE, 3;
    nvmlDeviceGetComputeRunningProcesses_v3 = COMPUTE, 4;
    nvmlDeviceGetGraphicsRunningProcesses = GRAPHICS, 2;
    nvmlDeviceGetGraphicsRunningProcesses_v2 = GRAPHICS, 3;
    nvmlDeviceGetGraphicsRunningProcesses_v3 = GRAPHICS, 4;
    nvmlDeviceGetMPSComputeRunningProcesses = MPS, 2;
    nvmlDeviceGetMPSComputeRunningProcesses_v2 = MPS, 3;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = MPS, 4;
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetProcessUtilization(
    handle: nvmlDevice_t,
    out: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen: c_ulonglong,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetProcessUtilization", handle, |driver, device| {
        if device.mig_enabled == Some(true) {
            return Err(NOT_SUPPORTED);
        }
        let samples = samples(driver, device, last_seen)?;
        let capacity = capacity(count)?;
        put(count, samples.len() as c_uint)?;
        if samples.len() > capacity || out.is_null() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, &sample) in samples.iter().enumerate() {
            // SAFETY: the buffer of the caller has room for `capacity` samples.
            unsafe { out.add(index).write(sample) };
        }
        Ok(())
    })
}

fn samples(
    driver: &Driver,
    device: &Device,
    last_seen: u64,
) -> Result<Vec<nvmlProcessUtilizationSample_t>, nvmlReturn_t> {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    let stamp = micros / SAMPLE_MICROS * SAMPLE_MICROS;
    let sample = |pid, sm, memory| nvmlProcessUtilizationSample_t {
        pid,
        timeStamp: stamp,
        smUtil: sm,
        memUtil: memory,
        encUtil: 0,
        decUtil: 0,
    };
    let shares = device.processes.iter().filter_map(|process| {
        let memory = now(process.memory_percent).unwrap_or(0.0) as c_uint;
        Some(sample(process.pid, now(process.sm_percent).ok()? as c_uint, memory))
    });
    let mut samples: Vec<_> = shares.collect();
    if driver.has(Quirk::JunkSamples) {
        samples.push(sample(4_000_000_000, 50, 50));
        samples.extend(device.processes.first().map(|process| sample(process.pid, 1_000_000, 7)));
    }
    if samples.is_empty() || stamp <= last_seen {
        return Err(NOT_FOUND);
    }
    Ok(samples)
}

/// The probe only checks whether the library exports this function and the next one: together they identify early R535
/// drivers.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetConfComputeMemSizeInfo(_device: nvmlDevice_t, _out: *mut c_void) -> nvmlReturn_t {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetRunningProcessDetailList(
    _device: nvmlDevice_t,
    _out: *mut c_void,
) -> nvmlReturn_t {
    NOT_SUPPORTED
}
