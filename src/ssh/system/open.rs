//! Starting the `ssh` program and waiting until it is logged in.

use super::askpass::GivenUp;
use super::child::{Child, channel_with};
use super::{helper, verdict};
use crate::hosts::HostConfig;
use crate::ssh::Context;
use crate::ssh::resolve::{Proxy, Resolved};
use crate::ssh::stopwatch::{Expired, Stopwatch};
use crate::ssh::text::shell_word;
use crate::ssh::transport::{Channel, Limits, SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration, io_cause};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::ChildStderr;

/// What standard error may hold before ssh is logged in; a banner is within it.
const MAX_SAID_BYTES: u64 = 64 * 1024;

/// A line of standard error is passed on in pieces of at most this.
const MAX_LINE_BYTES: u64 = 8 * 1024;

/// Runs `command` through the `ssh` program.
pub(in crate::ssh) async fn open(
    context: &Context,
    host: &HostConfig,
    resolved: &Resolved,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Channel, SshError> {
    if !resolved.ssh_program {
        return Err(SshError::new(SshErrorKind::Unsupported, "there is no ssh program here")
            .with_hint("install OpenSSH's client, or backend = \"native\" in hosts.toml"));
    }
    loop {
        if let Some(channel) = log_in(context, host, resolved, command, progress).await? {
            return Ok(channel);
        }
        let target = format!("{}@{}", resolved.user, resolved.hostname);
        if !context.broker.is_wanted(&host.name, target).await {
            return Err(declined(resolved));
        }
    }
}

/// One `ssh`, until it is logged in; `None` where nobody answered what it asked while its server waited.
async fn log_in(
    context: &Context,
    host: &HostConfig,
    resolved: &Resolved,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Option<Channel>, SshError> {
    let limits = context.options.limits;
    // Behind a jump host, its sshd is the one that counts unauthenticated connections.
    let gate = match &resolved.proxy {
        Proxy::None => format!("{}:{}", resolved.hostname, resolved.port),
        proxy => proxy.to_string(),
    };
    let place = context.gate.enter(&gate).await;
    progress(SshPhase::Login);
    let limit = whole_limit(limits, resolved);
    let watch = Stopwatch::start(limit);
    let licence = helper::licence(context, &host.name, &watch);
    let mut program = helper::in_own_session(context, "ssh");
    program.args(arguments(context, host, resolved)).arg("--").arg(host.address()).arg(command);
    helper::set_askpass(context, licence.as_ref(), &mut program);
    let mut child = Child::spawn(program)
        .map_err(|error| SshError::new(SshErrorKind::Network, format!("starting ssh failed: {}", io_cause(&error))))?;

    // Through a running master nothing is said, since that has logged in long ago.
    if !resolved.has_live_master().await {
        let given_up = async {
            match &licence {
                Some(licence) => licence.given_up().await,
                None => std::future::pending().await,
            }
        };
        let logged_in = tokio::select! {
            logged_in = watch.run(logged_in(&mut child)) => logged_in,
            given_up = given_up => return match given_up {
                GivenUp::Declined => Err(declined(resolved)),
                GivenUp::Unattended => Ok(None),
            },
        };
        match logged_in {
            Ok(Ok(())) => {}
            Ok(Err(said)) => return Err(failed(host, &said, licence.is_some())),
            Err(Expired) => {
                let message = format!("ssh was not logged in within {}", duration(limit, DurationStyle::Seconds));
                let hint = format!("ssh -v {} true", shell_word(host.address()));
                return Err(SshError::new(SshErrorKind::Timeout(SshPhase::Login), message).with_hint(hint));
            }
        }
    }
    drop(place);
    progress(SshPhase::Exec);
    Ok(Some(channel_with(child, |stderr| {
        let (near, far) = tokio::io::duplex(MAX_LINE_BYTES as usize);
        tokio::spawn(pass_on(stderr, far));
        Box::pin(near)
    })))
}

fn declined(resolved: &Resolved) -> SshError {
    SshError::new(SshErrorKind::Declined, format!("the login as {} was given up at the prompt", resolved.user))
}

/// All phases of two connections, one to a jump host.
fn whole_limit(limits: Limits, resolved: &Resolved) -> Duration {
    let tcp = resolved.connect_timeout.unwrap_or(limits.tcp);
    (limits.name + tcp + limits.key_exchange + limits.login) * 2
}

/// ssh's options: hosts.toml's values, and what makes it a transport.
pub(in crate::ssh) fn arguments(context: &Context, host: &HostConfig, resolved: &Resolved) -> Vec<String> {
    let mut arguments: Vec<String> = ["-T", "-a", "-x"].map(str::to_owned).into();
    if let Some(config) = context.config_file(host) {
        arguments.extend(["-F".to_owned(), config.display().to_string()]);
    }
    let mut option = |option: String| arguments.extend(["-o".to_owned(), option]);
    if !helper::may_ask(context) {
        option("BatchMode=yes".to_owned());
    }
    for fixed in ["LogLevel=VERBOSE", "ClearAllForwardings=yes", "PermitLocalCommand=no"] {
        option(fixed.to_owned());
    }
    let (interval, count) = resolved.signs_of_life();
    option(format!("ServerAliveInterval={}", interval.as_secs().max(1)));
    option(format!("ServerAliveCountMax={count}"));
    for undone in &resolved.undone {
        option((*undone).to_owned());
    }
    if resolved.connect_timeout.is_none() {
        option(format!("ConnectTimeout={}", context.options.limits.tcp.as_secs().max(1)));
    }
    if let Some(user) = &host.user {
        option(format!("User={}", quoted(user)));
    }
    if let Some(port) = host.port {
        option(format!("Port={port}"));
    }
    if host.proxy_jump.is_some() {
        option(match &resolved.proxy {
            Proxy::None => "ProxyJump=none".to_owned(),
            proxy => format!("ProxyJump={proxy}"),
        });
    }
    if let Some(path) = &resolved.first_identity {
        option(format!("IdentityFile={}", quoted_path(path)));
    }
    if host.known_hosts.is_some() {
        let files: Vec<_> = resolved.user_known_hosts.iter().map(|path| quoted_path(path)).collect();
        option(format!("UserKnownHostsFile={}", files.join(" ")));
        option("GlobalKnownHostsFile=none".to_owned());
    }
    arguments
}

/// A value in the quotes of ssh_config.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
}

/// The same for a path, in which ssh would expand %-tokens.
fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy().replace('%', "%%"))
}

/// Reads standard error until ssh is logged in; else what it said.
async fn logged_in(child: &mut Child) -> Result<(), String> {
    let mut said = Vec::new();
    loop {
        // Byte by byte, so that nothing of what follows the line is taken: these are a few hundred bytes.
        let line = read_line(&mut child.stderr).await;
        if line.is_empty() || said.len() as u64 > MAX_SAID_BYTES {
            break;
        }
        if verdict::is_logged_in(&String::from_utf8_lossy(&line)) {
            return Ok(());
        }
        said.extend(line);
    }
    // Its standard error is closed: it has ended, or is about to.
    let _ = child.wait().await;
    Err(String::from_utf8_lossy(&said).into_owned())
}

/// One line with its end, at most [`MAX_LINE_BYTES`]; empty at the end of the stream.
async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && (line.len() as u64) < MAX_LINE_BYTES {
        match stream.read_u8().await {
            Ok(byte) => line.push(byte),
            Err(_) => break,
        }
    }
    line
}

/// Passes standard error on without ssh's own chatter.
async fn pass_on(stderr: ChildStderr, mut far: tokio::io::DuplexStream) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut stderr).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(1..)) {
            return;
        }
        if !verdict::is_chatter(&String::from_utf8_lossy(&line)) {
            // A reader that has gone loses what comes; ssh must not stall for that.
            let _ = far.write_all(&line).await;
        }
    }
}

fn failed(host: &HostConfig, said: &str, could_ask: bool) -> SshError {
    let kind = verdict::kind(said);
    let words = verdict::words(said);
    let words = if words.is_empty() { "no reason was given".to_owned() } else { words };
    let hint = match kind {
        SshErrorKind::Authentication | SshErrorKind::HostKeyUnknown if !could_ask => {
            format!("ssh {}   # once by hand: ssh was not allowed to ask", shell_word(host.address()))
        }
        _ => format!("ssh -v {} true", shell_word(host.address())),
    };
    SshError::new(kind, format!("ssh failed: {words}")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::{Interaction, Options};

    #[tokio::test]
    async fn hosts_toml_becomes_options() {
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some("/dev/null".into());
        let (context, _) = Context::with_options(options);
        let mut host = HostConfig::named("gpu01");
        host.user = Some("bob".into());
        host.port = Some(2222);
        host.identity_file = Some("/k 100%".into());
        host.known_hosts = Some("/kh".into());
        let resolved = crate::ssh::resolve::resolve(&context, &host).await.unwrap();
        let arguments = arguments(&context, &host, &resolved).join(" ");
        assert_eq!(
            arguments,
            "-T -a -x -F /dev/null -o BatchMode=yes -o LogLevel=VERBOSE -o ClearAllForwardings=yes \
             -o PermitLocalCommand=no -o ServerAliveInterval=15 -o ServerAliveCountMax=3 -o ConnectTimeout=5 \
             -o User=\"bob\" -o Port=2222 -o IdentityFile=\"/k 100%%\" -o UserKnownHostsFile=\"/kh\" \
             -o GlobalKnownHostsFile=none"
        );
    }

    #[test]
    fn values_are_quoted_for_ssh_config() {
        assert_eq!(quoted(r#"a "b" \ c"#), r#""a \"b\" \\ c""#);
        assert_eq!(quoted_path(Path::new("/k 100%")), "\"/k 100%%\"");
    }

    #[test]
    fn failures_carry_the_words_of_ssh() {
        let host = HostConfig::named("gpu01");
        assert_eq!(
            failed(&host, "bob@gpu01: Permission denied (publickey).\r\n", false),
            SshError::new(SshErrorKind::Authentication, "ssh failed: bob@gpu01: Permission denied (publickey).")
                .with_hint("ssh gpu01   # once by hand: ssh was not allowed to ask")
        );
        assert_eq!(failed(&host, "", true).message, "ssh failed: no reason was given");
    }
}
