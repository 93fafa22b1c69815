//! Remembers what a driver did that no driver should, so that a person is told once.

use std::sync::atomic::{AtomicU32, Ordering};

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
