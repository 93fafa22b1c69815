//! Jump hosts, as `ssh -J` takes them: `[user@]host[:port]`, several separated by commas, the first one nearest to here.

use super::{Diagnostic, address};
use std::fmt;
use std::ops::Range;

/// More jumps than this are a mistake.
const MAX_HOPS: usize = 8;

/// One jump host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Login name, where given.
    pub user: Option<String>,
    /// Its name, as ssh knows it.
    pub host: String,
    /// TCP port, where given.
    pub port: Option<u16>,
}

impl fmt::Display for Hop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(formatter, "{user}@")?;
        }
        match self.port {
            Some(port) if address::is_ipv6(&self.host) => write!(formatter, "[{}]:{port}", self.host),
            Some(port) => write!(formatter, "{}:{port}", self.host),
            None => formatter.write_str(&self.host),
        }
    }
}

/// Reads a list of jump hosts that stands at `at`; `none` is an empty list.
pub fn parse_hops(text: &str, at: Range<usize>) -> Result<Vec<Hop>, Diagnostic> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Vec::new());
    }
    let hops = text.split(',').map(|hop| parse_hop(hop, at.clone())).collect::<Result<Vec<_>, _>>()?;
    if hops.len() > MAX_HOPS {
        let message = format!("{} jump hosts; the limit is {MAX_HOPS}", hops.len());
        return Err(Diagnostic::at(at, message, "the first is nearest to here, the last nearest to the host"));
    }
    Ok(hops)
}

fn parse_hop(text: &str, at: Range<usize>) -> Result<Hop, Diagnostic> {
    let text = text.trim();
    let text = text.strip_prefix("ssh://").map_or(text, |rest| rest.trim_end_matches('/'));
    let (user, place) = match text.rsplit_once('@') {
        Some((user, place)) => {
            address::check_user(user, at.clone())?;
            (Some(user.to_owned()), place)
        }
        None => (None, text),
    };
    let (host, port) = if address::is_ipv6(place) {
        (place, None)
    } else {
        match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(address::parse_port(port, at.clone())?)),
            _ => (place, None),
        }
    };
    // `ssh -G` prints every name with a port in brackets.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address::check_host(host, at)?;
    Ok(Hop { user, host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let hops = parse_hops(text, 0..text.len()).map_err(|diagnostic| diagnostic.message)?;
        Ok(hops.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn lists_as_ssh_takes_them() {
        for (text, hops) in [
            ("bastion", vec!["bastion"]),
            ("bob@gate.lab:2222, inner", vec!["bob@gate.lab:2222", "inner"]),
            ("ssh://bob@gate:22/", vec!["bob@gate:22"]),
            ("[::1]:22", vec!["[::1]:22"]),
            ("bob@[gate.lab]:2222,[10.0.0.1]:22", vec!["bob@gate.lab:2222", "10.0.0.1:22"]),
            ("bob@fe80::1%eth0", vec!["bob@fe80::1%eth0"]),
            ("none", vec![]),
        ] {
            assert_eq!(read(text), Ok(hops.into_iter().map(str::to_owned).collect()), "{text}");
        }
    }

    #[test]
    fn what_is_no_jump_host() {
        for (text, message) in [
            ("", "an empty host name"),
            ("a,,b", "an empty host name"),
            ("-oProxyCommand=x", "`-oProxyCommand=x` begins with `-`"),
            ("a;b", "`;` cannot be in a host name"),
            ("$(x)@a", "`$` cannot be in a user name"),
            ("a:99999", "`99999` is not a port"),
            ("a,b,c,d,e,f,g,h,i", "9 jump hosts; the limit is 8"),
        ] {
            assert_eq!(read(text), Err(message.to_owned()), "{text}");
        }
    }
}
