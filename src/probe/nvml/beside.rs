//! The other probes of the same user on this host. One that hangs in NVML leaves a mark, and the others keep away from
//! the driver until it is free: each further call would only hang as well.

use crate::probe::procfs::{Scratch, Stat, boot_id};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directories that belong to the host and not to a file server, whoever logs in, however.
const FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];
/// Longer than any mark.
const MAX_BYTES: usize = 64;
/// A folder that changed later than this ago may change again without showing it: file systems note times by the tick of
/// the kernel's clock.
const FRESH_SECONDS: i64 = 1;
/// After this the folder is looked for by its name: another file system may have come to lie over it.
const OPEN_FOR: Duration = Duration::from_secs(30);

/// The place of the mark, for every probe of one user in one life of the host.
#[derive(Debug)]
pub(super) struct Mark {
    places: Vec<Place>,
    uid: u32,
    me: Process,
    /// The one that we have left.
    raised: Option<PathBuf>,
    scratch: Scratch,
}

/// Where a mark may lie.
///
/// As long as its folder does not change no mark has come, and to ask the open folder for its time costs a tenth of a
/// look at a file that is not there.
#[derive(Debug)]
struct Place {
    mark: PathBuf,
    folder: Option<(OwnedFd, Instant)>,
    /// When the folder had changed last, at a look that found nothing.
    empty_since: Option<(i64, i64)>,
}

impl Place {
    fn new(mark: PathBuf) -> Self {
        Self { mark, folder: None, empty_since: None }
    }

    /// The process that has left a mark here.
    fn look(&mut self, uid: u32, scratch: &mut Scratch) -> Option<Process> {
        if self.folder.as_ref().is_none_or(|(_, opened)| opened.elapsed() >= OPEN_FOR) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = self.mark.parent().and_then(|folder| open(folder, flags, Mode::empty()).ok());
            (self.folder, self.empty_since) = (folder.map(|folder| (folder, Instant::now())), None);
        }
        let changed = self.folder.as_ref().and_then(|(folder, _)| changed(folder));
        if changed.is_some() && changed == self.empty_since {
            return None;
        }
        let found = read(&self.mark, uid, scratch);
        let now = clock_gettime(ClockId::Realtime).tv_sec;
        self.empty_since = changed.filter(|&(seconds, _)| found.is_none() && now - seconds > FRESH_SECONDS);
        found
    }
}

/// When something last came into a folder or left it, in seconds and nanoseconds; `None` where it is no more.
fn changed(folder: &OwnedFd) -> Option<(i64, i64)> {
    let stat = fstat(folder).ok().filter(|stat| stat.st_nlink > 0)?;
    Some((stat.st_mtime, stat.st_mtime_nsec as i64))
}

/// A process for sure: its pid alone would name a successor too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: u32,
    start_ticks: u64,
}

impl Mark {
    /// In `folder`, or in the usual ones.
    pub(super) fn new(folder: Option<&str>) -> Self {
        match folder {
            Some(folder) => Self::within(&[folder]),
            None => Self::within(&FOLDERS),
        }
    }

    fn within<P: AsRef<Path>>(folders: &[P]) -> Self {
        let mut scratch = Scratch::default();
        let uid = rustix::process::getuid().as_raw();
        let boot = boot_id(&mut scratch).unwrap_or_default();
        // The boot id is the kernel's, and still no part of a path that it did not mean to be.
        let boot: String = boot.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!("gpufleet-{uid}-{boot}.waiting");
        let pid = std::process::id();
        let start_ticks = start_ticks(&mut scratch, pid).unwrap_or(0);
        Self {
            places: folders.iter().map(|folder| Place::new(folder.as_ref().join(&name))).collect(),
            uid,
            me: Process { pid, start_ticks },
            raised: None,
            scratch,
        }
    }

    /// Another process of this user that hangs in NVML now.
    pub(super) fn other(&mut self) -> Option<u32> {
        let Self { places, uid, me, scratch, .. } = self;
        let found = places.iter_mut().filter_map(|place| place.look(*uid, scratch)).find(|&process| process != *me);
        found.filter(|process| is_alive(&mut self.scratch, *process)).map(|process| process.pid)
    }

    /// We hang. A mark of another that lives stays: it says the same.
    pub(super) fn raise(&mut self) {
        if self.raised.is_some() || self.other().is_some() {
            return;
        }
        let Process { pid, start_ticks } = self.me;
        let text = format!("{pid} {start_ticks}\n");
        self.raised = self.places.iter().map(|place| &place.mark).find(|mark| write(mark, &text)).cloned();
    }

    /// We do not hang any more.
    pub(super) fn lower(&mut self) {
        if let Some(place) = self.raised.take()
            && read(&place, self.uid, &mut self.scratch) == Some(self.me)
        {
            // A mark that cannot be removed says nothing once this process is gone.
            let _stays = std::fs::remove_file(place);
        }
    }
}

/// What stands in a mark, if it is a file of this user's: anybody may write to such directories.
fn read(place: &Path, uid: u32, scratch: &mut Scratch) -> Option<Process> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(place, flags, Mode::empty()).ok()?;
    let is_ours = fstat(&file).is_ok_and(|stat| stat.st_uid == uid && stat.st_mode & libc::S_IFMT == libc::S_IFREG);
    let text = std::str::from_utf8(scratch.read_open(&file, MAX_BYTES).ok().filter(|_| is_ours)?).ok()?;
    let (pid, start_ticks) = text.trim_end().split_once(' ')?;
    Some(Process { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}

/// Puts a mark in one step over what is there. The directory is sticky, so this fails where a stranger was first.
fn write(place: &Path, text: &str) -> bool {
    let mut new = OsString::from(place);
    new.push(format!(".{}", std::process::id()));
    let created = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let written = created.and_then(|mut file| file.write_all(text.as_bytes())).is_ok();
    if written && std::fs::rename(&new, place).is_ok() {
        return true;
    }
    let _nothing_there = std::fs::remove_file(&new);
    false
}

fn is_alive(scratch: &mut Scratch, process: Process) -> bool {
    start_ticks(scratch, process.pid) == Some(process.start_ticks)
}

fn start_ticks(scratch: &mut Scratch, pid: u32) -> Option<u64> {
    Some(Stat::parse(scratch.read_process(pid, "stat", 1024).ok()?)?.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> Child {
        Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts")
    }

    fn mark_of(mark: &Mark, process: &Child) -> String {
        let ticks = start_ticks(&mut Scratch::default(), process.id()).expect("lives");
        assert!(mark.places[0].mark.to_string_lossy().ends_with(".waiting"));
        format!("{} {ticks}\n", process.id())
    }

    #[test]
    fn a_living_process_keeps_us_away_and_a_dead_one_does_not() {
        let folder = tempfile::tempdir().expect("folder");
        let mut mark = Mark::within(&[folder.path()]);
        assert_eq!(mark.other(), None);
        let mut other = sleeper();
        let text = mark_of(&mark, &other);
        assert!(write(&mark.places[0].mark, &text));
        assert_eq!(mark.other(), Some(other.id()));
        mark.raise();
        assert_eq!(mark.raised, None, "the other one's stays");
        other.kill().expect("ends");
        other.wait().expect("ends");
        assert_eq!(mark.other(), None);
        mark.raise();
        assert_eq!(mark.other(), None, "our own mark does not keep us away");
        let place = mark.raised.clone().expect("raised");
        assert!(place.exists());
        mark.lower();
        assert!(!place.exists());
    }

    #[test]
    fn a_folder_that_has_not_changed_since_it_was_empty_is_not_looked_into() {
        let folder = tempfile::tempdir().expect("folder");
        let file = std::fs::File::open(folder.path()).expect("opens");
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
        let mut mark = Mark::within(&[folder.path()]);
        assert_eq!((mark.other(), mark.places[0].empty_since), (None, None), "it may change again in this tick");
        file.set_modified(long_ago).expect("sets");
        assert_eq!(mark.other(), None);
        assert!(mark.places[0].empty_since.is_some());
        let mut other = sleeper();
        let text = mark_of(&mark, &other);
        assert!(write(&mark.places[0].mark, &text));
        file.set_modified(long_ago).expect("sets");
        assert_eq!(mark.other(), None, "as far as the folder tells");
        file.set_modified(long_ago + Duration::from_millis(1)).expect("sets");
        assert_eq!(mark.other(), Some(other.id()));
        assert_eq!(mark.other(), Some(other.id()), "what is there is looked at each time");
        // A folder that comes after another of its name is another one.
        std::fs::remove_file(&mark.places[0].mark).expect("removes");
        file.set_modified(long_ago).expect("sets");
        assert_eq!(mark.other(), None);
        std::fs::remove_dir(folder.path()).expect("removes");
        std::fs::create_dir(folder.path()).expect("creates");
        assert!(write(&mark.places[0].mark, &text));
        assert_eq!(mark.other(), Some(other.id()));
        other.kill().expect("ends");
        other.wait().expect("ends");
    }

    #[test]
    fn a_successor_of_the_same_pid_is_another_process() {
        let folder = tempfile::tempdir().expect("folder");
        let mut mark = Mark::within(&[folder.path()]);
        let mut other = sleeper();
        assert!(write(&mark.places[0].mark, &format!("{} 1\n", other.id())));
        assert_eq!(mark.other(), None);
        other.kill().expect("ends");
        other.wait().expect("ends");
    }

    #[test]
    fn what_is_no_mark_of_ours_says_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let mut mark = Mark::within(&[&folder.path().join("missing"), folder.path()]);
        let place = mark.places[1].mark.clone();
        for text in ["", "7", "x y", "-1 5", "4294967296 7", "1 2 3"] {
            assert!(write(&place, text));
            assert_eq!(mark.other(), None, "{text:?}");
        }
        std::fs::remove_file(&place).expect("removes");
        std::os::unix::fs::symlink("/proc/self/stat", &place).expect("links");
        assert_eq!(mark.other(), None);
        mark.uid += 1;
        std::fs::remove_file(&place).expect("removes");
        let mut other = sleeper();
        assert!(write(&place, &mark_of(&mark, &other)));
        assert_eq!(mark.other(), None, "a file of another user");
        other.kill().expect("ends");
        other.wait().expect("ends");
    }
}
