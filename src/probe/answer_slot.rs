//! The answer of a thread that may block.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Holds the answer of a thread until the requester takes it or its timeout passes.
#[derive(Debug)]
pub(crate) struct AnswerSlot<T> {
    answer: Mutex<Option<T>>,
    condvar: Condvar,
}

impl<T> Default for AnswerSlot<T> {
    fn default() -> Self {
        Self { answer: Mutex::new(None), condvar: Condvar::new() }
    }
}

impl<T> AnswerSlot<T> {
    pub(crate) fn put(&self, answer: T) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.condvar.notify_all();
    }

    /// Waits for the answer, at most `limit`.
    pub(crate) fn take(&self, limit: Duration) -> Option<T> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.condvar.wait_timeout_while(answer, limit, |answer| answer.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}
