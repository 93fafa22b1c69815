//! The log of signals: `signals.log` in the state directory, a line for each that was asked for and for its outcome.

use crate::cli::background_writer::BackgroundWriter;
use crate::store::{Directories, append_line};
use crate::wire::SafeText;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file's name.
const NAME: &str = "signals.log";
/// From this size on a new one is begun; one old one is kept.
const MAX_BYTES: u64 = 1024 * 1024;

/// Lines that wait while the disk does not answer; further ones are counted.
const MAX_WAITING: usize = 256;

/// Where signals are logged.
#[derive(Debug)]
pub(super) struct SignalLog {
    file: BackgroundWriter<PathBuf>,
    waiting: Vec<String>,
    left_out: u64,
}

impl SignalLog {
    /// The log; `None` where there is no state directory, because there is no home.
    pub(super) fn find(directories: &Directories) -> Option<Self> {
        directories.state().ok().map(|directory| Self::at(directory.join(NAME)))
    }

    fn at(path: PathBuf) -> Self {
        Self { file: BackgroundWriter::new(path), waiting: Vec::new(), left_out: 0 }
    }

    /// Adds a line with the time. It is written at once, on a thread, unless earlier ones are being written. To be called
    /// within a tokio runtime.
    pub(super) fn take(&mut self, line: &SafeText) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push(format!("{:.0} {line}\n", jiff::Timestamp::now()));
        } else {
            self.left_out += 1;
        }
        self.write();
    }

    /// Writes what still waits, and returns what a person should know of the last write. To be called each second.
    pub(super) fn tick(&mut self) -> Option<String> {
        let message = self.file.take_message();
        self.write();
        message
    }

    /// Writes what still waits, and waits for the disk no longer than `limit`.
    pub(super) async fn finish(mut self, limit: Duration) {
        let lines = self.lines();
        let _said = self.file.finish(limit, move |path| write(path, &lines)).await;
    }

    fn write(&mut self) {
        if self.file.idle_file().is_some() && !self.waiting.is_empty() {
            let lines = self.lines();
            self.file.start_write(move |path| write(path, &lines));
        }
    }

    fn lines(&mut self) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.waiting);
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            lines.push(format!("{:.0} {left_out} lines left out: the disk gave no answer\n", jiff::Timestamp::now()));
        }
        lines
    }
}

/// The text is for a person where that fails.
fn write(path: &Path, lines: &[String]) -> Option<String> {
    let failed = lines.iter().find_map(|line| append_line(path, line.as_bytes(), MAX_BYTES).err())?;
    Some(failed.to_string().lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn lines_wait_in_order_while_the_disk_does_not_answer_and_too_many_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        let mut log = SignalLog::at(path.clone());
        let (release, released) = std::sync::mpsc::channel::<()>();
        log.file.start_write(move |_| released.recv().err().map(|_| "slow".to_owned()));
        for number in 0..MAX_WAITING + 3 {
            log.take(&SafeText::new(&format!("line {number}")));
        }
        assert_eq!(log.tick(), None);
        assert!(!path.exists());
        drop(release);
        log.finish(DEADLINE).await;
        let text = std::fs::read_to_string(&path).expect("was written");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), MAX_WAITING + 1);
        assert!(lines[0].ends_with("Z line 0") && lines[MAX_WAITING - 1].ends_with("Z line 255"), "{text}");
        assert!(lines[MAX_WAITING].ends_with("Z 3 lines left out: the disk gave no answer"), "{text}");
    }

    #[tokio::test]
    async fn a_line_is_written_at_once_and_a_failure_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        // A file stands where the directory should be.
        std::fs::write(folder.path().join("state"), "").expect("writes");
        let mut log = SignalLog::at(folder.path().join("state").join(NAME));
        log.take(&SafeText::new("line"));
        let end = tokio::time::Instant::now() + DEADLINE;
        let message = loop {
            if let Some(message) = log.tick() {
                break message;
            }
            assert!(tokio::time::Instant::now() < end, "nothing is said");
            tokio::task::yield_now().await;
        };
        assert!(message.starts_with("cannot write "), "{message}");
    }
}
