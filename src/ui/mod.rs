//! Draws the state of the interactive program: [`crate::app::App`] to a ratatui buffer. Reads only, no IO.
//!
//! `draw` divides the screen (`areas`) and calls the view that is open: one file per view (`grid`, `host`,
//! `gpu`, `wall`, `users`, `process`, `findings`, `log`), with `help` and `dialogs` on top. Views share
//! the process `list`, `gpu_line`, `chart` and `host_state`. All of them write through `canvas`, which never
//! draws outside its area, with the texts of `format` and the styles of `theme`.
//!
//! A new view is a new file and an arm in `draw_into`.

mod areas;
mod canvas;
mod chart;
mod dialogs;
mod draw;
mod findings;
mod format;
mod gpu;
mod gpu_line;
mod grid;
mod hang_report;
mod help;
mod host;
mod host_state;
mod list;
mod log;
mod process;
mod stored_history;
mod theme;
mod users;
mod wall;

pub use draw::{Drawn, action_at, draw, draw_into};

#[cfg(test)]
mod bad_input_tests;
#[cfg(test)]
mod consistency_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod invariant_tests;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod view_tests;
