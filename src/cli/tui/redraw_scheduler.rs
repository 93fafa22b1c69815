//! When to draw a frame, the work between two frames, and the detection of a suspended computer.

use crate::app::Event;
use crate::fleet::{HostId, HostUpdate, Moment};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// The minimum time between frames for new readings. Keys, resizes and a host's first readings are drawn at once.
const DRAW_PERIOD: Duration = Duration::from_millis(333);
/// The computer was suspended if the wall clock advances this much more than the monotonic clock.
const SUSPEND_THRESHOLD: Duration = Duration::from_secs(5);

/// The maximum number of events between two draws.
const FRAME_EVENTS: usize = 256;
/// No further event is applied this long after the first one.
const FRAME_WORK: Duration = Duration::from_millis(20);

/// Limits the work between two frames, so that a key is answered soon however much the hosts send.
pub(super) struct FrameBudget {
    events: usize,
    end: Instant,
}

impl FrameBudget {
    /// Starts with the first event.
    pub(super) fn new(now: Instant) -> Self {
        Self { events: FRAME_EVENTS, end: now + FRAME_WORK }
    }

    /// Whether another event may be applied after one that ended now.
    pub(super) fn allows_another(&mut self, now: Instant) -> bool {
        self.events = self.events.saturating_sub(1);
        self.events > 0 && now < self.end
    }
}

/// Decides when to draw.
pub(super) struct RedrawScheduler {
    last_draw: Option<Instant>,
    wanted: bool,
    urgent: bool,
    /// Hosts that are connected and have not sent readings yet.
    awaited: HashSet<HostId>,
}

impl RedrawScheduler {
    /// Creates a scheduler without a pending frame.
    pub(super) fn new() -> Self {
        Self { last_draw: None, wanted: false, urgent: false, awaited: HashSet::new() }
    }

    /// Whether the user is waiting for the result of this event.
    pub(super) fn is_urgent(&mut self, event: &Event) -> bool {
        let (id, update) = match event {
            Event::Host(id, update) => (id, update),
            // A tick only updates ages.
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

    /// Requests a frame: at once if `urgent`, otherwise after the minimum time.
    pub(super) fn request(&mut self, urgent: bool) {
        self.wanted = true;
        self.urgent |= urgent;
    }

    /// Whether a frame is due now.
    pub(super) fn is_due(&self) -> bool {
        self.wanted && (self.urgent || self.last_draw.is_none_or(|last| last.elapsed() >= DRAW_PERIOD))
    }

    /// Waits until a frame is due. Cancel safe.
    pub(super) async fn wait_until_due(&self) {
        match self.last_draw {
            // The frame became due while the terminal accepted no output.
            _ if self.is_due() => {}
            Some(last) if self.wanted => tokio::time::sleep_until(last + DRAW_PERIOD).await,
            _ => std::future::pending().await,
        }
    }

    /// Notes that a frame was drawn.
    pub(super) fn mark_drawn(&mut self) {
        self.last_draw = Some(Instant::now());
        self.wanted = false;
        self.urgent = false;
    }
}

/// Detects that the computer was suspended: the wall clock advanced while the monotonic clock stood still.
pub(super) struct SuspendDetector {
    last: Moment,
}

impl SuspendDetector {
    /// Starts at this moment.
    pub(super) fn new(now: Moment) -> Self {
        Self { last: now }
    }

    /// Whether the computer was suspended since the last call.
    pub(super) fn was_suspended(&mut self, now: Moment) -> bool {
        let wall = now.unix.saturating_sub(self.last.unix);
        let ours = now.since(self.last);
        self.last = now;
        wall > ours + SUSPEND_THRESHOLD
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
    fn the_work_between_frames_is_limited_by_number_and_time() {
        let begin = Instant::now();
        // Returns how many updates are applied if each takes this long.
        let applied = |each: Duration| {
            let (mut budget, mut now, mut count) = (FrameBudget::new(begin), begin, 0);
            loop {
                (count, now) = (count + 1, now + each);
                if !budget.allows_another(now) {
                    return count;
                }
            }
        };
        assert_eq!(applied(Duration::from_micros(10)), FRAME_EVENTS);
        assert_eq!(applied(Duration::from_millis(1)), 20);
        assert_eq!(applied(Duration::from_millis(50)), 1, "the largest snapshots are applied one by one");
    }

    #[test]
    fn a_suspend_is_detected_and_a_clock_set_back_is_not() {
        let mut watch = SuspendDetector::new(moment(10, 1000));
        assert!(!watch.was_suspended(moment(11, 1001)));
        assert!(watch.was_suspended(moment(12, 30_000)));
        assert!(!watch.was_suspended(moment(13, 30_001)));
        assert!(!watch.was_suspended(moment(14, 500)));
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
