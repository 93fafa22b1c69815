//! `gpufleet status`: prints the fleet once.

use super::command_context::CommandContext;
use super::exit::{INCOMPLETE, print_json, stdout_paint};
use super::saved_state::SavedStateFile;
use super::terminal_prompts::{NextUpdate, Prompter};
use super::{CommandError, ExitSignals, OneShotFleet, print};
use crate::cli::arguments::StatusArgs;
use crate::collect::{Collector, HostUpdates};
use crate::config::Thresholds;
use crate::diagnosis::{Engine, Finding};
use crate::fleet::Clock;
use crate::output::{Report, json, status};
use crate::store::Directories;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Waits for the fleet and prints it. The exit code tells whether every host reported.
pub async fn run(setup: CommandContext, arguments: &StatusArgs) -> Result<ExitCode, CommandError> {
    let CommandContext { hosts, source, ssh, clock, simulated, .. } = setup;
    let mut exit_signals = ExitSignals::new()?;
    let mut status_run = StatusRun {
        one_shot: OneShotFleet::new(&hosts, simulated, clock.now()),
        engine: Engine::new(Arc::new(Thresholds::default())),
        clock,
        prompter: Prompter::new(ssh),
    };
    if !simulated {
        // Idle work can be judged only with the state of earlier runs. One look is too short to add to that state.
        SavedStateFile::restore_only(&Directories::find(), &mut status_run.engine, clock.now());
    }
    let (collector, mut updates) = Collector::start(&hosts, source, clock);
    tokio::select! {
        code = exit_signals.next() => return Ok(ExitCode::from(code)),
        () = status_run.gather(&mut updates, arguments.timeout) => {}
    }
    // Close the connections first: a reader that stops reading must not hold a session on a server.
    drop(collector);
    status_run.print(arguments.json)?;
    Ok(if status_run.one_shot.all_reported() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

struct StatusRun {
    one_shot: OneShotFleet,
    engine: Engine,
    clock: Clock,
    prompter: Prompter,
}

impl StatusRun {
    /// Applies updates until the fleet is complete or the timeout passes. Time with an open prompt does not count.
    async fn gather(&mut self, updates: &mut HostUpdates, timeout: Duration) {
        let began = Instant::now();
        while !self.one_shot.is_complete() {
            let NextUpdate::Update(id, update) = self.prompter.next_update(updates, began, Some(timeout)).await else {
                return;
            };
            let now = self.clock.now();
            self.one_shot.apply(id, update, now);
            self.engine.evaluate_host(self.one_shot.fleet(), id, now);
        }
    }

    fn print(&mut self, as_json: bool) -> Result<(), CommandError> {
        let now = self.clock.now();
        // Evaluates the rules that depend on several hosts or on silence.
        self.engine.tick(self.one_shot.fleet(), now);
        let states = |id| self.engine.states(id).to_vec();
        let findings: Vec<&Finding> = self.engine.findings().collect();
        let report = Report { fleet: self.one_shot.fleet(), states: &states, findings: &findings, now };
        if as_json { print_json(json::line(&report)) } else { print(&status::table(&report, stdout_paint())) }
    }
}
