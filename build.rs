//! Embeds the probe, `gpufleet-probe`, into the controller.
//!
//! The controller carries the probe for x86_64 and aarch64 Linux and uploads it to servers that may run a glibc as old
//! as 2.17. Cargo cannot give a binary to another target of the same package, so this script runs a nested `cargo
//! build` of the probe alone and writes what comes of it, compressed and hashed, to `OUT_DIR/probes.rs`, which
//! `src/collect/probe_binary.rs` includes:
//!
//! - `build/plan.rs` decides from the environment what to embed, and how an absence is told;
//! - `build/stubs.rs` makes what to link against, so that neither a C compiler nor a sysroot is needed;
//! - `build/nested.rs` runs the nested build, and `build/link.rs` is all that this script does inside it;
//! - `build/embed.rs` compresses, hashes and writes the Rust source.
//!
//! Environment variables, for packagers and for odd machines:
//! - `GPUFLEET_PROBE_X86_64`, `GPUFLEET_PROBE_AARCH64`: embed this prebuilt file instead of building one;
//! - `GPUFLEET_SKIP_PROBES=1`: embed none (as on docs.rs), for quick checks;
//! - `GPUFLEET_ALLOW_NO_PROBE=1`: go on where no x86_64 probe can be built.

#[cfg(feature = "controller")]
#[path = "build/embed.rs"]
mod embed;
#[path = "build/link.rs"]
mod link;
#[cfg(feature = "controller")]
#[path = "build/nested.rs"]
mod nested;
#[cfg(feature = "controller")]
#[path = "build/plan.rs"]
mod plan;
#[cfg(feature = "controller")]
#[path = "build/stubs.rs"]
mod stubs;
#[cfg(feature = "controller")]
#[path = "build/toolchain.rs"]
mod toolchain;

fn main() {
    if !link::is_nested_build() {
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

/// The probe alone carries nothing.
#[cfg(not(feature = "controller"))]
fn embed_probes() {}
