//! The field values of one GPU: many readings in one call, by ids that have changed between drivers.

use super::query::DeviceQuery;
use crate::probe::nvml::ffi::Library;
use crate::probe::nvml::ffi::fields::MAX_FIELDS;
use crate::wire::RecoveryAction;
use nvml_wrapper_sys::bindings::field_id as id;

/// The fields that were renumbered: by the header of CUDA 12.8 (R570) 251 is power smoothing; R575 and R580 before
/// 580.82 put five others before it; 580.82 took that back and put the five behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FieldIds {
    power_smoothing: Option<u32>,
    power_brake: Option<u32>,
}

impl FieldIds {
    /// By a driver's version, such as `580.82.07`. One that cannot be read gets none of them.
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

/// The sum over all links (nvml.h).
const ALL_LINKS: u32 = u32::MAX;
/// The place of each field in [`FieldValues`].
const FIELD_COUNT: usize = 10;

/// Which fields a GPU has answered: the others are asked for again only with what rarely changes.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    ids: [Option<(u32, u32)>; FIELD_COUNT],
    answered: [bool; FIELD_COUNT],
}

/// What was read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FieldValues {
    /// In degrees Celsius.
    pub(super) memory_temperature: Option<u64>,
    /// In KiB.
    pub(super) nvlink_transmit: Option<u64>,
    /// In KiB.
    pub(super) nvlink_receive: Option<u64>,
    /// In bytes.
    pub(super) pcie_transmit: Option<u64>,
    /// In bytes.
    pub(super) pcie_receive: Option<u64>,
    /// In nanoseconds.
    pub(super) power_violation: Option<u64>,
    /// In nanoseconds.
    pub(super) thermal_violation: Option<u64>,
    /// In nanoseconds.
    pub(super) power_brake: Option<u64>,
    /// Asked for only with what rarely changes.
    pub(super) recovery_action: Option<u64>,
    /// Asked for only with what rarely changes.
    pub(super) power_smoothing: Option<u64>,
}

/// The first places are read in every sample, those from here on only with what rarely changes.
const SLOW_FIELDS_FROM: usize = 8;

impl Fields {
    /// `has_pcie`: whether the GPU sits behind a PCIe link worth reading.
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
            ],
            answered: [true; FIELD_COUNT],
        }
    }

    /// One call for all that is due.
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
        let [
            memory_temperature,
            nvlink_transmit,
            nvlink_receive,
            pcie_transmit,
            pcie_receive,
            power_violation,
            thermal_violation,
            power_brake,
            recovery_action,
            power_smoothing,
        ] = values;
        FieldValues {
            memory_temperature,
            nvlink_transmit,
            nvlink_receive,
            pcie_transmit,
            pcie_receive,
            power_violation,
            thermal_violation,
            power_brake,
            recovery_action,
            power_smoothing,
        }
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
}
