//! One file a subcommand, and what they share: the hosts that were meant, prompts on the terminal, exit codes.

pub mod clean;
pub mod doctor;
pub mod explain;
pub mod findings;
pub mod free;
pub mod init;
pub mod questions;
pub mod record;
pub mod replay;
pub mod session;
mod signal_log;
pub mod status;
mod terminal;
mod terminal_writer;
pub mod watch;

mod background;
mod clipboard;
mod console;
mod dispatch;
mod errand;
mod exit;
mod gathering;
mod interrupts;
mod kept;
mod keyboard;
mod log_file;
mod looks;
mod memory;
mod notify;
mod open_files;
mod pace;
#[cfg(debug_assertions)]
mod panic_on_purpose;
mod prompter;
mod suspension;
mod typed_ahead;
mod view_file;
mod visit;
mod written;

#[cfg(test)]
mod story_tests;

pub use dispatch::run;
pub use exit::{Failure, print};
pub use gathering::Gathering;
pub use interrupts::Interrupts;
