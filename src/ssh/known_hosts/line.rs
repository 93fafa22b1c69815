//! One line of a known_hosts file, and whether its host patterns match a name.

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use russh::keys::PublicKey;
use sha1::Sha1;

/// Fields are separated by runs of spaces and tabs.
const BLANK: [char; 2] = [' ', '\t'];

/// The prefix of a hashed name.
const HASH_MAGIC: &str = "|1|";

/// OpenSSH rejects a list with a longer pattern.
const MAX_PATTERN_BYTES: usize = 1022;

/// The marker before the host names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// A plain host key.
    None,
    /// `@cert-authority`: a key that signs host certificates.
    CertAuthority,
    /// `@revoked`: a key that must never be accepted.
    Revoked,
}

/// A parsed line. The key is parsed on demand, because most lines concern other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) marker: Marker,
    /// Patterns separated by commas, or one hashed name.
    pub(super) hosts: &'a str,
    /// Key type, key and comment.
    rest: &'a str,
}

impl<'a> Line<'a> {
    /// Returns `None` for an empty line, a comment, and an unknown or lone marker: OpenSSH skips these lines.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        // OpenSSH reads C strings, which end at the first NUL.
        let line = line.split('\0').next().unwrap_or_default();
        let mut rest = line.trim_start_matches(BLANK);
        if rest.is_empty() || rest.starts_with('#') {
            return None;
        }
        let mut marker = Marker::None;
        let mut markers = 0;
        while rest.starts_with('@') {
            let (word, after) = field(rest);
            rest = after;
            markers += 1;
            marker = match word {
                "@revoked" => Marker::Revoked,
                // OpenSSH ignores a line with two markers. Fail closed: a revocation still counts.
                _ if marker == Marker::Revoked => Marker::Revoked,
                "@cert-authority" => Marker::CertAuthority,
                _ => return None,
            };
        }
        if markers > 1 && marker != Marker::Revoked {
            return None;
        }
        let (hosts, rest) = field(rest);
        if hosts.is_empty() {
            return None;
        }
        Some(Self { marker, hosts, rest })
    }

    /// The key, or `None` if its type is unknown, its base64 is invalid, or the type differs from that in the blob.
    pub(super) fn key(&self) -> Option<PublicKey> {
        let (key_type, rest) = field(self.rest);
        let (key, _comment) = field(rest);
        let parsed = PublicKey::from_openssh(&format!("{key_type} {}", key.trim_end_matches('\r'))).ok()?;
        (parsed.algorithm().as_str() == key_type).then_some(parsed)
    }

    /// The key in base64.
    pub(super) fn key_text(&self) -> &'a str {
        field(field(self.rest).1).0.trim_end_matches('\r')
    }
}

/// The first field and the rest of the line.
fn field(text: &str) -> (&str, &str) {
    let end = text.find(BLANK).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start_matches(BLANK))
}

/// Whether a host field names a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Yes,
    No,
    /// A malformed hashed name, which could be any host.
    Unreadable,
}

/// Matches a host field with a name. The name is in lower case, in the form `[name]:port` if the port is not 22.
pub(super) fn matches(hosts: &str, name: &str) -> Match {
    if hosts.starts_with('|') {
        return match hashed(hosts) {
            Some((salt, hash)) if hash_name(&salt, name).as_deref() == Some(&hash[..]) => Match::Yes,
            Some(_) => Match::No,
            None => Match::Unreadable,
        };
    }
    if list_matches(hosts, name) { Match::Yes } else { Match::No }
}

/// The host field of a name hashed with `salt`.
pub(super) fn hashed_field(salt: &[u8; 20], name: &str) -> Option<String> {
    let hash = hash_name(salt, name)?;
    Some(format!("{HASH_MAGIC}{}|{}", Base64::encode_string(salt), Base64::encode_string(&hash)))
}

/// Salt and hash of a hashed name, each 20 bytes as in SHA-1.
fn hashed(hosts: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let (salt, hash) = hosts.strip_prefix(HASH_MAGIC)?.split_once('|')?;
    let (salt, hash) = (Base64::decode_vec(salt).ok()?, Base64::decode_vec(hash).ok()?);
    (salt.len() == 20 && hash.len() == 20).then_some((salt, hash))
}

fn hash_name(salt: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut mac = Hmac::<Sha1>::new_from_slice(salt).ok()?;
    mac.update(name.as_bytes());
    Some(mac.finalize().into_bytes().to_vec())
}

/// Matches patterns separated by commas. A matching negated pattern overrides all others.
fn list_matches(list: &str, name: &str) -> bool {
    let mut found = false;
    for pattern in list.split(',') {
        let (negated, pattern) = match pattern.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        if pattern.len() > MAX_PATTERN_BYTES {
            return false;
        }
        if glob(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes()) {
            if negated {
                return false;
            }
            found = true;
        }
    }
    found
}

/// Matches a pattern with `*` and `?`. It backtracks only to the last `*`, so the time is at most quadratic for any
/// pattern.
pub(in crate::ssh) fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while position < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, position));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[position] => {
                at += 1;
                position += 1;
            }
            _ => match star {
                Some((star_at, taken)) => {
                    star = Some((star_at, taken + 1));
                    at = star_at + 1;
                    position = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    fn parsed(line: &str) -> Option<(Marker, String, bool)> {
        Line::parse(line).map(|line| (line.marker, line.hosts.to_owned(), line.key().is_some()))
    }

    #[test]
    fn fields_are_split_on_runs_of_spaces_and_tabs() {
        for line in [
            format!("gpu01 ssh-ed25519 {KEY}"),
            format!("gpu01\tssh-ed25519\t{KEY}"),
            format!("  \t gpu01 \t ssh-ed25519  {KEY}   a comment with spaces"),
            format!("gpu01 ssh-ed25519 {KEY}\r"),
        ] {
            assert_eq!(parsed(&line), Some((Marker::None, "gpu01".into(), true)), "{line:?}");
        }
    }

    #[test]
    fn markers_are_parsed() {
        assert_eq!(parsed(&format!("@revoked\t*\tssh-ed25519 {KEY}")), Some((Marker::Revoked, "*".into(), true)));
        assert_eq!(
            parsed(&format!("@cert-authority *.lab ssh-ed25519 {KEY}")),
            Some((Marker::CertAuthority, "*.lab".into(), true))
        );
        assert_eq!(parsed(&format!("@Revoked * ssh-ed25519 {KEY}")), None);
        assert_eq!(parsed(&format!("@trusted * ssh-ed25519 {KEY}")), None);
        assert_eq!(parsed("@revoked"), None);
        assert_eq!(parsed(&format!("@cert-authority @cert-authority * ssh-ed25519 {KEY}")), None);
        assert_eq!(
            parsed(&format!("@cert-authority @revoked * ssh-ed25519 {KEY}")),
            Some((Marker::Revoked, "*".into(), true))
        );
        assert_eq!(
            parsed(&format!("@revoked @nonsense * ssh-ed25519 {KEY}")),
            Some((Marker::Revoked, "*".into(), true))
        );
    }

    #[test]
    fn an_unusable_key_is_none_and_comments_are_skipped() {
        for line in [
            "gpu01".to_owned(),
            "gpu01 ssh-ed25519".to_owned(),
            "gpu01 ssh-ed25519 AAAA".to_owned(),
            format!("gpu01 ssh-rsa {KEY}"),
            format!("gpu01 {KEY}"),
            format!("gpu01 ssh-ed25519 {}", &KEY[..40]),
        ] {
            assert_eq!(parsed(&line), Some((Marker::None, "gpu01".into(), false)), "{line:?}");
        }
        for line in ["", "   ", "# gpu01 ssh-ed25519", "\t#x", "\0gpu01"] {
            assert_eq!(parsed(line), None, "{line:?}");
        }
    }

    fn yes(hosts: &str, name: &str) -> bool {
        matches(hosts, name) == Match::Yes
    }

    #[test]
    fn wildcards_match_and_case_is_ignored() {
        assert!(yes("gpu01", "gpu01"));
        assert!(yes("GPU01", "gpu01"));
        assert!(!yes("gpu01", "gpu011"));
        assert!(yes("gpu*", "gpu01"));
        assert!(yes("*", ""));
        assert!(yes("*.lab", "a.b.lab"));
        assert!(!yes("*.lab", "lab"));
        assert!(yes("gpu??", "gpu01"));
        assert!(!yes("gpu?", "gpu01"));
        assert!(yes("[gpu01]:2222", "[gpu01]:2222"), "brackets are no character class");
        assert!(yes("a*b*c", "aXbXbc"));
    }

    #[test]
    fn a_negated_pattern_overrides_the_list() {
        assert!(yes("gpu01,10.0.0.1", "10.0.0.1"));
        assert!(!yes("*.lab,!gpu01.lab", "gpu01.lab"));
        assert!(!yes("!gpu01.lab,*.lab", "gpu01.lab"));
        assert!(yes("!gpu01.lab,*.lab", "gpu02.lab"));
        assert!(!yes("!gpu01.lab", "gpu02.lab"), "a negation alone matches no host");
        assert!(!yes(&format!("gpu01,{}", "x".repeat(1023)), "gpu02"));
    }

    #[test]
    fn many_stars_do_not_backtrack_exponentially() {
        assert!(!yes(&"*a".repeat(400), &"a".repeat(399)));
        assert!(yes(&"*a".repeat(400), &"a".repeat(400)));
    }

    #[test]
    fn hashed_names_match() {
        // Made by `ssh-keygen -H`.
        let field = "|1|XNqpKX8AmrNXVFgVB8gYyo8V3gs=|xQgMmJyxhBcMb2ZVCVJGfPhXB0E=";
        assert_eq!(matches(field, "somebody.else"), Match::No);
        let ours = hashed_field(&[7; 20], "[gpu01]:2222").unwrap();
        assert!(yes(&ours, "[gpu01]:2222"));
        assert!(!yes(&ours, "gpu01"));
        for bad in ["|1|", "|1|AAAA|AAAA", "|2|x|y", "|1|XNqpKX8AmrNXVFgVB8gYyo8V3gs="] {
            assert_eq!(matches(bad, "gpu01"), Match::Unreadable, "{bad}");
        }
    }
}
