//! What a word on the command line stands for: a file, standard input, or hosts.

use super::diagnostic::snippet;
use super::{Diagnostic, address, nodeset};
use crate::wire::SafeText;
use std::fmt;
use std::path::PathBuf;

/// The prefix that makes any word a host, as OpenSSH writes it: `ssh://[user@]host[:port]`.
const SCHEME: &str = "ssh://";

/// What one word stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A hosts.toml: it ends in `.toml` or holds a `/`.
    File(PathBuf),
    /// `-`: targets are read from standard input.
    Stdin,
    /// Hosts.
    Hosts(HostTarget),
}

/// Hosts that are named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTarget {
    /// The word as it was typed.
    pub text: String,
    /// Login name, where given.
    pub user: Option<String>,
    /// TCP port, where given.
    pub port: Option<u16>,
    /// The names or addresses that the word stands for.
    pub names: Vec<String>,
    /// The part of the word that names them, as hosts.toml takes it for `name`.
    pub nodeset: String,
    /// Nothing but one name: it could be a mistyped subcommand.
    pub is_bare: bool,
}

/// Why a word cannot be a target.
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

/// Reads one word: `hosts.toml`, `-`, `hgx-[01-04]`, `user@host:port`, `[::1]:22`, `ssh://user@host:port`.
pub fn parse_target(text: &str) -> Result<Target, TargetError> {
    let is_host = text.starts_with(SCHEME);
    if text == "-" {
        return Ok(Target::Stdin);
    }
    if !is_host && (text.contains('/') || has_toml_ending(text)) {
        return Ok(Target::File(PathBuf::from(text)));
    }
    parse_hosts(text)
        .map(Target::Hosts)
        .map_err(|diagnostic| TargetError { text: text.to_owned(), diagnostic: Box::new(diagnostic) })
}

/// The words of a list of targets, one or more a line; what follows a `#` is a remark.
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
            address::check_user(user, start..start + user.len())?;
            (Some(user.to_owned()), host, start + user.len() + 1)
        }
        None => (None, rest, start),
    };
    let (host, port) = split_port(host, host_at)?;
    let host = address::bracketed_ipv6(host).unwrap_or(host);
    let names = if address::is_ipv6(host) {
        vec![host.to_owned()]
    } else {
        nodeset::expand(host).map_err(|diagnostic| diagnostic.offset_by(host_at))?
    };
    for name in &names {
        address::check_host(name, host_at..host_at + host.len())?;
    }
    let is_bare = user.is_none() && port.is_none() && !is_host && !nodeset::is_pattern(host);
    Ok(HostTarget { text: text.to_owned(), user, port, names, nodeset: host.to_owned(), is_bare })
}

/// Splits `host:port`. Colons within brackets, and those of an IPv6 address without brackets, are not the port's.
fn split_port(host: &str, at: usize) -> Result<(&str, Option<u16>), Diagnostic> {
    if address::is_ipv6(host) {
        return Ok((host, None));
    }
    let after_brackets = host.rfind(']').map_or(0, |bracket| bracket + 1);
    match host[after_brackets..].rfind(':') {
        Some(colon) => {
            let colon = after_brackets + colon;
            let port = address::parse_port(&host[colon + 1..], at + colon + 1..at + host.len())?;
            Ok((&host[..colon], Some(port)))
        }
        None => Ok((host, None)),
    }
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
    fn every_form_of_a_host_is_read() {
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
    fn files_and_standard_input_are_told_apart_from_hosts() {
        assert_eq!(parse_target("hosts.toml"), Ok(Target::File("hosts.toml".into())));
        assert_eq!(parse_target("./lab"), Ok(Target::File("./lab".into())));
        assert_eq!(parse_target("-"), Ok(Target::Stdin));
        assert_eq!(hosts(".toml"), plain(None, &[".toml"], None, true));
    }

    #[test]
    fn mistakes_show_their_place() {
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
        for text in ["", "@gpu1", "bob@", "gpu1:", "a b", "-oProxyCommand=x", "a:22,b:22", "[::1", "ssh://", "$(x)"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_may_hold_remarks() {
        let words: Vec<&str> = parse_word_list("gpu1 gpu2 # the old ones\n\n# none\nbob@gpu3\n").collect();
        assert_eq!(words, ["gpu1", "gpu2", "bob@gpu3"]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,16}") {
            if let Err(error) = parse_target(&text) {
                prop_assert!(error.to_string().starts_with("not a target: "));
            }
        }

        #[test]
        fn what_is_put_together_comes_apart(user in "[a-z]{1,8}", host in "[a-z][a-z0-9.-]{0,8}[a-z]", port in 1_u16..) {
            let (read_user, names, read_port, is_bare) = hosts(&format!("{user}@{host}:{port}"));
            prop_assert_eq!((read_user, names, read_port, is_bare), (Some(user), vec![host], Some(port), false));
        }
    }
}
