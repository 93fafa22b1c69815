//! The state of one GPU: what one snapshot says of it, and what follows from that and from what was seen before.

use super::model_server::serves_models;
use crate::config::Thresholds;
use crate::fleet::{GpuState, Moment, Process, ProcessKey};
use crate::wire::{DriverErrorKind, GpuInfo, GpuReading};
use std::time::Duration;

/// At this utilisation or more a GPU works.
const ACTIVE_PERCENT: u8 = 5;
/// A GPU that worked this recently is in use: between two batches it may rest.
pub const RECENT_ACTIVITY: Duration = Duration::from_secs(60);
/// What is held without work is called idle after this long.
pub const IDLE_AFTER: Duration = Duration::from_secs(5 * 60);
/// Memory that makes a GPU held, in MiB: about what a CUDA context alone takes.
pub const HELD_MIB: u64 = 500;
/// Memory used that makes a GPU taken though no process is listed, as a share of its total; never under [`HELD_MIB`].
pub const USED_PERCENT: u64 = 2;

const HELD_BYTES: u64 = HELD_MIB << 20;

/// What one snapshot says of one GPU.
#[derive(Debug)]
pub(super) struct GpuSample<'a> {
    /// Why it cannot be read.
    pub(super) error: Option<DriverErrorKind>,
    /// Whether it works; `None` where utilisation is not told (MIG).
    pub(super) is_active: Option<bool>,
    /// Whether something holds it; `None` where neither processes nor memory are told.
    pub(super) is_taken: Option<bool>,
    /// Memory held by what computes on it.
    held_bytes: Option<u64>,
    /// What computes on it.
    pub(super) holders: Vec<&'a Process>,
}

impl<'a> GpuSample<'a> {
    /// Reads one GPU: `processes` are those on it, by position.
    pub(super) fn new(position: usize, info: &GpuInfo, reading: &GpuReading, processes: &[&'a Process]) -> Self {
        let present = processes.iter().copied().filter(|process| !process.is_stale);
        let (holders, drawing): (Vec<&Process>, Vec<&Process>) = present.partition(|p| p.computes_on(position));
        let memory = |process: &&Process| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
        let computing = holders.iter().filter_map(memory).reduce(u64::saturating_add);
        // A desktop holds memory without taking the GPU; where it does not tell how much, the rest is not known either.
        let drawing: Option<u64> = drawing.iter().map(memory).sum();
        let is_unified = info.unified_memory == Some(true);
        let used = match (reading.memory_used_bytes, drawing) {
            (Some(used), Some(drawing)) if !is_unified => {
                Some(used.saturating_sub(reading.memory_reserved_bytes.unwrap_or(0)).saturating_sub(drawing))
            }
            _ => None,
        };
        let is_taken = match used {
            _ if !holders.is_empty() => Some(true),
            Some(used) => {
                let share = info.memory_total_bytes.map_or(0, |total| total / 100 * USED_PERCENT);
                Some(used >= share.max(HELD_BYTES))
            }
            None if is_unified || drawing.is_none() => Some(false),
            None => None,
        };
        Self {
            error: reading.error.as_ref().map(|error| error.kind),
            is_active: reading.utilization_percent.map(|percent| percent >= ACTIVE_PERCENT),
            is_taken,
            held_bytes: computing.max(used),
            holders,
        }
    }

    /// Whether what holds the most memory of it, or of those that do not tell any, serves models.
    fn is_served(&self, position: usize, limits: &Thresholds) -> bool {
        let memory = |process: &Process| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
        let largest = self.holders.iter().max_by_key(|process| memory(process));
        largest.is_some_and(|process| serves_models(process, limits))
    }
}

/// What is known of a GPU beside its readings.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpuContext<'a> {
    /// Set while a finding says that it hangs.
    pub(super) hung_since: Option<Moment>,
    /// Set while a finding says that it does nothing, for which CPU time may speak.
    pub(super) idle_since: Option<Moment>,
    /// Nobody may just take it: it is reserved, or Slurm gives it out.
    pub(super) is_reserved: bool,
    /// Of its host: which programs serve models there.
    pub(super) limits: &'a Thresholds,
}

/// What is remembered of one GPU.
#[derive(Debug, Clone, Default)]
pub(super) struct GpuStateRecord {
    /// When it last worked.
    last_active: Option<Moment>,
    /// Since when it has been held by the same processes, or some of them.
    held_since: Option<Moment>,
    holders: Vec<ProcessKey>,
    /// The state, and since when.
    state: Option<(GpuState, Option<Moment>)>,
    /// The state before the GPU could not be seen.
    before: Option<(GpuState, Option<Moment>)>,
}

impl GpuStateRecord {
    /// The state now.
    pub(super) fn state(&self) -> (GpuState, Option<Moment>) {
        self.state.unwrap_or((GpuState::Unknown, None))
    }

    /// Takes a sample in.
    pub(super) fn update(&mut self, position: usize, sample: &GpuSample, known: GpuContext, now: Moment) {
        if sample.is_active == Some(true) {
            self.last_active = Some(now);
        }
        match sample.is_taken {
            Some(true) => {
                let is_handed_over = !self.holders.is_empty()
                    && !sample.holders.is_empty()
                    && !sample.holders.iter().any(|process| self.holders.contains(&process.key));
                if self.held_since.is_none() || is_handed_over {
                    self.held_since = Some(now);
                }
                self.holders.clear();
                self.holders.extend(sample.holders.iter().map(|process| process.key.clone()));
            }
            Some(false) => {
                self.held_since = None;
                self.holders.clear();
            }
            None => {}
        }
        let (state, since) = match (self.classify(position, sample, known, now), known.hung_since) {
            ((GpuState::Fault, since), _) => (GpuState::Fault, since),
            (_, Some(since)) => (GpuState::Hung, Some(since)),
            (judged, None) => judged,
        };
        self.enter(state, since, now);
    }

    /// Nothing fresh is known.
    pub(super) fn mark_unknown(&mut self, last_seen: Option<Moment>, now: Moment) {
        self.enter(GpuState::Unknown, None, last_seen.unwrap_or(now));
    }

    /// Takes on the state of something else, as a MIG parent does that of its instances.
    pub(super) fn copy_state(&mut self, (state, since): (GpuState, Option<Moment>), now: Moment) {
        self.enter(state, since, now);
    }

    /// The state, and since when where that is known better than "since it was first seen".
    fn classify(
        &self,
        position: usize,
        sample: &GpuSample,
        known: GpuContext,
        now: Moment,
    ) -> (GpuState, Option<Moment>) {
        match sample.error {
            // The driver does not report an error for this GPU: it does not answer, or may not be asked.
            Some(DriverErrorKind::Blocked | DriverErrorKind::NoPermission) => return (GpuState::Unknown, None),
            Some(_) => return (GpuState::Fault, None),
            None => {}
        }
        if sample.is_active.is_none() && sample.is_taken.is_none() {
            return (GpuState::Unknown, None);
        }
        if self.last_active.is_some_and(|at| now.since(at) < RECENT_ACTIVITY) {
            return (GpuState::InUse, None);
        }
        match sample.is_taken {
            Some(true) => self.classify_held(position, sample, known, now),
            Some(false) if known.is_reserved => (GpuState::Unused, None),
            Some(false) => (GpuState::Free, None),
            None => (GpuState::Unknown, None),
        }
    }

    /// The state of a GPU that something holds and that does not work.
    fn classify_held(
        &self,
        position: usize,
        sample: &GpuSample,
        known: GpuContext,
        now: Moment,
    ) -> (GpuState, Option<Moment>) {
        let watched_since = self.last_active.max(self.held_since);
        let quiet_since = match (watched_since, known.idle_since) {
            (Some(watched), Some(proven)) => Some(watched.min(proven)),
            (watched, _) => watched,
        };
        // Without a utilisation (MIG) nothing says that it is not used.
        let is_quiet = sample.is_active.is_some() && quiet_since.is_some_and(|at| now.since(at) >= IDLE_AFTER);
        if !is_quiet {
            return (GpuState::InUse, None);
        }
        // Where memory is not told, a context is there all the same.
        if sample.held_bytes.is_some_and(|bytes| bytes < HELD_BYTES) {
            return (GpuState::Unused, quiet_since);
        }
        let state = if sample.is_served(position, known.limits) { GpuState::Waiting } else { GpuState::Idle };
        (state, quiet_since)
    }

    fn enter(&mut self, state: GpuState, since: Option<Moment>, now: Moment) {
        let current = self.state;
        let began = match (current, self.before) {
            _ if since.is_some() => since,
            (Some((same, began)), _) if same == state => began,
            // Seen again after a gap, and as it was: missing data holds the state.
            (Some((GpuState::Unknown, _)), Some((same, began))) if same == state => began,
            _ => Some(now),
        };
        if state == GpuState::Unknown {
            if let Some(known) = current.filter(|(before, _)| *before != GpuState::Unknown) {
                self.before = Some(known);
            }
        } else {
            self.before = None;
        }
        self.state = Some((state, began));
    }
}
