//! `gpufleet status`: the fleet once.

use super::exit::INCOMPLETE;
use super::memory::MemoryFile;
use super::prompter::{self, Prompter};
use super::session::Session;
use super::{Failure, Gathering, Interrupts, print};
use crate::cli::StatusArgs;
use crate::collect::Collector;
use crate::diagnosis::{Engine, Finding};
use crate::fleet::{Clock, HostId, HostUpdate};
use crate::hosts::Thresholds;
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
pub async fn run(session: Session, arguments: &StatusArgs) -> Result<ExitCode, Failure> {
    let Session { hosts, source, ssh, clock, simulated, .. } = session;
    let mut interrupts =
        Interrupts::new().map_err(|error| Failure::nothing(format!("cannot take signals: {error}")))?;
    let mut gatherer = Gatherer {
        gathering: Gathering::new(&hosts, simulated, clock.now()),
        engine: Engine::new(Arc::new(Thresholds::default())),
        clock,
        prompter: ssh.map(Prompter::new),
    };
    if !simulated {
        // What an earlier run has seen says more of idle work than one look. A look like this one adds nothing to it.
        MemoryFile::peek(&Directories::find(), &mut gatherer.engine, clock.now());
    }
    let (collector, mut updates) = Collector::start(&hosts, source, clock);
    tokio::select! {
        code = interrupts.next() => return Ok(ExitCode::from(code)),
        () = gatherer.gather(&mut updates, arguments.timeout) => {}
    }
    // Connections end before anything is printed: a reader that stops reading holds no server's slot.
    drop(collector);
    gatherer.print(arguments.json)?;
    Ok(if gatherer.gathering.all_reported() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

struct Gatherer {
    gathering: Gathering,
    engine: Engine,
    clock: Clock,
    prompter: Option<Prompter>,
}

impl Gatherer {
    /// Takes updates until there is nothing left to wait for or the time is over, questions not counted.
    async fn gather(&mut self, updates: &mut mpsc::Receiver<(HostId, HostUpdate)>, timeout: Duration) {
        let began = Instant::now();
        while !self.gathering.is_complete() {
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
        self.gathering.apply(id, update, now);
        self.engine.evaluate_host(self.gathering.fleet(), id, now);
    }

    fn print(&mut self, as_json: bool) -> Result<(), Failure> {
        let now = self.clock.now();
        // What rests on several hosts, and on silence.
        self.engine.tick(self.gathering.fleet(), now);
        let states = |id| self.engine.states(id).to_vec();
        let findings: Vec<&Finding> = self.engine.findings().collect();
        let report = Report { fleet: self.gathering.fleet(), states: &states, findings: &findings, now };
        if as_json {
            return print(
                &json::line(&report).map_err(|error| Failure::nothing(format!("cannot write JSON: {error}")))?,
            );
        }
        let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let (no_color, term) = (variable("NO_COLOR"), variable("TERM"));
        let paint = Paint::of_terminal(io::stdout().is_terminal(), no_color.as_deref(), term.as_deref());
        print(&status::table(&report, paint))
    }
}
