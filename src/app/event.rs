//! What can happen, as one closed set.

use crate::fleet::{HostId, HostUpdate};
use crate::ssh::prompt::{Prompt, PromptId};
use crate::wire::SafeText;
use crossterm::event::{KeyEvent, MouseEvent};

/// Something that happened, in the past tense. The event loop is the only place that makes one.
#[derive(Debug)]
pub enum Event {
    /// A key was pressed (or repeated; releases are not reported).
    Key(KeyEvent),
    /// Text was pasted.
    Pasted(String),
    /// The mouse was clicked or its wheel turned.
    Mouse(MouseEvent),
    /// The terminal has this many columns and rows now.
    Resized(u16, u16),
    /// A host task reported.
    Host(HostId, Box<HostUpdate>),
    /// A question came up that a person must answer.
    Prompted(Prompt),
    /// A question is no longer open.
    PromptWithdrawn(PromptId),
    /// Something went wrong beside the fleet, in one sentence with its way out: a hook failed, a file cannot be written.
    ProblemReported(SafeText),
    /// Something that was asked for is done, or cannot be: what came of it, for the hint bar.
    ActionFinished(SafeText),
    /// A second has passed: ages, stale marks and missed data depend on it.
    Ticked,
    /// The program was stopped and continues (Ctrl-Z, laptop sleep).
    Resumed,
}
