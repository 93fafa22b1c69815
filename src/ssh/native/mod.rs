//! The built-in SSH client (russh): the default transport.
//!
//! [`open`] runs `connect`, which opens a `server_stream`, exchanges keys (`algorithms`, `host_key`), authenticates
//! (`login`, `identities`, `signer`) and runs the command (`channel`).
//!
//! An unknown host key, a passphrase or a password ends the connection; after the user has answered, the next connection
//! uses the answer. Only the server's own questions (keyboard-interactive) keep a connection open during a prompt.

mod algorithms;
mod channel;
mod connect;
mod connection;
mod host_key;
mod identities;
mod jump_pool;
mod login;
mod server_stream;
mod signer;

pub(super) use algorithms::unsupported_setting;
pub(super) use connect::open;
pub(super) use jump_pool::JumpHostPool;
