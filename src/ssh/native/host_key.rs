//! Whether a server's key is good, and what to say and ask when it is not.

use super::login_state::UnknownHostKey;
use crate::ssh::Context;
use crate::ssh::credentials::{PromptKey, Unanswered};
use crate::ssh::known_hosts::{
    self, CertificateCheck, HostKeyStatus, HostName, KnownHosts, KnownHostsEntry, fingerprint,
};
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::resolve::{Resolved, StrictHostKeys};
use crate::ssh::text::{shell_word, ssh_target};
use crate::ssh::transport::{SshError, SshErrorKind};
use russh::keys::{Certificate, PublicKey};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Decides on the keys of one connection, before anything secret is sent.
#[derive(Debug)]
pub(super) struct HostKeyVerifier {
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
pub(super) enum HostKeyDecision {
    /// It is used; if new, it must be written down.
    Accepted { new: Option<PublicKey> },
    /// Nothing is known of the host; other names of the key.
    Unknown { key: PublicKey, other_names: Vec<String> },
    /// The host has other keys.
    Changed { key: PublicKey, entry: KnownHostsEntry },
    /// The key must not be used.
    Revoked { key: PublicKey, entry: KnownHostsEntry },
    /// An authority of ours vouches for the key, but its certificate is not good, and the key alone is not known.
    BadCertificate { key: PublicKey, why: String },
    /// The key differs from the one that the connection began with.
    ChangedDuringSession,
}

impl HostKeyVerifier {
    pub(super) fn verify_key(&mut self, key: &PublicKey) -> HostKeyDecision {
        if let Some(accepted) = &self.accepted {
            let same = accepted.key_data() == key.key_data();
            return if same { HostKeyDecision::Accepted { new: None } } else { HostKeyDecision::ChangedDuringSession };
        }
        let new = match self.known.check_key(&self.name, key) {
            HostKeyStatus::Known => None,
            HostKeyStatus::Unknown(_) if self.is_trusted(key) => None,
            HostKeyStatus::Unknown(_) if self.accept_new => Some(key.clone()),
            HostKeyStatus::Unknown(other_names) => return HostKeyDecision::Unknown { key: key.clone(), other_names },
            HostKeyStatus::Changed(entry) => return HostKeyDecision::Changed { key: key.clone(), entry },
            HostKeyStatus::Revoked(entry) => return HostKeyDecision::Revoked { key: key.clone(), entry },
        };
        self.accepted = Some(key.clone());
        HostKeyDecision::Accepted { new }
    }

    /// Judges a certificate; where no authority of ours vouches for it, its key alone, as ssh does.
    pub(super) fn verify_certificate(&mut self, certificate: &Certificate) -> HostKeyDecision {
        let key = PublicKey::from(certificate.public_key().clone());
        if self.accepted.is_some() {
            return self.verify_key(&key);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match self.known.check_certificate(&self.name, certificate, now) {
            CertificateCheck::Valid => {
                self.accepted = Some(key);
                HostKeyDecision::Accepted { new: None }
            }
            CertificateCheck::UnknownAuthority => self.verify_key(&key),
            CertificateCheck::Revoked(entry) => HostKeyDecision::Revoked { key, entry },
            CertificateCheck::Invalid(why) => match self.known.check_key(&self.name, &key) {
                HostKeyStatus::Known => self.verify_key(&key),
                _ => HostKeyDecision::BadCertificate { key, why },
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
pub(super) async fn prompt_for_unknown_key(
    context: &Context,
    host: &str,
    resolved: &Resolved,
    name: &HostName,
    unknown_key: &UnknownHostKey,
) -> Result<(), SshError> {
    let key = &unknown_key.key;
    let fingerprint_text = fingerprint(key);
    if resolved.strict_host_keys == StrictHostKeys::Yes {
        return Err(unknown_key_error(resolved, name, key, "StrictHostKeyChecking is on"));
    }
    let file = resolved.user_known_hosts.first().cloned();
    let kind = PromptKind::HostKey {
        target: unknown_key.target.clone(),
        key_type: key.algorithm().as_str().to_owned(),
        fingerprint: fingerprint_text.clone(),
        known_hosts: file.as_ref().map(|file| file.display().to_string()).unwrap_or_default(),
        also_known_as: unknown_key.other_names.clone(),
    };
    let question = PromptKey::HostKey { name: name.exact.clone(), fingerprint: fingerprint_text };
    let answer = match context.broker.ask(question, host, kind).await {
        Ok((_, answer)) => answer,
        Err(Unanswered::NotInteractive | Unanswered::ReceiverDropped) => {
            return Err(unknown_key_error(resolved, name, key, "nobody could be asked"));
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
    let writing = tokio::task::spawn_blocking(move || known_hosts::append_host_key(&file, &name, &key, hash));
    writing.await.unwrap_or_else(|_| Err(SshError::new(SshErrorKind::KnownHosts, "writing the host key failed")))
}

/// The error for an unknown key that nobody accepted.
fn unknown_key_error(resolved: &Resolved, name: &HostName, key: &PublicKey, why: &str) -> SshError {
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
pub(super) fn refusal_error(decision: &HostKeyDecision, name: &HostName) -> Option<SshError> {
    match decision {
        HostKeyDecision::Changed { key, entry } => {
            let known = match (&entry.key_type, &entry.fingerprint) {
                (Some(key_type), Some(fingerprint)) => format!("{key_type} {fingerprint}"),
                _ => "another key".to_owned(),
            };
            let message = format!(
                "the host key has changed: the server shows {} {}, but {}:{} has {known}; nothing was sent to it",
                key.algorithm().as_str(),
                fingerprint(key),
                entry.file.display(),
                entry.line,
            );
            Some(SshError::new(SshErrorKind::HostKeyChanged, message).with_hint(format!(
                "{}   # only if the administrator confirms the new key",
                remove_command(&entry.file, &name.exact)
            )))
        }
        HostKeyDecision::Revoked { key, entry } => {
            let message = format!(
                "the host key {} {} is revoked by {}:{}; nothing was sent to the server",
                key.algorithm().as_str(),
                fingerprint(key),
                entry.file.display(),
                entry.line,
            );
            Some(
                SshError::new(SshErrorKind::HostKeyRevoked, message)
                    .with_hint("the server must get a new host key; ask its administrator"),
            )
        }
        HostKeyDecision::BadCertificate { key, why } => {
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
        HostKeyDecision::ChangedDuringSession => Some(SshError::new(
            SshErrorKind::HostKeyChanged,
            "the server showed another host key in the middle of the connection",
        )),
        HostKeyDecision::Accepted { .. } | HostKeyDecision::Unknown { .. } => None,
    }
}

fn remove_command(file: &Path, name: &str) -> String {
    format!("ssh-keygen -f {} -R {}", shell_word(&file.to_string_lossy()), shell_word(name))
}
