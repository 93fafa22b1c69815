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

/// Something that was clamped or left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriverAnomaly {
    /// More entries are claimed than there was room for.
    CountTooLarge,
    /// A list longer than the longest that is read.
    ListTooLong,
    /// A text without an end.
    UnterminatedText,
    /// More GPUs are counted than there are.
    MissingDevices,
    /// A reading that no GPU can have.
    ImplausibleReading,
}

impl DriverAnomaly {
    const ALL: [Self; 5] = [
        Self::CountTooLarge,
        Self::ListTooLong,
        Self::UnterminatedText,
        Self::MissingDevices,
        Self::ImplausibleReading,
    ];

    fn message(self) -> &'static str {
        match self {
            Self::CountTooLarge => "the NVIDIA driver claimed more entries than it had room for: the list was cut",
            Self::ListTooLong => "the NVIDIA driver has a list of more than 65,536 entries: it was left out",
            Self::UnterminatedText => "the NVIDIA driver gave a text without an end: it was cut",
            Self::MissingDevices => "the NVIDIA driver counts more GPUs than it shows",
            Self::ImplausibleReading => "the NVIDIA driver gave a reading that no GPU can have: it was left out",
        }
    }
}

/// The oddities so far. Written by the workers, read by the sampling thread.
#[derive(Debug, Default)]
pub(crate) struct DriverAnomalies {
    seen: AtomicU32,
    reported: AtomicU32,
}

impl DriverAnomalies {
    pub(crate) fn add(&self, anomaly: DriverAnomaly) {
        self.seen.fetch_or(1 << anomaly as u32, Ordering::Relaxed);
    }

    /// A sentence for each that has not been told yet.
    pub(crate) fn take(&self) -> impl Iterator<Item = &'static str> {
        let seen = self.seen.load(Ordering::Relaxed);
        let unreported = seen & !self.reported.fetch_or(seen, Ordering::Relaxed);
        DriverAnomaly::ALL
            .into_iter()
            .filter(move |&anomaly| unreported & 1 << anomaly as u32 != 0)
            .map(DriverAnomaly::message)
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

    #[test]
    fn each_anomaly_is_reported_once() {
        let anomalies = DriverAnomalies::default();
        anomalies.add(DriverAnomaly::UnterminatedText);
        anomalies.add(DriverAnomaly::UnterminatedText);
        assert_eq!(anomalies.take().collect::<Vec<_>>(), [DriverAnomaly::UnterminatedText.message()]);
        anomalies.add(DriverAnomaly::UnterminatedText);
        anomalies.add(DriverAnomaly::CountTooLarge);
        assert_eq!(anomalies.take().collect::<Vec<_>>(), [DriverAnomaly::CountTooLarge.message()]);
        assert_eq!(anomalies.take().count(), 0);
    }
}
