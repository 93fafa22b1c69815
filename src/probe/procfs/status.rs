//! `/proc/PID/status` (proc(5)).

/// The real user id: the first number after `Uid:`.
pub(crate) fn real_uid(status: &[u8]) -> Option<u32> {
    field(status, b"Uid:")?.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether SIGHUP (1) is in the set of ignored signals, `SigIgn:`.
pub(crate) fn ignores_hangup(status: &[u8]) -> Option<bool> {
    let set = u64::from_str_radix(field(status, b"SigIgn:")?.trim(), 16).ok()?;
    Some(set & 1 == 1)
}

fn field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    std::str::from_utf8(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_uid_is_the_first() {
        assert_eq!(real_uid(b"Name:\tUid:\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\n"), Some(1000));
        assert_eq!(real_uid(b"Name:\tx\n"), None);
    }

    #[test]
    fn hangup_is_the_lowest_bit_of_the_ignored() {
        assert_eq!(ignores_hangup(b"SigBlk:\t0000000000000001\nSigIgn:\t0000000001001001\n"), Some(true));
        assert_eq!(ignores_hangup(b"SigIgn:\t0000000000001000\n"), Some(false));
        assert_eq!(ignores_hangup(b"SigBlk:\t0000000000000001\n"), None);
    }
}
