//! What the listening thread tells the sampling thread.

use crate::wire::SafeText;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Notes that wait for the next snapshot; more are dropped.
const MAX_QUEUED_NOTES: usize = 8;

/// The orders so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SamplerRequests {
    pub(crate) interval: Duration,
    /// The last snapshot that the controller has seen, once it has said so.
    pub(crate) acknowledged: Option<u64>,
    pub(crate) resend: bool,
}

/// What was asked for, and what the administrator allows.
#[derive(Debug)]
struct RequestedSettings {
    requests: SamplerRequests,
    interval: Duration,
    min: Duration,
    /// The sampling thread is asleep until the controller has seen more.
    waits_for_acknowledgement: bool,
}

/// Orders, notes for the next snapshot, and the bell that tells of new ones.
#[derive(Debug)]
pub(crate) struct Control {
    settings: Mutex<RequestedSettings>,
    notes: Mutex<Vec<SafeText>>,
    condvar: Condvar,
}

impl Control {
    pub(crate) fn new(interval: Duration) -> Self {
        let requests = SamplerRequests { interval, acknowledged: None, resend: false };
        let settings = RequestedSettings { requests, interval, min: Duration::ZERO, waits_for_acknowledgement: false };
        Self { settings: Mutex::new(settings), notes: Mutex::new(Vec::new()), condvar: Condvar::new() }
    }

    /// The controller has seen this snapshot. That wakes nobody who sleeps until the next sample is due: it comes with
    /// every heartbeat.
    pub(crate) fn acknowledge(&self, sequence: u64) {
        let mut settings = self.lock();
        settings.requests.acknowledged = settings.requests.acknowledged.max(Some(sequence));
        if settings.waits_for_acknowledgement {
            drop(settings);
            self.condvar.notify_all();
        }
    }

    pub(crate) fn set_interval(&self, interval: Duration) {
        self.update(|settings| settings.interval = interval);
    }

    /// The administrator allows no shorter interval, whatever is asked for.
    pub(crate) fn set_min_interval(&self, min: Duration) {
        self.update(|settings| settings.min = min);
    }

    /// Inventory, all facts and a snapshot are wanted now.
    pub(crate) fn resend(&self) {
        self.update(|settings| settings.requests.resend = true);
    }

    /// Something worth knowing goes with the next snapshot.
    pub(crate) fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX_QUEUED_NOTES {
            notes.push(note.into());
        }
    }

    /// The notes since the last snapshot.
    pub(crate) fn take_notes(&self) -> Vec<SafeText> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The orders; a wish to resend is taken out.
    pub(crate) fn take_requests(&self) -> SamplerRequests {
        let mut settings = self.lock();
        let taken = settings.requests;
        settings.requests.resend = false;
        taken
    }

    /// Waits until `until`, or until another interval than `previous`'s or a resend is ordered. Without a time to wait for,
    /// it waits for a newer acknowledgement.
    pub(crate) fn wait(&self, previous: &SamplerRequests, until: Option<Instant>) {
        let mut settings = self.lock();
        while settings.requests.interval == previous.interval && !settings.requests.resend {
            let Some(until) = until else {
                if settings.requests.acknowledged != previous.acknowledged {
                    break;
                }
                settings.waits_for_acknowledgement = true;
                settings = self.condvar.wait(settings).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                break;
            }
            settings = self.condvar.wait_timeout(settings, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        settings.waits_for_acknowledgement = false;
    }

    fn update(&self, change: impl FnOnce(&mut RequestedSettings)) {
        let mut settings = self.lock();
        change(&mut settings);
        settings.requests.interval = settings.interval.max(settings.min);
        drop(settings);
        self.condvar.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, RequestedSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_the_wait() {
        let control = Control::new(Duration::from_secs(2));
        let previous = control.take_requests();
        let until = Instant::now() + Duration::from_millis(5);
        control.wait(&previous, Some(until));
        assert!(Instant::now() >= until);
        control.acknowledge(3);
        control.acknowledge(2);
        let until = Instant::now() + Duration::from_millis(5);
        control.wait(&previous, Some(until));
        assert!(Instant::now() >= until, "it sleeps on until the next sample is due");
        control.wait(&previous, None);
        let previous = control.take_requests();
        assert_eq!(previous.acknowledged, Some(3));
        control.resend();
        control.wait(&previous, None);
        assert!(control.take_requests().resend);
    }

    #[test]
    fn no_interval_is_below_the_policy_minimum() {
        let control = Control::new(Duration::from_secs(2));
        control.set_min_interval(Duration::from_secs(10));
        assert_eq!(control.take_requests().interval, Duration::from_secs(10));
        control.set_interval(Duration::from_secs(1));
        assert_eq!(control.take_requests().interval, Duration::from_secs(10));
        control.set_interval(Duration::from_secs(30));
        assert_eq!(control.take_requests().interval, Duration::from_secs(30));
        control.set_interval(Duration::from_secs(1));
        control.set_min_interval(Duration::ZERO);
        assert_eq!(control.take_requests().interval, Duration::from_secs(1));
    }

    #[test]
    fn queued_notes_are_limited() {
        let control = Control::new(Duration::from_secs(2));
        for number in 0..100 {
            control.note(format!("note {number}"));
        }
        assert_eq!(control.take_notes().len(), MAX_QUEUED_NOTES);
        assert_eq!(control.take_notes().len(), 0);
    }
}
