//! What /proc tells: the host, its processes, and how many probes run on it.

mod census;
mod file;
mod host;
mod pci;
mod rates;
mod stat;
mod status;

pub(crate) use census::{Census, PROBE_NAME};
pub(crate) use file::{KeptFile, Scratch};
pub(crate) use host::{HostSampler, boot_id, cpu_count, memory_total_bytes};
pub(crate) use stat::{Stat, TICKS_PER_SECOND};
pub(crate) use status::{ignores_hangup, real_uid};
