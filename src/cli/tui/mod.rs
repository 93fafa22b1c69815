//! The interactive screen: the event loop, the terminal, the keyboard, and the files written while it runs.

mod clipboard;
pub mod event_loop;
mod keyboard;
mod persistence;
mod redraw_scheduler;
mod remote_shell;
mod settings;
mod terminal;
mod terminal_manager;
