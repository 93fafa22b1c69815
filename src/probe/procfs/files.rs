//! Reads files of /proc and /sys, and parses those that describe one process.

use crate::wire::ProcessState;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, open, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt::Write;

/// The most that is read of one file.
const MAX_BYTES: usize = 64 * 1024;

/// The name that every probe gives itself; the kernel keeps 15 bytes.
pub(crate) const PROBE_NAME: &CStr = c"gpufleet-probe";

/// A buffer for contents and one for paths.
#[derive(Debug, Default)]
pub(crate) struct FileReader {
    bytes: Vec<u8>,
    /// How much of `bytes` the last read filled.
    filled: usize,
    path: String,
}

impl FileReader {
    /// A file at a fixed path.
    pub(crate) fn read(&mut self, path: &str) -> Result<&[u8], Errno> {
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        self.read_fd(&file, MAX_BYTES)
    }

    /// `/proc/PID/NAME`, at most `limit` bytes of it.
    pub(crate) fn read_process(&mut self, pid: u32, name: &str, limit: usize) -> Result<&[u8], Errno> {
        let file = self.open_process(pid, name)?;
        self.read_fd(&file, limit)
    }

    /// `/proc/PID/task/THREAD/NAME`, at most `limit` bytes of it.
    pub(crate) fn read_thread(&mut self, pid: u32, thread: u32, name: &str, limit: usize) -> Result<&[u8], Errno> {
        self.path.clear();
        // Writing to a String does not fail.
        let _ok = write!(self.path, "/proc/{pid}/task/{thread}/{name}");
        let file = open(self.path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        self.read_fd(&file, limit)
    }

    /// `THREAD/NAME` in an open `/proc/PID/task`, at most `limit` bytes of it.
    pub(crate) fn read_thread_in(
        &mut self,
        directory: impl AsFd,
        thread: u32,
        name: &str,
        limit: usize,
    ) -> Result<&[u8], Errno> {
        self.path.clear();
        // Writing to a String does not fail.
        let _ok = write!(self.path, "{thread}/{name}");
        let file = openat(directory, self.path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        self.read_fd(&file, limit)
    }

    /// What the link `/proc/PID/NAME` says. The file that it names is not looked at.
    pub(crate) fn read_link(&mut self, pid: u32, name: &str) -> Option<Vec<u8>> {
        self.path.clear();
        // Writing to a String does not fail.
        let _ok = write!(self.path, "/proc/{pid}/{name}");
        Some(readlinkat(CWD, self.path.as_str(), Vec::new()).ok()?.into_bytes())
    }

    /// Opens `/proc/PID/NAME`. What is read from it later is of this process, or an error: never of a successor that
    /// was given the same pid.
    pub(crate) fn open_process(&mut self, pid: u32, name: &str) -> Result<OwnedFd, Errno> {
        self.path.clear();
        // Writing to a String does not fail.
        let _ok = write!(self.path, "/proc/{pid}/{name}");
        open(self.path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// The contents of an open file from its beginning.
    pub(crate) fn read_fd(&mut self, file: impl AsFd, limit: usize) -> Result<&[u8], Errno> {
        let mut filled = 0;
        loop {
            if self.bytes.len() < limit.min(filled + 2048) {
                self.bytes.resize(limit.min((filled + 2048).next_power_of_two()), 0);
            }
            let end = self.bytes.len().min(limit);
            if filled == end {
                break;
            }
            match rustix::io::pread(file.as_fd(), &mut self.bytes[filled..end], filled as u64) {
                Ok(0) => break,
                // The kernel fills what it is given as long as there is more, so less than that is the end.
                Ok(count) if filled + count < end => {
                    filled += count;
                    break;
                }
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.filled = filled;
        Ok(&self.bytes[..filled])
    }

    /// What was read last.
    pub(crate) fn last_read(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

/// A file of /proc that is read in every sample, kept open where it could be opened.
#[derive(Debug)]
pub(crate) struct OpenFile(Option<OwnedFd>);

impl OpenFile {
    pub(crate) fn open(path: &str) -> Self {
        Self(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok())
    }

    /// Its contents now; `None` where it cannot be read.
    pub(crate) fn read<'a>(&self, reader: &'a mut FileReader) -> Option<&'a [u8]> {
        reader.read_fd(self.0.as_ref()?, MAX_BYTES).ok()
    }
}

/// Clock ticks in a second. The kernel gives user space 100 on every architecture (`USER_HZ`).
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// The fields that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat<'a> {
    /// Field 2, the short name: at most 15 bytes, any bytes, parentheses and spaces among them.
    pub(crate) name: &'a [u8],
    /// Field 3.
    pub(crate) state: ProcessState,
    /// Field 4.
    pub(crate) parent: u32,
    /// Field 6.
    pub(crate) session: u32,
    /// Fields 14 and 15, user and system time together, in ticks.
    pub(crate) cpu_ticks: u64,
    /// Field 20.
    pub(crate) threads: u32,
    /// Field 22, in ticks after boot.
    pub(crate) start_ticks: u64,
    /// Field 24.
    pub(crate) rss_pages: u64,
}

impl<'a> Stat<'a> {
    /// `None` for what is not such a line.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let open = line.iter().position(|&byte| byte == b'(')?;
        // The name may hold parentheses of its own, so it ends at the last one.
        let close = line.iter().rposition(|&byte| byte == b')')?;
        let name = line.get(open + 1..close)?;
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = ProcessState::from_letter(fields.next()?.chars().next()?);
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().unwrap_or(0);
        let user: u64 = fields.nth(7)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let threads = fields.nth(4)?.parse().ok()?;
        let start_ticks = fields.nth(1)?.parse().ok()?;
        let rss_pages = fields.nth(1)?.parse().unwrap_or(0);
        Some(Self {
            name,
            state,
            parent,
            session,
            cpu_ticks: user.saturating_add(system),
            threads,
            start_ticks,
            rss_pages,
        })
    }
}

/// The real user id: the first number after `Uid:`.
pub(crate) fn real_uid(status: &[u8]) -> Option<u32> {
    field(status, b"Uid:")?.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether SIGHUP (1) is in the set of ignored signals, `SigIgn:`.
pub(crate) fn ignores_hangup(status: &[u8]) -> Option<bool> {
    let set = u64::from_str_radix(field(status, b"SigIgn:")?.trim(), 16).ok()?;
    Some(set & 1 == 1)
}

fn field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    std::str::from_utf8(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_longer_than_the_buffer_are_read_whole() {
        let directory = tempfile::tempdir().expect("folder");
        let path = directory.path().join("file");
        let path = path.to_str().expect("utf-8");
        let mut reader = FileReader::default();
        for length in [0, 1, 2047, 2048, 2049, 5000, MAX_BYTES + 10] {
            std::fs::write(path, vec![b'x'; length]).expect("writes");
            assert_eq!(reader.read(path).map(<[u8]>::len), Ok(length.min(MAX_BYTES)));
        }
        assert_eq!(reader.read("/proc/self/nothing"), Err(Errno::NOENT));
    }

    #[test]
    fn a_limit_truncates() {
        let mut reader = FileReader::default();
        let pid = std::process::id();
        assert_eq!(reader.read_process(pid, "stat", 4).map(<[u8]>::len), Ok(4));
    }

    const LINE: &str = "4312 (python (v3) x) D 4200 4312 4100 34816 4312 4194304 100 0 3 0 5000 250 1 2 20 0 17 0 \
                        987654 123456789 2048 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0\n";

    #[test]
    fn a_name_may_hold_parentheses_and_spaces() {
        let stat = Stat::parse(LINE.as_bytes()).expect("parses");
        let expected = Stat {
            name: b"python (v3) x",
            state: ProcessState::DiskSleep,
            parent: 4200,
            session: 4100,
            cpu_ticks: 5250,
            threads: 17,
            start_ticks: 987_654,
            rss_pages: 2048,
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn a_name_of_any_bytes_is_read() {
        let line = [b"1 (\xff) ) S", LINE.split(" D").nth(1).expect("fields").as_bytes()].concat();
        assert_eq!(Stat::parse(&line).map(|stat| stat.name), Some(b"\xff) ".as_slice()));
    }

    proptest! {
        #[test]
        fn the_parser_never_panics(bytes: Vec<u8>, end in 0..LINE.len()) {
            let _ = Stat::parse(&bytes);
            let _ = Stat::parse(&LINE.as_bytes()[..end]);
        }
    }

    #[test]
    fn the_real_uid_is_the_first() {
        assert_eq!(real_uid(b"Name:\tUid:\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\n"), Some(1000));
        assert_eq!(real_uid(b"Name:\tx\n"), None);
    }

    #[test]
    fn hangup_is_the_lowest_bit_of_the_ignored() {
        assert_eq!(ignores_hangup(b"SigBlk:\t0000000000000001\nSigIgn:\t0000000001001001\n"), Some(true));
        assert_eq!(ignores_hangup(b"SigIgn:\t0000000000001000\n"), Some(false));
        assert_eq!(ignores_hangup(b"SigBlk:\t0000000000000001\n"), None);
    }
}
