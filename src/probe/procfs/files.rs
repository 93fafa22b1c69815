//! Reads files of /proc and /sys, and parses those that describe one process.

use crate::wire::ProcessState;
use crate::wire::codec::LineBuffer;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, open, openat, readlinkat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::CStr;
use std::fmt::{self, Write};

/// Maximum number of bytes read from one file.
const MAX_BYTES: usize = 64 * 1024;
/// `NONBLOCK`: a FIFO in the place of a file is opened without a writer, and then cannot be read.
const READ_ONLY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Thread name that every probe sets for itself. The kernel keeps 15 bytes.
pub(crate) const PROBE_NAME: &CStr = c"gpufleet-probe";

/// Reads files into one reused buffer.
#[derive(Debug, Default)]
pub(crate) struct FileReader {
    bytes: Vec<u8>,
    /// Number of bytes that the last read filled.
    filled: usize,
    path: String,
    /// The mount that was looked up last.
    pub(super) known_mount: Option<KnownMount>,
}

/// A mount and what `mountinfo` says about it. That file is long, and the processes of a host mostly log to one mount.
#[derive(Debug)]
pub(super) struct KnownMount {
    /// Target of `/proc/PID/ns/mnt`.
    pub(super) namespace: Vec<u8>,
    pub(super) id: u32,
    pub(super) is_local: bool,
    /// Monotonic time in seconds.
    pub(super) read_at: f64,
}

impl FileReader {
    /// Reads the file at `path`.
    pub(crate) fn read(&mut self, path: &str) -> Result<&[u8], Errno> {
        let file = open(path, READ_ONLY, Mode::empty())?;
        self.read_fd(&file, MAX_BYTES)
    }

    /// Reads at most `limit` bytes of `/proc/PID/NAME`.
    pub(crate) fn read_process(&mut self, pid: u32, name: &str, limit: usize) -> Result<&[u8], Errno> {
        let file = self.open_process(pid, name)?;
        self.read_fd(&file, limit)
    }

    /// Reads at most `limit` bytes of `/proc/PID/task/THREAD/NAME`.
    pub(crate) fn read_thread(&mut self, pid: u32, thread: u32, name: &str, limit: usize) -> Result<&[u8], Errno> {
        let path = self.set_path(format_args!("/proc/{pid}/task/{thread}/{name}"));
        let file = open(path, READ_ONLY, Mode::empty())?;
        self.read_fd(&file, limit)
    }

    /// Reads at most `limit` bytes of `THREAD/NAME` in an open `/proc/PID/task`.
    pub(crate) fn read_thread_in(
        &mut self,
        directory: impl AsFd,
        thread: u32,
        name: &str,
        limit: usize,
    ) -> Result<&[u8], Errno> {
        let file = openat(directory, self.set_path(format_args!("{thread}/{name}")), READ_ONLY, Mode::empty())?;
        self.read_fd(&file, limit)
    }

    /// Reads at most `limit` bytes of `/proc/PID/NAME`, a file of several pages: the kernel returns whole lines of one page
    /// at a time, so that a short read is not the end.
    pub(crate) fn read_long(&mut self, pid: u32, name: &str, limit: usize) -> Result<&[u8], Errno> {
        let file = self.open_process(pid, name)?;
        self.filled = 0;
        while self.filled < limit {
            let end = limit.min(self.filled + 4096);
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            match rustix::io::read(&file, &mut self.bytes[self.filled..end]) {
                Ok(0) => break,
                Ok(count) => self.filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.bytes[..self.filled])
    }

    /// Calls `visit` for each line of `/proc/PID/NAME`, of which at most `limit` bytes are read. Returns whether it was read
    /// to its end. It holds a few lines in memory, however long the file is.
    pub(crate) fn each_line(
        &mut self,
        pid: u32,
        name: &str,
        limit: usize,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Errno> {
        let file = self.open_process(pid, name)?;
        let mut lines = LineBuffer::default();
        let mut bytes = [0; 8192];
        let mut filled = 0;
        while filled < limit {
            match rustix::io::read(&file, &mut bytes[..]) {
                Ok(0) => return Ok(true),
                Ok(count) => {
                    filled += count;
                    lines.push(&bytes[..count]);
                    while let Ok(Some(line)) = lines.next_line() {
                        visit(line);
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Returns the target of the link `/proc/PID/NAME`, without access to the target.
    pub(crate) fn read_link(&mut self, pid: u32, name: &str) -> Option<Vec<u8>> {
        let path = self.set_path(format_args!("/proc/{pid}/{name}"));
        Some(readlinkat(CWD, path, Vec::new()).ok()?.into_bytes())
    }

    /// Opens `/proc/PID/NAME`. Later reads of the descriptor return data of this process or fail; they never return
    /// data of another process that reuses the pid.
    pub(crate) fn open_process(&mut self, pid: u32, name: &str) -> Result<OwnedFd, Errno> {
        open(self.set_path(format_args!("/proc/{pid}/{name}")), READ_ONLY, Mode::empty())
    }

    fn set_path(&mut self, path: fmt::Arguments<'_>) -> &str {
        self.path.clear();
        // Writing to a String does not fail.
        let _ok = self.path.write_fmt(path);
        &self.path
    }

    /// Reads an open file from its beginning, at most `limit` bytes.
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
                // The kernel fills the buffer while there is more, so a short read is the end of the file.
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

    /// Returns the bytes of the last read.
    pub(crate) fn last_read(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

/// A file that is read in every sample and stays open if it could be opened.
#[derive(Debug)]
pub(crate) struct OpenFile(Option<OwnedFd>);

impl OpenFile {
    pub(crate) fn open(path: &str) -> Self {
        Self(open(path, READ_ONLY, Mode::empty()).ok())
    }

    /// Reads the current contents; `None` if the file cannot be read.
    pub(crate) fn read<'a>(&self, reader: &'a mut FileReader) -> Option<&'a [u8]> {
        reader.read_fd(self.0.as_ref()?, MAX_BYTES).ok()
    }
}

/// Clock ticks per second in /proc. The kernel reports 100 on every architecture (`USER_HZ`).
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// Fields of `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat<'a> {
    /// Field 2, `comm`: at most 15 bytes of any value, parentheses and spaces included.
    pub(crate) name: &'a [u8],
    /// Field 3.
    pub(crate) state: ProcessState,
    /// Field 4.
    pub(crate) parent: u32,
    /// Field 6.
    pub(crate) session: u32,
    /// Field 14: user time, in ticks.
    pub(crate) user_ticks: u64,
    /// Fields 14 and 15: user plus system time, in ticks.
    pub(crate) cpu_ticks: u64,
    /// Field 20.
    pub(crate) threads: u32,
    /// Field 22, in ticks since boot.
    pub(crate) start_ticks: u64,
    /// Field 24.
    pub(crate) rss_pages: u64,
}

impl<'a> Stat<'a> {
    /// Parses one line of `stat`; `None` if it is malformed.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let open = line.iter().position(|&byte| byte == b'(')?;
        // The name may contain parentheses, so it ends at the last one.
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
            user_ticks: user,
            cpu_ticks: user.saturating_add(system),
            threads,
            start_ticks,
            rss_pages,
        })
    }
}

/// Returns the real user id: the first number after `Uid:` in `/proc/PID/status` (proc_pid_status(5)).
pub(crate) fn real_uid(status: &[u8]) -> Option<u32> {
    status_field(status, b"Uid:")?.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns whether SIGHUP (1) is in `SigIgn`, the set of ignored signals in `/proc/PID/status`.
pub(crate) fn ignores_hangup(status: &[u8]) -> Option<bool> {
    let set = u64::from_str_radix(status_field(status, b"SigIgn:")?.trim(), 16).ok()?;
    Some(set & 1 == 1)
}

/// Returns the value of a variable in `/proc/PID/environ`.
pub(crate) fn environment_variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Returns the text behind `name`, such as `NSpid:`, in `/proc/PID/status`.
pub(crate) fn status_field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    std::str::from_utf8(line).ok()
}

/// A line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug)]
pub(crate) struct Mount<'a> {
    pub(crate) id: u32,
    /// Mount point, in which blanks and backslashes are octal escapes (`\040`).
    pub(crate) point: &'a str,
    /// File system type.
    pub(crate) kind: &'a str,
}

/// Parses `/proc/PID/mountinfo` and skips malformed lines.
pub(crate) fn mounts(mountinfo: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.split(|&byte| byte == b'\n').filter_map(|line| {
        let (fields, rest) = std::str::from_utf8(line).ok()?.split_once(" - ")?;
        let mut fields = fields.split(' ');
        Some(Mount { id: fields.next()?.parse().ok()?, point: fields.nth(3)?, kind: rest.split(' ').next()? })
    })
}

/// The time of the start of a process in seconds since 1970, at most a tick late.
pub(crate) fn started_at(pid: u32, reader: &mut FileReader) -> Option<f64> {
    let start_ticks = Stat::parse(reader.read_process(pid, "stat", 4096).ok()?)?.start_ticks;
    let boot = clock_gettime(ClockId::Boottime);
    let since_boot = boot.tv_sec as f64 + boot.tv_nsec as f64 / 1e9;
    Some(unix_seconds() - since_boot + start_ticks as f64 / f64::from(TICKS_PER_SECOND as u32))
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> f64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_longer_than_the_buffer_are_read_completely() {
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
    fn a_file_of_several_pages_is_read_to_its_end() {
        // Other tests start threads meanwhile, which adds mappings.
        let whole = std::fs::read("/proc/self/smaps").expect("own mappings").len();
        let mut reader = FileReader::default();
        let pid = std::process::id();
        let read = reader.read_long(pid, "smaps", 1 << 20).expect("own mappings").len();
        assert!(whole > 20_000 && 2 * read > whole, "{read} of {whole} bytes");
        assert_eq!(reader.read_long(pid, "smaps", 5000).map(<[u8]>::len), Ok(5000));
    }

    #[test]
    fn lines_are_visited_up_to_a_limit() {
        let mut reader = FileReader::default();
        let pid = std::process::id();
        let (mut lines, mut is_whole) = (0, true);
        let is_complete = reader.each_line(pid, "smaps", 1 << 22, &mut |line| {
            lines += 1;
            is_whole &= !line.contains(&b'\n') && !line.is_empty();
        });
        assert!(is_complete == Ok(true) && lines > 500 && is_whole, "{is_complete:?} {lines}");
        let mut fewer = 0;
        assert_eq!(reader.each_line(pid, "smaps", 4000, &mut |_| fewer += 1), Ok(false));
        assert!(fewer < lines);
        assert_eq!(reader.each_line(u32::MAX, "smaps", 4000, &mut |_| {}), Err(Errno::NOENT));
    }

    #[test]
    fn a_limit_truncates_the_file() {
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
            user_ticks: 5000,
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
    fn sighup_is_the_lowest_bit_of_the_ignored_signals() {
        assert_eq!(ignores_hangup(b"SigBlk:\t0000000000000001\nSigIgn:\t0000000001001001\n"), Some(true));
        assert_eq!(ignores_hangup(b"SigIgn:\t0000000000001000\n"), Some(false));
        assert_eq!(ignores_hangup(b"SigBlk:\t0000000000000001\n"), None);
    }
}
