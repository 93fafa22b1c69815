//! `gpufleet [TARGET]...`: the screen. The event loop, and nothing that could be decided without it.
//!
//! ```text
//! keys, host tasks, prompts, the tick --Event--> App::update --Effect--> here
//!                                                    |
//!                                                  draw, at most 3 a second unless somebody waits for it
//! ```

use super::background::{self, Asked};
use super::clipboard::Clipboard;
use super::console::{Console, Heard};
use super::kept::KeptFiles;
use super::log_file::LogFile;
use super::looks::{settings, utc_offset_seconds};
use super::memory::MemoryFile;
use super::notify::Notifier;
use super::pace::{Pace, SleepWatch};
use super::session::Session;
use super::signal_log::SignalLog;
use super::suspension::{JobControl, Suspension};
use super::terminal::complain;
use super::view_file::{ViewFile, read_preferences, settings_notice};
use super::{Failure, Interrupts};
use crate::app::{App, Effect, Event, SettingsFile};
use crate::cli::{ScreenArgs, Theme};
use crate::collect::{Collector, Command};
use crate::diagnosis::Engine;
use crate::fleet::{Clock, Fleet, HostId, HostUpdate};
use crate::hosts::HostConfig;
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
/// The exit code for SIGINT.
const INTERRUPTED: u8 = 130;
/// A terminal that does not say what its background is like is not waited for any longer.
const ASK_LIMIT: Duration = Duration::from_millis(200);

/// Shows the fleet until the person leaves.
///
/// # Errors
/// When standard output is no terminal, or the terminal goes away.
pub async fn run(session: Session, arguments: &ScreenArgs) -> Result<ExitCode, Failure> {
    let directories = Directories::find();
    let (preferences, wrong) = read_preferences(&directories);
    let log = arguments.log.as_deref().map(LogFile::open).transpose()?;
    let code = show(session, arguments, &preferences, wrong.as_deref(), log).await.map_err(|error| {
        Failure::nothing(format!("cannot show the screen: {error}\n  hint: `gpufleet status` prints the fleet once"))
    })?;
    if let Some(wrong) = wrong {
        // On the screen there was a line of it.
        complain(&format!("gpufleet: the built-in settings held:\n{}\n", wrong.trim_end()));
    }
    Ok(code)
}

async fn show(
    session: Session,
    arguments: &ScreenArgs,
    preferences: &SettingsFile,
    wrong: Option<&str>,
    log: Option<LogFile>,
) -> io::Result<ExitCode> {
    let Session { hosts, source, ssh, clock, simulated, notifications } = session;
    let (context, prompts) = match ssh {
        Some((context, prompts)) => (Some(context), Some(prompts)),
        None => (None, None),
    };
    let now = clock.now();
    let directories = Directories::find();
    let mut engine = Engine::default();
    // What is simulated is not remembered.
    let (memory, said) = if simulated { (None, None) } else { MemoryFile::load(&directories, &mut engine, now) };
    let (view, remembered, forgotten) = if simulated { (None, None, None) } else { ViewFile::load(&directories, now) };
    let signals = if simulated { None } else { SignalLog::find(&directories) };
    let (collector, updates) = Collector::start(&hosts, source, clock);
    let interrupts = Interrupts::new()?;
    let suspension = Suspension::new()?;
    // From here on the terminal is not as it was; a signal waits for the loop, which gives it back.
    let asked = ask_background(arguments, preferences).await;
    let settings = settings(arguments, preferences, &|name| std::env::var(name).ok(), asked.is_light);
    let mut app = App::new(Fleet::new(&hosts, simulated, now), settings, engine, now);
    app.apply_settings_file(preferences);
    if let Some(remembered) = remembered {
        app.restore_view_state(&remembered);
        app.apply_settings_file(preferences);
    }
    for said in [said, forgotten, wrong.map(settings_notice)].into_iter().flatten() {
        app.report_message(said, now);
    }
    let is_tmux = std::env::var_os("TMUX").is_some_and(|name| !name.is_empty());
    // NO_COLOR is the theme's business; crossterm would also drop bold and reverse.
    crossterm::style::force_color_output(true);
    let mut watch = Watch {
        console: Console::enter(preferences.mouse, asked)?,
        app,
        hosts: &hosts,
        clock,
        pace: Pace::new(),
        sleep: (!simulated).then(|| SleepWatch::new(clock.now())),
        files: KeptFiles::new(memory, view, log, signals),
        notifier: Notifier::new(&notifications, true, is_tmux),
        clipboard: Clipboard::find((!simulated).then_some(&directories), &|name| std::env::var(name).ok()),
        performer: Performer { hosts: hosts.len(), collector: &collector, context: context.as_deref() },
        interrupts,
        suspension,
        prompts,
        updates,
    };
    let code = watch.run().await?;
    let Watch { console, mut app, files, notifier, .. } = watch;
    // The terminal is given back first: a hook may take a moment.
    drop(console);
    for said in notifier.finish(app.live_fleet(), clock.now()).await {
        complain(&format!("gpufleet: {said}\n"));
    }
    files.finish(&mut app, clock.now()).await;
    Ok(code)
}

/// The running screen: what it hears, what it shows, and what it does for the app.
struct Watch<'a> {
    console: Console,
    app: App,
    hosts: &'a [Arc<HostConfig>],
    clock: Clock,
    pace: Pace,
    /// `None` for a simulation: it has no connections that a sleep could break.
    sleep: Option<SleepWatch>,
    files: KeptFiles,
    notifier: Notifier,
    clipboard: Clipboard,
    performer: Performer<'a>,
    interrupts: Interrupts,
    suspension: Suspension,
    prompts: Option<mpsc::Receiver<PromptEvent>>,
    updates: mpsc::Receiver<(HostId, HostUpdate)>,
}

/// What comes next.
enum Next {
    /// Something for the app, or only a frame.
    Event(Option<Event>),
    /// The second has passed.
    Tick,
    /// The end, with this exit code.
    End(ExitCode),
}

impl Watch<'_> {
    /// Until the person leaves, a signal ends the program, or the terminal is gone.
    async fn run(&mut self) -> io::Result<ExitCode> {
        self.measure()?;
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        self.pace.soon(true);
        loop {
            if !self.console.is_lent() && self.pace.is_due() && self.console.screen.writer().is_idle() {
                let now = self.clock.now();
                self.app.refresh_derived_state();
                self.console.screen.draw(self.app.size(), |frame| ui::draw(&self.app, frame, now))?;
                self.pace.drawn();
            }
            let event = match self.next(&mut tick).await? {
                Next::Event(event) => event,
                Next::Tick => Some(self.tick()?),
                Next::End(code) => return Ok(code),
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
    async fn next(&mut self, tick: &mut Interval) -> io::Result<Next> {
        let is_lent = self.console.is_lent();
        let writer = self.console.screen.writer().clone();
        let frame = async {
            // While the terminal takes nothing no frame is drawn, and everything else goes on.
            writer.idle().await;
            self.pace.due().await;
        };
        Ok(tokio::select! {
            biased;
            code = self.interrupts.next() => {
                // Ctrl-C at a prompt of ssh's is for ssh.
                if is_lent && code == INTERRUPTED { Next::Event(None) } else { Next::End(ExitCode::from(code)) }
            }
            change = self.suspension.next() => {
                match change {
                    JobControl::Stop => self.console.suspend(&mut self.suspension)?,
                    JobControl::Continued => self.console.continued()?,
                }
                self.measure()?;
                self.pace.soon(true);
                Next::Event(None)
            }
            heard = self.console.next() => match heard {
                Heard::Input(Some(Ok(input))) => Next::Event(terminal_event(input)),
                // The terminal is gone: its reader ends or fails, and there is nobody to show anything to.
                Heard::Input(Some(Err(error))) => return Err(error),
                Heard::Input(None) => Next::End(ExitCode::SUCCESS),
                Heard::Returned(said) => {
                    self.console.take_back()?;
                    self.measure()?;
                    Next::Event(Some(Event::ActionFinished(SafeText::new(&said))))
                }
            },
            Some(prompt) = next_prompt(&mut self.prompts) => Next::Event(Some(match prompt {
                PromptEvent::Asked(prompt) => Event::Prompted(prompt),
                PromptEvent::Withdrawn(id) => Event::PromptWithdrawn(id),
            })),
            Some((id, update)) = self.updates.recv() => Next::Event(Some(Event::Host(id, Box::new(update)))),
            said = self.notifier.failure() => Next::Event(Some(Event::ProblemReported(said))),
            said = self.clipboard.said() => Next::Event(Some(Event::ActionFinished(said))),
            _ = tick.tick() => Next::Tick,
            () = frame, if !is_lent => Next::Event(None),
        })
    }

    /// What is done each second, whatever happens.
    fn tick(&mut self) -> io::Result<Event> {
        #[cfg(debug_assertions)]
        super::panic_on_purpose::panic_on_purpose();
        let now = self.clock.now();
        if let Some(sequence) = self.notifier.tick(self.app.live_fleet(), now) {
            self.console.ring(sequence)?;
        }
        self.app.settings.utc_offset_seconds = utc_offset_seconds();
        self.files.tick(&mut self.app, now);
        if self.sleep.as_mut().is_some_and(|watch| watch.slept(now)) {
            self.performer.retry_all();
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
            let urgent = self.pace.is_urgent(&event);
            self.pace.soon(urgent);
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
            Effect::Repaint if self.console.is_lent() => {}
            Effect::Repaint => {
                self.measure()?;
                self.console.screen.forget();
            }
            Effect::Suspend => {
                self.console.suspend(&mut self.suspension)?;
                self.measure()?;
                self.pace.soon(true);
            }
            Effect::Shell(id) => {
                if let Some(host) = self.hosts.get(id.0 as usize)
                    && let Some(said) = self.console.lend(host).await?
                {
                    self.measure()?;
                    self.app.update(Event::ActionFinished(SafeText::new(&said)), now);
                }
            }
            Effect::Mouse(is_on) => self.console.screen.set_mouse(is_on)?,
            Effect::Copy(copied) => self.console.screen.send(&self.clipboard.take(&copied))?,
            Effect::Notify(news) => self.notifier.take(&news),
            Effect::SaveDiagnosisState => self.files.remember(&self.app, now),
            Effect::LogSignal(line) => self.files.log_signal(&line),
            other => self.performer.perform(other),
        }
        Ok(())
    }
}

/// Asks the terminal for its background where nothing else says which theme to use.
async fn ask_background(arguments: &ScreenArgs, preferences: &SettingsFile) -> Asked {
    let is_open = arguments.theme.is_none_or(|theme| theme == Theme::Auto) && preferences.theme.is_none();
    // A screen that nobody sees asks no terminal; it is refused later.
    if !is_open || !io::stdout().is_terminal() {
        return Asked::default();
    }
    tokio::task::spawn_blocking(|| background::ask(ASK_LIMIT)).await.unwrap_or_default()
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

/// Performs the effects that concern hosts and prompts.
struct Performer<'a> {
    hosts: usize,
    collector: &'a Collector,
    context: Option<&'a Context>,
}

impl Performer<'_> {
    fn perform(&self, effect: Effect) {
        match effect {
            Effect::Retry(id) => self.command(id, Command::Retry),
            Effect::SetInterval(interval) => self.each(|id| self.command(id, Command::Interval(interval))),
            Effect::Request(id, request) => self.command(id, Command::Request(request)),
            Effect::Answer(id, answer) => {
                if let Some(context) = self.context {
                    context.answer(id, answer);
                }
            }
            Effect::Quit
            | Effect::Repaint
            | Effect::Suspend
            | Effect::Shell(_)
            | Effect::Copy(_)
            | Effect::Mouse(_)
            | Effect::Notify(_)
            | Effect::SaveDiagnosisState
            | Effect::LogSignal(_) => {}
        }
    }

    fn retry_all(&self) {
        self.each(|id| self.command(id, Command::Retry));
    }

    fn command(&self, id: HostId, command: Command) {
        // A host that does not take commands is shown as what it is; there is nothing to add.
        let _taken = self.collector.command(id, command);
    }

    fn each(&self, act: impl Fn(HostId)) {
        (0..self.hosts).for_each(|id| act(HostId(id as u32)));
    }
}
