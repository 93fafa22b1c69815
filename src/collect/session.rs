//! One connection from the probe's first line on: lines in, updates out, heartbeats back.
//!
//! It is the same for a probe at the end of an SSH channel and for one in this process.

use super::channels::{Command, ReceiverDropped, UpdateSender, refusal_reply};
use super::error;
use super::remote_command::{CommandEnd, RemoteCommand, RemoteOutput};
use crate::config::HostConfig;
use crate::fleet::{ConnectPhase, HostUpdate, LinkError, LinkErrorKind};
use crate::wire::codec::{decode, encode};
use crate::wire::{Message, PROTOCOL, Request, SafeText};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How often the probe hears from us, where its snapshots do not come as often. Without a heartbeat for 30 s it ends.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(2);
/// How much longer a heartbeat waits for a snapshot that may be on its way: a link that only brings snapshots is alive
/// too, and they are acknowledged two at a time. The echo comes before the host would be stale.
const SNAPSHOT_LATE: Duration = Duration::from_millis(500);
/// Below this interval each snapshot is acknowledged by a heartbeat of its own; from 1 s on every second one costs half of
/// the packets and wake-ups, and a link of up to a second still misses none.
const ACKNOWLEDGE_EACH_BELOW: Duration = Duration::from_secs(1);
/// No line for this long: what is shown is stale.
pub(super) const STALE: Duration = Duration::from_secs(3);
/// Nothing at all for this long: the connection is given up. On a slow link a line may take longer.
pub(super) const DROPPED: Duration = Duration::from_secs(10);
/// No whole line for this long, though bytes come: nobody's link is so slow that this would be a snapshot.
pub(super) const LINE_LIMIT: Duration = Duration::from_secs(120);
/// Readings that are this many intervals old, and at least [`STALE`], are stale although other lines come. They may stay
/// away for [`DROPPED`] more: a long interval gets a long wait.
const STALE_INTERVALS: u32 = 3;
/// How long a connection that is doubted has for its next line, or for readings if these are late: the machine slept, or
/// a person asked.
pub(super) const VERIFY_LIMIT: Duration = Duration::from_secs(4);
/// How long a probe may take to introduce itself.
pub(super) const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take from there to its first readings; a driver may need seconds to wake up.
pub(super) const SAMPLE_LIMIT: Duration = Duration::from_secs(30);
/// What may wait to be written. More means that the link does not take it; the oldest requests matter then.
const PENDING_LIMIT_BYTES: usize = 16 * 1024;

/// Why a session ended.
#[derive(Debug)]
pub(super) enum SessionEnd {
    /// Nobody listens any more.
    ReceiverDropped,
    /// We gave it up.
    Failed(LinkError),
    /// It did not prove itself when it was doubted: the host may be well, and is connected to anew.
    Unverified,
    /// The other side did, after these words.
    Ended(CommandEnd, Option<SafeText>),
}

impl From<ReceiverDropped> for SessionEnd {
    fn from(ReceiverDropped: ReceiverDropped) -> Self {
        Self::ReceiverDropped
    }
}

/// What a session needs of its host task.
pub(super) struct Session<'a> {
    pub(super) updates: &'a UpdateSender,
    pub(super) commands: &'a mut mpsc::Receiver<Command>,
    /// The interval that the probe was started with; commands change it.
    pub(super) interval: &'a mut Duration,
    /// Which try this is.
    pub(super) attempt: u32,
    /// The probe was not told the interval on a command line.
    pub(super) send_interval: bool,
    /// How many seconds of the interval pass in one second: simulated time may run fast or slow.
    pub(super) speed: f64,
}

/// Runs until the connection ends, in one way or another.
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
    };
    if session.send_interval {
        state.queue(&Request::Interval { seconds: session.interval.as_secs_f32() });
    }
    loop {
        // Lines that came with the script's last answer are already there.
        match state.take_lines(&mut remote.stdout).await {
            Ok(()) => {}
            Err(end) => return end,
        }
        let heartbeat_at = state.next_heartbeat;
        tokio::select! {
            more = remote.stdout.fill() => {
                if !more {
                    return SessionEnd::Ended(remote.wait_for_end().await, state.farewell);
                }
                state.partial_line_at = Some(Instant::now());
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
                    state.queue(&Request::Interval { seconds: interval.as_secs_f32() });
                }
                Some(Command::Request(request)) => {
                    if !state.queue(&request)
                        && let Some(reply) = refusal_reply(&request, "the connection does not take requests now")
                        && session.updates.send(reply).await.is_err()
                    {
                        return SessionEnd::ReceiverDropped;
                    }
                }
            },
        }
    }
}

#[allow(clippy::struct_excessive_bools, reason = "each is a state of the connection that no other implies")]
struct SessionState<'a> {
    updates: &'a UpdateSender,
    attempt: u32,
    started: Instant,
    /// Asked for, in the time of the probe.
    interval: Duration,
    speed: f64,
    /// When the last line was dealt with. Time in which the fleet did not take our updates is not the host's silence.
    last_line: Instant,
    /// When the last piece of a line arrived of which the rest is still under way.
    partial_line_at: Option<Instant>,
    stale: bool,
    /// When the last snapshot was dealt with, not counting the time in which the fleet took no updates.
    last_readings: Instant,
    /// The interval that the last snapshot names: an administrator's may be longer than the one that was asked for.
    probe_interval: Duration,
    /// The fleet was told that no readings come, and none have come since.
    late: bool,
    /// When late readings must have come, since the connection was doubted.
    readings_by: Option<Instant>,
    /// When the connection was doubted, unless it has proven itself since.
    verify_since: Option<Instant>,
    hello: bool,
    sampled: bool,
    farewell: Option<SafeText>,
    /// None before the Hello: a script might still read ahead.
    next_heartbeat: Option<Instant>,
    /// The heartbeat that is under way, and when it was sent.
    heartbeat: Option<(u64, Instant)>,
    heartbeat_id: u64,
    /// The last snapshot that arrived.
    sequence: Option<u64>,
    /// The last one that a heartbeat has named.
    acknowledged: u64,
    pending: Vec<u8>,
}

impl SessionState<'_> {
    async fn take_lines(&mut self, stdout: &mut RemoteOutput) -> Result<(), SessionEnd> {
        loop {
            let message = match stdout.lines.next_line() {
                Ok(None) => {
                    if stdout.lines.remaining().is_empty() {
                        self.partial_line_at = None;
                    }
                    return Ok(());
                }
                Ok(Some(line)) => decode(line).map_err(|error| SessionEnd::Failed(error::protocol(&error)))?,
                Err(error) => return Err(SessionEnd::Failed(error::protocol(&error))),
            };
            let began = Instant::now();
            self.take(message).await?;
            self.last_line = Instant::now();
            self.last_readings += began.elapsed();
            self.stale = false;
            self.verify_since = None;
        }
    }

    async fn take(&mut self, message: Message) -> Result<(), SessionEnd> {
        match message {
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
                let text = "protocol violation: the first line is no hello";
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
                self.updates.send(HostUpdate::Snapshot(snapshot)).await?;
            }
            Message::Echo { id } => {
                if let Some((expected, sent)) = self.heartbeat
                    && expected == id
                {
                    self.heartbeat = None;
                    // A round trip makes a stale host live; a host whose readings are late stays stale until they come.
                    if !self.late {
                        self.updates.send(HostUpdate::RoundTrip(sent.elapsed())).await?;
                    }
                }
            }
            Message::Reply(reply) => self.updates.send(HostUpdate::Reply(reply)).await?,
            // A newer probe of the same protocol may send more than this version reads.
            Message::Unknown => {}
        }
        Ok(())
    }

    /// The probe sends at most two snapshots beyond the last acknowledged one, so a short interval needs heartbeats
    /// between the regular ones: for each snapshot where the way there and back may take longer than the interval.
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
        // One that does not fit is not missed: those before it have not arrived either.
        if self.queue(&heartbeat) {
            self.acknowledged = self.sequence.unwrap_or(self.acknowledged);
            // A slow link is measured by the heartbeat that is under way, not reset by each new one.
            self.heartbeat.get_or_insert((self.heartbeat_id, now));
        }
    }

    /// The connection must prove itself soon: while the machine slept, the other side may have ended it unheard.
    fn require_line_soon(&mut self) {
        if self.sampled {
            self.verify_since = Some(Instant::now());
            self.queue_heartbeat();
            let silent_since =
                Instant::now().checked_sub(DROPPED.saturating_sub(VERIFY_LIMIT)).unwrap_or(self.last_line);
            self.last_line = self.last_line.min(silent_since);
            self.partial_line_at = self.partial_line_at.map(|at| at.min(silent_since));
            if self.late {
                // A heartbeat that comes back proves too little: readings do, and a resend makes them due now.
                self.queue(&Request::Resend);
                self.readings_by.get_or_insert(Instant::now() + VERIFY_LIMIT);
            }
        }
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

    /// When patience ends next.
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

    /// When the connection counts as dead.
    fn silence_deadline(&self) -> Instant {
        (self.last_received() + DROPPED).min(self.last_line + LINE_LIMIT)
    }

    /// How old readings may become before they are stale.
    fn stale_after(&self) -> Duration {
        let interval = self.interval.max(self.probe_interval).div_f64(self.speed);
        (interval * STALE_INTERVALS).max(STALE)
    }

    /// When a connection that brings no readings is given up. Those that are coming are waited for.
    fn end_of_readings(&self) -> Instant {
        let usual = self.last_readings + self.stale_after() + DROPPED;
        let end =
            self.partial_line_at.map_or(usual, |at| usual.max((at + DROPPED).min(self.last_readings + LINE_LIMIT)));
        self.readings_by.map_or(end, |by| end.min(by))
    }

    /// When anything was heard last.
    fn last_received(&self) -> Instant {
        self.partial_line_at.map_or(self.last_line, |at| at.max(self.last_line))
    }

    /// When the first readings must have come. Those that are coming are waited for.
    fn sample_deadline(&self) -> Instant {
        let usual = self.started + SAMPLE_LIMIT;
        self.partial_line_at.map_or(usual, |at| usual.max(at + DROPPED).min(self.started + LINE_LIMIT))
    }

    async fn on_deadline(&mut self) -> Result<(), SessionEnd> {
        if !self.hello {
            return Err(SessionEnd::Failed(error::timeout("the probe did not introduce itself", HELLO_LIMIT)));
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
                format!("nothing was heard for {} s", DROPPED.as_secs())
            } else {
                format!("no whole line came within {} s", LINE_LIMIT.as_secs())
            };
            return Err(SessionEnd::Failed(LinkError::new(LinkErrorKind::Silent, text)));
        }
        if self.sampled && now >= self.end_of_readings() {
            if self.readings_by.is_some() {
                return Err(SessionEnd::Unverified);
            }
            let seconds = (now - self.last_readings).as_secs();
            let text = format!("the probe answers, but no readings came for {seconds} s");
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
