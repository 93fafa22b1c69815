//! One process.

use super::rfc3339_of_unix;
use crate::fleet::{Host, Process};
use crate::wire::{GpuProcessKind, Presence, ProcessState, SafeText};
use serde::Serialize;

/// One process on the GPUs of a host. Its identity is (`boot_id`, `pid`, `start_ticks`).
#[derive(Debug, Serialize)]
pub struct JsonProcess {
    /// Process id; `null` where the driver does not tell it.
    pub pid: Option<u32>,
    /// The host's boot id.
    pub boot_id: Option<SafeText>,
    /// Start time in clock ticks after boot.
    pub start_ticks: Option<u64>,
    /// Start time, RFC 3339: for people, never for identity.
    pub start_time: Option<String>,
    /// Age, seconds.
    pub age_seconds: Option<f64>,
    /// Login name.
    pub user: Option<SafeText>,
    /// Real user id.
    pub uid: Option<u32>,
    /// The kernel's short name.
    pub name: Option<SafeText>,
    /// The arguments in one line, secrets redacted.
    pub command: Option<SafeText>,
    /// Letter of the scheduler state, as `ps` shows it.
    pub state: Option<ProcessState>,
    /// `visible`, `hidden` (by /proc), `gone` (yet the driver lists it).
    pub presence: Option<Presence>,
    /// `C`, `G`, `C+G` or `M`, as `nvidia-smi` writes it; that of its first GPU.
    pub kind: Option<GpuProcessKind>,
    /// Indexes of its GPUs, ascending.
    pub gpus: Vec<u32>,
    /// UUIDs of its GPUs, in the order of `gpus`.
    pub gpu_uuids: Vec<Option<SafeText>>,
    /// Memory on all its GPUs, bytes.
    pub gpu_memory_bytes: Option<u64>,
    /// The highest SM share on any of its GPUs, percent.
    pub sm_percent: Option<u8>,
    /// CPU share, percent; 100 is one CPU.
    pub cpu_percent: Option<f32>,
    /// CPU time since it began, seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory, bytes.
    pub rss_bytes: Option<u64>,
    /// What it is grouped with on its host: `slurm:3385`, `container:docker/0123456789ab`, `launcher:5061` (its pid),
    /// `session:4211`. Processes of one host with the same word are one job.
    pub job: SafeText,
}

impl JsonProcess {
    pub(super) fn new(host: &Host, process: &Process) -> Self {
        let facts = process.facts();
        let reading = &process.reading;
        let mut gpus: Vec<_> = process.gpu_positions().filter_map(|position| host.gpu_info(position)).collect();
        gpus.sort_by_key(|info| info.index);
        Self {
            pid: (process.key.pid != 0).then_some(process.key.pid),
            boot_id: process.key.boot_id.clone(),
            start_ticks: process.key.start_ticks,
            start_time: facts.and_then(|facts| {
                let by_its_clock = facts.start_unix_seconds?;
                // A host whose clock is wrong counts from a wrong boot time.
                rfc3339_of_unix(by_its_clock.saturating_sub(host.clock_error_seconds().unwrap_or(0)))
            }),
            age_seconds: reading.age_seconds,
            user: facts.and_then(|facts| facts.user.clone()),
            uid: facts.and_then(|facts| facts.uid),
            name: facts.and_then(|facts| facts.name.clone()),
            command: facts.filter(|facts| !facts.argv.is_empty()).map(|_| process.info.command.clone()),
            state: reading.state,
            presence: reading.presence.filter(|presence| *presence != Presence::Unknown),
            kind: process.gpus.iter().find_map(|usage| usage.kind).filter(|kind| *kind != GpuProcessKind::Unknown),
            gpus: gpus.iter().map(|info| info.index).collect(),
            gpu_uuids: gpus.iter().map(|info| info.uuid.clone()).collect(),
            gpu_memory_bytes: process.gpu_memory_bytes(),
            sm_percent: process.sm_percent().map(|(_, most)| most),
            cpu_percent: reading.cpu_percent,
            cpu_seconds: reading.cpu_seconds,
            rss_bytes: reading.rss_bytes,
            job: SafeText::from(process.info.job.to_string()),
        }
    }
}
