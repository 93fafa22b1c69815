//! Targets of the command line (a file, standard input or hosts), and the parts that name a host: addresses, users,
//! ports and jump hosts.

use super::diagnostic::{Diagnostic, snippet};
use super::nodeset;
use crate::wire::SafeText;
use crate::wire::safe_text::is_safe;
use std::fmt;
use std::net::Ipv6Addr;
use std::ops::Range;
use std::path::PathBuf;

/// The prefix that marks any word as a host, as in OpenSSH: `ssh://[user@]host[:port]`.
const SCHEME: &str = "ssh://";

/// The meaning of one word of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A hosts.toml: the word ends in `.toml` or contains a `/`.
    File(PathBuf),
    /// `-`: read targets from standard input.
    Stdin,
    /// `@NAME`: the hosts of hosts.toml with this group or tag.
    Group(String),
    /// Hosts.
    Hosts(HostTarget),
}

/// Hosts given on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostTarget {
    /// The word as typed.
    pub text: String,
    /// Login name, if given.
    pub user: Option<String>,
    /// TCP port, if given.
    pub port: Option<u16>,
    /// The names or addresses of the hosts.
    pub names: Vec<String>,
    /// The nodeset in the word, as `name` of hosts.toml takes it.
    pub nodeset: String,
    /// The word is a single name without user, port or scheme, so it may be a mistyped subcommand.
    pub is_bare: bool,
}

/// A word that is not a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetError {
    text: String,
    diagnostic: Box<Diagnostic>,
}

impl fmt::Display for TargetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, carets) = snippet(&self.text, &self.diagnostic.at);
        writeln!(formatter, "not a target: {}", SafeText::new(&self.diagnostic.message))?;
        writeln!(formatter, "  {source}")?;
        writeln!(formatter, "  {carets}")?;
        match &self.diagnostic.hint {
            Some(hint) => writeln!(formatter, "  hint: {}", SafeText::new(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TargetError {}

/// Parses one word: `hosts.toml`, `-`, `@GROUP`, `hgx-[01-04]`, `user@host:port`, `[::1]:22`, `ssh://user@host:port`.
pub fn parse_target(text: &str) -> Result<Target, TargetError> {
    let is_host = text.starts_with(SCHEME);
    if text == "-" {
        return Ok(Target::Stdin);
    }
    if let Some(name) = text.strip_prefix('@')
        && !name.is_empty()
        && !name.contains(['/', '@', ':', '['])
    {
        return Ok(Target::Group(name.to_owned()));
    }
    if !is_host && (text.contains('/') || has_toml_ending(text)) {
        return Ok(Target::File(PathBuf::from(text)));
    }
    parse_hosts(text)
        .map(Target::Hosts)
        .map_err(|diagnostic| TargetError { text: text.to_owned(), diagnostic: Box::new(diagnostic) })
}

/// Splits a list of targets at white space and line ends. A `#` begins a comment.
pub fn parse_word_list(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace())
}

fn has_toml_ending(text: &str) -> bool {
    text.len() > ".toml".len() && text.get(text.len() - 5..).is_some_and(|end| end.eq_ignore_ascii_case(".toml"))
}

fn parse_hosts(text: &str) -> Result<HostTarget, Diagnostic> {
    let is_host = text.starts_with(SCHEME);
    let start = if is_host { SCHEME.len() } else { 0 };
    let rest = text[start..].strip_suffix('/').filter(|_| is_host).unwrap_or(&text[start..]);
    let (user, host, host_at) = match rest.rsplit_once('@') {
        Some((user, host)) => {
            check_user(user, start..start + user.len())?;
            (Some(user.to_owned()), host, start + user.len() + 1)
        }
        None => (None, rest, start),
    };
    let (host, port) = split_port(host, host_at)?;
    let host = bracketed_ipv6(host).unwrap_or(host);
    let names = if is_ipv6(host) {
        vec![host.to_owned()]
    } else {
        nodeset::expand(host).map_err(|diagnostic| diagnostic.offset_by(host_at))?
    };
    for name in &names {
        check_host(name, host_at..host_at + host.len())?;
    }
    let is_bare = user.is_none() && port.is_none() && !is_host && !nodeset::is_pattern(host);
    Ok(HostTarget { text: text.to_owned(), user, port, names, nodeset: host.to_owned(), is_bare })
}

/// Splits `host:port`. Colons in brackets and in an unbracketed IPv6 address do not separate a port.
fn split_port(host: &str, at: usize) -> Result<(&str, Option<u16>), Diagnostic> {
    if is_ipv6(host) {
        return Ok((host, None));
    }
    let after_brackets = host.rfind(']').map_or(0, |bracket| bracket + 1);
    match host[after_brackets..].rfind(':') {
        Some(colon) => {
            let colon = after_brackets + colon;
            let port = parse_port(&host[colon + 1..], at + colon + 1..at + host.len())?;
            Ok((&host[..colon], Some(port)))
        }
        None => Ok((host, None)),
    }
}

/// Characters that OpenSSH rejects in host and user names, because a shell behind `ProxyCommand` or `Match exec` would
/// interpret them (ssh.c, `valid_hostname`, `valid_ruser`).
const SHELL_CHARACTERS: &str = "'`\"$\\;&<>|(){}";

/// Refuses characters that a screen does not show, such as U+202E, which reverses the text after it: the name would look
/// like another one.
pub(super) fn check_visible(name: &str, at: &Range<usize>) -> Result<(), Diagnostic> {
    match name.chars().find(|character| !is_safe(*character)) {
        None => Ok(()),
        Some(character) => Err(Diagnostic::at(
            at.clone(),
            format!("the invisible character U+{:04X} cannot be in a name", u32::from(character)),
            "type the name again: invisible characters come with copied text",
        )),
    }
}

/// Checks a host name or address at the range `at`.
pub(super) fn check_host(name: &str, at: Range<usize>) -> Result<(), Diagnostic> {
    check_visible(name, &at)?;
    if is_ipv6(name) {
        return Ok(());
    }
    if name.is_empty() {
        return Err(Diagnostic::at(at, "an empty host name", "use a name that `ssh` accepts"));
    }
    if name.starts_with('-') {
        return Err(Diagnostic::at(at, format!("`{name}` begins with `-`"), "ssh would read it as an option"));
    }
    let is_bad = |character: char| {
        SHELL_CHARACTERS.contains(character)
            || character.is_whitespace()
            || matches!(character, '/' | '@' | ':' | '[' | ']' | ',' | '*' | '?' | '#' | '!')
    };
    match name.chars().find(|&character| is_bad(character)) {
        None => Ok(()),
        Some(':') => Err(Diagnostic::at(at, format!("`{name}` is neither a host name nor an IPv6 address"), PORT_HINT)),
        Some('@') => Err(Diagnostic::at(at, format!("`{name}` contains a user name"), "write the user in `user`")),
        Some(character) => {
            Err(Diagnostic::at(at, format!("`{character}` cannot be in a host name"), "use a name that `ssh` accepts"))
        }
    }
}

const PORT_HINT: &str = "write the port in `port`, or as `host:port` for a single host";

/// Checks a login name at the range `at`.
pub(super) fn check_user(name: &str, at: Range<usize>) -> Result<(), Diagnostic> {
    check_visible(name, &at)?;
    if name.is_empty() {
        return Err(Diagnostic::at(at, "an empty user name", "leave it out to use the user of the ssh configuration"));
    }
    if name.starts_with('-') {
        return Err(Diagnostic::at(at, format!("`{name}` begins with `-`"), "ssh would read it as an option"));
    }
    let is_bad = |character: char| SHELL_CHARACTERS.contains(character) || character.is_whitespace();
    match name.chars().find(|&character| is_bad(character)) {
        None => Ok(()),
        Some(character) => Err(Diagnostic::at(
            at,
            format!("`{character}` cannot be in a user name"),
            "use a name that `ssh -l` accepts",
        )),
    }
}

/// Whether the text is an IPv6 address, with or without a zone (`fe80::1%eth0`).
pub(super) fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let is_zone = !zone.is_empty() && zone.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    is_zone && address.parse::<Ipv6Addr>().is_ok()
}

/// Returns the IPv6 address in brackets: `[::1]` gives `::1`.
pub(super) fn bracketed_ipv6(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']').filter(|inside| is_ipv6(inside))
}

/// Parses a port, 1 to 65535, at the range `at`.
pub(super) fn parse_port(text: &str, at: Range<usize>) -> Result<u16, Diagnostic> {
    let hint = "a port is a number from 1 to 65535";
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if port > 0 && is_number => Ok(port),
        _ if text.is_empty() => Err(Diagnostic::at(at, "the port is missing", hint)),
        _ => Err(Diagnostic::at(at, format!("`{text}` is not a port"), hint)),
    }
}

/// The maximum number of jump hosts.
const MAX_HOPS: usize = 8;

/// One jump host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Login name, if given.
    pub user: Option<String>,
    /// Host name as ssh knows it.
    pub host: String,
    /// TCP port, if given.
    pub port: Option<u16>,
}

impl fmt::Display for Hop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(formatter, "{user}@")?;
        }
        match self.port {
            Some(port) if is_ipv6(&self.host) => write!(formatter, "[{}]:{port}", self.host),
            Some(port) => write!(formatter, "{}:{port}", self.host),
            None => formatter.write_str(&self.host),
        }
    }
}

/// Parses jump hosts at the range `at` as `ssh -J` does: `[user@]host[:port]`, separated by commas, the nearest one
/// first. `none` gives an empty list.
pub fn parse_hops(text: &str, at: Range<usize>) -> Result<Vec<Hop>, Diagnostic> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Vec::new());
    }
    let hops = text.split(',').map(|hop| parse_hop(hop, at.clone())).collect::<Result<Vec<_>, _>>()?;
    if hops.len() > MAX_HOPS {
        let message = format!("{} jump hosts; the limit is {MAX_HOPS}", hops.len());
        return Err(Diagnostic::at(at, message, "use fewer jump hosts"));
    }
    Ok(hops)
}

fn parse_hop(text: &str, at: Range<usize>) -> Result<Hop, Diagnostic> {
    let text = text.trim();
    let text = text.strip_prefix("ssh://").map_or(text, |rest| rest.trim_end_matches('/'));
    let (user, place) = match text.rsplit_once('@') {
        Some((user, place)) => {
            check_user(user, at.clone())?;
            (Some(user.to_owned()), place)
        }
        None => (None, text),
    };
    let (host, port) = if is_ipv6(place) {
        (place, None)
    } else {
        match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(parse_port(port, at.clone())?)),
            _ => (place, None),
        }
    };
    // `ssh -G` prints every host with a port in brackets.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    check_host(host, at)?;
    Ok(Hop { user, host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(text: &str) -> (Option<String>, Vec<String>, Option<u16>, bool) {
        match parse_target(text) {
            Ok(Target::Hosts(target)) => (target.user, target.names, target.port, target.is_bare),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn plain(
        user: Option<&str>,
        names: &[&str],
        port: Option<u16>,
        is_bare: bool,
    ) -> (Option<String>, Vec<String>, Option<u16>, bool) {
        (user.map(str::to_owned), names.iter().map(|name| (*name).to_owned()).collect(), port, is_bare)
    }

    #[test]
    fn every_form_of_a_host_is_parsed() {
        assert_eq!(hosts("gpu1"), plain(None, &["gpu1"], None, true));
        assert_eq!(hosts("bob@gpu1:2222"), plain(Some("bob"), &["gpu1"], Some(2222), false));
        assert_eq!(hosts("bob@EXAMPLE.ORG@gpu1"), plain(Some("bob@EXAMPLE.ORG"), &["gpu1"], None, false));
        assert_eq!(hosts("hgx-[01-02]:22"), plain(None, &["hgx-01", "hgx-02"], Some(22), false));
        assert_eq!(hosts("a,b"), plain(None, &["a", "b"], None, false));
        assert_eq!(hosts("[1,3]"), plain(None, &["1", "3"], None, false));
        assert_eq!(hosts("[::1]:22"), plain(None, &["::1"], Some(22), false));
        assert_eq!(hosts("bob@[fe80::1%eth0]"), plain(Some("bob"), &["fe80::1%eth0"], None, false));
        assert_eq!(hosts("::1"), plain(None, &["::1"], None, true));
        assert_eq!(hosts("ssh://status"), plain(None, &["status"], None, false));
        assert_eq!(hosts("ssh://bob@gpu1:22/"), plain(Some("bob"), &["gpu1"], Some(22), false));
    }

    #[test]
    fn files_and_standard_input_are_recognized() {
        assert_eq!(parse_target("hosts.toml"), Ok(Target::File("hosts.toml".into())));
        assert_eq!(parse_target("./lab"), Ok(Target::File("./lab".into())));
        assert_eq!(parse_target("-"), Ok(Target::Stdin));
        assert_eq!(hosts(".toml"), plain(None, &[".toml"], None, true));
    }

    #[test]
    fn errors_point_into_the_word() {
        let error = parse_target("bob@hgx-[01-04").expect_err("unclosed").to_string();
        assert_eq!(
            error,
            "not a target: `[` without `]`\n  bob@hgx-[01-04\n          ^^^^^^\n  hint: write a range as `[01-04]`\n"
        );
        let error = parse_target("gpu1:99999").expect_err("port").to_string();
        assert_eq!(
            error,
            "not a target: `99999` is not a port\n  gpu1:99999\n       ^^^^^\n  hint: a port is a number from 1 to 65535\n"
        );
        for text in ["", "@", "bob@", "gpu1:", "a b", "-oProxyCommand=x", "a:22,b:22", "[::1", "ssh://", "$(x)"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn word_lists_may_contain_comments() {
        let words: Vec<&str> = parse_word_list("gpu1 gpu2 # the old ones\n\n# none\nbob@gpu3\n").collect();
        assert_eq!(words, ["gpu1", "gpu2", "bob@gpu3"]);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,16}") {
            if let Err(error) = parse_target(&text) {
                prop_assert!(error.to_string().starts_with("not a target: "));
            }
        }

        #[test]
        fn user_host_and_port_round_trip(user in "[a-z]{1,8}", host in "[a-z][a-z0-9.-]{0,8}[a-z]", port in 1_u16..) {
            let (read_user, names, read_port, is_bare) = hosts(&format!("{user}@{host}:{port}"));
            prop_assert_eq!((read_user, names, read_port, is_bare), (Some(user), vec![host], Some(port), false));
        }
    }

    #[test]
    fn names_that_ssh_accepts_are_valid() {
        for name in ["hgx-01", "gpu_1.cs.uni.example", "10.0.0.7", "::1", "fe80::1%eth0", "größe", "a+b"] {
            assert_eq!(check_host(name, 0..0), Ok(()), "{name}");
        }
        for name in ["alice", "alice@EXAMPLE.ORG", "svc+gpu", "a.b_c-d"] {
            assert_eq!(check_user(name, 0..0), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_with_shell_characters_or_a_leading_dash_are_rejected() {
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
    fn only_whole_ipv6_addresses_are_unbracketed() {
        assert_eq!(bracketed_ipv6("[::1]"), Some("::1"));
        assert_eq!(bracketed_ipv6("[1,3]"), None);
        assert!(!is_ipv6("fe80::1%"));
        assert!(!is_ipv6("fe80::1%a;b"));
    }

    fn read(text: &str) -> Result<Vec<String>, String> {
        let hops = parse_hops(text, 0..text.len()).map_err(|diagnostic| diagnostic.message)?;
        Ok(hops.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn jump_hosts_are_parsed_as_by_ssh() {
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
    fn invalid_jump_hosts_are_rejected() {
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
