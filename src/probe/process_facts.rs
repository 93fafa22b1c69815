//! The facts of a process that rarely change: command line, user, ancestors and owner.

use super::owner::{
    apptainer_owner, is_apptainer, owner, owner_by_mounts, sluid_path, slurm_in_environment, slurmstepd_job,
};
use super::procfs::{FileReader, Stat, ignores_hangup, real_uid};
use crate::wire::redact::redact;
use crate::wire::{Ancestor, Owner, SafeText};
use std::hash::{DefaultHasher, Hasher};

/// The maximum size of a command line.
const COMMAND_BYTES: usize = 4096;
/// The maximum size of an ancestor's command line.
const PARENT_COMMAND_BYTES: usize = 1024;
/// The maximum size of an environment that is searched for a Slurm job.
const MAX_ENVIRONMENT_BYTES: usize = 64 * 1024;
/// The maximum number of ancestors.
const MAX_ANCESTORS: usize = 24;
/// The processes at which the chain of ancestors ends: no job starts above them.
const ROOT_PROCESS_NAMES: [&str; 21] = [
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

/// A command line, with a fingerprint of its bytes that shows whether it changed.
///
/// The kernel takes the process's memory lock to read `cmdline` and `environ`. That blocks forever if the process hangs
/// in the kernel with the lock held, so only a [`super::blocking::BlockingPool`] may read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) argv: Vec<SafeText>,
    pub(crate) fingerprint: u64,
}

impl CommandLine {
    /// Reads the command line of a GPU process. Returns `None` if it has this fingerprint. May block.
    pub(crate) fn read_new(pid: u32, fingerprint: u64) -> Option<Self> {
        let mut command = Self { argv: Vec::new(), fingerprint };
        command.refresh(&mut FileReader::default(), pid, COMMAND_BYTES).then_some(command)
    }

    /// Reads `/proc/PID/cmdline` and returns whether it changed. An unreadable or empty one (a zombie, a kernel thread)
    /// leaves `self` unchanged.
    fn refresh(&mut self, reader: &mut FileReader, pid: u32, limit: usize) -> bool {
        let Ok(bytes) = reader.read_process(pid, "cmdline", limit) else { return false };
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        let fingerprint = hasher.finish();
        if bytes.is_empty() || fingerprint == self.fingerprint {
            return false;
        }
        *self = Self { argv: arguments(bytes), fingerprint };
        true
    }
}

/// Whether a process has another command line than `argv`, as this probe sent it for a process or an ancestor. `false` if
/// it cannot be read. May block.
pub(crate) fn has_other_command(pid: u32, argv: &[SafeText]) -> bool {
    let mut reader = FileReader::default();
    let Ok(bytes) = reader.read_process(pid, "cmdline", COMMAND_BYTES) else { return false };
    let as_ancestor = &bytes[..bytes.len().min(PARENT_COMMAND_BYTES)];
    !bytes.is_empty() && arguments(bytes) != argv && arguments(as_ancestor) != argv
}

/// Parses `/proc/PID/cmdline` and redacts secrets.
fn arguments(cmdline: &[u8]) -> Vec<SafeText> {
    let end = cmdline.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let arguments: Vec<_> = cmdline[..end].split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    redact(&arguments).iter().map(|argument| SafeText::new(argument)).collect()
}

/// Returns the real uid of a process and whether it ignores SIGHUP.
pub(crate) fn status_of(reader: &mut FileReader, pid: u32) -> (Option<u32>, Option<bool>) {
    match reader.read_process(pid, "status", 4096) {
        Ok(status) => (real_uid(status), ignores_hangup(status)),
        Err(_) => (None, None),
    }
}

/// The ancestors of a process and its owner.
#[derive(Debug)]
pub(crate) struct Lineage {
    pub(crate) ancestors: Vec<Ancestor>,
    pub(crate) outer_ancestors: OuterAncestors,
    pub(crate) owner: Option<Owner>,
}

impl Lineage {
    /// Reads the ancestors and the owner of a process. With `commands` it also reads command lines and the environment,
    /// which may block.
    pub(crate) fn read(reader: &mut FileReader, pid: u32, parent: u32, commands: bool) -> Self {
        let ancestors = ancestors(reader, parent, commands);
        let outer_ancestors = outer_ancestors(reader, &ancestors, commands);
        let owner = owner_of(reader, pid, &ancestors, &outer_ancestors, commands);
        Self { ancestors, outer_ancestors, owner }
    }
}

/// The processes above the chain of ancestors, which ends at a shell.
#[derive(Debug, Default)]
pub(crate) struct OuterAncestors {
    /// `tmux`, `screen` or `jupyter`.
    runs_in: Option<&'static str>,
    /// The pid of an Apptainer runtime.
    apptainer: Option<u32>,
}

/// Continues from the last ancestor.
fn outer_ancestors(reader: &mut FileReader, ancestors: &[Ancestor], commands: bool) -> OuterAncestors {
    let mut outer = OuterAncestors::default();
    let Some(mut child) = ancestors.last().map(|last| last.pid) else { return outer };
    for _ in ancestors.len()..MAX_ANCESTORS {
        let parent = reader.read_process(child, "stat", 1024).ok().and_then(Stat::parse).map(|stat| stat.parent);
        let Some(pid) = parent.filter(|&pid| pid > 1) else { break };
        let Some(stat) = reader.read_process(pid, "stat", 1024).ok().and_then(Stat::parse) else { break };
        let name = String::from_utf8_lossy(stat.name).into_owned();
        let mut command = CommandLine::default();
        // The names of all other processes are sufficient.
        if commands
            && ["python", "jupyter", "starter", "Apptainer", "Singularity"].iter().any(|start| name.starts_with(start))
        {
            command.refresh(reader, pid, PARENT_COMMAND_BYTES);
        }
        outer.runs_in = outer.runs_in.or_else(|| multiplexer(&name, &command.argv));
        let is_apptainer = command.argv.first().is_some_and(|title| is_apptainer(title));
        outer.apptainer = outer.apptainer.or(is_apptainer.then_some(pid));
        child = pid;
    }
    outer
}

/// Returns the environment that a process runs in (`tmux`, `screen` or `jupyter`), by its own arguments and its
/// ancestors.
pub(crate) fn runs_in(argv: &[SafeText], ancestors: &[Ancestor], outer_ancestors: &OuterAncestors) -> Option<SafeText> {
    let own = is_notebook(argv).then_some("jupyter");
    let parents = || ancestors.iter().find_map(|ancestor| multiplexer(&ancestor.name, &ancestor.argv));
    own.or_else(parents).or(outer_ancestors.runs_in).map(SafeText::from)
}

fn multiplexer(name: &str, argv: &[SafeText]) -> Option<&'static str> {
    match name {
        // No process runs in `tmux: client`, the client that started the server.
        "tmux: server" | "tmux" => Some("tmux"),
        "screen" | "SCREEN" => Some("screen"),
        _ if name.starts_with("jupyter") || is_notebook(argv) => Some("jupyter"),
        _ => None,
    }
}

/// Whether this is a Jupyter server or kernel: `python -m ipykernel_launcher -f ...`, `python /usr/bin/jupyter-lab`.
fn is_notebook(argv: &[SafeText]) -> bool {
    let module = argv.get(1).is_some_and(|argument| *argument == "-m");
    let programs = argv.iter().take(2).chain(argv.get(2).filter(|_| module));
    programs
        .map(|program| program.rsplit('/').next().unwrap_or_default())
        .any(|program| program.starts_with("ipykernel") || program.starts_with("jupyter"))
}

/// Whether no job starts above this process: a shell, a multiplexer, a login daemon or init.
pub(crate) fn is_root_process(ancestor: &Ancestor) -> bool {
    let name = ancestor.name.as_str();
    ancestor.pid == 1 || ROOT_PROCESS_NAMES.contains(&name) || name.starts_with("containerd-shim")
}

/// Returns the ancestors from `pid` up to and including the first shell, multiplexer, login daemon or init.
fn ancestors(reader: &mut FileReader, mut pid: u32, commands: bool) -> Vec<Ancestor> {
    let mut chain = Vec::new();
    while pid > 0 && chain.len() < MAX_ANCESTORS {
        let Some(stat) = reader.read_process(pid, "stat", 4096).ok().and_then(Stat::parse) else { break };
        let (parent, start_ticks) = (stat.parent, stat.start_ticks);
        let name = String::from_utf8_lossy(stat.name).into_owned();
        let mut command = CommandLine::default();
        if commands {
            command.refresh(reader, pid, PARENT_COMMAND_BYTES);
        }
        let (uid, _) = status_of(reader, pid);
        let ancestor = Ancestor { pid, start_ticks, uid, name: name.into(), argv: command.argv };
        let is_root = is_root_process(&ancestor);
        chain.push(ancestor);
        if is_root {
            break;
        }
        pid = parent;
    }
    chain
}

/// Returns the owner of a process by its cgroup, its ancestors or the mounts of its root. Where Slurm does not put the
/// job id into the cgroup, it may be in the environment, if that is readable.
fn owner_of(
    reader: &mut FileReader,
    pid: u32,
    ancestors: &[Ancestor],
    outer_ancestors: &OuterAncestors,
    commands: bool,
) -> Option<Owner> {
    let cgroup = String::from_utf8_lossy(reader.read_process(pid, "cgroup", 16 * 1024).ok()?).into_owned();
    if let Some(path) = sluid_path(&cgroup).filter(|_| commands) {
        let by_environment = |reader: &mut FileReader| {
            reader.read_process(pid, "environ", MAX_ENVIRONMENT_BYTES).ok().and_then(slurm_in_environment)
        };
        let job = job_of_sluid(reader, &format!("/sys/fs/cgroup{path}")).or_else(|| by_environment(reader));
        if job.is_some() {
            return job;
        }
    }
    match owner(&cgroup, ancestors) {
        Some(Owner::Session(_)) if outer_ancestors.apptainer.is_some() => {
            outer_ancestors.apptainer.map(apptainer_owner)
        }
        None => outer_ancestors.apptainer.map(apptainer_owner).or_else(|| {
            let mounts = reader.read_long(pid, "mountinfo", 64 * 1024).ok()?;
            owner_by_mounts(&String::from_utf8_lossy(mounts))
        }),
        owner => owner,
    }
}

/// Finds the slurmstepd in the cgroup of each step and returns the job in its title.
fn job_of_sluid(reader: &mut FileReader, directory: &str) -> Option<Owner> {
    std::fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        let step = entry.file_name();
        let step = step.to_str().filter(|name| name.starts_with("step_"))?;
        let pids = reader.read(&format!("{directory}/{step}/slurm/cgroup.procs")).ok()?.to_vec();
        let pids = std::str::from_utf8(&pids).ok()?;
        pids.split_ascii_whitespace().find_map(|pid| {
            let title = reader.read_process(pid.parse().ok()?, "cmdline", 256).ok()?;
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
    fn an_unchanged_command_line_is_not_parsed_again() {
        let mut child =
            Process::new("sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        let mut reader = FileReader::default();
        // The arguments exist a moment after the parent continues.
        let command = loop {
            match CommandLine::read_new(child.id(), 0) {
                Some(command) if command.argv[0] == "sleep" => break command,
                _ => std::thread::yield_now(),
            }
        };
        assert_eq!(CommandLine::read_new(child.id(), command.fingerprint), None);
        assert_eq!(command.argv, ["sleep", "600"]);
        let chain = ancestors(&mut reader, std::process::id(), true);
        assert_eq!(chain.first().map(|parent| parent.pid), Some(std::process::id()));
        assert_eq!(status_of(&mut reader, child.id()).0, status_of(&mut reader, std::process::id()).0);
        child.kill().expect("ends");
        child.wait().expect("ends");
        assert_eq!(CommandLine::read_new(child.id(), 0), None);
    }

    #[test]
    fn multiplexers_and_notebooks_are_recognized() {
        let argv = |line: &str| line.split(' ').map(SafeText::new).collect::<Vec<_>>();
        for (name, line, expected) in [
            ("tmux: server", "tmux new -s train", Some("tmux")),
            ("tmux: client", "tmux attach", None),
            ("screen", "SCREEN -S train", Some("screen")),
            ("jupyter-lab", "/usr/bin/python3 /usr/bin/jupyter-lab", Some("jupyter")),
            ("python3", "/opt/conda/bin/python -m ipykernel_launcher -f /run/kernel.json", Some("jupyter")),
            ("python3", "python train.py --name jupyter", None),
            ("bash", "-bash", None),
        ] {
            assert_eq!(multiplexer(name, &argv(line)), expected, "{line}");
        }
        let kernel = argv("python3 -m ipykernel_launcher");
        assert_eq!(runs_in(&kernel, &[], &OuterAncestors::default()).as_deref(), Some("jupyter"));
        let in_tmux = OuterAncestors { runs_in: Some("tmux"), apptainer: None };
        assert_eq!(runs_in(&argv("python train.py"), &[], &in_tmux).as_deref(), Some("tmux"));
    }

    #[test]
    fn a_sluid_is_resolved_by_the_title_of_slurmstepd() {
        let directory = tempfile::tempdir().expect("directory");
        let steps = directory.path().join("step_0/slurm");
        std::fs::create_dir_all(&steps).expect("creates");
        let mut daemon = Process::new("/bin/bash");
        let title = "exec -a 'slurmstepd: [3385.0]' sleep 600";
        let mut daemon = daemon.args(["-c", title]).stdout(Stdio::null()).spawn().expect("starts");
        std::fs::write(steps.join("cgroup.procs"), format!("1\n{}\n", daemon.id())).expect("writes");
        let directory = directory.path().to_str().expect("utf-8");
        let mut reader = FileReader::default();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut owner = None;
        // Bash needs a moment to exec.
        while owner.is_none() && std::time::Instant::now() < deadline {
            owner = job_of_sluid(&mut reader, directory);
            std::thread::yield_now();
        }
        daemon.kill().expect("ends");
        daemon.wait().expect("ends");
        // In the command line the title comes before the arguments.
        assert_eq!(owner, Some(Owner::Slurm { job: "3385".into(), step: Some("0".into()) }));
    }
}
