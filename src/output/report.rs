//! What is to be put out, and the readings of a host joined to rows.

use crate::fleet::{Fleet, GpuState, Host, HostId, Moment};
use crate::wire::{GpuInfo, GpuProcessReading, GpuReading, Owner, ProcessFacts, ProcessReading, SafeText};
use std::collections::BTreeMap;

/// The fleet at one moment, with the states of its GPUs.
pub struct Report<'a> {
    /// The fleet.
    pub fleet: &'a Fleet,
    /// The states of a host's GPUs in inventory order, as `diagnosis` tells them.
    pub states: &'a dyn Fn(HostId) -> Vec<(GpuState, Option<Moment>)>,
    /// The moment for which ages are told.
    pub now: Moment,
}

impl Report<'_> {
    /// The GPUs of a host in inventory order, each with its readings and its state. A GPU that has not been judged has
    /// no fresh data.
    pub(super) fn gpus<'h>(&self, host: &'h Host) -> Vec<GpuView<'h>> {
        let states = (self.states)(host.id);
        let infos = host.inventory.iter().flat_map(|inventory| &inventory.gpus).enumerate();
        let view = |(position, info)| {
            let (state, since) = states.get(position).copied().unwrap_or((GpuState::Unknown, None));
            let reading = host.snapshot.as_ref().map(|snapshot| snapshot.gpus.row(position)).unwrap_or_default();
            GpuView { info, reading, state, since }
        };
        infos.map(view).collect()
    }
}

/// One GPU.
pub(super) struct GpuView<'a> {
    pub(super) info: &'a GpuInfo,
    pub(super) reading: GpuReading,
    pub(super) state: GpuState,
    pub(super) since: Option<Moment>,
}

/// One process, with what it does on each of its GPUs (`gpu` is the position in the inventory).
pub(super) struct ProcessView<'a> {
    pub(super) pid: Option<u32>,
    pub(super) facts: Option<&'a ProcessFacts>,
    pub(super) reading: ProcessReading,
    pub(super) uses: Vec<GpuProcessReading>,
}

impl ProcessView<'_> {
    /// Whose it is: the user's name, else `uid 1000`, else a question mark.
    pub(super) fn who(&self) -> SafeText {
        match self.facts.map(|facts| (&facts.user, facts.uid)) {
            Some((Some(user), _)) => user.clone(),
            Some((None, Some(uid))) => SafeText::from(format!("uid {uid}")),
            _ => "?".into(),
        }
    }

    /// What it is grouped with on its host.
    pub(super) fn job(&self) -> Option<SafeText> {
        let job = match self.facts?.owner.as_ref()? {
            Owner::Slurm { job, .. } => format!("slurm:{job}"),
            Owner::Pod { uid, container } => format!("container:pod/{}", container.as_ref().unwrap_or(uid)),
            Owner::Container { runtime, id } => format!("container:{runtime}/{id}"),
            Owner::Service(_) | Owner::Session(_) => return None,
        };
        Some(SafeText::from(job))
    }
}

/// The processes of a host by pid, one entry a process; those that the driver does not name come last, one a GPU.
pub(super) fn processes(host: &Host) -> Vec<ProcessView<'_>> {
    let Some(snapshot) = &host.snapshot else { return Vec::new() };
    let readings: BTreeMap<u32, ProcessReading> = (0..snapshot.processes.len())
        .map(|row| snapshot.processes.row(row))
        .filter_map(|reading| Some((reading.pid?, reading)))
        .collect();
    let mut by_pid: BTreeMap<u32, Vec<GpuProcessReading>> = BTreeMap::new();
    let mut nameless = Vec::new();
    for usage in (0..snapshot.gpu_processes.len()).map(|row| snapshot.gpu_processes.row(row)) {
        match usage.pid {
            Some(pid) => by_pid.entry(pid).or_default().push(usage),
            None => nameless.push(usage),
        }
    }
    let named = by_pid.into_iter().map(|(pid, uses)| ProcessView {
        pid: Some(pid),
        facts: host.facts.get(&pid),
        reading: readings.get(&pid).cloned().unwrap_or_default(),
        uses,
    });
    let nameless = nameless.into_iter().map(|usage| ProcessView {
        pid: None,
        facts: None,
        reading: ProcessReading::default(),
        uses: vec![usage],
    });
    named.chain(nameless).collect()
}
