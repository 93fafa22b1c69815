//! Child processes with a timeout, which start in the background and are polled without waiting.

use crate::probe::blocking::{BlockingPool, Pending};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_setfl};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum output of a child. It fits into a pipe, so that the child never waits for a reader.
const MAX_OUTPUT_BYTES: u64 = 60 * 1024;
/// Maximum standard error that is read. An error message is shorter.
const MAX_ERROR_BYTES: u64 = 1024;

/// A child process that starts in the background.
#[derive(Debug)]
pub(super) struct ChildProcess {
    /// The start in progress. Finding and starting a program on a file server may take as long as the server does.
    starting: Option<Pending<Option<Started>>>,
    child: Option<Child>,
    deadline: f64,
    /// It has been killed and may not have ended yet.
    killed: bool,
}

#[derive(Debug)]
struct Started {
    child: Child,
    /// Time for which the start waited in the queue, in whole seconds. It extends the deadline.
    waited_seconds: f64,
}

/// State of a child process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChildStatus {
    /// It exited with status 0 and wrote this to standard output.
    Finished(String),
    /// It could not be started, or it exited with another status or by a signal.
    Failed,
    /// It exceeded its deadline and was killed. The state remains until the process ends.
    TimedOut,
    /// It has not ended and its deadline has not passed.
    Running,
}

impl ChildProcess {
    /// Starts a program without input and without standard error. Returns `None` if the program does not exist or the
    /// queue of the pool is full. The locale is that of the probe, which the remote script sets to C.
    pub(super) fn start(
        pool: &BlockingPool,
        program: &ProgramPath,
        arguments: &[&str],
        now: f64,
        timeout_seconds: f64,
    ) -> Option<Self> {
        Self::start_with(pool, program, arguments, Stdio::null, now, timeout_seconds)
    }

    /// Like [`ChildProcess::start`], with a standard error that [`ChildProcess::error_output`] returns. A child that writes more
    /// to it than a pipe holds waits until its deadline.
    pub(super) fn start_with_errors(
        pool: &BlockingPool,
        program: &ProgramPath,
        arguments: &[&str],
        now: f64,
        timeout_seconds: f64,
    ) -> Option<Self> {
        Self::start_with(pool, program, arguments, Stdio::piped, now, timeout_seconds)
    }

    fn start_with(
        pool: &BlockingPool,
        program: &ProgramPath,
        arguments: &[&str],
        standard_error: fn() -> Stdio,
        now: f64,
        timeout_seconds: f64,
    ) -> Option<Self> {
        if program.is_absent() {
            return None;
        }
        let (program, requested_at) = (program.clone(), Instant::now());
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let starting = pool.run(move || {
            let mut command = Command::new(program.locate()?);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(standard_error());
            let waited_seconds = requested_at.elapsed().as_secs() as f64;
            Some(Started { child: command.spawn().ok()?, waited_seconds })
        })?;
        Some(Self { starting: Some(starting), child: None, deadline: now + timeout_seconds, killed: false })
    }

    /// Returns the state. The child no longer exists after [`ChildStatus::Finished`] and [`ChildStatus::Failed`].
    pub(super) fn poll(&mut self, now: f64) -> ChildStatus {
        if self.starting.is_some() {
            match Pending::take(&mut self.starting) {
                None => return ChildStatus::Running,
                Some(None) => return ChildStatus::Failed,
                Some(Some(Started { child, waited_seconds })) => {
                    self.deadline += waited_seconds;
                    self.child = Some(child);
                }
            }
        }
        let Some(child) = &mut self.child else { return ChildStatus::Failed };
        match child.try_wait() {
            Ok(Some(_)) if self.killed => ChildStatus::Failed,
            Ok(Some(status)) if status.success() => {
                read_output(child).map_or(ChildStatus::Failed, ChildStatus::Finished)
            }
            Ok(Some(_)) | Err(_) => ChildStatus::Failed,
            Ok(None) if now < self.deadline => ChildStatus::Running,
            Ok(None) => {
                if !self.killed {
                    self.killed = true;
                    // A process that hangs in the kernel receives the signal when its call returns, if ever.
                    let _ended_already = child.kill();
                }
                ChildStatus::TimedOut
            }
        }
    }

    /// Returns its deadline, which is later than asked for if the start had to wait, as on a busy machine of tests.
    #[cfg(test)]
    pub(super) const fn deadline(&self) -> f64 {
        self.deadline
    }

    /// Returns the beginning of its standard error, after [`ChildStatus::Failed`].
    pub(super) fn error_output(&mut self) -> String {
        let pipe = self.child.as_mut().and_then(|child| child.stderr.take());
        let bytes = pipe.and_then(|pipe| read_pipe(pipe.into(), MAX_ERROR_BYTES)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the read end of its standard output, which hangs up when it ends.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.child.as_ref()?.stdout.as_ref().map(AsFd::as_fd)
    }
}

/// Reads the output of a child that has ended.
fn read_output(child: &mut Child) -> Option<String> {
    String::from_utf8(read_pipe(child.stdout.take()?.into(), MAX_OUTPUT_BYTES)?).ok()
}

/// Reads from the pipe of a child that has ended. It does not wait for the end of the pipe, since a grandchild may keep
/// the pipe open.
fn read_pipe(pipe: OwnedFd, most: u64) -> Option<Vec<u8>> {
    fcntl_setfl(&pipe, OFlags::NONBLOCK).ok()?;
    let mut bytes = Vec::new();
    let _end_or_empty = File::from(pipe).take(most).read_to_end(&mut bytes);
    Some(bytes)
}

/// A program that is searched for once. Clones share the result.
#[derive(Debug, Clone)]
pub(super) struct ProgramPath {
    find_program: fn() -> Option<PathBuf>,
    /// Locked only for as long as a copy takes.
    lookup: Arc<Mutex<Lookup>>,
}

#[derive(Debug, Clone, Default)]
enum Lookup {
    /// Not searched for yet.
    #[default]
    Unknown,
    /// It does not exist or may not be used.
    NotFound,
    Found(PathBuf),
}

impl ProgramPath {
    /// `find_program` may block.
    pub(super) fn new(find_program: fn() -> Option<PathBuf>) -> Self {
        Self { find_program, lookup: Arc::default() }
    }

    /// Uses this path; `None` for a program that does not exist.
    #[cfg(test)]
    pub(super) fn at(path: Option<PathBuf>) -> Self {
        Self { find_program: || None, lookup: Arc::new(Mutex::new(path.map_or(Lookup::NotFound, Lookup::Found))) }
    }

    fn lock(&self) -> MutexGuard<'_, Lookup> {
        self.lookup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the search has found that the program does not exist or may not be used.
    pub(super) fn is_absent(&self) -> bool {
        matches!(&*self.lock(), Lookup::NotFound)
    }

    /// Returns the path. The first call searches for the program and may block.
    fn locate(&self) -> Option<PathBuf> {
        let known = self.lock().clone();
        match known {
            Lookup::Found(path) => Some(path),
            Lookup::NotFound => None,
            Lookup::Unknown => {
                let found = (self.find_program)();
                *self.lock() = found.clone().map_or(Lookup::NotFound, Lookup::Found);
                found
            }
        }
    }
}

/// Finds a program in `PATH` and then in the directories `also`. May block: any of them may be on a dead file server.
pub(super) fn find_program(name: &str, also: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(also.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|program| program.is_absolute() && program.is_file())
}

/// Writes a shell script as a test program. A shell writes the file: a file written by the test itself cannot be
/// executed while a child of another test has inherited its descriptor.
#[cfg(test)]
pub(super) fn write_script(folder: &std::path::Path, name: &str, text: &str) -> PathBuf {
    use std::io::Write;
    let program = folder.join(name);
    let write = "cat >\"$0.new\" && chmod 700 \"$0.new\" && mv \"$0.new\" \"$0\"";
    let mut shell = Command::new("sh").args(["-c", write]).arg(&program).stdin(Stdio::piped()).spawn().expect("starts");
    shell.stdin.take().expect("is piped").write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).expect("writes");
    assert!(shell.wait().expect("ends").success());
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn outcome(child: &mut ChildProcess, now: f64) -> ChildStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            match child.poll(now) {
                ChildStatus::Running => std::thread::yield_now(),
                status => return status,
            }
        }
        panic!("no answer")
    }

    fn sh() -> ProgramPath {
        ProgramPath::new(|| find_program("sh", &["/bin"]))
    }

    #[test]
    fn output_failure_and_timeout_are_distinguished() {
        let pool = BlockingPool::new();
        let start = |script: &str| ChildProcess::start(&pool, &sh(), &["-c", script], 0.0, 5.0).unwrap();
        assert_eq!(outcome(&mut start("echo yes"), 0.0), ChildStatus::Finished("yes\n".to_owned()));
        assert_eq!(outcome(&mut start("echo no; exit 3"), 0.0), ChildStatus::Failed);
        let mut slow = start("exec sleep 600");
        pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
        assert_eq!(slow.poll(4.9), ChildStatus::Running);
        let timeout = slow.deadline();
        assert_eq!(slow.poll(timeout), ChildStatus::TimedOut);
        // The child can be killed, so it ends soon.
        let deadline = Instant::now() + Duration::from_secs(30);
        while slow.poll(timeout) == ChildStatus::TimedOut && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(slow.poll(timeout), ChildStatus::Failed);
        let missing = ProgramPath::new(|| find_program("no-such-program-anywhere", &["/bin"]));
        assert_eq!(
            outcome(&mut ChildProcess::start(&pool, &missing, &[], 0.0, 1.0).unwrap(), 0.0),
            ChildStatus::Failed
        );
        assert!(missing.is_absent() && ChildProcess::start(&pool, &missing, &[], 0.0, 1.0).is_none());
        let broken = ProgramPath::at(Some("/nonexistent".into()));
        assert_eq!(outcome(&mut ChildProcess::start(&pool, &broken, &[], 0.0, 1.0).unwrap(), 0.0), ChildStatus::Failed);
    }

    #[test]
    fn the_beginning_of_standard_error_is_known_after_a_failure() {
        let pool = BlockingPool::new();
        let start = |script: &str| ChildProcess::start_with_errors(&pool, &sh(), &["-c", script], 0.0, 5.0).unwrap();
        let mut failed = start("echo answer; echo no route >&2; exit 1");
        assert_eq!(outcome(&mut failed, 0.0), ChildStatus::Failed);
        assert_eq!(failed.error_output(), "no route\n");
        let mut warned = start("echo warning >&2; echo yes");
        assert_eq!(outcome(&mut warned, 0.0), ChildStatus::Finished("yes\n".to_owned()));
        // A part of it is kept, and a grandchild that keeps the pipe open does not matter.
        let mut verbose = start("printf %4000d 7 >&2; sleep 600 >/dev/null & exit 1");
        assert_eq!(outcome(&mut verbose, 0.0), ChildStatus::Failed);
        assert_eq!(verbose.error_output(), " ".repeat(MAX_ERROR_BYTES as usize));
        let mut silent = ChildProcess::start(&pool, &sh(), &["-c", "echo no route >&2; exit 1"], 0.0, 5.0).unwrap();
        assert_eq!(outcome(&mut silent, 0.0), ChildStatus::Failed);
        assert_eq!(silent.error_output(), "");
    }

    #[test]
    fn an_open_pipe_of_a_grandchild_does_not_block() {
        let pool = BlockingPool::new();
        let mut child = ChildProcess::start(&pool, &sh(), &["-c", "sleep 600 & echo $!"], 0.0, 600.0).unwrap();
        let ChildStatus::Finished(grandchild) = outcome(&mut child, 0.0) else { panic!("no answer") };
        let killed = Command::new("kill").arg(grandchild.trim()).status();
        assert!(killed.is_ok_and(|status| status.success()));
    }

    #[test]
    fn a_program_on_a_dead_file_server_does_not_block() {
        static FILE_SERVER: Mutex<()> = Mutex::new(());
        fn find_there() -> Option<PathBuf> {
            drop(FILE_SERVER.lock());
            find_program("true", &["/bin"])
        }
        let pool = BlockingPool::new();
        let hangs = FILE_SERVER.lock();
        let mut child = ChildProcess::start(&pool, &ProgramPath::new(find_there), &[], 0.0, 5.0).unwrap();
        for now in 0..100 {
            assert_eq!(child.poll(f64::from(now)), ChildStatus::Running, "the program is not found yet");
        }
        drop(hangs);
        assert_eq!(outcome(&mut child, 0.0), ChildStatus::Finished(String::new()));
    }
}
