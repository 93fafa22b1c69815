//! The transports against a real OpenSSH server.

mod accounts;
mod askpass;
pub(crate) mod authentication;
mod client;
mod host_keys;
mod jump_hosts;
pub(crate) mod servers;
mod ssh_config;
mod transports;
