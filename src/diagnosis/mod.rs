//! Judges what the fleet shows: GPU states, and findings.
//!
//! Rules are pure functions over what one sample shows and what is remembered (`RuleContext`); the [`Engine`] remembers, and
//! the machinery that makes findings of conditions (`conditions`) is the same for all rules. Time is an argument; there is
//! no clock and no IO.

mod condition;
mod conditions;
mod engine;
mod evaluation;
mod finding;
mod gpu_state;
mod ingest;
mod inhibit;
mod model_server;
mod not_judged;
mod notification_state;
mod peer_hosts;
mod power;
mod restore;
mod rule;
mod rule_context;
mod rules;
mod saved_state;
mod state_tracker;
#[cfg(test)]
pub(crate) mod testing;
mod track;
mod window;

pub use engine::Engine;
pub use finding::{
    Confidence, Finding, FindingGpu, FindingNotification, FindingPhase, FindingProcess, NotJudged, Severity, Transition,
};
pub use gpu_state::{HELD_MIB, IDLE_AFTER, RECENT_ACTIVITY, USED_PERCENT};
pub use model_server::is_model_server;
pub use notification_state::{Notified, Snooze, SnoozeEnd};
pub use power::{SPIN_SHARE, UNLEARNED_IDLE_SHARE, is_low_power, spin_power_watts};
pub use rule::{RuleId, RuleInfo};
pub use saved_state::{SAVED_STATE_VERSION, SavedGpuUsage, SavedJobEnd, SavedProcess, SavedState};
pub use state_tracker::StateTracker;
