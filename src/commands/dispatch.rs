//! From the command line to the command.

use super::session::{self, Hosts, NoHosts, Session};
use super::{Failure, clean, doctor, explain, findings, free, init, print, record, status, watch};
use crate::cli::{Cli, Command};
use crate::ssh::Interaction;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Runs what the command line says.
pub fn run(cli: &Cli) -> Result<ExitCode, Failure> {
    if cli.version {
        print(&version())?;
        return Ok(ExitCode::SUCCESS);
    }
    cli.check().map_err(Failure::usage)?;
    match &cli.command {
        Some(Command::Init(arguments)) => init::run(&cli.global, arguments),
        Some(Command::Explain(arguments)) => explain::run(arguments),
        Some(Command::Doctor(arguments)) => {
            let (hosts, runtime) = begin(cli, &arguments.targets, NoHosts::for_status)?;
            to_the_end(runtime, async {
                let (session, remarks) = Session::with_remarks(&cli.global, hosts, interaction());
                doctor::run(session, remarks).await
            })
        }
        Some(Command::Clean(arguments)) => {
            let (hosts, runtime) = begin(cli, &arguments.targets, NoHosts::for_status)?;
            to_the_end(runtime, async { clean::run(Session::new(&cli.global, hosts, interaction())).await })
        }
        Some(Command::Status(arguments)) => {
            let (hosts, runtime) = begin(cli, &arguments.targets, NoHosts::for_status)?;
            to_the_end(runtime, async { status::run(Session::new(&cli.global, hosts, interaction()), arguments).await })
        }
        Some(Command::Findings(arguments)) => {
            if let Some(recording) = &arguments.replay {
                return findings::replay(recording, arguments);
            }
            let (hosts, runtime) = begin(cli, &arguments.targets, NoHosts::for_status)?;
            to_the_end(runtime, async {
                findings::run(Session::new(&cli.global, hosts, interaction()), arguments).await
            })
        }
        Some(Command::Free(arguments)) => {
            let (hosts, runtime) = begin(cli, &arguments.targets, NoHosts::for_status)?;
            to_the_end(runtime, async { free::run(Session::new(&cli.global, hosts, interaction()), arguments).await })
        }
        Some(Command::Record(arguments)) => {
            let (hosts, runtime) = begin(cli, &arguments.targets, NoHosts::for_status)?;
            to_the_end(runtime, async { record::run(Session::new(&cli.global, hosts, interaction()), arguments).await })
        }
        None => {
            let (hosts, runtime) = begin(cli, &cli.targets, NoHosts::for_watch)?;
            to_the_end(runtime, async {
                watch::run(Session::new(&cli.global, hosts, Interaction::Ask), &cli.screen).await
            })
        }
    }
}

/// Questions are asked where somebody can answer them.
fn interaction() -> Interaction {
    if super::questions::can_ask() { Interaction::Ask } else { Interaction::Refuse }
}

fn version() -> String {
    format!("{}\n", crate::collect::embedded::version_text())
}

/// The hosts that a command is for, and what reaches them.
fn begin(cli: &Cli, targets: &[String], why_none: fn(NoHosts) -> Failure) -> Result<(Hosts, Runtime), Failure> {
    let hosts = session::hosts(&cli.global, targets).map_err(why_none)?;
    let runtime = runtime(hosts.count())?;
    Ok((hosts, runtime))
}

/// A call of the system's that does not return, for a name server or a disk that does not answer, keeps no command from
/// ending for longer.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Runs a command to its end.
fn to_the_end<T>(runtime: Runtime, command: impl Future<Output = T>) -> T {
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(END_LIMIT);
    result
}

/// Up to this many hosts share one thread with the screen.
const HOSTS_OF_ONE_THREAD: usize = 64;

fn runtime(hosts: usize) -> Result<Runtime, Failure> {
    // A host takes 4 ms of a core to log in, and half a millisecond a second from then on. Threads that wake each other
    // for that cost a twentieth more of CPU, and each has an arena of the allocator. A second one pays where the hosts
    // alone would keep the screen waiting.
    let mut builder = match hosts {
        ..=HOSTS_OF_ONE_THREAD => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.map_err(|error| Failure::nothing(format!("cannot start: {error}")))
}
