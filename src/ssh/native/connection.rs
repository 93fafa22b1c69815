//! One connection to an SSH server: russh's handler, what the server reported, and the byte stream below.

use super::host_key::{HostKeyDecision, HostKeyVerifier};
use crate::ssh::child_process::ProcessGroup;
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::openssh::{AskpassToken, PromptAbandoned};
use crate::ssh::transport::SshError;
use futures::task::AtomicWaker;
use russh::client::{ChannelOpenHandle, DisconnectReason, Handle, Handler, Msg, Session};
use russh::keys::{PublicKey, PublicKeyOrCertificate};
use russh::{Channel, Error, Names};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, BufReader, ReadBuf};
use tokio::process::ChildStderr;
use tokio::time::timeout;

/// The maximum size of a server's banner and of its disconnect message, in bytes.
const MAX_BANNER_BYTES: usize = 4096;

/// The size of the read buffer, in bytes. russh reads the length of each packet and then the rest; the buffer saves
/// system calls.
const READ_BYTES: usize = 8 * 1024;

/// How many of the first bytes from the server are kept for error messages.
const FIRST_BYTES_LIMIT: usize = 512;

/// The maximum size of a proxy's standard error in an error message, in bytes.
const MAX_STDERR_BYTES: usize = 400;

/// How long to wait for the standard error of a proxy that failed.
const STDERR_LIMIT: Duration = Duration::from_millis(500);

/// Why the built-in client failed.
#[derive(Debug, Clone)]
pub(in crate::ssh) struct NativeError {
    pub(in crate::ssh) error: SshError,
    /// Whether the `ssh` program may succeed.
    pub(in crate::ssh) ssh_program_may_help: bool,
}

impl From<SshError> for NativeError {
    fn from(error: SshError) -> Self {
        Self { error, ssh_program_may_help: false }
    }
}

/// An authenticated connection. Dropping it aborts the stream.
pub(super) struct Connection {
    pub(super) handle: Handle<ClientHandler>,
    pub(super) events: ConnectionEvents,
    pub(super) _abort_handle: AbortHandle,
    pub(super) _carrier: StreamCarrier,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Connection")
    }
}

/// The carrier of a byte stream. It must live as long as the stream.
pub(super) enum StreamCarrier {
    Direct,
    /// The connection to a jump host, shared by the hosts behind it.
    Jump {
        _connection: Arc<Connection>,
    },
    ProxyProcess(Box<ProxyProcess>),
}

/// A running ProxyCommand or `ssh -W`. Dropping it kills the process group.
pub(super) struct ProxyProcess {
    _process_group: ProcessGroup,
    askpass_token: Option<AskpassToken>,
    stderr: tokio::sync::Mutex<ChildStderr>,
}

impl StreamCarrier {
    pub(super) fn proxy_process(
        process_group: ProcessGroup,
        askpass_token: Option<AskpassToken>,
        stderr: ChildStderr,
    ) -> Self {
        let stderr = tokio::sync::Mutex::new(stderr);
        Self::ProxyProcess(Box::new(ProxyProcess { _process_group: process_group, askpass_token, stderr }))
    }

    /// Completes when the user declines a question of the proxy or does not answer in time.
    pub(super) async fn abandoned(&self) -> PromptAbandoned {
        if let Self::ProxyProcess(process) = self
            && let Some(askpass_token) = &process.askpass_token
        {
            return askpass_token.abandoned().await;
        }
        std::future::pending().await
    }

    /// Adds the standard error of the proxy, if any, to the message.
    pub(super) async fn explain(&self, mut error: SshError) -> SshError {
        let Self::ProxyProcess(process) = self else { return error };
        let mut output = Vec::new();
        let mut stderr = process.stderr.lock().await;
        let mut stderr = (&mut *stderr).take(MAX_STDERR_BYTES as u64);
        // After the timeout, `output` holds what was read so far.
        let _ = timeout(STDERR_LIMIT, stderr.read_to_end(&mut output)).await;
        let output = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            error.message = format!("{}; the proxy says: {}", error.message, lines.join("; "));
        }
        error
    }
}

/// The reports of the server, shared with [`ClientHandler`].
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionEvents(Arc<Mutex<RecordedEvents>>);

#[derive(Debug, Default)]
pub(super) struct RecordedEvents {
    /// The result of host key verification, once the server has sent its key.
    pub(super) decision: Option<HostKeyDecision>,
    /// The negotiated algorithms and the host key, for display.
    pub(super) negotiated: String,
    /// The text of `SSH_MSG_USERAUTH_BANNER` messages.
    pub(super) banner: String,
    /// Whether a signature, a password or an answer was sent that the server has not accepted or refused yet.
    pub(super) credentials_sent: bool,
    /// Whether the server listed no remaining authentication method. russh ends such a connection.
    pub(super) no_auth_method_left: bool,
    /// The disconnect message of the server, or the error that ended the connection.
    pub(super) disconnect_message: Option<String>,
    /// Whether the server sent `disconnect_message`.
    pub(super) closed_by_server: bool,
}

impl ConnectionEvents {
    pub(super) fn lock(&self) -> MutexGuard<'_, RecordedEvents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordedEvents {
    /// Appends to the banner, up to its maximum size.
    pub(super) fn add_banner(&mut self, text: &str) {
        let room = MAX_BANNER_BYTES.saturating_sub(self.banner.len());
        self.banner.push_str(truncate(text, room));
    }
}

/// The longest prefix of at most `max_bytes`.
fn truncate(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// Receives russh's callbacks: verifies the host key and records what the server reports.
pub(super) struct ClientHandler {
    verifier: HostKeyVerifier,
    events: ConnectionEvents,
}

impl ClientHandler {
    pub(super) fn new(verifier: HostKeyVerifier, events: ConnectionEvents) -> Self {
        Self { verifier, events }
    }
}

impl Handler for ClientHandler {
    type Error = Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Error> {
        let decision = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.verifier.verify_key(key),
            PublicKeyOrCertificate::Certificate(certificate) => self.verifier.verify_certificate(certificate),
        };
        let accepted = matches!(decision, HostKeyDecision::Accepted { .. });
        let mut recorded = self.events.lock();
        if accepted {
            recorded.negotiated = match shown {
                PublicKeyOrCertificate::PublicKey { key, .. } => {
                    format!("host key {} {}", key.algorithm().as_str(), fingerprint(key))
                }
                PublicKeyOrCertificate::Certificate(certificate) => {
                    let key = PublicKey::from(certificate.public_key().clone());
                    let (key_type, fingerprint) = (key.algorithm(), fingerprint(&key));
                    format!("host certificate {:?}, {} {fingerprint}", certificate.key_id(), key_type.as_str())
                }
            };
        }
        recorded.decision = Some(decision);
        Ok(accepted)
    }

    async fn kex_done(&mut self, _: Option<&[u8]>, names: &Names, _: &mut Session) -> Result<(), Error> {
        let negotiated = &mut self.events.lock().negotiated;
        // Rekeying negotiates the same algorithms.
        if !negotiated.contains(';') {
            *negotiated = format!("{}, {}; {negotiated}", names.kex.as_ref(), names.cipher.as_ref());
        }
        Ok(())
    }

    async fn auth_banner(&mut self, banner: &str, _: &mut Session) -> Result<(), Error> {
        self.events.lock().add_banner(banner);
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Error>) -> Result<(), Error> {
        let closed_by_server = matches!(reason, DisconnectReason::ReceivedDisconnect(_));
        let (text, result) = match reason {
            DisconnectReason::ReceivedDisconnect(info) => (Some(info.message), Ok(())),
            DisconnectReason::Error(Error::Disconnect | Error::HUP) => (None, Ok(())),
            DisconnectReason::Error(error) => (Some(error.to_string()), Err(error)),
        };
        let mut recorded = self.events.lock();
        recorded.closed_by_server = closed_by_server;
        recorded.no_auth_method_left = matches!(result, Err(Error::NoAuthMethod));
        recorded.disconnect_message =
            text.filter(|text| !text.trim().is_empty()).map(|text| truncate(&text, MAX_BANNER_BYTES).to_owned());
        result
    }

    // russh's default implementations accept channels that the server opens. gpufleet requests no forwarding, so every
    // such channel is unexpected; dropping the reply handle refuses it.

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }
}

/// A byte stream that [`AbortHandle`] can end from outside.
///
/// russh has no time limits: after a dropped `connect` future, its task and socket stay alive as long as the server
/// stalls. Aborting makes the pending read fail at once.
#[derive(Debug)]
pub(super) struct AbortableStream<S> {
    inner: BufReader<S>,
    shared: Arc<AbortState>,
}

/// Aborts the stream when dropped.
#[derive(Debug)]
pub(super) struct AbortHandle {
    shared: Arc<AbortState>,
}

#[derive(Debug, Default)]
struct AbortState {
    aborted: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
    first_bytes: Mutex<Vec<u8>>,
}

/// Wraps `stream`; dropping the handle ends it.
pub(super) fn abortable<S: AsyncRead>(stream: S) -> (AbortableStream<S>, AbortHandle) {
    let shared = Arc::new(AbortState::default());
    let inner = BufReader::with_capacity(READ_BYTES, stream);
    (AbortableStream { inner, shared: Arc::clone(&shared) }, AbortHandle { shared })
}

impl AbortHandle {
    /// The first bytes that the server sent, for error messages.
    pub(super) fn first_bytes(&self) -> Vec<u8> {
        self.shared.first_bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for AbortHandle {
    fn drop(&mut self) {
        self.shared.aborted.store(true, Ordering::Release);
        self.shared.reader.wake();
        self.shared.writer.wake();
    }
}

impl AbortState {
    /// Registers `waker` for the abort; an error if the stream is aborted already.
    fn check(&self, waker: &AtomicWaker, context: &Context<'_>) -> io::Result<()> {
        waker.register(context.waker());
        if self.aborted.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "connection aborted"));
        }
        Ok(())
    }

    fn record_first_bytes(&self, bytes: &[u8]) {
        let mut first_bytes = self.first_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let room = FIRST_BYTES_LIMIT.saturating_sub(first_bytes.len()).min(bytes.len());
        first_bytes.extend_from_slice(&bytes[..room]);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AbortableStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.shared.check(&this.shared.reader, context)?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(context, buffer);
        if polled.is_ready() {
            this.shared.record_first_bytes(&buffer.filled()[before..]);
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for AbortableStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.shared.check(&this.shared.writer, context)?;
        Pin::new(&mut this.inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.shared.check(&this.shared.writer, context)?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[test]
    fn the_banner_is_truncated_at_a_character_boundary() {
        let mut recorded = RecordedEvents::default();
        (0..3).for_each(|_| recorded.add_banner(&"ä".repeat(1000)));
        assert_eq!(recorded.banner.len(), MAX_BANNER_BYTES);
        assert_eq!(truncate("aä", 2), "a");
    }

    #[tokio::test]
    async fn dropping_the_abort_handle_ends_pending_reads_and_writes() {
        let (near, mut far) = tokio::io::duplex(4);
        let (stream, abort_handle) = abortable(near);
        far.write_all(b"SSH").await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut bytes = [0; 3];
        reader.read_exact(&mut bytes).await.unwrap();
        assert_eq!(abort_handle.first_bytes(), b"SSH");
        let reading = tokio::spawn(async move { reader.read_u8().await });
        let writing = tokio::spawn(async move { writer.write_all(&[0; 100]).await });
        tokio::task::yield_now().await;
        drop(abort_handle);
        assert_eq!(reading.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
