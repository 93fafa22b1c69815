//! One task a host: a stream of probe lines in, [`crate::fleet::HostUpdate`]s out.
//!
//! The stream comes from SSH and the remote script, which finds or uploads the probe, or from a probe in this process
//! (the simulated fleet). From the byte stream onward both are the same.

mod backoff;
mod clean;
mod collector;
mod connection_check;
pub mod embedded;
mod host_task;
mod install;
mod link_errors;
mod nvidia_smi;
mod probe_binary;
mod random;
mod remote_command;
mod script;
mod session;
mod source;
mod update_sender;

pub use clean::{Cleaned, clean};
pub use collector::{Collector, Command};
pub use connection_check::{CheckStep, check_connection};
pub use probe_binary::{ProbeBinary, ProbeStore};
pub use source::{OpenChannel, OpenStream, Opening, Progress, Source};
