//! One file a subcommand, and what they share: the hosts that were meant, prompts on the terminal, exit codes.

pub mod arguments;
pub mod clean;
pub mod command_context;
pub mod doctor;
pub mod explain;
pub mod findings;
pub mod free;
pub mod init;
pub mod record;
pub mod replay;
pub mod status;
pub mod terminal_prompts;

mod background_writer;
mod diagnosis_memory;
mod dispatch;
mod exit;
mod exit_signals;
mod fd_limit;
mod for_each_host;
mod notify;
mod one_shot;
mod prompter;

#[cfg(test)]
mod demo_rules_tests;

pub mod tui;

pub use dispatch::run;
pub use exit::{CommandError, print};
pub use exit_signals::ExitSignals;
pub use one_shot::OneShotFleet;
