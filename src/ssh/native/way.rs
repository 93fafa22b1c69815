//! The way to a server: a TCP connection, a channel through a jump host, or the pipes of a program.

use super::connect::{Failure, Target};
use super::dial::{self, place};
use super::exec::Connection;
use super::jump::{self, Bastion};
use crate::hosts::Hop;
use crate::ssh::resolve::Proxy;
use crate::ssh::stopwatch::Stopwatch;
use crate::ssh::system::child::{Child, Group};
use crate::ssh::system::{GivenUp, Licence};
use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use crate::ssh::{gate, system};
use crate::wire::format::{DurationStyle, duration, io_cause};
use futures::FutureExt;
use russh::{ChannelOpenFailure, Error};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

/// How long a jump host may take for a sign of life before its connection counts as dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// The most of a proxy's words that an error repeats, in bytes.
const MAX_WORDS_BYTES: usize = 400;

/// How long a proxy that failed may take to say why.
const WORDS_LIMIT: Duration = Duration::from_millis(500);

/// Bytes to and from a server.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A stream to a server's SSH port.
pub(super) struct Way {
    pub(super) stream: Box<dyn Stream>,
    /// What was reached, for people.
    pub(super) place: String,
    pub(super) held: Held,
    /// Given back once logged in.
    pub(super) waiting_room: gate::Place,
    /// The limit of the key exchange, where it stands still while a proxy asks the person something.
    pub(super) watch: Option<Stopwatch>,
}

/// What a stream runs through, and ends with.
pub(super) enum Held {
    Nothing,
    /// The connection to a jump host, shared with others.
    Jump {
        _connection: Arc<Connection>,
    },
    /// A program, killed with its group when dropped, and what it says on standard error.
    Program(Box<Program>),
}

/// A running proxy.
pub(super) struct Program {
    _group: Group,
    licence: Option<Licence>,
    words: tokio::sync::Mutex<ChildStderr>,
}

impl Held {
    /// Completes when the person whom the proxy asked has said no, or does not answer while its server waits.
    pub(super) async fn given_up(&self) -> GivenUp {
        if let Self::Program(program) = self
            && let Some(licence) = &program.licence
        {
            return licence.given_up().await;
        }
        std::future::pending().await
    }

    /// The error with the proxy's own words, where there is a proxy and it has any.
    pub(super) async fn explain(&self, mut error: SshError) -> SshError {
        let Self::Program(program) = self else { return error };
        let mut said = Vec::new();
        let mut stderr = program.words.lock().await;
        // Until it ends, or a moment has passed: what was read by then stays in the buffer.
        let mut stderr = (&mut *stderr).take(MAX_WORDS_BYTES as u64);
        let _ = timeout(WORDS_LIMIT, stderr.read_to_end(&mut said)).await;
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            error.message = format!("{}; the proxy says: {}", error.message, lines.join("; "));
        }
        error
    }
}

/// Opens the way that the configuration names.
pub(super) async fn open(target: &Target<'_>) -> Result<Way, Failure> {
    match &target.resolved.proxy {
        Proxy::None => Ok(direct(target).await?),
        Proxy::Jump(hops) => through(target, hops).await,
        Proxy::Command(command) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
            let mut program = system::in_own_session(target.context, shell);
            program.arg("-c").arg(format!("exec {command}"));
            Ok(piped(target, program, "its ProxyCommand").await?)
        }
    }
}

async fn direct(target: &Target<'_>) -> Result<Way, SshError> {
    let limits = target.context.options.limits;
    (target.progress)(SshPhase::Name);
    let addresses = dial::look_up(target.resolved, limits.name).await?;
    target.remark(SshPhase::Name, || {
        addresses.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
    });
    let waiting_room = enter(target, &addresses.first().map(ToString::to_string).unwrap_or_default()).await;
    (target.progress)(SshPhase::Tcp);
    let limit = target.resolved.connect_timeout.unwrap_or(limits.tcp);
    let (stream, address) = dial::connect(&addresses, limit).await?;
    target.remark(SshPhase::Tcp, || place(address));
    Ok(Way { stream: Box::new(stream), place: place(address), held: Held::Nothing, waiting_room, watch: None })
}

/// A place among the unauthenticated connections to this address.
async fn enter(target: &Target<'_>, address: &str) -> gate::Place {
    let mut entering = std::pin::pin!(target.context.gate.enter(address));
    if let Some(place) = entering.as_mut().now_or_never() {
        return place;
    }
    (target.progress)(SshPhase::Queued);
    entering.await
}

/// A channel through jump hosts. A connection to them that proves dead is made anew, once.
async fn through(target: &Target<'_>, hops: &[Hop]) -> Result<Way, Failure> {
    let waiting_room = enter(target, &format!("{} behind {}", server(target), target.resolved.proxy)).await;
    let mut first = true;
    loop {
        let connection = match jump::bastion(target, hops).await? {
            Bastion::Connection(connection) => connection,
            Bastion::Program(arguments) => {
                drop(waiting_room);
                let mut program = system::in_own_session(target.context, "ssh");
                program.args(arguments).arg("-W").arg(server(target));
                if let Some(last) = hops.last() {
                    program.arg("--").arg(&last.host);
                }
                let proxy = format!("ssh -W through {}", target.resolved.proxy);
                return Ok(piped(target, program, &proxy).await?);
            }
        };
        (target.progress)(SshPhase::Tcp);
        match channel(target, &connection).await {
            Ok(stream) => {
                let place = reached(target);
                target.remark(SshPhase::Tcp, || place.clone());
                let held = Held::Jump { _connection: connection };
                return Ok(Way { stream, place, held, waiting_room, watch: None });
            }
            Err(Fault::Told(error)) => return Err(error.into()),
            Err(Fault::Dead) => jump::forget(target, hops, &connection),
        }
        if !first {
            let message = format!("the connection to the jump host {} was lost twice", target.resolved.proxy);
            return Err(SshError::new(SshErrorKind::Network, message).into());
        }
        first = false;
    }
}

/// Why there is no channel through a jump host.
enum Fault {
    /// The jump host said why.
    Told(SshError),
    /// It says nothing more.
    Dead,
}

async fn channel(target: &Target<'_>, connection: &Connection) -> Result<Box<dyn Stream>, Fault> {
    let resolved = target.resolved;
    let limit = resolved.connect_timeout.unwrap_or(target.context.options.limits.tcp);
    let port = u32::from(resolved.port);
    let opening = connection.handle.channel_open_direct_tcpip(resolved.hostname.clone(), port, "127.0.0.1", 0);
    let (kind, what) = match timeout(limit, opening).await {
        Ok(Ok(channel)) => return Ok(Box::new(channel.into_stream())),
        Ok(Err(Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited))) => {
            let message = format!("the jump host {} does not allow forwarding to {}", resolved.proxy, server(target));
            let error = SshError::new(SshErrorKind::Refusal, message).naming_jump_host();
            return Err(Fault::Told(error.with_hint("AllowTcpForwarding and PermitOpen in its sshd_config")));
        }
        Ok(Err(Error::ChannelOpenFailure(ChannelOpenFailure::Other { reason, .. }))) => (SshErrorKind::Network, reason),
        Ok(Err(Error::ChannelOpenFailure(reason))) => (SshErrorKind::Network, format!("{reason:?}")),
        Ok(Err(_)) => return Err(Fault::Dead),
        Err(_) => {
            let alive = timeout(SIGN_OF_LIFE, connection.handle.send_ping()).await.is_ok();
            if !alive || connection.handle.is_closed() {
                return Err(Fault::Dead);
            }
            (
                SshErrorKind::Timeout(SshPhase::Tcp),
                format!("no answer within {}", duration(limit, DurationStyle::Seconds)),
            )
        }
    };
    let message = format!("the jump host {} cannot reach {}: {what}", resolved.proxy, server(target));
    let error = SshError::new(kind, message).naming_jump_host();
    Err(Fault::Told(error.with_hint("is the host up, and is its name known to the jump host?")))
}

/// The pipes of a program that leads to the server.
async fn piped(target: &Target<'_>, mut program: Command, what: &str) -> Result<Way, SshError> {
    let waiting_room = enter(target, &format!("{} by {what}", server(target))).await;
    (target.progress)(SshPhase::Tcp);
    let limits = target.context.options.limits;
    let watch = Stopwatch::start(limits.tcp + limits.key_exchange);
    let licence = system::licence(target.context, target.host, &watch);
    system::set_askpass(target.context, licence.as_ref(), &mut program);
    let child = Child::spawn(program).map_err(|error| {
        SshError::new(SshErrorKind::Network, format!("starting {what} failed: {}", io_cause(&error)))
            .with_hint("ProxyCommand in ~/.ssh/config")
    })?;
    let Child { process, stdin, stdout, stderr, .. } = child;
    let held = Held::Program(Box::new(Program { _group: process, licence, words: tokio::sync::Mutex::new(stderr) }));
    Ok(Way {
        stream: Box::new(tokio::io::join(stdout, stdin)),
        place: reached(target),
        held,
        waiting_room,
        watch: Some(watch),
    })
}

/// `host:port`, as ssh's -W takes it.
fn server(target: &Target<'_>) -> String {
    let hop = Hop { user: None, host: target.resolved.hostname.clone(), port: Some(target.resolved.port) };
    hop.to_string()
}

/// What is reached, for people.
fn reached(target: &Target<'_>) -> String {
    let resolved = target.resolved;
    let way = match &resolved.proxy {
        Proxy::Command(_) => "its ProxyCommand".to_owned(),
        proxy => proxy.to_string(),
    };
    format!("{} port {} through {way}", resolved.hostname, resolved.port)
}
