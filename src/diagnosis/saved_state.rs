//! The state of the engine that is saved on disk between two runs of the program (`state.json`).

use super::notification_state::{Notified, Snooze};
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The version of [`SavedState`]. It rises when a field changes its meaning, not when a field is added.
pub const SAVED_STATE_VERSION: u32 = 2;

/// The maximum number of saved processes.
const MAX_SAVED_PROCESSES: usize = 4096;
/// The maximum number of GPUs with a learned idle power.
pub(super) const MAX_ENTRIES: usize = 4096;
/// The maximum number of ended jobs.
const MAX_ENDED: usize = 1000;
/// How long ended jobs are kept, in seconds.
const ENDED_RETENTION: f64 = 86_400.0;

/// The saved state as plain data. Bounded; it contains no secrets beyond what the screen shows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedState {
    /// [`SAVED_STATE_VERSION`].
    pub version: u32,
    /// When the state was saved, in seconds since 1970.
    pub saved_unix_seconds: f64,
    /// Learned context-idle power in watts, by GPU UUID.
    pub idle_watts: BTreeMap<SafeText, f32>,
    /// Notified findings, by fingerprint.
    #[serde(rename = "told")]
    pub notified: BTreeMap<SafeText, Notified>,
    /// Snoozed findings, by fingerprint.
    pub snoozed: BTreeMap<SafeText, Snooze>,
    /// The processes on GPUs.
    pub processes: Vec<SavedProcess>,
    /// Jobs that ended in the last 24 hours.
    pub ended: Vec<SavedJobEnd>,
    /// Ended jobs up to this time were reported to the user, in seconds since 1970.
    #[serde(rename = "ended_told_unix_seconds")]
    pub ended_reported_unix_seconds: f64,
    /// Fingerprints of the snoozes that this run set or ended.
    #[serde(skip)]
    pub changed_snoozes: BTreeSet<SafeText>,
    /// Hosts that this run has observed.
    #[serde(skip)]
    pub seen_hosts: BTreeSet<SafeText>,
}

/// A process that was on a GPU when the state was saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedProcess {
    /// The name of the host.
    pub host: SafeText,
    /// The boot id of the host.
    pub boot_id: Option<SafeText>,
    /// The process id.
    pub pid: u32,
    /// The start time in clock ticks after boot.
    pub start_ticks: Option<u64>,
    /// The job, as in JSON: processes of one host with the same text belong to one job.
    pub job: SafeText,
    /// When the process was last seen, in seconds since 1970.
    pub seen_unix_seconds: f64,
    /// Since when the job has been idle, in seconds since 1970; `None` while it works.
    pub idle_since_unix_seconds: Option<f64>,
    /// The CPU time when the process was last seen, in seconds.
    pub cpu_seconds: Option<f64>,
    /// The program, user and pid, as in findings.
    pub label: SafeText,
    /// The user.
    pub user: SafeText,
    /// The process or job belongs to the login user.
    pub is_mine: bool,
    /// The age when the process was last seen, in seconds.
    pub age_seconds: Option<f64>,
    /// The largest amount of GPU state that the process held, in bytes.
    pub memory_bytes: u64,
    /// Since when the process has held state, in seconds since 1970.
    pub held_since_unix_seconds: Option<f64>,
    /// The positions of its GPUs.
    pub gpus: Vec<u16>,
    /// The path of its log.
    pub log_path: Option<SafeText>,
    /// How the job used its GPUs; only with the first process of a job.
    #[serde(rename = "work")]
    pub gpu_usage: Vec<SavedGpuUsage>,
}

/// How a job used one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedGpuUsage {
    /// The UUID of the GPU.
    pub gpu: SafeText,
    /// The median power of healthy work, in watts.
    pub healthy_watts: Option<f32>,
    /// The power limit at that time, in watts.
    pub limit_watts: f32,
    /// How much healthy work was observed, in seconds.
    pub healthy_seconds: f64,
    /// The median utilisation in percent.
    pub utilization_percent: Option<f32>,
    /// How long the utilisation was observed, in seconds.
    pub utilization_seconds: f64,
    /// The seconds with a utilisation of at least 20 %.
    pub active_seconds: f32,
}

impl SavedGpuUsage {
    fn is_finite(&self) -> bool {
        let readings =
            [self.healthy_watts, Some(self.limit_watts), self.utilization_percent, Some(self.active_seconds)];
        readings.into_iter().flatten().all(f32::is_finite)
    }
}

/// A job, or the part of a job on one host, that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedJobEnd {
    /// The name of the host.
    pub host: SafeText,
    /// The program, user and pid, as in findings.
    pub label: SafeText,
    /// The process or job belongs to the login user.
    pub is_mine: bool,
    /// When the job was last seen, in seconds since 1970.
    pub seen_unix_seconds: f64,
    /// When the job was first missing, in seconds since 1970.
    pub missed_unix_seconds: f64,
}

impl SavedState {
    /// Parses a saved state.
    ///
    /// # Errors
    /// A message if the text is not a saved state or has another version. The caller should keep the file under another
    /// name and start without a saved state.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Versioned {
            #[serde(default)]
            version: u32,
        }
        let invalid = |error: serde_json::Error| format!("not a saved state of gpufleet's diagnosis: {error}");
        // The version first: another version may have other fields.
        let Versioned { version } = serde_json::from_str(text).map_err(invalid)?;
        if version != SAVED_STATE_VERSION {
            return Err(format!(
                "saved state has version {version}, this gpufleet reads version {SAVED_STATE_VERSION}"
            ));
        }
        let mut state: Self = serde_json::from_str(text).map_err(invalid)?;
        state.remove_infinite();
        Ok(state)
    }

    /// Removes readings that are too large for their type, as a damaged file may contain them. They could not be saved
    /// again, because JSON has no infinity. Of `f64`, serde_json refuses them.
    fn remove_infinite(&mut self) {
        self.idle_watts.retain(|_, watts| watts.is_finite());
        for process in &mut self.processes {
            process.gpu_usage.retain(SavedGpuUsage::is_finite);
        }
    }

    /// Merges the state that another run wrote after this run read it. The newer entry wins; for a snooze, the run that
    /// changed it wins.
    pub fn merge(&mut self, other: Self) {
        for (gpu, watts) in other.idle_watts {
            self.idle_watts.entry(gpu).or_insert(watts);
        }
        for (id, notified) in other.notified {
            let ours = self.notified.get(&id);
            if ours.is_none_or(|ours| ours.seen_unix_seconds < notified.seen_unix_seconds) {
                self.notified.insert(id, notified);
            }
        }
        self.snoozed.retain(|id, _| self.changed_snoozes.contains(id) || other.snoozed.contains_key(id));
        let untouched = other.snoozed.into_iter().filter(|(id, _)| !self.changed_snoozes.contains(id));
        self.snoozed.extend(untouched);
        let seen = newest_seen(&self.processes);
        let theirs = newest_seen(&other.processes);
        let is_newer = |host: &SafeText| match (theirs.get(host), seen.get(host)) {
            (Some(theirs), Some(ours)) => theirs > ours,
            // This run observed the host and found no process there.
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
        self.ended_reported_unix_seconds = self.ended_reported_unix_seconds.max(other.ended_reported_unix_seconds);
        self.saved_unix_seconds = self.saved_unix_seconds.max(other.saved_unix_seconds);
        self.bound();
    }

    /// Drops expired entries, and the oldest ones beyond the limits.
    pub(super) fn bound(&mut self) {
        self.processes.sort_by(|a, b| b.seen_unix_seconds.total_cmp(&a.seen_unix_seconds));
        self.processes.truncate(MAX_SAVED_PROCESSES);
        let now = self.saved_unix_seconds;
        self.notified.retain(|_, notified| notified.is_retained(now));
        self.snoozed.retain(|_, snooze| snooze.until_unix_seconds.is_none_or(|until| until > now));
        self.ended.retain(|end| now - end.missed_unix_seconds <= ENDED_RETENTION);
        self.ended.sort_by(|a, b| b.missed_unix_seconds.total_cmp(&a.missed_unix_seconds));
        self.ended.truncate(MAX_ENDED);
    }
}

/// The latest time at which a process of each host was seen.
fn newest_seen(processes: &[SavedProcess]) -> HashMap<SafeText, f64> {
    let mut latest_by_host: HashMap<SafeText, f64> = HashMap::new();
    for process in processes {
        let latest = latest_by_host.entry(process.host.clone()).or_insert(f64::NEG_INFINITY);
        *latest = latest.max(process.seen_unix_seconds);
    }
    latest_by_host
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;

    fn notified(severity: Severity, seen_unix_seconds: f64) -> Notified {
        Notified { severity, seen_unix_seconds, cleared_unix_seconds: None }
    }

    fn snooze(until: f64) -> Snooze {
        Snooze { until_unix_seconds: Some(until), severity: Severity::Warn, seen_unix_seconds: 0.0 }
    }

    fn process(host: &str, pid: u32, seen_unix_seconds: f64) -> SavedProcess {
        SavedProcess { host: host.into(), pid, seen_unix_seconds, ..SavedProcess::default() }
    }

    fn end(host: &str, label: &str, missed_unix_seconds: f64) -> SavedJobEnd {
        SavedJobEnd { host: host.into(), label: label.into(), missed_unix_seconds, ..SavedJobEnd::default() }
    }

    #[test]
    fn readings_too_large_for_their_type_are_removed() {
        let text = r#"{"version":2,"idle_watts":{"a":1e39,"b":70},"processes":[{"host":"hgx-01","work":[
            {"gpu":"a","limit_watts":1e39},{"gpu":"b","healthy_watts":1e39},{"gpu":"c","limit_watts":700}]}]}"#;
        let state = SavedState::parse(text).unwrap();
        assert_eq!(state.idle_watts, BTreeMap::from([("b".into(), 70.0)]));
        let kept: Vec<&str> = state.processes[0].gpu_usage.iter().map(|usage| usage.gpu.as_str()).collect();
        assert_eq!(kept, ["c"]);
        assert!(SavedState::parse(&serde_json::to_string(&state).unwrap()).is_ok());
        assert!(SavedState::parse(r#"{"version":2,"saved_unix_seconds":1e309}"#).is_err());
    }

    #[test]
    fn a_saved_state_round_trips_and_other_versions_are_rejected() {
        let mut state = SavedState { version: SAVED_STATE_VERSION, saved_unix_seconds: 1.7e9, ..SavedState::default() };
        state.idle_watts.insert("GPU-0".into(), 122.5);
        state.notified.insert("stuck-spin/hgx-01/slurm:3385".into(), notified(Severity::Crit, 1.7e9));
        state.snoozed.insert("disk-full/hgx-01//home".into(), snooze(1.8e9));
        state.processes.push(SavedProcess {
            gpu_usage: vec![SavedGpuUsage {
                gpu: "GPU-0".into(),
                healthy_watts: Some(560.0),
                ..SavedGpuUsage::default()
            }],
            ..process("hgx-01", 7, 1.7e9)
        });
        state.ended.push(end("hgx-01", "train.py", 1.7e9));
        let text = serde_json::to_string(&state).expect("encodes");
        assert_eq!(SavedState::parse(&text), Ok(state));
        let other = |version: u32| {
            format!("saved state has version {version}, this gpufleet reads version {SAVED_STATE_VERSION}")
        };
        // Another version may have other fields.
        assert_eq!(SavedState::parse("{\"version\":9,\"told\":7}"), Err(other(9)));
        assert_eq!(SavedState::parse("{\"version\":1,\"told\":{\"a\":\"warn\"}}"), Err(other(1)));
        assert!(
            SavedState::parse("").is_err_and(|error| error.starts_with("not a saved state of gpufleet's diagnosis: "))
        );
        assert!(SavedState::parse("{}").is_err(), "a missing version is another version");
    }

    #[test]
    fn merging_keeps_what_either_run_has_learned() {
        let mut ours = SavedState {
            saved_unix_seconds: 100.0,
            seen_hosts: ["empty by now".into()].into(),
            ..SavedState::default()
        };
        ours.idle_watts.insert("GPU-0".into(), 60.0);
        ours.notified.insert("a".into(), notified(Severity::Warn, 100.0));
        ours.notified.insert("b".into(), notified(Severity::Warn, 50.0));
        ours.processes = vec![process("seen-by-both", 1, 100.0), process("seen-by-them", 2, 10.0)];
        ours.ended = vec![end("h", "x", 90.0)];
        let mut theirs =
            SavedState { saved_unix_seconds: 90.0, ended_reported_unix_seconds: 80.0, ..SavedState::default() };
        theirs.idle_watts.insert("GPU-0".into(), 70.0);
        theirs.idle_watts.insert("GPU-1".into(), 71.0);
        theirs.notified.insert("a".into(), notified(Severity::Crit, 90.0));
        theirs.notified.insert("b".into(), notified(Severity::Crit, 90.0));
        theirs.processes = vec![
            process("seen-by-both", 3, 90.0),
            process("seen-by-them", 4, 90.0),
            process("known to them", 5, 80.0),
            process("empty by now", 6, 70.0),
        ];
        theirs.ended = vec![end("h", "x", 85.0), end("h", "y", 85.0)];
        ours.merge(theirs);
        assert_eq!(ours.idle_watts.values().copied().collect::<Vec<_>>(), [60.0, 71.0]);
        let severities: Vec<Severity> = ours.notified.values().map(|notified| notified.severity).collect();
        assert_eq!(severities, [Severity::Warn, Severity::Crit], "the newer entry wins");
        assert_eq!(ours.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [1, 4, 5]);
        assert_eq!(ours.ended.iter().map(|end| &*end.label).collect::<Vec<_>>(), ["x", "y"]);
        assert!((ours.ended_reported_unix_seconds - 80.0).abs() < 1e-9);
    }

    #[test]
    fn the_run_that_changed_a_snooze_wins() {
        let mut ours = SavedState { changed_snoozes: ["set".into(), "ended".into()].into(), ..SavedState::default() };
        ours.snoozed.insert("set".into(), snooze(1.0));
        ours.snoozed.insert("read and ended by them".into(), snooze(2.0));
        ours.snoozed.insert("read".into(), snooze(3.0));
        let mut theirs = SavedState::default();
        for (id, until) in [("ended", 4.0), ("read", 5.0), ("set by them", 6.0)] {
            theirs.snoozed.insert(id.into(), snooze(until));
        }
        ours.merge(theirs);
        let snoozed: Vec<(&str, Option<f64>)> =
            ours.snoozed.iter().map(|(id, snooze)| (&**id, snooze.until_unix_seconds)).collect();
        assert_eq!(snoozed, [("read", Some(5.0)), ("set", Some(1.0)), ("set by them", Some(6.0))]);
    }

    #[test]
    fn a_saved_state_is_bounded() {
        let mut state = SavedState { saved_unix_seconds: 200_000.0, ..SavedState::default() };
        let many = |count: u32| (0..count).map(f64::from);
        state.processes = many(5000).map(|at| process("h", 1, at)).collect();
        state.ended = many(1500).map(|at| end("h", "x", 199_000.0 + at / 10.0)).collect();
        state.ended.push(end("h", "of the day before", 100_000.0));
        state.bound();
        assert_eq!((state.processes.len(), state.ended.len()), (MAX_SAVED_PROCESSES, MAX_ENDED));
        assert!(state.ended.iter().all(|end| &*end.label == "x"));
        assert!(state.processes.iter().all(|process| process.seen_unix_seconds >= 900.0), "the latest_by_host stay");
    }
}
