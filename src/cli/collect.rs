//! `gpufleet collect`: watches all hosts without a screen, as a service.

use super::arguments::{CollectArgs, GlobalArgs};
use super::collector::event_loop::{Collector, ReadHosts};
use super::command_context::{CommandContext, HostSelectionError, SelectedHosts, select_hosts};
use super::exit::warn;
use super::{CommandError, print};
use crate::wire::SafeText;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Watches the hosts until SIGTERM or SIGINT, which are the usual end of a service: exit code 0.
pub async fn run(
    setup: CommandContext,
    global: &GlobalArgs,
    arguments: &CollectArgs,
) -> Result<ExitCode, CommandError> {
    let simulated = setup.simulated;
    let hosts = setup.hosts.len();
    let collector = Collector::start(setup, read_hosts(global, &arguments.targets))?;
    let simulated = if simulated { ", simulated (--demo)" } else { "" };
    let plural = if hosts == 1 { "" } else { "s" };
    warn(&format!("the collector watches {hosts} host{plural}{simulated}"));
    collector.run().await;
    Ok(ExitCode::SUCCESS)
}

/// Returns the function that reads hosts.toml again.
fn read_hosts(global: &GlobalArgs, targets: &[String]) -> ReadHosts {
    let (global, targets) = (global.clone(), targets.to_vec());
    Arc::new(move || match select_hosts(&global, &targets) {
        Ok(SelectedHosts::Real(hosts, notifications)) => Ok((hosts, notifications)),
        Ok(SelectedHosts::Simulated(_)) => Err("a simulated fleet has no hosts.toml".to_owned()),
        Err(HostSelectionError::NoTarget) => Err("there is no hosts.toml any more".to_owned()),
        Err(HostSelectionError::Failed(error)) => Err(one_line(&error)),
    })
}

/// Joins the lines of an error, because each message of the log is one line.
fn one_line(error: &CommandError) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let text = lines.join("; ");
    SafeText::new(text.strip_prefix("gpufleet: ").unwrap_or(&text)).to_string()
}

/// Prints a systemd user unit that starts this program.
///
/// # Errors
/// The path of this program is unknown.
pub fn print_unit(arguments: &CollectArgs) -> Result<ExitCode, CommandError> {
    let program = std::env::current_exe()
        .map_err(|error| CommandError::failed(format!("cannot find the path of this program: {error}")))?;
    let folder = std::env::current_dir().unwrap_or_default();
    print(&unit(&program, &folder, &arguments.targets))?;
    Ok(ExitCode::SUCCESS)
}

/// The unit. Files among the targets become absolute, because a service starts in another folder.
fn unit(program: &Path, folder: &Path, targets: &[String]) -> String {
    let absolute = |target: &String| {
        let is_file = target.contains('/') && !target.contains("://");
        let is_toml = Path::new(target).extension().is_some_and(|extension| extension == "toml");
        let path = PathBuf::from(target);
        if is_file || is_toml { folder.join(path).to_string_lossy().into_owned() } else { target.clone() }
    };
    let words = [program.to_string_lossy().into_owned(), "collect".to_owned()];
    let words: Vec<String> = words.into_iter().chain(targets.iter().map(absolute)).map(|word| quoted(&word)).collect();
    format!(
        "\
# A systemd user unit for the collector of gpufleet. To install it:
#   gpufleet collect --print-unit > ~/.config/systemd/user/gpufleet.service
#   systemctl --user daemon-reload
#   systemctl --user enable --now gpufleet
#   loginctl enable-linger
# Without lingering, systemd starts your services when you log in and stops them when you log out. `loginctl
# enable-linger` keeps them running, and starts them at boot. An administrator may have to run it for you:
# `sudo loginctl enable-linger $USER`.
#
# Read the log:            journalctl --user -u gpufleet -f
# Read hosts.toml again:   systemctl --user reload gpufleet
#
# A service cannot answer prompts. Use a key without a passphrase, or an agent that runs without you, and set its socket:
#   Environment=SSH_AUTH_SOCK=%t/ssh-agent.socket

[Unit]
Description=gpufleet collector
StartLimitIntervalSec=0

[Service]
ExecStart={}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=10
TimeoutStopSec=10
UMask=0077

[Install]
WantedBy=default.target
",
        words.join(" ")
    )
}

/// Quotes a word of a command line as systemd.service(5) says: `%` starts a specifier and `$` a variable.
fn quoted(word: &str) -> String {
    let word = SafeText::new(word).to_string().replace('%', "%%").replace('$', "$$");
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./@:%$[],+=~".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_has_absolute_paths_and_quoted_words() {
        let targets = ["lab.toml", "gpu1", "@rack1", "my hosts/a%b.toml", "ssh://gpu$2"].map(str::to_owned);
        let text = unit(Path::new("/usr/bin/gpufleet"), Path::new("/home/ann"), &targets);
        let start = text.lines().find(|line| line.starts_with("ExecStart=")).expect("a command");
        assert_eq!(
            start,
            "ExecStart=/usr/bin/gpufleet collect /home/ann/lab.toml gpu1 @rack1 \"/home/ann/my hosts/a%%b.toml\" ssh://gpu$$2"
        );
        assert!(text.contains("loginctl enable-linger"));
    }

    #[test]
    fn an_error_is_one_line_of_the_log() {
        let error = CommandError::failed("cannot read lab.toml: it is a directory\n  hint: name a file in it\n");
        assert_eq!(one_line(&error), "cannot read lab.toml: it is a directory; hint: name a file in it");
    }
}
