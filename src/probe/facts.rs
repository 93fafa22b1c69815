//! What rarely changes about a process: command, user, parents, owner.

use super::owner::{owner, sluid_path, slurmstepd_job};
use super::procfs::{Scratch, Stat, real_uid};
use crate::wire::redact::redact;
use crate::wire::{Ancestor, Owner, SafeText};
use std::hash::{DefaultHasher, Hasher};

/// The most bytes of a process's command line.
const COMMAND_BYTES: usize = 4096;
/// The most bytes of a parent's command line.
const PARENT_COMMAND_BYTES: usize = 1024;
/// The most parents that are named.
const MAX_ANCESTORS: usize = 24;
/// Where the chain of parents ends: what is above started no job of its own.
const ROOTS: [&str; 21] = [
    "bash",
    "sh",
    "dash",
    "zsh",
    "fish",
    "ksh",
    "tcsh",
    "csh",
    "ash",
    "nu",
    "tmux",
    "tmux: server",
    "screen",
    "SCREEN",
    "sshd",
    "sshd-session",
    "login",
    "init",
    "systemd",
    "slurmstepd",
    "containerd-shim",
];

/// A command line, with a fingerprint of its bytes so that a later look can tell whether it changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) argv: Vec<SafeText>,
    fingerprint: u64,
}

impl Command {
    /// Reads `/proc/PID/cmdline` unless its bytes are those of `self`; whether they had changed. Without an answer, or
    /// with an empty one (a zombie, a kernel thread), what is known stays.
    pub(crate) fn refresh(&mut self, scratch: &mut Scratch, pid: u32, limit: usize) -> bool {
        let Ok(bytes) = scratch.read_process(pid, "cmdline", limit) else { return false };
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        let fingerprint = hasher.finish();
        if bytes.is_empty() || fingerprint == self.fingerprint {
            return false;
        }
        *self = Self { argv: arguments(bytes), fingerprint };
        true
    }

    /// The same, with the limit for a process on a GPU.
    pub(crate) fn refresh_whole(&mut self, scratch: &mut Scratch, pid: u32) -> bool {
        self.refresh(scratch, pid, COMMAND_BYTES)
    }
}

/// The arguments in the bytes of `/proc/PID/cmdline`, secrets taken out.
fn arguments(cmdline: &[u8]) -> Vec<SafeText> {
    let end = cmdline.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let arguments: Vec<_> = cmdline[..end].split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    redact(&arguments).iter().map(|argument| SafeText::new(argument)).collect()
}

/// The real user of a process.
pub(crate) fn uid_of(scratch: &mut Scratch, pid: u32) -> Option<u32> {
    real_uid(scratch.read_process(pid, "status", 4096).ok()?)
}

/// The parents from `pid` up to and including the first shell, multiplexer, daemon of a login, or init.
pub(crate) fn ancestors(scratch: &mut Scratch, mut pid: u32) -> Vec<Ancestor> {
    let mut chain = Vec::new();
    while pid > 0 && chain.len() < MAX_ANCESTORS {
        let Some(stat) = scratch.read_process(pid, "stat", 4096).ok().and_then(Stat::parse) else { break };
        let (parent, start_ticks) = (stat.parent, stat.start_ticks);
        let name = String::from_utf8_lossy(stat.name).into_owned();
        let mut command = Command::default();
        command.refresh(scratch, pid, PARENT_COMMAND_BYTES);
        let uid = uid_of(scratch, pid);
        let is_root = pid == 1 || ROOTS.contains(&name.as_str()) || name.starts_with("containerd-shim");
        chain.push(Ancestor { pid, start_ticks, uid, name: name.into(), argv: command.argv });
        if is_root {
            break;
        }
        pid = parent;
    }
    chain
}

/// Who runs the process, from its cgroup.
pub(crate) fn owner_of(scratch: &mut Scratch, pid: u32, ancestors: &[Ancestor]) -> Option<Owner> {
    let cgroup = String::from_utf8_lossy(scratch.read_process(pid, "cgroup", 16 * 1024).ok()?).into_owned();
    match sluid_path(&cgroup) {
        Some(path) => job_of_sluid(scratch, &format!("/sys/fs/cgroup{path}")),
        None => None,
    }
    .or_else(|| owner(&cgroup, ancestors))
}

/// Looks for the step's daemon among the processes of each step's own cgroup.
fn job_of_sluid(scratch: &mut Scratch, folder: &str) -> Option<Owner> {
    std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let step = entry.file_name();
        let step = step.to_str().filter(|name| name.starts_with("step_"))?;
        let pids = scratch.read(&format!("{folder}/{step}/slurm/cgroup.procs")).ok()?.to_vec();
        let pids = std::str::from_utf8(&pids).ok()?;
        pids.split_ascii_whitespace().find_map(|pid| {
            let title = scratch.read_process(pid.parse().ok()?, "cmdline", 256).ok()?;
            slurmstepd_job(String::from_utf8_lossy(title).trim_end_matches('\0'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command as Process, Stdio};

    #[test]
    fn arguments_are_split_and_redacted() {
        assert_eq!(arguments(b"python\0train.py\0--token=abc\0\0"), ["python", "train.py", "--token=***"]);
        assert_eq!(arguments(b"a\0\0b\0"), ["a", "", "b"]);
        assert_eq!(arguments(b"postgres: writer"), ["postgres: writer"]);
    }

    #[test]
    fn a_command_is_read_once_and_parents_are_named() {
        let mut child =
            Process::new("sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        let mut scratch = Scratch::default();
        let mut command = Command::default();
        // The kernel has the arguments a moment after the parent goes on.
        while !command.refresh_whole(&mut scratch, child.id()) {
            std::thread::yield_now();
        }
        assert!(!command.refresh_whole(&mut scratch, child.id()));
        assert_eq!(command.argv, ["sleep", "600"]);
        let chain = ancestors(&mut scratch, std::process::id());
        assert_eq!(chain.first().map(|parent| parent.pid), Some(std::process::id()));
        assert_eq!(uid_of(&mut scratch, child.id()), uid_of(&mut scratch, std::process::id()));
        child.kill().expect("ends");
        child.wait().expect("ends");
        assert!(!command.refresh_whole(&mut scratch, child.id()));
        assert_eq!(command.argv, ["sleep", "600"]);
    }

    #[test]
    fn the_job_of_a_sluid_is_in_the_title_of_its_step_daemon() {
        let folder = tempfile::tempdir().expect("folder");
        let steps = folder.path().join("step_0/slurm");
        std::fs::create_dir_all(&steps).expect("creates");
        let mut daemon = Process::new("/bin/bash");
        let title = "exec -a 'slurmstepd: [3385.0]' sleep 600";
        let mut daemon = daemon.args(["-c", title]).stdout(Stdio::null()).spawn().expect("starts");
        std::fs::write(steps.join("cgroup.procs"), format!("1\n{}\n", daemon.id())).expect("writes");
        let folder = folder.path().to_str().expect("utf-8");
        let mut scratch = Scratch::default();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut owner = None;
        // Bash needs a moment until it has become the daemon.
        while owner.is_none() && std::time::Instant::now() < deadline {
            owner = job_of_sluid(&mut scratch, folder);
            std::thread::yield_now();
        }
        daemon.kill().expect("ends");
        daemon.wait().expect("ends");
        // The title comes first in the command line, the arguments after it.
        assert_eq!(owner, Some(Owner::Slurm { job: "3385".into(), step: Some("0".into()) }));
    }
}
