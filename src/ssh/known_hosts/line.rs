//! One line of a known_hosts file.

use russh::keys::PublicKey;

/// What stands before the host names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// A plain host key.
    None,
    /// `@cert-authority`: a key that signs host certificates, never a host's own.
    CertAuthority,
    /// `@revoked`: a key that must never be accepted.
    Revoked,
}

/// A line that names hosts. Its key is read only when asked for: most lines concern other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) marker: Marker,
    /// The host names as written: patterns separated by commas, or one hashed name.
    pub(super) hosts: &'a str,
    /// What follows: key type, key, comment.
    rest: &'a str,
}

/// What separates fields: runs of spaces and tabs, nothing else.
const BLANK: [char; 2] = [' ', '\t'];

impl<'a> Line<'a> {
    /// Splits a line into its fields. `None` for an empty line, a comment, and a marker that is not known or stands
    /// alone: OpenSSH skips these.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        // OpenSSH reads C strings: what follows a NUL is not there.
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
                // A second marker makes the line invalid; a revocation among them still counts.
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

    /// The key, or `None` when it cannot be read: unknown type, bad base64, or a type that differs from the key's own.
    pub(super) fn key(&self) -> Option<PublicKey> {
        let (key_type, rest) = field(self.rest);
        let (key, _comment) = field(rest);
        let parsed = PublicKey::from_openssh(&format!("{key_type} {}", key.trim_end_matches('\r'))).ok()?;
        (parsed.algorithm().as_str() == key_type).then_some(parsed)
    }

    /// The key as written, for comparing without reading it.
    pub(super) fn key_text(&self) -> &'a str {
        field(field(self.rest).1).0.trim_end_matches('\r')
    }
}

/// The first field and what follows the blanks after it.
fn field(text: &str) -> (&str, &str) {
    let end = text.find(BLANK).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start_matches(BLANK))
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
    fn markers() {
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
    fn lines_without_a_usable_key() {
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
}
