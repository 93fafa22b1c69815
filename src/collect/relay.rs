//! The connection to a collector on another machine: one SSH session runs `gpufleet relay` there.

use super::error;
use super::remote_command::{CommandEnd, OpenChannel, Progress, RemoteCommand};
use crate::config::{HostConfig, shell_word};
use crate::fleet::{Clock, HistoryQuery, LinkError, LinkErrorKind};
use crate::share::{
    CollectorInfo, Demultiplexer, HostInfo, MAX_FRAME_BYTES, RefusalKind, ViewerEvent, ViewerHello, encode_query,
};
use crate::ssh::transport::Exit;
use crate::wire::SafeText;
use crate::wire::codec::LineBuffer;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout};

/// Starts the relay. Login shells without start-up files often lack the directories into which people install programs.
/// Every login shell takes a command in single quotes.
const COMMAND: &str = "exec /bin/sh -c 'PATH=\"$PATH:/usr/local/bin:$HOME/.local/bin:$HOME/.cargo/bin\"; export PATH; \
                       exec gpufleet relay'";
/// Time limit for the first line: the start of the relay and the picture of the collector.
const FIRST_LINE_LIMIT: Duration = Duration::from_secs(20);
/// Without a line for this long, the connection is dropped.
pub(super) const DROPPED: Duration = Duration::from_secs(15);
/// The relay ends after 60 s without a byte from its viewer.
const SIGN_OF_LIFE_PERIOD: Duration = Duration::from_secs(10);
/// Limit of output before the first line, for example by a start-up file of the account.
const NOISE_LIMIT_BYTES: usize = 64 * 1024;
/// Time limit for sending a request to the relay.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// The command that starts the relay on a machine. On this one, it is this program (`own`), which need not be in PATH.
fn command(machine: &HostConfig, own: Option<&Path>) -> Cow<'static, str> {
    match own.and_then(Path::to_str).filter(|_| machine.is_local()) {
        Some(program) => Cow::Owned(format!("exec {} relay", shell_word(program))),
        None => Cow::Borrowed(COMMAND),
    }
}

/// A connection to a collector on another machine.
pub struct Relay {
    remote: RemoteCommand,
    pub(super) demultiplexer: Demultiplexer,
    /// The name of the machine, as the user gave it.
    name: SafeText,
    noise_bytes: usize,
    pub(super) last_line: Instant,
    sign_of_life_at: Instant,
}

impl Relay {
    /// Logs in, starts the relay and introduces this viewer with `hello`. `demultiplexer` has the hosts of an earlier connection, or
    /// is new.
    ///
    /// # Errors
    /// The login failed. Later errors come from [`Relay::next`].
    pub async fn open(
        ssh: Arc<dyn OpenChannel>,
        machine: &HostConfig,
        hello: &ViewerHello,
        demultiplexer: Demultiplexer,
        progress: &Progress,
    ) -> Result<Self, LinkError> {
        // A program that was replaced since it started has no path any more.
        let own = std::env::current_exe().ok().filter(|path| path.exists());
        let command = command(machine, own.as_deref());
        let channel = ssh.open(machine, &command, progress).await.map_err(|error| error::from_ssh(&error))?;
        let mut remote = RemoteCommand::new(channel);
        remote.stdout.lines = LineBuffer::with_limit(MAX_FRAME_BYTES);
        let hello = hello.line().unwrap_or_default();
        // If the relay has ended already, its output names the cause.
        let _ = remote.stdin.write_all(&hello).await;
        let _ = remote.stdin.flush().await;
        let now = Instant::now();
        Ok(Self {
            remote,
            demultiplexer,
            name: machine.name.clone(),
            noise_bytes: 0,
            last_line: now,
            sign_of_life_at: now + SIGN_OF_LIFE_PERIOD,
        })
    }

    /// The collector, after its first line.
    pub fn info(&self) -> Option<&CollectorInfo> {
        self.demultiplexer.info()
    }

    /// The hosts of the collector, in order.
    pub fn hosts(&self) -> &[HostInfo] {
        self.demultiplexer.hosts()
    }

    /// The diagnosis according to the lines.
    pub fn into_demultiplexer(self) -> Demultiplexer {
        self.demultiplexer
    }

    /// Requests a history. If the connection has ended, [`Relay::next`] says so.
    pub(super) async fn request_history(&mut self, query: &HistoryQuery) {
        let line = encode_query(query).unwrap_or_default();
        let write = async {
            let _ = self.remote.stdin.write_all(&line).await;
            let _ = self.remote.stdin.flush().await;
        };
        let _late = timeout(WRITE_LIMIT, write).await;
    }

    /// Waits for the next line. Cancel safe.
    ///
    /// # Errors
    /// The connection has ended or must be closed.
    pub async fn next(&mut self, clock: Clock) -> Result<Vec<ViewerEvent>, LinkError> {
        loop {
            let has_begun = self.demultiplexer.info().is_some();
            let limit = if has_begun { DROPPED } else { FIRST_LINE_LIMIT };
            let line = tokio::select! {
                line = self.remote.stdout.line() => line,
                () = sleep_until(self.last_line + limit) => {
                    return Err(silent(&self.name));
                }
                () = sleep_until(self.sign_of_life_at) => {
                    self.sign_of_life_at = Instant::now() + SIGN_OF_LIFE_PERIOD;
                    // If the relay has ended, its output ends as well.
                    let _ = self.remote.stdin.write_all(b"\n").await;
                    let _ = self.remote.stdin.flush().await;
                    continue;
                }
            };
            let line = match line {
                Ok(Some(line)) => line,
                Ok(None) => return Err(ended(&self.remote.wait_for_end().await, &self.name)),
                Err(_) => return Err(Demultiplexer::link_error(&crate::share::FrameError::TooLong)),
            };
            self.last_line = Instant::now();
            let is_frame = line.starts_with(br#"{"collector""#) || line.starts_with(br#"{"refused""#);
            if self.demultiplexer.info().is_none() && !is_frame {
                self.noise_bytes += line.len() + 1;
                if self.noise_bytes > NOISE_LIMIT_BYTES {
                    let text = format!("the account on {} prints more than 64 KiB before the relay starts", self.name);
                    return Err(LinkError::new(LinkErrorKind::Protocol, text)
                        .with_hint("a start-up file of the account may print something only on a terminal"));
                }
                continue;
            }
            let events =
                self.demultiplexer.take(&line, clock.now()).map_err(|error| Demultiplexer::link_error(&error))?;
            for event in &events {
                if let ViewerEvent::Refused(kind, reason) = event {
                    return Err(refused(*kind, reason, &self.name));
                }
                if let ViewerEvent::Collector(info) = event
                    && info.protocol != crate::share::SHARE_PROTOCOL
                {
                    return Err(other_version(info, &self.name));
                }
            }
            return Ok(events);
        }
    }
}

/// The error for a collector that sends nothing.
pub(super) fn silent(name: &SafeText) -> LinkError {
    LinkError::new(LinkErrorKind::CollectorSilent, format!("the collector on {name} does not answer"))
        .with_hint(format!("this names the cause: ssh {name} gpufleet status"))
}

fn other_version(info: &CollectorInfo, name: &SafeText) -> LinkError {
    let text = format!(
        "the collector on {name} is gpufleet {} and speaks protocol {}, this gpufleet {} speaks protocol {}",
        info.version,
        info.protocol,
        env!("CARGO_PKG_VERSION"),
        crate::share::SHARE_PROTOCOL
    );
    LinkError::new(LinkErrorKind::Protocol, text).with_hint("install the same version on both machines")
}

/// The error for a line that refuses this viewer.
fn refused(kind: RefusalKind, reason: &SafeText, name: &SafeText) -> LinkError {
    let kind_of_link = match kind {
        RefusalKind::NoCollector | RefusalKind::Ending => LinkErrorKind::Refused,
        RefusalKind::NotPermitted | RefusalKind::TooMany => LinkErrorKind::Refusal,
        RefusalKind::NotAnswering => LinkErrorKind::CollectorSilent,
        RefusalKind::Protocol | RefusalKind::Other => LinkErrorKind::Protocol,
    };
    // The reason comes with its way out.
    let (text, hint) = reason.split_once("; ").unwrap_or((reason, ""));
    let error = LinkError::new(kind_of_link, format!("{name}: {text}"));
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// Describes the end of the relay.
fn ended(end: &CommandEnd, name: &SafeText) -> LinkError {
    let stderr = if end.stderr.is_empty() { String::new() } else { format!(": {}", end.stderr) };
    match &end.exit {
        Exit::Status(126 | 127) => {
            LinkError::new(LinkErrorKind::NoProbe, format!("gpufleet is not installed on {name}{stderr}"))
                .with_hint(format!("install it there, so that this works: ssh {name} gpufleet --version"))
        }
        Exit::Status(2) => {
            LinkError::new(LinkErrorKind::Protocol, format!("the gpufleet on {name} has no relay{stderr}"))
                .with_hint(format!("install gpufleet {} there", env!("CARGO_PKG_VERSION")))
        }
        Exit::Status(status @ 1..) => LinkError::new(
            LinkErrorKind::Closed,
            format!("the relay on {name} ended with exit status {status}{stderr}"),
        ),
        Exit::Signal(signal) => {
            LinkError::new(LinkErrorKind::Closed, format!("the relay on {name} was ended by signal {signal}"))
        }
        Exit::Closed(Some(text)) => LinkError::new(
            LinkErrorKind::Closed,
            format!("the connection to {name} was closed: {}", SafeText::new(text)),
        ),
        Exit::Status(0) | Exit::Closed(None) => {
            LinkError::new(LinkErrorKind::Closed, format!("the connection to the collector on {name} was closed"))
        }
    }
}

/// How this program reaches a collector and its hosts.
#[derive(Clone)]
pub struct RelayRoute {
    /// The machine of the collector.
    pub machine: Arc<HostConfig>,
    /// Opens SSH sessions.
    pub ssh: Arc<dyn OpenChannel>,
    /// The clock of the fleet.
    pub clock: Clock,
    /// The name of the account on hosts for which hosts.toml names none.
    pub user: Option<SafeText>,
}

/// The picture of a collector on another machine, and the connection that goes on.
pub struct Picture {
    /// The connection, whose picture is complete.
    pub relay: Relay,
    /// The events of the picture, brought up to date with what followed it.
    pub events: Vec<ViewerEvent>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(exit: Exit, stderr: &str) -> (String, Option<String>) {
        let end = CommandEnd { exit, stderr: stderr.into() };
        let error = ended(&end, &"lab-head".into());
        (error.message.to_string(), error.hint.map(|hint| hint.to_string()))
    }

    #[test]
    fn the_relay_on_this_machine_is_this_program() {
        let own = Some(Path::new("/home/ann/my programs/gpufleet"));
        assert_eq!(command(&HostConfig::named("localhost"), own), "exec '/home/ann/my programs/gpufleet' relay");
        assert_eq!(command(&HostConfig::named("lab-head"), own), COMMAND);
        assert_eq!(command(&HostConfig::named("localhost"), None), COMMAND);
    }

    #[test]
    fn each_end_of_the_relay_has_its_own_message() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            end(Exit::Status(127), "/bin/sh: 1: exec: gpufleet: not found"),
            (
                "gpufleet is not installed on lab-head: /bin/sh: 1: exec: gpufleet: not found".to_owned(),
                Some("install it there, so that this works: ssh lab-head gpufleet --version".to_owned())
            )
        );
        assert_eq!(
            end(Exit::Status(2), "gpufleet: `relay` is no host"),
            (
                "the gpufleet on lab-head has no relay: gpufleet: `relay` is no host".to_owned(),
                Some(format!("install gpufleet {version} there"))
            )
        );
        assert_eq!(
            end(Exit::Status(1), "boom"),
            ("the relay on lab-head ended with exit status 1: boom".to_owned(), None)
        );
        assert_eq!(
            end(Exit::Signal("KILL".into()), ""),
            ("the relay on lab-head was ended by signal KILL".to_owned(), None)
        );
        assert_eq!(
            end(Exit::Closed(None), ""),
            ("the connection to the collector on lab-head was closed".to_owned(), None)
        );
    }

    #[test]
    fn a_refusal_is_split_into_cause_and_way_out() {
        let reason = "no collector runs here: nobody serves /a; start it there: gpufleet collect".into();
        let error = refused(RefusalKind::NoCollector, &reason, &"lab-head".into());
        assert_eq!(error.message, "lab-head: no collector runs here: nobody serves /a");
        assert_eq!(error.hint.as_deref(), Some("start it there: gpufleet collect"));
        let info = CollectorInfo { protocol: 9, version: "2.0.0".into(), ..CollectorInfo::default() };
        let error = other_version(&info, &"lab-head".into());
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            error.message,
            *format!(
                "the collector on lab-head is gpufleet 2.0.0 and speaks protocol 9, this gpufleet {version} speaks \
                 protocol 1"
            )
        );
    }
}
