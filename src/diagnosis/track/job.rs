//! The state kept for one job on one host: how it uses its GPUs now, how it used them before, and how balanced they
//! are.

use super::baseline::{
    BASELINE_LOW_MINUTES, Baseline, Comparison, Phase, Phases, STILL_HISTORY_SECONDS, UNKNOWN_LIMIT_WATTS,
};
use super::waits::Waits;
use super::window::REACH_SECONDS;
use super::{GpuTrack, ProcessTrack};
use crate::diagnosis::condition::Run;
use crate::fleet::JobKey;
use crate::wire::SafeText;

/// A minute of utilisation enters the baseline when it is this old, in seconds, so that the present is not compared
/// with itself.
const BASELINE_DELAY: f64 = 660.0;
/// The memory utilisation, in percent, from which a GPU accesses its memory.
const ACCESSED_PERCENT: u8 = 5;
/// A minute with less than this share of the median utilisation does not enter the baseline: a stall must not become the
/// past with which it is compared. After [`BASELINE_LOW_MINUTES`] of them in a row they are the new normal.
const BASELINE_LOW_SHARE: f32 = 0.5;
/// That share while other jobs or an overloaded host slow the job down: above it, no rule reports that.
const SLOWED_LOW_SHARE: f32 = 0.75;
/// The utilisation at most, in percent, of a job that is quiet.
const QUIET_PERCENT: u8 = 5;
/// A quiet time or a wait shorter than this, in seconds, is not remembered.
const MIN_PAUSE: f64 = 60.0;
/// A minute in which all GPUs are below this share of their median utilisation is part of a phase of low use. It is lower than
/// [`BASELINE_LOW_SHARE`], since a minute of work may be split over two of them.
const PHASE_LOW_SHARE: f32 = 0.35;
/// An idle GPU may do this much within ten minutes, in percent times seconds: a heartbeat, or a look at a tensor.
const IDLE_DISTURBANCE: f64 = 600.0;
const DISTURBANCE_SECONDS: f64 = 600.0;
/// The time constant of the healthy CPU usage, in seconds.
const HEALTHY_CORES_SECONDS: f64 = 600.0;
/// A stalled process may use this share of the CPU that it used at work, up to a limit in cores: threads of watchdogs and
/// of loggers go on.
const STILL_CORES_SHARE: f64 = 0.15;
const STILL_CORES_MOST: f64 = 0.18;
/// A rank that works on the host uses this many times the CPU of the median, at least: data loaders vary.
const BUSIER_RANK: f64 = 1.25;
/// The CPU cores that a stalled process may use if its usage at work was not seen: watchdog and logging threads use 0.5 to
/// 5 % of a core.
pub(crate) const STILL_CORES_UNKNOWN: f64 = 0.06;
/// The CPU cores of data loader workers from which they count as at work, and the share of that at most while they rest.
const WORKERS_WORK: f64 = 0.3;
const WORKERS_REST: f64 = 0.05;
/// A process that uses this many CPU cores computes on them.
const SEVERAL_CORES: f64 = 3.0;
/// The least CPU cores of a job whose workers take turns with its GPUs, and the largest share of them while the workers rest.
const TURN_CORES: f64 = 2.0;
const TURN_REST: f64 = 0.25;
/// The CPU cores of a rank that waits in a loop.
pub(crate) const LOOP_CORES: std::ops::RangeInclusive<f64> = 0.85..=1.25;
/// Several threads that wait in loops use as many whole cores, to this part of one.
const WHOLE_CORES: f64 = 0.05;
const LOOP_THREADS: std::ops::RangeInclusive<f64> = 2.0..=16.0;

/// Whether a process that uses so many cores may do nothing but wait in a loop.
fn is_loop(cores: f64) -> bool {
    let threads = cores.round();
    LOOP_CORES.contains(&cores) || (LOOP_THREADS.contains(&threads) && (cores - threads).abs() <= WHOLE_CORES)
}

/// The CPU cores that each process beyond the first may use while the job is idle.
const IDLE_CORES_PER_PROCESS: f64 = 0.05;
/// The CPU cores from which a process on a MIG instance counts as working.
const BLIND_WORK_CORES: f64 = 0.5;
/// A notebook kernel or a server that waits uses up to this many cores: heartbeats, health checks and statistics.
const WAITING_CORES: f64 = 0.15;
/// A job that worked for this many seconds and this share of the time was training: a server rests between requests.
const TRAINING_SHARE: f32 = 0.7;
const TRAINING_SECONDS: f32 = 600.0;

/// One GPU of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobGpu {
    pub(crate) identity: SafeText,
    pub(crate) position: usize,
    /// No other job computes on the GPU.
    pub(crate) is_exclusive: bool,
    pub(crate) memory_bytes: Option<u64>,
    /// The utilisation of this job on the GPU, or of the GPU if no other job uses it.
    pub(crate) activity: Option<u8>,
    pub(crate) baseline: Baseline,
}

/// One job on one host.
#[allow(clippy::struct_excessive_bools, reason = "independent properties")]
#[derive(Debug, Clone)]
pub(crate) struct JobTrack {
    pub(crate) key: JobKey,
    /// Its processes, as indexes into the processes of the host.
    pub(crate) members: Vec<usize>,
    pub(crate) gpus: Vec<JobGpu>,
    /// The GPUs from before, while the processes are regrouped.
    previous_gpus: Vec<JobGpu>,
    pub(crate) first_seen: f64,
    pub(crate) is_server: bool,
    /// The job serves models: its ranks spin while they wait for requests.
    pub(crate) is_model_server: bool,
    /// It had processes that serve models, and they ended.
    pub(crate) had_engines: bool,
    /// A debugger runs one of its processes.
    pub(crate) is_debugged: bool,
    /// No GPU of the job reports its utilisation (MIG instances, shared GPUs): only its CPU usage can be judged.
    pub(crate) is_blind: bool,
    /// The age of its youngest process when it was first seen, in seconds.
    pub(crate) age_at_first: Option<f64>,
    pub(crate) is_notebook: bool,
    pub(crate) is_mine: bool,
    /// A port on which one of its processes listens, as a server does.
    pub(crate) served_port: Option<u16>,
    /// All its GPUs were read in this sample, and none of its processes is stale.
    pub(crate) is_readable: bool,
    /// The smoothed CPU cores that its processes use; `None` if one of them is unknown.
    pub(crate) cores: Option<f64>,
    /// All GPUs are idle and the processes use almost no CPU.
    pub(crate) idle_run: Option<Run>,
    /// The job has been idle since this time, known from CPU time, before `idle_run` began.
    pub(crate) idle_since: Option<f64>,
    /// Before a long gap: since when the job was idle, and its CPU time.
    pub(crate) before_gap: Option<(f64, f64)>,
    /// Idle, and without any reads, writes or new processes.
    pub(crate) stalled_run: Option<Run>,
    /// The GPUs rest, or their utilisation is unknown, and the workers that fed them before rest, too.
    pub(crate) unfed_run: Option<Run>,
    /// The GPUs rest without reads or writes, and each process rests or waits in a loop, at least one in a loop.
    pub(crate) poll_run: Option<Run>,
    /// Every process has waited in a loop since `poll_run` began.
    all_loop: bool,
    /// Since when the workers that fed the GPUs before rest, whatever the GPUs do.
    pub(crate) workers_rest_since: Option<f64>,
    /// The CPU cores of the workers while they fed the GPUs.
    healthy_workers: Option<f64>,
    /// When the workers last rested while the GPUs worked, as simulations do during an update of the model, unlike data loaders.
    pub(crate) workers_rested_at: Option<f64>,
    /// When its processes last computed on several CPU cores each.
    pub(crate) used_cores_at: Option<f64>,
    /// The longest stall, in seconds, after which the GPUs worked again.
    pub(crate) longest_pause: f32,
    /// The last time during which all GPUs were quiet, and the longest one after which they worked again.
    last_quiet: Option<(f64, f64)>,
    is_quiet: bool,
    pub(crate) longest_quiet: f32,
    /// The longest time for which a client waited while the GPUs were quiet, now and in all earlier quiet times, in seconds.
    waited_in_rest: f32,
    pub(crate) longest_preparation: f32,
    /// All GPUs rested for a while after work.
    pub(crate) rested_between: bool,
    /// How long its GPUs spun before they worked again.
    pub(crate) waits: Waits,
    /// What the GPUs did since the job became idle, see [`IDLE_DISTURBANCE`].
    idle_disturbance: f64,
    /// The CPU cores per process while the GPUs worked.
    healthy_cores: Option<f64>,
    /// The most CPU cores of one process before the GPUs worked.
    loading_cores: f64,
    /// The number of minutes in a row that did not enter the baseline.
    low_minutes: u32,
    phase: Phase,
    phases: Phases,
    /// When a process last did work on the host that the others may wait for.
    pub(crate) host_work_at: Option<f64>,
    /// When one of its processes last used far more of the CPU than the others.
    pub(crate) busier_at: Option<f64>,
    /// When one of its GPUs last did real work.
    pub(crate) computed_at: Option<f64>,
    /// Its GPUs were balanced before.
    was_balanced: bool,
    /// The index of its distributed job in the list of the engine.
    pub(crate) group: Option<u32>,
    /// The time up to which the utilisation is in the baseline.
    baseline_until: f64,
    /// Which findings that compare the job with its past are pending or firing.
    pub(crate) comparison: Comparison,
    balance_due: f64,
    /// The GPU that does less than the others, from the last comparison.
    pub(crate) imbalance: Option<Straggler>,
}

/// The thresholds of the conditions that a track evaluates per sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleThresholds {
    pub(crate) idle_utilization: f64,
    pub(crate) idle_cores: f64,
    pub(crate) still_utilization: f64,
    pub(crate) still_cores: f64,
    pub(crate) active_utilization: f64,
    pub(crate) young: f64,
    /// The percentage points of utilisation, and the share of power, by which a straggler is behind.
    pub(crate) straggler: (f64, f64),
}

impl JobTrack {
    pub(crate) fn new(key: JobKey, t: f64) -> Self {
        Self {
            key,
            members: Vec::new(),
            gpus: Vec::new(),
            previous_gpus: Vec::new(),
            first_seen: t,
            is_server: false,
            is_model_server: false,
            had_engines: false,
            is_debugged: false,
            is_blind: false,
            age_at_first: None,
            is_notebook: false,
            is_mine: false,
            served_port: None,
            is_readable: false,
            cores: None,
            idle_run: None,
            idle_since: None,
            before_gap: None,
            stalled_run: None,
            unfed_run: None,
            poll_run: None,
            all_loop: false,
            workers_rest_since: None,
            healthy_workers: None,
            workers_rested_at: None,
            used_cores_at: None,
            longest_pause: 0.0,
            last_quiet: None,
            is_quiet: false,
            longest_quiet: 0.0,
            waited_in_rest: 0.0,
            longest_preparation: 0.0,
            rested_between: false,
            waits: Waits::default(),
            idle_disturbance: 0.0,
            healthy_cores: None,
            loading_cores: 0.0,
            low_minutes: 0,
            phase: Phase::default(),
            phases: Phases::default(),
            host_work_at: None,
            busier_at: None,
            computed_at: None,
            was_balanced: false,
            group: None,
            baseline_until: t,
            comparison: Comparison::None,
            balance_due: t,
            imbalance: None,
        }
    }

    /// The processes of the job. `processes` are those of the host.
    pub(crate) fn members<'a>(
        &'a self,
        processes: &'a [ProcessTrack],
    ) -> impl Iterator<Item = &'a ProcessTrack> + use<'a> {
        self.members.iter().filter_map(move |member| processes.get(*member))
    }

    /// The CPU time of all its processes in seconds; `None` if one of them is unknown.
    pub(crate) fn cpu_seconds(&self, processes: &[ProcessTrack]) -> Option<f64> {
        self.members(processes).map(|process| process.cpu_seconds).sum()
    }

    /// The start of the idle time, including the time known from CPU time; `None` while the job works.
    pub(crate) fn idle_start(&self) -> Option<f64> {
        self.idle_run.map(|run| self.idle_since.map_or(run.since, |since| since.min(run.since)))
    }

    /// Whether the job was at sustained work until `end`, as training is and a server between requests is not.
    pub(crate) fn was_training(&self, end: f64) -> bool {
        let observed = (end - self.first_seen).max(0.0) as f32;
        let active = |gpu: &JobGpu| gpu.baseline.active_seconds;
        self.gpus.iter().any(|gpu| active(gpu) >= TRAINING_SECONDS && active(gpu) >= TRAINING_SHARE * observed)
    }

    /// Whether the GPUs were quiet for two minutes or more within the last `seconds`.
    pub(crate) fn was_quiet(&self, t: f64, seconds: f64) -> bool {
        self.last_quiet.is_some_and(|(since, until)| until - since >= 120.0 && t - until <= seconds)
    }

    /// How long every rank has waited in a loop on one core while the GPUs rest, without workers, reads or writes.
    pub(crate) fn loop_run(&self) -> Option<Run> {
        self.poll_run.filter(|_| self.all_loop)
    }

    /// The positions of its GPUs.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        self.gpus.iter().map(|gpu| gpu.position)
    }

    /// The memory that the job holds on all its GPUs; `None` if it is unknown on all of them.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.gpus.iter().filter_map(|gpu| gpu.memory_bytes).reduce(u64::saturating_add)
    }

    /// Updates the track with one sample, after its GPUs and processes.
    pub(crate) fn update(
        &mut self,
        gpus: &[GpuTrack],
        processes: &[ProcessTrack],
        bounds: IdleThresholds,
        (t, dt): (f64, f64),
    ) {
        let members = || self.members(processes);
        let age = members().filter_map(|process| process.age).fold(0.0, f64::max).max(t - self.first_seen);
        let is_young = age < bounds.young;
        let smoothed_cores: Option<f64> = members().map(|process| process.smoothed_cores).sum();
        let now_cores: Option<f64> = members().map(|process| process.cores).sum();
        // The busiest process decides whether the job stands still.
        let busiest = members().map(|process| quick_cores(process.smoothed_cores, process.cores));
        let busiest = busiest.reduce(|a, b| Some(a?.max(b?))).flatten();
        let processes_len = self.members.len();
        let last_io = members().filter_map(|process| process.last_io_at).fold(f64::NEG_INFINITY, f64::max);
        let youngest = members().filter_map(|process| process.age).reduce(f64::min);
        self.age_at_first = self.age_at_first.or(youngest);
        self.cores = smoothed_cores;
        self.update_host_work(processes, t);
        if !self.is_readable {
            return;
        }
        for gpu in &mut self.gpus {
            let Some(track) = gpus.get(gpu.position) else { continue };
            let Some(activity) = gpu.activity else { continue };
            if f64::from(activity) >= bounds.active_utilization {
                gpu.baseline.active_seconds += dt as f32;
            }
            if gpu.is_exclusive && track.memory_utilization >= Some(ACCESSED_PERCENT) {
                gpu.baseline.accessed_seconds += dt as f32;
            }
            if gpu.is_exclusive && track.counted_work_at == Some(t) {
                gpu.baseline.counted_seconds += dt as f32;
            }
            // A GPU that is busy without memory accesses after other work may wait at any power.
            let is_still = (track.still_run.is_some() && gpu.baseline.power_seconds() >= STILL_HISTORY_SECONDS)
                || (track.counter_rest_run.is_some()
                    && f64::from(gpu.baseline.counted_seconds) >= STILL_HISTORY_SECONDS);
            if !is_still && gpu.is_exclusive && activity >= 20 && track.draws_power_of_work() {
                self.computed_at = Some(t);
            }
            // Without a limit only the own history of the job can show a hang.
            let is_healthy = |power: f32| track.spin_watts().is_none_or(|spin| power >= spin);
            let is_work = gpu.is_exclusive && activity >= 50 && !is_still && track.power.is_none_or(is_healthy);
            let memory = track.memory_utilization.map(f32::from).zip(gpu.baseline.mean_memory_utilization());
            let does_memory_rest = memory.is_some_and(|(now, earlier)| now < earlier / 4.0);
            let is_frozen = self.comparison == Comparison::Job && gpu.baseline.power_seconds() >= STILL_HISTORY_SECONDS;
            let is_kept = !is_frozen
                && match track.power.filter(|_| track.limit.is_none() || does_memory_rest) {
                    Some(power) if is_work => !gpu.baseline.is_far_below(power, dt as f32),
                    _ => true,
                };
            if is_work && is_kept {
                gpu.baseline.add_memory_utilization(track.memory_utilization, dt);
            }
            if let (true, Some(power)) = (is_work && is_kept, track.power) {
                gpu.baseline.add_power(power, track.limit.unwrap_or(UNKNOWN_LIMIT_WATTS), dt as f32);
            }
        }
        let is_active =
            |gpu: &JobGpu| gpu.activity.is_some_and(|percent| f64::from(percent) >= bounds.active_utilization);
        if self.gpus.iter().any(is_active)
            && let Some(cores) = smoothed_cores
        {
            let cores = cores / processes_len.max(1) as f64;
            let weight = (dt / HEALTHY_CORES_SECONDS).min(1.0);
            self.healthy_cores = Some(self.healthy_cores.map_or(cores, |slow| slow + weight * (cores - slow)));
        }
        self.extend_baseline(gpus, is_young, t);
        self.update_balance(gpus, bounds, t);
        let most = self.gpus.iter().map(|gpu| gpu.activity).reduce(|a, b| Some(a?.max(b?))).flatten().map(f64::from);
        let is_instance = |gpu: &JobGpu| gpus.get(gpu.position).is_some_and(|track| track.is_instance);
        let is_unknown = |gpu: &JobGpu| gpu.activity.is_none() && (is_instance(gpu) || !gpu.is_exclusive);
        self.is_blind = most.is_none() && !self.gpus.is_empty() && self.gpus.iter().all(is_unknown);
        if self.is_blind {
            self.update_blind(busiest, dt);
        }
        let most = if self.is_blind { Some(0.0) } else { most };
        let is_idle = |most: Option<f64>, percent: f64, cores: Option<f64>, limit: f64| match (most, cores) {
            (Some(most), _) if most > percent => Some(false),
            (Some(_), Some(cores)) => Some(cores <= limit),
            _ => None,
        };
        let cores = quick_cores(self.cores, now_cores);
        let idle_cores =
            if self.is_notebook || self.is_server { bounds.idle_cores.max(WAITING_CORES) } else { bounds.idle_cores };
        let idle_cores = idle_cores + IDLE_CORES_PER_PROCESS * (processes_len.max(1) - 1) as f64;
        let is_quiet_enough = self.may_stay_idle(most, bounds.idle_utilization, dt);
        let idle_most = most.map(|most| if is_quiet_enough { most.min(bounds.idle_utilization) } else { most });
        match is_idle(idle_most, bounds.idle_utilization, cores, idle_cores) {
            Some(true) => Run::extend(&mut self.idle_run, t, dt),
            Some(false) => {
                self.idle_run = None;
                self.idle_since = None;
                self.idle_disturbance = 0.0;
            }
            None => {}
        }
        self.update_pauses((gpus, processes), most, bounds, t);
        let is_resting = most.map(|most| most <= bounds.still_utilization);
        let feeds = self.is_blind || most.is_some_and(|most| most >= bounds.active_utilization);
        self.update_workers(processes, (is_resting, feeds), last_io, (t, dt));
        self.loading_cores = self.loading_cores.max(busiest.unwrap_or(0.0));
        let healthy = self.healthy_cores.unwrap_or(self.loading_cores);
        let still = (STILL_CORES_SHARE * healthy).min(STILL_CORES_MOST).max(bounds.still_cores);
        match is_idle(most, bounds.still_utilization, busiest, still) {
            Some(true) if last_io < t => Run::extend(&mut self.stalled_run, t, dt),
            Some(_) => {
                let works = most.is_some_and(|most| most >= bounds.active_utilization);
                if let (Some(stall), true) = (self.stalled_run.take(), works) {
                    self.longest_pause = self.longest_pause.max((t - stall.since) as f32);
                }
            }
            None => {}
        }
    }

    /// A job whose utilisation is unknown works while one of its processes does.
    fn update_blind(&mut self, busiest: Option<f64>, dt: f64) {
        let Some(cores) = busiest.filter(|cores| *cores >= BLIND_WORK_CORES) else { return };
        for gpu in &mut self.gpus {
            gpu.baseline.active_seconds += dt as f32;
        }
        let weight = (dt / HEALTHY_CORES_SECONDS).min(1.0);
        self.healthy_cores = Some(self.healthy_cores.map_or(cores, |slow| slow + weight * (cores - slow)));
    }

    /// Watches the workers of the processes, and processes that wait in a loop. `is_resting` tells whether the GPUs rest, and `feeds` whether they work.
    fn update_workers(
        &mut self,
        processes: &[ProcessTrack],
        (is_resting, feeds): (Option<bool>, bool),
        last_io: f64,
        (t, dt): (f64, f64),
    ) {
        let is_resting = is_resting == Some(true) && last_io < t;
        let workers: f64 = self
            .members(processes)
            .filter_map(|process| process.descendants_cpu)
            .map(|percent| f64::from(percent) / 100.0)
            .sum();
        if self.members(processes).any(|process| process.own_cores() >= Some(SEVERAL_CORES)) {
            self.used_cores_at = Some(t);
        }
        let usual: f64 = self.members(processes).filter_map(|process| process.smoothed_cores).sum();
        let has_workers = self.members(processes).any(|process| process.descendants > Some(0));
        if feeds && has_workers && usual >= TURN_CORES && workers <= TURN_REST * usual {
            self.workers_rested_at = Some(t);
        }
        if workers >= WORKERS_WORK && feeds {
            let weight = (dt / HEALTHY_CORES_SECONDS).min(1.0);
            self.healthy_workers = Some(self.healthy_workers.map_or(workers, |slow| slow + weight * (workers - slow)));
        }
        let is_unfed = self.healthy_workers.is_some_and(|healthy| workers <= WORKERS_REST * healthy);
        let waits = |process: &ProcessTrack| process.smoothed_cores.is_some_and(is_loop);
        let rests = |process: &ProcessTrack| process.smoothed_cores.is_some_and(|cores| cores <= STILL_CORES_UNKNOWN);
        let members = || self.members(processes);
        let all_poll = workers < 0.05 && members().any(waits) && members().all(|one| waits(one) || rests(one));
        self.all_loop = members().all(waits) && (self.all_loop || self.poll_run.is_none());
        self.workers_rest_since = is_unfed.then(|| self.workers_rest_since.unwrap_or(t));
        for (holds, run) in [(is_unfed, &mut self.unfed_run), (all_poll, &mut self.poll_run)] {
            if is_resting && holds {
                Run::extend(run, t, dt);
            } else {
                *run = None;
            }
        }
    }

    /// Whether an idle job stays idle although a GPU was used for a moment.
    fn may_stay_idle(&mut self, most: Option<f64>, limit: f64, dt: f64) -> bool {
        let Some(most) = most else { return false };
        let added = if most > limit { most * dt } else { 0.0 };
        self.idle_disturbance = self.idle_disturbance * (-dt / DISTURBANCE_SECONDS).exp() + added;
        self.idle_run.is_some() && self.idle_disturbance <= IDLE_DISTURBANCE
    }

    /// Remembers how long the job was quiet, and how long one of its GPUs waited, before it worked again by itself.
    fn update_pauses(
        &mut self,
        (gpus, processes): (&[GpuTrack], &[ProcessTrack]),
        most: Option<f64>,
        bounds: IdleThresholds,
        t: f64,
    ) {
        let Some(most) = most else { return };
        if most <= f64::from(QUIET_PERCENT) {
            let since = self.last_quiet.filter(|_| self.is_quiet).map_or(t, |(since, _)| since);
            self.last_quiet = Some((since, t));
            self.is_quiet = true;
            // A client that asked long before the GPUs became quiet does not wait for their work.
            let clients = self.members(processes).filter_map(|process| process.clients.as_deref());
            let waits = clients.filter(|clients| clients.new_since(since, t) > 0 || clients.asked_at_the_end(since, t));
            let waited = waits.map(|clients| clients.longest).fold(0.0, f64::max).min(t - since);
            self.waited_in_rest = self.waited_in_rest.max(waited as f32);
            let has_worked = self.gpus.iter().any(|gpu| gpu.baseline.active_seconds >= 10.0);
            self.rested_between |= has_worked && t - since >= 2.0 * MIN_PAUSE;
        } else if most >= bounds.active_utilization && std::mem::take(&mut self.is_quiet) {
            let lasted = self.last_quiet.map_or(0.0, |(since, until)| until - since);
            if lasted >= MIN_PAUSE {
                self.longest_quiet = self.longest_quiet.max(lasted as f32);
            }
            self.longest_preparation = self.longest_preparation.max(std::mem::take(&mut self.waited_in_rest));
        }
        let spins = self.gpus.iter().filter_map(|gpu| gpus.get(gpu.position)?.spin_run);
        let worked_at = self.computed_at.into_iter().chain(self.host_work_at).reduce(f64::max);
        match spins.map(|run| run.since).reduce(f64::min) {
            Some(since) => self.waits.go_on(since, worked_at, t),
            None if self.computed_at == Some(t) => self.waits.end(t),
            None => {}
        }
    }

    /// Detects work on the host. A waiting rank spins on about one core. A rank that saves or evaluates uses more cores
    /// than the others, writes, or enters and leaves disk sleep.
    fn update_host_work(&mut self, processes: &[ProcessTrack], t: f64) {
        let members = || self.members(processes);
        let mut cores: Vec<f64> = members().filter_map(|process| process.smoothed_cores).collect();
        cores.sort_by(f64::total_cmp);
        let median = cores.get(cores.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
        // The smoothed value excludes short wake-ups, the current one excludes work that has ended.
        let least = (median + 0.5).max(1.5).max(BUSIER_RANK * median);
        let is_more = |cores: Option<f64>| cores.is_some_and(|cores| cores > least);
        let uses_more = members().any(|process| is_more(process.smoothed_cores) && is_more(process.cores));
        let worked = members().filter_map(|process| process.host_work_at).fold(f64::NEG_INFINITY, f64::max);
        if uses_more {
            (self.host_work_at, self.busier_at) = (Some(t), Some(t));
        } else if worked.is_finite() {
            self.host_work_at = Some(self.host_work_at.map_or(worked, |at| at.max(worked)));
        }
    }

    /// Compares its GPUs with each other, once a minute.
    fn update_balance(&mut self, gpus: &[GpuTrack], bounds: IdleThresholds, t: f64) {
        if t < self.balance_due {
            return;
        }
        self.balance_due = t + 60.0;
        let before = self.imbalance.as_ref().and_then(|straggler| straggler.others_before);
        match balance(&self.gpus, gpus, bounds.straggler, (t, before)) {
            Some(Balance::Balanced) => {
                self.was_balanced = true;
                self.imbalance = None;
            }
            Some(Balance::Straggler(straggler)) if self.was_balanced => self.imbalance = Some(straggler),
            Some(Balance::Unbalanced | Balance::Straggler(_)) => self.imbalance = None,
            None => {}
        }
    }

    fn extend_baseline(&mut self, gpus: &[GpuTrack], is_young: bool, t: f64) {
        if is_young {
            self.baseline_until = t;
            return;
        }
        self.baseline_until = self.baseline_until.max(t - REACH_SECONDS);
        while t - self.baseline_until >= BASELINE_DELAY {
            let (begin, end) = (self.baseline_until, self.baseline_until + 60.0);
            let mut has_low = false;
            // The GPUs with a reading, those of them with a median, and the sum of their utilisation divided by it.
            let (mut read, mut known, mut used, mut is_in_phase) = (0, 0, 0.0, true);
            for gpu in &mut self.gpus {
                let stats = gpus.get(gpu.position).map(|track| track.window.stats_between(begin, end));
                let Some((percent, covered)) = stats.and_then(|stats| Some((stats.mean_utilization?, stats.covered)))
                else {
                    continue;
                };
                read += 1;
                let median = gpu.baseline.known_utilization();
                if let Some(share) = median.filter(|median| *median > 0.0).map(|median| percent / median) {
                    known += 1;
                    used += share;
                    is_in_phase &= share < PHASE_LOW_SHARE;
                }
                let is_below = |share: f32| median.is_some_and(|median| percent < share * median);
                let is_low = is_below(BASELINE_LOW_SHARE);
                has_low |= is_low;
                let is_frozen = match self.comparison {
                    Comparison::None => is_low && self.low_minutes < BASELINE_LOW_MINUTES,
                    Comparison::Slowed => is_below(SLOWED_LOW_SHARE),
                    Comparison::Job => median.is_some(),
                };
                if !is_frozen {
                    gpu.baseline.add_utilization(percent, covered.min(60.0) as f32);
                }
            }
            self.low_minutes = if has_low { self.low_minutes.saturating_add(1) } else { 0 };
            if read == 0 || self.comparison == Comparison::Job {
                // The length of this phase is not known.
                self.phase = Phase::default();
            } else if known > 0 && is_in_phase {
                self.phase.minutes = self.phase.minutes.saturating_add(1);
                self.phase.used += used / known as f32;
            } else {
                self.phases.add(std::mem::take(&mut self.phase));
            }
            self.baseline_until = end;
        }
    }

    /// The median utilisation of its GPUs before, in percent; `None` if it is unknown for most of them. If the job works in phases,
    /// their mean over these phases as well, since the median is that of the other minutes.
    pub(crate) fn earlier_utilization(&self) -> Option<f32> {
        let medians: Vec<f32> = self.gpus.iter().filter_map(|gpu| gpu.baseline.known_utilization()).collect();
        let is_known = !medians.is_empty() && medians.len() * 2 >= self.gpus.len();
        let share = self.phases.used_share();
        is_known.then(|| share * medians.iter().sum::<f32>() / medians.len() as f32)
    }

    /// Whether it often used its GPUs far less than usual for some minutes and went on by itself: it simulates, evaluates or
    /// prepares data in between.
    pub(crate) fn works_in_phases(&self) -> bool {
        self.phases.are_usual()
    }

    /// The track for a part of the job that continues under another key, because its launcher is gone.
    pub(crate) fn renamed(&self, key: JobKey) -> Self {
        Self {
            key,
            is_server: false,
            is_model_server: false,
            is_debugged: false,
            is_notebook: false,
            is_mine: false,
            ..self.clone().without_members()
        }
    }

    /// Removes the processes, to be listed again. The GPUs are kept until [`JobTrack::drop_removed_gpus`].
    pub(crate) fn without_members(mut self) -> Self {
        self.members.clear();
        self.served_port = None;
        self.had_engines |= std::mem::take(&mut self.is_model_server);
        self.previous_gpus = std::mem::take(&mut self.gpus);
        self
    }

    /// One of its GPUs, with its baseline if the job had it before.
    pub(crate) fn take_gpu(&mut self, position: usize, identity: &SafeText) -> JobGpu {
        let earlier = self.previous_gpus.iter().position(|gpu| gpu.identity == *identity);
        match earlier.map(|place| self.previous_gpus.swap_remove(place)) {
            Some(gpu) => JobGpu { position, ..gpu },
            None => JobGpu {
                identity: identity.clone(),
                position,
                is_exclusive: true,
                memory_bytes: None,
                activity: None,
                baseline: Baseline::default(),
            },
        }
    }

    pub(crate) fn track_memory_bytes(&self) -> usize {
        std::mem::size_of::<Self>() + self.gpus.capacity() * std::mem::size_of::<JobGpu>() + self.members.capacity() * 8
    }

    /// Drops the GPUs that the job no longer has.
    pub(crate) fn drop_removed_gpus(&mut self) {
        self.previous_gpus = Vec::new();
    }
}

/// The CPU usage that decides whether a process works. The start and the end of work take effect at once; smoothing only
/// hides short wake-ups of a thread.
fn quick_cores(smoothed: Option<f64>, now: Option<f64>) -> Option<f64> {
    smoothed.zip(now).map(|(slow, now)| if now > 0.5 { now } else { slow.min(now) })
}

/// The seconds over which GPUs must have been balanced.
const BALANCED_SECONDS: f64 = 600.0;
/// The seconds over which a straggler is detected.
const STRAGGLER_SECONDS: f64 = 180.0;
/// GPUs are balanced within this many percentage points of utilisation and this share of power.
const BALANCED_POINTS: f32 = 10.0;
const BALANCED_POWER: f32 = 0.15;
/// A clock at most this share of the median of the job is slow; the others differ by less than this.
const SLOW_CLOCK: f64 = 0.85;
const BALANCED_CLOCK: f64 = 0.93;

/// A GPU that does less than the others. Powers are in watts, utilisations in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Straggler {
    pub(crate) position: usize,
    pub(crate) utilization: f32,
    pub(crate) watts: f32,
    pub(crate) others_utilization: f32,
    pub(crate) others_watts: f32,
    /// Its SM clock and that of the others as shares of the maximum, if only the clock tells them apart.
    pub(crate) clocks: Option<(f64, f64)>,
    /// The median power of the others at work, if they draw far less now and wait for it.
    pub(crate) others_before: Option<f32>,
}

/// How balanced the GPUs of a job are.
enum Balance {
    Balanced,
    Straggler(Straggler),
    Unbalanced,
}

/// A rank that the CPU keeps from launching its kernels: its utilisation is lower than that of the others by this many percentage
/// points, and theirs is at least this, in percent.
const LATE_POINTS: f32 = 30.0;
const LATE_OTHERS: f32 = 95.0;
/// Its own least utilisation, in percent.
const LATE_LEAST: u8 = 10;
/// The power of the others divided by their earlier median, at most, and by the spin power, at least: they wait a part of the time.
const LATE_POWER: f32 = 0.75;
const LATE_SPIN: f32 = 1.2;

/// The earlier median power of the GPUs beside that at `position`, if they draw far less now and more than a wait without end.
fn waits_for(
    gpus: &[JobGpu],
    tracks: &[GpuTrack],
    position: usize,
    (watts, before): (f32, Option<f32>),
) -> Option<f32> {
    let others = || gpus.iter().filter(|gpu| gpu.position != position);
    let medians: Vec<f32> = others().map(|gpu| gpu.baseline.median_power()).collect::<Option<_>>()?;
    let least = before.unwrap_or_else(|| medians.iter().copied().fold(f32::INFINITY, f32::min));
    let spins = |gpu: &JobGpu| {
        let spin = tracks.get(gpu.position).and_then(GpuTrack::spin_watts);
        spin.is_none_or(|spin| watts < LATE_SPIN * spin)
    };
    (watts <= LATE_POWER * least && !others().any(spins)).then_some(least)
}

/// Compares the GPUs by their means of the last minutes: ten to call them balanced, three to detect a straggler. `None`
/// if too little is known.
///
/// `before` is the power at work of the GPUs that already wait for a straggler: their median becomes lower meanwhile.
fn balance(
    gpus: &[JobGpu],
    tracks: &[GpuTrack],
    (points, power): (f64, f64),
    (t, before): (f64, Option<f32>),
) -> Option<Balance> {
    if gpus.len() < 2 || gpus.iter().any(|gpu| !gpu.is_exclusive) {
        return None;
    }
    let mut means: Vec<(usize, f32, f32)> = Vec::with_capacity(gpus.len());
    let mut long: Vec<(usize, f32, f32)> = Vec::with_capacity(gpus.len());
    let mut limit = None;
    for gpu in gpus {
        let track = tracks.get(gpu.position)?;
        if *limit.get_or_insert(track.limit) != track.limit || track.has_power_smoothing {
            return None;
        }
        let stats = track.window.stats(t - BALANCED_SECONDS);
        let recent = track.window.stats(t - STRAGGLER_SECONDS);
        if stats.covered < 0.8 * BALANCED_SECONDS || recent.covered < 0.6 * STRAGGLER_SECONDS {
            return None;
        }
        long.push((gpu.position, stats.mean_utilization?, stats.mean_power?));
        means.push((gpu.position, recent.mean_utilization?, recent.mean_power?));
    }
    let spread = |values: &mut dyn Iterator<Item = f32>| {
        values.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
    };
    let are_balanced = |means: &[(usize, f32, f32)]| {
        let (low, high) = spread(&mut means.iter().map(|mean| mean.1));
        let (weak, strong) = spread(&mut means.iter().map(|mean| mean.2));
        high - low <= BALANCED_POINTS && strong - weak <= BALANCED_POWER * strong
    };
    // Where all wait for one, power and utilisation can be balanced although its clock is low.
    if let Some(straggler) = slow_clock(&means, tracks) {
        return Some(Balance::Straggler(straggler));
    }
    if are_balanced(&long) && are_balanced(&means) {
        let is_busy = long.iter().all(|mean| mean.1 >= 20.0);
        return Some(if is_busy { Balance::Balanced } else { Balance::Unbalanced });
    }
    means.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (position, utilization, watts) = *means.first()?;
    let others = means.get(1..)?;
    let (_, others_utilization, _) = *others.get(others.len() / 2)?;
    let mut powers: Vec<f32> = others.iter().map(|mean| mean.2).collect();
    powers.sort_by(f32::total_cmp);
    let others_watts = *powers.get(powers.len() / 2)?;
    let others_before = waits_for(gpus, tracks, position, (others_watts, before));
    // A rank that rests for a while saves or evaluates.
    let never_rests = || {
        let stats = tracks.get(position).map(|track| track.window.stats(t - STRAGGLER_SECONDS));
        stats.is_some_and(|stats| stats.least_utilization >= Some(LATE_LEAST))
    };
    let others_before = others_before.filter(|_| {
        others_utilization - utilization >= LATE_POINTS && others_utilization >= LATE_OTHERS && never_rests()
    });
    let is_off = f64::from(others_utilization - utilization) >= points
        && (f64::from(others_watts - watts) >= power * f64::from(others_watts) || others_before.is_some());
    let straggler =
        Straggler { position, utilization, watts, others_utilization, others_watts, clocks: None, others_before };
    if is_off && are_balanced(others) {
        return Some(Balance::Straggler(straggler));
    }
    Some(Balance::Unbalanced)
}

/// A GPU at a lower clock than the others of the job: they wait for it, so all read as busy and only the clock tells which
/// one is slow.
fn slow_clock(means: &[(usize, f32, f32)], tracks: &[GpuTrack]) -> Option<Straggler> {
    let clock = |position: usize| tracks.get(position).and_then(|track| track.clock_share);
    let mut clocks: Vec<f64> = means.iter().map(|mean| clock(mean.0)).collect::<Option<_>>()?;
    if clocks.len() < 3 {
        return None;
    }
    clocks.sort_by(f64::total_cmp);
    let (slowest, second, median) = (*clocks.first()?, *clocks.get(1)?, *clocks.get(clocks.len() / 2)?);
    if slowest > SLOW_CLOCK * median || second < BALANCED_CLOCK * median {
        return None;
    }
    let (position, utilization, watts) = *means.iter().find(|mean| clock(mean.0) == Some(slowest))?;
    let others = means.iter().filter(|mean| mean.0 != position);
    let count = (means.len() - 1) as f32;
    let (utilizations, powers) = others.fold((0.0, 0.0), |sums, mean| (sums.0 + mean.1, sums.1 + mean.2));
    Some(Straggler {
        position,
        utilization,
        watts,
        others_utilization: utilizations / count,
        others_watts: powers / count,
        clocks: Some((slowest, median)),
        others_before: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_at_a_lower_clock_is_the_straggler_although_all_are_busy() {
        let track = |share| {
            let mut track = GpuTrack::default();
            track.clock_share = Some(share);
            track
        };
        let tracks = |clocks: [f64; 4]| clocks.map(track).to_vec();
        let means = [(0, 99.0, 410.0), (1, 99.0, 405.0), (2, 99.0, 330.0), (3, 99.0, 408.0)];
        let straggler = slow_clock(&means, &tracks([0.95, 0.94, 0.7, 0.95])).expect("a straggler");
        assert_eq!((straggler.position, straggler.clocks), (2, Some((0.7, 0.95))));
        assert!(slow_clock(&means, &tracks([0.95, 0.94, 0.9, 0.95])).is_none());
        assert!(
            slow_clock(&means, &tracks([0.95, 0.7, 0.7, 0.95])).is_none(),
            "two of four: a different kind of board"
        );
    }
}
