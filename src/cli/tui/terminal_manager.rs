//! Hands the terminal over between the screen, a remote shell, and the shell that started gpufleet (job control).

use super::keyboard::{self, Keyboard, TerminalReply};
use super::remote_shell::RemoteShell;
use super::terminal::Screen;
use crate::config::HostConfig;
use crate::ssh::Context;
use crossterm::event::Event as TerminalEvent;
use std::io;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The terminal with its current user.
pub(super) struct TerminalManager {
    /// Draws on the terminal.
    pub(super) screen: Screen,
    /// Reads the terminal; `None` while a shell uses it.
    keyboard: Option<Keyboard>,
    remote_shell: Option<RemoteShell>,
    /// A bell or notification that arrived while a shell used the terminal.
    deferred_sequence: Option<String>,
}

/// The result of [`TerminalManager::next`].
pub(super) enum TerminalInput {
    /// A key, a click or a size; an error or `None` if the terminal is gone.
    Input(Option<io::Result<TerminalEvent>>),
    /// The shell has ended, with a message for the user.
    ShellEnded(String),
}

impl TerminalManager {
    /// Takes the terminal over. Keys that were typed during a query come first.
    ///
    /// # Errors
    /// There is no terminal.
    pub(super) fn enter(has_mouse: bool, reply: TerminalReply) -> io::Result<Self> {
        let screen = Screen::enter(has_mouse)?;
        let keyboard = Some(Keyboard::after(reply)?);
        Ok(Self { screen, keyboard, remote_shell: None, deferred_sequence: None })
    }

    /// Whether a shell uses the terminal.
    pub(super) fn is_shell_running(&self) -> bool {
        self.remote_shell.is_some()
    }

    /// Passes SIGINT to a shell that has not started yet.
    pub(super) fn interrupt_shell(&self) {
        if let Some(remote_shell) = &self.remote_shell {
            remote_shell.interrupt();
        }
    }

    /// Waits for the next input or for the end of the shell. Cancel safe.
    pub(super) async fn next(&mut self) -> TerminalInput {
        match (&mut self.remote_shell, &mut self.keyboard) {
            (Some(remote_shell), _) => TerminalInput::ShellEnded(remote_shell.ended().await),
            (None, Some(keyboard)) => TerminalInput::Input(keyboard.next().await),
            (None, None) => std::future::pending().await,
        }
    }

    /// Releases the terminal and starts a shell on a host. If that fails, takes the terminal back and returns a
    /// message.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) async fn start_remote_shell(
        &mut self,
        host: &Arc<HostConfig>,
        context: Option<&Arc<Context>>,
    ) -> io::Result<Option<String>> {
        if let Some(keyboard) = self.keyboard.take() {
            keyboard.stop().await;
        }
        Screen::release();
        match RemoteShell::start(host, context) {
            Ok(started) => {
                self.remote_shell = Some(started);
                Ok(None)
            }
            Err(message) => {
                self.screen.reacquire()?;
                self.keyboard = Some(Keyboard::start()?);
                Ok(Some(message))
            }
        }
    }

    /// Takes the terminal back after a shell, and drops the last keys meant for the shell.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn reacquire(&mut self) -> io::Result<()> {
        self.remote_shell = None;
        self.screen.reacquire()?;
        keyboard::discard();
        self.keyboard = Some(Keyboard::start()?);
        self.deferred_sequence.take().map_or(Ok(()), |sequence| self.screen.send(&sequence))
    }

    /// Writes a bell or notification, or keeps it while a shell uses the terminal.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn send_or_defer(&mut self, sequence: String) -> io::Result<()> {
        if self.is_shell_running() {
            self.deferred_sequence = Some(sequence);
            return Ok(());
        }
        self.screen.send(&sequence)
    }

    /// Restores the terminal, stops the process, and takes the terminal over again when it continues. A shell has
    /// restored the terminal already.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn suspend(&mut self, job_control_signals: &mut JobControlSignals) -> io::Result<()> {
        if self.is_shell_running() {
            return job_control_signals.stop();
        }
        Screen::release();
        job_control_signals.stop()?;
        self.screen.reacquire()
    }

    /// Repairs the screen after a stop without notice (SIGSTOP).
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn restore(&mut self) -> io::Result<()> {
        if self.is_shell_running() { Ok(()) } else { self.screen.force_reacquire() }
    }
}

/// A job control request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobControlEvent {
    /// Stop the process.
    Stop,
    /// The process continues after a stop without notice, so another program may have changed the terminal.
    Continued,
}

/// Receives SIGTSTP and SIGCONT. SIGTSTP no longer stops the process by itself.
pub(super) struct JobControlSignals {
    stop: Signal,
    resume: Signal,
    /// The next SIGCONT ends a stop by gpufleet itself, which takes over the terminal without it.
    is_expected: bool,
}

impl JobControlSignals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            stop: signal(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
            resume: signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
            is_expected: false,
        })
    }

    /// Waits for the next request. Cancel safe.
    pub(super) async fn next(&mut self) -> JobControlEvent {
        loop {
            tokio::select! {
                _ = self.stop.recv() => return JobControlEvent::Stop,
                _ = self.resume.recv() => {
                    if !std::mem::take(&mut self.is_expected) {
                        return JobControlEvent::Continued;
                    }
                }
            }
        }
    }

    /// Stops this process as Ctrl-Z does, and returns when it continues.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.is_expected = true;
        // SIGTSTP is handled above. SIGTTIN stops the process as well but, unlike SIGSTOP, not if no shell could
        // continue it.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TTIN)?;
        Ok(())
    }
}
