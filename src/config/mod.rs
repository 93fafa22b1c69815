//! `hosts.toml`: which hosts there are and how to reach them, as plain data.
//!
//! No processes, no network, no clock: text goes in, [`HostConfig`]s or an error with file, line and column come out.

pub mod address;
pub mod jump;
pub mod nearest;
pub mod nodeset;
pub mod values;

mod diagnostic;
mod file;
#[cfg(test)]
mod file_tests;
mod host_config;
mod notifications;
mod section;
mod select;
mod ssh_command;
mod targets;
pub mod thresholds;
mod thresholds_file;

pub use diagnostic::{Diagnostic, FileDiagnostics};
pub use file::{HostEntry, HostsFile, MAX_FILE_BYTES, SourceLocation};
pub use host_config::{Backend, HostConfig, ProbeChoice, SignalRule};
pub use jump::{Hop, parse_hops};
pub use notifications::{MinSeverity, Notifications, Rate};
pub(crate) use section::{boolean, mismatch, not_among, unknown_key};
pub use select::{Overrides, SelectError, Selection, select};
pub use ssh_command::shell_word;
pub use targets::{HostTarget, Target, TargetError, parse_target, parse_word_list};
pub use thresholds::{PARAMETERS, RULES, Thresholds};
