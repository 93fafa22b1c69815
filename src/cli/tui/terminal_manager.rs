//! The terminal and who has it: the screen, or a shell that somebody opened from it.

use super::keyboard::{self, Keyboard, TerminalReply};
use super::remote_shell::RemoteShell;
use super::terminal::Screen;
use crate::config::HostConfig;
use crossterm::event::Event as TerminalEvent;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The terminal.
pub(super) struct TerminalManager {
    /// What draws on it while it is ours.
    pub(super) screen: Screen,
    /// What reads it while it is ours.
    keyboard: Option<Keyboard>,
    remote_shell: Option<RemoteShell>,
    /// A bell or notification that came while somebody else had the terminal.
    deferred_sequence: Option<String>,
}

/// What the terminal tells.
pub(super) enum TerminalInput {
    /// A key, a click, a size. An error, or nothing, when the terminal is gone.
    Input(Option<io::Result<TerminalEvent>>),
    /// The shell has ended; what came of it, in words.
    ShellEnded(String),
}

impl TerminalManager {
    /// Takes the terminal over; what was typed while it was asked something comes first.
    ///
    /// # Errors
    /// When there is no terminal.
    pub(super) fn enter(has_mouse: bool, reply: TerminalReply) -> io::Result<Self> {
        let screen = Screen::enter(has_mouse)?;
        let keyboard = Some(Keyboard::after(reply)?);
        Ok(Self { screen, keyboard, remote_shell: None, deferred_sequence: None })
    }

    /// Whether a shell has the terminal.
    pub(super) fn is_shell_running(&self) -> bool {
        self.remote_shell.is_some()
    }

    /// The next thing it tells. May be dropped and called again.
    pub(super) async fn next(&mut self) -> TerminalInput {
        match (&mut self.remote_shell, &mut self.keyboard) {
            (Some(remote_shell), _) => TerminalInput::ShellEnded(remote_shell.ended().await),
            (None, Some(keyboard)) => TerminalInput::Input(keyboard.next().await),
            (None, None) => std::future::pending().await,
        }
    }

    /// Lends the terminal to a shell on a host. Where that cannot be started it is ours again, and the text says why.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) async fn start_remote_shell(&mut self, host: &HostConfig) -> io::Result<Option<String>> {
        if let Some(keyboard) = self.keyboard.take() {
            keyboard.stop().await;
        }
        Screen::release();
        match RemoteShell::start(host) {
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

    /// Takes the terminal back after a shell, whose last keys are not ours.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn reacquire(&mut self) -> io::Result<()> {
        self.remote_shell = None;
        self.screen.reacquire()?;
        keyboard::discard();
        self.keyboard = Some(Keyboard::start()?);
        self.deferred_sequence.take().map_or(Ok(()), |sequence| self.screen.send(&sequence))
    }

    /// Sends a bell or a notification to the terminal; once it is ours again, where it is lent.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn send_or_defer(&mut self, sequence: String) -> io::Result<()> {
        if self.is_shell_running() {
            self.deferred_sequence = Some(sequence);
            return Ok(());
        }
        self.screen.send(&sequence)
    }

    /// Gives the terminal back, stops the program, and takes the terminal over again once it continues. There is nothing
    /// to give back while it is lent.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn suspend(&mut self, job_control_signals: &mut JobControlSignals) -> io::Result<()> {
        if self.is_shell_running() {
            return job_control_signals.stop();
        }
        Screen::release();
        job_control_signals.stop()?;
        self.screen.reacquire()
    }

    /// Repairs the screen after a stop that nobody could prepare for.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn restore(&mut self) -> io::Result<()> {
        if self.is_shell_running() { Ok(()) } else { self.screen.force_reacquire() }
    }
}

/// What somebody does with this job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobControlEvent {
    /// It is to stop.
    Stop,
    /// It was stopped, and not by itself, and continues: the terminal may be as others left it.
    Continued,
}

/// SIGTSTP and SIGCONT from now on; SIGTSTP no longer stops the program by itself.
pub(super) struct JobControlSignals {
    stop: Signal,
    resume: Signal,
    /// The next continuation ends a stop of our own, after which the terminal was taken back already.
    is_expected: bool,
}

impl JobControlSignals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            stop: signal(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
            resume: signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
            is_expected: false,
        })
    }

    /// The next one. May be dropped and called again.
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

    /// Stops this process as Ctrl-Z does to any program; returns once it continues.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.is_expected = true;
        // SIGTSTP is heard above. SIGTTIN stops a job as well, and, unlike SIGSTOP, does nothing to a program that no
        // shell could continue.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TTIN)?;
        Ok(())
    }
}
