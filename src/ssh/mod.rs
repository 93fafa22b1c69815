//! Reaches a host and runs one command there, with OpenSSH's configuration, keys and known_hosts files.
//!
//! [`open`] takes the configuration of a host and a command, and returns a [`Channel`]. `resolve` computes the settings
//! with `ssh -G`, `known_hosts` verifies host keys, and `credentials` joins the prompts of all hosts. There are three
//! transports: `native` (russh), `openssh` (the `ssh` program) and a local shell.
//!
//! This module knows nothing of the fleet: `collect` translates its phases and errors.

mod aliases;
mod child_process;
mod context;
mod credentials;
mod known_hosts;
mod limits;
mod native;
mod open;
mod openssh;
pub mod prompt;
mod resolve;
pub mod transport;

pub use aliases::{Alias, Aliases};
pub use context::{Context, Options, TraceDetail, TraceEvent};
pub use limits::Limits;
pub use open::open;
pub use openssh::{forbid_memory_dumps, run_helper_role, shell_arguments};
pub use prompt::{Answer, Interaction, Prompt, PromptEvent, PromptId, PromptKind, RefusedPrompt, Secret};
pub use transport::{Channel, Exit, SshError, SshErrorKind, SshPhase};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use {known_hosts::fuzz as fuzz_known_hosts, resolve::fuzz as fuzz_ssh_config};
