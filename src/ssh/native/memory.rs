//! What one connection teaches the next, while one host is being opened.

use crate::ssh::credentials::Locked;
use crate::ssh::prompt::Answer;
use crate::ssh::transport::SshError;
use russh::keys::PublicKey;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// Remembered from one connection to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Fingerprints of keys that the server refused: offering them again would cost tries.
    pub(super) refused: HashSet<String>,
    /// Those keys in words, in the order in which they were offered.
    pub(super) offered: Vec<String>,
    /// The key that was tried last, for people.
    pub(super) last: Option<String>,
    /// A password that was typed and not yet tried.
    pub(super) password: Option<Arc<Answer>>,
    /// How many passwords were wrong.
    pub(super) wrong_passwords: u32,
    /// The right to have the server ask questions: the person answers one login at a time.
    pub(super) turn: Option<OwnedMutexGuard<()>>,
}

/// Why a connection ended before the command ran.
#[derive(Debug)]
pub(super) enum Setback {
    /// For good.
    Failed(SshError),
    /// For good here; the `ssh` program may manage.
    BeyondUs(SshError),
    /// The server's key is not known.
    UnknownKey(Box<Stranger>),
    /// The server would take this key, which needs its passphrase.
    Locked(Box<Locked>),
    /// The server would take a password.
    Password,
    /// The server would ask questions, and the person is busy with another login's.
    Turn,
    /// The server asks questions, and nobody answers while the connection would still be good.
    Unattended,
}

/// A server whose key is not known.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) key: PublicKey,
    /// Names under which the key is known.
    pub(super) other_names: Vec<String>,
    /// What was connected to, for people.
    pub(super) target: String,
}

impl From<super::connect::Failure> for Setback {
    fn from(failure: super::connect::Failure) -> Self {
        if failure.ssh_may_manage { Self::BeyondUs(failure.error) } else { Self::Failed(failure.error) }
    }
}

impl From<SshError> for Setback {
    fn from(error: SshError) -> Self {
        Self::Failed(error)
    }
}
