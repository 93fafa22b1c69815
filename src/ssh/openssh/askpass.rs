//! What the `ssh` program wants to know, asked through our queue of prompts.
//!
//! `ssh` starts this very program as its askpass (see [`super::helper`]), which passes the question on over a socket in
//! a folder that is nobody else's. Each `ssh` has a token of its own, so that an answer cannot reach another.

use crate::ssh::credentials::{Broker, PromptKey};
use crate::ssh::pausable_timeout::PausableTimeout;
use crate::ssh::prompt::{Answer, PromptKind};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The longest question, in bytes; a host key's with its fingerprint is some hundred.
pub(super) const MAX_QUESTION_BYTES: usize = 8 * 1024;

/// The socket, and who may ask.
#[derive(Debug)]
pub(in crate::ssh) struct AskpassServer {
    folder: PathBuf,
    accepting: JoinHandle<()>,
    clients: Arc<AskpassClients>,
}

#[derive(Debug, Default)]
struct AskpassClients(Mutex<HashMap<String, Arc<AskpassClient>>>);

/// One `ssh` that may ask.
#[derive(Debug)]
struct AskpassClient {
    host: String,
    /// Stands still while the person is asked.
    time_limit: PausableTimeout,
    /// How often each question was asked before.
    times_asked: Mutex<HashMap<String, u32>>,
    /// How long a question for a password or a code may stand: its server does not wait longer for the login.
    limit: Duration,
    abandoned: watch::Sender<Option<PromptAbandoned>>,
}

/// Why an `ssh` that asked has to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssh) enum PromptAbandoned {
    /// The person said no.
    Declined,
    /// Nobody answered while the server waited.
    TimedOut,
}

/// The right to ask, until dropped.
#[derive(Debug)]
pub(in crate::ssh) struct AskpassToken {
    clients: Arc<AskpassClients>,
    token: String,
    client: Arc<AskpassClient>,
    socket: PathBuf,
}

impl AskpassServer {
    /// Listens from now on. To be called within a tokio runtime.
    pub(super) fn start(broker: Arc<Broker>) -> io::Result<Self> {
        let folder = private_folder()?;
        let listener = UnixListener::bind(folder.join("socket")).and_then(|listener| {
            fs::set_permissions(folder.join("socket"), fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        });
        let listener = listener.inspect_err(|_| remove(&folder))?;
        let clients = Arc::<AskpassClients>::default();
        let accepting = tokio::spawn(accept(listener, Arc::clone(&clients), broker));
        Ok(Self { folder, accepting, clients })
    }

    /// Lets an `ssh` ask on behalf of `host`. While it does, `watch` stands still; each question stands for `limit`.
    pub(super) fn askpass_token(
        &self,
        host: &str,
        time_limit: PausableTimeout,
        limit: Duration,
    ) -> io::Result<AskpassToken> {
        let token = random()?;
        let abandoned = watch::Sender::new(None);
        let client = Arc::new(AskpassClient {
            host: host.to_owned(),
            time_limit,
            times_asked: Mutex::default(),
            limit,
            abandoned,
        });
        self.clients.lock().insert(token.clone(), Arc::clone(&client));
        let clients = Arc::clone(&self.clients);
        Ok(AskpassToken { clients, token, client, socket: self.folder.join("socket") })
    }
}

impl Drop for AskpassServer {
    fn drop(&mut self) {
        self.accepting.abort();
        remove(&self.folder);
    }
}

impl AskpassToken {
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Completes when the person has said no or is not there.
    pub(in crate::ssh) async fn abandoned(&self) -> PromptAbandoned {
        let mut abandoned = self.client.abandoned.subscribe();
        let abandoned = abandoned.wait_for(Option::is_some).await.ok().and_then(|abandoned| *abandoned);
        match abandoned {
            Some(abandoned) => abandoned,
            // The sender lives as long as the licence.
            None => std::future::pending().await,
        }
    }
}

impl Drop for AskpassToken {
    fn drop(&mut self) {
        self.clients.lock().remove(&self.token);
    }
}

impl AskpassClients {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<AskpassClient>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: UnixListener, clients: Arc<AskpassClients>, broker: Arc<Broker>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, Arc::clone(&clients), Arc::clone(&broker)));
    }
}

/// Serves one question. Whoever asked and is gone meanwhile (an `ssh` that was killed) needs no answer.
async fn serve(mut stream: UnixStream, clients: Arc<AskpassClients>, broker: Arc<Broker>) {
    let Ok(Some((token, text))) = read_question(&mut stream).await else { return };
    let Some(client) = clients.lock().get(&token).cloned() else { return };
    let failures = {
        let mut times_asked = client.times_asked.lock().unwrap_or_else(PoisonError::into_inner);
        let times = times_asked.entry(text.clone()).or_default();
        *times += 1;
        *times - 1
    };
    let kind = prompt_kind(&text, failures);
    let key = match &kind {
        // Ten hosts that want one passphrase raise one prompt.
        PromptKind::Passphrase { path, .. } => PromptKey::KeyFile(path.into()),
        _ => PromptKey::Login { target: client.host.clone(), connection: broker.next_login_id() },
    };
    let _pause = client.time_limit.pause();
    // A passphrase is for all hosts at once, and `ssh` comes again for it.
    let limit = if matches!(kind, PromptKind::Passphrase { .. }) { Duration::MAX } else { client.limit };
    let mut end = [0];
    let abandoned = tokio::select! {
        answered = timeout(limit, broker.ask(key, &client.host, kind)) => match answered {
            Ok(Ok((_, answer))) => match &*answer {
                Answer::Secret(secret) => {
                    // An asker that has gone loses the answer, which is wiped with the prompt.
                    let _ = stream.write_all(secret.expose().as_bytes()).await;
                    let _ = stream.shutdown().await;
                    return;
                }
                Answer::Decline | Answer::TrustOnce | Answer::TrustAndSave => PromptAbandoned::Declined,
            },
            Ok(Err(_)) => PromptAbandoned::Declined,
            Err(_) => PromptAbandoned::TimedOut,
        },
        _ = stream.read(&mut end) => return,
    };
    client.abandoned.send_replace(Some(abandoned));
    // An answer, or the end of this one, would make ssh try an empty password: it is ended instead, and its askpass waits
    // until then.
    let _ = stream.read(&mut end).await;
}

/// The token and the text of a question; `None` for what is none.
async fn read_question(stream: &mut UnixStream) -> io::Result<Option<(String, String)>> {
    let length = stream.read_u32().await? as usize;
    if length > MAX_QUESTION_BYTES {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.split_once('\n').map(|(token, text)| (token.to_owned(), text.to_owned())))
}

/// What ssh's words ask for.
fn prompt_kind(text: &str, failures: u32) -> PromptKind {
    let text = text.trim();
    let path = text.strip_prefix("Enter passphrase for key '").and_then(|rest| rest.rsplit_once('\''));
    if let Some((path, _)) = path {
        return PromptKind::Passphrase { path: path.to_owned(), fingerprint: None, failures };
    }
    // The last line is the question, those above it explain it.
    let (instruction, question) = text.rsplit_once('\n').unwrap_or(("", text));
    let echo = question.contains("(yes/no");
    PromptKind::Secret { text: question.to_owned(), instruction: instruction.trim().to_owned(), echo, failures }
}

/// A folder that only this account may enter, in the account's own runtime directory where there is one.
fn private_folder() -> io::Result<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let mut failure = None;
    for place in runtime.into_iter().chain([std::env::temp_dir()]) {
        let folder = place.join(format!(".gpufleet-askpass-{}", random()?));
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::Error::other("no directory for the socket")))
}

fn remove(folder: &Path) {
    // What cannot be removed is an empty folder or a dead socket of ours.
    let _ = fs::remove_dir_all(folder);
}

/// 128 bits, hexadecimal.
fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_ssh() {
        assert_eq!(
            prompt_kind("Enter passphrase for key '/home/ann/my 'key'': ", 1),
            PromptKind::Passphrase { path: "/home/ann/my 'key'".into(), fingerprint: None, failures: 1 }
        );
        assert_eq!(
            prompt_kind("bob@gpu01's password: ", 0),
            PromptKind::Secret {
                text: "bob@gpu01's password:".into(),
                instruction: String::new(),
                echo: false,
                failures: 0
            }
        );
        let unknown = "The authenticity of host 'gpu01' can't be established.\nED25519 key fingerprint is SHA256:x.\n\
                       Are you sure you want to continue connecting (yes/no/[fingerprint])? ";
        assert_eq!(
            prompt_kind(unknown, 0),
            PromptKind::Secret {
                text: "Are you sure you want to continue connecting (yes/no/[fingerprint])?".into(),
                instruction:
                    "The authenticity of host 'gpu01' can't be established.\nED25519 key fingerprint is SHA256:x."
                        .into(),
                echo: true,
                failures: 0
            }
        );
    }
}
