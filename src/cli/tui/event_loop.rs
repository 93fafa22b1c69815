//! `gpufleet [TARGET]...`: the event loop of the screen.
//!
//! ```text
//! keys, host tasks, prompts, the tick --Event--> App::update --Effect--> here
//!                                                    |
//!                                                  draw: once when all hosts have sent readings, at once for a key
//! ```

use super::clipboard::Clipboard;
use super::history_source::{HistorySource, find_host, host_name};
use super::keyboard::{self, TerminalReply};
use super::persistence::{LogFile, PersistentFiles, SignalLog, ViewFile};
use super::redraw_scheduler::{FrameBudget, RedrawScheduler, SuspendDetector};
use super::settings::{read_preferences, settings, settings_notice, utc_offset_seconds};
use super::terminal::print_error;
use super::terminal_manager::{JobControlEvent, JobControlSignals, TerminalInput, TerminalManager};
use crate::app::{App, Effect, Event, SettingsFile};
use crate::cli::arguments::{HistoryArgs, ScreenArgs, Theme};
use crate::cli::command_context::CommandContext;
use crate::cli::connections::{Connections, follow_collector};
use crate::cli::exit::INTERRUPTED;
use crate::cli::heap::MemoryRelease;
use crate::cli::notify::Notifier;
use crate::cli::saved_state::SavedStateFile;
use crate::cli::{CommandError, ExitSignals};
use crate::collect::{Command, HostTasks, HostUpdates, NewHosts, arrival_window};
use crate::config::HostConfig;
use crate::diagnosis::Engine;
use crate::fleet::{Clock, Fleet, HostId, Link};
use crate::share::JobVerdict;
use crate::ssh::{Context, PromptEvent};
use crate::store::Directories;
use crate::ui;
use crate::wire::SafeText;
use crossterm::event::{Event as TerminalEvent, KeyEventKind, MouseButton, MouseEventKind};
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The longest time between two ticks. More than a second, so that a tick does not come just before a frame for readings, which
/// would be another one.
const TICK_PERIOD: Duration = Duration::from_millis(1150);
/// A tick that is due this soon is done with a frame for readings, so that the frame shows both.
const EARLY_TICK: Duration = Duration::from_millis(400);

/// How long to wait for the terminal's reply about its background.
const QUERY_LIMIT: Duration = Duration::from_millis(200);

/// Shows the fleet until the user quits, at first the history of `history`.
///
/// # Errors
/// Standard output is not a terminal, or the terminal is gone; or there is no history.
pub async fn run(
    setup: CommandContext,
    arguments: &ScreenArgs,
    history: Option<&HistoryArgs>,
) -> Result<ExitCode, CommandError> {
    let directories = Directories::find();
    let (preferences, settings_errors) = read_preferences(&directories);
    let log = arguments.log.as_deref().map(LogFile::open).transpose()?;
    let code = show(setup, arguments, history, &preferences, settings_errors.as_deref(), log).await?;
    if let Some(settings_errors) = settings_errors {
        // The screen showed only one line of it.
        print_error(&format!(
            "gpufleet: the default settings were used because of these mistakes:\n{}\n",
            settings_errors.trim_end()
        ));
    }
    Ok(code)
}

async fn show(
    mut setup: CommandContext,
    arguments: &ScreenArgs,
    history: Option<&HistoryArgs>,
    preferences: &SettingsFile,
    settings_errors: Option<&str>,
    log: Option<LogFile>,
) -> Result<ExitCode, CommandError> {
    let cannot_show = |error: io::Error| {
        CommandError::failed(format!(
            "cannot show the screen: {error}\n  hint: `gpufleet status` prints the fleet once"
        ))
    };
    let relayed = follow_collector(&mut setup, history.map(host_name)).await?;
    let opening =
        history.map(|arguments| find_host(arguments, setup.hosts.iter().map(|host| &host.name))).transpose()?;
    let CommandContext { hosts, source, ssh, clock, simulated, notifications, .. } = setup;
    let (context, prompts) = match ssh {
        Some((context, prompts)) => (Some(context), Some(prompts)),
        None => (None, None),
    };
    let now = clock.now();
    let directories = Directories::find();
    let mut engine = Engine::default();
    // The state of a simulated fleet is neither loaded nor saved.
    let (state_file, message) =
        if simulated { (None, None) } else { SavedStateFile::load(&directories, &mut engine, now) };
    let (view, view_state, view_message) =
        if simulated { (None, None, None) } else { ViewFile::load(&directories, now) };
    let signals = if simulated { None } else { SignalLog::find(&directories) };
    let (connections, updates, histories, new_hosts, verdicts) = if let Some(relayed) = relayed {
        if history.is_some() && !relayed.hosts.has_history() {
            return Err(CommandError::failed(NO_REMOTE_HISTORY));
        }
        let histories = HistorySource::Relay(relayed.histories);
        let (new_hosts, verdicts) = (Some(relayed.new_hosts), Some(relayed.verdicts));
        (Connections::Relayed(relayed.hosts), relayed.updates, histories, new_hosts, verdicts)
    } else {
        let histories = HistorySource::find(history, simulated)?;
        let (host_tasks, updates) = HostTasks::start(&hosts, source, clock);
        (Connections::Direct(host_tasks), updates, histories, None, None)
    };
    let exit_signals = ExitSignals::new()?;
    let job_control_signals = JobControlSignals::new().map_err(cannot_show)?;
    // From here on the terminal's settings are changed. A signal waits for the event loop, which restores them.
    let reply = query_background(arguments, preferences).await;
    let settings = settings(arguments, preferences, &|name| std::env::var(name).ok(), reply.is_light);
    let mut app = App::new(Fleet::new(&hosts, simulated, now).with_clock_speed(clock.speed()), settings, engine, now);
    app.apply_settings_file(preferences);
    if let Some(view_state) = view_state {
        app.restore_view_state(&view_state);
        app.apply_settings_file(preferences);
    }
    if has_history(&connections, &histories) {
        app.offer_history();
    }
    if let Some((host, gpu)) = opening {
        app.open_history(host, gpu);
    }
    for message in [message, view_message, settings_errors.map(settings_notice)].into_iter().flatten() {
        app.report_message(message, now);
    }
    let is_tmux = std::env::var_os("TMUX").is_some_and(|name| !name.is_empty());
    // The theme handles NO_COLOR; crossterm would drop bold and reverse as well.
    crossterm::style::force_color_output(true);
    // A person who starts the program watches it.
    connections.record_input();
    let mut event_loop = EventLoop {
        terminal: TerminalManager::enter(preferences.mouse, reply).map_err(cannot_show)?,
        app,
        clock,
        redraw: RedrawScheduler::new(window(&hosts, clock, None)),
        hosts,
        next_tick: Instant::now(),
        suspend_detector: (!simulated).then(|| SuspendDetector::new(clock.now())),
        files: PersistentFiles::new(state_file, view, log, signals),
        notifier: Notifier::new(&notifications, true, is_tmux),
        clipboard: Clipboard::find((!simulated).then_some(&directories), &|name| std::env::var(name).ok()),
        memory_release: MemoryRelease::default(),
        connections,
        context,
        exit_signals,
        job_control_signals,
        prompts,
        updates,
        histories,
        new_hosts,
        verdicts,
    };
    let code = event_loop.run().await.map_err(cannot_show)?;
    let EventLoop { terminal, mut app, files, notifier, connections: _connections, .. } = event_loop;
    // Restore the terminal first, because hooks may take a moment.
    drop(terminal);
    for message in notifier.finish(app.live_fleet(), clock.now()).await {
        print_error(&format!("gpufleet: {message}\n"));
    }
    files.finish(&mut app, clock.now()).await;
    Ok(code)
}

/// Error: `gpufleet history` through a collector that has nothing to show.
const NO_REMOTE_HISTORY: &str = "the collector keeps no history, or it is older than this gpufleet\n  hint: install this \
                                 version there, and start `gpufleet collect` without --demo";

/// The running screen.
struct EventLoop {
    terminal: TerminalManager,
    app: App,
    hosts: Vec<Arc<HostConfig>>,
    clock: Clock,
    redraw: RedrawScheduler,
    /// When the work of `tick` is due at the latest.
    next_tick: Instant,
    /// `None` for a simulation, which has no connections that a suspended computer would break.
    suspend_detector: Option<SuspendDetector>,
    files: PersistentFiles,
    notifier: Notifier,
    clipboard: Clipboard,
    memory_release: MemoryRelease,
    connections: Connections,
    /// `None` for a simulation.
    context: Option<Arc<Context>>,
    exit_signals: ExitSignals,
    job_control_signals: JobControlSignals,
    prompts: Option<mpsc::Receiver<PromptEvent>>,
    updates: HostUpdates,
    histories: HistorySource,
    /// `None` without a collector.
    new_hosts: Option<mpsc::Receiver<NewHosts>>,
    /// The verdicts of a collector.
    verdicts: Option<mpsc::Receiver<(HostId, Vec<JobVerdict>)>>,
}

/// The next step of the loop.
enum LoopEvent {
    /// An event for the app, or only a redraw.
    Event(Option<Event>),
    /// About a second has passed.
    Tick,
    /// The program ends with this exit code.
    End(ExitCode),
}

impl EventLoop {
    /// Runs until the user quits, a signal arrives, or the terminal is gone.
    async fn run(&mut self) -> io::Result<ExitCode> {
        self.update_size()?;
        self.redraw.request_now(Instant::now());
        loop {
            let now = Instant::now();
            if !self.terminal.is_shell_running() && self.redraw.is_due(now) && self.terminal.screen.writer().is_idle() {
                if self.redraw.are_readings_due(now) && now + EARLY_TICK >= self.next_tick {
                    let event = self.tick()?;
                    if self.take(Some(event)).await? {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                self.draw()?;
            }
            let event = match self.next().await? {
                LoopEvent::Event(event) => event,
                LoopEvent::Tick => Some(self.tick()?),
                LoopEvent::End(code) => return Ok(code),
            };
            if self.take(event).await? {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        self.app.refresh_derived_state();
        let mut drawn = ui::Drawn::default();
        self.terminal.screen.draw(self.app.size(), |frame| drawn = ui::draw(&self.app, frame, now))?;
        self.app.set_process_scroll_limit(drawn.process_scroll_limit);
        self.redraw.mark_drawn(Instant::now());
        Ok(())
    }

    /// Reads the terminal's size. No resize event arrives while another program uses the terminal.
    fn update_size(&mut self) -> io::Result<()> {
        let (columns, rows) = crossterm::terminal::size()?;
        self.app.update(Event::Resized(columns, rows), self.clock.now());
        Ok(())
    }

    /// Waits for the next step. Signals have priority over the keyboard, and everything over the hosts: their updates may
    /// arrive faster than they can be applied.
    async fn next(&mut self) -> io::Result<LoopEvent> {
        let is_shell_running = self.terminal.is_shell_running();
        let writer = self.terminal.screen.writer().clone();
        let next_tick = self.next_tick;
        let frame = async {
            // While the terminal accepts no output, no frame is drawn and everything else goes on.
            writer.idle().await;
            self.redraw.wait_until_due().await;
        };
        Ok(tokio::select! {
            biased;
            code = self.exit_signals.next() => {
                // Ctrl-C at a prompt of `ssh` is meant for `ssh`.
                if is_shell_running && code == INTERRUPTED {
                    self.terminal.interrupt_shell();
                    LoopEvent::Event(None)
                } else {
                    LoopEvent::End(ExitCode::from(code))
                }
            }
            change = self.job_control_signals.next() => {
                match change {
                    JobControlEvent::Stop => self.terminal.suspend(&mut self.job_control_signals)?,
                    JobControlEvent::Continued => self.terminal.restore()?,
                }
                self.update_size()?;
                self.redraw.request_now(Instant::now());
                LoopEvent::Event(None)
            }
            input = self.terminal.next() => match input {
                TerminalInput::Input(Some(Ok(input))) => {
                    self.connections.record_input();
                    LoopEvent::Event(self.event_of_input(input))
                }
                // The keyboard reader ends or fails when the terminal is gone.
                TerminalInput::Input(Some(Err(error))) => return Err(error),
                TerminalInput::Input(None) => LoopEvent::End(ExitCode::SUCCESS),
                TerminalInput::ShellEnded(message) => {
                    self.terminal.reacquire()?;
                    self.update_size()?;
                    LoopEvent::Event(Some(Event::ActionFinished(SafeText::new(&message))))
                }
            },
            Some((id, verdicts)) = received(&mut self.verdicts) => {
                let verdicts = verdicts.into_iter().map(|one| (one.job, one.verdict)).collect();
                LoopEvent::Event(Some(Event::Judged(id, verdicts)))
            }
            Some(new) = received(&mut self.new_hosts) => LoopEvent::Event(self.add_hosts(new)),
            Some(prompt) = received(&mut self.prompts) => LoopEvent::Event(Some(match prompt {
                PromptEvent::Opened(prompt) => Event::Prompted(prompt),
                PromptEvent::Withdrawn(id) => Event::PromptWithdrawn(id),
            })),
            message = self.notifier.failure() => LoopEvent::Event(Some(Event::ProblemReported(message))),
            message = self.clipboard.next_message() => LoopEvent::Event(Some(Event::ActionFinished(message))),
            reply = self.histories.next() => LoopEvent::Event(Some(Event::HistoryRead(reply))),
            () = tokio::time::sleep_until(next_tick) => LoopEvent::Tick,
            Some((id, update)) = self.updates.recv() => LoopEvent::Event(Some(Event::Host(id, Box::new(update)))),
            () = frame, if !is_shell_running => LoopEvent::Event(None),
        })
    }

    fn event_of_input(&self, event: TerminalEvent) -> Option<Event> {
        match event {
            TerminalEvent::Key(key) if key.kind != KeyEventKind::Release => Some(Event::Key(key)),
            TerminalEvent::Paste(text) => Some(Event::Pasted(text)),
            TerminalEvent::Mouse(mouse) => Some(match mouse.kind {
                MouseEventKind::Down(MouseButton::Left) => {
                    let action = ui::action_at(&self.app, mouse.column, mouse.row, self.clock.now());
                    action.map_or(Event::Mouse(mouse), Event::Clicked)
                }
                _ => Event::Mouse(mouse),
            }),
            TerminalEvent::Resize(columns, rows) => Some(Event::Resized(columns, rows)),
            TerminalEvent::Key(_) | TerminalEvent::FocusGained | TerminalEvent::FocusLost => None,
        }
    }

    /// Does the work that is due about once a second.
    fn tick(&mut self) -> io::Result<Event> {
        #[cfg(debug_assertions)]
        panic_for_test();
        self.next_tick = Instant::now() + TICK_PERIOD;
        let now = self.clock.now();
        if let Some(sequence) = self.notifier.tick(self.app.live_fleet(), now) {
            self.terminal.send_or_defer(sequence)?;
        }
        self.app.settings.utc_offset_seconds = utc_offset_seconds();
        self.files.tick(&mut self.app, now);
        self.memory_release.tick();
        if self.suspend_detector.as_mut().is_some_and(|detector| detector.was_suspended(now)) {
            self.command_all(&Command::Retry);
            return Ok(Event::Resumed);
        }
        Ok(Event::Ticked)
    }

    /// Passes an event and the waiting host updates to the app, and performs the effects. Returns whether to quit.
    async fn take(&mut self, event: Option<Event>) -> io::Result<bool> {
        let mut next = event;
        let mut is_over = false;
        let mut budget = FrameBudget::new(Instant::now());
        while let Some(event) = next {
            self.redraw.request_for(&event, Instant::now());
            for effect in self.app.update(event, self.clock.now()) {
                is_over |= matches!(effect, Effect::Quit);
                self.perform(effect).await?;
            }
            // Take the waiting updates before the next draw.
            next = if budget.allows_another(Instant::now()) {
                self.updates.try_recv().map(|(id, update)| Event::Host(id, Box::new(update)))
            } else {
                None
            };
        }
        let hosts = self.app.live_fleet().hosts();
        let live_hosts = || hosts.iter().filter(|host| host.link == Link::Live).count();
        self.redraw.complete_readings(live_hosts, Instant::now());
        Ok(is_over)
    }

    async fn perform(&mut self, effect: Effect) -> io::Result<()> {
        let now = self.clock.now();
        match effect {
            Effect::Repaint if self.terminal.is_shell_running() => {}
            Effect::Repaint => {
                self.update_size()?;
                self.terminal.screen.invalidate();
            }
            Effect::Suspend => {
                self.terminal.suspend(&mut self.job_control_signals)?;
                self.update_size()?;
                self.redraw.request_now(Instant::now());
            }
            Effect::Shell(id) => {
                if let Some(host) = self.hosts.get(id.0 as usize)
                    && let Some(message) = self.terminal.start_remote_shell(host, self.context.as_ref()).await?
                {
                    self.update_size()?;
                    self.app.update(Event::ActionFinished(SafeText::new(&message)), now);
                }
            }
            Effect::Mouse(is_on) => self.terminal.screen.set_mouse(is_on)?,
            Effect::Copy(copied) => self.terminal.screen.send(&self.clipboard.take(&copied))?,
            Effect::ReadHistory(query) => {
                if let Some(query) = self.histories.request(query, now)
                    && let Connections::Relayed(relayed) = &self.connections
                {
                    // If too many requests wait, the app asks again later.
                    let _taken = relayed.request_history(query);
                }
            }
            Effect::Notify(news) => self.notifier.take(&news),
            Effect::SaveDiagnosisState => self.files.save_diagnosis_state(&self.app, now),
            Effect::LogSignal(line) => self.files.log_signal(&line),
            Effect::Retry(id) => self.command(id, Command::Retry),
            Effect::SetInterval(interval) => {
                self.redraw.set_window(window(&self.hosts, self.clock, Some(interval)));
                self.command_all(&Command::Interval(interval));
            }
            Effect::Request(id, request) => self.command(id, Command::Request(request)),
            Effect::Answer(id, answer) => {
                if let Some(context) = &self.context {
                    context.answer(id, answer);
                }
            }
            // `take` ends the loop.
            Effect::Quit => {}
        }
        Ok(())
    }

    /// Adds hosts that a collector has listed. Their updates arrive after the event.
    fn add_hosts(&mut self, new: NewHosts) -> Option<Event> {
        let Connections::Relayed(relayed) = &mut self.connections else { return None };
        let placed = new.place(&mut self.hosts);
        let order = relayed.add(new, placed.clone());
        if has_history(&self.connections, &self.histories) {
            self.app.offer_history();
        }
        self.redraw.set_window(window(&self.hosts, self.clock, None));
        (!placed.is_empty()).then_some(Event::HostsAdded(placed, order))
    }

    fn command(&self, id: HostId, command: Command) {
        // A host task that has ended takes no commands; its link state already shows that.
        let _taken = self.connections.command(id, command);
    }

    fn command_all(&self, command: &Command) {
        (0..self.hosts.len()).for_each(|id| self.command(HostId(id as u32), command.clone()));
    }
}

/// Whether a store answers requests for histories.
fn has_history(connections: &Connections, histories: &HistorySource) -> bool {
    match connections {
        Connections::Relayed(relayed) => relayed.has_history(),
        Connections::Direct(_) => !matches!(histories, HistorySource::Nowhere),
    }
}

/// Returns the time within which the readings of one interval arrive. Without `interval`, each host has the one of its
/// configuration.
fn window(hosts: &[Arc<HostConfig>], clock: Clock, interval: Option<Duration>) -> Duration {
    let shortest = interval.or_else(|| hosts.iter().map(|host| host.interval).min()).unwrap_or_default();
    arrival_window(hosts.len(), shortest.div_f64(clock.speed()))
}

/// Queries the terminal's background if no option or setting names a theme.
async fn query_background(arguments: &ScreenArgs, preferences: &SettingsFile) -> TerminalReply {
    let is_open = arguments.theme.is_none_or(|theme| theme == Theme::Auto) && preferences.theme.is_none();
    // Without a terminal there is nothing to query; `TerminalManager::enter` reports the error.
    if !is_open || !io::stdout().is_terminal() {
        return TerminalReply::default();
    }
    tokio::task::spawn_blocking(|| keyboard::query_background(QUERY_LIMIT)).await.unwrap_or_default()
}

async fn received<T>(receiver: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match receiver {
        Some(receiver) => receiver.recv().await,
        None => std::future::pending().await,
    }
}

/// Panics once if `GPUFLEET_TEST_PANIC` is set: in the event loop (`loop`) or in a task (`task`). The tests of the whole
/// program check that a panic restores the terminal and that its message, which could come from a host, is cleaned.
/// A panic in a function that cannot unwind aborts.
#[cfg(debug_assertions)]
extern "C" fn never_unwinds() {
    panic!("on purpose, in a task \x1b]0;pwned\x07");
}

#[cfg(debug_assertions)]
fn panic_for_test() {
    static DONE: std::sync::Once = std::sync::Once::new();
    let wanted = std::env::var("GPUFLEET_TEST_PANIC").unwrap_or_default();
    DONE.call_once(|| match wanted.as_str() {
        "loop" => panic!("on purpose, in the loop \x1b]0;pwned\x07"),
        "task" => drop(tokio::spawn(async { panic!("on purpose, in a task \x1b]0;pwned\x07") })),
        "abort" => std::process::abort(),
        "no-unwind" => drop(tokio::spawn(async { never_unwinds() })),
        _ => {}
    });
}
