//! Whole-program tests in one binary, since every file directly under `tests/` would link everything again.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod a_minute_long;
mod benches;
mod collect;
mod collector_screens;
mod commands;
mod completions;
mod end_to_end;
mod fake_driver;
mod faults;
mod findings;
mod hostile;
mod imports;
mod lab;
mod metrics;
mod notifications;
mod nvidia_smi;
mod probe;
mod pty;
mod real_nccl;
mod schema;
mod share;
mod slurm;
mod ssh;
mod sshd;
mod status_csv;
mod tasks;
mod terminal;
mod tui;
mod why;
