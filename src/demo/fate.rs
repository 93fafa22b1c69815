//! What befalls a job in the course of the demo.

use super::plan::MINUTE;

/// Something that befalls a job, in seconds after the start of the demo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fate {
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) what: What,
}

/// What befalls a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
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
    /// Its launcher was killed, and its workers were not told.
    LosesLauncher,
    /// It goes on and no longer writes its log.
    FallsSilent,
    /// The air around its GPU gets too warm.
    Overheats,
}

/// How a rank uses its GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// As its kind of work does.
    Works,
    /// One kernel that waits: busy throughout, next to no power.
    Spins,
    /// Not at all.
    Rests,
    /// As its kind of work does, for this part of the time.
    Less(f64),
}

impl Fate {
    /// From the minute `from` to the minute `until` after the start of the demo.
    pub(super) fn new(from: f64, until: f64, what: What) -> Self {
        Self { from: from * MINUTE, until: until * MINUTE, what }
    }

    /// Whether it is at this moment.
    pub(super) fn is_at(&self, elapsed: f64) -> bool {
        self.from <= elapsed && elapsed < self.until
    }
}

impl What {
    /// How a rank uses its GPU meanwhile.
    pub(super) fn mode(self, rank: usize) -> Mode {
        match self {
            Self::Hangs => Mode::Spins,
            Self::LosesRank(lost) if lost != rank => Mode::Spins,
            Self::LosesRank(_)
            | Self::Stalls
            | Self::Waits
            | Self::Stops
            | Self::Lingers
            | Self::LeavesMemory
            | Self::LosesLauncher => Mode::Rests,
            Self::Straggles(slow) if slow == rank => Mode::Less(0.58),
            Self::Starves => Mode::Less(0.16),
            Self::Straggles(_) | Self::FallsSilent | Self::Overheats => Mode::Works,
        }
    }
}
