//! Embeds the probe, `gpufleet-probe`, into the controller.
//!
//! The controller carries the probe for x86_64 and aarch64 Linux and uploads it to servers with glibc 2.17 or newer.
//! Cargo cannot build a binary of the same package for another target, so this script runs a nested `cargo build` of
//! the probe and writes the result, compressed and hashed, to `OUT_DIR/probes.rs`, which `src/collect/probe_binary.rs`
//! includes:
//!
//! - `build/environment.rs` reads what the user requests and what the Rust installation offers;
//! - `build/stubs.rs` generates the files to link with, so that neither a C compiler nor a sysroot is needed;
//! - `build/nested.rs` runs the nested build, in which this script only prints linker arguments;
//! - `build/embed.rs` compresses and hashes the probes and writes the Rust source.
//!
//! Environment variables for packagers:
//! - `GPUFLEET_PROBE_X86_64`, `GPUFLEET_PROBE_AARCH64`: embed this prebuilt file instead of building one;
//! - `GPUFLEET_SKIP_PROBES=1`: embed no probe (as on docs.rs), for quick checks;
//! - `GPUFLEET_ALLOW_NO_PROBE=1`: continue if no x86_64 probe can be built.

#[cfg(feature = "controller")]
#[path = "build/embed.rs"]
mod embed;
#[cfg(feature = "controller")]
#[path = "build/environment.rs"]
mod environment;
#[cfg(feature = "controller")]
#[path = "build/nested.rs"]
mod nested;
#[cfg(feature = "controller")]
#[path = "build/stubs.rs"]
mod stubs;

use std::env;
use std::path::Path;

/// Set only in a nested build, to the directory with one directory of stubs per architecture, or to an empty string if
/// the host's own linker is used.
const STUBS_VARIABLE: &str = "GPUFLEET_NESTED_BUILD_STUBS";

fn main() {
    if !is_nested_build() {
        embed_probes();
    }
}

#[cfg(feature = "controller")]
fn embed_probes() {
    if let Err(message) = embed::run() {
        for line in message.lines() {
            println!("cargo::error={line}");
        }
    }
}

/// The probe embeds nothing.
#[cfg(not(feature = "controller"))]
fn embed_probes() {}

/// Returns whether this is a nested build, and prints its linker arguments.
///
/// The arguments differ by architecture while one Cargo run builds for all, so the environment cannot carry them. Cargo
/// runs this script once per target in the nested build.
fn is_nested_build() -> bool {
    println!("cargo::rerun-if-env-changed={STUBS_VARIABLE}");
    let Ok(stubs) = env::var(STUBS_VARIABLE) else { return false };
    // Without any `rerun-if-changed`, Cargo would run the script again for every change in the package.
    println!("cargo::rerun-if-changed=build.rs");
    if !stubs.is_empty() {
        let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
        for argument in linker_arguments(&Path::new(&stubs).join(&arch).display().to_string(), &arch) {
            println!("cargo::rustc-link-arg-bin=gpufleet-probe={argument}");
        }
    }
    true
}

/// The arguments that a C compiler would pass to the linker, and some that make the program smaller.
fn linker_arguments(stubs: &str, arch: &str) -> [String; 8] {
    let loader = match arch {
        "x86_64" => "/lib64/ld-linux-x86-64.so.2",
        _ => "/lib/ld-linux-aarch64.so.1",
    };
    [
        format!("{stubs}/start.o"),
        format!("-L{stubs}"),
        format!("--dynamic-linker={loader}"),
        format!("-T{stubs}/discard.ld"),
        "--no-eh-frame-hdr".to_owned(),
        "--hash-style=gnu".to_owned(),
        "--icf=all".to_owned(),
        "--build-id=none".to_owned(),
    ]
}
