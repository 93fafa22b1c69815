//! Writes files on a blocking thread, so that a busy disk or a file server that does not answer never blocks the event
//! loop.

use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// The program ends after this time even if the disk has not taken a file.
pub(super) const END_LIMIT: Duration = Duration::from_secs(3);

/// A file and the state of its last write.
#[derive(Debug)]
pub(super) struct BackgroundWriter<F> {
    /// `None` during a write.
    idle_file: Option<F>,
    writing: Option<oneshot::Receiver<(F, Option<String>)>>,
}

impl<F: Send + 'static> BackgroundWriter<F> {
    /// Creates a writer without starting a write.
    pub(super) fn new(file: F) -> Self {
        Self { idle_file: Some(file), writing: None }
    }

    /// Returns the file unless a write is in progress.
    pub(super) fn idle_file(&mut self) -> Option<&mut F> {
        self.idle_file.as_mut()
    }

    /// Runs `write` on a blocking thread; it returns a message for the user or `None`. Does nothing while an earlier
    /// write is in progress. Must be called within a tokio runtime.
    pub(super) fn start_write(&mut self, write: impl FnOnce(&mut F) -> Option<String> + Send + 'static) {
        let Some(mut file) = self.idle_file.take() else { return };
        let (sender, writing) = oneshot::channel();
        self.writing = Some(writing);
        tokio::task::spawn_blocking(move || {
            let message = write(&mut file);
            // The receiver is gone when the program ends.
            let _taken = sender.send((file, message));
        });
    }

    /// Returns the message of the last write, once after it has ended.
    pub(super) fn take_message(&mut self) -> Option<String> {
        let written = self.writing.as_mut()?.try_recv().ok()?;
        self.finish_write(written)
    }

    /// Waits for the write in progress, then runs `write`. Waits at most `limit` for both.
    pub(super) async fn finish(
        mut self,
        limit: Duration,
        write: impl FnOnce(&mut F) -> Option<String> + Send + 'static,
    ) -> Option<String> {
        let end = Instant::now() + limit;
        let before = self.wait_for_write(end).await;
        self.start_write(write);
        self.wait_for_write(end).await.or(before)
    }

    async fn wait_for_write(&mut self, end: Instant) -> Option<String> {
        let written = timeout_at(end, self.writing.as_mut()?).await.ok()?.ok()?;
        self.finish_write(written)
    }

    fn finish_write(&mut self, (file, message): (F, Option<String>)) -> Option<String> {
        (self.idle_file, self.writing) = (Some(file), None);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const DEADLINE: Duration = Duration::from_secs(5);

    /// A write that blocks until the sender is used or dropped.
    fn slow(message: &'static str) -> (Sender<()>, impl FnOnce(&mut Vec<u8>) -> Option<String> + Send) {
        let (release, released): (_, Receiver<()>) = channel();
        let write = move |file: &mut Vec<u8>| {
            let _or_dropped = released.recv();
            file.push(1);
            Some(message.to_owned())
        };
        (release, write)
    }

    #[tokio::test]
    async fn a_slow_write_does_not_block_and_its_message_is_returned_once() {
        let mut file = BackgroundWriter::new(Vec::new());
        let (release, write) = slow("the disk is full");
        file.start_write(write);
        assert!(file.idle_file().is_none());
        file.start_write(|_| unreachable!("one at a time"));
        assert_eq!(file.take_message(), None);
        drop(release);
        let end = Instant::now() + DEADLINE;
        let message = loop {
            if let Some(message) = file.take_message() {
                break message;
            }
            assert!(Instant::now() < end, "the write does not end");
            tokio::task::yield_now().await;
        };
        assert_eq!((message.as_str(), file.idle_file().map(|file| file.len())), ("the disk is full", Some(1)));
        assert_eq!(file.take_message(), None);
    }

    #[tokio::test]
    async fn finish_waits_for_the_earlier_write() {
        let mut file = BackgroundWriter::new(Vec::new());
        let (release, write) = slow("the first");
        file.start_write(write);
        drop(release);
        let message = file.finish(DEADLINE, |file| Some(format!("{} before", file.len()))).await;
        assert_eq!(message.as_deref(), Some("1 before"));
    }

    #[tokio::test]
    async fn finish_gives_up_after_its_limit() {
        let mut file = BackgroundWriter::new(Vec::new());
        let (release, write) = slow("too late");
        file.start_write(write);
        let begun = Instant::now();
        assert_eq!(file.finish(Duration::from_millis(20), |_| unreachable!("one at a time")).await, None);
        assert!(begun.elapsed() < DEADLINE);
        drop(release);
    }
}
