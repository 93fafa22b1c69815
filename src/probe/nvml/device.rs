//! One GPU, or one MIG instance: its facts and its readings.

mod buffered_samples;
mod counters;
mod device_info;
mod fields;
mod gpm;
mod health;
mod query;
mod valid_range;

pub(crate) use buffered_samples::BufferedSamples;
pub(crate) use fields::FieldIds;

use self::counters::Counters;
use self::fields::{FieldValues, Fields};
use self::gpm::Gpm;
use self::health::SlowReadings;
use self::query::DeviceQuery;
use self::valid_range::{celsius, joules, megahertz, percent, seconds, watts};
use super::call_timer::CallTimer;
use super::ffi::{Handle, Library, ProcessList, ReturnCode};
use super::gpu_processes::{GpuProcess, ProcessRows, UtilizationWindow};
use super::messages;
use crate::wire::{GpuHealth, GpuInfo, GpuReading};
use nvml_wrapper_sys::bindings as sys;

/// Graphics processes and clients of MPS, of which most GPUs have none ever, are asked for again after so long where there
/// were none: each list is a call into the driver.
const EMPTY_LIST_SECONDS: f64 = 4.5;

/// A GPU as it is remembered between samples.
pub(crate) struct Device {
    pub(crate) info: GpuInfo,
    /// Where to ask for the handle again while there is none.
    index: u32,
    handle: Option<Handle>,
    kind: DeviceKind,
    slow: SlowReadings,
    utilization_window: UtilizationWindow,
    /// When there was no graphics process, and no client of MPS.
    empty_since: [Option<f64>; 2],
    counters: Counters,
    fields: Fields,
    gpm: Option<Gpm>,
    /// What the driver remembers goes with the first sample.
    buffered_samples_due: bool,
}

/// What may be asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// A GPU that is not divided.
    Gpu,
    /// A GPU divided into instances: utilisation and processes are theirs.
    MigParent,
    /// An instance: it has memory and processes, no sensors of its own.
    MigInstance,
}

/// What one sample of one device gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceSample {
    pub(crate) reading: GpuReading,
    /// What rarely changes, when it was asked for.
    pub(crate) health: Option<GpuHealth>,
    pub(crate) processes: Vec<GpuProcess>,
    /// What the driver remembers, with the first sample.
    pub(crate) buffered_samples: Option<BufferedSamples>,
}

impl DeviceSample {
    fn refused(code: ReturnCode) -> Self {
        let reading = GpuReading { error: Some(messages::device_error(code)), ..GpuReading::default() };
        Self { reading, ..Self::default() }
    }
}

impl Device {
    /// A GPU at its index. Without a handle (a GPU off the bus) it keeps its row, and each sample asks again.
    pub(crate) fn open(
        library: &Library,
        timer: &CallTimer,
        handle: Result<Handle, ReturnCode>,
        index: u32,
        ids: FieldIds,
    ) -> Self {
        let Ok(handle) = handle else {
            return Self::new(GpuInfo { index, ..GpuInfo::default() }, None, DeviceKind::Gpu, ids, None);
        };
        let info = device_info::gpu_info(library, timer, handle, index);
        let kind = if info.mig_enabled == Some(true) { DeviceKind::MigParent } else { DeviceKind::Gpu };
        let gpm = Gpm::probe_support(library, timer, handle, None);
        Self::new(info, Some(handle), kind, ids, Some(gpm))
    }

    /// A MIG instance of `parent`.
    pub(crate) fn open_mig_instance(
        library: &Library,
        timer: &CallTimer,
        handle: Handle,
        index: u32,
        parent: &Self,
    ) -> Self {
        let info = device_info::mig_instance_info(library, timer, handle, index, &parent.info);
        let gpm =
            parent.handle.zip(info.gpu_instance_id).map(|of| Gpm::probe_support(library, timer, handle, Some(of)));
        Self::new(info, Some(handle), DeviceKind::MigInstance, FieldIds::default(), gpm)
    }

    fn new(mut info: GpuInfo, handle: Option<Handle>, kind: DeviceKind, ids: FieldIds, gpm: Option<Gpm>) -> Self {
        info.gpm = gpm.as_ref().and_then(Gpm::availability);
        let has_pcie = info.unified_memory != Some(true);
        Self {
            index: info.index,
            info,
            handle,
            kind,
            slow: SlowReadings::default(),
            utilization_window: UtilizationWindow::default(),
            empty_since: [None; 2],
            counters: Counters::default(),
            fields: Fields::new(ids, has_pcie),
            gpm,
            buffered_samples_due: kind != DeviceKind::MigInstance,
        }
    }

    pub(crate) fn handle(&self) -> Option<Handle> {
        self.handle
    }

    pub(crate) fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// The past was told before.
    pub(crate) fn skip_buffered_samples(&mut self) {
        self.buffered_samples_due = false;
    }

    /// Reads everything. `now` is monotonic, in seconds; `slow` asks for what rarely changes as well.
    pub(crate) fn sample(
        &mut self,
        library: &Library,
        timer: &CallTimer,
        buffer: &mut Vec<u64>,
        now: f64,
        slow: bool,
    ) -> DeviceSample {
        let handle = match self.handle.map_or_else(|| library.device(timer, self.index), Ok) {
            Ok(handle) => handle,
            Err(code) => return DeviceSample::refused(code),
        };
        self.handle = Some(handle);
        let mut query = DeviceQuery::new(library, timer, handle);
        let mut sample = DeviceSample::default();
        self.read_memory(&mut query, &mut sample.reading);
        if let Some(gpm) = &mut self.gpm {
            gpm.read(&mut query, buffer, now, &mut sample.reading);
        }
        if self.kind != DeviceKind::MigInstance {
            let fields = self.fields.read(&mut query, slow);
            self.read_sensors(&mut query, &mut sample.reading, now);
            self.read_fields(&query, &fields, &mut sample.reading, now);
            if slow {
                self.slow = SlowReadings::read(&mut query, self.info.unified_memory != Some(true));
                sample.health = Some(health::read(&mut query, &self.info, &fields));
            }
            self.slow.write(&mut sample.reading, self.info.power_limit_watts);
        }
        if self.kind != DeviceKind::MigParent && !query.is_lost() {
            sample.processes = self.read_processes(&mut query, buffer, now);
        }
        if self.buffered_samples_due && !query.is_lost() {
            self.buffered_samples_due = false;
            sample.buffered_samples = buffered_samples::read(&mut query, buffer, self.kind == DeviceKind::MigParent);
        }
        match query.device_error() {
            Some(code) => DeviceSample::refused(code),
            None => sample,
        }
    }

    fn read_memory(&self, query: &mut DeviceQuery<'_>, reading: &mut GpuReading) {
        if self.info.unified_memory == Some(true) {
            return;
        }
        if let Some(memory) = query.get(device_info::memory) {
            reading.memory_used_bytes = Some(memory.used);
            reading.memory_reserved_bytes = memory.reserved;
        }
    }

    fn read_sensors(&mut self, query: &mut DeviceQuery<'_>, reading: &mut GpuReading, now: f64) {
        if self.kind == DeviceKind::Gpu
            && let Some(utilization) = query.get(Library::utilization)
        {
            reading.utilization_percent = query.check(percent(utilization.gpu));
            reading.memory_utilization_percent = query.check(percent(utilization.memory));
        }
        let core = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        reading.temperature_celsius = query.get_kind_if(Library::temperature, core, celsius);
        reading.power_watts = query.get_if(Library::power_usage, watts);
        let energy = query.get(Library::total_energy);
        reading.energy_joules = energy.and_then(|energy| query.check(joules(energy)));
        reading.power_mean_watts = self.counters.mean_watts(energy, now);
        let mut clock = |kind| query.get_kind_if(Library::clock, kind, megahertz);
        reading.clock_graphics_mhz = clock(sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS);
        reading.clock_sm_mhz = clock(sys::nvmlClockType_enum_NVML_CLOCK_SM);
        reading.clock_memory_mhz = clock(sys::nvmlClockType_enum_NVML_CLOCK_MEM);
        // 32 is NVML_PSTATE_UNKNOWN.
        reading.performance_state = query
            .get(Library::performance_state)
            .and_then(|state| u8::try_from(state).ok().filter(|&state| state <= 15));
        reading.clocks_event_reasons =
            query.get(Library::event_reasons).or_else(|| query.get(Library::throttle_reasons));
        if self.kind == DeviceKind::Gpu {
            reading.encoder_percent = query.get_if(Library::encoder, percent);
            reading.decoder_percent = query.get_if(Library::decoder, percent);
        }
    }

    fn read_fields(&mut self, query: &DeviceQuery<'_>, fields: &FieldValues, reading: &mut GpuReading, now: f64) {
        // Parts without the sensor say 0.
        let degrees = fields.memory_temperature.filter(|&degrees| degrees > 0);
        reading.memory_temperature_celsius =
            degrees.and_then(|degrees| query.check(u32::try_from(degrees).ok().and_then(celsius)));
        let check = |time: Option<u64>| time.and_then(|time| query.check(seconds(time)));
        reading.power_violation_seconds = check(fields.power_violation);
        reading.thermal_violation_seconds = check(fields.thermal_violation);
        reading.power_brake_seconds = check(fields.power_brake);
        // GPM measures PCIe; the fields count what may wrap.
        let [receive, transmit] = self.counters.pcie(fields.pcie_receive, fields.pcie_transmit, now);
        reading.pcie_receive_bytes_per_second = reading.pcie_receive_bytes_per_second.or(receive);
        reading.pcie_transmit_bytes_per_second = reading.pcie_transmit_bytes_per_second.or(transmit);
        let [receive, transmit] = self.counters.nvlink(fields.nvlink_receive, fields.nvlink_transmit, now);
        reading.nvlink_receive_bytes_per_second = receive.or(reading.nvlink_receive_bytes_per_second);
        reading.nvlink_transmit_bytes_per_second = transmit.or(reading.nvlink_transmit_bytes_per_second);
    }

    fn read_processes(&mut self, query: &mut DeviceQuery<'_>, buffer: &mut Vec<u64>, now: f64) -> Vec<GpuProcess> {
        let mut processes = ProcessRows::default();
        let mut merge = |list| {
            let buffer = &mut *buffer;
            let entries = query.get(move |library, timer, handle| library.processes(timer, handle, list, buffer));
            let is_none = entries.as_ref().is_none_or(|entries| entries.iter().next().is_none());
            if let Some(entries) = entries {
                processes.merge_list(list, entries);
            }
            is_none
        };
        merge(ProcessList::Compute);
        for (list, empty_since) in [ProcessList::Graphics, ProcessList::Mps].into_iter().zip(&mut self.empty_since) {
            if empty_since.is_none_or(|read_at| now - read_at >= EMPTY_LIST_SECONDS) {
                *empty_since = merge(list).then_some(now);
            }
        }
        // Under MIG the driver refuses shares; without processes there is nobody to have one.
        if self.kind == DeviceKind::Gpu && !processes.rows.is_empty() {
            let from = self.utilization_window.query_start();
            let entries =
                query.get(move |library, timer, handle| library.process_utilization(timer, handle, from, buffer));
            if let Some(entries) = entries {
                self.utilization_window.merge(&mut processes, entries, now);
            }
        }
        processes.rows
    }
}
