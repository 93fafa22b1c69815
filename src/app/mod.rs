//! The program's state between events: pure, events in, effects out.

pub mod action;
mod actions;
mod app;
pub mod arrange;
mod attend;
mod chart;
mod chronicle;
mod copy;
mod density;
pub mod effect;
pub mod event;
mod figures;
mod findings;
pub mod help;
pub mod host_shape;
pub mod keymap;
pub mod keys;
#[cfg(test)]
mod keys_doc;
mod list_cursor;
#[cfg(test)]
pub(crate) mod mixed_lab;
mod mouse;
mod narrowing;
mod navigation;
mod note;
mod palette;
mod preferences;
pub mod prompts;
mod reading;
mod remembered;
pub mod screen;
pub mod secret_input;
mod settings;
mod settling;
mod shown;
mod signal_target;
pub mod signals;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod trends;
mod typing;
pub mod users;
pub mod wall;

pub use action::{Action, Mode};
pub use app::App;
pub use chart::{COOLEST, ChartSpan, HOTTEST, Metric};
pub use chronicle::{Chronicle, Entry, Happening};
pub use copy::Copied;
pub use density::Density;
pub use effect::Effect;
pub use event::Event;
pub use figures::{GpuFigures, HostFigures, LinkCounts};
pub use findings::{FindingCounts, Findings};
pub use keys::Keymap;
pub use list_cursor::ListCursor;
pub use narrowing::{FilterLine, Narrowing};
pub use note::{NOTE, NoteError, NoteFacts, NoteTemplate};
pub use palette::Palette;
pub use preferences::Preferences;
pub use prompts::Prompts;
pub use remembered::{Remembered, VIEW_VERSION};
pub use screen::{Focus, Screen, View};
pub use secret_input::SecretInput;
pub use settings::{ColorDepth, Settings, ThemeChoice};
pub use shown::HostChoice;
pub use signal_target::SignalTarget;
pub use users::{Unheld, UserSort, Users};
