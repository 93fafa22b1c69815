//! The data of a report: the fleet with GPU states and findings at one moment.

use crate::diagnosis::Finding;
use crate::fleet::{Fleet, GpuState, Host, HostId, Moment, Process};
use crate::wire::{GpuHealth, GpuInfo, GpuReading, SafeText};

/// The fleet at one moment, with the states of its GPUs.
pub struct Report<'a> {
    /// The hosts and their readings.
    pub fleet: &'a Fleet,
    /// Returns the states of a host's GPUs in inventory order, as computed by `diagnosis`.
    pub states: &'a dyn Fn(HostId) -> Vec<(GpuState, Option<Moment>)>,
    /// The findings in the order of the engine.
    pub findings: &'a [&'a Finding],
    /// The moment of the report, for ages.
    pub now: Moment,
}

impl Report<'_> {
    /// The GPUs of a host in inventory order with their readings and states. A GPU without a state is
    /// [`GpuState::Unknown`].
    pub(super) fn gpus<'h>(&self, host: &'h Host) -> Vec<GpuView<'h>> {
        let states = (self.states)(host.id);
        let view = |(position, (info, reading))| {
            let (state, since) = states.get(position).copied().unwrap_or((GpuState::Unknown, None));
            GpuView { info, reading, health: host.gpu_health(position), state, since }
        };
        host.gpus().enumerate().map(view).collect()
    }
}

/// One GPU with its readings and state.
pub(super) struct GpuView<'a> {
    pub(super) info: &'a GpuInfo,
    pub(super) reading: &'a GpuReading,
    pub(super) health: Option<&'a GpuHealth>,
    pub(super) state: GpuState,
    pub(super) since: Option<Moment>,
}

/// The owner of a process: the user name, else `uid 1000`, else `?`.
pub(super) fn owner_label(process: &Process) -> SafeText {
    match process.facts().map(|facts| (&facts.user, facts.uid)) {
        Some((Some(user), _)) => user.clone(),
        Some((None, Some(uid))) => SafeText::from(format!("uid {uid}")),
        _ => "?".into(),
    }
}
