//! One host's configuration after defaults and the command line have been merged in.

use super::{Hop, Thresholds};
use crate::wire::SafeText;
use std::path::PathBuf;
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
    pub const MIN_INTERVAL: Duration = Duration::from_millis(250);
    /// The longest interval.
    pub const MAX_INTERVAL: Duration = Duration::from_secs(60);

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
