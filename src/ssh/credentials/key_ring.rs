//! Decrypted keys: one a file, for all hosts that need it.

use super::broker::{Broker, PromptKey, Unanswered};
use super::key_file::{self, KeyFileError, Locked, Stamp};
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::prompt::{Answer, PromptId, PromptKind};
use russh::keys::PrivateKey;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// How often a wrong passphrase is asked for again, as OpenSSH does.
const TRIES: u32 = 3;

/// The decrypted keys of this process.
#[derive(Debug, Default)]
pub(in crate::ssh) struct KeyRing {
    slots: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<Slot>>>>,
}

/// One file. Held while it is decrypted, so that ten hosts decrypt it once.
#[derive(Debug, Default)]
struct Slot {
    key: Option<(Stamp, Arc<PrivateKey>)>,
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
    Wrong,
    /// The file is no longer what it was.
    File(KeyFileError),
}

impl KeyRing {
    /// The key of a locked file, where it was unlocked before and the file is the same.
    pub(in crate::ssh) async fn unlocked(&self, locked: &Locked) -> Option<Arc<PrivateKey>> {
        let slot = self.slot(locked);
        let slot = slot.lock().await;
        slot.key_for(locked)
    }

    /// Asks for the passphrase, on behalf of `host`, until it is right.
    pub(in crate::ssh) async fn unlock(
        &self,
        broker: &Broker,
        locked: &Locked,
        host: &str,
    ) -> Result<Arc<PrivateKey>, UnlockError> {
        let slot = self.slot(locked);
        let mut failures = 0;
        loop {
            if let Some(key) = slot.lock().await.key_for(locked) {
                return Ok(key);
            }
            if failures == TRIES {
                return Err(UnlockError::Wrong);
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
            if try_answer(&slot, locked, prompt, answer).await? {
                continue;
            }
            failures += 1;
        }
    }

    fn slot(&self, locked: &Locked) -> Arc<tokio::sync::Mutex<Slot>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(locked.path.clone()).or_default())
    }
}

impl Slot {
    fn key_for(&self, locked: &Locked) -> Option<Arc<PrivateKey>> {
        self.key.as_ref().filter(|(stamp, _)| *stamp == locked.stamp).map(|(_, key)| Arc::clone(key))
    }
}

/// Whether the answer was right; then the slot has the key.
async fn try_answer(
    slot: &tokio::sync::Mutex<Slot>,
    locked: &Locked,
    prompt: PromptId,
    answer: Arc<Answer>,
) -> Result<bool, UnlockError> {
    let mut slot = slot.lock().await;
    if slot.key_for(locked).is_some() {
        return Ok(true);
    }
    if slot.failed == Some(prompt) {
        return Ok(false);
    }
    let path = locked.path.clone();
    let decrypting = tokio::task::spawn_blocking(move || match &*answer {
        Answer::Secret(passphrase) => key_file::unlock(&path, passphrase.expose()),
        _ => Err(KeyFileError::Missing),
    });
    match decrypting.await {
        Ok(Ok(key)) => {
            slot.key = Some((locked.stamp, Arc::new(key)));
            Ok(true)
        }
        Ok(Err(KeyFileError::Missing)) => Err(UnlockError::File(KeyFileError::Missing)),
        // A damaged file and a wrong passphrase look alike, to ssh as well.
        Ok(Err(KeyFileError::Unusable { .. })) | Err(_) => {
            slot.failed = Some(prompt);
            Ok(false)
        }
    }
}
