//! Verifies the host key of a server before any credentials are sent, and asks the user about an unknown one.

use crate::config::shell_word;
use crate::ssh::credentials::{Broker, PromptKey, Unanswered};
use crate::ssh::known_hosts::{
    self, CertificateCheck, HostKeyStatus, HostName, KnownHosts, KnownHostsEntry, fingerprint,
};
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::resolve::{Resolved, StrictHostKeys};
use crate::ssh::transport::{SshError, SshErrorKind};
use crate::wire::format::{DurationStyle, duration};
use russh::keys::{Certificate, PublicKey};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// Verifies the host keys of one connection.
#[derive(Debug)]
pub(super) struct HostKeyVerifier {
    pub(super) known: KnownHosts,
    pub(super) name: HostName,
    /// The key that the user has just trusted at a prompt: the connection is pinned to it.
    pub(super) trusted: Option<PublicKey>,
    /// Fingerprints of the keys that the user trusted for this host earlier in this process.
    pub(super) trusted_before: Vec<String>,
    /// `StrictHostKeyChecking accept-new`.
    pub(super) accept_new: bool,
    /// The key of the first key exchange: rekeying must show the same key.
    pub(super) accepted: Option<PublicKey>,
}

/// The result of verifying a host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostKeyDecision {
    /// The key is accepted. A `new` key must be added to known_hosts.
    Accepted { new: Option<PublicKey> },
    /// No key of the host is known. `other_names` are the names that have this key.
    Unknown { key: PublicKey, other_names: Vec<String> },
    /// Other keys of the host are known.
    Changed { key: PublicKey, entry: KnownHostsEntry },
    /// The key is revoked.
    Revoked { key: PublicKey, entry: KnownHostsEntry },
    /// A known authority signed the certificate, but it is not valid, and its key alone is not known.
    BadCertificate { key: PublicKey, reason: String },
    /// Rekeying showed another key than the first key exchange.
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

    /// Verifies a certificate. If no known authority signed it, its key alone decides, as in ssh.
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
            CertificateCheck::Invalid(reason) => match self.known.check_key(&self.name, &key) {
                HostKeyStatus::Known => self.verify_key(&key),
                _ => HostKeyDecision::BadCertificate { key, reason },
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

/// A server whose key is not known.
#[derive(Debug)]
pub(super) struct UnknownHostKey {
    pub(super) key: PublicKey,
    /// Other names that have this key.
    pub(super) other_names: Vec<String>,
    /// Name and address of the server, for display.
    pub(super) target: String,
}

/// Asks the user to trust an unknown key, and saves it if the user says so.
///
/// # Errors
/// The reason why the key is not trusted.
pub(super) async fn prompt_for_unknown_key(
    broker: &Broker,
    host: &str,
    resolved: &Resolved,
    name: &HostName,
    unknown_key: &UnknownHostKey,
) -> Result<(), SshError> {
    let key = &unknown_key.key;
    if resolved.strict_host_keys == StrictHostKeys::Yes {
        return Err(unknown_key_error(resolved, name, key, "StrictHostKeyChecking is on"));
    }
    let file = resolved.user_known_hosts.first();
    let kind = PromptKind::HostKey {
        target: unknown_key.target.clone(),
        key_type: key.algorithm().as_str().to_owned(),
        fingerprint: fingerprint(key),
        known_hosts: file.map(|file| file.display().to_string()).unwrap_or_default(),
        also_known_as: unknown_key.other_names.clone(),
    };
    let prompt_key = PromptKey::HostKey { name: name.exact.clone(), fingerprint: fingerprint(key) };
    let answer = match broker.ask(prompt_key, host, kind).await {
        Ok((_, answer)) => answer,
        Err(Unanswered::NotInteractive | Unanswered::ReceiverDropped) => {
            return Err(unknown_key_error(resolved, name, key, "no prompt is possible"));
        }
    };
    match &*answer {
        Answer::TrustOnce => Ok(()),
        Answer::TrustAndSave => save(resolved, name, key).await,
        Answer::Secret(_) | Answer::Decline => {
            let message = format!("the host key {} was not trusted", fingerprint(key));
            Err(SshError::new(SshErrorKind::Declined, message))
        }
    }
}

/// Adds a key to the first known_hosts file of the user.
pub(super) async fn save(resolved: &Resolved, name: &HostName, key: &PublicKey) -> Result<(), SshError> {
    let Some(file) = resolved.user_known_hosts.first().cloned() else {
        let message = "there is no known_hosts file to write the host key to";
        return Err(SshError::new(SshErrorKind::KnownHosts, message).with_hint("UserKnownHostsFile in ~/.ssh/config"));
    };
    let (name, key, hash) = (name.clone(), key.clone(), resolved.hash_known_hosts);
    let operation = format!("writing the host key to {}", file.display());
    within_file_limit(&operation, FILE_LIMIT, move || known_hosts::append_host_key(&file, &name, &key, hash)).await
}

/// Reads the known_hosts files anew for each connection: another host may have added a key.
pub(super) async fn read_known_hosts(resolved: &Resolved) -> Result<KnownHosts, SshError> {
    let files: Vec<_> = resolved.user_known_hosts.iter().chain(&resolved.global_known_hosts).cloned().collect();
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let operation = format!("reading the known host keys in {}", names.join(" and "));
    within_file_limit(&operation, FILE_LIMIT, move || KnownHosts::read(&files)).await
}

/// How long reading or writing known_hosts files may take, with the wait for a lock.
const FILE_LIMIT: Duration = Duration::from_secs(15);

/// Runs `work` on a blocking thread. If a file server does not answer, the thread stays behind and the host gets an error.
async fn within_file_limit<T: Send + 'static>(
    operation: &str,
    limit: Duration,
    work: impl FnOnce() -> Result<T, SshError> + Send + 'static,
) -> Result<T, SshError> {
    let failed = |cause: &str| SshError::new(SshErrorKind::KnownHosts, format!("{operation} failed: {cause}"));
    match timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(failed("the program has an error")),
        Err(_) => {
            let cause = format!("no answer within {}", duration(limit, DurationStyle::Seconds));
            Err(failed(&cause).with_hint("does the file server answer? UserKnownHostsFile can name a local file"))
        }
    }
}

/// The error for an unknown key that the user did not accept.
fn unknown_key_error(resolved: &Resolved, name: &HostName, key: &PublicKey, reason: &str) -> SshError {
    let message = format!("the host key of {} is not known ({}), and {reason}", name.exact, describe(key));
    // The command must use the same name and write to the same file as gpufleet.
    let mut options = String::new();
    if let Some(file) = resolved.user_known_hosts.first() {
        options = format!("-o UserKnownHostsFile={} ", shell_word(&file.to_string_lossy()));
    }
    SshError::new(SshErrorKind::HostKeyUnknown, message).with_hint(format!(
        "ssh {options}{} true   # compare the fingerprint with the administrator's, then say yes",
        resolved.ssh_target()
    ))
}

/// The error for a key that must not be used.
pub(super) fn refusal_error(decision: &HostKeyDecision, name: &HostName) -> Option<SshError> {
    let (kind, message, hint) = match decision {
        HostKeyDecision::Changed { key, entry } => {
            let known = match (&entry.key_type, &entry.fingerprint) {
                (Some(key_type), Some(fingerprint)) => format!("{key_type} {fingerprint}"),
                _ => "another key".to_owned(),
            };
            (
                SshErrorKind::HostKeyChanged,
                format!(
                    "the host key has changed: the server shows {}, but {}:{} has {known}; nothing was sent to it",
                    describe(key),
                    entry.file.display(),
                    entry.line,
                ),
                format!(
                    "{}   # only if the administrator confirms the new key",
                    remove_command(&entry.file, &name.exact)
                ),
            )
        }
        HostKeyDecision::Revoked { key, entry } => (
            SshErrorKind::HostKeyRevoked,
            format!(
                "the host key {} is revoked by {}:{}; nothing was sent to the server",
                describe(key),
                entry.file.display(),
                entry.line,
            ),
            "the server must get a new host key; ask its administrator".to_owned(),
        ),
        HostKeyDecision::BadCertificate { key, reason } => (
            SshErrorKind::HostKeyUnknown,
            format!(
                "the certificate of the host key {} is not valid: {reason}; nothing was sent to the server",
                describe(key)
            ),
            "the server must get a new host certificate; ask its administrator".to_owned(),
        ),
        HostKeyDecision::ChangedDuringSession => {
            let message = "the server showed another host key during the connection";
            return Some(SshError::new(SshErrorKind::HostKeyChanged, message));
        }
        HostKeyDecision::Accepted { .. } | HostKeyDecision::Unknown { .. } => return None,
    };
    Some(SshError::new(kind, message).with_hint(hint))
}

/// Type and fingerprint.
fn describe(key: &PublicKey) -> String {
    format!("{} {}", key.algorithm().as_str(), fingerprint(key))
}

fn remove_command(file: &Path, name: &str) -> String {
    format!("ssh-keygen -f {} -R {}", shell_word(&file.to_string_lossy()), shell_word(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::PrivateKey;
    use russh::keys::ssh_key::private::Ed25519Keypair;

    fn key(seed: u8) -> PublicKey {
        PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32])).public_key().clone()
    }

    fn verifier(known: KnownHosts) -> HostKeyVerifier {
        HostKeyVerifier {
            known,
            name: HostName::new("gpu01", 22, None),
            trusted: None,
            trusted_before: Vec::new(),
            accept_new: false,
            accepted: None,
        }
    }

    #[tokio::test]
    async fn files_that_give_no_answer_are_an_error() {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let work = move || Ok(wait.recv().is_err());
        let error = within_file_limit("writing the host key to /nfs/known_hosts", Duration::from_millis(20), work);
        assert_eq!(
            error.await.unwrap_err(),
            SshError::new(
                SshErrorKind::KnownHosts,
                "writing the host key to /nfs/known_hosts failed: no answer within 0.02 s"
            )
            .with_hint("does the file server answer? UserKnownHostsFile can name a local file")
        );
        drop(release);
    }

    #[test]
    fn accept_new_accepts_only_the_first_key_of_a_host() {
        let mut accept_new = HostKeyVerifier { accept_new: true, ..verifier(KnownHosts::default()) };
        assert_eq!(accept_new.verify_key(&key(1)), HostKeyDecision::Accepted { new: Some(key(1)) });

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("known_hosts");
        known_hosts::append_host_key(&path, &accept_new.name, &key(1), false).unwrap();
        let mut accept_new = HostKeyVerifier { accept_new: true, ..verifier(KnownHosts::read([&path]).unwrap()) };
        assert!(matches!(accept_new.verify_key(&key(2)), HostKeyDecision::Changed { .. }));
    }

    #[test]
    fn a_key_trusted_at_the_prompt_excludes_keys_trusted_before() {
        let trusted_before = vec![fingerprint(&key(1))];
        let mut before = HostKeyVerifier { trusted_before: trusted_before.clone(), ..verifier(KnownHosts::default()) };
        assert_eq!(before.verify_key(&key(1)), HostKeyDecision::Accepted { new: None });
        let mut pinned = HostKeyVerifier { trusted: Some(key(2)), trusted_before, ..verifier(KnownHosts::default()) };
        assert!(matches!(pinned.verify_key(&key(1)), HostKeyDecision::Unknown { .. }));
        assert_eq!(pinned.verify_key(&key(2)), HostKeyDecision::Accepted { new: None });
    }

    #[test]
    fn rekeying_must_show_the_same_key() {
        let mut verifier = HostKeyVerifier { trusted: Some(key(1)), ..verifier(KnownHosts::default()) };
        assert_eq!(verifier.verify_key(&key(1)), HostKeyDecision::Accepted { new: None });
        assert_eq!(verifier.verify_key(&key(1)), HostKeyDecision::Accepted { new: None });
        let changed = verifier.verify_key(&key(2));
        assert_eq!(changed, HostKeyDecision::ChangedDuringSession);
        assert!(
            refusal_error(&changed, &verifier.name).is_some_and(|error| error.kind == SshErrorKind::HostKeyChanged)
        );
    }
}
