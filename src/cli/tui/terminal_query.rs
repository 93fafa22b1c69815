//! What arrives from the terminal while it is asked something: its answers, and the keys that were typed meanwhile.
//!
//! crossterm takes the answers for keys and gives nobody what it has read, so that for this moment the bytes are read
//! here: the keys that keyboards send, by the same names that crossterm gives them.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

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
#[path = "terminal_query_tests.rs"]
mod tests;
