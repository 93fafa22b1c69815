//! `gpufleet findings`: prints the findings after a while, as they change, or of a recording.

use super::background_writer::{BackgroundWriter, END_LIMIT};
use super::collector_answer::{CollectorAnswer, first_answer};
use super::command_context::CommandContext;
use super::exit::{FINDINGS_FIRING, INCOMPLETE, print_json, stdout_paint, warn};
use super::notify::Notifier;
use super::replay::{Replay, ReplayStopped};
use super::saved_state::SavedStateFile;
use super::terminal_prompts::{Prompter, wait_until};
use super::{CommandError, ExitSignals, print};
use crate::cli::arguments::{FindingsArgs, Level};
use crate::collect::{Command, HostTasks, HostUpdates};
use crate::config::Thresholds;
use crate::diagnosis::proof::investigations::Investigations;
use crate::diagnosis::{Engine, Finding, FindingPhase, Severity, Transition};
use crate::fleet::{Clock, Fleet, HostId, HostUpdate, Link, Moment};
use crate::output::findings::{self, FindingsReport};
use crate::output::paint::Paint;
use crate::share::{Needed, NeededFacts, NeededFindings};
use crate::store::Directories;
use crate::wire::{Reply, SafeText};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The facts of processes that a collector sends: findings name processes themselves.
const NEEDED: Needed = Needed { facts: NeededFacts::Nothing, findings: NeededFindings::All };
/// How long to watch the hosts without `--for`.
const DEFAULT_SPAN: Duration = Duration::from_secs(30);

/// Watches the hosts and prints the findings. The exit code tells whether a finding is firing.
pub async fn run(mut setup: CommandContext, arguments: &FindingsArgs) -> Result<ExitCode, CommandError> {
    if let Some(answer) = answer(&mut setup, arguments).await? {
        return print_answer(answer, arguments);
    }
    let CommandContext { hosts, source, ssh, clock, simulated, notifications, .. } = setup;
    let mut exit_signals = ExitSignals::new()?;
    let start = clock.now();
    let mut run = FindingsRun {
        fleet: Fleet::new(&hosts, simulated, start).with_clock_speed(clock.speed()),
        engine: Engine::new(Arc::new(Thresholds::default())),
        clock,
        start,
        printer: Printer::new(arguments.min_severity, arguments.json, start),
        // Only `--watch` notifies, since otherwise the findings are printed anyway; there is no screen to show a bell
        // on.
        investigations: arguments.watch.then(Investigations::default),
        notifier: arguments.watch.then(|| Notifier::new(&notifications, false, false)),
    };
    // The state of a simulated fleet is not saved.
    let mut state_file = None;
    if !simulated {
        let (file, message) = SavedStateFile::load(&Directories::find(), &mut run.engine, start);
        state_file = file.map(BackgroundWriter::new);
        if let Some(message) = message {
            warn(&message);
        }
    }
    let span = match (arguments.duration, arguments.watch) {
        (Some(span), _) => Some(span),
        (None, true) => None,
        (None, false) => Some(DEFAULT_SPAN),
    };
    let (host_tasks, mut updates) = HostTasks::start(&hosts, source, clock);
    let prompter = Prompter::new(ssh);
    let wall_time = span.map(|span| span.div_f64(clock.speed()));
    let code = tokio::select! {
        code = exit_signals.next() => Some(code),
        watched = run.watch(&host_tasks, &mut updates, prompter, wall_time, state_file.as_mut()) => {
            watched?;
            None
        }
    };
    // Close the connections first: a reader that stops reading must not hold a session on a server.
    drop(host_tasks);
    run.finish_hooks().await;
    let now = clock.now();
    if let Some(state_file) = state_file {
        let state = run.engine.to_saved_state(&run.fleet, now);
        if let Some(message) = state_file.finish(END_LIMIT, move |file| file.save(state, now)).await {
            warn(&message);
        }
    }
    match code {
        // With `--watch` everything is printed already. Without it, an interrupted run prints nothing.
        Some(code) if !arguments.watch => Ok(ExitCode::from(code)),
        _ => run.finish(arguments),
    }
}

/// The answer of a collector: of the one that `--collector` names, else of one on this machine. `--for` and `--watch` ask
/// for an observation by this program.
async fn answer(setup: &mut CommandContext, arguments: &FindingsArgs) -> Result<Option<CollectorAnswer>, CommandError> {
    let chosen = setup.collectors.pop();
    let observes = arguments.watch || arguments.duration.is_some();
    if chosen.is_some() && observes {
        let text = "a collector prints what it has found, so --watch and --for need hosts\n  hint: leave the option out, or \
                    name the hosts";
        return Err(CommandError::usage(text));
    }
    first_answer(setup, chosen.as_ref(), arguments.direct || observes, NEEDED).await
}

fn print_answer(answer: CollectorAnswer, arguments: &FindingsArgs) -> Result<ExitCode, CommandError> {
    let printer = Printer::new(arguments.min_severity, arguments.json, answer.now);
    let found = answer.findings(|finding| findings::is_shown(finding, printer.min_severity));
    let report = FindingsReport {
        fleet: &answer.fleet,
        findings: &found,
        not_judged: &answer.diagnosis.not_judged,
        too_little_history: &answer.diagnosis.too_little_history,
        observed: answer.observed(),
        now: answer.now,
    };
    if arguments.json {
        print_json(findings::line(&report))?;
    } else {
        print(&(findings::list(&report, printer.paint) + &answer.source_line()))?;
    }
    let code = exit_code(&found, &answer.fleet);
    answer.leave();
    Ok(code)
}

/// The exit code tells whether a finding is firing, else whether every host has reported.
fn exit_code(found: &[&Finding], fleet: &Fleet) -> ExitCode {
    let is_firing = |finding: &&Finding| matches!(finding.phase, FindingPhase::Firing | FindingPhase::Resolving);
    let have_all_reported = fleet
        .hosts()
        .iter()
        .all(|host| host.snapshot.is_some() && matches!(host.link, Link::Live | Link::Stale { .. }));
    match found.iter().copied().find(is_firing) {
        Some(_) => ExitCode::from(FINDINGS_FIRING),
        None if have_all_reported => ExitCode::SUCCESS,
        None => ExitCode::from(INCOMPLETE),
    }
}

/// Replays a recording and prints every change with its time.
pub fn replay(path: &Path, min_severity: Level, as_json: bool) -> Result<ExitCode, CommandError> {
    let file = File::open(path).map_err(|error| ReplayStopped::open_error(path, &error))?;
    let mut replay = Replay::new(Arc::new(Thresholds::default()));
    let printer = Printer::new(min_severity, as_json, Moment::default());
    let mut found = false;
    let played = replay.play(BufReader::new(file), |replay, transition| {
        found |= transition.to == FindingPhase::Firing && transition.severity >= printer.min_severity;
        let finding = replay.engine().finding_of(transition);
        printer.transition(transition, finding).map_err(ReplayStopped::Print)
    });
    for (name, misbehavior, first, last) in replay.misbehaviors() {
        warn(&findings::misbehavior(name, misbehavior, first, last));
    }
    match played {
        Ok(()) => Ok(if found { ExitCode::from(FINDINGS_FIRING) } else { ExitCode::SUCCESS }),
        Err(stopped) => Err(stopped.into_error(path)),
    }
}

/// The fleet and its diagnosis.
struct FindingsRun {
    fleet: Fleet,
    engine: Engine,
    clock: Clock,
    start: Moment,
    printer: Printer,
    /// The examinations of jobs that look hung, only with `--watch`.
    investigations: Option<Investigations>,
    /// Only with `--watch`.
    notifier: Option<Notifier>,
}

impl FindingsRun {
    /// Applies updates and ticks until the time is over. Time with an open prompt does not count.
    async fn watch(
        &mut self,
        host_tasks: &HostTasks,
        updates: &mut HostUpdates,
        mut prompter: Prompter,
        span: Option<Duration>,
        mut state_file: Option<&mut BackgroundWriter<SavedStateFile>>,
    ) -> Result<(), CommandError> {
        let began = Instant::now();
        // One second of the fleet's clock, but at most 20 ticks per second for a fast simulation.
        let second = Duration::from_secs(1).div_f64(self.clock.speed()).max(Duration::from_millis(50));
        let mut tick = interval(second);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let deadline = span.and_then(|span| prompter.deadline(began, span));
            let transitions = tokio::select! {
                biased;
                () = wait_until(deadline) => return Ok(()),
                message = failure(self.notifier.as_mut()) => {
                    warn(&message);
                    Vec::new()
                }
                _ = tick.tick() => {
                    let now = self.clock.now();
                    if let Some(state_file) = &mut state_file {
                        self.save_state(state_file, now);
                    }
                    let _nothing_to_ring = self.notifier.as_mut().and_then(|it| it.tick(&self.fleet, now));
                    let transitions = self.engine.tick(&self.fleet, now);
                    self.examine_suspects(host_tasks);
                    transitions
                }
                update = updates.recv() => match update {
                    Some((id, update)) => {
                        let now = self.clock.now();
                        if let HostUpdate::Reply(reply) = &update {
                            self.take_reply(id, reply, host_tasks);
                        }
                        self.fleet.apply(id, update, now);
                        self.engine.evaluate_host(&self.fleet, id, now)
                    }
                    None => return Ok(()),
                },
                () = prompter.step() => Vec::new(),
            };
            if let Some(notifier) = &mut self.notifier {
                notifier.take(&self.engine.notifications(&transitions));
                for transition in &transitions {
                    let finding = self.engine.finding_of(transition);
                    self.printer.transition(transition, finding)?;
                }
            }
        }
    }

    /// Sends the requests that are due about jobs that look hung.
    fn examine_suspects(&mut self, host_tasks: &HostTasks) {
        let Some(investigations) = &mut self.investigations else { return };
        let requests = investigations.requests_due(&self.fleet, &mut self.engine, None, self.clock.now());
        for (host, request) in requests {
            // A request that the task does not take fails like one without a reply.
            let _taken = host_tasks.command(host, Command::Request(request));
        }
    }

    /// Takes the reply to such a request.
    fn take_reply(&mut self, host: HostId, reply: &Reply, host_tasks: &HostTasks) {
        let Some(investigations) = &mut self.investigations else { return };
        if investigations.take_reply(host, reply, &self.fleet, &mut self.engine, self.clock.now()) {
            self.examine_suspects(host_tasks);
        }
    }

    /// Saves the state of the engine when it is due.
    fn save_state(&self, state_file: &mut BackgroundWriter<SavedStateFile>, now: Moment) {
        if let Some(message) = state_file.take_message() {
            warn(&message);
        }
        if state_file.idle_file().is_some_and(|file| file.is_due(now)) {
            let state = self.engine.to_saved_state(&self.fleet, now);
            state_file.start_write(move |file| file.save(state, now));
        }
    }

    /// Waits for running hooks.
    async fn finish_hooks(&mut self) {
        if let Some(notifier) = self.notifier.take() {
            for message in notifier.finish(&self.fleet, self.clock.now()).await {
                warn(&message);
            }
        }
    }

    fn finish(&self, arguments: &FindingsArgs) -> Result<ExitCode, CommandError> {
        let now = self.clock.now();
        let found: Vec<&Finding> =
            self.engine.findings().filter(|finding| findings::is_shown(finding, self.printer.min_severity)).collect();
        let report = FindingsReport {
            fleet: &self.fleet,
            findings: &found,
            not_judged: &self.engine.not_judged(),
            too_little_history: &self.engine.rules_with_too_little_history(&self.fleet),
            observed: now.since(self.start),
            now,
        };
        if !arguments.watch {
            if arguments.json {
                print_json(findings::line(&report))?;
            } else {
                print(&findings::list(&report, self.printer.paint))?;
            }
        }
        Ok(exit_code(&found, &self.fleet))
    }
}

/// Waits until a hook fails; forever without one.
async fn failure(notifier: Option<&mut Notifier>) -> SafeText {
    match notifier {
        Some(notifier) => notifier.failure().await,
        None => std::future::pending().await,
    }
}

/// Prints changes.
struct Printer {
    as_json: bool,
    min_severity: Severity,
    start: Moment,
    paint: Paint,
}

impl Printer {
    fn new(min_severity: Level, as_json: bool, start: Moment) -> Self {
        let min_severity = match min_severity {
            Level::Info => Severity::Info,
            Level::Warn => Severity::Warn,
            Level::Crit => Severity::Crit,
        };
        Self { as_json, min_severity, start, paint: stdout_paint() }
    }

    fn transition(&self, transition: &Transition, finding: Option<&Finding>) -> Result<(), CommandError> {
        if transition.severity < self.min_severity {
            return Ok(());
        }
        if !self.as_json {
            return print(&findings::transition(transition, self.start, self.paint));
        }
        print_json(findings::transition_line(transition, finding, self.start))
    }
}
