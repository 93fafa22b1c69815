//! The state kept for each GPU, process and job of a host between samples, beyond the history that charts show. It is
//! bounded, and holds only what the rules need.

mod baseline;
mod gpu;
mod job;
mod leak;
mod process;
mod waits;
mod window;

pub(super) use baseline::{Baseline, Comparison};
pub(super) use gpu::{Allocation, GpuTrack, SpinThresholds, gpu_identity};
pub(super) use job::{IdleThresholds, JobGpu, JobTrack, LOOP_CORES, STILL_CORES_UNKNOWN};
pub(super) use leak::{AvailableMemory, Leak, Shrinkage, detect_leak};
pub(super) use process::{LogTrack, ProcessTrack, WaitingClients, gpu_positions, group_by_job};
pub(super) use window::{REACH_SECONDS, WindowStats};

use std::collections::VecDeque;

/// The maximum number of events kept, per kind.
pub(super) const MAX_EVENTS: usize = 64;

/// Adds an event and drops the oldest one beyond the limit.
pub(super) fn push_bounded<T>(events: &mut VecDeque<T>, event: T) {
    if events.len() >= MAX_EVENTS {
        events.pop_front();
    }
    events.push_back(event);
}
