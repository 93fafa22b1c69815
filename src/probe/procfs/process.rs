//! One GPU process: its readings in every sample and its facts when they change.

use super::files::{FileReader, Stat, TICKS_PER_SECOND};
use super::host::SampleContext;
use super::own_process::OwnProcessDetails;
use super::sockets::{SocketReader, SocketTables};
use super::threads::Threads;
use crate::probe::blocking::{BlockingPool, Pending};
use crate::probe::decimal::{round_to_hundredth, round_to_tenth, round_to_tenth_f32};
use crate::probe::external::ExternalSources;
use crate::probe::nvml::ffi::process_cpu_nanoseconds;
use crate::probe::owner::is_sluid;
use crate::probe::process_facts::{CommandLine, Lineage, OuterAncestors, is_root_process, runs_in, status_of};
use crate::probe::user_names::UserNames;
use crate::wire::{Owner, Presence, ProcessFacts, ProcessReading, ProcessState, SafeText};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A GPU process and what is remembered of it between samples.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact by itself; no two make one state")]
pub(super) struct TrackedProcess {
    /// Number of the last sample that reads it.
    pub(super) listed_sample: u64,
    /// Number of the last sample in which the driver listed it; 0 if it never did.
    pub(super) gpu_sample: u64,
    /// It is on no GPU, and a new run of a program that was on one.
    pub(super) is_rerun: bool,
    /// Monotonic time, in seconds, of the last refresh of the facts and of `/proc/PID/stat`.
    pub(super) facts_read_at: f64,
    pub(super) stat_read_at: f64,
    /// Number of the last sample that schedules a read of its CPU clock.
    pub(super) cpu_clock_sample: u64,
    /// Its largest SM percentage on any GPU, where the driver reports it.
    pub(super) sm_percent: Option<u8>,
    /// `/proc/PID/stat`, opened for this process. It never reads another process that reuses the pid.
    pub(super) stat_file: Option<OwnedFd>,
    /// CPU time and the monotonic time at which it was read, both in seconds.
    cpu: Option<(f64, f64)>,
    /// CPU percentage over the interval that ended then.
    cpu_percent: Option<f32>,
    /// The last fields of `stat`, and the CPU clock at that time if it could be read.
    stat_fields: Option<(StatFields, Option<u64>)>,
    /// CPU clock in the previous sample.
    cpu_nanoseconds: Option<u64>,
    /// CPU clock at the last refresh of the facts: they do not change while the process does not run.
    facts_cpu_clock: Option<u64>,
    /// CPU clock at the last read of I/O counters, which do not change either.
    io_cpu_clock: Option<u64>,
    pub(super) start_ticks: Option<u64>,
    parent: u32,
    /// Hash of the command line.
    fingerprint: u64,
    /// Reads of the command line and of the ancestors' command lines that are in progress. A read never returns if the
    /// process hangs in the kernel with its memory lock held; it is not repeated meanwhile.
    command_read: Option<Pending<Option<CommandLine>>>,
    lineage_read: Option<Pending<Lineage>>,
    /// The ancestors and their command lines must be read.
    lineage_due: bool,
    /// The ancestors have been read since the parent changed.
    lineage_is_known: bool,
    /// The monotonic time of the sample in which the parent changed, in seconds.
    lineage_due_at: f64,
    /// Number of samples for which a job id lookup has waited for the lineage.
    job_id_waits: u8,
    outer_ancestors: OuterAncestors,
    pub(super) facts: ProcessFacts,
    /// The controller has not received the current facts.
    pub(super) unsent: bool,
    state: Option<ProcessState>,
    pub(super) threads: Threads,
    /// Thread count in the last `stat`; 0 before the first read.
    pub(super) thread_count: u32,
    /// It has gained no CPU time since the previous sample.
    cpu_is_idle: bool,
    /// It belongs to the user of this probe, or the probe runs as root.
    is_own: bool,
    own_details: OwnProcessDetails,
    sockets: SocketReader,
    /// It has run since the last read of its sockets.
    sockets_due: bool,
    /// The blocked thread whose wait channel has been read.
    blocked_thread: Option<u32>,
}

/// The threads for reads that may block, and the tables that such reads share.
#[derive(Debug)]
pub(super) struct BackgroundReads {
    pub(super) pool: BlockingPool,
    socket_tables: SocketTables,
}

impl BackgroundReads {
    pub(super) fn new() -> Self {
        Self { pool: BlockingPool::new(), socket_tables: SocketTables::default() }
    }
}

/// The parts of a process that one sample reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefreshPlan {
    pub(super) pid: u32,
    pub(super) context: SampleContext,
    pub(super) page_bytes: u64,
    /// Read the CPU clock. Only processes with many threads skip it in some samples.
    pub(super) read_cpu_clock: bool,
    /// Refresh the facts.
    pub(super) refresh_facts: bool,
    /// Read `stat` and the owner-only files even if the CPU clock shows no need.
    pub(super) refresh_stat: bool,
    /// The user of this probe; 0 may read the files of all users.
    pub(super) own_uid: u32,
}

/// Fields of `/proc/PID/stat` that change between samples, except CPU time.
#[derive(Debug, Clone, Copy)]
struct StatFields {
    state: ProcessState,
    parent: u32,
    threads: u32,
    start_ticks: u64,
    rss_pages: u64,
}

/// Maximum number of samples for which a job id lookup waits for the lineage, which may contain the id.
const MAX_JOB_ID_WAITS: u8 = 3;

/// A smaller gain of CPU time between two samples counts as none: one tick of `/proc/PID/stat`.
const IDLE_CPU_SECONDS: f64 = 1.0 / TICKS_PER_SECOND;

impl TrackedProcess {
    /// Reads `/proc/PID/stat` if it may have changed, and the facts if they are due.
    ///
    /// Reading the CPU clock takes 0.5 us and reading `stat` 4.5 us, or more for a process with a hundred threads. A
    /// process whose CPU clock has not advanced has not run, so its state is unchanged; one that gains CPU time in
    /// every sample is running or sleeping. Its parent and its resident memory may change without a run; they are read
    /// with the next `stat` refresh.
    pub(super) fn read(
        &mut self,
        plan: RefreshPlan,
        background: &BackgroundReads,
        reader: &mut FileReader,
    ) -> ProcessReading {
        // A result belongs to this process only if `stat` still has the same start time, so read `stat` first.
        let refresh_stat = plan.refresh_stat
            || self.command_read.as_ref().is_some_and(Pending::is_ready)
            || self.lineage_read.as_ref().is_some_and(Pending::is_ready)
            || self.sockets.is_ready()
            || self.awaits_lineage(plan.context);
        if let Some((fields, _)) = self.stat_fields
            && !plan.read_cpu_clock
            && !refresh_stat
        {
            return self.build_reading(plan, fields);
        }
        // Read the clock before `stat`: if the process runs in between, the next sample reads `stat` again.
        let cpu_nanoseconds = process_cpu_nanoseconds(plan.pid);
        let before = std::mem::replace(&mut self.cpu_nanoseconds, cpu_nanoseconds);
        if let (Some(cpu_nanoseconds), Some((fields, Some(then)))) = (cpu_nanoseconds, self.stat_fields)
            && !refresh_stat
        {
            let runs_on = before.is_some_and(|before| cpu_nanoseconds.saturating_sub(before) > 0)
                && matches!(fields.state, ProcessState::Running | ProcessState::Sleeping);
            if cpu_nanoseconds == then || runs_on {
                return self.update_reading(plan, fields, cpu_nanoseconds as f64 / 1e9);
            }
        }
        self.stat_read_at = plan.context.now;
        self.refresh_stat(plan, cpu_nanoseconds, background, reader)
    }

    fn refresh_stat(
        &mut self,
        plan: RefreshPlan,
        cpu_nanoseconds: Option<u64>,
        background: &BackgroundReads,
        reader: &mut FileReader,
    ) -> ProcessReading {
        let RefreshPlan { pid, context, .. } = plan;
        let line = self.read_stat(pid, reader);
        let stat = match line.as_ref().map(|line| Stat::parse(line)) {
            Ok(Some(stat)) => stat,
            Ok(None) => return self.absent_reading(pid, Presence::Hidden),
            Err(&error) => return self.absent_reading(pid, presence(pid, error)),
        };
        let is_new = self.start_ticks != Some(stat.start_ticks);
        if is_new {
            // Another process with this pid: forget everything about the old one.
            let file = self.stat_file.take();
            let Self { listed_sample, gpu_sample, facts_read_at, stat_read_at, sm_percent, .. } = *self;
            let start_ticks = Some(stat.start_ticks);
            *self = Self {
                listed_sample,
                gpu_sample,
                facts_read_at,
                stat_read_at,
                sm_percent,
                stat_file: file,
                start_ticks,
                cpu_nanoseconds,
                ..Self::default()
            };
        }
        let fields = StatFields {
            state: stat.state,
            parent: stat.parent,
            threads: stat.threads,
            start_ticks: stat.start_ticks,
            rss_pages: stat.rss_pages,
        };
        self.stat_fields = Some((fields, cpu_nanoseconds));
        let cpu_seconds = cpu_nanoseconds
            .map_or(stat.cpu_ticks as f64 / TICKS_PER_SECOND, |cpu_nanoseconds| cpu_nanoseconds as f64 / 1e9);
        let started = stat.start_ticks as f64 / TICKS_PER_SECOND;
        let renamed = self.facts.name.as_ref().is_none_or(|name| name.as_bytes() != stat.name);
        let parent_changed = self.parent != stat.parent;
        if is_new {
            self.facts.pid = pid;
            self.facts.start_ticks = Some(stat.start_ticks);
            self.facts.start_unix_seconds = context.boot_unix_seconds.map(|boot| boot + started as i64);
            self.facts.session = (stat.session > 0).then_some(stat.session);
        }
        if is_new || renamed {
            let name = SafeText::from_bytes(stat.name);
            self.unsent |= self.facts.name.as_ref() != Some(&name);
            self.facts.name = Some(name);
        }
        self.parent = stat.parent;
        let is_alive = stat.state != ProcessState::Zombie;
        self.collect_results(plan, reader);
        // A zombie has neither memory nor command line. A process that has just called exec has no arguments yet.
        let has_run = cpu_nanoseconds.is_none() || self.facts_cpu_clock != cpu_nanoseconds;
        let refresh_facts =
            is_new || renamed || parent_changed || (plan.refresh_facts && has_run) || self.facts.argv.is_empty();
        if is_alive && self.awaits_lineage(context) {
            // The read in the background has not returned.
            self.read_lineage_now(pid, reader);
        }
        if is_alive && refresh_facts {
            self.refresh_facts(plan, is_new, (renamed, parent_changed), reader);
            self.start_reads(pid, &background.pool);
            self.facts_cpu_clock = cpu_nanoseconds;
        }
        if self.is_own && (refresh_facts || plan.refresh_stat) {
            let thread = self.blocked_thread.or(self.is_idle().then_some(pid));
            let has_run = is_alive && (cpu_nanoseconds.is_none() || self.io_cpu_clock != cpu_nanoseconds);
            self.own_details.read_activity(pid, has_run, thread, context, reader);
            self.sockets_due |= has_run || (is_alive && self.sockets.is_server());
            self.io_cpu_clock = cpu_nanoseconds;
        }
        if is_alive && !context.is_starting {
            self.start_sockets(pid, context.now, background);
        }
        self.update_reading(plan, fields, cpu_seconds)
    }

    /// Updates the CPU percentage and returns the reading of a visible process.
    fn update_reading(&mut self, plan: RefreshPlan, fields: StatFields, cpu_seconds: f64) -> ProcessReading {
        let RefreshPlan { pid, context, .. } = plan;
        let cpu_gain = self.cpu.map(|(seconds, _)| cpu_seconds - seconds);
        self.cpu_percent = self.cpu.zip(cpu_gain).and_then(|((_, then), cpu_gain)| {
            (context.now > then && cpu_gain >= 0.0).then(|| round_to_tenth_f32(100.0 * cpu_gain / (context.now - then)))
        });
        self.cpu_is_idle = cpu_gain.is_some_and(|cpu_gain| (0.0..IDLE_CPU_SECONDS).contains(&cpu_gain));
        self.cpu = Some((cpu_seconds, context.now));
        (self.state, self.thread_count) = (Some(fields.state), fields.threads);
        if !self.is_multithreaded() {
            self.threads.record_single(pid, fields.state, (cpu_seconds * TICKS_PER_SECOND) as u64, context.now);
        }
        self.build_reading(plan, fields)
    }

    /// Builds the reading from the last values.
    fn build_reading(&self, plan: RefreshPlan, fields: StatFields) -> ProcessReading {
        let RefreshPlan { pid, context, page_bytes, .. } = plan;
        let started = fields.start_ticks as f64 / TICKS_PER_SECOND;
        ProcessReading {
            pid: Some(pid),
            start_ticks: Some(fields.start_ticks),
            presence: Some(Presence::Visible),
            state: Some(fields.state),
            cpu_percent: self.cpu_percent,
            cpu_seconds: self.cpu.map(|(seconds, _)| round_to_hundredth(seconds)),
            rss_bytes: Some(fields.rss_pages.saturating_mul(page_bytes)),
            threads: Some(fields.threads),
            parent_pid: Some(fields.parent),
            age_seconds: context.uptime_seconds.map(|uptime| round_to_tenth((uptime - started).max(0.0))),
            ..ProcessReading::default()
        }
    }

    /// Starts a read of its sockets if one is due. It needs the ancestors, which may answer its clients.
    pub(super) fn start_sockets(&mut self, pid: u32, now: f64, background: &BackgroundReads) {
        if self.sockets_due && self.lineage_is_known && self.is_own {
            self.sockets_due = false;
            let front_end = self.facts.ancestors.iter().filter(|ancestor| !is_root_process(ancestor));
            let front_end = front_end.map(|ancestor| ancestor.pid);
            self.sockets.start(pid, front_end, now, &background.socket_tables, &background.pool);
        }
    }

    /// Whether its ancestors are not known although a read of them was started in an earlier sample.
    fn awaits_lineage(&self, context: SampleContext) -> bool {
        let is_alive = self.state.is_some_and(|state| state != ProcessState::Zombie);
        !self.lineage_is_known && is_alive && context.now > self.lineage_due_at
    }

    /// Whether a thread may hang unnoticed: the leader neither runs nor sleeps normally, or the process gains no CPU
    /// time and does no GPU work.
    pub(super) fn is_idle(&self) -> bool {
        match self.state {
            Some(ProcessState::Running | ProcessState::Sleeping) => {
                self.cpu_is_idle && self.sm_percent.is_none_or(|share| share == 0)
            }
            state => state.is_some(),
        }
    }

    /// Whether it has threads besides the one that `stat` describes.
    pub(super) fn is_multithreaded(&self) -> bool {
        self.state.is_some() && self.thread_count > 1
    }

    pub(super) fn follow_blocked_threads(&mut self, pid: u32, now: f64, budget: &mut usize, reader: &mut FileReader) {
        if self.is_multithreaded() {
            self.threads.follow_blocked(pid, now, budget, reader);
        }
    }

    /// Adds the thread counts and the owner-only values to a reading.
    pub(super) fn fill_reading(&mut self, pid: u32, now: f64, reading: &mut ProcessReading, reader: &mut FileReader) {
        if self.state.is_none() {
            return;
        }
        let is_idle = self.is_idle();
        if let Some(count) = self.threads.last_count() {
            reading.threads_live = is_idle.then_some(count.live);
            reading.threads_blocked = (is_idle || count.blocked > 0).then_some(count.blocked);
        }
        let blocked = self.threads.longest_blocked();
        reading.blocked_thread = blocked.map(|(thread, _)| thread);
        reading.blocked_seconds = blocked.map(|(_, since)| round_to_tenth_f32(now - since));
        if self.is_own {
            let thread = reading.blocked_thread;
            // Read the wait channel as soon as a thread blocks.
            if thread != self.blocked_thread
                && let Some(thread) = thread
            {
                self.own_details.read_wait_channel(pid, thread, reader);
            }
            self.blocked_thread = thread;
            self.own_details.fill_reading(is_idle || thread.is_some(), reading);
            reading.established_connections = self.sockets.connections();
            if let Some((count, seconds)) = self.sockets.waiting(now) {
                reading.waiting_clients = Some(count);
                reading.longest_wait_seconds = (count > 0).then(|| round_to_tenth(seconds));
            }
        }
    }

    /// Reads `/proc/PID/stat` through the open file, or opens it.
    fn read_stat<'a>(&mut self, pid: u32, reader: &'a mut FileReader) -> Result<&'a [u8], Errno> {
        const LIMIT: usize = 2048;
        // The borrow of a successful read would last until after the retry, so the file is read through `last_read`.
        if let Some(file) = self.stat_file.take()
            && reader.read_fd(&file, LIMIT).is_ok_and(|line| !line.is_empty())
        {
            self.stat_file = Some(file);
            return Ok(reader.last_read());
        }
        let file = reader.open_process(pid, "stat")?;
        let line = reader.read_fd(&file, LIMIT)?;
        self.stat_file = Some(file);
        Ok(line)
    }

    /// Returns the reading of a process that /proc does not show. Its facts stay: a process that has exited but still
    /// holds GPU memory should keep its name.
    fn absent_reading(&mut self, pid: u32, presence: Presence) -> ProcessReading {
        (self.stat_file, self.cpu, self.state, self.stat_fields) = (None, None, None, None);
        ProcessReading {
            pid: Some(pid),
            start_ticks: self.start_ticks,
            presence: Some(presence),
            ..ProcessReading::default()
        }
    }

    /// Refreshes the owner-only facts; of a new process and on request, also the user and the lineage.
    fn refresh_facts(
        &mut self,
        plan: RefreshPlan,
        is_new: bool,
        (renamed, parent_changed): (bool, bool),
        reader: &mut FileReader,
    ) {
        let pid = plan.pid;
        if is_new || renamed || parent_changed {
            self.read_status(plan, reader);
            // A read in progress may be of the command line before exec.
            self.command_read = None;
        }
        let parent_changed = parent_changed || (!is_new && self.has_lost_grandparent(reader));
        if is_new || parent_changed {
            // A read in progress is of the previous ancestors.
            (self.lineage_read, self.lineage_due, self.lineage_is_known) = (None, true, false);
            self.lineage_due_at = plan.context.now;
            // A new parent shows with the reading of the same sample. A new process gets its ancestors with its command line.
            if !is_new {
                self.read_lineage_now(pid, reader);
            }
        }
        if self.is_own {
            self.unsent |= self.own_details.refresh(pid, plan.context, &mut self.facts, reader);
        }
    }

    /// Whether the parent has a new parent: the program that started it has ended.
    fn has_lost_grandparent(&self, reader: &mut FileReader) -> bool {
        let [parent, above, ..] = self.facts.ancestors.as_slice() else { return false };
        let stat = reader.read_process(parent.pid, "stat", 1024).ok().and_then(Stat::parse);
        stat.is_some_and(|stat| stat.parent != above.pid)
    }

    fn read_status(&mut self, plan: RefreshPlan, reader: &mut FileReader) {
        let (uid, ignores_hangup) = status_of(reader, plan.pid);
        if uid.is_some() && uid != self.facts.uid {
            self.facts.uid = uid;
            self.facts.user = None;
            self.facts.full_name = None;
            self.unsent = true;
        }
        self.unsent |= ignores_hangup != self.facts.ignores_hangup;
        self.facts.ignores_hangup = ignores_hangup;
        self.is_own = uid.is_some_and(|uid| uid == plan.own_uid || plan.own_uid == 0);
    }

    /// Sends all facts again, and the command lines of the ancestors once they are read again: these are otherwise read
    /// once.
    pub(super) fn mark_all_unsent(&mut self) {
        self.unsent = self.start_ticks.is_some();
        self.lineage_due |= !self.facts.ancestors.is_empty() && self.lineage_read.is_none();
    }

    /// Whether the command line is being read for the first time.
    pub(super) fn awaits_first_command(&self) -> bool {
        self.fingerprint == 0 && self.command_read.is_some()
    }

    /// Whether the first command line has been read and not yet collected.
    pub(super) fn has_first_command(&self) -> bool {
        self.fingerprint == 0 && self.command_read.as_ref().is_some_and(Pending::is_ready)
    }

    /// Starts background reads of the command line and, if they are due, of the ancestors' command lines.
    fn start_reads(&mut self, pid: u32, pool: &BlockingPool) {
        let (parent, fingerprint) = (self.parent, self.fingerprint);
        if self.command_read.is_none() {
            self.command_read = pool.run(move || CommandLine::read_new(pid, fingerprint));
        }
        if self.lineage_due {
            self.lineage_read = pool.run(move || Lineage::read(&mut FileReader::default(), pid, parent, true));
            self.lineage_due = self.lineage_read.is_none();
        }
    }

    /// Collects the results of background reads.
    fn collect_results(&mut self, plan: RefreshPlan, reader: &mut FileReader) {
        if let Some(command) = Pending::take(&mut self.command_read).flatten() {
            (self.facts.argv, self.fingerprint) = (command.argv, command.fingerprint);
            // A setuid program changes the user.
            self.read_status(plan, reader);
            self.mark_facts_changed();
        }
        self.unsent |= self.sockets.collect(&mut self.facts);
        let lineage = Pending::take(&mut self.lineage_read);
        if let Some(lineage) = lineage {
            self.set_lineage(lineage);
        }
    }

    /// The id of the Slurm job of the process.
    pub(super) fn slurm_job(&self) -> Option<&SafeText> {
        match &self.facts.owner {
            Some(Owner::Slurm { job, .. }) => Some(job),
            _ => None,
        }
    }

    /// Reads the ancestors without their command lines, so that the read cannot block.
    fn read_lineage_now(&mut self, pid: u32, reader: &mut FileReader) {
        let lineage = Lineage::read(reader, pid, self.parent, false);
        self.set_lineage(lineage);
    }

    fn set_lineage(&mut self, lineage: Lineage) {
        (self.facts.ancestors, self.outer_ancestors) = (lineage.ancestors, lineage.outer_ancestors);
        self.lineage_is_known = true;
        let is_known = matches!(self.facts.owner, Some(Owner::Slurm { .. }))
            && matches!(&lineage.owner, Some(Owner::Slurm { job, .. }) if is_sluid(job));
        // A job id is better than its SLUID.
        if !is_known && self.facts.owner != lineage.owner {
            (self.facts.owner, self.facts.container_name) = (lineage.owner, None);
        }
        self.mark_facts_changed();
    }

    fn mark_facts_changed(&mut self) {
        self.facts.runs_in = runs_in(&self.facts.argv, &self.facts.ancestors, &self.outer_ancestors);
        self.unsent = true;
    }

    /// Sets the name of its container or the id of its job once a source knows it.
    pub(super) fn resolve_owner_name(&mut self, external: &mut ExternalSources) {
        let ProcessFacts { pid, uid, owner: Some(owner), container_name, .. } = &mut self.facts else { return };
        if let Owner::Slurm { job, .. } = owner {
            if self.lineage_read.is_some() && self.job_id_waits < MAX_JOB_ID_WAITS {
                self.job_id_waits += 1;
            } else if is_sluid(job)
                && let Some(number) = external.job_id(job, *pid, *uid)
            {
                *job = number;
                self.unsent = true;
            }
        } else if container_name.is_none() {
            *container_name = external.container_name(owner, self.is_own);
            self.unsent |= container_name.is_some();
        }
    }

    pub(super) fn resolve_user_name(&mut self, users: &mut UserNames) {
        let Some(name) = self.facts.uid.and_then(|uid| users.name(uid)) else { return };
        if self.facts.user.as_ref() != Some(&name.login) {
            self.facts.user = Some(name.login);
            self.facts.full_name = name.full_name;
            self.unsent = true;
        }
    }
}

/// Returns why /proc does not show a process: it has exited, or it is hidden (`hidepid`, another pid namespace).
pub(super) fn presence(pid: u32, error: Errno) -> Presence {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 0).and_then(Pid::from_raw);
    match pid.map(test_kill_process) {
        Some(Err(Errno::SRCH)) | None => Presence::Gone,
        // It has exited in between and is not yet reaped.
        Some(Ok(())) if error == Errno::SRCH => Presence::Gone,
        Some(_) => Presence::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::Stdio;

    #[test]
    fn a_sluid_is_replaced_by_the_job_id() {
        let mut external = ExternalSources::with_job("s5K1KKYAYG5D00", "3385");
        let owner = |job: &str| Some(Owner::Slurm { job: job.into(), step: Some("0".into()) });
        for (job, expected) in [("s5K1KKYAYG5D00", "3385"), ("s5K1KKYAYG5D01", "s5K1KKYAYG5D01"), ("77", "77")] {
            let facts = ProcessFacts { pid: 7, owner: owner(job), ..ProcessFacts::default() };
            let mut tracked = TrackedProcess { facts, ..TrackedProcess::default() };
            tracked.resolve_owner_name(&mut external);
            assert_eq!((tracked.facts.owner, tracked.unsent), (owner(expected), job != expected), "{job}");
        }
    }

    #[test]
    fn io_of_a_sleeping_process_is_read_when_due() {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo; read one; read two"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let (pid, own_uid) = (child.id(), rustix::process::getuid().as_raw());
        let (mut tracked, mut reader) = (TrackedProcess::default(), FileReader::default());
        let background = BackgroundReads::new();
        // Returns its `rchar`, and its CPU clock if `stat` is as of that clock.
        let mut read = |now: f64, refresh_stat: bool| {
            let context = SampleContext { now, ..SampleContext::default() };
            let plan = RefreshPlan {
                pid,
                context,
                page_bytes: 4096,
                read_cpu_clock: true,
                refresh_facts: false,
                refresh_stat,
                own_uid,
            };
            let mut reading = tracked.read(plan, &background, &mut reader);
            tracked.fill_reading(pid, now, &mut reading, &mut reader);
            let cpu_nanoseconds = tracked
                .stat_fields
                .and_then(|(_, cpu_nanoseconds)| cpu_nanoseconds)
                .filter(|&cpu_nanoseconds| tracked.cpu_nanoseconds == Some(cpu_nanoseconds));
            (reading.read_characters.unwrap(), cpu_nanoseconds)
        };
        // A background read that ends later would refresh `stat`.
        read(0.5, true);
        background.pool.wait_until_idle(std::time::Instant::now() + std::time::Duration::from_secs(30));
        // The kernel updates the CPU clock when the process falls asleep.
        let (before, cpu_nanoseconds) = (1..1_000_000).map(|now| read(f64::from(now), true)).nth(100).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"so many words\n").unwrap();
        // `stat` is read once the process sleeps again, before its refresh is due.
        let slept = |(_, now): (u64, Option<u64>)| now.is_some() && now != cpu_nanoseconds;
        assert!((1_000_000..9_000_000).any(|now| slept(read(f64::from(now), false))));
        assert_eq!(read(1e7, false).0, before);
        assert_eq!(read(2e7, true).0, before + 14);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_existing_process_without_proc_entry_is_hidden() {
        assert_eq!(presence(std::process::id(), Errno::NOENT), Presence::Hidden);
        assert_eq!(presence(std::process::id(), Errno::SRCH), Presence::Gone);
    }
}
