//! Workloads and how they use GPUs over time, with closed-form integrals of utilisation and energy.

use super::fault::{GpuUse, JobFault, JobFaultKind};
use super::rng;
use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::ops::Range;

const GIB: u64 = 1 << 30;

/// The kind of work in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workload {
    /// A long torchrun job on all GPUs of the slot.
    Pretrain,
    /// A torchrun job of several hours.
    Training,
    /// Short jobs on one GPU, one after the other.
    Evaluation,
    /// A model server with bursts of requests.
    Inference,
    /// Two small servers on the same GPU.
    Shared,
    /// A notebook that holds memory for days without work.
    Notebook,
    /// Training on a GPU that overheats.
    Hot,
    /// Training on videos that many CPUs decode.
    Video,
    /// Kernels so small that the GPU is always busy at low power.
    Tiny,
    /// No job.
    Free,
}

/// Typical values of a workload, per GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WorkloadProfile {
    pub(super) load: Load,
    /// Power at full load, as a fraction of the range between the power of an idle context and the limit.
    pub(super) power_share: f64,
    /// Memory utilisation as a fraction of utilisation.
    pub(super) memory_activity: f64,
    /// Memory in use after loading, as a fraction of the total.
    pub(super) memory_share: f64,
    /// CPUs used by each GPU process.
    pub(super) cpus: f64,
    /// Data loader processes of each GPU process.
    pub(super) helpers: u32,
    /// CPUs used by these together.
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
    /// Returns the typical values.
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

    /// Returns the CPU time at the start of the simulation, from notebook cells that ran earlier.
    pub(super) fn early_cpu_seconds(self) -> f64 {
        if self == Self::Notebook { 190.0 } else { 0.0 }
    }

    /// Returns whether a launcher (torchrun) is the parent of the GPU processes.
    pub(super) fn is_launched(self) -> bool {
        matches!(self, Self::Pretrain | Self::Training)
    }
}

/// A repeating load: steps with a dip between them, and a pause (for example a checkpoint) at the end of each cycle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Length of a cycle in seconds.
    pub(super) cycle_seconds: f64,
    /// Length of the pause at the end of a cycle.
    pub(super) pause_seconds: f64,
    /// Length of a step, including its dip.
    pub(super) step_seconds: f64,
    /// Length of the dip at the end of a step.
    pub(super) dip_seconds: f64,
    /// Fraction of time with a running kernel within a step.
    pub(super) high: f64,
    /// Fraction within a dip.
    pub(super) low: f64,
    /// Fraction within a pause.
    pub(super) pause: f64,
}

impl Load {
    /// Creates a constant load.
    pub(super) const fn steady(level: f64) -> Self {
        Self {
            cycle_seconds: 60.0,
            pause_seconds: 0.0,
            step_seconds: 60.0,
            dip_seconds: 0.0,
            high: level,
            low: level,
            pause: level,
        }
    }

    /// Returns the seconds of kernel time in the first `seconds`.
    pub(super) fn work(&self, seconds: f64) -> f64 {
        let seconds = seconds.max(0.0);
        let busy = self.cycle_seconds - self.pause_seconds;
        let cycles = (seconds / self.cycle_seconds).floor();
        let rest = seconds - cycles * self.cycle_seconds;
        let whole = self.steps(busy) + self.pause * self.pause_seconds;
        cycles * whole + self.steps(rest.min(busy)) + self.pause * (rest - busy).max(0.0)
    }

    fn steps(&self, seconds: f64) -> f64 {
        let up = self.step_seconds - self.dip_seconds;
        let steps = (seconds / self.step_seconds).floor();
        let rest = seconds - steps * self.step_seconds;
        let whole = self.high * up + self.low * self.dip_seconds;
        steps * whole + self.high * rest.min(up) + self.low * (rest - up).max(0.0)
    }
}

/// Length of one period of [`noise_integral`].
const SWING_SECONDS: f64 = 3.7;

/// Returns the integral up to `seconds` of irregular noise between -1 and 1 that integrates to 0 over each period. Periods
/// that do not end before `until` are flat, so that the integral is 0 there.
pub(super) fn noise_integral(seconds: f64, until: f64, seed: u64) -> f64 {
    let cell = (seconds / SWING_SECONDS).floor();
    if seconds < 0.0 || (cell + 1.0) * SWING_SECONDS > until {
        return 0.0;
    }
    let amplitude = rng::between(-1.0, 1.0, &[seed, cell as u64]);
    let within = seconds / SWING_SECONDS - cell;
    amplitude * SWING_SECONDS / TAU * (1.0 - (TAU * within).cos())
}

/// Time a job loads before it computes.
const LOADING_SECONDS: f64 = 38.0;
/// Maximum delay between the ranks of a job.
const MAX_RANK_SKEW_SECONDS: f64 = 0.9;
/// Amplitude of power noise at full load.
const SWING_SHARE: f64 = 0.05;

/// Some GPUs of a host and kind runs there.
#[derive(Debug, Clone)]
pub(super) struct GpuSlot {
    /// Number of the slot on its host.
    pub(super) number: u64,
    /// Positions of its GPUs. Another slot may use them at another time.
    pub(super) gpus: Range<usize>,
    pub(super) kind: Workload,
    /// The script, if the workload does not determine it.
    pub(super) script: Option<&'static str>,
    /// Index of the owner in [`super::scenario::PEOPLE`].
    pub(super) person: usize,
    /// Age of the job at the start of the simulation; negative if it starts later.
    pub(super) began_seconds: f64,
    /// Time after the start of the simulation at which the slot becomes empty.
    pub(super) left_seconds: f64,
    /// Run time and gap of repeated jobs; `None` for jobs that never end.
    pub(super) cycle: Option<JobCycle>,
    /// Faults of the job, in order.
    pub(super) job_faults: Vec<JobFault>,
    /// Memory leak from the start of the simulation on, bytes per hour.
    pub(super) leak_bytes_per_hour: f64,
    /// Distinguishes this slot from similar ones.
    pub(super) seed: u64,
}

/// Timing of repeated jobs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct JobCycle {
    pub(super) run_seconds: f64,
    pub(super) gap_seconds: f64,
}

/// A running job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Job {
    /// Index of the run in this slot, from 0.
    pub(super) run_index: u64,
    pub(super) age_seconds: f64,
}

/// Ages at which signals ended jobs, by slot and run index.
pub(super) type Ended = BTreeMap<(u64, u64), f64>;

/// Returns the fraction of its memory that a job has loaded at this age.
pub(super) fn loaded(age: f64) -> f64 {
    (age / LOADING_SECONDS).clamp(0.02, 1.0)
}

impl GpuSlot {
    /// Returns the job that runs `elapsed` seconds after the start of the simulation.
    pub(super) fn job(&self, elapsed: f64, ended: &Ended) -> Option<Job> {
        if self.kind == Workload::Free || elapsed < -self.began_seconds || elapsed >= self.left_seconds {
            return None;
        }
        let (run_index, age_seconds) = self.run_index(elapsed);
        let lasts = self.cycle.map_or(f64::INFINITY, |cycle| cycle.run_seconds);
        let lasts = ended.get(&(self.number, run_index)).map_or(lasts, |age| age.min(lasts));
        (age_seconds < lasts).then_some(Job { run_index, age_seconds })
    }

    /// Returns since when a fault is active, in seconds after the start of the simulation.
    pub(super) fn fault_since(&self, kind: JobFaultKind, elapsed: f64) -> Option<f64> {
        self.job_faults
            .iter()
            .find(|job_fault| job_fault.kind == kind && job_fault.is_at(elapsed))
            .map(|job_fault| job_fault.from)
    }

    /// Returns how the rank on a GPU uses it.
    pub(super) fn mode(&self, gpu: usize, elapsed: f64) -> GpuUse {
        let now = self.job_faults.iter().filter(|job_fault| job_fault.is_at(elapsed));
        now.map(|job_fault| job_fault.kind.mode(self.rank(gpu)))
            .find(|mode| *mode != GpuUse::Works)
            .unwrap_or(GpuUse::Works)
    }

    /// Returns the energy of all jobs on a GPU above its idle power, in joules.
    pub(super) fn energy(&self, model: &GpuModel, gpu: usize, elapsed: f64, ended: &Ended) -> f64 {
        if self.kind == Workload::Free || elapsed < -self.began_seconds {
            return 0.0;
        }
        let (run_index, age) = self.run_index(elapsed.min(self.left_seconds));
        let run = self.cycle.map_or(f64::INFINITY, |cycle| cycle.run_seconds);
        let job = |age: f64| self.run_energy(model, gpu, age);
        let before = if run_index == 0 { 0.0 } else { run_index as f64 * job(run) };
        // Energy that jobs ended by a signal did not use.
        let spared: f64 = ended
            .range((self.number, 0)..(self.number, run_index))
            .map(|(_, lasted)| job(run) - job(lasted.min(run)))
            .sum();
        let lasts = ended.get(&(self.number, run_index)).map_or(run, |lasted| lasted.min(run));
        before - spared + job(age.min(lasts))
    }

    /// Returns the seconds of kernel time on a GPU in the first `age` seconds of its job.
    pub(super) fn work(&self, gpu: usize, age: f64) -> f64 {
        self.sum(gpu, age, |mode, from, to| match mode {
            GpuUse::Works => self.healthy_work(gpu, to) - self.healthy_work(gpu, from),
            GpuUse::Less(share) => share * (self.healthy_work(gpu, to) - self.healthy_work(gpu, from)),
            GpuUse::Spins => to - from,
            GpuUse::Rests => 0.0,
        })
    }

    /// Returns the CPU time of the rank on a GPU in its first `age` seconds.
    pub(super) fn cpu_seconds(&self, gpu: usize, age: f64) -> f64 {
        let cpus = self.kind.profile().cpus;
        let used = self.sum(gpu, age, |mode, from, to| (to - from) * cpus_of(mode, cpus));
        self.kind.early_cpu_seconds() + used
    }

    /// Returns the CPUs used by the rank on a GPU, and by its helpers.
    pub(super) fn cpus(&self, gpu: usize, elapsed: f64) -> (f64, f64) {
        let (mode, profile) = (self.mode(gpu, elapsed), self.kind.profile());
        let helpers = if matches!(mode, GpuUse::Works | GpuUse::Less(_)) { profile.helper_cpus } else { 0.0 };
        (cpus_of(mode, profile.cpus), helpers)
    }

    fn rank(&self, gpu: usize) -> usize {
        gpu - self.gpus.start
    }

    fn healthy_work(&self, gpu: usize, age: f64) -> f64 {
        // The ranks of a job are slightly out of step.
        let behind = rng::between(0.0, MAX_RANK_SKEW_SECONDS, &[self.seed, gpu as u64, 4]);
        self.kind.profile().load.work((age - LOADING_SECONDS - behind).max(0.0))
    }

    fn run_energy(&self, model: &GpuModel, gpu: usize, age: f64) -> f64 {
        let profile = self.kind.profile();
        let variety = rng::between(0.965, 1.03, &[self.seed, gpu as u64, 1]);
        let full = (model.power_limit_watts - model.context_watts) * profile.power_share * variety;
        let until = self.cycle.map_or(f64::INFINITY, |cycle| cycle.run_seconds);
        let context = model.context_watts - model.idle_watts;
        let spin = model.spin_watts * rng::between(1.0, 1.15, &[self.seed, gpu as u64, 2]) - model.idle_watts;
        let swing = |age| noise_integral(age, until, self.seed ^ gpu as u64) * full * SWING_SHARE;
        let computing = |from, to, share: f64| {
            let work = self.healthy_work(gpu, to) - self.healthy_work(gpu, from);
            context * (to - from) + share * (full * work + swing(to) - swing(from))
        };
        self.sum(gpu, age, |mode, from, to| match mode {
            GpuUse::Works => computing(from, to, 1.0),
            GpuUse::Less(share) => computing(from, to, share),
            GpuUse::Spins => spin * (to - from),
            GpuUse::Rests => context * (to - from),
        })
    }

    /// Sums a function over the periods of the first `age` seconds in which a rank uses its GPU in the same way.
    fn sum(&self, gpu: usize, age: f64, of: impl Fn(GpuUse, f64, f64) -> f64) -> f64 {
        let (mut at, mut total) = (0.0, 0.0);
        for job_fault in &self.job_faults {
            let mode = job_fault.kind.mode(self.rank(gpu));
            let from = (job_fault.from + self.began_seconds).clamp(at, age);
            let until = (job_fault.until + self.began_seconds).clamp(from, age);
            if mode == GpuUse::Works {
                continue;
            }
            total += of(GpuUse::Works, at, from) + of(mode, from, until);
            at = until;
        }
        total + of(GpuUse::Works, at, age)
    }

    fn run_index(&self, elapsed: f64) -> (u64, f64) {
        let since = self.began_seconds + elapsed;
        match self.cycle {
            None => (0, since),
            Some(JobCycle { run_seconds, gap_seconds }) => {
                let run_index = (since / (run_seconds + gap_seconds)).floor();
                (run_index as u64, since - run_index * (run_seconds + gap_seconds))
            }
        }
    }
}

/// A rank that waits in a collective uses one CPU, an idle one none.
fn cpus_of(mode: GpuUse, cpus: f64) -> f64 {
    match mode {
        GpuUse::Works | GpuUse::Less(_) => cpus,
        GpuUse::Spins => 1.0,
        GpuUse::Rests => 0.0,
    }
}

const MIB: u64 = 1 << 20;

/// A GPU model.
#[derive(Debug, PartialEq)]
pub(super) struct GpuModel {
    pub(super) name: &'static str,
    pub(super) tag: &'static str,
    pub(super) memory_total_bytes: u64,
    pub(super) memory_reserved_bytes: u64,
    pub(super) power_limit_watts: f64,
    /// Power without a context.
    pub(super) idle_watts: f64,
    /// Power with an idle context. Reported: H100 122 W, A100 80 W.
    pub(super) context_watts: f64,
    /// Power while a kernel spins on all SMs without memory accesses. Reported for hung H100s: 100 to 152 W.
    pub(super) spin_watts: f64,
    pub(super) sm_max_mhz: u32,
    pub(super) memory_mhz: u32,
    pub(super) slowdown_celsius: i32,
    pub(super) pcie_generation: u8,
    pub(super) nvlinks: u8,
}

/// As in an HGX H100.
pub(super) static H100: GpuModel = GpuModel {
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
    nvlinks: 18,
};

/// As in an HGX A100.
pub(super) static A100: GpuModel = GpuModel {
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
    nvlinks: 12,
};

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINING: Load = Load {
        cycle_seconds: 100.0,
        pause_seconds: 10.0,
        step_seconds: 7.0,
        dip_seconds: 1.0,
        high: 0.9,
        low: 0.3,
        pause: 0.05,
    };

    #[test]
    fn the_integral_has_the_slopes_of_its_levels() {
        let slope = |at: f64| (TRAINING.work(at + 0.01) - TRAINING.work(at)) / 0.01;
        for (at, level) in [(1.0, 0.9), (6.5, 0.3), (8.0, 0.9), (95.0, 0.05), (101.0, 0.9), (1006.5, 0.3)] {
            assert!((slope(at) - level).abs() < 1e-6, "{at}: {}", slope(at));
        }
    }

    #[test]
    fn the_integrals_are_continuous() {
        for tenth in 0..5000 {
            let at = f64::from(tenth) / 10.0;
            assert!((0.0..=0.1).contains(&(TRAINING.work(at + 0.1) - TRAINING.work(at) + 1e-12)));
            assert!((noise_integral(at + 0.1, 480.0, 3) - noise_integral(at, 480.0, 3)).abs() <= 0.1 + 1e-9, "{at}");
        }
        assert!(noise_integral(481.0, 480.0, 3).abs() < 1e-12);
    }

    fn slot(kind: Workload, cycle: Option<JobCycle>, job_faults: &[JobFault]) -> GpuSlot {
        GpuSlot {
            number: 3,
            gpus: 0..2,
            kind,
            script: None,
            person: 0,
            began_seconds: 100.0,
            left_seconds: f64::INFINITY,
            cycle,
            job_faults: job_faults.to_vec(),
            leak_bytes_per_hour: 0.0,
            seed: 9,
        }
    }

    const TURNS: JobCycle = JobCycle { run_seconds: 300.0, gap_seconds: 60.0 };

    #[test]
    fn jobs_follow_one_another_and_a_signal_ends_one() {
        let slot = slot(Workload::Evaluation, Some(TURNS), &[]);
        let job = |elapsed| slot.job(elapsed, &Ended::new()).map(|job| (job.run_index, job.age_seconds));
        assert_eq!(job(0.0), Some((0, 100.0)));
        assert_eq!((job(199.0), job(201.0)), (Some((0, 299.0)), None));
        assert_eq!(job(261.0), Some((1, 1.0)));
        let ended = Ended::from([((3, 1), 20.0)]);
        assert_eq!(slot.job(285.0, &ended), None);
        assert!(slot.job(640.0, &ended).is_some(), "the next one is another job");
    }

    #[test]
    fn a_slot_is_occupied_between_its_start_and_end_only() {
        let slot = GpuSlot { began_seconds: -50.0, left_seconds: 400.0, ..slot(Workload::Training, None, &[]) };
        let runs = [49.0, 50.0, 399.0, 400.0].map(|elapsed| slot.job(elapsed, &Ended::new()).is_some());
        assert_eq!(runs, [false, true, true, false]);
        let energy = |elapsed| slot.energy(&H100, 0, elapsed, &Ended::new());
        assert!(energy(49.0) == 0.0 && energy(399.0) > 10_000.0);
        assert!((energy(400.0) - energy(900.0)).abs() < 1e-9, "nothing more after its end");
    }

    #[test]
    fn energy_only_rises_and_never_faster_than_the_limit() {
        let affects = [
            JobFault::new(5.0, 9.0, JobFaultKind::LosesRank(1)),
            JobFault::new(11.0, 13.0, JobFaultKind::Straggles(1)),
        ];
        let cycle = [
            (Workload::Pretrain, None),
            (Workload::Evaluation, Some(TURNS)),
            (Workload::Training, None),
            (Workload::Notebook, None),
            (Workload::Free, None),
        ];
        for (kind, cycle) in cycle {
            let job_faults = if kind == Workload::Training { &affects[..] } else { &[] };
            let slot = slot(kind, cycle, job_faults);
            let ended = Ended::from([((3, 1), 20.0), ((3, 2), 200.0)]);
            for ended in [Ended::new(), ended] {
                for step in 0..6000 {
                    let at = f64::from(step) * 0.5;
                    let watts = (slot.energy(&H100, 1, at + 0.5, &ended) - slot.energy(&H100, 1, at, &ended)) / 0.5;
                    let watts = H100.idle_watts + watts;
                    assert!((50.0..=H100.power_limit_watts).contains(&watts), "{kind:?} at {at}: {watts}");
                }
            }
        }
    }

    #[test]
    fn a_job_that_hangs_draws_little_from_then_on() {
        let slot = slot(Workload::Training, None, &[JobFault::new(6.5, f64::INFINITY, JobFaultKind::Hangs)]);
        let watts = |at: f64| {
            H100.idle_watts
                + (slot.energy(&H100, 0, at + 60.0, &Ended::new()) - slot.energy(&H100, 0, at, &Ended::new())) / 60.0
        };
        assert!(watts(270.0) > 400.0);
        assert!(watts(391.0) < 125.0);
        assert_eq!(
            (slot.fault_since(JobFaultKind::Hangs, 389.0), slot.fault_since(JobFaultKind::Hangs, 390.0)),
            (None, Some(390.0))
        );
        assert_eq!(slot.mode(0, 390.0), GpuUse::Spins);
        let busy = slot.work(0, 100.0 + 390.0 + 11.0) - slot.work(0, 100.0 + 390.0 + 10.0);
        assert!((busy - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_lost_rank_rests_while_the_others_spin_and_its_cpu_time_stands_still() {
        let slot = slot(Workload::Training, None, &[JobFault::new(10.0, 20.0, JobFaultKind::LosesRank(1))]);
        assert_eq!(
            (slot.mode(0, 900.0), slot.mode(1, 900.0), slot.mode(1, 1300.0)),
            (GpuUse::Spins, GpuUse::Rests, GpuUse::Works)
        );
        let used = |gpu, age: f64| slot.cpu_seconds(gpu, age);
        assert!((used(1, 1000.0) - used(1, 800.0)).abs() < 1e-9);
        assert!((used(0, 1000.0) - used(0, 800.0) - 200.0).abs() < 1e-9);
        assert!((slot.work(1, 1000.0) - slot.work(1, 800.0)).abs() < 1e-9);
    }
}
