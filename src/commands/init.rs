//! `gpufleet init [HOST]...`: a hosts.toml to fill in.

use super::{Failure, print};
use crate::cli::InitArgs;
use crate::hosts::{HostsFile, PlainTarget, Target, parse_target};
use crate::store::{Directories, create_new};
use std::process::ExitCode;

/// What explains every key.
const EXAMPLE: &str = include_str!("../../hosts.example.toml");

/// Writes the file, and says where it is.
pub fn run(arguments: &InitArgs) -> Result<ExitCode, Failure> {
    let targets = arguments.hosts.iter().map(|word| match parse_target(word).map_err(Failure::usage)? {
        Target::Hosts(target) => Ok(target),
        Target::File(_) | Target::Stdin => Err(Failure::usage(format!("`{word}` is not a host"))),
    });
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let directories = Directories::find();
    let path = directories.config().map_err(Failure::nothing)?.join("hosts.toml");
    let text = text(&targets);
    if !targets.is_empty() {
        // A host that was named twice is told now, not when the file is first used.
        HostsFile::parse(&path.to_string_lossy(), &text, directories.home())
            .map_err(|error| Failure::usage(format!("these hosts do not make a fleet:\n{error}")))?;
    }
    create_new(&path, text.as_bytes()).map_err(Failure::nothing)?;
    let path = path.display();
    print(&match targets.len() {
        0 => format!("wrote {path}: no hosts yet, put their names in\n"),
        _ => format!("wrote {path}: `gpufleet` shows these hosts now\n"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The hosts, then the example as remarks.
fn text(targets: &[PlainTarget]) -> String {
    let mut text = String::from("# The hosts that `gpufleet` watches. Every key is explained below.\n\n");
    for target in targets {
        text += &section(target);
    }
    text += "# ---- Every key, explained ----\n#\n";
    for line in EXAMPLE.lines() {
        text += if line.is_empty() { "#" } else { "# " };
        text += line;
        text += "\n";
    }
    text
}

fn section(target: &PlainTarget) -> String {
    let user = target.user.as_ref().map(|user| format!("user = \"{user}\"\n")).unwrap_or_default();
    let port = target.port.map(|port| format!("port = {port}\n")).unwrap_or_default();
    format!("[[hosts]]\nname = \"{}\"\n{user}{port}\n", target.nodeset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(word: &str) -> PlainTarget {
        match parse_target(word) {
            Ok(Target::Hosts(target)) => target,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was_meant() {
        let targets = ["hgx-[01-02]", "bob@gpu1:2222", "[::1]:22", "ssh://status"].map(target);
        let file = HostsFile::parse("hosts.toml", &text(&targets), None).unwrap_or_else(|error| panic!("{error}"));
        let hosts: Vec<_> = file.entries.iter().map(|entry| &entry.config).collect();
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["hgx-01", "hgx-02", "gpu1", "::1", "status"]);
        assert_eq!((hosts[2].user.as_deref(), hosts[2].port), (Some("bob"), Some(2222)));
    }

    #[test]
    fn without_hosts_everything_is_a_remark() {
        let text = text(&[]);
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
        assert!(text.contains("# name = \"hgx-[01-04]\""), "{text}");
    }
}
