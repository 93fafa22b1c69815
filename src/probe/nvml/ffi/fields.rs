//! `nvmlDeviceGetFieldValues`: many readings of one GPU in one call.

use super::{Handle, Library, ReturnCode, call};
use crate::probe::nvml::call_timer::CallTimer;
use nvml_wrapper_sys::bindings as sys;
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// The most fields that one call asks for.
pub(crate) const MAX_FIELDS: usize = 12;

impl Library {
    /// Reads fields, each given by its id and scope; `None` for those the driver refuses. At most [`MAX_FIELDS`] are
    /// asked for. A negative value is none: every field that is read counts something.
    pub(crate) fn fields(
        &self,
        timer: &CallTimer,
        device: Handle,
        requested: impl IntoIterator<Item = (u32, u32)>,
    ) -> Result<[Option<u64>; MAX_FIELDS], ReturnCode> {
        // One more than is asked for: some drivers write past the count they were given.
        // SAFETY: plain numbers and a union of numbers; all zeroes is a value of each.
        let mut values: [sys::nvmlFieldValue_t; MAX_FIELDS + 1] = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut count = 0;
        for (value, (id, scope)) in values[..MAX_FIELDS].iter_mut().zip(requested) {
            (value.fieldId, value.scopeId) = (id, scope);
            // A driver that leaves a field alone has not answered it.
            value.nvmlReturn = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
            count += 1;
        }
        // SAFETY: a count not above the buffer's length.
        call(timer, self.table.field_values, |function| unsafe {
            function(device.0.as_ptr(), count as c_int, values.as_mut_ptr())
        })?;
        let mut numbers = [None; MAX_FIELDS];
        for (number, value) in numbers.iter_mut().zip(&values[..count]) {
            match ReturnCode(value.nvmlReturn) {
                ReturnCode(sys::nvmlReturn_enum_NVML_SUCCESS) => *number = number_of(value),
                lost @ (ReturnCode::GPU_IS_LOST | ReturnCode::RESET_REQUIRED) => return Err(lost),
                _ => {}
            }
        }
        Ok(numbers)
    }
}

fn number_of(value: &sys::nvmlFieldValue_t) -> Option<u64> {
    number(value.valueType, value.value)
}

/// The number in a union of numbers, by its `nvmlValueType_t`.
pub(super) fn number(kind: sys::nvmlValueType_t, value: sys::nvmlValue_t) -> Option<u64> {
    // SAFETY: the driver says which member it wrote, and every bit pattern is a value of each.
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

/// The number in an entry of `nvmlDeviceGetSamples`.
pub(crate) fn sample_value(kind: u32, word: u64) -> Option<u64> {
    number(kind, sys::nvmlValue_t { ullVal: word })
}

#[cfg(test)]
mod tests {
    use super::*;

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
