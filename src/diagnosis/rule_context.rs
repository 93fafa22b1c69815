//! The input of a rule: one host at one sample, the tracks kept of it, and the other hosts of its jobs.

use super::condition::{Run, SampleTime};
use super::finding::{FindingDetails, FindingGpu, FindingProcess};
use super::host_diagnosis::{HostDiagnosis, HostTrack};
use super::track::{GpuTrack, JobTrack, LogTrack, ProcessTrack, WaitingClients};
use crate::config::Thresholds;
use crate::fleet::{DistributedJob, Fleet, GpuListStyle, Host, HostId, format_gpu_list};
use crate::wire::format::{self, DurationStyle};
use crate::wire::{SafeText, Scope};
use std::time::Duration;

/// One host at one sample.
#[derive(Clone, Copy)]
pub(super) struct RuleContext<'a> {
    pub(super) host: &'a Host,
    pub(super) sample_time: SampleTime,
    pub(super) limits: &'a Thresholds,
    pub(super) gpus: &'a [GpuTrack],
    pub(super) processes: &'a [ProcessTrack],
    /// New runs of programs that left the GPUs, in the order of [`Host::reruns`].
    pub(super) reruns: &'a [ProcessTrack],
    pub(super) jobs: &'a [JobTrack],
    pub(super) host_track: &'a HostTrack,
    pub(super) peers: PeerHosts<'a>,
}

/// How long an evaluation may rest the GPUs, the log and the workers of a training, in seconds: up to 25 min were reported.
pub(super) const LONGEST_EVALUATION: f64 = 1560.0;

impl<'a> RuleContext<'a> {
    /// The processes of a job.
    pub(super) fn members(&self, job: &'a JobTrack) -> impl Iterator<Item = &'a ProcessTrack> + use<'a> {
        job.members(self.processes)
    }

    /// The user of a job, as shown on the screen; `None` if it has no process.
    pub(super) fn user(&self, job: &'a JobTrack) -> Option<&'a SafeText> {
        self.members(job).next().map(|process| &process.info.who)
    }

    /// The age of the oldest process of a job, in seconds; `None` if no age is known.
    pub(super) fn age(&self, job: &'a JobTrack) -> Option<f64> {
        self.members(job).filter_map(|process| process.age).reduce(f64::max)
    }

    /// The jobs on the GPU at this position.
    pub(super) fn jobs_on(&self, position: usize) -> impl Iterator<Item = &'a JobTrack> {
        self.jobs.iter().filter(move |job| job.positions().any(|other| other == position))
    }

    /// This share of the memory of the host, in bytes; `None` if its size is unknown.
    pub(super) fn share_of_memory(&self, share: f64) -> Option<f64> {
        let total = self.host.snapshot.as_ref().and_then(|snapshot| snapshot.host.memory_total_bytes)?;
        Some(share * total as f64)
    }

    /// Whether this is the first sample of the host.
    pub(super) fn is_first_sample(&self) -> bool {
        self.host_track.samples <= 1
    }

    /// The scope of the probe on this host; `None` before its hello.
    pub(super) fn scope(&self) -> Option<&'a Scope> {
        self.host.hello.as_ref().and_then(|hello| hello.scope.as_ref())
    }

    pub(super) fn finding_gpus(&self, positions: impl IntoIterator<Item = usize>) -> Vec<FindingGpu> {
        positions.into_iter().filter_map(|position| finding_gpu(self.host, position)).collect()
    }

    pub(super) fn finding_process(&self, process: &ProcessTrack) -> FindingProcess {
        FindingProcess { host: self.host.id, key: process.key.clone(), command: process.info.command.clone() }
    }

    /// "GPU 3", "GPUs 0-7".
    pub(super) fn format_gpus(&self, positions: impl IntoIterator<Item = usize>) -> String {
        let indexes = positions.into_iter().filter_map(|position| Some(self.host.gpu_info(position)?.index));
        format_gpu_list(&indexes.collect::<Vec<_>>(), GpuListStyle::Ranges)
    }

    /// Whether [`Self::format_gpus`] names a single GPU, which decides on the verb. Instances of several GPUs may have the
    /// same index.
    pub(super) fn is_one_gpu(&self, positions: impl IntoIterator<Item = usize>) -> bool {
        let mut indexes = positions.into_iter().filter_map(|position| Some(self.host.gpu_info(position)?.index));
        indexes.next().is_some_and(|first| indexes.all(|index| index == first))
    }

    /// "train.py (alice, pid 4312, Slurm 3385)".
    pub(super) fn format_job(&self, job: &JobTrack) -> String {
        match job.members.first().and_then(|first| self.processes.get(*first)) {
            Some(process) => process.describe(job.members.len(), Some(&job.key)),
            None => job.key.to_string(),
        }
    }

    /// The details of a finding about a job, with all its GPUs and processes.
    pub(super) fn job_details(&self, job: &'a JobTrack, sentence: String, next_check: String) -> FindingDetails {
        FindingDetails {
            sentence,
            next_check,
            gpus: self.finding_gpus(job.positions()),
            processes: self.members(job).map(|process| self.finding_process(process)).collect(),
            job: Some(job.key.clone()),
            user: self.user(job).cloned(),
            is_mine: job.is_mine,
            ..FindingDetails::default()
        }
    }

    /// The details of a finding about one GPU, with the processes on it.
    pub(super) fn gpu_details(&self, position: usize, sentence: String, next_check: String) -> FindingDetails {
        let on_gpu = || self.processes.iter().filter(move |process| process.positions.contains(&position));
        FindingDetails {
            sentence,
            next_check,
            gpus: self.finding_gpus([position]),
            processes: on_gpu().map(|process| self.finding_process(process)).collect(),
            user: on_gpu().next().map(|process| process.info.who.clone()),
            is_mine: self.jobs.iter().any(|job| job.is_mine && job.positions().any(|other| other == position)),
            ..FindingDetails::default()
        }
    }

    /// The next check of a job that looks hung: its examination, which only its owner may request.
    pub(super) fn examine(&self, pid: u32) -> String {
        examine(self.host.name(), pid)
    }

    /// The kernel function in which a process waits. Known for idle processes of the login user.
    pub(super) fn wait_channel(&self, process: &ProcessTrack) -> Option<&'a SafeText> {
        let host: &'a Host = self.host;
        host.processes().find(|other| other.key == process.key)?.reading.wait_channel.as_ref()
    }

    /// The pid that a command in "next check" names; 0 if the job has no process.
    pub(super) fn first_pid(&self, job: &'a JobTrack) -> u32 {
        self.members(job).next().map_or(0, |process| process.key.pid)
    }

    /// The clients that wait for the answer of a job: those of the process with the longest wait.
    pub(super) fn waiting_clients(&self, job: &'a JobTrack) -> Option<&'a WaitingClients> {
        let clients = self.members(job).filter_map(|process| process.clients.as_deref());
        clients.max_by(|a, b| a.longest.total_cmp(&b.longest))
    }

    /// How long all GPUs of a job have rested, whoever uses them; `None` while one works or is unknown.
    pub(super) fn rest_of_all_gpus(&self, job: &JobTrack) -> Option<Run> {
        let rests = job.positions().map(|position| self.gpus.get(position)?.idle_run);
        rests.reduce(|a, b| a.zip(b).map(|(a, b)| if a.since > b.since { a } else { b })).flatten()
    }

    /// Whether the log of the job grew before and does not any more.
    pub(super) fn is_log_silent(&self, job: &JobTrack) -> bool {
        let t = self.sample_time.t;
        let states = || self.members(job).filter_map(|process| process.log.as_ref()?.is_growing(t));
        states().next().is_some() && !states().any(|grows| grows)
    }

    /// Whether the job was seen to write a log, and has not done so for this many seconds, whatever its pace was.
    pub(super) fn has_log_stopped(&self, job: &JobTrack, seconds: f64) -> bool {
        let t = self.sample_time.t;
        let logs = || self.members(job).filter_map(|process| process.log.as_deref());
        let is_old = |log: &LogTrack| log.age(t).is_some_and(|age| age >= seconds);
        logs().any(|log| log.writes > 0) && logs().all(is_old)
    }

    /// Whether the log of a process grows at its usual pace.
    pub(super) fn is_log_growing(&self, job: &JobTrack) -> bool {
        let t = self.sample_time.t;
        let grows = |process: &ProcessTrack| process.log.as_ref().is_some_and(|log| log.is_growing(t) == Some(true));
        // Rank 0 may be on another host.
        let mut parts = self.peers.certain_parts(job, self.host.id);
        self.members(job).any(grows) || parts.any(|part| part.job.members(&part.diagnosis.processes).any(grows))
    }
}

/// The command that examines a process: it compares all ranks of its job.
pub(super) fn examine(host: &str, pid: u32) -> String {
    format!("gpufleet why {host}:{pid}")
}

/// One GPU of a finding; `None` if the host has no GPU at this position.
pub(super) fn finding_gpu(host: &Host, position: usize) -> Option<FindingGpu> {
    let info = host.gpu_info(position)?;
    Some(FindingGpu { host: host.id, position, index: info.index, uuid: info.uuid.clone() })
}

/// The other hosts of a distributed job.
#[derive(Clone, Copy)]
pub(super) struct PeerHosts<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) groups: &'a [DistributedJob],
    pub(super) hosts: &'a [HostDiagnosis],
}

/// A part of a job on another host.
pub(super) struct JobPart<'a> {
    pub(super) host: HostId,
    pub(super) name: &'a SafeText,
    pub(super) diagnosis: &'a HostDiagnosis,
    pub(super) job: &'a JobTrack,
}

impl<'a> PeerHosts<'a> {
    /// The parts of `job` on hosts other than `here`.
    pub(super) fn parts(self, job: &JobTrack, here: HostId) -> impl Iterator<Item = JobPart<'a>> {
        let group = job.group.and_then(|group| self.groups.get(group as usize));
        let parts = group.map_or(&[][..], |group| group.parts.as_slice());
        parts.iter().filter(move |(host, _)| *host != here).filter_map(move |(host, key)| {
            let diagnosis = self.hosts.get(host.0 as usize)?;
            let job = diagnosis.jobs.iter().find(|job| job.key == *key)?;
            Some(JobPart { host: *host, name: self.fleet.host(*host)?.name(), diagnosis, job })
        })
    }

    /// The parts of `job` on other hosts that certainly belong to it. Only they explain what it does: an equal command may
    /// be another run of a sweep.
    pub(super) fn certain_parts(self, job: &JobTrack, here: HostId) -> impl Iterator<Item = JobPart<'a>> {
        let is_likely = self.is_likely(job);
        self.parts(job, here).filter(move |_| !is_likely)
    }

    /// Whether the parts were matched by user and command only, not by a Slurm job or a rendezvous.
    pub(super) fn is_likely(self, job: &JobTrack) -> bool {
        job.group.and_then(|group| self.groups.get(group as usize)).is_some_and(|group| group.is_likely)
    }
}

/// The details of a finding about a whole host.
pub(super) fn host_details(sentence: String, next_check: String) -> FindingDetails {
    FindingDetails { sentence, next_check, ..FindingDetails::default() }
}

/// "1 worker", "3 workers".
pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
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
    fn nouns_agree_with_their_number() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "worker")), ["0 workers", "1 worker", "2 workers"]);
    }

    #[test]
    fn negative_and_undefined_durations_are_zero() {
        assert_eq!([-1.0, f64::NAN, 840.0].map(duration), ["0 s", "0 s", "14 min"]);
    }
}
