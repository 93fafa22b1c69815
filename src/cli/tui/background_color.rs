//! Whether the terminal's background is dark or light, asked of the terminal itself, and what was typed meanwhile.

use super::terminal_query::InputParser;
use crossterm::event::KeyEvent;
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

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
pub(super) fn query(limit: Duration) -> TerminalReply {
    // A terminal that is gone is noticed by whoever draws on it.
    let Ok(mut terminal) = OpenOptions::new().read(true).write(true).open("/dev/tty") else {
        return TerminalReply::default();
    };
    // A write to a terminal that takes nothing would not return.
    if !takes_bytes(&terminal) || enable_raw_mode().is_err() {
        return TerminalReply::default();
    }
    let typed = if terminal.write_all(QUERY).is_ok() { read(&mut terminal, limit) } else { InputParser::default() };
    let _set = disable_raw_mode();
    TerminalReply {
        may_reply_late: !typed.is_answered(),
        is_light: typed.background().and_then(parse),
        typed_keys: typed.into_keys(),
    }
}

fn read(terminal: &mut File, limit: Duration) -> InputParser {
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

/// Whether a short write returns at once. A terminal that cannot be polled is taken to be ready.
fn takes_bytes(terminal: &File) -> bool {
    let mut wanted = [PollFd::new(terminal, PollFlags::OUT)];
    poll(&mut wanted, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
}

/// `11;rgb:RRRR/GGGG/BBBB`, with one to four digits each.
fn parse(answer: &str) -> Option<bool> {
    let colour = answer.strip_prefix("11;rgb")?;
    let colour = colour.strip_prefix('a').unwrap_or(colour).strip_prefix(':')?;
    let mut shares = colour.split('/').take(3).map(|digits| {
        let most = 16_u32.checked_pow(digits.len() as u32).filter(|_| (1..=4).contains(&digits.len()))? - 1;
        Some(u32::from_str_radix(digits, 16).ok()? as f32 / most as f32)
    });
    let (red, green, blue) = (shares.next()??, shares.next()??, shares.next()??);
    Some(0.299 * red + 0.587 * green + 0.114 * blue > 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(parse(answer), light, "{answer:?}");
        }
    }
}
