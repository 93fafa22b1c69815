//! A running command on a host, with line-wise standard output and a bounded tail of standard error, and the sources
//! that start one: SSH or a simulated probe in this process.

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
use tokio::time::{Instant, timeout};

/// Size of the kept tail of standard error, which usually names the cause of the exit.
const STDERR_TAIL_BYTES: usize = 4096;
/// Standard error that a command may write at any time, in bytes.
const STDERR_BURST_BYTES: f64 = 1_048_576.0;
/// Standard error that a command may write per second, in bytes.
const STDERR_BYTES_PER_SECOND: f64 = 16_384.0;
/// Read size of standard output; a typical snapshot fits.
const CHUNK_BYTES: usize = 4096;
/// Time limit for the exit status and the rest of standard error after standard output has ended.
const ENDING_LIMIT: Duration = Duration::from_secs(1);

/// A running command. Dropping it closes the channel and aborts the task that drains standard error.
pub(super) struct RemoteCommand {
    pub(super) stdin: Pin<Box<dyn AsyncWrite + Send>>,
    pub(super) stdout: RemoteOutput,
    stderr: watch::Receiver<StderrTail>,
    exit: oneshot::Receiver<Exit>,
    _drain: AbortOnDrop,
    _guard: Box<dyn Any + Send>,
}

/// Standard output with its line buffer.
pub(super) struct RemoteOutput {
    stream: Pin<Box<dyn AsyncRead + Send>>,
    chunk: Box<[u8]>,
    /// Bytes that are read but not yet returned as lines.
    pub(super) lines: LineBuffer,
}

/// Exit of a command, with the last line of its standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandEnd {
    /// Exit status, signal, or disconnect message.
    pub(super) exit: Exit,
    /// Last line of standard error; empty if nothing was written.
    pub(super) stderr: SafeText,
}

/// The end of standard error.
#[derive(Debug, Default)]
struct StderrTail {
    bytes: Vec<u8>,
    /// The command wrote more than it may. Nothing more is read.
    is_over_limit: bool,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RemoteCommand {
    pub(super) fn new(channel: Channel) -> Self {
        let (tail, stderr) = watch::channel(StderrTail::default());
        // An unread channel stalls its whole SSH connection, so a task drains standard error independently.
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

    /// Waits for the exit status and the rest of standard error, up to [`ENDING_LIMIT`]. Call it after standard output has
    /// ended.
    pub(super) async fn wait_for_end(&mut self) -> CommandEnd {
        let exit = async { (&mut self.exit).await.unwrap_or(Exit::Closed(None)) };
        let stderr = async {
            // The sender is dropped when standard error ends.
            while self.stderr.changed().await.is_ok() {}
        };
        let (exit, _) = tokio::join!(timeout(ENDING_LIMIT, exit), timeout(ENDING_LIMIT, stderr));
        CommandEnd { exit: exit.unwrap_or(Exit::Closed(None)), stderr: last_line(&self.stderr.borrow().bytes) }
    }

    /// Waits until the command has written too much to standard error.
    pub(super) fn stderr_over_limit(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stderr = self.stderr.clone();
        async move {
            if stderr.wait_for(|tail| tail.is_over_limit).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl RemoteOutput {
    /// Reads available bytes into `lines`. Returns `false` at the end of the stream or on an error. Cancel safe.
    pub(super) async fn fill(&mut self) -> bool {
        match self.stream.read(&mut self.chunk).await {
            Ok(count) if count > 0 => {
                self.lines.push(&self.chunk[..count]);
                true
            }
            // The exit names the cause of a broken stream.
            Ok(_) | Err(_) => false,
        }
    }

    /// Returns the next line, or `None` at the end of the stream. Cancel safe.
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

async fn keep_tail(mut stderr: Pin<Box<dyn AsyncRead + Send>>, tail: watch::Sender<StderrTail>) {
    let mut chunk = [0; 1024];
    let (mut credit, mut last_read) = (STDERR_BURST_BYTES, Instant::now());
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        let earned = last_read.elapsed().as_secs_f64() * STDERR_BYTES_PER_SECOND;
        credit = (credit + earned).min(STDERR_BURST_BYTES) - count as f64;
        last_read = Instant::now();
        tail.send_modify(|tail| {
            tail.bytes.extend_from_slice(&chunk[..count]);
            let excess = tail.bytes.len().saturating_sub(STDERR_TAIL_BYTES);
            tail.bytes.drain(..excess);
            tail.is_over_limit = credit < 0.0;
        });
        if credit < 0.0 {
            return;
        }
    }
}

/// Returns the last line that is not empty.
pub(super) fn last_line(bytes: &[u8]) -> SafeText {
    let line = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).rfind(|line| !line.is_empty());
    SafeText::from_bytes(line.unwrap_or_default())
}

/// Where the data of the hosts comes from.
#[derive(Clone)]
pub enum Source {
    /// A shell on each host, over SSH or on this machine, which installs and runs the probe.
    Ssh(Arc<dyn OpenChannel>),
    /// Simulated probes in this process.
    InProcess(Arc<OpenStream>),
}

/// Opens the stream of a simulated probe.
pub type OpenStream = dyn Fn(HostId) -> Result<DuplexStream, LinkError> + Send + Sync;

/// Called with each phase of a connection attempt.
pub type Progress = dyn Fn(SshPhase) + Send + Sync;

/// A channel that is being opened.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Channel, SshError>> + Send + 'a>>;

/// Runs one command on a host.
pub trait OpenChannel: Send + Sync {
    /// Starts `command` on `host`. Dropping the future cancels the attempt.
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a>;
}

impl OpenChannel for ssh::Context {
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a> {
        Box::pin(async move { ssh::open(&self, host, command, progress).await })
    }
}

/// Wraps a plain stream as a channel without standard error and exit status.
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
        assert!(remote.stderr.borrow().bytes.len() <= STDERR_TAIL_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_standard_error_is_reported() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let (mut flood, stderr) = tokio::io::duplex(4096);
        let (_never, exit) = oneshot::channel();
        let (stdout, stdin) = tokio::io::split(ours);
        let remote = RemoteCommand::new(Channel {
            stdin: Box::pin(stdin),
            stdout: Box::pin(stdout),
            stderr: Box::pin(stderr),
            exit,
            guard: Box::new(()),
        });
        // A line per second for a day is no flood.
        for _ in 0..86_400 {
            flood.write_all(b"nvidia-smi: a warning that comes each time\n").await.expect("is drained");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let over_limit = remote.stderr_over_limit();
        let endless = async { while flood.write_all(&[b'x'; 1024]).await.is_ok() {} };
        tokio::join!(over_limit, endless);
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
