//! What signs for a key or a certificate that is shown to a server.

use super::agent::Agent;
use super::handler::ConnectionEvents;
use crate::ssh::credentials::EncryptedKey;
use russh::keys::agent::AgentIdentity;
use russh::keys::signature::Signer as _;
use russh::keys::ssh_encoding::{self, Encode};
use russh::keys::ssh_key::Signature;
use russh::keys::ssh_key::private::KeypairData;
use russh::keys::{HashAlg, PrivateKey, PublicKey};
use russh::{AgentAuthError, SendError};
use std::sync::Arc;

/// What signs.
pub(super) enum Signer<'a> {
    /// A key in memory.
    Key(Arc<PrivateKey>, ConnectionEvents),
    /// The agent, with what is shown, or with this plain key where a certificate is shown of which it knows nothing.
    Agent { agent: &'a mut Agent, plain: Option<PublicKey> },
    /// Nothing yet: whether the server would take the key is learnt before its passphrase is asked for.
    EncryptedKey(EncryptedKey),
}

/// Why there is no signature.
#[derive(Debug)]
pub(super) enum SignError {
    /// The connection has gone.
    ConnectionLost,
    /// The server would take it, and its passphrase is not known.
    EncryptedKey(EncryptedKey),
    /// The key or the agent does not sign; the reason in words.
    Failed(String),
}

impl From<SendError> for SignError {
    fn from(_: SendError) -> Self {
        SignError::ConnectionLost
    }
}

impl russh::Signer for Signer<'_> {
    type Error = SignError;

    /// The data with its signature behind it, as russh wants it.
    async fn auth_sign(
        &mut self,
        shown: &AgentIdentity,
        hash: Option<HashAlg>,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, SignError> {
        match self {
            Self::Key(key, events) => {
                let signed = sign(key, hash, data).map_err(SignError::Failed)?;
                events.lock().proof_sent = true;
                Ok(signed)
            }
            Self::Agent { agent, plain } => {
                let plain = plain.clone().map(|key| AgentIdentity::PublicKey { key, comment: String::new() });
                match agent.auth_sign(plain.as_ref().unwrap_or(shown), hash, data).await {
                    Ok(signed) => Ok(signed),
                    Err(AgentAuthError::Send(error)) => Err(error.into()),
                    Err(AgentAuthError::Key(error)) => {
                        Err(SignError::Failed(format!("the agent did not sign: {error}")))
                    }
                }
            }
            Self::EncryptedKey(locked) => Err(SignError::EncryptedKey(locked.clone())),
        }
    }
}

fn sign(key: &PrivateKey, hash: Option<HashAlg>, mut data: Vec<u8>) -> Result<Vec<u8>, String> {
    let signature: Signature = match key.key_data() {
        // The key alone would sign with SHA-512 whatever was negotiated.
        KeypairData::Rsa(pair) => (pair, hash).try_sign(&data),
        _ => key.try_sign(&data),
    }
    .map_err(|error| error.to_string())?;
    let in_words = |error: ssh_encoding::Error| error.to_string();
    let mut encoded = Vec::new();
    signature.encode(&mut encoded).map_err(in_words)?;
    encoded.encode(&mut data).map_err(in_words)?;
    Ok(data)
}
