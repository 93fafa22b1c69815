//! Translates SSH errors and the exit of remote commands to [`LinkError`]s. Pure functions.

use super::remote_command::CommandEnd;
use crate::fleet::{ConnectPhase, LinkError, LinkErrorKind, RetryPolicy, limited_text};
use crate::ssh::transport::{Exit, SshError, SshErrorKind, SshPhase};
use crate::wire::SafeText;
use crate::wire::codec::CodecError;
use std::time::Duration;

/// Delay after an administrator has ended the probe: an open monitor blocks GPU resets and MIG changes.
pub(super) const ADMIN_STOP_DELAY: Duration = Duration::from_secs(600);
/// Exit status of a probe that a policy file forbids: `EX_NOPERM` of sysexits.h.
const FORBIDDEN: u32 = 77;
/// Delay after the first KILL, which may come from the out-of-memory killer.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// Returns whether the command was killed, as a signal or as the exit status of a shell.
pub(super) fn is_kill(exit: &Exit) -> bool {
    matches!(signal_of(exit), Some("KILL"))
}

/// Describes the end of a probe or of its connection. `killed_before` means that the probe was also killed within the
/// last [`ADMIN_STOP_DELAY`]; `farewell` is the reason the probe gave.
pub(super) fn probe_ended(end: &CommandEnd, farewell: Option<&SafeText>, killed_before: bool) -> LinkError {
    let ended = |text: String| LinkError::new(LinkErrorKind::ProbeEnded, text);
    match (signal_of(&end.exit), &end.exit) {
        (Some("TERM"), _) => by_administrator("ended by TERM"),
        (Some("KILL"), _) if killed_before => by_administrator("killed (9) twice within 10 minutes"),
        (Some("KILL"), _) => ended("the probe was killed (9)".to_owned())
            .with_hint("perhaps by the out-of-memory killer: see `journalctl -k` on the host")
            .with_retry(RetryPolicy::After(AFTER_KILL)),
        (Some(signal), _) => ended(format!("the probe was ended by signal {signal}{}", stderr_suffix(&end.stderr))),
        (None, Exit::Closed(text)) => closed(text.as_deref(), farewell),
        (None, Exit::Status(FORBIDDEN)) => forbidden(farewell),
        (None, _) if farewell.is_some_and(|reason| !reason.is_empty()) => {
            ended(format!("the probe ended: {}", farewell.map_or("", |reason| reason)))
        }
        (None, Exit::Status(status @ (126 | 127))) => LinkError::new(
            LinkErrorKind::NoProbe,
            format!("the probe does not start on this host (exit status {status}{})", stderr_suffix(&end.stderr)),
        )
        .with_hint("the probe needs Linux with glibc 2.17 or newer; `probe = \"nvidia-smi\"` works without it"),
        (None, Exit::Status(status)) => {
            ended(format!("the probe ended with exit status {status}{}", stderr_suffix(&end.stderr)))
        }
        (None, Exit::Signal(_)) => ended("the probe ended".to_owned()),
    }
}

/// Describes a host whose policy file forbids the probe.
fn forbidden(farewell: Option<&SafeText>) -> LinkError {
    let reason = farewell.map_or("", |reason| reason);
    let text = format!("the administrator of this host allows no probe: {reason}");
    LinkError::new(LinkErrorKind::ProbeEnded, text)
        .with_hint("/etc/gpufleet/policy.json on the host says so; r tries again")
        .with_retry(RetryPolicy::After(ADMIN_STOP_DELAY))
}

fn by_administrator(how: &str) -> LinkError {
    LinkError::new(LinkErrorKind::ProbeEnded, format!("the probe was {how}, as by an administrator"))
        .with_hint("r tries again")
        .with_retry(RetryPolicy::After(ADMIN_STOP_DELAY))
}

fn closed(text: Option<&str>, farewell: Option<&SafeText>) -> LinkError {
    let text = match (text, farewell) {
        (Some(text), _) if !text.is_empty() => format!("the connection was closed: {text}"),
        (_, Some(reason)) if !reason.is_empty() => format!("the probe ended: {reason}"),
        _ => "the connection was closed".to_owned(),
    };
    LinkError::new(LinkErrorKind::Closed, text)
}

/// Describes a login that ended before `/bin/sh` answered; `output` is what it printed.
pub(super) fn no_shell(end: &CommandEnd, output: &SafeText) -> LinkError {
    let text = if output.is_empty() { &end.stderr } else { output };
    let how = match &end.exit {
        Exit::Status(status) => format!("exit status {status}"),
        Exit::Signal(signal) => format!("signal {signal}"),
        Exit::Closed(Some(text)) => return closed(Some(text), None),
        Exit::Closed(None) => "no exit status".to_owned(),
    };
    let lower = text.to_lowercase();
    let (kind, what, hint) = if lower.contains("sftp") {
        (LinkErrorKind::Refusal, "the account may only use sftp", "it needs an account that may run commands")
    } else if lower.contains("not available") || lower.contains("nologin") {
        (LinkErrorKind::Shell, "the account has no login shell", "it needs an account that may run commands")
    } else {
        (
            LinkErrorKind::Shell,
            "the login ended before /bin/sh answered",
            "a forced command, or a login shell that does not run `exec /bin/sh`; try `ssh HOST /bin/sh`",
        )
    };
    LinkError::new(kind, format!("{what} ({how}{})", stderr_suffix(text))).with_hint(hint)
}

/// Describes a remote script that ended without starting the probe and without a reason.
pub(super) fn script_ended(end: &CommandEnd) -> LinkError {
    let how = match &end.exit {
        Exit::Status(status) => format!("exit status {status}"),
        Exit::Signal(signal) => format!("signal {signal}"),
        Exit::Closed(text) => return closed(text.as_deref(), None),
    };
    LinkError::new(LinkErrorKind::Shell, format!("the remote script ended ({how}{})", stderr_suffix(&end.stderr)))
        .with_hint("/bin/sh on the host is perhaps not a POSIX shell")
}

/// Describes data that is not the wire protocol.
pub(super) fn protocol(error: &CodecError) -> LinkError {
    let error_of = LinkError::new(LinkErrorKind::Protocol, error.to_string());
    match error {
        CodecError::UnsupportedProtocol { .. } => {
            error_of.with_hint("the probe on the host is of another version: use `probe = \"upload\"`, or replace it")
        }
        _ => error_of.with_hint("another program writes to the connection, for example a start-up file of the account"),
    }
}

/// Describes a timeout; `what` names the missing answer.
pub(super) fn timeout(what: &str, limit: Duration) -> LinkError {
    LinkError::new(LinkErrorKind::Timeout, format!("{what} within {} s", limit.as_secs()))
}

fn stderr_suffix(text: &SafeText) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        _ if text.is_empty() => String::new(),
        Some((end, _)) => format!(": {}…", &text[..end]),
        None => format!(": {text}"),
    }
}

fn signal_of(exit: &Exit) -> Option<&str> {
    match exit {
        // A shell or `ssh` in between reports a signal as 128 plus its number.
        Exit::Status(143) => Some("TERM"),
        Exit::Status(137) => Some("KILL"),
        Exit::Signal(name) => Some(name.strip_prefix("SIG").unwrap_or(name)),
        _ => None,
    }
}

/// Translates a phase of an SSH connection.
pub(super) fn connect_phase(phase: SshPhase) -> ConnectPhase {
    match phase {
        SshPhase::Queued => ConnectPhase::Queued,
        SshPhase::Name => ConnectPhase::Name,
        SshPhase::Tcp => ConnectPhase::Tcp,
        SshPhase::KeyExchange => ConnectPhase::KeyExchange,
        SshPhase::Login => ConnectPhase::Login,
        SshPhase::Exec => ConnectPhase::Probe,
    }
}

/// Delay for a server with too many unauthenticated connections (`MaxStartups`).
const BUSY: Duration = Duration::from_secs(5);
/// Delay for a server that penalises this address (`PerSourcePenalties`, sshd 9.8 and newer).
const PENALTY: Duration = Duration::from_secs(60);
/// Delay for a refused account: with pam_slurm_adopt a job may have started meanwhile.
const REFUSED_ACCOUNT: Duration = Duration::from_secs(300);

/// Translates an SSH error, with its retry policy.
///
/// Authentication and host key errors are retried on request only: servers penalise by source address, and another
/// attempt cannot succeed before somebody changes something.
pub(super) fn from_ssh(error: &SshError) -> LinkError {
    let (kind, retry) = match error.kind {
        SshErrorKind::Config => (LinkErrorKind::Config, RetryPolicy::Backoff),
        SshErrorKind::Dns => (LinkErrorKind::Dns, RetryPolicy::Backoff),
        SshErrorKind::ConnectionRefused => (LinkErrorKind::Refused, RetryPolicy::Backoff),
        SshErrorKind::Timeout(_) => (LinkErrorKind::Timeout, RetryPolicy::Backoff),
        SshErrorKind::Network => (LinkErrorKind::Network, RetryPolicy::Backoff),
        SshErrorKind::RateLimited => (LinkErrorKind::Closed, RetryPolicy::After(PENALTY)),
        SshErrorKind::Busy => (LinkErrorKind::Closed, RetryPolicy::After(BUSY)),
        SshErrorKind::KeyExchange => (LinkErrorKind::KeyExchange, RetryPolicy::Backoff),
        SshErrorKind::HostKeyUnknown => (LinkErrorKind::HostKeyUnknown, RetryPolicy::OnRequest),
        SshErrorKind::HostKeyChanged => (LinkErrorKind::HostKeyChanged, RetryPolicy::OnRequest),
        SshErrorKind::HostKeyRevoked => (LinkErrorKind::HostKeyRevoked, RetryPolicy::OnRequest),
        SshErrorKind::KnownHosts => (LinkErrorKind::KnownHosts, RetryPolicy::OnRequest),
        SshErrorKind::Authentication | SshErrorKind::Declined => {
            (LinkErrorKind::Authentication, RetryPolicy::OnRequest)
        }
        SshErrorKind::IdentityFile => (LinkErrorKind::IdentityFile, RetryPolicy::OnRequest),
        SshErrorKind::SessionRefused => (LinkErrorKind::Refusal, RetryPolicy::After(REFUSED_ACCOUNT)),
        SshErrorKind::Unsupported => (LinkErrorKind::Unsupported, RetryPolicy::OnRequest),
    };
    let translated = LinkError::new(kind, error.message.as_str()).with_retry(retry);
    match &error.hint {
        Some(hint) => translated.with_hint(hint.as_str()),
        None => translated,
    }
}

/// The host sends more than is read and does not wait for acknowledgements.
pub(super) fn sends_too_much() -> LinkError {
    let text = format!("protocol violation: the host {}", limited_text());
    LinkError::new(LinkErrorKind::Protocol, text)
        .with_hint("its probe is not that of gpufleet, or broken: `gpufleet clean HOST` removes it")
}

/// The host writes so much to standard error that it occupies this computer.
pub(super) fn too_much_stderr() -> LinkError {
    LinkError::new(LinkErrorKind::Protocol, "protocol violation: too much output on standard error")
        .with_hint("see what the host prints: `ssh HOST true`")
}

/// Whether the network may be the cause, so that the next attempt may succeed at any moment.
pub(super) fn concerns_network(kind: LinkErrorKind) -> bool {
    use LinkErrorKind::{Dns, Network, Refused, Silent, Timeout};
    matches!(kind, Dns | Network | Refused | Silent | Timeout)
}

/// Returns whether only the user can resolve this error: a key, a host key, a declined prompt.
pub(super) fn needs_user(error: &LinkError) -> bool {
    error.retry == RetryPolicy::OnRequest && error.kind.concerns_credentials()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command_end(exit: Exit, stderr: &str) -> CommandEnd {
        CommandEnd { exit, stderr: stderr.into() }
    }

    #[test]
    fn an_end_names_its_cause() {
        let message = |exit, stderr: &str, farewell: Option<&str>, killed_before| {
            let error = probe_ended(&command_end(exit, stderr), farewell.map(SafeText::new).as_ref(), killed_before);
            (error.message.to_string(), error.retry)
        };
        let kill = || Exit::Signal("KILL".to_owned());
        assert_eq!(
            message(kill(), "", None, false),
            ("the probe was killed (9)".to_owned(), RetryPolicy::After(AFTER_KILL))
        );
        assert_eq!(
            message(Exit::Status(137), "", None, true),
            (
                "the probe was killed (9) twice within 10 minutes, as by an administrator".to_owned(),
                RetryPolicy::After(ADMIN_STOP_DELAY)
            )
        );
        assert_eq!(
            message(Exit::Signal("TERM".to_owned()), "", Some("TERM"), false),
            ("the probe was ended by TERM, as by an administrator".to_owned(), RetryPolicy::After(ADMIN_STOP_DELAY))
        );
        assert_eq!(
            message(Exit::Status(77), "", Some("resetting GPUs until noon"), false),
            (
                "the administrator of this host allows no probe: resetting GPUs until noon".to_owned(),
                RetryPolicy::After(ADMIN_STOP_DELAY)
            )
        );
        assert_eq!(
            message(Exit::Status(101), "thread 'main' panicked", None, false).0,
            "the probe ended with exit status 101: thread 'main' panicked"
        );
        assert_eq!(
            message(Exit::Status(0), "", Some("no heartbeat for 30 s"), false).0,
            "the probe ended: no heartbeat for 30 s"
        );
        assert_eq!(
            message(Exit::Status(127), "sh: exec: /x: not found", None, false).0,
            "the probe does not start on this host (exit status 127: sh: exec: /x: not found)"
        );
        assert_eq!(
            message(Exit::Closed(Some("Timeout, client not responding".to_owned())), "", None, false).0,
            "the connection was closed: Timeout, client not responding"
        );
        assert_eq!(message(Exit::Closed(None), "", None, false).0, "the connection was closed");
    }

    #[test]
    fn an_account_without_a_shell_is_told_from_one_for_sftp() {
        let error = no_shell(&command_end(Exit::Status(1), ""), &"This account is currently not available.".into());
        assert_eq!(
            (error.kind, &*error.message),
            (
                LinkErrorKind::Shell,
                "the account has no login shell (exit status 1: This account is currently not available.)"
            )
        );
        let error = no_shell(&command_end(Exit::Status(1), ""), &"This service allows sftp connections only.".into());
        assert_eq!(
            (error.kind, &*error.message),
            (
                LinkErrorKind::Refusal,
                "the account may only use sftp (exit status 1: This service allows sftp connections only.)"
            )
        );
        let error = no_shell(&command_end(Exit::Status(2), "git: not a command"), &SafeText::default());
        assert_eq!(
            (error.kind, &*error.message),
            (LinkErrorKind::Shell, "the login ended before /bin/sh answered (exit status 2: git: not a command)")
        );
    }

    #[test]
    fn long_last_words_are_cut() {
        let message = script_ended(&command_end(Exit::Status(2), &"ä".repeat(1000))).message;
        assert_eq!(message.chars().filter(|letter| *letter == 'ä').count(), 200);
        assert!(message.ends_with("ä…)"));
    }

    fn translated(kind: SshErrorKind, message: &str) -> LinkError {
        from_ssh(&SshError::new(kind, message).with_hint("try this"))
    }

    #[test]
    fn credentials_and_host_keys_wait_for_a_person() {
        for kind in [
            SshErrorKind::HostKeyUnknown,
            SshErrorKind::HostKeyChanged,
            SshErrorKind::HostKeyRevoked,
            SshErrorKind::KnownHosts,
            SshErrorKind::Authentication,
            SshErrorKind::Declined,
            SshErrorKind::IdentityFile,
        ] {
            let error = translated(kind, "no");
            assert_eq!(error.retry, RetryPolicy::OnRequest, "{kind:?}");
            assert!(needs_user(&error), "{kind:?}");
        }
    }

    #[test]
    fn the_network_is_tried_again_and_a_busy_server_is_left_alone() {
        for kind in [
            SshErrorKind::Dns,
            SshErrorKind::ConnectionRefused,
            SshErrorKind::Timeout(SshPhase::Tcp),
            SshErrorKind::Network,
            SshErrorKind::KeyExchange,
        ] {
            assert_eq!(translated(kind, "no").retry, RetryPolicy::Backoff, "{kind:?}");
            assert!(!needs_user(&translated(kind, "no")), "{kind:?}");
        }
        assert_eq!(translated(SshErrorKind::Busy, "server busy").retry, RetryPolicy::After(BUSY));
        assert_eq!(translated(SshErrorKind::RateLimited, "no").retry, RetryPolicy::After(PENALTY));
        assert_eq!(translated(SshErrorKind::SessionRefused, "no job").retry, RetryPolicy::After(REFUSED_ACCOUNT));
    }

    #[test]
    fn words_of_the_server_become_safe_text_and_the_hint_stays() {
        let error = translated(SshErrorKind::Network, "reset\u{1b}[31m");
        assert_eq!(error.message, "reset␛[31m");
        assert_eq!(error.hint.as_deref(), Some("try this"));
    }

    #[test]
    fn phases_keep_their_order() {
        let phases =
            [SshPhase::Queued, SshPhase::Name, SshPhase::Tcp, SshPhase::KeyExchange, SshPhase::Login, SshPhase::Exec];
        assert!(phases.map(connect_phase).is_sorted());
    }
}
