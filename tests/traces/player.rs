//! Plays a case: the lines of a recording, one step of all hosts after the other.

use super::dice::Dice;
use super::machine::{Machine, START_UNIX};
use super::script::{Case, Step, seconds};
use gpufleet::fleet::recording::{HostLine, Line, LinkWord, Recorded, RecordedError};
use gpufleet::wire::{Message, SafeText};
use std::fmt;

/// How a case is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Every sample arrives.
    Plain,
    /// One sample in twenty does not.
    Drops,
    /// Every few minutes nothing comes for a minute.
    Gaps,
    /// The monitor begins in the middle.
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

/// A case that is being played.
pub(crate) struct Player {
    hosts: Vec<Seat>,
    variant: Variant,
    interval: f64,
    length: f64,
    /// When the monitor begins.
    attaches: f64,
    step: u64,
    has_begun: bool,
}

struct Seat {
    machine: Machine,
    dice: Dice,
    offset: f64,
    /// No connection: since when, and until when.
    cuts: Vec<Cut>,
    is_connected: bool,
    gap: (f64, f64),
}

/// A time without a connection.
struct Cut {
    from: f64,
    to: f64,
    /// The monitor's own machine slept: nobody noticed.
    is_sleep: bool,
    error: (&'static str, &'static str),
}

impl Player {
    pub(crate) fn new(case: &Case, variant: Variant, seed: u64) -> Self {
        let length = seconds(&case.length);
        let late = case.late.as_ref().map_or(length / 2.0, |late| seconds(late));
        let hosts = (0..case.hosts).map(|index| {
            let machine = Machine::new(case, index, seed);
            let mut dice = Dice::new(&[seed, index as u64, 3]);
            let cuts = cuts(&machine, length);
            let gap = dice.between(200.0, 500.0);
            Seat {
                machine,
                offset: (index as f64 * 0.37 + 0.5) % case.interval.min(5.0),
                cuts,
                is_connected: false,
                gap: (gap, gap + 60.0),
                dice,
            }
        });
        Self {
            hosts: hosts.collect(),
            variant,
            interval: case.interval,
            length,
            attaches: if variant == Variant::Late { late } else { 0.0 },
            step: 0,
            has_begun: false,
        }
    }

    /// When the monitor begins, seconds after the case does.
    pub(crate) fn attaches(&self) -> f64 {
        self.attaches
    }

    fn play(&mut self) -> Vec<Line> {
        let begin = self.step as f64 * self.interval;
        self.step += 1;
        let mut lines: Vec<HostLine> = Vec::new();
        for seat in &mut self.hosts {
            let time = begin + seat.offset;
            seat.machine.advance(time);
            if time < self.attaches {
                continue;
            }
            seat.play(begin, time, self.interval, self.variant, self.attaches, &mut lines);
        }
        lines.sort_by(|one, other| one.t.total_cmp(&other.t));
        lines.into_iter().map(Line::Host).collect()
    }
}

impl Iterator for Player {
    type Item = Vec<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.has_begun {
            self.has_begun = true;
            let unix = (START_UNIX + self.attaches) as i64;
            let started = jiff::Timestamp::from_second(unix).expect("a time").to_string();
            return Some(vec![Line::Start { started: SafeText::new(&started) }]);
        }
        (self.step as f64 * self.interval < self.length).then(|| self.play())
    }
}

impl Seat {
    fn play(
        &mut self,
        begin: f64,
        time: f64,
        interval: f64,
        variant: Variant,
        attaches: f64,
        lines: &mut Vec<HostLine>,
    ) {
        let host = self.machine.name.clone();
        let mut tell = |at: f64, what| {
            let t = ((at - attaches).max(0.0) * 1e3).round() / 1e3;
            lines.push(HostLine { t, host: host.clone(), what });
        };
        let link = |word| Recorded::Link(word, None);
        if let Some(cut) = self.cuts.iter().find(|cut| cut.from <= time && time < cut.to) {
            if !cut.is_sleep {
                let (kind, message) = cut.error;
                let down = || {
                    let error = RecordedError { kind: kind.into(), message: message.into(), hint: None };
                    Recorded::Link(LinkWord::Down, Some(error))
                };
                let end = begin + interval;
                // Nothing for 3 s, then for 10 s; after that a try every 20 s that takes 5.
                let tries = (1..).map(|number| cut.from + 10.0 + 20.0 * f64::from(number)).take_while(|at| *at < end);
                let tries = tries.flat_map(|at| [(at, link(LinkWord::Connecting)), (at + 5.0, down())]);
                let all = [(cut.from + 3.0, link(LinkWord::Stale)), (cut.from + 10.0, down())].into_iter().chain(tries);
                for (at, what) in all.filter(|(at, _)| *at >= begin && *at < end.min(cut.to - 0.5)) {
                    tell(at, what);
                }
            }
            self.is_connected = cut.is_sleep;
            return;
        }
        // It slept: what was connected is dead, and is noticed now.
        if let Some(cut) = self.cuts.iter().find(|cut| cut.is_sleep && cut.to <= time && time < cut.to + interval) {
            let error =
                RecordedError { kind: "silent".into(), message: "nothing was heard for 10 s".into(), hint: None };
            tell(cut.to.max(time), link(LinkWord::Stale));
            tell(cut.to.max(time) + 0.1, Recorded::Link(LinkWord::Down, Some(error)));
            self.is_connected = false;
            return;
        }
        let is_slow = self.machine.active("slow_start", time).next().is_some();
        if !self.is_connected {
            self.is_connected = true;
            tell(time - 0.4, link(LinkWord::Connecting));
            tell(time - 0.2, Recorded::Wire(Message::Hello(self.machine.connect())));
            if is_slow {
                tell(time, link(LinkWord::Live));
                tell(time, Recorded::Wire(Message::Snapshot(Box::new(self.machine.snapshot(true)))));
                let late =
                    self.machine.active("slow_start", time).find_map(|event| event.number("answers")).unwrap_or(4.0);
                if late < interval
                    && let Some(inventory) = self.machine.inventory()
                {
                    tell(time + late, Recorded::Wire(Message::Inventory(inventory)));
                    tell(time + late, Recorded::Wire(Message::Snapshot(Box::new(self.machine.snapshot(false)))));
                }
                return;
            }
            self.tell_inventory(time - 0.1, &mut tell);
            tell(time, link(LinkWord::Live));
            tell(time, Recorded::Wire(Message::Snapshot(Box::new(self.machine.snapshot(false)))));
            return;
        }
        if self.is_missed(time, variant) {
            return;
        }
        self.tell_inventory(time, &mut tell);
        tell(time, Recorded::Wire(Message::Snapshot(Box::new(self.machine.snapshot(false)))));
    }

    fn tell_inventory(&mut self, time: f64, tell: &mut impl FnMut(f64, Recorded)) {
        if let Some(inventory) = self.machine.inventory() {
            tell(time, Recorded::Wire(Message::Inventory(inventory)));
        }
    }

    fn is_missed(&mut self, time: f64, variant: Variant) -> bool {
        let is_skipped = self.machine.active("skip", time).next().is_some();
        let dropped = self.dice.chance(0.05);
        if time >= self.gap.1 {
            let next = time + self.dice.between(240.0, 600.0);
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

fn cuts(machine: &Machine, length: f64) -> Vec<Cut> {
    let cut = |event: &Step, is_sleep| Cut {
        from: event.at,
        to: event.at + event.time("for").unwrap_or(length),
        is_sleep,
        error: match event.text("error") {
            Some("refused") => ("refused", "nothing listens on port 22"),
            Some("dns") => ("dns", "the name is not known"),
            Some("network") => ("network", "no route to host"),
            _ => ("timeout", "no answer within 10 s"),
        },
    };
    let down = machine.events("down").map(|event| cut(event, false));
    let sleep = machine.events("sleep").map(|event| cut(event, true));
    // While the monitor's machine sleeps, nobody sees what else is cut.
    sleep.chain(down).collect()
}
