//! The connection to a host: its state, the errors, the updates that a host task sends, and the connection log.

use super::Moment;
use crate::wire::{Hello, Inventory, ReadingSource, Reply, ReplyOutcome, SafeText, Scope, Snapshot};
use std::collections::VecDeque;
use std::time::Duration;

/// The state of the connection to one host.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// A connection is being made.
    Connecting {
        /// The number of this attempt, from 1.
        attempt: u32,
        /// The phase that the attempt has reached.
        phase: ConnectPhase,
        /// When this attempt began.
        since: Moment,
    },
    /// The probe sends lines.
    Live,
    /// The connection is open, but no line arrived for 3 s, or no readings for 3 intervals.
    Stale {
        /// When the last readings arrived.
        since: Moment,
    },
    /// There is no connection. The last values remain visible.
    Down {
        /// The cause.
        error: LinkError,
        /// When the host went down.
        since: Moment,
        /// When the next attempt begins; `None` if it waits for the user.
        retry_at: Option<Moment>,
        /// How many attempts have failed in a row.
        attempt: u32,
    },
    /// The host needs the user: a prompt is open, or the last attempt must not be repeated without a request.
    NeedsUser {
        /// The prompt or the action that is needed.
        error: LinkError,
        /// When the state began.
        since: Moment,
    },
}

impl Link {
    /// Whether the host is up but refuses this account.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Down { error, .. } if error.kind == LinkErrorKind::Refusal)
    }

    /// The name in `status --json`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Connecting { .. } => "connecting",
            Self::Live => "live",
            Self::Stale { .. } => "stale",
            Self::Down { .. } => "down",
            Self::NeedsUser { .. } => "needs_user",
        }
    }

    /// The error of this state, if it has one.
    pub fn error(&self) -> Option<&LinkError> {
        match self {
            Self::Down { error, .. } | Self::NeedsUser { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// The phases of a connection attempt, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectPhase {
    /// Waiting in the queue of connection attempts.
    Queued,
    /// Resolving the host name.
    Name,
    /// Opening the TCP connection.
    Tcp,
    /// SSH key exchange, including the host key check.
    KeyExchange,
    /// SSH authentication.
    Login,
    /// The remote script that finds or uploads the probe.
    Probe,
    /// Waiting for the first snapshot.
    FirstSample,
}

impl ConnectPhase {
    /// Every phase, in order.
    const ALL: [Self; 7] =
        [Self::Queued, Self::Name, Self::Tcp, Self::KeyExchange, Self::Login, Self::Probe, Self::FirstSample];

    /// The name between programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Name => "name",
            Self::Tcp => "tcp",
            Self::KeyExchange => "key_exchange",
            Self::Login => "login",
            Self::Probe => "probe",
            Self::FirstSample => "first_sample",
        }
    }

    /// The phase with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.word() == word)
    }

    /// The name on the screen.
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

/// Why a host gives no data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkError {
    /// The kind, for rules, JSON and exit codes.
    pub kind: LinkErrorKind,
    /// The operation and the cause in one sentence, without the host's name.
    pub message: SafeText,
    /// The way out, as a command if possible.
    pub hint: Option<SafeText>,
    /// When to try again.
    pub retry: RetryPolicy,
}

impl LinkError {
    /// Creates an error that is retried with the usual back-off.
    pub fn new(kind: LinkErrorKind, message: impl Into<SafeText>) -> Self {
        Self { kind, message: message.into(), hint: None, retry: RetryPolicy::Backoff }
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<SafeText>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Replaces the retry policy.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }
}

/// When a failed connection is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// After 1 to 60 s: exponential back-off with full jitter.
    Backoff,
    /// Not before this time has passed.
    After(Duration),
    /// Only at the user's request: after authentication and host key errors.
    OnRequest,
}

/// The kinds of connection failure. `status --json` carries their names, which are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkErrorKind {
    /// The host's configuration is invalid.
    Config,
    /// The host name does not resolve.
    Dns,
    /// Nothing listens on the port.
    Refused,
    /// A phase did not finish in time.
    Timeout,
    /// No route, network unreachable or connection reset.
    Network,
    /// The SSH protocol failed before authentication.
    KeyExchange,
    /// The host key is not in `known_hosts`.
    HostKeyUnknown,
    /// The host key differs from the one in `known_hosts`.
    HostKeyChanged,
    /// The host key or its certificate authority is revoked.
    HostKeyRevoked,
    /// A `known_hosts` file cannot be read.
    KnownHosts,
    /// The server accepted no authentication method.
    Authentication,
    /// A key file is missing, unreadable or encrypted.
    IdentityFile,
    /// Authentication succeeded, but the server refuses the account or the command.
    Refusal,
    /// The account's shell cannot run the remote script.
    Shell,
    /// No directory accepts the probe.
    NoDirectory,
    /// There is no probe for this architecture or operating system.
    NoProbe,
    /// The probe exited.
    ProbeEnded,
    /// The data does not follow the wire protocol.
    Protocol,
    /// No line arrived for 10 s, or lines arrive without readings.
    Silent,
    /// The connection was closed.
    Closed,
    /// Not available on this platform.
    Unsupported,
    /// The collector that reads the host sends nothing, or its process is stopped.
    CollectorSilent,
}

impl LinkErrorKind {
    /// Every kind, in declaration order.
    const ALL: [Self; 22] = [
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
        Self::CollectorSilent,
    ];

    /// Returns the kind with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Whether the error concerns host keys or credentials, which only the user can correct.
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

    /// The name in JSON.
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
            Self::CollectorSilent => "collector_silent",
        }
    }
}

/// Snapshots per second that are read from one host, twice as many as at the shortest interval.
pub const MAX_SNAPSHOTS_PER_SECOND: u32 = 8;
/// Bytes per second that are read from one host. A host with 64 processes sends 6 kB per snapshot.
pub const MAX_BYTES_PER_SECOND: u32 = 1 << 20;
/// Processes per second that are read from one host.
pub const MAX_PROCESSES_PER_SECOND: u32 = 16_384;
/// GPUs per second that are read from one host. A GPU has more readings and rules than a process.
pub const MAX_GPUS_PER_SECOND: u32 = 1024;

/// A way to send data that no probe sends: the host is broken, or somebody attacks through it. Its readings are still
/// shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misbehavior {
    /// More than is read.
    SendsTooMuch,
    /// Control characters in texts.
    ControlCharacters,
    /// Numbers that are not finite.
    ImpossibleNumbers,
    /// Facts of processes that start or change faster than processes do.
    TooManyFacts,
}

/// Facts of processes per second on average that a host may send. A probe sends the facts of a process when it sees it and
/// when they change.
pub const MAX_FACTS_PER_SECOND: u32 = 2048;

impl Misbehavior {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::SendsTooMuch, Self::ControlCharacters, Self::ImpossibleNumbers, Self::TooManyFacts];

    /// The name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::SendsTooMuch => "sends_too_much",
            Self::ControlCharacters => "control_characters",
            Self::ImpossibleNumbers => "impossible_numbers",
            Self::TooManyFacts => "too_many_facts",
        }
    }

    /// The misbehavior with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|misbehavior| misbehavior.word() == word)
    }

    /// A short predicate of the host.
    pub fn short_text(self) -> &'static str {
        match self {
            Self::SendsTooMuch => "sends more than gpufleet reads",
            Self::ControlCharacters => "sends control characters",
            Self::ImpossibleNumbers => "sends impossible numbers",
            Self::TooManyFacts => "sends too many new processes",
        }
    }

    /// A predicate of the host.
    pub fn text(self) -> String {
        match self {
            Self::SendsTooMuch => limited_text(),
            Self::ControlCharacters => "sends control characters in texts, which a probe replaces".to_owned(),
            Self::ImpossibleNumbers => "sends numbers that are not finite, which a probe leaves out".to_owned(),
            Self::TooManyFacts => {
                format!("sends facts of more than {MAX_FACTS_PER_SECOND} new or changed processes a second")
            }
        }
    }
}

/// The text about a host that exceeds these limits.
pub fn limited_text() -> String {
    format!(
        "sends more than gpufleet reads: per second {MAX_SNAPSHOTS_PER_SECOND} snapshots, {} MiB, \
         {MAX_PROCESSES_PER_SECOND} processes or {MAX_GPUS_PER_SECOND} GPUs",
        MAX_BYTES_PER_SECOND >> 20
    )
}

/// A message from a host task to the fleet.
#[derive(Debug, Clone, PartialEq)]
pub enum HostUpdate {
    /// An attempt began or reached this phase.
    Connecting {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The phase.
        phase: ConnectPhase,
    },
    /// The first message of the probe.
    Hello(Box<Hello>),
    /// The GPUs, or the error of the driver.
    Inventory(Box<Inventory>),
    /// New readings.
    Snapshot(Box<Snapshot>),
    /// The last readings are this old: a collector passed them on after they had arrived.
    ReadingsAge(Duration),
    /// A heartbeat returned after this time.
    RoundTrip(Duration),
    /// No line for 3 s, or no readings for 3 intervals.
    Silent,
    /// The host misbehaves. Repeated every 10 s as long as that is so.
    Misbehaves(Misbehavior),
    /// The connection was lost or could not be made.
    Down {
        /// The cause.
        error: LinkError,
        /// When the next attempt begins; `None` if it waits for the user.
        retry_at: Option<Moment>,
        /// How many attempts have failed in a row.
        attempt: u32,
    },
    /// The host needs the user before it can continue.
    NeedsUser(LinkError),
    /// The answer to a request.
    Reply(Reply),
}

/// The oldest lines are dropped beyond this number.
const MAX_LINES: usize = 200;

/// One line of the connection log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// The time.
    pub at: Moment,
    /// The event.
    pub text: SafeText,
    /// How many times in a row it happened.
    pub times: u32,
    /// Whether the event is a failure of the connection.
    pub is_failure: bool,
}

/// The connection log of one host. It is built from the host's updates, which carry no secrets.
#[derive(Debug, Clone, Default)]
pub struct ConnectionLog {
    lines: VecDeque<LogLine>,
    /// Number of lines ever added, including dropped ones.
    count: u64,
    attempt: u32,
    has_readings: bool,
}

impl ConnectionLog {
    /// The lines, oldest first.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = &LogLine> {
        self.lines.iter()
    }

    /// Number of lines ever added, including dropped ones. A reader that remembers it finds the new lines.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the lines for an update.
    pub(super) fn record_update(&mut self, update: &HostUpdate, now: Moment) {
        match update {
            HostUpdate::Connecting { attempt, phase } => {
                let text = phase.description();
                if std::mem::replace(&mut self.attempt, *attempt) == *attempt {
                    self.add(text, false, now);
                } else {
                    self.add(&format!("try {attempt}: {text}"), false, now);
                }
                self.has_readings = false;
            }
            HostUpdate::Hello(hello) => {
                let or_dash = |value: &Option<SafeText>| value.as_ref().map_or("-", SafeText::as_str).to_owned();
                let source = hello.source.as_ref().map_or("probe", ReadingSource::as_str);
                let scope = match &hello.scope {
                    Some(Scope::SlurmJob(job)) => format!(", inside Slurm job {job}"),
                    Some(Scope::Container(name)) => format!(", inside container {name}"),
                    Some(Scope::Unknown) => ", inside an unknown part of the host".to_owned(),
                    Some(Scope::Host) | None => String::new(),
                };
                self.add(
                    &format!(
                        "{source} {} runs as {} on Linux {} {}{scope}",
                        hello.probe_version,
                        or_dash(&hello.login_user),
                        or_dash(&hello.kernel),
                        or_dash(&hello.arch)
                    ),
                    false,
                    now,
                );
            }
            HostUpdate::Inventory(inventory) => {
                let driver = inventory.driver_version.as_ref().map_or("-", SafeText::as_str);
                let gpus = format!("{} GPUs, driver {driver}", inventory.gpus.len());
                let error = inventory.error.as_ref().map(|error| format!("driver error: {}", error.message));
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
            HostUpdate::NeedsUser(error) => self.record_failure(error, "; waiting for you", now),
            HostUpdate::Reply(reply) => {
                let text = match &reply.outcome {
                    ReplyOutcome::Sent => "sent".to_owned(),
                    ReplyOutcome::Gone => "the process has exited".to_owned(),
                    ReplyOutcome::Reused => "the pid now belongs to another process".to_owned(),
                    ReplyOutcome::NotPermitted => "not permitted".to_owned(),
                    // An open view repeats these requests.
                    ReplyOutcome::Environment(_) | ReplyOutcome::LogTail { .. } => return,
                    ReplyOutcome::Examined(_) => "examination received".to_owned(),
                    ReplyOutcome::Refused(why) => format!("refused: {why}"),
                    ReplyOutcome::Unknown => "unknown answer".to_owned(),
                };
                self.add(&format!("answer to request {}: {text}", reply.id), false, now);
            }
            HostUpdate::Misbehaves(misbehavior) => self.add(&misbehavior.text(), true, now),
            HostUpdate::RoundTrip(_) | HostUpdate::ReadingsAge(_) => {}
        }
    }

    /// Adds a line for a new boot id.
    pub(super) fn record_reboot(&mut self, now: Moment) {
        self.add("the host was rebooted: all earlier processes have ended", false, now);
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
        // Repeated failures of one host are one line with a counter.
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
    fn every_error_kind_has_a_unique_name() {
        for (index, kind) in LinkErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "ALL is in declaration order");
            assert_eq!(LinkErrorKind::from_word(kind.word()), Some(kind));
        }
        assert_eq!(LinkErrorKind::ALL.len(), LinkErrorKind::CollectorSilent as usize + 1);
        assert_eq!(LinkErrorKind::from_word("teapot"), None);
    }

    fn texts(log: &ConnectionLog) -> Vec<&str> {
        log.lines().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn an_attempt_and_its_failure_are_logged_with_a_hint() {
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
    fn first_readings_are_logged_once_and_again_after_a_silence() {
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
    fn the_log_is_bounded_and_repeated_lines_are_counted() {
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
        assert_eq!((last.text.as_str(), last.times), ("reset␛[2J (network); waiting for you", 3));
    }
}
