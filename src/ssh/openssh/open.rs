//! Runs a command through the `ssh` program.

use super::askpass::PromptAbandoned;
use super::command_line::arguments;
use crate::config::{HostConfig, shell_word};
use crate::ssh::Context;
use crate::ssh::child_process::{Child, channel_with};
use crate::ssh::limits::{Expired, Limits, PausableTimeout};
use crate::ssh::resolve::{Proxy, Resolved};
use crate::ssh::transport::{Channel, SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration, io_cause};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::ChildStderr;

/// The maximum size of standard error before ssh has logged in, with the server's banner, in bytes.
const MAX_STDERR_BYTES: u64 = 64 * 1024;

/// The maximum length of one line of standard error, in bytes. A longer line counts as several.
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
        return Err(SshError::new(SshErrorKind::Unsupported, "there is no ssh program on this machine")
            .with_hint("install OpenSSH's client, or backend = \"native\" in hosts.toml"));
    }
    loop {
        if let Some(channel) = log_in(context, host, resolved, command, progress).await? {
            return Ok(channel);
        }
        if !context.broker.confirm_login(&host.name, resolved.login()).await {
            return Err(SshError::login_cancelled(&resolved.user));
        }
    }
}

/// Starts one `ssh` and waits until it has logged in. Returns `None` if the user did not answer a prompt in time.
async fn log_in(
    context: &Context,
    host: &HostConfig,
    resolved: &Resolved,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Option<Channel>, SshError> {
    let limits = context.options.limits;
    let arguments = arguments(context, host, resolved).await?;
    // The sshd of the first jump host counts the unauthenticated connections.
    let preauth_key = match &resolved.proxy {
        Proxy::None => format!("{}:{}", resolved.hostname, resolved.port),
        proxy => proxy.to_string(),
    };
    let preauth_slot = context.preauth_limiter.acquire(&preauth_key).await;
    progress(SshPhase::Login);
    let limit = login_limit(limits, resolved);
    let time_limit = PausableTimeout::start(limit);
    let askpass_token = context.askpass.token(&host.name, &time_limit);
    let mut program = context.askpass.command("ssh");
    // At this level `ssh` reports the login; see `is_logged_in`.
    program.args(["-o", "LogLevel=VERBOSE"]).args(arguments).arg("--").arg(host.address()).arg(command);
    context.askpass.configure(&mut program, askpass_token.as_ref());
    let mut child = Child::spawn(program)
        .map_err(|error| SshError::new(SshErrorKind::Network, format!("starting ssh failed: {}", io_cause(&error))))?;

    // A running master has logged in already, so this `ssh` does not report it.
    if !resolved.has_live_master().await {
        let abandoned = async {
            match &askpass_token {
                Some(askpass_token) => askpass_token.abandoned().await,
                None => std::future::pending().await,
            }
        };
        let logged_in = tokio::select! {
            logged_in = time_limit.run(wait_for_login(&mut child)) => logged_in,
            abandoned = abandoned => return match abandoned {
                PromptAbandoned::Declined => Err(SshError::login_cancelled(&resolved.user)),
                PromptAbandoned::TimedOut => Ok(None),
            },
        };
        match logged_in {
            Ok(Ok(())) => {}
            Ok(Err(stderr)) => return Err(ssh_failed_error(host, &stderr, askpass_token.is_some())),
            Err(Expired) => {
                let message = format!("ssh did not log in within {}", duration(limit, DurationStyle::Seconds));
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

/// The limits of all phases, for two connections: one may lead to a jump host.
fn login_limit(limits: Limits, resolved: &Resolved) -> Duration {
    let tcp = resolved.connect_timeout.unwrap_or(limits.tcp);
    (limits.name + tcp + limits.key_exchange + limits.login) * 2
}

/// Reads standard error until ssh has logged in. The error is the output of an `ssh` that failed.
async fn wait_for_login(child: &mut Child) -> Result<(), String> {
    let mut output = Vec::new();
    loop {
        // Byte by byte, so that nothing after the line is consumed. There are only a few hundred bytes.
        let line = read_line(&mut child.stderr).await;
        if line.is_empty() || output.len() as u64 > MAX_STDERR_BYTES {
            break;
        }
        if is_logged_in(&String::from_utf8_lossy(&line)) {
            return Ok(());
        }
        output.extend(line);
    }
    // Standard error is closed, so ssh has ended or is about to.
    let _ = child.wait().await;
    Err(String::from_utf8_lossy(&output).into_owned())
}

/// Reads one line with its line end, at most [`MAX_LINE_BYTES`]. Empty at the end of the stream.
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

/// Forwards standard error without ssh's own messages.
async fn forward_stderr(stderr: ChildStderr, mut far: tokio::io::DuplexStream) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut stderr).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(1..)) {
            return;
        }
        if !is_transfer_statistics(&String::from_utf8_lossy(&line)) {
            // Discard output whose reader is gone, so that ssh does not block.
            let _ = far.write_all(&line).await;
        }
    }
}

fn ssh_failed_error(host: &HostConfig, stderr: &str, could_ask: bool) -> SshError {
    if let Some(error) = changed_host_key(stderr) {
        return error;
    }
    let kind = error_kind(stderr);
    let summary = summary(stderr);
    let summary = if summary.is_empty() { "it gave no reason".to_owned() } else { summary };
    let hint = match kind {
        SshErrorKind::Authentication | SshErrorKind::HostKeyUnknown if !could_ask => {
            format!("ssh {}   # run it once by hand: gpufleet cannot ask here", shell_word(host.address()))
        }
        _ => format!("ssh -v {} true", shell_word(host.address())),
    };
    SshError::new(kind, format!("ssh failed: {summary}")).with_hint(hint)
}

/// The error for a changed host key, of the host or of a jump host. The output of ssh begins with a long warning, and a
/// summary of it would end before the name.
fn changed_host_key(stderr: &str) -> Option<SshError> {
    let lines = || stderr.lines().map(str::trim);
    let name = lines().find_map(|line| {
        line.strip_prefix("Host key for ")?.strip_suffix(" has changed and you have requested strict checking.")
    })?;
    let (file, line) = lines().find_map(|line| {
        let (_, location) = line.strip_prefix("Offending ")?.split_once(" key in ")?;
        location.rsplit_once(':')
    })?;
    let message = format!("the host key of {name} has changed: {file}:{line} has another one; nothing was sent to it");
    Some(SshError::new(SshErrorKind::HostKeyChanged, message).with_hint(format!(
        "ssh-keygen -f {} -R {}   # only if the administrator confirms the new key",
        shell_word(file),
        shell_word(name)
    )))
}

/// The maximum length of ssh's output in an error message.
const MAX_SUMMARY_CHARACTERS: usize = 400;

/// Whether ssh reports the login in this line, at `LogLevel=VERBOSE`.
fn is_logged_in(line: &str) -> bool {
    line.starts_with("Authenticated to ")
}

/// Whether ssh added this line at `LogLevel=VERBOSE`: it does not belong to the standard error of the command.
fn is_transfer_statistics(line: &str) -> bool {
    line.starts_with("Transferred: sent ") || line.starts_with("Bytes per second: sent ")
}

/// Classifies a failure by the text of OpenSSH, which has no error codes.
fn error_kind(stderr: &str) -> SshErrorKind {
    const PATTERNS: [(&str, SshErrorKind); 16] = [
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", SshErrorKind::HostKeyChanged),
        ("was revoked", SshErrorKind::HostKeyRevoked),
        ("is marked as revoked", SshErrorKind::HostKeyRevoked),
        ("Host key verification failed", SshErrorKind::HostKeyUnknown),
        ("Permission denied", SshErrorKind::Authentication),
        ("Too many authentication failures", SshErrorKind::Authentication),
        ("Could not resolve hostname", SshErrorKind::Dns),
        ("Connection refused", SshErrorKind::ConnectionRefused),
        ("Connection timed out", SshErrorKind::Timeout(SshPhase::Tcp)),
        ("Operation timed out", SshErrorKind::Timeout(SshPhase::Tcp)),
        ("Not allowed at this time", SshErrorKind::RateLimited),
        ("banner exchange", SshErrorKind::Timeout(SshPhase::KeyExchange)),
        ("Unable to negotiate", SshErrorKind::KeyExchange),
        ("Bad configuration option", SshErrorKind::Config),
        ("Connection closed", SshErrorKind::Busy),
        ("Connection reset", SshErrorKind::Busy),
    ];
    PATTERNS.iter().find(|(pattern, _)| stderr.contains(pattern)).map_or(SshErrorKind::Network, |(_, kind)| *kind)
}

/// The output of ssh as one line, without frames and routine warnings.
fn summary(stderr: &str) -> String {
    let lines: Vec<_> = stderr
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("@@@") && !line.starts_with("Warning: Permanently added"))
        .map(|line| line.trim_matches('@').trim())
        .collect();
    let text = lines.join("; ");
    match text.char_indices().nth(MAX_SUMMARY_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_quote_ssh() {
        let host = HostConfig::named("gpu01");
        assert_eq!(
            ssh_failed_error(&host, "bob@gpu01: Permission denied (publickey).\r\n", false),
            SshError::new(SshErrorKind::Authentication, "ssh failed: bob@gpu01: Permission denied (publickey).")
                .with_hint("ssh gpu01   # run it once by hand: gpufleet cannot ask here")
        );
        assert_eq!(ssh_failed_error(&host, "", true).message, "ssh failed: it gave no reason");
    }

    #[test]
    fn a_changed_host_key_is_reported_with_its_name_and_file() {
        let stderr = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n\
            Offending ED25519 key in /home/a b/known_hosts:7\r\n  remove with:\r\n\
            Host key for [gate]:2222 has changed and you have requested strict checking.\r\n\
            Host key verification failed.\r\nkex_exchange_identification: Connection closed by remote host\r\n";
        assert_eq!(
            ssh_failed_error(&HostConfig::named("gpu01"), stderr, false),
            SshError::new(
                SshErrorKind::HostKeyChanged,
                "the host key of [gate]:2222 has changed: /home/a b/known_hosts:7 has another one; nothing was sent to it"
            )
            .with_hint(
                "ssh-keygen -f '/home/a b/known_hosts' -R '[gate]:2222'   # only if the administrator confirms the new key"
            )
        );
    }

    #[test]
    fn failures_are_classified() {
        for (stderr, expected) in [
            ("ssh: connect to host 127.0.0.1 port 1: Connection refused", SshErrorKind::ConnectionRefused),
            ("ssh: Could not resolve hostname x: Name or service not known", SshErrorKind::Dns),
            ("bob@gpu01: Permission denied (publickey).", SshErrorKind::Authentication),
            ("No ED25519 host key is known for gpu01.\nHost key verification failed.", SshErrorKind::HostKeyUnknown),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                SshErrorKind::HostKeyChanged,
            ),
            ("Connection timed out during banner exchange", SshErrorKind::Timeout(SshPhase::Tcp)),
            ("kex_exchange_identification: Connection closed by remote host", SshErrorKind::Busy),
            ("kex_exchange_identification: banner line 0: Not allowed at this time", SshErrorKind::RateLimited),
            ("something new", SshErrorKind::Network),
        ] {
            assert_eq!(error_kind(stderr), expected, "{stderr}");
        }
    }

    #[test]
    fn the_summary_is_one_line_without_frames() {
        assert_eq!(summary("@@@@@@\n@  CHANGED!  @\n@@@@@@\nWarning: Permanently added x\n\nbye \n"), "CHANGED!; bye");
        assert!(summary(&"ä".repeat(1000)).ends_with("ä..."));
    }
}
