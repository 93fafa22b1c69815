//! The kinds of work, with their profile.

use super::load::Load;

const GIB: u64 = 1 << 30;

/// What is done on the GPUs of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// A long torchrun job over all GPUs of the slot.
    Pretrain,
    /// A torchrun job of hours.
    Training,
    /// A short run on one GPU; another follows.
    Evaluation,
    /// A model server with bursts of requests.
    Inference,
    /// Two small servers on the same GPU.
    Shared,
    /// A notebook that holds memory and does nothing, for days.
    Notebook,
    /// Training on a GPU that gets too hot.
    Hot,
    /// Training on videos that many CPUs decode.
    Video,
    /// Kernels so small that the GPU is always busy and never at work.
    Tiny,
    /// Nobody.
    Free,
}

/// The figures of a kind of work, for one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WorkloadProfile {
    pub(super) load: Load,
    /// Power at full load, as a share of the way from a context's power to the limit.
    pub(super) power_share: f64,
    /// Memory utilisation as a share of utilisation.
    pub(super) memory_activity: f64,
    /// Memory held once everything is loaded, as a share of all.
    pub(super) memory_share: f64,
    /// CPUs that each GPU process keeps busy.
    pub(super) cpus: f64,
    /// Helpers (data loaders) that each has.
    pub(super) helpers: u32,
    /// CPUs that those keep busy together, beside it.
    pub(super) helper_cpus: f64,
    /// Resident memory of each GPU process.
    pub(super) rss_bytes: u64,
}

const STEPS: Load = Load {
    cycle_seconds: 426.0,
    pause_seconds: 15.0,
    step_seconds: 11.3,
    dip_seconds: 1.4,
    high: 0.97,
    low: 0.42,
    pause: 0.04,
};
const BATCHES: Load = Load {
    cycle_seconds: 64.0,
    pause_seconds: 5.0,
    step_seconds: 4.1,
    dip_seconds: 0.7,
    high: 0.94,
    low: 0.5,
    pause: 0.1,
};
const BURSTS: Load = Load {
    cycle_seconds: 37.0,
    pause_seconds: 13.0,
    step_seconds: 2.9,
    dip_seconds: 1.0,
    high: 0.91,
    low: 0.33,
    pause: 0.06,
};
const DECODED: Load = Load {
    cycle_seconds: 90.0,
    pause_seconds: 4.0,
    step_seconds: 5.2,
    dip_seconds: 1.7,
    high: 0.88,
    low: 0.21,
    pause: 0.0,
};

impl Workload {
    /// Its profile.
    pub(super) const fn profile(self) -> WorkloadProfile {
        let training = WorkloadProfile {
            load: STEPS,
            power_share: 0.86,
            memory_activity: 0.44,
            memory_share: 0.91,
            cpus: 1.02,
            helpers: 8,
            helper_cpus: 3.1,
            rss_bytes: 11 * GIB,
        };
        match self {
            Self::Pretrain => WorkloadProfile { power_share: 0.92, memory_share: 0.94, ..training },
            Self::Training => training,
            Self::Hot => WorkloadProfile { power_share: 0.8, memory_share: 0.87, cpus: 0.99, ..training },
            Self::Evaluation => WorkloadProfile {
                load: BATCHES,
                power_share: 0.66,
                memory_share: 0.46,
                helpers: 2,
                helper_cpus: 0.8,
                rss_bytes: 7 * GIB,
                ..training
            },
            Self::Inference => WorkloadProfile {
                load: BURSTS,
                power_share: 0.61,
                memory_activity: 0.68,
                memory_share: 0.9,
                cpus: 0.72,
                helpers: 1,
                helper_cpus: 0.3,
                rss_bytes: 6 * GIB,
            },
            Self::Shared => WorkloadProfile {
                load: BURSTS,
                power_share: 0.38,
                memory_activity: 0.4,
                memory_share: 0.34,
                cpus: 0.31,
                helpers: 1,
                helper_cpus: 0.1,
                rss_bytes: 3 * GIB,
            },
            Self::Video => WorkloadProfile {
                load: DECODED,
                power_share: 0.7,
                memory_share: 0.55,
                cpus: 0.88,
                helpers: 16,
                helper_cpus: 15.4,
                rss_bytes: 9 * GIB,
                ..training
            },
            Self::Tiny => WorkloadProfile {
                load: Load::steady(0.96),
                power_share: 0.22,
                memory_activity: 0.13,
                memory_share: 0.21,
                cpus: 1.0,
                helpers: 0,
                helper_cpus: 0.0,
                rss_bytes: 4 * GIB,
            },
            Self::Notebook => WorkloadProfile {
                load: Load::steady(0.0),
                power_share: 0.0,
                memory_activity: 0.0,
                memory_share: 0.39,
                cpus: 0.0003,
                helpers: 0,
                helper_cpus: 0.0,
                rss_bytes: 4 * GIB,
            },
            Self::Free => WorkloadProfile {
                load: Load::steady(0.0),
                power_share: 0.0,
                memory_activity: 0.0,
                memory_share: 0.0,
                cpus: 0.0,
                helpers: 0,
                helper_cpus: 0.0,
                rss_bytes: 0,
            },
        }
    }

    /// CPU time that it used when it began: the cells of a notebook that were run on its first day.
    pub(super) fn early_cpu_seconds(self) -> f64 {
        if self == Self::Notebook { 190.0 } else { 0.0 }
    }

    /// Whether a launcher (torchrun) stands above the GPU processes.
    pub(super) fn is_launched(self) -> bool {
        matches!(self, Self::Pretrain | Self::Training)
    }
}
