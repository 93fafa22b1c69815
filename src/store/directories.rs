//! Where files of ours lie.

use directories::BaseDirs;
use std::fmt;
use std::path::{Path, PathBuf};

/// The folder of ours in each of them.
const NAME: &str = "gpufleet";

/// Where files of ours lie. A home directory that is not known is an error only where a path is asked for.
#[derive(Debug, Clone, Default)]
pub struct Directories {
    base: Option<Base>,
}

#[derive(Debug, Clone)]
struct Base {
    home: PathBuf,
    /// Where the configuration is looked for; new files go into the first.
    config: Vec<PathBuf>,
    state: PathBuf,
    cache: PathBuf,
}

/// The home directory is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoHome;

impl fmt::Display for NoHome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the home directory is not known\n  hint: set HOME\n")
    }
}

impl std::error::Error for NoHome {}

impl Directories {
    /// From the environment: `HOME`, `XDG_CONFIG_HOME`, `XDG_STATE_HOME`, `XDG_CACHE_HOME`.
    pub fn find() -> Self {
        let xdg_config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let base = BaseDirs::new().map(|base| Base {
            home: base.home_dir().to_owned(),
            config: config_directories(cfg!(target_os = "macos"), xdg_config, base.home_dir(), base.config_dir()),
            // macOS has no directory for state.
            state: base.state_dir().unwrap_or_else(|| base.data_local_dir()).join(NAME),
            cache: base.cache_dir().join(NAME),
        });
        Self { base }
    }

    /// What `~` stands for.
    pub fn home(&self) -> Option<&Path> {
        self.base.as_ref().map(|base| base.home.as_path())
    }

    /// The files in which the standard hosts.toml is looked for, the first that exists counts.
    pub fn hosts_files(&self) -> Vec<PathBuf> {
        let own = self.base.iter().flat_map(|base| &base.config).map(|directory| directory.join("hosts.toml"));
        own.chain([Path::new("/etc/xdg").join(NAME).join("hosts.toml")]).collect()
    }

    /// The files in which settings.toml is looked for, the first that exists counts.
    pub fn settings_files(&self) -> Vec<PathBuf> {
        let own = self.base.iter().flat_map(|base| &base.config).map(|directory| directory.join("settings.toml"));
        own.chain([Path::new("/etc/xdg").join(NAME).join("settings.toml")]).collect()
    }

    /// Where new configuration files go.
    pub fn config(&self) -> Result<&Path, NoHome> {
        self.base.as_ref().and_then(|base| base.config.first()).map(PathBuf::as_path).ok_or(NoHome)
    }

    /// Where the program remembers things.
    pub fn state(&self) -> Result<&Path, NoHome> {
        self.base.as_ref().map(|base| base.state.as_path()).ok_or(NoHome)
    }

    /// Where files lie that can be made again.
    pub fn cache(&self) -> Result<&Path, NoHome> {
        self.base.as_ref().map(|base| base.cache.as_path()).ok_or(NoHome)
    }
}

/// On macOS `~/.config` comes first, since that is where people of the terminal look; the platform's own directory
/// (`~/Library/Application Support`) is looked at too.
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
    fn on_macos_the_terminals_directory_comes_first() {
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
    fn without_a_home_only_the_systems_file_is_left() {
        let nowhere = Directories::default();
        assert_eq!(nowhere.hosts_files(), [Path::new("/etc/xdg/gpufleet/hosts.toml")]);
        assert_eq!(nowhere.settings_files(), [Path::new("/etc/xdg/gpufleet/settings.toml")]);
        assert_eq!(nowhere.state(), Err(NoHome));
        assert_eq!(nowhere.config(), Err(NoHome));
        assert_eq!(nowhere.cache(), Err(NoHome));
    }
}
