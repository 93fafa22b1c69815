//! `gpufleet [TARGET]...`: the screen. The event loop, and nothing that could be decided without it.
//!
//! ```text
//! keys, host tasks, prompts, the tick --Event--> App::update --Effect--> here
//!                                                    |
//!                                                  draw, at most 3 a second unless somebody waits for it
//! ```

use super::clipboard::Clipboard;
use super::keyboard::{self, TerminalReply};
use super::persistence::{LogFile, PersistentFiles, SignalLog, ViewFile};
use super::redraw_scheduler::{RedrawScheduler, SuspendDetector};
use super::settings::{read_preferences, settings, settings_notice, utc_offset_seconds};
use super::terminal::complain;
use super::terminal_manager::{JobControlEvent, JobControlSignals, TerminalInput, TerminalManager};
use crate::app::{App, Effect, Event, SettingsFile};
use crate::cli::arguments::{ScreenArgs, Theme};
use crate::cli::command_context::CommandContext;
use crate::cli::exit::INTERRUPTED;
use crate::cli::notify::Notifier;
use crate::cli::saved_state::SavedStateFile;
use crate::cli::{CommandError, ExitSignals};
use crate::collect::{Collector, Command};
use crate::config::HostConfig;
use crate::diagnosis::Engine;
use crate::fleet::{Clock, Fleet, HostId, HostUpdate};
use crate::ssh::{Context, PromptEvent};
use crate::store::Directories;
use crate::ui;
use crate::wire::SafeText;
use crossterm::event::{Event as TerminalEvent, KeyEventKind};
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

/// Events taken in a row before the screen gets its turn.
const BATCH: usize = 256;
/// A terminal that does not say what its background is like is not waited for any longer.
const QUERY_LIMIT: Duration = Duration::from_millis(200);

/// Shows the fleet until the person leaves.
///
/// # Errors
/// When standard output is no terminal, or the terminal goes away.
pub async fn run(setup: CommandContext, arguments: &ScreenArgs) -> Result<ExitCode, CommandError> {
    let directories = Directories::find();
    let (preferences, wrong) = read_preferences(&directories);
    let log = arguments.log.as_deref().map(LogFile::open).transpose()?;
    let code = show(setup, arguments, &preferences, wrong.as_deref(), log).await?;
    if let Some(wrong) = wrong {
        // On the screen there was a line of it.
        complain(&format!("gpufleet: the built-in settings held:\n{}\n", wrong.trim_end()));
    }
    Ok(code)
}

async fn show(
    setup: CommandContext,
    arguments: &ScreenArgs,
    preferences: &SettingsFile,
    wrong: Option<&str>,
    log: Option<LogFile>,
) -> Result<ExitCode, CommandError> {
    let cannot_show = |error: io::Error| {
        CommandError::failed(format!(
            "cannot show the screen: {error}\n  hint: `gpufleet status` prints the fleet once"
        ))
    };
    let CommandContext { hosts, source, ssh, clock, simulated, notifications } = setup;
    let (context, prompts) = match ssh {
        Some((context, prompts)) => (Some(context), Some(prompts)),
        None => (None, None),
    };
    let now = clock.now();
    let directories = Directories::find();
    let mut engine = Engine::default();
    // What is simulated is not remembered.
    let (memory, message) = if simulated { (None, None) } else { SavedStateFile::load(&directories, &mut engine, now) };
    let (view, remembered, forgotten) = if simulated { (None, None, None) } else { ViewFile::load(&directories, now) };
    let signals = if simulated { None } else { SignalLog::find(&directories) };
    let (collector, updates) = Collector::start(&hosts, source, clock);
    let exit_signals = ExitSignals::new()?;
    let job_control_signals = JobControlSignals::new().map_err(cannot_show)?;
    // From here on the terminal is not as it was; a signal waits for the loop, which gives it back.
    let reply = query_background(arguments, preferences).await;
    let settings = settings(arguments, preferences, &|name| std::env::var(name).ok(), reply.is_light);
    let mut app = App::new(Fleet::new(&hosts, simulated, now), settings, engine, now);
    app.apply_settings_file(preferences);
    if let Some(remembered) = remembered {
        app.restore_view_state(&remembered);
        app.apply_settings_file(preferences);
    }
    for message in [message, forgotten, wrong.map(settings_notice)].into_iter().flatten() {
        app.report_message(message, now);
    }
    let is_tmux = std::env::var_os("TMUX").is_some_and(|name| !name.is_empty());
    // NO_COLOR is the theme's business; crossterm would also drop bold and reverse.
    crossterm::style::force_color_output(true);
    let mut event_loop = EventLoop {
        terminal: TerminalManager::enter(preferences.mouse, reply).map_err(cannot_show)?,
        app,
        hosts: &hosts,
        clock,
        redraw: RedrawScheduler::new(),
        sleep: (!simulated).then(|| SuspendDetector::new(clock.now())),
        files: PersistentFiles::new(memory, view, log, signals),
        notifier: Notifier::new(&notifications, true, is_tmux),
        clipboard: Clipboard::find((!simulated).then_some(&directories), &|name| std::env::var(name).ok()),
        collector: &collector,
        context,
        exit_signals,
        job_control_signals,
        prompts,
        updates,
    };
    let code = event_loop.run().await.map_err(cannot_show)?;
    let EventLoop { terminal, mut app, files, notifier, .. } = event_loop;
    // The terminal is given back first: a hook may take a moment.
    drop(terminal);
    for message in notifier.finish(app.live_fleet(), clock.now()).await {
        complain(&format!("gpufleet: {message}\n"));
    }
    files.finish(&mut app, clock.now()).await;
    Ok(code)
}

/// The running screen: what it hears, what it shows, and what it does for the app.
struct EventLoop<'a> {
    terminal: TerminalManager,
    app: App,
    hosts: &'a [Arc<HostConfig>],
    clock: Clock,
    redraw: RedrawScheduler,
    /// `None` for a simulation: it has no connections that a sleep could break.
    sleep: Option<SuspendDetector>,
    files: PersistentFiles,
    notifier: Notifier,
    clipboard: Clipboard,
    collector: &'a Collector,
    /// `None` for a simulation.
    context: Option<Arc<Context>>,
    exit_signals: ExitSignals,
    job_control_signals: JobControlSignals,
    prompts: Option<mpsc::Receiver<PromptEvent>>,
    updates: mpsc::Receiver<(HostId, HostUpdate)>,
}

/// What comes next.
enum LoopEvent {
    /// Something for the app, or only a frame.
    Event(Option<Event>),
    /// The second has passed.
    Tick,
    /// The end, with this exit code.
    End(ExitCode),
}

impl EventLoop<'_> {
    /// Until the person leaves, a signal ends the program, or the terminal is gone.
    async fn run(&mut self) -> io::Result<ExitCode> {
        self.measure()?;
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        self.redraw.request(true);
        loop {
            if !self.terminal.is_shell_running() && self.redraw.is_due() && self.terminal.screen.writer().is_idle() {
                let now = self.clock.now();
                self.app.refresh_derived_state();
                self.terminal.screen.draw(self.app.size(), |frame| ui::draw(&self.app, frame, now))?;
                self.redraw.mark_drawn();
            }
            let event = match self.next(&mut tick).await? {
                LoopEvent::Event(event) => event,
                LoopEvent::Tick => Some(self.tick()?),
                LoopEvent::End(code) => return Ok(code),
            };
            if self.take(event).await? {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Learns the terminal's size anew: nobody tells of a change while another program has the terminal.
    fn measure(&mut self) -> io::Result<()> {
        let (columns, rows) = crossterm::terminal::size()?;
        self.app.update(Event::Resized(columns, rows), self.clock.now());
        Ok(())
    }

    /// Waits for whatever comes first; a signal goes before all else, and the keyboard before the hosts.
    async fn next(&mut self, tick: &mut Interval) -> io::Result<LoopEvent> {
        let is_lent = self.terminal.is_shell_running();
        let writer = self.terminal.screen.writer().clone();
        let frame = async {
            // While the terminal takes nothing no frame is drawn, and everything else goes on.
            writer.idle().await;
            self.redraw.wait_until_due().await;
        };
        Ok(tokio::select! {
            biased;
            code = self.exit_signals.next() => {
                // Ctrl-C at a prompt of ssh's is for ssh.
                if is_lent && code == INTERRUPTED { LoopEvent::Event(None) } else { LoopEvent::End(ExitCode::from(code)) }
            }
            change = self.job_control_signals.next() => {
                match change {
                    JobControlEvent::Stop => self.terminal.suspend(&mut self.job_control_signals)?,
                    JobControlEvent::Continued => self.terminal.restore()?,
                }
                self.measure()?;
                self.redraw.request(true);
                LoopEvent::Event(None)
            }
            heard = self.terminal.next() => match heard {
                TerminalInput::Input(Some(Ok(input))) => LoopEvent::Event(terminal_event(input)),
                // The terminal is gone: its reader ends or fails, and there is nobody to show anything to.
                TerminalInput::Input(Some(Err(error))) => return Err(error),
                TerminalInput::Input(None) => LoopEvent::End(ExitCode::SUCCESS),
                TerminalInput::ShellEnded(message) => {
                    self.terminal.reacquire()?;
                    self.measure()?;
                    LoopEvent::Event(Some(Event::ActionFinished(SafeText::new(&message))))
                }
            },
            Some(prompt) = next_prompt(&mut self.prompts) => LoopEvent::Event(Some(match prompt {
                PromptEvent::Opened(prompt) => Event::Prompted(prompt),
                PromptEvent::Withdrawn(id) => Event::PromptWithdrawn(id),
            })),
            Some((id, update)) = self.updates.recv() => LoopEvent::Event(Some(Event::Host(id, Box::new(update)))),
            message = self.notifier.failure() => LoopEvent::Event(Some(Event::ProblemReported(message))),
            message = self.clipboard.next_message() => LoopEvent::Event(Some(Event::ActionFinished(message))),
            _ = tick.tick() => LoopEvent::Tick,
            () = frame, if !is_lent => LoopEvent::Event(None),
        })
    }

    /// What is done each second, whatever happens.
    fn tick(&mut self) -> io::Result<Event> {
        #[cfg(debug_assertions)]
        panic_for_test();
        let now = self.clock.now();
        if let Some(sequence) = self.notifier.tick(self.app.live_fleet(), now) {
            self.terminal.send_or_defer(sequence)?;
        }
        self.app.settings.utc_offset_seconds = utc_offset_seconds();
        self.files.tick(&mut self.app, now);
        if self.sleep.as_mut().is_some_and(|detector| detector.slept(now)) {
            self.command_all(&Command::Retry);
            return Ok(Event::Resumed);
        }
        Ok(Event::Ticked)
    }

    /// Gives the app an event and what hosts have sent meanwhile, and does what it wants. Returns whether it wants to end.
    async fn take(&mut self, event: Option<Event>) -> io::Result<bool> {
        let mut next = event;
        let mut is_over = false;
        for _ in 0..BATCH {
            let Some(event) = next else { break };
            let urgent = self.redraw.is_urgent(&event);
            self.redraw.request(urgent);
            for effect in self.app.update(event, self.clock.now()) {
                is_over |= matches!(effect, Effect::Quit);
                self.perform(effect).await?;
            }
            // What is ready already is taken before the one draw.
            next = self.updates.try_recv().ok().map(|(id, update)| Event::Host(id, Box::new(update)));
        }
        Ok(is_over)
    }

    async fn perform(&mut self, effect: Effect) -> io::Result<()> {
        let now = self.clock.now();
        match effect {
            Effect::Repaint if self.terminal.is_shell_running() => {}
            Effect::Repaint => {
                self.measure()?;
                self.terminal.screen.invalidate();
            }
            Effect::Suspend => {
                self.terminal.suspend(&mut self.job_control_signals)?;
                self.measure()?;
                self.redraw.request(true);
            }
            Effect::Shell(id) => {
                if let Some(host) = self.hosts.get(id.0 as usize)
                    && let Some(message) = self.terminal.start_remote_shell(host).await?
                {
                    self.measure()?;
                    self.app.update(Event::ActionFinished(SafeText::new(&message)), now);
                }
            }
            Effect::Mouse(is_on) => self.terminal.screen.set_mouse(is_on)?,
            Effect::Copy(copied) => self.terminal.screen.send(&self.clipboard.take(&copied))?,
            Effect::Notify(news) => self.notifier.take(&news),
            Effect::SaveDiagnosisState => self.files.save_memory(&self.app, now),
            Effect::LogSignal(line) => self.files.log_signal(&line),
            Effect::Retry(id) => self.command(id, Command::Retry),
            Effect::SetInterval(interval) => self.command_all(&Command::Interval(interval)),
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

    fn command(&self, id: HostId, command: Command) {
        // A host task that has ended takes no commands; its link state already shows that.
        let _taken = self.collector.command(id, command);
    }

    fn command_all(&self, command: &Command) {
        (0..self.hosts.len()).for_each(|id| self.command(HostId(id as u32), command.clone()));
    }
}

/// Asks the terminal for its background where nothing else says which theme to use.
async fn query_background(arguments: &ScreenArgs, preferences: &SettingsFile) -> TerminalReply {
    let is_open = arguments.theme.is_none_or(|theme| theme == Theme::Auto) && preferences.theme.is_none();
    // A screen that nobody sees asks no terminal; it is refused later.
    if !is_open || !io::stdout().is_terminal() {
        return TerminalReply::default();
    }
    tokio::task::spawn_blocking(|| keyboard::query_background(QUERY_LIMIT)).await.unwrap_or_default()
}

async fn next_prompt(prompts: &mut Option<mpsc::Receiver<PromptEvent>>) -> Option<PromptEvent> {
    match prompts {
        Some(prompts) => prompts.recv().await,
        None => std::future::pending().await,
    }
}

fn terminal_event(event: TerminalEvent) -> Option<Event> {
    match event {
        TerminalEvent::Key(key) if key.kind != KeyEventKind::Release => Some(Event::Key(key)),
        TerminalEvent::Paste(text) => Some(Event::Pasted(text)),
        TerminalEvent::Mouse(mouse) => Some(Event::Mouse(mouse)),
        TerminalEvent::Resize(columns, rows) => Some(Event::Resized(columns, rows)),
        TerminalEvent::Key(_) | TerminalEvent::FocusGained | TerminalEvent::FocusLost => None,
    }
}

/// Panics once if `GPUFLEET_TEST_PANIC` is set: in the event loop (`loop`) or in a task (`task`). The tests of the whole
/// program check that a panic restores the terminal and that its message, which could come from a host, is cleaned.
#[cfg(debug_assertions)]
fn panic_for_test() {
    static DONE: std::sync::Once = std::sync::Once::new();
    let wanted = std::env::var("GPUFLEET_TEST_PANIC").unwrap_or_default();
    DONE.call_once(|| match wanted.as_str() {
        "loop" => panic!("on purpose, in the loop \x1b]0;pwned\x07"),
        "task" => drop(tokio::spawn(async { panic!("on purpose, in a task \x1b]0;pwned\x07") })),
        _ => {}
    });
}
