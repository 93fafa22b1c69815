//! How a host is reached: the state of its connection, and the errors a person meets.

use super::Moment;
use crate::wire::SafeText;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_word_of_its_own() {
        for (index, kind) in LinkErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "ALL is in the order of the declaration");
            assert_eq!(LinkErrorKind::from_word(kind.word()), Some(kind));
        }
        assert_eq!(LinkErrorKind::ALL.len(), LinkErrorKind::Unsupported as usize + 1);
        assert_eq!(LinkErrorKind::from_word("teapot"), None);
    }
}
