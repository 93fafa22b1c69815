//! Messages of the probe and requests of the controller. The probe sends `Hello`, then `Inventory`, then `Snapshot`s;
//! `Echo`es and `Reply`s come between them.

use super::open_enum::open_enums;
use super::{
    DriverError, Examination, ExaminationPart, GpuColumns, GpuHealthColumns, GpuInfo, GpuProcessColumns, HostReading,
    ProcessColumns, ProcessFacts, RecentPast, SafeText, Scope, XidEvent, limits,
};
use serde::{Deserialize, Deserializer, Serialize};

/// Version of the protocol. It changes when a field changes its meaning or a message is removed, not when a field, a
/// message or a variant is added.
pub const PROTOCOL: u32 = 1;

/// A message from the probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum Message {
    /// The first message, sent before NVML is touched.
    Hello(Hello),
    /// The GPUs. Sent when NVML answers and again whenever they change.
    Inventory(Inventory),
    /// All readings of one sample.
    Snapshot(Box<Snapshot>),
    /// The answer to a heartbeat, sent at once by the thread that reads requests.
    Echo {
        /// Id of the heartbeat.
        id: u64,
    },
    /// The answer to any other request.
    Reply(Reply),
    /// The last message: the probe ends. It is not sent if the probe is killed.
    Farewell {
        /// The reason, for display.
        reason: SafeText,
    },
    /// A message that this version does not know. It is ignored.
    #[serde(other)]
    Unknown,
}

open_enums!(Message, ReplyOutcome);

/// The probe and its host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Hello {
    /// [`PROTOCOL`] of the probe.
    pub protocol: u32,
    /// Version of the probe's package.
    pub probe_version: SafeText,
    /// Identifies this boot of the host. `/proc/sys/kernel/random/boot_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<SafeText>,
    /// Host name. uname(2), `nodename`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<SafeText>,
    /// Login name of the user that the probe runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_user: Option<SafeText>,
    /// Uid of that user. getuid(2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_uid: Option<u32>,
    /// Kernel version. uname(2), `release`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<SafeText>,
    /// CPU architecture. uname(2), `machine`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<SafeText>,
    /// Number of online CPUs. `/sys/devices/system/cpu/online`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// Memory of the host. `/proc/meminfo`, `MemTotal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// The part of the host that the probe sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The program that reads the host: `probe`, or `nvidia-smi` if the host has no probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ReadingSource>,
    /// Process id of the probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_pid: Option<u32>,
    /// SHA-256 of the probe's program in hexadecimal digits, as it hashes itself (`/proc/self/exe`). `None` if it cannot
    /// read itself, or is larger than 8 MiB (a build with debug information).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_sha256: Option<SafeText>,
}

/// The program that reads a host, encoded as its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(from = "SafeText", into = "SafeText")]
pub enum ReadingSource {
    /// `gpufleet-probe`.
    Probe,
    /// `nvidia-smi`, run by the controller on a host without a probe.
    NvidiaSmi,
    /// A source that this version does not know.
    Other(SafeText),
}

impl ReadingSource {
    /// Returns the name, on the wire and on the screen.
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

/// The GPUs of a host and their driver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Inventory {
    /// Increases with each change. The columns of a snapshot follow the inventory of the generation that it names.
    pub generation: u32,
    /// Driver version, for example `570.86.15`. `nvmlSystemGetDriverVersion`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<SafeText>,
    /// The newest CUDA version that the driver supports, for example `12.8`. `nvmlSystemGetCudaDriverVersion_v2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<SafeText>,
    /// Path of the NVML library in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvml_path: Option<SafeText>,
    /// The GPUs in NVML's order, MIG instances after their parent; at most [`limits::MAX_GPUS`].
    #[serde(deserialize_with = "limits::gpus")]
    pub gpus: Vec<GpuInfo>,
    /// Why there are no GPUs or the driver cannot be read. Absent if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<DriverError>,
}

/// All readings of one sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Snapshot {
    /// Number of the snapshot, from 1. Heartbeats acknowledge it.
    pub sequence: u64,
    /// Generation of the inventory whose order the GPU columns follow.
    pub generation: u32,
    /// Monotonic time in seconds since the probe started. Rates divide by its differences.
    pub monotonic_seconds: f64,
    /// Wall time of the host in milliseconds since 1970, for display only, never for ages.
    pub wall_unix_ms: i64,
    /// Seconds until the next snapshot. Absent if this is the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<f32>,
    /// Readings of the host.
    pub host: HostReading,
    /// Readings of the GPUs, in inventory order.
    #[serde(skip_serializing_if = "GpuColumns::is_empty")]
    pub gpus: GpuColumns,
    /// Health and settings of the GPUs, in inventory order. Left out when not due.
    #[serde(skip_serializing_if = "GpuHealthColumns::is_empty")]
    pub health: GpuHealthColumns,
    /// Xids since the previous snapshot, at most [`limits::MAX_XID_EVENTS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::xid_events")]
    pub xid_events: Vec<XidEvent>,
    /// Samples that the driver buffered before the first snapshot. Sent with that snapshot only. At most
    /// [`limits::MAX_GPUS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::recent_past")]
    pub recent_past: Vec<RecentPast>,
    /// Use of GPUs by processes, keyed by (pid, GPU).
    #[serde(skip_serializing_if = "GpuProcessColumns::is_empty")]
    pub gpu_processes: GpuProcessColumns,
    /// Readings of those processes on the host, keyed by pid. Those without a row in `gpu_processes` are new runs, by the same
    /// user, of programs that have left the GPUs.
    #[serde(skip_serializing_if = "ProcessColumns::is_empty")]
    pub processes: ProcessColumns,
    /// Facts of processes that are new or have changed, at most [`limits::MAX_PROCESSES`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::facts")]
    pub facts: Vec<ProcessFacts>,
    /// Number of processes left out because there were more than [`limits::MAX_PROCESSES`].
    #[serde(skip_serializing_if = "is_zero")]
    pub processes_left_out: u32,
    /// Why the driver as a whole cannot be read now, although it could before. Absent if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_error: Option<DriverError>,
    /// Remarks that are not errors, such as readings out of range and refused calls; at most [`limits::MAX_NOTES`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::notes")]
    pub notes: Vec<SafeText>,
    /// Cost of the probe itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<ProbeCost>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Cost of the probe itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProbeCost {
    /// CPU time of all its threads since it started. `clock_gettime(CLOCK_PROCESS_CPUTIME_ID)`.
    pub cpu_seconds: f64,
    /// Resident memory. `/proc/self/statm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// Wall time of the last sample.
    #[serde(deserialize_with = "finite")]
    pub sample_ms: f32,
    /// Number of gpufleet probes on this host, this one included. Absent before the first complete scan of /proc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes_on_host: Option<u32>,
}

/// Reads a number beyond the range of `f32` as the end of the range. JSON has no infinity: a recording of one could not be
/// read.
fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    f32::deserialize(deserializer).map(|value| value.clamp(f32::MIN, f32::MAX))
}

/// A request from the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Sent every 2 s. The probe ends after 30 s without one.
    Heartbeat {
        /// Returned in the `Echo`.
        id: u64,
        /// Number of the last snapshot received. The probe sends at most two beyond it and skips later ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_sequence: Option<u64>,
    },
    /// Sets the interval between snapshots, 0.25 to 60 s.
    Interval {
        /// The interval.
        seconds: f32,
        /// Takes the next snapshot and all later ones this many seconds later than planned, or earlier if it is negative; at
        /// most one interval. An older probe ignores it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shift_seconds: Option<f32>,
        /// Slurm jobs that had a process with a GPU here, or held a GPU, shortly before an earlier connection was lost, and whose
        /// end is not known: the probe queries the end of those that have no process on a GPU now. Sent once, at the start of a
        /// connection. At most [`limits::MAX_EARLIER_SLURM_JOBS`]. An older probe ignores it.
        #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::earlier_slurm_jobs")]
        earlier_slurm_jobs: Vec<SafeText>,
    },
    /// Sends the inventory and all facts again, and a snapshot now.
    Resend,
    /// Sends a signal to one process after checking its identity again.
    Signal {
        /// Returned in the `Reply`.
        id: u64,
        /// Must be the boot id of the host.
        boot_id: SafeText,
        /// Must be greater than 1.
        pid: u32,
        /// Must be the start time of the process with this pid, as in [`ProcessFacts::start_ticks`].
        start_ticks: u64,
        /// The name that the user saw: must be the current [`ProcessFacts::name`], unless it is empty. Another process
        /// may have reused the pid within the same clock tick.
        #[serde(default, skip_serializing_if = "str::is_empty")]
        name: SafeText,
        /// The command line that the user saw: must be the current [`ProcessFacts::argv`] or [`super::Ancestor::argv`],
        /// unless it is empty or the host cannot read the current one. An older probe ignores it.
        #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::arguments")]
        argv: Vec<SafeText>,
        /// The signal.
        signal: Signal,
    },
    /// Returns the environment variables of a process of the login user that place it in its job
    /// ([`super::job_variables`]).
    Environment {
        /// Returned in the `Reply`.
        id: u64,
        /// Must be the boot id of the host.
        boot_id: SafeText,
        /// Must be greater than 1.
        pid: u32,
        /// Must be the start time of the process with this pid.
        start_ticks: u64,
    },
    /// Returns the last 4 KiB of the regular file behind stdout, else stderr, of a process of the login user.
    LogTail {
        /// Returned in the `Reply`.
        id: u64,
        /// Must be the boot id of the host.
        boot_id: SafeText,
        /// Must be greater than 1.
        pid: u32,
        /// Must be the start time of the process with this pid.
        start_ticks: u64,
    },
    /// Examines a process of the login user, for a job that looks hung. The answer may take 20 s; other requests are answered
    /// meanwhile.
    Examine {
        /// Returned in the `Reply`.
        id: u64,
        /// Must be the boot id of the host.
        boot_id: SafeText,
        /// Must be greater than 1.
        pid: u32,
        /// Must be the start time of the process with this pid.
        start_ticks: u64,
        /// The parts to read, at most [`limits::MAX_EXAMINATION_PARTS`]. A part that the probe does not know is refused.
        #[serde(deserialize_with = "limits::examination_parts")]
        parts: Vec<ExaminationPart>,
        /// Query NCCL RAS even if its version is unknown or has known faults by which a query may crash the job.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        accept_ras_risk: bool,
    },
}

impl Request {
    /// Returns the id of the reply that the request expects. Heartbeats are answered by an `Echo`.
    pub fn reply_id(&self) -> Option<u64> {
        match self {
            Self::Signal { id, .. }
            | Self::Environment { id, .. }
            | Self::LogTail { id, .. }
            | Self::Examine { id, .. } => Some(*id),
            Self::Heartbeat { .. } | Self::Interval { .. } | Self::Resend => None,
        }
    }
}

/// [`ReplyOutcome::Refused`] as the answer to [`Request::LogTail`] if the output of the process goes to a terminal, a pipe or a
/// socket.
pub const NO_LOG_FILE: &str = "standard output and standard error are not regular files";

/// Reasons of an [`crate::wire::ExaminationRefusal`] without a remedy of the probe: the viewer knows one, or that there is nothing to
/// read.
pub const NOT_IN_PROC: &str = "/proc does not show the process";
/// See [`NOT_IN_PROC`].
pub const NOT_PYTHON: &str = "it is not a Python process";
/// See [`NOT_IN_PROC`].
pub const WITHOUT_NCCL: &str = "NCCL RAS was not queried: the process has no NCCL library loaded";

/// A signal that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// The answer to a request with an id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Reply {
    /// Id of the request.
    pub id: u64,
    /// The result.
    pub outcome: ReplyOutcome,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum ReplyOutcome {
    /// The signal was sent.
    Sent,
    /// The process has exited.
    Gone,
    /// The pid belongs to another process now, or the host was rebooted.
    Reused,
    /// The kernel does not permit it (EPERM).
    NotPermitted,
    /// The variables of the job as `NAME=value`, secrets redacted, at most [`limits::MAX_VARIABLES`]. Older probes send the whole
    /// environment, at most 64 KiB and [`limits::MAX_REPLY_LINES`].
    Environment(#[serde(deserialize_with = "limits::reply_lines")] Vec<SafeText>),
    /// The end of the log file.
    LogTail {
        /// Path of the file.
        path: SafeText,
        /// Its last lines, at most 4 KiB and [`limits::MAX_REPLY_LINES`], secrets redacted.
        #[serde(deserialize_with = "limits::reply_lines")]
        lines: Vec<SafeText>,
    },
    /// The parts of an examination that could be read, and the reasons why the others could not.
    Examined(Box<Examination>),
    /// The request cannot be fulfilled here, with the reason.
    Refused(SafeText),
    /// A result that this version does not know.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_beyond_its_range_is_written_as_a_number() {
        let cost: ProbeCost = serde_json::from_str(r#"{"sample_ms":1e308}"#).unwrap();
        let again = serde_json::to_string(&cost).unwrap();
        assert_eq!(serde_json::from_str::<ProbeCost>(&again).unwrap(), ProbeCost { sample_ms: f32::MAX, ..cost });
    }

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
