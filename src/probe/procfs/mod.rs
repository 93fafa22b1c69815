//! What /proc tells of the host and its processes.

mod file_reader;
mod host;
mod pci;
mod rates;
mod stat;
mod status;

pub(crate) use file_reader::{FileReader, OpenFile};
pub(crate) use host::{Forks, HostSampler, boot_id, cpu_count, memory_total_bytes};
pub(crate) use stat::{Stat, TICKS_PER_SECOND};
pub(crate) use status::{ignores_hangup, real_uid};

/// The name that every probe gives itself; the kernel keeps 15 bytes.
pub(crate) const PROBE_NAME: &std::ffi::CStr = c"gpufleet-probe";
