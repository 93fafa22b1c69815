//! The directories for configuration, state and cache.

use directories::BaseDirs;
use std::fmt;
use std::path::{Path, PathBuf};

/// The name of gpufleet's directory in each of them.
const NAME: &str = "gpufleet";

/// The directories of the user. An unknown home directory is an error only if a path is needed.
#[derive(Debug, Clone, Default)]
pub struct Directories {
    base: Option<Base>,
}

#[derive(Debug, Clone)]
struct Base {
    home: PathBuf,
    /// The configuration directories in order of precedence; new files are created in the first.
    config: Vec<PathBuf>,
    state: PathBuf,
    cache: PathBuf,
}

/// Error: the home directory is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoHome;

impl fmt::Display for NoHome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the home directory is not known\n  hint: set HOME\n")
    }
}

impl std::error::Error for NoHome {}

impl Directories {
    /// Reads the environment: `HOME`, `XDG_CONFIG_HOME`, `XDG_STATE_HOME`, `XDG_CACHE_HOME`.
    pub fn find() -> Self {
        let xdg_config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let base = BaseDirs::new().map(|base| Base {
            home: base.home_dir().to_owned(),
            config: config_directories(cfg!(target_os = "macos"), xdg_config, base.home_dir(), base.config_dir()),
            // macOS has no state directory.
            state: base.state_dir().unwrap_or_else(|| base.data_local_dir()).join(NAME),
            cache: base.cache_dir().join(NAME),
        });
        Self { base }
    }

    /// The home directory.
    pub fn home(&self) -> Option<&Path> {
        self.base.as_ref().map(|base| base.home.as_path())
    }

    /// The possible paths of the default hosts.toml. The first that exists counts.
    pub fn hosts_files(&self) -> Vec<PathBuf> {
        self.config_files("hosts.toml")
    }

    /// The possible paths of settings.toml. The first that exists counts.
    pub fn settings_files(&self) -> Vec<PathBuf> {
        self.config_files("settings.toml")
    }

    fn config_files(&self, name: &str) -> Vec<PathBuf> {
        let own = self.base.iter().flat_map(|base| &base.config).map(|directory| directory.join(name));
        own.chain([Path::new("/etc/xdg").join(NAME).join(name)]).collect()
    }

    /// The directory for new configuration files.
    pub fn config(&self) -> Result<&Path, NoHome> {
        self.base.as_ref().and_then(|base| base.config.first()).map(PathBuf::as_path).ok_or(NoHome)
    }

    /// The directory for state that outlives a run.
    pub fn state(&self) -> Result<&Path, NoHome> {
        self.base.as_ref().map(|base| base.state.as_path()).ok_or(NoHome)
    }

    /// The directory for files that can be created again.
    pub fn cache(&self) -> Result<&Path, NoHome> {
        self.base.as_ref().map(|base| base.cache.as_path()).ok_or(NoHome)
    }
}

/// On macOS `~/.config` comes before `~/Library/Application Support`, because command-line users expect it.
fn config_directories(is_macos: bool, xdg: Option<PathBuf>, home: &Path, platform: &Path) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if is_macos {
        directories.push(xdg.unwrap_or_else(|| home.join(".config")).join(NAME));
    }
    directories.push(platform.join(NAME));
    directories.dedup();
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_macos_dot_config_comes_first() {
        let home = Path::new("/Users/a");
        let platform = Path::new("/Users/a/Library/Application Support");
        assert_eq!(
            config_directories(true, None, home, platform),
            [Path::new("/Users/a/.config/gpufleet"), &platform.join("gpufleet")]
        );
        assert_eq!(config_directories(true, Some("/x".into()), home, platform)[0], Path::new("/x/gpufleet"));
        assert_eq!(
            config_directories(false, None, home, Path::new("/home/a/.config")),
            [Path::new("/home/a/.config/gpufleet")]
        );
    }

    #[test]
    fn without_a_home_only_the_system_file_remains() {
        let directories = Directories::default();
        assert_eq!(directories.hosts_files(), [Path::new("/etc/xdg/gpufleet/hosts.toml")]);
        assert_eq!(directories.settings_files(), [Path::new("/etc/xdg/gpufleet/settings.toml")]);
        assert_eq!(directories.state(), Err(NoHome));
        assert_eq!(directories.config(), Err(NoHome));
        assert_eq!(directories.cache(), Err(NoHome));
    }
}
