//! `--log FILE`: the ssh logs of all hosts, written down as they grow.

use super::Failure;
use crate::fleet::{Fleet, LogLine};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file, and how much of each host's log stands in it.
pub(super) struct LogFile {
    file: File,
    written: Vec<u64>,
}

impl LogFile {
    /// Opens the file to append to it; a new one is for its owner alone, for it names hosts and accounts.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = file.map_err(|error| Failure::nothing(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { file, written: Vec::new() })
    }

    /// Writes what has come since the last call.
    pub(super) fn write(&mut self, fleet: &Fleet) -> io::Result<()> {
        let mut text = Vec::new();
        self.written.resize(fleet.hosts().len(), 0);
        for (host, written) in fleet.hosts().iter().zip(&mut self.written) {
            let log = host.log();
            // Of a host that said more than its log holds the oldest lines are lost here, too.
            let new = usize::try_from(log.count() - *written).unwrap_or(usize::MAX).min(log.lines().len());
            for line in log.lines().skip(log.lines().len() - new) {
                line_of(&mut text, host.name(), line)?;
            }
            *written = log.count();
        }
        if text.is_empty() { Ok(()) } else { self.file.write_all(&text) }
    }
}

fn line_of(text: &mut Vec<u8>, host: &str, line: &LogLine) -> io::Result<()> {
    let seconds = i64::try_from(line.at.unix.as_secs()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.to_string());
    writeln!(text, "{time} {host} {}", line.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{HostId, HostUpdate, Moment, Phase};
    use crate::hosts::HostConfig;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn each_line_is_written_once_in_the_order_of_the_hosts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ssh.log");
        let mut file = LogFile::open(&path).expect("opens");
        let configs = ["a", "b"].map(|name| Arc::new(HostConfig::named(name)));
        let now = Moment::new(Duration::ZERO, Duration::from_secs(1_763_000_000));
        let mut fleet = Fleet::new(&configs, false, now);
        let mut step = |fleet: &mut Fleet, host: u32, phase: Phase| {
            fleet.apply(HostId(host), HostUpdate::Connecting { attempt: 1, phase }, now);
            file.write(fleet).expect("writes");
        };
        step(&mut fleet, 1, Phase::Name);
        step(&mut fleet, 0, Phase::Tcp);
        step(&mut fleet, 0, Phase::Login);
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
