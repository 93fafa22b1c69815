//! Input and output of [`App::update`](super::App::update): events and effects.

use super::action::Action;
use crate::config::HostConfig;
use crate::diagnosis::{FindingNotification, FindingVerdict};
use crate::fleet::{HistoryQuery, HistoryReply, HostId, HostUpdate, JobKey};
use crate::ssh::prompt::{Answer, Prompt, PromptId};
use crate::wire::{Request, SafeText};
use crossterm::event::{KeyEvent, MouseEvent};
use std::sync::Arc;
use std::time::Duration;

/// Something that happened. Only the event loop creates events.
#[derive(Debug)]
pub enum Event {
    /// A key was pressed or repeated. Key releases are not reported.
    Key(KeyEvent),
    /// Text was pasted.
    Pasted(String),
    /// The mouse was clicked or its wheel turned.
    Mouse(MouseEvent),
    /// A label that stands for an action was clicked: a hint, a column header.
    Clicked(Action),
    /// The terminal was resized to this many columns and rows.
    Resized(u16, u16),
    /// A host task sent an update.
    Host(HostId, Box<HostUpdate>),
    /// Hosts were added, each with its id: the next free one, or that of a host which it replaces,
    /// and the order in which all hosts are shown now.
    HostsAdded(Vec<(HostId, Arc<HostConfig>)>, Vec<HostId>),
    /// A collector sent its verdicts about the jobs of this host. They replace its earlier ones.
    Judged(HostId, Vec<(JobKey, FindingVerdict)>),
    /// A request for a stored history was answered.
    HistoryRead(HistoryReply),
    /// SSH needs an answer from the user.
    Prompted(Prompt),
    /// A prompt no longer needs an answer.
    PromptWithdrawn(PromptId),
    /// Something outside the fleet failed, such as a hook or a file write. One sentence with a way out.
    ProblemReported(SafeText),
    /// An action that takes time has finished or failed. The text is for the hint bar.
    ActionFinished(SafeText),
    /// One second has passed. Ages, staleness and missing data depend on it.
    Ticked,
    /// The program continues after it was stopped (Ctrl-Z, laptop sleep).
    Resumed,
}

/// A command to the event loop. [`App::update`](super::App::update) returns effects; the event loop performs them.
#[derive(Debug)]
pub enum Effect {
    /// Exit the program.
    Quit,
    /// Draw the whole screen again, whatever the terminal shows now.
    Repaint,
    /// Stop the process as Ctrl-Z does, and restore the screen when it continues.
    Suspend,
    /// Connect to this host now.
    Retry(HostId),
    /// Use this sampling interval on every host.
    SetInterval(Duration),
    /// Send a request to a host's probe.
    Request(HostId, Request),
    /// Request a history from the store; the answer is [`Event::HistoryRead`].
    ReadHistory(HistoryQuery),
    /// Send notifications about findings to the configured hooks and the desktop.
    Notify(Vec<FindingNotification>),
    /// Save the state of the diagnosis engine now.
    SaveDiagnosisState,
    /// Run a shell on this host in the terminal, and restore the screen when it ends.
    Shell(HostId),
    /// Enable or disable mouse reports of the terminal.
    Mouse(bool),
    /// Copy a text to the clipboard.
    Copy(CopiedText),
    /// Append a line to the log of signals.
    LogSignal(SafeText),
    /// Answer a prompt.
    Answer(PromptId, Answer),
}

/// A text for the clipboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedText {
    /// A description for the notice: `the ssh command of hgx-01`.
    pub what: String,
    /// The lines of the text.
    pub lines: Vec<SafeText>,
}

impl CopiedText {
    /// Returns the lines joined by newlines.
    pub fn text(&self) -> String {
        self.lines.iter().map(SafeText::as_str).collect::<Vec<_>>().join("\n")
    }
}
