//! What a person is asked on the way in, and what they answer: plain data.

use std::fmt;
use zeroize::Zeroizing;

/// A question that waits for a person. One is asked per key or host, however many hosts wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Names it in the answer.
    pub id: PromptId,
    /// The names of the hosts that wait, the one that asked first in front.
    pub hosts: Vec<String>,
    /// What is asked.
    pub kind: PromptKind,
}

/// Names a prompt while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PromptId(pub u64);

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptKind {
    /// Whether an unknown host key may be trusted.
    HostKey {
        /// What was connected to: name, address and port.
        target: String,
        /// The key's type, for example `ssh-ed25519`.
        key_type: String,
        /// `SHA256:...`
        fingerprint: String,
        /// The file it would be added to.
        known_hosts: String,
        /// Other names under which the same key is known.
        also_known_as: Vec<String>,
    },
    /// The passphrase of a key file.
    Passphrase {
        /// The file.
        path: String,
        /// `SHA256:...` of its public key, where it can be read without the passphrase.
        fingerprint: Option<String>,
        /// How many answers were wrong so far.
        failures: u32,
    },
    /// A password, or a question of the server's (keyboard-interactive).
    Secret {
        /// The server's or our own words.
        text: String,
        /// The server's instruction above them.
        instruction: String,
        /// Whether what is typed may be shown.
        echo: bool,
        /// How many answers were wrong so far.
        failures: u32,
    },
}

/// What a person answers.
pub enum Answer {
    /// Use the key this time.
    TrustOnce,
    /// Use the key and write it down.
    TrustAndSave,
    /// A passphrase, a password or a code.
    Secret(Secret),
    /// No.
    Decline,
}

impl fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::TrustOnce => "TrustOnce",
            Self::TrustAndSave => "TrustAndSave",
            Self::Secret(_) => "Secret(...)",
            Self::Decline => "Decline",
        })
    }
}

/// A typed secret: wiped when dropped, neither shown nor copied.
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes over what was typed.
    pub fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// The secret itself, for the call that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(...)")
    }
}
