//! One broker a process: prompts, and the keys that they unlocked.
//!
//! Ten hosts that wait for one passphrase raise one prompt, and its answer reaches all ten.

mod broker;
mod key_file;
mod key_ring;
mod prompt_events;

pub(super) use broker::{Broker, PromptKey, Unanswered};
pub(super) use key_file::{EncryptedKey, KeyFile, KeyFileError};
pub(super) use key_ring::{KeyRing, UnlockError};
pub use prompt_events::PromptEvent;
