//! One process on a GPU: its identity, its facts and readings, its job, and the program name of its command line.

use super::Moment;
use crate::wire::{
    Ancestor, GpuProcessKind, GpuProcessReading, Owner, Presence, ProcessFacts, ProcessReading, ProcessState, SafeText,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The identity of a process across pid reuse and reboots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessKey {
    /// The host's boot id.
    pub boot_id: Option<SafeText>,
    /// The process id; 0 if the driver does not report it.
    pub pid: u32,
    /// Start time in clock ticks after boot; `None` if /proc does not show the process.
    pub start_ticks: Option<u64>,
}

/// Leaves out the boot id, which is equal for all processes of a host: hashing its text took a tenth of the time to
/// apply a snapshot.
impl Hash for ProcessKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pid.hash(state);
        self.start_ticks.hash(state);
    }
}

/// The rarely changing properties of a process, computed when its facts arrive.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessInfo {
    /// The facts from the probe; `None` if /proc does not show the process.
    pub facts: Option<ProcessFacts>,
    /// The job that the process belongs to.
    pub job: JobKey,
    /// The user; for root or an account without a name, the Slurm job, pod or container; else [`UNKNOWN_USER`].
    pub who: SafeText,
    /// The ancestor that started the process and its siblings, if there is one.
    pub launcher: Option<Launcher>,
    /// The command in one line: the arguments, else the short name in brackets as in `ps`, else why there is none.
    pub command: SafeText,
    /// Whether the arguments of the process or of an ancestor say that it was started on several hosts.
    pub is_for_several_hosts: bool,
}

/// The topmost ancestor of the same user that is not a shell.
#[derive(Debug, Clone, PartialEq)]
pub struct Launcher {
    /// The identity.
    pub key: ProcessKey,
    /// The command in one line.
    pub command: SafeText,
}

/// Shown in place of an unknown user.
pub const UNKNOWN_USER: &str = "-";

/// One process on GPUs with its readings.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// The identity.
    pub key: ProcessKey,
    /// The rarely changing properties.
    pub info: Arc<ProcessInfo>,
    /// The readings on the host.
    pub reading: ProcessReading,
    /// The readings on each GPU, by ascending inventory position.
    pub gpus: Vec<GpuProcessReading>,
    /// Since when every sample has shown the present state.
    pub state_since: Moment,
    /// Whether the readings are the last known ones because the GPUs do not answer.
    pub is_stale: bool,
}

/// A process that ended while its host was watched.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedProcess {
    /// The last readings.
    pub process: Process,
    /// When the process was first missing. It ended between the previous snapshot and this one.
    pub ended_at: Moment,
}

impl Process {
    /// The facts from the probe.
    pub fn facts(&self) -> Option<&ProcessFacts> {
        self.info.facts.as_ref()
    }

    /// The memory on all GPUs in bytes; `None` if no GPU reports it.
    pub fn gpu_memory_bytes(&self) -> Option<u64> {
        sum(self.gpus.iter().map(|gpu| gpu.gpu_memory_bytes))
    }

    /// The lowest and the highest SM utilization over the GPUs, in percent.
    pub fn sm_percent(&self) -> Option<(u8, u8)> {
        self.gpus.iter().filter_map(|gpu| gpu.sm_percent).fold(None, |range, percent| {
            let (least, most) = range.unwrap_or((percent, percent));
            Some((least.min(percent), most.max(percent)))
        })
    }

    /// The inventory positions of the GPUs, ascending.
    pub fn gpu_positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.gpus.iter().filter_map(|gpu| gpu.gpu.map(usize::from))
    }

    /// Whether the process computes on the GPU at `position`. A graphics process does not occupy a GPU. A driver that
    /// does not report the kind lists compute processes only.
    pub fn computes_on(&self, position: usize) -> bool {
        self.usage_on(position).is_some_and(|usage| usage.kind != Some(GpuProcessKind::Graphics))
    }

    /// The readings on the GPU at `position`.
    pub fn usage_on(&self, position: usize) -> Option<&GpuProcessReading> {
        let position = u16::try_from(position).ok()?;
        let index = self.gpus.binary_search_by_key(&Some(position), |usage| usage.gpu).ok()?;
        self.gpus.get(index)
    }

    /// The condition that needs attention. [`Process::state_since`] gives its start.
    pub fn trouble(&self, now: Moment) -> Option<ProcessTrouble> {
        match (self.reading.presence, self.reading.state) {
            (Some(Presence::Gone), _) => Some(ProcessTrouble::MemoryNotReleased),
            (Some(Presence::Hidden), _) => Some(ProcessTrouble::Hidden),
            (_, Some(ProcessState::Zombie | ProcessState::Dead)) => Some(ProcessTrouble::Zombie),
            (_, Some(ProcessState::Stopped)) => Some(ProcessTrouble::Stopped),
            (_, Some(ProcessState::Traced)) => Some(ProcessTrouble::Traced),
            // A process that reads from disk enters this state many times a second.
            (_, Some(ProcessState::DiskSleep)) if now.since(self.state_since) >= DISK_WAIT_THRESHOLD => {
                Some(ProcessTrouble::DiskWait)
            }
            _ => None,
        }
    }
}

/// A condition that needs attention, or that explains missing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessTrouble {
    /// The process has exited, but the driver still lists its memory.
    MemoryNotReleased,
    /// Zombie or dead, and still on a GPU.
    Zombie,
    /// Stopped by a signal.
    Stopped,
    /// Stopped by a debugger.
    Traced,
    /// In uninterruptible sleep for [`DISK_WAIT_THRESHOLD`] or longer.
    DiskWait,
    /// The host hides the process (`hidepid`). Not a fault; it explains missing values.
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

    /// The urgency, lowest first; `None` if the condition is not a fault.
    pub(super) fn rank(self) -> Option<u8> {
        match self {
            Self::MemoryNotReleased => Some(3),
            Self::Zombie => Some(4),
            Self::Stopped | Self::Traced => Some(5),
            Self::DiskWait => Some(6),
            Self::Hidden => None,
        }
    }
}

/// How long a process must be in uninterruptible sleep without a break to count as [`ProcessTrouble::DiskWait`].
pub const DISK_WAIT_THRESHOLD: Duration = Duration::from_secs(10);

/// Numbers from hosts, whose sums must not overflow: each may be as large as its type allows.
pub(super) trait RemoteNumber: Copy {
    /// The sum; the largest number of the type if it is larger.
    fn plus(self, other: Self) -> Self;
}

impl RemoteNumber for u64 {
    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl RemoteNumber for f32 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl RemoteNumber for f64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

/// Sums the known values; `None` if no value is known.
pub(super) fn sum<T: RemoteNumber>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
    values.flatten().reduce(T::plus)
}

impl ProcessInfo {
    /// Computes the properties from the facts.
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
            key: ancestor_key(key, ancestor),
            command: command_line(&ancestor.argv, Some(&ancestor.name)).unwrap_or_default(),
        });
        let is_for_several_hosts = facts.as_ref().is_some_and(is_for_several_hosts);
        Self { who: who(facts.as_ref()), facts, job, launcher, command, is_for_several_hosts }
    }

    /// The approximate size in bytes. Texts that several values share count several times.
    pub fn memory_bytes(&self) -> usize {
        let facts = self.facts.as_ref().map_or(0, |facts| {
            let texts = [
                &facts.user,
                &facts.full_name,
                &facts.name,
                &facts.working_directory,
                &facts.log_path,
                &facts.container_name,
                &facts.runs_in,
            ];
            let owner = match &facts.owner {
                Some(Owner::Slurm { job, step }) => text_bytes(job) + step.as_ref().map_or(0, text_bytes),
                Some(Owner::Pod { uid, container }) => text_bytes(uid) + container.as_ref().map_or(0, text_bytes),
                Some(Owner::Container { runtime, id }) => text_bytes(runtime) + text_bytes(id),
                Some(Owner::Service(name) | Owner::Session(name)) => text_bytes(name),
                Some(Owner::Unknown) | None => 0,
            };
            let ancestors = facts
                .ancestors
                .iter()
                .map(|ancestor| size_of_val(ancestor) + text_bytes(&ancestor.name) + list_bytes(&ancestor.argv));
            texts.into_iter().flatten().map(text_bytes).sum::<usize>()
                + owner
                + list_bytes(&facts.argv)
                + ancestors.sum::<usize>()
        });
        let launcher = self.launcher.as_ref().map_or(0, |launcher| text_bytes(&launcher.command));
        size_of_val(self) + facts + launcher + text_bytes(&self.who) + text_bytes(&self.command)
    }
}

/// The value of [`ProcessInfo::is_for_several_hosts`], by the options of torchrun, Lightning and Accelerate, and those that programs
/// of TensorFlow have for the parameter servers of their workers.
fn is_for_several_hosts(facts: &ProcessFacts) -> bool {
    const OPTIONS: [&str; 5] = ["nnodes", "nodes", "num_nodes", "num_machines", "world_size"];
    const SERVERS: &str = "ps_hosts";
    let counts_hosts = |(place, argument): (usize, &SafeText), line: &[SafeText]| {
        let (flag, value) = argument.split_once('=').unwrap_or((argument, ""));
        let name = flag.trim_start_matches('-').replace('-', "_");
        let value = if value.is_empty() { line.get(place + 1).map_or("", |next| next.as_str()) } else { value };
        // An elastic job names the fewest and the most: "2:4".
        let least = value.split(':').next().and_then(|count| count.parse::<u32>().ok());
        let counts = OPTIONS.contains(&name.as_str()) && least >= Some(2);
        flag.starts_with('-') && (counts || (name == SERVERS && !value.is_empty()))
    };
    let mut lines = std::iter::once(&facts.argv).chain(facts.ancestors.iter().map(|parent| &parent.argv));
    lines.any(|line| line.iter().enumerate().any(|argument| counts_hosts(argument, line)))
}

/// The memory of a text: its bytes, the reference counts and the overhead of the allocator.
fn text_bytes(text: &SafeText) -> usize {
    if text.is_empty() { 0 } else { text.len() + 32 }
}

fn list_bytes(texts: &[SafeText]) -> usize {
    texts.iter().map(|text| size_of_val(text) + text_bytes(text)).sum()
}

/// The arguments in one line, else the short name in brackets.
fn command_line(argv: &[SafeText], name: Option<&SafeText>) -> Option<SafeText> {
    match (argv, name) {
        ([], None) => None,
        ([], Some(name)) => Some(SafeText::new(&format!("[{name}]"))),
        ([only], _) => Some(only.clone()),
        (argv, _) => Some(SafeText::new(&argv.iter().map(SafeText::as_str).collect::<Vec<_>>().join(" "))),
    }
}

/// The value of [`ProcessInfo::who`].
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

/// The first 12 characters, as in `docker ps`.
fn short_id(id: &SafeText) -> String {
    id.chars().take(12).collect()
}

/// The property that the processes of one job on one host share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKey {
    /// A Slurm job.
    Slurm {
        /// The cluster, if several use the same job ids. The cgroup does not contain it.
        cluster: Option<SafeText>,
        /// The job id.
        job: SafeText,
    },
    /// A container or a pod's container, except for what a shell in it runs.
    Container {
        /// `docker`, `podman`, `lxc`, `nspawn`, `apptainer`, `pod`.
        runtime: SafeText,
        /// The id or name of the container; if a pod's container is unknown, the uid of the pod.
        id: SafeText,
    },
    /// The topmost ancestor of the same user that is not a shell, tmux, screen or sshd; often the process itself. In a
    /// container, the shell of processes that have no such ancestor.
    Launcher(ProcessKey),
    /// The session of processes whose parents have exited.
    Session {
        /// The host's boot id.
        boot_id: Option<SafeText>,
        /// The session id (setsid(2)), which is the pid of the session's first process.
        session: u32,
    },
}

impl JobKey {
    /// The job of a process. A process without facts is a job by itself.
    pub fn of_process(process: &ProcessKey, facts: Option<&ProcessFacts>) -> Self {
        let Some(facts) = facts else { return Self::Launcher(process.clone()) };
        match &facts.owner {
            Some(Owner::Slurm { job, .. }) => return Self::Slurm { cluster: None, job: job.clone() },
            // People run several jobs in one container, each in a shell. Ranks that one shell started are one job.
            Some(Owner::Pod { .. } | Owner::Container { .. }) if shell(facts).is_some() => {
                return launcher(facts).or(shell(facts)).map_or(Self::Launcher(process.clone()), |ancestor| {
                    Self::Launcher(ancestor_key(process, ancestor))
                });
            }
            Some(Owner::Pod { uid, container }) => {
                return Self::Container { runtime: "pod".into(), id: container.as_ref().unwrap_or(uid).clone() };
            }
            Some(Owner::Container { runtime, id }) => {
                return Self::Container { runtime: runtime.clone(), id: id.clone() };
            }
            Some(Owner::Service(_) | Owner::Session(_) | Owner::Unknown) | None => {}
        }
        if let Some(launcher) = launcher(facts) {
            return Self::Launcher(ancestor_key(process, launcher));
        }
        match facts.session {
            Some(session) if is_orphaned(facts) => Self::Session { boot_id: process.boot_id.clone(), session },
            _ => Self::Launcher(process.clone()),
        }
    }
}

/// The form in JSON: `slurm:3385`, `container:docker/0123456789ab`, `launcher:5061`, `session:4211`.
impl fmt::Display for JobKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slurm { cluster: Some(cluster), job } => write!(formatter, "slurm:{cluster}/{job}"),
            Self::Slurm { cluster: None, job } => write!(formatter, "slurm:{job}"),
            Self::Container { runtime, id } => write!(formatter, "container:{runtime}/{id}"),
            Self::Launcher(process) => write!(formatter, "launcher:{}", process.pid),
            Self::Session { session, .. } => write!(formatter, "session:{session}"),
        }
    }
}

/// Returns the ancestor that started this process and its siblings: the topmost one of the same user below the first
/// shell, multiplexer, login or init. Returns `None` if the process is a direct child of one of those.
///
/// Ancestors above such a shell do not count: the terminal of an editor or a notebook server would join everything that
/// runs in it into one job.
pub fn launcher(facts: &ProcessFacts) -> Option<&Ancestor> {
    let uid = facts.uid?;
    facts.ancestors.iter().take_while(|ancestor| ancestor.uid == Some(uid) && !is_boundary(ancestor)).last()
}

/// Whether the parents have exited and init or a subreaper has adopted the process.
fn is_orphaned(facts: &ProcessFacts) -> bool {
    facts.ancestors.first().is_none_or(|parent| parent.pid == 1 || is_init(&parent.name))
}

/// The shell, terminal multiplexer or login below which the job runs; `None` if a runtime or init started it.
fn shell(facts: &ProcessFacts) -> Option<&Ancestor> {
    facts.ancestors.iter().find(|ancestor| is_boundary(ancestor)).filter(|ancestor| is_shell_or_login(ancestor))
}

/// The identity of an ancestor, which runs on the same host as the process.
fn ancestor_key(process: &ProcessKey, ancestor: &Ancestor) -> ProcessKey {
    ProcessKey { boot_id: process.boot_id.clone(), pid: ancestor.pid, start_ticks: Some(ancestor.start_ticks) }
}

/// Whether an ancestor is a shell, a login or a runtime of jobs and containers, and thus not part of a job.
fn is_boundary(ancestor: &Ancestor) -> bool {
    /// These run as root, as do the processes of many containers. Linux keeps 15 characters of a name.
    const RUNTIMES: [&str; 9] = [
        "containerd-shim",
        "conmon",
        "runc",
        "crun",
        "docker-init",
        "lxc-start",
        "systemd-nspawn",
        "slurmstepd",
        "slurm_script",
    ];
    let name: &str = &ancestor.name;
    is_shell_or_login(ancestor) || RUNTIMES.contains(&name) || is_init(name)
}

/// Whether an ancestor is a shell, a terminal multiplexer or a login.
fn is_shell_or_login(ancestor: &Ancestor) -> bool {
    const LOGINS: [&str; 10] =
        ["sshd", "sshd-session", "dropbear", "mosh-server", "login", "su", "screen", "SCREEN", "tmux", "zellij"];
    let name: &str = &ancestor.name;
    // A script has its own name, but its first argument is the shell that runs it.
    let program = ancestor.argv.first().map_or("", |program| program.rsplit('/').next().unwrap_or_default());
    is_shell(name) || is_shell(program.trim_start_matches('-')) || LOGINS.contains(&name) || name.starts_with("tmux: ")
}

fn is_shell(name: &str) -> bool {
    const SHELLS: [&str; 15] = [
        "sh", "bash", "zsh", "fish", "dash", "ash", "ksh", "ksh93", "mksh", "csh", "tcsh", "nu", "xonsh", "elvish",
        "pwsh",
    ];
    SHELLS.contains(&name)
}

/// Processes that adopt orphans: pid 1 under its usual names, and the systemd instance of a user.
fn is_init(name: &str) -> bool {
    matches!(name, "init" | "systemd" | "tini" | "dumb-init" | "catatonit" | "runit")
}

/// Programs that start one Python script as several workers.
const LAUNCHERS: [&str; 6] = [
    "torchrun",
    "accelerate",
    "deepspeed",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
];
const INTERPRETERS: [&str; 5] = ["uv", "node", "perl", "ruby", "julia"];

/// The program name of a command line: the script or module of an interpreter, the script that a launcher such as
/// `torchrun` starts, else the program. Empty if the command line is empty.
pub fn program_name(command: &str) -> &str {
    program_and_arguments(command).split_whitespace().next().unwrap_or("")
}

/// The command line from [`program_name`] on.
pub fn program_and_arguments(command: &str) -> &str {
    let mut words = words(command);
    let Some((start, first)) = words.next().map(base_name) else { return "" };
    let is_interpreter = first.starts_with("python") || INTERPRETERS.contains(&first);
    let (start, name) = is_interpreter.then(|| script(&mut words)).flatten().unwrap_or((start, first));
    let (start, _) = LAUNCHERS.contains(&name).then(|| launched_script(words)).flatten().unwrap_or((start, name));
    command.get(start..).unwrap_or("")
}

/// A word of a command line with its byte offset.
type Word<'a> = (usize, &'a str);

fn words(command: &str) -> impl Iterator<Item = Word<'_>> {
    let mut end = 0;
    let pieces = command.split_inclusive(char::is_whitespace).map(move |piece| {
        end += piece.len();
        (end - piece.len(), piece.trim_end())
    });
    pieces.filter(|(_, word)| !word.is_empty())
}

/// The script or module that an interpreter runs.
fn script<'a>(words: &mut impl Iterator<Item = Word<'a>>) -> Option<Word<'a>> {
    match words.find(|(_, word)| !word.starts_with('-') || *word == "-m" || *word == "-c")? {
        (_, "-m") => words.next(),
        (_, "-c") => None,
        path => Some(base_name(path)),
    }
}

/// Launcher options may have values, so only a file or a module is certain to be the started script.
fn launched_script<'a>(mut words: impl Iterator<Item = Word<'a>>) -> Option<Word<'a>> {
    match words.find(|(_, word)| is_script(word) || *word == "-m" || *word == "--module")? {
        (_, "-m" | "--module") => words.next(),
        path => Some(base_name(path)),
    }
}

fn is_script(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|extension| extension == "py")
}

fn base_name((start, path): Word<'_>) -> Word<'_> {
    match path.rsplit_once('/') {
        Some((folders, name)) if !name.is_empty() => (start + folders.len() + 1, name),
        _ => (start, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1000;

    fn ancestor(pid: u32, uid: u32, name: &str) -> Ancestor {
        Ancestor { pid, start_ticks: u64::from(pid) * 10, uid: Some(uid), name: name.into(), argv: Vec::new() }
    }

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { boot_id: Some("boot".into()), pid, start_ticks: Some(u64::from(pid) * 10) }
    }

    fn facts(pid: u32, uid: u32, ancestors: Vec<Ancestor>) -> ProcessFacts {
        ProcessFacts { pid, uid: Some(uid), ancestors, ..ProcessFacts::default() }
    }

    fn job(pid: u32, uid: u32, ancestors: Vec<Ancestor>) -> String {
        let key = JobKey::of_process(&key(pid), Some(&facts(pid, uid, ancestors)));
        key.to_string()
    }

    #[test]
    fn sums_of_remote_numbers_do_not_overflow() {
        assert_eq!(sum([Some(u64::MAX), None, Some(2)].into_iter()), Some(u64::MAX));
        assert_eq!(sum([Some(1.5_f32), Some(2.0)].into_iter()), Some(3.5));
        assert_eq!(sum([None::<u64>, None].into_iter()), None);
    }

    #[test]
    fn options_tell_that_a_program_was_started_on_several_hosts() {
        let is_for_several = |line: &str| {
            let argv = line.split(' ').map(SafeText::new).collect();
            is_for_several_hosts(&ProcessFacts { argv, ..ProcessFacts::default() })
        };
        for line in [
            "train.py --nnodes=2",
            "train.py --num_nodes 4",
            "train.py --nodes 4",
            "train.py --world-size=8",
            "cnn.py --ps_hosts=cnn-ps-0:2222",
        ] {
            assert!(is_for_several(line), "{line}");
        }
        for line in ["train.py --nnodes=1", "cnn.py --ps_hosts=", "train.py nnodes 2"] {
            assert!(!is_for_several(line), "{line}");
        }
    }

    #[test]
    fn workers_of_one_torchrun_are_one_job() {
        let parents = || vec![ancestor(500, ALICE, "torchrun"), ancestor(400, ALICE, "bash")];
        assert_eq!(
            JobKey::of_process(&key(501), Some(&facts(501, ALICE, parents()))),
            JobKey::of_process(&key(502), Some(&facts(502, ALICE, parents()))),
        );
        assert_eq!(JobKey::of_process(&key(501), Some(&facts(501, ALICE, parents()))), JobKey::Launcher(key(500)));
    }

    #[test]
    fn the_topmost_ancestor_is_the_launcher() {
        let parents = vec![
            ancestor(503, ALICE, "python3.11"),
            ancestor(502, ALICE, "accelerate"),
            ancestor(501, ALICE, "uv"),
            ancestor(400, ALICE, "tmux: server"),
        ];
        assert_eq!(job(510, ALICE, parents), "launcher:501");
    }

    #[test]
    fn shells_multiplexers_and_logins_are_no_launchers() {
        for boundary in ["bash", "zsh", "tmux: server", "SCREEN", "sshd", "sshd-session", "systemd"] {
            let parents = vec![ancestor(400, ALICE, boundary), ancestor(300, ALICE, "code-server")];
            assert_eq!(job(510, ALICE, parents), "launcher:510", "{boundary}");
        }
    }

    #[test]
    fn a_shell_script_is_no_launcher() {
        let script =
            Ancestor { argv: ["/bin/bash", "./run.sh"].map(SafeText::new).to_vec(), ..ancestor(500, ALICE, "run.sh") };
        assert_eq!(job(510, ALICE, vec![script, ancestor(400, ALICE, "bash")]), "launcher:510");
    }

    #[test]
    fn container_and_job_runtimes_are_no_launchers() {
        for runtime in ["containerd-shim", "conmon", "slurmstepd", "slurm_script"] {
            let parents = vec![ancestor(500, 0, "torchrun"), ancestor(400, 0, runtime), ancestor(300, 0, "python")];
            let facts = facts(510, 0, parents);
            assert_eq!(launcher(&facts).map(|launcher| launcher.pid), Some(500), "{runtime}");
        }
    }

    #[test]
    fn two_commands_of_one_shell_are_two_jobs() {
        let shell = || vec![ancestor(400, ALICE, "bash"), ancestor(300, 0, "sshd")];
        assert_ne!(job(510, ALICE, shell()), job(511, ALICE, shell()));
    }

    #[test]
    fn a_parent_of_another_user_is_no_launcher() {
        let parents = vec![ancestor(500, 0, "sudo"), ancestor(400, ALICE, "bash")];
        assert_eq!(job(510, 1001, parents.clone()), "launcher:510");
        assert_eq!(job(510, 0, parents), "launcher:500");
    }

    #[test]
    fn orphans_of_one_session_are_one_job() {
        let orphan = |pid| {
            let facts = ProcessFacts { session: Some(400), ..facts(pid, ALICE, vec![ancestor(1, 0, "systemd")]) };
            JobKey::of_process(&key(pid), Some(&facts))
        };
        assert_eq!(orphan(510), orphan(511));
        assert_eq!(orphan(510).to_string(), "session:400");
    }

    #[test]
    fn the_session_does_not_count_while_a_parent_is_known() {
        let facts = ProcessFacts { session: Some(400), ..facts(510, ALICE, vec![ancestor(400, ALICE, "bash")]) };
        assert_eq!(JobKey::of_process(&key(510), Some(&facts)), JobKey::Launcher(key(510)));
    }

    #[test]
    fn slurm_jobs_and_containers_take_precedence_over_parents() {
        let owned = |owner| {
            let facts = ProcessFacts { owner: Some(owner), ..facts(510, 0, vec![ancestor(500, 0, "python")]) };
            JobKey::of_process(&key(510), Some(&facts)).to_string()
        };
        assert_eq!(owned(Owner::Slurm { job: "3385".into(), step: Some("0".into()) }), "slurm:3385");
        assert_eq!(owned(Owner::Container { runtime: "docker".into(), id: "abc".into() }), "container:docker/abc");
        assert_eq!(owned(Owner::Pod { uid: "u".into(), container: Some("c".into()) }), "container:pod/c");
        assert_eq!(owned(Owner::Pod { uid: "u".into(), container: None }), "container:pod/u");
        assert_eq!(owned(Owner::Service("ollama.service".into())), "launcher:500");
    }

    #[test]
    fn a_shell_in_a_container_runs_jobs_of_its_own() {
        let owned = |owner: &Owner, ancestors| {
            let facts = ProcessFacts { owner: Some(owner.clone()), ..facts(510, 0, ancestors) };
            JobKey::of_process(&key(510), Some(&facts)).to_string()
        };
        let shim = || ancestor(300, 0, "containerd-shim");
        for owner in [
            Owner::Container { runtime: "docker".into(), id: "c".into() },
            Owner::Pod { uid: "u".into(), container: Some("c".into()) },
        ] {
            assert_eq!(owned(&owner, vec![ancestor(400, 0, "bash"), shim()]), "launcher:400");
            assert_eq!(
                owned(&owner, vec![ancestor(500, 0, "torchrun"), ancestor(400, 0, "bash"), shim()]),
                "launcher:500"
            );
            let main_program = owned(&owner, vec![ancestor(500, 0, "torchrun"), shim()]);
            assert!(main_program.starts_with("container:"), "{main_program}");
            assert!(owned(&owner, Vec::new()).starts_with("container:"));
        }
    }

    #[test]
    fn a_process_without_facts_is_a_job_by_itself() {
        assert_eq!(JobKey::of_process(&key(510), None), JobKey::Launcher(key(510)));
        let unknown_user = ProcessFacts { uid: None, ..facts(510, 0, vec![ancestor(500, 0, "python")]) };
        assert_eq!(JobKey::of_process(&key(510), Some(&unknown_user)), JobKey::Launcher(key(510)));
    }

    #[test]
    fn program_name_is_the_script_of_an_interpreter() {
        for (command, name) in [
            ("python train.py --lr 1", "train.py"),
            ("/usr/bin/python3.11 -u /home/a/code/train.py", "train.py"),
            ("python3 -m ipykernel_launcher -f /tmp/k.json", "ipykernel_launcher"),
            ("/opt/bin/gmx mdrun", "gmx"),
            ("python", "python"),
            ("python -c pass", "python"),
            ("/bin/ -x", "/bin/"),
            ("", ""),
        ] {
            assert_eq!(program_name(command), name, "{command}");
        }
    }

    #[test]
    fn program_name_is_the_script_that_a_launcher_starts() {
        for (command, name) in [
            ("python /opt/conda/bin/torchrun --nproc_per_node 8 --master_port 29500 code/train.py --lr 1", "train.py"),
            ("torchrun --standalone -m lab.pretrain", "lab.pretrain"),
            ("python -m torch.distributed.run --nnodes=2 x.py y.py", "x.py"),
            ("accelerate launch --num_processes 8 sft.py", "sft.py"),
            ("torchrun --help", "torchrun"),
            // Not a launcher: the file is an argument.
            ("vim train.py", "vim"),
        ] {
            assert_eq!(program_name(command), name, "{command}");
        }
        assert_eq!(program_and_arguments("python  /x/x  --lr 1"), "x  --lr 1");
        assert_eq!(program_and_arguments("python -m torch.distributed.run --nnodes=2 a/x.py y"), "x.py y");
    }
}
