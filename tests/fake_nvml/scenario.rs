//! The scenario of the fake driver: a JSON file, read again when it changes.

use serde::Deserialize;
use std::collections::BTreeMap;

/// All values of the fake driver. The driver does not support values that the scenario omits.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scenario {
    /// The `nvmlReturn_t` with which `nvmlInit_v2` fails.
    pub(crate) init_error: Option<u32>,
    /// For example `570.86.15`.
    pub(crate) driver_version: String,
    /// The CUDA version: 1000 * major + 10 * minor.
    pub(crate) cuda_version: i32,
    /// The file does not change any more, so the library does not check it again: a measurement must not include that
    /// check, because a real driver has no such file.
    pub(crate) is_final: bool,
    /// The oddities of this driver.
    pub(crate) quirks: Vec<Quirk>,
    /// Names of calls that hang while they are listed here. `NAME@1` is the call on device 1 only.
    pub(crate) hang: Vec<String>,
    /// Calls that fail, by name, with the `nvmlReturn_t`.
    pub(crate) errors: BTreeMap<String, u32>,
    /// The device count, if it differs from the number of `devices`.
    pub(crate) device_count: Option<u32>,
    /// Xid events in the order in which they happen. Waiting event sets receive those that a changed scenario adds.
    pub(crate) xids: Vec<XidFault>,
    /// The GPUs.
    pub(crate) devices: Vec<Device>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            init_error: None,
            driver_version: "570.86.15".to_owned(),
            cuda_version: 12_080,
            is_final: false,
            quirks: Vec::new(),
            hang: Vec::new(),
            errors: BTreeMap::new(),
            device_count: None,
            xids: Vec::new(),
            devices: Vec::new(),
        }
    }
}

/// An oddity that drivers have or could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Quirk {
    /// Version 3 of the process lists has entries of 32 bytes, as in early R535 drivers.
    EarlyR535,
    /// Strings fill their buffer without a NUL terminator.
    UnterminatedTexts,
    /// Lists claim more entries than the buffer holds.
    OverstatedCounts,
    /// Process utilization samples contain unknown pids and values out of range.
    JunkSamples,
    /// All bits of every number and structure are set, and GPM metrics are NaN or out of range.
    GarbageNumbers,
    /// Field values have unknown types and the return code `NVML_SUCCESS`.
    GarbageTypes,
    /// Buffered samples have invalid timestamps and values.
    JunkPast,
    /// The device count differs in each call.
    FlickeringCount,
    /// Events refer to an unknown device.
    StrayEvents,
}

/// An Xid event of a GPU.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct XidFault {
    /// Index in `devices`.
    pub(crate) gpu: usize,
    pub(crate) xid: u64,
    #[serde(default)]
    pub(crate) gpu_instance_id: Option<u32>,
}

/// GPM metrics. Absent ones are not supported.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Gpm {
    pub(crate) sm_activity_percent: Option<Value>,
    pub(crate) sm_occupancy_percent: Option<Value>,
    pub(crate) tensor_activity_percent: Option<Value>,
    pub(crate) dram_bandwidth_percent: Option<Value>,
    pub(crate) pcie_receive_bytes_per_second: Option<Value>,
    pub(crate) pcie_transmit_bytes_per_second: Option<Value>,
    pub(crate) nvlink_receive_bytes_per_second: Option<Value>,
    pub(crate) nvlink_transmit_bytes_per_second: Option<Value>,
}

/// Numbers of retired pages.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetiredPages {
    pub(crate) single_bit: u32,
    pub(crate) double_bit: u32,
    pub(crate) pending: bool,
}

/// Numbers of remapped memory rows.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RemappedRows {
    pub(crate) correctable: u32,
    pub(crate) uncorrectable: u32,
    pub(crate) pending: bool,
    pub(crate) failed: bool,
}

/// One GPU or MIG instance. Names and units are those of the wire protocol.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) pci_bus_id: Option<String>,
    pub(crate) memory_total_bytes: Option<u64>,
    pub(crate) memory_used_bytes: Option<Value>,
    pub(crate) memory_reserved_bytes: u64,
    pub(crate) utilization_percent: Option<Value>,
    pub(crate) memory_utilization_percent: Option<Value>,
    pub(crate) temperature_celsius: Option<Value>,
    pub(crate) memory_temperature_celsius: Option<Value>,
    pub(crate) temperature_slowdown_celsius: Option<u32>,
    pub(crate) temperature_shutdown_celsius: Option<u32>,
    pub(crate) power_watts: Option<Value>,
    pub(crate) power_limit_watts: Option<f64>,
    pub(crate) power_limit_max_watts: Option<f64>,
    /// The energy counter at boot; it then integrates `power_watts`.
    pub(crate) energy_joules: Option<f64>,
    pub(crate) clock_graphics_mhz: Option<Value>,
    pub(crate) clock_sm_mhz: Option<Value>,
    pub(crate) clock_memory_mhz: Option<Value>,
    pub(crate) clock_graphics_max_mhz: Option<u32>,
    pub(crate) clock_sm_max_mhz: Option<u32>,
    pub(crate) clock_memory_max_mhz: Option<u32>,
    pub(crate) fan_percent: Option<Value>,
    pub(crate) performance_state: Option<u32>,
    pub(crate) clocks_event_reasons: Option<u64>,
    pub(crate) encoder_percent: Option<Value>,
    pub(crate) decoder_percent: Option<Value>,
    pub(crate) pcie_generation: Option<u32>,
    pub(crate) pcie_width: Option<u32>,
    /// Default: `pcie_generation`.
    pub(crate) pcie_generation_max: Option<u32>,
    /// Default: `pcie_width`.
    pub(crate) pcie_width_max: Option<u32>,
    /// The byte counter integrates this rate.
    pub(crate) pcie_receive_bytes_per_second: Option<Value>,
    pub(crate) pcie_transmit_bytes_per_second: Option<Value>,
    /// Whether each link is up.
    pub(crate) nvlinks: Vec<bool>,
    /// Sum over all links; the KiB counter integrates this rate.
    pub(crate) nvlink_receive_bytes_per_second: Option<Value>,
    pub(crate) nvlink_transmit_bytes_per_second: Option<Value>,
    pub(crate) gpm: Option<Gpm>,
    pub(crate) power_violation_seconds: Option<f64>,
    pub(crate) thermal_violation_seconds: Option<f64>,
    pub(crate) power_brake_seconds: Option<f64>,
    pub(crate) memory_temperature_max_celsius: Option<u32>,
    pub(crate) ecc_corrected_volatile: Option<u64>,
    pub(crate) ecc_uncorrectable_volatile: Option<u64>,
    pub(crate) ecc_corrected_aggregate: Option<u64>,
    pub(crate) ecc_uncorrectable_aggregate: Option<u64>,
    pub(crate) pcie_replays: Option<u64>,
    pub(crate) nvlink_crc_errors: Option<u64>,
    pub(crate) nvlink_replays: Option<u64>,
    pub(crate) nvlink_recoveries: Option<u64>,
    pub(crate) retired_pages: Option<RetiredPages>,
    pub(crate) remapped_rows: Option<RemappedRows>,
    pub(crate) recovery_action: Option<u32>,
    pub(crate) power_smoothing: Option<bool>,
    pub(crate) persistence_mode: Option<bool>,
    pub(crate) compute_mode: Option<u32>,
    pub(crate) bar1_total_bytes: Option<u64>,
    pub(crate) bar1_used_bytes: Option<u64>,
    /// Default: the index in `devices`.
    pub(crate) minor_number: Option<u32>,
    pub(crate) gpu_instance_id: Option<u32>,
    pub(crate) compute_instance_id: Option<u32>,
    /// Age of the oldest buffered sample of power and utilization.
    pub(crate) past_seconds: Option<f64>,
    /// Whether the GPU supports Xid events.
    pub(crate) xid_events: bool,
    /// Absent: a GPU without MIG.
    pub(crate) mig_enabled: Option<bool>,
    /// The MIG slots; `null` is an empty one.
    pub(crate) mig: Vec<Option<Device>>,
    pub(crate) processes: Vec<Process>,
    /// Every call on this GPU fails with this code, except the one that returns its handle.
    pub(crate) error: Option<u32>,
    /// The call that returns the handle fails with this code.
    pub(crate) handle_error: Option<u32>,
}

/// A process on a GPU.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// `C`, `G`, `C+G` or `M`.
    #[serde(default = "compute")]
    pub(crate) kind: String,
    /// Absent: the driver reports no memory for this process.
    #[serde(default)]
    pub(crate) memory_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) sm_percent: Option<Value>,
    #[serde(default)]
    pub(crate) memory_percent: Option<Value>,
}

fn compute() -> String {
    "C".to_owned()
}

/// A value that is constant or changes with time.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub(crate) enum Value {
    /// A constant.
    Constant(f64),
    /// A triangle wave between two numbers.
    Ramp {
        from: f64,
        to: f64,
        /// Period of the wave.
        period_seconds: f64,
    },
    /// A sawtooth wave: the value encodes the time of the reading.
    Sawtooth { from: f64, to: f64, restart_seconds: f64 },
}

impl Value {
    /// Returns the value at a time in seconds.
    pub(crate) fn at(self, time: f64) -> f64 {
        match self {
            Self::Constant(value) => value,
            Self::Ramp { from, to, period_seconds } => {
                let phase = (time / period_seconds).rem_euclid(1.0);
                from + (to - from) * (1.0 - (2.0 * phase - 1.0).abs())
            }
            Self::Sawtooth { from, to, restart_seconds } => {
                from + (to - from) * (time / restart_seconds).rem_euclid(1.0)
            }
        }
    }

    /// Returns the integral from 0 to a time in seconds.
    pub(crate) fn integral(self, time: f64) -> f64 {
        match self {
            Self::Constant(value) => value * time,
            Self::Ramp { from, to, period_seconds } => {
                let periods = (time / period_seconds).floor();
                let phase = time / period_seconds - periods;
                // The integral of the rising half is quadratic in the phase; the falling half mirrors it.
                let rise = |phase: f64| from * phase + (to - from) * phase * phase;
                let whole = f64::midpoint(from, to);
                let part = if phase <= 0.5 { rise(phase) } else { whole - rise(1.0 - phase) };
                period_seconds * (periods * whole + part)
            }
            Self::Sawtooth { from, to, restart_seconds } => {
                let periods = (time / restart_seconds).floor();
                let phase = time / restart_seconds - periods;
                let part = from * phase + (to - from) * phase * phase / 2.0;
                restart_seconds * (periods * f64::midpoint(from, to) + part)
            }
        }
    }
}
