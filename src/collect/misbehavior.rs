//! Recognizes lines that no probe sends. They are shown all the same, after the texts and numbers were made safe.

use crate::fleet::{MAX_FACTS_PER_SECOND, Misbehavior};
use crate::wire::{Message, Snapshot};
use std::time::Duration;
use tokio::time::Instant;

/// More facts at once are usual: at the start those of all processes, then their arguments, users and owners.
const BURST: Duration = Duration::from_secs(4);

/// Looks at the lines of one session.
#[derive(Debug)]
pub(super) struct Detector {
    /// When the facts so far would have been sent at [`MAX_FACTS_PER_SECOND`].
    facts_until: Instant,
    /// Speed of the host's clock relative to real time; more than 1 for simulated hosts only.
    speed: f64,
}

impl Detector {
    pub(super) fn new(now: Instant, speed: f64) -> Self {
        Self { facts_until: now, speed: speed.max(1.0) }
    }

    /// How the sender of this line misbehaves; `message` is the decoded line.
    pub(super) fn misbehavior(&mut self, message: &Message, line: &[u8], now: Instant) -> Option<Misbehavior> {
        let snapshot = if let Message::Snapshot(snapshot) = message { Some(snapshot) } else { None };
        let facts = snapshot.map_or(0, |snapshot| snapshot.facts.len());
        let time = Duration::from_secs(facts as u64) / MAX_FACTS_PER_SECOND;
        // Beyond twice the burst nothing changes, and the host is forgiven soon.
        self.facts_until = (self.facts_until.max(now) + time.div_f64(self.speed)).min(now + BURST * 2);
        if has_control_character(line) {
            Some(Misbehavior::ControlCharacters)
        } else if snapshot.is_some_and(|snapshot| has_impossible_number(snapshot)) {
            Some(Misbehavior::ImpossibleNumbers)
        } else if self.facts_until > now + BURST {
            Some(Misbehavior::TooManyFacts)
        } else {
            None
        }
    }
}

/// Whether a string of a JSON line contains a control character. JSON allows them only as escapes, and a probe replaces
/// them, so its lines contain no other escapes than `\"` and `\\`.
fn has_control_character(line: &[u8]) -> bool {
    // Most lines have no escape, and this search is much faster.
    if !line.contains(&b'\\') {
        return false;
    }
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        if *byte == b'\\' && !matches!(bytes.next(), Some(b'"' | b'\\' | b'/')) {
            return true;
        }
    }
    false
}

/// Whether a number is beyond the range of its type, which reads as an infinity. A probe sends `null` for such a value.
fn has_impossible_number(snapshot: &Snapshot) -> bool {
    let is_impossible = |value: &Option<f32>| value.is_some_and(|value| !value.is_finite());
    let (host, gpus) = (&snapshot.host, &snapshot.gpus);
    let columns = [
        &gpus.power_watts,
        &gpus.power_mean_watts,
        &gpus.power_limit_watts,
        &gpus.sm_activity_percent,
        &gpus.blocked_seconds,
        &snapshot.processes.cpu_percent,
    ];
    [host.cpu_percent, host.io_wait_percent, host.load_1, host.load_5, host.load_15].iter().any(is_impossible)
        || columns.iter().any(|column| column.iter().any(is_impossible))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::{decode, encode};
    use crate::wire::{HostReading, ProcessFacts, SafeText};

    fn of(line: &str) -> Option<Misbehavior> {
        let message = decode(line.as_bytes()).expect("decodes");
        Detector::new(Instant::now(), 1.0).misbehavior(&message, line.as_bytes(), Instant::now())
    }

    /// Snapshots with this many facts, one per interval, until the host misbehaves or a minute is over.
    fn seconds_until_too_many_facts(count: usize, interval: Duration) -> Option<f64> {
        let facts = vec![ProcessFacts::default(); count];
        let message = Message::Snapshot(Box::new(Snapshot { facts, ..Snapshot::default() }));
        let began = Instant::now();
        let mut detector = Detector::new(began, 1.0);
        let times =
            (0..).map(|number| began + interval * number).take_while(|now| *now < began + Duration::from_secs(60));
        let found = times.into_iter().find(|now| detector.misbehavior(&message, b"{}", *now).is_some());
        found.map(|now| (now - began).as_secs_f64())
    }

    #[test]
    fn facts_that_come_faster_than_processes_start_are_recognized() {
        assert_eq!(seconds_until_too_many_facts(2048, Duration::from_millis(500)), Some(3.5));
        assert_eq!(seconds_until_too_many_facts(2048, Duration::from_millis(200)), Some(0.8));
        assert_eq!(seconds_until_too_many_facts(2048, Duration::from_secs(1)), None);
        // All processes of a full host at the start: first their names, then arguments, users and owners.
        let facts = vec![ProcessFacts::default(); 2048];
        let message = Message::Snapshot(Box::new(Snapshot { facts, ..Snapshot::default() }));
        let now = Instant::now();
        let mut detector = Detector::new(now, 1.0);
        for _ in 0..4 {
            assert_eq!(detector.misbehavior(&message, b"{}", now), None);
        }
    }

    #[test]
    fn control_characters_and_infinities_are_recognized() {
        let note = |text: &str| of(&format!(r#"{{"snapshot":{{"notes":["{text}"]}}}}"#));
        assert_eq!(note(r"a\u001b[2J"), Some(Misbehavior::ControlCharacters));
        assert_eq!(note(r"two\nlines"), Some(Misbehavior::ControlCharacters));
        assert_eq!(note(r#"a \\u001b \"quoted\" path\/ ␛"#), None);
        for snapshot in [r#""host":{"load_1":1e39}"#, r#""gpus":{"rows":1,"power_watts":-1e308}"#] {
            assert_eq!(
                of(&format!(r#"{{"snapshot":{{{snapshot}}}}}"#)),
                Some(Misbehavior::ImpossibleNumbers),
                "{snapshot}"
            );
        }
        assert_eq!(of(r#"{"snapshot":{"host":{"load_1":1e38},"gpus":{"rows":1,"power_watts":-5}}}"#), None);
    }

    #[test]
    fn a_probe_never_misbehaves() {
        let texts = ["\u{1b}[2J", "a\tb\n", "C:\\temp \"x\"", "\u{7f}\u{202e}", "größe ␛"].map(SafeText::new);
        let snapshot = Snapshot {
            notes: texts.to_vec(),
            facts: vec![ProcessFacts { argv: texts.to_vec(), ..ProcessFacts::default() }],
            host: HostReading { load_1: Some(f32::NAN), load_5: Some(f32::INFINITY), ..HostReading::default() },
            ..Snapshot::default()
        };
        let line = encode(&Message::Snapshot(Box::new(snapshot))).expect("encodes");
        assert_eq!(of(std::str::from_utf8(&line[..line.len() - 1]).expect("UTF-8")), None);
    }
}
