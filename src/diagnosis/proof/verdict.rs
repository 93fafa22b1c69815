//! The output of [`judge`](super::judge): the outcome, the culprit, the evidence and the missing facts.

use crate::fleet::{HostId, ProcessKey};
use crate::wire::SafeText;

/// Maximum number of ranks that a verdict names.
pub const MAX_CULPRIT_RANKS: usize = 16;

/// The judgement of one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The outcome.
    pub outcome: Outcome,
    /// The ranks that hold the job up. `None` if they are not known.
    pub culprit: Option<Culprit>,
    /// The verdict in one sentence, without a full stop, for a finding.
    pub sentence: SafeText,
    /// The evidence, the strongest first.
    pub evidence: Vec<EvidenceLine>,
    /// The facts that could not be read.
    pub missing: Vec<Missing>,
}

/// The outcome of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The job hangs or has failed.
    Proven,
    /// The job hangs, as far as the readings show.
    Likely,
    /// The readings fit a hang and also a healthy job.
    Suspected,
    /// The others wait for a rank that works: it saves, loads, evaluates or compiles.
    WaitsForRank,
    /// The job moves.
    NotHung,
    /// Nothing could be read that says more than the finding.
    NothingKnown,
}

impl Outcome {
    const ALL: [Self; 6] =
        [Self::Proven, Self::Likely, Self::Suspected, Self::WaitsForRank, Self::NotHung, Self::NothingKnown];

    /// The outcome with this name in JSON.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }

    /// The name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Likely => "likely",
            Self::Suspected => "suspected",
            Self::WaitsForRank => "waits_for_rank",
            Self::NotHung => "not_hung",
            Self::NothingKnown => "nothing_known",
        }
    }
}

/// The ranks that hold a job up.
#[derive(Debug, Clone, PartialEq)]
pub struct Culprit {
    /// The ranks, at most [`MAX_CULPRIT_RANKS`].
    pub ranks: Vec<CulpritRank>,
    /// Number of ranks left out of `ranks`.
    pub left_out: u32,
    /// The kind of evidence that names them.
    pub reason: CulpritReason,
    /// The difference to the other ranks, to follow the names of the ranks: `never launched AllReduce 61 to 64`.
    pub text: SafeText,
    /// The operation: `AllReduce 61 to 64`.
    pub operation: Option<SafeText>,
    /// The Python frame in which the first of them stands: `load_batch (data.py:211)`.
    pub frame: Option<SafeText>,
}

/// One rank that holds a job up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CulpritRank {
    /// Rank in its communicator. `None` if the evidence is not about a communicator.
    pub rank: Option<u32>,
    /// Rank in the whole job.
    pub world_rank: Option<u32>,
    /// Its pid in the pid namespace of its host, or in that of the job if its host is not watched.
    pub pid: Option<u32>,
    /// The name of its host, or the address by which NCCL knows it if its host is not watched.
    pub host: Option<SafeText>,
    /// The watched host. `None` if its host is not watched.
    pub host_id: Option<HostId>,
    /// The identity of the process. `None` if its host is not watched.
    pub key: Option<ProcessKey>,
    /// The index of its GPU.
    pub gpu: Option<u32>,
    /// The operation in which this rank differs, if the culprits differ in more than one.
    pub operation: Option<SafeText>,
}

/// The kind of evidence that names a culprit, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CulpritReason {
    /// Its process is dead.
    Dead,
    /// Its process does not answer NCCL RAS, or is stopped.
    Unresponsive,
    /// It has an asynchronous NCCL error.
    AsyncError,
    /// It has launched fewer operations than the others.
    Behind,
    /// It launched another operation than the others.
    OtherPath,
    /// A line of a log names it.
    Log,
    /// It runs another kind of Python code than the others.
    Stack,
    /// It waits in another kernel function than the others, and its GPU does nothing.
    WaitChannel,
    /// It works while the others wait.
    Works,
}

impl CulpritReason {
    /// The name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Unresponsive => "unresponsive",
            Self::AsyncError => "async_error",
            Self::Behind => "behind",
            Self::OtherPath => "other_path",
            Self::Log => "log",
            Self::Stack => "stack",
            Self::WaitChannel => "wait_channel",
            Self::Works => "works",
        }
    }
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceLine {
    /// The source: `NCCL RAS, twice, 60 s apart`.
    pub source: SafeText,
    /// The facts: `7 ranks at 64, rank 7 at 60, none moved`.
    pub text: SafeText,
    /// The conclusion that it allows alone.
    pub says: Says,
}

/// The conclusion that one piece of evidence allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Says {
    /// The job hangs or has failed.
    Proven,
    /// The job probably hangs.
    Likely,
    /// It fits a hang and also a healthy job.
    Suspected,
    /// A rank works while the others wait.
    Works,
    /// The job moves.
    Moves,
    /// The network or a link is the probable cause.
    Network,
    /// The network is not the cause.
    NotTheNetwork,
    /// Why the job, or one of its processes, ended.
    Ended,
    /// Nothing about a hang.
    Nothing,
}

impl Says {
    /// The name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Likely => "likely",
            Self::Suspected => "suspected",
            Self::Works => "works",
            Self::Moves => "moves",
            Self::Network => "network",
            Self::NotTheNetwork => "not_the_network",
            Self::Ended => "ended",
            Self::Nothing => "nothing",
        }
    }

    /// The words of the text report.
    pub fn text(self) -> &'static str {
        match self {
            Self::Works => "says: a rank works",
            Self::Moves => "says: not hung",
            Self::Network => "says: the network",
            Self::NotTheNetwork => "says: not the network",
            Self::Ended => "says: why it ended",
            Self::Nothing => "says: nothing alone",
            Self::Proven | Self::Likely | Self::Suspected => self.word(),
        }
    }
}

/// A fact that could not be read, with a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The fact: `stacks of rank 3`.
    pub what: SafeText,
    /// Why it could not be read.
    pub reason: SafeText,
    /// The one change that would make it readable. Empty if nothing would.
    pub remedy: SafeText,
    /// NCCL RAS was not queried because a query may crash the job: `gpufleet why --ask-ras` accepts that risk.
    pub is_risk: bool,
}

impl CulpritRank {
    /// The name: `rank 7`, `rank 3 of its communicator` if its rank in the job is not known, or `a rank`.
    pub fn name(&self) -> String {
        match (self.world_rank, self.rank) {
            (Some(rank), _) => format!("rank {rank}"),
            (None, Some(rank)) => format!("rank {rank} of its communicator"),
            (None, None) => "a rank".to_owned(),
        }
    }

    /// The place: `pid 1650386 on node2, GPU 3`. Empty if it is not known.
    pub fn place(&self) -> String {
        let process = match (self.pid, &self.host) {
            (Some(pid), Some(host)) => Some(format!("pid {pid} on {host}")),
            (Some(pid), None) => Some(format!("pid {pid}")),
            (None, Some(host)) => Some(format!("on {host}")),
            (None, None) => None,
        };
        let gpu = self.gpu.map(|gpu| format!("GPU {gpu}"));
        process.into_iter().chain(gpu).collect::<Vec<_>>().join(", ")
    }
}
