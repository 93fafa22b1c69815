//! What rarely changes about a GPU: asked for in the first sample and in every tenth after it.

use super::ask::Asker;
use super::fields::{FieldValues, recovery_action};
use super::plausible::{self, link};
use crate::probe::nvml::raw::Library;
use crate::wire::{ComputeMode, GpuHealth, GpuInfo, GpuReading};
use nvml_wrapper_sys::bindings as sys;

/// More fans than any GPU has; a count above it is the driver's mistake.
const MAX_FANS: u32 = 16;

/// Readings that rarely change and are shown with every sample, kept between those that ask for them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SlowReadings {
    power_limit_watts: Option<f32>,
    fan_percent: Option<u16>,
    pcie_generation: Option<u8>,
    pcie_width: Option<u8>,
}

impl SlowReadings {
    pub(super) fn read(ask: &mut Asker<'_>, has_pcie: bool) -> Self {
        let mut slow = Self {
            power_limit_watts: ask.get_if(Library::enforced_power_limit, plausible::watts),
            fan_percent: fan_percent(ask),
            ..Self::default()
        };
        if has_pcie {
            slow.pcie_generation = ask.get(Library::pcie_generation).and_then(link);
            slow.pcie_width = ask.get(Library::pcie_width).and_then(link);
        }
        slow
    }

    pub(super) fn write(&self, reading: &mut GpuReading, limit_of_inventory: Option<f32>) {
        reading.power_limit_watts = self.power_limit_watts.filter(|&limit| Some(limit) != limit_of_inventory);
        reading.fan_percent = self.fan_percent;
        reading.pcie_generation = self.pcie_generation;
        reading.pcie_width = self.pcie_width;
    }
}

/// The health of a GPU. `fields` were read with what rarely changes.
pub(super) fn read(ask: &mut Asker<'_>, info: &GpuInfo, fields: &FieldValues) -> GpuHealth {
    let mut ecc = |kind, period| {
        ask.get_if(|library, watch, handle| library.ecc_errors(watch, handle, kind, period), plausible::count)
    };
    let corrected = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED;
    let uncorrected = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
    let volatile = sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC;
    let aggregate = sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC;
    let mut health = GpuHealth {
        ecc_corrected_volatile: ecc(corrected, volatile),
        ecc_uncorrectable_volatile: ecc(uncorrected, volatile),
        ecc_corrected_aggregate: ecc(corrected, aggregate),
        ecc_uncorrectable_aggregate: ecc(uncorrected, aggregate),
        recovery_action: fields.recovery_action.map(recovery_action),
        power_smoothing: fields.power_smoothing.map(|enabled| enabled != 0),
        persistence_mode: ask.get(Library::persistence_mode).map(is_on),
        compute_mode: ask.get(Library::compute_mode).map(compute_mode),
        nvlinks_active: nvlinks_active(ask, info.nvlink_count),
        bar1_used_bytes: ask.get_if(Library::bar1, |bar1| plausible::bytes(bar1.bar1Used)),
        ..GpuHealth::default()
    };
    // A part remaps rows, or it retires pages.
    if let Some([corrected, uncorrectable, pending, failed]) = ask.get(Library::remapped_rows) {
        health.remapped_rows_correctable = Some(corrected);
        health.remapped_rows_uncorrectable = Some(uncorrectable);
        health.row_remap_pending = Some(is_on(pending));
        health.row_remap_failed = Some(is_on(failed));
    } else {
        let single = sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS;
        let double = sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR;
        health.retired_pages_single_bit = ask.get_kind(Library::retired_pages, single);
        health.retired_pages_double_bit = ask.get_kind(Library::retired_pages, double);
        health.retired_pages_pending = ask.get(Library::retired_pages_pending).map(is_on);
    }
    health
}

fn is_on(state: u32) -> bool {
    state != 0
}

fn compute_mode(mode: u32) -> ComputeMode {
    match mode {
        sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT => ComputeMode::Default,
        sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED => ComputeMode::Prohibited,
        sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS => ComputeMode::ExclusiveProcess,
        _ => ComputeMode::Unknown,
    }
}

/// A bit for each link that is up; none where one of them does not answer.
fn nvlinks_active(ask: &mut Asker<'_>, count: Option<u8>) -> Option<u64> {
    (0..u32::from(count?)).try_fold(0, |active, link| {
        let is_up = is_on(ask.get_kind(Library::nvlink_state, link)?);
        Some(active | u64::from(is_up) << link)
    })
}

/// The fastest fan.
fn fan_percent(ask: &mut Asker<'_>) -> Option<u16> {
    let fans = ask.get(Library::fan_count).unwrap_or(0).min(MAX_FANS);
    let speeds = (0..fans).filter_map(|fan| ask.get_kind_if(Library::fan_speed_v2, fan, plausible::fan_percent));
    match speeds.max() {
        Some(fastest) => Some(fastest),
        None => ask.get_if(Library::fan_speed, plausible::fan_percent),
    }
}
