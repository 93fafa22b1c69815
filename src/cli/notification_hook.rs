//! `on_finding`: runs a program of the user for findings.

use crate::wire::SafeText;
use crate::wire::format::io_cause;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// At most this many programs run at once. Findings that occur meanwhile are sent together when one has ended.
const MAX_RUNNING: usize = 2;
/// A program that runs longer is killed with its children.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long to wait for running programs when gpufleet ends.
const EXIT_LIMIT: Duration = Duration::from_secs(3);
/// How long to read the standard error after the program has ended, since its children may keep it open.
const STDERR_GRACE: Duration = Duration::from_millis(200);
/// How much of the standard error is kept, in bytes.
const MAX_STDERR_BYTES: usize = 4096;
/// How much of it is shown, in characters.
const SHOWN_CHARACTERS: usize = 120;

/// The program and its running processes. Dropping it kills them.
#[derive(Debug)]
pub(super) struct Hook {
    argv: Vec<String>,
    deadline: Duration,
    running: JoinSet<Result<(), HookError>>,
}

/// The program failed.
#[derive(Debug)]
pub(super) struct HookError {
    program: SafeText,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    CannotStart { error: SafeText, hint: &'static str },
    Failed { status: ExitStatus, stderr_text: SafeText },
    TooSlow { deadline: Duration },
    Lost,
}

impl fmt::Display for HookError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        match &self.cause {
            Cause::CannotStart { error, hint } => {
                write!(formatter, "cannot run on_finding `{program}`: {error}; {hint}")
            }
            Cause::Failed { status, stderr_text } => {
                write!(formatter, "on_finding `{program}` failed: ")?;
                match status.code() {
                    Some(code) => write!(formatter, "exit status {code}")?,
                    None => write!(formatter, "{}", status.to_string().replace("signal: ", "killed by signal "))?,
                }
                if !stderr_text.is_empty() {
                    write!(formatter, ", {stderr_text}")?;
                }
                formatter.write_str("; see docs/notifications.md for how to test it")
            }
            Cause::TooSlow { deadline } => write!(
                formatter,
                "on_finding `{program}` was killed after {} s; set a shorter time limit in the program",
                deadline.as_secs()
            ),
            Cause::Lost => write!(formatter, "on_finding `{program}` could not be waited for; check what it did"),
        }
    }
}

impl std::error::Error for HookError {}

impl Hook {
    /// Creates a hook for a program and its arguments; `argv` is not empty.
    pub(super) fn new(argv: Vec<String>) -> Self {
        Self { argv, deadline: DEADLINE, running: JoinSet::new() }
    }

    /// Whether another process may start.
    pub(super) fn is_free(&self) -> bool {
        self.running.len() < MAX_RUNNING
    }

    /// Runs the program with `input` on its standard input. Must be called within a tokio runtime.
    pub(super) fn start(&mut self, input: String) {
        self.running.spawn(run(self.argv.clone(), input, self.deadline));
    }

    /// Waits until a program fails; forever if none does. Cancel safe.
    pub(super) async fn failure(&mut self) -> HookError {
        loop {
            match self.running.join_next().await {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => return error,
                Some(Err(_)) => return self.error(Cause::Lost),
                None => std::future::pending().await,
            }
        }
    }

    /// Waits for running programs for a short time and returns their errors.
    pub(super) async fn finish(mut self) -> Vec<HookError> {
        let mut errors = Vec::new();
        let all = async {
            while let Some(ended) = self.running.join_next().await {
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => errors.push(error),
                    Err(_) => errors.push(error(&self.argv, Cause::Lost)),
                }
            }
        };
        if timeout(EXIT_LIMIT, all).await.is_err() {
            errors.push(error(&self.argv, Cause::TooSlow { deadline: EXIT_LIMIT }));
        }
        errors
    }

    fn error(&self, cause: Cause) -> HookError {
        error(&self.argv, cause)
    }
}

fn error(argv: &[String], cause: Cause) -> HookError {
    let program = argv.first().map_or("", String::as_str);
    let name = Path::new(program).file_name().map_or(program.into(), |name| name.to_string_lossy());
    HookError { program: SafeText::new(&name), cause }
}

/// Runs the program once: writes its input, reads its standard error, waits for its end.
async fn run(argv: Vec<String>, input: String, deadline: Duration) -> Result<(), HookError> {
    let failure = |cause| error(&argv, cause);
    let Some((program, arguments)) = argv.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    // In its own process group the program does not get Ctrl-C, and can be killed with its children.
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => "install it or add it to PATH; relative paths begin at the directory of hosts.toml",
            ErrorKind::PermissionDenied => "make it executable with chmod +x",
            _ => "run it by hand to see the error",
        };
        failure(Cause::CannotStart { error: SafeText::from(io_cause(&error)), hint })
    })?;
    let group = ProcessGroup::of(&child);
    let mut stderr_text = Vec::new();
    let ended = timeout(deadline, feed_and_wait(&mut child, input, &mut stderr_text)).await;
    let Ok(ended) = ended else {
        drop(group);
        // The process is killed; this only reaps it.
        let _ = timeout(STDERR_GRACE, child.wait()).await;
        return Err(failure(Cause::TooSlow { deadline }));
    };
    group.forget();
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failure(Cause::Failed { status, stderr_text: first_line(&stderr_text) })),
        Err(_) => Err(failure(Cause::Lost)),
    }
}

/// Writes the input and reads the standard error until the program ends.
async fn feed_and_wait(child: &mut Child, input: String, stderr_text: &mut Vec<u8>) -> std::io::Result<ExitStatus> {
    let stdin = child.stdin.take();
    let mut feed = pin!(async move {
        if let Some(mut stdin) = stdin {
            // A program may ignore its input.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    });
    let stderr = child.stderr.take();
    let mut listen = pin!(async {
        if let Some(stderr) = stderr {
            read_head(stderr, stderr_text).await;
        }
    });
    let (mut is_fed, mut is_read) = (false, false);
    loop {
        tokio::select! {
            status = child.wait() => {
                if !is_read {
                    let _ = timeout(STDERR_GRACE, &mut listen).await;
                }
                return status;
            }
            () = &mut feed, if !is_fed => is_fed = true,
            () = &mut listen, if !is_read => is_read = true,
        }
    }
}

/// Reads to the end, so that the writer never blocks, and keeps the beginning.
async fn read_head(mut from: impl AsyncRead + Unpin, stderr_text: &mut Vec<u8>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let room = MAX_STDERR_BYTES.saturating_sub(stderr_text.len());
        stderr_text.extend_from_slice(&buffer[..count.min(room)]);
    }
}

/// Returns the first non-empty line, shortened for the status bar.
fn first_line(stderr_text: &[u8]) -> SafeText {
    let text = String::from_utf8_lossy(stderr_text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    SafeText::from(line.chars().take(SHOWN_CHARACTERS).collect::<String>())
}

/// The process group of a running program. Dropping it kills the group.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id as i32)))
    }

    /// The program has been reaped, so its process id may already belong to another process.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group may have ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script, "hook"].map(str::to_owned).to_vec()
    }

    fn words(result: Result<(), HookError>) -> String {
        result.expect_err("it fails").to_string()
    }

    #[tokio::test]
    async fn the_program_gets_input_and_arguments_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a file; with $signs");
        let mut argv = shell("cat > \"$1\"");
        argv.push(file.display().to_string());
        run(argv, "{\"schema\":1}\n".to_owned(), DEADLINE).await.expect("runs");
        assert_eq!(std::fs::read_to_string(file).expect("was written"), "{\"schema\":1}\n");
    }

    #[tokio::test]
    async fn a_program_that_reads_nothing_or_writes_a_lot_does_not_block() {
        let large = "x".repeat(1 << 20);
        run(shell("exit 0"), large.clone(), DEADLINE).await.expect("runs");
        run(shell("cat >&2; cat >&2 /dev/null; exit 0"), large, DEADLINE).await.expect("runs");
    }

    #[tokio::test]
    async fn errors_have_a_cause_and_a_hint() {
        let failed =
            words(run(shell("echo; echo '  no route\x1b[31m to chat' >&2; exit 7"), String::new(), DEADLINE).await);
        assert_eq!(
            failed,
            "on_finding `sh` failed: exit status 7, no route␛[31m to chat; see docs/notifications.md for how to test it"
        );
        let killed = words(run(shell("kill -9 $$"), String::new(), DEADLINE).await);
        assert!(killed.starts_with("on_finding `sh` failed: killed by signal 9"), "{killed}");
        let missing = words(run(vec!["no-such-program".to_owned()], String::new(), DEADLINE).await);
        assert_eq!(
            missing,
            "cannot run on_finding `no-such-program`: No such file or directory; install it or add it to PATH; relative paths begin \
             at the directory of hosts.toml"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("hook.sh");
        std::fs::write(&plain, "#!/bin/sh\n").expect("writes");
        let refused = words(run(vec![plain.display().to_string()], String::new(), DEADLINE).await);
        assert_eq!(refused, "cannot run on_finding `hook.sh`: Permission denied; make it executable with chmod +x");
    }

    #[tokio::test]
    async fn a_slow_program_is_killed_with_its_children() {
        let folder = tempfile::tempdir().expect("a folder");
        let file: PathBuf = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let error = words(run(shell(&script), String::new(), Duration::from_secs(1)).await);
        assert_eq!(error, "on_finding `sh` was killed after 1 s; set a shorter time limit in the program");
        let pid = std::fs::read_to_string(&file).expect("it was started");
        let alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            // A killed process stays a zombie until init reaps it.
            stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while alive() {
            assert!(std::time::Instant::now() < deadline, "{pid} lives on");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn at_most_two_programs_run_at_once() {
        let mut hook = Hook::new(shell("exit 3"));
        hook.start(String::new());
        assert!(hook.is_free());
        hook.start(String::new());
        assert!(!hook.is_free());
        for _ in 0..2 {
            assert!(hook.failure().await.to_string().contains("exit status 3"));
        }
        assert!(hook.is_free());
        hook.start(String::new());
        assert_eq!(hook.finish().await.len(), 1);
    }
}
