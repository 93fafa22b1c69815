//! What is remembered of a host from one sample to the next, beyond the history that charts are drawn from: bounded,
//! and no more than the rules need.

mod balance;
mod baseline;
mod gpu;
mod host;
mod job;
mod process;

pub(super) use baseline::Baseline;
pub(super) use gpu::{GpuTrack, SpinThresholds};
pub(super) use host::{EndedJob, HostTrack, push_bounded};
pub(super) use job::{COMPUTES_ABOVE, IdleThresholds, JobGpu, JobTrack};
pub(super) use process::ProcessTrack;
