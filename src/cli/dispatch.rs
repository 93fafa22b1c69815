//! From the command line to the command.

use super::command_context::{self, CommandContext, HostSelectionError, SelectedHosts};
use super::{CommandError, clean, doctor, explain, findings, free, init, print, record, status, tui};
use crate::cli::arguments::{Cli, Command};
use crate::ssh::Interaction;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Runs what the command line says.
pub fn run(cli: &Cli) -> Result<ExitCode, CommandError> {
    if cli.version {
        print(&version())?;
        return Ok(ExitCode::SUCCESS);
    }
    cli.check().map_err(CommandError::usage)?;
    match &cli.command {
        Some(Command::Init(arguments)) => init::run(&cli.global, arguments),
        Some(Command::Explain(arguments)) => explain::run(arguments),
        Some(Command::Doctor(arguments)) => {
            let (hosts, runtime) = prepare(cli, &arguments.targets, HostSelectionError::for_status)?;
            run_to_completion(runtime, async {
                let (setup, trace_events) = CommandContext::with_trace_events(&cli.global, hosts, interaction());
                doctor::run(setup, trace_events).await
            })
        }
        Some(Command::Clean(arguments)) => {
            let (hosts, runtime) = prepare(cli, &arguments.targets, HostSelectionError::for_status)?;
            run_to_completion(runtime, async {
                clean::run(CommandContext::new(&cli.global, hosts, interaction())).await
            })
        }
        Some(Command::Status(arguments)) => {
            let (hosts, runtime) = prepare(cli, &arguments.targets, HostSelectionError::for_status)?;
            run_to_completion(runtime, async {
                status::run(CommandContext::new(&cli.global, hosts, interaction()), arguments).await
            })
        }
        Some(Command::Findings(arguments)) => {
            if let Some(recording) = &arguments.replay {
                return findings::replay(recording, arguments);
            }
            let (hosts, runtime) = prepare(cli, &arguments.targets, HostSelectionError::for_status)?;
            run_to_completion(runtime, async {
                findings::run(CommandContext::new(&cli.global, hosts, interaction()), arguments).await
            })
        }
        Some(Command::Free(arguments)) => {
            let (hosts, runtime) = prepare(cli, &arguments.targets, HostSelectionError::for_status)?;
            run_to_completion(runtime, async {
                free::run(CommandContext::new(&cli.global, hosts, interaction()), arguments).await
            })
        }
        Some(Command::Record(arguments)) => {
            let (hosts, runtime) = prepare(cli, &arguments.targets, HostSelectionError::for_status)?;
            run_to_completion(runtime, async {
                record::run(CommandContext::new(&cli.global, hosts, interaction()), arguments).await
            })
        }
        None => {
            let (hosts, runtime) = prepare(cli, &cli.targets, HostSelectionError::for_tui)?;
            run_to_completion(runtime, async {
                tui::event_loop::run(CommandContext::new(&cli.global, hosts, Interaction::Ask), &cli.screen).await
            })
        }
    }
}

/// Questions are asked where somebody can answer them.
fn interaction() -> Interaction {
    if super::terminal_prompts::is_interactive() { Interaction::Ask } else { Interaction::Refuse }
}

fn version() -> String {
    format!("{}\n", crate::collect::version_text())
}

/// The hosts that a command is for, and what reaches them.
fn prepare(
    cli: &Cli,
    targets: &[String],
    why_none: fn(HostSelectionError) -> CommandError,
) -> Result<(SelectedHosts, Runtime), CommandError> {
    let hosts = command_context::select_hosts(&cli.global, targets).map_err(why_none)?;
    let runtime = runtime(hosts.count())?;
    Ok((hosts, runtime))
}

/// A call of the system's that does not return, for a name server or a disk that does not answer, keeps no command from
/// ending for longer.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Runs a command to its end.
fn run_to_completion<T>(runtime: Runtime, command: impl Future<Output = T>) -> T {
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(END_LIMIT);
    result
}

/// Up to this many hosts share one thread with the screen.
const SINGLE_THREAD_HOSTS: usize = 64;

fn runtime(hosts: usize) -> Result<Runtime, CommandError> {
    // A host takes 4 ms of a core to log in, and half a millisecond a second from then on. Threads that wake each other
    // for that cost a twentieth more of CPU, and each has an arena of the allocator. A second one pays where the hosts
    // alone would keep the screen waiting.
    let mut builder = match hosts {
        ..=SINGLE_THREAD_HOSTS => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.map_err(|error| CommandError::failed(format!("cannot start: {error}")))
}
