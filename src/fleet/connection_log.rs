//! What was done to reach a host and what came of it, in words: a bounded log of its own for each host.
//!
//! It is made of the updates that the host's task sends, which carry no secret: what a person types goes another way.

use super::{HostUpdate, Moment};
use crate::wire::{ReadingSource, ReplyOutcome, SafeText, Scope};
use std::collections::VecDeque;

/// Lines that are kept; the oldest go first.
const MAX_LINES: usize = 200;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// When.
    pub at: Moment,
    /// What happened.
    pub text: SafeText,
    /// How many times in a row.
    pub times: u32,
    /// It kept the host from being watched.
    pub is_failure: bool,
}

/// The log of one host.
#[derive(Debug, Clone, Default)]
pub struct ConnectionLog {
    lines: VecDeque<LogLine>,
    /// Lines so far, those that have gone among them.
    count: u64,
    attempt: u32,
    has_readings: bool,
}

impl ConnectionLog {
    /// The lines, the oldest first.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = &LogLine> {
        self.lines.iter()
    }

    /// How many lines there have been, those that have gone among them: who writes them down knows by it what is new.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Takes what an update tells.
    pub(super) fn record_update(&mut self, update: &HostUpdate, now: Moment) {
        match update {
            HostUpdate::Connecting { attempt, phase } => {
                let words = phase.description();
                if std::mem::replace(&mut self.attempt, *attempt) == *attempt {
                    self.add(words, false, now);
                } else {
                    self.add(&format!("try {attempt}: {words}"), false, now);
                }
                self.has_readings = false;
            }
            HostUpdate::Hello(hello) => {
                let word = |text: &Option<SafeText>| text.as_ref().map_or("-", SafeText::as_str).to_owned();
                let source = hello.source.as_ref().map_or("probe", ReadingSource::as_str);
                let scope = match &hello.scope {
                    Some(Scope::SlurmJob(job)) => format!(", inside Slurm job {job}"),
                    Some(Scope::Container(name)) => format!(", inside container {name}"),
                    Some(Scope::Unknown) => ", inside an unknown part of the host".to_owned(),
                    Some(Scope::Host) | None => String::new(),
                };
                self.add(
                    &format!(
                        "{source} {} speaks as {} on Linux {} {}{scope}",
                        hello.probe_version,
                        word(&hello.login_user),
                        word(&hello.kernel),
                        word(&hello.arch)
                    ),
                    false,
                    now,
                );
            }
            HostUpdate::Inventory(inventory) => {
                let driver = inventory.driver_version.as_ref().map_or("-", SafeText::as_str);
                let gpus = format!("{} GPUs, driver {driver}", inventory.gpus.len());
                let error = inventory.error.as_ref().map(|error| format!("the driver: {}", error.message));
                self.add(error.as_ref().unwrap_or(&gpus), error.is_some(), now);
            }
            HostUpdate::Snapshot(_) => {
                if !std::mem::replace(&mut self.has_readings, true) {
                    self.add("first readings", false, now);
                }
            }
            HostUpdate::Silent => {
                self.has_readings = false;
                self.add("no answer in time", true, now);
            }
            HostUpdate::Down { error, retry_at, .. } => {
                let next = match retry_at {
                    Some(at) => format!("; next try in {:.0} s", now.until(*at).as_secs_f64()),
                    None => String::new(),
                };
                self.record_failure(error, &next, now);
            }
            HostUpdate::NeedsUser(error) => self.record_failure(error, "; it waits for you", now),
            HostUpdate::Reply(reply) => {
                let words = match &reply.outcome {
                    ReplyOutcome::Sent => "sent".to_owned(),
                    ReplyOutcome::Gone => "the process is gone".to_owned(),
                    ReplyOutcome::Reused => "the pid is another process now".to_owned(),
                    ReplyOutcome::NotPermitted => "not permitted".to_owned(),
                    ReplyOutcome::Environment(_) => "the environment was told".to_owned(),
                    ReplyOutcome::LogTail { .. } => "the end of the log was told".to_owned(),
                    ReplyOutcome::Refused(why) => format!("refused: {why}"),
                    ReplyOutcome::Unknown => "an unknown answer".to_owned(),
                };
                self.add(&format!("answer to request {}: {words}", reply.id), false, now);
            }
            HostUpdate::RoundTrip(_) => {}
        }
    }

    /// Notes that it came back with another boot id.
    pub(super) fn record_reboot(&mut self, now: Moment) {
        self.add("the host was rebooted: nothing that ran there before runs now", false, now);
    }

    fn record_failure(&mut self, error: &super::LinkError, next: &str, now: Moment) {
        self.has_readings = false;
        self.add(&format!("{} ({}){next}", error.message, error.kind.word()), true, now);
        if let Some(hint) = &error.hint {
            self.add(&format!("hint: {hint}"), false, now);
        }
    }

    fn add(&mut self, text: &str, is_failure: bool, now: Moment) {
        let text = SafeText::new(text);
        // A host that fails the same way all night is one line.
        if let Some(last) = self.lines.back_mut().filter(|last| last.text == text) {
            last.times = last.times.saturating_add(1);
            last.at = now;
            return;
        }
        if self.lines.len() >= MAX_LINES {
            self.lines.pop_front();
        }
        self.count += 1;
        self.lines.push_back(LogLine { at: now, text, times: 1, is_failure });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixture::at;
    use crate::fleet::{ConnectPhase, LinkError, LinkErrorKind};
    use crate::wire::Snapshot;

    fn texts(log: &ConnectionLog) -> Vec<&str> {
        log.lines().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_try_and_its_failure_are_told_with_the_way_out() {
        let mut log = ConnectionLog::default();
        log.record_update(&HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::Name }, at(0.0));
        log.record_update(&HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::Tcp }, at(0.1));
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22").with_hint("is sshd running?");
        log.record_update(&HostUpdate::Down { error, retry_at: Some(at(5.0)), attempt: 1 }, at(1.0));
        log.record_update(&HostUpdate::Connecting { attempt: 2, phase: ConnectPhase::Name }, at(5.0));
        assert_eq!(
            texts(&log),
            [
                format!("try 1: {}", ConnectPhase::Name.description()).as_str(),
                ConnectPhase::Tcp.description(),
                "nothing listens on port 22 (refused); next try in 4 s",
                "hint: is sshd running?",
                format!("try 2: {}", ConnectPhase::Name.description()).as_str(),
            ]
        );
        assert!(log.lines().nth(2).is_some_and(|line| line.is_failure));
    }

    #[test]
    fn readings_are_told_once_and_again_after_a_silence() {
        let mut log = ConnectionLog::default();
        let snapshot = HostUpdate::Snapshot(Box::<Snapshot>::default());
        for second in 0..50 {
            log.record_update(&snapshot, at(f64::from(second)));
        }
        log.record_update(&HostUpdate::Silent, at(60.0));
        log.record_update(&snapshot, at(61.0));
        assert_eq!(texts(&log), ["first readings", "no answer in time", "first readings"]);
    }

    #[test]
    fn it_stays_bounded_and_what_repeats_is_one_line() {
        let mut log = ConnectionLog::default();
        for attempt in 1..2000 {
            log.record_update(&HostUpdate::Connecting { attempt, phase: ConnectPhase::Queued }, at(f64::from(attempt)));
        }
        assert_eq!((log.lines().len(), log.count()), (MAX_LINES, 1999));
        let error = LinkError::new(LinkErrorKind::Network, "reset\u{1b}[2J");
        for second in 0..3 {
            log.record_update(&HostUpdate::NeedsUser(error.clone()), at(3000.0 + f64::from(second)));
        }
        let last = log.lines().last().expect("a line");
        assert_eq!((last.text.as_str(), last.times), ("reset␛[2J (network); it waits for you", 3));
    }
}
