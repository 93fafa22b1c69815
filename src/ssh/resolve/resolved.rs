//! The resolved configuration of a host.

use crate::config::{Hop, shell_word};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a master connection may take to accept a connection to its control socket.
const MASTER_LIMIT: Duration = Duration::from_secs(1);

/// The maximum keepalive interval, and the maximum number of unanswered keepalives.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(15), 3);

/// Every setting that a connection needs: from hosts.toml, else from the ssh configuration, else the default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ssh) struct Resolved {
    /// `HostName`: the name to look up.
    pub(in crate::ssh) hostname: String,
    pub(in crate::ssh) port: u16,
    pub(in crate::ssh) user: String,
    /// `AddressFamily`.
    pub(in crate::ssh) family: Family,
    /// The key that hosts.toml names. It is offered first.
    pub(in crate::ssh) first_identity: Option<PathBuf>,
    /// `IdentityFile`, or the default key files. They need not exist.
    pub(in crate::ssh) identity_files: Vec<PathBuf>,
    /// `IdentitiesOnly`: do not offer the other keys of the agent.
    pub(in crate::ssh) identities_only: bool,
    pub(in crate::ssh) agent: AgentSocket,
    /// `UserKnownHostsFile`. A new key is added to the first file.
    pub(in crate::ssh) user_known_hosts: Vec<PathBuf>,
    pub(in crate::ssh) global_known_hosts: Vec<PathBuf>,
    pub(in crate::ssh) strict_host_keys: StrictHostKeys,
    pub(in crate::ssh) hash_known_hosts: bool,
    /// `HostKeyAlias`: the name under which the host key is looked up.
    pub(in crate::ssh) host_key_alias: Option<String>,
    /// `ConnectTimeout`.
    pub(in crate::ssh) connect_timeout: Option<Duration>,
    /// The authentication methods that are allowed.
    pub(in crate::ssh) methods: Methods,
    /// `NumberOfPasswordPrompts`.
    pub(in crate::ssh) password_prompts: u32,
    /// The algorithms that the configuration sets.
    pub(in crate::ssh) algorithms: Algorithms,
    /// The first option that only the `ssh` program can follow, as spelled in ssh_config.
    pub(in crate::ssh) native_unsupported: Option<String>,
    /// `ProxyJump` or `ProxyCommand`.
    pub(in crate::ssh) proxy: Proxy,
    /// `CertificateFile`, in addition to the certificates beside the key files.
    pub(in crate::ssh) certificate_files: Vec<PathBuf>,
    /// `ServerAliveInterval` and `ServerAliveCountMax`. See [`Resolved::server_alive`].
    pub(in crate::ssh) keepalive: Option<(Duration, u32)>,
    /// `ControlPath`: the socket of a master connection.
    pub(in crate::ssh) control_path: Option<PathBuf>,
    /// The file that replaces the default configuration files (`ssh -F`), for jump hosts as well.
    pub(in crate::ssh) config: Option<PathBuf>,
    /// `-o` options that override settings under which `ssh` would not run a command.
    pub(in crate::ssh) option_overrides: Vec<&'static str>,
    /// Whether the `ssh` program exists. Without it, the ssh configuration was not read.
    pub(in crate::ssh) ssh_program: bool,
}

impl Resolved {
    /// The keepalive interval, and how many keepalives may remain unanswered. The configuration can only lower them.
    pub(in crate::ssh) fn server_alive(&self) -> (Duration, u32) {
        let (interval, count) = self.keepalive.unwrap_or(KEEPALIVE);
        (interval.min(KEEPALIVE.0), count.clamp(1, KEEPALIVE.1))
    }

    /// `user@hostname`, for display.
    pub(in crate::ssh) fn login(&self) -> String {
        format!("{}@{}", self.user, self.hostname)
    }

    /// `[-p PORT ]USER@HOST`, quoted for a POSIX shell: the arguments of ssh and ssh-copy-id.
    pub(in crate::ssh) fn ssh_target(&self) -> String {
        let target = shell_word(&self.login());
        if self.port == 22 { target } else { format!("-p {} {target}", self.port) }
    }

    /// Whether a master connection accepts sessions for this host. One that does not accept in time counts as dead.
    pub(in crate::ssh) async fn has_live_master(&self) -> bool {
        let Some(socket) = self.control_path.clone() else { return false };
        // tokio's socket does not block when the queue of the master is full; that of the standard library does. On a
        // blocking thread, because the path may be on a network file system.
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
    /// Jump hosts, the nearest first.
    Jump(Vec<Hop>),
    /// A command whose pipes are the connection, with its tokens expanded.
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
    /// The socket of the environment (`SSH_AUTH_SOCK`).
    FromEnvironment,
    /// This socket.
    Path(PathBuf),
    /// No agent.
    Disabled,
}

/// `StrictHostKeyChecking`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssh) enum StrictHostKeys {
    /// The user decides.
    Ask,
    /// An unknown key is refused.
    Yes,
    /// An unknown key is saved and used.
    AcceptNew,
    /// `no`: with it, `ssh` would accept a changed key, too. gpufleet treats it as [`StrictHostKeys::AcceptNew`].
    Off,
}

impl StrictHostKeys {
    /// Whether an unknown key is saved and used.
    pub(in crate::ssh) fn accepts_new(self) -> bool {
        matches!(self, Self::AcceptNew | Self::Off)
    }
}

/// `HostKeyAlgorithms` and similar options, each a list of OpenSSH's names in the order of preference. `None` if the
/// configuration does not set the option: then the built-in client uses its own list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::ssh) struct Algorithms {
    pub(in crate::ssh) host_keys: Option<Vec<String>>,
    pub(in crate::ssh) key_exchanges: Option<Vec<String>>,
    pub(in crate::ssh) ciphers: Option<Vec<String>>,
    pub(in crate::ssh) macs: Option<Vec<String>>,
    /// `PubkeyAcceptedAlgorithms`.
    pub(in crate::ssh) public_keys: Option<Vec<String>>,
}

impl Algorithms {
    /// Parses the output of `ssh -G` for a host. `ssh` prints every list in full, so a list that equals that of `default`,
    /// the output without any configuration, was not set.
    pub(super) fn parse(output: &str, default: &str) -> Self {
        let list = |keywords: &[&str]| {
            let (set, default) = (value(output, keywords)?, value(default, keywords));
            (default != Some(set)).then(|| set.split(',').map(|name| name.trim().to_owned()).collect())
        };
        Self {
            host_keys: list(&["hostkeyalgorithms"]),
            key_exchanges: list(&["kexalgorithms"]),
            ciphers: list(&["ciphers"]),
            macs: list(&["macs"]),
            // The name before OpenSSH 8.5.
            public_keys: list(&["pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes"]),
        }
    }
}

/// The value of the first line with one of these keywords.
fn value<'a>(output: &'a str, keywords: &[&str]) -> Option<&'a str> {
    output.lines().find_map(|line| {
        let (keyword, value) = line.split_once(' ')?;
        keywords.contains(&keyword).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostConfig;
    use crate::ssh::{Context, Interaction, Options};

    /// A host without any configuration.
    async fn gpu01() -> Resolved {
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some("/dev/null".into());
        let (context, _) = Context::with_options(options);
        crate::ssh::resolve::resolve(&context, &HostConfig::named("gpu01")).await.unwrap()
    }

    #[tokio::test]
    async fn the_configuration_can_only_make_keepalives_more_frequent() {
        let mut resolved = gpu01().await;
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
    async fn the_ssh_target_is_quoted_for_a_shell() {
        let mut resolved = gpu01().await;
        resolved.user = "bob".into();
        assert_eq!(resolved.ssh_target(), "bob@gpu01");
        resolved.hostname = "gpu01;x".into();
        resolved.port = 2222;
        assert_eq!(resolved.ssh_target(), "-p 2222 'bob@gpu01;x'");
    }

    #[tokio::test]
    async fn a_master_that_does_not_accept_connections_is_dead() {
        let mut resolved = gpu01().await;
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("master");
        resolved.control_path = Some(socket.clone());
        assert!(!resolved.has_live_master().await);
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert!(resolved.has_live_master().await);
        // Fill the queue: a closed connection stays in it.
        while UnixStream::connect(&socket).await.is_ok() {}
        let checking = timeout(MASTER_LIMIT * 5, resolved.has_live_master());
        assert_eq!(checking.await, Ok(false));
    }

    #[test]
    fn only_lists_that_differ_from_the_default_are_set() {
        let default = "ciphers a,b\nmacs m\nkexalgorithms k\npubkeyacceptedalgorithms p\n";
        let set = Algorithms::parse("ciphers b,a\nmacs m\nkexalgorithms k\npubkeyacceptedalgorithms p\n", default);
        assert_eq!(set, Algorithms { ciphers: Some(vec!["b".into(), "a".into()]), ..Algorithms::default() });
        assert_eq!(Algorithms::parse("", default), Algorithms::default());
        let old = Algorithms::parse("pubkeyacceptedkeytypes q\nhostkeyalgorithms h\n", "pubkeyacceptedkeytypes p\n");
        assert_eq!((old.public_keys, old.host_keys), (Some(vec!["q".into()]), Some(vec!["h".into()])));
    }
}
