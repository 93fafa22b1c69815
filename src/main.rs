//! The controller.

use clap::Parser as _;
use gpufleet::cli::Cli;
use gpufleet::commands;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(&Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            eprint!("{failure}");
            failure.code()
        }
    }
}
