//! What a rule sees: one host at one sample, and what is remembered of it.

use super::evaluation::{FindingDetails, SampleTime};
use super::peer_hosts::PeerHosts;
use super::track::{GpuTrack, HostTrack, JobTrack, ProcessTrack};
use super::{FindingGpu, FindingProcess};
use crate::config::Thresholds;
use crate::fleet::{GpuListStyle, Host, JobKey, format_gpu_list, program_name};
use crate::wire::SafeText;
use crate::wire::format::{self, DurationStyle};
use std::time::Duration;

/// One host at one sample.
#[derive(Clone, Copy)]
pub(super) struct RuleContext<'a> {
    pub(super) host: &'a Host,
    pub(super) sample_time: SampleTime,
    pub(super) limits: &'a Thresholds,
    pub(super) gpus: &'a [GpuTrack],
    pub(super) processes: &'a [ProcessTrack],
    pub(super) jobs: &'a [JobTrack],
    pub(super) host_track: &'a HostTrack,
    pub(super) peers: PeerHosts<'a>,
}

impl<'a> RuleContext<'a> {
    pub(super) fn members(&self, job: &'a JobTrack) -> impl Iterator<Item = &'a ProcessTrack> + use<'a> {
        let processes = self.processes;
        job.members.iter().filter_map(move |member| processes.get(*member))
    }

    /// GPUs as findings carry them.
    pub(super) fn finding_gpus(&self, positions: impl IntoIterator<Item = usize>) -> Vec<FindingGpu> {
        let gpu = |position: usize| {
            let info = self.host.gpu_info(position)?;
            Some(FindingGpu { host: self.host.id, position, index: info.index, uuid: info.uuid.clone() })
        };
        positions.into_iter().filter_map(gpu).collect()
    }

    pub(super) fn finding_process(&self, process: &ProcessTrack) -> FindingProcess {
        FindingProcess { host: self.host.id, key: process.key.clone(), command: process.info.command.clone() }
    }

    /// "GPU 3", "GPUs 0-7".
    pub(super) fn format_gpus(&self, positions: impl IntoIterator<Item = usize>) -> String {
        let indexes = positions.into_iter().filter_map(|position| Some(self.host.gpu_info(position)?.index));
        format_gpu_list(&indexes.collect::<Vec<_>>(), GpuListStyle::Ranges)
    }

    /// "train.py (alice, pid 4312, Slurm 3385)".
    pub(super) fn format_job(&self, job: &JobTrack) -> String {
        match job.members.first().and_then(|first| self.processes.get(*first)) {
            Some(process) => format_process(process, job.members.len(), Some(&job.key)),
            None => job.key.to_string(),
        }
    }

    /// What is said of a job: these words, and all that it has.
    pub(super) fn job_details(&self, job: &'a JobTrack, sentence: String, next_check: String) -> FindingDetails {
        FindingDetails {
            sentence,
            next_check,
            gpus: self.finding_gpus(job.gpus.iter().map(|gpu| gpu.position)),
            processes: self.members(job).map(|process| self.finding_process(process)).collect(),
            job: Some(job.key.clone()),
            user: self.members(job).next().map(|process| process.info.who.clone()),
            is_mine: job.is_mine,
            ..FindingDetails::default()
        }
    }

    /// What is said of one GPU.
    pub(super) fn gpu_details(&self, position: usize, sentence: String, next_check: String) -> FindingDetails {
        let on_it = || self.processes.iter().filter(move |process| process.positions.contains(&position));
        FindingDetails {
            sentence,
            next_check,
            gpus: self.finding_gpus([position]),
            processes: on_it().map(|process| self.finding_process(process)).collect(),
            user: on_it().next().map(|process| process.info.who.clone()),
            is_mine: self.jobs.iter().any(|job| job.is_mine && job.gpus.iter().any(|gpu| gpu.position == position)),
            ..FindingDetails::default()
        }
    }

    /// The pid to look at first.
    pub(super) fn first_pid(&self, job: &JobTrack) -> u32 {
        job.members.first().and_then(|first| self.processes.get(*first)).map_or(0, |process| process.key.pid)
    }
}

/// What is said of the host as a whole.
pub(super) fn host_details(sentence: String, next_check: String) -> FindingDetails {
    FindingDetails { sentence, next_check, ..FindingDetails::default() }
}

/// "train.py (alice, pid 4312, Slurm 3385)"; of several processes the first stands for all.
pub(super) fn format_process(process: &ProcessTrack, count: usize, job: Option<&JobKey>) -> String {
    let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    let job = match job {
        Some(JobKey::Slurm { job, .. }) => format!(", Slurm {job}"),
        Some(JobKey::Container { runtime, id }) => format!(", {runtime} {}", id.chars().take(12).collect::<String>()),
        _ => String::new(),
    };
    format!("{} ({}, pid {}{others}{job})", program(&process.info.command), process.info.who, process.key.pid)
}

/// What a person would call it.
pub(super) fn program(command: &SafeText) -> &str {
    match program_name(command) {
        "" => "a process",
        name => name,
    }
}

/// "45 s", "14 min", "3 h 20 min", "6 d 4 h".
pub(super) fn duration(seconds: f64) -> String {
    let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
    format::duration(time, DurationStyle::Words).to_string()
}

/// "71 GiB", "0.6 GiB".
pub(super) fn gibibytes(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib < 9.95 { format!("{gib:.1} GiB") } else { format!("{gib:.0} GiB") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_duration_is_none() {
        assert_eq!([-1.0, f64::NAN, 840.0].map(duration), ["0 s", "0 s", "14 min"]);
    }
}
