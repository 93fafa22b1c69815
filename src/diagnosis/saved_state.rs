//! What the engine wants kept on disk between two runs of the program.

use super::notification_state::{Notified, Snooze};
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The version of [`SavedState`]. It rises when something changes its meaning, not when a field is added.
pub const SAVED_STATE_VERSION: u32 = 2;

/// The most processes that are remembered.
pub(super) const MAX_SAVED_PROCESSES: usize = 4096;
/// The most GPUs.
pub(super) const MAX_ENTRIES: usize = 4096;
/// The most ended jobs, and for how long they are kept, in seconds.
pub(super) const MAX_ENDED: usize = 1000;
pub(super) const ENDED_RETENTION: f64 = 86_400.0;

/// What the engine remembers between two runs of the program, as plain data. Bounded; nothing in it is secret beyond
/// what a screen shows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedState {
    /// [`SAVED_STATE_VERSION`].
    pub version: u32,
    /// When it was taken, in seconds since 1970.
    pub saved_unix_seconds: f64,
    /// Learned context-idle power in watts, by GPU.
    pub idle_watts: BTreeMap<SafeText, f32>,
    /// Findings that somebody was told of, by fingerprint.
    pub told: BTreeMap<SafeText, Notified>,
    /// Findings that shall be silent, by fingerprint.
    pub snoozed: BTreeMap<SafeText, Snooze>,
    /// The processes that were on GPUs.
    pub processes: Vec<SavedProcess>,
    /// Jobs that have ended in the last 24 hours.
    pub ended: Vec<SavedJobEnd>,
    /// Of those that were missed up to then somebody was told, in seconds since 1970.
    pub ended_told_unix_seconds: f64,
    /// Fingerprints of which this run knows better than any other whether they are snoozed.
    #[serde(skip)]
    pub touched: BTreeSet<SafeText>,
    /// Hosts that this run has seen.
    #[serde(skip)]
    pub seen_hosts: BTreeSet<SafeText>,
}

/// A process that was on a GPU when the memory was taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedProcess {
    /// Its host's name.
    pub host: SafeText,
    /// The host's boot id.
    pub boot_id: Option<SafeText>,
    /// Process id.
    pub pid: u32,
    /// Start time in ticks after boot.
    pub start_ticks: Option<u64>,
    /// Its job, as JSON writes it: processes of one host with the same word are one job.
    pub job: SafeText,
    /// When it was last seen, in seconds since 1970.
    pub seen_unix_seconds: f64,
    /// When it last did anything, as far as is known, in seconds since 1970; `None` while it works.
    pub idle_since_unix_seconds: Option<f64>,
    /// CPU time that it had used when it was last seen.
    pub cpu_seconds: Option<f64>,
    /// What it is called, whose it is, its pid.
    pub label: SafeText,
    /// Whose it is.
    pub user: SafeText,
    /// It belongs to the login user.
    pub is_mine: bool,
    /// Its age when it was last seen, in seconds.
    pub age_seconds: Option<f64>,
    /// Memory that it held on its GPUs.
    pub memory_bytes: u64,
    /// Since when it held it, in seconds since 1970.
    pub held_since_unix_seconds: Option<f64>,
    /// Positions of its GPUs.
    pub gpus: Vec<u16>,
    /// Its log.
    pub log_path: Option<SafeText>,
    /// How its job used its GPUs; with the first process of a job only.
    pub work: Vec<SavedGpuUsage>,
}

/// How a job used one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedGpuUsage {
    /// The GPU's UUID.
    pub gpu: SafeText,
    /// Its median power at healthy work.
    pub healthy_watts: Option<f32>,
    /// The power limit at that time.
    pub limit_watts: f32,
    /// For how long that was seen, in seconds.
    pub healthy_seconds: f64,
    /// Its median utilisation in percent.
    pub utilization_percent: Option<f32>,
    /// For how long that was seen, in seconds.
    pub utilization_seconds: f64,
    /// Seconds at a utilisation of 20 % or more.
    pub active_seconds: f32,
}

/// A job that has ended, or a part of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedJobEnd {
    /// Its host's name.
    pub host: SafeText,
    /// What it is called, whose it is, its pid.
    pub label: SafeText,
    /// It belongs to the login user.
    pub is_mine: bool,
    /// It was there then, in seconds since 1970.
    pub seen_unix_seconds: f64,
    /// It was gone then, in seconds since 1970.
    pub missed_unix_seconds: f64,
}

impl SavedState {
    /// Reads what an earlier run has kept.
    ///
    /// # Errors
    /// A sentence for a person when the text is no memory, or of another version: it is to be kept aside, and begun anew.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Versioned {
            #[serde(default)]
            version: u32,
        }
        let no_memory = |error: serde_json::Error| format!("not a memory of gpufleet's diagnosis: {error}");
        // First the version: a memory of another one may have another form.
        let Versioned { version } = serde_json::from_str(text).map_err(no_memory)?;
        if version != SAVED_STATE_VERSION {
            return Err(format!("a memory of version {version}, this gpufleet reads version {SAVED_STATE_VERSION}"));
        }
        serde_json::from_str(text).map_err(no_memory)
    }

    /// Takes in what another run has written since this one has read it: nothing of either is lost. Of what both know
    /// the newer counts, and of a snooze what was said last.
    pub fn merge(&mut self, other: Self) {
        for (gpu, watts) in other.idle_watts {
            self.idle_watts.entry(gpu).or_insert(watts);
        }
        for (id, told) in other.told {
            let ours = self.told.get(&id);
            if ours.is_none_or(|ours| ours.seen_unix_seconds < told.seen_unix_seconds) {
                self.told.insert(id, told);
            }
        }
        self.snoozed.retain(|id, _| self.touched.contains(id) || other.snoozed.contains_key(id));
        let untouched = other.snoozed.into_iter().filter(|(id, _)| !self.touched.contains(id));
        self.snoozed.extend(untouched);
        let seen = newest_seen(&self.processes);
        let theirs = newest_seen(&other.processes);
        let is_newer = |host: &SafeText| match (theirs.get(host), seen.get(host)) {
            (Some(theirs), Some(ours)) => theirs > ours,
            // Where this run has looked, it has found nothing there.
            (Some(theirs), None) => !self.seen_hosts.contains(host) || *theirs > self.saved_unix_seconds,
            (None, _) => false,
        };
        self.processes.retain(|process| !is_newer(&process.host));
        self.processes.extend(other.processes.into_iter().filter(|process| is_newer(&process.host)));
        for end in other.ended {
            let is_known = self.ended.iter().any(|ours| ours.host == end.host && ours.label == end.label);
            if !is_known {
                self.ended.push(end);
            }
        }
        self.ended_told_unix_seconds = self.ended_told_unix_seconds.max(other.ended_told_unix_seconds);
        self.saved_unix_seconds = self.saved_unix_seconds.max(other.saved_unix_seconds);
        self.bound();
    }

    /// Keeps the newest of what there is too much of.
    pub(super) fn bound(&mut self) {
        self.processes.sort_by(|a, b| b.seen_unix_seconds.total_cmp(&a.seen_unix_seconds));
        self.processes.truncate(MAX_SAVED_PROCESSES);
        let now = self.saved_unix_seconds;
        self.told.retain(|_, told| told.is_retained(now));
        self.snoozed.retain(|_, snooze| snooze.until_unix_seconds.is_none_or(|until| until > now));
        self.ended.retain(|end| now - end.missed_unix_seconds <= ENDED_RETENTION);
        self.ended.sort_by(|a, b| b.missed_unix_seconds.total_cmp(&a.missed_unix_seconds));
        self.ended.truncate(MAX_ENDED);
    }
}

/// When the newest process of each host was seen.
fn newest_seen(processes: &[SavedProcess]) -> HashMap<SafeText, f64> {
    let mut newest: HashMap<SafeText, f64> = HashMap::new();
    for process in processes {
        let sight = newest.entry(process.host.clone()).or_insert(f64::NEG_INFINITY);
        *sight = sight.max(process.seen_unix_seconds);
    }
    newest
}

#[cfg(test)]
#[path = "saved_state_tests.rs"]
mod tests;
