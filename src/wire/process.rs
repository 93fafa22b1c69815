//! Processes that use a GPU.
//!
//! A process is identified by boot id, pid and start ticks. Readings that change are sent in columns:
//! [`GpuProcessReading`] per (pid, GPU) and [`ProcessReading`] per pid. [`ProcessFacts`] rarely change and are sent
//! once.

use super::columns::columns;
use super::{SafeText, limits};
use serde::{Deserialize, Serialize};

columns! {
    /// Use of one GPU by one process.
    row GpuProcessReading;
    /// One row per (pid, GPU) of a snapshot; at most twice [`limits::MAX_PROCESSES`].
    columns GpuProcessColumns;

    /// Process id in the pid namespace of the host. Absent if the driver does not know it (0 and 2^32-1).
    pid: u32,
    /// Position of the GPU in the inventory, which is not its index.
    gpu: u16,
    /// Kind of context that the process holds.
    kind: GpuProcessKind,
    /// Memory of the process on this GPU. `nvmlDeviceGetComputeRunningProcesses_v3` and its graphics and MPS
    /// counterparts, `usedGpuMemory`. Absent if the driver does not report it (MIG, WSL, on some drivers for other
    /// users).
    gpu_memory_bytes: u64,
    /// Percentage of SM time since the previous snapshot. `nvmlDeviceGetProcessUtilization`, `smUtil`. Absent under MIG
    /// and without a new sample.
    sm_percent: u8,
    /// Percentage of memory bandwidth time. `nvmlDeviceGetProcessUtilization`, `memUtil`.
    memory_percent: u8,
    /// Encoder percentage. `nvmlDeviceGetProcessUtilization`, `encUtil`.
    encoder_percent: u8,
    /// Decoder percentage. `nvmlDeviceGetProcessUtilization`, `decUtil`.
    decoder_percent: u8,
}

columns! {
    /// Readings of one process on the host: one that uses a GPU, or a new run, without a GPU, of a program that left the GPUs.
    row ProcessReading;
    /// One row per pid of a snapshot; at most [`limits::MAX_PROCESSES`].
    columns ProcessColumns;

    /// Process id in the pid namespace of the host.
    pid: u32,
    /// Start time in clock ticks since boot, part of the identity of the process. `/proc/PID/stat` field 22, unchanged.
    start_ticks: u64,
    /// Whether /proc shows the process.
    presence: Presence,
    /// State of the leader. `/proc/PID/stat` field 3. Up to 30 s old if the process gains CPU time in every sample.
    state: ProcessState,
    /// CPU percentage since the previous snapshot; 100 is one CPU. `clock_gettime` of its CPU clock, else `utime` +
    /// `stime` in `/proc/PID/stat`. If the GPU processes have more than 2048 threads together, the interval may be
    /// longer.
    cpu_percent: f32,
    /// CPU time in seconds since it started, from the source of `cpu_percent`.
    cpu_seconds: f64,
    /// Resident memory, up to 30 s old. `/proc/PID/stat` field 24.
    rss_bytes: u64,
    /// Number of threads, up to 30 s old. `/proc/PID/stat` field 20.
    threads: u32,
    /// Time since it started.
    age_seconds: f64,
    /// Current parent, up to 30 s old. `/proc/PID/stat` field 4.
    parent_pid: u32,
    /// Threads that are alive. `/proc/PID/task/*/stat`. Counted only if the leader neither runs nor sleeps normally (a
    /// zombie), or if the process gains no CPU time and does no work on SMs.
    threads_live: u32,
    /// Id of the thread that has been in uninterruptible sleep for the longest time without gaining CPU time. Absent if
    /// no thread is blocked in this sample.
    blocked_thread: u32,
    /// Seconds for which that thread has been blocked: since the first sample that found it so, as long as nine of ten
    /// samples do.
    blocked_seconds: f32,
    /// Threads in uninterruptible sleep when they were last read.
    threads_blocked: u32,
    /// Descendants that are not on a GPU (data loaders), as of the last scan of /proc. A scan starts every 10 s. A
    /// descendant of two GPU processes counts for the nearer one. At most 256 per host are counted.
    descendants: u32,
    /// CPU percentage of those since the previous scan; 100 is one CPU.
    descendants_cpu_percent: f32,
    /// Number of those in uninterruptible sleep.
    descendants_blocked: u32,
    /// Bytes written to storage since it started, up to 30 s old; own processes only. `/proc/PID/io`, `write_bytes`.
    write_bytes: u64,
    /// Bytes read, from storage or not, since it started, up to 30 s old; own processes only. `/proc/PID/io`, `rchar`.
    read_characters: u64,
    /// Kernel function in which its blocked thread, else its leader, waits; only for idle processes of the own user.
    /// `/proc/PID/task/TID/wchan`. Read when a thread blocks, else every 30 s.
    wait_channel: SafeText,
    /// Time since the last write to the regular file behind stdout or stderr, read every 30 s; own processes only. On a
    /// network file system, which is never queried, it is the time for which the file has not grown.
    log_age_seconds: f64,
    /// Established TCP connections, up to 90 s old; own processes only. sock_diag(7), else `/proc/PID/net/tcp` and `tcp6`, of the
    /// sockets in `/proc/PID/fd`. Absent until they were read.
    established_connections: u32,
    /// Clients that wait for an answer: connections, to a port on which it or its front end listens, that received data after
    /// the last data were sent on them. The front end are its ancestors up to the first shell, and the children of its parent.
    /// Up to 90 s old; own processes only, in another network namespace only as root. `tcp_info` from sock_diag(7),
    /// `tcpi_last_data_recv` and `tcpi_last_data_sent`. Absent if nobody listens.
    waiting_clients: u32,
    /// Longest wait of those clients. Absent if none waits.
    longest_wait_seconds: f64,
}

/// Kind of context that a process holds on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// A client of MPS, the multi-process service.
    #[serde(rename = "M")]
    Mps,
    /// A kind that this version does not know.
    #[serde(rename = "?", other)]
    Unknown,
}

impl GpuProcessKind {
    /// Returns the name that `nvidia-smi` prints; `-` if it is unknown.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// `/proc/PID` can be read.
    Visible,
    /// The process exists, but /proc hides it (`hidepid`, another pid namespace): kill(pid, 0) returns EPERM.
    Hidden,
    /// No such process (ESRCH), although the driver lists it: its memory was not released.
    Gone,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Scheduler state of a process (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Exited, not yet reaped.
    #[serde(rename = "Z")]
    Zombie,
    /// Dead.
    #[serde(rename = "X")]
    Dead,
    /// An idle kernel thread.
    #[serde(rename = "I")]
    Idle,
    /// A state that this version does not know.
    #[serde(rename = "?", other)]
    Unknown,
}

impl ProcessState {
    /// Converts the letter in `/proc/PID/stat`.
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

    /// Returns the letter that `ps` prints.
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

/// Facts of a process that rarely change. Sent when the process is first seen and again when they change; the last ones
/// apply.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProcessFacts {
    /// Process id in the pid namespace of the host.
    pub pid: u32,
    /// Start time in clock ticks since boot. `/proc/PID/stat` field 22, unchanged. Absent if /proc does not show the
    /// process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    /// Start time in seconds since 1970 (boot time plus ticks), for display only, never for identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_unix_seconds: Option<i64>,
    /// Real user id. `/proc/PID/status`, `Uid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Login name of that user. Absent until getpwuid(3) has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<SafeText>,
    /// Full name of that user (GECOS). Absent if it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_name: Option<SafeText>,
    /// Short name. `/proc/PID/comm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SafeText>,
    /// Arguments with secrets redacted, at most 4 KiB in all and [`limits::MAX_ARGUMENTS`]. `/proc/PID/cmdline`. Empty
    /// until they are read and for a zombie.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::arguments")]
    pub argv: Vec<SafeText>,
    /// Ancestors from the parent up to the first shell, tmux, screen, sshd or init, which is included; at most
    /// [`limits::MAX_ANCESTORS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::ancestors")]
    pub ancestors: Vec<Ancestor>,
    /// Session id (setsid(2)), which groups the processes of a job whose parents have exited. `/proc/PID/stat` field 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u32>,
    /// Whether it ignores SIGHUP, as under `nohup`, so that it outlives its parent. `/proc/PID/status`, `SigIgn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignores_hangup: Option<bool>,
    /// Working directory; own processes only. `/proc/PID/cwd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<SafeText>,
    /// Path of the regular file behind stdout, else stderr; own processes only. `/proc/PID/fd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_path: Option<SafeText>,
    /// TCP ports on which it listens, ascending, without that of `MASTER_PORT` (the rendezvous of a distributed job); own
    /// processes only. Read with [`ProcessReading::established_connections`]. At most [`limits::MAX_PORTS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::ports")]
    pub listening_ports: Vec<u16>,
    /// Name of the container. Absent unless the login user may query it or /proc shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_name: Option<SafeText>,
    /// Terminal multiplexer or notebook in which it runs: `tmux`, `screen`, `jupyter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_in: Option<SafeText>,
    /// The job, container, service or session to which it belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// A program that left the GPUs may run again within this time, in seconds. Later it is forgotten.
pub(crate) const RERUN_SECONDS: f64 = 3.0 * 3600.0;

impl ProcessFacts {
    /// The program and its script or module, with the options between them: the arguments that stay when somebody starts it again
    /// with other settings.
    pub(crate) fn program_and_script(&self) -> &[SafeText] {
        /// Options of interpreters come before the script.
        const MOST: usize = 8;
        let mut count = 0;
        let mut takes_value = true;
        for argument in self.argv.iter().take(MOST) {
            count += 1;
            // The first one is the program. The options -W and -X of Python have a value.
            if !takes_value && !argument.starts_with('-') {
                break;
            }
            takes_value = *argument == *"-W" || *argument == *"-X";
        }
        &self.argv[..count]
    }
}

/// An ancestor of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Ancestor {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot. `/proc/PID/stat` field 22.
    pub start_ticks: u64,
    /// Real user id. `/proc/PID/status`, `Uid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Short name. `/proc/PID/comm`.
    pub name: SafeText,
    /// Arguments with secrets redacted, at most 1 KiB in all and [`limits::MAX_ARGUMENTS`]. `/proc/PID/cmdline`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::arguments")]
    pub argv: Vec<SafeText>,
}

/// The job, container, service or session of a process, from its cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum Owner {
    /// A Slurm job.
    Slurm {
        /// Job id, or the SLUID until the id is known.
        job: SafeText,
        /// Step id. Absent if it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<SafeText>,
    },
    /// A Kubernetes pod.
    Pod {
        /// Uid of the pod.
        uid: SafeText,
        /// Container id, 64 hexadecimal digits. Absent if it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        container: Option<SafeText>,
    },
    /// A container of Docker, podman, LXC, nspawn or Apptainer.
    Container {
        /// `docker`, `podman`, `lxc`, `nspawn`, `apptainer`.
        runtime: SafeText,
        /// Container id (12 digits) or name.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_its_script_are_the_arguments_up_to_the_first_word() {
        for (command, expected) in [
            ("python train.py --lr 1 data", "python train.py"),
            ("python -u train.py --lr 1", "python -u train.py"),
            ("python -u -m pkg.train --lr 1", "python -u -m pkg.train"),
            ("python -W ignore -X dev x.py y", "python -W ignore -X dev x.py"),
            ("java -Xmx8g -jar x.jar run", "java -Xmx8g -jar x.jar"),
            ("vllm serve model", "vllm serve"),
            ("./train", "./train"),
            ("a -1 -2 -3 -4 -5 -6 -7 -8 b", "a -1 -2 -3 -4 -5 -6 -7"),
        ] {
            let argv = command.split(' ').map(SafeText::from).collect();
            let facts = ProcessFacts { argv, ..ProcessFacts::default() };
            let words: Vec<&str> = facts.program_and_script().iter().map(SafeText::as_str).collect();
            assert_eq!(words.join(" "), expected);
        }
        assert!(ProcessFacts::default().program_and_script().is_empty());
    }
}
