//! What is known of a process that uses a GPU.
//!
//! A process is (boot id, pid, start ticks). Readings that change travel in columns: [`GpuProcessReading`] is keyed by
//! (pid, GPU), [`ProcessReading`] by pid. What rarely changes travels once, as [`ProcessFacts`].

use super::SafeText;
use super::columns::columns;
use serde::{Deserialize, Serialize};

columns! {
    /// What one process does on one GPU.
    row GpuProcessReading;
    /// The (pid, GPU) rows of a snapshot.
    columns GpuProcessColumns;

    /// Process id in the host's namespace. Absent when the driver could not tell (0 and 2^32-1).
    pid: u32,
    /// Position of the GPU in the inventory (not its index).
    gpu: u16,
    /// What kind of context the process holds.
    kind: GpuProcessKind,
    /// Memory of this process on this GPU. Absent when the driver may not tell (MIG, WSL, other users' on some).
    /// `nvmlDeviceGetComputeRunningProcesses_v3` and its kin, `usedGpuMemory`.
    gpu_memory_bytes: u64,
    /// Share of the SMs' time since the previous snapshot. `nvmlDeviceGetProcessUtilization`, `smUtil`.
    /// Absent under MIG and when there is no fresh sample.
    sm_percent: u8,
    /// Share of the memory bandwidth's time. `nvmlDeviceGetProcessUtilization`, `memUtil`.
    memory_percent: u8,
    /// Encoder share. `nvmlDeviceGetProcessUtilization`, `encUtil`.
    encoder_percent: u8,
    /// Decoder share. `nvmlDeviceGetProcessUtilization`, `decUtil`.
    decoder_percent: u8,
}

columns! {
    /// What one process does on the host.
    row ProcessReading;
    /// The processes of a snapshot, one row a pid.
    columns ProcessColumns;

    /// Process id in the host's namespace.
    pid: u32,
    /// Start time in clock ticks after boot, field 22 of `/proc/PID/stat`, raw. Part of the process's identity.
    start_ticks: u64,
    /// Whether /proc shows the process.
    presence: Presence,
    /// State of the leader, `/proc/PID/stat` field 3. Of a process that gains CPU time from sample to sample as of the last
    /// 30 s.
    state: ProcessState,
    /// CPU share since the previous snapshot, 100 = one CPU; since an earlier one where the processes on the GPUs have more
    /// than two thousand threads. `clock_gettime` of its CPU time, else `/proc/PID/stat`, utime + stime.
    cpu_percent: f32,
    /// CPU time since the process began, in seconds, from where the share comes.
    cpu_seconds: f64,
    /// Resident memory, as of the last 30 s. `/proc/PID/stat` field 24.
    rss_bytes: u64,
    /// Number of threads, as of then. `/proc/PID/stat` field 20.
    threads: u32,
    /// Age of the process.
    age_seconds: f64,
    /// The parent now. `/proc/PID/stat` field 4.
    parent_pid: u32,
    /// Threads that are not dead, where they were counted: of a leader that neither runs nor sleeps as usual (a zombie),
    /// and of a process without a gain of CPU time and without a share of the SMs. `/proc/PID/task/*/stat`.
    threads_live: u32,
    /// Of the thread that has been in uninterruptible sleep for longest without a gain of CPU time: its id. Absent in a
    /// snapshot that finds it otherwise.
    blocked_thread: u32,
    /// Since when it has been, in seconds before this snapshot: since the first sight, as long as nine sights of ten
    /// found it so.
    blocked_seconds: f32,
    /// Threads in uninterruptible sleep when they were last read.
    threads_blocked: u32,
    /// Processes that descend from it and are not on a GPU (loader workers), as of the last walk of /proc, which begins
    /// every 10 s. One below two GPU processes belongs to the nearer. At most 256 of a host are counted.
    descendants: u32,
    /// CPU share of those since the walk before, 100 = one CPU.
    descendants_cpu_percent: f32,
    /// How many of those are in uninterruptible sleep.
    descendants_blocked: u32,
    /// Bytes it made go to storage since it began, as of the last 30 s; own processes only. `/proc/PID/io`, `write_bytes`.
    write_bytes: u64,
    /// Bytes it read, from storage or not, since it began, as of then; own processes only. `/proc/PID/io`, `rchar`.
    read_characters: u64,
    /// The kernel function that its blocked thread, else its leader, waits in; own processes only, and only of those
    /// that rest. `/proc/PID/task/TID/wchan`. Looked at when a thread blocks, else every 30 s.
    wait_channel: SafeText,
    /// Time since the regular file behind stdout or stderr was last written, looked at every 30 s; own processes only.
    /// On a network file system, which is never asked, it is the time for which the file was seen not to grow.
    log_age_seconds: f64,
}

/// What kind of context a process holds on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GpuProcessKind {
    /// A compute context.
    #[serde(rename = "C")]
    Compute,
    /// A graphics context.
    #[serde(rename = "G")]
    Graphics,
    /// Both.
    #[serde(rename = "C+G")]
    ComputeAndGraphics,
    /// A client of the multi-process service.
    #[serde(rename = "M")]
    Mps,
    /// A kind that this version does not know.
    #[serde(rename = "?", other)]
    Unknown,
}

impl GpuProcessKind {
    /// As `nvidia-smi` writes it; `-` for one that is not known.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "C",
            Self::Graphics => "G",
            Self::ComputeAndGraphics => "C+G",
            Self::Mps => "M",
            Self::Unknown => "-",
        }
    }
}

/// Whether /proc shows a process that the driver lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// /proc/PID can be read.
    Visible,
    /// The process exists but /proc hides it (`hidepid`, another namespace): kill(pid, 0) says EPERM.
    Hidden,
    /// No such process (ESRCH), yet the driver lists it: its memory was not released.
    Gone,
    /// A word that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The scheduler state of a process, as in `/proc/PID/stat` (proc(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// Running or runnable.
    #[serde(rename = "R")]
    Running,
    /// Interruptible sleep.
    #[serde(rename = "S")]
    Sleeping,
    /// Uninterruptible (disk) sleep.
    #[serde(rename = "D")]
    DiskSleep,
    /// Stopped by a signal.
    #[serde(rename = "T")]
    Stopped,
    /// Stopped by a debugger.
    #[serde(rename = "t")]
    Traced,
    /// Ended, not yet reaped.
    #[serde(rename = "Z")]
    Zombie,
    /// Dead.
    #[serde(rename = "X")]
    Dead,
    /// An idle kernel thread.
    #[serde(rename = "I")]
    Idle,
    /// A state this version does not know.
    #[serde(rename = "?", other)]
    Unknown,
}

impl ProcessState {
    /// From the letter in `/proc/PID/stat`.
    pub fn from_letter(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'S' => Self::Sleeping,
            'D' => Self::DiskSleep,
            'T' => Self::Stopped,
            't' => Self::Traced,
            'Z' => Self::Zombie,
            'X' | 'x' => Self::Dead,
            'I' => Self::Idle,
            _ => Self::Unknown,
        }
    }

    /// The letter that `ps` shows.
    pub fn letter(self) -> char {
        match self {
            Self::Running => 'R',
            Self::Sleeping => 'S',
            Self::DiskSleep => 'D',
            Self::Stopped => 'T',
            Self::Traced => 't',
            Self::Zombie => 'Z',
            Self::Dead => 'X',
            Self::Idle => 'I',
            Self::Unknown => '?',
        }
    }
}

/// What rarely changes about a process: sent when it is first seen and again when it changes. The last one wins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessFacts {
    /// Process id in the host's namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, raw. Absent for a process that /proc does not show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    /// When it started, in seconds since 1970 (boot time + ticks). For people only, never for identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_unix_seconds: Option<i64>,
    /// Real user id. `/proc/PID/status`, `Uid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Login name of that user, once getpwuid(3) has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<SafeText>,
    /// Full name of that user (GECOS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_name: Option<SafeText>,
    /// The kernel's short name. `/proc/PID/comm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SafeText>,
    /// Arguments with secrets redacted, at most 4 KiB in all. `/proc/PID/cmdline`. Empty for a zombie.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<SafeText>,
    /// Parents from the nearest up to and including the first shell, tmux, screen, sshd or init.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<Ancestor>,
    /// The session id (setsid(2)), `/proc/PID/stat` field 6: groups a job whose parent chain is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u32>,
    /// It ignores SIGHUP, as `nohup` makes it: it is meant to outlive its parent. `/proc/PID/status`, `SigIgn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignores_hangup: Option<bool>,
    /// Where it works; own processes only. `/proc/PID/cwd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<SafeText>,
    /// The regular file behind stdout, else stderr; own processes only. `/proc/PID/fd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_path: Option<SafeText>,
    /// The name of the container, where the login user may ask for it or /proc shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_name: Option<SafeText>,
    /// The terminal multiplexer or notebook it runs in: `tmux`, `screen`, `jupyter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_in: Option<SafeText>,
    /// Who runs it beyond the user: a Slurm job, a container, a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// One parent in a process's chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ancestor {
    /// Process id.
    pub pid: u32,
    /// Field 22 of its `/proc/PID/stat`.
    pub start_ticks: u64,
    /// Its real user id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its short name, `/proc/PID/comm`.
    pub name: SafeText,
    /// Its arguments, redacted, at most 1 KiB.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<SafeText>,
}

/// Who runs a process, read off its cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum Owner {
    /// A Slurm job.
    Slurm {
        /// The job id.
        job: SafeText,
        /// The step, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<SafeText>,
    },
    /// A Kubernetes pod.
    Pod {
        /// The pod's uid.
        uid: SafeText,
        /// The container's 64 hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        container: Option<SafeText>,
    },
    /// A Docker, podman, LXC or nspawn container.
    Container {
        /// `docker`, `podman`, `lxc`, `nspawn`, `apptainer`.
        runtime: SafeText,
        /// Its id (12 digits) or name.
        id: SafeText,
    },
    /// A systemd service.
    Service(SafeText),
    /// A systemd login session.
    Session(SafeText),
    /// An owner that this version does not know.
    #[serde(other)]
    Unknown,
}

super::open_enum::open_enums!(Owner);
