//! The state of the interactive program, without terminal and IO.
//!
//! [`App::update`] takes an [`Event`], changes the state and returns [`Effect`]s for the event loop; drawing only reads
//! the state. Input goes from `input` through the keymap to `actions`. The state has three parts: data (the fleet and
//! the diagnosis engine), choices of the user (`screen`, `list_filter`, `settings`) and `derived_state`, which is
//! recomputed from the other two. `dialogs`, `signals` and `messages` hold what covers or follows a view. `layout` and
//! `wall` are pure geometry that both keys and drawing use.

pub mod action;
mod actions;
mod app;
mod copy;
mod derived_state;
pub mod dialogs;
mod event;
mod findings;
mod hang_report;
pub(crate) mod hang_report_actions;
pub mod help;
mod host_summary;
mod input;
pub mod keymap;
pub mod layout;
pub mod list_filter;
mod message_template;
mod messages;
#[cfg(test)]
pub(crate) mod mixed_fleet;
pub mod palette;
mod palette_actions;
mod process_details;
mod process_details_actions;
pub mod screen;
mod settings;
mod signal_actions;
pub mod signals;
mod stored_charts;
#[cfg(test)]
pub(crate) mod testing;
pub mod users;
mod view_state;
pub mod wall;

pub use action::{Action, Mode};
pub use app::App;
pub use dialogs::{Prompts, SecretInput};
pub use event::{CopiedText, Effect, Event};
pub use findings::{FindingCounts, FindingLine, FindingSection, Findings};
pub use hang_report::HangReport;
pub use host_summary::{GpuSummary, HostSummary, LinkCounts};
pub use keymap::Keymap;
pub use layout::Density;
pub use list_filter::{FilterLine, ListFilter};
pub use message_template::{DEFAULT_TEMPLATE, MessageFacts, MessageTemplate, TemplateError};
pub use messages::{EventKind, EventLog, EventLogEntry};
pub use palette::Palette;
pub use process_details::{ProcessDetails, Requested};
pub use screen::{
    CHART_MAX_CELSIUS, CHART_MIN_CELSIUS, ChartSpan, Focus, HostVisibility, ListCursor, Metric, Screen, View,
};
pub use settings::{ColorDepth, DisplaySettings, SettingsFile, ThemeChoice};
pub use signals::SignalTarget;
pub use stored_charts::{HistoryGpu, StoredChart, StoredCharts};
pub use users::{UnheldGpus, Users};
pub use view_state::{VIEW_STATE_VERSION, ViewState};
