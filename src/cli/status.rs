//! `gpufleet status`: prints the fleet once, or again and again with `--watch`.

use super::collector_answer::{CollectorAnswer, first_answer, next_answer};
use super::command_context::{ChosenCollector, CommandContext};
use super::exit::{INCOMPLETE, Written, stdout_paint, write_out};
use super::saved_state::SavedStateFile;
use super::status_csv::{self, CsvPrinter};
use super::terminal_prompts::{NextUpdate, Prompter};
use super::{CommandError, ExitSignals, OneShotFleet};
use crate::cli::arguments::StatusArgs;
use crate::collect::{HostTasks, HostUpdates};
use crate::config::Thresholds;
use crate::diagnosis::{Engine, Finding, FindingPhase};
use crate::fleet::{Clock, Moment};
use crate::output::paint::Tone;
use crate::output::{Report, json, status};
use crate::share::{Needed, NeededFacts, NeededFindings};
use crate::store::Directories;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};
use unicode_width::UnicodeWidthChar as _;

/// A condition that was seen for less than this is no finding yet: a single look cannot judge it.
const SHORTEST_FINDING: Duration = Duration::from_secs(10);

/// Waits for the fleet and prints it. The exit code tells whether every host reported.
pub async fn run(mut setup: CommandContext, arguments: &StatusArgs) -> Result<ExitCode, CommandError> {
    let mut printer = Printer {
        as_json: arguments.json,
        csv: arguments.csv.then(|| CsvPrinter::new(arguments.columns.as_ref())),
        style: RepeatStyle::of_stdout(),
        printed: 0,
    };
    let chosen = setup.collectors.pop();
    // Each question to a collector on another machine is a login.
    if arguments.watch.is_some() && chosen.as_ref().is_some_and(|chosen| !chosen.machine.is_local()) {
        let text =
            "--collector does not take --watch with `status`\n  hint: `gpufleet --collector HOST` shows the screen";
        return Err(CommandError::usage(text));
    }
    let chosen = chosen.as_ref();
    if let Some(answer) = first_answer(&mut setup, chosen, arguments.direct, printer.needed()).await?
        && let Some(code) = repeat_answers(&mut setup, chosen, answer, &mut printer, arguments.watch).await?
    {
        return Ok(code);
    }
    let CommandContext { hosts, source, ssh, clock, simulated, .. } = setup;
    let mut exit_signals = ExitSignals::new()?;
    let mut status_run = StatusRun {
        one_shot: OneShotFleet::new(&hosts, simulated, clock),
        engine: Engine::new(Arc::new(Thresholds::default())),
        clock,
        prompter: Prompter::new(ssh),
        printer,
    };
    if !simulated {
        // Idle work can be judged only with the state of earlier runs. One look is too short to add to that state.
        SavedStateFile::restore_only(&Directories::find(), &mut status_run.engine, clock.now());
    }
    let (host_tasks, mut updates) = HostTasks::start(&hosts, source, clock);
    tokio::select! {
        code = exit_signals.next() => return Ok(ExitCode::from(code)),
        () = status_run.gather(&mut updates, arguments.timeout) => {}
    }
    match arguments.watch {
        None => {
            // Close the connections first: a reader that stops reading must not hold a session on a server.
            drop(host_tasks);
            status_run.print(None)?;
        }
        Some(period) => tokio::select! {
            _ = exit_signals.next() => {}
            ended = status_run.repeat(&mut updates, period) => ended?,
        },
    }
    Ok(exit_code(status_run.one_shot.all_reported()))
}

/// The exit code tells whether every host reported.
fn exit_code(have_all_reported: bool) -> ExitCode {
    if have_all_reported { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) }
}

/// Prints the answer of a collector, and with a period asks it again and again. Returns the exit code, or `None` if the collector on
/// this machine does not answer any more.
async fn repeat_answers(
    setup: &mut CommandContext,
    chosen: Option<&ChosenCollector>,
    mut answer: CollectorAnswer,
    printer: &mut Printer,
    period: Option<Duration>,
) -> Result<Option<ExitCode>, CommandError> {
    let mut exit_signals = ExitSignals::new()?;
    loop {
        let is_read = printer.print_answer(&answer, period)? == Written::All;
        let code = Ok(Some(exit_code(answer.all_reported())));
        let Some(period) = period.filter(|_| is_read) else {
            answer.leave();
            return code;
        };
        answer = tokio::select! {
            _ = exit_signals.next() => return code,
            next = next_answer(setup, chosen, printer.needed(), period) => match next? {
                Some(answer) => answer,
                None => return Ok(None),
            },
        };
    }
}

struct StatusRun {
    one_shot: OneShotFleet,
    engine: Engine,
    clock: Clock,
    prompter: Prompter,
    printer: Printer,
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

    /// Prints the fleet every `period` until the reader of the output has gone away.
    async fn repeat(&mut self, updates: &mut HostUpdates, period: Duration) -> Result<(), CommandError> {
        self.one_shot.follow_links();
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut next = Instant::now();
        loop {
            // Output must not interrupt an open prompt.
            if Instant::now() >= next && !self.prompter.is_asking() {
                next = Instant::now() + period;
                if self.print(Some(period))? == Written::ReaderGone {
                    return Ok(());
                }
            }
            tokio::select! {
                update = self.prompter.next_update(updates, next - period, Some(period)) => match update {
                    NextUpdate::Update(id, update) => {
                        let now = self.clock.now();
                        self.one_shot.apply(id, update, now);
                        self.engine.evaluate_host(self.one_shot.fleet(), id, now);
                    }
                    NextUpdate::TimedOut => {}
                    NextUpdate::Closed => return Ok(()),
                },
                _ = tick.tick() => {
                    self.engine.tick(self.one_shot.fleet(), self.clock.now());
                }
            }
        }
    }

    fn print(&mut self, period: Option<Duration>) -> Result<Written, CommandError> {
        let now = self.clock.now();
        // Evaluates the rules that depend on several hosts or on silence.
        self.engine.tick(self.one_shot.fleet(), now);
        let states = |id| self.engine.states(id).to_vec();
        let findings: Vec<&Finding> =
            self.engine.findings().filter(|finding| is_seen_long_enough(finding, now)).collect();
        let report = Report { fleet: self.one_shot.fleet(), states: &states, findings: &findings, now };
        self.printer.print(&report, period)
    }
}

/// Whether a finding has started, or its condition has held for more than a single look.
fn is_seen_long_enough(finding: &Finding, now: Moment) -> bool {
    finding.phase != FindingPhase::Pending || finding.lasted(now) >= SHORTEST_FINDING
}

/// How a repeated report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RepeatStyle {
    /// Over the last one, cut to this many columns and rows.
    InPlace(u16, u16),
    /// Below the last one.
    Blocks,
}

impl RepeatStyle {
    fn of_stdout() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        // Without a terminal, crossterm starts `tput` twice.
        if is_dumb || !io::stdout().is_terminal() {
            return Self::Blocks;
        }
        match crossterm::terminal::size() {
            Ok((columns, rows)) if rows > 2 => Self::InPlace(columns, rows),
            _ => Self::Blocks,
        }
    }
}

struct Printer {
    as_json: bool,
    /// With `--csv`.
    csv: Option<CsvPrinter>,
    style: RepeatStyle,
    printed: u64,
}

impl Printer {
    /// The parts of a picture that are printed: the table has only the users of processes and the sentences of findings.
    fn needed(&self) -> Needed {
        match (self.as_json, &self.csv) {
            (false, None) => Needed { facts: NeededFacts::Owners, findings: NeededFindings::Sentences },
            _ => Needed::default(),
        }
    }

    /// Writes the answer of a collector.
    fn print_answer(&mut self, answer: &CollectorAnswer, period: Option<Duration>) -> Result<Written, CommandError> {
        let states = |id| answer.states(id);
        let findings = answer.findings(|finding| is_seen_long_enough(finding, answer.now));
        let report = Report { fleet: &answer.fleet, states: &states, findings: &findings, now: answer.now };
        self.write(&report, &answer.source_line(), period)
    }

    /// Writes a report; with a period, as one of several.
    fn print(&mut self, report: &Report<'_>, period: Option<Duration>) -> Result<Written, CommandError> {
        self.write(report, "", period)
    }

    /// Writes a report, as text with this last line.
    fn write(&mut self, report: &Report<'_>, source: &str, period: Option<Duration>) -> Result<Written, CommandError> {
        if let Some(csv) = &mut self.csv {
            if self.printed == 0 {
                status_csv::warn_of_hosts_without_lines(report);
            }
            self.printed += 1;
            return csv.print(report, None);
        }
        let text = if self.as_json {
            json::line(report).map_err(|error| CommandError::failed(format!("cannot encode JSON: {error}")))?
        } else {
            status::table(report, stdout_paint()) + source
        };
        let text = match (period, self.as_json) {
            (None, _) | (Some(_), true) => text,
            (Some(period), false) => {
                // The window may have changed its size.
                if let RepeatStyle::InPlace(..) = self.style {
                    self.style = RepeatStyle::of_stdout();
                }
                repeated(&text, &heading(report, period), self.style, self.printed == 0)
            }
        };
        self.printed += 1;
        write_out(&text)
    }
}

/// `every 5s  2025-11-14T14:02:31Z`
fn heading(report: &Report<'_>, period: Duration) -> String {
    let time = json::rfc3339(report.now).unwrap_or_default();
    stdout_paint().paint(Tone::Dim, &format!("every {}s  {time}", period.as_secs_f64()))
}

/// Returns a report as one of several: in place of the last one, or below it after an empty line.
fn repeated(text: &str, heading: &str, style: RepeatStyle, is_first: bool) -> String {
    match style {
        RepeatStyle::Blocks => format!("{}{heading}\n{text}", if is_first { "" } else { "\n" }),
        RepeatStyle::InPlace(columns, rows) => {
            let lines: Vec<&str> = std::iter::once(heading).chain(text.lines()).collect();
            // The last row stays empty for the prompt of the shell after Ctrl-C.
            let room = usize::from(rows) - 1;
            let more = format!("{} more lines", lines.len().saturating_sub(room - 1));
            let shown = if lines.len() > room { room - 1 } else { lines.len() };
            let last = (shown < lines.len()).then_some(more.as_str());
            // Lines are erased one by one: to clear the screen at once would flicker.
            let mut frame = String::from(if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" });
            for line in lines.into_iter().take(shown).chain(last) {
                frame += &cut(line, usize::from(columns));
                frame += "\x1b[K\r\n";
            }
            frame + "\x1b[J"
        }
    }
}

/// Cuts a line with SGR sequences to this many columns. One column stays empty, so that the terminal does not wrap.
fn cut(line: &str, columns: usize) -> String {
    let (mut text, mut width, mut is_sequence) = (String::new(), 0, false);
    for character in line.chars() {
        is_sequence |= character == '\x1b';
        width += if is_sequence { 0 } else { character.width().unwrap_or(0) };
        // Later sequences still apply: they switch the colour off.
        if width < columns || is_sequence {
            text.push(character);
        }
        is_sequence &= character != 'm';
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_follow_each_other_if_the_output_is_no_terminal() {
        let first = repeated("a\nb\n", "every 5s", RepeatStyle::Blocks, true);
        let second = repeated("a\nb\n", "every 5s", RepeatStyle::Blocks, false);
        assert_eq!(first + &second, "every 5s\na\nb\n\nevery 5s\na\nb\n");
    }

    #[test]
    fn a_repeat_replaces_the_last_one_on_a_terminal() {
        let screen = |texts: &[&str]| {
            let size = |cells| std::num::NonZero::new(cells).expect("a terminal has cells");
            let mut emulator = vt100::Parser::new(size(6), size(20), 0);
            for (index, text) in texts.iter().enumerate() {
                let frame = repeated(text, "every 5s", RepeatStyle::InPlace(20, 6), index == 0);
                emulator.process(frame.as_bytes());
            }
            emulator.screen().contents().trim_end().to_owned()
        };
        assert_eq!(screen(&["one\ntwo\nthree\n", "four\n"]), "every 5s\nfour");
        assert_eq!(screen(&["one\n", "four\nfive\n"]), "every 5s\nfour\nfive");
        let long = "a line that is longer than the terminal\nb\nc\nd\ne\nf\n";
        assert_eq!(cut("\x1b[1mabc\x1b[0m größe", 6), "\x1b[1mabc\x1b[0m g");
        assert_eq!(screen(&[long]), "every 5s\na line that is long\nb\nc\n3 more lines");
    }
}
