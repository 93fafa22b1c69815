//! What the event loop shall do, as data.

use super::CopiedText;
use crate::diagnosis::FindingNotification;
use crate::fleet::HostId;
use crate::ssh::prompt::{Answer, PromptId};
use crate::wire::{Request, SafeText};
use std::time::Duration;

/// Something to be done, in the imperative. [`super::App::update`] returns them; the event loop performs them.
#[derive(Debug)]
pub enum Effect {
    /// Leave the program.
    Quit,
    /// Draw everything anew, whatever the terminal shows now.
    Repaint,
    /// Stop like any program at Ctrl-Z, and come back.
    Suspend,
    /// Try this host again now.
    Retry(HostId),
    /// Sample at this interval on every host.
    SetInterval(Duration),
    /// Send a request to a host's probe.
    Request(HostId, Request),
    /// Tell somebody who looks elsewhere what diagnosis found.
    Notify(Vec<FindingNotification>),
    /// Write what diagnosis remembers to its file now.
    SaveDiagnosisState,
    /// Lend the terminal to a shell on this host, and come back when that ends.
    Shell(HostId),
    /// Let the terminal report clicks and the wheel, or leave them to it.
    Mouse(bool),
    /// Put this where it can be pasted from, and say where.
    Copy(CopiedText),
    /// Write a line into the log of signals.
    LogSignal(SafeText),
    /// Answer a question.
    Answer(PromptId, Answer),
}
