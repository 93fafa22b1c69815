//! The keys and certificates that are offered to a server, in OpenSSH's order.

use crate::ssh::credentials::{EncryptedKey, KeyFile, KeyFileError};
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::resolve::Resolved;
use crate::store::read_regular;
use crate::wire::format::io_cause;
use russh::keys::agent::AgentIdentity;
use russh::keys::{Algorithm, Certificate, PrivateKey, PublicKey};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum size of a certificate file.
const MAX_CERTIFICATE_BYTES: u64 = 64 * 1024;

/// A key or certificate that may be offered.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// `None` only for an encrypted key file without a readable public key.
    pub(super) public: Option<PublicKey>,
    pub(super) signing: KeySource,
    /// Its origin and type, for display.
    pub(super) label: String,
}

/// The signer of an identity.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    Agent,
    /// A certificate in the agent.
    AgentCertificate(Box<Certificate>),
    /// A certificate from a file. Its key signs in one of the other ways.
    Certificate(Box<Certificate>, Box<KeySource>),
    Key(Arc<PrivateKey>),
    EncryptedKey(EncryptedKey),
}

/// A key file and its content.
pub(super) struct IdentityFile {
    pub(super) path: PathBuf,
    pub(super) content: Result<KeyFile, KeyFileError>,
}

/// A certificate from a file.
#[derive(Debug, Clone)]
pub(super) struct CertificateFile {
    path: PathBuf,
    certificate: Certificate,
}

/// The identities to offer, and the configured ones that are not offered.
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
    /// Whether hosts.toml names the key.
    pub(super) is_configured: bool,
    /// Whether the `ssh` program may be able to use the key.
    pub(super) ssh_program_may_help: bool,
}

impl SkippedKey {
    pub(super) fn new(text: String) -> Self {
        Self { text, hint: None, is_configured: false, ssh_program_may_help: false }
    }
}

impl Identity {
    pub(super) fn is_certificate(&self) -> bool {
        matches!(self.signing, KeySource::AgentCertificate(_) | KeySource::Certificate(..))
    }
}

/// Orders the keys as OpenSSH does: the agent's keys that the configuration names, the other keys of the agent unless
/// `IdentitiesOnly` is set, then files. The key that hosts.toml names comes first.
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
            // The default files and those of a Host pattern need not exist.
            Err(KeyFileError::Missing) if !is_own => continue,
            Err(error) => {
                identities.skipped.push(skipped_key(&path, error, is_own));
                continue;
            }
        };
        let public = public_half(&content).cloned();
        let in_agent = agent.iter_mut().find(|slot| is_plain_key(slot.as_ref(), public.as_ref()));
        let from_agent_key = in_agent.and_then(Option::take).map(from_agent);
        match (from_agent_key, from_file(&path, content)) {
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

/// Inserts each certificate before its key: a server that trusts the authority accepts the certificate first.
pub(super) fn add_certificates(identities: &mut IdentityList, certificates: Vec<CertificateFile>, now: u64) {
    for file in certificates {
        let key = file.certificate.public_key();
        let is_its = |identity: &Identity| identity.public.as_ref().is_some_and(|public| public.key_data() == key);
        let keys = &mut identities.keys;
        if keys.iter().any(|identity| identity.is_certificate() && is_its(identity)) {
            continue;
        }
        let Some(index) = keys.iter().position(is_its) else {
            let text = format!("there is no key for the certificate {}", file.path.display());
            identities.skipped.push(SkippedKey::new(text));
            continue;
        };
        let label = format!("{} (certificate)", file.path.display());
        identities.skipped.extend(expiry_warning(&file, now).map(SkippedKey::new));
        let signing = KeySource::Certificate(Box::new(file.certificate), Box::new(keys[index].signing.clone()));
        let public = keys[index].public.clone();
        keys.insert(index, Identity { public, signing, label });
    }
}

/// Reads all key files of a host, the one of hosts.toml first. Blocking.
pub(super) fn read_files(resolved: &Resolved) -> Vec<IdentityFile> {
    let mut paths: Vec<&PathBuf> = resolved.first_identity.iter().collect();
    paths.extend(resolved.identity_files.iter().filter(|path| resolved.first_identity.as_ref() != Some(*path)));
    paths.into_iter().map(|path| IdentityFile { path: path.clone(), content: KeyFile::read(path) }).collect()
}

fn public_half(content: &KeyFile) -> Option<&PublicKey> {
    match content {
        KeyFile::Unencrypted(key) => Some(key.public_key()),
        KeyFile::EncryptedKey(key) => key.public.as_ref(),
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
        KeyFile::EncryptedKey(key) => KeySource::EncryptedKey(key),
        KeyFile::PublicOnly(_) => return None,
    };
    let label = match kind {
        Some(kind) => format!("{} ({kind})", path.display()),
        None => path.display().to_string(),
    };
    Some(Identity { public, signing, label })
}

/// The type in the spelling of `ssh-keygen -l`.
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

/// Reads the certificates that the configuration names and those beside the key files, as `ssh` does. Blocking.
pub(super) fn read_certificates(resolved: &Resolved) -> (Vec<CertificateFile>, Vec<SkippedKey>) {
    let beside_keys = resolved.first_identity.iter().chain(&resolved.identity_files).map(|path| {
        let mut path = path.as_os_str().to_owned();
        path.push("-cert.pub");
        PathBuf::from(path)
    });
    let (mut found, mut skipped): (Vec<CertificateFile>, Vec<SkippedKey>) = (Vec::new(), Vec::new());
    for path in beside_keys.chain(resolved.certificate_files.iter().cloned()) {
        if found.iter().any(|earlier| earlier.path == path) {
            continue;
        }
        match read_certificate(&path) {
            Ok(Some(certificate)) => found.push(CertificateFile { path, certificate }),
            Ok(None) => {}
            Err(reason) => skipped.push(SkippedKey::new(format!("{} {reason}", path.display()))),
        }
    }
    (found, skipped)
}

/// Returns `None` if there is no such file.
fn read_certificate(path: &Path) -> Result<Option<Certificate>, String> {
    match read_regular(path, MAX_CERTIFICATE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot be read: {}", io_cause(&error))),
        Ok(bytes) => match Certificate::from_openssh(String::from_utf8_lossy(&bytes).trim()) {
            Ok(certificate) => Ok(Some(certificate)),
            Err(_) => Err("is not a valid certificate".to_owned()),
        },
    }
}

/// A message if the certificate has expired at `now`, in Unix seconds.
fn expiry_warning(file: &CertificateFile, now: u64) -> Option<String> {
    let end = file.certificate.valid_before();
    let expired =
        i64::try_from(end).ok().and_then(|end| jiff::Timestamp::from_second(end).ok()).filter(|_| end <= now)?;
    Some(format!("the certificate {} expired at {}", file.path.display(), expired.strftime("%F %R UTC")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::{Context, Interaction, Options};

    /// A different key for each number.
    fn key(number: u8) -> Arc<PrivateKey> {
        let pair = russh::keys::ssh_key::private::Ed25519Keypair::from_seed(&[number; 32]);
        Arc::new(PrivateKey::from(pair))
    }

    fn file(path: &str, number: u8) -> IdentityFile {
        IdentityFile { path: path.into(), content: Ok(KeyFile::Unencrypted(key(number))) }
    }

    fn in_agent(number: u8) -> AgentIdentity {
        AgentIdentity::PublicKey { key: key(number).public_key().clone(), comment: format!("agent {number}") }
    }

    async fn resolved() -> Resolved {
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some("/dev/null".into());
        options.home = None;
        let (context, _) = Context::with_options(options);
        crate::ssh::resolve::resolve(&context, &crate::config::HostConfig::named("gpu01")).await.unwrap()
    }

    fn labels(identities: &IdentityList) -> Vec<&str> {
        identities.keys.iter().map(|key| key.label.as_str()).collect()
    }

    #[tokio::test]
    async fn identities_are_in_opensshs_order_after_the_key_of_hosts_toml() {
        let mut resolved = resolved().await;
        let files = || vec![file("/own", 1), file("/conf", 2), file("/in-agent", 3)];
        let agent = || vec![in_agent(4), in_agent(3)];
        resolved.first_identity = Some("/own".into());
        assert_eq!(
            labels(&order_identities(&resolved, files(), agent())),
            ["/own (ED25519)", "agent 3 (ED25519, agent)", "agent 4 (ED25519, agent)", "/conf (ED25519)"]
        );
        resolved.identities_only = true;
        assert_eq!(
            labels(&order_identities(&resolved, files(), agent())),
            ["/own (ED25519)", "agent 3 (ED25519, agent)", "/conf (ED25519)"]
        );
        resolved.identities_only = false;
        resolved.first_identity = None;
        assert_eq!(
            labels(&order_identities(&resolved, files(), agent())),
            ["agent 3 (ED25519, agent)", "agent 4 (ED25519, agent)", "/own (ED25519)", "/conf (ED25519)"]
        );
    }

    #[tokio::test]
    async fn a_key_in_two_files_is_offered_once() {
        let resolved = resolved().await;
        let identities = order_identities(&resolved, vec![file("/a", 1), file("/b", 1)], vec![]);
        assert_eq!(labels(&identities), ["/a (ED25519)"]);
    }

    #[tokio::test]
    async fn configured_files_without_a_usable_key_are_reported() {
        let mut resolved = resolved().await;
        resolved.first_identity = Some("/own".into());
        let missing = |path: &str| IdentityFile { path: path.into(), content: Err(KeyFileError::Missing) };
        let public =
            IdentityFile { path: "/a.pub".into(), content: Ok(KeyFile::PublicOnly(key(1).public_key().clone())) };
        let identities = order_identities(&resolved, vec![missing("/own"), missing("/usual"), public], vec![]);
        assert!(identities.keys.is_empty());
        assert_eq!(
            identities.skipped,
            [
                SkippedKey {
                    text: "/own does not exist".into(),
                    hint: None,
                    is_configured: true,
                    ssh_program_may_help: false
                },
                SkippedKey {
                    text: "/a.pub is a public key whose private half the agent does not have".into(),
                    hint: None,
                    is_configured: false,
                    ssh_program_may_help: false,
                },
            ]
        );
    }
}
