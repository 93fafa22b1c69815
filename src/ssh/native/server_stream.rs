//! Opens a byte stream to an SSH server: a TCP connection, a channel through jump hosts, or the pipes of a program.

use super::algorithms;
use super::connection::{Connection, NativeError, StreamCarrier};
use super::jump_pool::JumpConnection;
use crate::config::Hop;
use crate::ssh::Context;
use crate::ssh::child_process::Child;
use crate::ssh::limits::{PausableTimeout, PreauthSlot};
use crate::ssh::openssh;
use crate::ssh::resolve::{Proxy, Resolved, last_jump_host, name_jump_host, refuse_circle, resolve, route_key};
use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration, io_cause};
use futures::FutureExt;
use futures::future::BoxFuture;
use russh::{ChannelOpenFailure, Error};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// How long to try one address before the next one is tried as well (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// How long a jump host may take to answer a ping before its connection counts as dead.
const PING_LIMIT: Duration = Duration::from_secs(2);

/// The server to connect to.
#[derive(Clone, Copy)]
pub(super) struct ConnectTarget<'a> {
    pub(super) context: &'a Context,
    /// The display name of the host.
    pub(super) host: &'a str,
    pub(super) resolved: &'a Resolved,
    /// The keys of the jump hosts that wait for this connection, to detect a jump host that leads back to itself.
    pub(super) jump_path: &'a [String],
    /// Whether other connections will run through this one.
    pub(super) carries_others: bool,
    pub(super) progress: &'a (dyn Fn(SshPhase) + Send + Sync),
    /// Connects to a jump host.
    pub(super) log_in: LogIn,
}

/// Connects to a target and logs in. The slot comes with the connection, because the server still counts it as
/// unauthenticated for a moment.
pub(super) type LogIn = for<'a> fn(ConnectTarget<'a>) -> BoxFuture<'a, Result<(Connection, PreauthSlot), NativeError>>;

impl ConnectTarget<'_> {
    /// See [`Context::trace`].
    pub(super) fn trace(&self, phase: SshPhase, text: impl FnOnce() -> String) {
        self.context.trace(self.host, phase, text);
    }

    /// `host:port`, the format of `ssh -W`.
    fn host_and_port(&self) -> String {
        Hop { user: None, host: self.resolved.hostname.clone(), port: Some(self.resolved.port) }.to_string()
    }

    /// The server and the proxy, for display.
    fn describe_route(&self) -> String {
        let Resolved { hostname, port, proxy, .. } = self.resolved;
        match proxy {
            Proxy::Command(_) => format!("{hostname} port {port} through its ProxyCommand"),
            proxy => format!("{hostname} port {port} through {proxy}"),
        }
    }
}

/// Bytes to and from a server.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// A stream to a server's SSH port.
pub(super) struct ServerStream {
    pub(super) stream: Box<dyn ByteStream>,
    /// The other end, for display.
    pub(super) peer: String,
    pub(super) carrier: StreamCarrier,
    /// Held until the login is complete.
    pub(super) preauth_slot: PreauthSlot,
    /// The key exchange limit, if it pauses while a proxy asks the user.
    pub(super) time_limit: Option<PausableTimeout>,
}

/// Opens the stream that the configuration asks for.
pub(super) async fn open(target: &ConnectTarget<'_>) -> Result<ServerStream, NativeError> {
    match &target.resolved.proxy {
        Proxy::None => Ok(open_direct(target).await?),
        Proxy::Jump(hops) => open_through_jump_hosts(target, hops).await,
        Proxy::Command(command) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
            let mut program = target.context.askpass.command(shell);
            program.arg("-c").arg(format!("exec {command}"));
            Ok(open_through_process(target, program, "its ProxyCommand").await?)
        }
    }
}

/// Waits for a slot among the unauthenticated connections to this address.
async fn acquire_preauth_slot(target: &ConnectTarget<'_>, address: &str) -> PreauthSlot {
    let mut acquiring = std::pin::pin!(target.context.preauth_limiter.acquire(address));
    if let Some(slot) = acquiring.as_mut().now_or_never() {
        return slot;
    }
    (target.progress)(SshPhase::Queued);
    acquiring.await
}

async fn open_direct(target: &ConnectTarget<'_>) -> Result<ServerStream, SshError> {
    let limits = target.context.options.limits;
    (target.progress)(SshPhase::Name);
    let addresses = lookup_addresses(target.resolved, limits.name).await?;
    target.trace(SshPhase::Name, || {
        addresses.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
    });
    let first_address = addresses.first().map(ToString::to_string).unwrap_or_default();
    let preauth_slot = acquire_preauth_slot(target, &first_address).await;
    (target.progress)(SshPhase::Tcp);
    let limit = target.resolved.connect_timeout.unwrap_or(limits.tcp);
    let (stream, address) = connect_tcp(&addresses, limit).await?;
    let peer = describe_address(address);
    target.trace(SshPhase::Tcp, || peer.clone());
    let carrier = StreamCarrier::Direct;
    Ok(ServerStream { stream: Box::new(stream), peer, carrier, preauth_slot, time_limit: None })
}

/// Resolves the host name.
async fn lookup_addresses(resolved: &Resolved, limit: Duration) -> Result<Vec<SocketAddr>, SshError> {
    let name = &resolved.hostname;
    let hint = "check the spelling, or set `address` in hosts.toml; a name in a private network may need its VPN";
    let addresses: Vec<_> = match timeout(limit, tokio::net::lookup_host((name.as_str(), resolved.port))).await {
        Ok(Ok(addresses)) => addresses.filter(|address| resolved.family.admits(*address)).collect(),
        Ok(Err(error)) => {
            let message = format!("looking up {name} failed: {}", io_cause(&error));
            return Err(SshError::new(SshErrorKind::Dns, message).with_hint(hint));
        }
        Err(_) => {
            let message =
                format!("looking up {name} gave no answer within {}", duration(limit, DurationStyle::Seconds));
            return Err(SshError::new(SshErrorKind::Timeout(SshPhase::Name), message).with_hint(hint));
        }
    };
    if addresses.is_empty() {
        let message = format!("looking up {name} gave no address of the configured family");
        return Err(SshError::new(SshErrorKind::Dns, message).with_hint("AddressFamily in ~/.ssh/config"));
    }
    Ok(addresses)
}

/// Connects to the address that answers first. All addresses share one limit.
async fn connect_tcp(addresses: &[SocketAddr], limit: Duration) -> Result<(TcpStream, SocketAddr), SshError> {
    let deadline = Instant::now() + limit;
    let mut remaining = addresses.iter().copied();
    let mut attempts = JoinSet::new();
    let mut failures = Vec::new();
    loop {
        if let Some(address) = remaining.next() {
            attempts.spawn(async move { (address, TcpStream::connect(address).await) });
        }
        let wait_until = if remaining.len() == 0 { deadline } else { deadline.min(Instant::now() + STAGGER) };
        match timeout_at(wait_until, attempts.join_next()).await {
            Ok(Some(Ok((address, Ok(stream))))) => {
                // Heartbeats are small: Nagle's algorithm would delay them.
                let _ = stream.set_nodelay(true);
                return Ok((stream, address));
            }
            Ok(Some(Ok((address, Err(error))))) => failures.push((address, error)),
            Ok(None) if remaining.len() == 0 => return Err(all_failed_error(&failures)),
            Err(_) if Instant::now() >= deadline => return Err(no_answer_error(addresses, limit)),
            // Try the next address.
            Ok(Some(Err(_)) | None) | Err(_) => {}
        }
    }
}

/// The error after all addresses failed. A refused connection proves that the host is up, so it takes precedence.
fn all_failed_error(failures: &[(SocketAddr, io::Error)]) -> SshError {
    let refused = failures.iter().find(|(_, error)| error.kind() == io::ErrorKind::ConnectionRefused);
    if let Some((address, _)) = refused {
        let message = format!("nothing listens on {}", describe_address(*address));
        return SshError::new(SshErrorKind::ConnectionRefused, message)
            .with_hint("is sshd running there? Another port: `port = N` in hosts.toml");
    }
    match failures.last() {
        Some((address, error)) => {
            let message = format!("connecting to {} failed: {}", describe_address(*address), io_cause(error));
            SshError::new(SshErrorKind::Network, message).with_hint("is this machine in the right network or VPN?")
        }
        None => SshError::new(SshErrorKind::Network, "connecting failed"),
    }
}

fn no_answer_error(addresses: &[SocketAddr], limit: Duration) -> SshError {
    let tried: Vec<_> = addresses.iter().map(|address| describe_address(*address)).collect();
    let message = format!("no answer from {} within {}", tried.join(" or "), duration(limit, DurationStyle::Seconds));
    SshError::new(SshErrorKind::Timeout(SshPhase::Tcp), message)
        .with_hint("the host is down, or a firewall drops the packets; does it need a VPN?")
}

/// `10.0.0.1 port 22`, the format of ssh.
fn describe_address(address: SocketAddr) -> String {
    format!("{} port {}", address.ip(), address.port())
}

/// Opens a channel through jump hosts. Reconnects once if their connection proves dead.
async fn open_through_jump_hosts(target: &ConnectTarget<'_>, hops: &[Hop]) -> Result<ServerStream, NativeError> {
    let resolved = target.resolved;
    let address = format!("{} behind {}", target.host_and_port(), resolved.proxy);
    let preauth_slot = acquire_preauth_slot(target, &address).await;
    let pool = &target.context.jump_hosts;
    let key = route_key(resolved, hops);
    refuse_circle(target.jump_path, &key)?;
    for _ in 0..2 {
        let connection = match pool.get_or_connect(&key, target.host, || connect_jump_host(target, hops, &key)).await? {
            JumpConnection::Connection(connection) => connection,
            JumpConnection::SshProgram(arguments) => {
                drop(preauth_slot);
                let mut program = target.context.askpass.command("ssh");
                program.args(arguments).arg("-W").arg(target.host_and_port());
                if let Some(last) = hops.last() {
                    program.arg("--").arg(&last.host);
                }
                let proxy = format!("ssh -W through {}", resolved.proxy);
                return Ok(open_through_process(target, program, &proxy).await?);
            }
        };
        (target.progress)(SshPhase::Tcp);
        match open_forward_channel(target, &connection).await {
            Ok(stream) => {
                let peer = target.describe_route();
                target.trace(SshPhase::Tcp, || peer.clone());
                let carrier = StreamCarrier::Jump { _connection: connection };
                return Ok(ServerStream { stream, peer, carrier, preauth_slot, time_limit: None });
            }
            Err(ForwardError::Refused(error)) => return Err(error.into()),
            Err(ForwardError::ConnectionLost) => pool.discard(&key, &connection),
        }
    }
    let message = format!("the connection to the jump host {} was lost twice", resolved.proxy);
    Err(SshError::new(SshErrorKind::Network, message).into())
}

/// Connects to the last jump host through the ones before it.
async fn connect_jump_host(target: &ConnectTarget<'_>, hops: &[Hop], key: &str) -> Result<JumpConnection, NativeError> {
    let (last, host) = last_jump_host(target.resolved, hops)?;
    let context = target.context;
    let resolved = resolve(context, &host).await.map_err(|error| name_jump_host(last, error))?;
    let needs_ssh_program = resolved.ssh_program
        && (algorithms::unsupported_setting(&resolved).is_some() || resolved.has_live_master().await);
    if needs_ssh_program {
        let arguments = openssh::arguments(context, &host, &resolved).await;
        return Ok(JumpConnection::SshProgram(arguments.map_err(|error| name_jump_host(last, error))?));
    }
    let mut path = target.jump_path.to_vec();
    path.push(key.to_owned());
    let name = last.to_string();
    let hop = ConnectTarget {
        host: &name,
        resolved: &resolved,
        jump_path: &path,
        carries_others: true,
        progress: &|_| {},
        ..*target
    };
    let (connection, _) = (target.log_in)(hop).await.map_err(|mut failure: NativeError| {
        failure.error = name_jump_host(last, failure.error);
        failure
    })?;
    Ok(JumpConnection::Connection(Arc::new(connection)))
}

/// Why a jump host opened no channel.
enum ForwardError {
    /// The jump host gave a reason.
    Refused(SshError),
    /// The connection to the jump host is dead.
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
    let (kind, reason) = match timeout(limit, opening).await {
        Ok(Ok(channel)) => return Ok(Box::new(channel.into_stream())),
        Ok(Err(Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited))) => {
            let message =
                format!("the jump host {} does not allow forwarding to {}", resolved.proxy, target.host_and_port());
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
            let reason = format!("no answer within {}", duration(limit, DurationStyle::Seconds));
            (SshErrorKind::Timeout(SshPhase::Tcp), reason)
        }
    };
    let message = format!("the jump host {} cannot reach {}: {reason}", resolved.proxy, target.host_and_port());
    let error = SshError::new(kind, message).naming_jump_host();
    Err(ForwardError::Refused(error.with_hint("is the host up, and does the jump host know its name?")))
}

/// Uses the pipes of a program that connects to the server.
async fn open_through_process(
    target: &ConnectTarget<'_>,
    mut program: Command,
    description: &str,
) -> Result<ServerStream, SshError> {
    let address = format!("{} by {description}", target.host_and_port());
    let preauth_slot = acquire_preauth_slot(target, &address).await;
    (target.progress)(SshPhase::Tcp);
    let limits = target.context.options.limits;
    let time_limit = PausableTimeout::start(limits.tcp + limits.key_exchange);
    let askpass = &target.context.askpass;
    let askpass_token = askpass.token(target.host, &time_limit);
    askpass.configure(&mut program, askpass_token.as_ref());
    let Child { group, stdin, stdout, stderr } = Child::spawn(program).map_err(|error| {
        SshError::new(SshErrorKind::Network, format!("starting {description} failed: {}", io_cause(&error)))
            .with_hint("ProxyCommand in ~/.ssh/config")
    })?;
    Ok(ServerStream {
        stream: Box::new(tokio::io::join(stdout, stdin)),
        peer: target.describe_route(),
        carrier: StreamCarrier::proxy_process(group, askpass_token, stderr),
        preauth_slot,
        time_limit: Some(time_limit),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    async fn closed_port() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn the_second_address_is_used_when_the_first_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let (_, connected) = connect_tcp(&[closed_port().await, open], Duration::from_secs(5)).await.unwrap();
        assert_eq!(connected, open);
    }

    #[tokio::test]
    async fn a_refused_port_is_reported() {
        let closed = closed_port().await;
        let error = connect_tcp(&[closed], Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(
            error,
            SshError::new(
                SshErrorKind::ConnectionRefused,
                format!("nothing listens on 127.0.0.1 port {}", closed.port())
            )
            .with_hint("is sshd running there? Another port: `port = N` in hosts.toml")
        );
    }

    #[test]
    fn tcp_errors_name_the_addresses() {
        let unreachable = io::Error::from(io::ErrorKind::HostUnreachable);
        assert_eq!(
            all_failed_error(&[(address("10.0.0.1:22"), unreachable)]).message,
            "connecting to 10.0.0.1 port 22 failed: host unreachable"
        );
        assert_eq!(
            no_answer_error(&[address("10.0.0.1:22"), address("[::1]:22")], Duration::from_secs(5)).message,
            "no answer from 10.0.0.1 port 22 or ::1 port 22 within 5 s"
        );
    }
}
