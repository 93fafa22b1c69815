//! Input from the terminal: keys, pastes, clicks and sizes, and the reply to a query of the background colour.
//!
//! [`InputParser`] reads keys as crossterm does, for two reasons. crossterm keeps the bytes that it has read, so a pasted
//! passphrase would stay in memory; this module zeroizes its buffers. crossterm would also take the reply to the query,
//! which runs before the screen starts, for keys.

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use zeroize::{Zeroize as _, Zeroizing};

/// The capacity of the event channel.
const CHANNEL_CAPACITY: usize = 64;
/// The number of bytes in one read.
const READ_BYTES: usize = 1024;
/// How long crossterm waits for a terminal that poll(2) does not support. macOS returns POLLNVAL for `/dev/tty`, which
/// crossterm reads with select(2). The wait is short, so that the thread notices its end soon.
const UNPOLLABLE_WAIT: Duration = Duration::from_millis(50);
/// How long to wait for the end of the thread. A thread that blocks in a terminal that is gone does not end.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// Reads the terminal on a thread. Dropping it ends the thread.
///
/// crossterm's `EventStream` has a thread as well, but it holds a lock nearly always, so that each poll of the loop
/// yields the CPU about twenty times (measured with 16 hosts at 1 s: 320 calls of `sched_yield` per second). Its end
/// cannot be awaited either, so it took the first key that was meant for a remote shell. This thread waits in poll(2)
/// for input or its end, and reports when it has ended.
#[derive(Debug)]
pub(super) struct Keyboard {
    events: mpsc::Receiver<io::Result<Event>>,
    resized: Signal,
    /// Closing it ends the thread.
    alive: io::PipeWriter,
    ended: oneshot::Receiver<()>,
}

impl Keyboard {
    /// Starts to read. Must be called within a tokio runtime, in raw mode.
    ///
    /// # Errors
    /// There is no terminal, or no pipe can be created.
    pub(super) fn start() -> io::Result<Self> {
        Self::after(TerminalReply::default())
    }

    /// Like [`Keyboard::start`], and continues with the input that was read during a query.
    pub(super) fn after(reply: TerminalReply) -> io::Result<Self> {
        let (sender, events) = mpsc::channel(CHANNEL_CAPACITY);
        let (end_sender, ended) = oneshot::channel();
        let (closed, alive) = io::pipe()?;
        let resized = signal(SignalKind::window_change())?;
        let terminal = open_input()?;
        thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
            if let Err(error) = read_events(terminal, &closed, &sender, reply.input) {
                // The receiver is gone when the loop has ended.
                let _sent = sender.blocking_send(Err(error));
            }
            let _received = end_sender.send(());
        })?;
        Ok(Self { events, resized, alive, ended })
    }

    /// Stops reading, so that another program can read the terminal. Events that were read but not returned are
    /// dropped.
    pub(super) async fn stop(self) {
        let Self { events, alive, ended, .. } = self;
        drop((events, alive));
        // A thread that does not end blocks in a terminal that is gone.
        let _ended = tokio::time::timeout(STOP_TIMEOUT, ended).await;
        discard();
    }

    /// Returns the next event, an error if the terminal cannot be read, or `None` if it is gone.
    pub(super) async fn next(&mut self) -> Option<io::Result<Event>> {
        tokio::select! {
            event = self.events.recv() => event,
            Some(()) = self.resized.recv() => {
                Some(crossterm::terminal::size().map(|(columns, rows)| Event::Resize(columns, rows)))
            }
        }
    }
}

/// Opens the terminal for input: standard input if it is a terminal, otherwise `/dev/tty`, which poll(2) does not
/// support on macOS.
fn open_input() -> io::Result<File> {
    let stdin = io::stdin();
    if stdin.is_terminal() { Ok(File::from(stdin.as_fd().try_clone_to_owned()?)) } else { File::open("/dev/tty") }
}

/// Reads until the other end of `closed` is closed, the terminal is gone, or the receiver is dropped.
fn read_events(
    mut terminal: File,
    closed: &io::PipeReader,
    sender: &mpsc::Sender<io::Result<Event>>,
    mut input: InputParser,
) -> io::Result<()> {
    loop {
        for event in input.take_events() {
            if sender.blocking_send(Ok(event)).is_err() {
                return Ok(());
            }
        }
        let timeout = input.is_ambiguous().then_some(ESCAPE_TIMEOUT);
        let timeout = timeout.map(|limit| Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos() as _ });
        let mut wanted = [PollFd::new(&terminal, PollFlags::IN), PollFd::new(closed, PollFlags::IN)];
        match poll(&mut wanted, timeout.as_ref()) {
            Ok(0) => {
                input.end_ambiguous();
                continue;
            }
            Err(Errno::INTR) => continue,
            result => result?,
        };
        let [terminal_events, closed_events] = wanted.map(|fd| fd.revents());
        if !closed_events.is_empty() {
            return Ok(());
        }
        // On macOS POLLNVAL means that poll(2) does not support `/dev/tty`, which is not an error.
        if cfg!(target_os = "macos") && terminal_events.contains(PollFlags::NVAL) {
            return read_with_crossterm(closed, sender);
        }
        if terminal_events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(());
        }
        if !terminal_events.is_empty() && !input.read_from(&mut terminal)? {
            return Ok(());
        }
    }
}

/// Like [`read_events`], for a terminal that poll(2) does not support: crossterm reads it with select(2).
fn read_with_crossterm(closed: &io::PipeReader, sender: &mpsc::Sender<io::Result<Event>>) -> io::Result<()> {
    loop {
        let mut wanted = [PollFd::new(closed, PollFlags::IN)];
        if poll(&mut wanted, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return Ok(());
        }
        while event::poll(UNPOLLABLE_WAIT)? {
            if sender.blocking_send(event::read()).is_err() {
                return Ok(());
            }
        }
    }
}

/// Drops pending input, which was typed for an earlier screen.
pub(super) fn discard() {
    // Input that cannot be dropped is read.
    let _ = open_input().map(|terminal| tcflush(&terminal, QueueSelector::IFlush));
}

/// OSC 11 queries the background. Every terminal replies to DA1 after it, so there is no wait for a terminal that does
/// not support OSC 11.
const QUERY: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";
/// The bytes of a key arrive together: an escape that is alone for this long is the Esc key.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(20);
/// The maximum number of reads during the query. The rest of a large paste is left for the screen.
const MAX_READS: usize = 64;

/// The result of a query.
#[derive(Debug, Default)]
pub(super) struct TerminalReply {
    /// Whether the background is light; `None` without a reply.
    pub(super) is_light: Option<bool>,
    /// Other input during the query. A reply that arrives after the query ends here, too.
    input: InputParser,
}

/// Queries the background and waits at most `limit`. Must be called before anything else reads the terminal.
pub(super) fn query_background(limit: Duration) -> TerminalReply {
    // If the terminal is gone, drawing reports it.
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let (Ok(mut input), Ok(mut output)) = (open_input(), stdout.map(File::from)) else {
        return TerminalReply::default();
    };
    // A write to a stopped terminal and a read without poll(2) have no time limit.
    if !takes_bytes(&output) || !can_poll(&input) || enable_raw_mode().is_err() {
        return TerminalReply::default();
    }
    let mut typed = InputParser::default();
    if output.write_all(QUERY).is_ok() {
        read_reply(&mut input, &mut typed, limit);
    }
    let _set = disable_raw_mode();
    TerminalReply { is_light: typed.background().and_then(parse_background), input: typed }
}

fn read_reply(terminal: &mut File, typed: &mut InputParser, limit: Duration) {
    let (end, mut count) = (Instant::now() + limit, 0);
    while count < MAX_READS && !typed.has_replied() {
        if wait_for(terminal, end.saturating_duration_since(Instant::now())) != Some(true)
            || !typed.read_from(terminal).unwrap_or(false)
        {
            return;
        }
        count += 1;
    }
}

/// Whether input arrives within `limit`; `None` if the terminal is gone.
fn wait_for(terminal: &File, limit: Duration) -> Option<bool> {
    let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    let mut wanted = [PollFd::new(terminal, PollFlags::IN)];
    Some(poll(&mut wanted, Some(&limit)).ok()? > 0)
}

/// Whether poll(2) supports this terminal. It does not support `/dev/tty` on macOS.
fn can_poll(terminal: &File) -> bool {
    let mut wanted = [PollFd::new(terminal, PollFlags::IN)];
    poll(&mut wanted, Some(&Timespec::default())).is_ok() && !wanted[0].revents().contains(PollFlags::NVAL)
}

/// Whether a short write returns at once.
fn takes_bytes(terminal: &File) -> bool {
    let mut wanted = [PollFd::new(terminal, PollFlags::OUT)];
    poll(&mut wanted, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Parses `11;rgb:RRRR/GGGG/BBBB`, with one to four digits each, and returns whether the colour is light.
fn parse_background(answer: &str) -> Option<bool> {
    let colour = answer.strip_prefix("11;rgb")?;
    let colour = colour.strip_prefix('a').unwrap_or(colour).strip_prefix(':')?;
    let mut shares = colour.split('/').take(3).map(|digits| {
        let most = 16_u32.checked_pow(digits.len() as u32).filter(|_| (1..=4).contains(&digits.len()))? - 1;
        Some(u32::from_str_radix(digits, 16).ok()? as f32 / most as f32)
    });
    let (red, green, blue) = (shares.next()??, shares.next()??, shares.next()??);
    Some(0.299 * red + 0.587 * green + 0.114 * blue > 0.5)
}

const ESCAPE: u8 = 0x1b;
/// A sequence that is longer than this is dropped.
const MAX_SEQUENCE: usize = 256;
/// The end of a bracketed paste.
const PASTE_END: &[u8] = b"\x1b[201~";
/// The maximum size of a paste; the rest is dropped.
const MAX_PASTE_BYTES: usize = 64 * 1024;

/// Splits bytes into keys, pastes, clicks and replies.
///
/// Bytes may be those of a passphrase. The buffers have their full capacity from the start, because a buffer that grows
/// leaves copies in freed memory, and are zeroized after use.
#[derive(Debug)]
pub(super) struct InputParser {
    /// Bytes that are not parsed yet: the beginning of an unfinished sequence.
    rest: Zeroizing<Vec<u8>>,
    /// The text of an unfinished paste.
    paste: Option<Zeroizing<Vec<u8>>>,
    events: Vec<Event>,
    background: Option<String>,
    has_replied: bool,
}

impl Default for InputParser {
    fn default() -> Self {
        let rest = Zeroizing::new(Vec::with_capacity(READ_BYTES + 2 * MAX_SEQUENCE));
        Self { rest, paste: None, events: Vec::new(), background: None, has_replied: false }
    }
}

/// The meaning of the first bytes.
enum Token {
    Event(Event),
    /// The beginning of a bracketed paste.
    Paste,
    /// An OSC, DCS or similar string without its delimiters: `11;rgb:ffff/ffff/ffff`.
    Text(String),
    /// The reply to DA1.
    Attributes,
    /// A sequence without a meaning here.
    Other,
}

impl From<KeyEvent> for Token {
    fn from(key: KeyEvent) -> Self {
        Self::Event(Event::Key(key))
    }
}

impl InputParser {
    /// Reads once from the terminal. Returns false at its end.
    fn read_from(&mut self, terminal: &mut File) -> io::Result<bool> {
        let mut bytes = Zeroizing::new([0; READ_BYTES]);
        match terminal.read(&mut *bytes) {
            Ok(count) => {
                self.take(&bytes[..count]);
                Ok(count > 0)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Adds bytes, at most [`READ_BYTES`].
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let mut parsed = 0;
        loop {
            if self.paste.is_some() {
                parsed += self.take_paste(parsed);
                if self.paste.is_some() {
                    break;
                }
            }
            let Some((first, used)) = next_token(&self.rest[parsed..]) else { break };
            parsed += used;
            match first {
                Token::Event(event) => self.events.push(event),
                Token::Paste => self.paste = Some(Zeroizing::new(Vec::with_capacity(MAX_PASTE_BYTES))),
                Token::Text(text) if text.starts_with("11;") => self.background = Some(text),
                Token::Attributes => self.has_replied = true,
                Token::Text(_) | Token::Other => {}
            }
        }
        let mut kept = Zeroizing::new([0; PASTE_END.len() + 2 * MAX_SEQUENCE]);
        let count = self.rest.len() - parsed;
        match kept.get_mut(..count) {
            Some(kept) => {
                kept.copy_from_slice(&self.rest[parsed..]);
                self.rest.zeroize();
                self.rest.extend_from_slice(kept);
            }
            // Unreachable: an unfinished sequence is shorter.
            None => self.rest.zeroize(),
        }
    }

    /// Moves bytes of `rest` from `start` to the paste, and returns their number. The paste ends with its end mark.
    fn take_paste(&mut self, start: usize) -> usize {
        let bytes = &self.rest[start..];
        let end = bytes.windows(PASTE_END.len()).position(|window| window == PASTE_END);
        // The last bytes may be the beginning of the end mark.
        let count = end.unwrap_or(bytes.len().saturating_sub(PASTE_END.len() - 1));
        if let Some(paste) = &mut self.paste {
            let room = MAX_PASTE_BYTES - paste.len();
            paste.extend_from_slice(&bytes[..count.min(room)]);
        }
        if end.is_none() {
            return count;
        }
        if let Some(mut paste) = self.paste.take() {
            // Without a copy, unless the text is invalid. `App` zeroizes it.
            let text = String::from_utf8(std::mem::take(&mut *paste)).unwrap_or_else(|error| {
                let bytes = Zeroizing::new(error.into_bytes());
                String::from_utf8_lossy(&bytes).into_owned()
            });
            self.events.push(Event::Paste(text));
        }
        count + PASTE_END.len()
    }

    /// Takes the events so far, in order.
    fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether the unfinished sequence may be a key by itself: Esc, or Alt and the second byte of a sequence.
    fn is_ambiguous(&self) -> bool {
        self.paste.is_none() && matches!(self.rest[..], [ESCAPE] | [ESCAPE, _])
    }

    /// Takes the ambiguous sequence as a key.
    fn end_ambiguous(&mut self) {
        if !self.is_ambiguous() {
            return;
        }
        let key = match self.rest.get(1..).and_then(character) {
            Some((Some(key), _)) => KeyEvent::new(key.code, key.modifiers | KeyModifiers::ALT),
            Some((None, _)) | None => KeyCode::Esc.into(),
        };
        self.events.push(Event::Key(key));
        self.rest.zeroize();
    }

    /// Whether the terminal has replied to DA1.
    fn has_replied(&self) -> bool {
        self.has_replied
    }

    /// Returns the reply to OSC 11: `11;rgb:ffff/ffff/ffff`.
    fn background(&self) -> Option<&str> {
        self.background.as_deref()
    }
}

/// Returns the first key or reply and its length; `None` while it is unfinished.
fn next_token(bytes: &[u8]) -> Option<(Token, usize)> {
    match bytes {
        [] | [ESCAPE] | [ESCAPE, b'O'] => None,
        [ESCAPE, b'[', rest @ ..] => control_sequence(rest).map(|(first, used)| (first, used + 2)),
        [ESCAPE, b']' | b'P' | b'_' | b'^' | b'X', rest @ ..] => text(rest).map(|(first, used)| (first, used + 2)),
        [ESCAPE, b'O', letter, ..] => Some((key_or_other(letter_key(*letter), KeyModifiers::NONE), 3)),
        [ESCAPE, ESCAPE, ..] => Some((KeyEvent::from(KeyCode::Esc).into(), 1)),
        [ESCAPE, rest @ ..] => character(rest).map(|(key, used)| {
            let with_alt = key.map(|key| KeyEvent::new(key.code, key.modifiers | KeyModifiers::ALT));
            (with_alt.map_or(Token::Other, Token::from), used + 1)
        }),
        _ => character(bytes).map(|(key, used)| (key.map_or(Token::Other, Token::from), used)),
    }
}

/// Parses the bytes after `ESC [`: parameters, and a letter or `~`.
fn control_sequence(bytes: &[u8]) -> Option<(Token, usize)> {
    // F1 to F5 of the Linux console: `ESC [ [ A`.
    if bytes.first() == Some(&b'[') {
        let key = bytes.get(1)?.checked_sub(b'A').filter(|number| *number < 5).map(|number| KeyCode::F(number + 1));
        return Some((key_or_other(key, KeyModifiers::NONE), 2));
    }
    let Some(end) = bytes.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        return (bytes.len() > MAX_SEQUENCE).then_some((Token::Other, bytes.len()));
    };
    let (parameters, last) = (&bytes[..end], bytes[end]);
    match (parameters, last) {
        ([b'?', ..], b'c') => return Some((Token::Attributes, end + 1)),
        (b"200", b'~') => return Some((Token::Paste, end + 1)),
        ([b'<', parameters @ ..], b'M' | b'm') => return Some((sgr_mouse(parameters, last == b'm'), end + 1)),
        // The report of a terminal without the SGR mode: three bytes follow.
        ([], b'M') => {
            let [button, column, row] = *bytes.get(1..4)? else { return None };
            let [column, row] = [column, row].map(|place| u16::from(place).saturating_sub(32));
            return Some((mouse(u16::from(button).saturating_sub(32), column, row, false), 4));
        }
        _ => {}
    }
    let numbers: Vec<u8> = String::from_utf8_lossy(parameters)
        .split(';')
        .map(|number| number.split(':').next().and_then(|number| number.parse().ok()).unwrap_or(0))
        .collect();
    let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
    // The parameter is 1 plus a bit each for Shift, Alt and Control.
    let held = number(1).saturating_sub(1);
    let modifiers = [(1, KeyModifiers::SHIFT), (2, KeyModifiers::ALT), (4, KeyModifiers::CONTROL)]
        .into_iter()
        .filter(|(bit, _)| held & bit != 0)
        .fold(KeyModifiers::NONE, |all, (_, modifier)| all | modifier);
    let key = match last {
        b'~' => numbered_key(number(0)),
        b'Z' => return Some((KeyEvent::new(KeyCode::BackTab, KeyModifiers::SHIFT).into(), end + 1)),
        letter => letter_key(letter),
    };
    Some((key_or_other(key, modifiers), end + 1))
}

fn key_or_other(key: Option<KeyCode>, modifiers: KeyModifiers) -> Token {
    key.map_or(Token::Other, |code| KeyEvent::new(code, modifiers).into())
}

/// Parses the parameters of a mouse report in the SGR mode: `BUTTON;COLUMN;ROW`.
fn sgr_mouse(parameters: &[u8], is_release: bool) -> Token {
    let text = String::from_utf8_lossy(parameters);
    let mut numbers = text.split(';').map(str::parse::<u16>);
    match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(button)), Some(Ok(column)), Some(Ok(row)), None) => mouse(button, column, row, is_release),
        _ => Token::Other,
    }
}

/// Returns the click or wheel step of a mouse report, whose column and row begin at 1. Motion is not reported.
fn mouse(code: u16, column: u16, row: u16, is_release: bool) -> Token {
    // Bits 0, 1, 6 and 7 are the button; 2, 3 and 4 the modifiers; 5 marks motion.
    let kind = match code & 0b1110_0011 {
        0 if is_release => MouseEventKind::Up(MouseButton::Left),
        1 if is_release => MouseEventKind::Up(MouseButton::Middle),
        2 if is_release => MouseEventKind::Up(MouseButton::Right),
        0 => MouseEventKind::Down(MouseButton::Left),
        1 => MouseEventKind::Down(MouseButton::Middle),
        2 => MouseEventKind::Down(MouseButton::Right),
        3 => MouseEventKind::Up(MouseButton::Left),
        64 => MouseEventKind::ScrollUp,
        65 => MouseEventKind::ScrollDown,
        66 => MouseEventKind::ScrollLeft,
        67 => MouseEventKind::ScrollRight,
        _ => return Token::Other,
    };
    let modifiers = [(4, KeyModifiers::SHIFT), (8, KeyModifiers::ALT), (16, KeyModifiers::CONTROL)]
        .into_iter()
        .filter(|(bit, _)| code & bit != 0)
        .fold(KeyModifiers::NONE, |all, (_, modifier)| all | modifier);
    let (column, row) = (column.saturating_sub(1), row.saturating_sub(1));
    Token::Event(Event::Mouse(MouseEvent { kind, column, row, modifiers }))
}

/// Returns the key after `ESC O`, or after `ESC [` without a number.
fn letter_key(letter: u8) -> Option<KeyCode> {
    Some(match letter {
        b'A' => KeyCode::Up,
        b'B' => KeyCode::Down,
        b'C' => KeyCode::Right,
        b'D' => KeyCode::Left,
        b'F' => KeyCode::End,
        b'H' => KeyCode::Home,
        b'P'..=b'S' => KeyCode::F(letter - b'P' + 1),
        _ => return None,
    })
}

/// Returns the key of `ESC [ number ~`.
fn numbered_key(number: u8) -> Option<KeyCode> {
    Some(match number {
        1 | 7 => KeyCode::Home,
        2 => KeyCode::Insert,
        3 => KeyCode::Delete,
        4 | 8 => KeyCode::End,
        5 => KeyCode::PageUp,
        6 => KeyCode::PageDown,
        11..=15 => KeyCode::F(number - 10),
        17..=21 => KeyCode::F(number - 11),
        23..=24 => KeyCode::F(number - 12),
        _ => return None,
    })
}

/// Parses a string up to BEL or `ESC \`, after its introducer.
fn text(bytes: &[u8]) -> Option<(Token, usize)> {
    let bell = bytes.iter().position(|byte| *byte == 0x07).map(|at| (at, 1));
    let end = bytes.windows(2).position(|pair| pair == [ESCAPE, b'\\']).map(|at| (at, 2));
    match bell.into_iter().chain(end).min() {
        Some((at, frame)) => Some((Token::Text(String::from_utf8_lossy(&bytes[..at]).into_owned()), at + frame)),
        None => (bytes.len() > MAX_SEQUENCE).then_some((Token::Other, bytes.len())),
    }
}

/// Parses a character or a key that sends one byte; `None` inside for an invalid byte.
fn character(bytes: &[u8]) -> Option<(Option<KeyEvent>, usize)> {
    let control = |letter: u8| KeyEvent::new(KeyCode::Char(char::from(letter)), KeyModifiers::CONTROL);
    let byte = *bytes.first()?;
    let key = match byte {
        b'\r' => KeyCode::Enter.into(),
        b'\t' => KeyCode::Tab.into(),
        0x7f => KeyCode::Backspace.into(),
        0 => control(b' '),
        0x01..=0x1a => control(byte - 1 + b'a'),
        0x1b => KeyCode::Esc.into(),
        0x1c..=0x1f => control(byte - 0x1c + b'4'),
        _ => return utf8(bytes),
    };
    Some((Some(key), 1))
}

fn utf8(bytes: &[u8]) -> Option<(Option<KeyEvent>, usize)> {
    let length = match bytes.first()? {
        0x00..=0x7f => 1,
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Some((None, 1)),
    };
    let Some(whole) = bytes.get(..length) else {
        // Wait only for bytes that can still complete a character.
        let is_unfinished = bytes[1..].iter().all(|byte| (0x80..0xc0).contains(byte));
        return if is_unfinished { None } else { Some((None, 1)) };
    };
    let Some(character) = std::str::from_utf8(whole).ok().and_then(|text| text.chars().next()) else {
        return Some((None, 1));
    };
    let modifiers = if character.is_uppercase() { KeyModifiers::SHIFT } else { KeyModifiers::NONE };
    Some((Some(KeyEvent::new(KeyCode::Char(character), modifiers)), length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn background_replies_are_parsed() {
        for (answer, light) in [
            ("11;rgb:ffff/ffff/ffff", Some(true)),
            ("11;rgb:1e1e/1e1e/2e2e", Some(false)),
            ("11;rgb:fd/f6/e3", Some(true)),
            ("11;rgba:0000/0000/0000/ffff", Some(false)),
            ("11;rgb:zz/00/00", None),
            ("11;rgb:fffff/0/0", None),
            ("11;rgb:ff/ff", None),
            ("10;rgb:ff/ff/ff", None),
        ] {
            assert_eq!(parse_background(answer), light, "{answer:?}");
        }
    }

    fn events(bytes: &[u8]) -> Vec<Event> {
        let mut typed = InputParser::default();
        typed.take(bytes);
        typed.end_ambiguous();
        typed.take_events()
    }

    fn typed(bytes: &[u8]) -> Vec<KeyEvent> {
        keys(events(bytes))
    }

    fn keys(events: Vec<Event>) -> Vec<KeyEvent> {
        events.into_iter().map(|event| event.as_key_event().expect("a key")).collect()
    }

    fn key(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
        KeyEvent::new(code, modifiers)
    }

    /// The bytes of keys, and the keys that crossterm reads from them.
    const KEYS: [(&[u8], KeyCode, KeyModifiers); 34] = {
        use KeyCode::{
            BackTab, Backspace, Char, Delete, Down, End, Enter, F, Home, Insert, Left, PageDown, PageUp, Right, Tab, Up,
        };
        const NONE: KeyModifiers = KeyModifiers::NONE;
        const CONTROL: KeyModifiers = KeyModifiers::CONTROL;
        [
            (b"q", Char('q'), NONE),
            (b"/", Char('/'), NONE),
            (b"G", Char('G'), KeyModifiers::SHIFT),
            ("é".as_bytes(), Char('é'), NONE),
            ("大".as_bytes(), Char('大'), NONE),
            ("🦀".as_bytes(), Char('🦀'), NONE),
            (b"\r", Enter, NONE),
            (b"\t", Tab, NONE),
            (b"\x1b[Z", BackTab, KeyModifiers::SHIFT),
            (b"\x7f", Backspace, NONE),
            (b"\x03", Char('c'), CONTROL),
            (b"\x0c", Char('l'), CONTROL),
            (b"\x1a", Char('z'), CONTROL),
            (b"\x1f", Char('7'), CONTROL),
            (b"\0", Char(' '), CONTROL),
            (b"\x1bj", Char('j'), KeyModifiers::ALT),
            (b"\x1b[A", Up, NONE),
            (b"\x1b[B", Down, NONE),
            (b"\x1b[C", Right, NONE),
            (b"\x1bOD", Left, NONE),
            (b"\x1b[1;5C", Right, CONTROL),
            (b"\x1b[1;2H", Home, KeyModifiers::SHIFT),
            (b"\x1b[F", End, NONE),
            (b"\x1b[2~", Insert, NONE),
            (b"\x1b[3~", Delete, NONE),
            (b"\x1b[5~", PageUp, NONE),
            (b"\x1b[6~", PageDown, NONE),
            (b"\x1bOP", F(1), NONE),
            (b"\x1b[[B", F(2), NONE),
            (b"\x1b[15~", F(5), NONE),
            (b"\x1b[17~", F(6), NONE),
            (b"\x1b[21~", F(10), NONE),
            (b"\x1b[24~", F(12), NONE),
            (b"\x1b[1;3P", F(1), KeyModifiers::ALT),
        ]
    };

    const REPLIES: [&[u8]; 4] = [
        b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22c",
        b"\x1b]11;rgb:ffff/ffff/ffff\x07\x1b[?6c",
        b"\x1b[?1;2c",
        b"\x1b]11;rgba:ffff/ffff/ffff/ffff\x1b\\\x1b[?62;c",
    ];

    #[test]
    fn keys_match_those_of_crossterm() {
        for (bytes, code, modifiers) in KEYS {
            assert_eq!(typed(bytes), [key(code, modifiers)], "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(typed(b"\x1b"), [KeyCode::Esc.into()], "nothing followed");
        assert_eq!(typed(b"\x1b\x1b[A"), [KeyCode::Esc.into(), KeyCode::Up.into()]);
        for letter in ['[', 'O', ']', 'P'] {
            let modifiers = if letter.is_uppercase() { KeyModifiers::SHIFT } else { KeyModifiers::NONE };
            let expected = key(KeyCode::Char(letter), KeyModifiers::ALT | modifiers);
            assert_eq!(typed(format!("\x1b{letter}").as_bytes()), [expected], "nothing followed {letter}");
        }
    }

    #[test]
    fn a_paste_is_one_event_in_pieces_of_any_size() {
        let secret = "correct horse\r\n\x1b[31m battery \u{1f980}\x1b[201";
        let bytes = [b"q\x1b[200~", secret.as_bytes(), b"\x1b[201~w\x1b[200~\xff\x1b[201~\x1b[200~\x1b[201~"].concat();
        let expected = [
            Event::Key(KeyCode::Char('q').into()),
            Event::Paste(secret.to_owned()),
            Event::Key(KeyCode::Char('w').into()),
            Event::Paste("\u{fffd}".to_owned()),
            Event::Paste(String::new()),
        ];
        for size in 1..bytes.len() {
            let mut typed = InputParser::default();
            bytes.chunks(size).for_each(|piece| typed.take(piece));
            assert_eq!(typed.take_events(), expected, "{size}");
        }
        let long = [b"\x1b[200~".to_vec(), vec![b'x'; MAX_PASTE_BYTES + 5000], b"\x1b[201~q".to_vec()].concat();
        let mut typed = InputParser::default();
        long.chunks(READ_BYTES).for_each(|piece| typed.take(piece));
        let [Event::Paste(text), Event::Key(_)] = &typed.take_events()[..] else { panic!("a paste and a key") };
        assert_eq!(text.len(), MAX_PASTE_BYTES, "the rest is dropped");
    }

    #[test]
    fn the_buffer_holds_only_an_unfinished_sequence_and_never_grows() {
        let mut typed = InputParser::default();
        let start = typed.rest.as_ptr();
        typed.take(b"\x1b[200~correct horse\x1b[201~battery\x1b[");
        assert_eq!((&typed.rest[..], typed.rest.as_ptr()), (&b"\x1b["[..], start));
        let capacity = typed.rest.capacity();
        typed.take(b"\x1b]");
        typed.take(&[b'x'; READ_BYTES]);
        assert_eq!((typed.rest.capacity(), typed.rest.as_ptr()), (capacity, start));
    }

    #[test]
    fn clicks_and_wheel_steps_are_read() {
        let mouse = |kind, column, row, modifiers| vec![Event::Mouse(MouseEvent { kind, column, row, modifiers })];
        let left = MouseButton::Left;
        for (bytes, expected) in [
            (&b"\x1b[<0;10;5M"[..], mouse(MouseEventKind::Down(left), 9, 4, KeyModifiers::NONE)),
            (b"\x1b[<0;10;5m", mouse(MouseEventKind::Up(left), 9, 4, KeyModifiers::NONE)),
            (b"\x1b[<2;300;400M", mouse(MouseEventKind::Down(MouseButton::Right), 299, 399, KeyModifiers::NONE)),
            (b"\x1b[<64;1;1M", mouse(MouseEventKind::ScrollUp, 0, 0, KeyModifiers::NONE)),
            (b"\x1b[<65;1;1M", mouse(MouseEventKind::ScrollDown, 0, 0, KeyModifiers::NONE)),
            (b"\x1b[<20;2;2M", mouse(MouseEventKind::Down(left), 1, 1, KeyModifiers::SHIFT | KeyModifiers::CONTROL)),
            (b"\x1b[M \x2a\x25", mouse(MouseEventKind::Down(left), 9, 4, KeyModifiers::NONE)),
            (b"\x1b[M#\x2a\x25", mouse(MouseEventKind::Up(left), 9, 4, KeyModifiers::NONE)),
            (b"\x1b[<35;1;1M", Vec::new()),
            (b"\x1b[<0;1M", Vec::new()),
            (b"\x1b[<0;1;99999999M", Vec::new()),
        ] {
            assert_eq!(events(bytes), expected, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn other_sequences_give_no_keys() {
        for bytes in [&b"\xff\xfe"[..], b"\x1b[I", b"\x1b[201~", b"\x1b[99~", b"\x1bPtext\x1b\\", b"\xe5\xa4", b"\xf5"]
        {
            assert_eq!(typed(bytes), [], "{bytes:?}");
        }
        assert_eq!(typed(b"\xe5q"), [KeyCode::Char('q').into()], "a broken character takes no other with it");
        let endless = [b"\x1b]".to_vec(), vec![b'x'; 2 * MAX_SEQUENCE], b"q".to_vec()].concat();
        let mut ahead = InputParser::default();
        ahead.take(&endless);
        ahead.take(b"q");
        assert_eq!(keys(ahead.take_events()), [KeyCode::Char('q').into()], "what never ends is dropped");
    }

    proptest! {
        /// Keys before and after the reply, read in pieces of any size.
        #[test]
        fn keys_around_a_reply_are_kept_in_order(
            before in prop::collection::vec(0..KEYS.len(), 0..6), after in prop::collection::vec(0..KEYS.len(), 0..6),
            answer in 0..REPLIES.len(), pieces in prop::collection::vec(1..9_usize, 1..40),
        ) {
            let bytes = |places: &[usize]| places.iter().flat_map(|place| KEYS[*place].0.to_vec()).collect::<Vec<_>>();
            let all = [bytes(&before), REPLIES[answer].to_vec(), bytes(&after)].concat();
            let mut ahead = InputParser::default();
            let (mut rest, mut pieces) = (&all[..], pieces.into_iter().cycle());
            while !rest.is_empty() {
                let (piece, left) = rest.split_at(pieces.next().expect("it goes round").min(rest.len()));
                ahead.take(piece);
                rest = left;
            }
            prop_assert!(ahead.has_replied() && ahead.rest.is_empty());
            prop_assert_eq!(ahead.background().is_some(), answer != 2);
            let expected: Vec<KeyEvent> =
                before.iter().chain(&after).map(|place| key(KEYS[*place].1, KEYS[*place].2)).collect();
            prop_assert_eq!(keys(ahead.take_events()), expected);
        }

        #[test]
        fn arbitrary_bytes_never_panic_or_fill_memory(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut ahead = InputParser::default();
            for piece in bytes.chunks(7) {
                ahead.take(piece);
                prop_assert!(ahead.rest.len() <= MAX_SEQUENCE + 16);
            }
        }
    }
}
