//! One host's configuration after defaults and the command line have been merged in.

use super::{Hop, Thresholds, values};
use crate::wire::SafeText;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Everything the configuration says about one host. `None` leaves the value to the ssh configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct HostConfig {
    /// The name it is shown by; unique in a fleet.
    pub name: SafeText,
    /// What is connected to (host name or IP address); the name when not given.
    pub address: Option<String>,
    /// TCP port.
    pub port: Option<u16>,
    /// Login name.
    pub user: Option<String>,
    /// A key offered first, as `ssh -i` does.
    pub identity_file: Option<PathBuf>,
    /// A file used instead of the usual known_hosts files.
    pub known_hosts: Option<PathBuf>,
    /// Jump hosts on the way, the nearest to here first, instead of what the ssh configuration says. Empty: none.
    pub proxy_jump: Option<Vec<Hop>>,
    /// Read by the `ssh` program instead of the usual configuration files (`ssh -F`).
    pub ssh_config: Option<PathBuf>,
    /// How the host is reached.
    pub backend: Backend,
    /// Where the probe comes from.
    pub probe: ProbeChoice,
    /// Whether the probe may be put in `/dev/shm`; security tools flag binaries there.
    pub allow_shm: bool,
    /// The NVML library on that host, for unusual installs and for tests.
    pub nvml_library: Option<String>,
    /// Time between snapshots, 0.25 to 60 s.
    pub interval: Duration,
    /// Words to filter by.
    pub tags: Vec<SafeText>,
    /// A heading to group by, for example a rack.
    pub group: Option<SafeText>,
    /// A line for people.
    pub note: Option<SafeText>,
    /// Indexes of GPUs that are never called free.
    pub reserved: Vec<u32>,
    /// Whose processes may be sent signals from here.
    pub signals: SignalRule,
    /// Several people use this account: what runs as it need not be one's own.
    pub shared_account: bool,
    /// When the rules of diagnosis fire here; `None` for as built in.
    pub thresholds: Option<Arc<Thresholds>>,
}

/// How a host is reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// `local` for `localhost` without a user or port; `system` where the ssh configuration asks for what the library
    /// built in cannot do (a running ControlMaster, PKCS#11 and the like); else `native`.
    #[default]
    Auto,
    /// The SSH library built in.
    Native,
    /// The `ssh` program.
    System,
    /// This machine, without SSH.
    Local,
}

/// Whose processes may be sent signals. What the kernel does not permit stays forbidden.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SignalRule {
    /// Nobody's.
    None,
    /// Those of the account that logged in.
    #[default]
    Own,
    /// Everybody's, for root.
    All,
}

/// Where the probe comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProbeChoice {
    /// Uploaded when it is not there yet.
    #[default]
    Upload,
    /// A path on the host; nothing is uploaded.
    Path(String),
    /// `nvidia-smi` is asked instead; nothing is uploaded.
    NvidiaSmi,
}

impl HostConfig {
    /// The interval when nothing else is said.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
    /// The shortest interval.
    pub const MIN_INTERVAL: Duration = values::MIN_INTERVAL;
    /// The longest interval.
    pub const MAX_INTERVAL: Duration = values::MAX_INTERVAL;

    /// A host of this name with everything else as built in.
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
            shared_account: false,
            thresholds: None,
        }
    }

    /// What is connected to.
    pub fn address(&self) -> &str {
        self.address.as_deref().unwrap_or(&self.name)
    }

    /// Whether this host is the machine one sits at.
    pub fn is_local(&self) -> bool {
        match self.backend {
            Backend::Local => true,
            Backend::Auto => self.address() == "localhost" && self.user.is_none() && self.port.is_none(),
            Backend::Native | Backend::System => false,
        }
    }
}

impl HostConfig {
    /// What the `ssh` program is given to log in here: everything that hosts.toml and the command line say of the way.
    /// The rest it finds in the ssh configuration, as we do.
    pub fn login_arguments(&self) -> Vec<String> {
        let mut arguments = self.connection_options();
        if let Some(user) = &self.user {
            arguments.extend(["-l".to_owned(), user.clone()]);
        }
        // An address that begins with a dash is no option.
        arguments.extend(["--".to_owned(), self.address().to_owned()]);
        arguments
    }

    /// The same as a line to paste, `ssh -p 2222 alice@10.0.0.7`; `None` for the machine one sits at.
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
        // A path may hold anything; what reaches a terminal may not.
        Some(SafeText::new(&words.join(" ")))
    }

    /// Everything but the user and the address.
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

/// A path of hosts.toml, in which a `%` is a character like any other; ssh would expand it.
fn without_tokens(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%%")
}

/// As a POSIX shell takes it for one word.
pub fn shell_word(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "@%+=:,./-_".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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
    fn the_way_to_a_host_is_the_one_that_gpufleet_takes() {
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
    fn everything_that_hosts_toml_says_is_passed_on() {
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

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("$(x)'y"), r"'$(x)'\''y'");
    }
}
