//! Credentials of all hosts of the process: prompts, and the private keys that they unlock.
//!
//! Hosts that need the same passphrase share one prompt, and its answer reaches all of them.

mod broker;
mod private_key;

pub(super) use broker::{Broker, PromptKey, Unanswered};
pub(super) use private_key::{EncryptedKey, KeyFile, KeyFileError, KeyRing, UnlockError};
