//! Where a host's bytes come from, and how `ssh`'s phases and errors read in the fleet's words.

use crate::config::HostConfig;
use crate::fleet::{ConnectPhase, HostId, LinkError, LinkErrorKind, RetryPolicy};
use crate::ssh;
use crate::ssh::transport::{Channel, Exit, SshError, SshErrorKind, SshPhase};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;

/// Where the hosts' bytes come from.
#[derive(Clone)]
pub enum Source {
    /// A shell on each host, over SSH or on this machine: the probe is found or installed first.
    Ssh(Arc<dyn OpenChannel>),
    /// Probes that run in this process and speak from the first byte: the simulated fleet.
    InProcess(Arc<OpenStream>),
}

/// Opens the stream of a probe that runs in this process.
pub type OpenStream = dyn Fn(HostId) -> Result<DuplexStream, LinkError> + Send + Sync;

/// Called with each phase that a connection enters.
pub type Progress = dyn Fn(SshPhase) + Send + Sync;

/// A channel on its way.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Channel, SshError>> + Send + 'a>>;

/// Runs one command on a host.
pub trait OpenChannel: Send + Sync {
    /// Starts `command` on `host`. Dropping the future gives the try up.
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a>;
}

impl OpenChannel for ssh::Context {
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a> {
        Box::pin(async move { ssh::open(&self, host, command, progress).await })
    }
}

/// A stream without a shell around it, as a channel: it has no standard error and no exit status.
pub(super) fn channel_from_stream(stream: DuplexStream) -> Channel {
    let (stdout, stdin) = tokio::io::split(stream);
    let (ended, exit) = oneshot::channel();
    drop::<oneshot::Sender<Exit>>(ended);
    Channel {
        stdin: Box::pin(stdin),
        stdout: Box::pin(stdout),
        stderr: Box::pin(tokio::io::empty()),
        exit,
        guard: Box::new(()),
    }
}

/// The fleet's word for a phase of SSH.
pub(super) fn phase(phase: SshPhase) -> ConnectPhase {
    match phase {
        SshPhase::Queued => ConnectPhase::Queued,
        SshPhase::Name => ConnectPhase::Name,
        SshPhase::Tcp => ConnectPhase::Tcp,
        SshPhase::KeyExchange => ConnectPhase::KeyExchange,
        SshPhase::Login => ConnectPhase::Login,
        SshPhase::Exec => ConnectPhase::Probe,
    }
}

/// How long to leave a server alone that has too many unauthenticated connections (`MaxStartups`).
const BUSY: Duration = Duration::from_secs(5);
/// How long to leave a server alone that punishes this address (`PerSourcePenalties`, sshd 9.8 and newer).
const PENALTY: Duration = Duration::from_secs(60);
/// How long until an account that was refused is looked at again: with pam_slurm_adopt a job may have begun.
const REFUSED_ACCOUNT: Duration = Duration::from_secs(300);

/// The fleet's word for a failure of SSH, with the rule for the next try.
///
/// Authentication and host keys are never retried unasked: servers punish by source address, and a second try cannot
/// succeed before a person has changed something.
pub(super) fn link_error(error: &SshError) -> LinkError {
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

/// Whether only a person can help: a key, a host key, a prompt that was declined.
pub(super) fn needs_user(error: &LinkError) -> bool {
    error.retry == RetryPolicy::OnRequest && error.kind.concerns_credentials()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(kind: SshErrorKind, message: &str) -> LinkError {
        link_error(&SshError::new(kind, message).with_hint("try this"))
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
        assert!(phases.map(phase).is_sorted());
    }
}
