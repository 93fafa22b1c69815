//! Which keys are offered, in which order.

use super::certificates::{self, Certified};
use crate::ssh::credentials::{KeyFile, KeyFileError, Locked};
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::resolve::Resolved;
use russh::keys::agent::AgentIdentity;
use russh::keys::{Algorithm, Certificate, PrivateKey, PublicKey};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A key that may be offered.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// `None` only for a locked file that does not tell its public half.
    pub(super) public: Option<PublicKey>,
    pub(super) signing: Signing,
    /// For people: where it comes from and its type.
    pub(super) label: String,
}

/// What signs for a candidate.
#[derive(Debug, Clone)]
pub(super) enum Signing {
    Agent,
    /// A certificate that is in the agent.
    AgentCertificate(Box<Certificate>),
    /// A certificate from a file, whose key signs in one of the other ways.
    Certificate(Box<Certificate>, Box<Signing>),
    Key(Arc<PrivateKey>),
    Locked(Locked),
}

/// A key file, read.
pub(super) struct Read {
    pub(super) path: PathBuf,
    pub(super) content: Result<KeyFile, KeyFileError>,
}

/// What is offered, and what a person should know of files that are not.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) keys: Vec<Candidate>,
    pub(super) notes: Vec<Note>,
}

/// Why a key is not offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) text: String,
    pub(super) hint: Option<String>,
    /// Whether it concerns the key that hosts.toml names.
    pub(super) own: bool,
    /// Whether the `ssh` program may do more with the key.
    pub(super) by_ssh: bool,
}

impl Note {
    /// A note without a way out.
    pub(super) fn of(text: String) -> Self {
        Self { text, hint: None, own: false, by_ssh: false }
    }
}

impl Candidate {
    /// Whether it is a certificate, and so another thing than its key alone.
    pub(super) fn is_certificate(&self) -> bool {
        matches!(self.signing, Signing::AgentCertificate(_) | Signing::Certificate(..))
    }
}

/// The order of OpenSSH: keys of the agent that the configuration names, the agent's others unless `IdentitiesOnly`,
/// then files. hosts.toml's own key stands before all of them, wherever it is: it was named for this very host.
pub(super) fn order(resolved: &Resolved, files: Vec<Read>, agent: Vec<AgentIdentity>) -> Candidates {
    let mut candidates = Candidates::default();
    let mut own = Vec::new();
    let mut named = Vec::new();
    let mut from_files = Vec::new();
    let mut agent: Vec<Option<AgentIdentity>> = agent.into_iter().map(Some).collect();
    for Read { path, content } in files {
        let is_own = resolved.first_identity.as_ref() == Some(&path);
        let content = match content {
            Ok(content) => content,
            // The usual files and those of a Host pattern need not exist.
            Err(KeyFileError::Missing) if !is_own => continue,
            Err(error) => {
                candidates.notes.push(note(&path, error, is_own));
                continue;
            }
        };
        let public = public_half(&content).cloned();
        let held = agent.iter_mut().find(|slot| is_plain_key(slot.as_ref(), public.as_ref()));
        let by_agent = held.and_then(Option::take).map(from_agent);
        match (by_agent, from_file(&path, content)) {
            (Some(candidate), _) if is_own => own.push(candidate),
            (Some(candidate), _) => named.push(candidate),
            (None, Some(candidate)) if is_own => own.push(candidate),
            (None, Some(candidate)) => from_files.push(candidate),
            (None, None) => {
                let text = format!("{} is a public key whose private half the agent does not have", path.display());
                candidates.notes.push(Note { own: is_own, ..Note::of(text) });
            }
        }
    }
    let others = agent.into_iter().flatten().filter(|_| !resolved.identities_only).map(from_agent);
    let mut keys = own;
    keys.extend(named);
    keys.extend(others);
    keys.extend(from_files);
    for key in keys {
        if !candidates.keys.iter().any(|earlier| is_same(earlier, &key)) {
            candidates.keys.push(key);
        }
    }
    candidates
}

/// Puts each certificate before its key: a server that trusts the authority need not be shown the key alone.
pub(super) fn certify(candidates: &mut Candidates, certificates: Vec<Certified>, now: u64) {
    for certified in certificates {
        let key = certified.certificate.public_key();
        let is_its = |candidate: &Candidate| candidate.public.as_ref().is_some_and(|public| public.key_data() == key);
        let keys = &mut candidates.keys;
        if keys.iter().any(|candidate| candidate.is_certificate() && is_its(candidate)) {
            continue;
        }
        let Some(place) = keys.iter().position(is_its) else {
            let text = format!("there is no key for the certificate {}", certified.path.display());
            candidates.notes.push(Note::of(text));
            continue;
        };
        let label = format!("{} (certificate)", certified.path.display());
        candidates.notes.extend(certificates::remark(&certified, now).map(Note::of));
        let signing = Signing::Certificate(Box::new(certified.certificate), Box::new(keys[place].signing.clone()));
        let public = keys[place].public.clone();
        keys.insert(place, Candidate { public, signing, label });
    }
}

/// All key files of a host, hosts.toml's own first; it blocks for as long as small files take.
pub(super) fn read_files(resolved: &Resolved) -> Vec<Read> {
    let mut paths: Vec<&PathBuf> = resolved.first_identity.iter().collect();
    paths.extend(resolved.identity_files.iter().filter(|path| resolved.first_identity.as_ref() != Some(*path)));
    paths.into_iter().map(|path| Read { path: path.clone(), content: KeyFile::read(path) }).collect()
}

fn public_half(content: &KeyFile) -> Option<&PublicKey> {
    match content {
        KeyFile::Open(key) => Some(key.public_key()),
        KeyFile::Locked(locked) => locked.public.as_ref(),
        KeyFile::PublicOnly(key) => Some(key),
    }
}

fn is_plain_key(identity: Option<&AgentIdentity>, public: Option<&PublicKey>) -> bool {
    match (identity, public) {
        (Some(AgentIdentity::PublicKey { key, .. }), Some(public)) => key.key_data() == public.key_data(),
        _ => false,
    }
}

fn is_same(earlier: &Candidate, later: &Candidate) -> bool {
    match (&earlier.public, &later.public) {
        (Some(earlier_key), Some(later_key)) => {
            earlier_key.key_data() == later_key.key_data() && earlier.is_certificate() == later.is_certificate()
        }
        _ => false,
    }
}

fn from_agent(identity: AgentIdentity) -> Candidate {
    let public = identity.public_key().into_owned();
    let kind = type_name(&public);
    let comment = match identity.comment() {
        "" => fingerprint(&public),
        comment => comment.to_owned(),
    };
    match identity {
        AgentIdentity::PublicKey { .. } => {
            Candidate { public: Some(public), signing: Signing::Agent, label: format!("{comment} ({kind}, agent)") }
        }
        AgentIdentity::Certificate { certificate, .. } => Candidate {
            public: Some(public),
            signing: Signing::AgentCertificate(Box::new(certificate)),
            label: format!("{comment} ({kind} certificate, agent)"),
        },
    }
}

fn from_file(path: &Path, content: KeyFile) -> Option<Candidate> {
    let public = public_half(&content).cloned();
    let kind = public.as_ref().map(type_name);
    let signing = match content {
        KeyFile::Open(key) => Signing::Key(key),
        KeyFile::Locked(locked) => Signing::Locked(locked),
        KeyFile::PublicOnly(_) => return None,
    };
    let label = match kind {
        Some(kind) => format!("{} ({kind})", path.display()),
        None => path.display().to_string(),
    };
    Some(Candidate { public, signing, label })
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

fn note(path: &Path, error: KeyFileError, own: bool) -> Note {
    let (reason, hint, by_ssh) = match error {
        KeyFileError::Missing => ("does not exist".to_owned(), None, false),
        KeyFileError::Unusable { reason, hint, by_ssh } => (reason, hint, by_ssh),
    };
    Note { text: format!("{} {reason}", path.display()), hint, own, by_ssh }
}

#[cfg(test)]
mod tests;
