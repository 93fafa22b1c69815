//! The SSH client that is built in (russh): the transport for every host that needs nothing unusual.
//!
//! A connection is never held while a person thinks, except for questions that the server itself asks
//! (keyboard-interactive): an unknown host key, a passphrase or a password ends the connection, is asked for, and the
//! next connection uses the answer.

mod abortable_stream;
mod agent;
mod algorithms;
mod auth;
mod certificates;
mod connect;
mod errors;
mod exec;
mod handler;
mod host_key;
mod identities;
mod jump_pool;
mod login_state;
mod server_stream;
mod signer;
mod tcp_connect;

pub(super) use connect::open;
pub(super) use jump_pool::JumpHostPool;

use super::resolve::Resolved;

/// What the configuration asks for that this client cannot do, as it is spelled in ssh_config.
pub(super) fn unsupported_setting(resolved: &Resolved) -> Option<String> {
    let setting = resolved.native_unsupported.clone();
    setting.or_else(|| algorithms::unsupported_setting(&resolved.algorithms).map(str::to_owned))
}
