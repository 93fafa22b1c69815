//! The terminal of the screen, and how it is restored.
//!
//! [`Screen`] restores the terminal when it is dropped. A panic in the drawing thread restores it before its message is
//! printed; signals end the event loop, which drops the screen. A panic elsewhere (in a host task) must not write over
//! the screen: its message is printed when the terminal is restored. If the program aborts, `abort_guard` restores it.
//!
//! All output goes through a [`TerminalWriter`], so that a terminal that accepts no output blocks nothing else. A frame
//! is one write inside a synchronized update, including the clear after a resize, so that no terminal shows half of a
//! frame.

use super::abort_guard;
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
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd as _;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The initial capacity for a frame.
const FRAME_BYTES: usize = 64 * 1024;
/// The begin and end of a synchronized update.
const BEGIN: &[u8] = b"\x1b[?2026h";
const END: &[u8] = b"\x1b[?2026l";
/// How long to wait until the terminal has accepted the sequences that restore it.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);

/// Raw mode is on.
static IS_RAW: AtomicBool = AtomicBool::new(false);
/// Mouse reporting is on, also after another program has used the terminal.
static MOUSE: AtomicBool = AtomicBool::new(true);
/// The thread whose panics end the program, except panics of a task on it.
static DRAWING_THREAD: Mutex<Option<ThreadId>> = Mutex::new(None);
/// Messages of panics in other threads, until the terminal is restored.
static DEFERRED_PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The settings of the terminal before raw mode, for an abort: crossterm's copy is behind a lock.
static SETTINGS: Mutex<Option<Termios>> = Mutex::new(None);
/// The program aborts, and nothing more may be drawn.
static IS_ABORTING: AtomicBool = AtomicBool::new(false);
/// The writer to standard output; static because the panic hook needs it.
static WRITER: OnceLock<TerminalWriter> = OnceLock::new();

/// The terminal in raw mode, with the alternate screen.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<FrameWriter<TerminalWriter>>>,
    writer: TerminalWriter,
    /// The size of the last frame, in cells.
    area: Rect,
    /// The next frame must paint every cell.
    is_invalidated: bool,
    /// The terminal is restored for good.
    is_closed: Arc<AtomicBool>,
}

impl fmt::Debug for Screen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Screen")
    }
}

impl Screen {
    /// Enters raw mode and the alternate screen, hides the cursor, and turns mouse reporting on.
    ///
    /// # Errors
    /// Standard output is not a terminal, or its settings cannot be changed.
    pub(super) fn enter(has_mouse: bool) -> io::Result<Self> {
        MOUSE.store(has_mouse, Ordering::SeqCst);
        if !io::stdout().is_terminal() {
            return Err(io::Error::other("standard output is not a terminal"));
        }
        install_panic_hook();
        install_abort_guard()?;
        *DRAWING_THREAD.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current().id());
        let writer = start_writer()?;
        enter_raw_mode()?;
        let frames = FrameWriter::new(writer.clone());
        let is_closed = Arc::clone(&frames.is_closed);
        // With a fixed viewport ratatui does not query the terminal's size before each frame.
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::ZERO) };
        let terminal = Terminal::with_options(CrosstermBackend::new(frames), options).inspect_err(|_| restore())?;
        Ok(Self { terminal, writer, area: Rect::ZERO, is_invalidated: false, is_closed })
    }

    /// Returns the writer. A frame can be drawn while it is idle.
    pub(super) fn writer(&self) -> &TerminalWriter {
        &self.writer
    }

    /// Draws a frame of the given columns and rows as one write inside a synchronized update.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn draw(&mut self, size: (u16, u16), render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let area = Rect::new(0, 0, size.0, size.1);
        let is_anew = std::mem::take(&mut self.is_invalidated) || area != self.area;
        self.area = area;
        draw(&mut self.terminal, is_anew.then_some(area), render)
    }

    /// Makes the next frame paint every cell.
    pub(super) fn invalidate(&mut self) {
        self.is_invalidated = true;
    }

    /// Turns mouse reporting (clicks and wheel) on or off.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn set_mouse(&mut self, is_on: bool) -> io::Result<()> {
        MOUSE.store(is_on, Ordering::SeqCst);
        execute!(self.terminal.backend_mut(), ClicksAndWheel(is_on))
    }

    /// Writes a sequence that does not change the screen, such as a bell. It is dropped if too much output is waiting.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn send(&mut self, sequence: &str) -> io::Result<()> {
        self.writer.offer(sequence.as_bytes())
    }

    /// Enters raw mode again after another program changed the terminal without notice, for example the shell after a
    /// SIGSTOP.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn force_reacquire(&mut self) -> io::Result<()> {
        // crossterm assumes that raw mode is still on.
        disable_raw_mode()?;
        self.reacquire()
    }

    /// Restores the terminal for another program. Nothing may be drawn until [`Screen::reacquire`].
    pub(super) fn release() {
        restore();
    }

    /// Enters raw mode and the alternate screen again; the next frame paints every cell.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn reacquire(&mut self) -> io::Result<()> {
        enter_raw_mode()?;
        self.invalidate();
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        // When ratatui's terminal is dropped, it shows the cursor. If that fails, because the window is closed, it
        // prints the error to standard error and panics if that is closed as well.
        self.is_closed.store(true, Ordering::SeqCst);
        print_deferred_panics();
    }
}

/// Draws one frame. With `anew`, clears this area first.
fn draw<W: Write>(
    terminal: &mut Terminal<CrosstermBackend<W>>,
    anew: Option<Rect>,
    render: impl FnOnce(&mut Frame<'_>),
) -> io::Result<()> {
    queue!(terminal.backend_mut(), BeginSynchronizedUpdate)?;
    if let Some(area) = anew {
        // `Terminal::clear` would query the cursor position, and the reply would arrive as input.
        terminal.resize(area)?;
    }
    terminal.draw(render)?;
    execute!(terminal.backend_mut(), EndSynchronizedUpdate)
}

/// Buffers a frame and passes it on as one write: a flush within a synchronized update waits for the end of the update.
struct FrameWriter<W: Write> {
    bytes: Vec<u8>,
    terminal: W,
    /// Nothing is written any more.
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
            // The terminal may never accept the rest.
            self.bytes.clear();
            return Ok(());
        }
        if self.bytes.starts_with(BEGIN) && !self.bytes.ends_with(END) {
            return Ok(());
        }
        // Bytes that could not be written are not written again.
        let written = self.terminal.write_all(&self.bytes).and_then(|()| self.terminal.flush());
        self.bytes.clear();
        written
    }
}

/// Returns the writer to standard output; the first call starts it.
fn start_writer() -> io::Result<TerminalWriter> {
    if let Some(writer) = WRITER.get() {
        return Ok(writer.clone());
    }
    // The lock of `io::stdout()` would be held while the terminal accepts no output.
    let terminal = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let writer = TerminalWriter::start(terminal)?;
    Ok(WRITER.get_or_init(|| writer).clone())
}

/// Writes a line to the restored terminal and waits briefly until the terminal has accepted it.
pub(super) fn print_line(line: &str) {
    if let Some(mut writer) = WRITER.get().cloned() {
        // The terminal may be gone.
        let _written = writeln!(writer, "{line}");
        writer.wait(RESTORE_TIMEOUT);
    }
}

/// Writes to standard error after the terminal is restored, unless that is a terminal that accepts no output.
pub(super) fn print_error(text: &str) {
    let is_stuck = io::stderr().is_terminal() && WRITER.get().is_some_and(|writer| !writer.is_idle());
    if !is_stuck {
        // Standard error may be closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

fn enter_raw_mode() -> io::Result<()> {
    if !IS_RAW.load(Ordering::SeqCst) {
        *SETTINGS.lock().unwrap_or_else(PoisonError::into_inner) = tcgetattr(io::stdout()).ok();
    }
    enable_raw_mode()?;
    IS_RAW.store(true, Ordering::SeqCst);
    // Without a title of our own the window keeps that of the shell. Text from hosts never goes into the title.
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

/// Restores the terminal. May be called from any thread, any number of times.
fn restore() {
    if !IS_RAW.swap(false, Ordering::SeqCst) {
        return;
    }
    // Errors are ignored here, because the terminal may be gone.
    if let Some(writer) = WRITER.get() {
        let _ = write_restoring(&mut writer.clone());
        writer.wait(RESTORE_TIMEOUT);
    }
    let _ = disable_raw_mode();
}

/// Writes the sequences that undo those of [`enter_raw_mode`].
fn write_restoring(terminal: &mut impl io::Write) -> io::Result<()> {
    execute!(
        terminal,
        EndSynchronizedUpdate,
        ClicksAndWheel(false),
        DisableBracketedPaste,
        ResetColor,
        Show,
        LeaveAlternateScreen
    )
}

fn install_abort_guard() -> io::Result<()> {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    if INSTALLED.set(()).is_ok() { abort_guard::install(restore_in_abort) } else { Ok(()) }
}

/// How long the thread that writes to the terminal may take for the frame in progress.
const FRAME_TIMEOUT: Duration = Duration::from_millis(200);

/// Restores the terminal while another thread aborts, with whatever locks it holds and perhaps without free memory.
fn restore_in_abort() {
    IS_ABORTING.store(true, Ordering::SeqCst);
    if !IS_RAW.swap(false, Ordering::SeqCst) {
        return;
    }
    let deadline = Instant::now() + FRAME_TIMEOUT;
    while !WRITER.get().is_none_or(TerminalWriter::is_idle_unless_locked) && Instant::now() < deadline {
        thread::yield_now();
    }
    if let Some(settings) = SETTINGS.try_lock().ok().and_then(|mut settings| settings.take()) {
        let _ = tcsetattr(io::stdout(), OptionalActions::Now, &settings);
    }
    write_briefly(ABORTED);
    if let Ok(panics) = DEFERRED_PANICS.try_lock() {
        panics.iter().for_each(|message| write_briefly(message.as_bytes()));
    }
}

/// The sequences of [`restore`] as bytes.
const ABORTED: &[u8] = b"\x1b[?2026l\x1b[?1006l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?2004l\x1b[0m\x1b[?25h\x1b[?1049l";

/// Writes bytes as long as the terminal takes them. One by one, because a longer write blocks if only a part fits.
fn write_briefly(bytes: &[u8]) {
    let stdout = io::stdout();
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    for byte in bytes {
        let is_ready = poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], Some(&limit)).is_ok_and(|ready| ready > 0);
        if !is_ready || rustix::io::write(&stdout, &[*byte]).is_err() {
            return;
        }
    }
}

/// Mouse reports for clicks and the wheel. crossterm's `EnableMouseCapture` also reports motion, which wakes the
/// program for every move and disables text selection in the terminal.
struct ClicksAndWheel(bool);

impl Command for ClicksAndWheel {
    fn write_ansi(&self, writer: &mut impl fmt::Write) -> fmt::Result {
        // Turning it off also clears modes that another program may have left on.
        writer.write_str(if self.0 { "\x1b[?1000h\x1b[?1006h" } else { "\x1b[?1006l\x1b[?1003l\x1b[?1002l\x1b[?1000l" })
    }
}

fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        panic::set_hook(Box::new(move |info| {
            let drawing = *DRAWING_THREAD.lock().unwrap_or_else(PoisonError::into_inner);
            // Host tasks may run on the same thread.
            let is_drawing = drawing == Some(thread::current().id()) && tokio::task::try_id().is_none();
            let who = if is_drawing { "gpufleet" } else { "gpufleet: a task" };
            if is_drawing {
                // First of all: a panic in the following lines aborts.
                restore();
            }
            let message = panic_message(who, &info.to_string(), &Backtrace::capture());
            if !is_drawing && IS_RAW.load(Ordering::SeqCst) {
                DEFERRED_PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(message);
            } else {
                print_deferred_panics();
                print_error(&message);
            }
        }));
    });
}

/// Returns the message of a panic. Its text may contain bytes from a host, so it is cleaned line by line.
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
        print_error(&message);
    }
}

/// [`TerminalWriter::offer`] drops its bytes while this many are waiting.
const MAX_WAITING: usize = 64 * 1024;

/// Writes to the terminal on a thread, so that a terminal that accepts no output blocks neither the event loop nor the
/// hosts. A clone writes to the same terminal.
///
/// The event loop draws only while the writer is idle. So at most one frame waits, and the next one shows the latest
/// state.
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
    /// The error of the last write, until it is returned.
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
    /// No thread can be created.
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

    /// Whether everything is written, or another thread holds the lock and may never release it.
    fn is_idle_unless_locked(&self) -> bool {
        self.shared.state.try_lock().is_ok_and(|state| state.is_idle())
    }

    /// Waits until everything is written or a write has failed. Cancel safe.
    pub(super) async fn idle(&self) {
        loop {
            let became_idle = self.shared.became_idle.notified();
            if self.is_idle() {
                return;
            }
            became_idle.await;
        }
    }

    /// Blocks until everything is written, at most `limit`. Returns whether it is.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), limit, |state| !state.is_idle());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_idle()
    }

    /// Writes bytes that may be lost: they are dropped while too much is waiting.
    ///
    /// # Errors
    /// As for [`Write::write`] of this type.
    pub(super) fn offer(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.shared.lock().waiting.len() + bytes.len() > MAX_WAITING { Ok(()) } else { self.write_all(bytes) }
    }
}

/// Never blocks. Returns the error of an earlier write.
impl Write for TerminalWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if IS_ABORTING.load(Ordering::SeqCst) {
            return Ok(bytes.len());
        }
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
                // The rest would follow half a frame.
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

    /// Records every write.
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
    fn a_frame_is_one_write_within_a_synchronized_update() {
        let (columns, rows) = (300, 90);
        let mut app = app(16, 8, (columns, rows));
        let writes = Writes::default();
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, columns, rows)) };
        let backend = CrosstermBackend::new(FrameWriter::new(writes.clone()));
        let mut terminal = Terminal::with_options(backend, options).expect("a terminal");
        for (keys, frames) in [("", 1), ("2", 2), ("1\n", 3), ("3", 4), ("3", 5)] {
            press(&mut app, keys);
            draw(&mut terminal, None, |frame| {
                crate::ui::draw(&app, frame, at(NOW));
            })
            .expect("draws");
            let writes = writes.0.borrow();
            assert_eq!(writes.len(), frames, "after {keys:?}");
            let frame = &writes[frames - 1];
            assert!(frame.starts_with(BEGIN) && frame.ends_with(END), "after {keys:?}");
            assert_eq!(String::from_utf8_lossy(frame).matches("\x1b[?2026").count(), 2, "after {keys:?}");
        }
    }

    #[test]
    fn an_abort_writes_the_sequences_that_restore_the_terminal() {
        let mut restoring = Vec::new();
        write_restoring(&mut restoring).expect("writes");
        assert_eq!(String::from_utf8_lossy(ABORTED), String::from_utf8_lossy(&restoring));
    }

    #[test]
    fn other_output_is_written_at_once() {
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
    fn panic_messages_contain_no_escape_sequences() {
        let message = panic_message("gpufleet", "panicked at a.rs:1:1:\nno `\x1b]0;x\x07`", &Backtrace::disabled());
        assert_eq!(message, "gpufleet panicked at a.rs:1:1:\nno `␛]0;x␇`\nPlease report this as a bug.\n");
    }

    const DEADLINE: Duration = Duration::from_secs(5);

    /// A terminal that accepts one write per message, and fails when the sender is dropped.
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
    async fn writes_do_not_block_on_a_stopped_terminal() {
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
    fn offered_bytes_are_dropped_while_too_much_is_waiting() {
        let (mut writer, turn, took) = slow();
        writer.write_all(b"frame").expect("waits");
        // Once the thread has taken the frame, further bytes wait behind it.
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
    fn a_write_error_is_returned_by_the_next_write() {
        let (mut writer, turn, _took) = slow();
        drop(turn);
        writer.write_all(b"frame").expect("waits");
        assert!(writer.wait(DEADLINE));
        let error = writer.write_all(b"frame").expect_err("is reported");
        assert_eq!(error.to_string(), "the terminal is gone");
    }
}
