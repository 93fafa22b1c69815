//! Remembers what a driver did that no driver should, so that a person is told once.

use std::sync::atomic::{AtomicU32, Ordering};

/// Something that was clamped or left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oddity {
    /// More entries are claimed than there was room for.
    Count,
    /// A list longer than the longest that is read.
    Endless,
    /// A text without an end.
    Text,
    /// More GPUs are counted than there are.
    Devices,
    /// A reading that no GPU can have.
    Reading,
}

impl Oddity {
    const ALL: [Self; 5] = [Self::Count, Self::Endless, Self::Text, Self::Devices, Self::Reading];

    fn sentence(self) -> &'static str {
        match self {
            Self::Count => "the NVIDIA driver claimed more entries than it had room for: the list was cut",
            Self::Endless => "the NVIDIA driver has a list of more than 65,536 entries: it was left out",
            Self::Text => "the NVIDIA driver gave a text without an end: it was cut",
            Self::Devices => "the NVIDIA driver counts more GPUs than it shows",
            Self::Reading => "the NVIDIA driver gave a reading that no GPU can have: it was left out",
        }
    }
}

/// The oddities so far. Written by the workers, read by the sampling thread.
#[derive(Debug, Default)]
pub(crate) struct Oddities {
    seen: AtomicU32,
    told: AtomicU32,
}

impl Oddities {
    pub(crate) fn add(&self, oddity: Oddity) {
        self.seen.fetch_or(1 << oddity as u32, Ordering::Relaxed);
    }

    /// A sentence for each that has not been told yet.
    pub(crate) fn take(&self) -> impl Iterator<Item = &'static str> {
        let seen = self.seen.load(Ordering::Relaxed);
        let fresh = seen & !self.told.fetch_or(seen, Ordering::Relaxed);
        Oddity::ALL.into_iter().filter(move |&oddity| fresh & 1 << oddity as u32 != 0).map(Oddity::sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once() {
        let oddities = Oddities::default();
        oddities.add(Oddity::Text);
        oddities.add(Oddity::Text);
        assert_eq!(oddities.take().collect::<Vec<_>>(), [Oddity::Text.sentence()]);
        oddities.add(Oddity::Text);
        oddities.add(Oddity::Count);
        assert_eq!(oddities.take().collect::<Vec<_>>(), [Oddity::Count.sentence()]);
        assert_eq!(oddities.take().count(), 0);
    }
}
