//! Jobs that have ended, and programs that end again and again.

use super::process_kind::{is_entry_of_service, is_model_server, is_supervised};
use super::track::{GpuTrack, ProcessTrack, gpu_positions, group_by_job, push_bounded};
use crate::config::Thresholds;
use crate::fleet::{Host, JobKey, program_name};
use crate::wire::redact::REDACTED;
use crate::wire::{Owner, ProcessFacts, RERUN_SECONDS, SafeText};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The number of short runs of one program, of about the same length, that are reported.
const REPEATS: u32 = 4;
/// They lie within this time in seconds, or within this many times their length: a probe of an orchestrator may end a program
/// 20 min after each start.
const REPEAT_WINDOW: f64 = 1800.0;
const REPEAT_LENGTHS: f64 = 6.0;
/// A program that something starts again fails if it runs for at most this long, in seconds, or for the same time in each run: the
/// longest run divided by the shortest one is at most this much.
const RESTARTED_SECONDS: f64 = 420.0;
const SAME_LENGTH: f64 = 1.05;
/// A container that ends later is not one that fails soon after its start, in seconds.
const LONGEST_RESTARTED: f64 = 1800.0;
/// As [`REPEATS`], for such a program: from this number on it warns.
pub(super) const RESTARTED_REPEATS: u32 = 5;
/// Docker waits up to a minute until it starts a container again; this and the start of the program, in seconds.
const RESTART_GAP: f64 = 90.0;
/// The ends of short runs are forgotten after this time, in seconds.
const REPEAT_REACH: f64 = 10_800.0;

/// Who runs a program again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// A person or a script, as far as is known.
    Unknown,
    /// A script that works through a list: the GPUs worked while the program ran alone.
    Series,
    /// An orchestrator, a service manager or a container engine, which starts it again when it ends.
    Restarted,
}

/// The state of the GPUs of a process at its end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastState {
    /// They were full, in part by another job.
    is_crowded: bool,
    /// They had worked while it ran.
    has_worked: bool,
    /// They rested all the time, and Slurm had started it: the task failed before it could compute.
    is_unused_task: bool,
}

/// A job, or the part of a job on this host, that has ended.
#[derive(Debug, Clone)]
pub(crate) struct EndedJob {
    pub(crate) job: JobKey,
    /// The job ended between `last_seen` and `missed_at`.
    pub(crate) last_seen: f64,
    pub(crate) missed_at: f64,
    /// See [`ProcessTrack::describe`].
    pub(crate) label: String,
    pub(crate) user: Option<SafeText>,
    pub(crate) is_mine: bool,
    /// How long the job ran, in seconds.
    pub(crate) age: Option<f64>,
    pub(crate) most_memory: u64,
    pub(crate) positions: Vec<usize>,
    pub(crate) log_path: Option<SafeText>,
    pub(crate) by_reboot: bool,
    /// When its end was noticed, or the reboot that ended it.
    pub(crate) noticed_at: f64,
    /// How many processes it had on this host.
    pub(crate) processes: usize,
    /// Its GPUs had worked while it ran.
    pub(crate) has_worked: bool,
    /// How often the program has ended in a row after runs of about the same length; 0 if it does not start again and again.
    pub(crate) repeats: u32,
    pub(crate) runs: Runs,
}

/// The end of a program that ran for a short time.
#[derive(Debug, Clone)]
struct ShortRun {
    at: f64,
    user: SafeText,
    command: SafeText,
    job: JobKey,
    /// How long it ran, in seconds.
    seconds: f64,
    /// Its GPU was full, in part by another job: it may have ended for lack of memory.
    is_crowded_out: bool,
    /// See [`LastState`].
    is_unused_task: bool,
}

impl LastState {
    /// The state of a process that ended before `t`, one of `all`.
    pub(super) fn of<'a>(
        process: &ProcessTrack,
        all: impl Iterator<Item = &'a ProcessTrack>,
        gpus: &[GpuTrack],
        t: f64,
    ) -> Self {
        Self {
            is_crowded: is_crowded(process, all, gpus),
            has_worked: has_worked(process, gpus, t),
            is_unused_task: is_unused_task(process, gpus, t),
        }
    }
}

/// How often a program ended after runs of about the same length.
#[derive(Debug, Clone, Copy, Default)]
struct Repeats {
    count: u32,
    /// Those within the last half hour.
    recent: u32,
    /// Those after each of which the next one began at once.
    at_once: u32,
    /// They were short, or all of the same length.
    is_failure: bool,
}

/// A program that has left its GPUs.
#[derive(Debug, Clone)]
pub(crate) struct LeftProgram {
    uid: u32,
    words: Words,
    pub(crate) positions: Vec<usize>,
    /// When it was last seen there.
    pub(crate) at: f64,
    /// How long after its start it was first seen on a GPU, in seconds.
    pub(crate) began_after: f64,
    /// The runs since then that ended before they used a GPU.
    failed_runs: u32,
    /// After several such runs it used a GPU again by itself: it looks for work now and then.
    is_poller: bool,
}

/// Hashes of command lines, which may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Words {
    /// See [`ProcessFacts::program_and_script`].
    program: u64,
    /// The same, and the words up to the next option without numbers: `main.py train`, `nnUNetv2_train 3d_fullres`.
    work: u64,
    command: u64,
}

impl Words {
    /// `None` if the arguments are not known, or may not be known to this viewer.
    fn of(facts: &ProcessFacts) -> Option<Self> {
        let argv = facts.argv.as_slice();
        if argv.is_empty() || argv.iter().any(|argument| *argument == *REDACTED) {
            return None;
        }
        let program = facts.program_and_script().len();
        let is_number = |argument: &&SafeText| argument.parse::<f64>().is_ok();
        let work = argv[program..].iter().take_while(|argument| !argument.starts_with('-'));
        let work: Vec<&SafeText> = work.filter(|argument| !is_number(argument)).collect();
        let program = &argv[..program];
        Some(Self { program: hash(program), work: hash(&(program, work)), command: hash(argv) })
    }
}

fn hash(words: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    hasher.finish()
}

impl LeftProgram {
    /// The program of these processes of a job, all of them on GPUs.
    fn of(members: &[&ProcessTrack]) -> Option<Self> {
        let facts = members.first()?.info.facts.as_ref()?;
        let began_after = |process: &&ProcessTrack| Some(process.first_seen - (process.last_seen - process.age?));
        Some(Self {
            uid: facts.uid?,
            words: Words::of(facts)?,
            positions: gpu_positions(members),
            at: members.iter().map(|process| process.last_seen).fold(f64::NEG_INFINITY, f64::max),
            began_after: members.iter().filter_map(began_after).reduce(f64::min)?,
            failed_runs: 0,
            is_poller: false,
        })
    }

    /// Whether this process is a run of the program.
    pub(crate) fn is_run(&self, process: &ProcessTrack) -> bool {
        self.words_of_run(process).is_some()
    }

    /// Whether this run of the program does the same work, perhaps with other options.
    pub(crate) fn is_same_work(&self, process: &ProcessTrack) -> bool {
        self.words_of_run(process).is_some_and(|words| words.work == self.words.work)
    }

    /// Whether the command line of this run is the same.
    pub(crate) fn is_same_command(&self, process: &ProcessTrack) -> bool {
        self.words_of_run(process).is_some_and(|words| words.command == self.words.command)
    }

    fn words_of_run(&self, process: &ProcessTrack) -> Option<Words> {
        let facts = process.info.facts.as_ref().filter(|facts| facts.uid == Some(self.uid))?;
        Words::of(facts).filter(|words| words.program == self.words.program)
    }
}

/// The jobs that have ended on a host.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobEnds {
    /// The programs that have left their GPUs. The most recent one is the last.
    left: VecDeque<LeftProgram>,
    /// The most recent one is the last.
    pub(crate) ended: VecDeque<EndedJob>,
    /// The ends of programs that ran for a short time.
    short_runs: VecDeque<ShortRun>,
}

impl JobEnds {
    /// Records the jobs of these processes as ended if they held enough memory for long enough.
    pub(super) fn record<'a>(
        &mut self,
        processes: impl Iterator<Item = &'a ProcessTrack>,
        host: &Host,
        limits: &Thresholds,
        t: f64,
        by_reboot: bool,
        last_state: &dyn Fn(&ProcessTrack) -> LastState,
    ) {
        let login = host.hello.as_ref().and_then(|hello| hello.login_uid);
        for (job, members) in group_by_job(processes) {
            if members.iter().all(|member| !member.positions.is_empty()) {
                self.remember(&members);
            } else if self.note_failed_run(&members) {
                continue;
            }
            let held = members.iter().filter_map(|process| {
                let observed = process.last_seen - process.held_since?;
                // A process that held its memory when it was first seen held it for its whole age.
                let age = process.age.filter(|_| process.held_since.is_some_and(|at| at <= process.first_seen));
                Some(age.unwrap_or(0.0).max(observed))
            });
            let Some(first) = members.first() else { continue };
            let is_short = held.fold(0.0, f64::max) < limits.job_ended.held_for;
            let is_repeat = is_short && !by_reboot;
            let last = last_state(first);
            let repeats = if is_repeat { self.repeats(first, last, t) } else { Repeats::default() };
            if is_short && repeats.count < REPEATS {
                continue;
            }
            let is_restarted = |facts: &ProcessFacts| {
                let by_orchestrator =
                    starts_again(facts) && (is_model_server(facts) || repeats.recent >= RESTARTED_REPEATS);
                let is_entry = is_entry_of_container(facts) || is_entry_of_service(facts);
                repeats.is_failure && (by_orchestrator || (is_entry && repeats.at_once >= RESTARTED_REPEATS))
            };
            let ended = EndedJob {
                job: job.clone(),
                last_seen: members.iter().map(|process| process.last_seen).fold(f64::NEG_INFINITY, f64::max),
                missed_at: t,
                label: first.describe(members.len(), Some(job)),
                user: Some(first.info.who.clone()),
                is_mine: first.belongs_to(login),
                age: members.iter().filter_map(|process| process.age).reduce(f64::max),
                most_memory: members.iter().map(|process| process.most_memory).fold(0, u64::saturating_add),
                positions: gpu_positions(&members),
                log_path: first.log_path(),
                by_reboot,
                noticed_at: t,
                processes: members.len(),
                has_worked: last.has_worked,
                repeats: if repeats.count >= REPEATS { repeats.count } else { 0 },
                runs: match first.info.facts.as_ref() {
                    Some(facts) if is_restarted(facts) => Runs::Restarted,
                    _ if members.len() == 1 && last.has_worked => Runs::Series,
                    _ => Runs::Unknown,
                },
            };
            push_bounded(&mut self.ended, ended);
        }
    }

    /// Counts the jobs that ended after `since` as ended by a reboot: a host that shuts down ends its programs before it is
    /// unreachable. Slurm reboots a node after its last job (scontrol(1), `reboot ASAP`), and tells how its jobs ended. Returns the
    /// number of processes, and whether one of these jobs was at work.
    pub(super) fn note_shutdown(&mut self, since: f64, t: f64) -> (usize, bool) {
        let (mut count, mut has_ended_work) = (0, false);
        let is_ended_by_it = |ended: &&mut EndedJob| {
            ended.missed_at >= since && ended.repeats == 0 && !matches!(ended.job, JobKey::Slurm { .. })
        };
        for ended in self.ended.iter_mut().filter(is_ended_by_it) {
            (ended.by_reboot, ended.noticed_at) = (true, t);
            count += ended.processes;
            has_ended_work |= ended.has_worked;
        }
        (count, has_ended_work)
    }

    /// Remembers the program of processes that have left their GPUs.
    fn remember(&mut self, members: &[&ProcessTrack]) {
        let Some(mut left) = LeftProgram::of(members) else { return };
        if let Some(index) = self.left.iter().position(|known| members.iter().all(|member| known.is_run(member))) {
            let known = self.left.remove(index);
            left.is_poller = known.is_some_and(|known| known.is_poller || known.failed_runs >= REPEATS);
        }
        push_bounded(&mut self.left, left);
    }

    /// Notes that a run of a program ended before it used a GPU. Returns whether that is usual.
    fn note_failed_run(&mut self, members: &[&ProcessTrack]) -> bool {
        let is_run = |left: &&mut LeftProgram| members.iter().any(|member| left.is_run(member));
        let Some(left) = self.left.iter_mut().rev().find(is_run) else { return false };
        left.failed_runs += 1;
        left.is_poller
    }

    /// The program that left its GPUs not long before this process began, which is another run of it.
    pub(crate) fn left_by(&self, process: &ProcessTrack) -> Option<&LeftProgram> {
        let is_recent = |left: &LeftProgram| process.first_seen - left.at <= RERUN_SECONDS;
        self.left.iter().rev().find(|left| is_recent(left) && left.is_run(process))
    }

    /// Notes the end of a short run, and counts the runs of about the same length that the same program of the same
    /// user has had lately: a person who tries a script changes it in between. The runs of a sweep
    /// and the tasks of an array differ in their arguments; they count if each ended beside another job on a full GPU, or if Slurm
    /// started each and none computed on its GPU.
    fn repeats(&mut self, process: &ProcessTrack, state: LastState, t: f64) -> Repeats {
        let seconds = process.age.unwrap_or(t - process.first_seen);
        let (user, command) = (process.info.who.clone(), process.info.command.clone());
        self.short_runs.retain(|run| t - run.at <= REPEAT_REACH);
        let LastState { is_crowded: is_crowded_out, is_unused_task, .. } = state;
        let job = process.info.job.clone();
        let last = ShortRun { at: t, user, command, job, seconds, is_crowded_out, is_unused_task };
        push_bounded(&mut self.short_runs, last.clone());
        // An orchestrator waits longer after each end, up to some minutes.
        let facts = process.info.facts.as_ref();
        let window = if facts.is_some_and(is_pod) { REPEAT_REACH } else { REPEAT_WINDOW.max(REPEAT_LENGTHS * seconds) };
        let is_same = |run: &&ShortRun| {
            // A script may call a program for each of many files. The tasks of an array are jobs.
            let is_other_task = run.is_unused_task && is_unused_task && run.job != last.job;
            let is_alike = (run.is_crowded_out && is_crowded_out) || is_other_task;
            let is_sweep = || is_alike && program_name(&run.command) == program_name(&last.command);
            t - run.at <= window && run.user == last.user && (run.command == last.command || is_sweep())
        };
        // Runs that overlap are ranks of one job, or jobs side by side.
        let mut began = f64::INFINITY;
        let mut lengths: Vec<f64> = Vec::new();
        let (mut recent, mut at_once) = (0, 0);
        for run in self.short_runs.iter().rev().filter(is_same) {
            if run.at <= began + 1.0 {
                let is_in_a_row = at_once as usize == lengths.len();
                at_once += u32::from(is_in_a_row && (began.is_infinite() || began - run.at <= RESTART_GAP));
                began = run.at - run.seconds;
                lengths.push(run.seconds);
                recent += u32::from(t - run.at <= REPEAT_WINDOW);
            }
        }
        let (least, most) = lengths
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(least, most), length| (least.min(*length), most.max(*length)));
        // Nobody changes a program that is started again at once. In a container, somebody may try something.
        let is_restarted = most <= RESTARTED_SECONDS && facts.is_some_and(starts_again);
        if is_restarted || most <= 1.5 * least + 10.0 {
            let is_failure = most <= RESTARTED_SECONDS || most <= SAME_LENGTH * least;
            Repeats { count: lengths.len() as u32, recent, at_once, is_failure }
        } else {
            Repeats::default()
        }
    }
}

fn is_pod(facts: &ProcessFacts) -> bool {
    matches!(facts.owner, Some(Owner::Pod { .. }))
}

/// Whether something starts this program again when it ends: an orchestrator its pods, and a service manager or a container engine
/// a model server.
fn starts_again(facts: &ProcessFacts) -> bool {
    is_pod(facts) || (is_supervised(facts) && is_model_server(facts))
}

/// Whether a container engine starts this program with its container, and again if the restart policy of the container says so.
/// Below a shell, it may be a person who tries something.
fn is_entry_of_container(facts: &ProcessFacts) -> bool {
    const RUNTIMES: [&str; 5] = ["containerd-shim", "conmon", "docker-init", "tini", "dumb-init"];
    matches!(facts.owner, Some(Owner::Container { .. }))
        && facts.ancestors.first().is_some_and(|parent| RUNTIMES.contains(&&*parent.name))
}

/// Whether a process that is new at `t` is the next run of a container that ended soon: the engine has started it again at once.
pub(super) fn is_restart(old: &ProcessTrack, new: &ProcessTrack, t: f64) -> bool {
    let is_entry = |track: &ProcessTrack| track.info.facts.as_ref().is_some_and(is_entry_of_container);
    let is_short = old.age.is_some_and(|age| age <= LONGEST_RESTARTED);
    is_short && new.first_seen >= t && is_entry(new) && is_entry(old)
}

/// The mean utilisation in percent of the GPUs of a process over its life from which it has worked.
const WORKED_PERCENT: f32 = 20.0;

/// Whether the GPUs of a process have worked while it ran.
fn has_worked(process: &ProcessTrack, gpus: &[GpuTrack], t: f64) -> bool {
    let seconds = process.age.unwrap_or(t - process.first_seen);
    let mean = |position: &usize| gpus.get(*position)?.window.stats(t - seconds).mean_utilization;
    let means: Vec<f32> = process.positions.iter().filter_map(mean).collect();
    !means.is_empty() && means.iter().all(|percent| *percent >= WORKED_PERCENT)
}

/// The utilisation in percent at most of the GPUs of a process that has computed nothing, and how long it ran at most, in seconds.
const UNUSED_PERCENT: u8 = 1;
const UNUSED_SECONDS: f64 = 180.0;

/// Whether Slurm started a process that ended soon and computed nothing on its GPUs.
fn is_unused_task(process: &ProcessTrack, gpus: &[GpuTrack], t: f64) -> bool {
    let seconds = process.age.unwrap_or(t - process.first_seen);
    let rested = |position: &usize| {
        let stats = gpus.get(*position).map(|gpu| gpu.window.stats(t - seconds));
        stats.and_then(|stats| stats.most_utilization).is_some_and(|percent| percent <= UNUSED_PERCENT)
    };
    let is_task = process.info.facts.as_ref().is_some_and(|facts| matches!(facts.owner, Some(Owner::Slurm { .. })));
    is_task && seconds <= UNUSED_SECONDS && !process.positions.is_empty() && process.positions.iter().all(rested)
}

/// The memory that processes hold on a full GPU and that of other jobs there, as shares of its memory, at least.
const FULL_SHARE: f64 = 0.9;
const CROWDED_SHARE: f64 = 0.2;

/// Whether the only GPU of a process is full, in part by other jobs among these processes.
fn is_crowded<'a>(process: &ProcessTrack, all: impl Iterator<Item = &'a ProcessTrack>, gpus: &[GpuTrack]) -> bool {
    let [position] = process.positions[..] else { return false };
    let Some(total) = gpus.get(position).and_then(|gpu| gpu.total_bytes) else { return false };
    let (mut held, mut by_others) = (0.0, 0.0);
    for other in all.filter(|other| other.positions == [position]) {
        let bytes = other.memory_bytes.unwrap_or(0) as f64;
        held += bytes;
        by_others += if other.info.job == process.info.job { 0.0 } else { bytes };
    }
    held >= FULL_SHARE * total as f64 && by_others >= CROWDED_SHARE * total as f64
}
