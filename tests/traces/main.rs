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

mod dice;
mod healthy;
mod judge;
mod machine;
mod model;
mod player;
mod process;
mod report;
mod script;
#[cfg(test)]
mod tests;

fn main() {
    report::run();
}
