//! `gpufleet record FILE`: writes the updates of all hosts to a file for replay.

use super::command_context::CommandContext;
use super::exit::INCOMPLETE;
use super::terminal_prompts::{NextUpdate, Prompter};
use super::{CommandError, ExitSignals};
use crate::cli::arguments::RecordArgs;
use crate::collect::{HostTasks, HostUpdates};
use crate::fleet::recording::{Line, Recorder, Redactor, encode};
use crate::fleet::{Clock, Fleet, HostId, HostUpdate};
use crate::store::LineFile;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// Records until a signal arrives or the time is over. The exit code tells whether every host sent readings.
pub async fn run(setup: CommandContext, arguments: &RecordArgs) -> Result<ExitCode, CommandError> {
    let CommandContext { hosts, source, ssh, clock, simulated, .. } = setup;
    let mut exit_signals = ExitSignals::new()?;
    let file = LineFile::create(&arguments.file).map_err(CommandError::failed)?;
    let start = clock.now();
    let redactor = arguments.redact.then(Redactor::default);
    let mut recording = Recording {
        fleet: Fleet::new(&hosts, simulated, start).with_clock_speed(clock.speed()),
        recorder: Recorder::new(start, redactor),
        file,
        clock,
        lines: 0,
        bytes: 0,
    };
    let started = jiff::Timestamp::from_second(start.unix.as_secs().cast_signed()).map(|time| time.to_string());
    recording.append(&Line::Start { started: started.unwrap_or_default().into() })?;
    let (host_tasks, mut updates) = HostTasks::start(&hosts, source, clock);
    let wall_time = arguments.duration.map(|duration| duration.div_f64(clock.speed()));
    tokio::select! {
        _ = exit_signals.next() => {}
        written = recording.write(&mut updates, Prompter::new(ssh), wall_time) => written?,
    }
    drop(host_tasks);
    recording.finish()
}

struct Recording {
    /// The state of each host, for the summary at the end.
    fleet: Fleet,
    recorder: Recorder,
    file: LineFile,
    clock: Clock,
    lines: u64,
    bytes: u64,
}

impl Recording {
    /// Writes updates until the time is over. Time with an open prompt does not count.
    async fn write(
        &mut self,
        updates: &mut HostUpdates,
        mut prompter: Prompter,
        duration: Option<Duration>,
    ) -> Result<(), CommandError> {
        let began = Instant::now();
        while let NextUpdate::Update(id, update) = prompter.next_update(updates, began, duration).await {
            self.take(id, update)?;
        }
        Ok(())
    }

    fn take(&mut self, id: HostId, update: HostUpdate) -> Result<(), CommandError> {
        let now = self.clock.now();
        let Some(name) = self.fleet.host(id).map(|host| host.name().clone()) else { return Ok(()) };
        for line in self.recorder.take(id, &name, update.clone(), now) {
            self.append(&line)?;
        }
        self.fleet.apply(id, update, now);
        Ok(())
    }

    fn append(&mut self, line: &Line) -> Result<(), CommandError> {
        let bytes = encode(line).map_err(|error| CommandError::failed(format!("cannot encode JSON: {error}")))?;
        self.file.append(&bytes).map_err(CommandError::failed)?;
        self.lines += 1;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Prints how much was recorded and which hosts are missing.
    fn finish(self) -> Result<ExitCode, CommandError> {
        self.file.finish().map_err(CommandError::failed)?;
        let hosts = self.fleet.hosts();
        let missing: Vec<_> = hosts.iter().filter(|host| host.received_at.is_none()).collect();
        eprintln!(
            "recorded {} of {} hosts, {} lines, {:.1} MB",
            hosts.len() - missing.len(),
            hosts.len(),
            self.lines,
            self.bytes as f64 / 1e6
        );
        for host in &missing {
            match host.link.error() {
                Some(error) => eprintln!("  {}: {}", host.name(), error.message),
                None => eprintln!("  {}: no readings yet ({})", host.name(), host.link.word()),
            }
        }
        Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
    }
}
