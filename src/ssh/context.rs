//! The state that all connections of one process share.

use super::credentials::{Broker, KeyRing};
use super::known_hosts::{HostName, fingerprint};
use super::limits::{Limits, PreauthLimiter};
use super::native::JumpHostPool;
use super::openssh::Askpass;
use super::prompt::{Answer, Interaction, PromptEvent, PromptId, RefusedPrompt};
use super::resolve::AnswerCache;
use super::transport::SshPhase;
use crate::config::HostConfig;
use russh::keys::PublicKey;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OnceCell, Semaphore, mpsc};

/// A line about one phase of one connection, for `gpufleet doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// The host's name.
    pub host: String,
    /// The phase.
    pub phase: SshPhase,
    /// What happened.
    pub detail: TraceDetail,
}

/// The detail of a [`TraceEvent`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceDetail {
    /// A line for people. It may quote the server: the caller must convert it to safe text.
    Text(String),
    /// The login needs an answer, and no prompt is possible.
    RefusedPrompt(RefusedPrompt),
    /// The login used a key of the agent at this socket.
    AgentKey(PathBuf),
}

/// The settings of a [`Context`]. Programs use [`Options::from_environment`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether prompts can be answered.
    pub interaction: Interaction,
    /// The time limits of each connection.
    pub limits: Limits,
    /// The home directory that `~` stands for. Without it, paths that begin with `~` do not exist.
    pub home: Option<PathBuf>,
    /// The socket of the ssh-agent, unless the ssh configuration names another one.
    pub agent_socket: Option<PathBuf>,
    /// Passed to `ssh` as `-F` instead of the default configuration files.
    pub ssh_config: Option<PathBuf>,
    /// The path of this program, which acts as the askpass of the `ssh` processes that it starts (see
    /// [`super::run_helper_role`]). Without it, those processes cannot ask.
    pub helper_program: Option<PathBuf>,
    /// Receives a [`TraceEvent`] for each phase.
    pub trace_events: Option<mpsc::UnboundedSender<TraceEvent>>,
}

impl Options {
    /// The home directory and the agent socket of the environment, with default limits and configuration files.
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

/// The state that all connections of one process share: prompts, decrypted keys, jump host connections and limits.
#[derive(Debug)]
pub struct Context {
    pub(super) options: Options,
    pub(super) broker: Arc<Broker>,
    pub(super) askpass: Askpass,
    pub(super) keys: KeyRing,
    pub(super) preauth_limiter: PreauthLimiter,
    pub(super) jump_hosts: JumpHostPool,
    /// Held by the one login whose questions the user currently answers. Other logins connect only after that: a server
    /// does not wait long for an answer.
    pub(super) interactive_login_lock: Arc<tokio::sync::Mutex<()>>,
    /// Held while an agent signs, so that keys that require a touch ask one at a time.
    pub(super) agent_sign_lock: Arc<tokio::sync::Mutex<()>>,
    /// The output of `ssh -G` without any configuration.
    pub(super) default_ssh_config: OnceCell<String>,
    /// Answers of `ssh -G`.
    pub(super) ssh_g_answers: AnswerCache,
    /// One permit per core for `ssh -G` processes.
    pub(super) ssh_g_permits: Semaphore,
    /// Fingerprints of the keys that the user trusted in this process, by host.
    trusted_once: Mutex<HashMap<String, Vec<String>>>,
}

impl Context {
    /// A context with [`Options::from_environment`], and the receiver of its prompts.
    pub fn new(interaction: Interaction) -> (Arc<Self>, mpsc::Receiver<PromptEvent>) {
        Self::with_options(Options::from_environment(interaction))
    }

    /// A context with the given options, and the receiver of its prompts.
    pub fn with_options(options: Options) -> (Arc<Self>, mpsc::Receiver<PromptEvent>) {
        let (broker, prompts) = Broker::new(options.interaction);
        let broker = Arc::new(broker);
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let context = Self {
            askpass: Askpass::new(Arc::clone(&broker), options.helper_program.clone(), options.limits.answer),
            broker,
            options,
            keys: KeyRing::default(),
            preauth_limiter: PreauthLimiter::default(),
            jump_hosts: JumpHostPool::default(),
            interactive_login_lock: Arc::default(),
            agent_sign_lock: Arc::default(),
            default_ssh_config: OnceCell::new(),
            ssh_g_answers: AnswerCache::default(),
            ssh_g_permits: Semaphore::new(cores),
            trusted_once: Mutex::default(),
        };
        (Arc::new(context), prompts)
    }

    /// Gives the answer to every host that waits for this prompt. Does nothing if the prompt is no longer open.
    pub fn answer(&self, id: PromptId, answer: Answer) {
        self.broker.answer(id, answer);
    }

    /// Sends a line as a [`TraceEvent`], if tracing is on.
    pub(super) fn trace(&self, host: &str, phase: SshPhase, text: impl FnOnce() -> String) {
        self.trace_detail(host, phase, || TraceDetail::Text(text()));
    }

    /// Sends a [`TraceEvent`], if tracing is on.
    pub(super) fn trace_detail(&self, host: &str, phase: SshPhase, detail: impl FnOnce() -> TraceDetail) {
        if let Some(trace_events) = &self.options.trace_events {
            // An error means that the receiver is gone.
            let _ = trace_events.send(TraceEvent { host: host.to_owned(), phase, detail: detail() });
        }
    }

    /// The file that `ssh` reads for this host instead of the default configuration files.
    pub(super) fn config_file<'a>(&'a self, host: &'a HostConfig) -> Option<&'a PathBuf> {
        host.ssh_config.as_ref().or(self.options.ssh_config.as_ref())
    }

    /// Fingerprints of the keys that the user trusted for this host in this process.
    pub(super) fn trusted_once(&self, name: &HostName) -> Vec<String> {
        let trusted = self.trusted_once.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.get(&name.exact).cloned().unwrap_or_default()
    }

    /// Trusts this key for this host until the process ends, so that a reconnect does not ask again.
    pub(super) fn trust_once(&self, name: &HostName, key: &PublicKey) {
        let mut trusted = self.trusted_once.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.entry(name.exact.clone()).or_default().push(fingerprint(key));
    }
}
