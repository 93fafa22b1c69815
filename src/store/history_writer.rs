//! The thread that writes the history, behind a bounded channel.

use super::HistoryError;
use super::history::{Batch, History};
use crate::wire::SafeText;
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
/// Added to the error of a history that cannot be opened at the start.
const BEGINS_LATER: &str = "the hosts are watched, and the last four hours are written as soon as that is possible";

/// Writes batches on its own thread. Messages about failures wait for [`HistoryWriter::message`].
pub struct HistoryWriter {
    batches: Option<SyncSender<Batch>>,
    messages: Receiver<String>,
    /// Batches that the thread could not take.
    pending: VecDeque<Batch>,
    /// The number of batches that were dropped while the thread took none.
    lost: u64,
    /// Messages about them.
    own_messages: VecDeque<String>,
    thread: Option<JoinHandle<()>>,
}

impl HistoryWriter {
    /// Opens the history and starts the thread. The second value is a message for the log. A history that cannot be opened now,
    /// because the disk is full or not mounted, is opened again before each minute.
    ///
    /// # Errors
    /// Another collector writes it, or a newer version has written it.
    pub fn start(path: &Path) -> Result<(Self, Option<String>), HistoryError> {
        let (history, message) = match History::open(path) {
            Ok((history, message)) => (Some(history), message),
            Err(error @ (HistoryError::Locked { .. } | HistoryError::Newer { .. })) => return Err(error),
            Err(error) => (None, Some(format!("{error}; {BEGINS_LATER}"))),
        };
        let path = path.to_owned();
        let (batches, to_write) = sync_channel(WAITING_BATCHES);
        let (sender, messages) = sync_channel(WAITING_MESSAGES);
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn({
                let path = path.clone();
                move || write_all(history, &path, &to_write, &sender)
            })
            .map_err(|error| HistoryError::Failed { operation: "write", path, cause: error.to_string() })?;
        Ok((Self::with_thread(batches, messages, Some(thread)), message))
    }

    fn with_thread(batches: SyncSender<Batch>, messages: Receiver<String>, thread: Option<JoinHandle<()>>) -> Self {
        let (pending, own_messages) = (VecDeque::new(), VecDeque::new());
        Self { batches: Some(batches), messages, pending, lost: 0, own_messages, thread }
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
            self.lost += 1;
            if self.lost == 1 {
                let hours = MAX_PENDING / 60;
                self.own_messages.push_back(format!(
                    "the disk of the history has not answered for {hours} h, and from now on minutes are lost; check the disk \
                     (`dmesg` names errors)"
                ));
            }
        }
        if self.pending.is_empty() && self.lost > 0 {
            let lost = lost_minutes(std::mem::take(&mut self.lost));
            self.own_messages.push_back(format!("the disk of the history answers again; {lost}"));
        }
    }

    /// Returns the next message for the log.
    pub fn message(&mut self) -> Option<String> {
        self.own_messages.pop_front().or_else(|| self.messages.try_recv().ok())
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
fn write_all(mut history: Option<History>, path: &Path, batches: &Receiver<Batch>, messages: &SyncSender<String>) {
    let mut pending: VecDeque<Batch> = VecDeque::new();
    let (mut has_failed, mut lost) = (history.is_none(), 0_u64);
    while let Ok(batch) = batches.recv() {
        pending.push_back(batch);
        while let Some(batch) = pending.front() {
            if let Err(error) = write_one(&mut history, path, batch, messages) {
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

/// Writes a batch: into the file that is there now, if the earlier one was deleted or replaced.
fn write_one(
    history: &mut Option<History>,
    path: &Path,
    batch: &Batch,
    messages: &SyncSender<String>,
) -> Result<(), HistoryError> {
    if history.as_ref().is_some_and(History::was_replaced) {
        // Closed first, because it holds the lock.
        history.take().into_iter().for_each(History::leave);
        let what = if path.exists() {
            "replaced: the collector goes on in the file that is there now"
        } else {
            "deleted: the collector begins a new one"
        };
        let path = SafeText::new(&path.to_string_lossy());
        let _dropped_if_behind = messages.try_send(format!("the history {path} was {what}"));
    }
    if history.is_none() {
        let (open, message) = History::open(path)?;
        let _dropped_if_behind = message.map(|message| messages.try_send(message));
        *history = Some(open);
    }
    let Some(open) = history else { return Ok(()) };
    open.write(batch)?;
    let _dropped_if_behind = open.message_about_clock().map(|message| messages.try_send(message));
    Ok(())
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

    #[test]
    fn a_thread_that_takes_no_batches_loses_minutes_and_says_so() {
        let (batches, to_write) = sync_channel(WAITING_BATCHES);
        let (_sender, messages) = sync_channel(1);
        let mut writer = HistoryWriter::with_thread(batches, messages, None);
        (0..(WAITING_BATCHES + MAX_PENDING) as u64).for_each(|minute| writer.write(batch(minute * 60)));
        assert_eq!(writer.message(), None);
        writer.write(batch(0));
        writer.write(batch(0));
        let expected = "the disk of the history has not answered for 4 h, and from now on minutes are lost; check the disk \
                        (`dmesg` names errors)";
        assert_eq!(writer.message().as_deref(), Some(expected));
        assert_eq!(writer.message(), None, "once");
        while !writer.pending.is_empty() {
            assert_eq!(to_write.try_iter().count(), WAITING_BATCHES);
            writer.write(batch(0));
        }
        assert_eq!(writer.message().as_deref(), Some("the disk of the history answers again; 2 minutes are lost"));
    }

    /// Waits for the next message.
    fn next_message(writer: &mut HistoryWriter) -> String {
        let message = writer.messages.recv_timeout(std::time::Duration::from_secs(60));
        message.expect("a message")
    }

    #[test]
    fn a_history_that_is_deleted_or_replaced_is_begun_or_continued() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.db");
        let (mut writer, _) = HistoryWriter::start(&path).expect("starts");
        let name = SafeText::new(&path.to_string_lossy());
        let minute = |number: u64| 1_800_000_000 + number * 60;
        // The file is missing until the writer has begun a new one.
        let last_minute = |path: &Path| HistoryReader::open(path).ok()?.last_minute().ok()?;
        writer.write(batch(minute(0)));
        // Only the file is moved, not what belongs to it.
        let moved = folder.path().join("moved.db");
        while last_minute(&path) != Some(minute(0)) {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).expect("is moved");
        writer.write(batch(minute(1)));
        let message = next_message(&mut writer);
        assert_eq!(message, format!("the history {name} was deleted: the collector begins a new one"));
        while last_minute(&path) != Some(minute(1)) {
            std::thread::yield_now();
        }
        let (of_moved, other) = (folder.path().join("other.db"), folder.path().join("third.db"));
        std::fs::copy(&moved, &of_moved).expect("is copied");
        assert_eq!(last_minute(&moved), Some(minute(0)), "nothing that was written is lost");
        std::fs::rename(&path, &other).expect("is moved");
        std::fs::rename(&of_moved, &path).expect("is moved");
        writer.write(batch(minute(2)));
        let message = next_message(&mut writer);
        let replaced = "was replaced: the collector goes on in the file that is there now";
        assert_eq!(message, format!("the history {name} {replaced}"));
        assert_eq!(writer.finish(), Vec::<String>::new());
        let reader = HistoryReader::open(&path).expect("opens");
        assert_eq!(reader.host_totals(minute(0), minute(9)).expect("reads")[0].watched_seconds, 120);
        assert_eq!(last_minute(&other), Some(minute(1)), "nothing that was written is lost");
    }
}
