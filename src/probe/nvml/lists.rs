//! NVML calls that fill a buffer: process lists, buffered samples, field values and GPM metrics. Counts that a driver
//! returns are clamped to the size of the buffer.
#![allow(unsafe_code, reason = "foreign functions; every buffer outlives its call and is passed with its true size")]

use super::call_monitor::{CallTimer, DriverAnomaly};
use super::ffi::{Handle, Library, ReturnCode, call};
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The size of the first buffer, in entries.
const INITIAL_ENTRIES: usize = 32;

/// The maximum number of samples that are read.
const MAX_SAMPLES: usize = 4096;

/// The maximum size of a list, in entries. It far exceeds the number of processes in a snapshot, so that the processes
/// left out are those with the least memory. A driver with more entries returns none, since it does not fill a list in
/// part.
const MAX_ENTRIES: usize = 65_536;

/// The three process lists of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessList {
    Compute,
    Graphics,
    Mps,
}

/// The entries of a list in 8-byte words, as the driver wrote them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entries<'a> {
    pub(crate) buffer: &'a [u64],
    /// Words per entry. For a process: 2 in version 1, 3 in versions 2 and 3, 4 in the version 3 of early R535.
    pub(crate) stride: usize,
}

impl<'a> Entries<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a [u64]> {
        self.buffer.chunks_exact(self.stride)
    }
}

impl Library {
    /// Returns the samples that the driver buffered, and their `nvmlValueType_t`. `kind` is an `nvmlSamplingType_t`. An
    /// entry is a timestamp (wall clock of the host, in microseconds) and a value.
    pub(crate) fn samples<'a>(
        &self,
        timer: &CallTimer,
        device: Handle,
        kind: u32,
        buffer: &'a mut Vec<u64>,
    ) -> Result<(Entries<'a>, u32), ReturnCode> {
        const ENTRY_WORDS: usize = size_of::<sys::nvmlSample_t>() / size_of::<u64>();
        let (mut value_type, mut count): (c_uint, c_uint) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: a null buffer requests only the count.
        let counted = call(timer, self.table.samples, |function| unsafe {
            function(device.0.as_ptr(), kind, 0, &raw mut value_type, &raw mut count, none)
        });
        counted.or_else(|code| if code == ReturnCode::INSUFFICIENT_SIZE { Ok(()) } else { Err(code) })?;
        let entries = (count as usize).min(MAX_SAMPLES);
        if entries == 0 {
            return Err(ReturnCode::NOT_FOUND);
        }
        buffer.clear();
        buffer.resize(entries * ENTRY_WORDS, 0);
        let mut count = entries as c_uint;
        // SAFETY: the buffer holds `count` aligned entries of two words.
        call(timer, self.table.samples, |function| unsafe {
            let buffer = buffer.as_mut_ptr().cast();
            function(device.0.as_ptr(), kind, 0, &raw mut value_type, &raw mut count, buffer)
        })?;
        let count = self.clamp_count(count as usize, entries);
        Ok((Entries { buffer: &buffer[..count * ENTRY_WORDS], stride: ENTRY_WORDS }, value_type))
    }

    /// Returns a process list. Only the newest version of the call that the library has is used, since older versions
    /// return less.
    pub(crate) fn processes<'a>(
        &self,
        timer: &CallTimer,
        device: Handle,
        list: ProcessList,
        buffer: &'a mut Vec<u64>,
    ) -> Result<Entries<'a>, ReturnCode> {
        let table = &self.table;
        let (v3, v2, v1) = match list {
            ProcessList::Compute => (table.compute_v3, table.compute_v2, table.compute_v1),
            ProcessList::Graphics => (table.graphics_v3, table.graphics_v2, table.graphics_v1),
            ProcessList::Mps => (table.mps_v3, table.mps_v2, table.mps_v1),
        };
        let (function, stride) = match (v3, v2, v1) {
            (Some(_), _, _) => (v3, if self.early_r535 { 4 } else { 3 }),
            (None, Some(_), _) => (v2, 3),
            _ => (v1, 2),
        };
        let count = self.read_list(buffer, stride, |buffer, count| {
            // SAFETY: the buffer holds `count` entries in the layout that this version writes.
            call(timer, function, |function| unsafe { function(device.0.as_ptr(), count, buffer.as_mut_ptr().cast()) })
        })?;
        Ok(Entries { buffer: &buffer[..count * stride], stride })
    }

    /// Returns the process utilization samples that are newer than `last_seen` (clock of the driver, in microseconds).
    pub(crate) fn process_utilization<'a>(
        &self,
        timer: &CallTimer,
        device: Handle,
        last_seen: u64,
        buffer: &'a mut Vec<u64>,
    ) -> Result<Entries<'a>, ReturnCode> {
        const ENTRY_WORDS: usize = size_of::<sys::nvmlProcessUtilizationSample_t>() / size_of::<u64>();
        let count = self.read_list(buffer, ENTRY_WORDS, |buffer, count| {
            // SAFETY: the buffer holds `count` aligned entries of 32 bytes.
            call(timer, self.table.process_utilization, |function| unsafe {
                function(device.0.as_ptr(), buffer.as_mut_ptr().cast(), count, last_seen)
            })
        })?;
        Ok(Entries { buffer: &buffer[..count * ENTRY_WORDS], stride: ENTRY_WORDS })
    }

    /// Calls a function that fills a list, and grows the buffer while it is too small. Returns the number of entries,
    /// clamped to the buffer. The buffer is zeroed first, so that entries the driver skipped are not left over from
    /// another list.
    fn read_list(
        &self,
        buffer: &mut Vec<u64>,
        stride: usize,
        mut list: impl FnMut(&mut [u64], &mut c_uint) -> Result<(), ReturnCode>,
    ) -> Result<usize, ReturnCode> {
        let mut entries = INITIAL_ENTRIES;
        loop {
            let length = entries * stride;
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            buffer[..length].fill(0);
            let mut count = entries as c_uint;
            match list(&mut buffer[..length], &mut count) {
                Ok(()) => return Ok(self.clamp_count(count as usize, entries)),
                Err(ReturnCode::INSUFFICIENT_SIZE) if entries < MAX_ENTRIES => {
                    entries = next_capacity(entries, count as usize);
                }
                Err(code) => {
                    if code == ReturnCode::INSUFFICIENT_SIZE {
                        self.anomalies.add(DriverAnomaly::ListTooLong);
                    }
                    return Err(code);
                }
            }
        }
    }

    /// Clamps the count that a driver returned to the capacity of the buffer.
    fn clamp_count(&self, count: usize, capacity: usize) -> usize {
        if count > capacity {
            self.anomalies.add(DriverAnomaly::CountTooLarge);
        }
        count.min(capacity)
    }
}

/// The capacity of the next attempt, where `capacity` was too small and the driver needs `wanted`. It has room for
/// processes that start between the two calls.
fn next_capacity(capacity: usize, wanted: usize) -> usize {
    wanted.saturating_add(16).max(capacity * 2).min(MAX_ENTRIES)
}

/// The maximum number of fields in one call.
pub(crate) const MAX_FIELDS: usize = 16;

impl Library {
    /// Reads up to [`MAX_FIELDS`] fields, each given by its id and scope. A field is `None` if the driver refuses it or
    /// returns a negative value: all fields that are read are counters or amounts.
    pub(crate) fn fields(
        &self,
        timer: &CallTimer,
        device: Handle,
        requested: impl IntoIterator<Item = (u32, u32)>,
    ) -> Result<[Option<u64>; MAX_FIELDS], ReturnCode> {
        // One more than requested: some drivers write past the given count.
        // SAFETY: numbers and a union of numbers, for which all zeroes is a valid value.
        let mut values: [sys::nvmlFieldValue_t; MAX_FIELDS + 1] = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut count = 0;
        for (value, (id, scope)) in values[..MAX_FIELDS].iter_mut().zip(requested) {
            (value.fieldId, value.scopeId) = (id, scope);
            // A driver that does not touch a field has not answered it.
            value.nvmlReturn = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
            count += 1;
        }
        // SAFETY: the count does not exceed the length of the buffer.
        call(timer, self.table.field_values, |function| unsafe {
            function(device.0.as_ptr(), count as c_int, values.as_mut_ptr())
        })?;
        let mut numbers = [None; MAX_FIELDS];
        for (number, value) in numbers.iter_mut().zip(&values[..count]) {
            match ReturnCode(value.nvmlReturn) {
                ReturnCode(sys::nvmlReturn_enum_NVML_SUCCESS) => *number = union_value(value.valueType, value.value),
                lost @ (ReturnCode::GPU_IS_LOST | ReturnCode::RESET_REQUIRED) => return Err(lost),
                _ => {}
            }
        }
        Ok(numbers)
    }
}

/// Returns the number in a union of numbers by its `nvmlValueType_t`.
fn union_value(kind: sys::nvmlValueType_t, value: sys::nvmlValue_t) -> Option<u64> {
    // SAFETY: the driver names the member that it wrote, and every bit pattern is a valid value of each member.
    unsafe {
        match kind {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Some(u64::from(value.uiVal)),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG
            | sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => Some(value.ullVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Some(u64::from(value.usVal)),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => u64::try_from(value.siVal).ok(),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => u64::try_from(value.sllVal).ok(),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => {
                (value.dVal.is_finite() && value.dVal >= 0.0).then_some(value.dVal as u64)
            }
            _ => None,
        }
    }
}

/// Returns the value of an entry of `nvmlDeviceGetSamples`.
pub(crate) fn sample_value(kind: u32, word: u64) -> Option<u64> {
    union_value(kind, sys::nvmlValue_t { ullVal: word })
}

/// The capacity of the metrics buffer. nvml.h had 98, 210 and 477 entries under one version number, so a driver may
/// write a larger structure than the bindings declare.
const MAX_METRICS: usize = 512;

/// An `nvmlGpmSample_t`, in memory of the library.
pub(crate) struct GpmSample {
    sample: NonNull<sys::nvmlGpmSample_st>,
    free: Option<unsafe extern "C" fn(sys::nvmlGpmSample_t) -> sys::nvmlReturn_t>,
}

// SAFETY: memory of the library that this value alone owns; NVML is thread-safe (nvml.h).
unsafe impl Send for GpmSample {}

impl Drop for GpmSample {
    fn drop(&mut self) {
        if let Some(free) = self.free {
            // SAFETY: the sample came from nvmlGpmSampleAlloc and is not used again. A failure only leaks it.
            let _refused = unsafe { free(self.sample.as_ptr()) };
        }
    }
}

impl Library {
    /// Allocates a sample.
    pub(crate) fn gpm_sample(&self, timer: &CallTimer) -> Result<GpmSample, ReturnCode> {
        let mut sample: sys::nvmlGpmSample_t = std::ptr::null_mut();
        // SAFETY: `sample` is the out parameter.
        call(timer, self.table.gpm_alloc, |function| unsafe { function(&raw mut sample) })?;
        let sample = NonNull::new(sample).ok_or(ReturnCode::NOT_SUPPORTED)?;
        Ok(GpmSample { sample, free: self.table.gpm_free })
    }

    /// Takes a sample of a GPU, or of a GPU instance of `device`.
    pub(crate) fn gpm_read(
        &self,
        timer: &CallTimer,
        device: Handle,
        instance: Option<u32>,
        gpm_sample: &mut GpmSample,
    ) -> Result<(), ReturnCode> {
        let (device, sample) = (device.0.as_ptr(), gpm_sample.sample.as_ptr());
        match instance {
            // SAFETY: a device and a sample of the library.
            None => call(timer, self.table.gpm_read, |function| unsafe { function(device, sample) }),
            // SAFETY: as above.
            Some(instance) => {
                call(timer, self.table.gpm_read_instance, |function| unsafe { function(device, instance, sample) })
            }
        }
    }

    /// Computes metrics between two samples. `ids` are `nvmlGpmMetricId_t`s. A metric is `None` if the driver refuses
    /// it or if it is not finite. `buffer` is scratch memory.
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
        // SAFETY: the buffer is zeroed, aligned to 8 bytes like the structure, and at least as large.
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
        // SAFETY: as above. The driver wrote numbers, and pointers that are not followed.
        let answer = unsafe { &*get };
        let mut values = [None; N];
        for (value, metric) in values.iter_mut().zip(&answer.metrics) {
            let is_number = metric.nvmlReturn == sys::nvmlReturn_enum_NVML_SUCCESS && metric.value.is_finite();
            *value = is_number.then_some(metric.value);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_grows_up_to_the_maximum() {
        assert_eq!((next_capacity(32, 0), next_capacity(32, 40), next_capacity(32, 100)), (64, 64, 116));
        // A driver that twice needs more than half of the maximum.
        let first = next_capacity(32, 40_000);
        assert_eq!((first, next_capacity(first, 40_100)), (40_016, MAX_ENTRIES));
        assert_eq!(next_capacity(32, usize::MAX), MAX_ENTRIES);
    }

    #[test]
    fn every_value_type_is_converted() {
        let negative = u64::from((-5_i32) as u32);
        for (kind, word, expected) in [
            (0, 71.5_f64.to_bits(), Some(71)),
            (0, f64::NAN.to_bits(), None),
            (0, (-1.0_f64).to_bits(), None),
            (1, 0xFFFF_FFFF_0000_0047, Some(71)),
            (2, 71, Some(71)),
            (3, u64::MAX, Some(u64::MAX)),
            (4, u64::MAX, None),
            (5, negative, None),
            (6, 0xABCD_0047, Some(71)),
            (7, 71, None),
            (u32::MAX, 71, None),
        ] {
            assert_eq!(sample_value(kind, word), expected, "type {kind}, {word:#x}");
        }
    }
}
