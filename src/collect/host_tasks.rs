//! Starts and owns the host tasks.

use super::alignment::Slot;
use super::channels::{
    Command, HostUpdates, Presence, PresenceSender, QueuedUpdate, UpdateSender, presence_channel, update_channel,
};
use super::host_task::HostTask;
use super::probe_binary::ProbeStore;
use super::remote_command::Source;
use crate::config::HostConfig;
use crate::fleet::{Clock, HostId};
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Capacity of the update channel, which absorbs bursts such as the first snapshots of all hosts.
const WAITING_UPDATES: usize = 1024;
/// Capacity of the command channel of one host task.
const WAITING_COMMANDS: usize = 16;

/// Time between groups of connection attempts. Without groups, on 2 cores with 16 hosts, the first pane waited for all
/// sixteen key exchanges; with 50 ms, the last one waited 0.17 s longer than with 25. The schedule is fixed in advance, so no
/// host waits for another one.
const GROUP_PERIOD: Duration = Duration::from_millis(25);
/// Latest start of the last group, regardless of the number of hosts.
const LAST_GROUP: Duration = Duration::from_secs(2);

/// Owns one task per host. Dropping it aborts all tasks and closes their connections.
pub struct HostTasks {
    /// By the id of the task; `None` for a task that was stopped.
    tasks: Vec<Option<RunningTask>>,
    presence: PresenceSender,
    presence_receiver: Presence,
    /// Weak, so that the receiver learns when all tasks have ended.
    updates: mpsc::WeakSender<QueuedUpdate>,
    source: Source,
    probes: Arc<dyn ProbeStore>,
    clock: Clock,
    set: JoinSet<()>,
    /// A moment at which a window for snapshots begins.
    origin: Instant,
    /// The number of hosts at the start, or now if there are more.
    hosts: usize,
}

/// The handles of a task.
struct RunningTask {
    commands: mpsc::Sender<Command>,
    abort: AbortHandle,
}

impl HostTasks {
    /// Starts one task per host and returns the receiver of their updates. Must be called within a tokio runtime. The
    /// tasks also end when the receiver is dropped.
    #[allow(clippy::needless_pass_by_value, reason = "the host tasks own the source")]
    pub fn start(hosts: &[Arc<HostConfig>], source: Source, clock: Clock) -> (Self, HostUpdates) {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_probes(hosts, &source, clock, &super::probe_binary::embedded_probes(), cores)
    }

    /// Like [`HostTasks::start`], with the given probes and number of cores.
    pub(super) fn with_probes(
        hosts: &[Arc<HostConfig>],
        source: &Source,
        clock: Clock,
        probes: &Arc<dyn ProbeStore>,
        cores: usize,
    ) -> (Self, HostUpdates) {
        let (updates, reports) = update_channel(WAITING_UPDATES);
        let (presence, presence_receiver) = presence_channel();
        let mut tasks = Self {
            tasks: Vec::with_capacity(hosts.len()),
            presence,
            presence_receiver,
            updates: updates.downgrade(),
            source: source.clone(),
            probes: Arc::clone(probes),
            clock,
            set: JoinSet::new(),
            origin: Instant::now(),
            hosts: hosts.len(),
        };
        for (index, config) in hosts.iter().enumerate() {
            tasks.spawn(config, &updates, start_delay(index as u32, cores, hosts.len()));
        }
        (tasks, reports)
    }

    /// Starts the task of one more host. Returns the id in its updates, or `None` if the receiver is gone or all tasks
    /// have ended. Must be called within a tokio runtime.
    pub fn add(&mut self, config: &Arc<HostConfig>) -> Option<HostId> {
        let updates = self.updates.upgrade()?;
        Some(self.spawn(config, &updates, Duration::ZERO))
    }

    /// Stops the task of a host and closes its connection. Updates that wait in the channel still arrive.
    pub fn stop(&mut self, task: HostId) {
        if let Some(task) = self.tasks.get_mut(task.0 as usize).and_then(Option::take) {
            task.abort.abort();
        }
    }

    fn spawn(
        &mut self,
        config: &Arc<HostConfig>,
        updates: &mpsc::Sender<QueuedUpdate>,
        start_delay: Duration,
    ) -> HostId {
        let id = HostId(self.tasks.len() as u32);
        let (commands, orders) = mpsc::channel(WAITING_COMMANDS);
        self.hosts = self.hosts.max(self.tasks.len() + 1);
        let task = HostTask {
            config: Arc::clone(config),
            source: self.source.clone(),
            probes: Arc::clone(&self.probes),
            clock: self.clock,
            start_delay,
            slot: Slot { origin: self.origin, index: self.tasks.len(), hosts: self.hosts },
            updates: UpdateSender::new(id, updates.clone()),
            presence: self.presence_receiver.clone(),
            commands: orders,
        };
        let abort = self.set.spawn(task.run());
        self.tasks.push(Some(RunningTask { commands, abort }));
        id
    }

    /// Records that a person used the screen. For some minutes, hosts that the network separates are tried more often.
    pub fn record_input(&self) {
        self.presence.record_input(Instant::now());
    }

    /// Sends a command to the task of a host without waiting. Returns `false` if there is no such host or its queue is
    /// full.
    pub fn command(&self, host: HostId, command: Command) -> bool {
        let task = self.tasks.get(host.0 as usize).and_then(Option::as_ref);
        task.is_some_and(|task| task.commands.try_send(command).is_ok())
    }
}

/// Returns when the host at `index` makes its first connection attempt, relative to the start.
fn start_delay(index: u32, cores: usize, hosts: usize) -> Duration {
    let group = |index: usize| u32::try_from(index / cores.max(1)).unwrap_or(u32::MAX);
    let last = GROUP_PERIOD.saturating_mul(group(hosts.saturating_sub(1)));
    let due = GROUP_PERIOD.saturating_mul(group(index as usize));
    if last > LAST_GROUP { due.mul_f64(LAST_GROUP.div_duration_f64(last)) } else { due }
}

#[cfg(test)]
mod tests {
    use super::super::alignment::arrival_window;
    use super::super::session::tests::hello;
    use super::*;
    use crate::fleet::HostUpdate;
    use crate::wire::codec::{LineBuffer, decode_json, encode};
    use crate::wire::{Message, PROTOCOL, Request, Snapshot};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::sleep_until;

    const INTERVAL: Duration = Duration::from_secs(2);

    /// A probe that first samples after `delay`, and moves its schedule on request unless it is an old one.
    async fn sample(mut stream: DuplexStream, delay: Duration, is_old: bool) {
        stream.write_all(&encode(&Message::Hello(hello(PROTOCOL))).unwrap()).await.unwrap();
        let (mut due, mut sequence) = (Instant::now() + delay, 0);
        let (mut requests, mut chunk) = (LineBuffer::default(), [0; 1024]);
        loop {
            tokio::select! {
                () = sleep_until(due) => {
                    sequence += 1;
                    let snapshot = Message::Snapshot(Box::new(Snapshot { sequence, ..Snapshot::default() }));
                    if stream.write_all(&encode(&snapshot).unwrap()).await.is_err() {
                        return;
                    }
                    due += INTERVAL;
                }
                read = stream.read(&mut chunk) => {
                    let Ok(count @ 1..) = read else { return };
                    requests.push(&chunk[..count]);
                    while let Some(line) = requests.next_line().unwrap() {
                        if let Ok(Request::Interval { shift_seconds: Some(shift), .. }) = decode_json(line)
                            && !is_old
                        {
                            due = due + INTERVAL.mul_f32(1.0 + shift / 2.0) - INTERVAL;
                        }
                    }
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn snapshots_of_all_hosts_arrive_within_a_window_except_those_of_an_older_probe() {
        const HOSTS: u32 = 16;
        const OLD: u32 = 5;
        let hosts: Vec<_> = (0..HOSTS).map(|id| Arc::new(HostConfig::named(format!("hgx-{id}")))).collect();
        let open = |id: HostId| {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(sample(theirs, Duration::from_millis(u64::from(id.0) * 613 % 2000), id.0 == OLD));
            Ok(ours)
        };
        let origin = Instant::now();
        let (_tasks, mut updates) = HostTasks::start(&hosts, Source::InProcess(Arc::new(open)), Clock::start(1.0));
        let window = arrival_window(HOSTS as usize, INTERVAL);
        let (mut arrivals, mut late) = (0, 0);
        while let Some((id, update)) = updates.recv().await {
            let since = origin.elapsed();
            if since > Duration::from_secs(60) {
                break;
            }
            if matches!(update, HostUpdate::Snapshot(_)) && since > Duration::from_secs(10) {
                let phase = Duration::from_millis((since.as_millis() % INTERVAL.as_millis()) as u64);
                arrivals += 1;
                // A slot may begin a little early.
                let is_aligned = phase <= window + Duration::from_millis(10) || phase >= Duration::from_millis(1990);
                assert_eq!(is_aligned, id.0 != OLD, "{id:?} {phase:?}");
                late += u32::from(id.0 == OLD);
            }
        }
        assert_eq!((arrivals, late), (16 * 25, 25));
    }

    #[test]
    fn hosts_begin_in_groups_and_the_last_one_soon() {
        let of = |cores, hosts| (0..hosts as u32).map(|index| start_delay(index, cores, hosts)).collect::<Vec<_>>();
        let milliseconds = |delays: &[Duration]| delays.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(milliseconds(&of(2, 6)), [0, 0, 25, 25, 50, 50]);
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
