//! When to draw a frame, the work between two frames, and the detection of a suspended computer.

use crate::app::Event;
use crate::fleet::{HostId, HostUpdate, Moment};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// The minimum time between frames for changes without user input, such as the state of a connection.
const DRAW_PERIOD: Duration = Duration::from_millis(333);
/// The minimum time between frames for readings.
const READINGS_PERIOD: Duration = Duration::from_millis(250);
/// The minimum time between frames for the first readings of hosts, which come in quick succession at the start.
const FIRST_READINGS_PERIOD: Duration = Duration::from_millis(33);
/// How much longer than the window for arrivals a frame waits for hosts that have not sent readings yet.
const LATE_READINGS: Duration = Duration::from_millis(50);
/// The computer was suspended if the wall clock advances this much more than the monotonic clock.
const SUSPEND_THRESHOLD: Duration = Duration::from_secs(5);

/// The maximum number of events between two draws.
const FRAME_EVENTS: usize = 256;
/// No further event is applied this long after the first one.
const FRAME_WORK: Duration = Duration::from_millis(5);

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

/// Decides when to draw: at once for user input, and once per interval for the readings, when those of all hosts have arrived or
/// their window is over. Late readings get a frame later. If the window is longer than [`DRAW_PERIOD`] (from 107 hosts on), there
/// are up to three frames a second.
pub(super) struct RedrawScheduler {
    last_draw: Option<Instant>,
    /// When the next frame is due, apart from readings.
    due: Option<Instant>,
    /// The readings that no frame has shown yet.
    readings: Option<NewReadings>,
    last_readings_draw: Option<Instant>,
    /// The time within which the readings of one interval arrive.
    window: Duration,
    /// Hosts that are connected and have not sent readings yet.
    awaited: HashSet<HostId>,
}

/// Readings that wait for those of other hosts.
struct NewReadings {
    hosts: HashSet<HostId>,
    due: Instant,
}

impl RedrawScheduler {
    /// Creates a scheduler without a pending frame. The readings of one interval arrive within `window`.
    pub(super) fn new(window: Duration) -> Self {
        Self { last_draw: None, due: None, readings: None, last_readings_draw: None, window, awaited: HashSet::new() }
    }

    /// Changes the time within which the readings of one interval arrive.
    pub(super) fn set_window(&mut self, window: Duration) {
        self.window = window;
    }

    /// Requests the frame that an event needs.
    pub(super) fn request_for(&mut self, event: &Event, now: Instant) {
        let (id, update) = match event {
            Event::Host(id, update) => (*id, &**update),
            // A tick only updates ages.
            Event::Ticked => return self.request_after(DRAW_PERIOD, now),
            _ => return self.request_now(now),
        };
        match update {
            HostUpdate::Snapshot(_) if self.awaited.remove(&id) => self.request_after(FIRST_READINGS_PERIOD, now),
            HostUpdate::Snapshot(_) => self.add_readings(id, now),
            // The user waits for it.
            HostUpdate::Reply(_) => self.request_now(now),
            HostUpdate::Hello(_) => {
                self.awaited.insert(id);
                self.request_after(DRAW_PERIOD, now);
            }
            // The next frame shows it.
            HostUpdate::RoundTrip(_) | HostUpdate::ReadingsAge(_) => {}
            _ => self.request_after(DRAW_PERIOD, now),
        }
    }

    /// Requests a frame at once.
    pub(super) fn request_now(&mut self, now: Instant) {
        self.due = Some(now);
    }

    /// Requests a frame at least `period` after the last one.
    fn request_after(&mut self, period: Duration, now: Instant) {
        let due = self.last_draw.map_or(now, |last| (last + period).max(now));
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    fn add_readings(&mut self, id: HostId, now: Instant) {
        let due = (now + self.window + LATE_READINGS).min(now + DRAW_PERIOD);
        let due = due.max(self.earliest_readings_frame(now));
        self.readings.get_or_insert_with(|| NewReadings { hosts: HashSet::new(), due }).hosts.insert(id);
    }

    fn earliest_readings_frame(&self, now: Instant) -> Instant {
        self.last_readings_draw.map_or(now, |last| (last + READINGS_PERIOD).max(now))
    }

    /// Makes the frame for readings due if all live hosts have sent theirs. `live_hosts` is not called if that takes longer
    /// than the frame waits anyway.
    pub(super) fn complete_readings(&mut self, live_hosts: impl FnOnce() -> usize, now: Instant) {
        let earliest = self.earliest_readings_frame(now);
        if self.window < DRAW_PERIOD
            && let Some(readings) = &mut self.readings
            && readings.hosts.len() >= live_hosts()
        {
            readings.due = readings.due.min(earliest);
        }
    }

    /// When the next frame is due.
    fn next_frame(&self) -> Option<Instant> {
        [self.due, self.readings.as_ref().map(|readings| readings.due)].into_iter().flatten().min()
    }

    /// Whether a frame is due now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_frame().is_some_and(|due| due <= now)
    }

    /// Whether a frame is due now that shows the readings of an interval.
    pub(super) fn are_readings_due(&self, now: Instant) -> bool {
        self.readings.as_ref().is_some_and(|readings| readings.due <= now)
    }

    /// Waits until a frame is due. Cancel safe.
    pub(super) async fn wait_until_due(&self) {
        match self.next_frame() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Notes that a frame was drawn.
    pub(super) fn mark_drawn(&mut self, now: Instant) {
        self.last_draw = Some(now);
        self.due = None;
        // A frame for a key during the window does not replace the one at its end.
        if self.readings.take_if(|readings| readings.due <= now).is_some() {
            self.last_readings_draw = Some(now);
        }
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
        assert_eq!(applied(Duration::from_millis(1)), 5);
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

    fn update(id: u32, update: HostUpdate) -> Event {
        Event::Host(HostId(id), Box::new(update))
    }

    fn snapshot(id: u32) -> Event {
        update(id, HostUpdate::Snapshot(Box::<Snapshot>::default()))
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A scheduler for 16 hosts that drew a frame at this moment.
    fn drawn() -> (RedrawScheduler, Instant) {
        let (mut redraw, start) = (RedrawScheduler::new(ms(100)), Instant::now());
        redraw.mark_drawn(start);
        (redraw, start)
    }

    #[test]
    fn user_input_is_drawn_at_once_and_other_changes_later() {
        let connecting = HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::Tcp };
        for (event, after) in [
            (Event::Resumed, Some(ms(10))),
            (Event::Ticked, Some(ms(333))),
            (update(3, connecting), Some(ms(333))),
            (update(3, HostUpdate::RoundTrip(ms(1))), None),
        ] {
            let (mut redraw, start) = drawn();
            redraw.request_for(&event, start + ms(10));
            assert_eq!(redraw.next_frame().map(|due| due - start), after, "{event:?}");
        }
        let mut redraw = RedrawScheduler::new(ms(100));
        let now = Instant::now();
        redraw.request_for(&Event::Ticked, now);
        assert!(redraw.is_due(now), "nothing was drawn before");
    }

    #[test]
    fn the_first_readings_of_a_connection_are_drawn_soon() {
        let (mut redraw, start) = drawn();
        let hello = crate::wire::codec::decode(br#"{"hello":{"protocol":1,"probe_version":"0"}}"#);
        let Ok(crate::wire::Message::Hello(hello)) = hello else { panic!("a hello") };
        redraw.request_for(&update(3, HostUpdate::Hello(Box::new(hello))), start + ms(1));
        redraw.request_for(&snapshot(3), start + ms(5));
        assert_eq!(redraw.next_frame(), Some(start + ms(33)));
        redraw.mark_drawn(start + ms(33));
        redraw.request_for(&snapshot(3), start + ms(300));
        assert_eq!(redraw.next_frame(), Some(start + ms(450)), "the second ones wait for other hosts");
    }

    #[test]
    fn one_frame_shows_the_readings_of_all_hosts() {
        let (mut redraw, start) = drawn();
        for id in 0..16 {
            let now = start + ms(1000 + 6 * u64::from(id));
            redraw.request_for(&snapshot(id), now);
            redraw.complete_readings(|| 16, now);
            assert_eq!(redraw.are_readings_due(now), id == 15);
        }
        redraw.mark_drawn(start + ms(1091));
        assert_eq!(redraw.next_frame(), None);
    }

    #[test]
    fn a_late_host_delays_the_others_a_little_and_gets_its_own_frame() {
        let (mut redraw, start) = drawn();
        redraw.request_for(&snapshot(1), start + ms(1000));
        redraw.request_for(&snapshot(2), start + ms(1020));
        redraw.complete_readings(|| 3, start + ms(1020));
        assert_eq!(redraw.next_frame(), Some(start + ms(1150)));
        redraw.mark_drawn(start + ms(1150));
        redraw.request_for(&snapshot(3), start + ms(1180));
        redraw.complete_readings(|| 3, start + ms(1180));
        assert_eq!(redraw.next_frame(), Some(start + ms(1400)));
    }

    #[test]
    fn a_key_within_the_window_does_not_replace_the_frame_of_the_readings() {
        let (mut redraw, start) = drawn();
        redraw.request_for(&snapshot(1), start + ms(1000));
        redraw.request_for(&Event::Resumed, start + ms(1010));
        assert!(redraw.is_due(start + ms(1010)));
        redraw.mark_drawn(start + ms(1011));
        assert!(!redraw.is_due(start + ms(1012)));
        redraw.request_for(&snapshot(2), start + ms(1020));
        redraw.complete_readings(|| 2, start + ms(1020));
        assert!(redraw.are_readings_due(start + ms(1020)));
    }

    #[test]
    fn a_window_as_long_as_the_interval_gives_three_frames_a_second() {
        let (mut redraw, start) = drawn();
        redraw.set_window(Duration::from_secs(1));
        let mut frames = 0;
        for at in 0..3000 {
            let now = start + ms(at);
            redraw.request_for(&snapshot((at % 1000) as u32), now);
            redraw.complete_readings(|| panic!("is not counted"), now);
            if redraw.is_due(now) {
                frames += 1;
                redraw.mark_drawn(now);
            }
        }
        assert_eq!(frames, 8);
    }
}
