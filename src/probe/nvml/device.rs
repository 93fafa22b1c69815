//! One GPU, or one MIG instance: its facts and its readings.

use super::lists::{GpuProcess, ShareWindow, merge_list};
use super::raw::{Code, Handle, Library, ProcessList};
use super::watch::Watch;
use super::words;
use crate::probe::numbers::{tenths, tenths_f32};
use crate::wire::{GpuHealth, GpuInfo, GpuReading, SafeText};
use nvml_wrapper_sys::bindings as sys;

/// More fans than any GPU has; a count above it is the driver's mistake.
const MAX_FANS: u32 = 16;

/// A GPU as it is remembered between samples.
pub(crate) struct Device {
    pub(crate) info: GpuInfo,
    /// Where to ask for the handle again while there is none.
    index: u32,
    handle: Option<Handle>,
    role: Role,
    slow: SlowReadings,
    window: ShareWindow,
    /// Energy in millijoules, and when it was read.
    energy: Option<(u64, f64)>,
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

/// Readings that rarely change, kept between the samples that ask for them.
#[derive(Debug, Clone, Copy, Default)]
struct SlowReadings {
    power_limit_milliwatts: Option<u32>,
    fan_percent: Option<u16>,
    pcie_generation: Option<u8>,
    pcie_width: Option<u8>,
}

/// What one sample of one device gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceSample {
    pub(crate) reading: GpuReading,
    /// What rarely changes, when it was asked for.
    pub(crate) health: Option<GpuHealth>,
    pub(crate) processes: Vec<GpuProcess>,
}

impl DeviceSample {
    fn refused(code: Code) -> Self {
        let reading = GpuReading { error: Some(words::device_refused(code)), ..GpuReading::default() };
        Self { reading, ..Self::default() }
    }
}

impl Device {
    /// A GPU at its index. Without a handle (a GPU off the bus) it keeps its row, and each sample asks again.
    pub(crate) fn open(library: &Library, watch: &Watch, index: u32) -> Self {
        let handle = library.device(watch, index).ok();
        let mut info = GpuInfo { index, ..GpuInfo::default() };
        let mut role = Role::Whole;
        if let Some(handle) = handle {
            info = whole_info(library, watch, handle, index);
            if info.mig_enabled == Some(true) {
                role = Role::Parent;
            }
        }
        Self::new(info, handle, role)
    }

    /// A MIG instance of `parent`.
    pub(crate) fn instance(library: &Library, watch: &Watch, handle: Handle, index: u32, parent: &GpuInfo) -> Self {
        let info = GpuInfo {
            index,
            uuid: text(library.uuid(watch, handle)),
            name: text(library.name(watch, handle)),
            memory_total_bytes: memory(library, watch, handle)
                .ok()
                .map(|memory| memory.total)
                .filter(|&total| total > 0),
            mig_parent_uuid: parent.uuid.clone(),
            ..GpuInfo::default()
        };
        Self::new(info, Some(handle), Role::Instance)
    }

    fn new(info: GpuInfo, handle: Option<Handle>, role: Role) -> Self {
        let index = info.index;
        Self { info, index, handle, role, slow: SlowReadings::default(), window: ShareWindow::default(), energy: None }
    }

    pub(crate) fn handle(&self) -> Option<Handle> {
        self.handle
    }

    pub(crate) fn role(&self) -> Role {
        self.role
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
        let mut ask = Asker { library, watch, handle, answered: false, lost: None, refusal: None };
        let mut reading = GpuReading::default();
        let mut health = None;
        self.read_memory(&mut ask, &mut reading);
        if ask.lost.is_none() && self.role != Role::Instance {
            self.read_sensors(&mut ask, &mut reading, now);
            if slow {
                self.slow = SlowReadings::read(&mut ask);
                health = Some(GpuHealth {
                    ecc_uncorrectable_volatile: ask.get(Library::ecc_uncorrected),
                    ..GpuHealth::default()
                });
            }
            self.slow.write(&mut reading, self.info.power_limit_watts);
        }
        let processes = if ask.lost.is_none() && self.role != Role::Parent {
            self.read_processes(&mut ask, words, now)
        } else {
            Vec::new()
        };
        match ask.verdict() {
            Some(code) => DeviceSample::refused(code),
            None => DeviceSample { reading, health, processes },
        }
    }

    fn read_memory(&self, ask: &mut Asker<'_>, reading: &mut GpuReading) {
        if self.info.unified_memory == Some(true) {
            return;
        }
        if let Some(memory) = ask.get(memory) {
            reading.memory_used_bytes = Some(memory.used);
            reading.memory_reserved_bytes = memory.reserved;
        }
    }

    fn read_sensors(&mut self, ask: &mut Asker<'_>, reading: &mut GpuReading, now: f64) {
        if self.role == Role::Whole
            && let Some(utilization) = ask.get(Library::utilization)
        {
            reading.utilization_percent = percent(utilization.gpu);
            reading.memory_utilization_percent = percent(utilization.memory);
        }
        reading.temperature_celsius =
            ask.get_kind(Library::temperature, sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU).map(celsius);
        reading.memory_temperature_celsius =
            ask.get(Library::memory_temperature).filter(|&degrees| degrees > 0).map(celsius);
        reading.power_watts = ask.get(Library::power_usage).map(watts);
        let energy = ask.get(Library::total_energy);
        reading.energy_joules = energy.map(|millijoules| tenths(millijoules as f64 / 1000.0));
        reading.power_mean_watts = energy.and_then(|energy| mean_watts(self.energy, (energy, now)));
        self.energy = energy.map(|energy| (energy, now));
        reading.clock_graphics_mhz = ask.get_kind(Library::clock, sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS);
        reading.clock_sm_mhz = ask.get_kind(Library::clock, sys::nvmlClockType_enum_NVML_CLOCK_SM);
        reading.clock_memory_mhz = ask.get_kind(Library::clock, sys::nvmlClockType_enum_NVML_CLOCK_MEM);
        // 32 is NVML_PSTATE_UNKNOWN.
        reading.performance_state =
            ask.get(Library::performance_state).and_then(|state| u8::try_from(state).ok().filter(|&state| state <= 15));
        reading.clocks_event_reasons = ask.get(Library::event_reasons).or_else(|| ask.get(Library::throttle_reasons));
        if self.role == Role::Whole {
            reading.encoder_percent = ask.get(Library::encoder).and_then(percent);
            reading.decoder_percent = ask.get(Library::decoder).and_then(percent);
        }
    }

    fn read_processes(&mut self, ask: &mut Asker<'_>, words: &mut Vec<u64>, now: f64) -> Vec<GpuProcess> {
        let mut processes = Vec::new();
        for list in [ProcessList::Compute, ProcessList::Graphics, ProcessList::Mps] {
            let words = &mut *words;
            let entries = ask.get(move |library, watch, handle| library.processes(watch, handle, list, words));
            if let Some(entries) = entries {
                merge_list(&mut processes, list, entries);
            }
        }
        // Under MIG the driver refuses shares; without processes there is nobody to have one.
        if self.role == Role::Whole && !processes.is_empty() {
            let from = self.window.ask_from();
            let entries =
                ask.get(move |library, watch, handle| library.process_utilization(watch, handle, from, words));
            if let Some(entries) = entries {
                self.window.merge(&mut processes, entries, now);
            }
        }
        processes
    }
}

impl SlowReadings {
    fn read(ask: &mut Asker<'_>) -> Self {
        Self {
            power_limit_milliwatts: ask.get(Library::enforced_power_limit),
            fan_percent: fan_percent(ask),
            pcie_generation: ask.get(Library::pcie_generation).and_then(|value| u8::try_from(value).ok()),
            pcie_width: ask.get(Library::pcie_width).and_then(|value| u8::try_from(value).ok()),
        }
    }

    fn write(&self, reading: &mut GpuReading, limit_of_inventory: Option<f32>) {
        reading.power_limit_watts =
            self.power_limit_milliwatts.map(watts).filter(|&limit| Some(limit) != limit_of_inventory);
        reading.fan_percent = self.fan_percent;
        reading.pcie_generation = self.pcie_generation;
        reading.pcie_width = self.pcie_width;
    }
}

/// Asks one device and remembers what its refusals mean for it as a whole.
struct Asker<'a> {
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

impl Asker<'_> {
    fn get<T>(&mut self, call: impl FnOnce(&Library, &Watch, Handle) -> Result<T, Code>) -> Option<T> {
        if self.lost.is_some() {
            return None;
        }
        match call(self.library, self.watch, self.handle) {
            Ok(value) => {
                self.answered = true;
                Some(value)
            }
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND | Code::NOT_FOUND) => None,
            Err(code @ (Code::GPU_IS_LOST | Code::RESET_REQUIRED)) => {
                self.lost = Some(code);
                None
            }
            Err(code) => {
                self.refusal = self.refusal.or(Some(code));
                None
            }
        }
    }

    fn get_kind<T>(
        &mut self,
        call: impl FnOnce(&Library, &Watch, Handle, u32) -> Result<T, Code>,
        kind: u32,
    ) -> Option<T> {
        self.get(|library, watch, handle| call(library, watch, handle, kind))
    }

    /// The error of the device as a whole: lost, or refused in everything. One reading that fails is only missing.
    fn verdict(&self) -> Option<Code> {
        self.lost.or(if self.answered { None } else { self.refusal })
    }
}

fn whole_info(library: &Library, watch: &Watch, handle: Handle, index: u32) -> GpuInfo {
    let memory = memory(library, watch, handle);
    // Parts that share the host's memory refuse this one call, or give nothing; any other error is only an error.
    let unified = matches!(memory, Err(Code::NOT_SUPPORTED)) || memory.is_ok_and(|memory| memory.total == 0);
    let clock = |kind| library.max_clock(watch, handle, kind).ok();
    let threshold = |kind| library.temperature_threshold(watch, handle, kind).ok().map(celsius);
    GpuInfo {
        index,
        uuid: text(library.uuid(watch, handle)),
        name: text(library.name(watch, handle)),
        pci_bus_id: text(library.pci_bus_id(watch, handle)),
        memory_total_bytes: memory.ok().map(|memory| memory.total).filter(|&total| total > 0),
        power_limit_watts: library.enforced_power_limit(watch, handle).ok().map(watts),
        power_limit_max_watts: library.max_power_limit(watch, handle).ok().map(watts),
        clock_graphics_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS),
        clock_sm_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_SM),
        clock_memory_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_MEM),
        temperature_slowdown_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        ),
        temperature_shutdown_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        ),
        mig_enabled: library.mig_mode(watch, handle).ok(),
        unified_memory: unified.then_some(true),
        ..GpuInfo::default()
    }
}

/// A GPU's memory, in bytes, from whichever version of the call the library has.
#[derive(Debug, Clone, Copy)]
struct Memory {
    total: u64,
    used: u64,
    reserved: Option<u64>,
}

fn memory(library: &Library, watch: &Watch, handle: Handle) -> Result<Memory, Code> {
    match library.memory_v2(watch, handle) {
        Ok(memory) => Ok(Memory { total: memory.total, used: memory.used, reserved: Some(memory.reserved) }),
        Err(code @ (Code::GPU_IS_LOST | Code::RESET_REQUIRED)) => Err(code),
        Err(_) => {
            let memory = library.memory_v1(watch, handle)?;
            Ok(Memory { total: memory.total, used: memory.used, reserved: None })
        }
    }
}

/// The fastest fan.
fn fan_percent(ask: &mut Asker<'_>) -> Option<u16> {
    let fans = ask.get(Library::fan_count).unwrap_or(0).min(MAX_FANS);
    let fastest = (0..fans).filter_map(|fan| ask.get_kind(Library::fan_speed_v2, fan)).max();
    fastest.or_else(|| ask.get(Library::fan_speed)).and_then(|percent| u16::try_from(percent).ok())
}

/// Mean power between two readings of the energy counter; none when it fell, as after a reload of the driver.
fn mean_watts(before: Option<(u64, f64)>, (energy, now): (u64, f64)) -> Option<f32> {
    let (energy_before, then) = before?;
    let millijoules = energy.checked_sub(energy_before)?;
    let seconds = now - then;
    (seconds > 0.05).then(|| tenths_f32(millijoules as f64 / 1000.0 / seconds))
}

fn watts(milliwatts: u32) -> f32 {
    tenths_f32(f64::from(milliwatts) / 1000.0)
}

/// The driver's number is unsigned, its meaning is not.
fn celsius(degrees: u32) -> i32 {
    degrees as i32
}

fn percent(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|&percent| percent <= 100)
}

fn text(bytes: Result<Vec<u8>, Code>) -> Option<SafeText> {
    bytes.ok().filter(|bytes| !bytes.is_empty()).map(|bytes| SafeText::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_power_is_energy_over_time() {
        assert_eq!(mean_watts(None, (5000, 1.0)), None);
        assert_eq!(mean_watts(Some((1000, 1.0)), (701_000, 3.0)), Some(350.0));
        assert_eq!(mean_watts(Some((9000, 1.0)), (10, 3.0)), None);
        assert_eq!(mean_watts(Some((9000, 1.0)), (9001, 1.0)), None);
    }

    #[test]
    fn absurd_numbers_are_no_readings() {
        assert_eq!((percent(100), percent(101), percent(u32::MAX)), (Some(100), None, None));
        assert_eq!((celsius(u32::MAX), watts(123_456)), (-1, 123.5));
    }
}
