//! The life of one host: connect, watch, wait, again. It shares nothing with any other host's.

use super::install::{self, InstallRequest, Started};
use super::probe_binary::ProbeStore;
use super::remote_command::RemoteCommand;
use super::session::{self, Session, SessionEnd};
use super::source::{self, Source};
use super::update_sender::{ReceiverDropped, UpdateSender};
use super::{Command, backoff, link_errors, nvidia_smi, random, script};
use crate::config::{HostConfig, ProbeChoice};
use crate::fleet::{Clock, ConnectPhase, HostUpdate, LinkError, LinkErrorKind};
use crate::ssh::transport::{Channel, SshPhase};
use crate::wire::{Reply, ReplyOutcome, Request};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// One host's task.
pub(super) struct HostTask {
    pub(super) config: Arc<HostConfig>,
    pub(super) source: Source,
    pub(super) probes: Arc<dyn ProbeStore>,
    pub(super) clock: Clock,
    /// When the first try begins, counted from the start of the task.
    pub(super) start_delay: Duration,
    pub(super) updates: UpdateSender,
    pub(super) commands: mpsc::Receiver<Command>,
}

impl HostTask {
    /// Runs until nobody listens any more.
    pub(super) async fn run(self) {
        let interval = self.config.interval;
        let start_delay = self.start_delay;
        let mut connection_loop =
            ConnectionLoop { task: self, interval, failures: 0, last_kill: None, without_probe: None };
        if !start_delay.is_zero() && connection_loop.wait(Some(Instant::now() + start_delay)).await.is_err() {
            return;
        }
        while connection_loop.connect_once().await.is_ok() {}
    }
}

/// What outlives a connection.
struct ConnectionLoop {
    task: HostTask,
    interval: Duration,
    /// How many tries have failed in a row.
    failures: u32,
    last_kill: Option<Instant>,
    /// Why the probe that was put there did not start: from then on `nvidia-smi` is asked, until a person tries again.
    without_probe: Option<LinkError>,
}

impl ConnectionLoop {
    /// Connects, watches until the end, tells why it ended, and waits as long as that asks for.
    async fn connect_once(&mut self) -> Result<(), ReceiverDropped> {
        let attempt = self.failures.saturating_add(1);
        self.task.updates.send(HostUpdate::Connecting { attempt, phase: ConnectPhase::Queued }).await?;
        let (end, lived) = match self.connect(attempt).await {
            Ok(remote) => {
                let began = Instant::now();
                let Self { task: HostTask { updates, commands, source, clock, .. }, interval, .. } = self;
                let send_interval = matches!(source, Source::InProcess(_));
                // Real hosts live in real time, whatever the speed of the clock.
                let speed = if send_interval { clock.speed() } else { 1.0 };
                let session = Session { updates, commands, interval, attempt, send_interval, speed };
                let end = session::run(remote, session).await;
                (end, began.elapsed())
            }
            Err(end) => (end, Duration::ZERO),
        };
        let error = match end {
            SessionEnd::ReceiverDropped => return Err(ReceiverDropped),
            SessionEnd::Failed(error) => error,
            // Nothing is known to have failed: after a laptop slept its connections are as a rule what is gone.
            SessionEnd::Unverified => return Ok(()),
            SessionEnd::Ended(end, farewell) => {
                let now = Instant::now();
                let killed_before = self.last_kill.is_some_and(|kill| now - kill < link_errors::ADMIN_STOP_DELAY);
                if link_errors::is_kill(&end.exit) {
                    self.last_kill = Some(now);
                }
                let error = link_errors::probe_ended(&end, farewell.as_ref(), killed_before);
                if error.kind == LinkErrorKind::NoProbe && self.task.config.probe == ProbeChoice::Upload {
                    self.without_probe = Some(error.clone());
                }
                error
            }
        };
        self.failures = if lived >= backoff::STABLE_CONNECTION { 1 } else { self.failures.saturating_add(1) };
        self.report_and_wait(error).await
    }

    async fn report_and_wait(&mut self, error: LinkError) -> Result<(), ReceiverDropped> {
        let delay = backoff::delay(error.retry, self.failures, random::unit());
        let until = delay.map(|delay| Instant::now() + delay);
        if source::needs_user(&error) {
            self.task.updates.send(HostUpdate::NeedsUser(error)).await?;
        } else {
            let retry_at = delay.map(|delay| self.task.clock.after(delay));
            self.task.updates.send(HostUpdate::Down { error, retry_at, attempt: self.failures }).await?;
        }
        self.wait(until).await
    }

    /// Waits for that moment, or for a person who does not want to.
    async fn wait(&mut self, until: Option<Instant>) -> Result<(), ReceiverDropped> {
        loop {
            tokio::select! {
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return Ok(()),
                () = self.task.updates.closed() => return Err(ReceiverDropped),
                command = self.task.commands.recv() => match command {
                    None => return Err(ReceiverDropped),
                    Some(Command::Retry) => {
                        self.without_probe = None;
                        return Ok(());
                    }
                    Some(other) => self.handle_while_disconnected(other).await?,
                },
            }
        }
    }

    /// Takes a command for which there is no probe now.
    async fn handle_while_disconnected(&mut self, command: Command) -> Result<(), ReceiverDropped> {
        match command {
            Command::Retry => Ok(()),
            Command::Interval(interval) => {
                self.interval = interval;
                Ok(())
            }
            Command::Request(request) => match refusal_reply(&request, "the host is not connected") {
                Some(reply) => self.task.updates.send(reply).await,
                None => Ok(()),
            },
        }
    }

    async fn connect(&mut self, attempt: u32) -> Result<RemoteCommand, SessionEnd> {
        let channel = match self.task.source.clone() {
            Source::InProcess(open) => {
                self.phase(attempt, ConnectPhase::Probe).await?;
                let stream = open(self.task.updates.id()).map_err(SessionEnd::Failed)?;
                return Ok(RemoteCommand::new(source::channel_from_stream(stream)));
            }
            Source::Ssh(ssh) => self.open(attempt, ssh).await?,
        };
        let mut remote = RemoteCommand::new(channel);
        let nonce = random::nonce();
        let request = InstallRequest {
            host: &self.task.config,
            interval: self.interval,
            probes: &*self.task.probes,
            nonce: &nonce,
            shared_directories: install::shared_directories(&self.task.config),
            without_probe: self.without_probe.as_ref(),
            on_event: &|_| {},
        };
        tokio::select! {
            started = install::start(&mut remote, &request) => match started.map_err(SessionEnd::Failed)? {
                Started::Probe => Ok(remote),
                Started::Shell(why) => {
                    let why = why.map(|error| error.message);
                    Ok(nvidia_smi::adapt(remote, nonce, self.interval, why))
                }
            },
            () = self.task.updates.closed() => Err(SessionEnd::ReceiverDropped),
        }
    }

    async fn open(&mut self, attempt: u32, ssh: Arc<dyn source::OpenChannel>) -> Result<Channel, SessionEnd> {
        let (entered, mut phases) = watch::channel(SshPhase::Queued);
        let progress = move |phase| {
            entered.send_if_modified(|current| std::mem::replace(current, phase) != phase);
        };
        let config = Arc::clone(&self.task.config);
        let mut opening = pin!(ssh.open(&config, script::EXEC, &progress));
        let mut reported_phase = ConnectPhase::Queued;
        loop {
            tokio::select! {
                opened = &mut opening => {
                    let channel = opened.map_err(|error| SessionEnd::Failed(source::link_error(&error)))?;
                    if reported_phase != ConnectPhase::Probe {
                        self.phase(attempt, ConnectPhase::Probe).await?;
                    }
                    return Ok(channel);
                }
                Ok(()) = phases.changed() => {
                    let phase = source::phase(*phases.borrow_and_update());
                    if phase != reported_phase {
                        reported_phase = phase;
                        self.phase(attempt, phase).await?;
                    }
                }
                () = self.task.updates.closed() => return Err(SessionEnd::ReceiverDropped),
                command = self.task.commands.recv() => match command {
                    None => return Err(SessionEnd::ReceiverDropped),
                    Some(command) => self.handle_while_disconnected(command).await?,
                },
            }
        }
    }

    async fn phase(&self, attempt: u32, phase: ConnectPhase) -> Result<(), ReceiverDropped> {
        self.task.updates.send(HostUpdate::Connecting { attempt, phase }).await
    }
}

/// The reply to a request that cannot be passed on; `None` for requests that nobody waits for.
pub(super) fn refusal_reply(request: &Request, why: &str) -> Option<HostUpdate> {
    match request {
        Request::Signal { id, .. } | Request::Environment { id, .. } | Request::LogTail { id, .. } => {
            Some(HostUpdate::Reply(Reply { id: *id, outcome: ReplyOutcome::Refused(why.into()) }))
        }
        Request::Heartbeat { .. } | Request::Interval { .. } | Request::Resend => None,
    }
}

#[cfg(test)]
#[path = "host_task_tests.rs"]
mod tests;
