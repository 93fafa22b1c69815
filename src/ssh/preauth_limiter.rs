//! At most eight unauthenticated connections to one sshd at a time.
//!
//! sshd drops connections at random from the tenth unauthenticated one on (`MaxStartups 10:30:100`): of 64 hosts behind
//! one address a third would be lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most unauthenticated connections to one address.
const MAX_UNAUTHENTICATED: usize = 8;

/// One semaphore an address, kept while somebody holds or awaits a place.
#[derive(Debug, Default)]
pub(super) struct PreauthLimiter {
    addresses: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A place at an address. Dropping it lets the next one in.
#[derive(Debug)]
pub(super) struct PreauthSlot {
    _permit: Option<OwnedSemaphorePermit>,
}

impl PreauthLimiter {
    /// Waits for a place at `address`, first come, first served.
    pub(super) async fn acquire(&self, address: &str) -> PreauthSlot {
        let semaphore = {
            let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody holds a place where only the map holds the semaphore.
            addresses.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
            Arc::clone(
                addresses.entry(address.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(MAX_UNAUTHENTICATED))),
            )
        };
        // A permit holds its semaphore; it is never closed, so an error cannot come.
        PreauthSlot { _permit: semaphore.acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn the_ninth_waits_for_the_first_to_leave_and_other_addresses_do_not() {
        let gate = PreauthLimiter::default();
        let mut inside = Vec::new();
        for _ in 0..MAX_UNAUTHENTICATED {
            inside.push(gate.acquire("10.0.0.1:22").now_or_never().unwrap());
        }
        assert!(gate.acquire("10.0.0.1:22").now_or_never().is_none());
        assert!(gate.acquire("10.0.0.2:22").now_or_never().is_some());
        inside.pop();
        assert!(gate.acquire("10.0.0.1:22").now_or_never().is_some());
    }

    #[tokio::test]
    async fn an_address_is_forgotten_when_nobody_is_there() {
        let gate = PreauthLimiter::default();
        drop(gate.acquire("10.0.0.1:22").await);
        let _place = gate.acquire("10.0.0.2:22").await;
        assert_eq!(gate.addresses.lock().unwrap().len(), 1);
    }
}
