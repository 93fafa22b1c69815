//! The merged state of all hosts: pure data and pure functions over it.
//!
//! [`Fleet::apply`] takes what a host sent; everything else reads. Nothing here knows SSH, a terminal or a clock:
//! time comes in as a [`Moment`].

mod fleet;
mod gpu_state;
mod host;
mod link;
mod moment;
mod rows;

pub use fleet::Fleet;
pub use gpu_state::GpuState;
pub use host::{Applied, Host, HostId, HostUpdate, ProcessKey};
pub use link::{Link, LinkError, LinkErrorKind, Phase, Retry};
pub use moment::{Clock, Moment};
pub use rows::{Row, RowKey, Unfold};
