//! `/proc/PID/status` (proc(5)).

/// The real user id: the first number after `Uid:`.
pub(crate) fn real_uid(status: &[u8]) -> Option<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_uid_is_the_first() {
        assert_eq!(real_uid(b"Name:\tUid:\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\n"), Some(1000));
        assert_eq!(real_uid(b"Name:\tx\n"), None);
    }
}
