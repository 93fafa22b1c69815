//! Judges the fleet: the state of each GPU, and findings.
//!
//! Each sample of a host updates its tracks (`HostDiagnosis`, `track`). Rules (`rules`) are pure functions
//! of one `RuleContext`: the host, its tracks and the other hosts of its jobs. They report to `Conditions`,
//! which turns conditions that hold into findings that are pending, fire and resolve, the same way for all rules. The
//! [`Engine`] owns all state and runs the steps in order. Time is an argument; there is no clock and no IO.
//!
//! Layers, bottom to top: `rule`, `finding`, `condition`, `conditions`, `track`, `process_kind`, `job_ends`, `host_diagnosis`,
//! `rule_context`, `rules`, `inhibit`, `engine`. Each imports only from below.

mod condition;
mod conditions;
mod engine;
mod finding;
mod gpu_state;
mod host_diagnosis;
mod inhibit;
mod job_ends;
mod not_judged;
mod notification_state;
mod process_kind;
pub mod proof;
mod restore;
mod rule;
mod rule_context;
mod rules;
mod saved_state;
#[cfg(test)]
pub(crate) mod testing;
mod track;

pub use engine::Engine;
pub use finding::{
    Confidence, Finding, FindingGpu, FindingNotification, FindingPhase, FindingProcess, FindingVerdict, Severity,
    SnoozeEnd, Transition,
};
pub use gpu_state::{StateTracker, UnusedReason};
pub use not_judged::NotJudged;
pub use notification_state::{Notified, Snooze};
pub use rule::{RuleId, RuleInfo, RuleTopic};
pub use saved_state::{SAVED_STATE_VERSION, SavedGpuUsage, SavedJobEnd, SavedProcess, SavedState};
