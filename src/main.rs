//! The controller.

use clap::Parser as _;
use gpufleet::cli::Cli;
use gpufleet::commands;
use std::process::ExitCode;

fn main() -> ExitCode {
    // As the askpass of an `ssh` that it has started, this is another program.
    if let Some(code) = gpufleet::ssh::play() {
        return code;
    }
    match commands::run(&Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            eprint!("{failure}");
            failure.code()
        }
    }
}
