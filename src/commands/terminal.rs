//! The terminal: taken over for the screen, and given back whatever happens.
//!
//! [`Screen`] gives it back when it is dropped; a panic of the thread that draws gives it back before the message is
//! printed; signals end the event loop, which drops the screen. A panic elsewhere (a host task) must not paint over the
//! screen: its message is kept and printed once the terminal is back.

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::style::ResetColor;
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, SetTitle,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{Command, execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread::{self, ThreadId};
use std::{fmt, panic};

/// A frame of 300x90 with every cell coloured fits, so that one frame is one write.
const FRAME_BYTES: usize = 256 * 1024;

/// The terminal is ours: entered, not yet restored.
static ENTERED: AtomicBool = AtomicBool::new(false);
/// Clicks and the wheel are ours, also after the terminal was somebody else's for a while.
static MOUSE: AtomicBool = AtomicBool::new(true);
/// The thread whose panics end the program.
static DRAWING_THREAD: Mutex<Option<ThreadId>> = Mutex::new(None);
/// What panicked elsewhere, kept until the terminal is back.
static KEPT_PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The terminal while it shows the screen.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

impl fmt::Debug for Screen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Screen")
    }
}

impl Screen {
    /// Takes the terminal over: raw mode, alternate screen, no cursor, mouse clicks and wheel.
    ///
    /// # Errors
    /// When standard output is no terminal, or the terminal refuses.
    pub(super) fn enter(has_mouse: bool) -> io::Result<Self> {
        MOUSE.store(has_mouse, Ordering::SeqCst);
        if !io::stdout().is_terminal() {
            return Err(io::Error::other("standard output is not a terminal"));
        }
        install_panic_hook();
        *DRAWING_THREAD.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current().id());
        take_over()?;
        let writer = BufWriter::with_capacity(FRAME_BYTES, io::stdout());
        let terminal = Terminal::new(CrosstermBackend::new(writer)).inspect_err(|_| restore())?;
        Ok(Self { terminal })
    }

    /// Draws one frame, as one write inside a synchronized update.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        // Outside the update: a resize clears the screen with a write of its own.
        self.terminal.autoresize()?;
        queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)?;
        self.terminal.draw(render)?;
        execute!(self.terminal.backend_mut(), EndSynchronizedUpdate)
    }

    /// Forgets what the terminal shows, so that the next frame paints every cell.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        // Not `Terminal::clear`: it asks the terminal for the cursor's place, and the answer goes to the event stream.
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }

    /// Lets the terminal report clicks and the wheel, or leaves them to it.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn set_mouse(&mut self, is_on: bool) -> io::Result<()> {
        MOUSE.store(is_on, Ordering::SeqCst);
        execute!(self.terminal.backend_mut(), ClicksAndWheel(is_on))
    }

    /// Writes a sequence that moves nothing on the screen: a bell, a notification.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn send(&mut self, sequence: &str) -> io::Result<()> {
        let writer = self.terminal.backend_mut();
        writer.write_all(sequence.as_bytes())?;
        Write::flush(writer)
    }

    /// Gives the terminal back, stops this process as Ctrl-Z does to any program, and takes the terminal over again
    /// once it continues.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        Self::lend();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP)?;
        self.take_back()
    }

    /// Gives the terminal back while another program uses it. Nothing may be drawn until [`Screen::take_back`].
    pub(super) fn lend() {
        restore();
    }

    /// Takes the terminal over again, and forgets what was on it.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn take_back(&mut self) -> io::Result<()> {
        take_over()?;
        self.forget()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        print_kept_panics();
    }
}

fn take_over() -> io::Result<()> {
    enable_raw_mode()?;
    ENTERED.store(true, Ordering::SeqCst);
    // Without a name of ours the window keeps the shell's; nothing of a host's ever goes into it.
    execute!(
        io::stdout(),
        EnterAlternateScreen,
        Hide,
        EnableBracketedPaste,
        ClicksAndWheel(MOUSE.load(Ordering::SeqCst)),
        SetTitle("gpufleet")
    )
    .inspect_err(|_| restore())
}

/// Gives the terminal back as it was. May be called at any time, from any thread, any number of times.
fn restore() {
    if !ENTERED.swap(false, Ordering::SeqCst) {
        return;
    }
    // Nothing can be done about a terminal that is gone, so errors are passed over here and only here.
    let mut stdout = io::stdout();
    let _ = execute!(
        stdout,
        EndSynchronizedUpdate,
        ClicksAndWheel(false),
        DisableBracketedPaste,
        ResetColor,
        Show,
        LeaveAlternateScreen
    );
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}

/// Mouse clicks and the wheel, without motion: crossterm's own capture turns on any-motion reports, which cost a
/// wakeup for every move and take text selection away from the terminal.
struct ClicksAndWheel(bool);

impl Command for ClicksAndWheel {
    fn write_ansi(&self, writer: &mut impl fmt::Write) -> fmt::Result {
        // Off also clears the modes that only another program could have left on.
        writer.write_str(if self.0 { "\x1b[?1000h\x1b[?1006h" } else { "\x1b[?1006l\x1b[?1003l\x1b[?1002l\x1b[?1000l" })
    }
}

fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let standard_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let drawing = *DRAWING_THREAD.lock().unwrap_or_else(PoisonError::into_inner);
            if drawing == Some(thread::current().id()) {
                restore();
                print_kept_panics();
                standard_hook(info);
            } else if ENTERED.load(Ordering::SeqCst) {
                KEPT_PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(info.to_string());
            } else {
                standard_hook(info);
            }
        }));
    });
}

fn print_kept_panics() {
    for panic in KEPT_PANICS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let text = crate::wire::SafeText::new(&panic);
        // A closed standard error leaves nowhere to say it.
        let _ = writeln!(io::stderr(), "gpufleet: a task failed: {text}\nPlease report this as a bug.");
    }
}
