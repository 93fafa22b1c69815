//! Queries of one device: errors of single readings and of the device, field values, and the valid ranges of readings.

use super::call_monitor::{CallTimer, DriverAnomaly};
use super::ffi::{Handle, Library, ReturnCode};
use super::lists::MAX_FIELDS;
use crate::probe::decimal::{round_to_tenth, round_to_tenth_f32};
use crate::wire::RecoveryAction;
use nvml_wrapper_sys::bindings::field_id as id;

/// Calls NVML for one device and derives the error of the device from the errors of the calls.
pub(super) struct DeviceQuery<'a> {
    library: &'a Library,
    timer: &'a CallTimer,
    handle: Handle,
    /// A call succeeded.
    answered: bool,
    /// Set when the GPU is lost or requires a reset; no further call is made.
    lost_code: Option<ReturnCode>,
    /// The first error other than "not supported" and "not found".
    first_error: Option<ReturnCode>,
}

impl<'a> DeviceQuery<'a> {
    pub(super) fn new(library: &'a Library, timer: &'a CallTimer, handle: Handle) -> Self {
        Self { library, timer, handle, answered: false, lost_code: None, first_error: None }
    }

    /// Makes the call and records its error.
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

    /// Makes the call and converts the result. Records an anomaly if `convert` rejects the value.
    pub(super) fn get_if<T, U>(
        &mut self,
        call: impl FnOnce(&Library, &CallTimer, Handle) -> Result<T, ReturnCode>,
        convert: impl FnOnce(T) -> Option<U>,
    ) -> Option<U> {
        let value = self.get(call)?;
        self.check(convert(value))
    }

    /// As [`Self::get_if`], for a call with a kind.
    pub(super) fn get_kind_if<T, U>(
        &mut self,
        call: impl FnOnce(&Library, &CallTimer, Handle, u32) -> Result<T, ReturnCode>,
        kind: u32,
        convert: impl FnOnce(T) -> Option<U>,
    ) -> Option<U> {
        self.get_if(|library, timer, handle| call(library, timer, handle, kind), convert)
    }

    /// Records an anomaly if `value` is `None`, that is, out of its valid range.
    pub(super) fn check<T>(&self, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.library.anomalies().add(DriverAnomaly::ImplausibleReading);
        }
        value
    }

    /// Whether the GPU is lost or requires a reset.
    pub(super) fn is_lost(&self) -> bool {
        self.lost_code.is_some()
    }

    /// The error of the device: lost, or no call succeeded. An error of a single reading only leaves that reading out.
    pub(super) fn device_error(&self) -> Option<ReturnCode> {
        self.lost_code.or(if self.answered { None } else { self.first_error })
    }
}

/// Ids of the fields that were renumbered. In the header of CUDA 12.8 (R570), 251 is power smoothing; R575 and R580
/// before 580.82 put five other fields before it; 580.82 moved those five behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FieldIds {
    power_smoothing: Option<u32>,
    power_brake: Option<u32>,
}

impl FieldIds {
    /// The ids for a driver version such as `580.82.07`. An unknown format gives no ids.
    pub(crate) fn for_driver(version: &[u8]) -> Self {
        let mut parts = std::str::from_utf8(version).unwrap_or_default().split('.').map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return Self::default() };
        let (power_smoothing, power_brake) = match (major, minor) {
            (..570, _) => (None, None),
            (570..575, _) => (Some(251), None),
            (575..580, _) | (580, ..82) => (Some(256), Some(253)),
            _ => (Some(251), Some(271)),
        };
        Self { power_smoothing, power_brake }
    }
}

/// Scope of the NVLink fields: the sum over all links (nvml.h).
const ALL_LINKS: u32 = u32::MAX;
/// The fields that are read, in the order of [`Fields::ids`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    /// In degrees Celsius.
    MemoryTemperature,
    /// In KiB.
    NvlinkTransmit,
    /// In KiB.
    NvlinkReceive,
    /// In bytes.
    PcieTransmit,
    /// In bytes.
    PcieReceive,
    /// In nanoseconds.
    PowerViolation,
    /// In nanoseconds.
    ThermalViolation,
    /// In nanoseconds.
    PowerBrake,
    /// Read only in slow samples, like the fields after it.
    RecoveryAction,
    PowerSmoothing,
    PcieReplays,
    NvlinkCrcErrors,
    NvlinkReplays,
    NvlinkRecoveries,
}

const FIELD_COUNT: usize = Field::NvlinkRecoveries as usize + 1;
/// The fields from this index on are read only in slow samples.
const SLOW_FIELDS_FROM: usize = Field::RecoveryAction as usize;

/// The fields to read. Fields that a GPU does not answer are read again only in slow samples.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    ids: [Option<(u32, u32)>; FIELD_COUNT],
    answered: [bool; FIELD_COUNT],
}

/// The values of one read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FieldValues([Option<u64>; FIELD_COUNT]);

impl FieldValues {
    pub(super) fn get(&self, field: Field) -> Option<u64> {
        self.0[field as usize]
    }
}

impl Fields {
    /// `has_pcie` is false for GPUs whose PCIe readings describe no real link.
    pub(super) fn new(ids: FieldIds, has_pcie: bool) -> Self {
        let device_field = |id| Some((id, 0));
        let pcie = |id| device_field(id).filter(|_| has_pcie);
        Self {
            ids: [
                device_field(id::NVML_FI_DEV_MEMORY_TEMP),
                Some((id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)),
                Some((id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS)),
                pcie(id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
                pcie(id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
                device_field(id::NVML_FI_DEV_PERF_POLICY_POWER),
                device_field(id::NVML_FI_DEV_PERF_POLICY_THERMAL),
                device_field(ids.power_brake.unwrap_or(id::NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT)),
                device_field(id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
                ids.power_smoothing.and_then(device_field),
                pcie(id::NVML_FI_DEV_PCIE_REPLAY_COUNTER),
                device_field(id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
                device_field(id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
                device_field(id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
            ],
            answered: [true; FIELD_COUNT],
        }
    }

    /// Reads all fields that are due, in one call.
    pub(super) fn read(&mut self, query: &mut DeviceQuery<'_>, slow: bool) -> FieldValues {
        const { assert!(FIELD_COUNT <= MAX_FIELDS) };
        let last = if slow { FIELD_COUNT } else { SLOW_FIELDS_FROM };
        let is_due = |index: usize| self.ids[index].filter(|_| slow || self.answered[index]);
        if (0..last).all(|index| is_due(index).is_none()) {
            return FieldValues::default();
        }
        let read =
            query.get(|library: &Library, timer, handle| library.fields(timer, handle, (0..last).filter_map(is_due)));
        let mut results = read.unwrap_or_default().into_iter();
        let mut values = [None; FIELD_COUNT];
        for (index, value) in values.iter_mut().enumerate().take(last) {
            if is_due(index).is_some() {
                *value = results.next().flatten();
            }
        }
        if slow {
            self.answered = values.map(|value| value.is_some());
        }
        FieldValues(values)
    }
}

/// nvml.h, `nvmlDeviceGpuRecoveryAction_t`.
pub(super) fn recovery_action(number: u64) -> RecoveryAction {
    match number {
        0 => RecoveryAction::None,
        1 => RecoveryAction::GpuReset,
        2 => RecoveryAction::NodeReboot,
        3 => RecoveryAction::DrainP2p,
        4 => RecoveryAction::DrainAndReset,
        5 => RecoveryAction::RecoverImexDomain,
        6 => RecoveryAction::BusReset,
        7 => RecoveryAction::SystemReboot,
        _ => RecoveryAction::Unknown,
    }
}

/// In milliwatts. A whole rack draws less.
const MAX_MILLIWATTS: u32 = 100_000_000;
/// Ten terabytes, more than any current link.
const MAX_BYTES_PER_SECOND: f64 = 1e13;

/// A percentage from 0 to 100.
pub(super) fn percent(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|&percent| percent <= 100)
}

/// A percentage from 0 to 100 with one decimal. Measurements may overshoot slightly.
pub(super) fn percent_f32(value: f64) -> Option<f32> {
    (-0.5..=105.0).contains(&value).then(|| round_to_tenth_f32(value.clamp(0.0, 100.0)))
}

/// NVML returns an unsigned number for a signed temperature.
pub(super) fn celsius(degrees: u32) -> Option<i32> {
    Some(degrees as i32).filter(|degrees| (-100..=250).contains(degrees))
}

pub(super) fn watts(milliwatts: u32) -> Option<f32> {
    (milliwatts <= MAX_MILLIWATTS).then(|| round_to_tenth_f32(f64::from(milliwatts) / 1000.0))
}

pub(super) fn megahertz(clock: u32) -> Option<u32> {
    (clock <= 100_000).then_some(clock)
}

/// Fans may run above their rated speed.
pub(super) fn fan_percent(value: u32) -> Option<u16> {
    u16::try_from(value).ok().filter(|&percent| percent <= 300)
}

/// A PCIe generation or lane count.
pub(super) fn link(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|&value| (1..=64).contains(&value))
}

/// An amount of memory below a petabyte.
pub(super) fn bytes(value: u64) -> Option<u64> {
    (value < 1 << 50).then_some(value)
}

/// A counter of errors over the life of a GPU.
pub(super) fn error_count(value: u64) -> Option<u64> {
    (value < 1 << 48).then_some(value)
}

/// A rate in whole bytes per second.
pub(super) fn bytes_per_second(rate: f64) -> Option<f64> {
    (0.0..=MAX_BYTES_PER_SECOND).contains(&rate).then_some(rate as u64 as f64)
}

/// Nanoseconds since the driver was loaded (less than a century), in seconds.
pub(super) fn seconds(nanoseconds: u64) -> Option<f64> {
    (nanoseconds < 3_000_000_000_000_000_000).then(|| round_to_tenth(nanoseconds as f64 / 1e9))
}

/// Millijoules since the driver was loaded (less than a megawatt over ten years), in joules.
pub(super) fn joules(millijoules: u64) -> Option<f64> {
    (millijoules < 300_000_000_000_000_000).then(|| round_to_tenth(millijoules as f64 / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_ids_depend_on_the_driver_version() {
        for (version, smoothing, brake) in [
            ("470.256.02", None, None),
            ("565.57.01", None, None),
            ("570.86.15", Some(251), None),
            ("570.211.01", Some(251), None),
            ("575.51.03", Some(256), Some(253)),
            ("580.65.06", Some(256), Some(253)),
            ("580.82", Some(251), Some(271)),
            ("580.126.09", Some(251), Some(271)),
            ("590.44.01", Some(251), Some(271)),
            ("615.71", Some(251), Some(271)),
            ("", None, None),
            ("r580", None, None),
            ("580", None, None),
        ] {
            let expected = FieldIds { power_smoothing: smoothing, power_brake: brake };
            assert_eq!(FieldIds::for_driver(version.as_bytes()), expected, "{version}");
        }
    }

    #[test]
    fn values_out_of_range_are_none() {
        assert_eq!((percent(100), percent(101), percent(u32::MAX)), (Some(100), None, None));
        assert_eq!((celsius(u32::MAX), celsius(70), celsius(4000)), (Some(-1), Some(70), None));
        assert_eq!((watts(123_456), watts(u32::MAX)), (Some(123.5), None));
        assert_eq!((megahertz(1980), megahertz(u32::MAX)), (Some(1980), None));
        assert_eq!((link(5), link(0), link(255), link(u32::MAX)), (Some(5), None, None, None));
        assert_eq!((fan_percent(130), fan_percent(70_000)), (Some(130), None));
        assert_eq!(
            (percent_f32(100.4), percent_f32(-0.01), percent_f32(f64::NAN), percent_f32(1e300)),
            (Some(100.0), Some(0.0), None, None)
        );
        assert_eq!((bytes_per_second(12.7), bytes_per_second(-1.0), bytes_per_second(1e18)), (Some(12.0), None, None));
        assert_eq!((seconds(1_500_000_000), seconds(u64::MAX)), (Some(1.5), None));
        assert_eq!((joules(1500), joules(u64::MAX)), (Some(1.5), None));
    }
}
