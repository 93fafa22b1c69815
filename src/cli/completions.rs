//! `gpufleet completions SHELL`, and the answers to a shell that completes arguments.
//!
//! The printed code makes the shell run gpufleet with `GPUFLEET_COMPLETE` for each completion, so hosts, groups and rules are
//! always those of the moment.

use super::command_context::{aliases, groups_of, read_hosts};
use super::{CommandError, print};
use crate::cli::arguments::{Cli, CompletionsArgs, GlobalArgs, Shell};
use crate::config::{HostsFile, Target, parse_target};
use crate::diagnosis::RuleId;
use crate::store::Directories;
use clap::{Arg, ValueHint};
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::{Bash, EnvCompleter, Fish, Shells, Zsh};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

/// The shells' code sets this environment variable to the name of the shell. Part of the interface between the printed
/// code and the program.
const VARIABLE: &str = "GPUFLEET_COMPLETE";
const SHELLS: Shells<'static> = Shells(&[&Bash, &Zsh, &Fish]);
/// More names than this help nobody to choose.
const MAX_NAMES: usize = 2000;

/// Prints the code for one shell.
pub fn run(arguments: &CompletionsArgs) -> Result<ExitCode, CommandError> {
    let shell: &dyn EnvCompleter = match arguments.shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let mut code = Vec::new();
    shell
        .write_registration(VARIABLE, "gpufleet", "gpufleet", "gpufleet", &mut code)
        .map_err(|error| CommandError::failed(format!("cannot write the completions: {error}")))?;
    print(&String::from_utf8_lossy(&code))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the candidates if a shell asks for completions. Returns `None` in an ordinary run.
pub fn answer_shell() -> Option<ExitCode> {
    std::env::var_os(VARIABLE)?;
    let environment = CompleteEnv::with_factory(command).var(VARIABLE).bin("gpufleet").shells(SHELLS);
    match environment.try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref()) {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        // A message would appear in the middle of the command line.
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// The command line with the sources of its values.
fn command() -> clap::Command {
    Cli::definition().mut_args(with_values).mut_subcommands(|subcommand| subcommand.mut_args(with_values))
}

fn with_values(argument: Arg) -> Arg {
    match argument.get_id().as_str() {
        "targets" => argument.add(ArgValueCompleter::new(target_candidates)),
        "hosts" => argument.add(ArgValueCompleter::new(alias_candidates)),
        "rule" => argument.add(ArgValueCandidates::new(rule_candidates)),
        "command" => argument
            .add(ArgValueCandidates::new(|| Cli::subcommands().into_iter().map(CompletionCandidate::new).collect())),
        "file" | "identity_file" | "ssh_config" | "log" | "replay" => argument.value_hint(ValueHint::FilePath),
        _ => argument,
    }
}

fn rule_candidates() -> Vec<CompletionCandidate> {
    let candidate = |rule: &RuleId| {
        let info = rule.info();
        CompletionCandidate::new(info.word).help(Some(info.title.to_owned().into()))
    };
    RuleId::ALL.iter().map(candidate).collect()
}

/// Hosts and groups of hosts.toml, hosts of the ssh configuration, and files.
fn target_candidates(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = words_on_the_line();
    let directories = Directories::find();
    let files = given_files(&words, &directories);
    let mut names = BTreeMap::new();
    for host in files.iter().flat_map(|file| &file.entries).map(|entry| &entry.config) {
        names.entry(host.name.to_string()).or_insert("host of hosts.toml");
        names.extend(groups_of(host).map(|group| (format!("@{group}"), "group of hosts.toml")));
    }
    // With a file, only hosts of that file can be selected.
    if !words.iter().any(|word| matches!(parse_target(word), Ok(Target::File(_)))) {
        add_aliases(&words, &directories, &mut names);
    }
    let mut candidates = matching(names, current);
    let is_hosts_file =
        |path: &std::path::Path| path.is_file() && path.extension().is_some_and(|ending| ending == "toml");
    candidates.extend(PathCompleter::any().filter(is_hosts_file).complete(current));
    candidates
}

fn alias_candidates(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut names = BTreeMap::new();
    add_aliases(&words_on_the_line(), &Directories::find(), &mut names);
    matching(names, current)
}

fn add_aliases(words: &[String], directories: &Directories, names: &mut BTreeMap<String, &'static str>) {
    let global = GlobalArgs { ssh_config: option_value(words, "--ssh-config"), ..GlobalArgs::default() };
    for alias in aliases(&global, directories).1.hosts {
        names.entry(alias.name).or_insert("host of the ssh configuration");
    }
}

/// The candidates that begin with the current word. Names are printable, since both files allow only such hosts.
fn matching(names: BTreeMap<String, &'static str>, current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let matching = names.into_iter().filter(|(name, _)| name.starts_with(current) && !name.contains(char::is_control));
    matching.take(MAX_NAMES).map(|(name, about)| CompletionCandidate::new(name).help(Some(about.into()))).collect()
}

/// The words of the command line that is completed. They follow `--`.
fn words_on_the_line() -> Vec<String> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    words.map(OsString::into_string).filter_map(Result::ok).collect()
}

/// The hosts.toml files on the command line, or the standard one. Files with errors are left out.
fn given_files(words: &[String], directories: &Directories) -> Vec<HostsFile> {
    let given: Vec<PathBuf> = words
        .iter()
        .filter_map(|word| match parse_target(word) {
            Ok(Target::File(path)) if path.is_file() => Some(path),
            _ => None,
        })
        .collect();
    let paths = if given.is_empty() {
        directories.hosts_files().into_iter().find(|path| path.exists()).into_iter().collect()
    } else {
        given
    };
    paths.iter().filter_map(|path| read_hosts(path, directories).ok()).collect()
}

fn option_value(words: &[String], option: &str) -> Option<PathBuf> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == option {
            return words.next().map(PathBuf::from);
        }
        if let Some(value) = word.strip_prefix(option).and_then(|rest| rest.strip_prefix('=')) {
            return Some(PathBuf::from(value));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_with_files_and_hosts_have_candidates() {
        let mut command = command();
        command.build();
        let rules = rule_candidates();
        assert_eq!(rules.len(), RuleId::ALL.len());
        assert!(rules.iter().any(|rule| rule.get_value() == "stuck-spin"));
        let words = ["gpufleet".to_owned(), "--ssh-config=/x".to_owned(), "status".to_owned()];
        assert_eq!(option_value(&words, "--ssh-config"), Some(PathBuf::from("/x")));
        assert_eq!(option_value(&words, "--log"), None);
    }

    #[test]
    fn control_characters_and_other_beginnings_are_left_out() {
        let names = ["gpu1", "gpu2", "head", "gpu\u{1b}[31m"].map(|name| (name.to_owned(), "host"));
        let found = matching(names.into_iter().collect(), OsStr::new("gpu"));
        let found: Vec<_> = found.iter().map(|candidate| candidate.get_value().to_owned()).collect();
        assert_eq!(found, ["gpu1", "gpu2"]);
    }
}
