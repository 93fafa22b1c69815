//! The interactive screen: the event loop, the terminal, the keyboard, and the files written while it runs.

mod appearance;
mod background_color;
mod clipboard;
pub mod event_loop;
mod job_control;
mod keyboard;
mod log_file;
mod persistence;
mod redraw_scheduler;
mod remote_shell;
mod signal_log;
mod terminal;
mod terminal_manager;
mod terminal_query;
mod terminal_writer;
#[cfg(debug_assertions)]
mod test_panic;
mod view_file;
