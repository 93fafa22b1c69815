//! Xid events: a set of GPUs whose faults are waited for.

use super::{Handle, Library, ReturnCode, call};
use crate::probe::nvml::call_timer::CallTimer;
use nvml_wrapper_sys::bindings as sys;
use std::ffi::c_uint;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// nvml.h, `nvmlEventTypeXidCriticalError`.
const XID_CRITICAL_ERROR: u64 = 8;
/// Stands for "no instance".
const NO_INSTANCE: c_uint = c_uint::MAX;

/// A set of events of the library's.
pub(crate) struct EventSet {
    set: NonNull<sys::nvmlEventSet_st>,
    free: Option<unsafe extern "C" fn(sys::nvmlEventSet_t) -> sys::nvmlReturn_t>,
}

// SAFETY: a token of the library's that belongs to this value alone; NVML is thread-safe (nvml.h).
unsafe impl Send for EventSet {}

impl Drop for EventSet {
    fn drop(&mut self) {
        if let Some(free) = self.free {
            // SAFETY: it came from nvmlEventSetCreate and nobody waits on it. A refusal only leaks it.
            let _refused = unsafe { free(self.set.as_ptr()) };
        }
    }
}

/// Something that happened on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// [`Handle::number`] of the GPU.
    pub(crate) device: usize,
    /// The GPU instance that it is attributed to.
    pub(crate) gpu_instance: Option<u32>,
    /// The Xid; 999 for one that the driver does not know.
    pub(crate) xid: u64,
}

impl Library {
    /// A set without events.
    pub(crate) fn event_set(&self, timer: &CallTimer) -> Result<EventSet, ReturnCode> {
        let mut set: sys::nvmlEventSet_t = std::ptr::null_mut();
        // SAFETY: `set` is the out parameter.
        call(timer, self.table.event_set_create, |function| unsafe { function(&raw mut set) })?;
        let set = NonNull::new(set).ok_or(ReturnCode::UNKNOWN)?;
        Ok(EventSet { set, free: self.table.event_set_free })
    }

    /// From now on the set hears of this GPU's Xids.
    pub(crate) fn register_xid_events(
        &self,
        timer: &CallTimer,
        device: Handle,
        set: &EventSet,
    ) -> Result<(), ReturnCode> {
        // SAFETY: a device and a set of the library's.
        call(timer, self.table.register_events, |function| unsafe {
            function(device.0.as_ptr(), XID_CRITICAL_ERROR, set.set.as_ptr())
        })
    }

    /// Waits for the next event, so many milliseconds at most ([`ReturnCode::TIMEOUT`]).
    /// `Ok(None)` is an event that is no Xid.
    pub(crate) fn next_event(
        &self,
        timer: &CallTimer,
        set: &EventSet,
        milliseconds: u32,
    ) -> Result<Option<Event>, ReturnCode> {
        // SAFETY: a pointer and numbers; all zeroes is a value of each.
        let mut data: sys::nvmlEventData_t = unsafe { MaybeUninit::zeroed().assume_init() };
        data.gpuInstanceId = NO_INSTANCE;
        // Version 1 writes a shorter structure, whose fields are the first ones of this.
        // SAFETY: a set of the library's and an out parameter.
        call(timer, self.table.event_wait_v2.or(self.table.event_wait_v1), |function| unsafe {
            function(set.set.as_ptr(), &raw mut data, milliseconds)
        })?;
        Ok((data.eventType & XID_CRITICAL_ERROR != 0).then(|| Event {
            device: data.device.addr(),
            gpu_instance: (data.gpuInstanceId != NO_INSTANCE).then_some(data.gpuInstanceId),
            xid: data.eventData,
        }))
    }
}
