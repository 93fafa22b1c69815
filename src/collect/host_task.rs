//! The task of one host: connect, run a session, wait, reconnect. Tasks of different hosts share nothing.

use super::alignment::Slot;
use super::channels::{Command, Presence, ReceiverDropped, UpdateSender, refusal_reply};
use super::earlier_slurm_jobs::EarlierSlurmJobs;
use super::install::{self, InstallRequest, Started};
use super::probe_binary::ProbeStore;
use super::remote_command::{self, RemoteCommand, Source};
use super::session::{self, Session, SessionEnd};
use super::{error, nvidia_smi, script};
use crate::config::{HostConfig, ProbeChoice};
use crate::fleet::{Clock, ConnectPhase, HostUpdate, LinkError, LinkErrorKind, RetryPolicy};
use crate::ssh::transport::{Channel, SshPhase};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// The task of one host.
pub(super) struct HostTask {
    pub(super) config: Arc<HostConfig>,
    pub(super) source: Source,
    pub(super) probes: Arc<dyn ProbeStore>,
    pub(super) clock: Clock,
    /// Delay before the first connection attempt.
    pub(super) start_delay: Duration,
    pub(super) slot: Slot,
    pub(super) updates: UpdateSender,
    pub(super) presence: Presence,
    pub(super) commands: mpsc::Receiver<Command>,
}

impl HostTask {
    /// Runs until the receiver of the updates is dropped.
    pub(super) async fn run(self) {
        let interval = self.config.interval;
        let start_delay = self.start_delay;
        let mut connection_loop = ConnectionLoop {
            task: self,
            interval,
            failures: 0,
            last_kill: None,
            without_probe: None,
            earlier_slurm_jobs: EarlierSlurmJobs::default(),
        };
        if !start_delay.is_zero() && connection_loop.wait(Some(Instant::now() + start_delay), false).await.is_err() {
            return;
        }
        while connection_loop.connect_once().await.is_ok() {}
    }
}

/// State that outlives a connection.
struct ConnectionLoop {
    task: HostTask,
    interval: Duration,
    /// Number of consecutive failures.
    failures: u32,
    last_kill: Option<Instant>,
    /// Why the uploaded probe did not start. If set, `nvidia-smi` is used until the user asks for a reconnect.
    without_probe: Option<LinkError>,
    earlier_slurm_jobs: EarlierSlurmJobs,
}

impl ConnectionLoop {
    /// Connects, runs the session to its end, reports why it ended, and waits before the next attempt.
    async fn connect_once(&mut self) -> Result<(), ReceiverDropped> {
        let attempt = self.failures.saturating_add(1);
        self.task.updates.send(HostUpdate::Connecting { attempt, phase: ConnectPhase::Queued }).await?;
        let (end, lived) = match self.connect(attempt).await {
            Ok(remote) => {
                let began = Instant::now();
                let Self {
                    task: HostTask { updates, commands, source, clock, slot, .. },
                    interval,
                    earlier_slurm_jobs,
                    ..
                } = self;
                let send_interval = matches!(source, Source::InProcess(_));
                // Only simulated hosts follow the speed of the clock.
                let speed = if send_interval { clock.speed() } else { 1.0 };
                let session = Session {
                    updates,
                    commands,
                    interval,
                    attempt,
                    send_interval,
                    speed,
                    slot: *slot,
                    earlier_slurm_jobs,
                };
                let end = session::run(remote, session).await;
                (end, began.elapsed())
            }
            Err(end) => (end, Duration::ZERO),
        };
        let error = match end {
            SessionEnd::ReceiverDropped => return Err(ReceiverDropped),
            SessionEnd::Failed(error) => error,
            // The host has not failed: after suspend, usually only the connections of the laptop are gone.
            SessionEnd::Unverified => return Ok(()),
            SessionEnd::Ended(end, farewell) => {
                let now = Instant::now();
                let killed_before = self.last_kill.is_some_and(|kill| now - kill < error::ADMIN_STOP_DELAY);
                if error::is_kill(&end.exit) {
                    self.last_kill = Some(now);
                }
                let error = error::probe_ended(&end, farewell.as_ref(), killed_before);
                if error.kind == LinkErrorKind::NoProbe && self.task.config.probe == ProbeChoice::Upload {
                    self.without_probe = Some(error.clone());
                }
                error
            }
        };
        self.failures = if lived >= STABLE_CONNECTION { 1 } else { self.failures.saturating_add(1) };
        self.report_and_wait(error).await
    }

    async fn report_and_wait(&mut self, error: LinkError) -> Result<(), ReceiverDropped> {
        if error::needs_user(&error) {
            let delay = retry_delay(error.retry, self.failures, LAST_CEILING, fastrand::f64());
            self.task.updates.send(HostUpdate::NeedsUser(error)).await?;
            return self.wait(delay.map(|delay| Instant::now() + delay), false).await.map(|_| ());
        }
        let is_shortened = error::concerns_network(error.kind);
        loop {
            let is_present = self.task.presence.is_present(Instant::now());
            let ceiling = if is_shortened && is_present { WATCHED_CEILING } else { LAST_CEILING };
            let delay = retry_delay(error.retry, self.failures, ceiling, fastrand::f64());
            let retry_at = delay.map(|delay| self.task.clock.after(delay));
            let down = HostUpdate::Down { error: error.clone(), retry_at, attempt: self.failures };
            self.task.updates.send(down).await?;
            let until = delay.map(|delay| Instant::now() + delay);
            let ends_for_user = is_shortened && !is_present && delay.is_some_and(|delay| delay > WATCHED_CEILING);
            match self.wait(until, ends_for_user).await? {
                WaitEnd::Retry => return Ok(()),
                WaitEnd::UserReturned => {}
            }
        }
    }

    /// Waits until the given time, or until the user asks for a reconnect. `None` waits for the user only. If
    /// `ends_for_user`, a person who returns to the screen ends the wait as well.
    async fn wait(&mut self, until: Option<Instant>, ends_for_user: bool) -> Result<WaitEnd, ReceiverDropped> {
        loop {
            tokio::select! {
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return Ok(WaitEnd::Retry),
                () = self.task.presence.wait_for_input(), if ends_for_user => return Ok(WaitEnd::UserReturned),
                () = self.task.updates.closed() => return Err(ReceiverDropped),
                command = self.task.commands.recv() => match command {
                    None => return Err(ReceiverDropped),
                    Some(Command::Retry) => {
                        self.without_probe = None;
                        return Ok(WaitEnd::Retry);
                    }
                    Some(other) => self.handle_while_disconnected(other).await?,
                },
            }
        }
    }

    /// Handles a command while no probe is connected.
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
                return Ok(RemoteCommand::new(remote_command::channel_from_stream(stream)));
            }
            Source::Ssh(ssh) => self.open(attempt, ssh).await?,
        };
        let mut remote = RemoteCommand::new(channel);
        let nonce = script::new_nonce();
        let request = InstallRequest {
            host: &self.task.config,
            interval: self.interval,
            probes: &*self.task.probes,
            nonce: &nonce,
            shared_directories: install::shared_directories(&self.task.config),
            without_probe: self.without_probe.as_ref(),
            on_event: &|_| {},
        };
        let stderr_over_limit = remote.stderr_over_limit();
        tokio::select! {
            () = stderr_over_limit => Err(SessionEnd::Failed(error::too_much_stderr())),
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

    async fn open(&mut self, attempt: u32, ssh: Arc<dyn remote_command::OpenChannel>) -> Result<Channel, SessionEnd> {
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
                    let channel = opened.map_err(|error| SessionEnd::Failed(error::from_ssh(&error)))?;
                    if reported_phase != ConnectPhase::Probe {
                        self.phase(attempt, ConnectPhase::Probe).await?;
                    }
                    return Ok(channel);
                }
                Ok(()) = phases.changed() => {
                    let phase = error::connect_phase(*phases.borrow_and_update());
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

/// Why a wait before the next attempt ended.
enum WaitEnd {
    /// The time is over, or the user asked for a reconnect.
    Retry,
    /// A person returned to the screen.
    UserReturned,
}

/// Upper bound of the delay after the first failure; it doubles with each further one.
const FIRST_CEILING: Duration = Duration::from_secs(1);
/// Upper bound of every delay.
const LAST_CEILING: Duration = Duration::from_secs(60);
/// Upper bound of every delay while a person watches and the network may be at fault. It may return at any moment.
const WATCHED_CEILING: Duration = Duration::from_secs(5);
/// Lower bound of every delay, so that jitter cannot cause a busy loop.
const MIN_DELAY: Duration = Duration::from_millis(250);
/// A fixed delay grows by up to this fraction, so that many hosts do not reconnect at the same time.
const MAX_SPREAD: f64 = 0.1;

/// A connection that lasts this long resets the failure count. A shorter one counts as a failure, so that a probe that is
/// killed right after its first sample is not restarted twice a second.
pub(super) const STABLE_CONNECTION: Duration = Duration::from_secs(60);

/// Returns the delay after `failures` consecutive failures, or `None` if only the user may reconnect. `random` is uniform
/// in 0..1.
///
/// Uses full jitter: uniform between 0 and a ceiling that doubles from 1 s to `last_ceiling` ("Exponential Backoff And
/// Jitter", AWS Architecture Blog, 2015).
fn retry_delay(retry: RetryPolicy, failures: u32, last_ceiling: Duration, random: f64) -> Option<Duration> {
    let random = random.clamp(0.0, 1.0);
    match retry {
        RetryPolicy::OnRequest => None,
        RetryPolicy::After(least) => Some(least + least.mul_f64(MAX_SPREAD * random)),
        RetryPolicy::Backoff => Some(ceiling(failures).min(last_ceiling).mul_f64(random).max(MIN_DELAY)),
    }
}

fn ceiling(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (FIRST_CEILING * 2_u32.pow(doublings)).min(LAST_CEILING)
}

#[cfg(test)]
#[path = "host_task_tests.rs"]
mod tests;

#[cfg(test)]
mod retry_tests {
    use super::*;

    #[test]
    fn the_ceiling_doubles_and_stops_at_a_minute() {
        let ceilings: Vec<u64> = (0..10).map(|failures| ceiling(failures).as_secs()).collect();
        assert_eq!(ceilings, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(ceiling(u32::MAX), LAST_CEILING);
    }

    #[test]
    fn the_wait_is_spread_over_the_whole_range_and_never_nothing() {
        let delay = |failures, random| retry_delay(RetryPolicy::Backoff, failures, LAST_CEILING, random);
        assert_eq!(delay(5, 0.0), Some(MIN_DELAY));
        assert_eq!(delay(5, 0.5), Some(Duration::from_secs(8)));
        assert_eq!(delay(u32::MAX, 1.0), Some(LAST_CEILING));
        assert_eq!(delay(3, f64::NAN.max(0.0)), Some(MIN_DELAY));
    }

    #[test]
    fn a_watched_host_is_tried_again_within_5_s() {
        let delay = |failures, random| retry_delay(RetryPolicy::Backoff, failures, WATCHED_CEILING, random);
        assert_eq!(delay(u32::MAX, 1.0), Some(Duration::from_secs(5)));
        assert_eq!(delay(6, 0.5), Some(Duration::from_millis(2500)));
        assert_eq!(delay(1, 1.0), Some(FIRST_CEILING), "the first delays stay short");
        let five_minutes = RetryPolicy::After(Duration::from_secs(300));
        assert_eq!(retry_delay(five_minutes, 9, WATCHED_CEILING, 0.0), Some(Duration::from_secs(300)));
        assert_eq!(retry_delay(RetryPolicy::OnRequest, 1, WATCHED_CEILING, 0.5), None);
    }

    #[test]
    fn a_wait_that_was_asked_for_is_kept() {
        let five_minutes = Duration::from_secs(300);
        let delay = |retry, failures, random| retry_delay(retry, failures, LAST_CEILING, random);
        assert_eq!(delay(RetryPolicy::After(five_minutes), 1, 0.0), Some(five_minutes));
        assert_eq!(delay(RetryPolicy::After(five_minutes), 9, 1.0), Some(Duration::from_secs(330)));
        assert_eq!(delay(RetryPolicy::OnRequest, 1, 0.5), None);
    }
}
