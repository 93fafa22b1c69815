//! When the screen is drawn, and whether the machine slept meanwhile.

use crate::app::Event;
use crate::fleet::{HostId, HostUpdate, Moment};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Readings are drawn at most this often; a key, a resize or a host's first readings are drawn at once.
const DRAW_PERIOD: Duration = Duration::from_millis(333);
/// The wall clock moved this much more than ours: the laptop slept.
const SLEPT: Duration = Duration::from_secs(5);

/// When to draw.
pub(super) struct RedrawScheduler {
    last_draw: Option<Instant>,
    wanted: bool,
    urgent: bool,
    /// Hosts that introduced themselves and have not sent readings yet.
    awaited: HashSet<HostId>,
}

impl RedrawScheduler {
    /// Nothing is to be drawn yet.
    pub(super) fn new() -> Self {
        Self { last_draw: None, wanted: false, urgent: false, awaited: HashSet::new() }
    }

    /// Whether somebody waits for what this event shows.
    pub(super) fn is_urgent(&mut self, event: &Event) -> bool {
        let (id, update) = match event {
            Event::Host(id, update) => (id, update),
            // It only moves ages on.
            Event::Ticked => return false,
            _ => return true,
        };
        match **update {
            HostUpdate::Hello(_) => {
                self.awaited.insert(*id);
                false
            }
            HostUpdate::Snapshot(_) => self.awaited.remove(id),
            _ => false,
        }
    }

    /// Something has changed that a frame shows: at once where somebody waits for it, else when the time has come.
    pub(super) fn request(&mut self, urgent: bool) {
        self.wanted = true;
        self.urgent |= urgent;
    }

    /// Whether a frame is to be drawn now.
    pub(super) fn is_due(&self) -> bool {
        self.wanted && (self.urgent || self.last_draw.is_none_or(|last| last.elapsed() >= DRAW_PERIOD))
    }

    /// Waits until a frame is to be drawn. May be dropped and called again.
    pub(super) async fn wait_until_due(&self) {
        match self.last_draw {
            // It was due while the terminal took nothing.
            _ if self.is_due() => {}
            Some(last) if self.wanted => tokio::time::sleep_until(last + DRAW_PERIOD).await,
            _ => std::future::pending().await,
        }
    }

    /// A frame was drawn.
    pub(super) fn mark_drawn(&mut self) {
        self.last_draw = Some(Instant::now());
        self.wanted = false;
        self.urgent = false;
    }
}

/// Notices that the machine slept: the wall clock went on while the monotonic one stood still.
pub(super) struct SuspendDetector {
    last: Moment,
}

impl SuspendDetector {
    /// From this moment on.
    pub(super) fn new(now: Moment) -> Self {
        Self { last: now }
    }

    /// Whether the machine slept since this was asked last.
    pub(super) fn slept(&mut self, now: Moment) -> bool {
        let wall = now.unix.saturating_sub(self.last.unix);
        let ours = now.since(self.last);
        self.last = now;
        wall > ours + SLEPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::ConnectPhase;
    use crate::wire::Snapshot;

    fn moment(elapsed: u64, unix: u64) -> Moment {
        Moment::new(Duration::from_secs(elapsed), Duration::from_secs(unix))
    }

    #[test]
    fn sleep_is_noticed_and_a_clock_set_back_is_not_sleep() {
        let mut watch = SuspendDetector::new(moment(10, 1000));
        assert!(!watch.slept(moment(11, 1001)));
        assert!(watch.slept(moment(12, 30_000)));
        assert!(!watch.slept(moment(13, 30_001)));
        assert!(!watch.slept(moment(14, 500)));
    }

    #[test]
    fn only_the_first_readings_of_a_connection_are_urgent() {
        let mut redraw = RedrawScheduler::new();
        let snapshot = || Event::Host(HostId(3), Box::new(HostUpdate::Snapshot(Box::<Snapshot>::default())));
        let hello = crate::wire::codec::decode(br#"{"hello":{"protocol":1,"probe_version":"0"}}"#);
        let Ok(crate::wire::Message::Hello(hello)) = hello else { panic!("a hello") };
        let hello = Event::Host(HostId(3), Box::new(HostUpdate::Hello(Box::new(hello))));
        let connecting = HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::Tcp };
        assert!(!redraw.is_urgent(&Event::Host(HostId(3), Box::new(connecting))));
        assert!(!redraw.is_urgent(&hello));
        assert!(redraw.is_urgent(&snapshot()));
        assert!(!redraw.is_urgent(&snapshot()));
        assert!(!redraw.is_urgent(&Event::Ticked));
        assert!(redraw.is_urgent(&Event::Resumed));
    }
}
