//! What is known of the host itself.

use super::SafeText;
use serde::{Deserialize, Serialize};

/// Readings of the host at one moment. Rates are over the time since the previous snapshot, so the first has none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReading {
    /// Share of all CPUs' time not spent idle or waiting for I/O since the previous snapshot. `/proc/stat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f32>,
    /// Share of all CPUs' time spent idle while I/O was outstanding. `/proc/stat`, `iowait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_wait_percent: Option<f32>,
    /// Load average of 1 minute. `/proc/loadavg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_1: Option<f32>,
    /// Load average of 5 minutes. `/proc/loadavg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_5: Option<f32>,
    /// Load average of 15 minutes. `/proc/loadavg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_15: Option<f32>,
    /// `/proc/meminfo`, `MemTotal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// As of the last 4 s, as all of `/proc/meminfo`: `MemAvailable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
    /// `/proc/meminfo`, `SwapTotal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_total_bytes: Option<u64>,
    /// `/proc/meminfo`, `SwapFree`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_free_bytes: Option<u64>,
    /// `/proc/uptime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_seconds: Option<f64>,
    /// Share of time in which some task waited for I/O, over 60 s. `/proc/pressure/io`, `some avg60`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_io_percent: Option<f32>,
    /// Share of time in which some task waited for memory, over 60 s. `/proc/pressure/memory`, `some avg60`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_memory_percent: Option<f32>,
    /// Processes killed by the out-of-memory killer since boot. `/proc/vmstat`, `oom_kill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Share of time in which some task waited for a CPU, over 60 s. `/proc/pressure/cpu`, `some avg60`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_cpu_percent: Option<f32>,
    /// Tasks in uninterruptible sleep. `/proc/stat`, `procs_blocked`. It may read 0 with one there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_blocked: Option<u32>,
    /// Bytes a second received on all interfaces that are hardware, where there is none (a container) on all but
    /// loopback, over the last 4 s. `/sys/class/net/*/statistics/rx_bytes`. Absent in the first snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_receive_bytes_per_second: Option<f64>,
    /// Bytes a second sent on the same interfaces. `/sys/class/net/*/statistics/tx_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_transmit_bytes_per_second: Option<f64>,
    /// Bytes a second read from all disks that are hardware: what goes through volumes and RAIDs on them counts once,
    /// over the last 4 s. `/sys/block/*/stat`. Absent in the first snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read_bytes_per_second: Option<f64>,
    /// Bytes a second written to the same disks. `/sys/block/*/stat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_write_bytes_per_second: Option<f64>,
    /// Display-class PCI devices of NVIDIA that the NVIDIA driver holds: a GPU that fell out of NVML is still among
    /// them. `/sys/bus/pci/drivers/nvidia`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvidia_pci_devices: Option<u32>,
    /// The filesystems of home and of the working directories of GPU processes, when they were asked; what was sent
    /// last holds until the next.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<Filesystem>,
    /// GPUs that Slurm has given to jobs, by index, whether they are used or not; asked once a minute.
    /// `scontrol -d -o show node`, `GresUsed`. What was sent last holds until the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_allocated_gpus: Option<Vec<u32>>,
    /// The Slurm cluster this host belongs to. `scontrol show config`, `ClusterName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_cluster: Option<SafeText>,
}

/// One filesystem. `statvfs(3)` in a child of its own, because it may never come back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filesystem {
    /// Where it is mounted.
    pub mount_point: SafeText,
    /// Its type as `/proc/self/mountinfo` names it, for example `ext4` or `nfs4`.
    pub kind: SafeText,
    /// Its size. Absent while it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// What an ordinary user may still take (`f_bavail`). Absent while it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// Seconds since which it has not answered. Absent when it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f32>,
    /// Tries in a row that ran out of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u32>,
}

impl HostReading {
    /// Memory in use: total less available.
    pub fn memory_used_bytes(&self) -> Option<u64> {
        Some(self.memory_total_bytes?.saturating_sub(self.memory_available_bytes?))
    }
}

/// How much of the machine the probe can see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum Scope {
    /// The whole host.
    Host,
    /// The login runs inside a Slurm job (pam_slurm_adopt): only that job's GPUs may be visible.
    SlurmJob(SafeText),
    /// The login runs inside a container.
    Container(SafeText),
    /// A part that this version does not know.
    #[serde(other)]
    Unknown,
}

super::open_enum::open_enums!(Scope);
