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
    /// Uncorrectable ECC errors since the driver was loaded. `nvmlDeviceGetTotalEccErrors`.
    ecc_uncorrectable_volatile: u64,
    /// Seconds since which an NVML call on this GPU has not come back. Absent when calls answer.
    blocked_seconds: f32,
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
    fn reasons_are_named_in_nvml_order() {
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
    fn a_value_that_all_rows_share_is_sent_once() {
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
    fn no_number_of_rows_makes_the_reader_take_much_memory() {
        let columns: GpuColumns = serde_json::from_str(r#"{"rows":99999999999,"fan_percent":1}"#).expect("decodes");
        assert!(columns.len() < 20_000);
        assert!(serde_json::from_str::<GpuColumns>(r#"{"rows":-1,"fan_percent":1}"#).is_err());
        assert!(serde_json::from_str::<GpuColumns>(r#"{"rows":2,"fan_percent":"fast"}"#).is_err());
    }
}
