//! Walks through /proc: who is whose child, and which processes are probes.
//!
//! /proc is listed, a piece in each sample, and `stat` of each process that is new there is read. What the last walk
//! knew is not read again: an entry that has kept its inode number is the same process. Its parent is the same unless
//! that one is gone, and its name is taken for good once it is old enough to have become what it was started for, unless
//! it still is the shell that a probe is sent to.

use crate::probe::procfs::{PROBE_NAME, Scratch, Stat, TICKS_PER_SECOND};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use std::mem::MaybeUninit;

/// Room for about 500 entries of /proc, which is what one sample lists.
const SLICE_BYTES: usize = 16 * 1024;
/// The most processes that are walked; beyond it the walk ends early.
const MAX_WALKED: usize = 1 << 16;
/// A younger process may still be a login shell that becomes the one below.
const SETTLED_SECONDS: f64 = 60.0;
/// What receives a probe and then becomes it, for as long as a slow line takes.
const RECEIVER: &[u8] = b"sh";

/// A walk, and what came of the last one.
#[derive(Debug)]
pub(super) struct Walk {
    folder: Option<OwnedFd>,
    /// Sorted by pid: what the last walk found.
    known: Vec<Entry>,
    /// Sorted by pid, since the kernel lists them so.
    walked: Vec<Entry>,
    /// From which entry on `stat` is still to be read, once all are listed.
    unread: Option<usize>,
    /// The walk that goes on, and the last one, did not see everything.
    is_cut: bool,
    was_cut: bool,
}

/// An entry of /proc.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) pid: u32,
    /// 0 above process 1 and the kernel's own, and above what a container was entered with; `None` while it is unknown.
    pub(super) parent: Option<u32>,
    inode: u64,
    is_probe: bool,
    /// It was read when it would not become another program any more.
    is_settled: bool,
}

impl Default for Walk {
    fn default() -> Self {
        let folder = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        Self { folder, known: Vec::new(), walked: Vec::new(), unread: None, is_cut: false, was_cut: false }
    }
}

impl Walk {
    /// Goes on with the walk, with so many files to read at most; whether it is at its end. The next call begins anew.
    pub(super) fn step(&mut self, uptime_seconds: Option<f64>, reads: &mut usize, scratch: &mut Scratch) -> bool {
        if self.unread.is_none() {
            if !self.list() {
                return false;
            }
            self.forget_lost_parents();
        }
        let from = self.unread.unwrap_or(0);
        self.unread = self.read(from, uptime_seconds, reads, scratch);
        if self.unread.is_some() {
            return false;
        }
        self.known = std::mem::take(&mut self.walked);
        self.was_cut = std::mem::take(&mut self.is_cut);
        true
    }

    /// What the last whole walk found, sorted by pid.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.known
    }

    /// How many probes it found among the processes that this host shows; `None` where it did not come to its end.
    pub(super) fn probes(&self) -> Option<u32> {
        (!self.was_cut && !self.known.is_empty())
            .then(|| self.known.iter().filter(|entry| entry.is_probe).count() as u32)
    }

    /// Lists the next piece of /proc; whether that was the last.
    fn list(&mut self) -> bool {
        let Some(folder) = self.folder.as_ref() else { return true };
        let mut buffer = vec![MaybeUninit::uninit(); SLICE_BYTES];
        let mut entries = RawDir::new(folder, &mut buffer);
        loop {
            match entries.next() {
                Some(Ok(entry)) => {
                    let pid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
                    let last = self.walked.last().map_or(0, |entry| entry.pid);
                    if let Some(pid) = pid.filter(|&pid| pid > last) {
                        let inode = entry.ino();
                        let known = find(&self.known, pid).filter(|known| known.inode == inode && known.is_settled);
                        let unknown = Entry { pid, parent: None, inode, is_probe: false, is_settled: false };
                        self.walked.push(known.copied().unwrap_or(unknown));
                    }
                }
                Some(Err(_)) => {
                    self.is_cut = true;
                    break;
                }
                None => break,
            }
            if entries.is_buffer_empty() {
                if self.walked.len() < MAX_WALKED {
                    return false;
                }
                self.is_cut = true;
                break;
            }
        }
        // A folder that cannot be read from its beginning again is read no more.
        if seek(folder, SeekFrom::Start(0)).is_err() {
            self.folder = None;
        }
        true
    }

    /// An entry whose parent is not there any more, or is another process now, has a new parent.
    fn forget_lost_parents(&mut self) {
        for index in 0..self.walked.len() {
            let Some(parent) = self.walked[index].parent.filter(|&parent| parent != 0) else { continue };
            let now = find(&self.walked, parent).map(|entry| entry.inode);
            if now.is_none() || now != find(&self.known, parent).map(|entry| entry.inode) {
                self.walked[index].parent = None;
            }
        }
    }

    /// Reads what is unknown; where to go on, unless that was all.
    fn read(
        &mut self,
        from: usize,
        uptime_seconds: Option<f64>,
        reads: &mut usize,
        scratch: &mut Scratch,
    ) -> Option<usize> {
        for index in from..self.walked.len() {
            let entry = &mut self.walked[index];
            if entry.parent.is_some() {
                continue;
            }
            if *reads == 0 {
                return Some(index);
            }
            *reads -= 1;
            let stat = scratch.read_process(entry.pid, "stat", 1024).ok().and_then(Stat::parse);
            let Some(stat) = stat else { continue };
            entry.parent = Some(stat.parent);
            // Run by hand it has the name of its file, which begins so.
            entry.is_probe = stat.name.starts_with(PROBE_NAME.to_bytes());
            let started = stat.start_ticks as f64 / TICKS_PER_SECOND;
            let is_old = uptime_seconds.is_some_and(|uptime| uptime - started >= SETTLED_SECONDS);
            entry.is_settled = is_old && stat.name != RECEIVER;
        }
        None
    }
}

fn find(entries: &[Entry], pid: u32) -> Option<&Entry> {
    entries.binary_search_by_key(&pid, |entry| entry.pid).ok().map(|place| &entries[place])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    /// After every process of this host has started.
    const LATER: Option<f64> = Some(1e12);

    fn whole(walk: &mut Walk, uptime_seconds: Option<f64>) {
        let mut scratch = Scratch::default();
        let ended = (0..100_000).any(|_| walk.step(uptime_seconds, &mut 500, &mut scratch));
        assert!(ended, "the walk does not end");
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let mut walk = Walk::default();
        whole(&mut walk, LATER);
        let own = std::process::id();
        assert!(find(walk.entries(), own).is_some_and(|entry| entry.parent.is_some() && entry.is_settled));
        while !walk.list() {}
        walk.forget_lost_parents();
        assert!(find(&walk.walked, own).is_some_and(|entry| entry.parent.is_some()), "it would be read again");
    }

    #[test]
    fn a_walk_that_was_cut_short_begins_anew_and_counts_nothing() {
        let mut walk = Walk::default();
        let unknown = Entry { pid: 0, parent: None, inode: 0, is_probe: false, is_settled: false };
        walk.walked = vec![unknown; MAX_WALKED];
        while !walk.list() {}
        walk.unread = Some(walk.walked.len());
        whole(&mut walk, LATER);
        assert_eq!(walk.probes(), None);
        whole(&mut walk, LATER);
        assert!(find(walk.entries(), 1).is_some(), "from the first process on");
        assert!(walk.probes().is_some());
    }

    #[test]
    fn a_shell_that_becomes_a_probe_is_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("gpufleet-probe");
        std::os::unix::fs::symlink("/bin/cat", &program).expect("links");
        let script = r#"read _; exec "$0""#;
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&program).arg0("sh").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let pid = child.id();
        let is_probe = |walk: &Walk| find(walk.entries(), pid).expect("is there").is_probe;
        let mut walk = Walk::default();
        // However old it is.
        for uptime in [Some(0.0), LATER] {
            whole(&mut walk, uptime);
            assert!(!is_probe(&walk));
        }
        let mut input = child.stdin.take().expect("is piped");
        std::io::Write::write_all(&mut input, b"\nx").expect("writes");
        // What the new program says, it says as itself.
        std::io::Read::read_exact(child.stdout.as_mut().expect("is piped"), &mut [0]).expect("answers");
        whole(&mut walk, LATER);
        assert!(is_probe(&walk) && walk.probes().is_some_and(|probes| probes >= 1));
        drop(input);
        child.wait().expect("ends");
    }
}
