//! The life of one host: connect, watch, wait, again. It shares nothing with any other host's.

use super::image::ProbeStore;
use super::install::{self, Order, Started};
use super::remote::Remote;
use super::report::{Gone, Report};
use super::session::{self, End, Session};
use super::source::{self, Source};
use super::{Command, backoff, failure, nvidia_smi, random, script};
use crate::fleet::{Clock, ConnectPhase, HostUpdate, LinkError, LinkErrorKind};
use crate::hosts::{HostConfig, ProbeChoice};
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
    pub(super) begins_after: Duration,
    pub(super) report: Report,
    pub(super) commands: mpsc::Receiver<Command>,
}

impl HostTask {
    /// Runs until nobody listens any more.
    pub(super) async fn run(self) {
        let interval = self.config.interval;
        let begins_after = self.begins_after;
        let mut life = Life { task: self, interval, failures: 0, last_kill: None, without_probe: None };
        if !begins_after.is_zero() && life.wait(Some(Instant::now() + begins_after)).await.is_err() {
            return;
        }
        while life.one_try().await.is_ok() {}
    }
}

/// What outlives a connection.
struct Life {
    task: HostTask,
    interval: Duration,
    /// How many tries have failed in a row.
    failures: u32,
    last_kill: Option<Instant>,
    /// Why the probe that was put there did not start: from then on `nvidia-smi` is asked, until a person tries again.
    without_probe: Option<LinkError>,
}

impl Life {
    /// Connects, watches until the end, tells why it ended, and waits as long as that asks for.
    async fn one_try(&mut self) -> Result<(), Gone> {
        let attempt = self.failures.saturating_add(1);
        self.task.report.send(HostUpdate::Connecting { attempt, phase: ConnectPhase::Queued }).await?;
        let (end, lived) = match self.connect(attempt).await {
            Ok(remote) => {
                let began = Instant::now();
                let Self { task: HostTask { report, commands, source, clock, .. }, interval, .. } = self;
                let tell_interval = matches!(source, Source::InProcess(_));
                // Real hosts live in real time, whatever the speed of the clock.
                let speed = if tell_interval { clock.speed() } else { 1.0 };
                let session = Session { report, commands, interval, attempt, tell_interval, speed };
                let end = session::run(remote, session).await;
                (end, began.elapsed())
            }
            Err(end) => (end, Duration::ZERO),
        };
        let error = match end {
            End::Gone => return Err(Gone),
            End::Failed(error) => error,
            // Nothing is known to have failed: after a laptop slept its connections are as a rule what is gone.
            End::Doubted => return Ok(()),
            End::Ended(ending, farewell) => {
                let now = Instant::now();
                let killed_before = self.last_kill.is_some_and(|kill| now - kill < failure::LEFT_ALONE);
                if failure::is_kill(&ending.exit) {
                    self.last_kill = Some(now);
                }
                let error = failure::probe_ended(&ending, farewell.as_ref(), killed_before);
                if error.kind == LinkErrorKind::NoProbe && self.task.config.probe == ProbeChoice::Upload {
                    self.without_probe = Some(error.clone());
                }
                error
            }
        };
        self.failures = if lived >= backoff::STEADY { 1 } else { self.failures.saturating_add(1) };
        self.tell_and_wait(error).await
    }

    async fn tell_and_wait(&mut self, error: LinkError) -> Result<(), Gone> {
        let delay = backoff::delay(error.retry, self.failures, random::unit());
        let until = delay.map(|delay| Instant::now() + delay);
        if source::needs_user(&error) {
            self.task.report.send(HostUpdate::NeedsUser(error)).await?;
        } else {
            let retry_at = delay.map(|delay| self.task.clock.after(delay));
            self.task.report.send(HostUpdate::Down { error, retry_at, attempt: self.failures }).await?;
        }
        self.wait(until).await
    }

    /// Waits for that moment, or for a person who does not want to.
    async fn wait(&mut self, until: Option<Instant>) -> Result<(), Gone> {
        loop {
            tokio::select! {
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return Ok(()),
                () = self.task.report.gone() => return Err(Gone),
                command = self.task.commands.recv() => match command {
                    None => return Err(Gone),
                    Some(Command::Retry) => {
                        self.without_probe = None;
                        return Ok(());
                    }
                    Some(other) => self.set_aside(other).await?,
                },
            }
        }
    }

    /// Takes a command for which there is no probe now.
    async fn set_aside(&mut self, command: Command) -> Result<(), Gone> {
        match command {
            Command::Retry => Ok(()),
            Command::Interval(interval) => {
                self.interval = interval;
                Ok(())
            }
            Command::Request(request) => match refuse(&request, "the host is not connected") {
                Some(reply) => self.task.report.send(reply).await,
                None => Ok(()),
            },
        }
    }

    async fn connect(&mut self, attempt: u32) -> Result<Remote, End> {
        let channel = match self.task.source.clone() {
            Source::InProcess(open) => {
                self.phase(attempt, ConnectPhase::Probe).await?;
                let stream = open(self.task.report.id()).map_err(End::Failed)?;
                return Ok(Remote::new(source::channel_of(stream)));
            }
            Source::Ssh(ssh) => self.open(attempt, ssh).await?,
        };
        let mut remote = Remote::new(channel);
        let nonce = random::nonce();
        let order = Order {
            host: &self.task.config,
            interval: self.interval,
            probes: &*self.task.probes,
            nonce: &nonce,
            places: install::places(&self.task.config),
            without_probe: self.without_probe.as_ref(),
            tell: &|_| {},
        };
        tokio::select! {
            started = install::start(&mut remote, &order) => match started.map_err(End::Failed)? {
                Started::Probe => Ok(remote),
                Started::Shell(why) => {
                    let why = why.map(|error| error.message);
                    Ok(nvidia_smi::over(remote, nonce, self.interval, why))
                }
            },
            () = self.task.report.gone() => Err(End::Gone),
        }
    }

    async fn open(&mut self, attempt: u32, ssh: Arc<dyn source::OpenChannel>) -> Result<Channel, End> {
        let (entered, mut phases) = watch::channel(SshPhase::Queued);
        let progress = move |phase| {
            entered.send_if_modified(|current| std::mem::replace(current, phase) != phase);
        };
        let config = Arc::clone(&self.task.config);
        let mut opening = pin!(ssh.open(&config, script::EXEC, &progress));
        let mut told = ConnectPhase::Queued;
        loop {
            tokio::select! {
                opened = &mut opening => {
                    let channel = opened.map_err(|error| End::Failed(source::link_error(&error)))?;
                    if told != ConnectPhase::Probe {
                        self.phase(attempt, ConnectPhase::Probe).await?;
                    }
                    return Ok(channel);
                }
                Ok(()) = phases.changed() => {
                    let phase = source::phase(*phases.borrow_and_update());
                    if phase != told {
                        told = phase;
                        self.phase(attempt, phase).await?;
                    }
                }
                () = self.task.report.gone() => return Err(End::Gone),
                command = self.task.commands.recv() => match command {
                    None => return Err(End::Gone),
                    Some(command) => self.set_aside(command).await?,
                },
            }
        }
    }

    async fn phase(&self, attempt: u32, phase: ConnectPhase) -> Result<(), Gone> {
        self.task.report.send(HostUpdate::Connecting { attempt, phase }).await
    }
}

/// The reply to a request that cannot be passed on; `None` for requests that nobody waits for.
pub(super) fn refuse(request: &Request, why: &str) -> Option<HostUpdate> {
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
