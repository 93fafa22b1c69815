//! The state kept for each GPU, process and job of a host between samples, beyond the history that charts show. It is
//! bounded, and holds only what the rules need.

mod baseline;
mod gpu;
mod job;
mod leak;
mod process;
mod waits;
mod window;

pub(super) use baseline::Baseline;
pub(super) use gpu::{GpuTrack, SpinThresholds, gpu_identity};
pub(super) use job::{IdleThresholds, JobGpu, JobTrack, LOOP_CORES, STILL_CORES_UNKNOWN};
pub(super) use leak::{AvailableMemory, Leak, Shrinkage, detect_leak};
pub(super) use process::{LogTrack, ProcessTrack, WaitingClients, gpu_positions, group_by_job};
pub(super) use window::WindowStats;
