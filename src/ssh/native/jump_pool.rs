//! Connections to jump hosts: one each, shared by all hosts behind it, and kept while the process runs.
//!
//! A one-time code typed at a jump host opens every host behind it. A login that a jump host refused is not tried again
//! for each host behind it: all of them are told of the one failure, and the next try is the one that somebody asks for
//! after having been told.

use super::connect::{self, ConnectTarget, NativeError};
use super::exec::Connection;
use crate::config::{Hop, HostConfig};
use crate::ssh::openssh;
use crate::ssh::resolve::{Proxy, Resolved, resolve};
use crate::ssh::transport::{SshError, SshErrorKind};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// A failure that needs nobody, such as a network's, is told to those who come within this time.
const FAILURE_SHARED_FOR: Duration = Duration::from_secs(1);

/// The jump hosts of this process.
#[derive(Debug, Default)]
pub(in crate::ssh) struct JumpHostPool {
    entries: Mutex<HashMap<String, Arc<PoolEntry>>>,
}

/// One way to a jump host. Whoever comes first connects; the others wait for what becomes of it.
#[derive(Debug, Default)]
struct PoolEntry {
    outcome: OnceCell<Result<JumpConnection, NativeError>>,
    failure_reports: Mutex<FailureReports>,
}

#[derive(Debug, Default)]
struct FailureReports {
    /// The hosts that know of the failure.
    hosts: HashSet<String>,
    since: Option<Instant>,
}

/// What leads on from a jump host.
#[derive(Debug, Clone)]
pub(super) enum JumpConnection {
    /// A connection of ours.
    Connection(Arc<Connection>),
    /// The `ssh` program with these arguments: it has a connection already, or it alone can make one.
    SshProgram(Vec<String>),
}

impl JumpHostPool {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<PoolEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot to wait for: the one there is, unless it is of no more use to this host.
    fn entry(&self, key: &str, host: &str) -> Arc<PoolEntry> {
        let mut entries = self.lock();
        match entries.get(key) {
            Some(entry) if entry.is_usable_by(host) => Arc::clone(entry),
            _ => {
                let entry = Arc::<PoolEntry>::default();
                entries.insert(key.to_owned(), Arc::clone(&entry));
                entry
            }
        }
    }
}

impl PoolEntry {
    fn failure_reports(&self) -> MutexGuard<'_, FailureReports> {
        self.failure_reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_usable_by(&self, host: &str) -> bool {
        match self.outcome.get() {
            None => true,
            Some(Ok(JumpConnection::Connection(connection))) => !connection.handle.is_closed(),
            // Whether a master still runs is looked at each time.
            Some(Ok(JumpConnection::SshProgram(_))) => false,
            Some(Err(failure)) => {
                let failure_reports = self.failure_reports();
                let is_fresh = failure_reports.since.is_some_and(|since| since.elapsed() < FAILURE_SHARED_FOR);
                !failure_reports.hosts.contains(host) && (is_fresh || needs_user_action(failure.error.kind))
            }
        }
    }
}

/// Whether the next try can only go better after somebody has done something.
fn needs_user_action(kind: SshErrorKind) -> bool {
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
        | SshErrorKind::ConnectionRefused
        | SshErrorKind::Timeout(_)
        | SshErrorKind::Network
        | SshErrorKind::Busy
        | SshErrorKind::RateLimited
        | SshErrorKind::KeyExchange
        | SshErrorKind::SessionRefused
        | SshErrorKind::Unsupported => false,
    }
}

/// The last of these jump hosts, reached through the others.
pub(super) async fn jump_connection(target: &ConnectTarget<'_>, hops: &[Hop]) -> Result<JumpConnection, NativeError> {
    let key = key(target.resolved, hops);
    if target.jump_path.contains(&key) {
        let mut circle: Vec<&str> = target.jump_path.iter().map(|key| names(key)).collect();
        circle.push(names(&key));
        let message = format!("the jump hosts lead in a circle: {}", circle.join(" through "));
        let error = SshError::new(SshErrorKind::Config, message).with_hint("ProxyJump in ~/.ssh/config");
        return Err(error.naming_jump_host().into());
    }
    let entry = target.context.jump_hosts.entry(&key, target.host);
    let outcome = entry.outcome.get_or_init(|| async {
        let outcome = connect(target, hops, &key).await;
        entry.failure_reports().since = Some(Instant::now());
        outcome
    });
    let outcome = outcome.await.clone();
    if outcome.is_err() {
        entry.failure_reports().hosts.insert(target.host.to_owned());
    }
    outcome
}

/// Gives up a connection that proved dead, unless another one has taken its place by now.
pub(super) fn discard(target: &ConnectTarget<'_>, hops: &[Hop], dead: &Arc<Connection>) {
    let key = key(target.resolved, hops);
    let mut entries = target.context.jump_hosts.lock();
    let is_it = entries.get(&key).and_then(|entry| entry.outcome.get()).is_some_and(
        |outcome| matches!(outcome, Ok(JumpConnection::Connection(connection)) if Arc::ptr_eq(connection, dead)),
    );
    if is_it {
        entries.remove(&key);
    }
}

async fn connect(target: &ConnectTarget<'_>, hops: &[Hop], key: &str) -> Result<JumpConnection, NativeError> {
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
    let name_hop = |failure: NativeError| with_hop_name(last, failure);
    let resolved = resolve(context, &host).await.map_err(|error| name_hop(error.into()))?;
    if resolved.ssh_program && needs_ssh_program(&resolved).await {
        return Ok(JumpConnection::SshProgram(openssh::arguments(context, &host, &resolved)));
    }
    let mut path = target.jump_path.to_vec();
    path.push(key.to_owned());
    let name = last.to_string();
    let hop = ConnectTarget {
        host: &name,
        resolved: &resolved,
        jump_path: &path,
        carries_others: true,
        progress: &|_| {},
        ..*target
    };
    let (connection, _) = connect::log_in(hop).await.map_err(name_hop)?;
    Ok(JumpConnection::Connection(Arc::new(connection)))
}

/// Whether a running `ssh` serves the jump host already, or only `ssh` can follow its configuration.
async fn needs_ssh_program(resolved: &Resolved) -> bool {
    super::unsupported_setting(resolved).is_some() || resolved.has_live_master().await
}

/// Adds the jump host to its failure. A failure of an earlier jump host keeps that one.
fn with_hop_name(hop: &Hop, mut failure: NativeError) -> NativeError {
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

    fn failed(kind: SshErrorKind) -> Result<JumpConnection, NativeError> {
        Err(SshError::new(kind, "no").into())
    }

    async fn finish(entry: &PoolEntry, outcome: Result<JumpConnection, NativeError>, host: &str) {
        entry.failure_reports().since = Some(Instant::now());
        entry.outcome.get_or_init(|| async { outcome }).await.clone().unwrap_err();
        entry.failure_reports().hosts.insert(host.to_owned());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_login_is_told_to_each_host_once_and_tried_again_by_whom_knows_of_it() {
        let jump_hosts = JumpHostPool::default();
        let first = jump_hosts.entry("gate", "gpu01");
        assert!(Arc::ptr_eq(&first, &jump_hosts.entry("gate", "gpu02")), "who comes meanwhile waits for the same try");
        finish(&first, failed(SshErrorKind::Authentication), "gpu01").await;
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(Arc::ptr_eq(&first, &jump_hosts.entry("gate", "gpu02")), "the news of the refusal is no second try");
        assert!(!Arc::ptr_eq(&first, &jump_hosts.entry("gate", "gpu01")), "somebody asked for another try");
    }

    #[test]
    fn a_failure_names_the_jump_host_where_it_happened_whatever_its_message_says() {
        let hop = |host: &str| Hop { user: None, host: host.to_owned(), port: None };
        let failure = SshError::new(SshErrorKind::ConnectionRefused, "the jump host looks down");
        let inner = with_hop_name(&hop("inner"), failure.into());
        assert_eq!(inner.error.message, "the jump host inner: the jump host looks down");
        assert_eq!(with_hop_name(&hop("outer"), inner.clone()).error, inner.error);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_failure_is_soon_tried_again() {
        let jump_hosts = JumpHostPool::default();
        let first = jump_hosts.entry("gate", "gpu01");
        finish(&first, failed(SshErrorKind::ConnectionRefused), "gpu01").await;
        assert!(Arc::ptr_eq(&first, &jump_hosts.entry("gate", "gpu02")));
        tokio::time::advance(FAILURE_SHARED_FOR).await;
        assert!(!Arc::ptr_eq(&first, &jump_hosts.entry("gate", "gpu02")));
    }
}
