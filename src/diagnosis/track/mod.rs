//! What is remembered of a host from one sample to the next, beyond the history that charts are drawn from: bounded,
//! and no more than the rules need.

mod balance;
mod gpu;
mod host;
mod job;
mod past;
mod process;

pub(super) use gpu::{GpuTrack, SpinBounds};
pub(super) use host::{Ended, HostTrack, remember};
pub(super) use job::{COMPUTES_ABOVE, JobGpu, JobTrack, RestBounds};
pub(super) use past::Past;
pub(super) use process::ProcessTrack;
