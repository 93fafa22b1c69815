//! The threads of one process: how many live, and which of them hangs in uninterruptible sleep.
//!
//! A job whose leader sleeps peacefully may have a thread that has waited for a dead file server for an hour. But a job
//! has a hundred threads, and to read them all in each sample would cost more than everything else together: a pass
//! through the folder is spread over samples, and only a thread that was seen in uninterruptible sleep is read in each.

use crate::probe::procfs::{Scratch, Stat};
use crate::wire::ProcessState;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, open};
use std::fmt::Write;
use std::mem::MaybeUninit;

/// Threads of one process that are followed at a time.
const MAX_WATCHED: usize = 8;
/// A thread that left uninterruptible sleep is followed for as many samples more.
const FOLLOWED_SAMPLES: u32 = 10;
/// Entries of the folder that come with one call.
const FOLDER_BYTES: usize = 4096;

/// What is known of a process's threads.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// How many entries of the folder the pass has behind it.
    place: usize,
    passing: Count,
    /// What the last whole pass counted.
    counted: Option<Count>,
    watched: Vec<Watched>,
}

/// What a pass counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Threads that are neither zombies nor dead.
    pub(super) live: u32,
    /// Threads in uninterruptible sleep.
    pub(super) blocked: u32,
}

/// A thread that was seen in uninterruptible sleep.
#[derive(Debug, Clone, Copy)]
struct Watched {
    thread: u32,
    /// When it was first seen so, with this CPU time.
    since: f64,
    cpu_ticks: u64,
    /// Samples since then, and in how many of them it was so.
    samples: u32,
    hits: u32,
    /// Samples since it was last seen so.
    away: u32,
}

impl Threads {
    /// Takes in the only thread of a process, which needs no file of its own.
    pub(super) fn only(&mut self, thread: u32, state: ProcessState, cpu_ticks: u64, now: f64) {
        let blocked = state == ProcessState::DiskSleep;
        self.counted = Some(Count { live: u32::from(is_live(state)), blocked: u32::from(blocked) });
        (self.place, self.passing) = (0, Count::default());
        self.watched.retain(|watched| watched.thread == thread);
        self.note(thread, blocked, cpu_ticks, now);
    }

    /// Reads the threads that were seen in uninterruptible sleep.
    pub(super) fn follow(&mut self, pid: u32, now: f64, budget: &mut usize, scratch: &mut Scratch) {
        for index in (0..self.watched.len()).rev() {
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            let thread = self.watched[index].thread;
            match read(pid, thread, scratch) {
                Some((state, cpu_ticks)) => self.note(thread, state == ProcessState::DiskSleep, cpu_ticks, now),
                None => drop(self.watched.swap_remove(index)),
            }
        }
    }

    /// Goes on with the pass through all threads, as far as the budget allows; whether it came to its end. After
    /// [`Threads::follow`].
    pub(super) fn pass(&mut self, pid: u32, now: f64, budget: &mut usize, scratch: &mut Scratch) -> bool {
        let mut path = String::with_capacity(32);
        // Writing to a String does not fail.
        let _ok = write!(path, "/proc/{pid}/task");
        let Ok(folder) = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
            return true;
        };
        let mut buffer = [MaybeUninit::uninit(); FOLDER_BYTES];
        let mut entries = RawDir::new(&folder, &mut buffer);
        let mut behind = 0;
        while let Some(Ok(entry)) = entries.next() {
            let Some(thread) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            behind += 1;
            if behind <= self.place {
                continue;
            }
            if *budget == 0 {
                return false;
            }
            self.place = behind;
            // It was read in this sample already, and is in the count all the same.
            if let Some(watched) = self.watched.iter().find(|watched| watched.thread == thread) {
                self.passing.live += 1;
                self.passing.blocked += u32::from(watched.away == 0);
                continue;
            }
            *budget -= 1;
            let Some((state, cpu_ticks)) = read_in(&folder, thread, scratch) else { continue };
            let blocked = state == ProcessState::DiskSleep;
            self.passing.live += u32::from(is_live(state));
            self.passing.blocked += u32::from(blocked);
            self.note(thread, blocked, cpu_ticks, now);
        }
        self.counted = Some(std::mem::take(&mut self.passing));
        self.place = 0;
        true
    }

    /// What the last whole pass counted.
    pub(super) fn counted(&self) -> Option<Count> {
        self.counted
    }

    /// The thread that is in uninterruptible sleep and has been for longest, and since when.
    pub(super) fn longest_blocked(&self) -> Option<(u32, f64)> {
        let blocked = self.watched.iter().filter(|watched| watched.away == 0);
        blocked.min_by(|a, b| a.since.total_cmp(&b.since)).map(|watched| (watched.thread, watched.since))
    }

    /// Takes in one look at a thread. It counts as blocked since the first sight as long as it gains no CPU time and
    /// nine looks of ten find it so: a single wake-up does not make a dead file server live.
    fn note(&mut self, thread: u32, blocked: bool, cpu_ticks: u64, now: f64) {
        let anew = Watched { thread, since: now, cpu_ticks, samples: 1, hits: 1, away: 0 };
        let Some(index) = self.watched.iter().position(|watched| watched.thread == thread) else {
            if blocked && self.watched.len() < MAX_WATCHED {
                self.watched.push(anew);
            }
            return;
        };
        let watched = &mut self.watched[index];
        watched.samples = watched.samples.saturating_add(1);
        if blocked {
            watched.hits = watched.hits.saturating_add(1);
            watched.away = 0;
            if watched.cpu_ticks != cpu_ticks || u64::from(watched.hits) * 10 < u64::from(watched.samples) * 9 {
                *watched = anew;
            }
        } else {
            watched.away += 1;
            if watched.away > FOLLOWED_SAMPLES {
                self.watched.swap_remove(index);
            }
        }
    }
}

fn is_live(state: ProcessState) -> bool {
    !matches!(state, ProcessState::Zombie | ProcessState::Dead)
}

/// The same of a thread in an open folder of threads, which is a shorter way for the kernel.
fn read_in(folder: &OwnedFd, thread: u32, scratch: &mut Scratch) -> Option<(ProcessState, u64)> {
    let stat = Stat::parse(scratch.read_thread_in(folder, thread, "stat", 1024).ok()?)?;
    Some((stat.state, stat.cpu_ticks))
}

/// State and CPU time in ticks of one thread.
fn read(pid: u32, thread: u32, scratch: &mut Scratch) -> Option<(ProcessState, u64)> {
    let stat = Stat::parse(scratch.read_thread(pid, thread, "stat", 1024).ok()?)?;
    Some((stat.state, stat.cpu_ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Notes one thread's looks, one a second: `D`, or anything else, and CPU ticks.
    fn noted(looks: &[(char, u64)]) -> Threads {
        let mut threads = Threads::default();
        for (&(state, ticks), second) in looks.iter().zip(0_u32..) {
            threads.note(7, state == 'D', ticks, f64::from(second));
        }
        threads
    }

    #[test]
    fn it_is_blocked_since_the_first_look_that_found_it_so() {
        assert_eq!(noted(&[('S', 1), ('D', 1), ('D', 1), ('D', 1)]).longest_blocked(), Some((7, 1.0)));
        assert_eq!(noted(&[('S', 1), ('R', 2)]).longest_blocked(), None);
    }

    #[test]
    fn cpu_time_gained_starts_anew() {
        assert_eq!(noted(&[('D', 1), ('D', 1), ('D', 2), ('D', 2)]).longest_blocked(), Some((7, 2.0)));
    }

    #[test]
    fn a_look_in_ten_may_miss_and_not_two() {
        let mut looks = vec![('D', 1); 20];
        looks[15] = ('S', 1);
        assert_eq!(noted(&looks).longest_blocked(), Some((7, 0.0)));
        looks[19] = ('S', 1);
        assert_eq!(noted(&looks).longest_blocked(), None, "it is not claimed in the sample that did not find it so");
        // A writer that is in D in two looks of five never seems to be for long.
        let writer: Vec<_> = (0..100).map(|look| (if look % 5 < 2 { 'D' } else { 'S' }, 1)).collect();
        for end in 1..writer.len() {
            let since = noted(&writer[..end]).longest_blocked().map(|(_, since)| since);
            assert!(since.is_none_or(|since| end as f64 - since <= 3.0), "{end}: {since:?}");
        }
    }

    #[test]
    fn the_last_thread_is_the_only_one_that_can_be_blocked() {
        let mut threads = noted(&[('D', 1)]);
        threads.only(3, ProcessState::Sleeping, 9, 1.0);
        assert_eq!((threads.longest_blocked(), threads.counted()), (None, Some(Count { live: 1, blocked: 0 })));
        threads.only(3, ProcessState::Zombie, 9, 2.0);
        assert_eq!(threads.counted(), Some(Count::default()));
    }

    #[test]
    fn who_has_left_is_forgotten_at_last_and_few_are_followed() {
        let mut looks = vec![('D', 1)];
        looks.resize(1 + FOLLOWED_SAMPLES as usize, ('S', 1));
        assert_eq!(noted(&looks).watched.len(), 1);
        looks.push(('S', 1));
        assert_eq!(noted(&looks).watched.len(), 0);
        let mut threads = Threads::default();
        for thread in 0..100 {
            threads.note(thread, true, 0, 0.0);
        }
        assert_eq!(threads.watched.len(), MAX_WATCHED);
    }

    #[test]
    fn a_pass_goes_on_where_the_budget_ended() {
        let (hold, held) = channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        let started: Vec<_> = (0..5)
            .map(|_| {
                let held = std::sync::Arc::clone(&held);
                std::thread::spawn(move || drop(held.lock().map(|held| held.recv())))
            })
            .collect();
        let (mut threads, mut scratch) = (Threads::default(), Scratch::default());
        let folder = format!("/proc/{}/task", std::process::id());
        let there = || std::fs::read_dir(&folder).expect("threads").count();
        // Other tests start and end threads of this process meanwhile, so that only bounds can be told.
        let mut samples = 0;
        while threads.counted().is_none() {
            let mut budget = 2;
            threads.pass(std::process::id(), 0.0, &mut budget, &mut scratch);
            samples += 1;
            assert!(samples < 10_000, "the pass does not end");
        }
        assert!(samples >= 3, "six threads in {samples} samples of two");
        assert!(threads.counted().is_some_and(|count| count.live >= 6) && there() >= 6);
        drop(hold);
        for thread in started {
            thread.join().expect("ends");
        }
    }
}
