//! Signatures for certificates, whose key is another thing than what is shown.

use super::agent::Agent;
use super::handler::Witness;
use russh::keys::agent::AgentIdentity;
use russh::keys::signature::Signer as _;
use russh::keys::ssh_encoding::Encode;
use russh::keys::ssh_key::Signature;
use russh::keys::ssh_key::private::KeypairData;
use russh::keys::{HashAlg, PrivateKey, PublicKey};
use russh::{AgentAuthError, SendError, Signer};
use std::sync::Arc;

/// Signs with a key that is in memory.
pub(super) struct ByKey {
    pub(super) key: Arc<PrivateKey>,
    pub(super) witness: Witness,
}

/// Why there is no signature.
#[derive(Debug)]
pub(super) enum Unsigned {
    /// The connection has gone.
    Lost,
    /// The key does not sign; the reason in words.
    Failed(String),
}

impl From<SendError> for Unsigned {
    fn from(_: SendError) -> Self {
        Self::Lost
    }
}

impl Signer for ByKey {
    type Error = Unsigned;

    /// The data with its signature behind it, as russh wants it.
    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        hash: Option<HashAlg>,
        mut data: Vec<u8>,
    ) -> Result<Vec<u8>, Unsigned> {
        let signature: Signature = match self.key.key_data() {
            // The key alone would sign with SHA-512 whatever was negotiated.
            KeypairData::Rsa(pair) => (pair, hash).try_sign(&data),
            _ => self.key.try_sign(&data),
        }
        .map_err(|error| Unsigned::Failed(error.to_string()))?;
        let mut encoded = Vec::new();
        signature.encode(&mut encoded).map_err(|error| Unsigned::Failed(error.to_string()))?;
        encoded.encode(&mut data).map_err(|error| Unsigned::Failed(error.to_string()))?;
        self.witness.seen().proven = true;
        Ok(data)
    }
}

/// Signs with the agent's plain key, for a certificate of which the agent knows nothing.
pub(super) struct ByAgent<'a> {
    pub(super) agent: &'a mut Agent,
    pub(super) key: PublicKey,
}

impl Signer for ByAgent<'_> {
    type Error = AgentAuthError;

    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        hash: Option<HashAlg>,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, AgentAuthError> {
        let plain = AgentIdentity::PublicKey { key: self.key.clone(), comment: String::new() };
        self.agent.auth_sign(&plain, hash, data).await
    }
}
