//! Commands that look at every host once: the fleet of `status` and `free`, and the loop of `doctor` and `clean`.

use super::command_context::CommandContext;
use super::exit::INCOMPLETE;
use super::terminal_prompts::Prompter;
use super::{CommandError, ExitSignals, print};
use crate::collect::{OpenChannel, Source};
use crate::config::HostConfig;
use crate::fleet::{Clock, Fleet, Host, HostChange, HostId, HostUpdate, Link, Moment};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;

/// A host is complete after this many snapshots. CPU and SM shares exist from the second one on.
const SNAPSHOTS: u32 = 2;

/// A fleet that is read once. A host is done after its second snapshot or its first failure. Retries after a failure
/// are not waited for and do not hide its cause.
pub struct OneShotFleet {
    fleet: Fleet,
    failed: Vec<bool>,
    /// Retries are shown as well.
    follows_links: bool,
}

impl OneShotFleet {
    /// Creates a fleet without any updates.
    pub fn new(hosts: &[Arc<HostConfig>], simulated: bool, clock: Clock) -> Self {
        let fleet = Fleet::new(hosts, simulated, clock.now()).with_clock_speed(clock.speed());
        Self { fleet, failed: vec![false; hosts.len()], follows_links: false }
    }

    /// Shows retries from now on, as a report that is repeated should.
    pub fn follow_links(&mut self) {
        self.follows_links = true;
    }

    /// Applies one host's update.
    pub fn apply(&mut self, id: HostId, update: HostUpdate, now: Moment) -> HostChange {
        let Some(failed) = self.failed.get_mut(id.0 as usize) else { return HostChange::Nothing };
        match update {
            HostUpdate::Connecting { .. } | HostUpdate::Down { .. } if *failed && !self.follows_links => {
                return HostChange::Nothing;
            }
            HostUpdate::Down { .. } | HostUpdate::NeedsUser(_) => *failed = true,
            HostUpdate::Snapshot(_) => *failed = false,
            _ => {}
        }
        self.fleet.apply(id, update, now)
    }

    /// Returns the fleet.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Whether every host is done.
    pub fn is_complete(&self) -> bool {
        let mut hosts = self.fleet.hosts().iter().zip(&self.failed);
        hosts.all(|(host, failed)| *failed || host.snapshots_seen >= SNAPSHOTS)
    }

    /// Whether every host has reported. A host without a driver, or one that fell silent after its readings, has.
    pub fn all_reported(&self) -> bool {
        self.unreported().next().is_none()
    }

    /// Returns the hosts that have not reported.
    pub fn unreported(&self) -> impl Iterator<Item = &Host> {
        let has_reported =
            |host: &Host| host.snapshot.is_some() && matches!(host.link, Link::Live | Link::Stale { .. });
        self.fleet.hosts().iter().filter(move |host| !has_reported(host))
    }
}

/// Runs `action` on all hosts at once and prints each result in the order of the hosts, as soon as those before it are
/// printed. An `Err` is printed as well and makes the exit code 3.
pub(super) async fn for_each_host<F, R>(
    setup: CommandContext,
    command: &str,
    action: F,
) -> Result<ExitCode, CommandError>
where
    F: Fn(Arc<dyn OpenChannel>, Arc<HostConfig>) -> R,
    R: Future<Output = Result<String, String>> + Send + 'static,
{
    let CommandContext { hosts, source, ssh, .. } = setup;
    let Source::Ssh(open) = source else {
        return Err(CommandError::usage(format!(
            "`{command}` does not work on the simulated fleet\n  hint: leave --demo out"
        )));
    };
    let mut exit_signals = ExitSignals::new()?;
    let mut prompter = Prompter::new(ssh);
    let mut tasks = JoinSet::new();
    for (index, host) in hosts.iter().enumerate() {
        let action = action(Arc::clone(&open), Arc::clone(host));
        tasks.spawn(async move { (index, action.await) });
    }
    let mut outcomes: Vec<Option<Result<String, String>>> = hosts.iter().map(|_| None).collect();
    let (mut printed, mut is_success) = (0, true);
    while printed < outcomes.len() {
        tokio::select! {
            code = exit_signals.next() => return Ok(ExitCode::from(code)),
            () = prompter.step() => {}
            Some(done) = tasks.join_next() => {
                let (index, outcome) = done.map_err(|error| CommandError::failed(format!("a task failed: {error}")))?;
                if let Some(slot) = outcomes.get_mut(index) {
                    *slot = Some(outcome);
                }
            }
        }
        // Output must not interrupt an open prompt.
        if prompter.is_asking() {
            continue;
        }
        while let Some(outcome) = outcomes.get_mut(printed).and_then(Option::take) {
            is_success &= outcome.is_ok();
            print(&outcome.unwrap_or_else(|text| text))?;
            printed += 1;
        }
    }
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{ConnectPhase, LinkError, LinkErrorKind};
    use crate::wire::{DriverError, DriverErrorKind, Inventory, Snapshot};

    fn one_shot(hosts: u32) -> OneShotFleet {
        let configs: Vec<_> = (0..hosts).map(|host| Arc::new(HostConfig::named(format!("h{host}")))).collect();
        OneShotFleet::new(&configs, false, Clock::start(1.0))
    }

    fn snapshot(sequence: u64) -> HostUpdate {
        HostUpdate::Snapshot(Box::new(Snapshot { sequence, ..Snapshot::default() }))
    }

    fn down() -> HostUpdate {
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
        HostUpdate::Down { error, retry_at: None, attempt: 1 }
    }

    fn feed(one_shot: &mut OneShotFleet, host: u32, updates: impl IntoIterator<Item = HostUpdate>) {
        for update in updates {
            one_shot.apply(HostId(host), update, Moment::default());
        }
    }

    #[test]
    fn the_fleet_is_complete_when_every_host_has_two_snapshots_or_failed() {
        let mut one_shot = one_shot(2);
        feed(&mut one_shot, 0, [snapshot(1)]);
        assert!(!one_shot.is_complete());
        feed(&mut one_shot, 0, [snapshot(2)]);
        assert!(!one_shot.is_complete());
        feed(&mut one_shot, 1, [down()]);
        assert!(one_shot.is_complete());
        assert!(!one_shot.all_reported());
    }

    #[test]
    fn a_host_without_a_driver_has_reported() {
        let mut one_shot = one_shot(1);
        let error = DriverError { kind: DriverErrorKind::NoLibrary, code: None, message: "no driver".into() };
        let inventory = Inventory { error: Some(error), ..Inventory::default() };
        feed(&mut one_shot, 0, [HostUpdate::Inventory(Box::new(inventory)), snapshot(1), snapshot(2)]);
        assert!(one_shot.is_complete() && one_shot.all_reported());
    }

    #[test]
    fn a_retry_does_not_hide_the_error() {
        let mut one_shot = one_shot(1);
        feed(&mut one_shot, 0, [down(), HostUpdate::Connecting { attempt: 2, phase: ConnectPhase::Tcp }]);
        assert!(one_shot.is_complete());
        let link = &one_shot.fleet().hosts()[0].link;
        assert_eq!(link.error().map(|error| error.kind), Some(LinkErrorKind::Refused));
    }

    #[test]
    fn a_host_that_reconnects_has_reported() {
        let mut one_shot = one_shot(1);
        feed(&mut one_shot, 0, [down(), snapshot(1)]);
        assert!(!one_shot.is_complete());
        assert!(one_shot.all_reported());
    }

    #[test]
    fn a_host_that_needs_the_user_is_done() {
        let mut one_shot = one_shot(1);
        let error = LinkError::new(LinkErrorKind::HostKeyUnknown, "the host key is not known");
        feed(&mut one_shot, 0, [HostUpdate::NeedsUser(error)]);
        assert!(one_shot.is_complete() && !one_shot.all_reported());
    }
}
