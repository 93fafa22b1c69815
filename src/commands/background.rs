//! Whether the terminal's background is dark or light, asked of the terminal itself.

use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

/// OSC 11 asks for the background; every terminal answers the question behind it (DA1), so that one which does not know
/// the first is not waited for.
const QUESTION: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";
/// More than both answers take.
const MAX_BYTES: usize = 512;

/// Asks, and waits at most so long. `None` where the terminal does not say. To be called before anything else reads the
/// terminal.
pub(super) fn is_light(limit: Duration) -> Option<bool> {
    enable_raw_mode().ok()?;
    let answer = ask(limit);
    // A terminal that is gone is noticed by whoever draws on it.
    let _set = disable_raw_mode();
    parse(&answer?)
}

fn ask(limit: Duration) -> Option<Vec<u8>> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
    terminal.write_all(QUESTION).ok()?;
    let end = Instant::now() + limit;
    let mut answer = Vec::new();
    while answer.len() < MAX_BYTES && !is_complete(&answer) {
        let left = end.checked_duration_since(Instant::now())?;
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        let mut wanted = [PollFd::new(&terminal, PollFlags::IN)];
        if poll(&mut wanted, Some(&left)).ok()? == 0 {
            return None;
        }
        let mut bytes = [0; 64];
        let count = terminal.read(&mut bytes).ok().filter(|count| *count > 0)?;
        answer.extend_from_slice(&bytes[..count]);
    }
    Some(answer)
}

/// Whether the answer to the second question is there: `ESC [ ? ... c`.
fn is_complete(answer: &[u8]) -> bool {
    let begin = answer.windows(3).rposition(|window| window == b"\x1b[?");
    begin.is_some_and(|begin| answer[begin..].contains(&b'c'))
}

/// `ESC ] 11 ; rgb:RRRR/GGGG/BBBB`, with one to four digits each.
fn parse(answer: &[u8]) -> Option<bool> {
    let text = String::from_utf8_lossy(answer);
    let (_, colour) = text.split_once("]11;rgb")?;
    let colour = colour.strip_prefix('a').unwrap_or(colour).strip_prefix(':')?;
    let mut shares = colour.split(['/', '\x07', '\x1b']).take(3).map(|digits| {
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
            ("\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22c", Some(true)),
            ("\x1b]11;rgb:1e1e/1e1e/2e2e\x07\x1b[?6c", Some(false)),
            ("\x1b]11;rgb:fd/f6/e3\x1b\\\x1b[?62c", Some(true)),
            ("\x1b]11;rgba:0000/0000/0000/ffff\x1b\\\x1b[?62c", Some(false)),
            ("\x1b[?62;c", None),
            ("\x1b]11;rgb:zz/00/00\x07\x1b[?6c", None),
            ("\x1b]11;rgb:fffff/0/0\x07\x1b[?6c", None),
        ] {
            assert!(is_complete(answer.as_bytes()), "{answer:?}");
            assert_eq!(parse(answer.as_bytes()), light, "{answer:?}");
        }
        assert!(!is_complete(b"\x1b]11;rgb:ffff/cccc/cccc\x1b\\\x1b[?62"));
    }
}
