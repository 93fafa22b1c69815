//! The messages, in the order in which they appear: `Hello`, `Inventory`, then `Snapshot`s, with `Echo`es and
//! `Reply`s between them.

use super::open_enum::open_enums;
use super::{
    GpuColumns, GpuHealthColumns, GpuInfo, GpuProcessColumns, HostReading, ProcessColumns, ProcessFacts, RecentPast,
    SafeText, Scope, XidEvent,
};
use serde::{Deserialize, Serialize};

/// The version of this contract. It rises when a field changes its meaning or a message goes; not when a field, a
/// message or a variant is added.
pub const PROTOCOL: u32 = 1;

/// What the probe says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum Message {
    /// Who speaks: at once, before NVML is touched.
    Hello(Hello),
    /// The GPUs, when NVML answers and again whenever they change.
    Inventory(Inventory),
    /// All readings of one moment.
    Snapshot(Box<Snapshot>),
    /// The answer to a heartbeat, sent at once by the thread that reads the requests.
    Echo {
        /// The heartbeat's id.
        id: u64,
    },
    /// The answer to any other request.
    Reply(Reply),
    /// The probe ends, and why, where it can still say so.
    Farewell {
        /// The sentence for a person.
        reason: SafeText,
    },
    /// A message that this version does not know; it is ignored.
    #[serde(other)]
    Unknown,
}

open_enums!(Message, ReplyOutcome);

/// Who speaks, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the probe.
    pub protocol: u32,
    /// Version of the probe's package.
    pub probe_version: SafeText,
    /// `/proc/sys/kernel/random/boot_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<SafeText>,
    /// `uname -n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<SafeText>,
    /// The user the probe runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_user: Option<SafeText>,
    /// Its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_uid: Option<u32>,
    /// `uname -r`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<SafeText>,
    /// `uname -m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<SafeText>,
    /// CPUs online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// `/proc/meminfo`, `MemTotal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// How much of the machine the probe sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// What reads the host: `probe`, or `nvidia-smi` if the host has no probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ReadingSource>,
    /// The probe's own process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_pid: Option<u32>,
}

/// What reads a host. On the wire it is its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SafeText", into = "SafeText")]
pub enum ReadingSource {
    /// `gpufleet-probe`.
    Probe,
    /// `nvidia-smi`, run by the controller.
    NvidiaSmi,
    /// A source of a later version.
    Other(SafeText),
}

impl ReadingSource {
    /// The name on the wire and on the screen.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Probe => "probe",
            Self::NvidiaSmi => "nvidia-smi",
            Self::Other(name) => name,
        }
    }
}

impl From<SafeText> for ReadingSource {
    fn from(name: SafeText) -> Self {
        match name.as_str() {
            "probe" => Self::Probe,
            "nvidia-smi" => Self::NvidiaSmi,
            _ => Self::Other(name),
        }
    }
}

impl From<ReadingSource> for SafeText {
    fn from(source: ReadingSource) -> Self {
        Self::new(source.as_str())
    }
}

/// The GPUs of a host and the driver behind them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inventory {
    /// Rises with each change; a snapshot names the generation that its columns follow.
    pub generation: u32,
    /// `nvmlSystemGetDriverVersion`, for example `570.86.15`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<SafeText>,
    /// The newest CUDA the driver supports, for example `12.8`. `nvmlSystemGetCudaDriverVersion_v2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<SafeText>,
    /// The NVML library in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml_path: Option<SafeText>,
    /// The GPUs, in NVML's order, MIG instances after their parent.
    pub gpus: Vec<GpuInfo>,
    /// Why there are none, or why the driver cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<DriverError>,
}

/// Why NVML cannot be used on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriverError {
    /// What kind of failure, for rules and for words.
    pub kind: DriverErrorKind,
    /// NVML's return code (`nvmlReturn_t`), where one was returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The sentence for a person.
    pub message: SafeText,
}

/// The kinds of driver and device failures, after nvml.h's `nvmlReturn_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverErrorKind {
    /// No NVML library on this host (`LIBRARY_NOT_FOUND`, 12, or no file): there is no NVIDIA driver.
    NoLibrary,
    /// The kernel module is not loaded (`DRIVER_NOT_LOADED`, 9).
    DriverNotLoaded,
    /// Library and kernel module differ (`LIB_RM_VERSION_MISMATCH`, 18): reboot, or reload the module.
    VersionMismatch,
    /// The device files may not be opened (`NO_PERMISSION`, 4).
    NoPermission,
    /// The GPU fell off the bus (`GPU_IS_LOST`, 15).
    GpuLost,
    /// The GPU must be reset (`RESET_REQUIRED`, 16).
    ResetRequired,
    /// An NVML call has not come back.
    Blocked,
    /// The driver answers, and there is no GPU.
    NoGpus,
    /// Anything else, 999 among them; newer kinds read as this.
    #[serde(other)]
    Unknown,
}

/// All readings of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Counts from 1; the heartbeat acknowledges it.
    pub sequence: u64,
    /// The generation of the inventory whose order the GPU columns follow.
    pub generation: u32,
    /// The probe's monotonic clock, seconds since it began. Rates divide by its differences.
    pub monotonic_seconds: f64,
    /// The host's wall clock, milliseconds since 1970: shown only, never used for ages.
    pub wall_unix_ms: i64,
    /// Seconds until the next snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<f32>,
    /// The host itself.
    pub host: HostReading,
    /// The GPUs, in inventory order.
    #[serde(skip_serializing_if = "GpuColumns::is_empty")]
    pub gpus: GpuColumns,
    /// What rarely changes about the GPUs, in inventory order; left out when it is not due.
    #[serde(skip_serializing_if = "GpuHealthColumns::is_empty")]
    pub health: GpuHealthColumns,
    /// Xids since the previous snapshot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub xid_events: Vec<XidEvent>,
    /// What the driver remembers from before the first snapshot; with that one only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_past: Vec<RecentPast>,
    /// What processes do on GPUs, keyed by (pid, gpu).
    #[serde(skip_serializing_if = "GpuProcessColumns::is_empty")]
    pub gpu_processes: GpuProcessColumns,
    /// What those processes do on the host, keyed by pid.
    #[serde(skip_serializing_if = "ProcessColumns::is_empty")]
    pub processes: ProcessColumns,
    /// Facts of processes that are new, or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<ProcessFacts>,
    /// Processes left out because there were more than [`super::codec::MAX_PROCESSES`].
    #[serde(skip_serializing_if = "is_zero")]
    pub processes_left_out: u32,
    /// Why the driver as a whole cannot be read now, though it could before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_error: Option<DriverError>,
    /// Things worth knowing that are no errors: readings that were clamped, calls that were refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<SafeText>,
    /// What the probe itself costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<ProbeCost>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// What the probe itself costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeCost {
    /// CPU time since it began, all threads. `clock_gettime(CLOCK_PROCESS_CPUTIME_ID)`.
    pub cpu_seconds: f64,
    /// Resident memory. `/proc/self/statm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// Wall time that the last sample took.
    pub sample_ms: f32,
    /// gpufleet probes running on this host, this one included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes_on_host: Option<u32>,
}

/// What the controller asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// "I am here": every 2 s. Without one for 30 s the probe ends.
    Heartbeat {
        /// Comes back in the `Echo`.
        id: u64,
        /// The last snapshot that arrived: at most two are sent beyond it, later ones are skipped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_sequence: Option<u64>,
    },
    /// Sample at this interval from now on, 0.25 to 60 seconds.
    Interval {
        /// Seconds between snapshots.
        seconds: f32,
    },
    /// Send inventory and all facts again, and a snapshot now.
    Resend,
    /// Send a signal to one process, after its identity was checked again.
    Signal {
        /// Comes back in the `Reply`.
        id: u64,
        /// Must be the boot id of the host.
        boot_id: SafeText,
        /// Must be above 1.
        pid: u32,
        /// Must be the start ticks of that pid.
        start_ticks: u64,
        /// Which one.
        signal: Signal,
    },
    /// Tell the environment of a process of the login user.
    Environment {
        /// Comes back in the `Reply`.
        id: u64,
        /// Must be the boot id of the host.
        boot_id: SafeText,
        /// Must be above 1.
        pid: u32,
        /// Must be the start ticks of that pid.
        start_ticks: u64,
    },
    /// Tell the last 4 KiB of the regular file behind stdout, else stderr, of a process of the login user.
    LogTail {
        /// Comes back in the `Reply`.
        id: u64,
        /// Must be the boot id of the host.
        boot_id: SafeText,
        /// Must be above 1.
        pid: u32,
        /// Must be the start ticks of that pid.
        start_ticks: u64,
    },
}

/// The signals that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGINT
    #[serde(rename = "INT")]
    Interrupt,
    /// SIGTERM
    #[serde(rename = "TERM")]
    Terminate,
    /// SIGKILL
    #[serde(rename = "KILL")]
    Kill,
}

/// The answer to a request that has an id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id.
    pub id: u64,
    /// What came of it.
    pub outcome: ReplyOutcome,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum ReplyOutcome {
    /// The signal was sent.
    Sent,
    /// The process is no more.
    Gone,
    /// The pid belongs to another process now, or the host was rebooted.
    Reused,
    /// The kernel does not permit it.
    NotPermitted,
    /// The environment, one `NAME=value` each, secrets redacted, at most 64 KiB.
    Environment(Vec<SafeText>),
    /// The end of the log, a line each.
    LogTail {
        /// The file.
        path: SafeText,
        /// Its last lines, at most 4 KiB.
        lines: Vec<SafeText>,
    },
    /// It cannot be done here, and why.
    Refused(SafeText),
    /// An answer that this version does not know.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_sources_are_encoded_by_name() {
        for (source, name) in [
            (ReadingSource::Probe, "\"probe\""),
            (ReadingSource::NvidiaSmi, "\"nvidia-smi\""),
            (ReadingSource::Other("rocm-smi".into()), "\"rocm-smi\""),
        ] {
            assert_eq!(serde_json::to_string(&source).unwrap(), name);
            assert_eq!(serde_json::from_str::<ReadingSource>(name).unwrap(), source);
        }
    }
}
