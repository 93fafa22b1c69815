//! What all connections of one process share.

use super::credentials::{Broker, KeyRing, PromptEvent};
use super::known_hosts::{HostName, fingerprint};
use super::native::JumpHostPool;
use super::openssh::AskpassServer;
use super::preauth_limiter::PreauthLimiter;
use super::prompt::{Answer, PromptId};
use super::transport::{Limits, SshPhase};
use crate::config::HostConfig;
use russh::keys::PublicKey;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::{OnceCell, Semaphore, mpsc};

/// Whether there is a person who can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interaction {
    /// Prompts are sent as [`PromptEvent`]s and wait for [`Context::answer`].
    Ask,
    /// A prompt becomes an error whose hint is the command that makes it unnecessary.
    Refuse,
}

/// Something that was learned of a connection, for those who look into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// The host's name.
    pub host: String,
    /// The phase that it concerns.
    pub phase: SshPhase,
    /// What was learned, in words. It may quote the server; the caller makes it safe text.
    pub text: String,
}

/// How a [`Context`] is set up; [`Options::from_environment`] is what a program wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether there is a person who can be asked.
    pub interaction: Interaction,
    /// The limits of each connection's phases.
    pub limits: Limits,
    /// What `~` stands for; without it, paths that begin with it do not exist.
    pub home: Option<PathBuf>,
    /// The agent's socket, unless the ssh configuration names another.
    pub agent_socket: Option<PathBuf>,
    /// Read by the `ssh` program instead of the usual configuration files (`ssh -F`).
    pub ssh_config: Option<PathBuf>,
    /// This program: it is the askpass of the `ssh` programs that it starts (see [`super::run_helper_role`]).
    /// Without it they ask nothing.
    pub helper_program: Option<PathBuf>,
    /// Where remarks on connections go, if anybody wants them.
    pub trace_events: Option<mpsc::UnboundedSender<TraceEvent>>,
}

impl Options {
    /// Home and agent from `HOME` and `SSH_AUTH_SOCK`, the usual limits and configuration files.
    pub fn from_environment(interaction: Interaction) -> Self {
        let socket = std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty());
        Self {
            interaction,
            limits: Limits::default(),
            home: std::env::home_dir(),
            agent_socket: socket.map(PathBuf::from),
            ssh_config: None,
            helper_program: std::env::current_exe().ok(),
            trace_events: None,
        }
    }
}

/// What all connections of one process share: prompts, decrypted keys, the agent's turn, the gate before each address.
#[derive(Debug)]
pub struct Context {
    pub(super) options: Options,
    pub(super) broker: Arc<Broker>,
    /// Answers what `ssh` programs ask; opened with the first of them.
    pub(super) askpass: OnceLock<Option<AskpassServer>>,
    pub(super) keys: KeyRing,
    pub(super) preauth_limiter: PreauthLimiter,
    /// Connections to jump hosts, one each.
    pub(super) jump_hosts: JumpHostPool,
    /// Held by the login whose questions a person is answering: a connection that waits for a code is opened when its
    /// dialog opens, since the server does not wait for ever.
    pub(super) interactive_login_lock: Arc<tokio::sync::Mutex<()>>,
    /// Held while an agent signs, so that keys that want a touch ask one at a time.
    pub(super) agent_sign_lock: Arc<tokio::sync::Mutex<()>>,
    /// What `ssh -G` says of a host that no configuration names.
    pub(super) default_ssh_config: OnceCell<String>,
    /// As many `ssh -G` at once as there are cores, those that hang aside.
    pub(super) resolving: Semaphore,
    trusted_once: Mutex<HashMap<String, Vec<String>>>,
}

impl Context {
    /// The context of a process that reads its environment, and the prompts that it will raise.
    pub fn new(interaction: Interaction) -> (Arc<Self>, mpsc::Receiver<PromptEvent>) {
        Self::with_options(Options::from_environment(interaction))
    }

    /// The same with everything given.
    pub fn with_options(options: Options) -> (Arc<Self>, mpsc::Receiver<PromptEvent>) {
        let (broker, prompts) = Broker::new(options.interaction);
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let context = Self {
            options,
            broker: Arc::new(broker),
            askpass: OnceLock::new(),
            keys: KeyRing::default(),
            preauth_limiter: PreauthLimiter::default(),
            jump_hosts: JumpHostPool::default(),
            interactive_login_lock: Arc::default(),
            agent_sign_lock: Arc::default(),
            default_ssh_config: OnceCell::new(),
            resolving: Semaphore::new(cores),
            trusted_once: Mutex::default(),
        };
        (Arc::new(context), prompts)
    }

    /// Gives the answer to every host that waits for it. An answer to a prompt that is no longer open does nothing.
    pub fn answer(&self, id: PromptId, answer: Answer) {
        self.broker.answer(id, answer);
    }

    /// Tells those who look into connections, where there are any.
    pub(super) fn trace(&self, host: &str, phase: SshPhase, text: impl FnOnce() -> String) {
        if let Some(trace_events) = &self.options.trace_events {
            // Nobody may be listening any more.
            let _ = trace_events.send(TraceEvent { host: host.to_owned(), phase, text: text() });
        }
    }

    /// The file that `ssh` reads for this host instead of the usual ones.
    pub(super) fn config_file<'a>(&'a self, host: &'a HostConfig) -> Option<&'a PathBuf> {
        host.ssh_config.as_ref().or(self.options.ssh_config.as_ref())
    }

    /// Fingerprints of the keys that a person trusted for this host in this process.
    pub(super) fn trusted_once(&self, name: &HostName) -> Vec<String> {
        let trusted = self.trusted_once.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.get(&name.exact).cloned().unwrap_or_default()
    }

    /// Remembers until the process ends that this key is good for this host, so that a reconnect does not ask again.
    pub(super) fn trust_once(&self, name: &HostName, key: &PublicKey) {
        let mut trusted = self.trusted_once.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.entry(name.exact.clone()).or_default().push(fingerprint(key));
    }
}
