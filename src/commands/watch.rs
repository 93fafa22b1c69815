//! `gpufleet [TARGET]...`: the screen. The event loop, and nothing that could be decided without it.
//!
//! ```text
//! keys, host tasks, prompts, the tick --Event--> App::update --Effect--> here
//!                                                    |
//!                                                  draw, at most 3 a second unless somebody waits for it
//! ```

use super::background::{self, Asked};
use super::clipboard::Clipboard;
use super::keyboard::{self, Keyboard};
use super::log_file::LogFile;
use super::looks::{settings, utc_offset_seconds};
use super::memory::MemoryFile;
use super::notify::Notifier;
use super::pace::{Pace, SleepWatch};
use super::session::Session;
use super::signal_log::SignalLog;
use super::suspension::{JobControl, Suspension};
use super::terminal::Screen;
use super::view_file::{ViewFile, read_preferences, settings_notice};
use super::visit::Visit;
use super::{Failure, Interrupts};
use crate::app::{App, Effect, Event, Preferences};
use crate::cli::{ScreenArgs, Theme};
use crate::collect::{Collector, Command};
use crate::diagnosis::Engine;
use crate::fleet::{Fleet, HostId, Moment};
use crate::ssh::{Context, PromptEvent};
use crate::store::Directories;
use crate::ui;
use crate::wire::SafeText;
use crossterm::event::{Event as TerminalEvent, KeyEventKind};
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

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
        // On the screen there was a line of it. Standard error may be closed: then nobody can be told.
        let _ = write!(io::stderr(), "gpufleet: the built-in settings held:\n{}\n", wrong.trim_end());
    }
    Ok(code)
}

async fn show(
    session: Session,
    arguments: &ScreenArgs,
    preferences: &Preferences,
    wrong: Option<&str>,
    mut log: Option<LogFile>,
) -> io::Result<ExitCode> {
    let Session { hosts, source, ssh, clock, simulated, notifications } = session;
    let (context, mut prompts) = match ssh {
        Some((context, prompts)) => (Some(context), Some(prompts)),
        None => (None, None),
    };
    let now = clock.now();
    let directories = Directories::find();
    let mut engine = Engine::default();
    // What is simulated is not remembered.
    let (mut memory, said) = if simulated { (None, None) } else { MemoryFile::load(&directories, &mut engine, now) };
    let (mut view, remembered, forgotten) =
        if simulated { (None, None, None) } else { ViewFile::load(&directories, now) };
    let (collector, mut updates) = Collector::start(&hosts, source, clock);
    let mut interrupts = Interrupts::new()?;
    let mut suspension = Suspension::new()?;
    // From here on the terminal is not as it was; a signal waits for the loop, which gives it back.
    let asked = ask_background(arguments, preferences).await;
    let settings = settings(arguments, preferences, &|name| std::env::var(name).ok(), asked.is_light);
    let mut app = App::new(Fleet::new(&hosts, simulated, now), settings, engine, now);
    app.prefer(preferences);
    if let Some(remembered) = remembered {
        app.recall(&remembered);
        app.prefer(preferences);
    }
    for said in [said, forgotten, wrong.map(settings_notice)].into_iter().flatten() {
        app.say(said, now);
    }
    let mut notifier =
        Notifier::new(&notifications, true, std::env::var_os("TMUX").is_some_and(|name| !name.is_empty()));
    let signal_log = if simulated { None } else { SignalLog::find(&directories) };
    // NO_COLOR is the theme's business; crossterm would also drop bold and reverse.
    crossterm::style::force_color_output(true);
    let mut screen = Screen::enter(preferences.mouse)?;
    let (columns, rows) = crossterm::terminal::size()?;
    app.update(Event::Resized(columns, rows), now);
    let mut keyboard = Some(Keyboard::after(asked)?);
    let mut visit: Option<Visit> = None;
    // A bell or notification that came while somebody else had the terminal.
    let mut held: Option<String> = None;
    let mut clipboard = Clipboard::find((!simulated).then_some(&directories), &|name| std::env::var(name).ok());
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut sleep_watch = SleepWatch::new(clock.now());
    let mut pace = Pace::new();
    let performer = Performer { hosts: hosts.len(), collector: &collector, context: context.as_deref() };

    pace.soon(true);
    let code = loop {
        if visit.is_none() && pace.is_due() {
            let now = clock.now();
            app.settle();
            screen.draw(|frame| ui::draw(&app, frame, now))?;
            pace.drawn();
        }
        let event = tokio::select! {
            biased;
            code = interrupts.next() => {
                // Ctrl-C at a prompt of ssh's is for ssh.
                if visit.is_some() && code == INTERRUPTED {
                    continue;
                }
                break ExitCode::from(code);
            }
            change = suspension.next() => {
                match change {
                    // The terminal is lent: there is nothing to be given back.
                    JobControl::Stop if visit.is_some() => suspension.stop()?,
                    JobControl::Stop => suspend(&mut screen, &mut suspension)?,
                    JobControl::Continued if visit.is_some() => {}
                    JobControl::Continued => screen.reclaim()?,
                }
                pace.soon(true);
                None
            }
            said = next_end(&mut visit) => {
                visit = None;
                screen.take_back()?;
                keyboard::discard();
                keyboard = Some(Keyboard::start()?);
                if let Some(sequence) = held.take() {
                    screen.send(&sequence)?;
                }
                let (columns, rows) = crossterm::terminal::size()?;
                app.update(Event::Resized(columns, rows), clock.now());
                Some(Event::Done(SafeText::new(&said)))
            }
            key = next_key(&mut keyboard) => match key {
                Some(Ok(key)) => terminal_event(key),
                // The terminal is gone: its reader ends or fails, and there is nobody to show anything to.
                Some(Err(error)) => return Err(error),
                None => break ExitCode::SUCCESS,
            },
            Some(prompt) = next_prompt(&mut prompts) => Some(match prompt {
                PromptEvent::Asked(prompt) => Event::Prompted(prompt),
                PromptEvent::Withdrawn(id) => Event::PromptWithdrawn(id),
            }),
            Some((id, update)) = updates.recv() => Some(Event::Host(id, Box::new(update))),
            said = notifier.failure() => Some(Event::WentWrong(said)),
            said = clipboard.said() => Some(Event::Done(said)),
            _ = tick.tick() => {
                #[cfg(debug_assertions)]
                super::panic_on_purpose::panic_on_purpose();
                let now = clock.now();
                if let Some(sequence) = notifier.tick(app.live_fleet(), now) {
                    if visit.is_none() {
                        screen.send(&sequence)?;
                    } else {
                        held = Some(sequence);
                    }
                }
                app.settings.utc_offset_seconds = utc_offset_seconds();
                remember(memory.as_mut().filter(|file| file.is_due(now)), &mut app, now);
                if let Some(file) = view.as_mut().filter(|file| file.is_due(now))
                    && let Some(said) = file.save(app.remembered(), now)
                {
                    app.say(said, now);
                }
                if let Some(Err(error)) = log.as_mut().map(|file| file.write(app.live_fleet())) {
                    app.say(format!("the log is no longer written: {error}"), now);
                    log = None;
                }
                if !simulated && sleep_watch.slept(now) {
                    performer.retry_all();
                    Some(Event::Resumed)
                } else {
                    Some(Event::Ticked)
                }
            },
            () = pace.due(), if visit.is_none() => None,
        };
        let mut next = event;
        let mut is_over = false;
        for _ in 0..BATCH {
            let Some(event) = next else { break };
            let urgent = pace.is_urgent(&event);
            pace.soon(urgent);
            for effect in app.update(event, clock.now()) {
                match effect {
                    Effect::Quit => is_over = true,
                    Effect::Repaint if visit.is_some() => {}
                    Effect::Repaint => screen.forget(),
                    Effect::Suspend => {
                        suspend(&mut screen, &mut suspension)?;
                        pace.soon(true);
                    }
                    Effect::Shell(id) => {
                        let Some(host) = hosts.get(id.0 as usize) else { continue };
                        if let Some(keyboard) = keyboard.take() {
                            keyboard.stop().await;
                        }
                        Screen::lend();
                        match Visit::start(host) {
                            Ok(started) => visit = Some(started),
                            Err(said) => {
                                screen.take_back()?;
                                keyboard = Some(Keyboard::start()?);
                                app.update(Event::Done(SafeText::new(&said)), clock.now());
                            }
                        }
                    }
                    Effect::Mouse(is_on) => screen.set_mouse(is_on)?,
                    Effect::Copy(copied) => screen.send(&clipboard.take(&copied))?,
                    Effect::Tell(news) => notifier.take(&news),
                    Effect::Remember => remember(memory.as_mut(), &mut app, clock.now()),
                    Effect::LogSignal(line) => {
                        if let Some(said) = signal_log.as_ref().and_then(|log| log.write(&line)) {
                            app.say(said, clock.now());
                        }
                    }
                    other => performer.perform(other),
                }
            }
            // What is ready already is taken before the one draw.
            next = updates.try_recv().ok().map(|(id, update)| Event::Host(id, Box::new(update)));
        }
        if is_over {
            break ExitCode::SUCCESS;
        }
    };
    drop(visit);
    // The terminal is given back first: a hook may take a moment.
    drop(screen);
    for said in notifier.finish(app.live_fleet(), clock.now()).await {
        // Standard error may be closed: then nobody can be told.
        let _ = writeln!(io::stderr(), "gpufleet: {said}");
    }
    if let Some(file) = &mut log {
        // There is nobody left to tell if the last second of it cannot be written.
        let _written = file.write(app.live_fleet());
    }
    if let Some(file) = &mut view {
        // There is nobody left to tell; the next start begins with what was saved some seconds ago.
        let _said = file.save(app.remembered(), clock.now());
    }
    if let Some(file) = &mut memory {
        let now = clock.now();
        // There is nobody left to tell; the next start begins with what was saved a minute ago.
        app.told_ended(now);
        let _said = file.save(app.memory(now), now);
    }
    Ok(code)
}

/// Gives the terminal back, stops, and takes the terminal over again once the program continues.
fn suspend(screen: &mut Screen, suspension: &mut Suspension) -> io::Result<()> {
    Screen::lend();
    suspension.stop()?;
    screen.take_back()
}

/// Asks the terminal for its background where nothing else says which theme to use.
async fn ask_background(arguments: &ScreenArgs, preferences: &Preferences) -> Asked {
    let is_open = arguments.theme.is_none_or(|theme| theme == Theme::Auto) && preferences.theme.is_none();
    // A screen that nobody sees asks no terminal; it is refused later.
    if !is_open || !io::stdout().is_terminal() {
        return Asked::default();
    }
    tokio::task::spawn_blocking(|| background::ask(ASK_LIMIT)).await.unwrap_or_default()
}

/// Writes what diagnosis remembers; that it cannot be written is said once.
fn remember(file: Option<&mut MemoryFile>, app: &mut App, now: Moment) {
    if let Some(said) = file.and_then(|file| file.save(app.memory(now), now)) {
        app.say(said, now);
    }
}

/// The next event of the terminal, while it is ours.
async fn next_key(keyboard: &mut Option<Keyboard>) -> Option<io::Result<TerminalEvent>> {
    match keyboard {
        Some(keyboard) => keyboard.next().await,
        None => std::future::pending().await,
    }
}

/// The end of a shell, while one has the terminal.
async fn next_end(visit: &mut Option<Visit>) -> String {
    match visit {
        Some(visit) => visit.ended().await,
        None => std::future::pending().await,
    }
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
            | Effect::Tell(_)
            | Effect::Remember
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
