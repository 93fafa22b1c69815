//! The transports against a real OpenSSH server.

// clippy exempts functions marked as tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod accounts;
mod algorithms;
mod askpass;
mod certificates;
mod configurations;
mod generated;
mod harness;
mod host_keys;
mod jumps;
mod logins;
mod machine;
mod network;
mod pam;
pub(crate) mod server;
mod transports;
