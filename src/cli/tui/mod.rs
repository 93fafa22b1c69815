//! The interactive screen.
//!
//! [`event_loop`] waits for input and host updates, passes them to the app as events, performs its effects and draws.
//! The other files hold the parts with side effects: the terminal (`terminal`, and `terminal_manager` for its hand-over
//! to a `remote_shell`), its input (`keyboard`), the files written meanwhile (`persistence`) and the clipboard.

mod abort_guard;
mod clipboard;
pub mod event_loop;
mod history_source;
mod keyboard;
mod persistence;
mod redraw_scheduler;
mod remote_shell;
mod settings;
mod terminal;
mod terminal_manager;
