//! One host, from its name to a running command.

use super::auth::{self, Login};
use super::exec::{self, Connection};
use super::handler::{Client, Witness};
use super::host_key::{self, Judge, Ruling};
use super::memory::{Memory, Setback, Stranger};
use super::stream::{Cut, cuttable};
use super::way::{self, Stream, Way};
use super::{algorithms, errors};
use crate::ssh::Context;
use crate::ssh::credentials::{KeyFileError, Locked, PromptKey, UnlockError};
use crate::ssh::gate::Place;
use crate::ssh::known_hosts::{HostName, KnownHosts};
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::resolve::{Resolved, StrictHostKeys};
use crate::ssh::stopwatch::Stopwatch;
use crate::ssh::system::GivenUp;
use crate::ssh::text::shell_word;
use crate::ssh::transport::{Channel, SshError, SshErrorKind, SshPhase};
use futures::future::BoxFuture;
use russh::client::Handle;
use russh::keys::PublicKey;
use std::sync::Arc;

/// Why the built-in client gave up.
#[derive(Debug, Clone)]
pub(in crate::ssh) struct Failure {
    pub(in crate::ssh) error: SshError,
    /// Whether the `ssh` program may manage what we cannot.
    pub(in crate::ssh) ssh_may_manage: bool,
}

/// Where a connection is to lead.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) context: &'a Context,
    /// The name it is shown by.
    pub(super) host: &'a str,
    pub(super) resolved: &'a Resolved,
    /// The jump hosts that are being connected to, each through the next: none of them may lead back to itself.
    pub(super) path: &'a [String],
    /// Whether other connections will run through it.
    pub(super) carries_others: bool,
    pub(super) progress: &'a (dyn Fn(SshPhase) + Send + Sync),
}

impl Target<'_> {
    /// See [`Context::remark`].
    pub(super) fn remark(&self, phase: SshPhase, text: impl FnOnce() -> String) {
        self.context.remark(self.host, phase, text);
    }
}

/// Connects, logs in and starts `command`.
pub(in crate::ssh) async fn open(
    context: &Context,
    host: &str,
    resolved: &Resolved,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Channel, Failure> {
    let target = Target { context, host, resolved, path: &[], carries_others: false, progress };
    let (connection, waiting_room) = log_in(target).await?;
    progress(SshPhase::Exec);
    Ok(exec::start(connection, waiting_room, command, context.options.limits.exec).await?)
}

/// Connects and logs in; connects again after each question to a person. Boxed, since a jump host is connected to in
/// the same way, on the way.
///
/// The place in the waiting room comes with it: the server counts a connection among those that have not logged in for
/// a moment longer than its client does.
pub(super) fn log_in(target: Target<'_>) -> BoxFuture<'_, Result<(Connection, Place), Failure>> {
    Box::pin(async move {
        let resolved = target.resolved;
        let name = HostName::new(&resolved.hostname, resolved.port, resolved.host_key_alias.as_deref());
        let mut attempt = Attempt { target, name, memory: Memory::default(), trusted: None };
        loop {
            match attempt.run().await {
                Ok(connection) => return Ok(connection),
                Err(setback) => attempt.overcome(setback).await?,
            }
        }
    })
}

impl From<SshError> for Failure {
    fn from(error: SshError) -> Self {
        Self { error, ssh_may_manage: false }
    }
}

struct Attempt<'a> {
    target: Target<'a>,
    name: HostName,
    memory: Memory,
    /// A key that was trusted at a prompt: the next connection is pinned to it.
    trusted: Option<PublicKey>,
}

impl Attempt<'_> {
    /// One connection.
    async fn run(&mut self) -> Result<(Connection, Place), Setback> {
        let Target { context, host, resolved, progress, .. } = self.target;
        let Way { stream, place, held, waiting_room, watch } = way::open(&self.target).await?;

        progress(SshPhase::KeyExchange);
        let witness = Witness::default();
        let exchanged = tokio::select! {
            exchanged = self.exchange_keys(stream, watch, &place, &witness) => exchanged,
            // Ended, its `ssh` cannot take the missing answer for an empty one.
            given_up = held.given_up() => return Err(match given_up {
                GivenUp::Declined => auth::declined(resolved).into(),
                GivenUp::Unattended => Setback::Unattended,
            }),
        };
        let (mut handle, cut) = match exchanged {
            Err(Setback::Failed(error)) => return Err(Setback::Failed(held.explain(error).await)),
            other => other?,
        };

        progress(SshPhase::Login);
        let watch = Stopwatch::start(context.options.limits.login);
        let memory = &mut self.memory;
        let login = Login { context, host, resolved, handle: &mut handle, witness: &witness, memory, watch };
        login.run().await?;
        self.memory.turn = None;
        Ok((Connection { handle, witness, _cut: cut, _way: held }, waiting_room))
    }

    async fn exchange_keys(
        &self,
        stream: Box<dyn Stream>,
        watch: Option<Stopwatch>,
        place: &str,
        witness: &Witness,
    ) -> Result<(Handle<Client>, Cut), Setback> {
        let Target { context, resolved, .. } = self.target;
        let known = self.known_hosts().await?;
        let config = algorithms::config(&algorithms::Wishes {
            known: known.key_types(&self.name),
            certificates: known.has_authorities(&self.name),
            keepalive: resolved.signs_of_life(),
            algorithms: resolved.algorithms.clone(),
            carries_others: self.target.carries_others,
        });
        let config = config.map_err(|error| errors::key_exchange(place, b"", &error))?;
        let judge = Judge {
            known,
            name: self.name.clone(),
            trusted: self.trusted.clone(),
            trusted_before: context.trusted_once(&self.name),
            accept_new: resolved.strict_host_keys == StrictHostKeys::AcceptNew,
            accepted: None,
        };
        let (stream, cut) = cuttable(stream);
        let watch = watch.unwrap_or_else(|| Stopwatch::start(context.options.limits.key_exchange));
        let connecting = russh::client::connect_stream(Arc::new(config), stream, Client::new(judge, witness.clone()));
        let connected = watch.run(connecting).await;
        let ruling = witness.seen().ruling.take();
        if let Some(ruling) = &ruling {
            if let Some(error) = host_key::refusal(ruling, &self.name) {
                return Err(error.into());
            }
            if let Ruling::Unknown { key, other_names } = ruling {
                let target = format!("{} ({place})", resolved.hostname);
                let (key, other_names) = (key.clone(), other_names.clone());
                return Err(Setback::UnknownKey(Box::new(Stranger { key, other_names, target })));
            }
        }
        let handle = match connected {
            Ok(Ok(handle)) => handle,
            Ok(Err(error)) => {
                let may_manage = matches!(error, russh::Error::NoCommonAlgo { .. });
                let error = errors::key_exchange(place, &cut.head(), &error);
                return Err(if may_manage { Setback::BeyondUs(error) } else { Setback::Failed(error) });
            }
            Err(_) => return Err(errors::key_exchange_timeout(place, &cut.head(), watch.limit()).into()),
        };
        match ruling {
            Some(Ruling::Accepted { new: Some(key) }) => host_key::save(resolved, &self.name, &key).await?,
            Some(Ruling::Accepted { new: None }) => {}
            // A connection whose key nobody has judged is not used.
            _ => return Err(errors::key_exchange(place, &cut.head(), &russh::Error::UnknownKey).into()),
        }
        self.target.remark(SshPhase::KeyExchange, || witness.seen().agreed.clone());
        Ok((handle, cut))
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
    async fn overcome(&mut self, setback: Setback) -> Result<(), Failure> {
        let Target { context, host, resolved, .. } = self.target;
        match setback {
            Setback::Failed(error) => Err(error.into()),
            Setback::BeyondUs(error) => Err(Failure { error, ssh_may_manage: true }),
            Setback::UnknownKey(stranger) => {
                host_key::ask(context, host, resolved, &self.name, &stranger).await?;
                self.trusted = Some(stranger.key);
                Ok(())
            }
            Setback::Locked(locked) => {
                let unlocking = context.keys.unlock(&context.broker, &locked, host);
                unlocking.await.map_err(|error| locked_error(&locked, &error))?;
                Ok(())
            }
            Setback::Turn => {
                self.memory.turn = Some(Arc::clone(&context.typing).lock_owned().await);
                Ok(())
            }
            Setback::Unattended => {
                let target = format!("{}@{}", resolved.user, resolved.hostname);
                let is_wanted = context.broker.is_wanted(host, target).await;
                if is_wanted { Ok(()) } else { Err(auth::declined(resolved).into()) }
            }
            Setback::Password => {
                let target = format!("{}@{}", resolved.user, resolved.hostname);
                let kind = PromptKind::Secret {
                    text: format!("{target}'s password:"),
                    instruction: String::new(),
                    echo: false,
                    failures: self.memory.wrong_passwords,
                };
                let key = PromptKey::Login { target, connection: context.broker.number() };
                let answer = context.broker.ask(key, host, kind).await;
                let answer = answer.map(|(_, answer)| answer).ok();
                self.memory.password = answer.filter(|answer| matches!(**answer, Answer::Secret(_)));
                if self.memory.password.is_none() {
                    return Err(auth::declined(resolved).into());
                }
                Ok(())
            }
        }
    }
}

/// The key that the server would take stayed locked.
fn locked_error(locked: &Locked, error: &UnlockError) -> SshError {
    let path = locked.path.display();
    let (kind, text) = match error {
        UnlockError::Unanswered(_) => {
            (SshErrorKind::IdentityFile, format!("{path} is locked by a passphrase, and nobody could be asked"))
        }
        UnlockError::Declined => (SshErrorKind::Declined, format!("no passphrase was given for {path}")),
        UnlockError::Wrong => (SshErrorKind::IdentityFile, format!("three passphrases for {path} were wrong")),
        UnlockError::File(KeyFileError::Missing) => {
            (SshErrorKind::IdentityFile, format!("{path} has vanished while its passphrase was typed"))
        }
        UnlockError::File(KeyFileError::Unusable { reason, .. }) => {
            (SshErrorKind::IdentityFile, format!("{path} {reason}"))
        }
    };
    SshError::new(kind, text).with_hint(format!("ssh-add {}", shell_word(&locked.path.to_string_lossy())))
}
