//! The facts about a job that conclusions and lines of evidence share.

use super::activity::{
    GpuActivity, HostWork, StackClass, frame_text, gpu_activity, host_work, latest_stack, moves, stack_class,
};
use super::evidence::{JobEvidence, RankEvidence};
use super::flight_recorder::Dumps;
use super::log_lines::{FoundSign, LogSign, find_signs, signs_of_this_run};
use super::ranks::Ranks;
use super::ras::{CountChange, RasReports};
use super::verdict::{Culprit, CulpritRank, CulpritReason, MAX_CULPRIT_RANKS, Outcome};
use crate::fleet::HostId;
use crate::wire::{Communicator, LinkReading, NamedRank, ProcessState, RankAbsence, SafeText};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Traffic of a port that carries only management packets. Bytes a second.
const FLAT_BYTES_PER_SECOND: f64 = 1e6;
/// Counters that rise while a healthy network is full. Where no data flows, they show that it is blocked.
const CONGESTION_COUNTERS: [&str; 2] = ["port_xmit_wait", "np_cnp_sent"];
/// Counters that name the network: a link went down, or packets were sent again because nobody acknowledged them
/// (NVIDIA/nccl#394). The other error counters also rise a little in healthy networks.
const LOSS_COUNTERS: [&str; 2] = ["link_downed", "local_ack_timeout_err"];
/// By how much the age of a log may exceed that of a process that wrote to it at its start: one is a difference of whole
/// seconds, the other is rounded to a tenth.
const LOG_AGE_ERROR: Duration = Duration::from_millis(1_100);

/// A job with what its ranks do.
pub(super) struct Facts<'a> {
    /// The input.
    pub evidence: &'a JobEvidence,
    /// The ranks in a fixed order.
    pub ranks: Ranks<'a>,
    /// The activity of the GPUs of each rank.
    pub gpus: Vec<GpuActivity>,
    /// The work of each rank on its host.
    pub work: Vec<HostWork>,
    /// The reports of NCCL RAS.
    pub ras: Option<RasReports<'a>>,
    /// The dumps of the Flight Recorder.
    pub dumps: Option<Dumps<'a>>,
    /// The recognised lines of the logs.
    pub signs: Vec<Sign<'a>>,
}

/// A recognised line of a log.
pub(super) struct Sign<'a> {
    /// The line.
    pub found: FoundSign,
    /// The log and the rank, by position, whose log it is.
    pub log_of: usize,
    /// Path of the log.
    pub path: &'a SafeText,
    /// The rank that the line is about, by position: the one that its prefix names, else the only one with this log.
    pub about: Option<usize>,
}

/// A judgement without its evidence.
#[derive(Debug, Clone)]
pub(super) struct Conclusion {
    /// The outcome.
    pub outcome: Outcome,
    /// The ranks that hold the job up.
    pub culprit: Option<Culprit>,
    /// The positions of the watched culprits.
    pub positions: Vec<usize>,
    /// The verdict in one sentence.
    pub sentence: String,
    /// The evidence that it rests on.
    pub basis: Basis,
}

/// The evidence that a conclusion rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    /// Reports of NCCL RAS.
    Ras,
    /// Lines of a log.
    Log,
    /// Dumps of the Flight Recorder.
    FlightRecorder,
    /// Python stacks.
    Stacks,
    /// `/proc`.
    Process,
    /// The counters of the network.
    Links,
    /// Only readings of GPUs, or nothing.
    Weak,
}

/// The ports of the hosts together.
pub(super) struct Links<'a> {
    /// The latest readings with the names of their hosts.
    pub ports: Vec<(&'a SafeText, &'a LinkReading)>,
    /// Bytes a second in both directions over all ports. `None` if no counter was read.
    pub bytes_per_second: Option<f64>,
    /// Bytes a second in both directions over the busiest port. `None` if no counter was read.
    most_bytes_per_second: Option<f64>,
    /// By how much counters of errors and congestion rose in all examinations, by name.
    pub errors: BTreeMap<&'a str, u64>,
    /// By how much each counter of errors and congestion rose on a single port, by host, device and name.
    port_errors: BTreeMap<(&'a str, &'a str, &'a str), u64>,
    /// No port carries data and no such counter rose. `None` if a host of the job has no counters.
    pub is_flat: Option<bool>,
}

impl Links<'_> {
    /// Whether the counters show trouble of the network, not only a full one.
    pub(super) fn has_trouble(&self) -> bool {
        let is_full = self.errors.keys().all(|name| CONGESTION_COUNTERS.contains(name));
        let is_silent = self.most_bytes_per_second.is_some_and(|rate| rate <= FLAT_BYTES_PER_SECOND);
        !self.errors.is_empty() && (!is_full || is_silent)
    }

    /// The ports that lost packets or their link, the worst first: `mlx5_0 on node2 (local_ack_timeout_err +12)`.
    pub(super) fn losses(&self) -> Vec<String> {
        let order = |counter: &str| LOSS_COUNTERS.iter().position(|name| *name == counter);
        let mut losses: Vec<_> = self
            .port_errors
            .iter()
            .filter_map(|((host, device, counter), count)| {
                Some((order(counter)?, Reverse(*count), format!("{device} on {host} ({counter} +{count})")))
            })
            .collect();
        losses.sort();
        losses.into_iter().map(|(.., text)| text).collect()
    }
}

/// Why NCCL RAS has no data from a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// It counts as dead, but its process runs. For RAS a process stays dead: after a stop of a minute or two, or after the network
    /// was cut, both sides call each other dead while the job goes on.
    Runs,
    /// It counts as dead, and its process is stopped by a signal or a debugger.
    Stopped,
    Dead,
    /// It answered in neither report.
    Silent,
}

/// Whether a process in this state runs or waits.
fn runs(state: ProcessState) -> bool {
    matches!(state, ProcessState::Running | ProcessState::Sleeping | ProcessState::DiskSleep)
}

impl<'a> Facts<'a> {
    /// Reads the facts.
    pub(super) fn new(evidence: &'a JobEvidence) -> Self {
        let ranks = Ranks::new(evidence);
        let gpus = ranks.list.iter().map(|rank| gpu_activity(rank.evidence)).collect();
        let work = ranks.list.iter().map(|rank| host_work(rank.evidence)).collect();
        let ras = RasReports::new(&ranks);
        let dumps = Dumps::new(&ranks, evidence);
        let signs = signs(&ranks);
        Self { evidence, ranks, gpus, work, ras, dumps, signs }
    }

    /// The ranks that NCCL RAS calls absent, with what the last readings of their processes say about it.
    pub(super) fn absent(&self) -> Vec<(&'a Communicator, &'a NamedRank, Absence)> {
        let absent = self.ras.iter().flat_map(RasReports::absent);
        absent
            .map(|(communicator, named, absence)| {
                let state = self.state_of(named, communicator);
                let absence = match (absence, state) {
                    (RankAbsence::Dead, Some(state)) if runs(state) => Absence::Runs,
                    (RankAbsence::Dead, Some(ProcessState::Stopped | ProcessState::Traced)) => Absence::Stopped,
                    (RankAbsence::Dead, _) => Absence::Dead,
                    _ => Absence::Silent,
                };
                (communicator, named, absence)
            })
            .collect()
    }

    /// The state of the main thread of a rank, from the last reading of its process; `None` if it was not read.
    fn state_of(&self, named: &NamedRank, communicator: &Communicator) -> Option<ProcessState> {
        let rank = self.rank(self.ranks.find(named, communicator)?);
        let process = rank.readings.iter().rev().find_map(|reading| reading.examination.process.as_deref())?;
        process.main_thread.as_ref()?.state
    }

    /// The readings of a rank.
    pub(super) fn rank(&self, position: usize) -> &'a RankEvidence {
        self.ranks.list[position].evidence
    }

    /// The positions of all ranks but these.
    pub(super) fn others(&self, positions: &[usize]) -> Vec<usize> {
        (0..self.ranks.list.len()).filter(|position| !positions.contains(position)).collect()
    }

    /// Whether at least one of these ranks has a spinning GPU.
    pub(super) fn some_spin(&self, positions: &[usize]) -> bool {
        positions.iter().any(|position| self.gpus[*position] == GpuActivity::Spins)
    }

    /// Whether there are ranks and the GPUs of all of them spin.
    pub(super) fn all_spin(&self, positions: &[usize]) -> bool {
        !positions.is_empty() && positions.iter().all(|position| self.gpus[*position] == GpuActivity::Spins)
    }

    /// Whether at least one of these ranks makes progress, on its GPU or on its host. CPU time is no progress: a rank that
    /// waits for its GPU uses a whole CPU.
    pub(super) fn some_progress(&self, positions: &[usize]) -> bool {
        positions
            .iter()
            .any(|position| self.gpus[*position] == GpuActivity::Works || moves(self.rank(*position)).is_some())
    }

    /// Whether the counts of any communicator moved between the reports.
    pub(super) fn counts_moved(&self) -> bool {
        self.ras.as_ref().is_some_and(|ras| ras.changes().iter().any(|(_, change)| *change == CountChange::Moved))
    }

    /// The kind of code in which a rank stands.
    pub(super) fn class(&self, position: usize) -> Option<StackClass> {
        latest_stack(self.rank(position)).map(stack_class)
    }

    /// The culprit with the frame of its first watched rank. `ranks` is not empty.
    pub(super) fn culprit(
        &self,
        mut ranks: Vec<CulpritRank>,
        reason: CulpritReason,
        text: &str,
        operation: Option<&str>,
    ) -> Culprit {
        let left_out = ranks.len().saturating_sub(MAX_CULPRIT_RANKS) as u32;
        ranks.truncate(MAX_CULPRIT_RANKS);
        let of_first = ranks.iter().find_map(|culprit| {
            let is_it =
                |rank: &&RankEvidence| Some(rank.host) == culprit.host_id && Some(&rank.key) == culprit.key.as_ref();
            let rank = self.evidence.ranks.iter().find(is_it)?;
            latest_stack(rank)?.frames.first().map(frame_text)
        });
        Culprit {
            ranks,
            left_out,
            reason,
            text: SafeText::new(text),
            operation: operation.map(SafeText::new),
            frame: of_first.map(SafeText::from),
        }
    }

    /// The ports of the hosts of the job.
    pub(super) fn links(&self) -> Links<'a> {
        let mut hosts: BTreeMap<HostId, Option<(&'a SafeText, &'a [LinkReading])>> = BTreeMap::new();
        for rank in &self.ranks.list {
            let mut readings: Vec<_> =
                rank.evidence.readings.iter().filter(|reading| !reading.examination.links.is_empty()).collect();
            readings.sort_by_key(|reading| reading.at);
            let links = readings.last().map(|reading| (&rank.evidence.host_name, &reading.examination.links[..]));
            let known = hosts.entry(rank.evidence.host).or_insert(links);
            *known = known.or(links);
        }
        let mut found = Links {
            ports: Vec::new(),
            bytes_per_second: None,
            most_bytes_per_second: None,
            errors: BTreeMap::new(),
            port_errors: BTreeMap::new(),
            is_flat: Some(true),
        };
        for rank in &self.ranks.list {
            let host = &*rank.evidence.host_name;
            // An examination lasts a second, and a lost packet is sent again after some: the rises of all count.
            for link in rank.evidence.readings.iter().flat_map(|reading| &reading.examination.links) {
                for error in &link.errors {
                    for count in [
                        found.errors.entry(&*error.name).or_default(),
                        found.port_errors.entry((host, &*link.device, &*error.name)).or_default(),
                    ] {
                        *count = count.saturating_add(error.count);
                    }
                }
            }
        }
        for host in hosts.values() {
            let Some((name, links)) = host else {
                found.is_flat = None;
                continue;
            };
            found.ports.extend(links.iter().map(|link| (*name, link)));
        }
        for (_, link) in &found.ports {
            match (link.sent_bytes, link.received_bytes) {
                (Some(sent), Some(received)) if link.seconds > 0.0 => {
                    let rate = sent.saturating_add(received) as f64 / f64::from(link.seconds);
                    found.bytes_per_second = Some(found.bytes_per_second.unwrap_or(0.0) + rate);
                    found.most_bytes_per_second = Some(found.most_bytes_per_second.unwrap_or(0.0).max(rate));
                    if rate > FLAT_BYTES_PER_SECOND {
                        found.is_flat = found.is_flat.and(Some(false));
                    }
                }
                _ => found.is_flat = None,
            }
        }
        if found.ports.is_empty() {
            found.is_flat = None;
        }
        if !found.errors.is_empty() {
            found.is_flat = Some(false);
        }
        found
    }

    /// Whether the ranks run on more than one host.
    pub(super) fn is_distributed(&self) -> bool {
        let first = self.ranks.list.first().map(|rank| rank.evidence.host);
        self.ranks.list.iter().any(|rank| Some(rank.evidence.host) != first)
    }
}

/// The recognised lines of all logs. Ranks often share one log, which is read once.
fn signs<'a>(ranks: &Ranks<'a>) -> Vec<Sign<'a>> {
    let mut found: Vec<Sign<'a>> = Vec::new();
    for (position, rank) in ranks.list.iter().enumerate() {
        let Some(log) = &rank.evidence.log else { continue };
        let sharing =
            ranks.list.iter().filter(|other| other.evidence.log.as_ref().is_some_and(|it| it.path == log.path));
        let is_only = sharing.count() == 1 && ranks.list.len() > 1;
        // If nothing was written since the process started, all lines are from an earlier run.
        let is_earlier =
            matches!((log.age, log.process_age), (Some(age), Some(process_age)) if age > process_age + LOG_AGE_ERROR);
        let lines = if is_earlier { &[][..] } else { &log.lines[..] };
        for sign in signs_of_this_run(find_signs(lines), log.process_age) {
            if found.iter().any(|known| known.path == &log.path && known.found == sign) {
                continue;
            }
            let about = match sign.rank {
                Some(rank) => ranks.with_world_rank(rank),
                None => is_only.then_some(position),
            };
            found.push(Sign { found: sign, log_of: position, path: &log.path, about });
        }
    }
    found
}

impl Sign<'_> {
    /// Whether the line shows that PyTorch gave up on an operation.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self.found.sign, LogSign::WatchdogTimeout { .. } | LogSign::WorkStatus { .. } | LogSign::Desync { .. })
    }
}
