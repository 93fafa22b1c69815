//! Where the updates of hosts come from: the hosts themselves, or the collector of `--collector`.

use super::CommandError;
use super::collector_answer::{Picture, read_picture};
use super::command_context::CommandContext;
use crate::collect::{Command, HostTasks, HostUpdates, RelayRoute, RelayedHosts, Source};
use crate::fleet::{HistoryReply, HostId};
use crate::share::ViewerEvent;
use crate::wire::SafeText;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Where the updates come from.
pub(super) enum Connections {
    /// From the hosts.
    Direct(HostTasks),
    /// From a collector.
    Relayed(RelayedHosts),
}

impl Connections {
    /// Notes that a person uses the screen.
    pub(super) fn record_input(&self) {
        // A collector has its own policy for lost hosts.
        if let Self::Direct(host_tasks) = self {
            host_tasks.record_input();
        }
    }

    /// Sends a command without waiting. Returns `false` if it is not taken.
    pub(super) fn command(&self, id: HostId, command: Command) -> bool {
        match self {
            Self::Direct(host_tasks) => host_tasks.command(id, command),
            Self::Relayed(relayed) => relayed.command(id, command),
        }
    }
}

/// The hosts of a collector, their updates, and the answers to requests for histories.
pub(super) type RelayedParts = (RelayedHosts, HostUpdates, mpsc::Receiver<HistoryReply>);

/// With `--collector`, reads the picture of the collector, sets the hosts to show and follows it from then on. Prompts
/// appear on the terminal, because the screen needs the hosts.
pub(super) async fn follow_collector(setup: &mut CommandContext) -> Result<Option<RelayedParts>, CommandError> {
    let Some(chosen) = setup.collector.take() else { return Ok(None) };
    let Source::Ssh(ssh) = &setup.source else { return Ok(None) };
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let route = RelayRoute {
        machine: Arc::clone(&chosen.machine),
        ssh: Arc::clone(ssh),
        clock: setup.clock,
        user: user.map(SafeText::from),
    };
    let Picture { relay, events } = read_picture(setup, &chosen, true).await?;
    setup.hosts = chosen.hosts(relay.hosts())?;
    let updates = events.into_iter().filter_map(|event| match event {
        ViewerEvent::Update(id, update) => Some((id, update)),
        _ => None,
    });
    Ok(Some(RelayedHosts::start(relay, updates.collect(), &setup.hosts, route)))
}
