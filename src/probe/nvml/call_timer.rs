//! Tells from outside whether a worker is inside an NVML call, since when, and on which GPU.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Says that no GPU is being read: the call concerns the whole driver.
const NO_DEVICE: u32 = u32::MAX;

/// What one worker is doing. Written by the worker, read by everybody.
#[derive(Debug)]
pub(crate) struct CallTimer {
    origin: Instant,
    /// Milliseconds after `origin` at which the call in flight began, plus one; 0 when none is.
    started_ms: AtomicU64,
    device: AtomicU32,
}

impl CallTimer {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), started_ms: AtomicU64::new(0), device: AtomicU32::new(NO_DEVICE) }
    }

    /// A call begins.
    pub(crate) fn begin(&self) {
        self.started_ms.store(self.origin.elapsed().as_millis() as u64 + 1, Ordering::Release);
    }

    /// The call came back.
    pub(crate) fn end(&self) {
        self.started_ms.store(0, Ordering::Release);
    }

    /// From now on calls concern this GPU (a position in the inventory), or the whole driver.
    pub(crate) fn set_device(&self, device: Option<usize>) {
        self.device.store(device.map_or(NO_DEVICE, |position| position as u32), Ordering::Release);
    }

    /// The GPU that calls concern.
    pub(crate) fn device(&self) -> Option<usize> {
        let device = self.device.load(Ordering::Acquire);
        (device != NO_DEVICE).then_some(device as usize)
    }

    /// How long the call in flight has been running; `None` when none is.
    pub(crate) fn call_age(&self) -> Option<Duration> {
        let started_ms = self.started_ms.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.origin.elapsed().saturating_sub(Duration::from_millis(started_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_age_is_known_only_during_a_call() {
        let timer = CallTimer::new();
        assert_eq!(timer.call_age(), None);
        timer.set_device(Some(3));
        timer.begin();
        assert!(timer.call_age().is_some());
        assert_eq!(timer.device(), Some(3));
        timer.end();
        timer.set_device(None);
        assert_eq!((timer.call_age(), timer.device()), (None, None));
    }
}
