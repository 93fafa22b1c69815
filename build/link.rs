//! Inside the nested build: the linker's arguments.
//!
//! They differ by architecture while one Cargo run builds for all, so they cannot be in its environment; Cargo runs
//! this script again there, once for each target, and takes them from it.

use std::env;
use std::path::Path;

/// The guard variable: set in a nested build only. Its value is the directory with a folder of stubs an architecture,
/// or empty where the machine's own C toolchain links.
pub(crate) const STUBS_VARIABLE: &str = "GPUFLEET_NESTED_BUILD_STUBS";

/// In a nested build: prints the arguments, and says that this was all there is to do.
pub(crate) fn is_nested_build() -> bool {
    println!("cargo::rerun-if-env-changed={STUBS_VARIABLE}");
    let Ok(stubs) = env::var(STUBS_VARIABLE) else { return false };
    // Without a line for a file, Cargo would run the script again for every change in the package.
    println!("cargo::rerun-if-changed=build.rs");
    if !stubs.is_empty() {
        let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
        for argument in arguments(&Path::new(&stubs).join(&arch).display().to_string(), &arch) {
            println!("cargo::rustc-link-arg-bin=gpufleet-probe={argument}");
        }
    }
    true
}

/// What a C compiler would tell the linker, and what makes the program smaller.
fn arguments(stubs: &str, arch: &str) -> [String; 8] {
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
