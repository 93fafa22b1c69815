//! Starting the `ssh` program and waiting until it is logged in.

use super::askpass::PromptAbandoned;
use super::child_process::{Child, channel_with};
use super::{helper_process, stderr_parser};
use crate::config::HostConfig;
use crate::ssh::Context;
use crate::ssh::pausable_timeout::{Expired, PausableTimeout};
use crate::ssh::resolve::{Proxy, Resolved};
use crate::ssh::text::shell_word;
use crate::ssh::transport::{Channel, Limits, SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration, io_cause};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::ChildStderr;

/// What standard error may hold before ssh is logged in; a banner is within it.
const MAX_STDERR_BYTES: u64 = 64 * 1024;

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
        if !context.broker.confirm_login(&host.name, target).await {
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
    let preauth_key = match &resolved.proxy {
        Proxy::None => format!("{}:{}", resolved.hostname, resolved.port),
        proxy => proxy.to_string(),
    };
    let preauth_slot = context.preauth_limiter.acquire(&preauth_key).await;
    progress(SshPhase::Login);
    let limit = login_limit(limits, resolved);
    let time_limit = PausableTimeout::start(limit);
    let askpass_token = helper_process::askpass_token(context, &host.name, &time_limit);
    let mut program = helper_process::without_terminal(context, "ssh");
    program.args(arguments(context, host, resolved)).arg("--").arg(host.address()).arg(command);
    helper_process::set_askpass(context, askpass_token.as_ref(), &mut program);
    let mut child = Child::spawn(program)
        .map_err(|error| SshError::new(SshErrorKind::Network, format!("starting ssh failed: {}", io_cause(&error))))?;

    // Through a running master nothing is said, since that has logged in long ago.
    if !resolved.has_live_master().await {
        let abandoned = async {
            match &askpass_token {
                Some(askpass_token) => askpass_token.abandoned().await,
                None => std::future::pending().await,
            }
        };
        let logged_in = tokio::select! {
            logged_in = time_limit.run(logged_in(&mut child)) => logged_in,
            abandoned = abandoned => return match abandoned {
                PromptAbandoned::Declined => Err(declined(resolved)),
                PromptAbandoned::TimedOut => Ok(None),
            },
        };
        match logged_in {
            Ok(Ok(())) => {}
            Ok(Err(output)) => return Err(failed(host, &output, askpass_token.is_some())),
            Err(Expired) => {
                let message = format!("ssh was not logged in within {}", duration(limit, DurationStyle::Seconds));
                let hint = format!("ssh -v {} true", shell_word(host.address()));
                return Err(SshError::new(SshErrorKind::Timeout(SshPhase::Login), message).with_hint(hint));
            }
        }
    }
    drop(preauth_slot);
    progress(SshPhase::Exec);
    Ok(Some(channel_with(child, |stderr| {
        let (near, far) = tokio::io::duplex(MAX_LINE_BYTES as usize);
        tokio::spawn(forward_stderr(stderr, far));
        Box::pin(near)
    })))
}

fn declined(resolved: &Resolved) -> SshError {
    SshError::new(SshErrorKind::Declined, format!("the login as {} was given up at the prompt", resolved.user))
}

/// All phases of two connections, one to a jump host.
fn login_limit(limits: Limits, resolved: &Resolved) -> Duration {
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
    if !helper_process::can_prompt(context) {
        option("BatchMode=yes".to_owned());
    }
    for fixed in ["LogLevel=VERBOSE", "ClearAllForwardings=yes", "PermitLocalCommand=no"] {
        option(fixed.to_owned());
    }
    let (interval, count) = resolved.server_alive();
    option(format!("ServerAliveInterval={}", interval.as_secs().max(1)));
    option(format!("ServerAliveCountMax={count}"));
    for option_overrides in &resolved.option_overrides {
        option((*option_overrides).to_owned());
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
    let mut output = Vec::new();
    loop {
        // Byte by byte, so that nothing of what follows the line is taken: these are a few hundred bytes.
        let line = read_line(&mut child.stderr).await;
        if line.is_empty() || output.len() as u64 > MAX_STDERR_BYTES {
            break;
        }
        if stderr_parser::is_logged_in(&String::from_utf8_lossy(&line)) {
            return Ok(());
        }
        output.extend(line);
    }
    // Its standard error is closed: it has ended, or is about to.
    let _ = child.wait().await;
    Err(String::from_utf8_lossy(&output).into_owned())
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
async fn forward_stderr(stderr: ChildStderr, mut far: tokio::io::DuplexStream) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut stderr).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(1..)) {
            return;
        }
        if !stderr_parser::is_transfer_statistics(&String::from_utf8_lossy(&line)) {
            // A reader that has gone loses what comes; ssh must not stall for that.
            let _ = far.write_all(&line).await;
        }
    }
}

fn failed(host: &HostConfig, output: &str, could_ask: bool) -> SshError {
    let kind = stderr_parser::error_kind(output);
    let summary = stderr_parser::summary(output);
    let summary = if summary.is_empty() { "no reason was given".to_owned() } else { summary };
    let hint = match kind {
        SshErrorKind::Authentication | SshErrorKind::HostKeyUnknown if !could_ask => {
            format!("ssh {}   # once by hand: ssh was not allowed to ask", shell_word(host.address()))
        }
        _ => format!("ssh -v {} true", shell_word(host.address())),
    };
    SshError::new(kind, format!("ssh failed: {summary}")).with_hint(hint)
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
