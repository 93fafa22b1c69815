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
        warn_after: Time = 300.0, "duration of the condition before it warns";
        crit_after: Time = 600.0, "duration of the condition before it is critical (PyTorch's NCCL timeout is 10 min)";
        waiting_after: Time = 600.0, "duration before it warns while a rank works on the host";
        utilization: Percent = 90.0, "every GPU utilisation reading is at least this";
        median_utilization: Percent = 95.0, "median GPU utilisation is at least this";
        memory_max: Percent = 3.0, "no memory utilisation reading is above this";
        memory_median: Percent = 1.0, "median memory utilisation is at most this";
        power_variation: Share = 0.05, "standard deviation of the power divided by its mean, at most";
        power_drop: Share = 0.5, "current power divided by the job's earlier median, at most";
        history: Time = 300.0, "duration of healthy work that must have been observed";
        clear_utilization: Percent = 80.0, "clears when the utilisation falls below this";
        clear_power: Share = 1.15, "clears when the power rises above this many times the spin power";
        clear_after: Time = 60.0, "how long one of these must hold before it clears";
    }
    StuckSpinSuspect stuck_spin_suspect "stuck-spin-suspect" {
        warn_after: Time = 600.0, "duration of the condition before it warns";
    }
    MissingRank missing_rank "missing-rank" {
        utilization: Percent = 5.0, "utilisation of a missing rank, at most";
        memory: Share = 0.5, "memory of a missing rank divided by the job's median, at least";
    }
    JobStalled job_stalled "job-stalled" {
        warn_after: Time = 900.0, "duration of the condition before it warns";
        crit_after: Time = 1800.0, "duration of the condition before it is critical";
        active_utilization: Percent = 20.0, "utilisation from which a job counts as working";
        active_for: Time = 300.0, "how long the job must have worked";
        utilization: Percent = 1.0, "utilisation of a stalled job, at most";
        cpu: Cores = 0.02, "CPU usage of a stalled job, at most";
    }
    InputStall input_stall "input-stall" {
        warn_after: Time = 600.0, "window of the mean, and duration before it warns";
        utilization: Percent = 20.0, "mean utilisation is below this";
        earlier: Percent = 50.0, "the job's earlier median was at least this";
        worker_cpu: Percent = 80.0, "CPU usage per worker from which the cause is CPU";
        blocked: Percent = 30.0, "share of samples with a worker in disk sleep from which the cause is storage";
        pressure: Percent = 20.0, "PSI io some avg60 from which the cause is storage";
        young: Time = 600.0, "a younger process is still loading";
    }
    DstateHang dstate_hang "dstate-hang" {
        warn_after: Time = 120.0, "duration of the condition before it warns";
        crit_after: Time = 300.0, "duration of the condition before it is critical";
        share: Percent = 90.0, "share of samples in which the thread is in disk sleep, at least";
    }
    StoppedHoldingGpu stopped_holding_gpu "stopped-holding-gpu" {
        warn_after: Time = 300.0, "how long a process is stopped before it warns";
        traced_after: Time = 1800.0, "how long a process is in a debugger before it is info";
        memory: Mebibytes = 500.0, "memory held, at least";
    }
    ZombieHoldingGpu zombie_holding_gpu "zombie-holding-gpu" {
        warn_after: Time = 60.0, "duration of the condition before it warns";
        crit_after: Time = 300.0, "duration of the condition before it is critical";
    }
    OrphanHoldingGpu orphan_holding_gpu "orphan-holding-gpu" {
        warn_after: Time = 600.0, "duration of the condition before it warns";
        utilization: Percent = 1.0, "utilisation of its GPUs, at most";
    }
    GhostMemory ghost_memory "ghost-memory" {
        after: Time = 300.0, "duration of the condition before it fires";
        memory: Mebibytes = 500.0, "unaccounted memory, at least";
        share: Percent = 2.0, "and as a share of the GPU's memory, at least";
        utilization: Percent = 90.0, "critical from this utilisation without a visible process";
    }
    IdleHog idle_hog "idle-hog" {
        info_after: Time = 3600.0, "duration of the condition before it is info";
        warn_after: Time = 7200.0, "duration of the condition before it warns";
        crit_after: Time = 43_200.0, "duration of the condition before it is critical";
        memory: Mebibytes = 1024.0, "memory held, at least";
        share: Percent = 5.0, "and as a share of the GPU's memory, at least";
        utilization: Percent = 1.0, "utilisation of its GPUs, at most";
        cpu: Cores = 0.05, "CPU usage of the job, at most";
    }
    JobEnded job_ended "job-ended" {
        memory: Mebibytes = 500.0, "memory held, at least";
        held_for: Time = 600.0, "how long the job must have worked";
        coincidence: Time = 60.0, "an event this close to the end may be the cause";
    }
    LogSilent log_silent "log-silent" {
        after: Time = 1800.0, "time since the last write, at least";
        gaps: Share = 10.0, "and as a multiple of the median gap between writes, at least";
        writes: Count = 20.0, "number of writes that must have been observed before";
        utilization: Percent = 20.0, "utilisation of its GPUs, at least";
    }
    LowPowerHighUtil low_power_high_util "low-power-high-util" {
        info_after: Time = 1800.0, "duration of the condition before it is info";
        utilization: Percent = 90.0, "mean utilisation, at least";
        power: Share = 0.40, "mean power is below this share of the limit";
        memory_utilization: Percent = 40.0, "mean memory utilisation is below this";
    }
    GpuImbalance gpu_imbalance "gpu-imbalance" {
        info_after: Time = 600.0, "window of the means";
        power: Share = 0.25, "power below the median of the others, at least";
        utilization: Percent = 15.0, "and utilisation below it in percentage points, at least";
    }
    GpuMemPressure gpu_mem_pressure "gpu-mem-pressure" {
        free: Mebibytes = 1024.0, "free memory is below this";
        free_share: Percent = 2.0, "or below this share of the GPU's memory";
        growth: Mebibytes = 256.0, "usage grew by at least this";
        window: Time = 1800.0, "within this time";
        full_in: Time = 900.0, "or the memory is full in less than this";
    }
    GpuMemLeak gpu_mem_leak "gpu-mem-leak" {
        growth: Mebibytes = 1024.0, "growth over two hours, at least";
        share: Percent = 2.0, "and as a share of the GPU's memory, at least";
        trend: Share = 3.3, "Mann-Kendall z, at least";
        full_in: Time = 86_400.0, "at the Theil-Sen slope, the memory is full in less than this";
        last_third: Share = 0.6, "growth in the last third divided by growth in the first, at least";
        jump: Share = 0.4, "largest step as a share of the growth, at most";
        rises: Count = 8.0, "number of rises, at least";
        falls: Percent = 10.0, "sum of all falls as a share of the growth, at most";
    }
    ProbeBlocked probe_blocked "probe-blocked" {
        warn_after: Time = 15.0, "how long a driver call has not returned before it warns";
        crit_after: Time = 60.0, "duration before it is critical";
    }
    GpuLost gpu_lost "gpu-lost" {
        samples: Count = 2.0, "number of samples in a row";
    }
    GpuNeedsAction gpu_needs_action "gpu-needs-action" {}
    XidSeen xid_seen "xid-seen" {
        merge: Time = 600.0, "the same Xid on the same GPU within this time is one finding";
    }
    DriverMismatch driver_mismatch "driver-mismatch" {}
    DriverSkew driver_skew "driver-skew" {}
    ThermalThrottle thermal_throttle "thermal-throttle" {
        window: Time = 300.0, "window";
        warn: Percent = 5.0, "share of the window with thermal slowdown before it warns";
        crit: Percent = 30.0, "level at which it is critical";
    }
    PowerBrake power_brake "power-brake" {
        window: Time = 120.0, "window";
        crit: Percent = 1.0, "share of the window with the power brake active";
    }
    Temperature temperature "temperature" {
        margin: Celsius = 3.0, "distance to the slowdown temperature, at most";
        clear_margin: Celsius = 6.0, "clears from this distance";
        after: Time = 300.0, "duration of the condition before it warns";
    }
    EccUncorrectable ecc_uncorrectable "ecc-uncorrectable" {}
    RowRemap row_remap "row-remap" {}
    PcieDegraded pcie_degraded "pcie-degraded" {
        after: Time = 120.0, "duration of the condition before it warns";
        utilization: Percent = 50.0, "utilisation from which the link is evaluated";
    }
    NvlinkDown nvlink_down "nvlink-down" {
        after: Time = 60.0, "duration of the condition before it fires";
    }
    PersistenceOff persistence_off "persistence-off" {}
    HostUnreachable host_unreachable "host-unreachable" {
        warn_after: Time = 30.0, "how long the connection is lost before it warns";
        crit_after: Time = 300.0, "duration before it is critical";
    }
    HostRamLow host_ram_low "host-ram-low" {
        warn: Percent = 90.0, "memory in use from which it warns";
        clear: Percent = 80.0, "clears below this";
        crit: Percent = 98.0, "level at which it is critical";
        after: Time = 30.0, "duration of the condition before it fires";
    }
    OomKill oom_kill "oom-kill" {}
    DiskFull disk_full "disk-full" {
        warn: Percent = 90.0, "space in use from which it warns";
        crit: Percent = 98.0, "level at which it is critical";
        clear: Percent = 88.0, "clears below this";
    }
    NfsHang nfs_hang "nfs-hang" {
        warn_after: Time = 5.0, "how long a filesystem has not answered before it warns";
        timeouts: Count = 5.0, "attempts in a row without an answer before it is critical";
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
