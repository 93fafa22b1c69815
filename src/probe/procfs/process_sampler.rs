//! Samples all processes that use a GPU and divides the file reads of one sample among them.

use super::descendants::Descendants;
use super::files::FileReader;
use super::host::SampleContext;
use super::process::{BackgroundReads, RefreshPlan, TrackedProcess};
use super::reruns::Reruns;
use crate::probe::external::ExternalSources;
use crate::probe::nvml::ffi::page_size;
use crate::probe::user_names::UserNames;
use crate::wire::{Presence, ProcessFacts, ProcessReading, ProcessState, SafeText};
use std::time::{Duration, Instant};

/// Maximum number of `stat` files kept open. The usual limit of a process is 1024 descriptors.
const MAX_OPEN_STAT_FILES: usize = 400;
/// Refresh period of facts: a minute, less a margin because samples may come some milliseconds early. The clock decides
/// and not the number of samples, so that a short interval costs no more and a long one hides nothing.
const FACTS_REFRESH_SECONDS: f64 = 59.5;
/// Refresh period of `stat` and of owner-only files for a process that runs all the time or not at all.
const STAT_REFRESH_SECONDS: f64 = 29.5;
/// Maximum number of threads whose CPU times the kernel adds up in one sample to return the CPU clocks of their
/// processes, at 0.2 us per thread.
const MAX_CPU_CLOCK_THREADS: u32 = 2048;
/// The CPU clock of a process with fewer threads is read in every sample.
const FEW_THREADS: u32 = 16;
/// Maximum size of the facts in one snapshot; the rest go with the next ones. This keeps lines well below the codec's
/// limit.
const FACTS_BYTES: usize = 256 * 1024;
/// Maximum number of thread files read in one sample. At 10 to 20 us each (the kernel is slower for files that it has
/// not read lately) they are most of the cost of a sample on a host whose jobs have many threads.
const THREAD_READS: usize = 56;
/// Maximum number of them for processes that are not idle.
const ACTIVE_THREAD_READS: usize = 24;

/// Samples the processes that the driver lists.
#[derive(Debug)]
pub(crate) struct ProcessSampler {
    /// Runs reads that need the memory lock of a process or take long.
    background: BackgroundReads,
    /// Sorted by pid.
    tracked: Vec<(u32, TrackedProcess)>,
    sample: u64,
    page_bytes: u64,
    own_uid: u32,
    descendants: Descendants,
    reruns: Reruns,
    /// Uptime of the host in the previous sample, in seconds.
    uptime_before: f64,
    /// The pid after which the next sample continues to read CPU clocks of processes with many threads.
    cpu_clock_cursor: u32,
    /// The pids after which the next sample continues to scan threads, of idle and of all other processes.
    idle_cursor: u32,
    active_cursor: u32,
    /// The Slurm jobs whose last process left the GPUs, until they are taken.
    ended_slurm_jobs: Vec<SafeText>,
}

/// Maximum number of jobs that end in one sample.
const MAX_ENDED_JOBS: usize = 32;

/// Time limit for the command lines of new processes within their first sample.
const FIRST_COMMANDS_TIMEOUT: Duration = Duration::from_millis(50);

impl ProcessSampler {
    pub(crate) fn new() -> Self {
        Self {
            background: BackgroundReads::new(),
            tracked: Vec::new(),
            sample: 0,
            page_bytes: page_size(),
            own_uid: rustix::process::getuid().as_raw(),
            descendants: Descendants::default(),
            reruns: Reruns::default(),
            uptime_before: 0.0,
            cpu_clock_cursor: 0,
            idle_cursor: 0,
            active_cursor: 0,
            ended_slurm_jobs: Vec::new(),
        }
    }

    /// Marks all facts to be sent again.
    pub(crate) fn resend(&mut self) {
        for (_, tracked) in &mut self.tracked {
            tracked.mark_all_unsent();
        }
    }

    /// Waits until no background read is in progress or `deadline` passes. The next sample has the results.
    pub(crate) fn wait_until_idle(&self, deadline: Instant) {
        self.background.pool.wait_until_idle(deadline);
    }

    /// Starts the reads of sockets that the first sample left out.
    pub(crate) fn start_sockets(&mut self, now: f64) {
        for &mut (pid, ref mut tracked) in &mut self.tracked {
            tracked.start_sockets(pid, now, &self.background);
        }
    }

    fn first_commands_awaited(&self) -> usize {
        self.tracked.iter().filter(|(_, process)| process.awaits_first_command()).count()
    }

    /// Makes the command lines of new processes part of their first sample, unless reading them takes longer than
    /// [`FIRST_COMMANDS_TIMEOUT`]. It is called only if new reads have started, so a read that hangs delays no later
    /// sample.
    fn wait_for_first_commands(
        &mut self,
        context: SampleContext,
        reader: &mut FileReader,
        readings: &mut [ProcessReading],
    ) {
        self.background.pool.wait_until_idle(Instant::now() + FIRST_COMMANDS_TIMEOUT);
        for (&mut (pid, ref mut tracked), reading) in self.tracked.iter_mut().zip(readings) {
            if tracked.has_first_command() {
                let plan = RefreshPlan {
                    pid,
                    context,
                    page_bytes: self.page_bytes,
                    read_cpu_clock: true,
                    refresh_facts: false,
                    refresh_stat: true,
                    own_uid: self.own_uid,
                };
                *reading = tracked.read(plan, &self.background, reader);
            }
        }
    }

    /// Reads the processes with these pids, each with its SM percentage, and new runs of programs that left the GPUs. Forgets
    /// all others.
    pub(crate) fn sample(
        &mut self,
        on_gpus: impl Iterator<Item = (u32, Option<u8>)>,
        context: SampleContext,
        reader: &mut FileReader,
        users: &mut UserNames,
    ) -> (Vec<ProcessReading>, Vec<ProcessFacts>) {
        self.background.pool.tend();
        self.update_list(on_gpus, context);
        let user_names_changed = users.take_changed();
        let mut readings = Vec::with_capacity(self.tracked.len());
        let mut open_files = 0;
        self.schedule_cpu_clocks();
        let commands_awaited = self.first_commands_awaited();
        let mut facts_budget = RefreshBudget::new(
            FACTS_REFRESH_SECONDS,
            context.now,
            self.tracked.iter().map(|(_, process)| process.facts_read_at),
        );
        let mut stat_budget = RefreshBudget::new(
            STAT_REFRESH_SECONDS,
            context.now,
            self.tracked.iter().map(|(_, process)| process.stat_read_at),
        );
        for &mut (pid, ref mut tracked) in &mut self.tracked {
            let refresh_facts = facts_budget.try_take(tracked.facts_read_at);
            let refresh_stat = refresh_facts || stat_budget.try_take(tracked.stat_read_at);
            if refresh_facts {
                tracked.facts_read_at = context.now;
            }
            if refresh_stat {
                tracked.stat_read_at = context.now;
            }
            let plan = RefreshPlan {
                pid,
                context,
                page_bytes: self.page_bytes,
                read_cpu_clock: tracked.cpu_clock_sample == self.sample,
                refresh_facts,
                refresh_stat,
                own_uid: self.own_uid,
            };
            readings.push(tracked.read(plan, &self.background, reader));
            if user_names_changed || refresh_facts || tracked.facts.user.is_none() {
                tracked.resolve_user_name(users);
            }
            open_files += usize::from(tracked.stat_file.is_some());
            if open_files > MAX_OPEN_STAT_FILES {
                tracked.stat_file = None;
            }
        }
        if self.first_commands_awaited() > commands_awaited {
            self.wait_for_first_commands(context, reader, &mut readings);
        }
        self.read_threads(context.now, reader);
        let is_job = |tracked: &TrackedProcess| tracked.gpu_sample == self.sample || tracked.is_rerun;
        let pids: Vec<u32> = self.tracked.iter().filter(|(_, tracked)| is_job(tracked)).map(|&(pid, _)| pid).collect();
        self.descendants.step(&pids, &mut self.reruns, context, reader);
        for ((pid, tracked), reading) in self.tracked.iter_mut().zip(&mut readings) {
            tracked.fill_reading(*pid, context.now, reading, reader);
            self.descendants.fill_reading(*pid, reading);
        }
        self.select_reruns(&mut readings);
        (readings, self.take_changed_facts())
    }

    /// Returns the number of probes on this host; `None` if it is not known.
    pub(crate) fn probes_on_host(&self) -> Option<u32> {
        self.descendants.probes_on_host()
    }

    /// Returns the known working directories, each with the pid of its process.
    pub(crate) fn working_directories(&self) -> impl Iterator<Item = (u32, &SafeText)> {
        self.on_gpus().filter_map(|(pid, tracked)| Some((*pid, tracked.facts.working_directory.as_ref()?)))
    }

    /// Sets container names and job ids that are known by now.
    pub(crate) fn resolve_owner_names(&mut self, external: &mut ExternalSources) {
        for (_, tracked) in &mut self.tracked {
            tracked.resolve_owner_name(external);
        }
    }

    /// Drops the readings of processes that use no GPU and are not new runs of programs that left the GPUs.
    fn select_reruns(&mut self, readings: &mut Vec<ProcessReading>) {
        if self.reruns.runs().is_empty() {
            return;
        }
        let on_gpus: Vec<u32> = self.on_gpus().map(|(pid, _)| *pid).collect();
        let mut index = 0;
        readings.retain(|reading| {
            let (pid, tracked) = &mut self.tracked[index];
            index += 1;
            let is_on_gpu = tracked.gpu_sample == self.sample;
            let is_new_run = self.reruns.is_new_run(&tracked.facts);
            let has_ended = reading.presence != Some(Presence::Visible)
                || matches!(reading.state, Some(ProcessState::Zombie | ProcessState::Dead));
            let is_other = is_new_run == Some(false) || has_ended || self.descendants.is_below(*pid, &on_gpus);
            if (is_on_gpu || is_other) && self.reruns.runs().contains(pid) {
                self.reruns.reject(*pid);
            }
            tracked.is_rerun = !is_on_gpu && is_new_run.is_some() && !is_other;
            let is_sent = is_on_gpu || tracked.is_rerun;
            // The facts of a new run are sent when it is known to be one.
            tracked.unsent &= is_sent;
            is_sent
        });
    }

    /// The processes that the driver lists in this sample.
    fn on_gpus(&self) -> impl Iterator<Item = &(u32, TrackedProcess)> + Clone {
        self.tracked.iter().filter(|(_, tracked)| tracked.gpu_sample == self.sample)
    }

    fn update_list(&mut self, on_gpus: impl Iterator<Item = (u32, Option<u8>)>, context: SampleContext) {
        let now = context.now;
        self.sample += 1;
        let on_gpus = on_gpus.map(|(pid, sm_percent)| (pid, sm_percent, self.sample));
        let reruns = self.reruns.runs().to_vec();
        for (pid, sm_percent, gpu_sample) in on_gpus.chain(reruns.into_iter().map(|pid| (pid, None, 0))) {
            let index = match self.tracked.binary_search_by_key(&pid, |&(known, _)| known) {
                Ok(index) => index,
                Err(index) => {
                    self.tracked.insert(index, (pid, TrackedProcess::default()));
                    // A new process is read at once.
                    let tracked = &mut self.tracked[index].1;
                    (tracked.facts_read_at, tracked.stat_read_at) = (now, now);
                    index
                }
            };
            let tracked = &mut self.tracked[index].1;
            let known_percent = tracked.sm_percent.filter(|_| tracked.listed_sample == self.sample);
            tracked.sm_percent = sm_percent.max(known_percent);
            tracked.listed_sample = self.sample;
            tracked.gpu_sample = tracked.gpu_sample.max(gpu_sample);
        }
        let ended = &mut self.ended_slurm_jobs;
        self.tracked.retain(|(pid, tracked)| {
            let is_listed = tracked.listed_sample == self.sample;
            let has_left = !is_listed && tracked.gpu_sample > 0;
            if let (true, Some(job)) = (has_left, tracked.slurm_job())
                && ended.len() < MAX_ENDED_JOBS
                && !ended.contains(job)
            {
                ended.push(job.clone());
            }
            if has_left {
                self.reruns.remember(*pid, &tracked.facts, self.uptime_before);
            }
            is_listed
        });
        // Its other processes may go on.
        let mut ended = std::mem::take(&mut self.ended_slurm_jobs);
        ended.retain(|job| !self.slurm_jobs().any(|other| other == job));
        self.ended_slurm_jobs = ended;
        if let Some(uptime) = context.uptime_seconds {
            self.uptime_before = uptime;
            self.reruns.expire(uptime);
        }
    }

    /// Returns the Slurm job of each process on the GPUs that has one.
    pub(crate) fn slurm_jobs(&self) -> impl Iterator<Item = &SafeText> + Clone {
        self.on_gpus().filter_map(|(_, tracked)| tracked.slurm_job())
    }

    /// Returns the Slurm jobs whose last process left the GPUs since the last call.
    pub(crate) fn take_ended_slurm_jobs(&mut self) -> Vec<SafeText> {
        std::mem::take(&mut self.ended_slurm_jobs)
    }

    /// Selects the processes whose CPU clock is read: all with few threads, and as many of the others as the kernel can
    /// add up cheaply. The rest keep their value for a sample or two.
    fn schedule_cpu_clocks(&mut self) {
        let mut left = MAX_CPU_CLOCK_THREADS;
        let count = self.tracked.len();
        let first = self.tracked.partition_point(|&(pid, _)| pid <= self.cpu_clock_cursor);
        for index in (first..count).chain(0..first) {
            let (pid, tracked) = &mut self.tracked[index];
            let threads = tracked.thread_count;
            if threads < FEW_THREADS || left > 0 {
                tracked.cpu_clock_sample = self.sample;
            }
            if threads >= FEW_THREADS && left > 0 {
                left = left.saturating_sub(threads);
                self.cpu_clock_cursor = *pid;
            }
        }
    }

    /// Reads threads within the budget: first those in uninterruptible sleep, then those of idle processes, where a
    /// thread may hang, then all others in rotation.
    fn read_threads(&mut self, now: f64, reader: &mut FileReader) {
        let mut budget = THREAD_READS;
        for (pid, tracked) in &mut self.tracked {
            tracked.follow_blocked_threads(*pid, now, &mut budget, reader);
        }
        self.idle_cursor = self.scan_threads(true, self.idle_cursor, now, &mut budget, reader);
        budget = budget.min(ACTIVE_THREAD_READS);
        self.active_cursor = self.scan_threads(false, self.active_cursor, now, &mut budget, reader);
    }

    /// Scans the threads of idle or other processes, from the one after pid `after`. Returns the pid after which the
    /// next sample continues: a process whose scan was cut short comes first, unless it had the whole budget.
    fn scan_threads(
        &mut self,
        is_idle: bool,
        after: u32,
        now: f64,
        budget: &mut usize,
        reader: &mut FileReader,
    ) -> u32 {
        let count = self.tracked.len();
        let first = self.tracked.partition_point(|&(pid, _)| pid <= after);
        let mut last = after;
        for index in (first..count).chain(0..first) {
            let (pid, tracked) = &mut self.tracked[index];
            if tracked.is_idle() != is_idle || !tracked.is_multithreaded() {
                continue;
            }
            if *budget == 0 {
                return last;
            }
            let finished = tracked.threads.scan(*pid, now, budget, reader);
            if !finished && last != after {
                return last;
            }
            last = *pid;
        }
        last
    }

    /// Takes the facts that have not been sent, as many as one snapshot may carry.
    fn take_changed_facts(&mut self) -> Vec<ProcessFacts> {
        let (mut facts, mut bytes) = (Vec::new(), 0);
        for (_, tracked) in self.tracked.iter_mut().filter(|(_, tracked)| tracked.unsent) {
            if bytes >= FACTS_BYTES {
                break;
            }
            tracked.unsent = false;
            bytes += json_bytes_estimate(&tracked.facts);
            facts.push(tracked.facts.clone());
        }
        facts
    }
}

/// Estimates the size of facts as JSON.
fn json_bytes_estimate(facts: &ProcessFacts) -> usize {
    let text = |argv: &[SafeText]| argv.iter().map(|argument| argument.len() + 3).sum::<usize>();
    let parents: usize = facts.ancestors.iter().map(|ancestor| 80 + ancestor.name.len() + text(&ancestor.argv)).sum();
    300 + text(&facts.argv) + parents
}

/// Maximum number of refreshes in one sample; the rest follow in the next.
pub(super) const MAX_REFRESHES: usize = 64;

/// Decides which entries are refreshed in one sample. When one entry is due, it refreshes every entry that is at least
/// half due: batching keeps the cache warm, and four processes in each sample cost more than forty in every tenth.
#[derive(Debug)]
pub(super) struct RefreshBudget {
    /// Entries that were read at this time or earlier are refreshed.
    due_before: f64,
    remaining: usize,
}

impl RefreshBudget {
    /// Creates the budget for entries that were read at these times and are due once per `period`.
    pub(super) fn new(period: f64, now: f64, read_at: impl Iterator<Item = f64>) -> Self {
        let is_due = read_at.min_by(f64::total_cmp).is_some_and(|oldest| now - oldest >= period);
        Self { due_before: now - if is_due { period / 2.0 } else { period }, remaining: MAX_REFRESHES }
    }

    /// Takes one refresh for an entry that was last read at this time. Returns whether it is due.
    pub(super) fn try_take(&mut self, read_at: f64) -> bool {
        let try_take = self.remaining > 0 && read_at <= self.due_before;
        self.remaining -= usize::from(try_take);
        try_take
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::blocking::{MAX_THREADS, block};
    use crate::wire::{Owner, Presence, ProcessState};
    use std::process::{Child, Command as Process, Stdio};

    fn start_sleep() -> Child {
        start_sleep_of("600")
    }

    fn start_sleep_of(seconds: &str) -> Child {
        let mut command = Process::new("sleep");
        let child = command.arg(seconds).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        // The kernel shows the arguments only after exec.
        let cmdline = format!("/proc/{}/cmdline", child.id());
        while std::fs::read(&cmdline).expect("is running").is_empty() {
            std::thread::yield_now();
        }
        child
    }

    fn context(now: f64) -> SampleContext {
        SampleContext {
            now,
            uptime_seconds: Some(1e9),
            boot_unix_seconds: Some(1_700_000_000),
            unix_seconds: 1_700_000_100,
            forks: None,
            is_starting: false,
        }
    }

    struct Fixture {
        processes: ProcessSampler,
        reader: FileReader,
        users: UserNames,
        now: f64,
        uptime_seconds: f64,
        is_starting: bool,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                processes: ProcessSampler::new(),
                reader: FileReader::default(),
                users: UserNames::default(),
                now: 0.0,
                uptime_seconds: 1e9,
                is_starting: false,
            }
        }

        fn wait_until_idle(&self) {
            self.processes.wait_until_idle(Instant::now() + Duration::from_secs(30));
        }

        fn sample(&mut self, pids: &[u32]) -> (Vec<ProcessReading>, Vec<ProcessFacts>) {
            self.now += 1.0;
            self.processes.sample(
                pids.iter().map(|&pid| (pid, None)),
                SampleContext {
                    is_starting: self.is_starting,
                    uptime_seconds: Some(self.uptime_seconds),
                    ..context(self.now)
                },
                &mut self.reader,
                &mut self.users,
            )
        }
    }

    #[test]
    fn a_slurm_job_has_left_the_gpus_with_its_last_process() {
        let mut children = [start_sleep(), start_sleep()];
        let pids = children.each_ref().map(Child::id);
        let mut fixture = Fixture::new();
        fixture.sample(&pids);
        fixture.wait_until_idle();
        fixture.sample(&pids);
        for (_, tracked) in &mut fixture.processes.tracked {
            tracked.facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
        }
        assert_eq!(fixture.processes.take_ended_slurm_jobs(), Vec::<SafeText>::new());
        fixture.sample(&pids[..1]);
        assert_eq!(fixture.processes.take_ended_slurm_jobs(), Vec::<SafeText>::new(), "the other goes on");
        fixture.sample(&[]);
        assert_eq!(fixture.processes.take_ended_slurm_jobs(), ["3385"]);
        fixture.sample(&[]);
        assert_eq!(fixture.processes.take_ended_slurm_jobs(), Vec::<SafeText>::new(), "once");
        for child in &mut children {
            child.kill().expect("is killed");
            child.wait().expect("has ended");
        }
    }

    #[test]
    fn a_program_that_left_the_gpus_is_read_when_it_runs_again() {
        let end = |child: &mut Child| {
            child.kill().expect("is killed");
            child.wait().expect("has ended");
        };
        let mut fixture = Fixture::new();
        let uptime = std::fs::read_to_string("/proc/uptime").expect("is readable");
        fixture.uptime_seconds = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok()).expect("a number");
        let mut first = start_sleep_of("86461");
        fixture.sample(&[first.id()]);
        fixture.wait_until_idle();
        fixture.sample(&[first.id()]);
        end(&mut first);
        assert_eq!(fixture.sample(&[]).0, []);
        let (mut again, mut other) = (start_sleep_of("86461"), start_sleep_of("86462"));
        let mut sample = |pids: &[u32]| {
            fixture.wait_until_idle();
            let (readings, facts) = fixture.sample(pids);
            let pids: Vec<u32> = readings.iter().map(|reading| reading.pid.expect("known")).collect();
            (pids, facts)
        };
        // The scan finds both within ten seconds. Their arguments are read in the background.
        let found = (0..30).map(|_| sample(&[])).find(|(pids, _)| !pids.is_empty()).expect("is found");
        assert_eq!(found.0, [again.id()], "the other one has another argument");
        assert_eq!(found.1.iter().map(|facts| facts.pid).collect::<Vec<_>>(), [again.id()]);
        assert_eq!(found.1[0].argv, ["sleep", "86461"]);
        assert_eq!(sample(&[again.id()]).0, [again.id()], "it uses a GPU");
        assert_eq!(sample(&[]).0, Vec::<u32>::new(), "it has left the GPU and is not a new run");
        let third = (0..30).map(|_| sample(&[])).find(|(pids, _)| !pids.is_empty());
        assert!(third.is_none_or(|(pids, _)| pids == [again.id()]));
        end(&mut again);
        end(&mut other);
        let left = (0..30).map(|_| sample(&[])).last();
        assert_eq!(left.map(|(pids, _)| pids), Some(vec![]));
    }

    #[test]
    fn facts_are_sent_once_and_on_resend() {
        let mut child = start_sleep();
        let mut fixture = Fixture::new();
        let (readings, facts) = fixture.sample(&[child.id()]);
        assert_eq!((readings[0].presence, readings[0].cpu_percent), (Some(Presence::Visible), None));
        assert_eq!((readings[0].threads, facts[0].start_ticks), (Some(1), readings[0].start_ticks));
        // The command and the ancestors are part of the first sample, unless the machine is so busy that the time limit passes.
        assert!(facts[0].argv.is_empty() || facts[0].argv == ["sleep", "600"], "{facts:?}");
        fixture.users.wait_until_resolved(Duration::from_secs(30));
        fixture.wait_until_idle();
        let (readings, facts) = fixture.sample(&[child.id()]);
        assert!(readings[0].cpu_percent.is_some(), "two samples give a percentage");
        assert!(facts[0].user.is_some(), "{facts:?}");
        assert_eq!(facts[0].argv, ["sleep", "600"]);
        assert_eq!(facts[0].ancestors[0].pid, std::process::id());
        assert!(!facts[0].ancestors[0].argv.is_empty());
        // Within a minute the facts are not sent again.
        for _ in 0..60 {
            assert_eq!(fixture.sample(&[child.id()]).1, []);
        }
        fixture.processes.resend();
        assert_eq!(fixture.sample(&[child.id()]).1.len(), 1);
        child.kill().expect("ends");
        child.wait().expect("ends");
        let (readings, _) = fixture.sample(&[child.id()]);
        assert_eq!(readings[0].presence, Some(Presence::Gone));
        assert!(readings[0].start_ticks.is_some(), "a process that has exited keeps its identity");
    }

    #[test]
    fn the_end_of_the_program_above_the_parent_is_noticed() {
        use std::io::{BufRead, BufReader};
        // The chain of ancestors ends at the first shell, so the two programs above are not shells. The shell below them runs a loop,
        // because the probe reads the facts again only of a process that has run.
        let mut outer = std::process::Command::new("timeout")
            .args(["600", "timeout", "600", "sh", "-c", "echo $$; while :; do :; done"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        BufReader::new(outer.stdout.take().expect("a pipe")).read_line(&mut line).expect("a pid");
        let pid: u32 = line.trim().parse().expect("a pid");
        let mut fixture = Fixture::new();
        let above = |facts: &[ProcessFacts]| {
            facts.last().map(|facts| [0, 1].map(|at| facts.ancestors.get(at).map(|above| above.pid)))
        };
        fixture.sample(&[pid]);
        fixture.wait_until_idle();
        fixture.processes.resend();
        let [parent, first] = above(&fixture.sample(&[pid]).1).expect("facts");
        assert_eq!(first, Some(outer.id()));
        outer.kill().expect("is killed");
        outer.wait().expect("has ended");
        let changed = (0..100_000).find_map(|_| above(&fixture.sample(&[pid]).1).filter(|now| now[1] != first));
        for pid in [Some(pid), parent].into_iter().flatten() {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("is killed");
        }
        assert_eq!(changed.map(|now| now[0]), Some(parent), "its parent lives on");
    }

    #[test]
    fn sockets_are_read_after_the_first_sample() {
        let mut child = start_sleep();
        let mut fixture = Fixture::new();
        let mut connections = |is_starting, starts_sockets| {
            fixture.is_starting = is_starting;
            let (readings, _) = fixture.sample(&[child.id()]);
            if starts_sockets {
                fixture.processes.start_sockets(fixture.now);
            }
            fixture.wait_until_idle();
            readings[0].established_connections
        };
        assert_eq!(
            [connections(true, false), connections(true, true), connections(false, false)],
            [None, None, Some(0)]
        );
        child.kill().expect("is killed");
        child.wait().expect("has ended");
    }

    #[test]
    fn a_process_whose_command_cannot_be_read_is_shown_without_it() {
        let mut child = start_sleep();
        let mut fixture = Fixture::new();
        let release = block(&fixture.processes.background.pool, MAX_THREADS);
        let mut ancestors = Vec::new();
        for _ in 0..1000 {
            let (readings, facts) = fixture.sample(&[child.id()]);
            assert_eq!(readings[0].presence, Some(Presence::Visible));
            assert!(facts.iter().all(|facts| facts.argv.is_empty() && facts.name.as_deref() == Some("sleep")));
            ancestors.extend(facts.into_iter().flat_map(|facts| facts.ancestors));
        }
        let parent = ancestors.first().map(|parent| (parent.pid, parent.argv.as_slice()));
        assert_eq!(parent, Some((std::process::id(), [].as_slice())), "these can be read");
        drop(release);
        fixture.wait_until_idle();
        let (_, facts) = fixture.sample(&[child.id()]);
        assert_eq!(facts[0].argv, ["sleep", "600"]);
        child.kill().expect("ends");
        child.wait().expect("ends");
    }

    #[test]
    fn a_zombie_is_visible_and_keeps_its_command() {
        let mut child = start_sleep();
        let mut fixture = Fixture::new();
        fixture.sample(&[child.id()]);
        fixture.wait_until_idle();
        fixture.sample(&[child.id()]);
        child.kill().expect("ends");
        let state = (0..1_000_000).find_map(|_| {
            let state = fixture.sample(&[child.id()]).0[0].state;
            (state == Some(ProcessState::Zombie)).then_some(state)
        });
        assert_eq!(state, Some(Some(ProcessState::Zombie)));
        fixture.processes.resend();
        assert_eq!(fixture.sample(&[child.id()]).1[0].argv, ["sleep", "600"]);
        child.wait().expect("ends");
    }

    #[test]
    fn a_busy_process_has_a_cpu_share_in_every_sample() {
        let mut command = Process::new("sh");
        let mut child =
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("the shell starts");
        let mut fixture = Fixture::new();
        fixture.sample(&[child.id()]);
        for _ in 0..40 {
            let before = crate::probe::nvml::ffi::process_cpu_nanoseconds(child.id()).expect("is running");
            while crate::probe::nvml::ffi::process_cpu_nanoseconds(child.id())
                .is_none_or(|now| now < before + 2_000_000)
            {
                std::thread::yield_now();
            }
            let reading = fixture.sample(&[child.id()]).0.remove(0);
            assert!(reading.cpu_percent.is_some_and(|percent| percent > 0.0), "{reading:?}");
        }
        rustix::process::kill_process(pid_of(&child), rustix::process::Signal::STOP).expect("stops");
        let state = (0..1_000_000).find_map(|_| {
            let state = fixture.sample(&[child.id()]).0[0].state;
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
    fn facts_are_refreshed_in_batches_of_limited_size() {
        let mut fixture = Fixture::new();
        let pids: Vec<u32> = (4_194_305..4_194_505).collect();
        let facts_times = |fixture: &Fixture| -> Vec<f64> {
            fixture.processes.tracked.iter().map(|(_, process)| process.facts_read_at).collect()
        };
        // Some processes appear later than the others.
        for _ in 0..8 {
            fixture.sample(&pids[..100]);
        }
        fixture.sample(&pids);
        let mut busy_samples = Vec::new();
        for _ in 0..180 {
            fixture.sample(&pids);
            let facts_times = facts_times(&fixture);
            let refreshed = facts_times.iter().filter(|&&then| fixture.now - then < 0.5).count();
            assert!(refreshed <= MAX_REFRESHES, "{refreshed} at {} s", fixture.now);
            let oldest = facts_times.iter().map(|&then| fixture.now - then).max_by(f64::total_cmp);
            assert!(oldest <= Some(60.0 + 3.0), "{oldest:?} at {} s", fixture.now);
            if refreshed > 0 {
                busy_samples.push(refreshed);
            }
        }
        // 200 processes take four samples per minute.
        assert!(busy_samples.len() <= 12 + 2, "{busy_samples:?}");
    }

    #[test]
    fn cpu_clocks_of_many_threads_are_read_in_turn() {
        let mut fixture = Fixture::new();
        let pids: Vec<u32> = (4_194_305..4_194_345).collect();
        fixture.sample(&pids);
        for (index, (_, tracked)) in fixture.processes.tracked.iter_mut().enumerate() {
            tracked.thread_count = if index % 4 == 0 { 1 } else { 200 };
        }
        let mut reads = vec![0; pids.len()];
        for _ in 0..30 {
            fixture.processes.sample += 1;
            fixture.processes.schedule_cpu_clocks();
            let sample = fixture.processes.sample;
            let due = fixture.processes.tracked.iter().map(|(_, tracked)| tracked.cpu_clock_sample == sample);
            for (count, is_due) in reads.iter_mut().zip(due) {
                *count += u32::from(is_due);
            }
        }
        // 2048 threads are enough for eleven of thirty.
        let reads_by_index: Vec<(usize, u32)> = reads.iter().copied().enumerate().collect();
        assert!(
            reads_by_index.iter().all(|&(index, count)| count == if index % 4 == 0 { 30 } else { 11 }),
            "{reads_by_index:?}"
        );
    }

    #[test]
    fn a_process_whose_cpu_clock_is_not_read_keeps_its_reading() {
        let mut child = start_sleep();
        let mut fixture = Fixture::new();
        fixture.sample(&[child.id()]);
        // A result of a background read would make the process read `stat` again.
        fixture.wait_until_idle();
        let before = fixture.sample(&[child.id()]).0.remove(0);
        let tracked = &mut fixture.processes.tracked[0].1;
        let plan = RefreshPlan {
            pid: child.id(),
            context: context(9.0),
            page_bytes: page_size(),
            read_cpu_clock: false,
            refresh_facts: false,
            refresh_stat: false,
            own_uid: 0,
        };
        child.kill().expect("ends");
        child.wait().expect("ends");
        let reading = tracked.read(plan, &fixture.processes.background, &mut fixture.reader);
        assert_eq!((reading.presence, reading.state), (before.presence, before.state));
        assert_eq!((reading.cpu_percent, reading.cpu_seconds), (before.cpu_percent, before.cpu_seconds));
        let plan = RefreshPlan { read_cpu_clock: true, ..plan };
        assert_eq!(
            tracked.read(plan, &fixture.processes.background, &mut fixture.reader).presence,
            Some(Presence::Gone)
        );
    }

    #[test]
    fn pids_beyond_pid_max_are_gone() {
        let (readings, facts) = Fixture::new().sample(&[4_194_305, u32::MAX - 1]);
        let seen: Vec<_> = readings.iter().map(|reading| reading.presence).collect();
        assert_eq!((seen, facts), (vec![Some(Presence::Gone); 2], vec![]));
    }

    #[test]
    fn entries_are_due_by_the_clock() {
        for (interval, expected) in [(0.25, 79.0 * 0.25), (1.0, 20.0), (2.0, 20.0), (5.0, 20.0), (30.0, 30.0)] {
            let due = (1..100).map(|sample| f64::from(sample) * interval).find(|&now| {
                // A sample may come some milliseconds early.
                RefreshBudget::new(19.5, now - 0.005, [0.0].into_iter()).try_take(0.0)
            });
            assert_eq!(due, Some(expected), "every {interval} s");
        }
        let mut budget = RefreshBudget::new(10.0, 10.0, [0.0, 5.0, 5.1].into_iter());
        assert_eq!([0.0, 5.0, 5.1].map(|read_at| budget.try_take(read_at)), [true, true, false]);
    }
}
