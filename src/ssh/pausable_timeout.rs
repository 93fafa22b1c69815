//! Limits that do not run while a person is asked.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What one phase may take. Time during which somebody holds a [`PauseGuard`] is not counted.
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

    /// Awaits `future` for as long as the phase has left.
    pub(in crate::ssh) async fn run<F: Future>(&self, future: F) -> Result<F::Output, Expired> {
        let mut future = std::pin::pin!(future);
        loop {
            let deadline = self.deadline();
            if let Ok(output) = tokio::time::timeout_at(deadline, &mut future).await {
                return Ok(output);
            }
            // A pause, over or not, has moved the deadline; it is looked at anew.
            if self.deadline() <= Instant::now() {
                return Err(Expired);
            }
        }
    }

    /// Stops the watch until the guard is dropped.
    pub(in crate::ssh) fn pause(&self) -> PauseGuard {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.holders += 1;
        paused.since.get_or_insert_with(Instant::now);
        PauseGuard { paused: Arc::clone(&self.paused) }
    }

    /// When the limit is over as things stand: during a pause, a full limit from now.
    fn deadline(&self) -> Instant {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        match paused.since {
            Some(_) => Instant::now() + self.limit,
            None => self.started + self.limit + paused.total,
        }
    }
}

/// While it lives, the watch stands still.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[tokio::test]
    async fn it_expires_and_a_pause_does_not_count() {
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
}
