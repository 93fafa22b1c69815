//! The input of [`judge`](super::judge): the examinations of the ranks of one job.

use crate::fleet::{HostId, Moment, ProcessKey};
use crate::wire::{Examination, SafeText};
use std::time::Duration;

/// The least time between two readings that show that nothing moves. NCCL RAS and a stack show one moment each, and ranks
/// wait for each other for some seconds in a healthy job.
pub const MIN_APART: Duration = Duration::from_secs(60);

/// One job, with all its ranks on watched hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobEvidence {
    /// The name of the job for the heading: `job 3385`, or the command.
    pub name: SafeText,
    /// When the evidence was put together.
    pub at: Moment,
    /// How long a finding about the job has held. `None` without a finding.
    pub lasted: Option<Duration>,
    /// Whether `lasted` is a lower bound.
    pub lasted_is_at_least: bool,
    /// The job serves models. It may then run its operations from CUDA graphs, which NCCL does not count.
    pub serves_models: bool,
    /// The ranks in any order.
    pub ranks: Vec<RankEvidence>,
    /// Number of processes of the job that were not examined because there are too many.
    pub ranks_left_out: usize,
}

/// One process of the job.
#[derive(Debug, Clone, PartialEq)]
pub struct RankEvidence {
    /// The host.
    pub host: HostId,
    /// The display name of the host.
    pub host_name: SafeText,
    /// IP addresses and names of the host that are known from elsewhere, such as the address that gpufleet connects to. May
    /// be empty.
    pub host_addresses: Vec<SafeText>,
    /// The identity of the process.
    pub key: ProcessKey,
    /// The pid in the pid namespace of the host.
    pub pid: u32,
    /// The process belongs to the login user, so that it can be examined.
    pub is_mine: bool,
    /// Its owner.
    pub user: Option<SafeText>,
    /// Its GPUs.
    pub gpus: Vec<RankGpu>,
    /// The readings, oldest first. A full judgement needs two that are at least [`MIN_APART`] apart.
    pub readings: Vec<RankReading>,
    /// The end of its log. `None` if it was not read.
    pub log: Option<LogTail>,
    /// The reason why its log could not be read. Empty if it was read or not asked for.
    pub log_refusal: SafeText,
}

/// The latest readings of a GPU of a rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankGpu {
    /// NVML's index.
    pub index: u32,
    /// Percentage of time in which a kernel ran.
    pub utilization_percent: Option<u8>,
    /// Power draw.
    pub power_watts: Option<f32>,
    /// The enforced power limit.
    pub power_limit_watts: Option<f32>,
    /// Median power draw while this job was healthy. Used where NVML knows no power limit (GB10, Jetson).
    pub healthy_power_watts: Option<f32>,
    /// A rule found over minutes that it waits, compared with its own past: a kernel that waits on every multiprocessor draws more
    /// than others that wait.
    pub waits_by_rule: bool,
    /// Percentage of time in which tensor cores were busy. GPM `ANY_TENSOR_UTIL`.
    pub tensor_percent: Option<f32>,
    /// Percentage of the memory bandwidth in use. GPM `DRAM_BW_UTIL`.
    pub dram_percent: Option<f32>,
    /// NVLink traffic, both directions together.
    pub nvlink_bytes_per_second: Option<f64>,
    /// PCIe traffic, both directions together.
    pub pcie_bytes_per_second: Option<f64>,
}

/// One examination of a rank, with the readings of the same moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankReading {
    /// When the answer arrived.
    pub at: Moment,
    /// The answer. Only one rank of a job needs a RAS report, which is about the whole job.
    pub examination: Examination,
    /// CPU utilization; 100 is one CPU.
    pub cpu_percent: Option<f32>,
    /// CPU utilization of its descendants, such as the workers of a data loader; 100 is one CPU.
    pub descendants_cpu_percent: Option<f32>,
    /// Bytes written to storage since it started.
    pub write_bytes: Option<u64>,
    /// Bytes read, from storage or not, since it started.
    pub read_bytes: Option<u64>,
    /// Time since the last write to its log.
    pub log_age: Option<Duration>,
}

/// The end of the log of a rank. Its first lines may be those of an earlier run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogTail {
    /// Path of the file.
    pub path: SafeText,
    /// The last lines, oldest first.
    pub lines: Vec<SafeText>,
    /// Time since the last write to the file.
    pub age: Option<Duration>,
    /// How long the process has run.
    pub process_age: Option<Duration>,
}
