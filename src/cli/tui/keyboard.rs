//! Input from the terminal: keys, pastes, clicks and sizes, and the reply to a query of the background colour.
//!
//! The query runs before the screen starts. crossterm would read the reply as keys and does not return unread bytes, so
//! this module reads the terminal itself during the query ([`InputParser`]) and passes the keys that were typed
//! meanwhile to the screen. A reply that arrives after the timeout is dropped ([`LateReplyFilter`]).

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// The capacity of the event channel.
const CHANNEL_CAPACITY: usize = 64;
/// How long crossterm waits for further input. With a zero timeout it does not read at all.
const READ_TIMEOUT: Duration = Duration::from_millis(1);
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
    /// Keys that come before those of the thread.
    ready: VecDeque<KeyEvent>,
    late_reply: LateReplyFilter,
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

    /// Like [`Keyboard::start`], and returns the keys that were typed during a query first.
    pub(super) fn after(reply: TerminalReply) -> io::Result<Self> {
        let (sender, events) = mpsc::channel(CHANNEL_CAPACITY);
        let (end_sender, ended) = oneshot::channel();
        let (closed, alive) = io::pipe()?;
        let resized = signal(SignalKind::window_change())?;
        let terminal = open_input()?;
        thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
            if let Err(error) = read_events(&terminal, &closed, &sender) {
                // The receiver is gone when the loop has ended.
                let _sent = sender.blocking_send(Err(error));
            }
            let _received = end_sender.send(());
        })?;
        let late_reply = LateReplyFilter::new(reply.may_reply_late);
        Ok(Self { ready: reply.typed_keys.into(), late_reply, events, resized, alive, ended })
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
                Some(Ok(Event::Key(key))) => self.ready.extend(self.late_reply.filter(key)),
                other => return other,
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
fn read_events(terminal: &File, closed: &io::PipeReader, sender: &mpsc::Sender<io::Result<Event>>) -> io::Result<()> {
    loop {
        let mut wanted = [PollFd::new(terminal, PollFlags::IN), PollFd::new(closed, PollFlags::IN)];
        match poll(&mut wanted, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        let [terminal, closed] = wanted.map(|fd| fd.revents());
        // crossterm would read a terminal that is gone in a busy loop. On macOS POLLNVAL means that poll(2) does not
        // support `/dev/tty`, which is not an error: crossterm reads it with select(2).
        let cannot_poll = cfg!(target_os = "macos") && terminal.contains(PollFlags::NVAL);
        if !closed.is_empty() || !cannot_poll && terminal.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        {
            return Ok(());
        }
        let wait = if cannot_poll { UNPOLLABLE_WAIT } else { READ_TIMEOUT };
        while event::poll(wait)? {
            if sender.blocking_send(event::read()).is_err() {
                return Ok(());
            }
        }
    }
}

/// Drops pending input, which was typed for an earlier screen.
pub(super) fn discard() {
    while event::poll(READ_TIMEOUT).unwrap_or(false) {
        // Input that cannot be read need not be dropped.
        if event::read().is_err() {
            return;
        }
    }
}

/// OSC 11 queries the background. Every terminal replies to DA1 after it, so there is no wait for a terminal that does
/// not support OSC 11.
const QUERY: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";
/// The bytes of a key arrive together: an escape that is alone for this long is the Esc key.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(20);
/// The maximum input during the query. The rest of a larger paste is left for the screen.
const MAX_BYTES: usize = 4096;

/// The result of a query.
#[derive(Debug, Default)]
pub(super) struct TerminalReply {
    /// Whether the background is light; `None` without a reply.
    pub(super) is_light: Option<bool>,
    /// The keys that were typed during the query, in order.
    pub(super) typed_keys: Vec<KeyEvent>,
    /// The terminal has not replied and may still do so.
    pub(super) may_reply_late: bool,
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
    let typed = if output.write_all(QUERY).is_ok() { read_reply(&mut input, limit) } else { InputParser::default() };
    let _set = disable_raw_mode();
    TerminalReply {
        may_reply_late: !typed.has_replied(),
        is_light: typed.background().and_then(parse_background),
        typed_keys: typed.into_keys(),
    }
}

fn read_reply(terminal: &mut File, limit: Duration) -> InputParser {
    let mut typed = InputParser::default();
    let (end, mut count) = (Instant::now() + limit, 0);
    // Read what has begun to its end, because the rest of a sequence would be read as other keys.
    while count < MAX_BYTES && !(typed.has_replied() && typed.is_complete()) {
        let left = end.saturating_duration_since(Instant::now());
        let wait = if typed.is_escape() { left.min(ESCAPE_TIMEOUT) } else { left };
        match wait_for(terminal, wait) {
            Some(true) => {}
            Some(false) if typed.is_escape() => {
                typed.end_escape();
                continue;
            }
            _ => break,
        }
        let mut bytes = [0; 64];
        match terminal.read(&mut bytes) {
            Ok(read @ 1..) => {
                typed.take(&bytes[..read]);
                count += read;
            }
            _ => break,
        }
    }
    typed
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

/// Splits bytes into keys and replies.
#[derive(Debug, Default)]
pub(super) struct InputParser {
    /// The beginning of an unfinished sequence.
    rest: Vec<u8>,
    keys: Vec<KeyEvent>,
    background: Option<String>,
    has_replied: bool,
}

/// The meaning of the first bytes.
enum Token {
    Key(KeyEvent),
    /// An OSC, DCS or similar string without its delimiters: `11;rgb:ffff/ffff/ffff`.
    Text(String),
    /// The reply to DA1.
    Attributes,
    /// A sequence without a meaning here.
    Other,
}

impl InputParser {
    /// Adds bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some((first, used)) = next_token(&self.rest) {
            self.rest.drain(..used);
            match first {
                Token::Key(key) => self.keys.push(key),
                Token::Text(text) if text.starts_with("11;") => self.background = Some(text),
                Token::Attributes => self.has_replied = true,
                Token::Text(_) | Token::Other => {}
            }
        }
    }

    /// Whether the unfinished sequence is a single escape: the Esc key or the beginning of a sequence.
    pub(super) fn is_escape(&self) -> bool {
        self.rest == [ESCAPE]
    }

    /// Takes the single escape as the Esc key.
    pub(super) fn end_escape(&mut self) {
        self.rest.clear();
        self.keys.push(KeyCode::Esc.into());
    }

    /// Whether no sequence is unfinished.
    pub(super) fn is_complete(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether the terminal has replied to DA1.
    pub(super) fn has_replied(&self) -> bool {
        self.has_replied
    }

    /// Returns the reply to OSC 11: `11;rgb:ffff/ffff/ffff`.
    pub(super) fn background(&self) -> Option<&str> {
        self.background.as_deref()
    }

    /// Returns the keys in the order in which they were typed.
    pub(super) fn into_keys(mut self) -> Vec<KeyEvent> {
        if self.is_escape() {
            self.end_escape();
        }
        self.keys
    }
}

/// Returns the first key or reply and its length; `None` while it is unfinished.
fn next_token(bytes: &[u8]) -> Option<(Token, usize)> {
    match bytes {
        [] | [ESCAPE] | [ESCAPE, b'O'] => None,
        [ESCAPE, b'[', rest @ ..] => control_sequence(rest).map(|(first, used)| (first, used + 2)),
        [ESCAPE, b']' | b'P' | b'_' | b'^' | b'X', rest @ ..] => text(rest).map(|(first, used)| (first, used + 2)),
        [ESCAPE, b'O', letter, ..] => Some((key_or_other(letter_key(*letter), KeyModifiers::NONE), 3)),
        [ESCAPE, ESCAPE, ..] => Some((Token::Key(KeyCode::Esc.into()), 1)),
        [ESCAPE, rest @ ..] => character(rest).map(|(key, used)| {
            let with_alt = key.map(|key| KeyEvent::new(key.code, key.modifiers | KeyModifiers::ALT));
            (with_alt.map_or(Token::Other, Token::Key), used + 1)
        }),
        _ => character(bytes).map(|(key, used)| (key.map_or(Token::Other, Token::Key), used)),
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
    if (parameters.first(), last) == (Some(&b'?'), b'c') {
        return Some((Token::Attributes, end + 1));
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
        b'Z' => return Some((Token::Key(KeyEvent::new(KeyCode::BackTab, KeyModifiers::SHIFT)), end + 1)),
        letter => letter_key(letter),
    };
    Some((key_or_other(key, modifiers), end + 1))
}

fn key_or_other(key: Option<KeyCode>, modifiers: KeyModifiers) -> Token {
    key.map_or(Token::Other, |code| Token::Key(KeyEvent::new(code, modifiers)))
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

/// Drops a reply that arrives after its deadline, so that it is not read as keys.
///
/// crossterm reads `ESC ] 11;rgb:ffff/ffff/ffff ESC \` as Alt-], letters and Alt-\. (It drops the reply to DA1 itself.)
/// No user types this beginning, and the length of the rest is limited.
#[derive(Debug)]
pub(super) struct LateReplyFilter {
    /// Keys that may be the beginning of a reply.
    held: Vec<KeyEvent>,
    /// The number of keys of the reply so far; 0 before its beginning is complete.
    passed: usize,
    is_over: bool,
}

impl LateReplyFilter {
    /// Creates a filter. It is active only if the terminal may still reply.
    pub(super) fn new(may_reply: bool) -> Self {
        Self { held: Vec::new(), passed: 0, is_over: !may_reply }
    }

    /// Returns the keys of the user among this key and those held back before it.
    pub(super) fn filter(&mut self, key: KeyEvent) -> Vec<KeyEvent> {
        const BEGINNING: [char; 4] = [']', '1', '1', ';'];
        if self.is_over {
            return vec![key];
        }
        if self.passed > 0 {
            self.passed += 1;
            let is_end = key.code == KeyCode::Char('\\') && key.modifiers == KeyModifiers::ALT
                || key.code == KeyCode::Char('g') && key.modifiers == KeyModifiers::CONTROL;
            self.is_over = is_end || self.passed > MAX_SEQUENCE;
            return Vec::new();
        }
        let place = self.held.len();
        let wanted = if place == 0 { KeyModifiers::ALT } else { KeyModifiers::NONE };
        self.held.push(key);
        if (key.code, key.modifiers) != (KeyCode::Char(BEGINNING[place]), wanted) {
            return std::mem::take(&mut self.held);
        }
        if self.held.len() == BEGINNING.len() {
            self.passed = self.held.len();
            self.held.clear();
        }
        Vec::new()
    }
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

    fn typed(bytes: &[u8]) -> Vec<KeyEvent> {
        let mut typed = InputParser::default();
        typed.take(bytes);
        typed.into_keys()
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
    }

    #[test]
    fn other_sequences_give_no_keys() {
        for bytes in [&b"\xff\xfe"[..], b"\x1b[I", b"\x1b[200~", b"\x1b[99~", b"\x1bPtext\x1b\\", b"\xe5\xa4", b"\xf5"]
        {
            assert_eq!(typed(bytes), [], "{bytes:?}");
        }
        assert_eq!(typed(b"\xe5q"), [KeyCode::Char('q').into()], "a broken character takes no other with it");
        let endless = [b"\x1b]".to_vec(), vec![b'x'; 2 * MAX_SEQUENCE], b"q".to_vec()].concat();
        let mut ahead = InputParser::default();
        ahead.take(&endless);
        ahead.take(b"q");
        assert_eq!(ahead.into_keys(), [KeyCode::Char('q').into()], "what never ends is dropped");
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
            prop_assert!(ahead.has_replied() && ahead.is_complete());
            prop_assert_eq!(ahead.background().is_some(), answer != 2);
            let expected: Vec<KeyEvent> =
                before.iter().chain(&after).map(|place| key(KEYS[*place].1, KEYS[*place].2)).collect();
            prop_assert_eq!(ahead.into_keys(), expected);
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

    /// The reply as crossterm reads it.
    fn late(answer: &str) -> Vec<KeyEvent> {
        let alt = |letter| key(KeyCode::Char(letter), KeyModifiers::ALT);
        let letters = answer.chars().map(|letter| KeyCode::Char(letter).into());
        [alt(']')].into_iter().chain(letters).chain([alt('\\')]).collect()
    }

    #[test]
    fn a_late_reply_is_dropped() {
        let filter = |may_reply: bool, keys: &[KeyEvent]| -> Vec<KeyEvent> {
            let mut late = LateReplyFilter::new(may_reply);
            keys.iter().flat_map(|key| late.filter(*key)).collect()
        };
        let q: KeyEvent = KeyCode::Char('q').into();
        let answer = late("11;rgb:1e1e/1e1e/2e2e");
        assert_eq!(filter(true, &[&[q], &answer[..], &[q]].concat()), [q, q]);
        let bell = key(KeyCode::Char('g'), KeyModifiers::CONTROL);
        assert_eq!(filter(true, &[&answer[..answer.len() - 1], &[bell, q]].concat()), [q]);
        // Similar input of a user is kept.
        let like_it = late("12;");
        assert_eq!(filter(true, &like_it), like_it);
        assert_eq!(filter(false, &answer), answer, "nothing was asked");
        let twice = [&answer[..], &answer].concat();
        assert_eq!(filter(true, &twice), answer, "it answers once");
        let endless = late(&("11;".to_owned() + &"x".repeat(2 * MAX_SEQUENCE)));
        assert!(!filter(true, &endless).is_empty(), "what never ends lets go");
    }
}
