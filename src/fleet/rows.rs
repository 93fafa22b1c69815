//! The rows of the combined process list.

use super::{GpuState, HostId, Moment, ProcessKey};
use crate::wire::{ProcessState, SafeText};

/// What stays the same about a row from one snapshot to the next: the selection and the tags hold on to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// The host.
    pub host: HostId,
    /// The process; for a job, its launcher or its first worker.
    pub process: ProcessKey,
    /// Whether the row stands for a whole job.
    pub is_job: bool,
}

/// Whether a row has rows below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfold {
    /// One process, nothing below.
    Leaf,
    /// A job whose processes are folded away.
    Folded,
    /// A job whose processes follow.
    Open,
    /// A process of an open job.
    Child,
}

/// One row of the combined list: a job on a host, or a process. Every figure that is not known is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its identity.
    pub key: RowKey,
    /// The host's name.
    pub host_name: SafeText,
    /// Indexes of the GPUs it uses, ascending.
    pub gpu_indexes: Vec<u32>,
    /// The process shown: a job's launcher where one is known.
    pub pid: Option<u32>,
    /// Who it belongs to: the user; for root or a shared account the Slurm job, pod or container.
    pub who: SafeText,
    /// Memory on all its GPUs together.
    pub gpu_memory_bytes: Option<u64>,
    /// That memory as a share of those GPUs' memory.
    pub gpu_memory_percent: Option<f32>,
    /// Least and most SM share over its GPUs.
    pub sm_percent: Option<(u8, u8)>,
    /// CPU share of all its processes, 100 = one CPU.
    pub cpu_percent: Option<f32>,
    /// Resident memory of all its processes.
    pub rss_bytes: Option<u64>,
    /// State of the leader.
    pub process_state: Option<ProcessState>,
    /// Age in seconds of the oldest process.
    pub age_seconds: Option<f64>,
    /// The worst state of its GPUs, and since when, where that is known.
    pub state: Option<(GpuState, Option<Moment>)>,
    /// Words for what is wrong with the process itself: `disk wait`, `stopped`, `zombie`, `memory not released`.
    pub trouble: Option<SafeText>,
    /// Command line of the process, or of the launcher.
    pub command: SafeText,
    /// How many processes it stands for.
    pub workers: u32,
    /// Whether it has rows below it.
    pub unfold: Unfold,
    /// Runs as the user that logged in there.
    pub is_mine: bool,
    /// The host's readings are not fresh.
    pub is_stale: bool,
    /// When it ended, for a row that is kept dim for ten minutes.
    pub ended_at: Option<Moment>,
}
