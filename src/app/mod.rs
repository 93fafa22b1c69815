//! The program's state between events: pure, events in, effects out.

mod accessors;
pub mod action;
mod actions;
mod app;
pub mod bindings;
mod chart;
mod copy;
mod density;
mod derived_state;
mod display_settings;
pub mod effect;
pub mod event;
mod event_log;
mod findings;
pub mod help;
pub mod host_layout;
mod host_summary;
mod host_visibility;
mod key_input;
pub mod keymap;
#[cfg(test)]
mod keys_doc_tests;
pub mod layout;
mod list_cursor;
mod list_filter;
mod message_template;
#[cfg(test)]
pub(crate) mod mixed_fleet;
mod mouse;
mod navigation;
mod palette;
pub mod prompts;
mod row_sparklines;
pub mod screen;
pub mod secret_input;
mod settings_file;
mod signal_target;
pub mod signals;
mod snooze;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod users;
mod view_state;
pub mod wall;

pub use action::{Action, Mode};
pub use app::App;
pub use chart::{CHART_MAX_CELSIUS, CHART_MIN_CELSIUS, ChartSpan, Metric};
pub use copy::CopiedText;
pub use density::Density;
pub use display_settings::{ColorDepth, DisplaySettings, ThemeChoice};
pub use effect::Effect;
pub use event::Event;
pub use event_log::{EventKind, EventLog, EventLogEntry};
pub use findings::{FindingCounts, Findings};
pub use host_summary::{GpuSummary, HostSummary, LinkCounts};
pub use host_visibility::HostVisibility;
pub use keymap::Keymap;
pub use list_cursor::ListCursor;
pub use list_filter::{FilterLine, ListFilter};
pub use message_template::{DEFAULT_TEMPLATE, MessageFacts, MessageTemplate, TemplateError};
pub use palette::Palette;
pub use prompts::Prompts;
pub use screen::{Focus, Screen, View};
pub use secret_input::SecretInput;
pub use settings_file::SettingsFile;
pub use signal_target::SignalTarget;
pub use users::{UnheldGpus, UserSort, Users};
pub use view_state::{VIEW_STATE_VERSION, ViewState};
