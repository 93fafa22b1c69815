//! The ssh-agent.

use super::handler::Witness;
use crate::ssh::Context;
use crate::ssh::resolve::{AgentChoice, Resolved};
use crate::ssh::stopwatch::Stopwatch;
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
    watch: Stopwatch,
    witness: Witness,
}

/// The socket to use, if any.
pub(super) fn socket(context: &Context, resolved: &Resolved) -> Option<PathBuf> {
    match &resolved.agent {
        AgentChoice::Usual => context.options.agent_socket.clone(),
        AgentChoice::Socket(path) => Some(path.clone()),
        AgentChoice::Never => None,
    }
}

impl Agent {
    /// Connects and lists the keys. The reason, in words, when that fails.
    pub(super) async fn connect(
        context: &Context,
        socket: &Path,
        binding: Option<&AgentSessionBinding>,
        watch: &Stopwatch,
        witness: &Witness,
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
                let turn = Arc::clone(&context.agent_turn);
                Ok((Self { client, turn, watch: watch.clone(), witness: witness.clone() }, identities))
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
        let _pause = self.watch.pause();
        let _turn = self.turn.lock().await;
        let signed = self.client.sign_request(key, hash, to_sign).await?;
        self.witness.seen().proven = true;
        Ok(signed)
    }
}
