//! `/proc/PID/stat` (proc(5)).

use crate::wire::ProcessState;

/// Clock ticks in a second. The kernel gives user space 100 on every architecture (`USER_HZ`).
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// The fields that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat<'a> {
    /// Field 2, the short name: at most 15 bytes, any bytes, parentheses and spaces among them.
    pub(crate) name: &'a [u8],
    /// Field 3.
    pub(crate) state: ProcessState,
    /// Field 4.
    pub(crate) parent: u32,
    /// Field 6.
    pub(crate) session: u32,
    /// Fields 14 and 15, user and system time together, in ticks.
    pub(crate) cpu_ticks: u64,
    /// Field 20.
    pub(crate) threads: u32,
    /// Field 22, in ticks after boot.
    pub(crate) start_ticks: u64,
    /// Field 24.
    pub(crate) rss_pages: u64,
}

impl<'a> Stat<'a> {
    /// `None` for what is not such a line.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let open = line.iter().position(|&byte| byte == b'(')?;
        // The name may hold parentheses of its own, so it ends at the last one.
        let close = line.iter().rposition(|&byte| byte == b')')?;
        let name = line.get(open + 1..close)?;
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = ProcessState::from_letter(fields.next()?.chars().next()?);
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().unwrap_or(0);
        let user: u64 = fields.nth(7)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let threads = fields.nth(4)?.parse().ok()?;
        let start_ticks = fields.nth(1)?.parse().ok()?;
        let rss_pages = fields.nth(1)?.parse().unwrap_or(0);
        Some(Self {
            name,
            state,
            parent,
            session,
            cpu_ticks: user.saturating_add(system),
            threads,
            start_ticks,
            rss_pages,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = "4312 (python (v3) x) D 4200 4312 4100 34816 4312 4194304 100 0 3 0 5000 250 1 2 20 0 17 0 \
                        987654 123456789 2048 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0\n";

    #[test]
    fn a_name_may_hold_parentheses_and_spaces() {
        let stat = Stat::parse(LINE.as_bytes()).expect("parses");
        let expected = Stat {
            name: b"python (v3) x",
            state: ProcessState::DiskSleep,
            parent: 4200,
            session: 4100,
            cpu_ticks: 5250,
            threads: 17,
            start_ticks: 987_654,
            rss_pages: 2048,
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn a_name_of_any_bytes_is_read() {
        let line = [b"1 (\xff) ) S", LINE.split(" D").nth(1).expect("fields").as_bytes()].concat();
        assert_eq!(Stat::parse(&line).map(|stat| stat.name), Some(b"\xff) ".as_slice()));
    }

    proptest! {
        #[test]
        fn the_parser_never_panics(bytes: Vec<u8>, end in 0..LINE.len()) {
            let _ = Stat::parse(&bytes);
            let _ = Stat::parse(&LINE.as_bytes()[..end]);
        }
    }
}
