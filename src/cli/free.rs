//! `gpufleet free`: GPUs that are free for the taking, and what to type to use them.

use super::command_context::CommandContext;
use super::exit::{INCOMPLETE, NOTHING_FREE};
use super::prompter::{self, Prompter};
use super::{CommandError, ExitSignals, OneShotFleet, print};
use crate::cli::arguments::FreeArgs;
use crate::collect::Collector;
use crate::diagnosis::StateTracker;
use crate::fleet::{Clock, FreeHost, GpuRequirements, HostId, HostUpdate, choose_gpus, free_gpus};
use crate::output::Report;
use crate::output::free::{FreeReport, json_line, text};
use std::process::ExitCode;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Looks for GPUs that suit, prints what to type, and tells by the exit code whether there are any.
pub async fn run(setup: CommandContext, arguments: &FreeArgs) -> Result<ExitCode, CommandError> {
    let CommandContext { hosts, source, ssh, clock, simulated, .. } = setup;
    let mut exit_signals =
        ExitSignals::new().map_err(|error| CommandError::failed(format!("cannot take signals: {error}")))?;
    let mut search = Search {
        one_shot: OneShotFleet::new(&hosts, simulated, clock.now()),
        tracker: StateTracker::default(),
        clock,
        prompter: ssh.map(Prompter::new),
        arguments,
    };
    let (collector, mut updates) = Collector::start(&hosts, source, clock);
    let found = tokio::select! {
        code = exit_signals.next() => return Ok(ExitCode::from(code)),
        found = search.run(&mut updates) => found,
    };
    // Connections end before anything is printed: a reader that stops reading holds no server's slot.
    drop(collector);
    search.print(found.as_deref())?;
    Ok(match found {
        Some(_) => ExitCode::SUCCESS,
        None if search.one_shot.all_reported() => ExitCode::from(NOTHING_FREE),
        None => ExitCode::from(INCOMPLETE),
    })
}

struct Search<'a> {
    one_shot: OneShotFleet,
    tracker: StateTracker,
    clock: Clock,
    prompter: Option<Prompter>,
    arguments: &'a FreeArgs,
}

impl Search<'_> {
    /// Takes updates until every host has reported or failed, or the time is over, questions not counted. With `--wait`
    /// it goes on until what is wished for is there.
    async fn run(&mut self, updates: &mut mpsc::Receiver<(HostId, HostUpdate)>) -> Option<Vec<FreeHost>> {
        let began = Instant::now();
        loop {
            let is_over = self.one_shot.is_complete();
            if is_over || self.arguments.wait {
                let found = self.find();
                // While hosts are still on their way a better one may come, unless it has been waited for long enough.
                if found.is_some() && (is_over || began.elapsed() >= self.arguments.timeout) {
                    return found;
                }
                if is_over && !self.arguments.wait {
                    return None;
                }
            }
            let waited = self.prompter.as_ref().map(Prompter::waited).unwrap_or_default();
            let is_asking = self.prompter.as_ref().is_some_and(Prompter::is_asking);
            let end = began + self.arguments.timeout + waited;
            let is_limited = !is_asking && (!self.arguments.wait || Instant::now() < end);
            tokio::select! {
                update = updates.recv() => match update {
                    Some((id, update)) => self.apply(id, update),
                    None => return self.find(),
                },
                () = prompter::step(self.prompter.as_mut()) => {}
                () = sleep_until(end), if is_limited => {
                    let found = self.find();
                    if found.is_some() || !self.arguments.wait {
                        return found;
                    }
                }
            }
        }
    }

    fn apply(&mut self, id: HostId, update: HostUpdate) {
        let now = self.clock.now();
        self.one_shot.apply(id, update, now);
        if let Some(host) = self.one_shot.fleet().host(id) {
            self.tracker.update(host, now);
        }
    }

    /// What suits: as many as are asked for, or all when no number is.
    fn find(&self) -> Option<Vec<FreeHost>> {
        let wish = GpuRequirements { memory_bytes: self.arguments.mem, model: self.arguments.model.clone() };
        let now = self.clock.now();
        let hosts = self.one_shot.fleet().hosts().iter();
        let free: Vec<FreeHost> =
            hosts.filter_map(|host| free_gpus(host, self.tracker.states(host.id), &wish, now)).collect();
        match self.arguments.count {
            Some(count) => choose_gpus(&free, count as usize, self.arguments.same_host),
            None => (!free.is_empty()).then_some(free),
        }
    }

    fn print(&self, found: Option<&[FreeHost]>) -> Result<(), CommandError> {
        let states = |id| self.tracker.states(id).to_vec();
        let report = Report { fleet: self.one_shot.fleet(), states: &states, findings: &[], now: self.clock.now() };
        let offer = FreeReport { report: &report, found };
        if self.arguments.json {
            return print(
                &json_line(&offer).map_err(|error| CommandError::failed(format!("cannot write JSON: {error}")))?,
            );
        }
        print(&text(&offer))
    }
}
