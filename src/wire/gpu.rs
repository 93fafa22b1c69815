//! What is known of a GPU: its fixed facts ([`GpuInfo`]) and its readings ([`GpuReading`]).

use super::columns::columns;
use super::{DriverErrorKind, SafeText};
use serde::{Deserialize, Serialize};

/// The fixed facts of one GPU, sent with every [`super::Inventory`]. A GPU is its UUID; the index is only shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInfo {
    /// NVML's device index, as `nvidia-smi` shows it.
    pub index: u32,
    /// `nvmlDeviceGetUUID`. Absent when the device has fallen off the bus before it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<SafeText>,
    /// `nvmlDeviceGetName`, for example `NVIDIA H100 80GB HBM3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SafeText>,
    /// `nvmlDeviceGetPciInfo_v3`, `busId`, for example `00000000:9B:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<SafeText>,
    /// Framebuffer size. `nvmlDeviceGetMemoryInfo_v2`, `total`. Absent on parts with unified memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// The limit the driver enforces now. `nvmlDeviceGetEnforcedPowerLimit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f32>,
    /// The highest limit that can be set. `nvmlDeviceGetPowerManagementLimitConstraints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_max_watts: Option<f32>,
    /// `nvmlDeviceGetMaxClockInfo`, `NVML_CLOCK_GRAPHICS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_graphics_max_mhz: Option<u32>,
    /// `nvmlDeviceGetMaxClockInfo`, `NVML_CLOCK_SM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_sm_max_mhz: Option<u32>,
    /// `nvmlDeviceGetMaxClockInfo`, `NVML_CLOCK_MEM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_memory_max_mhz: Option<u32>,
    /// The temperature at which the hardware slows down. `nvmlDeviceGetTemperatureThreshold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_slowdown_celsius: Option<i32>,
    /// The temperature at which the GPU shuts down. `nvmlDeviceGetTemperatureThreshold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_shutdown_celsius: Option<i32>,
    /// Whether multi-instance mode is on. `nvmlDeviceGetMigMode`. Absent where the part has no MIG.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_enabled: Option<bool>,
    /// The memory temperature at which the hardware slows down. `nvmlDeviceGetTemperatureThreshold`, `MEM_MAX`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_temperature_max_celsius: Option<i32>,
    /// Size of the window through which the CPU sees device memory. `nvmlDeviceGetBAR1MemoryInfo`, `bar1Total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar1_total_bytes: Option<u64>,
    /// The newest PCIe generation that both ends of the link can do. `nvmlDeviceGetMaxPcieLinkGeneration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation_max: Option<u8>,
    /// The most PCIe lanes that both ends of the link can do. `nvmlDeviceGetMaxPcieLinkWidth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width_max: Option<u8>,
    /// The N of `/dev/nvidiaN`. `nvmlDeviceGetMinorNumber`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor_number: Option<u32>,
    /// Number of NVLinks the part has, active or not. `nvmlDeviceGetNvLinkState` answers for each. Absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_count: Option<u8>,
    /// For a MIG instance, its GPU instance id. `nvmlDeviceGetGpuInstanceId`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance_id: Option<u32>,
    /// For a MIG instance, its compute instance id. `nvmlDeviceGetComputeInstanceId`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_instance_id: Option<u32>,
    /// Whether GPM readings (SM activity and its kin) are to be had. Absent where the driver does not know GPM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpm: Option<Availability>,
    /// Whether Xid events are told. Absent where the driver does not offer them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid_events: Option<Availability>,
    /// The GPU shares the host's memory (GB10, Jetson): its memory readings are the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unified_memory: Option<bool>,
    /// For a MIG instance, the UUID of its parent GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_parent_uuid: Option<SafeText>,
}

columns! {
    /// One GPU's readings at one moment.
    row GpuReading;
    /// The readings of every GPU of a host, in the order of the [`super::Inventory`] of the same generation.
    columns GpuColumns;

    /// Why this GPU cannot be read now (lost, reset required, no answer). The other readings are then `None`.
    error: DeviceError,
    /// Share of the last sample period in which a kernel ran. `nvmlDeviceGetUtilizationRates`, `gpu`.
    /// Absent on a MIG parent. A hung collective reads 100.
    utilization_percent: u8,
    /// Share of time in which device memory was read or written. `nvmlDeviceGetUtilizationRates`, `memory`.
    memory_utilization_percent: u8,
    /// Memory handed out to processes and contexts. `nvmlDeviceGetMemoryInfo_v2`, `used` (v1: includes reserved).
    memory_used_bytes: u64,
    /// Memory the driver keeps for itself. `nvmlDeviceGetMemoryInfo_v2`, `reserved`. Absent with the v1 call.
    memory_reserved_bytes: u64,
    /// Core temperature. `nvmlDeviceGetTemperature`, `NVML_TEMPERATURE_GPU`.
    temperature_celsius: i32,
    /// Memory temperature, where the part reports it. Field value `NVML_FI_DEV_MEMORY_TEMP`.
    memory_temperature_celsius: i32,
    /// Power now, from the driver's own sensor. `nvmlDeviceGetPowerUsage`.
    power_watts: f32,
    /// Mean power since the previous snapshot, energy over time. `nvmlDeviceGetTotalEnergyConsumption`.
    power_mean_watts: f32,
    /// Energy since the driver was loaded. `nvmlDeviceGetTotalEnergyConsumption`.
    energy_joules: f64,
    /// The limit the driver enforces, when it changed since the inventory. `nvmlDeviceGetEnforcedPowerLimit`.
    power_limit_watts: f32,
    /// `nvmlDeviceGetClockInfo`, `NVML_CLOCK_GRAPHICS`.
    clock_graphics_mhz: u32,
    /// `nvmlDeviceGetClockInfo`, `NVML_CLOCK_SM`.
    clock_sm_mhz: u32,
    /// `nvmlDeviceGetClockInfo`, `NVML_CLOCK_MEM`.
    clock_memory_mhz: u32,
    /// Fan speed as a share of its maximum, the fastest of several. `nvmlDeviceGetFanSpeed_v2`. Absent without fans.
    fan_percent: u16,
    /// Performance state, 0 (fastest) to 15. `nvmlDeviceGetPerformanceState`.
    performance_state: u8,
    /// Why the clocks are below their maximum, NVML's raw mask; see [`ClocksEventReasons`].
    /// `nvmlDeviceGetCurrentClocksEventReasons` (before R535 `...ThrottleReasons`).
    clocks_event_reasons: u64,
    /// Encoder use. `nvmlDeviceGetEncoderUtilization`.
    encoder_percent: u8,
    /// Decoder use. `nvmlDeviceGetDecoderUtilization`.
    decoder_percent: u8,
    /// Current PCIe generation. `nvmlDeviceGetCurrPcieLinkGeneration`. It falls when the GPU is idle.
    pcie_generation: u8,
    /// Current PCIe width in lanes. `nvmlDeviceGetCurrPcieLinkWidth`.
    pcie_width: u8,
    /// Bytes a second from the host over PCIe, mean since the previous snapshot. GPM metric 21, else field value
    /// `NVML_FI_DEV_PCIE_COUNT_RX_BYTES`. Never `nvmlDeviceGetPcieThroughput`, which blocks for 20 ms.
    pcie_receive_bytes_per_second: f64,
    /// Bytes a second to the host over PCIe. GPM metric 20, else field value `NVML_FI_DEV_PCIE_COUNT_TX_BYTES`.
    /// Absent in the first sample, and where neither is offered.
    pcie_transmit_bytes_per_second: f64,
    /// Bytes a second from other GPUs over all NVLinks. Field value `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX`, all links,
    /// else GPM metric 60.
    nvlink_receive_bytes_per_second: f64,
    /// Bytes a second to other GPUs over all NVLinks. Field value `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX`, all links,
    /// else GPM metric 61.
    nvlink_transmit_bytes_per_second: f64,
    /// Share of time in which an SM had work, over all SMs. GPM `SM_UTIL`. Hopper and newer, where it is permitted.
    sm_activity_percent: f32,
    /// Resident warps as a share of what fits. GPM `SM_OCCUPANCY`.
    sm_occupancy_percent: f32,
    /// Share of time in which tensor cores worked. GPM `ANY_TENSOR_UTIL`.
    tensor_activity_percent: f32,
    /// Share of the memory bandwidth in use. GPM `DRAM_BW_UTIL`.
    dram_bandwidth_percent: f32,
    /// Time for which heat held the GPU down, since the driver was loaded. Field value
    /// `NVML_FI_DEV_PERF_POLICY_THERMAL`. Absent where the part does not count it.
    thermal_violation_seconds: f64,
    /// Time for which the power cap held the GPU down, since the driver was loaded. Field value
    /// `NVML_FI_DEV_PERF_POLICY_POWER` (the same as `..._CLOCKS_EVENT_REASON_SW_POWER_CAP`).
    power_violation_seconds: f64,
    /// Time for which the external power brake held the GPU down. Field value
    /// `NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN` (253 in R575 and R580, 271 from 580.82 on); drivers
    /// before R575: `NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT`.
    power_brake_seconds: f64,
    /// Seconds since which an NVML call on this GPU has not come back. Absent when calls answer.
    blocked_seconds: f32,
}

columns! {
    /// What rarely changes about one GPU: its state of health and its settings.
    row GpuHealth;
    /// The health of every GPU of a host, in inventory order. Sent with the first snapshot and every tenth after it;
    /// what was sent last holds until then.
    columns GpuHealthColumns;

    /// Corrected ECC errors since the driver was loaded. `nvmlDeviceGetTotalEccErrors`, volatile.
    ecc_corrected_volatile: u64,
    /// Uncorrectable ECC errors since the driver was loaded. `nvmlDeviceGetTotalEccErrors`, volatile.
    ecc_uncorrectable_volatile: u64,
    /// Corrected ECC errors in the GPU's life. `nvmlDeviceGetTotalEccErrors`, aggregate.
    ecc_corrected_aggregate: u64,
    /// Uncorrectable ECC errors in the GPU's life. `nvmlDeviceGetTotalEccErrors`, aggregate.
    ecc_uncorrectable_aggregate: u64,
    /// Pages retired for several single-bit errors. `nvmlDeviceGetRetiredPages`. Before Ampere.
    retired_pages_single_bit: u32,
    /// Pages retired for a double-bit error. `nvmlDeviceGetRetiredPages`. Before Ampere.
    retired_pages_double_bit: u32,
    /// Pages wait for a reboot to be retired. `nvmlDeviceGetRetiredPagesPendingStatus`.
    retired_pages_pending: bool,
    /// Rows remapped for corrected errors. `nvmlDeviceGetRemappedRows`. Ampere and newer.
    remapped_rows_correctable: u32,
    /// Rows remapped for uncorrectable errors. `nvmlDeviceGetRemappedRows`.
    remapped_rows_uncorrectable: u32,
    /// A row waits for a reset to be remapped. `nvmlDeviceGetRemappedRows`, `isPending`.
    row_remap_pending: bool,
    /// A row could not be remapped: the board has to go. `nvmlDeviceGetRemappedRows`, `failureOccurred`.
    row_remap_failed: bool,
    /// What the driver asks a person to do. Field value `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
    recovery_action: RecoveryAction,
    /// Whether the driver stays loaded without a client. `nvmlDeviceGetPersistenceMode`.
    persistence_mode: bool,
    /// Who may use it for computing. `nvmlDeviceGetComputeMode`.
    compute_mode: ComputeMode,
    /// The NVLinks that are up, bit N for link N. `nvmlDeviceGetNvLinkState`.
    nvlinks_active: u64,
    /// Power smoothing (Blackwell) holds the power up. Field value `NVML_FI_PWR_SMOOTHING_ENABLED`: 251, but 256 in
    /// R575 and in R580 before 580.82.
    power_smoothing: bool,
    /// How much of the BAR1 window is in use. `nvmlDeviceGetBAR1MemoryInfo`, `bar1Used`.
    bar1_used_bytes: u64,
}

/// Whether a reading that not every account may have is to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// It is read.
    Available,
    /// The driver has it and does not give it to this account (`NO_PERMISSION`, 4).
    NotPermitted,
    /// The driver refused for another reason; newer words read as this.
    #[serde(other)]
    Refused,
}

/// What the driver asks a person to do (nvml.h, `nvmlDeviceGpuRecoveryAction_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// Reset the GPU.
    GpuReset,
    /// Reboot the host.
    NodeReboot,
    /// End what uses peer-to-peer traffic with it.
    DrainP2p,
    /// End what runs, then reset.
    DrainAndReset,
    /// Recover the IMEX domain (multi-node NVLink).
    RecoverImexDomain,
    /// Reset the GPU's PCIe bus.
    BusReset,
    /// Reboot the system.
    SystemReboot,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

impl RecoveryAction {
    /// In words, for a person.
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

/// Who may use a GPU for computing (nvml.h, `nvmlComputeMode_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Several processes.
    Default,
    /// One process at a time.
    ExclusiveProcess,
    /// Nobody.
    Prohibited,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

/// An Xid: the driver's number for something that went wrong on a GPU. `nvmlEventSetWait_v2`,
/// `nvmlEventTypeXidCriticalError`; what happened before the probe came is not told.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct XidEvent {
    /// Position of the GPU in the inventory. Absent when the driver named a device that is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u16>,
    /// The number.
    pub xid: u64,
    /// When, on the probe's monotonic clock.
    pub monotonic_seconds: f64,
}

/// What the driver remembers of a GPU from before the first snapshot. `nvmlDeviceGetSamples`, thinned to one a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentPast {
    /// Position of the GPU in the inventory.
    pub gpu: u16,
    /// When the last of each list was taken, on the probe's monotonic clock. Those before it lie a second apart.
    pub end_monotonic_seconds: f64,
    /// The oldest first. `NVML_GPU_UTILIZATION_SAMPLES`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub utilization_percent: Vec<Option<u8>>,
    /// The oldest first. `NVML_MEMORY_UTILIZATION_SAMPLES`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory_utilization_percent: Vec<Option<u8>>,
    /// The oldest first. `NVML_TOTAL_POWER_SAMPLES`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub power_watts: Vec<Option<f32>>,
}

/// Why one GPU cannot be read. It has its own place: it is never a stand-in value among the readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceError {
    /// What kind of failure, for rules and for words.
    pub kind: DriverErrorKind,
    /// NVML's return code (`nvmlReturn_t`), where one was returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The sentence for a person.
    pub message: SafeText,
}

/// The decoded mask of `nvmlDeviceGetCurrentClocksEventReasons` (nvml.h, `nvmlClocksEventReason*`).
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

    /// The names of the reasons that are set, in NVML's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.0 & bit != 0).map(|(_, name)| name)
    }

    /// Slowed down by heat: the software or the hardware thermal bit.
    pub fn is_thermal(self) -> bool {
        self.0 & 0x60 != 0
    }

    /// Slowed down by the hardware for heat or by the power brake.
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

    #[test]
    fn unknown_columns_are_ignored_and_missing_ones_are_none() {
        let columns: GpuColumns =
            serde_json::from_str(r#"{"power_watts":[104.5,null],"from_the_future":[1]}"#).expect("decodes");
        assert_eq!(columns.len(), 2);
        assert_eq!(columns.row(0).power_watts, Some(104.5));
        assert_eq!(columns.row(0).utilization_percent, None);
        assert_eq!(columns.row(7), GpuReading::default());
    }

    #[test]
    fn all_null_columns_are_left_out() {
        let rows = [GpuReading { temperature_celsius: Some(-3), ..GpuReading::default() }, GpuReading::default()];
        let json = serde_json::to_string(&GpuColumns::from_rows(&rows)).expect("encodes");
        assert_eq!(json, r#"{"rows":2,"temperature_celsius":[-3,null]}"#);
    }

    #[test]
    fn a_value_shared_by_all_rows_is_encoded_once() {
        let lost = DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message: "lost".into() };
        let row = GpuReading {
            temperature_celsius: Some(-3),
            power_watts: Some(61.5),
            fan_percent: Some(40),
            error: Some(lost),
            ..GpuReading::default()
        };
        let columns = GpuColumns::from_rows(&[row.clone(), row.clone(), row]);
        let json = serde_json::to_string(&columns).expect("encodes");
        assert_eq!(
            json,
            r#"{"rows":3,"error":{"kind":"gpu_lost","code":15,"message":"lost"},"temperature_celsius":-3,"power_watts":61.5,"fan_percent":40}"#
        );
        assert_eq!(serde_json::from_str::<GpuColumns>(&json).expect("decodes"), columns);
    }

    #[test]
    fn booleans_shared_by_all_rows_are_encoded_once() {
        let row = GpuHealth {
            persistence_mode: Some(true),
            row_remap_failed: Some(false),
            compute_mode: Some(ComputeMode::Default),
            ..GpuHealth::default()
        };
        let columns = GpuHealthColumns::from_rows(&[row.clone(), row]);
        let json = serde_json::to_string(&columns).expect("encodes");
        assert_eq!(json, r#"{"rows":2,"row_remap_failed":false,"persistence_mode":true,"compute_mode":"default"}"#);
        assert_eq!(serde_json::from_str::<GpuHealthColumns>(&json).expect("decodes"), columns);
    }

    #[test]
    fn the_announced_row_count_does_not_allocate_memory() {
        let columns: GpuColumns = serde_json::from_str(r#"{"rows":99999999999,"fan_percent":1}"#).expect("decodes");
        assert!(columns.len() < 20_000);
        assert!(serde_json::from_str::<GpuColumns>(r#"{"rows":-1,"fan_percent":1}"#).is_err());
        assert!(serde_json::from_str::<GpuColumns>(r#"{"rows":2,"fan_percent":"fast"}"#).is_err());
    }
}
