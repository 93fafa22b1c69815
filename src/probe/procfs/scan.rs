//! Walks through /proc: who is whose child, and which processes are probes.
//!
//! /proc is listed, a piece in each sample, and `stat` of each process that is new there is read. What the last walk
//! knew is not read again: an entry that has kept its inode number is the same process. Its parent is the same unless
//! that one is gone, and its name is taken for good once it is old enough to have become what it was started for, unless
//! it still is the shell that a probe is sent to.
//!
//! A server has thousands of processes and starts a few in ten seconds. The kernel gives pids in their order, so that
//! most walks list only those that were given since the walk before, and take all others for living; now and then all
//! are listed.

use super::files::{FileReader, PROBE_NAME, Stat, TICKS_PER_SECOND};
use super::host::{Forks, SampleContext};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use std::mem::MaybeUninit;

/// Room for about 500 entries of /proc, which is what one sample lists.
const SLICE_BYTES: usize = 16 * 1024;
/// Where only new ones are wanted, the kernel is to list few beyond them.
const PIECE_BYTES: usize = 2 * 1024;
/// The most processes that are walked; beyond it the walk ends early.
const MAX_SCANNED: usize = 1 << 16;
/// A younger process may still be a login shell that becomes the one below.
const FINAL_NAME_SECONDS: f64 = 60.0;
/// What receives a probe and then becomes it, for as long as a slow line takes.
const BOOTSTRAP_SHELL: &[u8] = b"sh";
/// From a walk that lists all processes to the next.
const FULL_SCAN_SECONDS: f64 = 59.0;
/// After so many processes and threads have started, pids may have been given all around: there are 32,768 at least.
const MAX_NEW_PIDS: u64 = 4096;
/// A pid may have been given and its process not have been there yet, when the walk before came by.
const PID_MARGIN: u32 = 16;

/// A walk, and what came of the last one.
#[derive(Debug)]
pub(super) struct ProcScan {
    directory: Option<OwnedFd>,
    /// Sorted by pid: what the last walk found, and once this one has listed what it lists, what it found.
    known: Vec<Entry>,
    /// Sorted by pid, since the kernel lists them so: what is listed now.
    listed: Vec<Entry>,
    /// What goes on now, if a walk does.
    step: Option<Step>,
    /// What had been started when the last walk began.
    forks: Option<Forks>,
    /// When all processes were last listed.
    full_scan_at: f64,
    /// The last listing did not come to its end.
    is_truncated: bool,
    /// What the last walk counted.
    probes: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The folder is listed to replace what is known from this entry up to this pid; what comes next is at this place.
    Listing { from: usize, last: u32, offset: u64 },
    /// From this entry on `stat` is still to be read.
    Reading(usize),
}

/// An entry of /proc.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) pid: u32,
    /// 0 above process 1 and the kernel's own, and above what a container was entered with; `None` while it is unknown.
    pub(super) parent: Option<u32>,
    inode: u64,
    /// Where in the folder it is listed, for `lseek`.
    offset: u64,
    is_probe: bool,
    /// It was read when it would not become another program any more.
    has_final_name: bool,
}

impl Entry {
    fn unknown(pid: u32, inode: u64, offset: u64) -> Self {
        Self { pid, parent: None, inode, offset, is_probe: false, has_final_name: false }
    }

    /// What the next walk believes of it without reading it: of a probe nothing, since their number is told.
    fn for_next_scan(self) -> Self {
        if self.has_final_name && !self.is_probe { self } else { Self::unknown(self.pid, self.inode, self.offset) }
    }
}

impl Default for ProcScan {
    fn default() -> Self {
        let directory = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        Self {
            directory,
            known: Vec::new(),
            listed: Vec::new(),
            step: None,
            forks: None,
            full_scan_at: f64::NEG_INFINITY,
            is_truncated: false,
            probes: None,
        }
    }
}

impl ProcScan {
    /// Goes on with the walk, with so many files to read at most; whether it is at its end. The next call begins anew.
    pub(super) fn step(&mut self, context: SampleContext, reads: &mut usize, reader: &mut FileReader) -> bool {
        loop {
            match self.step {
                None => self.step = Some(self.begin(context)),
                Some(Step::Listing { from, last, offset }) => {
                    if let Some(offset) = self.list(last, offset) {
                        self.step = Some(Step::Listing { from, last, offset });
                        return false;
                    }
                    self.merge_listed(from, last);
                    self.step = Some(Step::Reading(0));
                }
                Some(Step::Reading(from)) => {
                    let next = self.read(from, context.uptime_seconds, reads, reader);
                    self.step = next.map(Step::Reading);
                    if next.is_none() {
                        let probes = self.known.iter().filter(|entry| entry.is_probe).count() as u32;
                        self.probes = (!self.is_truncated && !self.known.is_empty()).then_some(probes);
                    }
                    return next.is_none();
                }
            }
        }
    }

    /// After a walk: what it found, sorted by pid. Some may have ended since the last one that listed all.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.known
    }

    /// The parent of this one is another now.
    pub(super) fn forget_parent(&mut self, pid: u32) {
        if let Ok(index) = self.known.binary_search_by_key(&pid, |entry| entry.pid) {
            self.known[index].parent = None;
        }
    }

    /// How many probes the last walk found among the processes that this host shows; `None` where it did not come to its
    /// end.
    pub(super) fn probes(&self) -> Option<u32> {
        self.probes
    }

    /// Decides what is listed.
    fn begin(&mut self, context: SampleContext) -> Step {
        let before = std::mem::replace(&mut self.forks, context.forks);
        let is_full_scan_due = self.is_truncated || context.now - self.full_scan_at >= FULL_SCAN_SECONDS;
        let new =
            before.zip(context.forks).filter(|_| !is_full_scan_due).and_then(|(before, now)| new_pids(before, now));
        let from = new.and_then(|(first, last)| {
            // The last one before them: the places behind its own may be beyond a new one.
            let from = self.known.partition_point(|known| known.pid < first).checked_sub(1)?;
            Some((from, last))
        });
        let Some((from, last)) = from else {
            self.full_scan_at = context.now;
            return Step::Listing { from: 0, last: u32::MAX, offset: 0 };
        };
        Step::Listing { from, last, offset: self.known[from].offset }
    }

    /// Lists the next piece of /proc, up to this pid; where to go on, unless that was all.
    fn list(&mut self, last: u32, mut offset: u64) -> Option<u64> {
        self.is_truncated = true;
        let directory = self.directory.as_ref()?;
        // A folder in which no place can be found is read no more.
        if seek(directory, SeekFrom::Start(offset)).is_err() {
            self.directory = None;
            return None;
        }
        let bytes = if last == u32::MAX { SLICE_BYTES } else { PIECE_BYTES };
        let mut buffer = vec![MaybeUninit::uninit(); bytes];
        let mut entries = RawDir::new(directory, &mut buffer);
        let mut left = SLICE_BYTES;
        loop {
            match entries.next() {
                Some(Ok(entry)) => {
                    let here = std::mem::replace(&mut offset, entry.next_entry_cookie());
                    let Some(pid) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) else {
                        continue;
                    };
                    if pid > last {
                        break;
                    }
                    if self.listed.last().is_none_or(|entry| entry.pid < pid) {
                        let new = Entry::unknown(pid, entry.ino(), here);
                        let known = find(&self.known, pid).filter(|known| known.inode == new.inode);
                        self.listed.push(known.map_or(new, |known| Entry { offset: here, ..*known }));
                    }
                }
                Some(Err(_)) => return None,
                None => break,
            }
            if entries.is_buffer_empty() {
                left -= bytes;
                if self.listed.len() >= MAX_SCANNED {
                    return None;
                }
                if left == 0 {
                    return Some(offset);
                }
            }
        }
        self.is_truncated = false;
        None
    }

    /// Puts what was listed in the place of what was known there. Whose parent was there and is not any more, or is
    /// another process now, has a new parent.
    fn merge_listed(&mut self, from: usize, last: u32) {
        let to = self.known.partition_point(|known| known.pid <= last);
        let listed = std::mem::take(&mut self.listed);
        let has_ended = |known: &&Entry| find(&listed, known.pid).is_none_or(|entry| entry.inode != known.inode);
        let ended_pids: Vec<u32> = self.known[from..to].iter().filter(has_ended).map(|known| known.pid).collect();
        let beyond = self.known.split_off(to);
        self.known.truncate(from);
        self.known.extend_from_slice(&listed);
        self.known.extend_from_slice(&beyond);
        for entry in &mut self.known {
            *entry = entry.for_next_scan();
            if entry.parent.is_some_and(|parent| ended_pids.binary_search(&parent).is_ok()) {
                entry.parent = None;
            }
        }
    }

    /// Reads what is unknown; where to go on, unless that was all.
    fn read(
        &mut self,
        from: usize,
        uptime_seconds: Option<f64>,
        reads: &mut usize,
        reader: &mut FileReader,
    ) -> Option<usize> {
        for index in from..self.known.len() {
            let entry = &mut self.known[index];
            if entry.parent.is_some() {
                continue;
            }
            if *reads == 0 {
                return Some(index);
            }
            *reads -= 1;
            let stat = reader.read_process(entry.pid, "stat", 1024).ok().and_then(Stat::parse);
            let Some(stat) = stat else { continue };
            entry.parent = Some(stat.parent);
            // Run by hand it has the name of its file, which begins so.
            entry.is_probe = stat.name.starts_with(PROBE_NAME.to_bytes());
            let started = stat.start_ticks as f64 / TICKS_PER_SECOND;
            let is_old = uptime_seconds.is_some_and(|uptime| uptime - started >= FINAL_NAME_SECONDS);
            entry.has_final_name = is_old && stat.name != BOOTSTRAP_SHELL;
        }
        None
    }
}

/// The first and the last pid that may have been given in between; `None` where that may be any.
fn new_pids(before: Forks, now: Forks) -> Option<(u32, u32)> {
    let started = now.count.checked_sub(before.count)?;
    (started <= MAX_NEW_PIDS && before.last_pid <= now.last_pid)
        .then_some((before.last_pid.saturating_sub(PID_MARGIN), now.last_pid))
}

fn find(entries: &[Entry], pid: u32) -> Option<&Entry> {
    entries.binary_search_by_key(&pid, |entry| entry.pid).ok().map(|index| &entries[index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::procfs::host::HostSampler;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    /// After every process of this host has started.
    const LATER: Option<f64> = Some(1e12);

    /// A moment at which nothing is known of what was started.
    fn context(now: f64, uptime_seconds: Option<f64>) -> SampleContext {
        SampleContext { now, uptime_seconds, boot_unix_seconds: None, unix_seconds: 0, forks: None }
    }

    /// Now as the kernel tells it, with the old age of every process.
    fn current_context(now: f64) -> SampleContext {
        let mut host = HostSampler::new();
        host.sample(&mut FileReader::default(), now, false);
        assert!(host.forks().is_some());
        SampleContext { forks: host.forks(), ..context(now, LATER) }
    }

    fn run_scan(scan: &mut ProcScan, context: SampleContext) {
        let mut reader = FileReader::default();
        let ended = (0..100_000).any(|_| scan.step(context, &mut 500, &mut reader));
        assert!(ended, "the walk does not end");
    }

    fn full_scan(scan: &mut ProcScan, uptime_seconds: Option<f64>) {
        run_scan(scan, context(0.0, uptime_seconds));
    }

    fn list_all(scan: &mut ProcScan) {
        let mut offset = Some(0);
        while let Some(next) = offset {
            offset = scan.list(u32::MAX, next);
        }
    }

    #[test]
    fn known_entries_are_not_read_again() {
        let mut scan = ProcScan::default();
        full_scan(&mut scan, LATER);
        let own = std::process::id();
        assert!(find(scan.entries(), own).is_some_and(|entry| entry.parent.is_some() && entry.has_final_name));
        list_all(&mut scan);
        scan.merge_listed(0, u32::MAX);
        assert!(find(&scan.known, own).is_some_and(|entry| entry.parent.is_some()), "it would be read again");
    }

    #[test]
    fn a_truncated_scan_starts_over_and_counts_no_probes() {
        let mut scan = ProcScan::default();
        let unknown = Entry::unknown(0, 0, 0);
        scan.listed = vec![unknown; MAX_SCANNED];
        list_all(&mut scan);
        scan.merge_listed(0, u32::MAX);
        scan.step = Some(Step::Reading(MAX_SCANNED));
        full_scan(&mut scan, LATER);
        assert_eq!(scan.probes(), None);
        run_scan(&mut scan, current_context(1.0));
        assert!(find(scan.entries(), 1).is_some(), "from the first process on");
        assert!(scan.probes().is_some());
    }

    #[test]
    fn new_pids_are_known_until_they_wrap() {
        let forks = |count, last_pid| Forks { count, last_pid };
        let before = forks(9000, 20_000);
        assert_eq!(new_pids(before, forks(9000, 20_000)), Some((19_984, 20_000)));
        assert_eq!(new_pids(before, forks(9050, 20_040)), Some((19_984, 20_040)));
        assert_eq!(new_pids(forks(5, 5), forks(9, 9)), Some((0, 9)));
        for now in [forks(9050, 400), forks(9000 + MAX_NEW_PIDS + 1, 24_200), forks(8999, 20_001)] {
            assert_eq!(new_pids(before, now), None, "{now:?}");
        }
    }

    #[test]
    fn between_full_scans_only_new_pids_are_listed() {
        let sleeper = || Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().expect("starts");
        let parent = |scan: &ProcScan, child: &Child| find(scan.entries(), child.id()).map(|entry| entry.parent);
        let mut scan = ProcScan::default();
        let mut old = sleeper();
        run_scan(&mut scan, current_context(100.0));
        // What ends is noticed where it matters to whoever reads it; a whole walk notices all of it.
        let ended = Entry::unknown(u32::MAX - 1, 0, 0);
        scan.known.push(Entry { parent: Some(1), has_final_name: true, ..ended });
        let mut new = sleeper();
        let context = current_context(110.0);
        let wraps = context.forks.zip(scan.forks).is_some_and(|(now, before)| new_pids(before, now).is_none());
        run_scan(&mut scan, context);
        let own = Some(Some(std::process::id()));
        assert_eq!((parent(&scan, &old), parent(&scan, &new)), (own, own));
        assert_eq!(find(scan.entries(), ended.pid).is_some(), !wraps, "the others are taken for living");
        let pids: Vec<_> = scan.entries().iter().map(|entry| entry.pid).collect();
        assert!(pids.is_sorted_by(|a, b| a < b), "{pids:?}");
        scan.forget_parent(old.id());
        assert_eq!(parent(&scan, &old), Some(None));
        run_scan(&mut scan, current_context(120.0));
        assert_eq!(parent(&scan, &old), own, "it was read again");
        for child in [&mut old, &mut new] {
            child.kill().expect("ends");
            child.wait().expect("ends");
        }
        run_scan(&mut scan, current_context(159.5));
        assert!(find(scan.entries(), ended.pid).is_none());
        assert_eq!((parent(&scan, &old), parent(&scan, &new)), (None, None));
    }

    #[test]
    fn a_shell_that_becomes_a_probe_is_counted() {
        let directory = tempfile::tempdir().expect("a folder");
        let program = directory.path().join("gpufleet-probe");
        std::os::unix::fs::symlink("/bin/cat", &program).expect("links");
        let script = r#"read _; exec "$0""#;
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&program).arg0("sh").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let pid = child.id();
        let is_probe = |scan: &ProcScan| find(scan.entries(), pid).expect("is there").is_probe;
        let mut scan = ProcScan::default();
        // However old it is.
        for uptime in [Some(0.0), LATER] {
            full_scan(&mut scan, uptime);
            assert!(!is_probe(&scan));
        }
        let mut input = child.stdin.take().expect("is piped");
        std::io::Write::write_all(&mut input, b"\nx").expect("writes");
        // What the new program says, it says as itself.
        std::io::Read::read_exact(child.stdout.as_mut().expect("is piped"), &mut [0]).expect("answers");
        full_scan(&mut scan, LATER);
        assert!(is_probe(&scan) && scan.probes().is_some_and(|probes| probes >= 1));
        // That it ended is known after the next walk, though that does not list all processes.
        run_scan(&mut scan, current_context(1.0));
        assert!(is_probe(&scan));
        drop(input);
        child.wait().expect("ends");
        run_scan(&mut scan, current_context(2.0));
        assert!(find(scan.entries(), pid).is_none_or(|entry| !entry.is_probe));
    }
}
