//! All host tasks together.

use super::host_task::HostTask;
use super::image::ProbeStore;
use super::report::Report;
use super::source::Source;
use crate::fleet::{Clock, HostId, HostUpdate};
use crate::hosts::HostConfig;
use crate::wire::Request;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Updates that may wait for the fleet. It takes them as fast as they come, so this is for bursts: all hosts' first.
const WAITING_UPDATES: usize = 1024;
/// Commands that may wait for one host's task.
const WAITING_COMMANDS: usize = 16;

/// What a host task can be told.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Try again now. Without effect while connected or connecting.
    Retry,
    /// Sample at this interval, now and on every later connection.
    Interval(Duration),
    /// Pass this on to the probe. A signal that cannot be passed on is answered with a refusal.
    Request(Request),
}

/// Owns one task a host; dropping it ends them all, with their connections.
#[derive(Debug)]
pub struct Collector {
    commands: Vec<mpsc::Sender<Command>>,
    _tasks: JoinSet<()>,
}

impl Collector {
    /// Starts one task for each host, in their order, and returns what they report. To be called within a tokio
    /// runtime. The tasks also end when the receiver is dropped.
    #[allow(clippy::needless_pass_by_value, reason = "the source is the collector's from here on")]
    pub fn start(
        hosts: &[Arc<HostConfig>],
        source: Source,
        clock: Clock,
    ) -> (Self, mpsc::Receiver<(HostId, HostUpdate)>) {
        Self::with_probes(hosts, &source, clock, &super::image::carried())
    }

    /// The same with other probes than those that this program carries.
    pub(super) fn with_probes(
        hosts: &[Arc<HostConfig>],
        source: &Source,
        clock: Clock,
        probes: &Arc<dyn ProbeStore>,
    ) -> (Self, mpsc::Receiver<(HostId, HostUpdate)>) {
        let (updates, reports) = mpsc::channel(WAITING_UPDATES);
        let mut tasks = JoinSet::new();
        let mut commands = Vec::with_capacity(hosts.len());
        for (id, config) in (0..).map(HostId).zip(hosts) {
            let (command, orders) = mpsc::channel(WAITING_COMMANDS);
            commands.push(command);
            let task = HostTask {
                config: Arc::clone(config),
                source: source.clone(),
                probes: Arc::clone(probes),
                clock,
                report: Report::new(id, updates.clone()),
                commands: orders,
            };
            tasks.spawn(task.run());
        }
        (Self { commands, _tasks: tasks }, reports)
    }

    /// Tells one host's task, without waiting. `false` when it was not taken: no such host, or too many commands wait.
    pub fn command(&self, host: HostId, command: Command) -> bool {
        self.commands.get(host.0 as usize).is_some_and(|commands| commands.try_send(command).is_ok())
    }
}
