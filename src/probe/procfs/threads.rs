//! Threads of one process: how many are alive, and which of them hangs in uninterruptible sleep.
//!
//! A job whose leader sleeps normally may have a thread that has waited for a dead file server for an hour. A job may
//! have hundreds of threads, and reading all of them in each sample would cost more than everything else. One scan of
//! the thread directory is therefore spread over several samples, and only threads that were found in uninterruptible
//! sleep are read in each.

use super::files::{FileReader, Stat};
use crate::wire::ProcessState;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, open};
use std::fmt::Write;
use std::mem::MaybeUninit;

/// Maximum number of blocked threads that are followed per process.
const MAX_BLOCKED_THREADS: usize = 8;
/// Number of samples for which a thread is followed after it has left uninterruptible sleep.
const MAX_MISSES: u32 = 10;
/// Buffer for one `getdents64` call.
const DIRECTORY_BYTES: usize = 4096;

/// The scan of the threads of one process.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// Number of directory entries that the scan in progress has read.
    next_entry: usize,
    partial_count: ThreadCount,
    /// Result of the last complete scan.
    last_count: Option<ThreadCount>,
    candidates: Vec<BlockedThread>,
}

/// Counts of one scan.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadCount {
    /// Threads that are neither zombies nor dead.
    pub(super) live: u32,
    /// Threads in uninterruptible sleep.
    pub(super) blocked: u32,
}

/// A thread that was found in uninterruptible sleep.
#[derive(Debug, Clone, Copy)]
struct BlockedThread {
    thread: u32,
    /// Time and CPU time when it was first found blocked.
    since: f64,
    cpu_ticks: u64,
    /// Samples since then, and in how many of them it was blocked.
    samples: u32,
    hits: u32,
    /// Consecutive samples in which it was not blocked.
    misses: u32,
}

impl Threads {
    /// Records a process with one thread, whose state is already known from the process's `stat`.
    pub(super) fn record_single(&mut self, thread: u32, state: ProcessState, cpu_ticks: u64, now: f64) {
        let blocked = state == ProcessState::DiskSleep;
        self.last_count = Some(ThreadCount { live: u32::from(is_live(state)), blocked: u32::from(blocked) });
        (self.next_entry, self.partial_count) = (0, ThreadCount::default());
        self.candidates.retain(|candidate| candidate.thread == thread);
        self.record(thread, blocked, cpu_ticks, now);
    }

    /// Reads the threads that were found in uninterruptible sleep.
    pub(super) fn follow_blocked(&mut self, pid: u32, now: f64, budget: &mut usize, reader: &mut FileReader) {
        for index in (0..self.candidates.len()).rev() {
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            let thread = self.candidates[index].thread;
            match read_thread(pid, thread, reader) {
                Some((state, cpu_ticks)) => self.record(thread, state == ProcessState::DiskSleep, cpu_ticks, now),
                None => drop(self.candidates.swap_remove(index)),
            }
        }
    }

    /// Continues the scan of all threads within `budget` file reads. Returns whether the scan is complete. Call
    /// [`Threads::follow_blocked`] first.
    pub(super) fn scan(&mut self, pid: u32, now: f64, budget: &mut usize, reader: &mut FileReader) -> bool {
        let mut path = String::with_capacity(32);
        // Writing to a String does not fail.
        let _ok = write!(path, "/proc/{pid}/task");
        let Ok(directory) = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
            return true;
        };
        let mut buffer = [MaybeUninit::uninit(); DIRECTORY_BYTES];
        let mut entries = RawDir::new(&directory, &mut buffer);
        let mut entry_index = 0;
        while let Some(Ok(entry)) = entries.next() {
            let Some(thread) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            entry_index += 1;
            if entry_index <= self.next_entry {
                continue;
            }
            if *budget == 0 {
                return false;
            }
            self.next_entry = entry_index;
            // This sample has already read it; it still counts.
            if let Some(candidate) = self.candidates.iter().find(|candidate| candidate.thread == thread) {
                self.partial_count.live += 1;
                self.partial_count.blocked += u32::from(candidate.misses == 0);
                continue;
            }
            *budget -= 1;
            let Some((state, cpu_ticks)) = read_thread_in(&directory, thread, reader) else { continue };
            let blocked = state == ProcessState::DiskSleep;
            self.partial_count.live += u32::from(is_live(state));
            self.partial_count.blocked += u32::from(blocked);
            self.record(thread, blocked, cpu_ticks, now);
        }
        self.last_count = Some(std::mem::take(&mut self.partial_count));
        self.next_entry = 0;
        true
    }

    /// Returns the counts of the last complete scan.
    pub(super) fn last_count(&self) -> Option<ThreadCount> {
        self.last_count
    }

    /// Returns the thread that has been blocked for the longest time, and since when.
    pub(super) fn longest_blocked(&self) -> Option<(u32, f64)> {
        let blocked = self.candidates.iter().filter(|candidate| candidate.misses == 0);
        blocked.min_by(|a, b| a.since.total_cmp(&b.since)).map(|candidate| (candidate.thread, candidate.since))
    }

    /// Records one sample of a thread. It counts as blocked since the first sample that found it so, as long as it
    /// gains no CPU time and nine of ten samples find it blocked: a single wake-up does not mean that a file server
    /// answers again.
    fn record(&mut self, thread: u32, blocked: bool, cpu_ticks: u64, now: f64) {
        let fresh = BlockedThread { thread, since: now, cpu_ticks, samples: 1, hits: 1, misses: 0 };
        let Some(index) = self.candidates.iter().position(|candidate| candidate.thread == thread) else {
            if blocked && self.candidates.len() < MAX_BLOCKED_THREADS {
                self.candidates.push(fresh);
            }
            return;
        };
        let candidate = &mut self.candidates[index];
        candidate.samples = candidate.samples.saturating_add(1);
        if blocked {
            candidate.hits = candidate.hits.saturating_add(1);
            candidate.misses = 0;
            if candidate.cpu_ticks != cpu_ticks || u64::from(candidate.hits) * 10 < u64::from(candidate.samples) * 9 {
                *candidate = fresh;
            }
        } else {
            candidate.misses += 1;
            if candidate.misses > MAX_MISSES {
                self.candidates.swap_remove(index);
            }
        }
    }
}

fn is_live(state: ProcessState) -> bool {
    !matches!(state, ProcessState::Zombie | ProcessState::Dead)
}

/// Reads a thread through the open directory, a shorter path lookup for the kernel.
fn read_thread_in(directory: &OwnedFd, thread: u32, reader: &mut FileReader) -> Option<(ProcessState, u64)> {
    let stat = Stat::parse(reader.read_thread_in(directory, thread, "stat", 1024).ok()?)?;
    Some((stat.state, stat.cpu_ticks))
}

/// Reads state and CPU time in ticks of one thread.
fn read_thread(pid: u32, thread: u32, reader: &mut FileReader) -> Option<(ProcessState, u64)> {
    let stat = Stat::parse(reader.read_thread(pid, thread, "stat", 1024).ok()?)?;
    Some((stat.state, stat.cpu_ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Records one thread every second: its state (`D` is blocked) and its CPU ticks.
    fn recorded(states: &[(char, u64)]) -> Threads {
        let mut threads = Threads::default();
        for (&(state, ticks), second) in states.iter().zip(0_u32..) {
            threads.record(7, state == 'D', ticks, f64::from(second));
        }
        threads
    }

    #[test]
    fn a_thread_is_blocked_since_the_first_sample_in_disk_sleep() {
        assert_eq!(recorded(&[('S', 1), ('D', 1), ('D', 1), ('D', 1)]).longest_blocked(), Some((7, 1.0)));
        assert_eq!(recorded(&[('S', 1), ('R', 2)]).longest_blocked(), None);
    }

    #[test]
    fn gained_cpu_time_restarts_the_blocked_time() {
        assert_eq!(recorded(&[('D', 1), ('D', 1), ('D', 2), ('D', 2)]).longest_blocked(), Some((7, 2.0)));
    }

    #[test]
    fn one_miss_in_ten_is_tolerated() {
        let mut states = vec![('D', 1); 20];
        states[15] = ('S', 1);
        assert_eq!(recorded(&states).longest_blocked(), Some((7, 0.0)));
        states[19] = ('S', 1);
        assert_eq!(recorded(&states).longest_blocked(), None, "no claim in a sample that finds it otherwise");
        // A writer that is blocked in two of five samples never counts as blocked for long.
        let writer: Vec<_> = (0..100).map(|look| (if look % 5 < 2 { 'D' } else { 'S' }, 1)).collect();
        for end in 1..writer.len() {
            let since = recorded(&writer[..end]).longest_blocked().map(|(_, since)| since);
            assert!(since.is_none_or(|since| end as f64 - since <= 3.0), "{end}: {since:?}");
        }
    }

    #[test]
    fn a_single_thread_replaces_the_blocked_threads() {
        let mut threads = recorded(&[('D', 1)]);
        threads.record_single(3, ProcessState::Sleeping, 9, 1.0);
        assert_eq!(
            (threads.longest_blocked(), threads.last_count()),
            (None, Some(ThreadCount { live: 1, blocked: 0 }))
        );
        threads.record_single(3, ProcessState::Zombie, 9, 2.0);
        assert_eq!(threads.last_count(), Some(ThreadCount::default()));
    }

    #[test]
    fn unblocked_threads_are_dropped_and_their_number_is_limited() {
        let mut states = vec![('D', 1)];
        states.resize(1 + MAX_MISSES as usize, ('S', 1));
        assert_eq!(recorded(&states).candidates.len(), 1);
        states.push(('S', 1));
        assert_eq!(recorded(&states).candidates.len(), 0);
        let mut threads = Threads::default();
        for thread in 0..100 {
            threads.record(thread, true, 0, 0.0);
        }
        assert_eq!(threads.candidates.len(), MAX_BLOCKED_THREADS);
    }

    #[test]
    fn a_scan_continues_where_its_budget_ended() {
        let (hold, held) = channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        let started: Vec<_> = (0..5)
            .map(|_| {
                let held = std::sync::Arc::clone(&held);
                std::thread::spawn(move || drop(held.lock().map(|held| held.recv())))
            })
            .collect();
        let (mut threads, mut reader) = (Threads::default(), FileReader::default());
        let directory = format!("/proc/{}/task", std::process::id());
        let thread_count = || std::fs::read_dir(&directory).expect("threads").count();
        // Other tests start and end threads of this process, so the test can only check bounds.
        let mut samples = 0;
        while threads.last_count().is_none() {
            let mut budget = 2;
            threads.scan(std::process::id(), 0.0, &mut budget, &mut reader);
            samples += 1;
            assert!(samples < 10_000, "the scan does not end");
        }
        assert!(samples >= 3, "six threads in {samples} samples of two");
        assert!(threads.last_count().is_some_and(|count| count.live >= 6) && thread_count() >= 6);
        drop(hold);
        for thread in started {
            thread.join().expect("ends");
        }
    }
}
