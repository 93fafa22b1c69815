//! The state kept for one process.

use super::leak::{FAST, Leak};
use crate::diagnosis::condition::Run;
use crate::fleet::{JobKey, Process, ProcessInfo, ProcessKey, program_name};
use crate::wire::{Owner, Presence, ProcessFacts, ProcessState, SafeText};
use std::sync::Arc;

/// The growth of GPU memory that is more than that of a pool.
const GROWTH_BYTES: u64 = 256 << 20;
/// The time constant, in seconds, for smoothing CPU usage: a heartbeat thread that wakes up is not work.
const CPU_SECONDS: f64 = 60.0;
/// A program that goes to the background, or a launcher that ends by plan, does so within this time of its start, in seconds.
const LATE_SECONDS: f64 = 300.0;
/// The growth of written or read bytes that is more than log lines.
const WRITE_BYTES: u64 = 1 << 20;
/// A program that saves or exports reads at most this many times as much as it writes.
const READS_PER_WRITE: u64 = 4;
/// A process is first checked for leaks when it has been observed for this long, in seconds.
const LEAK_AFTER: f64 = (FAST.points as f64 + 2.0) * 60.0;
/// The probe checks a log at least in every tenth sample and repeats its age in between. More repetitions than these mean
/// that it was written exactly once per check.
const MAX_LOG_AGE_REPEATS: u32 = 11;
/// A log counts as growing if its last write is at most this old, in seconds or as a multiple of the usual gap, and as silent
/// beyond the other two values.
const LOG_GROWS: (f64, f64) = (150.0, 3.0);
const LOG_IS_SILENT: (f64, f64) = (300.0, 5.0);
/// The pauses of a log that grows slowly, in seconds.
const SLOW_LOG: std::ops::RangeInclusive<f64> = 60.0..=600.0;
/// The number of writes after which the usual gap is known.
const KNOWN_WRITES: u32 = 5;
/// The mean gap between writes follows the gaps of this many seconds, and is known after the second value.
const PACE_SECONDS: f32 = 3600.0;
const KNOWN_PACE_SECONDS: f32 = 600.0;
/// A log that is written more often than once in this many seconds may become slower unseen between two checks.
const SHORTEST_SEEN_GAP: f32 = 15.0;
/// The share of the samples of a blocked thread that find it in disk sleep, at least, as in the probe.
const BLOCKED_SHARE: f32 = 0.9;
/// The share of a gap that counts if no check fell into it: there may have been many writes.
const UNSEEN_SHARE: f32 = 0.1;
/// A log keeps its pace if its last five gaps are at most this multiple of the usual one.
const SAME_PACE: f32 = 1.15;
const PACE_GAPS: usize = 5;
/// The number of gaps between log writes that are kept.
const GAPS: usize = 31;

/// The state kept for one process, and its current readings.
#[derive(Debug, Clone)]
pub(crate) struct ProcessTrack {
    pub(crate) key: ProcessKey,
    pub(crate) info: Arc<ProcessInfo>,
    /// The job in which it was last grouped.
    pub(crate) grouped_as: Option<JobKey>,
    pub(crate) first_seen: f64,
    pub(crate) last_seen: f64,
    pub(crate) age: Option<f64>,
    pub(crate) state: Option<ProcessState>,
    pub(crate) presence: Option<Presence>,
    /// The readings are those of an earlier sample.
    pub(crate) is_stale: bool,
    /// It has an established connection. False if its connections are not visible.
    pub(crate) is_connected: bool,
    /// Only for servers, if the kernel tells which clients wait for an answer.
    pub(crate) clients: Option<Box<WaitingClients>>,
    /// The positions of its GPUs.
    pub(crate) positions: Vec<usize>,
    pub(crate) memory_bytes: Option<u64>,
    /// Since when the process has held the memory of `job_ended.memory`.
    pub(crate) held_since: Option<f64>,
    pub(crate) most_memory: u64,
    /// When its memory last grew by at least [`GROWTH_BYTES`], and how much it had then.
    pub(crate) memory_grew_at: Option<f64>,
    grown_memory: u64,
    /// The CPU cores used by the process and its descendants, now and smoothed.
    pub(crate) cores: Option<f64>,
    pub(crate) smoothed_cores: Option<f64>,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) descendants: Option<u32>,
    pub(crate) descendants_cpu: Option<f32>,
    pub(crate) descendants_blocked: Option<u32>,
    /// The share of recent samples in which a descendant was in disk sleep.
    pub(crate) descendants_blocked_share: f64,
    /// Whether the process, and whether a descendant, was in disk sleep in the last sample.
    was_blocked: (bool, bool),
    write_bytes: Option<u64>,
    read_characters: Option<u64>,
    /// When the process last started a child, or wrote or read data.
    pub(crate) last_io_at: Option<f64>,
    /// When the process last did work on the host that other ranks may wait for.
    pub(crate) host_work_at: Option<f64>,
    /// When it last wrote, if the bytes that it writes can be seen.
    pub(crate) wrote_at: Option<f64>,
    /// Uninterruptible sleep without a gain of CPU time.
    pub(crate) blocked: Option<Run>,
    pub(crate) blocked_thread: Option<u32>,
    /// The seconds in that sleep, and in total, since the run began.
    blocked_time: (f32, f32),
    blocked_cpu: f64,
    pub(crate) threads_live: Option<u32>,
    pub(crate) parent: Option<u32>,
    origin: Origin,
    /// Whether the process was seen to lose a parent that was not a shell.
    parent_loss: ParentLoss,
    /// Only for the login user's processes that write to a file.
    pub(crate) log: Option<Box<LogTrack>>,
    /// The result of the last leak check.
    pub(crate) leak: Option<Leak>,
    /// When to check for leaks next.
    pub(crate) leak_due: f64,
}

/// The clients that wait for an answer of a server.
#[derive(Debug, Clone)]
pub(crate) struct WaitingClients {
    /// How many wait, or waited before the present pause.
    pub(crate) count: u32,
    /// Their longest wait, in seconds.
    pub(crate) longest: f64,
    /// How long at least one client has waited, but for pauses of up to [`CLIENTS_PAUSE`].
    pub(crate) run: Option<Run>,
    /// How many wait in the last reading.
    now: u32,
    read_at: f64,
    last_waiting_at: f64,
    /// When the last new client was seen, and the one before.
    asked_at: (f64, f64),
    /// When each client asked that came since the number of waiting clients last fell, oldest first.
    unanswered_at: Vec<f64>,
}

/// So many clients at a time are more than subscribers, which connect one by one.
const MANY_NEW_CLIENTS: usize = 4;
/// The maximum number of new clients whose times are kept.
const MAX_NEW_CLIENTS: usize = 64;

/// The longest gap without a waiting client, or without a reading, that does not end a wait, in seconds: clients that give up
/// pause before they try again, and a new probe takes a minute to read them.
const CLIENTS_PAUSE: f64 = 150.0;
/// The maximum age of the number of waiting clients, in seconds: a new client may have asked that long before the reading.
const CLIENTS_AGE: f64 = 90.0;
/// A client that asked at most this long before the GPUs became idle was waiting for their work, in seconds.
const ASKED_AT_THE_END: f64 = 120.0;

impl WaitingClients {
    fn update(clients: &mut Option<Box<Self>>, process: &Process, (t, dt): (f64, f64)) {
        let Some(count) = process.reading.waiting_clients else {
            if clients.as_ref().is_some_and(|track| t - track.read_at > CLIENTS_PAUSE) {
                *clients = None;
            }
            return;
        };
        let longest = process.reading.longest_wait_seconds.filter(|longest| *longest >= 0.0).unwrap_or(0.0);
        // Clients in the first reading may have been waiting for a long time, so they do not count as new.
        let track = clients.get_or_insert_with(|| {
            let asked_at = (f64::NEG_INFINITY, f64::NEG_INFINITY);
            let unanswered_at = Vec::new();
            Box::new(Self {
                count,
                longest,
                run: None,
                now: count,
                read_at: t,
                last_waiting_at: t,
                asked_at,
                unanswered_at,
            })
        });
        if count < track.now {
            track.unanswered_at.clear();
        }
        let new = (count.saturating_sub(track.now) as usize).min(MAX_NEW_CLIENTS - track.unanswered_at.len());
        track.unanswered_at.extend(std::iter::repeat_n(t, new));
        track.asked_at = match count.saturating_sub(track.now) {
            0 => track.asked_at,
            1 => (t, track.asked_at.0),
            _ => (t, t),
        };
        (track.now, track.read_at) = (count, t);
        if count > 0 {
            (track.count, track.longest, track.last_waiting_at) = (count, longest, t);
            Run::extend(&mut track.run, t, dt);
            if let Some(run) = track.run.as_mut().filter(|run| t - longest < run.since) {
                *run = Run { since: t - longest, covered: longest };
            }
        } else if t - track.last_waiting_at > CLIENTS_PAUSE {
            track.run = None;
        } else if let Some(run) = &mut track.run {
            run.covered += dt;
        }
    }

    /// How many of them asked after `since`: 0, 1, or 2 if there are more.
    pub(crate) fn new_since(&self, since: f64, t: f64) -> u32 {
        // If the one that waits longest asked after that, all did.
        let all = if self.now > 0 && t - self.longest >= since { self.now.min(2) } else { 0 };
        let is_new = |at: f64| u32::from(at - CLIENTS_AGE >= since);
        all.max(is_new(self.asked_at.0) + is_new(self.asked_at.1))
    }

    /// How long ago the second to last new client was seen, in seconds; infinite if there were fewer.
    pub(crate) fn since_the_last_two_asked(&self, t: f64) -> f64 {
        t - self.asked_at.1
    }

    /// How long [`MANY_NEW_CLIENTS`] clients that asked after `since` have waited while nobody got an answer, in seconds; 0 if there are
    /// fewer.
    pub(crate) fn many_unanswered_for(&self, since: f64, t: f64) -> f64 {
        let after = self.unanswered_at.partition_point(|at| *at < since);
        self.unanswered_at.get(after + MANY_NEW_CLIENTS - 1).map_or(0.0, |at| t - at)
    }

    /// How long before `since` the one that waits longest asked, in seconds; negative if it asked later.
    pub(crate) fn asked_before(&self, since: f64, t: f64) -> f64 {
        self.longest - (t - since)
    }

    /// Whether the one that waits longest asked just before `since`, and not long before.
    pub(crate) fn asked_at_the_end(&self, since: f64, t: f64) -> bool {
        self.now > 0 && self.asked_before(since, t) <= ASKED_AT_THE_END
    }
}

/// The writes to a log. The probe checks the log in every tenth sample and repeats its age in between.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogTrack {
    /// The last reported age, and how often it was repeated.
    reported: Option<(f64, u32)>,
    /// The age in the first report, in seconds. It is 0 on a network file system, where the probe sees only growth.
    pub(crate) first_age: Option<f64>,
    /// When the log was last written.
    written_at: Option<f64>,
    pub(crate) writes: u32,
    /// The most recent gaps between writes, in seconds.
    gaps: Vec<f32>,
    /// Their median, for which several rules ask in each sample.
    median_gap: Option<f32>,
    /// The longest gap between writes, in seconds.
    pub(crate) longest_gap: f32,
    pace: LogPace,
    /// When the process last wrote anything to storage.
    pub(crate) process_wrote_at: Option<f64>,
}

/// How often a log is written.
#[derive(Debug, Clone, Default)]
struct LogPace {
    /// The mean gap between writes of about the last hour, in seconds, and the time over which it was taken.
    mean: f32,
    seconds: f32,
    /// The shortest mean so far.
    best: Option<f32>,
    /// Whether a check found no new write since the last one. If no check does, the log is written more often than it is
    /// checked.
    was_seen_waiting: bool,
}

impl LogPace {
    fn update(&mut self, gap: f32) {
        let seen = if std::mem::take(&mut self.was_seen_waiting) { gap } else { UNSEEN_SHARE * gap };
        self.seconds = (self.seconds + gap).min(PACE_SECONDS);
        self.mean += (gap / self.seconds).min(1.0) * (seen - self.mean);
        if self.seconds >= KNOWN_PACE_SECONDS {
            self.best = Some(self.best.map_or(self.mean, |best| best.min(self.mean)));
        }
    }
}

/// The tolerance in seconds: ages are whole seconds, and checks come a little early or late.
const LOG_ROUNDING: f64 = 2.5;

impl LogTrack {
    fn update(&mut self, age: Option<f64>, t: f64) {
        // If only growth is visible, a file that has just grown has no age.
        let age = age.unwrap_or(0.0);
        self.first_age.get_or_insert(age);
        if let Some((reported, repeats)) = &mut self.reported
            && (*reported - age).abs() < f64::EPSILON
            && *repeats < MAX_LOG_AGE_REPEATS
        {
            *repeats += 1;
            return;
        }
        self.reported = Some((age, 0));
        let written_at = t - age;
        let Some(before) = self.written_at else {
            self.written_at = Some(written_at);
            return;
        };
        if written_at <= before + LOG_ROUNDING {
            self.pace.was_seen_waiting = true;
            return;
        }
        self.writes = self.writes.saturating_add(1);
        if self.gaps.len() >= GAPS {
            self.gaps.remove(0);
        }
        let gap = (written_at - before) as f32;
        self.gaps.push(gap);
        let mut sorted = self.gaps.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        self.median_gap = sorted.get(sorted.len() / 2).copied();
        self.longest_gap = self.longest_gap.max(gap);
        self.pace.update(gap);
        self.written_at = Some(written_at);
    }

    /// The time since the last write, in seconds.
    pub(crate) fn age(&self, t: f64) -> Option<f64> {
        Some(t - self.written_at?)
    }

    /// Whether the log grows as it usually does; `None` if its usual pace is unknown, or in between.
    pub(crate) fn is_growing(&self, t: f64) -> Option<bool> {
        let (age, gap) = (self.age(t)?, self.median_gap().filter(|_| self.writes >= KNOWN_WRITES)?);
        if age <= LOG_GROWS.0.max(LOG_GROWS.1 * gap) {
            return Some(true);
        }
        (age > LOG_IS_SILENT.0.max(LOG_IS_SILENT.1 * gap)).then_some(false)
    }

    /// Whether the latest writes came as often as those of its best hour, as far as the readings can tell.
    pub(crate) fn keeps_its_pace(&self, t: f64) -> bool {
        let Some(best) = self.pace.best.filter(|best| *best >= SHORTEST_SEEN_GAP) else {
            return false;
        };
        let Some(first) = self.gaps.len().checked_sub(PACE_GAPS) else { return false };
        let latest = self.gaps[first..].iter().sum::<f32>() / PACE_GAPS as f32;
        latest <= SAME_PACE * best && self.age(t).is_some_and(|age| age <= LOG_GROWS.1 * f64::from(best))
    }

    /// Whether the log grows slowly, with even pauses of some minutes, since the process began to rest.
    pub(crate) fn grows_slowly(&self, since: f64, t: f64) -> bool {
        let (Some(gap), Some(written_at)) = (self.gaps.last().map(|gap| f64::from(*gap)), self.written_at) else {
            return false;
        };
        SLOW_LOG.contains(&gap) && written_at - gap >= since - LOG_GROWS.0 && t - written_at <= 1.5 * gap
    }

    /// Whether the log rests for at least so long, or did so and is written again for a shorter time.
    pub(crate) fn pauses(&self, seconds: f64, t: f64) -> bool {
        let Some(age) = self.age(t).filter(|_| self.writes > 0) else { return false };
        let mut written_for = age;
        let has_paused = self.gaps.iter().rev().map(|gap| f64::from(*gap)).any(|gap| {
            let is_pause = gap >= seconds && written_for < seconds;
            written_for += gap;
            is_pause
        });
        age >= seconds || has_paused
    }

    /// The median gap between writes, in seconds.
    pub(crate) fn median_gap(&self) -> Option<f64> {
        self.median_gap.map(f64::from)
    }
}

/// How a process was started, from all its facts so far: the facts of an adopted process may arrive before its new parent.
#[derive(Debug, Clone, Copy, Default)]
struct Origin {
    /// Another process than a shell started it.
    had_launcher: bool,
    /// It ran in a container.
    was_contained: bool,
}

/// Whether and when a process was seen to lose its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ParentLoss {
    No,
    Early,
    Late,
}

impl ProcessTrack {
    pub(crate) fn new(process: &Process, t: f64) -> Self {
        Self {
            key: process.key.clone(),
            info: Arc::clone(&process.info),
            grouped_as: None,
            first_seen: t,
            last_seen: t,
            age: None,
            state: None,
            presence: None,
            is_stale: false,
            is_connected: false,
            clients: None,
            positions: Vec::new(),
            memory_bytes: None,
            held_since: None,
            most_memory: 0,
            memory_grew_at: None,
            grown_memory: 0,
            cores: None,
            smoothed_cores: None,
            cpu_seconds: None,
            descendants: None,
            descendants_cpu: None,
            descendants_blocked: None,
            descendants_blocked_share: 0.0,
            was_blocked: (false, false),
            write_bytes: None,
            read_characters: None,
            last_io_at: None,
            host_work_at: None,
            wrote_at: None,
            blocked: None,
            blocked_thread: None,
            blocked_time: (0.0, 0.0),
            blocked_cpu: 0.0,
            threads_live: None,
            parent: None,
            origin: Origin::default(),
            parent_loss: ParentLoss::No,
            log: None,
            leak: None,
            leak_due: t + LEAK_AFTER,
        }
    }

    /// "train.py (alice, pid 4312 and 7 more, Slurm 3385)": this process stands for `count` processes of `job`.
    pub(crate) fn describe(&self, count: usize, job: Option<&JobKey>) -> String {
        let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let owner = self.info.facts.as_ref().and_then(|facts| facts.owner.as_ref());
        let container = |runtime: &str, id: &str| format!(", {runtime} {}", id.chars().take(12).collect::<String>());
        let job = match (job, owner) {
            (None, _) => String::new(),
            (Some(JobKey::Slurm { job, .. }), _) => format!(", Slurm {job}"),
            (Some(JobKey::Container { runtime, id }), _) | (_, Some(Owner::Container { runtime, id })) => {
                container(runtime, id)
            }
            (_, Some(Owner::Pod { uid, container: id })) => container("pod", id.as_ref().unwrap_or(uid)),
            _ => String::new(),
        };
        let program = match program_name(&self.info.command) {
            "" => "a process",
            name => name,
        };
        // For a process of root, `who` is its Slurm job or its container, which must not be named twice.
        let who = self.info.who.as_str();
        let is_named = job.strip_prefix(", ").is_some_and(|job| job.eq_ignore_ascii_case(who));
        let job = if is_named { "" } else { &job };
        format!("{program} ({who}, pid {}{others}{job})", self.key.pid)
    }

    /// Whether its reads and writes are visible.
    pub(crate) fn shows_io(&self) -> bool {
        self.write_bytes.is_some() || self.read_characters.is_some()
    }

    /// The smoothed CPU usage of the process without its descendants, in cores.
    pub(crate) fn own_cores(&self) -> Option<f64> {
        Some(self.smoothed_cores? - f64::from(self.descendants_cpu.unwrap_or(0.0)) / 100.0)
    }

    /// Whether it listens on a port.
    pub(crate) fn listens(&self) -> bool {
        self.info.facts.as_ref().is_some_and(|facts| !facts.listening_ports.is_empty())
    }

    /// Whether it was seen to lose a parent that was not a shell.
    pub(crate) fn lost_parent(&self) -> bool {
        self.parent_loss != ParentLoss::No
    }

    /// Whether it lost it long after its own start: it is not a program that goes to the background.
    pub(crate) fn lost_parent_late(&self) -> bool {
        self.parent_loss == ParentLoss::Late
    }

    /// Whether the process belongs to this user.
    pub(crate) fn belongs_to(&self, uid: Option<u32>) -> bool {
        uid.is_some() && self.info.facts.as_ref().and_then(|facts| facts.uid) == uid
    }

    /// The path of the log, if the process writes one.
    pub(crate) fn log_path(&self) -> Option<SafeText> {
        self.info.facts.as_ref().and_then(|facts| facts.log_path.clone())
    }

    /// Updates the track with one sample. `held_bytes` is the threshold for held memory.
    pub(crate) fn update(&mut self, process: &Process, held_bytes: u64, (t, dt): (f64, f64)) {
        self.is_stale = process.is_stale;
        if process.is_stale {
            return;
        }
        let reading = &process.reading;
        self.track_parent(process);
        if !Arc::ptr_eq(&self.info, &process.info) {
            self.info = Arc::clone(&process.info);
        }
        self.last_seen = t;
        self.age = reading.age_seconds;
        self.state = reading.state;
        self.presence = reading.presence;
        if !self.positions.iter().copied().eq(process.gpu_positions()) {
            self.positions = process.gpu_positions().collect();
        }
        self.memory_bytes = process.gpu_memory_bytes();
        let held = self.memory_bytes.unwrap_or(0);
        self.most_memory = self.most_memory.max(held);
        if held >= self.grown_memory + GROWTH_BYTES {
            // The memory in the first reading did not grow while it was watched.
            self.memory_grew_at = (self.first_seen < t).then_some(t);
            self.grown_memory = held;
        }
        if held < held_bytes {
            self.held_since = None;
        } else if self.held_since.is_none() {
            self.held_since = Some(t);
        }
        self.update_cpu(reading.cpu_percent, reading.descendants_cpu_percent, dt);
        self.update_blocked(process, (t, dt));
        self.cpu_seconds = reading.cpu_seconds.or(self.cpu_seconds);
        self.update_host_work(process, (t, dt));
        WaitingClients::update(&mut self.clients, process, (t, dt));
        self.threads_live = reading.threads_live;
        if reading.log_age_seconds.is_some() || self.log.is_some() {
            self.log.get_or_insert_default().update(reading.log_age_seconds, t);
        }
    }

    fn track_parent(&mut self, process: &Process) {
        let parent = process.reading.parent_pid.or_else(|| {
            let ancestors = process.facts().map(|facts| facts.ancestors.as_slice());
            ancestors.and_then(|ancestors| ancestors.first()).map(|parent| parent.pid)
        });
        // A container whose runtime has ended leaves its processes to the init process of the host.
        let owner = self.info.facts.as_ref().and_then(|facts| facts.owner.as_ref());
        self.origin.was_contained |= matches!(owner, Some(Owner::Container { .. } | Owner::Pod { .. }));
        let is_step =
            |facts: &ProcessFacts| facts.ancestors.first().is_some_and(|parent| *parent.name == *"slurmstepd");
        self.origin.had_launcher |= self.info.launcher.is_some() || process.facts().is_some_and(is_step);
        if let (Some(before), Some(now)) = (self.parent, parent)
            && before != now
            && (self.origin.had_launcher || (self.origin.was_contained && now == 1))
        {
            let is_late = self.age.is_some_and(|age| age >= LATE_SECONDS);
            self.parent_loss = self.parent_loss.max(if is_late { ParentLoss::Late } else { ParentLoss::Early });
        }
        self.parent = parent.or(self.parent);
    }

    fn update_cpu(&mut self, own: Option<f32>, descendants: Option<f32>, dt: f64) {
        self.cores = own.map(|own| f64::from(own + descendants.unwrap_or(0.0)) / 100.0);
        if let Some(cores) = self.cores {
            let weight = (dt / CPU_SECONDS).min(1.0);
            self.smoothed_cores = Some(self.smoothed_cores.map_or(cores, |slow| slow + weight * (cores - slow)));
        }
    }

    fn update_host_work(&mut self, process: &Process, (t, dt): (f64, f64)) {
        let reading = &process.reading;
        let has_more = |before: Option<u32>, now: Option<u32>| matches!((before, now), (Some(a), Some(b)) if b > a);
        let grown = |before: Option<u64>, now: Option<u64>| {
            before.zip(now).map_or(0, |(before, now)| now.saturating_sub(before))
        };
        let wrote = grown(self.write_bytes, reading.write_bytes);
        let read = grown(self.read_characters, reading.read_characters);
        if let (Some(log), true) = (&mut self.log, wrote > 0) {
            log.process_wrote_at = Some(t);
        }
        if wrote >= WRITE_BYTES || read > WRITE_BYTES || has_more(self.descendants, reading.descendants) {
            self.last_io_at = Some(t);
        }
        // A program that reads far more than it writes works through its input.
        if wrote >= WRITE_BYTES && wrote >= read / READS_PER_WRITE {
            self.wrote_at = Some(t);
        }
        // A thread that stays in disk sleep is stuck. One that enters and leaves it reads or writes.
        let descendants_sleep = reading.descendants_blocked.unwrap_or(0) > 0;
        let own_sleep = reading.state == Some(ProcessState::DiskSleep) || reading.threads_blocked.unwrap_or(0) > 0;
        let was_blocked = std::mem::replace(&mut self.was_blocked, (own_sleep, descendants_sleep));
        if wrote >= WRITE_BYTES || was_blocked != self.was_blocked {
            self.host_work_at = Some(t);
        }
        self.descendants_blocked_share +=
            (dt / 600.0).min(1.0) * (f64::from(u8::from(descendants_sleep)) - self.descendants_blocked_share);
        self.write_bytes = reading.write_bytes.or(self.write_bytes);
        self.read_characters = reading.read_characters.or(self.read_characters);
        self.is_connected = reading.established_connections.is_some_and(|count| count > 0);
        self.descendants = reading.descendants;
        self.descendants_cpu = reading.descendants_cpu_percent;
        self.descendants_blocked = reading.descendants_blocked;
    }

    /// Tracks a thread in uninterruptible sleep. The probe reports how long one has been without CPU time. If it does
    /// not, the state and CPU time of the leader decide.
    fn update_blocked(&mut self, process: &Process, (t, dt): (f64, f64)) {
        let reading = &process.reading;
        if let Some(seconds) = reading.blocked_seconds {
            let since = t - f64::from(seconds);
            let is_same = self.blocked_thread == reading.blocked_thread && self.blocked.is_some();
            match &mut self.blocked {
                Some(run) if is_same && since <= run.since + 2.0 * dt + 1.0 => run.covered += dt,
                _ => self.blocked = Some(Run { since, covered: f64::from(seconds) }),
            }
            self.blocked_thread = reading.blocked_thread;
            self.blocked_time = (seconds, seconds);
            return;
        }
        let cpu = reading.cpu_seconds;
        let has_gained = matches!((cpu, self.cpu_seconds), (Some(now), Some(before)) if now > before + 0.02);
        let sleeps = reading.state == Some(ProcessState::DiskSleep) && !has_gained;
        self.blocked_thread = None;
        match &mut self.blocked {
            None if sleeps => {
                self.blocked = Some(Run { since: t, covered: 0.0 });
                self.blocked_time = (0.0, 0.0);
                self.blocked_cpu = cpu.unwrap_or(0.0);
            }
            None => {}
            Some(run) => {
                run.covered += dt;
                let dt = dt as f32;
                self.blocked_time.0 += if sleeps { dt } else { 0.0 };
                self.blocked_time.1 += dt;
                let is_over = self.blocked_time.0 < BLOCKED_SHARE * self.blocked_time.1
                    || cpu.is_some_and(|cpu| cpu > self.blocked_cpu + 0.5);
                if is_over {
                    self.blocked = None;
                }
            }
        }
    }
}

/// Groups processes by job, in the order of the first process of each job.
pub(crate) fn group_by_job<'a>(
    processes: impl Iterator<Item = &'a ProcessTrack>,
) -> Vec<(&'a JobKey, Vec<&'a ProcessTrack>)> {
    let mut jobs: Vec<(&JobKey, Vec<&ProcessTrack>)> = Vec::new();
    for process in processes {
        match jobs.iter_mut().find(|(job, _)| **job == process.info.job) {
            Some((_, members)) => members.push(process),
            None => jobs.push((&process.info.job, vec![process])),
        }
    }
    jobs
}

/// The positions of the GPUs of all these processes, in order.
pub(crate) fn gpu_positions(processes: &[&ProcessTrack]) -> Vec<usize> {
    let mut positions: Vec<usize> = processes.iter().flat_map(|process| process.positions.iter().copied()).collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}
