//! What may stand for a host or a user: names that ssh takes, IP addresses, ports.

use super::Diagnostic;
use std::net::Ipv6Addr;
use std::ops::Range;

/// Characters that OpenSSH refuses in a host or user name given to it, since a shell behind `ProxyCommand` or `Match
/// exec` would obey them (ssh.c, `valid_hostname`, `valid_ruser`).
const SHELL_CHARACTERS: &str = "'`\"$\\;&<>|(){}";

/// Says what is wrong with a host name or address that stands at `at`.
pub fn check_host(name: &str, at: Range<usize>) -> Result<(), Diagnostic> {
    if is_ipv6(name) {
        return Ok(());
    }
    if name.is_empty() {
        return Err(Diagnostic::at(at, "an empty host name", "write what `ssh` would be given"));
    }
    if name.starts_with('-') {
        return Err(Diagnostic::at(at, format!("`{name}` begins with `-`"), "ssh would take it for an option"));
    }
    let is_bad = |character: char| {
        SHELL_CHARACTERS.contains(character)
            || character.is_whitespace()
            || character.is_control()
            || matches!(character, '/' | '@' | ':' | '[' | ']' | ',' | '*' | '?' | '#' | '!')
    };
    match name.chars().find(|&character| is_bad(character)) {
        None => Ok(()),
        Some(':') => Err(Diagnostic::at(at, format!("`{name}` is neither a host name nor an IPv6 address"), PORT_HINT)),
        Some('@') => Err(Diagnostic::at(at, format!("`{name}` holds a user name"), "the user has a place of its own")),
        Some(character) => Err(Diagnostic::at(
            at,
            format!("`{character}` cannot be in a host name"),
            "write what `ssh` would be given",
        )),
    }
}

const PORT_HINT: &str = "the port has a place of its own";

/// Says what is wrong with a login name that stands at `at`.
pub fn check_user(name: &str, at: Range<usize>) -> Result<(), Diagnostic> {
    if name.is_empty() {
        return Err(Diagnostic::at(at, "an empty user name", "leave it out for the one of the ssh configuration"));
    }
    if name.starts_with('-') {
        return Err(Diagnostic::at(at, format!("`{name}` begins with `-`"), "ssh would take it for an option"));
    }
    let is_bad =
        |character: char| SHELL_CHARACTERS.contains(character) || character.is_whitespace() || character.is_control();
    match name.chars().find(|&character| is_bad(character)) {
        None => Ok(()),
        Some(character) => Err(Diagnostic::at(
            at,
            format!("`{character}` cannot be in a user name"),
            "write what `ssh -l` would be given",
        )),
    }
}

/// Whether the text is an IPv6 address, with or without a zone (`fe80::1%eth0`).
pub fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let is_zone = !zone.is_empty() && zone.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    is_zone && address.parse::<Ipv6Addr>().is_ok()
}

/// The address within brackets (`[::1]` gives `::1`), where the text is one.
pub fn bracketed_ipv6(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']').filter(|inside| is_ipv6(inside))
}

/// Reads a port, 1 to 65535, that stands at `at`.
pub fn parse_port(text: &str, at: Range<usize>) -> Result<u16, Diagnostic> {
    let hint = "a port is a number from 1 to 65535";
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if port > 0 && is_number => Ok(port),
        _ if text.is_empty() => Err(Diagnostic::at(at, "the port is missing", hint)),
        _ => Err(Diagnostic::at(at, format!("`{text}` is not a port"), hint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_ssh_takes_are_taken() {
        for name in ["hgx-01", "gpu_1.cs.uni.example", "10.0.0.7", "::1", "fe80::1%eth0", "größe", "a+b"] {
            assert_eq!(check_host(name, 0..0), Ok(()), "{name}");
        }
        for name in ["alice", "alice@EXAMPLE.ORG", "svc+gpu", "a.b_c-d"] {
            assert_eq!(check_user(name, 0..0), Ok(()), "{name}");
        }
    }

    #[test]
    fn what_a_shell_or_an_option_parser_would_obey_is_refused() {
        for name in ["", "-oProxyCommand=x", "a b", "a;b", "$(x)", "a`b`", "a|b", "a\nb", "a/b", "a:b", "a@b", "a*"] {
            assert!(check_host(name, 0..0).is_err(), "{name}");
        }
        for name in ["", "-l", "a b", "a;b", "$x", "a\\"] {
            assert!(check_user(name, 0..0).is_err(), "{name}");
        }
    }

    #[test]
    fn ports_are_in_range() {
        assert_eq!(parse_port("22", 0..0), Ok(22));
        assert_eq!(parse_port("65535", 0..0), Ok(65535));
        for text in ["", "0", "65536", "-1", "+22", "ssh", "99999999999999999999"] {
            assert!(parse_port(text, 0..0).is_err(), "{text}");
        }
    }

    #[test]
    fn ipv6_has_brackets_only_around_it() {
        assert_eq!(bracketed_ipv6("[::1]"), Some("::1"));
        assert_eq!(bracketed_ipv6("[1,3]"), None);
        assert!(!is_ipv6("fe80::1%"));
        assert!(!is_ipv6("fe80::1%a;b"));
    }
}
