//! Readings of the host.

use super::{SafeText, limits};
use serde::{Deserialize, Serialize};

/// Readings of the host in one sample. Rates cover the time since the previous snapshot, so the first snapshot has
/// none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostReading {
    /// Percentage of the time of all CPUs that was neither idle nor I/O wait. `/proc/stat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f32>,
    /// Percentage of the time of all CPUs that was idle with I/O outstanding. `/proc/stat`, `iowait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_wait_percent: Option<f32>,
    /// Load average over 1 minute. `/proc/loadavg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_1: Option<f32>,
    /// Load average over 5 minutes. `/proc/loadavg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_5: Option<f32>,
    /// Load average over 15 minutes. `/proc/loadavg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_15: Option<f32>,
    /// Total memory. `/proc/meminfo`, `MemTotal`. All values of this file are up to 4 s old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Memory that is available without swapping. `/proc/meminfo`, `MemAvailable`, and what the cache of ZFS can give
    /// back: `size` less `c_min` of `/proc/spl/kstat/zfs/arcstats`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
    /// Total swap. `/proc/meminfo`, `SwapTotal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_total_bytes: Option<u64>,
    /// Unused swap. `/proc/meminfo`, `SwapFree`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_free_bytes: Option<u64>,
    /// Time since boot, suspend included. `clock_gettime(CLOCK_BOOTTIME)`, as in `/proc/uptime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_seconds: Option<f64>,
    /// Percentage of time in which some task waited for I/O, over 60 s. `/proc/pressure/io`, `some avg60`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_io_percent: Option<f32>,
    /// Percentage of time in which some task waited for memory, over 60 s. `/proc/pressure/memory`, `some avg60`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_memory_percent: Option<f32>,
    /// Processes killed by the out-of-memory killer since boot. `/proc/vmstat`, `oom_kill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Percentage of time in which some task waited for a CPU, over 60 s. `/proc/pressure/cpu`, `some avg60`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_cpu_percent: Option<f32>,
    /// Tasks in uninterruptible sleep. `/proc/stat`, `procs_blocked`. It may be 0 although there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_blocked: Option<u32>,
    /// Bytes per second received on all hardware interfaces, or on all interfaces except loopback if there is no
    /// hardware interface (a container), over the last 4 s. `/sys/class/net/*/statistics/rx_bytes`. Absent in the first
    /// snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_receive_bytes_per_second: Option<f64>,
    /// Bytes per second sent on those interfaces. `/sys/class/net/*/statistics/tx_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_transmit_bytes_per_second: Option<f64>,
    /// Bytes per second read from all hardware disks, over the last 4 s; traffic of volumes and RAIDs counts once.
    /// `/sys/block/*/stat`. Absent in the first snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read_bytes_per_second: Option<f64>,
    /// Bytes per second written to those disks. `/sys/block/*/stat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_write_bytes_per_second: Option<f64>,
    /// Display-class PCI devices that the NVIDIA driver holds, including a GPU that NVML has lost.
    /// `/sys/bus/pci/drivers/nvidia`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvidia_pci_devices: Option<u32>,
    /// File systems of the home directory and of the working directories of GPU processes, when they have changed. The
    /// last ones sent apply until the next. At most [`limits::MAX_FILESYSTEMS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::filesystems")]
    pub filesystems: Vec<Filesystem>,
    /// Indices of the GPUs that Slurm has allocated to jobs, used or not, read once a minute. `scontrol -d -o show
    /// node`, `GresUsed`. The last value sent applies until the next. At most [`limits::MAX_SLURM_GPUS`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "limits::slurm_gpus")]
    pub slurm_allocated_gpus: Option<Vec<u32>>,
    /// Running Slurm jobs with GPUs on this host, whether they use them or not, read when the allocated GPUs change and every
    /// 10 min. `squeue -w`, `scontrol -d -o show job`. The last value sent applies until the next. At most
    /// [`limits::MAX_SLURM_JOBS`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "limits::slurm_jobs")]
    pub slurm_jobs: Option<Vec<SlurmJob>>,
    /// Slurm jobs that have ended on this host, each when Slurm has told how, and all of the last jobs after a resend. Only jobs that
    /// had a process with a GPU here, or held a GPU. `scontrol show job`, which knows an ended job for `MinJobAge`. At most
    /// [`limits::MAX_SLURM_ENDS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::slurm_ends")]
    pub slurm_ends: Vec<SlurmJobEnd>,
    /// Slurm cluster of this host. `scontrol show config`, `ClusterName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_cluster: Option<SafeText>,
}

/// A running Slurm job with GPUs on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SlurmJob {
    /// Job id, as in cgroups: that of the task for a job array.
    pub job: SafeText,
    /// User.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<SafeText>,
    /// Indices of its GPUs on this host. `GRES=gpu:...(IDX:...)`. At most [`limits::MAX_GPUS`].
    #[serde(deserialize_with = "limits::slurm_job_gpus")]
    pub gpus: Vec<u32>,
}

/// Whether a text is the id of a Slurm job, which may become an argument of `scontrol`: a number, and no task of an array.
pub fn is_slurm_job_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// How a Slurm job ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SlurmJobEnd {
    /// Job id, as in cgroups.
    pub job: SafeText,
    /// State by Slurm's name, for example `COMPLETED`, `FAILED` or `PREEMPTED`. `PENDING` means that it was put back into the
    /// queue. `JobState`.
    pub state: SafeText,
    /// Exit status of the batch script. `ExitCode`, first number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<u32>,
    /// Signal that ended the batch script; absent if none did. `ExitCode`, second number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
}

/// A file system. `stat -f` in a child process, because statfs(2) may never return.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Filesystem {
    /// Mount point.
    pub mount_point: SafeText,
    /// File system type in `/proc/self/mountinfo`, for example `ext4` or `nfs4`.
    pub kind: SafeText,
    /// Size. Absent while the file system does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Space available to ordinary users (`f_bavail`). Absent while the file system does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// Time since which it has not answered. Absent if it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f32>,
    /// Number of consecutive queries that timed out; no rule uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u32>,
}

impl HostReading {
    /// Returns the memory in use: total minus available.
    pub fn memory_used_bytes(&self) -> Option<u64> {
        Some(self.memory_total_bytes?.saturating_sub(self.memory_available_bytes?))
    }
}

/// The part of the host that the probe can see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum Scope {
    /// The whole host.
    Host,
    /// The login is in a Slurm job (pam_slurm_adopt): only the GPUs of that job may be visible.
    SlurmJob(SafeText),
    /// The login is in a container.
    Container(SafeText),
    /// A scope that this version does not know.
    #[serde(other)]
    Unknown,
}

super::open_enum::open_enums!(Scope);
