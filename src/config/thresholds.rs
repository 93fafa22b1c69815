//! When the rules of diagnosis fire: plain data with documented defaults, settable under `[diagnosis]` of hosts.toml.

use crate::wire::SafeText;

/// What a threshold is measured in, and so how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A duration in seconds, written as `"5m"`.
    Time,
    /// 0 to 100.
    Percent,
    /// A part of something else, or how many times it.
    Share,
    /// MiB of memory.
    Mebibytes,
    /// Degrees Celsius.
    Celsius,
    /// CPU cores.
    Cores,
    /// A number of things.
    Count,
}

impl Unit {
    /// In words, for messages and documents.
    pub fn words(self) -> &'static str {
        match self {
            Self::Time => "a duration",
            Self::Percent => "percent",
            Self::Share => "a share",
            Self::Mebibytes => "MiB",
            Self::Celsius => "degrees Celsius",
            Self::Cores => "CPU cores",
            Self::Count => "a count",
        }
    }
}

/// One threshold, for documents and for reading hosts.toml.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// The rule it belongs to.
    pub rule: &'static str,
    /// Its key below that rule.
    pub key: &'static str,
    /// What it is measured in.
    pub unit: Unit,
    /// What holds when nothing is said.
    pub default: f64,
    /// What it decides, as a phrase.
    pub about: &'static str,
}

macro_rules! thresholds {
    ($($Rule:ident $rule:ident $word:literal { $($key:ident: $unit:ident = $default:expr, $about:literal;)* })*) => {
        $(
            #[doc = concat!("Thresholds of `", $word, "`; durations are in seconds.")]
            #[derive(Debug, Clone, PartialEq)]
            pub struct $Rule { $(#[doc = concat!("As a quantity of this kind (`Unit::", stringify!($unit), "`): ", $about, ".")] pub $key: f64,)* }

            impl Default for $Rule {
                fn default() -> Self {
                    Self { $($key: $default,)* }
                }
            }
        )*

        /// The rules' words, in the order of the sheet; a rule's place in it is its bit in [`Thresholds::off`].
        pub const RULES: [&str; [$($word),*].len()] = [$($word),*];

        /// Every threshold.
        pub const PARAMETERS: &[Parameter] = &[$($(Parameter {
            rule: $word, key: stringify!($key), unit: Unit::$unit, default: $default, about: $about,
        },)*)*];

        /// When the rules fire on one host.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Thresholds {
            /// One bit a rule that is switched off, by its place in [`RULES`].
            pub off: u64,
            /// Programs that serve models, beyond those that are known: as they stand first on a command line, or after
            /// the interpreter.
            pub model_servers: Vec<SafeText>,
            /// The host serves models: what waits there is at work.
            pub is_serving: bool,
            $(#[doc = concat!("`", $word, "`.")] pub $rule: $Rule,)*
        }

        impl Thresholds {
            /// The value of one threshold, to be read or set; `None` where the rule has no such key.
            pub fn value_mut(&mut self, rule: &str, key: &str) -> Option<&mut f64> {
                match (rule, key) {
                    $($(($word, stringify!($key)) => Some(&mut self.$rule.$key),)*)*
                    _ => None,
                }
            }
        }
    };
}

thresholds! {
    StuckSpin stuck_spin "stuck-spin" {
        warn_after: Time = 300.0, "how long it lasts before it warns";
        crit_after: Time = 600.0, "how long it lasts before it is critical (PyTorch's own NCCL timeout is 10 min)";
        waiting_after: Time = 600.0, "how long the others wait for a rank that works on the host before that warns";
        utilization: Percent = 90.0, "every reading of the GPU's utilisation is at least this";
        median_utilization: Percent = 95.0, "and their median at least this";
        memory_max: Percent = 3.0, "no reading of the memory's utilisation is above this";
        memory_median: Percent = 1.0, "and their median is at most this";
        power_variation: Share = 0.05, "standard deviation of the power over its mean, at most";
        power_drop: Share = 0.5, "power now over the job's earlier median, at most";
        history: Time = 300.0, "how much healthy work of the job must have been seen";
        clear_utilization: Percent = 80.0, "it is over when utilisation falls below this";
        clear_power: Share = 1.15, "or when power rises above this many times the spin power";
        clear_after: Time = 60.0, "for this long";
    }
    StuckSpinSuspect stuck_spin_suspect "stuck-spin-suspect" {
        warn_after: Time = 600.0, "how long it lasts before it warns";
    }
    MissingRank missing_rank "missing-rank" {
        utilization: Percent = 5.0, "a rank that never arrived is busy for at most this";
        memory: Share = 0.5, "and holds at least this much of the group's median memory";
    }
    JobStalled job_stalled "job-stalled" {
        warn_after: Time = 900.0, "how long it lasts before it warns";
        crit_after: Time = 1800.0, "how long it lasts before it is critical";
        active_utilization: Percent = 20.0, "a job was at work when it was busy for at least this";
        active_for: Time = 300.0, "for at least this long";
        utilization: Percent = 1.0, "it stands still when it is busy for at most this";
        cpu: Cores = 0.02, "and uses at most this much CPU";
    }
    InputStall input_stall "input-stall" {
        warn_after: Time = 600.0, "over how long the mean is taken, and how long it lasts before it warns";
        utilization: Percent = 20.0, "mean utilisation below this";
        earlier: Percent = 50.0, "where the job's earlier median was at least this";
        worker_cpu: Percent = 80.0, "workers at this share of a CPU each mean that the CPU is the bottleneck";
        blocked: Percent = 30.0, "a worker in disk sleep in this share of readings means that storage is";
        pressure: Percent = 20.0, "so does PSI io some avg60 of this";
        young: Time = 600.0, "processes younger than this are still loading";
    }
    DstateHang dstate_hang "dstate-hang" {
        warn_after: Time = 120.0, "how long it lasts before it warns";
        crit_after: Time = 300.0, "how long it lasts before it is critical";
        share: Percent = 90.0, "in at least this share of readings the thread is in disk sleep";
    }
    StoppedHoldingGpu stopped_holding_gpu "stopped-holding-gpu" {
        warn_after: Time = 300.0, "how long a stopped process holds memory before it warns";
        traced_after: Time = 1800.0, "how long one in a debugger does before it is mentioned";
        memory: Mebibytes = 500.0, "memory that it holds at least";
    }
    ZombieHoldingGpu zombie_holding_gpu "zombie-holding-gpu" {
        warn_after: Time = 60.0, "how long it lasts before it warns";
        crit_after: Time = 300.0, "how long it lasts before it is critical";
    }
    OrphanHoldingGpu orphan_holding_gpu "orphan-holding-gpu" {
        warn_after: Time = 600.0, "how long it lasts before it warns";
        utilization: Percent = 1.0, "its GPUs are busy for at most this";
    }
    GhostMemory ghost_memory "ghost-memory" {
        after: Time = 300.0, "how long it lasts before it fires";
        memory: Mebibytes = 500.0, "memory that no visible process accounts for, at least";
        share: Percent = 2.0, "and at least this share of the GPU's memory";
        utilization: Percent = 90.0, "critical when the GPU is busy for at least this with nobody on it";
    }
    IdleHog idle_hog "idle-hog" {
        info_after: Time = 3600.0, "how long it lasts before it is mentioned";
        warn_after: Time = 7200.0, "how long it lasts before it warns";
        crit_after: Time = 43_200.0, "how long it lasts before it is critical";
        memory: Mebibytes = 1024.0, "memory that it holds at least";
        share: Percent = 5.0, "and at least this share of the GPU's memory";
        utilization: Percent = 1.0, "its GPUs are busy for at most this";
        cpu: Cores = 0.05, "and it uses at most this much CPU";
    }
    JobEnded job_ended "job-ended" {
        memory: Mebibytes = 500.0, "memory that it held at least";
        held_for: Time = 600.0, "for at least this long";
        coincidence: Time = 60.0, "an event this near to its end may be the cause";
    }
    LogSilent log_silent "log-silent" {
        after: Time = 1800.0, "how long the log has not been written, at least";
        gaps: Share = 10.0, "and at least this many times its median gap";
        writes: Count = 20.0, "writes that must have been seen before";
        utilization: Percent = 20.0, "mean utilisation of its GPUs, at least";
    }
    LowPowerHighUtil low_power_high_util "low-power-high-util" {
        info_after: Time = 1800.0, "how long it lasts before it is mentioned";
        utilization: Percent = 90.0, "mean utilisation, at least";
        power: Share = 0.40, "mean power below this share of the limit";
        memory_utilization: Percent = 40.0, "memory that is busier than this explains it";
    }
    GpuImbalance gpu_imbalance "gpu-imbalance" {
        info_after: Time = 600.0, "over how long the means are taken";
        power: Share = 0.25, "power off the group's median, at least";
        utilization: Percent = 15.0, "and utilisation off by at least this many points";
    }
    GpuMemPressure gpu_mem_pressure "gpu-mem-pressure" {
        free: Mebibytes = 1024.0, "free memory below this";
        free_share: Percent = 2.0, "or below this share of the GPU's memory";
        growth: Mebibytes = 256.0, "where use grew by at least this";
        window: Time = 1800.0, "within this time";
        full_in: Time = 900.0, "or the memory would be full in less than this";
    }
    GpuMemLeak gpu_mem_leak "gpu-mem-leak" {
        growth: Mebibytes = 1024.0, "growth over two hours, at least";
        share: Percent = 2.0, "and at least this share of the GPU's memory";
        trend: Share = 3.3, "Mann-Kendall z, at least";
        full_in: Time = 86_400.0, "at the Theil-Sen slope the memory is full in less than this";
        last_third: Share = 0.6, "growth in the last third over that in the first, at least";
        jump: Share = 0.4, "no single step makes up more than this part of the growth";
        rises: Count = 8.0, "steps up, at least";
        falls: Percent = 10.0, "falls sum up to at most this part of the growth";
    }
    ProbeBlocked probe_blocked "probe-blocked" {
        warn_after: Time = 15.0, "how long a call into the driver has not come back before it warns";
        crit_after: Time = 60.0, "and before it is critical";
    }
    GpuLost gpu_lost "gpu-lost" {
        samples: Count = 2.0, "readings in a row that say so";
    }
    GpuNeedsAction gpu_needs_action "gpu-needs-action" {}
    XidSeen xid_seen "xid-seen" {
        merge: Time = 600.0, "the same Xid on the same GPU within this time is one finding";
    }
    DriverMismatch driver_mismatch "driver-mismatch" {}
    DriverSkew driver_skew "driver-skew" {}
    ThermalThrottle thermal_throttle "thermal-throttle" {
        window: Time = 300.0, "over how long it is measured";
        warn: Percent = 5.0, "share of that time in which heat slowed the GPU down, to warn";
        crit: Percent = 30.0, "and to be critical";
    }
    PowerBrake power_brake "power-brake" {
        window: Time = 120.0, "over how long it is measured";
        crit: Percent = 1.0, "share of that time in which the brake was pulled";
    }
    Temperature temperature "temperature" {
        margin: Celsius = 3.0, "distance to the slowdown threshold, at most";
        clear_margin: Celsius = 6.0, "it is over at this distance";
        after: Time = 300.0, "how long it lasts before it warns";
    }
    EccUncorrectable ecc_uncorrectable "ecc-uncorrectable" {}
    RowRemap row_remap "row-remap" {}
    PcieDegraded pcie_degraded "pcie-degraded" {
        after: Time = 120.0, "how long it lasts before it warns";
        utilization: Percent = 50.0, "the link is judged while the GPU is busy for at least this";
    }
    NvlinkDown nvlink_down "nvlink-down" {
        after: Time = 60.0, "how long it lasts before it fires";
    }
    PersistenceOff persistence_off "persistence-off" {}
    HostUnreachable host_unreachable "host-unreachable" {
        warn_after: Time = 30.0, "how long the connection is gone before it warns (three misses of 10 s)";
        crit_after: Time = 300.0, "and before it is critical";
    }
    HostRamLow host_ram_low "host-ram-low" {
        warn: Percent = 90.0, "memory in use, to warn";
        clear: Percent = 80.0, "it is over below this";
        crit: Percent = 98.0, "and to be critical";
        after: Time = 30.0, "how long it lasts before it fires";
    }
    OomKill oom_kill "oom-kill" {}
    DiskFull disk_full "disk-full" {
        warn: Percent = 90.0, "space in use, to warn";
        crit: Percent = 98.0, "and to be critical";
        clear: Percent = 88.0, "it is over below this";
    }
    NfsHang nfs_hang "nfs-hang" {
        warn_after: Time = 5.0, "how long a filesystem has not answered before it warns";
        timeouts: Count = 5.0, "tries in a row without an answer, to be critical";
    }
}

impl Thresholds {
    /// Whether the rule at this place of [`RULES`] is switched off.
    pub fn is_off(&self, rule: usize) -> bool {
        self.off & (1 << rule) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_threshold_can_be_set_and_has_its_default() {
        let mut thresholds = Thresholds::default();
        for parameter in PARAMETERS {
            let value = thresholds.value_mut(parameter.rule, parameter.key).expect(parameter.key);
            assert!((*value - parameter.default).abs() < 1e-9, "{} {}", parameter.rule, parameter.key);
            assert!(RULES.contains(&parameter.rule));
            assert!(!parameter.about.ends_with('.'), "{}", parameter.about);
        }
        assert_eq!(thresholds.value_mut("stuck-spin", "frobnicate"), None);
    }

    #[test]
    fn there_is_a_bit_for_every_rule() {
        assert!(RULES.len() <= 64);
        let off = Thresholds { off: 1 << 3, ..Thresholds::default() };
        assert!(off.is_off(3) && !off.is_off(2));
    }
}
