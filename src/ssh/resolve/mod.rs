//! The configuration of a host: `ssh -G`, overridden by hosts.toml.
//!
//! `query` runs `ssh -G`, `parse` parses its output, and `resolved` holds the result.

mod parse;
mod query;
mod resolved;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use parse::fuzz;
pub(super) use query::resolve;
pub(super) use resolved::{AgentSocket, Algorithms, Proxy, Resolved, StrictHostKeys};
