//! Private key files, and the key ring with the decrypted keys of the process.

use super::broker::{Broker, PromptKey, Unanswered};
use crate::config::shell_word;
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::prompt::{Answer, PromptId, PromptKind};
use crate::store::{open_regular, read_regular};
use russh::keys::{Algorithm, PrivateKey, PublicKey, decode_secret_key};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use zeroize::Zeroizing;

/// The maximum size of a key file.
const MAX_BYTES: u64 = 64 * 1024;

/// How many passphrases the user may try, as in OpenSSH.
const MAX_PASSPHRASE_TRIES: u32 = 3;

/// The content of a key file.
#[derive(Debug)]
pub(in crate::ssh) enum KeyFile {
    /// A key without a passphrase.
    Unencrypted(Arc<PrivateKey>),
    /// A key with a passphrase.
    EncryptedKey(EncryptedKey),
    /// A public key. Its private key may be in the agent.
    PublicOnly(PublicKey),
}

/// A private key file that needs its passphrase.
#[derive(Debug, Clone)]
pub(in crate::ssh) struct EncryptedKey {
    pub(in crate::ssh) path: PathBuf,
    /// Readable without the passphrase from the file itself or from the `.pub` file beside it.
    pub(in crate::ssh) public: Option<PublicKey>,
    /// A changed file needs its passphrase again.
    version: FileVersion,
}

/// Modification time and length in bytes.
type FileVersion = (Option<SystemTime>, u64);

/// Why a file gives no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ssh) enum KeyFileError {
    /// The file does not exist.
    Missing,
    /// The file cannot be used. The reason continues a sentence that begins with the path; the hint is a command.
    Unusable { reason: String, hint: Option<String>, ssh_program_may_help: bool },
}

impl KeyFileError {
    fn unusable(reason: impl Into<String>) -> Self {
        Self::Unusable { reason: reason.into(), hint: None, ssh_program_may_help: false }
    }
}

impl KeyFile {
    /// Reads `path`. Blocking.
    pub(in crate::ssh) fn read(path: &Path) -> Result<Self, KeyFileError> {
        let (text, version) = read_private(path)?;
        if is_public(&text) {
            let key = text.trim().parse().map_err(|_| KeyFileError::unusable("is not a readable key"))?;
            return Ok(Self::PublicOnly(key));
        }
        check_mode(path)?;
        if text.contains("-----BEGIN EC PRIVATE KEY-----") && text.contains("Proc-Type: 4,ENCRYPTED") {
            let reason = "is encrypted in an old format that the built-in client cannot read".to_owned();
            let hint = Some(format!("ssh-keygen -p -f {}", shell_word(&path.to_string_lossy())));
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

/// Reads and decrypts the key. Blocking: bcrypt takes 0.1 to 1 s.
fn decrypt(path: &Path, passphrase: &str) -> Result<PrivateKey, KeyFileError> {
    let (text, _) = read_private(path)?;
    decode(&text, Some(passphrase)).map_err(KeyFileError::unusable)
}

fn decode(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, String> {
    let key = decode_secret_key(text, passphrase).map_err(|error| format!("is not a readable key ({error})"))?;
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
    let file = open_regular(path, OpenOptions::new().read(true)).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.len() > MAX_BYTES {
        return Err(KeyFileError::unusable("is too large for a key"));
    }
    // Full capacity from the start: a growing buffer would leave copies of the key in freed memory.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize));
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok((text, (metadata.modified().ok(), metadata.len())))
}

/// Refuses a private key that other users may read, as OpenSSH does.
fn check_mode(path: &Path) -> Result<(), KeyFileError> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 && metadata.uid() == rustix::process::getuid().as_raw() {
        return Err(KeyFileError::Unusable {
            reason: format!("is not used: its permissions {mode:04o} are too open"),
            hint: Some(format!("chmod 600 {}", shell_word(&path.to_string_lossy()))),
            ssh_program_may_help: false,
        });
    }
    Ok(())
}

fn is_public(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    ["ssh-", "ecdsa-", "sk-"].iter().any(|prefix| word.starts_with(prefix))
}

/// Recognizes the encrypted formats of OpenSSH, PKCS#8, PEM and PuTTY.
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
    let bytes = read_regular(Path::new(&pub_path), MAX_BYTES).ok()?;
    String::from_utf8(bytes).ok()?.trim().parse().ok()
}

/// The decrypted keys of this process, shared by all hosts.
#[derive(Debug, Default)]
pub(in crate::ssh) struct KeyRing {
    entries: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<KeyEntry>>>>,
}

/// One file. Locked during decryption, so that ten hosts decrypt it once.
#[derive(Debug, Default)]
struct KeyEntry {
    key: Option<(FileVersion, Arc<PrivateKey>)>,
    /// The last prompt with a wrong answer, so that the other hosts of the prompt need not try the answer again.
    failed: Option<PromptId>,
}

/// Why a key was not decrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ssh) enum UnlockError {
    /// There was no answer to the prompt.
    Unanswered(Unanswered),
    /// The user declined.
    Declined,
    /// Three passphrases were wrong.
    WrongPassphrase,
    /// The file has changed since.
    File(KeyFileError),
}

impl KeyRing {
    /// The decrypted key, if it was unlocked before and the file has not changed.
    pub(in crate::ssh) async fn unlocked(&self, key_file: &EncryptedKey) -> Option<Arc<PrivateKey>> {
        let entry = self.entry(key_file);
        let entry = entry.lock().await;
        entry.key_for(key_file)
    }

    /// Asks for the passphrase on behalf of `host` until it is correct.
    pub(in crate::ssh) async fn unlock(
        &self,
        broker: &Broker,
        key_file: &EncryptedKey,
        host: &str,
    ) -> Result<Arc<PrivateKey>, UnlockError> {
        let entry = self.entry(key_file);
        let mut failures = 0;
        loop {
            if let Some(key) = entry.lock().await.key_for(key_file) {
                return Ok(key);
            }
            if failures == MAX_PASSPHRASE_TRIES {
                return Err(UnlockError::WrongPassphrase);
            }
            let kind = PromptKind::Passphrase {
                path: key_file.path.display().to_string(),
                fingerprint: key_file.public.as_ref().map(fingerprint),
                failures,
            };
            let key = PromptKey::KeyFile(key_file.path.clone());
            let (prompt, answer) = broker.ask(key, host, kind).await.map_err(UnlockError::Unanswered)?;
            if !matches!(&*answer, Answer::Secret(_)) {
                return Err(UnlockError::Declined);
            }
            if try_passphrase(&entry, key_file, prompt, answer).await? {
                continue;
            }
            failures += 1;
        }
    }

    fn entry(&self, key_file: &EncryptedKey) -> Arc<tokio::sync::Mutex<KeyEntry>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(entries.entry(key_file.path.clone()).or_default())
    }
}

impl KeyEntry {
    fn key_for(&self, key_file: &EncryptedKey) -> Option<Arc<PrivateKey>> {
        self.key.as_ref().filter(|(version, _)| *version == key_file.version).map(|(_, key)| Arc::clone(key))
    }
}

/// Decrypts the key into `entry`. Returns whether the passphrase was correct.
async fn try_passphrase(
    entry: &tokio::sync::Mutex<KeyEntry>,
    key_file: &EncryptedKey,
    prompt: PromptId,
    answer: Arc<Answer>,
) -> Result<bool, UnlockError> {
    let mut entry = entry.lock().await;
    if entry.key_for(key_file).is_some() {
        return Ok(true);
    }
    if entry.failed == Some(prompt) {
        return Ok(false);
    }
    let path = key_file.path.clone();
    let decrypting = tokio::task::spawn_blocking(move || match &*answer {
        Answer::Secret(passphrase) => decrypt(&path, passphrase.expose()),
        _ => Err(KeyFileError::Missing),
    });
    match decrypting.await {
        Ok(Ok(key)) => {
            entry.key = Some((key_file.version, Arc::new(key)));
            Ok(true)
        }
        Ok(Err(KeyFileError::Missing)) => Err(UnlockError::File(KeyFileError::Missing)),
        // A damaged file cannot be told from a wrong passphrase; ssh cannot either.
        Ok(Err(KeyFileError::Unusable { .. })) | Err(_) => {
            entry.failed = Some(prompt);
            Ok(false)
        }
    }
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
    fn an_encrypted_key_shows_its_public_key() {
        let (_folder, path) = generate_key(&["-t", "ed25519", "-N", ""]);
        assert!(matches!(KeyFile::read(&path), Ok(KeyFile::Unencrypted(_))));

        let (_folder, path) = generate_key(&["-t", "ed25519", "-N", "sesame", "-a", "1"]);
        std::fs::remove_file(path.with_extension("pub")).unwrap();
        let Ok(KeyFile::EncryptedKey(key_file)) = KeyFile::read(&path) else { panic!("not encrypted") };
        let opened = decrypt(&path, "sesame").unwrap();
        assert_eq!(key_file.public.unwrap().key_data(), opened.public_key().key_data());
        assert!(decrypt(&path, "wrong").is_err());
    }

    #[test]
    fn encrypted_pem_and_pkcs8_keys_are_decrypted() {
        for format in ["PEM", "PKCS8"] {
            let (_folder, path) = generate_key(&["-t", "rsa", "-b", "2048", "-m", format, "-N", "sesame"]);
            let Ok(KeyFile::EncryptedKey(key_file)) = KeyFile::read(&path) else { panic!("{format} is not encrypted") };
            let opened = decrypt(&path, "sesame").unwrap();
            assert_eq!(key_file.public.unwrap().key_data(), opened.public_key().key_data(), "{format}");
            assert!(decrypt(&path, "wrong").is_err(), "{format}");
        }
    }

    #[test]
    fn unusable_key_files_give_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert_eq!(KeyFile::read(&path).unwrap_err(), KeyFileError::Missing);
        assert_eq!(KeyFile::read(folder.path()).unwrap_err(), KeyFileError::unusable("cannot be read: Is a directory"));
        let fifo = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(
            KeyFile::read(&fifo).unwrap_err(),
            KeyFileError::unusable("cannot be read: it is not a regular file")
        );
        std::fs::write(&path, "nonsense").unwrap();
        set_mode(&path, 0o600);
        assert_eq!(
            KeyFile::read(&path).unwrap_err(),
            KeyFileError::unusable("is not a readable key (Could not read key)")
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
    fn a_public_key_file_is_recognized() {
        let (_folder, path) = generate_key(&["-t", "ed25519", "-N", ""]);
        assert!(matches!(KeyFile::read(&path.with_extension("pub")), Ok(KeyFile::PublicOnly(_))));
    }

    fn set_mode(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}
