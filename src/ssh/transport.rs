//! What a transport gives: one exec channel on a host, whichever way it was reached.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SshPhase {
    /// Waiting for a place among the unauthenticated connections to this address.
    Queued,
    /// Looking up the name.
    Name,
    /// Opening the TCP connection.
    Tcp,
    /// Key exchange, with the host key checked in it.
    KeyExchange,
    /// Authentication.
    Login,
    /// The command is being started.
    Exec,
}

/// One running command. Dropping it closes the channel, the connection and every task behind it.
pub struct Channel {
    /// The command's standard input.
    pub stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// The command's standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// The command's standard error; it must be drained, or the whole connection stalls.
    pub stderr: Pin<Box<dyn AsyncRead + Send>>,
    /// How the command ended, once it has.
    pub exit: oneshot::Receiver<Exit>,
    /// What must live as long as the channel does.
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
    /// With this status.
    Status(u32),
    /// By this signal, for example `TERM`.
    Signal(String),
    /// The connection closed without saying; the server's words, where it gave any.
    Closed(Option<String>),
}

/// Why no channel could be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshError {
    /// What failed.
    pub kind: SshErrorKind,
    /// One sentence without the host's name. It may quote the server; the caller makes it safe text.
    pub message: String,
    /// What a person can do, as a command where there is one.
    pub hint: Option<String>,
    /// The message names the jump host where it failed.
    pub names_jump_host: bool,
}

/// What failed on the way to a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshErrorKind {
    /// The configuration cannot be used.
    Config,
    /// The name could not be resolved.
    Dns,
    /// Nothing listens on the port.
    ConnectionRefused,
    /// No answer within the limit of this phase.
    Timeout(SshPhase),
    /// Any other failure of the network.
    Network,
    /// The server closed the connection, or said that it is busy.
    Busy,
    /// The server refuses this address for a while (`PerSourcePenalties`, OpenSSH 9.8 and newer).
    RateLimited,
    /// The protocol failed before authentication.
    KeyExchange,
    /// The host key is not known, and nobody said yes.
    HostKeyUnknown,
    /// The host key differs from the known one.
    HostKeyChanged,
    /// The host key is revoked.
    HostKeyRevoked,
    /// A known_hosts file cannot be read or written.
    KnownHosts,
    /// No method of authentication was accepted.
    Authentication,
    /// A key file is missing, unreadable or locked.
    IdentityFile,
    /// Let in, but the channel or the command was refused.
    SessionRefused,
    /// Not available on this platform.
    Unsupported,
    /// The person said no to a prompt.
    Declined,
}

impl SshError {
    /// An error without a way out.
    pub fn new(kind: SshErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, names_jump_host: false }
    }

    /// The same with one.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks the message as one that names the jump host where it failed.
    pub fn naming_jump_host(mut self) -> Self {
        self.names_jump_host = true;
        self
    }
}

impl fmt::Display for SshError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for SshError {}

/// Absolute limits of one connection's phases. Time spent in a prompt is not counted.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Looking up the name.
    pub name: Duration,
    /// Opening the TCP connection.
    pub tcp: Duration,
    /// Key exchange.
    pub key_exchange: Duration,
    /// Authentication.
    pub login: Duration,
    /// Opening the channel and starting the command.
    pub exec: Duration,
    /// How long a connection is kept for an answer that is to be typed. sshd closes an unfinished login after 120 s
    /// (`LoginGraceTime`), and a code that is typed into a closed connection is spent.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            name: Duration::from_secs(5),
            tcp: Duration::from_secs(5),
            key_exchange: Duration::from_secs(10),
            login: Duration::from_secs(20),
            exec: Duration::from_secs(10),
            answer: Duration::from_secs(100),
        }
    }
}
