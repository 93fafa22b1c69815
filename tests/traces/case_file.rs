//! The case files: what happens on which hosts, and the expected findings. README.md describes the format.

use gpufleet::sim::HostScript;
use gpufleet::sim::gpu_model::model;
use gpufleet::sim::script::{Job, Seconds, Step};
use serde::Deserialize;
use std::sync::Arc;

/// One case file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    case: Vec<Case>,
}

/// One labelled case.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Case {
    /// Unique among all cases.
    pub(crate) name: String,
    /// Number of the trace in the design's list; 0 if it is not in the list.
    pub(crate) trace: u32,
    /// The GPU model, a word of `src/sim/gpu_model.rs`.
    pub(crate) gpu: String,
    /// GPUs per host.
    pub(crate) gpus: usize,
    /// Number of hosts.
    pub(crate) hosts: usize,
    /// Seconds between samples.
    pub(crate) interval: f64,
    /// Length of the trace.
    pub(crate) length: Seconds,
    /// The jobs.
    pub(crate) jobs: Vec<Job>,
    /// Events: `"20m lost gpu=3 for=10s"`.
    pub(crate) events: Vec<Step>,
    /// Findings that the case must produce: `"stuck-spin warn from=20m at=5m says=train.py"`.
    pub(crate) must: Vec<String>,
    /// Findings that the case may also produce: `"idle-hog info"`. Any other one at warn or above is false.
    pub(crate) may: Vec<String>,
    /// Rules that must not fire at all, or not at this severity: `"idle-hog"`, `"stuck-spin crit"`.
    pub(crate) must_not: Vec<String>,
    /// The verdict of every examination that a finding about the hang begins: `"likely says=mlx5_0"`.
    pub(crate) verdict: Option<String>,
    /// Maximum number of notifications.
    pub(crate) notifications: Option<usize>,
    /// Words that must occur, at the end, in what diagnosis reports as not judged.
    pub(crate) not_judged: Vec<String>,
    /// Rules that must have no open finding at the end.
    pub(crate) over: Vec<String>,
    /// When the monitor starts in the variant `late`. The default is half-way for cases without `must`.
    pub(crate) late: Option<Seconds>,
    /// Replaces `must` in the variant `late`.
    pub(crate) late_must: Vec<String>,
    /// Added to `may` in the variant `late`.
    pub(crate) late_may: Vec<String>,
    /// Variants in which the case does not run, each with the reason: `"gaps: the whole event is shorter than a gap"`.
    pub(crate) except: Vec<String>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: String::new(),
            trace: 0,
            gpu: "h100".to_owned(),
            gpus: 8,
            hosts: 1,
            interval: 10.0,
            length: Seconds(0.0),
            jobs: Vec::new(),
            events: Vec::new(),
            must: Vec::new(),
            may: Vec::new(),
            must_not: Vec::new(),
            verdict: None,
            notifications: None,
            not_judged: Vec::new(),
            over: Vec::new(),
            late: None,
            late_must: Vec::new(),
            late_may: Vec::new(),
            except: Vec::new(),
        }
    }
}

impl Case {
    /// Returns the script of the host with this index.
    pub(crate) fn host(&self, index: usize, seed: u64) -> HostScript {
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| job.hosts.contains(index));
        let events = self.events.iter().filter(|event| event.hosts.contains(index));
        HostScript {
            name: format!("gpu-{:02}", index + 1),
            seed,
            index: index as u64,
            login: "alice".to_owned(),
            model: model(&self.gpu).unwrap_or_else(|| panic!("no GPU model `{}`", self.gpu)),
            gpu_count: self.gpus,
            interval: self.interval,
            jobs: jobs.map(|(number, job)| (number, Arc::new(job.clone()))).collect(),
            events: events.cloned().collect(),
        }
    }
}

/// Names and contents of the case files.
pub(crate) const FILES: [(&str, &str); 7] = [
    ("spin", include_str!("cases/spin.toml")),
    ("waste", include_str!("cases/waste.toml")),
    ("processes", include_str!("cases/processes.toml")),
    ("memory", include_str!("cases/memory.toml")),
    ("driver", include_str!("cases/driver.toml")),
    ("host", include_str!("cases/host.toml")),
    ("lookalikes", include_str!("cases/lookalikes.toml")),
];

/// Parses the cases of one file.
pub(crate) fn cases_of(file: &str) -> Vec<Case> {
    let (_, text) = FILES.iter().find(|(name, _)| *name == file).unwrap_or_else(|| panic!("no file `{file}`"));
    let parsed: CaseFile = toml::from_str(text).unwrap_or_else(|error| panic!("cases/{file}.toml: {error}"));
    parsed.case
}

/// Parses all cases.
pub(crate) fn cases() -> Vec<Case> {
    FILES.iter().flat_map(|(name, _)| cases_of(name)).collect()
}
