//! Asks one device, and keeps apart what a refusal means for one reading and for the device.

use crate::probe::nvml::call_timer::CallTimer;
use crate::probe::nvml::ffi::{DriverAnomaly, Handle, Library, ReturnCode};

/// Asks one device and remembers what its refusals mean for it as a whole.
pub(super) struct DeviceQuery<'a> {
    library: &'a Library,
    timer: &'a CallTimer,
    handle: Handle,
    /// Something was read.
    answered: bool,
    /// The GPU is off the bus, or wants a reset: it is asked nothing more.
    lost_code: Option<ReturnCode>,
    /// The first refusal that is none of "not here" and "not for you".
    first_error: Option<ReturnCode>,
}

impl<'a> DeviceQuery<'a> {
    pub(super) fn new(library: &'a Library, timer: &'a CallTimer, handle: Handle) -> Self {
        Self { library, timer, handle, answered: false, lost_code: None, first_error: None }
    }

    /// The value, or the code of the refusal, which is remembered.
    pub(super) fn try_get<T>(
        &mut self,
        call: impl FnOnce(&Library, &CallTimer, Handle) -> Result<T, ReturnCode>,
    ) -> Result<T, ReturnCode> {
        if let Some(code) = self.lost_code {
            return Err(code);
        }
        let result = call(self.library, self.timer, self.handle);
        match &result {
            Ok(_) => self.answered = true,
            Err(ReturnCode::NOT_SUPPORTED | ReturnCode::FUNCTION_NOT_FOUND | ReturnCode::NOT_FOUND) => {}
            Err(code @ (ReturnCode::GPU_IS_LOST | ReturnCode::RESET_REQUIRED)) => self.lost_code = Some(*code),
            Err(code) => self.first_error = self.first_error.or(Some(*code)),
        }
        result
    }

    pub(super) fn get<T>(
        &mut self,
        call: impl FnOnce(&Library, &CallTimer, Handle) -> Result<T, ReturnCode>,
    ) -> Option<T> {
        self.try_get(call).ok()
    }

    pub(super) fn get_kind<T>(
        &mut self,
        call: impl FnOnce(&Library, &CallTimer, Handle, u32) -> Result<T, ReturnCode>,
        kind: u32,
    ) -> Option<T> {
        self.get(|library, timer, handle| call(library, timer, handle, kind))
    }

    /// What `convert` makes of the value; one that it refuses cannot be, and is noted.
    pub(super) fn get_if<T, U>(
        &mut self,
        call: impl FnOnce(&Library, &CallTimer, Handle) -> Result<T, ReturnCode>,
        convert: impl FnOnce(T) -> Option<U>,
    ) -> Option<U> {
        let value = self.get(call)?;
        self.check(convert(value))
    }

    /// The same by kind.
    pub(super) fn get_kind_if<T, U>(
        &mut self,
        call: impl FnOnce(&Library, &CallTimer, Handle, u32) -> Result<T, ReturnCode>,
        kind: u32,
        convert: impl FnOnce(T) -> Option<U>,
    ) -> Option<U> {
        self.get_if(|library, timer, handle| call(library, timer, handle, kind), convert)
    }

    /// Notes that a reading was refused as impossible, if it was.
    pub(super) fn check<T>(&self, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.library.anomalies().add(DriverAnomaly::ImplausibleReading);
        }
        value
    }

    /// The GPU can be asked nothing more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost_code.is_some()
    }

    /// The error of the device as a whole: lost, or refused in everything. One reading that fails is only missing.
    pub(super) fn device_error(&self) -> Option<ReturnCode> {
        self.lost_code.or(if self.answered { None } else { self.first_error })
    }
}
