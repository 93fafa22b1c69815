//! A file that is written beside the event loop: a disk that is busy, or a file server that does not answer, holds up
//! neither the screen nor any host.

use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// A disk that has not taken a file by then does not keep the program from ending.
pub(super) const END_LIMIT: Duration = Duration::from_secs(3);

/// A file of ours, and whether it is being written.
#[derive(Debug)]
pub(super) struct BackgroundWriter<F> {
    /// `None` while it is being written.
    idle_file: Option<F>,
    writing: Option<oneshot::Receiver<(F, Option<String>)>>,
}

impl<F: Send + 'static> BackgroundWriter<F> {
    /// Nothing is written yet.
    pub(super) fn new(file: F) -> Self {
        Self { idle_file: Some(file), writing: None }
    }

    /// The file, unless it is being written.
    pub(super) fn idle_file(&mut self) -> Option<&mut F> {
        self.idle_file.as_mut()
    }

    /// Writes it on a thread for calls that may wait; `write` returns what a person should know. Nothing happens while an
    /// earlier write goes on. To be called within a tokio runtime.
    pub(super) fn start_write(&mut self, write: impl FnOnce(&mut F) -> Option<String> + Send + 'static) {
        let Some(mut file) = self.idle_file.take() else { return };
        let (sender, writing) = oneshot::channel();
        self.writing = Some(writing);
        tokio::task::spawn_blocking(move || {
            let message = write(&mut file);
            // At the end of the program nobody waits any longer.
            let _taken = sender.send((file, message));
        });
    }

    /// What a person should know of the last write, once after it has ended.
    pub(super) fn take_message(&mut self) -> Option<String> {
        let written = self.writing.as_mut()?.try_recv().ok()?;
        self.finish_write(written)
    }

    /// Writes it for the last time, after what is being written now. Waits no longer than `limit` for both.
    pub(super) async fn finish(
        mut self,
        limit: Duration,
        write: impl FnOnce(&mut F) -> Option<String> + Send + 'static,
    ) -> Option<String> {
        let end = Instant::now() + limit;
        let before = self.refresh_derived_state(end).await;
        self.start_write(write);
        self.refresh_derived_state(end).await.or(before)
    }

    async fn refresh_derived_state(&mut self, end: Instant) -> Option<String> {
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

    /// A write that lasts until the sender is used or dropped.
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
    async fn a_write_that_lasts_holds_up_nobody_and_is_heard_of_once() {
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
            assert!(Instant::now() < end, "it does not end");
            tokio::task::yield_now().await;
        };
        assert_eq!((message.as_str(), file.idle_file().map(|file| file.len())), ("the disk is full", Some(1)));
        assert_eq!(file.take_message(), None);
    }

    #[tokio::test]
    async fn the_last_write_comes_after_the_one_before() {
        let mut file = BackgroundWriter::new(Vec::new());
        let (release, write) = slow("the first");
        file.start_write(write);
        drop(release);
        let message = file.finish(DEADLINE, |file| Some(format!("{} before", file.len()))).await;
        assert_eq!(message.as_deref(), Some("1 before"));
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_is_not_waited_for_at_the_end() {
        let mut file = BackgroundWriter::new(Vec::new());
        let (release, write) = slow("too late");
        file.start_write(write);
        let begun = Instant::now();
        assert_eq!(file.finish(Duration::from_millis(20), |_| unreachable!("one at a time")).await, None);
        assert!(begun.elapsed() < DEADLINE);
        drop(release);
    }
}
