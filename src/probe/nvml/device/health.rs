//! What rarely changes about a GPU: asked for in the first sample and in every tenth after it.

use super::fields::{FieldValues, recovery_action};
use super::query::DeviceQuery;
use super::valid_range::{self, link};
use crate::probe::nvml::ffi::Library;
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
    pub(super) fn read(query: &mut DeviceQuery<'_>, has_pcie: bool) -> Self {
        let mut slow = Self {
            power_limit_watts: query.get_if(Library::enforced_power_limit, valid_range::watts),
            fan_percent: fan_percent(query),
            ..Self::default()
        };
        if has_pcie {
            slow.pcie_generation = query.get(Library::pcie_generation).and_then(link);
            slow.pcie_width = query.get(Library::pcie_width).and_then(link);
        }
        slow
    }

    pub(super) fn write(&self, reading: &mut GpuReading, inventory_limit: Option<f32>) {
        reading.power_limit_watts = self.power_limit_watts.filter(|&limit| Some(limit) != inventory_limit);
        reading.fan_percent = self.fan_percent;
        reading.pcie_generation = self.pcie_generation;
        reading.pcie_width = self.pcie_width;
    }
}

/// The health of a GPU. `fields` were read with what rarely changes.
pub(super) fn read(query: &mut DeviceQuery<'_>, info: &GpuInfo, fields: &FieldValues) -> GpuHealth {
    let mut ecc = |kind, period| {
        query.get_if(|library, timer, handle| library.ecc_errors(timer, handle, kind, period), valid_range::count)
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
        persistence_mode: query.get(Library::persistence_mode).map(is_enabled),
        compute_mode: query.get(Library::compute_mode).map(compute_mode),
        nvlinks_active: nvlinks_active(query, info.nvlink_count),
        bar1_used_bytes: query.get_if(Library::bar1, |bar1| valid_range::bytes(bar1.bar1Used)),
        ..GpuHealth::default()
    };
    // A part remaps rows, or it retires pages.
    if let Some([corrected, uncorrectable, pending, failed]) = query.get(Library::remapped_rows) {
        health.remapped_rows_correctable = Some(corrected);
        health.remapped_rows_uncorrectable = Some(uncorrectable);
        health.row_remap_pending = Some(is_enabled(pending));
        health.row_remap_failed = Some(is_enabled(failed));
    } else {
        let single = sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS;
        let double = sys::nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR;
        health.retired_pages_single_bit = query.get_kind(Library::retired_pages, single);
        health.retired_pages_double_bit = query.get_kind(Library::retired_pages, double);
        health.retired_pages_pending = query.get(Library::retired_pages_pending).map(is_enabled);
    }
    health
}

fn is_enabled(state: u32) -> bool {
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
fn nvlinks_active(query: &mut DeviceQuery<'_>, count: Option<u8>) -> Option<u64> {
    (0..u32::from(count?)).try_fold(0, |active, link| {
        let is_up = is_enabled(query.get_kind(Library::nvlink_state, link)?);
        Some(active | u64::from(is_up) << link)
    })
}

/// The fastest fan.
fn fan_percent(query: &mut DeviceQuery<'_>) -> Option<u16> {
    let fans = query.get(Library::fan_count).unwrap_or(0).min(MAX_FANS);
    let speeds = (0..fans).filter_map(|fan| query.get_kind_if(Library::fan_speed_v2, fan, valid_range::fan_percent));
    match speeds.max() {
        Some(fastest) => Some(fastest),
        None => query.get_if(Library::fan_speed, valid_range::fan_percent),
    }
}
