//! The `ssh` program: the transport for what the built-in client cannot do, such as GSSAPI, PKCS#11 or a running master.
//!
//! `ssh` has no terminal. It and the programs that it starts ask through gpufleet's askpass (`askpass`), which uses the
//! same prompt broker as the built-in client. Without an interactive user, `BatchMode` keeps `ssh` from asking.

mod askpass;
mod command_line;
mod open;

pub(super) use askpass::{Askpass, AskpassToken, PromptAbandoned};
pub use askpass::{forbid_memory_dumps, run_helper_role};
pub(super) use command_line::arguments;
pub use command_line::shell_arguments;
pub(super) use open::open;
