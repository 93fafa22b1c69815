//! The configuration of a host: `ssh -G`, overridden by hosts.toml.
//!
//! `query` runs `ssh -G`, `parse` parses its output, and `resolved` holds the result. `jump_hosts` has the
//! configuration of each jump host.

mod jump_hosts;
mod parse;
mod query;
mod resolved;

pub(super) use jump_hosts::{last_jump_host, name_jump_host, refuse_circle, route_key};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use parse::fuzz;
pub(super) use query::resolve;
pub(super) use resolved::{AgentSocket, Algorithms, Proxy, Resolved, StrictHostKeys};
