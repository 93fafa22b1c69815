//! Turns a case into the lines of a recording, one sample interval at a time.

use super::case_file::Case;
use gpufleet::fleet::recording::{HostLine, Line, RecordedError, RecordedEvent, RecordedLinkState};
use gpufleet::sim::rng::Rng;
use gpufleet::sim::script::{Seconds, Step};
use gpufleet::sim::{ProbeConnection, SimulatedHost};
use gpufleet::wire::{ExaminationPart, Message, ReplyOutcome, SafeText};
use std::fmt;

/// Wall clock at the beginning of each case: 2026-03-02T00:00:00Z.
const START_UNIX: f64 = 1_772_409_600.0;

/// Which part of a case the monitor sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Every sample arrives.
    Plain,
    /// One sample in twenty is lost.
    Drops,
    /// Every few minutes no data arrives for a minute.
    Gaps,
    /// The monitor starts in the middle of the case.
    Late,
}

impl Variant {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Drops, Self::Gaps, Self::Late];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Drops => "drops",
            Self::Gaps => "gaps",
            Self::Late => "late",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// Iterates over the lines of a case, one list per sample interval.
pub(crate) struct CaseRecording {
    hosts: Vec<HostRecording>,
    variant: Variant,
    interval: f64,
    length: f64,
    /// Seconds after the beginning of the case.
    monitor_starts: f64,
    step: u64,
    has_begun: bool,
}

struct HostRecording {
    host: SimulatedHost,
    probe: ProbeConnection,
    rng: Rng,
    offset: f64,
    outages: Vec<Outage>,
    is_connected: bool,
    gap: (f64, f64),
}

/// A period without a connection, in seconds of the case.
struct Outage {
    from: f64,
    to: f64,
    /// The machine of the monitor sleeps, so nothing is recorded.
    is_sleep: bool,
    error: (&'static str, &'static str),
}

impl CaseRecording {
    pub(crate) fn new(case: &Case, variant: Variant, seed: u64) -> Self {
        let Seconds(length) = case.length;
        let late = case.late.map_or(length / 2.0, |Seconds(late)| late);
        let hosts = (0..case.hosts).map(|index| {
            let host = SimulatedHost::new(&case.host(index, seed), 0.0, START_UNIX);
            let mut rng = Rng::new(&[seed, index as u64, 3]);
            let outages = outages(&host, length);
            let gap = rng.between(200.0, 500.0);
            HostRecording {
                probe: ProbeConnection::new(&host),
                host,
                offset: (index as f64 * 0.37 + 0.5) % case.interval.min(5.0),
                outages,
                is_connected: false,
                gap: (gap, gap + 60.0),
                rng,
            }
        });
        Self {
            hosts: hosts.collect(),
            variant,
            interval: case.interval,
            length,
            monitor_starts: if variant == Variant::Late { late } else { 0.0 },
            step: 0,
            has_begun: false,
        }
    }

    /// When the monitor starts, in seconds after the beginning of the case.
    pub(crate) fn monitor_starts(&self) -> f64 {
        self.monitor_starts
    }

    /// Returns the answer of a host to a request to examine a process.
    pub(crate) fn examine(
        &self,
        host: &SafeText,
        pid: u32,
        start_ticks: u64,
        parts: &[ExaminationPart],
    ) -> ReplyOutcome {
        let found = self.hosts.iter().find(|one| one.host.name() == *host);
        found.map_or(ReplyOutcome::Gone, |one| one.host.examine(pid, start_ticks, parts))
    }

    fn next_lines(&mut self) -> Vec<Line> {
        let begin = self.step as f64 * self.interval;
        self.step += 1;
        let mut lines: Vec<HostLine> = Vec::new();
        for host in &mut self.hosts {
            let time = begin + host.offset;
            host.host.advance(time);
            if time < self.monitor_starts {
                continue;
            }
            host.push_lines(begin, time, self.interval, self.variant, self.monitor_starts, &mut lines);
        }
        lines.sort_by(|one, other| one.t.total_cmp(&other.t));
        lines.into_iter().map(Line::Host).collect()
    }
}

impl Iterator for CaseRecording {
    type Item = Vec<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.has_begun {
            self.has_begun = true;
            let unix = (START_UNIX + self.monitor_starts) as i64;
            let started = jiff::Timestamp::from_second(unix).expect("a valid timestamp").to_string();
            return Some(vec![Line::Start { started: SafeText::new(&started) }]);
        }
        (self.step as f64 * self.interval < self.length).then(|| self.next_lines())
    }
}

impl HostRecording {
    fn push_lines(
        &mut self,
        begin: f64,
        time: f64,
        interval: f64,
        variant: Variant,
        monitor_starts: f64,
        lines: &mut Vec<HostLine>,
    ) {
        let host = self.host.name();
        let mut push_line = |at: f64, event| {
            let t = ((at - monitor_starts).max(0.0) * 1e3).round() / 1e3;
            lines.push(HostLine { t, host: host.clone(), event });
        };
        let link = |word| RecordedEvent::Link(word, None);
        if let Some(outage) = self.outages.iter().find(|outage| outage.from <= time && time < outage.to) {
            if !outage.is_sleep {
                let (kind, message) = outage.error;
                let down = || {
                    let error = RecordedError { kind: kind.into(), message: message.into(), hint: None };
                    RecordedEvent::Link(RecordedLinkState::Down, Some(error))
                };
                let end = begin + interval;
                // Stale after 3 s, down after 10 s, then an attempt every 20 s that fails after 5 s.
                let tries =
                    (1..).map(|number| outage.from + 10.0 + 20.0 * f64::from(number)).take_while(|at| *at < end);
                let tries = tries.flat_map(|at| [(at, link(RecordedLinkState::Connecting)), (at + 5.0, down())]);
                let all = [(outage.from + 3.0, link(RecordedLinkState::Stale)), (outage.from + 10.0, down())]
                    .into_iter()
                    .chain(tries);
                for (at, event) in all.filter(|(at, _)| *at >= begin && *at < end.min(outage.to - 0.5)) {
                    push_line(at, event);
                }
            }
            self.is_connected = outage.is_sleep;
            return;
        }
        // After a sleep the connections are dead, which the monitor notices now.
        if let Some(outage) =
            self.outages.iter().find(|outage| outage.is_sleep && outage.to <= time && time < outage.to + interval)
        {
            let error =
                RecordedError { kind: "silent".into(), message: "no data received for 10 s".into(), hint: None };
            push_line(outage.to.max(time), link(RecordedLinkState::Stale));
            push_line(outage.to.max(time) + 0.1, RecordedEvent::Link(RecordedLinkState::Down, Some(error)));
            self.is_connected = false;
            return;
        }
        let is_slow = self.host.active("slow_start").next().is_some();
        if !self.is_connected {
            self.is_connected = true;
            push_line(time - 0.4, link(RecordedLinkState::Connecting));
            self.probe = ProbeConnection::new(&self.host);
            push_line(time - 0.2, RecordedEvent::Wire(Message::Hello(self.host.hello(time))));
            if is_slow {
                push_line(time, link(RecordedLinkState::Live));
                push_line(
                    time,
                    RecordedEvent::Wire(Message::Snapshot(Box::new(self.probe.snapshot(&mut self.host, true)))),
                );
                let late = self.host.active("slow_start").find_map(|event| event.number("answers")).unwrap_or(4.0);
                if late < interval
                    && let Some(inventory) = self.probe.inventory(&self.host)
                {
                    push_line(time + late, RecordedEvent::Wire(Message::Inventory(inventory)));
                    push_line(
                        time + late,
                        RecordedEvent::Wire(Message::Snapshot(Box::new(self.probe.snapshot(&mut self.host, false)))),
                    );
                }
                return;
            }
            self.push_inventory(time - 0.1, &mut push_line);
            push_line(time, link(RecordedLinkState::Live));
            push_line(
                time,
                RecordedEvent::Wire(Message::Snapshot(Box::new(self.probe.snapshot(&mut self.host, false)))),
            );
            return;
        }
        if self.is_lost(time, variant) {
            return;
        }
        self.push_inventory(time, &mut push_line);
        push_line(time, RecordedEvent::Wire(Message::Snapshot(Box::new(self.probe.snapshot(&mut self.host, false)))));
    }

    fn push_inventory(&mut self, time: f64, push_line: &mut impl FnMut(f64, RecordedEvent)) {
        if let Some(inventory) = self.probe.inventory(&self.host) {
            push_line(time, RecordedEvent::Wire(Message::Inventory(inventory)));
        }
    }

    fn is_lost(&mut self, time: f64, variant: Variant) -> bool {
        let is_skipped = self.host.active("skip").next().is_some();
        let dropped = self.rng.chance(0.05);
        if time >= self.gap.1 {
            let next = time + self.rng.between(240.0, 600.0);
            self.gap = (next, next + 60.0);
        }
        match variant {
            _ if is_skipped => true,
            Variant::Drops => dropped,
            Variant::Gaps => time >= self.gap.0 && time < self.gap.1,
            Variant::Plain | Variant::Late => false,
        }
    }
}

fn outages(host: &SimulatedHost, length: f64) -> Vec<Outage> {
    let outage = |event: &Step, is_sleep| Outage {
        from: event.at,
        to: event.at + event.number("for").unwrap_or(length),
        is_sleep,
        error: match event.text("error") {
            Some("refused") => ("refused", "nothing listens on port 22"),
            Some("dns") => ("dns", "the name is not known"),
            Some("network") => ("network", "no route to host"),
            _ => ("timeout", "no answer within 10 s"),
        },
    };
    let down = host.events("down").map(|event| outage(event, false));
    let sleep = host.events("sleep").map(|event| outage(event, true));
    // Sleeps come first: they hide other outages at the same time.
    sleep.chain(down).collect()
}
