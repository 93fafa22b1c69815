//! Child processes that lead their own process group.

use crate::ssh::transport::{Channel, Exit};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::{ExitStatus, Output, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

/// A running program and its pipes. Dropping it kills its process group.
#[derive(Debug)]
pub(in crate::ssh) struct Child {
    pub(in crate::ssh) group: ProcessGroup,
    pub(in crate::ssh) stdin: ChildStdin,
    pub(in crate::ssh) stdout: ChildStdout,
    pub(in crate::ssh) stderr: ChildStderr,
}

/// A process group, killed when dropped. Its leader is not reaped before that, so its id cannot name another group.
#[derive(Debug)]
pub(in crate::ssh) struct ProcessGroup(tokio::process::Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0.id().and_then(|id| Pid::from_raw(id as i32)) {
            // An error means that the group has ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Child {
    /// Starts a command, which must become the leader of a process group.
    pub(in crate::ssh) fn spawn(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut group = command.spawn()?;
        let pipes = (group.stdin.take(), group.stdout.take(), group.stderr.take());
        let group = ProcessGroup(group);
        match pipes {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok(Self { group, stdin, stdout, stderr }),
            _ => Err(io::Error::other("the program has no pipes")),
        }
    }

    pub(in crate::ssh) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.group.0.wait().await
    }
}

/// Runs a command in its own process group and returns its output. Dropping the future kills the group, so that no child
/// of a command that hangs stays behind.
pub(in crate::ssh) async fn output(mut command: Command) -> io::Result<Output> {
    command.process_group(0);
    let Child { mut group, stdin, mut stdout, mut stderr } = Child::spawn(command)?;
    drop(stdin);
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let reading = async { tokio::try_join!(stdout.read_to_end(&mut output), stderr.read_to_end(&mut errors)) };
    reading.await?;
    let status = group.0.wait().await?;
    Ok(Output { status, stdout: output, stderr: errors })
}

/// Makes a channel of a program.
#[cfg(target_os = "linux")]
pub(in crate::ssh) fn channel(child: Child) -> Channel {
    let Child { group, stdin, stdout, stderr } = child;
    assemble(group, stdin, stdout, Box::pin(stderr))
}

/// Makes a channel of a program whose standard error is filtered by `stderr`.
pub(in crate::ssh) fn channel_with(
    child: Child,
    stderr: impl FnOnce(ChildStderr) -> Pin<Box<dyn AsyncRead + Send>>,
) -> Channel {
    let Child { group, stdin, stdout, stderr: pipe } = child;
    assemble(group, stdin, stdout, stderr(pipe))
}

fn assemble(
    mut group: ProcessGroup,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Pin<Box<dyn AsyncRead + Send>>,
) -> Channel {
    let (exit_sender, exit) = oneshot::channel();
    let (guard, dropped) = oneshot::channel::<()>();
    tokio::spawn(async move {
        tokio::select! {
            status = group.0.wait() => {
                // An error means that the receiver is gone.
                let _ = exit_sender.send(status.map_or(Exit::Closed(None), exit_of));
            }
            // The guard of the channel was dropped. Returning drops `group`, which kills it.
            _ = dropped => {
                drop(exit_sender);
            }
        }
    });
    Channel { stdin: Box::pin(stdin), stdout: Box::pin(stdout), stderr, exit, guard: Box::new(guard) }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Status(code as u32),
        (None, Some(number)) => Exit::Signal(signal_name(number)),
        (None, None) => Exit::Closed(None),
    }
}

/// The name without `SIG`, as in RFC 4254, section 6.10.
fn signal_name(number: i32) -> String {
    let names = [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::ILL, "ILL"),
        (Signal::ABORT, "ABRT"),
        (Signal::BUS, "BUS"),
        (Signal::FPE, "FPE"),
        (Signal::KILL, "KILL"),
        (Signal::USR1, "USR1"),
        (Signal::SEGV, "SEGV"),
        (Signal::USR2, "USR2"),
        (Signal::PIPE, "PIPE"),
        (Signal::ALARM, "ALRM"),
        (Signal::TERM, "TERM"),
        (Signal::XCPU, "XCPU"),
    ];
    let name = names.iter().find(|(signal, _)| signal.as_raw() == number);
    name.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}
