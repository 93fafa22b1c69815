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
