//! GPM (Hopper and newer): what the SMs do, from two samples of counters.

use super::ask::Asker;
use super::plausible::{bytes_per_second, share};
use crate::probe::nvml::raw::{Code, GpmSample, Handle, Library};
use crate::probe::nvml::watch::Watch;
use crate::wire::{GpuReading, Offer};
use nvml_wrapper_sys::bindings as sys;

/// Counters are refreshed ten times a second (nvml.h); samples that lie closer give nothing.
const SHORTEST_SECONDS: f64 = 0.11;
/// PCIe and NVLink rates come in MiB a second.
const MIB: f64 = 1_048_576.0;

/// The GPM of one GPU or instance.
pub(super) struct Gpm {
    /// For an instance: its parent and its number.
    instance: Option<(Handle, u32)>,
    state: State,
}

enum State {
    /// Two samples, the older one first, and when it was taken.
    Read { older: GpmSample, newer: GpmSample, taken: Option<f64> },
    /// The driver has none of it for this GPU, or not for us. It is not asked again.
    Off(Option<Offer>),
}

impl Gpm {
    /// Takes a first sample: only that tells whether this account may have it.
    pub(super) fn judge(library: &Library, watch: &Watch, handle: Handle, instance: Option<(Handle, u32)>) -> Self {
        let mut state = State::Off(None);
        match Self::first(library, watch, handle, instance) {
            Ok((older, newer)) => state = State::Read { older, newer, taken: None },
            Err(Code::NO_PERMISSION) => state = State::Off(Some(Offer::NotPermitted)),
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => {}
            Err(_) => state = State::Off(Some(Offer::Refused)),
        }
        Self { instance, state }
    }

    fn first(
        library: &Library,
        watch: &Watch,
        handle: Handle,
        instance: Option<(Handle, u32)>,
    ) -> Result<(GpmSample, GpmSample), Code> {
        let mut older = library.gpm_sample(watch)?;
        let newer = library.gpm_sample(watch)?;
        let (handle, instance) = target(handle, instance);
        library.gpm_read(watch, handle, instance, &mut older)?;
        Ok((older, newer))
    }

    /// What the inventory says of it.
    pub(super) fn offer(&self) -> Option<Offer> {
        match &self.state {
            State::Read { .. } => Some(Offer::Available),
            State::Off(offer) => *offer,
        }
    }

    /// Takes a sample at `now`, in seconds, and writes what lies between it and the one before.
    pub(super) fn read(&mut self, ask: &mut Asker<'_>, words: &mut Vec<u64>, now: f64, reading: &mut GpuReading) {
        let State::Read { older, newer, taken } = &mut self.state else { return };
        if taken.is_some_and(|taken| now - taken < SHORTEST_SECONDS) {
            return;
        }
        let instance = self.instance;
        // The sample of `judge` only judged: nobody knows how old it is now.
        let into = if taken.is_none() { &mut *older } else { &mut *newer };
        let sampled = ask.try_get(|library, watch, handle| {
            let (handle, instance) = target(handle, instance);
            library.gpm_read(watch, handle, instance, into)
        });
        if let Err(code) = sampled {
            match code {
                Code::NO_PERMISSION => self.state = State::Off(Some(Offer::NotPermitted)),
                Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND => self.state = State::Off(None),
                _ => {}
            }
            return;
        }
        if taken.replace(now).is_none() {
            return;
        }
        let values = ask.get(|library, watch, _| library.gpm_metrics(watch, older, newer, METRICS, words));
        std::mem::swap(older, newer);
        let Some([sm, occupancy, tensor, dram, transmit, receive, link_receive, link_transmit]) = values else {
            return;
        };
        let checked = |value: Option<f64>| value.and_then(|value| ask.check(share(value)));
        reading.sm_activity_percent = checked(sm);
        reading.sm_occupancy_percent = checked(occupancy);
        reading.tensor_activity_percent = checked(tensor);
        reading.dram_bandwidth_percent = checked(dram);
        let rate = |value: Option<f64>| value.and_then(|value| ask.check(bytes_per_second(value * MIB)));
        reading.pcie_receive_bytes_per_second = rate(receive);
        reading.pcie_transmit_bytes_per_second = rate(transmit);
        reading.nvlink_receive_bytes_per_second = rate(link_receive);
        reading.nvlink_transmit_bytes_per_second = rate(link_transmit);
    }
}

/// In the order in which `read` takes them apart.
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

fn target(handle: Handle, instance: Option<(Handle, u32)>) -> (Handle, Option<u32>) {
    instance.map_or((handle, None), |(parent, number)| (parent, Some(number)))
}
