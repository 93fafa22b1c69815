//! Incremental scan of /proc: the parent of each process, and the number of probes.
//!
//! Each sample lists a part of /proc and reads `stat` of the processes that are new there. An entry with the same inode
//! number as in the previous scan is the same process and is not read again: its parent changes only when that parent
//! ends, and its name is final once the process is old enough, unless it is still the shell to which a probe is sent.
//!
//! A server runs thousands of processes and starts a few every ten seconds. The kernel assigns pids in ascending order,
//! so most scans list only the pids assigned since the previous scan and assume that all other processes are still
//! alive. Once a minute a scan lists all of them.

use super::files::{FileReader, PROBE_NAME, Stat, TICKS_PER_SECOND};
use super::host::{Forks, SampleContext};
use super::reruns::Reruns;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use std::mem::MaybeUninit;

/// Space for about 500 directory entries, the number that one sample lists.
const SLICE_BYTES: usize = 16 * 1024;
/// Buffer size if only new pids are listed, so that the kernel returns few entries beyond them.
const PIECE_BYTES: usize = 2 * 1024;
/// Maximum number of processes in a scan; beyond it the scan ends early.
const MAX_SCANNED: usize = 1 << 16;
/// A younger process may be a login shell that still replaces itself with another program.
const FINAL_NAME_SECONDS: f64 = 60.0;
/// The shell that receives a probe over a possibly slow line and then becomes it.
const BOOTSTRAP_SHELL: &[u8] = b"sh";
/// Period of scans that list all processes.
const FULL_SCAN_SECONDS: f64 = 59.0;
/// After more new processes and threads than this, pids may have wrapped around: `pid_max` is at least 32,768.
const MAX_NEW_PIDS: u64 = 4096;
/// A pid may be assigned before its process appears in /proc, so each scan starts this far below the last pid.
const PID_MARGIN: u32 = 16;

/// The scan in progress and the result of the previous one.
#[derive(Debug)]
pub(super) struct ProcScan {
    directory: Option<OwnedFd>,
    /// Sorted by pid: the result of the previous scan, or of this one once its listing is complete.
    known: Vec<Entry>,
    /// Sorted by pid, as the kernel lists them: the entries listed so far.
    listed: Vec<Entry>,
    /// The step in progress; `None` between scans.
    step: Option<Step>,
    /// Fork counters at the start of the last scan.
    forks: Option<Forks>,
    /// Time of the last scan that listed all processes.
    full_scan_at: f64,
    /// The last listing did not reach its end.
    is_truncated: bool,
    /// Number of probes in the last complete scan.
    probes: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Lists /proc to replace the known entries from index `from` up to pid `last`; `offset` is the next directory
    /// position.
    Listing { from: usize, last: u32, offset: u64 },
    /// Reads `stat` of unknown entries from this index on.
    Reading(usize),
}

/// A process in /proc.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) pid: u32,
    /// Parent pid; 0 for process 1, for kernel threads, and for the entry process of a container. `None` until it is
    /// read.
    pub(super) parent: Option<u32>,
    inode: u64,
    /// Position in the directory, for `lseek`.
    offset: u64,
    is_probe: bool,
    /// The process was old enough when it was read that it will not become another program.
    has_final_name: bool,
}

impl Entry {
    fn unknown(pid: u32, inode: u64, offset: u64) -> Self {
        Self { pid, parent: None, inode, offset, is_probe: false, has_final_name: false }
    }

    /// Returns the entry for the next scan. Probes are always read again, since their number is reported.
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
    /// Continues the scan and reads at most `reads` files. Returns whether the scan is complete; the next call starts a
    /// new one.
    pub(super) fn step(
        &mut self,
        context: SampleContext,
        reruns: &mut Reruns,
        reads: &mut usize,
        reader: &mut FileReader,
    ) -> bool {
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
                    let next = self.read(from, context.uptime_seconds, reruns, reads, reader);
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

    /// Returns the processes of the last scan, sorted by pid. Some may have ended since the last scan of all processes.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.known
    }

    /// The parent of a process; `None` if the last scan did not find the process.
    pub(super) fn parent(&self, pid: u32) -> Option<u32> {
        find(&self.known, pid)?.parent
    }

    /// Forgets the parent of this process, because it has changed.
    pub(super) fn forget_parent(&mut self, pid: u32) {
        if let Ok(index) = self.known.binary_search_by_key(&pid, |entry| entry.pid) {
            self.known[index].parent = None;
        }
    }

    /// Returns the number of probes that the last scan found; `None` if it did not complete.
    pub(super) fn probes(&self) -> Option<u32> {
        self.probes
    }

    /// Decides which part of /proc is listed.
    fn begin(&mut self, context: SampleContext) -> Step {
        let before = std::mem::replace(&mut self.forks, context.forks);
        let is_full_scan_due = self.is_truncated || context.now - self.full_scan_at >= FULL_SCAN_SECONDS;
        let new =
            before.zip(context.forks).filter(|_| !is_full_scan_due).and_then(|(before, now)| new_pids(before, now));
        let from = new.and_then(|(first, last)| {
            // Starts at the entry before the new pids: the position of a later one may lie behind a new pid.
            let from = self.known.partition_point(|known| known.pid < first).checked_sub(1)?;
            Some((from, last))
        });
        let Some((from, last)) = from else {
            self.full_scan_at = context.now;
            return Step::Listing { from: 0, last: u32::MAX, offset: 0 };
        };
        Step::Listing { from, last, offset: self.known[from].offset }
    }

    /// Lists the next part of /proc, up to pid `last`. Returns the position to continue at, or `None` at the end.
    fn list(&mut self, last: u32, mut offset: u64) -> Option<u64> {
        self.is_truncated = true;
        let directory = self.directory.as_ref()?;
        // Without `lseek` the directory is not read again.
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

    /// Replaces the known entries in this range by the listed ones. Processes whose parent has ended or is another
    /// process now have a new parent.
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

    /// Reads `stat` of unknown entries. Returns the index to continue at, or `None` at the end.
    fn read(
        &mut self,
        from: usize,
        uptime_seconds: Option<f64>,
        reruns: &mut Reruns,
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
            // A probe started by hand has the name of its file, which has the same prefix.
            entry.is_probe = stat.name.starts_with(PROBE_NAME.to_bytes());
            let started = stat.start_ticks as f64 / TICKS_PER_SECOND;
            let is_old = uptime_seconds.is_some_and(|uptime| uptime - started >= FINAL_NAME_SECONDS);
            entry.has_final_name = is_old && stat.name != BOOTSTRAP_SHELL;
            reruns.consider(entry.pid, &stat);
        }
        None
    }
}

/// Returns the first and last pid that may have been assigned in between; `None` if it may be any pid.
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

    /// A time since boot at which every process is old.
    const LATER: Option<f64> = Some(1e12);

    /// A context without fork counters.
    fn context(now: f64, uptime_seconds: Option<f64>) -> SampleContext {
        SampleContext { now, uptime_seconds, ..SampleContext::default() }
    }

    /// A context with the current fork counters.
    fn current_context(now: f64) -> SampleContext {
        let mut host = HostSampler::new();
        host.sample(&mut FileReader::default(), now, false);
        assert!(host.forks().is_some());
        SampleContext { forks: host.forks(), ..context(now, LATER) }
    }

    fn run_scan(scan: &mut ProcScan, context: SampleContext) {
        let mut reader = FileReader::default();
        let ended = (0..100_000).any(|_| scan.step(context, &mut Reruns::default(), &mut 500, &mut reader));
        assert!(ended, "the scan does not end");
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
        assert!(find(&scan.known, own).is_some_and(|entry| entry.parent.is_some()), "would be read again");
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
        assert!(find(scan.entries(), 1).is_some(), "the scan starts over");
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
        // A partial scan does not notice an ended process; a full one does.
        let ended = Entry::unknown(u32::MAX - 1, 0, 0);
        scan.known.push(Entry { parent: Some(1), has_final_name: true, ..ended });
        let mut new = sleeper();
        let context = current_context(110.0);
        let wraps = context.forks.zip(scan.forks).is_some_and(|(now, before)| new_pids(before, now).is_none());
        run_scan(&mut scan, context);
        let own = Some(Some(std::process::id()));
        assert_eq!((parent(&scan, &old), parent(&scan, &new)), (own, own));
        assert_eq!(find(scan.entries(), ended.pid).is_some(), !wraps, "other processes count as alive");
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
        let directory = tempfile::tempdir().expect("directory");
        let program = directory.path().join("gpufleet-probe");
        std::os::unix::fs::symlink("/bin/cat", &program).expect("links");
        let script = r#"read _; exec "$0""#;
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&program).arg0("sh").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let pid = child.id();
        let is_probe = |scan: &ProcScan| find(scan.entries(), pid).expect("is listed").is_probe;
        let mut scan = ProcScan::default();
        // This holds at any age of the process.
        for uptime in [Some(0.0), LATER] {
            full_scan(&mut scan, uptime);
            assert!(!is_probe(&scan));
        }
        let mut input = child.stdin.take().expect("is piped");
        std::io::Write::write_all(&mut input, b"\nx").expect("writes");
        // Output proves that the new program runs.
        std::io::Read::read_exact(child.stdout.as_mut().expect("is piped"), &mut [0]).expect("answers");
        full_scan(&mut scan, LATER);
        assert!(is_probe(&scan) && scan.probes().is_some_and(|probes| probes >= 1));
        // A partial scan also notices that a probe has ended.
        run_scan(&mut scan, current_context(1.0));
        assert!(is_probe(&scan));
        drop(input);
        child.wait().expect("ends");
        run_scan(&mut scan, current_context(2.0));
        assert!(find(scan.entries(), pid).is_none_or(|entry| !entry.is_probe));
    }
}
