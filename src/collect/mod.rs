//! One task a host: a stream of probe lines in, [`crate::fleet::HostUpdate`]s out.
//!
//! The stream comes from SSH and the remote script, which finds or uploads the probe, or from a probe in this process
//! (the simulated fleet). From the byte stream onward both are the same.

mod backoff;
mod clean;
mod collector;
pub mod embedded;
mod examine;
mod failure;
mod host_task;
mod image;
mod install;
mod nvidia_smi;
mod random;
mod remote;
mod report;
mod script;
mod session;
mod source;

pub use clean::{Cleaned, clean};
pub use collector::{Collector, Command};
pub use examine::{Step, examine};
pub use image::{ProbeImage, ProbeStore};
pub use source::{OpenChannel, OpenStream, Opening, Progress, Source};
