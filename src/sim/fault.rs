//! Faults of jobs and hosts in the simulated fleet.

use crate::wire::RecoveryAction;

/// Seconds per minute; faults are scheduled in minutes.
pub(super) const MINUTE: f64 = 60.0;

/// A fault of a job, with times in seconds after the start of the simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct JobFault {
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) kind: JobFaultKind,
}

/// The kinds of job faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobFaultKind {
    /// A collective never completes: all ranks spin.
    Hangs,
    /// This rank, counted from 0, stops, and the others spin while they wait for it.
    LosesRank(usize),
    /// The job waits for a lock and does nothing.
    Stalls,
    /// This rank does less than the others.
    Straggles(usize),
    /// The CPUs decode input too slowly.
    Starves,
    /// A system call does not return: disk sleep.
    Waits,
    /// The job is stopped with Ctrl-Z.
    Stops,
    /// The job was killed, but one of its threads is still in the driver.
    Lingers,
    /// The job is gone, but the driver has not released its memory.
    LeavesMemory,
    /// The launcher was killed and the workers still run.
    LosesLauncher,
    /// The job runs, but no longer writes its log.
    FallsSilent,
    /// The GPU overheats.
    Overheats,
}

/// How a rank uses its GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum GpuUse {
    /// As usual for its workload.
    Works,
    /// A kernel waits: 100 % busy at low power.
    Spins,
    /// Idle.
    Rests,
    /// As usual for its workload, for this fraction of the time.
    Less(f64),
}

impl JobFault {
    /// Creates a fault between two minutes after the start of the simulation.
    pub(super) fn new(from: f64, until: f64, kind: JobFaultKind) -> Self {
        Self { from: from * MINUTE, until: until * MINUTE, kind }
    }

    /// Returns whether the fault is active.
    pub(super) fn is_at(&self, elapsed: f64) -> bool {
        self.from <= elapsed && elapsed < self.until
    }
}

impl JobFaultKind {
    /// Returns how a rank uses its GPU during the fault.
    pub(super) fn mode(self, rank: usize) -> GpuUse {
        match self {
            Self::Hangs => GpuUse::Spins,
            Self::LosesRank(lost) if lost != rank => GpuUse::Spins,
            Self::LosesRank(_)
            | Self::Stalls
            | Self::Waits
            | Self::Stops
            | Self::Lingers
            | Self::LeavesMemory
            | Self::LosesLauncher => GpuUse::Rests,
            Self::Straggles(slow) if slow == rank => GpuUse::Less(0.58),
            Self::Starves => GpuUse::Less(0.16),
            Self::Straggles(_) | Self::FallsSilent | Self::Overheats => GpuUse::Works,
        }
    }
}

/// A fault of a host, with times in seconds after the start of the simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HostFault {
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) kind: HostFaultKind,
}

/// The kinds of host faults. GPUs are positions on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum HostFaultKind {
    /// The network is down.
    Away,
    /// The driver does not answer.
    Mute,
    /// A GPU fell off the bus.
    Lost { gpu: usize },
    /// The driver reports an Xid once.
    Xid { gpu: usize, number: u64 },
    /// The power brake slows these GPUs down for part of the time.
    Brake { first: usize, last: usize },
    /// Uncorrectable memory errors; the row is pending replacement.
    BadRow { gpu: usize, errors: u64 },
    /// The driver recommends a recovery action.
    Asks { gpu: usize, action: RecoveryAction },
    /// An NVLink is down.
    LinkDown { gpu: usize, link: u8 },
    /// The PCIe link trained at an older generation than possible.
    SlowLink { gpu: usize, generation: u8 },
    /// A file server does not answer.
    Silent { mount: &'static str },
    /// A file system fills up, between two usages in percent.
    Fills { mount: &'static str, from: f64, to: f64 },
    /// The memory of the host fills up to this usage in percent.
    Swells { to: f64 },
    /// The OOM killer kills a process, once.
    Kill,
}

impl HostFault {
    /// Creates a fault between two minutes after the start of the simulation.
    pub(super) fn new(from: f64, until: f64, kind: HostFaultKind) -> Self {
        Self { from: from * MINUTE, until: until * MINUTE, kind }
    }

    /// Creates a fault that lasts forever.
    pub(super) fn since(from: f64, kind: HostFaultKind) -> Self {
        Self::new(from, f64::INFINITY, kind)
    }

    /// Returns whether the fault is active.
    pub(super) fn is_at(&self, elapsed: f64) -> bool {
        self.from <= elapsed && elapsed < self.until
    }

    /// Returns how long the fault has lasted, in seconds.
    pub(super) fn seconds(&self, elapsed: f64) -> f64 {
        (elapsed.min(self.until) - self.from).max(0.0)
    }

    /// Returns the progress of the fault, 0 to 1.
    pub(super) fn share(&self, elapsed: f64) -> f64 {
        (self.seconds(elapsed) / (self.until - self.from)).clamp(0.0, 1.0)
    }

    /// Returns whether a host with this many GPUs has the affected ones.
    pub(super) fn fits(&self, gpus: usize) -> bool {
        match self.kind {
            HostFaultKind::Lost { gpu }
            | HostFaultKind::Xid { gpu, .. }
            | HostFaultKind::BadRow { gpu, .. }
            | HostFaultKind::Asks { gpu, .. }
            | HostFaultKind::LinkDown { gpu, .. }
            | HostFaultKind::SlowLink { gpu, .. } => gpu < gpus,
            HostFaultKind::Brake { last, .. } => last < gpus,
            _ => true,
        }
    }
}
