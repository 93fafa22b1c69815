//! The answer of a simulated host to a request to examine a process: what a probe would read of a Python program that trains
//! with PyTorch and NCCL.

use super::host::SimulatedHost;
use super::process::Process;
use super::script::Step;
use crate::wire::{
    Communicator, Examination, ExaminationPart, ExaminationRefusal, Frame, LinkErrorCount, LinkReading, NamedRank,
    OperationCounts, ProcessExamination, ProcessState, RanksAtCount, RasReport, ReplyOutcome, SafeText, StackDump,
    ThreadGroup, ThreadReading, ThreadStack,
};

/// The version of NCCL that the simulated programs use: the first with the fixes of NCCL RAS that torch includes.
const NCCL_VERSION: &str = "2.29.7";
/// Collective operations that a training process launches per second.
const OPERATIONS_PER_SECOND: f64 = 3.0;
/// By how many operations a rank that does not come to the next one is behind.
const BEHIND: u64 = 4;

/// The activity of a simulated process, as far as an examination can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// It computes.
    Works,
    /// It waits for other ranks in a collective operation.
    WaitsForRanks,
    /// It does nothing, and launches nothing.
    Rests,
}

impl SimulatedHost {
    /// Examines a process of the probe's user.
    pub fn examine(&self, pid: u32, start_ticks: u64, parts: &[ExaminationPart]) -> ReplyOutcome {
        let process = match self.own_process(pid, start_ticks) {
            Ok(process) => process,
            Err(refusal) => return refusal,
        };
        let mut examination = Examination::default();
        for part in parts {
            match part {
                ExaminationPart::Process => examination.process = Some(Box::new(read_process(process))),
                ExaminationPart::Stacks => examination.stacks = Some(Box::new(read_stacks(process))),
                ExaminationPart::Ras if self.ranks_of(process).count() > 1 => {
                    examination.ras = Some(Box::new(self.ras_report(process)));
                }
                ExaminationPart::Ras => examination.refused.push(ExaminationRefusal::new(
                    ExaminationPart::Ras,
                    "the process has not loaded NCCL",
                    "",
                )),
                ExaminationPart::Links => examination.links = self.read_links(),
                // The jobs of simulated hosts have no Flight Recorder.
                ExaminationPart::FlightRecorder | ExaminationPart::Unknown => {}
            }
        }
        ReplyOutcome::Examined(Box::new(examination))
    }

    /// The variables of a process of the probe's user.
    pub fn environment(&self, pid: u32, start_ticks: u64) -> ReplyOutcome {
        match self.own_process(pid, start_ticks) {
            Ok(process) => ReplyOutcome::Environment(variables(process)),
            Err(refusal) => refusal,
        }
    }

    fn own_process(&self, pid: u32, start_ticks: u64) -> Result<&Process, ReplyOutcome> {
        match self.processes.iter().find(|process| process.is_listed() && process.pid() == pid) {
            None => Err(ReplyOutcome::Gone),
            Some(process) if process.start_ticks() != start_ticks => Err(ReplyOutcome::Reused),
            Some(process) if !process.is_own => Err(ReplyOutcome::NotPermitted),
            Some(process) => Ok(process),
        }
    }

    /// The InfiniBand port of a host with the event `ib`.
    fn read_links(&self) -> Vec<LinkReading> {
        let count = |event: &Step, key| event.number(key).map_or(0, |count| count as u64);
        let link = |event: &Step| LinkReading {
            device: "mlx5_0".into(),
            port: 1,
            layer: Some("InfiniBand".into()),
            state: Some("ACTIVE".into()),
            seconds: 1.0,
            sent_bytes: Some(count(event, "bytes")),
            received_bytes: Some(count(event, "bytes")),
            errors: event
                .text("counter")
                .map(|name| LinkErrorCount { name: name.into(), count: count(event, "count") })
                .into_iter()
                .collect(),
            ..LinkReading::default()
        };
        self.active("ib").last().map(link).into_iter().collect()
    }

    /// Returns the processes of the same job.
    fn ranks_of(&self, process: &Process) -> impl Iterator<Item = &Process> + use<'_> {
        let number = process.number;
        self.processes.iter().filter(move |other| other.number == number && other.is_listed())
    }

    /// The report of a job. Where all ranks wait, the first has taken another path than the others: it broadcasts, while the
    /// others reduce; unless the phase has the argument `together`. A rank that rests is behind the others.
    fn ras_report(&self, process: &Process) -> RasReport {
        let ranks: Vec<&Process> = self.ranks_of(process).collect();
        let is_apart = |rank: &&Process| {
            activity(rank) == Activity::WaitsForRanks && rank.phase().is_some_and(|phase| !phase.has("together"))
        };
        let all_wait = ranks.iter().all(is_apart);
        let is_first = |rank: &Process| ranks.first().is_some_and(|first| first.rank == rank.rank);
        let reduced = |rank: &Process| launched(rank, self.time) - u64::from(all_wait && is_first(rank));
        let broadcast = |rank: &Process| 12 + u64::from(all_wait && is_first(rank));
        RasReport {
            nccl_version: Some(NCCL_VERSION.into()),
            is_json: true,
            took_ms: 2,
            communicators: vec![Communicator {
                hash: "0x78db921d1c117b4a".into(),
                secondary_hash: "0xb7e7187447156001".into(),
                size: ranks.len() as u32,
                ranks: ranks.len() as u32,
                operations: vec![operation("AllReduce", &ranks, &reduced), operation("Broadcast", &ranks, &broadcast)],
                ..Communicator::default()
            }],
            ..RasReport::default()
        }
    }
}

/// How often the ranks have launched an operation. Those with the lowest count are named if the counts differ.
fn operation(name: &str, ranks: &[&Process], count: &dyn Fn(&Process) -> u64) -> OperationCounts {
    let mut counts: Vec<RanksAtCount> = Vec::new();
    for rank in ranks {
        match counts.iter_mut().find(|known| known.count == count(rank)) {
            Some(known) => known.ranks += 1,
            None => counts.push(RanksAtCount { count: count(rank), ranks: 1 }),
        }
    }
    counts.sort_by_key(|known| std::cmp::Reverse(known.count));
    let least = counts.last().map_or(0, |known| known.count);
    let behind = ranks.iter().filter(|rank| counts.len() > 1 && count(rank) == least);
    let named = behind.map(|rank| NamedRank {
        rank: rank.rank as u32,
        host: Some("127.0.0.1".into()),
        pid: Some(rank.pid()),
        gpu: rank.gpus.first().map(|gpu| *gpu as u32),
        count: Some(count(rank)),
        ..NamedRank::default()
    });
    let fingerprint = ranks.iter().fold(0, |sum: u64, rank| {
        sum.wrapping_add((count(rank) << 8 | rank.rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    });
    OperationCounts {
        name: name.into(),
        named: named.collect(),
        counts,
        fingerprint: Some(fingerprint),
        ..OperationCounts::default()
    }
}

fn activity(process: &Process) -> Activity {
    match process.phase().map(|phase| phase.word.as_str()) {
        Some("spin") => Activity::WaitsForRanks,
        Some("idle") => Activity::Rests,
        _ => Activity::Works,
    }
}

/// Returns how many operations a rank has launched at a time of the script. A rank that waits or rests stays where it was.
fn launched(process: &Process, time: f64) -> u64 {
    let began = process.phase().map_or(0.0, |phase| phase.at);
    let at = |time: f64| ((time.max(0.0) + 3600.0) * OPERATIONS_PER_SECOND) as u64;
    match activity(process) {
        Activity::Works => at(time),
        Activity::WaitsForRanks => at(began),
        Activity::Rests => at(began).saturating_sub(BEHIND),
    }
}

fn read_process(process: &Process) -> ProcessExamination {
    let (state, wait_channel, cpu_ms) = match activity(process) {
        Activity::Works => (ProcessState::Running, None, 1400),
        Activity::WaitsForRanks => (ProcessState::Running, None, 1000),
        Activity::Rests => (ProcessState::Sleeping, Some("futex_do_wait".into()), 0),
    };
    let number = |key| process.phase().and_then(|phase| phase.number(key));
    let main_thread = ThreadReading {
        state: Some(state),
        wait_channel,
        user_ms: Some(cpu_ms.min(1000)),
        system_ms: Some(0),
        voluntary_switches: Some(
            number("wakes").map_or(u64::from(state == ProcessState::Sleeping), |rate| rate as u64),
        ),
        involuntary_switches: Some(2),
        queued_ms: Some(number("queued").map_or(0, |percent| (percent * 10.0) as u64)),
        ..ThreadReading::default()
    };
    let group =
        |name: &str, count| ThreadGroup { name: name.into(), wait_channel: "futex_do_wait".into(), count, cpu_ms: 0 };
    ProcessExamination {
        ns_pid: Some(process.pid()),
        same_network: Some(true),
        seconds: 1.0,
        main_thread: Some(main_thread),
        cpu_ms: Some(cpu_ms),
        written_bytes: Some(0),
        threads: vec![group("pt_autograd_", 4), group("pt_nccl_watchdg", 1), group("pt_nccl_heartbt", 1)],
        variables: variables(process),
        nccl_version: Some(NCCL_VERSION.into()),
        has_nccl: Some(true),
        may_attach: Some(true),
        ..ProcessExamination::default()
    }
}

fn variables(process: &Process) -> Vec<SafeText> {
    let rank = process.rank;
    vec![format!("RANK={rank}").into(), format!("LOCAL_RANK={rank}").into(), "NCCL_DEBUG=WARN".into()]
}

fn read_stacks(process: &Process) -> StackDump {
    let frame =
        |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line: Some(line) };
    let frames = match activity(process) {
        Activity::Works => vec![frame("train_step", "train.py", 140), frame("main", "train.py", 231)],
        Activity::WaitsForRanks if process.rank == 0 => vec![
            frame("broadcast", "torch/distributed/distributed_c10d.py", 2724),
            frame("evaluate", "train.py", 187),
            frame("main", "train.py", 236),
        ],
        Activity::WaitsForRanks => vec![
            frame("all_reduce", "torch/distributed/distributed_c10d.py", 2810),
            frame("train_step", "train.py", 158),
            frame("main", "train.py", 231),
        ],
        Activity::Rests => vec![frame("load_batch", "data.py", 211), frame("main", "train.py", 226)],
    };
    let owns_gil = activity(process) != Activity::Rests;
    let main = ThreadStack { name: "MainThread".into(), is_active: owns_gil, owns_gil, frames, frames_left_out: 0 };
    StackDump { tool: "~/.venv/bin/py-spy".into(), threads: vec![main], threads_left_out: 0 }
}
