//! Logins with keys and certificates (RFC 4252, section 7).

use super::{Login, Outcome, outcome};
use crate::ssh::credentials::EncryptedKey;
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::native::agent::{self, Agent};
use crate::ssh::native::identities::{self, Identity, IdentityList, KeySource, SkippedKey};
use crate::ssh::native::login_state::RetryReason;
use crate::ssh::native::signer::{SignError, Signer};
use crate::ssh::native::{algorithms, certificates};
use crate::ssh::pausable_timeout::Expired;
use crate::ssh::text::shell_word;
use russh::client::AuthResult;
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is known of the keys of this login.
pub(super) struct Keys {
    pub(super) waiting: std::vec::IntoIter<Identity>,
    agent: Option<Agent>,
    pub(super) skipped: Vec<SkippedKey>,
    /// The best hash the server takes from RSA keys, once asked for.
    rsa_hash: Option<RsaHash>,
}

impl Keys {
    fn skip(&mut self, text: String) {
        self.skipped.push(SkippedKey::new(text));
    }
}

/// RFC 8332.
#[derive(Debug, Clone, Copy)]
enum RsaHash {
    Sha2(HashAlg),
    Sha1Only,
}

/// What the server is shown.
enum OfferedKey {
    Key(PublicKey),
    Certificate(Box<Certificate>),
}

impl Login<'_> {
    /// The keys that may be offered, from files and from the agent.
    pub(super) async fn keys(&self) -> Keys {
        let resolved = self.resolved.clone();
        let reading = move || (identities::read_files(&resolved), certificates::read(&resolved));
        let (files, (certificates, mut skipped)) = tokio::task::spawn_blocking(reading).await.unwrap_or_default();
        let (mut agent, mut agent_identities) = (None, Vec::new());
        if let Some(socket) = agent::socket(self.context, self.resolved) {
            let binding = self.handle.agent_session_binding();
            match Agent::connect(self.context, &socket, binding, &self.time_limit, self.events).await {
                Ok((connected, held)) => {
                    agent = Some(connected);
                    agent_identities = held;
                }
                Err(text) => skipped.push(SkippedKey::new(text)),
            }
        }
        let mut identities: IdentityList = identities::order_identities(self.resolved, files, agent_identities);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        identities::add_certificates(&mut identities, certificates, now);
        skipped.extend(identities.skipped);
        Keys { waiting: identities.keys.into_iter(), agent, skipped, rsa_hash: None }
    }

    /// Offers one key.
    pub(super) async fn offer(&mut self, identity: Identity, keys: &mut Keys) -> Result<Outcome, RetryReason> {
        let Some(public) = identity.public.clone() else {
            // A locked file that tells nothing: only its passphrase can tell whether it is any use.
            let KeySource::EncryptedKey(locked) = identity.signing else { return Ok(Outcome::Skipped) };
            return match self.context.keys.unlocked(&locked).await {
                Some(key) => {
                    let public = Some(key.public_key().clone());
                    let opened = Identity { public, signing: KeySource::Key(key), label: identity.label };
                    Box::pin(self.offer(opened, keys)).await
                }
                None => self.locked(locked, keys),
            };
        };
        let is_certificate = identity.is_certificate();
        let key_id = fingerprint(&public) + if is_certificate { " certificate" } else { "" };
        if self.state.refused_fingerprints.contains(&key_id) {
            return Ok(Outcome::Skipped);
        }
        let label = identity.label;
        let server_hash = match public.algorithm() {
            Algorithm::Rsa { .. } => match self.rsa_hash(keys).await? {
                RsaHash::Sha2(hash) => Some(hash),
                RsaHash::Sha1Only => {
                    let text = format!("{label} was not offered: the server takes RSA with SHA-1 only");
                    let ssh_program_may_help = algorithms::wants_sha1(&self.resolved.algorithms);
                    keys.skipped.push(SkippedKey { ssh_program_may_help, ..SkippedKey::new(text) });
                    return Ok(Outcome::Skipped);
                }
            },
            _ => None,
        };
        let wanted = &self.resolved.algorithms;
        let Ok(hash) = algorithms::signature_hash(&public.algorithm(), server_hash, is_certificate, wanted) else {
            keys.skip(format!("{label} was not offered: PubkeyAcceptedAlgorithms leaves it out"));
            return Ok(Outcome::Skipped);
        };
        let (offered_key, signing, plain) = match identity.signing {
            KeySource::AgentCertificate(certificate) => (OfferedKey::Certificate(certificate), KeySource::Agent, None),
            KeySource::Certificate(certificate, by) => (OfferedKey::Certificate(certificate), *by, Some(public)),
            signing => (OfferedKey::Key(public), signing, None),
        };
        let signer = match (signing, keys.agent.as_mut()) {
            (KeySource::Key(key), _) => Signer::Key(key, self.events.clone()),
            (KeySource::EncryptedKey(locked), _) => match self.context.keys.unlocked(&locked).await {
                Some(key) => Signer::Key(key, self.events.clone()),
                None => Signer::EncryptedKey(locked),
            },
            (_, Some(agent)) => Signer::Agent { agent, plain },
            (_, None) => {
                keys.skip(format!("{label} was not used: its key is in no agent"));
                return Ok(Outcome::Skipped);
            }
        };
        match self.show(offered_key, hash, signer).await? {
            Ok(result) => {
                if let AuthResult::Failure { partial_success: false, .. } = &result {
                    self.state.refused_fingerprints.insert(key_id);
                    self.state.offered_keys.push(label);
                }
                Ok(outcome(result))
            }
            Err(SignError::ConnectionLost) => Err(self.lost().into()),
            Err(SignError::EncryptedKey(locked)) => self.locked(locked, keys),
            Err(SignError::Failed(why)) => {
                keys.skip(format!("{label} was not used: {why}"));
                Ok(Outcome::Skipped)
            }
        }
    }

    /// Shows a key or a certificate, and signs when the server would take it.
    async fn show(
        &mut self,
        offered_key: OfferedKey,
        hash: Option<HashAlg>,
        mut signer: Signer<'_>,
    ) -> Result<Result<AuthResult, SignError>, RetryReason> {
        let user = self.resolved.user.clone();
        let asking = async {
            match offered_key {
                OfferedKey::Key(key) => self.handle.authenticate_publickey_with(user, key, hash, &mut signer).await,
                OfferedKey::Certificate(certificate) => {
                    self.handle.authenticate_certificate_with(user, *certificate, hash, &mut signer).await
                }
            }
        };
        self.time_limit.run(asking).await.map_err(|Expired| self.expired().into())
    }

    /// A key that the server would take, but that needs its passphrase.
    fn locked(&self, locked: EncryptedKey, keys: &mut Keys) -> Result<Outcome, RetryReason> {
        if self.context.broker.can_prompt() {
            return Err(RetryReason::EncryptedKey(Box::new(locked)));
        }
        keys.skipped.push(SkippedKey {
            text: format!("{} is locked by a passphrase, and nobody could be asked", locked.path.display()),
            hint: Some(format!("ssh-add {}", shell_word(&locked.path.to_string_lossy()))),
            is_configured: true,
            ssh_program_may_help: false,
        });
        Ok(Outcome::Skipped)
    }

    async fn rsa_hash(&self, keys: &mut Keys) -> Result<RsaHash, RetryReason> {
        if let Some(hash) = keys.rsa_hash {
            return Ok(hash);
        }
        // It may wait a second for the server to tell.
        let rsa_hash_reply = self.time_limit.run(self.handle.best_supported_rsa_hash()).await;
        let hash = match self.check_attempt(rsa_hash_reply)? {
            Some(Some(hash)) => RsaHash::Sha2(hash),
            Some(None) => RsaHash::Sha1Only,
            // A server that tells nothing may still know SHA-2 (RFC 8332, section 3.3).
            None => RsaHash::Sha2(HashAlg::Sha256),
        };
        keys.rsa_hash = Some(hash);
        Ok(hash)
    }
}
