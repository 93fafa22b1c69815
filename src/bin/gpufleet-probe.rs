//! The probe: runs on a GPU server for as long as its controller does.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    gpufleet::probe::run(std::env::args_os().skip(1))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("gpufleet-probe reads NVML and /proc, so it runs on Linux only");
    ExitCode::from(2)
}
