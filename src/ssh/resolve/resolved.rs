//! A host's configuration with every question answered.

use super::algorithms::Algorithms;
use crate::config::Hop;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a running `ssh` may take to accept a connection to its control socket.
const MASTER_LIMIT: Duration = Duration::from_secs(1);

/// Everything needed to connect, from hosts.toml, the ssh configuration and what is built in, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ssh) struct Resolved {
    /// What is looked up: the `HostName` behind the name.
    pub(in crate::ssh) hostname: String,
    pub(in crate::ssh) port: u16,
    pub(in crate::ssh) user: String,
    /// Which addresses of the name may be used.
    pub(in crate::ssh) family: Family,
    /// hosts.toml's key: offered before all others.
    pub(in crate::ssh) first_identity: Option<PathBuf>,
    /// The configuration's keys, or the usual ones; they need not exist.
    pub(in crate::ssh) identity_files: Vec<PathBuf>,
    /// Whether an agent's other keys stay unused.
    pub(in crate::ssh) identities_only: bool,
    pub(in crate::ssh) agent: AgentSocket,
    /// In order; a new key is added to the first.
    pub(in crate::ssh) user_known_hosts: Vec<PathBuf>,
    pub(in crate::ssh) global_known_hosts: Vec<PathBuf>,
    pub(in crate::ssh) strict_host_keys: StrictHostKeys,
    pub(in crate::ssh) hash_known_hosts: bool,
    /// The name under which the host's key is looked up instead.
    pub(in crate::ssh) host_key_alias: Option<String>,
    /// The configuration's limit for connecting.
    pub(in crate::ssh) connect_timeout: Option<Duration>,
    /// The methods that may be used.
    pub(in crate::ssh) methods: Methods,
    /// How often a password or code is asked for.
    pub(in crate::ssh) password_prompts: u32,
    /// The algorithms that may be used, where the configuration says so.
    pub(in crate::ssh) algorithms: Algorithms,
    /// The first setting that only the `ssh` program can follow.
    pub(in crate::ssh) native_unsupported: Option<String>,
    /// What leads to the server, where it is not reached directly.
    pub(in crate::ssh) proxy: Proxy,
    /// Certificates of keys, beyond those that lie beside the keys.
    pub(in crate::ssh) certificate_files: Vec<PathBuf>,
    /// How often a silent server is asked for a sign of life, and how many may fail, as the configuration has it: what
    /// counts is [`Resolved::server_alive`].
    pub(in crate::ssh) keepalive: Option<(Duration, u32)>,
    /// The socket of a running `ssh` that serves this host too.
    pub(in crate::ssh) control_path: Option<PathBuf>,
    /// The file that was read instead of the usual configuration; for the jump hosts too.
    pub(in crate::ssh) config: Option<PathBuf>,
    /// Options that would keep a command from running, as `-o` must undo them.
    pub(in crate::ssh) option_overrides: Vec<&'static str>,
    /// Whether there is an `ssh` program; without it, the ssh configuration was not read.
    pub(in crate::ssh) ssh_program: bool,
}

/// How often a silent server is asked for a sign of life, and how many may fail, unless the ssh configuration wants to
/// know sooner.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(15), 3);

impl Resolved {
    /// After how long a silence the server is asked for a sign of life, and how many may fail: as the configuration says
    /// where that is sooner than we would.
    pub(in crate::ssh) fn server_alive(&self) -> (Duration, u32) {
        let (interval, count) = self.keepalive.unwrap_or(KEEPALIVE);
        (interval.min(KEEPALIVE.0), count.clamp(1, KEEPALIVE.1))
    }

    /// Whether a running `ssh` takes new sessions for this host. One that has stopped taking them counts as dead.
    pub(in crate::ssh) async fn has_live_master(&self) -> bool {
        let Some(socket) = self.control_path.clone() else { return false };
        // tokio's socket does not block where the queue of the master is full, as the standard library's does. On a thread
        // for calls that may wait: the path may lie on a file server.
        let runtime = Handle::current();
        let connecting = tokio::task::spawn_blocking(move || {
            runtime.block_on(async { timeout(MASTER_LIMIT, UnixStream::connect(socket)).await })
        });
        matches!(timeout(MASTER_LIMIT, connecting).await, Ok(Ok(Ok(Ok(_)))))
    }
}

/// `ProxyJump` or `ProxyCommand`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::ssh) enum Proxy {
    #[default]
    None,
    /// Jump hosts, the nearest to here first.
    Jump(Vec<Hop>),
    /// A command whose pipes lead to the server, its tokens replaced.
    Command(String),
}

impl fmt::Display for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Jump(hops) => {
                let hops: Vec<_> = hops.iter().map(ToString::to_string).collect();
                formatter.write_str(&hops.join(","))
            }
            Self::Command(command) => formatter.write_str(command),
        }
    }
}

/// `PubkeyAuthentication`, `KbdInteractiveAuthentication` and `PasswordAuthentication`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssh) struct Methods {
    pub(in crate::ssh) public_key: bool,
    pub(in crate::ssh) keyboard_interactive: bool,
    pub(in crate::ssh) password: bool,
}

impl Methods {
    /// What OpenSSH does unless told otherwise.
    pub(in crate::ssh) const ALL: Self = Self { public_key: true, keyboard_interactive: true, password: true };
}

/// `AddressFamily`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::ssh) enum Family {
    #[default]
    Any,
    V4,
    V6,
}

impl Family {
    pub(in crate::ssh) fn admits(self, address: SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// `IdentityAgent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ssh) enum AgentSocket {
    /// Nothing said: the one of the environment.
    FromEnvironment,
    /// This socket.
    Path(PathBuf),
    /// None at all.
    Disabled,
}

/// `StrictHostKeyChecking`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssh) enum StrictHostKeys {
    /// A person decides.
    Ask,
    /// An unknown key is refused.
    Yes,
    /// An unknown key is written down and used. Also for `no`: a changed key is refused all the same.
    AcceptNew,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::ssh::{Context, Interaction, Options};

    #[tokio::test]
    async fn the_configuration_may_ask_for_signs_of_life_more_often_only() {
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some("/dev/null".into());
        let (context, _) = Context::with_options(options);
        let mut resolved = crate::ssh::resolve::resolve(&context, &HostConfig::named("gpu01")).await.unwrap();
        let mut seconds = |keepalive| {
            resolved.keepalive = keepalive;
            let (interval, count) = resolved.server_alive();
            (interval.as_secs(), count)
        };
        assert_eq!(seconds(None), (15, 3));
        assert_eq!(seconds(Some((Duration::from_secs(5), 2))), (5, 2));
        assert_eq!(seconds(Some((Duration::from_secs(300), 10))), (15, 3));
    }

    #[tokio::test]
    async fn a_master_that_accepts_nothing_is_dead() {
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some("/dev/null".into());
        let (context, _) = Context::with_options(options);
        let mut resolved = crate::ssh::resolve::resolve(&context, &HostConfig::named("gpu01")).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("master");
        resolved.control_path = Some(socket.clone());
        assert!(!resolved.has_live_master().await);
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert!(resolved.has_live_master().await);
        // Each connection waits in the queue, also once it is closed here.
        while UnixStream::connect(&socket).await.is_ok() {}
        let looking = timeout(MASTER_LIMIT * 5, resolved.has_live_master());
        assert_eq!(looking.await, Ok(false));
    }
}
