//! What affects a job in the course of the demo.

use super::host_plan::MINUTE;

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
