//! The table of all rules, and what is said of each to a person who asks.

use super::rules;

/// What is said of a rule: `gpufleet explain` prints it, and docs/diagnosis.md is made of it.
#[derive(Debug, Clone, Copy)]
pub struct RuleInfo {
    /// Its word, as in `[diagnosis]` of hosts.toml.
    pub word: &'static str,
    /// What it finds, in a few words.
    pub title: &'static str,
    /// When it fires, with the thresholds that are built in.
    pub fires: &'static str,
    /// What that means, most of the time.
    pub means: &'static str,
    /// What to do, or to look at next.
    pub next: &'static str,
    /// What it is not: what looks alike and does not fire.
    pub not: &'static str,
    /// What it cannot see.
    pub limits: &'static str,
    /// Where the rule, or its figures, come from.
    pub source: &'static str,
}

macro_rules! rules {
    ($($(#[$doc:meta])* $Rule:ident $info:path,)*) => {
        /// A rule. The order is that of the sheet and of [`crate::config::RULES`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum RuleId { $($(#[$doc])* $Rule,)* }

        impl RuleId {
            /// Every rule, in its order.
            pub const ALL: &[Self] = &[$(Self::$Rule),*];

            /// What is said of it.
            pub fn info(self) -> &'static RuleInfo {
                match self { $(Self::$Rule => &$info,)* }
            }
        }
    };
}

rules! {
    /// GPUs that say busy, draw little and move no memory, after healthy work.
    StuckSpin rules::stuck::STUCK_SPIN,
    /// The same, of a job whose healthy work was not seen.
    StuckSpinSuspect rules::stuck::STUCK_SPIN_SUSPECT,
    /// Some ranks spin, and others never arrived.
    MissingRank rules::stuck::MISSING_RANK,
    /// A job that worked and now does nothing at all.
    JobStalled rules::idle::JOB_STALLED,
    /// GPUs that wait for their data.
    InputStall rules::input::INPUT_STALL,
    /// A thread in uninterruptible sleep.
    DstateHang rules::process::DSTATE_HANG,
    /// A stopped process.
    StoppedHoldingGpu rules::process::STOPPED,
    /// A process that has ended and is not gone.
    ZombieHoldingGpu rules::process::ZOMBIE,
    /// Workers whose job is gone.
    OrphanHoldingGpu rules::process::ORPHAN,
    /// Memory that nobody accounts for.
    GhostMemory rules::process::GHOST,
    /// Memory held without work.
    IdleHog rules::idle::IDLE_HOG,
    /// A job is gone.
    JobEnded rules::ended::JOB_ENDED,
    /// A log that is no longer written.
    LogSilent rules::ended::LOG_SILENT,
    /// Busy, and far from its power limit.
    LowPowerHighUtil rules::balance::LOW_POWER,
    /// One GPU of a job behind the others.
    GpuImbalance rules::balance::IMBALANCE,
    /// Memory that is about to run out.
    GpuMemPressure rules::memory::PRESSURE,
    /// Memory that grows for hours.
    GpuMemLeak rules::memory::LEAK,
    /// The driver does not answer.
    ProbeBlocked rules::driver::PROBE_BLOCKED,
    /// A GPU that is gone.
    GpuLost rules::driver::GPU_LOST,
    /// The driver asks for a person.
    GpuNeedsAction rules::driver::NEEDS_ACTION,
    /// The driver reported an error.
    XidSeen rules::driver::XID,
    /// Library and kernel module differ.
    DriverMismatch rules::driver::MISMATCH,
    /// Hosts with different drivers.
    DriverSkew rules::fleet_wide::DRIVER_SKEW,
    /// Heat slows a GPU down.
    ThermalThrottle rules::gpu::THERMAL,
    /// The power brake slows a GPU down.
    PowerBrake rules::gpu::POWER_BRAKE,
    /// A GPU near its slowdown temperature.
    Temperature rules::gpu::TEMPERATURE,
    /// Memory errors that were not corrected.
    EccUncorrectable rules::gpu::ECC,
    /// Memory rows that wait to be replaced, or cannot be.
    RowRemap rules::gpu::ROW_REMAP,
    /// A PCIe link below what it can do.
    PcieDegraded rules::gpu::PCIE,
    /// An NVLink that went down.
    NvlinkDown rules::gpu::NVLINK,
    /// Persistence mode is off.
    PersistenceOff rules::gpu::PERSISTENCE,
    /// A host that cannot be reached.
    HostUnreachable rules::fleet_wide::UNREACHABLE,
    /// A host without free memory.
    HostRamLow rules::host::RAM,
    /// The kernel killed a process for memory.
    OomKill rules::host::OOM,
    /// A full filesystem.
    DiskFull rules::host::DISK,
    /// A filesystem that does not answer.
    NfsHang rules::host::NFS,
}

impl RuleId {
    /// Its word, as in `[diagnosis]` of hosts.toml and in JSON.
    pub fn word(self) -> &'static str {
        self.info().word
    }

    /// The rule of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RULES;

    #[test]
    fn the_table_has_the_rules_of_the_thresholds_in_their_order() {
        let words: Vec<&str> = RuleId::ALL.iter().map(|rule| rule.word()).collect();
        assert_eq!(words, RULES);
        for (index, rule) in RuleId::ALL.iter().enumerate() {
            assert_eq!(*rule as usize, index);
            assert_eq!(RuleId::from_word(rule.word()), Some(*rule));
        }
    }

    #[test]
    fn everything_is_said_of_every_rule() {
        for rule in RuleId::ALL {
            let info = rule.info();
            for text in [info.title, info.fires, info.means, info.next, info.not, info.limits, info.source] {
                assert!(text.len() > 3, "{}: {text:?}", info.word);
                assert!(!text.contains("TODO"), "{}", info.word);
            }
            for sentence in [info.fires, info.means, info.next, info.limits] {
                assert!(sentence.ends_with('.'), "{}: {sentence:?}", info.word);
            }
        }
    }
}
