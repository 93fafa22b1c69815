//! The data of a report: the fleet with GPU states and findings at one moment.

use crate::diagnosis::{Finding, FindingGpu, FindingPhase, Severity};
use crate::fleet::{Fleet, GpuState, Host, HostId, Link, Moment, Process};
use crate::wire::format::{DurationStyle, duration};
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
            let about_it = |finding: &&&Finding| {
                finding.rule.is_about_progress()
                    && finding.phase != FindingPhase::Pending
                    && finding.gpus.iter().any(|gpu| gpu.host == host.id && gpu.position == position)
            };
            let severity = self.findings.iter().filter(about_it).map(|finding| finding.severity).max();
            let is_on_it = |gpu: &FindingGpu| gpu.host == host.id && gpu.position == position;
            let suspicions = self.findings.iter().filter(|one| one.is_suspicion() && one.gpus.iter().any(is_on_it));
            // Hung and faulty GPUs are beyond a suspicion.
            let suspected_since = suspicions.map(|one| one.since).min().filter(|_| state == GpuState::InUse);
            GpuView { info, reading, health: host.gpu_health(position), state, since, suspected_since, severity }
        };
        host.gpus().enumerate().map(view).collect()
    }
}

/// Whether a host sent readings and its connection is not down.
pub(super) fn has_reported(host: &Host) -> bool {
    host.snapshot.is_some() && matches!(host.link, Link::Live | Link::Stale { .. })
}

/// Why a host without an error has not answered: the phase of the connection and how long it has lasted.
pub(super) fn no_answer_text(host: &Host, now: Moment) -> String {
    let precise = |since: Moment| duration(now.since(since), DurationStyle::Precise);
    match &host.link {
        Link::Connecting { phase, since, .. } => format!("no answer yet: {}, {}", phase.description(), precise(*since)),
        Link::Stale { since } => format!("silent for {}", precise(*since)),
        _ => "connected, no readings yet".to_owned(),
    }
}

/// One GPU with its readings and state.
pub(super) struct GpuView<'a> {
    pub(super) info: &'a GpuInfo,
    pub(super) reading: &'a GpuReading,
    pub(super) health: Option<&'a GpuHealth>,
    pub(super) state: GpuState,
    pub(super) since: Option<Moment>,
    /// Since when its job has looked stuck, while that is only a suspicion.
    pub(super) suspected_since: Option<Moment>,
    /// The severity of the findings about the progress of its job.
    pub(super) severity: Option<Severity>,
}

/// The owner of a process: the user name, else `uid 1000`, else `?`.
pub(super) fn owner_label(process: &Process) -> SafeText {
    match process.facts().map(|facts| (&facts.user, facts.uid)) {
        Some((Some(user), _)) => user.clone(),
        Some((None, Some(uid))) => SafeText::from(format!("uid {uid}")),
        _ => "?".into(),
    }
}
