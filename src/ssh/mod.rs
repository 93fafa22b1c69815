//! Everything about OpenSSH: reaching a host and running one command there.
//!
//! [`open`] is the whole of it: a host's configuration and a command go in, a [`Channel`] comes out. Behind it stand
//! `resolve` (what `ssh -G` says of a name), `known_hosts` (which host keys are good), `credentials` (one broker a
//! process, so that ten hosts ask for one passphrase once) and three transports: `native`, `openssh` and `local`.
//!
//! It knows the host's configuration and nothing of the fleet: phases and errors are its own plain types, which
//! `collect` translates.

mod aliases;
mod context;
mod credentials;
mod known_hosts;
mod local;
mod native;
mod open;
mod openssh;
mod pausable_timeout;
mod preauth_limiter;
pub mod prompt;
mod resolve;
mod text;
pub mod transport;

pub use aliases::{Alias, Aliases};
pub use context::{Context, Interaction, Options, TraceEvent};
pub use credentials::PromptEvent;
pub use open::open;
pub use openssh::run_helper_role;
pub use prompt::{Answer, Prompt, PromptId, PromptKind, Secret};
pub use transport::{Channel, Exit, Limits, SshError, SshErrorKind, SshPhase};
