//! Writing a host key down.

use super::{HostKeyStatus, HostName, KnownHosts, pattern};
use crate::ssh::text;
use crate::ssh::transport::{SshError, SshErrorKind};
use russh::keys::PublicKey;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Appends `key` for `name` to `path` under a lock, unless the file knows it by now. A new file has mode 0600, a new
/// folder 0700. It blocks: for a thread of its own.
pub(crate) fn append_host_key(path: &Path, name: &HostName, key: &PublicKey, hash_names: bool) -> Result<(), SshError> {
    append(path, name, key, hash_names).map_err(|error| {
        SshError::new(
            SshErrorKind::KnownHosts,
            format!("writing the host key to {} failed: {}", path.display(), crate::wire::format::io_cause(&error)),
        )
        .with_hint(format!("ls -ld {}", text::shell_word(&path.to_string_lossy())))
    })
}

fn append(path: &Path, name: &HostName, key: &PublicKey, hash_names: bool) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        private_folder(folder)?;
    }
    let mut file = private_file(path)?;
    file.lock()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let ends_in_a_line = text.is_empty() || text.ends_with('\n');
    let known = KnownHosts::from_text(path, text);
    match known.check_key(name, key) {
        HostKeyStatus::Known => return Ok(()),
        HostKeyStatus::Unknown(_) => {}
        HostKeyStatus::Changed(_) | HostKeyStatus::Revoked(_) => {
            return Err(io::Error::other("another key for this host was written meanwhile"));
        }
    }
    let mut line = String::new();
    if !ends_in_a_line {
        line.push('\n');
    }
    line.push_str(&host_field(name, hash_names)?);
    line.push(' ');
    let mut key = key.clone();
    key.set_comment("");
    line.push_str(key.to_openssh().map_err(io::Error::other)?.trim_end());
    line.push('\n');
    // One write of a file opened for appending, so that an OpenSSH that does not lock cannot come between.
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

fn host_field(name: &HostName, hash_names: bool) -> io::Result<String> {
    if !hash_names {
        return Ok(name.exact.clone());
    }
    let mut salt = [0; 20];
    getrandom::fill(&mut salt).map_err(|error| io::Error::other(error.to_string()))?;
    pattern::hashed_field(&salt, &name.exact).ok_or_else(|| io::Error::other("hashing the name failed"))
}

fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ somebody's comment";

    fn key() -> PublicKey {
        PublicKey::from_openssh(KEY).unwrap()
    }

    #[test]
    fn written_once_after_a_line_without_an_end_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ssh/known_hosts");
        let name = HostName::new("GPU01", 2222, None);
        append_host_key(&path, &name, &key(), false).unwrap();
        append_host_key(&path, &name, &key(), false).unwrap();
        let line = "[gpu01]:2222 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), line);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        fs::write(&path, "# no end").unwrap();
        append_host_key(&path, &name, &key(), false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("# no end\n{line}"));
    }

    #[test]
    fn hashed_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known_hosts");
        let name = HostName::new("gpu01", 22, None);
        append_host_key(&path, &name, &key(), true).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("|1|") && !text.contains("gpu01"), "{text}");
        let known = KnownHosts::read([&path]).unwrap();
        assert_eq!(known.check_key(&name, &key()), HostKeyStatus::Known);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let path = file.join("known_hosts");
        let error = append_host_key(&path, &HostName::new("gpu01", 22, None), &key(), false).unwrap_err();
        assert_eq!(error.kind, SshErrorKind::KnownHosts);
        assert_eq!(error.message, format!("writing the host key to {} failed: File exists", path.display()));
    }
}
