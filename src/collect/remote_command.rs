//! A running command on a host: lines out of its standard output, and what remains when it ends.

use crate::config::HostConfig;
use crate::fleet::{HostId, LinkError};
use crate::ssh;
use crate::ssh::transport::{Channel, Exit, SshError, SshPhase};
use crate::wire::SafeText;
use crate::wire::codec::{CodecError, LineBuffer};
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// How much of the standard error is kept: the end says why.
const STDERR_TAIL_BYTES: usize = 4096;
/// How much of the standard output is read at once: a usual snapshot.
const CHUNK_BYTES: usize = 4096;
/// How long an ended command may take to deliver its exit status and the rest of its standard error.
const ENDING_LIMIT: Duration = Duration::from_secs(1);

/// A running command. Dropping it closes the channel and ends the task that drains the standard error.
pub(super) struct RemoteCommand {
    pub(super) stdin: Pin<Box<dyn AsyncWrite + Send>>,
    pub(super) stdout: RemoteOutput,
    stderr: watch::Receiver<Vec<u8>>,
    exit: oneshot::Receiver<Exit>,
    _drain: AbortOnDrop,
    _guard: Box<dyn Any + Send>,
}

/// The standard output and the line that is being received.
pub(super) struct RemoteOutput {
    stream: Pin<Box<dyn AsyncRead + Send>>,
    chunk: Box<[u8]>,
    /// What was read and not yet taken.
    pub(super) lines: LineBuffer,
}

/// How a command ended, with its last words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandEnd {
    /// The exit status, signal, or the server's words.
    pub(super) exit: Exit,
    /// The last line of the standard error; empty when it said nothing.
    pub(super) stderr: SafeText,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RemoteCommand {
    pub(super) fn new(channel: Channel) -> Self {
        let (tail, stderr) = watch::channel(Vec::new());
        // A channel that nobody reads stalls its whole connection, so this goes on whatever the host task waits for.
        let drain = tokio::spawn(keep_tail(channel.stderr, tail)).abort_handle();
        Self {
            stdin: channel.stdin,
            stdout: RemoteOutput {
                stream: channel.stdout,
                chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
                lines: LineBuffer::default(),
            },
            stderr,
            exit: channel.exit,
            _drain: AbortOnDrop(drain),
            _guard: channel.guard,
        }
    }

    /// Waits, not for long, until everything about the end is known. To be called after the standard output ended.
    pub(super) async fn wait_for_end(&mut self) -> CommandEnd {
        let exit = async { (&mut self.exit).await.unwrap_or(Exit::Closed(None)) };
        let stderr = async {
            // The sender is dropped when the standard error has ended.
            while self.stderr.changed().await.is_ok() {}
        };
        let (exit, _) = tokio::join!(timeout(ENDING_LIMIT, exit), timeout(ENDING_LIMIT, stderr));
        CommandEnd { exit: exit.unwrap_or(Exit::Closed(None)), stderr: last_line(&self.stderr.borrow()) }
    }
}

impl RemoteOutput {
    /// Reads what has come into `lines`; `false` at the end of the stream or when it breaks. Cancel safe.
    pub(super) async fn fill(&mut self) -> bool {
        match self.stream.read(&mut self.chunk).await {
            Ok(count) if count > 0 => {
                self.lines.push(&self.chunk[..count]);
                true
            }
            // A broken stream says no more than an ended one: the exit has the words.
            Ok(_) | Err(_) => false,
        }
    }

    /// The next line, or `None` at the end of the stream. Cancel safe.
    pub(super) async fn line(&mut self) -> Result<Option<Vec<u8>>, CodecError> {
        loop {
            if let Some(line) = self.lines.next_line()? {
                return Ok(Some(line.to_vec()));
            }
            if !self.fill().await {
                return Ok(None);
            }
        }
    }
}

async fn keep_tail(mut stderr: Pin<Box<dyn AsyncRead + Send>>, tail: watch::Sender<Vec<u8>>) {
    let mut chunk = [0; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        tail.send_modify(|kept| {
            kept.extend_from_slice(&chunk[..count]);
            let excess = kept.len().saturating_sub(STDERR_TAIL_BYTES);
            kept.drain(..excess);
        });
    }
}

/// The last line that is not empty.
pub(super) fn last_line(bytes: &[u8]) -> SafeText {
    let line = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).rfind(|line| !line.is_empty());
    SafeText::from_bytes(line.unwrap_or_default())
}

/// Where the hosts' bytes come from.
#[derive(Clone)]
pub enum Source {
    /// A shell on each host, over SSH or on this machine: the probe is found or installed first.
    Ssh(Arc<dyn OpenChannel>),
    /// Probes that run in this process and speak from the first byte: the simulated fleet.
    InProcess(Arc<OpenStream>),
}

/// Opens the stream of a probe that runs in this process.
pub type OpenStream = dyn Fn(HostId) -> Result<DuplexStream, LinkError> + Send + Sync;

/// Called with each phase that a connection enters.
pub type Progress = dyn Fn(SshPhase) + Send + Sync;

/// A channel on its way.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Channel, SshError>> + Send + 'a>>;

/// Runs one command on a host.
pub trait OpenChannel: Send + Sync {
    /// Starts `command` on `host`. Dropping the future gives the try up.
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a>;
}

impl OpenChannel for ssh::Context {
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a> {
        Box::pin(async move { ssh::open(&self, host, command, progress).await })
    }
}

/// A stream without a shell around it, as a channel: it has no standard error and no exit status.
pub(super) fn channel_from_stream(stream: DuplexStream) -> Channel {
    let (stdout, stdin) = tokio::io::split(stream);
    let (ended, exit) = oneshot::channel();
    drop::<oneshot::Sender<Exit>>(ended);
    Channel {
        stdin: Box::pin(stdin),
        stdout: Box::pin(stdout),
        stderr: Box::pin(tokio::io::empty()),
        exit,
        guard: Box::new(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[test]
    fn the_last_words_are_the_last_line_that_is_not_empty() {
        assert_eq!(last_line(b"warning\nsh: 1: exec: nope: not found\r\n\n"), "sh: 1: exec: nope: not found");
        assert_eq!(last_line(b"\n \n"), "");
        assert_eq!(last_line(b"\x1b[31mred"), "␛[31mred");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_on_standard_error_neither_stalls_nor_grows() {
        let (ours, theirs) = tokio::io::duplex(64);
        let (mut flood, stderr) = tokio::io::duplex(64);
        let (ended, exit) = oneshot::channel();
        let (stdout, stdin) = tokio::io::split(ours);
        let mut remote = RemoteCommand::new(Channel {
            stdin: Box::pin(stdin),
            stdout: Box::pin(stdout),
            stderr: Box::pin(stderr),
            exit,
            guard: Box::new(()),
        });
        for _ in 0..10_000 {
            flood.write_all(b"noise noise noise\n").await.expect("is drained");
        }
        flood.write_all(b"killed").await.expect("is drained");
        drop((flood, theirs));
        ended.send(Exit::Signal("KILL".to_owned())).expect("is awaited");
        assert_eq!(remote.stdout.line().await, Ok(None));
        let end = remote.wait_for_end().await;
        assert_eq!(end, CommandEnd { exit: Exit::Signal("KILL".to_owned()), stderr: "killed".into() });
        assert!(remote.stderr.borrow().len() <= STDERR_TAIL_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_never_comes_is_not_waited_for() {
        let (ours, theirs) = tokio::io::duplex(64);
        let (stdout, stdin) = tokio::io::split(ours);
        let (_never, exit) = oneshot::channel();
        let (_open, stderr) = tokio::io::duplex(64);
        let guard = Box::new(());
        let mut remote = RemoteCommand::new(Channel {
            stdin: Box::pin(stdin),
            stdout: Box::pin(stdout),
            stderr: Box::pin(stderr),
            exit,
            guard,
        });
        drop(theirs);
        let end = timeout(2 * ENDING_LIMIT, remote.wait_for_end()).await.expect("ends by itself");
        assert_eq!(end.exit, Exit::Closed(None));
    }
}
