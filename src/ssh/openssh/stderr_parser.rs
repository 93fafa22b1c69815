//! What the `ssh` program says, understood.

use crate::ssh::transport::{SshErrorKind, SshPhase};

/// The most of ssh's words that an error repeats.
const MAX_CHARACTERS: usize = 400;

/// The line in which ssh says, at `LogLevel=VERBOSE`, that it is logged in.
pub(super) fn is_logged_in(line: &str) -> bool {
    line.starts_with("Authenticated to ")
}

/// Lines that ssh adds for itself at `LogLevel=VERBOSE`; they are no part of the command's standard error.
pub(super) fn is_transfer_statistics(line: &str) -> bool {
    line.starts_with("Transferred: sent ") || line.starts_with("Bytes per second: sent ")
}

/// What kind of failure ssh's words tell of.
pub(super) fn error_kind(stderr: &str) -> SshErrorKind {
    const WORDS: [(&str, SshErrorKind); 16] = [
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", SshErrorKind::HostKeyChanged),
        ("was revoked", SshErrorKind::HostKeyRevoked),
        ("is marked as revoked", SshErrorKind::HostKeyRevoked),
        ("Host key verification failed", SshErrorKind::HostKeyUnknown),
        ("Permission denied", SshErrorKind::Authentication),
        ("Too many authentication failures", SshErrorKind::Authentication),
        ("Could not resolve hostname", SshErrorKind::Dns),
        ("Connection refused", SshErrorKind::ConnectionRefused),
        ("Connection timed out", SshErrorKind::Timeout(SshPhase::Tcp)),
        ("Operation timed out", SshErrorKind::Timeout(SshPhase::Tcp)),
        ("Not allowed at this time", SshErrorKind::RateLimited),
        ("banner exchange", SshErrorKind::Timeout(SshPhase::KeyExchange)),
        ("Unable to negotiate", SshErrorKind::KeyExchange),
        ("Bad configuration option", SshErrorKind::Config),
        ("Connection closed", SshErrorKind::Busy),
        ("Connection reset", SshErrorKind::Busy),
    ];
    WORDS.iter().find(|(words, _)| stderr.contains(words)).map_or(SshErrorKind::Network, |(_, kind)| *kind)
}

/// ssh's words as one line, without its frames and warnings.
pub(super) fn summary(stderr: &str) -> String {
    let lines: Vec<_> = stderr
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("@@@") && !line.starts_with("Warning: Permanently added"))
        .map(|line| line.trim_matches('@').trim())
        .collect();
    let text = lines.join("; ");
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for (stderr, expected) in [
            ("ssh: connect to host 127.0.0.1 port 1: Connection refused", SshErrorKind::ConnectionRefused),
            ("ssh: Could not resolve hostname x: Name or service not known", SshErrorKind::Dns),
            ("bob@gpu01: Permission denied (publickey).", SshErrorKind::Authentication),
            ("No ED25519 host key is known for gpu01.\nHost key verification failed.", SshErrorKind::HostKeyUnknown),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                SshErrorKind::HostKeyChanged,
            ),
            ("Connection timed out during banner exchange", SshErrorKind::Timeout(SshPhase::Tcp)),
            ("kex_exchange_identification: Connection closed by remote host", SshErrorKind::Busy),
            ("kex_exchange_identification: banner line 0: Not allowed at this time", SshErrorKind::RateLimited),
            ("something new", SshErrorKind::Network),
        ] {
            assert_eq!(error_kind(stderr), expected, "{stderr}");
        }
    }

    #[test]
    fn one_line_without_frames() {
        assert_eq!(summary("@@@@@@\n@  CHANGED!  @\n@@@@@@\nWarning: Permanently added x\n\nbye \n"), "CHANGED!; bye");
        assert!(summary(&"ä".repeat(1000)).ends_with("ä..."));
    }
}
