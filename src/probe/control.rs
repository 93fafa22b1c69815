//! What the listening thread tells the sampling thread.

use crate::wire::SafeText;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Notes that wait for the next snapshot; more are dropped.
const MAX_NOTES: usize = 8;

/// The orders so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    pub(crate) interval: Duration,
    /// The last snapshot that the controller has seen, once it has said so.
    pub(crate) acknowledged: Option<u64>,
    pub(crate) resend: bool,
}

/// What was asked for, and what the administrator allows.
#[derive(Debug)]
struct Wishes {
    orders: Orders,
    interval: Duration,
    least: Duration,
    /// The sampling thread is asleep until the controller has seen more.
    waits_for_acknowledgement: bool,
}

/// Orders, notes for the next snapshot, and the bell that tells of new ones.
#[derive(Debug)]
pub(crate) struct Control {
    wishes: Mutex<Wishes>,
    notes: Mutex<Vec<SafeText>>,
    bell: Condvar,
}

impl Control {
    pub(crate) fn new(interval: Duration) -> Self {
        let orders = Orders { interval, acknowledged: None, resend: false };
        let wishes = Wishes { orders, interval, least: Duration::ZERO, waits_for_acknowledgement: false };
        Self { wishes: Mutex::new(wishes), notes: Mutex::new(Vec::new()), bell: Condvar::new() }
    }

    /// The controller has seen this snapshot. That wakes nobody who sleeps until the next sample is due: it comes with
    /// every heartbeat.
    pub(crate) fn acknowledge(&self, sequence: u64) {
        let mut wishes = self.lock();
        wishes.orders.acknowledged = wishes.orders.acknowledged.max(Some(sequence));
        if wishes.waits_for_acknowledgement {
            drop(wishes);
            self.bell.notify_all();
        }
    }

    pub(crate) fn set_interval(&self, interval: Duration) {
        self.change(|wishes| wishes.interval = interval);
    }

    /// The administrator allows no shorter interval, whatever is asked for.
    pub(crate) fn set_least_interval(&self, least: Duration) {
        self.change(|wishes| wishes.least = least);
    }

    /// Inventory, all facts and a snapshot are wanted now.
    pub(crate) fn resend(&self) {
        self.change(|wishes| wishes.orders.resend = true);
    }

    /// Something worth knowing goes with the next snapshot.
    pub(crate) fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX_NOTES {
            notes.push(note.into());
        }
    }

    /// The notes since the last snapshot.
    pub(crate) fn take_notes(&self) -> Vec<SafeText> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The orders; a wish to resend is taken out.
    pub(crate) fn take(&self) -> Orders {
        let mut wishes = self.lock();
        let taken = wishes.orders;
        wishes.orders.resend = false;
        taken
    }

    /// Waits until `until`, or until another interval than `known`'s or a resend is ordered. Without a time to wait for,
    /// it waits for a newer acknowledgement.
    pub(crate) fn wait(&self, known: &Orders, until: Option<Instant>) {
        let mut wishes = self.lock();
        while wishes.orders.interval == known.interval && !wishes.orders.resend {
            let Some(until) = until else {
                if wishes.orders.acknowledged != known.acknowledged {
                    break;
                }
                wishes.waits_for_acknowledgement = true;
                wishes = self.bell.wait(wishes).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            wishes = self.bell.wait_timeout(wishes, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        wishes.waits_for_acknowledgement = false;
    }

    fn change(&self, change: impl FnOnce(&mut Wishes)) {
        let mut wishes = self.lock();
        change(&mut wishes);
        wishes.orders.interval = wishes.interval.max(wishes.least);
        drop(wishes);
        self.bell.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_end_the_wait() {
        let control = Control::new(Duration::from_secs(2));
        let known = control.take();
        let until = Instant::now() + Duration::from_millis(5);
        control.wait(&known, Some(until));
        assert!(Instant::now() >= until);
        control.acknowledge(3);
        control.acknowledge(2);
        let until = Instant::now() + Duration::from_millis(5);
        control.wait(&known, Some(until));
        assert!(Instant::now() >= until, "it sleeps on until the next sample is due");
        control.wait(&known, None);
        let known = control.take();
        assert_eq!(known.acknowledged, Some(3));
        control.resend();
        control.wait(&known, None);
        assert!(control.take().resend);
    }

    #[test]
    fn no_wish_goes_below_what_the_administrator_allows() {
        let control = Control::new(Duration::from_secs(2));
        control.set_least_interval(Duration::from_secs(10));
        assert_eq!(control.take().interval, Duration::from_secs(10));
        control.set_interval(Duration::from_secs(1));
        assert_eq!(control.take().interval, Duration::from_secs(10));
        control.set_interval(Duration::from_secs(30));
        assert_eq!(control.take().interval, Duration::from_secs(30));
        control.set_interval(Duration::from_secs(1));
        control.set_least_interval(Duration::ZERO);
        assert_eq!(control.take().interval, Duration::from_secs(1));
    }

    #[test]
    fn notes_do_not_pile_up() {
        let control = Control::new(Duration::from_secs(2));
        for number in 0..100 {
            control.note(format!("note {number}"));
        }
        assert_eq!(control.take_notes().len(), MAX_NOTES);
        assert_eq!(control.take_notes().len(), 0);
    }
}
