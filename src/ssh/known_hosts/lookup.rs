//! Looks up host keys in known_hosts files, and appends new ones.

use super::line::{self, Line, Marker, Match};
use crate::config::shell_word;
use crate::ssh::transport::{SshError, SshErrorKind};
use crate::store::{LockHeld, lock_within, open_regular, read_regular};
use crate::wire::format::io_cause;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, HashAlg, PublicKey};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum number of other names that are reported for an unknown key.
const MAX_OTHER_NAMES: usize = 5;

/// The maximum size of a known_hosts file: some 50,000 hosts.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The names under which the keys of a host are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostName {
    /// The name in new lines: `gpu01`, `[gpu01]:2222`, or the alias.
    pub(crate) exact: String,
    /// The name without the port, whose keys are accepted as well; set if the port is not 22 and there is no alias.
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

    /// All names under which a key is accepted.
    fn names(&self) -> impl Iterator<Item = &String> {
        [Some(&self.exact), self.plain.as_ref()].into_iter().flatten()
    }
}

/// A line of a known_hosts file and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownHostsEntry {
    pub(crate) file: PathBuf,
    /// Counted from 1.
    pub(crate) line: usize,
    /// For example `ssh-ed25519`; `None` if the key cannot be read.
    pub(crate) key_type: Option<String>,
    /// `SHA256:...` of that key.
    pub(crate) fingerprint: Option<String>,
}

/// How known_hosts classifies a host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostKeyStatus {
    /// The host has this key.
    Known,
    /// No key of the host is known. Contains other names that have this key.
    Unknown(Vec<String>),
    /// Other keys of the host are known. Contains the first of them.
    Changed(KnownHostsEntry),
    /// The key is revoked.
    Revoked(KnownHostsEntry),
}

/// The content of the known_hosts files of a host.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownHosts {
    files: Vec<(PathBuf, String)>,
}

impl KnownHosts {
    /// Reads the files. A missing file counts as empty; an unreadable file is an error.
    pub(crate) fn read<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<Self, SshError> {
        let mut files = Vec::new();
        for path in paths {
            match read_regular(path, MAX_BYTES) {
                Ok(bytes) => files.push((path.clone(), text_of(bytes))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(SshError::new(
                        SshErrorKind::KnownHosts,
                        format!("reading the known host keys in {} failed: {}", path.display(), io_cause(&error)),
                    )
                    .with_hint(format!("ls -l {}", shell_word(&path.to_string_lossy()))));
                }
            }
        }
        Ok(Self { files })
    }

    /// A single file with the given content.
    pub(super) fn from_text(path: &Path, text: String) -> Self {
        Self { files: vec![(path.to_owned(), text)] }
    }

    /// Classifies a plain host key. `@cert-authority` lines do not count.
    pub(crate) fn check_key(&self, name: &HostName, key: &PublicKey) -> HostKeyStatus {
        if let Some(entry) = self.revoked(name, key.key_data()) {
            return HostKeyStatus::Revoked(entry);
        }
        let mut other = None;
        for (entry, known) in self.plain_keys(&name.exact) {
            if known.key_data() == key.key_data() {
                return HostKeyStatus::Known;
            }
            // A key of another type counts as changed too, because the known types are requested first.
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

    /// The types of the known keys of the host, in the order of the files.
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

    /// Whether a certificate authority is known for the host.
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

    /// The lines that name `name`, and those with an unreadable hashed name.
    fn lines(&self, name: &str) -> impl Iterator<Item = ((&Path, usize), Line<'_>, Match)> {
        self.all_lines().filter_map(move |(entry, line)| match line::matches(line.hosts, name) {
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

/// `SHA256:...`, the format of `ssh-keygen -l`.
pub(crate) fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

fn known_hosts_entry(file: &Path, line: usize, key: Option<&PublicKey>) -> KnownHostsEntry {
    KnownHostsEntry {
        file: file.to_owned(),
        line,
        key_type: key.map(|key| key.algorithm().as_str().to_owned()),
        fingerprint: key.map(fingerprint),
    }
}

/// How long another process may keep the lock of a known_hosts file. gpufleet holds it for one write.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Appends `key` for `name` to `path` under a lock, unless the file contains it by now. A new file gets mode 0600, a new
/// directory 0700. Blocking.
pub(crate) fn append_host_key(path: &Path, name: &HostName, key: &PublicKey, hash_names: bool) -> Result<(), SshError> {
    append(path, name, key, hash_names, LOCK_LIMIT).map_err(|error| append_error(path, &error))
}

fn append_error(path: &Path, error: &io::Error) -> SshError {
    let message = format!("writing the host key to {} failed: {}", path.display(), io_cause(error));
    let word = shell_word(&path.to_string_lossy());
    let held = error.get_ref().and_then(|inner| inner.downcast_ref::<LockHeld>());
    let hint = match held.map(|held| &held.holder) {
        None => format!("ls -ld {word}"),
        Some(Some((pid, _))) => format!("ps -fp {pid}   # end it or wait for its end, then connect again (r)"),
        Some(None) => format!("fuser -v {word}   # end the process that has it open, then connect again (r)"),
    };
    SshError::new(SshErrorKind::KnownHosts, message).with_hint(hint)
}

fn append(path: &Path, name: &HostName, key: &PublicKey, hash_names: bool, lock_limit: Duration) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let mut file = open_regular(path, OpenOptions::new().read(true).append(true).create(true).mode(0o600))?;
    if !file.metadata()?.is_file() {
        // Nothing can be saved in /dev/null.
        return Ok(());
    }
    lock_within(&file, lock_limit)?;
    let appended = append_locked(&mut file, path, name, key, hash_names);
    // A child process that is being started may still hold a copy of the file, so closing it is not enough.
    let _ = file.unlock();
    appended
}

fn append_locked(file: &mut File, path: &Path, name: &HostName, key: &PublicKey, hash_names: bool) -> io::Result<()> {
    let mut bytes = Vec::new();
    (&*file).take(MAX_BYTES).read_to_end(&mut bytes)?;
    let length = bytes.len() as u64;
    let text = text_of(bytes);
    let ends_with_newline = text.is_empty() || text.ends_with('\n');
    let known = KnownHosts::from_text(path, text);
    match known.check_key(name, key) {
        HostKeyStatus::Known => return Ok(()),
        HostKeyStatus::Unknown(_) => {}
        HostKeyStatus::Changed(_) | HostKeyStatus::Revoked(_) => {
            return Err(io::Error::other("another process has added a different key for this host"));
        }
    }
    let mut line = String::new();
    if !ends_with_newline {
        line.push('\n');
    }
    line.push_str(&host_field(name, hash_names)?);
    line.push(' ');
    let mut key = key.clone();
    key.set_comment("");
    line.push_str(key.to_openssh().map_err(io::Error::other)?.trim_end());
    line.push('\n');
    // A single write in append mode, because OpenSSH does not take the lock.
    file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).inspect_err(|_| {
        // The first error is reported.
        let _ = undo_append(file, length, line.as_bytes());
    })
}

/// Removes what a failed write, for example on a full disk, has left of `line` behind the first `length` bytes.
fn undo_append(file: &mut File, length: u64, line: &[u8]) -> io::Result<()> {
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(length))?;
    (&*file).take(line.len() as u64 + 1).read_to_end(&mut rest)?;
    // OpenSSH may have appended another line meanwhile.
    if line.starts_with(&rest) { file.set_len(length) } else { Ok(()) }
}

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn host_field(name: &HostName, hash_names: bool) -> io::Result<String> {
    if !hash_names {
        return Ok(name.exact.clone());
    }
    let mut salt = [0; 20];
    getrandom::fill(&mut salt).map_err(|error| io::Error::other(error.to_string()))?;
    line::hashed_field(&salt, &name.exact).ok_or_else(|| io::Error::other("hashing the name failed"))
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
