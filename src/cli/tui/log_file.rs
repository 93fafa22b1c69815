//! `--log FILE`: the ssh logs of all hosts, written down as they grow.

use crate::cli::CommandError;
use crate::cli::background_writer::BackgroundWriter;
use crate::fleet::{Fleet, LogLine};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// The file, and how much of each host's log stands in it.
pub(super) struct LogFile {
    file: BackgroundWriter<File>,
    written: Vec<u64>,
}

impl LogFile {
    /// Opens the file to append to it; a new one is for its owner alone, for it names hosts and accounts.
    pub(super) fn open(path: &Path) -> Result<Self, CommandError> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = file.map_err(|error| CommandError::failed(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { file: BackgroundWriter::new(file), written: Vec::new() })
    }

    /// Writes what has come since the last call, on a thread; while an earlier text is being written the hosts' logs hold
    /// what comes. To be called each second, within a tokio runtime. The answer is for a person: the file could not be
    /// written.
    pub(super) fn tick(&mut self, fleet: &Fleet) -> Option<String> {
        let failed = self.file.take_message();
        if self.file.idle_file().is_some() {
            let news = self.news(fleet);
            if !news.is_empty() {
                self.file.start_write(move |file| write(file, &news));
            }
        }
        failed
    }

    /// Writes what has come since, and waits for the disk no longer than `limit`.
    pub(super) async fn finish(mut self, fleet: &Fleet, limit: Duration) {
        let news = self.news(fleet);
        let _failed = self.file.finish(limit, move |file| write(file, &news)).await;
    }

    fn news(&mut self, fleet: &Fleet) -> Vec<u8> {
        let mut text = Vec::new();
        self.written.resize(fleet.hosts().len(), 0);
        for (host, written) in fleet.hosts().iter().zip(&mut self.written) {
            let log = host.log();
            let new = usize::try_from(log.count() - *written).unwrap_or(usize::MAX);
            let kept = new.min(log.lines().len());
            for (place, line) in log.lines().skip(log.lines().len() - kept).enumerate() {
                let time = time(line);
                if place == 0 && kept < new {
                    // The host said more than its log holds.
                    text.extend_from_slice(
                        format!("{time} {} ({} lines left out)\n", host.name(), new - kept).as_bytes(),
                    );
                }
                text.extend_from_slice(format!("{time} {} {}\n", host.name(), line.text).as_bytes());
            }
            *written = log.count();
        }
        text
    }
}

fn write(file: &mut File, text: &[u8]) -> Option<String> {
    let error = file.write_all(text).err()?;
    Some(format!("the log is no longer written: {error}"))
}

fn time(line: &LogLine) -> String {
    let seconds = i64::try_from(line.at.unix.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::fleet::{ConnectPhase, HostId, HostUpdate, Moment};
    use std::sync::Arc;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn each_line_is_written_once_in_the_order_of_the_hosts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ssh.log");
        let mut file = LogFile::open(&path).expect("opens");
        let configs = ["a", "b"].map(|name| Arc::new(HostConfig::named(name)));
        let now = Moment::new(Duration::ZERO, Duration::from_secs(1_763_000_000));
        let mut fleet = Fleet::new(&configs, false, now);
        let mut step = |file: &mut LogFile, host: u32, phase: ConnectPhase| {
            fleet.apply(HostId(host), HostUpdate::Connecting { attempt: 1, phase }, now);
            assert_eq!(file.tick(&fleet), None);
        };
        step(&mut file, 1, ConnectPhase::Name);
        let (release, released) = std::sync::mpsc::channel::<()>();
        while file.file.idle_file().is_none() {
            assert_eq!(file.file.take_message(), None);
            tokio::task::yield_now().await;
        }
        // The disk does not answer: what comes meanwhile is written later.
        file.file.start_write(move |_| released.recv().err().and(None));
        step(&mut file, 0, ConnectPhase::Tcp);
        step(&mut file, 0, ConnectPhase::Login);
        drop(release);
        file.finish(&fleet, DEADLINE).await;
        let expected = "\
2025-11-13T02:13:20Z b try 1: name
2025-11-13T02:13:20Z a try 1: tcp
2025-11-13T02:13:20Z a login
";
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), expected);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told() {
        let Err(failure) = LogFile::open(Path::new("/nowhere/ssh.log")) else { panic!("opened") };
        assert_eq!(
            failure.to_string(),
            "gpufleet: cannot write /nowhere/ssh.log: No such file or directory (os error 2)\n"
        );
    }
}
