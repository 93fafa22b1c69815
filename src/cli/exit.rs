//! How a command ends: its output, its error message, its exit code, and the signals that end it early.

use crate::output::paint::Paint;
use crate::wire::SafeText;
use rustix::process::Signal;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::Poll;
use tokio::signal::unix::{Signal as SignalReceiver, SignalKind, signal};

/// The exit code if some hosts did not report.
pub(super) const INCOMPLETE: u8 = 3;
/// The exit code of `free` if every host reported and no GPU matches.
pub(super) const NOTHING_FREE: u8 = 4;
/// The exit code of `findings` if a finding is firing.
pub(super) const FINDINGS_FIRING: u8 = 4;
/// The exit code of `why` if a hang is proven.
pub(super) const HANG_PROVEN: u8 = 4;
/// The exit code of `why` if a hang is likely.
pub(super) const HANG_LIKELY: u8 = 5;
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

/// Whether a text reached standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// It was written.
    All,
    /// The reader has gone away (`| head`).
    ReaderGone,
}

/// Writes to standard output. A reader that has gone away is not an error.
pub fn print(text: &str) -> Result<(), CommandError> {
    write_out(text).map(|_| ())
}

/// Writes to standard output and returns whether somebody reads it.
pub(super) fn write_out(text: &str) -> Result<Written, CommandError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Written::All),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
        Err(error) => Err(CommandError::failed(format!("cannot write to standard output: {error}"))),
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

/// Joins the lines of an error, for the log and the status bar, where each message is one line.
pub(super) fn one_line(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let text = text.lines().map(str::trim).collect::<Vec<_>>().join("; ");
    SafeText::new(text.strip_prefix("gpufleet: ").unwrap_or(&text)).to_string()
}

/// Whether standard output takes colours.
pub(super) fn stdout_paint() -> Paint {
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Paint::of_terminal(io::stdout().is_terminal(), variable("NO_COLOR").as_deref(), variable("TERM").as_deref())
}

/// The signals that end a program by default and leave it time to restore the terminal.
const EXIT_SIGNALS: [Signal; 9] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::ABORT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TERM,
    Signal::XCPU,
];
/// Of these, the ones for which the program exits with a code of its own choice, after it has saved its state.
const CLEAN_EXIT_SIGNALS: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::TERM];

/// The number of the signal by which the program must end, or 0.
static FATAL_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Receives the signals that end the program, which no longer end it by themselves.
pub struct ExitSignals {
    receivers: Vec<(Signal, SignalReceiver)>,
}

impl ExitSignals {
    /// Installs the handlers, so that the terminal can be restored before the program ends.
    pub fn new() -> Result<Self, CommandError> {
        let receiver = |kind: Signal| Ok((kind, signal(SignalKind::from_raw(kind.as_raw()))?));
        let receivers: io::Result<Vec<_>> = EXIT_SIGNALS.into_iter().map(receiver).collect();
        let receivers =
            receivers.map_err(|error| CommandError::failed(format!("cannot install signal handlers: {error}")))?;
        Ok(Self { receivers })
    }

    /// Like [`ExitSignals::new`], without SIGHUP, which asks a service to read its configuration again.
    pub(super) fn with_reload() -> Result<(Self, ReloadSignal), CommandError> {
        let mut exit_signals = Self::new()?;
        let hangup = exit_signals.receivers.iter().position(|(kind, _)| *kind == Signal::HUP);
        let hangup = hangup.map(|index| exit_signals.receivers.remove(index).1);
        Ok((exit_signals, ReloadSignal(hangup)))
    }

    /// Waits for a signal and returns the exit code that shells use for it, 128 plus its number. Cancel safe.
    pub async fn next(&mut self) -> u8 {
        let signal = poll_fn(|context| {
            let mut receivers = self.receivers.iter_mut();
            let received =
                receivers.find_map(|(kind, receiver)| receiver.poll_recv(context).is_ready().then_some(*kind));
            received.map_or(Poll::Pending, Poll::Ready)
        });
        let signal = signal.await;
        if !CLEAN_EXIT_SIGNALS.contains(&signal) {
            FATAL_SIGNAL.store(signal.as_raw(), Ordering::SeqCst);
        }
        128_u8.saturating_add(signal.as_raw() as u8)
    }
}

/// Receives SIGHUP as a request to read the configuration again.
pub(super) struct ReloadSignal(Option<SignalReceiver>);

impl ReloadSignal {
    /// Waits for the next request. Cancel safe.
    pub(super) async fn next(&mut self) {
        let received = match &mut self.0 {
            Some(receiver) => receiver.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Ends the program by the last signal if that is one whose sender expects it, for example SIGQUIT with a core dump. Call
/// it when the terminal is restored.
pub(super) fn end_by_fatal_signal() {
    let signal = FATAL_SIGNAL.load(Ordering::SeqCst);
    if signal != 0 {
        // If that fails, the exit code names the signal.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_the_log() {
        let error = CommandError::failed("cannot read lab.toml: it is a directory\n  hint: name a file in it\n");
        assert_eq!(one_line(&error), "cannot read lab.toml: it is a directory; hint: name a file in it");
    }
}
