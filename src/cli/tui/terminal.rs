//! The terminal: taken over for the screen, and given back whatever happens.
//!
//! [`Screen`] gives it back when it is dropped; a panic of what draws gives it back before the message is printed;
//! signals end the event loop, which drops the screen. A panic elsewhere (a host task) must not paint over the screen:
//! its message is kept and printed once the terminal is back.
//!
//! All bytes go through a [`TerminalWriter`], so that a terminal that takes none stops nothing else.
//!
//! A frame is one write inside a synchronized update, the clearing that a new size needs included, so that no terminal
//! ever shows half of one, nor the blank before it.

use crate::wire::SafeText;
use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::style::ResetColor;
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, SetTitle,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{Command, execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd as _;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tokio::sync::Notify;

/// Room for most frames from the beginning; a larger one makes its own.
const FRAME_BYTES: usize = 64 * 1024;
/// What begins and ends a synchronized update.
const BEGIN: &[u8] = b"\x1b[?2026h";
const END: &[u8] = b"\x1b[?2026l";
/// A terminal that has not taken what gives it back by then is left as it is.
const GIVE_BACK_LIMIT: Duration = Duration::from_secs(1);

/// The terminal is ours: entered, not yet restored.
static ENTERED: AtomicBool = AtomicBool::new(false);
/// Clicks and the wheel are ours, also after the terminal was somebody else's for a while.
static MOUSE: AtomicBool = AtomicBool::new(true);
/// The thread whose panics end the program, unless a task panics there.
static DRAWING_THREAD: Mutex<Option<ThreadId>> = Mutex::new(None);
/// What panicked elsewhere, kept until the terminal is back.
static DEFERRED_PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Writes to standard output; static for the panic hook.
static WRITER: OnceLock<TerminalWriter> = OnceLock::new();

/// The terminal while it shows the screen.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<FrameWriter<TerminalWriter>>>,
    writer: TerminalWriter,
    /// What was drawn last, in cells.
    area: Rect,
    /// What the terminal shows is not what was drawn last.
    is_invalidated: bool,
    /// The terminal was given back for good.
    is_closed: Arc<AtomicBool>,
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
        let writer = start_writer()?;
        enter_raw_mode()?;
        let frames = FrameWriter::new(writer.clone());
        let is_closed = Arc::clone(&frames.is_closed);
        // A size of its own: else ratatui asks for the terminal's before each frame, and opens the terminal anew for it.
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::ZERO) };
        let terminal = Terminal::with_options(CrosstermBackend::new(frames), options).inspect_err(|_| restore())?;
        Ok(Self { terminal, writer, area: Rect::ZERO, is_invalidated: false, is_closed })
    }

    /// The way to the terminal: it is idle when a frame can be drawn.
    pub(super) fn writer(&self) -> &TerminalWriter {
        &self.writer
    }

    /// Draws one frame of so many columns and rows, as one write inside a synchronized update.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn draw(&mut self, size: (u16, u16), render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let area = Rect::new(0, 0, size.0, size.1);
        let is_anew = std::mem::take(&mut self.is_invalidated) || area != self.area;
        self.area = area;
        draw(&mut self.terminal, is_anew.then_some(area), render)
    }

    /// Forgets what the terminal shows, so that the next frame paints every cell.
    pub(super) fn invalidate(&mut self) {
        self.is_invalidated = true;
    }

    /// Lets the terminal report clicks and the wheel, or leaves them to it.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn set_mouse(&mut self, is_on: bool) -> io::Result<()> {
        MOUSE.store(is_on, Ordering::SeqCst);
        execute!(self.terminal.backend_mut(), ClicksAndWheel(is_on))
    }

    /// Writes a sequence that moves nothing on the screen: a bell, a notification. It is dropped where the terminal has
    /// not taken earlier ones.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn send(&mut self, sequence: &str) -> io::Result<()> {
        self.writer.offer(sequence.as_bytes())
    }

    /// Takes the terminal over once more after it was used by others who did not say so: a shell, while a SIGSTOP kept
    /// us from giving it back.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn force_reacquire(&mut self) -> io::Result<()> {
        // crossterm takes it to be in raw mode still.
        disable_raw_mode()?;
        self.reacquire()
    }

    /// Gives the terminal back while another program uses it. Nothing may be drawn until [`Screen::reacquire`].
    pub(super) fn release() {
        restore();
    }

    /// Takes the terminal over again, and forgets what was on it.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn reacquire(&mut self) -> io::Result<()> {
        enter_raw_mode()?;
        self.invalidate();
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        // Ratatui's terminal shows the cursor once more when it is dropped, and where it cannot, because the window was
        // closed, it prints that to a standard error that may be closed, too, and panics.
        self.is_closed.store(true, Ordering::SeqCst);
        print_deferred_panics();
    }
}

/// One frame; of this area where what the terminal shows is not what was drawn last.
fn draw<W: Write>(
    terminal: &mut Terminal<CrosstermBackend<W>>,
    anew: Option<Rect>,
    render: impl FnOnce(&mut Frame<'_>),
) -> io::Result<()> {
    queue!(terminal.backend_mut(), BeginSynchronizedUpdate)?;
    if let Some(area) = anew {
        // Not `Terminal::clear`: it asks the terminal for the cursor's place, and the answer goes to the event stream.
        terminal.resize(area)?;
    }
    terminal.draw(render)?;
    execute!(terminal.backend_mut(), EndSynchronizedUpdate)
}

/// Collects what is written and passes it on in one write, once it is whole: a flush within a synchronized update waits
/// for the end of the update.
struct FrameWriter<W: Write> {
    bytes: Vec<u8>,
    terminal: W,
    /// From now on nothing is written.
    is_closed: Arc<AtomicBool>,
}

impl<W: Write> FrameWriter<W> {
    fn new(terminal: W) -> Self {
        Self { bytes: Vec::with_capacity(FRAME_BYTES), terminal, is_closed: Arc::default() }
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_closed.load(Ordering::SeqCst) {
            // Not even what standard output still holds: it may never take it.
            self.bytes.clear();
            return Ok(());
        }
        if self.bytes.starts_with(BEGIN) && !self.bytes.ends_with(END) {
            return Ok(());
        }
        // What could not be written is not written twice.
        let written = self.terminal.write_all(&self.bytes).and_then(|()| self.terminal.flush());
        self.bytes.clear();
        written
    }
}

/// The writer to standard output, started by the first call.
fn start_writer() -> io::Result<TerminalWriter> {
    if let Some(writer) = WRITER.get() {
        return Ok(writer.clone());
    }
    // Not through `io::stdout()`: its lock would be held while the terminal takes nothing.
    let terminal = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let writer = TerminalWriter::start(terminal)?;
    Ok(WRITER.get_or_init(|| writer).clone())
}

/// Writes a line while the terminal is lent, and waits a moment until the terminal has taken it.
pub(super) fn print_line(line: &str) {
    if let Some(mut writer) = WRITER.get().cloned() {
        // Nobody reads it where the terminal is gone.
        let _written = writeln!(writer, "{line}");
        writer.wait(GIVE_BACK_LIMIT);
    }
}

/// Writes to standard error after the terminal was given back, unless that is a terminal that takes nothing.
pub(super) fn complain(text: &str) {
    let is_stuck = io::stderr().is_terminal() && WRITER.get().is_some_and(|writer| !writer.is_idle());
    if !is_stuck {
        // A closed standard error leaves nowhere to write it.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

fn enter_raw_mode() -> io::Result<()> {
    enable_raw_mode()?;
    ENTERED.store(true, Ordering::SeqCst);
    // Without a name of ours the window keeps the shell's; nothing of a host's ever goes into it.
    execute!(
        start_writer()?,
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
    if let Some(writer) = WRITER.get() {
        let _ = execute!(
            writer.clone(),
            EndSynchronizedUpdate,
            ClicksAndWheel(false),
            DisableBracketedPaste,
            ResetColor,
            Show,
            LeaveAlternateScreen
        );
        writer.wait(GIVE_BACK_LIMIT);
    }
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
        panic::set_hook(Box::new(move |info| {
            let drawing = *DRAWING_THREAD.lock().unwrap_or_else(PoisonError::into_inner);
            // Host tasks may run on the same thread; what draws is none.
            let is_drawing = drawing == Some(thread::current().id()) && tokio::task::try_id().is_none();
            let who = if is_drawing { "gpufleet" } else { "gpufleet: a task" };
            let message = panic_message(who, &info.to_string(), &Backtrace::capture());
            if is_drawing {
                restore();
            }
            if !is_drawing && ENTERED.load(Ordering::SeqCst) {
                DEFERRED_PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(message);
            } else {
                print_deferred_panics();
                complain(&message);
            }
        }));
    });
}

/// What is said of a panic. Its text may hold what a host has sent: it is cleaned line by line.
fn panic_message(who: &str, panic: &str, backtrace: &Backtrace) -> String {
    let clean = |text: &str| text.lines().fold(String::new(), |all, line| all + &SafeText::new(line) + "\n");
    let frames = match backtrace.status() {
        BacktraceStatus::Captured => clean(&backtrace.to_string()),
        _ => String::new(),
    };
    format!("{who} {}{frames}Please report this as a bug.\n", clean(panic))
}

fn print_deferred_panics() {
    for message in DEFERRED_PANICS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        complain(&message);
    }
}

/// Bells and notifications are dropped while so many bytes wait.
const MAX_WAITING: usize = 64 * 1024;

/// Where the bytes go. A clone writes to the same terminal.
#[derive(Debug, Clone)]
pub(super) struct TerminalWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// For the event loop, which cannot wait for a [`Condvar`].
    became_idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    is_writing: bool,
    /// Why the last write failed, until it is reported.
    error: Option<io::Error>,
}

impl State {
    fn is_idle(&self) -> bool {
        !self.is_writing && self.waiting.is_empty()
    }
}

impl TerminalWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(super) fn start(terminal: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let writer = Self { shared: Arc::clone(&shared) };
        thread::Builder::new().name("terminal".to_owned()).spawn(move || shared.write_to(terminal))?;
        Ok(writer)
    }

    /// Whether everything is written.
    pub(super) fn is_idle(&self) -> bool {
        self.shared.lock().is_idle()
    }

    /// Waits until everything is written, or a write has failed. May be dropped and called again.
    pub(super) async fn idle(&self) {
        loop {
            let became_idle = self.shared.became_idle.notified();
            if self.is_idle() {
                return;
            }
            became_idle.await;
        }
    }

    /// Blocks until everything is written, at most so long. Returns whether it is.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), limit, |state| !state.is_idle());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_idle()
    }

    /// Writes what may get lost: nothing, while too much waits already.
    ///
    /// # Errors
    /// As [`Write::write`] of this type.
    pub(super) fn offer(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.shared.lock().waiting.len() + bytes.len() > MAX_WAITING { Ok(()) } else { self.write_all(bytes) }
    }
}

/// Returns at once. An error is that of an earlier write.
impl Write for TerminalWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        state.waiting.extend_from_slice(bytes);
        drop(state);
        self.shared.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut terminal: impl Write) {
        let mut bytes = Vec::new();
        loop {
            let nothing_waits = |state: &mut State| state.waiting.is_empty();
            let waited = self.changed.wait_while(self.lock(), nothing_waits);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut state.waiting, &mut bytes);
            state.is_writing = true;
            drop(state);
            let written = terminal.write_all(&bytes).and_then(|()| terminal.flush());
            bytes.clear();
            let mut state = self.lock();
            state.is_writing = false;
            if let Err(error) = written {
                // The rest would be written behind half a frame.
                state.waiting.clear();
                state.error = Some(error);
            }
            let is_idle = state.is_idle();
            drop(state);
            if is_idle {
                self.changed.notify_all();
                self.became_idle.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::testing::{NOW, app, at, press};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Keeps what was written, write by write.
    #[derive(Clone, Default)]
    struct Writes(Rc<RefCell<Vec<Vec<u8>>>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_largest_frame_is_one_write_within_a_synchronized_update() {
        let (columns, rows) = (300, 90);
        let mut app = app(16, 8, (columns, rows));
        let writes = Writes::default();
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, columns, rows)) };
        let backend = CrosstermBackend::new(FrameWriter::new(writes.clone()));
        let mut terminal = Terminal::with_options(backend, options).expect("a terminal");
        for (keys, frames) in [("", 1), ("2", 2), ("1\n", 3), ("3", 4), ("3", 5)] {
            press(&mut app, keys);
            draw(&mut terminal, None, |frame| crate::ui::draw(&app, frame, at(NOW))).expect("draws");
            let writes = writes.0.borrow();
            assert_eq!(writes.len(), frames, "after {keys:?}");
            let frame = &writes[frames - 1];
            assert!(frame.starts_with(BEGIN) && frame.ends_with(END), "after {keys:?}");
            assert_eq!(String::from_utf8_lossy(frame).matches("\x1b[?2026").count(), 2, "after {keys:?}");
        }
    }

    #[test]
    fn what_is_no_frame_is_written_at_once() {
        let writes = Writes::default();
        let mut writer = FrameWriter::new(writes.clone());
        writer.write_all(b"\x07").expect("writes");
        assert!(writes.0.borrow().is_empty());
        writer.flush().expect("writes");
        writer.write_all(BEGIN).expect("writes");
        writer.flush().expect("waits");
        assert_eq!(*writes.0.borrow(), [b"\x07".to_vec()]);
        writer.is_closed.store(true, Ordering::SeqCst);
        writer.write_all(END).expect("goes nowhere");
        writer.flush().expect("goes nowhere");
        assert_eq!(writes.0.borrow().len(), 1);
    }

    #[test]
    fn what_is_said_of_a_panic_obeys_nobody() {
        let message = panic_message("gpufleet", "panicked at a.rs:1:1:\nno `\x1b]0;x\x07`", &Backtrace::disabled());
        assert_eq!(message, "gpufleet panicked at a.rs:1:1:\nno `␛]0;x␇`\nPlease report this as a bug.\n");
    }

    const DEADLINE: Duration = Duration::from_secs(5);

    /// A terminal that takes a write for each message, and fails once nobody sends any more.
    struct Slow {
        turns: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turns.recv().map_err(|_| io::Error::other("the terminal is gone"))?;
            self.taken.send(bytes.to_vec()).expect("the test listens");
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (TerminalWriter, Sender<()>, Receiver<Vec<u8>>) {
        let ((turn, turns), (taken, took)) = (channel(), channel());
        (TerminalWriter::start(Slow { turns, taken }).expect("starts"), turn, took)
    }

    #[tokio::test]
    async fn a_terminal_that_takes_nothing_holds_nobody_up() {
        let (mut writer, turn, took) = slow();
        assert!(writer.is_idle());
        writer.write_all(b"frame").expect("waits");
        assert!(!writer.is_idle());
        assert!(!writer.wait(Duration::from_millis(1)));
        turn.send(()).expect("the terminal takes it");
        tokio::time::timeout(DEADLINE, writer.idle()).await.expect("becomes idle");
        assert_eq!(took.recv(), Ok(b"frame".to_vec()));
        assert!(writer.is_idle() && writer.wait(Duration::ZERO));
    }

    #[test]
    fn what_may_get_lost_is_dropped_while_too_much_waits() {
        let (mut writer, turn, took) = slow();
        writer.write_all(b"frame").expect("waits");
        // The thread has taken the frame: what follows waits behind it.
        while !writer.shared.lock().is_writing {
            thread::yield_now();
        }
        writer.offer(b"bell").expect("waits");
        writer.write_all(&vec![b'-'; MAX_WAITING]).expect("is never dropped");
        writer.offer(b"bell").expect("is dropped");
        turn.send(()).and_then(|()| turn.send(())).expect("the terminal takes both");
        assert!(writer.wait(DEADLINE));
        let taken: Vec<usize> = took.try_iter().map(|bytes| bytes.len()).collect();
        assert_eq!(taken, [5, 4 + MAX_WAITING]);
    }

    #[test]
    fn a_terminal_that_is_gone_fails_the_next_write() {
        let (mut writer, turn, _took) = slow();
        drop(turn);
        writer.write_all(b"frame").expect("waits");
        assert!(writer.wait(DEADLINE));
        let error = writer.write_all(b"frame").expect_err("is reported");
        assert_eq!(error.to_string(), "the terminal is gone");
    }
}
