//! Selects the hosts of the fleet from targets and files.
//!
//! - Files only: all of their hosts.
//! - Files and names: the names select hosts of the files; `user@host` and `host:port` may also name other hosts.
//! - Names only: a name from the standard hosts.toml uses the settings there; any other name uses the ssh
//!   configuration. `[defaults]` apply only to hosts of the same file.
//! - Nothing: all hosts of the standard hosts.toml.

use super::diagnostic::did_you_mean;
use super::{HostConfig, HostEntry, HostTarget, HostsFile, nodeset};
use crate::wire::SafeText;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use strsim::osa_distance;

/// The input of [`select`].
#[derive(Debug, Clone, Default)]
pub struct Selection<'a> {
    /// The files given on the command line.
    pub files: Vec<HostsFile>,
    /// The standard hosts.toml, if it exists and no file is given.
    pub standard: Option<HostsFile>,
    /// The hosts given on the command line.
    pub targets: Vec<HostTarget>,
    /// All targets as typed, for hints.
    pub words: &'a [String],
    /// Command-line options that apply to every host.
    pub overrides: Overrides,
    /// The names of the subcommands.
    pub subcommands: &'a [&'a str],
}

/// Command-line options that take precedence over the settings of every file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The time between snapshots.
    pub interval: Option<Duration>,
    /// A key that is offered first.
    pub identity_file: Option<PathBuf>,
    /// Replaces the usual ssh configuration files.
    pub ssh_config: Option<PathBuf>,
}

impl Overrides {
    /// Applies the options to the configuration of one host.
    pub fn apply(&self, config: &mut HostConfig) {
        if let Some(interval) = self.interval {
            config.interval = interval;
        }
        if let Some(identity_file) = &self.identity_file {
            config.identity_file = Some(identity_file.clone());
        }
        if let Some(ssh_config) = &self.ssh_config {
            config.ssh_config = Some(ssh_config.clone());
        }
    }
}

/// The targets do not make a fleet: a message and a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectError {
    message: String,
    hint: String,
}

impl fmt::Display for SelectError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", SafeText::new(&self.message))?;
        writeln!(formatter, "  hint: {}", SafeText::new(&self.hint))
    }
}

impl std::error::Error for SelectError {}

/// Returns the hosts of the fleet in the order of the targets, each name once.
pub fn select(selection: &Selection<'_>) -> Result<Vec<HostConfig>, SelectError> {
    check_words(selection)?;
    let entries = index(&selection.files)?;
    let standard = selection.standard.iter().flat_map(|file| &file.entries);
    let standard: HashMap<&str, &HostEntry> = standard.map(|entry| (entry.config.name.as_str(), entry)).collect();

    let mut fleet = Fleet::default();
    let mut others = Vec::new();
    for target in &selection.targets {
        for name in &target.names {
            match entries.get(name.as_str()).or_else(|| standard.get(name.as_str())) {
                Some(entry) => fleet.add(with_login(entry.config.clone(), target)),
                None if selection.files.is_empty() => fleet.add(with_login(HostConfig::named(name.as_str()), target)),
                None if target.user.is_some() || target.port.is_some() => others.push((name, target)),
                None => return Err(not_in_files(name, selection)),
            }
        }
    }
    if fleet.hosts.is_empty() {
        let standard = selection.standard.iter().filter(|_| selection.targets.is_empty());
        let files = standard.chain(&selection.files);
        files.flat_map(|file| &file.entries).for_each(|entry| fleet.add(entry.config.clone()));
    }
    for (name, target) in others {
        fleet.add(with_login(HostConfig::named(name.as_str()), target));
    }

    let mut hosts = fleet.hosts;
    if hosts.len() > nodeset::MAX_HOSTS {
        return Err(SelectError {
            message: format!("{} hosts; the limit is {}", hosts.len(), nodeset::MAX_HOSTS),
            hint: "name fewer hosts".to_owned(),
        });
    }
    for host in &mut hosts {
        selection.overrides.apply(host);
    }
    Ok(hosts)
}

/// The hosts selected so far. The same host is added once; with another login it is a second host.
#[derive(Default)]
struct Fleet {
    hosts: Vec<HostConfig>,
    positions: HashMap<SafeText, usize>,
}

impl Fleet {
    fn add(&mut self, mut host: HostConfig) {
        if let Some(&place) = self.positions.get(&host.name) {
            if self.hosts[place] == host {
                return;
            }
            host.address = Some(host.address().to_owned());
            host.name = SafeText::from(login_text(&host));
            if self.positions.contains_key(&host.name) {
                return;
            }
        }
        self.positions.insert(host.name.clone(), self.hosts.len());
        self.hosts.push(host);
    }
}

fn login_text(host: &HostConfig) -> String {
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let port = host.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{user}{}{port}", host.name)
}

fn with_login(mut host: HostConfig, target: &HostTarget) -> HostConfig {
    if target.user.is_some() {
        host.user.clone_from(&target.user);
    }
    if target.port.is_some() {
        host.port = target.port;
    }
    host
}

/// Indexes the hosts of all files by name. A name in two files is an error.
fn index(files: &[HostsFile]) -> Result<HashMap<&str, &HostEntry>, SelectError> {
    let mut entries: HashMap<&str, &HostEntry> = HashMap::new();
    for entry in files.iter().flat_map(|file| &file.entries) {
        if let Some(earlier) = entries.insert(&entry.config.name, entry) {
            return Err(SelectError {
                message: format!(
                    "the host `{}` is named twice: at {} and at {}",
                    entry.config.name, earlier.location, entry.location
                ),
                hint: "remove it from one of the files, or use only one file".to_owned(),
            });
        }
    }
    Ok(entries)
}

fn not_in_files(name: &str, selection: &Selection<'_>) -> SelectError {
    let files: Vec<&str> = selection.files.iter().map(|file| file.path.as_str()).collect();
    let names = selection.files.iter().flat_map(|file| &file.entries).map(|entry| entry.config.name.as_str());
    let hint = did_you_mean(name, names).unwrap_or_else(|| {
        format!("with a file, a name selects a host from it; for another host write `user@{name}` or `{name}:22`")
    });
    SelectError { message: format!("no host `{name}` in {}", files.join(", ")), hint }
}

/// Rejects a bare word that is a subcommand or one edit away from one, unless a hosts.toml has a host of that name.
fn check_words(selection: &Selection<'_>) -> Result<(), SelectError> {
    let files = selection.files.iter().chain(&selection.standard);
    let is_known = |name: &str| files.clone().any(|file| file.entries.iter().any(|entry| entry.config.name == *name));
    for target in selection.targets.iter().filter(|target| target.is_bare) {
        check_word(target, selection, is_known(&target.text))?;
    }
    Ok(())
}

fn check_word(target: &HostTarget, selection: &Selection<'_>, is_known: bool) -> Result<(), SelectError> {
    let word = target.text.as_str();
    let limit = usize::from(!is_known);
    let Some(meant) = selection.subcommands.iter().copied().find(|name| osa_distance(word, name) <= limit) else {
        return Ok(());
    };
    let others = selection.words.iter().filter(|other| *other != word);
    let command: String = others.map(|other| format!(" {other}")).collect();
    Err(SelectError {
        message: if meant == word {
            format!("`{word}` is a subcommand, but a host is expected here")
        } else {
            format!("`{word}` is not a subcommand, and as a host name it is one letter from `{meant}`")
        },
        hint: format!("for the subcommand write `gpufleet {meant}{command}`, for a host of that name `ssh://{word}`"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Target, parse_target};
    use super::*;

    const SUBCOMMANDS: [&str; 3] = ["status", "init", "help"];

    fn file(path: &str, text: &str) -> HostsFile {
        HostsFile::parse(path, text, None).unwrap_or_else(|error| panic!("{error}"))
    }

    fn lab() -> HostsFile {
        file(
            "lab.toml",
            "[defaults]\nuser = \"lab\"\n[[hosts]]\nname = \"gpu[1-3]\"\nport = 2200\n[[hosts]]\nname = \"stats\"\n",
        )
    }

    fn selection(words: &[&str], files: Vec<HostsFile>, standard: Option<HostsFile>) -> Selection<'static> {
        let targets = words.iter().map(|word| match parse_target(word) {
            Ok(Target::Hosts(target)) => target,
            other => panic!("{other:?}"),
        });
        Selection { targets: targets.collect(), files, standard, subcommands: &SUBCOMMANDS, ..Selection::default() }
    }

    fn logins(selection: &Selection<'_>) -> Vec<String> {
        select(selection).unwrap_or_else(|error| panic!("{error}")).iter().map(login_text).collect()
    }

    fn error(selection: &Selection<'_>) -> String {
        select(selection).expect_err("an error").to_string()
    }

    #[test]
    fn files_select_all_of_their_hosts() {
        let all = ["lab@gpu1:2200", "lab@gpu2:2200", "lab@gpu3:2200", "lab@stats"];
        assert_eq!(logins(&selection(&[], vec![lab()], None)), all);
        assert_eq!(logins(&selection(&[], vec![], Some(lab()))), all);
    }

    #[test]
    fn names_select_hosts_of_a_file() {
        assert_eq!(logins(&selection(&["gpu[2-3]"], vec![lab()], None)), ["lab@gpu2:2200", "lab@gpu3:2200"]);
        assert_eq!(logins(&selection(&["bob@gpu2:22"], vec![lab()], None)), ["bob@gpu2:22"]);
        assert_eq!(
            error(&selection(&["gpu4"], vec![lab()], None)),
            "no host `gpu4` in lab.toml\n  hint: did you mean `gpu1`?\n"
        );
        assert_eq!(
            error(&selection(&["elsewhere"], vec![lab()], None)),
            "no host `elsewhere` in lab.toml\n  hint: with a file, a name selects a host from it; for another host write \
             `user@elsewhere` or `elsewhere:22`\n"
        );
        assert_eq!(logins(&selection(&["gpu1", "bob@new"], vec![lab()], None)), ["lab@gpu1:2200", "bob@new"]);
        assert_eq!(logins(&selection(&["bob@new"], vec![lab()], None)).len(), 5);
    }

    #[test]
    fn names_use_the_settings_of_the_standard_file() {
        assert_eq!(logins(&selection(&["gpu1", "other"], vec![], Some(lab()))), ["lab@gpu1:2200", "other"]);
        assert_eq!(logins(&selection(&["gpu1", "a,b"], vec![], None)), ["gpu1", "a", "b"]);
    }

    #[test]
    fn a_repeated_host_is_added_once_unless_its_login_differs() {
        assert_eq!(logins(&selection(&["a", "a,b", "ssh://a"], vec![], None)), ["a", "b"]);
        let hosts = select(&selection(&["alice@a", "bob@a:22", "bob@a:22"], vec![], None)).expect("selects");
        let names: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.address())).collect();
        assert_eq!(names, [("a", "a"), ("bob@a:22", "a")]);
    }

    #[test]
    fn a_word_near_a_subcommand_is_rejected_with_both_alternatives() {
        assert_eq!(
            error(&Selection {
                words: &["statsu", "gpu1"].map(str::to_owned),
                ..selection(&["statsu", "gpu1"], vec![], None)
            }),
            "`statsu` is not a subcommand, and as a host name it is one letter from `status`\n  hint: for the subcommand write \
             `gpufleet status gpu1`, for a host of that name `ssh://statsu`\n"
        );
        assert_eq!(
            error(&Selection {
                words: &["lab.toml", "status"].map(str::to_owned),
                ..selection(&["status"], vec![lab()], None)
            }),
            "`status` is a subcommand, but a host is expected here\n  hint: for the subcommand write \
             `gpufleet status lab.toml`, for a host of that name `ssh://status`\n"
        );
        assert_eq!(logins(&selection(&["ssh://statsu"], vec![], None)), ["statsu"]);
        assert_eq!(logins(&selection(&["stats"], vec![lab()], None)), ["lab@stats"]);
        assert_eq!(logins(&selection(&["bob@init"], vec![], None)), ["bob@init"]);
    }

    #[test]
    fn a_host_in_two_files_is_an_error() {
        let other = file("b.toml", "# the same again\n[[hosts]]\nname = \"gpu2\"\n");
        assert_eq!(
            error(&selection(&[], vec![lab(), other], None)),
            "the host `gpu2` is named twice: at lab.toml:4:8 and at b.toml:3:8\n  hint: remove it from one of the files, or \
             use only one file\n"
        );
    }

    #[test]
    fn command_line_options_override_the_files() {
        let mut selection = selection(&["gpu1"], vec![lab()], None);
        selection.overrides = Overrides {
            interval: Some(Duration::from_secs(9)),
            identity_file: Some(PathBuf::from("/k")),
            ssh_config: Some(PathBuf::from("/c")),
        };
        let hosts = select(&selection).expect("selects");
        assert_eq!(hosts[0].ssh_config, Some(PathBuf::from("/c")));
        assert_eq!(hosts[0].interval, Duration::from_secs(9));
        assert_eq!(hosts[0].identity_file, Some(PathBuf::from("/k")));
    }
}
