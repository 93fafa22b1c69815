//! Asks one device, and keeps apart what a refusal means for one reading and for the device.

use crate::probe::nvml::raw::{Code, Handle, Library, Oddity};
use crate::probe::nvml::watch::Watch;

/// Asks one device and remembers what its refusals mean for it as a whole.
pub(super) struct Asker<'a> {
    library: &'a Library,
    watch: &'a Watch,
    handle: Handle,
    /// Something was read.
    answered: bool,
    /// The GPU is off the bus, or wants a reset: it is asked nothing more.
    lost: Option<Code>,
    /// The first refusal that is none of "not here" and "not for you".
    refusal: Option<Code>,
}

impl<'a> Asker<'a> {
    pub(super) fn new(library: &'a Library, watch: &'a Watch, handle: Handle) -> Self {
        Self { library, watch, handle, answered: false, lost: None, refusal: None }
    }

    /// The value, or the code of the refusal, which is remembered.
    pub(super) fn try_get<T>(
        &mut self,
        call: impl FnOnce(&Library, &Watch, Handle) -> Result<T, Code>,
    ) -> Result<T, Code> {
        if let Some(code) = self.lost {
            return Err(code);
        }
        let result = call(self.library, self.watch, self.handle);
        match &result {
            Ok(_) => self.answered = true,
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND | Code::NOT_FOUND) => {}
            Err(code @ (Code::GPU_IS_LOST | Code::RESET_REQUIRED)) => self.lost = Some(*code),
            Err(code) => self.refusal = self.refusal.or(Some(*code)),
        }
        result
    }

    pub(super) fn get<T>(&mut self, call: impl FnOnce(&Library, &Watch, Handle) -> Result<T, Code>) -> Option<T> {
        self.try_get(call).ok()
    }

    pub(super) fn get_kind<T>(
        &mut self,
        call: impl FnOnce(&Library, &Watch, Handle, u32) -> Result<T, Code>,
        kind: u32,
    ) -> Option<T> {
        self.get(|library, watch, handle| call(library, watch, handle, kind))
    }

    /// What `keep` makes of the value; one that it refuses cannot be, and is noted.
    pub(super) fn get_if<T, U>(
        &mut self,
        call: impl FnOnce(&Library, &Watch, Handle) -> Result<T, Code>,
        keep: impl FnOnce(T) -> Option<U>,
    ) -> Option<U> {
        let value = self.get(call)?;
        self.check(keep(value))
    }

    /// The same by kind.
    pub(super) fn get_kind_if<T, U>(
        &mut self,
        call: impl FnOnce(&Library, &Watch, Handle, u32) -> Result<T, Code>,
        kind: u32,
        keep: impl FnOnce(T) -> Option<U>,
    ) -> Option<U> {
        self.get_if(|library, watch, handle| call(library, watch, handle, kind), keep)
    }

    /// Notes that a reading was refused as impossible, if it was.
    pub(super) fn check<T>(&self, kept: Option<T>) -> Option<T> {
        if kept.is_none() {
            self.library.oddities().add(Oddity::Reading);
        }
        kept
    }

    /// The GPU can be asked nothing more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// The error of the device as a whole: lost, or refused in everything. One reading that fails is only missing.
    pub(super) fn verdict(&self) -> Option<Code> {
        self.lost.or(if self.answered { None } else { self.refusal })
    }
}
