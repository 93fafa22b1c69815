//! The states of all GPUs, kept from one snapshot to the next.

use super::gpu_state::{GpuContext, GpuSample, GpuStateRecord};
use crate::config::Thresholds;
use crate::fleet::{GpuState, Host, HostId, Moment, Process};
use crate::wire::{GpuInfo, Owner, SafeText, Scope};

/// Tells the state of every GPU, and since when it has been in it.
///
/// A state that the first look shows is said to hold since that look: what was before is not known. Data that is missing
/// makes a GPU [`GpuState::Unknown`]; when it comes back, what was remembered still counts.
#[derive(Debug, Clone, Default)]
pub struct StateTracker {
    hosts: Vec<HostStates>,
}

#[derive(Debug, Clone, Default)]
struct HostStates {
    /// By what each GPU is recognised, and what is remembered of it; in inventory order.
    gpus: Vec<(SafeText, GpuStateRecord)>,
    states: Vec<(GpuState, Option<Moment>)>,
    /// Slurm runs jobs here, so a GPU on which nothing runs may still be given to somebody.
    is_slurm: bool,
}

impl StateTracker {
    /// Takes in a host after an update. Returns whether a state changed.
    pub fn update(&mut self, host: &Host, now: Moment) -> bool {
        match &host.config.thresholds {
            Some(limits) => self.update_with(host, &[], limits, now),
            None => self.update_with(host, &[], &Thresholds::default(), now),
        }
    }

    /// The same where findings say of some GPUs, by position, that they hang or are idle, and since when.
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
            // An update that brings no snapshot finds the last one: it counts for the time at which it came.
            states.update(host, finding_states, limits, host.received_at.unwrap_or(now));
        } else {
            states.mark_unknown(host, now);
        }
        states.publish()
    }

    /// Notices that a host's data is no longer fresh. For the one-second tick; returns whether a state changed.
    pub fn tick(&mut self, host: &Host, now: Moment) -> bool {
        if host.is_fresh(now) {
            return false;
        }
        let states = self.host_mut(host.id);
        states.align(host);
        states.mark_unknown(host, now);
        states.publish()
    }

    /// The states of a host's GPUs in inventory order, each with the moment since when it has been known to hold.
    pub fn states(&self, id: HostId) -> &[(GpuState, Option<Moment>)] {
        self.hosts.get(id.0 as usize).map_or(&[], |host| &host.states)
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
    /// Brings what is remembered into the order of the inventory.
    fn align(&mut self, host: &Host) {
        let is_aligned = self.gpus.len() == host.gpus().len()
            && self.gpus.iter().zip(host.gpus()).all(|((name, _), (info, _))| Some(name) == info.uuid.as_ref());
        if is_aligned {
            return;
        }
        let mut old = std::mem::take(&mut self.gpus);
        for (info, _) in host.gpus() {
            let name = info.uuid.clone().unwrap_or_else(|| SafeText::new(&format!("index {}", info.index)));
            let memory = match old.iter().position(|(other, _)| *other == name) {
                Some(position) => old.swap_remove(position).1,
                None => GpuStateRecord::default(),
            };
            self.gpus.push((name, memory));
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
        for (position, ((_, memory), (info, reading))) in self.gpus.iter_mut().zip(host.gpus()).enumerate() {
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
                limits,
            };
            memory.update(position, &sample, known, now);
        }
        self.copy_from_instances(host, now);
    }

    /// A GPU in multi-instance mode is what its instances are: its own utilisation is not told.
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
        for (_, memory) in &mut self.gpus {
            memory.mark_unknown(host.received_at, now);
        }
    }

    fn publish(&mut self) -> bool {
        let states = self.gpus.iter().map(|(_, memory)| memory.state());
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

/// Whether Slurm has given this GPU to a job. Where it does not tell, any GPU of a host that runs its jobs may be.
fn is_allocated(host: &Host, info: &GpuInfo, is_slurm: bool) -> bool {
    match host.slurm_allocated_gpus() {
        None => is_slurm,
        // Slurm counts instances in an order of its own.
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
#[path = "state_tracker_tests.rs"]
mod tests;
