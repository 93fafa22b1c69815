//! All host tasks together.

use super::channels::{Command, UpdateSender};
use super::host_task::HostTask;
use super::probe_binary::ProbeStore;
use super::remote_command::Source;
use crate::config::HostConfig;
use crate::fleet::{Clock, HostId, HostUpdate};
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Updates that may wait for the fleet. It takes them as fast as they come, so this is for bursts: all hosts' first.
const WAITING_UPDATES: usize = 1024;
/// Commands that may wait for one host's task.
const WAITING_COMMANDS: usize = 16;

/// Connections begin in groups, one after the other, so that the first panes are painted while later ones still shake
/// hands: on 2 cores with 16 hosts the first pane waited for all sixteen key exchanges at once. It is a schedule and not
/// a queue, so that no host ever waits for another.
const GROUP_PERIOD: Duration = Duration::from_millis(50);
/// The last group begins after this long, however many hosts there are.
const LAST_GROUP: Duration = Duration::from_secs(2);

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
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_probes(hosts, &source, clock, &super::probe_binary::embedded_probes(), cores)
    }

    /// The same with other probes than those that this program carries, on a machine of so many cores.
    pub(super) fn with_probes(
        hosts: &[Arc<HostConfig>],
        source: &Source,
        clock: Clock,
        probes: &Arc<dyn ProbeStore>,
        cores: usize,
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
                start_delay: start_delay(id.0, cores, hosts.len()),
                updates: UpdateSender::new(id, updates.clone()),
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

/// When the host at a place of the list makes its first try, counted from the start.
fn start_delay(place: u32, cores: usize, hosts: usize) -> Duration {
    let group = |place: usize| u32::try_from(place / cores.max(1)).unwrap_or(u32::MAX);
    let last = GROUP_PERIOD.saturating_mul(group(hosts.saturating_sub(1)));
    let due = GROUP_PERIOD.saturating_mul(group(place as usize));
    if last > LAST_GROUP { due.mul_f64(LAST_GROUP.div_duration_f64(last)) } else { due }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_begin_in_groups_and_the_last_one_soon() {
        let of = |cores, hosts| (0..hosts as u32).map(|place| start_delay(place, cores, hosts)).collect::<Vec<_>>();
        let milliseconds = |delays: &[Duration]| delays.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(milliseconds(&of(2, 6)), [0, 0, 50, 50, 100, 100]);
        assert_eq!(milliseconds(&of(8, 8)), [0; 8]);
        let many = of(4, 1000);
        assert_eq!((many[3], many.last()), (Duration::ZERO, Some(&LAST_GROUP)));
        assert!(many.is_sorted());
        assert_eq!(start_delay(5, 0, 0), GROUP_PERIOD * 5);
    }
}
