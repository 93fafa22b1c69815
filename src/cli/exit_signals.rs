//! The signals that end the program.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP from now on.
pub struct ExitSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl ExitSignals {
    /// Takes the signals over, so that what is open can be put back before the program ends.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one, and gives the exit code that shells use for it: 128 and its number.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = self.hang_up.recv() => 129,
        }
    }
}
