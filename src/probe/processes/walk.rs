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

use super::list::Moment;
use crate::probe::procfs::{Forks, PROBE_NAME, Scratch, Stat, TICKS_PER_SECOND};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use std::mem::MaybeUninit;

/// Room for about 500 entries of /proc, which is what one sample lists.
const SLICE_BYTES: usize = 16 * 1024;
/// Where only new ones are wanted, the kernel is to list few beyond them.
const PIECE_BYTES: usize = 2 * 1024;
/// The most processes that are walked; beyond it the walk ends early.
const MAX_WALKED: usize = 1 << 16;
/// A younger process may still be a login shell that becomes the one below.
const SETTLED_SECONDS: f64 = 60.0;
/// What receives a probe and then becomes it, for as long as a slow line takes.
const RECEIVER: &[u8] = b"sh";
/// From a walk that lists all processes to the next.
const WHOLE_SECONDS: f64 = 59.0;
/// After so many processes and threads have started, pids may have been given all around: there are 32,768 at least.
const MAX_STARTED: u64 = 4096;
/// A pid may have been given and its process not have been there yet, when the walk before came by.
const MARGIN: u32 = 16;

/// A walk, and what came of the last one.
#[derive(Debug)]
pub(super) struct Walk {
    folder: Option<OwnedFd>,
    /// Sorted by pid: what the last walk found, and once this one has listed what it lists, what it found.
    known: Vec<Entry>,
    /// Sorted by pid, since the kernel lists them so: what is listed now.
    listed: Vec<Entry>,
    /// What goes on now, if a walk does.
    step: Option<Step>,
    /// What had been started when the last walk began.
    forks: Option<Forks>,
    /// When all processes were last listed.
    whole_at: f64,
    /// The last listing did not come to its end.
    is_cut: bool,
    /// What the last walk counted.
    probes: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The folder is listed to replace what is known from this entry up to this pid; what comes next is at this place.
    Listing { from: usize, last: u32, place: u64 },
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
    place: u64,
    is_probe: bool,
    /// It was read when it would not become another program any more.
    is_settled: bool,
}

impl Entry {
    fn unknown(pid: u32, inode: u64, place: u64) -> Self {
        Self { pid, parent: None, inode, place, is_probe: false, is_settled: false }
    }

    /// What the next walk believes of it without reading it: of a probe nothing, since their number is told.
    fn carried(self) -> Self {
        if self.is_settled && !self.is_probe { self } else { Self::unknown(self.pid, self.inode, self.place) }
    }
}

impl Default for Walk {
    fn default() -> Self {
        let folder = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        Self {
            folder,
            known: Vec::new(),
            listed: Vec::new(),
            step: None,
            forks: None,
            whole_at: f64::NEG_INFINITY,
            is_cut: false,
            probes: None,
        }
    }
}

impl Walk {
    /// Goes on with the walk, with so many files to read at most; whether it is at its end. The next call begins anew.
    pub(super) fn step(&mut self, moment: Moment, reads: &mut usize, scratch: &mut Scratch) -> bool {
        loop {
            match self.step {
                None => self.step = Some(self.begin(moment)),
                Some(Step::Listing { from, last, place }) => {
                    if let Some(place) = self.list(last, place) {
                        self.step = Some(Step::Listing { from, last, place });
                        return false;
                    }
                    self.take_in(from, last);
                    self.step = Some(Step::Reading(0));
                }
                Some(Step::Reading(from)) => {
                    let next = self.read(from, moment.uptime_seconds, reads, scratch);
                    self.step = next.map(Step::Reading);
                    if next.is_none() {
                        let probes = self.known.iter().filter(|entry| entry.is_probe).count() as u32;
                        self.probes = (!self.is_cut && !self.known.is_empty()).then_some(probes);
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
    pub(super) fn forget(&mut self, pid: u32) {
        if let Ok(place) = self.known.binary_search_by_key(&pid, |entry| entry.pid) {
            self.known[place].parent = None;
        }
    }

    /// How many probes the last walk found among the processes that this host shows; `None` where it did not come to its
    /// end.
    pub(super) fn probes(&self) -> Option<u32> {
        self.probes
    }

    /// Decides what is listed.
    fn begin(&mut self, moment: Moment) -> Step {
        let before = std::mem::replace(&mut self.forks, moment.forks);
        let is_whole_due = self.is_cut || moment.now - self.whole_at >= WHOLE_SECONDS;
        let new = before.zip(moment.forks).filter(|_| !is_whole_due).and_then(|(before, now)| new_pids(before, now));
        let from = new.and_then(|(first, last)| {
            // The last one before them: the places behind its own may be beyond a new one.
            let from = self.known.partition_point(|known| known.pid < first).checked_sub(1)?;
            Some((from, last))
        });
        let Some((from, last)) = from else {
            self.whole_at = moment.now;
            return Step::Listing { from: 0, last: u32::MAX, place: 0 };
        };
        Step::Listing { from, last, place: self.known[from].place }
    }

    /// Lists the next piece of /proc, up to this pid; where to go on, unless that was all.
    fn list(&mut self, last: u32, mut place: u64) -> Option<u64> {
        self.is_cut = true;
        let folder = self.folder.as_ref()?;
        // A folder in which no place can be found is read no more.
        if seek(folder, SeekFrom::Start(place)).is_err() {
            self.folder = None;
            return None;
        }
        let bytes = if last == u32::MAX { SLICE_BYTES } else { PIECE_BYTES };
        let mut buffer = vec![MaybeUninit::uninit(); bytes];
        let mut entries = RawDir::new(folder, &mut buffer);
        let mut left = SLICE_BYTES;
        loop {
            match entries.next() {
                Some(Ok(entry)) => {
                    let here = std::mem::replace(&mut place, entry.next_entry_cookie());
                    let Some(pid) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) else {
                        continue;
                    };
                    if pid > last {
                        break;
                    }
                    if self.listed.last().is_none_or(|entry| entry.pid < pid) {
                        let new = Entry::unknown(pid, entry.ino(), here);
                        let known = find(&self.known, pid).filter(|known| known.inode == new.inode);
                        self.listed.push(known.map_or(new, |known| Entry { place: here, ..*known }));
                    }
                }
                Some(Err(_)) => return None,
                None => break,
            }
            if entries.is_buffer_empty() {
                left -= bytes;
                if self.listed.len() >= MAX_WALKED {
                    return None;
                }
                if left == 0 {
                    return Some(place);
                }
            }
        }
        self.is_cut = false;
        None
    }

    /// Puts what was listed in the place of what was known there. Whose parent was there and is not any more, or is
    /// another process now, has a new parent.
    fn take_in(&mut self, from: usize, last: u32) {
        let to = self.known.partition_point(|known| known.pid <= last);
        let listed = std::mem::take(&mut self.listed);
        let is_lost = |known: &&Entry| find(&listed, known.pid).is_none_or(|entry| entry.inode != known.inode);
        let lost: Vec<u32> = self.known[from..to].iter().filter(is_lost).map(|known| known.pid).collect();
        let beyond = self.known.split_off(to);
        self.known.truncate(from);
        self.known.extend_from_slice(&listed);
        self.known.extend_from_slice(&beyond);
        for entry in &mut self.known {
            *entry = entry.carried();
            if entry.parent.is_some_and(|parent| lost.binary_search(&parent).is_ok()) {
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
        scratch: &mut Scratch,
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

/// The first and the last pid that may have been given in between; `None` where that may be any.
fn new_pids(before: Forks, now: Forks) -> Option<(u32, u32)> {
    let started = now.count.checked_sub(before.count)?;
    (started <= MAX_STARTED && before.last_pid <= now.last_pid)
        .then_some((before.last_pid.saturating_sub(MARGIN), now.last_pid))
}

fn find(entries: &[Entry], pid: u32) -> Option<&Entry> {
    entries.binary_search_by_key(&pid, |entry| entry.pid).ok().map(|place| &entries[place])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::procfs::HostSampler;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    /// After every process of this host has started.
    const LATER: Option<f64> = Some(1e12);

    /// A moment at which nothing is known of what was started.
    fn moment(now: f64, uptime_seconds: Option<f64>) -> Moment {
        Moment { now, uptime_seconds, boot_unix_seconds: None, unix_seconds: 0, forks: None }
    }

    /// Now as the kernel tells it, with the old age of every process.
    fn this_moment(now: f64) -> Moment {
        let mut host = HostSampler::new();
        host.sample(&mut Scratch::default(), now, false);
        assert!(host.forks().is_some());
        Moment { forks: host.forks(), ..moment(now, LATER) }
    }

    fn go(walk: &mut Walk, moment: Moment) {
        let mut scratch = Scratch::default();
        let ended = (0..100_000).any(|_| walk.step(moment, &mut 500, &mut scratch));
        assert!(ended, "the walk does not end");
    }

    fn whole(walk: &mut Walk, uptime_seconds: Option<f64>) {
        go(walk, moment(0.0, uptime_seconds));
    }

    fn list_all(walk: &mut Walk) {
        let mut place = Some(0);
        while let Some(next) = place {
            place = walk.list(u32::MAX, next);
        }
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let mut walk = Walk::default();
        whole(&mut walk, LATER);
        let own = std::process::id();
        assert!(find(walk.entries(), own).is_some_and(|entry| entry.parent.is_some() && entry.is_settled));
        list_all(&mut walk);
        walk.take_in(0, u32::MAX);
        assert!(find(&walk.known, own).is_some_and(|entry| entry.parent.is_some()), "it would be read again");
    }

    #[test]
    fn a_walk_that_was_cut_short_begins_anew_and_counts_nothing() {
        let mut walk = Walk::default();
        let unknown = Entry::unknown(0, 0, 0);
        walk.listed = vec![unknown; MAX_WALKED];
        list_all(&mut walk);
        walk.take_in(0, u32::MAX);
        walk.step = Some(Step::Reading(MAX_WALKED));
        whole(&mut walk, LATER);
        assert_eq!(walk.probes(), None);
        go(&mut walk, this_moment(1.0));
        assert!(find(walk.entries(), 1).is_some(), "from the first process on");
        assert!(walk.probes().is_some());
    }

    #[test]
    fn pids_are_given_in_their_order_until_they_are_given_all_around() {
        let forks = |count, last_pid| Forks { count, last_pid };
        let before = forks(9000, 20_000);
        assert_eq!(new_pids(before, forks(9000, 20_000)), Some((19_984, 20_000)));
        assert_eq!(new_pids(before, forks(9050, 20_040)), Some((19_984, 20_040)));
        assert_eq!(new_pids(forks(5, 5), forks(9, 9)), Some((0, 9)));
        for now in [forks(9050, 400), forks(9000 + MAX_STARTED + 1, 24_200), forks(8999, 20_001)] {
            assert_eq!(new_pids(before, now), None, "{now:?}");
        }
    }

    #[test]
    fn between_whole_walks_only_what_is_new_is_listed() {
        let sleeper = || Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().expect("starts");
        let parent = |walk: &Walk, child: &Child| find(walk.entries(), child.id()).map(|entry| entry.parent);
        let mut walk = Walk::default();
        let mut old = sleeper();
        go(&mut walk, this_moment(100.0));
        // What ends is noticed where it matters to whoever reads it; a whole walk notices all of it.
        let ended = Entry::unknown(u32::MAX - 1, 0, 0);
        walk.known.push(Entry { parent: Some(1), is_settled: true, ..ended });
        let mut new = sleeper();
        let moment = this_moment(110.0);
        let wraps = moment.forks.zip(walk.forks).is_some_and(|(now, before)| new_pids(before, now).is_none());
        go(&mut walk, moment);
        let own = Some(Some(std::process::id()));
        assert_eq!((parent(&walk, &old), parent(&walk, &new)), (own, own));
        assert_eq!(find(walk.entries(), ended.pid).is_some(), !wraps, "the others are taken for living");
        let pids: Vec<_> = walk.entries().iter().map(|entry| entry.pid).collect();
        assert!(pids.is_sorted_by(|a, b| a < b), "{pids:?}");
        walk.forget(old.id());
        assert_eq!(parent(&walk, &old), Some(None));
        go(&mut walk, this_moment(120.0));
        assert_eq!(parent(&walk, &old), own, "it was read again");
        for child in [&mut old, &mut new] {
            child.kill().expect("ends");
            child.wait().expect("ends");
        }
        go(&mut walk, this_moment(159.5));
        assert!(find(walk.entries(), ended.pid).is_none());
        assert_eq!((parent(&walk, &old), parent(&walk, &new)), (None, None));
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
        // That it ended is known after the next walk, though that does not list all processes.
        go(&mut walk, this_moment(1.0));
        assert!(is_probe(&walk));
        drop(input);
        child.wait().expect("ends");
        go(&mut walk, this_moment(2.0));
        assert!(find(walk.entries(), pid).is_none_or(|entry| !entry.is_probe));
    }
}
