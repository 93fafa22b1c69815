//! GPU Performance Monitoring (Hopper and newer): activity metrics computed from two samples.

use super::call_monitor::CallTimer;
use super::device_query::{DeviceQuery, bytes_per_second, percent_f32};
use super::ffi::{Handle, Library, ReturnCode};
use super::lists::GpmSample;
use crate::wire::{Availability, GpuReading};
use nvml_wrapper_sys::bindings as sys;

/// The driver updates the counters ten times a second (nvml.h); samples that are closer yield nothing.
const MIN_SAMPLE_SECONDS: f64 = 0.11;
/// PCIe and NVLink rates are in MiB per second.
const MIB: f64 = 1_048_576.0;

/// The GPM state of one GPU or MIG instance.
pub(super) struct Gpm {
    /// For a MIG instance: its parent and its GPU instance id.
    instance: Option<(Handle, u32)>,
    state: State,
}

enum State {
    /// Two samples, and the time of the older one.
    Active { older: GpmSample, newer: GpmSample, sampled_at: Option<f64> },
    /// The GPU does not support GPM, or this user may not read it. It is not tried again.
    Unavailable(Option<Availability>),
}

impl Gpm {
    /// Takes a first sample. Only that shows whether this user may read GPM; `nvmlGpmQueryDeviceSupport` does not.
    pub(super) fn probe_support(
        library: &Library,
        timer: &CallTimer,
        handle: Handle,
        instance: Option<(Handle, u32)>,
    ) -> Self {
        let mut state = State::Unavailable(None);
        match Self::first_sample(library, timer, handle, instance) {
            Ok((older, newer)) => state = State::Active { older, newer, sampled_at: None },
            Err(ReturnCode::NO_PERMISSION) => state = State::Unavailable(Some(Availability::NotPermitted)),
            Err(ReturnCode::NOT_SUPPORTED | ReturnCode::FUNCTION_NOT_FOUND) => {}
            Err(_) => state = State::Unavailable(Some(Availability::Refused)),
        }
        Self { instance, state }
    }

    fn first_sample(
        library: &Library,
        timer: &CallTimer,
        handle: Handle,
        instance: Option<(Handle, u32)>,
    ) -> Result<(GpmSample, GpmSample), ReturnCode> {
        let mut older = library.gpm_sample(timer)?;
        let newer = library.gpm_sample(timer)?;
        let (handle, instance) = gpm_device(handle, instance);
        library.gpm_read(timer, handle, instance, &mut older)?;
        Ok((older, newer))
    }

    /// The availability for the inventory, or `None` if the GPU does not support GPM.
    pub(super) fn availability(&self) -> Option<Availability> {
        match &self.state {
            State::Active { .. } => Some(Availability::Available),
            State::Unavailable(availability) => *availability,
        }
    }

    /// Takes a sample at `now` (in seconds) and writes the metrics between it and the previous one.
    pub(super) fn read(
        &mut self,
        query: &mut DeviceQuery<'_>,
        buffer: &mut Vec<u64>,
        now: f64,
        reading: &mut GpuReading,
    ) {
        let State::Active { older, newer, sampled_at } = &mut self.state else { return };
        if sampled_at.is_some_and(|sampled_at| now - sampled_at < MIN_SAMPLE_SECONDS) {
            return;
        }
        let instance = self.instance;
        // The sample of `probe_support` has no time, so this one replaces it.
        let sample = if sampled_at.is_none() { &mut *older } else { &mut *newer };
        let sampled = query.try_get(|library, timer, handle| {
            let (handle, instance) = gpm_device(handle, instance);
            library.gpm_read(timer, handle, instance, sample)
        });
        if let Err(code) = sampled {
            match code {
                ReturnCode::NO_PERMISSION => self.state = State::Unavailable(Some(Availability::NotPermitted)),
                ReturnCode::NOT_SUPPORTED | ReturnCode::FUNCTION_NOT_FOUND => self.state = State::Unavailable(None),
                _ => {}
            }
            return;
        }
        if sampled_at.replace(now).is_none() {
            return;
        }
        let values = query.get(|library, timer, _| library.gpm_metrics(timer, older, newer, METRICS, buffer));
        std::mem::swap(older, newer);
        let Some([sm, occupancy, tensor, dram, transmit, receive, link_receive, link_transmit]) = values else {
            return;
        };
        let checked = |value: Option<f64>| value.and_then(|value| query.check(percent_f32(value)));
        reading.sm_activity_percent = checked(sm);
        reading.sm_occupancy_percent = checked(occupancy);
        reading.tensor_activity_percent = checked(tensor);
        reading.dram_bandwidth_percent = checked(dram);
        let rate = |value: Option<f64>| value.and_then(|value| query.check(bytes_per_second(value * MIB)));
        reading.pcie_receive_bytes_per_second = rate(receive);
        reading.pcie_transmit_bytes_per_second = rate(transmit);
        reading.nvlink_receive_bytes_per_second = rate(link_receive);
        reading.nvlink_transmit_bytes_per_second = rate(link_transmit);
    }
}

/// In the order in which `read` destructures them.
const METRICS: [u32; 8] = [
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
];

fn gpm_device(handle: Handle, instance: Option<(Handle, u32)>) -> (Handle, Option<u32>) {
    instance.map_or((handle, None), |(parent, number)| (parent, Some(number)))
}
