//! The configuration of a host: `ssh -G`, overridden by hosts.toml.
//!
//! `query` runs `ssh -G`, `answer_cache` keeps its answers, `parse` parses its output, and `resolved` holds the result. `jump_hosts` has the
//! configuration of each jump host.

mod answer_cache;
mod jump_hosts;
mod parse;
mod query;
mod resolved;

pub(super) use answer_cache::AnswerCache;
pub(super) use jump_hosts::{last_jump_host, name_jump_host, refuse_circle, route_key};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use parse::fuzz;
pub(super) use query::resolve;
pub(super) use resolved::{AgentSocket, Algorithms, Proxy, Resolved, StrictHostKeys};
