//! The other probes of the same user on this host. One that hangs in NVML leaves a mark, and the others keep away from
//! the driver until it is free: each further call would only hang as well.

use crate::probe::procfs::{Scratch, Stat, boot_id};
use rustix::fs::{Mode, OFlags, fstat, open};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Directories that belong to the host and not to a file server, whoever logs in, however.
const FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];
/// Longer than any mark.
const MAX_BYTES: usize = 64;

/// The place of the mark, for every probe of one user in one life of the host.
#[derive(Debug)]
pub(super) struct Mark {
    places: Vec<PathBuf>,
    uid: u32,
    me: Process,
    /// The one that we have left.
    raised: Option<PathBuf>,
    scratch: Scratch,
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
            places: folders.iter().map(|folder| folder.as_ref().join(&name)).collect(),
            uid,
            me: Process { pid, start_ticks },
            raised: None,
            scratch,
        }
    }

    /// Another process of this user that hangs in NVML now.
    pub(super) fn other(&mut self) -> Option<u32> {
        let Self { places, uid, me, scratch, .. } = self;
        let found = places.iter().filter_map(|place| read(place, *uid, scratch)).find(|&process| process != *me);
        found.filter(|process| is_alive(&mut self.scratch, *process)).map(|process| process.pid)
    }

    /// We hang. A mark of another that lives stays: it says the same.
    pub(super) fn raise(&mut self) {
        if self.raised.is_some() || self.other().is_some() {
            return;
        }
        let Process { pid, start_ticks } = self.me;
        self.raised = self.places.iter().find(|place| write(place, &format!("{pid} {start_ticks}\n"))).cloned();
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
        assert!(mark.places[0].to_string_lossy().ends_with(".waiting"));
        format!("{} {ticks}\n", process.id())
    }

    #[test]
    fn a_living_process_keeps_us_away_and_a_dead_one_does_not() {
        let folder = tempfile::tempdir().expect("folder");
        let mut mark = Mark::within(&[folder.path()]);
        assert_eq!(mark.other(), None);
        let mut other = sleeper();
        let text = mark_of(&mark, &other);
        assert!(write(&mark.places[0], &text));
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
    fn a_successor_of_the_same_pid_is_another_process() {
        let folder = tempfile::tempdir().expect("folder");
        let mut mark = Mark::within(&[folder.path()]);
        let mut other = sleeper();
        assert!(write(&mark.places[0], &format!("{} 1\n", other.id())));
        assert_eq!(mark.other(), None);
        other.kill().expect("ends");
        other.wait().expect("ends");
    }

    #[test]
    fn what_is_no_mark_of_ours_says_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let mut mark = Mark::within(&[&folder.path().join("missing"), folder.path()]);
        let place = mark.places[1].clone();
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
