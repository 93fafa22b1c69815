//! Starts and owns the host tasks.

use super::channels::{Command, HostUpdates, PresenceSender, UpdateSender, presence_channel, update_channel};
use super::host_task::HostTask;
use super::probe_binary::ProbeStore;
use super::remote_command::Source;
use crate::config::HostConfig;
use crate::fleet::{Clock, HostId};
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Capacity of the update channel, which absorbs bursts such as the first snapshots of all hosts.
const WAITING_UPDATES: usize = 1024;
/// Capacity of the command channel of one host task.
const WAITING_COMMANDS: usize = 16;

/// Time between groups of connection attempts. Without groups, on 2 cores with 16 hosts, the first pane waited for all
/// sixteen key exchanges. The schedule is fixed in advance, so no host waits for another one.
const GROUP_PERIOD: Duration = Duration::from_millis(50);
/// Latest start of the last group, regardless of the number of hosts.
const LAST_GROUP: Duration = Duration::from_secs(2);

/// Owns one task per host. Dropping it aborts all tasks and closes their connections.
#[derive(Debug)]
pub struct Collector {
    commands: Vec<mpsc::Sender<Command>>,
    presence: PresenceSender,
    _tasks: JoinSet<()>,
}

impl Collector {
    /// Starts one task per host and returns the receiver of their updates. Must be called within a tokio runtime. The
    /// tasks also end when the receiver is dropped.
    #[allow(clippy::needless_pass_by_value, reason = "the collector owns the source")]
    pub fn start(hosts: &[Arc<HostConfig>], source: Source, clock: Clock) -> (Self, HostUpdates) {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_probes(hosts, &source, clock, &super::probe_binary::embedded_probes(), cores)
    }

    /// Like [`Collector::start`], with the given probes and number of cores.
    pub(super) fn with_probes(
        hosts: &[Arc<HostConfig>],
        source: &Source,
        clock: Clock,
        probes: &Arc<dyn ProbeStore>,
        cores: usize,
    ) -> (Self, HostUpdates) {
        let (updates, reports) = update_channel(WAITING_UPDATES);
        let (presence_sender, presence) = presence_channel();
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
                start_delay: start_delay(id.0, cores, hosts.len()),
                updates: UpdateSender::new(id, updates.clone()),
                presence: presence.clone(),
                commands: orders,
            };
            tasks.spawn(task.run());
        }
        (Self { commands, presence: presence_sender, _tasks: tasks }, reports)
    }

    /// Records that a person used the screen. For some minutes, hosts that the network separates are tried more often.
    pub fn record_input(&self) {
        self.presence.record_input(Instant::now());
    }

    /// Sends a command to the task of a host without waiting. Returns `false` if there is no such host or its queue is
    /// full.
    pub fn command(&self, host: HostId, command: Command) -> bool {
        self.commands.get(host.0 as usize).is_some_and(|commands| commands.try_send(command).is_ok())
    }
}

/// Returns when the host at `index` makes its first connection attempt, relative to the start of the collector.
fn start_delay(index: u32, cores: usize, hosts: usize) -> Duration {
    let group = |index: usize| u32::try_from(index / cores.max(1)).unwrap_or(u32::MAX);
    let last = GROUP_PERIOD.saturating_mul(group(hosts.saturating_sub(1)));
    let due = GROUP_PERIOD.saturating_mul(group(index as usize));
    if last > LAST_GROUP { due.mul_f64(LAST_GROUP.div_duration_f64(last)) } else { due }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_begin_in_groups_and_the_last_one_soon() {
        let of = |cores, hosts| (0..hosts as u32).map(|index| start_delay(index, cores, hosts)).collect::<Vec<_>>();
        let milliseconds = |delays: &[Duration]| delays.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(milliseconds(&of(2, 6)), [0, 0, 50, 50, 100, 100]);
        assert_eq!(milliseconds(&of(8, 8)), [0; 8]);
        let many = of(4, 1000);
        assert_eq!((many[3], many.last()), (Duration::ZERO, Some(&LAST_GROUP)));
        assert!(many.is_sorted());
        assert_eq!(start_delay(5, 0, 0), GROUP_PERIOD * 5);
    }
}

#[cfg(test)]
#[path = "flood_tests.rs"]
mod flood_tests;
