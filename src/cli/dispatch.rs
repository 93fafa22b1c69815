//! Runs the subcommand that the command line names.

use super::command_context::{
    ChosenCollector, CommandContext, HostSelectionError, SelectedHosts, choose_collectors, select_hosts,
};
use super::exit::end_by_fatal_signal;
use super::terminal_prompts::is_interactive;
use super::{
    CommandError, clean, collect, completions, doctor, explain, findings, free, heap, init, man, print, record, relay,
    report, schema, status, status_csv, tui, why,
};
use crate::cli::arguments::{Cli, CollectArgs, Command, DoctorArgs, FindingsArgs, StatusArgs};
use crate::config::Notifications;
use crate::ssh::Interaction;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Up to this many hosts share one thread with the screen.
const SINGLE_THREAD_HOSTS: usize = 64;
/// The program ends after this time even if a system call on a worker thread does not return, for example a name lookup
/// or a write to a file server that does not answer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the subcommand, or the screen without one.
pub fn run(cli: &Cli) -> Result<ExitCode, CommandError> {
    if cli.version {
        print(&format!("{}\n", crate::collect::version_text()))?;
        return Ok(ExitCode::SUCCESS);
    }
    cli.check().map_err(CommandError::usage)?;
    heap::configure();
    match &cli.command {
        None => {
            let (hosts, collectors, runtime) = prepare(cli, &cli.targets, HostSelectionError::for_tui)?;
            run_to_completion(runtime, async {
                let mut setup = CommandContext::new(&cli.global, hosts, Interaction::Ask);
                setup.collectors = collectors;
                tui::event_loop::run(setup, &cli.screen, None).await
            })
        }
        Some(Command::History(arguments)) => {
            let (hosts, collectors, runtime) = prepare(cli, &arguments.all_targets(), HostSelectionError::for_tui)?;
            run_to_completion(runtime, async {
                let mut setup = CommandContext::new(&cli.global, hosts, Interaction::Ask);
                setup.collectors = collectors;
                tui::event_loop::run(setup, &arguments.screen, Some(arguments)).await
            })
        }
        Some(Command::Relay(arguments)) => relay::run(arguments),
        Some(Command::Init(arguments)) => init::run(&cli.global, arguments),
        Some(Command::Explain(arguments)) => explain::run(arguments),
        Some(Command::Completions(arguments)) => completions::run(arguments),
        Some(Command::Man(arguments)) => man::run(arguments),
        Some(Command::Report(arguments)) => report::run(arguments),
        Some(Command::Schema(arguments)) => schema::run(arguments),
        Some(Command::Collect(arguments)) if arguments.print_unit => collect::print_unit(&cli.global, arguments),
        Some(Command::Collect(CollectArgs { import: Some(recording), store, .. })) => {
            collect::import(recording, store.as_deref())
        }
        Some(Command::Findings(FindingsArgs { replay: Some(recording), min_severity, json, .. })) => {
            findings::replay(recording, *min_severity, *json)
        }
        Some(Command::Status(StatusArgs { replay: Some(recording), columns, watch, .. })) => {
            status_csv::replay(recording, columns.as_ref(), *watch)
        }
        Some(command) => run_on_hosts(cli, command),
    }
}

/// Runs a subcommand that connects to hosts.
fn run_on_hosts(cli: &Cli, command: &Command) -> Result<ExitCode, CommandError> {
    let (hosts, collectors, runtime) = prepare(cli, command.targets(), HostSelectionError::for_status)?;
    // A service cannot answer prompts, so the collector refuses them also when somebody tries it on a terminal.
    let is_unattended = matches!(command, Command::Collect(_) | Command::Doctor(DoctorArgs { unattended: true, .. }));
    let asks = is_interactive() && !is_unattended;
    let interaction = if asks { Interaction::Ask } else { Interaction::Refuse };
    run_to_completion(runtime, async {
        if let Command::Doctor(arguments) = command {
            let (setup, trace_events) = CommandContext::with_trace_events(&cli.global, hosts, interaction);
            return doctor::run(setup, trace_events, arguments.unattended).await;
        }
        let mut setup = CommandContext::new(&cli.global, hosts, interaction);
        setup.collectors = collectors;
        match command {
            Command::Clean(_) => clean::run(setup).await,
            Command::Status(arguments) => status::run(setup, arguments).await,
            Command::Findings(arguments) => findings::run(setup, arguments).await,
            Command::Free(arguments) => free::run(setup, arguments).await,
            Command::Why(arguments) => why::run(setup, arguments).await,
            Command::Collect(arguments) => collect::run(setup, &cli.global, arguments).await,
            Command::Record(arguments) => record::run(setup, arguments).await,
            Command::Doctor(_)
            | Command::Report(_)
            | Command::History(_)
            | Command::Relay(_)
            | Command::Init(_)
            | Command::Explain(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Schema(_) => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Selects the hosts and starts a runtime for them.
fn prepare(
    cli: &Cli,
    targets: &[String],
    selection_error: fn(HostSelectionError) -> CommandError,
) -> Result<(SelectedHosts, Vec<ChosenCollector>, Runtime), CommandError> {
    let (hosts, collectors) = if cli.global.collectors.is_empty() {
        let selected = select_hosts(&cli.global, targets);
        let has_none = matches!(selected, Err(HostSelectionError::NoTarget));
        match (has_none && cli.accepts_local_collector()).then(ChosenCollector::on_this_machine).flatten() {
            Some(here) => (SelectedHosts::Real(Vec::new(), Notifications::default()), vec![here]),
            None => (selected.map_err(selection_error)?, Vec::new()),
        }
    } else {
        let (chosen, notifications) = choose_collectors(&cli.global, targets).map_err(selection_error)?;
        (SelectedHosts::Real(Vec::new(), notifications), chosen)
    };
    // A host takes 4 ms of a core to log in and 0.5 ms per second after that. Threads that wake each other cost 5 % more
    // CPU, and each has its own allocator arena. A second thread pays only if the hosts would delay the screen.
    let mut builder = match hosts.count() {
        ..=SINGLE_THREAD_HOSTS => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::failed(format!("cannot start the async runtime: {error}")))?;
    Ok((hosts, collectors, runtime))
}

fn run_to_completion<T>(runtime: Runtime, command: impl Future<Output = T>) -> T {
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    end_by_fatal_signal();
    result
}
