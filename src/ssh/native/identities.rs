//! Which keys are offered, in which order.

use super::certificates::{self, CertificateFile};
use crate::ssh::credentials::{EncryptedKey, KeyFile, KeyFileError};
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::resolve::Resolved;
use russh::keys::agent::AgentIdentity;
use russh::keys::{Algorithm, Certificate, PrivateKey, PublicKey};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A key that may be offered.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// `None` only for a locked file that does not tell its public half.
    pub(super) public: Option<PublicKey>,
    pub(super) signing: KeySource,
    /// For people: where it comes from and its type.
    pub(super) label: String,
}

/// What signs for a candidate.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    Agent,
    /// A certificate that is in the agent.
    AgentCertificate(Box<Certificate>),
    /// A certificate from a file, whose key signs in one of the other ways.
    Certificate(Box<Certificate>, Box<KeySource>),
    Key(Arc<PrivateKey>),
    EncryptedKey(EncryptedKey),
}

/// A key file, read.
pub(super) struct IdentityFile {
    pub(super) path: PathBuf,
    pub(super) content: Result<KeyFile, KeyFileError>,
}

/// What is offered, and what a person should know of files that are not.
#[derive(Debug, Default)]
pub(super) struct IdentityList {
    pub(super) keys: Vec<Identity>,
    pub(super) skipped: Vec<SkippedKey>,
}

/// Why a key is not offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SkippedKey {
    pub(super) text: String,
    pub(super) hint: Option<String>,
    /// Whether it concerns the key that hosts.toml names.
    pub(super) is_configured: bool,
    /// Whether the `ssh` program may do more with the key.
    pub(super) ssh_program_may_help: bool,
}

impl SkippedKey {
    /// A note without a way out.
    pub(super) fn new(text: String) -> Self {
        Self { text, hint: None, is_configured: false, ssh_program_may_help: false }
    }
}

impl Identity {
    /// Whether it is a certificate, and so another thing than its key alone.
    pub(super) fn is_certificate(&self) -> bool {
        matches!(self.signing, KeySource::AgentCertificate(_) | KeySource::Certificate(..))
    }
}

/// The order of OpenSSH: keys of the agent that the configuration names, the agent's others unless `IdentitiesOnly`,
/// then files. hosts.toml's own key stands before all of them, wherever it is: it was named for this very host.
pub(super) fn order_identities(
    resolved: &Resolved,
    files: Vec<IdentityFile>,
    agent: Vec<AgentIdentity>,
) -> IdentityList {
    let mut identities = IdentityList::default();
    let mut own = Vec::new();
    let mut named = Vec::new();
    let mut from_files = Vec::new();
    let mut agent: Vec<Option<AgentIdentity>> = agent.into_iter().map(Some).collect();
    for IdentityFile { path, content } in files {
        let is_own = resolved.first_identity.as_ref() == Some(&path);
        let content = match content {
            Ok(content) => content,
            // The usual files and those of a Host pattern need not exist.
            Err(KeyFileError::Missing) if !is_own => continue,
            Err(error) => {
                identities.skipped.push(skipped_key(&path, error, is_own));
                continue;
            }
        };
        let public = public_half(&content).cloned();
        let held = agent.iter_mut().find(|slot| is_plain_key(slot.as_ref(), public.as_ref()));
        let by_agent = held.and_then(Option::take).map(from_agent);
        match (by_agent, from_file(&path, content)) {
            (Some(identity), _) if is_own => own.push(identity),
            (Some(identity), _) => named.push(identity),
            (None, Some(identity)) if is_own => own.push(identity),
            (None, Some(identity)) => from_files.push(identity),
            (None, None) => {
                let text = format!("{} is a public key whose private half the agent does not have", path.display());
                identities.skipped.push(SkippedKey { is_configured: is_own, ..SkippedKey::new(text) });
            }
        }
    }
    let others = agent.into_iter().flatten().filter(|_| !resolved.identities_only).map(from_agent);
    let mut keys = own;
    keys.extend(named);
    keys.extend(others);
    keys.extend(from_files);
    for key in keys {
        if !identities.keys.iter().any(|earlier| is_same(earlier, &key)) {
            identities.keys.push(key);
        }
    }
    identities
}

/// Puts each certificate before its key: a server that trusts the authority need not be shown the key alone.
pub(super) fn add_certificates(identities: &mut IdentityList, certificates: Vec<CertificateFile>, now: u64) {
    for certified in certificates {
        let key = certified.certificate.public_key();
        let is_its = |identity: &Identity| identity.public.as_ref().is_some_and(|public| public.key_data() == key);
        let keys = &mut identities.keys;
        if keys.iter().any(|identity| identity.is_certificate() && is_its(identity)) {
            continue;
        }
        let Some(place) = keys.iter().position(is_its) else {
            let text = format!("there is no key for the certificate {}", certified.path.display());
            identities.skipped.push(SkippedKey::new(text));
            continue;
        };
        let label = format!("{} (certificate)", certified.path.display());
        identities.skipped.extend(certificates::expiry_warning(&certified, now).map(SkippedKey::new));
        let signing = KeySource::Certificate(Box::new(certified.certificate), Box::new(keys[place].signing.clone()));
        let public = keys[place].public.clone();
        keys.insert(place, Identity { public, signing, label });
    }
}

/// All key files of a host, hosts.toml's own first; it blocks for as long as small files take.
pub(super) fn read_files(resolved: &Resolved) -> Vec<IdentityFile> {
    let mut paths: Vec<&PathBuf> = resolved.first_identity.iter().collect();
    paths.extend(resolved.identity_files.iter().filter(|path| resolved.first_identity.as_ref() != Some(*path)));
    paths.into_iter().map(|path| IdentityFile { path: path.clone(), content: KeyFile::read(path) }).collect()
}

fn public_half(content: &KeyFile) -> Option<&PublicKey> {
    match content {
        KeyFile::Unencrypted(key) => Some(key.public_key()),
        KeyFile::EncryptedKey(locked) => locked.public.as_ref(),
        KeyFile::PublicOnly(key) => Some(key),
    }
}

fn is_plain_key(identity: Option<&AgentIdentity>, public: Option<&PublicKey>) -> bool {
    match (identity, public) {
        (Some(AgentIdentity::PublicKey { key, .. }), Some(public)) => key.key_data() == public.key_data(),
        _ => false,
    }
}

fn is_same(earlier: &Identity, later: &Identity) -> bool {
    match (&earlier.public, &later.public) {
        (Some(earlier_key), Some(later_key)) => {
            earlier_key.key_data() == later_key.key_data() && earlier.is_certificate() == later.is_certificate()
        }
        _ => false,
    }
}

fn from_agent(identity: AgentIdentity) -> Identity {
    let public = identity.public_key().into_owned();
    let kind = type_name(&public);
    let comment = match identity.comment() {
        "" => fingerprint(&public),
        comment => comment.to_owned(),
    };
    match identity {
        AgentIdentity::PublicKey { .. } => {
            Identity { public: Some(public), signing: KeySource::Agent, label: format!("{comment} ({kind}, agent)") }
        }
        AgentIdentity::Certificate { certificate, .. } => Identity {
            public: Some(public),
            signing: KeySource::AgentCertificate(Box::new(certificate)),
            label: format!("{comment} ({kind} certificate, agent)"),
        },
    }
}

fn from_file(path: &Path, content: KeyFile) -> Option<Identity> {
    let public = public_half(&content).cloned();
    let kind = public.as_ref().map(type_name);
    let signing = match content {
        KeyFile::Unencrypted(key) => KeySource::Key(key),
        KeyFile::EncryptedKey(locked) => KeySource::EncryptedKey(locked),
        KeyFile::PublicOnly(_) => return None,
    };
    let label = match kind {
        Some(kind) => format!("{} ({kind})", path.display()),
        None => path.display().to_string(),
    };
    Some(Identity { public, signing, label })
}

/// The type as `ssh-keygen -l` calls it.
fn type_name(key: &PublicKey) -> &'static str {
    match key.algorithm() {
        Algorithm::Rsa { .. } => "RSA",
        Algorithm::Ecdsa { .. } => "ECDSA",
        Algorithm::Ed25519 => "ED25519",
        Algorithm::SkEd25519 => "ED25519-SK",
        Algorithm::SkEcdsaSha2NistP256 => "ECDSA-SK",
        _ => "key",
    }
}

fn skipped_key(path: &Path, error: KeyFileError, is_configured: bool) -> SkippedKey {
    let (reason, hint, ssh_program_may_help) = match error {
        KeyFileError::Missing => ("does not exist".to_owned(), None, false),
        KeyFileError::Unusable { reason, hint, ssh_program_may_help } => (reason, hint, ssh_program_may_help),
    };
    SkippedKey { text: format!("{} {reason}", path.display()), hint, is_configured, ssh_program_may_help }
}

#[cfg(test)]
#[path = "identities_tests.rs"]
mod tests;
