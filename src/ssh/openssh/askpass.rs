//! Answers the questions of `ssh` processes through gpufleet's own prompts.
//!
//! `ssh` starts this program as its askpass, because `SSH_ASKPASS` names it. The askpass process passes the question
//! over a Unix socket in a private directory to [`AskpassServer`], which asks the user through the prompt broker. Each
//! `ssh` has its own token, so an answer cannot reach another one.

use crate::ssh::credentials::{Broker, PromptKey};
use crate::ssh::limits::PausableTimeout;
use crate::ssh::prompt::{Answer, PromptKind};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// The maximum length of a question and of an answer, in bytes. A host key question has a few hundred.
const MAX_QUESTION_BYTES: usize = 8 * 1024;

/// Selects the helper role of this program. An environment variable, because `ssh` passes no options to its askpass.
const ROLE_VARIABLE: &str = "GPUFLEET_HELPER";
const ROLE_SESSION: &str = "session";
const ROLE_ASKPASS: &str = "askpass";
const SOCKET_VARIABLE: &str = "GPUFLEET_ASKPASS_SOCKET";
const TOKEN_VARIABLE: &str = "GPUFLEET_ASKPASS_TOKEN";

/// The exit code of a shell for a program that cannot be started.
const CANNOT_START: u8 = 127;

/// Keeps passphrases and passwords of this process out of core dumps, and on Linux out of reach of a debugger of the same
/// user. Programs that it starts are not affected on Linux.
pub fn forbid_memory_dumps() {
    // An error leaves the defaults of the system.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    #[cfg(not(target_os = "linux"))]
    let _ = {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) })
    };
}

/// Runs the helper role that the environment selects, if any. `main` calls it before anything else.
pub fn run_helper_role() -> Option<ExitCode> {
    let role = std::env::var_os(ROLE_VARIABLE)?;
    let mut arguments = std::env::args_os().skip(1);
    if role == ROLE_SESSION {
        let program = arguments.next()?;
        // Fails only for a process group leader, which is in its own session already or shares a shell's.
        let _ = rustix::process::setsid();
        let mut command = std::process::Command::new(&program);
        let error = command.args(arguments).env(ROLE_VARIABLE, ROLE_ASKPASS).exec();
        // In the format of ssh's own messages, because the parent parses standard error as such.
        let _ = writeln!(io::stderr(), "{}: {error}", program.to_string_lossy());
        return Some(ExitCode::from(CANNOT_START));
    }
    if role == ROLE_ASKPASS && std::env::var_os(SOCKET_VARIABLE).is_some() {
        let text = arguments.next().unwrap_or_default();
        return Some(match ask(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        });
    }
    None
}

/// The askpass process: sends the question to the socket and prints the answer. No answer means that the user declined.
fn ask(text: &OsStr) -> io::Result<()> {
    let variable = |name| std::env::var_os(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    let mut question = variable(TOKEN_VARIABLE)?.into_encoded_bytes();
    question.push(b'\n');
    question.extend_from_slice(text.as_encoded_bytes());
    question.truncate(MAX_QUESTION_BYTES);
    let mut socket = std::os::unix::net::UnixStream::connect(variable(SOCKET_VARIABLE)?)?;
    socket.write_all(&(question.len() as u32).to_be_bytes())?;
    socket.write_all(&question)?;
    // Full capacity from the start: a growing buffer would leave copies of the secret in freed memory.
    let mut answer = Zeroizing::new(Vec::with_capacity(MAX_QUESTION_BYTES));
    socket.take(MAX_QUESTION_BYTES as u64).read_to_end(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(&answer)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// Starts programs without a terminal and lets them ask through the prompt broker.
#[derive(Debug)]
pub(in crate::ssh) struct Askpass {
    broker: Arc<Broker>,
    /// This program. Without it, the programs that gpufleet starts cannot ask.
    helper_program: Option<PathBuf>,
    /// How long a question for a password or a code may stay open.
    answer_limit: Duration,
    /// Started with the first program that may ask; `None` if that failed.
    server: OnceLock<Option<AskpassServer>>,
}

impl Askpass {
    pub(in crate::ssh) fn new(broker: Arc<Broker>, helper_program: Option<PathBuf>, answer_limit: Duration) -> Self {
        Self { broker, helper_program, answer_limit, server: OnceLock::new() }
    }

    /// Whether programs can ask the user.
    pub(super) fn can_prompt(&self) -> bool {
        self.broker.can_prompt() && self.helper_program.is_some()
    }

    /// A command that runs `program` in a new session without a terminal, so that it can neither draw nor ask there.
    pub(in crate::ssh) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        if let Some(helper_program) = &self.helper_program {
            let mut command = Command::new(helper_program);
            command.env(ROLE_VARIABLE, ROLE_SESSION).arg(program);
            return command;
        }
        let mut command = Command::new(program);
        command.process_group(0);
        command
    }

    /// Returns a token with which one program may ask on behalf of `host`, or `None` if programs cannot ask.
    /// `time_limit` pauses during each question.
    pub(in crate::ssh) fn token(&self, host: &str, time_limit: &PausableTimeout) -> Option<AskpassToken> {
        if !self.can_prompt() {
            return None;
        }
        let server = self.server.get_or_init(|| AskpassServer::start(Arc::clone(&self.broker)).ok());
        server.as_ref()?.token(host, time_limit.clone(), self.answer_limit).ok()
    }

    /// Makes `command` and its child processes ask through `token`, or not ask at all.
    pub(in crate::ssh) fn configure(&self, command: &mut Command, token: Option<&AskpassToken>) {
        command.env("SSH_ASKPASS_REQUIRE", "force");
        match (token, &self.helper_program) {
            (Some(token), Some(helper_program)) => {
                command
                    .env("SSH_ASKPASS", helper_program)
                    .env(SOCKET_VARIABLE, &token.socket)
                    .env(TOKEN_VARIABLE, &token.token);
            }
            _ => {
                command.env("SSH_ASKPASS", "/bin/false").env_remove(SOCKET_VARIABLE).env_remove(TOKEN_VARIABLE);
            }
        }
    }
}

/// The socket, and the tokens that are accepted on it.
#[derive(Debug)]
struct AskpassServer {
    directory: PathBuf,
    accepting: JoinHandle<()>,
    clients: Arc<AskpassClients>,
}

#[derive(Default)]
struct AskpassClients(Mutex<HashMap<String, Arc<AskpassClient>>>);

/// One program that may ask.
#[derive(Debug)]
struct AskpassClient {
    host: String,
    /// Paused during a question.
    time_limit: PausableTimeout,
    /// How often each question was asked.
    times_asked: Mutex<HashMap<String, u32>>,
    /// How long a question for a password or a code may stay open: the server drops the login after that.
    limit: Duration,
    abandoned: watch::Sender<Option<PromptAbandoned>>,
}

/// Why a program that asked must be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssh) enum PromptAbandoned {
    /// The user declined.
    Declined,
    /// The user did not answer while the server waited.
    TimedOut,
}

/// Lets one program ask, until dropped.
pub(in crate::ssh) struct AskpassToken {
    clients: Arc<AskpassClients>,
    /// A secret: the program with it can ask as this host.
    token: String,
    client: Arc<AskpassClient>,
    socket: PathBuf,
}

impl fmt::Debug for AskpassToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AskpassToken({})", self.client.host)
    }
}

impl fmt::Debug for AskpassClients {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The keys are the tokens.
        write!(formatter, "AskpassClients({})", self.lock().len())
    }
}

impl AskpassServer {
    /// Starts to listen. Must be called within a tokio runtime.
    fn start(broker: Arc<Broker>) -> io::Result<Self> {
        let directory = private_directory()?;
        let listener = UnixListener::bind(directory.join("socket")).and_then(|listener| {
            fs::set_permissions(directory.join("socket"), fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        });
        let listener = listener.inspect_err(|_| remove(&directory))?;
        let clients = Arc::<AskpassClients>::default();
        let accepting = tokio::spawn(accept(listener, Arc::clone(&clients), broker));
        Ok(Self { directory, accepting, clients })
    }

    fn token(&self, host: &str, time_limit: PausableTimeout, limit: Duration) -> io::Result<AskpassToken> {
        let token = random_hex()?;
        let client = Arc::new(AskpassClient {
            host: host.to_owned(),
            time_limit,
            times_asked: Mutex::default(),
            limit,
            abandoned: watch::Sender::new(None),
        });
        self.clients.lock().insert(token.clone(), Arc::clone(&client));
        let clients = Arc::clone(&self.clients);
        Ok(AskpassToken { clients, token, client, socket: self.directory.join("socket") })
    }
}

impl Drop for AskpassServer {
    fn drop(&mut self) {
        self.accepting.abort();
        remove(&self.directory);
    }
}

impl AskpassToken {
    /// Completes when the user declines or does not answer in time.
    pub(in crate::ssh) async fn abandoned(&self) -> PromptAbandoned {
        let mut abandoned = self.client.abandoned.subscribe();
        let abandoned = abandoned.wait_for(Option::is_some).await.ok().and_then(|abandoned| *abandoned);
        match abandoned {
            Some(abandoned) => abandoned,
            // Unreachable: the token owns the sender.
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

/// Serves one question. Gives up when the askpass process ends, for example because its `ssh` was killed.
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
        // Hosts that need the same passphrase share one prompt.
        PromptKind::Passphrase { path, .. } => PromptKey::KeyFile(path.into()),
        _ => PromptKey::Login { target: client.host.clone(), connection: broker.next_login_id() },
    };
    let _pause = client.time_limit.pause();
    // A passphrase serves all hosts, and `ssh` asks for it again if it must reconnect: no server waits for it.
    let limit = if matches!(kind, PromptKind::Passphrase { .. }) { Duration::MAX } else { client.limit };
    let mut end = [0];
    let abandoned = tokio::select! {
        answered = timeout(limit, broker.ask(key, &client.host, kind)) => match answered {
            Ok(Ok((_, answer))) => match &*answer {
                Answer::Secret(secret) => {
                    // Errors mean that the askpass process has ended and needs no answer.
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
    // If the askpass process ended now, ssh would try an empty password. So keep it waiting until the owner of the token
    // has killed ssh.
    let _ = stream.read(&mut end).await;
}

/// Reads the token and the text of a question; `None` if it is malformed.
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

/// Classifies a question of `ssh`.
fn prompt_kind(text: &str, failures: u32) -> PromptKind {
    let text = text.trim();
    let path = text.strip_prefix("Enter passphrase for key '").and_then(|rest| rest.rsplit_once('\''));
    if let Some((path, _)) = path {
        return PromptKind::Passphrase { path: path.to_owned(), fingerprint: None, failures };
    }
    // The last line is the question; the lines above explain it.
    let (instruction, question) = text.rsplit_once('\n').unwrap_or(("", text));
    let echo = question.contains("(yes/no");
    PromptKind::Secret { text: question.to_owned(), instruction: instruction.trim().to_owned(), echo, failures }
}

/// Creates a directory with mode 0700, in `$XDG_RUNTIME_DIR` if possible.
fn private_directory() -> io::Result<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let mut failure = None;
    for parent in runtime.into_iter().chain([std::env::temp_dir()]) {
        let directory = parent.join(format!(".gpufleet-askpass-{}", random_hex()?));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::Error::other("no directory for the askpass socket")))
}

fn remove(directory: &Path) {
    // On failure an empty directory or an unused socket remains, which is harmless.
    let _ = fs::remove_dir_all(directory);
}

/// 128 random bits in hexadecimal.
fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn debug_output_shows_no_token() {
        let (broker, _prompts) = Broker::new(crate::ssh::Interaction::Ask);
        let server = AskpassServer::start(Arc::new(broker)).unwrap();
        let limit = Duration::from_secs(1);
        let token = server.token("gpu01", PausableTimeout::start(limit), limit).unwrap();
        let text = format!("{token:?} {server:?}");
        assert!(text.contains("gpu01") && !text.contains(&token.token), "{text}");
    }

    #[test]
    fn ssh_questions_are_classified() {
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
