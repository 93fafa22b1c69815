//! Logins with keys and certificates (RFC 4252, section 7).

use super::{Login, Outcome, outcome};
use crate::ssh::credentials::Locked;
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::native::agent::{self, Agent};
use crate::ssh::native::candidates::{self, Candidate, Candidates, Note, Signing};
use crate::ssh::native::memory::Setback;
use crate::ssh::native::signer::{Signer, Unsigned};
use crate::ssh::native::{algorithms, certificates};
use crate::ssh::stopwatch::Expired;
use crate::ssh::text::shell_word;
use russh::client::AuthResult;
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is known of the keys of this login.
pub(super) struct Keys {
    pub(super) waiting: std::vec::IntoIter<Candidate>,
    agent: Option<Agent>,
    pub(super) notes: Vec<Note>,
    /// The best hash the server takes from RSA keys, once asked for.
    rsa_hash: Option<RsaHash>,
}

impl Keys {
    fn note(&mut self, text: String) {
        self.notes.push(Note::of(text));
    }
}

/// RFC 8332.
#[derive(Debug, Clone, Copy)]
enum RsaHash {
    Sha2(HashAlg),
    Sha1Only,
}

/// What the server is shown.
enum Shown {
    Key(PublicKey),
    Certificate(Box<Certificate>),
}

impl Login<'_> {
    /// The keys that may be offered, from files and from the agent.
    pub(super) async fn keys(&self) -> Keys {
        let resolved = self.resolved.clone();
        let reading = move || (candidates::read_files(&resolved), certificates::read(&resolved));
        let (files, (certificates, mut notes)) = tokio::task::spawn_blocking(reading).await.unwrap_or_default();
        let (mut agent, mut identities) = (None, Vec::new());
        if let Some(socket) = agent::socket(self.context, self.resolved) {
            let binding = self.handle.agent_session_binding();
            match Agent::connect(self.context, &socket, binding, &self.watch, self.witness).await {
                Ok((connected, held)) => {
                    agent = Some(connected);
                    identities = held;
                }
                Err(text) => notes.push(Note::of(text)),
            }
        }
        let mut candidates: Candidates = candidates::order(self.resolved, files, identities);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        candidates::certify(&mut candidates, certificates, now);
        notes.extend(candidates.notes);
        Keys { waiting: candidates.keys.into_iter(), agent, notes, rsa_hash: None }
    }

    /// Offers one key.
    pub(super) async fn offer(&mut self, candidate: Candidate, keys: &mut Keys) -> Result<Outcome, Setback> {
        let Some(public) = candidate.public.clone() else {
            // A locked file that tells nothing: only its passphrase can tell whether it is any use.
            let Signing::Locked(locked) = candidate.signing else { return Ok(Outcome::Skipped) };
            return match self.context.keys.unlocked(&locked).await {
                Some(key) => {
                    let public = Some(key.public_key().clone());
                    let opened = Candidate { public, signing: Signing::Key(key), label: candidate.label };
                    Box::pin(self.offer(opened, keys)).await
                }
                None => self.locked(locked, keys),
            };
        };
        let is_certificate = candidate.is_certificate();
        let print = fingerprint(&public) + if is_certificate { " certificate" } else { "" };
        if self.memory.refused.contains(&print) {
            return Ok(Outcome::Skipped);
        }
        let label = candidate.label;
        let servers = match public.algorithm() {
            Algorithm::Rsa { .. } => match self.rsa_hash(keys).await? {
                RsaHash::Sha2(hash) => Some(hash),
                RsaHash::Sha1Only => {
                    let text = format!("{label} was not offered: the server takes RSA with SHA-1 only");
                    let by_ssh = algorithms::wants_sha1(&self.resolved.algorithms);
                    keys.notes.push(Note { by_ssh, ..Note::of(text) });
                    return Ok(Outcome::Skipped);
                }
            },
            _ => None,
        };
        let wanted = &self.resolved.algorithms;
        let Ok(hash) = algorithms::signature(&public.algorithm(), servers, is_certificate, wanted) else {
            keys.note(format!("{label} was not offered: PubkeyAcceptedAlgorithms leaves it out"));
            return Ok(Outcome::Skipped);
        };
        let (shown, signing, plain) = match candidate.signing {
            Signing::AgentCertificate(certificate) => (Shown::Certificate(certificate), Signing::Agent, None),
            Signing::Certificate(certificate, by) => (Shown::Certificate(certificate), *by, Some(public)),
            signing => (Shown::Key(public), signing, None),
        };
        let signer = match (signing, keys.agent.as_mut()) {
            (Signing::Key(key), _) => Signer::Key(key, self.witness.clone()),
            (Signing::Locked(locked), _) => match self.context.keys.unlocked(&locked).await {
                Some(key) => Signer::Key(key, self.witness.clone()),
                None => Signer::Locked(locked),
            },
            (_, Some(agent)) => Signer::Agent { agent, plain },
            (_, None) => {
                keys.note(format!("{label} was not used: its key is in no agent"));
                return Ok(Outcome::Skipped);
            }
        };
        match self.show(shown, hash, signer).await? {
            Ok(result) => {
                if let AuthResult::Failure { partial_success: false, .. } = &result {
                    self.memory.refused.insert(print);
                    self.memory.offered.push(label);
                }
                Ok(outcome(result))
            }
            Err(Unsigned::Lost) => Err(self.lost().into()),
            Err(Unsigned::Locked(locked)) => self.locked(locked, keys),
            Err(Unsigned::Failed(why)) => {
                keys.note(format!("{label} was not used: {why}"));
                Ok(Outcome::Skipped)
            }
        }
    }

    /// Shows a key or a certificate, and signs when the server would take it.
    async fn show(
        &mut self,
        shown: Shown,
        hash: Option<HashAlg>,
        mut signer: Signer<'_>,
    ) -> Result<Result<AuthResult, Unsigned>, Setback> {
        let user = self.resolved.user.clone();
        let asking = async {
            match shown {
                Shown::Key(key) => self.handle.authenticate_publickey_with(user, key, hash, &mut signer).await,
                Shown::Certificate(certificate) => {
                    self.handle.authenticate_certificate_with(user, *certificate, hash, &mut signer).await
                }
            }
        };
        self.watch.run(asking).await.map_err(|Expired| self.expired().into())
    }

    /// A key that the server would take, but that needs its passphrase.
    fn locked(&self, locked: Locked, keys: &mut Keys) -> Result<Outcome, Setback> {
        if self.context.broker.can_ask() {
            return Err(Setback::Locked(Box::new(locked)));
        }
        keys.notes.push(Note {
            text: format!("{} is locked by a passphrase, and nobody could be asked", locked.path.display()),
            hint: Some(format!("ssh-add {}", shell_word(&locked.path.to_string_lossy()))),
            own: true,
            by_ssh: false,
        });
        Ok(Outcome::Skipped)
    }

    async fn rsa_hash(&self, keys: &mut Keys) -> Result<RsaHash, Setback> {
        if let Some(hash) = keys.rsa_hash {
            return Ok(hash);
        }
        // It may wait a second for the server to tell.
        let told = self.watch.run(self.handle.best_supported_rsa_hash()).await;
        let hash = match self.settled(told)? {
            Some(Some(hash)) => RsaHash::Sha2(hash),
            Some(None) => RsaHash::Sha1Only,
            // A server that tells nothing may still know SHA-2 (RFC 8332, section 3.3).
            None => RsaHash::Sha2(HashAlg::Sha256),
        };
        keys.rsa_hash = Some(hash);
        Ok(hash)
    }
}
