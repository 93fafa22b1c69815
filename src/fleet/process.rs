//! One process that uses GPUs: what is known of it, joined from the columns of the wire.

use super::{JobKey, Moment, launcher};
use crate::wire::{
    GpuProcessKind, GpuProcessReading, Owner, Presence, ProcessFacts, ProcessReading, ProcessState, SafeText,
};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The identity of a process across pid reuse and reboots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessKey {
    /// The host's boot id.
    pub boot_id: Option<SafeText>,
    /// Process id; 0 where the driver could not tell it.
    pub pid: u32,
    /// Start time in ticks after boot; `None` where /proc does not show the process.
    pub start_ticks: Option<u64>,
}

/// Without the boot id: it is the same for all processes of a host, and its text made hashing a tenth of taking a
/// snapshot in.
impl Hash for ProcessKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pid.hash(state);
        self.start_ticks.hash(state);
    }
}

/// What rarely changes about a process, worked out once when its facts arrive.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessInfo {
    /// What the probe said of it; `None` where /proc does not show it.
    pub facts: Option<ProcessFacts>,
    /// What it is to be grouped with.
    pub job: JobKey,
    /// Who it belongs to: the user; for root, or an account without a name, what it runs in; else [`UNKNOWN_USER`].
    pub who: SafeText,
    /// The ancestor that started it and its siblings, where there is one.
    pub launcher: Option<Launcher>,
    /// The command in one line: its arguments, else its short name in brackets as `ps` does, else why there is none.
    pub command: SafeText,
}

/// What started a process: the topmost ancestor of the same user that is no shell.
#[derive(Debug, Clone, PartialEq)]
pub struct Launcher {
    /// Its identity.
    pub key: ProcessKey,
    /// Its command in one line.
    pub command: SafeText,
}

/// Stands for the user where nobody is known.
pub const UNKNOWN_USER: &str = "-";

/// One process that uses GPUs, with its readings. Its GPUs are positions in the host's inventory.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its identity.
    pub key: ProcessKey,
    /// What rarely changes.
    pub info: Arc<ProcessInfo>,
    /// What it does on the host.
    pub reading: ProcessReading,
    /// What it does on each of its GPUs, by ascending position.
    pub gpus: Vec<GpuProcessReading>,
    /// Since when it has been seen in its present state, without a sight of another.
    pub state_since: Moment,
    /// Its GPUs cannot be asked at the moment, so these are the last readings and not the present ones.
    pub is_stale: bool,
}

/// A process that has ended while its host was watched.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedProcess {
    /// Its last readings.
    pub process: Process,
    /// When it was first missing; it ended between the snapshot before and this one.
    pub ended_at: Moment,
}

impl Process {
    /// What the probe said of it.
    pub fn facts(&self) -> Option<&ProcessFacts> {
        self.info.facts.as_ref()
    }

    /// Its memory on all its GPUs; `None` where no GPU tells.
    pub fn gpu_memory_bytes(&self) -> Option<u64> {
        sum(self.gpus.iter().map(|gpu| gpu.gpu_memory_bytes))
    }

    /// The least and the most SM share over its GPUs.
    pub fn sm_percent(&self) -> Option<(u8, u8)> {
        self.gpus.iter().filter_map(|gpu| gpu.sm_percent).fold(None, |range, percent| {
            let (least, most) = range.unwrap_or((percent, percent));
            Some((least.min(percent), most.max(percent)))
        })
    }

    /// Positions of its GPUs in the inventory, ascending.
    pub fn gpu_positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.gpus.iter().filter_map(|gpu| gpu.gpu.map(usize::from))
    }

    /// Whether it computes on the GPU at `position`; a process that only draws there does not take it. A driver that
    /// does not tell the kind lists compute processes.
    pub fn computes_on(&self, position: usize) -> bool {
        self.usage_on(position).is_some_and(|usage| usage.kind != Some(GpuProcessKind::Graphics))
    }

    /// What it does on the GPU at `position`.
    pub fn usage_on(&self, position: usize) -> Option<&GpuProcessReading> {
        self.gpus.iter().find(|usage| usage.gpu.map(usize::from) == Some(position))
    }

    /// The condition of the process that needs attention; [`Process::state_since`] says since when.
    pub fn trouble(&self, now: Moment) -> Option<ProcessTrouble> {
        match (self.reading.presence, self.reading.state) {
            (Some(Presence::Gone), _) => Some(ProcessTrouble::MemoryNotReleased),
            (Some(Presence::Hidden), _) => Some(ProcessTrouble::Hidden),
            (_, Some(ProcessState::Zombie | ProcessState::Dead)) => Some(ProcessTrouble::Zombie),
            (_, Some(ProcessState::Stopped)) => Some(ProcessTrouble::Stopped),
            (_, Some(ProcessState::Traced)) => Some(ProcessTrouble::Traced),
            // A job that reads from disks passes through this state many times a second.
            (_, Some(ProcessState::DiskSleep)) if now.since(self.state_since) >= DISK_WAIT_THRESHOLD => {
                Some(ProcessTrouble::DiskWait)
            }
            _ => None,
        }
    }
}

/// A condition of a process that needs attention, or that explains missing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessTrouble {
    /// The process has ended, and the driver still lists its memory.
    MemoryNotReleased,
    /// Zombie or dead, and still on a GPU.
    Zombie,
    /// Stopped by a signal.
    Stopped,
    /// Stopped by a debugger.
    Traced,
    /// In uninterruptible sleep for [`DISK_WAIT_THRESHOLD`] or longer.
    DiskWait,
    /// The host hides the process (`hidepid`). Not a fault, but it explains the missing values.
    Hidden,
}

impl ProcessTrouble {
    /// The name on the screen and in filters.
    pub fn word(self) -> &'static str {
        match self {
            Self::MemoryNotReleased => "memory not released",
            Self::Zombie => "zombie",
            Self::Stopped => "stopped",
            Self::Traced => "traced",
            Self::DiskWait => "disk wait",
            Self::Hidden => "hidden",
        }
    }

    /// Urgency, the lowest first; `None` if it is no fault.
    pub(super) fn rank(self) -> Option<u8> {
        match self {
            Self::MemoryNotReleased => Some(2),
            Self::Zombie => Some(3),
            Self::Stopped | Self::Traced => Some(4),
            Self::DiskWait => Some(5),
            Self::Hidden => None,
        }
    }
}

/// How long a process must have been seen in uninterruptible sleep, and in nothing else, before it is said.
pub const DISK_WAIT_THRESHOLD: std::time::Duration = std::time::Duration::from_secs(10);

/// Adds what is known; `None` where nothing is.
pub(super) fn sum<T: std::ops::Add<Output = T>>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
    values.flatten().reduce(|total, value| total + value)
}

impl ProcessInfo {
    /// Works out the rest from the facts.
    pub fn new(key: &ProcessKey, facts: Option<ProcessFacts>, presence: Option<Presence>) -> Self {
        let job = JobKey::of_process(key, facts.as_ref());
        let command = match &facts {
            Some(facts) => command_line(&facts.argv, facts.name.as_ref()),
            None => None,
        };
        let command = command.unwrap_or_else(|| match presence {
            _ if key.pid == 0 => "(the driver does not name the process)".into(),
            Some(Presence::Gone) => "(no such process)".into(),
            Some(Presence::Hidden) => "(hidden by the host)".into(),
            _ => "-".into(),
        });
        let launcher = facts.as_ref().and_then(launcher).map(|ancestor| Launcher {
            key: ProcessKey {
                boot_id: key.boot_id.clone(),
                pid: ancestor.pid,
                start_ticks: Some(ancestor.start_ticks),
            },
            command: command_line(&ancestor.argv, Some(&ancestor.name)).unwrap_or_default(),
        });
        Self { who: who(facts.as_ref()), facts, job, launcher, command }
    }
}

/// Arguments as one line, else the short name in brackets.
fn command_line(argv: &[SafeText], name: Option<&SafeText>) -> Option<SafeText> {
    match (argv, name) {
        ([], None) => None,
        ([], Some(name)) => Some(SafeText::new(&format!("[{name}]"))),
        ([only], _) => Some(only.clone()),
        (argv, _) => Some(SafeText::new(&argv.iter().map(SafeText::as_str).collect::<Vec<_>>().join(" "))),
    }
}

/// Who a process belongs to: the user; for root, or an account without a name, what it runs in.
fn who(facts: Option<&ProcessFacts>) -> SafeText {
    let Some(facts) = facts else { return UNKNOWN_USER.into() };
    let owner = match &facts.owner {
        Some(Owner::Slurm { job, .. }) => Some(SafeText::new(&format!("slurm {job}"))),
        Some(Owner::Pod { uid, .. }) => Some(SafeText::new(&format!("pod {}", short_id(uid)))),
        Some(Owner::Container { runtime, id }) => Some(SafeText::new(&format!("{runtime} {}", short_id(id)))),
        Some(Owner::Service(_) | Owner::Session(_) | Owner::Unknown) | None => None,
    };
    match (&facts.user, facts.uid, owner) {
        (Some(user), Some(0), owner) => owner.unwrap_or_else(|| user.clone()),
        (Some(user), _, _) => user.clone(),
        (None, _, Some(owner)) => owner,
        (None, Some(uid), None) => SafeText::new(&uid.to_string()),
        (None, None, None) => UNKNOWN_USER.into(),
    }
}

/// The first 12 characters, as `docker ps` shows an id.
fn short_id(id: &SafeText) -> String {
    id.chars().take(12).collect()
}
