//! How a command ends: its output, its error message, its exit code, and the signals that end it early.

use crate::output::paint::Paint;
use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code if some hosts did not report.
pub(super) const INCOMPLETE: u8 = 3;
/// The exit code of `free` if every host reported and no GPU matches.
pub(super) const NOTHING_FREE: u8 = 4;
/// The exit code of `findings` if a finding is firing.
pub(super) const FINDINGS_FIRING: u8 = 4;
/// The exit code after SIGINT.
pub(super) const INTERRUPTED: u8 = 130;

/// The error of a command: its message for standard error and its exit code.
#[derive(Debug)]
pub struct CommandError {
    text: String,
    code: u8,
}

impl CommandError {
    /// The command failed: exit code 1.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self { text: with_program(&error.to_string()), code: 1 }
    }

    /// The command line is wrong: exit code 2.
    pub fn usage(error: impl fmt::Display) -> Self {
        Self { text: with_program(&error.to_string()), code: 2 }
    }

    /// A message that is printed without the program's name: it begins with a file position or lists commands.
    pub fn verbatim(text: impl fmt::Display, code: u8) -> Self {
        Self { text: text.to_string(), code }
    }

    /// Writes the message to standard error and returns the exit code.
    pub fn print_and_return_code(&self) -> ExitCode {
        // A closed standard error must not cause a panic.
        let _ = write!(io::stderr(), "{self}");
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

/// Writes to standard output. A reader that has gone away (`| head`) is not an error.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CommandError::failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes an encoded JSON line to standard output.
pub(super) fn print_json(line: serde_json::Result<String>) -> Result<(), CommandError> {
    print(&line.map_err(|error| CommandError::failed(format!("cannot encode JSON: {error}")))?)
}

/// Writes a warning to standard error. A closed standard error is not an error.
pub(super) fn warn(message: &str) {
    let _ = writeln!(io::stderr(), "gpufleet: {message}");
}

/// Whether standard output takes colours.
pub(super) fn stdout_paint() -> Paint {
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Paint::of_terminal(io::stdout().is_terminal(), variable("NO_COLOR").as_deref(), variable("TERM").as_deref())
}

/// Receives SIGINT, SIGTERM and SIGHUP, which no longer end the process by themselves.
pub struct ExitSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl ExitSignals {
    /// Installs the handlers, so that the terminal can be restored before the program ends.
    pub fn new() -> Result<Self, CommandError> {
        let receiver = |kind| {
            signal(kind).map_err(|error| CommandError::failed(format!("cannot install signal handlers: {error}")))
        };
        Ok(Self {
            interrupt: receiver(SignalKind::interrupt())?,
            terminate: receiver(SignalKind::terminate())?,
            hang_up: receiver(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal and returns the exit code that shells use for it, 128 plus its number.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPTED,
            _ = self.terminate.recv() => 143,
            _ = self.hang_up.recv() => 129,
        }
    }
}
