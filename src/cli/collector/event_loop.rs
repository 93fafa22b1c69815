//! The event loop of the collector: host updates, ticks, requests to read the state, and signals.

use super::log::Log;
use super::state::{CollectorState, EndFuture, Query, StateReader};
use crate::cli::background_writer::BackgroundWriter;
use crate::cli::command_context::CommandContext;
use crate::cli::exit::{ReloadSignal, warn};
use crate::cli::heap::MemoryRelease;
use crate::cli::notify::Notifier;
use crate::cli::saved_state::SavedStateFile;
use crate::cli::{CommandError, ExitSignals};
use crate::collect::{Command, HostTasks, HostUpdates};
use crate::config::{HostConfig, Notifications};
use crate::diagnosis::proof::investigations::Investigations;
use crate::diagnosis::{Engine, Transition};
use crate::fleet::{Clock, Fleet, HostId, HostUpdate};
use crate::ssh::Context;
use crate::store::Directories;
use crate::wire::Reply;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// How long the end may take: files, hooks and observers. The whole program ends within 3 s.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The maximum number of waiting updates to apply before the loop checks for signals and readers.
const UPDATES_PER_ROUND: usize = 32;

/// Reads hosts.toml again; runs on a blocking thread.
pub(in crate::cli) type ReadHosts = Arc<dyn Fn() -> HostsRead + Send + Sync>;

/// The hosts and the `[notifications]` table of hosts.toml, or why it cannot be read.
pub(in crate::cli) type HostsRead = Result<(Vec<HostConfig>, Notifications), String>;

/// The running collector.
pub(in crate::cli) struct Collector {
    /// The fleet and its diagnosis. Add observers before [`Collector::run`].
    pub(in crate::cli) state: CollectorState,
    clock: Clock,
    host_tasks: HostTasks,
    updates: HostUpdates,
    /// The examinations of jobs that look hung.
    investigations: Investigations,
    /// The host of each task, by the id of the task; `None` after the task was stopped.
    host_of_task: Vec<Option<HostId>>,
    notifier: Notifier,
    notifications: Notifications,
    /// `None` for a simulation, whose state is not saved.
    state_file: Option<BackgroundWriter<SavedStateFile>>,
    memory_release: MemoryRelease,
    reader: StateReader,
    queries: mpsc::Receiver<Query>,
    exit_signals: ExitSignals,
    reload_signal: ReloadSignal,
    read_hosts: ReadHosts,
    /// hosts.toml is being read again.
    reload: Option<JoinHandle<HostsRead>>,
    /// The connections end with it.
    _context: Option<Arc<Context>>,
}

impl Collector {
    /// Connects to all hosts. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub(in crate::cli) fn start(setup: CommandContext, read_hosts: ReadHosts) -> Result<Self, CommandError> {
        let CommandContext { hosts, source, ssh, clock, simulated, notifications, .. } = setup;
        let (exit_signals, reload_signal) = ExitSignals::with_reload()?;
        let now = clock.now();
        let mut engine = Engine::default();
        let mut state_file = None;
        if !simulated {
            let (file, message) = SavedStateFile::load(&Directories::find(), &mut engine, now);
            state_file = file.map(BackgroundWriter::new);
            if let Some(message) = message {
                warn(&message);
            }
        }
        let fleet = Fleet::new(&hosts, simulated, now).with_clock_speed(clock.speed());
        let mut state = CollectorState::new(fleet, engine);
        state.observe(Log::default());
        let (host_tasks, updates) = HostTasks::start(&hosts, source, clock);
        let (reader, queries) = StateReader::channel();
        Ok(Self {
            state,
            clock,
            host_tasks,
            updates,
            investigations: Investigations::default(),
            host_of_task: (0..hosts.len() as u32).map(|id| Some(HostId(id))).collect(),
            notifier: Notifier::new(&notifications, false, false),
            notifications,
            state_file,
            memory_release: MemoryRelease::default(),
            reader,
            queries,
            exit_signals,
            reload_signal,
            read_hosts,
            reload: None,
            _context: ssh.map(|(context, _never_asked)| context),
        })
    }

    /// Returns a reader of the state for another task.
    pub(in crate::cli) fn reader(&self) -> StateReader {
        self.reader.clone()
    }

    /// Watches the hosts until a signal ends the program. Returns within 3 s of the signal.
    pub(in crate::cli) async fn run(mut self) {
        // One second of the fleet's clock, but at most 20 ticks per second for a fast simulation.
        let second = Duration::from_secs(1).div_f64(self.clock.speed()).max(Duration::from_millis(50));
        let mut tick = interval(second);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _code = self.exit_signals.next() => break,
                () = self.reload_signal.next() => self.start_reload(),
                read = finished(&mut self.reload) => {
                    self.reload = None;
                    self.take_hosts(read);
                }
                message = self.notifier.failure() => warn(&message),
                _ = tick.tick() => self.tick(),
                Some(query) = self.queries.recv() => query(&self.state, self.clock.now()),
                Some((task, update)) = self.updates.recv() => {
                    let mut next = Some((task, update));
                    for _ in 0..UPDATES_PER_ROUND {
                        let Some((task, update)) = next else { break };
                        // A task that was stopped may have left updates.
                        if let Some(host) = self.host_of_task.get(task.0 as usize).copied().flatten() {
                            if let HostUpdate::Reply(reply) = &update {
                                self.take_reply(host, reply);
                            }
                            let transitions = self.state.apply(host, update, self.clock.now());
                            self.notify(&transitions);
                        }
                        next = self.updates.try_recv();
                    }
                }
            }
        }
        self.finish().await;
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        let transitions = self.state.tick(now);
        self.notify(&transitions);
        self.examine_suspects();
        let _no_terminal = self.notifier.tick(&self.state.fleet, now);
        self.memory_release.tick();
        let Some(file) = &mut self.state_file else { return };
        if let Some(message) = file.take_message() {
            warn(&message);
        }
        if file.idle_file().is_some_and(|file| file.is_due(now)) {
            let saved = self.state.engine.to_saved_state(&self.state.fleet, now);
            file.start_write(move |file| file.save(saved, now));
        }
    }

    /// Sends the requests that are due about jobs that look hung.
    fn examine_suspects(&mut self) {
        let CollectorState { fleet, engine, .. } = &mut self.state;
        let requests = self.investigations.requests_due(fleet, engine, None, self.clock.now());
        for (host, request) in requests {
            let task = self.host_of_task.iter().position(|of_task| *of_task == Some(host));
            if let Some(task) = task {
                // A request that the task does not take fails like one without a reply.
                let _taken = self.host_tasks.command(HostId(task as u32), Command::Request(request));
            }
        }
    }

    /// Takes the reply to such a request.
    fn take_reply(&mut self, host: HostId, reply: &Reply) {
        let CollectorState { fleet, engine, .. } = &mut self.state;
        if self.investigations.take_reply(host, reply, fleet, engine, self.clock.now()) {
            self.examine_suspects();
        }
    }

    fn notify(&mut self, transitions: &[Transition]) {
        if !transitions.is_empty() {
            self.notifier.take(&self.state.engine.notifications(transitions));
        }
    }

    /// Reads hosts.toml again on a blocking thread, because it may be on a file server that does not answer.
    fn start_reload(&mut self) {
        if self.reload.is_none() {
            let read_hosts = Arc::clone(&self.read_hosts);
            self.reload = Some(tokio::task::spawn_blocking(move || read_hosts()));
        }
    }

    fn take_hosts(&mut self, read: Result<(Vec<HostConfig>, Notifications), String>) {
        match read {
            Ok((hosts, notifications)) => {
                let hosts: Vec<Arc<HostConfig>> = hosts.into_iter().map(Arc::new).collect();
                let changes = self.set_hosts(&hosts);
                warn(&format!("hosts.toml was read again: {changes}"));
                self.set_notifications(notifications);
            }
            Err(error) => warn(&format!("the hosts stay as they are: {}", error.trim_end())),
        }
    }

    /// Starts tasks for added hosts, stops those of removed hosts, and reconnects to changed ones.
    fn set_hosts(&mut self, hosts: &[Arc<HostConfig>]) -> HostChanges {
        let now = self.clock.now();
        let mut changes = HostChanges::default();
        let before: Vec<Arc<HostConfig>> =
            self.state.fleet.hosts().iter().map(|host| Arc::clone(&host.config)).collect();
        let ids = self.state.set_hosts(hosts, now);
        // They name hosts by their ids, and ask hosts as they were configured.
        let is_same = |(old, config): (HostId, &Arc<HostConfig>)| {
            let new = ids.get(old.0 as usize).copied().flatten();
            new == Some(old) && self.state.fleet.host(old).is_some_and(|host| host.config == *config)
        };
        if !(0..).map(HostId).zip(&before).all(is_same) {
            self.investigations.end_all();
        }
        let mut to_start = Vec::new();
        let mut to_stop = Vec::new();
        for (task, host) in (0..).map(HostId).zip(&mut self.host_of_task) {
            let Some(old) = host.take() else { continue };
            let new = ids.get(old.0 as usize).copied().flatten();
            let config = before.get(old.0 as usize);
            match new.and_then(|id| self.state.fleet.host(id)) {
                Some(kept) if config.is_some_and(|config| **config == *kept.config) => *host = new,
                Some(changed) => {
                    changes.changed += 1;
                    to_stop.push(task);
                    to_start.push((changed.id, Arc::clone(&changed.config)));
                }
                None => {
                    changes.removed += 1;
                    to_stop.push(task);
                }
            }
        }
        for host in self.state.fleet.hosts() {
            if !ids.contains(&Some(host.id)) {
                changes.added += 1;
                to_start.push((host.id, Arc::clone(&host.config)));
            }
        }
        // The new tasks first: without any task the channel would close.
        for (id, config) in to_start {
            if let Some(HostId(task)) = self.host_tasks.add(&config) {
                self.host_of_task.resize(task as usize + 1, None);
                self.host_of_task[task as usize] = Some(id);
            }
        }
        for task in to_stop {
            self.host_tasks.stop(task);
        }
        changes
    }

    /// Applies a changed `[notifications]` table. Hooks that run go on; findings that wait are sent first.
    fn set_notifications(&mut self, notifications: Notifications) {
        if notifications == self.notifications {
            return;
        }
        let old = std::mem::replace(&mut self.notifier, Notifier::new(&notifications, false, false));
        self.notifications = notifications;
        let (fleet, now) = (self.state.fleet.clone(), self.clock.now());
        tokio::spawn(async move {
            for message in old.finish(&fleet, now).await {
                warn(&message);
            }
        });
    }

    /// Closes the connections, then writes everything.
    async fn finish(mut self) {
        let end = Instant::now() + END_LIMIT;
        let now = self.clock.now();
        let Self { mut state, host_tasks, notifier, state_file, .. } = self;
        drop(host_tasks);
        self.queries.close();
        let ends: Vec<EndFuture> = state.finish(now);
        let state = &state;
        let save = async {
            let Some(file) = state_file else { return };
            let saved = state.engine.to_saved_state(&state.fleet, now);
            if let Some(message) = file.finish(END_LIMIT, move |file| file.save(saved, now)).await {
                warn(&message);
            }
        };
        let hooks = async {
            if let Ok(messages) = timeout_at(end, notifier.finish(&state.fleet, now)).await {
                for message in messages {
                    warn(&message);
                }
            }
        };
        let observers = async {
            if let Ok(messages) = timeout_at(end, futures::future::join_all(ends)).await {
                for message in messages.into_iter().flatten() {
                    warn(&message);
                }
            }
        };
        tokio::join!(save, hooks, observers);
    }
}

/// Waits until hosts.toml was read; forever if it is not being read.
async fn finished<T>(reload: &mut Option<JoinHandle<Result<T, String>>>) -> Result<T, String> {
    match reload {
        Some(reload) => reload.await.unwrap_or_else(|error| Err(format!("a task failed: {error}"))),
        None => std::future::pending().await,
    }
}

/// How many hosts a reload has changed.
#[derive(Debug, Default, PartialEq, Eq)]
struct HostChanges {
    added: usize,
    changed: usize,
    removed: usize,
}

impl std::fmt::Display for HostChanges {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { added, changed, removed } = self;
        if *self == Self::default() {
            return formatter.write_str("no host has changed");
        }
        let plural = |count: &usize| if *count == 1 { "host" } else { "hosts" };
        let parts = [(added, "added"), (changed, "changed"), (removed, "removed")];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| **count > 0)
            .map(|(count, word)| format!("{count} {} {word}", plural(count)))
            .collect();
        formatter.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_is_described() {
        let text = |added, changed, removed| HostChanges { added, changed, removed }.to_string();
        assert_eq!(text(0, 0, 0), "no host has changed");
        assert_eq!(text(1, 0, 2), "1 host added, 2 hosts removed");
        assert_eq!(text(0, 3, 0), "3 hosts changed");
    }
}
