//! Something done once on every host, all at the same time, with prompts on the terminal: what `doctor` and `clean` are.

use super::command_context::CommandContext;
use super::prompter::{self, Prompter};
use super::{CommandError, ExitSignals, print};
use crate::collect::{OpenChannel, Source};
use crate::config::HostConfig;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Runs `errand` on every host and prints what each gives back, in the order of the hosts, as soon as it may be. `Err`
/// is printed too and makes the exit code 3.
pub(super) async fn run<F, R>(setup: CommandContext, what: &str, action: F) -> Result<ExitCode, CommandError>
where
    F: Fn(Arc<dyn OpenChannel>, Arc<HostConfig>) -> R,
    R: Future<Output = Result<String, String>> + Send + 'static,
{
    let CommandContext { hosts, source, ssh, .. } = setup;
    let Source::Ssh(open) = source else {
        return Err(CommandError::usage(format!(
            "`{what}` is for machines, not for the simulated fleet\n  hint: leave --demo out"
        )));
    };
    let mut exit_signals =
        ExitSignals::new().map_err(|error| CommandError::failed(format!("cannot take signals: {error}")))?;
    let mut prompter = ssh.map(Prompter::new);
    let mut tasks = JoinSet::new();
    for (place, host) in hosts.iter().enumerate() {
        let action = action(Arc::clone(&open), Arc::clone(host));
        tasks.spawn(async move { (place, action.await) });
    }
    let mut outcomes: Vec<Option<Result<String, String>>> = hosts.iter().map(|_| None).collect();
    let (mut printed, mut all_well) = (0, true);
    while printed < outcomes.len() {
        tokio::select! {
            code = exit_signals.next() => return Ok(ExitCode::from(code)),
            () = prompter::step(prompter.as_mut()) => {}
            Some(done) = tasks.join_next() => {
                let (place, outcome) =
                    done.map_err(|error| CommandError::failed(format!("cannot go on: {error}")))?;
                if let Some(slot) = outcomes.get_mut(place) {
                    *slot = Some(outcome);
                }
            }
        }
        // A question on the terminal is not torn apart.
        if prompter.as_ref().is_some_and(Prompter::is_asking) {
            continue;
        }
        while let Some(outcome) = outcomes.get_mut(printed).and_then(Option::take) {
            all_well &= outcome.is_ok();
            print(&outcome.unwrap_or_else(|text| text))?;
            printed += 1;
        }
    }
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::from(super::exit::INCOMPLETE) })
}
