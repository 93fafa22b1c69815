//! The SSH client that is built in (russh): the transport for every host that needs nothing unusual.
//!
//! A connection is never held while a person thinks, except for questions that the server itself asks
//! (keyboard-interactive): an unknown host key, a passphrase or a password ends the connection, is asked for, and the
//! next connection uses the answer.

mod agent;
mod algorithms;
mod auth;
mod candidates;
mod certificates;
mod connect;
mod dial;
mod errors;
mod exec;
mod handler;
mod host_key;
mod jump;
mod memory;
mod signer;
mod stream;
mod way;

pub(super) use connect::open;
pub(super) use jump::Bastions;

use super::resolve::Resolved;

/// What the configuration asks for that this client cannot do, as it is spelled in ssh_config.
pub(super) fn beyond_us(resolved: &Resolved) -> Option<String> {
    let setting = resolved.only_ssh_can.clone();
    setting.or_else(|| algorithms::lacking(&resolved.algorithms).map(str::to_owned))
}
