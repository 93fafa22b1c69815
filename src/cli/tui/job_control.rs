//! Stops and continuations that come from outside: `kill -TSTP`, and `fg` after whatever stopped the program.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

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
