//! Prompts and their answers: plain data.

use std::fmt;
use zeroize::Zeroizing;

/// Whether prompts can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interaction {
    /// Prompts are sent as [`PromptEvent`]s and wait for [`super::Context::answer`].
    Ask,
    /// A prompt becomes an error, with the command that makes it unnecessary as the hint.
    Refuse,
}

/// A prompt that a login needs and [`Interaction::Refuse`] forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedPrompt {
    /// The host key is not known.
    HostKey {
        /// Name, address and port of the server.
        target: String,
        /// `SHA256:...`
        fingerprint: String,
    },
    /// The server accepts a key that has a passphrase.
    Passphrase {
        /// The path of the key file.
        path: String,
    },
    /// The server accepts a password.
    Password {
        /// `USER@HOST`.
        login: String,
    },
    /// The server asks questions, for example for a one-time code.
    KeyboardInteractive {
        /// `USER@HOST`.
        login: String,
    },
}

/// A change of the open prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptEvent {
    /// A prompt is open. It is sent again, with the same id, when its hosts change.
    Opened(Prompt),
    /// No host waits for this prompt any more.
    Withdrawn(PromptId),
}

/// An open question to the user. Hosts that need the same answer share one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Identifies the prompt in the answer.
    pub id: PromptId,
    /// The names of the waiting hosts, in the order in which they asked.
    pub hosts: Vec<String>,
    /// The question.
    pub kind: PromptKind,
}

/// Identifies an open prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PromptId(pub u64);

/// A question and what the dialog shows with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptKind {
    /// Whether to trust an unknown host key.
    HostKey {
        /// Name, address and port of the server.
        target: String,
        /// The type of the key, for example `ssh-ed25519`.
        key_type: String,
        /// `SHA256:...`
        fingerprint: String,
        /// The known_hosts file to which it would be added.
        known_hosts: String,
        /// Other names in known_hosts that have the same key.
        also_known_as: Vec<String>,
    },
    /// The passphrase of a key file.
    Passphrase {
        /// The path of the key file.
        path: String,
        /// `SHA256:...` of its public key, if that is readable without the passphrase.
        fingerprint: Option<String>,
        /// How many answers were wrong so far.
        failures: u32,
    },
    /// A password, or a question of the server (keyboard-interactive).
    Secret {
        /// The question, from the server or from gpufleet.
        text: String,
        /// The server's instruction, shown above the question.
        instruction: String,
        /// Whether to show the answer while it is typed.
        echo: bool,
        /// How many answers were wrong so far.
        failures: u32,
    },
}

impl PromptKind {
    /// Adds the host of a key that was saved meanwhile, if this prompt is about the same key for another host: it was made
    /// before that key was in `known_hosts`.
    pub fn note_saved_key(&mut self, saved: &Self) {
        if let (
            Self::HostKey { key_type, fingerprint, target, also_known_as, .. },
            Self::HostKey { key_type: saved_type, fingerprint: saved_fingerprint, target: saved_target, .. },
        ) = (self, saved)
            && (&*key_type, &*fingerprint) == (saved_type, saved_fingerprint)
            && target != saved_target
            && !also_known_as.contains(saved_target)
        {
            also_known_as.push(saved_target.clone());
        }
    }
}

/// The answer to a prompt.
pub enum Answer {
    /// Trust the host key until the process ends.
    TrustOnce,
    /// Trust the host key and add it to known_hosts.
    TrustAndSave,
    /// A passphrase, a password or a code.
    Secret(Secret),
    /// Cancel.
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

/// A typed secret. It is zeroized when dropped, has no `Clone`, and `Debug` does not show it.
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes ownership of the typed text.
    pub fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// The text, for the call that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(...)")
    }
}
