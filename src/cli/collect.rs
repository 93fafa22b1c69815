//! `gpufleet collect`: watches all hosts without a screen, as a service.

use super::arguments::{CollectArgs, GlobalArgs};
use super::collector::event_loop::{Collector, ReadHosts};
use super::collector::history::HistoryRecorder;
use super::command_context::{CommandContext, HostSelectionError, SelectedHosts, select_hosts};
use super::exit::{one_line, warn};
use super::metrics_server::MetricsServer;
use super::replay::{Replay, ReplayError};
use super::shared_fleet::SharedFleet;
use super::{CommandError, print};
use crate::share::HistoryService;
use crate::store::{Directories, History, HistoryError, HistoryWriter};
use crate::wire::SafeText;
use crate::wire::format::io_cause;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The name of the history in the state directory.
const HISTORY_NAME: &str = "history.db";

/// Watches the hosts until SIGTERM or SIGINT, which are the usual end of a service: exit code 0.
pub async fn run(
    setup: CommandContext,
    global: &GlobalArgs,
    arguments: &CollectArgs,
) -> Result<ExitCode, CommandError> {
    let simulated = setup.simulated;
    let hosts = setup.hosts.len();
    // Before anything connects: two collectors of one history would also notify twice.
    let history = match (simulated, &arguments.store) {
        (true, None) => None,
        (_, store) => start_history(store.as_deref())?,
    };
    let clock = setup.clock;
    let service = match &history {
        Some(_) => Some(HistoryService::new(history_path(arguments.store.as_deref())?)),
        None => None,
    };
    let mut collector = Collector::start(setup, read_hosts(global, &arguments.targets))?;
    if let Some(history) = history {
        collector.state.observe(history);
    }
    if let Some(shared) = SharedFleet::start(arguments, simulated, clock, service, collector.reader())? {
        collector.state.observe(shared);
    }
    let _metrics = MetricsServer::of_collector(arguments, collector.reader()).await?;
    let simulated = if simulated { ", simulated (--demo)" } else { "" };
    let plural = if hosts == 1 { "" } else { "s" };
    warn(&format!("the collector watches {hosts} host{plural}{simulated}"));
    collector.run().await;
    Ok(ExitCode::SUCCESS)
}

/// Opens the history. Returns `None` with a message in the log if it cannot be used: the hosts are watched anyway.
///
/// # Errors
/// Another collector writes it.
fn start_history(store: Option<&Path>) -> Result<Option<HistoryRecorder>, CommandError> {
    let path = history_path(store)?;
    match HistoryWriter::start(&path) {
        Ok((writer, message)) => {
            if let Some(message) = message {
                warn(&message);
            }
            Ok(Some(HistoryRecorder::new(writer)))
        }
        Err(error @ HistoryError::Locked { .. }) => Err(CommandError::failed(error)),
        // A newer gpufleet has written it.
        Err(error) => {
            warn(&format!("{error}; the hosts are watched without a history"));
            Ok(None)
        }
    }
}

/// The file of the history.
///
/// # Errors
/// The home directory is not known.
pub(super) fn history_path(store: Option<&Path>) -> Result<PathBuf, CommandError> {
    match store {
        Some(path) => Ok(path.to_owned()),
        None => Directories::find().state().map(|state| state.join(HISTORY_NAME)).map_err(CommandError::failed),
    }
}

/// Writes a recording into the history, with the times of the recording.
///
/// # Errors
/// The recording cannot be read to its end, or the history cannot be written.
pub fn import(recording: &Path, store: Option<&Path>) -> Result<ExitCode, CommandError> {
    let shown = SafeText::new(&recording.to_string_lossy());
    let failure = |error: &dyn std::fmt::Display| CommandError::failed(format!("cannot import {shown}: {error}"));
    let file = File::open(recording).map_err(|error| failure(&io_cause(&error)))?;
    let (history, message) = History::open(&history_path(store)?).map_err(CommandError::failed)?;
    if let Some(message) = message {
        warn(&message);
    }
    let mut replay = Replay::new(Arc::default());
    let (recorder, written) = HistoryRecorder::importing(history);
    replay.observe(recorder);
    let played = replay.play(BufReader::new(file), |_, _| Ok::<(), ReplayError>(()));
    let hosts = replay.fleet().hosts().len();
    // An importing recorder has done its work when its future exists.
    drop(replay.finish());
    let minutes = written.result().map_err(CommandError::failed)?;
    match played {
        Ok(()) => {}
        Err(ReplayError::Io(error)) => return Err(failure(&io_cause(&error))),
        Err(error) => return Err(failure(&error)),
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    print(&format!("imported {minutes} minute{} of {hosts} host{}\n", plural(minutes), plural(hosts)))?;
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

/// Prints a systemd user unit that starts this program.
///
/// # Errors
/// The path of this program is unknown.
pub fn print_unit(global: &GlobalArgs, arguments: &CollectArgs) -> Result<ExitCode, CommandError> {
    let program = std::env::current_exe()
        .map_err(|error| CommandError::failed(format!("cannot find the path of this program: {error}")))?;
    let folder = std::env::current_dir().unwrap_or_default();
    print(&unit(&program, &folder, global, arguments))?;
    Ok(ExitCode::SUCCESS)
}

/// The unit. Files among the targets become absolute, because a service starts in another folder.
fn unit(program: &Path, folder: &Path, global: &GlobalArgs, arguments: &CollectArgs) -> String {
    let absolute = |target: &String| {
        let is_file = target.contains('/') && !target.contains("://");
        let is_toml = Path::new(target).extension().is_some_and(|extension| extension == "toml");
        let path = PathBuf::from(target);
        if is_file || is_toml { folder.join(path).to_string_lossy().into_owned() } else { target.clone() }
    };
    let words = [program.to_string_lossy().into_owned(), "collect".to_owned()];
    let metrics = arguments.metrics.map(|address| ["--metrics".to_owned(), address.to_string()]);
    let per_process = arguments.per_process.then(|| "--per-process".to_owned());
    let path = |name: &str, path: &Option<PathBuf>| {
        path.as_ref().map(|path| [name.to_owned(), folder.join(path).to_string_lossy().into_owned()])
    };
    let group = arguments.socket_group.as_ref().map(|group| ["--socket-group".to_owned(), group.clone()]);
    let interval = global.interval.map(|interval| ["--interval".to_owned(), format!("{}ms", interval.as_millis())]);
    let pairs = [
        interval,
        path("--identity-file", &global.identity_file),
        path("--ssh-config", &global.ssh_config),
        path("--store", &arguments.store),
        path("--socket", &arguments.socket),
        group,
        metrics,
    ];
    let options = pairs.into_iter().flatten().flatten().chain(per_process);
    let targets = arguments.targets.iter().map(absolute);
    let words: Vec<String> = words.into_iter().chain(targets).chain(options).map(|word| quoted(&word)).collect();
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
    use crate::cli::arguments::Cli;
    use clap::Parser as _;

    #[test]
    fn the_unit_has_absolute_paths_and_quoted_words() {
        let targets = ["lab.toml", "gpu1", "@rack1", "my hosts/a%b.toml", "ssh://gpu$2"].map(str::to_owned);
        let arguments = CollectArgs {
            targets: targets.to_vec(),
            print_unit: true,
            store: Some("lab.db".into()),
            import: None,
            socket: Some("/run/gpufleet/collect.sock".into()),
            socket_group: Some("lab".to_owned()),
            metrics: Some(([127, 0, 0, 1], 9846).into()),
            per_process: true,
        };
        let command = ["gpufleet", "--interval", "5s", "--identity-file", "k", "--ssh-config", "/etc/lab", "collect"];
        let global = Cli::try_parse_from(command).expect("parses").global;
        let text = unit(Path::new("/usr/bin/gpufleet"), Path::new("/home/ann"), &global, &arguments);
        let start = text.lines().find(|line| line.starts_with("ExecStart=")).expect("a command");
        assert_eq!(
            start,
            "ExecStart=/usr/bin/gpufleet collect /home/ann/lab.toml gpu1 @rack1 \"/home/ann/my hosts/a%%b.toml\" ssh://gpu$$2 --interval 5000ms \
             --identity-file /home/ann/k --ssh-config /etc/lab --store /home/ann/lab.db \
             --socket /run/gpufleet/collect.sock --socket-group lab --metrics 127.0.0.1:9846 --per-process"
        );
        assert!(text.contains("loginctl enable-linger"));
    }
}
