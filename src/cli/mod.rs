//! The command line: one file per subcommand, and the interactive screen in [`tui`].
//!
//! [`run`] dispatches the parsed [`arguments`]. A subcommand that connects to hosts gets a
//! [`CommandContext`](command_context::CommandContext) and returns its exit code or a [`CommandError`]. Prompts of the
//! connections appear on the terminal ([`terminal_prompts`]) or, in the screen, in a dialog.

pub mod arguments;
pub mod clean;
pub mod collect;
pub mod collector;
pub mod command_context;
pub mod completions;
pub mod doctor;
pub mod explain;
pub mod findings;
pub mod free;
pub mod init;
pub mod man;
pub mod record;
pub mod relay;
pub mod replay;
pub mod report;
pub mod schema;
pub mod status;
pub mod terminal_prompts;
pub mod tui;
pub mod why;

mod background_writer;
mod collector_answer;
mod connections;
mod dispatch;
mod exit;
mod heap;
mod metrics_server;
mod notification_hook;
mod notify;
mod one_shot;
mod saved_state;
mod shared_fleet;
mod status_csv;

#[cfg(test)]
mod demo_rules_tests;
#[cfg(test)]
mod extreme_numbers_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod upgrade_tests;

pub use dispatch::run;
pub use exit::{CommandError, ExitSignals, print};
pub use one_shot::OneShotFleet;
