//! Whether a server's key is good, and what to say and ask when it is not.

use super::memory::Stranger;
use crate::ssh::Context;
use crate::ssh::credentials::{PromptKey, Unanswered};
use crate::ssh::known_hosts::{self, HostName, KnownHosts, Place, Verdict, Vouched, fingerprint};
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::resolve::{Resolved, StrictHostKeys};
use crate::ssh::text::{shell_word, ssh_target};
use crate::ssh::transport::{SshError, SshErrorKind};
use russh::keys::{Certificate, PublicKey};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Decides on the keys of one connection, before anything secret is sent.
#[derive(Debug)]
pub(super) struct Judge {
    pub(super) known: KnownHosts,
    pub(super) name: HostName,
    /// The key that a person has just trusted at a prompt.
    pub(super) trusted: Option<PublicKey>,
    /// Fingerprints of keys that a person trusted for this host since the process began.
    pub(super) trusted_before: Vec<String>,
    pub(super) accept_new: bool,
    /// The key of the first exchange: a later exchange on the same connection must show the same.
    pub(super) accepted: Option<PublicKey>,
}

/// What became of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ruling {
    /// It is used; if new, it must be written down.
    Accepted { new: Option<PublicKey> },
    /// Nothing is known of the host; other names of the key.
    Unknown { key: PublicKey, other_names: Vec<String> },
    /// The host has other keys.
    Changed { key: PublicKey, place: Place },
    /// The key must not be used.
    Revoked { key: PublicKey, place: Place },
    /// An authority of ours vouches for the key, but its certificate is not good, and the key alone is not known.
    BadCertificate { key: PublicKey, why: String },
    /// The key differs from the one that the connection began with.
    Swapped,
}

impl Judge {
    pub(super) fn rule(&mut self, key: &PublicKey) -> Ruling {
        if let Some(accepted) = &self.accepted {
            let same = accepted.key_data() == key.key_data();
            return if same { Ruling::Accepted { new: None } } else { Ruling::Swapped };
        }
        let new = match self.known.evaluate(&self.name, key) {
            Verdict::Known => None,
            Verdict::Unknown(_) if self.is_trusted(key) => None,
            Verdict::Unknown(_) if self.accept_new => Some(key.clone()),
            Verdict::Unknown(other_names) => return Ruling::Unknown { key: key.clone(), other_names },
            Verdict::Changed(place) => return Ruling::Changed { key: key.clone(), place },
            Verdict::Revoked(place) => return Ruling::Revoked { key: key.clone(), place },
        };
        self.accepted = Some(key.clone());
        Ruling::Accepted { new }
    }

    /// Judges a certificate; where no authority of ours vouches for it, its key alone, as ssh does.
    pub(super) fn rule_certificate(&mut self, certificate: &Certificate) -> Ruling {
        let key = PublicKey::from(certificate.public_key().clone());
        if self.accepted.is_some() {
            return self.rule(&key);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match self.known.vouch(&self.name, certificate, now) {
            Vouched::Yes => {
                self.accepted = Some(key);
                Ruling::Accepted { new: None }
            }
            Vouched::NoAuthority => self.rule(&key),
            Vouched::Revoked(place) => Ruling::Revoked { key, place },
            Vouched::Bad(why) => match self.known.evaluate(&self.name, &key) {
                Verdict::Known => self.rule(&key),
                _ => Ruling::BadCertificate { key, why },
            },
        }
    }

    fn is_trusted(&self, key: &PublicKey) -> bool {
        match &self.trusted {
            Some(trusted) => trusted.key_data() == key.key_data(),
            None => self.trusted_before.contains(&fingerprint(key)),
        }
    }
}

/// Asks whether an unknown key may be trusted; afterwards it is, or the error says why not.
pub(super) async fn ask(
    context: &Context,
    host: &str,
    resolved: &Resolved,
    name: &HostName,
    stranger: &Stranger,
) -> Result<(), SshError> {
    let key = &stranger.key;
    let print = fingerprint(key);
    if resolved.strict_host_keys == StrictHostKeys::Yes {
        return Err(unknown(resolved, name, key, "StrictHostKeyChecking is on"));
    }
    let file = resolved.user_known_hosts.first().cloned();
    let kind = PromptKind::HostKey {
        target: stranger.target.clone(),
        key_type: key.algorithm().as_str().to_owned(),
        fingerprint: print.clone(),
        known_hosts: file.as_ref().map(|file| file.display().to_string()).unwrap_or_default(),
        also_known_as: stranger.other_names.clone(),
    };
    let question = PromptKey::HostKey { name: name.exact.clone(), fingerprint: print };
    let answer = match context.broker.ask(question, host, kind).await {
        Ok((_, answer)) => answer,
        Err(Unanswered::NobodyToAsk | Unanswered::Gone) => {
            return Err(unknown(resolved, name, key, "nobody could be asked"));
        }
    };
    match &*answer {
        Answer::TrustOnce => context.trust_once(name, key),
        Answer::TrustAndSave => {
            save(resolved, name, key).await?;
            context.trust_once(name, key);
        }
        Answer::Secret(_) | Answer::Decline => {
            let message = format!("the host key {} was not trusted", fingerprint(key));
            return Err(SshError::new(SshErrorKind::Declined, message));
        }
    }
    Ok(())
}

/// Writes a new key to the first of the user's files.
pub(super) async fn save(resolved: &Resolved, name: &HostName, key: &PublicKey) -> Result<(), SshError> {
    let Some(file) = resolved.user_known_hosts.first().cloned() else {
        let message = "there is no known_hosts file to write the host key to";
        return Err(SshError::new(SshErrorKind::KnownHosts, message).with_hint("UserKnownHostsFile in ~/.ssh/config"));
    };
    let (name, key, hash) = (name.clone(), key.clone(), resolved.hash_known_hosts);
    let writing = tokio::task::spawn_blocking(move || known_hosts::add(&file, &name, &key, hash));
    writing.await.unwrap_or_else(|_| Err(SshError::new(SshErrorKind::KnownHosts, "writing the host key failed")))
}

/// The error for an unknown key that nobody accepted.
fn unknown(resolved: &Resolved, name: &HostName, key: &PublicKey, why: &str) -> SshError {
    let message = format!(
        "the host key of {} is not known ({} {}), and {why}",
        name.exact,
        key.algorithm().as_str(),
        fingerprint(key)
    );
    // The command must ask about the same name and write to the same file as we would read.
    let mut options = String::new();
    if let Some(file) = resolved.user_known_hosts.first() {
        options = format!("-o UserKnownHostsFile={} ", shell_word(&file.to_string_lossy()));
    }
    let target = ssh_target(&resolved.user, &resolved.hostname, resolved.port);
    SshError::new(SshErrorKind::HostKeyUnknown, message).with_hint(format!(
        "ssh {options}{target} true   # compare the fingerprint with the administrator's, then say yes"
    ))
}

/// The error for a key that must not be used.
pub(super) fn refusal(ruling: &Ruling, name: &HostName) -> Option<SshError> {
    match ruling {
        Ruling::Changed { key, place } => {
            let known = match (&place.key_type, &place.fingerprint) {
                (Some(key_type), Some(fingerprint)) => format!("{key_type} {fingerprint}"),
                _ => "another key".to_owned(),
            };
            let message = format!(
                "the host key has changed: the server shows {} {}, but {}:{} has {known}; nothing was sent to it",
                key.algorithm().as_str(),
                fingerprint(key),
                place.file.display(),
                place.line,
            );
            Some(SshError::new(SshErrorKind::HostKeyChanged, message).with_hint(format!(
                "{}   # only if the administrator confirms the new key",
                remove_command(&place.file, &name.exact)
            )))
        }
        Ruling::Revoked { key, place } => {
            let message = format!(
                "the host key {} {} is revoked by {}:{}; nothing was sent to the server",
                key.algorithm().as_str(),
                fingerprint(key),
                place.file.display(),
                place.line,
            );
            Some(
                SshError::new(SshErrorKind::HostKeyRevoked, message)
                    .with_hint("the server must get a new host key; ask its administrator"),
            )
        }
        Ruling::BadCertificate { key, why } => {
            let message = format!(
                "the certificate of the host key {} {} is not good: {why}; nothing was sent to the server",
                key.algorithm().as_str(),
                fingerprint(key),
            );
            Some(
                SshError::new(SshErrorKind::HostKeyUnknown, message)
                    .with_hint("the server must get a new host certificate; ask its administrator"),
            )
        }
        Ruling::Swapped => Some(SshError::new(
            SshErrorKind::HostKeyChanged,
            "the server showed another host key in the middle of the connection",
        )),
        Ruling::Accepted { .. } | Ruling::Unknown { .. } => None,
    }
}

fn remove_command(file: &Path, name: &str) -> String {
    format!("ssh-keygen -f {} -R {}", shell_word(&file.to_string_lossy()), shell_word(name))
}
