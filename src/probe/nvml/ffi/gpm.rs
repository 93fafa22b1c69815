//! GPU performance monitoring: two samples of counters, and the readings that lie between them.

use super::{Handle, Library, ReturnCode, call};
use crate::probe::nvml::call_timer::CallTimer;
use nvml_wrapper_sys::bindings as sys;
use std::ffi::c_uint;
use std::ptr::NonNull;

/// Entries that the buffer of a call has room for. nvml.h has had 98, 210 and 477 without another version number, so a
/// driver may take the structure for larger than the bindings have it.
const MAX_METRICS: usize = 512;

/// A sample of counters, in memory of the library's.
pub(crate) struct GpmSample {
    sample: NonNull<sys::nvmlGpmSample_st>,
    free: Option<unsafe extern "C" fn(sys::nvmlGpmSample_t) -> sys::nvmlReturn_t>,
}

// SAFETY: memory of the library's that belongs to this value alone; NVML is thread-safe (nvml.h).
unsafe impl Send for GpmSample {}

impl Drop for GpmSample {
    fn drop(&mut self) {
        if let Some(free) = self.free {
            // SAFETY: it came from nvmlGpmSampleAlloc and is not used again. A refusal only leaks it.
            let _refused = unsafe { free(self.sample.as_ptr()) };
        }
    }
}

impl Library {
    /// Memory for a sample.
    pub(crate) fn gpm_sample(&self, timer: &CallTimer) -> Result<GpmSample, ReturnCode> {
        let mut sample: sys::nvmlGpmSample_t = std::ptr::null_mut();
        // SAFETY: `sample` is the out parameter.
        call(timer, self.table.gpm_alloc, |function| unsafe { function(&raw mut sample) })?;
        let sample = NonNull::new(sample).ok_or(ReturnCode::NOT_SUPPORTED)?;
        Ok(GpmSample { sample, free: self.table.gpm_free })
    }

    /// Reads the counters now: of a GPU, or of an instance of it.
    pub(crate) fn gpm_read(
        &self,
        timer: &CallTimer,
        device: Handle,
        instance: Option<u32>,
        gpm_sample: &mut GpmSample,
    ) -> Result<(), ReturnCode> {
        let (device, sample) = (device.0.as_ptr(), gpm_sample.sample.as_ptr());
        match instance {
            // SAFETY: a device and a sample of the library's.
            None => call(timer, self.table.gpm_read, |function| unsafe { function(device, sample) }),
            // SAFETY: the same.
            Some(instance) => {
                call(timer, self.table.gpm_read_instance, |function| unsafe { function(device, instance, sample) })
            }
        }
    }

    /// The readings between two samples, by `nvmlGpmMetricId_t`; `None` for those the driver refuses and for what is no
    /// number. `buffer` is scratch memory.
    pub(crate) fn gpm_metrics<const N: usize>(
        &self,
        timer: &CallTimer,
        older: &GpmSample,
        newer: &GpmSample,
        ids: [c_uint; N],
        buffer: &mut Vec<u64>,
    ) -> Result<[Option<f64>; N], ReturnCode> {
        const { assert!(N <= MAX_METRICS) };
        let bytes =
            std::mem::offset_of!(sys::nvmlGpmMetricsGet_t, metrics) + MAX_METRICS * size_of::<sys::nvmlGpmMetric_t>();
        let length = bytes.max(size_of::<sys::nvmlGpmMetricsGet_t>()).div_ceil(size_of::<u64>());
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        buffer[..length].fill(0);
        let get: *mut sys::nvmlGpmMetricsGet_t = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer is zeroed, aligned to 8 bytes like the structure, and larger than it.
        let request = unsafe { &mut *get };
        request.version = sys::NVML_GPM_METRICS_GET_VERSION;
        request.numMetrics = N as c_uint;
        request.sample1 = older.sample.as_ptr();
        request.sample2 = newer.sample.as_ptr();
        for (metric, id) in request.metrics.iter_mut().zip(ids) {
            metric.metricId = id;
            metric.nvmlReturn = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
        }
        // SAFETY: the structure that nvml.h declares, with room behind it.
        call(timer, self.table.gpm_metrics, |function| unsafe { function(get) })?;
        // SAFETY: as above; what the driver wrote are numbers, and pointers that are not followed.
        let answer = unsafe { &*get };
        let mut values = [None; N];
        for (value, metric) in values.iter_mut().zip(&answer.metrics) {
            let is_number = metric.nvmlReturn == sys::nvmlReturn_enum_NVML_SUCCESS && metric.value.is_finite();
            *value = is_number.then_some(metric.value);
        }
        Ok(values)
    }
}
