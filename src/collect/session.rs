//! One connection, from the first line of the probe to its end: decodes lines, sends updates and heartbeats, and detects
//! silence. SSH channels and simulated probes use the same code.

use super::alignment::{Alignment, Slot};
use super::channels::{Command, ReceiverDropped, UpdateSender, refusal_reply};
use super::earlier_slurm_jobs::EarlierSlurmJobs;
use super::error;
use super::misbehavior::Detector;
use super::read_budget::ReadBudget;
use super::remote_command::{CommandEnd, RemoteCommand, RemoteOutput};
use crate::config::HostConfig;
use crate::fleet::{ConnectPhase, HostUpdate, LinkError, LinkErrorKind, Misbehavior};
use crate::wire::codec::{MAX_LINE_BYTES, decode, encode};
use crate::wire::{Message, PROTOCOL, Request, SafeText};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Interval of heartbeats if snapshots are rarer. A probe exits after 30 s without a heartbeat.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(2);
/// Extra time a heartbeat waits for the next snapshot, which proves the connection just as well and is acknowledged by
/// the heartbeat it causes. The echo still arrives before the host becomes stale.
const SNAPSHOT_LATE: Duration = Duration::from_millis(500);
/// Below this interval every snapshot is acknowledged; from here on every second one, which halves packets and wake-ups.
/// A round trip of up to a second still loses no snapshot.
const ACKNOWLEDGE_EACH_BELOW: Duration = Duration::from_secs(1);
/// Without a line for this long, the host is stale.
pub(super) const STALE: Duration = Duration::from_secs(3);
/// Without a byte for this long, the connection is dropped.
pub(super) const DROPPED: Duration = Duration::from_secs(10);
/// Without a complete line for this long, the connection is dropped although bytes arrive. No usable link is so slow.
pub(super) const LINE_LIMIT: Duration = Duration::from_secs(120);
/// Without a snapshot for this many intervals, and at least [`STALE`], the host is stale although other lines arrive. After
/// [`DROPPED`] more, the connection is dropped.
const STALE_INTERVALS: u32 = 3;
/// Time for the next line (or readings, if late) of a connection that must be verified: after suspend, or on request.
pub(super) const VERIFY_LIMIT: Duration = Duration::from_secs(4);
/// Time limit for the hello.
pub(super) const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the first snapshot; a driver may need seconds to initialise.
pub(super) const SAMPLE_LIMIT: Duration = Duration::from_secs(30);
/// Limit of bytes that wait because the host is limited. A probe stays below it: it sends at most two snapshots beyond the
/// last acknowledged one. A host that sends more is disconnected, because a channel that nobody reads also stops the other
/// hosts behind its jump host.
const BACKLOG_LIMIT_BYTES: usize = 4 * MAX_LINE_BYTES;
/// How often the fleet learns that a host misbehaves, as long as that is so.
const MISBEHAVIOR_PERIOD: Duration = Duration::from_secs(10);
/// Limit of unsent requests. Requests beyond it are refused.
const PENDING_LIMIT_BYTES: usize = 16 * 1024;

/// How a session ended.
#[derive(Debug)]
pub(super) enum SessionEnd {
    /// The receiver of the updates is gone.
    ReceiverDropped,
    /// This side dropped the connection.
    Failed(LinkError),
    /// The connection did not pass verification. The host may be fine; reconnect at once.
    Unverified,
    /// The remote command ended, after an optional farewell.
    Ended(CommandEnd, Option<SafeText>),
}

impl From<ReceiverDropped> for SessionEnd {
    fn from(ReceiverDropped: ReceiverDropped) -> Self {
        Self::ReceiverDropped
    }
}

/// The parts of a host task that a session uses.
pub(super) struct Session<'a> {
    pub(super) updates: &'a UpdateSender,
    pub(super) commands: &'a mut mpsc::Receiver<Command>,
    /// The sampling interval; commands change it.
    pub(super) interval: &'a mut Duration,
    /// Number of this connection attempt.
    pub(super) attempt: u32,
    /// Whether the probe must get the interval as a request, because it has no command line.
    pub(super) send_interval: bool,
    /// Speed of the probe's clock relative to real time; differs from 1 for simulated hosts only.
    pub(super) speed: f64,
    /// When the snapshots of the host should arrive.
    pub(super) slot: Slot,
    /// Outlives the connection.
    pub(super) earlier_slurm_jobs: &'a mut EarlierSlurmJobs,
}

/// Runs until the connection ends.
pub(super) async fn run(mut remote: RemoteCommand, session: Session<'_>) -> SessionEnd {
    let mut state = SessionState {
        updates: session.updates,
        attempt: session.attempt,
        started: Instant::now(),
        interval: *session.interval,
        speed: session.speed,
        last_line: Instant::now(),
        partial_line_at: None,
        stale: false,
        last_readings: Instant::now(),
        probe_interval: Duration::ZERO,
        late: false,
        readings_by: None,
        verify_since: None,
        hello: false,
        sampled: false,
        farewell: None,
        next_heartbeat: None,
        heartbeat: None,
        heartbeat_id: 0,
        sequence: None,
        acknowledged: 0,
        pending: Vec::new(),
        budget: ReadBudget::new(Instant::now(), session.speed),
        detector: Detector::new(Instant::now(), session.speed),
        misbehavior_reported_at: [None; Misbehavior::ALL.len()],
        alignment: Alignment::new(session.slot),
        snapshots: 0,
        earlier_slurm_jobs: session.earlier_slurm_jobs,
    };
    let earlier_slurm_jobs = state.earlier_slurm_jobs.begin_connection(Instant::now());
    if session.send_interval || !earlier_slurm_jobs.is_empty() {
        state.queue_interval(None, earlier_slurm_jobs);
    }
    let mut stderr_over_limit = std::pin::pin!(remote.stderr_over_limit());
    loop {
        // The buffer may already hold lines that arrived with the last answer of the script.
        match state.take_lines(&mut remote.stdout).await {
            Ok(()) => {}
            Err(end) => return end,
        }
        let heartbeat_at = state.next_heartbeat;
        let read_at = state.budget.wait_until(Instant::now());
        tokio::select! {
            () = &mut stderr_over_limit => return SessionEnd::Failed(error::too_much_stderr()),
            () = sleep_until(read_at.unwrap_or_else(Instant::now)), if read_at.is_some() => {}
            more = remote.stdout.fill() => {
                if !more {
                    return SessionEnd::Ended(remote.wait_for_end().await, state.farewell);
                }
                state.partial_line_at = Some(Instant::now());
                if remote.stdout.lines.remaining().len() > BACKLOG_LIMIT_BYTES {
                    return SessionEnd::Failed(error::sends_too_much());
                }
            }
            written = remote.stdin.write(&state.pending), if state.hello && !state.pending.is_empty() => match written {
                Ok(count @ 1..) => {
                    state.pending.drain(..count);
                    if state.pending.is_empty() && remote.stdin.flush().await.is_err() {
                        return SessionEnd::Ended(remote.wait_for_end().await, state.farewell);
                    }
                }
                Ok(0) | Err(_) => return SessionEnd::Ended(remote.wait_for_end().await, state.farewell),
            },
            () = sleep_until(heartbeat_at.unwrap_or_else(Instant::now)), if heartbeat_at.is_some() => {
                state.queue_heartbeat();
            }
            () = sleep_until(state.deadline()) => match state.on_deadline().await {
                Ok(()) => {}
                Err(end) => return end,
            },
            command = session.commands.recv() => match command {
                None => return SessionEnd::ReceiverDropped,
                Some(Command::Retry) => state.require_line_soon(),
                Some(Command::Interval(interval)) => {
                    *session.interval = interval;
                    state.interval = interval;
                    state.queue_interval(None, Vec::new());
                }
                Some(Command::Request(request)) => {
                    if !state.queue(&request)
                        && let Some(reply) = refusal_reply(&request, "the connection cannot take requests now")
                        && session.updates.send(reply).await.is_err()
                    {
                        return SessionEnd::ReceiverDropped;
                    }
                }
            },
        }
    }
}

#[allow(clippy::struct_excessive_bools, reason = "independent states of the connection")]
struct SessionState<'a> {
    updates: &'a UpdateSender,
    attempt: u32,
    started: Instant,
    /// The requested interval, in the time of the probe.
    interval: Duration,
    speed: f64,
    /// When the last line was processed. Time spent waiting for the fleet does not count as silence of the host.
    last_line: Instant,
    /// When the last part of an incomplete line arrived.
    partial_line_at: Option<Instant>,
    stale: bool,
    /// When the last snapshot was processed, not counting time spent waiting for the fleet.
    last_readings: Instant,
    /// The interval in the last snapshot; a policy file may make it longer than the requested one.
    probe_interval: Duration,
    /// Whether snapshots are overdue and the fleet knows it.
    late: bool,
    /// Deadline for overdue readings during verification.
    readings_by: Option<Instant>,
    /// Start of the current verification.
    verify_since: Option<Instant>,
    hello: bool,
    sampled: bool,
    farewell: Option<SafeText>,
    /// `None` before the hello, because the remote script might still read ahead.
    next_heartbeat: Option<Instant>,
    /// Id and send time of the unanswered heartbeat.
    heartbeat: Option<(u64, Instant)>,
    heartbeat_id: u64,
    /// Sequence number of the last snapshot.
    sequence: Option<u64>,
    /// The last sequence number acknowledged by a heartbeat.
    acknowledged: u64,
    pending: Vec<u8>,
    budget: ReadBudget,
    detector: Detector,
    /// When the fleet last learned that the host misbehaves, by the position in [`Misbehavior::ALL`].
    misbehavior_reported_at: [Option<Instant>; Misbehavior::ALL.len()],
    alignment: Alignment,
    /// The number of snapshots on this connection.
    snapshots: u64,
    earlier_slurm_jobs: &'a mut EarlierSlurmJobs,
}

impl SessionState<'_> {
    async fn take_lines(&mut self, stdout: &mut RemoteOutput) -> Result<(), SessionEnd> {
        loop {
            if self.budget.wait_until(Instant::now()).is_some() {
                return self.report(Misbehavior::SendsTooMuch).await;
            }
            let (message, misbehavior, line_bytes) = match stdout.lines.next_line() {
                Ok(None) => {
                    if stdout.lines.remaining().is_empty() {
                        self.partial_line_at = None;
                    }
                    return Ok(());
                }
                Ok(Some(line)) => {
                    let message = decode(line).map_err(|error| SessionEnd::Failed(error::protocol(&error)))?;
                    let misbehavior = self.detector.misbehavior(&message, line, Instant::now());
                    (message, misbehavior, line.len())
                }
                Err(error) => return Err(SessionEnd::Failed(error::protocol(&error))),
            };
            let began = Instant::now();
            self.budget.charge(&message, line_bytes, began);
            self.take(message).await?;
            if let Some(misbehavior) = misbehavior {
                self.report(misbehavior).await?;
            }
            self.last_line = Instant::now();
            self.last_readings += began.elapsed();
            self.stale = false;
            self.verify_since = None;
        }
    }

    async fn report(&mut self, misbehavior: Misbehavior) -> Result<(), SessionEnd> {
        let reported_at = &mut self.misbehavior_reported_at[misbehavior as usize];
        if reported_at.is_none_or(|at| at.elapsed() >= MISBEHAVIOR_PERIOD) {
            *reported_at = Some(Instant::now());
            self.updates.send(HostUpdate::Misbehaves(misbehavior)).await?;
        }
        Ok(())
    }

    async fn take(&mut self, message: Message) -> Result<(), SessionEnd> {
        match message {
            // One probe speaks on a connection, so its host cannot become another one.
            Message::Hello(_) if self.hello => {
                let text = "protocol violation: the probe sends a second hello";
                return Err(SessionEnd::Failed(LinkError::new(LinkErrorKind::Protocol, text)));
            }
            Message::Hello(hello) if hello.protocol == PROTOCOL => {
                self.hello = true;
                self.next_heartbeat = Some(Instant::now());
                self.updates.send(HostUpdate::Hello(Box::new(hello))).await?;
                if !self.sampled {
                    let phase = ConnectPhase::FirstSample;
                    self.updates.send(HostUpdate::Connecting { attempt: self.attempt, phase }).await?;
                }
            }
            Message::Farewell { reason } => self.farewell = Some(reason),
            _ if !self.hello => {
                let text = "protocol violation: the first line is not a hello";
                return Err(SessionEnd::Failed(LinkError::new(LinkErrorKind::Protocol, text)));
            }
            Message::Hello(hello) => {
                let error = crate::wire::codec::CodecError::UnsupportedProtocol { received: hello.protocol };
                return Err(SessionEnd::Failed(error::protocol(&error)));
            }
            Message::Inventory(inventory) => self.updates.send(HostUpdate::Inventory(Box::new(inventory))).await?,
            Message::Snapshot(snapshot) => {
                self.sampled = true;
                self.sequence = Some(snapshot.sequence);
                self.acknowledge(snapshot.sequence);
                let interval = snapshot.interval_seconds.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
                self.probe_interval = interval.unwrap_or_default().min(HostConfig::MAX_INTERVAL);
                self.last_readings = Instant::now();
                self.late = false;
                self.readings_by = None;
                self.align();
                self.earlier_slurm_jobs.record(&snapshot, Instant::now());
                self.updates.send(HostUpdate::Snapshot(snapshot)).await?;
            }
            Message::Echo { id } => {
                if let Some((expected, sent)) = self.heartbeat
                    && expected == id
                {
                    self.heartbeat = None;
                    // A round trip makes a stale host live, but a host with overdue readings stays stale until they arrive.
                    if !self.late {
                        self.updates.send(HostUpdate::RoundTrip(sent.elapsed())).await?;
                    }
                }
            }
            Message::Reply(reply) => self.updates.send(HostUpdate::Reply(reply)).await?,
            // A newer probe may send messages that this version does not know.
            Message::Unknown => {}
        }
        Ok(())
    }

    /// Asks the probe to move its schedule if its snapshots arrive outside the slot of the host.
    fn align(&mut self) {
        self.snapshots += 1;
        // The regular schedule begins with the second one, 250 ms after the first.
        if self.snapshots < 2 {
            return;
        }
        let interval = self.interval.max(self.probe_interval).div_f64(self.speed);
        if let Some(seconds) = self.alignment.record(Instant::now(), interval) {
            let shift_seconds = Some((seconds * self.speed) as f32);
            self.queue_interval(shift_seconds, Vec::new());
        }
    }

    /// Acknowledges a snapshot by a heartbeat. The probe sends at most two snapshots beyond the last acknowledged one, so
    /// short intervals need more heartbeats than [`HEARTBEAT`].
    fn acknowledge(&mut self, sequence: u64) {
        let interval = self.interval;
        let unacknowledged = sequence.saturating_sub(self.acknowledged);
        if unacknowledged >= 2 || interval < ACKNOWLEDGE_EACH_BELOW && unacknowledged >= 1 {
            self.queue_heartbeat();
        }
        if interval <= HEARTBEAT {
            self.next_heartbeat = Some(Instant::now() + HEARTBEAT + SNAPSHOT_LATE);
        }
    }

    fn queue_heartbeat(&mut self) {
        let now = Instant::now();
        self.next_heartbeat = Some(now + HEARTBEAT);
        self.heartbeat_id += 1;
        let heartbeat = Request::Heartbeat { id: self.heartbeat_id, last_sequence: self.sequence };
        // If it does not fit, earlier heartbeats are still unsent as well.
        if self.queue(&heartbeat) {
            self.acknowledged = self.sequence.unwrap_or(self.acknowledged);
            // Keeps the time of the oldest unanswered heartbeat, so that a slow link is measured correctly.
            self.heartbeat.get_or_insert((self.heartbeat_id, now));
        }
    }

    /// Starts the verification of the connection, which the other side may have closed while this machine slept.
    fn require_line_soon(&mut self) {
        if self.sampled {
            self.verify_since = Some(Instant::now());
            self.queue_heartbeat();
            let silent_since =
                Instant::now().checked_sub(DROPPED.saturating_sub(VERIFY_LIMIT)).unwrap_or(self.last_line);
            self.last_line = self.last_line.min(silent_since);
            self.partial_line_at = self.partial_line_at.map(|at| at.min(silent_since));
            if self.late {
                // An echo does not prove that sampling works; a resend makes the probe sample now.
                self.queue(&Request::Resend);
                self.readings_by.get_or_insert(Instant::now() + VERIFY_LIMIT);
            }
        }
    }

    /// Sends the interval, and what goes with it.
    fn queue_interval(&mut self, shift_seconds: Option<f32>, earlier_slurm_jobs: Vec<SafeText>) {
        self.queue(&Request::Interval { seconds: self.interval.as_secs_f32(), shift_seconds, earlier_slurm_jobs });
    }

    fn queue(&mut self, request: &Request) -> bool {
        match encode(request) {
            Ok(line) if self.pending.len() + line.len() <= PENDING_LIMIT_BYTES => {
                self.pending.extend_from_slice(&line);
                true
            }
            _ => false,
        }
    }

    /// The next deadline of any kind.
    fn deadline(&self) -> Instant {
        if !self.hello {
            return self.started + HELLO_LIMIT;
        }
        let silence = if self.stale { self.silence_deadline() } else { self.last_line + STALE };
        let readings = match (self.sampled, self.late) {
            (false, _) => self.sample_deadline(),
            (true, false) => self.last_readings + self.stale_after(),
            (true, true) => self.end_of_readings(),
        };
        silence.min(readings)
    }

    /// When the connection is dropped for silence.
    fn silence_deadline(&self) -> Instant {
        (self.last_received() + DROPPED).min(self.last_line + LINE_LIMIT)
    }

    /// Maximum age of the last snapshot before the host is stale.
    fn stale_after(&self) -> Duration {
        let interval = self.interval.max(self.probe_interval).div_f64(self.speed);
        (interval * STALE_INTERVALS).max(STALE)
    }

    /// When a connection without snapshots is dropped, later if a line is being received.
    fn end_of_readings(&self) -> Instant {
        let usual = self.last_readings + self.stale_after() + DROPPED;
        let end =
            self.partial_line_at.map_or(usual, |at| usual.max((at + DROPPED).min(self.last_readings + LINE_LIMIT)));
        self.readings_by.map_or(end, |by| end.min(by))
    }

    /// When the last byte arrived.
    fn last_received(&self) -> Instant {
        self.partial_line_at.map_or(self.last_line, |at| at.max(self.last_line))
    }

    /// Deadline of the first snapshot, later if a line is being received.
    fn sample_deadline(&self) -> Instant {
        let usual = self.started + SAMPLE_LIMIT;
        self.partial_line_at.map_or(usual, |at| usual.max(at + DROPPED).min(self.started + LINE_LIMIT))
    }

    async fn on_deadline(&mut self) -> Result<(), SessionEnd> {
        if !self.hello {
            return Err(SessionEnd::Failed(error::timeout("the probe sent no hello", HELLO_LIMIT)));
        }
        let now = Instant::now();
        if !self.sampled && now >= self.sample_deadline() {
            return Err(SessionEnd::Failed(error::timeout("the probe sent no readings", now - self.started)));
        }
        if now >= self.silence_deadline() {
            if self.verify_since.is_some() {
                return Err(SessionEnd::Unverified);
            }
            let text = if now >= self.last_received() + DROPPED {
                format!("no data received for {} s", DROPPED.as_secs())
            } else {
                format!("no complete line received within {} s", LINE_LIMIT.as_secs())
            };
            return Err(SessionEnd::Failed(LinkError::new(LinkErrorKind::Silent, text)));
        }
        if self.sampled && now >= self.end_of_readings() {
            if self.readings_by.is_some() {
                return Err(SessionEnd::Unverified);
            }
            let seconds = (now - self.last_readings).as_secs();
            let text = format!("the probe answers heartbeats, but sent no readings for {seconds} s");
            return Err(SessionEnd::Failed(LinkError::new(LinkErrorKind::Silent, text)));
        }
        let was_told = self.stale || self.late;
        self.stale |= now >= self.last_line + STALE;
        self.late |= self.sampled && now >= self.last_readings + self.stale_after();
        if !was_told {
            self.updates.send(HostUpdate::Silent).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
pub(super) mod tests;
