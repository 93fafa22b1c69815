//! `gpufleet status`: the fleet once.

use super::command_context::CommandContext;
use super::diagnosis_memory::MemoryFile;
use super::exit::INCOMPLETE;
use super::prompter::{self, Prompter};
use super::{CommandError, ExitSignals, OneShotFleet, print};
use crate::cli::arguments::StatusArgs;
use crate::collect::Collector;
use crate::config::Thresholds;
use crate::diagnosis::{Engine, Finding};
use crate::fleet::{Clock, HostId, HostUpdate};
use crate::output::paint::Paint;
use crate::output::{Report, json, status};
use crate::store::Directories;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Waits for the fleet, prints it once, and tells by the exit code whether every host reported.
pub async fn run(setup: CommandContext, arguments: &StatusArgs) -> Result<ExitCode, CommandError> {
    let CommandContext { hosts, source, ssh, clock, simulated, .. } = setup;
    let mut exit_signals =
        ExitSignals::new().map_err(|error| CommandError::failed(format!("cannot take signals: {error}")))?;
    let mut status_run = StatusRun {
        one_shot: OneShotFleet::new(&hosts, simulated, clock.now()),
        engine: Engine::new(Arc::new(Thresholds::default())),
        clock,
        prompter: ssh.map(Prompter::new),
    };
    if !simulated {
        // What an earlier run has seen says more of idle work than one look. A look like this one adds nothing to it.
        MemoryFile::peek(&Directories::find(), &mut status_run.engine, clock.now());
    }
    let (collector, mut updates) = Collector::start(&hosts, source, clock);
    tokio::select! {
        code = exit_signals.next() => return Ok(ExitCode::from(code)),
        () = status_run.gather(&mut updates, arguments.timeout) => {}
    }
    // Connections end before anything is printed: a reader that stops reading holds no server's slot.
    drop(collector);
    status_run.print(arguments.json)?;
    Ok(if status_run.one_shot.all_reported() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

struct StatusRun {
    one_shot: OneShotFleet,
    engine: Engine,
    clock: Clock,
    prompter: Option<Prompter>,
}

impl StatusRun {
    /// Takes updates until there is nothing left to wait for or the time is over, questions not counted.
    async fn gather(&mut self, updates: &mut mpsc::Receiver<(HostId, HostUpdate)>, timeout: Duration) {
        let began = Instant::now();
        while !self.one_shot.is_complete() {
            let waited = self.prompter.as_ref().map(Prompter::waited).unwrap_or_default();
            let is_asking = self.prompter.as_ref().is_some_and(Prompter::is_asking);
            tokio::select! {
                update = updates.recv() => match update {
                    Some((id, update)) => self.apply(id, update),
                    None => return,
                },
                () = prompter::step(self.prompter.as_mut()) => {}
                () = sleep_until(began + timeout + waited), if !is_asking => return,
            }
        }
    }

    fn apply(&mut self, id: HostId, update: HostUpdate) {
        let now = self.clock.now();
        self.one_shot.apply(id, update, now);
        self.engine.evaluate_host(self.one_shot.fleet(), id, now);
    }

    fn print(&mut self, as_json: bool) -> Result<(), CommandError> {
        let now = self.clock.now();
        // What rests on several hosts, and on silence.
        self.engine.tick(self.one_shot.fleet(), now);
        let states = |id| self.engine.states(id).to_vec();
        let findings: Vec<&Finding> = self.engine.findings().collect();
        let report = Report { fleet: self.one_shot.fleet(), states: &states, findings: &findings, now };
        if as_json {
            return print(
                &json::line(&report).map_err(|error| CommandError::failed(format!("cannot write JSON: {error}")))?,
            );
        }
        let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let (no_color, term) = (variable("NO_COLOR"), variable("TERM"));
        let paint = Paint::of_terminal(io::stdout().is_terminal(), no_color.as_deref(), term.as_deref());
        print(&status::table(&report, paint))
    }
}
