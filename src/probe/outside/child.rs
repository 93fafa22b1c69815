//! A child that is asked one thing, and looked after without waiting.

use rustix::fd::{AsFd, BorrowedFd};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The most that a child may say: what fits into a pipe, so that it never waits for a reader.
const MAX_ANSWER_BYTES: u64 = 60 * 1024;

/// A running child.
#[derive(Debug)]
pub(super) struct Asked {
    child: Child,
    deadline: f64,
    /// It was killed, and has not ended for all that.
    killed: bool,
}

/// How it stands with a child.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It ended well, and said this.
    Said(String),
    /// It ended with an exit status, or by a signal.
    Failed,
    /// It had all its time, and was killed. As long as it does not end, this is the answer.
    Late,
    /// It has time left.
    Pending,
}

impl Asked {
    /// Starts a program with nothing to read and its errors thrown away. `None` where it cannot be started. It speaks the
    /// language of the probe's own environment, which the remote script set to C.
    pub(super) fn start(program: &Path, arguments: &[&str], now: f64, limit_seconds: f64) -> Option<Self> {
        let mut command = Command::new(program);
        let child =
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        Some(Self { child, deadline: now + limit_seconds, killed: false })
    }

    /// How it stands. After [`Answer::Said`] and [`Answer::Failed`] the child is no more.
    pub(super) fn look(&mut self, now: f64) -> Answer {
        match self.child.try_wait() {
            Ok(Some(_)) if self.killed => Answer::Failed,
            Ok(Some(status)) if status.success() => self.said().map_or(Answer::Failed, Answer::Said),
            Ok(Some(_)) | Err(_) => Answer::Failed,
            Ok(None) if now < self.deadline => Answer::Pending,
            Ok(None) => {
                if !self.killed {
                    self.killed = true;
                    // One that hangs in the kernel takes its signal when it comes back, if ever.
                    let _ended_already = self.child.kill();
                }
                Answer::Late
            }
        }
    }

    /// Where it answers; hung up when it has ended.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.child.stdout.as_ref().map(AsFd::as_fd)
    }

    fn said(&mut self) -> Option<String> {
        let mut text = String::new();
        self.child.stdout.take()?.take(MAX_ANSWER_BYTES).read_to_string(&mut text).ok()?;
        Some(text)
    }
}

/// A program that is looked for once.
#[derive(Debug, Default)]
pub(super) enum Program {
    /// Nobody has looked for it.
    #[default]
    New,
    /// It is not there, or may not be asked.
    Absent,
    /// Here it is.
    At(PathBuf),
}

impl Program {
    /// Where it is; `find` looks for it, the first time.
    pub(super) fn look(&mut self, find: impl FnOnce() -> Option<PathBuf>) -> Option<&Path> {
        if matches!(self, Self::New) {
            *self = find().map_or(Self::Absent, Self::At);
        }
        if let Self::At(path) = self { Some(path) } else { None }
    }
}

/// Where a program is, by `PATH` and then the directories that are given.
pub(super) fn find(name: &str, also: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(also.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|program| program.is_absolute() && program.is_file())
}

/// A program of tests: this script. Another process writes it: what a test writes itself cannot be run as long as a child
/// of another test, which was started meanwhile, has not let go of the file.
#[cfg(test)]
pub(super) fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    use std::io::Write;
    let program = folder.join(name);
    let write = "cat >\"$0.new\" && chmod 700 \"$0.new\" && mv \"$0.new\" \"$0\"";
    let mut shell =
        Command::new("sh").args(["-c", write]).arg(&program).stdin(Stdio::piped()).spawn().expect("a shell starts");
    shell.stdin.take().expect("a pipe").write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).expect("it reads");
    assert!(shell.wait().expect("it ends").success());
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn outcome(asked: &mut Asked, now: f64) -> Answer {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            match asked.look(now) {
                Answer::Pending => std::thread::yield_now(),
                answer => return answer,
            }
        }
        panic!("no answer")
    }

    #[test]
    fn answers_failures_and_lateness_are_told_apart() {
        let sh = find("sh", &["/bin"]).unwrap();
        let ask = |script: &str| Asked::start(&sh, &["-c", script], 0.0, 5.0).unwrap();
        assert_eq!(outcome(&mut ask("echo yes"), 0.0), Answer::Said("yes\n".to_owned()));
        assert_eq!(outcome(&mut ask("echo no; exit 3"), 0.0), Answer::Failed);
        let mut slow = ask("exec sleep 600");
        assert_eq!(slow.look(4.9), Answer::Pending);
        assert_eq!(slow.look(5.0), Answer::Late);
        // It can be killed, so that it ends soon.
        let deadline = Instant::now() + Duration::from_secs(30);
        while slow.look(6.0) == Answer::Late && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(slow.look(6.0), Answer::Failed);
        assert!(Asked::start(Path::new("/nonexistent"), &[], 0.0, 1.0).is_none());
        assert_eq!(find("no-such-program-anywhere", &["/bin"]), None);
    }
}
