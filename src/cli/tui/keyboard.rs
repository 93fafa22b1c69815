//! What the terminal sends: keys, pastes, clicks, sizes.

use super::background_color::TerminalReply;
use super::terminal_query::LateReplyFilter;
use crossterm::event::{self, Event, KeyEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Events that may wait for the loop; it takes them at once.
const WAITING: usize = 64;
/// How long crossterm waits for more that is there already; it does not look at all when it is given no time.
const LOOK: Duration = Duration::from_millis(1);
/// The thread that reads ends at once; one that hangs in a terminal that is gone is not waited for.
const END_LIMIT: Duration = Duration::from_millis(500);

/// Reads the terminal in a thread of its own; dropping it ends the thread.
///
/// crossterm's own stream has a thread, too, which holds a lock nearly always: each poll of the loop yielded the CPU
/// about twenty times before it gave up (measured with 16 hosts at 1 s: 320 calls of `sched_yield` a second), and there
/// is no knowing when the thread has ended, so that it took the first key that was meant for a shell. This one waits in
/// poll(2) for the terminal and for its own end, and is heard when it has ended.
#[derive(Debug)]
pub(super) struct Keyboard {
    /// Keys that were read already, before all others.
    ready: VecDeque<KeyEvent>,
    late: LateReplyFilter,
    events: mpsc::Receiver<io::Result<Event>>,
    resized: Signal,
    /// Closing it ends the thread.
    alive: io::PipeWriter,
    ended: oneshot::Receiver<()>,
}

impl Keyboard {
    /// Begins to read. To be called within a tokio runtime, once the terminal is in raw mode.
    ///
    /// # Errors
    /// When there is no terminal to read, or no pipe to be had.
    pub(super) fn start() -> io::Result<Self> {
        Self::after(TerminalReply::default())
    }

    /// The same after the terminal was asked something: what was typed meanwhile comes first.
    ///
    /// # Errors
    /// As [`Keyboard::start`].
    pub(super) fn after(reply: TerminalReply) -> io::Result<Self> {
        let (sender, events) = mpsc::channel(WAITING);
        let (tell_end, ended) = oneshot::channel();
        let (closed, alive) = io::pipe()?;
        let resized = signal(SignalKind::window_change())?;
        let terminal = if io::stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
        thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
            let stdin = io::stdin();
            let terminal = terminal.as_ref().map_or_else(|| stdin.as_fd(), |file| file.as_fd());
            if let Err(error) = read(terminal, &closed, &sender) {
                // Nobody listens once the loop has ended.
                let _sent = sender.blocking_send(Err(error));
            }
            let _heard = tell_end.send(());
        })?;
        let late = LateReplyFilter::new(reply.may_reply_late);
        Ok(Self { ready: reply.typed_keys.into(), late, events, resized, alive, ended })
    }

    /// Ends the reading, so that another program can have the terminal's input: when this returns nothing is read any
    /// more, and what was read and not looked at is dropped.
    pub(super) async fn stop(self) {
        let Self { events, alive, ended, .. } = self;
        drop((events, alive));
        // One that does not end hangs in a terminal that is gone.
        let _ended = tokio::time::timeout(END_LIMIT, ended).await;
        discard();
    }

    /// The next event, an error when the terminal cannot be read, `None` when it has ended.
    pub(super) async fn next(&mut self) -> Option<io::Result<Event>> {
        loop {
            if let Some(key) = self.ready.pop_front() {
                return Some(Ok(Event::Key(key)));
            }
            let event = tokio::select! {
                event = self.events.recv() => event,
                Some(()) = self.resized.recv() => {
                    Some(crossterm::terminal::size().map(|(columns, rows)| Event::Resize(columns, rows)))
                }
            };
            match event {
                Some(Ok(Event::Key(key))) => self.ready.extend(self.late.filter(key)),
                other => return other,
            }
        }
    }
}

/// Reads until the other end of `closed` is closed, the terminal has gone, or nobody listens any more.
fn read(terminal: BorrowedFd<'_>, closed: &io::PipeReader, sender: &mpsc::Sender<io::Result<Event>>) -> io::Result<()> {
    loop {
        let mut wanted = [PollFd::from_borrowed_fd(terminal, PollFlags::IN), PollFd::new(closed, PollFlags::IN)];
        match poll(&mut wanted, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        let [terminal, closed] = wanted.map(|fd| fd.revents());
        // crossterm would read a terminal that is gone again and again.
        if !closed.is_empty() || terminal.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(());
        }
        while event::poll(LOOK)? {
            if sender.blocking_send(event::read()).is_err() {
                return Ok(());
            }
        }
    }
}

/// Drops what has been typed and not been looked at: it was meant for what was on the screen then.
pub(super) fn discard() {
    while event::poll(LOOK).unwrap_or(false) {
        // What cannot be read is not there to be dropped.
        if event::read().is_err() {
            return;
        }
    }
}
