//! The thread that writes the history, behind a bounded channel.

use super::history::{Batch, History, HistoryError};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Minutes that wait for the thread.
const WAITING_BATCHES: usize = 16;
/// Minutes that wait for a disk that is full or does not answer. Older ones are dropped, and the log says so.
const MAX_PENDING: usize = 240;
/// Messages that wait for the event loop; further ones are dropped.
const WAITING_MESSAGES: usize = 64;

/// Writes batches on its own thread. Messages about failures wait for [`HistoryWriter::message`].
pub struct HistoryWriter {
    batches: Option<SyncSender<Batch>>,
    messages: Receiver<String>,
    /// Batches that the thread could not take.
    pending: VecDeque<Batch>,
    thread: Option<JoinHandle<()>>,
}

impl HistoryWriter {
    /// Opens the history and starts the thread. The second value is a message for the log.
    ///
    /// # Errors
    /// See [`History::open`].
    pub fn start(path: &Path) -> Result<(Self, Option<String>), HistoryError> {
        let (history, message) = History::open(path)?;
        let (batches, to_write) = sync_channel(WAITING_BATCHES);
        let (sender, messages) = sync_channel(WAITING_MESSAGES);
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || write_all(history, &to_write, &sender))
            .map_err(|error| HistoryError::Failed {
                operation: "write",
                path: path.to_owned(),
                cause: error.to_string(),
            })?;
        let writer = Self { batches: Some(batches), messages, pending: VecDeque::new(), thread: Some(thread) };
        Ok((writer, message))
    }

    /// Hands a batch to the thread without waiting.
    pub fn write(&mut self, batch: Batch) {
        self.pending.push_back(batch);
        let Some(batches) = &self.batches else { return };
        while let Some(batch) = self.pending.pop_front() {
            match batches.try_send(batch) {
                Ok(()) => {}
                Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => {
                    self.pending.push_front(batch);
                    break;
                }
            }
        }
        if self.pending.len() > MAX_PENDING {
            self.pending.pop_front();
        }
    }

    /// Returns the next message for the log.
    pub fn message(&self) -> Option<String> {
        self.messages.try_recv().ok()
    }

    /// Writes everything that waits and ends the thread. Blocking. Returns the messages for the log.
    pub fn finish(mut self) -> Vec<String> {
        if let Some(batches) = self.batches.take() {
            // An error means that the thread has ended.
            self.pending.drain(..).for_each(|batch| drop(batches.send(batch)));
        }
        let mut messages = Vec::new();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            messages.push("the thread of the history has panicked".to_owned());
        }
        messages.extend(self.messages.try_iter());
        messages
    }
}

/// Writes until the sender is gone. A batch that cannot be written is tried again with the next one. At the end, those that
/// still wait are lost, and the log says how many.
fn write_all(mut history: History, batches: &Receiver<Batch>, messages: &SyncSender<String>) {
    let mut pending: VecDeque<Batch> = VecDeque::new();
    let (mut has_failed, mut lost) = (false, 0_u64);
    while let Ok(batch) = batches.recv() {
        pending.push_back(batch);
        while let Some(batch) = pending.front() {
            if let Err(error) = history.write(batch) {
                if !std::mem::replace(&mut has_failed, true) {
                    // The event loop may be behind; the next failure is reported again.
                    has_failed = messages.try_send(format!("{error}; the live data goes on")).is_ok();
                }
                break;
            }
            pending.pop_front();
        }
        if pending.len() > MAX_PENDING {
            pending.pop_front();
            lost += 1;
        }
        if has_failed && pending.is_empty() {
            has_failed = false;
            let lost = lost_minutes(std::mem::take(&mut lost));
            let _dropped_if_behind = messages.try_send(format!("the history is written again; {lost}"));
        }
    }
    if !pending.is_empty() {
        let lost = lost_minutes(lost + pending.len() as u64);
        let _dropped_if_behind = messages.try_send(format!("the history could not be written until the end; {lost}"));
    }
}

fn lost_minutes(count: u64) -> String {
    match count {
        0 => "no minute is lost".to_owned(),
        1 => "1 minute is lost".to_owned(),
        count => format!("{count} minutes are lost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HistoryReader;
    use crate::store::history::HostRow;

    fn batch(start: u64) -> Batch {
        Batch { start, hosts: vec![("gpu1".into(), HostRow::default())], ..Batch::default() }
    }

    #[test]
    fn everything_is_written_before_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state/history.db");
        let (mut writer, message) = HistoryWriter::start(&path).expect("starts");
        assert_eq!(message, None);
        (0..100).for_each(|minute| writer.write(batch(1_800_000_000 + minute * 60)));
        assert_eq!(writer.finish(), Vec::<String>::new());
        let reader = HistoryReader::open(&path).expect("opens");
        assert_eq!(reader.last_minute().expect("reads"), Some(1_800_000_000 + 99 * 60));
        let total = &reader.host_totals(1_800_000_000, 1_900_000_000).expect("reads")[0];
        assert_eq!(total.watched_seconds, 6000);
    }
}
