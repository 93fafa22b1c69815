//! What is to be put out, and the readings of a host joined to rows.

use crate::diagnosis::Finding;
use crate::fleet::{Fleet, GpuState, Host, HostId, Moment, Process};
use crate::wire::{GpuHealth, GpuInfo, GpuReading, SafeText};

/// The fleet at one moment, with the states of its GPUs.
pub struct Report<'a> {
    /// The fleet.
    pub fleet: &'a Fleet,
    /// The states of a host's GPUs in inventory order, as `diagnosis` tells them.
    pub states: &'a dyn Fn(HostId) -> Vec<(GpuState, Option<Moment>)>,
    /// What diagnosis says, in its order.
    pub findings: &'a [&'a Finding],
    /// The moment for which ages are told.
    pub now: Moment,
}

impl Report<'_> {
    /// The GPUs of a host in inventory order, each with its readings and its state. A GPU that has not been judged has
    /// no fresh data.
    pub(super) fn gpus<'h>(&self, host: &'h Host) -> Vec<GpuView<'h>> {
        let states = (self.states)(host.id);
        let view = |(position, (info, reading))| {
            let (state, since) = states.get(position).copied().unwrap_or((GpuState::Unknown, None));
            GpuView { info, reading, health: host.gpu_health(position), state, since }
        };
        host.gpus().enumerate().map(view).collect()
    }
}

/// One GPU.
pub(super) struct GpuView<'a> {
    pub(super) info: &'a GpuInfo,
    pub(super) reading: &'a GpuReading,
    pub(super) health: Option<&'a GpuHealth>,
    pub(super) state: GpuState,
    pub(super) since: Option<Moment>,
}

/// Whose a process is: the user's name, else `uid 1000`, else a question mark.
pub(super) fn owner_label(process: &Process) -> SafeText {
    match process.facts().map(|facts| (&facts.user, facts.uid)) {
        Some((Some(user), _)) => user.clone(),
        Some((None, Some(uid))) => SafeText::from(format!("uid {uid}")),
        _ => "?".into(),
    }
}
