//! What a host's name means: `ssh -G`, with hosts.toml's values on top.

mod algorithms;
mod expand;
mod parse;
mod query;
mod resolved;

pub(super) use algorithms::Algorithms;
pub(super) use query::resolve;
pub(super) use resolved::{AgentSocket, Proxy, Resolved, StrictHostKeys};
