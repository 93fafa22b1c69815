//! What a failed key exchange means.

use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration, io_cause};
use russh::Error;
use std::time::Duration;

/// The server said nothing, or not enough, in time.
pub(super) fn key_exchange_timeout(peer: &str, head: &[u8], limit: Duration) -> SshError {
    let (message, hint) = if head.is_empty() {
        (
            format!("connected to {peer}, but no SSH banner came within {}", duration(limit, DurationStyle::Seconds)),
            "does sshd listen on that port? An overloaded or hung host accepts connections without answering",
        )
    } else if banner(head).is_some() {
        (
            format!(
                "{peer} answered, but the key exchange was not finished within {}",
                duration(limit, DurationStyle::Seconds)
            ),
            "an overloaded host or a link that drops large packets (MTU) looks like this",
        )
    } else {
        (
            format!("{peer} does not speak SSH; it says {:?}", first_line(head)),
            "`port = N` in hosts.toml names the port of sshd",
        )
    };
    SshError::new(SshErrorKind::Timeout(SshPhase::KeyExchange), message).with_hint(hint)
}

/// sshd's whole answer to an address that it punishes (`PerSourcePenalties`, OpenSSH 9.8 and newer).
const PENALTY: &str = "Not allowed at this time";

/// The key exchange failed for another reason than the host key.
pub(super) fn key_exchange(peer: &str, head: &[u8], error: &Error) -> SshError {
    let closed = match error {
        Error::HUP | Error::Disconnect | Error::RecvError => true,
        Error::IO(error) => {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
            matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
        }
        _ => false,
    };
    if closed && banner(head).is_none() && !head.is_empty() {
        // MaxStartups and penalties are told in plain text before the banner.
        if first_line(head) == PENALTY {
            let message =
                format!("{peer} is rate-limited for this address: it closed the connection and said {PENALTY:?}");
            return SshError::new(SshErrorKind::RateLimited, message).with_hint(
                "after failed logins sshd refuses an address for a while (PerSourcePenalties); the next try is in a minute",
            );
        }
        return busy(format!("{peer} closed the connection and said {:?}", first_line(head)));
    }
    if closed {
        return busy(format!("{peer} closed the connection before the key exchange was finished"));
    }
    if let Error::NoCommonAlgo { kind, theirs, .. } = error {
        let message = format!("no {kind:?} algorithm in common with {peer}, which offers {}", theirs.join(", "));
        return SshError::new(SshErrorKind::KeyExchange, message)
            .with_hint("backend = \"system\" in hosts.toml uses the ssh program");
    }
    let what = match error {
        Error::IO(error) => io_cause(error),
        error => error.to_string(),
    };
    SshError::new(SshErrorKind::KeyExchange, format!("the key exchange with {peer} failed: {what}"))
        .with_hint("backend = \"system\" in hosts.toml uses the ssh program")
}

fn busy(message: String) -> SshError {
    SshError::new(SshErrorKind::Busy, message).with_hint(
        "sshd is restarting, has too many logins under way (MaxStartups), or has blocked this address for a while",
    )
}

/// The server's identification, once a whole line of it has come. Other lines may stand before it.
fn banner(head: &[u8]) -> Option<&[u8]> {
    head.split_inclusive(|byte| *byte == b'\n').find(|line| line.starts_with(b"SSH-") && line.ends_with(b"\n"))
}

/// The first line that came, at most 80 characters of it.
fn first_line(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line).trim_end().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::AlgorithmKind;

    const PLACE: &str = "127.0.0.1 port 22";

    #[test]
    fn timeouts_tell_how_far_it_came() {
        let message = |head: &[u8]| key_exchange_timeout(PLACE, head, Duration::from_secs(10)).message;
        assert_eq!(message(b""), "connected to 127.0.0.1 port 22, but no SSH banner came within 10 s");
        assert_eq!(
            message(b"welcome\r\nSSH-2.0-x\r\n"),
            "127.0.0.1 port 22 answered, but the key exchange was not finished within 10 s"
        );
        assert_eq!(message(b"220 mail.lab\r\n"), "127.0.0.1 port 22 does not speak SSH; it says \"220 mail.lab\"");
    }

    #[test]
    fn failures() {
        let error = key_exchange(PLACE, b"Exceeded MaxStartups\r\n", &Error::HUP);
        assert_eq!(error.kind, SshErrorKind::Busy);
        assert_eq!(error.message, "127.0.0.1 port 22 closed the connection and said \"Exceeded MaxStartups\"");
        assert_eq!(
            key_exchange(PLACE, b"Not allowed at this time\r\n", &Error::HUP),
            SshError::new(
                SshErrorKind::RateLimited,
                "127.0.0.1 port 22 is rate-limited for this address: it closed the connection and said \"Not allowed at \
                 this time\""
            )
            .with_hint(
                "after failed logins sshd refuses an address for a while (PerSourcePenalties); the next try is in a minute"
            )
        );
        assert_eq!(
            key_exchange(PLACE, b"", &Error::Disconnect).message,
            "127.0.0.1 port 22 closed the connection before the key exchange was finished"
        );
        let none = Error::NoCommonAlgo { kind: AlgorithmKind::Kex, ours: vec![], theirs: vec!["a".into(), "b".into()] };
        assert_eq!(
            key_exchange(PLACE, b"SSH-2.0-x\r\n", &none).message,
            "no Kex algorithm in common with 127.0.0.1 port 22, which offers a, b"
        );
        let error = key_exchange(PLACE, b"SSH-2.0-x\r\n", &Error::WrongServerSig);
        assert_eq!(error.message, "the key exchange with 127.0.0.1 port 22 failed: Wrong server signature");
        assert_eq!(error.kind, SshErrorKind::KeyExchange);
    }
}
