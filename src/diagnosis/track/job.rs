//! What is remembered of one job on one host.

use super::balance::{Balance, Straggler, compare};
use super::{Baseline, GpuTrack, ProcessTrack};
use crate::diagnosis::evaluation::Run;
use crate::fleet::JobKey;
use crate::wire::SafeText;

/// A minute of utilisation becomes a part of the past when it is this old, in seconds, so that what is judged now is
/// not compared with itself.
const BASELINE_DELAY: f64 = 660.0;
/// What lies further back is no longer in a GPU's window.
const BASELINE_REACH: f64 = 1200.0;

/// A GPU computes in earnest above this many times its spin power.
pub(in crate::diagnosis) const COMPUTES_ABOVE: f32 = 1.15;

/// One GPU of a job.
#[derive(Debug, Clone)]
pub(in crate::diagnosis) struct JobGpu {
    pub(in crate::diagnosis) identity: SafeText,
    pub(in crate::diagnosis) position: usize,
    /// Nobody else computes there.
    pub(in crate::diagnosis) is_exclusive: bool,
    pub(in crate::diagnosis) memory_bytes: Option<u64>,
    /// Utilisation of this job there; the GPU's own where it is alone.
    pub(in crate::diagnosis) activity: Option<u8>,
    pub(in crate::diagnosis) baseline: Baseline,
}

/// One job on one host.
#[allow(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Debug, Clone)]
pub(in crate::diagnosis) struct JobTrack {
    pub(in crate::diagnosis) key: JobKey,
    /// Its processes, by their place among the host's.
    pub(in crate::diagnosis) members: Vec<usize>,
    pub(in crate::diagnosis) gpus: Vec<JobGpu>,
    /// While its processes are sorted anew: the GPUs it had.
    previous_gpus: Vec<JobGpu>,
    pub(in crate::diagnosis) first_seen: f64,
    pub(in crate::diagnosis) is_server: bool,
    pub(in crate::diagnosis) is_notebook: bool,
    pub(in crate::diagnosis) is_mine: bool,
    /// Every GPU of it was read in this sample, and none of its processes is held over from an earlier one.
    pub(in crate::diagnosis) is_readable: bool,
    /// Cores that its processes use, smoothed; `None` where one does not tell.
    pub(in crate::diagnosis) cores: Option<f64>,
    /// Nobody computes: every GPU at rest and hardly any CPU.
    pub(in crate::diagnosis) idle_run: Option<Run>,
    /// What is known of the time before it was watched: it has done nothing since then at the latest.
    pub(in crate::diagnosis) idle_since: Option<f64>,
    /// Since when it was quiet before a long gap, and the CPU time it had used.
    pub(in crate::diagnosis) before_gap: Option<(f64, f64)>,
    /// Nothing at all happens.
    pub(in crate::diagnosis) stalled_run: Option<Run>,
    /// The longest time in which nothing happened and after which its GPUs worked again, in seconds.
    pub(in crate::diagnosis) longest_pause: f32,
    /// When a member last did something on the host that the others may wait for.
    pub(in crate::diagnosis) host_work_at: Option<f64>,
    /// When one of its GPUs last computed in earnest.
    pub(in crate::diagnosis) computed_at: Option<f64>,
    /// Its GPUs were once about as busy as each other.
    was_balanced: bool,
    /// Which jobs of other hosts are parts of the same, by the engine's list.
    pub(in crate::diagnosis) group: Option<usize>,
    /// Up to when its utilisation is in the past.
    baseline_until: f64,
    balance_due: f64,
    /// The GPU that does less than the others, as of the last comparison.
    pub(in crate::diagnosis) imbalance: Option<Straggler>,
}

/// Bounds of the job's predicates.
#[derive(Debug, Clone, Copy)]
pub(in crate::diagnosis) struct IdleThresholds {
    pub(in crate::diagnosis) idle_utilization: f64,
    pub(in crate::diagnosis) idle_cores: f64,
    pub(in crate::diagnosis) still_utilization: f64,
    pub(in crate::diagnosis) still_cores: f64,
    pub(in crate::diagnosis) active_utilization: f64,
    pub(in crate::diagnosis) young: f64,
    /// Points of utilisation, and share of power, by which a GPU is off.
    pub(in crate::diagnosis) straggler: (f64, f64),
}

impl JobTrack {
    pub(in crate::diagnosis) fn new(key: JobKey, t: f64) -> Self {
        Self {
            key,
            members: Vec::new(),
            gpus: Vec::new(),
            previous_gpus: Vec::new(),
            first_seen: t,
            is_server: false,
            is_notebook: false,
            is_mine: false,
            is_readable: false,
            cores: None,
            idle_run: None,
            idle_since: None,
            before_gap: None,
            stalled_run: None,
            longest_pause: 0.0,
            host_work_at: None,
            computed_at: None,
            was_balanced: false,
            group: None,
            baseline_until: t,
            balance_due: t,
            imbalance: None,
        }
    }

    /// Memory that it holds on all its GPUs; `None` where nobody tells.
    pub(in crate::diagnosis) fn memory_bytes(&self) -> Option<u64> {
        self.gpus.iter().filter_map(|gpu| gpu.memory_bytes).reduce(u64::saturating_add)
    }

    /// Takes a sample in, after its GPUs and processes.
    pub(in crate::diagnosis) fn update(
        &mut self,
        gpus: &[GpuTrack],
        processes: &[ProcessTrack],
        bounds: IdleThresholds,
        (t, dt): (f64, f64),
    ) {
        let members = || self.members.iter().filter_map(|member| processes.get(*member));
        let age = members().filter_map(|process| process.age).fold(0.0, f64::max).max(t - self.first_seen);
        let is_young = age < bounds.young;
        self.cores = members().map(|process| process.smoothed_cores).sum();
        let now_cores: Option<f64> = members().map(|process| process.cores).sum();
        let stirred = members().filter_map(|process| process.last_io_at).fold(f64::NEG_INFINITY, f64::max);
        self.update_host_work(processes, t);
        if !self.is_readable {
            return;
        }
        for gpu in &mut self.gpus {
            let Some(track) = gpus.get(gpu.position) else { continue };
            let Some(activity) = gpu.activity else { continue };
            if f64::from(activity) >= bounds.active_utilization {
                gpu.baseline.active_seconds += dt as f32;
                gpu.baseline.active_at = Some(t);
            }
            let computes = |power: f32, spin: f32| gpu.is_exclusive && activity >= 20 && power > COMPUTES_ABOVE * spin;
            if track.power.zip(track.spin_watts()).is_some_and(|(power, spin)| computes(power, spin)) {
                self.computed_at = Some(t);
            }
            if let (true, Some(power), Some(limit), Some(spin)) =
                (gpu.is_exclusive && activity >= 50, track.power, track.limit, track.spin_watts())
                && power >= spin
            {
                gpu.baseline.add_power(power, limit, dt as f32);
            }
        }
        self.extend_baseline(gpus, is_young, t);
        self.compare(gpus, bounds, t);
        let most = self.gpus.iter().map(|gpu| gpu.activity).reduce(|a, b| Some(a?.max(b?))).flatten().map(f64::from);
        let rests = |most: Option<f64>, percent: f64, cores: Option<f64>, limit: f64| match (most, cores) {
            (Some(most), _) if most > percent => Some(false),
            (Some(_), Some(cores)) => Some(cores <= limit),
            _ => None,
        };
        // Work shows at once, and so does its end: the smoothed value is only for the sample_time of a thread that wakes.
        let cores = self.cores.zip(now_cores).map(|(slow, now)| if now > 0.5 { now } else { slow.min(now) });
        match rests(most, bounds.idle_utilization, cores, bounds.idle_cores) {
            Some(true) => Run::extend(&mut self.idle_run, t, dt),
            Some(false) => {
                self.idle_run = None;
                self.idle_since = None;
            }
            None => {}
        }
        match rests(most, bounds.still_utilization, cores, bounds.still_cores) {
            Some(true) if stirred < t => Run::extend(&mut self.stalled_run, t, dt),
            Some(_) => {
                let works = most.is_some_and(|most| most >= bounds.active_utilization);
                if let (Some(rest), true) = (self.stalled_run.take(), works) {
                    self.longest_pause = self.longest_pause.max((t - rest.since) as f32);
                }
            }
            None => {}
        }
    }

    /// Notices who works on the host. A waiting rank spins on about one core; one that saves or evaluates uses more than
    /// the others, writes, or goes in and out of disk sleep.
    fn update_host_work(&mut self, processes: &[ProcessTrack], t: f64) {
        let members = || self.members.iter().filter_map(|member| processes.get(*member));
        let mut cores: Vec<f64> = members().filter_map(|process| process.smoothed_cores).collect();
        cores.sort_by(f64::total_cmp);
        let median = cores.get(cores.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
        // Smoothed, so that a thread that wakes is no work; and now, so that what is over no longer counts.
        let least = (median + 0.5).max(1.5);
        let is_more = |cores: Option<f64>| cores.is_some_and(|cores| cores > least);
        let uses_more = members().any(|process| is_more(process.smoothed_cores) && is_more(process.cores));
        let worked = members().filter_map(|process| process.host_work_at).fold(f64::NEG_INFINITY, f64::max);
        if uses_more {
            self.host_work_at = Some(t);
        } else if worked.is_finite() {
            self.host_work_at = Some(self.host_work_at.map_or(worked, |at| at.max(worked)));
        }
    }

    /// Compares its GPUs with each other, once a minute.
    fn compare(&mut self, gpus: &[GpuTrack], bounds: IdleThresholds, t: f64) {
        if t < self.balance_due {
            return;
        }
        self.balance_due = t + 60.0;
        match compare(&self.gpus, gpus, bounds.straggler, t) {
            Some(Balance::Even) => {
                self.was_balanced = true;
                self.imbalance = None;
            }
            Some(Balance::Straggler(straggler)) if self.was_balanced => self.imbalance = Some(straggler),
            Some(Balance::Uneven | Balance::Straggler(_)) => self.imbalance = None,
            None => {}
        }
    }

    fn extend_baseline(&mut self, gpus: &[GpuTrack], is_young: bool, t: f64) {
        if is_young {
            self.baseline_until = t;
            return;
        }
        self.baseline_until = self.baseline_until.max(t - BASELINE_REACH);
        while t - self.baseline_until >= BASELINE_DELAY {
            let (begin, end) = (self.baseline_until, self.baseline_until + 60.0);
            for gpu in &mut self.gpus {
                let stats = gpus.get(gpu.position).map(|track| track.window.stats_between(begin, end));
                if let Some((percent, covered)) = stats.and_then(|stats| Some((stats.mean_utilization?, stats.covered)))
                {
                    gpu.baseline.add_utilization(percent, covered.min(60.0) as f32);
                }
            }
            self.baseline_until = end;
        }
    }
}

impl JobTrack {
    /// Without its members, which are listed anew; its GPUs stay until [`JobTrack::drop_removed_gpus`].
    pub(in crate::diagnosis) fn without_members(mut self) -> Self {
        self.members.clear();
        self.previous_gpus = std::mem::take(&mut self.gpus);
        self
    }

    /// One of its GPUs with what is remembered of it.
    pub(in crate::diagnosis) fn take_gpu(&mut self, position: usize, identity: &SafeText) -> JobGpu {
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

    pub(in crate::diagnosis) fn track_memory_bytes(&self) -> usize {
        std::mem::size_of::<Self>() + self.gpus.capacity() * std::mem::size_of::<JobGpu>() + self.members.capacity() * 8
    }

    /// Forgets GPUs that it no longer has.
    pub(in crate::diagnosis) fn drop_removed_gpus(&mut self) {
        self.previous_gpus = Vec::new();
    }
}
