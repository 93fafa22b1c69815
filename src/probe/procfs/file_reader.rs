//! Reads files of /proc into one buffer that is used again and again.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, open, openat, readlinkat};
use rustix::io::Errno;
use std::fmt::Write;

/// The most that is read of one file.
const MAX_BYTES: usize = 64 * 1024;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
