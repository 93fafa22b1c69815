//! The state of a GPU in one word.

/// What a GPU is doing, computed once by `diagnosis`; the first that matches wins, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GpuState {
    /// The driver reports an error for it.
    Fault,
    /// A stuck-* finding fires.
    Hung,
    /// No fresh data.
    Unknown,
    /// Utilisation of 5 % or more within the last 60 s, or held for under 5 min.
    InUse,
    /// A model server holds it and waits for requests.
    Waiting,
    /// 500 MiB or more held, under 5 % for 5 min or longer.
    Idle,
    /// No compute process, nothing held, not allocated, not reserved.
    Free,
    /// Free to look at, but reserved in hosts.toml or allocated to somebody who does not use it.
    Unused,
}

impl GpuState {
    /// Every state, in the order in which the first match wins.
    pub const ALL: [Self; 8] =
        [Self::Fault, Self::Hung, Self::Unknown, Self::InUse, Self::Waiting, Self::Idle, Self::Free, Self::Unused];

    /// The word for people. A suspected hang always carries its question mark.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Hung => "hung?",
            Self::Unknown => "unknown",
            Self::InUse => "in use",
            Self::Waiting => "waiting",
            Self::Idle => "idle",
            Self::Free => "free",
            Self::Unused => "unused",
        }
    }

    /// The word that JSON carries.
    pub fn json_word(self) -> &'static str {
        match self {
            Self::Hung => "hung",
            Self::InUse => "in_use",
            other => other.word(),
        }
    }
}
