//! The ssh-agent.

use super::handler::ConnectionEvents;
use crate::ssh::Context;
use crate::ssh::pausable_timeout::PausableTimeout;
use crate::ssh::resolve::{AgentSocket, Resolved};
use crate::wire::format::io_cause;
use russh::keys::agent::{AgentIdentity, AgentSessionBinding, client::AgentClient};
use russh::keys::{Error, HashAlg};
use russh::{AgentAuthError, Signer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

/// How long an agent may take to list its keys; signing may wait for a touch and is not limited here.
const LIMIT: Duration = Duration::from_secs(3);

/// A connection to the agent for one login. Each login has its own, because an agent binds a connection to the first
/// server it signs for; all of them sign in turn.
pub(super) struct Agent {
    client: AgentClient<UnixStream>,
    turn: Arc<Mutex<()>>,
    /// Stands still while the agent may be waiting for a person.
    time_limit: PausableTimeout,
    events: ConnectionEvents,
}

/// The socket to use, if any.
pub(super) fn socket(context: &Context, resolved: &Resolved) -> Option<PathBuf> {
    match &resolved.agent {
        AgentSocket::FromEnvironment => context.options.agent_socket.clone(),
        AgentSocket::Path(path) => Some(path.clone()),
        AgentSocket::Disabled => None,
    }
}

impl Agent {
    /// Connects and lists the keys. The reason, in words, when that fails.
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
                // Only keys restricted to certain hosts need it, and older agents do not know it.
                let _ = client.bind_session(binding, false).await;
            }
            let identities = client.request_identities().await?;
            Ok::<_, Error>((client, identities))
        };
        let failed = |why: &str| format!("the agent at {} gave no keys: {why}", socket.display());
        match tokio::time::timeout(LIMIT, connecting).await {
            Ok(Ok((client, identities))) => {
                let turn = Arc::clone(&context.agent_sign_lock);
                Ok((Self { client, turn, time_limit: time_limit.clone(), events: events.clone() }, identities))
            }
            Ok(Err(Error::IO(error))) => Err(failed(&io_cause(&error))),
            Ok(Err(error)) => Err(failed(&error.to_string())),
            Err(_) => Err(failed("no answer within 3 s")),
        }
    }
}

impl Signer for Agent {
    type Error = AgentAuthError;

    async fn auth_sign(
        &mut self,
        key: &AgentIdentity,
        hash: Option<HashAlg>,
        to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, AgentAuthError> {
        let _pause = self.time_limit.pause();
        let _turn = self.turn.lock().await;
        let signed = self.client.sign_request(key, hash, to_sign).await?;
        self.events.lock().proof_sent = true;
        Ok(signed)
    }
}
