//! Connections to jump hosts: one per jump host, shared by all hosts behind it, kept while the process runs.
//!
//! A one-time code that the user types for a jump host opens every host behind it. A login that a jump host refused is
//! not repeated for each of these hosts: each of them reports the same failure once, and a host that asks again after
//! that causes the next attempt.

use super::connection::{Connection, NativeError};
use crate::ssh::transport::SshErrorKind;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// How long hosts share a failure that needs no user action, such as a network failure.
const FAILURE_SHARED_FOR: Duration = Duration::from_secs(1);

/// The jump host connections of this process. A key names the jump host and the route to it.
#[derive(Debug, Default)]
pub(in crate::ssh) struct JumpHostPool {
    entries: Mutex<HashMap<String, Arc<PoolEntry>>>,
}

/// One attempt to connect to a jump host. The first host connects, the others wait for the outcome.
#[derive(Debug, Default)]
struct PoolEntry {
    outcome: OnceCell<Result<JumpConnection, NativeError>>,
    failure_reports: Mutex<FailureReports>,
}

#[derive(Debug, Default)]
struct FailureReports {
    /// The hosts that have reported the failure.
    hosts: HashSet<String>,
    since: Option<Instant>,
}

/// How to reach the hosts behind a jump host.
#[derive(Debug, Clone)]
pub(super) enum JumpConnection {
    /// Through a channel of this connection.
    Connection(Arc<Connection>),
    /// Through `ssh -W` with these arguments: a master connection exists, or only `ssh` can connect.
    SshProgram(Vec<String>),
}

impl JumpHostPool {
    /// Returns the connection for `key`, or runs `connect` if there is none that `host` can use. Concurrent callers
    /// share one attempt.
    pub(super) async fn get_or_connect<F>(
        &self,
        key: &str,
        host: &str,
        connect: impl FnOnce() -> F,
    ) -> Result<JumpConnection, NativeError>
    where
        F: Future<Output = Result<JumpConnection, NativeError>>,
    {
        let entry = self.entry(key, host);
        let outcome = entry.outcome.get_or_init(|| async {
            let outcome = connect().await;
            entry.failure_reports().since = Some(Instant::now());
            outcome
        });
        let outcome = outcome.await.clone();
        if outcome.is_err() {
            entry.failure_reports().hosts.insert(host.to_owned());
        }
        outcome
    }

    /// Removes a connection that proved dead, unless another one has replaced it.
    pub(super) fn discard(&self, key: &str, dead: &Arc<Connection>) {
        let mut entries = self.lock();
        let is_it = entries.get(key).and_then(|entry| entry.outcome.get()).is_some_and(
            |outcome| matches!(outcome, Ok(JumpConnection::Connection(connection)) if Arc::ptr_eq(connection, dead)),
        );
        if is_it {
            entries.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<PoolEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The existing entry if `host` can use it, else a new one.
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
            // Check each time whether a master connection still runs.
            Some(Ok(JumpConnection::SshProgram(_))) => false,
            Some(Err(failure)) => {
                let reports = self.failure_reports();
                let is_fresh = reports.since.is_some_and(|since| since.elapsed() < FAILURE_SHARED_FOR);
                !reports.hosts.contains(host) && (is_fresh || needs_user_action(failure.error.kind))
            }
        }
    }
}

/// Whether another attempt is useless until the user has done something.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::transport::SshError;
    use std::cell::Cell;

    /// Counts the attempts to connect; each of them fails.
    struct Failing {
        pool: JumpHostPool,
        kind: SshErrorKind,
        attempts: Cell<u32>,
    }

    impl Failing {
        fn new(kind: SshErrorKind) -> Self {
            Self { pool: JumpHostPool::default(), kind, attempts: Cell::new(0) }
        }

        /// The number of attempts after `host` asked for a connection.
        async fn attempts_after(&self, host: &str) -> u32 {
            let connect = || async {
                self.attempts.set(self.attempts.get() + 1);
                // Gives the others time to join this attempt.
                tokio::task::yield_now().await;
                Err(SshError::new(self.kind, "no").into())
            };
            let error = self.pool.get_or_connect("gate", host, connect).await.unwrap_err();
            assert_eq!(error.error.kind, self.kind);
            self.attempts.get()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_host_reports_a_refused_login_once_and_its_next_request_connects_again() {
        let gate = Failing::new(SshErrorKind::Authentication);
        assert_eq!(tokio::join!(gate.attempts_after("gpu01"), gate.attempts_after("gpu02")), (1, 1));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(gate.attempts_after("gpu03").await, 1);
        assert_eq!(gate.attempts_after("gpu01").await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_share_a_network_failure_for_a_second() {
        let gate = Failing::new(SshErrorKind::ConnectionRefused);
        assert_eq!(gate.attempts_after("gpu01").await, 1);
        assert_eq!(gate.attempts_after("gpu02").await, 1);
        tokio::time::advance(FAILURE_SHARED_FOR).await;
        assert_eq!(gate.attempts_after("gpu03").await, 2);
    }
}
