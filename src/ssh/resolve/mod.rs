//! What a host's name means: `ssh -G`, with hosts.toml's values on top.

mod algorithms;
mod ask;
mod expand;
mod parse;
mod resolved;

pub(super) use algorithms::Algorithms;
pub(super) use ask::resolve;
pub(super) use resolved::{AgentChoice, Proxy, Resolved, StrictHostKeys};
