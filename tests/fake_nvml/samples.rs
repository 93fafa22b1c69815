//! GPM samples, which the caller owns, and `nvmlDeviceGetSamples`, the power and utilization samples that the driver
//! buffers.

use super::driver::{
    Driver, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, SUCCESS, UNKNOWN, device_call, driver, find, gpu_and_slot,
    handle, monotonic, put, system_call,
};
use super::scenario::{Device, Gpm, Quirk};
use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

const POWER_PERIOD: f64 = 0.1;
const UTILIZATION_PERIOD: f64 = 1.0 / 6.0;
/// Minimum time between two samples: the driver refreshes the counters ten times per second (nvml.h).
const SHORTEST_SECONDS: f64 = 0.1;
const MIB: f64 = 1_048_576.0;

/// The target of an `nvmlGpmSample_t`.
#[derive(Default)]
struct Sample {
    time: f64,
    device: usize,
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleAlloc(out: *mut sys::nvmlGpmSample_t) -> nvmlReturn_t {
    system_call("nvmlGpmSampleAlloc", |_| {
        put(out, Box::into_raw(Box::<Sample>::default()).cast()).err().unwrap_or(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleFree(sample: sys::nvmlGpmSample_t) -> nvmlReturn_t {
    if sample.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the sample comes from `nvmlGpmSampleAlloc` and is freed once.
    drop(unsafe { Box::from_raw(sample.cast::<Sample>()) });
    SUCCESS
}

fn write_sample(device: nvmlDevice_t, into: sys::nvmlGpmSample_t) -> Result<(), nvmlReturn_t> {
    if into.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the sample comes from `nvmlGpmSampleAlloc`, and only the caller uses it.
    unsafe { *into.cast::<Sample>() = Sample { time: monotonic(), device: device.addr() } };
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmSampleGet(device: nvmlDevice_t, into: sys::nvmlGpmSample_t) -> nvmlReturn_t {
    device_call("nvmlGpmSampleGet", device, |_, gpu| {
        gpu.gpm.ok_or(NOT_SUPPORTED)?;
        write_sample(device, into)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmMigSampleGet(
    device: nvmlDevice_t,
    instance: c_uint,
    into: sys::nvmlGpmSample_t,
) -> nvmlReturn_t {
    let gpu = gpu_and_slot(device).map_or(0, |(gpu, _)| gpu);
    device_call("nvmlGpmMigSampleGet", device, |_, device| {
        let has_id = |slot: &Option<Device>| slot.as_ref().is_some_and(|slot| slot.gpu_instance_id == Some(instance));
        let slot = device.mig.iter().position(has_id).ok_or(INVALID_ARGUMENT)?;
        device.mig[slot].as_ref().and_then(|slot| slot.gpm).ok_or(NOT_SUPPORTED)?;
        write_sample(handle(gpu, Some(slot)), into)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmMetricsGet(get: *mut sys::nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    if get.is_null() {
        return INVALID_ARGUMENT;
    }
    system_call("nvmlGpmMetricsGet", |driver| {
        // SAFETY: the structure of the caller; its samples come from `nvmlGpmSampleAlloc`.
        let (get, older, newer) = unsafe {
            let get = &mut *get;
            if get.sample1.is_null() || get.sample2.is_null() {
                return INVALID_ARGUMENT;
            }
            let (older, newer) = (&*get.sample1.cast::<Sample>(), &*get.sample2.cast::<Sample>());
            (get, older, newer)
        };
        if get.version != sys::NVML_GPM_METRICS_GET_VERSION || older.device != newer.device {
            return INVALID_ARGUMENT;
        }
        let gpm = find(driver, std::ptr::without_provenance_mut(newer.device)).and_then(|device| device.gpm);
        let too_soon = newer.time - older.time < SHORTEST_SECONDS;
        let count = get.numMetrics as usize;
        for metric in get.metrics.iter_mut().take(count) {
            match gpm.and_then(|gpm| value(driver, gpm, metric.metricId, newer.time)) {
                Some(_) if too_soon => metric.nvmlReturn = UNKNOWN,
                Some(value) => {
                    metric.nvmlReturn = SUCCESS;
                    metric.value = value;
                }
                None => metric.nvmlReturn = NOT_SUPPORTED,
            }
        }
        SUCCESS
    })
}

fn value(driver: &Driver, gpm: Gpm, id: c_uint, time: f64) -> Option<f64> {
    let (value, unit) = match id {
        2 => (gpm.sm_activity_percent, 1.0),
        3 => (gpm.sm_occupancy_percent, 1.0),
        5 => (gpm.tensor_activity_percent, 1.0),
        10 => (gpm.dram_bandwidth_percent, 1.0),
        20 => (gpm.pcie_transmit_bytes_per_second, MIB),
        21 => (gpm.pcie_receive_bytes_per_second, MIB),
        60 => (gpm.nvlink_receive_bytes_per_second, MIB),
        61 => (gpm.nvlink_transmit_bytes_per_second, MIB),
        _ => return None,
    };
    let value = value?.at(time) / unit;
    let garbage = [f64::NAN, f64::INFINITY, -1e300, 1e300][id as usize % 4];
    Some(if driver.has(Quirk::GarbageNumbers) { garbage } else { value })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    out: *mut sys::nvmlGpmSupport_t,
) -> nvmlReturn_t {
    let supported = driver(|driver| find(driver, device).is_some_and(|device| device.gpm.is_some()));
    device_call("nvmlGpmQueryDeviceSupport", device, |_, _| {
        let version = sys::NVML_GPM_SUPPORT_VERSION;
        put(out, sys::nvmlGpmSupport_t { version, isSupportedDevice: c_uint::from(supported) })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    kind: c_uint,
    last_seen: c_ulonglong,
    value_type: *mut c_uint,
    count: *mut c_uint,
    out: *mut sys::nvmlSample_t,
) -> nvmlReturn_t {
    device_call("nvmlDeviceGetSamples", device, |driver, device| {
        let (value, unit, period) = match kind {
            sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES => (device.power_watts, 1000.0, POWER_PERIOD),
            _ if device.mig_enabled == Some(true) => return Err(NOT_SUPPORTED),
            sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES => {
                (device.utilization_percent, 1.0, UTILIZATION_PERIOD)
            }
            sys::nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES => {
                (device.memory_utilization_percent, 1.0, UTILIZATION_PERIOD)
            }
            _ => return Err(NOT_SUPPORTED),
        };
        let (value, seconds) = value.zip(device.past_seconds).ok_or(NOT_SUPPORTED)?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let stamps = (0..(seconds / period) as u32).map(|number| f64::from(number) * period).rev();
        let mut samples: Vec<sys::nvmlSample_t> = stamps
            .map(|age| sys::nvmlSample_t {
                timeStamp: ((wall - age) * 1e6) as u64,
                sampleValue: sys::nvmlValue_t { ullVal: (value.at(monotonic() - age) * unit) as u64 },
            })
            .filter(|sample| sample.timeStamp > last_seen)
            .collect();
        if driver.has(Quirk::JunkPast) {
            let garbage = [0, 1, u64::MAX, u64::MAX / 2];
            for (sample, stamp) in samples.iter_mut().zip(garbage.into_iter().cycle()) {
                (sample.timeStamp, sample.sampleValue.ullVal) = (stamp, u64::MAX);
            }
        }
        if samples.is_empty() {
            return Err(NOT_FOUND);
        }
        put(value_type, sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
        if count.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        if out.is_null() {
            return put(count, samples.len() as c_uint);
        }
        // SAFETY: the count of the caller, which is the capacity of its buffer.
        let capacity = unsafe { *count } as usize;
        let written = samples.len().min(capacity);
        for (index, &sample) in samples.iter().take(written).enumerate() {
            // SAFETY: `index` is below the capacity of the buffer.
            unsafe { out.add(index).write(sample) };
        }
        put(count, if driver.has(Quirk::OverstatedCounts) { c_uint::MAX } else { written as c_uint })
    })
}
