//! State that a worker writes during its NVML calls and the sampling thread reads: the call in flight, and the
//! anomalies of the driver.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No GPU: the call concerns the whole driver.
const NO_DEVICE: u32 = u32::MAX;

/// The NVML call that a worker is in, and the GPU that it concerns.
#[derive(Debug)]
pub(crate) struct CallTimer {
    origin: Instant,
    /// The start of the call in flight in milliseconds after `origin`, plus one; 0 if there is no call.
    started_ms: AtomicU64,
    device: AtomicU32,
}

impl CallTimer {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), started_ms: AtomicU64::new(0), device: AtomicU32::new(NO_DEVICE) }
    }

    pub(crate) fn begin(&self) {
        self.started_ms.store(self.origin.elapsed().as_millis() as u64 + 1, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.started_ms.store(0, Ordering::Release);
    }

    /// Sets the GPU of the following calls (a position in the inventory), or `None` for the whole driver.
    pub(crate) fn set_device(&self, device: Option<usize>) {
        self.device.store(device.map_or(NO_DEVICE, |position| position as u32), Ordering::Release);
    }

    pub(crate) fn device(&self) -> Option<usize> {
        let device = self.device.load(Ordering::Acquire);
        (device != NO_DEVICE).then_some(device as usize)
    }

    /// Returns the age of the call in flight, or `None` if there is none.
    pub(crate) fn call_age(&self) -> Option<Duration> {
        let started_ms = self.started_ms.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.origin.elapsed().saturating_sub(Duration::from_millis(started_ms)))
    }
}

/// A result that NVML must not return. It is clamped or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriverAnomaly {
    /// A list claims more entries than the buffer holds.
    CountTooLarge,
    /// A list exceeds the maximum size.
    ListTooLong,
    /// A text has no terminating NUL.
    UnterminatedText,
    /// `nvmlDeviceGetCount` exceeds the number of devices.
    MissingDevices,
    /// A reading is outside its valid range.
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
            Self::CountTooLarge => "the NVIDIA driver reported more list entries than fit the buffer: the list was cut",
            Self::ListTooLong => "the NVIDIA driver has a list of more than 65,536 entries: it was left out",
            Self::UnterminatedText => "the NVIDIA driver returned an unterminated text: it was cut",
            Self::MissingDevices => "the NVIDIA driver counts more GPUs than it shows",
            Self::ImplausibleReading => "the NVIDIA driver returned an impossible reading: it was left out",
        }
    }
}

/// The anomalies so far, each reported once.
#[derive(Debug, Default)]
pub(crate) struct DriverAnomalies {
    seen: AtomicU32,
    reported: AtomicU32,
}

impl DriverAnomalies {
    pub(crate) fn add(&self, anomaly: DriverAnomaly) {
        self.seen.fetch_or(1 << anomaly as u32, Ordering::Relaxed);
    }

    /// Returns a message for each anomaly that has not been reported yet.
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
