//! The calls that fill a list. How many entries a driver claims is believed as far as the buffer goes.

use super::{DriverAnomaly, Handle, Library, ReturnCode, call};
use crate::probe::nvml::call_timer::CallTimer;
use nvml_wrapper_sys::bindings as sys;
use std::ffi::c_uint;

/// Room for as many entries is offered first.
const INITIAL_ENTRIES: usize = 32;

/// The samples that are taken; what is beyond is left out.
const MAX_SAMPLES: usize = 4096;

/// The entries that a list may grow to: far more than are passed on, so that those left out are the ones with the least
/// memory. A driver with more than these gives none, since it fills no list in part.
const MAX_ENTRIES: usize = 65_536;

/// Which of the three lists of processes is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessList {
    Compute,
    Graphics,
    Mps,
}

/// The entries of a list as the driver wrote them, in 8-byte words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entries<'a> {
    pub(crate) buffer: &'a [u64],
    /// Words an entry. Of a process: 2 in version 1, 3 in versions 2 and 3, 4 in the version 3 of early R535.
    pub(crate) stride: usize,
}

impl<'a> Entries<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a [u64]> {
        self.buffer.chunks_exact(self.stride)
    }
}

impl Library {
    /// The samples that the driver keeps, by `nvmlSamplingType_t`, and their `nvmlValueType_t`. An entry is a time stamp
    /// (the host's wall clock, microseconds) and a value.
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
        // SAFETY: a null buffer asks for the count alone.
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
        // SAFETY: the buffer holds `count` entries of two words, aligned as they ask for.
        call(timer, self.table.samples, |function| unsafe {
            let buffer = buffer.as_mut_ptr().cast();
            function(device.0.as_ptr(), kind, 0, &raw mut value_type, &raw mut count, buffer)
        })?;
        let count = self.clamp_count(count as usize, entries);
        Ok((Entries { buffer: &buffer[..count * ENTRY_WORDS], stride: ENTRY_WORDS }, value_type))
    }

    /// One list of processes. The newest version that the library has is asked; it alone decides, since older ones
    /// answer with less.
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
            // SAFETY: the buffer holds `count` entries of the layout that this version writes.
            call(timer, function, |function| unsafe { function(device.0.as_ptr(), count, buffer.as_mut_ptr().cast()) })
        })?;
        Ok(Entries { buffer: &buffer[..count * stride], stride })
    }

    /// Samples of the processes' shares newer than `last_seen` (the driver's clock, microseconds).
    pub(crate) fn process_utilization<'a>(
        &self,
        timer: &CallTimer,
        device: Handle,
        last_seen: u64,
        buffer: &'a mut Vec<u64>,
    ) -> Result<Entries<'a>, ReturnCode> {
        const ENTRY_WORDS: usize = size_of::<sys::nvmlProcessUtilizationSample_t>() / size_of::<u64>();
        let count = self.read_list(buffer, ENTRY_WORDS, |buffer, count| {
            // SAFETY: the buffer holds `count` entries of 32 bytes, aligned as they ask for.
            call(timer, self.table.process_utilization, |function| unsafe {
                function(device.0.as_ptr(), buffer.as_mut_ptr().cast(), count, last_seen)
            })
        })?;
        Ok(Entries { buffer: &buffer[..count * ENTRY_WORDS], stride: ENTRY_WORDS })
    }

    /// Calls a function that fills a list, with room for more as long as it says that there is too little. Returns how
    /// many entries it wrote, as far as it can be believed: what it did not write is zero, and no leftover of another
    /// list.
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
                    entries = more_room(entries, count as usize);
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

    /// The entries that a driver can have written where there was room for so many.
    fn clamp_count(&self, count: usize, capacity: usize) -> usize {
        if count > capacity {
            self.anomalies.add(DriverAnomaly::CountTooLarge);
        }
        count.min(capacity)
    }
}

/// The room for the next try, where `capacity` was too little and the driver says that it needs `wanted`. Processes may start
/// between two calls, so there is room for some more than that.
fn more_room(capacity: usize, wanted: usize) -> usize {
    wanted.saturating_add(16).max(capacity * 2).min(MAX_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_until_there_is_no_more() {
        assert_eq!((more_room(32, 0), more_room(32, 40), more_room(32, 100)), (64, 64, 116));
        // A driver that asks for more than half of all room, and then again.
        let first = more_room(32, 40_000);
        assert_eq!((first, more_room(first, 40_100)), (40_016, MAX_ENTRIES));
        assert_eq!(more_room(32, usize::MAX), MAX_ENTRIES);
    }
}
