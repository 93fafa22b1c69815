//! `hosts.toml`: which hosts there are and how to reach them, as plain data.
//!
//! No processes, no network, no clock: text goes in, [`HostConfig`]s or an error with file, line and column come out.

mod config;

pub use config::{Backend, HostConfig, ProbeChoice};
