//! How well the rules judge: precision, recall, time to detect, and false findings on healthy days.
//!
//! `tests/diagnosis-report --help` says what it takes; README.md describes the case files. `cargo test` runs the same
//! cases as assertions (`tests.rs`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a tool for developers: it ends with a panic where its own files are wrong"
)]

mod case_file;
mod case_recording;
mod evaluate;
mod gpu_model;
mod healthy;
mod process;
mod report;
mod rng;
mod sim_host;
#[cfg(test)]
mod tests;

fn main() {
    report::run();
}
