//! From a name to a TCP connection.

use crate::ssh::resolve::Resolved;
use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration, io_cause};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long one address is tried alone before the next one joins (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// The addresses behind the host's name.
pub(super) async fn lookup_addresses(resolved: &Resolved, limit: Duration) -> Result<Vec<SocketAddr>, SshError> {
    let name = &resolved.hostname;
    let hint =
        "check the spelling, or give the host an `address` in hosts.toml; a name of your own network may need its VPN";
    let addresses: Vec<_> =
        match tokio::time::timeout(limit, tokio::net::lookup_host((name.as_str(), resolved.port))).await {
            Ok(Ok(addresses)) => addresses.filter(|address| resolved.family.admits(*address)).collect(),
            Ok(Err(error)) => {
                let message = format!("looking up {name} failed: {}", io_cause(&error));
                return Err(SshError::new(SshErrorKind::Dns, message).with_hint(hint));
            }
            Err(_) => {
                let message =
                    format!("looking up {name} gave no answer within {}", duration(limit, DurationStyle::Seconds));
                return Err(SshError::new(SshErrorKind::Timeout(SshPhase::Name), message).with_hint(hint));
            }
        };
    if addresses.is_empty() {
        let message = format!("looking up {name} gave no address of the configured family");
        return Err(SshError::new(SshErrorKind::Dns, message).with_hint("AddressFamily in ~/.ssh/config"));
    }
    Ok(addresses)
}

/// Connects to whichever address answers first. All share one limit.
pub(super) async fn connect(addresses: &[SocketAddr], limit: Duration) -> Result<(TcpStream, SocketAddr), SshError> {
    let deadline = Instant::now() + limit;
    let mut remaining = addresses.iter().copied();
    let mut attempts = JoinSet::new();
    let mut failures = Vec::new();
    loop {
        if let Some(address) = remaining.next() {
            attempts.spawn(async move { (address, TcpStream::connect(address).await) });
        }
        let wait_until = if remaining.len() == 0 { deadline } else { deadline.min(Instant::now() + STAGGER) };
        match tokio::time::timeout_at(wait_until, attempts.join_next()).await {
            Ok(Some(Ok((address, Ok(stream))))) => {
                // Heartbeats are small; they shall not wait for one another.
                let _ = stream.set_nodelay(true);
                return Ok((stream, address));
            }
            Ok(Some(Ok((address, Err(error))))) => failures.push((address, error)),
            Ok(None) if remaining.len() == 0 => return Err(all_failed(&failures)),
            Err(_) if Instant::now() >= deadline => return Err(no_answer(addresses, limit)),
            // The next address joins.
            Ok(Some(Err(_)) | None) | Err(_) => {}
        }
    }
}

/// What to say when every address has failed; one that refuses proves that the host is there.
fn all_failed(failures: &[(SocketAddr, io::Error)]) -> SshError {
    let refused = failures.iter().find(|(_, error)| error.kind() == io::ErrorKind::ConnectionRefused);
    if let Some((address, _)) = refused {
        let message = format!("nothing listens on {}", describe_address(*address));
        return SshError::new(SshErrorKind::ConnectionRefused, message)
            .with_hint("is sshd running there? Another port: `port = N` in hosts.toml");
    }
    match failures.last() {
        Some((address, error)) => {
            let message = format!("connecting to {} failed: {}", describe_address(*address), io_cause(error));
            SshError::new(SshErrorKind::Network, message).with_hint("is this machine in the right network or VPN?")
        }
        None => SshError::new(SshErrorKind::Network, "connecting failed"),
    }
}

fn no_answer(addresses: &[SocketAddr], limit: Duration) -> SshError {
    let tried: Vec<_> = addresses.iter().map(|address| describe_address(*address)).collect();
    let message = format!("no answer from {} within {}", tried.join(" or "), duration(limit, DurationStyle::Seconds));
    SshError::new(SshErrorKind::Timeout(SshPhase::Tcp), message)
        .with_hint("the host is down, or a firewall drops what is sent to it; does it need a VPN?")
}

/// `10.0.0.1 port 22`, as ssh writes it.
pub(super) fn describe_address(address: SocketAddr) -> String {
    format!("{} port {}", address.ip(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_second_address_is_used_when_the_first_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = listener.local_addr().unwrap();
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let (_, connected) = connect(&[dead, alive], Duration::from_secs(5)).await.unwrap();
        assert_eq!(connected, alive);
    }

    #[tokio::test]
    async fn a_refused_port() {
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = connect(&[dead], Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(
            error,
            SshError::new(
                SshErrorKind::ConnectionRefused,
                format!("nothing listens on 127.0.0.1 port {}", dead.port())
            )
            .with_hint("is sshd running there? Another port: `port = N` in hosts.toml")
        );
    }

    #[test]
    fn other_failures() {
        let unreachable = io::Error::from(io::ErrorKind::HostUnreachable);
        assert_eq!(
            all_failed(&[(address("10.0.0.1:22"), unreachable)]).message,
            "connecting to 10.0.0.1 port 22 failed: host unreachable"
        );
        assert_eq!(
            no_answer(&[address("10.0.0.1:22"), address("[::1]:22")], Duration::from_secs(5)).message,
            "no answer from 10.0.0.1 port 22 or ::1 port 22 within 5 s"
        );
    }
}
