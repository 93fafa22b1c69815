//! Whole lines to standard output, from several threads.

use crate::wire::Message;
use crate::wire::codec::encode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::{Errno, write};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a last message waits for the line that is being written.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(100);
/// Between two looks whether it has been.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(1);

/// A pipe to the controller. A line is written whole or the pipe is broken.
#[derive(Debug)]
pub(crate) struct Output<F> {
    file: F,
    write_lock: Mutex<()>,
}

impl<F: AsFd> Output<F> {
    pub(crate) fn new(file: F) -> Self {
        Self { file, write_lock: Mutex::new(()) }
    }

    /// Writes one message, and waits for as long as the pipe is full.
    ///
    /// # Errors
    /// What the kernel says when nobody reads any more: `EPIPE`.
    pub(crate) fn send(&self, message: &Message) -> Result<(), Errno> {
        // Every type of the contract has a JSON form; if one had none, its line would be missing, no more.
        let Ok(line) = encode(message) else { return Ok(()) };
        let _write_lock = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_all(&line)
    }

    /// Writes a last message if that is soon possible: nobody may be reading.
    pub(crate) fn send_last(&self, message: &Message) {
        let Some(write_lock) = self.lock_within() else { return };
        let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT)];
        let is_ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0);
        // A pipe that is ready has room for one page, and a last message is shorter.
        if is_ready && let Ok(line) = encode(message) {
            let _ignored: Result<(), Errno> = self.write_all(&line);
        }
        drop(write_lock);
    }

    /// The turn, unless whoever has it waits for a full pipe. A line takes microseconds otherwise.
    fn lock_within(&self) -> Option<MutexGuard<'_, ()>> {
        let deadline = Instant::now() + LAST_MESSAGE_TIMEOUT;
        loop {
            match self.write_lock.try_lock() {
                Ok(write_lock) => return Some(write_lock),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY_DELAY),
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }

    fn write_all(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match write(&self.file, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT)];
                    poll(&mut fds, None).or_else(|error| if error == Errno::INTR { Ok(0) } else { Err(error) })?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::io::Read;

    #[test]
    fn lines_arrive_whole_and_a_closed_pipe_is_an_error() {
        let (reader, writer) = pipe().expect("pipe");
        let output = Output::new(writer);
        output.send(&Message::Echo { id: 7 }).expect("writes");
        let mut bytes = [0; 64];
        let mut reader = std::fs::File::from(reader);
        let count = reader.read(&mut bytes).expect("reads");
        assert_eq!(&bytes[..count], b"{\"echo\":{\"id\":7}}\n");
        drop(reader);
        assert_eq!(output.send(&Message::Echo { id: 8 }), Err(Errno::PIPE));
    }

    #[test]
    fn the_last_message_follows_a_line_in_progress() {
        let (reader, writer) = pipe().expect("pipe");
        let output = Output::new(writer);
        let write_lock = output.write_lock.lock().expect("is free");
        let (begins, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begins.send(()).expect("is heard");
                output.send_last(&Message::Echo { id: 9 });
            });
            begun.recv().expect("begins");
            drop(write_lock);
        });
        drop(output);
        let mut text = String::new();
        std::fs::File::from(reader).read_to_string(&mut text).expect("reads");
        assert_eq!(text, "{\"echo\":{\"id\":9}}\n");
    }

    #[test]
    fn a_last_message_never_waits_for_a_reader() {
        let (_reader, writer) = pipe().expect("pipe");
        rustix::io::ioctl_fionbio(&writer, true).expect("non-blocking");
        while write(&writer, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).expect("blocking");
        let output = Output::new(writer);
        output.send_last(&Message::Farewell { reason: "full".into() });
        let _write_lock = output.write_lock.lock();
        output.send_last(&Message::Farewell { reason: "full, and somebody waits for it".into() });
    }
}
