//! Coordination between the probes of one user on a host. A probe that hangs in NVML writes a lock file, and the others
//! do not call the driver until it is free, since their calls would hang as well.

use crate::probe::procfs::{FileReader, Stat, boot_id};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directories that are local to the host and independent of the login.
const DIRECTORIES: [&str; 2] = ["/dev/shm", "/tmp"];
/// Larger than any lock file.
const MAX_FILE_BYTES: usize = 64;
/// A directory that changed less than this many seconds ago may change again within the same mtime: file systems take
/// times from the kernel's clock tick.
const MTIME_GRANULARITY_SECONDS: i64 = 1;
/// After this time the directory is opened by name again: another file system may have been mounted over it.
const REOPEN_AFTER: Duration = Duration::from_secs(30);

/// The lock of all probes of one user since the boot of the host.
#[derive(Debug)]
pub(super) struct PeerHangLock {
    files: Vec<LockFile>,
    uid: u32,
    own_process: Process,
    /// The lock file of this process, if it holds the lock.
    held_path: Option<PathBuf>,
    reader: FileReader,
}

/// A possible path of the lock file.
///
/// An unchanged directory mtime means that there is no new lock file. `fstat` on the open directory costs a tenth of
/// opening a missing file.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    directory: Option<(OwnedFd, Instant)>,
    /// The mtime of the directory at the last check that found no lock.
    absent_since: Option<(i64, i64)>,
}

impl LockFile {
    fn new(path: PathBuf) -> Self {
        Self { path, directory: None, absent_since: None }
    }

    /// Returns the process in the lock file.
    fn read_peer(&mut self, uid: u32, reader: &mut FileReader) -> Option<Process> {
        if self.directory.as_ref().is_none_or(|(_, opened)| opened.elapsed() >= REOPEN_AFTER) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = self.path.parent().and_then(|directory| open(directory, flags, Mode::empty()).ok());
            (self.directory, self.absent_since) = (directory.map(|directory| (directory, Instant::now())), None);
        }
        let directory_mtime = self.directory.as_ref().and_then(|(directory, _)| directory_mtime(directory));
        if directory_mtime.is_some() && directory_mtime == self.absent_since {
            return None;
        }
        let found = read(&self.path, uid, reader);
        let now = clock_gettime(ClockId::Realtime).tv_sec;
        self.absent_since =
            directory_mtime.filter(|&(seconds, _)| found.is_none() && now - seconds > MTIME_GRANULARITY_SECONDS);
        found
    }
}

/// Returns the mtime of a directory in seconds and nanoseconds, or `None` if it was removed.
fn directory_mtime(directory: &OwnedFd) -> Option<(i64, i64)> {
    let stat = fstat(directory).ok().filter(|stat| stat.st_nlink > 0)?;
    Some((stat.st_mtime, stat.st_mtime_nsec as i64))
}

/// A process by pid and start time: the pid alone may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: u32,
    start_ticks: u64,
}

impl PeerHangLock {
    /// Uses `directory` instead of the default ones.
    pub(super) fn new(directory: Option<&str>) -> Self {
        match directory {
            Some(directory) => Self::within(&[directory]),
            None => Self::within(&DIRECTORIES),
        }
    }

    fn within<P: AsRef<Path>>(directories: &[P]) -> Self {
        let mut reader = FileReader::default();
        let uid = rustix::process::getuid().as_raw();
        let boot = boot_id(&mut reader).unwrap_or_default();
        // Only alphanumeric characters, so that the boot id cannot change the path.
        let boot: String = boot.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!("gpufleet-{uid}-{boot}.waiting");
        let pid = std::process::id();
        let start_ticks = start_ticks(&mut reader, pid).unwrap_or(0);
        Self {
            files: directories.iter().map(|directory| LockFile::new(directory.as_ref().join(&name))).collect(),
            uid,
            own_process: Process { pid, start_ticks },
            held_path: None,
            reader,
        }
    }

    /// Returns the pid of another process of this user that hangs in NVML.
    pub(super) fn peer(&mut self) -> Option<u32> {
        let Self { files, uid, own_process, reader, .. } = self;
        let found =
            files.iter_mut().filter_map(|file| file.read_peer(*uid, reader)).find(|&process| process != *own_process);
        found.filter(|process| is_alive(&mut self.reader, *process)).map(|process| process.pid)
    }

    /// Takes the lock. The lock of another live process stays, since it has the same effect.
    pub(super) fn acquire(&mut self) {
        if self.held_path.is_some() || self.peer().is_some() {
            return;
        }
        let Process { pid, start_ticks } = self.own_process;
        let text = format!("{pid} {start_ticks}\n");
        self.held_path = self.files.iter().map(|file| &file.path).find(|lock| write(lock, &text)).cloned();
    }

    /// Releases the lock, if this process holds it.
    pub(super) fn release(&mut self) {
        if let Some(file) = self.held_path.take()
            && read(&file, self.uid, &mut self.reader) == Some(self.own_process)
        {
            // If it cannot be removed, it loses its effect when this process ends.
            let _ignored = std::fs::remove_file(file);
        }
    }
}

/// Reads a lock file if it is a regular file of this user: every user may write to these directories.
fn read(file: &Path, uid: u32, reader: &mut FileReader) -> Option<Process> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(file, flags, Mode::empty()).ok()?;
    let is_ours = fstat(&file).is_ok_and(|stat| stat.st_uid == uid && stat.st_mode & libc::S_IFMT == libc::S_IFREG);
    let text = std::str::from_utf8(reader.read_fd(&file, MAX_FILE_BYTES).ok().filter(|_| is_ours)?).ok()?;
    let (pid, start_ticks) = text.trim_end().split_once(' ')?;
    Some(Process { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}

/// Creates or replaces a lock file atomically. In a sticky directory this fails if the file of another user exists.
fn write(file: &Path, text: &str) -> bool {
    let mut new = OsString::from(file);
    new.push(format!(".{}", std::process::id()));
    let created = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let written = created.and_then(|mut file| file.write_all(text.as_bytes())).is_ok();
    if written && std::fs::rename(&new, file).is_ok() {
        return true;
    }
    let _ignored = std::fs::remove_file(&new);
    false
}

fn is_alive(reader: &mut FileReader, process: Process) -> bool {
    start_ticks(reader, process.pid) == Some(process.start_ticks)
}

fn start_ticks(reader: &mut FileReader, pid: u32) -> Option<u64> {
    Some(Stat::parse(reader.read_process(pid, "stat", 1024).ok()?)?.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn start_peer() -> Child {
        Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts")
    }

    fn lock_text(lock: &PeerHangLock, process: &Child) -> String {
        let ticks = start_ticks(&mut FileReader::default(), process.id()).expect("lives");
        assert!(lock.files[0].path.to_string_lossy().ends_with(".waiting"));
        format!("{} {ticks}\n", process.id())
    }

    #[test]
    fn a_lock_of_a_live_process_is_honored() {
        let directory = tempfile::tempdir().expect("directory");
        let mut lock = PeerHangLock::within(&[directory.path()]);
        assert_eq!(lock.peer(), None);
        let mut peer = start_peer();
        let text = lock_text(&lock, &peer);
        assert!(write(&lock.files[0].path, &text));
        assert_eq!(lock.peer(), Some(peer.id()));
        lock.acquire();
        assert_eq!(lock.held_path, None, "the lock of the peer stays");
        peer.kill().expect("ends");
        peer.wait().expect("ends");
        assert_eq!(lock.peer(), None);
        lock.acquire();
        assert_eq!(lock.peer(), None, "the own lock is no peer");
        let file = lock.held_path.clone().expect("raised");
        assert!(file.exists());
        lock.release();
        assert!(!file.exists());
    }

    #[test]
    fn an_unchanged_directory_is_not_read_again() {
        let directory = tempfile::tempdir().expect("directory");
        let file = std::fs::File::open(directory.path()).expect("opens");
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
        let mut lock = PeerHangLock::within(&[directory.path()]);
        assert_eq!((lock.peer(), lock.files[0].absent_since), (None, None), "it may change again in this tick");
        file.set_modified(long_ago).expect("sets");
        assert_eq!(lock.peer(), None);
        assert!(lock.files[0].absent_since.is_some());
        let mut peer = start_peer();
        let text = lock_text(&lock, &peer);
        assert!(write(&lock.files[0].path, &text));
        file.set_modified(long_ago).expect("sets");
        assert_eq!(lock.peer(), None, "the mtime is unchanged");
        file.set_modified(long_ago + Duration::from_millis(1)).expect("sets");
        assert_eq!(lock.peer(), Some(peer.id()));
        assert_eq!(lock.peer(), Some(peer.id()), "an existing lock file is read each time");
        // A new directory of the same name is a different one.
        std::fs::remove_file(&lock.files[0].path).expect("removes");
        file.set_modified(long_ago).expect("sets");
        assert_eq!(lock.peer(), None);
        std::fs::remove_dir(directory.path()).expect("removes");
        std::fs::create_dir(directory.path()).expect("creates");
        assert!(write(&lock.files[0].path, &text));
        assert_eq!(lock.peer(), Some(peer.id()));
        peer.kill().expect("ends");
        peer.wait().expect("ends");
    }

    #[test]
    fn a_reused_pid_does_not_hold_the_lock() {
        let directory = tempfile::tempdir().expect("directory");
        let mut lock = PeerHangLock::within(&[directory.path()]);
        let mut peer = start_peer();
        assert!(write(&lock.files[0].path, &format!("{} 1\n", peer.id())));
        assert_eq!(lock.peer(), None);
        peer.kill().expect("ends");
        peer.wait().expect("ends");
    }

    #[test]
    fn an_invalid_lock_file_is_ignored() {
        let directory = tempfile::tempdir().expect("directory");
        let mut lock = PeerHangLock::within(&[&directory.path().join("missing"), directory.path()]);
        let file = lock.files[1].path.clone();
        for text in ["", "7", "x y", "-1 5", "4294967296 7", "1 2 3"] {
            assert!(write(&file, text));
            assert_eq!(lock.peer(), None, "{text:?}");
        }
        std::fs::remove_file(&file).expect("removes");
        std::os::unix::fs::symlink("/proc/self/stat", &file).expect("links");
        assert_eq!(lock.peer(), None);
        lock.uid += 1;
        std::fs::remove_file(&file).expect("removes");
        let mut peer = start_peer();
        assert!(write(&file, &lock_text(&lock, &peer)));
        assert_eq!(lock.peer(), None, "a file of another user");
        peer.kill().expect("ends");
        peer.wait().expect("ends");
    }
}
