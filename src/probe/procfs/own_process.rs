//! What only the owner of a process may read about it: what it uses every 30 s, which its files are every minute.
//!
//! Nothing here may wait for a file server: a link is read without a look at what it names, and a file is asked for its
//! times only where it lies on a disk of this host.

use super::files::FileReader;
use super::host::SampleContext;
use crate::wire::{ProcessFacts, ProcessReading, SafeText};
use rustix::fs::{FileType, stat};

/// File systems that answer from this host.
const LOCAL_FILESYSTEMS: [&str; 10] =
    ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "ext3", "ext2", "f2fs", "bcachefs"];

/// The most bytes of a table of mounts.
const MAX_MOUNTINFO_BYTES: usize = 64 * 1024;

/// What was read last.
#[derive(Debug, Default)]
pub(super) struct OwnProcessDetails {
    write_bytes: Option<u64>,
    read_characters: Option<u64>,
    wait_channel: Option<SafeText>,
    log: Option<Log>,
    log_age_seconds: Option<f64>,
}

/// The file behind standard output, else standard error.
#[derive(Debug)]
struct Log {
    descriptor: u32,
    path: SafeText,
    is_local: bool,
    /// How far it was written when that last changed, and when that was seen.
    position: u64,
    position_changed_at: f64,
}

impl OwnProcessDetails {
    /// Looks which files they are. Whether `facts` changed.
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

    /// Reads what it uses; `thread` is the one whose sleep is of interest, if one is. Where it has not run since, that is the
    /// age of its log and no more: others may write to that.
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

    /// Reads in what the thread waits.
    pub(super) fn read_wait_channel(&mut self, pid: u32, thread: u32, reader: &mut FileReader) {
        let channel = reader.read_thread(pid, thread, "wchan", 128).ok().map(<[u8]>::trim_ascii);
        // The kernel says `0` where nothing is waited for, and where it may not be told.
        let channel = channel.filter(|channel| !channel.is_empty() && *channel != b"0");
        if self.wait_channel.as_ref().map(|known| known.as_bytes()) != channel {
            self.wait_channel = channel.map(SafeText::from_bytes);
        }
    }

    /// Writes it into a reading; what a process waits in only where its `is_waiting` is of interest.
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
    /// The regular file behind a descriptor.
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
        let mounts = reader.read_process(pid, "mountinfo", MAX_MOUNTINFO_BYTES).ok()?;
        let is_local = is_local(mounts, mount);
        // A pipe may have a name too.
        let is_regular = !is_local || modified_unix_seconds(pid, descriptor).is_some();
        is_regular.then_some(Self { descriptor, path, is_local, position, position_changed_at: context.now })
    }

    /// How long ago it was last written. Elsewhere than on this host's own disks that is how long it has been seen not
    /// to grow.
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

/// When the regular file behind a descriptor was last written. Only for files on this host's own disks.
fn modified_unix_seconds(pid: u32, descriptor: u32) -> Option<i64> {
    let file = stat(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    (FileType::from_raw_mode(file.st_mode) == FileType::RegularFile).then_some(file.st_mtime)
}

/// Whether a link of `/proc/PID/fd` names a file: pipes and sockets have no path, and terminals are devices.
pub(crate) fn is_file_path(link: &[u8]) -> bool {
    link.starts_with(b"/") && (!link.starts_with(b"/dev/") || link.starts_with(b"/dev/shm/"))
}

/// Offset and mount id in `/proc/PID/fdinfo/FD` (proc(5)).
fn position_of(text: &[u8]) -> Option<(u64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((value("pos:")?.parse().ok()?, value("mnt_id:")?.parse().ok()?))
}

/// Whether the mount of this id is of a file system that lies on this host, by `/proc/PID/mountinfo`: the first word of
/// a line is the id, the first one after ` - ` the kind.
fn is_local(mounts: &[u8], id: u32) -> bool {
    let lines = mounts.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let kind =
        lines.filter(|line| line.split(' ').next().is_some_and(|word| word.parse() == Ok(id))).find_map(|line| {
            let (_, is_waiting) = line.rsplit_once(" - ")?;
            is_waiting.split(' ').next()
        });
    kind.is_some_and(|kind| LOCAL_FILESYSTEMS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn context(now: f64, unix_seconds: i64) -> SampleContext {
        SampleContext { now, uptime_seconds: None, boot_unix_seconds: None, unix_seconds, forks: None }
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
        assert!(!details.refresh(pid, context(2.0, written + 91), &mut facts, &mut reader), "nothing is news");
        // Of one that has not run only the log's age is looked at.
        details.write_bytes = Some(u64::MAX);
        details.read_activity(pid, false, None, context(2.0, written + 91), &mut reader);
        assert_eq!((details.write_bytes, details.log_age_seconds), (Some(u64::MAX), Some(91.0)));
        // As if it lay on a file server: only its growth tells, and what was before is not claimed.
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
        // As if it lay on a file server: how long it has not grown is known from the last look.
        details.log.as_mut().unwrap().is_local = false;
        details.refresh(child.id(), context(61.0, 0), &mut facts, &mut reader);
        details.read_activity(child.id(), false, None, context(61.0, 0), &mut reader);
        assert_eq!(details.log_age_seconds, Some(60.0));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn local_file_systems_are_recognized() {
        let mounts = b"22 1 0:21 / /proc rw shared:1 - proc proc rw\n\
            31 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 31 0:50 / /home rw,nosuid master:3 - nfs4 server:/home rw,vers=4.2\n";
        assert_eq!([31, 40, 22, 99].map(|id| is_local(mounts, id)), [true, false, false, false]);
        assert_eq!(position_of(b"pos:\t4096\nflags:\t0100001\nmnt_id:\t31\n"), Some((4096, 31)));
        assert_eq!(position_of(b"pos:\t4096\n"), None);
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
