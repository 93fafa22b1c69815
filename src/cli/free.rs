//! `gpufleet free`: prints free GPUs and the commands to use them.

use super::collector_answer::{CollectorAnswer, first_answer, next_answer};
use super::command_context::{ChosenCollector, CommandContext};
use super::exit::{INCOMPLETE, NOTHING_FREE, print_json};
use super::terminal_prompts::{NextUpdate, Prompter};
use super::{CommandError, ExitSignals, OneShotFleet, print};
use crate::cli::arguments::FreeArgs;
use crate::collect::{HostTasks, HostUpdates};
use crate::diagnosis::StateTracker;
use crate::fleet::{
    Clock, Fleet, FreeHost, GpuRequirements, GpuState, HostId, HostUpdate, Moment, choose_gpus, free_gpus,
};
use crate::output::Report;
use crate::output::free::{FreeReport, json_line, text};
use crate::share::{Needed, NeededFacts, NeededFindings};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// The parts of a picture that are printed: the states of GPUs.
const NEEDED: Needed = Needed { facts: NeededFacts::Nothing, findings: NeededFindings::Nothing };
/// The period of the questions to a collector with `--wait`.
const ASK_PERIOD: Duration = Duration::from_secs(2);

/// Searches for free GPUs that meet the requirements and prints them. The exit code tells whether there are any.
pub async fn run(mut setup: CommandContext, arguments: &FreeArgs) -> Result<ExitCode, CommandError> {
    let chosen = setup.collectors.pop();
    if let Some(answer) = first_answer(&mut setup, chosen.as_ref(), arguments.direct, NEEDED).await?
        && let Some(code) = search_answers(&mut setup, chosen.as_ref(), answer, arguments).await?
    {
        return Ok(code);
    }
    let CommandContext { hosts, source, ssh, clock, simulated, .. } = setup;
    let mut exit_signals = ExitSignals::new()?;
    let mut search = Search {
        one_shot: OneShotFleet::new(&hosts, simulated, clock),
        tracker: StateTracker::default(),
        clock,
        prompter: Prompter::new(ssh),
        arguments,
    };
    let (host_tasks, mut updates) = HostTasks::start(&hosts, source, clock);
    let found = tokio::select! {
        code = exit_signals.next() => return Ok(ExitCode::from(code)),
        found = search.run(&mut updates) => found,
    };
    // Close the connections first: a reader that stops reading must not hold a session on a server.
    drop(host_tasks);
    search.print(found.as_deref())?;
    Ok(match found {
        Some(_) => ExitCode::SUCCESS,
        None if search.one_shot.all_reported() => ExitCode::from(NOTHING_FREE),
        None => ExitCode::from(INCOMPLETE),
    })
}

/// Searches the answers of a collector, with `--wait` until one has enough free GPUs. Returns the exit code, or `None` if the
/// collector on this machine does not answer any more.
async fn search_answers(
    setup: &mut CommandContext,
    chosen: Option<&ChosenCollector>,
    mut answer: CollectorAnswer,
    arguments: &FreeArgs,
) -> Result<Option<ExitCode>, CommandError> {
    let mut exit_signals = ExitSignals::new()?;
    loop {
        let found = find(&answer.fleet, &|id| answer.states(id), arguments, answer.now);
        if found.is_some() || !arguments.wait {
            let states = |id| answer.states(id);
            let report = Report { fleet: &answer.fleet, states: &states, findings: &[], now: answer.now };
            let free_report = FreeReport { report: &report, found: found.as_deref() };
            if arguments.json {
                print_json(json_line(&free_report))?;
            } else {
                print(&(text(&free_report) + &answer.source_line()))?;
            }
            let code = match found {
                Some(_) => ExitCode::SUCCESS,
                None if answer.all_reported() => ExitCode::from(NOTHING_FREE),
                None => ExitCode::from(INCOMPLETE),
            };
            answer.leave();
            return Ok(Some(code));
        }
        let next = tokio::select! {
            code = exit_signals.next() => return Ok(Some(ExitCode::from(code))),
            next = next_answer(setup, chosen, NEEDED, ASK_PERIOD) => next?,
        };
        let Some(next) = next else { return Ok(None) };
        answer = next;
    }
}

/// Returns as many matching GPUs as requested, or all of them if no number is given.
fn find(
    fleet: &Fleet,
    states: &dyn Fn(HostId) -> Vec<(GpuState, Option<Moment>)>,
    arguments: &FreeArgs,
    now: Moment,
) -> Option<Vec<FreeHost>> {
    let requirements = GpuRequirements { memory_bytes: arguments.mem, model: arguments.model.clone() };
    let hosts = fleet.hosts().iter();
    let free: Vec<FreeHost> = hosts.filter_map(|host| free_gpus(host, &states(host.id), &requirements, now)).collect();
    match arguments.count {
        Some(count) => choose_gpus(&free, count as usize, arguments.same_host),
        None => (!free.is_empty()).then_some(free),
    }
}

struct Search<'a> {
    one_shot: OneShotFleet,
    tracker: StateTracker,
    clock: Clock,
    prompter: Prompter,
    arguments: &'a FreeArgs,
}

impl Search<'_> {
    /// Applies updates until every host has reported or failed, or the timeout passes. With `--wait` the search goes on
    /// until it finds something. Time with an open prompt does not count.
    async fn run(&mut self, updates: &mut HostUpdates) -> Option<Vec<FreeHost>> {
        let began = Instant::now();
        let (timeout, wait) = (self.arguments.timeout, self.arguments.wait);
        let mut has_timed_out = false;
        loop {
            let is_complete = self.one_shot.is_complete();
            if is_complete || wait {
                let found = self.find();
                // Before the timeout, a host that has not reported yet may offer better GPUs.
                if found.is_some() && (is_complete || began.elapsed() >= timeout) {
                    return found;
                }
                if is_complete && !wait {
                    return None;
                }
            }
            match self.prompter.next_update(updates, began, (!has_timed_out).then_some(timeout)).await {
                NextUpdate::Update(id, update) => self.apply(id, update),
                NextUpdate::Closed => return self.find(),
                NextUpdate::TimedOut => {
                    has_timed_out = true;
                    let found = self.find();
                    if found.is_some() || !wait {
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

    fn find(&self) -> Option<Vec<FreeHost>> {
        let states = |id| self.tracker.states(id).to_vec();
        find(self.one_shot.fleet(), &states, self.arguments, self.clock.now())
    }

    fn print(&self, found: Option<&[FreeHost]>) -> Result<(), CommandError> {
        let states = |id| self.tracker.states(id).to_vec();
        let report = Report { fleet: self.one_shot.fleet(), states: &states, findings: &[], now: self.clock.now() };
        let free_report = FreeReport { report: &report, found };
        if self.arguments.json { print_json(json_line(&free_report)) } else { print(&text(&free_report)) }
    }
}
