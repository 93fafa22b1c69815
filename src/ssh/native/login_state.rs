//! What one connection teaches the next, while one host is being opened.

use crate::ssh::credentials::EncryptedKey;
use crate::ssh::prompt::Answer;
use crate::ssh::transport::SshError;
use russh::keys::PublicKey;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// Remembered from one connection to the next.
#[derive(Debug, Default)]
pub(super) struct LoginState {
    /// Fingerprints of keys that the server refused: offering them again would cost tries.
    pub(super) refused_fingerprints: HashSet<String>,
    /// Those keys in words, in the order in which they were offered.
    pub(super) offered_keys: Vec<String>,
    /// The key that was tried last, for people.
    pub(super) last_key: Option<String>,
    /// A password that was typed and not yet tried.
    pub(super) password: Option<Arc<Answer>>,
    /// How many passwords were wrong.
    pub(super) wrong_passwords: u32,
    /// The right to have the server ask questions: the person answers one login at a time.
    pub(super) prompt_turn: Option<OwnedMutexGuard<()>>,
}

/// Why a connection ended before the command ran.
#[derive(Debug)]
pub(super) enum RetryReason {
    /// For good.
    Fatal(SshError),
    /// For good here; the `ssh` program may manage.
    NeedsSshProgram(SshError),
    /// The server's key is not known.
    UnknownKey(Box<UnknownHostKey>),
    /// The server would take this key, which needs its passphrase.
    EncryptedKey(Box<EncryptedKey>),
    /// The server would take a password.
    PasswordNeeded,
    /// The server would ask questions, and the person is busy with another login's.
    PromptBusy,
    /// The server asks questions, and nobody answers while the connection would still be good.
    PromptTimedOut,
}

/// A server whose key is not known.
#[derive(Debug)]
pub(super) struct UnknownHostKey {
    pub(super) key: PublicKey,
    /// Names under which the key is known.
    pub(super) other_names: Vec<String>,
    /// What was connected to, for people.
    pub(super) target: String,
}

impl From<super::connect::NativeError> for RetryReason {
    fn from(failure: super::connect::NativeError) -> Self {
        if failure.ssh_program_may_help { Self::NeedsSshProgram(failure.error) } else { Self::Fatal(failure.error) }
    }
}

impl From<SshError> for RetryReason {
    fn from(error: SshError) -> Self {
        Self::Fatal(error)
    }
}
