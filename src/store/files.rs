//! Files: reads with a size limit, atomic private writes, locks and logs.

use crate::wire::SafeText;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Error: a file cannot be read or written.
#[derive(Debug)]
pub struct FileError {
    operation: &'static str,
    path: PathBuf,
    cause: String,
    hint: Option<&'static str>,
    kind: io::ErrorKind,
}

impl FileError {
    fn new(operation: &'static str, path: &Path, error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Some("check the owner and mode of the file and its directory with `ls -ld`")
            }
            io::ErrorKind::AlreadyExists => Some("choose another name, or delete the file first"),
            io::ErrorKind::StorageFull => Some("free some space on this disk"),
            io::ErrorKind::QuotaExceeded => Some("delete other files: the disk quota is used up"),
            io::ErrorKind::ReadOnlyFilesystem => {
                Some("check the disk (`dmesg` names errors): its file system is read-only")
            }
            io::ErrorKind::NotADirectory => Some("check its directory: a part of the path is a file"),
            _ => None,
        };
        Self { operation, path: path.to_owned(), cause: crate::wire::format::io_cause(error), hint, kind: error.kind() }
    }

    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == io::ErrorKind::NotFound
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = SafeText::new(&self.path.to_string_lossy());
        writeln!(formatter, "cannot {} {path}: {}", self.operation, self.cause)?;
        match self.hint {
            Some(hint) => writeln!(formatter, "  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for FileError {}

/// Opens a regular file, or /dev/null, and refuses all others: a FIFO would wait for its other end, and a device may have
/// no end.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open_at_once(path, options)?;
    let about = file.metadata()?;
    if about.is_dir() {
        return Err(rustix::io::Errno::ISDIR.into());
    }
    let is_null = || fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == about.rdev());
    if about.is_file() || (about.file_type().is_char_device() && is_null()) {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Opens a file of any type without waiting for the other end of a FIFO.
fn open_at_once(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Reads a regular file of at most `limit` bytes.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path, OpenOptions::new().read(true))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large(limit)) } else { Ok(bytes) }
}

fn too_large(limit: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {} KiB", limit / 1024))
}

/// Reads a pipe or device until its end.
fn read_stream(mut file: File, limit: u64, time_limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + time_limit;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 8192]);
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                let text = format!("it has not ended after {} s", time_limit.as_secs_f32());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match file.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > limit {
            return Err(too_large(limit));
        }
    }
}

/// Reads a regular UTF-8 file of at most `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    utf8(path, read_regular(path, limit))
}

/// Reads a UTF-8 file like [`read_text`], or a pipe, so that `<(...)` of a shell works. The writer of the pipe has
/// `time_limit`.
pub fn read_text_or_pipe(path: &Path, limit: u64, time_limit: Duration) -> Result<String, FileError> {
    let is_special = fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir());
    if !is_special {
        return read_text(path, limit);
    }
    let file = open_at_once(path, OpenOptions::new().read(true));
    utf8(path, file.and_then(|file| read_stream(file, limit, time_limit)))
}

fn utf8(path: &Path, bytes: io::Result<Vec<u8>>) -> Result<String, FileError> {
    let refusal = |cause: String, hint| FileError {
        operation: "read",
        path: path.to_owned(),
        cause,
        hint: Some(hint),
        kind: io::ErrorKind::InvalidData,
    };
    let bytes = bytes.map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => refusal("it is a directory".to_owned(), "name a file in it"),
        io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput => {
            refusal(error.to_string(), "check that this is the right file")
        }
        io::ErrorKind::TimedOut => refusal(error.to_string(), "check the program that writes to it"),
        _ => FileError::new("read", path, &error),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].split(|&byte| byte == b'\n').count();
        refusal(format!("line {line} is not UTF-8"), "save it as UTF-8, for example with `iconv -t UTF-8`")
    })
}

/// Writes a file with mode 0600 atomically: readers see the old content or the new one. Creates its directory with mode
/// 0700 if it is missing.
pub fn write_atomic(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let failure = |error: &io::Error| FileError::new("write", path, error);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directory(directory).map_err(|error| failure(&error))?;
    let temporary = directory.join(temporary_name(path).map_err(|error| failure(&error))?);
    let written = write_new(&temporary, content).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        // A second error about the temporary file would not help.
        let _ = fs::remove_file(&temporary);
        failure(&error)
    })
}

/// Creates a file with mode 0600 and fails if it exists. Creates its directory if it is missing.
pub fn create_new(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let made = path.parent().map_or(Ok(()), make_directory);
    made.and_then(|()| write_new(path, content)).map_err(|error| FileError::new("write", path, &error))
}

/// A lock between processes of gpufleet, held until it is dropped.
#[derive(Debug)]
pub struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        // A child process that is being started may still hold a copy of the file, so closing it is not enough.
        let _ = self.0.unlock();
    }
}

/// Takes a lock. Returns `None` if another process holds it or the file system has no locks. Creates the file with mode
/// 0600 if it is missing, but not its directory.
pub fn try_lock(path: &Path) -> Option<FileLock> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = open_regular(path, &mut options).ok()?;
    file.try_lock().ok()?;
    Some(FileLock(file))
}

/// Takes the lock of a file without waiting. Creates the file with mode 0600 if it is missing, but not its directory.
///
/// # Errors
/// [`LockHeld`] inside the error if another process holds it; or the file cannot be opened.
pub fn lock_file(path: &Path) -> io::Result<FileLock> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = open_regular(path, &mut options)?;
    lock_within(&file, Duration::ZERO)?;
    Ok(FileLock(file))
}

/// How often a lock that another process holds is tried again.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// Error: another process kept the lock of a file.
#[derive(Debug)]
pub struct LockHeld {
    /// The holder, if this machine knows it: its process id and its name.
    pub holder: Option<(u32, SafeText)>,
    limit: Duration,
}

impl fmt::Display for LockHeld {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.limit.as_secs_f32();
        match &self.holder {
            Some((pid, name)) => write!(formatter, "{name} (pid {pid}) has kept it locked for {seconds} s"),
            None => write!(formatter, "another process has kept it locked for {seconds} s"),
        }
    }
}

impl std::error::Error for LockHeld {}

/// Takes the lock of an open file, and waits for it until `limit` has passed. Blocking.
///
/// # Errors
/// [`LockHeld`] inside the error if another process keeps the lock, or the file system has no locks.
pub fn lock_within(file: &File, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::Error(error)) => return Err(error),
            Err(fs::TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let held = LockHeld { holder: lock_holder(file), limit };
                return Err(io::Error::new(io::ErrorKind::TimedOut, held));
            }
            // flock(2) takes no time limit, so the lock is tried again until the deadline.
            Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY),
        }
    }
}

/// The process that holds the lock of a file, if it runs on this machine and the system lists locks (Linux).
fn lock_holder(file: &File) -> Option<(u32, SafeText)> {
    /// The kernel returns the list in parts, and a line can be missing if other locks are released in between.
    const READS: usize = 4;
    let about = rustix::fs::fstat(file).ok()?;
    let device = (rustix::fs::major(about.st_dev), rustix::fs::minor(about.st_dev));
    let pid =
        (0..READS).find_map(|_| lock_holder_in(&fs::read_to_string("/proc/locks").ok()?, device, about.st_ino))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, SafeText::new(name.trim_end())))
}

/// Finds the holder of a `flock` lock in `/proc/locks` (proc_locks(5)): `1: FLOCK  ADVISORY  WRITE 30972 fe:00:5473078 0
/// EOF`. A waiting process has `->` in front of `FLOCK`. The process id is 0 or negative if the holder is in another pid
/// namespace.
fn lock_holder_in(locks: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, found, ..] if found == file => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

/// Renames an unusable file to NAME.bad-1, or the next free number, and returns the new name.
///
/// # Errors
/// The file cannot be renamed, or a hundred of them exist.
pub fn rename_bad_file(path: &Path) -> io::Result<String> {
    const MAX_BAD_FILES: u32 = 100;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = (1..=MAX_BAD_FILES).map(|number| format!("{name}.bad-{number}"));
    let Some(aside) = names.into_iter().find(|name| !path.with_file_name(name).exists()) else {
        return Err(io::Error::other(format!("{MAX_BAD_FILES} unusable copies exist already")));
    };
    fs::rename(path, path.with_file_name(&aside))?;
    Ok(aside)
}

/// A new file with mode 0600 that is written line by line.
#[derive(Debug)]
pub struct LineFile {
    file: File,
    path: PathBuf,
}

impl LineFile {
    /// Creates the file and fails if it exists.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        match open_new(path) {
            Ok(file) => Ok(Self { file, path: path.to_owned() }),
            Err(error) => Err(FileError::new("write", path, &error)),
        }
    }

    /// Appends one line, including its newline, in a single write, so that a killed program leaves only whole lines
    /// before the last newline.
    pub fn append(&mut self, line: &[u8]) -> Result<(), FileError> {
        self.file.write_all(line).map_err(|error| FileError::new("write", &self.path, &error))
    }

    /// Waits until the content is on disk.
    pub fn finish(self) -> Result<(), FileError> {
        self.file.sync_all().map_err(|error| FileError::new("write", &self.path, &error))
    }
}

/// Appends one line, including its newline, to a file with mode 0600. Creates its directory if it is missing. A file of
/// more than `limit` bytes is first renamed to NAME.1, replacing an older one.
pub fn append_line(path: &Path, line: &[u8], limit: u64) -> Result<(), FileError> {
    let failure = |error: &io::Error| FileError::new("write", path, error);
    path.parent().map_or(Ok(()), make_directory).map_err(|error| failure(&error))?;
    if fs::metadata(path).is_ok_and(|about| about.len() > limit) {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        fs::rename(path, old).map_err(|error| failure(&error))?;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    open_regular(path, &mut options).and_then(|mut file| file.write_all(line)).map_err(|error| failure(&error))
}

fn temporary_name(path: &Path) -> io::Result<String> {
    let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(format!(".{name}.{random:016x}"))
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = open_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn open_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn error(path: &Path, limit: u64) -> String {
        let error = read_text(path, limit).expect_err("an error").to_string();
        error.replace(&path.to_string_lossy().into_owned(), "PATH")
    }

    fn make_fifo(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
        assert!(made.success());
    }

    #[test]
    fn special_files_are_refused_without_waiting() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("memory.json");
        make_fifo(&path);
        let expected = "cannot read PATH: it is not a regular file\n  hint: check that this is the right file\n";
        assert_eq!(error(&path, 9), expected);
        assert_eq!(error(Path::new("/dev/zero"), 9), expected);
        assert!(append_line(&path, b"line\n", 9).is_err() && try_lock(&path).is_none());
        // ENXIO: nobody can open a socket as a file.
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("binds");
        assert!(read_regular(&socket, 9).is_err());
        assert_eq!(read_text(Path::new("/dev/null"), 9).expect("is empty"), "");
    }

    #[test]
    fn a_pipe_is_read_to_its_end_within_a_time_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("hosts.toml");
        make_fifo(&path);
        let limit = Duration::from_millis(20);
        let read_from = |path: &Path, limit, time_limit| {
            let read = read_text_or_pipe(path, limit, time_limit).map_err(|error| error.to_string());
            read.map_err(|error| error.replace(&path.to_string_lossy().into_owned(), "PATH"))
        };
        let read = |limit, time_limit| read_from(&path, limit, time_limit);
        let late = "cannot read PATH: it has not ended after 0.02 s\n  hint: check the program that writes to it\n";
        assert_eq!(read(99, limit), Err(late.to_owned()), "there is no writer");
        // Linux opens a pipe for both directions without a partner, so that a late reader blocks nobody (fifo(7)).
        let mut writer = OpenOptions::new().read(true).write(true).open(&path).expect("opens");
        writer.write_all(b"[[host]]\n").expect("has room");
        assert_eq!(read(99, Duration::from_secs(1)).map(drop), Err(late.replace("0.02", "1")), "the writer is open");
        drop(writer);
        let long = Duration::from_secs(20);
        // Another test may be starting a program, which has a copy of the first writer until it runs. When that copy closes, a
        // reader of the first pipe would see the end before this writer has opened it.
        let other = directory.path().join("other.toml");
        make_fifo(&other);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = OpenOptions::new().write(true).open(&other).expect("opens");
                writer.write_all(b"name = \"a\"\n").expect("is read");
            });
            assert_eq!(read_from(&other, 99, long), Ok("name = \"a\"\n".to_owned()));
        });
        let zero = read_text_or_pipe(Path::new("/dev/zero"), 2048, long).expect_err("has no end").to_string();
        assert_eq!(zero, "cannot read /dev/zero: it is larger than 2 KiB\n  hint: check that this is the right file\n");
        fs::remove_file(&path).expect("removes");
        fs::write(&path, "x").expect("writes");
        assert_eq!(read(99, limit), Ok("x".to_owned()));
    }

    #[test]
    fn written_files_are_private_and_can_be_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a/b/view.toml");
        write_atomic(&path, b"one").expect("writes");
        write_atomic(&path, b"two").expect("writes over it");
        assert_eq!(read_text(&path, 100).expect("reads"), "two");
        let mode = |path: &Path| fs::metadata(path).expect("exists").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().expect("a parent")), 0o700);
        let left = fs::read_dir(path.parent().expect("a parent")).expect("reads").count();
        assert_eq!(left, 1, "no temporary file stays");
    }

    #[test]
    fn a_line_file_is_complete_after_each_line_and_overwrites_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lab.jsonl");
        let mut file = LineFile::create(&path).expect("makes it");
        for (line, content) in [("one\n", "one\n"), ("two\n", "one\ntwo\n")] {
            file.append(line.as_bytes()).expect("writes");
            assert_eq!(read_text(&path, 100).expect("reads"), content);
        }
        file.finish().expect("is on its disk");
        assert_eq!(fs::metadata(&path).expect("exists").permissions().mode() & 0o777, 0o600);
        let error = LineFile::create(&path).expect_err("it exists").to_string();
        assert_eq!(
            error,
            format!(
                "cannot write {}: File exists\n  hint: choose another name, or delete the file first\n",
                path.display()
            )
        );
    }

    #[test]
    fn the_holder_of_a_lock_is_found_by_the_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:7 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 fe:00:8 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 fe:00:7 0 EOF\n3: FLOCK  ADVISORY  WRITE 14 fe:00:7 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 fe:00:9 0 EOF\n5: FLOCK\n\n";
        assert_eq!(lock_holder_in(locks, (0xfe, 0), 7), Some(14));
        assert_eq!(lock_holder_in(locks, (0xfe, 1), 7), None);
        assert_eq!(lock_holder_in(locks, (0xfe, 0), 9), None);
    }

    #[test]
    fn a_lock_has_one_holder_until_it_is_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("memory.lock");
        let held = try_lock(&path).expect("is free");
        assert!(try_lock(&path).is_none());
        assert_eq!(fs::metadata(&path).expect("exists").permissions().mode() & 0o777, 0o600);
        drop(held);
        assert!(try_lock(&path).is_some());
        assert!(try_lock(&directory.path().join("missing/memory.lock")).is_none());
    }

    #[test]
    fn append_line_rotates_a_long_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state/signals.log");
        for line in ["one\n", "two\n", "three\n"] {
            append_line(&path, line.as_bytes(), 7).expect("writes");
        }
        assert_eq!(read_text(&path, 100).expect("reads"), "three\n");
        let old = directory.path().join("state/signals.log.1");
        assert_eq!(read_text(&old, 100).expect("reads"), "one\ntwo\n");
        assert_eq!(fs::metadata(&path).expect("exists").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("taken");
        fs::create_dir(&path).expect("a directory in its place");
        assert!(write_atomic(&path, b"x").is_err());
        assert_eq!(fs::read_dir(directory.path()).expect("reads").count(), 1);
    }

    #[test]
    fn read_errors_have_a_cause_and_a_hint() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("hosts.toml");
        assert_eq!(error(&path, 9), "cannot read PATH: No such file or directory\n");
        assert_eq!(error(directory.path(), 9), "cannot read PATH: it is a directory\n  hint: name a file in it\n");
        fs::write(&path, b"one\ntwo \xff\n").expect("writes");
        assert_eq!(
            error(&path, 99),
            "cannot read PATH: line 2 is not UTF-8\n  hint: save it as UTF-8, for example with `iconv -t UTF-8`\n"
        );
        fs::write(&path, vec![b'#'; 2049]).expect("writes");
        assert_eq!(
            error(&path, 2048),
            "cannot read PATH: it is larger than 2 KiB\n  hint: check that this is the right file\n"
        );
        assert_eq!(read_text(&path, 2049).expect("reads").len(), 2049);
    }
}
