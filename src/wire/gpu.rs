//! GPUs: fixed facts ([`GpuInfo`]), readings ([`GpuReading`]), health ([`GpuHealth`]) and errors.

use super::columns::columns;
use super::{SafeText, limits};
use serde::{Deserialize, Serialize};

/// Fixed facts of one GPU, part of every [`super::Inventory`]. Its identity is the UUID; the index is only for display.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GpuInfo {
    /// NVML's device index, as `nvidia-smi` shows it.
    pub index: u32,
    /// UUID. `nvmlDeviceGetUUID`. Absent if the device fell off the bus before it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<SafeText>,
    /// Product name, for example `NVIDIA H100 80GB HBM3`. `nvmlDeviceGetName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SafeText>,
    /// PCI address, for example `00000000:9B:00.0`. `nvmlDeviceGetPciInfo_v3`, `busId`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<SafeText>,
    /// Size of device memory. `nvmlDeviceGetMemoryInfo_v2`, `total`. Absent on GPUs with unified memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Power limit that the driver enforces. `nvmlDeviceGetEnforcedPowerLimit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f32>,
    /// Highest power limit that can be set. `nvmlDeviceGetPowerManagementLimitConstraints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_max_watts: Option<f32>,
    /// Maximum graphics clock. `nvmlDeviceGetMaxClockInfo`, `NVML_CLOCK_GRAPHICS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_graphics_max_mhz: Option<u32>,
    /// Maximum SM clock. `nvmlDeviceGetMaxClockInfo`, `NVML_CLOCK_SM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_sm_max_mhz: Option<u32>,
    /// Maximum memory clock. `nvmlDeviceGetMaxClockInfo`, `NVML_CLOCK_MEM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_memory_max_mhz: Option<u32>,
    /// Temperature at which the hardware slows down. `nvmlDeviceGetTemperatureThreshold`, `SLOWDOWN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_slowdown_celsius: Option<i32>,
    /// Temperature at which the GPU shuts down. `nvmlDeviceGetTemperatureThreshold`, `SHUTDOWN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_shutdown_celsius: Option<i32>,
    /// Whether MIG mode is enabled. `nvmlDeviceGetMigMode`. Absent if the GPU has no MIG.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_enabled: Option<bool>,
    /// Memory temperature at which the hardware slows down. `nvmlDeviceGetTemperatureThreshold`, `MEM_MAX`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_temperature_max_celsius: Option<i32>,
    /// Size of BAR1, the window through which the CPU accesses device memory. `nvmlDeviceGetBAR1MemoryInfo`,
    /// `bar1Total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar1_total_bytes: Option<u64>,
    /// Highest PCIe generation that both ends of the link support. `nvmlDeviceGetMaxPcieLinkGeneration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation_max: Option<u8>,
    /// Highest number of PCIe lanes that both ends of the link support. `nvmlDeviceGetMaxPcieLinkWidth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width_max: Option<u8>,
    /// The N of `/dev/nvidiaN`. `nvmlDeviceGetMinorNumber`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor_number: Option<u32>,
    /// Number of NVLinks, active or not, for which `nvmlDeviceGetNvLinkState` succeeds. Absent without NVLink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_count: Option<u8>,
    /// GPU instance id of a MIG instance. `nvmlDeviceGetGpuInstanceId`. Absent on other GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance_id: Option<u32>,
    /// Compute instance id of a MIG instance. `nvmlDeviceGetComputeInstanceId`. Absent on other GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_instance_id: Option<u32>,
    /// Whether GPM metrics (SM activity and others) can be read. Absent if the driver does not support GPM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpm: Option<Availability>,
    /// Whether Xid events can be read. Absent if the driver does not support them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid_events: Option<Availability>,
    /// The GPU shares the memory of the host (GB10, Jetson); its memory readings are those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unified_memory: Option<bool>,
    /// UUID of the parent GPU of a MIG instance. Absent on other GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_parent_uuid: Option<SafeText>,
}

columns! {
    /// Readings of one GPU in one sample.
    row GpuReading;
    /// Readings of all GPUs of a host, in the order of the [`super::Inventory`] of the same generation; at most
    /// [`limits::MAX_GPUS`].
    columns GpuColumns;

    /// Why the GPU cannot be read now (lost, reset required, blocked); the other readings are then `None`. Absent if it
    /// can.
    error: DeviceError,
    /// Percentage of the last sample period in which a kernel ran. `nvmlDeviceGetUtilizationRates`, `gpu`. Absent on a
    /// MIG parent. A hung collective reads 100.
    utilization_percent: u8,
    /// Percentage of time in which device memory was read or written. `nvmlDeviceGetUtilizationRates`, `memory`.
    memory_utilization_percent: u8,
    /// Memory allocated by processes and contexts. `nvmlDeviceGetMemoryInfo_v2`, `used`; the v1 call includes reserved
    /// memory.
    memory_used_bytes: u64,
    /// Memory reserved by the driver. `nvmlDeviceGetMemoryInfo_v2`, `reserved`. Absent with the v1 call.
    memory_reserved_bytes: u64,
    /// Core temperature. `nvmlDeviceGetTemperature`, `NVML_TEMPERATURE_GPU`.
    temperature_celsius: i32,
    /// Memory temperature. Field value `NVML_FI_DEV_MEMORY_TEMP`. Absent if the GPU does not report it.
    memory_temperature_celsius: i32,
    /// Current power from the driver's sensor. `nvmlDeviceGetPowerUsage`.
    power_watts: f32,
    /// Mean power since the previous snapshot: energy divided by time. `nvmlDeviceGetTotalEnergyConsumption`. Absent in
    /// the first snapshot.
    power_mean_watts: f32,
    /// Energy since the driver was loaded. `nvmlDeviceGetTotalEnergyConsumption`.
    energy_joules: f64,
    /// Power limit that the driver enforces, if it has changed since the inventory. `nvmlDeviceGetEnforcedPowerLimit`.
    power_limit_watts: f32,
    /// Graphics clock. `nvmlDeviceGetClockInfo`, `NVML_CLOCK_GRAPHICS`.
    clock_graphics_mhz: u32,
    /// SM clock. `nvmlDeviceGetClockInfo`, `NVML_CLOCK_SM`.
    clock_sm_mhz: u32,
    /// Memory clock. `nvmlDeviceGetClockInfo`, `NVML_CLOCK_MEM`.
    clock_memory_mhz: u32,
    /// Speed of the fastest fan, in percent of its maximum. `nvmlDeviceGetFanSpeed_v2`. Absent without fans.
    fan_percent: u16,
    /// Performance state, 0 (fastest) to 15. `nvmlDeviceGetPerformanceState`.
    performance_state: u8,
    /// Raw mask of the reasons for which clocks are below their maximum, see [`ClocksEventReasons`].
    /// `nvmlDeviceGetCurrentClocksEventReasons` (before R535 `...ThrottleReasons`).
    clocks_event_reasons: u64,
    /// Encoder utilization. `nvmlDeviceGetEncoderUtilization`.
    encoder_percent: u8,
    /// Decoder utilization. `nvmlDeviceGetDecoderUtilization`.
    decoder_percent: u8,
    /// Current PCIe generation. `nvmlDeviceGetCurrPcieLinkGeneration`. It is lower while the GPU is idle.
    pcie_generation: u8,
    /// Current number of PCIe lanes. `nvmlDeviceGetCurrPcieLinkWidth`.
    pcie_width: u8,
    /// Bytes per second from the host over PCIe, the mean since the previous snapshot. GPM metric 21, else field value
    /// `NVML_FI_DEV_PCIE_COUNT_RX_BYTES`; never `nvmlDeviceGetPcieThroughput`, which blocks for 20 ms. Absent in the
    /// first snapshot and if neither source is supported.
    pcie_receive_bytes_per_second: f64,
    /// Bytes per second to the host over PCIe. GPM metric 20, else field value `NVML_FI_DEV_PCIE_COUNT_TX_BYTES`.
    /// Absent as for the other direction.
    pcie_transmit_bytes_per_second: f64,
    /// Bytes per second from other GPUs over all NVLinks. Field value `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX` of all
    /// links, else GPM metric 60.
    nvlink_receive_bytes_per_second: f64,
    /// Bytes per second to other GPUs over all NVLinks. Field value `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX` of all
    /// links, else GPM metric 61.
    nvlink_transmit_bytes_per_second: f64,
    /// Percentage of time in which an SM was busy, mean over all SMs. GPM `SM_UTIL`; Hopper and newer, if permitted.
    sm_activity_percent: f32,
    /// Resident warps, in percent of the maximum. GPM `SM_OCCUPANCY`.
    sm_occupancy_percent: f32,
    /// Percentage of time in which tensor cores were busy. GPM `ANY_TENSOR_UTIL`.
    tensor_activity_percent: f32,
    /// Percentage of the memory bandwidth in use. GPM `DRAM_BW_UTIL`.
    dram_bandwidth_percent: f32,
    /// Time in which heat reduced the clocks, since the driver was loaded. Field value
    /// `NVML_FI_DEV_PERF_POLICY_THERMAL`. Absent if the GPU does not count it.
    thermal_violation_seconds: f64,
    /// Time in which the power cap reduced the clocks, since the driver was loaded. Field value
    /// `NVML_FI_DEV_PERF_POLICY_POWER` (equal to `..._CLOCKS_EVENT_REASON_SW_POWER_CAP`).
    power_violation_seconds: f64,
    /// Time in which the external power brake reduced the clocks. Field value
    /// `NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN` (253 in R575 and R580, 271 from 580.82 on); in drivers
    /// before R575 `NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT`.
    power_brake_seconds: f64,
    /// Time since an NVML call on this GPU hangs. Absent if no call hangs.
    blocked_seconds: f32,
    /// Processes may be missing from the list of this GPU, because the driver refused the list or a part of it. An empty
    /// list is then no evidence. Absent if the list is complete.
    processes_unknown: bool,
}

columns! {
    /// Health and settings of one GPU, which rarely change.
    row GpuHealth;
    /// Health of all GPUs of a host, in inventory order. Sent with the first snapshot and then with every tenth; it
    /// holds until the next one. At most [`limits::MAX_GPUS`].
    columns GpuHealthColumns;

    /// Corrected ECC errors since the driver was loaded. `nvmlDeviceGetTotalEccErrors`, volatile.
    ecc_corrected_volatile: u64,
    /// Uncorrectable ECC errors since the driver was loaded. `nvmlDeviceGetTotalEccErrors`, volatile.
    ecc_uncorrectable_volatile: u64,
    /// Corrected ECC errors in the lifetime of the GPU. `nvmlDeviceGetTotalEccErrors`, aggregate.
    ecc_corrected_aggregate: u64,
    /// Uncorrectable ECC errors in the lifetime of the GPU. `nvmlDeviceGetTotalEccErrors`, aggregate.
    ecc_uncorrectable_aggregate: u64,
    /// Pages retired because of several single-bit errors. `nvmlDeviceGetRetiredPages`; before Ampere.
    retired_pages_single_bit: u32,
    /// Pages retired because of a double-bit error. `nvmlDeviceGetRetiredPages`; before Ampere.
    retired_pages_double_bit: u32,
    /// Whether pages will be retired at the next reboot. `nvmlDeviceGetRetiredPagesPendingStatus`.
    retired_pages_pending: bool,
    /// Rows remapped because of corrected errors. `nvmlDeviceGetRemappedRows`; Ampere and newer.
    remapped_rows_correctable: u32,
    /// Rows remapped because of uncorrectable errors. `nvmlDeviceGetRemappedRows`.
    remapped_rows_uncorrectable: u32,
    /// Whether a row will be remapped at the next reset. `nvmlDeviceGetRemappedRows`, `isPending`.
    row_remap_pending: bool,
    /// Whether a row could not be remapped, in which case the GPU must be replaced. `nvmlDeviceGetRemappedRows`,
    /// `failureOccurred`.
    row_remap_failed: bool,
    /// Action that the driver recommends. Field value `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
    recovery_action: RecoveryAction,
    /// Whether the driver stays loaded without clients. `nvmlDeviceGetPersistenceMode`.
    persistence_mode: bool,
    /// Compute mode. `nvmlDeviceGetComputeMode`.
    compute_mode: ComputeMode,
    /// Active NVLinks, bit N for link N. `nvmlDeviceGetNvLinkState`.
    nvlinks_active: u64,
    /// PCIe packets that had to be sent again since the driver was loaded. Field value `NVML_FI_DEV_PCIE_REPLAY_COUNTER`.
    pcie_replays: u64,
    /// Packets with a CRC error over all NVLinks. Field value `NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL`; single ones
    /// are normal.
    nvlink_crc_errors: u64,
    /// Packets that had to be sent again over all NVLinks. Field value `NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL`.
    nvlink_replays: u64,
    /// How often an NVLink had to be trained again. Field value `NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL`.
    nvlink_recoveries: u64,
    /// Whether power smoothing (Blackwell) keeps the power up. Field value `NVML_FI_PWR_SMOOTHING_ENABLED`: 251, but
    /// 256 in R575 and in R580 before 580.82.
    power_smoothing: bool,
    /// BAR1 memory in use. `nvmlDeviceGetBAR1MemoryInfo`, `bar1Used`.
    bar1_used_bytes: u64,
}

/// Whether an optional NVML feature can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// It can be read.
    Available,
    /// The driver refuses it to this user (`NO_PERMISSION`, 4).
    NotPermitted,
    /// The driver refused it for another reason, or a value that this version does not know.
    #[serde(other)]
    Refused,
}

/// The action that the driver recommends (nvml.h, `nvmlDeviceGpuRecoveryAction_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RecoveryAction {
    /// No action.
    None,
    /// Reset the GPU.
    GpuReset,
    /// Reboot the host.
    NodeReboot,
    /// End the jobs that use peer-to-peer traffic with the GPU.
    DrainP2p,
    /// End the jobs, then reset the GPU.
    DrainAndReset,
    /// Recover the IMEX domain (multi-node NVLink).
    RecoverImexDomain,
    /// Reset the GPU's PCIe bus.
    BusReset,
    /// Reboot the system.
    SystemReboot,
    /// An action that this version does not know.
    #[serde(other)]
    Unknown,
}

impl RecoveryAction {
    /// Returns a description for display.
    pub fn description(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::GpuReset => "reset the GPU",
            Self::NodeReboot => "reboot the host",
            Self::DrainP2p => "end the jobs that use peer-to-peer traffic",
            Self::DrainAndReset => "end the jobs, then reset the GPU",
            Self::RecoverImexDomain => "recover the IMEX domain",
            Self::BusReset => "reset the PCIe bus of the GPU",
            Self::SystemReboot => "reboot the system",
            Self::Unknown => "an action that this version does not know",
        }
    }
}

/// Which processes may use a GPU for computing (nvml.h, `nvmlComputeMode_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Several processes.
    Default,
    /// One process at a time.
    ExclusiveProcess,
    /// No process.
    Prohibited,
    /// A mode that this version does not know.
    #[serde(other)]
    Unknown,
}

/// An Xid, the driver's number for an error on a GPU. `nvmlEventSetWait_v2`, `nvmlEventTypeXidCriticalError`. Errors
/// before the start of the probe are not reported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct XidEvent {
    /// Position of the GPU in the inventory. Absent if the driver named a device that is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u16>,
    /// The Xid.
    pub xid: u64,
    /// When it occurred, on the probe's monotonic clock.
    pub monotonic_seconds: f64,
}

/// Samples that the driver buffered before the first snapshot, thinned to one per second. `nvmlDeviceGetSamples`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RecentPast {
    /// Position of the GPU in the inventory.
    pub gpu: u16,
    /// Time of the last value of each list, on the probe's monotonic clock. Earlier values are one second apart.
    pub end_monotonic_seconds: f64,
    /// Oldest first, at most [`limits::MAX_PAST_VALUES`]. `NVML_GPU_UTILIZATION_SAMPLES`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::past_values")]
    pub utilization_percent: Vec<Option<u8>>,
    /// Oldest first, at most [`limits::MAX_PAST_VALUES`]. `NVML_MEMORY_UTILIZATION_SAMPLES`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::past_values")]
    pub memory_utilization_percent: Vec<Option<u8>>,
    /// Oldest first, at most [`limits::MAX_PAST_VALUES`]. `NVML_TOTAL_POWER_SAMPLES`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::past_values")]
    pub power_watts: Vec<Option<f32>>,
}

/// Why NVML cannot be used on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DriverError {
    /// Kind of the error, for rules and descriptions.
    pub kind: DriverErrorKind,
    /// NVML's return code (`nvmlReturn_t`). Absent if no call returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Description for display.
    pub message: SafeText,
}

/// Kinds of driver and device errors, after `nvmlReturn_t` in nvml.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DriverErrorKind {
    /// There is no NVML library (`LIBRARY_NOT_FOUND`, 12, or no file), so no NVIDIA driver is installed.
    NoLibrary,
    /// The kernel module is not loaded (`DRIVER_NOT_LOADED`, 9).
    DriverNotLoaded,
    /// Library and kernel module have different versions (`LIB_RM_VERSION_MISMATCH`, 18): reboot, or reload the module.
    VersionMismatch,
    /// The device files cannot be opened (`NO_PERMISSION`, 4).
    NoPermission,
    /// The GPU has fallen off the bus (`GPU_IS_LOST`, 15).
    GpuLost,
    /// The GPU must be reset (`RESET_REQUIRED`, 16).
    ResetRequired,
    /// An NVML call hangs.
    Blocked,
    /// The driver answers but there is no GPU.
    NoGpus,
    /// Any other error, such as 999, or a kind that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Why one GPU cannot be read. It stands beside the readings and never replaces one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceError {
    /// Kind of the error, for rules and descriptions.
    pub kind: DriverErrorKind,
    /// NVML's return code (`nvmlReturn_t`). Absent if no call returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Description for display.
    pub message: SafeText,
}

/// The mask of `nvmlDeviceGetCurrentClocksEventReasons` (nvml.h, `nvmlClocksEventReason*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClocksEventReasons(pub u64);

impl ClocksEventReasons {
    const NAMES: [(u64, &'static str); 9] = [
        (0x1, "idle"),
        (0x2, "application clocks"),
        (0x4, "power cap"),
        (0x8, "hardware slowdown"),
        (0x10, "sync boost"),
        (0x20, "software thermal slowdown"),
        (0x40, "hardware thermal slowdown"),
        (0x80, "power brake"),
        (0x100, "display clocks"),
    ];

    /// Returns the names of the reasons that are set, in NVML's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.0 & bit != 0).map(|(_, name)| name)
    }

    /// Whether the software or the hardware thermal slowdown is active.
    pub fn is_thermal(self) -> bool {
        self.0 & 0x60 != 0
    }

    /// Whether the hardware slows down because of heat or the power brake.
    pub fn is_hardware_slowdown(self) -> bool {
        self.0 & 0xC0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_event_reasons_have_names_in_nvml_order() {
        let names: Vec<_> = ClocksEventReasons(0x44).names().collect();
        assert_eq!(names, ["power cap", "hardware thermal slowdown"]);
        assert!(ClocksEventReasons(0x20).is_thermal());
        assert!(!ClocksEventReasons(0x4).is_thermal());
    }
}
