//! The recording format: the messages of the hosts and the changes of their links, one JSON object per line. See
//! docs/recording.md.
//!
//! ```text
//! {"recording":1,"started":"2026-03-01T13:44:00Z"}
//! {"t":0.412,"host":"hgx-01","link":"connecting"}
//! {"t":0.412,"host":"hgx-01","wire":{"hello":{...}}}
//! {"t":9.02,"host":"hgx-02","link":"down","error":{"kind":"timeout","message":"...","hint":null}}
//! {"t":9.5,"host":"hgx-01","link":"live","misbehavior":"sends_too_much"}
//! ```
//!
//! `t` is in seconds since the start of the recording, and `wire` is one message of the probe. A killed program leaves
//! an incomplete last line, which readers skip.

use super::{ConnectPhase, Host, HostId, HostUpdate, Link, LinkError, LinkErrorKind, Misbehavior, Moment, RetryPolicy};
use crate::wire::codec::{self, CodecError, MAX_LINE_BYTES};
use crate::wire::redact::REDACTED;
use crate::wire::{Hello, Message, Owner, ProcessFacts, SafeText, Scope, Snapshot};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// The version of the format. It rises when a field is removed or changes its meaning, not when one is added.
pub const RECORDING_VERSION: u32 = 1;

/// One line of a recording.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "all lines but the first are of the large variant")]
pub enum Line {
    /// The first line.
    Start {
        /// The start of the recording, RFC 3339. For display only: `t` counts from it.
        started: SafeText,
    },
    /// An event of one host.
    Host(HostLine),
}

/// An event of one host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostLine {
    /// Seconds since the start of the recording.
    pub t: f64,
    /// The name of the host.
    pub host: SafeText,
    /// The event.
    pub event: RecordedEvent,
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordedEvent {
    /// A message of the probe.
    Wire(Message),
    /// A change of the link.
    Link(RecordedLinkState, Option<RecordedError>),
    /// The host misbehaves; the state of its link has not changed. Repeated every 10 s.
    Misbehaves(RecordedLinkState, Misbehavior),
}

/// The state of a link, without the details of a live connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RecordedLinkState {
    /// An attempt to connect.
    Connecting,
    /// The probe sends lines.
    Live,
    /// No line for 3 s, or no readings for 3 intervals.
    Stale,
    /// No connection, including hosts that wait for the user.
    Down,
}

/// The error of a link, as in `status --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecordedError {
    /// The name of the [`LinkErrorKind`].
    pub kind: SafeText,
    /// The operation and the cause.
    pub message: SafeText,
    /// The way out.
    #[serde(default)]
    pub hint: Option<SafeText>,
}

impl From<&LinkError> for RecordedError {
    fn from(error: &LinkError) -> Self {
        Self { kind: error.kind.word().into(), message: error.message.clone(), hint: error.hint.clone() }
    }
}

impl From<RecordedError> for LinkError {
    /// An unknown kind becomes [`LinkErrorKind::Closed`].
    fn from(error: RecordedError) -> Self {
        let kind = LinkErrorKind::from_word(&error.kind).unwrap_or(LinkErrorKind::Closed);
        Self { hint: error.hint, ..Self::new(kind, error.message) }
    }
}

/// An error in a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordingError {
    /// The line number, from 1.
    pub line: usize,
    /// The error.
    pub kind: RecordingErrorKind,
}

/// The kinds of errors in a line.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordingErrorKind {
    /// The file does not begin with the first line of a recording.
    NotARecording,
    /// The recording has an unknown version.
    Version {
        /// The version of the recording.
        version: u32,
    },
    /// A field is missing, invalid or contradicts another one.
    Incomplete(&'static str),
    /// The line or its message exceeds the limits of the wire protocol.
    Wire(CodecError),
}

impl fmt::Display for RecordingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: ", self.line)?;
        match &self.kind {
            RecordingErrorKind::NotARecording => {
                formatter.write_str("not a recording: the first line should begin with {\"recording\":1")
            }
            RecordingErrorKind::Version { version } => {
                write!(
                    formatter,
                    "recording version {version} is unknown, this gpufleet reads version {RECORDING_VERSION}"
                )
            }
            RecordingErrorKind::Incomplete(what) => formatter.write_str(what),
            RecordingErrorKind::Wire(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for RecordingError {}

/// A line with all fields optional, so that an error can name the missing one.
#[derive(Serialize, Deserialize)]
struct RawLine<M> {
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    recording: Option<u32>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    started: Option<SafeText>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    t: Option<f64>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    host: Option<SafeText>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    wire: Option<M>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    link: Option<RecordedLinkState>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    error: Option<RecordedError>,
    /// The name of the [`Misbehavior`]. On a line with `link`, because earlier versions refuse a line without `wire` and
    /// `link`.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    misbehavior: Option<SafeText>,
}

fn none<T>() -> Option<T> {
    None
}

/// Encodes one line, including its newline.
///
/// # Errors
/// Never with these types.
pub fn encode(line: &Line) -> Result<Vec<u8>, serde_json::Error> {
    let empty = RawLine::<&Message> {
        recording: None,
        started: None,
        t: None,
        host: None,
        wire: None,
        link: None,
        error: None,
        misbehavior: None,
    };
    match line {
        Line::Start { started } => {
            codec::encode(&RawLine { recording: Some(RECORDING_VERSION), started: Some(started.clone()), ..empty })
        }
        Line::Host(HostLine { t, host, event }) => {
            let info = RawLine { t: Some(*t), host: Some(host.clone()), ..empty };
            match event {
                RecordedEvent::Wire(message) => codec::encode(&RawLine { wire: Some(message), ..info }),
                RecordedEvent::Link(link, error) => {
                    codec::encode(&RawLine { link: Some(*link), error: error.clone(), ..info })
                }
                RecordedEvent::Misbehaves(link, misbehavior) => {
                    let misbehavior = Some(misbehavior.word().into());
                    codec::encode(&RawLine { link: Some(*link), misbehavior, ..info })
                }
            }
        }
    }
}

/// Decodes one line without its newline. `number` counts from 1 and appears in errors. Line 1 must be [`Line::Start`].
pub fn decode(line: &[u8], number: usize) -> Result<Line, RecordingError> {
    decode_line(line, number == 1).map_err(|kind| RecordingError { line: number, kind })
}

fn decode_line(line: &[u8], is_first: bool) -> Result<Line, RecordingErrorKind> {
    // The message has the limits of the wire protocol; the fields around it are short.
    if line.len() > MAX_LINE_BYTES + 8192 {
        return Err(RecordingErrorKind::Wire(CodecError::LineTooLong));
    }
    let raw: RawLine<Message> = match codec::decode_json(line) {
        Err(_) if is_first => return Err(RecordingErrorKind::NotARecording),
        decoded => decoded.map_err(RecordingErrorKind::Wire)?,
    };
    match raw.recording {
        Some(RECORDING_VERSION) if is_first => return Ok(Line::Start { started: raw.started.unwrap_or_default() }),
        Some(version) if is_first => return Err(RecordingErrorKind::Version { version }),
        None if is_first => return Err(RecordingErrorKind::NotARecording),
        _ => {}
    }
    let t = raw.t.filter(|t| t.is_finite() && *t >= 0.0);
    let t = t.ok_or(RecordingErrorKind::Incomplete("`t` must be the seconds since the start"))?;
    let host = raw.host.ok_or(RecordingErrorKind::Incomplete("`host` is missing"))?;
    let event = match (raw.wire, raw.link) {
        (Some(message), None) => {
            codec::check_limits(&message).map_err(RecordingErrorKind::Wire)?;
            RecordedEvent::Wire(message)
        }
        (None, Some(link)) => match raw.misbehavior.as_deref().and_then(Misbehavior::from_word) {
            Some(misbehavior) => RecordedEvent::Misbehaves(link, misbehavior),
            None => RecordedEvent::Link(link, raw.error),
        },
        _ => return Err(RecordingErrorKind::Incomplete("a line has either `wire` or `link`")),
    };
    Ok(Line::Host(HostLine { t, host, event }))
}

/// Decodes a whole recording line by line. Skips empty lines and an incomplete last line.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = Result<Line, RecordingError>> + '_ {
    bytes.split_inclusive(|byte| *byte == b'\n').zip(1..).filter_map(|(line, number)| {
        let whole = line.strip_suffix(b"\n");
        let text = whole.unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.is_empty() && number > 1 {
            return None;
        }
        let decoded = decode(text, number);
        let is_cut = whole.is_none() && decoded.is_err() && number > 1;
        (!is_cut).then_some(decoded)
    })
}

/// Turns host updates into lines.
///
/// Leaves out heartbeat times and replies to requests: a replay does not need them, and replies may contain an
/// environment or a log.
#[derive(Debug)]
pub struct Recorder {
    start: Moment,
    links: HashMap<HostId, (RecordedLinkState, Option<RecordedError>)>,
    redactor: Option<Redactor>,
}

impl Recorder {
    /// Creates a recorder. With a redactor, the lines contain neither user names nor arguments.
    pub fn new(start: Moment, redactor: Option<Redactor>) -> Self {
        Self { start, links: HashMap::new(), redactor }
    }

    /// Returns the lines for an update: none, one, or one for the link and one for the message.
    pub fn take(&mut self, id: HostId, host: &SafeText, update: HostUpdate, now: Moment) -> Vec<Line> {
        let before = self.links.get(&id).map(|(state, _)| *state);
        let mut misbehaves = None;
        let (link, message) = match update {
            HostUpdate::Connecting { .. } => (Some((RecordedLinkState::Connecting, None)), None),
            HostUpdate::Hello(hello) => (None, Some(Message::Hello(*hello))),
            HostUpdate::Inventory(inventory) => (None, Some(Message::Inventory(*inventory))),
            HostUpdate::Snapshot(snapshot) => {
                (Some((RecordedLinkState::Live, None)), Some(Message::Snapshot(snapshot)))
            }
            HostUpdate::RoundTrip(_) if before == Some(RecordedLinkState::Stale) => {
                (Some((RecordedLinkState::Live, None)), None)
            }
            HostUpdate::Silent => (Some((RecordedLinkState::Stale, None)), None),
            HostUpdate::Down { error, .. } | HostUpdate::NeedsUser(error) => {
                (Some((RecordedLinkState::Down, Some(self.error(&error)))), None)
            }
            HostUpdate::Misbehaves(misbehavior) => {
                misbehaves = Some(misbehavior);
                (None, None)
            }
            HostUpdate::RoundTrip(_) | HostUpdate::ReadingsAge(_) | HostUpdate::Reply(_) => (None, None),
        };
        let mut lines = Vec::new();
        // Rounded to milliseconds, the precision of the time of arrival.
        let t = (now.since(self.start).as_secs_f64() * 1e3).round() / 1e3;
        let mut line = |event| lines.push(Line::Host(HostLine { t, host: host.clone(), event }));
        if let Some(link) = link
            && self.links.get(&id) != Some(&link)
        {
            line(RecordedEvent::Link(link.0, link.1.clone()));
            self.links.insert(id, link);
        }
        if let Some(mut message) = message {
            if let Some(redactor) = &mut self.redactor {
                redactor.redact(&mut message);
            }
            line(RecordedEvent::Wire(message));
        }
        if let Some(misbehavior) = misbehaves {
            line(RecordedEvent::Misbehaves(before.unwrap_or(RecordedLinkState::Connecting), misbehavior));
        }
        lines
    }

    fn error(&self, error: &LinkError) -> RecordedError {
        match self.redactor {
            // Messages of servers contain account names; the kind is enough.
            Some(_) => RecordedError { kind: error.kind.word().into(), message: error.kind.word().into(), hint: None },
            None => RecordedError::from(error),
        }
    }
}

/// Replaces user names by `user1`, `user2`, ... in order of appearance, equal on all hosts, and likewise mount points,
/// containers, pods, services, login sessions and Slurm clusters. Reduces command lines to the program, and removes other
/// paths and messages, which may contain a name.
///
/// The processes of one user and of one job remain recognizable. A test lists every text of the wire protocol with the
/// reason why it stays.
#[derive(Debug, Default)]
pub struct Redactor {
    /// The pseudonyms of each kind of name.
    pseudonyms: HashMap<&'static str, HashMap<SafeText, SafeText>>,
}

impl Redactor {
    /// Redacts one message.
    pub fn redact(&mut self, message: &mut Message) {
        match message {
            Message::Hello(hello) => self.hello(hello),
            Message::Inventory(inventory) => {
                remove(&mut inventory.nvml_path);
                if let Some(error) = &mut inventory.error {
                    error.message = REDACTED.into();
                }
            }
            Message::Snapshot(snapshot) => self.snapshot(snapshot),
            Message::Farewell { reason } => *reason = REDACTED.into(),
            Message::Echo { .. } | Message::Reply(_) | Message::Unknown => {}
        }
    }

    fn hello(&mut self, hello: &mut Hello) {
        self.user(&mut hello.login_user);
        if let Some(Scope::Container(name)) = &mut hello.scope {
            *name = REDACTED.into();
        }
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) {
        for facts in &mut snapshot.facts {
            self.facts(facts);
        }
        for filesystem in &mut snapshot.host.filesystems {
            // The root directory has the same name everywhere.
            if filesystem.mount_point != "/" {
                self.pseudonym("/mount", &mut filesystem.mount_point);
            }
        }
        for job in snapshot.host.slurm_jobs.iter_mut().flatten() {
            self.user(&mut job.user);
        }
        if let Some(cluster) = &mut snapshot.host.slurm_cluster {
            self.pseudonym("cluster", cluster);
        }
        for error in snapshot.gpus.error.iter_mut().flatten() {
            error.message = REDACTED.into();
        }
        if let Some(error) = &mut snapshot.driver_error {
            error.message = REDACTED.into();
        }
        snapshot.notes.clear();
    }

    fn facts(&mut self, facts: &mut ProcessFacts) {
        self.user(&mut facts.user);
        facts.full_name = None;
        program_only(&mut facts.argv);
        for ancestor in &mut facts.ancestors {
            program_only(&mut ancestor.argv);
        }
        remove(&mut facts.working_directory);
        remove(&mut facts.log_path);
        remove(&mut facts.container_name);
        match &mut facts.owner {
            Some(Owner::Pod { uid, container }) => {
                self.pseudonym("pod", uid);
                if let Some(container) = container {
                    self.pseudonym("container", container);
                }
            }
            Some(Owner::Container { id, .. }) => self.pseudonym("container", id),
            Some(Owner::Service(name)) => self.pseudonym("service", name),
            Some(Owner::Session(name)) => self.pseudonym("session", name),
            // Job ids are numbers.
            Some(Owner::Slurm { .. } | Owner::Unknown) | None => {}
        }
    }

    fn user(&mut self, user: &mut Option<SafeText>) {
        // Root is not a person.
        if let Some(name) = user.as_mut().filter(|name| **name != "root") {
            self.pseudonym("user", name);
        }
    }

    fn pseudonym(&mut self, kind: &'static str, name: &mut SafeText) {
        let known = self.pseudonyms.entry(kind).or_default();
        let next = known.len() + 1;
        *name = known.entry(name.clone()).or_insert_with(|| SafeText::new(&format!("{kind}{next}"))).clone();
    }
}

fn remove(text: &mut Option<SafeText>) {
    if let Some(text) = text {
        *text = REDACTED.into();
    }
}

/// Keeps the name of the program and marks that arguments followed.
pub(crate) fn program_only(argv: &mut Vec<SafeText>) {
    let Some(first) = argv.first() else { return };
    // A process that set its own title has all arguments in one piece.
    let (program, arguments) = first.split_once(' ').unwrap_or((first, ""));
    let mut kept = vec![SafeText::new(program.rsplit('/').next().unwrap_or_default())];
    if argv.len() > 1 || !arguments.is_empty() {
        kept.push(REDACTED.into());
    }
    *argv = kept;
}

/// The state that a replay keeps per host.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostReplay {
    /// Failed attempts since the last readings.
    failures: u32,
}

impl HostReplay {
    /// Returns the update for an event, or `None` if the event changes nothing in the fleet.
    pub fn update(&mut self, host: &Host, event: RecordedEvent) -> Option<HostUpdate> {
        match event {
            RecordedEvent::Wire(message) => self.message(host, message),
            RecordedEvent::Link(state, error) => self.link(host, state, error),
            RecordedEvent::Misbehaves(_, misbehavior) => Some(HostUpdate::Misbehaves(misbehavior)),
        }
    }

    fn message(&mut self, host: &Host, message: Message) -> Option<HostUpdate> {
        match message {
            Message::Hello(hello) => Some(HostUpdate::Hello(Box::new(hello))),
            Message::Inventory(inventory) => Some(HostUpdate::Inventory(Box::new(inventory))),
            Message::Snapshot(snapshot) => {
                self.failures = 0;
                Some(HostUpdate::Snapshot(snapshot))
            }
            Message::Echo { .. } => end_silence(host),
            Message::Reply(_) | Message::Farewell { .. } | Message::Unknown => None,
        }
    }

    fn link(&mut self, host: &Host, state: RecordedLinkState, error: Option<RecordedError>) -> Option<HostUpdate> {
        let attempt = self.failures.saturating_add(1);
        match (state, &host.link) {
            (RecordedLinkState::Connecting, _) => Some(HostUpdate::Connecting { attempt, phase: ConnectPhase::Queued }),
            (RecordedLinkState::Live, Link::Live | Link::Connecting { .. }) => None,
            (RecordedLinkState::Live, Link::Stale { .. }) => end_silence(host),
            // The next readings make the link live.
            (RecordedLinkState::Live, Link::Down { .. } | Link::NeedsUser { .. }) => {
                Some(HostUpdate::Connecting { attempt, phase: ConnectPhase::FirstSample })
            }
            (RecordedLinkState::Stale, _) => Some(HostUpdate::Silent),
            (RecordedLinkState::Down, _) => {
                let error = error.map_or_else(unspecified_error, LinkError::from);
                if error.kind.concerns_credentials() {
                    return Some(HostUpdate::NeedsUser(error.with_retry(RetryPolicy::OnRequest)));
                }
                self.failures = attempt;
                Some(HostUpdate::Down { error, retry_at: None, attempt })
            }
        }
    }
}

/// A line without readings ends a silence. The recording does not contain round-trip times.
fn end_silence(host: &Host) -> Option<HostUpdate> {
    let is_stale = matches!(host.link, Link::Stale { .. });
    is_stale.then(|| HostUpdate::RoundTrip(host.round_trip.unwrap_or(Duration::ZERO)))
}

fn unspecified_error() -> LinkError {
    LinkError::new(LinkErrorKind::Closed, "the connection was closed")
}

#[cfg(test)]
#[path = "recording_tests.rs"]
mod tests;
