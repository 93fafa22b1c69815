//! GPU models, and the load that each kind of work puts on them.
//!
//! Figures come from public reports (hangs, idle contexts) and data sheets (limits).

use super::case_file::Step;
use super::rng::Rng;

/// A GPU model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuModel {
    /// Name in the case files.
    pub(crate) word: &'static str,
    /// Name that the driver reports.
    pub(crate) name: &'static str,
    /// GiB; `None` if the GPU shares the memory of the host.
    pub(crate) memory: Option<f64>,
    /// Enforced power limit in watts.
    pub(crate) limit: f64,
    /// Power without a CUDA context, in watts.
    pub(crate) bare: f64,
    /// Power with an idle CUDA context, in watts.
    pub(crate) context: f64,
    /// Power while a kernel spins without memory access, in watts.
    pub(crate) spin: f64,
    /// Slowdown temperature in degrees Celsius.
    pub(crate) slowdown: i32,
    /// PCIe generation.
    pub(crate) generation: u8,
    /// Number of NVLinks.
    pub(crate) links: u8,
}

const MODELS: [GpuModel; 8] = [
    GpuModel {
        word: "h100",
        name: "NVIDIA H100 80GB HBM3",
        memory: Some(79.6),
        limit: 700.0,
        bare: 69.0,
        context: 118.0,
        spin: 104.0,
        slowdown: 89,
        generation: 5,
        links: 18,
    },
    GpuModel {
        word: "h200",
        name: "NVIDIA H200",
        memory: Some(140.4),
        limit: 700.0,
        bare: 76.0,
        context: 121.0,
        spin: 118.0,
        slowdown: 89,
        generation: 5,
        links: 18,
    },
    GpuModel {
        word: "a100pcie",
        name: "NVIDIA A100-PCIE-40GB",
        memory: Some(40.0),
        limit: 300.0,
        bare: 38.0,
        context: 55.0,
        spin: 69.0,
        slowdown: 92,
        generation: 4,
        links: 0,
    },
    GpuModel {
        word: "v100",
        name: "Tesla V100-PCIE-32GB",
        memory: Some(32.0),
        limit: 250.0,
        bare: 24.0,
        context: 38.0,
        spin: 44.0,
        slowdown: 87,
        generation: 3,
        links: 0,
    },
    GpuModel {
        word: "l40s",
        name: "NVIDIA L40S",
        memory: Some(45.0),
        limit: 350.0,
        bare: 34.0,
        context: 88.0,
        spin: 92.0,
        slowdown: 92,
        generation: 4,
        links: 0,
    },
    GpuModel {
        word: "rtx4090",
        name: "NVIDIA GeForce RTX 4090",
        memory: Some(24.0),
        limit: 450.0,
        bare: 18.0,
        context: 32.0,
        spin: 60.0,
        slowdown: 92,
        generation: 4,
        links: 0,
    },
    GpuModel {
        word: "b200",
        name: "NVIDIA B200",
        memory: Some(179.0),
        limit: 1000.0,
        bare: 135.0,
        context: 180.0,
        spin: 215.0,
        slowdown: 92,
        generation: 5,
        links: 18,
    },
    GpuModel {
        word: "gb10",
        name: "NVIDIA GB10",
        memory: None,
        limit: 140.0,
        bare: 4.0,
        context: 9.0,
        spin: 14.0,
        slowdown: 95,
        generation: 5,
        links: 0,
    },
];

/// Returns the model with this name in the case files.
pub(crate) fn model(word: &str) -> GpuModel {
    MODELS.into_iter().find(|model| model.word == word).unwrap_or_else(|| panic!("no GPU model `{word}`"))
}

/// The load of one process at one moment, per GPU and on the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Percent.
    pub(crate) utilization: f64,
    /// Memory utilization in percent.
    pub(crate) memory_activity: f64,
    pub(crate) watts: f64,
    /// Number of CPUs that the process keeps busy.
    pub(crate) cpus: f64,
    /// Probability that a sample finds the process in uninterruptible sleep.
    pub(crate) waits: f64,
    /// Bytes written per second.
    pub(crate) writes: f64,
    /// Bytes read per second.
    pub(crate) reads: f64,
    /// Number of worker processes.
    pub(crate) helpers: f64,
    /// Number of CPUs that each worker process keeps busy.
    pub(crate) helper_cpus: f64,
    /// Number of worker processes that wait for a disk.
    pub(crate) helpers_waiting: f64,
}

/// A process in one of its phases.
pub(crate) struct PhaseContext<'a> {
    pub(crate) model: &'a GpuModel,
    pub(crate) phase: &'a Step,
    pub(crate) rank: usize,
    /// Seconds on a clock that all processes of the job share: their checkpoints coincide.
    pub(crate) job_time: f64,
    /// Slow noise of this GPU, mean 0, standard deviation 1.
    pub(crate) noise: f64,
    /// Relative deviation of this GPU from the model, a few percent.
    pub(crate) offset: f64,
}

impl Load {
    /// An idle context.
    fn idle(model: &GpuModel) -> Self {
        Self {
            utilization: 0.0,
            memory_activity: 0.0,
            watts: model.context,
            cpus: 0.0,
            waits: 0.0,
            writes: 0.0,
            reads: 0.0,
            helpers: 0.0,
            helper_cpus: 0.0,
            helpers_waiting: 0.0,
        }
    }
}

/// Returns the load of a process in its phase.
pub(crate) fn load(context: &PhaseContext, rng: &mut Rng) -> Load {
    let mut load = by_kind(context, rng);
    let phase = context.phase;
    if let Some(cpus) = phase.number("cpu") {
        load.cpus = cpus * (1.0 + 0.004 * rng.normal());
    }
    if let Some(waits) = phase.number("waits") {
        load.waits = waits;
    }
    if let Some(bytes) = phase.number("writes") {
        load.writes = bytes;
    }
    if let Some(helpers) = phase.number("helpers") {
        load.helpers = helpers;
    }
    if let Some(cpus) = phase.number("helper_cpu") {
        load.helper_cpus = cpus;
    }
    if let Some(waiting) = phase.number("helpers_waiting") {
        load.helpers_waiting = waiting;
    }
    if let Some(utilization) = phase.number("u") {
        load.utilization = utilization;
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
            let communicates = (context.job_time / 20.0).fract() < 0.5;
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
        "gone" => idle,
        other => panic!("unknown kind of work `{other}`"),
    }
}

/// Training: busy, with occasional dips (data loader) and periodic checkpoints.
fn train(context: &PhaseContext, rng: &mut Rng) -> Load {
    let PhaseContext { model, phase, .. } = *context;
    let every = phase.time("checkpoint").unwrap_or(1800.0);
    let lasts = phase.time("saves").unwrap_or(40.0);
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
