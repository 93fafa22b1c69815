//! Connects to a host, logs in and starts a command; connects again after each question to the user.

use super::connection::{AbortHandle, ClientHandler, Connection, ConnectionEvents, NativeError, abortable};
use super::host_key::{self, HostKeyDecision, HostKeyVerifier, UnknownHostKey};
use super::login::{Login, LoginState, RetryReason};
use super::server_stream::{self, ByteStream, ConnectTarget, ServerStream};
use super::{algorithms, channel};
use crate::config::shell_word;
use crate::ssh::Context;
use crate::ssh::context::TraceDetail;
use crate::ssh::credentials::{EncryptedKey, KeyFileError, PromptKey, UnlockError};
use crate::ssh::known_hosts::{HostName, fingerprint};
use crate::ssh::limits::{PausableTimeout, PreauthSlot};
use crate::ssh::openssh::PromptAbandoned;
use crate::ssh::prompt::{Answer, PromptKind, RefusedPrompt};
use crate::ssh::resolve::Resolved;
use crate::ssh::transport::{Channel, SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration, io_cause};
use futures::future::BoxFuture;
use russh::Error;
use russh::client::Handle;
use russh::keys::PublicKey;
use std::sync::Arc;
use std::time::Duration;

/// The whole answer of sshd to an address that it penalizes (`PerSourcePenalties`, OpenSSH 9.8 and newer).
const PENALTY: &str = "Not allowed at this time";

/// Connects, logs in and starts `command`.
pub(in crate::ssh) async fn open(
    context: &Context,
    host: &str,
    resolved: &Resolved,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Channel, NativeError> {
    let target = ConnectTarget { context, host, resolved, jump_path: &[], carries_others: false, progress, log_in };
    let (connection, preauth_slot) = log_in(target).await?;
    progress(SshPhase::Exec);
    Ok(channel::exec(connection, preauth_slot, command, context.options.limits.exec).await?)
}

/// Connects and logs in. See [`server_stream::LogIn`].
fn log_in(target: ConnectTarget<'_>) -> BoxFuture<'_, Result<(Connection, PreauthSlot), NativeError>> {
    Box::pin(async move {
        let resolved = target.resolved;
        let name = HostName::new(&resolved.hostname, resolved.port, resolved.host_key_alias.as_deref());
        let mut attempt = Attempt { target, name, state: LoginState::default(), trusted: None };
        loop {
            match attempt.run().await {
                Ok(connection) => return Ok(connection),
                Err(reason) => attempt.handle_retry_reason(reason).await?,
            }
        }
    })
}

struct Attempt<'a> {
    target: ConnectTarget<'a>,
    name: HostName,
    state: LoginState,
    /// The key that the user trusted at a prompt: the next connection is pinned to it.
    trusted: Option<PublicKey>,
}

impl Attempt<'_> {
    /// Makes one connection.
    async fn run(&mut self) -> Result<(Connection, PreauthSlot), RetryReason> {
        let ConnectTarget { context, host, resolved, progress, .. } = self.target;
        let ServerStream { stream, peer, carrier, preauth_slot, time_limit } =
            server_stream::open(&self.target).await?;

        progress(SshPhase::KeyExchange);
        let events = ConnectionEvents::default();
        let exchanged = tokio::select! {
            exchanged = self.exchange_keys(stream, time_limit, &peer, &events) => exchanged,
            // Returning kills the proxy, so that its `ssh` does not take the missing answer for an empty one.
            abandoned = carrier.abandoned() => return Err(match abandoned {
                PromptAbandoned::Declined => SshError::login_cancelled(&resolved.user).into(),
                PromptAbandoned::TimedOut => RetryReason::PromptTimedOut,
            }),
        };
        let (mut handle, abort_handle) = match exchanged {
            Err(RetryReason::Fatal(error)) => return Err(RetryReason::Fatal(carrier.explain(error).await)),
            other => other?,
        };

        progress(SshPhase::Login);
        let time_limit = PausableTimeout::start(context.options.limits.login);
        let state = &mut self.state;
        let login = Login { context, host, resolved, handle: &mut handle, events: &events, state, time_limit };
        login.run().await?;
        self.state.prompt_turn = None;
        Ok((Connection { handle, events, _abort_handle: abort_handle, _carrier: carrier }, preauth_slot))
    }

    async fn exchange_keys(
        &self,
        stream: Box<dyn ByteStream>,
        time_limit: Option<PausableTimeout>,
        peer: &str,
        events: &ConnectionEvents,
    ) -> Result<(Handle<ClientHandler>, AbortHandle), RetryReason> {
        let ConnectTarget { context, resolved, .. } = self.target;
        let known = host_key::read_known_hosts(resolved).await?;
        let config = algorithms::config(&algorithms::ConnectionOptions {
            known: known.key_types(&self.name),
            certificates: known.has_authorities(&self.name),
            keepalive: resolved.server_alive(),
            algorithms: resolved.algorithms.clone(),
            carries_others: self.target.carries_others,
        });
        let config = config.map_err(|error| key_exchange_error(peer, b"", &error))?;
        let verifier = HostKeyVerifier {
            known,
            name: self.name.clone(),
            trusted: self.trusted.clone(),
            trusted_before: context.trusted_once(&self.name),
            accept_new: resolved.strict_host_keys.accepts_new(),
            accepted: None,
        };
        let (stream, abort_handle) = abortable(stream);
        let time_limit = time_limit.unwrap_or_else(|| PausableTimeout::start(context.options.limits.key_exchange));
        let connecting =
            russh::client::connect_stream(Arc::new(config), stream, ClientHandler::new(verifier, events.clone()));
        let connected = time_limit.run(connecting).await;
        let decision = events.lock().decision.take();
        if let Some(decision) = &decision {
            if let Some(error) = host_key::refusal_error(decision, &self.name) {
                return Err(error.into());
            }
            if let HostKeyDecision::Unknown { key, other_names } = decision {
                let target = format!("{} ({peer})", resolved.hostname);
                let (key, other_names) = (key.clone(), other_names.clone());
                return Err(RetryReason::UnknownKey(Box::new(UnknownHostKey { key, other_names, target })));
            }
        }
        let handle = match connected {
            Ok(Ok(handle)) => handle,
            Ok(Err(error)) => {
                let may_help = matches!(error, Error::NoCommonAlgo { .. });
                let error = key_exchange_error(peer, &abort_handle.first_bytes(), &error);
                return Err(if may_help { RetryReason::NeedsSshProgram(error) } else { RetryReason::Fatal(error) });
            }
            Err(_) => {
                return Err(key_exchange_timeout(peer, &abort_handle.first_bytes(), time_limit.limit()).into());
            }
        };
        match decision {
            Some(HostKeyDecision::Accepted { new: Some(key) }) => host_key::save(resolved, &self.name, &key).await?,
            Some(HostKeyDecision::Accepted { new: None }) => {}
            // Fail closed: never use a connection whose host key was not verified.
            _ => return Err(key_exchange_error(peer, &abort_handle.first_bytes(), &Error::UnknownKey).into()),
        }
        self.target.trace(SshPhase::KeyExchange, || events.lock().negotiated.clone());
        Ok((handle, abort_handle))
    }

    /// Does what the next connection needs, or returns the error if there must be none.
    async fn handle_retry_reason(&mut self, reason: RetryReason) -> Result<(), NativeError> {
        let ConnectTarget { context, host, resolved, .. } = self.target;
        match reason {
            RetryReason::Fatal(error) => return Err(error.into()),
            RetryReason::NeedsSshProgram(error) => return Err(NativeError { error, ssh_program_may_help: true }),
            RetryReason::UnknownKey(unknown_key) => {
                let broker = &context.broker;
                if !broker.can_prompt() {
                    context.trace_detail(host, SshPhase::KeyExchange, || {
                        TraceDetail::RefusedPrompt(RefusedPrompt::HostKey {
                            target: unknown_key.target.clone(),
                            fingerprint: fingerprint(&unknown_key.key),
                        })
                    });
                }
                host_key::prompt_for_unknown_key(broker, host, resolved, &self.name, &unknown_key).await?;
                context.trust_once(&self.name, &unknown_key.key);
                self.trusted = Some(unknown_key.key);
            }
            RetryReason::EncryptedKey(key) => {
                let unlocking = context.keys.unlock(&context.broker, &key, host);
                unlocking.await.map_err(|error| unlock_error(&key, &error))?;
            }
            RetryReason::PromptBusy => {
                self.state.prompt_turn = Some(Arc::clone(&context.interactive_login_lock).lock_owned().await);
            }
            RetryReason::PromptTimedOut => {
                if !context.broker.confirm_login(host, resolved.login()).await {
                    return Err(SshError::login_cancelled(&resolved.user).into());
                }
            }
            RetryReason::PasswordNeeded => {
                let kind = PromptKind::Secret {
                    text: format!("{}'s password:", resolved.login()),
                    instruction: String::new(),
                    echo: false,
                    failures: self.state.wrong_passwords,
                };
                let key = PromptKey::Login { target: resolved.login(), connection: context.broker.next_login_id() };
                let answer = context.broker.ask(key, host, kind).await;
                let answer = answer.map(|(_, answer)| answer).ok();
                self.state.password = answer.filter(|answer| matches!(**answer, Answer::Secret(_)));
                if self.state.password.is_none() {
                    return Err(SshError::login_cancelled(&resolved.user).into());
                }
            }
        }
        Ok(())
    }
}

/// The error for a key that the server would accept but that could not be decrypted.
fn unlock_error(key: &EncryptedKey, error: &UnlockError) -> SshError {
    let path = key.path.display();
    let (kind, message) = match error {
        UnlockError::Unanswered(_) => {
            (SshErrorKind::IdentityFile, format!("{path} has a passphrase, and no prompt is possible"))
        }
        UnlockError::Declined => (SshErrorKind::Declined, format!("no passphrase was given for {path}")),
        UnlockError::WrongPassphrase => {
            (SshErrorKind::IdentityFile, format!("three passphrases for {path} were wrong"))
        }
        UnlockError::File(KeyFileError::Missing) => {
            (SshErrorKind::IdentityFile, format!("{path} was removed while its passphrase was typed"))
        }
        UnlockError::File(KeyFileError::Unusable { reason, .. }) => {
            (SshErrorKind::IdentityFile, format!("{path} {reason}"))
        }
    };
    SshError::new(kind, message).with_hint(format!("ssh-add {}", shell_word(&key.path.to_string_lossy())))
}

/// The error for a key exchange that did not finish in time. `head` holds the first bytes from the server.
fn key_exchange_timeout(peer: &str, head: &[u8], limit: Duration) -> SshError {
    let limit = duration(limit, DurationStyle::Seconds);
    let (message, hint) = if head.is_empty() {
        (
            format!("connected to {peer}, but no SSH banner came within {limit}"),
            "does sshd listen on that port? An overloaded or hung host accepts connections without answering",
        )
    } else if banner(head).is_some() {
        (
            format!("{peer} answered, but the key exchange was not finished within {limit}"),
            "the host is overloaded, or the network drops large packets (MTU)",
        )
    } else {
        (
            format!("{peer} does not speak SSH; it says {:?}", first_line(head)),
            "`port = N` in hosts.toml names the port of sshd",
        )
    };
    SshError::new(SshErrorKind::Timeout(SshPhase::KeyExchange), message).with_hint(hint)
}

/// The error for a key exchange that failed for another reason than the host key.
fn key_exchange_error(peer: &str, head: &[u8], error: &Error) -> SshError {
    let closed = match error {
        Error::HUP | Error::Disconnect | Error::RecvError => true,
        Error::IO(error) => {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
            matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
        }
        _ => false,
    };
    // sshd reports MaxStartups and penalties in plain text before its banner.
    let refusal = (closed && banner(head).is_none() && !head.is_empty()).then(|| first_line(head));
    if refusal.as_deref() == Some(PENALTY) {
        let message = format!("{peer} is rate-limited for this address: it closed the connection and said {PENALTY:?}");
        return SshError::new(SshErrorKind::RateLimited, message).with_hint(
            "after failed logins sshd refuses an address for a while (PerSourcePenalties); the next attempt is in a minute",
        );
    }
    if closed {
        let message = match refusal {
            Some(line) => format!("{peer} closed the connection and said {line:?}"),
            None => format!("{peer} closed the connection before the key exchange was finished"),
        };
        return SshError::new(SshErrorKind::Busy, message).with_hint(
            "sshd is restarting, has too many pending logins (MaxStartups), or has blocked this address for a while",
        );
    }
    let message = match error {
        Error::NoCommonAlgo { kind, theirs, .. } => {
            format!("no {kind:?} algorithm in common with {peer}, which offers {}", theirs.join(", "))
        }
        Error::IO(error) => format!("the key exchange with {peer} failed: {}", io_cause(error)),
        error => format!("the key exchange with {peer} failed: {error}"),
    };
    SshError::new(SshErrorKind::KeyExchange, message)
        .with_hint("backend = \"system\" in hosts.toml uses the ssh program")
}

/// The identification line of the server, if it is complete. Other lines may precede it (RFC 4253, section 4.2).
fn banner(head: &[u8]) -> Option<&[u8]> {
    head.split_inclusive(|byte| *byte == b'\n').find(|line| line.starts_with(b"SSH-") && line.ends_with(b"\n"))
}

/// The first 80 characters of the first line.
fn first_line(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line).trim_end().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::AlgorithmKind;

    const PEER: &str = "127.0.0.1 port 22";

    #[test]
    fn a_timeout_says_how_far_the_server_came() {
        let message = |head: &[u8]| key_exchange_timeout(PEER, head, Duration::from_secs(10)).message;
        assert_eq!(message(b""), "connected to 127.0.0.1 port 22, but no SSH banner came within 10 s");
        assert_eq!(
            message(b"welcome\r\nSSH-2.0-x\r\n"),
            "127.0.0.1 port 22 answered, but the key exchange was not finished within 10 s"
        );
        assert_eq!(message(b"220 mail.lab\r\n"), "127.0.0.1 port 22 does not speak SSH; it says \"220 mail.lab\"");
    }

    #[test]
    fn key_exchange_errors_are_classified() {
        let error = key_exchange_error(PEER, b"Exceeded MaxStartups\r\n", &Error::HUP);
        assert_eq!(error.kind, SshErrorKind::Busy);
        assert_eq!(error.message, "127.0.0.1 port 22 closed the connection and said \"Exceeded MaxStartups\"");
        assert_eq!(
            key_exchange_error(PEER, b"Not allowed at this time\r\n", &Error::HUP),
            SshError::new(
                SshErrorKind::RateLimited,
                "127.0.0.1 port 22 is rate-limited for this address: it closed the connection and said \"Not allowed at \
                 this time\""
            )
            .with_hint(
                "after failed logins sshd refuses an address for a while (PerSourcePenalties); the next attempt is in a \
                 minute"
            )
        );
        assert_eq!(
            key_exchange_error(PEER, b"", &Error::Disconnect).message,
            "127.0.0.1 port 22 closed the connection before the key exchange was finished"
        );
        let none = Error::NoCommonAlgo { kind: AlgorithmKind::Kex, ours: vec![], theirs: vec!["a".into(), "b".into()] };
        assert_eq!(
            key_exchange_error(PEER, b"SSH-2.0-x\r\n", &none).message,
            "no Kex algorithm in common with 127.0.0.1 port 22, which offers a, b"
        );
        let error = key_exchange_error(PEER, b"SSH-2.0-x\r\n", &Error::WrongServerSig);
        assert_eq!(error.message, "the key exchange with 127.0.0.1 port 22 failed: Wrong server signature");
        assert_eq!(error.kind, SshErrorKind::KeyExchange);
    }
}
