//! The `ssh` program, for what the built-in client cannot do: a running master, PKCS#11, GSSAPI and the like.
//!
//! It never touches the terminal: what it and the programs that it starts want to know comes to us as an askpass, and
//! goes through the one queue of prompts. Without a person, `BatchMode` keeps it from asking at all.

mod askpass;
pub(super) mod child_process;
mod helper_process;
mod open;
mod stderr_parser;

pub(super) use askpass::{AskpassServer, AskpassToken, PromptAbandoned};
pub use helper_process::run_helper_role;
pub(super) use helper_process::{askpass_token, set_askpass, without_terminal};
pub(super) use open::{arguments, open};
