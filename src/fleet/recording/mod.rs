//! Recordings: what the hosts sent and how their links stood, one JSON object a line; docs/recording.md describes it.
//!
//! ```text
//! {"recording":1,"started":"2026-03-01T13:44:00Z"}
//! {"t":0.412,"host":"hgx-01","link":"connecting"}
//! {"t":0.412,"host":"hgx-01","wire":{"hello":{...}}}
//! {"t":9.02,"host":"hgx-02","link":"down","error":{"kind":"timeout","message":"...","hint":null}}
//! ```
//!
//! `t` is in seconds since the recording was started. `wire` is one message of the probe. A program that is killed while
//! it writes leaves a last line that is cut: it is left out, everything before it counts.

mod line;
mod recorder;
mod redactor;
mod replay;

pub use line::{
    HostLine, Line, RECORDING_VERSION, RecordedError, RecordedEvent, RecordedLinkState, RecordingError,
    RecordingErrorKind, decode, encode, lines,
};
pub use recorder::Recorder;
pub use redactor::Redactor;
pub use replay::HostReplay;
