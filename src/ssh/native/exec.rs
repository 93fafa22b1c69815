//! One command on an authenticated connection, and everything that ends with it.

use super::abortable_stream::AbortHandle;
use super::handler::{ClientHandler, ConnectionEvents};
use super::server_stream::StreamCarrier;
use crate::ssh::preauth_limiter::PreauthSlot;
use crate::ssh::transport::{Channel, Exit, SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration};
use russh::client::{Handle, Msg};
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Disconnect, Error};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::oneshot;

/// What each of the three pipes holds: a slow reader makes the server wait, never this machine's memory grow.
const PIPE_BYTES: usize = 8 * 1024;

/// How much goes to the server in one message. russh keeps the room of the longest for as long as the connection lasts.
const MESSAGE_BYTES: usize = 4 * 1024;

/// How long a farewell may take before the connection is cut.
const DISCONNECT_LIMIT: Duration = Duration::from_millis(500);

/// An authenticated connection. Dropping it cuts the stream.
pub(super) struct Connection {
    pub(super) handle: Handle<ClientHandler>,
    pub(super) events: ConnectionEvents,
    /// Held for its drop.
    pub(super) _abort_handle: AbortHandle,
    /// What the stream runs through.
    pub(super) _carrier: StreamCarrier,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Connection")
    }
}

/// Starts `command` on a channel of its own, and leaves the waiting room once the server counts the connection as
/// logged in.
pub(super) async fn start(
    connection: Connection,
    preauth_slot: PreauthSlot,
    command: &str,
    limit: Duration,
) -> Result<Channel, SshError> {
    let starting = tokio::time::timeout(limit, request(&connection, preauth_slot, command)).await;
    let (reads, writes) = starting.unwrap_or_else(|_| {
        let message =
            format!("logged in, but the command was not started within {}", duration(limit, DurationStyle::Seconds));
        Err(SshError::new(SshErrorKind::Timeout(SshPhase::Exec), message)
            .with_hint("the host is overloaded, or its home directories hang"))
    })?;
    let (stdin, stdin_far) = tokio::io::duplex(PIPE_BYTES);
    let (stdout, stdout_far) = tokio::io::duplex(PIPE_BYTES);
    let (stderr, stderr_far) = tokio::io::duplex(PIPE_BYTES);
    let (exit_sender, exit) = oneshot::channel();
    let (guard, dropped) = oneshot::channel();
    let pump = ChannelPump { connection, reads, writes, stdin: stdin_far, stdout: stdout_far, stderr: stderr_far };
    tokio::spawn(pump.run(exit_sender, dropped));
    Ok(Channel {
        stdin: Box::pin(stdin),
        stdout: Box::pin(stdout),
        stderr: Box::pin(stderr),
        exit,
        // Dropping this end wakes the other, which ends everything.
        guard: Box::new(guard),
    })
}

/// Opens the channel and asks for the command, until the server has agreed to both.
async fn request(
    connection: &Connection,
    preauth_slot: PreauthSlot,
    command: &str,
) -> Result<(ChannelReadHalf, ChannelWriteHalf<Msg>), SshError> {
    let refused = |what: &str| {
        let recorded = connection.events.lock();
        let reason =
            recorded.disconnect_message.as_deref().or(Some(recorded.banner.trim()).filter(|banner| !banner.is_empty()));
        let reason = reason.map(|reason| format!(" (the server says: {reason})")).unwrap_or_default();
        SshError::new(SshErrorKind::SessionRefused, format!("logged in, but the server {what}{reason}"))
    };
    let mut channel = connection.handle.channel_open_session().await.map_err(|error| match error {
        Error::ChannelOpenFailure(reason) => refused(&format!("refused a session: {reason:?}"))
            .with_hint("MaxSessions or a restriction of the account, in the server's sshd_config"),
        _ => refused("closed the connection"),
    })?;
    // sshd answers the login first and leaves the count of `MaxStartups` then; it opens channels after both.
    drop(preauth_slot);
    channel.exec(true, command).await.map_err(|_| refused("closed the connection"))?;
    loop {
        match channel.wait().await {
            Some(ChannelMsg::Success) => return Ok(channel.split()),
            Some(ChannelMsg::Failure) => {
                return Err(refused("refused to run a command")
                    .with_hint("the account may be limited to file transfer or forwarding"));
            }
            Some(ChannelMsg::Close) | None => return Err(refused("closed the channel before the command ran")),
            Some(_) => {}
        }
    }
}

/// Moves bytes between the channel and the pipes, and owns the connection.
struct ChannelPump {
    connection: Connection,
    reads: ChannelReadHalf,
    writes: ChannelWriteHalf<Msg>,
    stdin: DuplexStream,
    stdout: DuplexStream,
    stderr: DuplexStream,
}

impl ChannelPump {
    async fn run(self, exit: oneshot::Sender<Exit>, dropped: oneshot::Receiver<()>) {
        let Self { mut connection, mut reads, writes, stdin, stdout, stderr } = self;
        let mut writer = Box::pin(writes.make_writer());
        let feed = async {
            // An error means that the channel takes no more; its end is told by the other half.
            let mut stdin = BufReader::with_capacity(MESSAGE_BYTES, stdin);
            if tokio::io::copy_buf(&mut stdin, &mut writer).await.is_ok() {
                let _ = writer.shutdown().await;
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = copy_output(&mut reads, stdout, stderr) => Some(ended),
            // Dropping the channel's guard.
            _ = dropped => None,
            () = feed => None,
        };
        if let Some(ended) = ended {
            let ended = ended.unwrap_or_else(|| Exit::Closed(connection.events.lock().disconnect_message.clone()));
            // Nobody may be interested.
            let _ = exit.send(ended);
        }
        let disconnect_message = async {
            let _ = writes.close().await;
            let _ = connection.handle.disconnect(Disconnect::ByApplication, "", "").await;
            let _ = (&mut connection.handle).await;
        };
        // Whatever the server does, the stream is cut when `connection` goes.
        let _ = tokio::time::timeout(DISCONNECT_LIMIT, disconnect_message).await;
    }
}

/// Reads the channel to its end. `Eof` may come before or after the exit status, so only `Close` ends it; `None` when
/// the connection ended without a word about the command.
async fn copy_output(reads: &mut ChannelReadHalf, mut stdout: DuplexStream, mut stderr: DuplexStream) -> Option<Exit> {
    let mut exit = None;
    loop {
        match reads.wait().await {
            // A reader that has gone loses what comes; the channel goes on.
            Some(ChannelMsg::Data { data }) => {
                let _ = stdout.write_all(&data).await;
            }
            Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                let _ = stderr.write_all(&data).await;
            }
            Some(ChannelMsg::ExitStatus { exit_status }) => exit = Some(Exit::Status(exit_status)),
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                exit = Some(Exit::Signal(signal(&signal_name)));
            }
            Some(ChannelMsg::Close) | None => return exit,
            Some(_) => {}
        }
    }
}

/// The signal's name without `SIG`, as the protocol has it.
fn signal(signal: &russh::Sig) -> String {
    match signal {
        russh::Sig::Custom(name) => name.clone(),
        named => format!("{named:?}"),
    }
}
