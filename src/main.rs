//! The controller.

use clap::Parser as _;
use gpufleet::cli;
use gpufleet::cli::arguments::Cli;
use std::io::{self, Write as _};
use std::process::ExitCode;

fn main() -> ExitCode {
    // As the askpass of an `ssh` that it has started, this is another program.
    if let Some(code) = gpufleet::ssh::run_helper_role() {
        return code;
    }
    match cli::run(&Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            // A standard error that is closed leaves nobody to tell, and is no reason to panic.
            let _ = write!(io::stderr(), "{failure}");
            failure.code()
        }
    }
}
