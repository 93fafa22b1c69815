//! An examination of one process: the answer to [`Request::Examine`](super::Request::Examine).
//!
//! It is made only on request, for a job that looks hung, and only for processes of the login user. Lists are cut to their
//! limit by the probe, and a field beside each says how many entries were left out.

use super::{ProcessState, SafeText, limits};
use serde::{Deserialize, Serialize};

/// A part of an examination, encoded as its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExaminationPart {
    /// Threads, CPU time, environment and sockets, from /proc.
    Process,
    /// The Python stacks, from `py-spy dump`.
    Stacks,
    /// The report of NCCL RAS, the reliability, availability and serviceability subsystem of NCCL.
    Ras,
    /// The InfiniBand and RoCE ports of the host, from /sys.
    Links,
    /// The latest dump of PyTorch's Flight Recorder, from its file.
    FlightRecorder,
    /// A part that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ExaminationPart {
    /// Every part that can be requested.
    pub const ALL: [Self; 5] = [Self::Process, Self::Stacks, Self::Ras, Self::Links, Self::FlightRecorder];
}

/// The parts of an examination that could be read. A part that was requested is here or in `refused`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Examination {
    /// Threads, CPU time, environment and sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Box<ProcessExamination>>,
    /// The Python stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<Box<StackDump>>,
    /// The report of NCCL RAS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ras: Option<Box<RasReport>>,
    /// The ports of the host, at most [`limits::MAX_LINKS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::links")]
    pub links: Vec<LinkReading>,
    /// Number of ports left out of `links`.
    #[serde(skip_serializing_if = "is_zero")]
    pub links_left_out: u32,
    /// The latest dump of PyTorch's Flight Recorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flight_recorder: Option<Box<FlightRecorderDump>>,
    /// The parts that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::refusals")]
    pub refused: Vec<ExaminationRefusal>,
}

/// A part that could not be read, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExaminationRefusal {
    /// The part.
    pub part: ExaminationPart,
    /// The reason why it could not be read.
    pub reason: SafeText,
    /// The change that would make it readable. Empty if nothing would.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub remedy: SafeText,
    /// The report of NCCL RAS was not requested because a query may crash the job, and [`super::Request::Examine`] did not
    /// accept that risk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_risk: bool,
}

impl ExaminationRefusal {
    /// A refusal without a risk that a person could accept. `remedy` is empty if nothing would help.
    pub fn new(part: ExaminationPart, reason: impl Into<SafeText>, remedy: impl Into<SafeText>) -> Self {
        Self { part, reason: reason.into(), remedy: remedy.into(), is_risk: false }
    }
}

/// Two readings of a process, about one second apart, and the differences between them. Own processes only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProcessExamination {
    /// Pid in the innermost pid namespace of the process, which is the pid that the job itself knows. `/proc/PID/status`,
    /// the last number of `NSpid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_pid: Option<u32>,
    /// Whether it shares the network namespace of the probe. `/proc/PID/ns/net`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_network: Option<bool>,
    /// Time between the two readings.
    pub seconds: f32,
    /// The main thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main_thread: Option<ThreadReading>,
    /// CPU time of all threads between the two readings, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Bytes written to storage between the two readings. `/proc/PID/io`, `write_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// The threads, grouped by name and wait channel, the largest groups first, at most [`limits::MAX_THREAD_GROUPS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::thread_groups")]
    pub threads: Vec<ThreadGroup>,
    /// Number of threads left out of `threads`.
    #[serde(skip_serializing_if = "is_zero")]
    pub threads_left_out: u32,
    /// Variables of its environment that concern the job (`RANK`, `MASTER_ADDR`, `NCCL_*`), as `NAME=value` with secrets
    /// redacted, at most [`limits::MAX_VARIABLES`]. `/proc/PID/environ`: as the program started.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::variables")]
    pub variables: Vec<SafeText>,
    /// Established TCP connections, grouped by peer, at most [`limits::MAX_PEERS`]. `/proc/PID/net/tcp` and `tcp6`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::peers")]
    pub peers: Vec<Peer>,
    /// Number of peers left out of `peers`.
    #[serde(skip_serializing_if = "is_zero")]
    pub peers_left_out: u32,
    /// Version of the NCCL library that it has mapped, for example `2.27.5`. Absent without the library, or if nothing
    /// names the version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl_version: Option<SafeText>,
    /// Whether it has an NCCL library mapped. `/proc/PID/maps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_nccl: Option<bool>,
    /// It listens on port 25999, the default of `torch.distributed.debug.start_debug_server`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_debug_server: bool,
    /// It catches the fatal signals as Python's `faulthandler` does. `/proc/PID/status`, `SigCgt`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_faulthandler: bool,
    /// Whether a debugger may attach: `/proc/PID/syscall` can be read (proc_pid_syscall(5)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_attach: Option<bool>,
}

impl ProcessExamination {
    /// Returns the value of a variable of its environment, if the variable was sent.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let mut variables = self.variables.iter().filter_map(|variable| variable.split_once('='));
        variables.find_map(|(key, value)| (key == name).then_some(value))
    }
}

/// A thread between two readings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadReading {
    /// State at the second reading. `/proc/PID/task/TID/stat`, field 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ProcessState>,
    /// Kernel function in which it waits. `/proc/PID/task/TID/wchan`. Absent if it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_channel: Option<SafeText>,
    /// Number of the system call in which it waits. `/proc/PID/task/TID/syscall`. Absent if it may not be read, or if the
    /// thread runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<i64>,
    /// CPU time in user mode between the two readings, in milliseconds. `stat`, field 14; its resolution is one clock tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_ms: Option<u64>,
    /// CPU time in kernel mode between the two readings, in milliseconds. `stat`, field 15.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_ms: Option<u64>,
    /// Voluntary context switches between the two readings. `status`, `voluntary_ctxt_switches`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voluntary_switches: Option<u64>,
    /// Involuntary context switches between the two readings. `status`, `nonvoluntary_ctxt_switches`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub involuntary_switches: Option<u64>,
    /// Time that it was ready to run and had no CPU between the two readings, in milliseconds. `schedstat`, second number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_ms: Option<u64>,
}

/// Threads of one process with the same name and wait channel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadGroup {
    /// Name of the threads, with digits at the end removed. `/proc/PID/task/TID/comm`.
    pub name: SafeText,
    /// Kernel function in which they wait. Empty if they do not wait.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub wait_channel: SafeText,
    /// Number of threads.
    pub count: u32,
    /// CPU time of all of them between the two readings, in milliseconds.
    pub cpu_ms: u64,
}

/// The other end of TCP connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Peer {
    /// IP address.
    pub address: SafeText,
    /// TCP port.
    pub port: u16,
    /// Number of connections.
    pub count: u32,
}

/// The Python stacks of a process, without local variables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StackDump {
    /// Path of the program that read them, with the home directory as `~`.
    pub tool: SafeText,
    /// The threads, the main thread first, at most [`limits::MAX_STACKS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::stacks")]
    pub threads: Vec<ThreadStack>,
    /// Number of threads left out of `threads`.
    #[serde(skip_serializing_if = "is_zero")]
    pub threads_left_out: u32,
}

/// The Python stack of one thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadStack {
    /// Name of the thread. Empty if it has none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: SafeText,
    /// It runs, as py-spy judges from the state of the thread and its system call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_active: bool,
    /// It holds the global interpreter lock.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub owns_gil: bool,
    /// The frames, innermost first, at most [`limits::MAX_FRAMES`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::frames")]
    pub frames: Vec<Frame>,
    /// Number of frames left out of `frames`.
    #[serde(skip_serializing_if = "is_zero")]
    pub frames_left_out: u32,
}

/// A frame of a Python stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Frame {
    /// Function.
    pub function: SafeText,
    /// Source file, with the home directory as `~`.
    pub file: SafeText,
    /// Line in that file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// The report of NCCL RAS about a whole job, from any one of its ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RasReport {
    /// Version of NCCL, as the report names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl_version: Option<SafeText>,
    /// The report was JSON (NCCL 2.28.7 and newer), not text. Text names counts of operations only where they differ.
    pub is_json: bool,
    /// Time that the query took, in milliseconds.
    pub took_ms: u64,
    /// Number of processes that did not answer in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub timeouts: u32,
    /// The communicators, those with a fault first, then the largest, at most [`limits::MAX_COMMUNICATORS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::communicators")]
    pub communicators: Vec<Communicator>,
    /// Number of communicators left out of `communicators`.
    #[serde(skip_serializing_if = "is_zero")]
    pub communicators_left_out: u32,
}

/// An NCCL communicator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Communicator {
    /// First part of its identity.
    pub hash: SafeText,
    /// Second part of its identity. Empty in text reports.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub secondary_hash: SafeText,
    /// Number of ranks that it has.
    pub size: u32,
    /// Number of ranks that sent data.
    pub ranks: u32,
    /// Ranks that are being initialised.
    #[serde(skip_serializing_if = "is_zero")]
    pub initialising: u32,
    /// Ranks that are finalising, being destroyed or aborting.
    #[serde(skip_serializing_if = "is_zero")]
    pub finalising: u32,
    /// The launched collective operations.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::operations")]
    pub operations: Vec<OperationCounts>,
    /// Ranks with an asynchronous error, at most [`limits::MAX_NAMED_RANKS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::named_ranks")]
    pub failed_ranks: Vec<NamedRank>,
    /// Number of ranks left out of `failed_ranks`.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_left_out: u32,
    /// Ranks that sent no data, at most [`limits::MAX_NAMED_RANKS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::named_ranks")]
    pub missing_ranks: Vec<NamedRank>,
    /// Number of ranks left out of `missing_ranks`.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing_left_out: u32,
}

/// How many operations of one kind the ranks of a communicator have launched. Launches on the host are counted, not
/// completions, and none that a CUDA graph captured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OperationCounts {
    /// Kind of operation: `AllReduce`, `Broadcast`, ...
    pub name: SafeText,
    /// The counts and how many ranks have each, the highest count first, at most [`limits::MAX_COUNTS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::counts")]
    pub counts: Vec<RanksAtCount>,
    /// Number of ranks left out of `counts`.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u32,
    /// Hash of each rank and its count. Two reports with the same value have the same count for each rank. Absent in text
    /// reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<u64>,
    /// The ranks with the lowest count if the counts differ, at most [`limits::MAX_NAMED_RANKS`]. In text reports, the ranks
    /// that NCCL names.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::named_ranks")]
    pub named: Vec<NamedRank>,
    /// Number of ranks left out of `named`.
    #[serde(skip_serializing_if = "is_zero")]
    pub named_left_out: u32,
}

/// Ranks with the same count of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RanksAtCount {
    /// The last operation launched.
    pub count: u64,
    /// Number of ranks.
    pub ranks: u32,
}

/// A rank that a report of NCCL RAS names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NamedRank {
    /// Rank in the communicator.
    pub rank: u32,
    /// Address of its host on the network that NCCL started with. Absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<SafeText>,
    /// Pid in the pid namespace of the job. Absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// NVML index of its GPU, or the index that NCCL calls `GPU` in text reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The last operation that it has launched, in [`OperationCounts::named`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// NCCL's number of the asynchronous error (`ncclResult_t`), in [`Communicator::failed_ranks`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_error: Option<i64>,
    /// Why it sent no data, in [`Communicator::missing_ranks`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absence: Option<RankAbsence>,
}

/// Why a rank sent no data to NCCL RAS, encoded as its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RankAbsence {
    /// It has left the communicator, which is no fault by itself.
    Left,
    /// Its process does not answer.
    Unresponsive,
    /// NCCL considers its process dead.
    Dead,
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}

/// A port of an InfiniBand or RoCE adapter, read twice, about one second apart. The counters are those of the port, so other
/// jobs count too. `/sys/class/infiniband`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LinkReading {
    /// Device, for example `mlx5_0`.
    pub device: SafeText,
    /// Number of the port, from 1.
    pub port: u16,
    /// `InfiniBand` or `Ethernet` (RoCE). `link_layer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<SafeText>,
    /// Logical state, for example `ACTIVE` or `DOWN`. `state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<SafeText>,
    /// Rate, for example `400 Gb/sec (4X NDR)`. `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<SafeText>,
    /// Time between the two readings.
    pub seconds: f32,
    /// Bytes sent between the two readings. Four times `counters/port_xmit_data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    /// Bytes received between the two readings. Four times `counters/port_rcv_data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
    /// Error counters that rose between the two readings, at most [`limits::MAX_LINK_ERRORS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::link_errors")]
    pub errors: Vec<LinkErrorCount>,
}

/// An error counter of a port that rose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LinkErrorCount {
    /// Name of the counter, for example `local_ack_timeout_err`.
    pub name: SafeText,
    /// By how much it rose.
    pub count: u64,
}

/// A dump of PyTorch's Flight Recorder, which records the collective operations of one process. PyTorch writes it when an
/// operation times out, or on request. `torch/csrc/distributed/c10d/FlightRecorder.hpp`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FlightRecorderDump {
    /// Path of the file, with the home directory as `~`.
    pub file: SafeText,
    /// Time since it was written.
    pub age_seconds: f64,
    /// The environment of the process does not name the path, or the program may change it: other jobs of the account may use it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_default_path: bool,
    /// Version of its format, for example `2.10`.
    pub version: SafeText,
    /// Number of operations in it.
    pub operations: u32,
    /// Older operations were overwritten.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_overwritten: bool,
    /// The process groups, those with an operation that waits first, at most [`limits::MAX_RECORDED_GROUPS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::recorded_groups")]
    pub groups: Vec<RecordedGroup>,
    /// Number of process groups left out of `groups`.
    #[serde(skip_serializing_if = "is_zero")]
    pub groups_left_out: u32,
}

/// A process group in a dump of the Flight Recorder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RecordedGroup {
    /// Name, which is the same in all ranks. `process_group`, first part.
    pub name: SafeText,
    /// Description, for example `default_pg`. `process_group`, second part.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: SafeText,
    /// Sequence number of the last collective operation that the process scheduled. Absent if it scheduled none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scheduled: Option<u64>,
    /// Sequence number of the last one that ended. `pg_status`, `last_completed_collective`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_completed: Option<u64>,
    /// The operations that have not ended, the oldest first, at most [`limits::MAX_RECORDED_OPERATIONS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::recorded_operations")]
    pub waiting: Vec<RecordedOperation>,
    /// Number of operations left out of `waiting`.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting_left_out: u32,
    /// The last operation that it scheduled, if that one has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ended: Option<RecordedOperation>,
}

/// An operation in a dump of the Flight Recorder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RecordedOperation {
    /// Sequence number among the collective operations of its group. `collective_seq_id`. A send or receive has the
    /// number of the collective operation before it.
    pub sequence: u64,
    /// It sends to or receives from one rank.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_point_to_point: bool,
    /// Backend and kind, for example `nccl:all_reduce`. `profiling_name`.
    pub name: SafeText,
    /// Time from its start until the dump. `time_created_ns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<f64>,
    /// The Python frames that started it, innermost first, at most [`limits::MAX_FRAMES`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::frames")]
    pub frames: Vec<Frame>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}
