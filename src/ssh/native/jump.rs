//! Connections to jump hosts: one each, shared by all hosts behind it, and kept while the process runs.
//!
//! A one-time code typed at a jump host opens every host behind it. A login that a jump host refused is not tried again
//! for each host behind it: all of them are told of the one failure, and the next try is the one that somebody asks for
//! after having been told.

use super::connect::{self, Failure, Target};
use super::exec::Connection;
use crate::hosts::{Hop, HostConfig};
use crate::ssh::resolve::{Proxy, Resolved, resolve};
use crate::ssh::system;
use crate::ssh::transport::{SshError, SshErrorKind};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// A failure that needs nobody, such as a network's, is told to those who come within this time.
const FRESH: Duration = Duration::from_secs(1);

/// The jump hosts of this process.
#[derive(Debug, Default)]
pub(in crate::ssh) struct Bastions {
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

/// One way to a jump host. Whoever comes first connects; the others wait for what becomes of it.
#[derive(Debug, Default)]
struct Slot {
    outcome: OnceCell<Result<Bastion, Failure>>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// The hosts that know of the failure.
    hosts: HashSet<String>,
    since: Option<Instant>,
}

/// What leads on from a jump host.
#[derive(Debug, Clone)]
pub(super) enum Bastion {
    /// A connection of ours.
    Connection(Arc<Connection>),
    /// The `ssh` program with these arguments: it has a connection already, or it alone can make one.
    Program(Vec<String>),
}

impl Bastions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot to wait for: the one there is, unless it is of no more use to this host.
    fn slot(&self, key: &str, host: &str) -> Arc<Slot> {
        let mut slots = self.lock();
        match slots.get(key) {
            Some(slot) if slot.is_of_use_to(host) => Arc::clone(slot),
            _ => {
                let slot = Arc::<Slot>::default();
                slots.insert(key.to_owned(), Arc::clone(&slot));
                slot
            }
        }
    }
}

impl Slot {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_of_use_to(&self, host: &str) -> bool {
        match self.outcome.get() {
            None => true,
            Some(Ok(Bastion::Connection(connection))) => !connection.handle.is_closed(),
            // Whether a master still runs is looked at each time.
            Some(Ok(Bastion::Program(_))) => false,
            Some(Err(failure)) => {
                let told = self.told();
                let is_fresh = told.since.is_some_and(|since| since.elapsed() < FRESH);
                !told.hosts.contains(host) && (is_fresh || needs_a_person(failure.error.kind))
            }
        }
    }
}

/// Whether the next try can only go better after somebody has done something.
fn needs_a_person(kind: SshErrorKind) -> bool {
    match kind {
        SshErrorKind::HostKeyUnknown
        | SshErrorKind::HostKeyChanged
        | SshErrorKind::HostKeyRevoked
        | SshErrorKind::KnownHosts
        | SshErrorKind::Authentication
        | SshErrorKind::IdentityFile
        | SshErrorKind::Declined => true,
        SshErrorKind::Config
        | SshErrorKind::Dns
        | SshErrorKind::Refused
        | SshErrorKind::Timeout(_)
        | SshErrorKind::Network
        | SshErrorKind::Busy
        | SshErrorKind::RateLimited
        | SshErrorKind::KeyExchange
        | SshErrorKind::Refusal
        | SshErrorKind::Unsupported => false,
    }
}

/// The last of these jump hosts, reached through the others.
pub(super) async fn bastion(target: &Target<'_>, hops: &[Hop]) -> Result<Bastion, Failure> {
    let key = key(target.resolved, hops);
    if target.path.contains(&key) {
        let mut circle: Vec<&str> = target.path.iter().map(|key| names(key)).collect();
        circle.push(names(&key));
        let message = format!("the jump hosts lead in a circle: {}", circle.join(" through "));
        let error = SshError::new(SshErrorKind::Config, message).with_hint("ProxyJump in ~/.ssh/config");
        return Err(error.naming_jump_host().into());
    }
    let slot = target.context.bastions.slot(&key, target.host);
    let outcome = slot.outcome.get_or_init(|| async {
        let outcome = connect(target, hops, &key).await;
        slot.told().since = Some(Instant::now());
        outcome
    });
    let outcome = outcome.await.clone();
    if outcome.is_err() {
        slot.told().hosts.insert(target.host.to_owned());
    }
    outcome
}

/// Gives up a connection that proved dead, unless another one has taken its place by now.
pub(super) fn forget(target: &Target<'_>, hops: &[Hop], dead: &Arc<Connection>) {
    let key = key(target.resolved, hops);
    let mut slots = target.context.bastions.lock();
    let is_it = slots
        .get(&key)
        .and_then(|slot| slot.outcome.get())
        .is_some_and(|outcome| matches!(outcome, Ok(Bastion::Connection(connection)) if Arc::ptr_eq(connection, dead)));
    if is_it {
        slots.remove(&key);
    }
}

async fn connect(target: &Target<'_>, hops: &[Hop], key: &str) -> Result<Bastion, Failure> {
    let Some((last, before)) = hops.split_last() else {
        return Err(SshError::new(SshErrorKind::Config, "there is no jump host to go through").into());
    };
    let mut host = HostConfig::named(last.to_string());
    host.address = Some(last.host.clone());
    host.user.clone_from(&last.user);
    host.port = last.port;
    host.ssh_config.clone_from(&target.resolved.config);
    if !before.is_empty() {
        host.proxy_jump = Some(before.to_vec());
    }
    let context = target.context;
    let told = |failure: Failure| named(last, failure);
    let resolved = resolve(context, &host).await.map_err(|error| told(error.into()))?;
    if resolved.ssh_program && goes_by_ssh(&resolved).await {
        return Ok(Bastion::Program(system::arguments(context, &host, &resolved)));
    }
    let mut path = target.path.to_vec();
    path.push(key.to_owned());
    let name = last.to_string();
    let hop =
        Target { host: &name, resolved: &resolved, path: &path, carries_others: true, progress: &|_| {}, ..*target };
    let (connection, _) = connect::log_in(hop).await.map_err(told)?;
    Ok(Bastion::Connection(Arc::new(connection)))
}

/// Whether a running `ssh` serves the jump host already, or only `ssh` can follow its configuration.
async fn goes_by_ssh(resolved: &Resolved) -> bool {
    super::beyond_us(resolved).is_some() || resolved.has_live_master().await
}

/// Adds the jump host to its failure. A failure of an earlier jump host keeps that one.
fn named(hop: &Hop, mut failure: Failure) -> Failure {
    if !failure.error.names_jump_host {
        failure.error.message = format!("the jump host {hop}: {}", failure.error.message);
        failure.error.names_jump_host = true;
    }
    failure
}

/// What tells one way to a jump host from another.
fn key(resolved: &Resolved, hops: &[Hop]) -> String {
    let config = resolved.config.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    format!("{}\n{config}", Proxy::Jump(hops.to_vec()))
}

/// The jump hosts of a key.
fn names(key: &str) -> &str {
    key.split('\n').next().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: SshErrorKind) -> Result<Bastion, Failure> {
        Err(SshError::new(kind, "no").into())
    }

    async fn settle(slot: &Slot, outcome: Result<Bastion, Failure>, host: &str) {
        slot.told().since = Some(Instant::now());
        slot.outcome.get_or_init(|| async { outcome }).await.clone().unwrap_err();
        slot.told().hosts.insert(host.to_owned());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_login_is_told_to_each_host_once_and_tried_again_by_whom_knows_of_it() {
        let bastions = Bastions::default();
        let first = bastions.slot("gate", "gpu01");
        assert!(Arc::ptr_eq(&first, &bastions.slot("gate", "gpu02")), "who comes meanwhile waits for the same try");
        settle(&first, failed(SshErrorKind::Authentication), "gpu01").await;
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(Arc::ptr_eq(&first, &bastions.slot("gate", "gpu02")), "the news of the refusal is no second try");
        assert!(!Arc::ptr_eq(&first, &bastions.slot("gate", "gpu01")), "somebody asked for another try");
    }

    #[test]
    fn a_failure_names_the_jump_host_where_it_happened_whatever_its_message_says() {
        let hop = |host: &str| Hop { user: None, host: host.to_owned(), port: None };
        let failure = SshError::new(SshErrorKind::Refused, "the jump host looks down");
        let inner = named(&hop("inner"), failure.into());
        assert_eq!(inner.error.message, "the jump host inner: the jump host looks down");
        assert_eq!(named(&hop("outer"), inner.clone()).error, inner.error);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_failure_is_soon_tried_again() {
        let bastions = Bastions::default();
        let first = bastions.slot("gate", "gpu01");
        settle(&first, failed(SshErrorKind::Refused), "gpu01").await;
        assert!(Arc::ptr_eq(&first, &bastions.slot("gate", "gpu02")));
        tokio::time::advance(FRESH).await;
        assert!(!Arc::ptr_eq(&first, &bastions.slot("gate", "gpu02")));
    }
}
