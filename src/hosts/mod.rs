//! `hosts.toml`: which hosts there are and how to reach them, as plain data.
//!
//! No processes, no network, no clock: text goes in, [`HostConfig`]s or an error with file, line and column come out.

pub mod address;
pub mod jump;
pub mod nearest;
pub mod nodeset;
pub mod values;

mod complaint;
mod config;
mod file;
#[cfg(test)]
mod file_tests;
mod login;
mod notifications;
mod section;
mod select;
mod targets;
pub mod thresholds;
mod thresholds_file;

pub use complaint::{Complaint, FileComplaints};
pub use config::{Backend, HostConfig, ProbeChoice, SignalRule};
pub use file::{Entry, HostsFile, MAX_FILE_BYTES, Place};
pub use jump::{Hop, parse_hops};
pub use login::shell_word;
pub use notifications::{Notifications, NotifyFrom, Rate};
pub(crate) use section::{boolean, mismatch, not_among, unknown_key};
pub use select::{Overrides, SelectError, Selection, select};
pub use targets::{PlainTarget, Target, TargetError, parse_target, parse_word_list};
pub use thresholds::{PARAMETERS, RULES, Thresholds};
