//! What GPU processes have started and is not on a GPU itself: the workers that load their data.
//!
//! Every 10 seconds /proc is listed, a piece in each sample, and the parent of each process that is new there is read.
//! What the last listing knew is not read again: an entry that has kept its inode number is the same process, and its
//! parent is the same unless that one is gone.

use super::list::Moment;
use crate::probe::numbers::tenths_f32;
use crate::probe::procfs::{Scratch, Stat, TICKS_PER_SECOND};
use crate::wire::{ProcessReading, ProcessState};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};
use std::mem::MaybeUninit;

/// From the beginning of one walk to that of the next.
const WALK_SECONDS: f64 = 10.0;
/// Room for about 500 entries of /proc, which is what one sample lists.
const SLICE_BYTES: usize = 16 * 1024;
/// The most `stat` files that one sample reads here.
const READS: usize = 500;
/// The most descendants whose CPU time is followed.
const MAX_KEPT: usize = 256;
/// The most processes that are walked; beyond it the walk ends early.
const MAX_WALKED: usize = 1 << 16;
/// Generations below a GPU process.
const MAX_DEPTH: usize = 16;

/// The walk, and what came of the last one.
#[derive(Debug)]
pub(super) struct Descendants {
    folder: Option<OwnedFd>,
    step: Step,
    began: f64,
    /// Sorted by pid: what the last walk found.
    known: Vec<Entry>,
    /// Sorted by pid, since the kernel lists them so.
    walked: Vec<Entry>,
    kept: Vec<Kept>,
    /// Sorted by pid of the GPU process: this walk's, while they are added up.
    adding: Vec<(u32, Sum)>,
    /// The last walk's.
    sums: Vec<(u32, Sum)>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Until the next walk.
    Resting,
    /// The folder is being listed.
    Listing,
    /// The parents from this entry on are still to be read.
    Reading(usize),
    /// The descendants from this one on are still to be read.
    Measuring(usize),
}

/// An entry of /proc. The parent is 0 while it is unknown.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pid: u32,
    parent: u32,
    inode: u64,
}

/// A descendant.
#[derive(Debug, Clone, Copy)]
struct Kept {
    pid: u32,
    /// The GPU process above it, the nearest where there are several.
    gpu_process: u32,
    start_ticks: u64,
    cpu_ticks: u64,
    read_at: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    count: u32,
    cpu_percent: Option<f64>,
    blocked: u32,
}

impl Default for Descendants {
    fn default() -> Self {
        let folder = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        Self {
            folder,
            step: Step::Resting,
            began: f64::NEG_INFINITY,
            known: Vec::new(),
            walked: Vec::new(),
            kept: Vec::new(),
            adding: Vec::new(),
            sums: Vec::new(),
        }
    }
}

impl Descendants {
    /// Does this sample's piece of the walk. `gpu_processes` is sorted.
    pub(super) fn step(&mut self, gpu_processes: &[u32], moment: Moment, scratch: &mut Scratch) {
        let mut reads = READS;
        loop {
            match self.step {
                Step::Resting if gpu_processes.is_empty() || moment.now - self.began < WALK_SECONDS => return,
                Step::Resting => {
                    self.began = moment.now;
                    self.step = Step::Listing;
                }
                Step::Listing => {
                    if !self.list() {
                        return;
                    }
                    self.forget_lost_parents();
                    self.step = Step::Reading(0);
                }
                Step::Reading(from) => {
                    if let Some(next) = self.read_parents(from, &mut reads, scratch) {
                        self.step = Step::Reading(next);
                        return;
                    }
                    self.find(gpu_processes);
                    self.step = Step::Measuring(0);
                }
                Step::Measuring(from) => {
                    let next = self.measure(from, &mut reads, moment.now, scratch);
                    self.step = next.map_or(Step::Resting, Step::Measuring);
                    if next.is_none() {
                        self.known = std::mem::take(&mut self.walked);
                        self.sums = std::mem::take(&mut self.adding);
                    }
                    return;
                }
            }
        }
    }

    /// Writes what is known of its descendants into a reading.
    pub(super) fn tell(&self, pid: u32, reading: &mut ProcessReading) {
        let Ok(place) = self.sums.binary_search_by_key(&pid, |&(known, _)| known) else { return };
        let sum = self.sums[place].1;
        reading.descendants = Some(sum.count);
        reading.descendants_cpu_percent = sum.cpu_percent.map(tenths_f32);
        reading.descendants_blocked = Some(sum.blocked);
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
                        let known = self.known.binary_search_by_key(&pid, |known| known.pid);
                        let known = known.ok().map(|place| self.known[place]).filter(|known| known.inode == inode);
                        self.walked.push(Entry { pid, parent: known.map_or(0, |known| known.parent), inode });
                    }
                }
                Some(Err(_)) => return true,
                None => {
                    // A folder that cannot be read from its beginning again is read no more.
                    if seek(folder, SeekFrom::Start(0)).is_err() {
                        self.folder = None;
                    }
                    return true;
                }
            }
            if entries.is_buffer_empty() {
                return self.walked.len() >= MAX_WALKED;
            }
        }
    }

    /// An entry whose parent is not there any more, or is another process now, has a new parent.
    fn forget_lost_parents(&mut self) {
        for index in 0..self.walked.len() {
            let parent = self.walked[index].parent;
            if parent == 0 {
                continue;
            }
            let now =
                self.walked.binary_search_by_key(&parent, |entry| entry.pid).map(|place| self.walked[place].inode);
            let then = self.known.binary_search_by_key(&parent, |entry| entry.pid).map(|place| self.known[place].inode);
            if now.is_err() || now != then {
                self.walked[index].parent = 0;
            }
        }
    }

    /// Reads unknown parents; where to go on, unless that was all.
    fn read_parents(&mut self, from: usize, reads: &mut usize, scratch: &mut Scratch) -> Option<usize> {
        for index in from..self.walked.len() {
            if self.walked[index].parent != 0 {
                continue;
            }
            if *reads == 0 {
                return Some(index);
            }
            *reads -= 1;
            let pid = self.walked[index].pid;
            // Process 1 and the kernel's own have no parent; to look again each time costs little.
            let stat = scratch.read_process(pid, "stat", 1024).ok().and_then(Stat::parse);
            self.walked[index].parent = stat.map_or(0, |stat| stat.parent);
        }
        None
    }

    /// Finds the descendants among what was walked, generation by generation.
    fn find(&mut self, gpu_processes: &[u32]) {
        let before = std::mem::take(&mut self.kept);
        // Each generation is sorted by pid, as what was walked is.
        let mut parents: Vec<(u32, u32)> = gpu_processes.iter().map(|&pid| (pid, pid)).collect();
        for _ in 0..MAX_DEPTH {
            let mut children = Vec::new();
            for entry in &self.walked {
                let Ok(place) = parents.binary_search_by_key(&entry.parent, |&(pid, _)| pid) else { continue };
                let on_gpu = gpu_processes.binary_search(&entry.pid).is_ok();
                if !on_gpu && self.kept.len() + children.len() < MAX_KEPT {
                    children.push((entry.pid, parents[place].1));
                }
            }
            if children.is_empty() {
                break;
            }
            self.kept.extend(children.iter().map(|&(pid, gpu_process)| {
                let known = before.iter().find(|known| known.pid == pid).copied();
                let unread = Kept { pid, gpu_process, start_ticks: 0, cpu_ticks: 0, read_at: f64::NEG_INFINITY };
                Kept { gpu_process, ..known.unwrap_or(unread) }
            }));
            parents = children;
        }
        self.adding = gpu_processes.iter().map(|&pid| (pid, Sum::default())).collect();
    }

    /// Reads the descendants and adds them up; where to go on, unless that was all.
    fn measure(&mut self, from: usize, reads: &mut usize, now: f64, scratch: &mut Scratch) -> Option<usize> {
        for index in from..self.kept.len() {
            if *reads == 0 {
                return Some(index);
            }
            *reads -= 1;
            let kept = &mut self.kept[index];
            let Ok(place) = self.adding.binary_search_by_key(&kept.gpu_process, |&(pid, _)| pid) else { continue };
            let sum = &mut self.adding[place].1;
            let Some(stat) = scratch.read_process(kept.pid, "stat", 1024).ok().and_then(Stat::parse) else { continue };
            if matches!(stat.state, ProcessState::Zombie | ProcessState::Dead) {
                continue;
            }
            sum.count += 1;
            sum.blocked += u32::from(stat.state == ProcessState::DiskSleep);
            if kept.start_ticks == stat.start_ticks && now > kept.read_at {
                let seconds = stat.cpu_ticks.saturating_sub(kept.cpu_ticks) as f64 / TICKS_PER_SECOND;
                *sum.cpu_percent.get_or_insert(0.0) += 100.0 * seconds / (now - kept.read_at);
            }
            (kept.start_ticks, kept.cpu_ticks, kept.read_at) = (stat.start_ticks, stat.cpu_ticks, now);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    fn moment(now: f64) -> Moment {
        Moment { now, uptime_seconds: None, boot_unix_seconds: None, unix_seconds: 0 }
    }

    /// Walks to the end, once.
    fn walk(descendants: &mut Descendants, gpu_processes: &[u32], now: f64) {
        let mut scratch = Scratch::default();
        for _ in 0..100_000 {
            descendants.step(gpu_processes, moment(now), &mut scratch);
            if matches!(descendants.step, Step::Resting) {
                return;
            }
        }
        panic!("the walk does not end");
    }

    fn told(descendants: &Descendants, pid: u32) -> (Option<u32>, Option<f32>, Option<u32>) {
        let mut reading = ProcessReading::default();
        descendants.tell(pid, &mut reading);
        (reading.descendants, reading.descendants_cpu_percent, reading.descendants_blocked)
    }

    #[test]
    fn children_of_children_count_and_those_on_a_gpu_do_not() {
        // A shell with two sleepers, one of them below another shell.
        let script = "sleep 600 & sh -c 'sleep 600 & echo $$; wait' & read _; kill 0";
        let mut command = Command::new("setsid");
        let mut job = command.args(["sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(job.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let inner: u32 = line.trim().parse().unwrap();
        let mut descendants = Descendants::default();
        walk(&mut descendants, &[job.id()], 1.0);
        assert_eq!(told(&descendants, job.id()), (Some(3), None, Some(0)));
        // Within ten seconds nothing is read again; after them the CPU time has a share.
        walk(&mut descendants, &[job.id()], 10.9);
        assert_eq!(told(&descendants, job.id()).1, None);
        walk(&mut descendants, &[job.id()], 11.0);
        assert_eq!(told(&descendants, job.id()), (Some(3), Some(0.0), Some(0)));
        // On a GPU of its own, the inner shell is nobody's worker, and has its own.
        let mut both = [job.id(), inner];
        both.sort_unstable();
        walk(&mut descendants, &both, 21.0);
        assert_eq!(told(&descendants, job.id()).0, Some(1));
        assert_eq!(told(&descendants, inner).0, Some(1));
        drop(job.stdin.take());
        job.wait().unwrap();
        walk(&mut descendants, &both, 31.0);
        assert_eq!(told(&descendants, job.id()), (Some(0), None, Some(0)));
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let mut descendants = Descendants::default();
        let own = std::process::id();
        walk(&mut descendants, &[own], 1.0);
        assert!(descendants.known.iter().any(|entry| entry.pid == own && entry.parent != 0));
        let mut scratch = Scratch::default();
        descendants.began = f64::NEG_INFINITY;
        descendants.step = Step::Listing;
        while !descendants.list() {}
        descendants.forget_lost_parents();
        let unknown = descendants.walked.iter().filter(|entry| entry.parent == 0).count();
        assert!(unknown < descendants.walked.len(), "all {unknown} would be read again");
        let mut reads = 0;
        let stopped = descendants.read_parents(0, &mut reads, &mut scratch);
        assert!(stopped.is_some(), "process 1 has no parent, so that there is always one to read");
    }

    #[test]
    fn nothing_is_walked_while_no_gpu_is_used() {
        let mut descendants = Descendants::default();
        descendants.step(&[], moment(5.0), &mut Scratch::default());
        assert!(descendants.known.is_empty() && matches!(descendants.step, Step::Resting));
    }
}
