//! Judges what the fleet shows: GPU states and, later, findings.
//!
//! Rules are pure functions over what the fleet knows; what lasts from one snapshot to the next is held by
//! [`StateTracker`]. Time is an argument.

mod model_server;
mod power;
mod state;
mod tracker;

pub use model_server::is_model_server;
pub use power::{SPIN_SHARE, UNLEARNED_IDLE_SHARE, is_low_power, spin_power_watts};
pub use state::{HELD_MIB, IDLE_AFTER, RECENT, USED_PERCENT};
pub use tracker::StateTracker;
