//! One GPU or MIG instance: its facts, readings, health and processes.

use super::call_monitor::{CallTimer, DriverAnomaly};
use super::device_query::{
    DeviceQuery, Field, FieldIds, FieldValues, Fields, bytes, bytes_per_second, celsius, error_count, fan_percent,
    joules, link, megahertz, percent, recovery_action, seconds, watts,
};
use super::ffi::{Handle, Library, ReturnCode};
use super::gpm::Gpm;
use super::gpu_processes::{GpuProcess, ProcessRows, UtilizationWindow};
use super::lists::{Entries, ProcessList, sample_value};
use super::messages;
use crate::probe::decimal::round_to_tenth_f32;
use crate::wire::{ComputeMode, GpuHealth, GpuInfo, GpuReading, SafeText};
use nvml_wrapper_sys::bindings as sys;
use std::time::{SystemTime, UNIX_EPOCH};

/// How long an empty list of graphics processes or MPS clients is not read again. Most GPUs never have any, and each
/// list is a call into the driver.
const EMPTY_LIST_SECONDS: f64 = 4.5;

/// A GPU or MIG instance with the state kept between samples.
pub(crate) struct Device {
    pub(crate) info: GpuInfo,
    /// The NVML index, with which a missing handle is requested again.
    index: u32,
    handle: Option<Handle>,
    kind: DeviceKind,
    slow: SlowReadings,
    utilization_window: UtilizationWindow,
    /// When the lists of graphics processes and MPS clients were last empty.
    empty_since: [Option<f64>; 2],
    counters: Counters,
    fields: Fields,
    gpm: Option<Gpm>,
    /// Whether the next sample includes the samples that the driver buffered.
    buffered_samples_due: bool,
}

/// The readings that a device supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// A GPU without MIG.
    Gpu,
    /// A GPU in MIG mode. Its instances have the utilization and the processes.
    MigParent,
    /// A MIG instance. It has memory and processes, but no sensors.
    MigInstance,
}

/// The result of sampling one device.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceSample {
    pub(crate) reading: GpuReading,
    /// Set only in slow samples.
    pub(crate) health: Option<GpuHealth>,
    pub(crate) processes: Vec<GpuProcess>,
    /// Set only in the first sample.
    pub(crate) buffered_samples: Option<BufferedSamples>,
}

impl DeviceSample {
    fn refused(code: ReturnCode) -> Self {
        let reading = GpuReading { error: Some(messages::device_error(code)), ..GpuReading::default() };
        Self { reading, ..Self::default() }
    }
}

impl Device {
    /// Opens a GPU by its index. A GPU without a handle (off the bus) keeps its row, and each sample requests the
    /// handle again.
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
        let info = gpu_info(library, timer, handle, index);
        let kind = if info.mig_enabled == Some(true) { DeviceKind::MigParent } else { DeviceKind::Gpu };
        let gpm = Gpm::probe_support(library, timer, handle, None);
        Self::new(info, Some(handle), kind, ids, Some(gpm))
    }

    /// Opens a MIG instance of `parent`.
    pub(crate) fn open_mig_instance(
        library: &Library,
        timer: &CallTimer,
        handle: Handle,
        index: u32,
        parent: &Self,
    ) -> Self {
        let info = mig_instance_info(library, timer, handle, index, &parent.info);
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

    /// Leaves the buffered samples out because an earlier session reported them.
    pub(crate) fn skip_buffered_samples(&mut self) {
        self.buffered_samples_due = false;
    }

    /// Reads the device. `now` is monotonic, in seconds; `slow` includes readings that rarely change.
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
                sample.health = Some(read_health(&mut query, &self.info, &fields));
            }
            self.slow.write(&mut sample.reading, self.info.power_limit_watts);
        }
        if self.kind != DeviceKind::MigParent && !query.is_lost() {
            (sample.processes, sample.reading.processes_unknown) = self.read_processes(&mut query, buffer, now);
        }
        if self.buffered_samples_due && !query.is_lost() {
            self.buffered_samples_due = false;
            sample.buffered_samples = read_buffered_samples(&mut query, buffer, self.kind == DeviceKind::MigParent);
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
        if let Some(memory) = query.get(memory_info) {
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
        // GPUs without the sensor return 0.
        let degrees = fields.get(Field::MemoryTemperature).filter(|&degrees| degrees > 0);
        reading.memory_temperature_celsius =
            degrees.and_then(|degrees| query.check(u32::try_from(degrees).ok().and_then(celsius)));
        let check = |time: Option<u64>| time.and_then(|time| query.check(seconds(time)));
        reading.power_violation_seconds = check(fields.get(Field::PowerViolation));
        reading.thermal_violation_seconds = check(fields.get(Field::ThermalViolation));
        reading.power_brake_seconds = check(fields.get(Field::PowerBrake));
        // GPM rates take precedence: the PCIe fields may wrap.
        let [receive, transmit] =
            self.counters.pcie(fields.get(Field::PcieReceive), fields.get(Field::PcieTransmit), now);
        reading.pcie_receive_bytes_per_second = reading.pcie_receive_bytes_per_second.or(receive);
        reading.pcie_transmit_bytes_per_second = reading.pcie_transmit_bytes_per_second.or(transmit);
        let [receive, transmit] =
            self.counters.nvlink(fields.get(Field::NvlinkReceive), fields.get(Field::NvlinkTransmit), now);
        reading.nvlink_receive_bytes_per_second = receive.or(reading.nvlink_receive_bytes_per_second);
        reading.nvlink_transmit_bytes_per_second = transmit.or(reading.nvlink_transmit_bytes_per_second);
    }

    /// Returns the processes, and `Some(true)` if the driver refused the list of compute processes.
    fn read_processes(
        &mut self,
        query: &mut DeviceQuery<'_>,
        buffer: &mut Vec<u64>,
        now: f64,
    ) -> (Vec<GpuProcess>, Option<bool>) {
        let mut processes = ProcessRows::default();
        // Whether the list is empty; `None` if the driver refused it.
        let mut merge = |list| {
            let buffer = &mut *buffer;
            let entries = query.get(move |library, timer, handle| library.processes(timer, handle, list, buffer))?;
            processes.merge_list(list, entries);
            Some(entries.iter().next().is_none())
        };
        let is_unknown = merge(ProcessList::Compute).is_none();
        for (list, empty_since) in [ProcessList::Graphics, ProcessList::Mps].into_iter().zip(&mut self.empty_since) {
            if empty_since.is_none_or(|read_at| now - read_at >= EMPTY_LIST_SECONDS) {
                *empty_since = (merge(list) != Some(false)).then_some(now);
            }
        }
        // In MIG mode the driver refuses process utilization.
        if self.kind == DeviceKind::Gpu && !processes.rows.is_empty() {
            let from = self.utilization_window.query_start();
            let entries =
                query.get(move |library, timer, handle| library.process_utilization(timer, handle, from, buffer));
            if let Some(entries) = entries {
                self.utilization_window.merge(&mut processes, entries, now);
            }
        }
        (processes.rows, is_unknown.then_some(true))
    }
}

/// Above the number of links of any GPU (nvml.h: 36). The wire has one bit per link.
const MAX_LINKS: u8 = 64;

/// The memory of a GPU, in bytes.
#[derive(Debug, Clone, Copy)]
struct Memory {
    total: u64,
    used: u64,
    reserved: Option<u64>,
}

impl Memory {
    /// No GPU has a petabyte. Some drivers count the reserved part twice, so used memory may exceed the total, but not
    /// by more than a factor of two.
    fn is_in_range(self) -> bool {
        bytes(self.total).is_some() && self.used / 2 <= self.total && self.reserved.unwrap_or(0) <= self.total
    }
}

/// Reads the memory of a GPU, with version 2 of the call or else version 1. Values out of range give
/// [`ReturnCode::UNKNOWN`], so that they are not taken for unified memory.
fn memory_info(library: &Library, timer: &CallTimer, handle: Handle) -> Result<Memory, ReturnCode> {
    let memory = match library.memory_v2(timer, handle) {
        Ok(memory) => Memory { total: memory.total, used: memory.used, reserved: Some(memory.reserved) },
        Err(code @ (ReturnCode::GPU_IS_LOST | ReturnCode::RESET_REQUIRED)) => return Err(code),
        Err(_) => {
            let memory = library.memory_v1(timer, handle)?;
            Memory { total: memory.total, used: memory.used, reserved: None }
        }
    };
    if memory.is_in_range() {
        return Ok(memory);
    }
    library.anomalies().add(DriverAnomaly::ImplausibleReading);
    Err(ReturnCode::UNKNOWN)
}

/// Reads the facts of a GPU, with or without MIG.
fn gpu_info(library: &Library, timer: &CallTimer, handle: Handle, index: u32) -> GpuInfo {
    let memory = memory_info(library, timer, handle);
    // GPUs with unified memory return NOT_SUPPORTED or a total of 0. Any other error is only an error.
    let unified = matches!(memory, Err(ReturnCode::NOT_SUPPORTED)) || memory.is_ok_and(|memory| memory.total == 0);
    let clock = |kind| library.max_clock(timer, handle, kind).ok().and_then(megahertz);
    let threshold = |kind| library.temperature_threshold(timer, handle, kind).ok().and_then(celsius);
    // The PCIe readings of GPUs with unified memory describe no real link.
    let pcie = |value: Result<u32, ReturnCode>| value.ok().and_then(link).filter(|_| !unified);
    GpuInfo {
        index,
        uuid: text(library.uuid(timer, handle)),
        name: text(library.name(timer, handle)),
        pci_bus_id: text(library.pci_bus_id(timer, handle)),
        memory_total_bytes: memory.ok().map(|memory| memory.total).filter(|&total| total > 0),
        power_limit_watts: library.enforced_power_limit(timer, handle).ok().and_then(watts),
        power_limit_max_watts: library.max_power_limit(timer, handle).ok().and_then(watts),
        clock_graphics_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS),
        clock_sm_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_SM),
        clock_memory_max_mhz: clock(sys::nvmlClockType_enum_NVML_CLOCK_MEM),
        temperature_slowdown_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        ),
        temperature_shutdown_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        ),
        memory_temperature_max_celsius: threshold(
            sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
        ),
        mig_enabled: library.mig_mode(timer, handle).ok(),
        bar1_total_bytes: library
            .bar1(timer, handle)
            .ok()
            .and_then(|bar1| bytes(bar1.bar1Total).filter(|&total| total > 0)),
        pcie_generation_max: pcie(library.pcie_generation_max(timer, handle)),
        pcie_width_max: pcie(library.pcie_width_max(timer, handle)),
        // Device minor numbers have 20 bits in the kernel.
        minor_number: library.minor_number(timer, handle).ok().filter(|&number| number < 1 << 20),
        nvlink_count: nvlink_count(library, timer, handle),
        unified_memory: unified.then_some(true),
        ..GpuInfo::default()
    }
}

/// Reads the facts of a MIG instance of `parent`.
fn mig_instance_info(library: &Library, timer: &CallTimer, handle: Handle, index: u32, parent: &GpuInfo) -> GpuInfo {
    let total = memory_info(library, timer, handle).ok().map(|memory| memory.total).filter(|&total| total > 0);
    let id = |id: Result<u32, ReturnCode>| id.ok().filter(|&id| id != u32::MAX);
    GpuInfo {
        index,
        uuid: text(library.uuid(timer, handle)),
        name: text(library.name(timer, handle)),
        memory_total_bytes: total,
        mig_parent_uuid: parent.uuid.clone(),
        gpu_instance_id: id(library.gpu_instance_id(timer, handle)),
        compute_instance_id: id(library.compute_instance_id(timer, handle)),
        ..GpuInfo::default()
    }
}

/// Counts the NVLinks. They are numbered from 0; the first one that does not answer does not exist.
fn nvlink_count(library: &Library, timer: &CallTimer, handle: Handle) -> Option<u8> {
    let answers = |link: &u8| library.nvlink_state(timer, handle, u32::from(*link)).is_ok();
    let count = (0..MAX_LINKS).take_while(answers).count() as u8;
    (count > 0).then_some(count)
}

fn text(bytes: Result<Vec<u8>, ReturnCode>) -> Option<SafeText> {
    bytes.ok().filter(|bytes| !bytes.is_empty()).map(|bytes| SafeText::from_bytes(&bytes))
}

/// Above the number of fans of any GPU.
const MAX_FANS: u32 = 16;

/// Readings that are part of every sample but are read only in slow ones.
#[derive(Debug, Clone, Copy, Default)]
struct SlowReadings {
    power_limit_watts: Option<f32>,
    fan_percent: Option<u16>,
    pcie_generation: Option<u8>,
    pcie_width: Option<u8>,
}

impl SlowReadings {
    fn read(query: &mut DeviceQuery<'_>, has_pcie: bool) -> Self {
        let mut slow = Self {
            power_limit_watts: query.get_if(Library::enforced_power_limit, watts),
            fan_percent: fastest_fan_percent(query),
            ..Self::default()
        };
        if has_pcie {
            slow.pcie_generation = query.get(Library::pcie_generation).and_then(link);
            slow.pcie_width = query.get(Library::pcie_width).and_then(link);
        }
        slow
    }

    fn write(&self, reading: &mut GpuReading, inventory_limit: Option<f32>) {
        reading.power_limit_watts = self.power_limit_watts.filter(|&limit| Some(limit) != inventory_limit);
        reading.fan_percent = self.fan_percent;
        reading.pcie_generation = self.pcie_generation;
        reading.pcie_width = self.pcie_width;
    }
}

/// Reads the health of a GPU. `fields` must come from a slow read.
fn read_health(query: &mut DeviceQuery<'_>, info: &GpuInfo, fields: &FieldValues) -> GpuHealth {
    let mut ecc = |kind, period| {
        query.get_if(|library, timer, handle| library.ecc_errors(timer, handle, kind, period), error_count)
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
        recovery_action: fields.get(Field::RecoveryAction).map(recovery_action),
        power_smoothing: fields.get(Field::PowerSmoothing).map(|enabled| enabled != 0),
        persistence_mode: query.get(Library::persistence_mode).map(is_enabled),
        compute_mode: query.get(Library::compute_mode).map(compute_mode),
        nvlinks_active: nvlinks_active(query, info.nvlink_count),
        bar1_used_bytes: query.get_if(Library::bar1, |bar1| bytes(bar1.bar1Used)),
        pcie_replays: fields.get(Field::PcieReplays).and_then(error_count),
        nvlink_crc_errors: fields.get(Field::NvlinkCrcErrors).and_then(error_count),
        nvlink_replays: fields.get(Field::NvlinkReplays).and_then(error_count),
        nvlink_recoveries: fields.get(Field::NvlinkRecoveries).and_then(error_count),
        ..GpuHealth::default()
    };
    // A GPU supports either row remapping or page retirement.
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

/// Returns a bit mask of the NVLinks that are up, or `None` if any of them does not answer.
fn nvlinks_active(query: &mut DeviceQuery<'_>, count: Option<u8>) -> Option<u64> {
    (0..u32::from(count?)).try_fold(0, |active, link| {
        let is_up = is_enabled(query.get_kind(Library::nvlink_state, link)?);
        Some(active | u64::from(is_up) << link)
    })
}

/// Returns the speed of the fastest fan.
fn fastest_fan_percent(query: &mut DeviceQuery<'_>) -> Option<u16> {
    let fans = query.get(Library::fan_count).unwrap_or(0).min(MAX_FANS);
    let speeds = (0..fans).filter_map(|fan| query.get_kind_if(Library::fan_speed_v2, fan, fan_percent));
    match speeds.max() {
        Some(fastest) => Some(fastest),
        None => query.get_if(Library::fan_speed, fan_percent),
    }
}

/// The minimum time between two readings for a rate.
const MIN_RATE_SECONDS: f64 = 0.05;

/// The last value of a counter and the time of its reading in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Counter(Option<(u64, f64)>);

impl Counter {
    /// Returns the mean rate per second since the previous reading. `None` at the first reading, and when the counter
    /// fell because it wrapped or the driver was reloaded.
    fn rate(&mut self, value: Option<u64>, now: f64) -> Option<f64> {
        // Drivers report an unavailable counter as all ones.
        let value = value.filter(|&value| value != u64::MAX);
        let previous = std::mem::replace(&mut self.0, value.map(|value| (value, now)));
        let ((value, _), (previous_value, previous_time)) = self.0.zip(previous)?;
        let seconds = now - previous_time;
        (seconds > MIN_RATE_SECONDS).then_some(())?;
        Some(value.checked_sub(previous_value)? as f64 / seconds)
    }
}

/// The counters of one GPU.
#[derive(Debug, Default)]
struct Counters {
    energy_millijoules: Counter,
    pcie_receive: Counter,
    pcie_transmit: Counter,
    nvlink_receive: Counter,
    nvlink_transmit: Counter,
}

/// NVLink is counted in KiB (nvml.h).
const KIB: f64 = 1024.0;

impl Counters {
    /// Returns the mean power since the previous reading, in watts.
    fn mean_watts(&mut self, millijoules: Option<u64>, now: f64) -> Option<f32> {
        let watts = self.energy_millijoules.rate(millijoules, now)? / 1000.0;
        (watts <= 100_000.0).then(|| round_to_tenth_f32(watts))
    }

    /// Returns the PCIe receive and transmit rates in bytes per second, from counters in bytes.
    fn pcie(&mut self, receive: Option<u64>, transmit: Option<u64>, now: f64) -> [Option<f64>; 2] {
        [self.pcie_receive.rate(receive, now), self.pcie_transmit.rate(transmit, now)]
            .map(|rate| rate.and_then(bytes_per_second))
    }

    /// Returns the NVLink receive and transmit rates in bytes per second, summed over all links, from counters in KiB.
    fn nvlink(&mut self, receive: Option<u64>, transmit: Option<u64>, now: f64) -> [Option<f64>; 2] {
        [self.nvlink_receive.rate(receive, now), self.nvlink_transmit.rate(transmit, now)]
            .map(|rate| rate.and_then(|rate| bytes_per_second(rate * KIB)))
    }
}

/// The length of the buffered history, in seconds.
const MAX_SECONDS: usize = 60;
const MICROS: u64 = 1_000_000;
/// A sample older than this is not recent.
const MAX_AGE_MICROS: u64 = 120 * MICROS;
/// The tolerated difference between the clocks of the driver and the host.
const MAX_FUTURE_MICROS: u64 = 2 * MICROS;

/// The samples that the driver buffered before the first sample: one value per second, oldest first. All lists end at
/// the same time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BufferedSamples {
    /// The time between the end of the lists and the sample.
    pub(crate) age_seconds: f64,
    pub(crate) utilization_percent: Vec<Option<u8>>,
    pub(crate) memory_utilization_percent: Vec<Option<u8>>,
    pub(crate) power_watts: Vec<Option<f32>>,
}

/// Timestamps in microseconds, and values.
type Samples = Vec<(u64, u32)>;

/// Reads the buffered power and utilization samples. Returns `None` if there are none.
fn read_buffered_samples(
    query: &mut DeviceQuery<'_>,
    buffer: &mut Vec<u64>,
    is_mig_parent: bool,
) -> Option<BufferedSamples> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_micros() as u64;
    let mut list = |kind| {
        let buffer = &mut *buffer;
        let read = query.get(move |library, timer, handle| library.samples(timer, handle, kind, buffer));
        read.map_or_else(Vec::new, |(entries, value_type)| valid_samples(entries, value_type, now))
    };
    let power = list(sys::nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES);
    // In MIG mode the driver refuses the utilization of the GPU.
    let [utilization, memory] = if is_mig_parent {
        [Vec::new(), Vec::new()]
    } else {
        [
            list(sys::nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES),
            list(sys::nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES),
        ]
    };
    downsample(&power, &utilization, &memory, now)
}

fn valid_samples(entries: Entries<'_>, value_type: u32, now: u64) -> Samples {
    let pairs = entries.iter().filter_map(|entry| Some((*entry.first()?, *entry.get(1)?)));
    let recent = pairs.filter(|&(timestamp, _)| {
        timestamp <= now.saturating_add(MAX_FUTURE_MICROS) && timestamp >= now.saturating_sub(MAX_AGE_MICROS)
    });
    recent
        .filter_map(|(timestamp, word)| Some((timestamp, u32::try_from(sample_value(value_type, word)?).ok()?)))
        .collect()
}

fn downsample(power: &Samples, utilization: &Samples, memory: &Samples, now: u64) -> Option<BufferedSamples> {
    let end = [power, utilization, memory].into_iter().flatten().map(|&(timestamp, _)| timestamp).max()?;
    Some(BufferedSamples {
        age_seconds: now.saturating_sub(end) as f64 / MICROS as f64,
        utilization_percent: newest_per_second(utilization, end, percent),
        memory_utilization_percent: newest_per_second(memory, end, percent),
        power_watts: newest_per_second(power, end, watts),
    })
}

/// Returns the newest sample of each second before `end`, oldest second first. Drivers do not guarantee an order.
fn newest_per_second<T: Copy>(samples: &Samples, end: u64, value: impl Fn(u32) -> Option<T>) -> Vec<Option<T>> {
    let mut newest: Vec<Option<(u64, T)>> = Vec::new();
    for &(timestamp, number) in samples {
        let age_seconds = ((end - timestamp) / MICROS) as usize;
        let Some(value) = value(number).filter(|_| age_seconds < MAX_SECONDS) else { continue };
        if newest.len() <= age_seconds {
            newest.resize(age_seconds + 1, None);
        }
        if newest[age_seconds].is_none_or(|(known, _)| known < timestamp) {
            newest[age_seconds] = Some((timestamp, value));
        }
    }
    newest.into_iter().rev().map(|sample| sample.map(|(_, value)| value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_increase_per_second() {
        let mut counter = Counter::default();
        assert_eq!(counter.rate(Some(1000), 1.0), None);
        assert_eq!(counter.rate(Some(5000), 3.0), Some(2000.0));
        assert_eq!(counter.rate(Some(5001), 3.01), None, "too soon");
        assert_eq!(counter.rate(Some(10), 5.0), None, "it fell");
        assert_eq!(counter.rate(Some(12), 6.0), Some(2.0));
        assert_eq!(counter.rate(None, 7.0), None);
        assert_eq!(counter.rate(Some(99), 8.0), None, "nothing to compare with");
        counter.rate(Some(u64::MAX), 9.0);
        assert_eq!(counter.rate(Some(u64::MAX), 10.0), None, "no count");
    }

    #[test]
    fn rates_have_their_units() {
        let mut counters = Counters::default();
        counters.mean_watts(Some(1000), 1.0);
        assert_eq!(counters.mean_watts(Some(701_000), 3.0), Some(350.0));
        assert_eq!(counters.mean_watts(Some(u64::MAX), 5.0), None);
        counters.nvlink(Some(1), Some(10), 1.0);
        assert_eq!(counters.nvlink(Some(3), Some(10), 2.0), [Some(2048.0), Some(0.0)]);
        counters.pcie(Some(1), None, 1.0);
        assert_eq!(counters.pcie(Some(2001), None, 2.0), [Some(2000.0), None]);
    }

    const NOW: u64 = 1_800_000_000_000_000;

    #[test]
    fn each_second_keeps_its_newest_sample() {
        let at = |seconds: f64| NOW - (seconds * 1e6) as u64;
        let power = vec![(at(0.5), 300_000), (at(0.9), 200_000), (at(1.7), 100_000), (at(3.6), 50_000)];
        let utilization = vec![(at(1.0), 97), (at(1.1), 101)];
        let buffered = downsample(&power, &utilization, &Vec::new(), NOW).expect("a past");
        assert_eq!(buffered.power_watts, [Some(50.0), None, Some(100.0), Some(300.0)]);
        assert_eq!(buffered.utilization_percent, [Some(97)]);
        assert_eq!((buffered.memory_utilization_percent.len(), buffered.age_seconds), (0, 0.5));
    }

    #[test]
    fn a_minute_is_kept_and_invalid_samples_are_dropped() {
        let minutes: Samples = (0..300).map(|second| (NOW - second * MICROS, 7)).collect();
        assert_eq!(newest_per_second(&minutes, NOW, percent).len(), MAX_SECONDS);
        let buffer = [u64::MAX, 5, NOW - 1, 5, 0, 5, NOW + 60 * MICROS, 5, NOW, u64::from(u32::MAX)];
        assert_eq!(valid_samples(Entries { buffer: &buffer, stride: 2 }, 1, NOW), [(NOW - 1, 5), (NOW, u32::MAX)]);
        assert_eq!(valid_samples(Entries { buffer: &buffer, stride: 2 }, 99, NOW), []);
        assert_eq!(downsample(&Vec::new(), &Vec::new(), &Vec::new(), NOW), None);
    }
}
