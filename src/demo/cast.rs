//! Who and what plays: people, GPU models, and the kinds of work with their figures.

use super::load::Load;

/// A person of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) login: &'static str,
    pub(super) full_name: &'static str,
    pub(super) uid: u32,
}

const fn person(login: &'static str, full_name: &'static str, uid: u32) -> Person {
    Person { login, full_name, uid }
}

/// The people of the lab; the one who watches is [`VIEWER`].
pub(super) const PEOPLE: [Person; 8] = [
    person("alice", "Alice Moreau", 1001),
    person("bob", "Bob Okafor", 1002),
    person("carol", "Carol Lindqvist", 1003),
    person("dmitri", "Dmitri Volkov", 1004),
    person("erika", "Erika Satō", 1005),
    person("fumi", "Fumi Tanaka", 1006),
    person("gustav", "Gustav Meyer", 1007),
    person("hana", "Hana Nováková", 1008),
];
pub(super) const ALICE: usize = 0;
pub(super) const BOB: usize = 1;
pub(super) const CAROL: usize = 2;
pub(super) const DMITRI: usize = 3;
pub(super) const ERIKA: usize = 4;
pub(super) const FUMI: usize = 5;
pub(super) const GUSTAV: usize = 6;
pub(super) const HANA: usize = 7;

/// The account that gpufleet logs in with; one of the hung jobs is this person's, so that it can be ended.
pub(super) const VIEWER: Person = PEOPLE[DMITRI];

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A kind of GPU.
#[derive(Debug, PartialEq)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) tag: &'static str,
    pub(super) memory_total_bytes: u64,
    pub(super) memory_reserved_bytes: u64,
    pub(super) power_limit_watts: f64,
    /// Power without a context.
    pub(super) idle_watts: f64,
    /// Power with a context that does nothing. Reported: H100 122 W, A100 80 W.
    pub(super) context_watts: f64,
    /// Power while a kernel spins on all SMs and reaches no memory. Reported for hung H100s: 100 to 152 W.
    pub(super) spin_watts: f64,
    pub(super) sm_max_mhz: u32,
    pub(super) memory_mhz: u32,
    pub(super) slowdown_celsius: i32,
    pub(super) pcie_generation: u8,
}

/// As in an HGX H100.
pub(super) static H100: Model = Model {
    name: "NVIDIA H100 80GB HBM3",
    tag: "h100",
    memory_total_bytes: 81_559 * MIB,
    memory_reserved_bytes: 551 * MIB,
    power_limit_watts: 700.0,
    idle_watts: 69.0,
    context_watts: 118.0,
    spin_watts: 104.0,
    sm_max_mhz: 1980,
    memory_mhz: 2619,
    slowdown_celsius: 89,
    pcie_generation: 5,
};

/// As in an HGX A100.
pub(super) static A100: Model = Model {
    name: "NVIDIA A100-SXM4-80GB",
    tag: "a100",
    memory_total_bytes: 81_920 * MIB,
    memory_reserved_bytes: 635 * MIB,
    power_limit_watts: 400.0,
    idle_watts: 57.0,
    context_watts: 80.0,
    spin_watts: 78.0,
    sm_max_mhz: 1410,
    memory_mhz: 1593,
    slowdown_celsius: 92,
    pcie_generation: 4,
};

/// What is done on the GPUs of one seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A long torchrun job over all GPUs of the seat.
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
    /// A job whose collective has hung before anybody looked.
    Hung,
    /// A job that works until a few minutes after the start, then hangs.
    HangsLater,
    /// Training on a GPU that gets too hot.
    Hot,
    /// Training that waits for its data loader: busy CPUs, a GPU that is not.
    Starved,
    /// Nobody.
    Free,
}

/// The figures of a kind of work, for one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    pub(super) load: Load,
    /// Power at full load, as a share of the way from a context's power to the limit.
    pub(super) power_share: f64,
    /// Memory utilisation as a share of utilisation.
    pub(super) memory_activity: f64,
    /// Memory held once everything is loaded, as a share of all.
    pub(super) memory_share: f64,
    /// CPUs that each GPU process keeps busy.
    pub(super) cpus: f64,
    /// CPUs that its helpers (data loaders) keep busy, beside it.
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
const STARVED: Load = Load {
    cycle_seconds: 90.0,
    pause_seconds: 4.0,
    step_seconds: 5.2,
    dip_seconds: 3.6,
    high: 0.86,
    low: 0.03,
    pause: 0.0,
};

impl Kind {
    /// Its figures.
    pub(super) const fn figures(self) -> Figures {
        let training = Figures {
            load: STEPS,
            power_share: 0.86,
            memory_activity: 0.44,
            memory_share: 0.91,
            cpus: 1.02,
            helper_cpus: 3.1,
            rss_bytes: 11 * GIB,
        };
        match self {
            Self::Pretrain => Figures { power_share: 0.92, memory_share: 0.94, ..training },
            Self::Training | Self::HangsLater => training,
            Self::Hot => Figures { power_share: 0.8, memory_share: 0.87, cpus: 0.99, ..training },
            Self::Hung => Figures {
                load: Load::steady(1.0),
                power_share: 0.0,
                memory_activity: 0.0,
                memory_share: 0.87,
                cpus: 1.0,
                helper_cpus: 0.0,
                ..training
            },
            Self::Evaluation => Figures {
                load: BATCHES,
                power_share: 0.66,
                memory_share: 0.46,
                helper_cpus: 0.8,
                rss_bytes: 7 * GIB,
                ..training
            },
            Self::Inference => Figures {
                load: BURSTS,
                power_share: 0.61,
                memory_activity: 0.68,
                memory_share: 0.9,
                cpus: 0.72,
                helper_cpus: 0.3,
                rss_bytes: 6 * GIB,
            },
            Self::Shared => Figures {
                load: BURSTS,
                power_share: 0.38,
                memory_activity: 0.4,
                memory_share: 0.34,
                cpus: 0.31,
                helper_cpus: 0.1,
                rss_bytes: 3 * GIB,
            },
            Self::Starved => Figures {
                load: STARVED,
                power_share: 0.7,
                memory_share: 0.55,
                cpus: 0.88,
                helper_cpus: 15.4,
                rss_bytes: 9 * GIB,
                ..training
            },
            Self::Notebook => Figures {
                load: Load::steady(0.0),
                power_share: 0.0,
                memory_activity: 0.0,
                memory_share: 0.39,
                cpus: 0.004,
                helper_cpus: 0.0,
                rss_bytes: 4 * GIB,
            },
            Self::Free => Figures {
                load: Load::steady(0.0),
                power_share: 0.0,
                memory_activity: 0.0,
                memory_share: 0.0,
                cpus: 0.0,
                helper_cpus: 0.0,
                rss_bytes: 0,
            },
        }
    }

    /// Whether a launcher (torchrun) stands above the GPU processes.
    pub(super) fn is_launched(self) -> bool {
        matches!(self, Self::Pretrain | Self::Training | Self::Hung | Self::HangsLater)
    }
}
