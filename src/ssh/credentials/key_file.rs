//! A private key's file, read without its passphrase.

use crate::ssh::text;
use russh::keys::{Algorithm, PrivateKey, PublicKey, decode_secret_key};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use zeroize::Zeroizing;

/// No key file is larger.
const MAX_BYTES: u64 = 64 * 1024;

/// What a file holds.
#[derive(Debug)]
pub(in crate::ssh) enum KeyFile {
    /// A key that can sign at once.
    Unencrypted(Arc<PrivateKey>),
    /// A key that needs its passphrase.
    EncryptedKey(EncryptedKey),
    /// A public key: its private half is in the agent, or nowhere.
    PublicOnly(PublicKey),
}

/// An encrypted key.
#[derive(Debug, Clone)]
pub(in crate::ssh) struct EncryptedKey {
    pub(in crate::ssh) path: PathBuf,
    /// Where it can be read without the passphrase: in the file, or beside it in `.pub`.
    pub(in crate::ssh) public: Option<PublicKey>,
    /// A new file needs its passphrase anew.
    pub(super) version: FileVersion,
}

/// When a file was written, and its length in bytes.
pub(super) type FileVersion = (Option<SystemTime>, u64);

/// Why a file gives no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ssh) enum KeyFileError {
    /// There is no such file.
    Missing,
    /// It cannot be used; the reason in words, the command that helps, and whether the `ssh` program may do more with it.
    Unusable { reason: String, hint: Option<String>, ssh_program_may_help: bool },
}

impl KeyFileError {
    fn unusable(reason: impl Into<String>) -> Self {
        Self::Unusable { reason: reason.into(), hint: None, ssh_program_may_help: false }
    }
}

impl KeyFile {
    /// Reads `path`. It blocks for as long as a small file takes.
    pub(in crate::ssh) fn read(path: &Path) -> Result<Self, KeyFileError> {
        let (text, version) = read_private(path)?;
        if is_public(&text) {
            let key = text.trim().parse().map_err(|_| KeyFileError::unusable("is not a key that can be read"))?;
            return Ok(Self::PublicOnly(key));
        }
        check_mode(path)?;
        if text.contains("-----BEGIN EC PRIVATE KEY-----") && text.contains("Proc-Type: 4,ENCRYPTED") {
            let reason = "is encrypted in an old way that the built-in client cannot read".to_owned();
            let hint = Some(format!("ssh-keygen -p -f {}", text::shell_word(&path.to_string_lossy())));
            return Err(KeyFileError::Unusable { reason, hint, ssh_program_may_help: true });
        }
        if is_encrypted(&text) {
            let public = PrivateKey::from_openssh(text.as_bytes()).ok().map(|key| key.public_key().clone());
            let public = public.or_else(|| read_pub_file(path));
            return Ok(Self::EncryptedKey(EncryptedKey { path: path.to_owned(), public, version }));
        }
        let key = decode(&text, None).map_err(|reason| {
            let ssh_program_may_help = text.contains("PRIVATE KEY-----");
            KeyFileError::Unusable { reason, hint: None, ssh_program_may_help }
        })?;
        Ok(Self::Unencrypted(Arc::new(key)))
    }
}

/// Reads and decrypts the key. It blocks for as long as the key's rounds of bcrypt ask: 0.1 to 1 s.
pub(super) fn unlock(path: &Path, passphrase: &str) -> Result<PrivateKey, KeyFileError> {
    let (text, _) = read_private(path)?;
    decode(&text, Some(passphrase)).map_err(KeyFileError::unusable)
}

fn decode(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, String> {
    let key =
        decode_secret_key(text, passphrase).map_err(|error| format!("is not a key that can be read ({error})"))?;
    match key.algorithm() {
        Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256 => {
            Err("is on a security key, which signs through ssh-agent only".to_owned())
        }
        _ => Ok(key),
    }
}

fn read_private(path: &Path) -> Result<(Zeroizing<String>, FileVersion), KeyFileError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => KeyFileError::Missing,
        _ => KeyFileError::unusable(format!("cannot be read: {}", crate::wire::format::io_cause(&error))),
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.len() > MAX_BYTES {
        return Err(KeyFileError::unusable("is too large for a key"));
    }
    // Room for all of it at once, so that growing leaves no copies behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize));
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok((text, (metadata.modified().ok(), metadata.len())))
}

/// OpenSSH uses no private key that others may read, and says so in nearly these words.
fn check_mode(path: &Path) -> Result<(), KeyFileError> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 && metadata.uid() == rustix::process::getuid().as_raw() {
        return Err(KeyFileError::Unusable {
            reason: format!("is not used: its permissions {mode:04o} are too open"),
            hint: Some(format!("chmod 600 {}", text::shell_word(&path.to_string_lossy()))),
            ssh_program_may_help: false,
        });
    }
    Ok(())
}

fn is_public(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    ["ssh-", "ecdsa-", "sk-"].iter().any(|prefix| word.starts_with(prefix))
}

/// The three ways in which files say that they are encrypted, and PuTTY's.
fn is_encrypted(text: &str) -> bool {
    if text.contains("-----BEGIN OPENSSH PRIVATE KEY-----") {
        return PrivateKey::from_openssh(text.as_bytes()).is_ok_and(|key| key.is_encrypted());
    }
    if text.starts_with("PuTTY-User-Key-File-") {
        return !text.lines().any(|line| line.trim() == "Encryption: none");
    }
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED")
}

fn read_pub_file(path: &Path) -> Option<PublicKey> {
    let mut pub_path = path.as_os_str().to_owned();
    pub_path.push(".pub");
    std::fs::read_to_string(pub_path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn generate_key(arguments: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let status = Command::new("ssh-keygen").arg("-q").args(arguments).arg("-f").arg(&path).status().unwrap();
        assert!(status.success());
        (folder, path)
    }

    #[test]
    fn plain_keys_open_and_locked_ones_tell_their_public_half() {
        let (_folder, path) = generate_key(&["-t", "ed25519", "-N", ""]);
        assert!(matches!(KeyFile::read(&path), Ok(KeyFile::Unencrypted(_))));

        let (_folder, path) = generate_key(&["-t", "ed25519", "-N", "sesame", "-a", "1"]);
        std::fs::remove_file(path.with_extension("pub")).unwrap();
        let Ok(KeyFile::EncryptedKey(locked)) = KeyFile::read(&path) else { panic!("not locked") };
        let opened = unlock(&path, "sesame").unwrap();
        assert_eq!(locked.public.unwrap().key_data(), opened.public_key().key_data());
        assert!(unlock(&path, "wrong").is_err());
    }

    #[test]
    fn encrypted_pem_and_pkcs8_keys() {
        for format in ["PEM", "PKCS8"] {
            let (_folder, path) = generate_key(&["-t", "rsa", "-b", "2048", "-m", format, "-N", "sesame"]);
            let Ok(KeyFile::EncryptedKey(locked)) = KeyFile::read(&path) else { panic!("{format} is not locked") };
            let opened = unlock(&path, "sesame").unwrap();
            assert_eq!(locked.public.unwrap().key_data(), opened.public_key().key_data(), "{format}");
            assert!(unlock(&path, "wrong").is_err(), "{format}");
        }
    }

    #[test]
    fn files_that_give_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert_eq!(KeyFile::read(&path).unwrap_err(), KeyFileError::Missing);
        assert_eq!(KeyFile::read(folder.path()).unwrap_err(), KeyFileError::unusable("cannot be read: Is a directory"));
        std::fs::write(&path, "nonsense").unwrap();
        set_mode(&path, 0o600);
        assert_eq!(
            KeyFile::read(&path).unwrap_err(),
            KeyFileError::unusable("is not a key that can be read (Could not read key)")
        );
        set_mode(&path, 0o644);
        assert_eq!(
            KeyFile::read(&path).unwrap_err(),
            KeyFileError::Unusable {
                reason: "is not used: its permissions 0644 are too open".into(),
                hint: Some(format!("chmod 600 {}", path.display())),
                ssh_program_may_help: false,
            }
        );
        std::fs::write(&path, vec![b'x'; 70_000]).unwrap();
        assert_eq!(KeyFile::read(&path).unwrap_err(), KeyFileError::unusable("is too large for a key"));
    }

    #[test]
    fn a_public_key_alone_is_for_the_agent() {
        let (_folder, path) = generate_key(&["-t", "ed25519", "-N", ""]);
        assert!(matches!(KeyFile::read(&path.with_extension("pub")), Ok(KeyFile::PublicOnly(_))));
    }

    fn set_mode(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}
