//! The protocol between the probe and the controller.
//!
//! The probe writes [`Message`]s and reads [`Request`]s, each as one line of JSON; the controller does the reverse.
//! Nothing else is shared between the two programs.
//!
//! Rules for every field:
//! - The unit is part of the name (`power_watts`, `memory_used_bytes`).
//! - Every reading is optional. `None`, or a column that is left out, means "unknown", never zero.
//! - Text is [`SafeText`]: a hostile host cannot send control or invisible characters to a terminal. A text has at most
//!   [`safe_text::MAX_BYTES`] bytes; a longer one is truncated.
//! - Every list has a limit ([`limits`]), which is checked while the line is decoded. Columns have at most as many rows
//!   as there are GPUs or processes ([`codec::check_limits`]).
//! - Unknown fields are ignored and every enum has a variant for unknown values, so that a newer probe can talk to an
//!   older controller of the same protocol. The probe refuses a [`Request`] that it does not know, by its id.

pub mod codec;
pub mod examination;
#[cfg(feature = "controller")]
pub mod format;
pub mod gpu;
pub mod host;
pub mod job_variables;
pub mod limits;
pub mod message;
pub mod process;
pub mod redact;
pub mod safe_text;
#[cfg(feature = "controller")]
pub mod shell;

mod columns;
pub(crate) mod open_enum;

pub use examination::{
    Communicator, Examination, ExaminationPart, ExaminationRefusal, FlightRecorderDump, Frame, LinkErrorCount,
    LinkReading, NamedRank, OperationCounts, Peer, ProcessExamination, RankAbsence, RanksAtCount, RasReport,
    RecordedGroup, RecordedOperation, StackDump, ThreadGroup, ThreadReading, ThreadStack,
};
pub use gpu::{
    Availability, ClocksEventReasons, ComputeMode, DeviceError, DriverError, DriverErrorKind, GpuColumns, GpuHealth,
    GpuHealthColumns, GpuInfo, GpuReading, RecentPast, RecoveryAction, XidEvent,
};
pub use host::{Filesystem, HostReading, Scope, SlurmJob, SlurmJobEnd, is_slurm_job_id};
pub use message::{
    Hello, Inventory, Message, NO_LOG_FILE, NOT_IN_PROC, NOT_PYTHON, PROTOCOL, ProbeCost, ReadingSource, Reply,
    ReplyOutcome, Request, Signal, Snapshot, WITHOUT_NCCL,
};
pub(crate) use process::RERUN_SECONDS;
pub use process::{
    Ancestor, GpuProcessColumns, GpuProcessKind, GpuProcessReading, Owner, Presence, ProcessColumns, ProcessFacts,
    ProcessReading, ProcessState,
};
pub use safe_text::SafeText;
