//! Whether the host field of a line names a host.

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// What the host field says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Yes,
    No,
    /// A hashed name that cannot be read: it could be any host.
    Unreadable,
}

/// What begins a hashed name.
const HASH_MAGIC: &str = "|1|";

/// OpenSSH gives up on a list with a pattern longer than this.
const MAX_PATTERN_BYTES: usize = 1022;

/// Whether `hosts`, as written in the file, names `name` (lower case, with brackets and port where it has one).
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

/// `name` hashed with `salt` as it is written in a file.
pub(super) fn hashed_field(salt: &[u8; 20], name: &str) -> Option<String> {
    let hash = hash_name(salt, name)?;
    Some(format!("{HASH_MAGIC}{}|{}", Base64::encode_string(salt), Base64::encode_string(&hash)))
}

/// Salt and hash of a hashed name, both of SHA-1's length.
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

/// Patterns separated by commas. One that is negated and matches decides against all others.
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

/// `*` stands for any run of characters, `?` for one. Linear in memory and at worst quadratic in time, whatever the
/// file says: only the last `*` is ever gone back to.
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

    fn yes(hosts: &str, name: &str) -> bool {
        matches(hosts, name) == Match::Yes
    }

    #[test]
    fn wildcards_and_case() {
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
    fn lists_and_negation() {
        assert!(yes("gpu01,10.0.0.1", "10.0.0.1"));
        assert!(!yes("*.lab,!gpu01.lab", "gpu01.lab"));
        assert!(!yes("!gpu01.lab,*.lab", "gpu01.lab"));
        assert!(yes("!gpu01.lab,*.lab", "gpu02.lab"));
        assert!(!yes("!gpu01.lab", "gpu02.lab"), "a negation alone names nobody");
        assert!(!yes(&format!("gpu01,{}", "x".repeat(1023)), "gpu02"));
    }

    #[test]
    fn many_stars_end_soon() {
        assert!(!yes(&"*a".repeat(400), &"a".repeat(399)));
        assert!(yes(&"*a".repeat(400), &"a".repeat(400)));
    }

    #[test]
    fn hashed_names() {
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
