//! The contract between the probe and the controller, and nothing else.
//!
//! The probe writes [`Message`]s and reads [`Request`]s, each one line of JSON. The controller does the reverse.
//! Both sides import this module only; neither sees the other's code.
//!
//! Rules that hold for every field:
//! - The unit is in the name (`power_watts`, `memory_used_bytes`).
//! - Every reading is optional. `None` (or a column that is left out) means "not known"; it never means zero.
//! - Text is [`SafeText`]: what a hostile host sends cannot reach a terminal as anything but visible characters.
//! - Unknown fields are ignored and every enum has a variant for what is unknown, so that a newer probe can talk to an
//!   older controller of the same protocol. A [`Request`] that the probe does not know is refused by its id.

pub mod codec;
#[cfg(feature = "controller")]
pub mod format;
pub mod gpu;
pub mod host;
pub mod message;
pub mod process;
pub mod redact;
pub mod safe_text;

mod columns;
mod open_enum;

pub use gpu::{
    Availability, ClocksEventReasons, ComputeMode, DeviceError, GpuColumns, GpuHealth, GpuHealthColumns, GpuInfo,
    GpuReading, RecentPast, RecoveryAction, XidEvent,
};
pub use host::{Filesystem, HostReading, Scope};
pub use message::{
    DriverError, DriverErrorKind, Hello, Inventory, Message, PROTOCOL, ProbeCost, ReadingSource, Reply, ReplyOutcome,
    Request, Signal, Snapshot,
};
pub use process::{
    Ancestor, GpuProcessColumns, GpuProcessKind, GpuProcessReading, Owner, Presence, ProcessColumns, ProcessFacts,
    ProcessReading, ProcessState,
};
pub use safe_text::SafeText;
