//! Runs one command on an authenticated connection.

use super::connection::Connection;
use crate::ssh::limits::PreauthSlot;
use crate::ssh::transport::{Channel, Exit, SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration};
use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Disconnect, Error};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The capacity of each of the three pipes, in bytes. A slow reader makes the server wait.
const PIPE_BYTES: usize = 8 * 1024;

/// The maximum size of one message to the server, in bytes. russh keeps a buffer of the longest message.
const MESSAGE_BYTES: usize = 4 * 1024;

/// How long a clean disconnect may take before the stream is aborted.
const DISCONNECT_LIMIT: Duration = Duration::from_millis(500);

/// Starts `command`. Releases the slot once the server counts the connection as authenticated.
pub(super) async fn exec(
    connection: Connection,
    preauth_slot: PreauthSlot,
    command: &str,
    limit: Duration,
) -> Result<Channel, SshError> {
    let starting = timeout(limit, request(&connection, preauth_slot, command)).await;
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
        // Dropping the sender wakes the receiver, which ends the pump.
        guard: Box::new(guard),
    })
}

/// Opens the channel and requests the command; returns when the server has accepted both.
async fn request(
    connection: &Connection,
    preauth_slot: PreauthSlot,
    command: &str,
) -> Result<(ChannelReadHalf, ChannelWriteHalf<Msg>), SshError> {
    let refused = |action: &str| {
        let recorded = connection.events.lock();
        let reason =
            recorded.disconnect_message.as_deref().or(Some(recorded.banner.trim()).filter(|banner| !banner.is_empty()));
        let reason = reason.map(|reason| format!(" (the server says: {reason})")).unwrap_or_default();
        SshError::new(SshErrorKind::SessionRefused, format!("logged in, but the server {action}{reason}"))
    };
    let mut channel = connection.handle.channel_open_session().await.map_err(|error| match error {
        Error::ChannelOpenFailure(reason) => refused(&format!("refused a session: {reason:?}"))
            .with_hint("MaxSessions or a restriction of the account, in the server's sshd_config"),
        _ => refused("closed the connection"),
    })?;
    // sshd answers the login, then removes the connection from the `MaxStartups` count, then opens channels.
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

/// Copies bytes between the channel and the pipes. It owns the connection.
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
            // An error means that the channel accepts no more input; `copy_output` reports its end.
            let mut stdin = BufReader::with_capacity(MESSAGE_BYTES, stdin);
            if tokio::io::copy_buf(&mut stdin, &mut writer).await.is_ok() {
                let _ = writer.shutdown().await;
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = copy_output(&mut reads, stdout, stderr) => Some(ended),
            // The guard of the channel was dropped.
            _ = dropped => None,
            () = feed => None,
        };
        if let Some(ended) = ended {
            let ended = ended.unwrap_or_else(|| Exit::Closed(connection.events.lock().disconnect_message.clone()));
            // An error means that the receiver is gone.
            let _ = exit.send(ended);
        }
        let disconnecting = async {
            let _ = writes.close().await;
            let _ = connection.handle.disconnect(Disconnect::ByApplication, "", "").await;
            let _ = (&mut connection.handle).await;
        };
        // In any case, dropping `connection` aborts the stream.
        let _ = timeout(DISCONNECT_LIMIT, disconnecting).await;
    }
}

/// Copies the output until the channel closes. `Eof` may come before or after the exit status, so only `Close` ends the
/// channel. Returns `None` if the connection ended without an exit status.
async fn copy_output(reads: &mut ChannelReadHalf, mut stdout: DuplexStream, mut stderr: DuplexStream) -> Option<Exit> {
    let mut exit = None;
    loop {
        match reads.wait().await {
            // Discard output whose reader is gone: an unread channel would block the connection.
            Some(ChannelMsg::Data { data }) => {
                let _ = stdout.write_all(&data).await;
            }
            Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                let _ = stderr.write_all(&data).await;
            }
            Some(ChannelMsg::ExitStatus { exit_status }) => exit = Some(Exit::Status(exit_status)),
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                exit = Some(Exit::Signal(self::signal_name(&signal_name)));
            }
            Some(ChannelMsg::Close) | None => return exit,
            Some(_) => {}
        }
    }
}

/// The name without `SIG`, as in RFC 4254, section 6.10.
fn signal_name(signal: &russh::Sig) -> String {
    match signal {
        russh::Sig::Custom(name) => name.clone(),
        named => format!("{named:?}"),
    }
}
