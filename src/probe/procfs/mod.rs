//! Readings from `/proc` and `/sys`: the host, its processes and their threads.
//!
//! [`HostSampler`] reads the host. [`ProcessSampler`] reads the processes that use a GPU: `process` holds one of them,
//! `own_process`, `sockets` and `sock_diag` what only its owner may read, `threads` its threads, and `descendants` the
//! workers below it, found by the incremental scan of /proc in `scan`, and `reruns` new runs of programs that left the GPUs. All
//! of them read through a [`FileReader`]. `process_root` opens files as a process
//! sees them, for examinations only, and may block.
//!
//! Nothing else here blocks. Files that may block (`cmdline`, `environ`) or take long (`net/tcp`, and the list of sockets) are read by a
//! [`BlockingPool`](crate::probe::blocking::BlockingPool).

mod descendants;
mod files;
mod host;
mod own_process;
mod process;
mod process_root;
mod process_sampler;
mod rates;
mod reruns;
mod scan;
mod sock_diag;
mod sockets;
mod threads;

pub(crate) use files::{
    FileReader, PROBE_NAME, Stat, TICKS_PER_SECOND, environment_variable, ignores_hangup, mounts, real_uid, started_at,
    status_field, unix_seconds,
};
pub(crate) use host::{HostSampler, SampleContext, boot_id, cpu_count, memory_total_bytes};
pub(crate) use own_process::is_file_path;
pub(crate) use process_root::{NEEDS_OPENAT2, open_as_process, open_directory_in_root, root_directory};
pub(crate) use process_sampler::ProcessSampler;
pub(crate) use sockets::{SocketList, rendezvous_port, socket_inodes, socket_list, table_line};
