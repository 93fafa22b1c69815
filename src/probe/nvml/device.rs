//! One GPU, or one MIG instance: its facts and its readings.

mod ask;
mod counters;
mod facts;
mod fields;
mod gpm;
mod health;
mod past;
mod plausible;

pub(crate) use fields::FieldIds;
pub(crate) use past::Past;

use self::ask::Asker;
use self::counters::Counters;
use self::fields::{FieldValues, Fields};
use self::gpm::Gpm;
use self::health::SlowReadings;
use self::plausible::{celsius, joules, megahertz, percent, seconds, watts};
use super::lists::{GpuProcess, ProcessRows, ShareWindow};
use super::raw::{Code, Handle, Library, ProcessList};
use super::watch::Watch;
use super::words;
use crate::wire::{GpuHealth, GpuInfo, GpuReading};
use nvml_wrapper_sys::bindings as sys;

/// Graphics processes and clients of MPS, of which most GPUs have none ever, are asked for again after so long where there
/// were none: each list is a call into the driver.
const NONE_IS_BELIEVED_SECONDS: f64 = 4.5;

/// A GPU as it is remembered between samples.
pub(crate) struct Device {
    pub(crate) info: GpuInfo,
    /// Where to ask for the handle again while there is none.
    index: u32,
    handle: Option<Handle>,
    role: Role,
    slow: SlowReadings,
    window: ShareWindow,
    /// When there was no graphics process, and no client of MPS.
    none: [Option<f64>; 2],
    counters: Counters,
    fields: Fields,
    gpm: Option<Gpm>,
    /// What the driver remembers goes with the first sample.
    past_is_due: bool,
}

/// What may be asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A GPU that is not divided.
    Whole,
    /// A GPU divided into instances: utilisation and processes are theirs.
    Parent,
    /// An instance: it has memory and processes, no sensors of its own.
    Instance,
}

/// What one sample of one device gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceSample {
    pub(crate) reading: GpuReading,
    /// What rarely changes, when it was asked for.
    pub(crate) health: Option<GpuHealth>,
    pub(crate) processes: Vec<GpuProcess>,
    /// What the driver remembers, with the first sample.
    pub(crate) past: Option<Past>,
}

impl DeviceSample {
    fn refused(code: Code) -> Self {
        let reading = GpuReading { error: Some(words::device_refused(code)), ..GpuReading::default() };
        Self { reading, ..Self::default() }
    }
}

impl Device {
    /// A GPU at its index. Without a handle (a GPU off the bus) it keeps its row, and each sample asks again.
    pub(crate) fn open(
        library: &Library,
        watch: &Watch,
        handle: Result<Handle, Code>,
        index: u32,
        ids: FieldIds,
    ) -> Self {
        let Ok(handle) = handle else {
            return Self::new(GpuInfo { index, ..GpuInfo::default() }, None, Role::Whole, ids, None);
        };
        let info = facts::whole(library, watch, handle, index);
        let role = if info.mig_enabled == Some(true) { Role::Parent } else { Role::Whole };
        let gpm = Gpm::judge(library, watch, handle, None);
        Self::new(info, Some(handle), role, ids, Some(gpm))
    }

    /// A MIG instance of `parent`.
    pub(crate) fn instance(library: &Library, watch: &Watch, handle: Handle, index: u32, parent: &Self) -> Self {
        let info = facts::instance(library, watch, handle, index, &parent.info);
        let gpm = parent.handle.zip(info.gpu_instance_id).map(|of| Gpm::judge(library, watch, handle, Some(of)));
        Self::new(info, Some(handle), Role::Instance, FieldIds::default(), gpm)
    }

    fn new(mut info: GpuInfo, handle: Option<Handle>, role: Role, ids: FieldIds, gpm: Option<Gpm>) -> Self {
        info.gpm = gpm.as_ref().and_then(Gpm::offer);
        let has_pcie = info.unified_memory != Some(true);
        Self {
            index: info.index,
            info,
            handle,
            role,
            slow: SlowReadings::default(),
            window: ShareWindow::default(),
            none: [None; 2],
            counters: Counters::default(),
            fields: Fields::new(ids, has_pcie),
            gpm,
            past_is_due: role != Role::Instance,
        }
    }

    pub(crate) fn handle(&self) -> Option<Handle> {
        self.handle
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The past was told before.
    pub(crate) fn forget_the_past(&mut self) {
        self.past_is_due = false;
    }

    /// Reads everything. `now` is monotonic, in seconds; `slow` asks for what rarely changes as well.
    pub(crate) fn sample(
        &mut self,
        library: &Library,
        watch: &Watch,
        words: &mut Vec<u64>,
        now: f64,
        slow: bool,
    ) -> DeviceSample {
        let handle = match self.handle.map_or_else(|| library.device(watch, self.index), Ok) {
            Ok(handle) => handle,
            Err(code) => return DeviceSample::refused(code),
        };
        self.handle = Some(handle);
        let mut ask = Asker::new(library, watch, handle);
        let mut sample = DeviceSample::default();
        self.read_memory(&mut ask, &mut sample.reading);
        if let Some(gpm) = &mut self.gpm {
            gpm.read(&mut ask, words, now, &mut sample.reading);
        }
        if self.role != Role::Instance {
            let fields = self.fields.read(&mut ask, slow);
            self.read_sensors(&mut ask, &mut sample.reading, now);
            self.read_fields(&ask, &fields, &mut sample.reading, now);
            if slow {
                self.slow = SlowReadings::read(&mut ask, self.info.unified_memory != Some(true));
                sample.health = Some(health::read(&mut ask, &self.info, &fields));
            }
            self.slow.write(&mut sample.reading, self.info.power_limit_watts);
        }
        if self.role != Role::Parent && !ask.is_lost() {
            sample.processes = self.read_processes(&mut ask, words, now);
        }
        if self.past_is_due && !ask.is_lost() {
            self.past_is_due = false;
            sample.past = past::read(&mut ask, words, self.role == Role::Parent);
        }
        match ask.verdict() {
            Some(code) => DeviceSample::refused(code),
            None => sample,
        }
    }

    fn read_memory(&self, ask: &mut Asker<'_>, reading: &mut GpuReading) {
        if self.info.unified_memory == Some(true) {
            return;
        }
        if let Some(memory) = ask.get(facts::memory) {
            reading.memory_used_bytes = Some(memory.used);
            reading.memory_reserved_bytes = memory.reserved;
        }
    }

    fn read_sensors(&mut self, ask: &mut Asker<'_>, reading: &mut GpuReading, now: f64) {
        if self.role == Role::Whole
            && let Some(utilization) = ask.get(Library::utilization)
        {
            reading.utilization_percent = ask.check(percent(utilization.gpu));
            reading.memory_utilization_percent = ask.check(percent(utilization.memory));
        }
        let core = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        reading.temperature_celsius = ask.get_kind_if(Library::temperature, core, celsius);
        reading.power_watts = ask.get_if(Library::power_usage, watts);
        let energy = ask.get(Library::total_energy);
        reading.energy_joules = energy.and_then(|energy| ask.check(joules(energy)));
        reading.power_mean_watts = self.counters.mean_watts(energy, now);
        let mut clock = |kind| ask.get_kind_if(Library::clock, kind, megahertz);
        reading.clock_graphics_mhz = clock(sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS);
        reading.clock_sm_mhz = clock(sys::nvmlClockType_enum_NVML_CLOCK_SM);
        reading.clock_memory_mhz = clock(sys::nvmlClockType_enum_NVML_CLOCK_MEM);
        // 32 is NVML_PSTATE_UNKNOWN.
        reading.performance_state =
            ask.get(Library::performance_state).and_then(|state| u8::try_from(state).ok().filter(|&state| state <= 15));
        reading.clocks_event_reasons = ask.get(Library::event_reasons).or_else(|| ask.get(Library::throttle_reasons));
        if self.role == Role::Whole {
            reading.encoder_percent = ask.get_if(Library::encoder, percent);
            reading.decoder_percent = ask.get_if(Library::decoder, percent);
        }
    }

    fn read_fields(&mut self, ask: &Asker<'_>, fields: &FieldValues, reading: &mut GpuReading, now: f64) {
        // Parts without the sensor say 0.
        let degrees = fields.memory_temperature.filter(|&degrees| degrees > 0);
        reading.memory_temperature_celsius =
            degrees.and_then(|degrees| ask.check(u32::try_from(degrees).ok().and_then(celsius)));
        let check = |time: Option<u64>| time.and_then(|time| ask.check(seconds(time)));
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

    fn read_processes(&mut self, ask: &mut Asker<'_>, words: &mut Vec<u64>, now: f64) -> Vec<GpuProcess> {
        let mut processes = ProcessRows::default();
        let mut merge = |list| {
            let words = &mut *words;
            let entries = ask.get(move |library, watch, handle| library.processes(watch, handle, list, words));
            let is_none = entries.as_ref().is_none_or(|entries| entries.iter().next().is_none());
            if let Some(entries) = entries {
                processes.merge_list(list, entries);
            }
            is_none
        };
        merge(ProcessList::Compute);
        for (list, none) in [ProcessList::Graphics, ProcessList::Mps].into_iter().zip(&mut self.none) {
            if none.is_none_or(|then| now - then >= NONE_IS_BELIEVED_SECONDS) {
                *none = merge(list).then_some(now);
            }
        }
        // Under MIG the driver refuses shares; without processes there is nobody to have one.
        if self.role == Role::Whole && !processes.rows.is_empty() {
            let from = self.window.ask_from();
            let entries =
                ask.get(move |library, watch, handle| library.process_utilization(watch, handle, from, words));
            if let Some(entries) = entries {
                self.window.merge(&mut processes, entries, now);
            }
        }
        processes.rows
    }
}
