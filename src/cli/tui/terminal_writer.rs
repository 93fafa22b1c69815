//! Writes to the terminal on a thread: a terminal that takes no bytes, because its reader has stopped, stops neither the
//! event loop nor the hosts.
//!
//! The event loop draws only while the writer is idle. So at most one frame waits, and the next one shows the latest
//! state.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;

/// Bells and notifications are dropped while so many bytes wait.
const MAX_WAITING: usize = 64 * 1024;

/// Where the bytes go. A clone writes to the same terminal.
#[derive(Debug, Clone)]
pub(super) struct TerminalWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// For the event loop, which cannot wait for a [`Condvar`].
    became_idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    is_writing: bool,
    /// Why the last write failed, until it is reported.
    error: Option<io::Error>,
}

impl State {
    fn is_idle(&self) -> bool {
        !self.is_writing && self.waiting.is_empty()
    }
}

impl TerminalWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(super) fn start(terminal: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let writer = Self { shared: Arc::clone(&shared) };
        thread::Builder::new().name("terminal".to_owned()).spawn(move || shared.write_to(terminal))?;
        Ok(writer)
    }

    /// Whether everything is written.
    pub(super) fn is_idle(&self) -> bool {
        self.shared.lock().is_idle()
    }

    /// Waits until everything is written, or a write has failed. May be dropped and called again.
    pub(super) async fn idle(&self) {
        loop {
            let became_idle = self.shared.became_idle.notified();
            if self.is_idle() {
                return;
            }
            became_idle.await;
        }
    }

    /// Blocks until everything is written, at most so long. Returns whether it is.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), limit, |state| !state.is_idle());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_idle()
    }

    /// Writes what may get lost: nothing, while too much waits already.
    ///
    /// # Errors
    /// As [`Write::write`] of this type.
    pub(super) fn offer(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.shared.lock().waiting.len() + bytes.len() > MAX_WAITING { Ok(()) } else { self.write_all(bytes) }
    }
}

/// Returns at once. An error is that of an earlier write.
impl Write for TerminalWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        state.waiting.extend_from_slice(bytes);
        drop(state);
        self.shared.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut terminal: impl Write) {
        let mut bytes = Vec::new();
        loop {
            let nothing_waits = |state: &mut State| state.waiting.is_empty();
            let waited = self.changed.wait_while(self.lock(), nothing_waits);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut state.waiting, &mut bytes);
            state.is_writing = true;
            drop(state);
            let written = terminal.write_all(&bytes).and_then(|()| terminal.flush());
            bytes.clear();
            let mut state = self.lock();
            state.is_writing = false;
            if let Err(error) = written {
                // The rest would be written behind half a frame.
                state.waiting.clear();
                state.error = Some(error);
            }
            let is_idle = state.is_idle();
            drop(state);
            if is_idle {
                self.changed.notify_all();
                self.became_idle.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const DEADLINE: Duration = Duration::from_secs(5);

    /// A terminal that takes a write for each message, and fails once nobody sends any more.
    struct Slow {
        turns: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turns.recv().map_err(|_| io::Error::other("the terminal is gone"))?;
            self.taken.send(bytes.to_vec()).expect("the test listens");
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (TerminalWriter, Sender<()>, Receiver<Vec<u8>>) {
        let ((turn, turns), (taken, took)) = (channel(), channel());
        (TerminalWriter::start(Slow { turns, taken }).expect("starts"), turn, took)
    }

    #[tokio::test]
    async fn a_terminal_that_takes_nothing_holds_nobody_up() {
        let (mut writer, turn, took) = slow();
        assert!(writer.is_idle());
        writer.write_all(b"frame").expect("waits");
        assert!(!writer.is_idle());
        assert!(!writer.wait(Duration::from_millis(1)));
        turn.send(()).expect("the terminal takes it");
        tokio::time::timeout(DEADLINE, writer.idle()).await.expect("becomes idle");
        assert_eq!(took.recv(), Ok(b"frame".to_vec()));
        assert!(writer.is_idle() && writer.wait(Duration::ZERO));
    }

    #[test]
    fn what_may_get_lost_is_dropped_while_too_much_waits() {
        let (mut writer, turn, took) = slow();
        writer.write_all(b"frame").expect("waits");
        // The thread has taken the frame: what follows waits behind it.
        while !writer.shared.lock().is_writing {
            thread::yield_now();
        }
        writer.offer(b"bell").expect("waits");
        writer.write_all(&vec![b'-'; MAX_WAITING]).expect("is never dropped");
        writer.offer(b"bell").expect("is dropped");
        turn.send(()).and_then(|()| turn.send(())).expect("the terminal takes both");
        assert!(writer.wait(DEADLINE));
        let taken: Vec<usize> = took.try_iter().map(|bytes| bytes.len()).collect();
        assert_eq!(taken, [5, 4 + MAX_WAITING]);
    }

    #[test]
    fn a_terminal_that_is_gone_fails_the_next_write() {
        let (mut writer, turn, _took) = slow();
        drop(turn);
        writer.write_all(b"frame").expect("waits");
        assert!(writer.wait(DEADLINE));
        let error = writer.write_all(b"frame").expect_err("is reported");
        assert_eq!(error.to_string(), "the terminal is gone");
    }
}
