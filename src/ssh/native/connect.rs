//! One host, from its name to a running command.

use super::abortable_stream::{AbortHandle, abortable};
use super::auth::{self, Login};
use super::exec::{self, Connection};
use super::handler::{ClientHandler, ConnectionEvents};
use super::host_key::{self, HostKeyDecision, HostKeyVerifier};
use super::login_state::{LoginState, RetryReason, UnknownHostKey};
use super::server_stream::{self, ByteStream, ServerStream};
use super::{algorithms, errors};
use crate::ssh::Context;
use crate::ssh::credentials::{EncryptedKey, KeyFileError, PromptKey, UnlockError};
use crate::ssh::known_hosts::{HostName, KnownHosts};
use crate::ssh::openssh::PromptAbandoned;
use crate::ssh::pausable_timeout::PausableTimeout;
use crate::ssh::preauth_limiter::PreauthSlot;
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::resolve::{Resolved, StrictHostKeys};
use crate::ssh::text::shell_word;
use crate::ssh::transport::{Channel, SshError, SshErrorKind, SshPhase};
use futures::future::BoxFuture;
use russh::client::Handle;
use russh::keys::PublicKey;
use std::sync::Arc;

/// Why the built-in client gave up.
#[derive(Debug, Clone)]
pub(in crate::ssh) struct NativeError {
    pub(in crate::ssh) error: SshError,
    /// Whether the `ssh` program may manage what we cannot.
    pub(in crate::ssh) ssh_program_may_help: bool,
}

/// Where a connection is to lead.
#[derive(Clone, Copy)]
pub(super) struct ConnectTarget<'a> {
    pub(super) context: &'a Context,
    /// The name it is shown by.
    pub(super) host: &'a str,
    pub(super) resolved: &'a Resolved,
    /// The jump hosts that are being connected to, each through the next: none of them may lead back to itself.
    pub(super) jump_path: &'a [String],
    /// Whether other connections will run through it.
    pub(super) carries_others: bool,
    pub(super) progress: &'a (dyn Fn(SshPhase) + Send + Sync),
}

impl ConnectTarget<'_> {
    /// See [`Context::trace`].
    pub(super) fn trace(&self, phase: SshPhase, text: impl FnOnce() -> String) {
        self.context.trace(self.host, phase, text);
    }
}

/// Connects, logs in and starts `command`.
pub(in crate::ssh) async fn open(
    context: &Context,
    host: &str,
    resolved: &Resolved,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Channel, NativeError> {
    let target = ConnectTarget { context, host, resolved, jump_path: &[], carries_others: false, progress };
    let (connection, preauth_slot) = log_in(target).await?;
    progress(SshPhase::Exec);
    Ok(exec::start(connection, preauth_slot, command, context.options.limits.exec).await?)
}

/// Connects and logs in; connects again after each question to a person. Boxed, since a jump host is connected to in
/// the same way, on the way.
///
/// The place in the waiting room comes with it: the server counts a connection among those that have not logged in for
/// a moment longer than its client does.
pub(super) fn log_in(target: ConnectTarget<'_>) -> BoxFuture<'_, Result<(Connection, PreauthSlot), NativeError>> {
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

impl From<SshError> for NativeError {
    fn from(error: SshError) -> Self {
        Self { error, ssh_program_may_help: false }
    }
}

struct Attempt<'a> {
    target: ConnectTarget<'a>,
    name: HostName,
    state: LoginState,
    /// A key that was trusted at a prompt: the next connection is pinned to it.
    trusted: Option<PublicKey>,
}

impl Attempt<'_> {
    /// One connection.
    async fn run(&mut self) -> Result<(Connection, PreauthSlot), RetryReason> {
        let ConnectTarget { context, host, resolved, progress, .. } = self.target;
        let ServerStream { stream, peer, carrier, preauth_slot, time_limit } =
            server_stream::open(&self.target).await?;

        progress(SshPhase::KeyExchange);
        let events = ConnectionEvents::default();
        let exchanged = tokio::select! {
            exchanged = self.exchange_keys(stream, time_limit, &peer, &events) => exchanged,
            // Ended, its `ssh` cannot take the missing answer for an empty one.
            abandoned = carrier.abandoned() => return Err(match abandoned {
                PromptAbandoned::Declined => auth::declined(resolved).into(),
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
        let known = self.known_hosts().await?;
        let config = algorithms::config(&algorithms::ConnectionOptions {
            known: known.key_types(&self.name),
            certificates: known.has_authorities(&self.name),
            keepalive: resolved.server_alive(),
            algorithms: resolved.algorithms.clone(),
            carries_others: self.target.carries_others,
        });
        let config = config.map_err(|error| errors::key_exchange(peer, b"", &error))?;
        let verifier = HostKeyVerifier {
            known,
            name: self.name.clone(),
            trusted: self.trusted.clone(),
            trusted_before: context.trusted_once(&self.name),
            accept_new: resolved.strict_host_keys == StrictHostKeys::AcceptNew,
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
                let may_help = matches!(error, russh::Error::NoCommonAlgo { .. });
                let error = errors::key_exchange(peer, &abort_handle.first_bytes(), &error);
                return Err(if may_help { RetryReason::NeedsSshProgram(error) } else { RetryReason::Fatal(error) });
            }
            Err(_) => {
                return Err(errors::key_exchange_timeout(peer, &abort_handle.first_bytes(), time_limit.limit()).into());
            }
        };
        match decision {
            Some(HostKeyDecision::Accepted { new: Some(key) }) => host_key::save(resolved, &self.name, &key).await?,
            Some(HostKeyDecision::Accepted { new: None }) => {}
            // A connection whose key nobody has judged is not used.
            _ => return Err(errors::key_exchange(peer, &abort_handle.first_bytes(), &russh::Error::UnknownKey).into()),
        }
        self.target.trace(SshPhase::KeyExchange, || events.lock().negotiated.clone());
        Ok((handle, abort_handle))
    }

    /// The files as they are now: another host may have added a key a moment ago.
    async fn known_hosts(&self) -> Result<KnownHosts, SshError> {
        let files: Vec<_> = self
            .target
            .resolved
            .user_known_hosts
            .iter()
            .chain(&self.target.resolved.global_known_hosts)
            .cloned()
            .collect();
        let reading = tokio::task::spawn_blocking(move || KnownHosts::read(&files));
        reading
            .await
            .unwrap_or_else(|_| Err(SshError::new(SshErrorKind::KnownHosts, "reading the known host keys failed")))
    }

    /// Does what lets the next connection come further, or says why there is none.
    async fn handle_retry_reason(&mut self, reason: RetryReason) -> Result<(), NativeError> {
        let ConnectTarget { context, host, resolved, .. } = self.target;
        match reason {
            RetryReason::Fatal(error) => Err(error.into()),
            RetryReason::NeedsSshProgram(error) => Err(NativeError { error, ssh_program_may_help: true }),
            RetryReason::UnknownKey(unknown_key) => {
                host_key::prompt_for_unknown_key(context, host, resolved, &self.name, &unknown_key).await?;
                self.trusted = Some(unknown_key.key);
                Ok(())
            }
            RetryReason::EncryptedKey(locked) => {
                let unlocking = context.keys.unlock(&context.broker, &locked, host);
                unlocking.await.map_err(|error| locked_error(&locked, &error))?;
                Ok(())
            }
            RetryReason::PromptBusy => {
                self.state.prompt_turn = Some(Arc::clone(&context.interactive_login_lock).lock_owned().await);
                Ok(())
            }
            RetryReason::PromptTimedOut => {
                let target = format!("{}@{}", resolved.user, resolved.hostname);
                let confirmed = context.broker.confirm_login(host, target).await;
                if confirmed { Ok(()) } else { Err(auth::declined(resolved).into()) }
            }
            RetryReason::PasswordNeeded => {
                let target = format!("{}@{}", resolved.user, resolved.hostname);
                let kind = PromptKind::Secret {
                    text: format!("{target}'s password:"),
                    instruction: String::new(),
                    echo: false,
                    failures: self.state.wrong_passwords,
                };
                let key = PromptKey::Login { target, connection: context.broker.next_login_id() };
                let answer = context.broker.ask(key, host, kind).await;
                let answer = answer.map(|(_, answer)| answer).ok();
                self.state.password = answer.filter(|answer| matches!(**answer, Answer::Secret(_)));
                if self.state.password.is_none() {
                    return Err(auth::declined(resolved).into());
                }
                Ok(())
            }
        }
    }
}

/// The key that the server would take stayed locked.
fn locked_error(locked: &EncryptedKey, error: &UnlockError) -> SshError {
    let path = locked.path.display();
    let (kind, text) = match error {
        UnlockError::Unanswered(_) => {
            (SshErrorKind::IdentityFile, format!("{path} is locked by a passphrase, and nobody could be asked"))
        }
        UnlockError::Declined => (SshErrorKind::Declined, format!("no passphrase was given for {path}")),
        UnlockError::WrongPassphrase => {
            (SshErrorKind::IdentityFile, format!("three passphrases for {path} were wrong"))
        }
        UnlockError::File(KeyFileError::Missing) => {
            (SshErrorKind::IdentityFile, format!("{path} has vanished while its passphrase was typed"))
        }
        UnlockError::File(KeyFileError::Unusable { reason, .. }) => {
            (SshErrorKind::IdentityFile, format!("{path} {reason}"))
        }
    };
    SshError::new(kind, text).with_hint(format!("ssh-add {}", shell_word(&locked.path.to_string_lossy())))
}
