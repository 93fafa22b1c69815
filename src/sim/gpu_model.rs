//! GPU models, and the load that each kind of work puts on them.
//!
//! Figures come from public reports (hangs, idle contexts) and data sheets (limits).

use super::rng::Rng;
use super::script::Step;

/// A GPU model.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuModel {
    /// Name in the scripts.
    pub word: &'static str,
    /// Name that the driver reports.
    pub name: &'static str,
    /// GiB; `None` if the GPU shares the memory of the host.
    pub memory: Option<f64>,
    /// Enforced power limit in watts.
    pub limit: f64,
    /// Power without a CUDA context, in watts.
    pub bare: f64,
    /// Power with an idle CUDA context, in watts.
    pub context: f64,
    /// Power while a kernel spins without memory access, in watts.
    pub spin: f64,
    /// Slowdown temperature in degrees Celsius.
    pub slowdown: i32,
    /// PCIe generation.
    pub generation: u8,
    /// Number of NVLinks.
    pub links: u8,
    /// Highest SM clock in MHz.
    pub sm_mhz: u32,
    /// Memory clock in MHz.
    pub memory_mhz: u32,
}

/// Creates a model: word, name, GiB, watts (limit, bare, context, spin), slowdown temperature, PCIe generation and NVLinks,
/// clocks of SMs and memory in MHz.
const fn gpu(
    word: &'static str,
    name: &'static str,
    memory: Option<f64>,
    [limit, bare, context, spin]: [f64; 4],
    slowdown: i32,
    [generation, links]: [u8; 2],
    [sm_mhz, memory_mhz]: [u32; 2],
) -> GpuModel {
    GpuModel { word, name, memory, limit, bare, context, spin, slowdown, generation, links, sm_mhz, memory_mhz }
}

/// All models.
#[rustfmt::skip]
pub static MODELS: [GpuModel; 10] = [
    gpu("h100", "NVIDIA H100 80GB HBM3", Some(79.6), [700.0, 69.0, 118.0, 104.0], 89, [5, 18], [1980, 2619]),
    gpu("h200", "NVIDIA H200", Some(140.4), [700.0, 76.0, 121.0, 118.0], 89, [5, 18], [1980, 3201]),
    gpu("h20", "NVIDIA H20", Some(95.6), [400.0, 58.0, 66.0, 118.0], 89, [5, 18], [1980, 2619]),
    gpu("a100", "NVIDIA A100-SXM4-80GB", Some(80.0), [400.0, 57.0, 80.0, 78.0], 92, [4, 12], [1410, 1593]),
    gpu("a100pcie", "NVIDIA A100-PCIE-40GB", Some(40.0), [300.0, 38.0, 55.0, 69.0], 92, [4, 0], [1410, 1215]),
    gpu("v100", "Tesla V100-PCIE-32GB", Some(32.0), [250.0, 24.0, 38.0, 44.0], 87, [3, 0], [1380, 877]),
    gpu("l40s", "NVIDIA L40S", Some(45.0), [350.0, 34.0, 88.0, 92.0], 92, [4, 0], [2520, 9001]),
    gpu("rtx4090", "NVIDIA GeForce RTX 4090", Some(24.0), [450.0, 18.0, 32.0, 60.0], 92, [4, 0], [3105, 10_501]),
    gpu("b200", "NVIDIA B200", Some(179.0), [1000.0, 135.0, 180.0, 215.0], 92, [5, 18], [1965, 3996]),
    gpu("gb10", "NVIDIA GB10", None, [140.0, 4.0, 9.0, 14.0], 95, [5, 0], [3003, 4266]),
];

/// Returns the model with this name in the scripts.
pub fn model(word: &str) -> Option<&'static GpuModel> {
    MODELS.iter().find(|model| model.word == word)
}

/// The load of one process at one moment, per GPU and on the host.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// Percent.
    pub(super) utilization: f64,
    /// Memory utilization in percent.
    pub(super) memory_activity: f64,
    pub(super) watts: f64,
    /// Number of CPUs that the process keeps busy.
    pub(super) cpus: f64,
    /// Probability that a sample finds the process in uninterruptible sleep.
    pub(super) waits: f64,
    /// Bytes written per second.
    pub(super) writes: f64,
    /// Bytes read per second.
    pub(super) reads: f64,
    /// Number of worker processes.
    pub(super) helpers: f64,
    /// Number of CPUs that each worker process keeps busy.
    pub(super) helper_cpus: f64,
    /// Number of worker processes that wait for a disk.
    pub(super) helpers_waiting: f64,
}

/// A process in one of its phases.
pub(super) struct PhaseContext<'a> {
    pub(super) model: &'a GpuModel,
    pub(super) phase: &'a Step,
    pub(super) rank: usize,
    /// Seconds on a clock that all processes of the job share: their checkpoints coincide.
    pub(super) job_time: f64,
    /// Slow noise of this GPU, mean 0, standard deviation 1.
    pub(super) noise: f64,
    /// Relative deviation of this GPU from the model, a few percent.
    pub(super) offset: f64,
}

impl Load {
    /// An idle context.
    fn idle(model: &GpuModel) -> Self {
        Self { watts: model.context, ..Self::default() }
    }

    /// The load of an event: the driver lists no process for it.
    pub(super) fn of_event(event: &Step, model: &GpuModel) -> Self {
        Self {
            utilization: event.number("u").unwrap_or(0.0),
            memory_activity: event.number("m").unwrap_or(0.0),
            watts: event.number("watts").unwrap_or(model.context),
            ..Self::default()
        }
    }

    /// Combines the loads of two processes on one GPU.
    pub(super) fn with(self, other: Self, model: &GpuModel) -> Self {
        Self {
            utilization: self.utilization.max(other.utilization),
            memory_activity: self.memory_activity.max(other.memory_activity),
            watts: self.watts + other.watts - model.context,
            ..other
        }
    }
}

/// Returns the load of a process in its phase.
pub(super) fn load(context: &PhaseContext, rng: &mut Rng) -> Load {
    let mut load = by_kind(context, rng);
    let phase = context.phase;
    if let Some(cpus) = phase.number("cpu") {
        load.cpus = cpus * (1.0 + 0.004 * rng.normal());
    }
    let given = [
        ("waits", &mut load.waits),
        ("writes", &mut load.writes),
        ("helpers", &mut load.helpers),
        ("helper_cpu", &mut load.helper_cpus),
        ("helpers_waiting", &mut load.helpers_waiting),
        ("u", &mut load.utilization),
    ];
    for (key, value) in given {
        *value = phase.number(key).unwrap_or(*value);
    }
    if let Some(activity) = phase.number("m") {
        load.memory_activity = (activity + rng.normal() * phase.number("m_noise").unwrap_or(0.0)).max(0.0);
    }
    load
}

fn by_kind(context: &PhaseContext, rng: &mut Rng) -> Load {
    let PhaseContext { model, phase, .. } = *context;
    let idle = Load::idle(model);
    let power = |mean: f64, variation: f64, rng: &mut Rng| {
        mean * (1.0 + context.offset + variation * (0.8 * context.noise + 0.6 * rng.normal()))
    };
    let watts = |default: f64| phase.number("watts").unwrap_or(default);
    match phase.word.as_str() {
        "train" => train(context, rng),
        // Full utilization in every sample, low power, no memory traffic.
        "spin" => Load {
            utilization: 100.0,
            watts: power(watts(model.spin), phase.number("cv").unwrap_or(0.008), rng),
            cpus: 1.0,
            ..idle
        },
        "idle" => Load { watts: power(watts(model.context), 0.008, rng), ..idle },
        "wait" => Load { watts: power(watts(model.context), 0.01, rng), cpus: 0.03, ..idle },
        "load" => Load {
            utilization: if rng.chance(0.1) { rng.between(1.0, 6.0) } else { 0.0 },
            watts: power(model.context, 0.02, rng),
            cpus: 0.9,
            waits: 0.25,
            reads: 4e8,
            ..idle
        },
        "starve" => {
            let burst = if rng.chance(0.15) { rng.between(20.0, 75.0) } else { rng.between(0.0, 9.0) };
            let share = burst / 100.0;
            Load {
                utilization: burst,
                memory_activity: burst * 0.4,
                watts: power(model.context + 0.5 * share * (model.limit - model.context), 0.05, rng),
                cpus: 0.25,
                reads: 3e7,
                ..idle
            }
        }
        "decode" => Load {
            utilization: rng.between(95.0, 99.9),
            memory_activity: (55.0 + 7.0 * rng.normal()).clamp(5.0, 95.0),
            watts: power(watts(0.42 * model.limit), 0.06, rng),
            cpus: 1.0,
            ..idle
        },
        "fsdp" => Load {
            utilization: (95.0 + 1.5 * rng.normal()).clamp(91.0, 100.0),
            memory_activity: (18.0 + 4.0 * rng.normal()).max(4.0),
            watts: power(watts(0.357 * model.limit), 0.03, rng),
            cpus: 1.0,
            ..idle
        },
        // Communication at low power alternates with computation.
        "comm" => {
            // No multiple of a usual interval: the samples would show the same half for hours.
            let communicates = (context.job_time / 23.0).fract() < 0.5;
            let (watts, activity) = if communicates { (0.214 * model.limit, 6.0) } else { (0.686 * model.limit, 44.0) };
            Load {
                utilization: rng.between(96.0, 100.0),
                memory_activity: (activity + 2.0 * rng.normal()).max(1.0),
                watts: power(watts, 0.05, rng),
                cpus: 1.0,
                ..idle
            }
        }
        // Kernels so small that launching them takes most of the time.
        "tiny" => Load {
            utilization: rng.between(94.0, 98.0),
            memory_activity: phase.number("m").unwrap_or(0.0),
            watts: power(watts(model.spin), phase.number("cv").unwrap_or(0.03), rng),
            cpus: 1.0,
            ..idle
        },
        // A model server with occasional requests.
        "serve" => {
            let is_busy = (context.job_time / 97.0).fract() < 0.6 && rng.chance(0.85);
            let busy = if is_busy { rng.between(35.0, 96.0) } else { 0.0 };
            Load {
                utilization: busy,
                memory_activity: busy * 0.6,
                watts: power(model.context + 0.006 * busy * (model.limit - model.context), 0.05, rng),
                cpus: if is_busy { 0.9 } else { 0.2 },
                ..idle
            }
        }
        // One process works on the host while the others spin on their GPUs.
        "barrier" => barrier(context, rng),
        _ => idle,
    }
}

/// Training: busy, with occasional dips (data loader) and periodic checkpoints.
fn train(context: &PhaseContext, rng: &mut Rng) -> Load {
    let PhaseContext { model, phase, .. } = *context;
    let every = phase.number("checkpoint").unwrap_or(1800.0);
    let lasts = phase.number("saves").unwrap_or(40.0);
    // The first save never falls on the beginning of the case.
    if context.job_time.rem_euclid(every) > every - lasts {
        return if phase.text("style") == Some("all") { save(context, rng) } else { barrier(context, rng) };
    }
    let is_dip = rng.chance(0.03);
    let full = phase.number("watts").unwrap_or(0.8 * model.limit);
    let helpers = phase.number("helpers").unwrap_or(4.0);
    Load {
        utilization: if is_dip { rng.between(55.0, 92.0) } else { rng.between(97.0, 100.9).min(100.0) },
        memory_activity: if is_dip { rng.between(20.0, 40.0) } else { (47.0 + 5.0 * rng.normal()).clamp(30.0, 65.0) },
        watts: full
            * (1.0 + context.offset + 0.03 * context.noise + 0.015 * rng.normal())
            * if is_dip { 0.8 } else { 1.0 },
        cpus: 1.0,
        waits: 0.01,
        writes: 2e4,
        reads: 3e8,
        helpers,
        helper_cpus: 0.4,
        ..Load::idle(model)
    }
}

/// A checkpoint to which every rank writes.
fn save(context: &PhaseContext, rng: &mut Rng) -> Load {
    Load {
        utilization: if rng.chance(0.1) { rng.between(1.0, 4.0) } else { 0.0 },
        watts: context.model.context * (1.0 + 0.01 * rng.normal()),
        cpus: rng.between(0.3, 0.9),
        waits: 0.5,
        writes: 6e8,
        helpers: 4.0,
        ..Load::idle(context.model)
    }
}

/// Rank 0 writes a checkpoint while the other ranks wait in a collective.
fn barrier(context: &PhaseContext, rng: &mut Rng) -> Load {
    let idle = Load::idle(context.model);
    if context.rank == 0 {
        return Load {
            utilization: if rng.chance(0.1) { rng.between(1.0, 4.0) } else { 0.0 },
            watts: context.model.context * (1.0 + 0.01 * rng.normal()),
            cpus: rng.between(0.6, 1.9),
            waits: 0.4,
            writes: 1.4e9,
            helpers: 4.0,
            ..idle
        };
    }
    Load {
        utilization: 100.0,
        watts: context.model.spin * (1.0 + context.offset + 0.01 * rng.normal()),
        cpus: 1.0,
        helpers: 4.0,
        ..idle
    }
}
