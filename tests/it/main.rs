//! Whole-program tests, one binary: each further file under `tests/` would link everything again.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod benches;
mod doctor;
mod fake_driver;
mod fallback;
mod faults;
mod findings;
mod fleet;
mod free;
mod imports;
mod journeys;
mod lab;
mod left_out;
mod probe;
mod pty;
mod settings;
mod shell;
mod signals;
mod ssh;
mod sshd;
mod status;
mod tell;
mod terminal;
mod views;
mod watching;
