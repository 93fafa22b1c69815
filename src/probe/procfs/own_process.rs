//! Readings that only the owner of a process may take: I/O every 30 s, open files every minute.
//!
//! Nothing here waits for a file server: links are read without access to their target, and only files on a disk of
//! this host are asked for their times.

use super::files::{FileReader, KnownMount, mounts};
use super::host::SampleContext;
use crate::wire::{ProcessFacts, ProcessReading, SafeText};
use rustix::fs::{FileType, stat};

/// File system types whose files are on this host.
const LOCAL_FILESYSTEMS: [&str; 10] =
    ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "ext3", "ext2", "f2fs", "bcachefs"];

/// Maximum number of bytes read from a `mountinfo` file.
const MAX_MOUNTINFO_BYTES: usize = 64 * 1024;
/// How long a mount is known, in seconds. Its id may stand for another one later.
const MOUNT_AGE_SECONDS: f64 = 25.0;

/// The values of the last read.
#[derive(Debug, Default)]
pub(super) struct OwnProcessDetails {
    write_bytes: Option<u64>,
    read_characters: Option<u64>,
    wait_channel: Option<SafeText>,
    log: Option<Log>,
    log_age_seconds: Option<f64>,
}

/// The file behind standard output, else behind standard error.
#[derive(Debug)]
struct Log {
    descriptor: u32,
    path: SafeText,
    is_local: bool,
    /// File offset of the descriptor at its last change, and the monotonic time of that change.
    position: u64,
    position_changed_at: f64,
}

impl OwnProcessDetails {
    /// Updates the working directory and the log path. Returns whether `facts` changed.
    pub(super) fn refresh(
        &mut self,
        pid: u32,
        context: SampleContext,
        facts: &mut ProcessFacts,
        reader: &mut FileReader,
    ) -> bool {
        let known = self.log.take();
        self.log =
            [1, 2].into_iter().find_map(|descriptor| Log::refresh(known.as_ref(), pid, descriptor, context, reader));
        let directory = reader.read_link(pid, "cwd").map(|path| SafeText::from_bytes(&path));
        let log_path = self.log.as_ref().map(|log| log.path.clone());
        let changed = facts.working_directory != directory || facts.log_path != log_path;
        facts.working_directory = directory;
        facts.log_path = log_path;
        changed
    }

    /// Reads I/O counters and the wait channel of `thread`. If the process has not run since the last read, only the
    /// age of the log is read: other processes may write to that file.
    pub(super) fn read_activity(
        &mut self,
        pid: u32,
        has_run: bool,
        thread: Option<u32>,
        context: SampleContext,
        reader: &mut FileReader,
    ) {
        if has_run {
            self.read_io(pid, reader);
            match thread {
                Some(thread) => self.read_wait_channel(pid, thread, reader),
                None => self.wait_channel = None,
            }
        }
        self.log_age_seconds = self.log.as_mut().and_then(|log| log.age_seconds(pid, context, reader));
    }

    /// Reads the kernel function in which the thread waits.
    pub(super) fn read_wait_channel(&mut self, pid: u32, thread: u32, reader: &mut FileReader) {
        let channel = reader.read_thread(pid, thread, "wchan", 128).ok().map(<[u8]>::trim_ascii);
        // The kernel writes `0` if the thread does not wait or if access is not permitted.
        let channel = channel.filter(|channel| !channel.is_empty() && *channel != b"0");
        if self.wait_channel.as_ref().map(|known| known.as_bytes()) != channel {
            self.wait_channel = channel.map(SafeText::from_bytes);
        }
    }

    /// Adds the values to a reading; the wait channel only if `is_waiting`.
    pub(super) fn fill_reading(&self, is_waiting: bool, reading: &mut ProcessReading) {
        reading.write_bytes = self.write_bytes;
        reading.read_characters = self.read_characters;
        reading.log_age_seconds = self.log_age_seconds;
        reading.wait_channel = self.wait_channel.clone().filter(|_| is_waiting);
    }

    fn read_io(&mut self, pid: u32, reader: &mut FileReader) {
        let text = reader.read_process(pid, "io", 512).ok().and_then(|text| std::str::from_utf8(text).ok());
        let value = |name: &str| {
            let line = text?.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        (self.write_bytes, self.read_characters) = (value("write_bytes:"), value("rchar:"));
    }
}

impl Log {
    /// Finds the regular file behind a descriptor.
    fn refresh(
        known: Option<&Self>,
        pid: u32,
        descriptor: u32,
        context: SampleContext,
        reader: &mut FileReader,
    ) -> Option<Self> {
        let path = reader.read_link(pid, &format!("fd/{descriptor}")).filter(|path| is_file_path(path))?;
        let path = SafeText::from_bytes(&path);
        if let Some(log) = known.filter(|log| log.path == path) {
            return Some(Self { descriptor, path, ..*log });
        }
        let (position, mount) = position_of(reader.read_process(pid, &format!("fdinfo/{descriptor}"), 512).ok()?)?;
        let is_local = is_on_this_host(pid, mount, context.now, reader)?;
        // A named pipe has a path too.
        let is_regular = !is_local || modified_unix_seconds(pid, descriptor).is_some();
        is_regular.then_some(Self { descriptor, path, is_local, position, position_changed_at: context.now })
    }

    /// Returns the seconds since the last write. On a network file system, which is never queried, it is the time for
    /// which the offset has not changed.
    fn age_seconds(&mut self, pid: u32, context: SampleContext, reader: &mut FileReader) -> Option<f64> {
        let Self { descriptor, .. } = *self;
        if self.is_local {
            return Some((context.unix_seconds - modified_unix_seconds(pid, descriptor)?).max(0) as f64);
        }
        let (position, _) = position_of(reader.read_process(pid, &format!("fdinfo/{descriptor}"), 512).ok()?)?;
        if self.position != position {
            (self.position, self.position_changed_at) = (position, context.now);
        }
        let seconds = (context.now - self.position_changed_at).trunc();
        (seconds > 0.0).then_some(seconds)
    }
}

/// Returns the time of the last write to the regular file behind a descriptor. It may block unless the file is on this
/// host.
fn modified_unix_seconds(pid: u32, descriptor: u32) -> Option<i64> {
    let file = stat(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    (FileType::from_raw_mode(file.st_mode) == FileType::RegularFile).then_some(file.st_mtime)
}

/// Whether a link in `/proc/PID/fd` names a file. Pipes and sockets have no path; terminals and other devices are
/// excluded.
pub(crate) fn is_file_path(link: &[u8]) -> bool {
    link.starts_with(b"/") && (!link.starts_with(b"/dev/") || link.starts_with(b"/dev/shm/"))
}

/// Parses offset and mount id in `/proc/PID/fdinfo/FD` (proc_pid_fdinfo(5)).
fn position_of(text: &[u8]) -> Option<(u64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((value("pos:")?.parse().ok()?, value("mnt_id:")?.parse().ok()?))
}

/// Whether the mount with this id, in the mount namespace of a process, is of a file system on this host.
fn is_on_this_host(pid: u32, id: u32, now: f64, reader: &mut FileReader) -> Option<bool> {
    let namespace = reader.read_link(pid, "ns/mnt")?;
    let is_it =
        |known: &&KnownMount| known.id == id && known.namespace == namespace && now - known.read_at < MOUNT_AGE_SECONDS;
    if let Some(known) = reader.known_mount.as_ref().filter(is_it) {
        return Some(known.is_local);
    }
    let is_local = is_local(reader.read_long(pid, "mountinfo", MAX_MOUNTINFO_BYTES).ok()?, id);
    reader.known_mount = Some(KnownMount { namespace, id, is_local, read_at: now });
    Some(is_local)
}

/// Whether the mount with this id is of a file system on this host.
fn is_local(mountinfo: &[u8], id: u32) -> bool {
    mounts(mountinfo).any(|mount| mount.id == id && LOCAL_FILESYSTEMS.contains(&mount.kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn context(now: f64, unix_seconds: i64) -> SampleContext {
        SampleContext { now, unix_seconds, ..SampleContext::default() }
    }

    #[test]
    fn a_log_has_a_path_and_an_age() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.log");
        let mut log = std::fs::File::create(&path).unwrap();
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        let written = written.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let mut command = Command::new("sleep");
        command.arg("600").current_dir(folder.path()).stdin(Stdio::null()).stdout(log.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        let (mut details, mut facts, mut reader) =
            (OwnProcessDetails::default(), ProcessFacts::default(), FileReader::default());
        let pid = child.id();
        assert!(details.refresh(pid, context(1.0, written + 90), &mut facts, &mut reader));
        details.read_activity(pid, true, Some(pid), context(1.0, written + 90), &mut reader);
        assert_eq!(facts.log_path.as_deref(), path.to_str());
        assert_eq!(facts.working_directory.as_deref(), folder.path().to_str());
        let mut reading = ProcessReading::default();
        details.fill_reading(true, &mut reading);
        assert_eq!(reading.log_age_seconds, Some(90.0));
        assert!(reading.write_bytes.is_some() && reading.read_characters.is_some_and(|read| read > 0));
        assert!(!details.refresh(pid, context(2.0, written + 91), &mut facts, &mut reader), "nothing has changed");
        // For a process that has not run, only the age of the log is read.
        details.write_bytes = Some(u64::MAX);
        details.read_activity(pid, false, None, context(2.0, written + 91), &mut reader);
        assert_eq!((details.write_bytes, details.log_age_seconds), (Some(u64::MAX), Some(91.0)));
        // On a file server only a changed offset shows a write; time before the first read does not count.
        details.log.as_mut().unwrap().is_local = false;
        details.read_activity(pid, false, None, context(61.0, written + 999), &mut reader);
        assert_eq!(details.log_age_seconds, Some(60.0));
        log.write_all(b"epoch 1\n").unwrap();
        details.read_activity(pid, false, None, context(62.0, written + 999), &mut reader);
        assert_eq!(details.log_age_seconds, None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_log_on_standard_error_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("train.log")).unwrap();
        let mut command = Command::new("sleep");
        let mut child = command.arg("600").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let (mut details, mut facts, mut reader) =
            (OwnProcessDetails::default(), ProcessFacts::default(), FileReader::default());
        details.refresh(child.id(), context(1.0, 0), &mut facts, &mut reader);
        // On a file server, the time without growth survives the refresh.
        details.log.as_mut().unwrap().is_local = false;
        details.refresh(child.id(), context(61.0, 0), &mut facts, &mut reader);
        details.read_activity(child.id(), false, None, context(61.0, 0), &mut reader);
        assert_eq!(details.log_age_seconds, Some(60.0));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn local_file_systems_are_recognized() {
        let mountinfo = b"22 1 0:21 / /proc rw shared:1 - proc proc rw\n\
            31 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 31 0:50 / /home rw,nosuid master:3 - nfs4 server:/home rw,vers=4.2\n";
        assert_eq!([31, 40, 22, 99].map(|id| is_local(mountinfo, id)), [true, false, false, false]);
        assert_eq!(position_of(b"pos:\t4096\nflags:\t0100001\nmnt_id:\t31\n"), Some((4096, 31)));
        assert_eq!(position_of(b"pos:\t4096\n"), None);
    }

    #[test]
    fn a_mount_is_known_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("train.log")).unwrap();
        let (pid, mut reader) = (std::process::id(), FileReader::default());
        let text = std::fs::read(format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
        let (_, id) = position_of(&text).unwrap();
        let found = is_on_this_host(pid, id, 100.0, &mut reader).unwrap();
        reader.known_mount.as_mut().unwrap().is_local = !found;
        assert_eq!(is_on_this_host(pid, id, 124.0, &mut reader), Some(!found), "from the first read");
        assert_eq!(is_on_this_host(pid, u32::MAX, 124.0, &mut reader), Some(false), "another mount");
        assert_eq!(is_on_this_host(pid, id, 124.0, &mut reader), Some(found), "it was read again");
        reader.known_mount.as_mut().unwrap().is_local = !found;
        assert_eq!(is_on_this_host(pid, id, 149.5, &mut reader), Some(found), "too old");
        reader.known_mount.as_mut().unwrap().is_local = !found;
        reader.known_mount.as_mut().unwrap().namespace.push(b'1');
        assert_eq!(is_on_this_host(pid, id, 149.5, &mut reader), Some(found), "of another namespace");
    }

    #[test]
    fn pipes_and_terminals_are_not_logs() {
        for (link, expected) in [
            (b"/home/alice/train.log".as_slice(), true),
            (b"/dev/shm/log", true),
            (b"/dev/pts/3", false),
            (b"/dev/null", false),
            (b"pipe:[4711]", false),
        ] {
            assert_eq!(is_file_path(link), expected, "{}", String::from_utf8_lossy(link));
        }
    }
}
