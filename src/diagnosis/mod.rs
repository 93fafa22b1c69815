//! Judges what the fleet shows: GPU states, and findings.
//!
//! Rules are pure functions over what one sample shows and what is remembered (`View`); the [`Engine`] remembers, and
//! the machinery that makes findings of conditions (`watches`) is the same for all rules. Time is an argument; there is
//! no clock and no IO.

mod across;
mod attention;
mod engine;
mod finding;
mod grade;
mod inhibit;
mod memory;
mod model_server;
mod not_judged;
mod observe;
mod power;
mod recall;
mod rule;
mod rules;
mod state;
#[cfg(test)]
pub(crate) mod testing;
mod track;
mod tracker;
mod view;
mod watch;
mod watches;
mod window;

pub use attention::{Snooze, Snoozed, Told};
pub use engine::Engine;
pub use finding::{Confidence, Finding, FindingGpu, FindingProcess, News, NotJudged, Phase, Severity, Transition};
pub use memory::{MEMORY_VERSION, Memory, RememberedEnd, RememberedProcess, RememberedWork};
pub use model_server::is_model_server;
pub use power::{SPIN_SHARE, UNLEARNED_IDLE_SHARE, is_low_power, spin_power_watts};
pub use rule::{RuleId, RuleInfo};
pub use state::{HELD_MIB, IDLE_AFTER, RECENT, USED_PERCENT};
pub use tracker::StateTracker;
