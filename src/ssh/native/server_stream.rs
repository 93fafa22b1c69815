//! The way to a server: a TCP connection, a channel through a jump host, or the pipes of a program.

use super::connect::{ConnectTarget, NativeError};
use super::exec::Connection;
use super::jump_pool::{self, JumpConnection};
use super::tcp_connect::{self, describe_address};
use crate::config::Hop;
use crate::ssh::openssh::child_process::{Child, ProcessGroup};
use crate::ssh::openssh::{AskpassToken, PromptAbandoned};
use crate::ssh::pausable_timeout::PausableTimeout;
use crate::ssh::resolve::Proxy;
use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use crate::ssh::{openssh, preauth_limiter};
use crate::wire::format::{DurationStyle, duration, io_cause};
use futures::FutureExt;
use russh::{ChannelOpenFailure, Error};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

/// How long a jump host may take for a sign of life before its connection counts as dead.
const PING_LIMIT: Duration = Duration::from_secs(2);

/// The most of a proxy's words that an error repeats, in bytes.
const MAX_STDERR_BYTES: usize = 400;

/// How long a proxy that failed may take to say why.
const STDERR_LIMIT: Duration = Duration::from_millis(500);

/// Bytes to and from a server.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// A stream to a server's SSH port.
pub(super) struct ServerStream {
    pub(super) stream: Box<dyn ByteStream>,
    /// What was reached, for people.
    pub(super) peer: String,
    pub(super) carrier: StreamCarrier,
    /// Given back once logged in.
    pub(super) preauth_slot: preauth_limiter::PreauthSlot,
    /// The limit of the key exchange, where it stands still while a proxy asks the person something.
    pub(super) time_limit: Option<PausableTimeout>,
}

/// What a stream runs through, and ends with.
pub(super) enum StreamCarrier {
    Direct,
    /// The connection to a jump host, shared with others.
    Jump {
        _connection: Arc<Connection>,
    },
    /// A program, killed with its group when dropped, and what it says on standard error.
    ProxyProcess(Box<ProxyProcess>),
}

/// A running proxy.
pub(super) struct ProxyProcess {
    _process_group: ProcessGroup,
    askpass_token: Option<AskpassToken>,
    stderr: tokio::sync::Mutex<ChildStderr>,
}

impl StreamCarrier {
    /// Completes when the person whom the proxy asked has said no, or does not answer while its server waits.
    pub(super) async fn abandoned(&self) -> PromptAbandoned {
        if let Self::ProxyProcess(program) = self
            && let Some(askpass_token) = &program.askpass_token
        {
            return askpass_token.abandoned().await;
        }
        std::future::pending().await
    }

    /// The error with the proxy's own words, where there is a proxy and it has any.
    pub(super) async fn explain(&self, mut error: SshError) -> SshError {
        let Self::ProxyProcess(program) = self else { return error };
        let mut output = Vec::new();
        let mut stderr = program.stderr.lock().await;
        // Until it ends, or a moment has passed: what was read by then stays in the buffer.
        let mut stderr = (&mut *stderr).take(MAX_STDERR_BYTES as u64);
        let _ = timeout(STDERR_LIMIT, stderr.read_to_end(&mut output)).await;
        let output = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            error.message = format!("{}; the proxy says: {}", error.message, lines.join("; "));
        }
        error
    }
}

/// Opens the way that the configuration names.
pub(super) async fn open(target: &ConnectTarget<'_>) -> Result<ServerStream, NativeError> {
    match &target.resolved.proxy {
        Proxy::None => Ok(open_direct(target).await?),
        Proxy::Jump(hops) => open_through_jump_hosts(target, hops).await,
        Proxy::Command(command) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
            let mut program = openssh::without_terminal(target.context, shell);
            program.arg("-c").arg(format!("exec {command}"));
            Ok(open_through_process(target, program, "its ProxyCommand").await?)
        }
    }
}

async fn open_direct(target: &ConnectTarget<'_>) -> Result<ServerStream, SshError> {
    let limits = target.context.options.limits;
    (target.progress)(SshPhase::Name);
    let addresses = tcp_connect::lookup_addresses(target.resolved, limits.name).await?;
    target.trace(SshPhase::Name, || {
        addresses.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
    });
    let preauth_slot =
        acquire_preauth_slot(target, &addresses.first().map(ToString::to_string).unwrap_or_default()).await;
    (target.progress)(SshPhase::Tcp);
    let limit = target.resolved.connect_timeout.unwrap_or(limits.tcp);
    let (stream, address) = tcp_connect::connect(&addresses, limit).await?;
    target.trace(SshPhase::Tcp, || describe_address(address));
    Ok(ServerStream {
        stream: Box::new(stream),
        peer: describe_address(address),
        carrier: StreamCarrier::Direct,
        preauth_slot,
        time_limit: None,
    })
}

/// A place among the unauthenticated connections to this address.
async fn acquire_preauth_slot(target: &ConnectTarget<'_>, address: &str) -> preauth_limiter::PreauthSlot {
    let mut entering = std::pin::pin!(target.context.preauth_limiter.acquire(address));
    if let Some(peer) = entering.as_mut().now_or_never() {
        return peer;
    }
    (target.progress)(SshPhase::Queued);
    entering.await
}

/// A channel through jump hosts. A connection to them that proves dead is made anew, once.
async fn open_through_jump_hosts(target: &ConnectTarget<'_>, hops: &[Hop]) -> Result<ServerStream, NativeError> {
    let preauth_slot =
        acquire_preauth_slot(target, &format!("{} behind {}", host_and_port(target), target.resolved.proxy)).await;
    let mut first = true;
    loop {
        let connection = match jump_pool::jump_connection(target, hops).await? {
            JumpConnection::Connection(connection) => connection,
            JumpConnection::SshProgram(arguments) => {
                drop(preauth_slot);
                let mut program = openssh::without_terminal(target.context, "ssh");
                program.args(arguments).arg("-W").arg(host_and_port(target));
                if let Some(last) = hops.last() {
                    program.arg("--").arg(&last.host);
                }
                let proxy = format!("ssh -W through {}", target.resolved.proxy);
                return Ok(open_through_process(target, program, &proxy).await?);
            }
        };
        (target.progress)(SshPhase::Tcp);
        match open_forward_channel(target, &connection).await {
            Ok(stream) => {
                let peer = describe_route(target);
                target.trace(SshPhase::Tcp, || peer.clone());
                let carrier = StreamCarrier::Jump { _connection: connection };
                return Ok(ServerStream { stream, peer, carrier, preauth_slot, time_limit: None });
            }
            Err(ForwardError::Refused(error)) => return Err(error.into()),
            Err(ForwardError::ConnectionLost) => jump_pool::discard(target, hops, &connection),
        }
        if !first {
            let message = format!("the connection to the jump host {} was lost twice", target.resolved.proxy);
            return Err(SshError::new(SshErrorKind::Network, message).into());
        }
        first = false;
    }
}

/// Why there is no channel through a jump host.
enum ForwardError {
    /// The jump host said why.
    Refused(SshError),
    /// It says nothing more.
    ConnectionLost,
}

async fn open_forward_channel(
    target: &ConnectTarget<'_>,
    connection: &Connection,
) -> Result<Box<dyn ByteStream>, ForwardError> {
    let resolved = target.resolved;
    let limit = resolved.connect_timeout.unwrap_or(target.context.options.limits.tcp);
    let port = u32::from(resolved.port);
    let opening = connection.handle.channel_open_direct_tcpip(resolved.hostname.clone(), port, "127.0.0.1", 0);
    let (kind, what) = match timeout(limit, opening).await {
        Ok(Ok(channel)) => return Ok(Box::new(channel.into_stream())),
        Ok(Err(Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited))) => {
            let message =
                format!("the jump host {} does not allow forwarding to {}", resolved.proxy, host_and_port(target));
            let error = SshError::new(SshErrorKind::SessionRefused, message).naming_jump_host();
            return Err(ForwardError::Refused(error.with_hint("AllowTcpForwarding and PermitOpen in its sshd_config")));
        }
        Ok(Err(Error::ChannelOpenFailure(ChannelOpenFailure::Other { reason, .. }))) => (SshErrorKind::Network, reason),
        Ok(Err(Error::ChannelOpenFailure(reason))) => (SshErrorKind::Network, format!("{reason:?}")),
        Ok(Err(_)) => return Err(ForwardError::ConnectionLost),
        Err(_) => {
            let alive = timeout(PING_LIMIT, connection.handle.send_ping()).await.is_ok();
            if !alive || connection.handle.is_closed() {
                return Err(ForwardError::ConnectionLost);
            }
            (
                SshErrorKind::Timeout(SshPhase::Tcp),
                format!("no answer within {}", duration(limit, DurationStyle::Seconds)),
            )
        }
    };
    let message = format!("the jump host {} cannot reach {}: {what}", resolved.proxy, host_and_port(target));
    let error = SshError::new(kind, message).naming_jump_host();
    Err(ForwardError::Refused(error.with_hint("is the host up, and is its name known to the jump host?")))
}

/// The pipes of a program that leads to the server.
async fn open_through_process(
    target: &ConnectTarget<'_>,
    mut program: Command,
    what: &str,
) -> Result<ServerStream, SshError> {
    let preauth_slot = acquire_preauth_slot(target, &format!("{} by {what}", host_and_port(target))).await;
    (target.progress)(SshPhase::Tcp);
    let limits = target.context.options.limits;
    let time_limit = PausableTimeout::start(limits.tcp + limits.key_exchange);
    let askpass_token = openssh::askpass_token(target.context, target.host, &time_limit);
    openssh::set_askpass(target.context, askpass_token.as_ref(), &mut program);
    let child = Child::spawn(program).map_err(|error| {
        SshError::new(SshErrorKind::Network, format!("starting {what} failed: {}", io_cause(&error)))
            .with_hint("ProxyCommand in ~/.ssh/config")
    })?;
    let Child { group, stdin, stdout, stderr, .. } = child;
    let carrier = StreamCarrier::ProxyProcess(Box::new(ProxyProcess {
        _process_group: group,
        askpass_token,
        stderr: tokio::sync::Mutex::new(stderr),
    }));
    Ok(ServerStream {
        stream: Box::new(tokio::io::join(stdout, stdin)),
        peer: describe_route(target),
        carrier,
        preauth_slot,
        time_limit: Some(time_limit),
    })
}

/// `host:port`, as ssh's -W takes it.
fn host_and_port(target: &ConnectTarget<'_>) -> String {
    let hop = Hop { user: None, host: target.resolved.hostname.clone(), port: Some(target.resolved.port) };
    hop.to_string()
}

/// What is reached, for people.
fn describe_route(target: &ConnectTarget<'_>) -> String {
    let resolved = target.resolved;
    let route = match &resolved.proxy {
        Proxy::Command(_) => "its ProxyCommand".to_owned(),
        proxy => proxy.to_string(),
    };
    format!("{} port {} through {route}", resolved.hostname, resolved.port)
}
