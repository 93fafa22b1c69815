//! The thresholds of the diagnosis rules with their defaults, and the `[diagnosis]` tables of hosts.toml that change
//! them.

use super::diagnostic::{Diagnostic, did_you_mean, nearest};
use super::values::{self, mismatch, number, parse_seconds};
use crate::wire::SafeText;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The unit of a threshold, which also decides how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A duration in seconds, written as `"5m"`.
    Time,
    /// 0 to 100.
    Percent,
    /// A ratio.
    Share,
    /// MiB of memory.
    Mebibytes,
    /// Degrees Celsius.
    Celsius,
    /// CPU cores.
    Cores,
    /// A count.
    Count,
}

impl Unit {
    /// Returns the name of the unit for messages and documentation.
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

/// The description of one threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// The id of its rule.
    pub rule: &'static str,
    /// Its key in the rule's table.
    pub key: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Its default.
    pub default: f64,
    /// Its effect, as a phrase.
    pub about: &'static str,
}

macro_rules! thresholds {
    ($($Rule:ident $rule:ident $word:literal { $($key:ident: $unit:ident = $default:expr, $about:literal;)* })*) => {
        $(
            #[doc = concat!("Thresholds of `", $word, "`; durations are in seconds.")]
            #[derive(Debug, Clone, PartialEq)]
            pub struct $Rule { $(#[doc = concat!("In [`Unit::", stringify!($unit), "`]: ", $about, ".")] pub $key: f64,)* }

            impl Default for $Rule {
                fn default() -> Self {
                    Self { $($key: $default,)* }
                }
            }
        )*

        /// The ids of all rules. The index of a rule is its bit in [`Thresholds::off`].
        pub const RULES: [&str; [$($word),*].len()] = [$($word),*];

        /// All thresholds.
        pub const PARAMETERS: &[Parameter] = &[$($(Parameter {
            rule: $word, key: stringify!($key), unit: Unit::$unit, default: $default, about: $about,
        },)*)*];

        /// The thresholds of all rules on one host.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Thresholds {
            /// One bit per disabled rule, by its index in [`RULES`].
            pub off: u64,
            /// Additional model servers: the name of the program, or of the script after the interpreter.
            pub model_servers: Vec<SafeText>,
            /// The host serves models, so its idle jobs wait for requests.
            pub is_serving: bool,
            $(#[doc = concat!("`", $word, "`.")] pub $rule: $Rule,)*
        }

        impl Thresholds {
            /// Returns the value of one threshold; `None` if the rule has no such key.
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
        waiting_after: Time = 600.0, "duration before it is info while a rank works on the host";
        utilization: Percent = 90.0, "every GPU utilisation reading is at least this";
        median_utilization: Percent = 95.0, "median GPU utilisation is at least this";
        memory_max: Percent = 3.0, "no memory utilisation reading is above this";
        memory_median: Percent = 1.0, "median memory utilisation is at most this";
        power_variation: Share = 0.05, "standard deviation of the power divided by its mean, at most";
        power_drop: Share = 0.5, "current power divided by the job's earlier median, both above an idle context, at most";
        frozen_power: Share = 0.85, "or a constant power divided by the GPU's earlier median, at most";
        frozen_variation: Share = 0.02, "standard deviation of a constant power divided by its mean, at most";
        history: Time = 300.0, "duration of healthy work that must have been observed";
        clear_utilization: Percent = 80.0, "clears when the utilisation falls below this";
        clear_power: Share = 1.15, "clears when the power rises above this many times the spin power";
        clear_after: Time = 60.0, "how long one of these must hold before it clears";
    }
    StuckSpinSuspect stuck_spin_suspect "stuck-spin-suspect" {
        warn_after: Time = 600.0, "duration of the condition before it warns";
        crit_after: Time = 1800.0, "duration before it is critical if at least two GPUs are flat together";
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
        cpu: Cores = 0.06, "CPU usage of each process of a stalled job, at most, unless it used far more at work";
    }
    InputStall input_stall "input-stall" {
        warn_after: Time = 600.0, "window of the mean, which must be low for 2 min";
        utilization: Percent = 20.0, "mean utilisation is below this";
        earlier: Percent = 50.0, "the job's earlier median was at least this";
        worker_cpu: Percent = 80.0, "CPU usage per worker from which the cause is CPU";
        blocked: Percent = 30.0, "share of samples with a worker in disk sleep from which the cause is storage";
        pressure: Percent = 20.0, "PSI io some avg60 from which the cause is storage";
        young: Time = 600.0, "a job whose processes are all younger is still loading";
    }
    DstateHang dstate_hang "dstate-hang" {
        warn_after: Time = 120.0, "duration of the condition before it warns";
        crit_after: Time = 300.0, "duration of the condition before it is critical";
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
        warn_after: Time = 14_400.0, "duration of the condition before it warns";
        crit_after: Time = 43_200.0, "duration of the condition before it is critical";
        memory: Mebibytes = 1024.0, "memory held, at least";
        share: Percent = 5.0, "and as a share of the GPU's memory, at least";
        utilization: Percent = 1.0, "utilisation of its GPUs, at most";
        cpu: Cores = 0.05, "CPU usage of each process, at most; three times that for notebooks and servers";
    }
    JobEnded job_ended "job-ended" {
        memory: Mebibytes = 500.0, "memory held, at least";
        held_for: Time = 600.0, "how long it must have been held, up to the end";
        coincidence: Time = 60.0, "an event this close to the end may be the cause";
    }
    CpuFallback cpu_fallback "cpu-fallback" {
        info_after: Time = 900.0, "age of the new run before it is info, and before a model server on several cores warns";
        warn_after: Time = 4500.0, "age before other programs warn, at most";
        cpu: Cores = 0.5, "CPU usage, at least; a model server may rest";
    }
    LogSilent log_silent "log-silent" {
        after: Time = 1800.0, "time since the last write, at least";
        gaps: Share = 10.0, "and as a multiple of the median gap between writes, at least";
        writes: Count = 10.0, "number of writes that must have been observed before";
        utilization: Percent = 20.0, "utilisation of its GPUs, at least";
    }
    LowPowerHighUtil low_power_high_util "low-power-high-util" {
        info_after: Time = 1800.0, "how long the means over 5 min must be so before it is info";
        utilization: Percent = 90.0, "mean utilisation, at least";
        power: Share = 0.40, "mean power is below this share of the limit";
        memory_utilization: Percent = 40.0, "mean memory utilisation is below this";
    }
    GpuImbalance gpu_imbalance "gpu-imbalance" {
        info_after: Time = 600.0, "window of the means, and duration before it is info";
        power: Share = 0.25, "power below the median of the others, at least";
        utilization: Percent = 15.0, "and utilisation below it in percentage points, at least";
    }
    GpuMemPressure gpu_mem_pressure "gpu-mem-pressure" {
        free: Mebibytes = 1024.0, "memory that neither processes nor the driver hold is below this";
        free_share: Percent = 2.0, "or below this share of the GPU's memory";
        growth: Mebibytes = 256.0, "usage grew by at least this";
        window: Time = 1800.0, "within this time";
        full_in: Time = 900.0, "or the memory is full in less than this";
    }
    GpuMemLeak gpu_mem_leak "gpu-mem-leak" {
        growth: Mebibytes = 1024.0, "growth over two hours, at least";
        share: Percent = 2.0, "and as a share of the GPU's memory, at least";
        trend: Share = 3.3, "Mann-Kendall z, at least";
        full_in: Time = 50_400.0, "at the Theil-Sen slope, the memory is full in less than this";
        last_third: Share = 0.6, "growth in the last third divided by growth in the first, at least";
        jump: Share = 0.4, "largest step as a share of the growth, at most";
        rises: Count = 8.0, "number of rises between means of a minute, of which two in a row count once, at least";
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
        merge: Time = 600.0, "an Xid at severity info that repeats on a GPU within this time of the last one is one finding";
    }
    DriverMismatch driver_mismatch "driver-mismatch" {}
    DriverSkew driver_skew "driver-skew" {}
    ThermalThrottle thermal_throttle "thermal-throttle" {
        window: Time = 300.0, "window";
        warn: Percent = 5.0, "share of the window with thermal slowdown before it warns";
        crit: Percent = 30.0, "level at which it is critical";
        software_after: Time = 600.0, "duration of the software thermal slowdown before it is listed";
    }
    PowerBrake power_brake "power-brake" {
        window: Time = 120.0, "window";
        info: Percent = 1.0, "share of the window with the power brake active";
        crit: Percent = 10.0, "as info, until it is critical";
    }
    Temperature temperature "temperature" {
        margin: Celsius = 3.0, "distance to the slowdown temperature, at most";
        clear_margin: Celsius = 6.0, "clears from this distance";
        after: Time = 300.0, "duration of the condition before it warns";
    }
    EccUncorrectable ecc_uncorrectable "ecc-uncorrectable" {}
    EccCorrected ecc_corrected "ecc-corrected" {
        window: Time = 3600.0, "window";
        info: Count = 100.0, "number of corrected errors in the window, at least";
        warn: Count = 10_000.0, "number from which it warns";
    }
    RowRemap row_remap "row-remap" {}
    PowerLimitLow power_limit_low "power-limit-low" {
        share: Share = 0.9, "power limit divided by the median of the same GPUs of the host, below";
        after: Time = 300.0, "duration of the condition before it fires";
    }
    ClockStuck clock_stuck "clock-stuck" {
        utilization: Percent = 90.0, "utilisation from which the clock is evaluated";
        share: Share = 0.5, "SM clock divided by its maximum, at most";
        sibling: Share = 0.8, "warns if the same share of another busy GPU of the host is at least this";
        after: Time = 300.0, "duration of the condition before it fires";
    }
    PcieDegraded pcie_degraded "pcie-degraded" {
        after: Time = 240.0, "duration of the condition before it warns";
        utilization: Percent = 50.0, "utilisation from which the link is evaluated";
    }
    NvlinkDown nvlink_down "nvlink-down" {
        after: Time = 60.0, "duration of the condition before it fires";
    }
    PcieErrors pcie_errors "pcie-errors" {
        window: Time = 600.0, "window";
        info: Count = 8.0, "number of replays per minute, mean over the window, at least";
        warn: Count = 80.0, "number per minute from which it warns";
    }
    NvlinkErrors nvlink_errors "nvlink-errors" {
        window: Time = 3600.0, "window of replays and recoveries";
        info: Count = 1.0, "number of replays and recoveries in the window, at least";
        warn: Count = 100.0, "number from which it warns";
        crc: Count = 100.0, "number of CRC errors per second, mean over 10 min, from which it warns";
    }
    PersistenceOff persistence_off "persistence-off" {}
    RendezvousStuck rendezvous_stuck "rendezvous-stuck" {
        info_after: Time = 1200.0, "how long the ranks have done nothing before it is info; it warns after 1.25 times that";
        young: Time = 900.0, "age at most when the ranks were first seen";
    }
    GpuShared gpu_shared "gpu-shared" {
        after: Time = 900.0, "duration of the condition before it is info";
        share: Percent = 20.0, "SM share of each of the jobs, at least";
    }
    StrayContexts stray_contexts "stray-contexts" {
        after: Time = 900.0, "duration of the condition before it is info";
        idle_after: Time = 1800.0, "how long GPUs of a single process have been idle before it is info";
        memory: Mebibytes = 2048.0, "memory of a stray context, at most";
    }
    SlurmUnused slurm_unused "slurm-unused" {
        info_after: Time = 1800.0, "how long an allocated GPU has had no process before it is info";
        warn_after: Time = 14_400.0, "duration before it warns";
    }
    HostOverloaded host_overloaded "host-overloaded" {
        load: Share = 1.5, "load average over 1 min divided by the number of CPUs, at least";
        cpu: Percent = 90.0, "CPU utilisation, at least";
        after: Time = 600.0, "duration of the condition before it is info";
    }
    HostThrashing host_thrashing "host-thrashing" {
        pressure: Percent = 20.0, "PSI memory some avg60, at least";
        swap: Mebibytes = 1024.0, "swap in use, at least";
        after: Time = 180.0, "duration of the condition before it warns";
    }
    HostRebooted host_rebooted "host-rebooted" {}
    HostUnreachable host_unreachable "host-unreachable" {
        warn_after: Time = 90.0, "how long there has been no data before it warns";
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
        warn: Percent = 95.0, "space in use from which it warns";
        crit: Percent = 98.0, "level at which it is critical";
        clear: Percent = 93.0, "clears below this";
    }
    NfsHang nfs_hang "nfs-hang" {
        info_after: Time = 5.0, "how long a filesystem has not answered before it is info";
        warn_after: Time = 180.0, "duration before it warns if a GPU process of the host is in disk sleep";
        crit_after: Time = 300.0, "duration before it is critical if one is";
    }
}

impl Thresholds {
    /// Whether the rule with this index in [`RULES`] is disabled.
    pub fn is_off(&self, rule: usize) -> bool {
        self.off & (1 << rule) != 0
    }
}

/// The keys of a `[diagnosis]` table besides the rules.
const KEYS: [&str; 4] = ["off", "model_servers", "role", "tag"];

/// The changes of one table, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct ThresholdChanges {
    values: Vec<(&'static Parameter, f64)>,
    /// Rules by their index in [`RULES`], and whether each is disabled.
    switches: Vec<(usize, bool)>,
    model_servers: Vec<SafeText>,
    is_serving: Option<bool>,
    /// Changes for the hosts with a tag.
    tags: Vec<(SafeText, ThresholdChanges)>,
}

impl ThresholdChanges {
    /// Reads a table. Errors go to `diagnostics`. Only the table at the top of the file may contain tags.
    pub(super) fn read(table: &DeTable<'_>, takes_tags: bool, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut changes = Self::default();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let read = match name {
                "off" => changes.read_off(value),
                "model_servers" => words("model_servers", value, "model_servers = [\"my-server\"]").map(|words| {
                    changes.model_servers = words.into_iter().map(|(word, _)| SafeText::new(&word)).collect();
                }),
                "role" => role(value).map(|is_serving| changes.is_serving = Some(is_serving)),
                "tag" if takes_tags => {
                    changes.read_tags(value, diagnostics);
                    Ok(())
                }
                rule if RULES.contains(&rule) => {
                    changes.read_rule(rule, value, diagnostics);
                    Ok(())
                }
                unknown => Err(unknown_key(unknown, key.span(), takes_tags)),
            };
            diagnostics.extend(read.err());
        }
        changes
    }

    /// Whether the table changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
            && self.switches.is_empty()
            && self.model_servers.is_empty()
            && self.is_serving.is_none()
            && self.tags.is_empty()
    }

    /// Applies the changes, and after them those of the host's tags.
    pub(super) fn apply(&self, thresholds: &mut Thresholds, tags: &[SafeText]) {
        for (parameter, value) in &self.values {
            if let Some(slot) = thresholds.value_mut(parameter.rule, parameter.key) {
                *slot = *value;
            }
        }
        for (rule, is_off) in &self.switches {
            thresholds.off &= !(1 << rule);
            thresholds.off |= u64::from(*is_off) << rule;
        }
        thresholds.model_servers.extend(self.model_servers.iter().cloned());
        if let Some(is_serving) = self.is_serving {
            thresholds.is_serving = is_serving;
        }
        for (_, changes) in self.tags.iter().filter(|(tag, _)| tags.contains(tag)) {
            changes.apply(thresholds, &[]);
        }
    }

    fn read_off(&mut self, value: &Spanned<DeValue<'_>>) -> Result<(), Diagnostic> {
        for (word, at) in words("off", value, "off = [\"persistence-off\"]")? {
            match RULES.iter().position(|rule| **rule == *word) {
                Some(rule) => self.switches.push((rule, true)),
                None => return Err(unknown_rule(&word, at)),
            }
        }
        Ok(())
    }

    fn read_tags(&mut self, value: &Spanned<DeValue<'_>>, diagnostics: &mut Vec<Diagnostic>) {
        let DeValue::Table(tags) = value.get_ref() else {
            diagnostics.push(mismatch("tag", "a table of tags", value, "[diagnosis.tag.serving]"));
            return;
        };
        for (tag, value) in tags {
            match value.get_ref() {
                DeValue::Table(table) => {
                    let changes = Self::read(table, false, diagnostics);
                    self.tags.push((SafeText::new(tag.get_ref()), changes));
                }
                _ => diagnostics.push(mismatch(tag.get_ref(), "a table", value, "[diagnosis.tag.serving]")),
            }
        }
    }

    fn read_rule(&mut self, rule: &str, value: &Spanned<DeValue<'_>>, diagnostics: &mut Vec<Diagnostic>) {
        let rule_index = RULES.iter().position(|known| *known == rule).unwrap_or(0);
        match value.get_ref() {
            DeValue::Boolean(is_on) => self.switches.push((rule_index, !is_on)),
            DeValue::Table(table) => {
                for (key, value) in table {
                    let name = key.get_ref().as_ref();
                    match PARAMETERS.iter().find(|parameter| parameter.rule == rule && parameter.key == name) {
                        Some(parameter) => match quantity(parameter, value) {
                            Ok(number) => self.values.push((parameter, number)),
                            Err(diagnostic) => diagnostics.push(diagnostic),
                        },
                        None => diagnostics.push(unknown_parameter(rule, name, key.span())),
                    }
                }
            }
            _ => {
                diagnostics.push(mismatch(rule, "true, false or a table", value, &format!("{rule} = false")));
            }
        }
    }
}

fn words(key: &str, value: &Spanned<DeValue<'_>>, example: &str) -> Result<Vec<(String, Range<usize>)>, Diagnostic> {
    let diagnostic = |value: &Spanned<DeValue<'_>>| mismatch(key, "an array of strings", value, example);
    let array = value.get_ref().as_array().ok_or_else(|| diagnostic(value))?;
    let word = |item: &Spanned<DeValue<'_>>| match item.get_ref().as_str() {
        Some(word) => Ok((word.to_owned(), item.span())),
        None => Err(diagnostic(item)),
    };
    array.iter().map(word).collect()
}

/// Reads `role`: `"serving"` gives `true`, `"training"` gives `false`.
pub(super) fn role(value: &Spanned<DeValue<'_>>) -> Result<bool, Diagnostic> {
    match value.get_ref().as_str() {
        Some("serving") => Ok(true),
        Some("training") => Ok(false),
        Some(other) => {
            let hint = match nearest(other, ["serving", "training"]) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "one of \"serving\", \"training\"".to_owned(),
            };
            Err(Diagnostic::at(value.span(), format!("`role` cannot be \"{other}\""), hint))
        }
        None => Err(mismatch("role", "a string", value, "role = \"serving\"")),
    }
}

fn unknown_key(key: &str, at: Range<usize>, takes_tags: bool) -> Diagnostic {
    let known = KEYS.into_iter().filter(|key| takes_tags || *key != "tag").chain(RULES);
    if nearest(key, known.clone()).is_some() { values::unknown_key(key, at, known) } else { unknown_rule(key, at) }
}

fn unknown_rule(rule: &str, at: Range<usize>) -> Diagnostic {
    let hint = did_you_mean(rule, RULES).unwrap_or_else(|| "`gpufleet explain` lists the rules".to_owned());
    Diagnostic::at(at, format!("no rule `{rule}`"), hint)
}

fn unknown_parameter(rule: &str, key: &str, at: Range<usize>) -> Diagnostic {
    let keys = || PARAMETERS.iter().filter(|parameter| parameter.rule == rule).map(|parameter| parameter.key);
    let hint = match (did_you_mean(key, keys()), keys().next()) {
        (Some(hint), _) => hint,
        (None, Some(_)) => format!("its thresholds are {}", keys().collect::<Vec<_>>().join(", ")),
        (None, None) => format!("the rule has no thresholds; turn it off with {rule} = false"),
    };
    Diagnostic::at(at, format!("`{rule}` has no threshold `{key}`"), hint)
}

/// Reads one threshold in its unit.
fn quantity(parameter: &Parameter, value: &Spanned<DeValue<'_>>) -> Result<f64, Diagnostic> {
    let key = parameter.key;
    let example = match parameter.unit {
        Unit::Time => format!("{key} = \"5m\""),
        _ => format!("{key} = {}", parameter.default),
    };
    if parameter.unit == Unit::Time {
        let Some(text) = value.get_ref().as_str() else {
            return Err(mismatch(key, "a string with a unit", value, &example));
        };
        let hint = format!("write a number and a unit, s, m, h or d, as in {example}");
        return time(text).ok_or_else(|| Diagnostic::at(value.span(), format!("`{text}` is not a duration"), hint));
    }
    let Some(number) = number(value.get_ref()) else { return Err(mismatch(key, "a number", value, &example)) };
    let most = match parameter.unit {
        Unit::Percent => 100.0,
        Unit::Celsius => 200.0,
        _ => 1e9,
    };
    if !(0.0..=most).contains(&number) {
        let hint = format!("in {}, 0 to {most}", parameter.unit.words());
        return Err(Diagnostic::at(value.span(), format!("`{key}` cannot be {number}"), hint));
    }
    Ok(number)
}

/// Parses a duration of at most a year, in seconds.
fn time(text: &str) -> Option<f64> {
    parse_seconds(text).ok().filter(|seconds| (0.0..=366.0 * 86_400.0).contains(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostsFile;

    #[test]
    fn every_threshold_has_its_default_and_can_be_set() {
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
    fn disabled_rules_are_bits() {
        assert!(RULES.len() <= 64);
        let off = Thresholds { off: 1 << 3, ..Thresholds::default() };
        assert!(off.is_off(3) && !off.is_off(2));
    }

    fn thresholds(text: &str, host: usize) -> Thresholds {
        let file = HostsFile::parse("hosts.toml", text, None).unwrap_or_else(|error| panic!("{error}"));
        file.entries[host].config.thresholds.as_deref().cloned().unwrap_or_default()
    }

    fn error(text: &str) -> String {
        let text = format!("{text}\n[[hosts]]\nname = \"a\"\n");
        HostsFile::parse("hosts.toml", &text, None).expect_err("an error").to_string()
    }

    #[test]
    fn thresholds_apply_in_the_order_file_tag_host() {
        let text = "[diagnosis]\noff = [\"persistence-off\"]\nmodel_servers = [\"serve.py\"]\n\
                    stuck-spin = { warn_after = \"3m\", utilization = 80 }\ngpu-imbalance = false\n\
                    [diagnosis.tag.lazy]\nidle-hog = { warn_after = \"1d\" }\nstuck-spin = { warn_after = \"4m\" }\n\
                    [[hosts]]\nname = \"a\"\n[[hosts]]\nname = \"b\"\ntags = [\"lazy\"]\nrole = \"serving\"\n\
                    diagnosis = { gpu-imbalance = true, stuck-spin = { utilization = 85.5 } }\n";
        let (a, b) = (thresholds(text, 0), thresholds(text, 1));
        let off = |thresholds: &Thresholds, rule: &str| {
            thresholds.is_off(RULES.iter().position(|known| *known == rule).expect("a rule"))
        };
        assert_eq!((a.stuck_spin.warn_after, a.stuck_spin.utilization, a.idle_hog.warn_after), (180.0, 80.0, 14_400.0));
        assert_eq!((b.stuck_spin.warn_after, b.stuck_spin.utilization, b.idle_hog.warn_after), (240.0, 85.5, 86_400.0));
        assert!(off(&a, "persistence-off") && off(&a, "gpu-imbalance") && !off(&b, "gpu-imbalance"));
        assert_eq!((a.is_serving, b.is_serving), (false, true));
        assert_eq!(a.model_servers, ["serve.py"]);
    }

    #[test]
    fn hosts_without_changes_have_no_thresholds() {
        let file = HostsFile::parse("hosts.toml", "[[hosts]]\nname = \"a\"\n", None).expect("reads");
        assert_eq!(file.entries[0].config.thresholds, None);
    }

    #[test]
    fn errors_have_positions_and_hints() {
        assert_eq!(
            error("[diagnosis]\nstuck-spn = false"),
            "hosts.toml:2:1: unknown key `stuck-spn`\n  2 | stuck-spn = false\n    | ^^^^^^^^^\n    = hint: did you mean `stuck-spin`?\n"
        );
        let heads: Vec<(&str, &str, &str)> = vec![
            (
                "[diagnosis.stuck-spin]\nwarn_aftr = \"5m\"",
                "2:1: `stuck-spin` has no threshold `warn_aftr`",
                "did you mean `warn_after`?",
            ),
            (
                "[diagnosis.stuck-spin]\nwarn_after = 5",
                "2:14: `warn_after` must be a string with a unit, not an integer",
                "as in warn_after = \"5m\"",
            ),
            (
                "[diagnosis.stuck-spin]\nwarn_after = \"5 weeks\"",
                "2:14: `5 weeks` is not a duration",
                "write a number and a unit, s, m, h or d, as in warn_after = \"5m\"",
            ),
            ("[diagnosis.stuck-spin]\nutilization = 130", "2:15: `utilization` cannot be 130", "in percent, 0 to 100"),
            (
                "[diagnosis.oom-kill]\nafter = 1",
                "2:1: `oom-kill` has no threshold `after`",
                "the rule has no thresholds; turn it off with oom-kill = false",
            ),
            ("[diagnosis]\noff = [\"idle\"]", "2:8: no rule `idle`", "`gpufleet explain` lists the rules"),
            (
                "[diagnosis]\noff = \"idle-hog\"",
                "2:7: `off` must be an array of strings, not a string",
                "as in off = [\"persistence-off\"]",
            ),
            ("[diagnosis]\nrole = \"srving\"", "2:8: `role` cannot be \"srving\"", "did you mean \"serving\"?"),
            (
                "[diagnosis]\nstuck-spin = 5",
                "2:14: `stuck-spin` must be true, false or a table, not an integer",
                "as in stuck-spin = false",
            ),
            ("diagnosis = 5", "1:1: `diagnosis` must be a table, not an integer", "write the header [diagnosis]"),
        ];
        for (text, head, hint) in heads {
            let error = error(text);
            assert!(error.starts_with(&format!("hosts.toml:{head}\n")), "{error}");
            assert!(error.contains(&format!("= hint: {hint}\n")), "{error}");
        }
    }
}
