//! The processes on the GPUs, as the host knows them: readings in every sample, facts when they are new.

use super::facts::{Command, ancestors, owner_of, uid_of};
use super::numbers::{hundredths, tenths, tenths_f32};
use super::nvml::raw::page_size;
use super::procfs::{Scratch, Stat, TICKS_PER_SECOND};
use super::users::Users;
use crate::wire::{Presence, ProcessFacts, ProcessReading, ProcessState, SafeText};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Files that are kept open; the usual limit of a process is 1024.
const MAX_KEPT: usize = 400;
/// A command line is looked at again in every tenth sample, each process in its turn.
const COMMAND_EVERY: u64 = 10;
/// The most bytes of facts in one snapshot; the rest go with the next ones. It keeps lines well below the codec's limit.
const FACTS_BYTES: usize = 256 * 1024;

/// All processes that the driver listed in the last sample.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Sorted by pid.
    tracked: Vec<(u32, Tracked)>,
    sample: u64,
    page_bytes: u64,
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
}

#[derive(Debug, Default)]
struct Tracked {
    /// The sample in which the driver last listed it.
    listed: u64,
    /// `/proc/PID/stat`, of this process and no other.
    stat: Option<OwnedFd>,
    /// CPU time in ticks, and when it was read.
    cpu: Option<(u64, f64)>,
    start_ticks: Option<u64>,
    parent: u32,
    command: Command,
    facts: ProcessFacts,
    /// Facts that the controller has not got.
    unsent: bool,
}

impl Processes {
    pub(crate) fn new() -> Self {
        Self { page_bytes: page_size(), ..Self::default() }
    }

    /// All facts are to be sent again.
    pub(crate) fn resend(&mut self) {
        for (_, tracked) in &mut self.tracked {
            tracked.unsent = tracked.start_ticks.is_some();
        }
    }

    /// Reads the processes with these pids, and forgets all others.
    pub(crate) fn sample(
        &mut self,
        pids: impl Iterator<Item = u32>,
        moment: Moment,
        scratch: &mut Scratch,
        users: &mut Users,
    ) -> (Vec<ProcessReading>, Vec<ProcessFacts>) {
        self.sample += 1;
        for pid in pids {
            match self.tracked.binary_search_by_key(&pid, |&(known, _)| known) {
                Ok(place) => self.tracked[place].1.listed = self.sample,
                Err(place) => {
                    let tracked = Tracked { listed: self.sample, ..Tracked::default() };
                    self.tracked.insert(place, (pid, tracked));
                }
            }
        }
        self.tracked.retain(|(_, tracked)| tracked.listed == self.sample);
        let names_came = users.have_news();
        let mut readings = Vec::with_capacity(self.tracked.len());
        let mut facts = Vec::new();
        let (mut kept, mut facts_bytes) = (0, 0);
        for &mut (pid, ref mut tracked) in &mut self.tracked {
            let look_again = (self.sample + u64::from(pid)).is_multiple_of(COMMAND_EVERY);
            let reading = tracked.read(pid, moment, self.page_bytes, look_again, scratch);
            if names_came || look_again || tracked.facts.user.is_none() {
                tracked.name_user(users);
            }
            if tracked.unsent && facts_bytes < FACTS_BYTES {
                tracked.unsent = false;
                facts_bytes += size(&tracked.facts);
                facts.push(tracked.facts.clone());
            }
            kept += usize::from(tracked.stat.is_some());
            if kept > MAX_KEPT {
                tracked.stat = None;
            }
            readings.push(reading);
        }
        (readings, facts)
    }
}

impl Tracked {
    fn read(
        &mut self,
        pid: u32,
        moment: Moment,
        page_bytes: u64,
        look_again: bool,
        scratch: &mut Scratch,
    ) -> ProcessReading {
        let line = self.read_stat(pid, scratch);
        let stat = match line.as_ref().map(|line| Stat::parse(line)) {
            Ok(Some(stat)) => stat,
            Ok(None) => return self.absent(pid, Presence::Hidden),
            Err(&error) => return self.absent(pid, presence(pid, error)),
        };
        let is_new = self.start_ticks != Some(stat.start_ticks);
        if is_new {
            // Another process with this pid: nothing that is known holds for it.
            let file = self.stat.take();
            *self = Self { listed: self.listed, stat: file, start_ticks: Some(stat.start_ticks), ..Self::default() };
        }
        let cpu_percent = self.cpu.and_then(|(ticks, then)| {
            let seconds = stat.cpu_ticks.checked_sub(ticks)? as f64 / TICKS_PER_SECOND;
            (moment.now > then).then(|| tenths_f32(100.0 * seconds / (moment.now - then)))
        });
        self.cpu = Some((stat.cpu_ticks, moment.now));
        let started = stat.start_ticks as f64 / TICKS_PER_SECOND;
        let reading = ProcessReading {
            pid: Some(pid),
            start_ticks: Some(stat.start_ticks),
            presence: Some(Presence::Visible),
            state: Some(stat.state),
            cpu_percent,
            cpu_seconds: Some(hundredths(stat.cpu_ticks as f64 / TICKS_PER_SECOND)),
            rss_bytes: Some(stat.rss_pages.saturating_mul(page_bytes)),
            threads: Some(stat.threads),
            age_seconds: moment.uptime_seconds.map(|uptime| tenths((uptime - started).max(0.0))),
            ..ProcessReading::default()
        };
        let renamed = self.facts.name.as_ref().is_none_or(|name| name.as_bytes() != stat.name);
        let moved = self.parent != stat.parent;
        if is_new {
            self.facts.pid = pid;
            self.facts.start_ticks = Some(stat.start_ticks);
            self.facts.start_unix_seconds = moment.boot_unix_seconds.map(|boot| boot + started as i64);
            self.facts.session = (stat.session > 0).then_some(stat.session);
        }
        if is_new || renamed {
            let name = SafeText::from_bytes(stat.name);
            self.unsent |= self.facts.name.as_ref() != Some(&name);
            self.facts.name = Some(name);
        }
        self.parent = stat.parent;
        // A zombie has given its memory back, and its command line with it.
        // A program that was just started has no arguments yet.
        let look_again = look_again || self.facts.argv.is_empty();
        if stat.state != ProcessState::Zombie && (is_new || renamed || moved || look_again) {
            self.look_again(pid, is_new || renamed, is_new || moved, scratch);
        }
        reading
    }

    /// Reads `/proc/PID/stat` from the open file, or opens it.
    fn read_stat<'a>(&mut self, pid: u32, scratch: &'a mut Scratch) -> Result<&'a [u8], Errno> {
        const LIMIT: usize = 2048;
        // The borrow of a successful read would last through the retry, so the file is tried before.
        if let Some(file) = self.stat.take()
            && scratch.read_open(&file, LIMIT).is_ok_and(|line| !line.is_empty())
        {
            self.stat = Some(file);
            return Ok(scratch.last());
        }
        let file = scratch.open_process(pid, "stat")?;
        let line = scratch.read_open(&file, LIMIT)?;
        self.stat = Some(file);
        Ok(line)
    }

    /// A process that /proc does not show. What was known of it while it was shown stays: a process that is gone and
    /// still holds memory should have a name.
    fn absent(&mut self, pid: u32, presence: Presence) -> ProcessReading {
        self.stat = None;
        self.cpu = None;
        ProcessReading {
            pid: Some(pid),
            start_ticks: self.start_ticks,
            presence: Some(presence),
            ..ProcessReading::default()
        }
    }

    /// Looks at the command, and where there is reason to, at the user and at the parents.
    fn look_again(&mut self, pid: u32, user: bool, parents: bool, scratch: &mut Scratch) {
        if self.command.refresh_whole(scratch, pid) {
            self.facts.argv.clone_from(&self.command.argv);
            self.unsent = true;
        }
        let uid = if user { uid_of(scratch, pid) } else { None };
        if uid.is_some() && uid != self.facts.uid {
            self.facts.uid = uid;
            self.facts.user = None;
            self.facts.full_name = None;
            self.unsent = true;
        }
        if parents {
            self.facts.ancestors = ancestors(scratch, self.parent);
            self.facts.owner = owner_of(scratch, pid, &self.facts.ancestors);
            self.unsent = true;
        }
    }

    fn name_user(&mut self, users: &mut Users) {
        let Some(name) = self.facts.uid.and_then(|uid| users.name(uid)) else { return };
        if self.facts.user.as_ref() != Some(&name.login) {
            self.facts.user = Some(name.login);
            self.facts.full_name = name.full;
            self.unsent = true;
        }
    }
}

/// Why /proc does not show a process: it is no more, or it is hidden (`hidepid`, another namespace).
fn presence(pid: u32, error: Errno) -> Presence {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 0).and_then(Pid::from_raw);
    match pid.map(test_kill_process) {
        Some(Err(Errno::SRCH)) | None => Presence::Gone,
        // It ended between the two looks, and nobody has waited for it yet.
        Some(Ok(())) if error == Errno::SRCH => Presence::Gone,
        Some(_) => Presence::Hidden,
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
    use super::*;
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
        Moment { now, uptime_seconds: Some(1e9), boot_unix_seconds: Some(1_700_000_000) }
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

        fn sample(&mut self, pids: &[u32]) -> (Vec<ProcessReading>, Vec<ProcessFacts>) {
            self.now += 1.0;
            self.processes.sample(pids.iter().copied(), moment(self.now), &mut self.scratch, &mut self.users)
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
        let (readings, facts) = bench.sample(&[child.id()]);
        assert_eq!(readings[0].cpu_percent, Some(0.0));
        assert!(facts.iter().all(|facts| facts.user.is_some()), "only the name is news: {facts:?}");
        // Within ten samples the command line is looked at, and has not changed.
        for _ in 0..10 {
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
    fn a_zombie_is_visible_and_keeps_its_command() {
        let mut child = sleeper();
        let mut bench = Bench::new();
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
    fn pids_that_cannot_be_are_gone() {
        let (readings, facts) = Bench::new().sample(&[4_194_305, u32::MAX - 1]);
        let seen: Vec<_> = readings.iter().map(|reading| reading.presence).collect();
        assert_eq!((seen, facts), (vec![Some(Presence::Gone); 2], vec![]));
    }

    #[test]
    fn a_process_that_exists_and_is_not_shown_is_hidden() {
        assert_eq!(presence(std::process::id(), Errno::NOENT), Presence::Hidden);
        assert_eq!(presence(std::process::id(), Errno::SRCH), Presence::Gone);
    }
}
