//! All processes on the GPUs, and how a sample's reading of files is shared among them.

use super::descendants::Descendants;
use super::round::Round;
use super::tracked::{Tracked, Turn};
use crate::probe::blocking::BlockingPool;
use crate::probe::nvml::raw::page_size;
use crate::probe::outside::Outside;
use crate::probe::procfs::{Forks, Scratch};
use crate::probe::users::Users;
use crate::wire::{ProcessFacts, ProcessReading, SafeText};
use std::time::Instant;

/// Files that are kept open; the usual limit of a process is 1024.
const MAX_KEPT: usize = 400;
/// What rarely changes is looked at again after a minute, or a little less: samples are not on time to the millisecond.
/// It is the clock that counts and not samples, so that a short interval costs no more of it, and a long one hides
/// nothing.
const LOOK_SECONDS: f64 = 59.5;
/// The line of a process that only runs on, or does not run, and what only its owner may read, after half of that.
const LINE_SECONDS: f64 = 29.5;
/// The most threads whose CPU times the kernel adds up in a sample, since it does so for the CPU time of their process:
/// 0.2 us each were measured.
const THREADS_ADDED_UP: u32 = 2048;
/// A process of fewer is asked in every sample all the same.
const FEW_THREADS: u32 = 16;
/// The most bytes of facts in one snapshot; the rest go with the next ones. It keeps lines well below the codec's limit.
const FACTS_BYTES: usize = 256 * 1024;
/// The most files of threads that one sample reads, of all processes together. At 10 to 20 us each (what was not read
/// lately costs the kernel more) they are most of what a sample costs on a host whose jobs have many threads.
const THREAD_FILES: usize = 56;
/// The most that are left of them for processes that do not rest.
const THREAD_FILES_OF_OTHERS: usize = 24;

/// All processes that the driver listed in the last sample.
#[derive(Debug)]
pub(crate) struct Processes {
    /// Reads what needs the lock of a process's memory.
    pool: BlockingPool,
    /// Sorted by pid.
    tracked: Vec<(u32, Tracked)>,
    sample: u64,
    page_bytes: u64,
    own_uid: u32,
    descendants: Descendants,
    /// Behind whom the next sample goes on with the CPU times of those that have many threads.
    clocks_after: u32,
    /// Behind whom the next sample goes on with threads: among those that rest, and among all others.
    resting_after: u32,
    others_after: u32,
}

/// What the moment is, for rates and ages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Monotonic, in seconds.
    pub(crate) now: f64,
    /// Since boot.
    pub(crate) uptime_seconds: Option<f64>,
    /// When that was, in seconds since 1970.
    pub(crate) boot_unix_seconds: Option<i64>,
    /// The wall clock, in seconds since 1970, for the ages of files.
    pub(crate) unix_seconds: i64,
    /// What was started until then.
    pub(crate) forks: Option<Forks>,
}

impl Processes {
    pub(crate) fn new() -> Self {
        Self {
            pool: BlockingPool::new(),
            tracked: Vec::new(),
            sample: 0,
            page_bytes: page_size(),
            own_uid: rustix::process::getuid().as_raw(),
            descendants: Descendants::default(),
            clocks_after: 0,
            resting_after: 0,
            others_after: 0,
        }
    }

    /// All facts are to be sent again.
    pub(crate) fn resend(&mut self) {
        for (_, tracked) in &mut self.tracked {
            tracked.unsent = tracked.start_ticks.is_some();
        }
    }

    /// Waits for the commands that are being read, at most until `deadline`. The next sample has them.
    pub(crate) fn settle(&self, deadline: Instant) {
        self.pool.settle(deadline);
    }

    /// Reads the processes with these pids, each with its share of a GPU's SMs, and forgets all others.
    pub(crate) fn sample(
        &mut self,
        on_gpus: impl Iterator<Item = (u32, Option<u8>)>,
        moment: Moment,
        scratch: &mut Scratch,
        users: &mut Users,
    ) -> (Vec<ProcessReading>, Vec<ProcessFacts>) {
        self.pool.tend();
        self.list(on_gpus, moment.now);
        let names_came = users.have_news();
        let mut readings = Vec::with_capacity(self.tracked.len());
        let mut kept = 0;
        self.share_out_clocks();
        let mut looks = Round::new(LOOK_SECONDS, moment.now, self.tracked.iter().map(|(_, one)| one.looked_at));
        let mut lines = Round::new(LINE_SECONDS, moment.now, self.tracked.iter().map(|(_, one)| one.line_at));
        for &mut (pid, ref mut tracked) in &mut self.tracked {
            let look_again = looks.takes(tracked.looked_at);
            let read_line = look_again || lines.takes(tracked.line_at);
            if look_again {
                tracked.looked_at = moment.now;
            }
            if read_line {
                tracked.line_at = moment.now;
            }
            let turn = Turn {
                pid,
                moment,
                page_bytes: self.page_bytes,
                ask_clock: tracked.clock_in == self.sample,
                look_again,
                read_line,
                own_uid: self.own_uid,
            };
            readings.push(tracked.read(turn, &self.pool, scratch));
            if names_came || look_again || tracked.facts.user.is_none() {
                tracked.name_user(users);
            }
            kept += usize::from(tracked.stat.is_some());
            if kept > MAX_KEPT {
                tracked.stat = None;
            }
        }
        self.read_threads(moment.now, scratch);
        let pids: Vec<u32> = self.tracked.iter().map(|&(pid, _)| pid).collect();
        self.descendants.step(&pids, moment, scratch);
        for ((pid, tracked), reading) in self.tracked.iter_mut().zip(&mut readings) {
            tracked.tell(*pid, moment.now, reading, scratch);
            self.descendants.tell(*pid, reading);
        }
        (readings, self.news())
    }

    /// How many probes run on this host, as far as that is known.
    pub(crate) fn probes_on_host(&self) -> Option<u32> {
        self.descendants.probes_on_host()
    }

    /// The working directories that are known, each with a process that works there.
    pub(crate) fn working_directories(&self) -> impl Iterator<Item = (u32, &SafeText)> {
        self.tracked.iter().filter_map(|(pid, tracked)| Some((*pid, tracked.facts.working_directory.as_ref()?)))
    }

    /// Gives processes the names of their containers and the numbers of their jobs, as far as those are known by now.
    pub(crate) fn name_owners(&mut self, outside: &mut Outside) {
        for (_, tracked) in &mut self.tracked {
            tracked.name_owner(outside);
        }
    }

    fn list(&mut self, on_gpus: impl Iterator<Item = (u32, Option<u8>)>, now: f64) {
        self.sample += 1;
        for (pid, sm_percent) in on_gpus {
            let place = match self.tracked.binary_search_by_key(&pid, |&(known, _)| known) {
                Ok(place) => place,
                Err(place) => {
                    self.tracked.insert(place, (pid, Tracked::default()));
                    // Whatever there is of a new one is read at once.
                    let tracked = &mut self.tracked[place].1;
                    (tracked.looked_at, tracked.line_at) = (now, now);
                    place
                }
            };
            let tracked = &mut self.tracked[place].1;
            let elsewhere = tracked.sm_percent.filter(|_| tracked.listed == self.sample);
            tracked.sm_percent = sm_percent.max(elsewhere);
            tracked.listed = self.sample;
        }
        self.tracked.retain(|(_, tracked)| tracked.listed == self.sample);
    }

    /// Whose CPU time is asked for in this sample: of all that have few threads, and of as many others as the kernel can
    /// add up cheaply. The others keep theirs until the next sample, or the one after.
    fn share_out_clocks(&mut self) {
        let mut left = THREADS_ADDED_UP;
        let count = self.tracked.len();
        let first = self.tracked.partition_point(|&(pid, _)| pid <= self.clocks_after);
        for index in (first..count).chain(0..first) {
            let (pid, tracked) = &mut self.tracked[index];
            let threads = tracked.thread_count;
            if threads < FEW_THREADS || left > 0 {
                tracked.clock_in = self.sample;
            }
            if threads >= FEW_THREADS && left > 0 {
                left = left.saturating_sub(threads);
                self.clocks_after = *pid;
            }
        }
    }

    /// Threads that were seen in uninterruptible sleep first; then those of processes that rest, since there a thread
    /// may hang; then, in rotation, all others.
    fn read_threads(&mut self, now: f64, scratch: &mut Scratch) {
        let mut budget = THREAD_FILES;
        for (pid, tracked) in &mut self.tracked {
            tracked.follow_threads(*pid, now, &mut budget, scratch);
        }
        self.resting_after = self.pass_threads(true, self.resting_after, now, &mut budget, scratch);
        budget = budget.min(THREAD_FILES_OF_OTHERS);
        self.others_after = self.pass_threads(false, self.others_after, now, &mut budget, scratch);
    }

    /// Passes through the threads of processes that rest, or do not, from the one behind `after` on. Behind whom to go
    /// on: a process whose pass was cut short comes first, unless it had the whole budget to itself.
    fn pass_threads(&mut self, resting: bool, after: u32, now: f64, budget: &mut usize, scratch: &mut Scratch) -> u32 {
        let count = self.tracked.len();
        let first = self.tracked.partition_point(|&(pid, _)| pid <= after);
        let mut last = after;
        for index in (first..count).chain(0..first) {
            let (pid, tracked) = &mut self.tracked[index];
            if tracked.rests() != resting || !tracked.has_threads() {
                continue;
            }
            if *budget == 0 {
                return last;
            }
            let whole = tracked.threads.pass(*pid, now, budget, scratch);
            if !whole && last != after {
                return last;
            }
            last = *pid;
        }
        last
    }

    /// Facts that the controller has not got, as many as a snapshot may carry.
    fn news(&mut self) -> Vec<ProcessFacts> {
        let (mut facts, mut bytes) = (Vec::new(), 0);
        for (_, tracked) in self.tracked.iter_mut().filter(|(_, tracked)| tracked.unsent) {
            if bytes >= FACTS_BYTES {
                break;
            }
            tracked.unsent = false;
            bytes += size(&tracked.facts);
            facts.push(tracked.facts.clone());
        }
        facts
    }
}

/// About how long these facts are as JSON.
fn size(facts: &ProcessFacts) -> usize {
    let text = |argv: &[SafeText]| argv.iter().map(|argument| argument.len() + 3).sum::<usize>();
    let parents: usize = facts.ancestors.iter().map(|ancestor| 80 + ancestor.name.len() + text(&ancestor.argv)).sum();
    300 + text(&facts.argv) + parents
}

#[cfg(test)]
mod tests {
    use super::super::round::MAX_LOOKS;
    use super::*;
    use crate::probe::blocking::{MAX_THREADS, block};
    use crate::wire::{Presence, ProcessState};
    use std::process::{Child, Command as Process, Stdio};
    use std::time::Duration;

    fn sleeper() -> Child {
        let mut command = Process::new("sleep");
        let child = command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        // The kernel has the arguments a moment after the parent goes on.
        let cmdline = format!("/proc/{}/cmdline", child.id());
        while std::fs::read(&cmdline).expect("the child lives").is_empty() {
            std::thread::yield_now();
        }
        child
    }

    fn moment(now: f64) -> Moment {
        Moment {
            now,
            uptime_seconds: Some(1e9),
            boot_unix_seconds: Some(1_700_000_000),
            unix_seconds: 1_700_000_100,
            forks: None,
        }
    }

    struct Bench {
        processes: Processes,
        scratch: Scratch,
        users: Users,
        now: f64,
    }

    impl Bench {
        fn new() -> Self {
            Self { processes: Processes::new(), scratch: Scratch::default(), users: Users::default(), now: 0.0 }
        }

        fn settle(&self) {
            self.processes.settle(Instant::now() + Duration::from_secs(30));
        }

        fn sample(&mut self, pids: &[u32]) -> (Vec<ProcessReading>, Vec<ProcessFacts>) {
            self.now += 1.0;
            self.processes.sample(
                pids.iter().map(|&pid| (pid, None)),
                moment(self.now),
                &mut self.scratch,
                &mut self.users,
            )
        }
    }

    #[test]
    fn a_process_is_read_and_its_facts_are_sent_once_and_when_asked_for() {
        let mut child = sleeper();
        let mut bench = Bench::new();
        let (readings, facts) = bench.sample(&[child.id()]);
        assert_eq!((readings[0].presence, readings[0].cpu_percent), (Some(Presence::Visible), None));
        assert_eq!((readings[0].threads, facts[0].start_ticks), (Some(1), readings[0].start_ticks));
        assert_eq!(facts[0].ancestors[0].pid, std::process::id());
        bench.users.settle(Duration::from_secs(30));
        bench.settle();
        let (readings, facts) = bench.sample(&[child.id()]);
        assert!(readings[0].cpu_percent.is_some(), "two samples make a share");
        assert!(facts[0].user.is_some(), "{facts:?}");
        assert_eq!(facts[0].argv, ["sleep", "600"]);
        assert!(!facts[0].ancestors[0].argv.is_empty());
        // Within a minute the command line is looked at, and has not changed.
        for _ in 0..60 {
            assert_eq!(bench.sample(&[child.id()]).1, []);
        }
        bench.processes.resend();
        assert_eq!(bench.sample(&[child.id()]).1.len(), 1);
        child.kill().expect("ends");
        child.wait().expect("ends");
        let (readings, _) = bench.sample(&[child.id()]);
        assert_eq!(readings[0].presence, Some(Presence::Gone));
        assert!(readings[0].start_ticks.is_some(), "what is gone keeps its identity");
    }

    #[test]
    fn a_process_whose_command_cannot_be_read_is_shown_without_it() {
        let mut child = sleeper();
        let mut bench = Bench::new();
        let release = block(&bench.processes.pool, MAX_THREADS);
        for _ in 0..1000 {
            let (readings, facts) = bench.sample(&[child.id()]);
            assert_eq!(readings[0].presence, Some(Presence::Visible));
            assert!(facts.iter().all(|facts| facts.argv.is_empty() && facts.name.as_deref() == Some("sleep")));
        }
        drop(release);
        bench.settle();
        let (_, facts) = bench.sample(&[child.id()]);
        assert_eq!(facts[0].argv, ["sleep", "600"]);
        child.kill().expect("ends");
        child.wait().expect("ends");
    }

    #[test]
    fn a_zombie_is_visible_and_keeps_its_command() {
        let mut child = sleeper();
        let mut bench = Bench::new();
        bench.sample(&[child.id()]);
        bench.settle();
        bench.sample(&[child.id()]);
        child.kill().expect("ends");
        let state = (0..1_000_000).find_map(|_| {
            let state = bench.sample(&[child.id()]).0[0].state;
            (state == Some(ProcessState::Zombie)).then_some(state)
        });
        assert_eq!(state, Some(Some(ProcessState::Zombie)));
        bench.processes.resend();
        assert_eq!(bench.sample(&[child.id()]).1[0].argv, ["sleep", "600"]);
        child.wait().expect("ends");
    }

    #[test]
    fn what_runs_all_the_time_has_its_cpu_share_in_every_sample() {
        let mut command = Process::new("sh");
        let mut child =
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("the shell starts");
        let mut bench = Bench::new();
        bench.sample(&[child.id()]);
        for _ in 0..40 {
            let before = crate::probe::nvml::raw::process_cpu_nanoseconds(child.id()).expect("it lives");
            while crate::probe::nvml::raw::process_cpu_nanoseconds(child.id())
                .is_none_or(|now| now < before + 2_000_000)
            {
                std::thread::yield_now();
            }
            let reading = bench.sample(&[child.id()]).0.remove(0);
            assert!(reading.cpu_percent.is_some_and(|percent| percent > 0.0), "{reading:?}");
        }
        rustix::process::kill_process(pid_of(&child), rustix::process::Signal::STOP).expect("stops");
        let state = (0..1_000_000).find_map(|_| {
            let state = bench.sample(&[child.id()]).0[0].state;
            (state == Some(ProcessState::Stopped)).then_some(state)
        });
        assert_eq!(state, Some(Some(ProcessState::Stopped)));
        child.kill().expect("ends");
        child.wait().expect("ends");
    }

    fn pid_of(child: &Child) -> rustix::process::Pid {
        rustix::process::Pid::from_child(child)
    }

    #[test]
    fn what_rarely_changes_is_looked_at_together_and_not_of_too_many_at_once() {
        let mut bench = Bench::new();
        let pids: Vec<u32> = (4_194_305..4_194_505).collect();
        let looked =
            |bench: &Bench| -> Vec<f64> { bench.processes.tracked.iter().map(|(_, one)| one.looked_at).collect() };
        // Some come later than the others.
        for _ in 0..8 {
            bench.sample(&pids[..100]);
        }
        bench.sample(&pids);
        let mut busy_samples = Vec::new();
        for _ in 0..180 {
            bench.sample(&pids);
            let looked = looked(&bench);
            let looks = looked.iter().filter(|&&then| bench.now - then < 0.5).count();
            assert!(looks <= MAX_LOOKS, "{looks} at {} s", bench.now);
            let oldest = looked.iter().map(|&then| bench.now - then).max_by(f64::total_cmp);
            assert!(oldest <= Some(60.0 + 3.0), "{oldest:?} at {} s", bench.now);
            if looks > 0 {
                busy_samples.push(looks);
            }
        }
        // 200 processes need four samples in sixty.
        assert!(busy_samples.len() <= 12 + 2, "{busy_samples:?}");
    }

    #[test]
    fn the_cpu_times_of_many_threads_are_asked_for_in_turn() {
        let mut bench = Bench::new();
        let pids: Vec<u32> = (4_194_305..4_194_345).collect();
        bench.sample(&pids);
        for (index, (_, tracked)) in bench.processes.tracked.iter_mut().enumerate() {
            tracked.thread_count = if index % 4 == 0 { 1 } else { 200 };
        }
        let mut asked = vec![0; pids.len()];
        for _ in 0..30 {
            bench.processes.sample += 1;
            bench.processes.share_out_clocks();
            let sample = bench.processes.sample;
            let due = bench.processes.tracked.iter().map(|(_, tracked)| tracked.clock_in == sample);
            for (count, is_due) in asked.iter_mut().zip(due) {
                *count += u32::from(is_due);
            }
        }
        // 2048 threads are reached with eleven of the thirty.
        let turns: Vec<(usize, u32)> = asked.iter().copied().enumerate().collect();
        assert!(turns.iter().all(|&(index, count)| count == if index % 4 == 0 { 30 } else { 11 }), "{turns:?}");
    }

    #[test]
    fn whose_turn_it_is_not_keeps_what_was_known() {
        let mut child = sleeper();
        let mut bench = Bench::new();
        bench.sample(&[child.id()]);
        let before = bench.sample(&[child.id()]).0.remove(0);
        let tracked = &mut bench.processes.tracked[0].1;
        let turn = Turn {
            pid: child.id(),
            moment: moment(9.0),
            page_bytes: page_size(),
            ask_clock: false,
            look_again: false,
            read_line: false,
            own_uid: 0,
        };
        child.kill().expect("ends");
        child.wait().expect("ends");
        let reading = tracked.read(turn, &bench.processes.pool, &mut bench.scratch);
        assert_eq!((reading.presence, reading.state), (before.presence, before.state));
        assert_eq!((reading.cpu_percent, reading.cpu_seconds), (before.cpu_percent, before.cpu_seconds));
        let turn = Turn { ask_clock: true, ..turn };
        assert_eq!(tracked.read(turn, &bench.processes.pool, &mut bench.scratch).presence, Some(Presence::Gone));
    }

    #[test]
    fn pids_that_cannot_be_are_gone() {
        let (readings, facts) = Bench::new().sample(&[4_194_305, u32::MAX - 1]);
        let seen: Vec<_> = readings.iter().map(|reading| reading.presence).collect();
        assert_eq!((seen, facts), (vec![Some(Presence::Gone); 2], vec![]));
    }
}
