//! How a command ends.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Some or all hosts did not report.
pub(super) const INCOMPLETE: u8 = 3;
/// Every host has reported, and no GPU is free that suits.
pub(super) const NOTHING_FREE: u8 = 4;

/// Why a command could not do its work: what a person reads, and the exit code.
#[derive(Debug)]
pub struct CommandError {
    text: String,
    code: u8,
}

impl CommandError {
    /// Nothing could be shown.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self { text: with_program(&error.to_string()), code: 1 }
    }

    /// The command line is wrong.
    pub fn usage(error: impl fmt::Display) -> Self {
        Self { text: with_program(&error.to_string()), code: 2 }
    }

    /// A text that stands for itself: it begins with a place in a file, or tells what to type.
    pub fn verbatim(text: impl fmt::Display, code: u8) -> Self {
        Self { text: text.to_string(), code }
    }

    /// The exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

fn with_program(text: &str) -> String {
    format!("gpufleet: {}\n", text.trim_end())
}

impl fmt::Display for CommandError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for CommandError {}

/// Writes to standard output. A reader that has gone (`| head`) is no failure: it has what it wanted.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CommandError::failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
