//! What the terminal sends: keys, pastes, clicks, sizes.

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

/// Events that may wait for the loop; it takes them at once.
const WAITING: usize = 64;
/// How long crossterm waits for more that is there already; it does not look at all when it is given no time.
const LOOK: Duration = Duration::from_millis(1);
/// How long crossterm waits for a terminal that poll(2) does not support. macOS returns POLLNVAL for `/dev/tty`; crossterm
/// uses select(2) there. The wait is short, so that the thread notices its end soon.
const UNPOLLABLE_WAIT: Duration = Duration::from_millis(50);
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
        let terminal = open_input()?;
        thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
            if let Err(error) = read_events(&terminal, &closed, &sender) {
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

/// Opens the terminal for input: standard input if it is a terminal, otherwise `/dev/tty`, which poll(2) does not support
/// on macOS.
fn open_input() -> io::Result<File> {
    let stdin = io::stdin();
    if stdin.is_terminal() { Ok(File::from(stdin.as_fd().try_clone_to_owned()?)) } else { File::open("/dev/tty") }
}

/// Reads until the other end of `closed` is closed, the terminal has gone, or nobody listens any more.
fn read_events(terminal: &File, closed: &io::PipeReader, sender: &mpsc::Sender<io::Result<Event>>) -> io::Result<()> {
    loop {
        let mut wanted = [PollFd::new(terminal, PollFlags::IN), PollFd::new(closed, PollFlags::IN)];
        match poll(&mut wanted, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        let [terminal, closed] = wanted.map(|fd| fd.revents());
        // crossterm would read a terminal that is gone again and again.
        let cannot_poll = cfg!(target_os = "macos") && terminal.contains(PollFlags::NVAL);
        if !closed.is_empty() || !cannot_poll && terminal.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        {
            return Ok(());
        }
        let wait = if cannot_poll { UNPOLLABLE_WAIT } else { LOOK };
        while event::poll(wait)? {
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

/// OSC 11 asks for the background; every terminal answers the question behind it (DA1), so that one which does not know
/// the first is not waited for.
const QUERY: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";
/// The bytes of a key come together: an escape that nothing follows for so long is the Esc key.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(20);
/// More than a person types and a terminal answers in that time; a paste beyond it is left for the screen.
const MAX_BYTES: usize = 4096;

/// What came of asking.
#[derive(Debug, Default)]
pub(super) struct TerminalReply {
    /// What the terminal says; `None` where it does not.
    pub(super) is_light: Option<bool>,
    /// What was typed meanwhile, in order.
    pub(super) typed_keys: Vec<KeyEvent>,
    /// The terminal was asked and has not answered: it may still do so.
    pub(super) may_reply_late: bool,
}

/// Asks, and waits at most so long. To be called before anything else reads the terminal.
pub(super) fn query_background(limit: Duration) -> TerminalReply {
    // A terminal that is gone is noticed by whoever draws on it.
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
        may_reply_late: !typed.is_answered(),
        is_light: typed.background().and_then(parse_background),
        typed_keys: typed.into_keys(),
    }
}

fn read_reply(terminal: &mut File, limit: Duration) -> InputParser {
    let mut typed = InputParser::default();
    let (end, mut count) = (Instant::now() + limit, 0);
    // What has begun is read to its end: the rest of a key would be another one.
    while count < MAX_BYTES && !(typed.is_answered() && typed.is_between()) {
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

/// Whether there is something to read, `None` when the terminal is gone.
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

/// `11;rgb:RRRR/GGGG/BBBB`, with one to four digits each.
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
/// What has not ended by then never will.
const MAX_SEQUENCE: usize = 256;

/// The bytes so far, read as keys and answers.
#[derive(Debug, Default)]
pub(super) struct InputParser {
    /// The beginning of something.
    rest: Vec<u8>,
    keys: Vec<KeyEvent>,
    background: Option<String>,
    is_answered: bool,
}

/// What the first bytes are.
enum Token {
    Key(KeyEvent),
    /// Text to the terminal's program, without its frame: `11;rgb:ffff/ffff/ffff`.
    Text(String),
    /// What kind of terminal it is, the answer to DA1.
    Attributes,
    /// Nothing that means anything here.
    Other,
}

impl InputParser {
    /// Takes what was read.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some((first, used)) = next_token(&self.rest) {
            self.rest.drain(..used);
            match first {
                Token::Key(key) => self.keys.push(key),
                Token::Text(text) if text.starts_with("11;") => self.background = Some(text),
                Token::Attributes => self.is_answered = true,
                Token::Text(_) | Token::Other => {}
            }
        }
    }

    /// Whether an escape has come that may be the Esc key, or the beginning of more.
    pub(super) fn is_escape(&self) -> bool {
        self.rest == [ESCAPE]
    }

    /// Nothing followed the escape: it was the key.
    pub(super) fn end_escape(&mut self) {
        self.rest.clear();
        self.keys.push(KeyCode::Esc.into());
    }

    /// Whether everything that has begun has ended.
    pub(super) fn is_between(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether the terminal has answered the last question.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// What it says of its background: `11;rgb:ffff/ffff/ffff`.
    pub(super) fn background(&self) -> Option<&str> {
        self.background.as_deref()
    }

    /// The keys, in the order in which they were typed.
    pub(super) fn into_keys(mut self) -> Vec<KeyEvent> {
        if self.is_escape() {
            self.end_escape();
        }
        self.keys
    }
}

/// The first key or answer and its bytes; `None` while it has not ended.
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

/// Behind `ESC [`: parameters, and a letter or `~`.
fn control_sequence(bytes: &[u8]) -> Option<(Token, usize)> {
    // The Linux console's F1 to F5: `ESC [ [ A`.
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
    // 1 and a bit for each: Shift, Alt, Control.
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

/// The key behind `ESC O`, and behind `ESC [` without a number.
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

/// The key of `ESC [ number ~`.
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

/// Behind the beginning of a text: all of it, to BEL or `ESC \`.
fn text(bytes: &[u8]) -> Option<(Token, usize)> {
    let bell = bytes.iter().position(|byte| *byte == 0x07).map(|at| (at, 1));
    let end = bytes.windows(2).position(|pair| pair == [ESCAPE, b'\\']).map(|at| (at, 2));
    match bell.into_iter().chain(end).min() {
        Some((at, frame)) => Some((Token::Text(String::from_utf8_lossy(&bytes[..at]).into_owned()), at + frame)),
        None => (bytes.len() > MAX_SEQUENCE).then_some((Token::Other, bytes.len())),
    }
}

/// A character, or a key that sends one byte; no key where it is no character at all.
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
        // Only what can still become a character is waited for.
        let is_begun = bytes[1..].iter().all(|byte| (0x80..0xc0).contains(byte));
        return if is_begun { None } else { Some((None, 1)) };
    };
    let Some(character) = std::str::from_utf8(whole).ok().and_then(|text| text.chars().next()) else {
        return Some((None, 1));
    };
    let modifiers = if character.is_uppercase() { KeyModifiers::SHIFT } else { KeyModifiers::NONE };
    Some((Some(KeyEvent::new(KeyCode::Char(character), modifiers)), length))
}

/// Keeps an answer that comes after its time from being taken for keys.
///
/// crossterm reads `ESC ] 11;rgb:ffff/ffff/ffff ESC \` as Alt-], then letters, then Alt-\. (The answer to DA1 it knows and
/// drops.) Nobody types that beginning, and what follows it is bounded.
#[derive(Debug)]
pub(super) struct LateReplyFilter {
    /// Keys that may be its beginning.
    held: Vec<KeyEvent>,
    /// How many keys of it have passed; 0 before its beginning is certain.
    passed: usize,
    is_over: bool,
}

impl LateReplyFilter {
    /// Where a terminal may still answer.
    pub(super) fn new(may_answer: bool) -> Self {
        Self { held: Vec::new(), passed: 0, is_over: !may_answer }
    }

    /// The keys that are the person's, of this one and those held back before it.
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
    fn answers_of_terminals_are_understood() {
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

    /// What keyboards send, and the keys that crossterm makes of it.
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

    const ANSWERS: [&[u8]; 4] = [
        b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22c",
        b"\x1b]11;rgb:ffff/ffff/ffff\x07\x1b[?6c",
        b"\x1b[?1;2c",
        b"\x1b]11;rgba:ffff/ffff/ffff/ffff\x1b\\\x1b[?62;c",
    ];

    #[test]
    fn keys_have_the_names_that_crossterm_gives_them() {
        for (bytes, code, modifiers) in KEYS {
            assert_eq!(typed(bytes), [key(code, modifiers)], "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(typed(b"\x1b"), [KeyCode::Esc.into()], "nothing followed");
        assert_eq!(typed(b"\x1b\x1b[A"), [KeyCode::Esc.into(), KeyCode::Up.into()]);
    }

    #[test]
    fn what_is_no_key_is_none() {
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
        /// Keys before and after the answers, read in pieces of any size.
        #[test]
        fn keys_between_answers_are_kept_in_order(
            before in prop::collection::vec(0..KEYS.len(), 0..6), after in prop::collection::vec(0..KEYS.len(), 0..6),
            answer in 0..ANSWERS.len(), pieces in prop::collection::vec(1..9_usize, 1..40),
        ) {
            let bytes = |places: &[usize]| places.iter().flat_map(|place| KEYS[*place].0.to_vec()).collect::<Vec<_>>();
            let all = [bytes(&before), ANSWERS[answer].to_vec(), bytes(&after)].concat();
            let mut ahead = InputParser::default();
            let (mut rest, mut pieces) = (&all[..], pieces.into_iter().cycle());
            while !rest.is_empty() {
                let (piece, left) = rest.split_at(pieces.next().expect("it goes round").min(rest.len()));
                ahead.take(piece);
                rest = left;
            }
            prop_assert!(ahead.is_answered() && ahead.is_between());
            prop_assert_eq!(ahead.background().is_some(), answer != 2);
            let expected: Vec<KeyEvent> =
                before.iter().chain(&after).map(|place| key(KEYS[*place].1, KEYS[*place].2)).collect();
            prop_assert_eq!(ahead.into_keys(), expected);
        }

        #[test]
        fn no_bytes_make_it_panic_or_grow(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut ahead = InputParser::default();
            for piece in bytes.chunks(7) {
                ahead.take(piece);
                prop_assert!(ahead.rest.len() <= MAX_SEQUENCE + 16);
            }
        }
    }

    /// As crossterm reads it.
    fn late(answer: &str) -> Vec<KeyEvent> {
        let alt = |letter| key(KeyCode::Char(letter), KeyModifiers::ALT);
        let letters = answer.chars().map(|letter| KeyCode::Char(letter).into());
        [alt(']')].into_iter().chain(letters).chain([alt('\\')]).collect()
    }

    #[test]
    fn an_answer_after_its_time_is_no_key() {
        let filter = |may_answer: bool, keys: &[KeyEvent]| -> Vec<KeyEvent> {
            let mut late = LateReplyFilter::new(may_answer);
            keys.iter().flat_map(|key| late.filter(*key)).collect()
        };
        let q: KeyEvent = KeyCode::Char('q').into();
        let answer = late("11;rgb:1e1e/1e1e/2e2e");
        assert_eq!(filter(true, &[&[q], &answer[..], &[q]].concat()), [q, q]);
        let bell = key(KeyCode::Char('g'), KeyModifiers::CONTROL);
        assert_eq!(filter(true, &[&answer[..answer.len() - 1], &[bell, q]].concat()), [q]);
        // Whoever types something like it types it.
        let like_it = late("12;");
        assert_eq!(filter(true, &like_it), like_it);
        assert_eq!(filter(false, &answer), answer, "nothing was asked");
        let twice = [&answer[..], &answer].concat();
        assert_eq!(filter(true, &twice), answer, "it answers once");
        let endless = late(&("11;".to_owned() + &"x".repeat(2 * MAX_SEQUENCE)));
        assert!(!filter(true, &endless).is_empty(), "what never ends lets go");
    }
}
