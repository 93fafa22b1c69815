//! The lines of a recording, and their JSON.

use crate::fleet::{LinkError, LinkErrorKind};
use crate::wire::codec::{self, CodecError, MAX_LINE_BYTES};
use crate::wire::{Message, SafeText};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the format. It rises when something is removed or changes its meaning, not when a field is added.
pub const RECORDING_VERSION: u32 = 1;

/// One line of a recording.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The first line.
    Start {
        /// When the recording was started, RFC 3339. For people: times are counted from it.
        started: SafeText,
    },
    /// Something about one host.
    Host(HostLine),
}

/// Something that happened on one host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostLine {
    /// Seconds since the recording was started.
    pub t: f64,
    /// The host's name.
    pub host: SafeText,
    /// What happened.
    pub event: RecordedEvent,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordedEvent {
    /// The probe sent this.
    Wire(Message),
    /// The link changed.
    Link(RecordedLinkState, Option<RecordedError>),
}

/// How the link stands, without the details that only a live connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedLinkState {
    /// A connection is being made.
    Connecting,
    /// Lines arrive.
    Live,
    /// No line for 3 s, or no readings for 3 intervals.
    Stale,
    /// No connection; also when only a person can help.
    Down,
}

/// Why a link is down, as `status --json` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    /// The word of [`LinkErrorKind`].
    pub kind: SafeText,
    /// One sentence.
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
    /// A kind that this version does not know reads as a closed connection.
    fn from(error: RecordedError) -> Self {
        let kind = LinkErrorKind::from_word(&error.kind).unwrap_or(LinkErrorKind::Closed);
        Self { hint: error.hint, ..Self::new(kind, error.message) }
    }
}

/// Why a line cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordingError {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub kind: RecordingErrorKind,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordingErrorKind {
    /// The first line is not that of a recording.
    NotARecording,
    /// Written by a version whose format is not known here.
    Version {
        /// The version it names.
        theirs: u32,
    },
    /// Neither `wire` nor `link`, or both, or no `t`, or no `host`, or a `t` that is no time.
    Incomplete(&'static str),
    /// The line or its message breaks the rules of the wire.
    Wire(CodecError),
}

impl fmt::Display for RecordingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: ", self.line)?;
        match &self.kind {
            RecordingErrorKind::NotARecording => {
                formatter.write_str("not a recording: the first line should begin with {\"recording\":1")
            }
            RecordingErrorKind::Version { theirs } => {
                write!(formatter, "a recording of version {theirs}, this gpufleet reads version {RECORDING_VERSION}")
            }
            RecordingErrorKind::Incomplete(what) => formatter.write_str(what),
            RecordingErrorKind::Wire(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for RecordingError {}

/// A line as it stands in the file: everything optional, so that what is missing can be named.
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
}

fn none<T>() -> Option<T> {
    None
}

/// Writes one line, its newline included.
///
/// # Errors
/// When a value cannot be written as JSON; with these types that does not happen.
pub fn encode(line: &Line) -> Result<Vec<u8>, serde_json::Error> {
    let empty = RawLine::<&Message> {
        recording: None,
        started: None,
        t: None,
        host: None,
        wire: None,
        link: None,
        error: None,
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
            }
        }
    }
}

/// Reads one line without its newline. `number` counts from 1 and is told in errors; line 1 must be [`Line::Start`].
pub fn decode(line: &[u8], number: usize) -> Result<Line, RecordingError> {
    decode_line(line, number == 1).map_err(|kind| RecordingError { line: number, kind })
}

fn decode_line(line: &[u8], is_first: bool) -> Result<Line, RecordingErrorKind> {
    // The message within the line has the bounds of the wire; what stands around it is short.
    if line.len() > MAX_LINE_BYTES + 8192 {
        return Err(RecordingErrorKind::Wire(CodecError::LineTooLong));
    }
    let raw: RawLine<Message> = match codec::decode_json(line) {
        Err(_) if is_first => return Err(RecordingErrorKind::NotARecording),
        decoded => decoded.map_err(RecordingErrorKind::Wire)?,
    };
    match raw.recording {
        Some(RECORDING_VERSION) if is_first => return Ok(Line::Start { started: raw.started.unwrap_or_default() }),
        Some(theirs) if is_first => return Err(RecordingErrorKind::Version { theirs }),
        None if is_first => return Err(RecordingErrorKind::NotARecording),
        _ => {}
    }
    let t = raw.t.filter(|t| t.is_finite() && *t >= 0.0);
    let t = t.ok_or(RecordingErrorKind::Incomplete("`t` should be the seconds since the start"))?;
    let host = raw.host.ok_or(RecordingErrorKind::Incomplete("`host` is missing"))?;
    let event = match (raw.wire, raw.link) {
        (Some(message), None) => {
            codec::check_limits(&message).map_err(RecordingErrorKind::Wire)?;
            RecordedEvent::Wire(message)
        }
        (None, Some(link)) => RecordedEvent::Link(link, raw.error),
        _ => return Err(RecordingErrorKind::Incomplete("a line has either `wire` or `link`")),
    };
    Ok(Line::Host(HostLine { t, host, event }))
}

/// Reads a whole recording, line by line. Empty lines are skipped; a last line that is cut is left out.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Snapshot;

    fn recording() -> Vec<Line> {
        let host = |t, event| Line::Host(HostLine { t, host: "hgx-01".into(), event });
        let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s").with_hint("ssh hgx-01");
        vec![
            Line::Start { started: "2026-03-01T13:44:00Z".into() },
            host(0.0, RecordedEvent::Link(RecordedLinkState::Connecting, None)),
            host(0.4, RecordedEvent::Link(RecordedLinkState::Live, None)),
            host(0.5, RecordedEvent::Wire(Message::Echo { id: 4 })),
            host(
                0.5,
                RecordedEvent::Wire(Message::Snapshot(Box::new(Snapshot { sequence: 3, ..Snapshot::default() }))),
            ),
            host(4.0, RecordedEvent::Link(RecordedLinkState::Stale, None)),
            host(11.25, RecordedEvent::Link(RecordedLinkState::Down, Some(RecordedError::from(&error)))),
        ]
    }

    fn written() -> Vec<u8> {
        recording().iter().flat_map(|line| encode(line).expect("encodes")).collect()
    }

    fn errors(text: &str) -> Vec<String> {
        lines(text.as_bytes()).filter_map(Result::err).map(|error| error.to_string()).collect()
    }

    #[test]
    fn a_recording_round_trips() {
        let bytes = written();
        let read: Result<Vec<Line>, _> = lines(&bytes).collect();
        assert_eq!(read, Ok(recording()));
    }

    #[test]
    fn lines_look_as_documented() {
        let text = String::from_utf8(written()).expect("UTF-8");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(r#"{"recording":1,"started":"2026-03-01T13:44:00Z"}"#));
        assert_eq!(lines.next(), Some(r#"{"t":0.0,"host":"hgx-01","link":"connecting"}"#));
        assert_eq!(lines.nth(1), Some(r#"{"t":0.5,"host":"hgx-01","wire":{"echo":{"id":4}}}"#));
        assert_eq!(
            lines.last(),
            Some(concat!(
                r#"{"t":11.25,"host":"hgx-01","link":"down","error":{"kind":"timeout","#,
                r#""message":"no answer within 10 s","hint":"ssh hgx-01"}}"#
            ))
        );
    }

    #[test]
    fn a_last_line_that_is_cut_is_left_out_wherever_it_is_cut() {
        let bytes = written();
        let last = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').expect("lines") + 1;
        for end in last..bytes.len() - 1 {
            let read: Result<Vec<Line>, _> = lines(&bytes[..end]).collect();
            assert_eq!(read.expect("readable").len(), recording().len() - 1, "cut at {end} of {}", bytes.len());
        }
        let without_newline: Result<Vec<Line>, _> = lines(&bytes[..bytes.len() - 1]).collect();
        assert_eq!(without_newline, Ok(recording()), "only the newline is missing");
    }

    #[test]
    fn errors_name_line_and_cause() {
        assert_eq!(
            errors("{\"t\":1}\n"),
            ["line 1: not a recording: the first line should begin with {\"recording\":1"]
        );
        assert_eq!(errors("hello"), ["line 1: not a recording: the first line should begin with {\"recording\":1"]);
        assert_eq!(
            errors("{\"recording\":9,\"new\":[]}\n"),
            ["line 1: a recording of version 9, this gpufleet reads version 1"]
        );
        let start = "{\"recording\":1,\"started\":\"\"}\n";
        for (line, error) in [
            ("{\"host\":\"a\",\"link\":\"live\"}", "line 2: `t` should be the seconds since the start"),
            ("{\"t\":-1,\"host\":\"a\",\"link\":\"live\"}", "line 2: `t` should be the seconds since the start"),
            ("{\"t\":1,\"link\":\"live\"}", "line 2: `host` is missing"),
            ("{\"t\":1,\"host\":\"a\"}", "line 2: a line has either `wire` or `link`"),
            (
                "{\"t\":1,\"host\":\"a\",\"wire\":{\"hello\":{\"protocol\":7,\"probe_version\":\"9\"}}}",
                "line 2: the probe speaks protocol 7, this gpufleet speaks 1",
            ),
        ] {
            assert_eq!(errors(&format!("{start}{line}\n")), [error]);
        }
        assert_eq!(errors(&format!("{start}\n\nnoise\n")).len(), 1, "empty lines are no errors");
    }

    #[test]
    fn a_message_has_the_bounds_of_the_wire() {
        let pids = vec!["1"; codec::MAX_PROCESSES + 1].join(",");
        let snapshot = format!("{{\"snapshot\":{{\"processes\":{{\"pid\":[{pids}]}}}}}}");
        let text = format!("{{\"recording\":1}}\n{{\"t\":0,\"host\":\"a\",\"wire\":{snapshot}}}\n");
        assert_eq!(errors(&text), ["line 2: protocol violation: 4097 processes, at most 4096 are allowed"]);
    }

    #[test]
    fn errors_of_links_come_back() {
        let error = LinkError::new(LinkErrorKind::HostKeyChanged, "the host key changed").with_hint("ask");
        assert_eq!(LinkError::from(RecordedError::from(&error)), error);
        let unknown = RecordedError { kind: "teapot".into(), message: "short and stout".into(), hint: None };
        assert_eq!(LinkError::from(unknown), LinkError::new(LinkErrorKind::Closed, "short and stout"));
    }
}
