//! What the known_hosts files say of a host and its key.

use super::line::{Line, Marker};
use super::pattern::{self, Match};
use crate::ssh::text;
use crate::ssh::transport::{SshError, SshErrorKind};
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, HashAlg, PublicKey};
use std::path::{Path, PathBuf};

/// The most other names reported for an unknown key.
const MAX_OTHER_NAMES: usize = 5;

/// Under which names a host's keys are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostName {
    /// The name that is written down: `gpu01`, `[gpu01]:2222`, or the alias.
    pub(crate) exact: String,
    /// Where the port is not 22 and there is no alias: the name without port, whose keys are accepted too.
    plain: Option<String>,
    /// The name that a host certificate must carry: the alias, or the name without its port.
    principal: String,
}

impl HostName {
    pub(crate) fn new(hostname: &str, port: u16, alias: Option<&str>) -> Self {
        let plain = hostname.to_ascii_lowercase();
        match alias {
            Some(alias) => Self { exact: alias.to_owned(), plain: None, principal: alias.to_owned() },
            None if port == 22 => Self { exact: plain.clone(), plain: None, principal: plain },
            None => Self { exact: format!("[{plain}]:{port}"), plain: Some(plain.clone()), principal: plain },
        }
    }

    /// The name that a host certificate must carry.
    pub(super) fn principal(&self) -> &str {
        &self.principal
    }

    /// Each name under which a key counts.
    fn names(&self) -> impl Iterator<Item = &String> {
        [Some(&self.exact), self.plain.as_ref()].into_iter().flatten()
    }
}

/// A line of a file, and the key on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownHostsEntry {
    pub(crate) file: PathBuf,
    /// Counted from 1.
    pub(crate) line: usize,
    /// For example `ssh-ed25519`; `None` when the line's key cannot be read.
    pub(crate) key_type: Option<String>,
    /// `SHA256:...` of that key.
    pub(crate) fingerprint: Option<String>,
}

/// What the files say of a key that a host showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostKeyStatus {
    /// It is the host's.
    Known,
    /// Nothing is known of the host; the other names under which the key is known.
    Unknown(Vec<String>),
    /// The host has other keys, the first of them here.
    Changed(KnownHostsEntry),
    /// The key must not be accepted.
    Revoked(KnownHostsEntry),
}

/// The known_hosts files that count for a host, as they were when read.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownHosts {
    files: Vec<(PathBuf, String)>,
}

impl KnownHosts {
    /// Reads the files; one that does not exist is empty, one that cannot be read is an error.
    pub(crate) fn read<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<Self, SshError> {
        let mut files = Vec::new();
        for path in paths {
            match std::fs::read(path) {
                Ok(bytes) => files.push((path.clone(), String::from_utf8_lossy(&bytes).into_owned())),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(SshError::new(
                        SshErrorKind::KnownHosts,
                        format!(
                            "reading the known host keys in {} failed: {}",
                            path.display(),
                            crate::wire::format::io_cause(&error)
                        ),
                    )
                    .with_hint(format!("ls -l {}", text::shell_word(&path.to_string_lossy()))));
                }
            }
        }
        Ok(Self { files })
    }

    /// One file whose content is known already.
    pub(super) fn from_text(path: &Path, text: String) -> Self {
        Self { files: vec![(path.to_owned(), text)] }
    }

    /// Judges a plain host key. Keys of certificate authorities never make one known.
    pub(crate) fn check_key(&self, name: &HostName, key: &PublicKey) -> HostKeyStatus {
        if let Some(entry) = self.revoked(name, key.key_data()) {
            return HostKeyStatus::Revoked(entry);
        }
        let mut other = None;
        for (entry, known) in self.plain_keys(&name.exact) {
            if known.key_data() == key.key_data() {
                return HostKeyStatus::Known;
            }
            // A key of another type counts as well: a host that OpenSSH knows by RSA alone is asked for RSA first.
            other.get_or_insert(entry);
        }
        if let Some(entry) = other {
            return HostKeyStatus::Changed(entry);
        }
        let plain = name.plain.as_ref();
        if plain.is_some_and(|plain| self.plain_keys(plain).any(|(_, known)| known.key_data() == key.key_data())) {
            return HostKeyStatus::Known;
        }
        HostKeyStatus::Unknown(self.other_names(key))
    }

    /// The types of the keys that are known for the host, in the order of the files.
    pub(crate) fn key_types(&self, name: &HostName) -> Vec<Algorithm> {
        let mut types = Vec::new();
        for (_, key) in self.plain_keys(&name.exact) {
            let algorithm = key.algorithm();
            if !types.contains(&algorithm) {
                types.push(algorithm);
            }
        }
        types
    }

    /// Whether any certificate authority is known for the host: only then is a certificate asked for.
    pub(crate) fn has_authorities(&self, name: &HostName) -> bool {
        self.authorities(name).next().is_some()
    }

    /// Whether this key is a certificate authority for the host.
    pub(super) fn has_authority(&self, name: &HostName, key: &KeyData) -> bool {
        self.authorities(name).any(|authority| authority.key_data() == key)
    }

    fn authorities<'a>(&'a self, name: &'a HostName) -> impl Iterator<Item = PublicKey> + 'a {
        name.names().flat_map(|name| self.lines(name)).filter_map(|(_, line, matched)| {
            (matched == Match::Yes && line.marker == Marker::CertAuthority).then(|| line.key())?
        })
    }

    /// The line that revokes this key for the host.
    pub(super) fn revoked(&self, name: &HostName, key: &KeyData) -> Option<KnownHostsEntry> {
        name.names().find_map(|name| self.revocation(name, key))
    }

    fn plain_keys(&self, name: &str) -> impl Iterator<Item = (KnownHostsEntry, PublicKey)> {
        self.lines(name).filter_map(|((file, number), line, matched)| {
            let key = (matched == Match::Yes && line.marker == Marker::None).then(|| line.key())??;
            Some((known_hosts_entry(file, number, Some(&key)), key))
        })
    }

    fn revocation(&self, name: &str, key: &KeyData) -> Option<KnownHostsEntry> {
        self.lines(name).filter(|(_, line, _)| line.marker == Marker::Revoked).find_map(|((file, number), line, _)| {
            let revoked = line.key();
            let refuses = revoked.as_ref().is_none_or(|revoked| revoked.key_data() == key);
            refuses.then(|| known_hosts_entry(file, number, revoked.as_ref()))
        })
    }

    /// The lines that name `name`, and those of which one cannot tell.
    fn lines(&self, name: &str) -> impl Iterator<Item = ((&Path, usize), Line<'_>, Match)> {
        self.all_lines().filter_map(move |(entry, line)| match pattern::matches(line.hosts, name) {
            Match::No => None,
            matched => Some((entry, line, matched)),
        })
    }

    fn all_lines(&self) -> impl Iterator<Item = ((&Path, usize), Line<'_>)> {
        self.files.iter().flat_map(|(path, text)| {
            text.split('\n')
                .enumerate()
                .filter_map(move |(index, line)| Some(((path.as_path(), index + 1), Line::parse(line)?)))
        })
    }

    fn other_names(&self, key: &PublicKey) -> Vec<String> {
        let Ok(text) = key.to_openssh() else { return Vec::new() };
        let Some(text) = text.split(' ').nth(1) else { return Vec::new() };
        let mut names: Vec<String> = Vec::new();
        for (_, line) in self.all_lines().filter(|(_, line)| line.marker == Marker::None && line.key_text() == text) {
            let name = if line.hosts.starts_with('|') { "(hashed name)" } else { line.hosts };
            if names.len() < MAX_OTHER_NAMES && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }
}

fn known_hosts_entry(file: &Path, line: usize, key: Option<&PublicKey>) -> KnownHostsEntry {
    KnownHostsEntry {
        file: file.to_owned(),
        line,
        key_type: key.map(|key| key.algorithm().as_str().to_owned()),
        fingerprint: key.map(|key| key.fingerprint(HashAlg::Sha256).to_string()),
    }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
