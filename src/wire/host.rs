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
    /// `/proc/meminfo`, `MemAvailable`.
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
}

impl HostReading {
    /// Memory in use: total less available.
    pub fn memory_used_bytes(&self) -> Option<u64> {
        Some(self.memory_total_bytes?.saturating_sub(self.memory_available_bytes?))
    }
}

/// How much of the machine the probe can see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The whole host.
    Host,
    /// The login runs inside a Slurm job (pam_slurm_adopt): only that job's GPUs may be visible.
    SlurmJob(SafeText),
    /// The login runs inside a container.
    Container(SafeText),
}
