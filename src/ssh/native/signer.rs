//! Signs authentication requests, with a key in memory or through the ssh-agent.

use super::connection::ConnectionEvents;
use crate::ssh::Context;
use crate::ssh::credentials::EncryptedKey;
use crate::ssh::limits::PausableTimeout;
use crate::ssh::resolve::{AgentSocket, Resolved};
use crate::wire::format::io_cause;
use russh::keys::agent::{AgentIdentity, AgentSessionBinding, client::AgentClient};
use russh::keys::signature::Signer as _;
use russh::keys::ssh_encoding::{self, Encode};
use russh::keys::ssh_key::Signature;
use russh::keys::ssh_key::private::KeypairData;
use russh::keys::{Error, HashAlg, PrivateKey, PublicKey};
use russh::{AgentAuthError, SendError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long an agent may take to list its keys. Signing has no limit here, because it may wait for a touch.
const AGENT_LIMIT: Duration = Duration::from_secs(3);

/// A connection to the ssh-agent for one login. Each login needs its own, because an agent binds a connection to the
/// first server for which it signs.
pub(super) struct Agent {
    client: AgentClient<UnixStream>,
    /// Held while signing: see [`Context::agent_sign_lock`].
    sign_lock: Arc<Mutex<()>>,
    /// Paused while the agent may wait for the user.
    time_limit: PausableTimeout,
    events: ConnectionEvents,
}

/// The socket of the agent, if one is to be used.
pub(super) fn agent_socket(context: &Context, resolved: &Resolved) -> Option<PathBuf> {
    match &resolved.agent {
        AgentSocket::FromEnvironment => context.options.agent_socket.clone(),
        AgentSocket::Path(path) => Some(path.clone()),
        AgentSocket::Disabled => None,
    }
}

impl Agent {
    /// Connects and lists the keys.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(super) async fn connect(
        context: &Context,
        socket: &Path,
        binding: Option<&AgentSessionBinding>,
        time_limit: &PausableTimeout,
        events: &ConnectionEvents,
    ) -> Result<(Self, Vec<AgentIdentity>), String> {
        let connecting = async {
            let mut client = AgentClient::connect_uds(socket).await?;
            if let Some(binding) = binding {
                // Only keys that are restricted to certain hosts need it; older agents do not know it.
                let _ = client.bind_session(binding, false).await;
            }
            let identities = client.request_identities().await?;
            Ok::<_, Error>((client, identities))
        };
        let failed = |reason: &str| format!("the agent at {} gave no keys: {reason}", socket.display());
        match timeout(AGENT_LIMIT, connecting).await {
            Ok(Ok((client, identities))) => {
                let sign_lock = Arc::clone(&context.agent_sign_lock);
                Ok((Self { client, sign_lock, time_limit: time_limit.clone(), events: events.clone() }, identities))
            }
            Ok(Err(Error::IO(error))) => Err(failed(&io_cause(&error))),
            Ok(Err(error)) => Err(failed(&error.to_string())),
            Err(_) => Err(failed("no answer within 3 s")),
        }
    }

    async fn sign(
        &mut self,
        key: &AgentIdentity,
        hash: Option<HashAlg>,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, AgentAuthError> {
        let _pause = self.time_limit.pause();
        let _turn = self.sign_lock.lock().await;
        let signed = self.client.sign_request(key, hash, data).await?;
        self.events.lock().credentials_sent = true;
        Ok(signed)
    }
}

/// Signs for one key or certificate that is offered to the server.
pub(super) enum Signer<'a> {
    /// With a key in memory.
    Key(Arc<PrivateKey>, ConnectionEvents),
    /// Through the agent, with the offered key, or with `plain` if the offer is a certificate that the agent does not
    /// have.
    Agent { agent: &'a mut Agent, plain: Option<PublicKey> },
    /// Fails: gpufleet learns whether the server accepts the key before it asks for the passphrase.
    EncryptedKey(EncryptedKey),
}

/// Why there is no signature.
#[derive(Debug)]
pub(super) enum SignError {
    /// The connection to the server is lost.
    ConnectionLost,
    /// The server would accept the key, but it is encrypted.
    EncryptedKey(EncryptedKey),
    /// The key or the agent does not sign, with the reason.
    Failed(String),
}

impl From<SendError> for SignError {
    fn from(_: SendError) -> Self {
        SignError::ConnectionLost
    }
}

impl russh::Signer for Signer<'_> {
    type Error = SignError;

    /// Returns `data` followed by its signature.
    async fn auth_sign(
        &mut self,
        offered: &AgentIdentity,
        hash: Option<HashAlg>,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, SignError> {
        match self {
            Self::Key(key, events) => {
                let signed = sign(key, hash, data).map_err(SignError::Failed)?;
                events.lock().credentials_sent = true;
                Ok(signed)
            }
            Self::Agent { agent, plain } => {
                let plain = plain.clone().map(|key| AgentIdentity::PublicKey { key, comment: String::new() });
                match agent.sign(plain.as_ref().unwrap_or(offered), hash, data).await {
                    Ok(signed) => Ok(signed),
                    Err(AgentAuthError::Send(error)) => Err(error.into()),
                    Err(AgentAuthError::Key(error)) => {
                        Err(SignError::Failed(format!("the agent did not sign: {error}")))
                    }
                }
            }
            Self::EncryptedKey(key) => Err(SignError::EncryptedKey(key.clone())),
        }
    }
}

fn sign(key: &PrivateKey, hash: Option<HashAlg>, mut data: Vec<u8>) -> Result<Vec<u8>, String> {
    let signature: Signature = match key.key_data() {
        // Without the hash, the key would sign with SHA-512 whatever was negotiated.
        KeypairData::Rsa(pair) => (pair, hash).try_sign(&data),
        _ => key.try_sign(&data),
    }
    .map_err(|error| error.to_string())?;
    let to_text = |error: ssh_encoding::Error| error.to_string();
    let mut encoded = Vec::new();
    signature.encode(&mut encoded).map_err(to_text)?;
    encoded.encode(&mut data).map_err(to_text)?;
    Ok(data)
}
