//! `nvmlDeviceGetSamples`: what the driver remembers of power and utilisation.

use super::driver::{INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, device_call, monotonic};
use super::put;
use crate::scenario::Quirk;
use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

const POWER_PERIOD: f64 = 0.1;
const UTILIZATION_PERIOD: f64 = 1.0 / 6.0;

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
        // SAFETY: the caller's count, and room for so many.
        let capacity = unsafe { *count } as usize;
        let written = samples.len().min(capacity);
        for (index, &sample) in samples.iter().take(written).enumerate() {
            // SAFETY: below the room that the caller has.
            unsafe { out.add(index).write(sample) };
        }
        put(count, if driver.has(Quirk::OverstatedCounts) { c_uint::MAX } else { written as c_uint })
    })
}
