//! Watches hosts: one task per host connects, runs the probe and sends [`crate::fleet::HostUpdate`]s.
//!
//! The bytes come from an SSH channel, where the remote script finds or uploads the probe, or from a simulated probe in
//! this process. From the byte stream on, both take the same path: `session` decodes lines and sends heartbeats, and
//! `host_task` reconnects. Without a probe, `nvidia_smi` speaks the same protocol on behalf of the host.

mod alignment;
mod channels;
mod clean;
mod connection_check;
mod earlier_slurm_jobs;
mod error;
mod host_task;
mod host_tasks;
mod install;
mod misbehavior;
mod nvidia_smi;
mod own_session;
mod picture_events;
mod picture_reading;
mod probe_binary;
mod read_budget;
mod relay;
mod relayed_hosts;
mod remote_command;
mod script;
mod session;

pub(crate) use alignment::arrival_window;
pub use channels::{Command, HostUpdates};
pub use clean::{Cleaned, clean};
pub use connection_check::{CheckStep, check_connection};
pub use host_tasks::HostTasks;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use nvidia_smi::fuzz as fuzz_nvidia_smi;
pub use picture_reading::{PictureReading, ReadingState};
pub use probe_binary::{DamagedProbe, EmbeddedProbe, ProbeBinary, ProbeStore, version_text};
pub use relay::{Picture, Relay, RelayRoute};
pub use relayed_hosts::{ConfigureHost, FirstPicture, FollowedCollector, NewHosts, RelayedHosts, RelayedParts};
pub use remote_command::{OpenChannel, OpenStream, Opening, Progress, Source};
