//! The states of GPUs (in use, idle, free and so on), derived from samples and from findings.

use super::process_kind::serves_models;
use super::track::gpu_identity;
use crate::config::Thresholds;
use crate::fleet::{GpuState, Host, HostId, Moment, Process, ProcessKey};
use crate::wire::{DriverErrorKind, GpuInfo, GpuReading, Owner, SafeText, Scope};
use std::time::Duration;

/// The utilisation from which a GPU counts as working.
const ACTIVE_PERCENT: u8 = 5;
/// A held GPU that worked this recently, or in this many intervals, is in use: it may rest between two batches.
const RECENT_ACTIVITY: Duration = Duration::from_secs(30);
const RECENT_INTERVALS: u32 = 2;
/// Memory that makes a GPU held, in MiB: about the size of a CUDA context.
pub(super) const HELD_MIB: u64 = 500;
/// Used memory that makes a GPU taken without a listed process, in percent of its total; at least [`HELD_MIB`].
const USED_PERCENT: u64 = 2;

const HELD_BYTES: u64 = HELD_MIB << 20;
/// Less used memory than this is no sign of a user: even the smallest context needs more.
const NOBODY_BYTES: u64 = 64 << 20;

/// One GPU in one snapshot.
#[derive(Debug)]
pub(super) struct GpuSample<'a> {
    /// The error, if the GPU cannot be read.
    pub(super) error: Option<DriverErrorKind>,
    /// Whether the GPU works; `None` without a utilisation reading (MIG).
    pub(super) is_active: Option<bool>,
    /// Whether something holds the GPU; `None` if neither processes nor memory are known.
    pub(super) is_taken: Option<bool>,
    /// Something may use the GPU, be it a desktop or a process that is not listed.
    may_have_user: bool,
    /// The memory held by computing processes.
    held_bytes: Option<u64>,
    /// The computing processes.
    pub(super) holders: Vec<&'a Process>,
}

impl<'a> GpuSample<'a> {
    /// `processes` are those on the GPU at `position`.
    pub(super) fn new(position: usize, info: &GpuInfo, reading: &GpuReading, processes: &[&'a Process]) -> Self {
        let present = processes.iter().copied().filter(|process| !process.is_stale);
        let (holders, drawing): (Vec<&Process>, Vec<&Process>) = present.partition(|p| p.computes_on(position));
        let is_listed = !holders.is_empty() || !drawing.is_empty();
        let memory = |process: &&Process| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
        let computing = holders.iter().filter_map(memory).reduce(u64::saturating_add);
        // A desktop holds memory without taking the GPU. If its memory is unknown, so is the rest.
        let drawing = drawing.iter().map(memory).try_fold(0, |sum: u64, bytes| Some(sum.saturating_add(bytes?)));
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
            // An empty list that may be incomplete is no evidence.
            None if reading.processes_unknown == Some(true) => None,
            None if is_unified || drawing.is_none() => Some(false),
            None => None,
        };
        Self {
            error: reading.error.as_ref().map(|error| error.kind),
            is_active: reading.utilization_percent.map(|percent| percent >= ACTIVE_PERCENT),
            is_taken,
            may_have_user: is_listed || used.is_none_or(|bytes| bytes >= NOBODY_BYTES),
            held_bytes: computing.max(used),
            holders,
        }
    }

    /// Whether the process with the most memory serves models.
    fn is_served(&self, position: usize, limits: &Thresholds) -> bool {
        let memory = |process: &Process| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
        let largest = self.holders.iter().max_by_key(|process| memory(process));
        largest.is_some_and(|process| serves_models(process, limits))
    }
}

/// Knowledge about a GPU besides its readings.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpuContext<'a> {
    /// Set while a finding reports that the GPU hangs.
    pub(super) hung_since: Option<Moment>,
    /// Set while a finding reports that the GPU is idle, possibly proven by CPU time.
    pub(super) idle_since: Option<Moment>,
    /// The GPU is reserved, or allocated by Slurm.
    pub(super) is_reserved: bool,
    /// The interval between samples.
    pub(super) interval: Duration,
    /// The thresholds of the host, with its model servers.
    pub(super) limits: &'a Thresholds,
}

/// The state of one GPU and what it depends on.
#[derive(Debug, Clone, Default)]
pub(super) struct GpuStateRecord {
    /// When the GPU last worked.
    last_active: Option<Moment>,
    /// Since when the same processes, or some of them, have held the GPU.
    held_since: Option<Moment>,
    holders: Vec<ProcessKey>,
    /// The state and since when it holds.
    state: Option<(GpuState, Option<Moment>)>,
    /// The state before the GPU became unknown.
    before: Option<(GpuState, Option<Moment>)>,
}

impl GpuStateRecord {
    /// The current state and since when it holds.
    pub(super) fn state(&self) -> (GpuState, Option<Moment>) {
        self.state.unwrap_or((GpuState::Unknown, None))
    }

    /// The state in the last sample, if the current one is unknown because there is no fresh data.
    fn last_state(&self) -> (GpuState, Option<Moment>) {
        match self.state() {
            unknown @ (GpuState::Unknown, _) => self.before.unwrap_or(unknown),
            known => known,
        }
    }

    /// Updates the state with a sample.
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
                    // The work of others does not count for these.
                    self.last_active = self.last_active.filter(|_| sample.is_active == Some(true));
                }
                self.holders.clear();
                self.holders.shrink_to(4 * sample.holders.len());
                self.holders.extend(sample.holders.iter().map(|process| process.key.clone()));
            }
            Some(false) => {
                self.held_since = None;
                self.holders = Vec::new();
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

    /// Sets the state to unknown because there is no fresh data.
    pub(super) fn mark_unknown(&mut self, last_seen: Option<Moment>, now: Moment) {
        self.enter(GpuState::Unknown, None, last_seen.unwrap_or(now));
    }

    /// Copies the state of another GPU, as a MIG parent does from its instances.
    pub(super) fn copy_state(&mut self, (state, since): (GpuState, Option<Moment>), now: Moment) {
        self.enter(state, since, now);
    }

    /// The state, and since when it holds if that is known better than from the first sample.
    fn classify(
        &self,
        position: usize,
        sample: &GpuSample,
        known: GpuContext,
        now: Moment,
    ) -> (GpuState, Option<Moment>) {
        match sample.error {
            // Not an error of this GPU: the driver does not answer, or denies access.
            Some(DriverErrorKind::Blocked | DriverErrorKind::NoPermission) => return (GpuState::Unknown, None),
            Some(_) => return (GpuState::Fault, None),
            None => {}
        }
        if sample.is_active.is_none() && sample.is_taken.is_none() {
            return (GpuState::Unknown, None);
        }
        let recent = RECENT_ACTIVITY.max(known.interval.saturating_mul(RECENT_INTERVALS));
        let is_recent = self.last_active.is_some_and(|at| now.since(at) < recent);
        match sample.is_taken {
            Some(true) | None if is_recent => (GpuState::InUse, None),
            Some(true) => self.classify_held(position, sample, known),
            // The utilisation covers a moment before the sample: after its job has ended, nobody uses the GPU.
            Some(false) if sample.is_active == Some(true) && sample.may_have_user => (GpuState::InUse, None),
            Some(false) if known.is_reserved => (GpuState::Unused, None),
            Some(false) => (GpuState::Free, None),
            None => (GpuState::Unknown, None),
        }
    }

    /// The state of a GPU that is held and does not work.
    fn classify_held(&self, position: usize, sample: &GpuSample, known: GpuContext) -> (GpuState, Option<Moment>) {
        let watched_since = self.last_active.max(self.held_since);
        let quiet_since = match (watched_since, known.idle_since) {
            (Some(watched), Some(proven)) => Some(watched.min(proven)),
            (watched, _) => watched,
        };
        // Without a utilisation reading (MIG) the GPU may be in use.
        if sample.is_active.is_none() {
            return (GpuState::InUse, None);
        }
        // If the memory is unknown, there is still a context.
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
            // Missing data holds the state: the GPU is as it was before the gap.
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

/// Why a GPU without work is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnusedReason {
    /// `reserved` in hosts.toml names it.
    Reserved,
    /// Slurm has allocated it to a job.
    Allocated,
    /// Slurm runs jobs on the host, and its allocations are unknown.
    AllocationUnknown,
    /// It is in MIG mode, so only its instances run work.
    Mig,
    /// A process holds less memory on it than counts as idle.
    Held,
}

/// Derives the state of every GPU, and since when it holds.
///
/// A state seen in the first sample holds since that sample, because the time before is unknown. Missing data makes a
/// GPU [`GpuState::Unknown`]; afterwards the earlier state continues if it still holds.
#[derive(Debug, Clone, Default)]
pub struct StateTracker {
    hosts: Vec<HostStates>,
}

#[derive(Debug, Clone, Default)]
struct HostStates {
    /// The identity and record of each GPU, in inventory order.
    gpus: Vec<(SafeText, GpuStateRecord)>,
    states: Vec<(GpuState, Option<Moment>)>,
    /// Slurm runs jobs on this host, so an empty GPU may be allocated.
    is_slurm: bool,
}

impl StateTracker {
    /// Updates the states of a host after an update of it. Returns whether a state changed.
    pub fn update(&mut self, host: &Host, now: Moment) -> bool {
        match &host.config.thresholds {
            Some(limits) => self.update_with(host, &[], limits, now),
            None => self.update_with(host, &[], &Thresholds::default(), now),
        }
    }

    /// As [`Self::update`], with GPU states that follow from findings: position, hung or idle, and since when.
    pub(super) fn update_with(
        &mut self,
        host: &Host,
        finding_states: &[(usize, GpuState, Moment)],
        limits: &Thresholds,
        now: Moment,
    ) -> bool {
        let states = self.host_mut(host.id);
        states.align(host);
        states.is_slurm |= runs_slurm(host);
        if host.is_fresh(now) {
            // An update without a snapshot sees the last one, which counts for the time at which it was received.
            states.update(host, finding_states, limits, host.received_at.unwrap_or(now));
        } else {
            states.mark_unknown(host, now);
        }
        states.publish()
    }

    /// Sets the states of a host to unknown once its data is not fresh. Called every second; returns whether a state
    /// changed.
    pub fn tick(&mut self, host: &Host, now: Moment) -> bool {
        if host.is_fresh(now) {
            return false;
        }
        let states = self.host_mut(host.id);
        states.align(host);
        states.mark_unknown(host, now);
        states.publish()
    }

    /// The states of the GPUs of a host in inventory order, each with the moment since when it is known to hold.
    pub fn states(&self, id: HostId) -> &[(GpuState, Option<Moment>)] {
        self.hosts.get(id.0 as usize).map_or(&[], |host| &host.states)
    }

    /// Why a GPU is [`GpuState::Unused`] and not free; `None` in another state.
    pub fn unused_reason(&self, host: &Host, position: usize) -> Option<UnusedReason> {
        let states = self.hosts.get(host.id.0 as usize)?;
        let (state, info) = (states.states.get(position)?.0, host.gpu_info(position)?);
        if state != GpuState::Unused {
            return None;
        }
        Some(match host.slurm_allocated_gpus() {
            _ if is_mig_parent(info) => UnusedReason::Mig,
            _ if host.config.reserved.contains(&info.index) => UnusedReason::Reserved,
            Some(_) if is_allocated(host, info, states.is_slurm) => UnusedReason::Allocated,
            None if states.is_slurm => UnusedReason::AllocationUnknown,
            _ => UnusedReason::Held,
        })
    }

    /// The state of a GPU in the last sample of its host, by its position in the inventory.
    pub(super) fn last_state(&self, id: HostId, position: usize) -> Option<(GpuState, Option<Moment>)> {
        let (_, record) = self.hosts.get(id.0 as usize)?.gpus.get(position)?;
        Some(record.last_state())
    }

    fn host_mut(&mut self, id: HostId) -> &mut HostStates {
        let place = id.0 as usize;
        if self.hosts.len() <= place {
            self.hosts.resize_with(place + 1, HostStates::default);
        }
        &mut self.hosts[place]
    }
}

impl HostStates {
    /// Brings the records into the order of the inventory.
    fn align(&mut self, host: &Host) {
        let is_aligned = self.gpus.len() == host.gpus().len()
            && self.gpus.iter().zip(host.gpus()).all(|((name, _), (info, _))| Some(name) == info.uuid.as_ref());
        if is_aligned {
            return;
        }
        let mut old = std::mem::take(&mut self.gpus);
        for (info, _) in host.gpus() {
            let name = gpu_identity(info);
            let record = match old.iter().position(|(other, _)| *other == name) {
                Some(position) => old.swap_remove(position).1,
                None => GpuStateRecord::default(),
            };
            self.gpus.push((name, record));
        }
    }

    fn update(&mut self, host: &Host, finding_states: &[(usize, GpuState, Moment)], limits: &Thresholds, now: Moment) {
        let mut on_gpu: Vec<Vec<&Process>> = vec![Vec::new(); self.gpus.len()];
        for process in host.processes() {
            for position in process.gpu_positions() {
                if let Some(processes) = on_gpu.get_mut(position) {
                    processes.push(process);
                }
            }
        }
        for (position, ((_, record), (info, reading))) in self.gpus.iter_mut().zip(host.gpus()).enumerate() {
            let sample = GpuSample::new(position, info, reading, &on_gpu[position]);
            let is_reserved = is_allocated(host, info, self.is_slurm)
                || host.config.reserved.contains(&info.index)
                || is_mig_parent(info);
            let since = |wanted: GpuState| {
                let same = finding_states.iter().filter(|(at, state, _)| *at == position && *state == wanted);
                same.map(|(.., since)| *since).min()
            };
            let known = GpuContext {
                hung_since: since(GpuState::Hung),
                idle_since: since(GpuState::Idle),
                is_reserved,
                interval: host.interval(),
                limits,
            };
            record.update(position, &sample, known, now);
        }
        self.copy_from_instances(host, now);
    }

    /// A GPU in MIG mode has no utilisation reading and takes the state of its instances.
    fn copy_from_instances(&mut self, host: &Host, now: Moment) {
        for (parent, (info, _)) in host.gpus().enumerate() {
            if !is_mig_parent(info) || self.gpus[parent].1.state().0 == GpuState::Fault {
                continue;
            }
            let instances = host
                .gpus()
                .enumerate()
                .filter(|(_, (other, _))| other.mig_parent_uuid.is_some() && other.mig_parent_uuid == info.uuid);
            let states = instances.map(|(position, _)| self.gpus[position].1.state());
            let worst = states.min_by_key(|(state, _)| (*state == GpuState::Unknown, *state));
            if let Some(worst) = worst {
                self.gpus[parent].1.copy_state(worst, now);
            }
        }
    }

    fn mark_unknown(&mut self, host: &Host, now: Moment) {
        for (_, record) in &mut self.gpus {
            record.mark_unknown(host.received_at, now);
        }
    }

    fn publish(&mut self) -> bool {
        let states = self.gpus.iter().map(|(_, record)| record.state());
        if self.states.len() == self.gpus.len() && self.states.iter().copied().eq(states.clone()) {
            return false;
        }
        self.states = states.collect();
        true
    }
}

fn is_mig_parent(info: &GpuInfo) -> bool {
    info.mig_enabled == Some(true) && info.mig_parent_uuid.is_none()
}

/// Whether Slurm has allocated this GPU to a job. If its allocations are unknown, any GPU of a host with Slurm jobs may
/// be allocated.
fn is_allocated(host: &Host, info: &GpuInfo, is_slurm: bool) -> bool {
    match host.slurm_allocated_gpus() {
        None => is_slurm,
        // Slurm numbers MIG instances in a different order.
        Some(allocated) if info.mig_parent_uuid.is_some() => !allocated.is_empty(),
        Some(allocated) => allocated.contains(&info.index),
    }
}

fn runs_slurm(host: &Host) -> bool {
    let is_job = host.hello.as_ref().is_some_and(|hello| matches!(hello.scope, Some(Scope::SlurmJob(_))));
    let is_owner =
        |process: &Process| process.facts().is_some_and(|facts| matches!(facts.owner, Some(Owner::Slurm { .. })));
    is_job || host.processes().any(is_owner)
}

#[cfg(test)]
#[path = "gpu_state_tests.rs"]
mod tests;
