//! The Python stacks of a process, read by `py-spy dump`.
//!
//! py-spy is never uploaded: it is used where somebody has installed it. It must be safe from changes by other accounts,
//! since it runs as the login user.

use super::cut::{beginning, cut, end};
use super::memory_facts::environment;
use super::process::may_attach;
use crate::probe::procfs::{FileReader, environment_variable};
use crate::wire::redact::redact;
use crate::wire::{ExaminationPart, ExaminationRefusal, Frame, NOT_PYTHON, SafeText, StackDump, ThreadStack, limits};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, open, readlinkat, stat};
use rustix::io::{Errno, read};
use serde::Deserialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long py-spy may take. It usually takes 14 to 38 ms.
const RUN_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of its output.
const MAX_OUTPUT_BYTES: usize = 256 * 1024;
/// Maximum size of its error messages.
const MAX_ERROR_BYTES: usize = 4096;
/// Maximum size of a command line, of which only the first argument is used.
const MAX_ARGUMENT_BYTES: usize = 4096;
/// Maximum size of `/proc/PID/maps` when it is searched for an interpreter.
const MAX_MAPS_BYTES: usize = 8 << 20;
/// Maximum number of bytes of the name of a function or a thread, and of a path.
const MAX_NAME_BYTES: usize = 96;
const MAX_PATH_BYTES: usize = 128;
/// Maximum number of bytes of a foreign error message.
const MAX_REASON_BYTES: usize = 200;

/// Reads the Python stacks of a process. May block.
pub(super) fn examine_stacks(pid: u32) -> Result<StackDump, ExaminationRefusal> {
    let mut reader = FileReader::default();
    if is_python(pid, &mut reader) == Some(false) {
        return Err(not_python());
    }
    if may_attach(pid, &mut reader) == Some(false) {
        let scope = reader.read("/proc/sys/kernel/yama/ptrace_scope").ok();
        return Err(not_permitted(pid, scope.map(<[u8]>::trim_ascii)));
    }
    let login_path = std::env::var_os("PATH").unwrap_or_default();
    let program = find_py_spy(&search_folders(pid, login_path.as_bytes(), &mut reader))?;
    let output = program.run(pid, RUN_TIMEOUT).map_err(|failure| failure.refusal(pid))?;
    let home = std::env::var("HOME").unwrap_or_default();
    parse_output(&output, &program.path, pid, &home)
}

/// Parses the output of py-spy for a process.
pub(super) fn parse_output(
    output: &[u8],
    program: &Path,
    pid: u32,
    home: &str,
) -> Result<StackDump, ExaminationRefusal> {
    let threads: Vec<PySpyThread> = serde_json::from_slice(output).map_err(|error| other_output(&error))?;
    Ok(stack_dump(program, threads, pid, home))
}

/// Returns whether a process runs Python: its program has that name, or it has the library of Python mapped. `None` if
/// that cannot be read.
fn is_python(pid: u32, reader: &mut FileReader) -> Option<bool> {
    let program = reader.read_link(pid, "exe")?;
    if is_interpreter(program.rsplit(|&byte| byte == b'/').next()?) {
        return Some(true);
    }
    let mut has_library = false;
    let is_complete = reader.each_line(pid, "maps", MAX_MAPS_BYTES, &mut |line| {
        has_library |= line.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(b"libpython"));
    });
    (has_library || is_complete == Ok(true)).then_some(has_library)
}

fn is_interpreter(name: &[u8]) -> bool {
    name.starts_with(b"python") || name.starts_with(b"pypy")
}

/// Returns the directories in which py-spy may be: that of the interpreter, those of the environment of the process, and
/// those of the login. Not beside `/proc/PID/exe`, which is the base interpreter of a virtual environment. Paths of a
/// container are not used: its programs are not for this host.
fn search_folders(pid: u32, login_path: &[u8], reader: &mut FileReader) -> Vec<PathBuf> {
    let namespace = reader.read_link(pid, "ns/mnt");
    let is_same_host = namespace.is_some() && namespace == reader.read_link(std::process::id(), "ns/mnt");
    if !is_same_host {
        return folders_of(b"", b"", b"", login_path);
    }
    let directory = reader.read_link(pid, "cwd").unwrap_or_default();
    let environment = environment(pid, reader);
    let arguments = reader.read_process(pid, "cmdline", MAX_ARGUMENT_BYTES).unwrap_or_default();
    let program = arguments.split(|&byte| byte == 0).next().unwrap_or_default();
    folders_of(program, &directory, &environment, login_path)
}

/// Returns the directories for a program name as in `argv[0]`, a working directory, an environment, and the `PATH` of the
/// login. Relative directories other than that of the program are left out.
fn folders_of(program: &[u8], directory: &[u8], environment: &[u8], login_path: &[u8]) -> Vec<PathBuf> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let mut folders = Vec::new();
    if program.contains(&b'/') {
        folders.extend(path(directory).join(path(program)).parent().map(Path::to_path_buf));
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        folders.extend(environment_variable(environment, name).map(|folder| path(folder).join("bin")));
    }
    let paths = [environment_variable(environment, "PATH").unwrap_or_default(), login_path];
    folders.extend(paths.iter().flat_map(|path| path.split(|&byte| byte == b':')).map(path));
    folders.retain(|folder| folder.is_absolute());
    folders
}

/// A program that other accounts cannot change.
#[derive(Debug)]
struct TrustedProgram {
    /// Opened with `O_PATH`. The program is started through it, so that no other file can take its place.
    file: OwnedFd,
    /// Its path without links.
    path: PathBuf,
}

/// Finds py-spy in the directories. May block: any of them may be on a dead file server.
fn find_py_spy(folders: &[PathBuf]) -> Result<TrustedProgram, ExaminationRefusal> {
    let mut untrusted = None;
    for folder in folders {
        // Not CLOEXEC: the interpreter of a script opens it, too.
        let Ok(file) = open(folder.join("py-spy"), OFlags::PATH, Mode::empty()) else { continue };
        let Ok(target) = readlinkat(CWD, own_descriptor(&file), Vec::new()) else { continue };
        let path = PathBuf::from(OsStr::from_bytes(target.to_bytes()));
        let (Ok(status), Some(Ok(parent))) = (fstat(&file), path.parent().map(stat)) else { continue };
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile || status.st_mode & 0o111 == 0 {
            continue;
        }
        if is_trusted(&status) && is_trusted(&parent) {
            return Ok(TrustedProgram { file, path });
        }
        untrusted.get_or_insert(path);
    }
    Err(untrusted.map_or_else(not_installed, |path| not_trusted(&path)))
}

/// Whether a file or directory belongs to root or this user, and nobody else may write to it.
fn is_trusted(status: &Stat) -> bool {
    let is_own = status.st_uid == 0 || status.st_uid == rustix::process::getuid().as_raw();
    is_own && status.st_mode & 0o022 == 0
}

/// Returns the path of an open file in `/proc/self/fd`.
fn own_descriptor(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Why py-spy returned no stacks.
#[derive(Debug, PartialEq, Eq)]
enum RunFailure {
    NotStarted(String),
    Late,
    TooLong,
    /// It ended with an error, with these messages.
    Failed(Vec<u8>),
}

impl TrustedProgram {
    /// Runs `py-spy dump` for a process and returns its output. Without `--nonblocking` it would stop the process
    /// meanwhile, and with `--locals` it would print the values of variables.
    fn run(&self, pid: u32, limit: Duration) -> Result<Vec<u8>, RunFailure> {
        let deadline = Instant::now() + limit;
        let pid = pid.to_string();
        let mut command = Command::new(own_descriptor(&self.file));
        command.arg0("py-spy").args(["dump", "--json", "--nonblocking", "--pid", &pid]).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| RunFailure::NotStarted(error.to_string()))?;
        let output = child.stdout.take().map_or(Err(RunFailure::Late), |pipe| {
            let output = read_to_end(&pipe, MAX_OUTPUT_BYTES, deadline)?;
            if output.len() > MAX_OUTPUT_BYTES { Err(RunFailure::TooLong) } else { Ok(output) }
        });
        let errors = child.stderr.take().map_or(Ok(Vec::new()), |pipe| read_to_end(&pipe, MAX_ERROR_BYTES, deadline));
        if output.is_err() || errors.is_err() {
            // A process that hangs in the kernel receives the signal when its call returns, if ever.
            let _ended_already = child.kill();
        }
        let is_success = child.wait().is_ok_and(|status| status.success());
        let (output, errors) = (output?, errors?);
        if is_success { Ok(output) } else { Err(RunFailure::Failed(errors)) }
    }
}

/// Reads a pipe until it is closed, `limit` is exceeded or the time is over.
fn read_to_end(pipe: impl AsFd, limit: usize, deadline: Instant) -> Result<Vec<u8>, RunFailure> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 8192];
    while bytes.len() <= limit {
        let rest = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
        let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Err(RunFailure::Late),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => break,
        }
        match read(&pipe, &mut buffer[..]) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    Ok(bytes)
}

/// A thread in the output of `py-spy dump --json`.
#[derive(Deserialize)]
struct PySpyThread {
    thread_name: Option<SafeText>,
    /// Its id in the kernel. The main thread has the pid.
    os_thread_id: Option<u64>,
    #[serde(default)]
    active: bool,
    #[serde(default)]
    owns_gil: bool,
    /// The innermost first.
    frames: Vec<PySpyFrame>,
}

/// A frame in that output.
#[derive(Deserialize)]
struct PySpyFrame {
    name: SafeText,
    filename: SafeText,
    line: Option<i64>,
}

/// Converts the output of py-spy: the main thread first, at most as many threads and frames as the wire allows.
fn stack_dump(program: &Path, mut threads: Vec<PySpyThread>, pid: u32, home: &str) -> StackDump {
    let main = threads.iter().position(|thread| thread.os_thread_id == Some(u64::from(pid)));
    let main = main.or_else(|| {
        threads.iter().position(|thread| thread.thread_name.as_ref().is_some_and(|name| *name == "MainThread"))
    });
    if let Some(main) = main {
        let thread = threads.remove(main);
        threads.insert(0, thread);
    }
    let path = |path: &str| end(&with_tilde(path, home), MAX_PATH_BYTES);
    let mut dump = StackDump { tool: path(&program.to_string_lossy()), ..StackDump::default() };
    cut(&mut threads, limits::MAX_STACKS, &mut dump.threads_left_out);
    for mut thread in threads {
        let mut frames_left_out = 0;
        cut(&mut thread.frames, limits::MAX_FRAMES, &mut frames_left_out);
        let frame = |frame: PySpyFrame| Frame {
            function: beginning(&frame.name, MAX_NAME_BYTES),
            file: path(&frame.filename),
            line: frame.line.and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0),
        };
        dump.threads.push(ThreadStack {
            name: thread.thread_name.map(|name| beginning(&name, MAX_NAME_BYTES)).unwrap_or_default(),
            is_active: thread.active,
            owns_gil: thread.owns_gil,
            frames: thread.frames.into_iter().map(frame).collect(),
            frames_left_out,
        });
    }
    dump
}

/// Replaces the home directory at the beginning of a path by `~`.
pub(super) fn with_tilde(path: &str, home: &str) -> String {
    let home = home.trim_end_matches('/');
    match path.strip_prefix(home) {
        Some(rest) if !home.is_empty() && rest.starts_with('/') => format!("~{rest}"),
        _ => path.to_owned(),
    }
}

impl RunFailure {
    /// py-spy has one exit status for all errors, so its messages tell them apart.
    fn refusal(self, pid: u32) -> ExaminationRefusal {
        match self {
            Self::NotStarted(error) => refusal(
                format!("py-spy does not start: {error}"),
                "install it again: `pip install --force-reinstall py-spy`",
            ),
            Self::Late => refusal(
                "py-spy did not end within 3 s".to_owned(),
                format!("run `py-spy dump --nonblocking --pid {pid}` on the host"),
            ),
            Self::TooLong => refusal(
                format!("the stacks have more than {} KiB", MAX_OUTPUT_BYTES / 1024),
                format!("run `py-spy dump --nonblocking --pid {pid}` on the host"),
            ),
            Self::Failed(message) => {
                let message = String::from_utf8_lossy(&message);
                if message.contains("Permission Denied") {
                    return not_permitted(pid, None);
                }
                if message.contains("Failed to find python version") {
                    return not_python();
                }
                let line = message.lines().find(|line| !line.is_empty()).unwrap_or("it gave no reason");
                let line = redact(&[line.strip_prefix("Error: ").unwrap_or(line)]).concat();
                refusal(
                    format!("py-spy could not read the stacks: {}", beginning(&line, MAX_REASON_BYTES)),
                    "if it does not know this version of Python: `pip install --upgrade py-spy`",
                )
            }
        }
    }
}

fn refusal(reason: impl Into<SafeText>, remedy: impl Into<SafeText>) -> ExaminationRefusal {
    ExaminationRefusal::new(ExaminationPart::Stacks, reason, remedy)
}

fn not_python() -> ExaminationRefusal {
    refusal(NOT_PYTHON, "")
}

fn not_installed() -> ExaminationRefusal {
    refusal(
        "py-spy is not installed",
        "`pip install py-spy` in the Python environment of the job, which may keep running",
    )
}

fn not_trusted(path: &Path) -> ExaminationRefusal {
    let path = end(&path.to_string_lossy(), MAX_PATH_BYTES);
    refusal(
        format!("other accounts may change {path}, so it is not run"),
        "let only its owner, you or root, write to it and to its directory: `chmod go-w`",
    )
}

fn other_output(error: &serde_json::Error) -> ExaminationRefusal {
    refusal(
        format!("the output of py-spy is not understood: {}", beginning(&error.to_string(), MAX_REASON_BYTES)),
        "`pip install --upgrade py-spy`",
    )
}

/// The refusal if the kernel permits no attaching. `scope` is `kernel.yama.ptrace_scope`, if the kernel has Yama
/// (Documentation/admin-guide/LSM/Yama.rst).
fn not_permitted(pid: u32, scope: Option<&[u8]>) -> ExaminationRefusal {
    let as_root = format!("run `sudo py-spy dump --pid {pid}` on the host");
    let open = format!("{as_root}, or an administrator sets `sysctl kernel.yama.ptrace_scope=0`");
    match scope {
        Some(b"1") => refusal("only its parent may read its memory (kernel.yama.ptrace_scope is 1)", open),
        Some(b"2") => refusal("only root may read its memory (kernel.yama.ptrace_scope is 2)", open),
        Some(b"3") => refusal(
            "nobody may read its memory (kernel.yama.ptrace_scope is 3)",
            "an administrator removes the setting and restarts the host",
        ),
        _ => refusal("the kernel does not permit reading its memory, as in some containers", as_root),
    }
}

#[cfg(test)]
#[path = "stacks_tests.rs"]
mod tests;
