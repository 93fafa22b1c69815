//! What is remembered of one process.

use crate::diagnosis::evaluation::Run;
use crate::diagnosis::rules::memory::Leak;
use crate::fleet::{Process, ProcessInfo, ProcessKey};
use crate::wire::{Presence, ProcessState};
use std::sync::Arc;

/// CPU use is smoothed over about this many seconds: a heartbeat thread that wakes is no work.
const CPU_SECONDS: f64 = 60.0;
/// Growth of the written bytes that is no mere log line.
const WRITE_BYTES: u64 = 1 << 20;
/// A process is looked at for leaks when it has been watched for this long, in seconds.
const LEAK_AFTER: f64 = 96.0 * 60.0;
/// An age that has been told for this long, in seconds, is no longer that of an old look: a probe looks every tenth sample
/// at least, of a minute at most.
const MAX_LOG_AGE_REPEAT: f64 = 660.0;
/// Gaps between writes of the log that are kept.
const GAPS: usize = 31;

/// What is remembered of one process, and what it reads now.
#[derive(Debug, Clone)]
pub(in crate::diagnosis) struct ProcessTrack {
    pub(in crate::diagnosis) key: ProcessKey,
    pub(in crate::diagnosis) info: Arc<ProcessInfo>,
    pub(in crate::diagnosis) first_seen: f64,
    pub(in crate::diagnosis) last_seen: f64,
    pub(in crate::diagnosis) age: Option<f64>,
    pub(in crate::diagnosis) state: Option<ProcessState>,
    pub(in crate::diagnosis) presence: Option<Presence>,
    /// Its readings are those of an earlier sample.
    pub(in crate::diagnosis) is_stale: bool,
    /// Positions of its GPUs.
    pub(in crate::diagnosis) positions: Vec<usize>,
    pub(in crate::diagnosis) memory_bytes: Option<u64>,
    /// Since when it has held 500 MiB or more.
    pub(in crate::diagnosis) held_since: Option<f64>,
    pub(in crate::diagnosis) most_memory: u64,
    /// Cores that it and its helpers use, now and smoothed.
    pub(in crate::diagnosis) cores: Option<f64>,
    pub(in crate::diagnosis) smoothed_cores: Option<f64>,
    pub(in crate::diagnosis) cpu_seconds: Option<f64>,
    pub(in crate::diagnosis) descendants: Option<u32>,
    pub(in crate::diagnosis) descendants_cpu: Option<f32>,
    pub(in crate::diagnosis) descendants_blocked: Option<u32>,
    /// JobPart of the last samples in which a helper was in disk sleep.
    pub(in crate::diagnosis) helper_blocked: f64,
    /// Whether it, and whether a helper, was in disk sleep in the last sample.
    was_blocked: (bool, bool),
    write_bytes: Option<u64>,
    read_characters: Option<u64>,
    /// When it last began a helper, or wrote or read.
    pub(in crate::diagnosis) last_io_at: Option<f64>,
    /// When it last did something on the host that other ranks may wait for.
    pub(in crate::diagnosis) host_work_at: Option<f64>,
    /// In uninterruptible sleep without a gain of CPU time.
    pub(in crate::diagnosis) blocked: Option<Run>,
    pub(in crate::diagnosis) blocked_thread: Option<u32>,
    /// Seconds in that sleep, and in all, since the run began.
    blocked_time: (f64, f64),
    blocked_cpu: f64,
    pub(in crate::diagnosis) threads_live: Option<u32>,
    pub(in crate::diagnosis) parent: Option<u32>,
    /// It was seen to lose a parent that was no shell.
    pub(in crate::diagnosis) lost_parent: bool,
    /// Of one's own processes that write to a file.
    pub(in crate::diagnosis) log: Option<Box<LogTrack>>,
    /// As of the last look at its two hours of memory.
    pub(in crate::diagnosis) leak: Option<Leak>,
    /// When to look next.
    pub(in crate::diagnosis) leak_due: f64,
}

/// How a log is written, as far as it is seen: a probe looks at every tenth sample, and tells the same until it does.
#[derive(Debug, Clone, Default)]
pub(in crate::diagnosis) struct LogTrack {
    /// What was told last, and when it was news.
    reported: Option<(f64, f64)>,
    /// When it was last written.
    written_at: Option<f64>,
    pub(in crate::diagnosis) writes: u32,
    /// The last gaps between writes, in seconds.
    gaps: Vec<f32>,
}

/// Ages are told in whole seconds, and looks come a little early or late.
const LOG_ROUNDING: f64 = 2.5;

impl LogTrack {
    fn update(&mut self, age: Option<f64>, t: f64) {
        // Where only growth can be seen, a file that has just grown has no age.
        let age = age.unwrap_or(0.0);
        if self.reported.is_some_and(|(reported, _)| (reported - age).abs() < f64::EPSILON) {
            return;
        }
        self.reported = Some((age, t));
        let written_at = t - age;
        let Some(before) = self.written_at else {
            self.written_at = Some(written_at);
            return;
        };
        if written_at <= before + LOG_ROUNDING {
            return;
        }
        self.writes = self.writes.saturating_add(1);
        if self.gaps.len() >= GAPS {
            self.gaps.remove(0);
        }
        self.gaps.push((written_at - before) as f32);
        self.written_at = Some(written_at);
    }

    /// For how long it has not been written, in seconds. What is told again and again may be a log that is written in
    /// the rhythm of the looks: then nothing is known of the time since the last news.
    pub(in crate::diagnosis) fn age(&self, t: f64) -> Option<f64> {
        let (age, news_at) = self.reported?;
        Some(if t - news_at > MAX_LOG_AGE_REPEAT { age } else { t - self.written_at? })
    }

    /// The median gap between writes, in seconds.
    pub(in crate::diagnosis) fn median_gap(&self) -> Option<f64> {
        let mut gaps = self.gaps.clone();
        gaps.sort_by(f32::total_cmp);
        gaps.get(gaps.len() / 2).map(|gap| f64::from(*gap))
    }
}

impl ProcessTrack {
    pub(in crate::diagnosis) fn new(process: &Process, t: f64) -> Self {
        Self {
            key: process.key.clone(),
            info: Arc::clone(&process.info),
            first_seen: t,
            last_seen: t,
            age: None,
            state: None,
            presence: None,
            is_stale: false,
            positions: Vec::new(),
            memory_bytes: None,
            held_since: None,
            most_memory: 0,
            cores: None,
            smoothed_cores: None,
            cpu_seconds: None,
            descendants: None,
            descendants_cpu: None,
            descendants_blocked: None,
            helper_blocked: 0.0,
            was_blocked: (false, false),
            write_bytes: None,
            read_characters: None,
            last_io_at: None,
            host_work_at: None,
            blocked: None,
            blocked_thread: None,
            blocked_time: (0.0, 0.0),
            blocked_cpu: 0.0,
            threads_live: None,
            parent: None,
            lost_parent: false,
            log: None,
            leak: None,
            leak_due: t + LEAK_AFTER,
        }
    }

    /// Takes a sample in. `held_bytes` is what makes memory held; `share` the part of samples, in percent, in which a
    /// thread must be in disk sleep.
    pub(in crate::diagnosis) fn update(&mut self, process: &Process, held_bytes: u64, share: f64, (t, dt): (f64, f64)) {
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
        if held < held_bytes {
            self.held_since = None;
        } else if self.held_since.is_none() {
            self.held_since = Some(t);
        }
        self.update_cpu(reading.cpu_percent, reading.descendants_cpu_percent, dt);
        self.update_blocked(process, share, (t, dt));
        self.cpu_seconds = reading.cpu_seconds.or(self.cpu_seconds);
        self.update_host_work(process, (t, dt));
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
        if let (Some(before), Some(now)) = (self.parent, parent)
            && before != now
            && self.info.launcher.is_some()
        {
            self.lost_parent = true;
        }
        self.parent = parent.or(self.parent);
    }

    fn update_cpu(&mut self, own: Option<f32>, helpers: Option<f32>, dt: f64) {
        self.cores = own.map(|own| f64::from(own + helpers.unwrap_or(0.0)) / 100.0);
        if let Some(cores) = self.cores {
            let weight = (dt / CPU_SECONDS).min(1.0);
            self.smoothed_cores = Some(self.smoothed_cores.map_or(cores, |slow| slow + weight * (cores - slow)));
        }
    }

    fn update_host_work(&mut self, process: &Process, (t, dt): (f64, f64)) {
        let reading = &process.reading;
        let has_more = |before: Option<u32>, now: Option<u32>| matches!((before, now), (Some(a), Some(b)) if b > a);
        let wrote = match (self.write_bytes, reading.write_bytes) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        let read = matches!((self.read_characters, reading.read_characters), (Some(a), Some(b)) if b > a + WRITE_BYTES);
        if wrote >= WRITE_BYTES || read || has_more(self.descendants, reading.descendants) {
            self.last_io_at = Some(t);
        }
        // A thread that hangs in disk sleep is stuck; one that goes in and out of it reads or writes.
        let helpers_sleep = reading.descendants_blocked.unwrap_or(0) > 0;
        let own_sleep = reading.state == Some(ProcessState::DiskSleep) || reading.threads_blocked.unwrap_or(0) > 0;
        let was_blocked = std::mem::replace(&mut self.was_blocked, (own_sleep, helpers_sleep));
        if wrote >= WRITE_BYTES || was_blocked != self.was_blocked {
            self.host_work_at = Some(t);
        }
        self.helper_blocked += (dt / 600.0).min(1.0) * (f64::from(u8::from(helpers_sleep)) - self.helper_blocked);
        self.write_bytes = reading.write_bytes.or(self.write_bytes);
        self.read_characters = reading.read_characters.or(self.read_characters);
        self.descendants = reading.descendants;
        self.descendants_cpu = reading.descendants_cpu_percent;
        self.descendants_blocked = reading.descendants_blocked;
    }

    /// Follows a thread in uninterruptible sleep. The probe tells since when one has been, without a gain of CPU time;
    /// where it does not, the leader's state and CPU time must say it.
    fn update_blocked(&mut self, process: &Process, share: f64, (t, dt): (f64, f64)) {
        let reading = &process.reading;
        if let Some(seconds) = reading.blocked_seconds {
            let since = t - f64::from(seconds);
            let is_same = self.blocked_thread == reading.blocked_thread && self.blocked.is_some();
            match &mut self.blocked {
                Some(run) if is_same && since <= run.since + 2.0 * dt + 1.0 => run.covered += dt,
                _ => self.blocked = Some(Run { since, covered: f64::from(seconds) }),
            }
            self.blocked_thread = reading.blocked_thread;
            self.blocked_time = (t - since, t - since);
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
                self.blocked_time.0 += if sleeps { dt } else { 0.0 };
                self.blocked_time.1 += dt;
                let is_over = self.blocked_time.0 < share / 100.0 * self.blocked_time.1
                    || cpu.is_some_and(|cpu| cpu > self.blocked_cpu + 0.5);
                if is_over {
                    self.blocked = None;
                }
            }
        }
    }
}
