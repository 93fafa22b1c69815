//! The configuration of one host, and the `ssh` command that uses the same settings.

use super::{Hop, Thresholds, values};
use crate::wire::SafeText;
use crate::wire::shell::shell_word;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The configuration of one host after defaults and command-line options are applied. `None` leaves a value to the ssh
/// configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct HostConfig {
    /// The displayed name; unique in a fleet.
    pub name: SafeText,
    /// The host name or IP address to connect to; the name if `None`.
    pub address: Option<String>,
    /// TCP port.
    pub port: Option<u16>,
    /// Login name.
    pub user: Option<String>,
    /// A key that is offered first, as with `ssh -i`.
    pub identity_file: Option<PathBuf>,
    /// Replaces the usual known_hosts files.
    pub known_hosts: Option<PathBuf>,
    /// Jump hosts, the nearest one first. Empty means a direct connection; `None` leaves it to the ssh configuration.
    pub proxy_jump: Option<Vec<Hop>>,
    /// Replaces the usual ssh configuration files, as `ssh -F` does.
    pub ssh_config: Option<PathBuf>,
    /// How to connect to the host.
    pub backend: Backend,
    /// Where the probe comes from.
    pub probe: ProbeChoice,
    /// Whether the probe may be installed in `/dev/shm`, where security tools flag binaries.
    pub allow_shm: bool,
    /// The path of the NVML library on the host, for unusual installations and for tests.
    pub nvml_library: Option<String>,
    /// The time between snapshots, 0.25 to 60 s.
    pub interval: Duration,
    /// Words for filters.
    pub tags: Vec<SafeText>,
    /// The group of the host, for example a rack.
    pub group: Option<SafeText>,
    /// A free-text remark.
    pub note: Option<SafeText>,
    /// Indexes of GPUs that are never shown as free.
    pub reserved: Vec<u32>,
    /// The processes that may be sent signals.
    pub signals: SignalRule,
    /// When jobs are examined.
    pub examine: ExamineRule,
    /// When NCCL RAS is queried.
    pub ras: RasRule,
    /// Several people share this account, so a process of the same user may belong to someone else.
    pub shared_account: bool,
    /// How much of the processes on this host a collector shares with other accounts.
    pub sharing: Sharing,
    /// The rule thresholds of this host; `None` for the defaults.
    pub thresholds: Option<Arc<Thresholds>>,
    /// The collector that reads this host for this program; `None` for a direct connection. hosts.toml has no such key.
    pub relayed_by: Option<SafeText>,
    /// The readings come from a collector that watches a simulated fleet. hosts.toml has no such key.
    pub is_simulated: bool,
}

/// How much of the processes on a host a collector shares with other accounts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// Their GPU use, but neither users nor programs.
    None,
    /// Users and names of programs, without arguments and paths.
    #[default]
    Names,
    /// Everything that the collector sees.
    Commands,
}

impl Sharing {
    /// The word in hosts.toml.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Names => "names",
            Self::Commands => "commands",
        }
    }
}

/// How to connect to a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// `local` for `localhost` without a user or port; `system` if the ssh configuration needs a feature that the
    /// built-in client lacks, for example a running ControlMaster or PKCS#11; otherwise `native`.
    #[default]
    Auto,
    /// The built-in SSH client.
    Native,
    /// The `ssh` program.
    System,
    /// This machine, without SSH.
    Local,
}

/// The processes that may be sent signals. The permissions of the kernel apply as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SignalRule {
    /// No process.
    None,
    /// Processes of the login user.
    #[default]
    Own,
    /// Processes of all users, if the login user is root.
    All,
}

/// When the processes of a job are examined. Only those of the login user ever are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExamineRule {
    /// When the job looks hung, and when somebody asks.
    #[default]
    Automatic,
    /// When somebody asks: `gpufleet why`, or `W` on the screen.
    Asked,
}

/// When NCCL RAS is queried. Some versions of NCCL crash the job that is queried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RasRule {
    /// Whenever the job is examined, if no known fault of its NCCL makes the query dangerous.
    #[default]
    Safe,
    /// With `gpufleet why --ask-ras`.
    Ask,
    /// Never.
    Never,
}

impl RasRule {
    /// The word in hosts.toml.
    pub fn word(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Ask => "ask",
            Self::Never => "never",
        }
    }

    /// The rule with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Safe, Self::Ask, Self::Never].into_iter().find(|rule| rule.word() == word)
    }
}

/// Where the probe comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProbeChoice {
    /// Upload the probe if it is not installed yet.
    #[default]
    Upload,
    /// A path on the host. Nothing is uploaded.
    Path(String),
    /// Run `nvidia-smi` instead of a probe. Nothing is uploaded.
    NvidiaSmi,
}

impl HostConfig {
    /// The default interval.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
    /// The shortest interval.
    pub const MIN_INTERVAL: Duration = values::MIN_INTERVAL;
    /// The longest interval.
    pub const MAX_INTERVAL: Duration = values::MAX_INTERVAL;

    /// A host with this name and default settings.
    pub fn named(name: impl Into<SafeText>) -> Self {
        Self {
            name: name.into(),
            address: None,
            port: None,
            user: None,
            identity_file: None,
            known_hosts: None,
            proxy_jump: None,
            ssh_config: None,
            backend: Backend::Auto,
            probe: ProbeChoice::Upload,
            allow_shm: false,
            nvml_library: None,
            interval: Self::DEFAULT_INTERVAL,
            tags: Vec::new(),
            group: None,
            note: None,
            reserved: Vec::new(),
            signals: SignalRule::Own,
            examine: ExamineRule::default(),
            ras: RasRule::default(),
            shared_account: false,
            sharing: Sharing::default(),
            thresholds: None,
            relayed_by: None,
            is_simulated: false,
        }
    }

    /// Returns the host name or IP address to connect to.
    pub fn address(&self) -> &str {
        self.address.as_deref().unwrap_or(&self.name)
    }

    /// Whether ssh accepts the address as a host name.
    pub fn has_valid_address(&self) -> bool {
        super::targets::check_host(self.address(), 0..0).is_ok()
    }

    /// Whether this host is the local machine.
    pub fn is_local(&self) -> bool {
        match self.backend {
            Backend::Local => true,
            Backend::Auto => self.address() == "localhost" && self.user.is_none() && self.port.is_none(),
            Backend::Native | Backend::System => false,
        }
    }
}

impl HostConfig {
    /// Returns the arguments with which the `ssh` program logs in as gpufleet does. They contain the settings of
    /// hosts.toml and of the command line; `ssh` reads the ssh configuration itself.
    pub fn login_arguments(&self) -> Vec<String> {
        let mut arguments = self.connection_options();
        if let Some(user) = &self.user {
            arguments.extend(["-l".to_owned(), user.clone()]);
        }
        // `--` keeps an address that begins with a dash from being read as an option.
        arguments.extend(["--".to_owned(), self.address().to_owned()]);
        arguments
    }

    /// Returns the login as a shell command, for example `ssh -p 2222 alice@10.0.0.7`; `None` for the local machine.
    pub fn ssh_line(&self) -> Option<SafeText> {
        if self.is_local() {
            return None;
        }
        let mut words = vec!["ssh".to_owned()];
        words.extend(self.connection_options().iter().map(|word| shell_word(word)));
        let address = self.address();
        let destination = match &self.user {
            Some(user) => format!("{user}@{address}"),
            None => address.to_owned(),
        };
        if destination.starts_with('-') {
            words.push("--".to_owned());
        }
        words.push(shell_word(&destination));
        // A path may contain control characters.
        Some(SafeText::new(&words.join(" ")))
    }

    /// Returns the options without user and address.
    fn connection_options(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        if let Some(file) = &self.ssh_config {
            add("-F", file.to_string_lossy().into_owned());
        }
        if let Some(port) = self.port {
            add("-p", port.to_string());
        }
        if let Some(file) = &self.identity_file {
            add("-i", without_tokens(file));
        }
        match self.proxy_jump.as_deref() {
            None => {}
            Some([]) => add("-o", "ProxyJump=none".to_owned()),
            Some(hops) => add("-J", hops.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
        }
        if let Some(file) = &self.known_hosts {
            let quoted = without_tokens(file).replace('\\', r"\\").replace('"', "\\\"");
            add("-o", format!("UserKnownHostsFile=\"{quoted}\""));
            add("-o", "GlobalKnownHostsFile=none".to_owned());
        }
        words
    }
}

/// Escapes `%` in a path of hosts.toml, because `ssh` expands it.
fn without_tokens(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_hops;

    fn config(change: impl FnOnce(&mut HostConfig)) -> HostConfig {
        let mut config = HostConfig::named("hgx-01");
        change(&mut config);
        config
    }

    #[test]
    fn ssh_line_uses_the_settings_of_the_host() {
        let line = |config: &HostConfig| config.ssh_line().map(|line| line.as_str().to_owned());
        assert_eq!(line(&config(|_| {})).as_deref(), Some("ssh hgx-01"));
        assert_eq!(line(&config(|config| config.backend = Backend::Local)), None);
        let file = config(|config| config.identity_file = Some("/home/a b/k\u{1b}ey".into()));
        assert_eq!(line(&file).as_deref(), Some("ssh -i '/home/a b/k␛ey' hgx-01"));
        let dash = config(|config| config.address = Some("-oProxyCommand=x".into()));
        assert_eq!(line(&dash).as_deref(), Some("ssh -- -oProxyCommand=x"));
        let direct = config(|config| config.proxy_jump = Some(Vec::new()));
        assert_eq!(line(&direct).as_deref(), Some("ssh -o ProxyJump=none hgx-01"));
    }

    #[test]
    fn login_arguments_contain_every_setting() {
        let host = config(|config| {
            config.address = Some("-10.0.0.11".into());
            config.user = Some("alice".into());
            config.port = Some(2222);
            config.identity_file = Some("/keys/100%".into());
            config.ssh_config = Some("/lab/ssh config".into());
            config.known_hosts = Some("/lab/known \"hosts\"".into());
            config.proxy_jump = parse_hops("gate,bob@inner:2200", 0..0).ok();
        });
        let expected = [
            "-F",
            "/lab/ssh config",
            "-p",
            "2222",
            "-i",
            "/keys/100%%",
            "-J",
            "gate,bob@inner:2200",
            "-o",
            "UserKnownHostsFile=\"/lab/known \\\"hosts\\\"\"",
            "-o",
            "GlobalKnownHostsFile=none",
            "-l",
            "alice",
            "--",
            "-10.0.0.11",
        ];
        assert_eq!(host.login_arguments(), expected);
    }
}
