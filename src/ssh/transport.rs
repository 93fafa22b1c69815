//! The interface of all transports: a channel with one running command, the phases before it, and errors.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SshPhase {
    /// Waiting for a slot among the unauthenticated connections to this address.
    Queued,
    /// Name resolution.
    Name,
    /// Opening the TCP connection.
    Tcp,
    /// Key exchange and host key verification.
    KeyExchange,
    /// Authentication.
    Login,
    /// Starting the command.
    Exec,
}

/// One running command. Dropping it closes the channel and the connection and ends their tasks.
pub struct Channel {
    /// The command's standard input.
    pub stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// The command's standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// The command's standard error. It must be drained, or the whole connection stalls.
    pub stderr: Pin<Box<dyn AsyncRead + Send>>,
    /// Receives how the command ended.
    pub exit: oneshot::Receiver<Exit>,
    /// Ends the connection when dropped.
    pub guard: Box<dyn Any + Send>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Channel")
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// With this exit status.
    Status(u32),
    /// By this signal, for example `TERM`.
    Signal(String),
    /// The connection closed without an exit status, with the disconnect message, if any.
    Closed(Option<String>),
}

/// Why a channel could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshError {
    /// What failed.
    pub kind: SshErrorKind,
    /// One sentence without the name of the host. It may quote the server: the caller must convert it to safe text.
    pub message: String,
    /// A remedy, as a command if possible.
    pub hint: Option<String>,
    /// Whether the message names the jump host that failed.
    pub names_jump_host: bool,
}

/// The kinds of [`SshError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshErrorKind {
    /// The configuration is invalid.
    Config,
    /// The name could not be resolved.
    Dns,
    /// Nothing listens on the port.
    ConnectionRefused,
    /// No answer within the limit of this phase.
    Timeout(SshPhase),
    /// Another network failure.
    Network,
    /// The server closed the connection or is busy.
    Busy,
    /// The server temporarily refuses this address (`PerSourcePenalties`, OpenSSH 9.8 and newer).
    RateLimited,
    /// The protocol failed before authentication.
    KeyExchange,
    /// The host key is not known, and the user has not accepted it.
    HostKeyUnknown,
    /// The host key differs from the known one.
    HostKeyChanged,
    /// The host key is revoked.
    HostKeyRevoked,
    /// A known_hosts file cannot be read or written.
    KnownHosts,
    /// The server accepted no authentication method.
    Authentication,
    /// A key file is missing, unreadable or encrypted.
    IdentityFile,
    /// Authenticated, but the account, the channel or the command was refused.
    SessionRefused,
    /// Not available on this platform.
    Unsupported,
    /// The user declined a prompt.
    Declined,
}

impl SshError {
    /// An error without a hint.
    pub fn new(kind: SshErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, names_jump_host: false }
    }

    /// Sets the hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks the message as naming the jump host that failed.
    pub fn naming_jump_host(mut self) -> Self {
        self.names_jump_host = true;
        self
    }

    /// The user declined to log in as `user`.
    pub(super) fn login_cancelled(user: &str) -> Self {
        Self::new(SshErrorKind::Declined, format!("the login as {user} was cancelled at the prompt"))
    }
}

impl fmt::Display for SshError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for SshError {}
