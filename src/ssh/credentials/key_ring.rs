//! Decrypted keys: one a file, for all hosts that need it.

use super::broker::{Broker, PromptKey, Unanswered};
use super::key_file::{self, EncryptedKey, FileVersion, KeyFileError};
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::prompt::{Answer, PromptId, PromptKind};
use russh::keys::PrivateKey;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// How often a wrong passphrase is asked for again, as OpenSSH does.
const MAX_PASSPHRASE_TRIES: u32 = 3;

/// The decrypted keys of this process.
#[derive(Debug, Default)]
pub(in crate::ssh) struct KeyRing {
    entries: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<KeyEntry>>>>,
}

/// One file. Held while it is decrypted, so that ten hosts decrypt it once.
#[derive(Debug, Default)]
struct KeyEntry {
    key: Option<(FileVersion, Arc<PrivateKey>)>,
    /// The last prompt whose answer was wrong, so that its other hosts need not find that out again.
    failed: Option<PromptId>,
}

/// Why a key stays locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::ssh) enum UnlockError {
    /// Nobody was asked.
    Unanswered(Unanswered),
    /// The person said no.
    Declined,
    /// Three passphrases were wrong.
    WrongPassphrase,
    /// The file is no longer what it was.
    File(KeyFileError),
}

impl KeyRing {
    /// The key of a locked file, where it was unlocked before and the file is the same.
    pub(in crate::ssh) async fn unlocked(&self, locked: &EncryptedKey) -> Option<Arc<PrivateKey>> {
        let entry = self.entry(locked);
        let entry = entry.lock().await;
        entry.key_for(locked)
    }

    /// Asks for the passphrase, on behalf of `host`, until it is right.
    pub(in crate::ssh) async fn unlock(
        &self,
        broker: &Broker,
        locked: &EncryptedKey,
        host: &str,
    ) -> Result<Arc<PrivateKey>, UnlockError> {
        let entry = self.entry(locked);
        let mut failures = 0;
        loop {
            if let Some(key) = entry.lock().await.key_for(locked) {
                return Ok(key);
            }
            if failures == MAX_PASSPHRASE_TRIES {
                return Err(UnlockError::WrongPassphrase);
            }
            let kind = PromptKind::Passphrase {
                path: locked.path.display().to_string(),
                fingerprint: locked.public.as_ref().map(fingerprint),
                failures,
            };
            let key = PromptKey::KeyFile(locked.path.clone());
            let (prompt, answer) = broker.ask(key, host, kind).await.map_err(UnlockError::Unanswered)?;
            if !matches!(&*answer, Answer::Secret(_)) {
                return Err(UnlockError::Declined);
            }
            if try_passphrase(&entry, locked, prompt, answer).await? {
                continue;
            }
            failures += 1;
        }
    }

    fn entry(&self, locked: &EncryptedKey) -> Arc<tokio::sync::Mutex<KeyEntry>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(entries.entry(locked.path.clone()).or_default())
    }
}

impl KeyEntry {
    fn key_for(&self, locked: &EncryptedKey) -> Option<Arc<PrivateKey>> {
        self.key.as_ref().filter(|(version, _)| *version == locked.version).map(|(_, key)| Arc::clone(key))
    }
}

/// Whether the answer was right; then the slot has the key.
async fn try_passphrase(
    entry: &tokio::sync::Mutex<KeyEntry>,
    locked: &EncryptedKey,
    prompt: PromptId,
    answer: Arc<Answer>,
) -> Result<bool, UnlockError> {
    let mut entry = entry.lock().await;
    if entry.key_for(locked).is_some() {
        return Ok(true);
    }
    if entry.failed == Some(prompt) {
        return Ok(false);
    }
    let path = locked.path.clone();
    let decrypting = tokio::task::spawn_blocking(move || match &*answer {
        Answer::Secret(passphrase) => key_file::unlock(&path, passphrase.expose()),
        _ => Err(KeyFileError::Missing),
    });
    match decrypting.await {
        Ok(Ok(key)) => {
            entry.key = Some((locked.version, Arc::new(key)));
            Ok(true)
        }
        Ok(Err(KeyFileError::Missing)) => Err(UnlockError::File(KeyFileError::Missing)),
        // A damaged file and a wrong passphrase look alike, to ssh as well.
        Ok(Err(KeyFileError::Unusable { .. })) | Err(_) => {
            entry.failed = Some(prompt);
            Ok(false)
        }
    }
}
