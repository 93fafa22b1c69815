//! Time limits of a connection, and the limit on unauthenticated connections.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The maximum number of unauthenticated connections to one address. From the tenth on, sshd drops connections at random
/// (`MaxStartups 10:30:100`): of 64 hosts behind one address, a third would be lost.
const MAX_UNAUTHENTICATED: usize = 8;

/// The time limits of the phases of one connection. Time spent in prompts does not count.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Name resolution.
    pub name: Duration,
    /// Opening the TCP connection.
    pub tcp: Duration,
    /// Key exchange.
    pub key_exchange: Duration,
    /// Authentication.
    pub login: Duration,
    /// Opening the channel and starting the command.
    pub exec: Duration,
    /// How long a connection stays open for an answer of the user. sshd closes an unfinished login after 120 s
    /// (`LoginGraceTime`), and a one-time code that is sent after that is lost.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            name: Duration::from_secs(5),
            tcp: Duration::from_secs(5),
            key_exchange: Duration::from_secs(10),
            login: Duration::from_secs(20),
            exec: Duration::from_secs(10),
            answer: Duration::from_secs(100),
        }
    }
}

/// The time limit of one phase. It pauses while a [`PauseGuard`] exists, that is, while the user answers a prompt.
#[derive(Debug, Clone)]
pub(in crate::ssh) struct PausableTimeout {
    limit: Duration,
    started: Instant,
    paused: Arc<Mutex<PauseState>>,
}

#[derive(Debug, Default)]
struct PauseState {
    total: Duration,
    since: Option<Instant>,
    holders: u32,
}

/// The phase took longer than its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssh) struct Expired;

impl PausableTimeout {
    pub(in crate::ssh) fn start(limit: Duration) -> Self {
        Self { limit, started: Instant::now(), paused: Arc::default() }
    }

    pub(in crate::ssh) fn limit(&self) -> Duration {
        self.limit
    }

    /// Awaits `future` until the limit.
    pub(in crate::ssh) async fn run<F: Future>(&self, future: F) -> Result<F::Output, Expired> {
        let mut future = std::pin::pin!(future);
        loop {
            let deadline = self.deadline();
            if let Ok(output) = tokio::time::timeout_at(deadline, &mut future).await {
                return Ok(output);
            }
            // A pause may have moved the deadline.
            if self.deadline() <= Instant::now() {
                return Err(Expired);
            }
        }
    }

    /// Pauses the limit until the guard is dropped.
    pub(in crate::ssh) fn pause(&self) -> PauseGuard {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.holders += 1;
        paused.since.get_or_insert_with(Instant::now);
        PauseGuard { paused: Arc::clone(&self.paused) }
    }

    /// The deadline; during a pause, a full limit from now.
    fn deadline(&self) -> Instant {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        match paused.since {
            Some(_) => Instant::now() + self.limit,
            None => self.started + self.limit + paused.total,
        }
    }
}

/// Pauses a [`PausableTimeout`] until dropped.
#[derive(Debug)]
pub(in crate::ssh) struct PauseGuard {
    paused: Arc<Mutex<PauseState>>,
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.holders -= 1;
        if paused.holders == 0
            && let Some(since) = paused.since.take()
        {
            paused.total += since.elapsed();
        }
    }
}

/// Limits the unauthenticated connections per address. A semaphore exists while a slot is held or awaited.
#[derive(Debug, Default)]
pub(in crate::ssh) struct PreauthLimiter {
    addresses: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Permits one unauthenticated connection to an address, until dropped.
#[derive(Debug)]
pub(in crate::ssh) struct PreauthSlot {
    _permit: Option<OwnedSemaphorePermit>,
}

impl PreauthLimiter {
    /// Waits for a slot at `address`, in order of arrival.
    pub(in crate::ssh) async fn acquire(&self, address: &str) -> PreauthSlot {
        let semaphore = {
            let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
            // A semaphore that only the map refers to is unused.
            addresses.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
            Arc::clone(
                addresses.entry(address.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(MAX_UNAUTHENTICATED))),
            )
        };
        // Cannot fail: the semaphore is never closed.
        PreauthSlot { _permit: semaphore.acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::future::pending;

    #[tokio::test]
    async fn a_pause_does_not_count_towards_the_limit() {
        let time_limit = PausableTimeout::start(Duration::from_millis(20));
        let pause = time_limit.pause();
        let slow = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            drop(pause);
            7
        };
        assert_eq!(time_limit.run(slow).await, Ok(7));
        assert_eq!(time_limit.run(pending::<()>()).await, Err(Expired));
    }

    #[tokio::test]
    async fn the_ninth_connection_to_an_address_waits() {
        let limiter = PreauthLimiter::default();
        let mut slots = Vec::new();
        for _ in 0..MAX_UNAUTHENTICATED {
            slots.push(limiter.acquire("10.0.0.1:22").now_or_never().unwrap());
        }
        assert!(limiter.acquire("10.0.0.1:22").now_or_never().is_none());
        assert!(limiter.acquire("10.0.0.2:22").now_or_never().is_some());
        slots.pop();
        assert!(limiter.acquire("10.0.0.1:22").now_or_never().is_some());
    }

    #[tokio::test]
    async fn unused_semaphores_are_removed() {
        let limiter = PreauthLimiter::default();
        drop(limiter.acquire("10.0.0.1:22").await);
        let _slot = limiter.acquire("10.0.0.2:22").await;
        assert_eq!(limiter.addresses.lock().unwrap().len(), 1);
    }
}
