//! One host, from its name to a running command.

use super::auth::{self, Login};
use super::dial::{self, place};
use super::exec::{self, Connection};
use super::handler::{Client, Witness};
use super::host_key::{self, Judge, Ruling};
use super::memory::{Memory, Setback, Stranger};
use super::stopwatch::Stopwatch;
use super::stream::{Cut, cuttable};
use super::{algorithms, errors};
use crate::ssh::credentials::{KeyFileError, Locked, PromptKey, UnlockError};
use crate::ssh::known_hosts::{HostName, KnownHosts};
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::resolve::{Resolved, StrictHostKeys};
use crate::ssh::text::shell_word;
use crate::ssh::transport::{Channel, SshError, SshErrorKind, SshPhase};
use crate::ssh::{Context, gate};
use futures::FutureExt;
use russh::client::Handle;
use russh::keys::PublicKey;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Why the built-in client gave up.
#[derive(Debug)]
pub(in crate::ssh) struct Failure {
    pub(in crate::ssh) error: SshError,
    /// Whether the `ssh` program may manage what we cannot.
    pub(in crate::ssh) ssh_may_manage: bool,
}

/// Connects, logs in and starts `command`; connects again after each question to a person.
pub(in crate::ssh) async fn open(
    context: &Context,
    host: &str,
    resolved: &Resolved,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Channel, Failure> {
    let name = HostName::new(&resolved.hostname, resolved.port, resolved.host_key_alias.as_deref());
    let mut attempt = Attempt { context, host, resolved, name, memory: Memory::default(), trusted: None, progress };
    loop {
        match attempt.run(command).await {
            Ok(channel) => return Ok(channel),
            Err(setback) => attempt.overcome(setback).await?,
        }
    }
}

impl From<SshError> for Failure {
    fn from(error: SshError) -> Self {
        Self { error, ssh_may_manage: false }
    }
}

struct Attempt<'a> {
    context: &'a Context,
    host: &'a str,
    resolved: &'a Resolved,
    name: HostName,
    memory: Memory,
    /// A key that was trusted at a prompt: the next connection is pinned to it.
    trusted: Option<PublicKey>,
    progress: &'a (dyn Fn(SshPhase) + Send + Sync),
}

impl Attempt<'_> {
    /// One connection.
    async fn run(&mut self, command: &str) -> Result<Channel, Setback> {
        let limits = self.context.options.limits;
        (self.progress)(SshPhase::Name);
        let addresses = dial::look_up(self.resolved, limits.name).await?;
        let waiting_room = self.enter(&addresses).await;

        (self.progress)(SshPhase::Tcp);
        let limit = self.resolved.connect_timeout.unwrap_or(limits.tcp);
        let (stream, address) = dial::connect(&addresses, limit).await?;

        (self.progress)(SshPhase::KeyExchange);
        let witness = Witness::default();
        let (mut handle, cut) = self.exchange_keys(stream, address, &witness).await?;

        (self.progress)(SshPhase::Login);
        let login = Login {
            context: self.context,
            host: self.host,
            resolved: self.resolved,
            handle: &mut handle,
            witness: &witness,
            memory: &mut self.memory,
            watch: Stopwatch::start(limits.login),
        };
        login.run().await?;
        drop(waiting_room);

        (self.progress)(SshPhase::Exec);
        Ok(exec::start(Connection { handle, witness, _cut: cut }, command, limits.exec).await?)
    }

    /// A place among the unauthenticated connections to this address.
    async fn enter(&self, addresses: &[SocketAddr]) -> gate::Place {
        let address = addresses.first().map(ToString::to_string).unwrap_or_default();
        let mut entering = std::pin::pin!(self.context.gate.enter(&address));
        if let Some(place) = entering.as_mut().now_or_never() {
            return place;
        }
        (self.progress)(SshPhase::Queued);
        entering.await
    }

    async fn exchange_keys(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        witness: &Witness,
    ) -> Result<(Handle<Client>, Cut), Setback> {
        let known = self.known_hosts().await?;
        let config = algorithms::config(&known.key_types(&self.name));
        let config = config.map_err(|error| errors::key_exchange(address, b"", &error))?;
        let judge = Judge {
            known,
            name: self.name.clone(),
            trusted: self.trusted.clone(),
            trusted_before: self.context.trusted_once(&self.name),
            accept_new: self.resolved.strict_host_keys == StrictHostKeys::AcceptNew,
            accepted: None,
        };
        let (stream, cut) = cuttable(stream);
        let limit = self.context.options.limits.key_exchange;
        let connecting = russh::client::connect_stream(Arc::new(config), stream, Client::new(judge, witness.clone()));
        let connected = tokio::time::timeout(limit, connecting).await;
        let ruling = witness.seen().ruling.take();
        if let Some(ruling) = &ruling {
            if let Some(error) = host_key::refusal(ruling, &self.name) {
                return Err(error.into());
            }
            if let Ruling::Unknown { key, other_names } = ruling {
                let target = format!("{} ({})", self.resolved.hostname, place(address));
                let (key, other_names) = (key.clone(), other_names.clone());
                return Err(Setback::UnknownKey(Box::new(Stranger { key, other_names, target })));
            }
        }
        let handle = match connected {
            Ok(Ok(handle)) => handle,
            Ok(Err(error)) => {
                let may_manage = matches!(error, russh::Error::NoCommonAlgo { .. });
                let error = errors::key_exchange(address, &cut.head(), &error);
                return Err(if may_manage { Setback::BeyondUs(error) } else { Setback::Failed(error) });
            }
            Err(_) => return Err(errors::key_exchange_timeout(address, &cut.head(), limit).into()),
        };
        match ruling {
            Some(Ruling::Accepted { new: Some(key) }) => host_key::save(self.resolved, &self.name, &key).await?,
            Some(Ruling::Accepted { new: None }) => {}
            // A connection whose key nobody has judged is not used.
            _ => return Err(errors::key_exchange(address, &cut.head(), &russh::Error::UnknownKey).into()),
        }
        Ok((handle, cut))
    }

    /// The files as they are now: another host may have added a key a moment ago.
    async fn known_hosts(&self) -> Result<KnownHosts, SshError> {
        let files: Vec<_> =
            self.resolved.user_known_hosts.iter().chain(&self.resolved.global_known_hosts).cloned().collect();
        let reading = tokio::task::spawn_blocking(move || KnownHosts::read(&files));
        reading
            .await
            .unwrap_or_else(|_| Err(SshError::new(SshErrorKind::KnownHosts, "reading the known host keys failed")))
    }

    /// Does what lets the next connection come further, or says why there is none.
    async fn overcome(&mut self, setback: Setback) -> Result<(), Failure> {
        match setback {
            Setback::Failed(error) => Err(error.into()),
            Setback::BeyondUs(error) => Err(Failure { error, ssh_may_manage: true }),
            Setback::UnknownKey(stranger) => {
                host_key::ask(self.context, self.host, self.resolved, &self.name, &stranger).await?;
                self.trusted = Some(stranger.key);
                Ok(())
            }
            Setback::Locked(locked) => {
                let unlocking = self.context.keys.unlock(&self.context.broker, &locked, self.host);
                unlocking.await.map_err(|error| locked_error(&locked, &error))?;
                Ok(())
            }
            Setback::Password => {
                let target = format!("{}@{}", self.resolved.user, self.resolved.hostname);
                let kind = PromptKind::Secret {
                    text: format!("{target}'s password:"),
                    instruction: String::new(),
                    echo: false,
                    failures: self.memory.wrong_passwords,
                };
                let key = PromptKey::Login { target, connection: self.context.broker.number() };
                let answer = self.context.broker.ask(key, self.host, kind).await;
                let answer = answer.map(|(_, answer)| answer).ok();
                self.memory.password = answer.filter(|answer| matches!(**answer, Answer::Secret(_)));
                if self.memory.password.is_none() {
                    return Err(auth::declined(self.resolved).into());
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
