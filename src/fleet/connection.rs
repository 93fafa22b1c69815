//! How a host is reached: the state of its connection, and the errors a person meets.

use super::Moment;
use crate::wire::{Hello, Inventory, ReadingSource, Reply, ReplyOutcome, SafeText, Scope, Snapshot};
use std::collections::VecDeque;
use std::time::Duration;

/// The state of the connection to one host.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// A connection is being made.
    Connecting {
        /// Which try this is, from 1.
        attempt: u32,
        /// How far it has come.
        phase: ConnectPhase,
        /// When this try began.
        since: Moment,
    },
    /// Lines arrive.
    Live,
    /// The connection stands, but no line came for 3 s, or no readings for 3 intervals.
    Stale {
        /// When the last readings came.
        since: Moment,
    },
    /// No connection. Last values stay.
    Down {
        /// Why.
        error: LinkError,
        /// Since when.
        since: Moment,
        /// When the next try begins; `None` when it waits for the user.
        retry_at: Option<Moment>,
        /// How many tries have failed in a row.
        attempt: u32,
    },
    /// Only a person can help: a prompt waits, or what was tried may not be tried again unasked.
    NeedsUser {
        /// What is needed.
        error: LinkError,
        /// Since when.
        since: Moment,
    },
}

impl Link {
    /// Whether the host is well and only lets nobody of this account in: that is no host that is down.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Down { error, .. } if error.kind == LinkErrorKind::Refusal)
    }

    /// The word that `status --json` uses.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Connecting { .. } => "connecting",
            Self::Live => "live",
            Self::Stale { .. } => "stale",
            Self::Down { .. } => "down",
            Self::NeedsUser { .. } => "needs_user",
        }
    }

    /// The error that goes with this state.
    pub fn error(&self) -> Option<&LinkError> {
        match self {
            Self::Down { error, .. } | Self::NeedsUser { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// How far a connection has come, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectPhase {
    /// Waiting for a place in the queue of tries.
    Queued,
    /// Looking up the name.
    Name,
    /// Opening the TCP connection.
    Tcp,
    /// SSH key exchange, host key checked in it.
    KeyExchange,
    /// Authentication.
    Login,
    /// The remote script: finding or uploading the probe.
    Probe,
    /// Waiting for the first snapshot.
    FirstSample,
}

impl ConnectPhase {
    /// In words, for the pane.
    pub fn description(self) -> &'static str {
        match self {
            Self::Queued => "waiting for its turn",
            Self::Name => "name",
            Self::Tcp => "tcp",
            Self::KeyExchange => "key exchange",
            Self::Login => "login",
            Self::Probe => "probe",
            Self::FirstSample => "first sample",
        }
    }
}

/// Why a host gives no data: operation and cause in `message`, the way out in `hint`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkError {
    /// For rules, JSON and exit codes.
    pub kind: LinkErrorKind,
    /// One sentence without the host's name: what was tried and what came of it.
    pub message: SafeText,
    /// What a person can do, as a command where there is one.
    pub hint: Option<SafeText>,
    /// When to try again.
    pub retry: RetryPolicy,
}

impl LinkError {
    /// An error that is retried with the usual back-off.
    pub fn new(kind: LinkErrorKind, message: impl Into<SafeText>) -> Self {
        Self { kind, message: message.into(), hint: None, retry: RetryPolicy::Backoff }
    }

    /// The same with a way out.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<SafeText>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with another rule for the next try.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }
}

/// When a failed connection is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Full jitter, 1 to 60 s.
    Backoff,
    /// Not before this long.
    After(Duration),
    /// Only when the user asks: authentication and host keys.
    OnRequest,
}

/// The kinds of failure on the way to a host's data. The words are stable: `status --json` carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkErrorKind {
    /// The host's configuration cannot be used.
    Config,
    /// The name could not be resolved.
    Dns,
    /// Nothing listens on the port.
    Refused,
    /// No answer in time, in whichever phase.
    Timeout,
    /// No route, network unreachable, connection reset.
    Network,
    /// The SSH protocol failed before authentication.
    KeyExchange,
    /// The host key is not known.
    HostKeyUnknown,
    /// The host key differs from the known one.
    HostKeyChanged,
    /// The host key, or its CA, is revoked.
    HostKeyRevoked,
    /// A `known_hosts` file cannot be read.
    KnownHosts,
    /// No method of authentication was accepted.
    Authentication,
    /// A key file is missing, unreadable or locked.
    IdentityFile,
    /// The server let us in but refuses the account or the command.
    Refusal,
    /// The account's shell cannot run the remote script.
    Shell,
    /// No directory in which the probe could be put.
    NoDirectory,
    /// No probe for this architecture or system.
    NoProbe,
    /// The probe ended.
    ProbeEnded,
    /// What arrived is not the probe's protocol.
    Protocol,
    /// No line for 10 s, or no readings although lines come.
    Silent,
    /// The connection was closed.
    Closed,
    /// Not available on this platform.
    Unsupported,
}

impl LinkErrorKind {
    /// Every kind, in the order of its declaration.
    pub const ALL: [Self; 21] = [
        Self::Config,
        Self::Dns,
        Self::Refused,
        Self::Timeout,
        Self::Network,
        Self::KeyExchange,
        Self::HostKeyUnknown,
        Self::HostKeyChanged,
        Self::HostKeyRevoked,
        Self::KnownHosts,
        Self::Authentication,
        Self::IdentityFile,
        Self::Refusal,
        Self::Shell,
        Self::NoDirectory,
        Self::NoProbe,
        Self::ProbeEnded,
        Self::Protocol,
        Self::Silent,
        Self::Closed,
        Self::Unsupported,
    ];

    /// The kind that has this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Whether it is about host keys or credentials, which only a person can put right.
    pub fn concerns_credentials(self) -> bool {
        matches!(
            self,
            Self::HostKeyUnknown
                | Self::HostKeyChanged
                | Self::HostKeyRevoked
                | Self::KnownHosts
                | Self::Authentication
                | Self::IdentityFile
        )
    }

    /// The word that JSON carries.
    pub fn word(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Dns => "dns",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::KeyExchange => "key_exchange",
            Self::HostKeyUnknown => "host_key_unknown",
            Self::HostKeyChanged => "host_key_changed",
            Self::HostKeyRevoked => "host_key_revoked",
            Self::KnownHosts => "known_hosts",
            Self::Authentication => "authentication",
            Self::IdentityFile => "identity_file",
            Self::Refusal => "refusal",
            Self::Shell => "shell",
            Self::NoDirectory => "no_directory",
            Self::NoProbe => "no_probe",
            Self::ProbeEnded => "probe_ended",
            Self::Protocol => "protocol",
            Self::Silent => "silent",
            Self::Closed => "closed",
            Self::Unsupported => "unsupported",
        }
    }
}

/// What a host task tells the fleet.
#[derive(Debug, Clone, PartialEq)]
pub enum HostUpdate {
    /// A try has begun, or has come this far.
    Connecting {
        /// Which try, from 1.
        attempt: u32,
        /// How far.
        phase: ConnectPhase,
    },
    /// The probe introduced itself: the link is live.
    Hello(Box<Hello>),
    /// The GPUs, or why there are none.
    Inventory(Box<Inventory>),
    /// Readings.
    Snapshot(Box<Snapshot>),
    /// A heartbeat came back after this long.
    RoundTrip(Duration),
    /// No line for 3 s, or no readings for 3 intervals.
    Silent,
    /// The connection is gone, or could not be made.
    Down {
        /// Why.
        error: LinkError,
        /// When the next try begins; `None` when it waits for the user.
        retry_at: Option<Moment>,
        /// How many tries have failed in a row.
        attempt: u32,
    },
    /// A person is needed before it can go on.
    NeedsUser(LinkError),
    /// The answer to a request.
    Reply(Reply),
}

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

    fn record_failure(&mut self, error: &LinkError, next: &str, now: Moment) {
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

    #[test]
    fn every_kind_has_a_word_of_its_own() {
        for (index, kind) in LinkErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "ALL is in the order of the declaration");
            assert_eq!(LinkErrorKind::from_word(kind.word()), Some(kind));
        }
        assert_eq!(LinkErrorKind::ALL.len(), LinkErrorKind::Unsupported as usize + 1);
        assert_eq!(LinkErrorKind::from_word("teapot"), None);
    }

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
