//! The `gpufleet` program.

use gpufleet::cli::{self, arguments::Cli};
use gpufleet::ssh;
use std::alloc::System;
use std::process::ExitCode;
use zeroizing_alloc::ZeroAlloc;

/// Wipes memory when it is freed: the SSH library copies passwords and answers into buffers that it does not wipe.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    ssh::forbid_memory_dumps();
    // `ssh` starts this program again as its askpass helper, and a shell to complete arguments.
    ssh::run_helper_role()
        .or_else(cli::completions::answer_shell)
        .unwrap_or_else(|| cli::run(&Cli::from_command_line()).unwrap_or_else(|error| error.print_and_return_code()))
}
