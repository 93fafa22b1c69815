//! `gpufleet init [HOST]...`: writes a hosts.toml with the given hosts or those of the ssh configuration.

use super::command_context::aliases;
use super::{CommandError, print};
use crate::cli::arguments::{GlobalArgs, InitArgs, SchemaName};
use crate::config::{HostTarget, HostsFile, Target, parse_target};
use crate::ssh::{Alias, Aliases};
use crate::store::{Directories, create_new, write_atomic};
use crate::wire::SafeText;
use std::fmt::Write as _;
use std::process::ExitCode;

/// The example file, which explains every key.
const EXAMPLE: &str = include_str!("../../hosts.example.toml");

/// The schema of hosts.toml beside it, with which editors complete and check its keys. The line `#:schema` is that of Taplo,
/// which editors use for TOML.
const SCHEMA_FILE: &str = "hosts.schema.json";

/// Code hosting services, which are not GPU servers. Subdomains match as well.
const FORGES: [&str; 12] = [
    "github.com",
    "gitlab.com",
    "bitbucket.org",
    "codeberg.org",
    "sr.ht",
    "gitea.com",
    "azure.com",
    "visualstudio.com",
    "sourceforge.net",
    "salsa.debian.org",
    "huggingface.co",
    "hf.co",
];

/// Writes the file and prints its path. Does not connect.
pub fn run(global: &GlobalArgs, arguments: &InitArgs) -> Result<ExitCode, CommandError> {
    let targets = arguments.hosts.iter().map(|word| match parse_target(word).map_err(CommandError::usage)? {
        Target::Hosts(target) => Ok(target),
        Target::File(_) | Target::Group(_) | Target::Stdin => {
            Err(CommandError::usage(format!("`{word}` is not a host")))
        }
    });
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let directories = Directories::find();
    let path = directories.config().map_err(CommandError::failed)?.join("hosts.toml");
    let (config, aliases) = aliases(global, &directories);
    let found = SshConfigHosts { config: &config, aliases: &aliases, are_selected: targets.is_empty() };
    let (text, hosts) = text(&targets, &found);
    if hosts > 0 {
        // Reports a duplicate host now, not when the file is first used.
        HostsFile::parse(&path.to_string_lossy(), &text, directories.home())
            .map_err(|error| CommandError::usage(format!("these hosts cannot be used together:\n{error}")))?;
    }
    create_new(&path, text.as_bytes()).map_err(CommandError::failed)?;
    let schema = path.with_file_name(SCHEMA_FILE);
    write_atomic(&schema, SchemaName::Hosts.text().as_bytes()).map_err(CommandError::failed)?;
    let path = path.display();
    print(&match (hosts, targets.is_empty()) {
        (0, _) => format!("wrote {path}: it has no hosts yet; add their names\n"),
        (_, false) => format!("wrote {path}: run `gpufleet` to watch these hosts\n"),
        (1, true) => {
            format!("wrote {path}: run `gpufleet` to watch the host of {config}; edit the file if it has no GPUs\n")
        }
        (_, true) => {
            format!("wrote {path}: run `gpufleet` to watch {hosts} hosts of {config}; remove those without GPUs\n")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The hosts of the ssh configuration.
struct SshConfigHosts<'a> {
    /// The displayed path of the file.
    config: &'a str,
    aliases: &'a Aliases,
    /// No hosts were given on the command line, so these are the fleet.
    are_selected: bool,
}

/// Returns the content of the file, with the example as comments, and the number of active sections.
fn text(targets: &[HostTarget], found: &SshConfigHosts) -> (String, usize) {
    let mut text = format!("#:schema ./{SCHEMA_FILE}\n");
    text += "# The hosts that `gpufleet` watches. Every key is explained below.\n\n";
    for target in targets {
        text += &section(target);
    }
    let added = add_ssh_config_hosts(targets, found, &mut text);
    text += "# ---- Every key, explained ----\n#\n";
    for line in EXAMPLE.lines() {
        text += if line.is_empty() { "#" } else { "# " };
        text += line;
        text += "\n";
    }
    (text, targets.len() + added)
}

fn section(target: &HostTarget) -> String {
    let user = target.user.as_ref().map(|user| format!("user = \"{user}\"\n")).unwrap_or_default();
    let port = target.port.map(|port| format!("port = {port}\n")).unwrap_or_default();
    format!("[[hosts]]\nname = \"{}\"\n{user}{port}\n", target.nodeset)
}

/// Appends the hosts of the ssh configuration and returns their number. Names that are not GPU servers or were not
/// selected become comments. A section needs only the name, because `ssh` knows how to reach the host.
fn add_ssh_config_hosts(targets: &[HostTarget], found: &SshConfigHosts, text: &mut String) -> usize {
    let is_named = |alias: &&Alias| !targets.iter().any(|target| target.names.contains(&alias.name));
    let (mut wanted, mut comments) = (0, String::new());
    for alias in found.aliases.hosts.iter().filter(is_named) {
        let name = SafeText::new(&alias.name);
        let section = match parse_target(&alias.name) {
            Ok(Target::Hosts(target)) if target.names == [alias.name.clone()] => {
                format!("[[hosts]]\nname = \"{}\"\n", alias.name)
            }
            _ => String::new(),
        };
        match exclusion_reason(alias, found) {
            None if !section.is_empty() => {
                let _ = writeln!(text, "{section}");
                wanted += 1;
            }
            why => {
                let why = why.unwrap_or("not a valid host name");
                let _ = writeln!(comments, "# {name}: {why}");
                for line in section.lines() {
                    let _ = writeln!(comments, "# {line}");
                }
            }
        }
    }
    if !comments.is_empty() {
        let _ = write!(text, "# ---- Also in {} ----\n#\n{comments}\n", found.config);
    }
    wanted
}

/// Returns the reason why a name of the ssh configuration is not a host of the fleet.
fn exclusion_reason(alias: &Alias, found: &SshConfigHosts) -> Option<&'static str> {
    let address = alias.hostname.as_deref().unwrap_or(&alias.name).to_ascii_lowercase();
    let is_forge =
        |forge: &str| address.strip_suffix(forge).is_some_and(|before| before.is_empty() || before.ends_with('.'));
    if alias.is_pattern() {
        Some("a pattern, not a host")
    } else if alias.user.as_deref() == Some("git") || FORGES.into_iter().any(is_forge) {
        Some("a code hosting service")
    } else if found.aliases.jump_hosts.contains(&alias.name) || found.aliases.jump_hosts.contains(&address) {
        Some("a jump host of other hosts")
    } else if found.are_selected {
        None
    } else {
        Some("not named on the command line")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn target(word: &str) -> HostTarget {
        match parse_target(word) {
            Ok(Target::Hosts(target)) => target,
            other => panic!("{other:?}"),
        }
    }

    fn nothing() -> Aliases {
        Aliases::default()
    }

    fn written(targets: &[HostTarget], aliases: &Aliases) -> (String, Vec<String>) {
        let found = SshConfigHosts { config: "~/.ssh/config", aliases, are_selected: targets.is_empty() };
        let (text, hosts) = text(targets, &found);
        if hosts == 0 {
            return (text, Vec::new());
        }
        let file = HostsFile::parse("hosts.toml", &text, None).unwrap_or_else(|error| panic!("{error}"));
        (text, file.entries.iter().map(|entry| entry.config.name.to_string()).collect())
    }

    #[test]
    fn the_file_parses_to_the_given_hosts() {
        let targets = ["hgx-[01-02]", "bob@gpu1:2222", "[::1]:22", "ssh://status"].map(target);
        let (text, names) = written(&targets, &nothing());
        assert_eq!(names, ["hgx-01", "hgx-02", "gpu1", "::1", "status"]);
        assert!(text.contains("name = \"gpu1\"\nuser = \"bob\"\nport = 2222\n"), "{text}");
    }

    #[test]
    fn without_hosts_every_line_is_a_comment() {
        let (text, _) = written(&[], &nothing());
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
        assert!(text.contains("# name = \"hgx-[01-04]\""), "{text}");
    }

    #[test]
    fn hosts_of_the_ssh_configuration_are_sections_or_comments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let config = "Host hgx-01 hgx-02\n ProxyJump bob@gate:22\nHost gate\nHost github.com\nHost work\n HostName \
                      git.example.org\n User git\nHost notgithub.com\nHost *\n User me\nHost a;b \"x\ty\" gpu[1]\n";
        std::fs::write(&path, config).unwrap();
        let aliases = Aliases::read(Path::new(&path), None);
        let (text, names) = written(&[], &aliases);
        assert_eq!(names, ["hgx-01", "hgx-02", "notgithub.com"]);
        let comments =
            text.split("# ---- Also in ~/.ssh/config ----\n").nth(1).unwrap().split("# ---- Every").next().unwrap();
        assert_eq!(
            comments,
            "#\n# gate: a jump host of other hosts\n# [[hosts]]\n# name = \"gate\"\n\
             # github.com: a code hosting service\n# [[hosts]]\n# name = \"github.com\"\n\
             # work: a code hosting service\n# [[hosts]]\n# name = \"work\"\n\
             # *: a pattern, not a host\n\
             # a;b: not a valid host name\n# x␉y: not a valid host name\n# gpu[1]: not a valid host name\n\n"
        );
        let (text, names) = written(&[target("bob@hgx-01")], &aliases);
        assert_eq!(names, ["hgx-01"]);
        assert!(text.contains("# hgx-02: not named on the command line\n# [[hosts]]\n# name = \"hgx-02\"\n"), "{text}");
    }
}
