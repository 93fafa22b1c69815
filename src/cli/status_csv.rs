//! `gpufleet status --csv`: prints the samples as CSV, live or from a recording.

use super::CommandError;
use super::exit::{Written, warn, write_out};
use super::replay::{Replay, ReplayStopped};
use crate::config::Thresholds;
use crate::diagnosis::Finding;
use crate::fleet::recording::{Line, RecordedEvent};
use crate::fleet::{HostId, Moment};
use crate::output::Report;
use crate::output::csv::Columns;
use crate::wire::Message;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Prints the header once, then lines.
pub(super) struct CsvPrinter {
    columns: Columns,
    has_header: bool,
}

impl CsvPrinter {
    pub(super) fn new(columns: Option<&Columns>) -> Self {
        Self { columns: columns.cloned().unwrap_or_default(), has_header: false }
    }

    /// Prints the GPUs of all hosts, or of one. The first call also prints the header.
    pub(super) fn print(&mut self, report: &Report<'_>, only: Option<HostId>) -> Result<Written, CommandError> {
        let mut text = String::new();
        if !self.has_header {
            text += &self.columns.header().map_err(csv_failed)?;
        }
        text += &self.columns.lines(report, only).map_err(csv_failed)?;
        self.has_header = true;
        write_out(&text)
    }
}

/// The error of an encoder that fails.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn csv_failed(error: csv::Error) -> CommandError {
    CommandError::failed(format!("cannot encode CSV: {error}"))
}

/// Names the hosts that have no lines, on standard error.
pub(super) fn warn_of_hosts_without_lines(report: &Report<'_>) {
    for host in report.fleet.hosts().iter().filter(|host| host.gpus().len() == 0) {
        let driver_error = host.inventory.as_ref().and_then(|inventory| inventory.error.as_ref());
        match (host.link.error(), driver_error) {
            (Some(error), _) => warn(&format!("no lines of {}: {}", host.name(), error.message)),
            (None, Some(error)) => warn(&format!("no lines of {}: {}", host.name(), error.message)),
            (None, None) => warn(&format!("no lines of {}: no readings yet ({})", host.name(), host.link.word())),
        }
    }
}

/// Prints the samples of a recording: all of them, or the state of all hosts every `period` of the recording.
pub(super) fn replay(
    path: &Path,
    columns: Option<&Columns>,
    period: Option<Duration>,
) -> Result<ExitCode, CommandError> {
    let file = File::open(path).map_err(|error| ReplayStopped::open_error(path, &error))?;
    let mut printer = CsvPrinter::new(columns);
    let mut replay = Replay::new(Arc::new(Thresholds::default()));
    let mut next = period.unwrap_or_default();
    let played = replay.play_lines(BufReader::new(file), |replay, line| {
        let Line::Host(host_line) = &line else {
            replay.take(line);
            return Ok(());
        };
        if let Some(period) = period {
            while next.as_secs_f64() <= host_line.t {
                replay.tick_until(next.as_secs_f64());
                print_replay(&mut printer, replay, replay.moment(next), None)?;
                next += period;
            }
        }
        let sampled = match &host_line.event {
            RecordedEvent::Wire(Message::Snapshot(_)) if period.is_none() => Some(host_line.host.clone()),
            _ => None,
        };
        replay.take(line);
        let sampled = replay.fleet().hosts().iter().find(|host| sampled.as_ref() == Some(host.name()));
        match sampled.map(|host| host.id) {
            Some(id) => print_replay(&mut printer, replay, replay.now(), Some(id)),
            None => Ok(()),
        }
    });
    match played {
        Ok(()) | Err(ReplayStopped::ReaderGone) => Ok(ExitCode::SUCCESS),
        Err(stopped) => Err(stopped.into_error(path)),
    }
}

fn print_replay(
    printer: &mut CsvPrinter,
    replay: &Replay,
    now: Moment,
    only: Option<HostId>,
) -> Result<(), ReplayStopped> {
    let states = |id| replay.engine().states(id).to_vec();
    let findings: Vec<&Finding> = replay.engine().findings().collect();
    let report = Report { fleet: replay.fleet(), states: &states, findings: &findings, now };
    match printer.print(&report, only) {
        Ok(Written::All) => Ok(()),
        Ok(Written::ReaderGone) => Err(ReplayStopped::ReaderGone),
        Err(error) => Err(ReplayStopped::Print(error)),
    }
}
