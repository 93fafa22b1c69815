//! The log of the collector: one line on standard error for each change of a connection and of a finding.

use super::state::{Applied, CollectorState, Observer};
use crate::cli::exit::warn;
use crate::diagnosis::{FindingPhase, Transition};
use crate::fleet::{Host, HostId, Link, LinkErrorKind, Moment};
use crate::wire::SafeText;

/// The last logged state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoggedLink {
    Live,
    Failed(LinkErrorKind),
}

/// Logs changes. A host that fails again for the same reason is logged once.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By [`HostId`].
    links: Vec<Option<LoggedLink>>,
}

impl Observer for Log {
    fn applied(&mut self, state: &CollectorState, applied: &Applied<'_>) {
        if let Some(line) = state.fleet.host(applied.host).and_then(|host| self.link_line(host)) {
            warn(&line);
        }
        log_findings(applied.transitions);
    }

    fn tick(&mut self, _: &CollectorState, transitions: &[Transition], _: Moment) {
        log_findings(transitions);
    }

    fn hosts_changed(&mut self, state: &CollectorState, _: Moment) {
        let seen = |host: &Host| (host.received_at.is_some() && host.link == Link::Live).then_some(LoggedLink::Live);
        self.links = state.fleet.hosts().iter().map(seen).collect();
    }
}

impl Log {
    /// Returns the line of a connection that has changed.
    fn link_line(&mut self, host: &Host) -> Option<String> {
        let HostId(index) = host.id;
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, None);
        }
        let logged = self.links.get_mut(index as usize)?;
        let new = match (&host.link, host.link.error()) {
            (Link::Live, _) if host.snapshots_seen > 0 => LoggedLink::Live,
            (_, Some(error)) => LoggedLink::Failed(error.kind),
            _ => return None,
        };
        if logged.replace(new) == Some(new) {
            return None;
        }
        let name = host.name();
        Some(match host.link.error() {
            None => format!("{name}: connected, {} GPUs", host.gpus().len()),
            Some(error) => {
                let hint = error.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
                format!("{name}: {}{hint}", error.message)
            }
        })
    }
}

fn log_findings(transitions: &[Transition]) {
    transitions.iter().filter_map(finding_line).for_each(|line| warn(&line));
}

/// Returns the line of a finding that began or ended; `None` for a finding that is only pending.
fn finding_line(transition: &Transition) -> Option<String> {
    let Transition { host_name, severity, rule, sentence, .. } = transition;
    let subject: SafeText = host_name.clone();
    match (transition.from, transition.to) {
        (FindingPhase::Pending | FindingPhase::Clear, FindingPhase::Firing) => {
            Some(format!("{subject}: {} {}: {sentence}", severity.word(), rule.word()))
        }
        (FindingPhase::Firing | FindingPhase::Resolving, FindingPhase::Clear) => {
            Some(format!("{subject}: {} has ended", rule.word()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::diagnosis::Severity;
    use crate::diagnosis::testing::notification;
    use crate::fleet::{Fleet, HostUpdate, LinkError};
    use crate::wire::Snapshot;
    use std::sync::Arc;

    #[test]
    fn a_connection_is_logged_when_it_changes() {
        let mut fleet = Fleet::new(&[Arc::new(HostConfig::named("gpu1"))], false, Moment::default());
        let mut log = Log::default();
        let mut lines = Vec::new();
        let mut take = |update: HostUpdate| {
            fleet.apply(HostId(0), update, Moment::default());
            lines.extend(log.link_line(&fleet.hosts()[0]));
        };
        let down = |kind, attempt| {
            let error = LinkError::new(kind, "nothing listens on port 22").with_hint("is sshd running?");
            HostUpdate::Down { error, retry_at: None, attempt }
        };
        let snapshot = |sequence| HostUpdate::Snapshot(Box::new(Snapshot { sequence, ..Snapshot::default() }));
        take(down(LinkErrorKind::Refused, 1));
        take(down(LinkErrorKind::Refused, 2));
        take(snapshot(1));
        take(snapshot(2));
        take(HostUpdate::NeedsUser(LinkError::new(LinkErrorKind::HostKeyUnknown, "the host key is not known")));
        assert_eq!(
            lines,
            [
                "gpu1: nothing listens on port 22; is sshd running?",
                "gpu1: connected, 0 GPUs",
                "gpu1: the host key is not known"
            ]
        );
    }

    #[test]
    fn findings_are_logged_when_they_begin_and_end() {
        let mut transition = notification("gpu-lost/hgx-01", Severity::Crit).transition;
        (transition.from, transition.to) = (FindingPhase::Pending, FindingPhase::Firing);
        assert_eq!(finding_line(&transition).as_deref(), Some("hgx-01: crit gpu-lost: a sentence"));
        (transition.from, transition.to) = (FindingPhase::Firing, FindingPhase::Resolving);
        assert_eq!(finding_line(&transition), None);
        (transition.from, transition.to) = (FindingPhase::Resolving, FindingPhase::Clear);
        assert_eq!(finding_line(&transition).as_deref(), Some("hgx-01: gpu-lost has ended"));
        (transition.from, transition.to) = (FindingPhase::Clear, FindingPhase::Pending);
        assert_eq!(finding_line(&transition), None);
    }
}
