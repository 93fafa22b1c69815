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
use super::memory::MemoryFile;
use super::notify::Notifier;
use super::session::Session;
use super::signal_log::SignalLog;
use super::suspension::{JobControl, Suspension};
use super::terminal::Screen;
use super::view_file::{ViewFile, read_preferences, settings_notice};
use super::visit::Visit;
use super::{Failure, Interrupts};
use crate::app::{App, ColorDepth, Effect, Event, Preferences, Settings, ThemeChoice};
use crate::cli::{ScreenArgs, Theme};
use crate::collect::{Collector, Command};
use crate::diagnosis::Engine;
use crate::fleet::{Fleet, HostId, HostUpdate, Moment};
use crate::ssh::{Context, PromptEvent};
use crate::store::Directories;
use crate::ui;
use crate::wire::SafeText;
use crossterm::event::{Event as TerminalEvent, KeyEventKind};
use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

/// Readings are drawn at most this often; a key, a resize or a host's first readings are drawn at once.
const DRAW_PERIOD: Duration = Duration::from_millis(333);
/// Events taken in a row before the screen gets its turn.
const BATCH: usize = 256;
/// The exit code for SIGINT.
const INTERRUPTED: u8 = 130;
/// A terminal that does not say what its background is like is not waited for any longer.
const ASK_LIMIT: Duration = Duration::from_millis(200);
/// The wall clock moved this much more than ours: the laptop slept.
const SLEPT: Duration = Duration::from_secs(5);

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

/// When to draw.
struct Pace {
    last_draw: Option<Instant>,
    wanted: bool,
    urgent: bool,
    /// Hosts that introduced themselves and have not sent readings yet.
    awaited: HashSet<HostId>,
}

impl Pace {
    fn new() -> Self {
        Self { last_draw: None, wanted: false, urgent: false, awaited: HashSet::new() }
    }

    /// Whether somebody waits for what this event shows.
    fn is_urgent(&mut self, event: &Event) -> bool {
        let (id, update) = match event {
            Event::Host(id, update) => (id, update),
            // It only moves ages on.
            Event::Ticked => return false,
            _ => return true,
        };
        match **update {
            HostUpdate::Hello(_) => {
                self.awaited.insert(*id);
                false
            }
            HostUpdate::Snapshot(_) => self.awaited.remove(id),
            _ => false,
        }
    }

    fn soon(&mut self, urgent: bool) {
        self.wanted = true;
        self.urgent |= urgent;
    }

    fn is_due(&self) -> bool {
        self.wanted && (self.urgent || self.last_draw.is_none_or(|last| last.elapsed() >= DRAW_PERIOD))
    }

    async fn due(&self) {
        match self.last_draw {
            Some(last) if self.wanted => tokio::time::sleep_until(last + DRAW_PERIOD).await,
            _ => std::future::pending().await,
        }
    }

    fn drawn(&mut self) {
        self.last_draw = Some(Instant::now());
        self.wanted = false;
        self.urgent = false;
    }
}

/// Notices that the machine slept: the wall clock went on while the monotonic one stood still.
struct SleepWatch {
    last: Moment,
}

impl SleepWatch {
    fn new(now: Moment) -> Self {
        Self { last: now }
    }

    fn slept(&mut self, now: Moment) -> bool {
        let wall = now.unix.saturating_sub(self.last.unix);
        let ours = now.since(self.last);
        self.last = now;
        wall > ours + SLEPT
    }
}

/// What the arguments, the settings and the environment say about the looks.
///
/// `NO_COLOR` (no-color.org) means no colours unless a theme is named. Where none is named, the terminal says whether its
/// background is light, else `COLORFGBG`, which rxvt, Konsole and others set; everything else counts as dark.
fn settings(
    arguments: &ScreenArgs,
    preferences: &Preferences,
    environment: &dyn Fn(&str) -> Option<String>,
    is_light: Option<bool>,
) -> Settings {
    let is_set = |name| environment(name).is_some_and(|value| !value.is_empty());
    let automatic = || match environment("COLORFGBG").and_then(|value| value.rsplit(';').next()?.parse::<u8>().ok()) {
        _ if is_set("NO_COLOR") => ThemeChoice::Mono,
        _ if is_light == Some(true) => ThemeChoice::Light,
        _ if is_light == Some(false) => ThemeChoice::Dark,
        Some(7 | 15) => ThemeChoice::Light,
        _ => ThemeChoice::Dark,
    };
    let theme = match arguments.theme {
        Some(Theme::Dark) => ThemeChoice::Dark,
        Some(Theme::Light) => ThemeChoice::Light,
        Some(Theme::Mono) => ThemeChoice::Mono,
        Some(Theme::Auto) => automatic(),
        None => preferences.theme.unwrap_or_else(automatic),
    };
    let terminal = environment("TERM").unwrap_or_default();
    let color_depth = match environment("COLORTERM").as_deref() {
        Some("truecolor" | "24bit") => ColorDepth::TrueColor,
        _ if terminal.contains("256color") => ColorDepth::Indexed256,
        _ => ColorDepth::Basic16,
    };
    Settings {
        theme,
        color_depth,
        ascii: arguments.ascii || preferences.ascii,
        is_readonly: arguments.readonly || preferences.readonly,
        utc_offset_seconds: utc_offset_seconds(),
    }
}

/// Seconds that local time is ahead of UTC now.
fn utc_offset_seconds() -> i32 {
    jiff::Zoned::now().offset().seconds()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Phase;
    use crate::wire::Snapshot;

    fn moment(elapsed: u64, unix: u64) -> Moment {
        Moment { elapsed: Duration::from_secs(elapsed), unix: Duration::from_secs(unix) }
    }

    fn looks(theme: Option<Theme>, environment: &[(&str, &str)]) -> Settings {
        let find = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let arguments = ScreenArgs { theme, ascii: false, readonly: false, log: None };
        settings(&arguments, &Preferences::default(), &find, None)
    }

    #[test]
    fn the_command_line_comes_before_the_settings_and_these_before_the_terminal() {
        let arguments = |theme| ScreenArgs { theme, ascii: false, readonly: false, log: None };
        let nothing = |_: &str| None;
        let light = Preferences { theme: Some(ThemeChoice::Light), readonly: true, ..Preferences::default() };
        let mono = settings(&arguments(Some(Theme::Mono)), &light, &nothing, Some(false));
        assert_eq!((mono.theme, mono.is_readonly), (ThemeChoice::Mono, true));
        assert_eq!(settings(&arguments(None), &light, &nothing, Some(false)).theme, ThemeChoice::Light);
        assert_eq!(settings(&arguments(Some(Theme::Auto)), &light, &nothing, Some(false)).theme, ThemeChoice::Dark);
        let built_in = Preferences::default();
        assert_eq!(settings(&arguments(None), &built_in, &nothing, Some(true)).theme, ThemeChoice::Light);
        let fgbg = |name: &str| (name == "COLORFGBG").then(|| "0;15".to_owned());
        assert_eq!(settings(&arguments(None), &built_in, &fgbg, Some(false)).theme, ThemeChoice::Dark);
    }

    #[test]
    fn the_environment_decides_what_the_arguments_leave_open() {
        assert_eq!(looks(None, &[]).theme, ThemeChoice::Dark);
        assert_eq!(looks(None, &[("COLORFGBG", "0;15")]).theme, ThemeChoice::Light);
        assert_eq!(looks(None, &[("COLORFGBG", "15;default;0")]).theme, ThemeChoice::Dark);
        assert_eq!(looks(None, &[("NO_COLOR", "1"), ("COLORFGBG", "0;15")]).theme, ThemeChoice::Mono);
        assert_eq!(looks(None, &[("NO_COLOR", "")]).theme, ThemeChoice::Dark);
        assert_eq!(looks(Some(Theme::Light), &[("NO_COLOR", "1")]).theme, ThemeChoice::Light);
        assert_eq!(looks(None, &[("COLORTERM", "truecolor")]).color_depth, ColorDepth::TrueColor);
        assert_eq!(looks(None, &[("TERM", "tmux-256color")]).color_depth, ColorDepth::Indexed256);
        assert_eq!(looks(None, &[("TERM", "linux")]).color_depth, ColorDepth::Basic16);
    }

    #[test]
    fn sleep_is_noticed_and_a_clock_set_back_is_not_sleep() {
        let mut watch = SleepWatch::new(moment(10, 1000));
        assert!(!watch.slept(moment(11, 1001)));
        assert!(watch.slept(moment(12, 30_000)));
        assert!(!watch.slept(moment(13, 30_001)));
        assert!(!watch.slept(moment(14, 500)));
    }

    #[test]
    fn only_the_first_readings_of_a_connection_are_urgent() {
        let mut pace = Pace::new();
        let snapshot = || Event::Host(HostId(3), Box::new(HostUpdate::Snapshot(Box::<Snapshot>::default())));
        let hello = crate::wire::codec::decode(br#"{"hello":{"protocol":1,"probe_version":"0"}}"#);
        let Ok(crate::wire::Message::Hello(hello)) = hello else { panic!("a hello") };
        let hello = Event::Host(HostId(3), Box::new(HostUpdate::Hello(Box::new(hello))));
        let connecting = HostUpdate::Connecting { attempt: 1, phase: Phase::Tcp };
        assert!(!pace.is_urgent(&Event::Host(HostId(3), Box::new(connecting))));
        assert!(!pace.is_urgent(&hello));
        assert!(pace.is_urgent(&snapshot()));
        assert!(!pace.is_urgent(&snapshot()));
        assert!(!pace.is_urgent(&Event::Ticked));
        assert!(pace.is_urgent(&Event::Resumed));
    }
}
