//! What affects a job in the course of the demo.

use crate::wire::RecoveryAction;

/// Seconds of a minute; faults are scheduled in minutes.
pub(super) const MINUTE: f64 = 60.0;

/// Something that affects a job, in seconds after the start of the demo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct JobFault {
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) what: JobFaultKind,
}

/// What affects a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobFaultKind {
    /// A collective waits for something that does not come: all ranks spin.
    Hangs,
    /// One rank, counted from 0, stops in its tracks, and the others spin while they wait for it.
    LosesRank(usize),
    /// It waits for a lock and does nothing at all.
    Stalls,
    /// One rank does less than the others.
    Straggles(usize),
    /// The CPUs no longer decode fast enough.
    Starves,
    /// A system call does not come back: disk sleep.
    Waits,
    /// Somebody pressed Ctrl-Z.
    Stops,
    /// It was killed, and a thread of it is still in the driver.
    Lingers,
    /// It is gone, and the driver has not released its memory.
    LeavesMemory,
    /// Its launcher was killed, and its workers were not sent_facts.
    LosesLauncher,
    /// It goes on and no longer writes its log.
    FallsSilent,
    /// The air around its GPU gets too warm.
    Overheats,
}

/// How a rank uses its GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum GpuUse {
    /// As its kind of work does.
    Works,
    /// One kernel that waits: busy throughout, next to no power.
    Spins,
    /// Not at all.
    Rests,
    /// As its kind of work does, for this part of the time.
    Less(f64),
}

impl JobFault {
    /// From the minute `from` to the minute `until` after the start of the demo.
    pub(super) fn new(from: f64, until: f64, what: JobFaultKind) -> Self {
        Self { from: from * MINUTE, until: until * MINUTE, what }
    }

    /// Whether it is at this moment.
    pub(super) fn is_at(&self, elapsed: f64) -> bool {
        self.from <= elapsed && elapsed < self.until
    }
}

impl JobFaultKind {
    /// How a rank uses its GPU meanwhile.
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

/// Something that affects a host, in seconds after the start of the demo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HostFault {
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) what: HostFaultKind,
}

/// What affects a host. GPUs are positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum HostFaultKind {
    /// Its network is away.
    Away,
    /// The driver answers no call.
    Mute,
    /// A GPU fell off the bus.
    Lost { gpu: usize },
    /// The driver reports an error of a GPU, once.
    Xid { gpu: usize, number: u64 },
    /// The chassis holds these GPUs down for a part of the time.
    Brake { first: usize, last: usize },
    /// Memory errors that could not be corrected; the row waits to be replaced.
    BadRow { gpu: usize, errors: u64 },
    /// The driver asks for a person.
    Asks { gpu: usize, action: RecoveryAction },
    /// An NVLink is down.
    LinkDown { gpu: usize, link: u8 },
    /// The PCIe link came up at an older generation than it could.
    SlowLink { gpu: usize, generation: u8 },
    /// A file server does not answer.
    Silent { mount: &'static str },
    /// A filesystem fills up, from one share to another, in percent.
    Fills { mount: &'static str, from: f64, to: f64 },
    /// The host's memory fills up, to this share at the end, in percent.
    Swells { to: f64 },
    /// The kernel kills a process for memory, once.
    Kill,
}

impl HostFault {
    /// From the minute `from` to the minute `until` after the start of the demo.
    pub(super) fn new(from: f64, until: f64, what: HostFaultKind) -> Self {
        Self { from: from * MINUTE, until: until * MINUTE, what }
    }

    /// Something that happens once, and cannot be undone.
    pub(super) fn since(from: f64, what: HostFaultKind) -> Self {
        Self::new(from, f64::INFINITY, what)
    }

    /// Whether it is at this moment.
    pub(super) fn is_at(&self, elapsed: f64) -> bool {
        self.from <= elapsed && elapsed < self.until
    }

    /// For how long it has been, or was, by this moment.
    pub(super) fn seconds(&self, elapsed: f64) -> f64 {
        (elapsed.min(self.until) - self.from).max(0.0)
    }

    /// How far it has come, 0 to 1.
    pub(super) fn share(&self, elapsed: f64) -> f64 {
        (self.seconds(elapsed) / (self.until - self.from)).clamp(0.0, 1.0)
    }

    /// Whether a host with this many GPUs has those that it is about.
    pub(super) fn fits(&self, gpus: usize) -> bool {
        match self.what {
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
