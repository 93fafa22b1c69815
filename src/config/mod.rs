//! `hosts.toml` and the targets of the command line: text goes in, [`HostConfig`]s come out.
//!
//! [`HostsFile::parse`] reads a file, [`parse_target`] one word of the command line, and [`select`] merges both into the
//! hosts of the fleet. Errors carry the path, line and column of every mistake and a hint ([`FileDiagnostics`]).
//!
//! The module is pure: it starts no process, opens no socket and reads no clock.

mod diagnostic;
mod file;
mod host_config;
mod nodeset;
mod notifications;
mod prices;
mod section;
mod select;
mod targets;
pub mod thresholds;
mod values;

pub use crate::wire::shell::shell_word;
pub use diagnostic::{Diagnostic, FileDiagnostics, did_you_mean, nearest};
pub use file::{HostEntry, HostsFile, MAX_FILE_BYTES, SourceLocation};
pub use host_config::{Backend, ExamineRule, HostConfig, ProbeChoice, RasRule, Sharing, SignalRule};
pub use notifications::{MinSeverity, Notifications, Rate};
pub use prices::{MAX_PRICE, Prices};
pub use select::{Overrides, SelectError, Selection, select};
pub use targets::{Hop, HostTarget, Target, TargetError, parse_hops, parse_target, parse_word_list};
pub use thresholds::{PARAMETERS, RULES, Thresholds};
pub use values::{DurationError, parse_interval, parse_seconds};
pub(crate) use values::{boolean, mismatch, not_among, parse_indexes, unknown_key};
