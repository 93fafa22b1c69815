//! Draws the [`crate::app`]: read-only, no IO.
//!
//! One file a region; a later view is a file of its own and an arm in [`draw_into`].

mod areas;
mod canvas;
mod chart;
mod draw;
mod findings;
mod format;
mod gpu;
mod gpu_columns;
mod gpu_detail;
mod gpu_line;
mod gpu_table;
mod grid;
mod header;
mod help;
mod hints;
mod history;
mod host;
mod host_cards;
mod host_facts;
mod host_state;
mod line_writer;
mod list;
mod list_columns;
mod log;
mod palette;
mod pane;
mod process;
mod process_charts;
mod processes;
mod prompt_dialog;
mod segments;
mod signal_dialog;
mod theme;
mod user_picker;
mod users;
mod wall;

pub use draw::{draw, draw_into};

#[cfg(test)]
mod bad_input_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod link_tests;
#[cfg(test)]
mod size_tests;
#[cfg(test)]
mod terminal_emulator;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod view_tests;
